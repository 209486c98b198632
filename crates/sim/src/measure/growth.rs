//! How work grows: a scan of the registration janitor by the number of registrations, and what the control plane asks of a
//! ledger by the number of its items.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::ports::JobRecord;
use serde::Serialize;

use super::of_table;
use crate::ec2::Span;
use crate::github::JobSpec;
use crate::janitor::{Fate, Names, Play, World};
use crate::simulation::Simulation;
use crate::world::REPOSITORY;

/// Groups of the registrations: each holds 10,000 at most.
const GROUPS: usize = 5;

/// Of a hundred registrations so many were left behind.
const LEFT_BEHIND: usize = 2;

/// Jobs that are run over the ledger.
const JOBS: u64 = 20;

/// One size.
#[derive(Clone, Debug, Serialize)]
pub struct Size {
    /// Registrations, or items.
    pub size: usize,
    /// Calls by name.
    pub calls: BTreeMap<String, u64>,
    /// All of them.
    pub all_calls: u64,
    /// How long it took, s; `None` where time is nobody's.
    pub took_s: Option<f64>,
}

/// A scan over so many registrations.
#[must_use]
pub fn janitor(registrations: usize, seed: u64) -> Size {
    let world = World::new(Names::InstanceIds, GROUPS, seed);
    let groups = world.groups();
    {
        let mut state = world.state();
        let github = state.github.options_mut();
        github.timer_grain = Duration::from_secs(3600);
        github.offline_registration_life = Duration::from_secs(365 * 86_400);
    }
    for number in 0..registrations {
        let group = groups[number % groups.len()].unsigned_abs();
        // Spread evenly, also over the groups.
        let fate = if number % 101 < LEFT_BEHIND { Fate::Orphan } else { Fate::Alive };
        world.found(group, fate);
    }
    let now = world.state().now;
    world.pass_until(now + Duration::from_secs(7200));
    {
        let mut state = world.state();
        for ec2 in state.regions.values_mut() {
            ec2.options().short_pages = false;
        }
        let milliseconds = |least, most| Span {
            least: Duration::from_millis(least),
            most: Duration::from_millis(most),
        };
        state.github_latency = milliseconds(120, 350);
        state.aws_latency = milliseconds(40, 180);
        state.calls.clear();
    }
    let mut play = Play::new(&world, world.config());
    let took = loop {
        play.run_for(Duration::from_secs(10));
        if let Some((_, took)) = play.scans.first() {
            break *took;
        }
        if play.failed_scans > 0 {
            break Duration::ZERO;
        }
    };
    let calls: BTreeMap<String, u64> =
        world.state().calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    Size {
        size: registrations,
        all_calls: calls.values().sum(),
        calls,
        took_s: Some(took.as_secs_f64()),
    }
}

/// Jobs and a reconciler's run over a ledger of so many items of jobs that are over.
#[must_use]
pub fn ledger(items: usize, seed: u64) -> Size {
    let mut history = Simulation::new(seed);
    history.judges_reports = true;
    history.reconciles = true;
    {
        let mut state = history.state();
        let until = state.now + Duration::from_secs(4 * 86_400);
        for id in 0..items {
            let id = JobId(-2 - i64::try_from(id).unwrap_or_default());
            state.ledger.jobs.insert(id, (JobRecord::default(), until));
        }
    }
    for _ in 0..JOBS {
        history.post(&JobSpec::new(REPOSITORY, &["self-hosted", "small"]));
    }
    history.run_to_rest(Duration::from_secs(86_400));
    let state = history.state();
    let mut calls: BTreeMap<String, u64> = BTreeMap::new();
    for call in state.calls.iter().filter(|call| of_table(call.name)) {
        *calls.entry(call.name.to_owned()).or_default() += 1;
    }
    Size { size: items, all_calls: calls.values().sum(), calls, took_s: None }
}

/// The exponent of growth: the slope of a line through the logarithms, by least squares. 1 is growth in step with the
/// size, 0 is none.
#[must_use]
pub fn exponent(of: &[(usize, f64)]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "sizes of some millions")]
    let points: Vec<(f64, f64)> =
        of.iter().map(|(size, value)| ((*size as f64).ln(), value.max(1e-9).ln())).collect();
    #[allow(clippy::cast_precision_loss, reason = "some sizes")]
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (x, y) = (x / count, y / count);
    let (over, under) = points.iter().fold((0.0, 0.0), |(over, under), point| {
        (over + (point.0 - x) * (point.1 - y), under + (point.0 - x) * (point.0 - x))
    });
    over / under
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_is_the_power_by_which_it_grows() {
        let of = |power: i32| -> Vec<(usize, f64)> {
            [10_u16, 100, 1000]
                .map(|size| (size.into(), 3.0 * f64::from(size).powi(power)))
                .to_vec()
        };
        for power in [0, 1, 2] {
            assert!((exponent(&of(power)) - f64::from(power)).abs() < 1e-9);
        }
    }

    #[test]
    fn a_scan_grows_in_step_with_the_registrations_and_the_ledger_costs_the_same_at_any_size() {
        let [small, large] = [1_000, 4_000].map(|size| janitor(size, 1));
        let grown = exponent(&[&small, &large].map(|it| (it.size, it.all_calls as f64)));
        assert!(grown < 1.1, "{grown}: {small:?} {large:?}");
        let [few, many] = [1_000, 20_000].map(|items| ledger(items, 1));
        assert_eq!(few.calls, many.calls);
    }
}
