//! What is due in the ledger: a sparse index, `due`, of the items that the reconciler has to look at, by kind
//! and time. It holds keys only and lags a write by moments, so what it names is read again.

use aws_sdk_dynamodb::types::AttributeValue;
use ostler_core::Result;
use ostler_core::job::{JobId, Repository};
use ostler_core::ports::Clock;
use ostler_core::reconciler::{
    ActiveRepositories, ActiveRepository, FailedDeliveries, FailedDelivery, InterruptedJob,
    InterruptedRun, InterruptedRuns, OpenJobs, Tag,
};
use ostler_core::time::Timestamp;

use crate::item::{Item, KEY, TTL, Update, number, text, time, ttl};
use crate::ledger::{DynamoLedger, Updated, job_key};
use crate::sdk_error;

/// Name of the index, and of its hash key: what kind of thing is due.
pub const DUE: &str = "due";

/// The index's sort key: when.
pub const DUE_AT: &str = "dueAt";

/// Where the place in the log of deliveries is noted.
const POSITION: &str = "position#deliveries";

/// Failed deliveries are sent again for three hours; what is noted of one is no longer needed soon after.
const DELIVERY_KEPT: std::time::Duration = std::time::Duration::from_secs(6 * 3600);

/// An interrupted run is waited for a day; what is noted of its jobs keeps late events from noting them anew.
const RERUN_KEPT: std::time::Duration = std::time::Duration::from_secs(3 * 86_400);

/// Before a job's id, in the names of the attributes that say when it lost its machine, and, until it is settled, of
/// which tier it is.
const LOST: &str = "lost";
const TIER: &str = "tier";

/// The attempt of a run after which another was asked for.
const ASKED: &str = "asked";

/// Attributes that hold the tags of a repository's lists, in the order of `RunStatus::EACH`.
const TAGS: [&str; 4] = ["tagQueued", "tagInProgress", "tagWaiting", "tagPending"];

/// Before the tag of a list without any run.
const OF_NONE: &str = "none ";

/// What can be due.
#[derive(Clone, Copy)]
pub enum Due {
    /// A job that is open.
    Job,
    /// A repository that was active.
    Repository,
    /// An event that could not be delivered.
    Delivery,
    /// A run of which jobs are to be run again.
    Rerun,
}

impl Due {
    /// The value of [`DUE`], and the beginning of the item's key.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Repository => "repo",
            Self::Delivery => "delivery",
            Self::Rerun => "rerun",
        }
    }

    /// The item's key.
    pub fn key(self, rest: &str) -> String {
        format!("{}#{rest}", self.kind())
    }
}

impl<C: Clock> DynamoLedger<C> {
    /// The keys, without their kind, of what is due, the longest due first.
    async fn due(&self, kind: Due, most: usize) -> Result<Vec<String>> {
        let prefix = kind.key("");
        let (mut found, mut start) = (Vec::new(), None);
        while found.len() < most {
            let left = i32::try_from(most - found.len()).unwrap_or(i32::MAX);
            let answer = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(DUE)
                .key_condition_expression("#due = :due AND #dueAt <= :now")
                .expression_attribute_names("#due", DUE)
                .expression_attribute_names("#dueAt", DUE_AT)
                .expression_attribute_values(":due", text(kind.kind()))
                .expression_attribute_values(":now", time(self.clock.now()))
                .limit(left)
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| sdk_error("look up what is due in the ledger", error))?;
            let keys = answer.items.into_iter().flatten().filter_map(|mut item| item.remove(KEY));
            found.extend(keys.filter_map(|key| match key {
                AttributeValue::S(key) => key.strip_prefix(&prefix).map(str::to_owned),
                _ => None,
            }));
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// The item, if it still is due.
    async fn still_due(&self, kind: Due, rest: &str) -> Result<Option<Item>> {
        let item = self.read(&kind.key(rest)).await?;
        let due = |item: &Item| {
            item.text(DUE).is_some() && item.time(DUE_AT).is_some_and(|at| at <= self.clock.now())
        };
        Ok(item.filter(due))
    }
}

/// Of an item that is in the index.
const INDEXED: &str = "attribute_exists(#due)";

impl<C: Clock> OpenJobs for DynamoLedger<C> {
    async fn due_jobs(&self, most: usize) -> Result<Vec<JobId>> {
        let keys = self.due(Due::Job, most).await?;
        Ok(keys.iter().filter_map(|key| key.parse().ok()).map(JobId).collect())
    }

