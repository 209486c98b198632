//! Deliveries that come twice, late, together, or in the wrong order, under each answer that Step Functions
//! and its emulators give to a repeated name: one job has one runner.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{
    ended, handle, holds, hours, lasting, minutes, names, payload, queued, runners, seconds,
    signed_body, small,
};
use ostler_sim::ec2::Span;
use ostler_sim::github::{ApiError, Fault, FaultRule, JobSpec, Status as JobStatus, endpoint};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::{Fate, Simulation, signed};
use ostler_sim::world::{
    Plan, REPOSITORY, RepeatedName, Status, Strike, WEBHOOK_SECRET, World, tier,
};
use serde_json::json;

const MODES: [RepeatedName; 3] =
    [RepeatedName::Real, RepeatedName::AlwaysError, RepeatedName::AlwaysIdempotent];

fn gated() -> JobSpec {
    JobSpec { environment: Some("production".into()), ..small() }
}

/// The question whether a deployment waits fails, every time.
fn unanswered(history: &Simulation) {
    history.state().github.add_fault(FaultRule {
        method: "GET".into(),
        template: endpoint::DEPLOYMENT_STATUSES.into(),
        skip: 0,
        times: 100,
        fault: Fault::Refuse(ApiError::new(502, "Server Error")),
    });
}

fn status_of(history: &Simulation, job: u64) -> JobStatus {
    history.state().github.all_jobs().find(|found| found.id == job).unwrap().status
}

#[test]
fn do_01_a_job_behind_an_environment_gets_one_runner() {
    let mut history = Simulation::new(1);
    let job = history.post(&gated());
    history.after(seconds(40), move |history| history.approve(job));
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 1);
    let said: Vec<_> = history.answers.iter().map(|answer| answer.status).collect();
    assert_eq!(said[..3], [200, 200, 202], "queued, waiting, queued");
}

#[test]
fn do_01_an_approval_while_its_runner_waits_starts_no_other() {
    for mode in MODES {
        let mut history = Simulation::new(1);
        history.state().repeated_name = mode;
        unanswered(&history);
        let job = history.post(&gated());
        history.after(minutes(3), move |history| history.approve(job));
        holds(&mut history, Allowance::NONE);
        assert_eq!(runners(&history), 1, "{mode:?}");
    }
}

#[test]
fn do_01_an_approval_after_its_runner_ended_starts_exactly_one_more() {
    for mode in MODES {
        let mut history = Simulation::new(1);
        history.state().repeated_name = mode;
        unanswered(&history);
        let job = history.post(&gated());
        history.after(hours(2), move |history| {
            assert_eq!(ended(history, Status::Succeeded).len(), 1, "it ended as idle");
            history.approve(job);
        });
        holds(&mut history, Allowance { surplus: 1, ..Allowance::NONE });
        let base = history.world.base_name(REPOSITORY, job);
        assert_eq!(names(&history.world), [base.clone(), format!("{base}-r1")], "{mode:?}");
        assert_eq!(status_of(&history, job), JobStatus::Completed);
    }
}

#[test]
fn do_02_an_approval_that_overtakes_the_first_event_starts_one_runner() {
    let mut history = Simulation::new(1);
    let mut late = Some(seconds(60));
    history.courier = Box::new(move |event, _| match event.action.as_deref() {
        Some("queued") => vec![late.take().unwrap_or(seconds(1))],
        _ => vec![seconds(1)],
    });
    let job = history.post(&gated());
    history.after(seconds(10), move |history| history.approve(job));
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 1);
}

#[test]
fn do_05_completed_events_of_an_earlier_attempt_change_nothing() {
    let mut history = Simulation::new(1);
    history.fates = [Fate::DiesAtWork(seconds(20))].into();
    let first = history.post(&small());
    history.run_for(minutes(30));
    let run = history.state().github.all_jobs().find(|job| job.id == first).unwrap().run_id;
    let second = history.post(&JobSpec { run_id: Some(run), ..small() });
    history.run_for(hours(1));
    let again = history.at_github(|github, now| github.rerun_failed(now, REPOSITORY, run)).unwrap();
    holds(&mut history, Allowance::NONE);
    let resent = history
        .answers
        .iter()
        .filter(|it| it.job == Some(second) && it.action.as_deref() == Some("completed"));
    assert_eq!(resent.count(), 2);
    assert_eq!(runners(&history), 3, "one each, and one for the job that runs again");
    assert_eq!(status_of(&history, again[0]), JobStatus::Completed);
    assert_eq!(history.world.count("webhook", "Ledger"), 0);
}

#[test]
fn do_08_a_name_that_was_used_with_another_input_is_no_error() {
    for mode in MODES {
        let world = World::new(1);
        world.state().repeated_name = mode;
        let event = queued(&world, &small());
        assert_eq!(handle(&world, &event).0, 202);
        world.pass(minutes(1));
        world.tiers(&[tier("small", &["small", "and-more"])]);
        assert_eq!(handle(&world, &event), (200, "already started".into()), "{mode:?}");
        assert_eq!(names(&world).len(), 1);
    }
}

