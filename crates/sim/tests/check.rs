//! A runner's life after its launch: flags that lie, registrations and machines that go, clean-up that is
//! refused.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{
    conclusion, ended, holds, hours, lasting, minutes, names, only_tier, runners, seconds, small,
    story, strange, verdict,
};
use ostler_core::config::Settings;
use ostler_core::runner::{self, StepEvent};
use ostler_sim::ec2::{LaunchFault, PoolMatch, Span};
use ostler_sim::github::{
    ApiError, Fault as GitHubFault, FaultRule, JobSpec, Scope, Status as JobStatus, Visibility,
    endpoint,
};
use ostler_sim::invariants::{Allowance, violations};
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::{ORGANIZATION, Plan, REPOSITORY, Status, Strike, tier};
use serde_json::json;

fn within(longest: u64) -> Allowance {
    Allowance { longest_wait: minutes(longest), ..Allowance::NONE }
}

fn name_of(history: &Simulation, job: u64) -> String {
    history.world.base_name(REPOSITORY, job)
}

/// The registration's id of a runner, while it is there.
fn registration(history: &Simulation, runner: &str) -> Option<u64> {
    let entries = history.state().github.registrations();
    entries.iter().find(|entry| entry.name == runner).map(|entry| entry.id)
}

fn reason(history: &Simulation, runner: &str) -> Option<String> {
    history.state().executions[runner].reason().map(str::to_owned)
}

fn live(history: &Simulation) -> usize {
    let state = history.state();
    state.ec2.instances().filter(|it| !it.state(state.now).is_over()).count()
}

/// GitHub answers so to the next removals.
fn removal_fails(history: &Simulation, times: u32, status: u16) {
    history.state().github.add_fault(FaultRule {
        method: "DELETE".into(),
        template: endpoint::ORG_RUNNER.into(),
        skip: 0,
        times,
        fault: GitHubFault::Refuse(ApiError::new(status, "no")),
    });
}

/// Our tier's group is closed to the repository: its runners listen and get nothing.
fn closed_group() -> Simulation {
    let history = Simulation::new(1);
    let nobody = Visibility::Selected([].into());
    history.state().github.add_group(ORGANIZATION, "closed", nobody, true).unwrap();
    only_tier(&history, json!({"runner_group": "closed"}));
    history
}

fn open_group(history: &Simulation) {
    let tier = tier("small", &["small"]);
    history.world.tiers(&[tier]);
}

/// A runner that nobody needs: its job was cancelled, and we were not told.
fn idle() -> (Simulation, String) {
    let mut history = Simulation::new(1);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("completed") => vec![],
        _ => vec![seconds(1)],
    });
    let job = history.post(&small());
    history.run_for(seconds(2));
    history.cancel(job);
    let name = name_of(&history, job);
    (history, name)
}

#[test]
fn rr_01_a_runner_that_loses_its_job_when_it_fetches_it_is_replaced() {
    let mut history = Simulation::new(1);
    history.state().github.lose_acquires(1);
    let job = history.post(&small());
    holds(&mut history, Allowance { surplus: 1, ..Allowance::NONE });
    let name = name_of(&history, job);
    assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")]);
    assert_eq!(reason(&history, &name).as_deref(), Some("unregistered"));
}

#[test]
fn rr_02_rr_04_a_runner_that_listens_and_hangs_is_ended_and_replaced() {
    let mut history = Simulation::new(1);
    // It hangs right after it has connected, before it asks for work a second time.
    history.fates = [Fate::Freezes(seconds(4))].into();
    let job = history.post(&small());
    history.at_github(|github, _| github.hold(job, JobStatus::Pending));
    history.run_for(minutes(2));
    let at_rest = history.at_github(|github, now| {
        github.hold(job, JobStatus::Queued);
        github.tick(now);
        github.registrations().len()
    });
    assert_eq!(at_rest, 1);
    holds(&mut history, within(30));
    let name = name_of(&history, job);
    assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")]);
    assert_eq!(history.world.metric_by("InstanceEnded", "idle"), 1.0);
}

#[test]
fn rr_04_a_runner_that_gets_nothing_is_replaced_once_the_outage_is_over() {
    let mut history = closed_group();
    history.post(&small());
    history.after(minutes(5), |history| open_group(history));
    holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(20) });
    assert_eq!(runners(&history), 2);
}

