//! The ledger port over DynamoDB: one table, key `pk`.
//!
//! | `pk` | attributes |
//! | --- | --- |
//! | `job#<id>` | `jobUrl`, `runnerLabels` (comma-joined), `runnerName` (the latest), `runnerRank` (its place among the job's runners), `tier`, `owner`, `repo`, `queuedAt`, `cancelledAt`, `ranOn`, `due`, `dueAt`, `ttl` |
//! | `runner#<name>` | `runnerId`, `handedOver`, `jobId` (a number, or the text `taken`), `jobRepo` (`owner/name`), `accountedAt`, `endedAt`, `interruptedAt`, `reportedAt`, `charged<instance id>`, `ttl` |
//! | `repo#<owner/name>`, lower case | `owner`, `repo`, `installationId`, `listedAt`, `tagQueued`, `tagInProgress`, `tagWaiting`, `tagPending`, `due`, `dueAt`, `ttl` |
//! | `rerun#<owner/name>#<run>`, lower case | `owner`, `repo`, `installationId`, `run`, `lost<job id>`, `tier<job id>`, `asked`, `due`, `dueAt`, `ttl` |
//! | `delivery#<guid>` | `deliveryId`, `failedAt`, `due`, `dueAt`, `ttl` |
//! | `position#deliveries` | `position` |
//! | `blocked#<owner>`, `blocked#<owner, or owner/name>/<tier>`, lower case | `until`, `reason`, `ttl` |
//!
//! Every write is an UpdateItem that sets its own attributes and keeps all others, so that writers don't
//! undo each other and every write can be repeated.

use std::collections::HashMap;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use ostler_core::Result;
use ostler_core::job::{JobId, Repository, RunnerInput};
use ostler_core::labels::Labels;
use ostler_core::names::Lineage;
use ostler_core::ports::{Block, Clock, JobRecord, Ledger, Ran, RunnerRecord};
use ostler_core::time::Timestamp;

use crate::agenda::{DUE, DUE_AT, Due};
use crate::item::{Item, KEY, TTL, Update, number, text, time, ttl};
use crate::sdk_error;

/// `jobId` of a runner that ran a job which we don't know.
const TAKEN: &str = "taken";

/// Life of a runner's item of which nothing but the handover was recorded: the longest lifetime of a tier
/// (5 days) and a day.
const RUNNER_LIFE: Duration = Duration::from_secs(6 * 86_400);

/// Longest text of a block's reason.
const MAX_REASON: usize = 500;

/// Jobs, runners and blocks in one table.
pub struct DynamoLedger<C> {
    pub(crate) client: Client,
    pub(crate) table: String,
    pub(crate) clock: C,
}

/// What an update answered.
pub(crate) enum Updated {
    /// It was made; the item after it, where that was asked for.
    Done(HashMap<String, AttributeValue>),
    /// Its condition did not hold; the item as it is, where DynamoDB says it.
    Refused(Option<HashMap<String, AttributeValue>>),
}

impl<C: Clock> DynamoLedger<C> {
    /// Over the table of that name.
    pub fn new(config: &SdkConfig, table: &str, clock: C) -> Self {
        Self { client: Client::new(config), table: table.to_owned(), clock }
    }

    pub(crate) async fn read(&self, key: &str) -> Result<Option<Item>> {
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key(KEY, text(key))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| sdk_error(&format!("read {key} in the ledger"), error))?;
        Ok(answer.item.and_then(|item| Item::living(item, self.clock.now())))
    }

    pub(crate) async fn update(&self, key: &str, update: Update) -> Result<Updated> {
        self.send(key, update.on(self.client.update_item())).await
    }

    /// Sends an update of that item.
    pub(crate) async fn send(&self, key: &str, update: UpdateItemFluentBuilder) -> Result<Updated> {
        let sent = update
            .table_name(&self.table)
            .key(KEY, text(key))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match sent {
            Ok(answer) => Ok(Updated::Done(answer.attributes.unwrap_or_default())),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refused)) => {
                    Ok(Updated::Refused(refused.item().cloned()))
                }
                _ => Err(sdk_error(&format!("update {key} in the ledger"), error)),
            },
        }
    }
}

