//! Runner registrations, groups and sessions, and the assignment of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::{Value, json};

use super::jobs::{RunnerRef, Status, Turn};
use super::{ApiError, GitHub, OwnerKind, Page, Paging, Repository, jit};

/// Longest runner name, in characters (docs).
const NAME_LIMIT: usize = 64;
/// Most labels of a just-in-time registration (docs: 1 to 100).
const LABEL_LIMIT: usize = 100;
/// The group that a registration goes to by default, and the only one that a repository has.
const DEFAULT_GROUP: u64 = 1;
/// The group of GitHub's own runners.
const HOSTED_GROUP: u64 = 2;

/// Where runners are registered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// With an organisation (login).
    Organization(String),
    /// With a repository (`owner/name`).
    Repository(String),
}

impl Scope {
    /// Names are not case-sensitive at GitHub (docs).
    fn key(&self) -> Self {
        match self {
            Self::Organization(login) => Self::Organization(login.to_lowercase()),
            Self::Repository(name) => Self::Repository(name.to_lowercase()),
        }
    }
}

/// Which repositories may use a runner group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All of the organisation's.
    All,
    /// Only these (names without the owner, in lower case).
    Selected(BTreeSet<String>),
}

/// A runner group of an organisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Which repositories may use it.
    pub visibility: Visibility,
    /// Whether public repositories may too (docs: not unless allowed).
    pub allows_public: bool,
}

impl Group {
    pub(super) fn initial() -> BTreeMap<u64, Self> {
        [(DEFAULT_GROUP, "Default"), (HOSTED_GROUP, "GitHub Actions")]
            .into_iter()
            .map(|(id, name)| {
                let (visibility, name) = (Visibility::All, name.into());
                (id, Self { id, name, visibility, allows_public: true })
            })
            .collect()
    }

    fn admits(&self, repository: &Repository) -> bool {
        let visible = match &self.visibility {
            Visibility::All => true,
            Visibility::Selected(names) => names.contains(&repository.name.to_lowercase()),
        };
        visible && (repository.private || self.allows_public)
    }

    /// As the API lists it.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "visibility": match self.visibility {
                Visibility::All => "all",
                Visibility::Selected(_) => "selected",
            },
            "default": self.id == DEFAULT_GROUP,
            "inherited": false,
            "allows_public_repositories": self.allows_public,
            "restricted_to_workflows": false,
            "selected_workflows": [],
            "workflow_restrictions_read_only": false,
        })
    }
}

/// A registration.
pub(super) struct Runner {
    id: u64,
    name: String,
    scope: Scope,
    group: u64,
    labels: Vec<String>,
    secret: String,
    /// Last change to or from having a session or a job.
    touched: Timestamp,
    session: Option<String>,
    /// What `busy` says regardless of the truth, and until when.
    lie: Option<(bool, Timestamp)>,
    hidden_until: Option<Timestamp>,
    /// Its job has ended; it goes then.
    ends_at: Option<Timestamp>,
}

/// A runner as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerView {
    /// Registration id.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Whether its session is alive.
    pub online: bool,
    /// What the flag says, which need not be true.
    pub busy: bool,
    /// Labels as registered.
    pub labels: Vec<String>,
    /// Its group.
    pub group_id: u64,
}

impl RunnerView {
    /// As the API writes it.
    pub fn json(&self) -> Value {
        let labels: Vec<Value> = self
            .labels
            .iter()
            .enumerate()
            .map(|(index, name)| json!({"id": index + 1, "name": name, "type": "custom"}))
            .collect();
        json!({
            "id": self.id,
            "name": self.name,
            // A registration that has never connected has no system yet.
            "os": if self.online { "Linux" } else { "unknown" },
            "status": if self.online { "online" } else { "offline" },
            "busy": self.busy,
            "ephemeral": true,
            "labels": labels,
            "runner_group_id": self.group_id,
        })
    }
}

/// Answer to a just-in-time registration.
#[derive(Clone)]
pub struct Jit {
    /// The registration, offline.
    pub runner: RunnerView,
    /// `encoded_jit_config`: a secret.
    pub encoded: String,
}

