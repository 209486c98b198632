//! The reconciler: deliveries that failed, jobs that lost their runner unnoticed, jobs whose event never came.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{
    conclusion, holds, hours, lasting, minutes, names, runners, seconds, small, two_reconcilers,
};
use ostler_core::job::Repository;
use ostler_core::ports::{Clock, Executions, Ledger};
use ostler_core::reconciler::{ActiveRepository, FailedDelivery, Reconciled, reconcile};
use ostler_sim::ec2::LaunchFault;
use ostler_sim::github::{
    ApiError, Fault as GitHubFault, FaultRule, JobSpec, RateLimits, Status as JobStatus, endpoint,
};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Status, Strike, World, tier};
use serde_json::json;

fn within(longest: u64) -> Allowance {
    Allowance { longest_wait: minutes(longest), ..Allowance::NONE }
}

/// A history with a reconciler, and nobody else who sends deliveries again.
fn begun(seed: u64) -> Simulation {
    let mut history = Simulation::new(seed);
    history.reconciles = true;
    history.redelivery = None;
    history
}

/// The same, with a repository that was active before.
fn active() -> Simulation {
    let mut history = begun(1);
    history.post(&small());
    history.run_for(minutes(4));
    history
}

fn lose_queued(history: &mut Simulation) {
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![],
        _ => vec![seconds(1)],
    });
}

/// The executions of jobs that were just posted are aborted, and nothing comes of their cleanups: so the jobs lose their
/// runners, and nobody but the reconciler can tell.
fn lose_runners(history: &mut Simulation, jobs: &[(&str, u64)]) {
    history.run_for(seconds(1));
    // Of each cleanup all three tries.
    history.state().plan = Plan::next("Ledger.runner", 3 * jobs.len(), Strike::CutBefore);
    for (repository, job) in jobs {
        let name = history.world.base_name(repository, *job);
        history.end_execution(&name, Status::Aborted);
    }
    history.run_for(minutes(5));
    assert!(history.state().plan.is_over());
}

/// Jobs that are due to be looked at and whose runners wait, as the ledger and Step Functions know them.
fn open_jobs(world: &World, count: i64) {
    for id in 1..=count {
        let at = Repository { owner: "acme".into(), name: "widgets".into(), installation: None };
        let input = serde_json::from_value(json!({"owner": at.owner, "repo": at.name, "jobId": id,
            "jobLabels": "small", "labels": "self-hosted,linux,x64,small", "provider": "small",
            "maxIdleSeconds": 300, "queuedAt": world.now().to_string()}))
        .unwrap();
        let name = world.base_name(REPOSITORY, id.unsigned_abs());
        world.run("t", Executions::start(world, &name, &input)).unwrap().unwrap();
        let (due, expires) = (world.now(), world.now() + hours(24));
        world.run("t", world.record_job(&name, &input, due, expires)).unwrap().unwrap();
    }
}

/// Repositories that are due to be asked for waiting jobs.
fn due_repositories(world: &World, count: usize) {
    for index in 0..count {
        let at =
            Repository { owner: "acme".into(), name: format!("r{index:03}"), installation: None };
        let mut state = world.state();
        state.github.add_repository(&at.to_string(), true);
        let record = ActiveRepository::new(at);
        let (due, expires) = (state.now, state.now + hours(24));
        let item = ostler_sim::world::RepositoryItem { record, due, expires };
        state.ledger.repositories.insert(item.record.at.to_string(), item);
    }
}

fn run(world: &World) -> Reconciled {
    let settings = world.current_settings();
    world.run("reconciler", reconcile(world, &settings, || true)).unwrap().unwrap()
}

#[test]
fn do_10_a_delivery_that_failed_is_sent_again_until_it_arrives() {
    let mut history = begun(1);
    // StartExecution is throttled three times over, so the delivery is answered 503.
    history.state().plan = Plan::next("Executions.start", 1, Strike::Before);
    let job = history.post(&small());
    history.run_for(minutes(4));
    assert_eq!((runners(&history), history.answers[0].status), (0, 503));
    holds(&mut history, within(8));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    assert_eq!(history.world.metric("DeliveryRedelivered"), 1.0);
    assert!(history.state().ledger.failures.is_empty(), "it is settled once it has arrived");
}

