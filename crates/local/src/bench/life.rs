//! The events that are measured: of one job after the other, from its first delivery to its cleanup, as
//! GitHub's server, the state machine and an instance would bring them about. What is no event of a
//! function is done behind the counts: at moto, and in the models of GitHub and EC2.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::HeaderMap;
use ostler_core::time::Timestamp;
use ostler_sim::github::{JobSpec, Poll, Status};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::Bench;
use super::figures::Kind;
use super::reports::STRANGE;
use crate::github::{RawHook, refused};
use crate::lambda_host::url;
use crate::world::World;

/// The jobs' repository.
pub const REPOSITORY: &str = "acme/widgets";
/// The jobs' labels: those of the demo's on-demand tier.
pub const LABELS: [&str; 4] = ["self-hosted", "linux", "x64", "small"];
/// A delivery that comes again sooner counts as the first: the clocks of Lambda and Step Functions may
/// differ by a second.
const TOLD_APART: Duration = Duration::from_millis(1_500);
/// How often it is looked whether a delivery has failed.
const LOOK: Duration = Duration::from_millis(5);
/// A delivery on loopback takes milliseconds.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Deliveries of the local GitHub, as the events that a function URL makes of them.
pub struct Deliveries {
    events: mpsc::UnboundedReceiver<Value>,
    /// Where they go.
    url: String,
}

impl Deliveries {
    /// Has GitHub deliver to the measurement from now on.
    pub async fn of(world: &World) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen for webhooks")?;
        let address = listener.local_addr().context("the listener's address")?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let clock = world.clock;
        let take =
            move |method: http::Method, uri: http::Uri, headers: HeaderMap, body: bytes::Bytes| {
                // Nobody listens any more once the measurement is over.
                let _ = sender.send(url::event(&method, &uri, "/", &headers, &body, clock.now()));
                async {}
            };
        let router = axum::Router::new().fallback(take);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let url = format!("http://{address}/");
        world.github.set_webhook_target(Some(&url));
        Ok(Self { events: receiver, url })
    }

    /// Has a delivery about a job fail, so that it stands in the App's log.
    pub async fn fail_one(&self, world: &World) -> anyhow::Result<()> {
        let failed = || world.github.deliveries().iter().filter(|it| !it.ok()).count();
        let known = failed();
        world.github.set_webhook_target(None);
        world.github.send_raw(RawHook {
            event: Some("workflow_job".to_owned()),
            body: "{\"action\": \"queued\"}".to_owned(),
            content_type: "application/json".to_owned(),
            signature: None,
        });
        let logged = async {
            while failed() == known {
                tokio::time::sleep(LOOK).await;
            }
        };
        let logged = tokio::time::timeout(DELIVERY_TIMEOUT, logged).await;
        world.github.set_webhook_target(Some(&self.url));
        logged.context("a delivery that fails is not logged")
    }

    /// The next delivery that `wanted` picks by event, job and action; others are dropped.
    async fn next(&mut self, wanted: impl Fn(&str, &Value) -> bool) -> anyhow::Result<Value> {
        let find = async {
            while let Some(event) = self.events.recv().await {
                let body = event["body"].as_str().unwrap_or("");
                let body: Value = serde_json::from_str(body).unwrap_or(Value::Null);
                if wanted(event["headers"]["x-github-event"].as_str().unwrap_or(""), &body) {
                    return Ok(event);
                }
            }
            bail!("the listener for webhooks has ended")
        };
        tokio::time::timeout(DELIVERY_TIMEOUT, find)
            .await
            .context("no delivery came from GitHub")?
    }

    /// The delivery that failed, sent again.
    pub async fn again(&mut self) -> anyhow::Result<()> {
        let raw =
            self.next(|event, body| event == "workflow_job" && body["workflow_job"].is_null());
        raw.await.map(drop).context("a delivery that is sent again")
    }

    /// The delivery of what became of that job.
    pub async fn of_job(&mut self, job: u64, action: &str) -> anyhow::Result<Value> {
        self.next(|event, body| {
            event == "workflow_job" && body["workflow_job"]["id"] == job && body["action"] == action
        })
        .await
        .with_context(|| format!("{action} of job {job}"))
    }
}

