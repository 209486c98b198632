//! What becomes of an instance: ended, stopped, started, shut down from inside, taken back.

use std::borrow::Cow;

use ostler_core::time::Timestamp;

use super::throttle::Kind;
use super::{Ec2, Fault, LISTED_AFTER_END, Market, Reason, SPOT_NOTICE, Span, State, Step, Tags};

/// What a call did to an instance (API, InstanceStateChange).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The instance.
    pub instance: String,
    /// Its state before.
    pub previous: State,
    /// Its state now.
    pub current: State,
}

/// Something that happened to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// To which.
    pub instance: String,
    /// What.
    pub what: Happening,
}

/// What happened to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// "EC2 Instance State-change Notification".
    State(State),
    /// "EC2 Spot Instance Interruption Warning": two minutes are left.
    SpotWarning,
    /// No event of AWS: the machine is up, and its user data starts if this is its `first` boot.
    Boots {
        /// Whether it never ran before.
        first: bool,
    },
}

/// An attribute that can be changed.
#[derive(Clone, Debug)]
pub enum InstanceAttribute {
    /// User data, without base64. Only of a stopped instance.
    UserData(Vec<u8>),
    /// Whether power-off from inside ends the instance.
    TerminatesOnPowerOff(bool),
    /// Whether TerminateInstances is refused.
    Protected(bool),
}

/// Most ids in one call (API, TerminateInstances).
const MOST_IDS: usize = 1000;

impl Ec2 {
    /// TerminateInstances. One bad id fails the call and nothing is ended; an instance that has ended
    /// already is no error (API). Unlike EC2, which ends those in other zones, one that is protected
    /// fails the call as a whole.
    pub fn terminate_instances(
        &mut self,
        now: Timestamp,
        ids: &[String],
    ) -> Result<Vec<Change>, Fault> {
        self.admit(now, "TerminateInstances", Kind::Change)?;
        let found = self.some_of(now, ids)?;
        if let Some(held) = found.iter().map(|seq| &self.instances[seq]).find(|it| it.protected) {
            return Err(Fault::new(
                "OperationNotPermitted",
                format!(
                    "The instance '{}' may not be terminated. Modify its 'disableApiTermination' \
                     instance attribute and try again.",
                    held.id
                ),
            ));
        }
        Ok(found
            .into_iter()
            .map(|seq| {
                self.changing(now, seq, |ec2, state| {
                    if !state.is_over() {
                        ec2.end(now, seq, user_initiated(now));
                    }
                })
            })
            .collect())
    }

    /// StopInstances. A spot instance of a one-time request cannot be stopped (API,
    /// `UnsupportedOperation`).
    pub fn stop_instances(&mut self, now: Timestamp, ids: &[String]) -> Result<Vec<Change>, Fault> {
        self.admit(now, "StopInstances", Kind::Change)?;
        let found = self.some_of(now, ids)?;
        for seq in &found {
            let instance = &self.instances[seq];
            if instance.spot.as_ref().is_some_and(|spot| !spot.persistent) {
                return Err(Fault::new(
                    "UnsupportedOperation",
                    format!(
                        "You can't stop the Spot Instance '{}' because it is associated with a \
                         one-time Spot Instance request. You can only stop Spot Instances \
                         associated with persistent Spot Instance requests.",
                        instance.id
                    ),
                ));
            }
            if instance.state(now).is_over() {
                return Err(wrong_state(&instance.id, "stopped"));
            }
        }
        Ok(found
            .into_iter()
            .map(|seq| {
                self.changing(now, seq, |ec2, state| {
                    if matches!(state, State::Pending | State::Running) {
                        ec2.halt(now, seq, user_initiated(now));
                    }
                })
            })
            .collect())
    }

    /// StartInstances. Needs capacity anew (aws-solutions/instance-scheduler-on-aws#321); moves the
    /// launch time (API, Instance.LaunchTime).
    pub fn start_instances(
        &mut self,
        now: Timestamp,
        ids: &[String],
    ) -> Result<Vec<Change>, Fault> {
        self.admit(now, "StartInstances", Kind::Change)?;
        self.settle(now);
        let found = self.some_of(now, ids)?;
        for seq in &found {
            let instance = &self.instances[seq];
            match instance.state(now) {
                State::Pending | State::Running => {}
                State::Stopped => self.room(&instance.pool)?,
                _ => return Err(wrong_state(&instance.id, "started")),
            }
        }
        Ok(found
            .into_iter()
            .map(|seq| {
                self.changing(now, seq, |ec2, state| {
                    if state == State::Stopped {
                        ec2.power_on(now, seq);
                    }
                })
            })
            .collect())
    }