#[test]
fn a_delivery_that_fails_again_is_sent_again_after_an_hour_and_given_up_after_three() {
    let mut history = begun(1);
    history.world.configure("control/webhook-secret", "");
    let job = history.post(&small());
    history.run_for(hours(5));
    let sent: Vec<_> = {
        let state = history.state();
        state.deliveries.entries.iter().map(|(line, _)| (line.at, line.again)).collect()
    };
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert!(sent[1..].windows(2).all(|two| two[1].0.since(two[0].0) >= hours(1)), "{sent:?}");
    assert_eq!(history.world.metric("DeliveryGivenUp"), 1.0);
    assert_eq!(conclusion(&history, job), None);
}

#[test]
fn do_16_two_runs_at_a_time_send_a_delivery_once() {
    for second in 0..40 {
        let mut history = begun(1);
        history.state().plan = Plan::next("Executions.start", 1, Strike::Before);
        history.post(&small());
        history.run_for(seconds(30));
        history.reconciles = false;
        let world = history.world.clone();
        two_reconcilers(&world, second);
        let again = world.count("", "Deliveries.redeliver");
        assert_eq!(again, 1, "after {second} calls");
    }
}

#[test]
fn a_run_that_is_killed_anywhere_loses_no_delivery() {
    for strike in Strike::ALL {
        for call in 1..24 {
            let mut history = begun(1);
            history.state().plan = Plan::next("Executions.start", 1, Strike::Before);
            let job = history.post(&small());
            history.run_for(seconds(290));
            history.state().plan = Plan::call(call, strike);
            holds(&mut history, within(100));
            assert_eq!(
                conclusion(&history, job).as_deref(),
                Some("success"),
                "{strike:?} at {call}"
            );
        }
    }
}

#[test]
fn the_position_moves_only_when_all_failures_before_it_are_noted() {
    let history = {
        let mut history = begun(1);
        history.state().plan = Plan::next("Executions.start", 1, Strike::Before);
        history.post(&small());
        history.run_for(seconds(5));
        history.reconciles = false;
        history.run_for(minutes(6));
        history
    };
    let world = &history.world;
    let settings = world.current_settings();
    world.state().plan = Plan::next("FailedDeliveries.note", 1, Strike::Before);
    let failed = world.run("reconciler", reconcile(world, &settings, || true)).unwrap();
    assert!(failed.is_err());
    assert_eq!(world.state().ledger.position, None);
    assert_eq!(run(world).redelivered, 1);
    assert!(world.state().ledger.position.is_some_and(|position| position > 1 << 53));
}

#[test]
fn a_page_of_the_log_that_fails_costs_nothing_of_those_before_it() {
    let mut history = begun(1);
    history.reconciles = false;
    for _ in 0..40 {
        history.post(&small());
    }
    history.run_for(minutes(10));
    history.state().plan = Plan::next("Executions.start", 1, Strike::Before);
    history.post(&small());
    history.run_for(seconds(5));
    history.state().github.add_fault(FaultRule {
        method: "GET".into(),
        template: endpoint::DELIVERIES.into(),
        skip: 1,
        times: 1,
        fault: GitHubFault::Refuse(ApiError::new(502, "Bad gateway")),
    });
    let world = &history.world;
    let settings = world.current_settings();
    let failed = world.run("reconciler", reconcile(world, &settings, || true)).unwrap();
    assert!(failed.is_err());
    assert_eq!(world.metric("DeliveryRedelivered"), 1.0);
    assert_eq!(world.state().ledger.position, None);
}

#[test]
fn do_11_a_job_whose_event_never_came_gets_its_runner() {
    let mut history = active();
    lose_queued(&mut history);
    let job = history.post(&small());
    holds(&mut history, within(12));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    let base = history.world.base_name(REPOSITORY, job);
    assert!(names(&history.world).contains(&base), "under its base name");
    assert_eq!(history.world.metric("JobDiscovered"), 1.0);
}

#[test]
fn f12_the_late_event_of_a_job_that_was_found_starts_nothing_more() {
    let mut history = active();
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![minutes(11)],
        _ => vec![seconds(1)],
    });
    history.post(&lasting(minutes(20)));
    holds(&mut history, within(12));
    assert_eq!((runners(&history), history.world.metric("JobDiscovered")), (2, 1.0));
}

