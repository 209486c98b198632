//! The way of one event through all of it.

use serde_json::{Value, json};

use crate::rig::{Rig, text};

/// "Deploy is green, chain is not linked, no error anywhere": each hop is shown by itself, in order.
pub async fn ic_09_an_event_travels_all_hops(rig: &Rig) {
    let job = rig.post_gated("hops");
    // GitHub → webhook.
    let (status, runner) = rig.answer(job).await;
    assert_eq!(status, 202, "{runner}");

    // Webhook → state machine.
    let machine = rig.world.output("StateMachineArn").unwrap();
    let arn = format!("{}:{runner}", machine.replace(":stateMachine:", ":execution:"));
    let describe = json!({"executionArn": arn});
    let execution =
        rig.operator.json("states", "AWSStepFunctions.DescribeExecution", &describe).await.unwrap();
    let input: Value = serde_json::from_str(&text(&execution["input"])).unwrap();
    assert_eq!(
        (&input["owner"], &input["jobId"], &input["provider"]),
        (&json!("hops"), &json!(job), &json!("small-x64")),
        "{input}"
    );

    // State machine → orchestrator → EC2.
    let instance = rig.launched(job).await;
    let view =
        rig.world.ec2.instances().into_iter().find(|view| view.instance_id == instance).unwrap();
    let tags = ["ostler:owner", "ostler:runner", "ostler:repo", "ostler:tier", "ostler:state"];
    assert_eq!(
        tags.map(|tag| view.tags[tag].as_str()),
        ["local", &runner, "hops/hops", "small-x64", "used"]
    );
    let ledger = rig.items("LedgerTableName").await;
    assert_eq!(ledger[&format!("job#{job}")]["runnerName"]["S"], runner.as_str());

    // Orchestrator → GitHub → handoff → instance → GitHub.
    assert_eq!(rig.running(job).await, runner);
    let registrations = rig.world.github.snapshot().runners;
    let ours = registrations.iter().find(|registration| registration.name == runner).unwrap();
    assert_eq!(ours.labels, ["self-hosted", "linux", "x64", "small"]);
    let ledger = rig.items("LedgerTableName").await;
    assert_eq!(ledger[&format!("runner#{runner}")]["runnerId"]["N"], ours.id.to_string());
    let handed = rig.items("HandoffTableName").await;
    assert!(handed.keys().all(|key| !key.ends_with(&instance)), "deleted before the job began");

    // GitHub → webhook → report queue; instance → log group.
    let reported = async || rig.deliveries(job, "in_progress").pop();
    let reported = rig.until("the webhook is told that it runs", reported).await;
    assert_eq!((reported.status_code, reported.answer.as_str()), (200, "reported"));
    let lines = json!({"logGroupName": rig.world.output("RunnerLogGroup").unwrap()});
    let run = rig.job(job).run_id;
    let line = format!("CDKGHR JOB RUNNER={runner} REPO=hops/hops WORKFLOW_ID={run}");
    let logged = async |wanted: &str| {
        let found =
            rig.operator.json("logs", "Logs_20140328.FilterLogEvents", &lines).await.unwrap();
        let events = found["events"].as_array().unwrap();
        events.iter().any(|event| text(&event["message"]).contains(wanted)).then_some(())
    };
    rig.until("the report line is in the log", async || logged(&line).await).await;

    // The end: instance → GitHub → EC2 → state machine → cleanup.
    rig.open_gate("hops");
    rig.served(job).await;
    rig.until("its execution has ended", async || {
        let executions = rig.executions_of(job).await;
        (executions == [(runner.clone(), "SUCCEEDED".to_owned())]).then_some(())
    })
    .await;
    logged("\"reason\":\"done\"").await.expect("the instance said why it ended");
    assert_eq!(rig.instances(job), [(instance, "terminated".to_owned())]);
    assert!(
        rig.world.github.snapshot().runners.iter().all(|registration| registration.name != runner)
    );
    let ledger = rig.items("LedgerTableName").await;
    let record = &ledger[&format!("runner#{runner}")];
    assert_eq!(
        (&record["jobId"]["N"], &record["jobRepo"]["S"]),
        (&json!(job.to_string()), &json!("hops/hops"))
    );
    assert!(record["endedAt"].is_object(), "{record}");
}