/// One runner's execution, as far as its steps see it.
pub(super) struct Execution {
    runner: String,
    started: Timestamp,
    /// What it was started with.
    pub(super) input: Value,
    state: Value,
}

impl Execution {
    /// The event of a step, as infra/orchestrator.asl.json has it.
    pub(super) fn event(&self, step: &str) -> Value {
        let mut job = self.input.clone();
        if !self.state.is_null() {
            job["run"] = json!({"state": self.state});
        }
        json!({
            "step": step,
            "runnerName": self.runner,
            "startedAt": self.started.to_string(),
            "job": job,
        })
    }

    /// What a step has answered.
    pub(super) fn note(&mut self, answer: Value) {
        self.state = answer;
    }

    fn state(&self, key: &str) -> anyhow::Result<&str> {
        self.state[key].as_str().with_context(|| format!("{} has no {key}", self.runner))
    }
}

impl Bench<'_> {
    /// A job whose runner lives on, and whose delivery is the one that is repeated.
    pub(super) async fn stand(&mut self) -> anyhow::Result<()> {
        let job = self.world.github.post_job(&spec()).map_err(refused)?;
        // No other runner may take it.
        self.world.github.with_model(|model, _| model.hold(job, Status::Pending));
        let queued = self.deliveries.of_job(job, "queued").await?;
        let runner = self.webhook(Kind::Queued, &queued, 202, "").await?;
        let mut execution = self.execution(runner).await?;
        self.step(Kind::Launch, &mut execution, "launch", "register").await?;
        tokio::time::sleep(TOLD_APART).await;
        self.standing = queued;
        Ok(())
    }

    /// One job that goes well, with all the other events in between.
    pub(super) async fn life(&mut self) -> anyhow::Result<()> {
        let world = self.world;
        let job = world.github.post_job(&spec()).map_err(refused)?;
        let queued = self.deliveries.of_job(job, "queued").await?;
        let runner = self.webhook(Kind::Queued, &queued, 202, "").await?;
        let mut execution = self.execution(runner).await?;
        self.step(Kind::Launch, &mut execution, "launch", "register").await?;
        self.step(Kind::Register, &mut execution, "register", "wait").await?;
        self.step(Kind::CheckBooting, &mut execution, "check", "wait").await?;

        let zen = json!({"zen": "Design for failure.", "hook_id": 483_019_204}).to_string();
        let ping = self.raw("ping", &zen).await?;
        self.webhook(Kind::Ping, &ping, 200, "pong").await?;
        let repeated = self.standing.clone();
        self.webhook(Kind::QueuedAgain, &repeated, 200, "already started").await?;

        let session = self.connect(&execution, job).await?;
        let in_progress = self.deliveries.of_job(job, "in_progress").await?;
        self.webhook(Kind::InProgress, &in_progress, 200, "reported").await?;
        self.step(Kind::CheckRunning, &mut execution, "check", "wait").await?;
        self.own_job(&execution.runner, job).await?;

        let other = self.raw("check_run", queued["body"].as_str().unwrap_or("")).await?;
        self.webhook(Kind::OtherEvent, &other, 200, "Ignored").await?;
        self.step(Kind::CheckAccounted, &mut execution, "check", "wait").await?;

        world
            .github
            .with_model(|model, now| model.complete(now, &session, job, "success"))
            .map_err(refused)?;
        let completed = self.deliveries.of_job(job, "completed").await?;
        self.webhook(Kind::Completed, &completed, 200, "nothing to do").await?;
        world.ec2.powered_off(execution.state("instance")?).await;
        self.step(Kind::CheckGone, &mut execution, "check", "ended").await?;

        let mut forged = queued;
        forged["headers"]["x-hub-signature-256"] = json!(format!("sha256={}", "0".repeat(64)));
        self.webhook(Kind::BadSignature, &forged, 401, "").await?;
        self.step(Kind::Cleanup, &mut execution, "cleanup", "done").await?;

        let job = world.github.post_job(&spec()).map_err(refused)?;
        world.github.cancel_job(job).map_err(refused)?;
        let cancelled = self.deliveries.of_job(job, "completed").await?;
        self.webhook(Kind::Cancelled, &cancelled, 200, "noted as cancelled").await?;
        Ok(())
    }

    /// A delivery that the model knows nothing of.
    pub(super) async fn raw(&mut self, event: &str, body: &str) -> anyhow::Result<Value> {
        self.world.github.send_raw(RawHook {
            event: Some(event.to_owned()),
            body: body.to_owned(),
            content_type: "application/json".to_owned(),
            signature: None,
        });
        self.deliveries.next(|delivered, _| delivered == event).await
    }

    /// Has the webhook handle an event, and gives the body of its answer, which is to be of that status
    /// and begin like this.
    pub(super) async fn webhook(
        &mut self,
        kind: Kind,
        event: &Value,
        status: u16,
        begins: &str,
    ) -> anyhow::Result<String> {
        let answer = self.measure(kind, event).await?;
        let body = answer["body"].as_str().unwrap_or("");
        ensure!(
            answer["statusCode"] == status && body.starts_with(begins),
            "{} was answered {answer}, not {status} {begins}",
            kind.name()
        );
        Ok(body.to_owned())
    }

    /// Has the orchestrator take a step, whose answer is to say `next`.
    async fn step(
        &mut self,
        kind: Kind,
        execution: &mut Execution,
        step: &str,
        next: &str,
    ) -> anyhow::Result<()> {
        let event = execution.event(step);
        let answer = self.measure(kind, &event).await?;
        ensure!(answer["next"] == next, "{} answered {answer}, not {next}", kind.name());
        execution.note(answer);
        Ok(())
    }

    /// What the webhook has started.
    pub(super) async fn execution(&self, runner: String) -> anyhow::Result<Execution> {
        let arn = self.machine_arn.replace(":stateMachine:", ":execution:");
        let input = json!({"executionArn": format!("{arn}:{runner}")});
        let target = "AWSStepFunctions.DescribeExecution";
        let found = self.world.edge.moto().json("states", target, &input).await;
        let found = found.with_context(|| format!("the execution of {runner}"))?;
        #[allow(clippy::cast_possible_truncation, reason = "seconds since 1970")]
        let started = Timestamp::from_seconds(found["startDate"].as_f64().unwrap_or(0.0) as i64);
        let input = serde_json::from_str(found["input"].as_str().unwrap_or(""))
            .with_context(|| format!("the input of {runner} is not JSON"))?;
        Ok(Execution { runner, started, input, state: Value::Null })
    }

    /// What the instance would do: claim the registration, come online, take the job. Gives the session.
    pub(super) async fn connect(&self, execution: &Execution, job: u64) -> anyhow::Result<String> {
        let owner = self.world.output("RunnerRoleId")?;
        let item = json!({
            "TableName": self.world.output("HandoffTableName")?,
            "Key": {"pk": {"S": format!("{owner}:{}", execution.state("instance")?)}},
            "ReturnValues": "ALL_OLD",
        });
        let target = "DynamoDB_20120810.DeleteItem";
        let claimed = self.world.edge.moto().json("dynamodb", target, &item).await;
        let claimed = claimed.context("claim the registration")?;
        let jit = claimed["Attributes"]["jit"]["S"]
            .as_str()
            .with_context(|| format!("no registration was handed over for {}", execution.runner))?;
        self.world.github.with_model(|model, now| {
            let session = model.connect(now, jit).map_err(refused)?;
            match model.poll_job(now, &session.id).map_err(refused)? {
                Poll::Job(given) if given.job_id == job => Ok(session.id),
                other => bail!("{} was not given its job, but {other:?}", execution.runner),
            }
        })
    }
}

fn spec() -> JobSpec {
    JobSpec::new(REPOSITORY, &LABELS)
}

/// The repositories must be there before their jobs.
pub fn prepare(world: &World) {
    world.github.add_repository(REPOSITORY, true);
    world.github.with_model(|model, _| model.add_repository(STRANGE, true).installed = false);
}
