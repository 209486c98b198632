//! A world, and what the tests do to it and ask of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_local::aws::Client;
use ostler_local::ec2::{Ec2Fault, MarketName};
use ostler_local::github::Delivery;
use ostler_local::world::{World, WorldConfig};
use ostler_sim::github::{Job, JobSpec, Status};
use serde_json::{Value, json};

/// World seconds in a real one: twice those of the demo, whose jobs are far more.
const SCALE: f64 = 60.0;

/// For how long something is waited for, in real time. A quiet machine needs a tenth of it at most.
const PATIENCE: Duration = Duration::from_secs(600);

/// Between two looks, in real time.
const LOOK: Duration = Duration::from_millis(100);

/// The webhook's function.
pub const WEBHOOK: &str = "ostler-webhook";

pub struct Rig {
    pub world: World,
    pub operator: Client,
}

/// Tiers of one label each. Those that a scenario plays with have a type of machine to themselves. The boot time-out
/// is long, because the computer may be slow and the world's time is not.
pub fn tiers() -> Value {
    let tier = |label: &str, instance_type: &str, market: &str| {
        json!({"name": format!("{label}-x64"), "architecture": "x64", "labels": [label],
            "images": ["/ostler/images/ubuntu-x64"], "instance_types": [instance_type], "market": market,
            "root_volume_gib": 40, "max_idle": "1h", "max_lifetime": "6h", "boot_timeout": "30m"})
    };
    json!({"tiers": [
        tier("small", "m7i.large", "on-demand"),
        tier("fleeting", "c7i.4xlarge", "spot-then-on-demand"),
        tier("rare", "r7i.48xlarge", "on-demand"),
    ]})
}

impl Rig {
    /// A world with nothing deployed. What it writes is below target/tmp, and stays there if the test fails.
    pub async fn up(name: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let state_dir = folder.unwrap().keep();
        let config = WorldConfig { scale: SCALE, ..WorldConfig::new(&state_dir) };
        let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
        let operator = world.edge.client("operator");
        Self { world, operator }
    }

    pub async fn down(self) {
        let state_dir = self.world.log_dir();
        self.world.down().await;
        let _ = std::fs::remove_dir_all(state_dir);
    }

