//! The janitor's registrations over GitHub's REST API: groups of an organisation, or repositories.

use http::Method;
use ostler_core::apps::Credentials;
use ostler_core::janitor::{Listed, PAGE, Part, Registration, Registrations};
use ostler_core::ports::{Clock, Removal};
use ostler_core::{Error, Result};

use crate::address::{self, segment};
use crate::app::Whose;
use crate::pool::{Chosen, Pool, Resource};
use crate::reply::Permission;
use crate::transport::{Carried, Lost, Reply};
use crate::wire::{Runner, RunnerPage};

/// Share of every App's hourly quota, in per cent, that the janitor leaves alone: registrations that stay for
/// an hour more are less harm than runners that can't be registered.
const RESERVE: u64 = 10;

/// GitHub as the janitor's Apps see it. One per process.
pub struct JanitorGitHub<C> {
    pool: Pool<C>,
    made_of: (String, Credentials),
}

/// The App that was chosen for a page or a candidate.
#[derive(Clone, Copy, Debug)]
pub struct Session(Chosen);

impl<C: Clock> JanitorGitHub<C> {
    /// At the GitHub with that API address, empty for github.com. Nothing is sent or opened yet.
    pub fn new(api: &str, credentials: &Credentials, clock: C) -> Result<Self> {
        let api = api_address(api, credentials)?;
        let first = std::iter::once(&credentials.app);
        let apps: Vec<_> = first.chain(&credentials.additional).cloned().collect();
        let pool = Pool::new(&api, &apps, clock)?.leaving(RESERVE);
        Ok(Self { pool, made_of: (api, credentials.clone()) })
    }

    /// Whether it is still right for these.
    pub fn is_for(&self, api: &str, credentials: &Credentials) -> bool {
        let (own_api, own) = &self.made_of;
        own.app == credentials.app
            && own.additional == credentials.additional
            && api_address(api, credentials).is_ok_and(|api| api == *own_api)
    }

    /// Whether GitHub has refused an App's own signature: its key may have been rotated.
    pub fn key_refused(&self) -> bool {
        self.pool.key_refused()
    }

    async fn send(
        &self,
        session: &Session,
        part: &Part,
        method: &Method,
        path: &str,
    ) -> Result<Reply> {
        let sent = self.pool.send(session.0, whose(part), method, path, Carried::Nothing).await?;
        sent.map_err(|Lost(why)| Error::Transient(why))
    }

    fn error(&self, reply: &Reply, what: &str, part: &Part) -> Error {
        reply.error(what, permission(part), self.pool.now())
    }
}

/// The address of the configuration; an install's own `control/app`, where it serves as the App's id, has to
/// mean the same GitHub.
fn api_address(api: &str, credentials: &Credentials) -> Result<String> {
    let of = |url: &str| address::api(if url.is_empty() { "https://github.com" } else { url });
    let address = of(api)?;
    match credentials.github_url.as_deref().map(of).transpose()? {
        Some(other) if other != address => Err(Error::Permanent(format!(
            "ghesApiUrl means {address}, and github_url of the App's parameter {other}: make them the same"
        ))),
        _ => Ok(address),
    }
}

fn whose(part: &Part) -> Whose<'_> {
    match part {
        Part::Group { organization, .. } => Whose::owner(organization),
        Part::Repository(repository) => repository.into(),
    }
}

const fn permission(part: &Part) -> Permission {
    match part {
        Part::Group { .. } => Permission::OrganizationRunners,
        Part::Repository(_) => Permission::RepositoryRunners,
    }
}

/// Where the runners of a part are by their ids, whatever their group.
fn runners(part: &Part) -> Result<String> {
    Ok(match part {
        Part::Group { organization, .. } => {
            format!("/orgs/{}/actions/runners", segment(organization)?)
        }
        Part::Repository(at) => {
            format!("/repos/{}/{}/actions/runners", segment(&at.owner)?, segment(&at.name)?)
        }
    })
}

impl<C: Clock> Registrations for JanitorGitHub<C> {
    type Session = Session;

    async fn session(&self, part: &Part) -> Result<Session> {
        self.pool.choose(whose(part), Resource::Core).await.map(Session)
    }

    async fn page(&self, session: &Session, part: &Part, page: u32) -> Result<Listed> {
        let what = format!("list the registrations of {part}, page {page}");
        let list = match part {
            Part::Group { organization, id } => {
                format!("/orgs/{}/actions/runner-groups/{id}/runners", segment(organization)?)
            }
            Part::Repository(_) => runners(part)?,
        };
        let path = format!("{list}?per_page={PAGE}&page={page}");
        let reply = self.send(session, part, &Method::GET, &path).await?;
        match reply.status {
            // GitHub says so of what the App may not see as well.
            404 => Err(Error::NotFound(format!(
                "{what}: 404 {}; is it there (RunnerGroupIds, Repositories), and may the App see it?",
                reply.words()
            ))),
            _ if reply.is_success() => Ok(reply.read::<RunnerPage>(&what)?.listed()),
            _ => Err(self.error(&reply, &what, part)),
        }
    }

    async fn registration(
        &self,
        session: &Session,
        part: &Part,
        id: i64,
    ) -> Result<Option<Registration>> {
        let what = format!("look up registration {id} of {part}");
        let path = format!("{}/{id}", runners(part)?);
        let reply = self.send(session, part, &Method::GET, &path).await?;
        match reply.status {
            404 => Ok(None),
            _ if reply.is_success() => {
                let registration = reply.read::<Runner>(&what)?.registration();
                registration
                    .map(Some)
                    .ok_or_else(|| Error::Transient(format!("{what}: no id came")))
            }
            _ => Err(self.error(&reply, &what, part)),
        }
    }

    async fn remove(&self, session: &Session, part: &Part, id: i64) -> Result<Removal> {
        let what = format!("remove registration {id} of {part}");
        let path = format!("{}/{id}", runners(part)?);
        let reply = self.send(session, part, &Method::DELETE, &path).await?;
        match reply.status {
            404 => Ok(Removal::Gone),
            422 => Ok(Removal::Busy),
            _ if reply.is_success() => Ok(Removal::Removed),
            _ => Err(self.error(&reply, &what, part)),
        }
    }

    fn quotas(&self) -> Vec<(u64, u64)> {
        self.pool.quotas().into_iter().map(|(app, quota)| (app, quota.remaining)).collect()
    }
}
