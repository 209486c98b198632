//! The report as a page of tables.

use std::fmt::Write as _;

use super::super::figures::Spread;
use super::super::show::number;
use super::figures::{EventReport, Report, Side, SizeReport};
use super::prices::Prices;

/// The report in Markdown, as `docs/performance.md` has it.
pub fn markdown(report: &Report, prices: &Prices) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let versions: Vec<String> =
        report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = writeln!(
        text,
        "`make bench-peer`, {}, {} ({} cores); {}.",
        report.at,
        machine.cpu,
        machine.cores,
        versions.join(", ")
    );
    starts(&mut text, report);
    events(&mut text, report);
    calls(&mut text, report);
    cost(&mut text, report, prices);
    for note in &report.notes {
        let _ = writeln!(text, "\nNote: {note}.");
    }
    text
}

pub(super) fn row(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

pub(super) fn head(text: &mut String, cells: &[&str]) {
    let _ = writeln!(text, "\n| {} |", cells.join(" | "));
    let rules: Vec<&str> = (0..cells.len()).map(|n| if n == 0 { "---" } else { "---:" }).collect();
    let _ = writeln!(text, "| {} |", rules.join(" | "));
}

fn starts(text: &mut String, report: &Report) {
    head(text, &["function (ours / theirs)", "figure", "Ostler", "peer", "peer / Ostler"]);
    let spread =
        |of: &Spread| format!("{} ({}–{})", number(of.median), number(of.min), number(of.max));
    for handler in &report.handlers {
        let (ours, theirs) = (&handler.ostler, &handler.peer);
        for (figure, one, other) in [
            ("start to ready, ms", ours.init_ms, theirs.init_ms),
            ("first event, ms", ours.first_ms, theirs.first_ms),
            ("resident, MiB", ours.resident_mib, theirs.resident_mib),
        ] {
            let names = format!("{} / {}", handler.ours, handler.theirs);
            let times = times(other.median, one.median);
            row(text, &[names, figure.to_owned(), spread(&one), spread(&other), times]);
        }
    }
}

fn events(text: &mut String, report: &Report) {
    head(
        text,
        &[
            "warm event",
            "pairs",
            "Ostler p50 ms",
            "p99",
            "CPU s / 1,000",
            "peer p50 ms",
            "p99",
            "CPU s / 1,000",
            "peer / Ostler, pair by pair (10–90 %)",
        ],
    );
    let side = |of: &EventReport| {
        let cpu = of.cpu_s_per_1000.map_or_else(|| "-".to_owned(), number);
        [number(of.p50_ms), number(of.p99_ms), cpu]
    };
    for bout in &report.bouts {
        let [low, middle, high] = bout.ratio.map(number);
        let mut cells = vec![bout.event.to_owned(), bout.pairs.to_string()];
        cells.extend(side(&bout.ostler));
        cells.extend(side(&bout.peer));
        cells.push(format!("{middle} ({low}–{high})"));
        row(text, &cells);
    }
}

fn calls(text: &mut String, report: &Report) {
    head(
        text,
        &[
            "calls per event",
            "Ostler AWS",
            "GitHub",
            "peer AWS",
            "GitHub",
            "Ostler's",
            "the peer's",
        ],
    );
    let named = |of: &EventReport| {
        let all: Vec<String> =
            of.by_call.iter().map(|(call, mean)| format!("`{call}` {}", number(*mean))).collect();
        all.join(", ")
    };
    for bout in &report.bouts {
        let (ours, theirs) = (&bout.ostler, &bout.peer);
        let numbers = [ours.aws_calls, ours.github_calls, theirs.aws_calls, theirs.github_calls];
        let mut cells = vec![bout.event.to_owned()];
        cells.extend(numbers.map(number));
        cells.extend([named(ours), named(theirs)]);
        row(text, &cells);
    }
}

fn cost(text: &mut String, report: &Report, prices: &Prices) {
    if report.sizes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\nUSD for a million events at the smallest memory size that each runs well in ({}, prices of {}): Lambda, and \
         the calls that are charged singly.",
        prices.region, prices.as_of
    );
    head(
        text,
        &[
            "event",
            "Ostler MB",
            "ms",
            "Lambda",
            "calls",
            "peer MB",
            "ms",
            "Lambda",
            "calls",
            "peer / Ostler",
        ],
    );
    for bout in &report.bouts {
        let sides = [(Side::Ostler, &bout.ostler), (Side::Peer, &bout.peer)];
        let mut cells = vec![bout.event.to_owned()];
        let mut sums = Vec::new();
        for (side, event) in sides {
            let Some(size) = report.smallest(bout.event, side) else {
                cells.extend(["-", "-", "-", "-"].map(str::to_owned));
                continue;
            };
            cells.push(size.memory_mb.to_string());
            cells.extend(
                [size.duration_ms, size.lambda_usd_per_million, event.calls_usd_per_million]
                    .map(number),
            );
            sums.push(size.lambda_usd_per_million + event.calls_usd_per_million);
        }
        cells.push(match sums[..] {
            [ours, theirs] => times(theirs, ours),
            _ => "-".to_owned(),
        });
        row(text, &cells);
    }
    sizes(text, report);
}

/// Every size that was tried.
fn sizes(text: &mut String, report: &Report) {
    head(
        text,
        &[
            "event",
            "side",
            "MB",
            "warm ms",
            "start and first event, ms",
            "peak MiB",
            "Lambda USD / million",
            "runs well",
        ],
    );
    for size in &report.sizes {
        let SizeReport { event, side, memory_mb, runs_well, .. } = size;
        let mut cells = vec![(*event).to_owned(), side.name().to_owned(), memory_mb.to_string()];
        cells.extend(
            [size.duration_ms, size.cold_ms, size.peak_mib, size.lambda_usd_per_million]
                .map(number),
        );
        cells.push(if *runs_well { "yes" } else { "no" }.to_owned());
        row(text, &cells);
    }
}

/// How many times as much.
fn times(much: f64, of: f64) -> String {
    if of > 0.0 { format!("{}×", number(much / of)) } else { "-".to_owned() }
}
