//! An interpreter for the part of the Amazon States Language that `infra/orchestrator.asl.json` is written
//! in. What it does not know fails the execution, as a runtime error does in Step Functions: past every
//! Catch.
//!
//! Source: the States Language specification, and the Step Functions guide ("Handling errors").

use std::time::Duration;

use rand::Rng;
use serde_json::{Map, Value, json};

use crate::world::{Execution, Status};

/// The orchestrator's definition.
const ORCHESTRATOR: &str = include_str!("../../../../infra/orchestrator.asl.json");

/// A retrier that names no number tries this often (specification).
const DEFAULT_ATTEMPTS: u64 = 3;

/// Events that an execution's history can hold; one that needs more fails (Step Functions guide, "Quotas").
pub const MOST_EVENTS: usize = 25_000;

/// What an execution does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Calls the function with this.
    Invoke(Value),
    /// Goes on after this.
    Wait(Duration),
    /// Is over.
    Ended(Status),
}

/// A state machine.
pub struct Definition {
    start: String,
    states: Map<String, Value>,
}

/// An error that nothing catches: its name, and why.
struct Runtime(&'static str, String);

type Result<T> = std::result::Result<T, Runtime>;

impl Definition {
    /// The orchestrator's.
    pub fn orchestrator() -> Self {
        Self::parse(ORCHESTRATOR)
    }

    /// One from its text.
    pub fn parse(text: &str) -> Self {
        let definition: Value = serde_json::from_str(text).unwrap_or_default();
        Self {
            start: self::text(&definition, "StartAt").to_owned(),
            states: definition["States"].as_object().cloned().unwrap_or_default(),
        }
    }

    /// Begins an execution.
    pub fn begin(&self, execution: &mut Execution) -> Next {
        // Its start and its end.
        execution.events = 2;
        self.enter(execution, &self.start)
    }

    /// Goes on after a wait: of a Wait state, or of a task before it is tried again.
    pub fn resume(&self, execution: &mut Execution) -> Next {
        let Some(state) = self.states.get(&execution.at) else {
            return failed(execution, runtime("there is no such state"));
        };
        match text(state, "Type") {
            "Task" => match self.invoke(state, execution) {
                Ok(next) => next,
                Err(error) => failed(execution, error),
            },
            _ => self.enter(execution, text(state, "Next")),
        }
    }

    /// The function has answered.
    pub fn answered(&self, execution: &mut Execution, payload: Value) -> Next {
        let state = &self.states[&execution.at];
        let answer = json!({ "Payload": payload });
        let outcome = template(&state["ResultSelector"], execution, &answer)
            .and_then(|result| put(&mut execution.data, text(state, "ResultPath"), result));
        if let Err(error) = outcome {
            return failed(execution, error);
        }
        match state["End"] == json!(true) {
            true => Next::Ended(Status::Succeeded),
            false => self.enter(execution, text(state, "Next")),
        }
    }

    /// The function has failed: it is tried again, or the error is caught, or the execution fails.
    pub fn errored(
        &self,
        execution: &mut Execution,
        error: &str,
        cause: &str,
        rng: &mut impl Rng,
    ) -> Next {
        let state = &self.states[&execution.at];
        let retriers = state["Retry"].as_array().map(Vec::as_slice).unwrap_or_default();
        execution.tried.resize(retriers.len(), 0);
        if let Some(index) = retriers.iter().position(|retrier| catches(retrier, error)) {
            let (retrier, tried) = (&retriers[index], execution.tried[index]);
            if tried < retrier["MaxAttempts"].as_u64().unwrap_or(DEFAULT_ATTEMPTS) {
                execution.tried[index] += 1;
                execution.retries += 1;
                return Next::Wait(pause(retrier, tried, rng));
            }
        }
        let catchers = state["Catch"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(catcher) = catchers.iter().find(|catcher| catches(catcher, error)) else {
            execution.failure = Some((error.to_owned(), cause.to_owned()));
            return Next::Ended(Status::Failed);
        };
        let caught = json!({"Error": error, "Cause": cause});
        match put(&mut execution.data, text(catcher, "ResultPath"), caught) {
            Ok(()) => self.enter(execution, text(catcher, "Next")),
            Err(error) => failed(execution, error),
        }
    }

    fn enter(&self, execution: &mut Execution, name: &str) -> Next {
        match self.step_into(execution, name) {
            Ok(next) => next,
            Err(error) => failed(execution, error),
        }
    }

    fn invoke(&self, state: &Value, execution: &mut Execution) -> Result<Next> {
        // Each try is scheduled, started, and succeeds or fails.
        noted(execution, 3)?;
        template(&state["Parameters"]["Payload"], execution, &execution.data).map(Next::Invoke)
    }

    fn step_into(&self, execution: &mut Execution, name: &str) -> Result<Next> {
        let mut name = name;
        loop {
            let state = self.states.get(name).ok_or_else(|| runtime(format!("no state {name}")))?;
            execution.at = name.to_owned();
            execution.entered.push(name.to_owned());
            execution.tried.clear();
            noted(execution, 2)?;
            match text(state, "Type") {
                "Task" => return self.invoke(state, execution),
                "Choice" => name = choose(state, &execution.data)?,
                "Wait" => {
                    let path = text(state, "SecondsPath");
                    let seconds = find(&execution.data, path)?.as_u64();
                    let seconds = seconds.ok_or_else(|| runtime(format!("{path}: no number")))?;
                    return Ok(Next::Wait(Duration::from_secs(seconds)));
                }
                "Fail" => {
                    // The one intrinsic function that is used.
                    let cause = match text(state, "CausePath") {
                        "States.JsonToString($)" => execution.data.to_string(),
                        _ => text(state, "Cause").to_owned(),
                    };
                    execution.failure = Some((text(state, "Error").to_owned(), cause));
                    return Ok(Next::Ended(Status::Failed));
                }
                other => return Err(runtime(format!("states of type '{other}' are not known"))),
            }
        }
    }
}

fn runtime(why: impl Into<String>) -> Runtime {
    Runtime("States.Runtime", why.into())
}

/// Notes events in an execution's history.
fn noted(execution: &mut Execution, events: usize) -> Result<()> {
    execution.events += events;
    match execution.events > MOST_EVENTS {
        true => Err(runtime(format!("the history has reached {MOST_EVENTS} events"))),
        false => Ok(()),
    }
}

fn failed(execution: &mut Execution, Runtime(error, why): Runtime) -> Next {
    execution.failure = Some((error.to_owned(), format!("{}: {why}", execution.at)));
    Next::Ended(Status::Failed)
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

/// Whether a retrier or catcher is for that error. `States.ALL` leaves out what no repetition mends.
fn catches(rule: &Value, error: &str) -> bool {
    let names = rule["ErrorEquals"].as_array().map(Vec::as_slice).unwrap_or_default();
    names
        .iter()
        .filter_map(Value::as_str)
        .any(|name| name == error || name == "States.ALL" && error != "States.Runtime")
}

fn pause(retrier: &Value, tried: u64, rng: &mut impl Rng) -> Duration {
    let number = |key: &str, default: f64| retrier[key].as_f64().unwrap_or(default);
    let exponent = i32::try_from(tried).unwrap_or(i32::MAX);
    let longest = number("IntervalSeconds", 1.0) * number("BackoffRate", 2.0).powi(exponent);
    let longest = longest.min(number("MaxDelaySeconds", f64::MAX)).min(1e6);
    let jitter = if text(retrier, "JitterStrategy") == "FULL" { rng.random::<f64>() } else { 1.0 };
    Duration::from_secs_f64(longest * jitter)
}

/// The value at a reference path.
fn find<'a>(data: &'a Value, path: &str) -> Result<&'a Value> {
    let steps = path.strip_prefix('$').ok_or_else(|| runtime(format!("the path {path}")))?;
    steps
        .split('.')
        .filter(|step| !step.is_empty())
        .try_fold(data, |at, step| at.get(step))
        .ok_or_else(|| runtime(format!("nothing at {path}")))
}

/// Puts a result where its path says.
fn put(data: &mut Value, path: &str, result: Value) -> Result<()> {
    let key = path.strip_prefix("$.").filter(|key| !key.is_empty() && !key.contains('.'));
    match (key, data.as_object_mut()) {
        (Some(key), Some(fields)) => {
            fields.insert(key.into(), result);
            Ok(())
        }
        _ => Err(runtime(format!("the result path {path}"))),
    }
}

/// Fills a payload template.
fn template(template: &Value, execution: &Execution, data: &Value) -> Result<Value> {
    let Some(fields) = template.as_object() else { return Ok(template.clone()) };
    let mut filled = Map::new();
    for (key, value) in fields {
        let (key, value) = match (key.strip_suffix(".$"), value.as_str()) {
            (Some(key), Some("$$.Execution.Name")) => (key, json!(execution.name)),
            (Some(key), Some("$$.Execution.StartTime")) => {
                (key, json!(execution.started.to_string()))
            }
            (Some(key), Some(path)) => (key, find(data, path)?.clone()),
            _ => (key.as_str(), self::template(value, execution, data)?),
        };
        filled.insert(key.into(), value);
    }
    Ok(Value::Object(filled))
}

fn choose<'a>(state: &'a Value, data: &Value) -> Result<&'a str> {
    let rules = state["Choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    for rule in rules {
        if holds(rule, data)? {
            return Ok(text(rule, "Next"));
        }
    }
    let none = || Runtime("States.NoChoiceMatched", "no choice and no default".into());
    state["Default"].as_str().ok_or_else(none)
}

