//! What each role of the control plane is granted, against what it calls. The roles of the reaper, of the janitor and of the
//! machines in another account are judged in their own worlds (`tests/reaper`, `tests/janitor.rs`, `accounts`).

use std::time::Duration;

use ostler_local::ec2::Fate;
use ostler_local::edge::{FaultKind, FaultRule};
use ostler_local::world::CONTROL_STACK;
use ostler_sim::github::{JobSpec, Turn};
use serde_json::{Value, json};

use crate::faults::{is_replaced, next_launch};
use crate::permissions::{Subject, covered};
use crate::rig::{Rig, text};

/// Plays what no other scenario of this world does: a theft, a runner that is lost, a job that is cancelled, a delivery that
/// comes again. Then all that the roles are for was done.
pub async fn each_role_calls_what_it_may_and_may_what_it_calls(rig: &Rig) {
    a_theft_is_made_good(rig).await;
    next_launch(rig, Fate::Dies, None);
    let lost = rig.post("lost-machine", "small");
    is_replaced(rig, lost).await;
    let booting = a_delivery_comes_again_while_the_machine_boots(rig).await;
    a_cancelled_jobs_machine_is_ended(rig, booting).await;
    rig.nothing_left().await;

    let mut subjects = Vec::new();
    for (function, caller, written) in [
        ("ostler-webhook", "fn-ostler-webhook", &["control.src.yaml#WebhookRole"][..]),
        (
            "ostler-orchestrator",
            "fn-ostler-orchestrator",
            &["control.src.yaml#OrchestratorRole", "parts/runner-compute.yaml"],
        ),
        ("ostler-stolen-runner", "fn-ostler-stolen-runner", &["control.src.yaml#StolenRunnerRole"]),
    ] {
        subjects.push(Subject::function(&rig.world, function, caller, written).await);
    }
    let machine = json!({"stateMachineArn": rig.world.output("StateMachineArn").unwrap()});
    let machine = rig.operator.json("states", "AWSStepFunctions.DescribeStateMachine", &machine);
    let name = |role: &Value| text(role).rsplit('/').next().unwrap().to_owned();
    subjects.push(Subject {
        caller: "stepfunctions",
        role: name(&machine.await.unwrap()["roleArn"]),
        account: None,
        written: &["control.src.yaml#StateMachineRole"],
    });
    let roles = rig.operator.query("iam", "2010-05-08", "ListRoles", &[]).await.unwrap();
    let roles = roles.list("ListRolesResult/Roles").iter();
    let start = format!("{CONTROL_STACK}-RunnerRole-");
    let mut own = roles.map(|it| it.text_at("RoleName")).filter(|name| name.starts_with(&start));
    subjects.push(Subject {
        caller: "instance-*",
        role: own.next().unwrap().to_owned(),
        account: None,
        written: &["parts/runners.yaml"],
    });
    let wrong = covered(&rig.world, &subjects, true).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A runner gets a job for which none was started. The handler of reports sees to it, since the steps of the runner's own
/// execution, which would as well, are held back.
async fn a_theft_is_made_good(rig: &Rig) {
    let duration = Duration::from_secs(600);
    let thief = JobSpec { duration, ..JobSpec::new("theft/thief", &["self-hosted"]) };
    let thief = rig.post_spec(thief);
    rig.world.github.with_model(|model, _| model.set_turn(thief, Turn::First));
    let (status, answer) = rig.answer(thief).await;
    assert_eq!(status, 200, "no tier takes it: {answer}");

    next_launch(rig, Fate::Slow, Some(600));
    let job = rig.post("theft", "small");
    rig.until("its registration is handed over", async || {
        let handed = !rig.items("HandoffTableName").await.is_empty();
        (handed || rig.job(thief).runner.is_some()).then_some(())
    })
    .await;
    let held = FaultRule::on("lambda:Invoke", FaultKind::Throttle).by("stepfunctions");
    rig.world.edge.faults().add(held.containing("theft-"));
    rig.until("the theft is found by a report", async || {
        (rig.count("StolenRunnerDetected", Some("true")) > 0).then_some(())
    })
    .await;
    rig.world.edge.faults().clear();
    is_replaced(rig, job).await;
    rig.served(thief).await;
}

/// Whether the job has a runner is asked of the execution then.
async fn a_delivery_comes_again_while_the_machine_boots(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Slow, Some(36_000));
    let job = rig.post("cancelled", "small");
    rig.launched(job).await;
    // Two starts within a second are told apart by nobody.
    rig.world.clock.sleep(Duration::from_secs(5)).await;
    let deliveries = rig.deliveries(job, "queued");
    rig.world.github.redeliver(deliveries[0].id);
    let again = async || rig.deliveries(job, "queued").into_iter().nth(deliveries.len());
    let again = rig.until("it is answered again", again).await;
    assert_eq!((again.status_code, again.answer.as_str()), (200, "already started"));
    job
}

/// The orchestrator ends it, and takes back what was handed over: the machine is too slow to do so itself.
async fn a_cancelled_jobs_machine_is_ended(rig: &Rig, job: u64) {
    rig.world.github.cancel_job(job).unwrap();
    rig.until("it is ended", async || {
        rig.instances(job).iter().all(|(_, state)| state == "terminated").then_some(())
    })
    .await;
}
