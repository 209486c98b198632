//! AWS's wire formats, as seen from both sides: who calls what, errors in each protocol, and a small
//! client for the local world's own calls (to moto, or to the edge under a caller's name).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::xml::{self, Node};

/// The account of everything in the local world: moto's default.
pub const ACCOUNT: &str = "123456789012";
/// The region of everything in the local world.
pub const REGION: &str = "us-east-1";
/// No single call inside the world takes longer (real time): functions are killed at 15 minutes.
const CALL_TIMEOUT: Duration = Duration::from_secs(900);

/// A whole answer.
pub type Reply = http::Response<Bytes>;

/// Who calls which operation, as the request's own headers and body say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Access key id of the signature; empty if the request is not signed.
    pub caller: String,
    /// Region of the signature, e.g. `us-east-1`; empty if the request is not signed.
    pub region: String,
    /// Signing name of the service, e.g. `states`, `sqs`, `dynamodb`.
    pub service: String,
    /// Operation, e.g. `StartExecution`.
    pub action: String,
    /// How errors of this call are written.
    pub protocol: Protocol,
}

/// Families of error answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `X-Amz-Target`, errors as `{"__type", "message"}`.
    #[default]
    Json,
    /// Form encoded, errors as `ErrorResponse/Error`.
    Query,
    /// EC2's own: errors as `Response/Errors/Error`.
    Ec2,
    /// REST with JSON (Lambda), code in `x-amzn-errortype`.
    RestJson,
    /// S3.
    RestXml,
}

impl Call {
    /// Reads a request. Never fails: what can't be told is named by method and path.
    pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Self {
        let text =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        // AWS4-HMAC-SHA256 Credential=<key id>/<date>/<region>/<service>/aws4_request, ...
        let scope = text("authorization").split("Credential=").nth(1).unwrap_or("");
        let mut scope = scope.split(',').next().unwrap_or("").split('/');
        let caller = scope.next().unwrap_or("").to_owned();
        let region = scope.nth(1).unwrap_or("").to_owned();
        let mut service = scope.next().unwrap_or("").to_owned();
        let path = uri.path();
        if service.is_empty() && path.starts_with("/2015-03-31/functions/") {
            service = "lambda".to_owned();
        }
        let target = text("x-amz-target");
        let (action, protocol) = if !target.is_empty() {
            (target.rsplit('.').next().unwrap_or("").to_owned(), Protocol::Json)
        } else if service == "lambda" {
            (lambda_action(method, path), Protocol::RestJson)
        } else if service == "s3" {
            (format!("{method} object"), Protocol::RestXml)
        } else {
            let protocol = if service == "ec2" { Protocol::Ec2 } else { Protocol::Query };
            let parameter = form(body).remove("Action");
            (parameter.unwrap_or_else(|| format!("{method} {path}")), protocol)
        };
        Self { caller, region, service, action, protocol }
    }

    /// `service:Action`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.service, self.action)
    }

    /// An error answer in this call's protocol.
    pub fn error(&self, status: u16, code: &str, message: &str) -> Reply {
        let (kind, body) = match self.protocol {
            Protocol::Json => {
                ("application/x-amz-json-1.0", json!({"__type": code, "message": message}).to_string())
            }
            Protocol::RestJson => (
                "application/json",
                json!({"Type": if status < 500 { "User" } else { "Service" }, "Message": message, "message": message})
                    .to_string(),
            ),
            Protocol::Query => (
                "text/xml",
                format!(
                    "<ErrorResponse><Error><Type>{}</Type><Code>{code}</Code><Message>{}</Message></Error></ErrorResponse>",
                    if status < 500 { "Sender" } else { "Receiver" },
                    xml::escape(message)
                ),
            ),
            Protocol::Ec2 => (
                "text/xml",
                format!(
                    "<Response><Errors><Error><Code>{code}</Code><Message>{}</Message></Error></Errors><RequestID>local</RequestID></Response>",
                    xml::escape(message)
                ),
            ),
            Protocol::RestXml => (
                "application/xml",
                format!("<Error><Code>{code}</Code><Message>{}</Message></Error>", xml::escape(message)),
            ),
        };
        let mut answer = reply(status, kind, body);
        if let (Protocol::RestJson, Ok(code)) = (self.protocol, code.parse()) {
            answer.headers_mut().insert("x-amzn-errortype", code);
        }
        answer
    }

    /// The service's own word for "too many requests".
    /// Source: the error lists of each service's API reference.
    pub fn throttled(&self) -> Reply {
        let (status, code) = match (self.service.as_str(), self.protocol) {
            ("lambda", _) => (429, "TooManyRequestsException"),
            ("dynamodb", _) => (400, "ProvisionedThroughputExceededException"),
            ("sqs", _) => (403, "RequestThrottled"),
            (_, Protocol::Ec2) => (503, "RequestLimitExceeded"),
            (_, Protocol::RestXml) => (503, "SlowDown"),
            (_, Protocol::Query) => (400, "Throttling"),
            _ => (400, "ThrottlingException"),
        };
        self.error(status, code, "Rate exceeded")
    }

    /// The service's own word for "our fault".
    pub fn broken(&self) -> Reply {
        let code = match self.service.as_str() {
            "lambda" => "ServiceException",
            "dynamodb" | "ssm" => "InternalServerError",
            "ec2" | "s3" => "InternalError",
            _ => "InternalFailure",
        };
        self.error(500, code, "The request processing has failed because of an unknown error.")
    }
}

