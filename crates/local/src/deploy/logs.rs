//! CloudWatch Logs subscriptions: batches reach functions filtered, compressed and encoded.
//! Source: CloudWatch Logs user guide, "Log group-level subscription filters", "Filter pattern syntax".

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::aws::{self, ACCOUNT, Call, Reply};
use crate::lambda_host::{self, Host};

/// Filters of one group. Source: CloudWatch Logs quotas.
const FILTERS_PER_GROUP_MAX: usize = 2;

/// A subscription filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Who made it: a stack, or `api`.
    pub owner: String,
    /// Log group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// What events must match.
    pub pattern: FilterPattern,
    /// Name of the function that gets them.
    pub function: String,
}

/// An unstructured filter pattern: `"all of" these`, `?any ?of ?these`, `-none -of -these`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterPattern {
    all: Vec<String>,
    any: Vec<String>,
    none: Vec<String>,
}

impl FilterPattern {
    /// Reads a pattern. JSON and space-delimited patterns are not supported, and an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with(['{', '[', '%']) {
            return Err(format!("filter pattern {text:?} is not of quoted or plain terms"));
        }
        let mut pattern = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (list, after) = match rest.as_bytes()[0] {
                b'?' => (&mut pattern.any, &rest[1..]),
                b'-' => (&mut pattern.none, &rest[1..]),
                _ => (&mut pattern.all, rest),
            };
            let (term, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted_term(quoted)
                    .ok_or_else(|| format!("filter pattern {text:?} has an open quote"))?,
                None => {
                    let end = after.find(char::is_whitespace).unwrap_or(after.len());
                    (after[..end].to_owned(), &after[end..])
                }
            };
            list.push(term);
            rest = after.trim_start();
        }
        Ok(pattern)
    }

    /// Whether a message matches. An empty pattern matches everything; case matters.
    pub fn matches(&self, message: &str) -> bool {
        self.all.iter().all(|term| message.contains(term))
            && (self.any.is_empty() || self.any.iter().any(|term| message.contains(term)))
            && !self.none.iter().any(|term| message.contains(term))
    }
}

fn quoted_term(text: &str) -> Option<(String, &str)> {
    let mut term = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((term, &text[at + 1..])),
            '\\' => term.push(chars.next()?.1),
            c => term.push(c),
        }
    }
    None
}

/// The subscriptions of all groups.
pub struct Logs {
    host: Arc<Host>,
    subscriptions: Mutex<Vec<Subscription>>,
    /// Event ids rise over all batches, as AWS's do.
    next_id: Mutex<u128>,
}

impl Logs {
    pub(super) fn new(host: Arc<Host>) -> Arc<Self> {
        Arc::new(Self { host, subscriptions: Mutex::default(), next_id: Mutex::new(1 << 100) })
    }

