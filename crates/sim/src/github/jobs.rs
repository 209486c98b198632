//! Jobs and runs: how they begin, wait, run and end.

use std::collections::BTreeSet;
use std::time::Duration;

use ostler_core::time::Timestamp;

use super::{ApiError, GitHub, Page, Paging};

/// Most jobs that one matrix makes (docs).
const MATRIX_LIMIT: usize = 256;

/// How long after its beginning, and how often, a run can be run again (docs).
const RERUN_WITHIN: Duration = Duration::from_secs(30 * 86_400);
const MAX_RERUNS: u32 = 50;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not yet looked at by the scheduler.
    Requested,
    /// Held back by a concurrency group.
    Pending,
    /// Held back by an environment's protection rules.
    Waiting,
    /// Waits for a runner.
    Queued,
    /// Runs.
    InProgress,
    /// Has a conclusion.
    Completed,
}

impl Status {
    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
        }
    }
}

/// The runner of a job, as jobs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerRef {
    /// Registration id.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Group id.
    pub group_id: u64,
    /// Group name; `GitHub Actions` for GitHub's own runners.
    pub group_name: String,
}

/// The deployment that a job with an environment makes.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Its id.
    pub id: u64,
    /// The environment's name.
    pub environment: String,
    /// State and time of each status, oldest first.
    pub statuses: Vec<(&'static str, Timestamp)>,
}

/// When a waiting job is given a runner that could run it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// By chance, as GitHub does it.
    #[default]
    Chance,
    /// Before all others.
    First,
    /// Not for now.
    Later,
}

/// What is wanted of a new job.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// `owner/name`; must be there.
    pub repository: String,
    /// `runs-on`.
    pub labels: Vec<String>,
    /// Name of the job.
    pub name: String,
    /// Workflow name; null in the API for `None`, which happens.
    pub workflow: Option<String>,
    /// Branch; null in the API for `None`, which happens.
    pub head_branch: Option<String>,
    /// The run to join; a new one for `None`.
    pub run_id: Option<u64>,
    /// Environment with protection rules: the job waits for [`GitHub::approve`].
    pub environment: Option<String>,
    /// How long it runs.
    pub duration: Duration,
    /// What the stand-in for a runner executes.
    pub script: Option<String>,
    /// Runs on one of GitHub's own runners, at once.
    pub hosted: bool,
    /// Its condition is false: it is completed at once, with no labels
    /// (`actions/actions-runner-controller#836`).
    pub skipped: bool,
}

impl JobSpec {
    /// An ordinary job of one minute.
    pub fn new(repository: &str, labels: &[&str]) -> Self {
        Self {
            repository: repository.into(),
            labels: labels.iter().map(|label| (*label).into()).collect(),
            name: "build".into(),
            workflow: Some("CI".into()),
            head_branch: Some("main".into()),
            run_id: None,
            environment: None,
            duration: Duration::from_secs(60),
            script: None,
            hosted: false,
            skipped: false,
        }
    }
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id: beyond 32 bits.
    pub id: u64,
    /// The run that it belongs to.
    pub run_id: u64,
    /// Which attempt of the run.
    pub attempt: u32,
    /// `owner/name`.
    pub repository: String,
    /// Name of the job.
    pub name: String,
    /// Workflow name.
    pub workflow: Option<String>,
    /// Branch.
    pub head_branch: Option<String>,
    /// `runs-on`.
    pub labels: Vec<String>,
    /// Where it stands.
    pub status: Status,
    /// How it ended.
    pub conclusion: Option<String>,
    /// When it was made. Stays when an approval queues it again.
    pub created_at: Timestamp,
    /// When it was queued last.
    pub queued_at: Timestamp,
    /// When it started to run.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// Since it has run, the runner.
    pub runner: Option<RunnerRef>,
    /// The deployment of a job with an environment.
    pub deployment: Option<Deployment>,
    /// How long it runs.
    pub duration: Duration,
    /// What the stand-in executes.
    pub script: Option<String>,
    /// Runs on GitHub's own runners.
    pub hosted: bool,
    /// When someone cancelled it while it ran.
    pub(super) cancelled_at: Option<Timestamp>,
    /// The session that it was given to.
    pub(super) session: Option<String>,
}

