//! What a thousand jobs cost, and a month in which none comes: the control plane alone, from counted calls and
//! transitions and the dated list of prices.
//!
//! A job of five minutes that goes well. What either side's functions cost per event was measured beside each other; ours
//! that have no counterpart (launch, cleanup) are taken as the registration, the dearest step measured. Ours: transitions and
//! calls of the ledger are counted in the simulation. Theirs: transitions are counted in the definition that its
//! documentation shows, one attempt on EC2.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ostler_sim::github::JobSpec;
use ostler_sim::measure::of_table;
use ostler_sim::simulation::Simulation;
use ostler_sim::world::REPOSITORY;
use serde::Serialize;

use super::figures::{Bout, Report, Side};
use super::prices::Prices;

/// Jobs that are counted.
const JOBS: u32 = 20;
/// How long each runs.
const JOB: Duration = Duration::from_secs(300);
/// Jobs that the price is told of.
const THOUSAND: f64 = 1e3;
const MILLION: f64 = 1e6;
/// The peer's states for a job that goes well: Queue Idle Reaper, Load Config, Run Providers, Select Provider Config, Get
/// Runner Token, Try Provider, Choose Provider Family, and the one that runs the machine.
const PEERS_TRANSITIONS: f64 = 8.0;
/// Secrets of the peer: the App's settings, its key, the webhook's secret, the setup's.
const PEERS_SECRETS: f64 = 4.0;
/// Minutes of a month, as docs/cost.md reckons: a twelfth of a year.
const MONTH: f64 = 43_800.0;
/// An event source mapping asks an empty queue so often in a month: five at a time, 20 s each (Lambda Developer Guide,
/// "Using Lambda with Amazon SQS").
const ASKED_A_MONTH: f64 = 5.0 * 3.0 * MONTH;
/// Runs in a month of what runs every five minutes.
const EVERY_FIVE_MINUTES: f64 = MONTH / 5.0;

/// Costs of both sides.
#[derive(Debug, Serialize)]
pub struct Costs {
    /// USD for 1,000 jobs by what is paid for: ours and theirs.
    pub jobs: Vec<Item>,
    /// USD for a month without a job.
    pub standing: Vec<Item>,
    /// Our transitions of a job.
    pub transitions: f64,
    /// Theirs.
    pub peers_transitions: f64,
    /// Our calls of the tables for a job: writes, reads.
    pub table_calls: [f64; 2],
}

/// Something that is paid for.
#[derive(Debug, Serialize)]
pub struct Item {
    /// What.
    pub what: &'static str,
    /// USD of ours.
    pub ostler: f64,
    /// USD of theirs.
    pub peer: f64,
}

/// What the simulation counts for a job.
struct Counted {
    transitions: f64,
    checks: f64,
    writes: f64,
    reads: f64,
}

fn counted() -> Counted {
    let mut history = Simulation::new(1);
    history.judges_reports = true;
    history.hears_instances = true;
    history.reconciles = true;
    history.state().ec2.options().boot = ostler_sim::ec2::Options::default().boot;
    for n in 0..JOBS {
        history.after(Duration::from_secs(60) * n, |history| {
            let spec = JobSpec::new(REPOSITORY, &["self-hosted", "small"]);
            history.post(&JobSpec { duration: JOB, ..spec });
        });
    }
    history.run_for(Duration::from_secs(60) * JOBS);
    history.run_to_rest(Duration::from_secs(86_400));
    let state = history.state();
    let jobs = f64::from(JOBS);
    #[allow(clippy::cast_precision_loss, reason = "some hundreds")]
    let mean = |count: usize| count as f64 / jobs;
    let reads = [
        "Ledger.job",
        "Ledger.runner",
        "Ledger.blocked",
        "Gate.spot_rests",
        "Handoff.lies",
        "OpenJobs.due",
        "ActiveRepositories.due",
        "FailedDeliveries.due",
        "FailedDeliveries.position",
        "InterruptedRuns.due",
    ];
    let names = state.calls.iter().map(|call| call.name);
    let calls: Vec<&str> = names.filter(|name| of_table(name)).collect();
    let read = calls.iter().filter(|name| reads.contains(name)).count();
    let entered = |name: &str| {
        let all = state.executions.values().flat_map(|it| &it.entered);
        all.filter(|state| *state == name).count()
    };
    Counted {
        transitions: mean(state.executions.values().map(|it| it.transitions()).sum()),
        checks: mean(entered("Check")),
        // The machine reads and deletes its registration, which is no port's call.
        writes: mean(calls.len() - read) + 1.0,
        reads: mean(read) + 1.0,
    }
}

