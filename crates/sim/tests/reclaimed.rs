//! Machines that EC2 takes back before their job came, and machines on their way out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod common;

use std::time::Duration;

use common::{conclusion, holds, interrupt, minutes, names, only_tier, seconds, small};
use ostler_sim::ec2::{LaunchFault, Span};
use ostler_sim::invariants::Allowance;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::{REPOSITORY, Status};
use serde_json::json;

fn within(longest: Duration) -> Allowance {
    Allowance { longest_wait: longest, ..Allowance::NONE }
}

fn market(market: &str) -> Simulation {
    let mut history = Simulation::new(1);
    history.hears_instances = true;
    history.reconciles = true;
    only_tier(&history, json!({"market": market}));
    history
}

fn base(history: &Simulation, job: u64) -> String {
    history.world.base_name(REPOSITORY, job)
}

#[test]
fn sp_08_all_idle_spot_machines_are_reclaimed_and_all_are_there_again_at_once() {
    let mut history = market("spot-then-on-demand");
    history.state().ec2.plan_launches([const { LaunchFault::Slow(minutes(2)) }; 2]);
    let jobs = [history.post(&small()), history.post(&small())];
    history.run_for(seconds(10));
    for job in jobs {
        let name = base(&history, job);
        interrupt(&mut history, &name);
    }
    history.run_for(seconds(30));
    for job in jobs {
        let next = format!("{}-r1", base(&history, job));
        assert!(history.instance_of(&next).is_some(), "{next}: no trigger but EC2's word");
    }
    holds(&mut history, within(minutes(4)));
    assert_eq!(names(&history.world).len(), 4);
}

#[test]
fn cl_06_five_reclaims_in_a_row_end_neither_the_job_nor_an_on_demand_launch() {
    let mut history = market("spot-then-on-demand");
    history.state().ec2.plan_launches([const { LaunchFault::Slow(minutes(2)) }; 3]);
    let job = history.post(&small());
    let name = base(&history, job);
    for runner in [name.clone(), format!("{name}-r1"), format!("{name}-r2")] {
        history.run_for(seconds(20));
        interrupt(&mut history, &runner);
    }
    history.run_for(seconds(20));
    let last = history.instance_of(&format!("{name}-r3")).unwrap();
    let now = history.now();
    assert!(!history.state().ec2.interrupt(now, &last), "on demand, and so not to be reclaimed");
    holds(&mut history, within(minutes(5)));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn cl_06_where_there_is_only_spot_reclaims_cost_an_hour_and_not_the_job() {
    let mut history = market("spot");
    history.state().ec2.plan_launches([const { LaunchFault::Slow(minutes(2)) }; 5]);
    let job = history.post(&small());
    let name = base(&history, job);
    for suffix in ["", "-r1", "-r2", "-r3"] {
        history.run_for(seconds(20));
        interrupt(&mut history, &format!("{name}{suffix}"));
    }
    let next = format!("{name}-q1");
    for _ in 0..80 {
        if names(&history.world).contains(&next) {
            break;
        }
        history.run_for(minutes(1));
    }
    history.run_for(seconds(10));
    interrupt(&mut history, &next);
    holds(&mut history, within(minutes(80)));
    assert_eq!(conclusion(&history, job).as_deref(), Some("success"));
}

#[test]
fn cl_07_machines_that_are_shutting_down_serve_nobody_and_keep_nobodys_place() {
    let mut history = market("on-demand");
    only_tier(&history, json!({"max_runners": 2}));
    // Longer than a job waits for its machine: one that counted them would start the next two late.
    history.state().ec2.options().shutting_down = Span::seconds(480, 480);
    for _ in 0..2 {
        history.post(&small());
    }
    history.run_for(minutes(3));
    let state = history.state();
    assert!(state.ec2.instances().all(|it| it.state(state.now).is_over()), "on their way out");
    assert!(state.ec2.instances().all(|it| it.state(state.now).name() == "shutting-down"));
    drop(state);
    for _ in 0..2 {
        history.post(&small());
    }
    holds(&mut history, within(minutes(3)));
    assert_eq!(names(&history.world).len(), 4, "one for each, none surplus");
}

#[test]
fn cl_09_a_schedule_that_fires_twice_starts_nothing_twice() {
    let mut history = market("on-demand");
    // A job that arrived, so that the repository is one to be asked.
    history.post(&small());
    history.run_for(minutes(6));
    history.courier = Box::new(|event, _| match event.action.as_deref() {
        Some("queued") => vec![],
        _ => vec![seconds(1)],
    });
    let before = names(&history.world).len();
    history.post(&small());
    // Every invocation from here on is made twice, and each tick so.
    let next = history.invocations + 1;
    history.repeated = (next..next + 1000).collect();
    holds(&mut history, within(minutes(8)));
    assert_eq!(names(&history.world).len(), before + 1);
    assert!(history.world.state().executions.values().all(|it| it.status == Status::Succeeded));
}
