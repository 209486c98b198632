//! Reports that are judged: a runner that ran its own job, and every other outcome that a judgement has. GitHub's
//! model is told which runner takes which job; executions and what other functions would have noted in the ledger are
//! made behind the counts.

use std::io::Write;

use anyhow::{Context as _, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use ostler_core::job::JobId;
use ostler_core::report::Report;
use ostler_sim::github::{JobSpec, Poll, Scope, Status};
use serde_json::{Value, json};

use super::Bench;
use super::figures::Kind;
use super::life::{LABELS, REPOSITORY};
use crate::github::refused;

/// A repository of the organisation where the App is not installed.
pub const STRANGE: &str = "acme/elsewhere";
/// The organisation's login.
pub(super) const ORGANIZATION: &str = "acme";
/// What no tier has.
pub(super) const NO_TIER: &str = "no-tier";
/// Labels of a runner that can stand in for the other one of its two tiers, and of one that can't.
const BIG: [&str; 2] = ["self-hosted", "big"];
const LITTLE: [&str; 2] = ["self-hosted", "uncovered"];
/// Lines of the large delivery, each of another runner: as much as a hostile job could print, though CloudWatch Logs
/// puts at most 6 MB (packed) into one.
const MANY: usize = 10_000;
/// Each takes a good second, of which the function works a tenth: more of them say nothing new.
const MANY_MEASURED: usize = 20;
/// The attribute by which DynamoDB deletes: far from now.
const FAR: i64 = 4_102_444_800;

/// A job, and the runner that was started for it.
#[derive(Clone)]
pub(super) struct Mine {
    pub(super) job: u64,
    pub(super) runner: String,
    pub(super) labels: Vec<String>,
}

impl Mine {
    /// The same runner with another label.
    pub(super) fn able_to(&self, label: &str) -> Self {
        let labels = self.labels.iter().cloned().chain([label.to_owned()]).collect();
        Self { labels, ..self.clone() }
    }
}

impl Bench<'_> {
    /// Every judgement but those of a job that goes well.
    pub(super) async fn thefts(&mut self) -> anyhow::Result<()> {
        self.own_job_by_line().await?;
        self.shuffles().await?;
        self.stolen().await?;
        self.invisible().await?;
        if self.measured(Kind::ManyLines) == MANY_MEASURED {
            return Ok(());
        }
        let lines: Vec<String> =
            (0..MANY).map(|n| line(&format!("runner-{n}"), REPOSITORY, 9)).collect();
        self.measure(Kind::ManyLines, &delivery(&lines)?).await?;
        Ok(())
    }

    /// The reports of a runner that runs its own job: its line on the way to the queue, then both.
    pub(super) async fn own_job(&mut self, runner: &str, job: u64) -> anyhow::Result<()> {
        let (repository, run) = self.place_of(job)?;
        self.measure(Kind::Line, &delivery(&[line(runner, &repository, run)])?).await?;
        let (signed, line) = (self.signed(runner, job)?, self.line(runner, job)?);
        self.judge(Kind::OwnJob, &signed, 1, true).await?;
        self.judge(Kind::OwnJobAgain, &line, 1, true).await
    }

    async fn own_job_by_line(&mut self) -> anyhow::Result<()> {
        let mine = self.accept(&LABELS).await?;
        let session = self.takes(&mine, mine.job).await?;
        let found = self.line(&mine.runner, mine.job)?;
        let made_up = Report { workflow_id: 1, ..found.clone() };
        self.judge(Kind::NoSuchRun, &made_up, 1, true).await?;
        self.judge(Kind::OwnJobByLine, &found, 1, true).await?;
        let nobodys = self.signed("nobodys-runner", mine.job)?;
        self.judge(Kind::NobodysRunner, &nobodys, 1, true).await?;
        self.over(&session, mine.job)
    }

    async fn shuffles(&mut self) -> anyhow::Result<()> {
        let (one, other) = (self.accept(&LABELS).await?, self.accept(&LABELS).await?);
        let session = self.takes(&one, other.job).await?;
        let signed = self.signed(&one.runner, other.job)?;
        self.judge(Kind::Shuffled, &signed, 1, true).await?;
        self.over(&session, other.job)?;
        self.give_up(one.job)?;

        let (big, little) = (self.accept(&BIG).await?, self.accept(&LITTLE).await?);
        let session = self.takes(&big, little.job).await?;
        let signed = self.signed(&big.runner, little.job)?;
        self.judge(Kind::NotCovered, &signed, 1, true).await?;
        self.replaced(&big).await?;
        self.over(&session, little.job)?;
        self.give_up(big.job)?;

        let mine = self.accept(&LABELS).await?;
        let young = self.world.github.post_job(&spec(REPOSITORY, &LABELS)).map_err(refused)?;
        let session = self.takes(&mine, young).await?;
        let signed = self.signed(&mine.runner, young)?;
        self.judge(Kind::TooYoung, &signed, 1, false).await?;
        self.over(&session, young)?;
        self.give_up(mine.job)
    }

    async fn stolen(&mut self) -> anyhow::Result<()> {
        let mine = self.accept(&LABELS).await?;
        let signed = self.steal(&mine).await?;
        self.judge(Kind::Stolen, &signed, 1, true).await?;
        self.replaced(&mine).await?;
        self.give_up(mine.job)?;

        // All its replacements were taken too, by jobs that nobody sees. They were started with another input, so that
        // a start by one of these names is no repetition of theirs.
        let mine = self.accept(&LABELS).await?;
        let mut input = self.input(&mine.runner).await?;
        input["maxIdleSeconds"] = json!(1);
        for replacement in 1..=3 {
            let name = format!("{}-r{replacement}", mine.runner);
            self.begin(&name, &input).await?;
            self.note(&format!("runner#{name}"), json!({"jobId": {"S": "taken"}})).await?;
        }
        let signed = self.steal(&mine).await?;
        self.judge(Kind::UsedUp, &signed, 1, true).await?;
        self.give_up(mine.job)
    }

    /// A job that no tier takes runs on that runner. Gives GitHub's word about it.
    async fn steal(&self, mine: &Mine) -> anyhow::Result<Report> {
        let thief = spec(REPOSITORY, &["self-hosted", NO_TIER]);
        let thief = self.world.github.post_job(&thief).map_err(refused)?;
        let session = self.takes(&mine.able_to(NO_TIER), thief).await?;
        self.over(&session, thief)?;
        self.signed(&mine.runner, thief)
    }

    pub(super) async fn replaced(&self, mine: &Mine) -> anyhow::Result<()> {
        let name = format!("{}-r1", mine.runner);
        let arn = self.machine_arn.replace(":stateMachine:", ":execution:");
        let input = json!({"executionArn": format!("{arn}:{name}")});
        let target = "AWSStepFunctions.DescribeExecution";
        let found = self.world.edge.moto().json("states", target, &input).await;
        found.map(drop).with_context(|| format!("{} was not replaced", mine.runner))
    }

    async fn invisible(&mut self) -> anyhow::Result<()> {
        let mine = self.accept(&LABELS).await?;
        let thief = self.world.github.post_job(&spec(STRANGE, &LABELS)).map_err(refused)?;
        let session = self.takes(&mine, thief).await?;
        let line = self.line(&mine.runner, thief)?;
        self.judge(Kind::InvisibleFirst, &line, 1, false).await?;
        self.judge(Kind::Invisible, &line, 2, true).await?;
        self.replaced(&mine).await?;
        self.over(&session, thief)?;
        self.give_up(mine.job)
    }

    /// Has a report judged; `done` says whether it may not come again.
    async fn judge(
        &mut self,
        kind: Kind,
        report: &Report,
        receives: u32,
        done: bool,
    ) -> anyhow::Result<()> {
        let event = records(&[(report.group(), serde_json::to_value(report)?)], receives);
        let answer = self.measure(kind, &event).await?;
        let failures = answer["batchItemFailures"].as_array().map(Vec::len);
        ensure!(failures == Some(usize::from(!done)), "{} was answered {answer}", kind.name());
        Ok(())
    }

    /// A job that the webhook takes, as its launch records it.
    async fn accept(&mut self, labels: &[&str]) -> anyhow::Result<Mine> {
        let job = self.world.github.post_job(&spec(REPOSITORY, labels)).map_err(refused)?;
        let queued = self.deliveries.of_job(job, "queued").await?;
        let runner = self.webhook(Kind::Queued, &queued, 202, "").await?;
        self.accepted(job, runner).await
    }

    /// Records a job that was taken, as its launch does.
    pub(super) async fn accepted(&self, job: u64, runner: String) -> anyhow::Result<Mine> {
        let input = self.input(&runner).await?;
        let joined = input["labels"].as_str().unwrap_or("");
        let item = json!({
            "runnerName": {"S": runner}, "runnerRank": {"N": "0"}, "runnerLabels": {"S": joined},
            "owner": {"S": input["owner"]}, "repo": {"S": input["repo"]},
        });
        self.note(&format!("job#{job}"), item).await?;
        let labels = joined.split(',').map(str::to_owned).collect();
        Ok(Mine { job, runner, labels })
    }

    /// The runner comes online, and GitHub gives it that job and no other. Gives its session.
    pub(super) async fn takes(&self, mine: &Mine, job: u64) -> anyhow::Result<String> {
        let (id, session) = self.world.github.with_model(|model, now| {
            let scope = Scope::Organization(ORGANIZATION.into());
            let jit = model
                .generate_jit(now, &scope, &mine.runner, Some(1), &mine.labels)
                .map_err(refused)?;
            let session = model.connect(now, &jit.encoded).map_err(refused)?.id;
            let queued = |other: &&ostler_sim::github::Job| {
                other.id != job && other.status == Status::Queued
            };
            let others: Vec<u64> = model.all_jobs().filter(queued).map(|other| other.id).collect();
            others.iter().for_each(|other| model.hold(*other, Status::Pending));
            let polled = model.poll_job(now, &session).map_err(refused)?;
            others.iter().for_each(|other| model.hold(*other, Status::Queued));
            match polled {
                Poll::Job(given) if given.job_id == job => anyhow::Ok((jit.runner.id, session)),
                other => bail!("{} was not given job {job}, but {other:?}", mine.runner),
            }
        })?;
        let item = json!({"runnerId": {"N": id.to_string()}});
        self.note(&format!("runner#{}", mine.runner), item).await?;
        Ok(session)
    }

    pub(super) fn over(&self, session: &str, job: u64) -> anyhow::Result<()> {
        let completed = |model: &mut ostler_sim::github::GitHub, now| {
            model.complete(now, session, job, "success")
        };
        self.world.github.with_model(completed).map_err(refused)
    }

    /// Nothing waits for a runner any more that nobody boots.
    pub(super) fn give_up(&self, job: u64) -> anyhow::Result<()> {
        self.world.github.cancel_job(job).map_err(refused)
    }

    fn place_of(&self, job: u64) -> anyhow::Result<(String, i64)> {
        self.world.github.with_model(|model, _| {
            let found = model.all_jobs().find(|found| found.id == job);
            let found = found.with_context(|| format!("job {job} is not there"))?;
            Ok((found.repository.clone(), i64::try_from(found.run_id)?))
        })
    }

    fn line(&self, runner: &str, job: u64) -> anyhow::Result<Report> {
        let (repo, workflow_id) = self.place_of(job)?;
        Ok(Report { runner_name: runner.into(), repo, workflow_id, job_id: None, job_labels: None })
    }

    pub(super) fn signed(&self, runner: &str, job: u64) -> anyhow::Result<Report> {
        let job_id = Some(JobId(i64::try_from(job)?));
        Ok(Report { job_id, job_labels: Some(LABELS.join(",")), ..self.line(runner, job)? })
    }

    async fn input(&self, runner: &str) -> anyhow::Result<Value> {
        Ok(self.execution(runner.to_owned()).await?.input)
    }

    async fn begin(&self, runner: &str, input: &Value) -> anyhow::Result<()> {
        let input = json!({"stateMachineArn": self.machine_arn, "name": runner, "input": input.to_string()});
        let target = "AWSStepFunctions.StartExecution";
        let started = self.world.edge.moto().json("states", target, &input).await;
        started.map(drop).with_context(|| format!("start {runner}"))
    }

    /// Puts an item into the ledger, which knows nothing under that key.
    async fn note(&self, key: &str, mut item: Value) -> anyhow::Result<()> {
        item["pk"] = json!({"S": key});
        item["ttl"] = json!({"N": FAR.to_string()});
        let input = json!({"TableName": self.world.output("LedgerTableName")?, "Item": item});
        let target = "DynamoDB_20120810.PutItem";
        let put = self.world.edge.moto().json("dynamodb", target, &input).await;
        put.map(drop).with_context(|| format!("note {key} in the ledger"))
    }
}

