//! The App: its manifest, what it may do, and where GitHub makes and installs it. The one place that knows the
//! permissions; docs/github-app.md has the same table for people, and a test compares them.

use std::collections::BTreeMap;

use serde_json::json;

use crate::config::Registration;
use crate::secret::Secret;

/// GitHub's limit for the name of an App, in characters (docs.github.com, "Registering a GitHub App").
pub const MAX_NAME: usize = 34;

/// GitHub's limit for a login, in characters.
const MAX_LOGIN: usize = 39;

/// What the App subscribes to. GitHub sends `ping` and `installation` unasked, and refuses a manifest that lists
/// them.
pub const EVENTS: [&str; 1] = ["workflow_job"];

/// The App's homepage, which a manifest must have.
const HOMEPAGE: &str = env!("CARGO_PKG_REPOSITORY");

/// For whom the App is made. It belongs to that account, and can be installed there only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// An organisation, by its login.
    Organization(String),
    /// The account of whoever is signed in at GitHub.
    Personal,
}

impl Account {
    /// An organisation, if that can be the login of one: it becomes part of an address.
    pub fn organization(login: &str) -> Result<Self, String> {
        let fits = !login.is_empty()
            && login.len() <= MAX_LOGIN
            && login.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if fits {
            return Ok(Self::Organization(login.to_owned()));
        }
        let shown: String = login.chars().take(MAX_LOGIN).flat_map(char::escape_default).collect();
        Err(format!(
            "'{shown}' can't be an organisation at GitHub: 1 to {MAX_LOGIN} letters, digits and hyphens, as in its \
             address"
        ))
    }

    /// Where runners are registered unless the operator says otherwise: user accounts have none of their own.
    pub const fn registration(&self) -> Registration {
        match self {
            Self::Organization(_) => Registration::Organization,
            Self::Personal => Registration::Repository,
        }
    }

    /// A name for the App. Names are unique at a whole GitHub, so where there is nothing that is the operator's
    /// own it ends by chance.
    pub fn default_name(&self, chance: &str) -> String {
        let name = match self {
            Self::Organization(login) => format!("ostler-{login}"),
            Self::Personal => format!("ostler-{}", chance.chars().take(8).collect::<String>()),
        };
        name.chars().take(MAX_NAME).collect()
    }

    /// In a sentence.
    pub fn in_words(&self) -> String {
        match self {
            Self::Organization(login) => format!("the organisation {login}"),
            Self::Personal => "your personal account".to_owned(),
        }
    }
}

/// A permission that the App asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// As manifests and answers of the API call it.
    pub name: &'static str,
    /// `read` or `write`, which includes reading.
    pub level: &'static str,
    /// As GitHub's pages call it.
    pub title: &'static str,
    /// What it is for.
    pub why: &'static str,
}

impl Permission {
    /// The level as GitHub's pages call it.
    pub fn level_in_words(&self) -> &'static str {
        if self.level == "write" { "read and write" } else { "read-only" }
    }
}

/// Whether `granted`, levels by permission, has that one at that level or more.
pub fn allows(granted: &BTreeMap<String, String>, name: &str, level: &str) -> bool {
    let has = granted.get(name).map(String::as_str);
    matches!((has, level), (Some("write" | "admin"), _) | (Some("read"), "read"))
}

/// All that the App may ever need; the last two are for one kind of registration each.
pub const PERMISSIONS: [Permission; 5] = [
    Permission {
        name: "actions",
        level: "write",
        title: "Repository → Actions",
        why: "the event, looking jobs up, and running a job again whose machine EC2 took back",
    },
    Permission {
        name: "deployments",
        level: "read",
        title: "Repository → Deployments",
        why: "jobs behind an environment: whether they wait for an approval",
    },
    Permission {
        name: "metadata",
        level: "read",
        title: "Repository → Metadata",
        why: "GitHub gives it to every App",
    },
    Permission {
        name: "organization_self_hosted_runners",
        level: "write",
        title: "Organization → Self-hosted runners",
        why: "runners registered with the organization",
    },
    Permission {
        name: "administration",
        level: "write",
        title: "Repository → Administration",
        why: "runners registered with repositories",
    },
];

/// What an App asks for whose runners are registered there: no more than that.
pub fn permissions(registration: Registration) -> impl Iterator<Item = &'static Permission> {
    let other = match registration {
        Registration::Organization => "administration",
        Registration::Repository => "organization_self_hosted_runners",
    };
    PERMISSIONS.iter().filter(move |permission| permission.name != other)
}

