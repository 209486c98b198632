//! The judgement of one report.

use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::ports::Ran;
use ostler_core::report::Report;
use ostler_sim::github::JobSpec;
use ostler_sim::world::{Plan, REPOSITORY, Strike};
use serde_json::json;

use crate::scene::{OTHER, Scene, logged, with_gpu};

/// A job in a repository that we see, which no tier takes: nothing is ever started for it.
fn visible_thief() -> JobSpec {
    JobSpec::new(OTHER, &["self-hosted", "gpu"])
}

fn ran(job: u64, repository: &str) -> Ran {
    Ran::Job { id: JobId(i64::try_from(job).unwrap()), repository: Some(repository.into()) }
}

#[test]
fn s9_a_runner_that_no_execution_is_named_after_is_nothing_to_us() {
    let scene = Scene::new();
    let thief = scene.post(&Scene::small());
    assert!(!scene.judge(&scene.line("somebody-elses.runner_1", thief), 1));
    assert!(!scene.judge(&scene.signed("somebody-elses.runner_1", thief), 1));
    assert_eq!(scene.ran("somebody-elses.runner_1"), Ran::Unknown);
    assert_eq!(scene.world.count("stolen-runner", "Forge"), 0);
}

#[test]
fn se_13_a_strange_runner_with_a_job_that_a_tier_would_serve_is_told_of() {
    let scene = Scene::new();
    let job = scene.post(&Scene::small());
    let log = logged(|| assert!(!scene.judge(&scene.signed("rogue", job), 1)));
    assert!(log.iter().any(|line| line["level"] == "WARN" && line.to_string().contains("rogue")));
    assert!((scene.world.metric("UnknownRunner") - 1.0).abs() < 0.1);
    let other = Report { job_labels: Some("self-hosted,gpu".into()), ..scene.signed("rogue", job) };
    assert!(!scene.judge(&other, 1));
    assert!(!scene.judge(&scene.line("rogue", job), 1), "anyone can print that");
    assert!((scene.world.metric("UnknownRunner") - 1.0).abs() < 0.1);
}

#[test]
fn b8_an_input_that_can_not_be_read_is_warned_about_and_left() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.world.state().executions.get_mut(&mine.runner).unwrap().input = json!({"owner": 7});
    let log = logged(|| assert!(!scene.judge(&scene.signed(&mine.runner, mine.job), 1)));
    assert!(log.iter().any(|line| line["level"] == "WARN"), "{log:?}");
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn s10_a_runner_is_accounted_before_its_fate_is_judged_and_a_failure_there_comes_again() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    with_gpu(&scene, &mine);
    let thief = scene.post(&visible_thief());
    scene.takes(&mine.runner, thief);
    let report = scene.signed(&mine.runner, thief);
    scene.world.state().plan = Plan::next("Ledger.account", 1, Strike::Before);
    assert!(scene.judge(&report, 1));
    assert!(scene.replacements(&[&mine]).is_empty());
    scene.world.state().plan = Plan::next("Forge.job", 1, Strike::Before);
    assert!(scene.judge(&report, 2));
    assert_eq!(scene.ran(&mine.runner), ran(thief, OTHER), "accounted, though not judged");
    assert!(!scene.judge(&report, 3));
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn b13_a_line_alone_accounts_for_nothing_and_one_of_an_accounted_runner_is_judged_by_the_ledger() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &a);
    let thief = scene.post(&visible_thief());
    scene.takes(&a.runner, thief);
    // A line that names a run in which the runner had no job.
    assert!(!scene.judge(&scene.line(&a.runner, b.job), 1));
    assert_eq!(scene.ran(&a.runner), Ran::Unknown);
    // The signed word was accounted for, but its judgement failed and it is lost: the line does it.
    scene.world.state().plan = Plan::next("Forge.job", 1, Strike::Before);
    assert!(scene.judge(&scene.signed(&a.runner, thief), 1));
    assert!(!scene.judge(&scene.line(&a.runner, b.job), 1), "whatever it says");
    assert_eq!(scene.ran(&a.runner), ran(thief, OTHER));
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", a.runner)]);
    assert_eq!(scene.world.count("stolen-runner", "Forge.run_jobs"), 1, "only the first time");
}

