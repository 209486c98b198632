//! What bounds launches, in the ledger.
//!
//! | `pk` | attributes |
//! | --- | --- |
//! | `slots#<tier>` | `holders`: who has a place, each with the moment from which on it counts, in milliseconds since 1970; `lookedAt`, in the same: when it was last looked whether they are right |
//! | `breaker#<tier>` | `failures`: times of the spot market's latest ones, in milliseconds since 1970; `openUntil`, in the same; `run<id>`, in the same: until when the jobs of that run are kept off spot |
//! | `pace#<App id>` | `turns`: how many places were given out |
//! | `pace#<App id>/<place>`, `pace#ec2` | `nextAt`: the next moment that is free, in milliseconds since 1970 |
//!
//! Each call is one conditional update (of a moment that is past, two), so that any number of callers at a time
//! get what there is and no more.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use ostler_core::instances::SpotBreaker;
use ostler_core::ports::{Clock, Gate, Slot};
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};

use crate::item::{Item, Update, number};
use crate::ledger::{DynamoLedger, Updated};

/// Tries to reserve a moment: each fails only if another caller has just reserved one.
const RESERVE_TRIES: usize = 8;

/// Failures that are kept beyond those that count, before the list is cut.
const SPARE_FAILURES: usize = 40;

/// Before the id of a run that is kept off spot, in the attribute's name.
const RUN: &str = "run";

/// Runs that may stay noted after their time, before they are removed.
const SPARE_RUNS: usize = 40;

fn breaker_key(tier: &str) -> String {
    format!("breaker#{tier}")
}

fn times(at: impl IntoIterator<Item = Timestamp>) -> AttributeValue {
    AttributeValue::L(at.into_iter().map(|at| number(at.millis())).collect())
}

fn slots_key(tier: &str) -> String {
    format!("slots#{tier}")
}

/// Whether a runner may take a place, or has one. The map has to be there for a runner to be put into it.
const HAS_ROOM: &str = "attribute_exists(#holders) AND \
    (size(#holders) < :most OR attribute_exists(#holders.#holder))";

impl<C: Clock> Gate for DynamoLedger<C> {
    async fn take_slot(
        &self,
        tier: &str,
        holder: &str,
        most: u32,
        from: Timestamp,
    ) -> Result<Slot> {
        let key = slots_key(tier);
        let from = number(from.millis());
        for _ in 0..RESERVE_TRIES {
            let request = self
                .client
                .update_item()
                .update_expression("SET #holders.#holder = :from")
                .condition_expression(HAS_ROOM)
                .expression_attribute_names("#holders", "holders")
                .expression_attribute_names("#holder", holder)
                .expression_attribute_values(":most", number(most))
                .expression_attribute_values(":from", from.clone());
            let known = match self.send(&key, request).await? {
                Updated::Done(_) => return Ok(Slot::Taken),
                Updated::Refused(Some(item)) => Item::living(item, self.clock.now()),
                // A table that does not say what is there is asked.
                Updated::Refused(None) => self.read(&key).await?,
            };
            let looked_at = known.as_ref().and_then(|item| item.number("lookedAt"));
            let looked_at = looked_at.map(Timestamp::from_millis);
            if let Some(holders) = known.and_then(|item| item.times("holders")) {
                return Ok(Slot::Full { holders, looked_at });
            }
            if most == 0 {
                return Ok(Slot::Full { holders: vec![], looked_at });
            }
            let first = AttributeValue::M([(holder.to_owned(), from.clone())].into());
            let update =
                Update::default().set("holders", first).when("attribute_not_exists(#holders)", []);
            if let Updated::Done(_) = self.update(&key, update).await? {
                return Ok(Slot::Taken);
            }
        }
        Err(Error::Transient(format!("{key} in the ledger changes too fast")))
    }

    async fn free_slot(&self, tier: &str, holder: &str) -> Result<bool> {
        let request = self
            .client
            .update_item()
            .update_expression("REMOVE #holders.#holder")
            .condition_expression("attribute_exists(#holders.#holder)")
            .expression_attribute_names("#holders", "holders")
            .expression_attribute_names("#holder", holder);
        Ok(matches!(self.send(&slots_key(tier), request).await?, Updated::Done(_)))
    }

