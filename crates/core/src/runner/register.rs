//! Register: a just-in-time registration for the runner, handed over to its instance.
//!
//! The request is never sent twice blindly. A name that GitHub has already is either this step's own work,
//! whose answer was lost, or a stray that is removed once.

use std::time::Duration;

use tracing::{error, info, warn};

use crate::config::Settings;
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::labels::Labels;
use crate::ports::{
    Block, Clock, Fleet, Forge, Handoff, Jit, Ledger, Place, Refusal, Removal, RunnerContext,
    Telemetry,
};
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
}

pub(super) async fn register<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let debts = Debts::new(context, settings)?;
    let instance = event.state.instance.clone().ok_or_else(|| {
        Error::Permanent(format!("{}: nothing to register, no instance was launched", event.runner))
    })?;
    let place = place(settings, event)?;
    let group =
        settings.tiers.get(&event.input.provider).and_then(|tier| tier.runner_group.as_deref());
    let labels = event.input.registered();
    match context.forge().register(&place, &event.runner, group, &labels).await {
        Ok(jit) => hand_over(&debts, context, event, &instance, &jit).await,
        Err(Refusal::NameTaken) => {
            name_taken(&debts, context, event, &place, group, &labels, &instance).await
        }
        Err(Refusal::Ambiguous(what)) => {
            warn!(runner = event.runner, what, "the registration's answer was lost: looking");
            match context.forge().runner_named(&place, &event.runner).await? {
                None => Err(Error::Transient(format!("{}: not registered: {what}", event.runner))),
                Some(_) => {
                    name_taken(&debts, context, event, &place, group, &labels, &instance).await
                }
            }
        }
        Err(refusal) => refused(context, event, &instance, refusal).await,
    }
}

/// Where this runner is registered.
pub(super) fn place(settings: &Settings, event: &StepEvent) -> Result<Place> {
    let app = settings.app.as_ref().ok_or_else(|| {
        Error::Permanent("control/app is not set or invalid: run the set-up (make secrets)".into())
    })?;
    Ok(Place { repository: event.input.repository(), level: app.registration })
}

async fn hand_over<C: RunnerContext>(
    debts: &Debts<'_, C>,
    context: &C,
    event: &StepEvent,
    instance: &str,
    jit: &Jit,
) -> Result<RunState> {
    let boot = Duration::from_secs(event.state.boot_seconds);
    context.ledger().record_registration(&event.runner, jit.runner_id, debts.expiry()).await?;
    context.handoff().put(instance, jit, context.clock().now() + boot.max(HANDOFF_KEPT)).await?;
    context.ledger().record_handover(&event.runner).await?;
    info!(runner = event.runner, id = jit.runner_id, instance, "registered");
    Ok(registered(&event.state, jit.runner_id))
}

fn registered(state: &RunState, id: i64) -> RunState {
    RunState {
        next: Next::Wait,
        wait_seconds: FIRST_CHECK.as_secs(),
        runner_id: Some(id),
        ..state.clone()
    }
}

/// GitHub has a runner of this name. If this step handed it over before and its answer was lost, all is
/// done. If it is offline and idle, it is a stray of a lost answer: removed and made anew, once. Otherwise
/// this runner ends here; the debt of its end starts a follower under the next name.
async fn name_taken<C: RunnerContext>(
    debts: &Debts<'_, C>,
    context: &C,
    event: &StepEvent,
    place: &Place,
    group: Option<&str>,
    labels: &Labels,
    instance: &str,
) -> Result<RunState> {
    let runner = event.runner.as_str();
    let record = context.ledger().runner(runner).await?;
    if let Some(id) = record.runner_id
        && (record.handed_over || context.handoff().lies(instance).await?)
    {
        return Ok(registered(&event.state, id));
    }
    let Some(found) = context.forge().runner_named(place, runner).await? else {
        return Err(Error::Transient(format!("{runner}: the name is taken, yet no runner has it")));
    };
    if record.runner_id == Some(found.id) && (found.online || found.busy) {
        // Only this instance ever got that registration's secret: it claimed it before the answer was lost.
        return Ok(registered(&event.state, found.id));
    }
    if !found.online
        && !found.busy
        && context.forge().remove_runner(place, found.id).await? != Removal::Busy
    {
        info!(runner, id = found.id, "removed a stray registration of the same name");
        match context.forge().register(place, runner, group, labels).await {
            Ok(jit) => return hand_over(debts, context, event, instance, &jit).await,
            Err(Refusal::NameTaken) => {}
            Err(Refusal::Ambiguous(what)) => return Err(Error::Transient(what)),
            Err(refusal) => return refused(context, event, instance, refusal).await,
        }
    }
    warn!(runner, id = found.id, "the name is taken by a runner that can't be removed");
    context.telemetry().count("NameTaken", Some(("Tier", &event.input.provider)), 1.0);
    Ok(event.state.clone().ended("the name is taken"))
}

/// GitHub says "later": the instance would wait in vain, so it is ended, and nothing is launched for the
/// owner until the time given.
async fn refused<C: RunnerContext>(
    context: &C,
    event: &StepEvent,
    instance: &str,
    refusal: Refusal,
) -> Result<RunState> {
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
    context.fleet().terminate(instance).await?;
    let until = context.clock().now() + delay.after;
    let reason = format!("{}: {}", delay.reason, delay.text);
    context.ledger().block(owner, &Block { until, reason: reason.clone() }).await?;
    let mut state = event.state.clone();
    state.instance = None;
    state.launched_at = None;
    state.attempt = state.attempt.saturating_add(1);
    // Jitter: all of the owner's launches wait for the same moment.
    let wait = delay.after + state.back_off(runner).min(FIRST_CHECK);
    Ok(state.later(wait, reason))
}

fn delay(refusal: Refusal) -> Delay {
    let passing = |reason, text, after| Delay { reason, text, after, configuration: false };
    let configuration =
        |reason, text| Delay { reason, text, after: LONGEST_WAIT, configuration: true };
    match refusal {
        Refusal::Limited { after, reason } => passing("RateLimit", reason, after.max(FIRST_CHECK)),
        Refusal::GroupFull(text) => passing("GroupFull", text, GROUP_FULL_WAIT),
        Refusal::GroupUnknown(text) => configuration("GroupUnknown", text),
        Refusal::GroupForbidden(text) => configuration("GroupForbidden", text),
        Refusal::NotAllowed(text) => configuration("NotAllowed", text),
        Refusal::Invalid(text) => configuration("Invalid", text),
        Refusal::NameTaken => passing("NameTaken", "the name is taken".into(), FIRST_CHECK),
        Refusal::Ambiguous(text) => passing("Ambiguous", text, FIRST_CHECK),
    }
}
