//! The janitor's confirmation queue over SQS.

use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use ostler_core::janitor::{Candidate, Confirmations, OBSERVATION};
use ostler_core::{Error, Result};
use tracing::warn;

use crate::sdk_error;

/// The queue of candidates.
pub struct SqsConfirmations {
    client: Client,
    queue_url: String,
}

impl SqsConfirmations {
    /// Over the queue of that address.
    pub fn new(config: &SdkConfig, queue_url: &str) -> Self {
        Self { client: Client::new(config), queue_url: queue_url.to_owned() }
    }
}

impl Confirmations for SqsConfirmations {
    async fn send(&self, candidates: &[Candidate]) -> Result<Vec<usize>> {
        let mut request = self.client.send_message_batch().queue_url(&self.queue_url);
        // The queue's own delay says the same; a candidate must not depend on how the queue is set up.
        let delay = i32::try_from(OBSERVATION.as_secs()).unwrap_or(i32::MAX);
        for (place, candidate) in candidates.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder()
                .id(place.to_string())
                .delay_seconds(delay)
                .message_body(candidate.message())
                .build()
                .map_err(|error| {
                    Error::Permanent(format!("candidate {}: {error}", candidate.runner_name))
                })?;
            request = request.entries(entry);
        }
        let answer = request.send().await.map_err(|error| sdk_error("queue candidates", error))?;
        for failed in answer.failed() {
            let (id, code) = (failed.id(), failed.code());
            warn!(id, code, reason = failed.message(), "the queue did not take a candidate");
        }
        // What the queue does not say that it has, it may not have.
        let taken: Vec<_> = answer.successful().iter().map(|entry| entry.id()).collect();
        let places = 0..candidates.len();
        Ok(places.filter(|place| !taken.contains(&place.to_string().as_str())).collect())
    }
}

#[cfg(test)]
mod tests {
    use ostler_core::janitor::Part;
    use ostler_core::time::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Wire;

    const QUEUE: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/janitor-confirmations";

    fn candidate(id: i64) -> Candidate {
        Candidate {
            runner_id: id,
            runner_name: format!("acme-i-{id:08x}"),
            resource: format!("i-{id:08x}"),
            part: Part::Group { organization: "acme".into(), id: 3 },
            observed_at: Timestamp::from_millis(1_796_040_000_123),
            scope: "ab".repeat(32),
        }
    }

    fn taken(place: usize) -> Value {
        json!({"Id": place.to_string(), "MessageId": "m", "MD5OfMessageBody": "x"})
    }

    #[tokio::test]
    async fn j44_each_candidate_waits_for_fifteen_minutes() {
        let wire = Wire::new([(200, json!({"Successful": [taken(0), taken(1)]}))]);
        let queue = SqsConfirmations::new(&wire.config().await, QUEUE);
        assert_eq!(queue.send(&[candidate(1), candidate(2)]).await.unwrap(), Vec::<usize>::new());
        let sent = &wire.requests()[0];
        assert_eq!(
            (&sent["#target"], &sent["QueueUrl"]),
            (&json!("SendMessageBatch"), &json!(QUEUE))
        );
        let entries = sent["Entries"].as_array().unwrap();
        assert_eq!(entries.iter().map(|e| &e["DelaySeconds"]).collect::<Vec<_>>(), [900, 900]);
        let body: Value =
            serde_json::from_str(entries[1]["MessageBody"].as_str().unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"runnerId": 2, "runnerName": "acme-i-00000002", "groupId": 3,
            "resourceId": "i-00000002", "observedAt": 1_796_040_000_123_i64, "scope": "ab".repeat(32)})
        );
    }

    #[tokio::test]
    async fn j38_a_batch_is_checked_entry_by_entry() {
        let failed = |id: &str| json!({"Id": id, "Code": "InternalError", "SenderFault": false});
        for (successful, failures, refused) in [
            (vec![taken(0), taken(2)], vec![failed("1")], vec![1]),
            (vec![], vec![failed("x")], vec![0, 1, 2]),
            (vec![taken(0), taken(1), taken(2)], vec![], vec![]),
            (vec![taken(2)], vec![], vec![0, 1]),
        ] {
            let wire = Wire::new([(200, json!({"Successful": successful, "Failed": failures}))]);
            let queue = SqsConfirmations::new(&wire.config().await, QUEUE);
            let batch = [candidate(1), candidate(2), candidate(3)];
            assert_eq!(queue.send(&batch).await.unwrap(), refused);
        }
        let wire = Wire::new([(400, json!({"__type": "com.amazonaws.sqs#QueueDoesNotExist"}))]);
        let queue = SqsConfirmations::new(&wire.config().await, QUEUE);
        assert!(matches!(queue.send(&[candidate(1)]).await, Err(Error::Permanent(_))));
    }
}
