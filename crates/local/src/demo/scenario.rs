//! What the demo plays: 64 jobs that come in twenty minutes of world time, ordinary ones and the troubles that
//! every install meets, stolen runners and a hostile job among them.

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
    /// EC2 takes the machine of that part's job back while it boots; the job has its turn when that has ended.
    TakeBack(&'static str),
    /// Spot has no machine for the next launches.
    SpotShortage(u32),
    /// Somebody posts a job with a signature of their own.
    Forge,
    /// A job is posted that prints lines about the runners of that other part, and about its own successors.
    Plague {
        /// Part of the scenario.
        part: &'static str,
        /// Whose runners it names.
        victims: &'static str,
        /// The job; what it runs comes when the victims' names are known.
        job: JobSpec,
    },
    /// A runner is started for no job in particular. Once it is there, this job is posted, and given to it.
    Warm {
        /// Its tier.
        tier: &'static str,
        /// Part of the scenario.
        part: &'static str,
        /// The job.
        job: JobSpec,
    },
    /// What no function can use: messages in the report queue, and a delivery of the log.
    Rubbish,
}

/// Messages that are no reports.
pub const RUBBISH: [&str; 5] = [
    "{",
    "[]",
    r#"{"kind": "idle", "runnerName": "w"}"#,
    r#"{"kind": "report", "runnerName": "../x", "repo": "acme/tools", "workflowId": 9}"#,
    r#"{"kind": "report", "runnerName": "w", "repo": "acme/tools", "workflowId": 0}"#,
];

/// What a hostile job does: with the instance's role, which every job has, it prints lines about runners that it
/// knows by name, and about its own successors, as if they had jobs of another repository or of its own run; and some
/// that can't be read. Again and again, because equal lines within five minutes count once.
pub fn plague(victims: &[String]) -> String {
    format!(
        r#"set +eu
eval "$(sed '/^case ${{1-}} in/,$d' "${{OSTLER_ROOT-}}/opt/ostler/bootstrap")"
victims="{} $RUNNER_NAME-r1 $RUNNER_NAME-r2 $RUNNER_NAME-q1"
for round in 1 2 3; do
  hurry && tick
  events='{{"timestamp":'$now'000,"message":"CDKGHR JOB RUNNER=../../x REPO=a/b WORKFLOW_ID=1"}}'
  for name in $victims; do
    for place in "{STRANGE} WORKFLOW_ID=1" "evil/repository WORKFLOW_ID=1" "$GITHUB_REPOSITORY WORKFLOW_ID=$GITHUB_RUN_ID"; do
      events+=',{{"timestamp":'$now'000,"message":"CDKGHR JOB RUNNER='$name' REPO='$place'"}}'
    done
  done
  aws logs Logs_20140328.PutLogEvents "{{\"logGroupName\":\"$OSTLER_LOG_GROUP\",\"logStreamName\":\"$runner/$instance\",\"logEvents\":[$events]}}" || exit 1
  sleep 180
done
"#,
        victims.join(" ")
    )
}

