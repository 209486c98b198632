//! `completed` events: a job that was cancelled before it ran stops its launch, or ends the runner that was
//! started for it; no other event of that kind changes anything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{holds, lasting, minutes, names, seconds, small};
use ostler_sim::ec2::LaunchFault;
use ostler_sim::github::{JobSpec, Status as JobStatus};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Status, Strike};

const STRANGE: &str = "acme/strange";

/// How long the machines of a history lived, in seconds.
fn lives(history: &Simulation) -> Vec<u64> {
    let state = history.state();
    let begun = |id: &str| state.ec2.instance(id).map(|instance| instance.launched);
    let machines = history.machines.iter();
    machines.map(|(id, it)| it.off.unwrap().since(begun(id).unwrap()).as_secs()).collect()
}

fn cancelled_after(wait: Duration) -> (Simulation, u64) {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::Slow(seconds(40))]);
    let job = history.post(&small());
    history.run_for(wait);
    history.cancel(job);
    (history, job)
}

#[test]
fn a_job_cancelled_while_its_machine_boots_ends_the_runner_within_a_minute() {
    let (mut history, _) = cancelled_after(seconds(5));
    assert_eq!(history.state().github.registrations().len(), 1, "it is registered, and boots");
    history.run_for(seconds(5));
    assert_eq!(history.state().github.registrations().len(), 0, "deregistered first");
    assert_eq!(history.world.metric("CancelledRunnerEnded"), 1.0);
    holds(&mut history, Allowance::NONE);
    assert_eq!(names(&history.world).len(), 1, "nothing is started in its place");
    assert!(lives(&history).iter().all(|life| *life < 60), "{:?}", lives(&history));
}

#[test]
fn a_job_cancelled_between_launch_and_registration_registers_nothing() {
    let mut history = Simulation::new(1);
    let job = history.post(&small());
    history.state().plan = Plan::next("Forge.register", 3, Strike::Before);
    history.run_for(seconds(2));
    history.cancel(job);
    holds(&mut history, Allowance::NONE);
    let state = history.state();
    let execution = state.executions.values().next().unwrap();
    assert_eq!((execution.reason(), execution.status), (Some("cancelled"), Status::Succeeded));
    assert!(history.machines.values().all(|machine| machine.listened.is_none()));
}

#[test]
fn bf_02_a_runner_that_is_connected_is_left_to_its_checks_which_look_twice() {
    let mut history = Simulation::new(1);
    let job = history.post(&small());
    // It connects, and gets nothing, because the job is held meanwhile.
    history.at_github(|github, _| github.hold(job, JobStatus::Waiting));
    history.run_for(seconds(58));
    assert!(history.state().github.registrations().iter().all(|entry| entry.online));
    history.cancel(job);
    history.run_for(seconds(2));
    assert_eq!(history.state().github.registrations().len(), 1, "one reading proves nothing");
    assert_eq!(history.world.count("webhook", "Forge.remove_runner"), 0);
    holds(&mut history, Allowance::NONE);
    assert!(lives(&history).iter().all(|life| *life < 240), "{:?}", lives(&history));
}

#[test]
fn i4_a_runner_that_another_job_has_taken_is_left_alone() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().busy_lag = seconds(60);
    history.state().github.add_repository(STRANGE, true).installed = false;
    let job = history.post(&small());
    history.at_github(|github, _| github.hold(job, JobStatus::Waiting));
    let thief =
        JobSpec { duration: minutes(20), ..JobSpec::new(STRANGE, &["self-hosted", "small"]) };
    let thief = history.post(&thief);
    history.run_for(seconds(70));
    history.cancel(job);
    holds(&mut history, Allowance { surplus: 1, ..Allowance::NONE });
    let state = history.state();
    let served = state.github.all_jobs().find(|job| job.id == thief).unwrap();
    assert_eq!(served.conclusion.as_deref(), Some("success"));
}

#[test]
fn the_runner_that_waits_in_a_cancelled_jobs_place_is_the_one_that_ends() {
    let mut history = Simulation::new(1);
    history.judges_reports = true;
    // The second job is given to the first one's runner, whose own job then counts on the second's.
    let first = history.post(&small());
    history.at_github(|github, _| github.hold(first, JobStatus::Waiting));
    let second = history.post(&lasting(minutes(10)));
    history.state().ec2.plan_launches([]);
    history.run_for(minutes(3));
    let own = history.world.base_name(REPOSITORY, second);
    let ran_by = {
        let state = history.state();
        let job = state.github.all_jobs().find(|job| job.id == second).unwrap();
        job.runner.as_ref().unwrap().name.clone()
    };
    history.cancel(first);
    holds(&mut history, Allowance::NONE);
    let machines = history.machines.values();
    let idle: Vec<_> = machines.filter(|it| it.job.is_none()).map(|it| it.runner.clone()).collect();
    assert_eq!(idle.len(), 1);
    assert!(idle[0] != ran_by, "{ran_by} ran {own}'s job, and {idle:?} ended");
}

#[test]
fn do_05_the_completed_events_that_a_re_run_sends_again_change_nothing() {
    let mut history = Simulation::new(1);
    let jobs = history.at_github(|github, now| github.post_matrix(now, &lasting(minutes(5)), 6));
    let jobs = jobs.unwrap();
    history.run_for(minutes(3));
    history.cancel(jobs[0]);
    history.run_for(minutes(20));
    let before = names(&history.world).len();
    // As at GitHub: one job is queued anew, and the old ones' `completed` come once more, all at once.
    let anew = history.at_github(|github, now| {
        let run = github.all_jobs().find(|job| job.id == jobs[0]).unwrap().run_id;
        github.rerun_failed(now, REPOSITORY, run).unwrap()
    });
    history.run_for(seconds(5));
    let told =
        history.answers.iter().filter(|it| it.action.as_deref() == Some("completed")).count();
    assert_eq!((anew.len(), told), (1, 11));
    holds(&mut history, Allowance::NONE);
    assert_eq!(names(&history.world).len(), before + 1);
    let state = history.state();
    let served = state.github.all_jobs().find(|job| job.id == anew[0]).unwrap();
    assert_eq!(served.conclusion.as_deref(), Some("success"), "the new job got its runner");
    drop(state);
    assert_eq!(history.world.metric("JobCancelled"), 0.0);
}

#[test]
fn the_completed_event_of_an_unknown_job_starts_and_ends_nothing() {
    let mut history = Simulation::new(1);
    let running = history.post(&lasting(minutes(5)));
    history.run_for(minutes(2));
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![],
        _ => vec![seconds(1)],
    });
    let unknown =
        history.post(&JobSpec { labels: vec!["self-hosted".into(), "small".into()], ..small() });
    history.cancel(unknown);
    history.run_for(seconds(5));
    let calls = |name| history.world.count("webhook", name);
    assert_eq!(
        (calls("Forge.remove_runner"), calls("Executions")),
        (0, 1),
        "the first job's start"
    );
    history.cancelled.clear();
    holds(&mut history, Allowance::NONE);
    let state = history.state();
    let job = state.github.all_jobs().find(|job| job.id == running).unwrap();
    assert_eq!(job.conclusion.as_deref(), Some("success"));
}
