//! Parameters of Parameter Store, as many as are asked for.

use std::collections::BTreeMap;

use aws_config::SdkConfig;
use aws_sdk_ssm::Client;
use aws_sdk_ssm::types::{ParameterTier, ParameterType};
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

/// The texts of those parameters that are there, decrypted, by their full names: for an operator.
pub async fn read_parameters(
    config: &SdkConfig,
    names: &[String],
) -> Result<BTreeMap<String, Secret>> {
    read(&Client::new(config), "read the parameters", names).await
}

/// Creates or changes a parameter that is no secret, of whatever length a parameter may have.
pub async fn write_parameter(config: &SdkConfig, name: &str, text: &str) -> Result<()> {
    let call = Client::new(config).put_parameter().name(name).value(text).overwrite(true);
    let call = call.r#type(ParameterType::String).tier(ParameterTier::IntelligentTiering);
    let written = call.send().await.map(|_| ());
    written.map_err(|error| sdk_error(&format!("write the parameter {name}"), error))
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