impl<C: Clock> Ledger for DynamoLedger<C> {
    async fn record_job(
        &self,
        name: &str,
        input: &RunnerInput,
        due: Timestamp,
        expires: Timestamp,
    ) -> Result<JobRecord> {
        let id = JobId(input.job_id);
        let update = Update::default()
            .set("runnerName", text(name))
            .set("runnerRank", number(Lineage::parse(name).rank()))
            .set(TTL, ttl(expires))
            .set(DUE, text(Due::Job.kind()))
            .set(DUE_AT, time(due))
            .keep_text("jobUrl", &input.job_url)
            .keep_text("runnerLabels", &input.labels)
            .keep_text("tier", &input.provider)
            .keep_text("owner", &input.owner)
            .keep_text("repo", &input.repo)
            .keep_text("queuedAt", input.queued_at.as_deref().unwrap_or_default())
            .when(
                "attribute_not_exists(#runnerRank) OR #runnerRank <= :runnerRank OR #ttl <= :now",
                [(":now", number(self.clock.now().seconds()))],
            );
        let key = job_key(id);
        let item = match self.update(&key, update).await? {
            Updated::Done(item) | Updated::Refused(Some(item)) => {
                Item::living(item, self.clock.now())
            }
            // A table that does not say what was ahead is asked.
            Updated::Refused(None) => self.read(&key).await?,
        };
        Ok(item.map(|item| job_record(&item)).unwrap_or_default())
    }

    async fn note_repository(&self, at: &Repository, expires: Timestamp) -> Result<()> {
        let update = Update::default()
            .set("owner", text(&at.owner))
            .set("repo", text(&at.name))
            .put("installationId", at.installation.map(number))
            .set(DUE, text(Due::Repository.kind()))
            .keep(DUE_AT, time(self.clock.now()))
            .set(TTL, ttl(expires));
        self.update(&Due::Repository.key(&at.to_string().to_lowercase()), update).await.map(drop)
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        Ok(self.read(&job_key(id)).await?.map(|item| job_record(&item)))
    }

    async fn cancel_job(&self, id: JobId, at: Timestamp, expires: Timestamp) -> Result<JobRecord> {
        let update = Update::default().keep("cancelledAt", time(at)).set(TTL, ttl(expires));
        Ok(match self.update(&job_key(id), update).await? {
            Updated::Done(item) => Item::living(item, self.clock.now()),
            Updated::Refused(_) => None,
        }
        .map(|item| job_record(&item))
        .unwrap_or_default())
    }

    async fn note_ran(&self, id: JobId, runner: &str, expires: Timestamp) -> Result<()> {
        let update = Update::default()
            .keep("ranOn", text(runner))
            .set(TTL, ttl(expires))
            .naming(KEY)
            .when("attribute_exists(#pk)", []);
        self.update(&job_key(id), update).await.map(drop)
    }

    async fn runner(&self, name: &str) -> Result<RunnerRecord> {
        let item = self.read(&runner_key(name)).await?;
        Ok(item.map(|item| runner_record(&item)).unwrap_or_default())
    }

    async fn record_registration(
        &self,
        name: &str,
        runner_id: i64,
        expires: Timestamp,
    ) -> Result<()> {
        let update = Update::default()
            .set("runnerId", number(runner_id))
            .set(TTL, ttl(expires))
            .when("attribute_not_exists(#runnerId) OR #runnerId <= :runnerId", []);
        if let Updated::Refused(_) = self.update(&runner_key(name), update).await? {
            tracing::info!(
                runner = name,
                runner_id,
                "it was registered anew meanwhile; that stays"
            );
        }
        Ok(())
    }

    async fn record_handover(&self, name: &str) -> Result<()> {
        let update = Update::default()
            .set("handedOver", AttributeValue::Bool(true))
            .keep(TTL, ttl(self.clock.now() + RUNNER_LIFE));
        self.update(&runner_key(name), update).await.map(drop)
    }

    async fn account(
        &self,
        name: &str,
        ran: &Ran,
        at: Timestamp,
        expires: Timestamp,
    ) -> Result<RunnerRecord> {
        let update = Update::default().keep("accountedAt", time(at)).set(TTL, ttl(expires));
        let update = match ran {
            Ran::Unknown => return self.runner(name).await,
            Ran::Taken => update
                .set("jobId", text(TAKEN))
                .when("attribute_not_exists(#jobId) OR #jobId = :jobId", []),
            Ran::Job { id, repository } => {
                let update = match repository {
                    Some(repository) => update.set("jobRepo", text(repository)),
                    None => update,
                };
                update.set("jobId", number(id)).when(
                    "attribute_not_exists(#jobId) OR #jobId = :taken OR #jobId = :jobId",
                    [(":taken", text(TAKEN))],
                )
            }
        };
        let item = match self.update(&runner_key(name), update).await? {
            Updated::Done(item) => Some(item),
            Updated::Refused(item) => {
                tracing::info!(
                    runner = name,
                    ?ran,
                    "the runner is accounted for already; that stays"
                );
                item
            }
        };
        match item.and_then(|item| Item::living(item, self.clock.now())) {
            Some(item) => Ok(runner_record(&item)),
            // A table that does not say what is there is asked.
            None => self.runner(name).await,
        }
    }

