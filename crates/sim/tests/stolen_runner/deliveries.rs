//! Events as they come: lines to the queue, and batches of reports.

use std::cell::Cell;

use ostler_core::error::Error;
use ostler_core::job::JobId;
use ostler_core::names::is_plausible;
use ostler_core::report::Report;
use ostler_core::stolen;
use ostler_sim::simulation::{log_delivery, packed, request};
use ostler_sim::world::{Plan, Strike, WEBHOOK_SECRET};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common;
use crate::scene::{Scene, logged, record};

fn line(runner: &str) -> String {
    format!("CDKGHR JOB RUNNER={runner} REPO=acme/widgets WORKFLOW_ID=9")
}

/// Bodies, groups and deduplication ids of what the queue holds, once it shows it.
fn queue(scene: &Scene) -> Vec<(Value, String)> {
    scene.world.pass(std::time::Duration::from_secs(61));
    let mut state = scene.world.state();
    let state = &mut *state;
    let mut all = Vec::new();
    loop {
        let (received, _) = state.reports.receive(state.now, 10, None, &mut state.rng).unwrap();
        if received.is_empty() {
            return all;
        }
        for message in received {
            let body = serde_json::from_str(&message.body).unwrap();
            all.push((body, message.group.unwrap()));
            assert_eq!(message.deduplication_id.as_ref(), all.last().map(|(_, group)| group));
        }
    }
}

/// What a delivery stream hands to its processor.
fn streamed(records: &[(&str, Value)]) -> Value {
    let record = |(id, data): &(&str, Value)| json!({"recordId": id, "approximateArrivalTimestamp": 1, "data": data});
    json!({"invocationId": "i", "deliveryStreamArn": "arn:aws:firehose:us-east-1:123456789012:deliverystream/s",
        "region": "us-east-1", "records": records.iter().map(record).collect::<Vec<_>>()})
}

fn results(answer: &Value) -> Vec<(&str, &str)> {
    let records = answer["records"].as_array().unwrap().iter();
    records.map(|it| (it["recordId"].as_str().unwrap(), it["result"].as_str().unwrap())).collect()
}

/// Runners of other accounts: their lines are no more trusted than those at home.
#[test]
fn r68_lines_of_other_accounts_are_queued_like_those_at_home() {
    let scene = Scene::new();
    let data = |lines: &[&str]| log_delivery(lines)["awslogs"]["data"].clone();
    let event = streamed(&[
        ("1", data(&[&line("w-1"), &line("w-2")])),
        ("2", data(&["nothing of ours"])),
        ("3", data(&[&line("w-3")])),
    ]);
    let answer = scene.handle(&event).unwrap();
    assert_eq!(results(&answer), [("1", "Dropped"), ("2", "Dropped"), ("3", "Dropped")]);
    let queued = queue(&scene);
    let groups: Vec<_> = queued.iter().map(|(_, group)| group.as_str()).collect();
    assert_eq!(groups, ["log/w-1", "log/w-2", "log/w-3"], "as lines, not as GitHub's word");
    assert!(queued.iter().all(|(body, _)| body.get("jobId").is_none()));
}

#[test]
fn i8_a_record_of_the_stream_that_can_not_be_read_costs_the_others_nothing() {
    let scene = Scene::new();
    let good = log_delivery(&[&line("w-1")])["awslogs"]["data"].clone();
    let event = streamed(&[("a", json!("%%%")), ("b", good), ("c", json!(7)), ("d", json!(null))]);
    let answer = scene.handle(&event).unwrap();
    let failed = "ProcessingFailed";
    assert_eq!(results(&answer), [("a", failed), ("b", "Dropped"), ("c", failed), ("d", failed)]);
    assert_eq!(queue(&scene).len(), 1);
    // A queue that fails has the stream ask again, and the queue drops what it has already.
    let again = log_delivery(&[&line("w-2")])["awslogs"]["data"].clone();
    let event = streamed(&[("a", again.clone()), ("b", again)]);
    scene.world.state().plan = Plan::next("Reports.send_batch", 99, Strike::After);
    assert!(matches!(scene.handle(&event), Err(Error::Transient(_))));
    scene.world.state().plan = Plan::default();
    scene.handle(&event).unwrap();
    assert_eq!(queue(&scene).len(), 1);
}

fn failures(answer: &Value) -> Vec<&str> {
    let failures = answer["batchItemFailures"].as_array().unwrap();
    failures.iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect()
}

