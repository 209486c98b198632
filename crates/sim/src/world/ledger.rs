//! The `Ledger` port: a table of items with conditional writes and a time to live.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_core::error::Result;
use ostler_core::instances::SpotBreaker;
use ostler_core::job::{JobId, Repository, RunnerInput};
use ostler_core::names::Lineage;
use ostler_core::ports::{Block, Gate, JobRecord, Ledger, Ran, RunnerRecord, Slot};
use ostler_core::reconciler::{ActiveRepository, FailedDelivery, InterruptedRun};
use ostler_core::time::Timestamp;

use super::{State, World};

/// A runner's item of which nothing but the handover is noted.
const RUNNER_LIFE: Duration = Duration::from_secs(6 * 86_400);

/// The table.
#[derive(Clone, Debug, Default)]
pub struct LedgerTable {
    /// `job#<id>` and when it may go.
    pub jobs: BTreeMap<JobId, (JobRecord, Timestamp)>,
    /// `runner#<name>` and when it may go.
    pub runners: BTreeMap<String, (RunnerRecord, Timestamp)>,
    /// `runner#<name>`: machines (runner, instance) whose cost is counted, and when that was noted.
    pub charged: BTreeMap<(String, String), Timestamp>,
    /// `blocked#<owner>`, owners in lower case.
    pub blocks: BTreeMap<String, Block>,
    /// Jobs that are open, and when they are due.
    pub open: BTreeMap<JobId, Timestamp>,
    /// `repo#<owner>/<name>`, in lower case.
    pub repositories: BTreeMap<String, RepositoryItem>,
    /// `delivery#<guid>` of those that are not settled.
    pub failures: BTreeMap<String, FailedDelivery>,
    /// `slots#<tier>`.
    pub slots: BTreeMap<String, BTreeMap<String, Timestamp>>,
    /// The same: when it was last looked whether its holders are right.
    pub looks: BTreeMap<String, Timestamp>,
    /// `breaker#<tier>`: its latest failures, and until when it is open.
    pub breakers: BTreeMap<String, (Vec<Timestamp>, Option<Timestamp>)>,
    /// `pace#<whose>`: the next moment that is free.
    pub pace: BTreeMap<String, Timestamp>,
    /// `pace#<whose>`: how many turns were taken.
    pub turns: BTreeMap<String, u64>,
    /// The same: runs that are kept off spot, by tier, and until when.
    pub off_spot: BTreeMap<(String, i64), Timestamp>,
    /// `rerun#<owner>/<name>#<run>`, in lower case, of those that are not settled.
    pub interrupted: BTreeMap<String, InterruptedRun>,
    /// Jobs that were ever noted there.
    pub lost: BTreeSet<JobId>,
    /// Up to where the log of deliveries was read.
    pub position: Option<u64>,
}

/// A repository that was active.
#[derive(Clone, Debug)]
pub struct RepositoryItem {
    /// What is noted of it.
    pub record: ActiveRepository,
    /// When it is to be looked at.
    pub due: Timestamp,
    /// When it may go.
    pub expires: Timestamp,
}

impl State {
    /// The job's item that is not past its time, to be written to.
    fn job_item(&mut self, id: JobId, expires: Timestamp) -> &mut JobRecord {
        let now = self.now;
        let (record, until) = self.ledger.jobs.entry(id).or_default();
        if *until <= now {
            *record = JobRecord::default();
        }
        *until = (*until).max(expires);
        record
    }

    fn runner_item(&mut self, name: &str, expires: Timestamp) -> &mut RunnerRecord {
        let now = self.now;
        let (record, until) = self.ledger.runners.entry(name.into()).or_default();
        if *until <= now {
            *record = RunnerRecord::default();
        }
        *until = (*until).max(expires);
        record
    }

    /// The runner's item, as a look-up sees it.
    pub fn runner_record(&self, name: &str) -> RunnerRecord {
        let item = self.ledger.runners.get(name).filter(|(_, until)| *until > self.now);
        item.map(|(record, _)| record.clone()).unwrap_or_default()
    }
}

