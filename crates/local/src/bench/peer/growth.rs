//! How work grows with what there is: the registration janitor by registrations, the ledger by items.

use ostler_sim::measure::growth::{self, Size, exponent};
use serde::Serialize;

/// Registrations.
const REGISTRATIONS: [usize; 3] = [1_000, 10_000, 50_000];
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
    /// What twenty jobs and the reconciler ask of the ledger.
    pub ledger: Vec<Size>,
    /// The power of the size with which that grows.
    pub ledger_calls_exponent: f64,
}

/// Plays all sizes.
pub fn play() -> Growth {
    println!("a scan of up to 50,000 registrations, a ledger of up to 1,000,000 items");
    let janitor: Vec<Size> = REGISTRATIONS.map(|size| growth::janitor(size, 1)).into();
    let ledger: Vec<Size> = ITEMS.map(|size| growth::ledger(size, 1)).into();
    #[allow(clippy::cast_precision_loss, reason = "some thousands of calls")]
    let calls = |of: &[Size]| -> f64 {
        exponent(&of.iter().map(|it| (it.size, it.all_calls as f64)).collect::<Vec<_>>())
    };
    let took: Vec<_> = janitor.iter().filter_map(|it| Some((it.size, it.took_s?))).collect();
    Growth {
        janitor_calls_exponent: calls(&janitor),
        janitor_time_exponent: exponent(&took),
        ledger_calls_exponent: calls(&ledger),
        janitor,
        ledger,
    }
}
