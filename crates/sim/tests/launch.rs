//! Launch and register: EC2 that has nothing, GitHub that says later, names that are taken, functions that
//! are killed in between.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{ended, holds, hours, lasting, minutes, names, runners, seconds, small, story};
use ostler_sim::ec2::{
    self, LaunchFault, LaunchRule, Market, PoolMatch, Rate, State as InstanceState, Throttle,
};
use ostler_sim::github::{
    ApiError, Caller, Fault as GitHubFault, FaultRule, JobSpec, Scope, Status as JobStatus, Turn,
    Visibility, endpoint,
};
use ostler_sim::invariants::{Allowance, violations};
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::{ORGANIZATION, Plan, REPOSITORY, Status, Strike, tier};
use serde_json::json;

/// Waits up to so many minutes are in order.
fn within(longest: u64) -> Allowance {
    Allowance { longest_wait: minutes(longest), ..Allowance::NONE }
}

fn on_tier(change: impl Fn(&mut serde_json::Value)) -> Simulation {
    let history = Simulation::new(1);
    let mut tier = tier("small", &["small"]);
    change(&mut tier);
    history.world.tiers(&[tier]);
    history
}

fn refuses(history: &Simulation, pools: PoolMatch, code: &'static str, times: Option<u32>) {
    history.state().ec2.add_rule(LaunchRule {
        pools,
        subnet: None,
        fault: ec2::Fault::new(code, "no"),
        times,
    });
}

/// GitHub answers so to the next registrations.
fn registration_fails(history: &Simulation, times: u32, fault: GitHubFault) {
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 0,
        times,
        fault,
    });
}

fn live(history: &Simulation) -> usize {
    let state = history.state();
    state.ec2.instances().filter(|it| !it.state(state.now).is_over()).count()
}

/// Markets of all instances so far.
fn markets(history: &Simulation) -> Vec<Market> {
    history.state().ec2.instances().map(|instance| instance.pool.market).collect()
}

#[test]
fn budgets_of_a_life_that_goes_well() {
    let mut history = Simulation::new(1);
    let job = history.post(&lasting(minutes(20)));
    holds(&mut history, Allowance::NONE);
    let before: u64 = history.state().github.calls().values().sum();
    // The second: what is asked once in the life of a process is known by now.
    let second = history.post(&lasting(minutes(20)));
    holds(&mut history, Allowance::NONE);
    let calls = history.state().github.calls().values().sum::<u64>() - before;
    assert!(calls <= 3, "{calls} calls to GitHub: {}", story(&history));
    for job in [job, second] {
        let name = history.world.base_name(REPOSITORY, job);
        let execution = history.state().executions[&name].clone();
        let checks = execution.entered.iter().filter(|state| *state == "Check").count();
        let transitions = execution.transitions();
        assert!(transitions <= 6 + 3 * checks, "{transitions} for {checks} checks");
        assert!(checks <= 3, "{checks}");
    }
}

#[test]
fn ol_01_a_burst_beyond_ec2s_request_limits_is_launched_in_the_end() {
    let mut history = Simulation::new(1);
    history.judges_reports = true;
    history.state().ec2.options().throttle = Some(Throttle {
        launch: Rate { burst: 10.0, per_second: 0.05 },
        change: Rate { burst: 12.0, per_second: 0.5 },
        ..Throttle::default()
    });
    for _ in 0..30 {
        history.post(&small());
    }
    holds(&mut history, within(60));
    assert_eq!(runners(&history), 30, "one each, none given up");
    assert!(history.world.metric_by("LaunchRefused", "Throttled") > 0.0);
}

#[test]
fn ol_02_no_spot_capacity_is_answered_with_on_demand_where_the_tier_allows() {
    let mut history = on_tier(|tier| tier["market"] = json!("spot-then-on-demand"));
    let spot = PoolMatch { market: Some(Market::Spot), ..PoolMatch::default() };
    history.state().ec2.limit_capacity(spot, 0);
    history.post(&small());
    holds(&mut history, Allowance::NONE);
    assert_eq!(markets(&history), [Market::OnDemand]);
}

