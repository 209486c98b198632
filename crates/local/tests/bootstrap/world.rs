//! A small edge of the bootstrap tests' own, that breaks on request: it checks every signature, keeps the
//! handoff items and the log events, and serves the runner's download and protocol.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ostler_local::ec2::{BootRequest, InstanceHost};
use ostler_local::edge::sigv4;
use ostler_local::instances::{Host, HostConfig, runner_release};
use ostler_local::time::WorldClock;
use serde_json::{Value, json};
use tempfile::TempDir;

/// World seconds per second. A pause of the script's takes 20 ms, and a request about one world second.
const SCALE: f64 = 50.0;
/// World seconds a machine has to come up, unless a test says otherwise: real time in plenty, whatever else the
/// computer does.
const BOOT_TIMEOUT: &str = "1800";
/// The same where a test waits for their end.
pub const SHORT_BOOT_TIMEOUT: &str = "90";
/// Real time within which every machine of a test must be off, on a computer that is busy otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
pub const ID: &str = "i-0123456789abcdef0";
pub const ROLE_ID: &str = "AROAEXAMPLEROLEID0000";
const TABLE: &str = "ostler-handoff";
const GROUP: &str = "/ostler/ostler/runners";
pub const RUNNER: &str = "app-4711-0a1b2c3d4e5f";
const VERSION: &str = "2.999.0";

pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// What the edge remembers, and how it is to break.
#[derive(Default)]
pub struct Edge {
    /// What happened, in order: `GetItem`, `DeleteItem`, `session`, `completed`, …
    pub calls: Vec<String>,
    pub handoff: HashMap<String, String>,
    streams: HashSet<String>,
    /// Stream and message.
    pub events: Vec<(String, String)>,
    /// Anything that AWS would not have accepted.
    complaints: Vec<String>,
    pub powered_off: Vec<String>,
    /// Answers to come, by call, the last one first: a status; 200 where none are left.
    pub broken: HashMap<&'static str, Vec<u16>>,
    /// Calls that always fail.
    pub down: HashSet<&'static str>,
    /// Deletes that are done, and answered with an error.
    pub lost_deletes: u32,
    /// What the download gives instead of the release.
    pub download: Option<Vec<u8>>,
    pub job: Option<Value>,
    pub conclusions: Vec<String>,
    pub registration_gone: bool,
    pub cancelled: bool,
    pub version_deprecated: bool,
    /// The JIT configurations that runners came with.
    pub sessions: Vec<String>,
}

impl Edge {
    fn status(&mut self, call: &'static str) -> u16 {
        self.calls.push(call.to_owned());
        if self.down.contains(call) {
            return 500;
        }
        self.broken.get_mut(call).and_then(Vec::pop).unwrap_or(200)
    }

    pub fn count(&self, call: &str) -> usize {
        self.calls.iter().filter(|made| *made == call).count()
    }
}

/// One machine, and what it talks to.
pub struct World {
    pub host: Arc<Host>,
    edge: Arc<Mutex<Edge>>,
    pub directory: TempDir,
    pub clock: WorldClock,
    pub tags: BTreeMap<String, String>,
    pub role_id: String,
    /// Of the runner, as the stack's parameter says.
    pub sha256: String,
    /// A text of the script and what stands there instead.
    pub edit: (&'static str, &'static str),
    url: String,
}

