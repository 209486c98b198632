//! Faults to order: rules that make matching calls fail the way AWS does.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::aws::Call;

/// Which calls go wrong, how, and how often. In JSON:
/// `{"caller": "fn-*", "action": "states:StartExecution", "kind": "throttle", "times": 2}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// Access key id, with `*` at the end for "begins with"; all callers if absent.
    #[serde(default)]
    pub caller: Option<String>,
    /// `service:Action`, with `*` at the end for "begins with"; all actions if absent.
    #[serde(default)]
    pub action: Option<String>,
    /// Text that must occur in the request's path or body, e.g. a step or a table's name.
    #[serde(default)]
    pub containing: Option<String>,
    /// What happens.
    pub kind: FaultKind,
    /// How many matching calls are let through first.
    #[serde(default)]
    pub after: u32,
    /// How many matching calls are hit; all if absent.
    #[serde(default)]
    pub times: Option<u32>,
    /// Share of matching calls that are hit, 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
}

fn always() -> f64 {
    1.0
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Refused with the service's throttling error; nothing happens.
    Throttle,
    /// Refused with the service's internal error; nothing happens.
    ServerError,
    /// Delayed by this much world time, then done.
    Latency {
        /// World seconds.
        world_seconds: f64,
    },
    /// Done, but the connection closes before the answer.
    LostResponse,
    /// The function that calls is killed, in the middle of its invocation. Other callers only get no answer.
    Kill {
        /// Whether the call takes effect first.
        done: bool,
    },
    /// Refused with an error of one's own; nothing happens.
    Error {
        /// HTTP status.
        status: u16,
        /// AWS error code.
        code: String,
        /// Its message.
        #[serde(default)]
        message: String,
    },
}

impl FaultRule {
    /// Hits every call of an action, as often as it comes.
    pub fn on(action: &str, kind: FaultKind) -> Self {
        Self {
            caller: None,
            action: Some(action.to_owned()),
            containing: None,
            kind,
            after: 0,
            times: None,
            probability: 1.0,
        }
    }

    /// Only for this caller.
    pub fn by(mut self, caller: &str) -> Self {
        self.caller = Some(caller.to_owned());
        self
    }

    /// Only `times` calls.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Only calls with this text in their path or body.
    pub fn containing(mut self, text: &str) -> Self {
        self.containing = Some(text.to_owned());
        self
    }
}

/// The rules in force. The first that hits a call decides.
#[derive(Debug)]
pub struct Faults {
    inner: Mutex<(Vec<FaultRule>, StdRng)>,
}

impl Faults {
    /// No rules yet. The seed decides which calls a probability hits.
    pub fn new(seed: u64) -> Self {
        Self { inner: Mutex::new((Vec::new(), StdRng::seed_from_u64(seed))) }
    }

    /// Adds a rule after those in force.
    pub fn add(&self, rule: FaultRule) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.push(rule);
    }

    /// Ends all rules.
    pub fn clear(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.clear();
    }

    /// The rules in force, with what is left of their counts.
    pub fn rules(&self) -> Vec<FaultRule> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What is to happen to a call, counting it.
    pub(crate) fn hit(&self, call: &Call, path: &str, body: &[u8]) -> Option<FaultKind> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (rules, rng) = &mut *inner;
        let name = call.name();
        let contains = |text: &str| {
            path.contains(text)
                || body.windows(text.len().max(1)).any(|part| part == text.as_bytes())
        };
        for rule in rules.iter_mut() {
            let matches = rule.times != Some(0)
                && rule.caller.as_deref().is_none_or(|pattern| begins(&call.caller, pattern))
                && rule.action.as_deref().is_none_or(|pattern| begins(&name, pattern))
                && rule.containing.as_deref().is_none_or(contains);
            if !matches {
                continue;
            }
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            if rng.random::<f64>() >= rule.probability {
                continue;
            }
            rule.times = rule.times.map(|left| left - 1);
            return Some(rule.kind.clone());
        }
        None
    }
}

fn begins(text: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(caller: &str, service: &str, action: &str) -> Call {
        Call {
            caller: caller.to_owned(),
            service: service.to_owned(),
            action: action.to_owned(),
            ..Call::default()
        }
    }

    #[test]
    fn a_rule_hits_its_calls_so_often_and_no_others() {
        let faults = Faults::new(1);
        let rule = FaultRule::on("states:*", FaultKind::Throttle).by("fn-webhook").times(2);
        faults.add(FaultRule { after: 1, ..rule.containing("launch") });
        let mine = call("fn-webhook", "states", "StartExecution");
        let hit = |call: &Call, body: &str| faults.hit(call, "/", body.as_bytes()).is_some();
        assert!(!hit(&mine, "launch"), "one is let through");
        assert!(!hit(&call("fn-other", "states", "StartExecution"), "launch"));
        assert!(!hit(&call("fn-webhook", "sqs", "SendMessage"), "launch"));
        assert!(!hit(&mine, "register"));
        assert!(hit(&mine, "launch") && hit(&mine, "launch"));
        assert!(!hit(&mine, "launch"), "used up");
    }

    #[test]
    fn a_probability_hits_its_share() {
        let faults = Faults::new(7);
        faults.add(FaultRule {
            probability: 0.3,
            ..FaultRule::on("sqs:SendMessage", FaultKind::ServerError)
        });
        let call = call("a", "sqs", "SendMessage");
        let hits = (0..1000).filter(|_| faults.hit(&call, "/", b"").is_some()).count();
        assert!((250..350).contains(&hits), "{hits}");
    }

    #[test]
    fn rules_are_given_as_json() {
        let rule: FaultRule = serde_json::from_str(
            r#"{"action": "lambda:Invoke", "kind": {"latency": {"world_seconds": 30}}, "times": 1}"#,
        )
        .unwrap();
        assert_eq!(rule.kind, FaultKind::Latency { world_seconds: 30.0 });
        assert!(serde_json::from_str::<FaultRule>(r#"{"kind": "throttle", "typo": 1}"#).is_err());
    }
}
