//! What histories reached.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::reach::{BRANCHES, EXEMPT};
use super::scenario::{JobPlot, Kind, Loss, Part, Profile, Scenario};
use super::trouble::{Refusal, kinds};
use crate::simulation::Simulation;
use crate::world::Strike;

/// Counts over many histories.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Histories by profile.
    pub histories: BTreeMap<Profile, u64>,
    /// Jobs posted.
    pub jobs: u64,
    /// Runners started.
    pub runners: u64,
    /// Port calls, by name.
    pub calls: BTreeMap<&'static str, u64>,
    /// Faults that struck a port call, by its name and how.
    pub struck: BTreeMap<(&'static str, Strike), u64>,
    /// How often each kind of fault has struck; all kinds are there.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often each branch of the use cases was taken.
    pub branches: BTreeMap<&'static str, u64>,
    /// What the use cases counted, by metric and its dimension's value.
    pub metrics: BTreeMap<(&'static str, String), u64>,
    /// Why runners ended.
    pub ends: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds a history.
    pub fn add(&mut self, profile: Profile, scenario: &Scenario, history: &Simulation) {
        self.befell(scenario, history);
        let state = history.state();
        *self.histories.entry(profile).or_default() += 1;
        self.jobs += scenario.jobs().count() as u64;
        self.runners += state.executions.len() as u64;
        for call in &state.calls {
            *self.calls.entry(call.name).or_default() += 1;
            if let Some(strike) = call.struck {
                *self.struck.entry((call.name, strike)).or_default() += 1;
            }
        }
        for (metric, by) in state.metrics.keys() {
            *self.metrics.entry((*metric, by.clone())).or_default() += 1;
        }
        for execution in state.executions.values() {
            if let Some(reason) = execution.reason() {
                // A refusal's text goes on with what is different each time.
                let reason = reason.split([':', '(']).next().unwrap_or_default().trim();
                *self.ends.entry(reason.to_owned()).or_default() += 1;
            }
        }
    }

    /// Adds the faults that struck.
    fn befell(&mut self, scenario: &Scenario, history: &Simulation) {
        let state = history.state();
        if self.faults.is_empty() {
            self.faults = kinds();
        }
        let mut add = |kind: &'static str, times: u64| {
            *self.faults.entry(kind).or_default() += times;
        };
        history.faults.iter().for_each(|(kind, times)| add(kind, *times));
        for refusal in Refusal::ALL {
            add(refusal.name(), refusal.struck(&state.ec2));
        }
        let struck = state.github.struck();
        add("function: a cold instance", state.cold);
        add("GitHub: refuses a call", struck.refused);
        add("GitHub: limits calls", struck.limited);
        add("GitHub: loses an answer", struck.lost);
        for strike in state.calls.iter().filter_map(|call| call.struck) {
            add(strike.name(), 1);
        }
        for (_, part) in &scenario.parts {
            match part {
                Part::Job(plot) => happened(plot).for_each(|kind| add(kind, 1)),
                Part::Loss(launch, loss) if *launch < history.machines.len() => match loss {
                    Loss::DeadBoot => add("machine: never boots", 1),
                    Loss::SlowBoot(_) => add("machine: boots slowly", 1),
                    Loss::StuckPending => add("machine: stays pending", 1),
                    Loss::DiesAtLaunch => add("machine: dies at launch", 1),
                    Loss::Then(_) => {}
                },
                _ => {}
            }
        }
    }

    /// Adds branches that were taken.
    pub fn reached(&mut self, branches: HashMap<&'static str, u64>) {
        for (branch, times) in branches {
            *self.branches.entry(branch).or_default() += times;
        }
    }

    /// What there is and never came about: branches that no history took, and faults that never struck.
    pub fn missing(&self) -> Vec<String> {
        let exempt = |branch: &str| EXEMPT.iter().any(|(name, _)| *name == branch);
        let branches = BRANCHES.iter().filter(|it| !self.branches.contains_key(*it) && !exempt(it));
        let never = |kind: &&'static str| self.faults.get(*kind).is_none_or(|times| *times == 0);
        let faults: Vec<_> = kinds().into_keys().filter(never).collect();
        branches
            .map(|branch| format!("no history took the branch \"{branch}\""))
            .chain(faults.iter().map(|kind| format!("no history met the fault \"{kind}\"")))
            .collect()
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: Self) {
        fn add<K: Ord>(to: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(key).or_default() += count;
            }
        }
        self.jobs += other.jobs;
        self.runners += other.runners;
        add(&mut self.histories, other.histories);
        add(&mut self.calls, other.calls);
        add(&mut self.struck, other.struck);
        add(&mut self.metrics, other.metrics);
        add(&mut self.ends, other.ends);
        add(&mut self.faults, other.faults);
        add(&mut self.branches, other.branches);
    }

    /// Histories in all.
    pub fn played(&self) -> u64 {
        self.histories.values().sum()
    }

    /// All of it, for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, count: u64| {
            // Writing to a string can't fail.
            let _ = writeln!(text, "  {name:<58} {count:>12}");
        };
        line("jobs", self.jobs);
        line("runners started", self.runners);
        self.histories
            .iter()
            .for_each(|(profile, n)| line(&format!("histories: {}", profile.name()), *n));
        for (name, count) in &self.calls {
            line(&format!("call: {name}"), *count);
            for strike in Strike::ALL {
                let struck = self.struck.get(&(*name, strike)).copied().unwrap_or_default();
                line(&format!("      struck {strike:?}"), struck);
            }
        }
        for ((metric, by), count) in &self.metrics {
            line(&format!("metric: {metric} {by}"), *count);
        }
        for (reason, count) in &self.ends {
            line(&format!("runner's end: {reason}"), *count);
        }
        for (kind, times) in &self.faults {
            line(&format!("fault: {kind}"), *times);
        }
        for branch in BRANCHES {
            let times = self.branches.get(branch).copied().unwrap_or_default();
            line(&format!("branch: {branch}"), times);
        }
        text
    }
}

/// What befell a job.
fn happened(plot: &JobPlot) -> impl Iterator<Item = &'static str> {
    let late = std::time::Duration::from_secs(60);
    [
        (plot.queued.is_none(), "webhook: lost"),
        (plot.queued.is_some_and(|after| after >= late), "webhook: late"),
        (plot.again.is_some(), "webhook: again"),
        (plot.cancelled.is_some(), "job: cancelled"),
        (plot.approved.is_some(), "job: held by an environment"),
        (plot.kind == Kind::Strange, "job: of an invisible repository"),
    ]
    .into_iter()
    .filter_map(|(happened, kind)| happened.then_some(kind))
}
