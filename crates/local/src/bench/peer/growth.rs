//! How work grows with what there is: the registration janitor by registrations, the ledger by items.

use std::path::Path;

use anyhow::Context as _;
use ostler_sim::measure::growth::{self, Size, exponent};
use serde::Serialize;

use crate::bench::Code;
use crate::bench::janitor::{Scanned, scan_of};

/// Registrations.
const REGISTRATIONS: [usize; 3] = [1_000, 10_000, 50_000];
/// And by a real process: its GitHub has a machine of another system besides, and a group holds 10,000.
const THROUGH_PROCESSES: [usize; 3] = [1_000, 10_000, 49_995];
/// Items of jobs that are over.
const ITEMS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// By size.
#[derive(Debug, Serialize)]
pub struct Growth {
    /// A scan of the janitor.
    pub janitor: Vec<Size>,
    /// The power of the size with which its calls grow.
    pub janitor_calls_exponent: f64,
    /// And its time.
    pub janitor_time_exponent: f64,
    /// A scan by a process, in real time.
    pub scanned: Vec<Scanned>,
    /// The power of the size with which the process's own work grows; `None` where the system does not tell of it.
    pub scanned_cpu_exponent: Option<f64>,
    /// And the memory that it takes.
    pub scanned_memory_exponent: f64,
    /// What twenty jobs and the reconciler ask of the ledger.
    pub ledger: Vec<Size>,
    /// The power of the size with which that grows.
    pub ledger_calls_exponent: f64,
}

/// Plays all sizes.
pub async fn play(code: &Code, out: &Path) -> anyhow::Result<Growth> {
    let mut scanned = Vec::new();
    for size in THROUGH_PROCESSES {
        scanned.push(scan_of(code, out, size).await?);
    }
    let growth = tokio::task::spawn_blocking(|| simulated(scanned)).await;
    growth.context("growth under virtual time")
}

fn simulated(scanned: Vec<Scanned>) -> Growth {
    println!("a scan of up to 50,000 registrations, a ledger of up to 1,000,000 items");
    let janitor: Vec<Size> = REGISTRATIONS.map(|size| growth::janitor(size, 1)).into();
    let ledger: Vec<Size> = ITEMS.map(|size| growth::ledger(size, 1)).into();
    #[allow(clippy::cast_precision_loss, reason = "some thousands of calls")]
    let calls = |of: &[Size]| -> f64 {
        exponent(&of.iter().map(|it| (it.size, it.all_calls as f64)).collect::<Vec<_>>())
    };
    let took: Vec<_> = janitor.iter().filter_map(|it| Some((it.size, it.took_s?))).collect();
    let worked: Option<Vec<_>> =
        scanned.iter().map(|it| Some((it.registrations, it.cpu_s?))).collect();
    let memory: Vec<_> = scanned.iter().map(|it| (it.registrations, it.memory_mib)).collect();
    Growth {
        scanned_cpu_exponent: worked.map(|worked| exponent(&worked)),
        scanned_memory_exponent: exponent(&memory),
        scanned,
        janitor_calls_exponent: calls(&janitor),
        janitor_time_exponent: exponent(&took),
        ledger_calls_exponent: calls(&ledger),
        janitor,
        ledger,
    }
}