    /// Adds or replaces a subscription, and probes its function with a control message.
    pub fn subscribe(&self, subscription: Subscription) -> Result<(), &'static str> {
        {
            let mut all = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|other| {
                other.group != subscription.group || other.name != subscription.name
            });
            if all.iter().filter(|other| other.group == subscription.group).count()
                >= FILTERS_PER_GROUP_MAX
            {
                return Err("LimitExceededException");
            }
            all.push(subscription.clone());
        }
        let probe = json!([{
            "id": "", "timestamp": self.now(),
            "message": "CWL CONTROL MESSAGE: Checking health of destination",
        }]);
        self.invoke(&subscription, "CONTROL_MESSAGE", "", probe);
        Ok(())
    }

    /// Ends an owner's subscriptions.
    pub(super) fn unsubscribe(&self, owner: &str) {
        let mut all = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|subscription| subscription.owner != owner);
    }

    /// Serves the calls on subscriptions; `None` for all others. moto must not know of them: it would
    /// invoke inside PutLogEvents, unfiltered.
    pub async fn serve(&self, action: &str, body: &[u8], call: &Call) -> Option<Reply> {
        let input: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |name: &str| input[name].as_str().unwrap_or("").to_owned();
        let done = || Some(aws::reply(200, "application/x-amz-json-1.1", "{}"));
        match action {
            "PutSubscriptionFilter" => {
                let pattern = match FilterPattern::parse(&text("filterPattern")) {
                    Ok(pattern) => pattern,
                    Err(error) => {
                        return Some(call.error(400, "InvalidParameterException", &error));
                    }
                };
                let subscription = Subscription {
                    owner: "api".to_owned(),
                    group: text("logGroupName"),
                    name: text("filterName"),
                    pattern,
                    function: lambda_host::name_of(&text("destinationArn")),
                };
                match self.subscribe(subscription) {
                    Ok(()) => done(),
                    Err(code) => Some(call.error(400, code, "Resource limit exceeded.")),
                }
            }
            "DeleteSubscriptionFilter" => {
                let (group, name) = (text("logGroupName"), text("filterName"));
                let mut all = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
                let before = all.len();
                all.retain(|other| other.group != group || other.name != name);
                if all.len() == before {
                    let message = "The specified subscription filter does not exist.";
                    return Some(call.error(400, "ResourceNotFoundException", message));
                }
                done()
            }
            "DescribeSubscriptionFilters" => {
                let group = text("logGroupName");
                let all = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
                let filters = all.iter().filter(|other| other.group == group).map(|other| {
                    json!({"filterName": other.name, "logGroupName": other.group,
                        "destinationArn": lambda_host::arn_of(&other.function)})
                });
                let body = json!({"subscriptionFilters": filters.collect::<Vec<_>>()});
                Some(aws::reply(200, "application/x-amz-json-1.1", body.to_string()))
            }
            _ => None,
        }
    }

    /// Passes on a PutLogEvents call that was carried out.
    pub fn deliver(&self, body: &[u8]) {
        let input: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let group = input["logGroupName"].as_str().unwrap_or("");
        let stream = input["logStreamName"].as_str().unwrap_or("");
        let all = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for subscription in all.iter().filter(|subscription| subscription.group == group) {
            let events = input["logEvents"].as_array().into_iter().flatten();
            let events: Vec<Value> = events
                .filter(|event| subscription.pattern.matches(event["message"].as_str().unwrap_or("")))
                .map(|event| {
                    json!({"id": self.id(), "timestamp": event["timestamp"], "message": event["message"]})
                })
                .collect();
            if !events.is_empty() {
                self.invoke(subscription, "DATA_MESSAGE", stream, json!(events));
            }
        }
    }

    fn invoke(&self, subscription: &Subscription, kind: &str, stream: &str, events: Value) {
        let data = json!({
            "messageType": kind,
            "owner": if kind == "DATA_MESSAGE" { ACCOUNT } else { "CloudwatchLogs" },
            "logGroup": if kind == "DATA_MESSAGE" { subscription.group.as_str() } else { "" },
            "logStream": stream,
            "subscriptionFilters": if kind == "DATA_MESSAGE" { json!([subscription.name]) } else { json!([]) },
            "logEvents": events,
        });
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory does not fail.
        let data = gzip
            .write_all(data.to_string().as_bytes())
            .and_then(|()| gzip.finish())
            .unwrap_or_default();
        let event = json!({"awslogs": {"data": STANDARD.encode(data)}});
        self.host.invoke_async(&subscription.function, event.to_string().into());
    }

    fn now(&self) -> i64 {
        self.host.clock().now().millis()
    }

    /// 56 digits in a text.
    fn id(&self) -> String {
        let mut next = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        format!("{:056}", *next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_terms_match_as_documented() {
        let matches =
            |pattern: &str, message: &str| FilterPattern::parse(pattern).unwrap().matches(message);
        assert!(matches("", "anything"));
        assert!(matches(r#""CDKGHR JOB" "RUNNER=""#, "CDKGHR JOB RUNNER=x"));
        assert!(!matches(r#""CDKGHR JOB""#, "CDKGHR  JOB"));
        assert!(!matches("error", "ERROR"));
        assert!(matches("?error ?warn", "a warn b") && !matches("?error ?warn", "info"));
        assert!(
            matches("error -ignored", "error x") && !matches("error -ignored", "error ignored")
        );
        assert!(matches(r#""say \"hi\"""#, r#"they say "hi""#));
        for bad in ["{ $.a = 1 }", "[a, b]", "\"open"] {
            assert!(FilterPattern::parse(bad).is_err(), "{bad}");
        }
    }
}
