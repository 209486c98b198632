//! What a command says: an answer for people or JSON for scripts on the standard output, and on the
//! standard error how the work goes, questions, and failures. Colours and progress are for terminals
//! alone.

use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

/// Work that takes longer than this shows that it goes on.
const QUIET: Duration = Duration::from_secs(2);

/// How often a line of progress is drawn anew.
const REDRAW: Duration = Duration::from_millis(200);

/// What a text is marked as, by colour where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// All is well.
    Ok,
    /// Somebody should look.
    Warn,
    /// It is broken.
    Fail,
    /// Less important than the rest.
    Dim,
    /// A heading.
    Strong,
}

impl Mark {
    /// ANSI's number (ECMA-48, "SGR").
    const fn colour(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Warn => "33",
            Self::Fail => "31",
            Self::Dim => "2",
            Self::Strong => "1",
        }
    }
}

/// Where a command speaks.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    /// Whether the standard output takes colours.
    colours: bool,
    /// Whether the standard error is a terminal, on which lines can be drawn anew.
    lively: bool,
    /// Whether somebody can answer a question.
    asks: bool,
}

impl Output {
    /// As the process was started. `NO_COLOR` (no-color.org) turns colours off.
    pub fn of_process(json: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json,
            colours: !json && !plain && stdout().is_terminal(),
            lively: stderr().is_terminal() && !plain,
            asks: stdin().is_terminal() && stderr().is_terminal(),
        }
    }

    /// For tests: no terminal anywhere.
    #[cfg(test)]
    pub const fn plain(json: bool) -> Self {
        Self { json, colours: false, lively: false, asks: false }
    }

    /// The text, coloured if it goes to a terminal.
    pub fn paint(&self, mark: Mark, text: &str) -> String {
        if self.colours {
            format!("\u{1b}[{}m{text}\u{1b}[0m", mark.colour())
        } else {
            text.to_owned()
        }
    }

    /// The whole answer: `value` as JSON, or the text for people.
    pub fn answer(&self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            self.json(value);
        } else {
            out(text().trim_end());
        }
    }

    /// The answer of a command whose lines have been said already: JSON, and nothing for people.
    pub fn json(&self, value: &impl Serialize) {
        if self.json {
            // Our own types always can be written.
            out(&serde_json::to_string_pretty(value).unwrap_or_default());
        }
    }

    /// A line for people while the work goes on; beside JSON it goes to the standard error.
    pub fn line(&self, text: &str) {
        if self.json {
            err(text);
        } else {
            out(text);
        }
    }

    /// Why the command failed, with all causes.
    pub fn failed(&self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        self.json(&json!({"error": text}));
        err(&format!("ostler: {text}"));
    }

    /// Waits for work. If it takes longer than two seconds, a terminal shows what is being done and for
    /// how long already; `left` says how long it will take, where that is known.
    pub async fn progress<T>(
        &self,
        what: &str,
        takes: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> T {
        if !self.lively {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let started = tokio::time::Instant::now();
        let mut drawn = false;
        loop {
            let pause = if drawn { REDRAW } else { QUIET };
            tokio::select! {
                biased;
                done = &mut work => {
                    if drawn {
                        draw("");
                    }
                    return done;
                }
                () = tokio::time::sleep(pause) => {
                    drawn = true;
                    draw(&progress_line(what, started.elapsed(), takes));
                }
            }
        }
    }

    /// Whether something that destroys may be done: `yes` is the flag `--yes`. Without it and without
    /// somebody to ask nothing is done.
    pub fn confirm(&self, question: &str, yes: bool) -> anyhow::Result<bool> {
        if yes {
            return Ok(true);
        }
        if !self.asks {
            err(&format!("{question} Nobody is there to ask: repeat the command with --yes."));
            return Ok(false);
        }
        let _ = write!(stderr(), "{question} [y/N] ").and_then(|()| stderr().flush());
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        Ok(is_yes(&answer))
    }
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// One line: a bar where it is known how long it takes, else the time that has passed.
fn progress_line(what: &str, passed: Duration, takes: Option<Duration>) -> String {
    const WIDTH: usize = 20;
    let seconds = passed.as_secs();
    let Some(takes) = takes.filter(|takes| !takes.is_zero()) else {
        return format!("{what} … {seconds} s");
    };
    let share = |whole: u128| passed.as_millis().min(takes.as_millis()) * whole / takes.as_millis();
    let filled = usize::try_from(share(WIDTH as u128)).unwrap_or(WIDTH);
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH - filled));
    format!("{what} {bar} {seconds} of {} s", takes.as_secs())
}