    async fn end_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        let update = Update::default().keep("endedAt", time(at)).set(TTL, ttl(expires));
        self.update(&runner_key(name), update).await.map(drop)
    }

    async fn interrupt_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        let update = Update::default().keep("interruptedAt", time(at)).set(TTL, ttl(expires));
        self.update(&runner_key(name), update).await.map(drop)
    }

    async fn report_runner(&self, name: &str, at: Timestamp, expires: Timestamp) -> Result<()> {
        let update = Update::default().keep("reportedAt", time(at)).set(TTL, ttl(expires));
        self.update(&runner_key(name), update).await.map(drop)
    }

    async fn charge_machine(
        &self,
        name: &str,
        instance: &str,
        at: Timestamp,
        expires: Timestamp,
    ) -> Result<bool> {
        // One attribute for each machine: a runner whose registration is refused gets another.
        let charged = format!("charged{}", instance.replace('-', ""));
        let update = Update::default()
            .set(&charged, number(at.millis()))
            .set(TTL, ttl(expires))
            .when(&format!("attribute_not_exists(#{charged}) OR #{charged} = :{charged}"), []);
        Ok(matches!(self.update(&runner_key(name), update).await?, Updated::Done(_)))
    }

    async fn blocked(&self, whose: &str) -> Result<Option<Block>> {
        let Some(item) = self.read(&block_key(whose)).await? else { return Ok(None) };
        let Some(until) = item.time("until").filter(|until| *until > self.clock.now()) else {
            return Ok(None);
        };
        Ok(Some(Block { until, reason: item.text("reason").unwrap_or_default() }))
    }

    async fn block(&self, whose: &str, block: &Block) -> Result<()> {
        let reason = &block.reason[..block.reason.floor_char_boundary(MAX_REASON)];
        // The longest wait counts: another runner of theirs may have been told less. Times are
        // texts of one form, so that their order is that of the texts.
        let update = Update::default()
            .set("until", time(block.until))
            .set("reason", text(reason))
            .set(TTL, ttl(block.until))
            .when("attribute_not_exists(#until) OR #until <= :until", []);
        self.update(&block_key(whose), update).await.map(drop)
    }
}

fn job_record(item: &Item) -> JobRecord {
    JobRecord {
        runner_name: item.text("runnerName"),
        runner_labels: item.text("runnerLabels").map(|labels| Labels::from_joined(&labels)),
        owner: item.text("owner"),
        repo: item.text("repo"),
        cancelled_at: item.time("cancelledAt"),
        ran_on: item.text("ranOn"),
    }
}

fn runner_record(item: &Item) -> RunnerRecord {
    RunnerRecord {
        runner_id: item.number("runnerId"),
        handed_over: item.is_on("handedOver"),
        ran: match item.number("jobId") {
            Some(id) => Ran::Job { id: JobId(id), repository: item.text("jobRepo") },
            None if item.text("jobId").is_some() => Ran::Taken,
            None => Ran::Unknown,
        },
        ended_at: item.time("endedAt"),
        interrupted_at: item.time("interruptedAt"),
        reported_at: item.time("reportedAt"),
    }
}

pub(crate) fn job_key(id: JobId) -> String {
    Due::Job.key(&id.to_string())
}

fn runner_key(name: &str) -> String {
    format!("runner#{name}")
}

/// GitHub compares logins without regard to case.
fn block_key(whose: &str) -> String {
    format!("blocked#{}", whose.to_lowercase())
}

#[cfg(test)]
mod tests {
    use ostler_core::Error;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{TestClock, Wire};

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    async fn ledger(wire: &Wire) -> DynamoLedger<TestClock> {
        DynamoLedger::new(&wire.config().await, "ledger", TestClock::at(NOW))
    }

    async fn with_item(item: Value) -> DynamoLedger<TestClock> {
        ledger(&Wire::new([(200, json!({ "Item": item }))])).await
    }

