//! Register: a just-in-time registration for the runner, handed over to its instance.
//!
//! The request is never sent twice blindly. A name that GitHub has already is either this step's own work,
//! whose answer was lost, or a stray that is removed once.

use std::time::Duration;

use tracing::{error, info, warn};

use crate::config::{Registration, Settings};
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::labels::Labels;
use crate::ports::{
    Block, Clock, Fleet, Forge, Gate, Handoff, Jit, Ledger, Place, Refusal, Removal, RunnerContext,
    RunnerRecord, Telemetry,
};
use crate::reach::reached;
use crate::runner::launch::holder;
use crate::runner::state::LONGEST_WAIT;
use crate::runner::{Next, RunState, StepEvent};

/// A registration is claimed within the boot time-out; the item outlives it, and no longer than needed.
const HANDOFF_KEPT: Duration = Duration::from_secs(3600);

/// A full runner group empties by the janitor or an operator, not by waiting a minute.
const GROUP_FULL_WAIT: Duration = Duration::from_secs(900);

/// Until the first check: an instance boots in half a minute to two minutes.
pub(super) const FIRST_CHECK: Duration = Duration::from_secs(60);

/// What can't be registered now, told by metric and log.
struct Delay {
    reason: &'static str,
    text: String,
    after: Duration,
    /// Whether an operator has to act.
    configuration: bool,
    /// Whether all of the owner's registrations would be told the same.
    of_owner: bool,
}

pub(super) async fn register<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let instance = event.state.instance.as_deref().ok_or_else(|| {
        Error::Permanent(format!("{}: nothing to register, no instance was launched", event.runner))
    })?;
    let tier = settings.tiers.get(&event.input.provider);
    let request = Request {
        context,
        debts: Debts::new(context, settings)?,
        event,
        instance,
        place: settings.place(event.input.repository())?,
        group: tier.and_then(|tier| tier.runner_group.as_deref()),
        labels: event.input.registered(),
    };
    let record = context.ledger().runner(&event.runner).await?;
    if let Some(id) = record.runner_id
        && request.stands(&record, id).await?
    {
        return Ok(registered(&event.state, id));
    }
    if record.runner_id.is_none() && cancelled(context, event).await? {
        reached("register: cancelled");
        info!(runner = event.runner, "not registered: the job was cancelled");
        return Ok(event.state.clone().ended("cancelled"));
    }
    match request.send().await {
        Ok(jit) => request.hand_over(&jit).await,
        Err(Refusal::NameTaken) => {
            reached("register: the name is taken");
            request.name_taken(&record).await
        }
        Err(Refusal::Ambiguous(what)) => {
            warn!(runner = event.runner, what, "the registration's answer was lost: looking");
            match context.forge().runner_named(&request.place, &event.runner).await? {
                None => {
                    reached("register: no answer, and nothing registered");
                    Err(Error::Transient(format!("{}: not registered: {what}", event.runner)))
                }
                Some(_) => {
                    reached("register: no answer, but registered");
                    request.name_taken(&record).await
                }
            }
        }
        Err(refusal) => request.refused(refusal).await,
    }
}

/// Whether the job was cancelled since the launch. Asked only while nothing is registered: a runner that can
/// have been given another job is not ended for this.
async fn cancelled<C: RunnerContext>(context: &C, event: &StepEvent) -> Result<bool> {
    let Some(id) = event.input.job() else { return Ok(false) };
    Ok(context.ledger().job(id).await?.is_some_and(|job| job.cancelled_at.is_some()))
}

/// What GitHub's "later" is noted under: for all of the owner, and for the runner's tier where it is registered.
/// A limit is the owner's; a group that is full or unknown, or a request that is refused, is the tier's, and must
/// not keep the others waiting.
pub(super) fn block_keys(place: &Place, tier: &str) -> [String; 2] {
    let owner = &place.repository.owner;
    let own = match place.level {
        Registration::Organization => format!("{owner}/{tier}"),
        Registration::Repository => format!("{}/{tier}", place.repository),
    };
    [owner.clone(), own]
}

fn registered(state: &RunState, id: i64) -> RunState {
    RunState {
        next: Next::Wait,
        wait_seconds: FIRST_CHECK.as_secs(),
        runner_id: Some(id),
        ..state.clone()
    }
}

/// One runner's registration.
struct Request<'a, C> {
    context: &'a C,
    debts: Debts<'a, C>,
    event: &'a StepEvent,
    instance: &'a str,
    place: Place,
    group: Option<&'a str>,
    labels: Labels,
}

