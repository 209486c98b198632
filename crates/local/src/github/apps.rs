//! Apps made from manifests, as GitHub's web pages and one API call do it. The rules are those of
//! docs.github.com, "Registering a GitHub App from a manifest" (docs), and public reports beside them.
//!
//! Whoever posts here is taken for signed in as an owner of the account. A webhook on loopback is let through,
//! which the real one refuses ("isn't reachable over the public Internet"): here all is on loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use ostler_core::time::Timestamp;
use ostler_sim::github::{ApiError, OwnerKind};
use serde_json::{Value, json};

use super::auth::AppKey;
use super::{GitHub, api};
use crate::aws::form;
use crate::xml::escape;

/// How long a code is good for (docs: one hour).
const CODE_LIFE: Duration = Duration::from_secs(3600);
/// Longest name of an App, in characters (docs: "Registering a GitHub App").
const NAME_LIMIT: usize = 34;
/// Ids of Apps that are made; the world's own has a smaller one.
const FIRST_ID: u64 = 900_001;
/// Who is signed in: the owner of what is made for a personal account.
const SIGNED_IN: &str = "operator";
/// Keys that a manifest may have (docs: "GitHub App Manifest parameters").
const KEYS: [&str; 12] = [
    "name",
    "url",
    "hook_attributes",
    "redirect_url",
    "callback_urls",
    "setup_url",
    "description",
    "public",
    "default_events",
    "default_permissions",
    "request_oauth_on_install",
    "setup_on_update",
];
/// Events that can be subscribed to, of those that matter here, and the permission that each needs (docs:
/// "Webhook events and payloads").
const EVENTS: [(&str, &str); 3] = [
    ("workflow_job", "actions"),
    ("workflow_run", "actions"),
    ("deployment_status", "deployments"),
];

/// All Apps that were made, and what is on its way to be one.
#[derive(Default)]
pub(super) struct Apps {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Manifests whose page is open in a browser.
    pages: BTreeMap<String, Manifest>,
    /// Codes that were not traded yet: App and time.
    codes: BTreeMap<String, (u64, Timestamp)>,
    made: BTreeMap<u64, MadeApp>,
}

/// A manifest that was posted.
#[derive(Clone)]
struct Manifest {
    owner: String,
    kind: OwnerKind,
    state: Option<String>,
    text: Value,
}

/// An App that was made.
struct MadeApp {
    name: String,
    slug: String,
    owner: String,
    kind: OwnerKind,
    key: AppKey,
    webhook_secret: String,
    manifest: Value,
    installed: BTreeSet<String>,
}

impl Apps {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the Apps signed that, if one did.
    pub(super) fn signer(&self, token: &str, now: Timestamp) -> Option<Result<u64, ApiError>> {
        let inner = self.lock();
        let mut refused = None;
        for (id, app) in &inner.made {
            match app.key.verify(token, *id, now) {
                Ok(()) => return Some(Ok(*id)),
                Err(error) if error.message.contains("could not be decoded") => {}
                Err(error) => refused = Some(Err(error)),
            }
        }
        refused
    }

    /// Whether an App is installed with an account. The world's own is not among these.
    pub(super) fn installed(&self, id: u64, login: &str) -> bool {
        let inner = self.lock();
        inner.made.get(&id).is_some_and(|app| app.installed.contains(&login.to_lowercase()))
    }

    /// `GET /app` for one that was made.
    pub(super) fn describe(&self, id: u64, github: &str) -> Option<Value> {
        let inner = self.lock();
        inner.made.get(&id).map(|app| app.json(id, github))
    }

    /// Ids and names of all that were made.
    pub(super) fn list(&self) -> Vec<(u64, String)> {
        self.lock().made.iter().map(|(id, app)| (*id, app.name.clone())).collect()
    }
}

impl MadeApp {
    fn json(&self, id: u64, github: &str) -> Value {
        json!({
            "id": id,
            "slug": self.slug,
            "node_id": format!("A_kwDO{id:x}"),
            "client_id": format!("Iv23li{id:014}"),
            "owner": {"login": self.owner, "type": self.kind.name()},
            "name": self.name,
            "description": self.manifest["description"],
            "external_url": self.manifest["url"],
            // As a server has it; github.com has /apps.
            "html_url": format!("{github}/github-apps/{}", self.slug),
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "permissions": self.manifest["default_permissions"],
            "events": self.manifest["default_events"],
            "installations_count": self.installed.len(),
        })
    }
}

pub(super) fn routes() -> Router<Arc<GitHub>> {
    Router::new()
        .route("/settings/apps/new", post(manifest_for_me))
        .route("/organizations/{org}/settings/apps/new", post(manifest_for_organization))
        .route("/settings/apps", post(create))
        .route("/apps/{slug}", get(app_page))
        .route("/apps/{slug}/installations/new", get(install_page).post(install))
        .route("/github-apps/{slug}", get(app_page))
        .route("/github-apps/{slug}/installations/new", get(install_page).post(install))
        .route("/api/v3/app-manifests/{code}/conversions", post(convert))
}