/// A job's event again and again, at each turn of its life: what is answered, and what is started.
fn redelivered(mode: RepeatedName) -> (Vec<(u16, String)>, Vec<String>) {
    let mut history = Simulation::new(5);
    history.state().repeated_name = mode;
    unanswered(&history);
    let event = history.at_github(|github, now| {
        github.post_job(now, &gated()).unwrap();
        github.take_events().remove(0)
    });
    let job = event.payload["workflow_job"]["id"].as_u64().unwrap();
    // GitHub's own deliveries of it are lost from now on: only ours count.
    history.courier = Box::new(|_, _| vec![]);
    for at in [
        0,                       // 202: the first
        minutes(1).as_secs(),    // 200: it runs
        hours(1).as_secs(),      // 200: it is over, and the job is held
        hours(3).as_secs(),      // 202: it is over, and the job is queued (approved at two hours)
        hours(3).as_secs() + 30, // 200: the new one runs
        hours(5).as_secs(),      // 200: the job is done
    ] {
        history.deliver(&event, seconds(at));
    }
    history.after(hours(2), move |history| history.approve(job));
    holds(&mut history, Allowance { longest_wait: hours(2), surplus: 1 });
    assert_eq!(status_of(&history, job), JobStatus::Completed);
    let said = history.answers.iter().map(|answer| (answer.status, answer.body.clone())).collect();
    (said, names(&history.world))
}

#[test]
fn do_09_do_17_a_redelivery_is_judged_by_what_is_and_not_by_what_step_functions_answers() {
    let (said, started) = redelivered(RepeatedName::Real);
    let statuses: Vec<_> = said.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [202, 200, 200, 202, 200, 200]);
    assert_eq!(started.len(), 2);
    for mode in [RepeatedName::AlwaysError, RepeatedName::AlwaysIdempotent] {
        assert_eq!(redelivered(mode), (said.clone(), started.clone()), "{mode:?}");
    }
}

#[test]
fn do_10_a_delivery_that_failed_is_not_remembered_as_done() {
    let world = World::new(1);
    let event = queued(&world, &small());
    world.state().plan = Plan::next("Executions.start", 1, Strike::Before);
    assert_eq!(handle(&world, &event).0, 503);
    assert_eq!(names(&world).len(), 0);
    assert_eq!(handle(&world, &event).0, 202, "the same delivery again");
    assert_eq!(names(&world).len(), 1);
}

#[test]
fn do_12_twenty_handlers_at_once_start_one_runner_for_a_job() {
    for mode in MODES {
        let mut history = Simulation::new(1);
        history.state().repeated_name = mode;
        history.state().latency =
            Span { least: Duration::from_millis(1), most: Duration::from_millis(900) };
        history.courier = Box::new(|event, _| match event.action.as_deref() {
            Some("queued") => vec![seconds(1); 20],
            _ => vec![seconds(1)],
        });
        history.post(&small());
        holds(&mut history, Allowance::NONE);
        assert_eq!(runners(&history), 1, "{mode:?}");
        assert!(history.answers.iter().all(|answer| answer.status < 300));
    }
}

#[test]
fn an_execution_that_describe_does_not_know_yet_is_there_all_the_same() {
    for mode in MODES {
        for recorded in [true, false] {
            let mut history = Simulation::new(1);
            history.state().repeated_name = mode;
            history.state().describe_lag = Span::seconds(10, 10);
            if !recorded {
                history.state().plan = Plan::next("Ledger.record_job", 3, Strike::Before);
            }
            history.courier = Box::new(|event, _| match event.action.as_deref() {
                Some("queued") => vec![seconds(1), seconds(4), seconds(5)],
                _ => vec![seconds(1)],
            });
            history.post(&small());
            holds(&mut history, Allowance::NONE);
            assert_eq!(runners(&history), 1, "{mode:?}, recorded: {recorded}");
        }
    }
}

#[test]
fn do_12_a_matrix_of_twenty_jobs_gets_twenty_runners() {
    let mut history = Simulation::new(1);
    history.state().latency =
        Span { least: Duration::from_millis(1), most: Duration::from_millis(900) };
    history.at_github(|github, now| github.post_matrix(now, &small(), 20).unwrap());
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 20, "one each, though GitHub gives them to each other's jobs");
    assert_eq!(history.world.metric("ReplacementStarted"), 0.0);
}

#[test]
fn do_16_deliveries_sent_twice_by_overlapping_redeliveries_start_one_runner_each() {
    for mode in MODES {
        let mut history = Simulation::new(1);
        history.state().repeated_name = mode;
        history.state().latency =
            Span { least: Duration::from_millis(1), most: Duration::from_millis(900) };
        // The first deliveries are lost; two runs of a redelivery find the same ones, a moment apart.
        history.courier = Box::new(|event, _| match event.action.as_deref() {
            Some("queued") => vec![],
            _ => vec![seconds(1)],
        });
        let missed = history.at_github(|github, now| {
            github.post_matrix(now, &small(), 12).unwrap();
            github.take_events()
        });
        for (place, event) in (0..).zip(&missed) {
            history.deliver(event, seconds(300) + Duration::from_millis(200 * place));
            history.deliver(event, seconds(301) + Duration::from_millis(170 * place));
        }
        holds(&mut history, within_redelivery());
        assert_eq!(runners(&history), 12, "{mode:?}");
        assert_eq!(history.world.metric("ReplacementStarted"), 0.0, "{mode:?}");
    }
}

