//! Lambda, served from real binaries: each sandbox is a process of the deployed zip's `bootstrap`, spoken
//! to over the real Runtime API. Concurrency is the number of sandboxes; time-outs kill, in real time.

mod probe;
mod sandbox;
pub mod url;

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;

pub use probe::Probe;
pub use sandbox::Outcome;
use sandbox::{Invocation, Sandbox};

use crate::aws::{self, ACCOUNT, REGION, Reply};
use crate::time::WorldClock;

/// Synchronous request payload. Source: Lambda quotas ("6 MB each for request and response").
const REQUEST_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Asynchronous payload. Source: Lambda quotas, 1 MB since October 2025.
const EVENT_BYTES_MAX: usize = 1024 * 1024;
/// A zip whose files are larger than Lambda's own limit (250 MB unpacked) is refused, debug binaries being
/// what they are at four times that.
const CODE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Sandboxes of one function: the account's default concurrency is 1,000, this machine's is not.
const SANDBOXES_MAX: usize = 200;
/// Delays before the two retries of an asynchronous invocation that failed, world time.
/// Source: AWS, "How Lambda handles errors and retries with asynchronous invocation".
const ASYNC_RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(120)];

/// An event that finds no free sandbox is given up after this, world time. Source: the same page.
const EVENT_AGE_MAX: Duration = Duration::from_secs(21_600);

/// A function as it was deployed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionConfig {
    /// Its name.
    pub name: String,
    /// Real time that one invocation may take.
    pub timeout: Duration,
    /// Megabytes, told to the function only.
    pub memory_mb: u64,
    /// E.g. `bootstrap`.
    pub handler: String,
    /// Its own environment variables.
    pub environment: BTreeMap<String, String>,
    /// Identifies the code.
    pub code_sha256: String,
    /// Reserved concurrency, if any.
    pub concurrency: Option<usize>,
    /// Where its log goes, told to the function only.
    pub log_group: String,
    /// Whether it was asked to log in JSON, told to the function only.
    pub json_log: bool,
}

/// A line that a function wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Name of the function.
    pub function: String,
    /// Without its line end.
    pub line: String,
}

/// A value that a function published in Embedded Metric Format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricPoint {
    /// Name of the function.
    pub function: String,
    /// CloudWatch namespace.
    pub namespace: String,
    /// Metric's name.
    pub name: String,
    /// Largest dimension set, name to value.
    pub dimensions: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// What becomes of asynchronous invocations that fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsyncConfig {
    /// 0 to 2; 2 if absent.
    pub retries: Option<usize>,
    /// ARN of the SQS queue that gets what failed for good.
    pub on_failure: Option<String>,
}

/// Takes messages for SQS queues by ARN: dead letters of asynchronous invocations and of rules.
pub type DeadLetters = Arc<dyn Fn(&str, String) + Send + Sync>;

struct Function {
    config: FunctionConfig,
    /// Folder of the extracted zip.
    root: PathBuf,
    idle: Mutex<Vec<Sandbox>>,
    running: AtomicUsize,
    log: Arc<Log>,
    /// Tokens of sandboxes that are to end.
    kills: broadcast::Sender<String>,
}

/// A function's output: to its file, to those who listen, and into the metrics.
struct Log {
    file: Mutex<Option<std::fs::File>>,
    lines: broadcast::Sender<LogLine>,
    metrics: Arc<Mutex<Vec<MetricPoint>>>,
}

impl Log {
    fn write(&self, line: LogLine) {
        let points = metrics_of(&line);
        if !points.is_empty() {
            self.metrics.lock().unwrap_or_else(PoisonError::into_inner).extend(points);
        }
        if let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let _ = writeln!(file, "{}", line.line);
        }
        let _ = self.lines.send(line);
    }
}

