//! A model of GitHub Actions as a self-hosted runner system meets it: accounts, jobs, runner registrations,
//! the assignment of jobs to runners, limits, and the events that would be sent as webhooks.
//!
//! It is synchronous and owns no clock: every method that depends on the time takes `now`, first lets
//! everything happen that is due by then, and answers from that state. All chance comes from one seed, so
//! that a schedule can be replayed. Invariant: a job is given only to a runner that is online, has no job,
//! carries all of the job's labels and may serve its repository; which one of those gets it is chance
//! (unless a test says otherwise, [`Turn`]), because a just-in-time registration does not pin a job (`actions/scaleset#107`).
//!
//! Where a rule comes from is said beside it: `docs` is docs.github.com, `owner/repo#n` a public report.

mod access;
pub mod endpoint;
mod jit;
mod jobs;
mod limits;
mod payload;
mod runners;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

pub use access::{Caller, Token};
pub use jobs::{Deployment, Job, JobSpec, RunView, RunnerRef, Status, Turn};
pub use limits::{Admission, CallError, Fault, FaultRule, RateLimits, Struck};
pub use runners::{Assignment, Group, Jit, Poll, RunnerView, Scope, SessionView, Visibility};

/// What a test may want different from the ordinary github.com.
#[derive(Clone, Debug)]
pub struct Options {
    /// Base of API addresses in answers and payloads, without a slash at the end.
    pub api_url: String,
    /// Base of web addresses, without a slash at the end.
    pub html_url: String,
    /// How the four runner fields of a job that has no runner look.
    pub runner_fields: RunnerFields,
    /// Whether payloads carry `installation`; an ordinary repository or organisation hook sends none
    /// (`github-aws-runners/terraform-aws-github-runner#515`).
    pub installation_in_payload: bool,
    /// Least length of an encoded JIT configuration, in bytes. Seen above 4 KB
    /// (`github-aws-runners/terraform-aws-github-runner#4613`).
    pub jit_bytes: usize,
    /// Registrations that a runner group can hold (docs: limits; `ubicloud/ubicloud#6102`).
    pub group_limit: usize,
    /// A registration that has had no job for this long vanishes, online or not. Reported for 2 to 6
    /// minutes in September 2026 (`actions/runner#4726`), not documented: off unless asked for.
    pub unused_registration_life: Option<Duration>,
    /// An ephemeral registration without contact for this long is removed (docs: one day).
    pub offline_registration_life: Duration,
    /// A session that has not been heard of for this long is offline; `None`: only when it says so, for
    /// tests that do not want to poll.
    pub offline_after: Option<Duration>,
    /// A job whose runner is lost fails this much later (`actions/runner#4668`: about ten minutes).
    pub lost_job_after: Duration,
    /// A job that waits for a runner longer than this is cancelled (docs: 24 hours).
    pub queue_limit: Duration,
    /// What a running job has left once it is cancelled, until the server ends it (docs: five minutes).
    pub cancel_grace: Duration,
    /// For how long `busy` still says no after a job was given
    /// (`github-aws-runners/terraform-aws-github-runner#5228`: 25 to more than 60 s).
    pub busy_lag: Duration,
    /// For how long an ephemeral registration stays, busy, after its job has ended.
    pub ephemeral_linger: Duration,
    /// How old the listings of runners may be (`actions/runner#756`: runners vanish and return).
    pub list_staleness: Duration,
    /// Runners are refused for their version, about a month after a newer one came out
    /// (`actions/runner#3366`, `#4392`).
    pub runner_deprecated: bool,
    /// Older GHES versions do not know the `name` filter of the runner listings.
    pub ignores_name_filter: bool,
    /// How often it is looked whether something is due; at every call if zero. Each look goes over all
    /// runners, which thousands of them make long.
    pub timer_grain: Duration,
    /// Whether a run's state is that of the job which is furthest back (`cli/cli#13972`: `queued` while another of its
    /// jobs runs), and not of the one that is furthest on. GitHub documents neither.
    pub runs_show_their_last_job: bool,
    /// Rate limits; `None` as on GHES, where they are off by default (docs).
    pub rate_limits: Option<RateLimits>,
    /// Payloads and JIT configurations have only what somebody reads of them. Making, signing and reading the rest
    /// is most of the work of a simulated history.
    pub brief: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_url: "https://api.github.com".into(),
            html_url: "https://github.com".into(),
            runner_fields: RunnerFields::Null,
            installation_in_payload: true,
            jit_bytes: 4_600,
            group_limit: 10_000,
            unused_registration_life: None,
            offline_registration_life: Duration::from_secs(24 * 3600),
            offline_after: None,
            lost_job_after: Duration::from_secs(600),
            queue_limit: Duration::from_secs(24 * 3600),
            cancel_grace: Duration::from_secs(300),
            busy_lag: Duration::ZERO,
            ephemeral_linger: Duration::ZERO,
            list_staleness: Duration::ZERO,
            runner_deprecated: false,
            ignores_name_filter: false,
            timer_grain: Duration::ZERO,
            runs_show_their_last_job: false,
            rate_limits: Some(RateLimits::default()),
            brief: false,
        }
    }
}

