//! Calls that the SDK crates of the other commands are not there for: AWS's JSON protocol, signed, for services of which
//! only a few answers are read (an SDK for each would compile for minutes), and plain requests to addresses of ours.
//! Only what reads is called. Every answer has a limit, and every call a time.

use std::time::{Duration, SystemTime};

use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ostler_aws::SdkConfig;
use serde_json::Value;

/// For one try of a call.
const ANSWER: Duration = Duration::from_secs(15);

/// Tries of a call whose failure passes, and the pause before the second, doubled for the next.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// The largest answer that is read: a page of the largest list has a tenth of it.
const MAX_BODY: usize = 16 << 20;

/// Longest words of an error, in characters.
const MAX_WORDS: usize = 300;

/// A service that speaks AWS's JSON protocol.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// As its signature and its address name it.
    name: &'static str,
    /// What stands before the action in `X-Amz-Target`.
    target: &'static str,
    /// The protocol's version.
    version: &'static str,
}

/// Step Functions.
pub const STATES: Service = Service { name: "states", target: "AWSStepFunctions", version: "1.0" };
/// DynamoDB.
pub const DYNAMODB: Service =
    Service { name: "dynamodb", target: "DynamoDB_20120810", version: "1.0" };
/// CloudWatch Logs.
pub const LOGS: Service = Service { name: "logs", target: "Logs_20140328", version: "1.1" };
/// CloudWatch.
pub const MONITORING: Service =
    Service { name: "monitoring", target: "GraniteServiceVersion20100801", version: "1.0" };
/// Service Quotas.
pub const QUOTAS: Service =
    Service { name: "servicequotas", target: "ServiceQuotasV20190624", version: "1.1" };
/// Parameter Store.
pub const SSM: Service = Service { name: "ssm", target: "AmazonSSM", version: "1.1" };

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// AWS's code, where it gave one.
    pub code: Option<String>,
    /// What happened, in words.
    pub text: String,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> Self {
        trouble.text
    }
}

impl Trouble {
    fn new(text: impl Into<String>) -> Self {
        Self { code: None, text: text.into() }
    }
}

/// An HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Bytes,
    /// Its header `Date`, as it was sent.
    pub date: Option<String>,
}

/// The way out.
pub struct Wire {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    aws: SdkConfig,
}

impl Wire {
    /// With the shell's credentials, region and endpoint. Opens nothing yet.
    pub fn new(aws: &SdkConfig) -> anyhow::Result<Self> {
        let https = HttpsConnectorBuilder::new().with_native_roots()?.https_or_http();
        let client = Client::builder(TokioExecutor::new()).build(https.enable_http1().build());
        Ok(Self { client, aws: aws.clone() })
    }

    /// Asks a service. What is throttled or fails passing is tried again a few times.
    pub async fn ask(
        &self,
        service: Service,
        action: &str,
        input: &Value,
    ) -> Result<Value, Trouble> {
        let (answer, _) = self.ask_dated(service, action, input).await?;
        Ok(answer)
    }

    /// The same, with what the service's clock says.
    pub async fn ask_dated(
        &self,
        service: Service,
        action: &str,
        input: &Value,
    ) -> Result<(Value, Option<String>), Trouble> {
        let mut pause = PAUSE;
        let mut tried = 1;
        loop {
            let done = self.ask_once(service, action, input).await;
            match done {
                Err((trouble, true)) if tried < TRIES => {
                    tracing::debug!(action, %trouble, "tried again");
                    tokio::time::sleep(pause).await;
                    (pause, tried) = (pause * 2, tried + 1);
                }
                Err((trouble, _)) => return Err(trouble),
                Ok(done) => return Ok(done),
            }
        }
    }

    /// The second part of an error says whether it may pass.
    async fn ask_once(
        &self,
        service: Service,
        action: &str,
        input: &Value,
    ) -> Result<(Value, Option<String>), (Trouble, bool)> {
        let lasting = |text: String| (Trouble::new(text), false);
        let what = format!("{}:{action}", service.name);
        let request = self.signed(service, action, input).await.map_err(lasting)?;
        let sent = self.send(request).await;
        let answer = sent.map_err(|why| (Trouble::new(format!("{what}: {why}")), true))?;
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        if (200..300).contains(&answer.status) {
            return Ok((value, answer.date));
        }
        let code = value["__type"].as_str().map(|code| code.rsplit('#').next().unwrap_or(code));
        let message = value["message"].as_str().or(value["Message"].as_str()).unwrap_or_default();
        let message: String = message.chars().take(MAX_WORDS).collect();
        let text = format!("{what}: {} {} {message}", answer.status, code.unwrap_or_default());
        let passes = answer.status >= 500 || code.is_some_and(|code| code.contains("Throttl"));
        let trouble = Trouble { code: code.map(str::to_owned), text: text.trim_end().to_owned() };
        Err((trouble, passes))
    }

    async fn signed(
        &self,
        service: Service,
        action: &str,
        input: &Value,
    ) -> Result<Request<Full<Bytes>>, String> {
        let region = self.aws.region().map(|region| region.as_ref().to_owned());
        let region = region.ok_or("no AWS region is set: AWS_REGION, or --region")?;
        let url = match self.aws.endpoint_url() {
            Some(url) => format!("{}/", url.trim_end_matches('/')),
            None => format!("https://{}.{region}.{}/", service.name, suffix(&region)),
        };
        let provider = self.aws.credentials_provider().ok_or("there are no AWS credentials")?;
        let credentials = provider.provide_credentials().await;
        let credentials = credentials.map_err(|error| format!("AWS credentials: {error}"))?;
        let body = Bytes::from(input.to_string());
        let kind = format!("application/x-amz-json-{}", service.version);
        let target = format!("{}.{action}", service.target);
        let headers = [("content-type", kind.as_str()), ("x-amz-target", target.as_str())];
        let identity = credentials.into();
        #[allow(clippy::disallowed_methods, reason = "AWS judges signatures by the real time")]
        let now = SystemTime::now();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&region)
            .name(service.name)
            .time(now)
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| format!("sign a request: {error}"))?
            .into();
        let signable =
            SignableRequest::new("POST", &url, headers.into_iter(), SignableBody::Bytes(&body));
        let signable = signable.map_err(|error| format!("sign a request: {error}"))?;
        let signed = sign(signable, &parameters);
        let (instructions, _) =
            signed.map_err(|error| format!("sign a request: {error}"))?.into_parts();
        let mut request = Request::builder().method(Method::POST).uri(&url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut request = request
            .body(Full::new(body))
            .map_err(|error| format!("a request to {}: {error}", service.name))?;
        instructions.apply_to_request_http1x(&mut request);
        Ok(request)
    }

    /// Posts to an address, once.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, String> {
        let mut request = Request::builder().method(Method::POST).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        self.send(request.body(body).map_err(|error| format!("{url}: {error}"))?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| causes(&error))?;
            let status = answer.status().as_u16();
            let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
            let date = date.map(str::to_owned);
            let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
            let body = body.map_err(|error| format!("its answer could not be read: {error}"))?;
            Ok(Answer { status, body: body.to_bytes(), date })
        };
        let waited = tokio::time::timeout(ANSWER, exchange).await;
        waited.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER.as_secs())))
    }
}

/// An error with what is behind it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// What services' addresses end with (AWS General Reference, "Service endpoints").
fn suffix(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}
