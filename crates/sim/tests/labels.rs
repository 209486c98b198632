//! Which tier a job goes to, what its runner registers, and that the two are one thing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use common::{aws_calls, handle, holds, minutes, names, queued, runners, seconds};
use ostler_sim::github::{JobSpec, Status};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{REPOSITORY, World, tier};
use serde_json::json;

fn job(labels: &[&str]) -> JobSpec {
    JobSpec::new(REPOSITORY, labels)
}

/// The tier that a job goes to.
fn provider(world: &World, labels: &[&str]) -> Option<String> {
    let (status, name) = handle(world, &queued(world, &job(labels)));
    (status == 202).then(|| {
        world.state().executions[&name].input["provider"].as_str().unwrap_or_default().to_owned()
    })
}

#[test]
fn lm_05_no_tier_has_the_labels_of_two_together() {
    let world = World::new(1);
    world.tiers(&[tier("x", &["a", "b"]), tier("y", &["a", "b", "on-demand"])]);
    world.tiers(&[tier("x", &["a", "b"]), tier("y", &["a", "on-demand"])]);
    assert_eq!(provider(&world, &["self-hosted", "a", "b", "on-demand"]), None);
    assert_eq!(provider(&world, &["self-hosted", "a", "on-demand"]).as_deref(), Some("y"));
}

#[test]
fn lm_08_the_tier_that_has_all_labels_wins_in_either_order() {
    for [first, second] in [["x", "y"], ["y", "x"]] {
        let world = World::new(1);
        world.tiers(&[tier(first, &["cloud"]), tier(second, &["cloud", "ec2"])]);
        let chosen = provider(&world, &["self-hosted", "cloud", "ec2"]);
        assert_eq!(chosen.as_deref(), Some(second));
        assert_eq!(provider(&world, &["self-hosted", "cloud"]).as_deref(), Some(first));
    }
}

#[test]
fn lm_09_lm_10_cl_08_unknown_labels_start_nothing_and_cancel_nothing() {
    let mut history = Simulation::new(1);
    let known_elsewhere = history.post(&job(&["self-hosted", "another-account"]));
    let typo = history.post(&job(&["self-hosted", "smal"]));
    history.run_for(minutes(60));
    assert_eq!((aws_calls(&history.world), history.world.count("", "Forge")), (0, 0));
    let state = history.state();
    for job in state.github.all_jobs() {
        assert!([known_elsewhere, typo].contains(&job.id) && job.status == Status::Queued);
    }
    drop(state);
    assert_eq!(history.world.metric_by("JobRefused", "NoTier"), 2.0);
}

#[test]
fn a_job_without_labels_matches_nothing() {
    let world = World::new(1);
    world.configure("control/app", json!({"app_id": 1, "require_self_hosted": false}).to_string());
    assert_eq!(provider(&world, &[]), None);
}

#[test]
fn lm_11_labels_that_are_implied_are_registered_or_not_matched() {
    let world = World::new(1);
    world.configure("control/app", json!({"app_id": 1, "require_self_hosted": false}).to_string());
    world.tiers(&[tier("bot", &["dependabot"])]);
    assert_eq!(provider(&world, &["Linux", "DEPENDABOT"]).as_deref(), Some("bot"));
    let mut bare = tier("bot", &["dependabot"]);
    bare["implied_labels"] = json!(false);
    world.tiers(&[bare]);
    assert_eq!(provider(&world, &["linux", "dependabot"]), None);
    assert_eq!(provider(&world, &["self-hosted", "dependabot"]), None);
    assert_eq!(provider(&world, &["dependabot"]).as_deref(), Some("bot"));
}

#[test]
fn lm_12_lm_13_lm_14_the_registration_has_all_that_any_accepted_job_asks_for() {
    let mut history = Simulation::new(1);
    history.world.tiers(&[tier("small", &["small", "Special"])]);
    for labels in [
        &["self-hosted", "small"][..],
        &["Self-Hosted", "LINUX", "X64", "special"],
        &["self-hosted", "linux", "x64", "small", "special"],
    ] {
        history.post(&job(labels));
        history.run_for(seconds(2));
        let state = history.state();
        let entry = state.github.registrations().pop().unwrap();
        let has = |wanted: &str| entry.labels.iter().any(|own| own.eq_ignore_ascii_case(wanted));
        assert!(labels.iter().all(|label| has(label)), "{:?}", entry.labels);
        for implied in ["self-hosted", "linux", "x64"] {
            assert!(has(implied), "{:?}", entry.labels);
        }
    }
    holds(&mut history, Allowance::NONE);
}

#[test]
fn lm_15_a_tier_with_a_hosted_label_is_refused_and_the_others_serve() {
    let world = World::new(1);
    world.tiers(&[tier("bad", &["ubuntu-latest"]), tier("small", &["small"])]);
    assert_eq!(provider(&world, &["self-hosted", "small"]).as_deref(), Some("small"));
    let (status, _) = handle(&world, &queued(&world, &job(&["self-hosted", "ubuntu-latest"])));
    assert_eq!(status, 503, "the configuration is wrong, which can be mended");
    let (status, _) = handle(&world, &queued(&world, &job(&["ubuntu-latest"])));
    assert_eq!(status, 200, "a job of GitHub's own runners");
}

#[test]
fn lm_16_jobs_that_two_tiers_could_run_are_told_apart_by_runner_and_not_by_label() {
    let mut history = Simulation::new(2);
    let mut open = tier("open", &["a"]);
    open["accepts_bare_self_hosted"] = json!(true);
    history.world.tiers(&[open, tier("other", &["b"])]);
    for seconds in [30, 60, 90, 600, 900, 1800] {
        let duration = common::seconds(seconds);
        history.post(&JobSpec { duration, ..job(&["self-hosted"]) });
    }
    history.post(&job(&["self-hosted", "b"]));
    // The runner of the other tier may be given one of the six; then a healthy one comes up for nothing.
    holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(15) });
}

#[test]
fn lm_17_bare_self_hosted_needs_a_tier_that_says_so() {
    let world = World::new(1);
    world.tiers(&[tier("gpu", &["gpu"])]);
    assert_eq!(provider(&world, &["self-hosted"]), None);
    assert_eq!(names(&world).len(), 0);
    let mut open = tier("open", &["cheap"]);
    open["accepts_bare_self_hosted"] = json!(true);
    world.tiers(&[tier("gpu", &["gpu"]), open]);
    assert_eq!(provider(&world, &["self-hosted"]).as_deref(), Some("open"));
}

#[test]
fn a_running_runners_labels_are_those_of_its_input_whatever_the_tier_says_today() {
    let mut history = Simulation::new(1);
    history.state().ec2.limit_capacity(ostler_sim::ec2::PoolMatch::default(), 0);
    history.post(&job(&["self-hosted", "small"]));
    history.run_for(seconds(30));
    history.world.tiers(&[tier("small", &["small", "renamed"])]);
    history.state().ec2.restore_capacity();
    history.run_for(minutes(2));
    let entry = history.state().github.registrations().pop().unwrap();
    assert_eq!(entry.labels, ["self-hosted", "linux", "x64", "small"]);
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 1);
}
