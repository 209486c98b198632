//! Random histories, and what they have found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{hours, lasting, minutes, small, story, verdict};
use ostler_sim::campaign::{Campaign, Profile, Scenario, play, shrink};
use ostler_sim::ec2::Span;
use ostler_sim::github::JobSpec;
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, Strike};

/// Histories of each profile in one run of the tests; `make sim` plays more.
const HISTORIES: u64 = 12;

fn hold(profile: Profile) {
    let campaign = Campaign { seed: 1, jobs: 6, profile: Some(profile), threads: 1 };
    let (tally, broken) = campaign.run(|played| played >= HISTORIES);
    assert!(broken.is_none(), "make sim replays it: {broken:#?}");
    assert_eq!((tally.played(), tally.jobs), (HISTORIES, 6 * HISTORIES));
}

#[test]
fn what_must_hold_holds_while_webhooks_are_late_lost_and_repeated() {
    hold(Profile::Deliveries);
}

#[test]
fn what_must_hold_holds_while_machines_are_lost() {
    hold(Profile::Machines);
}

#[test]
fn what_must_hold_holds_while_calls_fail_and_functions_are_killed_or_invoked_twice() {
    hold(Profile::Calls);
}

#[test]
fn what_must_hold_holds_while_runners_are_stolen() {
    hold(Profile::Thefts);
}

#[test]
fn what_must_hold_holds_while_executions_are_aborted() {
    hold(Profile::Aborts);
}

#[test]
fn what_must_hold_holds_while_services_are_out() {
    hold(Profile::Weather);
}

#[test]
fn what_must_hold_holds_with_all_of_that_at_once() {
    hold(Profile::All);
}

/// Histories that broke something once. What they are made of changes with the way in which they are drawn, so each that
/// taught something has a scene of its own too.
#[test]
fn what_once_broke_something_holds() {
    for (seed, jobs) in [(2261, 20), (4081, 20), (100_723, 20), (701_518, 20)] {
        let scenario = Scenario::draw(seed, jobs, Profile::All);
        let played = play(&scenario);
        let found = &played.violations;
        assert!(found.is_empty(), "{seed}: {found:#?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let scenario = Scenario::draw(11, 6, Profile::All);
    assert_eq!(story(&play(&scenario).history), story(&play(&scenario).history));
}

#[test]
fn what_breaks_something_is_made_small() {
    // Two runners are started for two jobs at least.
    let scenario = Scenario::draw(3, 6, Profile::Machines);
    let smallest = shrink(&scenario, |played| played.history.state().executions.len() > 1);
    assert_eq!(smallest.ids().len(), 2, "{:?}", smallest.parts);
}

/// Found by seed 895: Register, invoked twice, registered the runner anew, and what was remembered was the first
/// registration's id; of that GitHub knew nothing any more, so the machine was ended in the middle of a job.
#[test]
fn i4_a_function_that_is_invoked_twice_harms_no_job() {
    for number in 1..=14 {
        for seed in 1..=4 {
            let mut history = Simulation::new(seed);
            {
                let mut state = history.state();
                state.github.add_repository("acme/strange", true).installed = false;
                state.latency =
                    Span { least: Duration::from_millis(20), most: Duration::from_millis(400) };
            }
            history.judges_reports = true;
            history.repeated = vec![number];
            let thief = JobSpec::new("acme/strange", &["self-hosted", "small"]);
            history.post(&JobSpec { duration: hours(2), ..thief });
            history.post(&lasting(minutes(5)));
            history.post(&small());
            let allowed = Allowance { surplus: 1, longest_wait: minutes(60) };
            let found = verdict(&mut history, allowed);
            assert!(found.is_empty(), "{number}, {seed}: {found:#?}\n{}", story(&history));
        }
    }
}

/// Found by seeds 5723 and 4965: Register, invoked twice, registered the runner anew, and ended before it noted that; what
/// was remembered was the first registration's id, of which GitHub knew nothing any more.
#[test]
fn i5_what_a_function_that_is_invoked_twice_registers_is_not_left_behind() {
    let strikes = [
        ("Forge.register", Strike::After),
        ("Forge.register", Strike::CutAfter),
        ("Ledger.record_registration", Strike::Before),
        ("Ledger.record_registration", Strike::CutBefore),
    ];
    let mut struck = 0;
    for (port, strike) in strikes {
        for (number, seed) in (1..=3).flat_map(|number| (1..=12).map(move |seed| (number, seed))) {
            let mut history = Simulation::new(seed);
            {
                let mut state = history.state();
                state.latency =
                    Span { least: Duration::from_millis(20), most: Duration::from_millis(400) };
                state.plan = Plan::nth(port, number, strike);
            }
            // The webhook is the first, then come Launch and Register.
            history.repeated = vec![3];
            history.post(&small());
            let allowed = Allowance { surplus: 1, longest_wait: minutes(60) };
            let found = verdict(&mut history, allowed);
            assert!(found.is_empty(), "{port} {number}, {seed}: {found:#?}\n{}", story(&history));
            struck += usize::from(history.state().plan.is_over());
        }
    }
    assert!(struck > 40, "{struck}: many of them strike");
}
