//! EventBridge: which events a rule takes, and when a schedule is due.
//! Sources: EventBridge user guide, "Event patterns" and "Schedule expressions".

use std::time::Duration;

use chrono::{DateTime, Datelike, Timelike, Utc};
use ostler_core::time::Timestamp;
use ostler_sim::ec2::{Event, Happening};
use serde_json::{Value, json};

use crate::aws::{ACCOUNT, REGION};
use crate::edge::ExecutionEnded;

/// Years ahead in which a cron expression must be due, else it never is.
const CRON_MINUTES_MAX: usize = 366 * 24 * 60;

/// Whether an event matches a pattern: every field named must be there with one of the values listed.
pub fn matches(pattern: &Value, event: &Value) -> bool {
    let Some(fields) = pattern.as_object() else { return false };
    fields.iter().all(|(name, wanted)| match wanted {
        Value::Array(choices) => choices.iter().any(|choice| one(choice, event.get(name))),
        Value::Object(_) => event.get(name).is_some_and(|inner| matches(wanted, inner)),
        _ => false,
    })
}

fn one(choice: &Value, value: Option<&Value>) -> bool {
    let Some(test) = choice.as_object() else {
        return match value {
            Some(Value::Array(values)) => values.contains(choice),
            Some(value) => value == choice,
            None => false,
        };
    };
    let text = value.and_then(Value::as_str);
    test.iter().all(|(name, argument)| match (name.as_str(), argument) {
        ("exists", Value::Bool(wanted)) => value.is_some() == *wanted,
        ("prefix", Value::String(start)) => {
            text.is_some_and(|text| text.starts_with(start.as_str()))
        }
        ("suffix", Value::String(end)) => text.is_some_and(|text| text.ends_with(end.as_str())),
        ("equals-ignore-case", Value::String(other)) => {
            text.is_some_and(|text| text.eq_ignore_ascii_case(other))
        }
        ("anything-but", Value::Array(others)) => {
            value.is_some_and(|value| !others.contains(value))
        }
        ("anything-but", other) => value.is_some_and(|value| value != other),
        _ => false,
    })
}

/// Names of tests in a pattern that [`matches`] does not know, so that a rule never just stays silent.
pub fn unknown_tests(pattern: &Value) -> Vec<String> {
    match pattern {
        Value::Object(fields) => fields.values().flat_map(unknown_tests).collect(),
        Value::Array(choices) => choices
            .iter()
            .filter_map(Value::as_object)
            .flat_map(|test| test.keys().cloned())
            .filter(|name| {
                !["exists", "prefix", "suffix", "equals-ignore-case", "anything-but"]
                    .contains(&name.as_str())
            })
            .collect(),
        _ => vec![pattern.to_string()],
    }
}

/// Who may put events on a bus: a statement of its policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusPolicy {
    /// Name of the bus.
    pub bus: String,
    /// Accounts, by number.
    accounts: Vec<String>,
    /// What of an event must have one of these values: condition key and values. Conditions that are not known here let
    /// nothing in.
    conditions: Vec<(String, Vec<String>)>,
}

impl BusPolicy {
    /// Reads the properties of `AWS::Events::EventBusPolicy`.
    pub fn of(properties: &Value) -> Self {
        let statement = &properties["Statement"];
        let allows = statement["Effect"] == "Allow" && statement["Action"] == "events:PutEvents";
        let accounts = if allows { texts(&statement["Principal"]["AWS"]) } else { Vec::new() };
        let number = |principal: &String| {
            principal.split(':').nth(4).unwrap_or(principal.as_str()).to_owned()
        };
        let mut conditions = Vec::new();
        for (operator, keys) in statement["Condition"].as_object().into_iter().flatten() {
            for (key, values) in keys.as_object().into_iter().flatten() {
                let key = if operator == "StringEquals" { key.as_str() } else { operator };
                conditions.push((key.to_owned(), texts(values)));
            }
        }
        Self {
            bus: bus_name(properties["EventBusName"].as_str().unwrap_or("default")).to_owned(),
            accounts: accounts.iter().map(number).collect(),
            conditions,
        }
    }

    /// Whether an event of another account may come.
    pub fn lets_in(&self, event: &Value) -> bool {
        let is = |values: &Vec<String>, field: &str| {
            event[field].as_str().is_some_and(|text| values.iter().any(|value| value == text))
        };
        is(&self.accounts, "account")
            && self.conditions.iter().all(|(key, values)| match key.as_str() {
                "events:source" => is(values, "source"),
                "events:detail-type" => is(values, "detail-type"),
                _ => false,
            })
    }
}

/// A text, several joined by commas (a list parameter), or a list of them.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// A bus's name, also where its ARN is given.
pub fn bus_name(bus: &str) -> &str {
    bus.rsplit_once(":event-bus/").map_or(bus, |(_, name)| name)
}

