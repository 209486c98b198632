//! What must always hold (the design's I1 to I6, and I9), looked at on the way and at the end of a history.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::config::Settings;
use ostler_core::labels::Labels;
use ostler_core::names::{Lineage, MAX_REPLACEMENTS};
use ostler_core::ports::Ran;
use serde_json::Value;

use crate::github::{Job, Status as JobStatus};
use crate::simulation::{Fate, Simulation};
use crate::world::{Execution, State, Status};

/// Ends of checks that say that the machine is gone.
const GONE: [&str; 3] = ["ran a job", "ran nothing", "vanished"];

/// Least time between two generations of a job's runners.
const GENERATION_INTERVAL: Duration = Duration::from_secs(3600);

/// What a history may cost, because of what was done to it.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Healthy runners that ended without a job.
    pub surplus: usize,
    /// The longest wait of an accepted job for a runner.
    pub longest_wait: Duration,
}

impl Allowance {
    /// Nothing out of the ordinary.
    pub const NONE: Self = Self { surplus: 0, longest_wait: Duration::from_secs(300) };
}

/// I1, while it happens: a job has at most one available runner.
pub(crate) fn one_runner_each(history: &mut Simulation) {
    let mut available: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    {
        let state = history.world.state();
        for (name, execution) in &state.executions {
            let record = state.runner_record(name);
            if execution.status == Status::Running
                && record.ran == Ran::Unknown
                && record.ended_at.is_none()
                && record.interrupted_at.is_none()
                && let Some(job) = execution.job()
            {
                available.entry(job).or_default().push(name.clone());
            }
        }
    }
    let now = history.now();
    for (job, names) in available.into_iter().filter(|(_, names)| names.len() > 1) {
        history.violations.push(format!("I1: {now}: job {job} has {}", names.join(" and ")));
    }
}

/// I6, while it happens: a machine that is called gone is not there.
pub(crate) fn gone_is_proved(history: &mut Simulation, runner: &str, answer: &Value) {
    let reason = answer["reason"].as_str().unwrap_or_default();
    let ends = answer["next"] == "ended" && GONE.contains(&reason);
    let Some(id) = answer["instance"].as_str().filter(|_| ends) else { return };
    let now = history.now();
    let lives = {
        let state = history.world.state();
        state.ec2.instance(id).is_some_and(|instance| !instance.state(now).is_over())
    };
    if lives {
        history
            .violations
            .push(format!("I6: {now}: {runner} was called gone ({reason}) and lives"));
    }
}

/// Everything that does not hold at the end of a history that has come to rest.
pub fn violations(history: &Simulation, allowance: Allowance) -> Vec<String> {
    let mut found = history.violations.clone();
    let state = history.world.state();
    found.extend(state.harm.iter().map(|harm| format!("I4: {harm}")));
    waiting(history, &state, allowance, &mut found);
    surplus(history, &state, allowance, &mut found);
    left_behind(history, &state, &mut found);
    told(&state, &mut found);
    found
}