#[test]
fn ol_02_spot_alone_waits_for_spot() {
    let mut history = on_tier(|tier| tier["market"] = json!("spot"));
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    history.post(&small());
    history.run_for(hours(3));
    history.state().ec2.restore_capacity();
    holds(&mut history, within(200));
    assert_eq!(markets(&history), [Market::Spot]);
    assert_eq!(runners(&history), 1);
}

#[test]
fn ol_03_another_zone_is_taken_where_one_has_no_capacity() {
    for (full, other) in [("us-east-1a", "us-east-1b"), ("us-east-1b", "us-east-1a")] {
        let mut history = Simulation::new(1);
        let zone = PoolMatch { zone: Some(full.into()), ..PoolMatch::default() };
        history.state().ec2.limit_capacity(zone, 0);
        history.post(&small());
        holds(&mut history, Allowance::NONE);
        let state = history.state();
        let zones: Vec<_> = state.ec2.instances().map(|it| it.pool.zone.as_str()).collect();
        assert_eq!(zones, [other]);
    }
}

#[test]
fn ol_04_any_error_inside_a_200_is_tried_again() {
    for code in ["InsufficientInstanceCapacity", "NeverSeenBefore", "Server.InternalError"] {
        let mut history = Simulation::new(1);
        refuses(&history, PoolMatch::default(), code, Some(3));
        history.post(&small());
        holds(&mut history, within(15));
        assert_eq!(history.world.metric("LaunchRefused"), 3.0, "{code}");
        assert_eq!(runners(&history), 1, "{code}");
    }
}

#[test]
fn ol_05_a_quota_keeps_the_job_and_is_told_of() {
    for market in ["spot", "on-demand"] {
        let mut history = on_tier(|tier| tier["market"] = json!(market));
        {
            let mut state = history.state();
            let options = state.ec2.options();
            (options.spot_vcpus, options.on_demand_vcpus) = (Some(2), Some(2));
        }
        history.post(&lasting(minutes(10)));
        history.post(&lasting(minutes(10)));
        holds(&mut history, within(60));
        assert!(history.world.metric_by("LaunchRefused", "Quota") > 0.0, "{market}");
        assert_eq!(runners(&history), 2, "{market}");
    }
}

#[test]
fn ol_07_no_machine_survives_a_registration_that_github_refuses() {
    for (status, reason) in
        [(401, "NotAllowed"), (403, "NotAllowed"), (404, "NotAllowed"), (422, "Invalid")]
    {
        let mut history = Simulation::new(1);
        let refusal = ApiError::new(status, "Resource not accessible by integration");
        registration_fails(&history, 1, GitHubFault::Refuse(refusal));
        history.post(&small());
        history.run_for(minutes(5));
        assert_eq!(live(&history), 0, "{status}: it waits without a machine");
        assert_eq!(history.world.metric_by("RegistrationRefused", reason), 1.0, "{status}");
        holds(&mut history, within(40));
        assert_eq!(runners(&history), 1, "{status}: the job is kept until an operator has acted");
    }
}

#[test]
fn ol_07_a_registration_that_fails_for_a_moment_is_repeated_after_a_look() {
    for fault in [
        GitHubFault::Refuse(ApiError::new(502, "Server Error")),
        GitHubFault::Lost(502),
        GitHubFault::Lost(0),
    ] {
        let mut history = Simulation::new(1);
        registration_fails(&history, 1, fault.clone());
        history.post(&small());
        holds(&mut history, within(10));
        assert_eq!((runners(&history), history.machines.len()), (1, 1), "{fault:?}");
    }
}

#[test]
fn ol_08_a_launch_is_tried_for_a_day_and_its_history_stays_small() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().queue_limit = hours(48);
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    let kept = history.post(&small());
    history.run_for(hours(23));
    assert_eq!(ended(&history, Status::Succeeded).len(), 0);
    history.after(minutes(20), |history| history.state().ec2.restore_capacity());
    holds(&mut history, within(24 * 60));
    let execution = history.state().executions[&history.world.base_name(REPOSITORY, kept)].clone();
    // Back off, launch, and its choice: 9 events and 3 transitions a turn.
    assert!(execution.transitions() < 1_000, "{}", execution.transitions());
    let asked = history.state().github.calls()[&format!("GET {}", endpoint::JOB)];
    assert!(asked <= 26, "{asked}: GitHub is asked at most hourly during back-off");
}

