//! What is on its way: GitHub's events to the webhook, with its answers, and runners' lines to the
//! stolen-runner handler.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Crc;
use ostler_core::reconciler::Delivered;
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
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
    pub event: Rc<github::Event>,
    pub attempt: u32,
    /// Its id in the log, once it is sent.
    pub id: u64,
    /// When it was sent.
    pub at: Timestamp,
}

impl Delivery {
    pub(super) fn new(event: Rc<github::Event>, attempt: u32) -> Self {
        Self { event, attempt, id: 0, at: Timestamp::default() }
    }

    /// Its line in the App's log.
    pub(super) fn line(&self, status: u16) -> Delivered {
        Delivered {
            id: self.id,
            guid: self.event.guid.clone(),
            at: self.at,
            ok: (200..300).contains(&status),
            again: self.attempt > 1,
            of_job: self.event.event == "workflow_job",
        }
    }
}

/// Decides when the copies of an event arrive, from now; none at all if it is lost.
pub type Courier = Box<dyn FnMut(&github::Event, &mut StdRng) -> Vec<Duration>>;

/// Decides when the copies of a line arrive, from now; none at all if it is lost.
pub type Printer = Box<dyn FnMut(&str, &mut StdRng) -> Vec<Duration>>;

/// Decides when the rule on ended executions invokes its target with the copies of an event, from then; none at all if it
/// never does. EventBridge delivers at least once, and tries for up to a day (EventBridge guide, "How EventBridge
/// retries"); what is lost altogether is lost before it.
pub type Ruler = Box<dyn FnMut(&str, &mut StdRng) -> Vec<Duration>>;

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
    json!({"awslogs": {"data": STANDARD.encode(gzip(content))}})
}

/// The event of a delivery stream that brings that delivery, as from another account.
pub fn stream_delivery(delivery: &Value) -> Value {
    json!({
        "deliveryStreamArn": "arn:aws:firehose:us-east-1:123456789012:deliverystream/reports",
        "records": [{"recordId": "1", "data": delivery["awslogs"]["data"]}],
    })
}

/// In gzip's format (RFC 1952), as stored blocks (RFC 1951, 3.2.4): packing it tighter takes longer than anything that
/// the use cases do with it.
fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut blocks = content.chunks(usize::from(u16::MAX)).peekable();
    if blocks.peek().is_none() {
        packed.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        packed.push(u8::from(blocks.peek().is_none()));
        packed.extend(length.to_le_bytes());
        packed.extend((!length).to_le_bytes());
        packed.extend(block);
    }
    let mut sum = Crc::new();
    sum.update(content);
    packed.extend(sum.sum().to_le_bytes());
    packed.extend(sum.amount().to_le_bytes());
    packed
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