/// What a runner process is told when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session's id: whoever has it acts as the runner.
    pub id: String,
    /// Registration id.
    pub runner_id: u64,
    /// Runner name.
    pub name: String,
}

/// A job as its runner receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Job id.
    pub job_id: u64,
    /// Run id.
    pub run_id: u64,
    /// `owner/name`.
    pub repository: String,
    /// How long it takes.
    pub duration: Duration,
    /// What a stand-in for the runner executes.
    pub script: Option<String>,
}

/// What a runner hears when it asks for work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Run this.
    Job(Assignment),
    /// Nothing yet.
    Idle,
    /// The registration is no longer there: exit.
    Gone,
}

/// A runner process at work. It outlives its registration: a job goes on when someone deletes that.
pub(super) struct Session {
    runner: RunnerRef,
    contact: Timestamp,
    /// When it said goodbye.
    closed_at: Option<Timestamp>,
    job: Option<SessionJob>,
    /// Listens, but the service has forgotten it (`actions/runner#4617`).
    forgotten: bool,
    /// Its one job has ended.
    done: bool,
}

struct SessionJob {
    id: u64,
    assigned_at: Timestamp,
    /// Until the runner has fetched it, it is still queued for the rest of the world.
    fetched: bool,
    /// The runner reports while it works; one that does not is taken to be alive for the job's duration.
    renews: bool,
    ends_by: Timestamp,
}

impl Session {
    pub(super) fn forget_job(&mut self) {
        self.job = None;
    }

    fn online(&self, now: Timestamp, offline_after: Option<Duration>) -> bool {
        let working_until = match &self.job {
            Some(job) if job.fetched && !job.renews => job.ends_by,
            _ => self.contact,
        };
        self.closed_at.is_none()
            && offline_after.is_none_or(|limit| now.since(self.contact.max(working_until)) <= limit)
    }

    /// Since when it is known to be away.
    fn last_seen(&self) -> Timestamp {
        let unheard = match &self.job {
            Some(job) if job.fetched && !job.renews => self.contact.max(job.ends_by),
            _ => self.contact,
        };
        self.closed_at.unwrap_or(unheard)
    }
}

impl GitHub {
    /// Adds a runner group to an organisation and returns its id (from 3).
    pub fn add_group(
        &mut self,
        login: &str,
        name: &str,
        visibility: Visibility,
        allows_public: bool,
    ) -> Result<u64, ApiError> {
        let owner = self.owner_mut(login).ok_or_else(ApiError::not_found)?;
        let id = owner.groups.keys().next_back().map_or(DEFAULT_GROUP, |last| last + 1);
        owner.groups.insert(id, Group { id, name: name.into(), visibility, allows_public });
        Ok(id)
    }

    /// `GET /orgs/{org}/actions/runner-groups`.
    pub fn list_groups(&self, login: &str, paging: Paging) -> Result<Page<Group>, ApiError> {
        let owner = self.account(login)?;
        match owner.kind {
            OwnerKind::Organization => Ok(paging.cut(owner.groups.values().cloned())),
            OwnerKind::User => Err(ApiError::not_found()),
        }
    }

