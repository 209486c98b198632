//! The report as text.

use std::fmt::Write as _;

use super::Report;
use super::figures::{CallReport, FunctionReport, MIB};

/// The report as tables.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        text,
        "{} on {} ({} cores), of {}",
        report.at, machine.cpu, machine.cores, report.measured
    );
    let versions: Vec<String> =
        report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = writeln!(text, "{}", versions.join(", "));
    for function in &report.functions {
        describe(&mut text, function);
    }
    let over = report.budgets.iter().filter(|budget| !budget.ok).count();
    let _ = writeln!(text, "\nbudgets: {over} of {} are exceeded", report.budgets.len());
    let width = report.budgets.iter().map(|budget| budget.what.len()).max().unwrap_or(0);
    for budget in &report.budgets {
        let _ = writeln!(
            text,
            "  {:<width$}{:>9} of {:>6} {:<5}  {}",
            budget.what,
            number(budget.measured),
            number(budget.budget),
            budget.unit,
            if budget.ok { "ok" } else { "OVER" }
        );
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[allow(clippy::cast_precision_loss, reason = "sizes of some megabytes")]
fn describe(text: &mut String, function: &FunctionReport) {
    let mib = |bytes: u64| number(bytes as f64 / MIB);
    let zip = function.zip_bytes.map_or_else(|| "-".to_owned(), |bytes| mib(bytes) + " MiB");
    let init = &function.init_ms;
    let _ = writeln!(text, "\n{}", function.name);
    let _ = writeln!(text, "  zip      {zip}");
    let _ = writeln!(
        text,
        "  init     {} ms, median of {} ({} to {})",
        number(init.median),
        init.count,
        number(init.min),
        number(init.max)
    );
    let _ = writeln!(
        text,
        "  memory   {} MiB resident, {} at most",
        mib(function.resident_bytes),
        mib(function.peak_bytes)
    );
    let _ = writeln!(
        text,
        "  {:<40}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}",
        "event", "n", "p50 ms", "p99 ms", "CPU ms", "AWS", "GitHub"
    );
    for event in &function.events {
        let _ = writeln!(
            text,
            "  {:<40}{:>6}{:>9}{:>9}{:>9}{:>10}{:>10}",
            event.event,
            event.count,
            number(event.p50_ms),
            number(event.p99_ms),
            event.cpu_p50_ms.map_or_else(|| "-".to_owned(), number),
            calls(&event.aws_calls),
            calls(&event.github_calls)
        );
    }
    for event in &function.events {
        if let Some(grown) = event.grown_bytes {
            let grown = mib(grown);
            let _ = writeln!(text, "  {}: {grown} MiB more than before, at most", event.event);
        }
        let by_call = event.aws_calls.mean_by_call.iter().chain(&event.github_calls.mean_by_call);
        let by_call: Vec<String> =
            by_call.map(|(call, mean)| format!("{call} {}", number(*mean))).collect();
        if !by_call.is_empty() {
            let _ = writeln!(text, "  {}: {}", event.event, by_call.join(", "));
        }
    }
    let apart: Vec<String> =
        function.apart.iter().map(|(call, times)| format!("{call} {times}")).collect();
    if !apart.is_empty() {
        let _ = writeln!(text, "  apart, in all: {}", apart.join(", "));
    }
}

/// Calls of the median event, and of the one with most where that is another number.
fn calls(calls: &CallReport) -> String {
    if calls.median == calls.max {
        return number(calls.median);
    }
    format!("{} ({})", number(calls.median), number(calls.max))
}

/// As short as it can be told apart: whole numbers as such, others with two decimals, one from 100.
pub fn number(value: f64) -> String {
    if (value - value.round()).abs() < 0.005 {
        format!("{value:.0}")
    } else if value >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::super::figures::{self, Figures, Function, Kind};
    use super::super::machine::Machine;
    use super::*;

    #[test]
    fn numbers_are_short() {
        let told: Vec<String> = [0.0, 3.0, 1.004, 18.583, 99.995, 123.456].map(number).into();
        assert_eq!(told, ["0", "3", "1", "18.58", "100", "123.5"]);
    }

    #[test]
    fn what_is_over_its_budget_stands_out() {
        let mut webhook = Figures {
            zip_bytes: Some(3 << 20),
            init: vec![Duration::from_millis(30)],
            memory: (12 << 20, 13 << 20),
            ..Figures::default()
        };
        let calls = |times| BTreeMap::from([("states:StartExecution".to_owned(), times)]);
        for times in [1, 1, 2] {
            let samples = webhook.events.entry(Kind::Queued).or_default();
            samples.note(Duration::from_millis(5), None, calls(times), BTreeMap::new());
        }
        let functions = vec![webhook.report(Function::Webhook)];
        let report = Report {
            at: "2026-11-30T12:00:00Z".into(),
            measured: "target/package/x86_64".into(),
            machine: Machine { cpu: "a processor".into(), cores: 2, busy: None },
            versions: BTreeMap::from([("ostler".to_owned(), "0.1.0".to_owned())]),
            github_calls_per_job: 0.0,
            budgets: figures::budgets(&functions),
            functions,
            notes: vec!["a note".into()],
        };
        let text = table(&report);
        let line = |start: &str| text.lines().find(|line| line.trim().starts_with(start)).unwrap();
        assert!(line("webhook: init").ends_with("30 of  18.58 ms     OVER"), "{text}");
        assert!(line("webhook: zip").ends_with("ok"), "{text}");
        assert!(line("queued, new job  ").contains("1 (2)"), "{text}");
        assert!(line("queued, new job:").ends_with("states:StartExecution 1.33"), "{text}");
        assert_eq!(line("note:"), "note: a note");
    }
}
