//! The script: which faults come, in which order. Each kind of them has repositories and a tier to itself, so that what
//! befalls one does not help another out.

use std::time::Duration;

use ostler_sim::github::{ApiError, Fault, FaultRule as GitHubRule, Turn, endpoint};
use rand::Rng as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use serde_json::{Value, json};

use super::{Chaos, Wanted, When};
use crate::ec2::{Ec2Fault, Fate};
use crate::edge::{FaultKind, FaultRule};
use crate::github::{DeliveryPlan, refused};

/// A kind of faults, with a tier of that label.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Boots,
    Hooks,
    Spot,
    Throttled,
    Killed,
    Failing,
    Cancelled,
    Storm,
}

impl Kind {
    /// The first goes first, whatever the seed says: a machine's fate is that of the next one to be launched.
    const ALL: [Self; 8] = [
        Self::Boots,
        Self::Hooks,
        Self::Spot,
        Self::Throttled,
        Self::Killed,
        Self::Failing,
        Self::Cancelled,
        Self::Storm,
    ];

    /// Its tier's label, and what it is.
    const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Boots => ("boots", "machines that never boot, or die"),
            Self::Hooks => ("hooks", "webhooks that are lost, late, or come thrice"),
            Self::Spot => ("spot", "spot machines are taken back"),
            Self::Throttled => ("throttled", "every service in turn is throttled"),
            Self::Killed => ("killed", "functions are killed in the middle of each step"),
            Self::Failing => ("failing", "GitHub fails, and limits, for minutes"),
            Self::Cancelled => ("cancelled", "jobs are cancelled before they run"),
            Self::Storm => ("storm", "two faults at a time"),
        }
    }
}

/// The services that the functions call, throttled one after the other for [`WINDOW`]: who calls, and what.
const SERVICES: [(&str, &str); 8] = [
    ("fn-*", "states:*"),
    ("fn-*", "dynamodb:*"),
    ("fn-*", "sqs:*"),
    ("fn-*", "ec2:*"),
    ("fn-*", "ssm:*"),
    ("stepfunctions", "lambda:*"),
    ("event-source", "lambda:*"),
    ("events", "lambda:*"),
];

/// How long a service is throttled, and GitHub fails or limits. World time.
const WINDOW: Duration = Duration::from_secs(180);

/// Where functions are killed: in which step, who calls, what, what the call holds (of the job alone if nothing), and
/// whether it takes effect first.
const KILLS: [(&str, &str, &str, Option<&str>, bool); 15] = [
    ("webhook, before it starts", "webhook", "states:StartExecution", None, false),
    ("webhook, after it has started", "webhook", "states:StartExecution", None, true),
    ("launch, before the job is noted", "orchestrator", "dynamodb:UpdateItem", None, false),
    ("launch, before it buys", "orchestrator", "ec2:CreateFleet", None, false),
    ("launch, after it has bought", "orchestrator", "ec2:CreateFleet", None, true),
    (
        "register, before it hands over",
        "orchestrator",
        "dynamodb:PutItem",
        Some("TableName"),
        false,
    ),
    ("register, after it has", "orchestrator", "dynamodb:PutItem", Some("TableName"), true),
    (
        "check, before it looks",
        "orchestrator",
        "ec2:DescribeInstances",
        Some("InstanceId.1"),
        false,
    ),
    (
        "cleanup, before the end is noted",
        "orchestrator",
        "dynamodb:UpdateItem",
        Some("endedAt"),
        false,
    ),
    ("cleanup, after it is", "orchestrator", "dynamodb:UpdateItem", Some("endedAt"), true),
    ("report, before it is judged", "stolen-runner", "dynamodb:*", Some("TableName"), false),
    ("report, after a write", "stolen-runner", "dynamodb:UpdateItem", Some("TableName"), true),
    ("reconciler, before it reads", "reconciler", "dynamodb:Query", Some("TableName"), false),
    ("reconciler, after a write", "reconciler", "dynamodb:UpdateItem", Some("TableName"), true),
    (
        "instance event, before it looks",
        "instance-events",
        "ec2:DescribeInstances",
        Some("InstanceId.1"),
        false,
    ),
];

