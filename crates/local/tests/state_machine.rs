//! The simulation's interpreter of the States Language beside moto's, on the same definitions, inputs and answers of
//! functions: the same states in the same order, the same payloads, the same end.

#![allow(clippy::unwrap_used, reason = "tests; the lint's own exemption does not reach helpers")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::http::{HeaderMap, Request, Response};
use ostler_core::time::Timestamp;
use ostler_local::aws::Client;
use ostler_local::moto::{Moto, default_venv};
use ostler_local::time::WorldClock;
use ostler_sim::simulation::asl::{Definition, Next};
use ostler_sim::world::{Execution, Status};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// World seconds in a real one: the longest wait, 15 minutes, is half a second.
const SCALE: f64 = 1800.0;

const ORCHESTRATOR: &str = include_str!("../../../infra/orchestrator.asl.json");

/// Random scripts for the orchestrator, beside those that are written down.
const RANDOM: u64 = 24;

/// Where moto is kinder than AWS, and the interpreter is not. That `States.ALL` catches no `States.Runtime`, that a
/// Choice over a missing path fails with it, and what an unmatched one is called: States Language specification,
/// "Errors", and Step Functions guide, "Handling errors".
const KINDER: [&str; 4] = ["no-choice", "payload-path-missing", "rule-equal-3", "rule-numeric-3"];

