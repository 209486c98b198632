//! Check: whether the runner lives, works, is idle, or is gone. Level-triggered: nothing depends on an
//! event having arrived. GitHub is asked only what the ledger does not know.
//!
//! The decision is a pure function of what was seen ([`decide`]); where it lacks a sight it asks for one
//! ([`Look`]), so that a runner about which the ledger knows all costs GitHub no call.

use std::time::Duration;

use tracing::{info, warn};

use crate::config::Settings;
use crate::debts::{Debts, Judgement};
use crate::error::Result;
use crate::job::{JobId, Repository, split_full_name};
use crate::ports::{
    Clock, Fleet, Forge, ForgeJob, Handoff, Instance, InstanceState, JobStatus, Ledger, Ran,
    Registered, Removal, RunnerContext, RunnerRecord, Telemetry,
};
use crate::reach::reached;
use crate::runner::{Next, RunState, StepEvent};
use crate::time::Timestamp;

/// Waits between checks while it is not known what the runner runs, in seconds; the last one repeats.
pub const WAITS: [u64; 5] = [60, 120, 240, 480, 900];

/// Wait between checks of a runner that is accounted for, in seconds.
pub const ACCOUNTED_WAIT: u64 = 1800;

/// Shortest wait between checks, in seconds: deadlines may be near.
const SHORTEST_WAIT: u64 = 15;

/// EC2's list may not show a new instance at once (EC2 guide, "Eventual consistency"): until then an
/// instance that is not listed counts as starting.
const LISTED_AFTER: Duration = Duration::from_secs(300);

/// After an instance vanished, until the report of a job that it ran must have been judged (queue delay
/// 60 s, and a retry).
const REPORT_DELAY: Duration = Duration::from_secs(180);

/// GitHub's busy flag lags by up to a minute: idle must hold over two readings this far apart.
const READINGS_APART: Duration = Duration::from_secs(60);

/// A runner that was busy this long without its own job has another's.
const BUSY_WITH_ANOTHER: Duration = Duration::from_secs(240);

/// After a registration was deleted as idle, until the instance is ended: GitHub may have deleted it in
/// the middle of a job, and then the job's report is there by now.
const AFTER_DEREGISTRATION: Duration = Duration::from_secs(300);

/// A registration that GitHub removed by itself while the instance lives: the job may be over and its
/// last logs on their way (GitHub has been seen to renew leases for 10 minutes after the end).
const AFTER_UNREGISTRATION: Duration = Duration::from_secs(900);

/// A machine that still lives this long after its job was first seen completed has hung: cancelled or lost jobs
/// leave such machines. Its last steps and logs take minutes at most.
const AFTER_JOB: Duration = Duration::from_secs(900);

/// In EC2's reason for the end of a spot instance that it took back: `Server.SpotInstanceTermination`, or
/// `…Shutdown` (EC2 API Reference, "StateReason").
const SPOT_RECLAIMED: &str = "Server.SpotInstance";

/// A sight that a decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The instance at EC2.
    Instance,
    /// The handoff item.
    Handoff,
    /// The runner's own job at GitHub.
    Job,
    /// The job that it is accounted for with.
    Work,
    /// The registration at GitHub.
    Registration,
}