#[test]
fn st_11_a_group_that_does_not_admit_the_repository_costs_a_bounded_number_of_runners() {
    let mut history = closed_group();
    let job = history.post(&small());
    let found = verdict(&mut history, Allowance { surplus: 4, ..Allowance::NONE });
    assert!(found.iter().all(|violation| violation.starts_with("I2")), "{found:?}");
    assert_eq!(runners(&history), 4, "the cap ends it");
    assert_eq!(history.world.metric("NotAssigned"), 4.0);
    assert_eq!(conclusion(&history, job), None, "the job is left to GitHub");
}

#[test]
fn rr_06_an_unused_registration_that_github_removes_is_no_success() {
    for life in [120, 361] {
        let mut history = closed_group();
        history.state().github.options_mut().unused_registration_life = Some(seconds(life));
        let job = history.post(&small());
        history.after(minutes(1), |history| open_group(history));
        holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(20) });
        assert_eq!(runners(&history), 2, "{life}");
        assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    }
}

#[test]
fn rr_12_bf_10_a_removal_is_read_by_its_status() {
    for (status, times) in [(500, 3), (502, 3), (401, 1), (403, 1), (429, 1)] {
        let (mut history, name) = idle();
        removal_fails(&history, times, status);
        holds(&mut history, Allowance::NONE);
        assert_eq!(registration(&history, &name), None, "{status}");
        assert_eq!(ended(&history, Status::Succeeded), [name], "{status}");
    }
}

#[test]
fn rr_12_a_registration_that_is_gone_already_is_fine() {
    let (mut history, name) = idle();
    history.run_for(seconds(30));
    let id = registration(&history, &name).unwrap();
    // Right before the clean-up: the machine dies, and its registration goes.
    history.after(minutes(1), move |history| {
        let instance = history.instance_of(&name).unwrap();
        history.power_off(&instance);
        history.at_github(|github, _| github.drop_registration(id));
    });
    holds(&mut history, Allowance::NONE);
}

#[test]
fn rr_14_sp_07_a_replacement_has_a_machine_and_a_registration_of_its_own() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::Dies(seconds(3))].into();
    history.post(&small());
    holds(&mut history, within(10));
    let state = history.state();
    assert_eq!((state.secrets.len(), history.machines.len()), (2, 2));
    assert_ne!(state.secrets[0], state.secrets[1]);
}

#[test]
fn rr_14_a_registration_serves_one_machine_only() {
    let mut history = Simulation::new(1);
    history.post(&lasting(minutes(10)));
    history.run_for(minutes(2));
    let secret = history.state().secrets[0].clone();
    let second = history.at_github(|github, now| github.connect(now, &secret));
    assert_eq!(second.unwrap_err().status, 409);
    assert_eq!(history.state().handoff.len(), 0, "and nothing can be claimed a second time");
    holds(&mut history, Allowance::NONE);
}

#[test]
fn a_job_whose_machine_dies_is_lost_and_nothing_is_started_for_it() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::DiesAtWork(minutes(2))].into();
    let job = history.post(&lasting(minutes(10)));
    holds(&mut history, Allowance::NONE);
    assert_eq!((runners(&history), conclusion(&history, job).as_deref()), (1, Some("failure")));
}

#[test]
fn ra_08_a_limit_is_waited_for_as_long_as_github_said() {
    let mut history = Simulation::new(1);
    for _ in 0..20 {
        history.post(&lasting(hours(1)));
    }
    history.run_for(minutes(2));
    history.at_github(|github, _| github.clear_faults());
    let limited = ApiError {
        headers: vec![("retry-after".into(), "600".into())],
        ..ApiError::new(403, "You have exceeded a secondary rate limit.")
    };
    for template in [endpoint::JOB, endpoint::ORG_RUNNER, endpoint::ORG_RUNNERS] {
        history.state().github.add_fault(FaultRule {
            method: "GET".into(),
            template: template.into(),
            skip: 0,
            times: 1_000,
            fault: GitHubFault::Refuse(limited.clone()),
        });
    }
    let before = history.world.count("check", "Forge");
    history.run_for(minutes(10));
    let asked = history.world.count("check", "Forge") - before;
    assert!((1..=25).contains(&asked), "{asked} questions of 20 runners in the ten minutes");
    history.state().github.clear_faults();
    holds(&mut history, Allowance::NONE);
}