    /// `POST …/actions/runners/generate-jitconfig`. The refusals and their order: a body that does not
    /// fit is 422 (a missing group is one: there is no default), the hosted group 403, an unknown group
    /// 404 (docs.rs `runner-manager-github` 0.4.5, probed live), a full group 422 (`ubicloud/ubicloud#6102`),
    /// a name that exists 409 (`ubicloud/ubicloud#692`).
    pub fn generate_jit(
        &mut self,
        now: Timestamp,
        scope: &Scope,
        name: &str,
        group: Option<u64>,
        labels: &[String],
    ) -> Result<Jit, ApiError> {
        self.advance(now);
        let scope = self.known_scope(scope)?;
        let Some(group) = group else {
            return Err(ApiError::invalid(
                "Invalid input: object is missing required key: runner_group_id.",
            ));
        };
        if name.is_empty() || name.chars().count() > NAME_LIMIT {
            return Err(ApiError::invalid(&format!(
                "Invalid property /name: must be 1 to {NAME_LIMIT} characters long."
            )));
        }
        if labels.is_empty() || labels.len() > LABEL_LIMIT {
            return Err(ApiError::invalid(&format!(
                "Invalid property /labels: must have 1 to {LABEL_LIMIT} items."
            )));
        }
        if group == HOSTED_GROUP {
            return Err(ApiError::new(403, "Resource not accessible by integration"));
        }
        if !self.has_group(&scope, group) {
            return Err(ApiError::not_found());
        }
        // In one pass: there may be thousands.
        let (mut held, mut taken) = (0, false);
        for runner in self.runners.values() {
            let (member, same) = (runner.group == group, runner.name == name);
            if (member || same) && runner.scope == scope {
                held += usize::from(member);
                taken |= same;
            }
        }
        let limit = self.options.group_limit;
        if held >= limit {
            return Err(ApiError::new(
                422,
                format!(
                    "Invalid Argument - Runner group {group} has reached max limit of {limit} runners."
                ),
            ));
        }
        if taken {
            return Err(ApiError::new(
                409,
                format!("Already exists - A runner with the name {name} already exists."),
            ));
        }
        let id = self.next_runner;
        self.next_runner += 1;
        let secret = self.guid();
        let encoded = jit::encode(&mut self.rng, &self.options, id, name, &secret);
        self.runners.insert(
            id,
            Runner {
                id,
                name: name.into(),
                scope,
                group,
                labels: labels.to_vec(),
                secret,
                touched: self.now,
                session: None,
                lie: None,
                hidden_until: None,
                ends_at: None,
            },
        );
        let runner = self.view(&self.runners[&id]);
        Ok(Jit { runner, encoded })
    }

    /// `GET …/actions/runners/{runner_id}`.
    pub fn get_runner(
        &mut self,
        now: Timestamp,
        scope: &Scope,
        id: u64,
    ) -> Result<RunnerView, ApiError> {
        self.advance(now);
        let scope = self.known_scope(scope)?;
        let runner = self.runners.get(&id).filter(|runner| runner.scope == scope);
        runner.map(|runner| self.view(runner)).ok_or_else(ApiError::not_found)
    }

    /// `GET …/actions/runners`, by id. `name` keeps only the runner of exactly that name.
    pub fn list_runners(
        &mut self,
        now: Timestamp,
        scope: &Scope,
        paging: Paging,
        name: Option<&str>,
    ) -> Result<Page<RunnerView>, ApiError> {
        self.advance(now);
        let scope = self.known_scope(scope)?;
        let stale = self.options.list_staleness;
        let now = self.now;
        let fresh = self
            .lists
            .get(&scope)
            .is_some_and(|(at, _)| !stale.is_zero() && now.since(*at) < stale);
        if !fresh {
            let views = self
                .runners
                .values()
                .filter(|runner| runner.scope == scope)
                .filter(|runner| runner.hidden_until.is_none_or(|until| until <= now))
                .map(|runner| self.view(runner))
                .collect();
            self.lists.insert(scope.clone(), (now, views));
        }
        let name = name.filter(|_| !self.options.ignores_name_filter);
        let listed = self.lists.get(&scope).map(|(_, views)| views.as_slice()).unwrap_or_default();
        let wanted: Vec<&RunnerView> =
            listed.iter().filter(|view| name.is_none_or(|name| view.name == name)).collect();
        Ok(paging.cut(wanted.into_iter().cloned()))
    }

    /// `GET /orgs/{org}/actions/runner-groups/{runner_group_id}/runners`, by id. An unknown group is 404.
    pub fn list_group_runners(
        &mut self,
        now: Timestamp,
        login: &str,
        group: u64,
        paging: Paging,
    ) -> Result<Page<RunnerView>, ApiError> {
        self.advance(now);
        let scope = self.known_scope(&Scope::Organization(login.into()))?;
        if !self.has_group(&scope, group) {
            return Err(ApiError::not_found());
        }
        let now = self.now;
        let members: Vec<&Runner> = self
            .runners
            .values()
            .filter(|runner| runner.group == group && runner.scope == scope)
            .filter(|runner| runner.hidden_until.is_none_or(|until| until <= now))
            .collect();
        let page = paging.cut(members.into_iter());
        let items = page.items.into_iter().map(|runner| self.view(runner)).collect();
        Ok(Page { total: page.total, items })
    }