/// What was seen in this check. The outer `None` means "not looked".
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The ledger's word about the runner.
    pub record: RunnerRecord,
    /// The instance; `None` if EC2 does not list it.
    pub instance: Option<Option<Instance>>,
    /// Whether the registration lies unclaimed.
    pub lies: Option<bool>,
    /// Whether it still lay there when it was withdrawn in this check.
    pub withdrawn: Option<bool>,
    /// The runner's own job.
    pub job: Option<Option<ForgeJob>>,
    /// The job that it is accounted for with.
    pub work: Option<Option<ForgeJob>>,
    /// The registration.
    pub registration: Option<Option<Registered>>,
    /// Whether a debt was settled in this check.
    pub settled: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// See this, then decide again.
    Look(Look),
    /// Nothing now.
    Wait,
    /// Note that the runner's own job runs or ran on it; decide again.
    Account,
    /// Note that it has another job, and settle the debt; decide again.
    Taken,
    /// It ran another job: settle the debt once more; decide again.
    Judge,
    /// Take the registration away before it is claimed; decide again.
    Withdraw,
    /// Delete the registration of an idle runner; decide again.
    Deregister,
    /// End the instance, and clean up.
    End(&'static str),
    /// The instance is gone: clean up.
    Over(&'static str),
}

/// What is to be done about `runner`, started for `own`, and what is remembered of it in `state`. `idle`:
/// the idle time after which it is ended.
pub fn decide(
    now: Timestamp,
    runner: &str,
    own: Option<JobId>,
    idle: Duration,
    state: &mut RunState,
    seen: &Seen,
) -> Verdict {
    let launched = *state.launched_at.get_or_insert(now);
    let age = now.since(launched);
    if age >= Duration::from_secs(state.lifetime_seconds) {
        reached("check: the lifetime is over");
        return Verdict::End("lifetime");
    }
    let Some(instance) = &seen.instance else { return Verdict::Look(Look::Instance) };
    let gone = match instance.as_ref().map(|instance| instance.state) {
        None if age < LISTED_AFTER => {
            reached("check: EC2 does not list it yet");
            false
        }
        None => {
            reached("check: EC2 lists it no more");
            true
        }
        Some(InstanceState::Ended) => {
            reached("check: the instance has ended");
            true
        }
        Some(InstanceState::Stopped) => {
            reached("check: the instance was stopped");
            return Verdict::End("stopped");
        }
        Some(InstanceState::Pending | InstanceState::Running) => false,
    };
    match &seen.record.ran {
        Ran::Unknown => {}
        _ if gone => {
            reached("check: it ran a job, and is gone");
            return Verdict::Over("ran a job");
        }
        Ran::Job { id, .. } if Some(*id) == own => {
            reached("check: it runs its own job");
            return works(now, state, seen);
        }
        Ran::Job { .. } | Ran::Taken if !seen.settled => {
            reached("check: it runs another job, which is judged");
            return Verdict::Judge;
        }
        Ran::Job { .. } => {
            reached("check: it runs another job, which was judged");
            return works(now, state, seen);
        }
        Ran::Taken => {
            reached("check: it was taken");
            return unregistered(now, state, seen).unwrap_or(Verdict::Wait);
        }
    }
    if gone {
        vanished(now, runner, own, state, seen)
    } else {
        alive(now, runner, own, idle, state, seen)
    }
}

/// The instance is gone, and it is not known what it ran.
fn vanished(
    now: Timestamp,
    runner: &str,
    own: Option<JobId>,
    state: &mut RunState,
    seen: &Seen,
) -> Verdict {
    if let Some(verdict) = own_job(runner, own, seen) {
        return verdict;
    }
    let Some(registration) = &seen.registration else { return Verdict::Look(Look::Registration) };
    match registration {
        Some(entry) if !entry.online && !entry.busy => {
            reached("check: gone, and ran nothing");
            Verdict::Over("ran nothing")
        }
        _ => {
            let vanished = *state.vanished_at.get_or_insert(now);
            if now.since(vanished) >= REPORT_DELAY {
                reached("check: gone, and no report came");
                Verdict::Over("vanished")
            } else {
                reached("check: gone, and a report may come");
                Verdict::Wait
            }
        }
    }
}

/// The instance lives, and it is not known what it runs.
fn alive(
    now: Timestamp,
    runner: &str,
    own: Option<JobId>,
    idle: Duration,
    state: &mut RunState,
    seen: &Seen,
) -> Verdict {
    let boot_over =
        now.since(state.launched_at.unwrap_or(now)) >= Duration::from_secs(state.boot_seconds);
    if !state.claimed {
        match (seen.lies, seen.withdrawn) {
            (None, _) => return Verdict::Look(Look::Handoff),
            (Some(true), None) if boot_over => {
                reached("check: the boot time is over, unclaimed");
                return Verdict::Withdraw;
            }
            (Some(true), None) => {
                reached("check: it boots");
                return Verdict::Wait;
            }
            // Register may have put it twice, because the first answer was lost, and the machine have claimed
            // the first: GitHub knows whether a runner came of it.
            (Some(true), Some(true)) => match &seen.registration {
                None => return Verdict::Look(Look::Registration),
                Some(Some(entry)) if entry.online || entry.busy => {
                    reached("check: withdrawn, yet a runner came of it");
                    state.claimed = true;
                }
                Some(_) => {
                    reached("check: it did not boot in time");
                    return Verdict::End("boot time-out");
                }
            },
            (Some(true), Some(false)) => {
                reached("check: claimed while it was withdrawn");
                state.claimed = true;
            }
            (Some(false), _) => {
                reached("check: claimed");
                state.claimed = true;
            }
        }
    }
    if let Some(verdict) = own_job(runner, own, seen) {
        return verdict;
    }
    if let Some(at) = state.deregistered_at {
        return if now.since(at) < AFTER_DEREGISTRATION {
            reached("check: idle, and left to exit");
            Verdict::Wait
        } else if may_work(seen) {
            reached("check: idle, and a line says that it is at work");
            Verdict::Taken
        } else {
            reached("check: idle, and ended");
            Verdict::End("idle")
        };
    }
    let entry = match &seen.registration {
        None => return Verdict::Look(Look::Registration),
        Some(Some(entry)) => entry,
        Some(None) => {
            let gone = *state.unregistered_at.get_or_insert(now);
            let twice = now.since(gone) >= READINGS_APART && seen.record.runner_id.is_some();
            return if twice {
                reached("check: its registration is gone while it lives");
                Verdict::Taken
            } else {
                reached("check: its registration is not to be seen");
                Verdict::Wait
            };
        }
    };
    state.unregistered_at = None;
    if entry.online || entry.busy {
        state.online_at.get_or_insert(now);
    }
    if entry.busy {
        state.idle_at = None;
        let busy = *state.busy_at.get_or_insert(now);
        return if now.since(busy) >= BUSY_WITH_ANOTHER {
            reached("check: busy for long, and not with its own job");
            Verdict::Taken
        } else {
            reached("check: busy");
            Verdict::Wait
        };
    }
    state.busy_at = None;
    let idle_since = *state.idle_at.get_or_insert(now);
    let not_needed = cancelled(seen);
    let over = not_needed
        || match state.online_at {
            Some(online) => now.since(online) >= idle,
            None => boot_over,
        };
    match (over && now.since(idle_since) >= READINGS_APART, state.online_at) {
        (true, Some(_)) if not_needed => {
            reached("check: idle, and its job was cancelled");
            Verdict::Deregister
        }
        (true, Some(_)) => {
            reached("check: idle for too long");
            Verdict::Deregister
        }
        (true, None) => {
            reached("check: claimed, and never online");
            Verdict::Deregister
        }
        (false, _) => {
            reached("check: not busy");
            Verdict::Wait
        }
    }
}

/// A runner whose job is known ends with it. In case its machine has hung, GitHub is asked now and then: not in the
/// first half hour, in which most jobs end.
fn works(now: Timestamp, state: &mut RunState, seen: &Seen) -> Verdict {
    let accounted = *state.accounted_at.get_or_insert(now);
    if now.since(accounted) < Duration::from_secs(ACCOUNTED_WAIT) {
        reached("check: at work, and not for long");
        return Verdict::Wait;
    }
    match &seen.work {
        None => Verdict::Look(Look::Work),
        Some(Some(job)) if job.status == JobStatus::Completed => {
            let over = *state.job_over_at.get_or_insert(now);
            if now.since(over) >= AFTER_JOB {
                reached("check: hung after its job");
                Verdict::End("hung")
            } else {
                reached("check: its job is over");
                Verdict::Wait
            }
        }
        Some(_) => {
            reached("check: at work for long");
            state.job_over_at = None;
            Verdict::Wait
        }
    }
}

/// Whether a line says that the runner is in the middle of a job that we can't see. Once its registration is gone nobody
/// else can tell: it was removed while GitHub's flag said "not busy" and the answer was lost, or GitHub has removed it
/// (`actions/actions-runner-controller#3748`), and the job goes on. A machine that has hung has its lifetime then.
fn may_work(seen: &Seen) -> bool {
    seen.record.reported_at.is_some()
}

/// A runner that was taken and whose registration GitHub has removed: it ends by itself, or is ended.
fn unregistered(now: Timestamp, state: &mut RunState, seen: &Seen) -> Option<Verdict> {
    let gone = state.unregistered_at?;
    if may_work(seen) {
        reached("check: unregistered, and a line says that it is at work");
        return None;
    }
    if now.since(gone) < AFTER_UNREGISTRATION {
        reached("check: unregistered a moment ago");
        return None;
    }
    match &seen.registration {
        None => Some(Verdict::Look(Look::Registration)),
        Some(None) => {
            reached("check: unregistered for long");
            Some(Verdict::End("unregistered"))
        }
        Some(Some(_)) => {
            reached("check: registered after all");
            state.unregistered_at = None;
            None
        }
    }
}

/// The runner's own job, where it has one: to be looked at, or found on the runner.
fn own_job(runner: &str, own: Option<JobId>, seen: &Seen) -> Option<Verdict> {
    own?;
    match &seen.job {
        None => Some(Verdict::Look(Look::Job)),
        Some(Some(job)) if job.runner_name.as_deref() == Some(runner) => Some(Verdict::Account),
        Some(_) => None,
    }
}

/// Whether the runner's own job was over before it ran: nothing is to come for the runner.
fn cancelled(seen: &Seen) -> bool {
    matches!(&seen.job, Some(Some(job)) if job.status == JobStatus::Completed && job.runner_name.is_none())
}

/// The wait until the next check, in seconds: by schedule, or until the next deadline.
fn pause(now: Timestamp, state: &RunState, accounted: bool, idle: Duration) -> u64 {
    let index = usize::try_from(state.checks).unwrap_or(usize::MAX).min(WAITS.len() - 1);
    let scheduled = if accounted { ACCOUNTED_WAIT } else { WAITS[index] };
    let launched = state.launched_at.unwrap_or(now);
    let mut deadlines = vec![launched + Duration::from_secs(state.lifetime_seconds)];
    deadlines.extend(state.job_over_at.map(|at| at + AFTER_JOB));
    if !accounted {
        if state.online_at.is_none() {
            deadlines.push(launched + Duration::from_secs(state.boot_seconds));
        }
        deadlines.extend(state.vanished_at.map(|at| at + REPORT_DELAY));
        deadlines.extend(state.busy_at.map(|at| at + BUSY_WITH_ANOTHER));
        deadlines.extend(state.deregistered_at.map(|at| at + AFTER_DEREGISTRATION));
        deadlines.extend(state.unregistered_at.map(|at| at + READINGS_APART));
        if state.busy_at.is_none() {
            deadlines.extend(state.idle_at.map(|at| at + READINGS_APART));
            deadlines.extend(state.online_at.map(|at| at + idle));
        }
    }
    deadlines
        .into_iter()
        .map(|at| at.since(now).as_millis().div_ceil(1000))
        .filter(|seconds| *seconds > 0)
        .filter_map(|seconds| u64::try_from(seconds).ok())
        .fold(scheduled, u64::min)
        .max(SHORTEST_WAIT)
}

pub(super) async fn check<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let debts = Debts::new(context, settings)?;
    let place = settings.place(event.input.repository())?;
    let (runner, input) = (event.runner.as_str(), &event.input);
    let idle = Duration::from_secs(input.max_idle_seconds.max(60));
    let tier = Some(("Tier", input.provider.as_str()));
    let now = context.clock().now();
    let mut state = event.state.clone();
    let instance = state.instance.clone().unwrap_or_default();
    let mut seen = Seen { record: context.ledger().runner(runner).await?, ..Seen::default() };
    let runner_id = state.registration(&seen.record);
    seen.record.runner_id = runner_id;
    loop {
        match decide(now, runner, input.job(), idle, &mut state, &seen) {
            Verdict::Look(Look::Instance) => {
                seen.instance = Some(context.fleet().instance(&instance).await?);
            }
            Verdict::Look(Look::Handoff) => {
                seen.lies = Some(context.handoff().lies(&instance).await?);
            }
            Verdict::Look(Look::Job) => {
                let id = input.job().unwrap_or(JobId(-1));
                let job = context.forge().job(&input.repository(), id).await?;
                let on = job.as_ref().and_then(|job| job.runner_name.as_deref());
                let on = on.filter(|on| *on != runner);
                if let Some(other) = on.filter(|on| state.job_runs_on.as_deref() != Some(on)) {
                    // A shuffle: another runner of ours has the job, and this one is its job's supply.
                    reached("check: another runner has its job");
                    debts.account_if_ours(other, id, &input.repository().to_string()).await?;
                    state.job_runs_on = Some(other.to_owned());
                }
                seen.job = Some(job);
            }
            Verdict::Look(Look::Work) => {
                seen.work = Some(work(context, event, &seen.record).await);
            }
            Verdict::Look(Look::Registration) => {
                seen.registration = Some(match runner_id {
                    Some(id) => context.forge().runner(&place, id).await?,
                    None => context.forge().runner_named(&place, runner).await?,
                });
            }
            Verdict::Account => {
                reached("check: accounted for by its own job");
                let id = input.job().unwrap_or(JobId(-1));
                let repository = input.repository().to_string();
                debts.account(runner, id, &repository).await?;
                seen.record.ran = Ran::Job { id, repository: Some(repository) };
            }
            Verdict::Taken => {
                debts.mark_taken(runner).await?;
                warn!(runner, url = input.job_url, "the runner has another job than its own");
                context.telemetry().count("RunnerTaken", tier, 1.0);
                debts.settle(runner, input, seen.job.as_ref().and_then(Option::as_ref)).await?;
                seen.record.ran = Ran::Taken;
                seen.settled = true;
            }
            Verdict::Judge => {
                let known = seen.job.as_ref().and_then(Option::as_ref);
                let judgement = debts.end(runner, input, &seen.record, known).await?;
                if judgement == Judgement::TooEarly {
                    reached("check: another job is too young to be judged");
                    info!(runner, "its job is too young to be judged: at the next check");
                }
                seen.settled = true;
            }
            Verdict::Withdraw => {
                seen.withdrawn = Some(context.handoff().withdraw(&instance).await?);
            }
            Verdict::Deregister => {
                deregister(context, event, &place, &mut state, &mut seen, now).await?;
            }
            Verdict::End(reason) => {
                warn!(runner, instance, reason, "ending the instance");
                context.telemetry().count("InstanceEnded", Some(("Reason", reason)), 1.0);
                context.fleet().terminate(&instance).await?;
                return Ok(state.ended(reason));
            }
            Verdict::Over(reason) => {
                let why = seen.instance.flatten().and_then(|instance| instance.reason);
                if why.as_deref().is_some_and(|why| why.contains(SPOT_RECLAIMED)) {
                    reached("check: EC2 took the spot instance back");
                    context.telemetry().count("SpotReclaimed", tier, 1.0);
                }
                info!(runner, instance, reason, why, "the instance is gone");
                return Ok(state.ended(reason));
            }
            Verdict::Wait => {
                let accounted = matches!(&seen.record.ran,
                    Ran::Job { id, .. } if Some(*id) == input.job());
                state.wait_seconds = pause(now, &state, accounted, idle);
                state.checks = state.checks.saturating_add(1);
                state.next = Next::Wait;
                return Ok(state);
            }
        }
    }
}