#[test]
fn s1_b1_events_are_told_apart_and_anything_else_is_an_error_that_says_what_was_expected() {
    let scene = Scene::new();
    assert_eq!(scene.deliver(&[&line("w")]).unwrap(), Value::Null);
    assert_eq!(scene.handle(&json!({"Records": []})).unwrap(), json!({"batchItemFailures": []}));
    for event in [
        json!({}),
        json!(null),
        json!([]),
        json!("x"),
        json!({"awslogs": null}),
        json!({"awslogs": {"data": 7}}),
        json!({"Records": {}}),
        json!({"Records": null}),
        json!({"Records": ["x"]}),
    ] {
        let error = scene.handle(&event).unwrap_err();
        assert!(matches!(error, Error::Permanent(_)), "{event}: {error:?}");
        assert!(
            error.to_string().contains("expected") || error.to_string().contains("awslogs.data")
        );
    }
}

#[test]
fn s2_ls_02_a_delivery_that_can_not_be_unpacked_fails_and_is_counted() {
    let scene = Scene::new();
    for event in [
        json!({"awslogs": {"data": "%%%"}}),
        json!({"awslogs": {"data": "aGVsbG8="}}),
        packed(b"not json"),
        packed(&vec![b' '; 17 << 20]),
    ] {
        assert!(scene.handle(&event).is_err());
    }
    assert!((scene.world.metric("DeliveryUnreadable") - 4.0).abs() < 0.1);
    assert_eq!(scene.queued(), 0);
}

#[test]
fn b2_ls_01_a_control_message_is_acknowledged_without_a_word() {
    let scene = Scene::new();
    let probe = json!({"messageType": "CONTROL_MESSAGE", "logGroup": "", "logStream": "",
        "logEvents": [{"id": "", "message": line("w")},
            {"message": "CWL CONTROL MESSAGE: Checking health of destination"}]});
    let lines = logged(|| {
        assert_eq!(scene.handle(&packed(probe.to_string().as_bytes())).unwrap(), Value::Null);
    });
    assert!(lines.is_empty(), "{lines:?}");
    assert_eq!((scene.queued(), scene.world.count("", "Reports")), (0, 0));
    let other = json!({"messageType": "NEW", "logEvents": [{"message": line("w")}]});
    assert!(scene.handle(&packed(other.to_string().as_bytes())).is_ok());
    assert_eq!(scene.queued(), 0, "not known what it means");
}

#[test]
fn s3_b3_ls_05_a_line_that_can_not_be_read_costs_one_warning_and_only_itself() {
    let scene = Scene::new();
    let bad = format!("CDKGHR JOB RUNNER=a/b REPO=x WORKFLOW_ID=9 \u{1b}[31m{}", "é".repeat(400));
    let lines = logged(|| drop(scene.deliver(&[&line("w-1"), &bad, &line("w-2")]).unwrap()));
    let warnings: Vec<_> = lines.iter().filter(|line| line["level"] == "WARN").collect();
    let [warning] = warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(
        (&warning["group"], &warning["stream"]),
        (&json!("/ostler/test/runners"), &json!("i-0"))
    );
    let shown = warning["line"].as_str().unwrap();
    assert!(
        shown.starts_with("CDKGHR JOB RUNNER=a/b REPO=x WORKFLOW_ID=9 \\u{1b}[31mé"),
        "{shown}"
    );
    assert_eq!(shown.chars().count(), 256 + r"\u{1b}".len() - 1, "256 characters of the line");
    assert!((scene.world.metric("ReportUnparsable") - 1.0).abs() < 0.1);
    let names: Vec<_> = queue(&scene)
        .iter()
        .map(|(body, _)| body["runnerName"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["w-1", "w-2"]);
}

#[test]
fn s3_s4_a_flood_of_lines_does_not_flood_our_log() {
    let scene = Scene::new();
    let lines = logged(|| drop(scene.deliver(&vec!["CDKGHR JOB RUNNER="; 5000]).unwrap()));
    assert!(lines.len() < 110, "{}", lines.len());
    assert!((scene.world.metric("ReportUnparsable") - 5000.0).abs() < 0.1);
    let same = line("w");
    let lines = logged(|| drop(scene.deliver(&vec![same.as_str(); 5000]).unwrap()));
    assert!(lines.len() < 110, "{}", lines.len());
    assert!(lines.iter().any(|line| line["repeated"] == 4999), "{:?}", lines.last());
    assert_eq!(queue(&scene).len(), 1);
}

#[test]
fn s4_a_second_report_of_a_runner_in_a_delivery_is_dropped_with_a_warning() {
    let scene = Scene::new();
    let second = line("w").replace("=9", "=10");
    let lines = logged(|| drop(scene.deliver(&[&line("w"), &second, &line("v")]).unwrap()));
    assert_eq!(lines.iter().filter(|line| line["level"] == "WARN").count(), 1);
    let queued = queue(&scene);
    assert_eq!(queued.len(), 2);
    assert_eq!(queued[0].0["workflowId"], 9, "the first one counts");
}

#[test]
fn s5_b12_a_lines_report_has_a_group_of_its_own_and_no_job() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    // The webhook's word about the same runner is in the queue already: neither displaces the other.
    let signed = scene.signed(&mine.runner, mine.job);
    let sent = ostler_core::ports::ReportQueue::send(&scene.world, &signed);
    scene.world.run("webhook", sent).unwrap().unwrap();
    scene.deliver(&[&line(&mine.runner)]).unwrap();
    scene.world.pass(std::time::Duration::from_secs(61));
    let mut state = scene.world.state();
    let state = &mut *state;
    let (received, _) = state.reports.receive(state.now, 10, None, &mut state.rng).unwrap();
    let ids: Vec<_> = received
        .iter()
        .map(|message| (message.group.clone().unwrap(), message.deduplication_id.clone().unwrap()))
        .collect();
    let (runner, log) = (mine.runner.clone(), format!("log/{}", mine.runner));
    assert_eq!(ids, [(runner.clone(), format!("{runner}/{}", mine.job)), (log.clone(), log)]);
    let body: Value = serde_json::from_str(&received[1].body).unwrap();
    assert_eq!(
        body,
        json!({"kind": "report", "runnerName": runner, "repo": "acme/widgets", "workflowId": 9})
    );
}