/// A workflow run.
pub(super) struct Run {
    repository: String,
    attempt: u32,
    created_at: Timestamp,
    /// Jobs by attempt: what was good in the last one is in the next one too, under its old id
    /// (`actions/actions-runner-controller#4315`).
    attempts: Vec<Vec<u64>>,
}

/// A run as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Its id.
    pub id: u64,
    /// `owner/name`.
    pub repository: String,
    /// Latest attempt.
    pub attempt: u32,
    /// Made of its jobs' statuses.
    pub status: Status,
    /// Once all jobs have ended.
    pub conclusion: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl GitHub {
    /// A job appears. Events: `queued`; behind an environment `queued`, then `waiting`
    /// (`CloudSnorkel/cdk-github-runners#380`); skipped: `completed` alone.
    pub fn post_job(&mut self, now: Timestamp, spec: &JobSpec) -> Result<u64, ApiError> {
        self.advance(now);
        let found = self.repository(&spec.repository)?;
        let repository = self.full_name(found);
        let run_id = match spec.run_id {
            Some(id) if self.runs.contains_key(&id) => id,
            Some(_) => return Err(ApiError::not_found()),
            None => self.new_run(&repository),
        };
        let id = self.new_id();
        let deployment = spec.environment.clone().map(|environment| {
            let statuses = vec![("waiting", self.now)];
            Deployment { id: self.account_id(), environment, statuses }
        });
        let job = Job {
            id,
            run_id,
            attempt: self.runs.get(&run_id).map_or(1, |run| run.attempt),
            repository,
            name: spec.name.clone(),
            workflow: spec.workflow.clone(),
            head_branch: spec.head_branch.clone(),
            labels: if spec.skipped { Vec::new() } else { spec.labels.clone() },
            status: Status::Queued,
            conclusion: None,
            created_at: self.now,
            queued_at: self.now,
            started_at: None,
            completed_at: None,
            runner: None,
            deployment,
            duration: spec.duration,
            script: spec.script.clone(),
            hosted: spec.hosted,
            cancelled_at: None,
            session: None,
        };
        self.add_job(job);
        if spec.skipped {
            self.finish_job(id, "skipped");
        } else {
            self.announce_new(id);
        }
        Ok(id)
    }

    /// A matrix: `count` jobs of one run at once, at most 256 (docs).
    pub fn post_matrix(
        &mut self,
        now: Timestamp,
        spec: &JobSpec,
        count: usize,
    ) -> Result<Vec<u64>, ApiError> {
        if count > MATRIX_LIMIT {
            return Err(ApiError::invalid("A matrix makes at most 256 jobs."));
        }
        let mut spec = spec.clone();
        let name = spec.name.clone();
        let mut ids = Vec::with_capacity(count);
        for index in 1..=count {
            spec.name = format!("{name} ({index})");
            let id = self.post_job(now, &spec)?;
            spec.run_id = self.jobs.get(&id).map(|job| job.run_id);
            ids.push(id);
        }
        Ok(ids)
    }

    /// Someone approves the deployment of a waiting job: it is queued, with a second `queued` event.
    pub fn approve(&mut self, now: Timestamp, job_id: u64) -> Result<(), ApiError> {
        self.advance(now);
        let now = self.now;
        let job = self.jobs.get_mut(&job_id).ok_or_else(ApiError::not_found)?;
        if job.status != Status::Waiting {
            return Err(ApiError::new(422, "There are no pending deployments for this job."));
        }
        job.status = Status::Queued;
        job.queued_at = now;
        if let Some(deployment) = &mut job.deployment {
            deployment.statuses.push(("queued", now));
        }
        self.announce(job_id, "queued");
        self.start_if_hosted(job_id);
        Ok(())
    }

    /// A job's `queued` event is sent once more.
    pub fn announce_again(&mut self, job_id: u64) {
        self.announce(job_id, "queued");
    }

    /// Which job a runner is given is GitHub's choice; a test may make it.
    pub fn set_turn(&mut self, job_id: u64, turn: Turn) {
        self.turns.insert(job_id, turn);
    }

    /// Puts a queued job back behind its environment or a concurrency group, without an event: the state
    /// in which a queue look-up must not take it for queued.
    pub fn hold(&mut self, job_id: u64, status: Status) {
        if let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.session.is_none()) {
            job.status = status;
        }
    }

    /// Someone cancels a job. One that does not run ends at once; a running one when its runner says so,
    /// or five minutes later (docs).
    pub fn cancel_job(&mut self, now: Timestamp, job_id: u64) -> Result<(), ApiError> {
        self.advance(now);
        let now = self.now;
        let job = self.jobs.get_mut(&job_id).ok_or_else(ApiError::not_found)?;
        match job.status {
            Status::Completed => Err(ApiError::new(409, "Cannot cancel a job that is completed.")),
            Status::InProgress => {
                job.cancelled_at.get_or_insert(now);
                Ok(())
            }
            _ => {
                self.unassign(job_id);
                self.finish_job(job_id, "cancelled");
                Ok(())
            }
        }
    }

    /// `POST …/runs/{id}/cancel`: all its jobs. 409 where there is nothing to cancel.
    pub fn cancel_run(
        &mut self,
        now: Timestamp,
        repository: &str,
        run: u64,
    ) -> Result<(), ApiError> {
        let open: Vec<u64> = self
            .jobs_of(now, repository, run, None)?
            .into_iter()
            .filter(|job| job.status != Status::Completed)
            .map(|job| job.id)
            .collect();
        if open.is_empty() {
            return Err(ApiError::new(409, "Cannot cancel a workflow run that is completed."));
        }
        open.into_iter().try_for_each(|job| self.cancel_job(now, job))
    }

    /// `POST …/runs/{id}/rerun-failed-jobs`: new jobs in a new attempt for those that did not end well,
    /// and the `completed` events of the others once more (`actions/actions-runner-controller#4315`).
    pub fn rerun_failed(
        &mut self,
        now: Timestamp,
        repository: &str,
        run_id: u64,
    ) -> Result<Vec<u64>, ApiError> {
        let old = self.jobs_of(now, repository, run_id, None)?;
        if old.iter().any(|job| job.status != Status::Completed) {
            // `metabase/metabase#70916`, as what follows.
            return Err(ApiError::new(403, "This workflow is already running"));
        }
        let good = |job: &Job| matches!(job.conclusion.as_deref(), Some("success" | "skipped"));
        if old.iter().all(good) || self.is_too_old(run_id) {
            return Err(ApiError::new(403, "This workflow run cannot be retried"));
        }
        self.new_attempt(run_id, old, |job| !good(job))
    }

    /// `POST …/jobs/{id}/rerun`: a new job in a new attempt. No job here needs another, so it is one. The others are in
    /// the new attempt as they are.
    pub fn rerun_job(
        &mut self,
        now: Timestamp,
        repository: &str,
        job_id: u64,
    ) -> Result<Vec<u64>, ApiError> {
        let job = self.get_job(now, repository, job_id)?;
        let run_id = job.run_id;
        let old = self.jobs_of(now, repository, run_id, None)?;
        if old.iter().any(|job| job.status != Status::Completed) {
            // `NVIDIA-NeMo/RL#1193`.
            let text = "The workflow run containing this job is already running";
            return Err(ApiError::new(403, text));
        }
        if self.runs.get(&run_id).is_some_and(|run| job.attempt < run.attempt) {
            // `runs-on/runs-on#263`.
            return Err(ApiError::new(403, "Only jobs from the current attempt can be re-run"));
        }
        if self.is_too_old(run_id) {
            return Err(ApiError::new(403, "This workflow run cannot be retried"));
        }
        self.new_attempt(run_id, old, |job| job.id == job_id)
    }

    /// Whether a run can't be run again any more: after 30 days, and 50 times (docs: re-running workflows and jobs).
    fn is_too_old(&self, run_id: u64) -> bool {
        self.runs.get(&run_id).is_none_or(|run| {
            self.now.since(run.created_at) > RERUN_WITHIN || run.attempt > MAX_RERUNS
        })
    }

    /// Another attempt of a run, with new jobs for some of its `old` ones.
    fn new_attempt(
        &mut self,
        run_id: u64,
        old: Vec<Job>,
        anew: impl Fn(&Job) -> bool,
    ) -> Result<Vec<u64>, ApiError> {
        let run = self.runs.get_mut(&run_id).ok_or_else(ApiError::not_found)?;
        run.attempt += 1;
        run.attempts.push(old.iter().filter(|job| !anew(job)).map(|job| job.id).collect());
        let attempt = run.attempt;
        let mut new = Vec::new();
        for job in old {
            if !anew(&job) {
                self.announce(job.id, "completed");
                continue;
            }
            let id = self.new_id();
            let deployment = job.deployment.map(|deployment| Deployment {
                id: self.account_id(),
                statuses: vec![("waiting", self.now)],
                ..deployment
            });
            self.add_job(Job {
                id,
                attempt,
                status: Status::Queued,
                conclusion: None,
                created_at: self.now,
                queued_at: self.now,
                started_at: None,
                completed_at: None,
                runner: None,
                deployment,
                cancelled_at: None,
                session: None,
                ..job
            });
            self.announce_new(id);
            new.push(id);
        }
        Ok(new)
    }

    /// Deletes a run: its jobs answer 404 although the repository can be read.
    pub fn delete_run(&mut self, run_id: u64) {
        if let Some(run) = self.runs.remove(&run_id) {
            for id in run.attempts.iter().flatten() {
                self.jobs.remove(id);
                self.open.remove(id);
            }
        }
    }

    /// `GET …/actions/jobs/{job_id}`. A job asked for at another repository is 404.
    pub fn get_job(&mut self, now: Timestamp, repository: &str, id: u64) -> Result<Job, ApiError> {
        self.advance(now);
        self.repository(repository)?;
        self.jobs
            .get(&id)
            .filter(|job| job.repository.eq_ignore_ascii_case(repository))
            .cloned()
            .ok_or_else(ApiError::not_found)
    }

    /// Every job ever posted, for the checks at a test's end.
    pub fn all_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// `GET …/runs/{id}/jobs` (the latest attempt's) and `…/attempts/{n}/jobs`.
    pub fn list_jobs_of_run(
        &mut self,
        now: Timestamp,
        repository: &str,
        run_id: u64,
        attempt: Option<u32>,
        paging: Paging,
    ) -> Result<Page<Job>, ApiError> {
        Ok(paging.cut(self.jobs_of(now, repository, run_id, attempt)?.into_iter()))
    }

    /// `GET …/runs/{id}/jobs?filter=all`: the jobs of all attempts, each once.
    pub fn list_all_jobs_of_run(
        &mut self,
        now: Timestamp,
        repository: &str,
        run_id: u64,
        paging: Paging,
    ) -> Result<Page<Job>, ApiError> {
        self.advance(now);
        self.repository(repository)?;
        let run =
            self.runs.get(&run_id).filter(|run| run.repository.eq_ignore_ascii_case(repository));
        let run = run.ok_or_else(ApiError::not_found)?;
        let ids: BTreeSet<_> = run.attempts.iter().flatten().collect();
        let jobs: Vec<_> = ids.into_iter().filter_map(|id| self.jobs.get(id)).cloned().collect();
        Ok(paging.cut(jobs.into_iter()))
    }

    /// `GET …/actions/runs`, newest first, of one status if one is given.
    pub fn list_runs(
        &mut self,
        now: Timestamp,
        repository: &str,
        status: Option<&str>,
        paging: Paging,
    ) -> Result<Page<RunView>, ApiError> {
        self.advance(now);
        self.repository(repository)?;
        let wanted: Vec<RunView> = self
            .runs
            .iter()
            .rev()
            .filter(|(_, run)| run.repository.eq_ignore_ascii_case(repository))
            .map(|(id, run)| self.run_view(*id, run))
            .filter(|view| {
                status.is_none_or(|status| {
                    view.status.name() == status || view.conclusion.as_deref() == Some(status)
                })
            })
            .collect();
        Ok(paging.cut(wanted.into_iter()))
    }

    /// `GET …/actions/runs/{run_id}`.
    pub fn get_run(
        &mut self,
        now: Timestamp,
        repository: &str,
        id: u64,
    ) -> Result<RunView, ApiError> {
        self.advance(now);
        let run = self.runs.get(&id).filter(|run| run.repository.eq_ignore_ascii_case(repository));
        run.map(|run| self.run_view(id, run)).ok_or_else(ApiError::not_found)
    }

    /// `GET …/deployments/{id}/statuses`: state and time, newest first.
    pub fn deployment_statuses(
        &mut self,
        now: Timestamp,
        repository: &str,
        deployment_id: u64,
    ) -> Result<Vec<(&'static str, Timestamp)>, ApiError> {
        self.advance(now);
        self.repository(repository)?;
        self.jobs
            .values()
            .filter(|job| job.repository.eq_ignore_ascii_case(repository))
            .filter_map(|job| job.deployment.as_ref())
            .find(|deployment| deployment.id == deployment_id)
            .map(|deployment| deployment.statuses.iter().rev().copied().collect())
            .ok_or_else(ApiError::not_found)
    }

    /// A runner has fetched the job.
    pub(super) fn start_job(&mut self, job_id: u64, runner: RunnerRef) {
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.status = Status::InProgress;
            job.started_at = Some(now);
            job.runner = Some(runner);
            if let Some(deployment) = &mut job.deployment {
                deployment.statuses.push(("in_progress", now));
            }
        }
        self.announce(job_id, "in_progress");
    }

    /// The job has ended. A cancellation, once asked for, is how it ended.
    pub(super) fn finish_job(&mut self, job_id: u64, conclusion: &str) {
        let now = self.now;
        if !self.open.remove(&job_id) {
            return;
        }
        if let Some(job) = self.jobs.get_mut(&job_id) {
            let cancelled = job.cancelled_at.is_some();
            let conclusion = if cancelled { "cancelled" } else { conclusion };
            job.status = Status::Completed;
            job.conclusion = Some(conclusion.into());
            job.completed_at = Some(now);
            if let Some(deployment) = &mut job.deployment {
                let state = if conclusion == "success" { "success" } else { "failure" };
                deployment.statuses.push((state, now));
            }
        }
        self.announce(job_id, "completed");
    }

    /// Jobs whose time is up: never fetched, cancelled while running, or done on a hosted runner.
    pub(super) fn expire_jobs(&mut self) {
        let due: Vec<(u64, &str)> = self
            .open
            .iter()
            .filter_map(|id| {
                let job = self.jobs.get(id)?;
                let waits = job.status == Status::Queued
                    && self.now.since(job.queued_at) >= self.options.queue_limit;
                let overdue = job
                    .cancelled_at
                    .is_some_and(|at| self.now.since(at) >= self.options.cancel_grace);
                let hosted_done = job.hosted
                    && job.started_at.is_some_and(|at| self.now.since(at) >= job.duration);
                match (waits || overdue, hosted_done) {
                    (true, _) => Some((*id, "cancelled")),
                    (false, true) => Some((*id, "success")),
                    (false, false) => None,
                }
            })
            .collect();
        for (id, conclusion) in due {
            let session = self.jobs.get(&id).and_then(|job| job.session.clone());
            if self.jobs.get(&id).is_some_and(|job| job.status == Status::Queued) {
                self.unassign(id);
            } else if let Some(session) = session {
                self.end_session_job(&session);
            }
            self.finish_job(id, conclusion);
        }
    }

    /// Takes a job that was not fetched away from its runner, which stays idle.
    fn unassign(&mut self, job_id: u64) {
        let session = self.jobs.get_mut(&job_id).and_then(|job| job.session.take());
        if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
            session.forget_job();
        }
    }

    fn new_run(&mut self, repository: &str) -> u64 {
        let id = self.new_id();
        let (repository, created_at) = (repository.into(), self.now);
        self.runs
            .insert(id, Run { repository, attempt: 1, created_at, attempts: vec![Vec::new()] });
        id
    }

    fn add_job(&mut self, job: Job) {
        if let Some(jobs) = self.runs.get_mut(&job.run_id).and_then(|run| run.attempts.last_mut()) {
            jobs.push(job.id);
        }
        self.open.insert(job.id);
        self.jobs.insert(job.id, job);
    }

    fn announce_new(&mut self, job_id: u64) {
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        if job.deployment.is_some() {
            // The first `queued` of such a job already says `waiting` (octokit/webhooks, payload examples).
            job.status = Status::Waiting;
            self.announce(job_id, "queued");
            self.announce(job_id, "waiting");
        } else {
            self.announce(job_id, "queued");
            self.start_if_hosted(job_id);
        }
    }

    fn start_if_hosted(&mut self, job_id: u64) {
        if self.jobs.get(&job_id).is_some_and(|job| job.hosted) {
            let runner = self.hosted_runner();
            self.start_job(job_id, runner);
        }
    }

    fn jobs_of(
        &mut self,
        now: Timestamp,
        repository: &str,
        run_id: u64,
        attempt: Option<u32>,
    ) -> Result<Vec<Job>, ApiError> {
        self.advance(now);
        self.repository(repository)?;
        let run =
            self.runs.get(&run_id).filter(|run| run.repository.eq_ignore_ascii_case(repository));
        let run = run.ok_or_else(ApiError::not_found)?;
        let index = usize::try_from(attempt.unwrap_or(run.attempt)).unwrap_or(usize::MAX);
        let ids = index.checked_sub(1).and_then(|index| run.attempts.get(index));
        let ids = ids.ok_or_else(ApiError::not_found)?;
        Ok(ids.iter().filter_map(|id| self.jobs.get(id)).cloned().collect())
    }

    fn run_view(&self, id: u64, run: &Run) -> RunView {
        let latest = run.attempts.last().map(Vec::as_slice).unwrap_or_default();
        let jobs: Vec<&Job> = latest.iter().filter_map(|id| self.jobs.get(id)).collect();
        let any = |status: Status| jobs.iter().any(|job| job.status == status);
        let mut open = [
            Status::InProgress,
            Status::Queued,
            Status::Waiting,
            Status::Pending,
            Status::Requested,
        ];
        if self.options.runs_show_their_last_job {
            open.reverse();
        }
        let status = open.into_iter().find(|status| any(*status)).unwrap_or(Status::Completed);
        let ended =
            |conclusion: &str| jobs.iter().any(|job| job.conclusion.as_deref() == Some(conclusion));
        let conclusion = ["failure", "cancelled", "success"].into_iter().find(|c| ended(c));
        RunView {
            id,
            repository: run.repository.clone(),
            attempt: run.attempt,
            status,
            conclusion: conclusion.filter(|_| status == Status::Completed).map(Into::into),
            created_at: run.created_at,
        }
    }
}