#[test]
fn sp_01_a_spot_machine_that_is_taken_back_is_counted_and_leaves_no_registration() {
    let mut history = Simulation::new(1);
    let mut spot = tier("small", &["small"]);
    spot["market"] = json!("spot");
    history.world.tiers(&[spot]);
    let job = history.post(&lasting(minutes(30)));
    let name = name_of(&history, job);
    history.run_for(minutes(5));
    let id = history.instance_of(&name).unwrap();
    let now = history.now();
    assert!(history.state().ec2.interrupt(now, &id));
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.world.metric_by("SpotReclaimed", "small"), 1.0);
    assert_eq!((registration(&history, &name), runners(&history)), (None, 1));
    assert!(conclusion(&history, job).is_some_and(|it| it != "success"));
}

#[test]
fn sp_11_neither_a_cancelled_job_nor_one_whose_machine_was_reclaimed_is_run_again() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::Healthy, Fate::DiesAtWork(minutes(1))].into();
    let (cancelled, reclaimed) =
        (history.post(&lasting(hours(1))), history.post(&lasting(hours(1))));
    history.run_for(minutes(5));
    history.cancel(cancelled);
    holds(&mut history, Allowance::NONE);
    for job in [cancelled, reclaimed] {
        assert!(conclusion(&history, job).is_some_and(|it| it != "success"));
    }
    assert_eq!((runners(&history), history.state().github.all_jobs().count()), (2, 2));
}

#[test]
fn sp_04_sp_06_a_dead_runner_that_github_calls_busy_holds_no_machine() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::DiesAtWork(minutes(3))].into();
    let job = history.post(&lasting(minutes(30)));
    history.run_for(minutes(2));
    let name = name_of(&history, job);
    let id = registration(&history, &name).unwrap();
    let until = history.now() + minutes(40);
    history.state().github.lie_about_busy(id, true, until);
    history.run_for(minutes(3));
    assert_eq!(live(&history), 0, "the machine is gone whatever GitHub says");
    holds(&mut history, Allowance::NONE);
    assert_eq!(registration(&history, &name), None, "it was asked again until it went");
}

#[test]
fn sp_06_sp_09_a_registration_that_stays_busy_for_hours_is_left_to_the_janitor() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::DiesAtWork(minutes(3))].into();
    let job = history.post(&lasting(minutes(30)));
    history.run_for(minutes(2));
    let id = registration(&history, &name_of(&history, job)).unwrap();
    let until = history.now() + hours(20);
    history.state().github.lie_about_busy(id, true, until);
    assert!(history.run_to_rest(hours(3)), "the execution does not wait for it for ever");
    assert_eq!(history.world.metric("RegistrationLeft"), 1.0);
    assert_eq!(live(&history), 0);
}

#[test]
fn bf_02_a_busy_flag_that_lags_harms_nobody() {
    for lag in [25, 60, 90, 180] {
        let mut history = Simulation::new(1);
        history.state().github.options_mut().busy_lag = seconds(lag);
        for length in [1, 7, 40] {
            history.post(&lasting(minutes(length)));
        }
        holds(&mut history, Allowance::NONE);
        assert_eq!(runners(&history), 3, "{lag} s");
    }
}

