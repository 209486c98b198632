//! The forge port over GitHub's REST API: github.com, ghe.com and GHES, as a GitHub App.
//!
//! What must hold: an answer that is not GitHub's word is never "not found"; a registration is asked for
//! once; no token, key or JIT configuration is in an error or a log.

mod address;
mod app;
mod backlog;
mod configured;
mod inspect;
mod janitor;
mod pool;
mod reply;
mod reruns;
mod setup;
#[cfg(test)]
mod tests;
mod transport;
mod wire;

pub use address::api as api_address;
pub use address::web as web_address;
pub use configured::ConfiguredGitHub;
pub use inspect::{AppSeen, HookSeen, InstallationSeen};
pub use janitor::{JanitorGitHub, Session};
pub use pool::Quota;
pub use setup::AppRegistry;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use ostler_core::apps::AppCredential;
use ostler_core::config::{AppSettings, Registration};
use ostler_core::job::{JobId, Repository};
use ostler_core::labels::Labels;
use ostler_core::names::is_plausible;
use ostler_core::ports::{Clock, Forge, ForgeJob, Jit, Place, Refusal, Registered, Removal};
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};
use serde_json::json;

use crate::address::segment;
use crate::pool::Pool;
use crate::reply::{Permission, refusal};
use crate::transport::{Carried, Lost, Reply};
use crate::wire::{Account, DeploymentStatus, Groups, Job, Jobs, Runner, Runners};

/// Entries of a page, GitHub's most.
const PAGE: u64 = 100;

/// Pages that are read of a list at most: a group has at most 10,000 runners, an owner few groups.
const MAX_PAGES: u64 = 200;

/// How long the groups of an owner are kept. A name that is not among them is looked up at once.
const GROUPS_AGE: Duration = Duration::from_secs(600);

/// The group that every organisation has.
const DEFAULT_GROUP: i64 = 1;

/// GitHub as its Apps see it. One per process: it holds the connections, and tokens for an hour each.
pub struct GitHub<C> {
    pool: Pool<C>,
    made_of: MadeOf,
    groups: Mutex<HashMap<String, KeptGroups>>,
}

/// What a client was made of: API address and Apps, the first first.
#[derive(PartialEq, Eq)]
struct MadeOf {
    api: String,
    apps: Vec<AppCredential>,
}

impl MadeOf {
    fn new(settings: &AppSettings, key: &Secret, additional: &[AppCredential]) -> Result<Self> {
        let first = AppCredential { id: settings.app_id, key: key.clone() };
        let apps = std::iter::once(first).chain(additional.iter().cloned()).collect();
        Ok(Self { api: address::api(&settings.github_url)?, apps })
    }
}

/// When an owner's groups were listed, and their ids by name in lower case.
type KeptGroups = (Timestamp, HashMap<String, i64>);

/// With whom runners are registered in fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Organization,
    Repository,
}

impl Level {
    const fn permission(self) -> Permission {
        match self {
            Self::Organization => Permission::OrganizationRunners,
            Self::Repository => Permission::RepositoryRunners,
        }
    }
}

impl<C: Clock> GitHub<C> {
    /// For an App with these settings and that private key (PEM), and for additional Apps. Nothing is sent
    /// or opened yet.
    pub fn new(
        settings: &AppSettings,
        key: &Secret,
        additional: &[AppCredential],
        clock: C,
    ) -> Result<Self> {
        let made_of = MadeOf::new(settings, key, additional)?;
        let pool = Pool::new(&made_of.api, &made_of.apps, clock)?;
        Ok(Self { pool, made_of, groups: Mutex::default() })
    }

    /// Whether it is still right for these settings and keys; if not, a new one has to be made.
    pub fn is_for(
        &self,
        settings: &AppSettings,
        key: &Secret,
        additional: &[AppCredential],
    ) -> bool {
        MadeOf::new(settings, key, additional).is_ok_and(|made_of| made_of == self.made_of)
    }

    /// The rate limit of each App, by its id, as it was last seen.
    pub fn quotas(&self) -> Vec<(u64, Quota)> {
        self.pool.quotas()
    }

