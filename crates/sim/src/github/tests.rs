//! One test for each rule of the model.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const REPO: &str = "acme/app";

struct World {
    github: GitHub,
    now: Timestamp,
    org: Scope,
}

/// An organisation with a private repository.
fn world() -> World {
    world_with(Options::default(), 1)
}

fn world_with(options: Options, seed: u64) -> World {
    let mut github = GitHub::new(options, seed);
    github.add_owner("acme", OwnerKind::Organization);
    github.add_repository(REPO, true);
    let now = Timestamp::parse("2026-11-30T12:00:00Z").unwrap();
    World { github, now, org: Scope::Organization("acme".into()) }
}

fn labels(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|label| (*label).into()).collect()
}

impl World {
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.github.tick(self.now);
    }

    fn job(&mut self, of: &[&str]) -> u64 {
        self.github.post_job(self.now, &JobSpec::new(REPO, of)).unwrap()
    }

    fn jit(&mut self, name: &str, of: &[&str]) -> Result<Jit, ApiError> {
        self.github.generate_jit(self.now, &self.org, name, Some(1), &labels(of))
    }

    fn runner(&mut self, name: &str, of: &[&str]) -> SessionView {
        let jit = self.jit(name, of).unwrap();
        self.github.connect(self.now, &jit.encoded).unwrap()
    }

    fn poll(&mut self, session: &SessionView) -> Poll {
        self.github.poll_job(self.now, &session.id).unwrap()
    }

    fn status(&mut self, job: u64) -> Status {
        self.github.get_job(self.now, REPO, job).unwrap().status
    }

    fn view(&mut self, session: &SessionView) -> Result<RunnerView, ApiError> {
        self.github.get_runner(self.now, &self.org, session.runner_id)
    }

    fn delete(&mut self, session: &SessionView) -> Result<(), ApiError> {
        self.github.delete_runner(self.now, &self.org, session.runner_id)
    }

    /// Actions of the events since the last time.
    fn actions(&mut self) -> Vec<String> {
        self.github.take_events().into_iter().filter_map(|event| event.action).collect()
    }
}

fn refusal<T>(answer: Result<T, ApiError>) -> (u16, String) {
    let error = answer.err().unwrap();
    (error.status, error.message)
}

#[test]
fn a_job_runs_on_the_runner_that_covers_it_and_the_registration_goes_with_it() {
    let mut world = world();
    let job = world.job(&["self-hosted", "linux"]);
    let session = world.runner("app-1", &["self-hosted", "Linux", "x64"]);
    let Poll::Job(assignment) = world.poll(&session) else { panic!("no job") };
    assert_eq!((assignment.job_id, assignment.repository.as_str()), (job, REPO));
    assert!(world.view(&session).unwrap().busy);
    world.pass(MINUTE);
    world.github.complete(world.now, &session.id, job, "success").unwrap();
    let ended = world.github.get_job(world.now, REPO, job).unwrap();
    assert_eq!((ended.status, ended.conclusion.as_deref()), (Status::Completed, Some("success")));
    assert_eq!(ended.runner.unwrap().name, "app-1");
    assert_eq!(refusal(world.view(&session)).0, 404);
    assert_eq!(world.poll(&session), Poll::Gone);
    assert_eq!(world.actions(), ["queued", "in_progress", "completed"]);
}

#[test]
fn ids_of_jobs_and_runs_need_64_bits() {
    let mut world = world();
    let id = world.job(&["a"]);
    let job = world.github.get_job(world.now, REPO, id).unwrap();
    assert!(job.id > u64::from(u32::MAX) && job.run_id > u64::from(u32::MAX));
}

#[test]
fn the_payload_is_shaped_like_githubs() {
    let mut world = world();
    world.job(&["self-hosted"]);
    let event = world.github.take_events().remove(0);
    assert_eq!((event.event.as_str(), event.action.as_deref()), ("workflow_job", Some("queued")));
    assert_eq!(event.guid.len(), 36);
    let payload = event.payload;
    for (pointer, expected) in [
        ("/action", json!("queued")),
        ("/workflow_job/status", json!("queued")),
        ("/workflow_job/labels", json!(["self-hosted"])),
        ("/workflow_job/run_attempt", json!(1)),
        ("/workflow_job/runner_name", Value::Null),
        ("/workflow_job/created_at", json!("2026-11-30T12:00:00Z")),
        ("/workflow_job/completed_at", Value::Null),
        ("/repository/full_name", json!(REPO)),
        ("/repository/private", json!(true)),
        ("/repository/owner/login", json!("acme")),
        ("/repository/keys_url", json!("https://api.github.com/repos/acme/app/keys{/key_id}")),
        ("/organization/login", json!("acme")),
        ("/sender/type", json!("User")),
        ("/installation/id", json!(event.installation)),
    ] {
        assert_eq!(payload.pointer(pointer), Some(&expected), "{pointer}");
    }
    assert!(payload.get("deployment").is_none());
    // The payload example of octokit/webhooks has 36 sub-resources of a repository and 6 other addresses.
    let links = payload["repository"].as_object().unwrap().keys().filter(|k| k.ends_with("_url"));
    assert_eq!(links.count(), 42);
}

