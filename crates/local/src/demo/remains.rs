//! What is left when everything should be over, and whether a secret came out on the way.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ostler_sim::github::Job;
use serde_json::{Value, json};

use super::record::Remains;
use super::scenario::STRANGE;
use crate::world::World;

/// Between two looks at the executions: they are many, and one emulator serves them all.
const INTERVAL: Duration = Duration::from_secs(1);

/// A run of base64 this long in a log is a registration's secret, or as bad.
const LONG_BASE64: usize = 800;

/// Largest file that is searched, in bytes.
const SEARCHED: u64 = 64 * 1024 * 1024;

/// What the names of runners begin with that are started for no job in particular.
pub const WARM: &str = "warm-";

/// Looks for what is left.
#[derive(Default)]
pub struct Remainder {
    looked: Option<tokio::time::Instant>,
}

/// An execution as the state machine lists it.
struct Listed {
    arn: String,
    name: String,
    status: String,
}

impl Remainder {
    /// Whether nothing is left that will still go away. Asks at most once a second.
    pub async fn nothing_left(&mut self, world: &World) -> anyhow::Result<bool> {
        if self.looked.is_some_and(|at| at.elapsed() < INTERVAL) || !instances(world).is_empty() {
            return Ok(false);
        }
        self.looked = Some(tokio::time::Instant::now());
        Ok(list(world).await?.iter().all(|execution| execution.status != "RUNNING"))
    }

    /// Names of all executions.
    pub async fn executions(&self, world: &World) -> anyhow::Result<Vec<String>> {
        Ok(list(world).await?.into_iter().map(|execution| execution.name).collect())
    }

    /// Everything that is left, and what the histories and logs hold.
    pub async fn find(&self, world: &World, forged: &[u16]) -> anyhow::Result<Remains> {
        let executions = list(world).await?;
        let mut remains = Remains {
            instances: instances(world),
            registrations: world
                .github
                .snapshot()
                .runners
                .into_iter()
                .map(|runner| runner.name)
                .collect(),
            handoffs: handoffs(world).await?,
            executions_started: u64::try_from(executions.len()).unwrap_or(u64::MAX),
            warm_started: executions.iter().filter(|it| it.name.starts_with(WARM)).count() as u64,
            untrue: untrue(&ledger(world).await?, &world.github.snapshot().jobs),
            forged_status: forged.first().copied(),
            ..Remains::default()
        };
        let secrets = world.secrets();
        for execution in &executions {
            match execution.status.as_str() {
                "RUNNING" => remains.executions.push(execution.name.clone()),
                "SUCCEEDED" => {}
                other => remains.failed.push(format!("{} {other}", execution.name)),
            }
            let history = history(world, &execution.arn).await?;
            remains.transitions += transitions(&history);
            let text = Value::Array(history).to_string();
            remains.leaks.extend(leaks(&format!("execution {}", execution.name), &text, &secrets));
        }
        for view in world.ec2.instances() {
            let text = format!("{:?}", view.tags);
            remains.leaks.extend(leaks(&format!("tags of {}", view.instance_id), &text, &secrets));
        }
        search(&world.log_dir(), &secrets, &mut remains.leaks)?;
        Ok(remains)
    }
}

/// Whether that runner was started for that job.
pub fn of_job(runner: &str, id: u64) -> bool {
    runner.contains(&format!("-{id}-"))
}

/// Whether a machine in that state never runs again.
pub fn is_over(state: &str) -> bool {
    matches!(state, "terminated" | "shutting-down")
}

fn instances(world: &World) -> Vec<String> {
    world
        .ec2
        .instances()
        .into_iter()
        .filter(|view| !is_over(&view.state))
        .map(|view| format!("{} {}", view.instance_id, view.state))
        .collect()
}

async fn handoffs(world: &World) -> anyhow::Result<Vec<String>> {
    let table = world.output("HandoffTableName")?;
    let input = json!({"TableName": table, "ConsistentRead": true, "ProjectionExpression": "pk"});
    let answer = world
        .edge
        .client("operator")
        .json("dynamodb", "DynamoDB_20120810.Scan", &input)
        .await
        .context("scan the handoff table")?;
    let items = answer["Items"].as_array().cloned().unwrap_or_default();
    Ok(items.iter().filter_map(|item| item["pk"]["S"].as_str().map(str::to_owned)).collect())
}

