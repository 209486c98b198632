//! Jobs whose events failed or never came, in a world with the recovery stack.

use std::collections::BTreeSet;

use ostler_local::github::DeliveryPlan;
use ostler_sim::github::Status;

use crate::rig::{Rig, tiers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn do_10_do_11_jobs_whose_deliveries_failed_or_never_came_are_served() {
    let rig = Rig::up("recovery").await;
    rig.world.install(&tiers()).await.unwrap_or_else(|error| panic!("{error:#}"));
    rig.world.deploy_recovery().await.unwrap_or_else(|error| panic!("{error:#}"));
    // The repository is active from then on.
    let first = rig.post("recovered", "small");
    is_done(&rig, first).await;
    let lost = |plan: DeliveryPlan| {
        rig.world.github.plan_delivery(DeliveryPlan { action: Some("queued".into()), ..plan });
        rig.post("recovered", "small")
    };
    let failed = lost(DeliveryPlan { failed: true, ..DeliveryPlan::default() });
    let never_sent = lost(DeliveryPlan { never_sent: true, ..DeliveryPlan::default() });
    is_done(&rig, failed).await;
    is_done(&rig, never_sent).await;
    let again = rig.world.github.deliveries().into_iter().filter(|it| it.redelivery);
    let guids: Vec<_> = again.map(|delivery| delivery.guid).collect();
    assert_eq!(guids.len(), guids.iter().collect::<BTreeSet<_>>().len(), "each is sent again once");
    assert_eq!(guids.len(), 1);
    rig.down().await;
}

async fn is_done(rig: &Rig, job: u64) {
    rig.until(&format!("job {job} is done"), async || {
        let jobs = rig.world.github.snapshot().jobs;
        jobs.iter().any(|it| it.id == job && it.status == Status::Completed).then_some(())
    })
    .await;
}
