//! The example events under `functions/*/events` are what the functions take: they are read by the same code, signed
//! with the secret that their README names, and belong to one and the same job.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ostler_core::instances::{Happening, InstanceEvent};
use ostler_core::janitor::{Body, By, Candidate, Config, Ec2InstanceIds, Inventory, Verdict};
use ostler_core::job::JobId;
use ostler_core::names::NameKey;
use ostler_core::runner::{Outcome, Step, StepEvent};
use ostler_core::secret::Secret;
use ostler_core::stolen::{Delivery, Record, report_in};
use ostler_core::webhook::{Payload, Request, sign, verify};
use serde_json::{Map, Value};

/// Of all example deliveries (functions/webhook/events/README.md). It is GitHub's own example of a secret.
const SECRET: &str = "It's a Secret to Everybody";

/// Of all example runner names.
const NAME_KEY: &str = "an example name key";

/// The job that all examples are about.
const JOB: JobId = JobId(41_000_000_001);

fn events(function: &str) -> BTreeMap<String, Value> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../functions/{function}/events"));
    let mut events = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            let event = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            events.insert(name, event);
        }
    }
    events
}

fn runner() -> String {
    NameKey::new(NAME_KEY).unwrap().base_name("widgets", JOB)
}

fn payload(body: &[u8]) -> Payload {
    Payload::read(&serde_json::from_slice(body).unwrap()).unwrap()
}

#[test]
fn example_deliveries_are_signed_with_the_documented_secret() {
    let events = events("webhook");
    assert_eq!(
        events.keys().collect::<Vec<_>>(),
        [
            "completed",
            "in_progress",
            "ping",
            "queued",
            "queued-form-encoded",
            "queued-gateway-v1",
            "queued-load-balancer"
        ]
    );
    let secret = Secret::new(SECRET);
    for (name, event) in events {
        let request = Request::read(&event).unwrap();
        let header = request.header("x-hub-signature-256");
        let signed = verify(header, &request.body, std::slice::from_ref(&secret));
        assert!(signed, "{name}: the signature should be {}", sign(&request.body, &secret));
        let event = if name == "ping" { "ping" } else { "workflow_job" };
        assert_eq!(request.header("x-github-event"), Some(event), "{name}");
        assert!(request.header("x-github-delivery").is_some(), "{name}");
    }
}

#[test]
fn example_deliveries_tell_one_jobs_story() {
    let events = events("webhook");
    for (name, action, runner) in [
        ("queued", "queued", None),
        ("queued-gateway-v1", "queued", None),
        ("queued-load-balancer", "queued", None),
        ("in_progress", "in_progress", Some(runner())),
        ("completed", "completed", None),
    ] {
        let request = Request::read(&events[name]).unwrap();
        assert_eq!(request.header("content-type"), Some("application/json"), "{name}");
        let payload = payload(&request.body);
        assert_eq!((payload.action.as_str(), payload.id), (action, JOB), "{name}");
        assert_eq!(payload.plausible_runner(), runner.as_deref(), "{name}");
        assert_eq!(payload.repository.to_string(), "acme/widgets", "{name}");
    }
}

