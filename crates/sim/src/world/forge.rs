//! The `Forge` port over the GitHub model: which calls are made, and what their statuses mean.

use std::time::Duration;

use ostler_core::config::Registration;
use ostler_core::error::{Error, Result};
use ostler_core::job::{JobId, Repository};
use ostler_core::labels::Labels;
use ostler_core::ports::{Forge, ForgeJob, Jit, JobStatus, Place, Refusal, Registered, Removal};
use ostler_core::secret::Secret;

use super::{State, World};
use crate::github::{
    ApiError, CallError, Caller, GitHub, Job, OwnerKind, Paging, RunnerView, Scope, Status,
    endpoint,
};

/// Where a secondary limit tells no time (docs: wait at least a minute).
const UNTOLD_WAIT: Duration = Duration::from_secs(60);

/// The group of runners that name none.
const DEFAULT_GROUP: u64 = 1;

impl State {
    pub(super) fn github<T>(
        &mut self,
        caller: &Caller,
        method: &str,
        template: &str,
        call: impl FnOnce(&mut GitHub) -> std::result::Result<T, ApiError>,
    ) -> std::result::Result<T, CallError> {
        self.github.call(self.now, caller, method, template, call)
    }

    /// Who asks about an owner. The installation is looked up once and its token lasts an hour, so neither
    /// is counted here.
    pub(super) fn caller(&self, owner: &str) -> Result<Caller> {
        match self.github.owner_installation(owner) {
            Ok(id) => Ok(Caller::Installation(id)),
            Err(_) => Err(Error::Permanent(format!("the App is not installed at {owner}"))),
        }
    }

    pub(super) fn error(&self, error: &CallError, what: &str) -> Error {
        match error {
            CallError::Lost(status) => Error::Transient(format!("{what}: no answer ({status})")),
            CallError::Api(api) => match (self.limit(api), api.status) {
                (Some(after), _) => {
                    Error::Later { after, reason: format!("{what}: {}", api.message) }
                }
                (None, 401 | 403) => Error::Permanent(format!("{what}: {}", api.message)),
                (None, 404) => Error::NotFound(format!("{what}: not there")),
                (None, status) => Error::Transient(format!("{what}: {status} {}", api.message)),
            },
        }
    }

    /// How long to wait, if that is a rate limit.
    fn limit(&self, error: &ApiError) -> Option<Duration> {
        if !matches!(error.status, 403 | 429) {
            return None;
        }
        let header = |name: &str| {
            error
                .headers
                .iter()
                .find(|(key, _)| key == name)
                .and_then(|(_, v)| v.parse::<i64>().ok())
        };
        if let Some(seconds) = header("retry-after") {
            return Some(Duration::from_secs(seconds.unsigned_abs()));
        }
        if header("x-ratelimit-remaining") == Some(0)
            && let Some(reset) = header("x-ratelimit-reset")
        {
            let left = reset.saturating_sub(self.now.seconds()).max(1);
            return Some(Duration::from_secs(left.unsigned_abs()));
        }
        error.message.contains("rate limit").then_some(UNTOLD_WAIT)
    }

    /// Where registrations are: users have none of their own. GitHub is asked what the owner is only when
    /// the organisation's path answers 404.
    fn scopes(&self, place: &Place) -> (Scope, Scope) {
        let repository = Scope::Repository(place.repository.to_string());
        match place.level {
            Registration::Organization => {
                (Scope::Organization(place.repository.owner.clone()), repository)
            }
            Registration::Repository => (repository.clone(), repository),
        }
    }

