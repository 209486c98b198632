//! The registration janitor's events: a scan of ten thousand registrations in five groups, with machines in three
//! regions, and the confirmation of ten of those that were left behind. They come last, because a GitHub of that size
//! answers everybody more slowly.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::figures::{Function, Kind, MIB};
use super::{Bench, Code, Options, Sample, broken, deployed_name, machine, settle};
use crate::crowd::Crowd;
use crate::demo;
use crate::world::World;

/// The janitor of the crowd: its stack, and its function.
pub const STACK: &str = "registration-janitor";

/// The most that GitHub lets a group have.
const REGISTRATIONS: usize = 10_000;
/// Records of one event.
const BATCH: usize = 10;
/// As many as one scan may queue at most, so that it goes on to its end; earlier scans found the others.
const LEFT: usize = 900;
/// Confirmations and scans. Each is paced by the bucket of its App for some seconds, and tells as much as another.
const EACH: usize = 3;

/// Deploys the janitor for that crowd, without its schedule. What it queues is confirmed where it is measured.
async fn deploy(world: &World, crowd: &Crowd) -> anyhow::Result<()> {
    let own = crowd.parameters();
    let mut parameters: Vec<_> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    parameters.extend([
        ("DryRun", "false"),
        ("MaxCandidates", "1000"),
        ("ScheduleState", "DISABLED"),
    ]);
    world.deploy_janitor(STACK, &parameters).await?;
    world.edge.queues().unmap(STACK);
    Ok(())
}

/// A scan of so many registrations by a process of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Scanned {
    /// Registrations.
    pub registrations: usize,
    /// Calls of GitHub.
    pub github_calls: u64,
    /// Calls of AWS.
    pub aws_calls: u64,
    /// How long it took, s. The pace of the App's calls is in it.
    pub seconds: f64,
    /// The process's own work, s; `None` where the system does not tell.
    pub cpu_s: Option<f64>,
    /// Most memory that it took beyond what was resident, MiB.
    pub memory_mib: f64,
}

/// A scan of so many registrations, in a world of its own, by a process that has only scanned nothing before.
pub async fn scan_of(code: &Code, out: &Path, registrations: usize) -> anyhow::Result<Scanned> {
    println!("a scan of {registrations} registrations by a process");
    let world = World::up(code.world(out)?).await?;
    let scanned = scan(&world, registrations).await;
    world.down().await;
    scanned
}

async fn scan(world: &World, registrations: usize) -> anyhow::Result<Scanned> {
    world.install_control(&demo::tiers()).await?;
    settle(world);
    let mut crowd = Crowd::new(world)?;
    deploy(world, &crowd).await?;
    let name = deployed_name(Function::RegistrationJanitor);
    let process = world.edge.lambda().probe(&name, &[], None).await;
    let mut process = process.map_err(|error| broken(&name, &error))?;
    let tick = json!({"source": "aws.events"});
    // A token and clients come first: they are not the registrations' share.
    completed(&Sample::take(world, &mut process, &name, &tick).await?)?;
    crowd.calm();
    crowd.fill(world, registrations)?;
    for turn in 0..crowd.clear(world, LEFT.min(registrations / 20))? {
        crowd.come(world, turn, true)?;
    }
    let id = process.process_id().unwrap_or_default();
    let memory = || machine::memory_of(id).context("the janitor's memory can't be read");
    let (resident, _) = memory()?;
    let sample = Sample::take(world, &mut process, &name, &tick).await?;
    completed(&sample)?;
    let (_, most) = memory()?;
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    let memory_mib = most.saturating_sub(resident) as f64 / MIB;
    Ok(Scanned {
        registrations,
        github_calls: sample.github.values().sum(),
        aws_calls: sample.aws.values().sum(),
        seconds: sample.latency.as_secs_f64(),
        cpu_s: sample.cpu.map(|cpu| cpu.as_secs_f64()),
        memory_mib,
    })
}

fn completed(sample: &Sample) -> anyhow::Result<()> {
    let answer: &Value = &sample.answer;
    ensure!(answer["stopReason"] == "completed", "a scan answered {answer}");
    Ok(())
}

impl Bench<'_> {
    /// Some confirmations, and then some scans.
    pub(super) async fn sweep(&mut self, options: &Options) -> anyhow::Result<()> {
        let mut crowd = Crowd::new(self.world)?;
        deploy(self.world, &crowd).await?;
        self.start_one(Function::RegistrationJanitor, options).await?;
        let tick = json!({"source": "aws.events"});
        // A token and clients, so that what a scan is seen to take is the registrations' share.
        self.warm = false;
        self.measure(Kind::EmptyScan, &tick).await?;
        self.warm = true;
        println!("{REGISTRATIONS} registrations for the registration-janitor");
        crowd.calm();
        crowd.fill(self.world, REGISTRATIONS)?;
        for _ in 0..EACH {
            let messages = crowd.messages(self.world, BATCH)?;
            let record = |(place, body)| json!({"messageId": format!("{place}"), "body": body});
            let records: Vec<_> = messages.iter().enumerate().map(record).collect();
            let answer = self.measure(Kind::Confirmation, &json!({"Records": records})).await?;
            ensure!(answer == json!({"batchItemFailures": []}), "a confirmation answered {answer}");
        }
        let gone = crowd.clear(self.world, LEFT)? + EACH * BATCH;
        for turn in 0..gone {
            crowd.come(self.world, turn, true)?;
        }
        for _ in 0..EACH {
            let answer = self.measure(Kind::Scan, &tick).await?;
            ensure!(
                answer["candidatesQueued"] == LEFT && answer["stopReason"] == "completed",
                "a scan of {LEFT} orphans answered {answer}"
            );
        }
        Ok(())
    }
}
