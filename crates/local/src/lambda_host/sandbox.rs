//! One execution environment: one process of a function, spoken to over the Runtime API, one invocation
//! at a time. Source: AWS, "Using the Lambda runtime API".

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{broadcast, mpsc};

use super::{Function, LogLine};
use crate::process;

/// Init phase: AWS gives a runtime 10 s before it counts init against the function's own time-out.
const INIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Variable of the session token: one for each sandbox, so that the edge can tell who calls.
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
/// 6 MB and the slack that AWS's own error message names.
const RESPONSE_BYTES_MAX: usize = 6_291_556;

/// What the function gets: the event and the frame AWS puts around it.
pub(super) struct Invocation {
    pub request_id: String,
    pub payload: Bytes,
    /// Real milliseconds since 1970, as the runtime compares it with the machine's clock.
    pub deadline_ms: i64,
    pub arn: String,
}

/// How an invocation ended, in the words of the Invoke API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The function's answer, or the error as `{"errorType", "errorMessage", ...}`.
    pub payload: Bytes,
    /// Whether the payload is an error (`X-Amz-Function-Error`).
    pub error: bool,
}

impl Outcome {
    pub(super) fn failed(kind: &str, request_id: &str, message: &str) -> Self {
        let message = format!("RequestId: {request_id} Error: {message}");
        let body = json!({"errorType": kind, "errorMessage": message});
        Self { payload: body.to_string().into(), error: true }
    }

    /// `errorType` of an error.
    pub fn error_type(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.payload).ok().filter(|_| self.error)?;
        body["errorType"].as_str().map(str::to_owned)
    }
}

enum Event {
    /// The runtime asks for work.
    Ready,
    Answered(Outcome),
    InitFailed(Outcome),
}

/// What the Runtime API's server shares with its sandbox.
struct Runtime {
    work: tokio::sync::Mutex<mpsc::Receiver<Invocation>>,
    events: mpsc::Sender<Event>,
    current: Mutex<String>,
}

pub(super) struct Sandbox {
    child: Child,
    work: mpsc::Sender<Invocation>,
    events: mpsc::Receiver<Event>,
    server: tokio::task::JoinHandle<()>,
    /// The session token that the process calls AWS with.
    token: String,
    /// Tokens of those that are to end.
    kills: broadcast::Receiver<String>,
    /// Whether it has served before.
    pub warm: bool,
    /// Whether it can serve again.
    pub healthy: bool,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.server.abort();
        process::kill_group(&self.child);
    }
}

