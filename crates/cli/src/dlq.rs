//! `ostler dlq`: dead-letter queues are counted, and their messages handled again.

use clap::Subcommand;
use ostler_aws::{DeadLetters, HandedOver};
use serde_json::json;

use crate::exit::Exit;
use crate::output::Table;
use crate::shell::Shell;

#[derive(Subcommand)]
pub enum Dlq {
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
pub struct Stacks {
    /// The control stack
    #[arg(long, default_value = "ostler")]
    stack: String,
    /// The recovery stack
    #[arg(long, default_value = "ostler-recovery")]
    recovery_stack: String,
    /// The registration janitor's stack
    #[arg(long, default_value = "ostler-janitor")]
    janitor_stack: String,
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
    fn queues(&self) -> [(String, Again); 4] {
        let Self { stack, recovery_stack, janitor_stack } = self;
        let orchestrator = Again::Invoked(format!("{stack}-orchestrator"));
        [
            (format!("{stack}-ended-executions-dead"), orchestrator),
            (format!("{stack}-reports-dead.fifo"), Again::Moved),
            (format!("{recovery_stack}-instances-dead"), Again::Moved),
            (format!("{janitor_stack}-confirmations-dead"), Again::Moved),
        ]
    }
}

/// Runs the command.
pub async fn run(shell: &Shell, command: Dlq) -> anyhow::Result<Exit> {
    let letters = DeadLetters::new(&shell.aws().await);
    match command {
        Dlq::List(stacks) => list(shell, &letters, &stacks).await,
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
            let (mut said, mut exit) = (Vec::new(), Exit::Done);
            for (queue, again) in chosen {
                // What goes wrong with one keeps nobody from the others.
                let (what, well) = match redrive(&letters, queue, again).await {
                    Ok(done) => done,
                    Err(failure) => (format!("not redriven: {failure:#}"), false),
                };
                if !well {
                    exit = Exit::Failed;
                }
                shell.output.line(&format!("{queue}: {what}"));
                said.push(json!({"queue": queue, "outcome": what}));
            }
            shell.output.json(&said);
            Ok(exit)
        }
    }
}

async fn list(shell: &Shell, letters: &DeadLetters, stacks: &Stacks) -> anyhow::Result<Exit> {
    let mut table = Table::new(["queue", "messages"]);
    let mut all = Vec::new();
    for (queue, _) in stacks.queues() {
        let count = letters.count(&queue).await?;
        let text = count.map_or("there is no such queue".into(), |count| count.to_string());
        all.push(json!({"queue": queue, "messages": count}));
        table.row([queue, text]);
    }
    shell.output.answer(&all, || table.text());
    Ok(Exit::Done)
}

/// What came of it, and whether all messages are on their way.
async fn redrive(
    letters: &DeadLetters,
    queue: &str,
    again: &Again,
) -> anyhow::Result<(String, bool)> {
    Ok(match (letters.count(queue).await?, again) {
        (None, _) => ("there is no such queue".into(), true),
        (Some(0), _) => ("empty".into(), true),
        (Some(count), Again::Moved) => {
            letters.move_back(queue).await?;
            (format!("about {count} messages are being moved back"), true)
        }
        (Some(_), Again::Invoked(function)) => {
            let done = letters.invoke_again(queue, function).await?;
            (handed_over(function, &done), done.unreadable.is_empty())
        }
    })
}

fn handed_over(function: &str, done: &HandedOver) -> String {
    let told = format!("{} messages were handed to {function}", done.messages);
    if done.unreadable.is_empty() {
        return told;
    }
    let ids = done.unreadable.join(", ");
    format!("{told}; these hold no event and stay, look at them and delete them by hand: {ids}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_named() {
        let done = HandedOver { messages: 2, unreadable: vec![] };
        assert_eq!(handed_over("f", &done), "2 messages were handed to f");
        let done = HandedOver { unreadable: vec!["m-7".into(), "m-9".into()], ..done };
        let told = handed_over("f", &done);
        assert!(told.starts_with("2 messages") && told.ends_with(": m-7, m-9"), "{told}");
    }

    #[test]
    fn the_queues_are_those_of_the_stacks() {
        let stacks = Stacks {
            stack: "ci".into(),
            recovery_stack: "ci-recovery".into(),
            janitor_stack: "ci-janitor".into(),
        };
        let queues = stacks.queues().map(|(name, _)| name);
        for (template, names) in [
            (include_str!("../../../infra/control.src.yaml"), &queues[..2]),
            (include_str!("../../../infra/recovery.yaml"), &queues[2..3]),
            (include_str!("../../../infra/registration-janitor.yaml"), &queues[3..]),
        ] {
            for name in names {
                let own = |stack: &&str| name.starts_with(&format!("{stack}-"));
                let stack = ["ci-recovery", "ci-janitor"].into_iter().find(own).unwrap_or("ci");
                let written = format!("'${{AWS::StackName}}{}'", name.strip_prefix(stack).unwrap());
                assert!(template.contains(&written), "{written}");
            }
            // And there is none besides.
            let dead = template.lines().filter(|line| line.contains("QueueName: !Sub"));
            assert_eq!(dead.filter(|line| line.contains("-dead")).count(), names.len());
        }
    }
}
