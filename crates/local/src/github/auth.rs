//! The App's key, and what its JSON web tokens must be like.

use anyhow::{Context as _, anyhow};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ostler_core::time::Timestamp;
use ostler_sim::github::ApiError;
use serde::Deserialize;
use serde_json::Value;

/// Longest life of an App token, in seconds (docs: ten minutes).
const LIFE_SECONDS: i64 = 600;
/// How far GitHub's clock and the caller's may differ, in seconds. GitHub advises to date tokens back by
/// as much (docs).
const TOLERANCE_SECONDS: i64 = 60;
/// What stands before the PKCS#1 key in the PKCS#8 form of a 2048-bit key: version, algorithm, and the
/// heads of the structures, in bytes (RFC 5208).
const PKCS8_HEAD: usize = 26;

/// The key pair of the App.
pub(super) struct AppKey {
    pem: String,
    public: DecodingKey,
}

#[derive(Deserialize)]
struct Claims {
    iss: Value,
    iat: Value,
    exp: Value,
}

impl AppKey {
    pub(super) fn generate() -> anyhow::Result<Self> {
        let pair = KeyPair::generate(KeySize::Rsa2048).context("make the App's key")?;
        let pkcs8 = AsDer::<Pkcs8V1Der>::as_der(&pair).context("encode the App's key")?;
        let pkcs1 = pkcs8.as_ref().get(PKCS8_HEAD..).filter(|key| key.first() == Some(&0x30));
        let text = STANDARD.encode(pkcs1.ok_or_else(|| anyhow!("unexpected PKCS#8 form"))?);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        Ok(Self {
            pem: format!(
                "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n",
                lines.join("\n")
            ),
            public: DecodingKey::from_rsa_der(pair.public_key().as_ref()),
        })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Accepts a token that is signed with this key, is the App's, and is valid by GitHub's clock. The
    /// words of the refusals are GitHub's.
    pub(super) fn verify(&self, token: &str, app_id: u64, now: Timestamp) -> Result<(), ApiError> {
        let refused = |message: &str| ApiError::new(401, message);
        let mut validation = Validation::new(Algorithm::RS256);
        // The library knows the real time only.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let claims = jsonwebtoken::decode::<Claims>(token, &self.public, &validation)
            .map_err(|_| refused("A JSON web token could not be decoded"))?
            .claims;
        let now = now.seconds();
        let issued = claims.iat.as_i64().ok_or_else(|| {
            refused(
                "'Issued at' claim ('iat') must be an Integer representing the time that the \
                 assertion was issued",
            )
        })?;
        let expires = claims.exp.as_i64().filter(|exp| *exp > now - TOLERANCE_SECONDS);
        let expires = expires.ok_or_else(|| {
            refused(
                "'Expiration time' claim ('exp') must be a numeric value representing the future \
                 time at which the assertion expires",
            )
        })?;
        if issued > now + TOLERANCE_SECONDS {
            return Err(refused("'Issued at' claim ('iat') is in the future"));
        }
        if expires > issued + LIFE_SECONDS || expires > now + LIFE_SECONDS + TOLERANCE_SECONDS {
            return Err(refused("'Expiration time' claim ('exp') is too far in the future"));
        }
        // A number or its digits: both are accepted.
        let issuer = claims.iss.as_u64().or_else(|| claims.iss.as_str()?.parse().ok());
        if issuer != Some(app_id) {
            return Err(ApiError::new(404, "Integration not found"));
        }
        Ok(())
    }
}