#[test]
fn s11_st_13_a_warm_runner_is_never_replaced() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let warm = "warm-small-0123456789abcdef";
    {
        let mut state = scene.world.state();
        let mut execution = state.executions[&mine.runner].clone();
        execution.name = warm.into();
        execution.input["jobId"] = json!(-1);
        state.executions.insert(warm.into(), execution);
    }
    for job in [mine.job, scene.post(&Scene::strange())] {
        let log = logged(|| {
            assert!(!scene.judge(&scene.line(warm, job), 1));
            assert!(!scene.judge(&scene.signed(warm, job), 1));
        });
        let told = log.iter().find(|line| line["message"] == "WarmRunnerTaken").unwrap();
        assert_eq!((&told["runner"], &told["run"]), (&json!(warm), &json!(scene.run_of(job))));
    }
    assert!((scene.world.metric("WarmRunnerTaken") - 2.0).abs() < 0.1);
    assert_eq!(scene.replacements(&[&mine]), [warm]);
}

#[test]
fn s12_the_job_of_a_line_is_found_in_its_run_by_the_runners_name() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    with_gpu(&scene, &mine);
    let thief = scene.post(&visible_thief());
    // A run of more than a page, whose last job is the one.
    for _ in 0..120 {
        scene.post(&JobSpec {
            run_id: Some(u64::try_from(scene.run_of(thief)).unwrap()),
            hosted: true,
            ..visible_thief()
        });
    }
    scene.takes(&mine.runner, thief);
    assert_eq!(scene.judged(&scene.line(&mine.runner, thief)), 1);
    assert_eq!(scene.ran(&mine.runner), ran(thief, OTHER), "proved by GitHub");
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn s12_a_run_that_is_not_there_or_did_not_use_the_runner_was_made_up() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&a.runner, a.job);
    for (line, says) in [
        (Report { workflow_id: 1, ..scene.line(&a.runner, a.job) }, "no such run"),
        (Report { repo: OTHER.into(), ..scene.line(&a.runner, a.job) }, "no such run"),
        (scene.line(&a.runner, b.job), "no job of the run"),
    ] {
        let log = logged(|| assert!(!scene.judge(&line, 1)));
        assert!(log.iter().any(|line| line["message"].as_str().unwrap().contains(says)), "{log:?}");
    }
    assert!((scene.world.metric("ReportUnknown") - 3.0).abs() < 0.1);
    assert_eq!(scene.ran(&a.runner), Ran::Unknown);
    assert!(scene.replacements(&[&a, &b]).is_empty());
}

#[test]
fn s12_i6_a_look_up_that_fails_decides_nothing_and_comes_again() {
    for call in
        ["Executions.describe", "Ledger.runner", "Forge.installed", "Forge.run_jobs", "Forge.job"]
    {
        let scene = Scene::new();
        let mine = scene.accept(&Scene::small());
        with_gpu(&scene, &mine);
        let thief = scene.post(&visible_thief());
        scene.takes(&mine.runner, thief);
        let line = scene.line(&mine.runner, thief);
        scene.world.state().plan = Plan::next(call, 1, Strike::Before);
        assert!(scene.judge(&line, 1), "{call}");
        assert!(scene.replacements(&[&mine]).is_empty(), "{call}");
        assert!(!scene.judge(&line, 2), "{call}");
        assert_eq!(scene.replacements(&[&mine]).len(), 1, "{call}");
    }
}

#[test]
fn s12_an_invisible_repository_means_a_theft_and_one_replacement() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&mine.runner, thief);
    assert_eq!(scene.judged(&scene.line(&mine.runner, thief)), 2, "at the second receive");
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
    assert_eq!(scene.ran(&mine.runner), Ran::Taken);
    assert!((scene.detected("true") - 1.0).abs() < 0.1);
    // However often it comes.
    scene.judge(&scene.line(&mine.runner, thief), 3);
    assert_eq!(scene.replacements(&[&mine]).len(), 1);
}

