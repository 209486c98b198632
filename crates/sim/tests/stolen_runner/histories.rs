//! Whole histories of thefts, shuffles and deaths, over the state machine, the machines and the queue.

use std::time::Duration;

use ostler_core::names::Lineage;
use ostler_core::ports::Ran;
use ostler_sim::ec2::LaunchFault;
use ostler_sim::github::{JobSpec, Status};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::{REPOSITORY, World, tier};

use crate::common::{hours, lasting, minutes, runners, seconds, small, story, verdict};
use crate::scene::STRANGE;

/// A world with the handler at work.
pub fn begin(seed: u64) -> Simulation {
    let world = World::new(seed);
    world.tiers(&[tier("small", &["small"]), tier("large", &["small", "large"])]);
    world.state().github.add_repository(STRANGE, true).installed = false;
    let mut history = Simulation::over(world);
    history.judges_reports = true;
    history
}

pub fn strange(lasts: Duration) -> JobSpec {
    JobSpec { repository: STRANGE.into(), ..lasting(lasts) }
}

fn large() -> JobSpec {
    JobSpec::new(REPOSITORY, &["self-hosted", "large"])
}

fn started(history: &Simulation, job: u64) -> bool {
    history.state().github.all_jobs().any(|it| it.id == job && it.started_at.is_some())
}

fn hold(history: &Simulation, job: u64, held: bool) {
    let status = if held { Status::Waiting } else { Status::Queued };
    history.state().github.hold(job, status);
}

/// How many runners were started for the job.
fn runners_of(history: &Simulation, job: u64) -> usize {
    history.state().executions.values().filter(|execution| execution.job() == Some(job)).count()
}

/// Has GitHub prefer `taker` to `victim`, until it was given a runner.
fn prefer(history: &mut Simulation, taker: u64, victim: u64) {
    let waits = !started(history, taker);
    hold(history, victim, waits);
    if waits {
        history.after(seconds(1), move |history| prefer(history, taker, victim));
    }
}

/// The victim's first runner is taken by a job of the strange repository that lasts so long.
pub fn rob_for(history: &mut Simulation, victim: u64, lasts: Duration) {
    let name = history.world.base_name(REPOSITORY, victim);
    if !history.machines.values().any(|it| it.runner == name) {
        history.after(seconds(1), move |history| rob_for(history, victim, lasts));
        return;
    }
    let thief = history.post(&strange(lasts));
    prefer(history, thief, victim);
}

/// Each of the victim's first `thefts` runners is taken by a job of the strange repository.
fn rob(history: &mut Simulation, victim: u64, thefts: usize, done: usize) {
    if done == thefts {
        return;
    }
    // Only once its machine is there: a launch asks whether the job still waits.
    let next = names_of(history, victim).get(done).cloned();
    let launched = |name: &String| history.machines.values().any(|it| it.runner == *name);
    if !next.is_some_and(|name| launched(&name)) {
        history.after(seconds(1), move |history| rob(history, victim, thefts, done));
        return;
    }
    let thief = history.post(&strange(minutes(20)));
    prefer(history, thief, victim);
    history.after(seconds(2), move |history| rob(history, victim, thefts, done + 1));
}

fn names_of(history: &Simulation, job: u64) -> Vec<String> {
    let state = history.state();
    let its = state.executions.values().filter(|execution| execution.job() == Some(job));
    its.map(|execution| execution.name.clone()).collect()
}

fn ran_on(history: &Simulation, job: u64) -> Option<String> {
    let state = history.state();
    state.github.all_jobs().find(|it| it.id == job)?.runner.as_ref().map(|on| on.name.clone())
}

#[track_caller]
fn holds(history: &mut Simulation, allowance: Allowance) {
    let found = verdict(history, allowance);
    assert!(found.is_empty(), "{found:#?}\n{}", story(history));
    assert_eq!(history.dead_reports, 0, "{}", story(history));
}

/// Nobody waits longer than it takes to find a theft and to boot another machine.
const FOUND: Allowance = Allowance { surplus: 0, longest_wait: minutes(9) };