/// The tiers that the script plays with. The boot time-out leaves a slow computer time, and the script as well.
pub fn tiers() -> Value {
    let tier = |label: &str, instance_type: &str, market: &str| {
        json!({"name": format!("{label}-x64"), "architecture": "x64", "labels": [label],
            "images": ["/ostler/images/ubuntu-x64"], "instance_types": [instance_type], "market": market,
            "root_volume_gib": 40, "max_idle": "10m", "max_lifetime": "6h", "boot_timeout": "10m"})
    };
    let mut all: Vec<Value> =
        Kind::ALL.map(|kind| tier(kind.describe().0, "m7i.large", "on-demand")).into();
    all.push(tier("fleeting", "c7i.4xlarge", "spot-then-on-demand"));
    all.push(tier("transient", "c7i.2xlarge", "spot"));
    all.push(tier("rare", "r7i.48xlarge", "on-demand"));
    json!({"tiers": all})
}

/// Plays all of it, in an order that the seed decides.
pub(super) async fn play(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    let [first, mut rest @ ..] = Kind::ALL;
    rest.shuffle(&mut chaos.rng);
    for kind in std::iter::once(first).chain(rest) {
        chaos.say(&format!("--- {}", kind.describe().1));
        match kind {
            Kind::Boots => machines_that_never_boot(chaos).await?,
            Kind::Hooks => lost_and_late_webhooks(chaos).await?,
            Kind::Spot => machines_are_taken_back(chaos).await?,
            Kind::Throttled => every_service_is_throttled(chaos).await?,
            Kind::Killed => functions_are_killed(chaos).await?,
            Kind::Failing => github_fails_for_minutes(chaos).await?,
            Kind::Cancelled => jobs_are_cancelled(chaos).await?,
            Kind::Storm => a_storm(chaos).await?,
        }
        chaos.world.edge.faults().clear();
    }
    chaos.say("--- no more faults: everything comes to its end");
    Ok(())
}

async fn machines_that_never_boot(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    for (fate, seconds, befell) in [
        (Fate::Dead, None, "nothing starts on its machine"),
        (Fate::Dies, None, "its machine dies while it boots"),
        (Fate::Stuck, None, "its machine never leaves the state pending"),
        (Fate::Slow, Some(1200), "its machine takes 20 minutes to boot"),
    ] {
        chaos.world.ec2.inject(Ec2Fault::Launches { fate, times: Some(1), seconds });
        let id = chaos.post("boots", "boots", 30, befell, Wanted::Once)?;
        chaos.until(|chaos| chaos.launched(id)).await;
    }
    Ok(())
}

