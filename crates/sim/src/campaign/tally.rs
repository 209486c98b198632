//! What histories reached.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::scenario::{Profile, Scenario};
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
    /// Invocations that were cut off at their time-out.
    pub timed_out: u64,
    /// What the use cases counted, by metric and its dimension's value.
    pub metrics: BTreeMap<(&'static str, String), u64>,
    /// Why runners ended.
    pub ends: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds a history.
    pub fn add(&mut self, profile: Profile, scenario: &Scenario, history: &Simulation) {
        let state = history.state();
        *self.histories.entry(profile).or_default() += 1;
        self.jobs += scenario.jobs().count() as u64;
        self.runners += state.executions.len() as u64;
        self.timed_out += history.timed_out;
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

    /// Adds what another counted.
    pub fn merge(&mut self, other: Self) {
        fn add<K: Ord>(to: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(key).or_default() += count;
            }
        }
        self.jobs += other.jobs;
        self.runners += other.runners;
        self.timed_out += other.timed_out;
        add(&mut self.histories, other.histories);
        add(&mut self.calls, other.calls);
        add(&mut self.struck, other.struck);
        add(&mut self.metrics, other.metrics);
        add(&mut self.ends, other.ends);
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
        line("invocations cut off at their time-out", self.timed_out);
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
        text
    }
}