#[test]
fn a_stolen_runner_is_replaced_once_and_the_waiting_job_runs_on_the_replacement() {
    for seed in 0..8 {
        let mut history = begin(seed);
        let job = history.post(&small());
        rob(&mut history, job, 1, 0);
        holds(&mut history, FOUND);
        assert_eq!(runners_of(&history, job), 2, "{}", story(&history));
        assert!(ran_on(&history, job).unwrap().ends_with("-r1"));
    }
}

#[test]
fn s17_stolen_again_and_again_it_is_replaced_three_times_and_the_metric_says_so() {
    let mut history = begin(3);
    let job = history.post(&small());
    rob(&mut history, job, 4, 0);
    holds(&mut history, Allowance { longest_wait: hours(48), ..FOUND });
    let attempts: Vec<u8> =
        names_of(&history, job).iter().map(|name| Lineage::parse(name).replacement).collect();
    assert_eq!(attempts, [0, 1, 2, 3], "{}", story(&history));
    assert!(history.world.metric("ReplacementsUsedUp") >= 1.0);
    assert!(!started(&history, job));
}

#[test]
fn st_10_a_matrix_that_github_shuffles_starts_nothing_more() {
    for seed in 0..4 {
        let mut history = begin(seed);
        let jobs = 12;
        for _ in 0..jobs {
            history.post(&small());
        }
        holds(&mut history, Allowance::NONE);
        assert_eq!(runners(&history), jobs, "{}", story(&history));
    }
}

#[test]
fn b16_a_shuffle_starts_nothing_though_the_other_jobs_event_is_two_minutes_late() {
    let mut history = begin(5);
    history.courier = Box::new(|event, _| {
        let late = event.payload["workflow_job"]["name"] == "late";
        let queued = event.action.as_deref() == Some("queued");
        vec![if late && queued { seconds(120) } else { seconds(1) }]
    });
    let first = history.post(&small());
    let late = history.post(&JobSpec { name: "late".into(), ..small() });
    prefer(&mut history, late, first);
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 2, "{}", story(&history));
}

#[test]
fn s14_a_shuffle_without_cover_starts_exactly_one() {
    let mut history = begin(6);
    let (big, little) = (history.post(&large()), history.post(&small()));
    prefer(&mut history, little, big);
    // Nothing but the large runner is there for the small job at first.
    history.state().ec2.plan_launches([LaunchFault::None, LaunchFault::Slow(seconds(200))]);
    holds(&mut history, Allowance { surplus: 1, ..FOUND });
    assert_eq!((runners_of(&history, big), runners_of(&history, little)), (2, 1));
    assert!(ran_on(&history, big).unwrap().ends_with("-r1"), "{}", story(&history));
}

#[test]
fn b15_a_shuffle_after_which_the_other_runner_dies_starts_exactly_one() {
    let mut history = begin(7);
    let (first, second) = (history.post(&small()), history.post(&lasting(minutes(10))));
    prefer(&mut history, second, first);
    history.state().ec2.plan_launches([LaunchFault::None, LaunchFault::Slow(seconds(240))]);
    history.fates = [Fate::Healthy, Fate::Dies(seconds(2))].into();
    holds(&mut history, Allowance { longest_wait: minutes(20), ..FOUND });
    assert_eq!(runners(&history), 3, "{}", story(&history));
    assert!(ran_on(&history, first).unwrap().ends_with("-r1"));
}

#[test]
fn st_02_a_job_that_is_cancelled_before_its_machine_boots_leaves_no_endless_shift() {
    let mut history = begin(8);
    let cancelled = history.post(&small());
    history.after(seconds(20), move |history| history.cancel(cancelled));
    history.after(seconds(25), |history| {
        history.post(&small());
    });
    holds(&mut history, Allowance { surplus: 1, ..FOUND });
    assert_eq!(runners(&history), 2, "the surplus one ends as idle, and is not replaced");
}

#[test]
fn sq_13_a_job_of_many_hours_leaves_no_report_and_no_dead_letter() {
    let mut history = begin(9);
    history.post(&lasting(hours(5)));
    holds(&mut history, Allowance::NONE);
    assert_eq!(runners(&history), 1);
}