#[test]
fn wi_01_wi_02_an_unstarted_jobs_runner_is_null_or_zero_or_missing() {
    for (fields, expected) in [
        (RunnerFields::Null, Some(Value::Null)),
        (RunnerFields::Zero, Some(json!(0))),
        (RunnerFields::Missing, None),
    ] {
        let mut world = world_with(Options { runner_fields: fields, ..Options::default() }, 1);
        world.job(&["a"]);
        let payload = world.github.take_events().remove(0).payload;
        assert_eq!(payload.pointer("/workflow_job/runner_id"), expected.as_ref());
    }
}

#[test]
fn wi_05_a_plain_webhook_names_no_installation() {
    let options = Options { installation_in_payload: false, ..Options::default() };
    let mut world = world_with(options, 1);
    world.job(&["a"]);
    assert!(world.github.take_events()[0].payload.get("installation").is_none());
}

#[test]
fn a_repository_without_the_app_sends_nothing() {
    let mut world = world();
    world.github.repository_mut(REPO).unwrap().installed = false;
    world.job(&["a"]);
    assert!(world.actions().is_empty());
    assert_eq!(refusal(world.github.installation(REPO)).0, 404);
}

#[test]
fn do_01_a_gated_job_is_queued_then_waiting_then_queued_again() {
    let mut world = world();
    let mut spec = JobSpec::new(REPO, &["a"]);
    spec.environment = Some("production".into());
    let job = world.github.post_job(world.now, &spec).unwrap();
    let session = world.runner("r", &["a"]);
    assert_eq!(world.poll(&session), Poll::Idle, "a waiting job is not given out");
    let events = world.github.take_events();
    let actions: Vec<_> = events.iter().map(|event| event.action.as_deref().unwrap()).collect();
    assert_eq!(actions, ["queued", "waiting"]);
    let deployment = events[0].payload["deployment"]["id"].as_u64().unwrap();
    let states = |world: &mut World| -> Vec<&str> {
        let statuses = world.github.deployment_statuses(world.now, REPO, deployment).unwrap();
        statuses.into_iter().map(|(state, _)| state).collect()
    };
    assert_eq!(states(&mut world), ["waiting"]);
    world.pass(MINUTE);
    world.github.approve(world.now, job).unwrap();
    assert_eq!(states(&mut world), ["queued", "waiting"]);
    let again = world.github.take_events();
    assert_eq!(again[0].action.as_deref(), Some("queued"));
    assert_eq!(
        again[0].payload["workflow_job"]["created_at"],
        events[0].payload["workflow_job"]["created_at"],
        "the job keeps its time of making"
    );
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    assert_eq!(states(&mut world)[0], "in_progress");
    assert_eq!(refusal(world.github.approve(world.now, job)).0, 422);
    assert_eq!(refusal(world.github.deployment_statuses(world.now, REPO, 1)).0, 404);
}

#[test]
fn wi_20_a_skipped_job_is_only_completed() {
    let mut world = world();
    let spec = JobSpec { skipped: true, ..JobSpec::new(REPO, &["a"]) };
    world.github.post_job(world.now, &spec).unwrap();
    let events = world.github.take_events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].payload["workflow_job"]["conclusion"], "skipped");
    assert_eq!(events[0].payload["workflow_job"]["labels"], json!([]));
}

#[test]
fn wi_26_a_hosted_job_runs_on_a_runner_of_githubs() {
    let mut world = world();
    let spec = JobSpec { hosted: true, ..JobSpec::new(REPO, &["ubuntu-latest"]) };
    world.github.post_job(world.now, &spec).unwrap();
    let events = world.github.take_events();
    let job = &events[1].payload["workflow_job"];
    assert_eq!(job["status"], "in_progress");
    assert_eq!(job["runner_group_name"], "GitHub Actions");
    world.pass(MINUTE);
    assert_eq!(world.actions(), ["completed"]);
}

#[test]
fn wi_22_a_job_cancelled_before_it_starts_has_no_runner_and_no_steps() {
    let mut world = world();
    let job = world.job(&["a"]);
    world.github.cancel_job(world.now, job).unwrap();
    let events = world.github.take_events();
    let cancelled = &events[1].payload["workflow_job"];
    assert_eq!(cancelled["conclusion"], "cancelled");
    assert_eq!((&cancelled["steps"], &cancelled["runner_id"]), (&json!([]), &Value::Null));
    let session = world.runner("r", &["a"]);
    assert_eq!(world.poll(&session), Poll::Idle);
    assert_eq!(refusal(world.github.cancel_job(world.now, job)).0, 409);
}

#[test]
fn a_running_job_is_cancelled_by_its_runner_or_after_five_minutes() {
    let mut world = world();
    let jobs = [world.job(&["a"]), world.job(&["b"])];
    let sessions = [world.runner("ra", &["a"]), world.runner("rb", &["b"])];
    for (session, job) in sessions.iter().zip(jobs) {
        assert!(matches!(world.poll(session), Poll::Job(_)));
        world.github.cancel_job(world.now, job).unwrap();
        assert!(world.github.renew(world.now, &session.id).unwrap(), "it is told to stop");
    }
    world.github.complete(world.now, &sessions[0].id, jobs[0], "success").unwrap();
    world.pass(4 * MINUTE);
    assert_eq!(world.status(jobs[1]), Status::InProgress);
    world.pass(MINUTE);
    for job in jobs {
        let ended = world.github.get_job(world.now, REPO, job).unwrap();
        assert_eq!(ended.conclusion.as_deref(), Some("cancelled"));
    }
}

