//! Verification of Signature Version 4, for the one caller whose signing code is our own: the bootstrap
//! script, which signs with openssl and curl.
//! Source: AWS, "Create a signed AWS API request" (IAM user guide).

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Uri};
use ostler_core::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::aws::percent_encode;

/// A signature is good for this long, world time.
const VALIDITY: Duration = Duration::from_secs(900);

/// The parts of an `Authorization` header.
struct Authorization<'a> {
    scope: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

/// Checks a request against the secret of its key. The error says what is wrong, in AWS's words where it
/// has them.
pub fn verify(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
    secret: &str,
    now: Timestamp,
) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let given = authorization(text("authorization").unwrap_or(""))
        .ok_or("the Authorization header is not of Signature Version 4")?;
    let stamp = text("x-amz-date").ok_or("x-amz-date is missing")?;
    let at = date(stamp).ok_or("x-amz-date is not of the form 20260101T000000Z")?;
    if now.since(at).max(at.since(now)) > VALIDITY {
        return Err(format!("Signature expired: {stamp} is not within 15 minutes of {now}"));
    }
    let names: Vec<&str> = given.signed_headers.split(';').collect();
    for required in ["host", "x-amz-date"] {
        if !names.contains(&required) {
            return Err(format!("{required} must be among the signed headers"));
        }
    }
    let mut canonical_headers = String::new();
    for name in &names {
        let value =
            text(name).ok_or_else(|| format!("signed header {name} is not in the request"))?;
        canonical_headers.push_str(&format!(
            "{name}:{}\n",
            value.split_whitespace().collect::<Vec<_>>().join(" ")
        ));
    }
    let canonical = format!(
        "{method}\n{}\n{}\n{canonical_headers}\n{}\n{}",
        uri.path(),
        canonical_query(uri.query().unwrap_or("")),
        given.signed_headers,
        hex(&Sha256::digest(body)),
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{stamp}\n{}\n{}",
        given.scope,
        hex(&Sha256::digest(canonical.as_bytes()))
    );
    if !stamp.starts_with(given.scope.split('/').next().unwrap_or("-")) {
        return Err("the date of the credential scope is not that of x-amz-date".to_owned());
    }
    let key = given
        .scope
        .split('/')
        .fold(format!("AWS4{secret}").into_bytes(), |key, part| sign(&key, part.as_bytes()));
    if hex(&sign(&key, to_sign.as_bytes())) == given.signature {
        Ok(())
    } else {
        Err("The request signature we calculated does not match the signature you provided"
            .to_owned())
    }
}

fn authorization(text: &str) -> Option<Authorization<'_>> {
    let fields = text.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let field = |name: &str| fields.split(',').find_map(|field| field.trim().strip_prefix(name));
    let (_, scope) = field("Credential=")?.split_once('/')?;
    Some(Authorization {
        scope,
        signed_headers: field("SignedHeaders=")?,
        signature: field("Signature=")?,
    })
}

fn date(stamp: &str) -> Option<Timestamp> {
    let part = |from: usize, to: usize| stamp.get(from..to);
    Timestamp::parse(&format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0, 4)?,
        part(4, 6)?,
        part(6, 8)?,
        part(9, 11)?,
        part(11, 13)?,
        part(13, 15)?
    ))
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = crate::aws::form(query.as_bytes()).into_iter().collect();
    pairs.sort();
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

fn sign(key: &[u8], data: &[u8]) -> Vec<u8> {
    // Any key length is valid for HMAC, so the error branch is never taken.
    Hmac::<Sha256>::new_from_slice(key).map_or_else(
        |_| Vec::new(),
        |mut mac| {
            mac.update(data);
            mac.finalize().into_bytes().to_vec()
        },
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of the IAM user guide ("GET ListUsers", 2015-08-30).
    #[test]
    fn the_example_of_the_documentation_verifies() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "iam.amazonaws.com"),
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("x-amz-date", "20150830T123600Z"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
                 SignedHeaders=content-type;host;x-amz-date, \
                 Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
            ),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let uri: Uri = "/?Action=ListUsers&Version=2010-05-08".parse().unwrap();
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let now = Timestamp::parse("2015-08-30T12:36:00Z").unwrap();
        let check = |body: &[u8], secret: &str, now| {
            verify(&Method::GET, &uri, &headers, body, secret, now)
        };
        assert_eq!(check(b"", secret, now), Ok(()));
        assert!(check(b"x", secret, now).is_err(), "the body is covered");
        assert!(check(b"", "other", now).is_err());
        assert!(
            check(b"", secret, now + Duration::from_secs(901)).unwrap_err().contains("expired")
        );
    }
}
