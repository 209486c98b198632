//! Parameters of Parameter Store, as many as are asked for.

use std::collections::BTreeMap;

use aws_sdk_ssm::Client;
use ostler_core::Result;
use ostler_core::apps::{self, AppCredential};
use ostler_core::secret::Secret;
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

/// The additional Apps of a manifest. Nothing that is wrong with them, be it that they can't be read at all,
/// keeps the first App from its work: it is told of in the log.
pub(crate) async fn additional_apps(
    client: &Client,
    manifest: Option<&Secret>,
) -> Vec<AppCredential> {
    let Some(manifest) = manifest.map(Secret::expose).filter(|text| !text.trim().is_empty()) else {
        return Vec::new();
    };
    let manifest = match apps::read_manifest(manifest) {
        Ok(manifest) => manifest,
        Err(problem) => {
            warn!(problem, "the manifest of additional Apps is left out");
            return Vec::new();
        }
    };
    let mut names = apps::parameters_of(&manifest);
    // GetParameters refuses a name that comes twice.
    names.sort();
    names.dedup();
    let (apps, problems) = match read(client, "read the additional Apps' parameters", &names).await
    {
        Ok(texts) => apps::additional(&manifest, &texts),
        Err(error) => (Vec::new(), vec![error.to_string()]),
    };
    for problem in problems {
        warn!(problem, "an additional App is left out");
    }
    apps
}
