//! The tables of bursts, growth and cost, and their place in `docs/performance.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use ostler_sim::measure::growth::Size;

use super::super::show::number;
use super::burst::Bursts;
use super::cost::{self, Costs, Item};
use super::growth::Growth;
use super::prices::Prices;
use super::show::{head, row};

/// Between these lines of the page is what the measurement writes.
const MARKS: [&str; 2] = ["<!-- figures of make bench-peer -->", "<!-- end of figures -->"];

/// Puts the tables between the marks of a page.
pub fn replace(path: &Path, tables: &str) -> anyhow::Result<()> {
    let page = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let page = replaced(&page, tables)
        .with_context(|| format!("{} has no lines {}", path.display(), MARKS.join(" and ")))?;
    std::fs::write(path, page).with_context(|| format!("write {}", path.display()))
}

fn replaced(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}\n\n{}\n\n{}{after}", MARKS[0], tables.trim(), MARKS[1]))
}

fn triple(of: [f64; 3]) -> String {
    of.map(|seconds| format!("{seconds:.0}")).join(" / ")
}

fn listed<K: std::fmt::Display>(of: &BTreeMap<K, u64>) -> String {
    let all: Vec<String> = of.iter().map(|(what, times)| format!("{what} {times}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Bursts.
pub fn bursts(bursts: &Bursts) -> String {
    let mut text = String::from("\n### A burst\n\n");
    let through = &bursts.processes;
    let _ = writeln!(
        text,
        "Jobs within 10 s. Seconds from the first of them until 50 % / 95 % / all had a runner online. {} jobs through the \
         local world's processes, in real time: {} s, {} calls limited by GitHub, {} jobs lost. Under virtual time with the \
         same use cases, a call taking {} ms in the mean (that which comes closest to the processes):",
        through.jobs,
        triple(through.online_s),
        through.github_limited,
        through.lost,
        bursts.latency_ms
    );
    head(
        &mut text,
        &[
            "jobs, Apps, tiers, limits of EC2",
            "Ostler",
            "least by GitHub's limit",
            "least by all limits",
            "Ostler / least (all jobs)",
            "GitHub's calls a job",
            "limited",
            "EC2",
            "lost, broken",
            "peer's design (model)",
            "limited",
        ],
    );
    for simulated in &bursts.simulated {
        let ours = &simulated.ostler;
        let peer = simulated.peer.as_ref();
        let over = ours.online_s[2] / ours.bound_s[2].max(1e-9);
        row(
            &mut text,
            &[
                format!("{}, {}, {}, {}", ours.jobs, ours.apps, ours.tiers, simulated.limits),
                triple(ours.online_s),
                triple(ours.github_bound_s),
                triple(ours.bound_s),
                format!("{over:.2}"),
                number(ours.github_calls),
                ours.github_limited.to_string(),
                listed(&ours.ec2_limited),
                format!("{}, {}", ours.lost, ours.violations.len()),
                peer.map_or_else(|| "-".to_owned(), |peer| triple(peer.online_s)),
                peer.map_or_else(|| "-".to_owned(), |peer| listed(&peer.limited)),
            ],
        );
    }
    let _ = writeln!(
        text,
        "\nThe busiest second of the largest burst, and what may be had in the long run (its sources stand in the program):"
    );
    head(&mut text, &["calls", "most in a second", "limit"]);
    let largest = bursts.simulated.iter().max_by_key(|it| (it.ostler.jobs, it.ostler.apps));
    for peak in largest.into_iter().flat_map(|it| &it.ostler.peaks) {
        row(&mut text, &[peak.calls.to_owned(), peak.most.to_string(), peak.limit.to_string()]);
    }
    text
}

/// Growth.
pub fn growth(growth: &Growth) -> String {
    let mut text = String::from("\n### Growth\n\n");
    let _ = writeln!(
        text,
        "Under virtual time. A scan of the registration janitor over five groups and three regions (calls of GitHub 120 to \
         350 ms, of AWS 40 to 180 ms): calls grow with the {}th power of the registrations, time with the {}th. Twenty jobs \
         and the reconciler over a ledger of so many items: with the {}th.",
        number(growth.janitor_calls_exponent),
        number(growth.janitor_time_exponent),
        number(growth.ledger_calls_exponent)
    );
    head(&mut text, &["", "size", "calls", "s", "of which"]);
    let sizes = |what: &'static str, of: &[Size], text: &mut String| {
        for size in of {
            let took = size.took_s.map_or_else(|| "-".to_owned(), number);
            row(
                text,
                &[
                    what.to_owned(),
                    size.size.to_string(),
                    size.all_calls.to_string(),
                    took,
                    listed(&size.calls),
                ],
            );
        }
    };
    sizes("registrations", &growth.janitor, &mut text);
    sizes("items of the ledger", &growth.ledger, &mut text);
    let worked = growth.scanned_cpu_exponent.map_or_else(|| "-".to_owned(), number);
    let _ = writeln!(
        text,
        "\nThe same scan by the function's process, in real time, over the local world's GitHub and three regions: its own \
         work grows with the {worked}th power of the registrations, the memory that it takes beyond what is resident with \
         the {}th.\n",
        number(growth.scanned_memory_exponent)
    );
    let columns = ["registrations", "calls of GitHub", "of AWS", "s", "CPU s", "memory, MiB"];
    head(&mut text, &columns);
    for it in &growth.scanned {
        row(
            &mut text,
            &[
                it.registrations.to_string(),
                it.github_calls.to_string(),
                it.aws_calls.to_string(),
                number(it.seconds),
                it.cpu_s.map_or_else(|| "-".to_owned(), number),
                number(it.memory_mib),
            ],
        );
    }
    text
}

/// Costs.
pub fn costs(costs: &Costs, prices: &Prices) -> String {
    let mut text = String::from("\n### Cost\n\n");
    let [writes, reads] = costs.table_calls.map(number);
    let _ = writeln!(
        text,
        "USD, {}, prices of {}, the control plane alone. 1,000 jobs of five minutes that go well: {} state transitions each \
         (the peer's definition: {}), {writes} writes and {reads} reads of tables.",
        prices.region,
        prices.as_of,
        number(costs.transitions),
        number(costs.peers_transitions)
    );
    items(&mut text, "1,000 jobs", &costs.jobs);
    items(&mut text, "a month in which nothing runs", &costs.standing);
    text
}

fn items(text: &mut String, what: &str, of: &[Item]) {
    head(text, &[what, "Ostler", "peer"]);
    let dollars = |value: f64| format!("{value:.3}");
    for item in of {
        row(text, &[item.what.to_owned(), dollars(item.ostler), dollars(item.peer)]);
    }
    let [ours, theirs] = cost::sums(of);
    row(text, &["**all**".to_owned(), dollars(ours), dollars(theirs)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = format!("before\n{}\nold\n{}\nafter\n", MARKS[0], MARKS[1]);
        let new = replaced(&page, "\nnew\n").unwrap();
        assert_eq!(new, format!("before\n{}\n\nnew\n\n{}\nafter\n", MARKS[0], MARKS[1]));
        assert_eq!(replaced(&new, "new").unwrap(), new);
        assert_eq!(replaced("nothing", "new"), None);
    }

    #[test]
    fn the_page_of_the_repository_has_the_marks() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.md");
        assert!(replaced(&std::fs::read_to_string(path).unwrap(), "").is_some());
    }
}
