//! `ostler-local`: the local world on the command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use ostler_local::bench;
use ostler_local::chaos;
use ostler_local::demo;
use ostler_local::world::{World, WorldConfig, get_json, post_json};
use serde_json::{Value, json};

/// AWS and GitHub as processes on this machine, with Ostler deployed into them.
#[derive(Parser)]
#[command(name = "ostler-local", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts the world, deploys Ostler into it, and runs until Ctrl-C.
    Up(Up),
    /// Posts a job to a running world.
    Job(Job),
    /// Shows jobs, runners and calls of a running world.
    Status(Place),
    /// Plays the demo's jobs in a world of its own; exits with 1 if a promise did not hold.
    Demo(Demo),
    /// Plays a script of faults in a world of its own; exits with 1 if a promise did not hold.
    Chaos(Chaos),
    /// Measures each function against its budget, in a world of its own.
    Bench(Bench),
    /// Measures the functions beside those of an established peer, in a world of its own.
    BenchPeer(BenchPeer),
}

#[derive(Args)]
struct Place {
    /// Where the world keeps its state.
    #[arg(long, default_value = "target/local")]
    state_dir: PathBuf,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    place: Place,
    /// World seconds per real second.
    #[arg(long, default_value_t = 60.0)]
    scale: f64,
    /// Port of the AWS endpoint; 0 for any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Decides all that is left to chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The tiers, a JSON file; those of the demo if left out.
    #[arg(long)]
    tiers: Option<PathBuf>,
}

#[derive(Args)]
struct Demo {
    /// World seconds per real second.
    #[arg(long, default_value_t = 30.0)]
    scale: f64,
    /// Decides all that is left to chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where summary.json and report.html go; the world's state is kept below it.
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
}

#[derive(Args)]
struct Chaos {
    /// World seconds per real second.
    #[arg(long, default_value_t = 30.0)]
    scale: f64,
    /// Decides the order of the faults, and all that is left to chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where report.md and report.json go; the world's state is kept below it.
    #[arg(long, default_value = "target/chaos")]
    out: PathBuf,
}

/// What is measured.
#[derive(Args)]
struct Code {
    /// Folder with the zips that `make build` makes.
    #[arg(long, required_unless_present = "bin_dir")]
    zips: Option<PathBuf>,
    /// Folder with binaries instead: to try the measurement, not the functions.
    #[arg(long, conflicts_with = "zips")]
    bin_dir: Option<PathBuf>,
}

impl Code {
    fn place(self) -> anyhow::Result<bench::Code> {
        match (self.zips, self.bin_dir) {
            (Some(zips), _) => Ok(bench::Code::Zips(zips)),
            (None, Some(binaries)) => Ok(bench::Code::Binaries(binaries)),
            (None, None) => anyhow::bail!("say --zips or --bin-dir"),
        }
    }
}

#[derive(Args)]
struct Bench {
    #[command(flatten)]
    code: Code,
    /// Where bench.json goes; the world's state is kept below it.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Events of each kind.
    #[arg(long, default_value_t = 100)]
    events: usize,
    /// Starts of each function.
    #[arg(long, default_value_t = 15)]
    starts: usize,
}

#[derive(Args)]
struct BenchPeer {
    #[command(flatten)]
    code: Code,
    /// Folder with the peer's handlers, as scripts/bench_peer.sh fetches them.
    #[arg(long)]
    peer: PathBuf,
    /// Where bench-peer.json and bench-peer.md go; the world's state is kept below it.
    #[arg(long, default_value = "target/bench-peer")]
    out: PathBuf,
    /// Rounds, each with processes that were just started.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Put the tables into docs/performance.md.
    #[arg(long)]
    write_docs: bool,
}