    fn refused(item: Option<Value>) -> (u16, Value) {
        let kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
        let mut body = json!({"__type": kind, "message": "The conditional request failed"});
        if let Some(item) = item {
            body["Item"] = item;
        }
        (400, body)
    }

    fn input() -> RunnerInput {
        RunnerInput {
            owner: "Acme".into(),
            repo: "widgets".into(),
            job_id: 42,
            job_url: "https://github.com/Acme/widgets/actions/runs/1/job/42".into(),
            installation_id: 5,
            job_labels: "self-hosted".into(),
            provider: "linux-x64".into(),
            labels: "self-hosted,linux".into(),
            max_idle_seconds: 300,
            queued_at: Some("2026-11-30T11:59:00Z".into()),
        }
    }

    #[tokio::test]
    async fn recording_a_job_moves_its_runner_only_forward_and_keeps_the_rest() {
        let wire = Wire::new([(
            200,
            json!({"Attributes": {
            "pk": {"S": "job#42"}, "runnerName": {"S": "w-42-aa-r1"}, "runnerLabels": {"S": "linux,x64"},
            "owner": {"S": "Acme"}, "repo": {"S": "widgets"}, "ttl": {"N": "1796299200"},
            "cancelledAt": {"S": "2026-11-30T11:59:30Z"}}}),
        )]);
        let expires = at("2026-12-04T12:00:00.5Z");
        let record =
            ledger(&wire).await.record_job("w-42-aa-r1", &input(), at(NOW), expires).await.unwrap();
        assert_eq!(record.runner_name.as_deref(), Some("w-42-aa-r1"));
        assert_eq!(record.cancelled_at, Some(at("2026-11-30T11:59:30Z")));
        assert_eq!(record.runner_labels.unwrap().to_string(), "linux,x64");
        let sent = &wire.requests()[0];
        assert_eq!(sent["Key"], json!({"pk": {"S": "job#42"}}));
        assert_eq!(
            sent["ConditionExpression"],
            "attribute_not_exists(#runnerRank) OR #runnerRank <= :runnerRank OR #ttl <= :now"
        );
        let values = &sent["ExpressionAttributeValues"];
        assert_eq!(values[":runnerRank"], json!({"N": "1"}));
        assert_eq!(values[":ttl"], json!({"N": (expires.seconds() + 1).to_string()}));
        assert_eq!(values[":now"], json!({"N": at(NOW).seconds().to_string()}));
        assert_eq!(values[":queuedAt"], json!({"S": "2026-11-30T11:59:00Z"}));
        // The job is open: in the index, to be looked at then.
        assert_eq!(
            (&values[":due"], &values[":dueAt"]),
            (&json!({"S": "job"}), &json!({"S": NOW}))
        );
        let expression = sent["UpdateExpression"].as_str().unwrap();
        for kept in ["jobUrl", "runnerLabels", "tier", "owner", "repo", "queuedAt"] {
            assert!(expression.contains(&format!("#{kept} = if_not_exists(#{kept}, :{kept})")));
        }
        assert_eq!(sent["ReturnValues"], "ALL_NEW");
        assert_eq!(sent["ReturnValuesOnConditionCheckFailure"], "ALL_OLD");
    }

    #[tokio::test]
    async fn a_runner_that_is_ahead_is_answered_instead() {
        let ahead = json!({"runnerName": {"S": "w-42-aa-q1"}, "runnerRank": {"N": "4"}});
        let ledger_1 = ledger(&Wire::new([refused(Some(ahead.clone()))])).await;
        let record = ledger_1.record_job("w-42-aa", &input(), at(NOW), at(NOW)).await.unwrap();
        assert_eq!(record.runner_name.as_deref(), Some("w-42-aa-q1"));
        let asked = Wire::new([refused(None), (200, json!({ "Item": ahead }))]);
        let record =
            ledger(&asked).await.record_job("w-42-aa", &input(), at(NOW), at(NOW)).await.unwrap();
        assert_eq!(
            record.runner_name.as_deref(),
            Some("w-42-aa-q1"),
            "an emulator without ALL_OLD"
        );
    }