    /// A call about runners at the place's level, and at its repository if the owner is a user.
    fn at_place<T>(
        &mut self,
        place: &Place,
        method: &str,
        templates: [&'static str; 2],
        call: impl Fn(&mut GitHub, &Scope) -> std::result::Result<T, ApiError>,
    ) -> Result<std::result::Result<T, CallError>> {
        let owner = place.repository.owner.clone();
        let caller = self.caller(&owner)?;
        let (scope, fallback) = self.scopes(place);
        let template = templates[usize::from(scope == fallback)];
        let answer = self.github(&caller, method, template, |github| {
            github.sees_owner(&caller, &owner)?;
            call(github, &scope)
        });
        let lacking = matches!(&answer, Err(CallError::Api(error)) if error.status == 404);
        if !lacking || scope == fallback {
            return Ok(answer);
        }
        match self.owner_kind(&caller, &owner) {
            Ok(OwnerKind::User) => {
                let full_name = place.repository.to_string();
                Ok(self.github(&caller, method, templates[1], |github| {
                    github.sees_repository(&caller, &full_name)?;
                    call(github, &fallback)
                }))
            }
            Ok(OwnerKind::Organization) => Ok(answer),
            Err(error) => Err(self.error(&error, "who the owner is")),
        }
    }

    fn owner_kind(
        &mut self,
        caller: &Caller,
        owner: &str,
    ) -> std::result::Result<OwnerKind, CallError> {
        if let Some(known) = self.owner_kinds.get(owner) {
            return Ok(*known);
        }
        let kind = self.github(caller, "GET", endpoint::USER, |github| {
            github.account(owner).map(|account| account.kind)
        })?;
        self.owner_kinds.insert(owner.to_owned(), kind);
        Ok(kind)
    }

    fn group(&mut self, place: &Place, group: &str) -> std::result::Result<u64, Refusal> {
        if let Ok(id) = group.parse() {
            return Ok(id);
        }
        let owner = place.repository.owner.clone();
        let caller = self.caller(&owner).map_err(|error| Refusal::NotAllowed(error.to_string()))?;
        for page in 1.. {
            let listed = self.github(&caller, "GET", endpoint::ORG_GROUPS, |github| {
                github.list_groups(&owner, Paging::new(Some(page), Some(100)))
            });
            let listed = listed.map_err(|error| match self.error(&error, "the runner groups") {
                Error::Later { after, reason } => Refusal::Limited { after, reason },
                Error::Permanent(text) => Refusal::NotAllowed(text),
                other => Refusal::Ambiguous(other.to_string()),
            })?;
            if let Some(found) =
                listed.items.iter().find(|found| found.name.eq_ignore_ascii_case(group))
            {
                return Ok(found.id);
            }
            if listed.items.is_empty() || page * 100 >= listed.total {
                break;
            }
        }
        Err(Refusal::GroupUnknown(format!("{owner} has no runner group '{group}'")))
    }

    fn register(
        &mut self,
        place: &Place,
        name: &str,
        group: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Jit, Refusal> {
        let id = match group {
            None => DEFAULT_GROUP,
            Some(group) => self.group(place, group)?,
        };
        let texts: Vec<String> = labels.iter().map(str::to_owned).collect();
        let now = self.now;
        let templates = [endpoint::ORG_JIT, endpoint::REPO_JIT];
        let answer = self
            .at_place(place, "POST", templates, |github, scope| {
                github.generate_jit(now, scope, name, Some(id), &texts)
            })
            .map_err(|error| Refusal::NotAllowed(error.to_string()))?;
        match answer {
            Ok(jit) => {
                self.secrets.push(jit.encoded.clone());
                Ok(Jit {
                    runner_id: i64::try_from(jit.runner.id).unwrap_or(i64::MAX),
                    config: Secret::new(jit.encoded),
                })
            }
            Err(error) => Err(self.refusal(error, group)),
        }
    }

    fn refusal(&self, error: CallError, group: Option<&str>) -> Refusal {
        let api = match error {
            CallError::Lost(status) => {
                return Refusal::Ambiguous(format!("no answer to the registration ({status})"));
            }
            CallError::Api(api) => api,
        };
        if let Some(after) = self.limit(&api) {
            return Refusal::Limited { after, reason: api.message };
        }
        match (api.status, group) {
            (409, _) => Refusal::NameTaken,
            (422, _) if api.message.contains("max limit") => Refusal::GroupFull(api.message),
            (422, _) => Refusal::Invalid(api.message),
            (404, Some(_)) => Refusal::GroupUnknown(api.message),
            (403, Some(_)) => Refusal::GroupForbidden(api.message),
            (401 | 403 | 404, _) => Refusal::NotAllowed(api.message),
            (status, _) => Refusal::Ambiguous(format!("{status} {}", api.message)),
        }
    }
}

fn registered(view: &RunnerView) -> Registered {
    Registered {
        id: i64::try_from(view.id).unwrap_or(i64::MAX),
        name: view.name.clone(),
        online: view.online,
        busy: view.busy,
    }
}

/// GitHub's record of a job as the domain sees it.
fn known(job: Job) -> ForgeJob {
    ForgeJob {
        status: match job.status {
            Status::Queued => JobStatus::Queued,
            Status::InProgress => JobStatus::InProgress,
            Status::Completed => JobStatus::Completed,
            Status::Requested | Status::Pending | Status::Waiting => JobStatus::Held,
        },
        runner_name: job.runner.map(|runner| runner.name),
        labels: Labels::new(&job.labels),
        created: Some(job.created_at),
    }
}

impl Forge for World {
    async fn installed(&self, at: &Repository) -> Result<bool> {
        self.ask("Forge.installed", |state| {
            let full_name = at.to_string();
            let answer = state.github(&Caller::App, "GET", endpoint::REPO_INSTALLATION, |github| {
                github.installation(&full_name)
            });
            match answer {
                Ok(_) => Ok(true),
                Err(CallError::Api(error)) if error.status == 404 => Ok(false),
                Err(error) => Err(state.error(&error, "the installation")),
            }
        })
        .await
    }

    async fn run_jobs(&self, at: &Repository, run: i64) -> Result<Option<Vec<(JobId, ForgeJob)>>> {
        self.ask("Forge.run_jobs", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let mut found = Vec::new();
            for page in 1.. {
                let answer = state.github(&caller, "GET", endpoint::RUN_JOBS, |github| {
                    github.sees_repository(&caller, &full_name)?;
                    let paging = Paging::new(Some(page), Some(100));
                    github.list_all_jobs_of_run(now, &full_name, run.unsigned_abs(), paging)
                });
                let listed = match answer {
                    Ok(listed) => listed,
                    Err(CallError::Api(error)) if error.status == 404 => return Ok(None),
                    Err(error) => return Err(state.error(&error, "the jobs of the run")),
                };
                let last = page * 100 >= listed.total;
                found.extend(
                    listed
                        .items
                        .into_iter()
                        .map(|job| (JobId(i64::try_from(job.id).unwrap_or(i64::MAX)), known(job))),
                );
                if last {
                    break;
                }
            }
            Ok(Some(found))
        })
        .await
    }

    async fn job(&self, at: &Repository, id: JobId) -> Result<Option<ForgeJob>> {
        self.ask("Forge.job", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let answer = state.github(&caller, "GET", endpoint::JOB, |github| {
                github.sees_repository(&caller, &full_name)?;
                github.get_job(now, &full_name, id.0.unsigned_abs())
            });
            match answer {
                Ok(job) => Ok(Some(known(job))),
                Err(CallError::Api(error)) if error.status == 404 => {
                    // Whether the repository can be read or not, the token is good: the job is not there.
                    let read = state.github(&caller, "GET", endpoint::REPO, |github| {
                        github.sees_repository(&caller, &full_name)
                    });
                    match read {
                        Ok(()) => Ok(None),
                        Err(CallError::Api(error)) if error.status == 404 => Ok(None),
                        Err(error) => Err(state.error(&error, "the job's repository")),
                    }
                }
                Err(error) => Err(state.error(&error, "the job")),
            }
        })
        .await
    }

