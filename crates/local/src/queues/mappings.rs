//! Event source mappings: queues polled for functions, as Lambda does it.
//! Source: Lambda developer guide, "Using Lambda with Amazon SQS" and its page on error handling.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::Method;
use ostler_sim::queue::{BATCH_MAX, Received};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::{Entry, Queues, md5_hex, name_of, system_attributes};
use crate::aws::REGION;
use crate::lambda_host;

/// Batches of one mapping that run at a time, unless it says otherwise. Lambda begins with 5 and goes far
/// beyond what this machine could run.
const CONCURRENCY_DEFAULT: usize = 20;
/// How long one poll waits, world time, as Lambda's long polls do.
const POLL: Duration = Duration::from_secs(20);
/// Before a queue that is not there is looked for again, world time.
const MISSING_QUEUE_DELAY: Duration = Duration::from_secs(30);

/// A mapping's configuration: the properties of `AWS::Lambda::EventSourceMapping`, and of
/// CreateEventSourceMapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// ARN of the queue.
    pub queue_arn: String,
    /// Name of the function.
    pub function: String,
    /// Records of one event at most.
    pub batch_size: usize,
    /// How long records are gathered, world time.
    pub window: Duration,
    /// Whether the answer may name records that failed.
    pub partial: bool,
    /// Batches at a time.
    pub concurrency: usize,
}

impl Mapping {
    /// Reads the properties. `None` if it is disabled, or of another kind than a queue.
    pub fn of(properties: &Value) -> Option<Self> {
        let queue_arn =
            properties["EventSourceArn"].as_str().filter(|arn| arn.contains(":sqs:"))?;
        let flag = |value: &Value| value.as_bool().or_else(|| value.as_str()?.parse().ok());
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        if flag(&properties["Enabled"]) == Some(false) {
            return None;
        }
        let size = |value: &Value| number(value).and_then(|number| usize::try_from(number).ok());
        Some(Self {
            queue_arn: queue_arn.to_owned(),
            function: lambda_host::name_of(properties["FunctionName"].as_str()?),
            batch_size: size(&properties["BatchSize"]).unwrap_or(10).clamp(1, 10_000),
            window: Duration::from_secs(
                number(&properties["MaximumBatchingWindowInSeconds"]).unwrap_or(0),
            ),
            partial: properties["FunctionResponseTypes"]
                .as_array()
                .is_some_and(|types| types.iter().any(|kind| kind == "ReportBatchItemFailures")),
            concurrency: size(&properties["ScalingConfig"]["MaximumConcurrency"])
                .unwrap_or(CONCURRENCY_DEFAULT),
        })
    }
}

/// A mapping at work; stops when dropped.
pub(super) struct Running {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Queues {
    /// Adds a mapping under an owner (a stack, or `api`).
    pub fn map(self: &Arc<Self>, owner: &str, properties: &Value) {
        let Some(mapping) = Mapping::of(properties) else { return };
        let running = Running { task: tokio::spawn(poll(Arc::clone(self), mapping)) };
        self.mappings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(owner.to_owned())
            .or_default()
            .push(running);
    }

    /// Ends an owner's mappings. Batches that run go on to their end.
    pub fn unmap(&self, owner: &str) {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }
}

async fn poll(queues: Arc<Queues>, mapping: Mapping) {
    let permits = Arc::new(Semaphore::new(mapping.concurrency.max(1)));
    loop {
        // Taken before the messages are: what is received is run at once.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok(entry) = queues.entry(name_of(&mapping.queue_arn)).await else {
            queues.clock.sleep(MISSING_QUEUE_DELAY).await;
            continue;
        };
        let batch = gather(&queues, &entry, &mapping).await;
        if batch.is_empty() {
            continue;
        }
        let (queues, mapping) = (Arc::clone(&queues), mapping.clone());
        tokio::spawn(async move {
            run(&queues, &entry, &mapping, batch).await;
            drop(permit);
        });
    }
}

/// One batch: what a first poll gives, and more until it is full or the window has passed.
async fn gather(queues: &Queues, entry: &Arc<Entry>, mapping: &Mapping) -> Vec<Received> {
    let take = |left: usize| left.clamp(1, BATCH_MAX);
    let mut batch =
        queues.receive(entry, take(mapping.batch_size), None, POLL).await.unwrap_or_default();
    let end = queues.clock.now() + mapping.window;
    while !batch.is_empty() && batch.len() < mapping.batch_size && mapping.window > Duration::ZERO {
        let now = queues.clock.now();
        if now >= end {
            break;
        }
        let more = queues
            .receive(entry, take(mapping.batch_size - batch.len()), None, end.since(now))
            .await;
        batch.extend(more.unwrap_or_default());
    }
    batch
}

