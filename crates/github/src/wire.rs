//! GitHub's answers, as little of them as is used, and every field optional: null, missing and new values
//! are all met in practice, and one odd job must not cost a page.

use std::collections::BTreeMap;

use ostler_core::janitor::{Listed, MAX_SAFE_INTEGER, Registration};
use ostler_core::labels::Labels;
use ostler_core::ports::{ForgeJob, JobStatus, Registered};
use ostler_core::reconciler::Delivered;
use ostler_core::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// An error's body.
#[derive(Debug, Default, Deserialize)]
pub struct Trouble {
    pub message: Option<String>,
    pub errors: Option<Value>,
}

/// `POST /app/installations/{id}/access_tokens`.
#[derive(Deserialize)]
pub struct TokenAnswer {
    pub token: Option<String>,
    pub expires_at: Option<String>,
}

/// `GET /repos/{owner}/{repo}/installation`, `/orgs/…`, `/users/…`.
#[derive(Debug, Deserialize)]
pub struct Installation {
    pub id: Option<i64>,
    pub account: Option<Account>,
}

/// `GET /users/{owner}`.
#[derive(Debug, Deserialize)]
pub struct Account {
    pub login: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

/// `POST /app-manifests/{code}/conversions`. No debug form: it holds secrets.
#[derive(Deserialize)]
pub struct Conversion {
    pub id: Option<u64>,
    pub slug: Option<String>,
    pub name: Option<String>,
    pub owner: Option<Account>,
    pub html_url: Option<String>,
    pub pem: Option<String>,
    pub webhook_secret: Option<String>,
    #[serde(default)]
    pub permissions: BTreeMap<String, String>,
    #[serde(default)]
    pub events: Vec<String>,
}

/// `GET …/actions/runner-groups`.
#[derive(Debug, Deserialize)]
pub struct Groups {
    pub total_count: Option<u64>,
    #[serde(default)]
    pub runner_groups: Vec<Group>,
}

/// A runner group.
#[derive(Debug, Deserialize)]
pub struct Group {
    pub id: Option<i64>,
    pub name: Option<String>,
}

/// `POST …/generate-jitconfig`. No debug form: it holds a secret.
#[derive(Deserialize)]
pub struct JitAnswer {
    pub runner: Option<Runner>,
    pub encoded_jit_config: Option<String>,
}

/// `GET …/actions/runners`.
#[derive(Debug, Deserialize)]
pub struct Runners {
    pub total_count: Option<u64>,
    #[serde(default)]
    pub runners: Vec<Runner>,
}

/// The same for the janitor: the list has to be there, and an entry that can't be read costs only itself.
#[derive(Debug, Deserialize)]
pub struct RunnerPage {
    pub runners: Vec<Value>,
}

impl RunnerPage {
    /// As the janitor sees it.
    pub fn listed(self) -> Listed {
        let entries = self.runners.len();
        let read = |value| serde_json::from_value::<Runner>(value).ok()?.registration();
        Listed { registrations: self.runners.into_iter().filter_map(read).collect(), entries }
    }
}

/// A runner.
#[derive(Debug, Deserialize)]
pub struct Runner {
    pub id: Option<i64>,
    pub name: Option<String>,
    pub status: Option<String>,
    pub busy: Option<bool>,
    pub runner_group_id: Option<i64>,
}

impl Runner {
    /// As the janitor sees it; `None` without an id that a message can carry. It has to be said in so many words that the runner is
    /// offline and not busy: whatever else GitHub may come to say there, it is left alone.
    pub fn registration(self) -> Option<Registration> {
        Some(Registration {
            id: self.id.filter(|id| (1..=MAX_SAFE_INTEGER).contains(id))?,
            name: self.name.unwrap_or_default(),
            offline: self.status.as_deref() == Some("offline"),
            busy: self.busy != Some(false),
            group: self.runner_group_id,
        })
    }