fn holds(rule: &Value, data: &Value) -> Result<bool> {
    if let Some(all) = rule["And"].as_array() {
        for part in all {
            if !holds(part, data)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let found = find(data, text(rule, "Variable"));
    if let Some(wanted) = rule["IsPresent"].as_bool() {
        return Ok(found.is_ok() == wanted);
    }
    let found = found?;
    if let Some(wanted) = rule["StringEquals"].as_str() {
        return Ok(found.as_str() == Some(wanted));
    }
    if let Some(wanted) = rule["IsNumeric"].as_bool() {
        return Ok(found.is_number() == wanted);
    }
    Err(runtime(format!("the rule {rule}")))
}

#[cfg(test)]
mod tests {
    use ostler_core::time::Timestamp;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn execution() -> Execution {
        let input = json!({"jobId": 7});
        Execution {
            name: "widgets-7".into(),
            data: input.clone(),
            input,
            started: Timestamp::from_seconds(0),
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

    #[test]
    fn the_orchestrator_is_played_as_it_is_written() {
        let machine = Definition::orchestrator();
        let mut run = execution();
        let Next::Invoke(payload) = machine.begin(&mut run) else { panic!("{:?}", run.at) };
        assert_eq!(
            payload,
            json!({"step": "launch", "runnerName": "widgets-7", "job": {"jobId": 7},
                "startedAt": "1970-01-01T00:00:00Z"})
        );
        let later = json!({"next": "later", "waitSeconds": 61});
        assert_eq!(machine.answered(&mut run, later), Next::Wait(Duration::from_secs(61)));
        let Next::Invoke(payload) = machine.resume(&mut run) else { panic!("{:?}", run.at) };
        assert_eq!(payload["job"]["run"]["state"]["waitSeconds"], 61);
        machine.answered(&mut run, json!({"next": "ended"}));
        assert_eq!(run.at, "Cleanup");
        assert_eq!(
            machine.answered(&mut run, json!({"next": "done"})),
            Next::Ended(Status::Succeeded)
        );
    }

    #[test]
    fn answers_that_nobody_expects_lead_to_the_cleanup() {
        for odd in [json!(null), json!({}), json!({"next": "later"}), json!({"next": 5})] {
            let machine = Definition::orchestrator();
            let mut run = execution();
            machine.begin(&mut run);
            machine.answered(&mut run, odd.clone());
            assert_eq!(run.at, "Abandon", "{odd}");
            assert_eq!(machine.answered(&mut run, json!({})), Next::Ended(Status::Failed));
        }
    }

    #[test]
    fn a_history_that_is_full_fails_the_execution_past_every_catch() {
        let machine = Definition::orchestrator();
        let mut run = execution();
        machine.begin(&mut run);
        let later = json!({"next": "later", "waitSeconds": 61});
        let mut rounds = 0;
        let status = loop {
            if let Next::Ended(status) = machine.answered(&mut run, later.clone()) {
                break status;
            }
            if let Next::Ended(status) = machine.resume(&mut run) {
                break status;
            }
            rounds += 1;
        };
        // Each round is nine events: a task with one try, a choice, and a wait.
        assert_eq!((status, rounds), (Status::Failed, (MOST_EVENTS - 2) / 9));
        assert_eq!(run.failure.unwrap().0, "States.Runtime");
    }

    #[test]
    fn a_pause_is_drawn_between_nothing_and_a_bound_that_doubles_up_to_its_longest() {
        let retrier = json!({"IntervalSeconds": 2, "BackoffRate": 2, "MaxDelaySeconds": 900,
            "JitterStrategy": "FULL"});
        let mut rng = StdRng::seed_from_u64(3);
        for (tried, bound) in [(0, 2), (1, 4), (5, 64), (9, 900), (200, 900)] {
            let pauses: Vec<Duration> =
                (0..200).map(|_| pause(&retrier, tried, &mut rng)).collect();
            let bound = Duration::from_secs(bound);
            assert!(pauses.iter().all(|pause| *pause <= bound), "{tried}");
            assert!(pauses.iter().any(|pause| *pause < bound / 10), "{tried}");
            assert!(pauses.iter().any(|pause| *pause > bound / 10 * 9), "{tried}");
        }
        let plain = json!({"IntervalSeconds": 3});
        assert_eq!(pause(&plain, 1, &mut rng), Duration::from_secs(6));
    }

    #[test]
    fn errors_are_retried_by_name_and_then_caught() {
        let machine = Definition::orchestrator();
        let mut rng = StdRng::seed_from_u64(1);
        let mut run = execution();
        machine.begin(&mut run);
        for _ in 0..300 {
            let next = machine.errored(&mut run, "Lambda.Unknown", "", &mut rng);
            let Next::Wait(wait) = next else { panic!("{next:?}") };
            assert!(wait <= Duration::from_secs(900));
        }
        machine.errored(&mut run, "Transient", "", &mut rng);
        assert_eq!((run.at.as_str(), run.retries), ("Abandon", 300));
        let mut run = execution();
        machine.begin(&mut run);
        machine.errored(&mut run, "Permanent", "why", &mut rng);
        assert_eq!((run.at.as_str(), run.retries), ("Abandon", 0));
        assert_eq!(run.data["error"]["Cause"], "why");
    }
}
