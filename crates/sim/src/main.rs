//! `ostler-sim`: plays random histories until one breaks something, and says how to see it again.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ostler_sim::campaign::{Campaign, PartId, Profile, Scenario, play, shrink, story};

/// Random histories of the whole system under virtual time, judged by its invariants.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play histories for some time, or so many. It fails if one breaks something.
    Run {
        /// For how many seconds.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=604_800))]
        seconds: u64,
        /// How many histories at most.
        #[arg(long)]
        histories: Option<u64>,
        /// Threads; as many as there are processors if not given.
        #[arg(long)]
        threads: Option<usize>,
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        size: Size,
        /// Fail too if anything there is to meet was never met: a branch of a use case, or a kind of fault. Not if only
        /// one profile is played.
        #[arg(long)]
        everything: bool,
        /// Do not print what was reached.
        #[arg(long)]
        quiet: bool,
    },
    /// Play one history, and tell it.
    Replay {
        /// Its seed.
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        size: Size,
        /// Only these of its parts, as j3,c0.
        #[arg(long, value_delimiter = ',')]
        only: Option<Vec<PartId>>,
    },
}

#[derive(Args)]
struct Size {
    /// Jobs in each history.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=2000))]
    jobs: u64,
    /// Which troubles; each in turn if not given: calm, deliveries, machines, calls, thefts, aborts, weather, quirks,
    /// mistakes, strangers, remains, all.
    #[arg(long, value_parser = profile)]
    profile: Option<Profile>,
}

fn profile(name: &str) -> Result<Profile, String> {
    let names = Profile::EACH.map(Profile::name).join(", ");
    Profile::named(name).ok_or_else(|| format!("allowed are {names}"))
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run { seconds, histories, threads, seed, size, everything, quiet } => {
            let threads = threads.unwrap_or_else(|| {
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
            });
            let jobs = usize::try_from(size.jobs).unwrap_or(usize::MAX);
            let campaign = Campaign { seed, jobs, profile: size.profile, threads };
            let everything = everything && size.profile.is_none();
            run(&campaign, Duration::from_secs(seconds), histories, everything, quiet)
        }
        Command::Replay { seed, size, only } => {
            let jobs = usize::try_from(size.jobs).unwrap_or(usize::MAX);
            let campaign = Campaign { seed, jobs, profile: size.profile, threads: 1 };
            let mut scenario = Scenario::draw(seed, jobs, campaign.profile_of(seed));
            if let Some(only) = only {
                scenario = scenario.only(&only);
            }
            tell(&scenario)
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "how long it plays is real time")]
fn run(
    campaign: &Campaign,
    time: Duration,
    histories: Option<u64>,
    everything: bool,
    quiet: bool,
) -> ExitCode {
    let began = std::time::Instant::now();
    let over = |played| began.elapsed() >= time || histories.is_some_and(|most| played >= most);
    let (tally, broken) = campaign.run(over);
    if !quiet {
        print!("{}", tally.table());
    }
    let took = began.elapsed().as_secs_f64();
    let played = tally.played();
    let threads = u32::try_from(campaign.threads).unwrap_or(u32::MAX);
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = played as f64 / took / f64::from(threads);
    println!(
        "{played} histories of {} jobs in {took:.1} s on {threads} threads: {rate:.1} a second and thread, from \
         seed {}",
        campaign.jobs, campaign.seed
    );
    let Some(broken) = broken else {
        let missing = if everything { tally.missing() } else { Vec::new() };
        missing.iter().for_each(|missing| println!("{missing}"));
        return if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    println!("\nseed {} breaks:", broken.seed);
    broken.violations.iter().for_each(|violation| println!("  {violation}"));
    let scenario = Scenario::draw(broken.seed, campaign.jobs, broken.profile);
    let smallest = shrink(&scenario, |played| played.breaks_as(&broken.violations[0]));
    let only: Vec<String> = smallest.ids().iter().map(ToString::to_string).collect();
    println!("\nThe smallest part of it that breaks the same:");
    tell(&smallest);
    println!(
        "\nTo see it again: ostler-sim replay --seed {} --jobs {} --profile {} --only {}",
        broken.seed,
        campaign.jobs,
        broken.profile.name(),
        only.join(",")
    );
    ExitCode::FAILURE
}

/// Plays it, and tells what happened.
fn tell(scenario: &Scenario) -> ExitCode {
    for (id, part) in &scenario.parts {
        println!("{id}: {part:?}");
    }
    let played = play(scenario);
    println!("{}", story(&played.history));
    played.violations.iter().for_each(|violation| println!("{violation}"));
    if played.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
