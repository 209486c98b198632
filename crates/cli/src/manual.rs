//! What the command line's own definition is good for besides parsing: completions, man pages, the page of the book.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_complete::Shell;

use crate::exit::Exit;

#[derive(clap::Args)]
pub struct Completions {
    /// The shell that shall complete `ostler`
    shell: Shell,
}

#[derive(clap::Args)]
pub struct Man {
    /// The folder that the pages are written into; it is made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub fn completions(arguments: &Completions, mut command: clap::Command) -> Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "ostler", &mut text);
    // All at once, so that a reader that goes away is an error and no panic.
    std::io::stdout().write_all(&text).context("print the completions")?;
    Ok(Exit::Done)
}

/// Writes a man page for each command.
pub fn man(arguments: &Man, command: clap::Command) -> Result<Exit> {
    let Man { folder } = arguments;
    write_man(folder, command)
        .with_context(|| format!("write man pages into {}", folder.display()))?;
    Ok(Exit::Done)
}

fn write_man(folder: &Path, command: clap::Command) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{ArgAction, CommandFactory};

    use super::*;

    fn definition() -> clap::Command {
        let mut command = crate::Arguments::command();
        command.build();
        command
    }

    /// Every command below this one, with the names that lead to it; not the `help` that clap adds.
    fn below(path: &[String], command: &clap::Command) -> Vec<(Vec<String>, clap::Command)> {
        let own =
            command.get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set());
        own.flat_map(|it| {
            let path: Vec<_> = path.iter().cloned().chain([it.get_name().to_owned()]).collect();
            let mut all = vec![(path.clone(), it.clone())];
            all.extend(below(&path, it));
            all
        })
        .collect()
    }

    fn all() -> Vec<(Vec<String>, clap::Command)> {
        let all = below(&[], &definition());
        assert!(all.iter().any(|(path, _)| path.join(" ") == "dlq redrive"));
        all
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        write_man(&folder.path().join("new"), crate::Arguments::command()).unwrap();
        let page = |path: &[String]| {
            let name = [&["ostler".to_owned()], path].concat().join("-");
            let text = std::fs::read_to_string(folder.path().join(format!("new/{name}.1")));
            // Hyphens are escaped, so that readers can search for them.
            text.expect(&name).replace("\\-", "-")
        };
        assert!(page(&[]).contains("ostler"));
        for (path, command) in all() {
            let about = command.get_about().unwrap().to_string();
            let word = about.split_whitespace().next().unwrap();
            assert!(page(&path).contains(word), "{path:?}");
        }
    }

    #[test]
    fn every_command_and_option_is_completed_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            let mut command = crate::Arguments::command();
            clap_complete::generate(shell, &mut command, "ostler", &mut text);
            let text = String::from_utf8(text).unwrap();
            for (path, command) in all() {
                assert!(text.contains(path.last().unwrap()), "{shell}: {path:?}");
                for long in command.get_arguments().filter_map(clap::Arg::get_long) {
                    // Fish names options without their dashes.
                    assert!(text.contains(long), "{shell}: {path:?} --{long}");
                }
            }
        }
    }

    #[test]
    fn every_command_and_argument_says_what_it_is() {
        for (path, command) in all() {
            assert!(command.get_about().is_some(), "{path:?}");
            for argument in command.get_arguments().filter(|it| it.get_id() != "help") {
                assert!(argument.get_help().is_some(), "{path:?} {}", argument.get_id());
            }
        }
    }

    /// A row of a table of arguments: how it is written, what holds without it, what it does.
    fn row(argument: &clap::Arg) -> String {
        let names: Vec<_> = argument.get_value_names().unwrap_or_default().iter().collect();
        let values = names.iter().map(|name| format!(" {name}")).collect::<String>();
        let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
        let values = if takes { values } else { String::new() };
        let written = match (argument.get_short(), argument.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}{values}"),
            (None, Some(long)) => format!("--{long}{values}"),
            (Some(short), None) => format!("-{short}{values}"),
            (None, None) => values.trim().to_owned(),
        };
        let mut without: Vec<_> = argument
            .get_default_values()
            .iter()
            .filter(|_| takes)
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        if argument.is_required_set() {
            without.push("**required**".into());
        }
        if let Some(variable) = argument.get_env() {
            without.insert(0, format!("`${}`", variable.to_string_lossy()));
        }
        let allowed: Vec<_> = argument
            .get_possible_values()
            .iter()
            .filter(|value| takes && !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
        if !allowed.is_empty() {
            meaning += &format!(": {}", allowed.join(", "));
        }
        let cell =
            |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        format!("| `{written}` | {} | {} |\n", without.join(" or "), cell(&meaning))
    }

    fn table<'a>(arguments: impl Iterator<Item = &'a clap::Arg>) -> String {
        let rows: String = arguments
            .filter(|it| !["help", "version"].contains(&it.get_id().as_str()) && !it.is_hide_set())
            .map(row)
            .collect();
        match rows.as_str() {
            "" => String::new(),
            _ => format!("\n| argument | default | meaning |\n| --- | --- | --- |\n{rows}"),
        }
    }

    /// What stands at the end of a command's help: running text, or a block where lines are broken on purpose.
    fn remark(help: &clap::builder::StyledStr) -> String {
        let help = help.to_string();
        match help.trim() {
            text if text.contains('\n') => format!("\n```text\n{text}\n```\n"),
            text => format!("\n{text}\n"),
        }
    }

    /// The page of the book.
    fn page() -> String {
        let root = definition();
        let mut page = String::from(
            "<!-- Made from the command line's definition by `make reference`. Do not edit. -->\n\n# Commands\n\n\
             `ostler` is the operator's command line. It works with the AWS credentials and region of the shell. \
             With\n`--help` \
             each command says how it is used. To build it, and to have completions and man \
             pages:\n\n```sh\ncargo build --release -p ostler-cli\n```\n\n```sh run\n\
             mkdir -p ~/.local/share/bash-completion/completions\n\
             ostler completions bash >~/.local/share/bash-completion/completions/ostler\n\
             ostler man ~/.local/share/man/man1\n```\n\n## Every command\n",
        );
        page += &table(root.get_arguments());
        if let Some(help) = root.get_after_long_help().or(root.get_after_help()) {
            page += &remark(help);
        }
        for (path, command) in all() {
            let name = path.join(" ");
            let about = command.get_long_about().or(command.get_about()).unwrap();
            page += &format!("\n## ostler {name}\n\n{}\n", about.to_string().trim());
            if command.has_subcommands() {
                continue;
            }
            let usage = command.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage:").split_whitespace();
            page += &format!("\n```text\n{}\n```\n", usage.collect::<Vec<_>>().join(" "));
            page += &table(command.get_arguments().filter(|it| !it.is_global_set()));
            if let Some(help) = command.get_after_long_help().or(command.get_after_help()) {
                page += &remark(help);
            }
        }
        page
    }

    /// `UPDATE=1` writes it.
    #[test]
    fn the_reference_of_commands_is_made_from_their_definition() {
        let made = page();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == made, "docs/commands.md is stale: `make reference` writes it anew");
    }

    /// The commands that documents show: of blocks, whole ones, and of running text, which may leave arguments out.
    fn shown(text: &str) -> Vec<(String, bool)> {
        let mut shown = Vec::new();
        let mut fence: Option<String> = None;
        let mut prose = String::new();
        for line in text.replace("\\\n", " ").lines() {
            let bare = line.trim();
            if let Some(info) = bare.strip_prefix("```") {
                fence = if fence.is_some() { None } else { Some(info.to_owned()) };
            } else if let Some(info) = &fence {
                if !(info.starts_with("sh") || info.starts_with("console")) {
                    continue;
                }
                let command = bare.split(" # ").next().unwrap().trim().trim_start_matches("$ ");
                let command = command.trim_start_matches("target/release/");
                if command.starts_with("ostler ") {
                    shown.push((command.to_owned(), true));
                }
            } else {
                prose += &format!("{bare}{}", if bare.is_empty() { "\n\n" } else { " " });
            }
        }
        for paragraph in prose.split("\n\n") {
            let spans = paragraph.split('`').skip(1).step_by(2);
            shown.extend(spans.filter(|it| it.starts_with("ostler ")).map(|it| (it.into(), false)));
        }
        shown
    }

    #[test]
    fn commands_that_documents_show_are_understood() {
        use clap::error::ErrorKind::{
            DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
            MissingRequiredArgument, MissingSubcommand,
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let texts = docs.chain([root.join("README.md"), root.join("CONTRIBUTING.md")]);
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for path in texts.filter(|path| path.extension().is_some_and(|it| it == "md")) {
            for (line, whole) in shown(&std::fs::read_to_string(&path).unwrap()) {
                // What a shell does with the answer is not the command's.
                let words = line
                    .split_whitespace()
                    .take_while(|word| !["|", ">", "<", ";", "&&"].contains(word));
                let words = words.map(|word| word.trim_matches(['\'', '"']));
                let words: Vec<_> = words.take_while(|word| !word.starts_with('>')).collect();
                let parsed = crate::Arguments::command().try_get_matches_from(&words);
                let fine = match parsed.map_err(|error| error.kind()) {
                    Ok(_) | Err(DisplayHelp | DisplayVersion) => true,
                    Err(
                        MissingRequiredArgument
                        | MissingSubcommand
                        | DisplayHelpOnMissingArgumentOrSubcommand,
                    ) => !whole,
                    Err(_) => false,
                };
                assert!(fine, "{}: {line}", path.display());
                seen.insert(line);
            }
        }
        assert!(seen.len() > 2, "{seen:?}");
    }
}
