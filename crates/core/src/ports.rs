//! What the domain asks of the world. Each port is named for the need, not for the service that answers,
//! and has one adapter in production (`crates/aws`, `crates/fleet`, `crates/github`) and one over the
//! simulated world (`crates/sim`).
//!
//! Every call can fail before or after it took effect, and may be repeated; every method says what a
//! repetition does.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::config::{Architecture, Registration, Settings, Tier};
use crate::error::Result;
use crate::instances::SpotBreaker;
use crate::job::{JobId, Repository, RunnerInput};
use crate::labels::Labels;
use crate::report::Report;
use crate::secret::Secret;
use crate::time::Timestamp;

/// The time, and nothing else.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Timestamp;
    /// How long a process sleeps until `span` of this clock has passed: as long, except where the world's
    /// time is stretched.
    fn real(&self, span: Duration) -> Duration {
        span
    }
}

/// Metrics of what an operator has to mend. Each is counted as [`OPERATOR_NEEDED`] too, by the adapter: CloudWatch charges
/// an alarm for every metric that it reads, and these ask for the same.
pub const MENDED_BY_OPERATORS: [&str; 3] = ["ConfigurationError", "NotAssigned", "UnknownRunner"];

/// See [`MENDED_BY_OPERATORS`]; the control plane's template counts instances' words that ask for the same under it.
pub const OPERATOR_NEEDED: &str = "OperatorNeeded";

/// Counts that become metrics.
pub trait Telemetry {
    /// Adds `value` to a metric, by one dimension (name, value) where that tells more: `("Tier", "small")`.
    /// Values of dimensions come from a bounded set.
    fn count(&self, metric: &'static str, by: Option<(&'static str, &str)>, value: f64) {
        self.count_by(metric, by.as_slice(), value);
    }
    /// The same by several dimensions together.
    fn count_by(&self, metric: &'static str, by: &[(&'static str, &str)], value: f64);
}

/// The configuration, kept for some minutes.
pub trait Configuration {
    /// The settings, at most five minutes old.
    fn settings(&self) -> impl Future<Output = Result<Arc<Settings>>>;
    /// Reads again, unless that was done in the last 60 s: for the case that a secret was rotated.
    fn reread(&self) -> impl Future<Output = Result<Arc<Settings>>>;
}

/// An execution of the state machine: one runner's life.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Whether it is RUNNING.
    pub running: bool,
    /// When it was started.
    pub started: Timestamp,
    /// Its input; `None` if it is not one that we understand.
    pub input: Option<RunnerInput>,
}

/// What a start did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It was accepted; the date that the service gave. A date before the call means that an execution of
    /// that name and input was running already.
    Accepted {
        /// The execution's start date.
        started: Timestamp,
    },
    /// An execution of that name exists, closed or with another input.
    Exists,
}

/// Starts and reads executions. Names are valid before they get here.
pub trait Executions {
    /// Starts one. A repetition with the same input answers `Accepted` with the first start's date while
    /// it runs, `Exists` afterwards.
    fn start(&self, name: &str, input: &RunnerInput) -> impl Future<Output = Result<Start>>;
    /// The execution of that name; `None` only if the service says that there is none.
    fn describe(&self, name: &str) -> impl Future<Output = Result<Option<Execution>>>;
}

/// `job#<id>` of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// The latest runner started for it.
    pub runner_name: Option<String>,
    /// The labels that its runners register.
    pub runner_labels: Option<Labels>,
    /// Owner of the job's repository.
    pub owner: Option<String>,
    /// Name of the job's repository.
    pub repo: Option<String>,
    /// When GitHub said that it was cancelled before it ran.
    pub cancelled_at: Option<Timestamp>,
    /// The runner that GitHub has shown with it, where that was noted. It never waits again: what is run once more has
    /// another id.
    pub ran_on: Option<String>,
}

/// Which job a runner is known to have run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ran {
    /// None that we know of.
    #[default]
    Unknown,
    /// Another than its own, of which GitHub does not tell us: it was seen busy, or its registration gone.
    Taken,
    /// This one, by GitHub's own word.
    Job {
        /// The job.
        id: JobId,
        /// `owner/name` of the job's repository, where known.
        repository: Option<String>,
    },
}

/// `runner#<name>` of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerRecord {
    /// Its id at GitHub, once registered.
    pub runner_id: Option<i64>,
    /// Whether its registration was handed to the instance (it may have been claimed since).
    pub handed_over: bool,
    /// What it is known to have run.
    pub ran: Ran,
    /// When its end began to be judged.
    pub ended_at: Option<Timestamp>,
    /// When EC2 said that it takes its machine back.
    pub interrupted_at: Option<Timestamp>,
    /// When a line first said that it had begun a job that we can't see. Any job could have printed that: it keeps its
    /// machine from being ended, and does nothing else.
    pub reported_at: Option<Timestamp>,
}

