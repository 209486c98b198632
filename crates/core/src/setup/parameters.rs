//! Which parameters are written, in which order, and what they hold.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::app::Created;
use crate::config::{AppSettings, Registration};
use crate::secret::Secret;

/// The App's settings.
pub const APP: &str = "control/app";
/// What is signed in with: the App's private key.
pub const PRIVATE_KEY: &str = "control/app-private-key";
/// What webhooks are signed with.
pub const WEBHOOK_SECRET: &str = "control/webhook-secret";
/// The one before, which stays valid beside it.
pub const WEBHOOK_SECRET_PREVIOUS: &str = "control/webhook-secret-previous";
/// The key of runner names: made once and never again.
pub const NAME_KEY: &str = "control/name-key";
/// The tiers, which an operator writes.
pub const TIERS: &str = "control/tiers";

/// All that a set-up looks at.
pub const ALL: [&str; 5] = [APP, PRIVATE_KEY, WEBHOOK_SECRET, NAME_KEY, TIERS];

/// How a parameter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Encrypted (SecureString).
    Secret,
    /// Readable, and as long as need be (String, Intelligent-Tiering).
    Text,
}

/// A parameter to be written. Its value is in no debug form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// After the prefix.
    pub name: &'static str,
    /// How it is stored.
    pub kind: Kind,
    /// What is stored.
    pub value: Secret,
    /// Whether it may take the place of one that is there.
    pub replaces: bool,
}

impl Put {
    fn secret(name: &'static str, value: Secret) -> Self {
        Self { name, kind: Kind::Secret, value, replaces: true }
    }
}

/// What is there already.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Names.
    pub there: BTreeSet<String>,
    /// The texts that are needed: of the settings and of the webhook secret.
    pub texts: BTreeMap<String, Secret>,
}

