//! What is counted of a job: how long it waited, what it cost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{holds, lasting, minutes, small};
use ostler_core::instances::{Happening, InstanceEvent, handle};
use ostler_core::ports::Clock;
use ostler_sim::ec2::PoolMatch;
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Strike};

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

#[test]
fn a_machine_is_charged_once_whichever_receives_of_its_end_come_through() {
    let cost = |plan: Plan| {
        let mut history = Simulation::new(1);
        let job = history.post(&lasting(minutes(30)));
        history.run_for(minutes(20));
        let name = history.world.base_name(REPOSITORY, job);
        let instance = history.instance_of(&name).unwrap();
        history.run_for(minutes(20));
        let world = &history.world;
        let event = InstanceEvent {
            instance,
            what: Happening::Ended,
            at: Some(world.now()),
            charged_until_now: true,
            origin: None,
        };
        world.state().plan = plan;
        let settings = world.current_settings();
        for receives in 1..=3 {
            world.run("instance-events", handle(world, &settings, &event, receives));
            world.pass(minutes(1));
        }
        assert!(world.state().plan.is_over());
        world.metric("JobCostUsd")
    };
    let once = cost(Plan::default());
    assert!(once > 0.0);
    for strike in [Strike::Before, Strike::CutBefore, Strike::Twice] {
        // Before it is counted, as it is, and after.
        for call in ["Launched.", "Ledger.charge", "Ledger.runner"] {
            let counted = cost(Plan::next(call, 1, strike));
            assert!((counted - once).abs() < 1e-9, "{strike:?} at {call}: {counted} for {once}");
        }
    }
}
