//! Records of an SQS event.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::job::{JobId, split_full_name};
use crate::names::is_plausible;
use crate::report::Report;
use crate::time::Timestamp;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The message's id, by which a failure is answered.
    pub id: String,
    /// The message.
    pub body: String,
    /// Its FIFO group; messages of one are handled in order.
    pub group: Option<String>,
    /// How often it was received, this time included.
    pub receives: u32,
    /// When it was sent, where SQS says so.
    pub sent: Option<Timestamp>,
}

impl Record {
    /// Reads `Records`. A record without id can't be answered for, and is not SQS's.
    pub fn read(record: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let attributes = &record["attributes"];
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let count = number(&attributes["ApproximateReceiveCount"]);
        let sent = number(&attributes["SentTimestamp"]);
        Ok(Self {
            id: text(&record["messageId"]).ok_or_else(|| {
                Error::Permanent(
                    "a record without messageId: expected records of an SQS queue".into(),
                )
            })?,
            body: text(&record["body"]).unwrap_or_default(),
            group: text(&attributes["MessageGroupId"]),
            receives: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            sent: sent.and_then(|sent| i64::try_from(sent).ok()).map(Timestamp::from_millis),
        })
    }

    /// The report in the body, or what is wrong with it. It is checked as lines are: another writer, or
    /// another version, may have sent it.
    pub fn report(&self) -> std::result::Result<Report, String> {
        let value: Value =
            serde_json::from_str(&self.body).map_err(|error| format!("not JSON: {error}"))?;
        if let Some(kind) = value.get("kind")
            && kind != "report"
        {
            return Err("its kind is not 'report'".into());
        }
        let report: Report =
            serde_json::from_value(value).map_err(|error| format!("not a report: {error}"))?;
        let wrong = match &report {
            report if !is_plausible(&report.runner_name) => "runnerName is no runner's name",
            report if split_full_name(&report.repo).is_none() => "repo is not owner/name",
            report if report.workflow_id <= 0 => "workflowId is not positive",
            Report { job_id: Some(JobId(..=0)), .. } => "jobId is not positive",
            _ => return Ok(report),
        };
        Err(wrong.into())
    }
}

/// The answer to a batch of which these messages are to come again (Lambda guide, "Reporting batch item failures").
pub fn come_again(ids: &[impl AsRef<str>]) -> Value {
    let failures: Vec<_> = ids.iter().map(|id| json!({ "itemIdentifier": id.as_ref() })).collect();
    json!({ "batchItemFailures": failures })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn record(body: &str) -> Record {
        Record { id: "m".into(), body: body.into(), group: None, receives: 1, sent: None }
    }

    #[test]
    fn s7_records_are_read_as_sqs_sends_them() {
        let read = Record::read(&json!({"messageId": "m-1", "receiptHandle": "r", "body": "{}",
            "attributes": {"ApproximateReceiveCount": "3", "MessageGroupId": "log/w-7",
                "SentTimestamp": "1764504000123"},
            "messageAttributes": {}, "eventSource": "aws:sqs"}))
        .unwrap();
        let group = Some("log/w-7".to_owned());
        let sent = Some(Timestamp::from_millis(1_764_504_000_123));
        assert_eq!(read, Record { id: "m-1".into(), body: "{}".into(), group, receives: 3, sent });
        assert!(Record::read(&json!({"body": "{}"})).is_err());
    }

    #[test]
    fn s7_b6_bodies_that_are_no_reports_say_why() {
        for (body, says) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("7", "not a report"),
            ("{}", "not a report"),
            (r#"{"kind": "idle", "runnerName": "w"}"#, "kind"),
            (
                r#"{"kind": "report", "runnerName": "a b", "repo": "a/w", "workflowId": 9}"#,
                "runnerName",
            ),
            (r#"{"kind": "report", "runnerName": "w", "repo": "w", "workflowId": 9}"#, "repo"),
            (
                r#"{"kind": "report", "runnerName": "w", "repo": "a/w", "workflowId": 0}"#,
                "workflowId",
            ),
            (r#"{"runnerName": "w", "repo": "a/w", "workflowId": 9, "jobId": 0}"#, "jobId"),
            (r#"{"runnerName": "w", "repo": "a/w", "workflowId": "9"}"#, "not a report"),
        ] {
            let why = record(body).report().unwrap_err();
            assert!(why.contains(says), "{body}: {why}");
        }
    }

    #[test]
    fn reports_of_other_systems_are_understood() {
        let body =
            r#"{"kind":"report","runnerName":"w-0a1b","repo":"acme/w","workflowId":9,"jobId":7}"#;
        assert_eq!(record(body).report().unwrap().job_id, Some(JobId(7)));
        let line = r#"{"kind":"report","runnerName":"w-0a1b","repo":"acme/w","workflowId":9}"#;
        assert_eq!(record(line).report().unwrap().job_id, None);
    }

    proptest! {
        #[test]
        fn no_body_makes_reading_panic(body in ".{0,200}") {
            let _ = record(&body).report();
        }
    }
}