#[test]
fn ol_08_after_a_day_it_is_given_up_and_told_of() {
    let mut history = Simulation::new(1);
    // GitHub cancels the job half an hour late; until then its debt is paid once more.
    history.state().github.options_mut().queue_limit = hours(24) + minutes(30);
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    let job = history.post(&small());
    assert!(history.run_to_rest(hours(30)), "{}", story(&history));
    assert_eq!(history.world.metric("LaunchGivenUp"), 1.0);
    let name = history.world.base_name(REPOSITORY, job);
    let reason = history.state().executions[&name].reason().map(str::to_owned);
    assert_eq!(reason.as_deref(), Some("no machine for 24 h"));
    assert_eq!(ended(&history, Status::Succeeded), [name.clone(), format!("{name}-r1")]);
    let found = violations(&history, Allowance::NONE);
    assert!(found.iter().all(|violation| violation.starts_with("I2")), "{found:?}");
}

#[test]
fn ol_11_a_machine_that_dies_at_once_is_replaced_within_minutes() {
    let mut history = Simulation::new(1);
    history.state().ec2.plan_launches([LaunchFault::Dies]);
    history.post(&small());
    holds(&mut history, within(3));
    let first = history.state().executions.values().next().unwrap().clone();
    assert_eq!((first.reason(), runners(&history)), (Some("ran nothing"), 2));
}

#[test]
fn ol_12_a_wrong_profile_is_told_of_and_waits_for_the_operator() {
    let mut history = Simulation::new(1);
    let good = Arc::clone(&history.state().fleet.on_demand);
    let fault = ec2::Fault::new(
        "InvalidParameterValue",
        "Value (x) for parameter iamInstanceProfile.name is invalid.",
    );
    let bad = ec2::Template { fault: Some(fault), version: "2".into(), ..(*good).clone() };
    history.state().fleet.on_demand = Arc::new(bad);
    history.post(&small());
    history.run_for(minutes(60));
    let refused = history.world.metric_by("LaunchRefused", "Configuration");
    assert!((6.0..=9.0).contains(&refused), "{refused}: a few times, then every 15 minutes");
    history.state().fleet.on_demand = good;
    holds(&mut history, within(80));
    assert_eq!(runners(&history), 1);
}

#[test]
fn ol_12_what_was_made_a_moment_ago_is_waited_for_in_minutes() {
    for code in
        ["InvalidParameterValue", "InvalidGroup.NotFound", "InvalidLaunchTemplateId.NotFound"]
    {
        let mut history = Simulation::new(1);
        refuses(&history, PoolMatch::default(), code, Some(2));
        history.post(&small());
        holds(&mut history, within(5));
        assert_eq!(runners(&history), 1, "{code}");
    }
}

#[test]
fn ol_14_a_registration_may_be_of_any_size() {
    for bytes in [2_000, 4_500, 8_000, 60_000] {
        let mut history = Simulation::new(1);
        history.state().github.options_mut().jit_bytes = bytes;
        history.post(&small());
        holds(&mut history, Allowance::NONE);
    }
}

#[test]
fn ol_15_ol_16_a_registration_of_a_step_that_was_killed_is_replaced_under_the_same_name() {
    for plan in [
        Plan::nth("Forge.register", 1, Strike::CutAfter),
        Plan::nth("Ledger.record_registration", 1, Strike::CutBefore),
        Plan::nth("Ledger.record_registration", 1, Strike::CutAfter),
        Plan::nth("Handoff.put", 1, Strike::CutBefore),
    ] {
        let mut history = Simulation::new(1);
        history.state().plan = plan.clone();
        history.post(&small());
        holds(&mut history, within(10));
        assert_eq!((runners(&history), history.machines.len()), (1, 1), "{plan:?}");
        let calls = history.state().github.calls().clone();
        assert_eq!(calls[&format!("POST {}", endpoint::ORG_JIT)], 3, "409, and once more");
    }
}

