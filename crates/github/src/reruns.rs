//! Runs that are made to run again, for the reconciler.

use http::Method;
use ostler_core::job::Repository;
use ostler_core::ports::{Clock, Configuration};
use ostler_core::reconciler::{Again, Asked, Reruns, WorkflowRun};
use ostler_core::{Error, Result};

use crate::address::segment;
use crate::reply::Permission;
use crate::transport::{Carried, Lost, Reply};
use crate::wire::OneRun;
use crate::{ConfiguredGitHub, GitHub};

impl<C: Clock> Reruns for GitHub<C> {
    async fn run(&self, at: &Repository, run: i64) -> Result<Option<WorkflowRun>> {
        let what = format!("look up run {run} of {at}");
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let reply = self.get(at, &format!("/repos/{owner}/{name}/actions/runs/{run}")).await?;
        match reply.status {
            404 => Ok(None),
            _ if reply.is_success() => {
                let shown: OneRun = reply.read(&what)?;
                let attempt = shown.run_attempt.ok_or_else(|| {
                    Error::Transient(format!("{what}: the answer has no attempt"))
                })?;
                Ok(Some(WorkflowRun {
                    attempt,
                    completed: shown.status.as_deref() == Some("completed"),
                    cancelled: shown.conclusion.as_deref() == Some("cancelled"),
                }))
            }
            _ => Err(reply.error(&what, Permission::Actions, self.now())),
        }
    }

    async fn rerun(&self, at: &Repository, run: i64, what: Again) -> Result<Asked> {
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let (path, what) = match what {
            Again::Job(id) => (format!("jobs/{id}/rerun"), format!("run job {id} of {at} again")),
            Again::Failed => (
                format!("runs/{run}/rerun-failed-jobs"),
                format!("run the failed jobs of run {run} of {at} again"),
            ),
        };
        let path = format!("/repos/{owner}/{name}/actions/{path}");
        let sent = self.pool.call(at.into(), &Method::POST, &path, Carried::Nothing).await?;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        let error = || reply.error(&what, Permission::ActionsWrite, self.now());
        match reply.status {
            _ if reply.is_success() => Ok(Asked::Begun),
            404 => Ok(Asked::Gone),
            403 if reply.limit(self.now()).is_none() => Ok(refusal(&reply, &error())),
            // Of what was asked for in a form that GitHub does not take, nothing was made.
            _ => Err(error()),
        }
    }
}

/// What a 403 means. GitHub says so in words only.
fn refusal(reply: &Reply, error: &Error) -> Asked {
    let words = reply.words().to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| words.contains(text));
    match () {
        // `NVIDIA-NeMo/RL#1193`; of the run as a whole `metabase/metabase#70916`.
        () if says(&["already running"]) => Asked::Running,
        // `runs-on/runs-on#263`.
        () if says(&["current attempt"]) => Asked::Superseded,
        // "This workflow run cannot be retried" (`metabase/metabase#70916`), "… created over a month ago"
        // (`cli/cli#9989`).
        () if says(&["cannot be re", "over a month ago", "disabled workflow", "archived"]) => {
            Asked::Refused(error.to_string())
        }
        // "Resource not accessible by integration" (`fullsend-ai/fullsend#7003`), and whatever else an owner forbids.
        () => Asked::NotAllowed(error.to_string()),
    }
}

impl<F: Configuration, C: Clock + Clone> Reruns for ConfiguredGitHub<F, C> {
    async fn run(&self, at: &Repository, run: i64) -> Result<Option<WorkflowRun>> {
        self.client().await?.run(at, run).await
    }

    async fn rerun(&self, at: &Repository, run: i64, what: Again) -> Result<Asked> {
        self.client().await?.rerun(at, run, what).await
    }
}
