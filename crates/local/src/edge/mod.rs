//! The edge: the one AWS endpoint of the local world. It knows who calls what, counts it, makes it fail to
//! order, serves what moto has not or has wrongly ([`CORRECTIONS`]), and passes on the rest.

pub mod faults;
pub mod sigv4;
mod sts;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};

pub use faults::{FaultKind, FaultRule, Faults};

use crate::aws::{self, Call, Reply};
use crate::deploy::Deployments;
use crate::ec2;
use crate::lambda_host::{Host, InvokeError, url};
use crate::queues::Queues;
use crate::time::WorldClock;

/// Where the edge corrects or completes moto: what AWS does, where that is written, and where it is done.
/// The launcher (`moto/launcher.py`) mends the rest; each of its functions says what.
pub const CORRECTIONS: &[(&str, &str, &str)] = &[
    (
        "every answer has x-amzn-requestid",
        "AWS common response headers; moto's executor needs it",
        "edge",
    ),
    ("Lambda Invoke runs the deployed code", "Lambda API reference, Invoke", "lambda_host"),
    (
        "function URLs answer, and GetFunctionUrlConfig tells them",
        "Lambda developer guide, function URLs",
        "lambda_host::url, edge",
    ),
    (
        "StartExecution refuses names over 80 characters or with forbidden ones",
        "Step Functions API reference, StartExecution",
        "edge",
    ),
    (
        "executions that end are an event for rules",
        "Step Functions developer guide, EventBridge events",
        "deploy",
    ),
    (
        "FIFO queues: deduplication for 5 minutes, order and blocking of groups",
        "SQS developer guide, FIFO queues",
        "queues",
    ),
    (
        "event source mappings poll in batches with partial responses",
        "Lambda developer guide, SQS",
        "queues::mappings",
    ),
    (
        "CreateFleet keeps client tokens, spot requests have ids, describe lags",
        "EC2 API reference",
        "ec2",
    ),
    (
        "log subscriptions filter, and probe their target first",
        "CloudWatch Logs user guide, subscriptions",
        "deploy::logs",
    ),
    (
        "schedules fire, rules reach functions, undelivered events become dead letters",
        "EventBridge user guide",
        "deploy::events",
    ),
    ("DynamoDB deletes expired items, late", "DynamoDB developer guide, TTL", "deploy"),
    ("an instance's role is enforced", "the template's RunnerRole", "edge"),
    ("a role's trust policy is enforced", "STS API reference, AssumeRole", "edge::sts"),
    ("each account has its own instances", "EC2 API reference", "edge, ec2"),
];

/// Bodies that the edge takes: the largest are code on its way to S3.
const BODY_BYTES_MAX: usize = 1 << 30;

/// EC2 as the edge serves it; see [`ec2::Ec2Plane`].
pub trait InstancePlane: Send + Sync {
    /// Whether it answers this action; the rest goes to moto.
    fn serves(&self, action: &str) -> bool;
    /// Answers it.
    fn serve<'a>(
        &'a self,
        parameters: &'a BTreeMap<String, String>,
    ) -> Pin<Box<dyn Future<Output = ec2::Answer> + Send + 'a>>;
    /// Launch templates may have been changed by a deployment.
    fn templates_changed(&self) {}
}

/// Who an instance is, by its access key.
#[derive(Clone)]
pub struct InstanceIdentity {
    /// Secret access key.
    pub secret: String,
    /// Session token.
    pub session_token: String,
    /// `${aws:userid}`: `<role id>:<instance id>`.
    pub user_id: String,
}

/// Finds an instance by its access key id; `None` if there is none (any more).
pub type InstanceKeys = Arc<dyn Fn(&str) -> Option<InstanceIdentity> + Send + Sync>;

/// What the instances' role may touch; nothing until a deployment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceScope {
    /// Account, where it is not [`aws::ACCOUNT`].
    pub account: Option<String>,
    /// Unique id of the role, `AROA…`. Empty for that of any instance.
    pub role_id: String,
    /// Handoff table.
    pub handoff_table: String,
    /// Runners' log group.
    pub log_group: String,
}

