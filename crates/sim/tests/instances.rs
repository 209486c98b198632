//! What EC2 tells of instances: deaths before a job, and interruptions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{conclusion, holds, interrupt, lasting, minutes, names, only_tier, seconds, small};
use ostler_core::instances::{Handled, InstanceEvent, batch};
use ostler_sim::ec2::{LaunchFault, Market, PoolMatch};
use ostler_sim::github::{ApiError, Fault as GitHubFault, FaultRule, endpoint};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::{Plan, REPOSITORY, Strike};
use serde_json::{Value, json};

fn within(longest: Duration) -> Allowance {
    Allowance { longest_wait: longest, ..Allowance::NONE }
}

fn told() -> Simulation {
    let mut history = Simulation::new(1);
    history.hears_instances = true;
    history
}

/// GitHub fails, so that a machine is gone before its runner is registered; then it refuses, and another machine is
/// launched for the same runner. Found by seed 4081.
#[test]
fn a_machine_that_dies_unregistered_is_not_the_end_of_a_runner_that_is_launched_again() {
    let mut history = told();
    history.state().ec2.plan_launches([LaunchFault::Dies]);
    for (skip, times, status) in [(0, 3, 500), (3, 1, 429)] {
        history.state().github.add_fault(FaultRule {
            method: "POST".into(),
            template: endpoint::ORG_JIT.into(),
            skip,
            times,
            fault: GitHubFault::Refuse(ApiError::new(status, "rate limit")),
        });
    }
    let job = history.post(&lasting(minutes(20)));
    history.run_for(minutes(10));
    let name = history.world.base_name(REPOSITORY, job);
    assert_eq!(history.state().runner_record(&name).ended_at, None);
    holds(&mut history, within(minutes(10)));
    assert_eq!(names(&history.world), [name]);
}

/// On spot machines, with on-demand ones where there are none.
fn spot() -> Simulation {
    let history = told();
    only_tier(&history, json!({"market": "spot-then-on-demand"}));
    history
}

fn replacement(history: &Simulation, job: u64) -> String {
    format!("{}-r1", history.world.base_name(REPOSITORY, job))
}

#[test]
fn ol_11_a_machine_that_dies_at_once_is_replaced_at_once() {
    let mut history = told();
    history.state().ec2.plan_launches([LaunchFault::Dies]);
    let job = history.post(&small());
    holds(&mut history, within(seconds(60)));
    assert_eq!(names(&history.world).len(), 2);
    assert!(names(&history.world).contains(&replacement(&history, job)));
    assert_eq!(history.world.metric("LostRunnerSettled"), 1.0);
}