/// The Lambda service of the local world.
pub struct Host {
    clock: WorldClock,
    state_dir: PathBuf,
    /// Where functions' configuration and code are read; none in tests that define their own.
    moto: Option<aws::Client>,
    /// Variables that every function gets: the edge's address and the world's clock.
    common: Vec<(String, String)>,
    functions: tokio::sync::Mutex<HashMap<String, (u64, Arc<Function>)>>,
    generation: AtomicU64,
    logs: Mutex<HashMap<String, Arc<Log>>>,
    lines: broadcast::Sender<LogLine>,
    metrics: Arc<Mutex<Vec<MetricPoint>>>,
    asynchronous: Mutex<HashMap<String, AsyncConfig>>,
    /// Log group and format by function: moto's CloudFormation drops them.
    logging: Mutex<HashMap<String, (Option<String>, bool)>>,
    dead_letters: Mutex<Option<DeadLetters>>,
    kills: broadcast::Sender<String>,
}

/// Why there was no invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvokeError {
    /// No such function.
    NotFound(String),
    /// All its concurrency is in use.
    Throttled,
    /// The payload is over the limit.
    TooLarge(usize),
    /// It could not be started here; says why.
    Broken(String),
}

impl Host {
    /// `edge_url` is what functions get as `AWS_ENDPOINT_URL`; `state_dir` keeps code and logs.
    pub fn new(
        clock: WorldClock,
        state_dir: &Path,
        edge_url: &str,
        moto: Option<aws::Client>,
    ) -> Arc<Self> {
        let common = vec![
            ("AWS_ENDPOINT_URL".to_owned(), edge_url.to_owned()),
            ("OSTLER_CLOCK".to_owned(), clock.variable()),
        ];
        Arc::new(Self {
            clock,
            state_dir: state_dir.join("lambda"),
            moto,
            common,
            functions: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
            logs: Mutex::default(),
            lines: broadcast::channel(4096).0,
            metrics: Arc::default(),
            asynchronous: Mutex::default(),
            logging: Mutex::default(),
            dead_letters: Mutex::default(),
            kills: broadcast::channel(256).0,
        })
    }

    /// Makes a function known without a deployment; `zip` holds its `bootstrap`.
    pub async fn define(&self, config: FunctionConfig, zip: &[u8]) -> Result<(), String> {
        let function = self.function_of(config, Bytes::copy_from_slice(zip)).await?;
        self.functions.lock().await.insert(function.config.name.clone(), (u64::MAX, function));
        Ok(())
    }