    async fn postpone_job(&self, id: JobId, until: Timestamp) -> Result<()> {
        let update = Update::default().set(DUE_AT, time(until)).naming(DUE).when(INDEXED, []);
        self.update(&job_key(id), update).await.map(drop)
    }

    async fn close_job(&self, id: JobId) -> Result<()> {
        let update = Update::default().remove(DUE).remove(DUE_AT);
        self.update(&job_key(id), update.when(INDEXED, [])).await.map(drop)
    }
}

impl<C: Clock> ActiveRepositories for DynamoLedger<C> {
    async fn due_repositories(&self, most: usize) -> Result<Vec<ActiveRepository>> {
        let mut found = Vec::new();
        for key in self.due(Due::Repository, most).await? {
            let item = self.still_due(Due::Repository, &key).await?;
            found.extend(item.as_ref().and_then(repository));
        }
        Ok(found)
    }

    async fn note_look(&self, repository: &ActiveRepository, until: Timestamp) -> Result<()> {
        let mut update = Update::default()
            .set(DUE_AT, time(until))
            .put("listedAt", repository.listed_at.map(time))
            .naming(DUE)
            .when(INDEXED, []);
        for (name, tag) in TAGS.into_iter().zip(&repository.tags) {
            let written = tag.as_ref().map(|tag| match tag.of_none {
                true => text(format!("{OF_NONE}{}", tag.text)),
                false => text(&tag.text),
            });
            update = update.put(name, written);
        }
        let key = Due::Repository.key(&repository.at.to_string().to_lowercase());
        self.update(&key, update).await.map(drop)
    }
}

impl<C: Clock> FailedDeliveries for DynamoLedger<C> {
    async fn position(&self) -> Result<Option<u64>> {
        let item = self.read(POSITION).await?;
        Ok(item.and_then(|item| item.number("position")).map(i64::unsigned_abs))
    }

    async fn advance(&self, position: u64) -> Result<()> {
        let update = Update::default()
            .set("position", number(position))
            .when("attribute_not_exists(#position) OR #position < :position", []);
        self.update(POSITION, update).await.map(drop)
    }

    async fn note_failure(&self, failure: &FailedDelivery) -> Result<()> {
        let update = Update::default()
            .set("deliveryId", number(failure.id))
            .keep("failedAt", time(failure.failed_at))
            .keep(DUE, text(Due::Delivery.kind()))
            .keep(DUE_AT, time(failure.due))
            .set(TTL, ttl(self.clock.now() + DELIVERY_KEPT));
        self.update(&Due::Delivery.key(&failure.guid), update).await.map(drop)
    }

    async fn due_deliveries(&self, most: usize) -> Result<Vec<FailedDelivery>> {
        let mut found = Vec::new();
        for guid in self.due(Due::Delivery, most).await? {
            let item = self.still_due(Due::Delivery, &guid).await?;
            found.extend(item.and_then(|item| {
                Some(FailedDelivery {
                    id: item.number("deliveryId")?.unsigned_abs(),
                    failed_at: item.time("failedAt")?,
                    due: item.time(DUE_AT)?,
                    guid,
                })
            }));
        }
        Ok(found)
    }

    async fn claim(&self, failure: &FailedDelivery, until: Timestamp) -> Result<bool> {
        let update = Update::default()
            .set(DUE_AT, time(until))
            .naming(DUE)
            .when("attribute_exists(#due) AND #dueAt = :seen", [(":seen", time(failure.due))]);
        let claimed = self.update(&Due::Delivery.key(&failure.guid), update).await?;
        Ok(matches!(claimed, Updated::Done(_)))
    }

    async fn settle_delivery(&self, guid: &str) -> Result<()> {
        let update = Update::default().remove(DUE).remove(DUE_AT);
        self.update(&Due::Delivery.key(guid), update.when(INDEXED, [])).await.map(drop)
    }
}

impl<C: Clock> InterruptedRuns for DynamoLedger<C> {
    async fn note_interrupted(
        &self,
        at: &Repository,
        run: i64,
        job: &InterruptedJob,
        due: Timestamp,
    ) -> Result<bool> {
        let lost = format!("{LOST}{}", job.id);
        let update = Update::default()
            .set("owner", text(&at.owner))
            .set("repo", text(&at.name))
            .put("installationId", at.installation.map(number))
            .set("run", number(run))
            .set(&lost, time(job.lost_at))
            .set(&format!("{TIER}{}", job.id), text(&job.tier))
            .set(DUE, text(Due::Rerun.kind()))
            .set(DUE_AT, time(due))
            .set(TTL, ttl(self.clock.now() + RERUN_KEPT))
            .when(&format!("attribute_not_exists(#{lost})"), []);
        let noted = self.update(&rerun_key(at, run), update).await?;
        Ok(matches!(noted, Updated::Done(_)))
    }

