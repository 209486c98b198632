//! The reconciler's ports: what is due in the ledger, the App's log of deliveries, and runs that wait.

use std::rc::Rc;

use ostler_core::error::{Error, Result};
use ostler_core::job::{JobId, Repository};
use ostler_core::reconciler::{
    ActiveRepositories, ActiveRepository, Again, Asked, Delivered, Deliveries, DeliveryPage,
    FailedDeliveries, FailedDelivery, InterruptedJob, InterruptedRun, InterruptedRuns, OpenJobs,
    Reruns, RunList, RunStatus, WaitingRuns, WorkflowRun,
};
use ostler_core::time::Timestamp;
use serde_json::Value;

use super::World;
use crate::github::{self, CallError, Caller, Paging, endpoint};

/// Lines of a page of the log.
const PAGE: usize = 100;

/// The App's log of deliveries.
#[derive(Clone, Debug, Default)]
pub struct DeliveryLog {
    /// In the order in which they ended.
    pub entries: Vec<(Delivered, Rc<github::Event>)>,
    /// What is to be sent again.
    pub(crate) again: Vec<Rc<github::Event>>,
    last: u64,
}

impl DeliveryLog {
    /// The id of a delivery that begins now. Beyond what a float can hold, as at GitHub.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last = self.last.max(1 << 55) + 3;
        self.last
    }
}

impl OpenJobs for World {
    async fn due_jobs(&self, most: usize) -> Result<Vec<JobId>> {
        self.ask("OpenJobs.due", |state| {
            let now = state.now;
            let mut due: Vec<_> =
                state.ledger.open.iter().filter(|(_, due)| **due <= now).collect();
            due.sort_by_key(|(id, due)| (**due, **id));
            Ok(due.into_iter().map(|(id, _)| *id).take(most).collect())
        })
        .await
    }

    async fn postpone_job(&self, id: JobId, until: Timestamp) -> Result<()> {
        self.ask("OpenJobs.postpone", |state| {
            if let Some(due) = state.ledger.open.get_mut(&id) {
                *due = until;
            }
            Ok(())
        })
        .await
    }

    async fn close_job(&self, id: JobId) -> Result<()> {
        self.ask("OpenJobs.close", |state| {
            state.ledger.open.remove(&id);
            Ok(())
        })
        .await
    }
}

impl ActiveRepositories for World {
    async fn due_repositories(&self, most: usize) -> Result<Vec<ActiveRepository>> {
        self.ask("ActiveRepositories.due", |state| {
            let now = state.now;
            let items = state.ledger.repositories.values();
            let mut due: Vec<_> =
                items.filter(|item| item.due <= now && item.expires > now).collect();
            due.sort_by_key(|item| item.due);
            Ok(due.into_iter().map(|item| item.record.clone()).take(most).collect())
        })
        .await
    }

    async fn note_look(&self, repository: &ActiveRepository, until: Timestamp) -> Result<()> {
        self.ask("ActiveRepositories.note", |state| {
            let key = repository.at.to_string().to_lowercase();
            if let Some(item) = state.ledger.repositories.get_mut(&key) {
                item.record = repository.clone();
                item.due = until;
            }
            Ok(())
        })
        .await
    }
}

impl FailedDeliveries for World {
    async fn position(&self) -> Result<Option<u64>> {
        self.ask("FailedDeliveries.position", |state| Ok(state.ledger.position)).await
    }

    async fn advance(&self, position: u64) -> Result<()> {
        self.ask("FailedDeliveries.advance", |state| {
            state.ledger.position = state.ledger.position.max(Some(position));
            Ok(())
        })
        .await
    }

    async fn note_failure(&self, failure: &FailedDelivery) -> Result<()> {
        self.ask("FailedDeliveries.note", |state| {
            let known = state.ledger.failures.entry(failure.guid.clone());
            known.or_insert_with(|| failure.clone()).id = failure.id;
            Ok(())
        })
        .await
    }

    async fn due_deliveries(&self, most: usize) -> Result<Vec<FailedDelivery>> {
        self.ask("FailedDeliveries.due", |state| {
            let now = state.now;
            let mut due: Vec<_> =
                state.ledger.failures.values().filter(|it| it.due <= now).cloned().collect();
            due.sort_by_key(|failure| failure.due);
            due.truncate(most);
            Ok(due)
        })
        .await
    }