#[test]
fn do_05_a_rerun_of_failed_jobs_repeats_the_completed_events_of_the_good_ones() {
    let mut world = world();
    let jobs = world.github.post_matrix(world.now, &JobSpec::new(REPO, &["a"]), 3).unwrap();
    for (index, name) in ["r1", "r2", "r3"].into_iter().enumerate() {
        let session = world.runner(name, &["a"]);
        let Poll::Job(given) = world.poll(&session) else { panic!("no job") };
        let conclusion = if index == 0 { "failure" } else { "success" };
        world.github.complete(world.now, &session.id, given.job_id, conclusion).unwrap();
    }
    let run = world.github.get_job(world.now, REPO, jobs[0]).unwrap().run_id;
    world.github.take_events();
    let new = world.github.rerun_failed(world.now, REPO, run).unwrap();
    assert_eq!(new.len(), 1);
    assert!(!jobs.contains(&new[0]));
    let mut actions = world.actions();
    actions.sort();
    assert_eq!(actions, ["completed", "completed", "queued"]);
    let paging = Paging::new(None, None);
    let mut list = |attempt| world.github.list_jobs_of_run(world.now, REPO, run, attempt, paging);
    assert_eq!(list(Some(1)).unwrap().total, 3);
    let latest = list(None).unwrap().items;
    assert_eq!(latest.len(), 3);
    assert!(latest.iter().any(|job| job.id == new[0] && job.attempt == 2));
    assert_eq!(refusal(list(Some(3))).0, 404);
    let again = refusal(world.github.rerun_failed(world.now, REPO, run));
    assert_eq!(again.0, 403, "not while it runs");
}

#[test]
fn a_job_is_run_again_alone_once_its_run_is_over_and_only_in_the_latest_attempt() {
    let mut world = world();
    let jobs = world.github.post_matrix(world.now, &JobSpec::new(REPO, &["a"]), 2).unwrap();
    let fail = |world: &mut World, name: &str| {
        let session = world.runner(name, &["a"]);
        let Poll::Job(given) = world.poll(&session) else { panic!("no job") };
        world.github.complete(world.now, &session.id, given.job_id, "failure").unwrap();
    };
    fail(&mut world, "r1");
    let refused = |world: &mut World, job: u64| {
        let (status, words) = refusal(world.github.rerun_job(world.now, REPO, job));
        assert_eq!(status, 403);
        words
    };
    let running = "The workflow run containing this job is already running";
    assert_eq!(refused(&mut world, jobs[0]), running);
    fail(&mut world, "r2");
    world.github.take_events();
    let new = world.github.rerun_job(world.now, REPO, jobs[0]).unwrap();
    assert_eq!(new.len(), 1);
    let again = world.github.get_job(world.now, REPO, new[0]).unwrap();
    assert_eq!((again.attempt, again.status), (2, Status::Queued));
    let mut actions = world.actions();
    actions.sort();
    assert_eq!(actions, ["completed", "queued"]);
    fail(&mut world, "r3");
    for past in &jobs {
        let words = refused(&mut world, *past);
        assert_eq!(words, "Only jobs from the current attempt can be re-run");
    }
    world.now = world.now + Duration::from_secs(31 * 86_400);
    assert_eq!(refused(&mut world, new[0]), "This workflow run cannot be retried");
    assert_eq!(refusal(world.github.rerun_job(world.now, REPO, 1)).0, 404);
}

#[test]
fn runs_are_listed_by_the_status_of_their_jobs() {
    let mut world = world();
    let job = world.job(&["a"]);
    let other = world.job(&["b"]);
    world.github.cancel_job(world.now, other).unwrap();
    let run = world.github.get_job(world.now, REPO, job).unwrap().run_id;
    let paging = Paging::new(None, None);
    let queued = world.github.list_runs(world.now, REPO, Some("queued"), paging).unwrap();
    assert_eq!(queued.items.iter().map(|run| run.id).collect::<Vec<_>>(), [run]);
    assert_eq!(world.github.list_runs(world.now, REPO, None, paging).unwrap().total, 2);
    world.github.cancel_run(world.now, REPO, run).unwrap();
    assert_eq!(refusal(world.github.cancel_run(world.now, REPO, run)).0, 409);
    world.github.delete_run(run);
    assert_eq!(refusal(world.github.get_job(world.now, REPO, job)).0, 404);
    assert!(world.github.repository(REPO).is_ok());
}