#[test]
fn s13_a_runners_own_job_is_done_with_without_a_look_at_the_ledger() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    scene.takes(&mine.runner, mine.job);
    assert!(!scene.judge(&scene.signed(&mine.runner, mine.job), 1));
    assert_eq!(scene.world.count("stolen-runner", "Ledger.job"), 0);
    assert_eq!(scene.world.count("stolen-runner", "Forge"), 0);
    assert_eq!(scene.world.count("stolen-runner", "Executions"), 1);
    let other = scene.accept(&Scene::small());
    scene.takes(&other.runner, other.job);
    assert!(!scene.judge(&scene.line(&other.runner, other.job), 1));
    assert_eq!(scene.world.count("stolen-runner", "Forge.installed"), 0, "its own repository");
    assert_eq!(scene.ran(&other.runner), ran(other.job, REPOSITORY));
}

#[test]
fn s14_st_10_a_shuffle_between_two_of_ours_starts_nothing() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&a.runner, b.job);
    scene.world.pass(Duration::from_secs(600));
    let log = logged(|| {
        for report in [scene.signed(&a.runner, b.job), scene.line(&a.runner, b.job)] {
            assert_eq!(scene.judged(&report), 1);
        }
    });
    let told = log
        .iter()
        .filter(|line| line["message"].as_str().unwrap().contains("no job lacks a runner"));
    let told: Vec<_> = told.collect();
    assert_eq!((told.len(), &told[0]["job"], &told[0]["own"]), (2, &json!(b.job), &json!(a.job)));
    assert!(scene.replacements(&[&a, &b]).is_empty());
    assert!(scene.detected("true") < 0.1 && scene.detected("unneeded") < 0.1);
}

#[test]
fn s14_s15_a_shuffle_where_the_other_runner_lacks_a_label_starts_exactly_one() {
    let scene = Scene::new();
    let (large, small) = (scene.accept(&Scene::large()), scene.accept(&Scene::small()));
    scene.takes(&large.runner, small.job);
    let log = logged(|| {
        for report in [scene.signed(&large.runner, small.job), scene.line(&large.runner, small.job)]
        {
            assert_eq!(scene.judged(&report), 1);
        }
    });
    assert_eq!(scene.replacements(&[&large, &small]), [format!("{}-r1", large.runner)]);
    // Both label sets are told.
    let told = log.iter().find(|line| line["metric"] == "StolenRunnerDetected").unwrap();
    assert_eq!(told["job_labels"], "self-hosted,large");
    assert_eq!(told["thief_labels"], "self-hosted,small");
}

#[test]
fn s15_b9_s19_a_theft_is_told_with_all_that_is_needed_to_look_into_it() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    with_gpu(&scene, &mine);
    let thief = scene.post(&visible_thief());
    scene.takes(&mine.runner, thief);
    let log = logged(|| assert!(!scene.judge(&scene.signed(&mine.runner, thief), 1)));
    let told = log.iter().find(|line| line["metric"] == "StolenRunnerDetected").unwrap();
    for (key, value) in [
        ("level", json!("WARN")),
        ("replaced", json!("true")),
        ("stolen", json!(mine.runner)),
        ("replacement", json!(format!("{}-r1", mine.runner))),
        ("attempt", json!(1)),
        ("thief", json!(thief)),
        ("job", json!(mine.job)),
        ("owner", json!("acme")),
        ("repo", json!("widgets")),
        ("provider", json!("small")),
    ] {
        assert_eq!(told[key], value, "{key}");
    }
    assert!(told["url"].as_str().unwrap().contains("/acme/widgets/"), "{told}");
    let state = scene.world.state();
    assert_eq!(state.metrics.get(&("StolenRunnerDetected", "true,small".into())), Some(&1.0));
}

#[test]
fn b15_a_shuffle_after_which_the_other_runner_dies_starts_one_for_the_job_that_waits() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&a.runner, b.job);
    // The runner of b dies before it got a job; a's report is judged afterwards.
    scene.ends(&b.runner);
    assert_eq!(scene.judged(&scene.signed(&a.runner, b.job)), 1);
    assert_eq!(
        scene.replacements(&[&a, &b]),
        [format!("{}-r1", a.runner)],
        "named after the debtor"
    );
}

