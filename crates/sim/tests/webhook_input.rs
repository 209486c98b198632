//! The webhook's use case: what arrives, in which order it is checked, and what it costs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{
    aws_calls, events, handle, holds, minutes, names, payload, queued, seconds, signed_as,
    signed_body, small,
};
use ostler_core::secret::Secret;
use ostler_core::webhook::sign;
use ostler_sim::ec2::Span;
use ostler_sim::github::{JobSpec, RunnerFields};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::{Simulation, signed};
use ostler_sim::world::{Plan, REPOSITORY, Strike, WEBHOOK_SECRET, World, tier};
use serde_json::{Value, json};

/// The delivery with another value of a header.
fn with(mut event: Value, header: &str, value: Value) -> Value {
    event["headers"][header] = value;
    event
}

/// A job's payload with another action, and a runner.
fn in_progress(world: &World) -> Value {
    let mut payload = payload(world, &small());
    payload["action"] = json!("in_progress");
    let job = &mut payload["workflow_job"];
    (job["runner_id"], job["runner_name"]) = (json!(7), json!("widgets-7-0123456789ab"));
    (job["runner_group_id"], job["runner_group_name"]) = (json!(1), json!("Default"));
    payload
}

#[test]
fn the_order_of_checks() {
    let world = World::new(1);
    let body = payload(&world, &small()).to_string();
    let good = signed_body(&body);
    let bad_signature = with(good.clone(), "x-hub-signature-256", json!("sha256=00"));
    world.configure("control/webhook-secret", "");
    assert_eq!(handle(&world, &good), (503, "not configured".into()));
    assert_eq!(handle(&world, &bad_signature).0, 503, "before the signature is looked at");
    world.configure("control/webhook-secret", WEBHOOK_SECRET);
    let no_event = with(bad_signature, "x-github-event", Value::Null);
    assert_eq!(handle(&world, &no_event).0, 401, "the signature before the event's type");
    let no_event = with(good.clone(), "x-github-event", Value::Null);
    let odd_content = |event| with(event, "content-type", json!("text/plain"));
    assert_eq!(handle(&world, &odd_content(no_event)).0, 400, "the type before the content type");
    let ping = odd_content(signed_as("ping", "not json"));
    assert_eq!(handle(&world, &ping), (200, "pong".into()));
    assert_eq!(handle(&world, &odd_content(signed_as("push", "{"))).0, 200);
    let (status, words) = handle(&world, &odd_content(signed_body("not json")));
    assert_eq!(status, 415, "the content type before the body");
    assert!(words.contains("application/json") && words.contains("Content type"), "{words}");
    assert_eq!(handle(&world, &signed_body("not json")).0, 200, "the body before its action");
    assert_eq!(aws_calls(&world), 0, "none of these calls anything");
    assert_eq!(handle(&world, &good).0, 202);
}

#[test]
fn budget_of_aws_calls() {
    let world = World::new(1);
    handle(&world, &queued(&world, &small()));
    assert_eq!(aws_calls(&world), 1, "queued: the start");
    handle(&world, &signed_body(&in_progress(&world).to_string()));
    assert_eq!(aws_calls(&world), 2, "in_progress: the report");
    let mut completed = in_progress(&world);
    completed["action"] = json!("completed");
    for others in [completed.clone(), json!({"action": "waiting"})] {
        let mut body = payload(&world, &small());
        for (key, value) in others.as_object().unwrap() {
            body[key] = value.clone();
        }
        handle(&world, &signed_body(&body.to_string()));
        assert_eq!(aws_calls(&world), 2, "{}", others["action"]);
    }
    completed["workflow_job"]["runner_name"] = Value::Null;
    completed["workflow_job"]["conclusion"] = json!("cancelled");
    handle(&world, &signed_body(&completed.to_string()));
    assert_eq!(aws_calls(&world), 3, "completed without a runner: the note in the ledger");
    assert_eq!(world.count("webhook", "Forge"), 0, "GitHub is asked nothing");
}

#[test]
fn parameters_are_read_once_in_five_minutes() {
    let world = World::new(1);
    let read = |world: &World| world.state().settings.as_ref().map(|(at, _)| *at);
    handle(&world, &queued(&world, &small()));
    let first = read(&world);
    world.pass(seconds(299));
    handle(&world, &queued(&world, &small()));
    assert_eq!(read(&world), first);
    world.pass(seconds(1));
    handle(&world, &queued(&world, &small()));
    assert!(read(&world) > first);
}

