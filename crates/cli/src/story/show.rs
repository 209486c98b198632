//! `ostler runner` and `ostler job`: the story, for people or as JSON.

use super::gather::{Asked, gather};
use super::{Story, Tone, tell};
use crate::exit::Exit;
use crate::look::{Lookout, Stacks};
use crate::output::{Mark, Output};
use crate::shell::Shell;

/// Tells of what was asked for.
pub async fn run(
    shell: &Shell,
    asked: Result<Asked, String>,
    stacks: Stacks,
) -> anyhow::Result<Exit> {
    let asked = asked.map_err(anyhow::Error::msg)?;
    let lookout = Lookout::new(shell.aws().await, stacks)?;
    let found = shell.output.progress("Looking", None, gather(&lookout, &asked)).await;
    let story = tell(&found.map_err(anyhow::Error::msg)?);
    shell.output.answer(&story, || text(&shell.output, &story));
    Ok(if story.outcome.tone == Tone::Bad { Exit::Faults } else { Exit::Done })
}

const fn mark(tone: Tone) -> Mark {
    match tone {
        Tone::Plain => Mark::Dim,
        Tone::Well => Mark::Ok,
        Tone::Odd => Mark::Warn,
        Tone::Bad => Mark::Fail,
    }
}

/// The runner is named where it changes.
fn text(output: &Output, story: &Story) -> String {
    let mut lines = Vec::new();
    let mut about = None;
    for line in &story.lines {
        if line.runner.is_some() && line.runner != about {
            about.clone_from(&line.runner);
            lines.push(output.paint(Mark::Strong, about.as_deref().unwrap_or_default()));
        }
        let at = line.at.map_or_else(|| "now".to_owned(), |at| at.to_string());
        let words = match line.tone {
            Tone::Plain => line.text.clone(),
            tone => output.paint(mark(tone), &line.text),
        };
        lines.push(format!("{at:20}  {words}"));
    }
    lines.push(String::new());
    lines.push(output.paint(mark(story.outcome.tone), &story.outcome.text));
    if let Some(remedy) = &story.outcome.remedy {
        lines.push(format!("What to do: {remedy}"));
    }
    lines.join("\n")
}