#[test]
fn ol_22_a_registration_is_refused_in_githubs_order_and_words() {
    let mut world = world();
    world.jit("taken", &["a"]).unwrap();
    let many: Vec<String> = (0..101).map(|n| format!("l{n}")).collect();
    let one = labels(&["a"]);
    let (org, now) = (world.org.clone(), world.now);
    let user = Scope::Organization("someone".into());
    let repo = Scope::Repository(REPO.into());
    world.github.add_owner("someone", OwnerKind::User);
    let long = "x".repeat(65);
    type Case<'a> = (&'a Scope, &'a str, Option<u64>, &'a [String], u16, &'a str);
    let cases: [Case; 11] = [
        (&org, "n", None, &one, 422, "object is missing required key: runner_group_id"),
        (&org, "", Some(1), &one, 422, "/name"),
        (&org, &long, Some(1), &one, 422, "/name"),
        (&org, "n", Some(1), &[], 422, "/labels"),
        (&org, "n", Some(1), &many, 422, "/labels"),
        (&org, "n", Some(2), &one, 403, "Resource not accessible by integration"),
        (&org, "n", Some(99_999), &one, 404, "Not Found"),
        (&org, "taken", Some(1), &one, 409, "A runner with the name taken already exists."),
        (&user, "n", Some(1), &one, 404, "Not Found"),
        (&repo, "n", Some(3), &one, 404, "Not Found"),
        (&Scope::Repository("acme/none".into()), "n", Some(1), &one, 404, "Not Found"),
    ];
    for (scope, name, group, labels, status, words) in cases {
        let error = world.github.generate_jit(now, scope, name, group, labels).err().unwrap();
        assert_eq!(error.status, status, "{words}");
        assert!(error.message.contains(words), "{}", error.message);
    }
    let elsewhere = world.github.generate_jit(now, &repo, "taken", Some(1), &one);
    assert!(elsewhere.is_ok(), "a name is taken within its scope only");
}

#[test]
fn ol_18_a_full_group_is_422_until_room_is_made() {
    let mut world = world_with(Options { group_limit: 2, ..Options::default() }, 1);
    let first = world.runner("r1", &["a"]);
    world.jit("r2", &["a"]).unwrap();
    let (status, message) = refusal(world.jit("r3", &["a"]));
    assert_eq!(status, 422);
    assert_eq!(message, "Invalid Argument - Runner group 1 has reached max limit of 2 runners.");
    let other = world.github.add_group("acme", "big", Visibility::All, true).unwrap();
    assert_eq!(other, 3);
    let there = world.github.generate_jit(world.now, &world.org, "r3", Some(3), &labels(&["a"]));
    assert!(there.is_ok());
    world.delete(&first).unwrap();
    world.jit("r4", &["a"]).unwrap();
}

#[test]
fn ol_14_a_jit_configuration_has_the_size_asked_for_and_works() {
    for size in [2_000, 4_600, 8_192] {
        let mut world = world_with(Options { jit_bytes: size, ..Options::default() }, 1);
        let jit = world.jit("r", &["a"]).unwrap();
        assert!(jit.encoded.len() >= size, "{} < {size}", jit.encoded.len());
        assert!(!jit.runner.online && !jit.runner.busy);
        assert!(world.github.connect(world.now, &jit.encoded).is_ok());
    }
}

#[test]
fn rr_14_a_second_process_with_the_same_identity_is_refused() {
    let mut world = world();
    let jit = world.jit("r", &["a"]).unwrap();
    let first = world.github.connect(world.now, &jit.encoded).unwrap();
    assert_eq!(refusal(world.github.connect(world.now, &jit.encoded)).0, 409);
    world.github.disconnect(world.now, &first.id);
    assert!(world.github.connect(world.now, &jit.encoded).is_ok());
}

#[test]
fn a_configuration_of_a_removed_or_forged_registration_does_not_connect() {
    let mut world = world();
    let jit = world.jit("r", &["a"]).unwrap();
    assert_eq!(refusal(world.github.connect(world.now, "e30=")).0, 401);
    let mut other = world_with(Options::default(), 2);
    let forged = other.jit("r", &["a"]).unwrap();
    assert_eq!(refusal(world.github.connect(world.now, &forged.encoded)).0, 401);
    world.github.drop_registration(jit.runner.id);
    assert_eq!(refusal(world.github.connect(world.now, &jit.encoded)).0, 404);
}

#[test]
fn rr_07_an_old_runner_is_refused_and_its_registration_stays() {
    let mut world = world_with(Options { runner_deprecated: true, ..Options::default() }, 1);
    let jit = world.jit("r", &["a"]).unwrap();
    let (status, message) = refusal(world.github.connect(world.now, &jit.encoded));
    assert_eq!(status, 403);
    assert!(message.contains("deprecated and cannot receive messages"));
    assert_eq!(world.github.registrations(), [jit.runner]);
}

#[test]
fn a_runner_is_online_from_its_session_until_that_ends() {
    let options = Options { offline_after: Some(2 * MINUTE), ..Options::default() };
    let mut world = world_with(options, 1);
    let session = world.runner("r", &["a"]);
    assert!(world.view(&session).unwrap().online);
    world.pass(2 * MINUTE);
    assert_eq!(world.poll(&session), Poll::Idle, "a call is a sign of life");
    world.pass(2 * MINUTE);
    assert!(world.view(&session).unwrap().online);
    world.pass(Duration::from_secs(1));
    assert!(!world.view(&session).unwrap().online);
    let job = world.job(&["a"]);
    world.pass(MINUTE);
    assert_eq!(world.status(job), Status::Queued, "offline runners get nothing");
    assert!(matches!(world.poll(&session), Poll::Job(_)), "it is back");
}

