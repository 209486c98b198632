//! Makes a scenario that breaks something as small as it goes.

use super::play::{Played, play};
use super::scenario::{PartId, Scenario};

/// How often a smaller one is tried at most: a few seconds of work.
const TRIES: usize = 400;

/// The smallest part of `scenario` found of which `breaks` still says so: leaves out ever smaller runs of its parts
/// for as long as that succeeds (delta debugging).
pub fn shrink(scenario: &Scenario, breaks: impl Fn(&Played) -> bool) -> Scenario {
    let mut smallest = scenario.clone();
    let mut tries = 0;
    let mut run = smallest.parts.len() / 2;
    while run > 0 {
        let mut from = 0;
        let mut shrunk = false;
        while from < smallest.parts.len() && tries < TRIES {
            tries += 1;
            let ids = smallest.ids();
            let keep: Vec<PartId> = ids
                .iter()
                .enumerate()
                .filter(|(index, _)| !(from..from + run).contains(index))
                .map(|(_, id)| *id)
                .collect();
            let fewer = smallest.only(&keep);
            if breaks(&play(&fewer)) {
                smallest = fewer;
                shrunk = true;
            } else {
                from += run;
            }
        }
        if !shrunk || run > smallest.parts.len() {
            run /= 2;
        }
    }
    smallest
}

impl Played {
    /// Whether it breaks the same invariant as that violation: what stands before its colon.
    pub fn breaks_as(&self, violation: &str) -> bool {
        let kind = |violation: &str| violation.split(':').next().map(str::to_owned);
        self.violations.iter().any(|found| kind(found) == kind(violation))
    }
}
