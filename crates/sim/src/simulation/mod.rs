//! Whole histories: jobs are posted, webhooks delivered, executions played by the real definition with the
//! real use cases as their function, machines boot, work and die. One thread, one agenda, virtual time.
//!
//! A function's invocation goes on from port call to port call; with a latency ([`crate::world::State`])
//! other things happen in between, so that invocations overlap as they do in a cloud.

pub mod asl;
mod deliveries;
mod invocations;
mod machines;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ostler_core::time::Timestamp;
use serde_json::Value;

pub use deliveries::{
    Answered, Courier, Printer, Ruler, log_delivery, packed, request, signed, stream_delivery,
};
pub use machines::{Fate, Machine};

use crate::github::{self, GitHub, JobSpec};
use crate::world::{State, Status, World};
use asl::{Definition, Next};
use deliveries::Delivery;
use invocations::{Invocation, Purpose};

/// From an event at GitHub to its delivery.
const DELIVERY_TIME: Duration = Duration::from_secs(1);

/// From a line's printing to its delivery.
const LINE_TIME: Duration = Duration::from_secs(5);

/// How often GitHub's own timers are looked at.
const TICK: Duration = Duration::from_secs(60);

/// How often the report queue is asked.
const REPORT_PAUSE: Duration = Duration::from_secs(20);

/// The reconciler's period (`infra/recovery.yaml`).
const RECONCILE_EVERY: Duration = Duration::from_secs(300);

/// From the end of an execution to the rule's invocation.
const RULE_DELAY: Duration = Duration::from_secs(2);

/// How often the reaper looks (`infra/reaper.yaml`).
const SWEEP_PAUSE: Duration = Duration::from_secs(600);

/// How often a delivery that failed is sent again.
const REDELIVERIES: u32 = 3;

/// Something on the agenda.
enum Event {
    /// Something that a test planned.
    Plan(Box<dyn FnOnce(&mut Simulation)>),
    /// A webhook arrives.
    Deliver(Box<Delivery>),
    /// An invocation goes on.
    Resume(u64),
    /// An execution goes on.
    Execution(String),
    /// An execution that failed is cleaned up from outside.
    Orphan(Value, u32),
    /// A machine goes on.
    Machine(String),
    /// A machine meets its fate.
    Fate(String),
    /// A machine's lifetime is over.
    LifeEnds(String),
    /// EC2 has something to tell.
    Ec2,
    /// The report queue is asked.
    Reports,
    /// The log's subscription delivers.
    Lines(Value, u32),
    /// The reconciler's schedule.
    Reconcile,
    /// What EC2 tells of an instance, and how often that was received.
    Told(Value, u32),
    /// GitHub's timers.
    Tick,
    /// The reaper looks.
    Sweep,
}

/// A history.
pub struct Simulation {
    /// The world in which it happens.
    pub world: World,
    /// Fates of the machines to come, in order of launch.
    pub fates: VecDeque<Fate>,
    /// Machines by instance.
    pub machines: BTreeMap<String, Machine>,
    /// How events travel.
    pub courier: Courier,
    /// A delivery that was answered 5xx, or not at all, is sent again after this.
    pub redelivery: Option<Duration>,
    /// How the lines travel that runners print when they begin a job.
    pub printer: Printer,
    /// How the events of executions that ended otherwise than well reach the function.
    pub ruler: Ruler,
    /// Whether there is a stolen-runner handler: lines are queued, and reports judged.
    pub judges_reports: bool,
    /// Whether there is a reconciler.
    pub reconciles: bool,
    /// Whether one run of it in ten has time for little.
    pub hurried: bool,
    /// People approve a job that is run again this long after it came, as they did its forerunner.
    pub approves_again: Option<Duration>,
    /// Whether EC2's events of instances are heard.
    pub hears_instances: bool,
    /// How many reports ended in the dead-letter queue.
    pub dead_reports: usize,
    /// The invocations (counted from 1) whose answers are lost on the way: each is made again.
    pub lost_answers: Vec<u64>,
    /// The invocations (counted from 1) that are made twice: AWS invokes at least once.
    pub repeated: Vec<u64>,
    /// Invocations so far.
    pub invocations: u64,
    /// How many of them were cut off at their time-out.
    pub timed_out: u64,
    /// Deliveries that were answered.
    pub answers: Vec<Answered>,
    /// Jobs that a person cancelled.
    pub cancelled: Vec<u64>,
    /// Events of ended executions that were given up.
    pub dead_letters: u32,
    /// What must not happen and did, as it was seen on the way.
    pub violations: Vec<String>,
    /// How often each kind of fault has struck, as far as it is not the models' own.
    pub faults: BTreeMap<&'static str, u64>,
    sweeps: bool,
    definition: Rc<Definition>,
    running: BTreeMap<u64, Invocation>,
    agenda: BTreeMap<(Timestamp, u64), Event>,
    sequence: u64,
    ec2_due: Option<Timestamp>,
}

