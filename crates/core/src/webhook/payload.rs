//! The `workflow_job` payload, read field by field: a field that is missing, null or of another type than
//! documented is absent, and nothing else is lost by it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::job::{JobId, Repository, RunnerInput};
use crate::labels::{Labels, MAX_LABEL, MAX_LABELS};
use crate::names::is_plausible;
use crate::time::Timestamp;

/// Longest address and longest time that are taken over, in bytes: they become part of an execution's input, whose
/// size is limited.
const MAX_URL: usize = 1000;
const MAX_TIME: usize = 40;

/// Name of the runner group of GitHub's own machines.
const HOSTED_GROUP: &str = "GitHub Actions";

/// The parts of the payload that are used.
#[derive(Clone, Debug)]
pub struct Payload {
    /// `queued`, `in_progress`, `completed`, `waiting`, or one that does not exist yet.
    pub action: String,
    /// The job.
    pub id: JobId,
    /// Its workflow run.
    pub run: Option<i64>,
    /// Its page at GitHub.
    pub url: String,
    /// What it asks for.
    pub labels: Labels,
    /// When it was created, as GitHub wrote it.
    pub created: String,
    /// When a runner began with it.
    pub started: Option<Timestamp>,
    /// How it ended.
    pub conclusion: Option<String>,
    /// The runner that runs it; 0, "" and null are none.
    pub runner: Option<String>,
    /// Whether that is one of GitHub's own.
    pub hosted: bool,
    /// Its repository.
    pub repository: Repository,
    /// Whether anyone can see the repository.
    pub public: bool,
    /// The deployment that the job belongs to, where it has an environment.
    pub deployment: Option<i64>,
    /// The whole payload, for the operator's selector.
    pub raw: Arc<Value>,
}

impl Payload {
    /// Reads a payload. The error says what is missing, and nothing of what was sent.
    pub fn read(value: &Value) -> Result<Self, &'static str> {
        let job =
            value.get("workflow_job").filter(|job| job.is_object()).ok_or("no workflow_job")?;
        let repository = value.get("repository").ok_or("no repository")?;
        let id = number(job, "id").ok_or("no workflow_job.id")?;
        let full_name = text(repository, "full_name").and_then(|full| full.split_once('/'));
        let owner = repository
            .get("owner")
            .and_then(|owner| text(owner, "login"))
            .or(full_name.map(|(owner, _)| owner));
        let name = text(repository, "name").or(full_name.map(|(_, name)| name));
        let (Some(owner), Some(name)) = (owner, name) else { return Err("no repository name") };
        if !is_plausible_owner(owner) || !is_plausible_repository(name) {
            return Err("a repository name that GitHub does not allow");
        }
        let labels: Vec<&str> = job
            .get("labels")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        // Not cut: a part of them could match where all together do not.
        if labels.len() > MAX_LABELS || labels.iter().any(|label| label.len() > MAX_LABEL) {
            return Err("more or longer labels than a runner can have");
        }
        let group = text(job, "runner_group_name");
        Ok(Self {
            action: text(value, "action").unwrap_or_default().to_owned(),
            id: JobId(id),
            run: number(job, "run_id"),
            url: short(job, "html_url", MAX_URL).or(short(job, "url", MAX_URL)).unwrap_or_default(),
            labels: Labels::new(labels),
            created: short(job, "created_at", MAX_TIME).unwrap_or_default(),
            started: text(job, "started_at").and_then(Timestamp::parse),
            conclusion: text(job, "conclusion").map(str::to_owned),
            runner: text(job, "runner_name").map(str::to_owned),
            hosted: group.is_some_and(|group| group.eq_ignore_ascii_case(HOSTED_GROUP)),
            repository: Repository {
                owner: owner.to_owned(),
                name: name.to_owned(),
                installation: value.get("installation").and_then(|of| number(of, "id")),
            },
            public: repository.get("private").and_then(Value::as_bool) == Some(false)
                || text(repository, "visibility") == Some("public"),
            deployment: value.get("deployment").and_then(|of| number(of, "id")),
            raw: Arc::default(),
        })
    }

    /// The runner's name, if it is one that a runner of ours may have.
    pub fn plausible_runner(&self) -> Option<&str> {
        self.runner.as_deref().filter(|name| !self.hosted && is_plausible(name))
    }

    /// How long it waited from its creation to its start, by GitHub's own times; `None` before it starts.
    pub fn waited(&self) -> Option<Duration> {
        Some(self.started?.since(Timestamp::parse(&self.created)?))
    }

    /// The input of the job's execution on a tier.
    pub fn input(&self, provider: &str, labels: &Labels, max_idle_seconds: u64) -> RunnerInput {
        RunnerInput {
            owner: self.repository.owner.clone(),
            repo: self.repository.name.clone(),
            job_id: self.id.0,
            job_url: self.url.clone(),
            installation_id: self.repository.installation.unwrap_or(-1),
            job_labels: self.labels.to_string(),
            provider: provider.to_owned(),
            labels: labels.to_string(),
            max_idle_seconds,
            queued_at: Some(self.created.clone()),
        }
    }
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of.get(key).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty())
}