/// The first deliveries were lost, and the next come five minutes later.
fn within_redelivery() -> Allowance {
    Allowance { longest_wait: minutes(11), ..Allowance::NONE }
}

#[test]
fn do_08_a_job_that_two_webhooks_announce_gets_one_runner() {
    for mode in MODES {
        let world = World::new(1);
        world.state().repeated_name = mode;
        // The App's own, and one of the organisation, made by hand: its payload names no installation.
        let by_app = payload(&world, &small());
        let mut by_hand = by_app.clone();
        by_hand.as_object_mut().unwrap().remove("installation");
        assert_eq!(handle(&world, &signed_body(&by_hand.to_string())).0, 202);
        world.pass(seconds(2));
        let (status, said) = handle(&world, &signed_body(&by_app.to_string()));
        assert_eq!((status, said.as_str()), (200, "already started"), "{mode:?}");
        assert_eq!(names(&world).len(), 1);
    }
}

#[test]
fn do_18_every_name_is_one_that_step_functions_takes() {
    let world = World::new(1);
    let long = "a.very-long_name.".repeat(5);
    for name in ["with.dots", ".github", "under_score", &long, "-", "UPPER"] {
        let repository = format!("acme/{name}");
        world.state().github.add_repository(&repository, true);
        let job = JobSpec::new(&repository, &["self-hosted", "small"]);
        let (status, runner) = handle(&world, &queued(&world, &job));
        assert_eq!(status, 202, "{name}: {runner}");
        assert!(runner.len() <= 56, "{runner}");
    }
    for odd in ["wid gets", "wid/gets", "wïdgets", "wid#gets", "..", ""] {
        let mut body = payload(&world, &small());
        body["repository"]["name"] = json!(odd);
        body["repository"]["full_name"] = json!(null);
        assert_eq!(handle(&world, &signed_body(&body.to_string())).0, 200, "{odd}");
    }
    assert_eq!(names(&world).len(), 6);
}

#[test]
fn ol_30_a_requeue_pays_with_the_next_name_and_then_with_a_generation_an_hour_later() {
    let mut history = Simulation::new(3);
    // Whoever comes up dies at once, seven times.
    history.fates = vec![Fate::Dies(Duration::ZERO); 5].into();
    let event = history.at_github(|github, now| {
        github.post_job(now, &small()).unwrap();
        github.take_events().remove(0)
    });
    history.deliver(&event, seconds(0));
    history.run_for(minutes(40));
    assert_eq!(runners(&history), 4, "the cap ends it");
    assert_eq!(history.world.metric("ReplacementsUsedUp"), 1.0);
    history.deliver(&event, seconds(0));
    history.run_for(minutes(5));
    assert_eq!(runners(&history), 4, "within the hour there is no new generation");
    history.deliver(&event, minutes(30));
    holds(&mut history, Allowance { longest_wait: hours(2), ..Allowance::NONE });
    let base = names(&history.world)[0].clone();
    let suffixes: Vec<_> =
        names(&history.world).iter().map(|name| name.replace(&base, "")).collect();
    assert_eq!(suffixes, ["", "-q1", "-q1-r1", "-r1", "-r2", "-r3"]);
}

#[test]
fn events_in_the_wrong_order_start_one_runner() {
    for order in [[3, 2, 1], [2, 1, 3], [1, 1, 1]] {
        let mut history = Simulation::new(1);
        history.courier = Box::new(move |event, _| {
            let place = match event.action.as_deref() {
                Some("queued") => order[0],
                Some("in_progress") => order[1],
                _ => order[2],
            };
            vec![seconds(100 * place), seconds(150 * place)]
        });
        history.post(&lasting(minutes(2)));
        holds(&mut history, Allowance { longest_wait: minutes(10), ..Allowance::NONE });
        assert_eq!(runners(&history), 1, "{order:?}");
    }
}

#[test]
fn a_job_that_ends_before_its_event_arrives_gets_no_machine() {
    let mut history = Simulation::new(1);
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![minutes(20)],
        _ => vec![],
    });
    let job = history.post(&small());
    history.after(minutes(10), move |history| history.cancel(job));
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.state().ec2.instances().count(), 0);
    assert_eq!(history.world.metric("LaunchUnneeded"), 1.0);
}

#[test]
fn the_signature_of_a_redelivery_is_the_same() {
    let world = World::new(1);
    let event = common::events(&world, &small()).remove(0);
    assert_eq!(signed(&event, WEBHOOK_SECRET), signed(&event, WEBHOOK_SECRET));
}
