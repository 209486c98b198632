//! The adapter against a server of its own: what is sent, and what is made of the answers.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Response;
use base64::Engine;
use octocrab::jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use ostler_core::config::Settings;
use ostler_core::ports::{Configuration, JobStatus};
use serde_json::Value;
use tokio::net::TcpListener;

use super::*;
use crate::transport::{Carried, Times, Transport};

mod backlog;
mod janitor;
mod pool;
mod setup;

/// A key that opens nothing.
const KEY: &str = include_str!("../tests/data/app-of-tests.pem");
const PUBLIC_KEY: &str = include_str!("../tests/data/app-of-tests.pub.pem");

const NOW: &str = "2026-11-30T12:00:00Z";
const JIT: &str = "QUJDRA==";

#[derive(Clone)]
struct TestClock(Arc<Mutex<Timestamp>>);

impl TestClock {
    fn pass(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        *now = *now + Duration::from_secs(seconds);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Value,
}

fn ok(body: Value) -> Answer {
    status(200, body)
}

fn status(status: u16, body: Value) -> Answer {
    Answer { status, headers: vec![], body }
}

fn says(code: u16, message: &str) -> Answer {
    status(code, json!({ "message": message }))
}

#[derive(Clone, Debug)]
struct Call {
    /// `GET /repos/…` below `/api/v3`, without the query.
    what: String,
    query: String,
    bearer: String,
    /// `If-None-Match`.
    tag: Option<String>,
    body: Value,
}

/// A server with answers by `METHOD /path`, given in turn, the last one again and again. With `app 7: ` or a
/// token and `: ` before it, they are for that caller alone. Tokens are minted as `token-1`, `token-2`, …;
/// all else is 404.
#[derive(Clone)]
struct Server {
    url: String,
    clock: TestClock,
    answers: Arc<Mutex<HashMap<String, VecDeque<Answer>>>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            clock: TestClock(Arc::new(Mutex::new(Timestamp::parse(NOW).unwrap()))),
            answers: Arc::default(),
            calls: Arc::default(),
        };
        let router = Router::new().fallback(serve).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    /// Adds answers for `METHOD /path`.
    fn on(self, what: &str, answers: impl IntoIterator<Item = Answer>) -> Self {
        self.answers.lock().unwrap().entry(what.to_owned()).or_default().extend(answers);
        self
    }

