//! Finding out whose debt a lost runner is, and paying it: the rules of [`crate::supply`] driven over the
//! ports.

use std::time::Duration;

use tracing::{info, warn};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::job::{JobId, Repository, RunnerInput};
use crate::names::{Lineage, MAX_REPLACEMENTS, MAX_REQUEUES, NameKey, is_plausible};
use crate::ports::{
    Clock, Context, Executions, Forge, ForgeJob, JobStatus, Ledger, Ran, RunnerRecord, Start,
    Telemetry,
};
use crate::supply::{Debt, Facts, JobKey, Need};
use crate::time::Timestamp;

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
}

impl<'a, C: Context> Debts<'a, C> {
    /// Fails while there is no name key: nothing can be named before set-up.
    pub fn new(context: &'a C, settings: &'a Settings) -> Result<Self> {
        let names = settings.name_key.as_ref().ok_or_else(|| {
            Error::Permanent("control/name-key is not set: run the set-up (make secrets)".into())
        })?;
        Ok(Self { context, settings, names })
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

    /// Asks `rule` until it has all the facts that it needs.
    async fn decide<T>(
        &self,
        facts: &mut Facts<'_>,
        rule: impl Fn(&Facts<'_>) -> std::result::Result<T, Need>,
    ) -> Result<T> {
        for _ in 0..MAX_LOOK_UPS {
            match rule(facts) {
                Ok(decision) => return Ok(decision),
                Err(need) => self.observe(facts, need).await?,
            }
        }
        Err(Error::Transient(format!("no decision after {MAX_LOOK_UPS} look-ups")))
    }

    async fn observe(&self, facts: &mut Facts<'_>, need: Need) -> Result<()> {
        match need {
            Need::Job(id) => {
                facts.jobs.insert(id, self.context.ledger().job(id).await?);
            }
            Need::Runner(name) => {
                let record = self.context.ledger().runner(&name).await?;
                facts.runners.insert(name, record);
            }
            Need::Execution(name) => {
                let execution = self.context.executions().describe(&name).await?;
                facts.executions.insert(name, execution);
            }
            Need::Forge(at, id) => {
                facts.forge.insert(id, self.context.forge().job(&at, id).await?);
            }
        }
        Ok(())
    }

    /// Notes that GitHub has shown `runner` with the job.
    pub async fn account(&self, runner: &str, id: JobId, repository: &str) -> Result<()> {
        let ran = Ran::Job { id, repository: Some(repository.to_owned()) };
        let now = self.context.clock().now();
        self.context.ledger().account(runner, &ran, now, self.expiry()).await
    }

    /// As [`Debts::account`], for a name that a job was found under: only if it is a runner of ours.
    pub async fn account_if_ours(&self, name: &str, id: JobId, repository: &str) -> Result<()> {
        if !is_plausible(name) || self.context.executions().describe(name).await?.is_none() {
            return Ok(());
        }
        self.account(name, id, repository).await
    }

    /// Notes that `runner` runs a job that we can't see.
    pub async fn mark_taken(&self, runner: &str) -> Result<()> {
        let now = self.context.clock().now();
        self.context.ledger().account(runner, &Ran::Taken, now, self.expiry()).await
    }

    /// Whether a runner is bound to come free for the job.
    pub async fn supplied(&self, job: &RunnerInput, except: Option<&str>) -> Result<bool> {
        let Some(key) = JobKey::of(job) else { return Ok(false) };
        let wanted = job.wanted();
        let mut facts = Facts::new(self.names);
        self.decide(&mut facts, |facts| facts.supply(&key, &wanted, except)).await
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
        let mut facts = Facts::new(self.names);
        if let (Some(id), Some(known)) = (own.job(), known) {
            facts.forge.insert(id, Some(known.clone()));
        }
        let debt = self.decide(&mut facts, |facts| facts.debt(own)).await?;
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
            Some(owner) => Judgement::Debt(self.pay(&owner, Some(lost), false).await?),
            None if debt.unneeded => Judgement::Unneeded,
            None => Judgement::Settled,
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
            let mut facts = Facts::new(self.names);
            let accepts = |labels: &crate::labels::Labels| self.settings.tiers.accept(labels);
            let early =
                self.decide(&mut facts, |facts| facts.too_early(&key, &at, accepts, young)).await?;
            if early {
                return Ok(Judgement::TooEarly);
            }
        }
        let mut facts = Facts::new(self.names);
        if self.decide(&mut facts, |facts| facts.relieved(runner, own, &key)).await? {
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
        let mut facts = Facts::new(self.names);
        let job = self.context.forge().job(&owner.repository(), key.id).await?;
        if job.is_none_or(|job| job.status != JobStatus::Queued) {
            return Ok(Payment::NotQueued);
        }
        if self.decide(&mut facts, |facts| facts.supply(&key, &wanted, lost)).await? {
            return Ok(Payment::Supplied);
        }
        let latest = self.decide(&mut facts, |facts| facts.latest(&key)).await?;
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
            if self.start(&name, owner).await? {
                return Ok(self.started(name, owner, lost));
            }
            let mut facts = Facts::new(self.names);
            if self.decide(&mut facts, |facts| facts.available(&name, lost)).await? {
                return Ok(Payment::Supplied);
            }
            if replacement < MAX_REPLACEMENTS {
                replacement += 1;
            } else if requeue && self.may_start_generation(&base, generation).await? {
                generation += 1;
                replacement = 0;
            } else {
                break;
            }
        }
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
        Payment::Started(name)
    }

    /// Starts an execution; whether it was this call that started it.
    pub async fn start(&self, name: &str, input: &RunnerInput) -> Result<bool> {
        let called = self.context.clock().now();
        Ok(match self.context.executions().start(name, input).await? {
            Start::Accepted { started } => started + CLOCK_SKEW >= called,
            Start::Exists => false,
        })
    }
}