    /// The machine powered off by itself: the launch template's shutdown behaviour decides (Guide,
    /// "Instance initiated shutdown behavior"). Not an API call.
    pub fn power_off(&mut self, now: Timestamp, id: &str) {
        let Some(&seq) = self.ids.get(id) else { return };
        let instance = &self.instances[&seq];
        if !matches!(instance.state(now), State::Pending | State::Running) {
            return;
        }
        let reason = Reason {
            code: "Client.InstanceInitiatedShutdown",
            message: Cow::Borrowed("Client.InstanceInitiatedShutdown: Instance initiated shutdown"),
            transition: String::new(),
        };
        if instance.terminates_on_power_off {
            self.end(now, seq, reason);
        } else {
            self.halt(now, seq, reason);
        }
    }

    /// EC2 takes a spot instance back: a warning now, the end in two minutes. Answers whether there was
    /// one to take. Not an API call.
    pub fn interrupt(&mut self, now: Timestamp, id: &str) -> bool {
        let Some(&seq) = self.ids.get(id) else { return false };
        let Some(instance) = self.instances.get_mut(&seq) else { return false };
        if instance.pool.market != Market::Spot
            || instance.interrupted.is_some()
            || instance.state(now).is_over()
        {
            return false;
        }
        instance.interrupted = Some(now);
        self.note(now, seq, Happening::SpotWarning);
        let at = now + SPOT_NOTICE;
        self.end(
            at,
            seq,
            Reason {
                code: "Server.SpotInstanceTermination",
                message: Cow::Borrowed("Server.SpotInstanceTermination: Spot instance termination"),
                transition: format!("Service initiated ({})", long_date(at)),
            },
        );
        true
    }

    /// ModifyInstanceAttribute.
    pub fn modify_instance(
        &mut self,
        now: Timestamp,
        id: &str,
        attribute: InstanceAttribute,
    ) -> Result<(), Fault> {
        self.admit(now, "ModifyInstanceAttribute", Kind::Change)?;
        let seq = self.resolve(now, &[id.to_owned()])?[0];
        let Some(instance) = self.instances.get_mut(&seq) else { return Ok(()) };
        match attribute {
            InstanceAttribute::UserData(_) if instance.state(now) != State::Stopped => {
                return Err(Fault::new(
                    "IncorrectInstanceState",
                    format!("The instance '{id}' is not in the 'stopped' state."),
                ));
            }
            InstanceAttribute::UserData(data) => instance.user_data = data.into(),
            InstanceAttribute::TerminatesOnPowerOff(it) => instance.terminates_on_power_off = it,
            InstanceAttribute::Protected(it) => instance.protected = it,
        }
        Ok(())
    }

    /// CreateTags, on instances and spot requests; a new instance may not be known to it yet
    /// (aws/aws-sdk-ruby#1198).
    pub fn create_tags(
        &mut self,
        now: Timestamp,
        resources: &[String],
        tags: &[(String, String)],
    ) -> Result<(), Fault> {
        self.admit(now, "CreateTags", Kind::Change)?;
        self.retag(now, resources, |old| old.extend(tags.iter().cloned()))
    }

    /// DeleteTags. A tag with a value goes only if the value is that one (API).
    pub fn delete_tags(
        &mut self,
        now: Timestamp,
        resources: &[String],
        tags: &[(String, Option<String>)],
    ) -> Result<(), Fault> {
        self.admit(now, "DeleteTags", Kind::Change)?;
        self.retag(now, resources, |old| {
            old.retain(|key, value| {
                !tags.iter().any(|(k, v)| k == key && v.as_ref().is_none_or(|v| v == value))
            });
        })
    }

    fn retag(
        &mut self,
        now: Timestamp,
        resources: &[String],
        change: impl Fn(&mut Tags),
    ) -> Result<(), Fault> {
        let (requests, ids): (Vec<_>, Vec<_>) =
            resources.iter().cloned().partition(|id| id.starts_with("sir-"));
        let instances = self.resolve(now, &ids)?;
        let requests = self.spot_requests_of(now, &requests)?;
        for seq in requests {
            if let Some(spot) = self.instances.get_mut(&seq).and_then(|it| it.spot.as_mut()) {
                change(&mut spot.tags);
            }
        }
        for seq in instances {
            let Some(instance) = self.instances.get_mut(&seq) else { continue };
            let old = instance.tags.clone();
            change(&mut instance.tags);
            let new = instance.tags.clone();
            for tag in old {
                self.untag(seq, tag);
            }
            for tag in new {
                self.tagged.entry(tag).or_default().insert(seq);
            }
        }
        Ok(())
    }

