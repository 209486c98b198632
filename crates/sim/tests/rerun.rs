//! Jobs that lose their machine are run again: on demand, once their run allows it, and twice at most.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{
    conclusion, holds, hours, interrupt, lasting, minutes, names, only_tier, seconds, small,
    two_reconcilers,
};
use ostler_sim::ec2::{LaunchFault, Market};
use ostler_sim::github::{ApiError, Fault as GitHubFault, FaultRule, Job, JobSpec, Turn, endpoint};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Strike};
use serde_json::{Value, json};

/// On spot machines, with events of instances and a reconciler; the tier with that changed.
fn begun(changed: Value) -> Simulation {
    let mut history = Simulation::new(1);
    history.hears_instances = true;
    history.reconciles = true;
    let mut keys = json!({"market": "spot-then-on-demand"});
    keys.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    only_tier(&history, keys);
    history
}

/// A job of a quarter of an hour that was interrupted in its second minute.
fn interrupted() -> (Simulation, u64) {
    let mut history = begun(json!({}));
    let job = history.post(&lasting(minutes(15)));
    history.run_for(minutes(2));
    take(&mut history, job);
    (history, job)
}

/// The same, once GitHub has failed it. The reconciler has not looked since.
fn failed() -> (Simulation, u64) {
    let (mut history, job) = interrupted();
    history.reconciles = false;
    while conclusion(&history, job).is_none() {
        history.run_for(seconds(30));
    }
    (history, job)
}

/// EC2 takes the machine of a job's first runner back.
fn take(history: &mut Simulation, job: u64) {
    let name = history.world.base_name(REPOSITORY, job);
    interrupt(history, &name);
}

fn job(history: &Simulation, id: u64) -> Job {
    history.state().github.all_jobs().find(|job| job.id == id).unwrap().clone()
}

/// The jobs of later attempts.
fn again(history: &Simulation) -> Vec<Job> {
    history.state().github.all_jobs().filter(|job| job.attempt > 1).cloned().collect()
}

/// How often GitHub was asked for another attempt, for a job and for a run.
fn asked(history: &Simulation) -> [u64; 2] {
    let state = history.state();
    let count = |template| state.github.calls().get(&format!("POST {template}")).copied();
    [endpoint::JOB_RERUN, endpoint::RUN_RERUN_FAILED].map(|it| count(it).unwrap_or_default())
}

fn market(history: &Simulation, job: u64) -> Market {
    let name = history.world.base_name(REPOSITORY, job);
    let id = history.instance_of(&name).unwrap();
    history.state().ec2.instance(&id).unwrap().pool.market
}

fn skipped(history: &Simulation, reason: &str) -> f64 {
    history.world.metric_by("RerunSkipped", reason)
}

/// Goes on to the end, and asserts that there was no attempt but the first.
#[track_caller]
fn is_not_run_again(history: &mut Simulation) {
    history.reconciles = true;
    holds(history, Allowance::NONE);
    assert_eq!(again(history).len(), 0);
    assert_eq!((asked(history), history.world.metric("Rerun")), ([0, 0], 0.0));
}

/// Goes on to the end, and asserts that there was one more attempt, and that it went well.
#[track_caller]
fn is_run_again_once(history: &mut Simulation, case: &str) {
    history.reconciles = true;
    holds(history, Allowance::NONE);
    let again = again(history);
    let ends: Vec<_> = again.iter().map(|it| (it.attempt, it.conclusion.as_deref())).collect();
    assert_eq!(ends, [(2, Some("success"))], "{case}");
    assert_eq!(market(history, again[0].id), Market::OnDemand, "{case}");
}