impl Ledger for World {
    async fn record_job(
        &self,
        name: &str,
        input: &RunnerInput,
        due: Timestamp,
        expires: Timestamp,
    ) -> Result<JobRecord> {
        self.ask("Ledger.record_job", |state| {
            let id = JobId(input.job_id);
            let record = state.job_item(id, expires);
            let rank = |name: &str| Lineage::parse(name).rank();
            if record.runner_name.as_deref().is_none_or(|latest| rank(latest) <= rank(name)) {
                record.runner_name = Some(name.into());
                record.runner_labels.get_or_insert_with(|| input.registered());
                record.owner.get_or_insert_with(|| input.owner.clone());
                record.repo.get_or_insert_with(|| input.repo.clone());
                let record = record.clone();
                state.ledger.open.insert(id, due);
                return Ok(record);
            }
            Ok(record.clone())
        })
        .await
    }

    async fn note_repository(&self, at: &Repository, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.note_repository", |state| {
            let now = state.now;
            let new =
                RepositoryItem { record: ActiveRepository::new(at.clone()), due: now, expires };
            let key = at.to_string().to_lowercase();
            let item = state.ledger.repositories.entry(key).or_insert_with(|| new.clone());
            if item.expires <= now {
                *item = new;
            }
            item.expires = expires;
            Ok(())
        })
        .await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.ask("Ledger.job", |state| {
            let item = state.ledger.jobs.get(&id).filter(|(_, until)| *until > state.now);
            Ok(item.map(|(record, _)| record.clone()))
        })
        .await
    }

    async fn cancel_job(&self, id: JobId, at: Timestamp, expires: Timestamp) -> Result<JobRecord> {
        self.ask("Ledger.cancel_job", |state| {
            let record = state.job_item(id, expires);
            record.cancelled_at.get_or_insert(at);
            Ok(record.clone())
        })
        .await
    }

    async fn note_ran(&self, id: JobId, runner: &str, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.note_ran", |state| {
            let now = state.now;
            let item = state.ledger.jobs.get_mut(&id).filter(|(_, until)| *until > now);
            if let Some((record, until)) = item {
                record.ran_on.get_or_insert_with(|| runner.to_owned());
                *until = expires;
            }
            Ok(())
        })
        .await
    }

    async fn runner(&self, name: &str) -> Result<RunnerRecord> {
        self.ask("Ledger.runner", |state| Ok(state.runner_record(name))).await
    }

    async fn record_registration(
        &self,
        name: &str,
        runner_id: i64,
        expires: Timestamp,
    ) -> Result<()> {
        self.ask("Ledger.record_registration", |state| {
            let item = state.runner_item(name, expires);
            item.runner_id = item.runner_id.max(Some(runner_id));
            Ok(())
        })
        .await
    }

    async fn record_handover(&self, name: &str) -> Result<()> {
        self.ask("Ledger.record_handover", |state| {
            let expires = state.now + RUNNER_LIFE;
            state.runner_item(name, expires).handed_over = true;
            Ok(())
        })
        .await
    }

    async fn account(
        &self,
        name: &str,
        ran: &Ran,
        _at: Timestamp,
        expires: Timestamp,
    ) -> Result<RunnerRecord> {
        self.ask("Ledger.account", |state| {
            let record = state.runner_item(name, expires);
            match (&record.ran, ran) {
                (Ran::Job { .. }, _) | (_, Ran::Unknown) => {}
                _ => record.ran = ran.clone(),
            }
            Ok(record.clone())
        })
        .await
    }

    async fn end_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.end_runner", |state| {
            state.runner_item(name, expires).ended_at.get_or_insert(at);
            Ok(())
        })
        .await
    }

    async fn interrupt_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.interrupt_runner", |state| {
            state.runner_item(name, expires).interrupted_at.get_or_insert(at);
            Ok(())
        })
        .await
    }

    async fn report_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.report_runner", |state| {
            state.runner_item(name, expires).reported_at.get_or_insert(at);
            Ok(())
        })
        .await
    }

    async fn charge_machine(
        &self,
        name: &str,
        instance: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> Result<bool> {
        self.ask("Ledger.charge_machine", |state| {
            state.runner_item(name, expires);
            let machine = (name.to_owned(), instance.to_owned());
            Ok(*state.ledger.charged.entry(machine).or_insert(at) == at)
        })
        .await
    }

    async fn blocked(&self, owner: &str) -> Result<Option<Block>> {
        self.ask("Ledger.blocked", |state| {
            let block = state.ledger.blocks.get(&owner.to_lowercase());
            Ok(block.filter(|block| block.until > state.now).cloned())
        })
        .await
    }

    async fn block(&self, owner: &str, block: &Block) -> Result<()> {
        self.ask("Ledger.block", |state| {
            state.ledger.blocks.insert(owner.to_lowercase(), block.clone());
            Ok(())
        })
        .await
    }
}

