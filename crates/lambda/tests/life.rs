//! A function's life against a Runtime API: this program starts itself as the function.

// All of this is test code, which the lints on panics can't see outside of test functions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;
use std::env;
use std::future::pending;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use ostler_core::Error;
use ostler_lambda::Environment;
use serde_json::{Value, json};
use tokio::sync::mpsc;

const ROLE: &str = "OSTLER_TEST_ROLE";

fn main() -> ExitCode {
    match env::var(ROLE).as_deref() {
        Ok("function") => ostler_lambda::run(start, handle),
        _ => {
            j87_an_error_or_panic_is_that_invocations_and_no_others();
            i9_a_start_that_fails_says_all_that_is_missing_and_ends_the_process();
            a_stretched_clock_is_refused_where_aws_is_real();
            println!("test result: ok. 3 passed");
            ExitCode::SUCCESS
        }
    }
}

async fn start(mut environment: Environment) -> Result<String, Error> {
    let greeting = environment.text("GREETING");
    environment.text("SECOND");
    environment.clock();
    environment.check()?;
    Ok(greeting)
}

async fn handle(
    greeting: &String,
    event: Value,
    invocation: &ostler_lambda::Invocation,
) -> Result<Value, Error> {
    match event["do"].as_str() {
        Some("panic") => panic!("a fault of ours"),
        Some("fail") => Err(Error::Permanent("what to fix".into())),
        _ => {
            tracing::info!(target: "ostler_life", "greeted");
            Ok(
                json!({"greeting": greeting, "event": event, "time": invocation.deadline.allows_new_work()}),
            )
        }
    }
}

/// A fake of Lambda's Runtime API: events that wait, and what was answered.
#[derive(Clone)]
struct Lambda {
    events: Arc<Mutex<VecDeque<Value>>>,
    answers: mpsc::UnboundedSender<(String, Value)>,
}

async fn next(State(lambda): State<Lambda>) -> Response {
    let event = lambda.events.lock().unwrap().pop_front();
    let Some(event) = event else { return pending().await };
    let id = event["id"].as_str().unwrap_or("x").to_owned();
    let headers = [
        ("lambda-runtime-aws-request-id", id),
        // The year 2096.
        ("lambda-runtime-deadline-ms", "4000000000000".to_owned()),
        ("lambda-runtime-invoked-function-arn", "arn".to_owned()),
    ];
    (headers, event.to_string()).into_response()
}

async fn answer(
    State(lambda): State<Lambda>,
    Path((id, kind)): Path<(String, String)>,
    body: String,
) -> &'static str {
    lambda.answers.send((format!("{id} {kind}"), serde_json::from_str(&body).unwrap())).unwrap();
    "{}"
}

fn function(api: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .env_clear()
        .env(ROLE, "function")
        .env("AWS_LAMBDA_RUNTIME_API", api)
        .env("AWS_LAMBDA_FUNCTION_NAME", "life")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Lets the function serve the events; its answers in order, and its log.
fn served(events: impl IntoIterator<Item = Value>) -> (Vec<(String, Value)>, String) {
    let events: VecDeque<Value> = events.into_iter().collect();
    let expected = events.len();
    let (answers, mut answered) = mpsc::unbounded_channel();
    let lambda = Lambda { events: Arc::new(Mutex::new(events)), answers };
    let router = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{id}/{kind}", post(answer))
        .with_state(lambda);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut child = function(&api, &[("GREETING", "hello"), ("SECOND", "2")]).spawn().unwrap();
        let mut all = vec![];
        for _ in 0..expected {
            let waited = tokio::time::timeout(Duration::from_secs(30), answered.recv()).await;
            all.push(waited.expect("the function answers every event").unwrap());
        }
        child.kill().unwrap();
        let log = child.wait_with_output().unwrap().stdout;
        (all, String::from_utf8(log).unwrap())
    })
}

fn ended(variables: &[(&str, &str)]) -> (Output, String) {
    let output = function("127.0.0.1:9", variables).output().unwrap();
    let log = String::from_utf8(output.stdout.clone()).unwrap();
    (output, log)
}

/// Also CP-05: events full of nulls, or that are no object, are decoded. Every line has the request's id and the
/// function's name, of the invocation that it belongs to.
fn j87_an_error_or_panic_is_that_invocations_and_no_others() {
    let nulls = json!({"id": "1", "headers": null, "body": null, "stageVariables": null});
    let events = [
        nulls.clone(),
        json!({"id": "2", "do": "panic"}),
        json!({"id": "3", "do": "fail"}),
        json!([]),
        Value::Null,
    ];
    let (answers, log) = served(events);
    assert_eq!(
        answers[0],
        ("1 response".into(), json!({"greeting": "hello", "event": nulls, "time": true}))
    );
    assert_eq!(answers[1].0, "2 error");
    assert_eq!(answers[1].1["errorMessage"], "Lambda panicked: a fault of ours");
    assert_eq!(
        answers[2],
        ("3 error".into(), json!({"errorType": "Permanent", "errorMessage": "what to fix"}))
    );
    assert_eq!((answers[3].0.as_str(), answers[4].0.as_str()), ("x response", "x response"));
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let logged: Vec<_> = lines
        .iter()
        .map(|line| {
            (line["message"].as_str().unwrap(), line["span"]["request_id"].as_str().unwrap())
        })
        .collect();
    let expected = [
        ("greeted", "1"),
        ("panic", "2"),
        ("the invocation failed", "3"),
        ("greeted", "x"),
        ("greeted", "x"),
    ];
    assert_eq!(logged, expected, "{log}");
    assert!(lines.iter().all(|line| line["span"]["function"] == "life"), "{log}");
    assert_eq!(lines[1]["reason"], "a fault of ours");
    assert!(lines[1]["location"].as_str().unwrap().contains("life.rs"));
    assert_eq!(
        (&lines[2]["error_type"], &lines[2]["reason"]),
        (&json!("Permanent"), &json!("what to fix"))
    );
}

fn i9_a_start_that_fails_says_all_that_is_missing_and_ends_the_process() {
    let (output, log) = ended(&[("OTHER", "SECRET")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains("GREETING, SECOND") && !log.contains("SECRET"), "{log}");
}

fn a_stretched_clock_is_refused_where_aws_is_real() {
    let both = [("GREETING", "hello"), ("SECOND", "2"), ("OSTLER_CLOCK", "1@60")];
    let (output, log) = ended(&both);
    assert_eq!(output.status.code(), Some(1));
    assert!(log.contains("remove OSTLER_CLOCK"), "{log}");
}
