//! The lives of the machines and of their runners' registrations.

use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::time::Timestamp;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::{Names, PREFIX, REGIONS, State, World};
use crate::ec2::{self, Allocation, FleetRequest, Market, Override, Tags};
use crate::github::Scope;
use crate::world::ORGANIZATION;

/// What machines do, as shares of them, 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Machines whose runner never comes online.
    pub dead_boots: f64,
    /// Runners whose registration is left behind when they end.
    pub left_behind: f64,
    /// Machines that are stopped for a while before they go on.
    pub stops: f64,
    /// Runners that are moved to another group.
    pub moves: f64,
    /// Registrations that get another name.
    pub renames: f64,
    /// Longest life of a machine.
    pub longest: Duration,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            dead_boots: 0.02,
            left_behind: 0.3,
            stops: 0.1,
            moves: 0.03,
            renames: 0.02,
            longest: Duration::from_secs(2 * 3600),
        }
    }
}

/// How a registration came to what it is, for worlds that begin in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its machine runs, and it is online.
    Alive,
    /// Its machine is there, and it is offline: stopped, or still booting.
    Offline,
    /// Its machine ended a while ago, and it was left behind.
    Orphan,
}

/// A machine and its runner.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Where.
    pub region: String,
    /// Its instance.
    pub instance: String,
    /// Its registration.
    pub runner_id: u64,
    jit: String,
    session: Option<String>,
}

/// What is yet to happen, to the machine of a runner of that name.
pub(super) enum Event {
    Connect(String),
    Busy(String, bool),
    Move(String),
    Rename(String),
    Stop(String),
    Start(String),
    End(String),
    /// The execution of that name ends.
    Close(String),
    /// The registration is removed, as it should be.
    Deregister(u64),
}

impl World {
    /// Launches a machine with a runner in that group, and lets it live as machines do.
    pub fn launch(&self, group: u64) -> String {
        let mut state = self.state();
        let name = state.launch(group);
        state.live(&name);
        name
    }

    /// A machine with a runner in that group which has that fate, within a minute: EC2 does not know a
    /// machine at once.
    pub fn found(&self, group: u64, fate: Fate) -> String {
        let mut state = self.state();
        let name = state.launch(group);
        let soon = state.now + Duration::from_secs(60);
        match fate {
            Fate::Alive => state.happen(Event::Connect(name.clone())),
            Fate::Offline => {
                if state.rng.random_bool(0.5) {
                    state.note(soon, Event::Stop(name.clone()));
                }
            }
            Fate::Orphan => {
                state.note(soon, Event::End(name.clone()));
                state.note(soon, Event::Close(name.clone()));
            }
        }
        name
    }

    /// Another system's runner in that group, which is offline between its jobs; its name is as like ours as may be.
    pub fn stranger(&self, group: u64) {
        let state = &mut *self.state();
        let (now, number) = (state.now, state.rng.random_range(0..u32::MAX));
        let name = match state.names {
            Names::InstanceIds => format!("acme-test-i-{number:017x}"),
            Names::Ostler => format!("widgets-{number}-{number:012x}"),
        };
        let scope = Scope::Organization(ORGANIZATION.into());
        let labels = ["self-hosted".to_owned()];
        // A name that is taken is of one that is there already.
        let _ = state.github.generate_jit(now, &scope, &name, Some(group), &labels);
    }

    /// Ends a runner that has been found, whatever it does: what is left behind is its registration.
    pub fn end(&self, name: &str) {
        let mut state = self.state();
        state.happen(Event::End(name.to_owned()));
        state.happen(Event::Close(name.to_owned()));
    }
}