/// How "no runner" looks in `runner_id`, `runner_name`, `runner_group_id`, `runner_group_name`. All have
/// been seen: `octokit/webhooks#1020`, `octokit/octokit.net#2724`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerFields {
    /// `0` and `""`.
    Zero,
    /// `null`.
    Null,
    /// The keys are not there.
    Missing,
}

/// A refusal by the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// GitHub's words.
    pub message: String,
    /// Headers that matter to the caller (`retry-after`, `x-ratelimit-*`), names in lower case.
    pub headers: Vec<(String, String)>,
}

impl ApiError {
    /// A refusal without headers of its own.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), headers: Vec::new() }
    }

    /// 404, which GitHub also says of what the caller may not see.
    pub fn not_found() -> Self {
        Self::new(404, "Not Found")
    }

    /// 422 in the words of the request validation.
    pub(crate) fn invalid(problem: &str) -> Self {
        Self::new(422, format!("Invalid request.\n\n{problem}"))
    }

    /// The JSON body that goes with it (docs: `message`, `documentation_url`, `status`).
    pub fn body(&self) -> Value {
        json!({
            "message": self.message,
            "documentation_url": "https://docs.github.com/rest",
            "status": self.status.to_string(),
        })
    }
}

/// A webhook that GitHub would send to the App.
#[derive(Clone, Debug)]
pub struct Event {
    /// `X-GitHub-Delivery`; a redelivery repeats it (`github/docs#32822`).
    pub guid: String,
    /// `X-GitHub-Event`.
    pub event: String,
    /// The payload's `action`, if it has one.
    pub action: Option<String>,
    /// Installation that it belongs to.
    pub installation: Option<u64>,
    /// Repository that it is about.
    pub repository: Option<u64>,
    /// When it happened.
    pub at: Timestamp,
    /// The body.
    pub payload: Value,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// How many there are in all.
    pub total: usize,
    /// This page's.
    pub items: Vec<T>,
}

/// Which part of a listing is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    /// From 1.
    pub page: usize,
    /// At most 100.
    pub per_page: usize,
}

impl Paging {
    /// Applies the limits of the runner API: 30 unless asked for, at most 100 (docs).
    pub fn new(page: Option<usize>, per_page: Option<usize>) -> Self {
        Self {
            page: page.unwrap_or(1).max(1),
            per_page: per_page.filter(|size| *size > 0).unwrap_or(30).min(100),
        }
    }

    /// Cuts this page out of `all`.
    pub fn cut<T>(self, all: impl ExactSizeIterator<Item = T>) -> Page<T> {
        let total = all.len();
        let skipped = (self.page - 1).saturating_mul(self.per_page);
        Page { total, items: all.skip(skipped).take(self.per_page).collect() }
    }
}

/// What an account is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// Has runners and runner groups of its own.
    Organization,
    /// Has runners at its repositories only.
    User,
}

impl OwnerKind {
    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Organization => "Organization",
            Self::User => "User",
        }
    }
}

/// An account.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Name, as written when it was made.
    pub login: String,
    /// Account id.
    pub id: u64,
    /// Organisation or user.
    pub kind: OwnerKind,
    /// The App's installation there.
    pub installation: Option<u64>,
    pub(crate) groups: BTreeMap<u64, Group>,
}

/// A repository.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Name without the owner, as written when it was made.
    pub name: String,
    /// Repository id.
    pub id: u64,
    /// Key of the owner.
    pub(crate) owner: String,
    /// Whether it is private.
    pub private: bool,
    /// Whether its owner's installation covers it.
    pub installed: bool,
}

/// The model.
pub struct GitHub {
    options: Options,
    rng: StdRng,
    now: Timestamp,
    /// When it was last looked whether something is due.
    looked: Timestamp,
    next_id: u64,
    /// By login in lower case: names are not case-sensitive at GitHub (docs).
    owners: BTreeMap<String, Owner>,
    /// By `owner/name` in lower case.
    repositories: BTreeMap<String, Repository>,
    jobs: BTreeMap<u64, Job>,
    /// Jobs that are not completed: what the timers and the assignment look at.
    open: BTreeSet<u64>,
    runs: BTreeMap<u64, jobs::Run>,
    runners: BTreeMap<u64, runners::Runner>,
    /// Ids of registrations are not used again.
    next_runner: u64,
    sessions: BTreeMap<String, runners::Session>,
    lists: BTreeMap<Scope, (Timestamp, Vec<RunnerView>)>,
    lost_acquires: u32,
    /// Names of runners whose registration went though nobody had asked for it, and no job had ended on it.
    forsaken: BTreeSet<String>,
    tokens: BTreeMap<String, access::Grant>,
    limits: limits::Limits,
    events: Vec<Event>,
    /// When jobs are given a runner, where that is not left to chance.
    turns: BTreeMap<u64, Turn>,
}

