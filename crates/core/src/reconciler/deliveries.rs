//! Deliveries that failed are sent again: GitHub does not do so by itself.
//!
//! The App's log is read from its newest line back to where it was read before, three hours at most. A
//! failure is noted in the ledger, and only then counts as read; what is noted is due at once, and again an
//! hour after each time that it was sent. Whoever sends it has claimed it before, so that two runs at a time
//! send it once. When a later delivery of the same event went well, the event is settled.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{info, warn};

use super::{
    Delivered, Deliveries, FailedDeliveries, FailedDelivery, First, Reconciled, ReconcilerContext,
};
use crate::error::{Error, Result};
use crate::ports::Clock;
use crate::reach::reached;
use crate::time::Timestamp;

/// How far back failures are looked for and sent again: what is older, a search for waiting jobs finds.
const LOOK_BACK: Duration = Duration::from_secs(3 * 3600);

/// Between two deliveries of one event.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// The log's youngest lines are read again next time: a delivery is logged as it ends, and those that were
/// begun before it may still be under way. GitHub waits ten seconds for an answer, GHES thirty.
const SETTLES: Duration = Duration::from_secs(300);

/// Pages of the log, of a hundred lines each: what an App with thirty deliveries a second has in a run's
/// period. Beyond it the newest are read, and the position stays where it is.
const MAX_PAGES: usize = 100;

/// Deliveries that one run sends again: a second each, at GitHub's pace.
const MAX_SENT: usize = 100;

/// What the log says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Events whose latest delivery failed.
    pub failed: Vec<FailedDelivery>,
    /// Events that arrived after all.
    pub recovered: Vec<String>,
    /// Up to which delivery the log need not be read again.
    pub position: Option<u64>,
}

/// Judges lines of the log, in any order. Of an event its latest delivery counts.
pub fn judge(entries: &[Delivered], now: Timestamp) -> Judged {
    let mut latest: BTreeMap<&str, &Delivered> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.of_job) {
        let known = latest.entry(&entry.guid).or_insert(entry);
        if known.id < entry.id {
            *known = entry;
        }
    }
    let mut judged = Judged {
        position: entries
            .iter()
            .filter(|entry| now.since(entry.at) >= SETTLES)
            .map(|entry| entry.id)
            .max(),
        ..Judged::default()
    };
    for (guid, entry) in latest {
        match (entry.ok, entry.again) {
            (true, true) => judged.recovered.push(guid.to_owned()),
            (true, false) => {}
            (false, _) => judged.failed.push(FailedDelivery {
                guid: guid.to_owned(),
                id: entry.id,
                failed_at: entry.at,
                due: now,
            }),
        }
    }
    judged
}

pub(super) async fn redeliver<C: ReconcilerContext>(
    context: &C,
    done: &mut Reconciled,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let mut first = First(None);
    if let Err(failure) = read(context, done, &may_begin).await {
        first.note(failure);
    }
    let due = context.agenda().due_deliveries(MAX_SENT + 1).await?;
    for (sent, failure) in due.into_iter().enumerate() {
        if sent >= MAX_SENT || !may_begin() {
            reached("deliveries: no time to send all");
            done.left += 1;
            continue;
        }
        match send(context, &failure, done).await {
            Ok(()) => {}
            Err(limit @ Error::Later { .. }) => return Err(first.0.unwrap_or(limit)),
            Err(error) => {
                reached("deliveries: one can't be sent");
                warn!(guid = failure.guid, %error, "a delivery could not be sent again");
                first.note(error);
            }
        }
    }
    first.answer()
}

