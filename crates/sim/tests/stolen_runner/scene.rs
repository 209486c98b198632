//! A world in which a test says which runner takes which job.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::ports::{Executions, Ledger, Ran};
use ostler_core::report::Report;
use ostler_core::runner::{self, StepEvent};
use ostler_core::{Error, stolen};
use ostler_sim::github::{JobSpec, Poll, Scope, Status};
use ostler_sim::simulation::log_delivery;
use ostler_sim::world::{ORGANIZATION, REPOSITORY, World, tier};
use serde_json::{Value, json};

use crate::common;

/// A repository of the organisation where the App is not installed.
pub const STRANGE: &str = "acme/strange";

/// Another one where it is.
pub const OTHER: &str = "acme/other";

pub struct Scene {
    pub world: World,
}

/// A job of ours, and the runner that was started for it.
#[derive(Clone, Debug)]
pub struct Mine {
    pub job: u64,
    pub runner: String,
}

impl Scene {
    pub fn new() -> Self {
        let world = World::new(1);
        world.tiers(&[tier("small", &["small"]), tier("large", &["small", "large"])]);
        {
            let mut state = world.state();
            state.github.add_repository(STRANGE, true).installed = false;
            state.github.add_repository(OTHER, true);
        }
        Self { world }
    }

    pub fn small() -> JobSpec {
        JobSpec::new(REPOSITORY, &["self-hosted", "small"])
    }

    pub fn large() -> JobSpec {
        JobSpec::new(REPOSITORY, &["self-hosted", "large"])
    }

    pub fn strange() -> JobSpec {
        JobSpec::new(STRANGE, &["self-hosted", "small"])
    }

    /// A job that nothing is started for.
    pub fn post(&self, spec: &JobSpec) -> u64 {
        let _ = common::events(&self.world, spec);
        let state = self.world.state();
        state.github.all_jobs().map(|job| job.id).max().unwrap()
    }

    /// A job that is accepted, and recorded as a launch does it.
    pub fn accept(&self, spec: &JobSpec) -> Mine {
        let (status, runner) = common::handle(&self.world, &common::queued(&self.world, spec));
        assert_eq!(status, 202, "{runner}");
        let job = self.world.state().github.all_jobs().map(|job| job.id).max().unwrap();
        self.record(&runner);
        Mine { job, runner }
    }

    /// Records the runner's job, as its launch does.
    pub fn record(&self, runner: &str) {
        let execution = self.world.run("test", self.world.describe(runner)).unwrap().unwrap();
        let input = execution.unwrap().input.unwrap();
        let expires = self.world.state().now + Duration::from_secs(4 * 86_400);
        self.world
            .run("test", self.world.record_job(runner, &input, expires, expires))
            .unwrap()
            .unwrap();
    }

    /// Registers a runner and brings it online; its session.
    pub fn online(&self, runner: &str) -> String {
        let (id, session) = {
            let mut state = self.world.state();
            let now = state.now;
            let labels = state.executions[runner].input["labels"].as_str().unwrap().to_owned();
            let labels: Vec<String> = labels.split(',').map(str::to_owned).collect();
            let scope = Scope::Organization(ORGANIZATION.into());
            let jit = state.github.generate_jit(now, &scope, runner, Some(1), &labels).unwrap();
            (jit.runner.id, state.github.connect(now, &jit.encoded).unwrap().id)
        };
        let expires = self.world.state().now + Duration::from_secs(86_400);
        let id = i64::try_from(id).unwrap();
        let noted = self.world.record_registration(runner, id, expires);
        self.world.run("test", noted).unwrap().unwrap();
        session
    }

    /// GitHub gives that job to that session, whatever else waits.
    pub fn give(&self, session: &str, job: u64) {
        let mut state = self.world.state();
        let now = state.now;
        let others: Vec<u64> = state
            .github
            .all_jobs()
            .filter(|other| other.id != job && other.status == Status::Queued)
            .map(|other| other.id)
            .collect();
        others.iter().for_each(|other| state.github.hold(*other, Status::Waiting));
        match state.github.poll_job(now, session).unwrap() {
            Poll::Job(given) => assert_eq!(given.job_id, job),
            other => panic!("{other:?}"),
        }
        others.iter().for_each(|other| state.github.hold(*other, Status::Queued));
        let _ = state.github.take_events();
    }

    /// A runner comes online and is given that job.
    pub fn takes(&self, runner: &str, job: u64) -> String {
        let session = self.online(runner);
        self.give(&session, job);
        session
    }

    /// The job on that session ends well.
    pub fn completes(&self, session: &str, job: u64) {
        let mut state = self.world.state();
        let now = state.now;
        state.github.complete(now, session, job, "success").unwrap();
        let _ = state.github.take_events();
    }

    /// An execution ends, its machine with it.
    pub fn ends(&self, runner: &str) {
        let mut state = self.world.state();
        let now = state.now;
        let execution = state.executions.get_mut(runner).unwrap();
        execution.status = ostler_sim::world::Status::Succeeded;
        execution.ended = Some(now);
    }

