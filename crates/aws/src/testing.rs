//! The wire in tests: answers that are given in turn, and the requests that were sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sfn::config::Credentials;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use ostler_core::ports::Clock;
use ostler_core::time::Timestamp;
use serde_json::{Value, json};

/// Answers in turn (the last one again and again), and what was asked.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    requests: Arc<Mutex<Vec<Value>>>,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Wire {
    /// With these answers: status and JSON body.
    pub fn new(answers: impl IntoIterator<Item = (u16, Value)>) -> Self {
        Self::texts(answers.into_iter().map(|(status, body)| (status, body.to_string())))
    }

    /// With these answers, of services that do not speak JSON.
    pub fn texts(answers: impl IntoIterator<Item = (u16, String)>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    /// The configuration of functions, with this wire in the network's place.
    pub async fn config(&self) -> SdkConfig {
        let connector = SharedHttpConnector::new(self.clone());
        crate::tuned(aws_config::defaults(BehaviorVersion::latest()), crate::Patience::CALLER_WAITS)
            .http_client(http_client_fn(move |_, _| connector.clone()))
            .region(Region::from_static("eu-west-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "tests"))
            .load()
            .await
    }

    /// The bodies that were sent; `#target` is the operation, `#uri` the address where it matters.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    /// The bodies as they were sent.
    pub fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let body = request.body().bytes().unwrap_or_default();
        self.bodies.lock().unwrap().push(String::from_utf8_lossy(body).into_owned());
        let mut seen: Value = serde_json::from_slice(body).unwrap_or(json!({}));
        if let Some(target) = request.headers().get("x-amz-target") {
            seen["#target"] = json!(target.rsplit('.').next());
        } else {
            seen["#uri"] = json!(request.uri());
        }
        self.requests.lock().unwrap().push(seen);
        let mut answers = self.answers.lock().unwrap();
        let (status, body) = match answers.len() {
            0 => (500, "{}".to_owned()),
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        let mut response =
            HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body.clone()));
        if body.contains("FunctionErrorForTests") {
            response.headers_mut().insert("x-amz-function-error", "Unhandled");
        }
        HttpConnectorFuture::ready(Ok(response))
    }
}

/// A clock that is set by hand.
#[derive(Clone, Debug)]
pub struct TestClock(Arc<Mutex<Timestamp>>);

impl TestClock {
    /// At that time.
    pub fn at(text: &str) -> Self {
        Self(Arc::new(Mutex::new(Timestamp::parse(text).unwrap())))
    }

    /// Some seconds later.
    pub fn pass(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        *now = *now + std::time::Duration::from_secs(seconds);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}
