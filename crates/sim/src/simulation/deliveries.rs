//! What is on its way: GitHub's events to the webhook, with its answers, and runners' lines to the
//! stolen-runner handler.

use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use ostler_core::secret::Secret;
use ostler_core::webhook;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::github;

/// A delivery that was answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// `X-GitHub-Event`.
    pub event: String,
    /// The payload's action.
    pub action: Option<String>,
    /// The job that it is about.
    pub job: Option<u64>,
    /// HTTP status; 502 if the function was killed.
    pub status: u16,
    /// What was said.
    pub body: String,
}

/// An event, and how often it was sent before.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub event: github::Event,
    pub attempt: u32,
}

/// Decides when the copies of an event arrive, from now; none at all if it is lost.
pub type Courier = Box<dyn FnMut(&github::Event, &mut StdRng) -> Vec<Duration>>;

/// Decides when the copies of a line arrive, from now; none at all if it is lost.
pub type Printer = Box<dyn FnMut(&str, &mut StdRng) -> Vec<Duration>>;

/// The event with which CloudWatch Logs delivers these lines.
pub fn log_delivery(lines: &[&str]) -> Value {
    let events: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(id, line)| json!({"id": id.to_string(), "timestamp": 0, "message": line}))
        .collect();
    let delivery = json!({
        "messageType": "DATA_MESSAGE",
        "owner": "123456789012",
        "logGroup": "/ostler/test/runners",
        "logStream": "i-0",
        "subscriptionFilters": ["reports"],
        "logEvents": events,
    });
    packed(delivery.to_string().as_bytes())
}

/// The event of a delivery of anything.
pub fn packed(content: &[u8]) -> Value {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(content);
    json!({"awslogs": {"data": STANDARD.encode(encoder.finish().unwrap_or_default())}})
}

/// A function URL's event of a signed delivery.
pub fn signed(event: &github::Event, secret: &str) -> Value {
    let body = event.payload.to_string();
    request(&event.event, &event.guid, &body, &webhook::sign(body.as_bytes(), &Secret::new(secret)))
}

/// A function URL's event of any delivery.
pub fn request(event: &str, guid: &str, body: &str, signature: &str) -> Value {
    json!({
        "version": "2.0",
        "rawPath": "/",
        "headers": {
            "content-type": "application/json",
            "x-github-event": event,
            "x-github-delivery": guid,
            "x-hub-signature-256": signature,
        },
        "requestContext": {"http": {"method": "POST", "path": "/"}},
        "body": body,
        "isBase64Encoded": false,
    })
}

impl Answered {
    pub(super) fn new(event: &github::Event, status: u16, body: &str) -> Self {
        Self {
            event: event.event.clone(),
            action: event.action.clone(),
            job: event.payload.pointer("/workflow_job/id").and_then(Value::as_u64),
            status,
            body: body.into(),
        }
    }
}