    #[tokio::test]
    async fn reads_are_consistent_and_an_item_past_its_ttl_is_not_there() {
        let wire = Wire::new([(
            200,
            json!({"Item": {"runnerName": {"S": "x"}, "ttl": {"N": "1796040000"}}}),
        )]);
        assert_eq!(ledger(&wire).await.job(JobId(42)).await.unwrap(), None);
        assert_eq!(
            wire.requests(),
            [json!({"#target": "GetItem", "TableName": "ledger", "Key": {"pk": {"S": "job#42"}},
                "ConsistentRead": true})]
        );
        let none = ledger(&Wire::new([(200, json!({}))])).await;
        assert_eq!(none.job(JobId(1)).await.unwrap(), None);
        assert_eq!(none.runner("w-1-aa").await.unwrap(), RunnerRecord::default());
        assert_eq!(none.blocked("acme").await.unwrap(), None);
    }

    #[tokio::test]
    async fn i6_a_failed_read_is_an_error_and_never_absence() {
        let wire =
            Wire::new([(400, json!({"__type": "ResourceNotFoundException", "message": "table"}))]);
        assert!(matches!(ledger(&wire).await.job(JobId(1)).await, Err(Error::Permanent(_))));
        let wire = Wire::new([(500, json!({"__type": "InternalServerError"}))]);
        assert!(matches!(ledger(&wire).await.runner("x").await, Err(Error::Transient(_))));
        assert_eq!(wire.requests().len(), 3, "the SDK's own three attempts");
    }

    #[tokio::test]
    async fn what_a_runner_ran_is_read_in_every_form() {
        let job = |id, repository: Option<&str>| Ran::Job {
            id: JobId(id),
            repository: repository.map(str::to_owned),
        };
        for (attributes, ran) in [
            (json!({}), Ran::Unknown),
            (json!({"jobId": {"S": "taken"}}), Ran::Taken),
            (json!({"jobId": {"N": "98765432109876"}}), job(98_765_432_109_876, None)),
            (json!({"jobId": {"S": "7"}, "jobRepo": {"S": "acme/w"}}), job(7, Some("acme/w"))),
        ] {
            let record = with_item(attributes).await.runner("w-1-aa").await.unwrap();
            assert_eq!(record.ran, ran);
        }
        let record = with_item(json!({"runnerId": {"N": "9"}, "handedOver": {"BOOL": true},
            "endedAt": {"S": NOW}, "reportedAt": {"S": NOW}}))
        .await
        .runner("w-1-aa")
        .await
        .unwrap();
        assert_eq!(
            record,
            RunnerRecord {
                runner_id: Some(9),
                handed_over: true,
                ran: Ran::Unknown,
                ended_at: Some(at(NOW)),
                interrupted_at: None,
                reported_at: Some(at(NOW)),
            }
        );
    }

    /// As cdk-github-runners 0.17 writes them.
    #[tokio::test]
    async fn items_of_another_system_are_understood() {
        let job = json!({"pk": {"S": "job#57012345678"}, "ttl": {"N": "1796299200"},
            "jobUrl": {"S": "https://github.com/acme/widgets/actions/runs/1/job/57012345678"},
            "runnerLabels": {"S": "small,linux,x64"}});
        let record = with_item(job).await.job(JobId(57_012_345_678)).await.unwrap().unwrap();
        let labels = Some(Labels::from_joined("small,linux,x64"));
        assert_eq!(record, JobRecord { runner_labels: labels, ..JobRecord::default() });
        let ran =
            |attributes| async { with_item(attributes).await.runner("w-1").await.unwrap().ran };
        let runner = json!({"pk": {"S": "runner#w-1"}, "ttl": {"N": "1796299200"}});
        assert_eq!(ran(runner.clone()).await, Ran::Unknown, "a line alone told them");
        let mut signed = runner;
        signed["jobId"] = json!({"N": "57012345678"});
        let job = Ran::Job { id: JobId(57_012_345_678), repository: None };
        assert_eq!(ran(signed).await, job);
    }

