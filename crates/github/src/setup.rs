//! Making an App from a manifest's code (docs.github.com, "Create a GitHub App from a manifest"), and looking
//! where it is installed.
//!
//! What must hold: neither the code nor what comes for it is in an error: until it is traded, a code is as good
//! as the App's key.

use std::sync::Arc;

use http::Method;
use ostler_core::apps::AppCredential;
use ostler_core::ports::Clock;
use ostler_core::secret::Secret;
use ostler_core::setup::Registry;
use ostler_core::setup::app::{self, Created};
use ostler_core::{Error, Result};

use crate::address;
use crate::app::App;
use crate::reply::Permission;
use crate::transport::{Carried, Lost, Transport};
use crate::wire::{Conversion, Installation};

/// Shortest webhook secret that is taken, in characters: GitHub's have 40.
const MIN_SECRET: usize = 16;

/// What no repetition of a conversion mends.
const BEGIN_ANEW: &str =
    "if the App is listed in your settings at GitHub, delete it there; then begin anew";

/// The half of a GitHub that makes Apps.
pub struct AppRegistry<C> {
    web: String,
    transport: Arc<Transport>,
    clock: Arc<C>,
}

impl<C: Clock> AppRegistry<C> {
    /// At the GitHub with that address, as people use it. Nothing is sent.
    pub fn new(github_url: &str, clock: C) -> Result<Self> {
        let transport = Arc::new(Transport::new(address::api(github_url)?));
        Ok(Self { web: address::web(github_url)?, transport, clock: Arc::new(clock) })
    }

    /// GitHub's address as people use it, without a slash at the end.
    pub fn web(&self) -> &str {
        &self.web
    }
}

impl<C: Clock> Registry for AppRegistry<C> {
    async fn convert(&self, code: &str) -> Result<Created> {
        let what = "fetch the keys of the new App";
        let path = format!("/app-manifests/{code}/conversions");
        let sent = self.transport.send_as(None, Method::POST, &path, Carried::Nothing).await;
        let reply = sent
            .map_err(|Lost(why)| Error::Transient(format!("{what}: {}", why.replace(code, "…"))))?;
        if matches!(reply.status, 404 | 422) {
            return Err(Error::Permanent(format!(
                "{what}: {}; GitHub's code is good for one hour and one use: {BEGIN_ANEW}",
                reply.status
            )));
        }
        if !reply.is_success() {
            return Err(reply.error(what, Permission::Metadata, self.clock.now()));
        }
        // Not by `read`, whose error may be repeated: the code is spent. Nor are the words of the fault told,
        // which might be those of a key.
        let answer: Option<Conversion> = serde_json::from_slice(&reply.body).ok();
        let created = answer.and_then(|answer| self.created(answer));
        created.ok_or_else(|| {
            Error::Permanent(format!(
                "{what}: the answer lacks id, key or webhook secret; {BEGIN_ANEW}"
            ))
        })
    }

    async fn installed(&self, app: &Created) -> Result<Vec<String>> {
        let what = format!("look where the App {} is installed", app.id);
        let credential = AppCredential { id: app.id, key: app.key.clone() };
        let of = (Arc::clone(&self.transport), Arc::default(), Arc::clone(&self.clock));
        let reply = App::new(&credential, of)?
            .as_app(Method::GET, "/app/installations?per_page=100")
            .await?;
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.clock.now()));
        }
        let found: Vec<Installation> = reply.read(&what)?;
        Ok(found.into_iter().filter_map(|it| it.account?.login).collect())
    }
}

impl<C> AppRegistry<C> {
    fn created(&self, answer: Conversion) -> Option<Created> {
        let slug = address::segment(answer.slug.as_deref()?).ok()?.to_owned();
        let key = answer.pem.filter(|pem| pem.contains("-----BEGIN"))?;
        let webhook_secret = answer.webhook_secret.filter(|it| it.chars().count() >= MIN_SECRET)?;
        Some(Created {
            id: answer.id?,
            name: answer.name.unwrap_or_else(|| slug.clone()),
            owner: answer.owner.and_then(|owner| owner.login).unwrap_or_default(),
            page: app::page(&self.web, &slug, answer.html_url.as_deref()),
            slug,
            key: Secret::new(key),
            webhook_secret: Secret::new(webhook_secret),
            permissions: answer.permissions,
            events: answer.events,
        })
    }
}
