//! `ostler-local demo`: the scenario played in the local world, watched, judged and shown.

mod progress;
pub(crate) mod record;
pub(crate) mod remains;
mod report;
mod scenario;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ostler_core::config::Tiers;
use ostler_core::time::Timestamp;
use ostler_sim::ec2::{Fault, LaunchRule, Market, PoolMatch};
use ostler_sim::github::{Job, JobSpec, Status, Turn};
use serde_json::json;

use crate::ec2::Ec2Fault;
use crate::github::{RawHook, refused};
use crate::world::World;
use record::{Counts, Expected, JobRecord, Summary};
use remains::{WARM, is_over, of_job};
use scenario::{Act, REPOSITORIES, RUBBISH, STRANGE, scenario};
pub use scenario::{plague, tiers};

/// Between two looks at the world, in real time.
const LOOK: Duration = Duration::from_millis(400);

/// A demo that is not over after this is stopped and judged as it stands. World time: the longest way is a job's that
/// loses four runners in half an hour and gets the fifth an hour later, which is looked at half an hour later again.
const DEADLINE: Duration = Duration::from_secs(10_800);

/// A forged delivery must be refused; its body would start a runner if it were believed.
const FORGED: &str = r#"{"action":"queued","workflow_job":{"id":666,"labels":["self-hosted","linux","x64","small"]},
"repository":{"name":"widgets","full_name":"acme/widgets","private":true,"owner":{"login":"acme"}}}"#;

/// Plays the scenario in a world into which the stacks are deployed, and writes `summary.json` and
/// `report.html` into `out`. The answer holds what was violated.
pub async fn play(world: &World, out: &Path) -> anyhow::Result<Summary> {
    for (name, private) in REPOSITORIES {
        world.github.add_repository(name, private);
    }
    world.github.with_model(|model, _| model.add_repository(STRANGE, true).installed = false);
    world.edge.reset_calls();
    let mut demo = Demo {
        world,
        start: world.clock.now(),
        jobs: Vec::new(),
        known: HashMap::new(),
        deliveries: 0,
        doomed: None,
        taken_back: None,
        ending: None,
        warm: None,
    };
    println!("playing {} jobs at {}× speed", posted(), world.clock.scale());
    let left_behind = world.leave_behind()?;
    println!("          {left_behind} is registered, and nothing is behind it");
    for (at, act) in scenario() {
        while world.clock.now().since(demo.start) < at {
            tokio::time::sleep(LOOK).await;
            demo.look()?;
        }
        demo.act(act).await?;
    }
    let mut remains = remains::Remainder::default();
    loop {
        tokio::time::sleep(LOOK).await;
        demo.look()?;
        let over = demo.warm.is_none() && demo.jobs.iter().all(JobRecord::is_over);
        let swept = world.github.snapshot().runners.iter().all(|it| it.name != left_behind);
        if over && swept && remains.nothing_left(world).await? {
            break;
        }
        if world.clock.now().since(demo.start) >= DEADLINE {
            println!("not over after {} minutes of world time: stopping", DEADLINE.as_secs() / 60);
            break;
        }
    }
    demo.look()?;
    demo.count_executions(&remains.executions(world).await?);
    let found = remains.find(world, &demo.deliveries_of_forged()).await?;
    let counts = Counts {
        calls: functions(world),
        github_calls: world.github.calls(),
        metrics: metrics(world),
    };
    let summary = record::sum_up(&demo.jobs, &found, counts);
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    let json = serde_json::to_string_pretty(&summary)?;
    std::fs::write(out.join("summary.json"), json).context("write summary.json")?;
    let page = report::render(&demo.jobs, &summary, world.clock.scale());
    std::fs::write(out.join("report.html"), page).context("write report.html")?;
    progress::print_summary(&summary, out);
    Ok(summary)
}

fn posted() -> usize {
    let jobs = |(_, act): &(Duration, Act)| match act {
        Act::Post { jobs, .. } => jobs.len(),
        Act::Plague { .. } | Act::Warm { .. } => 1,
        _ => 0,
    };
    scenario().iter().map(jobs).sum()
}