#[test]
fn bf_04_a_runner_with_its_own_job_is_safe_though_github_calls_it_idle_all_along() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().busy_lag = hours(10);
    let job = history.post(&lasting(hours(2)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    assert_eq!(history.world.metric("IdleRunner"), 0.0);
}

#[test]
fn bf_04_a_runner_with_another_job_is_safe_by_githubs_signed_word() {
    // A job that we refuse and that takes the runner of one that is cancelled meanwhile.
    let (mut history, _) = idle();
    history.judges_reports = true;
    history.state().github.add_repository("acme/open", false);
    history.state().github.options_mut().busy_lag = hours(10);
    let thief = JobSpec::new("acme/open", &["self-hosted", "small"]);
    let thief = history.post(&JobSpec { duration: hours(1), ..thief });
    holds(&mut history, Allowance::NONE);
    assert_eq!(conclusion(&history, thief).as_deref(), Some("success"));
}

#[test]
fn rr_13_bf_02_a_job_that_lands_at_the_last_moment_is_not_harmed() {
    for lag in [0, 60, 3600] {
        for landing in (50..=330).step_by(10) {
            let (mut history, _) = idle();
            history.judges_reports = true;
            history.state().github.options_mut().busy_lag = seconds(lag);
            history.state().github.add_repository("acme/open", false);
            let spec = JobSpec::new("acme/open", &["self-hosted", "small"]);
            history.run_for(seconds(landing));
            let thief = history.post(&JobSpec { duration: hours(1), ..spec });
            holds(&mut history, Allowance::NONE);
            let ended = conclusion(&history, thief);
            assert!(
                matches!(ended.as_deref(), None | Some("success")),
                "{lag} {landing} {ended:?}"
            );
        }
    }
}

#[test]
fn bf_07_a_runner_that_is_missing_from_the_listing_is_looked_at_by_its_id() {
    let mut history = Simulation::new(1);
    let job = history.post(&lasting(hours(1)));
    history.run_for(seconds(20));
    let id = registration(&history, &name_of(&history, job)).unwrap();
    let until = history.now() + hours(2);
    history.state().github.hide_from_listings(id, until);
    holds(&mut history, Allowance::NONE);
    let listed = format!("GET {}", endpoint::ORG_RUNNERS);
    assert!(!history.state().github.calls().contains_key(&listed));
}

#[test]
fn bf_08_bf_09_only_the_runner_of_exactly_that_name_decides() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().ignores_name_filter = true;
    let job = history.at_github(|github, now| github.post_job(now, &small()).unwrap());
    let name = name_of(&history, job);
    // More than a page of others, some of them with a longer or shorter name.
    let others: Vec<_> = (0..150).map(|n| format!("{name}{n}")).collect();
    history.at_github(|github, now| {
        let scope = Scope::Organization(ORGANIZATION.into());
        for other in others.iter().chain([&name[..name.len() - 1].to_owned()]) {
            github.generate_jit(now, &scope, other, Some(1), &["x".into()]).unwrap();
        }
    });
    // The answer to the registration is lost: it is looked for by its name.
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Lost(502),
    });
    holds(&mut history, within(10));
    assert_eq!(history.state().github.registrations().len(), 151, "the others are untouched");
    assert_eq!(runners(&history), 1);
}

#[test]
fn bf_11_a_machine_ends_itself_after_its_job() {
    let mut history = Simulation::new(1);
    // GitHub says completed, and the machine works on for ten minutes.
    history.fates = [Fate::FreezesAtWork(seconds(50))].into();
    let job = history.post(&lasting(minutes(1)));
    history.run_for(seconds(55));
    history.cancel(job);
    history.run_for(minutes(15));
    assert_eq!((conclusion(&history, job).as_deref(), live(&history)), (Some("cancelled"), 1));
}

#[test]
fn re_06_re_07_a_machine_that_freezes_at_work_is_ended_once_github_has_given_its_job_up() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::FreezesAtWork(minutes(1))].into();
    let job = history.post(&lasting(minutes(30)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(reason(&history, &name_of(&history, job)).as_deref(), Some("hung"));
    let state = history.state();
    let mut instances = state.ec2.instances();
    assert!(instances.all(|it| it.ended().is_some_and(|at| at.since(it.launched) <= minutes(80))));
}

#[test]
fn re_07_a_machine_that_thrashes_while_its_job_is_cancelled_is_ended() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::FreezesAtWork(minutes(40))].into();
    let job = history.post(&lasting(hours(3)));
    history.run_for(minutes(50));
    history.cancel(job);
    holds(&mut history, Allowance::NONE);
    assert_eq!(reason(&history, &name_of(&history, job)).as_deref(), Some("hung"));
    let state = history.state();
    let mut instances = state.ec2.instances();
    assert!(instances.all(|it| it.ended().is_some_and(|at| at.since(it.launched) <= minutes(110))));
}

#[test]
fn a_job_that_runs_longer_than_its_tiers_lifetime_is_ended_with_it() {
    let mut history = Simulation::new(1);
    history.post(&lasting(hours(20)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 1, "and nothing is started in its place");
}

#[test]
fn re_08_a_machine_that_never_gets_a_registration_does_not_stay() {
    let mut history = Simulation::new(1);
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times: 30,
        fault: GitHubFault::Refuse(ApiError::new(500, "Server Error")),
    });
    history.post(&small());
    let found = verdict(&mut history, within(120));
    assert!(live(&history) == 0, "{found:?}\n{}", story(&history));
    assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
}

