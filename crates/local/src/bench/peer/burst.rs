//! A burst of jobs: some through this world's own processes, many under virtual time with the same use cases; and the
//! same burst as the peer's design would meet it, as a model.
//!
//! The first calibrates the second: of several latencies of a call that one is taken with which the simulation has half
//! of the jobs' runners online when the processes had.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ostler_sim::ec2::{self, Rate, Span, Throttle};
use ostler_sim::github::{JobSpec, RateLimits, Status};
use ostler_sim::measure::burst::{self, Burst, BurstReport};
use ostler_sim::measure::peer::{self, PeerReport};
use ostler_sim::measure::percentiles;
use serde::Serialize;
use serde_json::json;

use super::super::Code;
use super::super::life::{LABELS, REPOSITORY};
use crate::github::refused;
use crate::world::World;

/// Jobs of the burst that real processes run.
const JOBS: usize = 150;
/// In this time.
const OVER: Duration = Duration::from_secs(10);
/// How long they run.
const JOB: Duration = Duration::from_secs(20);
/// Longer than such a burst takes.
const LONGEST: Duration = Duration::from_secs(480);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(500);
/// Bursts under virtual time: jobs, Apps and tiers. Where GitHub has shuffled many jobs of one tier, who waits for whom is
/// followed through all of them at each look, which takes long; the first one tells what that costs.
const SIMULATED: [(usize, usize, usize); 6] =
    [(150, 1, 1), (150, 1, 3), (500, 1, 10), (500, 3, 10), (2_000, 1, 40), (2_000, 3, 40)];
/// Mean latencies of a call that are tried, ms.
const LATENCIES_MS: [u64; 7] = [5, 10, 20, 40, 80, 160, 320];
/// What EC2 documents for `RunInstances` (EC2 Developer Guide, "Request throttling"), should `CreateFleet` have no more.
const AS_RUN_INSTANCES: Rate = Rate { burst: 5.0, per_second: 2.0 };

/// Bursts of all kinds.
#[derive(Debug, Serialize)]
pub struct Bursts {
    /// Through processes.
    pub processes: Processes,
    /// The mean latency of a call with which the simulation comes closest to it, ms.
    pub latency_ms: u64,
    /// Under virtual time.
    pub simulated: Vec<Simulated>,
}

/// A burst through this world's own processes.
#[derive(Debug, Serialize)]
pub struct Processes {
    /// Jobs.
    pub jobs: usize,
    /// From the first job until 50 %, 95 % and all of them had a runner, s.
    pub online_s: [f64; 3],
    /// Calls that GitHub refused for a limit.
    pub github_limited: u64,
    /// Jobs that did not end well.
    pub lost: usize,
}

/// A burst under virtual time.
#[derive(Debug, Serialize)]
pub struct Simulated {
    /// What EC2 allows.
    pub limits: &'static str,
    /// Ours.
    pub ostler: BurstReport,
    /// The model of the peer's design, which has one App.
    pub peer: Option<PeerReport>,
}

/// Plays all of them.
pub async fn play(code: &Code, out: &Path) -> anyhow::Result<Bursts> {
    println!("a burst of {JOBS} jobs through processes");
    let processes = processes(code, &out.join("burst")).await?;
    println!("bursts of up to 2,000 jobs under virtual time");
    // Each world of the simulation is one thread's, and none of it waits for anything.
    let bursts = tokio::task::spawn_blocking(move || simulated(processes));
    bursts.await.context("the simulation of bursts has ended")?
}

fn burst_of((jobs, apps, tiers): (usize, usize, usize), latency_ms: u64) -> Burst {
    let latency = Span {
        least: Duration::from_millis(latency_ms / 2),
        most: Duration::from_millis(latency_ms * 3 / 2),
    };
    let boot = ec2::Options::default().boot;
    Burst { jobs, over: OVER, apps, tiers, latency, boot, ec2: Throttle::default(), seed: 1 }
}

fn simulated(processes: Processes) -> anyhow::Result<Bursts> {
    let apart = |latency: &u64| {
        let played = burst::play(&burst_of((JOBS, 1, 3), *latency));
        let apart = (played.online_s[0] - processes.online_s[0]).abs() * 1e6;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        let apart = apart as u64;
        apart
    };
    let latency_ms = LATENCIES_MS.into_iter().min_by_key(apart).unwrap_or(LATENCIES_MS[0]);
    let documented = SIMULATED.map(|sizes| ("as documented", burst_of(sizes, latency_ms)));
    // What EC2 says of CreateFleet in particular is only told on request.
    let wide = burst_of((500, 1, 10), latency_ms);
    let narrow = Burst { ec2: Throttle { change: AS_RUN_INSTANCES, ..wide.ec2 }, ..wide };
    let narrow = ("CreateFleet as RunInstances: 5 and 2 a second", narrow);
    let all = std::thread::scope(|scope| {
        let playing: Vec<_> = documented
            .into_iter()
            .chain([narrow])
            .map(|(limits, burst)| {
                scope.spawn(move || Simulated {
                    limits,
                    ostler: burst::play(&burst),
                    peer: (burst.apps == 1).then(|| peer::play(&burst)),
                })
            })
            .collect();
        let played = playing.into_iter().map(std::thread::ScopedJoinHandle::join);
        played.collect::<Result<Vec<_>, _>>()
    });
    let simulated = all.map_err(|_| anyhow::anyhow!("a simulated burst has panicked"))?;
    Ok(Bursts { processes, latency_ms, simulated })
}

/// A burst in a world of its own, in real time, with the limits that GitHub and EC2 document.
async fn processes(code: &Code, out: &Path) -> anyhow::Result<Processes> {
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    let world = World::up(code.world(out)?).await?;
    let played = through(&world).await;
    world.down().await;
    played
}

async fn through(world: &World) -> anyhow::Result<Processes> {
    let tiers = json!({"tiers": [{
        "name": "linux-small", "architecture": "x64", "labels": ["small"],
        "images": ["/ostler/images/ubuntu-x64"], "instance_types": ["m7i.large", "m6i.large"],
        "market": "on-demand", "root_volume_gib": 40, "max_idle": "5m", "max_lifetime": "6h",
        "boot_timeout": "10m",
    }]});
    world.install_control(&tiers).await?;
    world.github.add_repository(REPOSITORY, true);
    world.ec2.with(|ec2, _| *ec2.options() = ec2::Options::default());
    world.github.with_model(|model, _| {
        model.options_mut().rate_limits = Some(RateLimits::default());
    });
    let began = world.clock.now();
    let pause = OVER / u32::try_from(JOBS).unwrap_or(u32::MAX);
    let mut next = tokio::time::interval(pause);
    for _ in 0..JOBS {
        next.tick().await;
        let spec = JobSpec { duration: JOB, ..JobSpec::new(REPOSITORY, &LABELS) };
        world.github.post_job(&spec).map_err(refused)?;
    }
    let deadline = tokio::time::Instant::now() + LONGEST;
    let all_over = || {
        world
            .github
            .with_model(|model, _| model.all_jobs().all(|job| job.status == Status::Completed))
    };
    while !all_over() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
    Ok(world.github.with_model(|model, _| {
        let started = model.all_jobs().filter_map(|job| job.started_at);
        let online = started.map(|at| at.since(began).as_secs_f64()).collect();
        let well = |job: &&ostler_sim::github::Job| job.conclusion.as_deref() == Some("success");
        Processes {
            jobs: JOBS,
            online_s: percentiles(online),
            github_limited: model.struck().limited,
            lost: JOBS - model.all_jobs().filter(well).count().min(JOBS),
        }
    }))
}
