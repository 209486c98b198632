//! Credentials by the names of their parameters, for a function that has nothing else of an install.

use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_ssm::Client;
use ostler_core::apps::{AppCredential, Credentials, app_id, private_key};
use ostler_core::names::NameKey;
use ostler_core::ports::Clock;
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};
use tokio::sync::Mutex;
use tracing::warn;

use crate::parameters;

/// Least time between two reads for which somebody asked.
const REREAD: Duration = Duration::from_secs(60);

/// Where the credentials are.
#[derive(Clone, Debug, Default)]
pub struct CredentialNames {
    /// The parameter with the App's id.
    pub app_id: String,
    /// The one with its private key: PEM, or base64 of PEM.
    pub app_key: String,
    /// The one with the manifest of additional Apps.
    pub manifest: Option<String>,
    /// The one with the key of runner names.
    pub name_key: Option<String>,
}

/// Reads them once for the process; a read that failed is not kept.
pub struct SsmCredentials<C> {
    client: Client,
    names: CredentialNames,
    clock: C,
    kept: Mutex<Option<Kept>>,
}

struct Kept {
    read: Timestamp,
    credentials: Arc<Credentials>,
    /// Whether every additional App could be read.
    complete: bool,
}

impl<C: Clock> SsmCredentials<C> {
    /// Over those parameters; no call is made.
    pub fn new(config: &SdkConfig, names: CredentialNames, clock: C) -> Self {
        Self { client: Client::new(config), names, clock, kept: Mutex::default() }
    }

    /// The credentials; `refused` has them read again, unless that was done in the last 60 s: the key may
    /// have been rotated. So does an additional App that could not be read: it may be there by now.
    pub async fn load(&self, refused: bool) -> Result<Arc<Credentials>> {
        let mut kept = self.kept.lock().await;
        let now = self.clock.now();
        if let Some(kept) = &*kept
            && (kept.complete && !refused || now < kept.read + REREAD)
        {
            return Ok(Arc::clone(&kept.credentials));
        }
        let (credentials, complete) = self.read().await?;
        let credentials = Arc::new(credentials);
        *kept = Some(Kept { read: now, credentials: Arc::clone(&credentials), complete });
        Ok(credentials)
    }

    async fn read(&self) -> Result<(Credentials, bool)> {
        let CredentialNames { app_id: id_name, app_key: key_name, manifest, name_key } =
            &self.names;
        let names: Vec<String> =
            [Some(id_name), Some(key_name), manifest.as_ref(), name_key.as_ref()]
                .into_iter()
                .flatten()
                .cloned()
                .collect();
        let texts = parameters::read(&self.client, "read the App's credentials", &names).await?;
        let text = |name: &String| {
            texts.get(name).ok_or_else(|| {
                Error::Permanent(format!("the parameter {name} is not there: create it"))
            })
        };
        let (id, github_url) = app_id(text(id_name)?.expose()).ok_or_else(|| {
            Error::Permanent(format!("the parameter {id_name} holds no App's id"))
        })?;
        let key = private_key(text(key_name)?).ok_or_else(|| {
            Error::Permanent(format!(
                "the parameter {key_name} holds no private key: store the PEM file that GitHub gave, as it \
                 is or in base64"
            ))
        })?;
        let listed = manifest.as_ref().and_then(|name| texts.get(name));
        if let (Some(name), None) = (manifest, listed) {
            warn!(parameter = name, "the manifest of additional Apps is not there: create it");
        }
        let (additional, all) = parameters::additional_apps(&self.client, listed).await;
        let complete = all && listed.is_some() == manifest.is_some();
        let name_key = match name_key {
            Some(name) => Some(NameKey::new(text(name)?.expose()).ok_or_else(|| {
                Error::Permanent(format!("the parameter {name} holds no name key: it is empty"))
            })?),
            None => None,
        };
        let app = AppCredential { id, key };
        Ok((Credentials { app, github_url, additional, name_key }, complete))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestClock, Wire};