/// What is wrong with a manifest, in GitHub's words as far as they are known.
fn fault_of(manifest: &Value) -> Option<String> {
    let Some(fields) = manifest.as_object() else {
        return Some("Invalid JSON".into());
    };
    if let Some(unknown) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Some(format!("\"{unknown}\" is not a permitted key."));
    }
    let filled = |value: &Value| value.as_str().is_some_and(|text| text.starts_with("http"));
    // A webhook without an address is told of as "url" too, without its parent (alp82/curia#933).
    let hook = &manifest["hook_attributes"];
    if !filled(&manifest["url"]) || (!hook.is_null() && !filled(&hook["url"])) {
        return Some("\"url\" wasn't supplied.".into());
    }
    if !filled(&manifest["redirect_url"]) {
        return Some("\"redirect_url\" wasn't supplied.".into());
    }
    let permissions = &manifest["default_permissions"];
    for event in manifest["default_events"].as_array().into_iter().flatten() {
        let event = event.as_str().unwrap_or_default();
        // `installation` and the like are sent unasked, and refused in the list.
        let Some((_, needs)) = EVENTS.iter().find(|(known, _)| *known == event) else {
            return Some(format!("Default events unsupported: {event}"));
        };
        if permissions[needs].is_null() {
            return Some(format!("Default events are not supported by permissions: {event}"));
        }
    }
    None
}

async fn manifest_for_me(
    State(github): State<Arc<GitHub>>,
    Query(query): Query<BTreeMap<String, String>>,
    body: Bytes,
) -> Response {
    open(&github, SIGNED_IN.to_owned(), OwnerKind::User, query, &body)
}

async fn manifest_for_organization(
    State(github): State<Arc<GitHub>>,
    Path(org): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    body: Bytes,
) -> Response {
    let known =
        github.with_model(|model, _| model.account(&org).map(|it| (it.login.clone(), it.kind)));
    match known {
        Ok((login, OwnerKind::Organization)) => {
            open(&github, login, OwnerKind::Organization, query, &body)
        }
        _ => page(
            StatusCode::NOT_FOUND,
            "Page not found",
            "<p>This is not the web page you are looking for.</p>",
        ),
    }
}

fn open(
    github: &GitHub,
    owner: String,
    kind: OwnerKind,
    mut query: BTreeMap<String, String>,
    body: &[u8],
) -> Response {
    let text = form(body).remove("manifest").unwrap_or_default();
    let text: Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(fault) = fault_of(&text) {
        let fault = escape(&fault);
        return page(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid GitHub App configuration",
            &format!(
                "<p>The configuration does not appear to be a valid GitHub App manifest.</p><p>Error: {fault}</p>"
            ),
        );
    }
    let manifest = Manifest { owner, kind, state: query.remove("state"), text };
    let id = format!("{:032x}", rand::random::<u128>());
    let name = manifest.text["name"].as_str().unwrap_or_default().to_owned();
    let shown = form_page(&id, &manifest, &name, None);
    github.apps.lock().pages.insert(id, manifest);
    shown
}

fn form_page(id: &str, manifest: &Manifest, name: &str, fault: Option<&str>) -> Response {
    let (name, owner) = (escape(name), escape(&manifest.owner));
    let fault = fault
        .map(|fault| format!("<p role=\"alert\" class=\"error\">{}</p>", escape(fault)))
        .unwrap_or_default();
    let body = format!(
        "{fault}<form method=\"post\" action=\"/settings/apps\"><input type=\"hidden\" name=\"page\" value=\"{id}\">\
         <p><label>GitHub App name <input name=\"name\" value=\"{name}\"></label></p>\
         <button type=\"submit\">Create GitHub App for {owner}</button></form>"
    );
    let status = if fault.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    page(status, &format!("Create GitHub App for {owner}"), &body)
}

