//! The stack's own life: with a selector beside it, deleted while jobs run, deployed again, and changed.

use std::time::Duration;

use http::Method;
use ostler_local::ec2::{Ec2Fault, Fate};
use ostler_local::lambda_host::zip_of;
use ostler_local::world::CONTROL_STACK;
use ostler_sim::github::Status;
use serde_json::json;

use crate::duties::each_role_calls_what_it_may_and_may_what_it_calls;
use crate::rig::{Rig, WEBHOOK, job_of, text, tiers};

/// An operator's selector, over the Runtime API: what it answers follows from the repository.
const SELECTOR: &str = r#"#!/usr/bin/env python3
import json, os, urllib.request
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
def post(path, body):
    urllib.request.urlopen(urllib.request.Request(api + path, json.dumps(body).encode(), method="POST")).read()
while True:
    with urllib.request.urlopen(api + "next") as answer:
        id, event = answer.headers["lambda-runtime-aws-request-id"], json.loads(answer.read())
    default = {"provider": event.get("defaultProvider"), "labels": event.get("defaultLabels")}
    repository = event["payload"]["repository"]["name"]
    if repository == "unsure":
        post(id + "/error", {"errorType": "Undecided", "errorMessage": "arn:aws:lambda:us-east-1:123456789012"})
    else:
        chosen = {"moved": {**default, "provider": "fleeting-x64"}, "unwanted": None, "lost": {"provider": "nowhere"}}
        post(id + "/response", chosen.get(repository, default))
"#;

const SELECTOR_STACK: &str = r"
Resources:
  Role: {Type: AWS::IAM::Role, Properties: {AssumeRolePolicyDocument: {Version: '2012-10-17', Statement: []}}}
  Selector:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: tier-selector
      Runtime: provided.al2023
      Handler: bootstrap
      Timeout: 5
      Role: !GetAtt Role.Arn
      Code: {S3Bucket: selector, S3Key: selector.zip}
Outputs:
  SelectorArn: {Value: !GetAtt Selector.Arn}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_comes_and_goes() {
    let rig = Rig::up("stack").await;
    install_with_a_selector(&rig).await;
    r29_it_can_be_changed_while_a_job_runs(&rig).await;
    a_selector_chooses(&rig).await;
    each_role_calls_what_it_may_and_may_what_it_calls(&rig).await;
    let jobs = deleting_the_stack_leaves_nothing_running(&rig).await;
    it_can_be_deployed_again(&rig, jobs).await;
    rig.answers_tell_nothing();
    rig.down().await;
}

async fn install_with_a_selector(rig: &Rig) {
    let zip = zip_of(SELECTOR.as_bytes()).unwrap();
    rig.operator.send("s3", Method::PUT, "/selector", &[], "").await.unwrap();
    rig.operator.send("s3", Method::PUT, "/selector/selector.zip", &[], zip).await.unwrap();
    let template = rig.world.log_dir().join("selector.yaml");
    std::fs::write(&template, SELECTOR_STACK).unwrap();
    let deployed = rig.world.deploy("selector", &template, &[]).await;
    deployed.unwrap_or_else(|error| panic!("{error:#}"));
    rig.world.put_parameters(&tiers()).await.unwrap();
    let app = json!({"app_id": rig.world.github.app_id(), "github_url": rig.world.github.url(),
        "registration": "organization", "selector": "tier-selector"});
    rig.world.put_parameter("/ostler/control/app", "String", &app.to_string()).await.unwrap();
    rig.deploy(&[("SelectorFunctionArn", &rig.world.output("SelectorArn").unwrap())]).await;
}

/// New launch templates, functions and log groups under an execution that goes on.
async fn r29_it_can_be_changed_while_a_job_runs(rig: &Rig) {
    let job = rig.post_gated("through");
    let runner = rig.running(job).await;
    rig.deploy(&[("LogRetentionDays", "7"), ("PublicIp", "false")]).await;
    let groups = log_groups(rig).await;
    assert!(!groups.is_empty() && groups.iter().all(|(_, days)| *days == 7), "{groups:?}");
    rig.open_gate("through");
    assert_eq!(rig.served(job).await.runner.unwrap().name, runner);
}

