//! Parameters of Parameter Store, as many as are asked for.

use std::collections::BTreeMap;

use aws_sdk_ssm::Client;
use ostler_core::apps::{self, AppCredential, ManifestEntry};
use ostler_core::secret::Secret;
use ostler_core::{Error, Result};
use tracing::warn;

use crate::sdk_error;

/// Parameters in one call (docs.aws.amazon.com, GetParameters).
pub(crate) const MAX_PARAMETERS: usize = 10;

/// The texts of those parameters that are there, decrypted, by their names. `what` is for the error.
pub(crate) async fn read(
    client: &Client,
    what: &str,
    names: &[String],
) -> Result<BTreeMap<String, Secret>> {
    let mut texts = BTreeMap::new();
    for names in names.chunks(MAX_PARAMETERS) {
        let call = client.get_parameters().set_names(Some(names.to_vec())).with_decryption(true);
        let answer = call.send().await.map_err(|error| sdk_error(what, error))?;
        texts.extend(
            answer
                .parameters
                .unwrap_or_default()
                .into_iter()
                .filter_map(|parameter| Some((parameter.name?, Secret::new(parameter.value?)))),
        );
    }
    Ok(texts)
}

/// The additional Apps of a manifest, and whether those are all of them. Nothing that is wrong with them, be
/// it that they can't be read at all, keeps the first App from its work: it is told of in the log.
pub(crate) async fn additional_apps(
    client: &Client,
    manifest: Option<&Secret>,
) -> (Vec<AppCredential>, bool) {
    let Some(manifest) = manifest.map(Secret::expose).filter(|text| !text.trim().is_empty()) else {
        return (Vec::new(), true);
    };
    let (manifest, mut problems) = match apps::read_manifest(manifest) {
        Ok(read) => read,
        Err(problem) => {
            warn!(problem, "the manifest of additional Apps is left out");
            return (Vec::new(), false);
        }
    };
    let what = "read the additional Apps' parameters";
    let texts = match read(client, what, &once(apps::parameters_of(&manifest))).await {
        // One name that the role may not read, or that can be none, has the whole call refused.
        Err(Error::Permanent(_)) => one_by_one(client, what, &manifest, &mut problems).await,
        read => read.unwrap_or_else(|error| {
            problems.push(error.to_string());
            BTreeMap::new()
        }),
    };
    let (apps, unread) = apps::additional(&manifest, &texts);
    problems.extend(unread);
    for problem in &problems {
        warn!(problem, "an additional App is left out");
    }
    (apps, problems.is_empty())
}

/// The texts of those Apps that can be read.
async fn one_by_one(
    client: &Client,
    what: &str,
    manifest: &[ManifestEntry],
    problems: &mut Vec<String>,
) -> BTreeMap<String, Secret> {
    let mut texts = BTreeMap::new();
    for entry in manifest {
        match read(client, what, &once(entry.parameters().to_vec())).await {
            Ok(read) => texts.extend(read),
            Err(error) => problems.push(error.to_string()),
        }
    }
    texts
}

/// Each name once: GetParameters refuses one that comes twice.
fn once(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}