impl Gate for World {
    async fn take_slot(
        &self,
        tier: &str,
        holder: &str,
        most: u32,
        from: Timestamp,
    ) -> Result<Slot> {
        self.ask("Gate.take_slot", |state| {
            let looked_at = state.ledger.looks.get(tier).copied();
            let holders = state.ledger.slots.entry(tier.into()).or_default();
            let room = holders.len() < usize::try_from(most).unwrap_or(usize::MAX);
            if room || holders.contains_key(holder) {
                holders.insert(holder.into(), from);
                return Ok(Slot::Taken);
            }
            let holders = holders.iter().map(|(name, from)| (name.clone(), *from)).collect();
            Ok(Slot::Full { holders, looked_at })
        })
        .await
    }

    async fn free_slot(&self, tier: &str, holder: &str) -> Result<bool> {
        self.ask("Gate.free_slot", |state| {
            let holders = state.ledger.slots.entry(tier.into()).or_default();
            Ok(holders.remove(holder).is_some())
        })
        .await
    }

    async fn note_look_at_slots(
        &self,
        tier: &str,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<bool> {
        self.ask("Gate.note_look_at_slots", |state| {
            let noted = state.ledger.looks.entry(tier.into()).or_default();
            let first = *noted <= before;
            if first {
                *noted = now;
            }
            Ok(first)
        })
        .await
    }

    async fn reserve(&self, whose: &str, step: Duration) -> Result<Timestamp> {
        self.ask("Gate.reserve", |state| {
            let now = state.now;
            let next = state.ledger.pace.entry(whose.into()).or_insert(now);
            let reserved = now.max(*next);
            *next = reserved + step;
            Ok(reserved)
        })
        .await
    }

    async fn turn(&self, whose: &str) -> Result<u64> {
        self.ask("Gate.turn", |state| {
            let turns = state.ledger.turns.entry(whose.into()).or_default();
            *turns += 1;
            Ok(*turns - 1)
        })
        .await
    }

    async fn strike(&self, tier: &str, at: Timestamp, breaker: &SpotBreaker) -> Result<bool> {
        self.ask("Gate.strike", |state| {
            let (failures, until) = state.ledger.breakers.entry(tier.into()).or_default();
            failures.push(at);
            let recent = breaker.recent(failures, at);
            if !breaker.opens(&recent) || until.is_some_and(|until| until > at) {
                return Ok(false);
            }
            (*failures, *until) = (vec![], Some(at + breaker.on_demand_for));
            Ok(true)
        })
        .await
    }

    async fn spot_rests(&self, tier: &str, run: Option<&str>) -> Result<bool> {
        self.ask("Gate.spot_rests", |state| {
            let until = state.ledger.breakers.get(tier).and_then(|(_, until)| *until);
            let run = run.and_then(|run| run.parse().ok());
            let run = run.and_then(|run| state.ledger.off_spot.get(&(tier.into(), run)).copied());
            Ok(until.max(run) > Some(state.now))
        })
        .await
    }

    async fn keep_off_spot(&self, tier: &str, run: i64, until: Timestamp) -> Result<()> {
        self.ask("Gate.keep_off_spot", |state| {
            state.ledger.off_spot.insert((tier.into(), run), until);
            Ok(())
        })
        .await
    }
}
