//! Jobs, and the input with which a runner is started for one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::labels::Labels;
use crate::time::Timestamp;

/// A GitHub `workflow_job` id. They are 64-bit; -1 stands for "no job in particular" (a warm runner).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A repository as seen through an installation of the App.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    /// Login of the user or organisation.
    pub owner: String,
    /// Name without the owner.
    pub name: String,
    /// The App's installation there; `None` where the event did not say (it is looked up when needed).
    pub installation: Option<i64>,
}

/// Owner and name of `owner/name`; `None` if GitHub can have no such repository. Owners are up to 39 of
/// letters, digits and `-`, with `_` in managed accounts; names up to 100 of those and `.`.
pub fn split_full_name(text: &str) -> Option<(&str, &str)> {
    let part = |part: &str, also: &[u8]| {
        (1..=100).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || also.contains(&byte))
    };
    let (owner, name) = text.split_once('/')?;
    let fits = part(owner, b"-_") && part(name, b"-_.") && name != "." && name != "..";
    fits.then_some((owner, name))
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// The input of an execution: a public contract. Every key is always written; inputs that other systems
/// wrote, without the last ones, are understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunnerInput {
    /// Login of the repository's owner.
    pub owner: String,
    /// Name of the repository.
    pub repo: String,
    /// The job that the runner is started for; -1 for a warm runner.
    #[serde(default = "no_job", deserialize_with = "id_or_none")]
    pub job_id: i64,
    /// The job's page at GitHub.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub job_url: String,
    /// The App's installation; -1 where unknown.
    #[serde(default = "no_job", deserialize_with = "id_or_none")]
    pub installation_id: i64,
    /// What the job asks for, comma-joined.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub job_labels: String,
    /// The tier's name.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub provider: String,
    /// What the runner registers, comma-joined.
    #[serde(default, deserialize_with = "text_or_empty")]
    pub labels: String,
    /// Idle time after which the runner is ended, in seconds.
    #[serde(default)]
    pub max_idle_seconds: u64,
    /// The job's `created_at` at GitHub, so that equal deliveries make equal inputs. Absent in inputs of
    /// other systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<String>,
}

impl RunnerInput {
    /// The job that the runner is started for; `None` for a warm one.
    pub fn job(&self) -> Option<JobId> {
        (self.job_id > 0).then_some(JobId(self.job_id))
    }

    /// Where the job lives.
    pub fn repository(&self) -> Repository {
        Repository {
            owner: self.owner.clone(),
            name: self.repo.clone(),
            installation: (self.installation_id > 0).then_some(self.installation_id),
        }
    }

    /// What the job asks for.
    pub fn wanted(&self) -> Labels {
        Labels::from_joined(&self.job_labels)
    }

    /// What the runner registers.
    pub fn registered(&self) -> Labels {
        Labels::from_joined(&self.labels)
    }

    /// Whether a runner started with this input can run a job that asks for `wanted`. Inputs of other
    /// systems do not list `self-hosted` though their runners have it.
    pub fn covers(&self, wanted: &Labels) -> bool {
        let own = self.registered();
        if self.queued_at.is_some() { own.cover(wanted) } else { own.cover_foreign(wanted) }
    }

    /// The id of the run that the job belongs to, by the address of the job's page
    /// (`…/actions/runs/<run>/job/<job>`); `None` where that does not tell.
    pub fn run(&self) -> Option<&str> {
        let mut parts = self.job_url.rsplit('/').skip(2);
        let run = parts.next()?;
        (parts.next() == Some("runs")).then_some(run)
    }

    /// When GitHub queued the job, where it is known.
    pub fn queued(&self) -> Option<Timestamp> {
        self.queued_at.as_deref().and_then(Timestamp::parse)
    }
}

const fn no_job() -> i64 {
    -1
}

fn id_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    let id = value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    Ok(id.filter(|id| *id > 0).unwrap_or(-1))
}

