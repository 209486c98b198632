//! What the tests of whole histories share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::time::Duration;

use ostler_core::reconciler::reconcile;
use ostler_core::secret::Secret;
use ostler_core::webhook;
pub use ostler_sim::campaign::story;
use ostler_sim::ec2::Span;
use ostler_sim::github::{self, JobSpec};
use ostler_sim::invariants::{Allowance, violations};
use ostler_sim::simulation::{Simulation, request, signed};
use ostler_sim::world::{Progress, REPOSITORY, Status, WEBHOOK_SECRET, World, tier};
use serde_json::Value;

/// Longer than any history here: the day that GitHub keeps a job queued, and a runner's life.
const LONGEST: Duration = Duration::from_secs(40 * 3600);

pub const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

pub const fn hours(hours: u64) -> Duration {
    Duration::from_secs(3600 * hours)
}

/// A job of the tier `small` that runs a minute.
pub fn small() -> JobSpec {
    JobSpec::new(REPOSITORY, &["self-hosted", "small"])
}

/// The same, of another length.
pub fn lasting(duration: Duration) -> JobSpec {
    JobSpec { duration, ..small() }
}

/// Goes on until the history rests, and asserts that all that must hold holds.
#[track_caller]
pub fn holds(history: &mut Simulation, allowance: Allowance) {
    let found = verdict(history, allowance);
    assert!(found.is_empty(), "{found:#?}\n{}", story(history));
}

/// Goes on until the history rests; what does not hold then.
pub fn verdict(history: &mut Simulation, allowance: Allowance) -> Vec<String> {
    match history.run_to_rest(LONGEST) {
        true => violations(history, allowance),
        false => vec![format!("it did not come to rest by {}", history.now())],
    }
}

/// How a job ended.
pub fn conclusion(history: &Simulation, job: u64) -> Option<String> {
    let state = history.state();
    state.github.all_jobs().find(|found| found.id == job).and_then(|job| job.conclusion.clone())
}

/// The tier `small`, with these keys, is the only one.
pub fn only_tier(history: &Simulation, keys: Value) {
    let mut tier = tier("small", &["small"]);
    for (key, value) in keys.as_object().expect("an object") {
        tier[key] = value.clone();
    }
    history.world.tiers(&[tier]);
}

/// EC2 takes a runner's spot machine back.
#[track_caller]
pub fn interrupt(history: &mut Simulation, runner: &str) {
    let id = history.instance_of(runner).unwrap_or_else(|| panic!("{runner} has a machine"));
    let now = history.now();
    assert!(history.state().ec2.interrupt(now, &id), "{runner} is on a spot machine");
    // The models tell what is new when something happens.
    history.at_github(|_, _| ());
}

/// A job of a repository that the App can't see, which asks for what the tier `small` has, and runs so long.
pub fn strange(history: &mut Simulation, duration: Duration) -> u64 {
    history.state().github.add_repository("acme/strange", true).installed = false;
    let spec = JobSpec::new("acme/strange", &["self-hosted", "small"]);
    history.post(&JobSpec { duration, ..spec })
}

/// Two runs of the reconciler at a time: the first is where it is after so many calls when the second does all of its
/// work.
pub fn two_reconcilers(world: &World, calls: usize) {
    let settings = world.current_settings();
    let one = Duration::from_secs(1);
    world.state().latency = Span { least: one, most: one };
    let mut first = std::pin::pin!(reconcile(world, &settings, || true));
    let mut goes_on = true;
    for _ in 0..calls {
        match world.poll(first.as_mut()) {
            Progress::Sleeps(until) => world.pass_until(until),
            _ => goes_on = false,
        }
        if !goes_on {
            break;
        }
    }
    world
        .run("reconciler", reconcile(world, &settings, || true))
        .expect("not killed")
        .expect("done");
    if goes_on {
        world.run("reconciler", first);
    }
}

/// Names of the executions, by status.
pub fn ended(history: &Simulation, status: Status) -> Vec<String> {
    let state = history.state();
    let its = state.executions.values().filter(|execution| execution.status == status);
    its.map(|execution| execution.name.clone()).collect()
}

/// How many executions there are.
pub fn runners(history: &Simulation) -> usize {
    history.state().executions.len()
}

/// Hands an event to the webhook's use case: status and words of the answer.
pub fn handle(world: &World, event: &Value) -> (u64, String) {
    let answer = world.run("webhook", webhook::handle(world, event)).expect("not killed");
    let body = answer["body"].as_str().expect("a text").to_owned();
    (answer["statusCode"].as_u64().expect("a number"), body)
}

/// Posts a job, and gives the events of it.
pub fn events(world: &World, spec: &JobSpec) -> Vec<github::Event> {
    let mut state = world.state();
    let now = state.now;
    state.github.post_job(now, spec).expect("a repository that is there");
    state.github.take_events()
}

/// Posts a job, and gives its `queued` event as the function gets it.
pub fn queued(world: &World, spec: &JobSpec) -> Value {
    signed(&events(world, spec)[0], WEBHOOK_SECRET)
}

/// Posts a job, and gives the payload of its `queued` event.
pub fn payload(world: &World, spec: &JobSpec) -> Value {
    events(world, spec)[0].payload.clone()
}

/// A `workflow_job` delivery of that body, signed.
pub fn signed_body(body: &str) -> Value {
    signed_as("workflow_job", body)
}

/// A delivery of any event, signed.
pub fn signed_as(event: &str, body: &str) -> Value {
    let signature = webhook::sign(body.as_bytes(), &Secret::new(WEBHOOK_SECRET));
    request(event, "0a1b2c3d-guid", body, &signature)
}

/// Calls to AWS so far, the reading of parameters aside.
pub fn aws_calls(world: &World) -> usize {
    let other = ["Configuration", "Forge"];
    let state = world.state();
    state.calls.iter().filter(|call| !other.iter().any(|port| call.name.starts_with(port))).count()
}

/// Names of all executions.
pub fn names(world: &World) -> Vec<String> {
    world.state().executions.keys().cloned().collect()
}
