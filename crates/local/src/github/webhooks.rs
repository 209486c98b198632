//! Signed webhooks, with what happens to them on the way, and the log of deliveries.
//!
//! Without faults the deliveries of one job arrive in the order in which they came about. GitHub promises
//! no order; a fault or a plan makes one overtake another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ostler_core::time::Timestamp;
use ostler_sim::github::Event;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::mpsc;

use crate::time::WorldClock;

/// How long GitHub waits for an answer, in real time: the functions' time-outs are real too
/// (docs: 10 seconds).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Deliveries can be seen and sent again for three days (docs).
const KEPT: Duration = Duration::from_secs(3 * 24 * 3600);
/// Most of an answer's body that is kept, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;
/// Most deliveries in the log; the oldest go first.
const LOG_LIMIT: usize = 20_000;

/// Chances, each from 0 to 1, of what can happen to a delivery.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryFaults {
    /// GitHub never sends it, and does not log it either (`ubicloud/ubicloud#1042`).
    pub never_sent: f64,
    /// It does not reach the target; the log says so.
    pub failed: f64,
    /// It is sent twice, under one GUID.
    pub duplicate: f64,
    /// It is held up while later ones pass.
    pub reorder: f64,
    /// Longest hold-up of a reordered delivery, in seconds of world time.
    pub reorder_seconds: f64,
    /// Longest delay of every delivery, in seconds of world time, in order.
    pub delay_seconds: f64,
}

/// What happens to the next delivery that matches.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryPlan {
    /// `workflow_job` action to match; any for `None`.
    pub action: Option<String>,
    /// Job id to match; any for `None`.
    pub job_id: Option<u64>,
    /// How many deliveries it is for.
    pub times: u32,
    /// Neither sent nor logged.
    pub never_sent: bool,
    /// Logged as failed to connect.
    pub failed: bool,
    /// How many times it is sent: 1 ordinarily.
    pub copies: u32,
    /// Held up for this long, in seconds of world time, while later ones pass.
    pub delay_seconds: f64,
    /// Signed with another secret.
    pub bad_signature: bool,
    /// Sent as `payload=…`, GitHub's default for hooks made by hand.
    pub form_encoded: bool,
}

impl Default for DeliveryPlan {
    fn default() -> Self {
        Self {
            action: None,
            job_id: None,
            times: 1,
            never_sent: false,
            failed: false,
            copies: 1,
            delay_seconds: 0.0,
            bad_signature: false,
            form_encoded: false,
        }
    }
}

/// A webhook made by hand.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawHook {
    /// `X-GitHub-Event`; the header is left out for `None`.
    pub event: Option<String>,
    /// The body, as sent.
    pub body: String,
    /// `Content-Type`.
    #[serde(default = "json_type")]
    pub content_type: String,
    /// `X-Hub-Signature-256` instead of the right one.
    pub signature: Option<String>,
}

/// One attempt to deliver an event.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Number of the attempt, rising.
    pub id: u64,
    /// The event's GUID.
    pub guid: String,
    /// World time at which it was sent.
    pub delivered_at: Timestamp,
    /// Whether it was asked for after an earlier one.
    pub redelivery: bool,
    /// How long the answer took, in real time.
    pub duration: Duration,
    /// `OK`, or what went wrong.
    pub status: String,
    /// The answer's status; 502 and 504 where there was none.
    pub status_code: u16,
    /// `X-GitHub-Event`.
    pub event: String,
    /// The payload's action.
    pub action: Option<String>,
    /// Installation of the event.
    pub installation: Option<u64>,
    /// Repository of the event.
    pub repository: Option<u64>,
    /// Where it went.
    pub url: String,
    /// What was sent, the signature included.
    pub headers: BTreeMap<String, String>,
    /// What was sent.
    pub body: Bytes,
    /// What was answered, cut.
    pub answer: String,
}