/// The calls of our functions and of the instances, by name; the world's own are left out.
fn functions(world: &World) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut by_function: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (caller, calls) in world.edge.calls() {
        let function = match caller.strip_prefix("fn-") {
            Some(name) => name.split_once('-').map_or(name, |(_, name)| name).to_owned(),
            None if caller.starts_with("instance-") => "instances".to_owned(),
            None => continue,
        };
        let counts = by_function.entry(function).or_default();
        for (call, times) in calls {
            *counts.entry(call).or_default() += times;
        }
    }
    by_function
}

/// What our functions counted, by metric; stolen runners also by what came of it.
fn metrics(world: &World) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for point in world.edge.lambda().metrics() {
        if let Some(replaced) = point.dimensions.get("Replaced") {
            *sums.entry(format!("{}, Replaced {replaced}", point.name)).or_default() += point.value;
        }
        *sums.entry(point.name).or_default() += point.value;
    }
    sums
}

struct Demo<'a> {
    world: &'a World,
    start: Timestamp,
    jobs: Vec<JobRecord>,
    /// Index of a job's record by its id.
    known: HashMap<u64, usize>,
    /// The part whose job's machine is to die, and the one that waits for that.
    doomed: Option<(&'static str, &'static str)>,
    /// The part whose job's machine EC2 is to take back.
    taken_back: Option<&'static str>,
    /// The job that waits for the end of its machine, which was taken back.
    ending: Option<(u64, String)>,
    /// The part and the job that wait for a warm runner.
    warm: Option<(&'static str, JobSpec)>,
    /// How many deliveries were looked at.
    deliveries: usize,
}

