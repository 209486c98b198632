//! `ostler setup` as an operator meets it: the command, its page in Chromium, GitHub, and SSM behind it. At the end a job
//! runs by the App that was made.
//!
//! One world for all, because it takes a while to start. What the page looked like is in target/setup.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ostler_local::aws::Client;
use ostler_local::world::{World, WorldConfig};
use ostler_sim::github::{JobSpec, Status};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// World seconds in a real one. GitHub's codes are good for an hour of the world's, which is six minutes.
const SCALE: f64 = 10.0;

/// For how long something is waited for, in real time. A quiet machine needs a tenth of it at most.
const PATIENCE: Duration = Duration::from_secs(600);

/// As `ostler --help` says.
const DONE: i32 = 0;
const DECLINED: i32 = 4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// With the project's own AWS command line tool.
fn path() -> String {
    let (venv, path) = (root().join(".venv/bin"), std::env::var("PATH").unwrap());
    format!("{}:{path}", venv.display())
}

/// The address of the world's GitHub under another name than the page's 127.0.0.1: for a browser it is another site, as
/// the real one is.
fn github(world: &World) -> String {
    world.github.url().replace("127.0.0.1", "localhost")
}

type Stream = Box<dyn AsyncRead + Unpin + Send>;

/// A command that was started, and the link that it printed.
struct Setup {
    child: Child,
    /// Where it speaks to people: beside JSON that is the standard error.
    talk: BufReader<Stream>,
    /// The other one.
    rest: Stream,
    link: String,
    said: String,
}

