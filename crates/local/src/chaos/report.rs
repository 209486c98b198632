//! What became of it: the table, the promises that were broken, and the files.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::{Chaos, Subject, Wanted};
use crate::demo::record::Remains;

/// Most runners that are started for a job within an hour: its own and three replacements.
const MOST_RUNNERS: usize = 4;

/// One job in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its id at GitHub.
    pub job: u64,
    /// What befell it.
    pub befell: String,
    /// What became of it.
    pub outcome: String,
    /// World seconds from its being queued to its last start.
    pub waited: Option<u64>,
    /// World seconds from its being queued to its end.
    pub over_after: Option<u64>,
    /// Runners that were started for it.
    pub runners: usize,
}

/// A script that was played.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What decided the order and all chance.
    pub seed: u64,
    /// World seconds.
    pub seconds: u64,
    /// The jobs, in the order in which they were posted.
    pub jobs: Vec<Line>,
    /// Faults that never struck. No promise is broken, but less was shown.
    pub missed: Vec<String>,
    /// Executions that did not succeed; their jobs were served all the same, or are among the violations.
    pub failed_executions: Vec<String>,
    /// Promises that did not hold; empty if all did.
    pub violations: Vec<String>,
}

impl Report {
    pub(super) fn of(chaos: &Chaos<'_>, seed: u64, remains: &Remains) -> Self {
        let mut violations = Vec::new();
        for job in &chaos.jobs {
            violations
                .extend(broken(job).map(|how| format!("job {} ({}): {how}", job.id, job.befell)));
        }
        violations.extend(remains.broken());
        Self {
            seed,
            seconds: chaos.world.clock.now().since(chaos.start).as_secs(),
            jobs: chaos.jobs.iter().map(line).collect(),
            missed: chaos.missed.clone(),
            failed_executions: remains.failed.clone(),
            violations,
        }
    }

    /// Writes `report.md` and `report.json`.
    pub(super) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        for (name, text) in [("report.json", json), ("report.md", self.markdown())] {
            let path = out.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Prints the table and the end.
    pub(super) fn print(&self, out: &Path) {
        let seconds = |value: Option<u64>| value.map_or("-".to_owned(), |it| it.to_string());
        let row =
            |job: &str, waited: &str, over: &str, runners: &str, outcome: &str, befell: &str| {
                println!("{job:<12} {waited:>7} {over:>7} {runners:>7}  {outcome:<28} {befell}");
            };
        println!();
        row("job", "waited", "over", "runners", "outcome", "what befell it");
        for line in &self.jobs {
            row(
                &line.job.to_string(),
                &seconds(line.waited),
                &seconds(line.over_after),
                &line.runners.to_string(),
                &line.outcome,
                &line.befell,
            );
        }
        println!("\n{}", self.summary());
        for (what, list) in [("never struck", &self.missed), ("broken", &self.violations)] {
            list.iter().for_each(|it| println!("  {what}: {it}"));
        }
        println!("See {}", out.join("report.md").display());
    }

    fn summary(&self) -> String {
        let (jobs, minutes) = (self.jobs.len(), self.seconds / 60);
        let failed = self.failed_executions.len();
        let verdict = match self.violations.len() {
            0 => "Every promise held.".to_owned(),
            broken => format!("{broken} promises were broken."),
        };
        format!(
            "{jobs} jobs in {minutes} minutes of world time, seed {}; {failed} executions did not succeed. {verdict}",
            self.seed
        )
    }

    fn markdown(&self) -> String {
        let mut text = format!("# A script of faults\n\n{}\n", self.summary());
        let _ = writeln!(
            text,
            "\n| job | what befell it | outcome | waited, s | over after, s | runners |"
        );
        let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- |");
        let seconds = |value: Option<u64>| value.map_or(String::new(), |it| it.to_string());
        for line in &self.jobs {
            let Line { job, befell, outcome, runners, .. } = line;
            let (waited, over) = (seconds(line.waited), seconds(line.over_after));
            let _ =
                writeln!(text, "| {job} | {befell} | {outcome} | {waited} | {over} | {runners} |");
        }
        for (title, list) in [
            ("Broken promises", &self.violations),
            ("Faults that never struck", &self.missed),
            ("Executions that did not succeed", &self.failed_executions),
        ] {
            if !list.is_empty() {
                let _ = writeln!(text, "\n## {title}\n");
                list.iter().for_each(|it| {
                    let _ = writeln!(text, "- {it}");
                });
            }
        }
        text
    }
}

fn line(job: &Subject) -> Line {
    let since =
        |at: Option<ostler_core::time::Timestamp>| at.map(|at| at.since(job.queued).as_secs());
    Line {
        job: job.id,
        befell: job.befell.clone(),
        outcome: outcome(job),
        waited: since(job.began),
        over_after: since(job.over),
        runners: job.runners,
    }
}

fn outcome(job: &Subject) -> String {
    match (job.conclusion.as_deref(), job.attempts) {
        (None, _) if job.began.is_some() => "still runs".into(),
        (None, _) => "still waits".into(),
        (Some("success"), 1) => "ran once".into(),
        (Some("success"), attempts) => format!("run again, attempt {attempts}"),
        (Some(other), _) => other.to_owned(),
    }
}

/// What of a job's promise was broken.
fn broken(job: &Subject) -> Option<String> {
    let (began, ended) = job.traces();
    let attempts = usize::try_from(job.attempts).unwrap_or(usize::MAX);
    let conclusion = job.conclusion.as_deref();
    let so = match job.wanted {
        Wanted::Once => conclusion == Some("success") && (began, ended) == (1, 1),
        Wanted::Cancelled => conclusion == Some("cancelled") && (began, ended) == (0, 0),
        // Or it was quicker than the two minutes that were left.
        Wanted::Again => conclusion == Some("success") && (began, ended) == (attempts, 1),
    };
    if !so {
        let how = conclusion.unwrap_or("not over");
        return Some(format!(
            "I1, I2: {how}; its script began {began} times and ended {ended} times"
        ));
    }
    (job.runners > MOST_RUNNERS * attempts).then(|| format!("I3: {} runners", job.runners))
}

#[cfg(test)]
mod tests {
    use ostler_core::time::Timestamp;