    const PEM: &str = "-----BEGIN X-----\nMIIE\n-----END X-----";

    fn answer(pairs: &[(&str, &str)]) -> (u16, Value) {
        let all: Vec<_> =
            pairs.iter().map(|(name, value)| json!({"Name": name, "Value": value})).collect();
        (200, json!({ "Parameters": all }))
    }

    fn names(manifest: bool) -> CredentialNames {
        CredentialNames {
            app_id: "/gh/id".into(),
            app_key: "/gh/key".into(),
            manifest: manifest.then(|| "/gh/apps".into()),
            name_key: None,
        }
    }

    async fn reader(wire: &Wire, names: CredentialNames) -> (SsmCredentials<TestClock>, TestClock) {
        let clock = TestClock::at("2026-11-30T12:00:00Z");
        (SsmCredentials::new(&wire.config().await, names, clock.clone()), clock)
    }

    #[tokio::test]
    async fn j70_credentials_are_read_once_for_a_process_and_a_failed_read_is_not_kept() {
        let failure = (400, json!({"__type": "AccessDeniedException", "Message": "no"}));
        let good = answer(&[("/gh/id", "4242"), ("/gh/key", PEM)]);
        let wire = Wire::new([failure, answer(&[("/gh/id", "4242")]), good]);
        let (reader, clock) = reader(&wire, names(false)).await;
        assert!(reader.load(false).await.is_err());
        let missing = reader.load(false).await.unwrap_err().to_string();
        assert!(missing.contains("/gh/key"), "{missing}");
        for _ in 0..3 {
            let credentials = reader.load(false).await.unwrap();
            assert_eq!((credentials.app.id, credentials.app.key.expose()), (4242, PEM));
            clock.pass(86_400);
        }
        let requests = wire.requests();
        assert_eq!(requests.len(), 3);
        assert_eq!(requests[0]["Names"], json!(["/gh/id", "/gh/key"]));
        assert_eq!(requests[0]["WithDecryption"], true);
    }

    #[tokio::test]
    async fn a_rotated_key_is_read_again_at_most_once_a_minute() {
        let with = |key: &str| answer(&[("/gh/id", "4242"), ("/gh/key", key)]);
        let wire = Wire::new([with(PEM), with(&PEM.replace('X', "Y"))]);
        let (reader, clock) = reader(&wire, names(false)).await;
        reader.load(false).await.unwrap();
        clock.pass(59);
        assert!(reader.load(true).await.unwrap().app.key.expose().contains('X'), "just read");
        clock.pass(1);
        assert!(reader.load(true).await.unwrap().app.key.expose().contains('Y'));
        assert_eq!(wire.requests().len(), 2);
    }

