//! Function URLs: a request becomes an event of payload version 2.0, and the answer an HTTP response.
//! Source: AWS, "Invoking Lambda function URLs".

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::DateTime;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use ostler_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::aws::{Reply, form, json_reply, reply};

/// Request body of a function URL. Source: Lambda quotas.
pub const BODY_BYTES_MAX: usize = 6 * 1024 * 1024;

/// The event for a request. `path` is the part below the URL's root, with its slash.
pub fn event(
    method: &Method,
    uri: &Uri,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Value {
    let mut single: BTreeMap<String, String> = BTreeMap::new();
    let mut cookies = Vec::new();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if name == "cookie" {
            cookies.extend(value.split("; ").map(str::to_owned));
        } else {
            // Several headers of one name are joined by commas; names are lower case already.
            single
                .entry(name.as_str().to_owned())
                .and_modify(|known| *known = format!("{known},{value}"))
                .or_insert(value);
        }
    }
    let domain = single.get("host").cloned().unwrap_or_default();
    let query = uri.query().unwrap_or("");
    let agent = single.get("user-agent").cloned().unwrap_or_default();
    let time = DateTime::from_timestamp_millis(now.millis())
        .map(|at| at.format("%d/%b/%Y:%H:%M:%S +0000").to_string())
        .unwrap_or_default();
    let mut event = json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": single,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "local",
            "domainName": domain,
            "domainPrefix": domain.split('.').next().unwrap_or(""),
            "http": {"method": method.as_str(), "path": path, "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1", "userAgent": agent},
            "requestId": super::request_id(),
            "routeKey": "$default",
            "stage": "$default",
            "time": time,
            "timeEpoch": now.millis(),
        },
        "isBase64Encoded": false,
    });
    if !cookies.is_empty() {
        event["cookies"] = json!(cookies);
    }
    if !query.is_empty() {
        event["queryStringParameters"] = json!(form(query.as_bytes()));
    }
    if !body.is_empty() {
        let text = std::str::from_utf8(body).ok().filter(|_| is_text(headers));
        event["isBase64Encoded"] = json!(text.is_none());
        event["body"] = json!(text.map_or_else(|| STANDARD.encode(body), str::to_owned));
    }
    event
}

/// Text, JSON, XML and JavaScript reach a function as they are, all else in base64: forms too, as
/// functions behind URLs find in practice.
fn is_text(headers: &HeaderMap) -> bool {
    let kind =
        headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("text/plain");
    let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    kind.starts_with("text/")
        || ["json", "xml", "javascript"].iter().any(|end| {
            kind.strip_prefix("application/")
                .is_some_and(|rest| rest == *end || rest.ends_with(&format!("+{end}")))
        })
}

/// The response to a function's answer. An error of the function is 502 and says nothing of it.
pub fn response(outcome: &Outcome) -> Reply {
    if outcome.error {
        return json_reply(502, &json!({"Message": "Internal Server Error"}));
    }
    let value: Value = serde_json::from_slice(&outcome.payload).unwrap_or(Value::Null);
    let Some(shaped) = value.as_object().filter(|object| object.contains_key("statusCode")) else {
        // Without a status code the whole answer is the body, "application/json" and 200; text is as it is.
        let body =
            value.as_str().map_or_else(|| outcome.payload.clone(), |text| text.to_owned().into());
        return reply(200, "application/json", body);
    };
    shaped_response(shaped)
        .unwrap_or_else(|| json_reply(502, &json!({"Message": "Internal Server Error"})))
}