/// Reads the log and notes what it says.
async fn read<C: ReconcilerContext>(
    context: &C,
    done: &mut Reconciled,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let (agenda, now) = (context.agenda(), context.clock().now());
    let position = agenda.position().await?;
    let oldest = now - LOOK_BACK;
    let read = |entry: &Delivered| {
        entry.at < oldest || position.is_some_and(|position| entry.id <= position)
    };
    let (mut entries, mut cursor, mut complete, mut failed) = (Vec::new(), None, false, None);
    for _ in 0..MAX_PAGES {
        if !may_begin() {
            break;
        }
        let page = match context.backlog().page(cursor.as_deref()).await {
            Ok(page) => page,
            // What was read before it is good, and noted. The position stays where it is.
            Err(failure) => {
                failed = Some(failure);
                break;
            }
        };
        complete = page.next.is_none() || page.entries.iter().any(read);
        entries.extend(page.entries.into_iter().filter(|entry| !read(entry)));
        cursor = page.next;
        if complete {
            break;
        }
    }
    let judged = judge(&entries, now);
    for failure in &judged.failed {
        reached("deliveries: a failure is noted");
        agenda.note_failure(failure).await?;
    }
    for guid in &judged.recovered {
        reached("deliveries: one went well at last");
        agenda.settle_delivery(guid).await?;
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    if !complete {
        reached("deliveries: no time to read all");
        done.left += 1;
        warn!(lines = entries.len(), "there was no time for all of the log of deliveries");
        return Ok(());
    }
    match judged.position {
        Some(position) => agenda.advance(position).await,
        None => Ok(()),
    }
}

async fn send<C: ReconcilerContext>(
    context: &C,
    failure: &FailedDelivery,
    done: &mut Reconciled,
) -> Result<()> {
    let (agenda, now) = (context.agenda(), context.clock().now());
    let (guid, id) = (failure.guid.as_str(), failure.id);
    if now.since(failure.failed_at) >= LOOK_BACK {
        reached("deliveries: given up after three hours");
        warn!(guid, id, "given up: the event could not be delivered for three hours");
        done.given_up += 1;
        return agenda.settle_delivery(guid).await;
    }
    let until = now + AGAIN_AFTER;
    if !agenda.claim(failure, until).await? {
        reached("deliveries: another run sends it");
        return Ok(());
    }
    match context.backlog().redeliver(id).await {
        Ok(true) => {
            reached("deliveries: sent again");
            info!(guid, id, "a delivery that had failed is sent again");
            done.redelivered += 1;
            Ok(())
        }
        Ok(false) => {
            reached("deliveries: GitHub has it no more");
            warn!(guid, id, "given up: GitHub does not have the delivery any more");
            done.given_up += 1;
            agenda.settle_delivery(guid).await
        }
        // Nothing was sent, so it need not wait for its hour.
        Err(refused @ (Error::Later { .. } | Error::Permanent(_))) => {
            reached("deliveries: refused, and free again");
            let claimed = FailedDelivery { due: until, ..failure.clone() };
            agenda.claim(&claimed, now).await?;
            Err(refused)
        }
        Err(lost) => Err(lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_796_040_000 + seconds)
    }

    fn entry(id: u64, guid: &str, ok: bool, again: bool) -> Delivered {
        Delivered { id, guid: guid.into(), at: at(0), ok, again, of_job: true }
    }

    #[test]
    fn an_events_latest_delivery_counts_in_whatever_order_they_are_listed() {
        let big = u64::MAX - 9;
        let entries = [
            entry(big, "a", true, true),
            entry(5, "a", false, false),
            entry(7, "b", false, true),
            entry(6, "b", false, false),
            entry(8, "c", true, false),
            Delivered { of_job: false, ..entry(9, "d", false, false) },
        ];
        let judged = judge(&entries, at(600));
        assert_eq!(judged.recovered, ["a"]);
        let failed: Vec<_> = judged.failed.iter().map(|it| (it.guid.as_str(), it.id)).collect();
        assert_eq!(failed, [("b", 7)]);
        assert_eq!(judged.position, Some(big));
    }

    #[test]
    fn the_youngest_lines_are_read_again() {
        let young = Delivered { at: at(400), ..entry(9, "a", true, false) };
        let entries = [young, entry(5, "b", false, false)];
        assert_eq!(judge(&entries, at(600)).position, Some(5));
        assert_eq!(judge(&entries[..1], at(600)).position, None);
        assert_eq!(judge(&[], at(600)), Judged::default());
    }
}