impl Simulation {
    /// Over a calm world.
    pub fn new(seed: u64) -> Self {
        Self::over(World::new(seed))
    }

    /// Over a world.
    pub fn over(world: World) -> Self {
        let mut new = Self {
            world,
            fates: VecDeque::new(),
            machines: BTreeMap::new(),
            courier: Box::new(|_, _| vec![DELIVERY_TIME]),
            redelivery: Some(Duration::from_secs(300)),
            printer: Box::new(|_, _| vec![LINE_TIME]),
            ruler: Box::new(|_, _| vec![RULE_DELAY]),
            judges_reports: false,
            reconciles: false,
            hurried: false,
            approves_again: None,
            hears_instances: false,
            dead_reports: 0,
            lost_answers: Vec::new(),
            repeated: Vec::new(),
            invocations: 0,
            timed_out: 0,
            answers: Vec::new(),
            cancelled: Vec::new(),
            dead_letters: 0,
            violations: Vec::new(),
            faults: BTreeMap::new(),
            sweeps: false,
            definition: Rc::new(Definition::orchestrator()),
            running: BTreeMap::new(),
            agenda: BTreeMap::new(),
            sequence: 0,
            ec2_due: None,
        };
        let now = new.now();
        new.push(now + TICK, Event::Tick);
        new.push(now + REPORT_PAUSE, Event::Reports);
        new.push(now + RECONCILE_EVERY, Event::Reconcile);
        new
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.world.state().now
    }

