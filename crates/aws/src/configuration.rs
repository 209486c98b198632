//! The configuration port over Parameter Store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_ssm::Client;
use ostler_core::Result;
use ostler_core::config::Settings;
use ostler_core::ports::{Clock, Configuration};
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use tokio::sync::Mutex;

use crate::parameters::{self, MAX_PARAMETERS};

/// How old the settings may be.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Least time between two reads for which somebody asked: anyone can post bad signatures.
const REREAD: Duration = Duration::from_secs(60);

/// Reads all parameters in one batch, those of additional Apps in another, and keeps them. Parameters that
/// are not there are parts of the settings that are not set. If a read fails, the last settings go on being
/// used.
pub struct SsmConfiguration<C> {
    client: Client,
    prefix: String,
    names: Vec<&'static str>,
    clock: C,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    settings: Option<Arc<Settings>>,
    /// When the last read was tried, whatever came of it.
    tried: Timestamp,
    /// From when on the settings are too old.
    stale: Timestamp,
}

impl<C: Clock> SsmConfiguration<C> {
    /// For the parameters `<prefix>/<name>`; at most ten names, as `control/tiers`.
    pub fn new(config: &SdkConfig, prefix: &str, names: &[&'static str], clock: C) -> Self {
        debug_assert!(names.len() <= MAX_PARAMETERS);
        Self {
            client: Client::new(config),
            prefix: prefix.trim_end_matches('/').to_owned(),
            names: names.to_vec(),
            clock,
            kept: Mutex::default(),
        }
    }

    /// The kept settings if they `will_do`, else new ones. Callers at the same time share one read.
    async fn fresh(&self, will_do: impl Fn(&Kept, Timestamp) -> bool) -> Result<Arc<Settings>> {
        let mut kept = self.kept.lock().await;
        let now = self.clock.now();
        if let Some(settings) = &kept.settings
            && will_do(&kept, now)
        {
            return Ok(settings.clone());
        }
        kept.tried = now;
        match self.read().await {
            Ok(settings) => {
                for problem in &settings.tiers.problems {
                    tracing::warn!(problem, "the configuration has a fault; that part is left out");
                }
                let settings = Arc::new(settings);
                kept.settings = Some(settings.clone());
                kept.stale = now + MAX_AGE;
                Ok(settings)
            }
            Err(error) => {
                // Not every event is to repeat a failed read.
                kept.stale = now + REREAD;
                let Some(settings) = &kept.settings else { return Err(error) };
                tracing::warn!(%error, "the configuration cannot be read; the last one is used");
                Ok(settings.clone())
            }
        }
    }

    async fn read(&self) -> Result<Settings> {
        let full = |name: &&str| format!("{}/{name}", self.prefix);
        let names: Vec<_> = self.names.iter().map(full).collect();
        let what = format!("read parameters under {}", self.prefix);
        let texts = parameters::read(&self.client, &what, &names).await?;
        let short =
            |name: &str| Some(name.strip_prefix(&self.prefix)?.strip_prefix('/')?.to_owned());
        let texts: BTreeMap<String, Secret> =
            texts.into_iter().filter_map(|(name, text)| Some((short(&name)?, text))).collect();
        let mut settings = Settings::from_parameters(&texts);
        // What is wrong with these is no fault of the tiers, by which the webhook answers 503.
        let additional = parameters::additional_apps(&self.client, texts.get("control/apps"));
        (settings.additional_apps, _) = additional.await;
        Ok(settings)
    }
}

impl<C: Clock> Configuration for SsmConfiguration<C> {
    async fn settings(&self) -> Result<Arc<Settings>> {
        self.fresh(|kept, now| now < kept.stale).await
    }

    async fn reread(&self) -> Result<Arc<Settings>> {
        self.fresh(|kept, now| now < kept.tried + REREAD).await
    }
}

#[cfg(test)]
mod tests {
    use ostler_core::Error;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestClock, Wire};

    const NAMES: [&str; 3] = ["control/tiers", "control/app", "control/webhook-secret"];

    fn answer(secret: &str) -> (u16, Value) {
        (
            200,
            json!({"Parameters": [
            {"Name": "/ostler/control/webhook-secret", "Type": "SecureString", "Value": secret},
            {"Name": "/ostler/control/app", "Value": "{\"app_id\": 7}"},
            {"Name": "/elsewhere/control/tiers", "Value": "{}"}],
            "InvalidParameters": ["/ostler/control/tiers"]}),
        )
    }

    fn failure() -> (u16, Value) {
        (400, json!({"__type": "AccessDeniedException", "Message": "no"}))
    }

    async fn configuration(wire: &Wire) -> (SsmConfiguration<TestClock>, TestClock) {
        let clock = TestClock::at("2026-11-30T12:00:00Z");
        (SsmConfiguration::new(&wire.config().await, "/ostler/", &NAMES, clock.clone()), clock)
    }

