//! Cleanup: registration, instances and handoff item are removed, and what the runner's end owes is
//! settled. It also runs for executions that ended otherwise than well, from outside.
//!
//! A step that fails does not keep the others from being taken; the first failure is the answer, so that
//! all is tried again.

use std::time::Duration;

use tracing::{info, warn};

use crate::config::Settings;
use crate::debts::{Debts, Judgement};
use crate::error::{Error, Result};
use crate::ports::{
    Clock, Fleet, Forge, ForgeJob, Gate, Handoff, Instance, InstanceState, JobStatus, Ledger, Ran,
    Removal, RunnerContext, RunnerRecord, Telemetry,
};
use crate::reach::reached;
use crate::runner::event::Outcome;
use crate::runner::launch::holder;
use crate::runner::{Next, RunState, StepEvent};
use crate::time::Timestamp;

/// Until a runner that is still busy is looked at again.
const BUSY_WAIT: Duration = Duration::from_secs(300);

/// GitHub fails a job whose runner is lost about 10 minutes later, and then lets its registration go. A
/// registration that is still refused after this long is left to the janitor.
const STUCK_REGISTRATION: Duration = Duration::from_secs(1800);

/// From outside, all is looked at once more when this long has passed since the execution ended: a launch or a
/// registration may have been under way (the function's time-out), and EC2 lists a new instance late. Lambda
/// repeats an asynchronous invocation that failed after a minute, and once more.
const OVERTAKEN: Duration = Duration::from_secs(60);

/// After the registration of a runner was removed that may be in the middle of a job, until its machine is ended: the
/// report of such a job is judged by then, also of one that GitHub does not show us and calls idle.
const AFTER_REMOVAL: Duration = Duration::from_secs(300);

/// From outside nobody can wait as long: an asynchronous invocation that failed is repeated after one minute, and after
/// two more (Lambda guide, "Asynchronous invocation"). An idle runner has ended by itself at the last of them.
const EXITS: Duration = Duration::from_secs(110);

/// Until the job on a runner that ended is old enough to be judged.
const JUDGE_WAIT: Duration = Duration::from_secs(60);