impl Sandbox {
    /// Starts a process of the function. The error says what could not be started.
    pub async fn start(
        function: &Function,
        variables: &[(String, String)],
        cgroup: Option<&Path>,
    ) -> Result<Self, String> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(|error| format!("no port for the Runtime API: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let bootstrap = function.root.join("bootstrap");
        let mut command = Command::new(&bootstrap);
        command
            .current_dir(&function.root)
            .env_clear()
            .envs(variables.iter().cloned())
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(cgroup) = cgroup {
            process::confine(&mut command, cgroup);
        }
        let mut child = process::tie(&mut command)
            .spawn()
            .map_err(|error| format!("{} did not start: {error}", bootstrap.display()))?;
        follow(function, child.stdout.take());
        follow(function, child.stderr.take());
        let (work, work_rx) = mpsc::channel(1);
        let (events_tx, events) = mpsc::channel(4);
        let runtime = Arc::new(Runtime {
            work: tokio::sync::Mutex::new(work_rx),
            events: events_tx,
            current: Mutex::new(String::new()),
        });
        let server = tokio::spawn(serve(listener, runtime));
        let token = variables.iter().find(|(name, _)| name == SESSION_TOKEN);
        let token = token.map_or_else(String::new, |(_, value)| value.clone());
        let kills = function.kills.subscribe();
        Ok(Self { child, work, events, server, token, kills, warm: false, healthy: true })
    }

    /// Whether the process is still there.
    pub fn alive(&mut self) -> bool {
        self.healthy && matches!(self.child.try_wait(), Ok(None))
    }

    /// Process id; `None` once the process has ended.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Runs one invocation. `None`: a warm sandbox was found dead before it took the work, try another.
    pub async fn invoke(
        &mut self,
        invocation: Invocation,
        timeout: Duration,
        now_ms: impl Fn() -> i64,
    ) -> Option<Outcome> {
        match self.ready(&invocation.request_id, timeout).await {
            Ok(()) => self.perform(invocation, timeout, now_ms).await,
            Err(end) => end,
        }
    }

    /// Waits until the runtime asks for work. The error is how the invocation ends instead, as in
    /// [`Sandbox::invoke`].
    pub async fn ready(&mut self, id: &str, timeout: Duration) -> Result<(), Option<Outcome>> {
        let limit = if self.warm { timeout } else { timeout + INIT_TIMEOUT };
        let ready = tokio::select! {
            event = self.events.recv() => event,
            status = self.child.wait() => return Err(self.exited(id, status, self.warm)),
            () = tokio::time::sleep(limit) => None,
        };
        match ready {
            Some(Event::Ready) => {
                self.warm = true;
                Ok(())
            }
            Some(Event::InitFailed(outcome) | Event::Answered(outcome)) => {
                self.healthy = false;
                Err(Some(outcome))
            }
            None => Err(Some(self.timed_out(id, timeout))),
        }
    }

    /// Gives an invocation to a runtime that has asked for it.
    pub async fn perform(
        &mut self,
        mut invocation: Invocation,
        timeout: Duration,
        now_ms: impl Fn() -> i64,
    ) -> Option<Outcome> {
        let id = invocation.request_id.clone();
        invocation.deadline_ms =
            now_ms().saturating_add(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
        if self.work.send(invocation).await.is_err() {
            return None;
        }
        tokio::select! {
            event = self.events.recv() => match event {
                Some(Event::Answered(outcome) | Event::InitFailed(outcome)) => Some(outcome),
                // The runtime asks for more without having answered: it lost the invocation.
                Some(Event::Ready) | None => {
                    self.healthy = false;
                    Some(Outcome::failed("Runtime.ExitError", &id, "Runtime exited without providing a reason"))
                }
            },
            status = self.child.wait() => self.exited(&id, status, false),
            () = tokio::time::sleep(timeout) => Some(self.timed_out(&id, timeout)),
            () = told(&mut self.kills, &self.token) => {
                process::kill_group(&self.child);
                let status = self.child.wait().await;
                self.exited(&id, status, false)
            }
        }
    }

    fn timed_out(&mut self, id: &str, timeout: Duration) -> Outcome {
        self.healthy = false;
        process::kill_group(&self.child);
        let message = format!("Task timed out after {:.2} seconds", timeout.as_secs_f64());
        Outcome::failed("Sandbox.Timedout", id, &message)
    }

    fn exited(
        &mut self,
        id: &str,
        status: std::io::Result<std::process::ExitStatus>,
        replaceable: bool,
    ) -> Option<Outcome> {
        self.healthy = false;
        if replaceable {
            return None;
        }
        // An answer may have come just before the end: it counts.
        while let Ok(event) = self.events.try_recv() {
            if let Event::Answered(outcome) | Event::InitFailed(outcome) = event {
                return Some(outcome);
            }
        }
        use std::os::unix::process::ExitStatusExt;
        let reason = match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(0), _)) => "Runtime exited without providing a reason".to_owned(),
            Ok((Some(code), _)) => format!("Runtime exited with error: exit status {code}"),
            Ok((None, Some(libc::SIGKILL))) => {
                "Runtime exited with error: signal: killed".to_owned()
            }
            Ok((None, signal)) => {
                format!("Runtime exited with error: signal: {}", signal.unwrap_or_default())
            }
            Err(error) => format!("Runtime exited with error: {error}"),
        };
        Some(Outcome::failed("Runtime.ExitError", id, &reason))
    }
}

/// Waits until this sandbox is told to end.
async fn told(kills: &mut broadcast::Receiver<String>, token: &str) {
    loop {
        match kills.recv().await {
            Ok(killed) if killed == token => return,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Carries a process's output line by line to the function's log.
fn follow(function: &Function, stream: Option<impl AsyncRead + Send + Unpin + 'static>) {
    let Some(stream) = stream else { return };
    let (log, name) = (function.log.clone(), function.config.name.clone());
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            log.write(LogLine {
                function: name.clone(),
                line: String::from_utf8_lossy(&line).into_owned(),
            });
        }
    });
}