#[test]
fn a_step_killed_after_the_hand_over_finds_its_work_done() {
    for plan in [
        Plan::nth("Handoff.put", 1, Strike::CutAfter),
        Plan::nth("Ledger.record_handover", 1, Strike::CutBefore),
        Plan::nth("Ledger.record_handover", 1, Strike::CutAfter),
    ] {
        let mut history = Simulation::new(1);
        history.state().ec2.options().boot = ec2::Span::seconds(20, 40);
        history.state().plan = plan.clone();
        history.post(&small());
        holds(&mut history, within(10));
        assert_eq!(runners(&history), 1, "{plan:?}");
        let deleted = format!("DELETE {}", endpoint::ORG_RUNNER);
        assert_eq!(history.state().github.calls()[&deleted], 1, "{plan:?}: only at the end");
    }
}

/// Found by seed 701518: the machine had its registration, and was not yet seen online; that GitHub does not remove it
/// is the first sign of the job that it has.
#[test]
fn i4_a_registration_of_our_own_that_cannot_be_removed_is_at_work() {
    for milliseconds in [0, 200, 400, 600, 800, 1000] {
        let mut history = Simulation::new(1);
        let boot = Duration::from_millis(milliseconds);
        history.state().ec2.options().boot = ec2::Span { least: boot, most: boot };
        history.state().plan = Plan::nth("Handoff.put", 1, Strike::After);
        history.state().github.add_fault(FaultRule {
            method: "DELETE".into(),
            template: endpoint::ORG_RUNNER.into(),
            skip: 0,
            times: 3,
            fault: GitHubFault::Refuse(ApiError::new(422, "Invalid request.")),
        });
        history.post(&small());
        holds(&mut history, within(20));
        assert_eq!(history.world.metric("NameTaken"), 0.0, "{milliseconds}");
    }
}

#[test]
fn ol_17_a_lost_answer_and_a_second_conflict_end_in_a_follower_with_a_new_name() {
    let mut history = Simulation::new(1);
    registration_fails(&history, 1, GitHubFault::Lost(504));
    let taken = ApiError::new(409, "Already exists - A runner with the name exists.");
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::ORG_JIT.into(),
        skip: 1,
        times: 1,
        fault: GitHubFault::Refuse(taken),
    });
    history.post(&small());
    holds(&mut history, within(10));
    assert_eq!(history.world.metric("NameTaken"), 1.0);
    assert!(names(&history.world)[1].ends_with("-r1"));
}

#[test]
fn ol_16_a_name_that_works_for_somebody_else_is_left_alone() {
    let mut history = Simulation::new(1);
    // A registration of that name that is online, from elsewhere.
    let job = history.at_github(|github, now| github.post_job(now, &small()).unwrap());
    let name = history.world.base_name(REPOSITORY, job);
    let labels = ["self-hosted".to_owned()];
    history.at_github(|github, now| {
        let scope = Scope::Organization(ORGANIZATION.into());
        let jit = github.generate_jit(now, &scope, &name, Some(1), &labels).unwrap();
        github.options_mut().offline_after = None;
        github.connect(now, &jit.encoded).unwrap();
    });
    history.run_for(minutes(30));
    assert_eq!(names(&history.world), [name.clone(), format!("{name}-r1")]);
    let done = history.state().github.all_jobs().all(|job| job.status == JobStatus::Completed);
    assert!(done && live(&history) == 0, "{}", story(&history));
}

#[test]
fn ol_18_a_full_group_starts_no_machines_until_it_is_tried_again() {
    let mut history = Simulation::new(1);
    history.state().github.options_mut().group_limit = 0;
    history.post(&small());
    history.run_for(seconds(30));
    for _ in 0..4 {
        history.post(&small());
    }
    history.run_for(minutes(10));
    assert_eq!(history.state().ec2.instances().count(), 1, "one was enough to know");
    assert_eq!(
        (live(&history), history.world.metric_by("RegistrationRefused", "GroupFull")),
        (0, 1.0)
    );
    history.state().github.options_mut().group_limit = 10_000;
    holds(&mut history, within(40));
    assert_eq!(runners(&history), 5);
}

#[test]
fn ol_21_no_group_costs_no_look_up() {
    let mut history = on_tier(|tier| tier["runner_group"] = json!(""));
    history.post(&small());
    history.run_for(seconds(5));
    assert!(!history.state().github.calls().contains_key(&format!("GET {}", endpoint::ORG_GROUPS)));
    assert_eq!(history.state().github.registrations()[0].group_id, 1);
    holds(&mut history, Allowance::NONE);
}