#[test]
fn sp_01_a_job_whose_machine_is_taken_back_is_run_again_on_demand() {
    let (mut history, job) = interrupted();
    is_run_again_once(&mut history, "");
    assert_eq!(conclusion(&history, job).as_deref(), Some("failure"));
    assert_eq!(market(&history, job), Market::Spot);
    assert_eq!(history.world.metric_by("JobInterrupted", "small"), 1.0);
    assert_eq!(history.world.metric_by("Rerun", "small"), 1.0);
    assert_eq!((asked(&history), names(&history.world).len()), ([1, 0], 2));
    // A look at the run in each period, one at its jobs, and the asking.
    let calls: Vec<String> = {
        let state = history.state();
        let its = ["Reruns.", "WaitingRuns.jobs"];
        let its = |name: &str| its.iter().any(|it| name.starts_with(it));
        state.calls.iter().map(|call| call.name.to_owned()).filter(|name| its(name)).collect()
    };
    let looks = calls.iter().filter(|name| *name == "Reruns.run").count();
    assert!((1..=4).contains(&looks), "{calls:?}");
}

#[test]
fn sp_01_an_end_of_which_nobody_was_warned_is_found_by_its_reason() {
    let mut history = begun(json!({}));
    let job = history.post(&lasting(minutes(15)));
    history.run_for(minutes(2));
    history.hears_instances = false;
    take(&mut history, job);
    history.run_for(seconds(30));
    history.hears_instances = true;
    is_run_again_once(&mut history, "");
    assert_eq!(history.world.metric("SpotInterrupted"), 0.0);
}

#[test]
fn sp_11_a_machine_that_is_taken_before_its_job_has_begun_is_replaced_and_nothing_run_again() {
    let mut history = begun(json!({}));
    history.state().ec2.plan_launches([LaunchFault::Slow(seconds(90))]);
    let job = history.post(&small());
    history.run_for(seconds(10));
    take(&mut history, job);
    is_not_run_again(&mut history);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    assert_eq!(history.world.metric("JobInterrupted"), 0.0);
}

#[test]
fn a_job_that_ends_well_before_its_machine_does_is_not_run_again() {
    let mut history = begun(json!({}));
    let job = history.post(&lasting(minutes(3)));
    history.run_for(minutes(2));
    take(&mut history, job);
    is_not_run_again(&mut history);
    assert_eq!(skipped(&history, "Succeeded"), 1.0);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn sp_11_a_job_that_a_person_cancelled_is_not_run_again() {
    let (mut history, job) = interrupted();
    history.run_for(minutes(3));
    history.cancel(job);
    is_not_run_again(&mut history);
    assert_eq!(conclusion(&history, job).as_deref(), Some("cancelled"));
    assert_eq!(skipped(&history, "Cancelled"), 1.0);
}

#[test]
fn a_tier_may_do_without() {
    let mut history = begun(json!({"rerun_interrupted": false}));
    let job = history.post(&lasting(minutes(15)));
    history.run_for(minutes(2));
    take(&mut history, job);
    is_not_run_again(&mut history);
    assert_eq!(conclusion(&history, job).as_deref(), Some("failure"));
    assert!(history.state().ledger.lost.is_empty());
}

#[test]
fn a_job_of_a_run_that_nobody_knows_is_not_run_again() {
    let mut history = begun(json!({}));
    let job = history.post(&lasting(minutes(15)));
    history.run_for(minutes(2));
    let name = history.world.base_name(REPOSITORY, job);
    history.state().executions.get_mut(&name).unwrap().input["jobUrl"] = "".into();
    take(&mut history, job);
    is_not_run_again(&mut history);
    assert!(skipped(&history, "RunUnknown") > 0.0);
}

#[test]
fn a_job_is_run_again_twice_at_most() {
    let mut history = begun(json!({"market": "spot"}));
    let mut latest = history.post(&lasting(minutes(15)));
    for attempt in 2..=4 {
        history.run_for(minutes(2));
        take(&mut history, latest);
        for _ in 0..40 {
            history.run_for(minutes(1));
            if let Some(next) = again(&history).into_iter().find(|job| job.attempt == attempt) {
                latest = next.id;
                break;
            }
        }
    }
    holds(&mut history, Allowance::NONE);
    let attempts: Vec<u32> = again(&history).iter().map(|job| job.attempt).collect();
    assert_eq!((attempts, asked(&history)), (vec![2, 3], [2, 0]));
    assert_eq!(skipped(&history, "Attempts"), 1.0);
    assert_eq!(conclusion(&history, latest).as_deref(), Some("failure"));
}

#[test]
fn a_job_that_somebody_else_has_run_again_is_settled() {
    let (mut history, job) = failed();
    let run = self::job(&history, job).run_id;
    history.at_github(|github, now| github.rerun_failed(now, REPOSITORY, run)).unwrap();
    history.reconciles = true;
    holds(&mut history, Allowance::NONE);
    let again = again(&history);
    assert_eq!((again.len(), again[0].conclusion.as_deref()), (1, Some("success")));
    assert_eq!((asked(&history), skipped(&history, "MovedOn")), ([0, 0], 1.0));
}

#[test]
fn a_lost_answer_is_no_reason_to_ask_again() {
    for strike in [Strike::After, Strike::Before, Strike::CutAfter] {
        let (mut history, _) = failed();
        history.state().plan = Plan::next("Reruns.rerun", 1, strike);
        is_run_again_once(&mut history, &format!("{strike:?}"));
        assert_eq!(asked(&history)[0], 1, "{strike:?}");
        assert_eq!(history.world.metric("Rerun"), 1.0, "{strike:?}");
    }
}

#[test]
fn functions_that_are_killed_at_any_call_run_a_job_again_once() {
    for strike in Strike::ALL {
        for call in 1..16 {
            let (mut history, _) = failed();
            history.state().plan = Plan::call(call, strike);
            is_run_again_once(&mut history, &format!("reconciler, {strike:?} at {call}"));
        }
        for call in 1..10 {
            let mut history = begun(json!({}));
            let job = history.post(&lasting(minutes(15)));
            history.run_for(minutes(2));
            history.state().plan = Plan::call(call, strike);
            take(&mut history, job);
            is_run_again_once(&mut history, &format!("instance-events, {strike:?} at {call}"));
        }
    }
}

#[test]
fn two_reconcilers_at_a_time_run_a_job_again_once() {
    for second in 0..24 {
        let (mut history, _) = failed();
        history.run_for(minutes(5));
        let world = history.world.clone();
        two_reconcilers(&world, second);
        assert_eq!(world.count("", "Reruns.rerun"), 1, "after {second} calls");
    }
}

fn refuse(history: &mut Simulation, error: ApiError) {
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::JOB_RERUN.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Refuse(error),
    });
}