    /// Configurations may have changed: each is read again before its next invocation. Sandboxes of a
    /// function that did not change stay.
    pub fn refresh(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// How failures of a function's asynchronous invocations are handled.
    pub fn set_async(&self, function: &str, config: AsyncConfig) {
        self.asynchronous
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(function.to_owned(), config);
    }

    /// The `LoggingConfig` of a function's template: log group, and whether the format is JSON.
    pub fn set_logging(&self, function: &str, group: Option<&str>, json: bool) {
        let config = (group.map(str::to_owned), json);
        self.logging
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(function.to_owned(), config);
        self.refresh();
    }

    /// Where dead letters go.
    pub fn set_dead_letters(&self, queue: DeadLetters) {
        *self.dead_letters.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }

    /// Lines of all functions from now on. A reader that falls 4,096 lines behind misses some.
    pub fn lines(&self) -> broadcast::Receiver<LogLine> {
        self.lines.subscribe()
    }

    /// All values published so far.
    pub fn metrics(&self) -> Vec<MetricPoint> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sum of a metric over all functions and dimensions.
    pub fn metric_sum(&self, name: &str) -> f64 {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.iter().filter(|point| point.name == name).map(|point| point.value).sum()
    }

    /// Where a function's output is written.
    pub fn log_path(&self, function: &str) -> PathBuf {
        self.state_dir.join(format!("{function}.log"))
    }

    /// The world's clock.
    pub fn clock(&self) -> WorldClock {
        self.clock
    }

    /// A function's time-out. The error says why it is not known.
    pub async fn timeout_of(&self, name: &str) -> Result<Duration, String> {
        match self.function(name).await {
            Ok(function) => Ok(function.config.timeout),
            Err(InvokeError::Broken(why)) => Err(why),
            Err(_) => Err(format!("function {name} does not exist")),
        }
    }

    /// Ends the sandbox with this session token in the middle of its invocation, as when its machine is lost.
    pub fn kill(&self, session_token: &str) {
        // Nobody may be listening.
        let _ = self.kills.send(session_token.to_owned());
    }

    /// Ends all sandboxes.
    pub async fn shut_down(&self) {
        self.functions.lock().await.clear();
    }

    /// Runs one invocation and waits for it. It goes on if the caller stops waiting, as on AWS.
    pub async fn invoke(
        self: &Arc<Self>,
        name: &str,
        payload: Bytes,
    ) -> Result<(String, Outcome), InvokeError> {
        if payload.len() > REQUEST_BYTES_MAX {
            return Err(InvokeError::TooLarge(REQUEST_BYTES_MAX));
        }
        let function = self.function(name).await?;
        let limit = function.config.concurrency.unwrap_or(SANDBOXES_MAX);
        let taken = function.running.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |running| {
            (running < limit).then_some(running + 1)
        });
        if taken.is_err() {
            return Err(InvokeError::Throttled);
        }
        let host = Arc::clone(self);
        let run = tokio::spawn(async move {
            let outcome = host.run(&function, payload).await;
            function.running.fetch_sub(1, Ordering::SeqCst);
            outcome
        });
        run.await
            .map_err(|error| InvokeError::Broken(format!("the invocation was dropped: {error}")))?
    }

