//! The registration janitor in the local world: the real function binary and template, a GitHub with ten thousand
//! registrations and EC2 in three regions, or an install of our own. The binary is that of `cargo build --workspace`.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostler_core::job::JobId;
use ostler_core::names::NameKey;
use ostler_local::crowd::{Crowd, Runner};
use ostler_local::edge::{FaultKind, FaultRule};
use ostler_local::world::{World, WorldConfig};
use ostler_sim::ec2;
use ostler_sim::github::{self, ApiError, Fault, RateLimits, Scope, endpoint::ORG_GROUP_RUNNERS};
use serde_json::{Value, json};

use crate::permissions::{Subject, covered};

#[path = "permissions/mod.rs"]
mod permissions;

/// The stack, and its function.
const STACK: &str = "registration-janitor";

/// World seconds in a real one: a quarter of an hour plays in as many seconds. Faster, and a busy computer is slow
/// by a JWT's life.
const SCALE: f64 = 60.0;

/// For how long something is waited for, in real time. A quiet machine needs a tenth of it.
const PATIENCE: Duration = Duration::from_secs(600);

struct Rig {
    world: World,
    crowd: Crowd,
}

impl Rig {
    async fn up() -> Self {
        let folder =
            tempfile::Builder::new().prefix("janitor-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let config = WorldConfig { scale: SCALE, ..WorldConfig::new(folder.unwrap().keep()) };
        let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
        let mut crowd = Crowd::new(&world).unwrap();
        crowd.fill(&world, 10_000).unwrap();
        let throttle = Some(ec2::Throttle::default());
        crowd.behave(ec2::Options { throttle, ..ec2::Options::default() });
        assert_eq!((crowd.orphans.len(), crowd.living.len()), (1_500, 8_500));
        Self { world, crowd }
    }

    fn registered(&self, id: u64) -> bool {
        self.world.github.with_model(|model, _| model.registration(id).is_some())
    }

    /// Pages, look-ups and sends that fail now and then, and limits that bite.
    fn weather(&self) {
        for strike in 0..24 {
            self.world.github.add_fault(github::FaultRule {
                method: "GET".into(),
                template: ORG_GROUP_RUNNERS.into(),
                skip: 11 + strike * 13,
                times: 1,
                fault: match strike % 3 {
                    0 => Fault::Refuse(ApiError::new(502, "Server Error")),
                    1 => Fault::Lost(0),
                    _ => Fault::Slow(Duration::from_millis(300)),
                },
            });
        }
        let by = |action: &str, kind: FaultKind, probability: f64| FaultRule {
            probability,
            ..FaultRule::on(action, kind).by("fn-registration-janitor")
        };
        let faults = self.world.edge.faults();
        faults.add(by("ec2:DescribeInstances", FaultKind::ServerError, 0.02));
        faults.add(by("ec2:DescribeInstances", FaultKind::Throttle, 0.02));
        faults.add(by("sqs:SendMessageBatch", FaultKind::LostResponse, 0.02));
        self.world.github.with_model(|model, _| {
            let limits = RateLimits { primary_per_hour: 2_500, ..RateLimits::default() };
            model.options_mut().rate_limits = Some(limits);
        });
    }

    /// Looks until it is so.
    async fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let started = tokio::time::Instant::now();
        while !so() {
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain until {what}; metrics {:?}; see {}",
                self.metrics(),
                self.world.log_dir().display()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for point in self.world.edge.lambda().metrics() {
            let by: Vec<_> = point
                .dimensions
                .iter()
                .filter(|(name, _)| *name != "Janitor")
                .map(|(_, value)| value.as_str())
                .collect();
            *sums.entry(format!("{} {}", point.name, by.join(" "))).or_default() += point.value;
        }
        sums
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.world.edge.lambda().log_path(STACK)).unwrap()
    }

    /// The function's own lines with that message.
    fn told(&self, message: &str) -> Vec<Value> {
        let lines = self.log();
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    }