impl Setup {
    fn command(world: &World, more: &[&str]) -> Command {
        let mut command = Command::new(root().join("target/debug/ostler"));
        command
            .args(["setup", "--organization", "acme", "--github-url", &github(world)])
            .args(more)
            .envs(world.variables())
            .env("PATH", path())
            .env("OSTLER_CLOCK", world.clock.variable())
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn start(world: &World, more: &[&str]) -> Self {
        let mut child = Self::command(world, more)
            .spawn()
            .expect("target/debug/ostler is there after `cargo build --workspace`");
        let out: Stream = Box::new(child.stdout.take().unwrap());
        let errors: Stream = Box::new(child.stderr.take().unwrap());
        let (talk, mut rest) = if more.contains(&"--json") { (errors, out) } else { (out, errors) };
        let mut talk = BufReader::new(talk);
        let (mut said, mut link) = (String::new(), String::new());
        while link.is_empty() {
            let mut line = String::new();
            let read = talk.read_line(&mut line).await.unwrap();
            said.push_str(&line);
            if read == 0 {
                rest.read_to_string(&mut said).await.unwrap();
                panic!("it ended without a link:\n{said}");
            }
            if line.trim().starts_with("http://127.0.0.1:") {
                link = line.trim().to_owned();
            }
        }
        Self { child, talk, rest, link, said }
    }

    /// The page's port.
    fn host(&self) -> String {
        self.link.split('/').nth(2).unwrap().to_owned()
    }

    /// Its command line, as other users of the machine can read it.
    fn command_line(&self) -> String {
        let path = format!("/proc/{}/cmdline", self.child.id().unwrap());
        std::fs::read_to_string(path).unwrap()
    }

    /// Waits for its end: the exit code, what it said to people, and the rest.
    async fn end(mut self) -> (i32, String, String) {
        let mut rest = String::new();
        let all = async {
            self.talk.read_to_string(&mut self.said).await.unwrap();
            self.rest.read_to_string(&mut rest).await.unwrap();
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(PATIENCE, all).await.expect("it ends");
        (status.code().unwrap(), self.said, rest)
    }

    /// What a client is answered that is no browser of the operator's: the status, and the answer as it came.
    async fn raw(&self, path: &str, host: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.host()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }
}

/// Plays a scenario of tests/browser/setup.py.
async fn play(scenario: &str, link: &str, folder: &Path) -> Value {
    let played = Command::new(root().join(".venv/bin/python"))
        .arg(root().join("tests/browser/setup.py"))
        .args([scenario, link])
        .arg(folder)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, played).await.expect("the browser ends").unwrap();
    assert!(
        output.status.success(),
        "{scenario}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A parameter and whether it is encrypted; `None` if it is not there.
async fn parameter(operator: &Client, name: &str) -> Option<(String, bool)> {
    let ask = json!({"Names": [format!("/ostler/control/{name}")], "WithDecryption": true});
    let answer = operator.json("ssm", "AmazonSSM.GetParameters", &ask).await.unwrap();
    let found = answer["Parameters"].get(0)?;
    let value = found["Value"].as_str().unwrap().to_owned();
    Some((value, found["Type"] == "SecureString"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_is_made_with_one_click_and_serves_jobs() {
    let state = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let config = WorldConfig { scale: SCALE, ..WorldConfig::new(state.path()) };
    let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
    let operator = world.edge.client("operator");
    world.github.add_repository("acme/widgets", true);
    let tiers = json!({"tiers": [{"name": "small-x64", "architecture": "x64", "labels": ["small"],
        "images": ["/ostler/images/ubuntu-x64"], "instance_types": ["m7i.large"],
        "max_idle": "1h", "max_lifetime": "6h", "boot_timeout": "30m"}]});
    world.put_tiers(&tiers).await.unwrap();
    world.deploy_stacks(&[]).await.unwrap_or_else(|error| panic!("{error:#}"));
    let webhook = world.output("WebhookUrl").unwrap();
    let pages = root().join("target/setup");

    cancelled_leaves_nothing_but_the_name_key(&world, &operator, &pages).await;
    let (key, _) = parameter(&operator, "name-key").await.unwrap();

    // The whole way.
    let setup = Setup::start(&world, &["--json", "--webhook-url", &webhook]).await;
    strangers_get_nothing(&setup).await;
    let command_line = setup.command_line();
    let seen = play("whole", &setup.link, &pages).await;
    assert_eq!(seen["faults"], json!([]), "accessibility, policy or script");
    assert_eq!(
        seen["statuses"],
        json!({"wrong-state": 403, "no-state": 403, "second-use": 409}),
        "{seen}"
    );
    let (code, said, answer) = setup.end().await;
    assert_eq!(code, DONE, "{said}");
    let [(id, name)] = &world.github.made_apps()[..] else { panic!("one App is made") };
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (
            &answer["app_id"],
            &answer["name"],
            &answer["installed_with"],
            &answer["missing_permissions"]
        ),
        (&json!(id), &json!(name), &json!("acme"), &json!([])),
        "{said}"
    );

    // What is stored, and how.
    let (app, encrypted) = parameter(&operator, "app").await.unwrap();
    let app: Value = serde_json::from_str(&app).unwrap();
    assert_eq!(
        app,
        json!({"app_id": id, "github_url": github(&world), "registration": "organization",
            "repositories": {"public": "refuse"}})
    );
    assert!(!encrypted);
    let (pem, encrypted) = parameter(&operator, "app-private-key").await.unwrap();
    assert!(encrypted && pem.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    let (secret, encrypted) = parameter(&operator, "webhook-secret").await.unwrap();
    assert!(encrypted && secret.len() >= 16);
    assert_eq!(parameter(&operator, "name-key").await.unwrap(), (key.clone(), true), "made once");

    // No secret anywhere but there.
    let line = pem.lines().nth(1).unwrap();
    for file in std::fs::read_dir(&pages).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "html") {
            let text = std::fs::read_to_string(&path).unwrap();
            for hidden in [line, &secret, &key] {
                assert!(!text.contains(hidden), "{}", path.display());
            }
        }
    }
    for text in [&said, &answer.to_string(), &command_line] {
        assert!(![line, &secret, &key].iter().any(|hidden| text.contains(*hidden)), "{text}");
    }

    a_job_is_served(&world).await;

    // Once more would replace it, which wants a word.
    let again = Setup::command(&world, &["--webhook-url", &webhook]).output().await.unwrap();
    assert_eq!(again.status.code(), Some(DECLINED));
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains(&format!("App {id}")) && said.contains("--yes"), "{said}");
    assert_eq!(parameter(&operator, "webhook-secret").await, Some((secret, true)));

    world.down().await;
}

async fn cancelled_leaves_nothing_but_the_name_key(world: &World, operator: &Client, pages: &Path) {
    // The webhook is the stack's.
    let setup = Setup::start(world, &[]).await;
    let seen = play("cancel", &setup.link, &pages.join("cancel")).await;
    assert_eq!(seen["faults"], json!([]), "accessibility, policy or script");
    let page = std::fs::read_to_string(pages.join("cancel/1-review.html")).unwrap();
    assert!(page.contains(&world.output("WebhookUrl").unwrap()), "{page}");
    let (code, said, _) = setup.end().await;
    assert_eq!(code, DECLINED, "{said}");
    assert!(world.github.made_apps().is_empty());
    for name in ["app", "app-private-key", "webhook-secret"] {
        assert_eq!(parameter(operator, name).await, None, "{name}");
    }
    let (_, encrypted) = parameter(operator, "name-key").await.unwrap();
    assert!(encrypted);
}

/// Foreign names for 127.0.0.1 (DNS rebinding), other browsers of the machine, guesses.
async fn strangers_get_nothing(setup: &Setup) {
    let host = setup.host();
    let port = host.rsplit(':').next().unwrap();
    for foreign in
        ["evil.example".to_owned(), format!("evil.example:{port}"), format!("localhost:{port}")]
    {
        let (status, answer) = setup.raw("/", &foreign).await;
        assert_eq!(status, 421, "{answer}");
        assert!(!answer.contains("state=") && !answer.contains("manifest"), "{answer}");
    }
    for path in ["/", "/stage", "/back?code=c0ffee&state=1", "/?key=0123456789abcdef"] {
        let (status, answer) = setup.raw(path, &host).await;
        assert_eq!(status, 403, "{path}: {answer}");
        assert!(!answer.to_lowercase().contains("set-cookie"), "{answer}");
    }
    // Nobody else can come by another address of the machine.
    let port: u16 = port.parse().unwrap();
    assert!(TcpStream::connect(("::1", port)).await.is_err());
}

/// The event is signed with the new secret, the runner registered with the new key.
async fn a_job_is_served(world: &World) {
    let spec = JobSpec {
        duration: Duration::from_secs(1),
        ..JobSpec::new("acme/widgets", &["self-hosted", "linux", "x64", "small"])
    };
    let id = world.github.post_job(&spec).unwrap();
    let started = tokio::time::Instant::now();
    loop {
        let job = world.github.snapshot().jobs.into_iter().find(|job| job.id == id).unwrap();
        if job.status == Status::Completed {
            assert_eq!(job.conclusion.as_deref(), Some("success"));
            return;
        }
        let deliveries = world.github.deliveries();
        assert!(
            started.elapsed() < PATIENCE,
            "the job is {}; deliveries: {:?}",
            job.status.name(),
            deliveries.iter().map(|it| (it.status_code, &it.answer)).collect::<Vec<_>>()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
