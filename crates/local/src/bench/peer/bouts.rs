//! The events of a round, which both sides get: of jobs that each of them starts a runner for.
//!
//! A job runs on one runner. Where GitHub is asked about it, that is ours: the peer's handler believes a delivery of
//! GitHub and asks nothing. Its idle reaper looks at a runner of its own, which runs another job.

use anyhow::{Context as _, bail, ensure};
use ostler_sim::github::{JobSpec, Poll, Scope, Status};
use serde_json::{Value, json};

use super::Duel;
use super::figures::{Bout, Handler, Side};
use crate::bench::figures::Function;
use crate::bench::life::{Execution, LABELS, REPOSITORY};
use crate::bench::reports::{Mine, NO_TIER, ORGANIZATION, delivery, line, records};
use crate::github::refused;

/// Reports in a batch: as many as an event source mapping gives at once.
const BATCH: usize = 10;
/// Batches of each outcome in a round: each takes ten jobs, which take longer to play than to judge.
const BATCHES: usize = 2;
/// Large deliveries in a round.
const LARGE: usize = 2;
/// Labels of the runner that the peer's idle reaper looks at, beside the one that tells when it was started.
const PEERS_OWN: [&str; 2] = ["self-hosted", "peers-own"];

/// A job that both have started a runner for.
struct Both {
    mine: Mine,
    /// The peer's runner.
    theirs: String,
}