#[test]
fn a_runner_that_dies_while_it_listens_is_settled_once_github_calls_it_offline() {
    let mut history = told();
    history.fates = [Fate::Dies(seconds(20))].into();
    let job = history.post(&small());
    history.at_github(|github, _| github.hold(job, ostler_sim::github::Status::Waiting));
    history.run_for(seconds(40));
    history.at_github(|github, now| {
        github.hold(job, ostler_sim::github::Status::Queued);
        github.tick(now);
    });
    holds(&mut history, within(minutes(5)));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn the_end_of_a_runner_that_had_its_job_costs_nothing() {
    let mut history = told();
    let job = history.post(&lasting(seconds(20)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(names(&history.world).len(), 1);
    assert_eq!(history.world.metric("LostRunnerSettled"), 0.0);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    let mut calls = history.state().github.calls().clone();
    // What an owner is, is asked once by a process.
    calls.remove(&format!("GET {}", ostler_sim::github::endpoint::USER));
    assert!(calls.values().sum::<u64>() <= 3, "of a job that goes well: {calls:?}");
}

#[test]
fn a_machine_that_we_end_to_launch_another_for_the_same_runner_is_no_death() {
    let mut history = told();
    // GitHub refuses the registration once, so the machine is ended, and launched again a little later.
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Refuse(ApiError::new(429, "rate limit")),
    });
    history.post(&small());
    holds(&mut history, within(minutes(10)));
    assert_eq!(names(&history.world).len(), 1, "it is the same runner's second machine");
}

#[test]
fn sp_01_an_interrupted_runner_that_boots_is_replaced_before_it_is_gone() {
    let mut history = spot();
    history.state().ec2.plan_launches([LaunchFault::Slow(seconds(90))]);
    let job = history.post(&small());
    history.run_for(seconds(10));
    let name = history.world.base_name(REPOSITORY, job);
    interrupt(&mut history, &name);
    history.run_for(seconds(10));
    assert!(names(&history.world).contains(&replacement(&history, job)), "two minutes before");
    assert_eq!(history.world.metric_by("SpotInterrupted", "small"), 1.0);
    holds(&mut history, within(minutes(3)));
    assert_eq!(names(&history.world).len(), 2);
}

#[test]
fn sp_01_a_warning_counts_whichever_receive_of_it_comes_through_first() {
    for strike in [Strike::Before, Strike::CutBefore] {
        let mut history = spot();
        let job = history.post(&lasting(minutes(90)));
        history.run_for(minutes(2));
        let name = history.world.base_name(REPOSITORY, job);
        history.state().plan = Plan::next("Ledger.interrupt_runner", 1, strike);
        interrupt(&mut history, &name);
        history.run_for(minutes(3));
        assert!(history.state().plan.is_over());
        assert_eq!(history.world.metric_by("SpotInterrupted", "small"), 1.0, "{strike:?}");
        assert!(history.state().ledger.runners[&name].0.interrupted_at.is_some(), "{strike:?}");
    }
}

#[test]
fn bf_02_an_interrupted_runner_that_is_connected_is_looked_at_twice() {
    let mut history = spot();
    history.state().github.options_mut().busy_lag = seconds(50);
    let job = history.post(&lasting(minutes(10)));
    history.run_for(seconds(8));
    let name = history.world.base_name(REPOSITORY, job);
    interrupt(&mut history, &name);
    history.run_for(seconds(100));
    assert!(history.state().harm.is_empty());
    assert_eq!(names(&history.world), [name], "it has its job, whatever GitHub's flag says");
    assert_eq!(history.world.count("instance-events", "Forge.remove_runner"), 0);
}

#[test]
fn three_interruptions_in_a_quarter_of_an_hour_make_the_tier_buy_on_demand_for_half_an_hour() {
    let mut history = spot();
    let jobs: Vec<u64> = (0..3).map(|_| history.post(&lasting(minutes(90)))).collect();
    history.run_for(minutes(2));
    for job in jobs {
        let name = history.world.base_name(REPOSITORY, job);
        interrupt(&mut history, &name);
        history.run_for(minutes(1));
    }
    assert_eq!(history.world.metric_by("SpotBreakerOpened", "small"), 1.0);
    let market = |history: &mut Simulation| {
        let job = history.post(&small());
        history.run_for(minutes(1));
        let name = history.world.base_name(REPOSITORY, job);
        let id = history.instance_of(&name).unwrap();
        let state = history.state();
        state.ec2.instance(&id).unwrap().pool.market == Market::Spot
    };
    assert!(!market(&mut history), "on-demand");
    assert!(history.world.metric_by("SpotRested", "small") >= 1.0);
    history.run_for(minutes(31));
    assert!(market(&mut history), "spot again");
}

#[test]
fn a_spot_market_without_capacity_is_not_asked_for_half_an_hour() {
    let mut history = spot();
    history
        .state()
        .ec2
        .limit_capacity(PoolMatch { market: Some(Market::Spot), ..PoolMatch::default() }, 0);
    for _ in 0..5 {
        history.post(&small());
        history.run_for(seconds(30));
    }
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.world.metric_by("LaunchRefused", "Capacity"), 3.0, "three, and no more");
}

#[test]
fn i8_a_batch_answers_what_is_to_come_again_and_drops_what_is_no_event() {
    let history = Simulation::new(1);
    let world = &history.world;
    let record = |id: &str, body: Value| {
        json!({"messageId": id, "body": body.to_string(),
            "attributes": {"ApproximateReceiveCount": "1"}})
    };
    let event = |instance: &str| {
        json!({"detail-type": "EC2 Instance State-change Notification", "account": "1",
            "region": "r", "detail": {"instance-id": instance, "state": "terminated"}})
    };
    let records = json!({"Records": [record("odd", json!("x")), record("done", event("i-1")),
        record("later", event("i-2")), record("fails", event("i-3"))]});
    let handle = async |event: InstanceEvent, _: u32| match event.instance.as_str() {
        "i-1" => Ok(Handled::Done),
        "i-2" => Ok(Handled::NotYet),
        _ => Err(ostler_core::Error::Transient("x".into())),
    };
    let answer = world.run("t", batch(&records, world, || true, handle)).unwrap().unwrap();
    let again = json!([{"itemIdentifier": "later"}, {"itemIdentifier": "fails"}]);
    assert_eq!(answer["batchItemFailures"], again);
    assert_eq!(world.metric("InstanceEventUnusable"), 1.0);
}

#[test]
fn bf_02_an_interrupted_runner_is_looked_at_twice_whichever_receives_come_through() {
    for (failed, removed) in [(false, 1), (true, 0)] {
        let mut history = spot();
        let job = history.post(&small());
        history.run_for(seconds(1));
        // Its job is held, so that it is connected, and idle for all that GitHub says.
        history.at_github(|github, _| github.hold(job, ostler_sim::github::Status::Waiting));
        history.run_for(seconds(20));
        let name = history.world.base_name(REPOSITORY, job);
        if failed {
            history.state().plan = Plan::next("Ledger.runner", 1, Strike::Before);
        }
        interrupt(&mut history, &name);
        history.run_for(seconds(75));
        assert_eq!(history.world.count("instance-events", "Forge.remove_runner"), removed);
        assert!(history.state().plan.is_over());
    }
}
