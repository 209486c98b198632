//! What only the reconciler asks of the world: the ledger's index of what is due, the App's log of
//! deliveries, and the runs that wait in a repository.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;

use crate::error::Result;
use crate::job::{JobId, Repository};
use crate::ports::{AcceptContext, Gate};
use crate::time::Timestamp;

/// Jobs for which a runner was started, and that are not known to have begun: a sparse index of the ledger.
/// It lags a write by moments, so what it names is read again before anything is decided.
pub trait OpenJobs {
    /// Those that are due, the longest due first.
    fn due_jobs(&self, most: usize) -> impl Future<Output = Result<Vec<JobId>>>;
    /// Looks at it again then. Repeatable; one that is not open stays so.
    fn postpone_job(&self, id: JobId, until: Timestamp) -> impl Future<Output = Result<()>>;
    /// Takes it out of the index. Repeatable.
    fn close_job(&self, id: JobId) -> impl Future<Output = Result<()>>;
}

/// `repo#<owner>/<name>` of the ledger: a repository in which a runner of ours was started lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRepository {
    /// It, with the App's installation where that is known.
    pub at: Repository,
    /// When its runs were last listed in full.
    pub listed_at: Option<Timestamp>,
    /// The tags of those lists, in the order of [`RunStatus::EACH`].
    pub tags: [Option<Tag>; RunStatus::EACH.len()],
}

/// The tag of a list of runs, by which GitHub says whether it is still the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The entity tag.
    pub text: String,
    /// Whether no run was in the list.
    pub of_none: bool,
}

impl ActiveRepository {
    /// One that was never asked.
    pub fn new(at: Repository) -> Self {
        Self { at, listed_at: None, tags: Default::default() }
    }
}

/// The repositories that were active in the last days.
pub trait ActiveRepositories {
    /// Those that are due, the longest due first.
    fn due_repositories(&self, most: usize) -> impl Future<Output = Result<Vec<ActiveRepository>>>;
    /// Notes what was found, to be looked at again at `until`. Repeatable.
    fn note_look(
        &self,
        repository: &ActiveRepository,
        until: Timestamp,
    ) -> impl Future<Output = Result<()>>;
}

/// `delivery#<guid>` of the ledger: an event whose last delivery failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDelivery {
    /// The event's GUID, which all its deliveries share.
    pub guid: String,
    /// The latest delivery that failed. 64-bit.
    pub id: u64,
    /// When the first one failed that we know of.
    pub failed_at: Timestamp,
    /// From when on it may be delivered again.
    pub due: Timestamp,
}

/// Events that have to be delivered again, and how far the log of deliveries was read.
pub trait FailedDeliveries {
    /// The delivery up to which the log was read and every failure noted.
    fn position(&self) -> impl Future<Output = Result<Option<u64>>>;
    /// Moves that on; never back. Repeatable.
    fn advance(&self, position: u64) -> impl Future<Output = Result<()>>;
    /// Notes a failure. What is noted of the event stays: since when, and when it is due. Repeatable.
    fn note_failure(&self, failure: &FailedDelivery) -> impl Future<Output = Result<()>>;
    /// Those that are due, the longest due first.
    fn due_deliveries(&self, most: usize) -> impl Future<Output = Result<Vec<FailedDelivery>>>;
    /// Takes it, so that nobody else delivers it again until then. `false`: somebody was first.
    fn claim(
        &self,
        failure: &FailedDelivery,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool>>;
    /// It was delivered, or is given up. Repeatable.
    fn settle_delivery(&self, guid: &str) -> impl Future<Output = Result<()>>;
}

/// One line of the App's log of deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its id, which rises. 64-bit.
    pub id: u64,
    /// The event's.
    pub guid: String,
    /// When it was sent.
    pub at: Timestamp,
    /// Whether it was answered 2xx.
    pub ok: bool,
    /// Whether the event had been sent before.
    pub again: bool,
    /// Whether it is about jobs.
    pub of_job: bool,
}

/// Part of that log, the newest first.
#[derive(Clone, Debug, Default)]
pub struct DeliveryPage {
    /// Its lines.
    pub entries: Vec<Delivered>,
    /// Where the log goes on; `None` at its end.
    pub next: Option<String>,
}

/// The App's webhook.
pub trait Deliveries {
    /// A page of the log of deliveries.
    fn page(&self, cursor: Option<&str>) -> impl Future<Output = Result<DeliveryPage>>;
    /// Has GitHub send one again. `false`: GitHub does not have it any more. Not to be repeated blindly: each
    /// call is a delivery.
    fn redeliver(&self, id: u64) -> impl Future<Output = Result<bool>>;
}

/// In which state a run may hold a job that waits for a runner. GitHub does not document how a run's state follows from
/// those of its jobs; seen was that of the job which is furthest back (`cli/cli#13972`), so that one which waits for a
/// runner may be beside another that waits for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// A job waits for a runner.
    Queued,
    /// One has begun, and others may wait.
    InProgress,
    /// A job waits at a gate of its environment.
    Waiting,
    /// A job waits for its concurrency group.
    Pending,
}