#[test]
fn a_theft_is_found_by_whichever_of_report_line_and_check_is_left() {
    for (hooks, lines) in [(false, true), (true, false), (false, false)] {
        let mut history = begin(10);
        history.courier = Box::new(move |event, _| {
            let lost = event.action.as_deref() == Some("in_progress") && !hooks;
            if lost { vec![] } else { vec![seconds(1)] }
        });
        history.printer = Box::new(move |_, _| if lines { vec![seconds(5)] } else { vec![] });
        let job = history.post(&small());
        rob(&mut history, job, 1, 0);
        holds(&mut history, FOUND);
        assert_eq!(runners_of(&history, job), 2, "{hooks} {lines}: {}", story(&history));
    }
}

/// A job with the instance's role prints whatever it likes: lines about other live runners, strange repositories, its own
/// successors, and thousands of each.
#[test]
fn i7_l4_a_hostile_jobs_lines_start_nothing_account_for_nothing_and_displace_nothing() {
    // With GitHub's word about each runner; and with nothing but the forged lines.
    assert!(plagued(true) > 20.0);
    assert!(plagued(false) > 20.0);
}

fn plagued(hooks: bool) -> f64 {
    let mut history = begin(11);
    history.courier = Box::new(move |event, _| {
        let lost = event.action.as_deref() == Some("in_progress") && !hooks;
        if lost { vec![] } else { vec![seconds(1)] }
    });
    history.printer = Box::new(move |line, _| {
        let forged = line.ends_with("WORKFLOW_ID=1");
        if hooks || forged { vec![seconds(5)] } else { vec![] }
    });
    let hostile = history.post(&lasting(minutes(40)));
    let others: Vec<u64> = (0..4).map(|_| history.post(&lasting(minutes(15)))).collect();
    // One of them is held back by GitHub, so that its runner idles; one runner is truly stolen.
    let (idle, robbed) = (others[0], others[1]);
    fn plague(history: &mut Simulation, hostile: u64, until: ostler_core::time::Timestamp) {
        let own = ran_on(history, hostile);
        if let Some(own) = own {
            let mut names: Vec<String> = history.state().executions.keys().cloned().collect();
            names.extend((1..=3).flat_map(|n| [format!("{own}-r{n}"), format!("{own}-q{n}")]));
            let run = i64::try_from(hostile).unwrap_or_default();
            for name in &names {
                for repo in [STRANGE, REPOSITORY, "evil/repo", "acme/nothing"] {
                    for run in [1, run] {
                        history.print(&format!(
                            "CDKGHR JOB RUNNER={name} REPO={repo} WORKFLOW_ID={run}"
                        ));
                    }
                }
            }
            history.print("CDKGHR JOB RUNNER=../../x REPO=a/b WORKFLOW_ID=1");
            history.print("CDKGHR JOB RUNNER=nobodys REPO=acme/widgets WORKFLOW_ID=1");
        }
        if history.now() < until {
            history.after(seconds(150), move |history| plague(history, hostile, until));
        }
    }
    let until = history.now() + minutes(30);
    plague(&mut history, hostile, until);
    let thief = history.post(&strange(minutes(5)));
    prefer(&mut history, thief, robbed);
    hold(&history, idle, true);
    history.after(minutes(4), move |history| hold(history, idle, false));
    holds(&mut history, Allowance { surplus: 1, longest_wait: minutes(15) });
    let found = started(&history, robbed) && started(&history, idle);
    assert!(found && runners(&history) <= 7, "{}", story(&history));
    truthful(&history);
    history.world.metric("ReportQueued")
}

/// L4: what the ledger says of a runner is what happened.
#[track_caller]
pub fn truthful(history: &Simulation) {
    let state = history.state();
    for machine in history.machines.values() {
        let record = state.runner_record(&machine.runner);
        let real = machine.job.and_then(|job| i64::try_from(job).ok());
        let own = state.executions[&machine.runner].job();
        match record.ran {
            Ran::Job { id, .. } => assert_eq!(Some(id.0), real, "{}", machine.runner),
            // A runner whose end was judged may be called taken; nothing follows from it.
            Ran::Taken => assert!(
                machine.job.is_some() && machine.job != own || record.ended_at.is_some(),
                "{} was called taken",
                machine.runner
            ),
            Ran::Unknown => {}
        }
    }
}