    /// Makes a spot instance's request persistent, as RunInstances with `SpotInstanceType` makes them. Not an
    /// API call.
    pub fn make_persistent(&mut self, id: &str) {
        let instance = self.ids.get(id).and_then(|seq| self.instances.get_mut(seq));
        if let Some(spot) = instance.and_then(|it| it.spot.as_mut()) {
            spot.persistent = true;
        }
    }

    /// CancelSpotInstanceRequests. The instance of a request that was active runs on; one that was stopped is
    /// ended by EC2 (Guide, "Cancel a Spot Instance request").
    pub fn cancel_spot_requests(
        &mut self,
        now: Timestamp,
        ids: &[String],
    ) -> Result<Vec<(String, &'static str)>, Fault> {
        self.admit(now, "CancelSpotInstanceRequests", Kind::Change)?;
        let found = self.spot_requests_of(now, ids)?;
        let mut answer = Vec::new();
        for seq in found {
            let Some(instance) = self.instances.get_mut(&seq) else { continue };
            let state = instance.state(now);
            let Some(spot) = instance.spot.as_mut() else { continue };
            if !state.is_over() {
                spot.cancelled.get_or_insert(now);
            }
            answer.push((spot.id.clone(), if state.is_over() { "closed" } else { "cancelled" }));
            if matches!(state, State::Stopping | State::Stopped) {
                self.end(now, seq, user_initiated(now));
            }
        }
        Ok(answer)
    }

    pub(super) fn spot_requests_of(
        &self,
        now: Timestamp,
        ids: &[String],
    ) -> Result<Vec<u64>, Fault> {
        ids.iter()
            .map(|id| {
                let hit = self.instances.values().find(|instance| {
                    let spot = instance.spot.as_ref();
                    instance.listed(now) && spot.is_some_and(|it| it.id == *id && !it.passed_on)
                });
                hit.map(|instance| instance.seq).ok_or_else(|| {
                    let code = if id.starts_with("sir-") { "NotFound" } else { "Malformed" };
                    Fault::new(
                        format!("InvalidSpotInstanceRequestID.{code}"),
                        format!("The spot instance request ID '{id}' does not exist"),
                    )
                })
            })
            .collect()
    }

    /// When [`Ec2::events`] next has something to tell.
    pub fn next_event(&self) -> Option<Timestamp> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    /// What has happened up to `now`, in order, each thing once.
    pub fn events(&mut self, now: Timestamp) -> Vec<Event> {
        let mut due = Vec::new();
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= now
        {
            due.push(entry.remove());
        }
        due
    }

    fn some_of(&self, now: Timestamp, ids: &[String]) -> Result<Vec<u64>, Fault> {
        if ids.is_empty() {
            return Err(Fault::new(
                "MissingParameter",
                "The request must contain the parameter InstanceId",
            ));
        }
        if ids.len() > MOST_IDS {
            return Err(Fault::new(
                "InvalidParameterValue",
                format!("At most {MOST_IDS} instance IDs may be given"),
            ));
        }
        self.resolve(now, ids)
    }

    fn changing(&mut self, now: Timestamp, seq: u64, act: impl FnOnce(&mut Self, State)) -> Change {
        let previous = self.instances[&seq].state(now);
        act(self, previous);
        let instance = &self.instances[&seq];
        Change { instance: instance.id.clone(), previous, current: instance.state(now) }
    }

    /// Lays out the start of an instance: pending, running, and its boot.
    pub(super) fn power_on(&mut self, now: Timestamp, seq: u64) {
        let running = now + self.options.pending.draw(&mut self.rng);
        let boots = now + self.options.boot.draw(&mut self.rng);
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        instance.launched = now;
        instance.holds_pool = true;
        *self.used.entry(instance.pool.clone()).or_default() += 1;
        self.lay_out(seq, &[(now, State::Pending), (running, State::Running)], None);
        self.boot_at(seq, Some(boots));
    }

    /// Moves the start of the user data that [`Ec2::power_on`] laid out; `None`: it never comes.
    pub(super) fn boot_at(&mut self, seq: u64, boots: Option<Timestamp>) {
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        instance.boots = boots;
        let (first, since) = (instance.is_first_boot(), instance.launched);
        self.unnote(seq, |at, what| at >= since && matches!(what, Happening::Boots { .. }));
        if let Some(at) = boots {
            self.note(at, seq, Happening::Boots { first });
        }
    }

