//! Instances as processes: boot, claim the registration, connect, run one job, power off. As
//! `infra/bootstrap.sh` and `actions/runner` do it.

use std::time::Duration;

use ostler_core::time::Timestamp;
use serde_json::json;

use super::{Event, Simulation};
use crate::ec2::{Happening, State};
use crate::github::Poll;

/// Between two looks for the registration.
const CLAIM_PAUSE: Duration = Duration::from_secs(5);

/// From the claim to the first connection.
const START_UP: Duration = Duration::from_secs(3);

/// Between two questions for work. The real one asks with a long poll.
const POLL_PAUSE: Duration = Duration::from_secs(5);

/// Between two signs of life of a runner at work.
const RENEW_PAUSE: Duration = Duration::from_secs(60);

/// For how long a runner tries to get a session that another has
/// (`actions/runner#1506`).
const SESSION_PATIENCE: Duration = Duration::from_secs(240);

/// From a change at EC2 to the function that is told of it.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// What becomes of a machine, other than what EC2's own faults do to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Nothing bad.
    #[default]
    Healthy,
    /// It loses its power this long after its boot.
    Dies(Duration),
    /// It loses its power this long after it was given a job.
    DiesAtWork(Duration),
    /// Nothing in it moves any more this long after its boot, its power-off included.
    Freezes(Duration),
    /// The same, this long after it was given a job.
    FreezesAtWork(Duration),
}

impl Fate {
    /// The kind of fault that it is.
    const fn kind(self) -> Option<&'static str> {
        match self {
            Self::Healthy => None,
            Self::Dies(_) => Some("machine: dies"),
            Self::DiesAtWork(_) => Some("machine: dies at work"),
            Self::Freezes(_) => Some("machine: freezes"),
            Self::FreezesAtWork(_) => Some("machine: freezes at work"),
        }
    }
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The runner in it.
    pub runner: String,
    /// What becomes of it.
    pub fate: Fate,
    /// The job that it was given.
    pub job: Option<u64>,
    /// When it began to listen for work.
    pub listened: Option<Timestamp>,
    /// When its power went off.
    pub off: Option<Timestamp>,
    phase: Phase,
    boot_timeout: Duration,
    claims_until: Timestamp,
    ends: Timestamp,
}

#[derive(Clone, Debug)]
enum Phase {
    Claims,
    Connects { jit: String, until: Timestamp },
    Listens { session: String },
    Works { session: String, job: u64, until: Timestamp },
    Frozen { session: Option<String> },
    Off,
}

impl Simulation {
    /// Takes up what EC2 says has happened.
    pub(super) fn take_machine_events(&mut self) {
        let (now, events) = {
            let mut state = self.world.state();
            let now = state.now;
            (now, state.ec2.events(now))
        };
        for event in events {
            match event.what {
                Happening::State(State::Pending) => self.launched(&event.instance),
                Happening::Boots { first: true } => self.boots(&event.instance, now),
                Happening::State(State::ShuttingDown | State::Terminated | State::Stopping) => {
                    self.power_lost(&event.instance);
                }
                Happening::State(_) | Happening::SpotWarning | Happening::Boots { .. } => {}
            }
            self.tell_of_instance(&event);
        }
        let next = self.world.state().ec2.next_event();
        if let Some(next) = next.filter(|next| self.ec2_due.is_none_or(|due| *next < due)) {
            self.ec2_due = Some(next);
            self.push(next, Event::Ec2);
        }
    }

    /// EventBridge's events of an instance, as the queue hands them over.
    fn tell_of_instance(&mut self, event: &crate::ec2::Event) {
        if !self.hears_instances {
            return;
        }
        let (kind, detail) = match event.what {
            Happening::State(state @ (State::ShuttingDown | State::Terminated)) => (
                "EC2 Instance State-change Notification",
                json!({"instance-id": event.instance, "state": state.name()}),
            ),
            Happening::SpotWarning => (
                "EC2 Spot Instance Interruption Warning",
                json!({"instance-id": event.instance, "instance-action": "terminate"}),
            ),
            _ => return,
        };
        let told = json!({"detail-type": kind, "source": "aws.ec2", "account": "123456789012",
            "region": "us-east-1", "time": event.at.to_string(), "detail": detail});
        let at = self.now() + TOLD_AFTER;
        self.push(at, Event::Told(told, 1));
    }

    fn launched(&mut self, id: &str) {
        let machine = {
            let state = self.world.state();
            let Some(instance) = state.ec2.instance(id) else { return };
            let tag = |key: &str| instance.tags.get(key).cloned().unwrap_or_default();
            let seconds = |key: &str| Duration::from_secs(tag(key).parse().unwrap_or_default());
            Machine {
                runner: tag("ostler:runner"),
                fate: self.fates.pop_front().unwrap_or_default(),
                job: None,
                listened: None,
                off: None,
                phase: Phase::Off,
                boot_timeout: seconds("ostler:boot-timeout"),
                claims_until: state.now,
                ends: state.now + seconds("ostler:max-lifetime"),
            }
        };
        self.machines.insert(id.into(), machine);
    }

