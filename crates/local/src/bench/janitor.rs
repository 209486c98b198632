//! The registration janitor's events: a scan of ten thousand registrations in five groups, with machines in three
//! regions, and the confirmation of ten of those that were left behind. They come last, because a GitHub of that size
//! answers everybody more slowly.

use anyhow::ensure;
use serde_json::json;

use super::figures::{Function, Kind};
use super::{Bench, Options};
use crate::crowd::Crowd;
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
