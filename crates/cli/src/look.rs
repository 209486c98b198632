//! What is looked at: an install's stacks, executions, machines, logs and GitHub, by calls that only read.
//! Lists are read to a limit, which is said where it cuts something off.

use std::collections::BTreeMap;
use std::rc::Rc;

use ostler_aws::{SdkConfig, SsmConfiguration};
use ostler_core::time::Timestamp;
use ostler_github::ConfiguredGitHub;
use ostler_lambda::SystemClock;
use serde_json::{Value, json};

use crate::story::{Answer, ExecutionSeen, JobItem, Looked, MachineSeen, RunnerItem, Said, Step};
use crate::wire::{DYNAMODB, LOGS, MONITORING, STATES, Wire};

/// Pages of a list that are read at most.
const MAX_PAGES: usize = 10;

/// Lines that are read of a log for one runner.
const MAX_LINES: usize = 200;

/// Steps of an execution that are read: checks are half an hour apart at last, so a life of five days has some 250,
/// and a launch that waits a day some 200.
const MAX_EVENTS: usize = 5_000;

/// Keys that one BatchGetItem takes (DynamoDB API Reference).
const BATCH: usize = 100;

/// The parameters that are read, after the prefix.
const PARAMETERS: [&str; 7] = [
    "control/tiers",
    "control/app",
    "control/apps",
    "control/app-private-key",
    "control/webhook-secret",
    "control/webhook-secret-previous",
    "control/name-key",
];

/// The stacks of an install, by their names.
#[derive(Clone, Debug, clap::Args)]
pub struct Stacks {
    /// The control stack
    #[arg(long, default_value = "ostler", env = "OSTLER_STACK")]
    pub stack: String,
    /// The recovery stack
    #[arg(long, default_value = "ostler-recovery")]
    pub recovery_stack: String,
    /// The reaper's stack
    #[arg(long, default_value = "ostler-reaper")]
    pub reaper_stack: String,
    /// The registration janitor's stack
    #[arg(long, default_value = "ostler-janitor")]
    pub janitor_stack: String,
}

/// What the control stack told its functions: their variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployed {
    /// Of the install, in the tag of its machines.
    pub owner: String,
    /// Path of the parameters.
    pub prefix: String,
    /// The ledger.
    pub table: String,
    /// The state machine's ARN.
    pub machine: String,
    /// Where runners start.
    pub subnets: Vec<String>,
    /// Launch template and version, on-demand and spot.
    pub templates: Vec<String>,
}

impl Deployed {
    /// Reads the variables of the orchestrator. The error names what is missing.
    pub fn read(variables: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |name: &str| {
            let value = variables.get(name).filter(|value| !value.is_empty()).cloned();
            value.ok_or_else(|| {
                format!("the orchestrator has no variable {name}: deploy the control stack anew")
            })
        };
        let list = |text: String| text.split(',').map(str::trim).map(str::to_owned).collect();
        Ok(Self {
            owner: text("OSTLER_OWNER")?,
            prefix: text("OSTLER_PREFIX")?,
            table: text("OSTLER_LEDGER_TABLE")?,
            machine: text("OSTLER_STATE_MACHINE_ARN")?,
            subnets: list(text("OSTLER_SUBNET_IDS")?),
            templates: vec![text("OSTLER_TEMPLATE_ON_DEMAND")?, text("OSTLER_TEMPLATE_SPOT")?],
        })
    }
}

/// GitHub as the install's App sees it.
pub type Forge = ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>;

/// What looks.
pub struct Lookout {
    /// The clock: real, or in the local world that world's.
    pub clock: SystemClock,
    /// AWS's JSON protocol, and plain HTTP.
    pub wire: Wire,
    /// Lambda.
    pub lambda: aws_sdk_lambda::Client,
    /// EC2.
    pub ec2: aws_sdk_ec2::Client,
    /// The SDK's configuration.
    pub aws: SdkConfig,
    /// Names of the stacks.
    pub stacks: Stacks,
}

/// The clock: real, or in the local world that world's.
pub fn clock() -> anyhow::Result<SystemClock> {
    let variable = |name: &str| std::env::var(name).ok();
    let (clock, endpoint) = (variable("OSTLER_CLOCK"), variable("AWS_ENDPOINT_URL"));
    let clock = SystemClock::from_variables(clock.as_deref(), endpoint.as_deref());
    clock.map_err(anyhow::Error::msg)
}