#[test]
fn wi_01_wi_02_a_queued_job_without_runner_fields_launches_once_and_looks_nothing_up() {
    for fields in [RunnerFields::Zero, RunnerFields::Null, RunnerFields::Missing] {
        let world = World::new(1);
        world.state().github.options_mut().runner_fields = fields;
        assert_eq!(handle(&world, &queued(&world, &small())).0, 202, "{fields:?}");
        assert_eq!((names(&world).len(), world.count("", "Forge")), (1, 0), "{fields:?}");
    }
}

#[test]
fn wi_03_a_null_job_is_answered_200_and_starts_nothing() {
    let world = World::new(1);
    let body = json!({"action": "queued", "workflow_job": null, "repository": {"name": "w"}});
    assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 200);
    assert_eq!((aws_calls(&world), world.metric("DeliveryUnusable")), (0, 1.0));
}

#[test]
fn no_body_is_answered_5xx() {
    let world = World::new(1);
    for body in ["", "[]", "null", "{", "\u{0}", "{\"action\": 5}", "{\"workflow_job\": {}}"] {
        assert_eq!(handle(&world, &signed_body(body)).0, 200, "{body:?}");
    }
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn a_payload_of_any_size_is_answered_and_never_with_5xx() {
    let world = World::new(1);
    let mut body = payload(&world, &small());
    body["workflow_job"]["html_url"] = json!("u".repeat(1_000_000));
    body["workflow_job"]["created_at"] = json!("t".repeat(1_000_000));
    body["workflow_job"]["steps"] = json!(vec![json!({"name": "x".repeat(1000)}); 1000]);
    let (status, name) = handle(&world, &signed_body(&body.to_string()));
    assert_eq!(status, 202);
    assert!(world.state().executions[&name].input.to_string().len() < 2_000);
    let many: Vec<String> = (0..300_000).map(|n| format!("label-{n}")).collect();
    for action in ["queued", "in_progress", "completed"] {
        let mut body = in_progress(&world);
        body["action"] = json!(action);
        body["workflow_job"]["labels"] = json!(many);
        assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 200, "{action}");
    }
    assert_eq!((names(&world).len(), aws_calls(&world)), (1, 1));
    assert_eq!(world.metric("DeliveryUnusable"), 3.0);
}

#[test]
fn wi_05_wi_06_a_life_without_an_installation_in_the_payload() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().installation_in_payload = false;
    history.post(&small());
    holds(&mut history, Allowance::NONE);
    let state = history.state();
    let input = &state.executions.values().next().unwrap().input;
    assert_eq!(
        (input["installationId"].as_i64(), input.as_object().unwrap().len()),
        (Some(-1), 10)
    );
}

#[test]
fn wi_07_form_encoded_bodies_are_verified_as_sent_and_unwrapped() {
    let world = World::new(1);
    let json = payload(&world, &small()).to_string();
    let encoded: String = json.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let form = |body: &str| {
        with(signed_body(body), "content-type", json!("application/x-www-form-urlencoded"))
    };
    let (status, _) = handle(&world, &form(&format!("payload={encoded}")));
    assert_eq!(status, 202);
    let (status, words) = handle(&world, &form("other=1"));
    assert_eq!(status, 200);
    assert!(words.contains("payload"), "{words}");
    assert_eq!(names(&world).len(), 1);
}

#[test]
fn wi_10_base64_bodies_are_decoded_before_the_signature_is_checked() {
    let world = World::new(1);
    let mut event = queued(&world, &small());
    event["body"] = json!(STANDARD.encode(event["body"].as_str().unwrap()));
    event["isBase64Encoded"] = json!(true);
    assert_eq!(handle(&world, &event).0, 202);
    event["body"] = json!("%%%");
    assert_eq!(handle(&world, &event).0, 400);
}

#[test]
fn one_character_that_is_no_utf_8_costs_no_job() {
    let world = World::new(1);
    let mut body = payload(&world, &small());
    body["workflow_job"]["name"] = json!("build @@ 🐎 \u{2028}");
    let mut bytes = body.to_string().into_bytes();
    let at = bytes.windows(2).position(|pair| pair == b"@@").unwrap();
    (bytes[at], bytes[at + 1]) = (0xC3, 0x28);
    let mut event = signed_body("");
    event["body"] = json!(STANDARD.encode(&bytes));
    event["isBase64Encoded"] = json!(true);
    event["headers"]["x-hub-signature-256"] = json!(sign(&bytes, &Secret::new(WEBHOOK_SECRET)));
    assert_eq!(handle(&world, &event).0, 202);
}