    /// Moves a runner to another group, as an owner of the organisation can.
    pub fn move_runner(&mut self, runner_id: u64, group: u64) {
        if let Some(runner) = self.runners.get_mut(&runner_id) {
            runner.group = group;
        }
    }

    /// Gives a registration another name, as if its id had come to be another's.
    pub fn rename_runner(&mut self, runner_id: u64, name: &str) {
        if let Some(runner) = self.runners.get_mut(&runner_id) {
            runner.name = name.into();
        }
    }

    /// `DELETE …/actions/runners/{runner_id}`: 422 while it is, or is held to be, busy. Where the flag
    /// wrongly says idle, the registration goes although a job runs.
    pub fn delete_runner(
        &mut self,
        now: Timestamp,
        scope: &Scope,
        id: u64,
    ) -> Result<(), ApiError> {
        let runner = self.get_runner(now, scope, id)?;
        if runner.busy {
            return Err(ApiError::new(
                422,
                format!(
                    "Bad request - Runner \"{}\" is currently running a job and cannot be deleted.",
                    runner.name
                ),
            ));
        }
        self.remove_registration(id);
        Ok(())
    }

    /// Makes a runner's `busy` flag say `busy` until then, whatever the truth
    /// (`actions/runner#4422`: idle for minutes while a job ran).
    pub fn lie_about_busy(&mut self, runner_id: u64, busy: bool, until: Timestamp) {
        if let Some(runner) = self.runners.get_mut(&runner_id) {
            runner.lie = Some((busy, until));
        }
    }

    /// Leaves a runner out of listings until then (`github-aws-runners/terraform-aws-github-runner#3589`).
    pub fn hide_from_listings(&mut self, runner_id: u64, until: Timestamp) {
        if let Some(runner) = self.runners.get_mut(&runner_id) {
            runner.hidden_until = Some(until);
        }
    }

    /// Removes a registration without asking, as the service sometimes does.
    pub fn drop_registration(&mut self, runner_id: u64) {
        self.forsake(runner_id);
    }

    /// Names of the runners whose registration GitHub has removed without being asked and before they had run a job.
    pub fn forsaken(&self) -> &BTreeSet<String> {
        &self.forsaken
    }

    fn forsake(&mut self, runner_id: u64) {
        if let Some(runner) = self.runners.get(&runner_id).filter(|runner| runner.ends_at.is_none())
        {
            self.forsaken.insert(runner.name.clone());
        }
        self.remove_registration(runner_id);
    }

    /// The next `times` jobs that are given out are lost by their runner when it fetches them: its
    /// registration goes, it keeps listening, and the job stays queued (`actions/runner#4617`, `#4618`).
    pub fn lose_acquires(&mut self, times: u32) {
        self.lost_acquires = times;
    }

    /// A runner process comes online with its JIT configuration. 403 if its version is refused, 401 for a configuration that is not
    /// ours, 404 for one whose registration is gone, 409 while another process uses it
    /// (`actions/runner#1506`, `#3677`).
    pub fn connect(&mut self, now: Timestamp, encoded: &str) -> Result<SessionView, ApiError> {
        self.advance(now);
        let (id, secret) =
            jit::decode(encoded).ok_or_else(|| ApiError::new(401, "Not a JIT configuration"))?;
        let gone =
            || ApiError::new(404, "The runner registration has been deleted from the server");
        let runner = self.runners.get(&id).ok_or_else(gone)?;
        if runner.secret != secret {
            return Err(ApiError::new(401, "Not authorized"));
        }
        if runner.ends_at.is_some() {
            return Err(gone());
        }
        if self.options.runner_deprecated {
            return Err(ApiError::new(
                403,
                "Runner version is deprecated and cannot receive messages.",
            ));
        }
        if self.session_of(runner).is_some_and(|session| self.is_online(session)) {
            return Err(ApiError::new(
                409,
                format!("A session for this runner already exists: {}", runner.name),
            ));
        }
        let session = Session {
            runner: RunnerRef {
                id,
                name: runner.name.clone(),
                group_id: runner.group,
                group_name: self.group_name(runner),
            },
            contact: self.now,
            closed_at: None,
            job: None,
            forgotten: false,
            done: false,
        };
        let name = runner.name.clone();
        let session_id = self.guid();
        let now = self.now;
        if let Some(runner) = self.runners.get_mut(&id) {
            runner.session = Some(session_id.clone());
            runner.touched = now;
        }
        self.sessions.insert(session_id.clone(), session);
        Ok(SessionView { id: session_id, runner_id: id, name })
    }