fn shaped_response(shaped: &Map<String, Value>) -> Option<Reply> {
    let status = &shaped["statusCode"];
    let status = status.as_u64().or_else(|| status.as_str()?.parse().ok())?;
    let body = match shaped.get("body") {
        None | Some(Value::Null) => Bytes::new(),
        Some(Value::String(text)) if shaped.get("isBase64Encoded") == Some(&Value::Bool(true)) => {
            STANDARD.decode(text).ok()?.into()
        }
        Some(Value::String(text)) => text.clone().into(),
        Some(other) => other.to_string().into(),
    };
    let mut answer = reply(
        u16::try_from(status).ok().filter(|status| (100..600).contains(status))?,
        "application/json",
        body,
    );
    for (name, value) in shaped.get("headers").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        answer
            .headers_mut()
            .insert(name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?);
    }
    for cookie in shaped.get("cookies").and_then(Value::as_array).into_iter().flatten() {
        answer.headers_mut().append("set-cookie", cookie.as_str()?.parse::<HeaderValue>().ok()?);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_of(kind: &str, body: &[u8]) -> Value {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        headers.insert("host", "abc.lambda-url.us-east-1.on.aws".parse().unwrap());
        headers.insert("cookie", "a=1; b=2".parse().unwrap());
        headers.append("x-two", "1".parse().unwrap());
        headers.append("x-two", "2".parse().unwrap());
        let uri = "/_url/f/hook?x=1%202".parse().unwrap();
        event(&Method::POST, &uri, "/hook", &headers, body, Timestamp::from_seconds(1_584_039_838))
    }

    #[test]
    fn a_request_becomes_an_event_of_version_2() {
        let event = event_of("application/json; charset=utf-8", b"{}");
        assert_eq!(event["body"], "{}");
        assert_eq!(event["isBase64Encoded"], false);
        assert_eq!(event["rawPath"], "/hook");
        assert_eq!(event["rawQueryString"], "x=1%202");
        assert_eq!(event["queryStringParameters"]["x"], "1 2");
        assert_eq!(event["cookies"], json!(["a=1", "b=2"]));
        assert_eq!(event["headers"]["x-two"], "1,2");
        assert_eq!(event["requestContext"]["time"], "12/Mar/2020:19:03:58 +0000");
        assert_eq!(event["requestContext"]["domainPrefix"], "abc");
    }

    #[test]
    fn what_is_not_text_is_base64() {
        for (kind, body, encoded) in [
            ("application/octet-stream", &b"abc"[..], true),
            ("application/x-www-form-urlencoded", b"payload=x", true),
            ("application/json", b"\xff", true),
            ("application/vnd.github+json", b"{}", false),
            ("text/plain", b"abc", false),
        ] {
            assert_eq!(event_of(kind, body)["isBase64Encoded"], encoded, "{kind}");
        }
    }

    #[test]
    fn answers_follow_the_rules_of_function_urls() {
        let of = |payload: &str, error| {
            let answer = response(&Outcome { payload: payload.to_owned().into(), error });
            (answer.status().as_u16(), String::from_utf8_lossy(answer.body()).into_owned())
        };
        let is = |status: u16, body: &str| (status, body.to_owned());
        assert_eq!(of(r#"{"statusCode": 202, "body": "x"}"#, false), is(202, "x"));
        assert_eq!(
            of(r#"{"statusCode": 200, "body": "eA==", "isBase64Encoded": true}"#, false),
            is(200, "x")
        );
        assert_eq!(of(r#"{"a": 1}"#, false), is(200, r#"{"a": 1}"#));
        assert_eq!(of(r#""text""#, false), is(200, "text"));
        assert_eq!(of(r#"{"statusCode": "nonsense"}"#, false).0, 502);
        assert_eq!(of(r#"{"statusCode": 7}"#, false).0, 502);
        assert_eq!(
            of(r#"{"errorType": "Secret"}"#, true),
            is(502, r#"{"Message":"Internal Server Error"}"#)
        );
        let cookies = response(&Outcome {
            payload: r#"{"statusCode": 200, "cookies": ["a=1"], "headers": {"X-A": "b"}}"#.into(),
            error: false,
        });
        assert_eq!(cookies.headers()["set-cookie"], "a=1");
        assert_eq!(cookies.headers()["x-a"], "b");
    }
}