    /// Shutting down at `at`, terminated some time later.
    pub(super) fn end(&mut self, at: Timestamp, seq: u64, reason: Reason) {
        let instance = &self.instances[&seq];
        if let Some(ended) = instance.ended() {
            self.drops.remove(&(ended + LISTED_AFTER_END, seq));
        }
        // A stopped instance has no machine to shut down.
        let stopped = instance.state(at) == State::Stopped;
        let span = if stopped { Span::ZERO } else { self.options.shutting_down };
        let gone = at + span.draw(&mut self.rng);
        let steps = [(at, State::ShuttingDown), (gone, State::Terminated)];
        self.lay_out(seq, &steps, Some(reason));
        self.drops.insert((gone + LISTED_AFTER_END, seq));
        self.release(at, seq);
        self.reopen(at, seq);
    }

    /// A persistent request that was not cancelled starts another instance in place of the one that ended, and
    /// does not give it the tags (Guide, "Terminate a Spot Instance";
    /// github-aws-runners/terraform-aws-github-runner#5204).
    fn reopen(&mut self, at: Timestamp, seq: u64) {
        let old = self.instances.get_mut(&seq);
        let Some(old) = old.filter(|old| {
            old.spot
                .as_ref()
                .is_some_and(|spot| spot.persistent && !spot.passed_on && spot.cancelled.is_none())
        }) else {
            return;
        };
        let mut next = old.clone();
        if let Some(spot) = &mut old.spot {
            spot.passed_on = true;
        }
        next.seq = self.sequence();
        next.id = self.id("i");
        next.tags.clear();
        next.history.clear();
        next.noted.clear();
        (next.holds_pool, next.released, next.interrupted) = (false, None, None);
        (next.seen_from, next.tagged_from) = (at, at);
        let seq = next.seq;
        self.ids.insert(next.id.clone(), seq);
        self.instances.insert(seq, next);
        self.power_on(at, seq);
    }

    fn halt(&mut self, now: Timestamp, seq: u64, reason: Reason) {
        let stopped = now + self.options.stopping.draw(&mut self.rng);
        let steps = [(now, State::Stopping), (stopped, State::Stopped)];
        self.lay_out(seq, &steps, Some(reason));
        self.release(now, seq);
    }

    /// The pool has the machine back at `at`, or before if that was laid out already.
    fn release(&mut self, at: Timestamp, seq: u64) {
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        if !instance.holds_pool || instance.released.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = instance.released.replace(at) {
            self.releases.remove(&(before, seq));
        }
        self.releases.insert((at, seq));
    }

    /// Writes the steps over what lay ahead of the first, and tells of them when they come.
    fn lay_out(&mut self, seq: u64, steps: &[(Timestamp, State)], reason: Option<Reason>) {
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        let Some(&(from, _)) = steps.first() else { return };
        instance.history.retain(|step| step.at <= from);
        for &(at, state) in steps {
            instance.history.push(Step { at, state, reason: reason.clone() });
        }
        self.unnote(seq, |at, _| at > from);
        for &(at, state) in steps {
            self.note(at, seq, Happening::State(state));
        }
    }

    /// Leaves an instance that was just launched in `pending`, without a boot.
    pub(super) fn stick(&mut self, seq: u64) {
        self.boot_at(seq, None);
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        instance.history.retain(|step| step.state == State::Pending);
        self.unnote(seq, |_, what| what != Happening::State(State::Pending));
    }

    fn note(&mut self, at: Timestamp, seq: u64, what: Happening) {
        let key = (at, self.sequence());
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        instance.noted.push(key);
        self.agenda.insert(key, Event { at, instance: instance.id.clone(), what });
    }

    /// Strikes out what was noted of an instance and has not been told.
    fn unnote(&mut self, seq: u64, which: impl Fn(Timestamp, Happening) -> bool) {
        let Some(instance) = self.instances.get_mut(&seq) else { return };
        let agenda = &mut self.agenda;
        instance.noted.retain(|key| match agenda.get(key) {
            Some(event) if which(event.at, event.what) => {
                agenda.remove(key);
                false
            }
            known => known.is_some(),
        });
    }
}

/// `2026-11-30 12:00:00 GMT`.
fn long_date(at: Timestamp) -> String {
    at.to_string().replace('T', " ").replace('Z', " GMT")
}

fn user_initiated(now: Timestamp) -> Reason {
    Reason {
        code: "Client.UserInitiatedShutdown",
        message: Cow::Borrowed("Client.UserInitiatedShutdown: User initiated shutdown"),
        transition: format!("User initiated ({})", long_date(now)),
    }
}

fn wrong_state(id: &str, verb: &str) -> Fault {
    Fault::new(
        "IncorrectInstanceState",
        format!("The instance '{id}' is not in a state from which it can be {verb}."),
    )
}