    async fn deploy(&self, more: &[(&str, &str)]) {
        let own = self.crowd.parameters();
        let mut parameters: Vec<_> =
            own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        parameters.push(("MaxCandidates", "1000"));
        parameters.extend(more);
        let deployed = self.world.deploy_janitor(STACK, &parameters).await;
        deployed.unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Runners that come and go until they are told to stop. Answers who is alive at the end. One that ends must be
/// registered at that moment: nobody took it before its end.
async fn come_and_go(rig: Arc<Rig>, mut living: Vec<Runner>, stop: Arc<AtomicBool>) -> Vec<Runner> {
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        living.push(rig.crowd.come(&rig.world, turn, turn % 3 > 0).unwrap());
        let ended = living.swap_remove(turn * 7919 % living.len());
        assert!(rig.registered(ended.id), "{} was deleted while its machine lived", ended.instance);
        rig.crowd.go(&rig.world, &ended).unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    living
}

#[tokio::test(flavor = "multi_thread")]
async fn sp_02_ten_thousand_registrations_lose_their_orphans_and_no_other_while_runners_come_and_go()
 {
    let mut rig = Rig::up().await;
    let (mut orphans, living) =
        (std::mem::take(&mut rig.crowd.orphans), std::mem::take(&mut rig.crowd.living));
    let rig = Arc::new(rig);
    rig.world.put_parameters(&json!({"tiers": []})).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let life = tokio::spawn(come_and_go(Arc::clone(&rig), living, Arc::clone(&stop)));

    j16_j17_j86_a_dry_run_comes_first_and_only_tells(&rig, &orphans).await;

    // Then in earnest, and in bad weather.
    rig.weather();
    // Less often than it takes to confirm, or a candidate would be queued again and again meanwhile.
    rig.deploy(&[("ScheduleExpression", "rate(30 minutes)"), ("DryRun", "false")]).await;
    rig.until("all orphans were gone", || {
        orphans.retain(|id| rig.registered(*id));
        orphans.is_empty()
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for runner in life.await.unwrap() {
        assert!(rig.registered(runner.id), "{} lives, and was deleted", runner.instance);
    }
    let build_box = rig.world.github.snapshot();
    assert!(build_box.runners.iter().any(|runner| runner.name.ends_with("build-box")));

    let metrics = rig.metrics();
    // Less those whose answer was lost, which were found gone.
    let removed = metrics["RegistrationDeleted "]
        + metrics.get("RegistrationGone ").copied().unwrap_or_default();
    assert!(removed >= 1500.0, "{metrics:?}");
    assert!(metrics["RegistrationKept Foreign"] > 0.0 && metrics["RegistrationKept Exists"] > 0.0);
    assert!(metrics.keys().any(|key| key.starts_with("JanitorFailure")), "the weather was fair");
    within_its_budgets(&rig);
    it_calls_what_it_may_and_may_what_it_calls(&rig.world, STACK, "fn-registration-janitor").await;

    let state_dir = rig.world.log_dir();
    Arc::into_inner(rig).expect("nobody else has it").world.down().await;
    let _ = std::fs::remove_dir_all(state_dir);
}

/// As it is set up: each candidate is told of with the message that would have been sent, and nothing is sent.
async fn j16_j17_j86_a_dry_run_comes_first_and_only_tells(rig: &Rig, orphans: &BTreeSet<u64>) {
    rig.deploy(&[("ScheduleExpression", "rate(10 minutes)")]).await;
    rig.until("a scan was told of", || !rig.told("scanned").is_empty()).await;
    let calls = rig.world.edge.calls()["fn-registration-janitor"].clone();
    assert!(!calls.contains_key("sqs:SendMessageBatch"), "{calls:?}");
    let candidates = rig.told("dry run: would be queued");
    assert!(candidates.len() >= 1000, "{}", candidates.len());
    let message = |line: &Value| serde_json::from_str(line["candidate"].as_str()?).ok();
    let messages: Vec<Value> = candidates.iter().filter_map(message).collect();
    assert_eq!(messages.len(), candidates.len(), "{}", candidates[0]);
    let known = messages.iter().filter(|it| orphans.contains(&it["runnerId"].as_u64().unwrap()));
    assert!(known.count() > 900, "the others ended meanwhile");
    let scanned = &rig.told("scanned")[0];
    for key in [
        "pagesScanned",
        "candidatesQueued",
        "dryRunCandidates",
        "existingResources",
        "pageFailures",
        "candidateFailures",
    ] {
        assert!(scanned[key].is_u64(), "{key}: {scanned}");
    }
    assert_eq!((&scanned["dryRun"], &scanned["candidatesQueued"]), (&json!(true), &json!(0)));
    assert_eq!(scanned["stopReason"], "candidate-limit");
    assert!(orphans.iter().all(|id| rig.registered(*id)));
}

/// For each kind of runner that it looks after, once its world has played all that it does.
async fn it_calls_what_it_may_and_may_what_it_calls(world: &World, stack: &str, caller: &str) {
    let written = &["registration-janitor.yaml"];
    let subject = Subject::function(world, stack, caller, written).await;
    let wrong = covered(world, &[subject], true).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Pages and real time of each scan; and nothing secret in the log.
fn within_its_budgets(rig: &Rig) {
    let seen = rig.world.edge.lambda().metrics();
    let scans = seen.iter().filter(|point| point.name == "RegistrationsSeen").count();
    let pages = rig.world.github.calls()[&format!("GET {ORG_GROUP_RUNNERS}")];
    // A few more registrations than ten thousand: runners have come.
    assert!(pages <= u64::try_from(scans * 115).unwrap(), "{pages} pages in {scans} scans");
    let log = rig.log();
    let slowest = log
        .lines()
        .filter_map(|line| {
            line.split_once("Duration: ")?.1.split_once(" ms")?.0.parse::<f64>().ok()
        })
        .fold(0.0, f64::max);
    assert!((1.0..60_000.0).contains(&slowest), "{slowest} ms");
    for (what, secret) in rig.world.secrets() {
        assert!(!log.contains(&secret), "the log holds {what}");
    }
    println!("{scans} scans, {pages} pages, slowest invocation {slowest} ms, {:?}", rig.metrics());
}

/// An install's own janitor, by the name key, in the real function: nothing goes but what is its own and has nothing
/// behind it.
#[tokio::test(flavor = "multi_thread")]
async fn j33_jp_09_an_installs_janitor_removes_its_own_and_keeps_what_runs_and_what_is_others() {
    let folder =
        tempfile::Builder::new().prefix("own-janitor-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let config = WorldConfig { scale: SCALE, ..WorldConfig::new(folder.unwrap().keep()) };
    let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
    world.github.add_repository("acme/widgets", true);
    world.install(&json!({"tiers": []})).await.unwrap_or_else(|error| panic!("{error:#}"));
    let (_, key) =
        world.secrets().into_iter().find(|(what, _)| *what == "the name key").expect("has one");
    let name = |key: &str, job| NameKey::new(key).unwrap().base_name("widgets", JobId(job));

    // It waits for a tier, for a day.
    let running = name(&key, 2);
    let runner = json!({"owner": "acme", "repo": "widgets", "jobId": -1, "jobUrl": "", "installationId": -1,
        "jobLabels": "", "provider": "no-tier", "labels": "self-hosted", "maxIdleSeconds": 300,
        "queuedAt": world.clock.now().to_string()});
    let execution = json!({"stateMachineArn": world.output("StateMachineArn").unwrap(), "name": running,
        "input": runner.to_string()});
    let client = world.edge.client("operator");
    client.json("states", "AWSStepFunctions.StartExecution", &execution).await.unwrap();

    let stay = [running, name("another install's", 1), "build-box".to_owned()];
    let (scope, labels) = (Scope::Organization("acme".into()), ["self-hosted".to_owned()]);
    for name in &stay {
        let made = world
            .github
            .with_model(|model, now| model.generate_jit(now, &scope, name, Some(1), &labels));
        assert!(made.is_ok(), "{name}");
    }
    let orphan = world.leave_behind().unwrap();

    let names = || -> BTreeSet<String> {
        world.github.snapshot().runners.into_iter().map(|runner| runner.name).collect()
    };
    let started = tokio::time::Instant::now();
    while names().contains(&orphan) {
        assert!(started.elapsed() < PATIENCE, "see {}", world.log_dir().display());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(names(), stay.into());
    let kept = |reason: &str| {
        let points = world.edge.lambda().metrics();
        points.iter().any(|point| {
            point.name == "RegistrationKept"
                && point.dimensions.get("Reason").map(String::as_str) == Some(reason)
        })
    };
    assert!(kept("Exists") && kept("Foreign"));
    let own = "ostler-janitor";
    it_calls_what_it_may_and_may_what_it_calls(&world, own, &format!("fn-{own}")).await;
    let state_dir = world.log_dir();
    world.down().await;
    let _ = std::fs::remove_dir_all(state_dir);
}