#[test]
fn ol_22_groups_that_are_not_ours_are_told_apart() {
    for (group, reason) in [
        ("GitHub Actions", "GroupForbidden"),
        ("2", "GroupForbidden"),
        ("99999", "GroupUnknown"),
        ("no such group", "GroupUnknown"),
    ] {
        let mut history = on_tier(|tier| tier["runner_group"] = json!(group));
        history.post(&small());
        history.run_for(minutes(1));
        assert_eq!(history.world.metric_by("RegistrationRefused", reason), 1.0, "{group}");
        assert_eq!(live(&history), 0, "{group}");
    }
}

#[test]
fn a_group_is_found_by_its_name() {
    let mut history = on_tier(|tier| tier["runner_group"] = json!("Special"));
    let id =
        history.state().github.add_group(ORGANIZATION, "special", Visibility::All, false).unwrap();
    history.post(&small());
    history.run_for(seconds(3));
    assert_eq!(history.state().github.registrations()[0].group_id, id);
    holds(&mut history, Allowance::NONE);
}

#[test]
fn ol_31_a_launch_whose_function_was_killed_is_the_same_machine() {
    for strike in [Strike::After, Strike::CutAfter] {
        let mut history = Simulation::new(1);
        history.state().ec2.options().untagged = ec2::Span::seconds(60, 60);
        history.state().plan = Plan::nth("Fleet.launch", 1, strike);
        history.post(&small());
        holds(&mut history, within(5));
        assert_eq!(history.machines.len(), 1, "{strike:?}: the token, not the tag, says so");
    }
}

#[test]
fn a_tier_that_is_changed_during_a_launch_costs_no_second_machine() {
    let mut history = Simulation::new(1);
    history.state().ec2.options().untagged = ec2::Span::seconds(10, 10);
    history.state().plan = Plan::nth("Fleet.launch", 1, Strike::CutAfter);
    history.post(&small());
    history.after(Duration::from_millis(1_001), |history| {
        let mut changed = tier("small", &["small"]);
        changed["instance_types"] = json!(["c7i.large"]);
        history.world.tiers(&[changed]);
    });
    holds(&mut history, within(10));
    assert_eq!(history.machines.len(), 1);
    assert_eq!(history.world.metric_by("LaunchDelayed", "TokenUsed"), 1.0);
}

#[test]
fn a_token_that_brought_nothing_is_followed_by_another() {
    let mut history = Simulation::new(1);
    history.state().plan = Plan::nth("Fleet.launch", 1, Strike::CutAfter);
    refuses(&history, PoolMatch::default(), "InsufficientInstanceCapacity", Some(1));
    history.post(&small());
    history.after(Duration::from_millis(1_001), |history| {
        let mut changed = tier("small", &["small"]);
        changed["instance_types"] = json!(["c7i.large"]);
        history.world.tiers(&[changed]);
    });
    holds(&mut history, within(10));
    assert_eq!((runners(&history), history.machines.len()), (1, 1));
}

#[test]
fn ra_01_without_quota_nothing_is_started_until_it_is_reset() {
    let mut history = Simulation::new(1);
    let installation = history.state().github.owner_installation(ORGANIZATION).unwrap();
    history.at_github(|github, now| {
        // The window opens with a call, and an hour later it is over.
        let _ = github.admit(now, &Caller::Installation(installation), "POST", endpoint::ORG_JIT);
        github.exhaust(now, installation, "actions_runner_registration");
    });
    for _ in 0..5 {
        history.post(&small());
    }
    history.run_for(minutes(50));
    assert!(history.state().ec2.instances().count() <= 5 && live(&history) == 0);
    let before = history.state().ec2.instances().count();
    history.run_for(minutes(8));
    assert_eq!(history.state().ec2.instances().count(), before, "none started meanwhile");
    holds(&mut history, within(90));
    assert!(history.world.metric_by("RegistrationRefused", "RateLimit") >= 1.0);
    assert_eq!(runners(&history), 5);
}