#[test]
fn b15_the_debtor_is_the_job_that_waits_not_the_one_whose_runner_was_taken() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &b);
    // a's job runs on b's runner; then a's runner is taken by a stranger.
    scene.takes(&b.runner, a.job);
    let thief = scene.post(&Scene::strange());
    scene.takes(&a.runner, thief);
    scene.judged(&scene.line(&a.runner, thief));
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", b.runner)]);
    assert_eq!(scene.ran(&b.runner), ran(a.job, REPOSITORY), "the look-up accounts for it");
}

#[test]
fn b16_st_15_a_job_whose_queued_event_is_late_is_no_thief_for_four_minutes() {
    let scene = Scene::new();
    let a = scene.accept(&Scene::small());
    let spec = Scene::small();
    let events = crate::common::events(&scene.world, &spec);
    let late = ostler_sim::simulation::signed(&events[0], ostler_sim::world::WEBHOOK_SECRET);
    let job = scene.world.state().github.all_jobs().map(|job| job.id).max().unwrap();
    scene.takes(&a.runner, job);
    scene.world.pass(Duration::from_secs(61));
    assert!(scene.judge(&scene.signed(&a.runner, job), 1), "61 s");
    scene.world.pass(Duration::from_secs(60));
    let (status, runner) = crate::common::handle(&scene.world, &late);
    assert_eq!(status, 202, "two minutes late");
    scene.world.pass(Duration::from_secs(120));
    assert!(!scene.judge(&scene.signed(&a.runner, job), 2));
    assert_eq!(scene.replacements(&[&a]), [runner], "it was a shuffle: nothing is started");
}

#[test]
fn b16_after_four_minutes_it_is_one_by_its_age_not_by_the_count_of_receives() {
    let scene = Scene::new();
    let a = scene.accept(&Scene::small());
    let job = scene.post(&Scene::small());
    scene.takes(&a.runner, job);
    scene.world.pass(Duration::from_secs(239));
    assert!(scene.judge(&scene.signed(&a.runner, job), 4), "239 s");
    scene.world.pass(Duration::from_secs(2));
    assert!(!scene.judge(&scene.signed(&a.runner, job), 1));
    assert_eq!(scene.replacements(&[&a]), [format!("{}-r1", a.runner)]);
}

#[test]
fn b16_a_job_that_no_tier_takes_is_a_thief_at_once() {
    let scene = Scene::new();
    let a = scene.accept(&Scene::small());
    with_gpu(&scene, &a);
    let thief = scene.post(&visible_thief());
    scene.takes(&a.runner, thief);
    assert!(!scene.judge(&scene.signed(&a.runner, thief), 1));
    assert_eq!(scene.replacements(&[&a]).len(), 1);
}

#[test]
fn b14_a_line_about_a_strange_repository_is_dropped_if_the_own_job_ran_there() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let strange = scene.post(&Scene::strange());
    let session = scene.takes(&mine.runner, mine.job);
    let forged = scene.line(&mine.runner, strange);
    assert_eq!(scene.judged(&forged), 1, "while it runs");
    scene.completes(&session, mine.job);
    assert_eq!(scene.judged(&forged), 1, "and afterwards, when its registration is gone");
    assert!((scene.world.metric("ReportForged") - 1.0).abs() < 0.1, "then the ledger knew");
    assert_eq!(scene.ran(&mine.runner), ran(mine.job, REPOSITORY), "GitHub's word");
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn b14_a_line_counts_only_for_a_runner_that_github_shows_busy_or_gone() {
    let scene = Scene::new();
    let (idle, booting) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    let strange = scene.post(&Scene::strange());
    let session = scene.online(&idle.runner);
    for mine in [&idle, &booting] {
        let forged = scene.line(&mine.runner, strange);
        // Not registered yet is not gone, and idle is not busy. At the fourth receive it is given up,
        // and never becomes a dead letter.
        assert_eq!(scene.judged(&forged), 4, "{}", mine.runner);
        assert_eq!(scene.ran(&mine.runner), Ran::Unknown);
    }
    assert!((scene.world.metric("ReportGivenUp") - 2.0).abs() < 0.1);
    assert!(scene.replacements(&[&idle, &booting]).is_empty());
    scene.give(&session, strange);
    assert_eq!(scene.judged(&scene.line(&idle.runner, strange)), 2, "now it is true");
    assert_eq!(scene.replacements(&[&idle, &booting]), [format!("{}-r1", idle.runner)]);
}