    async fn claim(&self, failure: &FailedDelivery, until: Timestamp) -> Result<bool> {
        self.ask("FailedDeliveries.claim", |state| {
            let found = state.ledger.failures.get_mut(&failure.guid);
            Ok(found.filter(|found| found.due == failure.due).is_some_and(|found| {
                found.due = until;
                true
            }))
        })
        .await
    }

    async fn settle_delivery(&self, guid: &str) -> Result<()> {
        self.ask("FailedDeliveries.settle", |state| {
            state.ledger.failures.remove(guid);
            Ok(())
        })
        .await
    }
}

impl Deliveries for World {
    async fn page(&self, cursor: Option<&str>) -> Result<DeliveryPage> {
        self.ask("Deliveries.page", |state| {
            let caller = Caller::App;
            let before = cursor.and_then(|cursor| cursor.parse::<u64>().ok()).unwrap_or(u64::MAX);
            let mut entries: Vec<Delivered> =
                state.deliveries.entries.iter().map(|(line, _)| line.clone()).collect();
            entries.sort_by_key(|line| std::cmp::Reverse(line.id));
            let answer = state.github(&caller, "GET", endpoint::DELIVERIES, |_| Ok(()));
            answer.map_err(|error| state.error(&error, "the log of deliveries"))?;
            entries.retain(|line| line.id < before);
            let more = entries.len() > PAGE;
            entries.truncate(PAGE);
            let next = entries.last().filter(|_| more).map(|line| line.id.to_string());
            Ok(DeliveryPage { entries, next })
        })
        .await
    }

    async fn redeliver(&self, id: u64) -> Result<bool> {
        self.ask("Deliveries.redeliver", |state| {
            let answer =
                state.github(&Caller::App, "POST", endpoint::DELIVERY_ATTEMPTS, |_| Ok(()));
            match answer {
                // It is older than GitHub keeps deliveries (docs.github.com, "Redelivering webhooks": three days).
                Err(CallError::Api(error)) if error.status == 404 => return Ok(false),
                answer => answer.map_err(|error| state.error(&error, "a delivery"))?,
            }
            let found = state.deliveries.entries.iter().find(|(line, _)| line.id == id);
            let Some(event) = found.map(|(_, event)| Rc::clone(event)) else { return Ok(false) };
            state.deliveries.again.push(event);
            Ok(true)
        })
        .await
    }
}

impl WaitingRuns for World {
    async fn runs(
        &self,
        at: &Repository,
        status: RunStatus,
        page: usize,
        tag: Option<&str>,
    ) -> Result<Option<RunList>> {
        self.ask("WaitingRuns.runs", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let answer = state.github(&caller, "GET", endpoint::RUNS, |github| {
                github.sees_repository(&caller, &full_name)?;
                let paging = Paging::new(Some(page), Some(100));
                let listed = github.list_runs(now, &full_name, Some(status.name()), paging)?;
                Ok((listed, github.repository(&full_name)?.private))
            });
            let (listed, private) = answer.map_err(|error| state.error(&error, "the runs"))?;
            let runs: Vec<i64> =
                listed.items.iter().map(|run| i64::try_from(run.id).unwrap_or(i64::MAX)).collect();
            let new = format!("{runs:?}");
            if tag == Some(&new) {
                return Ok(None);
            }
            let pages = listed.total.div_ceil(100).max(1);
            Ok(Some(RunList { runs, public: !private, pages, tag: Some(new) }))
        })
        .await
    }

    async fn jobs(&self, at: &Repository, run: i64) -> Result<Vec<Value>> {
        self.ask("WaitingRuns.jobs", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let mut found = Vec::new();
            for page in 1.. {
                let answer = state.github(&caller, "GET", endpoint::RUN_JOBS, |github| {
                    github.sees_repository(&caller, &full_name)?;
                    let paging = Paging::new(Some(page), Some(100));
                    let run = run.unsigned_abs();
                    let listed = github.list_jobs_of_run(now, &full_name, run, None, paging)?;
                    let jobs = listed.items.iter().map(|job| github.job_json(job));
                    Ok((listed.total, jobs.collect::<Vec<_>>()))
                });
                let (total, jobs) = match answer {
                    Ok(listed) => listed,
                    Err(CallError::Api(error)) if error.status == 404 => break,
                    Err(error) => return Err(state.error(&error, "the jobs of the run")),
                };
                found.extend(jobs);
                if found.len() >= total {
                    break;
                }
            }
            Ok(found)
        })
        .await
    }
}

