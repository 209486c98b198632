//! What invokes a step: the state machine, or EventBridge for an execution that ended otherwise than well.

use serde::Deserialize as _;
use serde_json::Value;
use tracing::warn;

use crate::account::Account;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::job::RunnerInput;
use crate::names::is_plausible;
use crate::runner::RunState;
use crate::time::Timestamp;

/// A step of a runner's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Record the job and buy a machine.
    Launch,
    /// Register the runner and hand its registration over.
    Register,
    /// See whether it lives, works or is idle.
    Check,
    /// Remove what is left and settle what the end owes.
    Cleanup,
}

/// How the execution came to its cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By its own decision.
    Regular,
    /// After an error that was not mended by repetition.
    Failed,
    /// From outside: the execution itself is over.
    Orphaned,
}

/// An invocation.
#[derive(Clone, Debug)]
pub struct StepEvent {
    /// Which step.
    pub step: Step,
    /// How cleanup was reached.
    pub outcome: Outcome,
    /// The runner's name, which is the execution's.
    pub runner: String,
    /// When the execution was started.
    pub started: Timestamp,
    /// When it ended, where that is known.
    pub ended: Option<Timestamp>,
    /// The execution's input.
    pub input: RunnerInput,
    /// What the last step remembered.
    pub state: RunState,
}

impl StepEvent {
    /// The account in which the runner's machine is or will be; `None` for the control plane's own. One that was
    /// launched stays where it is, whatever became of its tier. Of one that is not known to have been launched only
    /// the tier can tell.
    pub fn account<'a>(&'a self, settings: &'a Settings) -> Option<&'a Account> {
        if self.step != Step::Launch && self.state.instance.is_some() {
            return self.state.account.as_ref();
        }
        settings.tiers.get(&self.input.provider)?.account.as_ref()
    }

    /// Reads an invocation.
    pub fn read(event: &Value) -> Result<Self> {
        if event.get("detail-type").is_some() {
            return Self::ended_execution(event);
        }
        let step = match text(event, "step")? {
            "launch" => Step::Launch,
            "register" => Step::Register,
            "check" => Step::Check,
            "cleanup" => Step::Cleanup,
            other => {
                return Err(wrong(&format!(
                    "step '{}' is unknown; expected launch, register, check or cleanup",
                    other.escape_debug()
                )));
            }
        };
        let job = event.get("job").ok_or_else(|| wrong("it has no job"))?;
        let state = job.pointer("/run/state").unwrap_or(&Value::Null);
        let outcome = match event.get("outcome").and_then(Value::as_str) {
            Some("failed") => Outcome::Failed,
            _ => Outcome::Regular,
        };
        Ok(Self {
            step,
            outcome,
            runner: runner_name(text(event, "runnerName")?)?,
            started: Timestamp::parse(text(event, "startedAt")?)
                .ok_or_else(|| wrong("startedAt is not a time"))?,
            ended: None,
            input: read_input(job)?,
            state: read_state(step, state)?,
        })
    }

    /// "Step Functions Execution Status Change" (docs.aws.amazon.com, Step Functions with EventBridge):
    /// the input is JSON in a string, and dates are milliseconds.
    fn ended_execution(event: &Value) -> Result<Self> {
        let detail = event.get("detail").ok_or_else(|| wrong("the status change has no detail"))?;
        let date = |key: &str| detail.get(key).and_then(Value::as_i64).map(Timestamp::from_millis);
        let input: Value = detail
            .get("input")
            .and_then(Value::as_str)
            .and_then(|input| serde_json::from_str(input).ok())
            .ok_or_else(|| wrong("the ended execution's input is not JSON"))?;
        Ok(Self {
            step: Step::Cleanup,
            outcome: Outcome::Orphaned,
            runner: runner_name(text(detail, "name")?)?,
            started: date("startDate").unwrap_or_default(),
            ended: date("stopDate"),
            input: read_input(&input)?,
            state: RunState::default(),
        })
    }
}

/// What the last step remembered. Another version of the function may have written it: what is new in it is passed
/// over, what it lacks is as at the beginning. Cleanup goes without it rather than leave anything behind: instances
/// have tags, and registrations their names.
fn read_state(step: Step, state: &Value) -> Result<RunState> {
    match state {
        Value::Null => Ok(RunState::default()),
        state => match RunState::deserialize(state) {
            Ok(state) => Ok(state),
            Err(error) if step == Step::Cleanup => {
                warn!(%error, "what the last step remembered can't be read: cleaning up without it");
                Ok(RunState::default())
            }
            Err(error) => Err(wrong(&format!("run.state: {error}"))),
        },
    }
}

fn read_input(job: &Value) -> Result<RunnerInput> {
    RunnerInput::deserialize(job)
        .map_err(|error| wrong(&format!("the execution's input can't be read: {error}")))
}

fn runner_name(name: &str) -> Result<String> {
    if is_plausible(name) {
        return Ok(name.to_owned());
    }
    Err(wrong("its runner name is not 1 to 64 of A-Z a-z 0-9 . _ -"))
}

fn text<'a>(of: &'a Value, key: &str) -> Result<&'a str> {
    of.get(key).and_then(Value::as_str).ok_or_else(|| wrong(&format!("it has no {key}")))
}