/// The job that the runner is accounted for with, where GitHub shows it to us. Without that the runner has until
/// its lifetime, so a failure is no reason to repeat the step.
async fn work<C: RunnerContext>(
    context: &C,
    event: &StepEvent,
    record: &RunnerRecord,
) -> Option<ForgeJob> {
    let Ran::Job { id, repository } = &record.ran else { return None };
    let own = event.input.repository();
    let at = match repository.as_deref().and_then(split_full_name) {
        Some((owner, name)) => Repository {
            owner: owner.to_owned(),
            name: name.to_owned(),
            installation: own.installation.filter(|_| own.owner.eq_ignore_ascii_case(owner)),
        },
        None if Some(*id) == event.input.job() => {
            reached("check: its own job, noted without its repository");
            own
        }
        None => {
            reached("check: another job, noted without its repository");
            return None;
        }
    };
    match context.forge().job(&at, *id).await {
        Ok(job) => job,
        Err(error) => {
            reached("check: whether its job is over is not known");
            info!(runner = event.runner, %error, "whether its job is over is asked again");
            None
        }
    }
}

/// Deletes the registration of a runner that seems idle, so that no job can be given to it any more. A
/// refusal means that it is busy after all.
async fn deregister<C: RunnerContext>(
    context: &C,
    event: &StepEvent,
    place: &crate::ports::Place,
    state: &mut RunState,
    seen: &mut Seen,
    now: Timestamp,
) -> Result<()> {
    let Some(Some(entry)) = seen.registration.as_mut() else { return Ok(()) };
    if context.forge().remove_runner(place, entry.id).await? == Removal::Busy {
        reached("check: GitHub calls an idle runner busy");
        entry.busy = true;
        return Ok(());
    }
    state.deregistered_at = Some(now);
    let input = &event.input;
    let waits = matches!(&seen.job, Some(Some(job)) if job.status == JobStatus::Queued);
    info!(runner = event.runner, waits, "deleted the registration of an idle runner");
    context.telemetry().count("IdleRunner", Some(("Tier", &input.provider)), 1.0);
    if waits {
        reached("check: idle while its job waits");
        warn!(
            runner = event.runner,
            url = input.job_url,
            labels = input.labels,
            wanted = input.job_labels,
            "its job still waits: do the tier's runner group and labels admit this repository's jobs?"
        );
        context.telemetry().count("NotAssigned", Some(("Tier", &input.provider)), 1.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::labels::Labels;

    const RUNNER: &str = "widgets-7-abc";
    const OWN: Option<JobId> = Some(JobId(7));
    const IDLE: Duration = Duration::from_secs(300);

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_seconds(minute * 60)
    }

    fn state() -> RunState {
        RunState {
            launched_at: Some(at(0)),
            lifetime_seconds: 6 * 3600,
            boot_seconds: 300,
            instance: Some("i-1".into()),
            runner_id: Some(5),
            claimed: true,
            ..RunState::default()
        }
    }

    fn instance(state: InstanceState) -> Option<Option<Instance>> {
        Some(Some(Instance { id: "i-1".into(), state, reason: None }))
    }

    fn job(status: JobStatus, runner: Option<&str>) -> Option<Option<ForgeJob>> {
        Some(Some(ForgeJob {
            status,
            runner_name: runner.map(str::to_owned),
            labels: Labels::default(),
            created: None,
        }))
    }

    fn entry(online: bool, busy: bool) -> Option<Option<Registered>> {
        Some(Some(Registered { id: 5, name: RUNNER.into(), online, busy }))
    }

    fn running() -> Seen {
        Seen {
            record: RunnerRecord { runner_id: Some(5), ..RunnerRecord::default() },
            instance: instance(InstanceState::Running),
            job: job(JobStatus::Queued, None),
            ..Seen::default()
        }
    }

    fn verdict(minute: i64, state: &mut RunState, seen: &Seen) -> Verdict {
        decide(at(minute), RUNNER, OWN, IDLE, state, seen)
    }

    #[test]
    fn an_accounted_runner_costs_github_nothing() {
        let mut seen = running();
        seen.job = None;
        seen.record.ran = Ran::Job { id: JobId(7), repository: None };
        assert_eq!(verdict(30, &mut state(), &seen), Verdict::Wait);
        seen.instance = instance(InstanceState::Ended);
        assert_eq!(verdict(30, &mut state(), &seen), Verdict::Over("ran a job"));
    }

    #[test]
    fn re_07_a_machine_that_outlives_its_job_has_hung() {
        let mut state = state();
        let mut seen = Seen { job: None, ..running() };
        seen.record.ran = Ran::Job { id: JobId(7), repository: None };
        assert_eq!(verdict(30, &mut state, &seen), Verdict::Wait);
        assert_eq!(verdict(60, &mut state, &seen), Verdict::Look(Look::Work));
        for unclear in [Some(None), job(JobStatus::InProgress, Some(RUNNER))] {
            seen.work = unclear;
            assert_eq!(verdict(60, &mut state, &seen), Verdict::Wait);
            assert_eq!(verdict(100, &mut state, &seen), Verdict::Wait);
        }
        seen.work = job(JobStatus::Completed, Some(RUNNER));
        assert_eq!(
            verdict(120, &mut state, &seen),
            Verdict::Wait,
            "its last logs are on their way"
        );
        assert_eq!(pause(at(120), &state, true, IDLE), 900);
        assert_eq!(verdict(134, &mut state, &seen), Verdict::Wait);
        assert_eq!(verdict(135, &mut state, &seen), Verdict::End("hung"));
    }

    #[test]
    fn a_machine_that_has_not_claimed_costs_github_nothing() {
        let mut booting = RunState { claimed: false, ..state() };
        let mut seen = Seen { job: None, ..running() };
        assert_eq!(verdict(1, &mut booting, &seen), Verdict::Look(Look::Handoff));
        seen.lies = Some(true);
        assert_eq!(verdict(1, &mut booting, &seen), Verdict::Wait);
        assert_eq!(verdict(5, &mut booting, &seen), Verdict::Withdraw);
        seen.withdrawn = Some(true);
        assert_eq!(verdict(5, &mut booting, &seen), Verdict::Look(Look::Registration));
        for never in [Some(None), entry(false, false)] {
            seen.registration = never;
            assert_eq!(verdict(5, &mut booting, &seen), Verdict::End("boot time-out"));
        }
        (seen.withdrawn, seen.registration) = (Some(false), None);
        assert_eq!(verdict(5, &mut booting, &seen), Verdict::Look(Look::Job), "claimed meanwhile");
    }

    #[test]
    fn a_machine_whose_registration_was_put_twice_and_claimed_once_is_not_ended_at_its_boot_time_out()
     {
        let mut state = RunState { claimed: false, ..state() };
        let mut seen = Seen { lies: Some(true), withdrawn: Some(true), ..running() };
        seen.registration = entry(true, true);
        assert_eq!(
            verdict(5, &mut state, &seen),
            Verdict::Wait,
            "busy, with which job is not known yet"
        );
        assert!(state.claimed);
    }

    #[test]
    fn bf_02_idle_needs_two_readings_a_minute_apart() {
        let mut state = state();
        let mut seen = running();
        seen.registration = entry(true, false);
        assert_eq!(verdict(1, &mut state, &seen), Verdict::Wait);
        assert_eq!(verdict(3, &mut state, &seen), Verdict::Wait, "idle time not over");
        seen.registration = entry(true, true);
        assert_eq!(verdict(5, &mut state, &seen), Verdict::Wait, "busy");
        seen.registration = entry(true, false);
        assert_eq!(verdict(7, &mut state, &seen), Verdict::Wait, "one reading");
        assert_eq!(verdict(8, &mut state, &seen), Verdict::Deregister);
    }

    #[test]
    fn a_deregistered_runner_has_five_minutes_to_show_that_it_was_not_idle() {
        let mut state = RunState { deregistered_at: Some(at(10)), ..state() };
        let mut seen = running();
        assert_eq!(verdict(14, &mut state, &seen), Verdict::Wait);
        assert_eq!(verdict(15, &mut state, &seen), Verdict::End("idle"));
        seen.job = job(JobStatus::InProgress, Some(RUNNER));
        assert_eq!(
            verdict(15, &mut state, &seen),
            Verdict::Account,
            "it was busy with its own job"
        );
        seen.record.ran = Ran::Job { id: JobId(9), repository: None };
        seen.settled = true;
        assert_eq!(verdict(15, &mut state, &seen), Verdict::Wait, "a report said so");
    }

    #[test]
    fn busy_with_another_job_for_four_minutes_is_taken() {
        let mut state = state();
        let mut seen = running();
        seen.registration = entry(true, true);
        assert_eq!(verdict(2, &mut state, &seen), Verdict::Wait);
        assert_eq!(verdict(6, &mut state, &seen), Verdict::Taken);
        seen.record.ran = Ran::Taken;
        assert_eq!(verdict(21, &mut state, &seen), Verdict::Judge, "again at the next check");
    }

    #[test]
    fn f14_a_runner_that_ran_another_job_is_judged_anew_at_each_check() {
        let mut seen = running();
        seen.record.ran = Ran::Job { id: JobId(9), repository: None };
        assert_eq!(
            verdict(4, &mut state(), &seen),
            Verdict::Judge,
            "its report may have been lost"
        );
        seen.settled = true;
        assert_eq!(verdict(4, &mut state(), &seen), Verdict::Wait, "once in a check");
    }

    #[test]
    fn busy_is_counted_anew_after_a_reading_without_a_job() {
        let mut state = state();
        let mut seen = running();
        for (minute, busy, is) in
            [(2, true, Verdict::Wait), (4, false, Verdict::Wait), (5, true, Verdict::Wait)]
        {
            seen.registration = entry(true, busy);
            assert_eq!(verdict(minute, &mut state, &seen), is, "minute {minute}");
        }
        assert_eq!(verdict(8, &mut state, &seen), Verdict::Wait, "for three minutes");
        assert_eq!(verdict(9, &mut state, &seen), Verdict::Taken);
    }

    #[test]
    fn i6_a_registration_that_is_shown_again_was_never_gone() {
        let mut state = state();
        let mut seen = running();
        for (minute, shown) in [(2, Some(None)), (3, entry(true, true)), (4, Some(None))] {
            seen.registration = shown;
            assert_eq!(verdict(minute, &mut state, &seen), Verdict::Wait, "minute {minute}");
        }
        assert_eq!(verdict(5, &mut state, &seen), Verdict::Taken, "two readings in a row");
    }

    #[test]
    fn i6_a_registration_that_was_never_recorded_is_not_gone() {
        let mut state = RunState { runner_id: None, ..state() };
        let mut seen = Seen { record: RunnerRecord::default(), ..running() };
        seen.registration = Some(None);
        for minute in [2, 3, 30] {
            assert_eq!(verdict(minute, &mut state, &seen), Verdict::Wait, "minute {minute}");
        }
    }

    #[test]
    fn a_vanished_machine_is_accounted_for_with_its_own_job_if_github_shows_that() {
        let mut seen = running();
        seen.instance = instance(InstanceState::Ended);
        seen.job = job(JobStatus::Completed, Some(RUNNER));
        assert_eq!(verdict(2, &mut state(), &seen), Verdict::Account);
        seen.record.ran = Ran::Job { id: JobId(7), repository: None };
        assert_eq!(verdict(2, &mut state(), &seen), Verdict::Over("ran a job"));
    }

    #[test]
    fn a_vanished_machine_that_ran_nothing_is_judged_at_once() {
        let mut seen = running();
        seen.instance = instance(InstanceState::Ended);
        seen.registration = entry(false, false);
        assert_eq!(verdict(2, &mut state(), &seen), Verdict::Over("ran nothing"));
        for unclear in [Some(None), entry(false, true), entry(true, false)] {
            seen.registration = unclear;
            let mut state = state();
            assert_eq!(verdict(2, &mut state, &seen), Verdict::Wait);
            assert_eq!(verdict(5, &mut state, &seen), Verdict::Over("vanished"));
        }
    }

    #[test]
    fn a_new_instance_that_is_not_listed_is_not_gone() {
        let mut booting = RunState { claimed: false, ..state() };
        let seen = Seen { instance: Some(None), lies: Some(true), ..running() };
        assert_eq!(verdict(1, &mut booting, &seen), Verdict::Wait);
        let gone = Seen { registration: entry(false, false), ..seen };
        assert_eq!(verdict(6, &mut booting, &gone), Verdict::Over("ran nothing"));
    }

    #[test]
    fn rr_01_a_machine_whose_registration_is_gone_is_replaced_then_ended() {
        let mut state = state();
        let mut seen = running();
        seen.registration = Some(None);
        assert_eq!(verdict(2, &mut state, &seen), Verdict::Wait, "one reading");
        assert_eq!(verdict(3, &mut state, &seen), Verdict::Taken);
        seen.record.ran = Ran::Taken;
        seen.settled = true;
        assert_eq!(verdict(10, &mut state, &seen), Verdict::Wait, "it may still be working");
        assert_eq!(verdict(18, &mut state, &seen), Verdict::End("unregistered"));
    }

    #[test]
    fn i4_a_machine_in_which_a_job_has_begun_by_its_line_is_left_to_its_lifetime() {
        let mut seen = running();
        seen.record.reported_at = Some(at(2));
        let mut removed = RunState { deregistered_at: Some(at(10)), ..state() };
        assert_eq!(verdict(15, &mut removed, &seen), Verdict::Taken, "an idle one had exited");
        (seen.record.ran, seen.settled) = (Ran::Taken, true);
        assert_eq!(verdict(15, &mut removed, &seen), Verdict::Wait, "and its debt is settled");
        let mut gone = RunState { unregistered_at: Some(at(2)), ..state() };
        for minute in [17, 18, 359] {
            assert_eq!(verdict(minute, &mut gone, &seen), Verdict::Wait, "minute {minute}");
        }
        assert_eq!(verdict(360, &mut gone, &seen), Verdict::End("lifetime"));
    }

    #[test]
    fn re_13_nothing_outlives_its_lifetime_busy_or_not() {
        let mut seen = running();
        seen.record.ran = Ran::Job { id: JobId(7), repository: None };
        assert_eq!(verdict(6 * 60, &mut state(), &seen), Verdict::End("lifetime"));
    }

    #[test]
    fn checks_are_1_2_4_8_and_15_minutes_apart_and_30_once_accounted() {
        let mut state = RunState { online_at: Some(at(-60)), ..state() };
        let mut waits = Vec::new();
        for checks in 0..6 {
            state.checks = checks;
            waits.push(pause(at(10), &state, false, Duration::ZERO));
        }
        assert_eq!(waits, [60, 120, 240, 480, 900, 900]);
        assert_eq!(pause(at(10), &state, true, IDLE), 1800);
        assert_eq!(pause(at(359), &state, true, IDLE), 60, "not past the lifetime");
        assert_eq!(pause(at(360), &state, true, IDLE), 1800.max(SHORTEST_WAIT));
    }

    #[test]
    fn no_deadline_is_slept_through() {
        let quiet = || RunState { checks: 4, online_at: Some(at(-60)), ..state() };
        let wait = |state: &RunState| pause(at(10), state, false, IDLE);
        assert_eq!(wait(&quiet()), 900);
        for (state, seconds) in [
            (RunState { vanished_at: Some(at(9)), ..quiet() }, 120),
            (RunState { busy_at: Some(at(8)), ..quiet() }, 120),
            (RunState { deregistered_at: Some(at(7)), ..quiet() }, 120),
            (RunState { unregistered_at: Some(at(10)), ..quiet() }, 60),
            (RunState { idle_at: Some(at(10)), ..quiet() }, 60),
            (RunState { online_at: Some(at(8)), ..quiet() }, 180),
            (RunState { online_at: None, boot_seconds: 720, ..quiet() }, 120),
            (RunState { launched_at: Some(at(-348)), ..quiet() }, 120),
            (RunState { busy_at: Some(at(8)), idle_at: Some(at(10)), ..quiet() }, 120),
        ] {
            assert_eq!(wait(&state), seconds, "{state:?}");
        }
    }

    fn seen_strategy() -> impl Strategy<Value = Seen> {
        let ran = prop_oneof![
            Just(Ran::Unknown),
            Just(Ran::Taken),
            (1i64..10).prop_map(|id| Ran::Job { id: JobId(id), repository: None })
        ];
        let instance = prop_oneof![
            Just(Some(None)),
            Just(instance(InstanceState::Pending)),
            Just(instance(InstanceState::Running)),
            Just(instance(InstanceState::Stopped)),
            Just(instance(InstanceState::Ended))
        ];
        let job = prop_oneof![
            Just(Some(None)),
            Just(job(JobStatus::Queued, None)),
            Just(job(JobStatus::InProgress, Some(RUNNER))),
            Just(job(JobStatus::Completed, Some("another"))),
        ];
        let entry = prop_oneof![
            Just(Some(None)),
            (any::<bool>(), any::<bool>()).prop_map(|(online, busy)| entry(online, busy))
        ];
        (ran, instance, job, entry, any::<bool>(), any::<bool>()).prop_map(
            |(ran, instance, job, registration, lies, settled)| Seen {
                record: RunnerRecord { runner_id: Some(5), ran, ..RunnerRecord::default() },
                instance,
                job,
                registration,
                lies: Some(lies),
                settled,
                ..Seen::default()
            },
        )
    }

    proptest! {
        #[test]
        fn i4_no_machine_with_a_job_by_its_line_is_ended_before_its_lifetime(
            seen in seen_strategy(), minute in 0i64..350, removed in 0i64..350, gone in 0i64..350,
        ) {
            let mut state = RunState {
                deregistered_at: (removed < minute).then(|| at(removed)),
                unregistered_at: (gone < minute).then(|| at(gone)),
                ..state()
            };
            let record = RunnerRecord { reported_at: Some(at(1)), ..seen.record.clone() };
            let seen = Seen { record, ..seen };
            let lives = matches!(&seen.instance, Some(Some(i)) if i.state == InstanceState::Running);
            // Its own job is one that GitHub shows.
            if lives && !matches!(seen.record.ran, Ran::Job { .. }) {
                let verdict = verdict(minute, &mut state, &seen);
                prop_assert!(!matches!(verdict, Verdict::End(_)), "{verdict:?} for {seen:?}");
            }
        }

        #[test]
        fn i4_no_runner_that_github_shows_busy_is_ended_before_its_lifetime(
            seen in seen_strategy(), minute in 0i64..350, claimed: bool,
        ) {
            let mut state = RunState { claimed, ..state() };
            let verdict = verdict(minute, &mut state, &seen);
            let busy = matches!(&seen.registration, Some(Some(entry)) if entry.busy);
            let lives = matches!(&seen.instance, Some(Some(i)) if i.state == InstanceState::Running);
            let works = matches!(&seen.job, Some(Some(job)) if job.runner_name.as_deref() == Some(RUNNER));
            if lives && (busy || works) {
                prop_assert!(!matches!(verdict, Verdict::End(_) | Verdict::Over(_) | Verdict::Deregister),
                    "{:?} for {:?}", verdict, seen);
            }
        }

        #[test]
        fn i6_an_instance_is_over_only_if_ec2_said_so(seen in seen_strategy(), minute in 0i64..350) {
            let verdict = verdict(minute, &mut state(), &seen);
            if matches!(verdict, Verdict::Over(_)) {
                prop_assert!(!matches!(&seen.instance, Some(Some(i))
                    if i.state != InstanceState::Ended));
            }
        }
    }
}
