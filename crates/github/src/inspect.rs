//! What GitHub tells an operator of the App: what it may, what it is told, where, and how much it may still ask.
//! Nothing here changes anything.

use std::collections::BTreeMap;

use http::Method;
use ostler_core::ports::{Clock, Configuration};
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::Whose;
use crate::reply::Permission;
use crate::{ConfiguredGitHub, GitHub, PAGE, Quota};

/// The App (`GET /app`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AppSeen {
    /// Its name in addresses.
    #[serde(default)]
    pub slug: String,
    /// What it may: `actions` to `read`.
    #[serde(default)]
    pub permissions: BTreeMap<String, String>,
    /// What it is told of.
    #[serde(default)]
    pub events: Vec<String>,
}

/// Its webhook (`GET /app/hook/config`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct HookSeen {
    /// Where deliveries go.
    pub url: Option<String>,
    /// `json` or `form`.
    pub content_type: Option<String>,
    /// `1` where certificates are not verified: a text or a number.
    pub insecure_ssl: Option<Value>,
    /// Stars, if there is one.
    pub secret: Option<String>,
}

impl HookSeen {
    /// Whether certificates are not verified.
    pub fn is_insecure(&self) -> bool {
        self.insecure_ssl.as_ref().is_some_and(|it| it == "1" || *it == 1)
    }
}

/// Where it is installed (`GET /app/installations`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstallationSeen {
    /// User or organisation.
    pub login: String,
    /// What its owner has accepted.
    pub permissions: BTreeMap<String, String>,
    /// Whether its owner has suspended it.
    pub suspended: bool,
}

#[derive(Deserialize)]
struct RawInstallation {
    account: Option<RawAccount>,
    #[serde(default)]
    permissions: BTreeMap<String, String>,
    suspended_at: Option<Value>,
}

#[derive(Deserialize)]
struct RawAccount {
    login: Option<String>,
}

impl<C: Clock> GitHub<C> {
    async fn of_app<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<T> {
        let reply = self.pool.as_first_app(Method::GET, path).await?;
        if !reply.is_success() {
            return Err(reply.error(what, Permission::Metadata, self.now()));
        }
        reply.read(what)
    }

    /// The quota with an owner, for most calls and for registrations; asking costs nothing of it (docs.github.com, "REST API
    /// endpoints for rate limits"). `None` on a server without limits.
    async fn quota_with(&self, owner: &str) -> Result<Option<Quota>> {
        let what = format!("read the rate limit with {owner}");
        let reply = self.pool.get(Whose::owner(owner), "/rate_limit").await?;
        if reply.status == 404 {
            return Ok(None);
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.now()));
        }
        let answer: Value = reply.read(&what)?;
        let core = &answer["resources"]["core"];
        let number = |key: &str| {
            core[key].as_u64().ok_or_else(|| Error::Transient(format!("{what}: no {key}")))
        };
        let reset = i64::try_from(number("reset")?).unwrap_or(i64::MAX);
        Ok(Some(Quota {
            limit: number("limit")?,
            remaining: number("remaining")?,
            reset: Timestamp::from_seconds(reset),
        }))
    }
}

impl<F: Configuration, C: Clock + Clone> ConfiguredGitHub<F, C> {
    /// The first App, whose webhook it is.
    pub async fn app(&self) -> Result<AppSeen> {
        self.client().await?.of_app("look at the App", "/app").await
    }

    /// Its webhook.
    pub async fn hook(&self) -> Result<HookSeen> {
        self.client().await?.of_app("look at the App's webhook", "/app/hook/config").await
    }

    /// Where it is installed: the first hundred.
    pub async fn installations(&self) -> Result<Vec<InstallationSeen>> {
        let path = format!("/app/installations?per_page={PAGE}");
        let client = self.client().await?;
        let all: Vec<RawInstallation> =
            client.of_app("list the App's installations", &path).await?;
        let seen = |raw: RawInstallation| {
            Some(InstallationSeen {
                login: raw.account?.login?,
                permissions: raw.permissions,
                suspended: raw.suspended_at.is_some_and(|at| !at.is_null()),
            })
        };
        Ok(all.into_iter().filter_map(seen).collect())
    }

    /// The quota with an owner; `None` on a server without limits.
    pub async fn quota_with(&self, owner: &str) -> Result<Option<Quota>> {
        self.client().await?.quota_with(owner).await
    }
}