fn short(of: &Value, key: &str, most: usize) -> Option<String> {
    text(of, key).filter(|text| text.len() <= most).map(str::to_owned)
}

fn number(of: &Value, key: &str) -> Option<i64> {
    of.get(key).and_then(Value::as_i64).filter(|number| *number > 0)
}

/// Logins: alphanumeric, hyphens, and underscores in enterprise-managed accounts.
fn is_plausible_owner(owner: &str) -> bool {
    owner.len() <= 100 && owner.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Repositories: at most 100 of `[A-Za-z0-9._-]`.
fn is_plausible_repository(name: &str) -> bool {
    name.len() <= 100
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The text of a form-encoded field, as webhooks made by hand send it (`payload=%7B…`).
pub fn form_field(body: &[u8], field: &str) -> Option<Vec<u8>> {
    body.split(|byte| *byte == b'&').find_map(|pair| {
        let value = pair.strip_prefix(field.as_bytes())?.strip_prefix(b"=")?;
        let mut bytes = Vec::with_capacity(value.len());
        let mut rest = value.iter();
        while let Some(&byte) = rest.next() {
            bytes.push(match byte {
                b'+' => b' ',
                b'%' => {
                    let digits = [*rest.next()?, *rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            });
        }
        Some(bytes)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn minimal() -> Value {
        json!({"action": "queued", "workflow_job": {"id": 7, "labels": ["self-hosted"]},
            "repository": {"name": "widgets", "owner": {"login": "acme"}}})
    }

    #[test]
    fn wi_01_wi_02_empty_runner_fields_are_no_runner() {
        for (id, name) in [(json!(0), json!("")), (json!(null), json!(null)), (json!(1), json!(5))]
        {
            let mut payload = minimal();
            payload["workflow_job"]["runner_id"] = id;
            payload["workflow_job"]["runner_name"] = name.clone();
            payload["workflow_job"]["runner_group_name"] = name;
            let read = Payload::read(&payload).unwrap();
            assert_eq!((read.runner, read.hosted), (None, false));
        }
    }

    #[test]
    fn wi_03_a_null_job_is_told_of() {
        let payload = json!({"action": "queued", "workflow_job": null, "repository": {}});
        assert_eq!(Payload::read(&payload).unwrap_err(), "no workflow_job");
        assert!(Payload::read(&json!([])).is_err() && Payload::read(&json!(null)).is_err());
    }

    #[test]
    fn wi_06_every_key_is_written_without_an_installation() {
        let input = Payload::read(&minimal()).unwrap().input("t", &Labels::new(["a"]), 300);
        let value = serde_json::to_value(input).unwrap();
        assert_eq!(value["installationId"], -1);
        assert_eq!(value["queuedAt"], "");
        assert_eq!(value.as_object().unwrap().len(), 10);
    }

    #[test]
    fn how_long_a_job_waited_is_told_by_githubs_own_times_once_it_began() {
        let mut payload = minimal();
        assert_eq!(Payload::read(&payload).unwrap().waited(), None);
        payload["workflow_job"]["created_at"] = json!("2026-11-30T12:00:00Z");
        assert_eq!(Payload::read(&payload).unwrap().waited(), None);
        payload["workflow_job"]["started_at"] = json!("2026-11-30T12:01:05Z");
        assert_eq!(Payload::read(&payload).unwrap().waited(), Some(Duration::from_secs(65)));
        // GitHub has been seen to start jobs before it creates them.
        payload["workflow_job"]["started_at"] = json!("2026-11-30T11:59:59Z");
        assert_eq!(Payload::read(&payload).unwrap().waited(), Some(Duration::ZERO));
        payload["workflow_job"]["started_at"] = json!(7);
        assert_eq!(Payload::read(&payload).unwrap().waited(), None);
    }

    #[test]
    fn wi_26_hosted_runners_are_not_ours() {
        let mut payload = minimal();
        payload["workflow_job"]["runner_name"] = json!("GitHub Actions 6");
        payload["workflow_job"]["runner_group_name"] = json!("GitHub Actions");
        assert_eq!(Payload::read(&payload).unwrap().plausible_runner(), None);
        payload["workflow_job"]["runner_group_name"] = json!("Default");
        assert_eq!(Payload::read(&payload).unwrap().plausible_runner(), None, "blanks");
    }

    #[test]
    fn untrusted_text_names_nothing() {
        for name in ["a/b", "..", "a b", "é", &"x".repeat(101)] {
            let mut payload = minimal();
            payload["repository"]["name"] = json!(name);
            assert!(Payload::read(&payload).is_err(), "{name}");
        }
    }

    #[test]
    fn an_owner_is_a_login_that_github_allows() {
        let long = "x".repeat(100);
        let read = |owner: &str| {
            let mut payload = minimal();
            payload["repository"]["owner"]["login"] = json!(owner);
            Payload::read(&payload)
        };
        for owner in ["acme", "a-b_C9", &long] {
            assert_eq!(read(owner).unwrap().repository.owner, owner);
        }
        for owner in ["a b", "a.b", "é", &format!("{long}x")] {
            assert!(read(owner).is_err(), "{owner}");
        }
    }

    #[test]
    fn a_repository_is_public_if_either_field_says_so() {
        let public = |private: Value, visibility: Value| {
            let mut payload = minimal();
            payload["repository"]["private"] = private;
            payload["repository"]["visibility"] = visibility;
            Payload::read(&payload).unwrap().public
        };
        assert!(public(json!(false), json!(null)) && public(json!(null), json!("public")));
        assert!(public(json!(true), json!("public")) && public(json!(false), json!("private")));
        for visibility in [json!(null), json!("private"), json!("internal")] {
            assert!(!public(json!(true), visibility.clone()), "{visibility}");
            assert!(!public(json!(null), visibility.clone()), "{visibility}");
        }
    }

    #[test]
    fn what_is_too_long_for_an_execution_is_left_out_or_told_of() {
        let mut payload = minimal();
        payload["workflow_job"]["html_url"] = json!("u".repeat(300_000));
        payload["workflow_job"]["created_at"] = json!("t".repeat(300_000));
        let read = Payload::read(&payload).unwrap();
        assert_eq!((read.url.as_str(), read.created.as_str()), ("", ""));
        for labels in [json!(vec!["self-hosted"; 200_000]), json!(["x".repeat(257)])] {
            payload["workflow_job"]["labels"] = labels;
            assert!(Payload::read(&payload).unwrap_err().contains("labels"));
        }
        payload["workflow_job"]["labels"] = json!(vec!["x".repeat(256); 100]);
        assert_eq!(Payload::read(&payload).unwrap().labels.len(), 1);
    }

    #[test]
    fn wi_07_form_fields_are_decoded() {
        let body = b"payload=%7B%22a%22%3A%22b+c%26d%22%7D&other=1";
        assert_eq!(form_field(body, "payload").as_deref(), Some(&br#"{"a":"b c&d"}"#[..]));
        for bad in [&b"payload=%7"[..], b"payload=%zz", b"other=1", b"", b"payload"] {
            assert_eq!(form_field(bad, "payload"), None);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z_]{1,10}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    const FIELDS: [&str; 12] = [
        "id",
        "run_id",
        "html_url",
        "labels",
        "created_at",
        "conclusion",
        "runner_id",
        "runner_name",
        "runner_group_name",
        "status",
        "steps",
        "new_field",
    ];

    proptest! {
        #[test]
        fn wi_15_no_field_of_any_type_costs_the_event(
            field in 0..FIELDS.len(), value in any_json(), action in any_json(),
            installation in any_json(), deployment in any_json(),
        ) {
            let mut payload = minimal();
            payload["action"] = action;
            payload["installation"] = installation;
            payload["deployment"] = deployment;
            if FIELDS[field] != "id" {
                payload["workflow_job"][FIELDS[field]] = value;
            }
            let read = Payload::read(&payload).unwrap();
            prop_assert_eq!(read.id, JobId(7));
        }

        #[test]
        fn any_json_is_read_without_panic(value in any_json()) {
            let _ = Payload::read(&value);
        }
    }
}
