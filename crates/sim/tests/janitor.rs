//! The registration janitor over worlds that live: at scale, and in random histories.

// All of this is test code, which the lints on panics can't see outside of test functions.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::Duration;

use ostler_core::janitor::Config;
use ostler_sim::ec2::Span;
use ostler_sim::github::RateLimits;
use ostler_sim::janitor::{Fate, Faults, Habits, Names, Play, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// GitHub does not remove what is left behind by itself: it is the janitor's work that is looked at.
fn without_github_cleaning(world: &World) {
    let year = HOUR * 24 * 365;
    world.state().github.options_mut().offline_registration_life = year;
}

/// A world as large as GitHub allows a group to be: 10,000 registrations over five groups, of which 1,500
/// were left behind; the others' 8,500 machines in three regions, some stopped or booting.
fn large(seed: u64) -> World {
    let world = World::new(Names::InstanceIds, 5, seed);
    without_github_cleaning(&world);
    let groups = world.groups();
    world.state().github.options_mut().timer_grain = MINUTE;
    for number in 0..10_000_usize {
        let group = groups[number % groups.len()].unsigned_abs();
        let fate = match number % 100 {
            0..15 => Fate::Orphan,
            15..18 => Fate::Offline,
            _ => Fate::Alive,
        };
        world.found(group, fate);
    }
    let now = world.state().now;
    world.pass_until(now + 2 * HOUR);
    assert_eq!(world.orphans().len(), 1500);
    let mut state = world.state();
    state.github_latency =
        Span { least: Duration::from_millis(120), most: Duration::from_millis(350) };
    state.aws_latency = Span { least: Duration::from_millis(40), most: Duration::from_millis(180) };
    drop(state);
    world
}

#[test]
fn sp_02_ten_thousand_registrations_lose_their_orphans_and_no_other_while_runners_come_and_go() {
    let world = large(1);
    let alive: Vec<String> = world.state().machines.keys().cloned().collect();
    world.state().faults = Faults {
        page: 0.03,
        github: 0.01,
        look_up: 0.02,
        queue: 0.02,
        lost: 0.01,
        ..Faults::default()
    };
    // Limits that bite: half of what it takes to remove what is there at the beginning.
    let limits = RateLimits { primary_per_hour: 2000, ..RateLimits::default() };
    world.state().github.options_mut().rate_limits = Some(limits);
    world.state().habits = Habits { left_behind: 0.5, ..Habits::default() };
    let config = Config { max_candidates: 500, ..world.config() };
    let mut play = Play::new(&world, config);
    let mut rng = StdRng::seed_from_u64(7);
    let groups = world.groups();
    for minute in 0..6 * 60 {
        // Runners come and go, also in the middle of scans.
        if minute < 4 * 60 {
            for _ in 0..3 {
                world.launch(groups[rng.random_range(0..groups.len())].unsigned_abs());
            }
            world.end(&alive[rng.random_range(0..alive.len())]);
        }
        play.run_for(MINUTE);
        assert_eq!(world.state().violations, Vec::<String>::new());
    }
    assert!(world.metric("JanitorFailure") > 50.0, "the weather was fair");
    assert!(world.state().deletions.len() > 1500);
    // The last machines end, and the weather clears.
    world.state().faults = Faults::default();
    play.run_for(4 * HOUR);
    assert_eq!(world.orphans().len(), 0);
    assert_eq!(world.state().violations, Vec::<String>::new());
}

#[test]
fn a_calm_scan_of_ten_thousand_stays_within_its_budget() {
    let world = large(2);
    for ec2 in world.state().regions.values_mut() {
        // Short and empty pages are more calls, and not ours to bound.
        ec2.options().short_pages = false;
    }
    // The functions keep to GitHub's pace by their Apps' buckets, which are not played here.
    world.state().github.options_mut().rate_limits = None;
    let mut play = Play::new(&world, world.config());
    play.run_for(5 * MINUTE);
    let (summary, took) = &play.scans[0];
    assert_eq!(
        (&summary["candidatesQueued"], &summary["stopReason"]),
        (&1000.into(), &"candidate-limit".into())
    );
    assert!(*took < MINUTE, "{took:?}");
    play.run_for(2 * HOUR);
    let full = play.scans.iter().find(|(summary, _)| summary["stopReason"] == "completed").unwrap();
    assert!(full.0["pagesScanned"].as_u64().unwrap() <= 105, "{}", full.0);
    assert!(full.1 < MINUTE, "{:?}", full.1);
    assert_eq!(world.orphans().len(), 0);
    let calls = world.state().calls.clone();
    let scans = u64::try_from(play.scans.len()).unwrap();
    // Three regions a page, for those pages alone that have somebody to ask about; and for each batch of ten.
    assert!(calls["describe"] <= scans * 105 * 3 + 150 * 3 * 2, "{calls:?}");
    assert_eq!((calls["get"], calls["delete"]), (1500, 1500), "two calls a candidate");
    assert_eq!(world.state().deletions.len(), 1500);
}

/// One random history. Answers what was deleted.
fn history(seed: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let names = if rng.random_bool(0.5) { Names::InstanceIds } else { Names::Ostler };
    let world = World::new(names, rng.random_range(1..=3), seed);
    without_github_cleaning(&world);
    {
        let mut state = world.state();
        let mut share =
            |most: f64| if rng.random_bool(0.3) { 0.0 } else { rng.random_range(0.0..most) };
        state.faults = Faults {
            page: share(0.4),
            github: share(0.3),
            look_up: share(0.3),
            queue: share(0.3),
            lost: share(0.3),
            twice: share(0.3),
            killed: share(0.2),
        };
        state.habits = Habits {
            dead_boots: share(0.3),
            left_behind: share(1.0),
            stops: share(0.6),
            moves: share(0.4),
            renames: share(0.3),
            longest: Duration::from_secs(rng.random_range(600..14_400)),
        };
        state.names_groups = rng.random_bool(0.7);
        let slow = rng.random_range(0..30);
        state.github_latency = Span { least: Duration::ZERO, most: Duration::from_secs(slow) };
        state.aws_latency = Span { least: Duration::ZERO, most: Duration::from_secs(slow / 3) };
    }
    let max_candidates = rng.random_range(1..30);
    let config = Config { max_candidates, ..world.config() };
    let mut play = Play::new(&world, config.clone());
    let groups = world.groups();
    for group in &groups {
        world.stranger(group.unsigned_abs());
    }
    for _ in 0..rng.random_range(10..80) {
        world.launch(groups[rng.random_range(0..groups.len())].unsigned_abs());
        play.run_for(Duration::from_secs(rng.random_range(1..900)));
        if rng.random_bool(0.02) {
            // A change of scope in between makes void what was found under the other one.
            let fewer = play_scope(&config, &groups, &mut rng);
            play.configure(fewer);
        }
    }
    play.configure(config.clone());
    play.run_for(4 * HOUR);
    // Whatever was lost, and however: once the weather is fair, nothing is left.
    {
        let mut state = world.state();
        state.faults = Faults::default();
        state.github_latency = Span::ZERO;
        state.aws_latency = Span::ZERO;
    }
    play.configure(Config { max_candidates: 1000, ..config });
    play.run_for(24 * HOUR);
    let violations = world.state().violations.clone();
    assert_eq!(violations, Vec::<String>::new(), "seed {seed}");
    assert_eq!(world.orphans(), Vec::<String>::new(), "seed {seed}");
    let deleted = world.state().deletions.len();
    let names: BTreeSet<_> = world.state().deletions.iter().map(|it| it.name.clone()).collect();
    assert_eq!(names.len(), deleted, "seed {seed}: twice");
    deleted
}

fn play_scope(config: &Config, groups: &[i64], rng: &mut StdRng) -> Config {
    let keep = rng.random_range(0..groups.len());
    let scope = ostler_core::janitor::Scope::Organization {
        name: "acme".into(),
        groups: vec![groups[keep]],
    };
    Config { scope, ..config.clone() }
}

#[test]
fn nothing_goes_that_was_alive_between_the_observations_whatever_fails() {
    let deleted: usize = (0..150).map(history).sum();
    assert!(deleted > 1000, "only {deleted} were deleted: these histories show little");
}