/// An execution that ended, as Step Functions tells EventBridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionEnded {
    /// ARN of the execution.
    pub execution_arn: String,
    /// ARN of its state machine.
    pub state_machine_arn: String,
    /// Name of the execution.
    pub name: String,
    /// `SUCCEEDED`, `FAILED`, `ABORTED` or `TIMED_OUT`.
    pub status: String,
    /// World milliseconds since 1970.
    pub start_date: i64,
    /// World milliseconds since 1970.
    pub stop_date: i64,
    /// JSON text.
    pub input: String,
    /// JSON text, of those that succeeded.
    pub output: Option<String>,
    /// Error name, of those that failed.
    pub error: Option<String>,
    /// And its cause.
    pub cause: Option<String>,
}

/// Number of calls by caller and `service:Action`.
pub type Calls = BTreeMap<String, BTreeMap<String, u64>>;

/// The edge. Cheap to share; stops with [`Edge::stop`].
pub struct Edge {
    clock: WorldClock,
    url: String,
    moto: aws::Client,
    faults: Faults,
    calls: Mutex<Calls>,
    lambda: Arc<Host>,
    queues: Arc<Queues>,
    deployments: Arc<Deployments>,
    plane: RwLock<Option<Arc<dyn InstancePlane>>>,
    /// EC2 of other regions than the world's own.
    regions: RwLock<BTreeMap<String, Arc<dyn InstancePlane>>>,
    /// Those of other accounts.
    elsewhere: RwLock<BTreeMap<String, Arc<dyn InstancePlane>>>,
    keys: RwLock<Option<InstanceKeys>>,
    routers: RwLock<Vec<(String, Router)>>,
    ended: broadcast::Sender<ExecutionEnded>,
    stop: watch::Sender<bool>,
}

impl Edge {
    /// Serves on a listener, in front of the moto server at `moto_url`.
    pub fn start(
        listener: TcpListener,
        moto_url: &str,
        clock: WorldClock,
        state_dir: &Path,
        seed: u64,
    ) -> anyhow::Result<Arc<Self>> {
        let url =
            format!("http://{}", listener.local_addr().context("address of the edge's listener")?);
        let moto = aws::Client::new(moto_url, "edge");
        std::fs::create_dir_all(state_dir.join("lambda"))
            .with_context(|| format!("folder for functions' code under {}", state_dir.display()))?;
        let lambda = Host::new(clock, state_dir, &url, Some(moto.clone()));
        let queues = Queues::new(clock, moto.clone(), aws::Client::new(&url, "event-source"), seed);
        let dead_letters = Arc::clone(&queues);
        lambda.set_dead_letters(Arc::new(move |queue: &str, body: String| {
            dead_letters.dead_letter(queue, body, BTreeMap::new());
        }));
        let deployments = Deployments::new(
            clock,
            moto.clone(),
            aws::Client::new(&url, "events"),
            &lambda,
            &queues,
        );
        let edge = Arc::new(Self {
            clock,
            url,
            moto,
            faults: Faults::new(seed),
            calls: Mutex::default(),
            lambda,
            queues,
            deployments,
            plane: RwLock::default(),
            regions: RwLock::default(),
            elsewhere: RwLock::default(),
            keys: RwLock::default(),
            routers: RwLock::default(),
            ended: broadcast::channel(1024).0,
            stop: watch::channel(false).0,
        });
        tokio::spawn(accept(Arc::clone(&edge), listener));
        Ok(edge)
    }

    /// Address for `AWS_ENDPOINT_URL`, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The world's clock.
    pub fn clock(&self) -> WorldClock {
        self.clock
    }

    /// A client for AWS APIs through the edge, under a caller's name.
    pub fn client(&self, caller: &str) -> aws::Client {
        aws::Client::new(&self.url, caller)
    }

    /// A client that goes past the edge: neither counted nor made to fail.
    pub fn moto(&self) -> &aws::Client {
        &self.moto
    }