fn text_or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_input_is_the_public_contract() {
        let input = RunnerInput {
            owner: "acme".into(),
            repo: "widgets".into(),
            job_id: 42,
            job_url: "https://github.com/acme/widgets/actions/runs/1/job/42".into(),
            installation_id: -1,
            job_labels: "self-hosted,linux".into(),
            provider: "linux-x64".into(),
            labels: "self-hosted,linux,x64".into(),
            max_idle_seconds: 300,
            queued_at: Some("2026-11-30T12:00:00Z".into()),
        };
        assert_eq!(
            serde_json::to_value(&input).unwrap(),
            json!({"owner": "acme", "repo": "widgets", "jobId": 42,
                "jobUrl": "https://github.com/acme/widgets/actions/runs/1/job/42", "installationId": -1,
                "jobLabels": "self-hosted,linux", "provider": "linux-x64",
                "labels": "self-hosted,linux,x64", "maxIdleSeconds": 300,
                "queuedAt": "2026-11-30T12:00:00Z"})
        );
        assert!(input.covers(&Labels::new(["X64"])));
        assert!(!input.covers(&Labels::new(["gpu"])));
        assert_eq!(input.queued(), Timestamp::parse("2026-11-30T12:00:00Z"));
        assert_eq!(input.run(), Some("1"));
        for url in
            ["", "https://github.com/acme/widgets/runs/42", "x/actions/runs/", "x/actions/runs/1"]
        {
            assert_eq!(RunnerInput { job_url: url.into(), ..input.clone() }.run(), None, "{url}");
        }
    }

    #[test]
    fn inputs_of_other_systems_are_understood() {
        let input: RunnerInput = serde_json::from_value(json!({"owner": "acme", "repo": "widgets",
            "jobId": 42, "jobUrl": null, "installationId": null, "jobLabels": "gpu", "provider": "p",
            "labels": "gpu", "maxIdleSeconds": 300}))
        .unwrap();
        assert_eq!(input.installation_id, -1);
        assert!(!input.covers(&Labels::new(["self-hosted", "arm64"])));
        assert_eq!(input.repository().installation, None);
        assert!(input.covers(&Labels::new(["self-hosted", "gpu"])));
        assert_eq!(input.queued(), None);
    }

    #[test]
    fn st_13_job_ids_zero_and_minus_one_are_no_job() {
        for id in [0, -1] {
            let input: RunnerInput =
                serde_json::from_value(json!({"owner": "a", "repo": "w", "jobId": id})).unwrap();
            assert_eq!(input.job(), None);
        }
        for id in [json!({}), json!({"jobId": 0, "installationId": 0}), json!({"jobId": "-7"})] {
            let mut given = json!({"owner": "a", "repo": "w"});
            given.as_object_mut().unwrap().extend(id.as_object().unwrap().clone());
            let input: RunnerInput = serde_json::from_value(given).unwrap();
            assert_eq!((input.job_id, input.installation_id), (-1, -1), "{id}");
            assert_eq!(input.job_url, "");
            let zero = RunnerInput { installation_id: 0, ..input };
            assert_eq!(zero.repository().installation, None);
        }
    }

    #[test]
    fn a_repository_is_named_by_what_github_allows() {
        let long = "x".repeat(100);
        for (owner, name) in [
            ("acme", "widgets"),
            ("a-b_c", "w.x-y_z"),
            (&long, &long),
            ("a", "..."),
            ("a", ".github"),
        ] {
            let text = format!("{owner}/{name}");
            assert_eq!(split_full_name(&text), Some((owner, name)));
            let repository =
                Repository { owner: owner.into(), name: name.into(), installation: None };
            assert_eq!(repository.to_string(), text);
        }
        let longer = "x".repeat(101);
        let parts = ["", "a b", "é", "a/b", &longer];
        let wrong = parts.iter().flat_map(|part| [format!("{part}/w"), format!("a/{part}")]);
        for text in wrong.chain(["a/.", "a/..", "a.b/w", "a", ""].map(str::to_owned)) {
            assert_eq!(split_full_name(&text), None, "{text}");
        }
    }
}