#[test]
fn the_second_stage_of_a_run_is_found_although_the_run_has_begun() {
    let mut history = active();
    let first = history.post(&lasting(minutes(30)));
    history.run_for(minutes(6));
    lose_queued(&mut history);
    let run = {
        let state = history.state();
        state.github.all_jobs().find(|job| job.id == first).unwrap().run_id
    };
    let second = history.post(&JobSpec { run_id: Some(run), ..small() });
    holds(&mut history, within(25));
    assert_eq!(conclusion(&history, second).as_deref(), Some("success"));
}

#[test]
fn jobs_that_are_not_ours_or_wait_for_an_approval_are_left_alone() {
    let mut history = active();
    lose_queued(&mut history);
    history.post(&JobSpec::new(REPOSITORY, &["self-hosted", "gpu"]));
    let held = history.post(&small());
    history.at_github(|github, _| github.hold(held, JobStatus::Waiting));
    history.run_for(minutes(40));
    assert_eq!((runners(&history), history.world.metric("JobDiscovered")), (1, 0.0));
}

#[test]
fn a_repository_that_turned_public_or_was_taken_off_the_list_is_not_served() {
    for public in [true, false] {
        let mut history = active();
        lose_queued(&mut history);
        if public {
            history.state().github.repository_mut(REPOSITORY).unwrap().private = false;
        } else {
            let app = serde_json::json!({"app_id": 4242, "repositories": {"allow": ["other/*"]}});
            history.world.configure("control/app", app.to_string());
        }
        history.post(&small());
        history.run_for(minutes(40));
        assert_eq!(runners(&history), 1, "public: {public}");
    }
}

