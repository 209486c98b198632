//! The local GitHub over real HTTP, with tokens signed as an App signs them.

#![allow(clippy::unwrap_used, reason = "a test that can not go on ends there")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ostler_core::time::Timestamp;
use ostler_local::github::{DeliveryFaults, DeliveryPlan, GitHub, GitHubConfig, RawHook};
use ostler_local::time::WorldClock;
use ostler_sim::github::{
    ApiError, Fault, FaultRule, JobSpec, Options, OwnerKind, RateLimits, Status, endpoint,
};
use serde_json::{Value, json};
use sha2::Sha256;

const SECRET: &str = "it is a secret to everybody";
const REPO: &str = "acme/app";
const RUNNERS: &str = "/orgs/acme/actions/runners";
const JIT: &str = "/orgs/acme/actions/runners/generate-jitconfig";
/// World seconds in a real one.
const SCALE: f64 = 60.0;

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

struct World {
    github: Arc<GitHub>,
    clock: WorldClock,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl World {
    async fn start(options: Options) -> Self {
        let clock = WorldClock::starting_now(SCALE);
        let mut config = GitHubConfig::new(clock, SECRET, 1);
        config.options = options;
        config.personal_token = Some("ghp_operator".into());
        config.release = Some(Bytes::from_static(b"archive"));
        let github = GitHub::start(config).await.unwrap();
        github.add_repository(REPO, true);
        Self { github, clock, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn try_send(
        &self,
        method: &str,
        url: &str,
        authorization: Option<&str>,
        body: Option<Value>,
    ) -> Option<Answer> {
        let mut request = http::Request::builder().method(method).uri(url);
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        request = request.header("content-type", "application/json");
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = self.client.request(request).await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer { status, headers, text: String::from_utf8(body.to_vec()).unwrap() })
    }

    async fn api(&self, method: &str, path: &str, token: &str, body: Option<Value>) -> Answer {
        let url = format!("{}/api/v3{path}", self.github.url());
        self.try_send(method, &url, Some(&format!("Bearer {token}")), body).await.unwrap()
    }

    async fn plain(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let url = format!("{}{path}", self.github.url());
        self.try_send(method, &url, None, body).await.unwrap()
    }

    /// An App token as a careful client makes it.
    fn jwt(&self) -> String {
        self.jwt_with(-60, 540, json!(self.github.app_id()))
    }

    fn jwt_with(&self, iat: i64, exp: i64, iss: Value) -> String {
        let now = self.clock.now().seconds();
        let claims = json!({"iat": now + iat, "exp": now + exp, "iss": iss});
        let key = EncodingKey::from_rsa_pem(self.github.app_private_key_pem().as_bytes()).unwrap();
        jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &key).unwrap()
    }

    fn installation(&self) -> u64 {
        self.github.with_model(|model, _| model.installation(REPO)).unwrap()
    }

    async fn token(&self) -> String {
        let path = format!("/app/installations/{}/access_tokens", self.installation());
        let answer = self.api("POST", &path, &self.jwt(), None).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["token"].as_str().unwrap().into()
    }

    async fn register(&self, token: &str, name: &str, labels: &[&str]) -> Answer {
        let body = json!({"name": name, "runner_group_id": 1, "labels": labels});
        self.api("POST", JIT, token, Some(body)).await
    }

    fn status(&self, job: u64) -> Status {
        self.github.with_model(|model, now| model.get_job(now, REPO, job)).unwrap().status
    }
}

/// A webhook target that notes what it gets.
#[derive(Clone, Default)]
struct Target {
    received: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    answer: Arc<Mutex<u16>>,
}

impl Target {
    async fn start(world: &World) -> Self {
        let target = Self::default();
        *target.answer.lock().unwrap() = 202;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let router = axum::Router::new()
            .route("/hook", axum::routing::post(receive))
            .with_state(target.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        world.github.set_webhook_target(Some(&url));
        target
    }

    fn actions(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        received
            .iter()
            .map(|(_, body)| {
                let payload: Value = serde_json::from_slice(body).unwrap_or_default();
                payload["action"].as_str().unwrap_or("?").to_owned()
            })
            .collect()
    }

    async fn wait_for(&self, count: usize) -> Vec<String> {
        eventually(|| self.actions().len() >= count).await;
        self.actions()
    }
}

async fn receive(State(target): State<Target>, headers: HeaderMap, body: Bytes) -> StatusCode {
    target.received.lock().unwrap().push((headers, body));
    StatusCode::from_u16(*target.answer.lock().unwrap()).unwrap()
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not within 10 s");
}

fn signature_of(body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body);
    let digest = mac.finalize().into_bytes();
    format!("sha256={}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_from_webhook_to_completed_over_http() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let posted = world
        .plain("POST", "/_admin/jobs", Some(json!({
            "repo": REPO, "labels": ["self-hosted", "linux"], "seconds": 90, "script": "echo hello",
        })))
        .await
        .json();
    let job = posted["jobs"][0].as_u64().unwrap();
    target.wait_for(1).await;
    {
        let received = target.received.lock().unwrap();
        let (headers, body) = &received[0];
        assert_eq!(headers["x-hub-signature-256"], signature_of(body).as_str());
        assert_eq!(headers["x-github-event"], "workflow_job");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-github-delivery"].len(), 36);
        let payload: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(payload["workflow_job"]["id"], job);
        assert_eq!(payload["installation"]["id"], world.installation());
    }

    let token = world.token().await;
    let registered = world.register(&token, "app-1", &["self-hosted", "Linux"]).await;
    assert_eq!(registered.status, 201);
    let registered = registered.json();
    assert_eq!(registered["runner"]["status"], "offline");
    let jit = registered["encoded_jit_config"].as_str().unwrap();
    assert!(jit.len() >= 4_500, "OL-14: {}", jit.len());

    let connected = world.plain("POST", "/_runner/sessions", Some(json!({"jitconfig": jit}))).await;
    let connected = connected.json();
    assert_eq!(connected["name"], "app-1");
    let session = format!("/_runner/sessions/{}", connected["sessionId"].as_str().unwrap());
    let message = world.plain("GET", &format!("{session}/message"), None).await;
    assert_eq!(message.status, 200);
    let message = message.json();
    assert_eq!(message["jobId"], job);
    assert_eq!((&message["repo"], &message["seconds"]), (&json!(REPO), &json!(90.0)));
    assert_eq!(message["script"], "echo hello");

    let runner = format!("{RUNNERS}/{}", connected["runnerId"]);
    let shown = world.api("GET", &runner, &token, None).await.json();
    assert_eq!((&shown["status"], &shown["busy"]), (&json!("online"), &json!(true)));
    let refused = world.api("DELETE", &runner, &token, None).await;
    assert_eq!(refused.status, 422);
    assert!(refused.json()["message"].as_str().unwrap().contains("currently running a job"));

    let renewed = world.plain("POST", &format!("{session}/jobs/{job}/renew"), None).await.json();
    assert_eq!(renewed["cancelled"], false);
    let done = format!("{session}/jobs/{job}/completed");
    let completed = world.plain("POST", &done, Some(json!({"conclusion": "success"}))).await;
    assert_eq!(completed.status, 200);
    assert_eq!(world.plain("GET", &format!("{session}/message"), None).await.status, 410);
    assert_eq!(world.api("GET", &runner, &token, None).await.status, 404);
    assert_eq!(target.wait_for(3).await, ["queued", "in_progress", "completed"]);

    let path = format!("/repos/{REPO}/actions/jobs/{job}");
    let shown = world.api("GET", &path, &token, None).await.json();
    assert_eq!((&shown["status"], &shown["runner_name"]), (&json!("completed"), &json!("app-1")));
    let run = format!("/repos/{REPO}/actions/runs/{}", shown["run_id"]);
    for list in ["jobs", "attempts/1/jobs"] {
        let listed = world.api("GET", &format!("{run}/{list}"), &token, None).await.json();
        assert_eq!((&listed["total_count"], &listed["jobs"][0]["id"]), (&json!(1), &json!(job)));
    }
    let state = world.plain("GET", "/_admin/state", None).await.json();
    assert_eq!(state["jobs"][0]["conclusion"], "success");
    assert_eq!(state["runners"], json!([]));
    let calls = world.github.calls();
    assert_eq!(calls[&format!("POST {}", endpoint::ORG_JIT)], 1);
    assert_eq!(calls[&format!("GET {}", endpoint::ORG_RUNNER)], 2);
    assert_eq!(calls[&format!("POST {}", endpoint::ACCESS_TOKENS)], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ra_06_an_app_token_is_verified_by_githubs_clock() {
    let world = World::start(Options::default()).await;
    let id = world.github.app_id();
    let app = world.api("GET", "/app", &world.jwt(), None).await;
    assert_eq!((app.status, app.json()["id"].as_u64()), (200, Some(id)));
    let text = world.jwt_with(-60, 540, json!(id.to_string()));
    assert_eq!(world.api("GET", "/app", &text, None).await.status, 200, "octocrab's issuer");
    for (iat, exp, issuer, status, words) in [
        (0, 720, id, 401, "'Expiration time' claim ('exp') is too far in the future"),
        (-60, 541, id, 401, "'Expiration time' claim ('exp') is too far in the future"),
        (-600, -120, id, 401, "'Expiration time' claim ('exp') must be a numeric value"),
        (300, 600, id, 401, "'Issued at' claim ('iat') is in the future"),
        (-60, 540, id + 1, 404, "Integration not found"),
    ] {
        let refused =
            world.api("GET", "/app", &world.jwt_with(iat, exp, json!(issuer)), None).await;
        assert_eq!(refused.status, status, "{words}");
        assert!(refused.json()["message"].as_str().unwrap().starts_with(words), "{}", refused.text);
    }
    let other = World::start(Options::default()).await;
    let forged = world.api("GET", "/app", &other.jwt(), None).await;
    assert_eq!(forged.status, 401);
    assert_eq!(forged.json()["message"], "A JSON web token could not be decoded");
    assert_eq!(forged.json()["status"], "401");
    let url = format!("{}/api/v3/app", world.github.url());
    let anonymous = world.try_send("GET", &url, None, None).await.unwrap();
    assert_eq!(anonymous.json()["message"], "Requires authentication");
}

#[tokio::test(flavor = "multi_thread")]
async fn installations_are_looked_up_with_the_apps_token() {
    let world = World::start(Options::default()).await;
    world.github.with_model(|model, _| {
        model.add_owner("someone", OwnerKind::User);
        model.add_repository("someone/thing", true);
        model.add_repository("acme/apart", true).installed = false;
    });
    let id = world.installation();
    let jwt = world.jwt();
    for (path, expected) in [
        ("/repos/Acme/App/installation", Some(id)),
        ("/orgs/acme/installation", Some(id)),
        ("/repos/acme/apart/installation", None),
        ("/users/acme/installation", None),
        ("/orgs/someone/installation", None),
        ("/orgs/nobody/installation", None),
    ] {
        let answer = world.api("GET", path, &jwt, None).await;
        assert_eq!(answer.json()["id"].as_u64(), expected, "{path}");
        assert_eq!(answer.status == 404, expected.is_none(), "{path}");
    }
    let user = world.api("GET", "/users/someone/installation", &jwt, None).await.json();
    assert_eq!(user["target_type"], "User");
    let one = world.api("GET", &format!("/app/installations/{id}"), &jwt, None).await.json();
    assert_eq!(one["account"]["login"], "acme");
    let all = world.api("GET", "/app/installations?per_page=1", &jwt, None).await;
    assert_eq!(all.json().as_array().unwrap().len(), 1);
    assert!(all.header("link").unwrap().contains("rel=\"next\""));
    let token = world.token().await;
    assert_eq!(world.api("GET", "/orgs/acme/installation", &token, None).await.status, 401);
    assert_eq!(world.api("GET", RUNNERS, &jwt, None).await.status, 403);
    let account = world.api("GET", "/users/ACME", &token, None).await.json();
    assert_eq!(account["type"], "Organization");
    let repository = world.api("GET", "/repos/acme/app", &token, None).await.json();
    assert_eq!((&repository["private"], &repository["full_name"]), (&json!(true), &json!(REPO)));
}

#[tokio::test(flavor = "multi_thread")]
async fn ra_04_ra_17_an_installation_token_ends_and_sees_only_its_own() {
    let world = World::start(Options::default()).await;
    world.github.add_repository("rival/app", true);
    let job = world.github.post_job(&JobSpec::new("rival/app", &["a"])).unwrap();
    let token = world.token().await;
    for path in [
        "/orgs/rival/actions/runners".to_owned(),
        "/repos/rival/app".to_owned(),
        format!("/repos/rival/app/actions/jobs/{job}"),
        format!("/repos/{REPO}/actions/jobs/{job}"),
    ] {
        assert_eq!(world.api("GET", &path, &token, None).await.status, 404, "{path}");
        let operator = world.api("GET", &path, "ghp_operator", None).await.status;
        assert_eq!(operator == 200, !path.contains(REPO), "{path}");
    }
    let path = format!("/app/installations/{}/access_tokens", world.installation());
    let minted = world.api("POST", &path, &world.jwt(), None).await.json();
    let expires = Timestamp::parse(minted["expires_at"].as_str().unwrap()).unwrap();
    let left = expires.since(world.clock.now()).as_secs();
    assert!((3_300..=3_600).contains(&left), "{left} s");
    assert_eq!(
        world.api("POST", "/app/installations/1/access_tokens", &world.jwt(), None).await.status,
        404
    );

    let later = world.clock.now() + Duration::from_secs(3_601);
    world.github.with_model(|model, _| model.tick(later));
    let expired = world.api("GET", RUNNERS, &token, None).await;
    assert_eq!((expired.status, &expired.json()["message"]), (401, &json!("Bad credentials")));
}

#[tokio::test(flavor = "multi_thread")]
async fn ol_22_registrations_are_refused_as_documented() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    assert_eq!(world.register(&token, "r", &["a"]).await.status, 201);
    let again = world.register(&token, "r", &["a"]).await;
    assert_eq!(again.status, 409);
    assert_eq!(
        again.json()["message"],
        "Already exists - A runner with the name r already exists."
    );
    for (body, status) in [
        (json!({"name": "n", "labels": ["a"]}), 422),
        (json!({"name": "n", "labels": ["a"], "runner_group_id": 2}), 403),
        (json!({"name": "n", "labels": ["a"], "runner_group_id": 99_999}), 404),
        (json!({"name": "n", "runner_group_id": 1}), 422),
        (json!({"labels": ["a"], "runner_group_id": 1}), 422),
    ] {
        let refused = world.api("POST", JIT, &token, Some(body.clone())).await;
        assert_eq!(refused.status, status, "{body}");
    }
    let at_repository = format!("/repos/{REPO}/actions/runners/generate-jitconfig");
    let body = json!({"name": "r", "labels": ["a"], "runner_group_id": 1});
    assert_eq!(world.api("POST", &at_repository, &token, Some(body)).await.status, 201);
    let listed = world
        .api("GET", &format!("/repos/{REPO}/actions/runners?name=r"), &token, None)
        .await
        .json();
    assert_eq!((&listed["total_count"], &listed["runners"][0]["name"]), (&json!(1), &json!("r")));
    let groups = world.api("GET", "/orgs/acme/actions/runner-groups", &token, None).await.json();
    assert_eq!(groups["runner_groups"][0]["name"], "Default");
    assert_eq!(world.api("GET", &format!("{RUNNERS}/abc"), &token, None).await.status, 404);
    assert_eq!(world.api("GET", "/no/such/thing", &token, None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn gh_01_pages_are_limited_and_linked_absolutely_below_the_base_path() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    world.github.with_model(|model, now| {
        let scope = ostler_sim::github::Scope::Organization("acme".into());
        for n in 0..105 {
            model.generate_jit(now, &scope, &format!("r{n}"), Some(1), &["a".into()]).unwrap();
        }
    });
    let first = world.api("GET", RUNNERS, &token, None).await;
    assert_eq!(first.json()["runners"].as_array().unwrap().len(), 30);
    assert_eq!(first.json()["total_count"], 105);
    let links = first.header("link").unwrap();
    let next = format!("<{}/api/v3{RUNNERS}?per_page=30&page=2>; rel=\"next\"", world.github.url());
    assert!(links.contains(&next), "{links}");
    let large = world.api("GET", &format!("{RUNNERS}?per_page=1000"), &token, None).await;
    assert_eq!(large.json()["runners"].as_array().unwrap().len(), 100);
    let last = world.api("GET", &format!("{RUNNERS}?per_page=100&page=2"), &token, None).await;
    assert_eq!(last.json()["runners"].as_array().unwrap().len(), 5);
    assert!(!last.header("link").unwrap().contains("rel=\"next\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn ra_01_gh_07_limits_show_in_headers_and_can_be_off() {
    let limits = RateLimits { primary_per_hour: 3, status: 429, ..RateLimits::default() };
    let world = World::start(Options { rate_limits: Some(limits), ..Options::default() }).await;
    let token = world.token().await;
    let first = world.api("GET", RUNNERS, &token, None).await;
    assert_eq!(first.header("x-ratelimit-limit"), Some("3"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(first.header("x-ratelimit-resource"), Some("core"));
    let told = world.api("GET", "/rate_limit", &token, None).await.json();
    assert_eq!(told["resources"]["core"]["limit"], 3);
    world.api("GET", RUNNERS, &token, None).await;
    let refused = world.api("GET", RUNNERS, &token, None).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let reset: i64 = refused.header("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!(reset > world.clock.now().seconds(), "in world time");
    assert_eq!(world.register(&token, "r", &["a"]).await.status, 201, "counted apart");

    let world = World::start(Options { rate_limits: None, ..Options::default() }).await;
    let token = world.token().await;
    let answer = world.api("GET", RUNNERS, &token, None).await;
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("x-ratelimit")));
    assert_eq!(world.api("GET", "/rate_limit", &token, None).await.status, 404);
    let date = answer.header("date").unwrap();
    let told = chrono::DateTime::parse_from_rfc2822(date).unwrap().timestamp();
    assert!((world.clock.now().seconds() - told).abs() < 300, "Date is world time: {date}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ra_02_a_hundred_requests_may_be_under_way_and_no_more() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    world.github.add_fault(FaultRule {
        method: "GET".into(),
        template: endpoint::USER.into(),
        skip: 0,
        times: 200,
        fault: Fault::Slow(Duration::from_millis(1_500)),
    });
    let calls = (0..120).map(|_| world.api("GET", "/users/acme", &token, None));
    let statuses: Vec<u16> = futures_of(calls).await.iter().map(|answer| answer.status).collect();
    assert!(statuses.contains(&403), "beyond 100");
    assert!(statuses.iter().filter(|status| **status == 200).count() >= 100);
}

/// Runs all at once.
async fn futures_of<T>(calls: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    std::future::poll_fn(|context| {
        for (call, done) in calls.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = call.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        match calls.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    calls.into_iter().filter_map(|(_, done)| done).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ol_17_faults_refuse_delay_or_lose_the_answer_of_what_was_done() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    let fault = |fault: Value| {
        let mut rule = json!({"method": "POST", "template": endpoint::ORG_JIT});
        rule.as_object_mut().unwrap().extend(fault.as_object().unwrap().clone());
        world.plain("POST", "/_admin/faults", Some(rule))
    };
    assert_eq!(fault(json!({"status": 502})).await.status, 204);
    assert_eq!(world.register(&token, "a", &["a"]).await.status, 502);
    assert_eq!(world.register(&token, "a", &["a"]).await.status, 201);

    fault(json!({"lost": 504})).await;
    assert_eq!(world.register(&token, "b", &["a"]).await.status, 504);
    assert_eq!(world.register(&token, "b", &["a"]).await.status, 409, "it had been done");

    fault(json!({"lost": 0})).await;
    let url = format!("{}/api/v3{JIT}", world.github.url());
    let body = json!({"name": "c", "runner_group_id": 1, "labels": ["a"]});
    let bearer = format!("Bearer {token}");
    assert!(world.try_send("POST", &url, Some(&bearer), Some(body)).await.is_none(), "hung up");
    assert_eq!(world.register(&token, "c", &["a"]).await.status, 409);

    fault(json!({"latencySeconds": 0.3})).await;
    let started = tokio::time::Instant::now();
    assert_eq!(world.register(&token, "d", &["a"]).await.status, 201);
    assert!(started.elapsed() >= Duration::from_millis(300));

    fault(json!({"status": 403, "message": "secondary", "headers": {"retry-after": "60"}})).await;
    let refused = world.register(&token, "e", &["a"]).await;
    assert_eq!((refused.status, refused.header("retry-after")), (403, Some("60")));
    assert_eq!(fault(json!({"status": 500, "lost": 0})).await.status, 422, "one kind at a time");
    fault(json!({"status": 500, "times": 9})).await;
    assert_eq!(world.plain("DELETE", "/_admin/faults", None).await.status, 204);
    assert_eq!(world.register(&token, "f", &["a"]).await.status, 201);
    let key = format!("POST {}", endpoint::ORG_JIT);
    assert_eq!(world.github.calls()[&key], 9, "refused and lost calls count too");
}

#[tokio::test(flavor = "multi_thread")]
async fn do_01_a_gated_job_can_be_looked_up_and_approved() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let body = json!({"repo": REPO, "labels": ["a"], "environment": "production"});
    let job = world.plain("POST", "/_admin/jobs", Some(body)).await.json()["jobs"][0].clone();
    assert_eq!(target.wait_for(2).await, ["queued", "waiting"], "in order");
    let payload: Value = serde_json::from_slice(&target.received.lock().unwrap()[0].1).unwrap();
    let url = payload["deployment"]["statuses_url"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {}", world.token().await);
    let state = || async {
        let answer = world.try_send("GET", &url, Some(&bearer), None).await.unwrap();
        answer.json()[0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state().await, "waiting");
    assert_eq!(world.plain("POST", &format!("/_admin/jobs/{job}/approve"), None).await.status, 200);
    assert_eq!(state().await, "queued");
    assert_eq!(target.wait_for(3).await[2], "queued");
    assert_eq!(world.plain("POST", &format!("/_admin/jobs/{job}/approve"), None).await.status, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_cancelled_and_run_again() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let token = world.token().await;
    let jobs = world.github.post_matrix(&JobSpec::new(REPO, &["a"]), 3).unwrap();
    let runs = format!("/repos/{REPO}/actions/runs");
    let queued = world.api("GET", &format!("{runs}?status=queued"), &token, None).await.json();
    assert_eq!(queued["total_count"], 1);
    let run = format!("{runs}/{}", queued["workflow_runs"][0]["id"]);
    assert_eq!(world.api("POST", &format!("{run}/cancel"), &token, None).await.status, 202);
    assert!(jobs.iter().all(|job| world.status(*job) == Status::Completed));
    assert_eq!(world.api("POST", &format!("{run}/cancel"), &token, None).await.status, 409);
    assert_eq!(world.api("GET", &run, &token, None).await.json()["conclusion"], "cancelled");
    let again = world.api("POST", &format!("{run}/rerun-failed-jobs"), &token, None).await;
    assert_eq!(again.status, 201);
    let latest = world.api("GET", &format!("{run}/jobs"), &token, None).await.json();
    assert_eq!(latest["jobs"][0]["run_attempt"], 2);
    target.wait_for(9).await;
    assert_eq!(world.api("GET", &format!("{run}/attempts/7/jobs"), &token, None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_run_again_with_an_event_of_its_own_once_its_run_is_over() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let token = world.token().await;
    let jobs = world.github.post_matrix(&JobSpec::new(REPO, &["a"]), 2).unwrap();
    let rerun = format!("/repos/{REPO}/actions/jobs/{}/rerun", jobs[0]);
    let early = world.api("POST", &rerun, &token, None).await;
    assert_eq!(early.status, 403);
    let words = "The workflow run containing this job is already running";
    assert_eq!(early.json()["message"], words);
    let job = format!("/repos/{REPO}/actions/jobs/{}", jobs[0]);
    let job = world.api("GET", &job, &token, None).await.json();
    let run = format!("/repos/{REPO}/actions/runs/{}", job["run_id"]);
    assert_eq!(world.api("POST", &format!("{run}/cancel"), &token, None).await.status, 202);
    assert_eq!(world.api("POST", &rerun, &token, None).await.status, 201);
    let latest = world.api("GET", &format!("{run}/jobs"), &token, None).await.json();
    let attempts: Vec<_> =
        latest["jobs"].as_array().unwrap().iter().map(|job| &job["run_attempt"]).collect();
    assert!(attempts.contains(&&json!(2)) && attempts.contains(&&json!(1)), "{attempts:?}");
    let again = world.api("POST", &rerun, &token, None).await;
    assert_eq!(again.status, 403, "it runs again, and under another id");
    // Twice queued, twice cancelled; one queued anew, and the other told of once more.
    let actions = target.wait_for(6).await;
    assert_eq!(actions.iter().filter(|action| *action == "queued").count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn do_09_a_redelivery_repeats_the_guid_and_the_log_pages_by_cursor() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    *target.answer.lock().unwrap() = 503;
    for _ in 0..3 {
        world.github.post_job(&JobSpec::new(REPO, &["a"])).unwrap();
    }
    target.wait_for(3).await;
    eventually(|| world.github.deliveries().len() == 3).await;
    *target.answer.lock().unwrap() = 202;

    let jwt = world.jwt();
    let page = world.api("GET", "/app/hook/deliveries?per_page=2", &jwt, None).await;
    let newest = page.json();
    assert_eq!(newest.as_array().unwrap().len(), 2);
    assert_eq!((&newest[0]["status_code"], &newest[0]["action"]), (&json!(503), &json!("queued")));
    assert_eq!(newest[0]["redelivery"], false);
    let link = page.header("link").unwrap();
    let next = link.split(['<', '>']).nth(1).unwrap();
    let bearer = format!("Bearer {jwt}");
    let rest = world.try_send("GET", next, Some(&bearer), None).await.unwrap();
    assert_eq!(rest.json().as_array().unwrap().len(), 1);
    assert_eq!(rest.header("link"), None);

    let id = &newest[0]["id"];
    let full = world.api("GET", &format!("/app/hook/deliveries/{id}"), &jwt, None).await.json();
    assert_eq!(full["request"]["payload"]["action"], "queued");
    let attempt =
        world.api("POST", &format!("/app/hook/deliveries/{id}/attempts"), &jwt, None).await;
    assert_eq!(attempt.status, 202);
    target.wait_for(4).await;
    eventually(|| world.github.deliveries().len() == 4).await;
    let again = world.github.deliveries().pop().unwrap();
    assert_eq!((again.redelivery, again.status.as_str()), (true, "OK"));
    assert_eq!(json!(again.guid), newest[0]["guid"]);
    {
        let received = target.received.lock().unwrap();
        let (headers, body) = &received[3];
        assert_eq!(headers["x-github-delivery"], again.guid.as_str());
        assert_eq!(headers["x-hub-signature-256"], signature_of(body).as_str());
    }
    let failed = world.api("GET", "/app/hook/deliveries?status=failure", &jwt, None).await.json();
    assert_eq!(failed.as_array().unwrap().len(), 3);
    assert_eq!(world.api("POST", "/app/hook/deliveries/7/attempts", &jwt, None).await.status, 404);
    let token = world.token().await;
    assert_eq!(world.api("GET", "/app/hook/deliveries", &token, None).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn do_11_deliveries_get_lost_fail_double_and_overtake_as_planned() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let plan = |plan: Value| world.plain("POST", "/_admin/delivery-plans", Some(plan));
    let post = || world.github.post_job(&JobSpec::new(REPO, &["a"])).unwrap();

    plan(json!({"action": "queued", "neverSent": true})).await;
    let silent = post();
    world.github.cancel_job(silent).unwrap();
    assert_eq!(target.wait_for(1).await, ["completed"]);
    eventually(|| world.github.deliveries().len() == 1).await;

    plan(json!({"failed": true})).await;
    post();
    eventually(|| world.github.deliveries().len() == 2).await;
    assert_eq!(world.github.deliveries()[1].status, "failed to connect");
    assert_eq!(target.actions().len(), 1);

    plan(json!({"copies": 2})).await;
    post();
    target.wait_for(3).await;
    {
        let received = target.received.lock().unwrap();
        let guid = |index: usize| received[index].0["x-github-delivery"].clone();
        assert_eq!(guid(1), guid(2), "the same delivery twice");
    }

    plan(json!({"action": "queued", "delaySeconds": 30})).await;
    let late = post();
    world.github.cancel_job(late).unwrap();
    assert_eq!(target.wait_for(5).await[3..], ["completed", "queued"]);

    world.github.plan_delivery(DeliveryPlan { bad_signature: true, ..DeliveryPlan::default() });
    post();
    target.wait_for(6).await;
    {
        let received = target.received.lock().unwrap();
        assert_ne!(received[5].0["x-hub-signature-256"], signature_of(&received[5].1).as_str());
    }
    world.github.plan_delivery(DeliveryPlan { form_encoded: true, ..DeliveryPlan::default() });
    post();
    target.wait_for(7).await;
    let received = target.received.lock().unwrap();
    let (headers, body) = &received[6];
    assert_eq!(headers["content-type"], "application/x-www-form-urlencoded");
    assert!(body.starts_with(b"payload=%7B%22action%22%3A%22queued%22"), "WI-07");
    assert_eq!(headers["x-hub-signature-256"], signature_of(body).as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_suffer_by_chance_too_and_duplicates_keep_their_guid() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let faults = json!({"neverSent": 0.2, "failed": 0.2, "duplicate": 0.3, "reorder": 0.3,
        "reorderSeconds": 20, "delaySeconds": 5});
    assert_eq!(world.plain("PUT", "/_admin/delivery-faults", Some(faults)).await.status, 204);
    for _ in 0..100 {
        world.github.post_job(&JobSpec::new(REPO, &["a"])).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.github.set_delivery_faults(DeliveryFaults::default());
    let logged = world.github.deliveries();
    let mut by_guid: BTreeMap<String, usize> = BTreeMap::new();
    for delivery in &logged {
        *by_guid.entry(delivery.guid.clone()).or_default() += 1;
    }
    assert!((60..100).contains(&by_guid.len()), "{} of 100 sent", by_guid.len());
    assert!(by_guid.values().any(|count| *count == 2));
    assert!(logged.iter().any(|delivery| !delivery.ok()));
    let arrived = logged.iter().filter(|delivery| delivery.ok()).count();
    assert_eq!(target.actions().len(), arrived);
}

#[tokio::test(flavor = "multi_thread")]
async fn wi_14_other_events_and_broken_bodies_can_be_posted_by_hand() {
    let world = World::start(Options::default()).await;
    let target = Target::start(&world).await;
    let ping = json!({"event": "ping", "body": "{\"zen\":\"Keep it logically awesome.\"}"});
    assert_eq!(world.plain("POST", "/_admin/webhooks", Some(ping)).await.status, 202);
    target.wait_for(1).await;
    world.github.send_raw(RawHook {
        event: None,
        body: "{".into(),
        content_type: "application/json; charset=utf-8".into(),
        signature: Some("sha256=00".into()),
    });
    target.wait_for(2).await;
    let received = target.received.lock().unwrap();
    assert_eq!(received[0].0["x-github-event"], "ping");
    assert_eq!(received[0].0["x-hub-signature-256"], signature_of(&received[0].1).as_str());
    assert!(received[1].0.get("x-github-event").is_none(), "WI-16");
    assert_eq!(received[1].0["x-hub-signature-256"], "sha256=00");
}

#[tokio::test(flavor = "multi_thread")]
async fn cp_11_a_target_that_does_not_answer_in_ten_seconds_has_failed() {
    let world = World::start(Options::default()).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    world.github.set_webhook_target(Some(&url));
    let started = tokio::time::Instant::now();
    world.github.post_job(&JobSpec::new(REPO, &["a"])).unwrap();
    while world.github.deliveries().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(15));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let delivery = world.github.deliveries().remove(0);
    assert_eq!((delivery.status.as_str(), delivery.status_code), ("timed out", 504));
    assert!(delivery.duration >= Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_told_what_is_wrong_and_the_archive_is_there() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    let jit = world.register(&token, "r", &["a"]).await.json()["encoded_jit_config"].clone();
    let connect = || world.plain("POST", "/_runner/sessions", Some(json!({"jitconfig": jit})));
    let session = connect().await.json()["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(connect().await.status, 409, "RR-14");
    let bad = json!({"jitconfig": "bm9uc2Vuc2U="});
    assert_eq!(world.plain("POST", "/_runner/sessions", Some(bad)).await.status, 401);
    let started = tokio::time::Instant::now();
    let message = format!("/_runner/sessions/{session}/message");
    assert_eq!(world.plain("GET", &message, None).await.status, 204);
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(
        world.plain("DELETE", &format!("/_runner/sessions/{session}"), None).await.status,
        204
    );
    assert_eq!(world.plain("GET", &message, None).await.status, 410);
    let listed = world.api("GET", RUNNERS, &token, None).await.json();
    assert_eq!(listed["runners"][0]["status"], "offline");
    let runner = format!("{RUNNERS}/{}", listed["runners"][0]["id"]);
    assert_eq!(world.api("DELETE", &runner, &token, None).await.status, 204);
    assert_eq!(connect().await.status, 404);

    let releases = "/actions/runner/releases/download";
    let file = format!("{releases}/v2.330.0/actions-runner-linux-x64-2.330.0.tar.gz");
    let archive = world.plain("GET", &file, None).await;
    assert_eq!((archive.status, archive.text.as_str()), (200, "archive"));
    let other = format!("{releases}/v2.330.0/actions-runner-linux-x64-2.329.0.tar.gz");
    assert_eq!(world.plain("GET", &other, None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn st_10_a_burst_is_served_by_as_many_runners_each_job_once() {
    let world = World::start(Options::default()).await;
    let token = world.token().await;
    let jobs = world.github.post_matrix(&JobSpec::new(REPO, &["a"]), 20).unwrap();
    let served = (0..20).map(|n| {
        let (world, token) = (&world, &token);
        async move {
            let jit = world.register(token, &format!("r{n}"), &["a"]).await.json();
            let body = json!({"jitconfig": jit["encoded_jit_config"]});
            let session = world.plain("POST", "/_runner/sessions", Some(body)).await.json();
            let session = session["sessionId"].as_str().unwrap().to_owned();
            let path = format!("/_runner/sessions/{session}");
            let message = world.plain("GET", &format!("{path}/message"), None).await.json();
            let job = message["jobId"].as_u64().unwrap();
            let done = json!({"conclusion": "success"});
            let done =
                world.plain("POST", &format!("{path}/jobs/{job}/completed"), Some(done)).await;
            assert_eq!(done.status, 200);
            job
        }
    });
    let mut served = futures_of(served).await;
    served.sort_unstable();
    assert_eq!(served, jobs);
    assert!(world.github.snapshot().runners.is_empty(), "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_adds_repositories_and_points_webhooks_elsewhere() {
    let world = World::start(Options::default()).await;
    let new =
        json!({"repo": "someone/thing", "public": true, "ownerType": "User", "installed": false});
    assert_eq!(world.plain("POST", "/_admin/repositories", Some(new)).await.status, 204);
    let (kind, private, installed) = world.github.with_model(|model, _| {
        let repository = model.repository("someone/thing").unwrap();
        (model.account("someone").unwrap().kind, repository.private, repository.installed)
    });
    assert_eq!((kind, private, installed), (OwnerKind::User, false, false));
    let target = Target::start(&world).await;
    let nowhere = json!({"url": null});
    assert_eq!(world.plain("PUT", "/_admin/webhook-target", Some(nowhere)).await.status, 204);
    let job = world.github.post_job(&JobSpec::new(REPO, &["a"])).unwrap();
    eventually(|| world.github.deliveries().len() == 1).await;
    let delivery = &world.plain("GET", "/_admin/deliveries", None).await.json()[0];
    assert_eq!(delivery["status"], "failed to connect");
    assert!(target.actions().is_empty());
    let cancel = format!("/_admin/jobs/{job}/cancel");
    assert_eq!(world.plain("POST", &cancel, None).await.status, 200);
    assert_eq!(world.plain("POST", &cancel, None).await.status, 409);
    let wrong = json!({"repo": REPO, "labels": ["a"], "lables": []});
    assert_eq!(
        world.plain("POST", "/_admin/jobs", Some(wrong)).await.status,
        422,
        "typos are told"
    );
    assert!(world.github.redeliver(world.github.deliveries()[0].id));
    let calls = world.plain("GET", "/_admin/calls", None).await.json();
    assert_eq!(calls, json!({}));
    assert_eq!(
        world.github.post_job(&JobSpec::new("acme/none", &["a"])),
        Err(ApiError::not_found())
    );
    world.github.stop();
}