impl Demo<'_> {
    async fn act(&mut self, act: Act) -> anyhow::Result<()> {
        let github = &self.world.github;
        match act {
            Act::Post { part, jobs, matrix, expected, plan, turn } => {
                if let Some(plan) = plan {
                    github.plan_delivery(plan);
                }
                let ids = if matrix {
                    github.post_matrix(&jobs[0], jobs.len()).map_err(refused)?
                } else {
                    jobs.iter()
                        .map(|job| github.post_job(job))
                        .collect::<Result<_, _>>()
                        .map_err(refused)?
                };
                for (id, spec) in ids.iter().zip(&jobs) {
                    if turn != Turn::Chance {
                        github.with_model(|model, _| model.set_turn(*id, turn));
                    }
                    if expected == Expected::Cancelled {
                        github.cancel_job(*id).map_err(refused)?;
                    }
                    self.watch(*id, spec, part, expected);
                }
            }
            Act::Plague { part, victims, job } => {
                let victims = self.jobs.iter().filter(|job| job.part == victims);
                let victims: Vec<String> = victims.filter_map(JobRecord::started).collect();
                let job = JobSpec { script: Some(plague(&victims)), ..job };
                let id = github.post_job(&job).map_err(refused)?;
                self.watch(id, &job, part, Expected::Served);
            }
            Act::Warm { tier, part, job } => {
                self.start_warm(tier).await?;
                self.warm = Some((part, job));
            }
            Act::Rubbish => self.throw_rubbish().await?,
            Act::Approve(part) => {
                for job in self.jobs.iter().filter(|job| job.part == part) {
                    github.approve(job.id).map_err(refused)?;
                    progress::print(self.start, job, "approved", self.world.clock.now());
                }
            }
            Act::TakeBack(part) => self.taken_back = Some(part),
            Act::LoseMachine(part, then) => self.doomed = Some((part, then)),
            Act::SpotShortage(times) => {
                println!("          EC2 has no spot machine for the next {times} launches");
                self.world.ec2.capacity_rule(LaunchRule {
                    pools: PoolMatch { market: Some(Market::Spot), ..PoolMatch::default() },
                    subnet: None,
                    fault: Fault::new(
                        "InsufficientInstanceCapacity",
                        "There is no Spot capacity available.",
                    ),
                    times: Some(times),
                });
            }
            Act::Forge => {
                println!("          somebody posts a job with a signature of their own");
                github.send_raw(RawHook {
                    event: Some("workflow_job".into()),
                    body: FORGED.into(),
                    content_type: "application/json".into(),
                    signature: Some(format!("sha256={}", "0".repeat(64))),
                });
            }
        }
        Ok(())
    }

    fn watch(&mut self, id: u64, spec: &JobSpec, part: &'static str, expected: Expected) {
        self.known.insert(id, self.jobs.len());
        let job = JobRecord {
            id,
            repository: spec.repository.clone(),
            labels: spec.labels.join(","),
            part,
            expected,
            queued: self.world.clock.now(),
            launching: None,
            online: None,
            running: None,
            done: None,
            runner: None,
            conclusion: None,
            executions: 0,
            answers: Vec::new(),
        };
        progress::print(self.start, &job, "queued", job.queued);
        self.jobs.push(job);
    }

    /// Starts a runner for no job in particular, as a pool of warm ones would.
    async fn start_warm(&self, tier: &str) -> anyhow::Result<()> {
        let tiers = Tiers::parse(&tiers().to_string());
        let found = tiers.get(tier).with_context(|| format!("there is no tier {tier}"))?;
        let input = json!({
            "owner": "acme", "repo": "tools", "jobId": -1, "jobUrl": "", "installationId": -1, "jobLabels": "",
            "provider": tier, "labels": found.labels.to_string(), "maxIdleSeconds": found.max_idle.as_secs(),
            "queuedAt": self.world.clock.now().to_string(),
        });
        let name = format!("{WARM}{tier}-0123456789abcdef");
        println!("          {name} is started for no job in particular");
        let input = json!({
            "stateMachineArn": self.world.output("StateMachineArn")?,
            "name": name,
            "input": input.to_string(),
        });
        let client = self.world.edge.client("operator");
        let started = client.json("states", "AWSStepFunctions.StartExecution", &input).await;
        started.map(drop).context("start a warm runner")
    }

    /// Posts the job that waits for a warm runner, once that is there: it gets the job at once.
    fn use_warm(&mut self, online: &HashMap<&str, bool>) -> anyhow::Result<()> {
        let there = online.iter().any(|(name, online)| *online && name.starts_with(WARM));
        if there && let Some((part, job)) = self.warm.take() {
            let id = self.world.github.post_job(&job).map_err(refused)?;
            self.watch(id, &job, part, Expected::Served);
        }
        Ok(())
    }

    /// What no function can use: each piece affects itself only, and is counted.
    async fn throw_rubbish(&self) -> anyhow::Result<()> {
        println!("          rubbish comes into the report queue, and as a delivery of the log");
        let (client, queue) =
            (self.world.edge.client("operator"), self.world.output("ReportQueueUrl")?);
        for (index, body) in RUBBISH.iter().enumerate() {
            let id = format!("rubbish-{index}");
            let input = json!({"QueueUrl": queue, "MessageBody": body, "MessageGroupId": id,
                "MessageDeduplicationId": id});
            client.json("sqs", "AmazonSQS.SendMessage", &input).await.context("send rubbish")?;
        }
        let function = self.world.output("StolenRunnerFunctionName")?;
        let event = json!({"awslogs": {"data": "H4sI, and nothing that follows from it"}});
        self.world.edge.lambda().invoke_async(&function, event.to_string().into());
        Ok(())
    }

    /// Takes the power from the machine that is to die, once it is there.
    fn lose_machine(&mut self) {
        let Some((part, then)) = self.doomed else { return };
        let Some(job) = self.jobs.iter().find(|job| job.part == part) else { return };
        let Some(runner) = job.started() else { return };
        let its = |view: &crate::ec2::InstanceView| view.tags.get("ostler:runner") == Some(&runner);
        let Some(view) = self.world.ec2.instances().into_iter().find(its) else { return };
        self.world.ec2.with(|ec2, now| ec2.power_off(now, &view.instance_id));
        progress::print(self.start, job, "dies", self.world.clock.now());
        for job in self.jobs.iter().filter(|job| job.part == then) {
            self.world.github.with_model(|model, _| model.set_turn(job.id, Turn::Chance));
        }
        self.doomed = None;
    }

    /// Has EC2 take the machine back whose turn that is, once its runner is registered and not there yet.
    fn take_machine_back(&mut self, online: &HashMap<&str, bool>) {
        let Some(part) = self.taken_back else { return };
        let Some(job) = self.jobs.iter().find(|job| job.part == part) else { return };
        let Some(runner) = job.started() else { return };
        if online.get(runner.as_str()) != Some(&false) {
            return;
        }
        let its = |view: &crate::ec2::InstanceView| view.tags.get("ostler:runner") == Some(&runner);
        let Some(view) = self.world.ec2.instances().into_iter().find(its) else { return };
        self.world.ec2.inject(Ec2Fault::Interrupt { instance: view.instance_id.clone() });
        progress::print(self.start, job, "taken back", self.world.clock.now());
        self.taken_back = None;
        self.ending = Some((job.id, view.instance_id));
    }

    /// Gives the job its turn whose machine was taken back, once that has ended: or it would run on it for the two
    /// minutes that are left.
    fn await_end(&mut self) {
        let Some((job, machine)) = &self.ending else { return };
        let over =
            |view: &crate::ec2::InstanceView| view.instance_id == *machine && is_over(&view.state);
        if self.world.ec2.instances().iter().any(over) {
            self.world.github.with_model(|model, _| model.set_turn(*job, Turn::Chance));
            self.ending = None;
        }
    }

    /// Looks at GitHub and EC2, and notes and prints what is new.
    fn look(&mut self) -> anyhow::Result<()> {
        self.lose_machine();
        let snapshot = self.world.github.snapshot();
        let mut online: HashMap<&str, bool> = HashMap::new();
        for runner in &snapshot.runners {
            online.insert(&runner.name, runner.online);
        }
        self.use_warm(&online)?;
        self.take_machine_back(&online);
        self.await_end();
        let launched: HashMap<String, Timestamp> = self
            .world
            .ec2
            .instances()
            .into_iter()
            .filter_map(|view| {
                view.tags.get("ostler:runner").map(|name| (name.clone(), view.launched_at))
            })
            .collect();
        let deliveries = self.world.github.deliveries_from(self.deliveries);
        self.deliveries += deliveries.len();
        for delivery in deliveries {
            let Some(index) = delivered_job(&delivery.body).and_then(|id| self.known.get(&id))
            else {
                continue;
            };
            let answer = (delivery.status_code, delivery.answer.clone());
            let job = &mut self.jobs[*index];
            if delivery.action.as_deref() == Some("queued") && !job.answers.contains(&answer) {
                job.answers.push(answer);
            }
        }
        let jobs: HashMap<u64, &Job> = snapshot.jobs.iter().map(|job| (job.id, job)).collect();
        for record in &mut self.jobs {
            let Some(job) = jobs.get(&record.id) else { continue };
            let runner = job.runner.as_ref().map(|on| on.name.clone()).or_else(|| record.started());
            if let Some(name) = &runner {
                if record.launching.is_none()
                    && let Some(at) = launched.get(name)
                {
                    record.launching = Some(*at);
                    progress::print(self.start, record, "launching", *at);
                }
                if record.online.is_none() && online.get(name.as_str()) == Some(&true) {
                    record.online = Some(snapshot.at);
                    progress::print(self.start, record, "online", snapshot.at);
                }
            }
            if record.running.is_none()
                && let Some(at) = job.started_at
            {
                record.running = Some(at);
                record.runner.clone_from(&runner);
                // Between two looks a runner can come online and get a job.
                record.online = record.online.map(|online| online.min(at));
                progress::print(self.start, record, "running", at);
            }
            if record.done.is_none() && job.status == Status::Completed {
                record.done = Some(job.completed_at.unwrap_or(snapshot.at));
                record.conclusion.clone_from(&job.conclusion);
                let how = job.conclusion.as_deref().unwrap_or("done");
                progress::print(
                    self.start,
                    record,
                    if how == "success" { "done" } else { how },
                    snapshot.at,
                );
            }
        }
        Ok(())
    }

    fn count_executions(&mut self, names: &[String]) {
        for job in &mut self.jobs {
            let started = names.iter().filter(|name| of_job(name, job.id)).count();
            job.executions = u64::try_from(started).unwrap_or(u64::MAX);
        }
    }

    /// Statuses that the forged deliveries were answered with.
    fn deliveries_of_forged(&self) -> Vec<u16> {
        let forged =
            |delivery: &crate::github::Delivery| delivered_job(&delivery.body) == Some(666);
        let deliveries = self.world.github.deliveries();
        deliveries
            .iter()
            .filter(|delivery| forged(delivery))
            .map(|delivery| delivery.status_code)
            .collect()
    }
}

fn delivered_job(body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(body).ok()?.pointer("/workflow_job/id")?.as_u64()
}