#[derive(Args)]
struct Job {
    #[command(flatten)]
    place: Place,
    /// owner/name; made if it is new.
    #[arg(long)]
    repo: String,
    /// Comma-separated labels, as in `runs-on`.
    #[arg(long, value_delimiter = ',', required = true)]
    labels: Vec<String>,
    /// World seconds that it runs.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// How many of it, as a matrix.
    #[arg(long, default_value_t = 1)]
    count: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Cli::parse().command {
        Command::Up(up) => run(up).await?,
        Command::Job(job) => post(job).await?,
        Command::Status(place) => status(place).await?,
        Command::Demo(options) => return play(options).await,
        Command::Chaos(options) => return break_things(options).await,
        Command::Bench(options) => measure(options).await?,
        Command::BenchPeer(BenchPeer { code, peer, out, rounds, write_docs }) => {
            let code = code.place()?;
            let options = bench::peer::Options { code, peer, out, rounds, write_docs };
            bench::peer::run(&options).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Plays the demo in a fresh world. The world is ended whatever happens in it.
async fn play(options: Demo) -> anyhow::Result<ExitCode> {
    let config = WorldConfig::fresh(&options.out.join("world"))?;
    let config = WorldConfig { scale: options.scale, seed: options.seed, ..config };
    println!("starting the local world at {}× speed", options.scale);
    let world = World::up(config).await?;
    println!("deploying the stacks of infra/");
    let summary = match world.install(&demo::tiers()).await {
        Ok(()) => demo::play(&world, &options.out).await,
        Err(error) => Err(error),
    };
    world.down().await;
    Ok(if summary?.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the script of faults in a fresh world.
async fn break_things(options: Chaos) -> anyhow::Result<ExitCode> {
    let config = WorldConfig::fresh(&options.out.join("world"))?;
    let config = WorldConfig { scale: options.scale, seed: options.seed, ..config };
    println!("starting the local world at {}× speed, and deploying the stacks", options.scale);
    let world = World::up(config).await?;
    let report = match world.install(&chaos::tiers()).await {
        Ok(()) => chaos::play(&world, &options.out, options.seed).await,
        Err(error) => Err(error),
    };
    world.down().await;
    Ok(if report?.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(options: Bench) -> anyhow::Result<()> {
    let Bench { code, out, events, starts } = options;
    let code = code.place()?;
    bench::run(&bench::Options { code, out, events, starts }).await.map(|_| ())
}

/// Where a running world writes its addresses.
fn addresses(state_dir: &Path) -> PathBuf {
    state_dir.join("world.json")
}

async fn run(up: Up) -> anyhow::Result<()> {
    let tiers = match &up.tiers {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("read {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} is not JSON", path.display()))?
        }
        None => demo::tiers(),
    };
    let state_dir = up.place.state_dir;
    let world = World::up(WorldConfig {
        scale: up.scale,
        seed: up.seed,
        port: up.port,
        ..WorldConfig::new(&state_dir)
    })
    .await?;
    let run = async {
        world.install(&tiers).await?;
        let at = json!({"edge": world.edge.url(), "github": world.github.url()});
        let path = addresses(&state_dir);
        std::fs::write(&path, at.to_string())
            .with_context(|| format!("write {}", path.display()))?;
        println!("GitHub   {}", world.github.url());
        println!("webhook  {}", world.output("WebhookUrl")?);
        println!("logs     {}", world.log_dir().display());
        for (name, value) in world.variables() {
            println!("export {name}={value}");
        }
        println!(
            "ready: post a job with `ostler-local job --repo acme/widgets --labels self-hosted,linux,x64,small`; end with Ctrl-C"
        );
        tokio::signal::ctrl_c().await.context("wait for Ctrl-C")
    };
    let ran = run.await;
    // Nothing to ask any more; it may never have been written.
    let _ = std::fs::remove_file(addresses(&state_dir));
    world.down().await;
    ran
}

/// The addresses of the running world: the edge's and GitHub's.
fn running(place: &Place) -> anyhow::Result<(String, String)> {
    let path = addresses(&place.state_dir);
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("read {}: start the world with `ostler-local up` first", path.display())
    })?;
    let at: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let text = |name: &str| at[name].as_str().unwrap_or("").to_owned();
    Ok((text("edge"), text("github")))
}

async fn post(job: Job) -> anyhow::Result<()> {
    let (_, github) = running(&job.place)?;
    let body =
        json!({"repo": job.repo, "labels": job.labels, "seconds": job.seconds, "count": job.count});
    println!("{}", post_json(&github, "/_admin/jobs", &body).await?);
    Ok(())
}

async fn status(place: Place) -> anyhow::Result<()> {
    let (edge, github) = running(&place)?;
    let state = get_json(&github, "/_admin/state").await?;
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    println!("world time {}", text(&state["at"]));
    for job in state["jobs"].as_array().into_iter().flatten() {
        println!(
            "job {} {} {} {} runner {}",
            job["id"],
            text(&job["repo"]),
            text(&job["status"]),
            text(&job["conclusion"]),
            text(&job["runner"])
        );
    }
    for runner in state["runners"].as_array().into_iter().flatten() {
        println!("registration {runner}");
    }
    let stats = get_json(&edge, "/_edge/stats").await?;
    for (caller, calls) in stats["calls"].as_object().into_iter().flatten() {
        for (action, count) in calls.as_object().into_iter().flatten() {
            println!("calls {caller} {action} {count}");
        }
    }
    Ok(())
}
