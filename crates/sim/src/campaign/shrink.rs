//! Makes a scenario that breaks something as small as it goes.

use super::play::play;
use super::scenario::{PartId, Scenario};

/// How often a smaller one is tried at most: a few seconds of work.
const TRIES: usize = 400;

/// The smallest part of `scenario` found that still breaks the same invariant: leaves out ever smaller runs of its
/// parts for as long as that succeeds (delta debugging).
pub fn shrink(scenario: &Scenario, broken: &str) -> Scenario {
    let invariant = kind(broken);
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
            if play(&fewer).violations.iter().any(|found| kind(found) == invariant) {
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

/// The invariant that a violation breaks: what stands before its colon.
fn kind(violation: &str) -> &str {
    violation.split(':').next().unwrap_or_default()
}
