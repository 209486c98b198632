//! Rules of the world that the use cases meet, beside those that the models' own tests show (`github`, `ec2`, `queue`,
//! `asl`): Step Functions' names, DynamoDB's conditions and times, EventBridge's and Lambda's ways with what they deliver.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{hours, lasting, minutes, runners, seconds, small};
use ostler_core::job::{JobId, RunnerInput};
use ostler_core::ports::{
    Clock as _, Configuration as _, Executions as _, Handoff as _, Jit, Ledger as _, Ran, Start,
};
use ostler_core::secret::Secret;
use ostler_sim::ec2::Span;
use ostler_sim::github::JobSpec;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{Plan, REPOSITORY, Status, Strike, World};
use serde_json::json;

fn input(job: i64) -> RunnerInput {
    serde_json::from_value(
        json!({"owner": "acme", "repo": "widgets", "jobId": job, "provider": "small",
        "labels": "self-hosted,small"}),
    )
    .unwrap()
}

fn run<T>(world: &World, future: impl Future<Output = T>) -> T {
    world.run("test", future).unwrap()
}

#[test]
fn an_executions_name_is_bounded_and_of_few_characters() {
    let world = World::new(1);
    for wrong in ["", "a b", "a/b", "\u{e9}", &"x".repeat(81)] {
        assert!(run(&world, world.start(wrong, &input(1))).is_err(), "{wrong}");
    }
    for right in ["a", "A-b_c.9", &"x".repeat(80)] {
        assert!(run(&world, world.start(right, &input(1))).is_ok(), "{right}");
    }
}

/// Step Functions API, StartExecution: idempotent for a standard workflow as long as it runs, and then never again.
#[test]
fn a_name_starts_once_and_is_repeated_only_while_it_runs_with_the_same_input() {
    let world = World::new(1);
    let began = world.now();
    assert_eq!(
        run(&world, world.start("n", &input(1))).unwrap(),
        Start::Accepted { started: began }
    );
    world.pass(minutes(1));
    assert_eq!(
        run(&world, world.start("n", &input(1))).unwrap(),
        Start::Accepted { started: began }
    );
    assert_eq!(run(&world, world.start("n", &input(2))).unwrap(), Start::Exists);
    world.state().executions.get_mut("n").unwrap().status = Status::Succeeded;
    assert_eq!(run(&world, world.start("n", &input(1))).unwrap(), Start::Exists);
}

/// API, DescribeExecution: "eventually consistent".
#[test]
fn a_look_at_an_execution_may_not_know_its_latest_change() {
    let world = World::new(1);
    world.state().describe_lag = Span::seconds(3, 3);
    run(&world, world.start("n", &input(1))).unwrap();
    assert!(run(&world, world.describe("n")).unwrap().is_none());
    world.pass(seconds(3));
    assert!(run(&world, world.describe("n")).unwrap().unwrap().running);
    {
        let mut state = world.state();
        let now = state.now;
        let execution = state.executions.get_mut("n").unwrap();
        (execution.status, execution.ended) = (Status::Succeeded, Some(now));
    }
    assert!(run(&world, world.describe("n")).unwrap().unwrap().running);
    world.pass(seconds(4));
    assert!(!run(&world, world.describe("n")).unwrap().unwrap().running);
}

/// DynamoDB deletes within days of an item's time (guide, "Time to Live"): the item is there, and whoever reads it looks
/// at the time himself. Writing to it begins anew.
#[test]
fn an_item_past_its_time_is_there_and_counts_for_nothing() {
    let world = World::new(1);
    let until = world.now() + hours(1);
    run(&world, world.record_job("widgets-7-abc", &input(7), until, until)).unwrap();
    run(&world, world.account("widgets-7-abc", &Ran::Taken, until, until)).unwrap();
    let jit = Jit { runner_id: 1, config: Secret::new("s") };
    run(&world, world.put("i-1", &jit, until)).unwrap();
    assert!(run(&world, world.job(JobId(7))).unwrap().is_some());
    world.pass(hours(1));
    assert_eq!(world.state().ledger.jobs.len(), 1);
    assert!(run(&world, world.job(JobId(7))).unwrap().is_none());
    assert_eq!(run(&world, world.runner("widgets-7-abc")).unwrap().ran, Ran::Unknown);
    assert!(!run(&world, world.lies("i-1")).unwrap());
    assert!(!run(&world, world.withdraw("i-1")).unwrap());
    let anew = world.now() + hours(1);
    let record = run(&world, world.record_job("widgets-7-abc-r1", &input(7), anew, anew)).unwrap();
    assert_eq!(record.runner_name.as_deref(), Some("widgets-7-abc-r1"));
}

#[test]
fn conditions_let_a_job_s_runner_move_forward_only_and_a_proved_job_stay() {
    let world = World::new(1);
    let until = world.now() + hours(1);
    for (name, latest) in
        [("w-7-abc-r1", "w-7-abc-r1"), ("w-7-abc", "w-7-abc-r1"), ("w-7-abc-q1", "w-7-abc-q1")]
    {
        let record = run(&world, world.record_job(name, &input(7), until, until)).unwrap();
        assert_eq!(record.runner_name.as_deref(), Some(latest), "{name}");
    }
    let job = Ran::Job { id: JobId(9), repository: None };
    for (ran, known) in [(&Ran::Taken, &Ran::Taken), (&job, &job), (&Ran::Taken, &job)] {
        assert_eq!(&run(&world, world.account("w-7-abc", ran, until, until)).unwrap().ran, known);
    }
    run(&world, world.cancel_job(JobId(8), until, until)).unwrap();
    let record = run(&world, world.record_job("w-8-abc", &input(8), until, until)).unwrap();
    assert_eq!(record.cancelled_at, Some(until));
}