    #[tokio::test]
    async fn a_jobs_id_replaces_taken_and_nothing_replaces_a_jobs_id() {
        let item = |job: Value| json!({"jobId": job, "runnerId": {"N": "9"}});
        let eight = json!({"N": "8"});
        let wire = Wire::new([
            (200, json!({"Attributes": item(json!({"S": "taken"}))})),
            (200, json!({"Attributes": item(json!({"N": "7"}))})),
            refused(Some(item(eight.clone()))),
            refused(None),
            (200, json!({"Item": item(eight)})),
            (200, json!({})),
        ]);
        let ledger = ledger(&wire).await;
        let ran = |id, repository: Option<&str>| Ran::Job {
            id: JobId(id),
            repository: repository.map(str::to_owned),
        };
        let job = ran(7, Some("acme/w"));
        for (noted, is) in [
            (&Ran::Taken, Ran::Taken),
            (&job, ran(7, None)),
            (&job, ran(8, None)),
            // A table that does not say what is there is asked.
            (&job, ran(8, None)),
            (&Ran::Unknown, Ran::Unknown),
        ] {
            let record = ledger.account("w-1-aa", noted, at(NOW), at(NOW)).await.unwrap();
            assert_eq!(record.ran, is);
        }
        let sent = wire.requests();
        let reads = sent.iter().filter(|sent| sent["#target"] == "GetItem").count();
        assert_eq!((sent.len(), reads), (6, 2), "unknown is nothing to write");
        assert_eq!(
            sent[0]["ConditionExpression"],
            "attribute_not_exists(#jobId) OR #jobId = :jobId"
        );
        assert_eq!(sent[0]["ExpressionAttributeValues"][":jobId"], json!({"S": "taken"}));
        assert_eq!(
            sent[1]["ConditionExpression"],
            "attribute_not_exists(#jobId) OR #jobId = :taken OR #jobId = :jobId"
        );
        let values = &sent[1]["ExpressionAttributeValues"];
        assert_eq!(
            (&values[":jobId"], &values[":taken"], &values[":jobRepo"]),
            (&json!({"N": "7"}), &json!({"S": "taken"}), &json!({"S": "acme/w"}))
        );
    }

    #[tokio::test]
    async fn repeated_notes_keep_the_first_time() {
        let wire = Wire::new([(200, json!({}))]);
        let ledger = ledger(&wire).await;
        ledger.cancel_job(JobId(42), at(NOW), at(NOW)).await.unwrap();
        ledger.end_runner("w-1-aa", at(NOW), at(NOW)).await.unwrap();
        ledger.record_handover("w-1-aa").await.unwrap();
        ledger.record_registration("w-1-aa", 9, at(NOW)).await.unwrap();
        let expressions: Vec<_> = wire
            .requests()
            .iter()
            .map(|sent| sent["UpdateExpression"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            expressions,
            [
                "SET #cancelledAt = if_not_exists(#cancelledAt, :cancelledAt), #ttl = :ttl",
                "SET #endedAt = if_not_exists(#endedAt, :endedAt), #ttl = :ttl",
                "SET #handedOver = :handedOver, #ttl = if_not_exists(#ttl, :ttl)",
                "SET #runnerId = :runnerId, #ttl = :ttl",
            ]
        );
    }

    #[tokio::test]
    async fn the_longest_block_of_an_owner_counts_until_it_is_over() {
        let wire = Wire::new([(200, json!({})), refused(None)]);
        let block = Block { until: at("2026-11-30T12:30:00Z"), reason: "é".repeat(600) };
        let ledger = ledger(&wire).await;
        ledger.block("Acme", &block).await.unwrap();
        ledger.block("Acme", &block).await.unwrap();
        let sent = &wire.requests()[0];
        assert_eq!(sent["Key"], json!({"pk": {"S": "blocked#acme"}}));
        assert_eq!(sent["ConditionExpression"], "attribute_not_exists(#until) OR #until <= :until");
        let live =
            with_item(json!({"until": {"S": "2026-11-30T12:30:00Z"}, "reason": {"S": "rate"}}))
                .await;
        assert_eq!(
            live.blocked("ACME").await.unwrap(),
            Some(Block { until: at("2026-11-30T12:30:00Z"), reason: "rate".into() })
        );
        let over = with_item(json!({"until": {"S": NOW}})).await;
        assert_eq!(over.blocked("acme").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_machine_is_charged_by_whoever_notes_it_first_and_by_its_own_repetition() {
        let wire = Wire::new([(200, json!({})), refused(None)]);
        let ledger = ledger(&wire).await;
        for first in [true, false] {
            let charged = ledger.charge_machine("w-1-aa", "i-0abc", at(NOW), at(NOW)).await;
            assert_eq!(charged.unwrap(), first);
        }
        let sent = &wire.requests()[0];
        assert_eq!(sent["Key"], json!({"pk": {"S": "runner#w-1-aa"}}));
        assert_eq!(sent["UpdateExpression"], "SET #chargedi0abc = :chargedi0abc, #ttl = :ttl");
        let once = "attribute_not_exists(#chargedi0abc) OR #chargedi0abc = :chargedi0abc";
        assert_eq!(sent["ConditionExpression"], once);
    }
}