/// An App to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For whom.
    pub account: Account,
    /// GitHub's address, as people use it, without a slash at the end: `https://github.com`.
    pub github: String,
    /// The App's name; whoever clicks may change it.
    pub name: String,
    /// Where events are to go.
    pub webhook_url: String,
    /// Where runners are registered.
    pub registration: Registration,
}

impl Plan {
    /// The manifest, JSON. `back` is where GitHub leads the browser with the code.
    pub fn manifest(&self, back: &str) -> String {
        let permissions: BTreeMap<_, _> =
            permissions(self.registration).map(|it| (it.name, it.level)).collect();
        json!({
            "name": self.name,
            "url": HOMEPAGE,
            "description": "Starts self-hosted runners for queued jobs.",
            "hook_attributes": {"url": self.webhook_url, "active": true},
            "redirect_url": back,
            "public": false,
            "default_events": EVENTS,
            "default_permissions": permissions,
        })
        .to_string()
    }

    /// Where the manifest is posted to.
    pub fn action(&self, state: &str) -> String {
        let Self { github, account, .. } = self;
        match account {
            Account::Organization(login) => {
                format!("{github}/organizations/{login}/settings/apps/new?state={state}")
            }
            Account::Personal => format!("{github}/settings/apps/new?state={state}"),
        }
    }

    /// Scheme, host and port of GitHub's address: what a form may be sent to.
    pub fn origin(&self) -> &str {
        let host = self.github.find("://").map_or(0, |at| at + 3);
        let end = self.github[host..].find('/').map_or(self.github.len(), |at| host + at);
        &self.github[..end]
    }

    /// GitHub's host, for people.
    pub fn host(&self) -> &str {
        self.origin().split_once("://").map_or(self.origin(), |(_, host)| host)
    }

    /// What GitHub granted less than was asked for: the operator may have changed it on the way.
    pub fn shortfall(&self, created: &Created) -> Vec<&'static Permission> {
        let granted = &created.permissions;
        permissions(self.registration).filter(|it| !allows(granted, it.name, it.level)).collect()
    }
}

/// An App as GitHub made it. The two secrets are in no debug form.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its numeric id.
    pub id: u64,
    /// Its name, as it was chosen in the end.
    pub name: String,
    /// The last part of its address.
    pub slug: String,
    /// Login of its owner.
    pub owner: String,
    /// Its page at GitHub.
    pub page: String,
    /// Its private key, PEM.
    pub key: Secret,
    /// What its webhooks are signed with.
    pub webhook_secret: Secret,
    /// Permissions and their levels.
    pub permissions: BTreeMap<String, String>,
    /// What it subscribes to.
    pub events: Vec<String>,
}

impl Created {
    /// Where it is installed.
    pub fn install_url(&self) -> String {
        format!("{}/installations/new", self.page)
    }
}

