//! Parameters as a set-up reads and writes them.

use std::collections::{BTreeMap, BTreeSet};

use aws_config::SdkConfig;
use aws_sdk_ssm::Client;
use aws_sdk_ssm::types::{ParameterTier, ParameterType};
use ostler_core::secret::Secret;
use ostler_core::setup::Parameters;
use ostler_core::setup::parameters::{Kind, Put};
use ostler_core::{Error, Result};

use crate::error::sdk_error_of_secret;
use crate::{parameters, sdk_error};

/// The parameters of one install.
pub struct SetupParameters {
    client: Client,
    prefix: String,
}

impl SetupParameters {
    /// Below that prefix, as `/ostler`; no call is made.
    pub fn new(config: &SdkConfig, prefix: &str) -> Self {
        Self { client: Client::new(config), prefix: prefix.trim_end_matches('/').to_owned() }
    }

    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn short(&self, name: &str) -> Option<String> {
        Some(name.strip_prefix(&self.prefix)?.strip_prefix('/')?.to_owned())
    }

    fn what(&self) -> String {
        format!("read parameters under {}", self.prefix)
    }
}

impl Parameters for SetupParameters {
    async fn there(&self, names: &[&str]) -> Result<BTreeSet<String>> {
        let names: Vec<_> = names.iter().map(|name| self.full(name)).collect();
        let call = self.client.get_parameters().set_names(Some(names));
        let answer = call.send().await.map_err(|error| sdk_error(&self.what(), error))?;
        let found = answer.parameters.unwrap_or_default().into_iter();
        Ok(found.filter_map(|parameter| self.short(&parameter.name?)).collect())
    }

    async fn texts(&self, names: &[&str]) -> Result<BTreeMap<String, Secret>> {
        let names: Vec<_> = names.iter().map(|name| self.full(name)).collect();
        let texts = parameters::read(&self.client, &self.what(), &names).await?;
        Ok(texts.into_iter().filter_map(|(name, text)| Some((self.short(&name)?, text))).collect())
    }

    async fn put(&self, put: &Put) -> Result<bool> {
        let name = self.full(put.name);
        let (kind, tier) = match put.kind {
            Kind::Secret => (ParameterType::SecureString, ParameterTier::Standard),
            // More than 4 KB costs; this changes over by itself when it comes to that.
            Kind::Text => (ParameterType::String, ParameterTier::IntelligentTiering),
        };
        let call = self
            .client
            .put_parameter()
            .name(&name)
            .r#type(kind)
            .tier(tier)
            .overwrite(put.replaces)
            .value(put.value.expose());
        match call.send().await {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|error| error.is_parameter_already_exists()) =>
            {
                match put.replaces {
                    false => Ok(false),
                    true => Err(Error::Conflict(format!("{name} is there, and can't be replaced"))),
                }
            }
            Err(error) => Err(sdk_error_of_secret(&format!("write {name}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Wire;

    fn put(name: &'static str, kind: Kind, replaces: bool) -> Put {
        Put { name, kind, value: Secret::new("SECRET"), replaces }
    }

    #[tokio::test]
    async fn what_is_there_is_asked_without_being_decrypted() {
        let answer = json!({"Parameters": [{"Name": "/acme/control/name-key", "Value": "cipher"}]});
        let wire = Wire::new([(200, answer)]);
        let parameters = SetupParameters::new(&wire.config().await, "/acme/");
        let there = parameters.there(&["control/name-key", "control/app"]).await.unwrap();
        assert_eq!(there, BTreeSet::from(["control/name-key".to_owned()]));
        let asked = json!({"#target": "GetParameters", "Names": ["/acme/control/name-key", "/acme/control/app"]});
        assert_eq!(wire.requests(), [asked]);
    }

    #[tokio::test]
    async fn secrets_are_encrypted_and_what_is_there_is_replaced_only_where_that_is_meant() {
        let exists = json!({"__type": "ParameterAlreadyExists", "message": "SECRET"});
        let wire = Wire::new([(200, json!({"Version": 1})), (400, exists)]);
        let parameters = SetupParameters::new(&wire.config().await, "/ostler");
        assert!(parameters.put(&put("control/app", Kind::Text, true)).await.unwrap());
        assert!(!parameters.put(&put("control/name-key", Kind::Secret, false)).await.unwrap());
        let sent = wire.requests();
        assert_eq!((&sent[0]["Type"], &sent[0]["Overwrite"]), (&json!("String"), &json!(true)));
        assert_eq!(
            (&sent[1]["Type"], &sent[1]["Overwrite"]),
            (&json!("SecureString"), &json!(false))
        );
    }

    #[tokio::test]
    async fn i9_an_error_never_repeats_what_was_to_be_stored() {
        let refused = json!({"__type": "AccessDeniedException", "message": "no SECRET for you"});
        let wire = Wire::new([(400, refused)]);
        let parameters = SetupParameters::new(&wire.config().await, "/ostler");
        let error = parameters.put(&put("control/app", Kind::Secret, true)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/ostler/control/app") && !text.contains("SECRET"), "{text}");
    }
}