    fn boots(&mut self, id: &str, now: Timestamp) {
        let Some(machine) = self.machines.get_mut(id).filter(|machine| machine.off.is_none())
        else {
            return;
        };
        machine.phase = Phase::Claims;
        machine.claims_until = now + machine.boot_timeout;
        let (fate, ends) = (machine.fate, machine.ends);
        if let Fate::Dies(after) | Fate::Freezes(after) = fate {
            self.push(now + after, Event::Fate(id.into()));
        }
        self.push(ends, Event::LifeEnds(id.into()));
        self.machine_step(id);
    }

    pub(super) fn machine_step(&mut self, id: &str) {
        let now = self.now();
        let Some((pause, phase)) = self.goes_on(id, now) else { return self.power_off(id) };
        if let Some(phase) = phase {
            self.turn(id, phase);
        }
        if let Some(pause) = pause {
            self.push(now + pause, Event::Machine(id.into()));
        }
    }

    /// What a machine does at this time: until when it rests (`None`: for good), and what it turns to.
    /// Without an answer it powers off.
    fn goes_on(&mut self, id: &str, now: Timestamp) -> Option<(Option<Duration>, Option<Phase>)> {
        let mut state = self.world.state();
        let machine = self.machines.get_mut(id)?;
        match machine.phase.clone() {
            Phase::Off | Phase::Frozen { .. } => Some((None, None)),
            Phase::Claims => {
                let Some(jit) = state.claim(id).map(|jit| jit.config.expose().to_owned()) else {
                    return (now < machine.claims_until).then_some((Some(CLAIM_PAUSE), None));
                };
                // Read, delete, and go on only once the delete is confirmed.
                state.handoff.remove(id);
                let until = now + START_UP + SESSION_PATIENCE;
                Some((Some(START_UP), Some(Phase::Connects { jit, until })))
            }
            Phase::Connects { jit, until } => match state.github.connect(now, &jit) {
                Ok(session) => {
                    machine.listened = Some(now);
                    Some((Some(Duration::ZERO), Some(Phase::Listens { session: session.id })))
                }
                Err(error) => {
                    (error.status == 409 && now < until).then_some((Some(RENEW_PAUSE), None))
                }
            },
            Phase::Listens { session } => match state.github.poll_job(now, &session) {
                Ok(Poll::Job(given)) => {
                    machine.job = Some(given.job_id);
                    let line = format!(
                        "CDKGHR JOB RUNNER={} REPO={} WORKFLOW_ID={}",
                        machine.runner, given.repository, given.run_id
                    );
                    if let Fate::DiesAtWork(after) | Fate::FreezesAtWork(after) = machine.fate {
                        drop(state);
                        self.push(now + after, Event::Fate(id.into()));
                    } else {
                        drop(state);
                    }
                    self.print(&line);
                    let (job, until) = (given.job_id, now + given.duration);
                    let pause = given.duration.min(RENEW_PAUSE);
                    Some((Some(pause), Some(Phase::Works { session, job, until })))
                }
                Ok(Poll::Idle) => Some((Some(POLL_PAUSE), None)),
                Ok(Poll::Gone) | Err(_) => None,
            },
            Phase::Works { session, job, until } => {
                let stops = state.github.renew(now, &session).ok()?;
                if stops || now >= until {
                    let conclusion = if stops { "cancelled" } else { "success" };
                    // GitHub may have ended the job meanwhile; the runner exits all the same.
                    let _ = state.github.complete(now, &session, job, conclusion);
                    return None;
                }
                let pause = RENEW_PAUSE.min(until.since(now));
                Some((Some(pause), None))
            }
        }
    }

    fn turn(&mut self, id: &str, phase: Phase) {
        if let Some(machine) = self.machines.get_mut(id) {
            machine.phase = phase;
        }
    }

    /// Its fate reaches a machine.
    pub(super) fn fate(&mut self, id: &str) {
        let Some(machine) = self.machines.get(id).filter(|machine| machine.off.is_none()) else {
            return;
        };
        let fate = machine.fate;
        if let Some(kind) = fate.kind() {
            self.struck(kind);
        }
        match fate {
            Fate::Healthy => {}
            Fate::Dies(_) | Fate::DiesAtWork(_) => self.power_off(id),
            Fate::Freezes(_) | Fate::FreezesAtWork(_) => {
                let session = self.machines.get(id).and_then(|machine| session(&machine.phase));
                self.turn(id, Phase::Frozen { session });
            }
        }
    }

    /// The machine's own watchdog: a frozen one has none.
    pub(super) fn life_ends(&mut self, id: &str) {
        let frozen = |machine: &Machine| matches!(machine.phase, Phase::Frozen { .. });
        if self.machines.get(id).is_some_and(|machine| !frozen(machine)) {
            self.power_off(id);
        }
    }

    /// A machine powers itself off.
    pub fn power_off(&mut self, id: &str) {
        let now = self.now();
        self.world.state().ec2.power_off(now, id);
        self.power_lost(id);
    }

    fn power_lost(&mut self, id: &str) {
        let now = self.now();
        let Some(machine) = self.machines.get_mut(id) else { return };
        machine.off.get_or_insert(now);
        let session = session(&machine.phase);
        machine.phase = Phase::Off;
        if let Some(session) = session {
            self.world.state().github.disconnect(now, &session);
        }
    }
}

fn session(phase: &Phase) -> Option<String> {
    match phase {
        Phase::Listens { session } | Phase::Works { session, .. } => Some(session.clone()),
        Phase::Frozen { session } => session.clone(),
        Phase::Claims | Phase::Connects { .. } | Phase::Off => None,
    }
}
