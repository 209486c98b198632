//! The rules of supply and debt one by one: for each, the shortest schedule that went wrong without it (F1 to F15 of the
//! simulation that they were found by).

use std::time::Duration;

use ostler_core::debts::{Debts, Judgement, Payment};
use ostler_core::job::{JobId, RunnerInput};
use ostler_core::ports::{Ledger, Ran, RunnerRecord};
use ostler_sim::github::{ApiError, Fault, FaultRule, JobSpec, Status, endpoint};
use ostler_sim::invariants::Allowance;
use ostler_sim::world::{REPOSITORY, WEBHOOK_SECRET};
use serde_json::json;

use crate::common::{self, hours, minutes, runners, seconds, small, story, verdict};
use crate::histories::{begin, rob_for};
use crate::scene::{Mine, STRANGE, Scene};

pub fn input(scene: &Scene, runner: &str) -> RunnerInput {
    serde_json::from_value(scene.world.state().executions[runner].input.clone()).unwrap()
}

/// Settles a runner's end, as its cleanup does.
fn settle(scene: &Scene, runner: &str) -> Judgement {
    let settings = scene.world.current_settings();
    let debts = Debts::new(&scene.world, &settings).unwrap();
    let now = scene.world.state().now;
    let ended = scene.world.end_runner(runner, now, now + Duration::from_secs(86_400));
    scene.world.run("cleanup", ended).unwrap().unwrap();
    let own = input(scene, runner);
    let record = scene.world.state().runner_record(runner);
    let settled = debts.end(runner, &own, &record, None);
    scene.world.run("cleanup", settled).unwrap().unwrap()
}

fn started(judgement: &Judgement) -> Option<&str> {
    match judgement {
        Judgement::Debt(Payment::Started(name)) => Some(name),
        _ => None,
    }
}

/// The job's `queued` event comes (again).
fn hook(scene: &Scene, job: u64) -> (u64, String) {
    let event = {
        let mut state = scene.world.state();
        let now = state.now;
        // A held job that is released is announced anew; the payload is all that counts.
        let repository = REPOSITORY;
        let job = state.github.get_job(now, repository, job).unwrap();
        state.github.announce_again(job.id);
        state.github.take_events().pop().unwrap()
    };
    common::handle(&scene.world, &ostler_sim::simulation::signed(&event, WEBHOOK_SECRET))
}

fn hold(scene: &Scene, job: u64, status: Status) {
    scene.world.state().github.hold(job, status);
}

#[test]
fn f1_f9_a_stolen_runner_is_never_its_own_jobs_supply() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&mine.runner, thief);
    scene.judged(&scene.line(&mine.runner, thief));
    let settings = scene.world.current_settings();
    let debts = Debts::new(&scene.world, &settings).unwrap();
    let replacement = format!("{}-r1", mine.runner);
    scene.ends(&replacement);
    // Its execution runs on, with the thief's job; it supplies nobody.
    let own = input(&scene, &mine.runner);
    assert!(!scene.world.run("test", debts.supplied(&own, None)).unwrap().unwrap());
}

#[test]
fn f2_a_hostile_job_on_its_own_runner_starts_nothing_by_claiming_a_strange_repository() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let strange = scene.post(&Scene::strange());
    scene.takes(&mine.runner, mine.job);
    let successor = format!("{}-r1", mine.runner);
    for name in [&mine.runner, &successor] {
        scene.judged(&scene.line(name, strange));
    }
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn f3_a_short_job_whose_event_is_late_was_a_shuffle_for_cleanup_too() {
    let mut history = begin(21);
    history.courier = Box::new(|event, _| {
        let late = event.payload["workflow_job"]["name"] == "late";
        let queued = event.action.as_deref() == Some("queued");
        vec![if late && queued { seconds(150) } else { seconds(1) }]
    });
    let first = history.post(&small());
    let spec = JobSpec { name: "late".into(), duration: seconds(10), ..small() };
    let late = history.post(&spec);
    history.state().github.set_turn(late, ostler_sim::github::Turn::First);
    let found = verdict(&mut history, Allowance { surplus: 0, longest_wait: minutes(6) });
    assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
    assert_eq!(runners(&history), 2, "{}", story(&history));
    assert!(history.state().github.all_jobs().all(|job| job.id != first || job.runner.is_some()));
}