    pub fn run_of(&self, job: u64) -> i64 {
        let state = self.world.state();
        let job = state.github.all_jobs().find(|found| found.id == job).unwrap();
        i64::try_from(job.run_id).unwrap()
    }

    pub fn repository_of(&self, job: u64) -> String {
        let state = self.world.state();
        let job = state.github.all_jobs().find(|found| found.id == job).unwrap();
        job.repository.clone()
    }

    /// The webhook's word that a runner took a job.
    pub fn signed(&self, runner: &str, job: u64) -> Report {
        Report {
            job_id: Some(JobId(i64::try_from(job).unwrap())),
            job_labels: Some("self-hosted,small".into()),
            ..self.line(runner, job)
        }
    }

    /// What the runner's line says when it takes a job.
    pub fn line(&self, runner: &str, job: u64) -> Report {
        Report {
            runner_name: runner.into(),
            repo: self.repository_of(job),
            workflow_id: self.run_of(job),
            job_id: None,
            job_labels: None,
        }
    }

    /// Handles an event.
    pub fn handle(&self, event: &Value) -> Result<Value, Error> {
        self.world.run("stolen-runner", stolen::handle(&self.world, event, || true)).unwrap()
    }

    /// Judges a report that comes for the `receives`th time; whether it has to come again.
    pub fn judge(&self, report: &Report, receives: u32) -> bool {
        let event = json!({ "Records": [record("m", report, receives)] });
        let answer = self.handle(&event).unwrap();
        !answer["batchItemFailures"].as_array().unwrap().is_empty()
    }

    /// Judges it as SQS brings it, until it is done with. How often it came; at most five times.
    pub fn judged(&self, report: &Report) -> u32 {
        for receives in 1..=5 {
            self.world.pass(Duration::from_secs(if receives == 1 { 60 } else { 180 }));
            if !self.judge(report, receives) {
                return receives;
            }
        }
        panic!("it came to the dead-letter queue: {report:?}")
    }

    /// A check of a runner, with what is remembered of it: its machine was launched a moment ago unless
    /// that says otherwise, and has claimed its registration. Gives what is remembered then.
    pub fn check(&self, runner: &str, remembered: &Value) -> Value {
        let (mut job, now) = {
            let state = self.world.state();
            (state.executions[runner].input.clone(), state.now)
        };
        let mut state = json!({"next": "wait", "instance": "i-0123456789abcdef0", "launchedAt": now.millis(),
            "lifetimeSeconds": 21_600, "bootSeconds": 300, "claimed": true});
        for (key, value) in remembered.as_object().unwrap() {
            state[key] = value.clone();
        }
        job["run"] = json!({ "state": state });
        let event = json!({"step": "check", "runnerName": runner, "startedAt": now.to_string(), "job": job});
        let event = StepEvent::read(&event).unwrap();
        let settings = self.world.current_settings();
        let checked = runner::run(&self.world, &settings, &event);
        let state = self.world.run("check", checked).unwrap().unwrap();
        serde_json::to_value(state).unwrap()
    }

    /// Delivers lines.
    pub fn deliver(&self, lines: &[&str]) -> Result<Value, Error> {
        self.handle(&log_delivery(lines))
    }

    /// All executions beyond those of the jobs given.
    pub fn replacements(&self, mine: &[&Mine]) -> Vec<String> {
        let base = |name: &String| mine.iter().any(|mine| mine.runner == *name);
        common::names(&self.world).into_iter().filter(|name| !base(name)).collect()
    }

    pub fn ran(&self, runner: &str) -> Ran {
        self.world.state().runner_record(runner).ran
    }

    /// How many messages the queue holds.
    pub fn queued(&self) -> usize {
        let mut state = self.world.state();
        let now = state.now;
        let counts = state.reports.counts(now);
        counts.delayed + counts.visible + counts.in_flight
    }

    /// `StolenRunnerDetected` by `replaced`.
    pub fn detected(&self, replaced: &str) -> f64 {
        let state = self.world.state();
        let of = |(key, _): &(&(&'static str, String), &f64)| {
            key.0 == "StolenRunnerDetected" && key.1.split(',').next() == Some(replaced)
        };
        state.metrics.iter().filter(of).map(|(_, count)| *count).sum()
    }
}

/// A runner with one label more than its tier has, so that such a job may be given to it.
pub fn with_gpu(scene: &Scene, mine: &Mine) {
    let mut state = scene.world.state();
    let input = &mut state.executions.get_mut(&mine.runner).unwrap().input;
    input["labels"] = json!(format!("{},gpu", input["labels"].as_str().unwrap()));
}

/// An SQS record.
pub fn record(id: &str, report: &Report, receives: u32) -> Value {
    let body = serde_json::to_string(report).unwrap();
    json!({"messageId": id, "receiptHandle": "r", "body": body, "eventSource": "aws:sqs",
        "attributes": {"ApproximateReceiveCount": receives.to_string(),
            "MessageGroupId": report.group()}})
}

/// What is logged meanwhile, line by line.
pub fn logged(act: impl FnOnce()) -> Vec<Value> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let out = lines.clone();
    let log = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_ansi(false)
        .with_writer(move || out.clone())
        .finish();
    tracing::subscriber::with_default(log, act);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}