    /// The runner asks for work. 404 for a session that never was.
    pub fn poll_job(&mut self, now: Timestamp, session_id: &str) -> Result<Poll, ApiError> {
        self.touch(now, session_id)?;
        self.assign();
        let session = self.sessions.get_mut(session_id).ok_or_else(ApiError::not_found)?;
        if session.forgotten {
            return Ok(Poll::Idle);
        }
        let registered = self.runners.contains_key(&session.runner.id);
        let Some(job) = session.job.as_mut().filter(|job| !job.fetched) else {
            let working = session.job.is_some();
            return Ok(if working || registered && !session.done {
                Poll::Idle
            } else {
                Poll::Gone
            });
        };
        let job_id = job.id;
        if self.lost_acquires > 0 {
            self.lost_acquires -= 1;
            session.forgotten = true;
            let runner_id = session.runner.id;
            self.forsake(runner_id);
            return Ok(Poll::Idle);
        }
        let duration = self.jobs.get(&job_id).map(|job| job.duration).unwrap_or_default();
        job.fetched = true;
        job.ends_by = self.now + duration;
        let runner = session.runner.clone();
        self.start_job(job_id, runner);
        let job = self.jobs.get(&job_id).ok_or_else(ApiError::not_found)?;
        Ok(Poll::Job(Assignment {
            job_id,
            run_id: job.run_id,
            repository: job.repository.clone(),
            duration,
            script: job.script.clone(),
        }))
    }

    /// The runner is alive and still at its job. Answers whether the job is to be stopped.
    pub fn renew(&mut self, now: Timestamp, session_id: &str) -> Result<bool, ApiError> {
        self.touch(now, session_id)?;
        let job = self.sessions.get_mut(session_id).and_then(|session| session.job.as_mut());
        let job = job.ok_or_else(ApiError::not_found)?;
        job.renews = true;
        Ok(self.jobs.get(&job.id).is_none_or(|job| job.cancelled_at.is_some()))
    }

    /// The runner has finished its job; an ephemeral registration goes with that (docs).
    pub fn complete(
        &mut self,
        now: Timestamp,
        session_id: &str,
        job_id: u64,
        conclusion: &str,
    ) -> Result<(), ApiError> {
        self.touch(now, session_id)?;
        let session = self.sessions.get_mut(session_id).ok_or_else(ApiError::not_found)?;
        if !session.job.as_ref().is_some_and(|job| job.id == job_id && job.fetched) {
            return Err(ApiError::new(409, "That job is not this runner's"));
        }
        self.end_session_job(session_id);
        self.finish_job(job_id, conclusion);
        Ok(())
    }

    /// The runner process ends, as when its machine does. A job that it had fetched is lost, one that it
    /// had not goes back to the queue.
    pub fn disconnect(&mut self, now: Timestamp, session_id: &str) {
        self.advance(now);
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(session_id) {
            session.closed_at.get_or_insert(now);
        }
        self.expire_sessions();
    }

    /// The session of a runner, by the runner's name. For tests that end machines.
    pub fn session_named(&self, runner_name: &str) -> Option<String> {
        let named = self.runners.values().find(|runner| runner.name == runner_name);
        named.and_then(|runner| runner.session.clone()).or_else(|| {
            let open = |s: &&Session| s.closed_at.is_none() && s.runner.name == runner_name;
            self.sessions.iter().find(|(_, session)| open(session)).map(|(id, _)| id.clone())
        })
    }

    /// A registration of any scope, without a look at the clock.
    pub fn registration(&self, runner_id: u64) -> Option<RunnerView> {
        self.runners.get(&runner_id).map(|runner| self.view(runner))
    }

    /// All registrations of all scopes, for the checks at a test's end.
    pub fn registrations(&self) -> Vec<RunnerView> {
        self.runners.values().map(|runner| self.view(runner)).collect()
    }

