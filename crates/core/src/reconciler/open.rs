//! Jobs for which a runner was started and that show no sign of having begun.
//!
//! What the ledger and the executions tell costs GitHub nothing: a job that its runner is accounted for with,
//! or that has supply, is not asked about. Only one without supply is looked up; if it still waits, it is
//! paid for by the rule that holds everywhere.

use std::time::Duration;

use tracing::{info, warn};

use super::{First, OpenJobs, Reconciled, ReconcilerContext};
use crate::config::Settings;
use crate::debts::{Debts, Payment};
use crate::error::{Error, Result};
use crate::job::{JobId, RunnerInput};
use crate::ports::{Clock, Forge, JobStatus, Ledger, Ran};
use crate::reach::reached;
use crate::time::Timestamp;

/// After a runner was started, besides its boot time-out, until its job is looked at.
const UNSTARTED: Duration = Duration::from_secs(180);

/// The boot time-out of a tier that is not there.
const BOOT: Duration = Duration::from_secs(300);

/// Until a job is looked at again that waits with supply, or for something else than a runner.
const AGAIN: Duration = Duration::from_secs(600);

/// The same where the App is not installed any more: it may be installed again, and then the job waits on.
const UNINSTALLED: Duration = Duration::from_secs(3600);

/// How long GitHub keeps a job queued (docs.github.com, "Actions limits").
const QUEUED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Jobs that one run looks at: each costs some reads of the ledger, and a call to GitHub at most.
const MAX_JOBS: usize = 500;

/// Executions that one run looks up for that, and what the last of its jobs needs more. Step Functions has a bucket of 250
/// such look-ups, or 300 by region, which fills by 10 a second, or 15 (Developer Guide, "Quotas"); what judges and pays for
/// runners meanwhile takes from the same.
const MAX_EXECUTIONS: usize = 150;

/// When a job is to be looked at for which a runner is started now.
pub fn due(settings: &Settings, tier: &str, now: Timestamp) -> Timestamp {
    now + UNSTARTED + settings.tiers.get(tier).map_or(BOOT, |tier| tier.boot_timeout)
}

/// What a look came to.
enum Sight {
    /// It need not be looked at any more.
    Closed(&'static str),
    /// It is looked at again then.
    Open(Timestamp),
}

pub(super) async fn look_after<C: ReconcilerContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    done: &mut Reconciled,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let agenda = context.agenda();
    let (mut first, mut failed) = (First(None), 0);
    let due = agenda.due_jobs(MAX_JOBS + 1).await?;
    for (index, id) in due.into_iter().enumerate() {
        // What could not be looked up is not among what was read.
        let asked = debts.executions_read() + failed;
        if index >= MAX_JOBS || asked >= MAX_EXECUTIONS || !may_begin() {
            reached("open: no time for all");
            done.left += 1;
            continue;
        }
        let looked = async {
            match look(context, settings, debts, id, done).await? {
                Sight::Closed(why) => {
                    info!(job = id.0, why, "closed");
                    agenda.close_job(id).await
                }
                Sight::Open(until) => agenda.postpone_job(id, until).await,
            }
        };
        match looked.await {
            Ok(()) => done.looked_at += 1,
            Err(failure) => {
                warn!(job = id.0, %failure, "an open job could not be looked at");
                reached("open: one can't be looked at");
                failed += 1;
                // Neither a poison record nor one owner's limit must keep the others from their turn.
                let until = context.clock().now() + AGAIN;
                let postponed = agenda.postpone_job(id, until).await;
                first.note(postponed.err().unwrap_or(failure));
            }
        }
    }
    first.answer()
}

async fn look<C: ReconcilerContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    id: JobId,
    done: &mut Reconciled,
) -> Result<Sight> {
    let now = context.clock().now();
    let Some(record) = context.ledger().job(id).await? else {
        reached("open: forgotten");
        return Ok(Sight::Closed("forgotten"));
    };
    if record.cancelled_at.is_some() {
        reached("open: cancelled");
        return Ok(Sight::Closed("cancelled"));
    }
    let Some(runner) = record.runner_name else {
        reached("open: another system's job");
        return Ok(Sight::Closed("another system's"));
    };
    if matches!(debts.record(&runner).await?.ran, Ran::Job { id: ran, .. } if ran == id) {
        reached("open: it ran on its runner");
        return Ok(Sight::Closed("ran on its runner"));
    }
    let Some(execution) = debts.execution(&runner).await? else {
        reached("open: its execution is not seen yet");
        // The ledger vouches for it: DescribeExecution lags.
        return Ok(Sight::Open(now + AGAIN));
    };
    let Some(input) = execution.input.filter(|input| input.job() == Some(id)) else {
        reached("open: another system's execution");
        return Ok(Sight::Closed("another system's"));
    };
    let waited = input.queued().map_or(0, |queued| now.since(queued).as_secs());
    if debts.supplied(&input, None).await? {
        done.oldest_waiting_seconds = done.oldest_waiting_seconds.max(waited);
        reached("open: it has supply");
        return Ok(Sight::Open(now + AGAIN));
    }
    let job = match context.forge().job(&input.repository(), id).await {
        // Nobody there can be served, unless the App is installed again. (While it is suspended it is installed.)
        Err(refused @ (Error::Permanent(_) | Error::NotFound(_))) => {
            return match context.forge().installed(&input.repository()).await? {
                true => Err(refused),
                false if waited < QUEUED_FOR.as_secs() => Ok(Sight::Open(now + UNINSTALLED)),
                false => Ok(Sight::Closed("the App is not installed there")),
            };
        }
        job => job?,
    };
    let on = job.as_ref().and_then(|job| job.runner_name.as_deref());
    if let Some(on) = on {
        reached("open: GitHub shows it on a runner");
        debts.account_if_ours(on, id, &input.repository().to_string()).await?;
    }
    match job.map(|job| job.status) {
        None => {
            reached("open: GitHub has no such job");
            Ok(Sight::Closed("GitHub has no such job"))
        }
        Some(JobStatus::Completed) => {
            reached("open: completed");
            Ok(Sight::Closed("completed"))
        }
        Some(JobStatus::InProgress) => {
            reached("open: runs");
            Ok(Sight::Closed("runs"))
        }
        Some(JobStatus::Held) => {
            reached("open: held");
            Ok(Sight::Open(now + AGAIN))
        }
        Some(JobStatus::Queued) => {
            done.oldest_waiting_seconds = done.oldest_waiting_seconds.max(waited);
            pay(settings, debts, &input, now, done).await
        }
    }
}

async fn pay<C: ReconcilerContext>(
    settings: &Settings,
    debts: &Debts<'_, C>,
    input: &RunnerInput,
    now: Timestamp,
    done: &mut Reconciled,
) -> Result<Sight> {
    match debts.pay(input, None, true).await? {
        Payment::Started(runner) => {
            reached("open: paid");
            warn!(runner, job = input.job_id, url = input.job_url, "a job waited without a runner");
            done.paid += 1;
            Ok(Sight::Open(due(settings, &input.provider, now)))
        }
        Payment::Supplied | Payment::NotQueued | Payment::Capped => {
            reached("open: nothing to pay now");
            Ok(Sight::Open(now + AGAIN))
        }
    }
}
