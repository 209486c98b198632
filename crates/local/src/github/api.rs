//! The REST API. One function answers all calls; what is common to them stands around it: who calls,
//! limits and faults, what the caller may see, headers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{MatchedPath, Query, RawPathParams, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use ostler_core::time::Timestamp;
use ostler_sim::github as model;
use ostler_sim::github::endpoint::*;
use ostler_sim::github::{
    Admission, ApiError, Caller, Jit, Owner, Page, Paging, RunnerView, Scope,
};
use serde_json::{Value, json};

use super::{GitHub, HangUp};

/// Where the API begins, as on GitHub Enterprise Server.
const BASE: &str = "/api/v3";
/// Requests of all callers that may be under way (docs: secondary limits).
const CONCURRENT_LIMIT: usize = 100;
/// The App's webhook as it is set up.
const HOOK_CONFIG: &str = "/app/hook/config";
/// What stands in addresses for the world's own App.
pub(super) const OWN_SLUG: &str = "ostler-local";
/// How long a registration token is good for (docs).
const REGISTRATION_TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// What the App may do, as its installations show it.
const PERMISSIONS: [(&str, &str); 5] = [
    ("actions", "write"),
    ("administration", "write"),
    ("deployments", "read"),
    ("metadata", "read"),
    ("organization_self_hosted_runners", "write"),
];

pub(super) fn routes() -> Router<Arc<GitHub>> {
    let templates = [
        ACCESS_TOKENS,
        APP,
        APP_INSTALLATIONS,
        APP_INSTALLATION,
        REPO_INSTALLATION,
        ORG_INSTALLATION,
        USER_INSTALLATION,
        USER,
        REPO,
        ORG_RUNNERS,
        ORG_RUNNER,
        ORG_JIT,
        ORG_REGISTRATION_TOKEN,
        ORG_GROUPS,
        ORG_GROUP_RUNNERS,
        REPO_RUNNERS,
        REPO_RUNNER,
        REPO_JIT,
        JOB,
        JOB_RERUN,
        RUNS,
        RUN,
        RUN_JOBS,
        ATTEMPT_JOBS,
        RUN_CANCEL,
        RUN_RERUN_FAILED,
        DEPLOYMENT_STATUSES,
        DELIVERIES,
        DELIVERY,
        DELIVERY_ATTEMPTS,
        HOOK_CONFIG,
        OCTOCAT,
        RATE_LIMIT,
    ];
    templates.into_iter().fold(Router::new(), |router, template| {
        router.route(&format!("{BASE}{template}"), any(call))
    })
}

/// For everything that is not there.
pub(super) async fn unknown() -> Response {
    refuse(&ApiError::not_found())
}

/// A call, taken apart.
struct Call {
    now: Timestamp,
    caller: Caller,
    /// The App that called, or the world's own.
    app_id: u64,
    /// The installation token that it came with.
    token: String,
    params: BTreeMap<String, String>,
    query: BTreeMap<String, String>,
    body: Value,
}

impl Call {
    fn param(&self, name: &str) -> &str {
        self.params.get(name).map_or("", String::as_str)
    }

    /// A number in the path: anything else is not found.
    fn number(&self, name: &str) -> Result<u64, ApiError> {
        self.param(name).parse().map_err(|_| ApiError::not_found())
    }

    /// `owner/name` of the repository in the path.
    fn repository(&self) -> String {
        format!("{}/{}", self.param("owner"), self.param("repo"))
    }

    fn scope(&self) -> Scope {
        match self.params.get("org") {
            Some(org) => Scope::Organization(org.clone()),
            None => Scope::Repository(self.repository()),
        }
    }

    fn paging(&self) -> Paging {
        let number = |name: &str| self.query.get(name).and_then(|text| text.parse().ok());
        Paging::new(number("page"), number("per_page"))
    }
}

/// An answer before it is HTTP.
struct Answer {
    status: u16,
    /// None for 204.
    body: Option<Value>,
    /// `rel` and query of each link.
    links: Vec<(&'static str, String)>,
}

impl Answer {
    fn ok(body: Value) -> Self {
        Self::new(200, body)
    }

