//! What was found of a job and its runners, each piece with the word of the service that keeps it.

use ostler_core::job::RunnerInput;
use ostler_core::ports::Block;
use ostler_core::runner::RunState;
use ostler_core::time::Timestamp;

/// What a look-up came to: something, the service's word that there is nothing, or why it is not known.
pub type Looked<T> = Result<Option<T>, String>;

/// Everything that was found.
#[derive(Clone, Debug)]
pub struct Records {
    /// When it was looked for.
    pub now: Timestamp,
    /// What was asked for: a runner's name, or a job's address.
    pub asked: String,
    /// The job's number.
    pub job_id: Option<i64>,
    /// GitHub's record of the job.
    pub forge: Looked<ForgeSeen>,
    /// The ledger's item of the job.
    pub job: Looked<JobItem>,
    /// Its runners, in the order in which they follow each other.
    pub runners: Vec<RunnerSeen>,
    /// What GitHub has said "later" to, that concerns the job.
    pub blocks: Looked<Vec<Block>>,
    /// What the functions said of the job by its number.
    pub said: Looked<Vec<Said>>,
}

/// GitHub's record of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgeSeen {
    /// `queued`, `held`, `in progress`, `completed`.
    pub status: String,
    /// The runner that it runs or ran on.
    pub runner: Option<String>,
    /// What it asks for, joined by commas.
    pub labels: String,
}

/// `job#<id>` of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobItem {
    /// The latest runner.
    pub runner: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// `owner/name`.
    pub repository: Option<String>,
    /// The job's page.
    pub url: Option<String>,
    /// When GitHub created it.
    pub queued: Option<Timestamp>,
    /// When it was over before it ran.
    pub cancelled: Option<Timestamp>,
}

/// A runner.
#[derive(Clone, Debug)]
pub struct RunnerSeen {
    /// Its name.
    pub name: String,
    /// The ledger's item.
    pub item: Looked<RunnerItem>,
    /// Its execution.
    pub execution: Looked<ExecutionSeen>,
    /// Its machines; EC2 forgets one that has ended after an hour.
    pub machines: Looked<Vec<MachineSeen>>,
    /// What its machine said.
    pub log: Looked<Vec<Said>>,
    /// What the functions said of it.
    pub said: Looked<Vec<Said>>,
}

/// `runner#<name>` of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerItem {
    /// Its registration's id at GitHub.
    pub id: Option<i64>,
    /// The job that it is proved to have run: a number, or `taken`.
    pub ran: Option<String>,
    /// `owner/name` of that job's repository.
    pub ran_repository: Option<String>,
    /// When that was noted.
    pub accounted: Option<Timestamp>,
    /// When EC2 said that it takes the machine back.
    pub interrupted: Option<Timestamp>,
    /// When its end was judged.
    pub ended: Option<Timestamp>,
}

/// An execution.
#[derive(Clone, Debug, Default)]
pub struct ExecutionSeen {
    /// `RUNNING`, `SUCCEEDED`, `FAILED`, `TIMED_OUT`, `ABORTED`.
    pub status: String,
    /// When it was started.
    pub started: Timestamp,
    /// When it ended.
    pub stopped: Option<Timestamp>,
    /// Its input.
    pub input: Option<RunnerInput>,
    /// Why it ended badly: error and cause.
    pub failure: Option<String>,
    /// What its steps came to, in order.
    pub steps: Vec<Step>,
    /// Whether there is more of it than was read.
    pub more: bool,
}

/// What a step came to.
#[derive(Clone, Debug)]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// `Launch`, `Register`, `Check`, `Cleanup`.
    pub name: String,
    /// Its answer, or why it failed. A step that failed is repeated.
    pub outcome: Result<Answer, String>,
}

/// A step's answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// What is next: `register`, `later`, `wait`, `ended`, `done`.
    pub next: String,
    /// What is remembered.
    pub state: RunState,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSeen {
    /// `i-…`.
    pub id: String,
    /// `m7i.large`.
    pub instance_type: String,
    /// On the spot market.
    pub spot: bool,
    /// Where.
    pub zone: String,
    /// `pending`, `running`, …
    pub state: String,
    /// When it was launched.
    pub launched: Option<Timestamp>,
    /// EC2's reason for its last change of state.
    pub reason: Option<String>,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// When.
    pub at: Timestamp,
    /// Who: a function's log, or the machine's.
    pub who: String,
    /// `INFO`, `WARN`, `ERROR`; empty for a machine's.
    pub level: String,
    /// The words.
    pub text: String,
}
