//! The operator's command line. It works with the AWS credentials and region of the shell.

use anyhow::Context;
use clap::{Parser, Subcommand};
use ostler_aws::{DeadLetters, Patience};

#[derive(Parser)]
#[command(name = "ostler", version, about = "Looks after an install of Ostler")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Dead-letter queues: what could not be handled, and was put aside
    #[command(subcommand)]
    Dlq(Dlq),
}

#[derive(Subcommand)]
enum Dlq {
    /// Says how many messages each queue has
    List(Stacks),
    /// Has the messages of the queues handled again, once their cause is mended
    Redrive {
        /// Only this queue, by its name
        #[arg(long)]
        queue: Option<String>,
        #[command(flatten)]
        stacks: Stacks,
    },
}

#[derive(clap::Args)]
struct Stacks {
    /// The control stack
    #[arg(long, default_value = "ostler")]
    stack: String,
    /// The recovery stack
    #[arg(long, default_value = "ostler-recovery")]
    recovery_stack: String,
}

/// How the messages of a queue are tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Again {
    /// SQS moves them back to where they came from.
    Moved,
    /// They came from no queue: the function is invoked with them.
    Invoked(String),
}

impl Stacks {
    /// All dead-letter queues of the stacks.
    fn queues(&self) -> [(String, Again); 3] {
        let Self { stack, recovery_stack } = self;
        let orchestrator = Again::Invoked(format!("{stack}-orchestrator"));
        [
            (format!("{stack}-ended-executions-dead"), orchestrator),
            (format!("{stack}-reports-dead.fifo"), Again::Moved),
            (format!("{recovery_stack}-instances-dead"), Again::Moved),
        ]
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Command::Dlq(command) = Arguments::parse().command;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    let letters = DeadLetters::new(&aws);
    match command {
        Dlq::List(stacks) => {
            for (queue, _) in stacks.queues() {
                match letters.count(&queue).await? {
                    Some(count) => println!("{count:6}  {queue}"),
                    None => println!("  none  {queue} (there is no such queue)"),
                }
            }
        }
        Dlq::Redrive { queue: wanted, stacks } => {
            let queues = stacks.queues();
            let chosen: Vec<_> = queues
                .iter()
                .filter(|(name, _)| wanted.as_ref().is_none_or(|wanted| wanted == name))
                .collect();
            if chosen.is_empty() {
                let names = queues.map(|(name, _)| name).join(", ");
                anyhow::bail!("{} is none of {names}", wanted.unwrap_or_default());
            }
            for (queue, again) in chosen {
                redrive(&letters, queue, again)
                    .await
                    .with_context(|| format!("redrive {queue}"))?;
            }
        }
    }
    Ok(())
}

async fn redrive(letters: &DeadLetters, queue: &str, again: &Again) -> anyhow::Result<()> {
    match letters.count(queue).await? {
        None => println!("{queue}: there is no such queue"),
        Some(0) => println!("{queue}: empty"),
        Some(count) => match again {
            Again::Moved => {
                letters.move_back(queue).await?;
                println!("{queue}: about {count} messages are being moved back");
            }
            Again::Invoked(function) => {
                let handed_over = letters.invoke_again(queue, function).await?;
                println!("{queue}: {handed_over} messages were handed to {function}");
            }
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_queues_are_those_of_the_stacks() {
        let stacks = Stacks { stack: "ci".into(), recovery_stack: "ci-recovery".into() };
        let queues = stacks.queues().map(|(name, _)| name);
        for (template, names) in [
            (include_str!("../../../infra/control.src.yaml"), &queues[..2]),
            (include_str!("../../../infra/recovery.yaml"), &queues[2..]),
        ] {
            for name in names {
                let stack = if name.starts_with("ci-recovery") { "ci-recovery" } else { "ci" };
                let written = format!("'${{AWS::StackName}}{}'", name.strip_prefix(stack).unwrap());
                assert!(template.contains(&written), "{written}");
            }
            // And there is none besides.
            let dead = template.lines().filter(|line| line.contains("QueueName: !Sub"));
            assert_eq!(dead.filter(|line| line.contains("-dead")).count(), names.len());
        }
    }
}