#[test]
fn ra_02_launches_that_waited_for_a_limit_do_not_start_at_one_moment() {
    let mut history = Simulation::new(1);
    let told = ApiError {
        headers: vec![("retry-after".into(), "600".into())],
        ..ApiError::new(403, "You have exceeded a secondary rate limit.")
    };
    registration_fails(&history, 1, GitHubFault::Refuse(told));
    history.post(&small());
    history.run_for(seconds(30));
    for _ in 0..60 {
        history.post(&small());
    }
    holds(&mut history, within(20));
    let state = history.state();
    let registered = state.calls.iter().filter(|call| call.name == "Forge.register");
    let mut at: Vec<_> = registered.map(|call| call.at).collect();
    at.sort();
    let most = at
        .iter()
        .map(|begin| at.iter().filter(|at| at.since(*begin) < seconds(5) && *at >= begin).count())
        .max();
    assert!(most.is_some_and(|most| most <= 20), "{most:?} of {} in 5 s", at.len());
    assert_eq!(at.len(), 62);
}

#[test]
fn another_owners_jobs_do_not_wait_for_a_blocked_one() {
    let mut history = Simulation::new(1);
    history.state().github.add_repository("other/tools", true);
    let told = ApiError {
        headers: vec![("retry-after".into(), "600".into())],
        ..ApiError::new(429, "You have exceeded a secondary rate limit.")
    };
    registration_fails(&history, 1, GitHubFault::Refuse(told));
    history.post(&small());
    history.run_for(seconds(30));
    let other = history.post(&JobSpec::new("other/tools", &["self-hosted", "small"]));
    history.run_for(minutes(5));
    let state = history.state();
    let served = |id: u64| {
        state.github.all_jobs().any(|job| job.id == id && job.status == JobStatus::Completed)
    };
    assert!(served(other));
    drop(state);
    holds(&mut history, within(20));
}

/// A job of a tier whose registrations GitHub refuses, then a row of jobs of another: how long the longest of
/// those waited; `None` if one still waits.
fn beside(history: &mut Simulation, refused: &JobSpec, others: &JobSpec) -> Option<Duration> {
    history.post(refused);
    history.run_for(minutes(1));
    let jobs: Vec<_> = (0..8)
        .map(|_| {
            let job = history.post(others);
            history.run_for(minutes(4));
            job
        })
        .collect();
    history.run_for(minutes(10));
    let state = history.state();
    let its = state.github.all_jobs().filter(|job| jobs.contains(&job.id));
    let waits: Option<Vec<_>> =
        its.map(|job| job.started_at.map(|at| at.since(job.queued_at))).collect();
    waits?.into_iter().max()
}

#[test]
fn ol_18_ol_22_a_tier_that_github_refuses_keeps_no_other_waiting() {
    let special = JobSpec::new(REPOSITORY, &["self-hosted", "special"]);
    for group in ["no such group", "2", "full"] {
        let mut history = Simulation::new(1);
        history.state().github.add_group(ORGANIZATION, "full", Visibility::All, false).unwrap();
        let mut tier_of_group = tier("special", &["special"]);
        tier_of_group["runner_group"] = json!(group);
        history.world.tiers(&[tier("small", &["small"]), tier_of_group]);
        if group == "full" {
            let full = ApiError::new(422, "Runner group 3 has reached max limit of 10000 runners.");
            registration_fails(&history, 1, GitHubFault::Refuse(full));
        }
        let longest = beside(&mut history, &special, &small());
        assert!(longest.is_some_and(|wait| wait < minutes(3)), "{group}: {longest:?}");
        assert!(history.world.metric("RegistrationRefused") >= 1.0, "{group}");
    }
}

#[test]
fn a_repository_that_github_refuses_keeps_no_other_waiting() {
    let mut history = Simulation::new(1);
    history.state().github.add_repository("acme/archived", true);
    let app = json!({"app_id": 1, "registration": "repository"});
    history.world.configure("control/app", app.to_string());
    history.state().github.add_fault(FaultRule {
        method: "POST".into(),
        template: endpoint::REPO_JIT.into(),
        skip: 0,
        times: 1,
        fault: GitHubFault::Refuse(ApiError::new(403, "Repository was archived.")),
    });
    let archived = JobSpec::new("acme/archived", &["self-hosted", "small"]);
    let longest = beside(&mut history, &archived, &small());
    assert!(longest.is_some_and(|wait| wait < minutes(3)), "{longest:?}");
}

