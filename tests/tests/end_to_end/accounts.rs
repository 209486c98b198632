//! Runners in another account: launched, registered, checked and cleaned up through the role there.

use ostler_local::ec2::{Ec2Fault, Ec2Plane, Fate};
use ostler_local::world::RUNNERS_STACK;
use serde_json::{Value, json};

use crate::permissions::{Subject, covered};
use crate::rig::{Rig, job_of, text, tiers};

const ELSEWHERE: &str = "444455556666";
const EXTERNAL_ID: &str = "local/ostler-1";

/// The usual tiers, and two whose machines are elsewhere: one that knows the external id, and one that does not.
fn tiers_elsewhere(account: &Value) -> Value {
    let mut all = tiers();
    let list = all["tiers"].as_array_mut().unwrap();
    let mut abroad = list[0].clone();
    abroad["account"] = account.clone();
    for (label, external_id) in [("abroad", EXTERNAL_ID), ("stranger", "another/install")] {
        let mut tier = abroad.clone();
        tier["name"] = json!(format!("{label}-x64"));
        tier["labels"] = json!([label]);
        tier["account"]["external_id"] = json!(external_id);
        list.push(tier);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r60_r68_runners_live_in_another_account() {
    let rig = Rig::up("accounts").await;
    let there = rig.world.add_account(ELSEWHERE);
    rig.deploy(&[]).await;
    rig.world.hear_of(ELSEWHERE).await.unwrap_or_else(|error| panic!("{error:#}"));
    let account = rig.world.install_in(ELSEWHERE, EXTERNAL_ID).await;
    let account = account.unwrap_or_else(|error| panic!("{error:#}"));
    rig.world.hear_of(ELSEWHERE).await.unwrap_or_else(|error| panic!("{error:#}"));
    let role = text(&account["role_arn"]);
    assert!(role.starts_with(&format!("arn:aws:iam::{ELSEWHERE}:role/{RUNNERS_STACK}-")), "{role}");
    rig.world.put_parameters(&tiers_elsewhere(&account)).await.unwrap();

    let waiting = r66_nobody_is_let_in_without_permission(&rig, &there, &role).await;
    r66_nobody_is_let_in_without_the_external_id(&rig, &there).await;
    r68_jobs_are_served_there_and_here(&rig, &there, &account, waiting).await;
    r62_a_cancelled_job_leaves_nothing_there(&rig, &there).await;
    an_event_from_there_settles_a_lost_runner(&rig, &there, &account).await;
    r60_only_the_role_did_anything_there(&rig, &role).await;
    rig.answers_tell_nothing();
    rig.down().await;
}

/// Machines of an account that live: id and runner.
fn alive(plane: &Ec2Plane) -> Vec<(String, String)> {
    let views = plane.instances().into_iter();
    let alive = views.filter(|it| !matches!(it.state.as_str(), "terminated" | "shutting-down"));
    alive.map(|it| (it.instance_id, it.tags["ostler:runner"].clone())).collect()
}

/// The role trusts the orchestrator, but nobody has let the orchestrator assume it: both halves are asked for. The job waits,
/// and once that is mended it is served.
async fn r66_nobody_is_let_in_without_permission(rig: &Rig, there: &Ec2Plane, role: &str) -> u64 {
    let job = rig.post_gated_on("abroad", "abroad");
    refused(rig, there).await;
    let allowed = rig.world.let_assume(ELSEWHERE, role).await;
    allowed.unwrap_or_else(|error| panic!("{error:#}"));
    job
}

/// Another install that has been told of the role, and may assume any.
async fn r66_nobody_is_let_in_without_the_external_id(rig: &Rig, there: &Ec2Plane) {
    let job = rig.post("stranger", "stranger");
    refused(rig, there).await;
    assert!(rig.executions_of(job).await.iter().all(|(_, status)| status == "RUNNING"));
    let launched = there.instances();
    assert!(
        launched.iter().all(|it| job_of(&it.tags["ostler:runner"]) != Some(job)),
        "{launched:?}"
    );
}

/// The launch says that an operator has to act, and buys nothing.
async fn refused(rig: &Rig, there: &Ec2Plane) {
    let before = rig.count("ConfigurationError", None);
    let launched = there.instances().len();
    rig.until("the launch says that it can't get in", async || {
        (rig.count("ConfigurationError", None) > before).then_some(())
    })
    .await;
    assert!(rig.world.ec2.instances().is_empty() && launched <= 1);
}

/// The machine gets its configuration from the table of its own account; there is no endpoint in its VPC.
async fn r68_jobs_are_served_there_and_here(
    rig: &Rig,
    there: &Ec2Plane,
    account: &Value,
    abroad: u64,
) {
    let home = rig.post("home", "small");
    let runner = rig.running(abroad).await;
    let machines = alive(there);
    assert_eq!(machines.iter().map(|(_, name)| name).collect::<Vec<_>>(), [&runner]);
    assert!(rig.instances(abroad).is_empty(), "none in the control plane's account");
    rig.served(home).await;
    assert_eq!(rig.instances(home).len(), 1);
    // What it was handed is gone before the job runs; the record of the runner is at home.
    let operator = rig.world.edge.client(&format!("operator-{ELSEWHERE}"));
    let scan = json!({"TableName": account["handoff_table"], "ConsistentRead": true});
    let left = operator.json("dynamodb", "DynamoDB_20120810.Scan", &scan).await.unwrap();
    assert_eq!(left["Items"], json!([]));
    let ledger = rig.items("LedgerTableName").await;
    assert!(ledger.contains_key(&format!("runner#{runner}")));
    rig.open_gate("abroad");
    rig.served(abroad).await;
    rig.until("its machine has ended", async || alive(there).is_empty().then_some(())).await;
    rig.until("its execution has ended", async || {
        let executions = rig.executions_of(abroad).await;
        (executions == [(runner.clone(), "SUCCEEDED".to_owned())]).then_some(())
    })
    .await;
}

/// Its machine is slow to come up, so that it is the orchestrator who ends it, through the role.
async fn r62_a_cancelled_job_leaves_nothing_there(rig: &Rig, there: &Ec2Plane) {
    let slow = Ec2Fault::Launches { fate: Fate::Slow, times: Some(1), seconds: Some(36_000) };
    assert!(there.inject(slow));
    let job = rig.post("cancelled", "abroad");
    rig.until("its machine is launched", async || (!alive(there).is_empty()).then_some(())).await;
    rig.world.github.cancel_job(job).unwrap();
    rig.until("nothing is left there", async || {
        let registered = rig.world.github.snapshot().runners;
        (alive(there).is_empty() && registered.is_empty()).then_some(())
    })
    .await;
}

/// Its machine dies before it gets its job. EC2 there says so, the control plane looks, and the job is served by another.
async fn an_event_from_there_settles_a_lost_runner(rig: &Rig, there: &Ec2Plane, account: &Value) {
    assert!(there.inject(Ec2Fault::Launches { fate: Fate::Dies, times: Some(1), seconds: None }));
    let job = rig.post("bereft", "abroad");
    rig.until("the event has settled it", async || {
        (rig.count("LostRunnerSettled", Some("abroad-x64")) > 0).then_some(())
    })
    .await;
    rig.served(job).await;
    let role = text(&account["event_role_arn"]);
    let caller = format!("role-{}-{ELSEWHERE}", role.rsplit('/').next().unwrap());
    let calls = rig.world.edge.calls();
    assert_eq!(calls[&caller].keys().collect::<Vec<_>>(), ["ec2:DescribeInstances"]);
    rig.until("nothing of it is left there", async || {
        let ended = rig.executions_of(job).await.iter().all(|(_, status)| status == "SUCCEEDED");
        (ended && alive(there).is_empty()).then_some(())
    })
    .await;
}

async fn r60_only_the_role_did_anything_there(rig: &Rig, role: &str) {
    let name = role.rsplit('/').next().unwrap();
    let caller = format!("role-{name}-{ELSEWHERE}");
    let calls = rig.world.edge.calls();
    let home = &calls["fn-ostler-orchestrator"];
    assert!(home["sts:AssumeRole"] >= 3, "{home:?}");
    assert_eq!(home["ec2:CreateFleet"], 1, "of the one job at home");
    for action in [
        "ec2:CreateFleet",
        "ec2:DescribeInstances",
        "ec2:TerminateInstances",
        "dynamodb:PutItem",
        "dynamodb:DeleteItem",
    ] {
        assert!(calls[&caller].contains_key(action), "{action}: {:?}", calls[&caller]);
    }
    let subject = Subject {
        caller: &caller,
        role: name.to_owned(),
        account: Some(ELSEWHERE),
        written: &["parts/runner-compute.yaml"],
    };
    let orchestrator = Subject::function(
        &rig.world,
        "ostler-orchestrator",
        "fn-ostler-orchestrator",
        &["control.src.yaml", "parts/runner-compute.yaml"],
    )
    .await;
    let wrong = covered(&rig.world, &[subject], true).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Among the rest, that the permission to assume is there.
    let wrong = covered(&rig.world, &[orchestrator], false).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}