#[test]
fn s5_reports_go_in_batches_of_ten() {
    let scene = Scene::new();
    let lines: Vec<String> = (0..25).map(|n| line(&format!("w-{n}"))).collect();
    scene.deliver(&lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_eq!(scene.world.count("", "Reports.send_batch"), 3);
    assert_eq!(queue(&scene).len(), 25);
}

#[test]
fn b4_an_entry_that_the_queue_did_not_take_is_sent_once_more_then_the_delivery_fails() {
    let lines = [line("w-1"), line("w-2"), line("w-3")];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let scene = Scene::new();
    scene.world.state().refused_reports.insert("w-2".into(), 1);
    scene.deliver(&lines).unwrap();
    assert_eq!((scene.queued(), scene.world.count("", "Reports.send_batch")), (3, 2));

    let scene = Scene::new();
    scene.world.state().refused_reports.insert("w-2".into(), 2);
    let error = scene.deliver(&lines).unwrap_err();
    assert!(
        matches!(&error, Error::Transient(text) if text.contains("w-2") && !text.contains("w-1"))
    );
    // CloudWatch Logs delivers again: what is there already is not queued twice.
    scene.deliver(&lines).unwrap();
    assert_eq!(scene.queued(), 3);

    let scene = Scene::new();
    scene.world.state().plan = Plan::next("Reports.send_batch", 1, Strike::After);
    scene.deliver(&lines).unwrap();
    assert_eq!(scene.queued(), 3, "sq_08: of two equal batches one is kept");
    scene.world.state().plan = Plan::next("Reports.send_batch", 2, Strike::Before);
    let error = scene.deliver(&lines).unwrap_err();
    assert!(error.to_string().contains("w-1, w-2, w-3"), "{error}");
}

#[test]
fn b5_at_most_a_thousand_reports_of_a_delivery_are_queued() {
    let scene = Scene::new();
    let lines: Vec<String> = (0..1003).map(|n| line(&format!("w-{n}"))).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let log = logged(|| drop(scene.deliver(&lines).unwrap()));
    assert_eq!(scene.queued(), 1000);
    assert!(log.iter().any(|line| line["level"] == "WARN" && line["beyond"] == 3), "{log:?}");
    assert!((scene.world.metric("ReportBeyondLimit") - 3.0).abs() < 0.1);
}

#[test]
fn s6_one_line_says_how_many_were_queued() {
    let scene = Scene::new();
    let log = logged(|| drop(scene.deliver(&[&line("w-1"), &line("w-2")]).unwrap()));
    let [summary] = &log[..] else { panic!("{log:?}") };
    assert_eq!(
        (&summary["queued"], &summary["group"]),
        (&json!(2), &json!("/ostler/test/runners"))
    );
}

#[test]
fn a_delivery_that_comes_too_near_the_deadline_fails_with_what_is_left() {
    let scene = Scene::new();
    let lines: Vec<String> = (0..25).map(|n| line(&format!("w-{n}"))).collect();
    let event = log_delivery(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let left = Cell::new(2);
    let may_begin = || {
        left.set(left.get() - 1);
        left.get() >= 0
    };
    let handled = scene.world.run("lines", stolen::handle(&scene.world, &event, may_begin));
    assert!(handled.unwrap().unwrap_err().to_string().starts_with("5 reports"));
    assert_eq!(scene.queued(), 20);
}

#[test]
fn s7_b6_a_body_that_is_no_report_is_dropped_with_its_id_and_never_comes_again() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let session = scene.takes(&mine.runner, mine.job);
    scene.completes(&session, mine.job);
    let bad = |id: &str, body: &str| json!({"messageId": id, "body": body, "attributes": {}});
    let event = json!({"Records": [
        bad("m-1", "{"),
        bad("m-2", "[]"),
        bad("m-3", r#"{"kind": "report", "runnerName": "a b", "repo": "a/w", "workflowId": 9}"#),
        record("m-4", &scene.signed(&mine.runner, mine.job), 1),
        {"messageId": "m-5"},
    ]});
    let log = logged(|| assert!(failures(&scene.handle(&event).unwrap()).is_empty()));
    let errors = log.iter().filter(|line| line["level"] == "ERROR");
    let told: Vec<_> = errors.map(|line| line["message_id"].as_str().unwrap()).collect();
    assert_eq!(told, ["m-1", "m-2", "m-3", "m-5"]);
    assert!((scene.world.metric("ReportUnusable") - 4.0).abs() < 0.1);
    assert!(
        matches!(scene.ran(&mine.runner), ostler_core::ports::Ran::Job { .. }),
        "m-4 was handled"
    );
}

#[test]
fn s8_an_error_is_logged_with_message_and_report_and_fails_that_record_alone() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    for mine in [&a, &b] {
        scene.takes(&mine.runner, mine.job);
    }
    scene.world.state().plan = Plan::next("Ledger.account", 1, Strike::Before);
    let event = json!({"Records": [
        record("m-1", &scene.signed(&a.runner, a.job), 1),
        record("m-2", &scene.signed(&b.runner, b.job), 1),
    ]});
    let log = logged(|| assert_eq!(failures(&scene.handle(&event).unwrap()), ["m-1"]));
    let error = log.iter().find(|line| line["level"] == "ERROR").unwrap().to_string();
    assert!(
        error.contains("m-1") && error.contains(&a.runner) && error.contains("account"),
        "{error}"
    );
    assert!(matches!(scene.ran(&b.runner), ostler_core::ports::Ran::Job { .. }));
    // It comes again, and nothing is lost.
    assert!(!scene.judge(&scene.signed(&a.runner, a.job), 2));
    assert!(matches!(scene.ran(&a.runner), ostler_core::ports::Ran::Job { .. }));
}

#[test]
fn b7_sq_01_sq_10_what_follows_a_failed_record_of_its_group_fails_unhandled() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    let c = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&a.runner, thief);
    scene.takes(&b.runner, b.job);
    scene.takes(&c.runner, c.job);
    let line = scene.line(&a.runner, thief);
    let event = json!({"Records": [
        record("m-1", &scene.signed(&b.runner, b.job), 1),
        record("m-2", &line, 1),
        record("m-3", &line, 2),
        record("m-4", &scene.line(&c.runner, c.job), 1),
    ]});
    // m-2 is deferred. m-3, of the same group, would be judged by itself.
    assert_eq!(failures(&scene.handle(&event).unwrap()), ["m-2", "m-3"]);
    assert!(scene.replacements(&[&a, &b, &c]).is_empty(), "m-3 has done nothing");
    assert!(
        matches!(scene.ran(&c.runner), ostler_core::ports::Ran::Job { .. }),
        "m-4 is another group"
    );
}