/// What can happen to a delivery.
fn delivery_faults() -> [(&'static str, DeliveryPlan); 5] {
    let plan = DeliveryPlan { action: Some("queued".into()), ..DeliveryPlan::default() };
    [
        ("its event does not arrive", DeliveryPlan { failed: true, ..plan.clone() }),
        ("its event is never sent", DeliveryPlan { never_sent: true, ..plan.clone() }),
        ("its event is two minutes late", DeliveryPlan { delay_seconds: 120.0, ..plan.clone() }),
        (
            "its event is a quarter of an hour late",
            DeliveryPlan { delay_seconds: 900.0, ..plan.clone() },
        ),
        ("its event comes three times", DeliveryPlan { copies: 3, ..plan }),
    ]
}

async fn lost_and_late_webhooks(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    // The repository is active from then on.
    let first = chaos.post("hooks", "hooks", 30, "nothing", Wanted::Once)?;
    chaos.until(|chaos| chaos.launched(first)).await;
    for (befell, plan) in delivery_faults() {
        for _ in 0..2 {
            chaos.world.github.plan_delivery(plan.clone());
            chaos.post("hooks", "hooks", 30, befell, Wanted::Once)?;
        }
    }
    let plan = DeliveryPlan {
        action: Some("completed".into()),
        never_sent: true,
        ..DeliveryPlan::default()
    };
    chaos.world.github.plan_delivery(plan);
    chaos.pause(Duration::from_secs(60)).await;
    Ok(())
}

async fn machines_are_taken_back(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    for label in ["fleeting", "transient"] {
        for (when, seconds, befell, wanted) in [
            (When::Booting, 60, "its machine is taken back while it boots", Wanted::Once),
            (When::Idle, 60, "its idle runner's machine is taken back", Wanted::Once),
            (When::AtWork, 600, "its machine is taken back while it runs", Wanted::Again),
        ] {
            // Each has a repository to itself; one runner is as good as another for jobs of one tier, so they come one by one.
            let repository = format!("{label}-{when:?}").to_lowercase();
            let id = chaos.post(&repository, label, seconds, befell, wanted)?;
            if when == When::Idle {
                chaos.world.github.with_model(|model, _| model.set_turn(id, Turn::Later));
            }
            chaos.taken_back.push((id, when));
            chaos.until(|chaos| !chaos.taken_back.iter().any(|(it, _)| *it == id)).await;
            chaos.until(|chaos| chaos.jobs.iter().any(|job| job.id == id && job.is_over())).await;
        }
    }
    Ok(())
}

async fn every_service_is_throttled(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    for (caller, action) in SERVICES {
        let service = action.trim_end_matches(":*");
        let befell = format!("{service} throttles {}", caller.trim_end_matches("-*"));
        chaos.post(
            "throttled",
            "throttled",
            60,
            &format!("{befell} while it runs"),
            Wanted::Once,
        )?;
        chaos.pause(Duration::from_secs(60)).await;
        chaos.world.edge.faults().add(FaultRule::on(action, FaultKind::Throttle).by(caller));
        chaos.post("throttled", "throttled", 30, &befell, Wanted::Once)?;
        chaos.pause(WINDOW).await;
        chaos.world.edge.faults().clear();
    }
    Ok(())
}

async fn functions_are_killed(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    // Machines that die bring events of instances.
    chaos.world.ec2.inject(Ec2Fault::Launches { fate: Fate::Dies, times: Some(1), seconds: None });
    for (index, (step, function, action, holds, done)) in KILLS.into_iter().enumerate() {
        let repository = format!("killed{index}");
        let caller = match function {
            "reconciler" | "instance-events" => format!("fn-ostler-recovery-{function}"),
            _ => format!("fn-ostler-{function}"),
        };
        let own = format!("{repository}-");
        let rule = FaultRule::on(action, FaultKind::Kill { done }).by(&caller).times(1);
        chaos.world.edge.faults().add(rule.containing(holds.unwrap_or(&own)));
        let befell = match holds {
            None => format!("killed: {step}"),
            Some(_) => format!("killed, whoever's it is: {step}"),
        };
        chaos.post(&repository, "killed", 30, &befell, Wanted::Once)?;
        chaos.pause(Duration::from_secs(10)).await;
    }
    let left = |chaos: &Chaos<'_>| {
        let rules = chaos.world.edge.faults().rules();
        rules.into_iter().filter(|rule| rule.times != Some(0)).collect::<Vec<_>>()
    };
    chaos.until(|chaos| left(chaos).is_empty()).await;
    for rule in left(chaos) {
        let [caller, action] = [rule.caller, rule.action].map(Option::unwrap_or_default);
        chaos.missed.push(format!("{caller} was never killed at {action}"));
    }
    Ok(())
}

async fn github_fails_for_minutes(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    let limited = |message: &str, headers: &[(&str, String)]| {
        let mut error = ApiError::new(403, message);
        error.headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        error
    };
    let reset = (chaos.world.clock.now() + 4 * WINDOW).seconds().to_string();
    for (befell, error) in [
        ("GitHub answers 502 for three minutes", ApiError::new(502, "Server Error")),
        (
            "GitHub's secondary limit for three minutes",
            limited(
                "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
                &[("retry-after", "120".into())],
            ),
        ),
        (
            "GitHub's hourly limit for three minutes",
            limited(
                "API rate limit exceeded for installation ID 1.",
                &[("x-ratelimit-remaining", "0".into()), ("x-ratelimit-reset", reset)],
            ),
        ),
    ] {
        chaos.post("failing", "failing", 60, &format!("{befell} while it runs"), Wanted::Once)?;
        chaos.pause(Duration::from_secs(60)).await;
        chaos.world.github.add_fault(GitHubRule {
            method: "*".into(),
            template: "*".into(),
            skip: 0,
            times: u32::MAX,
            fault: Fault::Refuse(error),
        });
        for _ in 0..2 {
            chaos.post("failing", "failing", 30, befell, Wanted::Once)?;
        }
        chaos.pause(WINDOW).await;
        chaos.world.github.with_model(|model, _| model.clear_faults());
    }
    Ok(())
}