    async fn run(
        &self,
        function: &Arc<Function>,
        payload: Bytes,
    ) -> Result<(String, Outcome), InvokeError> {
        let id = request_id();
        loop {
            let idle = function.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut sandbox = match idle {
                Some(mut sandbox) => {
                    if !sandbox.alive() {
                        continue;
                    }
                    sandbox
                }
                None => {
                    let variables = sandbox::variables(function, &function.root, &self.common);
                    Sandbox::start(function, &variables, None).await.map_err(InvokeError::Broken)?
                }
            };
            let invocation = Invocation {
                request_id: id.clone(),
                payload: payload.clone(),
                deadline_ms: 0,
                arn: arn_of(&function.config.name),
            };
            let started = tokio::time::Instant::now();
            let cold = !sandbox.warm;
            let Some(outcome) = sandbox.invoke(invocation, function.config.timeout, real_ms).await
            else {
                continue;
            };
            function.log.write(LogLine {
                function: function.config.name.clone(),
                line: format!(
                    "REPORT RequestId: {id} Duration: {:.2} ms{}{}",
                    started.elapsed().as_secs_f64() * 1000.0,
                    if cold { " Cold start" } else { "" },
                    outcome.error_type().map(|kind| format!(" Error: {kind}")).unwrap_or_default(),
                ),
            });
            if sandbox.alive() {
                function.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sandbox);
            }
            return Ok((id, outcome));
        }
    }

    /// Queues an asynchronous invocation: retried twice after failures, then a dead letter if configured.
    pub fn invoke_async(self: &Arc<Self>, name: &str, payload: Bytes) {
        let (host, name) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move {
            let config = host
                .asynchronous
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&name)
                .cloned()
                .unwrap_or_default();
            let retries =
                config.retries.unwrap_or(ASYNC_RETRY_DELAYS.len()).min(ASYNC_RETRY_DELAYS.len());
            let started = host.clock.now();
            let mut attempt = 0;
            let failure = loop {
                let failure = match host.invoke(&name, payload.clone()).await {
                    Ok((_, outcome)) if !outcome.error => return,
                    Ok((_, outcome)) => {
                        serde_json::from_slice(&outcome.payload).unwrap_or(Value::Null)
                    }
                    // Throttled events go back to the queue without counting as an attempt.
                    Err(InvokeError::Throttled)
                        if host.clock.now().since(started) < EVENT_AGE_MAX =>
                    {
                        host.clock.sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                    Err(error) => json!({"errorMessage": format!("{error:?}")}),
                };
                if attempt == retries {
                    break failure;
                }
                host.clock.sleep(ASYNC_RETRY_DELAYS[attempt]).await;
                attempt += 1;
            };
            let dead_letters =
                host.dead_letters.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let (Some(queue), Some(dead_letters)) = (config.on_failure, dead_letters) {
                let request: Value = serde_json::from_slice(&payload).unwrap_or(Value::Null);
                let record = json!({
                    "version": "1.0",
                    "timestamp": host.clock.now().to_string(),
                    "requestContext": {"functionArn": arn_of(&name), "condition": "RetriesExhausted",
                        "approximateInvokeCount": attempt + 1},
                    "requestPayload": request,
                    "responsePayload": failure,
                });
                dead_letters(&queue, record.to_string());
            }
        });
    }

    /// Serves the Invoke API. Source: Lambda API reference, Invoke.
    pub async fn serve(
        self: &Arc<Self>,
        path: &str,
        headers: &http::HeaderMap,
        payload: Bytes,
    ) -> Reply {
        let name = function_name(path);
        let call = aws::Call {
            service: "lambda".into(),
            protocol: aws::Protocol::RestJson,
            ..Default::default()
        };
        let kind = headers.get("x-amz-invocation-type").and_then(|value| value.to_str().ok());
        if !payload.is_empty() && serde_json::from_slice::<Value>(&payload).is_err() {
            return call.error(
                400,
                "InvalidRequestContentException",
                "Could not parse request body into json: the payload of Invoke must be JSON",
            );
        }
        let payload = if payload.is_empty() { Bytes::from_static(b"{}") } else { payload };
        let result = match kind {
            Some("Event") => {
                if payload.len() > EVENT_BYTES_MAX {
                    Err(InvokeError::TooLarge(EVENT_BYTES_MAX))
                } else if let Err(error) = self.function(&name).await {
                    Err(error)
                } else {
                    self.invoke_async(&name, payload);
                    return aws::reply(202, "application/json", Bytes::new());
                }
            }
            Some("DryRun") => match self.function(&name).await {
                Ok(_) => return aws::reply(204, "application/json", Bytes::new()),
                Err(error) => Err(error),
            },
            _ => self.invoke(&name, payload).await,
        };
        match result {
            Ok((id, outcome)) => {
                let mut answer = aws::reply(200, "application/json", outcome.payload);
                let headers = answer.headers_mut();
                headers.insert("x-amz-executed-version", http::HeaderValue::from_static("$LATEST"));
                if let Ok(id) = id.parse() {
                    headers.insert("x-amzn-requestid", id);
                }
                if outcome.error {
                    headers.insert(
                        "x-amz-function-error",
                        http::HeaderValue::from_static("Unhandled"),
                    );
                }
                answer
            }
            Err(InvokeError::NotFound(name)) => {
                let message = format!("Function not found: {}", arn_of(&name));
                call.error(404, "ResourceNotFoundException", &message)
            }
            Err(InvokeError::Throttled) => call.throttled(),
            Err(InvokeError::TooLarge(limit)) => {
                let message = format!(
                    "Request must be smaller than {limit} bytes for the InvokeFunction operation"
                );
                call.error(413, "RequestEntityTooLargeException", &message)
            }
            Err(InvokeError::Broken(message)) => {
                call.error(502, "InvalidRuntimeException", &message)
            }
        }
    }

    async fn function(&self, name: &str) -> Result<Arc<Function>, InvokeError> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut functions = self.functions.lock().await;
        if let Some((read_at, function)) = functions.get(name)
            && *read_at >= generation
        {
            return Ok(Arc::clone(function));
        }
        let moto = self.moto.as_ref().ok_or_else(|| InvokeError::NotFound(name.to_owned()))?;
        let mut config = match config_from(moto, name).await {
            Ok(config) => config,
            Err(error) if error.status == 404 => {
                functions.remove(name);
                return Err(InvokeError::NotFound(name.to_owned()));
            }
            Err(error) => return Err(InvokeError::Broken(error.to_string())),
        };
        let logging =
            self.logging.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some((group, json)) = logging {
            config.log_group = group.unwrap_or(config.log_group);
            config.json_log = json;
        }
        let function = match functions.get(name) {
            Some((_, known)) if known.config == config => Arc::clone(known),
            _ => {
                let zip = moto
                    .send(
                        "lambda",
                        Method::GET,
                        &format!("/moto-api/function-code/{name}"),
                        &[],
                        Bytes::new(),
                    )
                    .await
                    .map_err(|error| InvokeError::Broken(error.to_string()))?
                    .into_body();
                self.function_of(config, zip).await.map_err(InvokeError::Broken)?
            }
        };
        functions.insert(name.to_owned(), (generation, Arc::clone(&function)));
        Ok(function)
    }

    async fn function_of(
        &self,
        config: FunctionConfig,
        zip: Bytes,
    ) -> Result<Arc<Function>, String> {
        let code: String =
            config.code_sha256.chars().filter(char::is_ascii_alphanumeric).take(24).collect();
        let root =
            self.state_dir.join(&config.name).join(if code.is_empty() { "code" } else { &code });
        let target = root.clone();
        tokio::task::spawn_blocking(move || extract(&zip, &target))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("code of function {}: {error}", config.name))?;
        let log = {
            let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
            let path = self.log_path(&config.name);
            Arc::clone(logs.entry(config.name.clone()).or_insert_with(|| {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
                Arc::new(Log {
                    file: Mutex::new(file.ok()),
                    lines: self.lines.clone(),
                    metrics: Arc::clone(&self.metrics),
                })
            }))
        };
        Ok(Arc::new(Function {
            config,
            root,
            idle: Mutex::default(),
            running: AtomicUsize::new(0),
            log,
            kills: self.kills.clone(),
        }))
    }
}