#[test]
fn a_line_in_the_batch_of_the_signed_word_about_its_runner_costs_no_judgement_of_its_own() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.takes(&mine.runner, mine.job);
    let event = json!({"Records": [
        record("m-1", &scene.line(&mine.runner, mine.job), 1),
        record("m-2", &scene.signed(&mine.runner, mine.job), 1),
    ]});
    assert!(failures(&scene.handle(&event).unwrap()).is_empty());
    assert_eq!(scene.world.count("stolen-runner", "Executions"), 1);
    assert_eq!(scene.world.count("stolen-runner", "Forge"), 0);
}

#[test]
fn near_the_deadline_the_rest_of_a_batch_is_returned_unhandled() {
    let scene = Scene::new();
    let mine: Vec<_> = (0..3).map(|_| scene.accept(&Scene::small())).collect();
    let records: Vec<_> = mine
        .iter()
        .map(|mine| record(&mine.runner, &scene.signed(&mine.runner, mine.job), 1))
        .collect();
    let left = Cell::new(1);
    let may_begin = || left.replace(0) > 0;
    let event = json!({ "Records": records });
    let answer = scene.world.run("report", stolen::handle(&scene.world, &event, may_begin));
    let answer = answer.unwrap().unwrap();
    assert_eq!(failures(&answer), [mine[1].runner.as_str(), mine[2].runner.as_str()]);
    assert_eq!(scene.ran(&mine[1].runner), ostler_core::ports::Ran::Unknown);
}