async fn a_selector_chooses(rig: &Rig) {
    let usual = rig.post("usual", "small");
    let moved = rig.post("moved", "small");
    let unwanted = rig.post("unwanted", "small");
    assert_eq!(
        rig.answer(unwanted).await,
        (200, "No runner is started: the provider selector chose none.".into())
    );
    for name in ["unsure", "lost"] {
        let job = rig.post(name, "small");
        let (status, answer) = rig.answer(job).await;
        assert_eq!(status, 503, "{name}: {answer}");
        assert!(rig.executions_of(job).await.is_empty(), "{name}");
    }
    assert!(rig.count("SelectorFailed", None) >= 2);
    for (job, tier) in [(usual, "small-x64"), (moved, "fleeting-x64")] {
        let instance = rig.launched(job).await;
        let views = rig.world.ec2.instances();
        let view = views.iter().find(|view| view.instance_id == instance).unwrap();
        assert_eq!(view.tags["ostler:tier"], tier);
        rig.served(job).await;
    }
    assert!(rig.executions_of(unwanted).await.is_empty() && rig.instances(unwanted).is_empty());
}

/// What operations.md says of it. Answers a job that runs then, and two that wait: one whose machine can't claim its
/// registration any more, and one that has no machine yet.
async fn deleting_the_stack_leaves_nothing_running(rig: &Rig) -> [u64; 3] {
    let machine = rig.world.output("StateMachineArn").unwrap();
    let working = rig.post_gated("working");
    rig.running(working).await;
    // Ten minutes in which the stack goes.
    assert!(rig.world.ec2.inject(Ec2Fault::Launches {
        fate: Fate::Slow,
        times: Some(1),
        seconds: Some(600)
    }));
    let booting = rig.post("booting", "small");
    rig.until("the machine that boots is registered", async || {
        rig.items("HandoffTableName").await.len().eq(&1).then_some(())
    })
    .await;
    rig.no_machine("r7i.48xlarge", None, None);
    let waiting = rig.post("waiting", "rare");
    rig.until("the launch waits", async || {
        (rig.count("LaunchDelayed", Some("Capacity")) > 0).then_some(())
    })
    .await;

    delete_stack(rig).await;
    let steps = steps(rig);
    let list = json!({"stateMachineArn": machine});
    let gone =
        rig.operator.json("states", "AWSStepFunctions.ListExecutions", &list).await.unwrap_err();
    assert_eq!(gone.code, "StateMachineDoesNotExist");
    assert_eq!(log_groups(rig).await, [], "the next stack can make them again");
    rig.open_gate("working");
    rig.served(working).await;
    rig.until("its machine has ended", async || (rig.alive().len() == 1).then_some(())).await;
    assert_eq!(self::steps(rig), steps, "no execution went on");
    [working, booting, waiting]
}

async fn delete_stack(rig: &Rig) {
    let parameters = [("StackName", CONTROL_STACK)];
    rig.operator.query("cloudformation", "2010-05-15", "DeleteStack", &parameters).await.unwrap();
    rig.world.edge.deployments().sync().await.unwrap();
    let described =
        rig.operator.query("cloudformation", "2010-05-15", "DescribeStacks", &parameters).await;
    assert_eq!(described.unwrap_err().code, "ValidationError", "it is gone");
}

/// How often state machines have invoked the orchestrator.
fn steps(rig: &Rig) -> Option<u64> {
    rig.world
        .edge
        .calls()
        .get("stepfunctions")
        .and_then(|calls| calls.get("lambda:Invoke").copied())
}

