//! The signature of a delivery: HMAC-SHA256 over the raw bytes, compared in constant time.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::secret::Secret;

/// Whether `header` (`sha256=` and 64 hexadecimal digits) signs `body` with one of the secrets: the
/// current one or, while it is rotated, the previous. Empty secrets sign nothing.
pub fn verify(header: Option<&str>, body: &[u8], secrets: &[Secret]) -> bool {
    let Some(signature) = header.and_then(parse) else { return false };
    secrets.iter().filter(|secret| !secret.expose().is_empty()).any(|secret| {
        Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes())
            .is_ok_and(|mac| mac.chain_update(body).verify_slice(&signature).is_ok())
    })
}

/// The header that signs `body`, for those who send.
pub fn sign(body: &[u8], secret: &Secret) -> String {
    match Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) {
        Ok(mac) => {
            format!("sha256={}", crate::names::hex(&mac.chain_update(body).finalize().into_bytes()))
        }
        Err(_) => String::new(),
    }
}

/// Strictly the form that GitHub writes (lower-case); anything else is no signature.
fn parse(header: &str) -> Option<[u8; 32]> {
    let digits = header.strip_prefix("sha256=")?.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(of: u8) -> Option<u8> {
    match of {
        b'0'..=b'9' => Some(of - b'0'),
        b'a'..=b'f' => Some(of - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text)
    }

    #[test]
    fn the_vendors_example_verifies() {
        // docs.github.com, "Validating webhook deliveries", test values.
        let header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let secret = [secret("It's a Secret to Everybody")];
        assert!(verify(Some(header), b"Hello, World!", &secret));
        assert!(!verify(Some(header), b"Hello, World?", &secret));
    }

    #[test]
    fn se_01_without_a_secret_nothing_verifies() {
        let forged = sign(b"x", &secret(""));
        assert!(!verify(Some(&forged), b"x", &[]));
        assert!(!verify(Some(&forged), b"x", &[secret("")]));
    }

    #[test]
    fn ic_08_current_and_previous_secret_verify_during_a_rotation() {
        let secrets = [secret("new"), secret("old")];
        assert!(verify(Some(&sign(b"x", &secrets[0])), b"x", &secrets));
        assert!(verify(Some(&sign(b"x", &secrets[1])), b"x", &secrets));
        assert!(!verify(Some(&sign(b"x", &secret("older"))), b"x", &secrets));
    }

    #[test]
    fn se_04_odd_spellings_are_no_signatures() {
        let secrets = [secret("s")];
        let good = sign(b"x", &secrets[0]);
        assert!(verify(Some(&good), b"x", &secrets));
        let digits = good.strip_prefix("sha256=").unwrap();
        let odd = [
            format!("sha256= {digits}"),
            format!("sha256={}", digits.to_uppercase()),
            format!("SHA256={digits}"),
            digits.to_owned(),
            format!("sha256={}", &digits[..63]),
            format!("{good}0"),
            "sha256=".into(),
            String::new(),
            format!("sha256={}", "0".repeat(1_000_000)),
            format!("sha256={}", "é".repeat(32)),
            "sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709".into(),
        ];
        for header in odd {
            assert!(!verify(Some(&header), b"x", &secrets), "{:.80}", header);
        }
        assert!(!verify(None, b"x", &secrets));
    }

    proptest! {
        #[test]
        fn se_02_se_03_exactly_the_signed_bytes_verify(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            key in "[ -~]{1,40}",
            flip in 0usize..200,
        ) {
            let secrets = [secret(&key)];
            let header = sign(&body, &secrets[0]);
            prop_assert!(verify(Some(&header), &body, &secrets));
            let mut other = body.clone();
            if other.is_empty() { other.push(0) } else { let at = flip % other.len(); other[at] ^= 1 }
            prop_assert!(!verify(Some(&header), &other, &secrets));
            let longer = [secret(&format!("{key}x"))];
            prop_assert!(!verify(Some(&header), &body, &longer));
        }

        #[test]
        fn se_04_any_header_is_read_without_panic(header in ".{0,200}") {
            prop_assert!(!verify(Some(&header), b"x", &[secret("s")]));
        }
    }
}