/// The event of an execution that ended. Source: Step Functions developer guide, "Step Functions
/// Execution Status Change".
pub fn execution_event(ended: &ExecutionEnded) -> Value {
    json!({
        "version": "0",
        "id": crate::lambda_host::request_id(),
        "detail-type": "Step Functions Execution Status Change",
        "source": "aws.states",
        "account": ACCOUNT,
        "time": Timestamp::from_millis(ended.stop_date).to_string(),
        "region": REGION,
        "resources": [ended.execution_arn],
        "detail": {
            "executionArn": ended.execution_arn,
            "stateMachineArn": ended.state_machine_arn,
            "name": ended.name,
            "status": ended.status,
            "startDate": ended.start_date,
            "stopDate": ended.stop_date,
            "input": ended.input,
            "inputDetails": {"included": true},
            "output": ended.output,
            "outputDetails": ended.output.as_ref().map(|_| json!({"included": true})),
            "error": ended.error,
            "cause": ended.cause,
        },
    })
}

/// The event of what happened to an instance; `None` for what EC2 tells nobody. Source: EC2 user guide, "State change events for
/// your instances" and "Spot Instance interruption notices".
pub fn instance_event(account: &str, event: &Event) -> Option<Value> {
    let id = &event.instance;
    let (kind, detail) = match event.what {
        Happening::State(state) => (
            "EC2 Instance State-change Notification",
            json!({"instance-id": id, "state": state.name()}),
        ),
        Happening::SpotWarning => (
            "EC2 Spot Instance Interruption Warning",
            json!({"instance-id": id, "instance-action": "terminate"}),
        ),
        Happening::Boots { .. } => return None,
    };
    Some(json!({
        "version": "0",
        "id": crate::lambda_host::request_id(),
        "detail-type": kind,
        "source": "aws.ec2",
        "account": account,
        "time": event.at.to_string(),
        "region": REGION,
        "resources": [format!("arn:aws:ec2:{REGION}:{account}:instance/{id}")],
        "detail": detail,
    }))
}

/// The event of a schedule.
pub fn scheduled_event(rule_arn: &str, now: Timestamp) -> Value {
    json!({
        "version": "0",
        "id": crate::lambda_host::request_id(),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": now.to_string(),
        "region": REGION,
        "resources": [rule_arn],
        "detail": {},
    })
}

/// A schedule expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// `rate(5 minutes)`
    Rate(Duration),
    /// `cron(0/15 * * * ? *)`: the values each field allows; minutes, hours, days of month, months,
    /// days of week (1 is Sunday), years.
    Cron([Vec<u32>; 6]),
}

impl Schedule {
    /// Reads an expression. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad =
            || format!("schedule expression {text:?} is not rate(n unit) or cron(six fields)");
        if let Some(rate) = text.strip_prefix("rate(").and_then(|rest| rest.strip_suffix(')')) {
            let (number, unit) = rate.trim().split_once(' ').ok_or_else(bad)?;
            let number: u64 = number.parse().map_err(|_| bad())?;
            let seconds = match (unit.trim(), number) {
                ("minute", 1) | ("minutes", 2..) => 60,
                ("hour", 1) | ("hours", 2..) => 3600,
                ("day", 1) | ("days", 2..) => 86_400,
                _ => return Err(format!("{}: the unit must agree with the number", bad())),
            };
            return Ok(Self::Rate(Duration::from_secs(number.saturating_mul(seconds))));
        }
        let fields =
            text.strip_prefix("cron(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(bad)?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [minute, hour, day, month, weekday, year] = fields[..] else { return Err(bad()) };
        let month_names =
            ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
        let day_names = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
        let field =
            |text: &str, low, high, names: &[&str]| values(text, low, high, names).ok_or_else(bad);
        Ok(Self::Cron([
            field(minute, 0, 59, &[])?,
            field(hour, 0, 23, &[])?,
            field(day, 1, 31, &[])?,
            field(month, 1, 12, &month_names)?,
            field(weekday, 1, 7, &day_names)?,
            field(year, 1970, 2199, &[])?,
        ]))
    }

    /// When it is due next after `now`; `None` if not within a year.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Rate(every) => Some(now + *every),
            Self::Cron(fields) => {
                let minute = now.seconds().div_euclid(60);
                (1..=CRON_MINUTES_MAX).find_map(|ahead| {
                    let at = Timestamp::from_seconds((minute + i64::try_from(ahead).ok()?) * 60);
                    let time: DateTime<Utc> = DateTime::from_timestamp_millis(at.millis())?;
                    let parts = [
                        time.minute(),
                        time.hour(),
                        time.day(),
                        time.month(),
                        time.weekday().number_from_sunday(),
                        u32::try_from(time.year()).ok()?,
                    ];
                    fields
                        .iter()
                        .zip(parts)
                        .all(|(allowed, part)| allowed.contains(&part))
                        .then_some(at)
                })
            }
        }
    }
}