/// Name and retention of the log groups of the stack.
async fn log_groups(rig: &Rig) -> Vec<(String, u64)> {
    let input = json!({"logGroupNamePrefix": format!("/ostler/{CONTROL_STACK}/")});
    let found = rig.operator.json("logs", "Logs_20140328.DescribeLogGroups", &input).await.unwrap();
    let groups = found["logGroups"].as_array().unwrap().iter();
    groups
        .map(|group| (text(&group["logGroupName"]), group["retentionInDays"].as_u64().unwrap()))
        .collect()
}

/// While the last machine of the deleted stack gives up. The parameters are deleted too, as by who wants nothing left: the
/// new install says that it is not configured. The jobs that waited meanwhile are delivered again, and served under the
/// names that they had.
async fn it_can_be_deployed_again(rig: &Rig, jobs: [u64; 3]) {
    let [_, booting, waiting] = jobs;
    let names = ["app", "app-private-key", "name-key", "tiers", "webhook-secret"];
    let names = json!({"Names": names.map(|name| format!("/ostler/control/{name}"))});
    let deleted = rig.operator.json("ssm", "AmazonSSM.DeleteParameters", &names).await.unwrap();
    assert_eq!(deleted["DeletedParameters"].as_array().unwrap().len(), 5);
    rig.world.ec2.inject(Ec2Fault::Clear);
    rig.deploy(&[]).await;
    r19_se_01_it_says_that_it_is_not_configured(rig, waiting).await;
    rig.world.put_parameters(&tiers()).await.unwrap();

    rig.until("the machine that could not claim has given up", async || {
        rig.alive().is_empty().then_some(())
    })
    .await;
    let left: Vec<_> = rig
        .world
        .github
        .snapshot()
        .runners
        .into_iter()
        .map(|runner| job_of(&runner.name))
        .collect();
    assert_eq!(left, [Some(booting)], "GitHub removes it within a day");
    let statuses = [booting, waiting].map(|job| rig.job(job).status);
    assert_eq!(
        statuses,
        [Status::Queued; 2],
        "they wait until they are delivered again, or cancelled"
    );

    r30_ic_08_parameters_reach_it_without_a_deployment(rig, waiting).await;
    rig.world.github.redeliver(rig.deliveries(booting, "queued").remove(0).id);
    for job in [booting, waiting] {
        let first = rig.deliveries(job, "queued").remove(0);
        let name = rig.served(job).await.runner.unwrap().name;
        assert_eq!(name, first.answer, "its first runner's");
    }
    rig.nothing_left().await;
    let executions = rig.executions().await;
    assert_eq!(executions.len(), 2, "{executions:?}");
    assert!(executions.values().all(|status| status == "SUCCEEDED"), "{executions:?}");
}

/// Signed or not.
async fn r19_se_01_it_says_that_it_is_not_configured(rig: &Rig, job: u64) {
    let answered = rig.deliveries(job, "queued");
    rig.world.github.redeliver(answered[0].id);
    let again = async || rig.deliveries(job, "queued").into_iter().nth(answered.len());
    let again = rig.until("it is answered again", again).await;
    assert_eq!((again.status_code, again.answer.as_str()), (503, "not configured"));
    let unsigned = json!({"headers": {"x-github-event": "ping"}, "body": "{}"});
    assert_eq!(rig.invoke(WEBHOOK, &unsigned).await["statusCode"], 503);
}

/// A process that has read the parameters before they were there reads them again after a minute.
async fn r30_ic_08_parameters_reach_it_without_a_deployment(rig: &Rig, job: u64) {
    let accepted = async || {
        let last = rig.deliveries(job, "queued").pop().unwrap();
        match last.status_code {
            202 if last.redelivery => return Some(()),
            503 | 504 => {}
            other => panic!("answered {other} {}", last.answer),
        }
        rig.world.github.redeliver(last.id);
        tokio::time::sleep(Duration::from_secs(2)).await;
        None
    };
    rig.until("the delivery is accepted", accepted).await;
}