#[test]
fn re_14_a_machine_that_stays_pending_is_ended_and_replaced() {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::StuckPending]);
    let job = history.post(&small());
    holds(&mut history, within(10));
    let name = name_of(&history, job);
    assert_eq!(reason(&history, &name).as_deref(), Some("boot time-out"));
    assert_eq!(
        (runners(&history), history.world.metric_by("InstanceEnded", "boot time-out")),
        (2, 1.0)
    );
}

#[test]
fn ol_24_a_machine_in_which_nothing_starts_is_noticed_at_the_boot_time_out() {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::Dead, LaunchFault::Dead]);
    let job = history.post(&small());
    holds(&mut history, within(15));
    assert_eq!(runners(&history), 3);
    let first = history.state().executions[&name_of(&history, job)].clone();
    let took = first.ended.unwrap().since(first.started);
    assert!(took >= minutes(5) && took <= minutes(6), "{took:?}");
}

#[test]
fn a_slow_boot_within_its_time_costs_nothing() {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::Slow(seconds(280))]);
    history.post(&small());
    holds(&mut history, within(6));
    assert_eq!(runners(&history), 1);
}

#[test]
fn an_aborted_execution_of_an_idle_runner_is_cleaned_up_and_its_job_served() {
    let mut history = closed_group();
    let job = history.post(&small());
    history.run_for(minutes(2));
    open_group(&history);
    let name = name_of(&history, job);
    history.end_execution(&name, Status::Aborted);
    holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(10) });
    assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")]);
    assert_eq!(history.world.metric("BusyWithoutExecution"), 0.0);
}

/// The machine would stay for ever: nothing in it starts. At most of these moments EC2 does not list it yet.
#[test]
fn whenever_an_execution_is_aborted_its_machine_and_registration_go() {
    for moment in 3..40 {
        let mut history = Simulation::new(moment);
        history.state().ec2.plan_launches([LaunchFault::Dead]);
        history.state().ec2.options().untagged = Span::seconds(10, 15);
        let job = history.post(&small());
        history.run_for(Duration::from_millis(500) * u32::try_from(moment).unwrap());
        history.end_execution(&name_of(&history, job), Status::Aborted);
        holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(5) });
        assert_eq!(
            conclusion(&history, job).as_deref(),
            Some("success"),
            "aborted at {moment} half seconds"
        );
    }
}

#[test]
fn an_aborted_execution_of_a_busy_runner_lets_it_finish() {
    let mut history = Simulation::new(1);
    let job = history.post(&lasting(hours(1)));
    history.run_for(minutes(10));
    history.end_execution(&name_of(&history, job), Status::Aborted);
    holds(&mut history, Allowance::NONE);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
    assert_eq!((runners(&history), history.world.metric("BusyWithoutExecution")), (1, 1.0));
}

#[test]
fn an_aborted_execution_of_a_stolen_runner_harms_no_job_and_leaves_none_waiting() {
    for judged in [false, true] {
        for abort in [10, 100, 400] {
            let mut history = Simulation::new(40);
            history.judges_reports = judged;
            let thief = strange(&mut history, hours(1));
            let job = history.post(&small());
            history.run_for(seconds(abort));
            history.end_execution(&name_of(&history, job), Status::Aborted);
            holds(&mut history, within(10));
            for job in [thief, job] {
                let ended = conclusion(&history, job);
                assert_eq!(ended.as_deref(), Some("success"), "{judged} {abort}");
            }
            assert_eq!(runners(&history), 2, "{judged} {abort}");
        }
    }
}

/// A job that the App can't see has just begun on the runner of another, and GitHub's flag says "not busy" for as long
/// as that was ever seen. The jobs: the thief, and the runner's own.
fn seemingly_idle(judged: bool, max_idle: &str) -> (Simulation, [u64; 2]) {
    let mut history = Simulation::new(40);
    only_tier(&history, json!({ "max_idle": max_idle }));
    history.judges_reports = judged;
    let thief = strange(&mut history, hours(1));
    let job = history.post(&small());
    let begun = |history: &Simulation| {
        history.state().github.all_jobs().any(|it| it.id == thief && it.started_at.is_some())
    };
    while !begun(&history) {
        history.run_for(seconds(1));
    }
    let id = registration(&history, &name_of(&history, job)).unwrap();
    let until = history.now() + minutes(12);
    history.state().github.lie_about_busy(id, false, until);
    (history, [thief, job])
}