#[test]
fn json_with_a_charset_is_json() {
    let world = World::new(1);
    for content in ["application/json; charset=utf-8", "Application/JSON", "application/json;x=1"] {
        let event = with(queued(&world, &small()), "content-type", json!(content));
        assert_eq!(handle(&world, &event).0, 202, "{content}");
    }
}

#[test]
fn wi_12_a_waiting_job_starts_nothing_until_it_is_queued() {
    let mut history = Simulation::new(1);
    let job = history.post(&JobSpec { environment: Some("production".into()), ..small() });
    history.run_for(minutes(10));
    assert_eq!(names(&history.world), Vec::<String>::new());
    history.approve(job);
    holds(&mut history, Allowance::NONE);
    assert_eq!(names(&history.world), [history.world.base_name(REPOSITORY, job)]);
}

#[test]
fn wi_14_wi_18_other_events_are_ignored_whatever_they_hold() {
    let world = World::new(1);
    let body = payload(&world, &small()).to_string();
    for (event, body) in [
        ("ping", json!({"zen": "Keep it logically awesome.", "hook_id": 1}).to_string()),
        ("installation", json!({"action": "created", "installation": {"id": 1}}).to_string()),
        ("installation_repositories", "{}".into()),
        ("workflow_run", json!({"action": "queued", "workflow_run": {}}).to_string()),
        ("workflow_run", body),
    ] {
        assert_eq!(handle(&world, &signed_as(event, &body)).0, 200, "{event}");
    }
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn wi_15_unknown_keys_and_new_shapes_cost_nothing() {
    let world = World::new(1);
    let mut body = payload(&world, &small());
    body["installation"]["permissions"] = json!({"actions": "read", "new": ["shape"]});
    body["enterprise"] = json!([null, 1, {"deep": {"er": true}}]);
    body["workflow_job"]["new_field"] = json!({"a": null});
    body["repository"]["custom_properties"] = json!("not a map");
    assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 202);
}

#[test]
fn wi_16_an_empty_event_name_is_400() {
    let world = World::new(1);
    for name in [json!(""), json!("  "), Value::Null] {
        let event = with(queued(&world, &small()), "x-github-event", name);
        assert_eq!(handle(&world, &event).0, 400);
    }
    assert_eq!(handle(&world, &queued(&world, &small())).0, 202, "the function goes on");
}

#[test]
fn wi_17_ignored_events_are_counted_by_type() {
    let world = World::new(1);
    for event in ["check_run", "check_run", "push", "odd one\n"] {
        handle(&world, &signed_as(event, "{}"));
    }
    let count = |event| world.metric_by("EventIgnored", event);
    assert_eq!((count("check_run"), count("push"), count("other")), (2.0, 1.0, 1.0));
}

#[test]
fn wi_19_a_started_job_without_its_runner_is_not_reported() {
    let world = World::new(1);
    for name in [Value::Null, json!(""), json!(0)] {
        let mut body = in_progress(&world);
        body["workflow_job"]["runner_name"] = name;
        assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 200);
    }
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn a_started_job_is_reported_with_all_that_github_said() {
    let world = World::new(1);
    let body = in_progress(&world);
    let (status, words) = handle(&world, &signed_body(&body.to_string()));
    assert_eq!((status, words.as_str()), (200, "reported"));
    world.pass(seconds(60));
    let mut state = world.state();
    let state = &mut *state;
    let (received, _) = state.reports.receive(state.now, 10, None, &mut state.rng).unwrap();
    let message: Value = serde_json::from_str(&received[0].body).unwrap();
    let job = &body["workflow_job"];
    assert_eq!(
        message,
        json!({"kind": "report", "runnerName": "widgets-7-0123456789ab", "repo": REPOSITORY,
            "workflowId": job["run_id"], "jobId": job["id"], "jobLabels": "self-hosted,small"})
    );
    assert_eq!(received[0].group.as_deref(), Some("widgets-7-0123456789ab"));
    let id = format!("widgets-7-0123456789ab/{}", job["id"]);
    assert_eq!(received[0].deduplication_id, Some(id));
}