async fn jobs_are_cancelled(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    let cancel = |chaos: &Chaos<'_>, id: u64| chaos.world.github.cancel_job(id).map_err(refused);
    let at_once =
        chaos.post("cancelled", "cancelled", 30, "cancelled at once", Wanted::Cancelled)?;
    cancel(chaos, at_once)?;
    let fate = Ec2Fault::Launches { fate: Fate::Slow, times: Some(1), seconds: Some(540) };
    chaos.world.ec2.inject(fate);
    let befell = "cancelled while its machine boots";
    let booting = chaos.post("cancelled", "cancelled", 30, befell, Wanted::Cancelled)?;
    chaos.until(|chaos| chaos.launched(booting)).await;
    cancel(chaos, booting)?;
    chaos.world.ec2.inject(Ec2Fault::Refuse {
        code: "InsufficientInstanceCapacity".into(),
        message: None,
        market: None,
        instance_type: Some("r7i.48xlarge".into()),
        zone: None,
        subnet: None,
        times: None,
    });
    let befell = "cancelled while there is no machine for it";
    let waiting = chaos.post("rare", "rare", 30, befell, Wanted::Cancelled)?;
    chaos.pause(Duration::from_secs(90)).await;
    cancel(chaos, waiting)
}

/// Two faults at a time, of those that are known of one job.
async fn a_storm(chaos: &mut Chaos<'_>) -> anyhow::Result<()> {
    let first = chaos.post("storm", "storm", 30, "nothing", Wanted::Once)?;
    chaos.until(|chaos| chaos.launched(first)).await;
    for index in 0..8 {
        let repository = format!("storm{index}");
        let (befell, plan) = delivery_faults().choose(&mut chaos.rng).cloned().unwrap_or_default();
        // One that is never sent is only found in a repository that was active before.
        let repository = if plan.never_sent { "storm".to_owned() } else { repository };
        chaos.world.github.plan_delivery(plan);
        let second = match chaos.rng.random_range(0..4) {
            0 => {
                let fate = [Fate::Dead, Fate::Dies].choose(&mut chaos.rng).copied();
                let fate = fate.unwrap_or(Fate::Dead);
                chaos.world.ec2.inject(Ec2Fault::Launches { fate, times: Some(1), seconds: None });
                "the next machine is lost"
            }
            1 => {
                let kill = FaultKind::Kill { done: chaos.rng.random() };
                let rule = FaultRule::on("*", kill).by("fn-ostler-orchestrator").times(1);
                let after = chaos.rng.random_range(0..12);
                let rule = FaultRule { after, ..rule.containing(&format!("{repository}-")) };
                chaos.world.edge.faults().add(rule);
                "the orchestrator is killed"
            }
            2 => {
                let (method, template) = ("POST".to_owned(), endpoint::ORG_JIT.to_owned());
                let fault = Fault::Lost([0, 502][chaos.rng.random_range(0..2)]);
                let rule = GitHubRule { method, template, skip: 0, times: 1, fault };
                chaos.world.github.add_fault(rule);
                "GitHub's answer to a registration is lost"
            }
            _ => {
                let lost = FaultRule::on("*", FaultKind::LostResponse).by("fn-ostler-*").times(3);
                chaos.world.edge.faults().add(lost.containing(&format!("{repository}-")));
                "answers of AWS are lost"
            }
        };
        chaos.post(&repository, "storm", 30, &format!("{befell}, and {second}"), Wanted::Once)?;
        let seconds = chaos.rng.random_range(5..60);
        chaos.pause(Duration::from_secs(seconds)).await;
    }
    chaos.pause(Duration::from_secs(1200)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ostler_core::config::Tiers;

    use super::*;

    #[test]
    fn the_tiers_are_valid_and_every_kind_has_one() {
        let tiers = Tiers::parse(&tiers().to_string());
        assert_eq!(tiers.problems, Vec::<String>::new());
        for kind in Kind::ALL {
            let name = format!("{}-x64", kind.describe().0);
            assert!(tiers.get(&name).is_some(), "{name}");
        }
    }

    #[test]
    fn each_function_is_killed_somewhere() {
        for function in
            ["webhook", "orchestrator", "stolen-runner", "reconciler", "instance-events"]
        {
            assert!(KILLS.iter().any(|(_, killed, ..)| *killed == function), "{function}");
        }
    }
}
