//! Finding out whose debt a lost runner is, and paying it: the rules of [`crate::supply`] driven over the
//! ports.
//!
//! What was read serves all judgements of one [`Debts`]: a batch of reports, or one step. That nobody waits
//! may be found by it, though the world has moved on since: whatever is lost later is judged by itself. Before
//! anything is started, all that can have changed is read anew.

use std::cell::RefCell;
use std::time::Duration;

use tracing::{info, warn};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::job::{JobId, Repository, RunnerInput};
use crate::names::{Lineage, MAX_REPLACEMENTS, MAX_REQUEUES, NameKey, is_plausible};
use crate::ports::{
    Clock, Context, Execution, Executions, Forge, ForgeJob, JobRecord, JobStatus, Ledger, Ran,
    RunnerRecord, Start, Telemetry,
};
use crate::reach::reached;
use crate::supply::{Debt, Fact, Facts, JobKey, Need};
use crate::time::Timestamp;
use crate::together::Turns;

/// How far an execution's start date may lie before the call that started it: clocks of Lambda and Step
/// Functions differ by some 100 ms at most. Two starts closer than this are told apart by nobody, and
/// need not be.
const CLOCK_SKEW: Duration = Duration::from_secs(1);

/// Until when a job that a tier would take may still have its own `queued` event on the way (public
/// figures: 95th percentile 162 s), counted from its creation at GitHub.
const LATE_EVENT: Duration = Duration::from_secs(240);

/// Between two generations of runners for one job.
const GENERATION_INTERVAL: Duration = Duration::from_secs(3600);

/// Look-ups of one decision. A matrix may be one chain: 256 jobs of at most four facts each.
const MAX_LOOK_UPS: usize = 1_024;

/// How a payment ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payment {
    /// This runner was started.
    Started(String),
    /// A runner is bound to come free for the job.
    Supplied,
    /// The job does not wait.
    NotQueued,
    /// All names are used up for now.
    Capped,
}

/// How a judgement ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nobody waits because of that runner.
    Settled,
    /// The same: the job that would have waited is over, and never had a runner.
    Unneeded,
    /// The debt was paid, or needed no payment.
    Debt(Payment),
    /// The other job is too young to be called a thief.
    TooEarly,
}

/// Debts under one configuration.
pub struct Debts<'a, C> {
    context: &'a C,
    settings: &'a Settings,
    names: &'a NameKey,
    /// What was read so far.
    read: RefCell<Facts<'a>>,
    turns: Turns<Work>,
}

/// What judgements side by side do one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    /// Reading a fact: the others then have it too.
    Read(Need),
    /// Paying the debt of a job: whoever is second finds what the first one started.
    Pay(JobId),
}

impl<'a, C: Context> Debts<'a, C> {
    /// Fails while there is no name key: nothing can be named before set-up.
    pub fn new(context: &'a C, settings: &'a Settings) -> Result<Self> {
        let names = settings.name_key.as_ref().ok_or_else(|| {
            Error::Permanent("control/name-key is not set: run the set-up (make secrets)".into())
        })?;
        let read = RefCell::new(Facts::new(names));
        Ok(Self { context, settings, names, read, turns: Turns::default() })
    }

    /// The name key.
    pub fn names(&self) -> &NameKey {
        self.names
    }

    /// When what is noted about a runner now may be forgotten.
    pub fn expiry(&self) -> Timestamp {
        self.context.clock().now()
            + self.settings.tiers.longest_lifetime()
            + Duration::from_secs(86_400)
    }

