//! The adapter against the local world's GitHub, with time sixty times as fast: its JWTs and tokens are
//! verified there, and its limits and refusals are those of the model.

// All of this is test code, which the lints on panics can't see outside of test functions.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ostler_core::config::{AppSettings, Registration};
use ostler_core::job::{JobId, Repository};
use ostler_core::labels::Labels;
use ostler_core::ports::{Clock, Forge, Jit, JobStatus, Place, Refusal, Removal};
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use ostler_local::github::{GitHub as Local, GitHubConfig};
use ostler_local::time::WorldClock;
use ostler_sim::github::{JobSpec, OwnerKind, Visibility};
use serde_json::json;

struct World(WorldClock);

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

type GitHub = ostler_github::GitHub<World>;

async fn world() -> (Arc<Local>, GitHub) {
    let clock = WorldClock::starting_now(60.0);
    let local = Local::start(GitHubConfig::new(clock, "secret", 1)).await.unwrap();
    local.add_repository("acme/widgets", true);
    let settings = json!({"app_id": local.app_id(), "github_url": local.url()});
    let settings: AppSettings = serde_json::from_value(settings).unwrap();
    let key = Secret::new(local.app_private_key_pem());
    let github = GitHub::new(&settings, &key, &[], World(clock)).unwrap();
    (local, github)
}

fn repository(owner: &str) -> Repository {
    Repository { owner: owner.into(), name: "widgets".into(), installation: None }
}

fn place(owner: &str) -> Place {
    Place { repository: repository(owner), level: Registration::Organization }
}

async fn register(github: &GitHub, owner: &str, group: Option<&str>) -> Result<Jit, Refusal> {
    let labels = Labels::new(["self-hosted", "linux"]);
    github.register(&place(owner), "widgets-7-aa", group, &labels).await
}

#[tokio::test]
async fn a_registration_is_made_found_and_removed() {
    let (_local, github) = world().await;
    let jit = register(&github, "acme", None).await.unwrap();
    assert!(jit.config.expose().len() > 4_000);
    assert_eq!(register(&github, "acme", None).await.unwrap_err(), Refusal::NameTaken);
    let place = place("acme");
    let found = github.runner(&place, jit.runner_id).await.unwrap().unwrap();
    assert_eq!((found.online, found.busy), (false, false));
    assert_eq!(github.runner_named(&place, "widgets-7-aa").await.unwrap(), Some(found));
    assert_eq!(github.runner_named(&place, "widgets-7").await.unwrap(), None);
    assert_eq!(github.remove_runner(&place, jit.runner_id).await.unwrap(), Removal::Removed);
    assert_eq!(github.remove_runner(&place, jit.runner_id).await.unwrap(), Removal::Gone);
    assert_eq!(github.runner(&place, jit.runner_id).await.unwrap(), None);
    let [(4242, quota)] = github.quotas()[..] else { panic!("{:?}", github.quotas()) };
    assert!(quota.remaining < quota.limit);
}

#[tokio::test]
async fn runners_of_a_user_account_are_registered_with_the_repository() {
    let (local, github) = world().await;
    local.with_model(|model, _| {
        model.add_owner("mona", OwnerKind::User);
        model.add_repository("mona/widgets", true);
    });
    let jit = register(&github, "mona", None).await.unwrap();
    let calls = local.calls();
    assert_eq!(calls["POST /repos/{owner}/{repo}/actions/runners/generate-jitconfig"], 1);
    assert_eq!(
        github.remove_runner(&place("mona"), jit.runner_id).await.unwrap(),
        Removal::Removed
    );
    let refusal = register(&github, "mona", Some("gpu")).await.unwrap_err();
    assert!(matches!(refusal, Refusal::GroupUnknown(_)), "{refusal:?}");
}

#[tokio::test]
async fn ol_18_ol_22_groups_are_found_refused_and_full() {
    let (local, github) = world().await;
    local.with_model(|model, _| {
        model.add_group("acme", "GPU", Visibility::All, true).unwrap();
        model.options_mut().group_limit = 1;
    });
    let jit = register(&github, "acme", Some("gpu")).await.unwrap();
    let labels = Labels::new(["self-hosted"]);
    let full = github.register(&place("acme"), "widgets-8-aa", Some("gpu"), &labels).await;
    assert!(matches!(full, Err(Refusal::GroupFull(_))), "{full:?}");
    github.remove_runner(&place("acme"), jit.runner_id).await.unwrap();
    for (group, forbidden) in
        [("GitHub Actions", true), ("2", true), ("99999", false), ("other", false)]
    {
        let refusal = register(&github, "acme", Some(group)).await.unwrap_err();
        assert_eq!(matches!(refusal, Refusal::GroupForbidden(_)), forbidden, "{refusal:?}");
        assert_eq!(matches!(refusal, Refusal::GroupUnknown(_)), !forbidden, "{refusal:?}");
    }
}

#[tokio::test]
async fn jobs_are_read_also_with_nulls_and_missed_only_where_proved() {
    let (local, github) = world().await;
    let spec =
        JobSpec { workflow: None, head_branch: None, ..JobSpec::new("acme/widgets", &["gpu"]) };
    let id = i64::try_from(local.post_job(&spec).unwrap()).unwrap();
    let job = github.job(&repository("acme"), JobId(id)).await.unwrap().unwrap();
    assert_eq!(
        (job.status, job.runner_name, job.labels),
        (JobStatus::Queued, None, Labels::new(["gpu"]))
    );
    assert!(job.created.is_some());
    assert!(github.job(&repository("acme"), JobId(1)).await.unwrap().is_none());
    local.with_model(|model, _| model.delete_repository("acme/widgets"));
    assert!(github.job(&repository("acme"), JobId(id)).await.unwrap().is_none());
}

#[tokio::test]
async fn ra_16_a_new_installation_is_found() {
    let (local, github) = world().await;
    register(&github, "acme", None).await.unwrap();
    local.with_model(|model, _| model.reinstall("acme").unwrap());
    assert!(github.runner_named(&place("acme"), "widgets-7-aa").await.unwrap().is_some());
    local.with_model(|model, _| model.uninstall("acme"));
    assert!(github.runner_named(&place("acme"), "widgets-7-aa").await.is_err(), "no absence");
}