#[test]
fn a_lost_runners_job_fails_ten_minutes_later_and_its_registration_stays() {
    let mut world = world();
    let job = world.job(&["a"]);
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    world.github.disconnect(world.now, &session.id);
    let view = world.view(&session).unwrap();
    assert_eq!((view.online, view.busy), (false, true), "SP-04: the dead one is still busy");
    assert_eq!(refusal(world.delete(&session)).0, 422);
    world.pass(9 * MINUTE);
    assert_eq!(world.status(job), Status::InProgress);
    world.pass(MINUTE);
    let ended = world.github.get_job(world.now, REPO, job).unwrap();
    assert_eq!(ended.conclusion.as_deref(), Some("failure"));
    assert!(!world.view(&session).unwrap().busy);
    world.delete(&session).unwrap();
}

#[test]
fn a_job_that_its_runner_had_not_fetched_goes_back_to_the_queue() {
    let mut world = world();
    let job = world.job(&["a"]);
    let dead = world.runner("dead", &["a"]);
    world.pass(MINUTE);
    assert!(world.view(&dead).unwrap().busy, "given to it");
    assert_eq!(world.status(job), Status::Queued);
    world.github.disconnect(world.now, &dead.id);
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(given) if given.job_id == job));
}

#[test]
fn a_runner_that_does_not_renew_is_held_to_be_alive_for_its_jobs_duration() {
    let options = Options { offline_after: Some(MINUTE), ..Options::default() };
    let mut world = world_with(options, 1);
    let spec = JobSpec { duration: 60 * MINUTE, ..JobSpec::new(REPO, &["a"]) };
    let job = world.github.post_job(world.now, &spec).unwrap();
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    world.pass(60 * MINUTE);
    assert!(world.view(&session).unwrap().online);
    world.github.renew(world.now, &session.id).unwrap();
    world.pass(9 * MINUTE);
    assert_eq!(world.status(job), Status::InProgress);
    world.pass(MINUTE);
    assert_eq!(world.status(job), Status::Completed, "once it has renewed, silence counts");
}

#[test]
fn bf_02_busy_lags_behind_the_job_and_delete_believes_it() {
    let mut world = world_with(Options { busy_lag: MINUTE, ..Options::default() }, 1);
    let job = world.job(&["a"]);
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    assert!(!world.view(&session).unwrap().busy);
    world.pass(MINUTE);
    assert!(world.view(&session).unwrap().busy);
    world.github.lie_about_busy(session.runner_id, false, world.now + MINUTE);
    world.delete(&session).unwrap();
    assert_eq!(world.poll(&session), Poll::Idle, "the job goes on");
    world.github.complete(world.now, &session.id, job, "success").unwrap();
    assert_eq!(world.poll(&session), Poll::Gone);
}

#[test]
fn bf_04_the_flag_can_lie_either_way_for_a_time() {
    let mut world = world();
    let session = world.runner("r", &["a"]);
    world.github.lie_about_busy(session.runner_id, true, world.now + 5 * MINUTE);
    let (status, message) = refusal(world.delete(&session));
    assert_eq!(status, 422);
    assert_eq!(
        message,
        "Bad request - Runner \"r\" is currently running a job and cannot be deleted."
    );
    world.pass(5 * MINUTE);
    world.delete(&session).unwrap();
    assert_eq!(refusal(world.delete(&session)).0, 404);
}

#[test]
fn a_job_that_lands_on_a_runner_just_being_deleted_is_not_lost() {
    let mut world = world_with(Options { busy_lag: MINUTE, ..Options::default() }, 1);
    let session = world.runner("r", &["a"]);
    let job = world.job(&["a"]);
    world.github.tick(world.now);
    world.delete(&session).unwrap();
    assert_eq!(world.poll(&session), Poll::Gone);
    let next = world.runner("r2", &["a"]);
    assert!(matches!(world.poll(&next), Poll::Job(given) if given.job_id == job));
}

#[test]
fn rr_06_an_unused_registration_can_vanish() {
    let options = Options { unused_registration_life: Some(6 * MINUTE), ..Options::default() };
    let mut world = world_with(options, 1);
    let idle = world.runner("idle", &["b"]);
    let busy = world.runner("busy", &["a"]);
    world.job(&["a"]);
    assert!(matches!(world.poll(&busy), Poll::Job(_)));
    world.pass(6 * MINUTE);
    assert_eq!(world.poll(&idle), Poll::Gone);
    assert_eq!(refusal(world.view(&idle)).0, 404);
    assert!(world.view(&busy).unwrap().busy);
}

#[test]
fn an_offline_ephemeral_registration_is_removed_after_a_day() {
    let mut world = world();
    let jit = world.jit("never-came", &["a"]).unwrap();
    world.pass(24 * 60 * MINUTE - Duration::from_secs(1));
    assert_eq!(world.github.registrations().len(), 1);
    world.pass(Duration::from_secs(1));
    assert!(world.github.registrations().is_empty());
    assert_eq!(refusal(world.github.connect(world.now, &jit.encoded)).0, 404);
}

#[test]
fn a_finished_ephemeral_registration_can_linger_busy() {
    let options = Options { ephemeral_linger: MINUTE, ..Options::default() };
    let mut world = world_with(options, 1);
    let job = world.job(&["a"]);
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    world.github.complete(world.now, &session.id, job, "success").unwrap();
    assert_eq!(refusal(world.delete(&session)).0, 422);
    assert_eq!(world.poll(&session), Poll::Gone);
    world.pass(MINUTE);
    assert_eq!(refusal(world.delete(&session)).0, 404);
}