    async fn due_reruns(&self, most: usize) -> Result<Vec<InterruptedRun>> {
        let mut found = Vec::new();
        for key in self.due(Due::Rerun, most).await? {
            let item = self.still_due(Due::Rerun, &key).await?;
            found.extend(item.as_ref().and_then(interrupted));
        }
        Ok(found)
    }

    async fn claim_rerun(
        &self,
        run: &InterruptedRun,
        until: Timestamp,
        asked: Option<i64>,
    ) -> Result<bool> {
        let update = Update::default().set(DUE_AT, time(until)).put(ASKED, asked.map(number));
        let claimed = self.update(&rerun_key(&run.at, run.run), still(run, update)).await?;
        Ok(matches!(claimed, Updated::Done(_)))
    }

    async fn settle_rerun(&self, run: &InterruptedRun) -> Result<()> {
        let mut update = Update::default().remove(DUE).remove(DUE_AT).remove(ASKED);
        for job in &run.jobs {
            update = update.remove(&format!("{TIER}{}", job.id));
        }
        self.update(&rerun_key(&run.at, run.run), still(run, update)).await.map(drop)
    }
}

fn rerun_key(at: &Repository, run: i64) -> String {
    Due::Rerun.key(&format!("{}#{run}", at.to_string().to_lowercase()))
}

/// Only if nobody has taken the run since, and no other job of it was noted.
fn still(run: &InterruptedRun, update: Update) -> Update {
    let seen = [(":seen", time(run.due))];
    update.naming(DUE).naming(DUE_AT).when("attribute_exists(#due) AND #dueAt = :seen", seen)
}

/// `None` without what it is known by, and if it has no job that is not settled.
fn interrupted(item: &Item) -> Option<InterruptedRun> {
    let job = |id: &str| {
        Some(InterruptedJob {
            id: JobId(id.parse().ok()?),
            tier: item.text(&format!("{TIER}{id}"))?,
            lost_at: item.time(&format!("{LOST}{id}"))?,
        })
    };
    let mut jobs: Vec<_> = item.names_after(TIER).filter_map(job).collect();
    jobs.sort_by_key(|job| job.id);
    Some(InterruptedRun {
        at: place(item)?,
        run: item.number("run")?,
        asked: item.number(ASKED),
        due: item.time(DUE_AT)?,
        jobs,
    })
}

fn place(item: &Item) -> Option<Repository> {
    Some(Repository {
        owner: item.text("owner")?,
        name: item.text("repo")?,
        installation: item.number("installationId"),
    })
}

fn tag(written: &str) -> Tag {
    let of_none = written.strip_prefix(OF_NONE);
    Tag { text: of_none.unwrap_or(written).to_owned(), of_none: of_none.is_some() }
}

fn repository(item: &Item) -> Option<ActiveRepository> {
    Some(ActiveRepository {
        at: place(item)?,
        listed_at: item.time("listedAt"),
        tags: TAGS.map(|name| item.text(name).as_deref().map(tag)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestClock, Wire};

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    async fn ledger(answers: &[Value]) -> (Wire, DynamoLedger<TestClock>) {
        let wire = Wire::new(answers.iter().map(|answer| (200, answer.clone())));
        let ledger = DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW));
        (wire, ledger)
    }

    fn refused() -> (u16, Value) {
        let kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
        (400, json!({"__type": kind, "message": "The conditional request failed"}))
    }

    #[tokio::test]
    async fn what_is_due_comes_from_the_index_over_all_its_pages() {
        let key = |key: &str| json!({"pk": {"S": key}, "due": {"S": "job"}, "dueAt": {"S": NOW}});
        let (wire, ledger) = ledger(&[
            json!({"Items": [key("job#98765432109876")], "LastEvaluatedKey": key("job#98765432109876")}),
            json!({"Items": [key("job#7"), key("job#x")]}),
        ])
        .await;
        let due = ledger.due_jobs(10).await.unwrap();
        assert_eq!(
            due,
            [JobId(98_765_432_109_876), JobId(7)],
            "and a key that is none is left out"
        );
        let sent = &wire.requests();
        assert_eq!((&sent[0]["#target"], &sent[0]["IndexName"]), (&json!("Query"), &json!("due")));
        assert_eq!(sent[0]["ExpressionAttributeValues"][":now"], json!({"S": NOW}));
        assert_eq!(sent[1]["ExclusiveStartKey"], key("job#98765432109876"));
        assert_eq!((&sent[0]["Limit"], &sent[1]["Limit"]), (&json!(10), &json!(9)));
    }

    #[tokio::test]
    async fn a_job_leaves_the_index_and_never_comes_back_by_being_postponed() {
        let (wire, ledger) = ledger(&[json!({}), json!({})]).await;
        ledger.close_job(JobId(7)).await.unwrap();
        ledger.postpone_job(JobId(7), at(NOW)).await.unwrap();
        let sent = wire.requests();
        assert_eq!(sent[0]["UpdateExpression"], "REMOVE #due, #dueAt");
        assert!(sent[0].get("ExpressionAttributeValues").is_none(), "an empty map is refused");
        assert_eq!(sent[1]["UpdateExpression"], "SET #dueAt = :dueAt");
        for sent in &sent {
            assert_eq!(sent["ConditionExpression"], "attribute_exists(#due)");
            assert_eq!(sent["ExpressionAttributeNames"]["#due"], "due");
            assert_eq!(sent["Key"], json!({"pk": {"S": "job#7"}}));
        }
        let wire = Wire::new([refused(), refused()]);
        let ledger = DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW));
        ledger.close_job(JobId(7)).await.unwrap();
        ledger.postpone_job(JobId(7), at(NOW)).await.unwrap();
    }

    #[tokio::test]
    async fn a_repository_is_read_anew_and_noted_without_becoming_active_by_that() {
        let item = json!({"Item": {"pk": {"S": "repo#acme/widgets"}, "owner": {"S": "Acme"},
            "repo": {"S": "widgets"}, "installationId": {"N": "5"}, "due": {"S": "repo"},
            "dueAt": {"S": NOW}, "listedAt": {"S": NOW}, "tagQueued": {"S": "W/\"1\""},
            "tagWaiting": {"S": "none W/\"2\""}}});
        let mut later = item.clone();
        later["Item"]["dueAt"] = json!({"S": "2026-11-30T12:00:01Z"});
        let key = json!({"pk": {"S": "repo#acme/widgets"}});
        let (wire, ledger) = ledger(&[json!({"Items": [key, key]}), item, later, json!({})]).await;
        let due = ledger.due_repositories(9).await.unwrap();
        assert_eq!(due.len(), 1, "the second was postponed meanwhile");
        assert_eq!(
            (due[0].at.to_string(), due[0].at.installation),
            ("Acme/widgets".into(), Some(5))
        );
        let tag = |text: &str, of_none| Some(Tag { text: text.into(), of_none });
        assert_eq!(due[0].tags, [tag("W/\"1\"", false), None, tag("W/\"2\"", true), None]);
        ledger.note_look(&due[0], at(NOW)).await.unwrap();
        let sent = &wire.requests()[3];
        assert_eq!(sent["Key"], json!({"pk": {"S": "repo#acme/widgets"}}));
        assert_eq!(
            sent["UpdateExpression"],
            "SET #dueAt = :dueAt, #listedAt = :listedAt, #tagQueued = :tagQueued, \
             #tagWaiting = :tagWaiting REMOVE #tagInProgress, #tagPending"
        );
        assert_eq!(sent["ExpressionAttributeValues"][":tagWaiting"], json!({"S": "none W/\"2\""}));
        assert_eq!(sent["ConditionExpression"], "attribute_exists(#due)");
        assert!(sent["ExpressionAttributeValues"].get(":ttl").is_none());
    }

    #[tokio::test]
    async fn a_delivery_is_claimed_by_one_and_what_is_noted_of_it_stays() {
        let failure = FailedDelivery {
            guid: "g-1".into(),
            id: (1 << 62) + 1,
            failed_at: at("2026-11-30T11:00:00Z"),
            due: at(NOW),
        };
        let wire = Wire::new([(200, json!({})), (200, json!({})), refused(), (200, json!({}))]);
        let ledger = DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW));
        ledger.note_failure(&failure).await.unwrap();
        let until = at("2026-11-30T13:00:00Z");
        assert!(ledger.claim(&failure, until).await.unwrap());
        assert!(!ledger.claim(&failure, until).await.unwrap(), "somebody was first");
        ledger.settle_delivery("g-1").await.unwrap();
        let sent = wire.requests();
        let expression = sent[0]["UpdateExpression"].as_str().unwrap();
        for kept in ["failedAt", "due", "dueAt"] {
            assert!(expression.contains(&format!("#{kept} = if_not_exists(#{kept}, :{kept})")));
        }
        let id = &sent[0]["ExpressionAttributeValues"][":deliveryId"];
        assert_eq!(*id, json!({"N": "4611686018427387905"}), "64-bit, to the last digit");
        assert_eq!(sent[1]["ConditionExpression"], "attribute_exists(#due) AND #dueAt = :seen");
        assert_eq!(sent[1]["ExpressionAttributeValues"][":seen"], json!({"S": NOW}));
        assert_eq!(sent[3]["UpdateExpression"], "REMOVE #due, #dueAt");
    }

    #[tokio::test]
    async fn an_interrupted_run_is_one_item_with_all_its_jobs() {
        let item = json!({"pk": {"S": "rerun#acme/widgets#5"}, "owner": {"S": "Acme"},
            "repo": {"S": "widgets"}, "installationId": {"N": "5"}, "run": {"N": "9007199254740993"},
            "lost8": {"S": NOW}, "tier8": {"S": "small"}, "lost7": {"S": NOW}, "tier7": {"S": "big"},
            "lost6": {"S": NOW}, "due": {"S": "rerun"}, "dueAt": {"S": NOW}, "asked": {"N": "1"}});
        let key = json!({"pk": {"S": "rerun#acme/widgets#9007199254740993"}});
        let done = || (200, json!({}));
        let wire = Wire::new([
            done(),
            refused(),
            (200, json!({"Items": [key]})),
            (200, json!({"Item": item})),
            done(),
            refused(),
            done(),
            refused(),
        ]);
        let ledger = DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW));
        let place =
            Repository { owner: "Acme".into(), name: "widgets".into(), installation: Some(5) };
        let job =
            |id, tier: &str| InterruptedJob { id: JobId(id), tier: tier.into(), lost_at: at(NOW) };
        let due = at("2026-11-30T12:03:00Z");
        let big = job(7, "big");
        for new in [true, false] {
            let noted = ledger.note_interrupted(&place, (1 << 53) + 1, &big, due).await;
            assert_eq!(noted.unwrap(), new);
        }
        let runs = ledger.due_reruns(9).await.unwrap();
        let expected = InterruptedRun {
            at: place,
            run: (1 << 53) + 1,
            jobs: vec![job(7, "big"), job(8, "small")],
            asked: Some(1),
            due: at(NOW),
        };
        assert_eq!(runs, [expected], "and the one that is settled is left out");
        assert!(ledger.claim_rerun(&runs[0], due, Some(2)).await.unwrap());
        assert!(!ledger.claim_rerun(&runs[0], due, None).await.unwrap(), "somebody was first");
        ledger.settle_rerun(&runs[0]).await.unwrap();
        ledger.settle_rerun(&runs[0]).await.unwrap();
        let sent = wire.requests();
        assert_eq!(sent[0]["Key"], key);
        assert_eq!(sent[0]["ConditionExpression"], "attribute_not_exists(#lost7)");
        assert_eq!(sent[0]["ExpressionAttributeValues"][":due"], json!({"S": "rerun"}));
        assert_eq!(sent[4]["UpdateExpression"], "SET #dueAt = :dueAt, #asked = :asked");
        assert_eq!(sent[5]["UpdateExpression"], "SET #dueAt = :dueAt REMOVE #asked");
        let settled = "REMOVE #due, #dueAt, #asked, #tier7, #tier8";
        assert_eq!(sent[6]["UpdateExpression"], settled, "and when they were lost stays");
        for sent in &sent[4..] {
            assert_eq!(sent["ConditionExpression"], "attribute_exists(#due) AND #dueAt = :seen");
            assert_eq!(sent["ExpressionAttributeValues"][":seen"], json!({"S": NOW}));
        }
    }

    #[tokio::test]
    async fn the_position_in_the_log_moves_only_on() {
        let wire = Wire::new([
            (200, json!({"Item": {"position": {"N": "9007199254740993"}}})),
            (200, json!({})),
            refused(),
        ]);
        let ledger = DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW));
        assert_eq!(ledger.position().await.unwrap(), Some((1 << 53) + 1));
        ledger.advance(u64::from(u32::MAX)).await.unwrap();
        ledger.advance(1).await.unwrap();
        let condition = "attribute_not_exists(#position) OR #position < :position";
        assert_eq!(wire.requests()[1]["ConditionExpression"], condition);
    }
}