    fn new(status: u16, body: Value) -> Self {
        Self { status, body: Some(body), links: Vec::new() }
    }

    /// A page under `name` beside `total_count`, or alone where the API has a bare list.
    fn page<T>(
        name: Option<&str>,
        page: Page<T>,
        paging: Paging,
        show: impl Fn(T) -> Value,
    ) -> Self {
        let total = page.total;
        let items: Vec<Value> = page.items.into_iter().map(show).collect();
        let body = match name {
            Some(name) => json!({"total_count": total, name: items}),
            None => json!(items),
        };
        let last = total.div_ceil(paging.per_page).max(1);
        let number = paging.page;
        let link = |rel, page: usize| (rel, format!("per_page={}&page={page}", paging.per_page));
        let mut links = Vec::new();
        if number > 1 {
            links.push(link("prev", number - 1));
            links.push(link("first", 1));
        }
        if number < last {
            links.push(link("next", number + 1));
            links.push(link("last", last));
        }
        Self { links, ..Self::ok(body) }
    }
}

async fn call(
    State(github): State<Arc<GitHub>>,
    path: MatchedPath,
    params: RawPathParams,
    Query(query): Query<BTreeMap<String, String>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let template = path.as_str().trim_start_matches(BASE).to_owned();
    let method = method.as_str();
    let under_way = UnderWay::enter(&github);
    let admission = match github.admit(&under_way, &headers, method, &template) {
        Ok(admission) => admission,
        Err(error) => return refuse(&error),
    };
    let (caller, app_id, token, admission) = admission;
    // Real time: what a slow answer runs into are the callers' real time-outs.
    tokio::time::sleep(admission.delay).await;
    let mut call = Call {
        now: github.clock.now(),
        caller,
        app_id,
        token,
        params: params.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        query,
        body: Value::Null,
    };
    let answer = match parse_body(&body) {
        Ok(body) => {
            call.body = body;
            github.answer(method, &template, &call)
        }
        Err(error) => Err(error),
    };
    if let Some(status) = admission.lost {
        return lost(status);
    }
    let url = format!("{}{}", github.url, expand(path.as_str(), &call.params));
    let mut response = match answer {
        Ok(answer) => show(answer, &url),
        Err(error) => refuse(&error),
    };
    for (name, value) in &admission.headers {
        set_header(&mut response, name, value);
    }
    set_header(&mut response, "date", &http_date(call.now));
    response
}

impl GitHub {
    /// Who calls and whether it is let in. Counted and charged even if the credentials are bad.
    fn admit(
        &self,
        under_way: &UnderWay,
        headers: &HeaderMap,
        method: &str,
        template: &str,
    ) -> Result<(Caller, u64, String, Admission), ApiError> {
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        let token =
            header.and_then(|text| text.split_once(' ')).map_or("", |(_, token)| token.trim());
        let now = self.clock.now();
        let mut app_id = self.app_id;
        let mut verify = || match self.apps.signer(token, now) {
            Some(signed) => signed.map(|id| app_id = id),
            None => self.key.verify(token, self.app_id, now),
        };
        self.with_model(|model, _| {
            let caller = if header.is_none() {
                Err(ApiError::new(401, "Requires authentication"))
            } else if self.personal_token.as_deref() == Some(token) {
                Ok(Caller::Personal)
            } else if token.matches('.').count() == 2 {
                verify().map(|()| Caller::App)
            } else {
                model.authenticate(now, token)
            };
            let known = caller.as_ref().unwrap_or(&Caller::Personal);
            let admission = model.admit(now, known, method, template)?;
            let caller = caller?;
            if under_way.count > CONCURRENT_LIMIT && model.options().rate_limits.is_some() {
                return Err(ApiError::new(
                    403,
                    "You have exceeded a secondary rate limit. Please wait a few minutes before you \
                     try again.",
                ));
            }
            check_kind(&caller, template)?;
            Ok((caller, token.to_owned(), admission))
        })
        .map(|(caller, token, admission)| (caller, app_id, token, admission))
    }