fn lambda_action(method: &Method, path: &str) -> String {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let named = match (method.as_str(), parts.get(1).copied(), parts.len(), parts.get(3).copied()) {
        ("POST", Some("functions"), 4, Some("invocations")) => "Invoke",
        ("POST", Some("functions"), 2, _) => "CreateFunction",
        ("GET", Some("functions"), 3, _) => "GetFunction",
        ("DELETE", Some("functions"), 3, _) => "DeleteFunction",
        ("GET", Some("functions"), 4, Some("configuration")) => "GetFunctionConfiguration",
        ("PUT", Some("functions"), 4, Some("configuration")) => "UpdateFunctionConfiguration",
        ("PUT", Some("functions"), 4, Some("code")) => "UpdateFunctionCode",
        ("PUT", Some("functions"), 4, Some("concurrency")) => "PutFunctionConcurrency",
        ("POST", Some("functions"), 4, Some("url")) => "CreateFunctionUrlConfig",
        ("GET", Some("functions"), 4, Some("url")) => "GetFunctionUrlConfig",
        ("POST", Some("event-source-mappings"), 2, _) => "CreateEventSourceMapping",
        ("DELETE", Some("event-source-mappings"), 3, _) => "DeleteEventSourceMapping",
        ("PUT", Some("event-source-mappings"), 3, _) => "UpdateEventSourceMapping",
        _ => return format!("{method} {path}"),
    };
    named.to_owned()
}

/// Decodes a form: `Action=x&Name=y`.
pub fn form(body: &[u8]) -> BTreeMap<String, String> {
    body.split(|byte| *byte == b'&')
        .filter(|field| !field.is_empty())
        .map(|field| {
            let mut halves = field.splitn(2, |byte| *byte == b'=');
            (
                percent_decode(halves.next().unwrap_or_default()),
                percent_decode(halves.next().unwrap_or_default()),
            )
        })
        .collect()
}

/// Undoes `%XX` and `+`.
pub fn percent_decode(text: &[u8]) -> String {
    let digit = |at: usize| text.get(at).and_then(|byte| (*byte as char).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
            }
            (b'+', ..) => {
                out.push(b' ');
                at += 1;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Encodes for a form, a query or a canonical request: all but `A-Za-z0-9-._~` as `%XX`.
pub fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// An answer with a body.
pub fn reply(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut answer = Reply::new(body.into());
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
    answer
}

/// A JSON answer.
pub fn json_reply(status: u16, body: &Value) -> Reply {
    reply(status, "application/json", body.to_string())
}

/// Why a call of the local world's own failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status; 0 if nothing answered.
    pub status: u16,
    /// AWS's error code; empty if none was given.
    pub code: String,
    /// What happened, to which call.
    pub message: String,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} {})", self.message, self.status, self.code)
    }
}

impl std::error::Error for ApiError {}

/// Calls AWS APIs at one address under one caller's name. Unsigned but for the key id, which is all that
/// the edge and moto look at.
#[derive(Clone, Debug)]
pub struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    base: String,
    caller: String,
    account: Option<String>,
}

/// The header by which moto is told the account, other than [`ACCOUNT`].
pub const ACCOUNT_HEADER: &str = "x-moto-account-id";

/// The account of a caller, by its key id: `operator-444455556666`. `None` is [`ACCOUNT`].
pub fn account_of(caller: &str) -> Option<&str> {
    let (_, id) = caller.rsplit_once('-')?;
    (id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit())).then_some(id)
}

impl Client {
    /// `base` is `http://host:port`, `caller` the access key id.
    pub fn new(base: impl Into<String>, caller: impl Into<String>) -> Self {
        // moto closes every connection after its answer: pooling them would only race with that.
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build_http();
        Self { http, base: base.into(), caller: caller.into(), account: None }
    }

    /// The same in another account; only moto understands it.
    pub fn in_account(&self, account: Option<&str>) -> Self {
        Self { account: account.map(str::to_owned), ..self.clone() }
    }

