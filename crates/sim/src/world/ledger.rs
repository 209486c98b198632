//! The `Ledger` port: a table of items with conditional writes and a time to live.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::error::Result;
use ostler_core::job::{JobId, RunnerInput};
use ostler_core::names::Lineage;
use ostler_core::ports::{Block, JobRecord, Ledger, Ran, RunnerRecord};
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
    /// `blocked#<owner>`, owners in lower case.
    pub blocks: BTreeMap<String, Block>,
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
        expires: Timestamp,
    ) -> Result<JobRecord> {
        self.ask("Ledger.record_job", |state| {
            let record = state.job_item(JobId(input.job_id), expires);
            let rank = |name: &str| Lineage::parse(name).rank();
            if record.runner_name.as_deref().is_none_or(|latest| rank(latest) <= rank(name)) {
                record.runner_name = Some(name.into());
                record.runner_labels.get_or_insert_with(|| input.registered());
                record.owner.get_or_insert_with(|| input.owner.clone());
                record.repo.get_or_insert_with(|| input.repo.clone());
            }
            Ok(record.clone())
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

    async fn cancel_job(&self, id: JobId, at: Timestamp, expires: Timestamp) -> Result<()> {
        self.ask("Ledger.cancel_job", |state| {
            state.job_item(id, expires).cancelled_at.get_or_insert(at);
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
