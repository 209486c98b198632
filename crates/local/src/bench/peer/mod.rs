//! Ostler's functions beside those of an established peer: the same events, in the same world, turn by turn, so that
//! whatever else the machine does troubles both alike.
//!
//! The peer is the released package, as `scripts/bench_peer.sh` fetches it: its bundled handlers run on Node over the Runtime
//! API by `bench/peer/runtime.mjs`, which does less at its start than Lambda's own runtime. What it reads (Secrets Manager, a
//! file of providers, its table and its queue) is made beside Ostler's stacks. An event is handed to both, now to one
//! first, now to the other; executions that either starts run on and do nothing.

mod bouts;
mod burst;
mod cost;
mod figures;
mod growth;
mod page;
mod prices;
mod share;
mod show;
mod theirs;

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use self::figures::{Bout, Contest, Handler, Side};
use self::prices::Prices;
use self::share::CpuShare;
use self::theirs::Peer;
use super::figures::Function;
use super::{Bench, Code, Machine, life, machine, settle, still_machine};
use crate::demo;
use crate::world::{CONTROL_STACK, RECOVERY_STACK, World};

/// Memory sizes that are tried, MB: from the least that Lambda has to where a larger one gains nothing here.
const SIZES_MB: [u32; 4] = [128, 256, 512, 1024];
/// Memory at which a function has one whole processor. Source: Lambda developer guide, "Configure Lambda function memory".
const WHOLE_CPU_MB: f64 = 1769.0;
/// Events of each kind on a process that has been started for a round.
const WARM_EVENTS: usize = 8;

/// What is measured, and how much.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ostler's functions.
    pub code: Code,
    /// The folder with the peer's handlers (`assets`) and the SDK (`node_modules`).
    pub peer: PathBuf,
    /// Where `bench-peer.json` and `bench-peer.md` go; the world's state is kept below it.
    pub out: PathBuf,
    /// Rounds; each starts all processes anew.
    pub rounds: usize,
    /// Whether the tables replace those of `docs/performance.md`.
    pub write_docs: bool,
}

/// Measures, prints the figures and writes them down.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let machine = Machine::this().await;
    let config = options.code.world(&options.out)?;
    let root = config.root.clone();
    let prices = Prices::read(&root.join("bench/prices.json"))?;
    let mut versions = machine::versions(&config.root);
    versions.extend(theirs::versions(&options.peer, &config.root)?);
    let world = World::up(config).await?;
    let at = world.clock.now().to_string();
    let contest = compete(&world, options).await;
    world.down().await;
    let report = contest?.report(at, machine, versions, &prices);
    let costs = cost::reckon(&report, &prices, &root)?;
    let bursts = burst::play(&options.code, &options.out).await?;
    let growth = growth::play(&options.code, &options.out).await?;
    let markdown = [
        show::markdown(&report, &prices),
        page::bursts(&bursts),
        page::growth(&growth),
        page::costs(&costs, &prices),
    ]
    .concat();
    let json = serde_json::to_string_pretty(&serde_json::json!({
        "contest": report, "bursts": bursts, "growth": growth, "costs": costs,
    }))?;
    for (name, text) in [("bench-peer.json", &json), ("bench-peer.md", &markdown)] {
        let path = options.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{markdown}");
    println!("written to {}", options.out.display());
    if options.write_docs {
        let path = root.join("docs/performance.md");
        page::replace(&path, &markdown)?;
        println!("and into {}", path.display());
    }
    Ok(())
}

