//! The reaper in the local world: its own stack alone, its real binary, EC2's spot requests and launch times, and the
//! rule's schedule. Nothing of the control plane is deployed: it needs nothing of it (R58). What it ends and keeps in
//! all cases, and what becomes of calls that fail, is shown in crates/sim/tests/reaper.rs.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_local::aws::Client;
use ostler_local::lambda_host::{InvokeError, MetricPoint};
use ostler_local::world::{REAPER_STACK, World, WorldConfig};
use ostler_sim::ec2::InstanceAttribute;
use serde_json::{Value, json};

use crate::permissions::{Subject, covered};

#[path = "../permissions/mod.rs"]
mod permissions;

/// World seconds in a real one: the limit of ten minutes passes in five.
const SCALE: f64 = 120.0;
/// For how long something is waited for, in real time. A quiet machine needs a tenth of it at most.
const PATIENCE: Duration = Duration::from_secs(300);
const EC2: &str = "2016-11-15";
const HOUR: Duration = Duration::from_secs(3600);

struct Yard {
    world: World,
    operator: Client,
    subnet: String,
    launches: u32,
}

impl Yard {
    async fn up() -> Self {
        let folder =
            tempfile::Builder::new().prefix("reaper-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let config = WorldConfig { scale: SCALE, ..WorldConfig::new(folder.unwrap().keep()) };
        let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
        let operator = world.edge.client("operator");
        let subnets = operator.query("ec2", EC2, "DescribeSubnets", &[]).await.unwrap();
        let subnet = subnets.list("subnetSet")[0].text_at("subnetId").to_owned();
        for (name, tagged) in [("on-demand", None), ("spot", Some("spot-instances-request"))] {
            let mut given = vec![
                ("LaunchTemplateName", name),
                ("LaunchTemplateData.InstanceType", "m7i.large"),
                ("LaunchTemplateData.ImageId", "ami-00000000000000064"),
                // "#!/bin/bash": a machine without any work.
                ("LaunchTemplateData.UserData", "IyEvYmluL2Jhc2gK"),
            ];
            let tag = "LaunchTemplateData.TagSpecification.1";
            let tag =
                [".ResourceType", ".Tag.1.Key", ".Tag.1.Value"].map(|it| format!("{tag}{it}"));
            if let Some(kind) = tagged {
                given.extend(tag.iter().map(String::as_str).zip([kind, "team", "ci"]));
            }
            operator.query("ec2", EC2, "CreateLaunchTemplate", &given).await.unwrap();
        }
        Self { world, operator, subnet, launches: 0 }
    }

    async fn down(self) {
        let state_dir = self.world.log_dir();
        self.world.down().await;
        let _ = std::fs::remove_dir_all(state_dir);
    }

    async fn deploy(&self, more: &[(&str, &str)]) {
        self.world.deploy_reaper(more).await.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Launches a machine with these tags.
    async fn launch(&mut self, market: &str, tags: &[(&str, &str)]) -> String {
        self.launches += 1;
        let token = format!("launch-{}", self.launches);
        let mut given = BTreeMap::from([
            ("Type".to_owned(), "instant"),
            ("ClientToken".to_owned(), &token),
            ("TargetCapacitySpecification.TotalTargetCapacity".to_owned(), "1"),
            ("TargetCapacitySpecification.DefaultTargetCapacityType".to_owned(), market),
            ("TagSpecification.1.ResourceType".to_owned(), "instance"),
        ]);
        let config = |key: &str| format!("LaunchTemplateConfigs.1.{key}");
        given.insert(config("LaunchTemplateSpecification.LaunchTemplateName"), market);
        given.insert(config("LaunchTemplateSpecification.Version"), "1");
        given.insert(config("Overrides.1.SubnetId"), &self.subnet);
        for (number, (key, value)) in (1..).zip(tags) {
            given.insert(format!("TagSpecification.1.Tag.{number}.Key"), key);
            given.insert(format!("TagSpecification.1.Tag.{number}.Value"), value);
        }
        let given: Vec<_> = given.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let answer = self.operator.query("ec2", EC2, "CreateFleet", &given).await.unwrap();
        let bought = answer.list("fleetInstanceSet");
        let bought = bought.first().unwrap_or_else(|| panic!("nothing bought: {answer:?}"));
        let id = bought.list("instanceIds")[0].text.clone();
        self.until("EC2 knows it", async || {
            self.world.ec2.with(|ec2, now| {
                let query =
                    ostler_sim::ec2::DescribeQuery { ids: vec![id.clone()], ..Default::default() };
                ec2.describe_instances(now, &query).is_ok().then_some(())
            })
        })
        .await;
        id
    }

    async fn ask(&self, action: &str, id: &str) {
        self.operator.query("ec2", EC2, action, &[("InstanceId.1", id)]).await.unwrap();
    }

    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let started = tokio::time::Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain until {what}; at {}: {:#?}\nwhat the function said is in {}",
                self.world.clock.now(),
                self.world.ec2.instances(),
                self.world.log_dir().display()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ids of the machines that have not ended.
    fn living(&self) -> BTreeSet<String> {
        let views = self.world.ec2.instances().into_iter();
        views
            .filter(|view| !matches!(view.state.as_str(), "terminated" | "shutting-down"))
            .map(|view| view.instance_id)
            .collect()
    }

    fn metrics(&self, name: &str) -> Vec<MetricPoint> {
        let metrics = self.world.edge.lambda().metrics().into_iter();
        metrics.filter(|point| point.name == name).collect()
    }

    /// What the function has called, and how often.
    fn calls(&self) -> BTreeMap<String, u64> {
        let caller = format!("fn-{REAPER_STACK}");
        self.world.edge.calls().remove(&caller).unwrap_or_default()
    }

    /// Has the function sweep at once; its answer, or its error.
    async fn sweep(&self) -> Result<Value, Value> {
        let event = include_str!("../../../functions/reaper/events/scheduled.json");
        let lambda = self.world.edge.lambda();
        // One sweep at a time: the schedule's may be under way.
        let swept = async || match lambda.invoke(REAPER_STACK, event.into()).await {
            Err(InvokeError::Throttled) => None,
            answer => Some(answer.unwrap()),
        };
        let (_, outcome) = self.until("it is this sweep's turn", swept).await;
        let answer = serde_json::from_slice(&outcome.payload).unwrap();
        if outcome.error { Err(answer) } else { Ok(answer) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r49_to_r58_the_reaper_ends_what_is_past_its_time_and_needs_nothing_else() {
    let mut yard = Yard::up().await;
    let ours = [
        ("Owner", "ci"),
        ("OwnerTag", "team"),
        ("StateTag", "pool"),
        ("KeptStates", "spare"),
        ("UntilTag", "expires"),
        ("EveryMinutes", "1"),
        ("MaxAgeMinutes", "10"),
    ];
    yard.deploy(&[&ours[..], &[("DryRun", "true")]].concat()).await;

    let team = ("team", "ci");
    let working = yard.launch("on-demand", &[team]).await;
    let stopped = yard.launch("on-demand", &[team, ("pool", "used")]).await;
    yard.ask("StopInstances", &stopped).await;
    let spot = yard.launch("spot", &[team]).await;
    yard.world.ec2.with(|ec2, _| ec2.make_persistent(&spot));
    let expires = (yard.world.clock.now() + 1000 * HOUR).to_string();
    let rescued = yard.launch("on-demand", &[team, ("expires", &expires)]).await;
    let spare = yard.launch("on-demand", &[team, ("pool", "spare")]).await;
    yard.ask("StopInstances", &spare).await;
    let foreign = yard.launch("on-demand", &[("team", "others"), ("ostler:owner", "ci")]).await;
    let over = BTreeSet::from([working, stopped, spot]);
    let staying = BTreeSet::from([rescued, spare, foreign]);
    let all: BTreeSet<String> = over.union(&staying).cloned().collect();

    r55_a_dry_run_only_says_what_it_would_end(&yard, &all, over.len()).await;
    r51_r53_the_next_sweeps_end_it(&yard, &all, &staying).await;
    r54_what_can_not_be_ended_fails_the_run_and_holds_nothing_up(&mut yard).await;
    let subject =
        Subject::function(&yard.world, REAPER_STACK, "fn-ostler-reaper", &["reaper.yaml"]).await;
    let wrong = covered(&yard.world, &[subject], true).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    r57_deleting_the_stack_ends_it_and_its_log(&yard).await;
    yard.down().await;
}

async fn r55_a_dry_run_only_says_what_it_would_end(
    yard: &Yard,
    all: &BTreeSet<String>,
    over: usize,
) {
    yard.until("a rehearsal counts all that are over", async || {
        let kept = yard.metrics("ReaperKept");
        kept.iter()
            .any(|point| point.dimensions["Reason"] == "DryRun" && point.value == over as f64)
            .then_some(())
    })
    .await;
    assert_eq!(yard.living(), *all);
    assert_eq!(yard.calls().keys().collect::<Vec<_>>(), ["ec2:DescribeInstances"]);
}

/// The schedule alone brings it about.
async fn r51_r53_the_next_sweeps_end_it(
    yard: &Yard,
    all: &BTreeSet<String>,
    staying: &BTreeSet<String>,
) {
    yard.deploy(&[("Owner", "ci"), ("DryRun", "false")]).await;
    yard.until("all that is over has ended", async || {
        let living = yard.living();
        assert!(living.is_subset(all), "nothing was started in place of the spot machine");
        (living == *staying).then_some(())
    })
    .await;
    let before = yard.metrics("ReaperKept").len();
    yard.until("some more sweeps have passed", async || {
        (yard.metrics("ReaperKept").len() > before + 6).then_some(())
    })
    .await;
    assert_eq!(yard.living(), *staying, "they stay, and nothing comes after the others");
    assert_eq!(yard.metrics("ReaperEnded").iter().map(|point| point.value).sum::<f64>(), 3.0);
    assert!(yard.metrics("ReaperFailed").is_empty());
    let calls = yard.calls();
    let made: Vec<_> = calls.keys().map(String::as_str).collect();
    let all = ["Cancel", "DescribeInstances", "DescribeSpot", "Terminate"];
    assert_eq!(made.len(), all.len(), "{made:?}");
    assert!(made.iter().zip(all).all(|(call, start)| call.starts_with(&format!("ec2:{start}"))));
    assert_eq!(calls["ec2:TerminateInstances"], 3, "one call for each");
    assert_eq!(calls["ec2:CancelSpotInstanceRequests"], 1);
}

async fn r54_what_can_not_be_ended_fails_the_run_and_holds_nothing_up(yard: &mut Yard) {
    let protected = yard.launch("on-demand", &[("team", "ci")]).await;
    let plain = yard.launch("on-demand", &[("team", "ci")]).await;
    yard.world.ec2.with(|ec2, now| {
        ec2.modify_instance(now, &protected, InstanceAttribute::Protected(true)).unwrap();
    });
    yard.until("the other one has ended", async || (!yard.living().contains(&plain)).then_some(()))
        .await;
    yard.until("the failure is counted", async || {
        (!yard.metrics("ReaperFailed").is_empty()).then_some(())
    })
    .await;
    let error = yard.sweep().await.unwrap_err();
    assert_eq!(error["errorType"], "Transient", "{error}");
    let text = error["errorMessage"].as_str().unwrap();
    assert!(
        text.contains(&protected) && text.contains("take termination protection off"),
        "{text}"
    );
    yard.world.ec2.with(|ec2, now| {
        ec2.modify_instance(now, &protected, InstanceAttribute::Protected(false)).unwrap();
    });
    yard.until("it has ended too", async || (!yard.living().contains(&protected)).then_some(()))
        .await;
    let swept = yard.sweep().await.unwrap();
    assert_eq!(swept, json!({"ended": 0, "kept": {"Pool": 1, "Until": 1}, "failed": 0, "left": 0}));
}

async fn r57_deleting_the_stack_ends_it_and_its_log(yard: &Yard) {
    let groups = async || {
        let input = json!({"logGroupNamePrefix": format!("/ostler/{REAPER_STACK}/")});
        let found =
            yard.operator.json("logs", "Logs_20140328.DescribeLogGroups", &input).await.unwrap();
        found["logGroups"].as_array().unwrap().len()
    };
    assert_eq!(groups().await, 1);
    let stack = [("StackName", REAPER_STACK)];
    yard.operator.query("cloudformation", "2010-05-15", "DeleteStack", &stack).await.unwrap();
    yard.world.edge.deployments().sync().await.unwrap();
    assert_eq!(groups().await, 0);
    assert!(yard.world.edge.lambda().invoke(REAPER_STACK, "{}".into()).await.is_err());
}