/// The tiers of the demo: `control/tiers`.
pub fn tiers() -> Value {
    let tier =
        |name: &str, architecture: &str, label: &str, image: &str, types: Value, market: &str| {
            json!({"name": name, "architecture": architecture, "labels": [label], "images": [image],
            "instance_types": types, "market": market, "root_volume_gib": 40, "max_runners": 100,
            "max_idle": "5m", "max_lifetime": "6h", "boot_timeout": "30m"})
        };
    // Each of these troubles has a tier of its own, so that no other part's runners help it out.
    let alone = |name: &str, labels: Value| {
        json!({"name": name, "architecture": "x64", "labels": labels, "images": ["/ostler/images/ubuntu-x64"],
            "instance_types": ["m7i.large"], "max_idle": "5m", "max_lifetime": "6h", "boot_timeout": "30m"})
    };
    json!({"tiers": [
        alone("stolen-once", json!(["once"])),
        alone("stolen-always", json!(["always"])),
        alone("shuffled", json!(["shuffled"])),
        alone("uncovered", json!(["uncovered"])),
        alone("uncovered-big", json!(["uncovered", "big"])),
        alone("bereft", json!(["bereft"])),
        alone("plagued", json!(["plagued"])),
        alone("warm", json!(["warm"])),
        alone("lost", json!(["lost"])),
        alone("unsent", json!(["unsent"])),
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
    let recovered = |part, jobs, plan| match faulty(part, jobs, plan) {
        Act::Post { part, jobs, matrix, plan, turn, .. } => {
            Act::Post { part, jobs, matrix, expected: Expected::Recovered, plan, turn }
        }
        other => other,
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
        (
            at(330),
            Act::Post {
                part: "named by a hostile job",
                jobs: vec![job("acme/tools", &["self-hosted", "plagued"], 720); 3],
                matrix: false,
                expected: Expected::Undisturbed,
                plan: None,
                turn: Turn::Chance,
            },
        ),
        (
            at(420),
            Act::Plague {
                part: "hostile",
                victims: "named by a hostile job",
                job: job("acme/site", &["self-hosted", "plagued"], 0),
            },
        ),
        (
            at(440),
            Act::Warm {
                tier: "warm",
                part: "takes a warm runner",
                job: job("acme/tools", &["self-hosted", "warm"], 60),
            },
        ),
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
            recovered(
                "event lost",
                vec![job("acme/widgets", &["self-hosted", "lost"], 60); 2],
                DeliveryPlan { times: 2, failed: true, ..DeliveryPlan::default() },
            ),
        ),
        (
            at(910),
            recovered(
                "event never sent",
                vec![job("acme/widgets", &["self-hosted", "unsent"], 60)],
                DeliveryPlan { never_sent: true, ..DeliveryPlan::default() },
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
        (at(1020), Act::Rubbish),
        (at(1140), Act::Approve("behind an environment")),
        (
            at(1200),
            Act::Post {
                part: "machine taken back",
                jobs: vec![job("acme/tools", ARM, 30)],
                matrix: false,
                expected: Expected::Replaced,
                plan: None,
                turn: Turn::Later,
            },
        ),
        (at(1200), Act::TakeBack("machine taken back")),
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
    fn the_tiers_are_valid_and_the_scenario_is_about_sixty_jobs_in_order() {
        assert_eq!(Tiers::parse(&tiers().to_string()).problems, Vec::<String>::new());
        let scenario = scenario();
        assert!(scenario.is_sorted_by_key(|(at, _)| *at));
        let jobs: usize = scenario
            .iter()
            .map(|(_, act)| match act {
                Act::Post { jobs, .. } => jobs.len(),
                Act::Plague { .. } | Act::Warm { .. } => 1,
                _ => 0,
            })
            .sum();
        assert_eq!(jobs, 64);
    }

    /// What must work, end to end, with stolen runners.
    #[test]
    fn every_way_to_lose_a_runner_to_another_job_is_played() {
        let scenario = scenario();
        let posted = |wanted: &str| {
            let found = scenario.iter().find_map(|(_, act)| match act {
                Act::Post { part, jobs, expected, .. } if *part == wanted => {
                    Some((jobs.len(), *expected))
                }
                _ => None,
            });
            found.unwrap_or_else(|| panic!("'{wanted}' is not played"))
        };
        assert_eq!(posted("stolen once"), (1, Expected::Replaced));
        assert_eq!(posted("thief"), (1, Expected::Thief));
        assert_eq!(posted("stolen until no more"), (1, Expected::UsedUp));
        assert_eq!(
            posted("thief, again and again"),
            (4, Expected::Thief),
            "its own runner and three more"
        );
        assert_eq!(posted("shuffled"), (1, Expected::Served));
        assert_eq!(posted("shuffled, event late"), (1, Expected::Served));
        assert_eq!(posted("shuffled, not covered"), (1, Expected::PerhapsReplaced));
        assert_eq!(posted("other runner dies"), (1, Expected::PerhapsReplaced));
        assert_eq!(posted("named by a hostile job"), (3, Expected::Undisturbed));
        let played = |wanted: fn(&Act) -> bool| scenario.iter().any(|(_, act)| wanted(act));
        assert!(played(|act| matches!(act, Act::LoseMachine("its runner dies idle", _))));
        assert!(played(|act| matches!(act, Act::Plague { victims: "named by a hostile job", .. })));
        assert!(
            played(|act| matches!(act, Act::Warm { .. }))
                && played(|act| matches!(act, Act::Rubbish))
        );
        assert_eq!(posted("event lost"), (2, Expected::Recovered));
        assert_eq!(posted("event never sent"), (1, Expected::Recovered));
        assert!(played(|act| matches!(act, Act::TakeBack("machine taken back"))));
        let late = |(_, act): &(Duration, Act)| match act {
            Act::Post { part: "shuffled, event late", plan: Some(plan), .. } => plan.delay_seconds,
            _ => 0.0,
        };
        assert!(scenario.iter().any(|act| late(act) >= 120.0), "two minutes late");
    }

    #[test]
    fn i7_the_hostile_job_names_live_runners_strange_repositories_and_its_own_successors() {
        let script = plague(&["tools-1-a".into(), "tools-2-b".into()]);
        for told in
            ["tools-1-a tools-2-b", STRANGE, "evil/repository", "$RUNNER_NAME-r1", "PutLogEvents"]
        {
            assert!(script.contains(told), "{told}");
        }
    }
}