#[test]
fn names_that_no_runner_can_have_never_reach_the_queue() {
    let world = World::new(1);
    for name in ["GitHub Actions 6", "a b", "a/b", "é", "a\nb", &"x".repeat(65)] {
        let mut body = in_progress(&world);
        body["workflow_job"]["runner_name"] = json!(name);
        assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 200, "{name}");
    }
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn wi_26_a_job_on_a_runner_of_githubs_own_is_not_reported() {
    let mut history = Simulation::new(1);
    let labels = vec!["ubuntu-latest".into()];
    history.post(&JobSpec { hosted: true, labels, ..small() });
    history.run_for(minutes(5));
    assert!(history.answers.iter().all(|answer| answer.status == 200));
    assert_eq!((history.answers.len(), aws_calls(&history.world)), (3, 0));
}

#[test]
fn wi_20_a_skipped_job_is_nothing() {
    let world = World::new(1);
    let skipped = events(&world, &JobSpec { skipped: true, labels: vec![], ..small() });
    assert_eq!(skipped[0].action.as_deref(), Some("completed"));
    assert_eq!(handle(&world, &signed(&skipped[0], WEBHOOK_SECRET)).0, 200);
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn wi_22_a_job_cancelled_before_it_started_stops_its_launch() {
    let mut history = Simulation::new(1);
    history.state().ec2.limit_capacity(ostler_sim::ec2::PoolMatch::default(), 0);
    let job = history.post(&small());
    history.run_for(minutes(2));
    history.cancel(job);
    history.run_for(seconds(5));
    history.state().ec2.restore_capacity();
    holds(&mut history, Allowance::NONE);
    let state = history.state();
    assert_eq!(state.ec2.instances().count(), 0, "nothing is launched for it");
    let execution = state.executions.values().next().unwrap();
    assert_eq!(execution.reason(), Some("cancelled"));
}

#[test]
fn a_cancellation_that_overtakes_the_queued_event_is_known_to_the_launch() {
    let mut history = Simulation::new(1);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![seconds(30)],
        _ => vec![seconds(1)],
    });
    let job = history.post(&small());
    history.cancel(job);
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.state().ec2.instances().count(), 0);
}

#[test]
fn wi_23_a_body_over_the_limit_is_413() {
    let world = World::new(1);
    let body = format!("{{\"a\": \"{}\"}}", "x".repeat(6 * 1024 * 1024));
    assert_eq!(handle(&world, &signed_body(&body)).0, 413);
    assert_eq!(aws_calls(&world), 0);
}

#[test]
fn se_01_without_a_secret_nothing_is_believed() {
    for secret in [None, Some(""), Some("  ")] {
        let world = World::new(1);
        match secret {
            Some(text) => world.configure("control/webhook-secret", text),
            None => drop(world.state().parameters.remove("control/webhook-secret")),
        }
        let body = payload(&world, &small()).to_string();
        for key in ["", WEBHOOK_SECRET] {
            let signature = sign(body.as_bytes(), &Secret::new(key));
            let event = with(signed_body(&body), "x-hub-signature-256", json!(signature));
            assert_eq!(handle(&world, &event), (503, "not configured".into()));
        }
        assert_eq!(aws_calls(&world), 0);
    }
}

#[test]
fn se_02_se_03_se_04_se_05_nothing_happens_under_a_wrong_signature() {
    let world = World::new(1);
    let body = payload(&world, &small()).to_string();
    let good = sign(body.as_bytes(), &Secret::new(WEBHOOK_SECRET));
    let digits = good.strip_prefix("sha256=").unwrap();
    for odd in [
        json!(sign(body.as_bytes(), &Secret::new("another"))),
        json!(sign(b"another body", &Secret::new(WEBHOOK_SECRET))),
        json!(format!("sha256= {digits}")),
        json!(format!("sha256={}", digits.to_uppercase())),
        json!(format!("sha1={digits}")),
        json!(digits),
        json!(STANDARD.encode(digits)),
        json!(&good[..good.len() - 1]),
        json!("x".repeat(1_000_000)),
        json!(""),
        Value::Null,
    ] {
        let event = with(signed_body(&body), "x-hub-signature-256", odd.clone());
        let (status, words) = handle(&world, &event);
        assert_eq!(status, 401, "{:.60}", odd.to_string());
        assert!(!words.contains(digits) && !words.contains("widgets"), "{words}");
    }
    assert_eq!((aws_calls(&world), world.count("", "Forge")), (0, 0));
    assert_eq!(handle(&world, &signed_body(&body)).0, 202, "and the right one is believed");
}