#[test]
fn i4_a_registration_that_is_repeated_and_refused_ends_no_machine_at_work() {
    for plan in [
        Plan::nth("Handoff.put", 1, Strike::CutAfter),
        Plan::nth("Ledger.record_handover", 1, Strike::CutBefore),
        Plan::nth("Ledger.record_handover", 1, Strike::CutAfter),
    ] {
        let mut history = Simulation::new(1);
        history.state().ec2.options().boot = ec2::Span::seconds(0, 0);
        history.state().plan = plan.clone();
        // Of the second try: the first has registered, and its runner has the job by then.
        history.state().github.add_fault(FaultRule {
            method: "POST".into(),
            template: endpoint::ORG_JIT.into(),
            skip: 1,
            times: 3,
            fault: GitHubFault::Refuse(ApiError::new(
                429,
                "You have exceeded a secondary rate limit.",
            )),
        });
        history.post(&lasting(minutes(10)));
        history.run_for(seconds(1));
        let slow = Duration::from_secs(12);
        history.state().latency = ec2::Span { least: slow, most: slow };
        history.after(minutes(1), |history| history.state().latency = ec2::Span::ZERO);
        holds(&mut history, within(10));
        assert_eq!((runners(&history), history.machines.len()), (1, 1), "{plan:?}");
    }
}

#[test]
fn a_user_accounts_runners_are_registered_with_the_repository() {
    let mut history = Simulation::new(1);
    {
        let mut state = history.state();
        state.github.add_owner("someone", ostler_sim::github::OwnerKind::User);
        state.github.add_repository("someone/tools", true);
    }
    history.post(&JobSpec::new("someone/tools", &["self-hosted", "small"]));
    holds(&mut history, Allowance::NONE);
    assert_eq!(history.state().github.calls()[&format!("POST {}", endpoint::REPO_JIT)], 1);
}

#[test]
fn registration_at_repositories_is_one_setting() {
    let mut history = Simulation::new(1);
    let app = json!({"app_id": 1, "registration": "repository"});
    history.world.configure("control/app", app.to_string());
    history.post(&small());
    holds(&mut history, Allowance::NONE);
    let calls = history.state().github.calls().clone();
    assert_eq!(calls[&format!("POST {}", endpoint::REPO_JIT)], 1);
    assert!(!calls.contains_key(&format!("POST {}", endpoint::ORG_JIT)));
}

#[test]
fn cl_02_cl_03_max_runners_bounds_what_lives_and_starves_nobody() {
    let mut history = on_tier(|tier| tier["max_runners"] = json!(2));
    for _ in 0..5 {
        history.post(&lasting(minutes(3)));
        history.run_for(seconds(10));
    }
    let mut most = 0;
    for _ in 0..240 {
        history.run_for(seconds(15));
        most = most.max(live(&history));
    }
    assert_eq!(most, 2);
    holds(&mut history, within(120));
    assert_eq!(runners(&history), 5);
}

#[test]
fn max_runners_does_not_lock_out_the_runner_whose_purchase_was_not_answered() {
    for strike in [Strike::After, Strike::CutAfter] {
        let mut history = on_tier(|tier| tier["max_runners"] = json!(1));
        history.state().plan = Plan::nth("Fleet.launch", 1, strike);
        history.post(&small());
        holds(&mut history, within(3));
        assert_eq!((runners(&history), history.machines.len()), (1, 1), "{strike:?}");
    }
}

#[test]
fn re_04_tags_are_part_of_the_launch() {
    let mut history = Simulation::new(1);
    let job = history.post(&small());
    history.run_for(seconds(2));
    let state = history.state();
    let instance = state.ec2.instances().next().unwrap();
    let name = history.world.base_name(REPOSITORY, job);
    assert_eq!(instance.tags["ostler:runner"], name);
    for key in ["ostler:owner", "ostler:tier", "ostler:repo", "ostler:state", "ostler:until"] {
        assert!(!instance.tags[key].is_empty(), "{key}");
    }
    let until = ostler_core::time::Timestamp::parse(&instance.tags["ostler:until"]).unwrap();
    let margin = until.since(instance.launched + hours(6));
    assert!(margin >= hours(1) && margin <= hours(2), "{margin:?} after the lifetime");
    assert_eq!(instance.state(state.now), InstanceState::Running);
}

