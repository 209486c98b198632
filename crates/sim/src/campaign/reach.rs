//! Which branches of the use cases histories take ([`ostler_core::reach`]).

use std::cell::RefCell;
use std::collections::HashMap;

/// All branches that the use cases mark, in order of their names.
pub const BRANCHES: &[&str] = include!(concat!(env!("OUT_DIR"), "/branches.rs"));

/// Branches that no history can take, each with why. Unit tests of the use cases take them.
pub const EXEMPT: &[(&str, &str)] = &[
    ("check: another job, noted without its repository", "written by older versions only"),
    ("check: its own job, noted without its repository", "written by older versions only"),
    (
        "check: withdrawn, yet a runner came of it",
        "Register runs twice at once for as long as a machine boots: one in 4000",
    ),
    (
        "launch: its place is kept for a long wait",
        "for a moment to register: that takes some 700 launches at once",
    ),
    ("launch: EC2 takes no more calls", "no request rates here: bursts have them"),
    ("reaper: a persistent request is cancelled", "of other systems: ours are one-time"),
    ("reaper: gone by itself", "in the moment between two looks"),
    ("reaper: kept at the second look", "in the moment between two looks"),
    ("reaper: a stopped one of a pool", "of other systems: Ostler stops none"),
    ("reaper: not ours", "EC2 is asked for ours only"),
    ("reaper: over already", "EC2 is asked for those that live"),
    ("reaper: without a date", "EC2 always tells it"),
    ("register: taken by this very instance", "in the moment in which it connects: one in 4000"),
    (
        "instance: its runner has no execution",
        "DescribeExecution lags for less time than it takes to launch",
    ),
    ("open: another system's execution", "Ostler alone writes this ledger"),
    ("open: another system's job", "Ostler alone writes this ledger"),
    ("open: forgotten", "after four days"),
    (
        "open: its execution is not seen yet",
        "DescribeExecution lags by seconds, and it looks minutes later",
    ),
    (
        "rerun: GitHub does not say how a job ended",
        "of a run that is over it does: in the moment between two calls",
    ),
    ("rerun: another asks", "in the moment between two calls"),
    ("rerun: our attempt goes on, and a job failed in it", "a job of a new attempt has another id"),
    ("rerun: a run was cancelled", "then no job of it has failed here"),
    ("rerun: a job had not begun", "one that was given to a runner goes back to the queue here"),
    ("rerun: a job had failed before", "jobs fail here for want of a machine only"),
    ("rerun: a job ended in another way", "jobs fail here for want of a machine only"),
    ("instance: its job's run is not known", "the address of a job's page names it"),
    ("supply: no runner was started for it", "a job that nobody has accepted: one in 1000"),
    ("report: its repository is no name", "such a record is refused before"),
];

thread_local! {
    static TAKEN: RefCell<HashMap<&'static str, u64>> = RefCell::default();
}

/// Counts from now on. What threads took is had by [`take`] on each.
pub(super) fn count() {
    ostler_core::reach::count_with(|branch| {
        TAKEN.with_borrow_mut(|taken| *taken.entry(branch).or_default() += 1);
    });
}

/// What this thread has taken since the last time, and how often.
pub(super) fn take() -> HashMap<&'static str, u64> {
    TAKEN.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page says how many there are.
    #[test]
    fn the_page_on_the_simulation_tells_the_numbers_of_now() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let page = std::fs::read_to_string(format!("{root}/docs/simulation.md")).unwrap();
        let patches = std::fs::read_dir(format!("{root}/tests/mutations")).unwrap().count();
        let (branches, exempt) = (BRANCHES.len(), EXEMPT.len());
        for line in [
            format!(
                "| branches that the use cases mark | {branches}, of which {exempt} are exempt |"
            ),
            format!("| seeded faults | {patches} patches in `tests/mutations`;"),
        ] {
            assert!(page.contains(&line), "docs/simulation.md lacks: {line}");
        }
    }

    #[test]
    fn branches_are_known_by_name_and_exemptions_are_of_branches() {
        assert!(BRANCHES.len() > 150, "{}", BRANCHES.len());
        for (exempt, why) in EXEMPT {
            assert!(BRANCHES.contains(exempt) && !why.is_empty(), "{exempt}");
        }
    }
}