impl Delivery {
    /// As `GET /app/hook/deliveries` lists it.
    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "guid": self.guid,
            "delivered_at": self.delivered_at.to_string(),
            "redelivery": self.redelivery,
            "duration": self.duration.as_secs_f64(),
            "status": self.status,
            "status_code": self.status_code,
            "event": self.event,
            "action": self.action,
            "installation_id": self.installation,
            "repository_id": self.repository,
            "throttled_at": null,
        })
    }

    /// As `GET /app/hook/deliveries/{id}` tells it.
    pub(super) fn full_json(&self) -> Value {
        let mut json = self.json();
        json["url"] = json!(self.url);
        json["request"] = json!({
            "headers": self.headers,
            "payload": serde_json::from_slice::<Value>(&self.body).unwrap_or_default(),
        });
        json["response"] = json!({"headers": {}, "payload": self.answer});
        json
    }

    /// Whether GitHub counts it as delivered.
    pub fn ok(&self) -> bool {
        (200..300).contains(&self.status_code)
    }
}

/// What is to be posted, and how.
#[derive(Clone)]
struct Parcel {
    guid: String,
    event: String,
    action: Option<String>,
    installation: Option<u64>,
    repository: Option<u64>,
    headers: BTreeMap<String, String>,
    body: Bytes,
    redelivery: bool,
    /// It does not arrive.
    failed: bool,
    /// World time to wait before.
    delay: Duration,
}

/// The App's webhook.
#[derive(Clone)]
pub(super) struct Hooks {
    inner: Arc<Inner>,
}

struct Inner {
    clock: WorldClock,
    client: Client<HttpConnector, Full<Bytes>>,
    state: Mutex<State>,
}

struct State {
    app_id: u64,
    secret: String,
    target: Option<String>,
    rng: StdRng,
    faults: DeliveryFaults,
    plans: Vec<DeliveryPlan>,
    /// One queue for each job, so that its deliveries keep their order.
    lanes: BTreeMap<u64, mpsc::UnboundedSender<Parcel>>,
    log: VecDeque<Delivery>,
    next_id: u64,
}