#[test]
fn b14_a_registration_that_is_gone_counts_only_if_it_was_there() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let strange = scene.post(&Scene::strange());
    let session = scene.takes(&mine.runner, strange);
    scene.completes(&session, strange);
    assert!(scene.world.state().github.registrations().is_empty(), "an ephemeral runner goes");
    assert_eq!(scene.judged(&scene.line(&mine.runner, strange)), 2);
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn b10_nothing_is_started_for_a_job_that_ended_without_a_runner() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    with_gpu(&scene, &mine);
    let thief = scene.post(&visible_thief());
    scene.takes(&mine.runner, thief);
    let now = scene.world.state().now;
    scene.world.state().github.cancel_job(now, mine.job).unwrap();
    let log = logged(|| assert!(!scene.judge(&scene.signed(&mine.runner, thief), 1)));
    let told = log.iter().find(|line| line["metric"] == "StolenRunnerDetected").unwrap();
    assert_eq!(told["replaced"], "unneeded");
    assert!((scene.detected("unneeded") - 1.0).abs() < 0.1);
    assert!(scene.replacements(&[&mine]).is_empty());
}

#[test]
fn b10_st_03_a_job_that_is_in_progress_elsewhere_is_no_reason_to_start_nothing() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &a);
    // a's job runs on b's runner, so b's job waits in its place.
    scene.takes(&b.runner, a.job);
    let thief = scene.post(&visible_thief());
    scene.takes(&a.runner, thief);
    assert!(!scene.judge(&scene.signed(&a.runner, thief), 1));
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", b.runner)]);
}

#[test]
fn s16_s17_replacements_are_numbered_up_to_three_and_then_the_metric_says_so() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let mut runner = mine.runner.clone();
    for attempt in 1..=4 {
        let thief = scene.post(&Scene::strange());
        scene.takes(&runner, thief);
        let line = scene.line(&runner, thief);
        let log = logged(|| assert_eq!(scene.judged(&line), 2));
        let told = log.iter().find(|line| line["metric"] == "StolenRunnerDetected").unwrap();
        let replaced = if attempt <= 3 { "true" } else { "false" };
        assert_eq!((&told["level"], &told["replaced"]), (&json!("WARN"), &json!(replaced)));
        let next = format!("{}-r{attempt}", mine.runner);
        let there = crate::common::names(&scene.world).contains(&next);
        assert_eq!(there, attempt <= 3, "{next}");
        if there {
            let input = |name: &str| scene.world.state().executions[name].input.clone();
            assert_eq!(input(&next), input(&mine.runner), "with the same input");
            scene.record(&next);
            runner = next;
        }
    }
    assert_eq!((scene.detected("true"), scene.detected("false")), (3.0, 1.0));
    assert_eq!(scene.replacements(&[&mine]).len(), 3);
}

#[test]
fn s18_sq_08_a_replacement_that_somebody_started_already_is_left_at_that() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&mine.runner, thief);
    // The start is made, and its answer lost: the record comes again and finds it.
    scene.world.state().plan = Plan::next("Executions.start", 1, Strike::After);
    let line = scene.line(&mine.runner, thief);
    assert!(scene.judge(&line, 2));
    assert!(!scene.judge(&line, 3));
    // The webhook's word about the same runner, were there one, changes nothing.
    assert!(!scene.judge(&scene.signed(&mine.runner, thief), 1));
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn both_reports_of_a_theft_cause_one_replacement_in_any_order() {
    for signed_first in [true, false] {
        let scene = Scene::new();
        let mine = scene.accept(&Scene::small());
        with_gpu(&scene, &mine);
        let thief = scene.post(&visible_thief());
        scene.takes(&mine.runner, thief);
        let (signed, line) = (scene.signed(&mine.runner, thief), scene.line(&mine.runner, thief));
        let order = if signed_first { [&signed, &line] } else { [&line, &signed] };
        for report in order {
            scene.judged(report);
        }
        assert_eq!(scene.replacements(&[&mine]).len(), 1, "signed first: {signed_first}");
    }
}

