//! Jobs whose event never came: the repositories that were active lately are asked for the jobs that wait in
//! them. A job that nothing was started for is accepted as the webhook would have done, under its base name.
//!
//! GitHub is asked with the tag of the last answer, which costs nothing of its quota while nothing has
//! changed. A run has a number of calls, and of repositories; those that were asked longest ago come first.

use std::time::Duration;

use serde_json::{Value, json};
use tracing::{info, warn};

use super::{
    ActiveRepositories, ActiveRepository, First, Reconciled, ReconcilerContext, RunList, RunStatus,
    Tag, WaitingRuns,
};
use crate::config::Settings;
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::job::Repository;
use crate::ports::{Clock, Ledger};
use crate::reach::reached;
use crate::time::Timestamp;
use crate::webhook::{self, Payload};

/// A job that is younger may still have its event on the way (public figures: 95th percentile 162 s).
const LATE_EVENT: Duration = Duration::from_secs(240);

/// Calls of one run: a quarter of the 5,000 that an installation has in an hour at least. An answer that nothing has
/// changed is none: it costs nothing of them (docs.github.com, "Best practices for using the REST API").
const MAX_CALLS: usize = 100;

/// Repositories of one run, for the time that it takes: four questions each.
const MAX_REPOSITORIES: usize = 100;

/// Between two looks at one repository: less than the schedule's period, so that no run is missed.
const AGAIN: Duration = Duration::from_secs(240);

/// For how long the tags of the last lists are believed, except of those without any run: a job that follows another of
/// its run may come without the run's entry in the list being changed.
const TAGS_KEPT: Duration = Duration::from_secs(900);

/// How often another part of a repository has its turn, where there are not calls enough for all of it: the schedule's
/// period.
const TURN: i64 = 300;

/// From the run with which one turn begins to that of the next: prime to all lengths of lists but its multiples, so that
/// each run comes first some time.
const STEP: usize = 37;

pub(super) async fn search<C: ReconcilerContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    done: &mut Reconciled,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let agenda = context.agenda();
    let mut search = Search { context, settings, debts, calls: 0, found: 0, left: 0 };
    let mut first = First(None);
    let due = agenda.due_repositories(MAX_REPOSITORIES + 1).await?;
    for (index, repository) in due.into_iter().enumerate() {
        if index >= MAX_REPOSITORIES || search.calls >= MAX_CALLS || !may_begin() {
            reached("discovery: no time or calls for all");
            done.left += 1;
            continue;
        }
        let looked = search.look(repository, &may_begin).await;
        done.repositories += 1;
        if let Err(failure) = looked {
            first.note(failure);
        }
    }
    done.discovered += search.found;
    done.left += search.left;
    first.answer()
}

struct Search<'a, 'd, C> {
    context: &'a C,
    settings: &'a Settings,
    debts: &'a Debts<'d, C>,
    calls: usize,
    found: usize,
    /// Lists of which there was no time, or no calls, for all runs.
    left: usize,
}

/// What is known of a list of runs afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// All that waits was looked after.
    All,
    /// Something has to be looked at again although the list may stay the same.
    Part,
}

impl<C: ReconcilerContext> Search<'_, '_, C> {
    async fn look(
        &mut self,
        mut repository: ActiveRepository,
        may_begin: impl Fn() -> bool,
    ) -> Result<()> {
        let now = self.context.clock().now();
        let full_name = repository.at.to_string();
        let app = self.settings.app.as_ref();
        let mut looked = Ok(());
        if app.is_some_and(|app| app.repositories.allows(&full_name)) {
            looked = self.look_at_runs(&mut repository, now, may_begin).await;
        }
        if let Err(failure) = &looked {
            warn!(repository = full_name, %failure, "a repository's waiting jobs can't be looked up");
            reached("discovery: a repository can't be looked at");
            repository.tags = Default::default();
        }
        let noted = self.context.agenda().note_look(&repository, now + AGAIN).await;
        match looked {
            // The App may have been uninstalled there, or the repository deleted: nobody can wait there then.
            Err(Error::NotFound(_) | Error::Permanent(_)) => {
                reached("discovery: nobody can wait there");
                noted
            }
            looked => looked.and(noted),
        }
    }

