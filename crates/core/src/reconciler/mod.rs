//! Use case: no job waits for ever. Every few minutes, whatever else has happened, it is seen to that
//!
//! - deliveries of GitHub's that failed are sent again ([`deliveries`]),
//! - jobs for which a runner was started begin, or have a runner that is bound to come free ([`open`]),
//! - jobs whose event never came are found in the repositories that were active lately ([`discovery`]),
//! - jobs that lost their machine are run again once their run allows it ([`reruns`]).
//!
//! Level-triggered: nothing is remembered but in the ledger, each run looks at the world as it is, can be cut
//! off anywhere, and can overlap with another. Nothing is started here: a job that waits is accepted or paid
//! for as everywhere ([`crate::webhook::accept`], [`Debts::pay`]), so a race with webhook, stolen-runner
//! handler or another run starts nothing twice.
//!
//! The four go on side by side: each waits for answers nearly all the time, so that one which has much to do, or whose
//! answers are slow, keeps none of the others from its work. Each has bounds of its own; what it leaves is counted, and
//! the next run begins with that.

mod deliveries;
mod discovery;
mod open;
mod ports;
mod reruns;

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use tracing::{error, info};

pub use deliveries::{Judged, judge};
pub use open::due;
pub use ports::{
    ACTIVE, ActiveRepositories, ActiveRepository, Again, Asked, Delivered, Deliveries,
    DeliveryPage, FailedDeliveries, FailedDelivery, InterruptedJob, InterruptedRun,
    InterruptedRuns, OpenJobs, ReconcilerContext, Reruns, RunList, RunStatus, Tag, WaitingRuns,
    WorkflowRun,
};

use crate::config::Settings;
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::ports::Telemetry;
use crate::reach::reached;
use crate::together::all;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reconciled {
    /// Deliveries that were sent again.
    pub redelivered: usize,
    /// Events that were given up.
    pub given_up: usize,
    /// Open jobs that were looked at.
    pub looked_at: usize,
    /// Jobs that had lost their runner and got another.
    pub paid: usize,
    /// Repositories that were asked for waiting jobs.
    pub repositories: usize,
    /// Jobs that were found there and got a runner.
    pub discovered: usize,
    /// Jobs that had lost their machine and are run again.
    pub run_again: usize,
    /// Things that were due and are left for the next run.
    pub left: usize,
    /// How long the oldest of the jobs has waited that were looked at and wait on, in seconds.
    pub oldest_waiting_seconds: u64,
}

impl Reconciled {
    fn add(&mut self, part: &Self) {
        self.redelivered += part.redelivered;
        self.given_up += part.given_up;
        self.looked_at += part.looked_at;
        self.paid += part.paid;
        self.repositories += part.repositories;
        self.discovered += part.discovered;
        self.run_again += part.run_again;
        self.left += part.left;
        self.oldest_waiting_seconds = self.oldest_waiting_seconds.max(part.oldest_waiting_seconds);
    }
}

/// Part of a run: what it did, and how that went.
type Part<'a> = Pin<Box<dyn Future<Output = (Reconciled, Result<()>)> + 'a>>;

fn part<'a>(work: impl AsyncFnOnce(&mut Reconciled) -> Result<()> + 'a) -> Part<'a> {
    Box::pin(async move {
        let mut done = Reconciled::default();
        let outcome = work(&mut done).await;
        (done, outcome)
    })
}

/// Runs once. `may_begin` says whether there is time to begin something. What fails keeps nothing else from
/// being done; the error comes at the end. A limit of GitHub's is none: the next run goes on.
pub async fn reconcile<C: ReconcilerContext>(
    context: &C,
    settings: &Settings,
    may_begin: impl Fn() -> bool,
) -> Result<Reconciled> {
    let debts = Debts::new(context, settings)?;
    let (may_begin, debts) = (&may_begin, &debts);
    let names = ["Deliveries", "OpenJobs", "Reruns", "Discovery"];
    let parts = all([
        part(async |done| deliveries::redeliver(context, done, may_begin).await),
        part(async |done| open::look_after(context, settings, debts, done, may_begin).await),
        part(async |done| reruns::run_again(context, done, may_begin).await),
        part(async |done| discovery::search(context, settings, debts, done, may_begin).await),
    ]);
    let telemetry = context.telemetry();
    let (mut done, mut outcomes) = (Reconciled::default(), Vec::new());
    for (name, (part, outcome)) in names.into_iter().zip(parts.await) {
        if part.left > 0 {
            telemetry.count("ReconcilerLeft", Some(("Part", name)), number(part.left));
        }
        done.add(&part);
        outcomes.push((name, outcome));
    }
    let counts = [
        ("DeliveryRedelivered", done.redelivered),
        ("DeliveryGivenUp", done.given_up),
        ("OpenJobLookedAt", done.looked_at),
        ("OpenJobPaid", done.paid),
        ("JobDiscovered", done.discovered),
    ];
    for (metric, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        telemetry.count(metric, None, number(count));
    }
    #[allow(clippy::cast_precision_loss, reason = "a job waits for some days at most")]
    telemetry.count("OldestWaitingSeconds", None, done.oldest_waiting_seconds as f64);
    info!(?done, "reconciled");
    let mut first = None;
    for (part, outcome) in outcomes {
        let Err(failure) = outcome else { continue };
        if let Error::Later { after, reason } = &failure {
            reached("reconciler: GitHub wants to be left alone");
            info!(part, after = after.as_secs(), reason, "GitHub wants to be left alone");
            telemetry.count("ReconcilerLimited", None, 1.0);
            continue;
        }
        reached("reconciler: a part failed");
        error!(part, %failure, "not reconciled");
        if matches!(failure, Error::Permanent(_)) {
            telemetry.count("ConfigurationError", None, 1.0);
        }
        first.get_or_insert(failure);
    }
    if let Some(failure) = first {
        return Err(failure);
    }
    telemetry.count("ReconcilerCompleted", None, 1.0);
    Ok(done)
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Notes the first failure of several things, each of which is tried. A limit counts only if nothing else failed: it is
/// one owner's, and others' jobs are looked after all the same; whom GitHub has limited is not asked again before its
/// time.
struct First(Option<Error>);

impl First {
    fn note(&mut self, failure: Error) {
        if matches!(self.0, None | Some(Error::Later { .. })) {
            self.0 = Some(failure);
        }
    }

    fn answer(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