impl Duel<'_> {
    /// All kinds of events, `events` times on processes that were just started. `large` says whether with the large
    /// deliveries.
    pub(super) async fn round(&mut self, events: usize, large: bool) -> anyhow::Result<()> {
        // One event more than is counted: a process's first is not a warm one.
        let jobs = self.webhooks(events + 1).await?;
        self.registrations(jobs).await?;
        self.lines(events, large).await?;
        for _ in 0..BATCHES {
            self.judgements().await?;
        }
        for _ in 0..=events {
            self.redelivery().await?;
        }
        Ok(())
    }

    /// A delivery that has failed is found and sent again: one for each side, which it must not have from the other.
    /// Ours looks for open jobs and for waiting ones in the same run.
    async fn redelivery(&mut self) -> anyhow::Result<()> {
        self.turn += 1;
        let mut taken = Vec::new();
        for side in Side::in_turn(self.turn) {
            let world = self.ours.world;
            self.ours.deliveries.fail_one(world).await?;
            let event = json!({"source": "aws.events"});
            let sample = match side {
                Side::Ostler => self.ours.sample(Function::Reconciler, &event).await?,
                Side::Peer => self.peer.sample(world, Handler::Redelivery, &event).await?,
            };
            if let Some(error) = &sample.error {
                bail!("{} of {} failed: {error}", Bout::Redelivery.name(), side.name());
            }
            let sent = sample.github.keys().any(|call| call.contains("attempts"));
            ensure!(sent, "{} has sent nothing again, but called {:?}", side.name(), sample.github);
            self.ours.deliveries.again().await?;
            taken.push((side, sample));
        }
        taken.sort_by_key(|(side, _)| *side);
        let mut samples = taken.into_iter().map(|(_, sample)| sample);
        let (own, other) = samples.next().zip(samples.next()).context("a side had no turn")?;
        self.contest.met(Bout::Redelivery, self.size_mb, own, other);
        Ok(())
    }

    /// Deliveries; gives the jobs that were taken.
    async fn webhooks(&mut self, events: usize) -> anyhow::Result<Vec<Both>> {
        let mut jobs = Vec::new();
        for _ in 0..events {
            let job = self.accept(&LABELS).await?;
            // Until its own runner is there, no other may take it.
            self.hold(job.mine.job, Status::Pending);
            jobs.push(job);
            let other = self.ours.raw("check_run", "{\"action\": \"created\"}").await?;
            self.webhook(Bout::Ignored, &other, [200, 200]).await?;
            let mut forged = self.ours.raw("workflow_job", "{\"action\": \"queued\"}").await?;
            forged["headers"]["x-hub-signature-256"] = json!(format!("sha256={}", "0".repeat(64)));
            self.webhook(Bout::BadSignature, &forged, [401, 403]).await?;
        }
        Ok(jobs)
    }

    /// Hands a delivery to both; gives what they say.
    async fn webhook(
        &mut self,
        bout: Bout,
        event: &Value,
        statuses: [u16; 2],
    ) -> anyhow::Result<[String; 2]> {
        let (ours, theirs) = self.meet(bout, event, event).await?;
        ensure!(
            ours["statusCode"] == statuses[0] && theirs["statusCode"] == statuses[1],
            "{} was answered {ours} and {theirs}",
            bout.name()
        );
        Ok([ours, theirs].map(|answer| answer["body"].as_str().unwrap_or("").to_owned()))
    }

    /// A job that both take.
    async fn accept(&mut self, labels: &[&str]) -> anyhow::Result<Both> {
        let spec = JobSpec::new(REPOSITORY, labels);
        let job = self.ours.world.github.post_job(&spec).map_err(refused)?;
        let queued = self.ours.deliveries.of_job(job, "queued").await?;
        let [ours, theirs] = self.webhook(Bout::Queued, &queued, [202, 202]).await?;
        Ok(Both { mine: self.ours.accepted(job, ours).await?, theirs })
    }

    /// What a runner registers with, and a look at it while it runs its job; and the deliveries in between.
    async fn registrations(&mut self, jobs: Vec<Both>) -> anyhow::Result<()> {
        let mut launched = Vec::new();
        for job in &jobs {
            let mut execution = self.ours.execution(job.mine.runner.clone()).await?;
            self.step(&mut execution, "launch").await?;
            launched.push(execution);
        }
        // Launches are over: the first registration is the first event of its process, as it is of theirs.
        self.fresh(Handler::Registration).await?;
        for (job, execution) in jobs.iter().zip(&mut launched) {
            let theirs = json!({
                "owner": ORGANIZATION, "repo": execution.input["repo"], "runnerName": job.theirs,
                "installationId": execution.input["installationId"],
            });
            let event = execution.event("register");
            let (answer, token) = self.meet(Bout::Register, &event, &theirs).await?;
            ensure!(answer["next"] == "wait", "register was answered {answer}");
            ensure!(token["token"].is_string(), "the peer got no token, but {token}");
            execution.note(answer);
        }
        self.fresh(Handler::Check).await?;
        for (job, mut execution) in jobs.into_iter().zip(launched) {
            self.hold(job.mine.job, Status::Queued);
            let session = self.ours.connect(&execution, job.mine.job).await?;
            let in_progress = self.ours.deliveries.of_job(job.mine.job, "in_progress").await?;
            self.webhook(Bout::InProgress, &in_progress, [200, 200]).await?;
            let (other, busy) = self.peers_runner(&job.theirs)?;
            let message = json!({
                "executionArn": self.peer.execution_arn(&job.theirs), "runnerName": job.theirs,
                "owner": ORGANIZATION, "repo": execution.input["repo"],
                "installationId": execution.input["installationId"], "maxIdleSeconds": 300,
            });
            let theirs = records(&[(job.theirs.clone(), message)], 1);
            let (answer, looked) =
                self.meet(Bout::Check, &execution.event("check"), &theirs).await?;
            ensure!(answer["next"] == "wait", "check was answered {answer}");
            let again = looked["batchItemFailures"].as_array().map(Vec::len);
            ensure!(again == Some(1), "the peer's reaper answered {looked}");
            execution.note(answer);
            self.ours.over(&session, job.mine.job)?;
            self.ours.over(&busy, other)?;
        }
        Ok(())
    }

    fn hold(&self, job: u64, status: Status) {
        self.ours.world.github.with_model(|model, _| model.hold(job, status));
    }

    /// A step of ours that nobody measures.
    async fn step(&mut self, execution: &mut Execution, step: &str) -> anyhow::Result<()> {
        let event = execution.event(step);
        let sample = self.ours.sample(Function::Orchestrator, &event).await?;
        if let Some(error) = sample.error {
            bail!("{step} failed: {error}");
        }
        execution.note(sample.answer);
        Ok(())
    }

    /// A runner of the peer's, registered as its machines do it, that runs a job. Gives job and session.
    fn peers_runner(&self, name: &str) -> anyhow::Result<(u64, String)> {
        let world = self.ours.world;
        let job = JobSpec::new(REPOSITORY, &PEERS_OWN);
        let job = world.github.post_job(&job).map_err(refused)?;
        let started = format!("cdkghr:started:{}", world.clock.now().seconds());
        let labels: Vec<String> =
            PEERS_OWN.into_iter().map(str::to_owned).chain([started]).collect();
        world.github.with_model(|model, now| {
            let scope = Scope::Organization(ORGANIZATION.into());
            let jit = model.generate_jit(now, &scope, name, Some(1), &labels).map_err(refused)?;
            let session = model.connect(now, &jit.encoded).map_err(refused)?.id;
            match model.poll_job(now, &session).map_err(refused)? {
                Poll::Job(given) if given.job_id == job => Ok((job, session)),
                other => bail!("{name} was not given its job, but {other:?}"),
            }
        })
    }

    /// Deliveries of logs, of runners that nobody knows.
    async fn lines(&mut self, events: usize, large: bool) -> anyhow::Result<()> {
        // Runners whose names come again are told of once, so each delivery has its own.
        let mut delivered = |count: usize| {
            self.turn += 1;
            let lines: Vec<String> = (0..count)
                .map(|n| line(&format!("runner-{}-{n}", self.turn), REPOSITORY, 9))
                .collect();
            delivery(&lines)
        };
        let mut deliveries = Vec::new();
        for _ in 0..=events {
            deliveries.push((Bout::Line, delivered(1)?));
        }
        for _ in 0..events {
            deliveries.push((Bout::Lines100, delivered(100)?));
        }
        for _ in 0..if large { LARGE } else { 0 } {
            deliveries.push((Bout::Lines10000, delivered(10_000)?));
        }
        for (bout, event) in deliveries {
            self.meet(bout, &event, &event).await?;
        }
        Ok(())
    }

    /// A batch of reports of each outcome.
    async fn judgements(&mut self) -> anyhow::Result<()> {
        let mut jobs = Vec::new();
        for _ in 0..BATCH {
            jobs.push(self.accept(&LABELS).await?);
        }
        let nobodys: Vec<Both> = (0..BATCH).map(|n| nobodys_runner(n, &jobs[n])).collect();
        let own: Vec<u64> = jobs.iter().map(|job| job.mine.job).collect();
        self.judge(Bout::NobodysRunners, &nobodys, &own).await?;
        let sessions = self.run(&jobs, &own).await?;
        self.judge(Bout::OwnJobs, &jobs, &own).await?;
        for (session, job) in sessions.iter().zip(own) {
            self.ours.over(session, job)?;
        }

        let mut jobs = Vec::new();
        for _ in 0..BATCH {
            jobs.push(self.accept(&LABELS).await?);
        }
        // Each runs the next one's job, and the last the first's: every job has its runner.
        let mut shuffled: Vec<u64> = jobs.iter().map(|job| job.mine.job).collect();
        shuffled.rotate_left(1);
        let sessions = self.run(&jobs, &shuffled).await?;
        self.judge(Bout::Shuffled, &jobs, &shuffled).await?;
        for (session, job) in sessions.iter().zip(shuffled) {
            self.ours.over(session, job)?;
        }

        let (mut jobs, mut thieves, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let job = self.accept(&LABELS).await?;
            let thief = JobSpec::new(REPOSITORY, &["self-hosted", NO_TIER]);
            let thief = self.ours.world.github.post_job(&thief).map_err(refused)?;
            let able = job.mine.able_to(NO_TIER);
            sessions.push(self.ours.takes(&able, thief).await?);
            jobs.push(job);
            thieves.push(thief);
        }
        // A job that no tier takes and that has ended: nobody waits whether its event comes.
        for (session, thief) in sessions.iter().zip(&thieves) {
            self.ours.over(session, *thief)?;
        }
        self.judge(Bout::Stolen, &jobs, &thieves).await?;
        for job in &jobs {
            self.ours.replaced(&job.mine).await?;
            let name = format!("{}-r1", job.theirs);
            let input = json!({"executionArn": self.peer.execution_arn(&name)});
            let target = "AWSStepFunctions.DescribeExecution";
            let found = self.ours.world.edge.moto().json("states", target, &input).await;
            found.with_context(|| format!("the peer did not replace {}", job.theirs))?;
            self.ours.give_up(job.mine.job)?;
        }
        Ok(())
    }

    /// Has each runner take one of the jobs; gives their sessions.
    async fn run(&mut self, runners: &[Both], jobs: &[u64]) -> anyhow::Result<Vec<String>> {
        let mut sessions = Vec::new();
        for (runner, job) in runners.iter().zip(jobs) {
            sessions.push(self.ours.takes(&runner.mine, *job).await?);
        }
        Ok(sessions)
    }

    /// Has a batch of reports of deliveries judged: these runners ran those jobs. None may come again.
    async fn judge(&mut self, bout: Bout, runners: &[Both], jobs: &[u64]) -> anyhow::Result<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (runner, job) in runners.iter().zip(jobs) {
            let (own, other) = (&runner.mine.runner, &runner.theirs);
            ours.push((own.clone(), serde_json::to_value(self.ours.signed(own, *job)?)?));
            theirs.push((other.clone(), serde_json::to_value(self.ours.signed(other, *job)?)?));
        }
        let (ours, theirs) = self.meet(bout, &records(&ours, 1), &records(&theirs, 1)).await?;
        for answer in [&ours, &theirs] {
            let failures = answer["batchItemFailures"].as_array().map(Vec::len);
            ensure!(failures == Some(0), "{} was answered {answer}", bout.name());
        }
        Ok(())
    }
}

/// A runner that neither has started, as the report of a job.
fn nobodys_runner(n: usize, like: &Both) -> Both {
    let name = format!("nobodys-runner-{n}");
    Both { mine: Mine { runner: name.clone(), ..like.mine.clone() }, theirs: name }
}