    #[tokio::test]
    async fn j62_j71_additional_apps_come_by_the_manifest_in_batches_of_ten() {
        let entry = |n: usize| json!({"idParamName": format!("/gh/{n}/id"), "keyParamName": format!("/gh/{n}/key")});
        let manifest = json!((1..=6).map(entry).collect::<Vec<_>>()).to_string();
        let first = answer(&[("/gh/id", "1"), ("/gh/key", PEM), ("/gh/apps", &manifest)]);
        let of = |n: usize| {
            [(format!("/gh/{n}/id"), n.to_string()), (format!("/gh/{n}/key"), PEM.into())]
        };
        let texts: Vec<(String, String)> = (1..=6).flat_map(of).collect();
        let texts: Vec<(&str, &str)> =
            texts.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        let wire = Wire::new([first, answer(&texts[..10]), answer(&texts[10..])]);
        let (reader, _) = reader(&wire, names(true)).await;
        let credentials = reader.load(false).await.unwrap();
        let ids: Vec<_> = credentials.additional.iter().map(|app| app.id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
        let asked: Vec<_> =
            wire.requests().iter().map(|r| r["Names"].as_array().unwrap().len()).collect();
        assert_eq!(asked, [3, 10, 2]);
    }

    #[tokio::test]
    async fn what_is_wrong_with_additional_apps_leaves_the_first_at_work() {
        let first =
            |manifest: &str| answer(&[("/gh/id", "1"), ("/gh/key", PEM), ("/gh/apps", manifest)]);
        let manifest = r#"[{"idParamName": "/x/id", "keyParamName": "/x/key"}]"#;
        let denied = (400, json!({"__type": "AccessDeniedException", "Message": "no"}));
        let gone = answer(&[("/gh/id", "1"), ("/gh/key", PEM)]);
        for wire in [
            Wire::new([gone]),
            Wire::new([first("no json")]),
            Wire::new([first(manifest), denied.clone(), denied]),
            Wire::new([first(manifest), answer(&[("/x/id", "2")])]),
        ] {
            let (reader, _) = reader(&wire, names(true)).await;
            let credentials = reader.load(false).await.unwrap();
            assert_eq!((credentials.app.id, credentials.additional.len()), (1, 0));
        }
    }

    #[tokio::test]
    async fn an_app_that_may_not_be_read_costs_itself_alone_and_is_read_once_it_may() {
        let manifest = r#"[{"idParamName": "/x/id", "keyParamName": "/x/key"},
            {"idParamName": "no name", "keyParamName": "no name"}, {"idParamName": "/lost"}]"#;
        let first = || answer(&[("/gh/id", "1"), ("/gh/key", PEM), ("/gh/apps", manifest)]);
        let refused = |code: &str| (400, json!({"__type": code, "Message": "no"}));
        let x = || answer(&[("/x/id", "2"), ("/x/key", PEM)]);
        let wire = Wire::new([
            first(),
            refused("AccessDeniedException"),
            x(),
            refused("ValidationException"),
            answer(&[("/gh/id", "1"), ("/gh/key", PEM), ("/gh/apps", "[]")]),
        ]);
        let (reader, clock) = reader(&wire, names(true)).await;
        for seconds in [0, 59, 1] {
            clock.pass(seconds);
            let credentials = reader.load(false).await.unwrap();
            let apps: Vec<_> = credentials.additional.iter().map(|app| app.id).collect();
            assert_eq!(apps, if seconds == 1 { vec![] } else { vec![2] });
        }
        let asked: Vec<_> = wire.requests().iter().map(|r| r["Names"].clone()).collect();
        let both = json!(["/x/id", "/x/key"]);
        assert_eq!(asked[1..4], [json!(["/x/id", "/x/key", "no name"]), both, json!(["no name"])]);
        clock.pass(3600);
        reader.load(false).await.unwrap();
        assert_eq!(wire.requests().len(), 5, "complete, and not read again");
    }

    #[tokio::test]
    async fn an_installs_own_parameters_serve_as_they_are() {
        let app = r#"{"app_id": 7, "github_url": "https://git.acme.example"}"#;
        let texts =
            [("/o/control/app", app), ("/o/control/key", PEM), ("/o/control/name-key", "k")];
        let wire = Wire::new([answer(&texts), answer(&texts[..2])]);
        let names = CredentialNames {
            app_id: "/o/control/app".into(),
            app_key: "/o/control/key".into(),
            manifest: None,
            name_key: Some("/o/control/name-key".into()),
        };
        let (reader, _) = reader(&wire, names.clone()).await;
        let credentials = reader.load(false).await.unwrap();
        assert_eq!(credentials.app.id, 7);
        assert_eq!(credentials.github_url.as_deref(), Some("https://git.acme.example"));
        assert!(credentials.name_key.is_some());
        let (reader, _) = self::reader(&wire, names).await;
        let missing = reader.load(false).await.unwrap_err().to_string();
        assert!(missing.contains("name-key"), "without it no name could be told: {missing}");
    }
}
