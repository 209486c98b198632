//! Checks Signature Version 4, as AWS does, of requests that instances sign by hand.
//! Source: IAM user guide, "Create a signed AWS API request".

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Uri};
use sha2::{Digest, Sha256};

/// Why a signature is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The `Authorization` header is missing or no SigV4.
    #[error("not signed with AWS4-HMAC-SHA256")]
    NotSigned,
    /// A header that must be signed is missing or not among those signed.
    #[error("{0} is not signed")]
    HeaderNotSigned(String),
    /// It was made with another key, or of another request.
    #[error("the signature does not match; the canonical request was {0:?}")]
    Mismatch(String),
}

/// Verifies the signature of a request under `secret`. `uri` is as it was sent, path and query.
pub fn verify(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
    secret: &str,
) -> Result<(), SignatureError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let fields = text("authorization").and_then(|value| value.strip_prefix("AWS4-HMAC-SHA256 "));
    let field = |name: &str| {
        let fields = fields?.split(',').map(str::trim);
        fields.filter_map(|field| field.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let (Some(credential), Some(names), Some(signature)) =
        (field("Credential"), field("SignedHeaders"), field("Signature"))
    else {
        return Err(SignatureError::NotSigned);
    };
    let scope = credential.split_once('/').map_or("", |(_, scope)| scope);
    let date = text("x-amz-date").unwrap_or("");
    if scope.split('/').count() != 4 || !date.starts_with(scope.split('/').next().unwrap_or("?")) {
        return Err(SignatureError::NotSigned);
    }

    let signed: Vec<&str> = names.split(';').collect();
    let must = headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    for name in must.chain(["host", "x-amz-date"]) {
        if !signed.contains(&name) {
            return Err(SignatureError::HeaderNotSigned(name.to_owned()));
        }
    }
    let mut canonical = format!("{method}\n{}\n{}\n", uri.path(), query(uri));
    for name in &signed {
        let value = text(name).ok_or_else(|| SignatureError::HeaderNotSigned((*name).to_owned()))?;
        let value: Vec<&str> = value.split_whitespace().collect();
        canonical += &format!("{name}:{}\n", value.join(" "));
    }
    canonical += &format!("\n{names}\n{}", hex(&Sha256::digest(body)));

    let mut key = format!("AWS4{secret}").into_bytes();
    for part in scope.split('/') {
        key = hmac(&key, part.as_bytes());
    }
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(&canonical)));
    if hex(&hmac(&key, to_sign.as_bytes())) == signature {
        Ok(())
    } else {
        // Whoever debugs a signature needs this; the session token in it is taken out.
        let shown = canonical.lines().filter(|line| !line.starts_with("x-amz-security-token:"));
        Err(SignatureError::Mismatch(shown.collect::<Vec<_>>().join("\n")))
    }
}

fn query(uri: &Uri) -> String {
    let mut pairs: Vec<String> = uri
        .query()
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    pairs.sort();
    pairs.join("&")
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mut mac) => {
            mac.update(text);
            mac.finalize().into_bytes().to_vec()
        }
        // HMAC takes keys of any length.
        Err(_) => Vec::new(),
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "get-vanilla-query-order-key-case" and "post-vanilla" of AWS's published SigV4 test suite.
    #[test]
    fn signatures_of_the_published_test_suite_are_accepted_and_no_others() {
        let cases = [
            (
                "GET",
                "/?Param2=value2&Param1=value1",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            ("POST", "/", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ];
        for (method, uri, signature) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("host", "example.amazonaws.com".parse().unwrap());
            headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
            let authorization = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders=host;x-amz-date, Signature={signature}"
            );
            headers.insert("authorization", authorization.parse().unwrap());
            let check = |headers: &HeaderMap, body: &[u8], secret: &str| {
                verify(&method.parse().unwrap(), &uri.parse().unwrap(), headers, body, secret)
            };
            let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
            assert_eq!(check(&headers, b"", secret), Ok(()));
            assert!(matches!(check(&headers, b"x", secret), Err(SignatureError::Mismatch(_))));
            assert!(matches!(check(&headers, b"", "other"), Err(SignatureError::Mismatch(_))));
            headers.insert("x-amz-security-token", "t".parse().unwrap());
            assert_eq!(
                check(&headers, b"", secret),
                Err(SignatureError::HeaderNotSigned("x-amz-security-token".to_owned()))
            );
        }
    }
}