/// Found by seed 2261. GitHub removes a registration in the middle of a job that the App can't see: nothing but the
/// runner's line tells then that it works (`actions/actions-runner-controller#3748`).
#[test]
fn i4_a_job_that_the_app_cannot_see_outlives_its_runners_registration() {
    for after in [1, 10, 70, 200, 300, 1000] {
        let mut history = Simulation::new(40);
        history.judges_reports = true;
        let thief = strange(&mut history, hours(1));
        let job = history.post(&small());
        let name = name_of(&history, job);
        history.after(seconds(after + 10), move |history| {
            let id = registration(history, &name).unwrap();
            history.at_github(|github, _| github.drop_registration(id));
        });
        holds(&mut history, within(15));
        let served = [thief, job].map(|job| conclusion(&history, job));
        assert_eq!(served, [Some("success".into()), Some("success".into())], "{after}");
        assert_eq!(history.world.metric("InstanceEnded"), 0.0, "{after}");
    }
}

/// The same by our own hand: the removal of a runner that GitHub calls idle, whose answer was lost.
#[test]
fn i4_a_removal_whose_answer_was_lost_ends_no_machine_at_work() {
    for (strike, max_idle) in
        [Strike::After, Strike::CutAfter].into_iter().flat_map(|it| [(it, "5m"), (it, "10m")])
    {
        let (mut history, jobs) = seemingly_idle(true, max_idle);
        history.state().plan = Plan::next("Forge.remove_runner", 1, strike);
        holds(&mut history, within(25));
        assert!(history.state().plan.is_over(), "{strike:?} {max_idle}");
        for job in jobs {
            let ended = conclusion(&history, job);
            assert_eq!(ended.as_deref(), Some("success"), "{strike:?} {max_idle}");
        }
    }
}

/// The line of a job that nobody can see is given up ten minutes after the job's beginning, and GitHub calls its runner
/// idle for longer.
#[test]
fn i4_a_line_that_was_given_up_still_keeps_the_machine() {
    let (mut history, [thief, _]) = seemingly_idle(true, "10m");
    holds(&mut history, within(25));
    assert_eq!(conclusion(&history, thief).as_deref(), Some("success"));
    assert_eq!(history.world.metric("ReportGivenUp"), 1.0);
}

#[test]
fn i4_an_aborted_execution_of_a_runner_that_seems_idle_ends_no_machine_at_work() {
    for judged in [false, true] {
        for after in [0, 5, 60, 100, 250] {
            let (mut history, jobs) = seemingly_idle(judged, "5m");
            history.run_for(seconds(after));
            history.end_execution(&name_of(&history, jobs[1]), Status::Aborted);
            holds(&mut history, within(15));
            for job in jobs {
                let ended = conclusion(&history, job);
                assert_eq!(ended.as_deref(), Some("success"), "{judged} {after}");
            }
            let told = history.world.metric("BusyWithoutExecution");
            assert_eq!((runners(&history), told), (2, 1.0), "{judged} {after}");
        }
    }
}

/// Where nobody judges reports, the ledger never tells.
#[test]
fn i4_an_aborted_execution_that_is_told_of_again_minutes_later_ends_no_machine_at_work() {
    let (mut history, [thief, job]) = seemingly_idle(false, "5m");
    history.ruler = Box::new(|_, _| vec![seconds(2), minutes(6)]);
    history.end_execution(&name_of(&history, job), Status::Aborted);
    holds(&mut history, within(15));
    assert_eq!(conclusion(&history, thief).as_deref(), Some("success"));
    assert_eq!(history.world.metric("BusyWithoutExecution"), 2.0);
}

