//! The laws of supply and debt over random histories of starts, thefts, shuffles, deaths, approvals and cancellations,
//! with late, lost, doubled and forged reports:
//!
//! - L1: no accepted job waits for ever, unless all its replacements were truly lost.
//! - L2: runners started are no more than accepted jobs and runners that were lost. Histories with the exceptions that
//!   can't be avoided are left out: a lost report, a late webhook, a cancellation, an approval.
//! - L3: no job has a second available runner.
//! - L4: a forged line accounts for nothing: what the ledger says of a runner is what happened.

use std::time::Duration;

use ostler_sim::ec2::{self, LaunchFault, Span};
use ostler_sim::github::{JobSpec, Status};
use ostler_sim::invariants::{Allowance, accepted};
use ostler_sim::simulation::{Fate, Simulation};
use ostler_sim::world::REPOSITORY;
use proptest::prelude::*;

use crate::common::{hours, seconds, small, story, verdict};
use crate::histories::{begin, strange, truthful};
use crate::scene::STRANGE;

/// Histories of one run. In debug, all of them take less than 20 s.
const CASES: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Small,
    /// Of the other tier, whose runners can run small jobs too.
    Large,
    /// Behind an environment: queued, waiting, and queued again once it is approved.
    Gated(u64),
    /// Of a repository where the App is not installed.
    Strange,
    /// Prints lines about all runners while it runs.
    Hostile,
}

#[derive(Clone, Copy, Debug)]
struct Plot {
    at: u64,
    lasts: u64,
    kind: Kind,
    cancelled: Option<u64>,
    /// Of its `queued` events: how long they take; `None` if they are lost and delivered by hand an hour later.
    hook: Option<u64>,
    /// Of its `in_progress` event.
    signed: Option<u64>,
    /// Of its runner's line.
    line: Option<u64>,
    again: bool,
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    jobs: Vec<Plot>,
    /// Fates of the machines, in order of launch.
    fates: Vec<Loss>,
    overlaps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    None,
    NeverBoots,
    Dies(u64),
}

fn plot(tame: bool) -> impl Strategy<Value = Plot> {
    let lasts = prop_oneof![5u64..120, 120u64..900, 3600u64..7200];
    let kind = match tame {
        true => prop_oneof![5 => Just(Kind::Small), 2 => Just(Kind::Strange)].boxed(),
        false => prop_oneof![
            4 => Just(Kind::Small),
            2 => Just(Kind::Large),
            1 => (20u64..2000).prop_map(Kind::Gated),
            2 => Just(Kind::Strange),
            1 => Just(Kind::Hostile),
        ]
        .boxed(),
    };
    let wild = move |most: f64, late: std::ops::Range<u64>| {
        let share = if tame { 0.0 } else { most };
        (proptest::bool::weighted(share), proptest::bool::weighted(share), 1u64..4, late).prop_map(
            |(lost, is_late, soon, late)| (!lost).then_some(if is_late { late } else { soon }),
        )
    };
    let cancelled = match tame {
        true => Just(None).boxed(),
        false => proptest::option::weighted(0.12, 1u64..400).boxed(),
    };
    (
        (0u64..300, lasts, kind, cancelled),
        (wild(0.07, 60..900), wild(0.2, 60..400), wild(0.2, 10..400), any::<bool>()),
    )
        .prop_map(|((at, lasts, kind, cancelled), (hook, signed, line, again))| Plot {
            at,
            lasts,
            kind,
            cancelled,
            hook,
            signed,
            line,
            again,
        })
}

fn plan(tame: bool) -> impl Strategy<Value = Plan> {
    let loss = prop_oneof![
        5 => Just(Loss::None),
        1 => Just(Loss::NeverBoots),
        1 => (0u64..400).prop_map(Loss::Dies),
    ];
    (
        any::<u64>(),
        proptest::collection::vec(plot(tame), 3..8),
        proptest::collection::vec(loss, 0..6),
        any::<bool>(),
    )
        .prop_map(move |(seed, jobs, fates, overlaps)| Plan {
            seed,
            jobs,
            fates: if tame { Vec::new() } else { fates },
            overlaps,
        })
}

fn index_of(name: Option<&str>) -> Option<usize> {
    name?.parse().ok()
}