    /// Whether GitHub has refused an App's own signature: its key may have been rotated, and the
    /// configuration should be read again.
    pub fn key_refused(&self) -> bool {
        self.pool.key_refused()
    }

    fn now(&self) -> Timestamp {
        self.pool.now()
    }

    async fn get(&self, at: &Repository, path: &str) -> Result<Reply> {
        self.pool.get(at.into(), path).await
    }

    /// Whether the owner is a user account. Asked once.
    async fn is_user(&self, at: &Repository) -> Result<bool> {
        if let Some(known) = self.pool.users.known(&at.owner) {
            return Ok(known);
        }
        let what = format!("look up the owner {}", at.owner);
        let reply = self.get(at, &format!("/users/{}", segment(&at.owner)?)).await?;
        if reply.status == 404 {
            return Err(Error::Permanent(format!(
                "{what}: 404; was the account renamed? Runners are registered under its old name"
            )));
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Metadata, self.now()));
        }
        let account: Account = reply.read(&what)?;
        let kind = account.kind.ok_or_else(|| Error::Transient(format!("{what}: no type")))?;
        self.pool.users.remember(&at.owner, kind == "User");
        Ok(kind == "User")
    }

    /// The level that is asked first: the configured one, except for owners known to be user accounts.
    fn level(&self, place: &Place) -> Level {
        match place.level {
            Registration::Organization
                if self.pool.users.known(&place.repository.owner) != Some(true) =>
            {
                Level::Organization
            }
            _ => Level::Repository,
        }
    }

    /// Sends a request about runners. User accounts have no runners of their own and answer 404 for them,
    /// as does an organisation for a runner that is not there; so a first 404 has the owner looked up, and
    /// a user account's request goes to the repository.
    async fn about_runners(
        &self,
        place: &Place,
        method: Method,
        tail: &str,
        carried: Carried<'_>,
    ) -> Result<(Level, std::result::Result<Reply, Lost>)> {
        let at = &place.repository;
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let mut level = self.level(place);
        loop {
            let base = match level {
                Level::Organization => format!("/orgs/{owner}"),
                Level::Repository => format!("/repos/{owner}/{name}"),
            };
            let path = format!("{base}/actions/runners{tail}");
            let sent = self.pool.call(at.into(), &method, &path, carried).await?;
            if let Ok(reply) = &sent
                && level == Level::Organization
            {
                if reply.is_success() {
                    self.pool.users.remember(owner, false);
                } else if reply.status == 404 && self.is_user(at).await? {
                    level = Level::Repository;
                    continue;
                }
            }
            return Ok((level, sent));
        }
    }

    /// The id of a runner group of an organisation, from its name or id.
    async fn group_id(&self, place: &Place, group: &str) -> std::result::Result<i64, Refusal> {
        let at = &place.repository;
        let owner = at.owner.to_lowercase();
        let unknown = |why: &str| {
            Err(Refusal::GroupUnknown(format!("runner group '{group}' of a tier, for {at}: {why}")))
        };
        let no_groups = "runners are registered with the repository there, and only organizations have \
                         runner groups: remove runner_group from the tier";
        if self.level(place) == Level::Repository {
            return unknown(no_groups);
        }
        if let Ok(id) = group.parse() {
            let user = self.is_user(at).await.map_err(refusal)?;
            return if user { unknown(no_groups) } else { Ok(id) };
        }
        let wanted = group.to_lowercase();
        if let Some((read, groups)) = self.groups().get(&owner)
            && self.now().since(*read) < GROUPS_AGE
            && let Some(id) = groups.get(&wanted)
        {
            return Ok(*id);
        }
        let groups = match self.list_groups(at).await {
            Err(Error::NotFound(_)) if self.is_user(at).await.map_err(refusal)? => {
                return unknown(no_groups);
            }
            listed => listed.map_err(refusal)?,
        };
        self.pool.users.remember(&owner, false);
        let found = groups.get(&wanted).copied();
        self.groups().insert(owner, (self.now(), groups));
        match found {
            Some(id) => Ok(id),
            None => {
                unknown("the organization has no group of that name: create it, or change the tier")
            }
        }
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<String, KeptGroups>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list_groups(&self, at: &Repository) -> Result<HashMap<String, i64>> {
        let what = format!("list the runner groups of {}", at.owner);
        let path = format!("/orgs/{}/actions/runner-groups", segment(&at.owner)?);
        let mut found = HashMap::new();
        let mut pages = Pages::default();
        while let Some(page) = pages.next(&what)? {
            let reply = self.get(at, &format!("{path}?per_page={PAGE}&page={page}")).await?;
            if !reply.is_success() {
                return Err(reply.error(&what, Permission::OrganizationRunners, self.now()));
            }
            let groups: Groups = reply.read(&what)?;
            pages.saw(groups.runner_groups.len(), groups.total_count);
            found.extend(
                groups
                    .runner_groups
                    .into_iter()
                    .filter_map(|group| Some((group.name?.to_lowercase(), group.id?))),
            );
        }
        Ok(found)
    }
}