impl Lookout {
    /// Makes no call.
    pub fn new(aws: SdkConfig, stacks: Stacks) -> anyhow::Result<Self> {
        Ok(Self {
            clock: clock()?,
            wire: Wire::new(&aws)?,
            lambda: aws_sdk_lambda::Client::new(&aws),
            ec2: aws_sdk_ec2::Client::new(&aws),
            aws,
            stacks,
        })
    }

    /// The install's configuration.
    pub fn configuration(&self, prefix: &str) -> Rc<SsmConfiguration<SystemClock>> {
        Rc::new(SsmConfiguration::new(&self.aws, prefix, &PARAMETERS, SystemClock::REAL))
    }

    /// GitHub, by the install's own App.
    pub fn forge(&self, configuration: &Rc<SsmConfiguration<SystemClock>>) -> Forge {
        ConfiguredGitHub::new(Rc::clone(configuration), self.clock)
    }

    /// The variables of a function; `None` if there is no such function.
    pub async fn variables(&self, function: &str) -> Looked<BTreeMap<String, String>> {
        let asked = self.lambda.get_function_configuration().function_name(function).send().await;
        match asked {
            Ok(found) => {
                let variables = found.environment.and_then(|all| all.variables).unwrap_or_default();
                Ok(Some(variables.into_iter().collect()))
            }
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|it| it.is_resource_not_found_exception()) =>
            {
                Ok(None)
            }
            Err(error) => {
                Err(ostler_aws::sdk_error(&format!("look for the function {function}"), error)
                    .to_string())
            }
        }
    }

    /// What the control stack has deployed.
    pub async fn deployed(&self) -> Result<Deployed, String> {
        let function = format!("{}-orchestrator", self.stacks.stack);
        let variables = self.variables(&function).await?;
        let missing = || {
            format!(
                "there is no function {function} here: is {} the control stack's name (--stack), and the region right?",
                self.stacks.stack
            )
        };
        Deployed::read(&variables.ok_or_else(missing)?)
    }

    /// Items of the ledger, by key; those that are not there are left out.
    pub async fn items(
        &self,
        table: &str,
        keys: &[String],
    ) -> Result<BTreeMap<String, Value>, String> {
        let mut found = BTreeMap::new();
        let batches = keys.chunks(BATCH).map(|keys| self.batch(table, keys));
        for batch in at_once(batches).await {
            found.extend(batch?);
        }
        let now = ostler_core::ports::Clock::now(&self.clock);
        found.retain(|_, item| time(&item["ttl"]).is_none_or(|ttl| ttl > now));
        Ok(found)
    }

    async fn batch(&self, table: &str, keys: &[String]) -> Result<BTreeMap<String, Value>, String> {
        let mut found = BTreeMap::new();
        let mut left: Vec<Value> = keys.iter().map(|key| json!({"pk": {"S": key}})).collect();
        // DynamoDB may leave some of them for the next call.
        for _ in 0..MAX_PAGES {
            if left.is_empty() {
                return Ok(found);
            }
            let input = json!({"RequestItems": {table: {"Keys": left, "ConsistentRead": true}}});
            let answer = self.wire.ask(DYNAMODB, "BatchGetItem", &input).await?;
            for item in list(&answer["Responses"][table]) {
                found.insert(text(&item["pk"]["S"]).unwrap_or_default(), item.clone());
            }
            left = list(&answer["UnprocessedKeys"][table]["Keys"]).to_vec();
        }
        Err(format!("dynamodb:BatchGetItem: {} items were left again and again", left.len()))
    }

    /// Names and starts of the executions that run, the newest first, and whether there are more.
    pub async fn running(&self, machine: &str) -> Result<(Vec<(String, Timestamp)>, bool), String> {
        let mut found = Vec::new();
        let mut next = Value::Null;
        for _ in 0..MAX_PAGES {
            let mut input =
                json!({"stateMachineArn": machine, "statusFilter": "RUNNING", "maxResults": 1000});
            if !next.is_null() {
                input["nextToken"] = next;
            }
            let answer = self.wire.ask(STATES, "ListExecutions", &input).await?;
            for execution in list(&answer["executions"]) {
                if let (Some(name), Some(at)) =
                    (text(&execution["name"]), moment(&execution["startDate"]))
                {
                    found.push((name, at));
                }
            }
            next = answer["nextToken"].clone();
            if next.is_null() {
                return Ok((found, false));
            }
        }
        Ok((found, true))
    }

    /// An execution with its history.
    pub async fn execution(&self, machine: &str, name: &str) -> Looked<ExecutionSeen> {
        let arn = format!("{}:{name}", machine.replace(":stateMachine:", ":execution:"));
        let described =
            self.wire.ask(STATES, "DescribeExecution", &json!({"executionArn": arn})).await;
        let described = match described {
            Ok(described) => described,
            Err(trouble) if trouble.code.as_deref() == Some("ExecutionDoesNotExist") => {
                return Ok(None);
            }
            Err(trouble) => return Err(trouble.text),
        };
        let (mut events, mut next, mut more) = (Vec::new(), Value::Null, true);
        while more && events.len() < MAX_EVENTS {
            let mut input = json!({"executionArn": arn, "maxResults": 1000});
            if !next.is_null() {
                input["nextToken"] = next;
            }
            let answer = self.wire.ask(STATES, "GetExecutionHistory", &input).await?;
            events.extend(list(&answer["events"]).iter().cloned());
            next = answer["nextToken"].clone();
            more = !next.is_null();
        }
        Ok(Some(ExecutionSeen {
            status: text(&described["status"]).unwrap_or_default(),
            started: moment(&described["startDate"]).unwrap_or_default(),
            stopped: moment(&described["stopDate"]),
            input: text(&described["input"]).and_then(|input| serde_json::from_str(&input).ok()),
            failure: failure(&described),
            steps: steps(&events),
            more,
        }))
    }

    /// Instances of a runner, or all of the install's that live.
    pub async fn machines(
        &self,
        owner: &str,
        runner: Option<&str>,
    ) -> Result<Vec<(String, String, MachineSeen)>, String> {
        use aws_sdk_ec2::types::Filter;
        let filter = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
        let mut filters = vec![filter("tag:ostler:owner", owner)];
        match runner {
            Some(runner) => filters.push(filter("tag:ostler:runner", runner)),
            None => filters.push(
                Filter::builder()
                    .name("instance-state-name")
                    .set_values(Some(
                        ["pending", "running", "stopping", "stopped"].map(str::to_owned).into(),
                    ))
                    .build(),
            ),
        }
        let (mut found, mut next) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let request = self.ec2.describe_instances().set_filters(Some(filters.clone()));
            let answer = request.max_results(1000).set_next_token(next).send().await;
            let answer = answer
                .map_err(|error| ostler_aws::sdk_error("list instances", error).to_string())?;
            let reservations = answer.reservations.unwrap_or_default().into_iter();
            for instance in reservations.flat_map(|it| it.instances.unwrap_or_default()) {
                let tag = |key: &str| {
                    let tag = instance.tags().iter().find(|tag| tag.key() == Some(key));
                    tag.and_then(|tag| tag.value()).unwrap_or_default().to_owned()
                };
                found.push((tag("ostler:runner"), tag("ostler:tier"), machine(&instance)));
            }
            next = answer.next_token;
            if next.is_none() {
                return Ok(found);
            }
        }
        Err(format!("there are more than {} instances: not all were read", found.len()))
    }

    /// Lines of a log group with that text in them, from then on; of one stream's beginning if one is given. No line if
    /// there is no such group.
    pub async fn lines(
        &self,
        group: &str,
        stream: Option<&str>,
        pattern: Option<&str>,
        from: Timestamp,
    ) -> Looked<Vec<Said>> {
        let who = group.rsplit('/').next().unwrap_or(group);
        let mut said = Vec::new();
        let mut next = Value::Null;
        for _ in 0..MAX_PAGES {
            let mut input = json!({"logGroupName": group, "limit": MAX_LINES});
            if let Some(stream) = stream {
                input["logStreamNamePrefix"] = json!(stream);
            }
            if let Some(pattern) = pattern {
                // Names of runners and numbers of jobs: nothing in them needs an escape.
                input["filterPattern"] = json!(format!("\"{pattern}\""));
                input["startTime"] = json!(from.millis());
            }
            if !next.is_null() {
                input["nextToken"] = next;
            }
            let answer = match self.wire.ask(LOGS, "FilterLogEvents", &input).await {
                Ok(answer) => answer,
                Err(trouble) if trouble.code.as_deref() == Some("ResourceNotFoundException") => {
                    return Ok(None);
                }
                Err(trouble) => return Err(trouble.text),
            };
            for event in list(&answer["events"]) {
                let at = event["timestamp"].as_i64().map(Timestamp::from_millis);
                if let (Some(at), Some(message)) = (at, event["message"].as_str()) {
                    said.push(line(who, at, message));
                }
            }
            next = answer["nextToken"].clone();
            if next.is_null() || said.len() >= MAX_LINES {
                break;
            }
        }
        Ok(Some(said))
    }

    /// The alarms of those stacks that ring: name and reason.
    pub async fn alarms(&self) -> Result<Vec<(String, String)>, String> {
        let prefixes: Vec<String> =
            [&self.stacks.stack, &self.stacks.recovery_stack, &self.stacks.reaper_stack]
                .map(|stack| format!("{stack}-"))
                .into();
        let mut found = BTreeMap::new();
        for prefix in prefixes {
            let mut next = Value::Null;
            for _ in 0..MAX_PAGES {
                let mut input = json!({"AlarmNamePrefix": prefix, "MaxRecords": 100});
                if !next.is_null() {
                    input["NextToken"] = next;
                }
                let answer = self.wire.ask(MONITORING, "DescribeAlarms", &input).await?;
                for alarm in list(&answer["MetricAlarms"]) {
                    if alarm["StateValue"] == "ALARM" {
                        let reason = text(&alarm["AlarmDescription"]).unwrap_or_default();
                        found.insert(text(&alarm["AlarmName"]).unwrap_or_default(), reason);
                    }
                }
                next = answer["NextToken"].clone();
                if next.is_null() {
                    break;
                }
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// All of them at the same time, in order.
pub async fn at_once<T>(all: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    // A few at a time, so that no service is asked too much.
    const SIDE_BY_SIDE: usize = 8;
    let mut done = Vec::new();
    let mut all = all.into_iter().peekable();
    while all.peek().is_some() {
        let some: Vec<_> = all.by_ref().take(SIDE_BY_SIDE).collect();
        done.extend(ostler_core::together::all(some).await);
    }
    done
}

fn machine(instance: &aws_sdk_ec2::types::Instance) -> MachineSeen {
    let state = instance.state().and_then(|state| state.name());
    let reason = instance.state_reason().and_then(|it| it.message().or(it.code()));
    MachineSeen {
        id: instance.instance_id().unwrap_or_default().to_owned(),
        instance_type: instance
            .instance_type()
            .map(|it| it.as_str().to_owned())
            .unwrap_or_default(),
        spot: instance.instance_lifecycle().is_some_and(|it| it.as_str() == "spot"),
        zone: instance
            .placement()
            .and_then(|it| it.availability_zone())
            .unwrap_or_default()
            .to_owned(),
        state: state.map(|state| state.as_str().to_owned()).unwrap_or_default(),
        launched: instance
            .launch_time()
            .and_then(|at| at.to_millis().ok())
            .map(Timestamp::from_millis),
        reason: reason.map(str::to_owned),
    }
}

/// A line of a function's log, which is JSON with level and fields, or of a machine's, which is anything.
fn line(who: &str, at: Timestamp, message: &str) -> Said {
    let message = message.trim_end();
    let parsed: Value = match who {
        "runners" => Value::Null,
        _ => serde_json::from_str(message).unwrap_or(Value::Null),
    };
    let Some(level) = parsed["level"].as_str() else {
        return Said { at, who: who.into(), level: String::new(), text: message.into() };
    };
    let fields = parsed.get("fields").unwrap_or(&parsed);
    let mut said = text(&fields["message"]).unwrap_or_default();
    for key in ["reason", "text", "failure", "error", "after", "tier", "replaced", "replacement"] {
        match &fields[key] {
            Value::Null => {}
            Value::String(value) => said += &format!("; {key}: {value}"),
            value => said += &format!("; {key}: {value}"),
        }
    }
    Said { at, who: who.into(), level: level.to_owned(), text: said }
}

/// What an execution's history tells of its steps: each Task's answers and failures, in order. `$.run.state` is what
/// the function answered.
fn steps(events: &[Value]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut state = String::new();
    for event in events {
        let kind = event["type"].as_str().unwrap_or_default();
        let at = moment(&event["timestamp"]).unwrap_or_default();
        let name = || state.clone();
        match kind {
            "TaskStateEntered" => {
                state = text(&event["stateEnteredEventDetails"]["name"]).unwrap_or_default();
            }
            // The cleanup of an execution that can't go on: its answer has a path of its own.
            "TaskStateExited" if state == "Abandon" => {
                let answer = Answer { next: "done".into(), ..Answer::default() };
                steps.push(Step { at, name: "Cleanup".into(), outcome: Ok(answer) });
            }
            "TaskStateExited" => {
                let output = text(&event["stateExitedEventDetails"]["output"]).unwrap_or_default();
                let output: Value = serde_json::from_str(&output).unwrap_or(Value::Null);
                let answer = &output["run"]["state"];
                // After a Catch there is an error and no new answer; the failures have been told.
                if output.get("error").is_none() {
                    let next = text(&answer["next"]).unwrap_or_default();
                    let state = serde_json::from_value(answer.clone()).unwrap_or_default();
                    steps.push(Step { at, name: name(), outcome: Ok(Answer { next, state }) });
                }
            }
            "TaskFailed"
            | "TaskTimedOut"
            | "TaskSubmitFailed"
            | "TaskStartFailed"
            | "LambdaFunctionFailed"
            | "LambdaFunctionTimedOut" => {
                let details = event.as_object().into_iter().flatten();
                let details = details.filter(|(key, _)| key.ends_with("EventDetails"));
                let why = details.map(|(_, value)| failure(value).unwrap_or_default()).collect();
                steps.push(Step { at, name: name(), outcome: Err(why) });
            }
            _ => {}
        }
    }
    steps
}

/// Error and cause. Lambda's cause is JSON with the function's own words in it.
fn failure(of: &Value) -> Option<String> {
    let error = text(&of["error"]);
    let cause = text(&of["cause"]).map(|cause| {
        let told: Value = serde_json::from_str(&cause).unwrap_or(Value::Null);
        text(&told["errorMessage"]).unwrap_or(cause)
    });
    match (error, cause) {
        (Some(error), Some(cause)) => Some(format!("{error}: {cause}")),
        (one, other) => one.or(other),
    }
}

/// `job#<id>`.
pub fn job_item(item: &Value) -> JobItem {
    let text = |name: &str| text(&item[name]["S"]);
    let repository = match (text("owner"), text("repo")) {
        (Some(owner), Some(repo)) => Some(format!("{owner}/{repo}")),
        _ => None,
    };
    JobItem {
        runner: text("runnerName"),
        tier: text("tier"),
        repository,
        url: text("jobUrl"),
        queued: time(&item["queuedAt"]),
        cancelled: time(&item["cancelledAt"]),
    }
}

/// `runner#<name>`.
pub fn runner_item(item: &Value) -> RunnerItem {
    let string = |name: &str| text(&item[name]["S"]).or_else(|| text(&item[name]["N"]));
    RunnerItem {
        id: string("runnerId").and_then(|id| id.parse().ok()),
        ran: string("jobId"),
        ran_repository: string("jobRepo"),
        accounted: time(&item["accountedAt"]),
        interrupted: time(&item["interruptedAt"]),
        ended: time(&item["endedAt"]),
    }
}

/// A time of the ledger: RFC 3339 text, or seconds since 1970.
pub fn time(attribute: &Value) -> Option<Timestamp> {
    match (attribute["S"].as_str(), attribute["N"].as_str()) {
        (Some(text), _) => Timestamp::parse(text),
        (_, Some(seconds)) => seconds.parse().ok().map(Timestamp::from_seconds),
        _ => None,
    }
}

/// A time in AWS's JSON: seconds since 1970 with a fraction.
fn moment(value: &Value) -> Option<Timestamp> {
    let seconds = value.as_f64()?;
    #[allow(clippy::cast_possible_truncation, reason = "a cast of f64 to i64 saturates")]
    Some(Timestamp::from_millis((seconds * 1000.0).round() as i64))
}

/// The entries of a list; none of anything else.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A text that is not empty.
pub fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(name: &str) -> Value {
        json!({"type": "TaskStateEntered", "timestamp": 1_764_504_000.5, "stateEnteredEventDetails": {"name": name}})
    }

    fn exited(output: &Value) -> Value {
        json!({"type": "TaskStateExited", "timestamp": 1_764_504_001.25,
            "stateExitedEventDetails": {"output": output.to_string()}})
    }

    #[test]
    fn an_executions_history_becomes_its_steps() {
        let cause =
            json!({"errorMessage": "control/tiers is not set", "errorType": "Later"}).to_string();
        let history = [
            json!({"type": "ExecutionStarted", "timestamp": 1.0}),
            entered("Launch"),
            json!({"type": "TaskFailed", "timestamp": 1_764_504_000.75, "taskFailedEventDetails": {"error": "Later", "cause": cause}}),
            exited(&json!({"run": {"state": {"next": "register", "instance": "i-1"}}})),
            json!({"type": "ChoiceStateEntered", "stateEnteredEventDetails": {"name": "Launched?"}}),
            entered("Register"),
            exited(
                &json!({"run": {"state": {"next": "register", "instance": "i-1"}}, "error": {"Error": "x"}}),
            ),
            entered("Abandon"),
            exited(&json!({"run": {}, "error": {}, "cleanup": {}})),
        ];
        let steps = steps(&history);
        let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["Launch", "Launch", "Cleanup"]);
        assert_eq!(steps[0].outcome.as_ref().unwrap_err(), "Later: control/tiers is not set");
        let launched = steps[1].outcome.as_ref().unwrap();
        assert_eq!(
            (launched.next.as_str(), launched.state.instance.as_deref()),
            ("register", Some("i-1"))
        );
        assert_eq!(steps[1].at, Timestamp::from_millis(1_764_504_001_250));
    }

    #[test]
    fn i8_odd_histories_and_items_cost_nothing_but_themselves() {
        let odd = [
            json!(null),
            json!({}),
            json!([1]),
            exited(&json!(7)),
            entered("X"),
            json!({"type": "TaskFailed"}),
        ];
        assert_eq!(
            steps(&odd).len(),
            2,
            "an exit without an answer, and a failure without a cause"
        );
        assert_eq!(job_item(&json!({"pk": 7})), JobItem::default());
        assert_eq!(runner_item(&json!([])), RunnerItem::default());
    }

    #[test]
    fn items_are_read_as_the_ledger_writes_them() {
        let job = job_item(
            &json!({"runnerName": {"S": "w-1-a"}, "tier": {"S": "small"}, "owner": {"S": "acme"},
            "repo": {"S": "widgets"}, "queuedAt": {"S": "2026-11-30T12:00:00Z"}}),
        );
        assert_eq!(
            (job.runner.as_deref(), job.repository.as_deref()),
            (Some("w-1-a"), Some("acme/widgets"))
        );
        assert_eq!(job.queued, Timestamp::parse("2026-11-30T12:00:00Z"));
        let ran = |id: Value| runner_item(&json!({"jobId": id, "runnerId": {"N": "7"}}));
        assert_eq!(ran(json!({"N": "42"})).ran.as_deref(), Some("42"));
        assert_eq!(ran(json!({"S": "taken"})).ran.as_deref(), Some("taken"));
        assert_eq!(ran(Value::Null), RunnerItem { id: Some(7), ..RunnerItem::default() });
    }

    #[test]
    fn a_functions_lines_are_json_and_a_machines_are_anything() {
        let at = Timestamp::from_seconds(1);
        let json = r#"{"timestamp":"x","level":"WARN","message":"no machine","reason":"Capacity","runner":"w"}"#;
        let said = line("orchestrator", at, json);
        assert_eq!(
            (said.level.as_str(), said.text.as_str()),
            ("WARN", "no machine; reason: Capacity")
        );
        assert_eq!(
            line("runners", at, json).text,
            json,
            "what a machine prints is not believed to be ours"
        );
        assert_eq!(line("orchestrator", at, "START RequestId").level, "");
    }

    #[test]
    fn the_orchestrators_variables_tell_where_all_is() {
        let variables = [
            ("OSTLER_OWNER", "acme"),
            ("OSTLER_PREFIX", "/ostler"),
            ("OSTLER_LEDGER_TABLE", "ledger"),
            ("OSTLER_STATE_MACHINE_ARN", "arn:x"),
            ("OSTLER_SUBNET_IDS", "subnet-1, subnet-2"),
            ("OSTLER_TEMPLATE_ON_DEMAND", "lt-1:2"),
            ("OSTLER_TEMPLATE_SPOT", "lt-2:1"),
        ];
        let mut all: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let deployed = Deployed::read(&all).unwrap();
        assert_eq!(deployed.subnets, ["subnet-1", "subnet-2"]);
        for (name, _) in variables {
            let value = all.remove(name).unwrap();
            assert!(Deployed::read(&all).unwrap_err().contains(name));
            all.insert(name.into(), value);
        }
    }
}
