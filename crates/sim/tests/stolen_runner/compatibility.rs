//! What cdk-github-runners 0.17 writes: executions named after a delivery, inputs without `queuedAt`, reports without
//! labels, lines in their runner's own group, and items of the table with `jobUrl`, `runnerLabels` and `ttl` alone.
//! (`crates/aws` reads the items and executions themselves, in the same words.)

use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::labels::Labels;
use ostler_core::ports::{JobRecord, Ran, RunnerRecord};
use ostler_core::stolen::report_in;
use ostler_sim::github::JobSpec;
use ostler_sim::world::{Execution, REPOSITORY};
use serde_json::{Value, json};

use crate::scene::{Mine, OTHER, Scene};

/// Their items live three days.
const ITEM_LIFE: Duration = Duration::from_secs(3 * 86_400);

/// A runner of theirs for that job, with what it registers: `self-hosted` is implied and not written down. The input,
/// key by key as theirs, is what the execution holds; the item is what the table does.
fn theirs(scene: &Scene, job: u64, labels: &str) -> Mine {
    let mut state = scene.world.state();
    let guid = format!("5f2a77c0-ce5b-11f0-8d6b-{:012x}", state.executions.len());
    let runner = format!("widgets-{guid}");
    let wanted = state.github.all_jobs().find(|found| found.id == job).unwrap().labels.join(",");
    let input = json!({
        "owner": "acme",
        "repo": "widgets",
        "jobId": job,
        "jobUrl": format!("https://github.com/acme/widgets/actions/runs/1/job/{job}"),
        "installationId": -1,
        "jobLabels": wanted,
        "provider": "Stack/Runners/Ec2",
        "labels": labels,
        "maxIdleSeconds": 300
    });
    let (name, now) = (runner.clone(), state.now);
    state.executions.insert(name.clone(), Execution::begun(&name, input, now));
    let item =
        JobRecord { runner_labels: Some(Labels::from_joined(labels)), ..JobRecord::default() };
    let id = JobId(i64::try_from(job).unwrap());
    state.ledger.jobs.insert(id, (item, now + ITEM_LIFE));
    Mine { job, runner }
}

/// GitHub gives that job to their runner, which has `self-hosted` and one label more.
fn takes(scene: &Scene, mine: &Mine, job: u64) -> String {
    let key = |input: &mut Value, labels: String| input["labels"] = json!(labels);
    let labels = scene.world.state().executions[&mine.runner].input["labels"].clone();
    let all = format!("self-hosted,gpu,{}", labels.as_str().unwrap());
    key(&mut scene.world.state().executions.get_mut(&mine.runner).unwrap().input, all);
    let session = scene.online(&mine.runner);
    let kept = labels.as_str().unwrap().to_owned();
    key(&mut scene.world.state().executions.get_mut(&mine.runner).unwrap().input, kept);
    scene.give(&session, job);
    session
}

/// Their message, in the runner's group; a line's has no job.
fn message(scene: &Scene, runner: &str, job: u64, signed: bool, receives: u32) -> Value {
    let mut body = json!({"kind": "report", "runnerName": runner, "repo": scene.repository_of(job),
        "workflowId": scene.run_of(job)});
    if signed {
        body["jobId"] = json!(job);
    }
    json!({"messageId": format!("{runner} {signed}"), "body": body.to_string(),
        "attributes": {"ApproximateReceiveCount": receives.to_string(), "MessageGroupId": runner}})
}

/// Has it judged. How many come again.
fn judge(scene: &Scene, records: &[Value]) -> usize {
    let answer = scene.handle(&json!({ "Records": records })).unwrap();
    answer["batchItemFailures"].as_array().unwrap().len()
}

fn input(scene: &Scene, runner: &str) -> Value {
    scene.world.state().executions[runner].input.clone()
}

