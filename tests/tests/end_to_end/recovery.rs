//! Jobs whose events failed or never came, and runners whose machines are lost, with the recovery stack.

use std::collections::BTreeSet;

use ostler_local::ec2::{Ec2Fault, Fate};
use ostler_local::github::DeliveryPlan;
use ostler_local::world::RECOVERY_STACK;

use crate::faults::next_launch;
use crate::permissions::{Subject, covered};
use crate::rig::{Rig, job_of, tiers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn do_10_do_11_jobs_whose_deliveries_failed_or_never_came_are_served() {
    let rig = Rig::up("recovery").await;
    rig.world.install(&tiers()).await.unwrap_or_else(|error| panic!("{error:#}"));
    // The repository is active from then on.
    let first = rig.post("recovered", "small");
    rig.served(first).await;
    let lost = |plan: DeliveryPlan| {
        rig.world.github.plan_delivery(DeliveryPlan { action: Some("queued".into()), ..plan });
        rig.post("recovered", "small")
    };
    let failed = lost(DeliveryPlan { failed: true, ..DeliveryPlan::default() });
    let never_sent = lost(DeliveryPlan { never_sent: true, ..DeliveryPlan::default() });
    let bereft = a_machine_that_dies_is_replaced_at_once(&rig).await;
    let taken_back = sp_01_a_machine_that_is_taken_back_is_replaced_while_it_lives(&rig).await;
    for job in [failed, never_sent, bereft, taken_back] {
        rig.served(job).await;
    }
    let again = rig.world.github.deliveries().into_iter().filter(|it| it.redelivery);
    let guids: Vec<_> = again.map(|delivery| delivery.guid).collect();
    assert_eq!(guids.len(), guids.iter().collect::<BTreeSet<_>>().len(), "each is sent again once");
    assert_eq!(guids.len(), 1);
    rig.nothing_left().await;
    each_role_calls_what_it_may_and_may_what_it_calls(&rig).await;
    rig.down().await;
}

/// By its event, not by its check.
async fn a_machine_that_dies_is_replaced_at_once(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Dies, None);
    let job = rig.post("bereft", "small");
    rig.until("the event has settled it", async || {
        (rig.count("LostRunnerSettled", Some("small-x64")) > 0).then_some(())
    })
    .await;
    job
}

/// Its machine boots for longer than it has left.
async fn sp_01_a_machine_that_is_taken_back_is_replaced_while_it_lives(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Slow, Some(600));
    let job = rig.post("taken", "fleeting");
    let registered = async || {
        let runners = rig.world.github.snapshot().runners;
        runners.into_iter().find(|runner| job_of(&runner.name) == Some(job)).map(|_| ())
    };
    rig.until("its runner is registered", registered).await;
    let instance = rig.launched(job).await;
    assert!(rig.world.ec2.inject(Ec2Fault::Interrupt { instance }), "it is a spot machine");
    rig.until("the warning is heard", async || {
        (rig.count("SpotInterrupted", Some("fleeting-x64")) == 1).then_some(())
    })
    .await;
    job
}

async fn each_role_calls_what_it_may_and_may_what_it_calls(rig: &Rig) {
    let reconciler = format!("{RECOVERY_STACK}-reconciler");
    let events = format!("{RECOVERY_STACK}-instance-events");
    let callers = [&reconciler, &events].map(|function| format!("fn-{function}"));
    let subjects = [
        Subject::function(&rig.world, &reconciler, &callers[0], &["recovery.yaml#ReconcilerRole"])
            .await,
        Subject::function(&rig.world, &events, &callers[1], &["recovery.yaml#InstanceRole"]).await,
    ];
    let mut wrong = covered(&rig.world, &subjects, true).await;
    // The reconciler looks at executions only for a job that has waited for long, and how long one waits here is a
    // matter of the computer's speed. That it does is shown under virtual time (crates/sim/tests/reconciler.rs).
    let follow = format!("{} may call states:DescribeExecution and never does", callers[0]);
    wrong.retain(|found| !found.starts_with(&follow));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