#[test]
fn a_job_that_lost_its_runner_unnoticed_gets_another() {
    // The execution is aborted, and all three tries of its cleanup come to nothing.
    let mut history = begun(1);
    let job = history.post(&small());
    history.run_for(seconds(1));
    let name = history.world.base_name(REPOSITORY, job);
    history.end_execution(&name, Status::Aborted);
    history.state().plan = Plan::next("Forge.", 3, Strike::Before).and(Plan::next(
        "Ledger.runner",
        3,
        Strike::CutBefore,
    ));
    history.run_for(minutes(30));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn ol_08_ol_30_a_job_whose_replacements_are_used_up_gets_a_generation_an_hour() {
    let mut history = begun(1);
    history.state().ec2.plan_launches([const { LaunchFault::Dead }; 9]);
    let job = history.post(&small());
    history.run_for(hours(10));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    let base = history.world.base_name(REPOSITORY, job);
    assert!(names(&history.world).contains(&format!("{base}-q2")), "{:?}", names(&history.world));
}

#[test]
fn what_is_closed_is_not_looked_at_again() {
    let mut history = begun(1);
    let (served, cancelled) = (history.post(&small()), history.post(&small()));
    history.run_for(seconds(2));
    history.cancel(cancelled);
    holds(&mut history, Allowance::NONE);
    history.run_for(minutes(30));
    let asked = history.world.count("reconciler", "Forge.job");
    history.run_for(hours(3));
    assert_eq!(history.world.count("reconciler", "Forge.job"), asked);
    assert!(history.state().ledger.open.is_empty());
    assert_eq!(conclusion(&history, served).as_deref(), Some("success"));
}

#[test]
fn a_job_that_goes_well_costs_the_reconciler_no_look_up_at_github() {
    let mut history = begun(1);
    history.post(&lasting(minutes(40)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.world.count("reconciler", "Forge.job"), 0);
}

#[test]
fn ra_18_a_run_has_a_number_of_calls_and_the_next_one_goes_on() {
    let history = Simulation::new(1);
    let world = &history.world;
    due_repositories(world, 150);
    let calls = |world: &World| world.count("reconciler", "WaitingRuns");
    for turn in 1..=6 {
        assert_eq!(run(world).repositories, 25, "four calls each");
        assert_eq!(calls(world), 100 * turn);
        world.pass(minutes(5));
    }
    // While nothing changes that costs no calls, and then it is the number of repositories that has its bound.
    assert_eq!(run(world).repositories, 100);
    let state = world.state();
    assert!(state.ledger.repositories.values().all(|item| item.record.listed_at.is_some()));
}

#[test]
fn a_limit_of_githubs_is_no_failure() {
    let mut history = active();
    lose_queued(&mut history);
    let job = history.post(&small());
    let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
    limit.headers.push(("retry-after".into(), "120".into()));
    history.state().github.add_fault(FaultRule {
        method: "GET".into(),
        template: endpoint::RUNS.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Refuse(limit),
    });
    holds(&mut history, within(20));
    assert_eq!(history.world.metric("ReconcilerLimited"), 1.0);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn a_limit_of_one_owners_keeps_no_other_owners_job_waiting() {
    let mut history = begun(1);
    history.state().github.add_repository("other/repo", true);
    history.state().github.options_mut().rate_limits = Some(RateLimits::default());
    // Neither machine ever comes up: a machine that does would run its job whatever becomes of its execution.
    history.state().ec2.plan_launches([const { LaunchFault::Dead }; 2]);
    let theirs = history.post(&JobSpec::new("other/repo", &["self-hosted", "small"]));
    let ours = history.post(&small());
    lose_runners(&mut history, &[("other/repo", theirs), (REPOSITORY, ours)]);
    {
        let now = history.now();
        let mut state = history.state();
        let installation = state.github.owner_installation("other").unwrap();
        state.github.exhaust(now, installation, "core");
    }
    history.run_for(minutes(25));
    assert!(history.world.metric("ReconcilerLimited") > 0.0);
    assert_eq!(conclusion(&history, theirs), None, "its owner's limit lasts an hour");
    assert_eq!(conclusion(&history, ours).as_deref(), Some("success"));
    history.run_for(minutes(60));
    assert_eq!(conclusion(&history, theirs).as_deref(), Some("success"));
}

#[test]
fn do_11_the_oldest_of_many_waiting_runs_is_found_too() {
    let mut history = active();
    let mut bounded = tier("small", &["small"]);
    bounded["max_runners"] = json!(2);
    history.world.tiers(&[bounded]);
    lose_queued(&mut history);
    let job = history.post(&small());
    history.run_for(seconds(5));
    history.courier = Box::new(|_, _| vec![seconds(1)]);
    for _ in 0..120 {
        history.post(&lasting(minutes(300)));
    }
    let base = history.world.base_name(REPOSITORY, job);
    history.run_for(minutes(40));
    assert!(names(&history.world).contains(&base));
}

#[test]
fn a_repository_where_the_app_was_uninstalled_spoils_only_itself() {
    let mut history = active();
    {
        let mut state = history.state();
        state.github.add_repository("other/repo", true);
    }
    history.post(&JobSpec::new("other/repo", &["self-hosted", "small"]));
    history.run_for(minutes(6));
    history.state().github.uninstall("other");
    lose_queued(&mut history);
    let job = history.post(&small());
    history.run_for(minutes(20));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn nothing_begins_without_time_for_it() {
    let mut history = active();
    lose_queued(&mut history);
    history.post(&small());
    history.run_for(Duration::from_secs(290));
    history.reconciles = false;
    let world = &history.world;
    let settings = world.current_settings();
    let before = world.count("", "Deliveries") + world.count("", "WaitingRuns");
    let done = world.run("reconciler", reconcile(world, &settings, || false)).unwrap().unwrap();
    assert!(done.left > 0);
    assert_eq!(world.count("", "Deliveries") + world.count("", "WaitingRuns"), before);
}

#[test]
fn a_slow_part_leaves_time_to_the_others() {
    for slow in ["Deliveries", "OpenJobs", "Discovery"] {
        let history = Simulation::new(1);
        let world = &history.world;
        let many = |part: &str| if part == slow { 90 } else { 1 };
        open_jobs(world, many("OpenJobs"));
        due_repositories(world, usize::try_from(many("Discovery")).unwrap());
        for delivery in 1..=many("Deliveries") {
            let (guid, id) = (format!("g-{delivery}"), delivery.unsigned_abs());
            let failure =
                FailedDelivery { guid: guid.clone(), id, failed_at: world.now(), due: world.now() };
            world.state().ledger.failures.insert(guid, failure);
        }
        world.state().latency = ostler_sim::ec2::Span { least: seconds(1), most: seconds(1) };
        let until = world.now() + minutes(1);
        let settings = world.current_settings();
        let may_begin = || world.now() < until;
        let done =
            world.run("reconciler", reconcile(world, &settings, may_begin)).unwrap().unwrap();
        assert!(
            done.given_up > 0 && done.looked_at > 0 && done.repositories > 0,
            "{slow}: {done:?}"
        );
        assert!(world.metric_by("ReconcilerLeft", slow) > 0.0, "{slow}");
        assert!(world.now() < until + seconds(30), "{slow}: it ends when its time is over");
    }
}

#[test]
fn open_jobs_ask_step_functions_a_number_of_times_a_run_and_the_next_run_goes_on() {
    let history = Simulation::new(1);
    let world = &history.world;
    open_jobs(world, 400);
    let mut asked = 0;
    for turn in 0..3 {
        run(world);
        let so_far = world.count("reconciler", "Executions.describe");
        assert!(so_far - asked <= 150, "turn {turn}: {}", so_far - asked);
        asked = so_far;
        world.pass(minutes(1));
    }
    assert_eq!(asked, 400, "each of them once");
    assert!(world.metric_by("ReconcilerLeft", "OpenJobs") > 0.0);
}

#[test]
fn an_open_job_where_the_app_was_uninstalled_fails_no_run_and_waits_a_day_for_it() {
    for again in [true, false] {
        let mut history = begun(1);
        history.state().github.add_repository("other/repo", true);
        history.state().ec2.plan_launches([LaunchFault::Dead]);
        let job = history.post(&JobSpec::new("other/repo", &["self-hosted", "small"]));
        lose_runners(&mut history, &[("other/repo", job)]);
        history.state().github.uninstall("other");
        history.run_for(minutes(10));
        let count = |history: &Simulation| {
            let asked = history.world.count("reconciler", "Forge.job");
            (history.world.metric("ReconcilerCompleted"), asked)
        };
        let (completed, asked) = count(&history);
        history.run_for(hours(3));
        assert_eq!(count(&history).0, completed + 36.0, "no run fails by it");
        assert!((1..=3).contains(&(count(&history).1 - asked)));
        if again {
            history.state().github.reinstall("other").unwrap();
            history.run_for(minutes(80));
            assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
        } else {
            history.run_for(hours(22));
        }
        assert!(history.state().ledger.open.is_empty(), "installed again: {again}");
    }
}

#[test]
fn i6_an_open_job_stays_open_where_it_is_not_sure_that_the_app_was_uninstalled() {
    // GitHub refuses the look-up, as it does while the App is suspended: the App is installed, or that can't be told.
    for lost in [false, true] {
        let mut history = begun(1);
        history.state().ec2.plan_launches([LaunchFault::Dead]);
        let job = history.post(&small());
        lose_runners(&mut history, &[(REPOSITORY, job)]);
        let refuse = |method: &str, template: &str, error| {
            history.state().github.add_fault(FaultRule {
                method: method.into(),
                template: template.into(),
                skip: 0,
                times: 4,
                fault: GitHubFault::Refuse(error),
            });
        };
        refuse("GET", endpoint::JOB, ApiError::new(403, "This installation has been suspended"));
        if lost {
            refuse("GET", endpoint::REPO_INSTALLATION, ApiError::new(502, "Bad gateway"));
        }
        history.run_for(minutes(15));
        assert_eq!(conclusion(&history, job), None);
        assert_eq!(history.state().ledger.open.len(), 1, "answers lost: {lost}");
        history.run_for(minutes(60));
        assert_eq!(conclusion(&history, job).as_deref(), Some("success"), "answers lost: {lost}");
    }
}

#[test]
fn a_job_beside_one_that_waits_at_a_gate_is_found() {
    for gate in [JobStatus::Waiting, JobStatus::Pending] {
        let mut history = active();
        history.state().github.options_mut().runs_show_their_last_job = true;
        lose_queued(&mut history);
        let held = history.post(&small());
        history.at_github(|github, _| github.hold(held, gate));
        let run = {
            let state = history.state();
            state.github.all_jobs().find(|job| job.id == held).unwrap().run_id
        };
        let beside = history.post(&JobSpec { run_id: Some(run), ..small() });
        history.run_for(minutes(20));
        assert_eq!(conclusion(&history, beside).as_deref(), Some("success"), "{gate:?}");
        assert_eq!((runners(&history), history.world.metric("JobDiscovered")), (2, 1.0));
    }
}