#[test]
fn gh_11_a_signature_by_sha_1_alone_is_none() {
    let world = World::new(1);
    let body = payload(&world, &small()).to_string();
    let both = with(signed_body(&body), "x-hub-signature", json!("sha1=0123456789abcdef"));
    assert_eq!(handle(&world, &both).0, 202, "beside the other it is not looked at");
    for header in [json!(format!("sha1={}", "0".repeat(40))), Value::Null] {
        let old = with(both.clone(), "x-hub-signature-256", header);
        assert_eq!(handle(&world, &old).0, 401);
    }
}

#[test]
fn ic_08_a_rotated_secret_is_read_at_run_time() {
    let world = World::new(1);
    assert_eq!(handle(&world, &queued(&world, &small())).0, 202);
    // Set behind the function's back, as an operator does it.
    let rotated = |world: &World, now: &str, previous: &str| {
        let mut state = world.state();
        state.parameters.insert("control/webhook-secret".into(), Secret::new(now));
        state.parameters.insert("control/webhook-secret-previous".into(), Secret::new(previous));
    };
    rotated(&world, "new", WEBHOOK_SECRET);
    let by = |secret: &str| signed(&events(&world, &small())[0], secret);
    world.pass(seconds(61));
    assert_eq!(handle(&world, &by("new")).0, 202, "read again where a signature fails");
    assert_eq!(handle(&world, &by(WEBHOOK_SECRET)).0, 202, "the previous one, meanwhile");
    rotated(&world, "newer", "new");
    world.pass(seconds(5));
    assert_eq!(handle(&world, &by("newer")).0, 401, "at most once in 60 s");
    world.pass(seconds(60));
    assert_eq!(handle(&world, &by("newer")).0, 202);
    assert_eq!(handle(&world, &by(WEBHOOK_SECRET)).0, 401, "the one before the previous is over");
}

#[test]
fn bad_signatures_can_not_make_us_read_parameters_all_the_time() {
    let world = World::new(1);
    handle(&world, &queued(&world, &small()));
    let bad = with(queued(&world, &small()), "x-hub-signature-256", json!("sha256=00"));
    let mut reads = std::collections::BTreeSet::new();
    for _ in 0..240 {
        handle(&world, &bad);
        world.pass(seconds(1));
        reads.insert(world.state().settings.as_ref().unwrap().0);
    }
    assert!(reads.len() <= 5, "{} reads in 240 s", reads.len());
}

#[test]
fn cp_03_cp_05_what_is_odd_does_not_stop_the_next() {
    let world = World::new(1);
    for odd in [
        json!(null),
        json!({}),
        json!({"headers": null, "body": null, "stageVariables": null, "requestContext": null}),
        json!({"key1": "value1", "key2": "value2"}),
        json!({"headers": {"x-github-event": null}, "multiValueHeaders": null, "body": 5}),
        json!([1, 2]),
    ] {
        assert_eq!(handle(&world, &odd).0, 401, "{odd}");
    }
    assert_eq!(handle(&world, &queued(&world, &small())).0, 202);
}

#[test]
fn cp_11_the_answer_comes_within_seconds_though_every_service_is_slow() {
    let world = World::new(1);
    let slow = Duration::from_millis(1_400);
    world.state().latency = Span { least: slow, most: slow };
    let event = queued(&world, &small());
    let before = world.state().now;
    assert_eq!(handle(&world, &event).0, 202);
    let took = world.state().now.since(before);
    assert!(took <= seconds(3), "{took:?}");
}