/// What a function answers.
#[derive(Clone, Debug)]
enum Answer {
    Payload(Value),
    Error(&'static str),
}

use Answer::{Error, Payload};

/// One execution to compare. After its script a function answers `{}`.
struct Case {
    name: String,
    definition: String,
    input: Value,
    script: Vec<Answer>,
}

/// How an execution went.
#[derive(Debug, PartialEq)]
struct Run {
    states: Vec<String>,
    payloads: Vec<Value>,
    status: &'static str,
    output: Value,
    error: Option<String>,
    /// Of a Fail state, which tells the whole state in it.
    cause: Option<Value>,
}

/// A task that calls the case's function with the whole state, with more fields.
fn task(more: Value) -> Value {
    let mut task = json!({"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke",
        "Parameters": {"FunctionName": "FUNCTION", "Payload": {"all.$": "$", "fixed": {"a": [1, "x"]}}},
        "ResultSelector": {"state.$": "$.Payload"}, "ResultPath": "$.run"});
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

fn small(name: &str, first: Value, input: Value, script: Vec<Answer>) -> Case {
    let end = |state: &str| json!({"Type": "Fail", "Error": state, "Cause": "said so"});
    let states = json!({"First": first, "Yes": end("Yes"), "No": end("No"),
        "Wait": {"Type": "Wait", "SecondsPath": "$.wait", "Next": "Again"},
        "Again": task(json!({"End": true}))});
    let definition = json!({"StartAt": "First", "States": states}).to_string();
    Case { name: name.into(), definition, input, script }
}

fn choice(rule: Value, default: Option<&str>) -> Value {
    let mut rule = rule;
    rule["Next"] = json!("Yes");
    let mut state = json!({"Type": "Choice", "Choices": [rule]});
    if let Some(default) = default {
        state["Default"] = json!(default);
    }
    state
}

/// Machines of one state or two, for each kind of state, rule, error and path that the interpreter knows.
fn small_cases() -> Vec<Case> {
    let ok = || Payload(json!({"x": 1}));
    let retry = |rules: Value| task(json!({"Retry": rules, "End": true}));
    let all = json!({"ErrorEquals": ["States.ALL"], "IntervalSeconds": 1, "MaxAttempts": 2, "JitterStrategy": "FULL"});
    let never = json!({"ErrorEquals": ["Permanent"], "MaxAttempts": 0});
    let catch = json!({"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": "Again"});
    let named = json!({"ErrorEquals": ["Known"], "ResultPath": "$.known", "Next": "Yes"});
    let mut cases = vec![
        small("task", task(json!({"End": true})), json!({"a": 1}), vec![ok()]),
        small(
            "task-then-task",
            task(json!({"Next": "Again"})),
            json!({}),
            vec![ok(), Payload(json!(7))],
        ),
        small("retried", retry(json!([all])), json!({}), vec![Error("A"), Error("B"), ok()]),
        small(
            "tries-used-up",
            retry(json!([all])),
            json!({}),
            vec![Error("A"), Error("A"), Error("A")],
        ),
        small("never-retried", retry(json!([never, all])), json!({}), vec![Error("Permanent")]),
        small(
            "counted-by-retrier",
            retry(json!([{"ErrorEquals": ["A"], "IntervalSeconds": 1, "MaxAttempts": 1}, all])),
            json!({}),
            vec![Error("A"), Error("B"), Error("B"), Error("A")],
        ),
        small(
            "three-tries-by-default",
            retry(json!([{"ErrorEquals": ["A"]}])),
            json!({}),
            vec![Error("A"), Error("A"), Error("A"), Error("A")],
        ),
        small(
            "caught",
            task(json!({"Catch": [named, catch], "End": true})),
            json!({}),
            vec![Error("A"), ok()],
        ),
        small(
            "caught-by-name",
            task(json!({"Catch": [named, catch], "End": true})),
            json!({}),
            vec![Error("Known")],
        ),
        small(
            "retried-and-caught",
            task(json!({"Retry": [all], "Catch": [catch], "End": true})),
            json!({}),
            vec![Error("A"), Error("A"), Error("A"), ok()],
        ),
        small(
            "not-caught",
            task(json!({"Catch": [named], "End": true})),
            json!({}),
            vec![Error("A")],
        ),
        small(
            "tried-afresh-in-the-next-state",
            task(json!({"Retry": [all], "Next": "Again"})),
            json!({}),
            vec![Error("A"), Error("A"), ok(), Error("A")],
        ),
        small(
            "wait",
            json!({"Type": "Wait", "SecondsPath": "$.wait", "Next": "Again"}),
            json!({"wait": 60}),
            vec![ok()],
        ),
        small(
            "wait-for-nothing-known",
            json!({"Type": "Wait", "SecondsPath": "$.wait", "Next": "Again"}),
            json!({}),
            vec![],
        ),
        small("fail", json!({"Type": "Fail", "Error": "E", "Cause": "C"}), json!({}), vec![]),
        small(
            "fail-with-all",
            json!({"Type": "Fail", "Error": "E", "CausePath": "States.JsonToString($)"}),
            json!({"a": {"b": [1, null, "c"]}}),
            vec![],
        ),
        small(
            "payload-path-missing",
            task(json!({"End": true, "Catch": [catch],
                "Parameters": {"FunctionName": "FUNCTION", "Payload": {"x.$": "$.missing"}}})),
            json!({}),
            vec![],
        ),
    ];
    let rules = [
        ("present", json!({"Variable": "$.a", "IsPresent": true})),
        ("absent", json!({"Variable": "$.a.b", "IsPresent": false})),
        ("equal", json!({"Variable": "$.a", "StringEquals": "x"})),
        ("numeric", json!({"Variable": "$.a", "IsNumeric": true})),
        (
            "and",
            json!({"And": [{"Variable": "$.a", "IsPresent": true},
            {"Variable": "$.a", "StringEquals": "x"}]}),
        ),
    ];
    for (name, rule) in rules {
        for (number, input) in
            [json!({"a": "x"}), json!({"a": 5}), json!({"a": {"b": 1}}), json!({})]
                .into_iter()
                .enumerate()
        {
            let case = format!("rule-{name}-{number}");
            cases.push(small(&case, choice(rule.clone(), Some("No")), input, vec![]));
        }
    }
    let rule = json!({"Variable": "$.a", "IsPresent": true});
    cases.push(small("no-choice", choice(rule, None), json!({}), vec![]));
    cases
}

/// The orchestrator, with answers that its function gives and with others.
fn orchestrator(name: &str, script: Vec<Answer>) -> Case {
    let input =
        json!({"owner": "acme", "repo": "widgets", "jobId": 7, "jobUrl": "u", "labels": "small"});
    Case { name: name.into(), definition: ORCHESTRATOR.into(), input, script }
}

fn says(next: &str, wait: u64) -> Answer {
    Payload(json!({"next": next, "waitSeconds": wait, "instance": "i-1"}))
}

fn orchestrator_cases() -> Vec<Case> {
    let error = |name: &'static str, times: usize| vec![Error(name); times];
    let script = |parts: Vec<Vec<Answer>>| parts.concat();
    let begun = || vec![says("register", 0), says("wait", 60)];
    let mut cases = vec![
        orchestrator("a-job", script(vec![begun(), vec![says("wait", 120), says("ended", 0)]])),
        orchestrator(
            "later",
            script(vec![vec![says("later", 60); 3], begun(), vec![says("ended", 0)]]),
        ),
        orchestrator("refused", vec![says("register", 0), says("later", 90), says("ended", 0)]),
        orchestrator(
            "errors",
            script(vec![
                error("Transient", 4),
                vec![says("register", 0)],
                error("Lambda.Unknown", 3),
                vec![says("wait", 5)],
                error("Later", 2),
                vec![says("ended", 0)],
                error("Transient", 2),
            ]),
        ),
        orchestrator("permanent", vec![Error("Permanent")]),
        orchestrator("permanent-in-check", script(vec![begun(), error("Permanent", 1)])),
        orchestrator("permanent-in-cleanup", vec![says("ended", 0), Error("Permanent")]),
        orchestrator("abandon-fails", vec![Error("Permanent"), Error("Permanent")]),
        orchestrator(
            "register-used-up",
            script(vec![vec![says("register", 0)], error("Transient", 21)]),
        ),
    ];
    for (number, odd) in [
        json!(null),
        json!([]),
        json!({"next": null}),
        json!({"next": "later"}),
        json!({"next": "later", "waitSeconds": "5"}),
        json!({"next": "wait", "waitSeconds": 5}),
    ]
    .into_iter()
    .enumerate()
    {
        cases.push(orchestrator(&format!("odd-{number}"), vec![Payload(odd)]));
    }
    let palette = [
        says("register", 0),
        says("wait", 60),
        says("wait", 900),
        says("later", 60),
        says("ended", 0),
        Payload(json!({"next": "done"})),
        Error("Transient"),
        Error("Permanent"),
        Error("Lambda.Unknown"),
    ];
    for seed in 0..RANDOM {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut script = begun();
        script.extend((0..12).map(|_| palette[rng.random_range(0..palette.len())].clone()));
        cases.push(orchestrator(&format!("random-{seed}"), script));
    }
    cases
}

/// Takes what differs by nature out of a payload: the time of the start.
fn plain(mut payload: Value) -> Value {
    if let Some(started) = payload.get_mut("startedAt") {
        assert!(Timestamp::parse(started.as_str().unwrap()).is_some(), "{started}");
        *started = json!("then");
    }
    payload
}

/// What Lambda answers for a function that failed (Lambda guide, "Function errors").
fn failure(name: &str) -> Value {
    json!({"errorType": name, "errorMessage": "asked for"})
}

fn ours(case: &Case) -> Run {
    let definition = Definition::parse(&case.definition);
    let mut rng = StdRng::seed_from_u64(1);
    let mut run = Execution::begun(&case.name, case.input.clone(), Timestamp::from_seconds(0));
    let mut script: VecDeque<Answer> = case.script.clone().into();
    let mut payloads = Vec::new();
    let mut next = definition.begin(&mut run);
    let status = loop {
        next = match next {
            Next::Invoke(payload) => {
                payloads.push(plain(payload));
                match script.pop_front().unwrap_or(Payload(json!({}))) {
                    Payload(answer) => definition.answered(&mut run, answer),
                    Error(name) => {
                        definition.errored(&mut run, name, &failure(name).to_string(), &mut rng)
                    }
                }
            }
            Next::Wait(_) => definition.resume(&mut run),
            Next::Ended(status) => break status,
        };
    };
    let (error, cause) = run.failure.clone().unzip();
    Run {
        states: run.entered.clone(),
        payloads,
        status: if status == Status::Succeeded { "SUCCEEDED" } else { "FAILED" },
        output: if status == Status::Succeeded { run.data.clone() } else { Value::Null },
        error,
        cause: cause.and_then(|cause| serde_json::from_str(&cause).ok()),
    }
}

/// Scripts and payloads so far, by the function's name.
type Scripts = Arc<Mutex<BTreeMap<String, (VecDeque<Answer>, Vec<Value>)>>>;

/// Stands where moto's Step Functions call functions.
async fn functions(scripts: Scripts) -> u16 {
    let answer = move |request: Request<axum::body::Body>| {
        let scripts = Arc::clone(&scripts);
        async move {
            let path = request.uri().path().to_owned();
            let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let name = path.split('/').rev().nth(1).unwrap_or_default().to_owned();
            let mut headers = HeaderMap::new();
            headers.insert("x-amzn-requestid", "0".parse().unwrap());
            let mut answer = json!({});
            if let Some((script, payloads)) = scripts.lock().unwrap().get_mut(&name) {
                payloads.push(plain(serde_json::from_slice(&body).unwrap()));
                answer = match script.pop_front().unwrap_or(Payload(json!({}))) {
                    Payload(answer) => answer,
                    Error(name) => {
                        headers.insert("x-amz-function-error", "Unhandled".parse().unwrap());
                        failure(name)
                    }
                };
            }
            let mut response =
                Response::new(axum::body::Body::from(Bytes::from(answer.to_string())));
            *response.headers_mut() = headers;
            response
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    port
}

async fn states(moto: &Client, action: &str, input: Value) -> Value {
    let target = format!("AWSStepFunctions.{action}");
    moto.json("states", &target, &input).await.unwrap_or_else(|error| panic!("{action}: {error}"))
}

/// Starts a case at moto: the execution's ARN.
async fn start(moto: &Client, case: &Case) -> String {
    // Names that CloudFormation would fill in.
    let definition = case
        .definition
        .replace("${AWS::Partition}", "aws")
        .replace("${OrchestratorFunction.Arn}", &case.name)
        .replace("FUNCTION", &case.name);
    let machine = json!({"name": case.name, "definition": definition,
        "roleArn": "arn:aws:iam::123456789012:role/states"});
    let machine = states(moto, "CreateStateMachine", machine).await;
    let input = json!({"stateMachineArn": machine["stateMachineArn"], "name": case.name,
        "input": case.input.to_string()});
    states(moto, "StartExecution", input).await["executionArn"].as_str().unwrap().to_owned()
}

async fn motos(moto: &Client, scripts: &Scripts, case: &Case, arn: &str) -> Run {
    let described = loop {
        let described = states(moto, "DescribeExecution", json!({"executionArn": arn})).await;
        if described["status"] != "RUNNING" {
            break described;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let history = json!({"executionArn": arn, "maxResults": 1000});
    let history = states(moto, "GetExecutionHistory", history).await;
    let entered = history["events"].as_array().unwrap().iter().filter_map(|event| {
        event.pointer("/stateEnteredEventDetails/name").and_then(Value::as_str).map(str::to_owned)
    });
    let text = |key: &str| described[key].as_str().map(str::to_owned);
    let parsed = |key: &str| text(key).and_then(|text| serde_json::from_str(&text).ok());
    let succeeded = described["status"] == "SUCCEEDED";
    Run {
        states: entered.collect(),
        payloads: scripts.lock().unwrap()[&case.name].1.clone(),
        status: if succeeded { "SUCCEEDED" } else { "FAILED" },
        output: parsed("output").unwrap_or_default(),
        error: text("error"),
        cause: parsed("cause"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simulations_interpreter_does_as_motos_on_the_same_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let cases: Vec<Case> = small_cases().into_iter().chain(orchestrator_cases()).collect();
    let scripts: Scripts = Arc::new(Mutex::new(
        cases.iter().map(|it| (it.name.clone(), (it.script.clone().into(), Vec::new()))).collect(),
    ));
    let port = functions(Arc::clone(&scripts)).await;
    let clock = WorldClock::starting_now(SCALE);
    let moto = Moto::start(&default_venv(), dir.path(), port, clock).await.unwrap();
    let client = Client::new(moto.url(), "operator");
    let mut arns = Vec::new();
    for case in &cases {
        arns.push(start(&client, case).await);
    }
    let (mut differ, mut alike) = (Vec::new(), Vec::new());
    for (case, arn) in cases.iter().zip(&arns) {
        let (ours, motos) = (ours(case), motos(&client, &scripts, case, arn).await);
        let kinder = KINDER.contains(&case.name.as_str());
        match ours == motos {
            true if kinder => alike.push(&case.name),
            false if !kinder => {
                differ.push(format!("{}:\n  ours   {ours:?}\n  moto's {motos:?}", case.name));
            }
            _ => {}
        }
    }
    moto.stop().await;
    assert!(differ.is_empty(), "{} of {}:\n{}", differ.len(), cases.len(), differ.join("\n"));
    assert!(alike.is_empty(), "moto now does as AWS in {alike:?}: take them off the list");
}