impl World {
    /// In which all goes well, with one short job to run.
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let clock = WorldClock::starting_now(SCALE);
        let host = Host::new(HostConfig {
            clock,
            edge_url: url.clone(),
            github_url: url.clone(),
            state_dir: directory.path().to_owned(),
            region: "us-east-1".to_owned(),
        })
        .unwrap();
        let edge = Arc::new(Mutex::new(Edge::default()));
        let off = Arc::clone(&edge);
        host.on_poweroff(Arc::new(move |id| off.lock().unwrap().powered_off.push(id)));
        let app = Router::new()
            .fallback(serve)
            .with_state((Arc::clone(&edge), Arc::clone(&host), clock))
            .nest("/_instance", host.router())
            .layer(middleware::from_fn_with_state(Arc::clone(&edge), break_metadata));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let tags = [("runner", RUNNER), ("boot-timeout", BOOT_TIMEOUT), ("max-lifetime", "3600")];
        let tags = tags.iter().map(|(k, v)| (format!("ostler:{k}"), (*v).to_owned())).collect();
        let sha256 = runner_release().1;
        let role_id = ROLE_ID.to_owned();
        let world =
            Self { host, edge, directory, clock, tags, role_id, sha256, edit: ("", ""), url };
        world.hand_over(&world.jit(4500));
        world.edge().job = Some(json!({"jobId": 1, "runId": 99, "repo": "acme/app", "seconds": 0}));
        world
    }

    pub fn edge(&self) -> MutexGuard<'_, Edge> {
        self.edge.lock().unwrap()
    }

    /// The machine's disk.
    pub fn root(&self) -> PathBuf {
        self.host.root(ID)
    }

    /// A configuration of the real one's shape, of `length` bytes at least.
    pub fn jit(&self, length: usize) -> String {
        let server = format!("{}/x", self.url);
        let runner = json!({"agentId": 7, "agentName": RUNNER, "serverUrl": server}).to_string();
        let padding = "p?~/".repeat(length / 7);
        BASE64.encode(
            json!({".runner": BASE64.encode(runner), ".credentials": BASE64.encode(padding)})
                .to_string(),
        )
    }

    pub fn hand_over(&self, jit: &str) {
        self.edge().handoff.insert(format!("{ROLE_ID}:{ID}"), jit.to_owned());
    }

    /// What the job's only step does, in bash.
    pub fn job(&self, script: &str) {
        self.edge().job.as_mut().unwrap()["script"] = script.into();
    }

    pub fn tag(&mut self, name: &str, value: &str) {
        self.tags.insert(format!("ostler:{name}"), value.to_owned());
    }

    pub fn boot(&self) {
        let user_data = render(&[
            ("REGION", "us-east-1"),
            ("ROLE_ID", ROLE_ID),
            ("HANDOFF_TABLE", TABLE),
            ("LOG_GROUP", GROUP),
            ("RUNNER_VERSION", VERSION),
            ("RUNNER_SHA256_X64", &self.sha256),
            ("RUNNER_SHA256_ARM64", &self.sha256),
            ("RUNNER_URL", ""),
        ]);
        let (text, instead) = self.edit;
        assert!(user_data.contains(text));
        let user_data = if text.is_empty() { user_data } else { user_data.replace(text, instead) };
        self.host.boot(BootRequest {
            instance_id: ID.to_owned(),
            user_data: user_data.into_bytes(),
            tags: self.tags.clone(),
            region: "us-east-1".to_owned(),
            role_id: self.role_id.clone(),
            architecture: "x86_64".to_owned(),
            boot_delay: Duration::ZERO,
            dead: false,
            first_boot: true,
        });
    }

    pub async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        if waited.await.is_err() {
            let edge = self.edge();
            let console = self.host.console(ID);
            panic!("never {what}; {:?}\n{:?}\n{console}", edge.calls, edge.complaints);
        }
    }

    /// Waits for the machine to power off, and gives the reason that it gave.
    pub async fn end(&self) -> String {
        self.until("powered off", |world| !world.edge().powered_off.is_empty()).await;
        // Whatever the machine might still do, it would do now.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!self.host.is_on(ID), "something in the machine still runs");
        let edge = self.edge();
        assert_eq!(edge.powered_off, [ID], "powered off more than once");
        assert_eq!(edge.complaints, Vec::<String>::new());
        let console = self.host.console(ID);
        let said = console.lines().filter_map(|line| line.strip_prefix("ostler: power off: "));
        let said: Vec<&str> = said.map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(said.len(), 1, "{console}");
        let words = edge.events.iter().filter_map(|(_, text)| serde_json::from_str(text).ok());
        let words: Vec<Value> = words.collect();
        assert!(words.len() <= 1, "{words:?}");
        for word in words {
            assert_eq!((&word["ostler"], &word["reason"]), (&json!("ended"), &json!(said[0])));
            assert_eq!(word["instance"], ID);
        }
        said[0].to_owned()
    }

    pub async fn run(&self) -> String {
        self.boot();
        self.end().await
    }

    /// Whether the reason reached the log group.
    pub fn logged(&self) -> bool {
        self.edge().events.iter().any(|(_, text)| text.starts_with("{\"ostler\":\"ended\""))
    }

    /// What the job-started hook reported.
    pub fn reports(&self) -> Vec<String> {
        let edge = self.edge();
        let events = edge.events.iter().map(|(_, text)| text);
        events.filter(|text| text.contains("CDKGHR")).cloned().collect()
    }

    /// Puts a runner into the image that only does this.
    pub fn install_runner(&self, directory: &str, script: &str) {
        let path = self.root().join(directory);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("run.sh"), format!("#!/bin/bash\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path.join("run.sh"), mode).unwrap();
    }

    /// Puts the release into the image.
    pub fn install_release(&self) {
        let path = self.root().join("opt/actions-runner");
        fs::create_dir_all(&path).unwrap();
        let file = self.directory.path().join("runner.tgz");
        fs::write(&file, runner_release().0).unwrap();
        let tar = Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&path).status();
        assert!(tar.unwrap().success());
    }

    /// What the job's hook and step printed.
    pub fn job_output(&self) -> String {
        let log = self.root().join("opt/actions-runner/_diag/job-1.log");
        fs::read_to_string(log).unwrap()
    }
}