/// Pages by number until the list is complete: a list that ends early proves nothing.
#[derive(Default)]
struct Pages {
    asked: u64,
    seen: u64,
    last: Option<u64>,
    total: Option<u64>,
}

impl Pages {
    /// The next page's number; `None` once the list is complete.
    fn next(&mut self, what: &str) -> Result<Option<u64>> {
        match (self.last, self.total) {
            (Some(_), Some(total)) if self.seen >= total => return Ok(None),
            (Some(0), Some(total)) => {
                let text = format!("{what}: GitHub lists {} of {total}", self.seen);
                return Err(Error::Transient(text));
            }
            (Some(last), None) if last < PAGE => return Ok(None),
            _ => {}
        }
        if self.asked == MAX_PAGES {
            return Err(Error::Permanent(format!("{what}: more than {} entries", self.seen)));
        }
        self.asked += 1;
        Ok(Some(self.asked))
    }

    fn saw(&mut self, entries: usize, total: Option<u64>) {
        let entries = u64::try_from(entries).unwrap_or(u64::MAX);
        self.seen = self.seen.saturating_add(entries);
        (self.last, self.total) = (Some(entries), total);
    }
}

impl<C: Clock> Forge for GitHub<C> {
    async fn installed(&self, at: &Repository) -> Result<bool> {
        self.pool.installed(at.into()).await
    }

    async fn run_jobs(&self, at: &Repository, run: i64) -> Result<Option<Vec<(JobId, ForgeJob)>>> {
        let what = format!("list the jobs of run {run} of {at}");
        let repository = format!("/repos/{}/{}", segment(&at.owner)?, segment(&at.name)?);
        let path = format!("{repository}/actions/runs/{run}/jobs?filter=all&per_page={PAGE}");
        let mut found = Vec::new();
        let mut pages = Pages::default();
        while let Some(page) = pages.next(&what)? {
            let reply = self.get(at, &format!("{path}&page={page}")).await?;
            if reply.status == 404 {
                return Ok(None);
            }
            if !reply.is_success() {
                return Err(reply.error(&what, Permission::Actions, self.now()));
            }
            let list: Jobs = reply.read(&what)?;
            pages.saw(list.jobs.len(), list.total_count);
            found.extend(
                list.jobs.into_iter().filter_map(|job| Some((JobId(job.id?), job.job.known()?))),
            );
        }
        Ok(Some(found))
    }

