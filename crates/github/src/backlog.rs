//! The reconciler's half: the App's log of deliveries, and the runs of a repository that wait.

use http::Method;
use ostler_core::job::Repository;
use ostler_core::ports::{Clock, Configuration};
use ostler_core::reconciler::{Deliveries, DeliveryPage, RunList, RunStatus, WaitingRuns};
use ostler_core::{Error, Result};
use serde_json::Value;

use crate::address::segment;
use crate::reply::Permission;
use crate::transport::{Carried, Lost, Reply};
use crate::wire::{HookDelivery, RawJobs, Runs};
use crate::{ConfiguredGitHub, GitHub, PAGE, Pages};

/// Longest cursor that is believed: they are some dozen characters.
const MAX_CURSOR: usize = 200;

/// Pages of runs that GitHub lists: a thousand runs (docs.github.com, "List workflow runs for a repository").
const MAX_PAGES: u64 = 10;

/// Longest tag that is kept: they are some 70 characters.
const MAX_TAG: usize = 200;

/// The cursor of the next page, in a `Link` header (docs.github.com, "Using pagination in the REST API"). Only that is
/// taken over, not the address. `None` at the log's end; a log that goes on, and does not say readably where, is not at
/// its end.
fn next_cursor(reply: &Reply, what: &str) -> Result<Option<String>> {
    let links = reply.headers.get("link").and_then(|links| links.to_str().ok());
    let next = links.and_then(|links| links.split(',').find(|link| link.contains("rel=\"next\"")));
    let Some(next) = next else { return Ok(None) };
    let query = next.split(['<', '>']).nth(1).and_then(|address| address.split_once('?'));
    let mut pairs = query.into_iter().flat_map(|(_, query)| query.split('&'));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.%=".contains(&byte);
    let cursor = pairs.find_map(|pair| pair.strip_prefix("cursor="));
    let cursor = cursor.filter(|it| it.len() <= MAX_CURSOR && it.bytes().all(plain));
    cursor.map(|cursor| Some(cursor.to_owned())).ok_or_else(|| {
        Error::Transient(format!("{what}: there is a next page, but its cursor can't be read"))
    })
}

/// On how many pages so many runs are listed; one at least.
fn pages(runs: u64) -> usize {
    usize::try_from(runs.div_ceil(PAGE).clamp(1, MAX_PAGES)).unwrap_or(1)
}

impl<C: Clock> Deliveries for GitHub<C> {
    async fn page(&self, cursor: Option<&str>) -> Result<DeliveryPage> {
        let what = "read the App's log of deliveries";
        let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let path = format!("/app/hook/deliveries?per_page={PAGE}{cursor}");
        let reply = self.pool.as_first_app(Method::GET, &path).await?;
        if !reply.is_success() {
            return Err(reply.error(what, Permission::Metadata, self.now()));
        }
        let next = next_cursor(&reply, what)?;
        // An entry that can't be read costs only itself.
        let entries: Vec<Value> = reply.read(what)?;
        let entries = entries
            .into_iter()
            .filter_map(|entry| serde_json::from_value::<HookDelivery>(entry).ok()?.known())
            .collect();
        Ok(DeliveryPage { entries, next })
    }

    async fn redeliver(&self, id: u64) -> Result<bool> {
        let path = format!("/app/hook/deliveries/{id}/attempts");
        let reply = self.pool.as_first_app(Method::POST, &path).await?;
        match reply.status {
            404 => Ok(false),
            _ if reply.is_success() => Ok(true),
            _ => {
                let what = format!("send delivery {id} again");
                Err(reply.error(&what, Permission::Metadata, self.now()))
            }
        }
    }
}

impl<C: Clock> WaitingRuns for GitHub<C> {
    async fn runs(
        &self,
        at: &Repository,
        status: RunStatus,
        page: usize,
        tag: Option<&str>,
    ) -> Result<Option<RunList>> {
        let what = format!("list the runs of {at} that are {}", status.name());
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let status = status.name();
        let page = if page > 1 { format!("&page={page}") } else { String::new() };
        let path =
            format!("/repos/{owner}/{name}/actions/runs?status={status}&per_page={PAGE}{page}");
        let carried = tag.map_or(Carried::Nothing, Carried::Unless);
        let sent = self.pool.call(at.into(), &Method::GET, &path, carried).await?;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        if reply.status == 304 && tag.is_some() {
            return Ok(None);
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Actions, self.now()));
        }
        let tag = reply.headers.get("etag").and_then(|tag| tag.to_str().ok());
        let tag = tag.filter(|tag| tag.len() <= MAX_TAG).map(str::to_owned);
        let list: Runs = reply.read(&what)?;
        let public = |run: &crate::wire::Run| {
            run.repository.as_ref().and_then(|repository| repository.private) == Some(false)
        };
        Ok(Some(RunList {
            public: list.workflow_runs.iter().any(public),
            pages: list.total_count.map_or(1, pages),
            runs: list.workflow_runs.into_iter().filter_map(|run| run.id).collect(),
            tag,
        }))
    }

    async fn jobs(&self, at: &Repository, run: i64) -> Result<Vec<Value>> {
        let what = format!("list the latest jobs of run {run} of {at}");
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let path = format!("/repos/{owner}/{name}/actions/runs/{run}/jobs?per_page={PAGE}");
        let mut found = Vec::new();
        let mut pages = Pages::default();
        while let Some(page) = pages.next(&what)? {
            let reply = self.get(at, &format!("{path}&page={page}")).await?;
            if reply.status == 404 {
                // Deleted since it was listed.
                return Ok(Vec::new());
            }
            if !reply.is_success() {
                return Err(reply.error(&what, Permission::Actions, self.now()));
            }
            let list: RawJobs = reply.read(&what)?;
            pages.saw(list.jobs.len(), list.total_count);
            found.extend(list.jobs);
        }
        Ok(found)
    }
}

impl<F: Configuration, C: Clock + Clone> Deliveries for ConfiguredGitHub<F, C> {
    async fn page(&self, cursor: Option<&str>) -> Result<DeliveryPage> {
        self.client().await?.page(cursor).await
    }

    async fn redeliver(&self, id: u64) -> Result<bool> {
        self.client().await?.redeliver(id).await
    }
}

impl<F: Configuration, C: Clock + Clone> WaitingRuns for ConfiguredGitHub<F, C> {
    async fn runs(
        &self,
        at: &Repository,
        status: RunStatus,
        page: usize,
        tag: Option<&str>,
    ) -> Result<Option<RunList>> {
        self.client().await?.runs(at, status, page, tag).await
    }

    async fn jobs(&self, at: &Repository, run: i64) -> Result<Vec<Value>> {
        self.client().await?.jobs(at, run).await
    }
}
