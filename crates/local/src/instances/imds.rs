//! Instance metadata, version 2 only, and the machine's power switch.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use serde_json::json;

use super::{Host, Machine};

/// The role's name in the path of its credentials; the instance profile's real one does not matter.
const ROLE: &str = "ostler-runner";

pub(super) fn router(host: Arc<Host>) -> Router {
    Router::new()
        .route("/{id}/imds/latest/api/token", put(token))
        .route("/{id}/imds/latest/meta-data/{*path}", get(metadata))
        .route("/{id}/poweroff", post(poweroff))
        .route("/{id}/reboot", post(reboot))
        .with_state(host)
}

async fn token(
    State(host): State<Arc<Host>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let seconds = headers.get("x-aws-ec2-metadata-token-ttl-seconds");
    let seconds: Option<u32> = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    // Source: EC2 user guide, "Use IMDSv2": 1 second to 6 hours.
    if !seconds.is_some_and(|seconds| (1..=21_600).contains(&seconds)) {
        return StatusCode::BAD_REQUEST.into_response();
    }
    match host.machines().get(&id) {
        Some(machine) => machine.token.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn metadata(
    State(host): State<Arc<Host>>,
    Path((id, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let machines = host.machines();
    let Some(machine) = machines.get(&id) else { return StatusCode::NOT_FOUND.into_response() };
    let token = headers.get("x-aws-ec2-metadata-token").map(|token| token.as_bytes());
    if token != Some(machine.token.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match value(machine, &id, &host.config.region, &path) {
        Some(text) => text.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn value(machine: &Machine, id: &str, region: &str, path: &str) -> Option<String> {
    const CREDENTIALS: &str = "iam/security-credentials";
    let path = path.trim_end_matches('/');
    match path {
        "instance-id" => return Some(id.to_owned()),
        "placement/region" => return Some(region.to_owned()),
        "tags/instance" => {
            return Some(machine.tags.keys().cloned().collect::<Vec<_>>().join("\n"));
        }
        "spot/instance-action" => {
            let at = machine.spot_notice?;
            return Some(json!({"action": "terminate", "time": at.to_string()}).to_string());
        }
        CREDENTIALS => return machine.credentials.as_ref().map(|_| ROLE.to_owned()),
        _ => {}
    }
    if let Some(key) = path.strip_prefix("tags/instance/") {
        return machine.tags.get(key).cloned();
    }
    let role = path.strip_prefix(CREDENTIALS)?.strip_prefix('/')?;
    let credentials = machine.credentials.as_ref().filter(|_| role == ROLE)?;
    serde_json::to_string_pretty(&json!({
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": credentials.access_key_id,
        "SecretAccessKey": credentials.secret,
        "Token": credentials.session_token,
        "Expiration": credentials.expires_at.to_string(),
    }))
    .ok()
}

async fn poweroff(State(host): State<Arc<Host>>, Path(id): Path<String>) -> StatusCode {
    off_thread(move || host.powered_off(&id)).await
}

async fn reboot(State(host): State<Arc<Host>>, Path(id): Path<String>) -> StatusCode {
    off_thread(move || host.reboot(&id)).await
}

/// Killing waits for the dead, which blocks.
async fn off_thread(work: impl FnOnce() + Send + 'static) -> StatusCode {
    match tokio::task::spawn_blocking(work).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