async fn run(queues: &Queues, entry: &Entry, mapping: &Mapping, batch: Vec<Received>) {
    let records: Vec<Value> = batch.iter().map(|message| record(message, &entry.arn)).collect();
    let path = format!("/2015-03-31/functions/{}/invocations", mapping.function);
    let event = json!({"Records": records}).to_string();
    let answer = queues.functions.send("lambda", Method::POST, &path, &[], event).await;
    // A failed batch is left alone: it shows itself again when its visibility timeout has passed.
    let Ok(answer) = answer else { return };
    if answer.headers().contains_key("x-amz-function-error") {
        return;
    }
    let failed =
        if mapping.partial { failed_of(&batch, answer.body()) } else { Some(BTreeSet::new()) };
    let Some(failed) = failed else { return };
    for message in batch.iter().filter(|message| !failed.contains(&message.message_id)) {
        if let Err(error) = queues.delete(entry, &message.receipt_handle) {
            tracing::warn!(
                ?error,
                queue = entry.arn,
                "a handled message comes again: its visibility timeout had passed"
            );
        }
    }
}

/// Ids of the records that failed; `None` if all did. Source: the same page, "Success and failure
/// conditions": an empty list, null or nothing is success, anything malformed or unknown fails the batch.
fn failed_of(batch: &[Received], answer: &[u8]) -> Option<BTreeSet<String>> {
    let answer: Value =
        if answer.is_empty() { Value::Null } else { serde_json::from_slice(answer).ok()? };
    let failures = match &answer["batchItemFailures"] {
        Value::Null => return Some(BTreeSet::new()),
        Value::Array(failures) => failures,
        _ => return None,
    };
    let known: BTreeSet<&str> = batch.iter().map(|message| message.message_id.as_str()).collect();
    failures
        .iter()
        .map(|failure| {
            failure["itemIdentifier"].as_str().filter(|id| known.contains(id)).map(str::to_owned)
        })
        .collect()
}

fn record(message: &Received, queue_arn: &str) -> Value {
    let own: Map<String, Value> = message
        .attributes
        .iter()
        .map(|(name, attribute)| {
            let text = String::from_utf8_lossy(&attribute.value);
            (name.clone(), json!({"stringValue": text, "stringListValues": [], "binaryListValues": [], "dataType": attribute.data_type}))
        })
        .collect();
    json!({
        "messageId": message.message_id,
        "receiptHandle": message.receipt_handle,
        "body": message.body,
        "attributes": system_attributes(message),
        "messageAttributes": own,
        "md5OfBody": md5_hex(message.body.as_bytes()),
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": REGION,
    })
}

#[cfg(test)]
mod tests {
    use ostler_core::time::Timestamp;

    use super::*;

    fn message(id: &str) -> Received {
        Received {
            message_id: id.into(),
            receipt_handle: String::new(),
            body: "b".into(),
            attributes: std::collections::BTreeMap::new(),
            group: Some("g".into()),
            deduplication_id: None,
            sequence_number: None,
            sent_at: Timestamp::from_seconds(1),
            first_received_at: Timestamp::from_seconds(2),
            receive_count: 3,
        }
    }

    #[test]
    fn partial_answers_are_read_as_lambda_reads_them() {
        let batch = [message("a"), message("b")];
        let failed = |answer: &str| failed_of(&batch, answer.as_bytes()).map(|ids| ids.len());
        for success in [
            "",
            "null",
            "{}",
            r#"{"batchItemFailures": []}"#,
            r#"{"batchItemFailures": null}"#,
            r#""x""#,
        ] {
            assert_eq!(failed(success), Some(0), "{success}");
        }
        assert_eq!(failed(r#"{"batchItemFailures": [{"itemIdentifier": "b"}]}"#), Some(1));
        for whole in [
            "not json",
            r#"{"batchItemFailures": "b"}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": ""}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": null}]}"#,
            r#"{"batchItemFailures": [{"wrong": "b"}]}"#,
            r#"{"batchItemFailures": [{"itemIdentifier": "unknown"}]}"#,
        ] {
            assert_eq!(failed(whole), None, "{whole}");
        }
    }

    #[test]
    fn properties_are_read_from_templates_and_calls() {
        let properties = json!({"EventSourceArn": "arn:aws:sqs:us-east-1:1:q.fifo", "FunctionName": "arn:aws:lambda:us-east-1:1:function:f",
            "BatchSize": "5", "FunctionResponseTypes": ["ReportBatchItemFailures"], "MaximumBatchingWindowInSeconds": 2});
        let mapping = Mapping::of(&properties).unwrap();
        assert_eq!(
            (mapping.function.as_str(), mapping.batch_size, mapping.partial),
            ("f", 5, true)
        );
        assert_eq!(mapping.window, Duration::from_secs(2));
        let disabled = json!({"EventSourceArn": "arn:aws:sqs:us-east-1:1:q", "FunctionName": "f", "Enabled": false});
        assert_eq!(Mapping::of(&disabled), None);
    }

    #[test]
    fn a_record_says_how_often_it_was_received() {
        let record = record(&message("a"), "arn:q");
        assert_eq!(record["attributes"]["ApproximateReceiveCount"], "3");
        assert_eq!(record["attributes"]["MessageGroupId"], "g");
        assert_eq!(record["md5OfBody"], "92eb5ffee6ae2fec3ad71c777531578f");
    }
}