    /// Gives queued jobs to idle runners that are online, until none fits. Which job and which runner is
    /// chance. Runners come in random order and each draws from the jobs that it could run, so every
    /// pair that fits can come about.
    pub(super) fn assign(&mut self) {
        let mut idle: Vec<(String, u64)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.job.is_none() && !session.done && !session.forgotten)
            .filter(|(_, session)| self.is_online(session))
            .map(|(id, session)| (id.clone(), session.runner.id))
            .collect();
        if idle.is_empty() {
            return;
        }
        idle.shuffle(&mut self.rng);
        for (session_id, runner_id) in idle {
            let Some(runner) = self.runners.get(&runner_id) else { continue };
            let fitting: Vec<u64> =
                self.open.iter().copied().filter(|job| self.fits(runner, *job)).collect();
            let chosen = fitting.choose(&mut self.rng);
            let first = fitting.iter().find(|job| self.turns.get(job) == Some(&Turn::First));
            let Some(job_id) = first.or(chosen).copied() else { continue };
            let now = self.now;
            if let Some(session) = self.sessions.get_mut(&session_id) {
                session.job = Some(SessionJob {
                    id: job_id,
                    assigned_at: now,
                    fetched: false,
                    renews: false,
                    ends_by: now,
                });
            }
            if let Some(job) = self.jobs.get_mut(&job_id) {
                job.session = Some(session_id);
            }
        }
    }

    /// Whether a runner may run a job: its labels cover the job's whatever their case (docs), the job is
    /// of a repository that the runner, or its group, serves.
    fn fits(&self, runner: &Runner, job_id: u64) -> bool {
        let Some(job) = self.jobs.get(&job_id) else { return false };
        if self.turns.get(&job_id) == Some(&Turn::Later) {
            return false;
        }
        let Ok(repository) = self.repository(&job.repository) else { return false };
        let admitted = match &runner.scope {
            Scope::Repository(name) => *name == job.repository.to_lowercase(),
            Scope::Organization(login) => {
                repository.owner == *login
                    && self.owners.get(login).is_some_and(|owner| {
                        owner.groups.get(&runner.group).is_some_and(|g| g.admits(repository))
                    })
            }
        };
        job.status == Status::Queued
            && job.session.is_none()
            && !job.hosted
            && admitted
            && job.labels.iter().all(|wanted| {
                runner.labels.iter().any(|label| label.to_lowercase() == wanted.to_lowercase())
            })
    }

    /// A session that has gone gives back the job that it had not fetched, and loses the one that it had.
    pub(super) fn expire_sessions(&mut self) {
        let (now, lost_after) = (self.now, self.options.lost_job_after);
        let offline: Vec<(String, u64, bool, Timestamp)> = self
            .sessions
            .iter()
            .filter(|(_, session)| !self.is_online(session))
            .filter_map(|(id, session)| {
                let job = session.job.as_ref()?;
                Some((id.clone(), job.id, job.fetched, session.last_seen()))
            })
            .collect();
        for (session_id, job_id, fetched, last_seen) in offline {
            if !fetched {
                if let Some(session) = self.sessions.get_mut(&session_id) {
                    session.job = None;
                }
                self.release(job_id);
            } else if now.since(last_seen) >= lost_after {
                // The registration stays behind, offline and idle.
                if let Some(session) = self.sessions.get_mut(&session_id) {
                    session.job = None;
                    session.closed_at.get_or_insert(now);
                }
                self.finish_job(job_id, "failure");
            }
        }
        // A closed session without a job has nothing more to tell.
        self.sessions.retain(|_, session| session.closed_at.is_none() || session.job.is_some());
    }

    /// Registrations that GitHub removes by itself.
    pub(super) fn expire_registrations(&mut self) {
        let now = self.now;
        let gone: Vec<u64> = self
            .runners
            .values()
            .filter(|runner| {
                let session = self.session_of(runner);
                let working = session.is_some_and(|session| session.job.is_some());
                let online = session.is_some_and(|session| self.is_online(session));
                let quiet = now.since(runner.touched);
                runner.ends_at.is_some_and(|at| at <= now)
                    || !working
                        && self.options.unused_registration_life.is_some_and(|life| quiet >= life)
                    || !working && !online && quiet >= self.options.offline_registration_life
            })
            .map(|runner| runner.id)
            .collect();
        for id in gone {
            self.forsake(id);
        }
    }

    /// Without its registration a runner cannot fetch the job that it was given: that is free again. A
    /// job that runs goes on, for it has credentials of its own.
    fn remove_registration(&mut self, runner_id: u64) {
        let Some(runner) = self.runners.remove(&runner_id) else { return };
        let session = runner.session.and_then(|id| self.sessions.get_mut(&id));
        if let Some(job) = session.and_then(|session| session.job.take_if(|job| !job.fetched)) {
            self.release(job.id);
        }
    }

    /// Ends what a session has to do with a job, and its registration, which is ephemeral.
    pub(super) fn end_session_job(&mut self, session_id: &str) {
        let Some(session) = self.sessions.get_mut(session_id) else { return };
        session.job = None;
        session.done = true;
        let id = session.runner.id;
        let ends_at = self.now + self.options.ephemeral_linger;
        if self.options.ephemeral_linger.is_zero() {
            self.runners.remove(&id);
        } else if let Some(runner) = self.runners.get_mut(&id) {
            runner.ends_at = Some(ends_at);
        }
    }

    /// A job that was given to a runner and not fetched is free again.
    fn release(&mut self, job_id: u64) {
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.session = None;
        }
    }

    fn touch(&mut self, now: Timestamp, session_id: &str) -> Result<(), ApiError> {
        // Before the timers: this call is the sign of life that they look for.
        let at = self.now.max(now);
        let session = self.sessions.get_mut(session_id).ok_or_else(ApiError::not_found)?;
        if session.closed_at.is_some() {
            return Err(ApiError::not_found());
        }
        session.contact = at;
        self.advance(now);
        Ok(())
    }

    fn is_online(&self, session: &Session) -> bool {
        session.online(self.now, self.options.offline_after)
    }

    fn session_of(&self, runner: &Runner) -> Option<&Session> {
        self.sessions.get(runner.session.as_ref()?)
    }

    fn view(&self, runner: &Runner) -> RunnerView {
        let session = self.session_of(runner);
        let job = session.and_then(|session| session.job.as_ref());
        let lags = |job: &SessionJob| self.now.since(job.assigned_at) < self.options.busy_lag;
        let truth = job.is_some_and(|job| !lags(job)) || runner.ends_at.is_some();
        RunnerView {
            id: runner.id,
            name: runner.name.clone(),
            online: session.is_some_and(|session| self.is_online(session)),
            busy: runner.lie.filter(|(_, until)| self.now < *until).map_or(truth, |(busy, _)| busy),
            labels: runner.labels.clone(),
            group_id: runner.group,
        }
    }

    /// The scope by its key, or 404: unknown accounts and repositories, and organisation runners of a user.
    fn known_scope(&self, scope: &Scope) -> Result<Scope, ApiError> {
        match scope {
            Scope::Repository(name) => drop(self.repository(name)?),
            Scope::Organization(login) if self.account(login)?.kind == OwnerKind::User => {
                return Err(ApiError::not_found());
            }
            Scope::Organization(_) => {}
        }
        Ok(scope.key())
    }

    fn has_group(&self, scope: &Scope, group: u64) -> bool {
        match scope {
            Scope::Repository(_) => group == DEFAULT_GROUP,
            Scope::Organization(login) => {
                self.owners.get(login).is_some_and(|owner| owner.groups.contains_key(&group))
            }
        }
    }

    fn group_name(&self, runner: &Runner) -> String {
        let group = match &runner.scope {
            Scope::Repository(_) => None,
            Scope::Organization(login) => {
                self.owners.get(login).and_then(|owner| owner.groups.get(&runner.group))
            }
        };
        group.map_or_else(|| "Default".into(), |group| group.name.clone())
    }

    /// A name for a runner of GitHub's own.
    pub(super) fn hosted_runner(&mut self) -> RunnerRef {
        let id = self.rng.random_range(1..1_000);
        RunnerRef {
            id,
            name: format!("GitHub Actions {id}"),
            group_id: HOSTED_GROUP,
            group_name: "GitHub Actions".into(),
        }
    }
}
