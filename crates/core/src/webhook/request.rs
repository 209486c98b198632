//! HTTP requests as Lambda hands them over: function URLs and API Gateway v2 (payload 2.0), API Gateway
//! v1, and load balancers. Read leniently: consoles and probes send nulls and leave things out.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value, json};

/// Front ends differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Largest body, in bytes: what Lambda itself takes in a synchronous call. Larger ones never reach us
/// (GitHub sends up to 25 MB); they are missed deliveries.
pub const MAX_BODY: usize = 6 * 1024 * 1024;

/// A request, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    headers: BTreeMap<String, String>,
    /// The raw bytes that the sender sent.
    pub body: Vec<u8>,
    front: Front,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Front {
    #[default]
    Gateway,
    Balancer {
        multi_value: bool,
    },
}

/// An answer: status and text. What the text says is safe to show to the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// A sentence, or the runner's name.
    pub body: String,
}

impl Answer {
    /// An answer.
    pub fn new(status: u16, body: impl Into<String>) -> Self {
        Self { status, body: body.into() }
    }
}

impl Request {
    /// Reads a Lambda event. The error is the answer to a request that can't be read, in the shape that the
    /// front end wants.
    pub fn read(event: &Value) -> Result<Self, (Answer, Value)> {
        let multi = event.get("multiValueHeaders").and_then(Value::as_object);
        let single = event.get("headers").and_then(Value::as_object);
        let balancer = event.pointer("/requestContext/elb").is_some_and(|elb| !elb.is_null());
        let front = match balancer {
            true => Front::Balancer { multi_value: multi.is_some() },
            false => Front::Gateway,
        };
        let mut headers = BTreeMap::new();
        for (name, value) in multi.into_iter().chain(single).flatten() {
            let text = match value {
                Value::Array(values) => values.last().and_then(Value::as_str),
                other => other.as_str(),
            };
            if let Some(text) = text {
                headers.insert(name.to_lowercase(), text.to_owned());
            }
        }
        let mut request = Self { headers, body: Vec::new(), front };
        let body = event.get("body").and_then(Value::as_str).unwrap_or_default();
        let decoded = match event.get("isBase64Encoded") {
            Some(Value::Bool(true)) => BASE64.decode(body).ok(),
            _ => Some(body.as_bytes().to_vec()),
        };
        let refused = match decoded {
            None => Answer::new(400, "The body is flagged as base64 and is not."),
            Some(body) if body.len() > MAX_BODY => {
                Answer::new(413, format!("The body is larger than {MAX_BODY} bytes."))
            }
            Some(body) => {
                request.body = body;
                return Ok(request);
            }
        };
        let response = request.respond(&refused);
        Err((refused, response))
    }

    /// A header by its lower-case name; blank counts as absent.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The answer in the shape that the front end wants.
    pub fn respond(&self, answer: &Answer) -> Value {
        let content = "text/plain; charset=utf-8";
        let mut fields = Map::new();
        fields.insert("statusCode".into(), answer.status.into());
        fields.insert("body".into(), answer.body.clone().into());
        fields.insert("isBase64Encoded".into(), false.into());
        match self.front {
            Front::Balancer { multi_value: true } => {
                fields.insert("multiValueHeaders".into(), json!({"content-type": [content]}));
            }
            _ => {
                fields.insert("headers".into(), json!({"content-type": content}));
            }
        }
        if let Front::Balancer { .. } = self.front {
            fields.insert("statusDescription".into(), description(answer.status).into());
        }
        Value::Object(fields)
    }
}

/// Load balancers want status and reason (Elastic Load Balancing guide, "Lambda functions as targets").
fn description(status: u16) -> String {
    let reason = match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        _ => "Service Unavailable",
    };
    format!("{status} {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_front_ends_are_understood() {
        let url = json!({"version": "2.0", "headers": {"X-GitHub-Event": "ping"}, "body": "{}",
            "requestContext": {"http": {"method": "POST"}}, "isBase64Encoded": false});
        let v1 = json!({"httpMethod": "POST", "headers": {"x-github-event": "ping"},
            "multiValueHeaders": {"x-github-event": ["ping"]}, "body": "{}"});
        let alb = json!({"requestContext": {"elb": {"targetGroupArn": "arn"}},
            "multiValueHeaders": {"x-GitHub-event": ["ping"]}, "body": "e30=", "isBase64Encoded": true});
        for event in [&url, &v1, &alb] {
            let request = Request::read(event).unwrap();
            assert_eq!(request.header("x-github-event"), Some("ping"), "{event}");
            assert_eq!(request.body, b"{}");
        }
        let answer = Answer::new(202, "widgets-1");
        let v1 = Request::read(&v1).unwrap().respond(&answer);
        let keys: Vec<_> = v1.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            keys,
            ["body", "headers", "isBase64Encoded", "statusCode"],
            "API Gateway refuses more"
        );
        let alb = Request::read(&alb).unwrap().respond(&answer);
        assert_eq!(alb["statusDescription"], "202 Accepted");
        assert!(alb["multiValueHeaders"]["content-type"][0].is_string());
    }

    #[test]
    fn cp_05_nulls_and_nothing_are_read() {
        for event in [
            json!({"headers": null, "body": null, "isBase64Encoded": null, "requestContext": null}),
            json!({}),
            json!(null),
            json!({"headers": {"x-github-event": null}, "multiValueHeaders": null}),
        ] {
            let request = Request::read(&event).unwrap();
            assert_eq!(request.header("x-github-event"), None);
            assert!(request.body.is_empty());
        }
    }

    #[test]
    fn wi_10_base64_is_decoded_before_anything_else() {
        let good = json!({"body": "eyJhIjoxfQ==", "isBase64Encoded": true});
        assert_eq!(Request::read(&good).unwrap().body, br#"{"a":1}"#);
        let unpadded = json!({"body": "eyJhIjoxfQ", "isBase64Encoded": true});
        assert_eq!(Request::read(&unpadded).unwrap().body, br#"{"a":1}"#);
        let bad = json!({"body": "%%%", "isBase64Encoded": true});
        assert_eq!(Request::read(&bad).unwrap_err().0.status, 400);
    }

    #[test]
    fn wi_10_a_refusal_too_has_the_shape_that_its_front_end_wants() {
        let balancer = json!({"requestContext": {"elb": {}}, "multiValueHeaders": {}, "body": "%",
            "isBase64Encoded": true});
        let (_, response) = Request::read(&balancer).unwrap_err();
        assert_eq!(response["statusDescription"], "400 Bad Request");
        assert!(response["multiValueHeaders"].is_object() && response["headers"].is_null());
    }

    #[test]
    fn wi_23_bodies_over_the_limit_are_413() {
        let event = json!({"body": "x".repeat(MAX_BODY + 1)});
        assert_eq!(Request::read(&event).unwrap_err().0.status, 413);
        assert!(Request::read(&json!({"body": "x".repeat(MAX_BODY)})).is_ok());
    }
}
