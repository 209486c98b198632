//! The `Executions` port: Step Functions' rules on names.

use std::time::Duration;

use ostler_core::error::{Error, Result};
use ostler_core::job::RunnerInput;
use ostler_core::ports::{self, Executions, Start};
use ostler_core::time::Timestamp;
use rand::Rng;
use serde::Deserialize;
use serde_json::Value;

use super::World;

/// Longest name of an execution (API, StartExecution).
const LONGEST_NAME: usize = 80;

/// What StartExecution answers for a name that was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedName {
    /// The first start's date while that execution runs and has the same input, else
    /// `ExecutionAlreadyExists` (API, StartExecution, standard workflows).
    Real,
    /// `ExecutionAlreadyExists` always (getmoto/moto#9394).
    AlwaysError,
    /// The first start's date always, closed or not (getmoto/moto#9397).
    AlwaysIdempotent,
}

/// State of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Goes on.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended by a Fail state or an error that nothing caught.
    Failed,
    /// Ended by someone.
    Aborted,
}

/// An execution.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Its name.
    pub name: String,
    /// Its input.
    pub input: Value,
    /// When it was started.
    pub started: Timestamp,
    /// Its state.
    pub status: Status,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What it carries (`$`).
    pub data: Value,
    /// The state that it is in.
    pub at: String,
    /// Names of the states entered, in order.
    pub entered: Vec<String>,
    /// How often a task was tried again.
    pub retries: u32,
    /// Tries of the present task, by retrier.
    pub(crate) tried: Vec<u64>,
    /// Events in its history.
    pub(crate) events: usize,
    /// Error and cause of one that failed.
    pub failure: Option<(String, String)>,
}

impl Execution {
    /// One that begins now, by whomever it was started.
    pub fn begun(name: &str, input: Value, now: Timestamp) -> Self {
        Self {
            name: name.into(),
            data: input.clone(),
            input,
            started: now,
            status: Status::Running,
            ended: None,
            at: String::new(),
            entered: Vec::new(),
            retries: 0,
            tried: Vec::new(),
            failure: None,
            events: 0,
        }
    }

    /// State transitions as they are billed: states entered, and tries again.
    pub fn transitions(&self) -> usize {
        self.entered.len() + usize::try_from(self.retries).unwrap_or(usize::MAX)
    }

    /// Why its last step ended or delayed it.
    pub fn reason(&self) -> Option<&str> {
        self.data.pointer("/run/state/reason").and_then(Value::as_str)
    }

    /// The job that it is for, if any.
    pub fn job(&self) -> Option<u64> {
        self.input.get("jobId").and_then(Value::as_u64)
    }

    /// Whether it runs, as a look-up that knows changes up to `known` sees it.
    fn running(&self, known: Timestamp) -> bool {
        self.ended.is_none_or(|ended| ended > known)
    }
}

impl Executions for World {
    async fn start(&self, name: &str, input: &RunnerInput) -> Result<Start> {
        self.ask("Executions.start", |state| {
            let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(valid) {
                return Err(Error::Permanent(format!("InvalidName: '{name}'")));
            }
            let input = serde_json::to_value(input)
                .map_err(|error| Error::Permanent(format!("the input: {error}")))?;
            if let Some(found) = state.executions.get(name) {
                let same = found.status == Status::Running && found.input == input;
                return Ok(match state.repeated_name {
                    RepeatedName::Real if same => Start::Accepted { started: found.started },
                    RepeatedName::AlwaysIdempotent => Start::Accepted { started: found.started },
                    RepeatedName::Real | RepeatedName::AlwaysError => Start::Exists,
                });
            }
            let started = state.now;
            state.begun.push_back(name.into());
            state.executions.insert(name.into(), Execution::begun(name, input, started));
            Ok(Start::Accepted { started })
        })
        .await
    }

    async fn describe(&self, name: &str) -> Result<Option<ports::Execution>> {
        self.ask("Executions.describe", |state| {
            let lag = state.describe_lag;
            let lag = if lag.most.is_zero() {
                Duration::ZERO
            } else {
                state.rng.random_range(lag.least..=lag.most)
            };
            let known = state.now - lag;
            Ok(state.executions.get(name).filter(|found| found.started <= known).map(|found| {
                ports::Execution {
                    running: found.running(known),
                    started: found.started,
                    input: RunnerInput::deserialize(&found.input).ok(),
                }
            }))
        })
        .await
    }
}