impl InterruptedRuns for World {
    async fn note_interrupted(
        &self,
        at: &Repository,
        run: i64,
        job: &InterruptedJob,
        due: Timestamp,
    ) -> Result<bool> {
        self.ask("InterruptedRuns.note", |state| {
            if !state.ledger.lost.insert(job.id) {
                return Ok(false);
            }
            let new = InterruptedRun { at: at.clone(), run, jobs: vec![], asked: None, due };
            let known = state.ledger.interrupted.entry(rerun_key(at, run)).or_insert(new);
            known.jobs.push(job.clone());
            known.due = due;
            Ok(true)
        })
        .await
    }

    async fn due_reruns(&self, most: usize) -> Result<Vec<InterruptedRun>> {
        self.ask("InterruptedRuns.due", |state| {
            let now = state.now;
            let mut due: Vec<_> =
                state.ledger.interrupted.values().filter(|it| it.due <= now).cloned().collect();
            due.sort_by_key(|run| run.due);
            due.truncate(most);
            Ok(due)
        })
        .await
    }

    async fn claim_rerun(
        &self,
        run: &InterruptedRun,
        until: Timestamp,
        asked: Option<i64>,
    ) -> Result<bool> {
        self.ask("InterruptedRuns.claim", |state| {
            let known = state.ledger.interrupted.get_mut(&rerun_key(&run.at, run.run));
            Ok(known.filter(|known| known.due == run.due).is_some_and(|known| {
                (known.due, known.asked) = (until, asked);
                true
            }))
        })
        .await
    }

    async fn settle_rerun(&self, run: &InterruptedRun) -> Result<()> {
        self.ask("InterruptedRuns.settle", |state| {
            let key = rerun_key(&run.at, run.run);
            if state.ledger.interrupted.get(&key).is_some_and(|known| known.due == run.due) {
                state.ledger.interrupted.remove(&key);
            }
            Ok(())
        })
        .await
    }
}

fn rerun_key(at: &Repository, run: i64) -> String {
    format!("{}#{run}", at.to_string().to_lowercase())
}

impl Reruns for World {
    async fn run(&self, at: &Repository, run: i64) -> Result<Option<WorkflowRun>> {
        self.ask("Reruns.run", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let answer = state.github(&caller, "GET", endpoint::RUN, |github| {
                github.sees_repository(&caller, &full_name)?;
                github.get_run(now, &full_name, run.unsigned_abs())
            });
            match answer {
                Ok(run) => Ok(Some(WorkflowRun {
                    attempt: run.attempt.into(),
                    completed: run.status == github::Status::Completed,
                    cancelled: run.conclusion.as_deref() == Some("cancelled"),
                })),
                Err(CallError::Api(error)) if error.status == 404 => Ok(None),
                Err(error) => Err(state.error(&error, "the run")),
            }
        })
        .await
    }

    async fn rerun(&self, at: &Repository, run: i64, what: Again) -> Result<Asked> {
        self.ask("Reruns.rerun", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let template = match what {
                Again::Job(_) => endpoint::JOB_RERUN,
                Again::Failed => endpoint::RUN_RERUN_FAILED,
            };
            let answer = state.github(&caller, "POST", template, |github| {
                github.sees_repository(&caller, &full_name)?;
                match what {
                    Again::Job(id) => {
                        github.rerun_job(now, &full_name, id.0.unsigned_abs()).map(drop)
                    }
                    Again::Failed => {
                        github.rerun_failed(now, &full_name, run.unsigned_abs()).map(drop)
                    }
                }
            });
            match answer {
                Ok(()) => Ok(Asked::Begun),
                Err(CallError::Api(error)) if error.status == 404 => Ok(Asked::Gone),
                Err(error) => match state.error(&error, "running it again") {
                    Error::Permanent(words) if words.contains("already running") => {
                        Ok(Asked::Running)
                    }
                    Error::Permanent(words) if words.contains("current attempt") => {
                        Ok(Asked::Superseded)
                    }
                    Error::Permanent(words) if words.contains("not accessible") => {
                        Ok(Asked::NotAllowed(words))
                    }
                    Error::Permanent(words) => Ok(Asked::Refused(words)),
                    error => Err(error),
                },
            }
        })
        .await
    }
}

impl ostler_core::reconciler::ReconcilerContext for World {
    type Agenda = Self;
    type Backlog = Self;
    type Gate = Self;
    fn gate(&self) -> &Self {
        self
    }
    fn agenda(&self) -> &Self {
        self
    }
    fn backlog(&self) -> &Self {
        self
    }
}