impl State {
    fn launch(&mut self, group: u64) -> String {
        let region = REGIONS[self.rng.random_range(0..REGIONS.len())].to_owned();
        self.next_job += 1;
        let ours = self.key.base_name("widgets", JobId(self.next_job));
        let tags = match self.names {
            Names::InstanceIds => Tags::new(),
            Names::Ostler => Tags::from([("ostler:runner".to_owned(), ours.clone())]),
        };
        let request = FleetRequest {
            client_token: None,
            template: self.template.clone(),
            overrides: vec![Override {
                instance_type: Some("m7i.large".into()),
                subnet: Some("subnet-a".into()),
                image: Some("ami-0123456789abcdef0".into()),
                ..Override::default()
            }],
            market: Market::OnDemand,
            capacity: 1,
            allocation: Allocation::Listed,
            tags,
        };
        let now = self.now;
        let ec2 = self.regions.entry(region.clone()).or_insert_with(|| super::region(0));
        let bought = ec2.create_fleet(now, &request);
        let mut ids = bought.map(|it| it.instances).unwrap_or_default().into_iter();
        let instance = ids.next().and_then(|it| it.ids.into_iter().next()).unwrap_or_default();
        let name = match self.names {
            Names::InstanceIds => format!("{PREFIX}{instance}"),
            Names::Ostler => ours,
        };
        if self.names == Names::Ostler {
            self.executions.insert(name.clone(), true);
        }
        let scope = Scope::Organization(ORGANIZATION.into());
        let labels = ["self-hosted".to_owned()];
        if let Ok(jit) = self.github.generate_jit(now, &scope, &name, Some(group), &labels) {
            let (runner_id, jit) = (jit.runner.id, jit.encoded);
            let machine = Machine { region, instance, runner_id, jit, session: None };
            self.machines.insert(name.clone(), machine);
        }
        name
    }

    /// Writes down what is to become of a machine that has just been launched.
    fn live(&mut self, name: &str) {
        let habits = self.habits;
        let chance = |state: &mut Self, share: f64| share > 0.0 && state.rng.random_bool(share);
        let mut at = self.now + self.span(20, 120);
        let name = || name.to_owned();
        if !chance(self, habits.dead_boots) {
            self.note(at, Event::Connect(name()));
            if chance(self, 0.7) {
                at = at + self.span(5, 600);
                self.note(at, Event::Busy(name(), true));
                at = at + self.span(60, 3600);
                self.note(at, Event::Busy(name(), false));
            }
        }
        if chance(self, habits.stops) {
            at = at + self.span(10, 1800);
            self.note(at, Event::Stop(name()));
            at = at + self.span(120, 7200);
            self.note(at, Event::Start(name()));
            at = at + self.span(30, 120);
            self.note(at, Event::Connect(name()));
        }
        if chance(self, habits.moves) {
            let when = self.now + self.span(1, 7200);
            self.note(when, Event::Move(name()));
        }
        if chance(self, habits.renames) {
            let when = self.now + self.span(1, 7200);
            self.note(when, Event::Rename(name()));
        }
        let longest = self.now + habits.longest;
        let end = (at + self.span(1, 3600)).min(longest.max(at));
        self.note(end, Event::End(name()));
        let closed = end + self.span(0, 1800);
        self.note(closed, Event::Close(name()));
        if !chance(self, habits.left_behind)
            && let Some(machine) = self.machines.get(&name())
        {
            let id = machine.runner_id;
            let when = end + self.span(0, 300);
            self.note(when, Event::Deregister(id));
        }
    }

