//! The peer as it would be deployed: its handlers as functions, and the resources that its own stack makes for them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use super::super::{Sample, broken};
use super::figures::Handler;
use super::{life, still_machine};
use crate::lambda_host::{FunctionConfig, Probe, zip_of};
use crate::world::World;

/// Its package.
const PACKAGE: &str = "cloudsnorkel-cdk-github-runners";
/// GitHub's host as its secret names it; `bench/peer/runtime.mjs` leads it to the local one.
const DOMAIN: &str = "github.test";
const TABLE: &str = "peer-tracker";
const QUEUE: &str = "peer-stolen.fifo";
const MACHINE: &str = "peer";
const SECRETS: [&str; 3] = ["peer-github", "peer-github-private-key", "peer-webhook"];
/// Its functions have no memory size of their own: Lambda's default.
const MEMORY_MB: u64 = 128;
/// Its longest time-out, of the idle reaper; the others are shorter, and none is reached.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The peer's processes.
pub struct Peer {
    processes: BTreeMap<Handler, Probe>,
    /// ARN of its state machine.
    machine_arn: String,
}

impl Peer {
    /// Makes what it needs, and makes its functions known.
    pub async fn install(world: &World, package: &Path) -> anyhow::Result<Self> {
        let package = package.canonicalize().with_context(|| {
            format!("{} is not there: scripts/bench_peer.sh fetches it", package.display())
        })?;
        let layer = package.join("layer");
        std::fs::create_dir_all(&layer).with_context(|| format!("make {}", layer.display()))?;
        let providers = json!({"linux": life::LABELS, "big": ["big"]});
        std::fs::write(layer.join("providers.json"), providers.to_string())
            .context("write the peer's providers")?;
        let machine_arn = still_machine(world, MACHINE).await?;
        let environment = Self::resources(world, &machine_arn).await?;
        let runtime = world.root().join("bench/peer/runtime.mjs");
        let node = world.root().join(".venv/bin/node");
        for handler in Handler::ALL {
            let code = package.join("assets").join(format!("{}.lambda", handler.theirs()));
            anyhow::ensure!(code.join("index.js").exists(), "{} has no index.js", code.display());
            let mut environment = environment.clone();
            let paths = [
                ("BENCH_CODE", &code),
                ("BENCH_LAYER", &layer),
                ("NODE_PATH", &package.join("node_modules")),
            ];
            environment
                .extend(paths.map(|(name, path)| (name.to_owned(), path.display().to_string())));
            let config = FunctionConfig {
                name: function_name(handler),
                timeout: TIMEOUT,
                memory_mb: MEMORY_MB,
                handler: "index.handler".to_owned(),
                environment,
                log_group: format!("/aws/lambda/{}", function_name(handler)),
                json_log: true,
                ..FunctionConfig::default()
            };
            let start = format!("#!/bin/sh\nexec '{}' '{}'\n", node.display(), runtime.display());
            let zip = zip_of(start.as_bytes()).map_err(anyhow::Error::msg)?;
            world.edge.lambda().define(config, &zip).await.map_err(anyhow::Error::msg)?;
        }
        Ok(Self { processes: BTreeMap::new(), machine_arn })
    }