/// A closed pipe is the reader's wish, and no failure of the command.
fn out(text: &str) {
    let _ = writeln!(stdout(), "{text}");
}

fn err(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// Draws the last line of the terminal anew.
fn draw(text: &str) {
    let _ = write!(stderr(), "\r\u{1b}[K{text}").and_then(|()| stderr().flush());
}

/// A table for people: columns are as wide as their widest text.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, texts: [String; N]) {
        self.rows.push(texts.to_vec());
    }

    /// The table, one row a line.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let texts = self.rows.iter().filter_map(|row| row.get(column));
            texts.map(|text| seen(text)).max().unwrap_or(0)
        };
        let lines = self.rows.iter().map(|row| {
            let cells = row.iter().enumerate().map(|(column, text)| {
                format!("{text}{}", " ".repeat(width(column) - seen(text) + 2))
            });
            cells.collect::<String>().trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// How many characters of a text are seen: not those that colour it.
fn seen(text: &str) -> usize {
    let mut count = 0;
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        if char == '\u{1b}' {
            rest.by_ref().find(|char| char.is_ascii_alphabetic());
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_alone() {
        let plain = Output::plain(false);
        assert_eq!(plain.paint(Mark::Fail, "FAIL"), "FAIL");
        let terminal = Output { colours: true, ..plain };
        assert_eq!(terminal.paint(Mark::Fail, "FAIL"), "\u{1b}[31mFAIL\u{1b}[0m");
    }

    #[test]
    fn a_tables_columns_line_up_whatever_their_colours() {
        let mut table = Table::new(["tier", "jobs"]);
        table.row(["\u{1b}[31mlinux-x64\u{1b}[0m".into(), "3".into()]);
        table.row(["größe".into(), "12".into()]);
        let text = table.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "tier       jobs");
        assert_eq!(lines[1], "\u{1b}[31mlinux-x64\u{1b}[0m  3");
        assert_eq!(lines[2], "größe      12");
    }

    #[test]
    fn nothing_is_done_without_a_yes() {
        let plain = Output::plain(false);
        assert!(plain.confirm("End it?", true).unwrap());
        assert!(!plain.confirm("End it?", false).unwrap(), "nobody is there to ask");
        assert!(is_yes("Yes\n") && is_yes("y"));
        for no in ["", "n", "no", "yess", "maybe"] {
            assert!(!is_yes(no), "{no}");
        }
    }

    #[test]
    fn a_bar_fills_as_time_passes_and_never_more() {
        let at = |seconds| {
            let takes = Some(Duration::from_secs(60));
            progress_line("Watching", Duration::from_secs(seconds), takes)
        };
        assert_eq!(at(0), format!("Watching {} 0 of 60 s", "░".repeat(20)));
        assert_eq!(at(30), format!("Watching {}{} 30 of 60 s", "█".repeat(10), "░".repeat(10)));
        assert_eq!(at(90), format!("Watching {} 90 of 60 s", "█".repeat(20)));
        assert_eq!(progress_line("Reading", Duration::from_secs(3), None), "Reading … 3 s");
        assert!(!progress_line("x", Duration::ZERO, Some(Duration::ZERO)).contains('█'));
    }
}
