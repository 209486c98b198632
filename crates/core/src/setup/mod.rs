//! Setting up: a GitHub App is made from a manifest, and what it signs in with is put where the functions
//! read it.
//!
//! GitHub's part is public: docs.github.com, "Registering a GitHub App from a manifest". A page of ours posts
//! the manifest to GitHub; the operator clicks there; GitHub leads the browser back with a code that is good
//! for one hour and one use, and answers it with id, key and webhook secret.
//!
//! What must hold: no page, log or error has a secret of GitHub's in it; a code is taken only from the browser
//! that began, once; nothing that is there already is replaced without the operator's word, and the key of
//! runner names never.

pub mod app;
pub mod page;
pub mod parameters;
pub mod session;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::secret::Secret;
use app::Created;
use parameters::{Found, Put};

/// The half of GitHub that makes Apps.
pub trait Registry {
    /// Trades a manifest's code for the App. A code is good once: an answer that was lost is lost with the key.
    fn convert(&self, code: &str) -> impl Future<Output = Result<Created>>;

    /// The accounts with which an App is installed, by their logins. Changes nothing.
    fn installed(&self, app: &Created) -> impl Future<Output = Result<Vec<String>>>;
}

/// Where the functions read their parameters. Names are those after the prefix, as `control/app`.
pub trait Parameters {
    /// Those that are there, without their texts.
    fn there(&self, names: &[&str]) -> impl Future<Output = Result<BTreeSet<String>>>;

    /// The texts of those that are there, decrypted.
    fn texts(&self, names: &[&str]) -> impl Future<Output = Result<BTreeMap<String, Secret>>>;

    /// Writes one; whether it did, which it does not where one is there that may not be replaced. A repetition
    /// writes the same again.
    fn put(&self, put: &Put) -> impl Future<Output = Result<bool>>;
}

/// What is there of an earlier set-up.
pub async fn look(parameters: &impl Parameters) -> Result<Found> {
    let there = parameters.there(&parameters::ALL).await?;
    let texts = parameters.texts(&[parameters::APP, parameters::WEBHOOK_SECRET]).await?;
    Ok(Found { there, texts })
}

/// Writes parameters in their order, and says what became of each.
pub async fn write(
    parameters: &impl Parameters,
    puts: &[Put],
    mut say: impl FnMut(&Put, bool),
) -> Result<()> {
    for put in puts {
        let written = parameters.put(put).await?;
        say(put, written);
    }
    Ok(())
}