    /// Rules that make calls fail.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Calls since the start or the last [`Edge::reset_calls`].
    pub fn calls(&self) -> Calls {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts from zero again.
    pub fn reset_calls(&self) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The Lambda service.
    pub fn lambda(&self) -> &Arc<Host> {
        &self.lambda
    }

    /// The queues.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// What was made from templates.
    pub fn deployments(&self) -> &Arc<Deployments> {
        &self.deployments
    }

    /// Executions that end from now on.
    pub fn executions_ended(&self) -> broadcast::Receiver<ExecutionEnded> {
        self.ended.subscribe()
    }

    /// Gives EC2's actions to a plane of one's own.
    pub fn set_instance_plane(&self, plane: Arc<dyn InstancePlane>) {
        *self.plane.write().unwrap_or_else(PoisonError::into_inner) = Some(plane);
    }

    /// Gives EC2's actions in another region to a plane of its own.
    pub fn set_region(&self, region: &str, plane: Arc<dyn InstancePlane>) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(region.to_owned(), plane);
    }

    /// Adds another account, with a plane of its own: callers whose key ids end in `-<account>` are in it.
    pub fn add_account(&self, account: &str, plane: Arc<dyn InstancePlane>) {
        let mut all = self.elsewhere.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(account.to_owned(), plane);
        self.deployments.add_account(account);
    }

    /// The account that a caller is in, where it is not [`aws::ACCOUNT`].
    fn account(&self, caller: &str) -> Option<String> {
        if let Some(id) = aws::account_of(caller) {
            return Some(id.to_owned());
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let identity = keys.filter(|_| caller.starts_with("instance-"))?(caller)?;
        self.deployments.instance_scope(&identity.user_id).account
    }

    /// EC2 of an account; of the world's own, in a region.
    fn plane(&self, account: Option<&str>, region: &str) -> Option<Arc<dyn InstancePlane>> {
        if let Some(id) = account {
            return self.elsewhere.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let own = || self.plane.read().unwrap_or_else(PoisonError::into_inner).clone();
        regions.get(region).cloned().or_else(own)
    }

    /// Says how instances are known. Without it they are all refused.
    pub fn set_instance_keys(&self, keys: InstanceKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }

    /// Serves a router under a path, e.g. `/_instance`. It sees paths without that prefix.
    pub fn nest(&self, prefix: &str, router: Router) {
        let nested = Router::new().nest(prefix, router);
        self.routers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push((format!("{prefix}/"), nested));
    }

    /// Stops serving and ends all that runs on its behalf.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        self.deployments.stop();
        self.queues.stop();
        self.lambda.shut_down().await;
    }

    async fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Answer, LostConnection> {
        let path = request.uri().path().to_owned();
        let router = self
            .routers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find(|(prefix, _)| path.starts_with(prefix))
            .map(|(_, router)| router.clone());
        if let Some(mut router) = router {
            use tower_service::Service as _;
            let answer = router.call(request.map(axum::body::Body::new)).await;
            return answer.map(Answer::Routed).map_err(|never: Infallible| match never {});
        }
        let (parts, body) = request.into_parts();
        let body_max =
            if path.starts_with("/_url/") { url::BODY_BYTES_MAX } else { BODY_BYTES_MAX };
        let body = match Limited::new(body, body_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let message = json!({"Message": format!("Request body is over {body_max} bytes")});
                return Ok(Answer::Whole(aws::json_reply(413, &message)));
            }
            Err(_) => return Err(LostConnection),
        };
        let mut answer = if path.starts_with("/_edge/") {
            self.admin(&path, &body)
        } else {
            self.aws(parts, body).await?
        };
        if !answer.headers().contains_key("x-amzn-requestid")
            && let Ok(id) = crate::lambda_host::request_id().parse::<HeaderValue>()
        {
            answer.headers_mut().insert("x-amzn-requestid", id);
        }
        Ok(Answer::Whole(answer))
    }

