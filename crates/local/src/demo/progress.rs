//! What the demo prints.

use std::path::Path;

use ostler_core::time::Timestamp;

use super::record::{JobRecord, Summary};

/// Metrics that are printed: what became of reports and of lost runners. The page has all.
const SHOWN: [&str; 7] =
    ["StolenRunner", "Replacement", "Report", "WarmRunner", "DeliveryRe", "JobDiscovered", "Spot"];

/// One line: when, which job, what happened to it.
pub fn print(start: Timestamp, job: &JobRecord, what: &str, at: Timestamp) {
    let seconds = at.since(start).as_secs();
    let waited = match what {
        "running" => format!("  waited {} s", at.since(job.queued).as_secs()),
        "done" => job
            .running
            .map_or(String::new(), |from| format!("  ran {} s", at.since(from).as_secs())),
        _ => String::new(),
    };
    println!(
        "{:>3}:{:02}  {:<10} {:<15} {:<24} job {}{waited}",
        seconds / 60,
        seconds % 60,
        what,
        job.repository,
        job.part,
        job.id
    );
}

/// The end: figures, broken promises, and where the page is.
pub fn print_summary(summary: &Summary, out: &Path) {
    let jobs = &summary.jobs;
    println!(
        "\n{} jobs posted: {} accepted, {} refused, {} served, {} cancelled, {} waiting",
        jobs.posted, jobs.accepted, jobs.refused, jobs.served, jobs.cancelled, jobs.waiting
    );
    let runners = &summary.runners;
    println!(
        "{} runners started, {} of them in place of lost ones ({} that nobody needed in the end); {} things left behind",
        runners.started, runners.replacements, runners.surplus, runners.left_behind
    );
    println!(
        "queue time: median {} s, 95th percentile {} s (world time)",
        summary.queue_seconds.p50, summary.queue_seconds.p95
    );
    for (metric, sum) in &summary.metrics {
        if SHOWN.iter().any(|shown| metric.starts_with(shown)) {
            println!("  {metric:<40} {sum}");
        }
    }
    println!("state transitions per job: {}", summary.transitions_per_job);
    for (function, calls) in &summary.calls {
        let total: u64 = calls.values().sum();
        println!("  {function:<14} {total} AWS calls");
    }
    let github: u64 = summary.github_calls.values().sum();
    println!("  {:<14} {github} calls", "GitHub");
    if summary.violations.is_empty() {
        println!("\nEvery promise held.");
    } else {
        println!("\n{} promises were broken:", summary.violations.len());
        for broken in &summary.violations {
            println!("  {broken}");
        }
    }
    println!(
        "See {} and {}",
        out.join("report.html").display(),
        out.join("summary.json").display()
    );
}