/// The ledger's items of runners, by name.
async fn ledger(world: &World) -> anyhow::Result<BTreeMap<String, Value>> {
    let input = json!({"TableName": world.output("LedgerTableName")?, "ConsistentRead": true});
    let answer = world
        .edge
        .client("operator")
        .json("dynamodb", "DynamoDB_20120810.Scan", &input)
        .await
        .context("scan the ledger")?;
    let items = answer["Items"].as_array().cloned().unwrap_or_default();
    let named = |item: Value| {
        let name = item["pk"]["S"].as_str()?.strip_prefix("runner#")?.to_owned();
        Some((name, item))
    };
    Ok(items.into_iter().filter_map(named).collect())
}

/// What the ledger says of runners otherwise than GitHub does: no line that a job prints may bring that about. A
/// runner that GitHub showed with a job that we can see is accounted for it; one that is called taken ran a job that
/// it was not started for, or had ended.
fn untrue(ledger: &BTreeMap<String, Value>, jobs: &[Job]) -> Vec<String> {
    let on =
        |name: &str| jobs.iter().find(|job| job.runner.as_ref().is_some_and(|on| on.name == name));
    let mut untrue = Vec::new();
    for (name, item) in ledger {
        let ran = on(name);
        let own = |job: &Job| of_job(name, job.id);
        let (said, ended) = (&item["jobId"], item.get("endedAt").is_some());
        let taken = said["S"] == "taken";
        match said["N"].as_str() {
            Some(said) if ran.is_none_or(|job| job.id.to_string() != said) => {
                let ran = ran.map(|job| job.id);
                untrue.push(format!("the ledger has {name} run job {said}, GitHub {ran:?}"));
            }
            None if taken && !ended && ran.is_none_or(own) => {
                untrue.push(format!("the ledger calls {name} taken, which ran no other job"));
            }
            _ => {}
        }
    }
    for job in jobs.iter().filter(|job| job.repository != STRANGE) {
        let Some(name) = job.runner.as_ref().map(|on| &on.name) else { continue };
        let item = ledger.get(name);
        if item.is_none_or(|item| item["jobId"]["N"] != job.id.to_string().as_str()) {
            let item = item.map(|item| &item["jobId"]);
            untrue.push(format!("job {} ran on {name}, and the ledger says {item:?}", job.id));
        }
    }
    untrue
}

async fn list(world: &World) -> anyhow::Result<Vec<Listed>> {
    let machine = world.output("StateMachineArn")?;
    let client = world.edge.client("operator");
    let mut listed = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut input = json!({"stateMachineArn": machine, "maxResults": 1000});
        if let Some(token) = &token {
            input["nextToken"] = json!(token);
        }
        let answer = client
            .json("states", "AWSStepFunctions.ListExecutions", &input)
            .await
            .context("list executions")?;
        for execution in answer["executions"].as_array().into_iter().flatten() {
            let text = |key: &str| execution[key].as_str().unwrap_or_default().to_owned();
            listed.push(Listed {
                arn: text("executionArn"),
                name: text("name"),
                status: text("status"),
            });
        }
        token = answer["nextToken"].as_str().map(str::to_owned);
        if token.is_none() {
            return Ok(listed);
        }
    }
}

async fn history(world: &World, arn: &str) -> anyhow::Result<Vec<Value>> {
    let input = json!({"executionArn": arn, "maxResults": 1000, "includeExecutionData": true});
    let answer = world
        .edge
        .client("operator")
        .json("states", "AWSStepFunctions.GetExecutionHistory", &input)
        .await
        .context("read an execution's history")?;
    Ok(answer["events"].as_array().cloned().unwrap_or_default())
}

/// What AWS bills: each state entered, and each retry (Step Functions pricing, "state transitions").
fn transitions(history: &[Value]) -> u64 {
    let count = |suffix: &str| {
        let matches =
            |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.ends_with(suffix));
        u64::try_from(history.iter().filter(matches).count()).unwrap_or(u64::MAX)
    };
    let retries = count("TaskScheduled").saturating_sub(count("TaskStateEntered"));
    count("StateEntered") + retries
}