#[test]
fn the_form_encoded_example_holds_the_same_payload() {
    let events = events("webhook");
    let plain = Request::read(&events["queued"]).unwrap().body;
    let encoded: String = plain
        .iter()
        .map(|&byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    let request = Request::read(&events["queued-form-encoded"]).unwrap();
    assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(String::from_utf8(request.body).unwrap(), format!("payload={encoded}"));
}

#[test]
fn example_steps_are_read_whole() {
    use {Outcome::*, Step::*};
    let events = events("orchestrator");
    let wanted = [
        ("check", Check, Regular),
        ("cleanup", Cleanup, Regular),
        ("cleanup-failed", Cleanup, Failed),
        ("ended-execution", Cleanup, Orphaned),
        ("launch", Launch, Regular),
        ("register", Register, Regular),
    ];
    let names: Vec<_> = wanted.iter().map(|(name, ..)| *name).collect();
    assert_eq!(events.keys().map(String::as_str).collect::<Vec<_>>(), names);
    for (name, step, outcome) in wanted {
        let read = StepEvent::read(&events[name]).unwrap();
        assert_eq!((read.step, read.outcome, &read.runner), (step, outcome, &runner()), "{name}");
        assert!(read.started.seconds() > 0, "{name}");
        let input = serde_json::to_value(&read.input).unwrap();
        let state = serde_json::to_value(&read.state).unwrap();
        let job = match outcome {
            Orphaned => {
                let input = events[name].pointer("/detail/input").unwrap().as_str().unwrap();
                serde_json::from_str(input).unwrap()
            }
            _ => events[name]["job"].clone(),
        };
        for (key, value) in job.as_object().unwrap() {
            // A key with a slip in it would be ignored in silence.
            let known = match key.as_str() {
                "run" => {
                    let mut remembered = value["state"].as_object().unwrap().clone();
                    // What is next is for the state machine, and not read back.
                    assert!(remembered.remove("next").is_some(), "{name}");
                    holds(&state, &remembered)
                }
                "error" => outcome == Failed,
                _ => input[key] == *value,
            };
            assert!(known, "{name}: {key} is not what is read");
        }
    }
}

#[test]
fn example_reports_are_read_whole() {
    let events = events("stolen-runner");
    assert_eq!(events.keys().collect::<Vec<_>>(), ["line", "probe", "reports"]);
    let unpacked = |name: &str| {
        Delivery::unpack(events[name].pointer("/awslogs/data").unwrap().as_str().unwrap()).unwrap()
    };
    let read = report_in(unpacked("line").lines[0].as_deref().unwrap()).unwrap();
    assert_eq!((read.runner_name.as_str(), read.job_id), (runner().as_str(), None));
    assert_eq!(unpacked("probe").kind, "CONTROL_MESSAGE");
    let records = events["reports"]["Records"].as_array().unwrap();
    let records: Vec<_> = records.iter().map(|record| Record::read(record).unwrap()).collect();
    let reports: Vec<_> = records.iter().map(|record| record.report().unwrap()).collect();
    for (record, report) in records.iter().zip(&reports) {
        assert_eq!(record.group.as_deref(), Some(report.group().as_str()));
        assert_eq!(report.runner_name, runner());
    }
    assert_eq!((reports[0].job_id, reports[1].job_id), (Some(JOB), None));
    assert_eq!(reports[1], read, "the line's report");
}

/// Nothing is asked of it here.
struct NoInventory;

impl Inventory for NoInventory {
    async fn any_lives(&self, _: By, _: &[String]) -> Vec<ostler_core::Result<bool>> {
        Vec::new()
    }
}

#[test]
fn example_candidates_are_read_whole_and_fit_the_example_configuration() {
    let events = events("registration-janitor");
    assert_eq!(events.keys().collect::<Vec<_>>(), ["confirmations", "schedule"]);
    assert!(events["schedule"].get("Records").is_none());
    let lambda = &packages()["ostler-registration-janitor"];
    let text = lambda["watch"]["env"]["REGISTRATION_JANITOR_CONFIG"].as_str();
    let config = Config::parse(text).unwrap();
    let regions = config.provider.regions();
    let provider = Ec2InstanceIds::new(config.provider.prefix(), regions, NoInventory);
    let fingerprint = config.fingerprint(&provider);
    let live = Config { dry_run: false, ..config };
    for record in events["confirmations"]["Records"].as_array().unwrap() {
        let body = record["body"].as_str().unwrap();
        let Body::Candidate(candidate) = Candidate::read(body, Some("acme")).unwrap() else {
            panic!("{body}")
        };
        assert_eq!(candidate.message(), body, "nothing in it is not read");
        let later = candidate.observed_at + Duration::from_secs(900);
        assert_eq!(candidate.judge(&live, &fingerprint, &provider, later), Verdict::Look, "{body}");
    }
}

fn holds(read: &Value, written: &Map<String, Value>) -> bool {
    written.iter().all(|(key, value)| read[key] == *value)
}

/// What each package tells cargo-lambda.
fn packages() -> BTreeMap<String, Value> {
    let metadata = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|it| (it["name"].as_str().unwrap().to_owned(), it["metadata"]["lambda"].clone()))
        .collect()
}

/// `cargo lambda deploy` puts its settings in place of the stack's: they must say the same. `cargo lambda watch` starts a
/// function only if no variable is missing.
#[test]
fn cargo_lambda_knows_the_functions_as_the_template_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let packages = packages();
    for (package, template, resource) in [
        ("ostler-webhook", "control", "WebhookFunction"),
        ("ostler-orchestrator", "control", "OrchestratorFunction"),
        ("ostler-stolen-runner", "control", "StolenRunnerFunction"),
        ("ostler-registration-janitor", "registration-janitor", "Function"),
    ] {
        let template = root.join(format!("infra/{template}.yaml"));
        let template = std::fs::read_to_string(template).unwrap();
        let template: serde_yaml_ng::Value = serde_yaml_ng::from_str(&template).unwrap();
        let lambda = &packages[package];
        let function = &template["Resources"][resource]["Properties"];
        for (ours, theirs) in [("memory", "MemorySize"), ("timeout", "Timeout")] {
            assert_eq!(
                lambda["deploy"][ours].as_u64(),
                function[theirs].as_u64(),
                "{package}: {ours}"
            );
        }
        assert!(lambda.get("env").is_none() && lambda["deploy"].get("env").is_none(), "{package}");
        for name in function["Environment"]["Variables"].as_mapping().unwrap().keys() {
            let name = name.as_str().unwrap();
            assert!(lambda["watch"]["env"][name].is_string(), "{package}: {name}");
        }
    }
}

#[test]
fn example_events_of_the_recovery_stack_are_what_its_functions_take() {
    assert_eq!(events("reconciler")["scheduled"]["detail-type"], "Scheduled Event");
    let told = events("instance-events");
    for (name, what) in [("ended", Happening::Ended), ("interrupted", Happening::Interrupted)] {
        let record = Record::read(&told[name]["Records"][0]).unwrap();
        let event = InstanceEvent::read(&serde_json::from_str(&record.body).unwrap()).unwrap();
        assert_eq!((event.what, event.instance.as_str()), (what, "i-0123456789abcdef0"));
    }
    assert_eq!(told.len(), 2);
}
