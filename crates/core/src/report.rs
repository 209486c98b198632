//! Reports: which runner took which job. The message of the report queue is a public contract.

use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// What the groups of lines begin with. The rest is the runner's name, which has no `/`.
pub const LINE_GROUP: &str = "log/";

/// A report in the queue. Only the webhook knows the job and its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", rename = "report")]
pub struct Report {
    /// The runner that took a job.
    pub runner_name: String,
    /// `owner/name` of the job's repository.
    pub repo: String,
    /// The workflow run.
    pub workflow_id: i64,
    /// The job, where GitHub itself said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// What the job asked for, comma-joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_labels: Option<String>,
}

impl Report {
    /// The FIFO message group: reports of one runner are judged in order.
    pub fn group(&self) -> String {
        match self.job_id {
            Some(_) => self.runner_name.clone(),
            None => format!("{LINE_GROUP}{}", self.runner_name),
        }
    }

    /// The FIFO deduplication id. GitHub's signed word and a line that any job could forge have ids of
    /// their own, so that neither displaces the other.
    pub fn deduplication_id(&self) -> String {
        match self.job_id {
            Some(job) => format!("{}/{job}", self.runner_name),
            None => format!("{LINE_GROUP}{}", self.runner_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_message_is_the_public_contract() {
        let report = Report {
            runner_name: "widgets-7-abc".into(),
            repo: "acme/widgets".into(),
            workflow_id: 9,
            job_id: Some(JobId(7)),
            job_labels: Some("self-hosted,linux".into()),
        };
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            json!({"kind": "report", "runnerName": "widgets-7-abc", "repo": "acme/widgets",
                "workflowId": 9, "jobId": 7, "jobLabels": "self-hosted,linux"})
        );
        assert_eq!(report.group(), "widgets-7-abc");
        assert_eq!(report.deduplication_id(), "widgets-7-abc/7");
        let line = Report { job_id: None, job_labels: None, ..report };
        assert_eq!(
            serde_json::to_value(&line).unwrap(),
            json!({"kind": "report", "runnerName": "widgets-7-abc", "repo": "acme/widgets",
                "workflowId": 9})
        );
        assert_eq!(
            (line.group(), line.deduplication_id()),
            ("log/widgets-7-abc".to_owned(), "log/widgets-7-abc".to_owned())
        );
    }
}
