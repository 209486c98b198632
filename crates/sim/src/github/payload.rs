//! JSON as GitHub writes it: webhook payloads and REST objects. The shapes follow the payload examples of
//! `octokit/webhooks`, with every field that they have.

use serde_json::{Map, Value, json};

use super::jobs::{Deployment, Job, RunView, Status};
use super::{Event, GitHub, Owner, OwnerKind, Repository, RunnerFields};

/// The account that acts in the events.
const SENDER: (&str, u64) = ("octocat", 583_231);
/// The addresses below a repository: name without `_url`, path template.
const REPOSITORY_LINKS: [(&str, &str); 36] = [
    ("forks", "forks"),
    ("keys", "keys{/key_id}"),
    ("collaborators", "collaborators{/collaborator}"),
    ("teams", "teams"),
    ("hooks", "hooks"),
    ("issue_events", "issues/events{/number}"),
    ("events", "events"),
    ("assignees", "assignees{/user}"),
    ("branches", "branches{/branch}"),
    ("tags", "tags"),
    ("blobs", "git/blobs{/sha}"),
    ("git_tags", "git/tags{/sha}"),
    ("git_refs", "git/refs{/sha}"),
    ("trees", "git/trees{/sha}"),
    ("statuses", "statuses/{sha}"),
    ("languages", "languages"),
    ("stargazers", "stargazers"),
    ("contributors", "contributors"),
    ("subscribers", "subscribers"),
    ("subscription", "subscription"),
    ("commits", "commits{/sha}"),
    ("git_commits", "git/commits{/sha}"),
    ("comments", "comments{/number}"),
    ("issue_comment", "issues/comments{/number}"),
    ("contents", "contents/{+path}"),
    ("compare", "compare/{base}...{head}"),
    ("merges", "merges"),
    ("archive", "{archive_format}{/ref}"),
    ("downloads", "downloads"),
    ("issues", "issues{/number}"),
    ("pulls", "pulls{/number}"),
    ("milestones", "milestones{/number}"),
    ("notifications", "notifications{?since,all,participating}"),
    ("labels", "labels{/name}"),
    ("releases", "releases{/id}"),
    ("deployments", "deployments"),
];
/// What is alike in all repositories.
const REPOSITORY_CONSTANTS: &str = r#"{
    "description": null, "fork": false, "homepage": null, "language": null, "mirror_url": null, "license": null,
    "created_at": "2023-01-20T18:23:59Z", "updated_at": "2023-01-20T18:23:59Z", "pushed_at": "2023-04-19T21:11:39Z",
    "size": 39, "stargazers_count": 0, "watchers_count": 0, "forks_count": 0, "open_issues_count": 0,
    "forks": 0, "open_issues": 0, "watchers": 0, "has_issues": true, "has_projects": true,
    "has_downloads": true, "has_wiki": true, "has_pages": false, "has_discussions": false, "archived": false,
    "disabled": false, "allow_forking": true, "is_template": false, "web_commit_signoff_required": false,
    "topics": [], "default_branch": "main", "custom_properties": {}
}"#;

impl GitHub {
    /// Emits `workflow_job` / `action` for a job, if its repository has the App.
    pub(super) fn announce(&mut self, job_id: u64, action: &str) {
        let Some(job) = self.jobs.get(&job_id) else { return };
        let Ok(installation) = self.installation(&job.repository) else { return };
        let (Some(payload), repository) = (
            self.job_payload(job, action, installation),
            self.repository(&job.repository).ok().map(|repository| repository.id),
        ) else {
            return;
        };
        self.emit("workflow_job", Some(action), Some(installation), repository, payload);
    }

    /// Emits any other event to the App, as `ping` or `installation` are.
    pub fn emit(
        &mut self,
        event: &str,
        action: Option<&str>,
        installation: Option<u64>,
        repository: Option<u64>,
        payload: Value,
    ) {
        let guid = self.guid();
        self.events.push(Event {
            guid,
            event: event.into(),
            action: action.map(Into::into),
            installation,
            repository,
            at: self.now,
            payload,
        });
    }

    fn job_payload(&self, job: &Job, action: &str, installation: u64) -> Option<Value> {
        let repository = self.repository(&job.repository).ok()?;
        let owner = self.account(&repository.owner).ok()?;
        if self.options.brief {
            return Some(self.brief_payload(job, action, installation, repository, owner));
        }
        let mut payload = json!({
            "action": action,
            "workflow_job": self.job_json(job),
            "repository": self.repository_json(repository),
            "sender": self.account_json(SENDER.0, SENDER.1, OwnerKind::User),
        });
        if let Some(deployment) = &job.deployment {
            payload["deployment"] = self.deployment_json(job, deployment);
        }
        if owner.kind == OwnerKind::Organization {
            payload["organization"] = self.organization_json(owner);
        }
        if self.options.installation_in_payload {
            payload["installation"] = json!({
                "id": installation,
                "node_id": node_id("MDIzOkludGVncmF0aW9uSW5zdGFsbGF0aW9u", installation),
            });
        }
        Some(payload)
    }

