//! Runners that are given other jobs than their own: shuffles among jobs of ours start nothing, thefts start
//! one each, and a burst costs GitHub little.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{holds, hours, lasting, minutes, names, runners, seconds, small, strange};
use ostler_core::job::RunnerInput;
use ostler_core::ports::Executions;
use ostler_sim::ec2::{self, LaunchFault, PoolMatch, Rate, Throttle};
use ostler_sim::github::{JobSpec, Status as JobStatus};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{REPOSITORY, tier};

fn within(longest: u64) -> Allowance {
    Allowance { longest_wait: minutes(longest), ..Allowance::NONE }
}

fn done(history: &Simulation) -> usize {
    let state = history.state();
    state.github.all_jobs().filter(|job| job.conclusion.as_deref() == Some("success")).count()
}

fn github_calls(history: &Simulation) -> u64 {
    history.state().github.calls().values().sum()
}

/// EC2 as it is on an ordinary day, without limits.
fn ordinary(history: &Simulation) {
    let options = ec2::Options { throttle: None, ..ec2::Options::default() };
    *history.state().ec2.options() = options;
}

#[test]
fn st_02_a_cancelled_jobs_runner_does_not_shift_the_others_for_ever() {
    let mut history = Simulation::new(2);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("completed") => vec![],
        _ => vec![seconds(1)],
    });
    let job = history.post(&small());
    history.run_for(seconds(2));
    history.cancel(job);
    for _ in 0..6 {
        history.post(&lasting(minutes(3)));
        history.run_for(minutes(4));
    }
    holds(&mut history, Allowance::NONE);
    assert_eq!((runners(&history), done(&history)), (7, 6), "no replacement: all were accepted");
}

#[test]
fn st_03_a_launch_whose_job_another_runner_took_goes_ahead_for_the_job_that_waits() {
    let mut history = Simulation::new(1);
    // A's launch is held up; B's runner comes up and, being alone, takes A.
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    let a = history.post(&lasting(minutes(30)));
    history.run_for(seconds(3));
    history.state().ec2.restore_capacity();
    let b = history.post(&lasting(minutes(30)));
    history.at_github(|github, _| github.hold(b, JobStatus::Pending));
    history.run_for(seconds(10));
    history.at_github(|github, _| github.hold(b, JobStatus::Queued));
    holds(&mut history, within(10));
    let state = history.state();
    let ran = |job: u64| {
        let found = state.github.all_jobs().find(|found| found.id == job).unwrap();
        found.runner.as_ref().unwrap().name.clone()
    };
    assert_eq!(ran(a), history.world.base_name(REPOSITORY, b));
    assert_eq!(ran(b), history.world.base_name(REPOSITORY, a));
    assert_eq!(state.executions.len(), 2);
}

#[test]
fn st_05_st_07_st_10_runners_are_given_any_job_and_all_finish_without_replacement() {
    for seed in 0..5 {
        for judged in [false, true] {
            let mut history = Simulation::new(seed);
            ordinary(&history);
            history.judges_reports = judged;
            history.state().github.add_repository("acme/gadgets", true);
            history.state().github.add_repository("acme/gizmos", true);
            let repositories = ["acme/widgets", "acme/gadgets", "acme/gizmos"];
            for (index, repository) in (0..12).zip(repositories.into_iter().cycle()) {
                let spec = JobSpec::new(repository, &["self-hosted", "small"]);
                history.post(&JobSpec { duration: minutes(1 + 4 * index), ..spec });
                history.run_for(seconds(7 * index % 20));
            }
            holds(&mut history, Allowance::NONE);
            assert_eq!((runners(&history), done(&history)), (12, 12), "seed {seed}");
        }
    }
}

#[test]
fn st_06_a_launch_that_failed_is_made_up_for_though_another_runner_took_its_job() {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::Dead]);
    history.post(&lasting(minutes(20)));
    history.run_for(minutes(1));
    history.post(&lasting(minutes(20)));
    holds(&mut history, within(10));
    assert_eq!((runners(&history), done(&history)), (3, 2), "exactly one replacement");
}

#[test]
fn st_13_a_warm_runner_is_not_stolen_and_nobody_replaces_it() {
    let mut history = Simulation::new(1);
    for (name, job) in [("warm-small-0123456789abcdef", -1), ("warm-small-fedcba9876543210", 0)] {
        let input: RunnerInput = serde_json::from_value(serde_json::json!({
            "owner": "acme", "repo": "widgets", "jobId": job, "provider": "small",
            "labels": "self-hosted,linux,x64,small", "maxIdleSeconds": 1800,
        }))
        .unwrap();
        let world = history.world.clone();
        let started = world.run("test", Executions::start(&world, name, &input));
        assert!(started.unwrap().is_ok());
    }
    history.run_for(minutes(2));
    let jobs = [history.post(&lasting(minutes(20))), history.post(&lasting(minutes(20)))];
    // Both runners wait; the jobs' own come up for nothing, and end as idle.
    holds(&mut history, Allowance { surplus: 2, ..Allowance::NONE });
    assert_eq!(runners(&history), 4);
    for job in jobs {
        let name = history.world.base_name(REPOSITORY, job);
        assert!(names(&history.world).contains(&name));
    }
    assert_eq!(history.world.metric("ReplacementStarted"), 0.0);
    assert!(
        !history.state().ledger.jobs.keys().any(|id| id.0 <= 0),
        "and none is recorded as a job"
    );
}