pub(super) async fn cleanup<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let debts = Debts::new(context, settings)?;
    let runner = event.runner.as_str();
    let now = context.clock().now();
    let record = context.ledger().runner(runner).await?;
    let alive = instances(context, event).await?;
    let lives = alive.iter().any(|instance| instance.state != InstanceState::Ended);
    // An execution that failed or was aborted knows nothing of its runner: it may be in the middle of a
    // job, and then it goes on.
    let lifetime = Duration::from_secs(event.state.lifetime_seconds);
    let expired = event.state.launched_at.is_some_and(|launched| now.since(launched) >= lifetime);
    let decided = event.outcome == Outcome::Regular || expired;
    let mut job = None;
    if lives && !decided {
        job = own_job(context, event).await?;
        if works(event, &record, job.as_ref()) {
            reached("cleanup: undecided, and the runner works");
            return busy(&debts, context, event, &record, job.as_ref()).await;
        }
    }
    let mut removal = remove_registration(context, settings, event, &record, lives).await;
    // Where it is not decided yet, only GitHub's word that it is not busy lets the machine be ended.
    if lives && !decided && *removal.as_ref().map_err(Clone::clone)? == Removal::Busy {
        reached("cleanup: undecided, and GitHub calls it busy");
        return busy(&debts, context, event, &record, job.as_ref()).await;
    }
    context.ledger().end_runner(runner, now, debts.expiry()).await?;
    // GitHub's busy flag lags: that the registration could be removed does not prove that the runner was
    // idle. An idle one ends by itself now; a busy one is accounted for before its machine is ended.
    let registered = record.runner_id.is_some() || matches!(removal, Ok(Removal::Removed));
    let outside = event.outcome == Outcome::Orphaned;
    let removed = now.since(record.ended_at.unwrap_or(now));
    let reported = record.reported_at.is_some();
    let may_work = !decided && registered && (outside || reported || removed < AFTER_REMOVAL);
    let (mut ended, mut spared) = (Ok(()), false);
    for instance in &alive {
        let id = &instance.id;
        if may_work && may_have_begun(context, instance).await? {
            spared = true;
        } else if instance.state != InstanceState::Ended {
            reached("cleanup: ends an instance");
            ended = ended.and(context.fleet().terminate(id).await);
        }
        ended = ended.and(context.handoff().withdraw(id).await.map(drop));
    }
    if ended.is_ok() && !spared && may_have_slot(settings, event) {
        let gate = context.gate();
        ended = gate.free_slot(&event.input.provider, &holder(runner)).await.map(drop);
    }
    let known = job.as_ref();
    let mut settled = debts.end(runner, &event.input, &record, known).await;
    ended?;
    let refused = |failure: Option<&Error>| matches!(failure, Some(Error::Permanent(_)));
    if (refused(removal.as_ref().err()) || refused(settled.as_ref().err()))
        && !context.forge().installed(&event.input.repository()).await?
    {
        reached("cleanup: the App was uninstalled");
        // Nobody there can be served any more, and nothing be removed.
        warn!(runner, "the App was uninstalled: its registration is left to GitHub");
        context.telemetry().count("RegistrationLeft", None, 1.0);
        (removal, settled) = (Ok(Removal::Gone), Ok(Judgement::Settled));
    }
    if settled? == Judgement::TooEarly && event.outcome != Outcome::Orphaned {
        reached("cleanup: its job is too young to be judged");
        return Err(Error::Later {
            after: JUDGE_WAIT,
            reason: format!("{runner}: the job that it ran is too young to be judged"),
        });
    }
    if removal? == Removal::Busy {
        let since = record.ended_at.unwrap_or(now);
        if event.outcome != Outcome::Orphaned && now.since(since) < STUCK_REGISTRATION {
            reached("cleanup: the machine is gone, and GitHub calls it busy");
            return Err(Error::Later {
                after: BUSY_WAIT,
                reason: format!("{runner}: GitHub still calls a runner busy whose machine is gone"),
            });
        }
        reached("cleanup: a registration is left to the janitor");
        warn!(runner, "GitHub does not let the registration go: left to the janitor");
        context.telemetry().count("RegistrationLeft", None, 1.0);
    }
    if spared && outside && removed >= EXITS {
        reached("cleanup: a runner that may work is left to end by itself");
        return Ok(left_alone(context, event));
    }
    if spared {
        reached("cleanup: a runner that may work is spared");
        return Err(overtaken(event));
    }
    if just_ended(event, now) {
        reached("cleanup: the execution has just ended");
        return Err(overtaken(event));
    }
    match event.outcome {
        Outcome::Regular => reached("cleanup: done, as planned"),
        Outcome::Failed => reached("cleanup: done, after a failure"),
        Outcome::Orphaned => reached("cleanup: done, from outside"),
    }
    info!(runner, reason = event.state.reason, "cleaned up");
    Ok(RunState { next: Next::Done, wait_seconds: 0, ..event.state.clone() })
}

/// Whether the runner may have a place among its tier's `max_runners`: from outside only the tier can tell.
fn may_have_slot(settings: &Settings, event: &StepEvent) -> bool {
    let bounded =
        settings.tiers.get(&event.input.provider).is_some_and(|it| it.max_runners.is_some());
    event.state.slot || (bounded && event.outcome != Outcome::Regular)
}

/// All instances that the runner may have: those tagged with it, and the one that was launched (the list
/// by tag lags).
async fn instances<C: RunnerContext>(context: &C, event: &StepEvent) -> Result<Vec<Instance>> {
    let mut found = context.fleet().of_runner(&event.runner).await?;
    if let Some(id) = &event.state.instance
        && !found.iter().any(|instance| instance.id == *id)
    {
        reached("cleanup: its instance is not listed by tag");
        let instance = context.fleet().instance(id).await?;
        // Not listed: ended an hour ago, or launched a moment ago. Ending it is right in both cases.
        found.push(instance.unwrap_or_else(|| Instance {
            id: id.clone(),
            state: InstanceState::Pending,
            reason: None,
        }));
    }
    Ok(found)
}

async fn own_job<C: RunnerContext>(context: &C, event: &StepEvent) -> Result<Option<ForgeJob>> {
    match event.input.job() {
        Some(id) => context.forge().job(&event.input.repository(), id).await,
        None => Ok(None),
    }
}

/// Whether the runner is in the middle of its own job.
fn has_its_own(event: &StepEvent, job: Option<&ForgeJob>) -> bool {
    job.is_some_and(|job| {
        job.status == JobStatus::InProgress && job.runner_name.as_deref() == Some(&event.runner)
    })
}