/// Jobs for which a runner was started.
pub fn accepted(state: &State) -> Vec<u64> {
    let mut jobs: Vec<u64> = state.executions.values().filter_map(Execution::job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Jobs that a tier would take, of repositories that were active, and that wait at GitHub: what a reconciler
/// has to find.
pub fn waiting_jobs(state: &State) -> impl Iterator<Item = &Job> {
    let settings = Settings::from_parameters(&state.parameters);
    state
        .github
        .all_jobs()
        .filter(|job| job.status == JobStatus::Queued)
        .filter(move |job| settings.may_serve(&Labels::new(&job.labels)))
        .filter(|job| state.ledger.repositories.contains_key(&job.repository.to_lowercase()))
}

/// I2: no job waits for ever, nor longer than it may. With a reconciler that holds for all jobs of ours in active
/// repositories, whether anything was ever started for them or not.
fn waiting(history: &Simulation, state: &State, allowance: Allowance, found: &mut Vec<String>) {
    let mut accepted = accepted(state);
    if history.reconciles {
        accepted.extend(waiting_jobs(state).map(|job| job.id));
    }
    for job in state.github.all_jobs().filter(|job| accepted.contains(&job.id)) {
        let (id, status) = (job.id, job.status);
        match (status, job.started_at) {
            (_, Some(started)) => {
                let waited = started.since(job.queued_at);
                if waited > allowance.longest_wait {
                    found.push(format!("I2: job {id} waited for {waited:?}"));
                }
            }
            (JobStatus::Queued, None) if !history.reconciles && used_up(history, state, id) => {}
            (JobStatus::Queued, None) => found.push(format!("I2: job {id} waits for ever")),
            (JobStatus::Completed, None) if !history.cancelled.contains(&id) => {
                found.push(format!("I2: job {id} was never served"));
            }
            (_, None) => {}
        }
    }
}

/// Whether a job has had all runners of a generation, and every one was truly lost: it never came up,
/// died, or was taken by another job. Such a job waits for the next generation, which only a new event
/// or the reconciler starts.
fn used_up(history: &Simulation, state: &State, job: u64) -> bool {
    let mut its = state.executions.values().filter(|execution| execution.job() == Some(job));
    let lost = |runner: &str| {
        history.machines.values().filter(|machine| machine.runner == runner).all(|machine| {
            let taken = machine.job.is_some_and(|ran| ran != job);
            let forsaken = state.github.forsaken().contains(runner);
            taken || forsaken || machine.listened.is_none() || machine.fate != Fate::Healthy
        })
    };
    generation_is_full(state, job) && its.all(|execution| lost(&execution.name))
}

/// Whether the latest generation of a job's runners has had all its replacements.
pub(crate) fn generation_is_full(state: &State, job: u64) -> bool {
    let its = state.executions.values().filter(|execution| execution.job() == Some(job));
    let generations: Vec<u8> = its.map(|it| Lineage::parse(&it.name).generation).collect();
    let latest = generations.iter().max();
    generations.iter().filter(|it| Some(*it) == latest).count() > usize::from(MAX_REPLACEMENTS)
}

/// I3: runners are started for accepted jobs and in place of others, and no more of them.
fn surplus(history: &Simulation, state: &State, allowance: Allowance, found: &mut Vec<String>) {
    let idle: Vec<&str> = history
        .machines
        .values()
        .filter(|machine| machine.listened.is_some() && machine.job.is_none())
        .filter(|machine| machine.fate == Fate::Healthy)
        .filter(|machine| !state.github.forsaken().contains(&machine.runner))
        .map(|machine| machine.runner.as_str())
        .collect();
    let never_ran = |job: &&Job| job.started_at.is_none();
    let owed = accepted(state);
    let owed = state.github.all_jobs().filter(|job| owed.contains(&job.id)).filter(never_ran);
    if idle.len() > allowance.surplus + owed.count() {
        found.push(format!("I3: {} runners came up for nothing: {idle:?}", idle.len()));
    }
    let mut first: BTreeMap<(String, u8), ostler_core::time::Timestamp> = BTreeMap::new();
    for (name, execution) in &state.executions {
        let lineage = Lineage::parse(name);
        if lineage.replacement == 0 {
            first.insert((lineage.base, lineage.generation), execution.started);
        }
    }
    for ((base, generation), started) in &first {
        let before = generation.checked_sub(1).and_then(|g| first.get(&(base.clone(), g)));
        if before.is_some_and(|before| started.since(*before) < GENERATION_INTERVAL) {
            found.push(format!("I3: {base} has generation {generation} within the hour"));
        }
    }
}

/// I5: nothing is left behind.
fn left_behind(history: &Simulation, state: &State, found: &mut Vec<String>) {
    let now = state.now;
    for instance in state.ec2.instances().filter(|it| !it.state(now).is_over()) {
        found.push(format!("I5: instance {} is left ({:?})", instance.id, instance.state(now)));
    }
    let ours = |name: &str| state.executions.contains_key(name);
    for entry in state.github.registrations().iter().filter(|entry| ours(&entry.name)) {
        found.push(format!("I5: the registration of {} is left", entry.name));
    }
    for (instance, _) in state.handoff.iter().filter(|(_, item)| item.expires > now) {
        found.push(format!("I5: the handoff item of {instance} is left"));
    }
    for execution in state.executions.values().filter(|it| it.status == Status::Running) {
        found.push(format!("I5: {} still runs, at {}", execution.name, execution.at));
    }
    if history.dead_letters > 0 {
        found.push(format!("I5: {} cleanups were given up", history.dead_letters));
    }
}

/// I9: no execution carries a registration's secret.
fn told(state: &State, found: &mut Vec<String>) {
    for execution in state.executions.values() {
        let text = execution.data.to_string();
        let tail = |secret: &String| text.contains(&secret[secret.len().saturating_sub(64)..]);
        if state.secrets.iter().any(tail) {
            found.push(format!("I9: {} carries a JIT configuration", execution.name));
        }
    }
}