/// Unpacks a deployment zip, once: an existing folder of the same code is used as it is.
fn extract(zip: &[u8], target: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let bootstrap = target.join("bootstrap");
    if bootstrap.exists() {
        return Ok(());
    }
    let mut archive =
        zip::ZipArchive::new(Cursor::new(zip)).map_err(|error| format!("is not a zip: {error}"))?;
    let size = archive.decompressed_size().unwrap_or(0);
    if size > u128::from(CODE_BYTES_MAX) {
        return Err(format!("{size} bytes unpacked are more than {CODE_BYTES_MAX}"));
    }
    let parent = target.parent().ok_or("no folder to unpack into")?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    // Renamed into place when whole, so that a second process never runs a half-written file.
    let fresh =
        tempfile::tempdir_in(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    archive.extract(fresh.path()).map_err(|error| format!("can't be unpacked: {error}"))?;
    let file = fresh.path().join("bootstrap");
    if !file.exists() {
        return Err("has no file named bootstrap".to_owned());
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| error.to_string())?;
    std::fs::rename(fresh.keep(), target).map_err(|error| format!("{}: {error}", target.display()))
}

/// A deployment zip with one file, `bootstrap`, and the SHA-256 that names it (base64, as AWS has it).
/// Stored without compression unless that makes it too slow to carry: nothing here crosses a network.
pub fn zip_of(bootstrap: &[u8]) -> Result<Vec<u8>, String> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::with_capacity(bootstrap.len() + 256)));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(0o755);
    zip.start_file("bootstrap", options).map_err(|error| error.to_string())?;
    zip.write_all(bootstrap).map_err(|error| error.to_string())?;
    Ok(zip.finish().map_err(|error| error.to_string())?.into_inner())
}