/// Whether the runner is known to be in the middle of a job: its own, or one that it took.
fn works(event: &StepEvent, record: &RunnerRecord, job: Option<&ForgeJob>) -> bool {
    let other = matches!(&record.ran, Ran::Job { id, .. } if Some(*id) != event.input.job());
    has_its_own(event, job) || other || record.ran == Ran::Taken
}

fn just_ended(event: &StepEvent, now: Timestamp) -> bool {
    event.ended.is_some_and(|ended| now.since(ended) < OVERTAKEN)
}

fn overtaken(event: &StepEvent) -> Error {
    let runner = &event.runner;
    Error::Later {
        after: OVERTAKEN,
        reason: format!("{runner}: its execution has just ended: what was under way is looked for"),
    }
}

/// The runner is in the middle of a job, and goes on. Nobody checks it any more: if the job is not its own,
/// whoever counted on it gets another runner now.
async fn busy<C: RunnerContext>(
    debts: &Debts<'_, C>,
    context: &C,
    event: &StepEvent,
    record: &RunnerRecord,
    job: Option<&ForgeJob>,
) -> Result<RunState> {
    if event.input.job().is_some() && !has_its_own(event, job) {
        // A job that was given to it this moment is shown on it only once it has begun.
        if just_ended(event, context.clock().now()) {
            reached("cleanup: busy, and the execution has just ended");
            return Err(overtaken(event));
        }
        if record.ran == Ran::Unknown {
            reached("cleanup: busy with a job that nobody knows");
            debts.mark_taken(&event.runner).await?;
        }
        debts.end(&event.runner, &event.input, record, job).await?;
    }
    if event.outcome == Outcome::Orphaned {
        reached("cleanup: busy, and left to its job");
        return Ok(left_alone(context, event));
    }
    reached("cleanup: busy, and waited for");
    Err(Error::Later {
        after: BUSY_WAIT,
        reason: format!("{}: the runner is in the middle of a job", event.runner),
    })
}

/// A machine that lives, and that nobody checks any more. It runs its job to the end and powers off by itself; its own
/// clock and the reaper see to it that it does.
fn left_alone<C: RunnerContext>(context: &C, event: &StepEvent) -> RunState {
    warn!(
        runner = event.runner,
        "its execution is over, but the runner may be in the middle of a job"
    );
    context.telemetry().count("BusyWithoutExecution", None, 1.0);
    RunState { next: Next::Done, ..event.state.clone() }
}

/// Whether a runner may have come up in a machine whose registration was removed. It was claimed before, or never will
/// be: nobody can connect with what is handed over now.
async fn may_have_begun<C: RunnerContext>(context: &C, instance: &Instance) -> Result<bool> {
    let powered = matches!(instance.state, InstanceState::Pending | InstanceState::Running);
    Ok(powered && !context.handoff().lies(&instance.id).await?)
}

async fn remove_registration<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
    record: &RunnerRecord,
    lives: bool,
) -> Result<Removal> {
    let place = settings.place(event.input.repository())?;
    let id = match event.state.registration(record) {
        Some(id) => id,
        // A registration can be there unknown to us only if one was asked for, and then a machine was
        // launched before.
        None if lives || event.state.instance.is_some() || event.outcome != Outcome::Regular => {
            match context.forge().runner_named(&place, &event.runner).await? {
                Some(found) => {
                    reached("cleanup: a registration that nobody had noted");
                    found.id
                }
                None => {
                    reached("cleanup: no registration of its name");
                    return Ok(Removal::Gone);
                }
            }
        }
        None => {
            reached("cleanup: never registered");
            return Ok(Removal::Gone);
        }
    };
    let removal = context.forge().remove_runner(&place, id).await?;
    // Of a runner whose job is known, and of one that a check removed, that was the last. Any other may have been
    // registered anew by a Register that was invoked twice, and that ended before it noted what it had made. Names are
    // unique at GitHub, so only one that is gone can have a follower.
    let last = record.ran != Ran::Unknown || event.state.deregistered_at.is_some();
    if removal == Removal::Gone
        && !last
        && let Some(found) = context.forge().runner_named(&place, &event.runner).await?
    {
        reached("cleanup: registered anew, and that was never noted");
        return context.forge().remove_runner(&place, found.id).await;
    }
    Ok(removal)
}