#[test]
fn their_runner_with_its_own_job_is_accounted_for() {
    let scene = Scene::new();
    let mine = theirs(&scene, scene.post(&Scene::small()), "small,linux,x64");
    takes(&scene, &mine, mine.job);
    assert_eq!(judge(&scene, &[message(&scene, &mine.runner, mine.job, true, 1)]), 0);
    assert!(
        matches!(scene.ran(&mine.runner), Ran::Job { id, .. } if id.0 == i64::try_from(mine.job).unwrap())
    );
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn their_lines_are_judged_in_their_groups() {
    let scene = Scene::new();
    let mine = theirs(&scene, scene.post(&Scene::small()), "small,linux,x64");
    takes(&scene, &mine, mine.job);
    // The line and the webhook's word are in one group, in whichever order they came.
    let line = message(&scene, &mine.runner, mine.job, false, 1);
    let signed = message(&scene, &mine.runner, mine.job, true, 1);
    assert_eq!(judge(&scene, &[line, signed]), 0);
    assert_eq!(scene.world.count("stolen-runner", "Forge.run_jobs"), 1);
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn s3_their_line_is_read_to_the_letter() {
    let text = "CDKGHR JOB RUNNER=widgets-5f2a77c0-ce5b-11f0-8d6b-000000000001 REPO=acme/widgets WORKFLOW_ID=19816733101";
    let report = report_in(text).unwrap();
    assert_eq!(
        (report.runner_name.len(), report.repo.as_str(), report.workflow_id),
        (44, "acme/widgets", 19_816_733_101)
    );
}

#[test]
fn s14_a_shuffle_among_theirs_starts_nothing() {
    let scene = Scene::new();
    let a = theirs(&scene, scene.post(&Scene::small()), "small,linux,x64");
    let b = theirs(&scene, scene.post(&Scene::small()), "Small,linux,x64");
    takes(&scene, &a, b.job);
    scene.world.pass(Duration::from_secs(600));
    for signed in [true, false] {
        assert_eq!(judge(&scene, &[message(&scene, &a.runner, b.job, signed, 1)]), 0);
    }
    assert!(scene.replacements(&[&a, &b]).is_empty());
    assert!(scene.detected("true") < 0.1);
}

#[test]
fn s14_s16_a_shuffle_without_cover_starts_one_with_the_same_input() {
    let scene = Scene::new();
    let a = theirs(&scene, scene.post(&Scene::large()), "small,large");
    let b = theirs(&scene, scene.post(&Scene::small()), "small");
    takes(&scene, &a, b.job);
    assert_eq!(judge(&scene, &[message(&scene, &a.runner, b.job, true, 1)]), 0);
    // Under the name that we give to that job's runners.
    let replacement = format!("{}-r1", scene.world.base_name(REPOSITORY, a.job));
    assert_eq!(scene.replacements(&[&a, &b]), std::slice::from_ref(&replacement));
    assert_eq!(input(&scene, &replacement), input(&scene, &a.runner), "key by key");
}

#[test]
fn s15_theirs_are_replaced_three_times_at_most() {
    let scene = Scene::new();
    let mine = theirs(&scene, scene.post(&Scene::small()), "small");
    let mut runner = mine.runner.clone();
    for attempt in 1..=4 {
        scene.world.pass(Duration::from_secs(60));
        let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
        takes(&scene, &Mine { job: mine.job, runner: runner.clone() }, thief);
        assert_eq!(judge(&scene, &[message(&scene, &runner, thief, true, 1)]), 0);
        let next = format!("{}-r{attempt}", scene.world.base_name(REPOSITORY, mine.job));
        let there = scene.world.state().executions.contains_key(&next);
        assert_eq!(there, attempt <= 3, "{next}");
        if there {
            scene.record(&next);
            runner = next;
        }
    }
    assert_eq!((scene.detected("true"), scene.detected("false")), (3.0, 1.0));
}

#[test]
fn s12_a_strange_job_on_theirs_is_found_by_the_line_alone() {
    let scene = Scene::new();
    let mine = theirs(&scene, scene.post(&Scene::small()), "small");
    let thief = scene.post(&Scene::strange());
    takes(&scene, &mine, thief);
    assert_eq!(judge(&scene, &[message(&scene, &mine.runner, thief, false, 1)]), 1);
    assert_eq!(judge(&scene, &[message(&scene, &mine.runner, thief, false, 2)]), 0);
    assert_eq!(scene.ran(&mine.runner), Ran::Taken);
    assert_eq!(scene.replacements(&[&mine]).len(), 1);
}

/// As their keeper starts them: no repository, no job, one label for itself.
#[test]
fn s11_a_warm_runner_of_theirs_is_never_replaced() {
    let scene = Scene::new();
    let job = scene.post(&Scene::small());
    let warm = "warm-5f2a77c0-ce5b-11f0-8d6b-000000000001";
    {
        let mut state = scene.world.state();
        let input = json!({"owner": "acme", "repo": "", "jobId": -1, "jobUrl": "", "installationId": 7,
            "jobLabels": "small", "provider": "Stack/Runners/Ec2", "labels": "small,cdkghr:warm",
            "maxIdleSeconds": 14_400});
        let now = state.now;
        state.executions.insert(warm.into(), Execution::begun(warm, input, now));
    }
    for signed in [true, false] {
        assert_eq!(judge(&scene, &[message(&scene, warm, job, signed, 2)]), 0);
    }
    assert_eq!(crate::common::names(&scene.world), [warm]);
    assert!((scene.world.metric("WarmRunnerTaken") - 1.0).abs() < 0.1);
}

/// Their record of a runner that got a job: with the job where the webhook said it, without where a line did.
#[test]
fn their_records_of_runners_are_understood() {
    let scene = Scene::new();
    let a = theirs(&scene, scene.post(&Scene::small()), "small");
    let b = theirs(&scene, scene.post(&Scene::small()), "small");
    takes(&scene, &a, b.job);
    let until = scene.world.state().now + ITEM_LIFE;
    let ran = Ran::Job { id: JobId(i64::try_from(b.job).unwrap()), repository: None };
    let record = RunnerRecord { ran, ..RunnerRecord::default() };
    scene.world.state().ledger.runners.insert(a.runner.clone(), (record, until));
    scene.world.state().ledger.runners.insert(b.runner.clone(), (RunnerRecord::default(), until));
    assert_eq!(judge(&scene, &[message(&scene, &a.runner, b.job, false, 1)]), 0);
    assert!(scene.replacements(&[&a, &b]).is_empty());
    assert_eq!(scene.world.count("stolen-runner", "Forge.run_jobs"), 0, "the ledger knew the job");
}