#[test]
fn the_allow_list_decides_before_anything_is_asked() {
    let world = World::new(1);
    let allow = |list: &[&str]| {
        let app = json!({"app_id": 1, "repositories": {"allow": list}, "selector": "choose"});
        world.configure("control/app", app.to_string());
    };
    world.state().selector = Some(Box::new(|_| Ok(json!({"provider": "small"}))));
    for refused in [&["other/*"][..], &["acme/widget"], &["acme-evil/*", "widgets"]] {
        allow(refused);
        let (status, words) = handle(&world, &queued(&world, &small()));
        assert_eq!(status, 200);
        assert!(words.contains("allow list"), "{words}");
    }
    assert_eq!((aws_calls(&world), world.metric_by("JobRefused", "NotAllowed")), (0, 3.0));
    allow(&["ACME/*"]);
    assert_eq!(handle(&world, &queued(&world, &small())).0, 202);
}

#[test]
fn jobs_of_public_repositories_are_refused_unless_the_operator_allows_them() {
    let world = World::new(1);
    world.state().github.add_repository("acme/open", false);
    let job = JobSpec::new("acme/open", &["self-hosted", "small"]);
    let (status, words) = handle(&world, &queued(&world, &job));
    assert_eq!(status, 200);
    assert!(words.contains("public"), "{words}");
    assert_eq!((aws_calls(&world), world.metric_by("JobRefused", "Public")), (0, 1.0));
    let app = json!({"app_id": 1, "repositories": {"public": "allow"}});
    world.configure("control/app", app.to_string());
    assert_eq!(handle(&world, &queued(&world, &job)).0, 202);
}

#[test]
fn self_hosted_is_required_unless_the_operator_says_otherwise() {
    let world = World::new(1);
    let job = JobSpec::new(REPOSITORY, &["linux", "small"]);
    let (status, words) = handle(&world, &queued(&world, &job));
    assert_eq!(status, 200);
    assert!(words.contains("self-hosted"), "{words}");
    world.configure("control/app", json!({"app_id": 1, "require_self_hosted": false}).to_string());
    assert_eq!(handle(&world, &queued(&world, &job)).0, 202);
}

#[test]
fn the_selector_decides_and_gets_the_payload() {
    let world = World::new(1);
    world.tiers(&[tier("small", &["small"]), tier("large", &["large"])]);
    world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
    world.state().selector = Some(Box::new(|request| {
        assert_eq!(request["payload"]["action"], "queued");
        assert_eq!(request["defaultProvider"], "small");
        Ok(json!({"provider": "large", "labels": ["self-hosted", "small", "special"]}))
    }));
    let (status, name) = handle(&world, &queued(&world, &small()));
    assert_eq!(status, 202);
    let input = world.state().executions[&name].input.clone();
    assert_eq!(
        (&input["provider"], &input["labels"]),
        (&json!("large"), &json!("self-hosted,small,special"))
    );
}

#[test]
fn a_selector_that_chooses_none_starts_nothing() {
    for answer in [json!(null), json!({}), json!({"provider": null}), json!({"provider": ""})] {
        let world = World::new(1);
        world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
        let given = answer.clone();
        world.state().selector = Some(Box::new(move |_| Ok(given.clone())));
        assert_eq!(handle(&world, &queued(&world, &small())).0, 200, "{answer}");
        assert_eq!(world.metric_by("JobRefused", "Selector"), 1.0);
        assert_eq!(names(&world), Vec::<String>::new());
    }
}

#[test]
fn a_selector_that_fails_or_names_an_unknown_tier_is_503() {
    let broken = || Err(ostler_core::Error::Transient("it threw".into()));
    let answers = [broken(), Ok(json!({"provider": "nobody"})), Ok(json!({"provider": 5}))];
    for answer in answers {
        let world = World::new(1);
        world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
        world.state().selector = Some(Box::new(move |_| answer.clone()));
        assert_eq!(handle(&world, &queued(&world, &small())).0, 503);
        assert_eq!((world.metric("SelectorFailed"), names(&world).len()), (1.0, 0));
    }
}

#[test]
fn every_call_that_fails_is_503_and_its_redelivery_starts_the_runner_once() {
    for strike in Strike::ALL.into_iter().filter(|strike| strike.is_failure()) {
        let mut history = Simulation::new(1);
        history.state().plan = Plan::nth("Executions", 1, strike);
        history.post(&small());
        holds(&mut history, Allowance { longest_wait: minutes(10), ..Allowance::NONE });
        assert_eq!(names(&history.world).len(), 1, "{strike:?}");
        assert!(history.answers[0].status >= 500, "{strike:?}");
    }
}