#[test]
fn f3_what_is_too_young_to_be_judged_keeps_cleanup_waiting() {
    let mut history = begin(21);
    // The event of the short one never comes: it is a thief, but not in its first minutes.
    history.courier = Box::new(|event, _| {
        let lost = event.payload["workflow_job"]["name"] == "lost";
        let queued = event.action.as_deref() == Some("queued");
        if lost && queued { vec![] } else { vec![seconds(1)] }
    });
    let first = history.post(&small());
    let lost = JobSpec { name: "lost".into(), duration: seconds(10), ..small() };
    let lost = history.post(&lost);
    history.state().github.set_turn(lost, ostler_sim::github::Turn::First);
    let runner = history.world.base_name(REPOSITORY, first);
    for _ in 0..900 {
        if history.state().runner_record(&runner).ran == Ran::Unknown {
            history.run_for(seconds(1));
        }
    }
    // From now on reports lie in their queue, and cleanup is the only one to judge.
    history.judges_reports = false;
    let found = verdict(&mut history, Allowance { surplus: 0, longest_wait: minutes(20) });
    assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
    assert_eq!(runners(&history), 2, "{}", story(&history));
}

#[test]
fn f4_a_replacement_that_was_not_recorded_and_died_does_not_end_the_payments() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.ends(&mine.runner);
    let first = settle(&scene, &mine.runner);
    assert_eq!(started(&first), Some(format!("{}-r1", mine.runner).as_str()));
    // Its record fails; it dies.
    let name = started(&first).unwrap().to_owned();
    scene.ends(&name);
    assert_eq!(started(&settle(&scene, &name)), Some(format!("{}-r2", mine.runner).as_str()));
}

#[test]
fn f5_a_job_that_waits_for_approval_burns_no_replacements() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    hold(&scene, mine.job, Status::Waiting);
    scene.ends(&mine.runner);
    assert_eq!(settle(&scene, &mine.runner), Judgement::Settled);
    hold(&scene, mine.job, Status::Queued);
    let (status, name) = hook(&scene, mine.job);
    assert_eq!((status, name), (202, format!("{}-r1", mine.runner)), "queued anew: it is served");
}

#[test]
fn f6_a_start_that_finds_the_same_execution_running_is_a_requeue() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&mine.runner, thief);
    scene.judged(&scene.line(&mine.runner, thief));
    let first = format!("{}-r1", mine.runner);
    scene.record(&first);
    hold(&scene, mine.job, Status::Waiting);
    scene.ends(&first);
    assert_eq!(settle(&scene, &first), Judgement::Settled);
    hold(&scene, mine.job, Status::Queued);
    // The base execution still runs, with the thief's job: the service accepts the start, and nothing starts.
    let (status, name) = hook(&scene, mine.job);
    assert_eq!((status, name), (202, format!("{}-r2", mine.runner)));
}

#[test]
fn f7_a_runner_whose_end_is_being_judged_is_no_supply() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&a.runner, b.job);
    scene.judged(&scene.signed(&a.runner, b.job));
    // Both executions still run. b's runner ends idle; a's job counted on it.
    let judgement = settle(&scene, &b.runner);
    assert_eq!(started(&judgement), Some(format!("{}-r1", a.runner).as_str()));
}

#[test]
fn f8_a_runner_whose_job_was_served_meanwhile_is_not_launched() {
    let mut history = begin(22);
    history.courier = Box::new(|event, _| {
        let late = event.payload["workflow_job"]["name"] == "late";
        let queued = event.action.as_deref() == Some("queued");
        vec![if late && queued { seconds(500) } else { seconds(1) }]
    });
    let _ = history.post(&small());
    let spec = JobSpec { name: "late".into(), duration: seconds(30), ..small() };
    let late = history.post(&spec);
    history.state().github.set_turn(late, ostler_sim::github::Turn::First);
    let found = verdict(&mut history, Allowance { surplus: 0, longest_wait: minutes(9) });
    assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
    assert!((history.world.metric("LaunchUnneeded") - 1.0).abs() < 0.1, "{}", story(&history));
}