#[test]
fn i4_a_failed_execution_of_a_runner_that_seems_idle_waits_for_the_report() {
    for judged in [false, true] {
        let (mut history, [_, job]) = seemingly_idle(judged, "5m");
        let name = name_of(&history, job);
        let machine = history.instance_of(&name).unwrap();
        let event = {
            let mut state = history.state();
            let execution = state.executions.get_mut(&name).unwrap();
            execution.status = Status::Failed;
            json!({"step": "cleanup", "outcome": "failed", "runnerName": name,
                "startedAt": execution.started.to_string(), "job": execution.data})
        };
        let event = StepEvent::read(&event).unwrap();
        let settings = Settings::from_parameters(&history.state().parameters);
        let mut clean = |wait: u64| {
            history.run_for(seconds(wait));
            let answer = runner::run(&history.world, &settings, &event);
            let told = history.world.run("cleanup", answer).unwrap().err();
            // The models tell what is new when something happens.
            history.at_github(|_, _| ());
            (told.map(|told| told.to_string()), history.machines[&machine].off.is_some())
        };
        for wait in [0, 299] {
            let (told, ended) = clean(wait);
            assert!(told.is_some() && !ended, "{judged}: {told:?}");
        }
        // What nobody has reported by then was idle, and has hung.
        let (told, ended) = clean(2);
        assert_eq!((told.is_none(), ended), (!judged, !judged), "{told:?}");
    }
}

#[test]
fn i6_a_machine_that_ec2_does_not_list_yet_is_not_gone() {
    for unseen in [30, 100, 250] {
        let mut history = Simulation::new(1);
        history.state().ec2.options().unseen = Span::seconds(unseen, unseen);
        history.state().ec2.options().boot = Span::seconds(150, 150);
        history.post(&lasting(minutes(10)));
        holds(&mut history, within(5));
        assert_eq!(runners(&history), 1, "{unseen}");
    }
}

#[test]
fn do_13_an_end_is_noticed_though_no_event_but_the_first_arrives() {
    let mut history = Simulation::new(1);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![seconds(1)],
        _ => vec![],
    });
    for length in [1, 12, 45] {
        history.post(&lasting(minutes(length)));
    }
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 3);
}

#[test]
fn re_06_an_execution_that_is_aborted_before_it_launched_leaves_a_job_that_is_served() {
    let mut history = Simulation::new(1);
    history.state().ec2.limit_capacity(ostler_sim::ec2::PoolMatch::default(), 0);
    let job = history.post(&small());
    history.run_for(seconds(10));
    history.end_execution(&name_of(&history, job), Status::Aborted);
    history.state().ec2.restore_capacity();
    holds(&mut history, within(10));
    assert_eq!(runners(&history), 2);
}

#[test]
fn cp_12_a_burst_of_which_every_first_delivery_is_lost_is_served_by_the_second() {
    let mut history = Simulation::new(1);
    history.state().plan = ostler_sim::world::Plan::next(
        "Configuration.settings",
        40,
        ostler_sim::world::Strike::CutBefore,
    );
    history.redelivery = Some(Duration::from_secs(300));
    for _ in 0..40 {
        history.post(&small());
    }
    holds(&mut history, within(10));
    assert_eq!(runners(&history), 40);
    assert_eq!(history.answers.iter().filter(|answer| answer.status == 502).count(), 40);
}

#[test]
fn an_app_that_is_uninstalled_meanwhile_leaves_no_execution_behind() {
    for (work, served) in [(minutes(20), true), (hours(24), false)] {
        let mut history = Simulation::new(1);
        if !served {
            history.state().ec2.limit_capacity(PoolMatch::default(), 0);
        }
        history.post(&lasting(work));
        history.run_for(minutes(5));
        history.state().github.uninstall(ORGANIZATION);
        assert!(history.run_to_rest(hours(30)), "{}", story(&history));
        let found = violations(&history, Allowance::NONE);
        let left =
            found.iter().filter(|it| !it.starts_with("I2") && !it.contains("registration of"));
        assert_eq!(left.count(), 0, "{found:?}");
        assert_eq!(history.world.metric("RegistrationLeft"), 1.0, "{served}");
    }
}

#[test]
fn what_only_an_operator_can_mend_ends_no_runner() {
    let mut history = Simulation::new(1);
    let job = history.post(&lasting(hours(1)));
    history.run_for(seconds(30));
    let app = json!({"app_id": 4242}).to_string();
    history.world.state().parameters.remove("control/app");
    history.world.state().settings = None;
    history.run_for(minutes(20));
    assert!(history.world.metric("ConfigurationError") >= 1.0);
    history.world.configure("control/app", app);
    holds(&mut history, Allowance::NONE);
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}