fn spec(repository: &str, labels: &[&str]) -> JobSpec {
    JobSpec::new(repository, labels)
}

pub(super) fn line(runner: &str, repository: &str, run: i64) -> String {
    format!("CDKGHR JOB RUNNER={runner} REPO={repository} WORKFLOW_ID={run}")
}

/// The event of a queue's messages, each with its group, received so often.
pub(super) fn records(messages: &[(String, Value)], receives: u32) -> Value {
    let record = |(n, (group, body)): (usize, &(String, Value))| {
        json!({
            "messageId": n.to_string(), "body": body.to_string(), "eventSource": "aws:sqs",
            "attributes": {
                "ApproximateReceiveCount": receives.to_string(), "MessageGroupId": group,
            },
        })
    };
    json!({"Records": messages.iter().enumerate().map(record).collect::<Vec<_>>()})
}

/// The event that a subscription makes of lines.
pub(super) fn delivery(lines: &[String]) -> anyhow::Result<Value> {
    let event = |(id, line)| json!({"id": format!("{id:056}"), "timestamp": 1_796_040_000_000_i64, "message": line});
    let events: Vec<Value> = lines.iter().enumerate().map(event).collect();
    let content = json!({
        "messageType": "DATA_MESSAGE", "owner": crate::aws::ACCOUNT, "logGroup": "/ostler/ostler/runners",
        "logStream": "runner/i-0", "subscriptionFilters": ["reports"], "logEvents": events,
    });
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content.to_string().as_bytes())?;
    Ok(json!({"awslogs": {"data": STANDARD.encode(encoder.finish()?)}}))
}