#[test]
fn f10_every_look_up_of_a_job_accounts_for_the_runner_that_it_names() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&b.runner, a.job);
    // The word about b's runner is lost. a's runner dies: the look-up of a's job finds b's runner.
    scene.ends(&a.runner);
    let judgement = settle(&scene, &a.runner);
    assert_eq!(started(&judgement), Some(format!("{}-r1", b.runner).as_str()));
    let id = JobId(i64::try_from(a.job).unwrap());
    assert!(matches!(scene.ran(&b.runner), Ran::Job { id: found, .. } if found == id));
}

#[test]
fn f11_settling_and_requeueing_share_one_sequence_of_names() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.ends(&mine.runner);
    settle(&scene, &mine.runner);
    scene.world.pass(seconds(5));
    assert_eq!(hook(&scene, mine.job).0, 200, "the replacement is its supply");
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn f12_a_job_that_was_never_started_gets_its_base_name_first() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let own = input(&scene, &mine.runner);
    {
        let mut state = scene.world.state();
        state.executions.clear();
        state.ledger.jobs.clear();
    }
    let settings = scene.world.current_settings();
    let debts = Debts::new(&scene.world, &settings).unwrap();
    let paid = scene.world.run("reconciler", debts.pay(&own, None, true)).unwrap().unwrap();
    assert_eq!(paid, Payment::Started(mine.runner.clone()));
    scene.world.pass(seconds(5));
    assert_eq!(hook(&scene, mine.job).0, 200, "its late event starts nothing more");
    assert_eq!(scene.replacements(&[&mine]), Vec::<String>::new());
}

#[test]
fn f13_a_report_and_the_end_of_one_runner_pay_once() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    let session = scene.takes(&mine.runner, thief);
    scene.completes(&session, thief);
    scene.ends(&mine.runner);
    settle(&scene, &mine.runner);
    scene.judged(&scene.line(&mine.runner, thief));
    assert_eq!(scene.replacements(&[&mine]).len(), 1);
}

#[test]
fn f14_a_report_that_accounted_and_was_deferred_is_judged_when_it_comes_again() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::small());
    scene.takes(&mine.runner, thief);
    let line = scene.line(&mine.runner, thief);
    assert!(scene.judge(&line, 1), "the thief's own event may be late");
    assert!(matches!(scene.ran(&mine.runner), Ran::Job { .. }), "yet GitHub showed it");
    scene.world.pass(Duration::from_secs(241));
    assert!(!scene.judge(&line, 2));
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

/// Its report was accounted for, and then lost for good: nobody but a check asks again while the thief is at work.
#[test]
fn f14_a_judgement_that_was_lost_is_made_up_for_by_the_runners_next_check() {
    let mut history = begin(23);
    history.judges_reports = false;
    let job = history.post(&small());
    rob_for(&mut history, job, hours(3));
    let mut noted = false;
    let name = history.world.base_name(REPOSITORY, job);
    let longest = loop {
        history.run_for(seconds(5));
        let (taken, now) = {
            let state = history.state();
            let on = |id| {
                state.github.all_jobs().find(|it| it.id == id).and_then(|it| it.runner.clone())
            };
            let thief = state.github.all_jobs().find(|it| it.repository == STRANGE).map(|it| it.id);
            let taken = thief.filter(|id| on(*id).is_some_and(|on| on.name == name));
            (taken, state.now)
        };
        if let Some(thief) = taken.filter(|_| !noted) {
            let id = JobId(i64::try_from(thief).unwrap());
            let ran = Ran::Job { id, repository: Some(STRANGE.into()) };
            let record = RunnerRecord { ran, ..history.state().runner_record(&name) };
            history.state().ledger.runners.insert(name.clone(), (record, now + hours(24)));
            noted = true;
        }
        let state = history.state();
        let job = state.github.all_jobs().find(|it| it.id == job).unwrap();
        if let Some(started) = job.started_at {
            break started.since(job.created_at);
        }
        assert!(now.since(job.created_at) < hours(2), "{}", story(&history));
    };
    assert!(noted && longest < minutes(20), "{longest:?}");
    assert_eq!(runners(&history), 2);
}