    /// Asks `rule` until it has all the facts that it needs: those that were read before, and those that are
    /// read now. No runner may be started on the answer.
    async fn find<T>(
        &self,
        rule: impl Fn(&Facts<'_>) -> std::result::Result<T, Need>,
    ) -> Result<T> {
        let mut look_ups = 0;
        while look_ups < MAX_LOOK_UPS {
            let need = match rule(&self.read.borrow()) {
                Ok(found) => return Ok(found),
                Err(need) => need,
            };
            let (_turn, waited) = self.turns.take(&Work::Read(need.clone())).await;
            if !waited {
                look_ups += 1;
                self.observe(need).await?;
            }
        }
        Err(undecided())
    }

    /// Asks `rule` until it has all the facts that it needs. Of those that were read before, only the lasting
    /// ones are used.
    async fn find_anew<T>(
        &self,
        facts: &mut Facts<'_>,
        rule: impl Fn(&Facts<'_>) -> std::result::Result<T, Need>,
    ) -> Result<T> {
        for _ in 0..MAX_LOOK_UPS {
            match rule(facts) {
                Ok(found) => return Ok(found),
                Err(need) => facts.note(self.observe(need).await?),
            }
        }
        Err(undecided())
    }

    fn lasting(&self) -> Facts<'a> {
        self.read.borrow().lasting()
    }

    /// Reads a fact, whatever is known of it.
    async fn observe(&self, need: Need) -> Result<Fact> {
        let fact = match need {
            Need::Job(id) => Fact::Job(id, self.context.ledger().job(id).await?),
            Need::Runner(name) => {
                let record = self.context.ledger().runner(&name).await?;
                Fact::Runner(name, record)
            }
            Need::Execution(name) => {
                let execution = self.context.executions().describe(&name).await?;
                Fact::Execution(name, execution)
            }
            Need::Forge(at, id) => Fact::Forge(id, self.context.forge().job(&at, id).await?),
        };
        self.note(fact.clone());
        Ok(fact)
    }

    fn note(&self, fact: Fact) {
        self.read.borrow_mut().note(fact);
    }

    /// The execution of that name, as it is or was when the batch came.
    pub async fn execution(&self, name: &str) -> Result<Option<Execution>> {
        self.find(|facts| facts.execution(name).map(|execution| execution.cloned())).await
    }

    /// How many executions were looked up so far.
    pub fn executions_read(&self) -> usize {
        self.read.borrow().executions.len()
    }

    /// The ledger's word about a runner, as it is or was when the batch came.
    pub async fn record(&self, runner: &str) -> Result<RunnerRecord> {
        self.find(|facts| facts.runner(runner).cloned()).await
    }

    /// Whether a runner was started for the job.
    pub async fn is_served(&self, id: JobId) -> Result<bool> {
        self.find(|facts| facts.is_served(id)).await
    }

    /// Notes that GitHub has shown `runner` with the job.
    pub async fn account(&self, runner: &str, id: JobId, repository: &str) -> Result<()> {
        if self.read.borrow().is_accounted(runner, id) {
            return Ok(());
        }
        let repo = repository.split_once('/').map_or(repository, |(_, name)| name);
        if Lineage::parse(runner).base != self.names.base_name(repo, id) {
            // By this the way back to who waits is found without GitHub; nobody's leads through a job on a runner of its
            // own. First, because once the runner is accounted for nobody comes by here again.
            self.context.ledger().note_ran(id, runner, self.expiry()).await?;
            self.read.borrow_mut().note_ran(id, runner);
        }
        self.account_for(runner, &Ran::Job { id, repository: Some(repository.to_owned()) }).await
    }

    /// As [`Debts::account`], for a name that a job was found under: only if it is a runner of ours.
    pub async fn account_if_ours(&self, name: &str, id: JobId, repository: &str) -> Result<()> {
        if !is_plausible(name) || self.execution(name).await?.is_none() {
            reached("debts: a job runs on somebody else's runner");
            return Ok(());
        }
        self.account(name, id, repository).await
    }

    /// Notes that `runner` runs a job that we can't see.
    pub async fn mark_taken(&self, runner: &str) -> Result<()> {
        self.account_for(runner, &Ran::Taken).await
    }

    /// Notes that a line says that `runner` has begun a job that we can't see, whether that is true or not.
    pub async fn mark_reported(&self, runner: &str) -> Result<()> {
        let now = self.context.clock().now();
        self.context.ledger().report_runner(runner, now, self.expiry()).await
    }

    async fn account_for(&self, runner: &str, ran: &Ran) -> Result<()> {
        let now = self.context.clock().now();
        let record = self.context.ledger().account(runner, ran, now, self.expiry()).await?;
        self.note(Fact::Runner(runner.to_owned(), record));
        Ok(())
    }

    /// Whether a runner is bound to come free for the job.
    pub async fn supplied(&self, job: &RunnerInput, except: Option<&str>) -> Result<bool> {
        let Some(key) = JobKey::of(job) else { return Ok(false) };
        let wanted = job.wanted();
        self.find(|facts| facts.supply(&key, &wanted, except)).await
    }

    /// The runner that is bound to come free for a job of which the ledger's word was just read.
    pub async fn supplier(&self, job: &JobKey, record: JobRecord) -> Result<Option<String>> {
        self.note(Fact::Job(job.id, Some(record)));
        self.find(|facts| facts.supplier(job)).await
    }

    /// The job that waits because a runner started with `own` does not serve it. What the look-ups prove
    /// on the way is noted. `known` is GitHub's record of the runner's own job, where it was just read.
    pub async fn owner(
        &self,
        own: &RunnerInput,
        known: Option<&ForgeJob>,
    ) -> Result<Option<RunnerInput>> {
        Ok(self.debt(own, known).await?.owner)
    }

    async fn debt(&self, own: &RunnerInput, known: Option<&ForgeJob>) -> Result<Debt> {
        let mut facts = self.lasting();
        if let (Some(id), Some(known)) = (own.job(), known) {
            facts.note(Fact::Forge(id, Some(known.clone())));
        }
        let debt = self.find_anew(&mut facts, |facts| facts.debt(own)).await?;
        for (runner, id, repository) in &debt.accounts {
            self.account(runner, *id, repository).await?;
        }
        Ok(debt)
    }

    /// Settles that `lost`, started with `own`, serves nobody any more.
    pub async fn settle(
        &self,
        lost: &str,
        own: &RunnerInput,
        known: Option<&ForgeJob>,
    ) -> Result<Judgement> {
        let debt = self.debt(own, known).await?;
        Ok(match debt.owner {
            Some(owner) => {
                reached("debts: somebody waits");
                Judgement::Debt(self.pay(&owner, Some(lost), false).await?)
            }
            None if debt.unneeded => {
                reached("debts: who would have waited is over, unserved");
                Judgement::Unneeded
            }
            None => {
                reached("debts: nobody waits");
                Judgement::Settled
            }
        })
    }

    /// Judges that `runner`, started with `own`, ran the job `ran`.
    pub async fn judge(
        &self,
        runner: &str,
        own: &RunnerInput,
        ran: JobId,
        repository: Option<&str>,
    ) -> Result<Judgement> {
        if own.job() == Some(ran) {
            reached("debts: it ran its own job");
            return Ok(Judgement::Settled);
        }
        let key = JobKey::noted(ran, repository);
        if let Some((owner, name)) = repository.and_then(|full| full.split_once('/')) {
            let installation =
                own.owner.eq_ignore_ascii_case(owner).then(|| own.repository().installation);
            let at = Repository {
                owner: owner.into(),
                name: name.into(),
                installation: installation.flatten(),
            };
            let now = self.context.clock().now();
            let young =
                |job: &ForgeJob| job.created.is_some_and(|created| now.since(created) < LATE_EVENT);
            let accepts = |labels: &crate::labels::Labels| self.settings.may_serve(labels);
            if self.find(|facts| facts.too_early(&key, &at, accepts, young)).await? {
                reached("debts: too early to judge");
                return Ok(Judgement::TooEarly);
            }
        }
        if self.find(|facts| facts.relieved(runner, own, &key)).await? {
            reached("debts: relieved by the runner of the job that it ran");
            return Ok(Judgement::Settled);
        }
        self.settle(runner, own, None).await
    }

    /// Settles the end of a runner that `record` is noted of. Its end is noted already.
    pub async fn end(
        &self,
        runner: &str,
        own: &RunnerInput,
        record: &RunnerRecord,
        known: Option<&ForgeJob>,
    ) -> Result<Judgement> {
        match &record.ran {
            Ran::Job { id, repository } => {
                self.judge(runner, own, *id, repository.as_deref()).await
            }
            Ran::Taken | Ran::Unknown => self.settle(runner, own, known).await,
        }
    }

    /// Starts a runner for a job that waits without supply. `lost` is the runner whose loss is paid for.
    /// `requeue`: by webhook and reconciler alone, which may use the base name if it never was, and a new
    /// generation once the replacements are used up. Status and supply are read anew, right before the
    /// start.
    pub async fn pay(
        &self,
        owner: &RunnerInput,
        lost: Option<&str>,
        requeue: bool,
    ) -> Result<Payment> {
        let Some(key) = JobKey::of(owner) else { return Ok(Payment::NotQueued) };
        let wanted = owner.wanted();
        let (_turn, _) = self.turns.take(&Work::Pay(key.id)).await;
        let mut facts = self.lasting();
        let job = self.context.forge().job(&owner.repository(), key.id).await?;
        if job.is_none_or(|job| job.status != JobStatus::Queued) {
            reached("debts: whoever waited waits no more");
            return Ok(Payment::NotQueued);
        }
        if self.find_anew(&mut facts, |facts| facts.supply(&key, &wanted, lost)).await? {
            reached("debts: whoever waits has supply");
            return Ok(Payment::Supplied);
        }
        let latest = self.find_anew(&mut facts, |facts| facts.latest(&key)).await?;
        let base = Lineage::parse(&self.names.base_name(&owner.repo, key.id));
        let mut generation = [latest.as_deref(), lost]
            .into_iter()
            .flatten()
            .map(Lineage::parse)
            .filter(|runner| runner.base == base.base)
            .map(|runner| runner.generation)
            .max()
            .unwrap_or(0);
        let mut replacement = u8::from(!(requeue && latest.is_none() && generation == 0));
        loop {
            let name = base.at(generation, replacement).to_string();
            let used = self.read.borrow().is_used(&name);
            if !used && self.start(&name, owner).await? {
                return Ok(self.started(name, owner, lost));
            }
            let mut facts = self.lasting();
            if self.find_anew(&mut facts, |facts| facts.available(&name, lost)).await? {
                reached("debts: the runner of that name is the supply");
                return Ok(Payment::Supplied);
            }
            if replacement < MAX_REPLACEMENTS {
                reached("debts: that name is used up");
                replacement += 1;
            } else if requeue && self.may_start_generation(&base, generation).await? {
                reached("debts: another generation");
                generation += 1;
                replacement = 0;
            } else {
                break;
            }
        }
        reached("debts: all replacements are used up");
        warn!(
            job = owner.job_id,
            url = owner.job_url,
            generation,
            "no runner is started: all replacements of this job are used up"
        );
        self.context.telemetry().count("ReplacementsUsedUp", Some(("Tier", &owner.provider)), 1.0);
        Ok(Payment::Capped)
    }

    async fn may_start_generation(&self, base: &Lineage, last: u8) -> Result<bool> {
        if last >= MAX_REQUEUES {
            reached("debts: all generations are used up");
            return Ok(false);
        }
        let first = self.context.executions().describe(&base.at(last, 0).to_string()).await?;
        let now = self.context.clock().now();
        Ok(first.is_none_or(|first| now.since(first.started) >= GENERATION_INTERVAL))
    }

    fn started(&self, name: String, owner: &RunnerInput, lost: Option<&str>) -> Payment {
        info!(
            runner = name,
            job = owner.job_id,
            url = owner.job_url,
            lost,
            "started a replacement"
        );
        self.context.telemetry().count("ReplacementStarted", Some(("Tier", &owner.provider)), 1.0);
        let started = self.context.clock().now();
        let execution = Execution { running: true, started, input: Some(owner.clone()) };
        self.note(Fact::Execution(name.clone(), Some(execution)));
        Payment::Started(name)
    }

    /// Starts an execution; whether it was this call that started it.
    pub async fn start(&self, name: &str, input: &RunnerInput) -> Result<bool> {
        let called = self.context.clock().now();
        Ok(match self.context.executions().start(name, input).await? {
            Start::Accepted { started } if started + CLOCK_SKEW >= called => {
                reached("debts: an execution was started");
                true
            }
            Start::Accepted { .. } => {
                reached("debts: the execution runs already");
                false
            }
            Start::Exists => {
                reached("debts: the name was used before");
                false
            }
        })
    }
}

fn undecided() -> Error {
    Error::Transient(format!("no decision after {MAX_LOOK_UPS} look-ups"))
}