impl<C: RunnerContext> Request<'_, C> {
    async fn send(&self) -> std::result::Result<Jit, Refusal> {
        let runner = &self.event.runner;
        self.context.forge().register(&self.place, runner, self.group, &self.labels).await
    }

    /// Whether a registration that this step made before, and whose answer was lost, serves: it was handed over, or
    /// the instance works with it. Looked at before GitHub is asked for anything: its refusal would end an instance
    /// that may be in the middle of a job.
    async fn stands(&self, record: &RunnerRecord, id: i64) -> Result<bool> {
        if record.handed_over {
            reached("register: was handed over before");
            return Ok(true);
        }
        if self.context.handoff().lies(self.instance).await? {
            reached("register: lies there from before");
            return Ok(true);
        }
        let found = self.context.forge().runner(&self.place, id).await?;
        let serves = found.is_some_and(|found| found.online || found.busy);
        match serves {
            true => reached("register: serves already"),
            false => reached("register: an earlier one was never handed over"),
        }
        Ok(serves)
    }

    async fn hand_over(&self, jit: &Jit) -> Result<RunState> {
        let (context, event, instance) = (self.context, self.event, self.instance);
        let boot = Duration::from_secs(event.state.boot_seconds);
        let expires = context.clock().now() + boot.max(HANDOFF_KEPT);
        let ledger = context.ledger();
        ledger.record_registration(&event.runner, jit.runner_id, self.debts.expiry()).await?;
        context.handoff().put(instance, jit, expires).await?;
        ledger.record_handover(&event.runner).await?;
        reached("register: handed over");
        info!(runner = event.runner, id = jit.runner_id, instance, "registered");
        Ok(registered(&event.state, jit.runner_id))
    }

    /// GitHub has a runner of this name, and it is none that serves. If it is offline and idle, it is a stray of a
    /// lost answer: removed and made anew, once. Otherwise this runner ends here; the debt of its end starts a
    /// follower under the next name.
    async fn name_taken(&self, record: &RunnerRecord) -> Result<RunState> {
        let (context, event, place) = (self.context, self.event, &self.place);
        let runner = event.runner.as_str();
        let Some(found) = context.forge().runner_named(place, runner).await? else {
            reached("register: taken, yet nobody has the name");
            let text = format!("{runner}: the name is taken, yet no runner has it");
            return Err(Error::Transient(text));
        };
        let noted = context.ledger().runner(runner).await?;
        if noted.runner_id == Some(found.id) && record.runner_id != noted.runner_id {
            reached("register: its twin is at work");
            // This step was invoked twice, and the other is about to hand over what it has registered. Whether it did
            // is looked at when this one is tried again.
            let text = format!("{runner}: another invocation has registered it just now");
            return Err(Error::Transient(text));
        }
        let at_work = found.online
            || found.busy
            || context.forge().remove_runner(place, found.id).await? == Removal::Busy;
        if record.runner_id == Some(found.id) && at_work {
            reached("register: taken by this very instance");
            // Only this instance ever got that registration's secret: it claimed it before the answer was lost. That it
            // can't be removed is the first sign of the job that it has.
            return Ok(registered(&event.state, found.id));
        }
        if !at_work {
            reached("register: removed a stray");
            info!(runner, id = found.id, "removed a stray registration of the same name");
            match self.send().await {
                Ok(jit) => return self.hand_over(&jit).await,
                Err(Refusal::NameTaken) => reached("register: taken again"),
                Err(Refusal::Ambiguous(what)) => {
                    reached("register: no answer after a stray was removed");
                    return Err(Error::Transient(what));
                }
                Err(refusal) => {
                    reached("register: refused after a stray was removed");
                    return self.refused(refusal).await;
                }
            }
        }
        reached("register: the name is lost");
        warn!(runner, id = found.id, "the name is taken by a runner that can't be removed");
        context.telemetry().count("NameTaken", Some(("Tier", &event.input.provider)), 1.0);
        Ok(event.state.clone().ended("the name is taken"))
    }

    /// GitHub says "later": the instance would wait in vain, so it is ended, and nothing that would be told the
    /// same is launched until the time given.
    async fn refused(&self, refusal: Refusal) -> Result<RunState> {
        let (context, event) = (self.context, self.event);
        let delay = delay(refusal);
        let (runner, owner) = (event.runner.as_str(), event.input.owner.as_str());
        error!(
            runner,
            owner,
            reason = delay.reason,
            text = delay.text,
            after = delay.after.as_secs(),
            "GitHub does not register a runner"
        );
        context.telemetry().count("RegistrationRefused", Some(("Reason", delay.reason)), 1.0);
        if delay.configuration {
            context.telemetry().count("ConfigurationError", None, 1.0);
        }
        context.fleet().terminate(self.instance).await?;
        let until = context.clock().now() + delay.after;
        let reason = format!("{}: {}", delay.reason, delay.text);
        let [all, own] = block_keys(&self.place, &event.input.provider);
        let whose = if delay.of_owner { all } else { own };
        context.ledger().block(&whose, &Block { until, reason: reason.clone() }).await?;
        let mut state = event.state.clone();
        state.instance = None;
        state.launched_at = None;
        state.paced_at = None;
        state.attempt = state.attempt.saturating_add(1);
        if state.slot {
            context.gate().free_slot(&event.input.provider, &holder(runner)).await?;
            state.slot = false;
        }
        let wait = delay.after + state.spread(runner);
        Ok(state.later(wait, reason))
    }
}

fn delay(refusal: Refusal) -> Delay {
    let passing =
        |reason, text, after| Delay { reason, text, after, configuration: false, of_owner: false };
    let configuration =
        |reason, text| Delay { configuration: true, ..passing(reason, text, LONGEST_WAIT) };
    match refusal {
        Refusal::Limited { after, reason } => {
            reached("register: refused for a limit");
            Delay { of_owner: true, ..passing("RateLimit", reason, after.max(FIRST_CHECK)) }
        }
        Refusal::GroupFull(text) => {
            reached("register: refused, its group is full");
            passing("GroupFull", text, GROUP_FULL_WAIT)
        }
        Refusal::GroupUnknown(text) => {
            reached("register: refused, its group is unknown");
            configuration("GroupUnknown", text)
        }
        Refusal::GroupForbidden(text) => {
            reached("register: refused, its group is forbidden");
            configuration("GroupForbidden", text)
        }
        Refusal::NotAllowed(text) => {
            reached("register: refused, it is not allowed");
            configuration("NotAllowed", text)
        }
        Refusal::Invalid(text) => {
            reached("register: refused, it is invalid");
            configuration("Invalid", text)
        }
        Refusal::NameTaken => passing("NameTaken", "the name is taken".into(), FIRST_CHECK),
        Refusal::Ambiguous(text) => passing("Ambiguous", text, FIRST_CHECK),
    }
}