/// The click.
async fn create(State(github): State<Arc<GitHub>>, body: Bytes) -> Response {
    let fields = form(&body);
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let (id, name) = (field("page"), field("name").trim());
    let Some(manifest) = github.apps.lock().pages.get(id).cloned() else {
        return page(StatusCode::NOT_FOUND, "Page not found", "");
    };
    let slug = slug_of(name);
    // Names are unique among all Apps and accounts (all-contributors/app#68).
    let taken = github.with_model(|model, _| model.account(&slug).is_ok())
        || slug == api::OWN_SLUG
        || github.apps.lock().made.values().any(|app| app.slug == slug);
    let fault = match name {
        "" => Some("Name can't be blank"),
        _ if name.chars().count() > NAME_LIMIT => {
            Some("Name is too long (maximum is 34 characters)")
        }
        _ if taken => Some("Name is already taken"),
        _ => None,
    };
    if fault.is_some() {
        return form_page(id, &manifest, name, fault);
    }
    let Ok(key) = AppKey::generate() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let code = hex40();
    let now = github.clock.now();
    let back = manifest.text["redirect_url"].as_str().unwrap_or_default().to_owned();
    let mut location = format!("{back}{}code={code}", if back.contains('?') { '&' } else { '?' });
    if let Some(state) = &manifest.state {
        location = format!("{location}&state={state}");
    }
    {
        let mut apps = github.apps.lock();
        let app = apps.made.keys().last().map_or(FIRST_ID, |last| last + 1);
        apps.pages.remove(id);
        apps.codes.insert(code, (app, now));
        let made = MadeApp {
            name: name.to_owned(),
            slug,
            owner: manifest.owner,
            kind: manifest.kind,
            key,
            webhook_secret: hex40(),
            manifest: manifest.text,
            installed: BTreeSet::new(),
        };
        apps.made.insert(app, made);
    }
    (StatusCode::FOUND, [(header::LOCATION, location)]).into_response()
}

/// A code is good for an hour and for one trade; afterwards there is none such. No credentials are asked for.
async fn convert(State(github): State<Arc<GitHub>>, Path(code): Path<String>) -> Response {
    let now = github.clock.now();
    let mut apps = github.apps.lock();
    let id = match apps.codes.remove(&code) {
        Some((id, at)) if now.since(at) < CODE_LIFE => id,
        _ => return api::refuse(&ApiError::not_found()),
    };
    let Some(app) = apps.made.get(&id) else { return api::refuse(&ApiError::not_found()) };
    let mut body = app.json(id, &github.url);
    body["client_secret"] = json!(hex40());
    body["webhook_secret"] = json!(app.webhook_secret);
    body["pem"] = json!(app.key.pem());
    (StatusCode::CREATED, axum::Json(body)).into_response()
}

async fn app_page(State(github): State<Arc<GitHub>>, Path(slug): Path<String>) -> Response {
    match github.apps.lock().made.values().find(|app| app.slug == slug) {
        Some(app) => page(
            StatusCode::OK,
            &escape(&app.name),
            "<p><a href=\"installations/new\">Install</a></p>",
        ),
        None => page(StatusCode::NOT_FOUND, "Page not found", ""),
    }
}

async fn install_page(State(github): State<Arc<GitHub>>, Path(slug): Path<String>) -> Response {
    let apps = github.apps.lock();
    let Some(app) = apps.made.values().find(|app| app.slug == slug) else {
        return page(StatusCode::NOT_FOUND, "Page not found", "");
    };
    let (name, owner) = (escape(&app.name), escape(&app.owner));
    let body = format!(
        "<form method=\"post\"><p>On {owner}: all repositories</p><button type=\"submit\">Install</button></form>"
    );
    page(StatusCode::OK, &format!("Install {name}"), &body)
}

/// Installs an App that is not public: with its owner alone (docs). From then on the account's events are
/// posted to its webhook, signed with its secret: a world has one webhook at a time.
async fn install(State(github): State<Arc<GitHub>>, Path(slug): Path<String>) -> Response {
    let owner = {
        let mut apps = github.apps.lock();
        let Some((id, app)) = apps.made.iter_mut().find(|(_, app)| app.slug == slug) else {
            return page(StatusCode::NOT_FOUND, "Page not found", "");
        };
        app.installed.insert(app.owner.to_lowercase());
        let hook = app.manifest["hook_attributes"]["url"].as_str();
        github.hooks.belong_to(*id, &app.webhook_secret, hook);
        (app.owner.clone(), app.kind)
    };
    github.with_model(|model, _| {
        if model.account(&owner.0).is_err() {
            model.add_owner(&owner.0, owner.1);
        }
        if model.owner_installation(&owner.0).is_err() {
            let _ = model.reinstall(&owner.0);
        }
    });
    page(
        StatusCode::OK,
        "Installed",
        &format!("<p>Okay, the App was installed on {}.</p>", escape(&owner.0)),
    )
}

/// What stands in addresses for a name: GitHub puts hyphens between its words (coollabsio/coolify#4).
fn slug_of(name: &str) -> String {
    let spaced: String = name
        .to_lowercase()
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() { char } else { ' ' })
        .collect();
    spaced.split_whitespace().collect::<Vec<_>>().join("-")
}

fn hex40() -> String {
    format!("{:032x}{:08x}", rand::random::<u128>(), rand::random::<u32>())
}

fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\
         <body><h1>{title}</h1>{body}</body></html>"
    );
    (status, Html(html)).into_response()
}