/// The script that `infra/control.yaml` embeds, with values in place of CloudFormation's.
pub fn render(values: &[(&str, &str)]) -> String {
    let template = fs::read_to_string(repository("infra/control.yaml")).unwrap();
    let (_, body) = template.split_once("   Body: |\n").unwrap();
    let (body, _) = body.split_once("\nResources:\n").unwrap();
    let names: Vec<&str> = template.lines().find_map(variables).unwrap();
    let mut script = "#!/bin/bash\n".to_owned();
    for (name, value) in values {
        assert!(names.contains(&format!("OSTLER_{name}").as_str()), "{name}");
        script += &format!("OSTLER_{name}='{value}'\n");
    }
    assert_eq!(names.len(), values.len());
    script.extend(body.lines().flat_map(|line| [line.strip_prefix("    ").unwrap(), "\n"]));
    script
}

/// Those that stand before it, if this is the line that sets them.
fn variables(line: &str) -> Option<Vec<&str>> {
    let (_, text) = line.split_once(r##"!Sub "#!/bin/bash\n"##)?;
    let set = text.split(r"\n").filter_map(|line| line.split_once('='));
    Some(set.map(|(name, _)| name).collect())
}

async fn break_metadata(
    State(edge): State<Arc<Mutex<Edge>>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if path.contains("/imds/") {
        let call = if path.contains("/iam/") { "credentials" } else { "metadata" };
        let status = edge.lock().unwrap().status(call);
        if status != 200 {
            return StatusCode::from_u16(status).unwrap().into_response();
        }
    }
    next.run(request).await
}

fn answer(status: u16, body: &Value) -> Response {
    (StatusCode::from_u16(status).unwrap(), body.to_string()).into_response()
}

async fn serve(
    State((edge, host, clock)): State<(Arc<Mutex<Edge>>, Arc<Host>, WorldClock)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut edge = edge.lock().unwrap();
    let input: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(target) = headers.get("x-amz-target").and_then(|target| target.to_str().ok()) else {
        return github(&mut edge, uri.path(), &input);
    };

    let credentials = host.credentials(ID).expect("a machine with a role");
    let secret = &credentials.secret;
    if let Err(error) = sigv4::verify(&method, &uri, &headers, &body, secret, clock.now()) {
        edge.complaints.push(format!("{target}: {error}"));
        return answer(403, &json!({"__type": "InvalidSignatureException"}));
    }
    let service = if target.starts_with("Logs") { "logs" } else { "dynamodb" };
    // Source: IAM user guide, "Create a signed AWS API request": host, content type, and all of x-amz.
    let signed = format!(
        "/us-east-1/{service}/aws4_request, \
         SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, "
    );
    let text = |name: &str| headers[name].to_str().unwrap();
    let key = input["Key"]["pk"]["S"].as_str().unwrap_or("").to_owned();
    let allowed = if service == "logs" {
        input["logGroupName"] == GROUP
    } else {
        key == credentials.user_id && input["TableName"] == TABLE
    };
    if !allowed
        || !text("authorization").contains(&signed)
        || text("host") != format!("{service}.us-east-1.amazonaws.com")
        || text("x-amz-security-token") != credentials.session_token
    {
        edge.complaints.push(format!("{target}: {headers:?} {input}"));
        return answer(400, &json!({"__type": "AccessDeniedException"}));
    }
    aws(&mut edge, target, &key, &input)
}

fn github(edge: &mut Edge, path: &str, input: &Value) -> Response {
    let release = format!(
        "/actions/runner/releases/download/v{VERSION}/actions-runner-linux-x64-{VERSION}.tar.gz"
    );
    if path == release {
        let status = edge.status("download");
        let bytes = edge.download.clone().unwrap_or_else(|| runner_release().0);
        return (StatusCode::from_u16(status).unwrap(), bytes).into_response();
    }
    match path {
        "/_runner/sessions" => {
            edge.calls.push("session".to_owned());
            if edge.version_deprecated {
                let text = "Runner version v2.999.0 is deprecated and cannot receive messages.";
                return answer(403, &json!({"message": text}));
            }
            edge.sessions.push(input["jitconfig"].as_str().unwrap().to_owned());
            answer(201, &json!({"sessionId": "s1", "runnerId": 7, "name": RUNNER}))
        }
        "/_runner/sessions/s1/message" => match &edge.job {
            _ if edge.registration_gone => answer(410, &json!({})),
            Some(job) => answer(200, job),
            None => answer(204, &json!({})),
        },
        "/_runner/sessions/s1/jobs/1/renew" => {
            edge.calls.push("renew".to_owned());
            answer(200, &json!({"cancelled": edge.cancelled}))
        }
        "/_runner/sessions/s1/jobs/1/completed" => {
            edge.calls.push("completed".to_owned());
            edge.conclusions.push(input["conclusion"].as_str().unwrap().to_owned());
            answer(200, &json!({}))
        }
        _ => {
            edge.complaints.push(format!("{path} is not known"));
            answer(404, &json!({}))
        }
    }
}

fn aws(edge: &mut Edge, target: &str, key: &str, input: &Value) -> Response {
    let stream = input["logStreamName"].as_str().unwrap_or("").to_owned();
    match target {
        "DynamoDB_20120810.GetItem" => {
            assert_eq!(input["ConsistentRead"], true);
            match (edge.status("GetItem"), edge.handoff.get(key)) {
                (200, Some(jit)) => {
                    let item = json!({"jit": {"S": jit}, "pk": {"S": key}, "ttl": {"N": "1"}});
                    answer(200, &json!({"Item": item}))
                }
                (status, _) => answer(status, &json!({})),
            }
        }
        "DynamoDB_20120810.DeleteItem" => {
            let mut status = edge.status("DeleteItem");
            if status == 200 {
                edge.handoff.remove(key);
                if edge.lost_deletes > 0 {
                    edge.lost_deletes -= 1;
                    status = 503;
                }
            }
            answer(status, &json!({}))
        }
        "Logs_20140328.CreateLogStream" => match edge.status("CreateLogStream") {
            200 if edge.streams.insert(stream) => answer(200, &json!({})),
            200 => answer(400, &json!({"__type": "ResourceAlreadyExistsException"})),
            status => answer(status, &json!({})),
        },
        "Logs_20140328.PutLogEvents" => match edge.status("PutLogEvents") {
            200 if !edge.streams.contains(&stream) => {
                answer(400, &json!({"__type": "ResourceNotFoundException"}))
            }
            200 => {
                for event in input["logEvents"].as_array().unwrap() {
                    assert!(event["timestamp"].is_u64());
                    let message = event["message"].as_str().unwrap().to_owned();
                    edge.events.push((stream.clone(), message));
                }
                answer(200, &json!({"nextSequenceToken": "1"}))
            }
            status => answer(status, &json!({})),
        },
        _ => {
            edge.complaints.push(target.to_owned());
            answer(400, &json!({}))
        }
    }
}

/// Every argument of every process, as any user of a machine may read them, until told to stop.
pub fn watch_arguments() -> impl FnOnce() -> String {
    let seen = Arc::new(Mutex::new((HashSet::new(), false)));
    let shared = Arc::clone(&seen);
    let thread = std::thread::spawn(move || {
        while !shared.lock().unwrap().1 {
            for entry in fs::read_dir("/proc").unwrap().flatten() {
                if let Ok(arguments) = fs::read(entry.path().join("cmdline")) {
                    shared.lock().unwrap().0.insert(arguments);
                }
            }
        }
    });
    move || {
        seen.lock().unwrap().1 = true;
        thread.join().unwrap();
        let seen = seen.lock().unwrap();
        seen.0.iter().map(|arguments| String::from_utf8_lossy(arguments) + "\n").collect()
    }
}

/// Every file below a folder.
pub fn files_below(path: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(path).unwrap().flatten() {
        if entry.path().is_dir() {
            files_below(&entry.path(), files);
        } else if let Ok(bytes) = fs::read(entry.path()) {
            files.push((entry.path(), bytes));
        }
    }
}

/// How many processes run in the machine with this disk.
pub fn processes_of(root: &Path) -> usize {
    let root = format!("OSTLER_ROOT={}", root.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    environments
        .filter(|text| text.split(|byte| *byte == 0).any(|line| line == root.as_bytes()))
        .count()
}