#[test]
fn sq_04_sq_06_the_same_batch_twice_starts_nothing_twice() {
    let scene = Scene::new();
    let mine: Vec<_> = (0..3).map(|_| scene.accept(&Scene::small())).collect();
    let mut records = Vec::new();
    for (index, mine) in mine.iter().enumerate() {
        let thief = scene.post(&ostler_sim::github::JobSpec::new(
            crate::scene::OTHER,
            &["self-hosted", "unknown"],
        ));
        scene.world.state().executions.get_mut(&mine.runner).unwrap().input["labels"] =
            json!("self-hosted,linux,x64,small,unknown");
        scene.takes(&mine.runner, thief);
        records.push(record(&format!("m-{index}"), &scene.signed(&mine.runner, thief), 1));
    }
    let event = json!({ "Records": records });
    for _ in 0..3 {
        assert!(failures(&scene.handle(&event).unwrap()).is_empty());
    }
    let all: Vec<_> = mine.iter().collect();
    assert_eq!(scene.replacements(&all).len(), 3);
}

/// Names as runners may have them, and what could pass for one.
fn runner_name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[A-Za-z0-9._-]{1,64}",
        1 => "[!-~]{1,80}",
        1 => "[A-Za-z0-9._-]{60,130}",
        1 => any::<String>(),
    ]
}

fn repository() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}",
        1 => "[!-~]{1,120}",
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// The queue is the model of SQS, with its rules for group and deduplication ids.
    #[test]
    fn b3_b12_a_lines_report_that_is_accepted_survives_the_queue_and_no_other_gets_there(
        name in runner_name(), repo in repository(), run in any::<i64>(), around in "[ -~]{0,20}",
    ) {
        let scene = Scene::new();
        let text = format!("{around} CDKGHR JOB RUNNER={name} REPO={repo} WORKFLOW_ID={run} {around}");
        prop_assert_eq!(scene.deliver(&[&text]).unwrap(), Value::Null, "it never fails the delivery");
        let queued = queue(&scene);
        prop_assert_eq!(queued.len(), usize::from(stolen::report_in(&text).is_some()));
        for (body, group) in queued {
            let report: Report = serde_json::from_value(body).unwrap();
            prop_assert_eq!(Some(report.clone()), stolen::report_in(&text));
            prop_assert_eq!(group, format!("log/{}", report.runner_name));
        }
        prop_assert!(scene.world.metric("ReportUnparsable") < 1.5);
    }

    #[test]
    fn b12_the_webhooks_report_that_is_accepted_survives_the_queue(
        name in runner_name(), run in 1..i64::MAX, job in 1..i64::MAX,
        labels in proptest::collection::vec("[ -~]{0,30}", 0..6),
    ) {
        let scene = Scene::new();
        let body = json!({"action": "in_progress", "workflow_job": {"id": job, "run_id": run,
            "runner_name": name, "labels": labels},
            "repository": {"name": "widgets", "full_name": "acme/widgets", "owner": {"login": "acme"}}});
        let body = body.to_string();
        let signature =
            ostler_core::webhook::sign(body.as_bytes(), &ostler_core::secret::Secret::new(WEBHOOK_SECRET));
        let (status, _) = common::handle(&scene.world, &request("workflow_job", "1", &body, &signature));
        prop_assert_eq!(status, 200, "never a 5xx for what the queue would not take");
        scene.world.pass(std::time::Duration::from_secs(61));
        let mut state = scene.world.state();
        let state = &mut *state;
        let (received, _) = state.reports.receive(state.now, 10, None, &mut state.rng).unwrap();
        prop_assert_eq!(received.len(), usize::from(is_plausible(name.trim())));
        for message in received {
            let report: Report = serde_json::from_str(&message.body).unwrap();
            prop_assert_eq!(report.job_id, Some(JobId(job)));
            prop_assert_eq!(message.group, Some(report.group()));
            prop_assert_eq!(message.deduplication_id, Some(report.deduplication_id()));
        }
    }
}
