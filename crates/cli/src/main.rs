//! The operator's command line. It works with the AWS credentials, region and endpoint of the shell.
//! One module for each command: what it decides is a pure function of what it has read, and what it
//! says goes through [`output`].

mod config;
mod dlq;
mod doctor;
mod exit;
mod look;
mod manual;
mod output;
mod setup;
mod shell;
mod status;
mod story;
mod tool;
mod wire;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use exit::Exit;
use look::Stacks;
use output::Output;
use shell::Shell;
use story::gather::Asked;

#[derive(Parser)]
#[command(
    name = "ostler",
    version,
    about = "Looks after an install of Ostler",
    after_help = exit::HELP,
    max_term_width = 100
)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(clap::Args)]
struct Global {
    /// The answer as JSON on the standard output, for scripts
    #[arg(long, global = true)]
    json: bool,
    /// The path of Ostler's SSM parameters
    #[arg(long, global = true, default_value = "/ostler", env = "OSTLER_PREFIX")]
    prefix: String,
    /// The AWS region; the shell's own if left out
    #[arg(long, global = true)]
    region: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    Setup(setup::Setup),
    /// Tiers and App settings
    #[command(subcommand)]
    Config(config::Config),
    /// Dead-letter queues: what could not be handled, and was put aside
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// What is queued, launching and running by tier, GitHub's events, quotas, alarms, dead letters
    Status {
        #[command(flatten)]
        stacks: Stacks,
    },
    /// The whole story of a runner: what happened, why, and what to do
    Runner {
        /// Its name, as GitHub shows it
        name: String,
        #[command(flatten)]
        stacks: Stacks,
    },
    /// The whole story of a job and all its runners
    Job {
        /// Its page at GitHub, or its number
        url: String,
        #[command(flatten)]
        stacks: Stacks,
    },
    /// Checks what an install needs: App, webhook, secrets, images, quotas, network, clock. Ends with 3 if a line is FAIL
    Doctor {
        #[command(flatten)]
        stacks: Stacks,
    },
    /// Prints the completions of a shell, for its configuration
    Completions(manual::Completions),
    /// Writes the man pages
    Man(manual::Man),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { global, command } = Arguments::parse();
    let shell = Shell::new(Output::of_process(global.json), &global.prefix, global.region);
    let done = match command {
        Command::Setup(command) => setup::run(&shell, command).await,
        Command::Config(command) => config::run(&shell, command).await,
        Command::Dlq(command) => dlq::run(&shell, command).await,
        Command::Status { stacks } => status::run(&shell, stacks).await,
        Command::Runner { name, stacks } => {
            story::show::run(&shell, Asked::runner(&name), stacks).await
        }
        Command::Job { url, stacks } => story::show::run(&shell, Asked::job(&url), stacks).await,
        Command::Doctor { stacks } => doctor::run(&shell, stacks).await,
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
    };
    let exit = done.unwrap_or_else(|error| {
        shell.output.failed(&error);
        Exit::Failed
    });
    exit.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
