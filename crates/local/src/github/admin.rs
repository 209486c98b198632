//! For whoever plays the world: jobs, faults and state over HTTP. Not part of GitHub.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use ostler_sim::github::{ApiError, Fault, FaultRule, JobSpec, OwnerKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Delivery, DeliveryFaults, DeliveryPlan, GitHub, RawHook, Snapshot};

pub(super) fn routes() -> Router<Arc<GitHub>> {
    Router::new()
        .route("/_admin/repositories", post(add_repository))
        .route("/_admin/jobs", post(post_jobs))
        .route("/_admin/jobs/{job}/cancel", post(cancel))
        .route("/_admin/jobs/{job}/approve", post(approve))
        .route("/_admin/state", get(state))
        .route("/_admin/calls", get(calls))
        .route("/_admin/faults", post(add_fault).delete(clear_faults))
        .route("/_admin/deliveries", get(deliveries))
        .route("/_admin/deliveries/{id}/redeliver", post(redeliver))
        .route("/_admin/delivery-faults", put(set_delivery_faults))
        .route("/_admin/delivery-plans", post(plan_delivery))
        .route("/_admin/webhooks", post(send_raw))
        .route("/_admin/webhook-target", put(set_target))
}

impl Snapshot {
    /// For `GET /_admin/state`.
    pub fn json(&self) -> Value {
        let jobs: Vec<Value> = self
            .jobs
            .iter()
            .map(|job| {
                json!({
                    "id": job.id,
                    "runId": job.run_id,
                    "attempt": job.attempt,
                    "repo": job.repository,
                    "name": job.name,
                    "labels": job.labels,
                    "status": job.status.name(),
                    "conclusion": job.conclusion,
                    "runner": job.runner.as_ref().map(|runner| runner.name.as_str()),
                    "createdAt": job.created_at.to_string(),
                    "queuedAt": job.queued_at.to_string(),
                    "startedAt": job.started_at.map(|at| at.to_string()),
                    "completedAt": job.completed_at.map(|at| at.to_string()),
                })
            })
            .collect();
        let runners: Vec<Value> = self.runners.iter().map(|runner| runner.json()).collect();
        json!({"at": self.at.to_string(), "jobs": jobs, "runners": runners, "calls": self.calls})
    }
}

/// A repository to add. An owner that is not there yet becomes what `owner_type` says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewRepository {
    repo: String,
    #[serde(default)]
    public: bool,
    /// `Organization` (if left out) or `User`.
    owner_type: Option<String>,
    /// Whether the App is installed there.
    #[serde(default = "yes")]
    installed: bool,
}

/// Jobs to post: one, or a matrix of `count`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewJobs {
    /// `owner/name`; added as a private repository (`public`: a public one) where it is new.
    repo: String,
    labels: Vec<String>,
    name: Option<String>,
    workflow: Option<String>,
    run_id: Option<u64>,
    environment: Option<String>,
    /// World time.
    seconds: Option<f64>,
    script: Option<String>,
    count: Option<usize>,
    #[serde(default)]
    hosted: bool,
    #[serde(default)]
    skipped: bool,
    #[serde(default)]
    public: bool,
}

/// A fault of API calls: one of `status` (refused), `lost` (done, then this status; 0 hangs up) and
/// `latencySeconds` (real time).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewFault {
    #[serde(default = "anything")]
    method: String,
    #[serde(default = "anything")]
    template: String,
    #[serde(default)]
    skip: u32,
    #[serde(default = "once")]
    times: u32,
    status: Option<u16>,
    message: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    lost: Option<u16>,
    latency_seconds: Option<f64>,
}

#[derive(Deserialize)]
struct Target {
    url: Option<String>,
}

fn yes() -> bool {
    true
}

fn once() -> u32 {
    1
}

fn anything() -> String {
    "*".into()
}

fn answered<T>(answer: Result<T, ApiError>, show: impl FnOnce(T) -> Value) -> Response {
    match answer {
        Ok(value) => Json(show(value)).into_response(),
        Err(error) => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
            (status, Json(json!({"message": error.message}))).into_response()
        }
    }
}