    /// As the domain sees it; `None` without an id. A runner of which it is not said whether it is busy
    /// counts as busy: it is left alone.
    pub fn registered(self) -> Option<Registered> {
        Some(Registered {
            id: self.id?,
            name: self.name.unwrap_or_default(),
            online: self.status.is_some_and(|status| status.eq_ignore_ascii_case("online")),
            busy: self.busy.unwrap_or(true),
        })
    }
}

/// `GET …/deployments/{id}/statuses`.
#[derive(Debug, Deserialize)]
pub struct DeploymentStatus {
    pub id: Option<i64>,
    pub state: Option<String>,
}

/// `GET …/actions/jobs/{id}`.
#[derive(Debug, Default, Deserialize)]
pub struct Job {
    pub status: Option<String>,
    pub completed_at: Option<String>,
    pub runner_id: Option<i64>,
    pub runner_name: Option<String>,
    pub labels: Option<Vec<Option<String>>>,
    pub created_at: Option<String>,
}

/// `GET …/actions/runs/{id}/jobs`.
#[derive(Debug, Deserialize)]
pub struct Jobs {
    pub total_count: Option<u64>,
    #[serde(default)]
    pub jobs: Vec<ListedJob>,
}

/// A job in a list.
#[derive(Debug, Deserialize)]
pub struct ListedJob {
    pub id: Option<i64>,
    #[serde(flatten)]
    pub job: Job,
}

/// `GET …/actions/runs`.
#[derive(Debug, Deserialize)]
pub struct Runs {
    pub total_count: Option<u64>,
    pub workflow_runs: Vec<Run>,
}

/// A run in a list.
#[derive(Debug, Deserialize)]
pub struct Run {
    pub id: Option<i64>,
    pub repository: Option<RunRepository>,
}

/// `GET …/actions/runs/{id}`.
#[derive(Debug, Deserialize)]
pub struct OneRun {
    pub run_attempt: Option<i64>,
    pub status: Option<String>,
    pub conclusion: Option<String>,
}

/// The repository of a run.
#[derive(Debug, Deserialize)]
pub struct RunRepository {
    pub private: Option<bool>,
}

/// `GET …/actions/runs/{id}/jobs`, each job as it is.
#[derive(Debug, Deserialize)]
pub struct RawJobs {
    pub total_count: Option<u64>,
    pub jobs: Vec<Value>,
}

/// An entry of `GET /app/hook/deliveries`. Ids are 64-bit.
#[derive(Debug, Deserialize)]
pub struct HookDelivery {
    pub id: Option<u64>,
    pub guid: Option<String>,
    pub delivered_at: Option<String>,
    pub redelivery: Option<bool>,
    pub status_code: Option<i64>,
    pub event: Option<String>,
}

impl HookDelivery {
    /// As the domain sees it; `None` without what it is known by.
    pub fn known(self) -> Option<Delivered> {
        Some(Delivered {
            id: self.id?,
            guid: self.guid.filter(|guid| (1..=64).contains(&guid.len()))?,
            at: self.delivered_at.as_deref().and_then(Timestamp::parse)?,
            ok: self.status_code.is_some_and(|code| (200..300).contains(&code)),
            again: self.redelivery.unwrap_or(false),
            of_job: self.event.as_deref() == Some("workflow_job"),
        })
    }
}

impl Job {
    /// As the domain sees it; `None` if the answer has no status.
    pub fn known(self) -> Option<ForgeJob> {
        let runner_name =
            self.runner_name.filter(|name| !name.is_empty() && self.runner_id != Some(0));
        let status = match self.status?.as_str() {
            "queued" => JobStatus::Queued,
            "in_progress" => JobStatus::InProgress,
            "completed" => JobStatus::Completed,
            "waiting" | "pending" | "requested" => JobStatus::Held,
            // A state that does not exist yet. The other fields say how far the job is; where they don't,
            // a surplus runner is less harm than a job that waits for ever.
            other => {
                tracing::warn!(status = other, "a job in a state that is not known");
                match (&self.completed_at, &runner_name) {
                    (Some(_), _) => JobStatus::Completed,
                    (None, Some(_)) => JobStatus::InProgress,
                    (None, None) => JobStatus::Queued,
                }
            }
        };
        Some(ForgeJob {
            status,
            runner_name,
            labels: Labels::new(self.labels.unwrap_or_default().into_iter().flatten()),
            created: self.created_at.as_deref().and_then(Timestamp::parse),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(value: Value) -> Option<ForgeJob> {
        serde_json::from_value::<Job>(value).unwrap().known()
    }

    #[test]
    fn every_state_of_a_job_is_understood_also_new_ones() {
        for (value, status) in [
            (json!({"status": "queued"}), JobStatus::Queued),
            (json!({"status": "waiting"}), JobStatus::Held),
            (json!({"status": "pending"}), JobStatus::Held),
            (json!({"status": "requested"}), JobStatus::Held),
            (json!({"status": "in_progress"}), JobStatus::InProgress),
            (json!({"status": "completed"}), JobStatus::Completed),
            (json!({"status": "new"}), JobStatus::Queued),
            (json!({"status": "new", "runner_name": "x", "runner_id": 5}), JobStatus::InProgress),
            (
                json!({"status": "new", "completed_at": "2026-11-30T12:00:00Z"}),
                JobStatus::Completed,
            ),
        ] {
            assert_eq!(job(value).unwrap().status, status);
        }
        assert!(job(json!({"status": null})).is_none() && job(json!({})).is_none());
    }

    #[test]
    fn wi_01_wi_02_empty_runner_fields_are_no_runner() {
        for (id, name, runner) in [
            (json!(0), json!(""), None),
            (json!(null), json!(null), None),
            (json!(0), json!("stale"), None),
            (json!(5_000_000_000_i64), json!("w-7-aa"), Some("w-7-aa")),
            (json!(null), json!("w-7-aa"), Some("w-7-aa")),
        ] {
            let job =
                job(json!({"status": "queued", "runner_id": id, "runner_name": name})).unwrap();
            assert_eq!(job.runner_name.as_deref(), runner);
        }
    }

    #[test]
    fn j31_only_an_explicit_offline_and_an_explicit_idle_count_for_the_janitor() {
        for (status, busy, dead) in [
            (json!("offline"), json!(false), true),
            (json!("offline"), json!(true), false),
            (json!("offline"), json!(null), false),
            (json!("online"), json!(false), false),
            (json!("idle"), json!(false), false),
            (json!("Offline"), json!(false), false),
            (json!(""), json!(false), false),
            (json!(null), json!(false), false),
        ] {
            let page = json!({"runners": [{"id": 1, "name": "x", "status": status, "busy": busy}]});
            let listed = serde_json::from_value::<RunnerPage>(page).unwrap().listed();
            let seen = &listed.registrations[0];
            assert_eq!(seen.offline && !seen.busy, dead, "{status} {busy}");
        }
        let bare = json!({"runners": [{"id": 1}]});
        let listed = serde_json::from_value::<RunnerPage>(bare).unwrap().listed();
        assert!(!listed.registrations[0].offline && listed.registrations[0].busy);
    }

    #[test]
    fn an_entry_that_cannot_be_read_counts_for_the_pages_length_and_costs_only_itself() {
        let page = json!({"total_count": "many", "runners": [{"id": "one"}, null, {"name": "no id"},
            {"id": 0}, {"id": -1}, {"id": 9_007_199_254_740_992_i64}, {"id": 1.5},
            {"id": 2, "name": "x", "runner_group_id": 7, "labels": 5}]});
        let listed = serde_json::from_value::<RunnerPage>(page).unwrap().listed();
        assert_eq!((listed.entries, listed.registrations.len()), (8, 1));
        assert_eq!(listed.registrations[0].group, Some(7));
        for none in [json!({}), json!({"runners": null}), json!({"runners": 7}), json!([])] {
            assert!(
                serde_json::from_value::<RunnerPage>(none).is_err(),
                "no list is no empty list"
            );
        }
    }

    #[test]
    fn cp_05_nulls_cost_nothing() {
        let job =
            job(json!({"status": "queued", "labels": [null, "Linux", ""], "created_at": null,
            "head_branch": null, "workflow_name": null}))
            .unwrap();
        assert_eq!((job.labels.to_string(), job.created), ("Linux".to_owned(), None));
        let runner: Runner = serde_json::from_value(json!({"id": 9_000_000_000_i64, "name": null,
            "status": "resting", "busy": null, "labels": null}))
        .unwrap();
        let expected =
            Registered { id: 9_000_000_000, name: String::new(), online: false, busy: true };
        assert_eq!(runner.registered(), Some(expected), "not said to be idle: left alone");
    }
}
