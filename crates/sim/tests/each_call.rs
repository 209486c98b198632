//! Each step run twice, and failed at each call in each way, leaves nothing behind and no job waiting.
//!
//! A scenario is played once undisturbed, to count its port calls and invocations; then once for each call
//! and kind of fault, and once for each invocation with its answer lost (so that it is made again).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{hours, lasting, minutes, only_tier, seconds, small, story, strange, verdict};
use ostler_sim::ec2::{Fault, LaunchRule, PoolMatch};
use ostler_sim::github::{ApiError, Fault as GitHubFault, FaultRule, endpoint};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::{Plan, REPOSITORY, Status, Strike};

/// One fault may cost a runner, and the time in which it is noticed.
const AFTER_A_FAULT: Allowance = Allowance { surplus: 1, longest_wait: minutes(60) };

/// Calls that change nothing: whether they fail before or after makes no difference.
const READS: [&str; 11] = [
    "Configuration",
    "Ledger.job",
    "Ledger.runner",
    "Ledger.blocked",
    "Executions.describe",
    "Forge.job",
    "Forge.runner",
    "Forge.deployment_waits",
    "Fleet.of_runner",
    "Fleet.instance",
    "Handoff.lies",
];

fn strikes(call: &str) -> &'static [Strike] {
    match READS.iter().any(|read| call.starts_with(read)) {
        true => &[Strike::Before, Strike::CutBefore],
        false => &Strike::ALL,
    }
}

fn every_fault(scenario: fn() -> Simulation, undisturbed: Allowance) {
    let mut clean = scenario();
    let found = verdict(&mut clean, undisturbed);
    assert!(found.is_empty(), "undisturbed: {found:#?}\n{}", story(&clean));
    let invocations = clean.invocations;
    let allowance = Allowance {
        surplus: undisturbed.surplus + AFTER_A_FAULT.surplus,
        longest_wait: undisturbed.longest_wait + AFTER_A_FAULT.longest_wait,
    };
    let mut failures = Vec::new();
    let mut play = |what: String, mut history: Simulation| {
        let found = verdict(&mut history, allowance);
        if !found.is_empty() {
            failures.push(format!("{what}: {found:#?}\n{}", story(&history)));
        }
    };
    let names: Vec<_> = clean.state().calls.iter().map(|call| call.name).collect();
    for (number, name) in (1..).zip(&names) {
        for &strike in strikes(name) {
            let history = scenario();
            history.state().plan = Plan::call(number, strike);
            play(format!("call {number} ({name}) {strike:?}"), history);
        }
    }
    for number in 1..=invocations {
        let mut history = scenario();
        history.lost_answers = vec![number];
        play(format!("invocation {number} made twice"), history);
    }
    let count = failures.len();
    failures.truncate(2);
    assert!(names.len() > 10, "the scenario makes {} calls", names.len());
    assert!(failures.is_empty(), "{count} histories: {}", failures.join("\n\n"));
}

fn happy() -> Simulation {
    let mut history = Simulation::new(1);
    history.post(&small());
    history
}

#[test]
fn a_job_that_goes_well() {
    every_fault(happy, Allowance::NONE);
}

fn short_of_capacity() -> Simulation {
    let mut history = Simulation::new(2);
    only_tier(&history, serde_json::json!({"market": "spot-then-on-demand"}));
    history.state().ec2.add_rule(LaunchRule {
        pools: PoolMatch::default(),
        subnet: None,
        fault: Fault::new("InsufficientInstanceCapacity", "none"),
        times: Some(4),
    });
    history.post(&small());
    history
}

#[test]
fn a_launch_that_backs_off_for_want_of_capacity() {
    every_fault(short_of_capacity, Allowance { longest_wait: minutes(15), ..Allowance::NONE });
}

fn told_later() -> Simulation {
    let mut history = Simulation::new(3);
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Refuse(ApiError {
            headers: vec![("retry-after".into(), "120".into())],
            ..ApiError::new(403, "You have exceeded a secondary rate limit.")
        }),
    });
    history.post(&small());
    history
}

#[test]
fn a_registration_that_github_puts_off() {
    every_fault(told_later, Allowance { longest_wait: minutes(15), ..Allowance::NONE });
}

/// A job that nothing of ours was started for takes the runner, for hours.
fn stolen() -> Simulation {
    let mut history = Simulation::new(40);
    strange(&mut history, hours(2));
    history.post(&small());
    history
}

#[test]
fn a_runner_that_is_stolen() {
    // Which of the two jobs gets the runner is chance: by the seed it is the strange one.
    let mut history = stolen();
    history.run_for(minutes(2));
    assert!(
        history
            .state()
            .github
            .all_jobs()
            .all(|job| { (job.repository == REPOSITORY) == job.started_at.is_none() })
    );
    every_fault(stolen, Allowance { longest_wait: minutes(15), ..Allowance::NONE });
}

/// The job is cancelled while its runner boots, and the word of it is lost: the runner ends as idle.
fn idle() -> Simulation {
    let mut history = Simulation::new(5);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("completed") => vec![],
        _ => vec![seconds(1)],
    });
    let job = history.post(&small());
    history.after(seconds(2), move |history| history.cancel(job));
    history
}

#[test]
fn a_runner_that_ends_as_idle() {
    every_fault(idle, Allowance::NONE);
}

fn died_at_boot() -> Simulation {
    let mut history = Simulation::new(6);
    history.fates = [Fate::Dies(seconds(1))].into();
    history.post(&small());
    history
}

#[test]
fn a_machine_that_dies_before_it_has_a_job() {
    every_fault(died_at_boot, Allowance { longest_wait: minutes(15), ..Allowance::NONE });
}

/// Three jobs of one kind; their runners are given to each other's jobs.
fn shuffled() -> Simulation {
    let mut history = Simulation::new(7);
    for length in [1, 20, 40] {
        history.post(&lasting(minutes(length)));
    }
    history
}

#[test]
fn runners_that_are_shuffled() {
    every_fault(shuffled, Allowance::NONE);
}

fn aborted() -> Simulation {
    let mut history = Simulation::new(8);
    let job = history.post(&lasting(minutes(20)));
    history.after(minutes(3), move |history| {
        let name = history.world.base_name(REPOSITORY, job);
        history.end_execution(&name, Status::Aborted);
    });
    history
}

#[test]
fn an_execution_that_someone_aborts_in_the_middle_of_a_job() {
    every_fault(aborted, Allowance::NONE);
}

fn stolen_and_aborted() -> Simulation {
    let mut history = stolen();
    history.after(seconds(100), move |history| {
        let name = history.state().executions.keys().next().cloned().unwrap_or_default();
        history.end_execution(&name, Status::Aborted);
    });
    history
}

#[test]
fn an_execution_that_someone_aborts_while_its_runner_is_stolen() {
    every_fault(stolen_and_aborted, Allowance { longest_wait: minutes(15), ..Allowance::NONE });
}
