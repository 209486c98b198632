//! What is counted of a job: how long it waited, what it cost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{holds, lasting, minutes, small};
use ostler_sim::ec2::PoolMatch;
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;

#[test]
fn a_job_is_counted_with_its_wait_and_its_cost_once_and_by_tier() {
    let mut history = Simulation::new(1);
    history.hears_instances = true;
    history.reconciles = true;
    history.judges_reports = true;
    history.post(&lasting(minutes(30)));
    holds(&mut history, Allowance::NONE);
    let world = &history.world;
    for metric in ["QueueSeconds", "ReadySeconds", "JobCostUsd"] {
        assert!(world.metric_by(metric, "small") > 0.0, "{metric}");
    }
    assert_eq!(world.metric_by("RunnerLaunched", "small"), 1.0);
    // GitHub's part comes before ours, and both are minutes at most.
    let (queue, ready) = (world.metric("QueueSeconds"), world.metric("ReadySeconds"));
    assert!(queue < 600.0 && ready < 600.0, "{queue} {ready}");
    // Half an hour of a machine that the list has: cents, and not twice as many.
    let usd = world.metric("JobCostUsd");
    assert!((0.02..0.12).contains(&usd), "{usd}");
    assert_eq!(world.metric("JobCostUnknown"), 0.0);
    assert_eq!(world.metric("DeliveryReceived"), 3.0, "queued, begun, completed");
}

#[test]
fn a_job_that_has_not_begun_is_the_oldest_that_waits() {
    let mut history = Simulation::new(1);
    history.reconciles = true;
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    history.post(&small());
    history.run_for(minutes(40));
    assert!(history.world.metric("OldestWaitingSeconds") >= 600.0);
}