    async fn job(&self, at: &Repository, id: JobId) -> Result<Option<ForgeJob>> {
        let what = format!("look up job {id} of {at}");
        let repository = format!("/repos/{}/{}", segment(&at.owner)?, segment(&at.name)?);
        let reply = self.get(at, &format!("{repository}/actions/jobs/{id}")).await?;
        if reply.status == 404 {
            // The token is valid, or it would be 401. If the repository answers too, 200 or 404, then the
            // job is not there; anything else proves nothing.
            let reply = self.get(at, &repository).await?;
            if reply.is_success() || reply.status == 404 {
                return Ok(None);
            }
            return Err(reply.error(&format!("look up {at}"), Permission::Metadata, self.now()));
        }
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Actions, self.now()));
        }
        let job = reply.read::<Job>(&what)?.known();
        job.map(Some).ok_or_else(|| Error::Transient(format!("{what}: the answer has no status")))
    }

    async fn deployment_waits(&self, at: &Repository, deployment: i64) -> Result<bool> {
        let what = format!("look up deployment {deployment} of {at}");
        let (owner, name) = (segment(&at.owner)?, segment(&at.name)?);
        let path = format!("/repos/{owner}/{name}/deployments/{deployment}/statuses?per_page=10");
        let reply = self.get(at, &path).await?;
        if !reply.is_success() {
            return Err(reply.error(&what, Permission::Deployments, self.now()));
        }
        let statuses: Vec<DeploymentStatus> = reply.read(&what)?;
        // Newest first; by id in case a server lists them otherwise.
        let newest = statuses.into_iter().max_by_key(|status| status.id);
        Ok(newest.and_then(|status| status.state).is_some_and(|state| state == "waiting"))
    }

    async fn runner(&self, place: &Place, id: i64) -> Result<Option<Registered>> {
        let what = format!("look up runner {id} for {}", place.repository);
        let (level, sent) =
            self.about_runners(place, Method::GET, &format!("/{id}"), Carried::Nothing).await?;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        match reply.status {
            404 => Ok(None),
            _ if reply.is_success() => {
                let runner = reply.read::<Runner>(&what)?.registered();
                runner.map(Some).ok_or_else(|| Error::Transient(format!("{what}: no id came")))
            }
            _ => Err(reply.error(&what, level.permission(), self.now())),
        }
    }

    async fn runner_named(&self, place: &Place, name: &str) -> Result<Option<Registered>> {
        let what = format!("look for runner {name} for {}", place.repository);
        if !is_plausible(name) {
            return Err(Error::Permanent("a name that no runner can have was looked for".into()));
        }
        let mut pages = Pages::default();
        while let Some(page) = pages.next(&what)? {
            // Servers that don't know `name` list all runners; so the names are compared here.
            let tail = format!("?name={name}&per_page={PAGE}&page={page}");
            let (level, sent) =
                self.about_runners(place, Method::GET, &tail, Carried::Nothing).await?;
            let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
            if !reply.is_success() {
                return Err(reply.error(&what, level.permission(), self.now()));
            }
            let list: Runners = reply.read(&what)?;
            pages.saw(list.runners.len(), list.total_count);
            let same = |runner: &Registered| runner.name == name;
            if let Some(found) = list.runners.into_iter().filter_map(Runner::registered).find(same)
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn register(
        &self,
        place: &Place,
        name: &str,
        group: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Jit, Refusal> {
        let what = format!("register runner {name} for {}", place.repository);
        if !is_plausible(name) {
            return Err(Refusal::Invalid(format!("{what}: not a name of a runner")));
        }
        let group_id = match group {
            Some(group) => self.group_id(place, group).await?,
            None => DEFAULT_GROUP,
        };
        let body = json!({
            "name": name,
            "runner_group_id": group_id,
            "labels": labels.iter().collect::<Vec<_>>(),
            "work_folder": "_work",
        });
        let sent = self
            .about_runners(place, Method::POST, "/generate-jitconfig", Carried::Json(&body))
            .await;
        let (level, sent) = sent.map_err(refusal)?;
        let reply = sent.map_err(|Lost(why)| Refusal::Ambiguous(why))?;
        let answer = reply.registration(&what, group, level.permission(), self.now());
        if let Err(Refusal::GroupUnknown(_)) = &answer {
            // It was there when the list was read: it may have been made anew under another id.
            self.groups().remove(&place.repository.owner.to_lowercase());
        }
        answer
    }

    async fn remove_runner(&self, place: &Place, id: i64) -> Result<Removal> {
        let what = format!("remove runner {id} for {}", place.repository);
        let (level, sent) =
            self.about_runners(place, Method::DELETE, &format!("/{id}"), Carried::Nothing).await?;
        let reply = sent.map_err(|Lost(why)| Error::Transient(why))?;
        match reply.status {
            404 => Ok(Removal::Gone),
            422 => Ok(Removal::Busy),
            _ if reply.is_success() => Ok(Removal::Removed),
            _ => Err(reply.error(&what, level.permission(), self.now())),
        }
    }
}