async fn serve(listener: TcpListener, runtime: Arc<Runtime>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let runtime = Arc::clone(&runtime);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let runtime = Arc::clone(&runtime);
                async move { answer(request, &runtime).await }
            });
            // A connection that breaks is the function's end, which its process's exit tells.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    request: http::Request<Incoming>,
    runtime: &Runtime,
) -> Result<http::Response<Full<Bytes>>, http::Error> {
    let path = request.uri().path().to_owned();
    let Some(path) = path.strip_prefix("/2018-06-01/runtime/") else {
        return plain(404, "{}");
    };
    if path == "invocation/next" {
        if runtime.events.send(Event::Ready).await.is_err() {
            return plain(500, "{}");
        }
        let Some(invocation) = runtime.work.lock().await.recv().await else {
            return plain(500, "{}");
        };
        *runtime.current.lock().unwrap_or_else(PoisonError::into_inner) =
            invocation.request_id.clone();
        return http::Response::builder()
            .header("content-type", "application/json")
            .header("lambda-runtime-aws-request-id", &invocation.request_id)
            .header("lambda-runtime-deadline-ms", invocation.deadline_ms)
            .header("lambda-runtime-invoked-function-arn", &invocation.arn)
            .header("lambda-runtime-trace-id", "Root=1-00000000-000000000000000000000000;Sampled=0")
            .body(Full::new(invocation.payload));
    }
    let init = path == "init/error";
    let given = path.strip_prefix("invocation/").and_then(|rest| rest.split_once('/'));
    let current = runtime.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let error = match given {
        Some((id, _)) if id != current => {
            return plain(400, "{\"errorType\":\"InvalidRequestID\"}");
        }
        Some((_, "response")) => false,
        Some((_, "error")) => true,
        _ if init => true,
        _ => return plain(404, "{}"),
    };
    let body = Limited::new(request.into_body(), RESPONSE_BYTES_MAX).collect().await;
    let (status, outcome) = match body {
        Ok(body) => (202, Outcome { payload: body.to_bytes(), error }),
        Err(_) => {
            let message = format!(
                "Response payload size exceeded maximum allowed payload size ({RESPONSE_BYTES_MAX} bytes)."
            );
            let body =
                json!({"errorType": "Function.ResponseSizeTooLarge", "errorMessage": message});
            (413, Outcome { payload: body.to_string().into(), error: true })
        }
    };
    let event = if init { Event::InitFailed(outcome) } else { Event::Answered(outcome) };
    let _ = runtime.events.send(event).await;
    plain(status, "{\"status\":\"OK\"}\n")
}

fn plain(status: u16, body: &'static str) -> Result<http::Response<Full<Bytes>>, http::Error> {
    http::Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
}

/// The variables a function finds, beside its own.
/// Source: AWS, "Defined runtime environment variables".
pub(super) fn variables(
    function: &Function,
    root: &Path,
    own: &[(String, String)],
) -> Vec<(String, String)> {
    let config = &function.config;
    let fixed = [
        (
            "PATH",
            std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ),
        ("LANG", "en_US.UTF-8".to_owned()),
        ("TZ", ":UTC".to_owned()),
        ("_HANDLER", config.handler.clone()),
        ("LAMBDA_TASK_ROOT", root.display().to_string()),
        ("LAMBDA_RUNTIME_DIR", root.display().to_string()),
        ("AWS_REGION", crate::aws::REGION.to_owned()),
        ("AWS_DEFAULT_REGION", crate::aws::REGION.to_owned()),
        ("AWS_LAMBDA_FUNCTION_NAME", config.name.clone()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", config.memory_mb.to_string()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", config.log_group.clone()),
        ("AWS_LAMBDA_LOG_FORMAT", if config.json_log { "JSON" } else { "Text" }.to_owned()),
        (
            "AWS_LAMBDA_LOG_STREAM_NAME",
            format!("local/[$LATEST]{}", super::request_id().replace('-', "")),
        ),
        ("AWS_ACCESS_KEY_ID", format!("fn-{}", config.name)),
        ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
        (SESSION_TOKEN, format!("sandbox-{}", super::request_id())),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
    let environment = config.environment.iter().map(|(name, value)| (name.clone(), value.clone()));
    fixed.chain(environment).chain(own.iter().cloned()).collect()
}