#[test]
fn ra_10_without_the_permission_it_ends_with_a_clear_error_and_costs_nothing_else() {
    let (mut history, _) = failed();
    refuse(&mut history, ApiError::new(403, "Resource not accessible by integration"));
    let other = history.post(&small());
    history.reconciles = true;
    let before = history.world.metric("ReconcilerCompleted");
    holds(&mut history, Allowance::NONE);
    assert_eq!(skipped(&history, "NotAllowed"), 1.0);
    assert_eq!(history.world.metric("ConfigurationError"), 1.0, "which asks for an operator");
    assert!(history.world.metric("ReconcilerCompleted") > before, "the run went well");
    assert!(history.state().ledger.interrupted.is_empty(), "it is not tried again");
    assert_eq!(
        (again(&history).len(), conclusion(&history, other).as_deref()),
        (0, Some("success"))
    );
}

#[test]
fn a_limit_of_githubs_is_waited_for_and_a_run_that_is_too_old_is_not() {
    let (mut history, _) = failed();
    let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
    limit.headers.push(("retry-after".into(), "120".into()));
    refuse(&mut history, limit);
    is_run_again_once(&mut history, "");
    assert_eq!(history.world.metric("ReconcilerLimited"), 1.0);

    let (mut history, _) = failed();
    refuse(&mut history, ApiError::new(403, "This workflow run cannot be retried"));
    history.reconciles = true;
    holds(&mut history, Allowance::NONE);
    assert_eq!((again(&history).len(), skipped(&history, "Refused")), (0, 1.0));
}

