//! Use case: registrations that were left behind at GitHub are removed, and never a living one.
//!
//! A scheduled *discovery* lists registrations and queues those that are offline, idle, of our making by
//! their names, and have nothing behind them. A *confirmation* looks at each a second time, a quarter of an
//! hour later at the least, and deletes it if all of that is still so.
//!
//! Invariants: a look-up that failed proves nothing, and what is not known is kept. Nothing is deleted on
//! one observation. No machine is ever ended. Any step may run twice, be cut off anywhere, or come late:
//! nothing is remembered between invocations but what waits in the queue. Two observations are no
//! transaction: between the last look and the deletion the world may change, which is why GitHub refuses to
//! delete a busy runner, and why a name must belong to one machine that can't come back.

mod candidate;
mod config;
mod confirmation;
mod discovery;
mod ports;
mod provider;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::Value;

pub use candidate::{Body, Candidate, Verdict, kept};
pub use config::{Config, MAX_CANDIDATES, MAX_SAFE_INTEGER, Part, ProviderConfig, Scope};
pub use discovery::Stop;
pub use ports::{
    By, Confirmations, Context, Inventory, Listed, MAX_SENT, Registration, Registrations,
};
pub use provider::{Bundled, Ec2InstanceIds, OstlerRunners, Provider};

use crate::error::{Error, Result};
use crate::ports::Telemetry;
use crate::stolen::come_again;

/// Entries of a page, GitHub's most.
pub const PAGE: usize = 100;

/// Least time between the two observations. Longer than any lag that GitHub's flags and EC2's lists are
/// known for, and the longest that SQS holds a message back.
pub const OBSERVATION: Duration = Duration::from_secs(900);

/// A candidate that is older proves nothing any more.
pub const EXPIRY: Duration = Duration::from_secs(24 * 3600);

/// Pages of a list that fail one after the other until the list is given up for this scan.
const MAX_PAGE_FAILURES: u32 = 3;

/// Pages of one list: twice what GitHub's largest group has.
const MAX_PAGES: u32 = 200;

/// Records of one event: ten times what the event source sends.
const MAX_RECORDS: usize = 100;

/// Why a registration is kept. The names are values of the metric's dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// It is not said to be offline.
    Online,
    /// It is not said to be idle.
    Busy,
    /// Its name is none of ours.
    Foreign,
    /// Something is behind it.
    Exists,
    /// Its id has another name now.
    Renamed,
    /// It is no longer in the group in which it was found.
    Moved,
    /// The configuration is another than that under which it was found.
    ScopeChanged,
    /// The message is none that discovery sends.
    Unusable,
    /// It was found more than a day ago.
    Expired,
    /// It claims to have been found in the future.
    FromTheFuture,
    /// This is a dry run.
    DryRun,
}

impl Kept {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Online => "Online",
            Self::Busy => "Busy",
            Self::Foreign => "Foreign",
            Self::Exists => "Exists",
            Self::Renamed => "Renamed",
            Self::Moved => "Moved",
            Self::ScopeChanged => "ScopeChanged",
            Self::Unusable => "Unusable",
            Self::Expired => "Expired",
            Self::FromTheFuture => "FromTheFuture",
            Self::DryRun => "DryRun",
        }
    }
}

/// Handles one Lambda event: with `Records` a batch of the confirmation queue, without a schedule's tick.
/// `may_begin` says whether there is time to begin something.
pub async fn handle<C: Context>(
    context: &C,
    config: &Config,
    event: &Value,
    may_begin: impl Fn() -> bool,
) -> Result<Value> {
    let done = match event.get("Records") {
        None => discovery::discover(context, config, &may_begin).await,
        Some(Value::Array(records)) if records.len() <= MAX_RECORDS => {
            let failed = confirmation::confirm(context, config, records, &may_begin).await;
            failed.map(|failed| come_again(&failed))
        }
        Some(_) => Err(Error::Permanent(
            "Records must be a list of up to 100 records of the confirmation queue".into(),
        )),
    };
    let counts = Counts(context);
    for (app, left) in context.registrations().quotas() {
        counts.add("GitHubQuotaLeft", Some(("App", &app.to_string())), left);
    }
    done
}

/// Metrics of this janitor: each is by its name too, so that several in one account can be told apart.
struct Counts<'a, C>(&'a C);

impl<C: Context> Counts<'_, C> {
    fn add(&self, metric: &'static str, by: Option<(&'static str, &str)>, number: u64) {
        let dimensions: Vec<_> = [("Janitor", self.0.name())].into_iter().chain(by).collect();
        #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        self.0.telemetry().count_by(metric, &dimensions, number as f64);
    }

    fn kept(&self, why: Kept, number: u64) {
        self.add("RegistrationKept", Some(("Reason", why.name())), number);
    }

    /// `kind` is what failed: `Page`, `LookUp`, `Queue`, `GitHub`, `Record`.
    fn failed(&self, kind: &str, number: u64) {
        self.add("JanitorFailure", Some(("Kind", kind)), number);
    }
}