impl GitHub {
    /// An empty GitHub. Equal seeds and equal calls give equal answers.
    pub fn new(options: Options, seed: u64) -> Self {
        Self {
            options,
            rng: StdRng::seed_from_u64(seed),
            now: Timestamp::default(),
            looked: Timestamp::default(),
            // Ids of jobs and runs are beyond 32 bits today.
            next_id: 48_000_000_000,
            owners: BTreeMap::new(),
            repositories: BTreeMap::new(),
            jobs: BTreeMap::new(),
            open: BTreeSet::new(),
            runs: BTreeMap::new(),
            runners: BTreeMap::new(),
            next_runner: 1,
            sessions: BTreeMap::new(),
            lists: BTreeMap::new(),
            lost_acquires: 0,
            forsaken: BTreeSet::new(),
            tokens: BTreeMap::new(),
            limits: limits::Limits::default(),
            events: Vec::new(),
            turns: BTreeMap::new(),
        }
    }

    /// The options, to be changed while it runs.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Adds an account, with the App installed. An organisation begins with the groups `Default` (1) and
    /// `GitHub Actions` (2, hosted).
    pub fn add_owner(&mut self, login: &str, kind: OwnerKind) -> &mut Owner {
        let (id, installation) = (self.account_id(), self.account_id());
        let groups = match kind {
            OwnerKind::Organization => Group::initial(),
            OwnerKind::User => BTreeMap::new(),
        };
        self.owners.entry(login.to_lowercase()).or_insert(Owner {
            login: login.into(),
            id,
            kind,
            installation: Some(installation),
            groups,
        })
    }

    /// Adds a repository (`owner/name`), and its owner as an organisation where there is none yet.
    pub fn add_repository(&mut self, full_name: &str, private: bool) -> &mut Repository {
        let (owner, name) = full_name.split_once('/').unwrap_or((full_name, "repository"));
        let id = self.account_id();
        if !self.owners.contains_key(&owner.to_lowercase()) {
            self.add_owner(owner, OwnerKind::Organization);
        }
        self.repositories.entry(full_name.to_lowercase()).or_insert(Repository {
            name: name.into(),
            id,
            owner: owner.to_lowercase(),
            private,
            installed: true,
        })
    }

    /// Deletes a repository: everything below it answers 404 afterwards.
    pub fn delete_repository(&mut self, full_name: &str) {
        self.repositories.remove(&full_name.to_lowercase());
    }

    /// An account, to be changed.
    pub fn owner_mut(&mut self, login: &str) -> Option<&mut Owner> {
        self.owners.get_mut(&login.to_lowercase())
    }

    /// A repository, to be changed.
    pub fn repository_mut(&mut self, full_name: &str) -> Option<&mut Repository> {
        self.repositories.get_mut(&full_name.to_lowercase())
    }

    /// `GET /users/{login}`.
    pub fn account(&self, login: &str) -> Result<&Owner, ApiError> {
        self.owners.get(&login.to_lowercase()).ok_or_else(ApiError::not_found)
    }

    /// `GET /repos/{owner}/{repo}`.
    pub fn repository(&self, full_name: &str) -> Result<&Repository, ApiError> {
        self.repositories.get(&full_name.to_lowercase()).ok_or_else(ApiError::not_found)
    }

    /// `owner/name` of a repository as it was written when it was made.
    pub fn full_name(&self, repository: &Repository) -> String {
        let owner = self.owners.get(&repository.owner).map_or("", |owner| owner.login.as_str());
        format!("{owner}/{}", repository.name)
    }

    /// The events since the last time, oldest first.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Lets everything happen that is due by `now`, and gives queued jobs to idle runners.
    pub fn tick(&mut self, now: Timestamp) {
        self.advance(now);
        self.assign();
    }

    /// Lets everything happen that is due by `now`. Time does not run backwards.
    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        if self.now.since(self.looked) < self.options.timer_grain {
            return;
        }
        self.looked = self.now;
        self.expire_sessions();
        self.expire_jobs();
        self.expire_registrations();
    }

    fn new_id(&mut self) -> u64 {
        // Not consecutive, as at GitHub: nobody may guess the next one.
        self.next_id += self.rng.random_range(1..200);
        self.next_id
    }

    fn account_id(&mut self) -> u64 {
        self.new_id() % 1_000_000_000
    }

    /// A GUID as GitHub writes them.
    fn guid(&mut self) -> String {
        let bits: u128 = self.rng.random();
        let hex = format!("{bits:032x}");
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}