/// Searches every log file of the functions and instances.
fn search(
    dir: &Path,
    secrets: &[(&'static str, String)],
    found: &mut Vec<String>,
) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", dir.display()))?;
        let path = entry.path();
        let meta = entry.metadata().with_context(|| format!("read {}", path.display()))?;
        if meta.is_dir() {
            search(&path, secrets, found)?;
        } else if meta.len() <= SEARCHED && path.extension().is_some_and(|end| end == "log") {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            found.extend(leaks(&path.display().to_string(), &text, secrets));
        }
    }
    Ok(())
}

fn leaks(place: &str, text: &str, secrets: &[(&'static str, String)]) -> Vec<String> {
    let mut found: Vec<String> = secrets
        .iter()
        .filter(|(_, secret)| text.contains(secret.as_str()))
        .map(|(name, _)| format!("{place}: {name}"))
        .collect();
    let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    if text.split(|c| !base64(c)).any(|run| run.len() >= LONG_BASE64) {
        found.push(format!("{place}: a long base64 text"));
    }
    if text.contains("ghs_") {
        found.push(format!("{place}: an installation token"));
    }
    found
}

#[cfg(test)]
mod tests {
    use ostler_sim::github::GitHub;

    use super::*;

    #[test]
    fn i9_secrets_tokens_and_registrations_are_found() {
        let secrets = [("the webhook secret", "s3cret-of-a-test".to_owned())];
        assert_eq!(leaks("a log", "nothing here", &secrets), Vec::<String>::new());
        assert_eq!(leaks("a log", "secret: s3cret-of-a-test", &secrets).len(), 1);
        assert_eq!(leaks("a log", "token ghs_abc", &secrets).len(), 1);
        assert_eq!(leaks("a log", &"A".repeat(900), &secrets).len(), 1);
    }

    #[test]
    fn i7_the_ledger_is_held_against_github() {
        let mut github = GitHub::new(ostler_sim::github::Options::default(), 1);
        github.add_repository("acme/tools", true);
        let now = ostler_core::time::Timestamp::from_seconds(1_796_040_000);
        let spec = ostler_sim::github::JobSpec::new("acme/tools", &["self-hosted"]);
        let id = github.post_job(now, &spec).unwrap();
        let name = format!("tools-{id}-abc");
        let scope = ostler_sim::github::Scope::Organization("acme".into());
        let labels = ["self-hosted".to_owned()];
        let jit = github.generate_jit(now, &scope, &name, Some(1), &labels).unwrap();
        let session = github.connect(now, &jit.encoded).unwrap();
        github.poll_job(now, &session.id).unwrap();
        let jobs: Vec<Job> = github.all_jobs().cloned().collect();
        let of = |name: &str, item: Value| {
            untrue(&BTreeMap::from([(name.to_owned(), item)]), &jobs).len()
        };
        let job = json!({"jobId": {"N": id.to_string()}});
        assert_eq!(of(&name, job.clone()), 0);
        assert_eq!(of(&name, json!({"jobId": {"N": "9"}})), 2, "another job");
        assert_eq!(of(&name, json!({"jobId": {"S": "taken"}})), 2, "its own job");
        assert_eq!(of(&name, json!({})), 1, "unaccounted");
        assert_eq!(of("tools-9-abc", job), 2, "another runner");
        let ended = json!({"jobId": {"S": "taken"}, "endedAt": {"S": "2026-11-30T12:00:00Z"}});
        assert_eq!(of("tools-9-abc", ended), 1, "only that the job's own runner is unaccounted");
    }

    #[test]
    fn transitions_are_states_entered_and_retries() {
        let event = |kind: &str| json!({ "type": kind });
        let history = [
            "TaskStateEntered",
            "TaskScheduled",
            "TaskFailed",
            "TaskScheduled",
            "TaskSucceeded",
            "TaskStateExited",
            "ChoiceStateEntered",
        ];
        assert_eq!(transitions(&history.map(event)), 3);
    }
}