#[test]
fn st_15_a_job_that_runs_before_its_queued_event_arrives_is_no_thief() {
    for late in [seconds(2), seconds(100), seconds(200)] {
        let mut history = Simulation::new(1);
        history.judges_reports = true;
        let mut first = true;
        history.courier = Box::new(move |event, _| {
            let queued = event.action.as_deref() == Some("queued");
            vec![if queued && !std::mem::take(&mut first) { late } else { seconds(1) }]
        });
        let own = history.post(&lasting(minutes(20)));
        history.at_github(|github, _| github.hold(own, JobStatus::Pending));
        history.run_for(seconds(2));
        history.post(&lasting(minutes(20)));
        history.run_for(seconds(10));
        history.at_github(|github, _| github.hold(own, JobStatus::Queued));
        holds(&mut history, within(15));
        assert_eq!((runners(&history), done(&history)), (2, 2), "{late:?}");
    }
}

#[test]
fn st_16_what_is_known_of_a_job_outlives_its_queue() {
    let mut history = Simulation::new(1);
    let job = history.post(&small());
    history.run_for(seconds(5));
    let state = history.state();
    let id = ostler_core::job::JobId(i64::try_from(job).unwrap());
    let (_, expires) = &state.ledger.jobs[&id];
    assert!(expires.since(state.now) > hours(72), "24 h in the queue, cancelled up to 48 h later");
}

#[test]
fn a_theft_starts_one_and_the_waiting_job_runs_on_it() {
    for judged in [false, true] {
        let mut history = Simulation::new(40);
        history.judges_reports = judged;
        strange(&mut history, hours(3));
        let job = history.post(&small());
        holds(&mut history, within(6));
        let name = history.world.base_name(REPOSITORY, job);
        assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")], "{judged}");
    }
}

#[test]
fn a_theft_by_a_job_that_we_see_and_refuse_is_made_up_for_at_once() {
    let mut history = Simulation::new(40);
    history.judges_reports = true;
    history.state().github.add_repository("acme/open", false);
    let thief = JobSpec::new("acme/open", &["self-hosted", "small"]);
    history.post(&JobSpec { duration: hours(3), ..thief });
    let job = history.post(&small());
    // Four minutes: until then the thief's own event may be on its way.
    holds(&mut history, within(8));
    let name = history.world.base_name(REPOSITORY, job);
    assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")]);
}

#[test]
fn a_shuffled_burst_costs_github_little_more_than_a_burst() {
    let jobs = 60;
    let mut history = Simulation::new(1);
    ordinary(&history);
    history.judges_reports = true;
    for _ in 0..jobs {
        history.post(&lasting(minutes(5)));
    }
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), jobs);
    let calls = github_calls(&history);
    assert!(calls <= 6 * jobs as u64, "{calls} calls for {jobs} jobs");
}

#[test]
fn a_burst_that_is_launched_slowly_is_one_long_chain_and_comes_to_an_end() {
    let jobs = 100;
    let mut history = Simulation::new(1);
    ordinary(&history);
    history.judges_reports = true;
    history.state().ec2.options().throttle =
        Some(Throttle { launch: Rate { burst: 10.0, per_second: 0.05 }, ..Throttle::default() });
    for _ in 0..jobs {
        history.post(&lasting(minutes(10)));
    }
    holds(&mut history, within(90));
    assert_eq!((runners(&history), done(&history)), (jobs, jobs));
    let calls = github_calls(&history);
    assert!(calls <= 10 * jobs as u64, "{calls} calls for {jobs} jobs");
}

#[test]
fn a_large_runner_that_took_a_small_job_is_made_up_for() {
    let mut history = Simulation::new(1);
    history.judges_reports = true;
    history.world.tiers(&[tier("small", &["small"]), tier("large", &["small", "large"])]);
    // The large job's runner comes up while only the small one can be given to it.
    let large = history.post(&JobSpec::new(REPOSITORY, &["self-hosted", "large"]));
    history.at_github(|github, _| github.hold(large, JobStatus::Pending));
    history.run_for(seconds(3));
    history.state().ec2.limit_capacity(PoolMatch::default(), 1);
    history.post(&lasting(minutes(30)));
    history.run_for(seconds(20));
    history.at_github(|github, _| github.hold(large, JobStatus::Queued));
    history.state().ec2.restore_capacity();
    holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(4) });
    assert_eq!(done(&history), 2);
}