#[test]
fn se_14_no_answer_repeats_what_aws_or_a_selector_said() {
    let world = World::new(1);
    world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
    let words =
        "arn:aws:iam::123456789012:role/x is not authorized to perform states:StartExecution";
    for failure in [
        ostler_core::Error::Permanent(words.into()),
        ostler_core::Error::Transient(words.into()),
        ostler_core::Error::Later { after: seconds(60), reason: words.into() },
        ostler_core::Error::NotFound(words.into()),
        ostler_core::Error::Conflict(words.into()),
    ] {
        world.state().selector = Some(Box::new(move |_| Err(failure.clone())));
        let (status, said) = handle(&world, &queued(&world, &small()));
        assert_eq!(status, 503);
        assert!(!said.contains("123456789012") && !said.contains("arn"), "{said}");
    }
    world.state().selector = None;
    world.configure("control/tiers", "{\"secret tier\"");
    world.configure("control/app", json!({"app_id": 1}).to_string());
    let (status, said) = handle(&world, &queued(&world, &small()));
    assert_eq!((status, said.contains("secret tier")), (503, false), "{said}");
}

#[test]
fn with_a_selector_a_cancellation_is_noted_whatever_the_tiers_labels() {
    let world = World::new(1);
    let mut body = payload(&world, &JobSpec::new(REPOSITORY, &["self-hosted", "gpu"]));
    body["action"] = json!("completed");
    body["workflow_job"]["conclusion"] = json!("cancelled");
    let event = signed_body(&body.to_string());
    handle(&world, &event);
    assert_eq!(aws_calls(&world), 0, "no tier would have taken it");
    world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
    handle(&world, &event);
    assert_eq!((aws_calls(&world), world.metric("JobCancelled")), (1, 1.0));
}

#[test]
fn lm_13_a_job_that_a_selector_sends_elsewhere_is_served() {
    let mut history = Simulation::new(1);
    history.world.tiers(&[tier("large", &["large"])]);
    history.world.configure("control/app", json!({"app_id": 1, "selector": "choose"}).to_string());
    history.state().selector =
        Some(Box::new(|_| Ok(json!({"provider": "large", "labels": ["invented"]}))));
    history.post(&JobSpec::new(REPOSITORY, &["self-hosted", "gpu"]));
    holds(&mut history, Allowance::NONE);
    assert_eq!(names(&history.world).len(), 1);
}

#[test]
fn the_function_is_not_configured_before_set_up() {
    for lacking in ["control/app", "control/name-key", "control/tiers"] {
        let world = World::new(1);
        drop(world.state().parameters.remove(lacking));
        assert_eq!(handle(&world, &queued(&world, &small())).0, 503, "{lacking}");
        assert_eq!((aws_calls(&world), world.metric("ConfigurationError")), (0, 1.0));
    }
}

#[test]
fn se_14_an_answer_tells_the_sender_nothing_of_what_failed() {
    let account = "arn:aws:lambda:us-east-1:123456789012:function:choose";
    let fails = |call, event: &dyn Fn(&World) -> Value| {
        let world = World::new(1);
        let event = event(&world);
        world.state().plan = Plan::next(call, 1, Strike::Before);
        let (status, words) = handle(&world, &event);
        assert!(world.state().plan.is_over(), "{call}");
        (call, status, words)
    };
    let cancelled = |world: &World| {
        let mut payload = payload(world, &small());
        payload["action"] = json!("completed");
        payload["workflow_job"]["conclusion"] = json!("cancelled");
        signed_body(&payload.to_string())
    };
    let mut answers = vec![
        fails("Configuration.settings", &|world| queued(world, &small())),
        fails("Executions.start", &|world| queued(world, &small())),
        fails("Reports.send", &|world| signed_body(&in_progress(world).to_string())),
        fails("Ledger.cancel_job", &cancelled),
    ];
    let world = World::new(1);
    world.configure("control/app", json!({"app_id": 1, "selector": account}).to_string());
    world.state().selector = Some(Box::new(move |_| {
        Err(ostler_core::Error::Permanent(format!("AccessDenied: {account} in 123456789012")))
    }));
    let (status, words) = handle(&world, &queued(&world, &small()));
    answers.push(("selector", status, words));
    for (call, status, words) in answers {
        assert_eq!(status, 503, "{call}");
        for told in ["failed", "effect", "123456789012", "arn:", "Denied", "Permanent"] {
            assert!(!words.contains(told), "{call}: {words}");
        }
    }
}