async fn config_from(moto: &aws::Client, name: &str) -> Result<FunctionConfig, aws::ApiError> {
    let path = format!("/2015-03-31/functions/{}", aws::percent_encode(name));
    let answer = moto.send("lambda", Method::GET, &path, &[], Bytes::new()).await?;
    let answer: Value = serde_json::from_slice(answer.body()).unwrap_or(Value::Null);
    let config = &answer["Configuration"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    // moto leaves a parameter of type Number as one; CloudFormation makes texts of them.
    let variable = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let variables = config["Environment"]["Variables"].as_object();
    Ok(FunctionConfig {
        name: name.to_owned(),
        timeout: Duration::from_secs(config["Timeout"].as_u64().unwrap_or(3)),
        memory_mb: config["MemorySize"].as_u64().unwrap_or(128),
        handler: text(&config["Handler"]),
        environment: variables
            .map(|all| all.iter().map(|(name, value)| (name.clone(), variable(value))).collect())
            .unwrap_or_default(),
        code_sha256: text(&config["CodeSha256"]),
        concurrency: answer["Concurrency"]["ReservedConcurrentExecutions"]
            .as_u64()
            .and_then(|limit| usize::try_from(limit).ok()),
        log_group: config["LoggingConfig"]["LogGroup"]
            .as_str()
            .map_or_else(|| format!("/aws/lambda/{name}"), str::to_owned),
        json_log: config["LoggingConfig"]["LogFormat"] == "JSON",
    })
}

/// ARN of a function of this world.
pub fn arn_of(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}")
}

/// The function's name in a path of the Lambda API, where it may stand as name, partial or whole ARN,
/// with or without a qualifier.
fn function_name(path: &str) -> String {
    let part = path.trim_matches('/').split('/').nth(2).unwrap_or("");
    name_of(&aws::percent_decode(part.replace('+', "%2B").as_bytes()))
}

/// The function's name in an ARN, partial ARN or name.
pub fn name_of(reference: &str) -> String {
    let parts: Vec<&str> = reference.split(':').collect();
    let at = parts.iter().position(|part| *part == "function").map_or(0, |at| at + 1);
    parts.get(at).copied().unwrap_or("").to_owned()
}

/// A random UUID.
pub(crate) fn request_id() -> String {
    let bits: u128 = rand::random();
    let hex = format!("{bits:032x}");
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

#[allow(
    clippy::disallowed_methods,
    reason = "the deadline is real time: functions are killed by it"
)]
fn real_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The values in a line of Embedded Metric Format; none in other lines.
/// Source: CloudWatch, "Specification: Embedded metric format".
fn metrics_of(line: &LogLine) -> Vec<MetricPoint> {
    if !line.line.contains("\"_aws\"") {
        return Vec::new();
    }
    let Ok(root) = serde_json::from_str::<Value>(line.line.trim()) else { return Vec::new() };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut points = Vec::new();
    for directive in list(&root["_aws"]["CloudWatchMetrics"]) {
        // One set for each series of the metric; the largest names all that is known of the value.
        let sets = list(&directive["Dimensions"]);
        let names = sets.iter().map(&list).max_by_key(Vec::len).unwrap_or_default();
        let dimensions: BTreeMap<String, String> = names
            .iter()
            .filter_map(|name| name.as_str())
            .map(|name| (name.to_owned(), root[name].as_str().unwrap_or("").to_owned()))
            .collect();
        for metric in list(&directive["Metrics"]) {
            let name = metric["Name"].as_str().unwrap_or("");
            let values = root[name].as_array().cloned().unwrap_or_else(|| vec![root[name].clone()]);
            points.extend(values.iter().filter_map(Value::as_f64).map(|value| MetricPoint {
                function: line.function.clone(),
                namespace: directive["Namespace"].as_str().unwrap_or("").to_owned(),
                name: name.to_owned(),
                dimensions: dimensions.clone(),
                value,
            }));
        }
    }
    points
}

#[cfg(test)]
mod tests;