    fn admin(&self, path: &str, body: &[u8]) -> Reply {
        let bad =
            |error: serde_json::Error| aws::json_reply(400, &json!({"message": error.to_string()}));
        match path {
            "/_edge/stats" => aws::json_reply(200, &json!({"calls": self.calls()})),
            "/_edge/metrics" => aws::json_reply(200, &json!({"metrics": self.lambda.metrics()})),
            "/_edge/reset" => {
                self.reset_calls();
                self.faults.clear();
                aws::json_reply(200, &json!({}))
            }
            "/_edge/faults" => match serde_json::from_slice::<Vec<FaultRule>>(body) {
                Ok(rules) => {
                    rules.into_iter().for_each(|rule| self.faults.add(rule));
                    aws::json_reply(200, &json!({"rules": self.faults.rules()}))
                }
                Err(error) => bad(error),
            },
            "/_edge/execution-ended" => match serde_json::from_slice::<ExecutionEnded>(body) {
                Ok(ended) => {
                    self.deployments.execution_ended(&ended);
                    // Nobody may be listening.
                    let _ = self.ended.send(ended);
                    aws::json_reply(200, &json!({}))
                }
                Err(error) => bad(error),
            },
            _ => aws::json_reply(404, &json!({"message": format!("the edge has no {path}")})),
        }
    }

    async fn aws(
        self: &Arc<Self>,
        parts: http::request::Parts,
        body: Bytes,
    ) -> Result<Reply, LostConnection> {
        let path = parts.uri.path().to_owned();
        let call = if path.starts_with("/_url/") {
            Call {
                caller: "url".into(),
                service: "lambda".into(),
                action: "InvokeFunctionUrl".into(),
                protocol: aws::Protocol::RestJson,
                ..Call::default()
            }
        } else {
            Call::of(&parts.method, &parts.uri, &parts.headers, &body)
        };
        *self
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(call.caller.clone())
            .or_default()
            .entry(call.name())
            .or_default() += 1;
        if call.caller.starts_with("instance-")
            && let Err((status, code, message)) = self.authorize(&call, &parts, &body)
        {
            return Ok(call.error(status, code, &message));
        }
        let mut lost = false;
        let mut killed = None;
        match self.faults.hit(&call, &path, &body) {
            None => {}
            Some(FaultKind::Throttle) => return Ok(call.throttled()),
            Some(FaultKind::ServerError) => return Ok(call.broken()),
            Some(FaultKind::Error { status, code, message }) => {
                return Ok(call.error(status, &code, &message));
            }
            Some(FaultKind::Latency { world_seconds }) => {
                self.clock.sleep(Duration::from_secs_f64(world_seconds.clamp(0.0, 1e6))).await;
            }
            Some(FaultKind::LostResponse) => lost = true,
            Some(FaultKind::Kill { done }) => {
                let token = parts.headers.get("x-amz-security-token");
                let token = token.and_then(|it| it.to_str().ok()).unwrap_or("").to_owned();
                if !done {
                    self.lambda.kill(&token);
                    return Err(LostConnection);
                }
                killed = Some(token);
            }
        }
        let edge = Arc::clone(self);
        // A caller that gives up does not undo its call.
        let served = tokio::spawn(async move { edge.serve(&call, parts, body).await }).await;
        if let Some(token) = killed {
            self.lambda.kill(&token);
            return Err(LostConnection);
        }
        match served {
            Ok(answer) if !lost => Ok(answer),
            _ => Err(LostConnection),
        }
    }

    async fn serve(&self, call: &Call, mut parts: http::request::Parts, body: Bytes) -> Reply {
        let path = parts.uri.path().to_owned();
        let account = self.account(&call.caller);
        if let Some(id) = account.as_deref().and_then(|id| id.parse::<HeaderValue>().ok()) {
            parts.headers.insert(aws::ACCOUNT_HEADER, id);
        }
        match (call.service.as_str(), call.action.as_str()) {
            ("lambda", "InvokeFunctionUrl") => return self.function_url(&parts, &body).await,
            ("lambda", "GetFunctionUrlConfig") => {
                if let Some(answer) = self.url_config(&path) {
                    return answer;
                }
            }
            ("lambda", "Invoke") => return self.lambda.serve(&path, &parts.headers, body).await,
            ("sqs", action) => {
                if let Some(answer) = self.queues.serve(call, action, &body).await {
                    return answer;
                }
            }
            ("ec2", action) => {
                let plane = self.plane(account.as_deref(), &call.region);
                if let Some(plane) = plane.filter(|plane| plane.serves(action)) {
                    let answer = plane.serve(&aws::form(&body)).await;
                    return aws::reply(answer.status, "text/xml;charset=UTF-8", answer.body);
                }
            }
            ("logs", action) => {
                if let Some(answer) = self.deployments.logs().serve(action, &body, call).await {
                    return answer;
                }
            }
            ("sts", "AssumeRole") => return sts::assume(&self.moto, call, &aws::form(&body)).await,
            ("states", "StartExecution") => {
                if let Some(refusal) = refused_name(call, &body) {
                    return refusal;
                }
            }
            _ => {}
        }
        let answer = match self.moto.forward(parts, body.clone()).await {
            Ok(answer) => answer,
            Err(error) => {
                call.error(503, "ServiceUnavailable", &format!("moto did not answer: {error}"))
            }
        };
        if answer.status().is_success() {
            self.after(call, &body).await;
        }
        answer
    }