fn play(plan: &Plan) -> Simulation {
    let mut history = begin(plan.seed);
    {
        let mut state = history.state();
        *state.ec2.options() = ec2::Options { throttle: None, ..ec2::Options::default() };
        state.ec2.plan_launches(plan.fates.iter().map(|loss| match loss {
            Loss::NeverBoots => LaunchFault::Dead,
            Loss::None | Loss::Dies(_) => LaunchFault::None,
        }));
        if plan.overlaps {
            let (least, most) = (Duration::from_millis(20), Duration::from_millis(300));
            state.latency = Span { least, most };
        }
    }
    history.fates = plan
        .fates
        .iter()
        .map(|loss| match loss {
            Loss::Dies(after) => Fate::Dies(seconds(*after)),
            Loss::None | Loss::NeverBoots => Fate::Healthy,
        })
        .collect();
    let plots = plan.jobs.clone();
    history.courier = Box::new(move |event, _| {
        let name = event.payload["workflow_job"]["name"].as_str();
        let Some(plot) = index_of(name).and_then(|index| plots.get(index)) else { return vec![] };
        let times = |time: Option<u64>| match (time, plot.again) {
            (Some(time), true) => vec![seconds(time), seconds(time + 700)],
            (Some(time), false) => vec![seconds(time)],
            (None, _) => vec![],
        };
        match event.action.as_deref() {
            // Found and redelivered by someone.
            Some("queued") if plot.hook.is_none() => vec![seconds(3600)],
            Some("queued") => times(plot.hook),
            Some("in_progress") => times(plot.signed),
            _ => vec![seconds(1)],
        }
    });
    let lines: Vec<Option<u64>> = plan.jobs.iter().map(|plot| plot.line).collect();
    let mut printed = 0;
    history.printer = Box::new(move |line, _| {
        printed += 1;
        let true_line = !line.ends_with("WORKFLOW_ID=1");
        match lines[printed % lines.len()] {
            Some(time) if true_line => vec![seconds(5 + time)],
            None if true_line => vec![],
            _ => vec![seconds(5)],
        }
    });
    for (index, plot) in plan.jobs.iter().copied().enumerate() {
        let base = match plot.kind {
            Kind::Small | Kind::Hostile => small(),
            Kind::Large => JobSpec::new(REPOSITORY, &["self-hosted", "large"]),
            Kind::Gated(_) => JobSpec { environment: Some("production".into()), ..small() },
            Kind::Strange => strange(seconds(plot.lasts)),
        };
        let spec = JobSpec { name: index.to_string(), duration: seconds(plot.lasts), ..base };
        history.after(seconds(plot.at), move |history| {
            let job = history.post(&spec);
            if let Some(cancelled) = plot.cancelled {
                history.after(seconds(cancelled), move |history| history.cancel(job));
            }
            if let Kind::Gated(approved) = plot.kind {
                history.after(seconds(approved), move |history| {
                    let now = history.now();
                    let _ = history.state().github.approve(now, job);
                });
            }
            if plot.kind == Kind::Hostile {
                forge(history, job, 40);
            }
        });
    }
    history
}

/// While the job runs, it prints lines about every runner there is, and about its own successors.
fn forge(history: &mut Simulation, job: u64, left: u32) {
    let found = {
        let state = history.state();
        let found = state.github.all_jobs().find(|it| it.id == job);
        found.map(|it| (it.status, it.runner.as_ref().map(|on| on.name.clone())))
    };
    if let Some((Status::InProgress, Some(own))) = &found {
        let mut names: Vec<String> = history.state().executions.keys().cloned().collect();
        names.push(format!("{own}-r1"));
        for name in names {
            history.print(&format!("CDKGHR JOB RUNNER={name} REPO={STRANGE} WORKFLOW_ID=1"));
        }
    }
    if left > 0 && !matches!(found, Some((Status::Completed, _))) {
        history.after(seconds(120), move |history| forge(history, job, left - 1));
    }
}

/// Runners that a job of ours lost: those that ran a job which no runner was started for.
fn stolen(history: &Simulation) -> usize {
    let ours = accepted(&history.state());
    let thief = |job: Option<u64>| job.is_some_and(|job| !ours.contains(&job));
    history.machines.values().filter(|machine| thief(machine.job)).count()
}

/// Healthy runners may end without a job in these histories: what lost words, cancellations and approvals cost. What
/// they may not cost is a job, or a second runner at one time.
fn wild(plan: &Plan) -> Allowance {
    Allowance { surplus: plan.jobs.len() + plan.fates.len(), longest_wait: hours(5) }
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 300,
        failure_persistence: None,
        ..ProptestConfig::with_cases(CASES)
    })]

    #[test]
    fn l1_l3_l4_hold_in_every_history(plan in plan(false)) {
        let mut history = play(&plan);
        let found = verdict(&mut history, wild(&plan));
        prop_assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
        truthful(&history);
        prop_assert_eq!(history.dead_reports, 0, "{}", story(&history));
    }

    #[test]
    fn l1_l2_l3_l4_hold_where_no_word_is_lost(plan in plan(true)) {
        let mut history = play(&plan);
        let found = verdict(&mut history, Allowance { surplus: 0, longest_wait: hours(5) });
        prop_assert!(found.is_empty(), "{found:#?}\n{}", story(&history));
        truthful(&history);
        let (started, jobs) = {
            let state = history.state();
            (state.executions.len(), accepted(&state).len())
        };
        let stolen = stolen(&history);
        prop_assert!(started <= jobs + stolen, "{started} for {jobs} and {stolen}\n{}", story(&history));
    }
}