/// A history in which one execution is aborted after its job has begun.
fn aborted(ruler: fn() -> Vec<std::time::Duration>) -> Simulation {
    let mut history = Simulation::new(1);
    history.ruler = Box::new(move |_, _| ruler());
    history.post(&lasting(minutes(3)));
    history.run_for(minutes(2));
    let name = history.state().executions.keys().next().unwrap().clone();
    history.end_execution(&name, Status::Aborted);
    history
}

#[test]
fn the_rule_on_ended_executions_tells_once_twice_late_or_never() {
    for (ruler, told) in [
        ((|| vec![seconds(2)]) as fn() -> _, None),
        (|| vec![seconds(2), seconds(60)], Some("rule: told twice")),
        (|| vec![hours(1)], Some("rule: told late")),
        (|| vec![], Some("rule: never told")),
    ] {
        let mut history = aborted(ruler);
        let kinds: Vec<_> = history.faults.keys().copied().collect();
        assert_eq!(kinds, told.into_iter().collect::<Vec<_>>());
        history.run_for(hours(2));
        let calls = history.world.count("orphan", "Ledger.runner");
        // Lambda tries again until the machine, which works, is off.
        assert!(
            if told == Some("rule: never told") { calls == 0 } else { calls > 0 },
            "{told:?}: {calls}"
        );
    }
}

/// Lambda guide, "Asynchronous invocation": two more tries, after one minute and two more, then the dead-letter queue.
#[test]
fn an_asynchronous_invocation_that_fails_is_tried_three_times_and_then_given_up() {
    let mut history = aborted(|| vec![seconds(2)]);
    history.state().plan = Plan::next("Ledger.runner", 9, Strike::Before);
    history.run_for(minutes(10));
    assert_eq!((history.world.count("orphan", "Ledger.runner"), history.dead_letters), (3, 1));
}

#[test]
fn a_function_is_killed_at_any_call_and_cut_off_at_its_time_out() {
    let mut history = Simulation::new(1);
    history.state().plan = Plan::next("Fleet.launch", 1, Strike::CutAfter);
    history.post(&small());
    history.run_for(minutes(30));
    // The purchase was made, and made again under the same token: one instance.
    assert_eq!(history.world.count("launch", "Fleet.launch"), 2);
    assert_eq!(history.state().ec2.instances().count(), 1);

    let mut history = Simulation::new(1);
    history.state().plan = Plan::next("", 2, Strike::Slow);
    history.post(&small());
    history.run_for(minutes(1));
    // The webhook has 15 seconds.
    assert_eq!((history.timed_out, history.answers[0].status), (1, 502));
}

#[test]
fn instances_of_a_function_know_what_they_have_read_themselves() {
    let world = World::new(1);
    let set = |world: &World, text: &str| {
        world.state().parameters.insert("control/tiers".into(), Secret::new(text));
    };
    let tiers = |world: &World| run(world, world.settings()).unwrap().tiers.iter().count();
    assert_eq!(tiers(&world), 1);
    set(&world, r#"{"tiers": []}"#);
    assert_eq!(tiers(&world), 1, "a warm one keeps it");
    world.state().cold_in = 1;
    assert_eq!(tiers(&world), 0, "a cold one reads");
    world.state().cold_in = 0;
    assert_eq!(tiers(&world), 1, "that was another's reading");
    world.pass(minutes(5));
    assert_eq!(tiers(&world), 0);
}

#[test]
fn invocations_of_one_function_overlap_once_calls_take_time() {
    let mut history = Simulation::new(1);
    history.state().latency = Span { least: seconds(1), most: seconds(1) };
    history.post(&small());
    history.post(&small());
    history.run_for(seconds(8));
    let state = history.state();
    let webhooks: Vec<_> =
        state.calls.iter().filter(|it| it.caller == "webhook").map(|it| (it.name, it.at)).collect();
    let starts =
        webhooks.iter().filter(|(name, _)| *name == "Executions.start").collect::<Vec<_>>();
    assert_eq!((starts.len(), starts[0].1), (2, starts[1].1), "{webhooks:?}");
}

/// GitHub gives a job to any runner that covers it, whoever started it: also one of a repository that sends no events.
#[test]
fn a_job_that_nothing_was_started_for_takes_a_runner_that_fits() {
    let mut history = Simulation::new(1);
    history.state().github.add_repository("acme/strange", true).installed = false;
    let thief = history.post(&JobSpec::new("acme/strange", &["self-hosted", "small"]));
    history.run_for(minutes(5));
    assert_eq!(runners(&history), 0);
    let spec = JobSpec::new(REPOSITORY, &["self-hosted", "small"]);
    let first = history.post(&spec);
    history.run_for(minutes(3));
    let state = history.state();
    let began = |id| state.github.all_jobs().any(|job| job.id == id && job.started_at.is_some());
    assert!(began(thief) != began(first), "one of them has the only runner");
}