impl Hooks {
    pub(super) fn new(clock: WorldClock, app_id: u64, secret: String, seed: u64) -> Self {
        let state = State {
            app_id,
            secret,
            target: None,
            // Not the model's numbers over again.
            rng: StdRng::seed_from_u64(seed ^ 0x5eed_f0f0),
            faults: DeliveryFaults::default(),
            plans: Vec::new(),
            lanes: BTreeMap::new(),
            log: VecDeque::new(),
            next_id: 200_000_000_000,
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { inner: Arc::new(Inner { clock, client, state: Mutex::new(state) }) }
    }

    pub(super) fn set_target(&self, url: Option<&str>) {
        self.inner.lock().target = url.map(Into::into);
    }

    /// Where deliveries go.
    pub(super) fn target(&self) -> Option<String> {
        self.inner.lock().target.as_ref().map(ToString::to_string)
    }

    /// They are another App's from now on.
    pub(super) fn belong_to(&self, app_id: u64, secret: &str, url: Option<&str>) {
        let mut state = self.inner.lock();
        (state.app_id, state.secret) = (app_id, secret.to_owned());
        state.target = url.map(Into::into);
    }

    pub(super) fn set_faults(&self, faults: DeliveryFaults) {
        self.inner.lock().faults = faults;
    }

    pub(super) fn plan(&self, plan: DeliveryPlan) {
        self.inner.lock().plans.push(plan);
    }

    pub(super) fn log(&self) -> Vec<Delivery> {
        self.inner.lock().log.iter().cloned().collect()
    }

    /// The log from its `skip`th entry on.
    pub(super) fn log_from(&self, skip: usize) -> Vec<Delivery> {
        self.inner.lock().log.iter().skip(skip).cloned().collect()
    }

    /// Deliveries that GitHub still shows, newest first.
    pub(super) fn shown(&self) -> Vec<Delivery> {
        let now = self.inner.clock.now();
        let state = self.inner.lock();
        let recent = |delivery: &&Delivery| now.since(delivery.delivered_at) < KEPT;
        let mut shown: Vec<Delivery> = state.log.iter().filter(recent).cloned().collect();
        // They are logged as they end, and the pages go by their ids.
        shown.sort_unstable_by_key(|delivery| std::cmp::Reverse(delivery.id));
        shown
    }

    /// Sends an event as faults and plans have it.
    pub(super) fn deliver(&self, event: Event) {
        let job = event.payload.pointer("/workflow_job/id").and_then(Value::as_u64);
        let (plan, faults, chances) = {
            let mut state = self.inner.lock();
            let chances: [f64; 6] = state.rng.random();
            (state.take_plan(event.action.as_deref(), job), state.faults.clone(), chances)
        };
        let [never_sent, failed, duplicate, reorder, hold_up, delay] = chances;
        if plan.never_sent || never_sent < faults.never_sent {
            tracing::info!(guid = event.guid, "a webhook is lost on purpose");
            return;
        }
        let mut parcel = self.parcel(&event, &plan);
        parcel.failed = plan.failed || failed < faults.failed;
        let overtaken = if plan.delay_seconds > 0.0 {
            plan.delay_seconds
        } else if reorder < faults.reorder {
            hold_up * faults.reorder_seconds
        } else {
            0.0
        };
        let held_up = overtaken > 0.0;
        let wait = if held_up { overtaken } else { delay * faults.delay_seconds };
        parcel.delay = Duration::try_from_secs_f64(wait).unwrap_or_default();
        let copies = if duplicate < faults.duplicate { plan.copies + 1 } else { plan.copies };
        for _ in 0..copies {
            match job.filter(|_| !held_up) {
                Some(job) => self.queue(job, parcel.clone()),
                None => drop(tokio::spawn(self.clone().post(parcel.clone()))),
            }
        }
    }

    pub(super) fn send_raw(&self, hook: RawHook) {
        let body = Bytes::from(hook.body);
        let guid = format!("{:032x}", self.inner.lock().rng.random::<u128>());
        let signature = hook.signature.unwrap_or_else(|| self.sign(&body));
        let mut headers = self.headers(&guid, &signature, &hook.content_type);
        if let Some(event) = &hook.event {
            headers.insert("X-GitHub-Event".into(), event.clone());
        }
        let parcel = Parcel {
            guid,
            event: hook.event.unwrap_or_default(),
            action: None,
            installation: None,
            repository: None,
            headers,
            body,
            redelivery: false,
            failed: false,
            delay: Duration::ZERO,
        };
        tokio::spawn(self.clone().post(parcel));
    }

    /// Sends a delivery again as it was, under its GUID (`github/docs#32822`).
    pub(super) fn redeliver(&self, id: u64) -> bool {
        let Some(old) = self.shown().into_iter().find(|delivery| delivery.id == id) else {
            return false;
        };
        let parcel = Parcel {
            guid: old.guid,
            event: old.event,
            action: old.action,
            installation: old.installation,
            repository: old.repository,
            headers: old.headers,
            body: old.body,
            redelivery: true,
            failed: false,
            delay: Duration::ZERO,
        };
        tokio::spawn(self.clone().post(parcel));
        true
    }

    fn parcel(&self, event: &Event, plan: &DeliveryPlan) -> Parcel {
        let text = event.payload.to_string();
        let (body, content_type) = if plan.form_encoded {
            (format!("payload={}", form_encode(&text)), "application/x-www-form-urlencoded".into())
        } else {
            (text, json_type())
        };
        let signature = match plan.bad_signature {
            true => signature("another secret", body.as_bytes()),
            false => self.sign(body.as_bytes()),
        };
        let mut headers = self.headers(&event.guid, &signature, &content_type);
        headers.insert("X-GitHub-Event".into(), event.event.clone());
        Parcel {
            guid: event.guid.clone(),
            event: event.event.clone(),
            action: event.action.clone(),
            installation: event.installation,
            repository: event.repository,
            headers,
            body: body.into(),
            redelivery: false,
            failed: false,
            delay: Duration::ZERO,
        }
    }

    fn sign(&self, body: &[u8]) -> String {
        signature(&self.inner.lock().secret, body)
    }

    /// The headers of GitHub's deliveries (docs), without the event's.
    fn headers(&self, guid: &str, signature: &str, content_type: &str) -> BTreeMap<String, String> {
        let app_id = self.inner.lock().app_id.to_string();
        [
            ("Accept", "*/*"),
            ("Content-Type", content_type),
            ("User-Agent", "GitHub-Hookshot/044aadd"),
            ("X-GitHub-Delivery", guid),
            ("X-GitHub-Hook-ID", "483019204"),
            ("X-GitHub-Hook-Installation-Target-ID", &app_id),
            ("X-GitHub-Hook-Installation-Target-Type", "integration"),
            ("X-Hub-Signature-256", signature),
        ]
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
    }

    fn queue(&self, job: u64, parcel: Parcel) {
        let mut state = self.inner.lock();
        let lane = state.lanes.entry(job).or_insert_with(|| {
            let (sender, mut receiver) = mpsc::unbounded_channel::<Parcel>();
            let hooks = self.clone();
            tokio::spawn(async move {
                while let Some(parcel) = receiver.recv().await {
                    hooks.clone().post(parcel).await;
                }
            });
            sender
        });
        // The lane's task lives as long as its sender.
        let _ = lane.send(parcel);
    }

    async fn post(self, parcel: Parcel) {
        let clock = self.inner.clock;
        clock.sleep(parcel.delay).await;
        let (id, target) = {
            let mut state = self.inner.lock();
            state.next_id += 1;
            (state.next_id, state.target.clone())
        };
        let delivered_at = clock.now();
        let started = tokio::time::Instant::now();
        let outcome = match &target {
            Some(url) if !parcel.failed => {
                let exchange = self.exchange(url, &parcel);
                tokio::time::timeout(TIMEOUT, exchange)
                    .await
                    .unwrap_or_else(|_| (504, "timed out".into(), String::new()))
            }
            _ => (502, "failed to connect".into(), String::new()),
        };
        let (status_code, status, answer) = outcome;
        tracing::info!(
            guid = parcel.guid,
            event = parcel.event,
            action = parcel.action,
            status_code,
            "webhook"
        );
        let mut state = self.inner.lock();
        if state.log.len() >= LOG_LIMIT {
            state.log.pop_front();
        }
        state.log.push_back(Delivery {
            id,
            guid: parcel.guid,
            delivered_at,
            redelivery: parcel.redelivery,
            duration: started.elapsed(),
            status,
            status_code,
            event: parcel.event,
            action: parcel.action,
            installation: parcel.installation,
            repository: parcel.repository,
            url: target.unwrap_or_default(),
            headers: parcel.headers,
            body: parcel.body,
            answer,
        });
    }

    /// Status, its name, and the answer's body.
    async fn exchange(&self, url: &str, parcel: &Parcel) -> (u16, String, String) {
        let mut request = http::Request::post(url);
        for (name, value) in &parcel.headers {
            request = request.header(name, value);
        }
        let failed = || (502, "failed to connect".to_owned(), String::new());
        let Ok(request) = request.body(Full::new(parcel.body.clone())) else { return failed() };
        let Ok(response) = self.inner.client.request(request).await else { return failed() };
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let name = if status.is_success() {
            "OK".into()
        } else {
            status.canonical_reason().unwrap_or("Unknown").into()
        };
        (status.as_u16(), name, String::from_utf8_lossy(&body).into_owned())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_plan(&mut self, action: Option<&str>, job: Option<u64>) -> DeliveryPlan {
        let matching = self.plans.iter_mut().find(|plan| {
            plan.times > 0
                && plan.action.as_deref().is_none_or(|wanted| Some(wanted) == action)
                && plan.job_id.is_none_or(|wanted| Some(wanted) == job)
        });
        let plan = matching.map(|plan| {
            plan.times -= 1;
            plan.clone()
        });
        self.plans.retain(|plan| plan.times > 0);
        plan.unwrap_or_default()
    }
}

/// `X-Hub-Signature-256` of a body (docs).
fn signature(secret: &str, body: &[u8]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    mac.update(body);
    let digest = mac.finalize().into_bytes();
    digest.iter().fold(String::from("sha256="), |text, byte| format!("{text}{byte:02x}"))
}

fn json_type() -> String {
    "application/json".into()
}

/// `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => {
                char::from(byte).to_string()
            }
            b' ' => "+".into(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