    fn span(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(least * 1000..=most * 1000))
    }

    pub(super) fn happen(&mut self, event: Event) {
        let now = self.now;
        let name = match &event {
            Event::Deregister(id) => {
                let scope = Scope::Organization(ORGANIZATION.into());
                // Whoever deregisters may find it gone, or busy: then it stays.
                let _ = self.github.delete_runner(now, &scope, *id);
                return;
            }
            Event::Close(name) => {
                self.executions.entry(name.clone()).and_modify(|running| *running = false);
                return;
            }
            Event::Connect(name)
            | Event::Busy(name, _)
            | Event::Move(name)
            | Event::Rename(name)
            | Event::Stop(name)
            | Event::Start(name)
            | Event::End(name) => name.clone(),
        };
        let Some(mut machine) = self.machines.remove(&name) else { return };
        let instance = [machine.instance.clone()];
        let ec2 = self.regions.get_mut(&machine.region);
        match event {
            Event::Connect(_) => {
                let runs = ec2.is_some_and(|ec2| {
                    let state = ec2.instance(&instance[0]).map(|it| it.state(now));
                    matches!(state, Some(ec2::State::Pending | ec2::State::Running))
                });
                if runs && let Ok(session) = self.github.connect(now, &machine.jit) {
                    machine.session = Some(session.id);
                    self.touched.insert(machine.runner_id, now);
                }
            }
            Event::Busy(_, busy) => {
                let forever = now + Duration::from_secs(365 * 86_400);
                if machine.session.is_some() {
                    let until = if busy { forever } else { now };
                    self.github.lie_about_busy(machine.runner_id, busy, until);
                    self.touched.insert(machine.runner_id, now);
                }
            }
            Event::Move(_) => {
                let group = *self.all_groups.choose(&mut self.rng).unwrap_or(&1);
                let from = self.github.registration(machine.runner_id).map(|it| it.group_id);
                if from.is_some_and(|from| from != group) {
                    self.github.move_runner(machine.runner_id, group);
                    self.touched.insert(machine.runner_id, now);
                }
            }
            Event::Rename(_) => {
                self.github.rename_runner(machine.runner_id, &format!("{name}-2"));
                self.touched.insert(machine.runner_id, now);
            }
            Event::Stop(_) => {
                let _ = ec2.map(|ec2| ec2.stop_instances(now, &instance));
                self.leave(&mut machine);
            }
            Event::Start(_) => {
                let _ = ec2.map(|ec2| ec2.start_instances(now, &instance));
            }
            Event::End(_) => {
                let _ = ec2.map(|ec2| ec2.terminate_instances(now, &instance));
                self.leave(&mut machine);
            }
            Event::Deregister(_) | Event::Close(_) => {}
        }
        self.machines.insert(name, machine);
    }

    /// A runner goes with its machine.
    fn leave(&mut self, machine: &mut Machine) {
        let now = self.now;
        if let Some(session) = machine.session.take() {
            self.github.disconnect(now, &session);
            self.github.lie_about_busy(machine.runner_id, false, now);
            self.touched.insert(machine.runner_id, now);
        }
    }

    /// When the machine of a runner ended; `None` if it has not.
    pub(super) fn machine_ended(&self, name: &str) -> Option<Timestamp> {
        let Some(machine) = self.machines.get(name) else { return Some(Timestamp::default()) };
        let instance = self.regions.get(&machine.region)?.instance(&machine.instance);
        // EC2 forgets ended instances after an hour.
        instance
            .map_or(Some(Timestamp::default()), |it| it.ended().filter(|ended| *ended <= self.now))
    }

    /// Whether there is nothing behind a name of ours.
    pub(super) fn is_orphan(&self, name: &str) -> bool {
        let runs = self.executions.get(name).copied().unwrap_or_default();
        self.is_ours(name) && !runs && self.machine_ended(name).is_some()
    }

    fn is_ours(&self, name: &str) -> bool {
        match self.names {
            Names::InstanceIds => name.starts_with(PREFIX) && !name.ends_with("-2"),
            Names::Ostler => self.key.made(name),
        }
    }

    /// Whether a deletion of what was observed then breaks the law, and how.
    pub(super) fn judge_deletion(
        &self,
        id: u64,
        name: &str,
        observed: Timestamp,
    ) -> Option<String> {
        let now = self.now;
        let since = |what: &str, at: Timestamp| Some(format!("{name} was {what} at {at}"));
        let view = self.github.registration(id)?;
        if view.online || view.busy {
            return since("online or busy", now);
        }
        if view.name != name {
            return since("renamed", now);
        }
        match self.touched.get(&id) {
            Some(at) if *at > observed => return since("alive, moved or renamed", *at),
            _ => {}
        }
        if !self.is_ours(name) {
            return since("another system's", now);
        }
        if self.executions.get(name) == Some(&true) {
            return since("an execution's", now);
        }
        match self.machine_ended(name) {
            None => since("on a machine", now),
            Some(ended) if ended > observed => since("on a machine until", ended),
            Some(_) => None,
        }
    }
}