#[test]
fn st_05_st_06_a_third_job_that_takes_the_second_ones_runner_leaves_nobody_waiting() {
    let scene = Scene::new();
    // Job 1 ran on a runner that was idle; 2's runner took 3; nothing was started for 3 yet.
    let two = scene.accept(&Scene::small());
    let three = scene.accept(&Scene::small());
    scene.takes(&two.runner, three.job);
    // Its launch fails for good: the execution ends without a machine.
    scene.ends(&three.runner);
    assert_eq!(scene.judged(&scene.signed(&two.runner, three.job)), 1);
    assert_eq!(scene.replacements(&[&two, &three]), [format!("{}-r1", two.runner)]);
}

#[test]
fn st_07_an_execution_that_succeeded_is_not_a_job_that_was_served() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    let session = scene.takes(&mine.runner, thief);
    scene.completes(&session, thief);
    scene.ends(&mine.runner);
    assert_eq!(scene.judged(&scene.line(&mine.runner, thief)), 2);
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn st_16_a_job_whose_record_has_expired_is_known_by_its_runners_name() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.world.state().ledger.jobs.clear();
    scene.takes(&a.runner, b.job);
    assert!(!scene.judge(&scene.signed(&a.runner, b.job), 1));
    assert!(scene.replacements(&[&a, &b]).is_empty(), "a shuffle still");
}

/// AWS and GitHub calls of one judgement, by outcome: the figures, kept from growing.
#[test]
fn calls_of_each_judgement() {
    let calls = |scene: &Scene, report: &Report, receives: u32| {
        let before = scene.world.state().calls.len();
        scene.judge(report, receives);
        let state = scene.world.state();
        let made = &state.calls[before..];
        let forge = made.iter().filter(|call| call.name.starts_with("Forge")).count();
        let other = ["Forge", "Configuration"];
        let aws =
            made.iter().filter(|call| !other.iter().any(|o| call.name.starts_with(o))).count();
        (aws, forge)
    };
    let mut figures = Vec::new();
    let scene = Scene::new();
    let a = scene.accept(&Scene::small());
    scene.takes(&a.runner, a.job);
    figures.push(("own job, signed", calls(&scene, &scene.signed(&a.runner, a.job), 1), (2, 0)));
    let b = scene.accept(&Scene::small());
    scene.takes(&b.runner, b.job);
    figures.push(("own job, line", calls(&scene, &scene.line(&b.runner, b.job), 1), (3, 1)));
    let (c, d) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    scene.takes(&c.runner, d.job);
    figures.push(("shuffle, signed", calls(&scene, &scene.signed(&c.runner, d.job), 1), (6, 0)));
    let e = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&e.runner, thief);
    let line = scene.line(&e.runner, thief);
    figures.push(("invisible, first", calls(&scene, &line, 1), (3, 2)));
    figures.push(("invisible, replaced", calls(&scene, &line, 2), (7, 4)));
    let f = scene.accept(&Scene::small());
    with_gpu(&scene, &f);
    let thief = scene.post(&visible_thief());
    scene.takes(&f.runner, thief);
    figures.push(("stolen, signed", calls(&scene, &scene.signed(&f.runner, thief), 1), (10, 3)));
    for (outcome, made, most) in figures {
        println!("{outcome}: {} AWS calls, {} GitHub calls", made.0, made.1);
        assert!(made.0 <= most.0 && made.1 <= most.1, "{outcome}: {made:?}");
    }
}