#[test]
fn f10_a_check_accounts_for_the_runner_that_its_job_is_found_on() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&b.runner, a.job);
    scene.online(&a.runner);
    // The word about b's runner is lost.
    scene.check(&a.runner, &json!({}));
    let id = JobId(i64::try_from(a.job).unwrap());
    assert!(matches!(scene.ran(&b.runner), Ran::Job { id: found, .. } if found == id));
    assert_eq!(scene.ran(&a.runner), Ran::Unknown);
    assert!(scene.replacements(&[&a, &b]).is_empty());
}

/// Nobody is told of a thief that we can't see and that works for hours, but the runner's own checks.
#[test]
fn f9_a_theft_of_which_no_word_came_is_found_by_a_check() {
    let mut history = begin(24);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("in_progress") => vec![],
        _ => vec![seconds(1)],
    });
    history.printer = Box::new(|_, _| vec![]);
    let job = history.post(&small());
    rob_for(&mut history, job, hours(3));
    let found = verdict(&mut history, Allowance { surplus: 0, longest_wait: minutes(12) });
    assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
    assert_eq!(runners(&history), 2);
    assert!(history.world.metric("RunnerTaken") > 0.5);
}

#[test]
fn bf_02_an_idle_time_of_zero_still_needs_two_readings_of_a_runner_that_is_online() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let now = scene.world.state().now;
    scene.world.state().executions.get_mut(&mine.runner).unwrap().input["maxIdleSeconds"] =
        json!(0);
    scene.online(&mine.runner);
    hold(&scene, mine.job, Status::Waiting);
    // Without a job since it was registered, which was long before it was there.
    let booting = json!({"idleAt": now.millis() - 240_000, "checks": 3});
    let state = scene.check(&mine.runner, &booting);
    assert!(state.get("deregisteredAt").is_none(), "{state}");
    assert_eq!(state["waitSeconds"], 60);
    scene.world.pass(seconds(60));
    let state = scene.check(&mine.runner, &state);
    assert!(state.get("deregisteredAt").is_some(), "{state}");
}

#[test]
fn rr_12_bf_10_a_removal_that_is_refused_means_that_the_runner_is_at_work() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.online(&mine.runner);
    hold(&scene, mine.job, Status::Waiting);
    scene.world.state().executions.get_mut(&mine.runner).unwrap().input["maxIdleSeconds"] =
        json!(60);
    let state = scene.check(&mine.runner, &json!({}));
    scene.world.pass(seconds(90));
    scene.world.state().github.add_fault(FaultRule {
        method: "DELETE".into(),
        template: endpoint::ORG_RUNNER.into(),
        skip: 0,
        times: 1,
        fault: Fault::Refuse(ApiError::new(
            422,
            "is currently running a job and cannot be deleted",
        )),
    });
    let state = scene.check(&mine.runner, &state);
    assert!(state.get("deregisteredAt").is_none() && state.get("busyAt").is_some(), "{state}");
    assert_eq!(scene.world.metric("IdleRunner"), 0.0);
    assert_eq!(scene.world.count("check", "Forge.remove_runner"), 1);
}

#[test]
fn f15_an_unrecorded_job_is_known_by_the_execution_of_its_base_name() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    let id = JobId(i64::try_from(b.job).unwrap());
    scene.world.state().ledger.jobs.remove(&id);
    scene.takes(&a.runner, b.job);
    scene.judged(&scene.signed(&a.runner, b.job));
    let mine: [&Mine; 2] = [&a, &b];
    assert!(scene.replacements(&mine).is_empty());
}