    /// Where it calls.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request as it is, with the address replaced. Hop-by-hop headers are taken off both ways.
    pub async fn forward(
        &self,
        mut parts: http::request::Parts,
        body: Bytes,
    ) -> Result<Reply, ApiError> {
        let failed = |message: String| ApiError { status: 0, code: String::new(), message };
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("{}{path}", self.base)
            .parse()
            .map_err(|error| failed(format!("no such address {}{path}: {error}", self.base)))?;
        for name in ["transfer-encoding", "connection", "expect"] {
            parts.headers.remove(name);
        }
        parts.version = http::Version::HTTP_11;
        let what = format!("{} {}", parts.method, parts.uri);
        let exchange = async {
            let answer =
                self.http.request(http::Request::from_parts(parts, Full::new(body))).await?;
            let (parts, body) = answer.into_parts();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
                parts,
                body.collect().await?.to_bytes(),
            ))
        };
        let (mut parts, body) = tokio::time::timeout(CALL_TIMEOUT, exchange)
            .await
            .map_err(|_| failed(format!("{what}: no answer in {} s", CALL_TIMEOUT.as_secs())))?
            .map_err(|error| failed(format!("{what}: {error}")))?;
        parts.version = http::Version::HTTP_11;
        for name in ["transfer-encoding", "connection"] {
            parts.headers.remove(name);
        }
        Ok(Reply::from_parts(parts, body))
    }

    /// Sends one request to a service. An answer of 300 or more is an error.
    pub async fn send(
        &self,
        service: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Reply, ApiError> {
        let scope = format!("{}/20260101/{REGION}/{service}/aws4_request", self.caller);
        let mut request = http::Request::builder().method(method).uri(path).header(
            "authorization",
            format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"),
        );
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(account) = &self.account {
            request = request.header(ACCOUNT_HEADER, account);
        }
        let (parts, ()) = request
            .body(())
            .map_err(|error| ApiError {
                status: 0,
                code: String::new(),
                message: error.to_string(),
            })?
            .into_parts();
        let answer = self.forward(parts, body.into()).await?;
        if answer.status().as_u16() < 300 {
            return Ok(answer);
        }
        Err(error_of(&answer, service, path))
    }

    /// Calls an operation of a JSON service, e.g. `("states", "AWSStepFunctions.StartExecution")`.
    pub async fn json(
        &self,
        service: &str,
        target: &str,
        input: &Value,
    ) -> Result<Value, ApiError> {
        let headers = [("x-amz-target", target), ("content-type", "application/x-amz-json-1.0")];
        let answer = self.send(service, Method::POST, "/", &headers, input.to_string()).await?;
        Ok(serde_json::from_slice(answer.body()).unwrap_or(Value::Null))
    }

    /// Calls an operation of a Query service and gives the answer's root element.
    pub async fn query(
        &self,
        service: &str,
        version: &str,
        action: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Node, ApiError> {
        let mut body = format!("Action={action}&Version={version}");
        for (name, value) in parameters {
            let _ = write!(body, "&{}={}", percent_encode(name), percent_encode(value));
        }
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let answer = self.send(service, Method::POST, "/", &headers, body).await?;
        Node::parse(&String::from_utf8_lossy(answer.body())).map_err(|message| ApiError {
            status: answer.status().as_u16(),
            code: String::new(),
            message: format!("{service} {action}: {message}"),
        })
    }
}

fn error_of(answer: &Reply, service: &str, path: &str) -> ApiError {
    let text = String::from_utf8_lossy(answer.body());
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let first =
        |names: &[&str]| names.iter().find_map(|name| value[*name].as_str().map(str::to_owned));
    let root = Node::parse(&text).unwrap_or_default();
    let error = ["Error", "Errors/Error"].iter().find_map(|path| root.find(path)).unwrap_or(&root);
    let header = answer.headers().get("x-amzn-errortype").and_then(|value| value.to_str().ok());
    let code = header
        .map(str::to_owned)
        .or_else(|| first(&["__type", "code"]))
        .unwrap_or_else(|| error.text_at("Code").to_owned());
    let message =
        first(&["message", "Message"]).unwrap_or_else(|| error.text_at("Message").to_owned());
    ApiError {
        status: answer.status().as_u16(),
        code: code.rsplit('#').next().unwrap_or("").to_owned(),
        message: format!("{service} {path}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(service: &str, target: &str, path: &str, body: &str) -> Call {
        let mut headers = HeaderMap::new();
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=fn-a/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
        );
        headers.insert("authorization", scope.parse().unwrap());
        if !target.is_empty() {
            headers.insert("x-amz-target", target.parse().unwrap());
        }
        Call::of(&Method::POST, &path.parse().unwrap(), &headers, body.as_bytes())
    }

    #[test]
    fn caller_and_action_are_known_in_each_protocol() {
        let cases = [
            (call("states", "AWSStepFunctions.StartExecution", "/", "{}"), "states:StartExecution"),
            (call("dynamodb", "DynamoDB_20120810.GetItem", "/", "{}"), "dynamodb:GetItem"),
            (call("ec2", "", "/", "Version=1&Action=CreateFleet"), "ec2:CreateFleet"),
            (call("lambda", "", "/2015-03-31/functions/f/invocations", ""), "lambda:Invoke"),
            (call("s3", "", "/bucket/key", ""), "s3:POST object"),
        ];
        for (call, name) in cases {
            assert_eq!((call.caller.as_str(), call.name().as_str()), ("fn-a", name));
        }
    }

    #[test]
    fn forms_are_decoded() {
        let form = form(b"A=1+2&B.1=%7B%22x%22%3A%C3%A9%7D&C");
        assert_eq!(form["A"], "1 2");
        assert_eq!(form["B.1"], "{\"x\":\u{e9}}");
        assert_eq!(form["C"], "");
    }
}
