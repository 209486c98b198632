//! What the stand-in for `actions/runner` speaks, and the archive that it comes in. The real protocol is
//! not documented; this one has the same moments in it: come online, be given a job, report, end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use ostler_sim::github::{ApiError, Poll};
use serde::Deserialize;
use serde_json::{Value, json};

use super::GitHub;

/// How long a question for work stays open, in real time.
const LONG_POLL: Duration = Duration::from_secs(2);
/// How often the model is asked meanwhile, in real time.
const POLL_STEP: Duration = Duration::from_millis(100);

pub(super) fn routes() -> Router<Arc<GitHub>> {
    Router::new()
        .route("/_runner/sessions", post(connect))
        .route("/_runner/sessions/{session}", delete(disconnect))
        .route("/_runner/sessions/{session}/message", get(message))
        .route("/_runner/sessions/{session}/jobs/{job}/renew", post(renew))
        .route("/_runner/sessions/{session}/jobs/{job}/completed", post(completed))
        .route("/actions/runner/releases/download/{tag}/{file}", get(release))
}

#[derive(Deserialize)]
struct Connect {
    jitconfig: String,
}

#[derive(Deserialize)]
struct Completed {
    conclusion: String,
}

fn refused(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, Json(json!({"message": error.message}))).into_response()
}

fn answered<T>(answer: Result<T, ApiError>, show: impl FnOnce(T) -> Value) -> Response {
    match answer {
        Ok(value) => Json(show(value)).into_response(),
        Err(error) => refused(&error),
    }
}

async fn connect(State(github): State<Arc<GitHub>>, Json(body): Json<Connect>) -> Response {
    let answer = github.with_model(|model, now| model.connect(now, &body.jitconfig));
    answered(
        answer,
        |session| json!({"sessionId": session.id, "runnerId": session.runner_id, "name": session.name}),
    )
}

async fn disconnect(State(github): State<Arc<GitHub>>, Path(session): Path<String>) -> StatusCode {
    github.with_model(|model, now| model.disconnect(now, &session));
    StatusCode::NO_CONTENT
}

async fn message(State(github): State<Arc<GitHub>>, Path(session): Path<String>) -> Response {
    let until = tokio::time::Instant::now() + LONG_POLL;
    loop {
        match github.with_model(|model, now| model.poll_job(now, &session)) {
            Ok(Poll::Job(job)) => {
                let mut body = json!({
                    "jobId": job.job_id,
                    "runId": job.run_id,
                    "repo": job.repository,
                    "seconds": job.duration.as_secs_f64(),
                });
                if let Some(script) = job.script {
                    body["script"] = json!(script);
                }
                return Json(body).into_response();
            }
            // A session that is not known any more was that of a registration that has gone.
            Ok(Poll::Gone) | Err(ApiError { status: 404, .. }) => {
                return StatusCode::GONE.into_response();
            }
            Err(error) => return refused(&error),
            Ok(Poll::Idle) if tokio::time::Instant::now() >= until => {
                return StatusCode::NO_CONTENT.into_response();
            }
            Ok(Poll::Idle) => tokio::time::sleep(POLL_STEP).await,
        }
    }
}

async fn renew(
    State(github): State<Arc<GitHub>>,
    Path((session, _job)): Path<(String, u64)>,
) -> Response {
    let answer = github.with_model(|model, now| model.renew(now, &session));
    answered(answer, |stop| json!({"cancelled": stop}))
}

async fn completed(
    State(github): State<Arc<GitHub>>,
    Path((session, job)): Path<(String, u64)>,
    Json(body): Json<Completed>,
) -> Response {
    let answer =
        github.with_model(|model, now| model.complete(now, &session, job, &body.conclusion));
    answered(answer, |()| json!({}))
}

async fn release(
    State(github): State<Arc<GitHub>>,
    Path((tag, file)): Path<(String, String)>,
) -> Response {
    let version = tag.trim_start_matches('v');
    let known = ["x64", "arm64"]
        .iter()
        .any(|arch| file == format!("actions-runner-linux-{arch}-{version}.tar.gz"));
    match &github.release {
        Some(archive) if known => {
            ([("content-type", "application/octet-stream")], archive.clone()).into_response()
        }
        _ => (StatusCode::NOT_FOUND, "Not Found").into_response(),
    }
}
