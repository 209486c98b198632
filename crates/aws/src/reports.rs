//! The report queue over SQS FIFO.

use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use ostler_core::names::is_plausible;
use ostler_core::ports::ReportQueue;
use ostler_core::report::Report;
use ostler_core::{Error, Result};
use tracing::warn;

use crate::sdk_error;

/// The queue of reports.
pub struct SqsReports {
    client: Client,
    queue_url: String,
}

impl SqsReports {
    /// Over the queue of that address.
    pub fn new(config: &SdkConfig, queue_url: &str) -> Self {
        Self { client: Client::new(config), queue_url: queue_url.to_owned() }
    }
}

impl ReportQueue for SqsReports {
    async fn send(&self, report: &Report) -> Result<()> {
        if !is_plausible(&report.runner_name) {
            return Err(Error::Permanent(
                "a report of a runner whose name no runner can have".into(),
            ));
        }
        let body = serde_json::to_string(report).map_err(|error| {
            Error::Permanent(format!("report of {}: {error}", report.runner_name))
        })?;
        self.client
            .send_message()
            .queue_url(&self.queue_url)
            .message_group_id(report.group())
            .message_deduplication_id(report.deduplication_id())
            .message_body(body)
            .send()
            .await
            .map(drop)
            .map_err(|error| {
                sdk_error(&format!("queue the report of {}", report.runner_name), error)
            })
    }

    async fn send_batch(&self, reports: &[Report]) -> Result<Vec<usize>> {
        let mut request = self.client.send_message_batch().queue_url(&self.queue_url);
        // A report that no queue takes must not cost the others their batch.
        let mut refused: Vec<usize> = Vec::new();
        for (place, report) in reports.iter().enumerate() {
            match entry(place, report) {
                Ok(entry) => request = request.entries(entry),
                Err(failure) => {
                    warn!(%failure, "a report is not sent");
                    refused.push(place);
                }
            }
        }
        if refused.len() == reports.len() {
            return Ok(refused);
        }
        let answer = request.send().await.map_err(|error| sdk_error("queue reports", error))?;
        for failed in answer.failed() {
            let (id, code) = (failed.id(), failed.code());
            warn!(id, code, reason = failed.message(), "the queue did not take a report");
            // An id that is none of ours: something was refused, and it is not known what.
            let place = id.parse().ok().filter(|place| *place < reports.len());
            let Some(place) = place else { return Ok((0..reports.len()).collect()) };
            refused.push(place);
        }
        Ok(refused)
    }
}

fn entry(place: usize, report: &Report) -> Result<SendMessageBatchRequestEntry> {
    if !is_plausible(&report.runner_name) {
        return Err(Error::Permanent("a report of a runner whose name no runner can have".into()));
    }
    let wrong =
        |error: String| Error::Permanent(format!("report of {}: {error}", report.runner_name));
    let body = serde_json::to_string(report).map_err(|error| wrong(error.to_string()))?;
    SendMessageBatchRequestEntry::builder()
        .id(place.to_string())
        .message_group_id(report.group())
        .message_deduplication_id(report.deduplication_id())
        .message_body(body)
        .build()
        .map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use ostler_core::job::JobId;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Wire;

    const QUEUE: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/reports.fifo";

    fn report(name: &str) -> Report {
        Report {
            runner_name: name.into(),
            repo: "acme/w".into(),
            workflow_id: 9,
            job_id: Some(JobId(7)),
            job_labels: Some("linux".into()),
        }
    }

    #[tokio::test]
    async fn a_report_is_grouped_by_runner_and_sent_once() {
        let wire = Wire::new([(200, json!({"MessageId": "m"}))]);
        let reports = SqsReports::new(&wire.config().await, QUEUE);
        reports.send(&report("w-7-aa")).await.unwrap();
        let sent = &wire.requests()[0];
        assert_eq!((&sent["#target"], &sent["QueueUrl"]), (&json!("SendMessage"), &json!(QUEUE)));
        assert_eq!(sent["MessageGroupId"], "w-7-aa");
        assert_eq!(sent["MessageDeduplicationId"], "w-7-aa/7");
        let body: Value = serde_json::from_str(sent["MessageBody"].as_str().unwrap()).unwrap();
        assert_eq!(body, serde_json::to_value(report("w-7-aa")).unwrap());
    }

    #[tokio::test]
    async fn a_name_that_no_runner_can_have_never_reaches_the_queue() {
        let wire = Wire::new([(200, json!({}))]);
        let reports = SqsReports::new(&wire.config().await, QUEUE);
        for bad in ["", "a b", "x/y", &"x".repeat(65)] {
            assert!(matches!(reports.send(&report(bad)).await, Err(Error::Permanent(_))), "{bad}");
        }
        assert!(wire.requests().is_empty());
    }

    #[tokio::test]
    async fn s5_b4_b12_a_batch_says_which_entries_were_not_taken() {
        let line = |name: &str| Report { job_id: None, job_labels: None, ..report(name) };
        let failed = json!({"Id": "2", "Code": "InternalError", "SenderFault": false});
        let wire = Wire::new([(200, json!({"Successful": [], "Failed": [failed]}))]);
        let reports = SqsReports::new(&wire.config().await, QUEUE);
        let batch = [line("w-7"), line("a b"), line("w-8"), line("w-9")];
        assert_eq!(reports.send_batch(&batch).await.unwrap(), [1, 2], "one not even sent");
        let sent = &wire.requests()[0];
        assert_eq!(sent["#target"], "SendMessageBatch");
        let entries = sent["Entries"].as_array().unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0]["MessageGroupId"], "log/w-7");
        assert_eq!(entries[0]["MessageDeduplicationId"], "log/w-7");
        assert_eq!(entries[2]["Id"], "3");
        let body: Value =
            serde_json::from_str(entries[0]["MessageBody"].as_str().unwrap()).unwrap();
        assert_eq!(body, serde_json::to_value(line("w-7")).unwrap());
    }

    #[tokio::test]
    async fn b4_an_answer_about_an_unknown_entry_counts_for_all() {
        let failed = json!({"Id": "x", "Code": "InternalError", "SenderFault": false});
        let wire = Wire::new([(200, json!({"Successful": [], "Failed": [failed]}))]);
        let reports = SqsReports::new(&wire.config().await, QUEUE);
        let batch = [report("w-7"), report("w-8")];
        assert_eq!(reports.send_batch(&batch).await.unwrap(), [0, 1]);
    }

    #[tokio::test]
    async fn a_queue_that_takes_nothing_is_told_of() {
        for (kind, permanent) in [("QueueDoesNotExist", true), ("RequestThrottled", false)] {
            let wire = Wire::new([(400, json!({"__type": format!("com.amazonaws.sqs#{kind}")}))]);
            let reports = SqsReports::new(&wire.config().await, QUEUE);
            let error = reports.send(&report("w-7-aa")).await.unwrap_err();
            assert_eq!(matches!(error, Error::Permanent(_)), permanent, "{error:?}");
        }
    }
}