    fn secret(settings: &Settings) -> &str {
        settings.webhook_secrets[0].expose()
    }

    #[tokio::test]
    async fn one_decrypted_batch_is_kept_for_five_minutes() {
        let wire = Wire::new([answer("one"), answer("two")]);
        let (configuration, clock) = configuration(&wire).await;
        let settings = configuration.settings().await.unwrap();
        assert_eq!(
            (secret(&settings), settings.app.as_ref().map(|app| app.app_id)),
            ("one", Some(7))
        );
        assert!(settings.tiers.iter().next().is_none(), "a parameter that is not there is not set");
        clock.pass(299);
        assert_eq!(secret(&configuration.settings().await.unwrap()), "one");
        assert_eq!(
            wire.requests(),
            [
                json!({"#target": "GetParameters", "WithDecryption": true, "Names": ["/ostler/control/tiers",
                "/ostler/control/app", "/ostler/control/webhook-secret"]})
            ]
        );
        clock.pass(1);
        assert_eq!(secret(&configuration.settings().await.unwrap()), "two");
    }

    #[tokio::test]
    async fn additional_apps_are_read_after_the_manifest_that_names_them() {
        let manifest = r#"[{"idParamName": "/ostler/control/apps/2/id",
            "keyParamName": "/ostler/control/apps/2/key"}]"#;
        let first = |manifest: &str| {
            let texts = json!([{"Name": "/ostler/control/app", "Value": "{\"app_id\": 7}"},
                {"Name": "/ostler/control/apps", "Value": manifest}]);
            (200, json!({ "Parameters": texts }))
        };
        let second = json!({"Parameters": [{"Name": "/ostler/control/apps/2/id", "Value": "8"},
            {"Name": "/ostler/control/apps/2/key", "Value": "-----BEGIN X"}]});
        let wire = Wire::new([first(manifest), (200, second), first("[]"), first("no list")]);
        let (configuration, clock) = configuration(&wire).await;
        let apps = configuration.settings().await.unwrap().additional_apps.clone();
        assert_eq!(apps.iter().map(|app| app.id).collect::<Vec<_>>(), [8]);
        assert_eq!(wire.requests().len(), 2);
        clock.pass(300);
        assert_eq!(configuration.settings().await.unwrap().additional_apps, []);
        assert_eq!(wire.requests().len(), 3, "no manifest, no second call");
        clock.pass(300);
        let settings = configuration.settings().await.unwrap();
        assert!(settings.app.is_some() && settings.additional_apps.is_empty());
        assert_eq!(settings.tiers.problems, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_rotated_secret_is_read_again_at_most_once_a_minute() {
        let wire = Wire::new([answer("one"), answer("two"), answer("three")]);
        let (configuration, clock) = configuration(&wire).await;
        configuration.settings().await.unwrap();
        assert_eq!(secret(&configuration.reread().await.unwrap()), "one", "just read");
        clock.pass(60);
        assert_eq!(secret(&configuration.reread().await.unwrap()), "two");
        clock.pass(59);
        for _ in 0..5 {
            assert_eq!(secret(&configuration.reread().await.unwrap()), "two");
        }
        assert_eq!(wire.requests().len(), 2);
    }

    #[tokio::test]
    async fn if_a_read_fails_the_last_settings_are_used_and_it_is_tried_again_in_a_minute() {
        let wire = Wire::new([answer("one"), failure(), answer("two")]);
        let (configuration, clock) = configuration(&wire).await;
        configuration.settings().await.unwrap();
        clock.pass(301);
        for _ in 0..3 {
            assert_eq!(secret(&configuration.settings().await.unwrap()), "one");
        }
        assert_eq!(wire.requests().len(), 2);
        clock.pass(60);
        assert_eq!(secret(&configuration.settings().await.unwrap()), "two");
    }

    #[tokio::test]
    async fn the_first_read_has_nothing_to_fall_back_on() {
        let wire = Wire::new([failure(), answer("one")]);
        let (configuration, _) = configuration(&wire).await;
        assert!(matches!(configuration.settings().await, Err(Error::Permanent(_))));
        assert_eq!(secret(&configuration.settings().await.unwrap()), "one");
    }

    #[tokio::test]
    async fn cp_09_a_throttled_read_is_repeated_in_the_sdk() {
        let throttled = (400, json!({"__type": "ThrottlingException", "message": "slow down"}));
        let wire = Wire::new([throttled.clone(), throttled, answer("one")]);
        let (configuration, _) = configuration(&wire).await;
        assert_eq!(secret(&configuration.settings().await.unwrap()), "one");
        assert_eq!(wire.requests().len(), 3);
    }
}