/// A job that GitHub's own runners work at for so long, in the run of another.
fn beside(history: &mut Simulation, other: u64, duration: std::time::Duration) {
    let run_id = Some(job(history, other).run_id);
    let hosted = JobSpec::new(REPOSITORY, &["ubuntu-latest"]);
    history.post(&JobSpec { run_id, duration, hosted: true, ..hosted });
}

#[test]
fn a_job_is_run_again_only_once_its_whole_run_is_over() {
    let (mut history, job) = interrupted();
    beside(&mut history, job, hours(5));
    history.run_for(hours(5));
    assert_eq!((again(&history).len(), asked(&history)), (0, [0, 0]), "GitHub would refuse");
    let looks = history.world.count("reconciler", "Reruns.run");
    assert!(
        (20..=32).contains(&looks),
        "every five minutes in the first hour, then every fifteen: {looks}"
    );
    is_run_again_once(&mut history, "");
    assert_eq!(asked(&history), [1, 0], "and not what went well");
}

#[test]
fn a_run_that_goes_on_for_a_day_is_given_up() {
    let (mut history, job) = interrupted();
    beside(&mut history, job, hours(26));
    is_not_run_again(&mut history);
    assert_eq!(skipped(&history, "TooLate"), 1.0);
}

#[test]
fn several_jobs_of_a_run_that_lose_their_machines_are_run_again_together() {
    let mut history = begun(json!({}));
    let spec = lasting(minutes(15));
    let jobs = history.at_github(|github, now| github.post_matrix(now, &spec, 3)).unwrap();
    history.run_for(minutes(2));
    take(&mut history, jobs[0]);
    history.run_for(minutes(1));
    take(&mut history, jobs[2]);
    holds(&mut history, Allowance::NONE);
    let again = again(&history);
    let ends: Vec<_> =
        again.iter().map(|it| (it.name.as_str(), it.conclusion.as_deref())).collect();
    assert_eq!(ends, [("build (1)", Some("success")), ("build (3)", Some("success"))]);
    assert!(again.iter().all(|job| market(&history, job.id) == Market::OnDemand));
    // One by one, GitHub would refuse the second: "Only jobs from the current attempt can be re-run".
    assert_eq!((asked(&history), history.world.metric("Rerun")), ([0, 1], 2.0));
}

#[test]
fn the_others_of_its_matrix_that_github_cancels_for_a_job_are_run_again_with_it() {
    let mut history = begun(json!({}));
    let spec = lasting(minutes(40));
    let jobs = history.at_github(|github, now| github.post_matrix(now, &spec, 2)).unwrap();
    history.run_for(minutes(2));
    take(&mut history, jobs[0]);
    while conclusion(&history, jobs[0]).is_none() {
        history.run_for(seconds(10));
    }
    // "fail-fast", which is on unless a workflow says otherwise.
    history.cancel(jobs[1]);
    holds(&mut history, Allowance::NONE);
    let again = again(&history);
    assert_eq!((again.len(), asked(&history)), (2, [0, 1]));
    assert!(again.iter().all(|job| job.conclusion.as_deref() == Some("success")));
}

#[test]
fn a_job_that_runs_on_anothers_runner_is_run_again_by_its_own_tier() {
    let mut history = begun(json!({}));
    history.judges_reports = true;
    let first = history.post(&lasting(minutes(15)));
    history.at_github(|github, _| github.set_turn(first, Turn::Later));
    let thief = history.post(&lasting(minutes(15)));
    history.at_github(|github, _| github.set_turn(thief, Turn::First));
    // The thief's own runner does not come up before the other one.
    history.run_for(minutes(4));
    let name = history
        .machines
        .values()
        .find(|machine| machine.job == Some(thief))
        .map(|it| it.runner.clone());
    interrupt(&mut history, &name.unwrap());
    history.at_github(|github, _| github.set_turn(first, Turn::Chance));
    holds(&mut history, Allowance { longest_wait: minutes(10), ..Allowance::NONE });
    let again = again(&history);
    assert_eq!((again.len(), again[0].conclusion.as_deref()), (1, Some("success")));
    assert_eq!(again[0].run_id, job(&history, thief).run_id);
    assert_eq!(market(&history, again[0].id), Market::OnDemand);
}