    /// Its secrets, its table and its queue; gives the variables that lead its functions there.
    async fn resources(
        world: &World,
        machine_arn: &str,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let moto = world.edge.moto();
        let github = json!({
            "domain": DOMAIN, "appId": world.github.app_id(), "personalAuthToken": "", "runnerLevel": "org",
        });
        let values = [
            github.to_string(),
            world.github.app_private_key_pem().to_owned(),
            json!({"webhookSecret": world.webhook_secret()}).to_string(),
        ];
        let mut arns = Vec::new();
        for (name, value) in SECRETS.iter().zip(values) {
            let input =
                json!({"Name": name, "SecretString": value, "ClientRequestToken": "0".repeat(32)});
            let made = moto.json("secretsmanager", "secretsmanager.CreateSecret", &input).await;
            let made = made.with_context(|| format!("make the secret {name}"))?;
            arns.push(made["ARN"].as_str().context("the secret has no ARN")?.to_owned());
        }
        let table = json!({
            "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
        });
        let made = moto.json("dynamodb", "DynamoDB_20120810.CreateTable", &table).await;
        made.context("make the peer's table")?;
        // As its stack makes it.
        let queue = json!({"QueueName": QUEUE, "Attributes": {
            "FifoQueue": "true", "DelaySeconds": "60", "VisibilityTimeout": "180", "MessageRetentionPeriod": "3600",
        }});
        let made = moto.json("sqs", "AmazonSQS.CreateQueue", &queue).await;
        let made = made.context("make the peer's queue")?;
        let queue_url = made["QueueUrl"].as_str().context("the queue has no URL")?;
        // Its SDK calls the host of the URL, which is moto's here; queues are the edge's.
        let queue_url = queue_url.split_once("//").and_then(|(_, rest)| rest.split_once('/'));
        let (_, path) = queue_url.context("the queue's URL has no path")?;
        let queue_url = format!("{}/{path}", world.edge.url().trim_end_matches('/'));
        let variables = [
            ("GITHUB_SECRET_ARN", arns[0].as_str()),
            ("GITHUB_PRIVATE_KEY_SECRET_ARN", &arns[1]),
            ("WEBHOOK_SECRET_ARN", &arns[2]),
            ("STEP_FUNCTION_ARN", machine_arn),
            ("RUNNER_TRACKER_TABLE", TABLE),
            ("JOB_ASSIGNMENT_QUEUE_URL", &queue_url),
            ("REQUIRE_SELF_HOSTED_LABEL", "1"),
            ("PROVIDER_SELECTOR_ARN", ""),
            ("STACK_NAME", "peer"),
            ("BENCH_GITHUB", world.github.url()),
        ];
        Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    /// Starts a handler's process anew; gives how long it took to be ready.
    pub async fn restart(
        &mut self,
        world: &World,
        handler: Handler,
        procs: Option<&Path>,
    ) -> anyhow::Result<Duration> {
        self.processes.remove(&handler);
        let name = function_name(handler);
        let probe = world.edge.lambda().probe(&name, &[], procs).await;
        let probe = probe.map_err(|error| broken(&name, &error))?;
        let init = probe.init();
        self.processes.insert(handler, probe);
        Ok(init)
    }

    /// A handler's process.
    pub fn process_id(&self, handler: Handler) -> Option<u32> {
        self.processes.get(&handler)?.process_id()
    }

    /// Hands an event to a handler.
    pub async fn sample(
        &mut self,
        world: &World,
        handler: Handler,
        event: &Value,
    ) -> anyhow::Result<Sample> {
        let name = function_name(handler);
        let process = self.processes.get_mut(&handler);
        let process = process.ok_or_else(|| anyhow!("{name} was not started"))?;
        Sample::take(world, process, &name, event).await
    }

    /// ARN of the execution of that name.
    pub fn execution_arn(&self, name: &str) -> String {
        format!("{}:{name}", self.machine_arn.replace(":stateMachine:", ":execution:"))
    }
}

fn function_name(handler: Handler) -> String {
    format!("peer-{}", handler.theirs())
}

/// Of the peer, of the SDK that it calls, and of Node.
pub fn versions(package: &Path, root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let pinned = root.join("bench/peer/requirements.txt");
    let pinned =
        std::fs::read_to_string(&pinned).with_context(|| format!("read {}", pinned.display()))?;
    let peer = pinned
        .lines()
        .find_map(|line| line.strip_prefix(PACKAGE)?.strip_prefix("=="))
        .and_then(|rest| rest.split_whitespace().next())
        .with_context(|| format!("bench/peer/requirements.txt does not pin {PACKAGE}"))?;
    let sdk = package.join("node_modules/@aws-sdk/client-sfn/package.json");
    let sdk = std::fs::read(&sdk).with_context(|| format!("read {}", sdk.display()))?;
    let sdk: Value = serde_json::from_slice(&sdk).context("the SDK's package.json")?;
    let node = std::process::Command::new(root.join(".venv/bin/node")).arg("--version").output();
    let node = String::from_utf8(node.context("run node")?.stdout).context("node's version")?;
    Ok([
        (PACKAGE, peer),
        ("@aws-sdk/client-sfn", sdk["version"].as_str().unwrap_or("")),
        ("node", node.trim().trim_start_matches('v')),
    ]
    .map(|(name, version)| (name.to_owned(), version.to_owned()))
    .into())
}
