//! What the demo plays: some fifty jobs in half an hour of world time, ordinary ones and the troubles that
//! every install meets, stolen runners among them.

use std::time::Duration;

use ostler_sim::github::{JobSpec, Turn};
use serde_json::{Value, json};

use super::record::Expected;
use crate::github::DeliveryPlan;

/// Something that happens.
pub enum Act {
    /// These jobs are posted, one after the other.
    Post {
        /// Part of the scenario, as the report names it.
        part: &'static str,
        /// The jobs.
        jobs: Vec<JobSpec>,
        /// In one run, as a matrix.
        matrix: bool,
        /// What is wanted of each.
        expected: Expected,
        /// What happens to their `queued` deliveries.
        plan: Option<DeliveryPlan>,
        /// When GitHub gives them a runner.
        turn: Turn,
    },
    /// The machine that is launched for this part's job dies before it gets one; then the jobs of the other
    /// part have their turn.
    LoseMachine(&'static str, &'static str),
    /// The deployment that the jobs of that part wait for is approved.
    Approve(&'static str),
    /// The failed deliveries of that part are sent again.
    Redeliver(&'static str),
    /// Spot has no machine for the next launches.
    SpotShortage(u32),
    /// Somebody posts a job with a signature of their own.
    Forge,
}

/// The tiers of the demo: `control/tiers`.
pub fn tiers() -> Value {
    let tier =
        |name: &str, architecture: &str, label: &str, image: &str, types: Value, market: &str| {
            json!({"name": name, "architecture": architecture, "labels": [label], "images": [image],
            "instance_types": types, "market": market, "root_volume_gib": 40, "max_runners": 100,
            "max_idle": "5m", "max_lifetime": "6h", "boot_timeout": "30m"})
        };
    // Each theft has a tier of its own, so that no other part's runners get mixed up in it.
    let theft = |name: &str, labels: Value| {
        json!({"name": name, "architecture": "x64", "labels": labels, "images": ["/ostler/images/ubuntu-x64"],
            "instance_types": ["m7i.large"], "max_idle": "5m", "max_lifetime": "6h", "boot_timeout": "30m"})
    };
    json!({"tiers": [
        theft("stolen-once", json!(["once"])),
        theft("stolen-always", json!(["always"])),
        theft("shuffled", json!(["shuffled"])),
        theft("uncovered", json!(["uncovered"])),
        theft("uncovered-big", json!(["uncovered", "big"])),
        theft("bereft", json!(["bereft"])),
        tier("linux-small", "x64", "small", "/ostler/images/ubuntu-x64", json!(["m7i.large", "m6i.large"]), "on-demand"),
        tier("linux-large", "x64", "large", "/ostler/images/ubuntu-x64", json!(["c7i.4xlarge", "c6i.4xlarge"]), "spot-then-on-demand"),
        tier("linux-arm64", "arm64", "small", "/ostler/images/ubuntu-arm64", json!(["m7g.large"]), "spot"),
    ]})
}

/// A repository of the organisation where the App is not installed: its jobs take runners, and nobody tells
/// Ostler of them.
pub const STRANGE: &str = "acme/elsewhere";

/// The repositories: name, and whether it is private.
pub const REPOSITORIES: [(&str, bool); 5] = [
    ("acme/widgets", true),
    ("acme/gadgets", true),
    ("acme/tools", true),
    ("acme/site", true),
    ("acme/showcase", false),
];

const SMALL: &[&str] = &["self-hosted", "linux", "x64", "small"];
const LARGE: &[&str] = &["self-hosted", "linux", "x64", "large"];
const ARM: &[&str] = &["self-hosted", "linux", "ARM64", "small"];

/// The scenario: world time since its start, and what happens then.
pub fn scenario() -> Vec<(Duration, Act)> {
    let at = Duration::from_secs;
    let queued = |plan: DeliveryPlan| Some(DeliveryPlan { action: Some("queued".into()), ..plan });
    let served = |part, jobs| Act::Post {
        part,
        jobs,
        matrix: false,
        expected: Expected::Served,
        plan: None,
        turn: Turn::Chance,
    };
    let refused = |part, repository: &str, labels: &[&str], words| Act::Post {
        part,
        jobs: vec![job(repository, labels, 60)],
        matrix: false,
        expected: Expected::Refused(words),
        plan: None,
        turn: Turn::Chance,
    };
    let faulty = |part, jobs, plan| Act::Post {
        part,
        jobs,
        matrix: false,
        expected: Expected::Served,
        plan: queued(plan),
        turn: Turn::Chance,
    };
    let turn = |turn, act: Act| match act {
        Act::Post { part, jobs, matrix, expected, plan, .. } => {
            Act::Post { part, jobs, matrix, expected, plan, turn }
        }
        other => other,
    };
    let late =
        |seconds| DeliveryPlan { times: 1, delay_seconds: seconds, ..DeliveryPlan::default() };
    let theft = |part, label: &str, expected, lasts| Act::Post {
        part,
        jobs: vec![job("acme/tools", &["self-hosted", label], lasts)],
        matrix: false,
        expected,
        plan: None,
        turn: Turn::Chance,
    };
    // Longer than it takes to find a theft, so that the next runner is there while this one still works.
    let thieves = |part, label: &str, count| Act::Post {
        part,
        jobs: vec![job(STRANGE, &["self-hosted", label], 480); count],
        matrix: false,
        expected: Expected::Thief,
        plan: None,
        turn: Turn::First,
    };
    vec![
        (at(0), served("single", mixed(SMALL, 6))),
        (at(5), theft("stolen until no more", "always", Expected::UsedUp, 60)),
        (at(5), thieves("thief, again and again", "always", 4)),
        (at(10), theft("stolen once", "once", Expected::Replaced, 60)),
        (at(10), thieves("thief", "once", 1)),
        (
            at(120),
            Act::Post {
                part: "matrix",
                jobs: vec![job("acme/widgets", SMALL, 150); 16],
                matrix: true,
                expected: Expected::Served,
                plan: None,
                turn: Turn::Chance,
            },
        ),
        (at(180), theft("shuffled", "shuffled", Expected::Served, 120)),
        (
            at(180),
            turn(
                Turn::First,
                faulty(
                    "shuffled, event late",
                    vec![job("acme/tools", &["self-hosted", "shuffled"], 240)],
                    late(120.0),
                ),
            ),
        ),
        (at(240), theft("shuffled, not covered", "big", Expected::PerhapsReplaced, 60)),
        (
            at(240),
            turn(
                Turn::First,
                faulty(
                    "takes a bigger runner",
                    vec![job("acme/site", &["self-hosted", "uncovered"], 300)],
                    late(200.0),
                ),
            ),
        ),
        (
            at(300),
            turn(Turn::Later, theft("other runner dies", "bereft", Expected::PerhapsReplaced, 60)),
        ),
        (
            at(300),
            faulty(
                "its runner dies idle",
                vec![job("acme/site", &["self-hosted", "bereft"], 600)],
                late(120.0),
            ),
        ),
        (at(305), Act::LoseMachine("its runner dies idle", "other runner dies")),
        (at(480), Act::SpotShortage(2)),
        (at(490), served("spot, then on-demand", mixed(LARGE, 4))),
        (at(600), served("arm64 on spot", mixed(ARM, 3))),
        (
            at(720),
            faulty(
                "delivered three times",
                mixed(SMALL, 3),
                DeliveryPlan { times: 3, copies: 3, ..DeliveryPlan::default() },
            ),
        ),
        (
            at(840),
            faulty(
                "event a minute late",
                mixed(SMALL, 2),
                DeliveryPlan { times: 2, delay_seconds: 60.0, ..DeliveryPlan::default() },
            ),
        ),
        (
            at(900),
            faulty(
                "lost, then redelivered",
                mixed(SMALL, 2),
                DeliveryPlan { times: 2, failed: true, ..DeliveryPlan::default() },
            ),
        ),
        (
            at(960),
            served(
                "behind an environment",
                vec![JobSpec {
                    environment: Some("production".into()),
                    ..job("acme/site", SMALL, 60)
                }],
            ),
        ),
        (at(970), refused("no tier", "acme/tools", &["self-hosted", "linux", "gpu"], "no tier")),
        (at(980), refused("public repository", "acme/showcase", SMALL, "public")),
        (
            at(1000),
            Act::Post {
                part: "cancelled",
                jobs: vec![job("acme/gadgets", LARGE, 60)],
                matrix: false,
                expected: Expected::Cancelled,
                plan: None,
                turn: Turn::Chance,
            },
        ),
        (at(1010), Act::Forge),
        (at(1080), Act::Redeliver("lost, then redelivered")),
        (at(1140), Act::Approve("behind an environment")),
        (at(1260), served("single", mixed(SMALL, 4))),
    ]
}

fn job(repository: &str, labels: &[&str], seconds: u64) -> JobSpec {
    JobSpec { duration: Duration::from_secs(seconds), ..JobSpec::new(repository, labels) }
}

/// Jobs over the private repositories, of one to four minutes.
fn mixed(labels: &[&str], count: usize) -> Vec<JobSpec> {
    (0..count)
        .zip(REPOSITORIES.iter().filter(|(_, private)| *private).cycle())
        .zip([60, 120, 90, 240, 180].into_iter().cycle())
        .map(|((_, (repository, _)), seconds)| job(repository, labels, seconds))
        .collect()
}

#[cfg(test)]
mod tests {
    use ostler_core::config::Tiers;

    use super::*;

    #[test]
    fn the_tiers_are_valid_and_the_scenario_is_about_fifty_jobs_in_order() {
        assert_eq!(Tiers::parse(&tiers().to_string()).problems, Vec::<String>::new());
        let scenario = scenario();
        assert!(scenario.is_sorted_by_key(|(at, _)| *at));
        let jobs: usize = scenario
            .iter()
            .map(|(_, act)| match act {
                Act::Post { jobs, .. } => jobs.len(),
                _ => 0,
            })
            .sum();
        assert_eq!(jobs, 57);
    }
}