    /// What follows from a call that moto has carried out.
    async fn after(&self, call: &Call, body: &[u8]) {
        match (call.service.as_str(), call.action.as_str()) {
            (
                "cloudformation",
                "ExecuteChangeSet" | "CreateStack" | "UpdateStack" | "DeleteStack"
                | "DeleteChangeSet",
            ) => {
                self.lambda.refresh();
                self.queues.refresh();
                if let Some(plane) = &*self.plane.read().unwrap_or_else(PoisonError::into_inner) {
                    plane.templates_changed();
                }
                let elsewhere = self.elsewhere.read().unwrap_or_else(PoisonError::into_inner);
                elsewhere.values().for_each(|plane| plane.templates_changed());
                drop(elsewhere);
                self.deployments.sync_soon();
            }
            ("lambda", "CreateEventSourceMapping") => {
                let properties = serde_json::from_slice(body).unwrap_or(Value::Null);
                self.queues.map("api", &properties);
            }
            ("lambda", action) if action != "GetFunction" => self.lambda.refresh(),
            ("sqs", "SetQueueAttributes" | "DeleteQueue" | "CreateQueue") => self.queues.refresh(),
            ("logs", "PutLogEvents") => self.deployments.logs().deliver(body),
            _ => {}
        }
    }

    /// `/2021-10-31/functions/<function>/url`, for a function whose URL a template has made.
    fn url_config(&self, path: &str) -> Option<Reply> {
        let name = aws::percent_decode(path.split('/').nth(3)?.as_bytes());
        self.deployments.url_allows(&name).ok()?;
        let made = "2026-01-01T00:00:00Z";
        let answer = json!({
            "FunctionUrl": format!("{}/_url/{name}/", self.url),
            "FunctionArn": format!("arn:aws:lambda:{}:{}:function:{name}", aws::REGION, aws::ACCOUNT),
            "AuthType": "NONE",
            "InvokeMode": "BUFFERED",
            "CreationTime": made,
            "LastModifiedTime": made,
        });
        Some(aws::json_reply(200, &answer))
    }

    /// `/_url/<function>/<path>`
    async fn function_url(&self, parts: &http::request::Parts, body: &[u8]) -> Reply {
        let rest = &parts.uri.path()["/_url/".len()..];
        let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
        let name = aws::percent_decode(name.as_bytes());
        if let Err(why) = self.deployments.url_allows(&name) {
            tracing::warn!(function = name, why, "a function URL is refused");
            return aws::json_reply(403, &json!({"Message": "Forbidden"}));
        }
        let event = url::event(
            &parts.method,
            &parts.uri,
            &format!("/{below}"),
            &parts.headers,
            body,
            self.clock.now(),
        );
        match self.lambda.invoke(&name, event.to_string().into()).await {
            Ok((_, outcome)) => url::response(&outcome),
            Err(InvokeError::Throttled) => {
                aws::json_reply(429, &json!({"Message": "Too Many Requests"}))
            }
            // Base64 grows a body by a third: it was under the URL's limit, its event is not.
            Err(InvokeError::TooLarge(_)) => {
                aws::json_reply(413, &json!({"Message": "Request Too Long"}))
            }
            Err(error) => {
                tracing::warn!(
                    function = name,
                    ?error,
                    "a function URL's function could not be run"
                );
                aws::json_reply(502, &json!({"Message": "Internal Server Error"}))
            }
        }
    }