impl RunStatus {
    /// All of them.
    pub const EACH: [Self; 4] = [Self::Queued, Self::InProgress, Self::Waiting, Self::Pending];

    /// As GitHub writes it (docs.github.com, "List workflow runs for a repository", `status`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
        }
    }
}

/// The runs of a repository in one state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunList {
    /// Their ids.
    pub runs: Vec<i64>,
    /// Whether anyone can see the repository.
    pub public: bool,
    /// How many pages of them can be listed. GitHub lists the newest thousand runs of a state (docs.github.com, "List
    /// workflow runs for a repository").
    pub pages: usize,
    /// To be told next time whether the list is still the same.
    pub tag: Option<String>,
}

/// Runs and jobs that wait.
pub trait WaitingRuns {
    /// The runs of a repository in that state, a page of a hundred, the newest on page 1; `None` if they are those of the
    /// tag.
    fn runs(
        &self,
        at: &Repository,
        status: RunStatus,
        page: usize,
        tag: Option<&str>,
    ) -> impl Future<Output = Result<Option<RunList>>>;
    /// The jobs of a run's latest attempt, as GitHub's events hold them.
    fn jobs(&self, at: &Repository, run: i64) -> impl Future<Output = Result<Vec<Value>>>;
}

/// A job whose runner has lost its machine, or is about to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptedJob {
    /// It.
    pub id: JobId,
    /// Its tier.
    pub tier: String,
    /// When the machine was taken, or EC2 said that it would be.
    pub lost_at: Timestamp,
}

/// `rerun#<owner>/<name>#<run>` of the ledger: a run of which jobs lost their machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterruptedRun {
    /// Where it is.
    pub at: Repository,
    /// Its id.
    pub run: i64,
    /// Those of its jobs that are not settled.
    pub jobs: Vec<InterruptedJob>,
    /// Which attempt was the latest when GitHub was last asked for another, where it is not known what came of that.
    pub asked: Option<i64>,
    /// From when on it is to be looked at.
    pub due: Timestamp,
}

/// Runs of which jobs are to be run again.
pub trait InterruptedRuns {
    /// Notes a job, and that its run is to be looked at by `due`. Whether it was not noted before. Repeatable: what is
    /// noted of a job stays, also that it is settled.
    fn note_interrupted(
        &self,
        at: &Repository,
        run: i64,
        job: &InterruptedJob,
        due: Timestamp,
    ) -> impl Future<Output = Result<bool>>;
    /// Those that are due, the longest due first.
    fn due_reruns(&self, most: usize) -> impl Future<Output = Result<Vec<InterruptedRun>>>;
    /// Takes it, so that nobody else looks at it until then, and notes `asked`. `false`: somebody was first, or another
    /// of its jobs was noted since it was read.
    fn claim_rerun(
        &self,
        run: &InterruptedRun,
        until: Timestamp,
        asked: Option<i64>,
    ) -> impl Future<Output = Result<bool>>;
    /// Settles its jobs, as they were read. Does nothing if somebody else has taken it, or another of its jobs was noted.
    fn settle_rerun(&self, run: &InterruptedRun) -> impl Future<Output = Result<()>>;
}

/// A run as GitHub shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkflowRun {
    /// Which attempt is the latest.
    pub attempt: i64,
    /// Whether all of it is over.
    pub completed: bool,
    /// Whether it ended by being cancelled.
    pub cancelled: bool,
}

/// What of a run is to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// A job, and those that need it.
    Job(JobId),
    /// All jobs that did not end well, and those that need them.
    Failed,
}

/// What GitHub answered to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// There is another attempt.
    Begun,
    /// The run is not over.
    Running,
    /// There was another attempt already.
    Superseded,
    /// The App may not; the text says what to grant.
    NotAllowed(String),
    /// Not this run, for good: it is too old, or its workflow is disabled.
    Refused(String),
    /// There is no such run or job.
    Gone,
}

/// Running again.
pub trait Reruns {
    /// The run; `None` if GitHub has none of that id.
    fn run(&self, at: &Repository, run: i64) -> impl Future<Output = Result<Option<WorkflowRun>>>;
    /// Has GitHub make another attempt. Not to be repeated blindly: each call may be an attempt. A transient error says
    /// nothing about whether it was made.
    fn rerun(&self, at: &Repository, run: i64, what: Again) -> impl Future<Output = Result<Asked>>;
}

/// What the reconciler needs besides what accepting a job does.
pub trait ReconcilerContext: AcceptContext {
    /// What is due.
    type Agenda: OpenJobs + ActiveRepositories + FailedDeliveries + InterruptedRuns;
    /// GitHub's side of it.
    type Backlog: Deliveries + WaitingRuns + Reruns;
    /// Bounds of launches.
    type Gate: Gate;
    /// What is due.
    fn agenda(&self) -> &Self::Agenda;
    /// GitHub's side of it.
    fn backlog(&self) -> &Self::Backlog;
    /// Bounds of launches.
    fn gate(&self) -> &Self::Gate;
}

/// How long a repository counts as active after the last runner that was started for it.
pub const ACTIVE: Duration = Duration::from_secs(7 * 86_400);
