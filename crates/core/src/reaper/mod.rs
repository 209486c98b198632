//! Use case: one sweep over the machines that carry the owner's tag, which ends those that are past their
//! time. It is the backstop for when everything else has failed, so it needs nothing of anything else: no
//! GitHub, no table, no other stack.
//!
//! A machine is ended if and only if, at a look right before, it lives, carries the tag, is not a stopped
//! one of a pool, and was last started longer ago than its limit ([`judge()`]). What could not be found out
//! keeps it: a spot request that can't be read or cancelled would start another in its place. A failure
//! spoils only its own machine; the sweep goes on, and fails at its end, so that it is seen. Nothing is
//! remembered between sweeps, and each can be cut off anywhere or run beside another.

mod judge;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tracing::{error, info, warn};

pub use judge::{Kept, Rules, Verdict, judge};

use crate::error::{Error, Result};
use crate::ports::{Clock, Machine, Machines, Telemetry};
use crate::reach::reached;

/// Pages of the list: twice as many instances as a region runs by default, at 500 a page.
const MOST_PAGES: usize = 200;

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Machines that were ended, or were gone when it came to that.
    pub ended: usize,
    /// Machines that stay, by reason.
    pub kept: BTreeMap<&'static str, usize>,
    /// Machines past their time that could not be ended.
    pub failed: usize,
    /// Machines past their time for which there was no time: the next sweep's.
    pub left: usize,
}

/// Sweeps once. `may_begin` says whether there is time to begin something. The error comes at the end, if
/// anything failed or was left: how much, and the first reason.
pub async fn sweep(
    machines: &impl Machines,
    clock: &impl Clock,
    telemetry: &impl Telemetry,
    rules: &Rules,
    dry_run: bool,
    may_begin: impl Fn() -> bool,
) -> Result<Swept> {
    let mut swept = Swept::default();
    // What was listed before a page failed is as true as ever, so it is swept all the same.
    let (listed, mut first) = list(machines).await;
    let now = clock.now();
    let mut due = BTreeSet::new();
    for machine in listed.values() {
        match judge(machine, rules, now) {
            Verdict::Keep(reason) => keep(&mut swept, machine, reason),
            // Those that are over longest come first, in case there is no time for all.
            Verdict::End(end) => drop(due.insert((end, &machine.id))),
        }
    }
    for (end, id) in due {
        let machine = &listed[id];
        if dry_run {
            reached("reaper: a rehearsal");
            info!(instance = id, name = machine.name(), over_since = %end, "would be ended");
            keep(&mut swept, machine, Kept::DryRun);
            continue;
        }
        if !may_begin() {
            reached("reaper: no time is left");
            swept.left += 1;
            continue;
        }
        match end_one(machines, clock, rules, id).await {
            Ok(Some(Verdict::Keep(reason))) => {
                reached("reaper: kept at the second look");
                keep(&mut swept, machine, reason);
            }
            Ok(ended) => {
                swept.ended += 1;
                let found = ended.is_some();
                match found {
                    true => reached("reaper: ended"),
                    false => reached("reaper: gone by itself"),
                }
                warn!(
                    instance = id,
                    name = machine.name(),
                    over_since = %end,
                    found,
                    "ended: past its time"
                );
            }
            Err(failure) => {
                swept.failed += 1;
                reached("reaper: could not be ended");
                error!(instance = id, name = machine.name(), %failure, "not ended: it is kept");
                first.get_or_insert(failure);
            }
        }
    }
    count(telemetry, &swept);
    info!(?swept, "swept");
    let first = match (first, swept.left) {
        (None, 0) => return Ok(swept),
        (Some(failure), _) => failure.to_string(),
        (None, _) => "there was no time for all of them".to_owned(),
    };
    Err(Error::Transient(format!(
        "the sweep is not complete: {} machines ended, {} failed, {} left for the next sweep; {first}",
        swept.ended, swept.failed, swept.left
    )))
}

/// All machines by id, of all pages up to the first that fails, and that failure. Only a missing token ends
/// the list.
async fn list(machines: &impl Machines) -> (BTreeMap<String, Machine>, Option<Error>) {
    let (mut listed, mut token) = (BTreeMap::new(), None);
    for _ in 0..MOST_PAGES {
        match machines.list(token).await {
            Ok(page) => {
                listed.extend(page.machines.into_iter().map(|it| (it.id.clone(), it)));
                token = page.next;
                if token.is_none() {
                    return (listed, None);
                }
            }
            Err(failure) => {
                reached("reaper: a page could not be read");
                return (listed, Some(failure));
            }
        }
    }
    let failure = Error::Transient(format!("EC2's list has more than {MOST_PAGES} pages"));
    (listed, Some(failure))
}

/// Ends a machine if it is still past its time: a sweep can take minutes, and one that was started again,
/// or given longer, must live. `None` if it is gone.
async fn end_one(
    machines: &impl Machines,
    clock: &impl Clock,
    rules: &Rules,
    id: &str,
) -> Result<Option<Verdict>> {
    let Some(machine) = machines.machine(id).await? else { return Ok(None) };
    let verdict = judge(&machine, rules, clock.now());
    if verdict == Verdict::Keep(Kept::Ended) {
        return Ok(None);
    }
    if let Verdict::End(_) = verdict {
        if let Some(request) = &machine.spot_request {
            close(machines, request).await?;
        }
        machines.terminate(id).await?;
    }
    Ok(Some(verdict))
}

/// A persistent request would start another machine, without tags, in place of the one that is ended, so it
/// is cancelled first. One that EC2 does not know can't.
async fn close(machines: &impl Machines, id: &str) -> Result<()> {
    let request = machines.spot_request(id).await?;
    if request.is_some_and(|request| request.persistent && request.open) {
        reached("reaper: a persistent request is cancelled");
        machines.cancel_spot_request(id).await?;
    }
    Ok(())
}

fn keep(swept: &mut Swept, machine: &Machine, reason: Kept) {
    *swept.kept.entry(reason.name()).or_default() += 1;
    if matches!(reason, Kept::Undated | Kept::Foreign) {
        warn!(instance = machine.id, reason = reason.name(), "kept: EC2 shows it oddly");
    }
}

/// Nothing is counted that did not happen: a metric costs money in each hour in which it is told.
fn count(telemetry: &impl Telemetry, swept: &Swept) {
    let number = |n: usize| u32::try_from(n).map_or(f64::from(u32::MAX), f64::from);
    let each = [("ReaperEnded", swept.ended), ("ReaperFailed", swept.failed)];
    for (metric, n) in each.into_iter().chain([("ReaperLeft", swept.left)]) {
        if n > 0 {
            telemetry.count(metric, None, number(n));
        }
    }
    for (reason, n) in &swept.kept {
        telemetry.count("ReaperKept", Some(("Reason", reason)), number(*n));
    }
}

impl Machine {
    /// What people call it, if anything.
    fn name(&self) -> Option<&str> {
        self.tags.get("Name").map(String::as_str)
    }
}