async fn add_repository(
    State(github): State<Arc<GitHub>>,
    Json(new): Json<NewRepository>,
) -> StatusCode {
    github.with_model(|model, _| {
        if let (Some("User"), Some((owner, _))) =
            (new.owner_type.as_deref(), new.repo.split_once('/'))
        {
            model.add_owner(owner, OwnerKind::User);
        }
        let repository = model.add_repository(&new.repo, !new.public);
        repository.private = !new.public;
        repository.installed = new.installed;
    });
    StatusCode::NO_CONTENT
}

async fn post_jobs(State(github): State<Arc<GitHub>>, Json(new): Json<NewJobs>) -> Response {
    if github.with_model(|model, _| model.repository(&new.repo).is_err()) {
        github.add_repository(&new.repo, !new.public);
    }
    let mut spec = JobSpec::new(&new.repo, &[]);
    spec.labels = new.labels;
    spec.name = new.name.unwrap_or(spec.name);
    spec.workflow = new.workflow.or(spec.workflow);
    spec.run_id = new.run_id;
    spec.environment = new.environment;
    spec.script = new.script;
    spec.hosted = new.hosted;
    spec.skipped = new.skipped;
    if let Some(duration) = new.seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()) {
        spec.duration = duration;
    }
    let posted = match new.count {
        Some(count) => github.post_matrix(&spec, count),
        None => github.post_job(&spec).map(|id| vec![id]),
    };
    answered(posted, |jobs| json!({"jobs": jobs}))
}

async fn cancel(State(github): State<Arc<GitHub>>, Path(job): Path<u64>) -> Response {
    answered(github.cancel_job(job), |()| json!({}))
}

async fn approve(State(github): State<Arc<GitHub>>, Path(job): Path<u64>) -> Response {
    answered(github.approve(job), |()| json!({}))
}

async fn state(State(github): State<Arc<GitHub>>) -> Json<Value> {
    Json(github.snapshot().json())
}

async fn calls(State(github): State<Arc<GitHub>>) -> Json<BTreeMap<String, u64>> {
    Json(github.calls())
}

async fn add_fault(State(github): State<Arc<GitHub>>, Json(new): Json<NewFault>) -> Response {
    let latency = new.latency_seconds.map(Duration::try_from_secs_f64);
    let fault = match (new.status, new.lost, latency) {
        (Some(status), None, None) => Fault::Refuse(ApiError {
            headers: new.headers.into_iter().collect(),
            ..ApiError::new(status, new.message.unwrap_or_else(|| "Server Error".into()))
        }),
        (None, Some(status), None) => Fault::Lost(status),
        (None, None, Some(Ok(latency))) => Fault::Slow(latency),
        _ => return StatusCode::UNPROCESSABLE_ENTITY.into_response(),
    };
    let (method, template) = (new.method, new.template);
    github.add_fault(FaultRule { method, template, skip: new.skip, times: new.times, fault });
    StatusCode::NO_CONTENT.into_response()
}

async fn clear_faults(State(github): State<Arc<GitHub>>) -> StatusCode {
    github.with_model(|model, _| model.clear_faults());
    StatusCode::NO_CONTENT
}

async fn deliveries(State(github): State<Arc<GitHub>>) -> Json<Vec<Value>> {
    Json(github.deliveries().iter().map(Delivery::full_json).collect())
}

async fn redeliver(State(github): State<Arc<GitHub>>, Path(id): Path<u64>) -> StatusCode {
    if github.redeliver(id) { StatusCode::ACCEPTED } else { StatusCode::NOT_FOUND }
}

async fn set_delivery_faults(
    State(github): State<Arc<GitHub>>,
    Json(faults): Json<DeliveryFaults>,
) -> StatusCode {
    github.set_delivery_faults(faults);
    StatusCode::NO_CONTENT
}

async fn plan_delivery(
    State(github): State<Arc<GitHub>>,
    Json(plan): Json<DeliveryPlan>,
) -> StatusCode {
    github.plan_delivery(plan);
    StatusCode::NO_CONTENT
}

async fn send_raw(State(github): State<Arc<GitHub>>, Json(hook): Json<RawHook>) -> StatusCode {
    github.send_raw(hook);
    StatusCode::ACCEPTED
}

async fn set_target(State(github): State<Arc<GitHub>>, Json(target): Json<Target>) -> StatusCode {
    github.set_webhook_target(target.url.as_deref());
    StatusCode::NO_CONTENT
}