    /// Deploys both stacks; see [`World::deploy_stacks`].
    pub async fn deploy(&self, more: &[(&str, &str)]) {
        self.world.deploy_stacks(more).await.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Looks until there is something to find.
    pub async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let started = tokio::time::Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain until {what}; at {}: {}\nwhat the functions said is in {}",
                self.world.clock.now(),
                self.sight().await,
                self.world.log_dir().display()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The world in a few lines, for whoever reads a failure.
    async fn sight(&self) -> String {
        let mut lines = Vec::new();
        let snapshot = self.world.github.snapshot();
        for job in &snapshot.jobs {
            let runner = job.runner.as_ref().map_or("-", |runner| &runner.name);
            lines.push(format!(
                "job {} {} {} on {runner}",
                job.id,
                job.repository,
                job.status.name()
            ));
        }
        for runner in &snapshot.runners {
            lines.push(format!(
                "registration {} online {} busy {}",
                runner.name, runner.online, runner.busy
            ));
        }
        for view in self.world.ec2.instances() {
            let runner = view.tags.get("ostler:runner").map_or("-", String::as_str);
            lines.push(format!("instance {} {} of {runner}", view.instance_id, view.state));
        }
        for (name, status) in self.executions().await {
            lines.push(format!("execution {name} {status}"));
        }
        lines.join("\n")
    }

    /// Posts a job to a repository of that name, in an organisation of that name. It is short: a runner that is seen at
    /// work is next looked at half an hour later.
    pub fn post(&self, name: &str, label: &str) -> u64 {
        self.post_spec(JobSpec { duration: Duration::from_secs(1), ..spec(name, label) })
    }

    /// Posts a job that runs until its gate is opened.
    pub fn post_gated(&self, name: &str) -> u64 {
        self.post_gated_on(name, "small")
    }

    /// The same with another label.
    pub fn post_gated_on(&self, name: &str, label: &str) -> u64 {
        let gate = self.gate(name);
        let script = format!("until [ -e {} ]; do sleep 20; done", gate.display());
        self.post_spec(JobSpec {
            duration: Duration::ZERO,
            script: Some(script),
            ..spec(name, label)
        })
    }

    pub fn post_spec(&self, spec: JobSpec) -> u64 {
        self.world.github.add_repository(&spec.repository, true);
        self.world.github.post_job(&spec).unwrap()
    }

    pub fn open_gate(&self, name: &str) {
        std::fs::write(self.gate(name), "").unwrap();
    }

    fn gate(&self, name: &str) -> std::path::PathBuf {
        self.world.log_dir().join(format!("gate-{name}"))
    }

    pub fn job(&self, id: u64) -> Job {
        self.world.github.snapshot().jobs.into_iter().find(|job| job.id == id).unwrap()
    }

    /// Waits until a runner has the job, and gives the runner's name.
    pub async fn running(&self, id: u64) -> String {
        let look = async || {
            let job = self.job(id);
            assert_ne!(job.status, Status::Completed, "{} is over already", job.repository);
            job.runner.map(|runner| runner.name)
        };
        self.until(&format!("job {id} runs"), look).await
    }

    /// Waits until the job is over, and well.
    pub async fn served(&self, id: u64) -> Job {
        let job = self
            .until(&format!("job {id} is over"), async || {
                Some(self.job(id)).filter(|job| job.status == Status::Completed)
            })
            .await;
        assert_eq!(job.conclusion.as_deref(), Some("success"), "{}", job.repository);
        job
    }

    /// Waits for the function's answer to the `queued` event of a job. A delivery that GitHub gave up on, because the
    /// computer is slow, is sent again.
    pub async fn answer(&self, id: u64) -> (u16, String) {
        let answered = async || {
            let mut deliveries = self.deliveries(id, "queued");
            let last = deliveries.pop()?;
            deliveries.push(last.clone());
            let answered = deliveries.into_iter().find(|delivery| delivery.status_code != 504);
            if answered.is_none() {
                self.world.github.redeliver(last.id);
                self.until("it is sent again", async || {
                    (self.deliveries(id, "queued").pop()?.id != last.id).then_some(())
                })
                .await;
            }
            answered
        };
        let delivery = self.until(&format!("job {id} is delivered"), answered).await;
        (delivery.status_code, delivery.answer)
    }

    /// Deliveries of one action of a job, oldest first.
    pub fn deliveries(&self, id: u64, action: &str) -> Vec<Delivery> {
        let mut deliveries = self.world.github.deliveries();
        deliveries.retain(|delivery| {
            delivery.action.as_deref() == Some(action)
                && serde_json::from_slice::<Value>(&delivery.body)
                    .is_ok_and(|body| body["workflow_job"]["id"] == id)
        });
        deliveries
    }

    /// Waits until an instance of the job is there, and gives its id.
    pub async fn launched(&self, id: u64) -> String {
        self.until(&format!("a machine is launched for job {id}"), async || {
            self.instances(id).into_iter().next().map(|(instance, _)| instance)
        })
        .await
    }

    /// Instances ever launched for a job, with their states, oldest first.
    pub fn instances(&self, id: u64) -> Vec<(String, String)> {
        let views = self.world.ec2.instances().into_iter();
        views
            .filter(|view| {
                view.tags.get("ostler:runner").is_some_and(|name| job_of(name) == Some(id))
            })
            .map(|view| (view.instance_id, view.state))
            .collect()
    }

    /// Names and states of all executions.
    pub async fn executions(&self) -> BTreeMap<String, String> {
        let Ok(machine) = self.world.output("StateMachineArn") else { return BTreeMap::new() };
        let input = json!({"stateMachineArn": machine, "maxResults": 1000});
        let listed =
            self.operator.json("states", "AWSStepFunctions.ListExecutions", &input).await.unwrap();
        assert!(listed["nextToken"].is_null(), "more executions than a page holds");
        let executions = listed["executions"].as_array().unwrap().iter();
        executions.map(|execution| (text(&execution["name"]), text(&execution["status"]))).collect()
    }

    /// Those that were started for a job.
    pub async fn executions_of(&self, id: u64) -> Vec<(String, String)> {
        self.executions().await.into_iter().filter(|(name, _)| job_of(name) == Some(id)).collect()
    }

    pub async fn stop_execution(&self, name: &str) {
        let machine = self.world.output("StateMachineArn").unwrap();
        let arn = format!("{}:{name}", machine.replace(":stateMachine:", ":execution:"));
        let input = json!({"executionArn": arn, "error": "Operator", "cause": "a test"});
        self.operator.json("states", "AWSStepFunctions.StopExecution", &input).await.unwrap();
    }

    /// From now on no launch finds a machine of that type, on that market or any.
    pub fn no_machine(&self, instance_type: &str, market: Option<MarketName>, times: Option<u32>) {
        let (code, message) = ("InsufficientInstanceCapacity".into(), None);
        let (instance_type, zone, subnet) = (Some(instance_type.into()), None, None);
        self.world.ec2.inject(Ec2Fault::Refuse {
            code,
            message,
            market,
            instance_type,
            zone,
            subnet,
            times,
        });
    }

    /// All items of a table that a stack's output names.
    pub async fn items(&self, output: &str) -> BTreeMap<String, Value> {
        let input =
            json!({"TableName": self.world.output(output).unwrap(), "ConsistentRead": true});
        let found = self.operator.json("dynamodb", "DynamoDB_20120810.Scan", &input).await.unwrap();
        assert!(found["LastEvaluatedKey"].is_null(), "more items than a page holds");
        let items = found["Items"].as_array().unwrap().iter();
        items.map(|item| (text(&item["pk"]["S"]), item.clone())).collect()
    }

    /// How often a metric was counted, for any value of its dimension or for one.
    pub fn count(&self, metric: &str, of: Option<&str>) -> usize {
        let points = self.world.edge.lambda().metrics();
        let counted = points.iter().filter(|point| {
            point.name == metric
                && of.is_none_or(|of| point.dimensions.values().any(|value| value == of))
        });
        counted.count()
    }

    /// Waits until nothing lives any more (I5).
    pub async fn nothing_left(&self) {
        self.until("nothing is left", async || {
            let quiet = self.alive().is_empty()
                && self.world.github.snapshot().runners.is_empty()
                && self.items("HandoffTableName").await.is_empty()
                && self.executions().await.values().all(|status| status != "RUNNING");
            quiet.then_some(())
        })
        .await;
    }

    /// Runners whose instances live.
    pub fn alive(&self) -> Vec<String> {
        let views = self.world.ec2.instances().into_iter();
        views
            .filter(|view| !matches!(view.state.as_str(), "terminated" | "shutting-down"))
            .map(|view| view.tags.get("ostler:runner").cloned().unwrap_or(view.instance_id))
            .collect()
    }

    /// Plays the operator who has failed deliveries sent again, and watches that no job ever has two registrations, of
    /// which each could get a job, and no runner two machines (I1). Returns only to say what was broken.
    pub async fn watch(&self) -> String {
        let mut redelivered = BTreeSet::new();
        loop {
            let (mut jobs, mut runners) = (BTreeSet::new(), BTreeSet::new());
            let registered = self.world.github.snapshot().runners;
            if let Some(second) =
                registered.iter().find(|runner| !jobs.insert(job_of(&runner.name)))
            {
                return format!(
                    "a job has two registrations: {} is one of {registered:?}",
                    second.name
                );
            }
            let alive = self.alive();
            if let Some(second) = alive.iter().find(|runner| !runners.insert(*runner)) {
                return format!("a runner has two machines: {second} is one of {alive:?}");
            }
            let mut last = BTreeMap::new();
            for delivery in self.world.github.deliveries() {
                last.insert(delivery.guid.clone(), delivery);
            }
            for delivery in last.into_values().filter(|delivery| delivery.status_code >= 500) {
                if redelivered.insert(delivery.id) {
                    self.world.github.redeliver(delivery.id);
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Invokes a function by the API, and gives its answer.
    pub async fn invoke(&self, function: &str, event: &Value) -> Value {
        let (_, outcome) =
            self.world.edge.lambda().invoke(function, event.to_string().into()).await.unwrap();
        let answer: Value = serde_json::from_slice(&outcome.payload).unwrap();
        assert!(!outcome.error, "{answer}");
        answer
    }

    /// SE-14: what GitHub, and so anyone who may see the App's deliveries, was ever answered says nothing of the account
    /// or of what AWS said.
    pub fn answers_tell_nothing(&self) {
        let deliveries = self.world.github.deliveries();
        assert!(!deliveries.is_empty());
        for Delivery { answer, status_code, .. } in deliveries {
            let told = ["arn:", "Exception", "Throttl", "aws", "AWS", ostler_local::aws::ACCOUNT]
                .into_iter()
                .find(|word| answer.contains(word));
            assert_eq!(told, None, "an answer of {status_code} to GitHub: {answer}");
        }
    }
}

fn spec(name: &str, label: &str) -> JobSpec {
    JobSpec::new(&format!("{name}/{name}"), &["self-hosted", "linux", "x64", label])
}

/// The job that a runner's name is made of.
pub fn job_of(runner: &str) -> Option<u64> {
    // <repository>-<job id>-<12 hex>[-q1][-r1]; ids have eleven digits.
    runner.split('-').filter(|part| part.len() == 11).find_map(|part| part.parse().ok())
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}