    fn brief_payload(
        &self,
        job: &Job,
        action: &str,
        installation: u64,
        repository: &Repository,
        owner: &Owner,
    ) -> Value {
        let runner = job.runner.as_ref();
        let mut payload = json!({
            "action": action,
            "workflow_job": {
                "id": job.id,
                "run_id": job.run_id,
                "html_url": format!("{}/actions/runs/{}/job/{}", self.options.html_url, job.run_id, job.id),
                "status": job.status.name(),
                "conclusion": job.conclusion,
                "created_at": job.created_at.to_string(),
                "name": job.name,
                "labels": job.labels,
                "runner_id": runner.map(|it| it.id),
                "runner_name": runner.map(|it| &it.name),
                "runner_group_name": runner.map(|it| &it.group_name),
            },
            "repository": {
                "name": repository.name,
                "owner": {"login": owner.login},
                "private": repository.private,
            },
            "installation": {"id": installation},
        });
        if let Some(deployment) = &job.deployment {
            payload["deployment"] = json!({"id": deployment.id});
        }
        payload
    }

    /// A job, as payloads and the REST API write it.
    pub fn job_json(&self, job: &Job) -> Value {
        let api = format!("{}/repos/{}", self.options.api_url, job.repository);
        let html = format!("{}/{}", self.options.html_url, job.repository);
        // A job that does not run yet has the time of its making here.
        let started_at = job.started_at.unwrap_or(job.created_at);
        let mut json = json!({
            "id": job.id,
            "run_id": job.run_id,
            "workflow_name": job.workflow,
            "head_branch": job.head_branch,
            "run_url": format!("{api}/actions/runs/{}", job.run_id),
            "run_attempt": job.attempt,
            "node_id": node_id("CR_kwDO", job.id),
            "head_sha": "16c5286e8d9a0629956a28938386b36608707a71",
            "url": format!("{api}/actions/jobs/{}", job.id),
            "html_url": format!("{html}/actions/runs/{}/job/{}", job.run_id, job.id),
            "status": job.status.name(),
            "conclusion": job.conclusion,
            "created_at": job.created_at.to_string(),
            "started_at": started_at.to_string(),
            "completed_at": job.completed_at.map(|at| at.to_string()),
            "name": job.name,
            "steps": steps(job),
            "check_run_url": format!("{api}/check-runs/{}", job.id),
            "labels": job.labels,
        });
        if let Value::Object(fields) = &mut json {
            self.add_runner_fields(fields, job);
        }
        json
    }

    fn add_runner_fields(&self, fields: &mut Map<String, Value>, job: &Job) {
        let values = match (&job.runner, self.options.runner_fields) {
            (Some(runner), _) => [
                json!(runner.id),
                json!(runner.name),
                json!(runner.group_id),
                json!(runner.group_name),
            ],
            (None, RunnerFields::Null) => [const { Value::Null }; 4],
            (None, RunnerFields::Zero) => [json!(0), json!(""), json!(0), json!("")],
            (None, RunnerFields::Missing) => return,
        };
        let names = ["runner_id", "runner_name", "runner_group_id", "runner_group_name"];
        fields.extend(names.into_iter().map(String::from).zip(values));
    }

    /// A run, as the REST API writes it.
    pub fn run_json(&self, run: &RunView) -> Value {
        let api =
            format!("{}/repos/{}/actions/runs/{}", self.options.api_url, run.repository, run.id);
        json!({
            "id": run.id,
            "name": "CI",
            "node_id": node_id("WFR_kwLO", run.id),
            "head_branch": "main",
            "head_sha": "16c5286e8d9a0629956a28938386b36608707a71",
            "run_number": 1,
            "run_attempt": run.attempt,
            "event": "push",
            "status": run.status.name(),
            "conclusion": run.conclusion,
            "created_at": run.created_at.to_string(),
            "updated_at": run.created_at.to_string(),
            "run_started_at": run.created_at.to_string(),
            "url": api,
            "jobs_url": format!("{api}/jobs"),
            "html_url":
                format!("{}/{}/actions/runs/{}", self.options.html_url, run.repository, run.id),
        })
    }

