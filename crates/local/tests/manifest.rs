//! The local GitHub's web pages on which an App is made from a manifest, and the adapter that trades the code.

#![allow(clippy::unwrap_used, reason = "a test that can not go on ends there")]

use std::sync::Arc;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ostler_core::setup::app::{Account, Plan};
use ostler_local::github::{GitHub, GitHubConfig};
use ostler_local::time::WorldClock;
use serde_json::{Value, json};

/// World seconds in a real one: an hour passes in two.
const SCALE: f64 = 1800.0;

const BACK: &str = "http://127.0.0.1:1/back";

struct World {
    github: Arc<GitHub>,
    client: Client<HttpConnector, Full<Bytes>>,
}

struct Answer {
    status: u16,
    location: String,
    text: String,
}

impl World {
    async fn start(scale: f64) -> Self {
        let config = GitHubConfig::new(WorldClock::starting_now(scale), "hush", 1);
        let github = GitHub::start(config).await.unwrap();
        github.add_repository("acme/app", true);
        Self { github, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let encode =
            |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let body: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let request = http::Request::post(format!("{}{path}", self.github.url()))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body.join("&"))))
            .unwrap();
        let response = self.client.request(request).await.unwrap();
        let location = response.headers().get("location").map(|it| it.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        Answer { status, location: location.unwrap_or_default(), text }
    }

    /// Posts a manifest for acme; the page's id, if it shows one to click on.
    async fn open(&self, manifest: &Value) -> (Answer, Option<String>) {
        let fields = [("manifest", manifest.to_string())];
        let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = self.post("/organizations/acme/settings/apps/new?state=s1", &fields).await;
        let page = answer.text.split("name=\"page\" value=\"").nth(1);
        let page = page.and_then(|rest| rest.split('"').next()).map(str::to_owned);
        (answer, page)
    }

    /// Goes all the way, and gives the code.
    async fn code(&self, name: &str) -> String {
        let (_, page) = self.open(&manifest()).await;
        let answer = self.post("/settings/apps", &[("page", &page.unwrap()), ("name", name)]).await;
        assert_eq!(answer.status, 302, "{}", answer.text);
        let (code, state) = answer
            .location
            .strip_prefix(&format!("{BACK}?code="))
            .unwrap()
            .split_once('&')
            .unwrap();
        assert_eq!(state, "state=s1");
        code.to_owned()
    }

    async fn convert(&self, code: &str) -> Answer {
        self.post(&format!("/api/v3/app-manifests/{code}/conversions"), &[]).await
    }
}

fn manifest() -> Value {
    let account = Account::organization("acme").unwrap();
    let plan = Plan {
        registration: account.registration(),
        account,
        github: "http://127.0.0.1".into(),
        name: "Ostler of acme".into(),
        webhook_url: "http://127.0.0.1:1/hook".into(),
    };
    serde_json::from_str(&plan.manifest(BACK)).unwrap()
}

#[tokio::test]
async fn our_manifest_is_one_that_github_takes_and_a_code_is_good_once() {
    let world = World::start(1.0).await;
    let code = world.code("Ostler of acme").await;
    let made = world.convert(&code).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made: Value = serde_json::from_str(&made.text).unwrap();
    assert_eq!(
        (&made["slug"], &made["owner"]["login"], &made["events"]),
        (&json!("ostler-of-acme"), &json!("acme"), &json!(["workflow_job"]))
    );
    assert_eq!(made["permissions"], manifest()["default_permissions"]);
    assert!(made["pem"].as_str().unwrap().starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    assert!(made["webhook_secret"].as_str().unwrap().len() >= 16);
    for code in [code.as_str(), "0123456789"] {
        assert_eq!(world.convert(code).await.status, 404, "used, or none");
    }
}

#[tokio::test]
async fn a_code_is_good_for_an_hour() {
    let world = World::start(SCALE).await;
    let code = world.code("slow").await;
    tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
    assert_eq!(world.convert(&code).await.status, 404);
}

#[tokio::test]
async fn a_name_is_unique_and_short_and_can_be_chosen_anew() {
    let world = World::start(1.0).await;
    world.code("First").await;
    let (_, page) = world.open(&manifest()).await;
    let page = page.unwrap();
    for (name, fault) in [
        ("first", "Name is already taken"),
        ("acme", "Name is already taken"),
        (" ", "Name can&apos;t be blank"),
        ("a name of more than thirty-four chars", "Name is too long"),
    ] {
        let answer = world.post("/settings/apps", &[("page", &page), ("name", name)]).await;
        assert!(answer.status == 422 && answer.text.contains(fault), "{name}: {}", answer.text);
    }
    let answer = world.post("/settings/apps", &[("page", &page), ("name", "Second")]).await;
    assert_eq!(answer.status, 302);
    assert_eq!(world.github.made_apps().len(), 2);
}

#[tokio::test]
async fn a_manifest_that_github_would_refuse_is_refused() {
    let world = World::start(1.0).await;
    let change = |path: &str, value: Value| {
        let mut manifest = manifest();
        *manifest.pointer_mut(path).unwrap() = value;
        manifest
    };
    for (manifest, fault) in [
        (json!("x"), "Invalid JSON"),
        (change("/url", json!(null)), "&quot;url&quot; wasn"),
        (change("/hook_attributes", json!({"active": false})), "&quot;url&quot; wasn"),
        (change("/redirect_url", json!("")), "redirect_url"),
        (change("/default_events", json!(["installation"])), "unsupported: installation"),
        (change("/default_permissions", json!({"metadata": "read"})), "workflow_job"),
        (
            {
                let mut more = manifest();
                more["webhook"] = json!(1);
                more
            },
            "not a permitted key",
        ),
    ] {
        let (answer, page) = world.open(&manifest).await;
        assert!(answer.status == 422 && page.is_none(), "{manifest}");
        assert!(answer.text.contains(fault), "{fault}: {}", answer.text);
    }
    let nowhere = world.post("/organizations/nobody/settings/apps/new", &[]).await;
    assert_eq!(nowhere.status, 404);
}