    /// Everything of the world; not while something runs.
    pub fn state(&self) -> std::cell::RefMut<'_, State> {
        self.world.state()
    }

    /// Has a reaper look from now on; what is left for it is waited for.
    pub fn sweep(&mut self) {
        self.sweeps = true;
        let at = self.now() + SWEEP_PAUSE;
        self.push(at, Event::Sweep);
    }

    /// Notes that a fault of that kind has struck.
    pub fn struck(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Starts an execution with an input, as others than Ostler's functions would.
    pub fn begin(&mut self, name: &str, input: Value) {
        {
            let mut state = self.world.state();
            let begun = crate::world::Execution::begun(name, input, state.now);
            state.executions.insert(name.into(), begun);
            state.begun.push_back(name.into());
        }
        self.take_events();
    }

    /// Posts a job now.
    pub fn post(&mut self, spec: &JobSpec) -> u64 {
        self.at_github(|github, now| github.post_job(now, spec)).unwrap_or_default()
    }

    /// Something happens at GitHub now.
    pub fn at_github<T>(&mut self, act: impl FnOnce(&mut GitHub, Timestamp) -> T) -> T {
        let now = self.now();
        let done = act(&mut self.world.state().github, now);
        self.take_events();
        done
    }

    /// Someone approves the deployment of a job.
    pub fn approve(&mut self, job: u64) {
        // One that is not held needs no approval.
        let _ = self.at_github(|github, now| github.approve(now, job));
    }

    /// Someone cancels a job.
    pub fn cancel(&mut self, job: u64) {
        if self.at_github(|github, now| github.cancel_job(now, job)).is_ok() {
            self.cancelled.push(job);
        }
    }

    /// Does something later.
    pub fn after(&mut self, time: Duration, act: impl FnOnce(&mut Self) + 'static) {
        let at = self.now() + time;
        self.push(at, Event::Plan(Box::new(act)));
    }

    /// Sends an event (again).
    pub fn deliver(&mut self, event: &github::Event, after: Duration) {
        let at = self.now() + after;
        self.push(at, Event::Deliver(Box::new(Delivery::new(Rc::new(event.clone()), 1))));
    }

    /// Something in a runner's machine prints a line to the runners' log. It is delivered by itself.
    pub fn print(&mut self, line: &str) {
        if self.judges_reports {
            let now = self.now();
            let times = (self.printer)(line, &mut self.world.state().rng);
            for time in times {
                self.push(now + time, Event::Lines(log_delivery(&[line]), 0));
            }
        }
    }

    /// Lets that much time pass.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.agenda.keys().next().is_some_and(|(at, _)| *at <= until) {
            self.happen();
        }
        self.world.pass_until(until);
    }

    /// Goes on until nothing is left to do, for `longest` at most. Whether it came to that.
    pub fn run_to_rest(&mut self, longest: Duration) -> bool {
        let until = self.now() + longest;
        while !self.at_rest() {
            if self.agenda.keys().next().is_none_or(|(at, _)| *at > until) {
                return false;
            }
            self.happen();
        }
        true
    }

    /// Whether nothing would ever happen again by itself. GitHub's timers, empty queues and a reconciler to whom
    /// nothing is due don't count.
    pub fn at_rest(&self) -> bool {
        let idle = |event: &Event| {
            matches!(
                event,
                Event::Tick
                    | Event::Reports
                    | Event::Reconcile
                    | Event::Ec2
                    | Event::LifeEnds(_)
                    | Event::Sweep
            )
        };
        let now = self.now();
        self.running.is_empty()
            && self.agenda.values().all(idle)
            && self.machines.values().all(|machine| machine.off.is_some())
            && {
                let mut state = self.world.state();
                state.begun.is_empty()
                    && state.executions.values().all(|it| it.status != Status::Running)
                    && (!self.sweeps || state.ec2.instances().all(|it| it.state(now).is_over()))
                    && (!self.judges_reports || state.reports.counts(now) == Default::default())
            }
            // Last, because it reads the settings.
            && (!self.reconciles || self.nothing_is_due())
    }

    /// Whether the reconciler would find nothing, however often it looked.
    fn nothing_is_due(&self) -> bool {
        let state = self.world.state();
        state.ledger.open.is_empty()
            && state.ledger.failures.is_empty()
            && state.ledger.interrupted.is_empty()
            && state.deliveries.entries.iter().all(|(line, _)| {
                line.ok || state.ledger.position.is_some_and(|position| line.id <= position)
            })
            && crate::invariants::waiting_jobs(&state).next().is_none()
    }

    /// The instance of a runner, the latest one.
    pub fn instance_of(&self, runner: &str) -> Option<String> {
        let state = self.world.state();
        let its =
            |it: &&crate::ec2::Instance| it.tags.get("ostler:runner").is_some_and(|r| r == runner);
        state.ec2.instances().filter(its).last().map(|it| it.id.clone())
    }

    fn push(&mut self, at: Timestamp, event: Event) {
        self.sequence += 1;
        self.agenda.insert((at, self.sequence), event);
    }

    /// The next thing on the agenda.
    fn happen(&mut self) {
        let Some(((at, _), event)) = self.agenda.pop_first() else { return };
        self.world.pass_until(at);
        match event {
            Event::Plan(act) => act(self),
            Event::Deliver(delivery) => self.deliver_now(*delivery),
            Event::Resume(id) => self.resume(id),
            Event::Execution(name) => self.execution_goes_on(&name),
            Event::Orphan(event, tries) => self.clean_orphan(event, tries),
            Event::Machine(id) => self.machine_step(&id),
            Event::Fate(id) => self.fate(&id),
            Event::LifeEnds(id) => self.life_ends(&id),
            Event::Ec2 => self.ec2_due = None,
            Event::Reports => {
                self.push(at + REPORT_PAUSE, Event::Reports);
                self.receive_reports();
            }
            Event::Lines(event, tries) => self.lines_arrive(event, tries),
            Event::Sweep => {
                self.push(at + SWEEP_PAUSE, Event::Sweep);
                self.invoke("reaper", Purpose::Sweep, Value::Null);
            }
            Event::Told(event, receives) => {
                let purpose = Purpose::Told(event.clone(), receives);
                self.invoke("instance-events", purpose, event);
            }
            Event::Reconcile => {
                self.push(at + RECONCILE_EVERY, Event::Reconcile);
                if self.reconciles {
                    self.invoke("reconciler", Purpose::Reconcile, Value::Null);
                }
            }
            Event::Tick => {
                self.push(at + TICK, Event::Tick);
                self.world.state().github.tick(at);
            }
        }
        self.take_events();
    }

    /// Takes up what the models have to tell, and looks at what must always hold.
    fn take_events(&mut self) {
        self.take_machine_events();
        let now = self.now();
        let events = self.world.state().github.take_events();
        for event in events {
            self.hold_again(&event);
            let times = (self.courier)(&event, &mut self.world.state().rng);
            let event = Rc::new(event);
            for time in times {
                let delivery = Delivery::new(Rc::clone(&event), 1);
                self.push(now + time, Event::Deliver(Box::new(delivery)));
            }
        }
        let again = std::mem::take(&mut self.world.state().deliveries.again);
        for event in again {
            let delivery = Delivery::new(event, 2);
            self.push(now + DELIVERY_TIME, Event::Deliver(Box::new(delivery)));
        }
        let mut started = false;
        loop {
            let begun = self.world.state().begun.pop_front();
            let Some(name) = begun else { break };
            started = true;
            self.push(now, Event::Execution(name));
        }
        if started {
            crate::invariants::one_runner_each(self);
        }
    }

    /// An environment holds a job that is run again, too (docs: deployments and environments).
    fn hold_again(&mut self, event: &github::Event) {
        let Some(after) = self.approves_again else { return };
        if event.action.as_deref() != Some("waiting") {
            return;
        }
        let id = event.payload["workflow_job"]["id"].as_u64();
        let again = |job: &github::Job| Some(job.id) == id && job.attempt > 1;
        let job = self.state().github.all_jobs().find(|job| again(job)).map(|job| job.id);
        if let Some(job) = job {
            self.after(after, move |history| history.approve(job));
        }
    }

    fn deliver_now(&mut self, mut delivery: Delivery) {
        delivery.at = self.now();
        delivery.id = self.world.state().deliveries.begin();
        let secret = self.world.state().parameters.get("control/webhook-secret").cloned();
        let secret = secret.map(|secret| secret.expose().to_owned()).unwrap_or_default();
        let event = signed(&delivery.event, &secret);
        self.invoke("webhook", Purpose::Webhook(Box::new(delivery)), event);
    }

    fn answered(&mut self, delivery: Delivery, answer: Option<&Value>) {
        let status = answer.and_then(|answer| answer["statusCode"].as_u64()).unwrap_or(502);
        let status = u16::try_from(status).unwrap_or(502);
        let body = answer.and_then(|answer| answer["body"].as_str()).unwrap_or_default();
        self.answers.push(Answered::new(&delivery.event, status, body));
        let line = (delivery.line(status), Rc::clone(&delivery.event));
        self.world.state().deliveries.entries.push(line);
        if let Some(after) = self.redelivery
            && status >= 500
            && delivery.attempt <= REDELIVERIES
        {
            let again = Delivery::new(delivery.event, delivery.attempt + 1);
            let at = self.now() + after;
            self.push(at, Event::Deliver(Box::new(again)));
        }
    }

    fn execution_goes_on(&mut self, name: &str) {
        self.advance(name, |definition, execution, _| match execution.at.is_empty() {
            true => definition.begin(execution),
            false => definition.resume(execution),
        });
    }

    /// Takes an execution one step on.
    fn advance(
        &mut self,
        name: &str,
        step: impl FnOnce(&Definition, &mut crate::world::Execution, &mut rand::rngs::StdRng) -> Next,
    ) {
        let definition = Rc::clone(&self.definition);
        let next = {
            let mut state = self.world.state();
            let state = &mut *state;
            let Some(execution) = state.executions.get_mut(name) else { return };
            if execution.status != Status::Running {
                return;
            }
            step(&definition, execution, &mut state.rng)
        };
        match next {
            Next::Invoke(payload) => {
                let caller = match payload["step"].as_str() {
                    Some("launch") => "launch",
                    Some("register") => "register",
                    Some("check") => "check",
                    _ => "cleanup",
                };
                self.invoke(caller, Purpose::Step(name.into()), payload);
            }
            Next::Wait(time) => {
                let at = self.now() + time;
                self.push(at, Event::Execution(name.into()));
            }
            Next::Ended(status) => self.end_execution(name, status),
        }
    }

    /// Ends an execution: by itself, or because someone stops it (`Aborted`).
    pub fn end_execution(&mut self, name: &str, status: Status) {
        let event = {
            let mut state = self.world.state();
            let now = state.now;
            let Some(execution) = state.executions.get_mut(name) else { return };
            execution.status = status;
            execution.ended = Some(now);
            serde_json::json!({
                "detail-type": "Step Functions Execution Status Change",
                "source": "aws.states",
                "detail": {
                    "name": name,
                    "status": if status == Status::Aborted { "ABORTED" } else { "FAILED" },
                    "startDate": execution.started.millis(),
                    "stopDate": now.millis(),
                    "input": execution.input.to_string(),
                },
            })
        };
        if status != Status::Succeeded {
            let times = (self.ruler)(name, &mut self.world.state().rng);
            let kind = match times.as_slice() {
                [] => Some("rule: never told"),
                [_, _, ..] => Some("rule: told twice"),
                [after] if *after > 10 * RULE_DELAY => Some("rule: told late"),
                [_] => None,
            };
            if let Some(kind) = kind {
                self.struck(kind);
            }
            let now = self.now();
            for after in times {
                self.push(now + after, Event::Orphan(event.clone(), 0));
            }
        }
    }
}