    async fn note_look_at_slots(
        &self,
        tier: &str,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<bool> {
        let update = Update::default().set("lookedAt", number(now.millis())).when(
            "attribute_not_exists(#lookedAt) OR #lookedAt <= :before",
            [(":before", number(before.millis()))],
        );
        Ok(matches!(self.update(&slots_key(tier), update).await?, Updated::Done(_)))
    }

    async fn reserve(&self, whose: &str, step: Duration) -> Result<Timestamp> {
        let key = format!("pace#{whose}");
        let step_millis = i64::try_from(step.as_millis()).unwrap_or(i64::MAX);
        for _ in 0..RESERVE_TRIES {
            let now = self.clock.now().millis();
            let after = Update::default()
                .advance("nextAt", number(step_millis))
                .when("#nextAt > :now", [(":now", number(now))]);
            if let Updated::Done(item) = self.update(&key, after).await? {
                let next = item.get("nextAt").and_then(|next| next.as_n().ok()?.parse().ok());
                let next: i64 = next.ok_or_else(|| {
                    Error::Transient(format!("{key} in the ledger has no moment"))
                })?;
                return Ok(Timestamp::from_millis(next.saturating_sub(step_millis)));
            }
            let first = Update::default()
                .set("nextAt", number(now.saturating_add(step_millis)))
                .when("attribute_not_exists(#nextAt) OR #nextAt <= :now", [(":now", number(now))]);
            if let Updated::Done(_) = self.update(&key, first).await? {
                return Ok(Timestamp::from_millis(now));
            }
        }
        Err(Error::Transient(format!("no moment could be reserved in {key}: too many at a time")))
    }

    async fn turn(&self, whose: &str) -> Result<u64> {
        let key = format!("pace#{whose}");
        let request = self
            .client
            .update_item()
            .update_expression("ADD #turns :one")
            .expression_attribute_names("#turns", "turns")
            .expression_attribute_values(":one", number(1));
        let known = match self.send(&key, request).await? {
            Updated::Done(item) => item.get("turns").and_then(|it| it.as_n().ok()?.parse().ok()),
            Updated::Refused(_) => None,
        };
        let turns: u64 =
            known.ok_or_else(|| Error::Transient(format!("{key} in the ledger has no count")))?;
        Ok(turns.saturating_sub(1))
    }

    async fn strike(&self, tier: &str, at: Timestamp, breaker: &SpotBreaker) -> Result<bool> {
        let key = breaker_key(tier);
        let Updated::Done(item) =
            self.update(&key, Update::default().append("failures", times([at]))).await?
        else {
            return Ok(false);
        };
        let failures: Vec<Timestamp> = item
            .get("failures")
            .and_then(|failures| failures.as_l().ok())
            .into_iter()
            .flatten()
            .filter_map(|at| at.as_n().ok()?.parse().ok().map(Timestamp::from_millis))
            .collect();
        let recent = breaker.recent(&failures, at);
        if !breaker.opens(&recent) {
            if failures.len() > recent.len() + SPARE_FAILURES {
                // Whoever counted one meanwhile has lost it, which matters little at this number.
                self.update(&key, Update::default().set("failures", times(recent))).await?;
            }
            return Ok(false);
        }
        let opened = Update::default()
            .set("openUntil", number((at + breaker.on_demand_for).millis()))
            .set("failures", times([]))
            .when(
                "attribute_not_exists(#openUntil) OR #openUntil <= :at",
                [(":at", number(at.millis()))],
            );
        Ok(matches!(self.update(&key, opened).await?, Updated::Done(_)))
    }

    async fn spot_rests(&self, tier: &str, run: Option<&str>) -> Result<bool> {
        let Some(item) = self.read(&breaker_key(tier)).await? else { return Ok(false) };
        let run = run.and_then(|run| item.number(&[RUN, run].concat()));
        Ok(item.number("openUntil").max(run) > Some(self.clock.now().millis()))
    }

    async fn keep_off_spot(&self, tier: &str, run: i64, until: Timestamp) -> Result<()> {
        let key = breaker_key(tier);
        let update = Update::default().set(&format!("{RUN}{run}"), number(until.millis()));
        let Updated::Done(item) = self.update(&key, update).await? else { return Ok(()) };
        let now = self.clock.now();
        let past: Vec<&String> = item
            .iter()
            .filter(|(name, _)| name.starts_with(RUN))
            .filter(|(_, until)| {
                let until = until.as_n().ok().and_then(|until| until.parse().ok());
                until.is_none_or(|until: i64| until <= now.millis())
            })
            .map(|(name, _)| name)
            .collect();
        if past.len() <= SPARE_RUNS {
            return Ok(());
        }
        let update = past.into_iter().fold(Update::default(), |update, name| update.remove(name));
        self.update(&key, update).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestClock, Wire};

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn refused() -> (u16, Value) {
        let kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
        (400, json!({"__type": kind, "message": "The conditional request failed"}))
    }

    async fn ledger(wire: &Wire) -> DynamoLedger<TestClock> {
        DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW))
    }

    #[tokio::test]
    async fn a_place_is_taken_by_a_conditional_update_and_given_back() {
        let now = Timestamp::parse(NOW).unwrap();
        let looked_at = now - Duration::from_secs(7);
        let holders = json!({"lookedAt": {"N": looked_at.millis().to_string()},
            "holders": {"M": {"a": {"N": now.millis().to_string()}, "x": {"S": "?"}}}});
        let mut full = refused();
        full.1["Item"] = holders.clone();
        let wire = Wire::new([
            // The first of all: there is no map yet.
            refused(),
            (200, json!({})),
            (200, json!({})),
            (200, json!({})),
            full,
            // A table that does not say what is there is asked.
            refused(),
            (200, json!({"Item": holders})),
            (200, json!({})),
            refused(),
        ]);
        let ledger = ledger(&wire).await;
        let held = Slot::Full { holders: vec![("a".into(), now)], looked_at: Some(looked_at) };
        for (holder, slot) in [("a", &Slot::Taken), ("a", &Slot::Taken), ("b", &held), ("b", &held)]
        {
            assert_eq!(ledger.take_slot("small", holder, 1, now).await.unwrap(), *slot);
        }
        assert!(ledger.free_slot("small", "a").await.unwrap());
        assert!(!ledger.free_slot("small", "a").await.unwrap());
        let sent = wire.requests();
        assert_eq!(sent[0]["Key"], json!({"pk": {"S": "slots#small"}}));
        assert_eq!(sent[0]["UpdateExpression"], "SET #holders.#holder = :from");
        assert_eq!(sent[0]["ConditionExpression"], HAS_ROOM);
        assert_eq!(sent[0]["ExpressionAttributeNames"]["#holder"], "a");
        assert_eq!(sent[0]["ExpressionAttributeValues"][":most"], json!({"N": "1"}));
        assert_eq!(sent[2]["ConditionExpression"], "attribute_not_exists(#holders)");
        assert_eq!(sent[7]["UpdateExpression"], "REMOVE #holders.#holder");
        assert_eq!(sent[7]["ConditionExpression"], "attribute_exists(#holders.#holder)");
    }

    #[tokio::test]
    async fn one_of_those_who_wait_for_a_place_looks_at_a_time() {
        let now = Timestamp::parse(NOW).unwrap();
        let before = now - Duration::from_secs(30);
        let wire = Wire::new([(200, json!({})), refused()]);
        let ledger = ledger(&wire).await;
        for first in [true, false] {
            assert_eq!(ledger.note_look_at_slots("small", before, now).await.unwrap(), first);
        }
        let sent = &wire.requests()[0];
        assert_eq!(sent["Key"], json!({"pk": {"S": "slots#small"}}));
        assert_eq!(sent["UpdateExpression"], "SET #lookedAt = :lookedAt");
        let value = |at: Timestamp| json!({"N": at.millis().to_string()});
        let values = &sent["ExpressionAttributeValues"];
        assert_eq!((&values[":lookedAt"], &values[":before"]), (&value(now), &value(before)));
    }

    #[tokio::test]
    async fn the_third_failure_in_a_quarter_of_an_hour_opens_the_breaker_once() {
        let now = Timestamp::parse(NOW).unwrap();
        let failures = |minutes: &[u64]| {
            let at = |ago: &u64| (now - Duration::from_secs(60 * ago)).millis().to_string();
            let list: Vec<_> = minutes.iter().map(|ago| json!({"N": at(ago)})).collect();
            (200, json!({"Attributes": {"failures": {"L": list}}}))
        };
        let wire = Wire::new([
            failures(&[16, 14, 0]),
            failures(&[14, 1, 0]),
            (200, json!({})),
            failures(&[14, 1, 0]),
            refused(),
            (200, json!({"Item": {"openUntil": {"N": (now.millis() + 1).to_string()}}})),
            (200, json!({"Item": {"openUntil": {"N": now.millis().to_string()}}})),
            (200, json!({})),
        ]);
        let ledger = ledger(&wire).await;
        let breaker = SpotBreaker::default();
        for opens in [false, true, false] {
            assert_eq!(ledger.strike("small", now, &breaker).await.unwrap(), opens);
        }
        for open in [true, false, false] {
            assert_eq!(ledger.spot_rests("small", None).await.unwrap(), open);
        }
        let sent = wire.requests();
        assert_eq!(
            sent[0]["UpdateExpression"],
            "SET #failures = list_append(if_not_exists(#failures, :none), :failures)"
        );
        let until = (now + breaker.on_demand_for).millis().to_string();
        assert_eq!(sent[2]["ExpressionAttributeValues"][":openUntil"], json!({ "N": until }));
        assert_eq!(sent[2]["ExpressionAttributeValues"][":failures"], json!({"L": []}));
    }

    #[tokio::test]
    async fn a_run_is_kept_off_spot_by_the_item_that_launches_read_and_the_past_is_removed() {
        let now = Timestamp::parse(NOW).unwrap();
        let until = now + Duration::from_secs(60);
        let mut noted = json!({"pk": {"S": "breaker#small"}, "openUntil": {"N": "1"}});
        for run in 0..41 {
            noted[format!("run{run}")] = json!({"N": now.millis().to_string()});
        }
        noted["run99"] = json!({"N": until.millis().to_string()});
        let wire = Wire::new([
            (200, json!({"Attributes": noted})),
            (200, json!({})),
            (200, json!({"Item": noted})),
            (200, json!({"Item": noted})),
            (200, json!({"Item": noted})),
            (200, json!({})),
        ]);
        let ledger = ledger(&wire).await;
        ledger.keep_off_spot("small", 99, until).await.unwrap();
        for (run, rests) in
            [(Some("99"), true), (Some("7"), false), (None, false), (Some("99"), false)]
        {
            assert_eq!(ledger.spot_rests("small", run).await.unwrap(), rests, "{run:?}");
        }
        let sent = wire.requests();
        assert_eq!(sent[0]["Key"], json!({"pk": {"S": "breaker#small"}}));
        assert_eq!(sent[0]["UpdateExpression"], "SET #run99 = :run99");
        let removed = sent[1]["UpdateExpression"].as_str().unwrap();
        assert!(removed.starts_with("REMOVE ") && removed.matches("#run").count() == 41);
        assert!(!removed.contains("#run99"));
    }

    #[tokio::test]
    async fn turns_are_counted_from_0_by_one_update_each() {
        let answer = |turns: u64| (200, json!({"Attributes": {"turns": {"N": turns.to_string()}}}));
        let wire = Wire::new([answer(1), answer(2), (200, json!({}))]);
        let ledger = ledger(&wire).await;
        assert_eq!(ledger.turn("4242").await.unwrap(), 0);
        assert_eq!(ledger.turn("4242").await.unwrap(), 1);
        assert!(matches!(ledger.turn("4242").await, Err(Error::Transient(_))));
        let sent = wire.requests();
        assert_eq!(sent[0]["Key"], json!({"pk": {"S": "pace#4242"}}));
        assert_eq!(sent[0]["UpdateExpression"], "ADD #turns :one");
    }

    #[tokio::test]
    async fn moments_follow_each_other_and_none_is_given_twice() {
        let now = Timestamp::parse(NOW).unwrap();
        let next = now.millis() + 5_000;
        let wire = Wire::new([
            // The first of all: there is no moment yet.
            refused(),
            (200, json!({})),
            // Others have reserved up to five seconds ahead.
            (200, json!({"Attributes": {"nextAt": {"N": (next + 500).to_string()}}})),
            // Somebody was quicker, and then it is after him.
            refused(),
            refused(),
            (200, json!({"Attributes": {"nextAt": {"N": (next + 1000).to_string()}}})),
        ]);
        let ledger = ledger(&wire).await;
        let step = Duration::from_millis(500);
        assert_eq!(ledger.reserve("4242", step).await.unwrap(), now);
        assert_eq!(ledger.reserve("4242", step).await.unwrap(), Timestamp::from_millis(next));
        let third = ledger.reserve("4242", step).await.unwrap();
        assert_eq!(third, Timestamp::from_millis(next + 500));
        let sent = wire.requests();
        assert_eq!(sent[0]["Key"], json!({"pk": {"S": "pace#4242"}}));
        assert_eq!(sent[0]["UpdateExpression"], "SET #nextAt = #nextAt + :nextAt");
        assert_eq!(sent[0]["ConditionExpression"], "#nextAt > :now");
        assert_eq!(
            sent[1]["ConditionExpression"],
            "attribute_not_exists(#nextAt) OR #nextAt <= :now"
        );
    }
}