#[test]
fn rr_01_a_runner_can_lose_its_job_at_the_last_moment_and_listen_for_ever() {
    let mut world = world();
    let job = world.job(&["a"]);
    let session = world.runner("r", &["a"]);
    world.github.lose_acquires(1);
    assert_eq!(world.poll(&session), Poll::Idle);
    assert_eq!(refusal(world.view(&session)).0, 404);
    world.pass(MINUTE);
    assert_eq!(world.poll(&session), Poll::Idle);
    assert_eq!(world.status(job), Status::Queued);
    let next = world.runner("r2", &["a"]);
    assert!(matches!(world.poll(&next), Poll::Job(_)));
}

#[test]
fn a_job_that_is_not_fetched_for_a_day_is_cancelled() {
    let mut world = world();
    let job = world.job(&["a"]);
    world.pass(24 * 60 * MINUTE);
    let ended = world.github.get_job(world.now, REPO, job).unwrap();
    assert_eq!(ended.conclusion.as_deref(), Some("cancelled"));
}

#[test]
fn st_11_a_group_serves_only_the_repositories_that_it_admits() {
    let mut world = world();
    world.github.add_repository("acme/public", false);
    let selected = Visibility::Selected(BTreeSet::from(["app".to_owned()]));
    let group = world.github.add_group("acme", "app-only", selected, false).unwrap();
    let public = world.github.post_job(world.now, &JobSpec::new("acme/public", &["a"])).unwrap();
    let jit = world
        .github
        .generate_jit(world.now, &world.org, "r", Some(group), &labels(&["a"]))
        .unwrap();
    let session = world.github.connect(world.now, &jit.encoded).unwrap();
    assert_eq!(world.poll(&session), Poll::Idle);
    let other = world.github.add_group("acme", "all-private", Visibility::All, false).unwrap();
    let jit = world
        .github
        .generate_jit(world.now, &world.org, "r2", Some(other), &labels(&["a"]))
        .unwrap();
    let private_only = world.github.connect(world.now, &jit.encoded).unwrap();
    assert_eq!(world.poll(&private_only), Poll::Idle);
    world.github.disconnect(world.now, &private_only.id);
    let default = world.runner("r3", &["a"]);
    assert!(matches!(world.poll(&default), Poll::Job(given) if given.job_id == public));
    let job = world.job(&["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(given) if given.job_id == job));
}

#[test]
fn a_repositorys_runner_serves_only_that_repository() {
    let mut world = world();
    world.github.add_repository("acme/other", true);
    world.github.post_job(world.now, &JobSpec::new("acme/other", &["a"])).unwrap();
    let scope = Scope::Repository("Acme/App".into());
    let jit = world.github.generate_jit(world.now, &scope, "r", Some(1), &labels(&["a"])).unwrap();
    let session = world.github.connect(world.now, &jit.encoded).unwrap();
    assert_eq!(world.poll(&session), Poll::Idle);
    let job = world.job(&["A"]);
    assert!(matches!(world.poll(&session), Poll::Job(given) if given.job_id == job));
    let elsewhere = world.github.get_runner(world.now, &world.org, session.runner_id);
    assert_eq!(refusal(elsewhere).0, 404, "it is not the organisation's");
}

#[test]
fn a_repeated_poll_does_not_give_a_second_job() {
    let mut world = world();
    world.job(&["a"]);
    world.job(&["a"]);
    let session = world.runner("r", &["a"]);
    assert!(matches!(world.poll(&session), Poll::Job(_)));
    assert_eq!(world.poll(&session), Poll::Idle);
    let other = world.github.complete(world.now, &session.id, 1, "success");
    assert_eq!(refusal(other).0, 409);
    assert_eq!(refusal(world.github.poll_job(world.now, "nobody").map(drop)).0, 404);
}

#[test]
fn listings_are_paged_filtered_and_can_be_stale() {
    let mut world = world();
    for n in 0..105 {
        world.jit(&format!("r{n:03}"), &["a"]).unwrap();
    }
    let (org, now) = (world.org.clone(), world.now);
    let mut list = |page, per_page, name: Option<&str>| {
        world.github.list_runners(now, &org, Paging::new(page, per_page), name).unwrap()
    };
    assert_eq!((list(None, None, None).items.len(), list(None, None, None).total), (30, 105));
    assert_eq!(list(Some(2), Some(1_000), None).items.len(), 5, "at most 100 a page");
    assert_eq!(list(Some(9), None, None).items.len(), 0);
    let named = list(None, None, Some("r007"));
    assert_eq!((named.total, named.items[0].name.as_str()), (1, "r007"));
    let id = named.items[0].id;

    world.github.hide_from_listings(id, world.now + MINUTE);
    let total = |world: &mut World, name: &str| {
        let paging = Paging::new(None, None);
        world.github.list_runners(world.now, &world.org, paging, Some(name)).unwrap().total
    };
    assert_eq!(total(&mut world, "r007"), 0, "BF-07: left out, though it exists");
    assert!(world.github.get_runner(world.now, &world.org, id).is_ok());
    world.pass(MINUTE);
    assert_eq!(total(&mut world, "r007"), 1);

    world.github.options_mut().list_staleness = MINUTE;
    world.pass(MINUTE);
    assert_eq!(total(&mut world, "r007"), 1);
    world.github.delete_runner(world.now, &world.org, id).unwrap();
    assert_eq!(total(&mut world, "r007"), 1, "JP-11: an old listing");
    world.pass(MINUTE);
    assert_eq!(total(&mut world, "r007"), 0);
    world.github.options_mut().ignores_name_filter = true;
    assert_eq!(total(&mut world, "r007"), 104);
}

#[test]
fn groups_are_listed_for_organisations_only() {
    let mut world = world();
    world.github.add_owner("someone", OwnerKind::User);
    let groups = world.github.list_groups("ACME", Paging::new(None, None)).unwrap();
    let names: Vec<_> = groups.items.iter().map(|group| (group.id, group.name.as_str())).collect();
    assert_eq!(names, [(1, "Default"), (2, "GitHub Actions")]);
    assert_eq!(refusal(world.github.list_groups("someone", Paging::new(None, None))).0, 404);
}

#[test]
fn ra_04_a_token_ends_after_an_hour() {
    let mut world = world();
    let installation = world.github.installation(REPO).unwrap();
    let token = world.github.mint_token(world.now, installation, None).unwrap();
    let caller = Caller::Installation(installation);
    world.pass(60 * MINUTE - Duration::from_secs(1));
    assert_eq!(world.github.authenticate(world.now, &token.token), Ok(caller));
    world.pass(Duration::from_secs(1));
    let refused = refusal(world.github.authenticate(world.now, &token.token));
    assert_eq!(refused, (401, "Bad credentials".into()));
    assert_eq!(refusal(world.github.mint_token(world.now, 1, None).map(drop)).0, 404);
}

#[test]
fn ra_16_ra_17_a_token_sees_its_installation_and_its_own_list_only() {
    let mut world = world();
    world.github.add_repository("acme/other", true);
    world.github.add_repository("rival/app", true);
    let installation = world.github.installation(REPO).unwrap();
    let caller = Caller::Installation(installation);
    assert!(world.github.sees_repository(&caller, "Acme/App").is_ok());
    assert_eq!(refusal(world.github.sees_repository(&caller, "rival/app")).0, 404);
    assert_eq!(refusal(world.github.sees_owner(&caller, "rival")).0, 404);
    assert!(world.github.sees_owner(&Caller::Personal, "rival").is_ok());
    let only = [String::from("app")];
    let token = world.github.mint_token(world.now, installation, Some(&only)).unwrap().token;
    assert!(world.github.token_sees(&token, REPO).is_ok());
    assert_eq!(refusal(world.github.token_sees(&token, "acme/other")).0, 404);
    let none = [String::from("none")];
    let unknown = world.github.mint_token(world.now, installation, Some(&none)).map(drop);
    assert_eq!(refusal(unknown).0, 422);
    let new = world.github.reinstall("acme").unwrap();
    assert_ne!(new, installation);
    assert_eq!(refusal(world.github.authenticate(world.now, &token)).0, 401);
    assert_eq!(world.github.owner_installation("acme"), Ok(new));
}

#[test]
fn ra_01_an_exhausted_installation_is_refused_until_its_window_ends() {
    for status in [403, 429] {
        let limits = RateLimits { primary_per_hour: 2, status, ..RateLimits::default() };
        let mut world = world_with(Options { rate_limits: Some(limits), ..Options::default() }, 1);
        let caller = Caller::Installation(world.github.installation(REPO).unwrap());
        let admit = |world: &mut World, template: &str| {
            world.github.admit(world.now, &caller, "GET", template)
        };
        let headers = admit(&mut world, endpoint::JOB).unwrap().headers;
        assert!(headers.contains(&("x-ratelimit-remaining".into(), "1".into())));
        admit(&mut world, endpoint::JOB).unwrap();
        let refused = admit(&mut world, endpoint::JOB).unwrap_err();
        assert_eq!(refused.status, status);
        assert!(refused.message.starts_with("API rate limit exceeded for installation ID"));
        let reset = (world.now + 60 * MINUTE).seconds().to_string();
        assert!(refused.headers.contains(&("x-ratelimit-reset".into(), reset)));
        assert!(admit(&mut world, endpoint::ORG_JIT).is_ok(), "registrations count apart");
        world.pass(60 * MINUTE);
        assert!(admit(&mut world, endpoint::JOB).is_ok());
    }
}

#[test]
fn ra_02_ra_08_the_secondary_limit_counts_points_and_may_not_say_for_how_long() {
    for tells_retry_after in [true, false] {
        let limits = RateLimits { tells_retry_after, ..RateLimits::default() };
        let mut world = world_with(Options { rate_limits: Some(limits), ..Options::default() }, 1);
        let caller = Caller::Installation(world.github.installation(REPO).unwrap());
        let mut admitted = 0;
        let refused = loop {
            match world.github.admit(world.now, &caller, "POST", endpoint::ORG_JIT) {
                Ok(_) => admitted += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(admitted, 180, "900 points at 5 each");
        assert_eq!(refused.headers.iter().any(|(n, _)| n == "retry-after"), tells_retry_after);
        assert!(refused.message.starts_with("You have exceeded a secondary rate limit."));
        assert!(world.github.admit(world.now, &caller, "GET", endpoint::JOB).is_ok());
        world.pass(MINUTE);
        assert!(world.github.admit(world.now, &caller, "POST", endpoint::ORG_JIT).is_ok());
    }
}

#[test]
fn gh_07_without_limits_there_are_no_headers() {
    let mut world = world_with(Options { rate_limits: None, ..Options::default() }, 1);
    let admission = world.github.admit(world.now, &Caller::App, "GET", endpoint::APP).unwrap();
    assert_eq!(admission, Admission::default());
    assert_eq!(world.github.quota(&Caller::App, "core"), None);
}

#[test]
fn faults_strike_by_template_as_often_as_asked() {
    let mut world = world();
    let rule = |fault| FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times: 1,
        fault,
    };
    world.github.add_fault(rule(Fault::Refuse(ApiError::new(502, "Server Error"))));
    world.github.add_fault(rule(Fault::Lost(0)));
    let caller = Caller::Installation(world.github.installation(REPO).unwrap());
    let mut register = |name: &str| {
        let (now, org) = (world.now, world.org.clone());
        let call = |github: &mut GitHub| {
            github.generate_jit(now, &org, name, Some(1), &labels(&["a"])).map(drop)
        };
        world.github.call(now, &caller, "POST", endpoint::ORG_JIT, call)
    };
    assert_eq!(register("r"), Err(CallError::Api(ApiError::new(502, "Server Error"))));
    assert_eq!(register("r"), Err(CallError::Lost(0)));
    assert!(
        matches!(register("r"), Err(CallError::Api(error)) if error.status == 409),
        "OL-17: the lost one was done"
    );
    let key = "POST /orgs/{org}/actions/runners/generate-jitconfig";
    assert_eq!(world.github.calls().get(key), Some(&3));
}

#[test]
fn equal_seeds_give_equal_worlds() {
    let play = |seed| {
        let mut world = world_with(Options::default(), seed);
        let jobs = world.github.post_matrix(world.now, &JobSpec::new(REPO, &["a"]), 20).unwrap();
        let sessions: Vec<_> = (0..20).map(|n| world.runner(&format!("r{n}"), &["a"])).collect();
        let given: Vec<u64> = sessions
            .iter()
            .map(|session| match world.poll(session) {
                Poll::Job(given) => given.job_id - jobs[0],
                other => panic!("{other:?}"),
            })
            .collect();
        given
    };
    assert_eq!(play(7), play(7));
    assert_ne!(play(7), play(8));
}

const LABELS: [&str; 4] = ["self-hosted", "Linux", "gpu", "ARM64"];

fn some_labels() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(LABELS.to_vec(), 1..=LABELS.len())
}

proptest! {
    /// ST-10: a just-in-time configuration pins no job. Whoever gets one was online, idle and covered it;
    /// nothing that fits is left over.
    #[test]
    fn st_10_jobs_go_to_covering_idle_online_runners_and_to_no_others(
        seed: u64,
        jobs in proptest::collection::vec(some_labels(), 1..12),
        runners in proptest::collection::vec((some_labels(), any::<bool>()), 1..12),
    ) {
        let mut world = world_with(Options::default(), seed);
        let posted: Vec<u64> = jobs
            .iter()
            .map(|wanted| {
                let lower: Vec<String> = wanted.iter().map(|label| label.to_lowercase()).collect();
                let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
                world.job(&lower)
            })
            .collect();
        let mut online = Vec::new();
        for (index, (of, connects)) in runners.iter().enumerate() {
            let jit = world.jit(&format!("r{index}"), of).unwrap();
            if *connects {
                online.push((world.github.connect(world.now, &jit.encoded).unwrap(), of));
            }
        }
        let mut given = BTreeSet::new();
        let mut idle = Vec::new();
        for (session, of) in &online {
            match world.poll(session) {
                Poll::Job(job) => {
                    let index = posted.iter().position(|id| *id == job.job_id).unwrap();
                    prop_assert!(given.insert(index), "given twice");
                    prop_assert!(jobs[index].iter().all(|label| of.contains(label)));
                }
                _ => idle.push(of),
            }
            prop_assert!(!matches!(world.poll(session), Poll::Job(_)), "busy");
        }
        for (index, wanted) in jobs.iter().enumerate().filter(|(index, _)| !given.contains(index)) {
            prop_assert_eq!(world.status(posted[index]), Status::Queued);
            prop_assert!(
                !idle.iter().any(|of| wanted.iter().all(|label| of.contains(label))),
                "job {} waits though an idle runner covers it", index
            );
        }
    }
}

#[test]
fn st_10_every_covering_runner_gets_a_given_job_sometimes() {
    let mut takers = BTreeSet::new();
    for seed in 0..200 {
        let mut world = world_with(Options::default(), seed);
        world.job(&["a"]);
        let sessions: Vec<_> = (0..5).map(|n| world.runner(&format!("r{n}"), &["a"])).collect();
        let taker = sessions.iter().position(|session| matches!(world.poll(session), Poll::Job(_)));
        takers.insert(taker.unwrap());
    }
    assert_eq!(takers.len(), 5);
}