fn values(text: &str, low: u32, high: u32, names: &[&str]) -> Option<Vec<u32>> {
    let number = |part: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(part));
        let value = named
            .map_or_else(|| part.parse().ok(), |at| u32::try_from(at).ok().map(|at| at + low))?;
        (low..=high).contains(&value).then_some(value)
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<usize>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (low, high),
            Some((from, to)) => (number(from)?, number(to)?),
            None if part.contains('/') => (number(range)?, high),
            None => (number(range)?, number(range)?),
        };
        all.extend((from..=to).step_by(step));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_lets_in_what_its_policy_says_of_the_accounts_that_it_names() {
        let policy = BusPolicy::of(&json!({
            "EventBusName": "arn:aws:events:us-east-1:123456789012:event-bus/ostler-instances",
            "StatementId": "accounts",
            "Statement": {"Effect": "Allow", "Action": "events:PutEvents", "Resource": "*",
                "Principal": {"AWS": "444455556666,arn:aws:iam::777788889999:root"},
                "Condition": {"StringEquals": {"events:source": "aws.ec2"}}},
        }));
        assert_eq!(policy.bus, "ostler-instances");
        let event = |account: &str, source: &str| json!({"account": account, "source": source});
        assert!(policy.lets_in(&event("444455556666", "aws.ec2")));
        assert!(policy.lets_in(&event("777788889999", "aws.ec2")));
        assert!(!policy.lets_in(&event("111122223333", "aws.ec2")));
        assert!(!policy.lets_in(&event("444455556666", "aws.s3")));
        let odd = json!({"Statement": {"Effect": "Allow", "Action": "events:PutEvents",
            "Principal": {"AWS": "444455556666"}, "Condition": {"StringLike": {"events:source": "*"}}}});
        assert!(!BusPolicy::of(&odd).lets_in(&event("444455556666", "*")), "not known here");
    }

    /// As the core reads them.
    #[test]
    fn what_happens_to_an_instance_is_an_event() {
        use ostler_core::instances::{Happening as Read, InstanceEvent};
        use ostler_sim::ec2::State;
        let event = |what| {
            let at = Timestamp::from_seconds(1_796_040_000);
            instance_event("444455556666", &Event { at, instance: "i-0a".into(), what })
        };
        assert_eq!(event(Happening::Boots { first: true }), None);
        for (what, read) in [
            (Happening::SpotWarning, Some(Read::Interrupted)),
            (Happening::State(State::ShuttingDown), Some(Read::Ended)),
            (Happening::State(State::Terminated), Some(Read::Ended)),
            (Happening::State(State::Running), None),
        ] {
            let event = event(what).unwrap();
            let found = InstanceEvent::read(&event);
            assert_eq!(found.as_ref().map(|it| it.what), read, "{event}");
            let account = found.and_then(|it| it.origin).map(|origin| origin.account);
            assert_eq!(account.as_deref(), read.map(|_| "444455556666"));
        }
    }

    #[test]
    fn patterns_match_as_in_eventbridge() {
        let pattern = json!({
            "source": ["aws.states"],
            "detail": {"status": ["FAILED", "ABORTED"], "name": [{"prefix": "acme-"}], "output": [null, {"exists": false}]},
        });
        let event = |status: &str, name: &str| json!({"source": "aws.states", "detail": {"status": status, "name": name}});
        assert!(matches(&pattern, &event("FAILED", "acme-1")));
        assert!(!matches(&pattern, &event("SUCCEEDED", "acme-1")));
        assert!(!matches(&pattern, &event("FAILED", "other")));
        assert!(!matches(&pattern, &json!({"source": "aws.states"})));
        assert!(matches(&json!({"a": [{"anything-but": ["x"]}]}), &json!({"a": "y"})));
        assert_eq!(unknown_tests(&json!({"a": [{"cidr": "10.0.0.0/8"}, "x"]})), ["cidr"]);
    }

    #[test]
    fn rates_and_crons_are_due_in_world_time() {
        let now = Timestamp::parse("2026-11-30T12:07:30Z").unwrap();
        let next = |text: &str| Schedule::parse(text).unwrap().next(now).unwrap().to_string();
        assert_eq!(next("rate(1 minute)"), "2026-11-30T12:08:30Z");
        assert_eq!(next("rate(2 hours)"), "2026-11-30T14:07:30Z");
        assert_eq!(next("cron(0/15 * * * ? *)"), "2026-11-30T12:15:00Z");
        assert_eq!(next("cron(30 6 ? * MON-FRI *)"), "2026-12-01T06:30:00Z");
        assert_eq!(next("cron(0 0 1 1,7 ? *)"), "2027-01-01T00:00:00Z");
        for bad in [
            "rate(1 minutes)",
            "rate(5 minute)",
            "rate(0 minutes)",
            "cron(* * * * *)",
            "cron(61 * * * ? *)",
            "daily",
        ] {
            assert!(Schedule::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Schedule::parse("cron(0 0 1 1 ? 2020)").unwrap().next(now), None);
    }
}