fn wrong(what: &str) -> Error {
    Error::Permanent(format!("the orchestrator's event can't be used: {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Tiers;

    #[test]
    fn steps_are_read_as_the_state_machine_sends_them() {
        let event = json!({"step": "check", "runnerName": "widgets-7-abc",
            "startedAt": "2026-11-30T12:00:00.123Z",
            "job": {"owner": "acme", "repo": "widgets", "jobId": 7, "labels": "a", "queuedAt": "",
                "run": {"state": {"next": "wait", "waitSeconds": 60, "instance": "i-1", "checks": 2}}}});
        let read = StepEvent::read(&event).unwrap();
        assert_eq!((read.step, read.state.checks, read.input.job_id), (Step::Check, 2, 7));
        assert_eq!(read.state.instance.as_deref(), Some("i-1"));
    }

    #[test]
    fn cp_14_what_another_version_remembered_is_understood() {
        let read = |step: &str, state: Value| {
            let job =
                json!({"owner": "acme", "repo": "widgets", "jobId": 7, "run": {"state": state}});
            StepEvent::read(&json!({"step": step, "runnerName": "w-7-abc", "job": job,
                "startedAt": "2026-11-30T12:00:00Z"}))
        };
        let newer =
            json!({"next": "hibernate", "waitSeconds": 60, "instance": "i-1", "new": {"a": 1}});
        for state in [newer, json!({"instance": "i-1"})] {
            let read = read("check", state).unwrap();
            assert_eq!((read.state.instance.as_deref(), read.state.checks), (Some("i-1"), 0));
        }
        for odd in [json!({"instance": 5}), json!("state"), json!({"checks": -1})] {
            assert!(matches!(read("check", odd.clone()), Err(Error::Permanent(_))), "{odd}");
            assert_eq!(read("cleanup", odd).unwrap().state, RunState::default());
        }
    }

    #[test]
    fn ended_executions_are_read_as_eventbridge_sends_them() {
        let event = json!({"version": "0", "detail-type": "Step Functions Execution Status Change",
            "source": "aws.states", "detail": {"name": "widgets-7-abc", "status": "ABORTED",
                "startDate": 1_796_000_000_000_i64, "stopDate": 1_796_000_060_000_i64, "output": null,
                "input": "{\"owner\":\"acme\",\"repo\":\"widgets\",\"jobId\":7}"}});
        let read = StepEvent::read(&event).unwrap();
        assert_eq!((read.step, read.outcome), (Step::Cleanup, Outcome::Orphaned));
        assert_eq!(read.started.seconds(), 1_796_000_000);
        assert_eq!(read.ended, Some(Timestamp::from_millis(1_796_000_060_000)));
    }

    #[test]
    fn a_runner_is_looked_after_where_it_was_launched() {
        let account = |id: &str| {
            json!({"role_arn": "arn:aws:iam::444455556666:role/r", "external_id": id, "region": "eu-central-1",
                "subnets": ["subnet-1"], "template_on_demand": "lt-1:1", "template_spot": "lt-2:1",
                "handoff_table": "handoff", "runner_role_id": "AROA1"})
        };
        let settings = |account: Option<Value>| {
            let mut tier = json!({"name": "t", "architecture": "x64", "images": ["ami-1"],
                "instance_types": ["m7i.large"]});
            if let Some(account) = account {
                tier["account"] = account;
            }
            let tiers = Tiers::parse(&json!({"tiers": [tier]}).to_string());
            assert_eq!(tiers.problems, Vec::<String>::new());
            Settings { tiers, ..Settings::default() }
        };
        let event = |step: &str, state: Value| {
            StepEvent::read(&json!({"step": step, "runnerName": "widgets-7-abc",
                "startedAt": "2026-11-30T12:00:00Z", "job": {"owner": "acme", "repo": "widgets",
                "jobId": 7, "provider": "t", "run": {"state": state}}}))
            .unwrap()
        };
        let of = |event: &StepEvent, settings: &Settings| {
            event.account(settings).map(|account| account.external_id.clone())
        };
        let (here, there) = (settings(None), settings(Some(account("of-the-tier"))));
        let home = json!({"instance": "i-1"});
        let away = json!({"instance": "i-1", "account": account("of-the-launch")});
        for step in ["register", "check", "cleanup"] {
            assert_eq!(of(&event(step, away.clone()), &there).as_deref(), Some("of-the-launch"));
            assert_eq!(of(&event(step, away.clone()), &here).as_deref(), Some("of-the-launch"));
            assert_eq!(
                of(&event(step, home.clone()), &there),
                None,
                "{step}: it was launched at home"
            );
        }
        // Not launched yet, or launched by a step whose answer was lost.
        for step in ["launch", "cleanup"] {
            let event = event(step, json!({}));
            assert_eq!(of(&event, &there).as_deref(), Some("of-the-tier"), "{step}");
            assert_eq!(of(&event, &here), None, "{step}");
        }
        // A launch goes where the tier says now, also after one that came to nothing.
        assert_eq!(of(&event("launch", away), &there).as_deref(), Some("of-the-tier"));
        assert_eq!(of(&event("cleanup", json!({})), &Settings::default()), None);
    }

    #[test]
    fn what_can_not_be_read_is_permanent_and_says_why() {
        for (event, says) in [
            (json!({}), "no step"),
            (json!(null), "no step"),
            (json!({"step": "lunch"}), "'lunch'"),
            (
                json!({"step": "launch", "job": {}, "runnerName": "a b", "startedAt": "x"}),
                "runner name",
            ),
            (
                json!({"step": "launch", "job": {"owner": "a"}, "runnerName": "a",
                "startedAt": "2026-11-30T12:00:00Z"}),
                "repo",
            ),
            (json!({"detail-type": "x", "detail": {"name": "a", "input": "{"}}), "not JSON"),
        ] {
            let error = StepEvent::read(&event).unwrap_err();
            assert!(
                matches!(error, Error::Permanent(_)) && error.to_string().contains(says),
                "{error}"
            );
        }
    }
}