impl Found {
    /// What a new App takes the place of. Empty if nothing is lost.
    pub fn replaced(&self) -> Vec<&'static str> {
        [APP, PRIVATE_KEY, WEBHOOK_SECRET]
            .into_iter()
            .filter(|name| self.there.contains(*name))
            .collect()
    }

    /// The settings of the App that is set up now, if they can be understood.
    pub fn app(&self) -> Option<AppSettings> {
        serde_json::from_str(self.texts.get(APP)?.expose()).ok()
    }

    /// Whether the operator has still to write the tiers.
    pub fn lacks_tiers(&self) -> bool {
        !self.there.contains(TIERS)
    }

    /// The settings for a new App: what the operator had set beside it stays. An error says why what is there
    /// can't be kept.
    pub fn settings(
        &self,
        app_id: u64,
        github_url: &str,
        registration: Registration,
    ) -> Result<String, String> {
        let mut settings = match self.texts.get(APP) {
            None => Map::from_iter([("repositories".to_owned(), json!({"public": "refuse"}))]),
            Some(text) => match serde_json::from_str(text.expose()) {
                Ok(Value::Object(settings)) => settings,
                _ => {
                    return Err(format!(
                        "{APP} is there, and is no JSON object: mend or delete it first"
                    ));
                }
            },
        };
        settings.insert("app_id".into(), json!(app_id));
        settings.insert("github_url".into(), json!(github_url));
        let registration = match registration {
            Registration::Organization => "organization",
            Registration::Repository => "repository",
        };
        settings.insert("registration".into(), json!(registration));
        let text = Value::Object(settings).to_string();
        match serde_json::from_str::<AppSettings>(&text) {
            Ok(_) => Ok(text),
            Err(error) => {
                Err(format!("{APP} is there, and is invalid ({error}): mend or delete it first"))
            }
        }
    }

    /// What can be written before there is an App: the key of runner names, if there is none. It also shows
    /// that parameters can be written at all.
    pub fn before(&self, name_key: Secret) -> Vec<Put> {
        let missing = !self.there.contains(NAME_KEY);
        let put = Put { replaces: false, ..Put::secret(NAME_KEY, name_key) };
        missing.then_some(put).into_iter().collect()
    }

    /// What is written once there is one. The settings come last: they are what the functions begin with. A
    /// repetition after a failure writes the same.
    pub fn after(&self, app: &Created, settings: String) -> Vec<Put> {
        let mut puts = Vec::new();
        let new = app.webhook_secret.clone();
        // Deliveries that were signed before are still on their way.
        if let Some(old) = self.texts.get(WEBHOOK_SECRET).filter(|old| **old != new) {
            puts.push(Put::secret(WEBHOOK_SECRET_PREVIOUS, old.clone()));
        }
        puts.push(Put::secret(PRIVATE_KEY, app.key.clone()));
        puts.push(Put::secret(WEBHOOK_SECRET, new));
        puts.push(Put { kind: Kind::Text, ..Put::secret(APP, Secret::new(settings)) });
        puts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::app::tests::created;

    const GITHUB: &str = "https://github.com";

    fn found(texts: &[(&str, &str)]) -> Found {
        Found {
            there: texts.iter().map(|(name, _)| (*name).into()).collect(),
            texts: texts.iter().map(|(name, text)| ((*name).into(), Secret::new(*text))).collect(),
        }
    }

    fn settings(found: &Found) -> Value {
        let text = found.settings(77, GITHUB, Registration::Organization).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_fresh_install_gets_all_and_replaces_nothing() {
        let found = found(&[]);
        assert!(found.replaced().is_empty() && found.lacks_tiers());
        let before = found.before(Secret::new("k"));
        assert_eq!(
            before.iter().map(|put| (put.name, put.replaces)).collect::<Vec<_>>(),
            [(NAME_KEY, false)]
        );
        let app = settings(&found);
        assert_eq!(
            app,
            json!({"app_id": 77, "github_url": GITHUB, "registration": "organization", "repositories": {"public": "refuse"}})
        );
        let after = found.after(&created(), app.to_string());
        let names: Vec<_> = after.iter().map(|put| (put.name, put.kind)).collect();
        assert_eq!(
            names,
            [(PRIVATE_KEY, Kind::Secret), (WEBHOOK_SECRET, Kind::Secret), (APP, Kind::Text)]
        );
    }

    #[test]
    fn the_key_of_runner_names_is_never_made_twice() {
        assert!(found(&[(NAME_KEY, "x")]).before(Secret::new("k")).is_empty());
        // Nor where it came to be there meanwhile.
        assert!(!found(&[]).before(Secret::new("k"))[0].replaces);
    }

    #[test]
    fn a_new_app_keeps_the_operators_settings_and_the_old_secret() {
        let old =
            r#"{"app_id": 3, "require_self_hosted": false, "repositories": {"allow": ["acme/*"]}}"#;
        let found = found(&[(APP, old), (WEBHOOK_SECRET, "old"), (PRIVATE_KEY, ""), (TIERS, "")]);
        assert_eq!(found.replaced(), [APP, PRIVATE_KEY, WEBHOOK_SECRET]);
        assert_eq!((found.app().map(|app| app.app_id), found.lacks_tiers()), (Some(3), false));
        let app = settings(&found);
        assert_eq!((&app["app_id"], &app["require_self_hosted"]), (&json!(77), &json!(false)));
        assert_eq!(app["repositories"], json!({"allow": ["acme/*"]}));
        let after = found.after(&created(), app.to_string());
        assert_eq!((after[0].name, after[0].value.expose()), (WEBHOOK_SECRET_PREVIOUS, "old"));
        assert_eq!(after.last().map(|put| put.name), Some(APP), "what makes it live comes last");
    }

    #[test]
    fn settings_that_would_not_be_understood_are_refused_before_anything_is_made() {
        for text in ["[]", "x", r#"{"app_id": 1, "repositries": {}}"#] {
            let problem =
                found(&[(APP, text)]).settings(7, GITHUB, Registration::Organization).unwrap_err();
            assert!(problem.contains("mend or delete"), "{problem}");
        }
    }

    #[test]
    fn i9_no_debug_form_has_a_value() {
        let found = found(&[(WEBHOOK_SECRET, "hush-old")]);
        let text = format!("{found:?} {:?}", found.after(&created(), "{}".into()));
        assert!(!text.contains("hush") && !text.contains("PEMPEM"), "{text}");
    }
}