    use super::*;

    fn job(dir: &Path, wanted: Wanted, conclusion: Option<&str>, traces: &str) -> Subject {
        let trace = dir.join("trace");
        std::fs::write(&trace, traces).unwrap();
        Subject {
            id: 7,
            run: 1,
            befell: "nothing".into(),
            wanted,
            queued: Timestamp::from_seconds(0),
            trace,
            began: None,
            over: None,
            conclusion: conclusion.map(str::to_owned),
            attempts: 1,
            runners: 1,
        }
    }

    #[test]
    fn i1_i2_a_job_that_ran_otherwise_than_once_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let so = |wanted, conclusion, traces| broken(&job(dir.path(), wanted, conclusion, traces));
        let (once, twice) = ("began\nended\n", "began\nended\nbegan\nended\n");
        assert_eq!(so(Wanted::Once, Some("success"), once), None);
        assert!(so(Wanted::Once, Some("success"), twice).is_some());
        assert!(
            so(Wanted::Once, Some("success"), "").is_some(),
            "GitHub says so, and it never ran"
        );
        assert!(so(Wanted::Once, Some("failure"), "began\n").is_some());
        assert!(so(Wanted::Once, None, "").is_some());
        assert_eq!(so(Wanted::Cancelled, Some("cancelled"), ""), None);
        assert!(so(Wanted::Cancelled, Some("cancelled"), "began\n").is_some());
        assert!(so(Wanted::Cancelled, Some("success"), once).is_some());
        assert!(so(Wanted::Again, Some("failure"), "began\n").is_some(), "never run again");
        assert_eq!(so(Wanted::Again, Some("success"), once), None);
        assert!(so(Wanted::Again, Some("success"), twice).is_some());
    }

    #[test]
    fn a_job_that_was_run_again_ran_to_its_end_once() {
        let dir = tempfile::tempdir().unwrap();
        let again = |traces| {
            broken(&Subject {
                attempts: 2,
                ..job(dir.path(), Wanted::Again, Some("success"), traces)
            })
        };
        assert_eq!(again("began\nbegan\nended\n"), None);
        assert!(again("began\nended\nbegan\nended\n").is_some());
    }

    #[test]
    fn i3_more_runners_than_replacements_allow_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let many = Subject {
            runners: 5,
            ..job(dir.path(), Wanted::Once, Some("success"), "began\nended\n")
        };
        assert!(broken(&many).is_some_and(|how| how.starts_with("I3")));
    }
}