    fn answer(&self, method: &str, template: &str, call: &Call) -> Result<Answer, ApiError> {
        match template {
            DELIVERIES | DELIVERY | DELIVERY_ATTEMPTS => {
                self.deliveries_answer(method, template, call)
            }
            HOOK_CONFIG if method == "GET" => Ok(Answer::ok(json!({
                "content_type": "json",
                "insecure_ssl": "0",
                "secret": "********",
                "url": self.hooks.target(),
            }))),
            // What an App that was made from a manifest is told otherwise than the world's own.
            APP if call.app_id != self.app_id => {
                let described = self.apps.describe(call.app_id, &self.url);
                described.map(Answer::ok).ok_or_else(ApiError::not_found)
            }
            APP_INSTALLATIONS if call.app_id != self.app_id => self.with_model(|model, _| {
                let installed: Vec<Value> = model
                    .installed_owners()
                    .filter(|owner| self.apps.installed(call.app_id, &owner.login))
                    .map(|owner| installation_json(model, call.app_id, owner))
                    .collect();
                let paging = call.paging();
                Ok(Answer::page(None, paging.cut(installed.into_iter()), paging, |json| json))
            }),
            _ => self.with_model(|model, _| {
                sees(model, template, call)?;
                model_answer(model, call.app_id, method, template, call)
            }),
        }
    }