    /// The instance role: read and delete its own item, write to the runners' log, and nothing else. The
    /// error is status, code and message.
    fn authorize(
        &self,
        call: &Call,
        parts: &http::request::Parts,
        body: &[u8],
    ) -> Result<(), (u16, &'static str, String)> {
        let unknown = |what: &str| {
            let message = format!("The security token included in the request is {what}.");
            Err((403, "UnrecognizedClientException", message))
        };
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(identity) = keys.and_then(|keys| keys(&call.caller)) else {
            return unknown("invalid");
        };
        let token = parts.headers.get("x-amz-security-token").map(HeaderValue::as_bytes);
        if token != Some(identity.session_token.as_bytes()) {
            return unknown("missing or invalid");
        }
        sigv4::verify(
            &parts.method,
            &parts.uri,
            &parts.headers,
            body,
            &identity.secret,
            self.clock.now(),
        )
        .map_err(|why| (403, "InvalidSignatureException", why))?;
        let scope = self.deployments.instance_scope(&identity.user_id);
        let input: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let allowed = match call.name().as_str() {
            "dynamodb:GetItem" | "dynamodb:DeleteItem" => {
                let own = input["Key"].as_object().is_some_and(|key| {
                    key.len() == 1
                        && key.values().all(|value| value["S"] == identity.user_id.as_str())
                });
                own && !scope.handoff_table.is_empty()
                    && table_name(input["TableName"].as_str().unwrap_or("")) == scope.handoff_table
            }
            "logs:CreateLogStream" | "logs:PutLogEvents" => {
                !scope.log_group.is_empty() && input["logGroupName"] == scope.log_group.as_str()
            }
            _ => false,
        };
        if allowed {
            return Ok(());
        }
        let message = format!(
            "User: {} is not authorized to perform: {} because no identity-based policy allows it",
            identity.user_id,
            call.name()
        );
        Err((400, "AccessDeniedException", message))
    }
}

/// A table's name, also where its ARN is given.
fn table_name(table: &str) -> &str {
    table.rsplit_once(":table/").map_or(table, |(_, name)| name)
}

/// moto takes any name. Source: Step Functions API reference, StartExecution, `name`.
fn refused_name(call: &Call, body: &[u8]) -> Option<Reply> {
    let input: Value = serde_json::from_slice(body).ok()?;
    let name = input["name"].as_str()?;
    let forbidden =
        |c: char| c.is_whitespace() || c.is_control() || "<>{}[]?*\"#%\\^|~`$&,;:/".contains(c);
    if (1..=80).contains(&name.chars().count()) && !name.contains(forbidden) {
        return None;
    }
    Some(call.error(400, "InvalidName", &format!("Invalid Name: '{name}'")))
}

enum Answer {
    Whole(Reply),
    Routed(axum::response::Response),
}

/// The connection is closed without an answer.
#[derive(Debug)]
struct LostConnection;

impl std::fmt::Display for LostConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the answer is lost, by a fault rule or with its caller")
    }
}

impl std::error::Error for LostConnection {}

async fn accept(edge: Arc<Edge>, listener: TcpListener) {
    let mut stop = edge.stop.subscribe();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file handles, most likely: others may close some.
                tracing::warn!(%error, "the edge could not take a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let edge = Arc::clone(&edge);
        let mut stop = stop.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let edge = Arc::clone(&edge);
                async move {
                    edge.handle(request).await.map(|answer| match answer {
                        Answer::Whole(reply) => {
                            reply.map(|body| axum::body::Body::new(Full::new(body)))
                        }
                        Answer::Routed(response) => response,
                    })
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // Ends with an error where an answer is lost on purpose.
                _ = connection => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execution_names_are_checked_as_by_step_functions() {
        let call = Call { service: "states".into(), ..Call::default() };
        let refused = |name: &str| {
            refused_name(&call, json!({"name": name}).to_string().as_bytes()).is_some()
        };
        assert!(!refused("acme-app-1-0123456789ab-r1") && !refused(&"x".repeat(80)));
        assert!(refused(&"x".repeat(81)) && refused("") && refused("a b") && refused("a/b"));
        assert!(refused_name(&call, b"{}").is_none(), "a name is not required");
    }
}