    async fn look_at_runs(
        &mut self,
        repository: &mut ActiveRepository,
        now: Timestamp,
        may_begin: impl Fn() -> bool,
    ) -> Result<()> {
        let fresh = repository.listed_at.is_some_and(|listed| now.since(listed) < TAGS_KEPT);
        if !fresh {
            for tag in &mut repository.tags {
                *tag = tag.take().filter(|tag| tag.of_none);
            }
            repository.listed_at = Some(now);
        }
        let turn = usize::try_from(now.seconds() / TURN).unwrap_or_default();
        let backlog = self.context.backlog();
        let mut lists = Vec::new();
        for (status, tag) in RunStatus::EACH.into_iter().zip(&mut repository.tags) {
            let known = tag.as_ref().map(|tag| tag.text.as_str());
            let asked = backlog.runs(&repository.at, status, 1, known).await?;
            let Some(mut list) = asked else {
                reached("discovery: nothing has changed");
                continue;
            };
            self.calls += 1;
            let (pages, tag_of_first) = (list.pages.max(1), list.tag.take());
            let page = turn % pages + 1;
            if page > 1 {
                self.calls += 1;
                let asked = backlog.runs(&repository.at, status, page, None).await?;
                list = asked.unwrap_or_default();
            }
            let first = (turn / pages).wrapping_mul(STEP) % list.runs.len().max(1);
            list.runs.rotate_left(first);
            *tag = None;
            lists.push((list, tag, tag_of_first.filter(|_| pages == 1)));
        }
        // Each list has its share of the calls, and what the shorter ones leave.
        lists.sort_by_key(|(list, _, _)| list.runs.len());
        let mut to_go = lists.len();
        for (list, tag, tag_of_all) in lists {
            let share = MAX_CALLS.saturating_sub(self.calls).div_ceil(to_go.max(1));
            let until = self.calls + share;
            to_go -= 1;
            let seen = self.look_at_jobs(&repository.at, &list, until, now, &may_begin).await?;
            let of_none = list.runs.is_empty();
            let text = tag_of_all.filter(|_| seen == Seen::All);
            *tag = text.map(|text| Tag { text, of_none });
        }
        Ok(())
    }

    /// Looks at the jobs of these runs, as long as there are fewer calls than `until`.
    async fn look_at_jobs(
        &mut self,
        at: &Repository,
        list: &RunList,
        until: usize,
        now: Timestamp,
        may_begin: impl Fn() -> bool,
    ) -> Result<Seen> {
        let mut seen = Seen::All;
        for run in &list.runs {
            if self.calls >= until || !may_begin() {
                reached("discovery: no time or calls for all runs");
                self.left += 1;
                return Ok(Seen::Part);
            }
            self.calls += 1;
            for job in self.context.backlog().jobs(at, *run).await? {
                if self.consider(at, &job, list.public, now).await? == Seen::Part {
                    seen = Seen::Part;
                }
            }
        }
        Ok(seen)
    }

    /// Accepts a job that waits and that nothing was started for.
    async fn consider(
        &mut self,
        at: &Repository,
        job: &Value,
        public: bool,
        now: Timestamp,
    ) -> Result<Seen> {
        if job.get("status").and_then(Value::as_str) != Some("queued") {
            reached("discovery: a job that does not wait");
            return Ok(Seen::All);
        }
        let Ok(payload) = Payload::read(&event(at, job, public)) else { return Ok(Seen::All) };
        if !self.settings.may_serve(&payload.labels) {
            reached("discovery: a job for others");
            return Ok(Seen::All);
        }
        if Timestamp::parse(&payload.created).is_some_and(|it| now.since(it) < LATE_EVENT) {
            reached("discovery: its event may still come");
            return Ok(Seen::Part);
        }
        let record = self.context.ledger().job(payload.id).await?.unwrap_or_default();
        if record.runner_name.is_some() || record.cancelled_at.is_some() {
            reached("discovery: a job that is known");
            return Ok(Seen::All);
        }
        let answer = webhook::accept(self.context, self.settings, self.debts, &payload).await?;
        if answer.status == 202 {
            reached("discovery: found");
            info!(job = payload.id.0, url = payload.url, "found a job whose event had not come");
            self.found += 1;
        }
        Ok(Seen::All)
    }
}

/// What a `queued` event of the job would hold.
fn event(at: &Repository, job: &Value, public: bool) -> Value {
    let mut event = json!({
        "action": "queued",
        "workflow_job": job,
        "repository": {
            "name": at.name,
            "full_name": at.to_string(),
            "private": !public,
            "owner": {"login": at.owner},
        },
    });
    if let Some(installation) = at.installation {
        event["installation"] = json!({ "id": installation });
    }
    event
}