    async fn deployment_waits(&self, at: &Repository, deployment: i64) -> Result<bool> {
        self.ask("Forge.deployment_waits", |state| {
            let full_name = at.to_string();
            let caller = state.caller(&at.owner)?;
            let now = state.now;
            let answer = state.github(&caller, "GET", endpoint::DEPLOYMENT_STATUSES, |github| {
                github.sees_repository(&caller, &full_name)?;
                github.deployment_statuses(now, &full_name, deployment.unsigned_abs())
            });
            match answer {
                Ok(statuses) => {
                    Ok(statuses.first().is_some_and(|(newest, _)| *newest == "waiting"))
                }
                Err(error) => Err(state.error(&error, "the deployment")),
            }
        })
        .await
    }

    async fn runner(&self, place: &Place, id: i64) -> Result<Option<Registered>> {
        self.ask("Forge.runner", |state| {
            let now = state.now;
            let templates = [endpoint::ORG_RUNNER, endpoint::REPO_RUNNER];
            let answer = state.at_place(place, "GET", templates, |github, scope| {
                github.get_runner(now, scope, id.unsigned_abs())
            })?;
            match answer {
                Ok(view) => Ok(Some(registered(&view))),
                Err(CallError::Api(error)) if error.status == 404 => Ok(None),
                Err(error) => Err(state.error(&error, "the registration")),
            }
        })
        .await
    }

    async fn runner_named(&self, place: &Place, name: &str) -> Result<Option<Registered>> {
        self.ask("Forge.runner_named", |state| {
            let now = state.now;
            let templates = [endpoint::ORG_RUNNERS, endpoint::REPO_RUNNERS];
            // Older GHES versions ignore the filter: all pages, and the name compared.
            for page in 1.. {
                let answer = state.at_place(place, "GET", templates, |github, scope| {
                    github.list_runners(now, scope, Paging::new(Some(page), Some(100)), Some(name))
                })?;
                let listed = answer.map_err(|error| state.error(&error, "the registrations"))?;
                if let Some(view) = listed.items.iter().find(|view| view.name == name) {
                    return Ok(Some(registered(view)));
                }
                if listed.items.is_empty() || page * 100 >= listed.total {
                    break;
                }
            }
            Ok(None)
        })
        .await
    }

    async fn register(
        &self,
        place: &Place,
        name: &str,
        group: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Jit, Refusal> {
        let act = |state: &mut State| state.register(place, name, group, labels);
        self.call("Forge.register", act, |what| Err(Refusal::Ambiguous(what))).await
    }

    async fn remove_runner(&self, place: &Place, id: i64) -> Result<Removal> {
        self.ask("Forge.remove_runner", |state| {
            let now = state.now;
            let templates = [endpoint::ORG_RUNNER, endpoint::REPO_RUNNER];
            let answer = state.at_place(place, "DELETE", templates, |github, scope| {
                github.delete_runner(now, scope, id.unsigned_abs())
            })?;
            match answer {
                Ok(()) => Ok(Removal::Removed),
                Err(CallError::Api(error)) if error.status == 404 => Ok(Removal::Gone),
                Err(CallError::Api(error)) if error.status == 422 => Ok(Removal::Busy),
                Err(error) => Err(state.error(&error, "the registration")),
            }
        })
        .await
    }
}
