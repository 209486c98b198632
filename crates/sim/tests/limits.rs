//! Bounds of launches that all executions share: a tier's `max_runners`, and the pace of registrations.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{ended, holds, hours, lasting, minutes, names, only_tier, seconds, small};
use ostler_sim::ec2::{PoolMatch, Span};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Status, Strike, tier};
use serde_json::json;

fn within(longest: u64) -> Allowance {
    Allowance { longest_wait: minutes(longest), ..Allowance::NONE }
}

fn bounded(most: u32) -> Simulation {
    let history = Simulation::new(1);
    only_tier(&history, json!({"max_runners": most}));
    history
}

fn live(history: &Simulation) -> usize {
    let state = history.state();
    state.ec2.instances().filter(|it| !it.state(state.now).is_over()).count()
}

fn holders(history: &Simulation) -> usize {
    history.state().ledger.slots.get("small").map_or(0, std::collections::BTreeMap::len)
}

#[test]
fn cl_02_ol_01_a_burst_of_500_events_never_has_more_machines_than_the_tier_may_and_all_jobs_run() {
    let mut history = bounded(50);
    history.state().latency =
        Span { least: Duration::from_millis(1), most: Duration::from_millis(20) };
    for _ in 0..500 {
        history.post(&small());
    }
    let mut most = 0;
    for _ in 0..1200 {
        history.run_for(seconds(5));
        most = most.max(live(&history));
    }
    assert_eq!(most, 50);
    // GitHub shuffles them all, and a few runners come up for jobs that others have run by then.
    holds(&mut history, Allowance { surplus: 25, ..within(120) });
    let state = history.state();
    assert!(state.github.all_jobs().all(|job| job.conclusion.as_deref() == Some("success")));
    drop(state);
    assert_eq!(holders(&history), 0);
}

#[test]
fn a_function_that_is_killed_anywhere_leaks_no_place() {
    for strike in [Strike::After, Strike::CutBefore, Strike::CutAfter] {
        for call in 1..40 {
            let mut history = bounded(1);
            history.state().plan = Plan::call(call, strike);
            history.post(&small());
            history.run_for(seconds(20));
            history.post(&small());
            holds(&mut history, within(30));
            assert_eq!(holders(&history), 0, "{strike:?} at {call}");
            assert!(ended(&history, Status::Failed).is_empty(), "{strike:?} at {call}");
        }
    }
}

#[test]
fn a_launch_whose_calls_are_slow_is_not_taken_for_one_of_a_burst() {
    let mut history = bounded(1);
    let slow = Duration::from_secs(4);
    history.state().latency = Span { least: slow, most: slow };
    history.post(&small());
    holds(&mut history, within(30));
    assert_eq!(history.world.metric("LaunchDelayed"), 0.0);
}

#[test]
fn the_place_of_a_runner_whose_every_cleanup_failed_is_freed_by_who_waits_for_it() {
    let mut history = bounded(1);
    history.post(&small());
    history.run_for(seconds(1));
    let name = names(&history.world)[0].clone();
    history.end_execution(&name, Status::Aborted);
    history.state().plan = Plan::next("Ledger.runner", 3, Strike::CutBefore);
    history.run_for(minutes(4));
    assert_eq!((history.dead_letters, holders(&history)), (1, 1));
    let second = history.post(&lasting(minutes(1)));
    history.run_for(minutes(40));
    assert!(history.world.metric("SlotFreed") >= 1.0);
    let state = history.state();
    let served = state.github.all_jobs().find(|job| job.id == second).unwrap();
    assert_eq!(served.conclusion.as_deref(), Some("success"));
}

#[test]
fn a_launch_that_finds_no_capacity_keeps_no_place_from_the_others() {
    let mut history = bounded(1);
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    history.post(&small());
    history.run_for(minutes(2));
    assert_eq!(holders(&history), 0);
    history.state().ec2.restore_capacity();
    holds(&mut history, within(30));
}

#[test]
fn a_bound_that_is_lowered_or_taken_away_holds_from_then_on() {
    let mut history = bounded(3);
    for _ in 0..6 {
        history.post(&lasting(minutes(10)));
    }
    history.run_for(minutes(2));
    assert_eq!(live(&history), 3);
    let mut lower = tier("small", &["small"]);
    lower["max_runners"] = json!(1);
    history.world.tiers(&[lower]);
    history.run_for(minutes(18));
    assert!(live(&history) <= 1, "{}", live(&history));
    history.world.tiers(&[tier("small", &["small"])]);
    holds(&mut history, within(60));
    assert_eq!(holders(&history), 0, "those that had a place gave it back");
}

#[test]
fn ra_02_a_burst_registers_no_faster_than_github_lets_an_app() {
    let mut history = Simulation::new(1);
    for _ in 0..300 {
        history.post(&lasting(minutes(3)));
    }
    holds(&mut history, within(15));
    let at: Vec<_> = {
        let state = history.state();
        let registrations = state.calls.iter().filter(|call| call.name == "Forge.register");
        registrations.map(|call| call.at).collect()
    };
    assert!(at.len() >= 300);
    // 5 points each, of 900 a minute.
    let most = at
        .iter()
        .map(|from| at.iter().filter(|it| **it >= *from && it.since(*from) < minutes(1)).count());
    assert!(most.clone().max().unwrap() <= 180, "{:?}", most.max());
    assert_eq!(history.world.metric_by("RegistrationRefused", "RateLimit"), 0.0);
    assert!(history.world.metric_by("LaunchDelayed", "Pace") > 0.0);
}

#[test]
fn without_the_ledger_a_launch_goes_on_at_its_own_pace() {
    let mut history = Simulation::new(1);
    history.state().plan = Plan::next("Gate.reserve", 1, Strike::Before);
    history.post(&small());
    holds(&mut history, Allowance::NONE);
    assert!(history.state().plan.is_over());
}

#[test]
fn jobs_above_the_bound_start_as_places_come_free() {
    let mut history = bounded(1);
    for _ in 0..4 {
        history.post(&lasting(minutes(2)));
    }
    assert!(history.run_to_rest(hours(2)));
    let mut started: Vec<_> =
        history.state().github.all_jobs().map(|job| job.started_at.unwrap()).collect();
    started.sort();
    for two in started.windows(2) {
        // The job, its machine's end and the next one's boot, and a wait of five minutes at most.
        assert!(two[1].since(two[0]) <= minutes(9), "{started:?}");
    }
}

#[test]
fn a_place_that_waits_for_its_moment_is_nobody_elses() {
    let mut history = bounded(1);
    // A burst has taken all places of registrations for the next seven minutes.
    {
        let mut state = history.state();
        let free = state.now + minutes(7);
        for place in 0..170 {
            state.ledger.pace.insert(format!("4242/{place}"), free);
        }
    }
    let first = history.post(&small());
    history.run_for(minutes(6));
    history.post(&small());
    history.run_for(seconds(50));
    assert_eq!(history.world.metric("SlotFreed"), 0.0);
    history.run_for(seconds(30));
    let name = history.world.base_name(REPOSITORY, first);
    assert!(history.instance_of(&name).is_some(), "it is bought for at its moment");
    holds(&mut history, within(60));
    assert_eq!(holders(&history), 0);
}

#[test]
fn those_who_wait_for_a_place_ask_ec2_together_not_each() {
    let mut history = bounded(1);
    for _ in 0..60 {
        history.post(&lasting(minutes(90)));
    }
    history.run_for(minutes(60));
    let asked = history.world.count("", "Fleet.in_tier");
    assert!((10..=125).contains(&asked), "once in half a minute: {asked}");
}