    fn github(&self) -> GitHub<TestClock> {
        let settings = settings(&self.url);
        GitHub::new(&settings, &Secret::new(KEY), &[], self.clock.clone()).unwrap()
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The calls without those for tokens.
    fn asked(&self) -> Vec<String> {
        let tokens = "/access_tokens";
        self.calls()
            .into_iter()
            .map(|call| call.what)
            .filter(|what| !what.ends_with(tokens))
            .collect()
    }

    fn minted(&self) -> usize {
        self.calls().len() - self.asked().len()
    }
}

async fn serve(State(server): State<Server>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let path = path.strip_prefix("/api/v3").unwrap_or("/outside-of-the-api");
    let what = format!("{} {path}", request.method());
    let call = Call {
        what: what.clone(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        bearer: request
            .headers()
            .get("authorization")
            .map(|it| it.to_str().unwrap().replace("Bearer ", ""))
            .unwrap_or_default(),
        tag: request.headers().get("if-none-match").map(|tag| tag.to_str().unwrap().to_owned()),
        body: Value::Null,
    };
    let caller = app_of(&call.bearer).map_or(call.bearer.clone(), |app| format!("app {app}"));
    let bytes = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    server.calls.lock().unwrap().push(Call { body, ..call });
    let scripted = {
        let mut answers = server.answers.lock().unwrap();
        let own = format!("{caller}: {what}");
        let key = if answers.contains_key(&own) { &own } else { &what };
        answers.get_mut(key).and_then(|turn| match turn.len() {
            0 | 1 => turn.front().cloned(),
            _ => turn.pop_front(),
        })
    };
    let answer = scripted.unwrap_or_else(|| {
        if what.ends_with("/access_tokens") {
            let expires = server.clock.now() + Duration::from_secs(3600);
            let token = format!("token-{}", server.minted());
            return status(201, json!({"token": token, "expires_at": expires.to_string()}));
        }
        says(404, "Not Found")
    });
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(Body::from(answer.body.to_string())).unwrap()
}

/// The App that signed a JWT.
fn app_of(bearer: &str) -> Option<u64> {
    let claims = bearer.split('.').nth(1)?;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?["iss"].as_u64()
}

fn settings(url: &str) -> AppSettings {
    serde_json::from_value(json!({"app_id": 4242, "github_url": url})).unwrap()
}

fn at() -> Repository {
    Repository { owner: "Acme".into(), name: "widgets".into(), installation: Some(5) }
}

fn place(level: Registration) -> Place {
    Place { repository: at(), level }
}

const ORG: Registration = Registration::Organization;
const REPO: Registration = Registration::Repository;
const ORG_JIT: &str = "POST /orgs/Acme/actions/runners/generate-jitconfig";
const REPO_JIT: &str = "POST /repos/Acme/widgets/actions/runners/generate-jitconfig";
const ORG_RUNNER: &str = "GET /orgs/Acme/actions/runners/9";
const JOB: &str = "GET /repos/Acme/widgets/actions/jobs/7";
const THE_REPO: &str = "GET /repos/Acme/widgets";
const OWNER: &str = "GET /users/Acme";
const GROUPS: &str = "GET /orgs/Acme/actions/runner-groups";

fn registered() -> Answer {
    status(201, json!({"runner": {"id": 9, "name": "w-7-aa"}, "encoded_jit_config": JIT}))
}

fn job() -> Answer {
    ok(json!({"id": 7, "status": "queued", "labels": ["self-hosted"], "created_at": NOW}))
}

async fn register(
    github: &GitHub<TestClock>,
    level: Registration,
    group: Option<&str>,
) -> std::result::Result<Jit, Refusal> {
    github.register(&place(level), "w-7-aa", group, &Labels::new(["self-hosted", "linux"])).await
}

// Tokens and installations

#[tokio::test]
async fn ra_04_a_token_is_renewed_in_its_last_five_minutes() {
    let server = Server::start().await.on(JOB, [job()]);
    let github = server.github();
    github.job(&at(), JobId(7)).await.unwrap();
    server.clock.pass(3600 - 301);
    github.job(&at(), JobId(7)).await.unwrap();
    assert_eq!(server.minted(), 1);
    server.clock.pass(1);
    github.job(&at(), JobId(7)).await.unwrap();
    assert_eq!(server.minted(), 2);
    let bearers: Vec<_> =
        server.calls().into_iter().filter(|c| c.what == JOB).map(|c| c.bearer).collect();
    assert_eq!(bearers, ["token-1", "token-1", "token-2"]);
}

#[tokio::test]
async fn ra_05_after_401_one_token_is_minted_and_the_call_is_sent_once_more() {
    let refused = says(401, "Bad credentials");
    let server = Server::start().await.on(JOB, [refused.clone(), job()]);
    assert!(server.github().job(&at(), JobId(7)).await.unwrap().is_some());
    assert_eq!((server.asked().len(), server.minted()), (2, 2));

    let server = Server::start().await.on(JOB, [refused]);
    let error = server.github().job(&at(), JobId(7)).await.unwrap_err();
    assert!(matches!(error, Error::Permanent(_)), "{error}");
    assert_eq!((server.asked().len(), server.minted()), (2, 2), "no loop");
}

#[tokio::test]
async fn ra_06_the_jwt_is_by_our_clock_and_within_githubs_bounds() {
    let server = Server::start().await.on(JOB, [job()]);
    server.clock.pass(1_000_000);
    server.github().job(&at(), JobId(7)).await.unwrap();
    let jwt = server.calls()[0].bearer.clone();
    let mut validation = Validation::new(Algorithm::RS256);
    validation.validate_exp = false;
    let key = DecodingKey::from_rsa_pem(PUBLIC_KEY.as_bytes()).unwrap();
    let claims = decode::<Value>(&jwt, &key, &validation).unwrap().claims;
    let now = server.clock.now().seconds();
    let (iat, exp) = (claims["iat"].as_i64().unwrap(), claims["exp"].as_i64().unwrap());
    assert_eq!((&claims["iss"], iat, exp), (&json!(4242), now - 60, now - 60 + 540));
    for offset in [-60, 0, 60] {
        let theirs = now + offset;
        assert!(iat <= theirs && exp <= theirs + 600, "a clock {offset} s off is taken");
    }
    let jti = |jwt: &str| decode::<Value>(jwt, &key, &validation).unwrap().claims["jti"].clone();
    let again = Server::start().await.on(JOB, [job()]);
    again.clock.pass(1_000_000);
    again.github().job(&at(), JobId(7)).await.unwrap();
    assert_ne!(jti(&jwt), jti(&again.calls()[0].bearer), "two in one second are two");
}

#[tokio::test]
async fn ra_14_each_call_as_the_app_has_a_jwt_of_its_own() {
    let server = Server::start().await;
    let github = server.github();
    let mut validation = Validation::new(Algorithm::RS256);
    validation.validate_exp = false;
    let key = DecodingKey::from_rsa_pem(PUBLIC_KEY.as_bytes()).unwrap();
    for hours in 0..3 {
        github.installed(&at()).await.unwrap();
        let jwt = server.calls().pop().unwrap().bearer;
        let claims = decode::<Value>(&jwt, &key, &validation).unwrap().claims;
        let left = claims["exp"].as_i64().unwrap() - server.clock.now().seconds();
        assert_eq!(
            left, 480,
            "9 minutes less the one by which it is dated back, {hours} hours later"
        );
        server.clock.pass(3600);
    }
}

#[tokio::test]
async fn callers_at_the_same_time_mint_one_token() {
    let server = Server::start().await.on(JOB, [job()]);
    let github = server.github();
    let repository = at();
    let ask = || github.job(&repository, JobId(7));
    let (a, b, c) = tokio::join!(ask(), ask(), ask());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!((server.asked().len(), server.minted()), (3, 1));
}

#[tokio::test]
async fn wi_05_an_unknown_installation_is_looked_up_once_for_the_owner() {
    let server = Server::start()
        .await
        .on("GET /repos/Acme/widgets/installation", [ok(json!({"id": 77}))])
        .on(JOB, [job()])
        .on("GET /repos/acme/other/actions/jobs/7", [job()]);
    let github = server.github();
    for installation in [None, Some(0)] {
        github.job(&Repository { installation, ..at() }, JobId(7)).await.unwrap();
    }
    let other = Repository { owner: "acme".into(), name: "other".into(), installation: None };
    github.job(&other, JobId(7)).await.unwrap();
    let calls: Vec<_> = server.calls().into_iter().map(|call| call.what).collect();
    assert_eq!(
        calls[..2],
        ["GET /repos/Acme/widgets/installation", "POST /app/installations/77/access_tokens"]
    );
    assert_eq!((calls.len(), server.minted()), (5, 1));
}

#[tokio::test]
async fn ra_16_a_new_installation_is_found_when_the_old_id_is_gone() {
    let server = Server::start()
        .await
        .on("POST /app/installations/5/access_tokens", [says(404, "Integration not found")])
        .on(
            "GET /repos/Acme/widgets/installation",
            [ok(json!({"id": 78, "account": {"type": "Organization"}}))],
        )
        .on(JOB, [job()]);
    let github = server.github();
    for _ in 0..2 {
        assert!(github.job(&at(), JobId(7)).await.unwrap().is_some());
    }
    assert_eq!(server.asked(), ["GET /repos/Acme/widgets/installation", JOB, JOB]);
    assert_eq!(github.pool.users.known("acme"), Some(false), "learned in passing");
}

#[tokio::test]
async fn a_repository_that_the_app_cannot_see_is_asked_for_by_its_owners_installation() {
    let server = Server::start()
        .await
        .on("GET /users/Acme/installation", [ok(json!({"id": 79, "account": {"type": "User"}}))]);
    let github = server.github();
    let unknown = Repository { installation: None, ..at() };
    assert!(github.job(&unknown, JobId(7)).await.unwrap().is_none(), "404 under a valid token");
    assert_eq!(
        server.asked(),
        [
            "GET /repos/Acme/widgets/installation",
            "GET /orgs/Acme/installation",
            "GET /users/Acme/installation",
            JOB,
            THE_REPO,
        ]
    );
}

#[tokio::test]
async fn s12_only_a_404_for_that_repository_says_that_the_app_is_not_installed() {
    const INSTALLATION: &str = "GET /repos/Acme/widgets/installation";
    for (answer, expected) in [
        (ok(json!({"id": 77})), Some(true)),
        (says(404, "Not Found"), Some(false)),
        (says(401, "A JSON web token could not be decoded"), None),
        (says(403, "API rate limit exceeded"), None),
        (says(500, ""), None),
        (says(301, "Moved Permanently"), None),
    ] {
        let server = Server::start()
            .await
            .on(INSTALLATION, [answer])
            .on("GET /orgs/Acme/installation", [ok(json!({"id": 78}))]);
        assert_eq!(server.github().installed(&at()).await.ok(), expected, "{expected:?}");
        assert_eq!(
            server.asked(),
            [INSTALLATION],
            "another installation of the owner's is no answer"
        );
    }
}

const RUN_JOBS: &str = "GET /repos/Acme/widgets/actions/runs/9/jobs";

#[tokio::test]
async fn s12_the_jobs_of_all_attempts_of_a_run_are_listed_by_pages() {
    let page = |first: i64, count: i64| {
        let jobs: Vec<_> = (first..first + count)
            .map(|id| {
                json!({"id": id, "status": "completed", "runner_id": id,
                "runner_name": format!("w-{id}"), "labels": ["linux"], "created_at": NOW})
            })
            .collect();
        ok(json!({"total_count": 130, "jobs": jobs}))
    };
    let server = Server::start().await.on(RUN_JOBS, [page(1, 100), page(101, 30)]);
    let jobs = server.github().run_jobs(&at(), 9).await.unwrap().unwrap();
    assert_eq!(jobs.len(), 130);
    let (id, last) = &jobs[129];
    assert_eq!((id.0, last.runner_name.as_deref()), (130, Some("w-130")));
    let queries: Vec<_> =
        server.calls().into_iter().filter(|c| c.what == RUN_JOBS).map(|c| c.query).collect();
    assert_eq!(queries, ["filter=all&per_page=100&page=1", "filter=all&per_page=100&page=2"]);
}

#[tokio::test]
async fn s12_i6_a_run_that_github_does_not_know_is_told_apart_from_a_list_that_failed() {
    let server = Server::start().await.on(RUN_JOBS, [says(404, "Not Found")]);
    assert!(server.github().run_jobs(&at(), 9).await.unwrap().is_none());
    for answer in [says(500, ""), says(403, "rate limit"), ok(json!([]))] {
        let server = Server::start().await.on(RUN_JOBS, [answer]);
        assert!(server.github().run_jobs(&at(), 9).await.is_err());
    }
    let short = ok(json!({"total_count": 3, "jobs": [{"id": 1, "status": "queued"}]}));
    let none = ok(json!({"total_count": 3, "jobs": []}));
    let server = Server::start().await.on(RUN_JOBS, [short, none]);
    assert!(
        server.github().run_jobs(&at(), 9).await.is_err(),
        "a list that ends early proves nothing"
    );
    let odd = json!({"total_count": 2, "jobs": [{"id": null}, {"id": 2, "status": "queued"}]});
    let server = Server::start().await.on(RUN_JOBS, [ok(odd)]);
    assert_eq!(server.github().run_jobs(&at(), 9).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn an_app_that_is_not_installed_is_told_of_and_proves_nothing() {
    let server = Server::start().await;
    let unknown = Repository { installation: None, ..at() };
    let error = server.github().job(&unknown, JobId(7)).await.unwrap_err();
    assert!(matches!(&error, Error::Permanent(text) if text.contains("install it")), "{error}");
}

#[tokio::test]
async fn a_refused_key_is_remembered_so_that_the_configuration_is_read_again() {
    let server = Server::start().await.on(
        "POST /app/installations/5/access_tokens",
        [says(401, "A JSON web token could not be decoded")],
    );
    let github = server.github();
    assert!(!github.key_refused());
    assert!(matches!(github.job(&at(), JobId(7)).await, Err(Error::Permanent(_))));
    assert!(github.key_refused());
}

#[test]
fn a_key_that_is_none_is_told_of_without_showing_it() {
    let clock = TestClock(Arc::new(Mutex::new(Timestamp::default())));
    let settings = settings("https://github.com");
    for key in ["", "SECRET", "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----"] {
        let made = GitHub::new(&settings, &Secret::new(key), &[], clock.clone());
        let error = made.err().unwrap().to_string();
        assert!(error.contains("control/app-private-key") && !error.contains("SECRET"), "{error}");
    }
    let escaped = KEY.replace('\n', "\\n");
    let made = GitHub::new(&settings, &Secret::new(escaped), &[], clock);
    assert!(made.is_ok(), "as shells store it");
}

#[test]
fn a_client_is_right_for_its_settings_and_key_only() {
    let clock = TestClock(Arc::new(Mutex::new(Timestamp::default())));
    let key = Secret::new(KEY);
    let more = [AppCredential { id: 8, key: key.clone() }];
    let github = GitHub::new(&settings("https://github.com"), &key, &more, clock).unwrap();
    assert!(github.is_for(&settings("https://github.com/"), &key, &more));
    assert!(!github.is_for(&settings("https://git.acme.example"), &key, &more));
    assert!(!github.is_for(&settings("https://github.com"), &Secret::new("other"), &more));
    assert!(!github.is_for(&settings("https://github.com"), &key, &[]));
    let other: AppSettings = serde_json::from_value(json!({"app_id": 1})).unwrap();
    assert!(!github.is_for(&other, &key, &more));
}

/// Settings of App 1, until they are read again.
struct Rotating {
    url: String,
    reread: std::cell::Cell<bool>,
}

impl Rotating {
    fn now(&self) -> Arc<Settings> {
        let app_id = if self.reread.get() { 4242 } else { 1 };
        let app =
            serde_json::from_value(json!({"app_id": app_id, "github_url": self.url})).unwrap();
        let key = Some(Secret::new(KEY));
        Arc::new(Settings { app: Some(app), app_private_key: key, ..Settings::default() })
    }
}

impl Configuration for Rotating {
    async fn settings(&self) -> Result<Arc<Settings>> {
        Ok(self.now())
    }

    async fn reread(&self) -> Result<Arc<Settings>> {
        self.reread.set(true);
        Ok(self.now())
    }
}

#[tokio::test]
async fn a_refused_app_is_read_again_and_the_next_call_is_the_new_apps() {
    let refused = says(401, "Integration not found");
    let minted = status(201, json!({"token": "token", "expires_at": null}));
    let server = Server::start()
        .await
        .on("POST /app/installations/5/access_tokens", [refused, minted])
        .on(JOB, [job()]);
    let configuration = Rc::new(Rotating { url: server.url.clone(), reread: false.into() });
    let github = ConfiguredGitHub::new(Rc::clone(&configuration), server.clock.clone());
    assert!(matches!(github.job(&at(), JobId(7)).await, Err(Error::Permanent(_))));
    for _ in 0..2 {
        assert!(github.job(&at(), JobId(7)).await.unwrap().is_some());
    }
    assert_eq!((server.asked().len(), server.minted()), (2, 2), "one client, one token");
}

#[tokio::test]
async fn cp_11_gh_08_a_github_that_hangs_does_not_cost_the_webhook_its_ten_seconds() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let configuration = Rc::new(Rotating { url, reread: false.into() });
    let clock = TestClock(Arc::new(Mutex::new(Timestamp::parse(NOW).unwrap())));
    let mut github = ConfiguredGitHub::new(configuration, clock);
    assert!(github.deployment_answer <= Duration::from_secs(5), "the start comes after it");
    github.deployment_answer = Duration::from_millis(50);
    let error = github.deployment_waits(&at(), 3).await.unwrap_err();
    assert!(matches!(&error, Error::Transient(text) if text.contains("within")), "{error:?}");
}

// Addresses and the wire

#[tokio::test]
async fn gh_01_gh_06_every_call_goes_to_the_one_address() {
    for slash in ["", "/"] {
        let server = Server::start().await.on(ORG_JIT, [registered()]).on(GROUPS, [ok(json!({}))]);
        let settings = settings(&format!("{}{slash}", server.url));
        let github = GitHub::new(&settings, &Secret::new(KEY), &[], server.clock.clone()).unwrap();
        let (at, place) = (at(), place(ORG));
        let _ = github.job(&Repository { installation: None, ..at.clone() }, JobId(7)).await;
        let _ = github.job(&at, JobId(7)).await;
        let _ = github.deployment_waits(&at, 3).await;
        let _ = github.runner(&place, 9).await;
        let _ = github.runner_named(&place, "w-7-aa").await;
        let _ = github.remove_runner(&place, 9).await;
        let _ = register(&github, ORG, Some("gpu")).await;
        let _ = register(&github, ORG, None).await;
        let _ = register(&github, REPO, None).await;
        let calls = server.calls();
        assert!(calls.len() >= 10, "{calls:?}");
        assert!(calls.iter().all(|call| !call.what.contains("outside")), "{calls:?}");
        assert!(calls.iter().all(|call| !call.bearer.is_empty()), "{calls:?}");
    }
}

#[tokio::test]
async fn gh_09_a_server_that_cannot_be_reached_is_no_answer() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let clock = TestClock(Arc::new(Mutex::new(Timestamp::default())));
    let settings = settings(&format!("http://{free}"));
    let github = GitHub::new(&settings, &Secret::new(KEY), &[], clock).unwrap();
    let error = github.job(&at(), JobId(7)).await.unwrap_err();
    let Error::Transient(text) = &error else { panic!("{error:?}") };
    assert!(text.contains(&free.to_string()) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn gh_09_a_server_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", silent.local_addr().unwrap());
    let short = Duration::from_millis(50);
    for (read, total) in [(short, short * 100), (short * 100, short)] {
        let transport = Transport::with(base.clone(), Times { connect: short * 10, read, total });
        let sent = transport.send(Method::GET, "/x", &Secret::new("TOKEN"), Carried::Nothing).await;
        let Err(Lost(why)) = sent else { panic!("{sent:?}") };
        assert!(why.contains("/x") && !why.contains("TOKEN"), "{why}");
    }
}

#[tokio::test]
async fn a_moved_repository_is_followed_for_questions_and_never_for_registrations() {
    let moved = |code, path: &str, server: &Server| Answer {
        headers: vec![("location", format!("{}/api/v3{path}", server.url))],
        ..says(code, "Moved")
    };
    let server = Server::start().await;
    let to_job = moved(301, "/repositories/1/actions/jobs/7", &server);
    let to_jit = moved(307, "/repositories/1/actions/runners/generate-jitconfig", &server);
    let server = server
        .on(JOB, [to_job])
        .on("GET /repositories/1/actions/jobs/7", [job()])
        .on(REPO_JIT, [to_jit]);
    let github = server.github();
    assert!(github.job(&at(), JobId(7)).await.unwrap().is_some());
    assert!(matches!(register(&github, REPO, None).await, Err(Refusal::Invalid(_))));
    assert_eq!(server.asked(), [JOB, "GET /repositories/1/actions/jobs/7", REPO_JIT]);
}

#[tokio::test]
async fn the_quota_is_the_last_one_seen() {
    let headers = vec![
        ("x-ratelimit-limit", "5000".to_owned()),
        ("x-ratelimit-remaining", "4321".to_owned()),
        ("x-ratelimit-reset", "1796043600".to_owned()),
    ];
    let server = Server::start().await.on(JOB, [Answer { headers, ..job() }, job()]);
    let github = server.github();
    assert_eq!(github.quotas(), []);
    for _ in 0..2 {
        github.job(&at(), JobId(7)).await.unwrap();
        let reset = Timestamp::from_seconds(1_796_043_600);
        let quota = Quota { limit: 5000, remaining: 4321, reset };
        assert_eq!(github.quotas(), [(4242, quota)]);
    }
}

#[tokio::test]
async fn i9_no_error_holds_a_token_or_a_key() {
    for failure in
        [says(500, "x"), says(401, "x"), says(403, "x"), says(422, "x"), ok(json!("odd"))]
    {
        let server = Server::start()
            .await
            .on(JOB, [failure.clone()])
            .on(ORG_JIT, [failure.clone()])
            .on(ORG_RUNNER, [failure]);
        let github = server.github();
        let texts = [
            format!("{:?}", github.job(&at(), JobId(7)).await.unwrap_err()),
            format!("{:?}", github.runner(&place(ORG), 9).await.unwrap_err()),
            format!("{:?}", register(&github, ORG, None).await.unwrap_err()),
        ];
        let key_line = KEY.lines().nth(1).unwrap();
        for text in texts {
            assert!(
                !text.contains("token-1") && !text.contains(key_line) && !text.contains("eyJ"),
                "{text}"
            );
        }
    }
}

// Jobs and deployments

#[tokio::test]
async fn a_job_is_read() {
    let server = Server::start().await.on(JOB, [job()]);
    let job = server.github().job(&at(), JobId(7)).await.unwrap().unwrap();
    assert_eq!(
        (job.status, job.runner_name, job.created),
        (JobStatus::Queued, None, Timestamp::parse(NOW))
    );
    assert_eq!(job.labels.to_string(), "self-hosted");
}

#[tokio::test]
async fn i6_a_job_is_gone_only_if_its_repository_is_answered_for() {
    let github = |repository: Answer| async {
        let server = Server::start().await.on(THE_REPO, [repository]);
        server.github().job(&at(), JobId(7)).await
    };
    assert!(github(ok(json!({"id": 1}))).await.unwrap().is_none());
    assert!(github(says(404, "Not Found")).await.unwrap().is_none());
    for code in [401, 403, 429, 500, 503] {
        assert!(github(says(code, "")).await.is_err(), "{code}");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_no_answer() {
    for body in
        [json!([]), json!({"status": null}), json!({"status": "queued", "labels": "x"}), json!(5)]
    {
        let server = Server::start().await.on(JOB, [ok(body)]);
        assert!(matches!(server.github().job(&at(), JobId(7)).await, Err(Error::Transient(_))));
    }
}

#[tokio::test]
async fn wi_12_the_newest_status_of_a_deployment_decides() {
    let path = "GET /repos/Acme/widgets/deployments/3/statuses";
    for (statuses, waits) in [
        (json!([]), false),
        (json!([{"id": 2, "state": "waiting"}, {"id": 1, "state": "queued"}]), true),
        (json!([{"id": 1, "state": "waiting"}, {"id": 2, "state": "queued"}]), false),
        (json!([{"id": null, "state": null}]), false),
    ] {
        let server = Server::start().await.on(path, [ok(statuses)]);
        assert_eq!(server.github().deployment_waits(&at(), 3).await.unwrap(), waits);
    }
    let server = Server::start().await;
    assert!(matches!(server.github().deployment_waits(&at(), 3).await, Err(Error::NotFound(_))));
}

// Registrations

#[tokio::test]
async fn ol_21_without_a_group_a_registration_is_one_call_with_all_labels() {
    let server = Server::start().await.on(ORG_JIT, [registered()]);
    let jit = register(&server.github(), ORG, None).await.unwrap();
    assert_eq!((jit.runner_id, jit.config.expose()), (9, JIT));
    assert_eq!(server.asked(), [ORG_JIT]);
    assert_eq!(
        server.calls()[1].body,
        json!({"name": "w-7-aa", "runner_group_id": 1, "labels": ["self-hosted", "linux"],
            "work_folder": "_work"})
    );
}

#[tokio::test]
async fn ol_17_ra_19_a_registration_is_never_repeated_after_an_unclear_answer() {
    for code in [500, 502, 503, 504] {
        let server = Server::start().await.on(ORG_JIT, [says(code, "")]);
        assert!(matches!(register(&server.github(), ORG, None).await, Err(Refusal::Ambiguous(_))));
        assert_eq!(server.asked(), [ORG_JIT], "{code}");
    }
}

#[tokio::test]
async fn ol_17_a_lost_answer_is_unclear_too() {
    let server = Server::start().await.on(JOB, [job()]);
    let github = server.github();
    github.job(&at(), JobId(7)).await.unwrap();
    // The same client with its token, and a server that hangs up once it has the request.
    let cut = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/api/v3", cut.local_addr().unwrap());
    let github = GitHub { pool: github.pool.over(Transport::new(base)), ..github };
    let count = tokio::spawn(async move {
        let mut accepted = 0;
        while let Ok(Ok((stream, _))) =
            tokio::time::timeout(Duration::from_millis(500), cut.accept()).await
        {
            stream.readable().await.unwrap();
            accepted += 1;
        }
        accepted
    });
    assert!(matches!(register(&github, ORG, None).await, Err(Refusal::Ambiguous(_))));
    assert_eq!(count.await.unwrap(), 1);
}

#[tokio::test]
async fn a_registration_refused_with_401_did_not_happen_and_is_asked_for_once_more() {
    let server = Server::start().await.on(ORG_JIT, [says(401, "Bad credentials"), registered()]);
    assert!(register(&server.github(), ORG, None).await.is_ok());
    assert_eq!((server.asked(), server.minted()), (vec![ORG_JIT.to_owned(); 2], 2));
}

#[tokio::test]
async fn limits_before_the_registration_are_limits_of_it() {
    let limited =
        Answer { headers: vec![("retry-after", "90".into())], ..says(403, "secondary rate limit") };
    let server = Server::start().await.on("POST /app/installations/5/access_tokens", [limited]);
    let refusal = register(&server.github(), ORG, None).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Limited { after, .. } if after == Duration::from_secs(90)));
    let server =
        Server::start().await.on("POST /app/installations/5/access_tokens", [says(403, "no")]);
    assert!(matches!(register(&server.github(), ORG, None).await, Err(Refusal::NotAllowed(_))));
}

#[tokio::test]
async fn runners_of_a_user_account_are_the_repositorys_and_that_is_remembered() {
    let server = Server::start()
        .await
        .on(OWNER, [ok(json!({"login": "Acme", "type": "User"}))])
        .on(REPO_JIT, [registered()])
        .on("DELETE /repos/Acme/widgets/actions/runners/9", [status(204, Value::Null)]);
    let github = server.github();
    assert!(register(&github, ORG, None).await.is_ok());
    assert_eq!(github.remove_runner(&place(ORG), 9).await.unwrap(), Removal::Removed);
    assert_eq!(
        server.asked(),
        [ORG_JIT, OWNER, REPO_JIT, "DELETE /repos/Acme/widgets/actions/runners/9"]
    );
}

#[tokio::test]
async fn i6_a_404_of_an_unknown_owner_is_absence_only_once_the_owner_is_known() {
    let server = Server::start().await.on(OWNER, [ok(json!({"type": "Organization"}))]);
    let github = server.github();
    for _ in 0..2 {
        assert_eq!(github.runner(&place(ORG), 9).await.unwrap(), None);
    }
    assert_eq!(server.asked(), [ORG_RUNNER, OWNER, ORG_RUNNER]);
    for owner in [says(404, "Not Found"), says(500, ""), ok(json!({"type": null}))] {
        let server = Server::start().await.on(OWNER, [owner]);
        assert!(server.github().runner(&place(ORG), 9).await.is_err());
        assert!(server.github().remove_runner(&place(ORG), 9).await.is_err());
    }
}

#[tokio::test]
async fn an_owner_whose_runners_answer_is_an_organisation_and_not_asked_for() {
    let server = Server::start().await.on(ORG_JIT, [registered()]);
    let github = server.github();
    register(&github, ORG, None).await.unwrap();
    assert_eq!(github.runner(&place(ORG), 9).await.unwrap(), None);
    assert_eq!(github.remove_runner(&place(ORG), 9).await.unwrap(), Removal::Gone);
    assert_eq!(server.asked().len(), 3, "the calls of a job, and none besides");
}

// Groups

fn groups(names: impl IntoIterator<Item = (i64, String)>, total: usize) -> Answer {
    let groups: Vec<_> =
        names.into_iter().map(|(id, name)| json!({"id": id, "name": name})).collect();
    ok(json!({"total_count": total, "runner_groups": groups}))
}

#[tokio::test]
async fn a_group_is_found_by_name_on_any_page_and_kept_for_ten_minutes() {
    let first = groups((1..=100).map(|id| (id, format!("group {id}"))), 101);
    let second = groups([(500, "GPU Runners".to_owned())], 101);
    let server = Server::start().await.on(GROUPS, [first, second]).on(ORG_JIT, [registered()]);
    let github = server.github();
    register(&github, ORG, Some("gpu runners")).await.unwrap();
    assert_eq!(server.asked(), [GROUPS, GROUPS, ORG_JIT], "the list proves an organization");
    let queries: Vec<_> = server.calls()[1..3].iter().map(|call| call.query.clone()).collect();
    assert_eq!(queries, ["per_page=100&page=1", "per_page=100&page=2"]);
    assert_eq!(server.calls()[3].body["runner_group_id"], 500);
    server.clock.pass(599);
    register(&github, ORG, Some("GPU Runners")).await.unwrap();
    assert_eq!(server.asked().len(), 4);
    server.clock.pass(1);
    let _ = register(&github, ORG, Some("GPU Runners")).await;
    assert!(server.asked().len() > 5, "listed anew");
}

#[tokio::test]
async fn groups_of_one_owner_are_not_those_of_another() {
    let beta = "GET /orgs/Beta/actions/runner-groups";
    let server = Server::start()
        .await
        .on(GROUPS, [groups([(7, "gpu".to_owned())], 1)])
        .on(beta, [groups([(8, "gpu".to_owned())], 1)])
        .on(ORG_JIT, [registered()])
        .on("POST /orgs/Beta/actions/runners/generate-jitconfig", [registered()]);
    let github = server.github();
    register(&github, ORG, Some("gpu")).await.unwrap();
    let mut other = place(ORG);
    other.repository.owner = "Beta".into();
    github.register(&other, "w-8-aa", Some("gpu"), &Labels::new(["x"])).await.unwrap();
    let ids: Vec<_> = server
        .calls()
        .iter()
        .map(|call| call.body["runner_group_id"].clone())
        .filter(|id| !id.is_null())
        .collect();
    assert_eq!(ids, [7, 8]);
}

#[tokio::test]
async fn ol_22_a_group_that_is_not_there_is_told_of_without_a_registration() {
    let server = Server::start()
        .await
        .on(GROUPS, [groups([(7, "gpu".to_owned())], 1)])
        .on(ORG_JIT, [registered()]);
    let github = server.github();
    register(&github, ORG, Some("gpu")).await.unwrap();
    let refusal = register(&github, ORG, Some("arm")).await.unwrap_err();
    assert!(matches!(refusal, Refusal::GroupUnknown(text) if text.contains("'arm'")));
    assert_eq!(server.asked(), [GROUPS, ORG_JIT, GROUPS], "a new name is looked up at once");
    let server =
        Server::start().await.on(GROUPS, [says(403, "Resource not accessible by integration")]);
    let refusal = register(&server.github(), ORG, Some("gpu")).await.unwrap_err();
    assert!(matches!(refusal, Refusal::NotAllowed(text) if text.contains("Self-hosted runners")));
}

#[tokio::test]
async fn ol_22_a_group_by_id_is_taken_as_it_is() {
    let server = Server::start()
        .await
        .on(OWNER, [ok(json!({"type": "Organization"}))])
        .on(ORG_JIT, [registered(), says(403, "no"), says(404, "Not Found")]);
    let github = server.github();
    assert!(register(&github, ORG, Some("42")).await.is_ok());
    assert!(matches!(register(&github, ORG, Some("2")).await, Err(Refusal::GroupForbidden(_))));
    assert!(matches!(register(&github, ORG, Some("99999")).await, Err(Refusal::GroupUnknown(_))));
    assert_eq!(server.asked(), [OWNER, ORG_JIT, ORG_JIT, ORG_JIT]);
}

#[tokio::test]
async fn a_group_made_anew_is_found_after_one_refusal() {
    let list = |id| groups([(id, "gpu".to_owned())], 1);
    let server = Server::start()
        .await
        .on(GROUPS, [list(7), list(8)])
        .on(ORG_JIT, [says(404, "Not Found"), registered()]);
    let github = server.github();
    assert!(matches!(register(&github, ORG, Some("gpu")).await, Err(Refusal::GroupUnknown(_))));
    assert!(register(&github, ORG, Some("gpu")).await.is_ok());
    assert_eq!(server.calls().last().unwrap().body["runner_group_id"], 8);
}

#[tokio::test]
async fn ol_20_a_group_where_there_are_none_is_refused_before_a_registration() {
    for group in ["gpu", "42"] {
        let server = Server::start().await.on(OWNER, [ok(json!({"type": "User"}))]);
        let github = server.github();
        for level in [ORG, ORG, REPO] {
            let refusal = register(&github, level, Some(group)).await.unwrap_err();
            assert!(
                matches!(refusal, Refusal::GroupUnknown(text) if text.contains("remove runner_group"))
            );
        }
        assert!(!server.asked().iter().any(|what| what.starts_with("POST")));
    }
}

// Runners

#[tokio::test]
async fn bf_02_a_runner_is_read_as_github_tells_it() {
    let server = Server::start().await.on(
        ORG_RUNNER,
        [ok(json!({"id": 9, "name": "w-7-aa", "status": "online", "busy": false}))],
    );
    let found = server.github().runner(&place(ORG), 9).await.unwrap();
    assert_eq!(found, Some(Registered { id: 9, name: "w-7-aa".into(), online: true, busy: false }));
}

#[tokio::test]
async fn a_name_is_looked_for_by_name_and_compared() {
    let path = "GET /repos/Acme/widgets/actions/runners";
    let list = json!({"total_count": 2, "runners": [
        {"id": 1, "name": "w-7-aa-r1", "status": "offline", "busy": false},
        {"id": 2, "name": "w-7-aa", "status": "offline", "busy": false}]});
    let server = Server::start().await.on(path, [ok(list)]);
    let found = server.github().runner_named(&place(REPO), "w-7-aa").await.unwrap().unwrap();
    assert_eq!(found.id, 2);
    assert_eq!(server.calls()[1].query, "name=w-7-aa&per_page=100&page=1");
    let injected = server.github().runner_named(&place(REPO), "x&page=9").await;
    assert!(matches!(injected, Err(Error::Permanent(_))));
}

#[tokio::test]
async fn bf_07_jp_11_a_name_is_absent_only_from_a_complete_list() {
    let path = "GET /repos/Acme/widgets/actions/runners";
    let page = |from: u64, count: u64, total: Option<u64>| {
        let runners: Vec<_> = (from..from + count)
            .map(|id| json!({"id": id, "name": format!("r-{id}"), "busy": false}))
            .collect();
        ok(json!({"total_count": total, "runners": runners}))
    };
    for (pages, complete) in [
        (vec![page(0, 0, Some(0))], true),
        (vec![page(0, 100, Some(150)), page(100, 50, Some(150))], true),
        (vec![page(0, 60, Some(150)), page(60, 90, Some(150))], true),
        (vec![page(0, 100, None), page(100, 3, None)], true),
        (vec![page(0, 100, Some(150)), page(100, 0, Some(150))], false),
        (vec![page(0, 100, Some(150)), says(502, "")], false),
        (vec![page(0, 100, Some(150)), ok(json!({"runners": null}))], false),
    ] {
        let calls = pages.len();
        let server = Server::start().await.on(path, pages);
        let found = server.github().runner_named(&place(REPO), "w-7-aa").await;
        assert_eq!(found.is_ok(), complete, "{found:?}");
        assert_eq!((found.ok().flatten(), server.asked().len()), (None, calls));
    }
}

#[tokio::test]
async fn rr_12_bf_10_every_answer_to_a_removal_is_told_apart() {
    let path = "DELETE /orgs/Acme/actions/runners/9";
    let busy = "Bad request - Runner \"w-7-aa\" is currently running a job and cannot be deleted.";
    for (answer, removal) in [
        (status(204, Value::Null), Some(Removal::Removed)),
        (says(404, "Not Found"), Some(Removal::Gone)),
        (says(422, busy), Some(Removal::Busy)),
        (says(403, "no"), None),
        (says(500, ""), None),
        (says(409, ""), None),
    ] {
        let server = Server::start()
            .await
            .on(path, [answer])
            .on(OWNER, [ok(json!({"type": "Organization"}))]);
        let done = server.github().remove_runner(&place(ORG), 9).await;
        assert_eq!(done.ok(), removal);
    }
}