/// GitHub has said "later" to the registrations of an owner, or of a tier of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Until when nothing is launched for them.
    pub until: Timestamp,
    /// What GitHub refused.
    pub reason: String,
}

/// The table of jobs and runners. Reads are strongly consistent; an item past its `ttl` is not there.
pub trait Ledger {
    /// Records that `name` is started for the input's job: what is there is kept, the latest runner moves
    /// only forward ([`crate::names::Lineage::rank`]). The job is open from then on, and `due` to be looked at
    /// by the reconciler. Answers the item after the update (or the one that was ahead). Repeatable.
    fn record_job(
        &self,
        name: &str,
        input: &RunnerInput,
        due: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<JobRecord>>;
    /// Notes that a runner was started for a job of that repository. Repeatable.
    fn note_repository(
        &self,
        at: &Repository,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// The job's item.
    fn job(&self, id: JobId) -> impl Future<Output = Result<Option<JobRecord>>>;
    /// Notes that the job was cancelled before it ran, even if nothing is known of it. Answers the item as it
    /// is then. Repeatable.
    fn cancel_job(
        &self,
        id: JobId,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<JobRecord>>;
    /// Notes that GitHub has shown the job on that runner; of a job that there is no item of, nothing is noted.
    /// Repeatable; the first one stays.
    fn note_ran(
        &self,
        id: JobId,
        runner: &str,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// The runner's item; the empty record if there is none.
    fn runner(&self, name: &str) -> impl Future<Output = Result<RunnerRecord>>;
    /// Notes the runner's id at GitHub. Repeatable; the highest id wins, in whatever order they are noted: ids
    /// rise, and who registers a name anew has removed its registration before.
    fn record_registration(
        &self,
        name: &str,
        runner_id: i64,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// Notes that the registration was handed to the instance. Repeatable.
    fn record_handover(&self, name: &str) -> impl Future<Output = Result<()>>;
    /// Notes what the runner ran. A job's id replaces `Taken`, never the other way; nothing replaces a
    /// job's id. Answers the item as it is then. Repeatable.
    fn account(
        &self,
        name: &str,
        ran: &Ran,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<RunnerRecord>>;
    /// Notes that the runner's end is being judged. Repeatable; the first time stays.
    fn end_runner(
        &self,
        name: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// Notes that EC2 takes the runner's machine back. Repeatable; the first time stays.
    fn interrupt_runner(
        &self,
        name: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// Notes that a line says that the runner has begun a job that we can't see. Repeatable; the first time stays.
    fn report_runner(
        &self,
        name: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// Notes that what the runner's machine cost is counted, at that moment. Whether it was not counted before: of all who
    /// note it one is told so, and again if the same moment is noted again, as by a client that has lost the answer.
    fn charge_machine(
        &self,
        name: &str,
        instance: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> impl Future<Output = Result<bool>>;
    /// Whether GitHub has said "later" to these (an owner, or a tier of one), and until when.
    fn blocked(&self, whose: &str) -> impl Future<Output = Result<Option<Block>>>;
    /// Notes that GitHub has said "later". Repeatable; the longest wait counts.
    fn block(&self, whose: &str, block: &Block) -> impl Future<Output = Result<()>>;
}

/// What came of taking a place among a tier's `max_runners`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The runner has one.
    Taken,
    /// All are taken.
    Full {
        /// By these holders, each with the moment from which on it counts.
        holders: Vec<(String, Timestamp)>,
        /// When it was last noted that somebody looks whether they are right.
        looked_at: Option<Timestamp>,
    },
}

/// What bounds launches of all executions together, kept in the ledger.
pub trait Gate {
    /// Takes one of a tier's `most` places for the holder, from a moment on that may be still to come. Repeatable; the
    /// latest moment counts.
    fn take_slot(
        &self,
        tier: &str,
        holder: &str,
        most: u32,
        from: Timestamp,
    ) -> impl Future<Output = Result<Slot>>;
    /// Gives it back. Whether the holder had one. Repeatable.
    fn free_slot(&self, tier: &str, holder: &str) -> impl Future<Output = Result<bool>>;
    /// Notes that it is looked at `now` whether the holders of a tier's places are right. `false`: that was noted after
    /// `before` already, and nothing is noted.
    fn note_look_at_slots(
        &self,
        tier: &str,
        before: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<bool>>;
    /// Reserves the next moment that is free: now, or `step` after the last one that was reserved. A repetition
    /// reserves another.
    fn reserve(&self, whose: &str, step: Duration) -> impl Future<Output = Result<Timestamp>>;
    /// The next number of a count that begins with 0. A repetition takes another.
    fn turn(&self, whose: &str) -> impl Future<Output = Result<u64>>;
    /// Counts a failure of a tier's spot market. Whether its breaker opens by that. A repetition counts again.
    fn strike(
        &self,
        tier: &str,
        at: Timestamp,
        breaker: &SpotBreaker,
    ) -> impl Future<Output = Result<bool>>;
    /// Whether a machine of a tier is not to be bought on the spot market: the tier's breaker is open, or the
    /// machine is for a job of a run (its id) that is kept off it.
    fn spot_rests(&self, tier: &str, run: Option<&str>) -> impl Future<Output = Result<bool>>;
    /// Keeps the jobs of a run off a tier's spot machines until then. Repeatable.
    fn keep_off_spot(
        &self,
        tier: &str,
        run: i64,
        until: Timestamp,
    ) -> impl Future<Output = Result<()>>;
}

/// A job's state as the domain needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// Waits for a runner.
    Queued,
    /// Waits for something else: an approval, a concurrency group (`waiting`, `pending`, `requested`).
    Held,
    /// Runs.
    InProgress,
    /// Is over.
    Completed,
}

/// GitHub's record of a job.
#[derive(Clone, Debug)]
pub struct ForgeJob {
    /// Its state.
    pub status: JobStatus,
    /// The runner it runs or ran on; `None` for 0, "" and null.
    pub runner_name: Option<String>,
    /// What it asks for.
    pub labels: Labels,
    /// When GitHub created it.
    pub created: Option<Timestamp>,
}

/// Where runners are registered and looked up.
#[derive(Clone, Debug)]
pub struct Place {
    /// The job's repository.
    pub repository: Repository,
    /// With its owner or with itself.
    pub level: Registration,
}

/// A runner's entry at GitHub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Whether it is connected.
    pub online: bool,
    /// Whether GitHub believes it to run a job. This lags by minutes and can be wrong both ways.
    pub busy: bool,
}

/// A just-in-time registration.
#[derive(Clone, Debug)]
pub struct Jit {
    /// The runner's id at GitHub.
    pub runner_id: i64,
    /// What the runner starts with: good for one runner, once. 2 to 64 KiB of base64.
    pub config: Secret,
}

/// Why GitHub did not register a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 409: a runner of that name exists.
    NameTaken,
    /// 422: the runner group has its 10,000 runners.
    GroupFull(String),
    /// 404: there is no such runner group.
    GroupUnknown(String),
    /// 403: the group belongs to GitHub's own runners, or is closed to us.
    GroupForbidden(String),
    /// 401, 403, 404: the App may not register runners there; the text says what to grant.
    NotAllowed(String),
    /// 422 for another reason: the request itself is wrong.
    Invalid(String),
    /// A primary or secondary rate limit.
    Limited {
        /// When GitHub said to come back, from now.
        after: Duration,
        /// GitHub's words.
        reason: String,
    },
    /// The answer was lost or 5xx: a registration may have been made. Look before asking again.
    Ambiguous(String),
}

/// What a removal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Removed. GitHub's busy flag lags, so this does not prove that the runner was idle.
    Removed,
    /// Was not there.
    Gone,
    /// Refused, because it runs a job.
    Busy,
}

/// GitHub (or GHES). Failed look-ups are errors; `None` is always GitHub's own word.
pub trait Forge {
    /// Whether the App is installed for that repository; `false` only if GitHub answers 404 to the App
    /// itself, which is also its answer for a repository that does not exist.
    fn installed(&self, at: &Repository) -> impl Future<Output = Result<bool>>;
    /// All jobs of a workflow run, of all its attempts, with their ids; `None` if GitHub answers 404 for
    /// the run.
    fn run_jobs(
        &self,
        at: &Repository,
        run: i64,
    ) -> impl Future<Output = Result<Option<Vec<(JobId, ForgeJob)>>>>;
    /// The job; `None` if GitHub answers 404 for it while the repository can be read, or is itself gone
    /// under a valid token.
    fn job(&self, at: &Repository, id: JobId) -> impl Future<Output = Result<Option<ForgeJob>>>;
    /// Whether the newest status of a deployment is `waiting`.
    fn deployment_waits(
        &self,
        at: &Repository,
        deployment: i64,
    ) -> impl Future<Output = Result<bool>>;
    /// The registration with that id.
    fn runner(&self, place: &Place, id: i64) -> impl Future<Output = Result<Option<Registered>>>;
    /// The registration with exactly that name.
    fn runner_named(
        &self,
        place: &Place,
        name: &str,
    ) -> impl Future<Output = Result<Option<Registered>>>;
    /// Registers a runner. Not repeatable: the inner error says what GitHub answered; it is never sent
    /// twice by the adapter.
    fn register(
        &self,
        place: &Place,
        name: &str,
        group: Option<&str>,
        labels: &Labels,
    ) -> impl Future<Output = std::result::Result<Jit, Refusal>>;
    /// Removes a registration. Repeatable.
    fn remove_runner(&self, place: &Place, id: i64) -> impl Future<Output = Result<Removal>>;
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Running.
    Running,
    /// Stopping or stopped: not ours to be, but there.
    Stopped,
    /// Shutting down or terminated.
    Ended,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// `i-…`.
    pub id: String,
    /// Its state.
    pub state: InstanceState,
    /// EC2's reason for the last change, where it gives one: `Client.InternalError: …`.
    pub reason: Option<String>,
}

/// One purchase of a machine.
#[derive(Clone, Debug)]
pub struct LaunchOrder<'a> {
    /// The runner.
    pub runner: &'a str,
    /// `owner/name` of the job's repository, for the tag.
    pub repository: String,
    /// Its tier.
    pub tier: &'a Tier,
    /// Spot or on-demand.
    pub spot: bool,
    /// Makes repetitions of the same purchase one purchase; at most 64 characters.
    pub token: String,
    /// Until when the reaper leaves the machine alone.
    pub until: Timestamp,
}

/// Why EC2 sold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// No machine of that kind there at this time.
    Capacity,
    /// The account's quota is used up.
    Quota,
    /// Too many requests.
    Throttled,
    /// Image, profile, subnet or permission: an operator has to act.
    Configuration,
    /// A code that we don't know; taken for passing.
    Unknown,
}

/// What a launch did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// One machine, and others that were not asked for (they are to be ended).
    Started {
        /// The instance.
        instance: String,
        /// Instances beyond the first.
        surplus: Vec<String>,
    },
    /// None: the gravest reason, and a text that names code and cure.
    Refused {
        /// The reason.
        shortage: Shortage,
        /// EC2's code and words, and what to fix where an operator must.
        text: String,
    },
    /// EC2 takes no more calls just now. Whether an earlier try of this one bought a machine is not known: the same
    /// order again, later.
    Busy {
        /// EC2's code and words.
        text: String,
    },
    /// The token was used before with other parameters (the tier changed in between).
    TokenUsed,
}

/// Machines.
pub trait Fleet {
    /// Buys one. Repeatable under the same token.
    fn launch(&self, order: &LaunchOrder<'_>) -> impl Future<Output = Result<Launch>>;
    /// The instances tagged with that runner and this install's owner, ended ones included while EC2
    /// lists them. The list lags a launch by seconds: an empty one proves nothing about a new instance.
    fn of_runner(&self, name: &str) -> impl Future<Output = Result<Vec<Instance>>>;
    /// The instance; `None` if EC2 does not list it.
    fn instance(&self, id: &str) -> impl Future<Output = Result<Option<Instance>>>;
    /// The runners of all instances of the tier, with their states; ended ones included while EC2 lists them. The list
    /// lags a launch by seconds.
    fn in_tier(&self, tier: &str) -> impl Future<Output = Result<Vec<(String, InstanceState)>>>;
    /// Ends one. Repeatable; one that is not there counts as ended.
    fn terminate(&self, id: &str) -> impl Future<Output = Result<()>>;
}

/// A machine as the reaper sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `i-…`.
    pub id: String,
    /// Its state.
    pub state: InstanceState,
    /// Its latest start: EC2's launch time moves with each.
    pub started: Option<Timestamp>,
    /// The spot request behind it, `sir-…`.
    pub spot_request: Option<String>,
    /// All its tags.
    pub tags: BTreeMap<String, String>,
}

/// Part of the list of machines.
#[derive(Clone, Debug, Default)]
pub struct MachinePage {
    /// Perhaps none, even if there are more.
    pub machines: Vec<Machine>,
    /// Where the list goes on; `None` at its end.
    pub next: Option<String>,
}

/// A spot request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotRequest {
    /// Whether it starts another machine when its own has ended.
    pub persistent: bool,
    /// Whether it is neither cancelled nor closed.
    pub open: bool,
}

/// The machines that carry an owner's tag, whoever launched them.
pub trait Machines {
    /// One page of those that live: pending, running, stopping or stopped.
    fn list(&self, next: Option<String>) -> impl Future<Output = Result<MachinePage>>;
    /// The machine as it is now; `None` only if EC2 says that there is none.
    fn machine(&self, id: &str) -> impl Future<Output = Result<Option<Machine>>>;
    /// The spot request; `None` only if EC2 says that there is none.
    fn spot_request(&self, id: &str) -> impl Future<Output = Result<Option<SpotRequest>>>;
    /// Cancels a spot request; an error if it may still be open. Repeatable. The machine of one that was
    /// active lives on; EC2 ends a stopped one by itself.
    fn cancel_spot_request(&self, id: &str) -> impl Future<Output = Result<()>>;
    /// Ends a machine. Repeatable; one that is not there counts as ended.
    fn terminate(&self, id: &str) -> impl Future<Output = Result<()>>;
}

/// The way of a registration to its instance.
pub trait Handoff {
    /// Lays it down for the instance. Repeatable.
    fn put(
        &self,
        instance: &str,
        jit: &Jit,
        expires: Timestamp,
    ) -> impl Future<Output = Result<()>>;
    /// Whether it still lies there, unclaimed.
    fn lies(&self, instance: &str) -> impl Future<Output = Result<bool>>;
    /// Takes it away; whether it was still there.
    fn withdraw(&self, instance: &str) -> impl Future<Output = Result<bool>>;
}

/// Reports that one call sends at most: SQS's limit of a batch.
pub const MAX_REPORT_BATCH: usize = 10;

/// Reports of which runner took which job, for the stolen-runner handler.
pub trait ReportQueue {
    /// Sends GitHub's signed word. Repeatable: the queue drops the second within five minutes, and the
    /// handler is idempotent.
    fn send(&self, report: &Report) -> impl Future<Output = Result<()>>;
    /// Sends up to [`MAX_REPORT_BATCH`] reports at once. Answers the places of those that the queue did
    /// not take. Repeatable as [`ReportQueue::send`].
    fn send_batch(&self, reports: &[Report]) -> impl Future<Output = Result<Vec<usize>>>;
}

/// An operator's own function that chooses the tier of a job.
pub trait Selector {
    /// Asks it; `function` is its name or ARN. An answer of the function that is an error is an error.
    fn choose(&self, function: &str, request: &Value) -> impl Future<Output = Result<Value>>;
}

/// What supply, debt and payment need; every use case has it.
pub trait Context {
    /// Jobs and runners.
    type Ledger: Ledger;
    /// The state machine.
    type Executions: Executions;
    /// GitHub.
    type Forge: Forge;
    /// The table.
    fn ledger(&self) -> &Self::Ledger;
    /// The state machine.
    fn executions(&self) -> &Self::Executions;
    /// GitHub.
    fn forge(&self) -> &Self::Forge;
    /// The time.
    fn clock(&self) -> &impl Clock;
    /// Metrics.
    fn telemetry(&self) -> &impl Telemetry;
}

/// What the handling of reports needs besides.
pub trait ReportContext: Context {
    /// The configuration.
    type Configuration: Configuration;
    /// Reports.
    type Reports: ReportQueue;
    /// The configuration.
    fn configuration(&self) -> &Self::Configuration;
    /// Reports.
    fn reports(&self) -> &Self::Reports;
}

/// What accepting a job needs besides.
pub trait AcceptContext: Context {
    /// The operator's selector.
    type Selector: Selector;
    /// The operator's selector.
    fn selector(&self) -> &Self::Selector;
}

/// What the webhook needs.
pub trait WebhookContext: ReportContext + AcceptContext {}

impl<C: ReportContext + AcceptContext> WebhookContext for C {}

/// What the life of a runner needs besides.
pub trait RunnerContext: Context {
    /// Machines.
    type Fleet: Fleet;
    /// Registrations on their way.
    type Handoff: Handoff;
    /// Bounds of launches.
    type Gate: Gate;
    /// Machines.
    fn fleet(&self) -> &Self::Fleet;
    /// Registrations on their way.
    fn handoff(&self) -> &Self::Handoff;
    /// Bounds of launches.
    fn gate(&self) -> &Self::Gate;
}

/// The instance types' architecture as EC2 names it.
pub const fn ec2_architecture(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X64 => "x86_64",
        Architecture::Arm64 => "arm64",
    }
}