    /// A repository, as payloads and the REST API write it.
    pub fn repository_json(&self, repository: &Repository) -> Value {
        let full_name = self.full_name(repository);
        let owner = self.account(&repository.owner).ok();
        let api = format!("{}/repos/{full_name}", self.options.api_url);
        let html = format!("{}/{full_name}", self.options.html_url);
        let host = self.options.html_url.rsplit('/').next().unwrap_or_default();
        let mut json = json!({
            "id": repository.id,
            "node_id": node_id("R_kgDO", repository.id),
            "name": repository.name,
            "full_name": full_name,
            "private": repository.private,
            "visibility": if repository.private { "private" } else { "public" },
            "owner": owner.map(|owner| self.account_json(&owner.login, owner.id, owner.kind)),
            "html_url": html,
            "url": api,
            "git_url": format!("git://{host}/{full_name}.git"),
            "ssh_url": format!("git@{host}:{full_name}.git"),
            "clone_url": format!("{html}.git"),
            "svn_url": html,
        });
        if let Value::Object(fields) = &mut json {
            fields.extend(
                serde_json::from_str::<Map<_, _>>(REPOSITORY_CONSTANTS).unwrap_or_default(),
            );
            fields.extend(
                REPOSITORY_LINKS
                    .map(|(name, path)| (format!("{name}_url"), json!(format!("{api}/{path}")))),
            );
        }
        json
    }

    /// An account, as payloads and the REST API write it.
    pub fn account_json(&self, login: &str, id: u64, kind: OwnerKind) -> Value {
        let api = format!("{}/users/{login}", self.options.api_url);
        json!({
            "login": login,
            "id": id,
            "node_id": node_id("MDQ6VXNlcg", id),
            "avatar_url": format!("{}/avatars/u/{id}?v=4", self.options.html_url),
            "gravatar_id": "",
            "url": api,
            "html_url": format!("{}/{login}", self.options.html_url),
            "followers_url": format!("{api}/followers"),
            "following_url": format!("{api}/following{{/other_user}}"),
            "gists_url": format!("{api}/gists{{/gist_id}}"),
            "starred_url": format!("{api}/starred{{/owner}}{{/repo}}"),
            "subscriptions_url": format!("{api}/subscriptions"),
            "organizations_url": format!("{api}/orgs"),
            "repos_url": format!("{api}/repos"),
            "events_url": format!("{api}/events{{/privacy}}"),
            "received_events_url": format!("{api}/received_events"),
            "type": kind.name(),
            "user_view_type": "public",
            "site_admin": false,
        })
    }

    fn organization_json(&self, owner: &Owner) -> Value {
        let api = format!("{}/orgs/{}", self.options.api_url, owner.login);
        json!({
            "login": owner.login,
            "id": owner.id,
            "node_id": node_id("O_kgDO", owner.id),
            "url": api,
            "repos_url": format!("{api}/repos"),
            "events_url": format!("{api}/events"),
            "hooks_url": format!("{api}/hooks"),
            "issues_url": format!("{api}/issues"),
            "members_url": format!("{api}/members{{/member}}"),
            "public_members_url": format!("{api}/public_members{{/member}}"),
            "avatar_url": format!("{}/avatars/u/{}?v=4", self.options.html_url, owner.id),
            "description": null,
        })
    }

    fn deployment_json(&self, job: &Job, deployment: &Deployment) -> Value {
        let api = format!("{}/repos/{}", self.options.api_url, job.repository);
        let url = format!("{api}/deployments/{}", deployment.id);
        let updated_at = deployment.statuses.last().map_or(job.created_at, |(_, at)| *at);
        json!({
            "url": url,
            "id": deployment.id,
            "node_id": node_id("DE_kwDO", deployment.id),
            "task": "deploy",
            "original_environment": deployment.environment,
            "environment": deployment.environment,
            "description": null,
            "created_at": job.created_at.to_string(),
            "updated_at": updated_at.to_string(),
            "statuses_url": format!("{url}/statuses"),
            "repository_url": api,
            "creator": self.account_json(SENDER.0, SENDER.1, OwnerKind::User),
            "sha": "16c5286e8d9a0629956a28938386b36608707a71",
            "ref": job.head_branch,
            "payload": {},
            "transient_environment": false,
            "production_environment": false,
            "performed_via_github_app": {"id": 15_368, "slug": "github-actions", "name": "GitHub Actions"},
        })
    }
}

/// The steps that a runner has reported: none before it started (`actions/actions-runner-controller#2520`
/// tells cancelled jobs that never ran by that).
fn steps(job: &Job) -> Value {
    let Some(started_at) = job.started_at else { return json!([]) };
    let status = if job.status == Status::Completed { "completed" } else { "in_progress" };
    json!([{
        "name": "Set up job",
        "status": status,
        "conclusion": job.conclusion,
        "number": 1,
        "started_at": started_at.to_string(),
        "completed_at": job.completed_at.map(|at| at.to_string()),
    }])
}

/// Opaque to clients; only its form matters.
fn node_id(prefix: &str, id: u64) -> String {
    format!("{prefix}{id:x}")
}