async fn compete(world: &World, options: &Options) -> anyhow::Result<Contest> {
    println!("deploying {} into the local world", options.code.folder().display());
    world.install_control(&demo::tiers()).await?;
    life::prepare(world);
    settle(world);
    let peer = Peer::install(world, &options.peer).await?;
    world.deploy_recovery(&[]).await?;
    // What is reported is judged where it is measured, and not by a function behind our back; and nothing is
    // reconciled before its turn.
    world.edge.queues().unmap(CONTROL_STACK);
    world.edge.queues().unmap(RECOVERY_STACK);
    world.edge.deployments().end_schedules(RECOVERY_STACK);
    let starts = super::Options {
        code: options.code.clone(),
        out: options.out.clone(),
        events: 0,
        starts: 1,
    };
    let mut ours = Bench::start(world, &starts).await?;
    ours.start_one(Function::Reconciler, &starts).await?;
    let contest = Contest::default();
    let mut duel = Duel { ours, peer, contest, turn: 0, size_mb: None, procs: None };
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        duel.begin().await?;
        duel.round(WARM_EVENTS, true).await?;
        duel.end()?;
    }
    for size_mb in SIZES_MB {
        let share = f64::from(size_mb) / WHOLE_CPU_MB;
        match CpuShare::new(share) {
            Ok(share) => {
                println!("with the processor of {size_mb} MB");
                for _ in 0..options.rounds.div_ceil(5) {
                    duel.size_mb = Some(size_mb);
                    duel.procs = Some(share.procs().to_owned());
                    duel.begin().await?;
                    duel.round(WARM_EVENTS, false).await?;
                    duel.end()?;
                }
            }
            Err(error) => {
                duel.contest.notes.push(format!(
                    "memory sizes were not tried, because shares of the processor can't be given here: {error:#}"
                ));
                break;
            }
        }
    }
    Ok(duel.contest)
}

/// Both sides under measurement.
struct Duel<'a> {
    ours: Bench<'a>,
    peer: Peer,
    contest: Contest,
    /// Counts events, so that the sides take turns in being first.
    turn: usize,
    /// The memory size whose share of the processor they have; all of it if none.
    size_mb: Option<u32>,
    /// The `cgroup.procs` of that share.
    procs: Option<PathBuf>,
}

impl Duel<'_> {
    /// Starts all processes anew.
    async fn begin(&mut self) -> anyhow::Result<()> {
        for handler in Handler::ALL {
            self.fresh(handler).await?;
        }
        Ok(())
    }

    /// Starts both processes of a handler anew.
    async fn fresh(&mut self, handler: Handler) -> anyhow::Result<()> {
        self.turn += 1;
        let procs = self.procs.clone();
        for side in Side::in_turn(self.turn) {
            let init = match side {
                Side::Ostler => self.ours.restart(handler.ours(), procs.as_deref()).await?,
                Side::Peer => self.peer.restart(self.ours.world, handler, procs.as_deref()).await?,
            };
            self.contest.started(handler, side, self.size_mb, init);
        }
        Ok(())
    }

    /// Notes what the processes have grown to.
    fn end(&mut self) -> anyhow::Result<()> {
        for handler in Handler::ALL {
            for side in Side::BOTH {
                let process = match side {
                    Side::Ostler => self.ours.subject(handler.ours())?.process.process_id(),
                    Side::Peer => self.peer.process_id(handler),
                };
                let memory = machine::memory_of(process.unwrap_or_default());
                let memory = memory.context("the memory of a process can't be read")?;
                self.contest.weighed(handler, side, self.size_mb, memory);
            }
        }
        Ok(())
    }

    /// Hands an event to both, and gives their answers.
    async fn meet(
        &mut self,
        bout: Bout,
        ours: &Value,
        theirs: &Value,
    ) -> anyhow::Result<(Value, Value)> {
        self.turn += 1;
        let (mut own, mut other) = (None, None);
        for side in Side::in_turn(self.turn) {
            match side {
                Side::Ostler => {
                    own = Some(self.ours.sample(bout.handler().ours(), ours).await?);
                }
                Side::Peer => {
                    other = Some(self.peer.sample(self.ours.world, bout.handler(), theirs).await?);
                }
            }
        }
        let (own, other) = own.zip(other).context("a side had no turn")?;
        for (side, sample) in [(Side::Ostler, &own), (Side::Peer, &other)] {
            if let Some(error) = &sample.error {
                anyhow::bail!("{} of {} failed: {error}", bout.name(), side.name());
            }
        }
        let answers = (own.answer.clone(), other.answer.clone());
        self.contest.met(bout, self.size_mb, own, other);
        Ok(answers)
    }
}
