//! Path templates of the API calls that are modelled, in GitHub's own spelling. Calls are counted and
//! faults are matched by `METHOD template`.

/// `POST`: an installation token.
pub const ACCESS_TOKENS: &str = "/app/installations/{installation_id}/access_tokens";
/// `GET`: the App.
pub const APP: &str = "/app";
/// `GET`: the App's installations.
pub const APP_INSTALLATIONS: &str = "/app/installations";
/// `GET`: one of them.
pub const APP_INSTALLATION: &str = "/app/installations/{installation_id}";
/// `GET`: the installation that covers a repository.
pub const REPO_INSTALLATION: &str = "/repos/{owner}/{repo}/installation";
/// `GET`: the installation of an organisation.
pub const ORG_INSTALLATION: &str = "/orgs/{org}/installation";
/// `GET`: the installation of a user.
pub const USER_INSTALLATION: &str = "/users/{username}/installation";
/// `GET`: an account.
pub const USER: &str = "/users/{username}";
/// `GET`: a repository.
pub const REPO: &str = "/repos/{owner}/{repo}";
/// `GET`: runners of an organisation.
pub const ORG_RUNNERS: &str = "/orgs/{org}/actions/runners";
/// `GET`, `DELETE`: one of them.
pub const ORG_RUNNER: &str = "/orgs/{org}/actions/runners/{runner_id}";
/// `POST`: a just-in-time registration with an organisation.
pub const ORG_JIT: &str = "/orgs/{org}/actions/runners/generate-jitconfig";
/// `POST`: a token that lets any machine register with an organisation for an hour.
pub const ORG_REGISTRATION_TOKEN: &str = "/orgs/{org}/actions/runners/registration-token";
/// `GET`: runner groups.
pub const ORG_GROUPS: &str = "/orgs/{org}/actions/runner-groups";
/// `GET`: runners of a runner group.
pub const ORG_GROUP_RUNNERS: &str = "/orgs/{org}/actions/runner-groups/{runner_group_id}/runners";
/// `GET`: runners of a repository.
pub const REPO_RUNNERS: &str = "/repos/{owner}/{repo}/actions/runners";
/// `GET`, `DELETE`: one of them.
pub const REPO_RUNNER: &str = "/repos/{owner}/{repo}/actions/runners/{runner_id}";
/// `POST`: a just-in-time registration with a repository.
pub const REPO_JIT: &str = "/repos/{owner}/{repo}/actions/runners/generate-jitconfig";
/// `GET`: a job.
pub const JOB: &str = "/repos/{owner}/{repo}/actions/jobs/{job_id}";
/// `POST`: runs a job again, and those that need it.
pub const JOB_RERUN: &str = "/repos/{owner}/{repo}/actions/jobs/{job_id}/rerun";
/// `GET`: workflow runs.
pub const RUNS: &str = "/repos/{owner}/{repo}/actions/runs";
/// `GET`: a workflow run.
pub const RUN: &str = "/repos/{owner}/{repo}/actions/runs/{run_id}";
/// `GET`: jobs of a run.
pub const RUN_JOBS: &str = "/repos/{owner}/{repo}/actions/runs/{run_id}/jobs";
/// `GET`: jobs of one attempt of a run.
pub const ATTEMPT_JOBS: &str =
    "/repos/{owner}/{repo}/actions/runs/{run_id}/attempts/{attempt_number}/jobs";
/// `POST`: cancels a run.
pub const RUN_CANCEL: &str = "/repos/{owner}/{repo}/actions/runs/{run_id}/cancel";
/// `POST`: runs the failed jobs of a run again.
pub const RUN_RERUN_FAILED: &str = "/repos/{owner}/{repo}/actions/runs/{run_id}/rerun-failed-jobs";
/// `GET`: statuses of a deployment, newest first.
pub const DEPLOYMENT_STATUSES: &str = "/repos/{owner}/{repo}/deployments/{deployment_id}/statuses";
/// `GET`: the App's webhook deliveries.
pub const DELIVERIES: &str = "/app/hook/deliveries";
/// `GET`: one of them, with request and response.
pub const DELIVERY: &str = "/app/hook/deliveries/{delivery_id}";
/// `POST`: sends it again.
pub const DELIVERY_ATTEMPTS: &str = "/app/hook/deliveries/{delivery_id}/attempts";
/// `GET`: a cat; what some clients ask to see whether their token still works.
pub const OCTOCAT: &str = "/octocat";
/// `GET`: the state of the rate limits.
pub const RATE_LIMIT: &str = "/rate_limit";