/// Reckons them. `root` is the repository's, for its page on cost.
pub fn reckon(report: &Report, prices: &Prices, root: &Path) -> anyhow::Result<Costs> {
    let own = counted();
    let lambda = |bout: Bout, side: Side| {
        let size = report.smallest(bout.name(), side);
        size.map_or(0.0, |size| size.lambda_usd_per_million / MILLION)
    };
    let calls = |bout: Bout, side: Side| {
        let found = report.bouts.iter().find(|it| it.event == bout.name());
        let event = found.map(|it| match side {
            Side::Ostler => &it.ostler,
            Side::Peer => &it.peer,
        });
        event.map_or(0.0, |event| event.calls_usd_per_million / MILLION)
    };
    // Deliveries of the job's three events, the line of its start, and the report of each of the two ways.
    let common: [(Bout, f64); 5] = [
        (Bout::Queued, 1.0),
        (Bout::InProgress, 1.0),
        (Bout::Ignored, 1.0),
        (Bout::Line, 1.0),
        (Bout::OwnJobs, 0.2),
    ];
    let sum = |of: &dyn Fn(Bout, Side) -> f64, side: Side, more: &[(Bout, f64)]| -> f64 {
        common.iter().chain(more).map(|(bout, times)| of(*bout, side) * times).sum()
    };
    // Launch, registration and cleanup are our orchestrator's; the peer's idle reaper looks once in ten minutes.
    let ours = [(Bout::Register, 3.0), (Bout::Check, own.checks)];
    let theirs = [(Bout::Register, 1.0), (Bout::Check, 1.0)];
    let tables = own.writes * prices.write_unit() + own.reads * prices.read_unit();
    // Of the calls that are charged singly ours are tables', which the simulation counts, and messages.
    let messages = 4.0 * prices.fifo_request();
    let jobs = vec![
        Item {
            what: "state transitions",
            ostler: own.transitions * prices.transition() * THOUSAND,
            peer: PEERS_TRANSITIONS * prices.transition() * THOUSAND,
        },
        Item {
            what: "Lambda",
            ostler: sum(&lambda, Side::Ostler, &ours) * THOUSAND,
            peer: sum(&lambda, Side::Peer, &theirs) * THOUSAND,
        },
        Item {
            what: "calls that are charged singly",
            ostler: (tables + messages) * THOUSAND,
            peer: (sum(&calls, Side::Peer, &theirs) + messages) * THOUSAND,
        },
    ];
    let alarms = alarms(root)?;
    let runs = EVERY_FIVE_MINUTES;
    let standing = vec![
        Item {
            what: "empty queues asked by event source mappings",
            // Reports; instances' events and the janitor's confirmations.
            ostler: ASKED_A_MONTH * (prices.fifo_request() + 2.0 * prices.request()),
            // Reports; the idle reaper's messages.
            peer: ASKED_A_MONTH * (prices.fifo_request() + prices.request()),
        },
        Item {
            what: "what runs by a schedule",
            // The reconciler; the reaper every fifteen minutes and the janitor every thirty, as if they took as long.
            ostler: lambda(Bout::Redelivery, Side::Ostler) * runs * (1.0 + 1.0 / 3.0 + 1.0 / 6.0),
            peer: (lambda(Bout::Redelivery, Side::Peer) + calls(Bout::Redelivery, Side::Peer))
                * runs,
        },
        Item { what: "secrets", ostler: 0.0, peer: PEERS_SECRETS * prices.secret_month() },
        Item {
            what: "alarms, if a topic is given",
            ostler: alarms * prices.alarm_month(),
            peer: 0.0,
        },
    ];
    Ok(Costs {
        jobs,
        standing,
        transitions: own.transitions,
        peers_transitions: PEERS_TRANSITIONS,
        table_calls: [own.writes, own.reads],
    })
}

/// Metrics that the alarms of all stacks watch: as docs/cost.md has them, which the templates' tests hold against the
/// templates.
fn alarms(root: &Path) -> anyhow::Result<f64> {
    let path = root.join("docs/cost.md");
    let page =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let row = page.lines().find_map(|line| line.strip_prefix("| alarms' metrics | "));
    let count = row.and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.with_context(|| format!("{} has no row \"alarms' metrics\"", path.display()))
}

/// The sums of a list.
pub fn sums(items: &[Item]) -> [f64; 2] {
    items.iter().fold([0.0; 2], |[ours, theirs], item| [ours + item.ostler, theirs + item.peer])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_five_minutes_is_counted_within_its_budget() {
        let own = counted();
        assert!(
            own.checks >= 1.0 && own.transitions <= 6.0 + 3.0 * own.checks,
            "{}",
            own.transitions
        );
        assert!(own.writes > own.reads / 4.0 && own.reads > 1.0, "{} {}", own.writes, own.reads);
    }

    #[test]
    fn alarms_are_those_of_the_page_on_cost() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert!(alarms(&root).unwrap() >= 20.0);
    }
}