/// The page of an App at that GitHub. `said` is GitHub's own word for it, which is believed if it is there:
/// github.com has Apps under `/apps`, a server under `/github-apps`.
pub fn page(github: &str, slug: &str, said: Option<&str>) -> String {
    let plain = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte))
    };
    match said.map(|said| said.trim_end_matches('/')) {
        Some(said)
            if plain(said)
                && said.strip_prefix(github).is_some_and(|rest| rest.starts_with('/')) =>
        {
            said.to_owned()
        }
        _ => format!("{github}/apps/{slug}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;

    pub(crate) fn plan(account: Account) -> Plan {
        Plan {
            registration: account.registration(),
            account,
            github: "https://github.com".into(),
            name: "ostler-acme".into(),
            webhook_url: "https://hook.example/".into(),
        }
    }

    pub(crate) fn created() -> Created {
        Created {
            id: 77,
            name: "ostler-acme".into(),
            slug: "ostler-acme".into(),
            owner: "acme".into(),
            page: "https://github.com/apps/ostler-acme".into(),
            key: Secret::new(
                "-----BEGIN RSA PRIVATE KEY-----\nPEMPEM\n-----END RSA PRIVATE KEY-----\n",
            ),
            webhook_secret: Secret::new("hush-hush-hush-hush"),
            permissions: PERMISSIONS.map(|it| (it.name.into(), it.level.into())).into(),
            events: vec!["workflow_job".into()],
        }
    }

    fn acme() -> Account {
        Account::organization("acme").unwrap()
    }

    #[test]
    fn se_the_manifest_asks_for_what_is_used_and_no_more() {
        let manifest: Value =
            serde_json::from_str(&plan(acme()).manifest("http://127.0.0.1:1/back")).unwrap();
        assert_eq!(
            manifest["default_permissions"],
            json!({"actions": "write", "deployments": "read", "metadata": "read",
                "organization_self_hosted_runners": "write"})
        );
        assert_eq!(manifest["default_events"], json!(["workflow_job"]));
        // GitHub refuses a manifest whose webhook has no address, and calls it `url` (alp82/curia#933).
        assert_eq!(manifest["hook_attributes"]["url"], "https://hook.example/");
        assert_eq!(
            (&manifest["public"], &manifest["redirect_url"]),
            (&json!(false), &json!("http://127.0.0.1:1/back"))
        );
        assert!(manifest["url"].as_str().unwrap().starts_with("https://"));
        let personal: Value = serde_json::from_str(&plan(Account::Personal).manifest("x")).unwrap();
        assert_eq!(personal["default_permissions"]["administration"], "write");
        assert_eq!(personal["default_permissions"].get("organization_self_hosted_runners"), None);
    }

    #[test]
    fn the_documents_table_of_permissions_is_the_manifests() {
        let page = include_str!("../../../../docs/github-app.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter(|line| {
                line.starts_with("| Repository →") || line.starts_with("| Organization →")
            })
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let written: Vec<(&str, &str)> = rows.iter().map(|row| (row[0], row[1])).collect();
        let ours = PERMISSIONS.map(|it| (it.title, it.level_in_words()));
        assert_eq!(written, ours);
        for event in EVENTS {
            let words = event.replace('_', " ");
            assert!(
                page.to_lowercase().contains(&format!("**{words}**")),
                "{event} is not in the table"
            );
        }
    }

    #[test]
    fn gh_the_form_goes_to_the_accounts_page_at_any_github() {
        let mut plan = plan(acme());
        assert_eq!(
            plan.action("s1"),
            "https://github.com/organizations/acme/settings/apps/new?state=s1"
        );
        plan.account = Account::Personal;
        plan.github = "https://acme.ghe.com".into();
        assert_eq!(plan.action("s1"), "https://acme.ghe.com/settings/apps/new?state=s1");
        assert_eq!((plan.origin(), plan.host()), ("https://acme.ghe.com", "acme.ghe.com"));
        plan.github = "http://127.0.0.1:4000/x".into();
        assert_eq!((plan.origin(), plan.host()), ("http://127.0.0.1:4000", "127.0.0.1:4000"));
    }

    #[test]
    fn se_a_login_never_leads_elsewhere() {
        for bad in ["", "a/b", "a?b", "..", "a b", "é", "a%2f", &"x".repeat(40)] {
            assert!(Account::organization(bad).is_err(), "{bad}");
        }
        assert_eq!(acme(), Account::Organization("acme".into()));
    }

    #[test]
    fn a_name_fits_githubs_limit_and_is_no_one_elses() {
        let long = Account::organization(&"x".repeat(39)).unwrap();
        assert_eq!(long.default_name("").len(), MAX_NAME);
        assert_eq!(acme().default_name("c0ffee"), "ostler-acme");
        assert_eq!(Account::Personal.default_name("c0ffee00dead"), "ostler-c0ffee00");
    }

    #[test]
    fn a_permission_that_was_taken_away_is_told_of() {
        let (plan, mut app) = (plan(acme()), created());
        assert_eq!(plan.shortfall(&app), Vec::<&Permission>::new());
        app.permissions.insert("actions".into(), "read".into());
        app.permissions.remove("organization_self_hosted_runners");
        let short: Vec<_> = plan.shortfall(&app).iter().map(|it| it.name).collect();
        assert_eq!(short, ["actions", "organization_self_hosted_runners"]);
    }

    #[test]
    fn githubs_word_for_an_apps_page_is_believed_only_if_it_is_there() {
        let at = |said| page("https://git.acme.example", "ostler", said);
        assert_eq!(
            at(Some("https://git.acme.example/github-apps/ostler")),
            "https://git.acme.example/github-apps/ostler"
        );
        for other in [
            None,
            Some("https://git.acme.example.evil.example/x"),
            Some("javascript:alert(1)"),
            Some("https://git.acme.example/\"><script>"),
        ] {
            assert_eq!(at(other), "https://git.acme.example/apps/ostler", "{other:?}");
        }
    }

    #[test]
    fn i9_an_apps_debug_form_has_no_secret() {
        let text = format!("{:?}", created());
        assert!(!text.contains("PEMPEM") && !text.contains("hush"), "{text}");
    }
}