    fn deliveries_answer(
        &self,
        method: &str,
        template: &str,
        call: &Call,
    ) -> Result<Answer, ApiError> {
        let shown = self.hooks.shown();
        match (method, template) {
            ("GET", DELIVERIES) => {
                let failed = call.query.get("status").map(|status| status == "failure");
                let size = call.paging().per_page;
                let cursor =
                    call.query.get("cursor").map(|cursor| cursor.trim_start_matches("v1_"));
                let cursor = match cursor.map(str::parse::<u64>) {
                    Some(Err(_)) => return Err(ApiError::new(400, "Invalid cursor")),
                    Some(Ok(id)) => id,
                    None => u64::MAX,
                };
                let mut rest = shown
                    .iter()
                    .filter(|delivery| failed.is_none_or(|failed| failed != delivery.ok()))
                    .skip_while(|delivery| delivery.id > cursor);
                let items: Vec<Value> =
                    rest.by_ref().take(size).map(super::Delivery::json).collect();
                let links = rest
                    .next()
                    .map(|next| ("next", format!("per_page={size}&cursor=v1_{}", next.id)))
                    .into_iter()
                    .collect();
                Ok(Answer { links, ..Answer::ok(json!(items)) })
            }
            ("GET", DELIVERY) => {
                let id = call.number("delivery_id")?;
                let found = shown.iter().find(|delivery| delivery.id == id);
                found.map(|found| Answer::ok(found.full_json())).ok_or_else(ApiError::not_found)
            }
            ("POST", DELIVERY_ATTEMPTS) if self.hooks.redeliver(call.number("delivery_id")?) => {
                Ok(Answer::new(202, json!({})))
            }
            _ => Err(ApiError::not_found()),
        }
    }
}

/// Which credentials an endpoint takes (docs): the App's own things and the look-up of installations want
/// its JWT, all else the token of an installation or a person.
fn check_kind(caller: &Caller, template: &str) -> Result<(), ApiError> {
    let wants_app = template.starts_with(APP) || template.ends_with("/installation");
    match (wants_app, caller) {
        (true, Caller::App) | (false, Caller::Installation(_) | Caller::Personal) => Ok(()),
        (false, Caller::App) if template == RATE_LIMIT => Ok(()),
        (true, _) => Err(ApiError::new(401, "A JSON web token could not be decoded")),
        (false, Caller::App) => Err(ApiError::new(403, "Resource not accessible by integration")),
    }
}

/// What the caller may not see is not found.
fn sees(model: &model::GitHub, template: &str, call: &Call) -> Result<(), ApiError> {
    if call.caller == Caller::App {
        return Ok(());
    }
    if let Some(org) = call.params.get("org") {
        model.sees_owner(&call.caller, org)?;
    }
    if template.starts_with(REPO) {
        let repository = call.repository();
        model.sees_repository(&call.caller, &repository)?;
        if call.caller != Caller::Personal {
            model.token_sees(&call.token, &repository)?;
        }
    }
    Ok(())
}

fn model_answer(
    model: &mut model::GitHub,
    app_id: u64,
    method: &str,
    template: &str,
    call: &Call,
) -> Result<Answer, ApiError> {
    let now = call.now;
    let paging = call.paging();
    match (method, template) {
        ("POST", ACCESS_TOKENS) => mint(model, call),
        ("GET", APP) => {
            let count = model.installed_owners().count();
            Ok(Answer::ok(json!({
                "id": app_id,
                "slug": OWN_SLUG,
                "client_id": format!("Iv23li{app_id:014}"),
                "node_id": format!("A_kwDO{app_id:x}"),
                "name": "Ostler (local)",
                "owner": model.account_json("ostler", 1, model::OwnerKind::Organization),
                "permissions": permissions(),
                "events": ["workflow_job"],
                "installations_count": count,
                "created_at": "2026-01-01T00:00:00Z",
            })))
        }
        ("GET", APP_INSTALLATIONS) => {
            let owners: Vec<Value> = model
                .installed_owners()
                .map(|owner| installation_json(model, app_id, owner))
                .collect();
            Ok(Answer::page(None, paging.cut(owners.into_iter()), paging, |json| json))
        }
        ("GET", APP_INSTALLATION) => {
            let owner = model.installed_owner(call.number("installation_id")?)?;
            Ok(Answer::ok(installation_json(model, app_id, owner)))
        }
        ("GET", REPO_INSTALLATION) => {
            let id = model.installation(&call.repository())?;
            Ok(Answer::ok(installation_json(model, app_id, model.installed_owner(id)?)))
        }
        ("GET", ORG_INSTALLATION | USER_INSTALLATION) => {
            let (login, kind) = match call.params.get("org") {
                Some(org) => (org.as_str(), model::OwnerKind::Organization),
                None => (call.param("username"), model::OwnerKind::User),
            };
            let id = model.owner_installation(login)?;
            let owner = model.installed_owner(id)?;
            if owner.kind != kind {
                return Err(ApiError::not_found());
            }
            Ok(Answer::ok(installation_json(model, app_id, owner)))
        }
        ("GET", USER) => {
            let owner = model.account(call.param("username"))?;
            Ok(Answer::ok(model.account_json(&owner.login, owner.id, owner.kind)))
        }
        ("GET", REPO) => {
            Ok(Answer::ok(model.repository_json(model.repository(&call.repository())?)))
        }
        ("GET", ORG_RUNNERS | REPO_RUNNERS) => {
            let name = call.query.get("name").map(String::as_str);
            let page = model.list_runners(now, &call.scope(), paging, name)?;
            Ok(Answer::page(Some("runners"), page, paging, |runner| runner.json()))
        }
        ("GET", ORG_GROUP_RUNNERS) => {
            let group = call.number("runner_group_id")?;
            let page = model.list_group_runners(now, call.param("org"), group, paging)?;
            Ok(Answer::page(Some("runners"), page, paging, |runner| runner.json()))
        }
        ("GET", ORG_RUNNER | REPO_RUNNER) => {
            let runner = model.get_runner(now, &call.scope(), call.number("runner_id")?)?;
            Ok(Answer::ok(RunnerView::json(&runner)))
        }
        ("DELETE", ORG_RUNNER | REPO_RUNNER) => {
            model.delete_runner(now, &call.scope(), call.number("runner_id")?)?;
            Ok(Answer { status: 204, body: None, links: Vec::new() })
        }
        ("POST", ORG_JIT | REPO_JIT) => register(model, call),
        ("POST", ORG_REGISTRATION_TOKEN) => Ok(Answer::new(
            201,
            json!({
                "token": format!("A{:028}", now.millis()),
                "expires_at": (now + REGISTRATION_TOKEN_LIFE).to_string(),
            }),
        )),
        ("GET", ORG_GROUPS) => {
            let page = model.list_groups(call.param("org"), paging)?;
            Ok(Answer::page(Some("runner_groups"), page, paging, |group| group.json()))
        }
        ("GET", JOB) => {
            let job = model.get_job(now, &call.repository(), call.number("job_id")?)?;
            Ok(Answer::ok(model.job_json(&job)))
        }
        ("GET", RUNS) => {
            let status = call.query.get("status").map(String::as_str);
            let page = model.list_runs(now, &call.repository(), status, paging)?;
            Ok(Answer::page(Some("workflow_runs"), page, paging, |run| model.run_json(&run)))
        }
        ("GET", RUN) => {
            let run = model.get_run(now, &call.repository(), call.number("run_id")?)?;
            Ok(Answer::ok(model.run_json(&run)))
        }
        ("GET", RUN_JOBS | ATTEMPT_JOBS) => {
            let attempt = match template {
                ATTEMPT_JOBS => Some(call.number("attempt_number")?),
                _ => None,
            };
            let attempt = attempt.map(|attempt| u32::try_from(attempt).unwrap_or(u32::MAX));
            let run = call.number("run_id")?;
            let all = attempt.is_none() && call.query.get("filter").is_some_and(|f| f == "all");
            let page = match all {
                true => model.list_all_jobs_of_run(now, &call.repository(), run, paging)?,
                false => model.list_jobs_of_run(now, &call.repository(), run, attempt, paging)?,
            };
            Ok(Answer::page(Some("jobs"), page, paging, |job| model.job_json(&job)))
        }
        ("POST", RUN_CANCEL) => {
            model.cancel_run(now, &call.repository(), call.number("run_id")?)?;
            Ok(Answer::new(202, json!({})))
        }
        ("POST", RUN_RERUN_FAILED) => {
            model.rerun_failed(now, &call.repository(), call.number("run_id")?)?;
            Ok(Answer::new(201, json!({})))
        }
        ("POST", JOB_RERUN) => {
            model.rerun_job(now, &call.repository(), call.number("job_id")?)?;
            Ok(Answer::new(201, json!({})))
        }
        ("GET", DEPLOYMENT_STATUSES) => {
            let id = call.number("deployment_id")?;
            let statuses = model.deployment_statuses(now, &call.repository(), id)?;
            let base = format!("{}/repos/{}", model.options().api_url, call.repository());
            let page = paging.cut(statuses.into_iter());
            Ok(Answer::page(None, page, paging, |(state, at)| {
                json!({
                    "url": format!("{base}/deployments/{id}/statuses/{}", at.millis()),
                    "id": at.millis(),
                    "state": state,
                    "description": "",
                    "environment": "",
                    "created_at": at.to_string(),
                    "updated_at": at.to_string(),
                    "deployment_url": format!("{base}/deployments/{id}"),
                    "repository_url": base,
                })
            }))
        }
        ("GET", OCTOCAT) => Ok(Answer::ok(json!("Half measures are as bad as nothing at all."))),
        ("GET", RATE_LIMIT) => rate_limit(model, &call.caller),
        _ => Err(ApiError::not_found()),
    }
}

fn mint(model: &mut model::GitHub, call: &Call) -> Result<Answer, ApiError> {
    let names: Option<Vec<String>> =
        match call.body.get("repositories") {
            Some(names) => Some(serde_json::from_value(names.clone()).map_err(|_| {
                ApiError::new(422, "Invalid request.\n\nrepositories is not a list")
            })?),
            None => None,
        };
    let installation = call.number("installation_id")?;
    let token = model.mint_token(call.now, installation, names.as_deref())?;
    Ok(Answer::new(
        201,
        json!({
            "token": token.token,
            "expires_at": token.expires_at.to_string(),
            "permissions": permissions(),
            "repository_selection": if names.is_some() { "selected" } else { "all" },
        }),
    ))
}

fn register(model: &mut model::GitHub, call: &Call) -> Result<Answer, ApiError> {
    let missing = |key: &str| {
        ApiError::new(
            422,
            format!("Invalid request.\n\nInvalid input: object is missing required key: {key}."),
        )
    };
    let name = call.body.get("name").and_then(Value::as_str).ok_or_else(|| missing("name"))?;
    let group = call.body.get("runner_group_id").and_then(Value::as_u64);
    let labels: Vec<String> = call
        .body
        .get("labels")
        .and_then(|labels| serde_json::from_value(labels.clone()).ok())
        .ok_or_else(|| missing("labels"))?;
    let Jit { runner, encoded } =
        model.generate_jit(call.now, &call.scope(), name, group, &labels)?;
    Ok(Answer::new(201, json!({"runner": runner.json(), "encoded_jit_config": encoded})))
}

fn rate_limit(model: &model::GitHub, caller: &Caller) -> Result<Answer, ApiError> {
    let resource = |name| {
        let (limit, used, reset) = model.quota(caller, name)?;
        Some(json!({
            "limit": limit, "used": used, "remaining": limit - used, "reset": reset.seconds(),
        }))
    };
    let (Some(core), Some(registration)) =
        (resource("core"), resource("actions_runner_registration"))
    else {
        return Err(ApiError::new(404, "Rate limiting is not enabled."));
    };
    Ok(Answer::ok(json!({
        "resources": {"core": core, "actions_runner_registration": registration},
        "rate": core,
    })))
}

fn permissions() -> Value {
    json!(BTreeMap::from(PERMISSIONS))
}

fn installation_json(model: &model::GitHub, app_id: u64, owner: &Owner) -> Value {
    let api = &model.options().api_url;
    let id = owner.installation.unwrap_or_default();
    json!({
        "id": id,
        "account": model.account_json(&owner.login, owner.id, owner.kind),
        "repository_selection": "all",
        "access_tokens_url": format!("{api}/app/installations/{id}/access_tokens"),
        "repositories_url": format!("{api}/installation/repositories"),
        "html_url": format!("{}/settings/installations/{id}", model.options().html_url),
        "app_id": app_id,
        "app_slug": OWN_SLUG,
        "target_id": owner.id,
        "target_type": owner.kind.name(),
        "permissions": permissions(),
        "events": ["workflow_job"],
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "single_file_name": null,
        "suspended_by": null,
        "suspended_at": null,
    })
}

/// An empty body is none.
fn parse_body(body: &Bytes) -> Result<Value, ApiError> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|_| ApiError::new(400, "Problems parsing JSON"))
}