#[test]
fn a_tier_that_was_removed_keeps_the_job_until_it_is_back() {
    let mut history = Simulation::new(1);
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    history.post(&small());
    history.run_for(seconds(30));
    history.world.tiers(&[]);
    history.state().ec2.restore_capacity();
    history.run_for(minutes(30));
    assert!(history.world.metric_by("LaunchDelayed", "Configuration") >= 1.0);
    history.world.tiers(&[tier("small", &["small"])]);
    holds(&mut history, within(60));
}

#[test]
fn a_second_machine_of_one_purchase_is_ended_at_once() {
    let mut history = Simulation::new(1);
    history.state().ec2.double_launches(1);
    history.post(&lasting(minutes(20)));
    history.run_for(minutes(3));
    let bought = history.state().ec2.instances().count();
    assert_eq!((bought, live(&history)), (2, 1), "{}", story(&history));
    holds(&mut history, Allowance::NONE);
}

/// A job's runner waits for its tier, which is gone; meanwhile the runner of another job, which has `labels`, has taken
/// its job, and that one waits. Gives the two runners.
fn waits_while_another_has_its_job(history: &mut Simulation, labels: &[&str]) -> [String; 2] {
    history.world.tiers(&[tier("gone", &["small"])]);
    history.state().ec2.limit_capacity(PoolMatch::default(), 0);
    let own = history.post(&lasting(hours(12)));
    history.run_for(seconds(10));
    history.world.tiers(&[tier("other", &["small", "large"])]);
    history.state().settings = None;
    history.state().ec2.restore_capacity();
    let wanted = [&["self-hosted"], labels].concat();
    let waits = history.post(&JobSpec::new(REPOSITORY, &wanted));
    history.state().github.set_turn(waits, Turn::Later);
    history.run_for(minutes(4));
    let [own_runner, other] = [own, waits].map(|job| history.world.base_name(REPOSITORY, job));
    let ran_on = |job: &ostler_sim::github::Job| job.runner.as_ref().map(|it| it.name.clone());
    let ran = history.state().github.all_jobs().find(|job| job.id == own).and_then(ran_on);
    assert_eq!(ran.as_ref(), Some(&other), "{}", story(history));
    [own_runner, other]
}

#[test]
fn a_runner_whose_job_another_has_is_not_launched_for_one_that_has_supply() {
    let mut history = Simulation::new(1);
    history.judges_reports = true;
    let [late, other] = waits_while_another_has_its_job(&mut history, &["small"]);
    // Somebody has started one for who waits.
    let input = history.state().executions[&other].input.clone();
    history.begin(&format!("{other}-r1"), input);
    history.run_for(minutes(10));
    let end = history.state().executions[&late].reason().map(str::to_owned);
    assert_eq!(end.as_deref(), Some("unneeded"), "{}", story(&history));
}

#[test]
fn a_runner_whose_job_another_has_pays_for_the_job_that_waits_if_it_can_not_run_it() {
    let mut history = Simulation::new(1);
    // Nobody else does: who has its job is not looked after any more.
    history.ruler = Box::new(|_, _| vec![]);
    let [late, other] = waits_while_another_has_its_job(&mut history, &["large"]);
    history.end_execution(&other, Status::Aborted);
    history.run_for(hours(3));
    let end = history.state().executions[&late].reason().map(str::to_owned);
    assert_eq!(end.as_deref(), Some("unneeded"), "{}", story(&history));
    assert!(names(&history.world).contains(&format!("{other}-r1")), "{}", story(&history));
}

#[test]
fn what_was_handed_over_is_not_registered_anew_though_its_machine_never_came_online() {
    for seed in 1..=8 {
        let mut history = Simulation::new(seed);
        // It freezes when it has claimed its registration, and the step is tried again after that.
        history.fates = [Fate::Freezes(seconds(1))].into();
        history.state().plan = Plan::nth("Ledger.record_handover", 1, Strike::CutAfter)
            .and(Plan::some("Ledger.runner", 2, 7, Strike::Before));
        history.post(&small());
        holds(&mut history, within(60));
        let calls = history.state().calls.clone();
        let asked = calls.iter().filter(|call| call.name == "Forge.register").count();
        assert_eq!(asked, runners(&history), "{seed}: {}", story(&history));
    }
}