/// Counts a request while it is under way.
struct UnderWay<'a> {
    github: &'a GitHub,
    count: usize,
}

impl<'a> UnderWay<'a> {
    fn enter(github: &'a GitHub) -> Self {
        Self { github, count: github.under_way.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.github.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

fn show(answer: Answer, url: &str) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match answer.body {
        Some(body) => (status, Json(body)).into_response(),
        None => status.into_response(),
    };
    if !answer.links.is_empty() {
        let links: Vec<String> = answer
            .links
            .iter()
            .map(|(rel, query)| format!("<{url}?{query}>; rel=\"{rel}\""))
            .collect();
        set_header(&mut response, "link", &links.join(", "));
    }
    response
}

pub(super) fn refuse(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(error.body())).into_response();
    for (name, value) in &error.headers {
        set_header(&mut response, name, value);
    }
    response
}

/// The call is done, and its answer does not arrive.
fn lost(status: u16) -> Response {
    match StatusCode::from_u16(status) {
        Ok(status) => (status, Json(json!({"message": "Server Error"}))).into_response(),
        Err(_) => {
            let mut response = StatusCode::BAD_GATEWAY.into_response();
            response.extensions_mut().insert(HangUp);
            response
        }
    }
}

fn set_header(response: &mut Response, name: &str, value: &str) {
    let name = http::HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_str(value)) {
        response.headers_mut().insert(name, value);
    }
}

/// The path that was called, made from the template again: links name it.
fn expand(template: &str, params: &BTreeMap<String, String>) -> String {
    params.iter().fold(template.to_owned(), |path, (name, value)| {
        path.replace(&format!("{{{name}}}"), value)
    })
}

/// World time as `Date`: clients that correct their clock by it are right.
fn http_date(now: Timestamp) -> String {
    chrono::DateTime::from_timestamp_millis(now.millis())
        .map(|at| at.format("%a, %d %b %Y %H:%M:%S GMT").to_string())
        .unwrap_or_default()
}
