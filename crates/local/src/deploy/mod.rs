//! What moto leaves out of a deployed template, made from the same template's text: function URLs, rules
//! and schedules, log subscriptions, event source mappings, expiry of table items.

pub mod events;
pub mod logs;
pub mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use ostler_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::aws::{self, ApiError};
use crate::edge::{ExecutionEnded, InstanceScope};
use crate::lambda_host::{self, AsyncConfig, Host};
use crate::queues::{self, Mapping, Queues};
use crate::time::WorldClock;
use crate::xml::Node;
use events::Schedule;
use logs::{FilterPattern, Logs, Subscription};
use template::Template;

/// CloudFormation's API version.
const CLOUDFORMATION: &str = "2010-05-15";
/// Undelivered events are kept and tried this long and often, unless the target says otherwise.
/// Source: EventBridge user guide, "Event retry policy and using dead-letter queues".
const EVENT_AGE_DEFAULT: Duration = Duration::from_secs(86_400);
const EVENT_RETRIES_DEFAULT: u32 = 185;
/// First and longest delay between tries, world time; AWS says only "exponential back-off".
const EVENT_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// The bus on which AWS's own events are.
const DEFAULT_BUS: &str = "default";
/// How often tables are searched for expired items, world time.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// How long after its time an item is deleted: "typically within a few days".
/// Source: DynamoDB developer guide, "Using time to live (TTL)".
const EXPIRY_LAG: Duration = Duration::from_secs(172_800);

/// A target of a rule.
#[derive(Clone, Debug)]
struct Target {
    rule_arn: String,
    arn: String,
    input: Option<String>,
    retries: u32,
    age: Duration,
    dead_letters: Option<String>,
}

/// A rule that takes events by a pattern.
struct Rule {
    /// Name of the bus that it listens to.
    bus: String,
    pattern: Value,
    targets: Vec<Target>,
}

/// A statement of a function's resource policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Permission {
    function: String,
    action: String,
    principal: String,
}

/// What was made for one stack. Schedules end when it is dropped.
#[derive(Default)]
struct Made {
    /// Where it is, if not in [`aws::ACCOUNT`].
    account: Option<String>,
    /// Template, parameters and resources it was made from.
    source: String,
    /// Function to whether its URL is open (`AuthType: NONE`).
    urls: BTreeMap<String, bool>,
    permissions: Vec<Permission>,
    rules: Vec<Rule>,
    buses: Vec<events::BusPolicy>,
    tables: Vec<Table>,
    scope: InstanceScope,
    outputs: BTreeMap<String, String>,
    schedules: Vec<JoinHandle<()>>,
}

impl Drop for Made {
    fn drop(&mut self) {
        self.schedules.iter().for_each(JoinHandle::abort);
    }
}

/// A table whose items expire.
#[derive(Clone, Debug)]
struct Table {
    name: String,
    attribute: String,
    key: Vec<String>,
}

/// The effects of all deployed stacks.
pub struct Deployments {
    clock: WorldClock,
    moto: aws::Client,
    /// Under which EventBridge invokes functions.
    events: aws::Client,
    edge_url: String,
    host: Arc<Host>,
    queues: Arc<Queues>,
    logs: Arc<Logs>,
    /// By name, in another account by [`key`].
    stacks: Mutex<BTreeMap<String, Made>>,
    /// Other accounts.
    elsewhere: Mutex<Vec<String>>,
    syncing: tokio::sync::Mutex<()>,
    expiry_lag: Mutex<Duration>,
    expiry: Mutex<Option<JoinHandle<()>>>,
}

impl Deployments {
    /// Ends a stack's schedules, for who invokes its functions by hand.
    pub fn end_schedules(&self, stack: &str) {
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = stacks.get_mut(stack) {
            made.schedules.drain(..).for_each(|schedule| schedule.abort());
        }
    }

    pub(crate) fn new(
        clock: WorldClock,
        moto: aws::Client,
        events: aws::Client,
        host: &Arc<Host>,
        queues: &Arc<Queues>,
    ) -> Arc<Self> {
        let deployments = Arc::new(Self {
            clock,
            moto,
            edge_url: events.base().to_owned(),
            events,
            host: Arc::clone(host),
            queues: Arc::clone(queues),
            logs: Logs::new(Arc::clone(host)),
            stacks: Mutex::default(),
            elsewhere: Mutex::default(),
            syncing: tokio::sync::Mutex::default(),
            expiry_lag: Mutex::new(EXPIRY_LAG),
            expiry: Mutex::default(),
        });
        let weak = Arc::downgrade(&deployments);
        let expiry = tokio::spawn(async move {
            loop {
                tokio::time::sleep(clock.real(EXPIRY_INTERVAL).max(Duration::from_millis(500)))
                    .await;
                let Some(deployments) = weak.upgrade() else { return };
                deployments.expire_items().await;
            }
        });
        *deployments.expiry.lock().unwrap_or_else(PoisonError::into_inner) = Some(expiry);
        deployments
    }

    /// Log subscriptions.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// How late expired items are deleted, world time.
    pub fn set_expiry_lag(&self, lag: Duration) {
        *self.expiry_lag.lock().unwrap_or_else(PoisonError::into_inner) = lag;
    }

    /// Stacks are also looked for there from now on.
    pub(crate) fn add_account(&self, account: &str) {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).push(account.to_owned());
    }

    /// What an instance may touch whose `${aws:userid}` is `<role id>:<instance id>`, as the deployed stacks' outputs name it.
    pub fn instance_scope(&self, user_id: &str) -> InstanceScope {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scopes =
            stacks.values().map(|made| &made.scope).filter(|scope| !scope.handoff_table.is_empty());
        let own = |scope: &&InstanceScope| {
            scope.role_id.is_empty() || user_id.split(':').next() == Some(&scope.role_id)
        };
        scopes.find(own).cloned().unwrap_or_default()
    }

    /// An output of any deployed stack.
    pub fn output(&self, name: &str) -> Option<String> {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        stacks.values().find_map(|made| made.outputs.get(name).cloned())
    }

    /// An output of one stack, in another account or none.
    pub fn output_of(&self, account: Option<&str>, stack: &str, name: &str) -> Option<String> {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        stacks.get(&key(account, stack))?.outputs.get(name).cloned()
    }

    /// Whether a function's URL answers anyone. The error says what is missing.
    pub fn url_allows(&self, function: &str) -> Result<(), String> {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        match stacks.values().find_map(|made| made.urls.get(function)) {
            None => return Err(format!("function {function} has no URL")),
            Some(false) => {
                return Err(format!("the URL of function {function} asks for IAM credentials"));
            }
            Some(true) => {}
        }
        // Both since October 2025. Source: Lambda developer guide, "Control access to function URLs".
        for action in ["lambda:InvokeFunctionUrl", "lambda:InvokeFunction"] {
            if !permits(&stacks, function, action, "*") {
                return Err(format!(
                    "function {function} has no AWS::Lambda::Permission of {action} for everyone"
                ));
            }
        }
        Ok(())
    }

    /// Ends all that runs in the background.
    pub(crate) fn stop(&self) {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(task) = self.expiry.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }

    pub(crate) fn sync_soon(self: &Arc<Self>) {
        let deployments = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = deployments.sync().await {
                tracing::error!(%error, "the effects of a deployment could not be made");
            }
        });
    }

    /// Makes the effects of all stacks as they are now. The error names the first resource that can't be
    /// made, and why.
    pub async fn sync(self: &Arc<Self>) -> Result<(), String> {
        let _one_at_a_time = self.syncing.lock().await;
        let elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for account in std::iter::once(None).chain(elsewhere.iter().map(|id| Some(id.as_str()))) {
            self.sync_account(account).await?;
        }
        Ok(())
    }

    async fn sync_account(self: &Arc<Self>, account: Option<&str>) -> Result<(), String> {
        let root = self.cloudformation(account, "DescribeStacks", &[]).await?;
        let stacks = root.list("DescribeStacksResult/Stacks");
        let deployed: Vec<&Node> = stacks
            .iter()
            .filter(|stack| {
                ["CREATE_COMPLETE", "UPDATE_COMPLETE"].contains(&stack.text_at("StackStatus"))
            })
            .collect();
        let exports: BTreeMap<String, String> = deployed
            .iter()
            .flat_map(|stack| stack.list("Outputs"))
            .filter(|output| !output.text_at("ExportName").is_empty())
            .map(|output| {
                (output.text_at("ExportName").to_owned(), output.text_at("OutputValue").to_owned())
            })
            .collect();
        let names: BTreeSet<String> =
            deployed.iter().map(|stack| key(account, stack.text_at("StackName"))).collect();
        let gone: Vec<String> = {
            let known = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            let here = known.iter().filter(|(_, made)| made.account.as_deref() == account);
            here.map(|(name, _)| name).filter(|name| !names.contains(*name)).cloned().collect()
        };
        gone.iter().for_each(|name| self.unmake(name));
        for stack in deployed {
            self.sync_stack(account, stack, &exports).await?;
        }
        Ok(())
    }

    async fn cloudformation(
        &self,
        account: Option<&str>,
        action: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Node, String> {
        let moto = self.moto.in_account(account);
        let answer = moto.query("cloudformation", CLOUDFORMATION, action, parameters).await;
        answer.map_err(|error| error.to_string())
    }

    fn unmake(&self, stack: &str) {
        self.queues.unmap(stack);
        self.logs.unsubscribe(stack);
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner).remove(stack);
    }

    async fn sync_stack(
        self: &Arc<Self>,
        account: Option<&str>,
        stack: &Node,
        exports: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let name = stack.text_at("StackName");
        let key = key(account, name);
        let text = self.cloudformation(account, "GetTemplate", &[("StackName", name)]).await?;
        let text = text.text_at("GetTemplateResult/TemplateBody").to_owned();
        let resources =
            self.cloudformation(account, "DescribeStackResources", &[("StackName", name)]).await?;
        let pairs = |nodes: &[Node], key: &str, value: &str| -> BTreeMap<String, String> {
            nodes
                .iter()
                .map(|node| (node.text_at(key).to_owned(), node.text_at(value).to_owned()))
                .collect()
        };
        let physical = pairs(
            resources.list("DescribeStackResourcesResult/StackResources"),
            "LogicalResourceId",
            "PhysicalResourceId",
        );
        let document = Template::parse(&text)?;
        let mut parameters: BTreeMap<String, String> = document["Parameters"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(name, parameter)| {
                let default = &parameter["Default"];
                let text = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
                (!default.is_null()).then(|| (name.clone(), text))
            })
            .collect();
        let given = pairs(stack.list("Parameters"), "ParameterKey", "ParameterValue");
        parameters.extend(given.into_iter().map(|(name, value)| (name, joined(&value))));
        let outputs = pairs(stack.list("Outputs"), "OutputKey", "OutputValue");
        let source = format!("{parameters:?}{physical:?}{outputs:?}{text}");
        {
            let known = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            if known.get(&key).is_some_and(|made| made.source == source) {
                return Ok(());
            }
        }
        let template = Template {
            document,
            stack: name.to_owned(),
            parameters,
            physical,
            exports: exports.clone(),
            edge_url: self.edge_url.clone(),
            account: account.unwrap_or(aws::ACCOUNT).to_owned(),
        };
        self.unmake(&key);
        let mut made = self.make(&template).await?;
        made.source = source;
        let output = |name: &str| outputs.get(name).cloned().unwrap_or_default();
        // The stack of another account has all in one, for its tier.
        let elsewhere: Value = serde_json::from_str(&output("Account")).unwrap_or(Value::Null);
        let or = |own: &str, there: &str| {
            elsewhere[there].as_str().map_or_else(|| output(own), str::to_owned)
        };
        made.account = account.map(str::to_owned);
        made.scope = InstanceScope {
            account: made.account.clone(),
            role_id: or("RunnerRoleId", "runner_role_id"),
            handoff_table: or("HandoffTableName", "handoff_table"),
            log_group: output("RunnerLogGroup"),
        };
        made.outputs = outputs;
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made);
        Ok(())
    }

    async fn make(self: &Arc<Self>, template: &Template) -> Result<Made, String> {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let mut made = Made::default();
        for (id, logging) in template.property("AWS::Lambda::Function", "LoggingConfig")? {
            if let Some(name) = template.physical.get(&id) {
                let json = logging["LogFormat"] == "JSON";
                self.host.set_logging(name, logging["LogGroup"].as_str(), json);
            }
        }
        for (_, url) in template.resources("AWS::Lambda::Url")? {
            let function = lambda_host::name_of(&text(&url["TargetFunctionArn"]));
            made.urls.insert(function, url["AuthType"] == "NONE");
        }
        for (_, permission) in template.resources("AWS::Lambda::Permission")? {
            made.permissions.push(Permission {
                function: lambda_host::name_of(&text(&permission["FunctionName"])),
                action: text(&permission["Action"]),
                principal: text(&permission["Principal"]),
            });
        }
        for (_, config) in template.resources("AWS::Lambda::EventInvokeConfig")? {
            let retries =
                config["MaximumRetryAttempts"].as_u64().and_then(|n| usize::try_from(n).ok());
            let on_failure = config["DestinationConfig"]["OnFailure"]["Destination"].as_str();
            self.host.set_async(
                &lambda_host::name_of(&text(&config["FunctionName"])),
                AsyncConfig { retries, on_failure: on_failure.map(str::to_owned) },
            );
        }
        for (id, mapping) in template.resources("AWS::Lambda::EventSourceMapping")? {
            self.check_mapping(&mapping)
                .await
                .map_err(|error| format!("resource {id} of stack {}: {error}", template.stack))?;
            self.queues.map(&template.stack, &mapping);
        }
        for (id, filter) in template.resources("AWS::Logs::SubscriptionFilter")? {
            let pattern = FilterPattern::parse(&text(&filter["FilterPattern"]))
                .map_err(|error| format!("resource {id} of stack {}: {error}", template.stack))?;
            let subscription = Subscription {
                owner: template.stack.clone(),
                group: text(&filter["LogGroupName"]),
                name: filter["FilterName"].as_str().unwrap_or(&id).to_owned(),
                pattern,
                function: lambda_host::name_of(&text(&filter["DestinationArn"])),
            };
            self.logs
                .subscribe(subscription)
                .map_err(|code| format!("resource {id} of stack {}: {code}", template.stack))?;
        }
        for (id, table) in template.resources("AWS::DynamoDB::Table")? {
            let ttl = &table["TimeToLiveSpecification"];
            if ttl["Enabled"] == true || ttl["Enabled"] == "true" {
                let key = table["KeySchema"].as_array().into_iter().flatten();
                made.tables.push(Table {
                    name: template.physical.get(&id).cloned().unwrap_or_default(),
                    attribute: text(&ttl["AttributeName"]),
                    key: key.map(|part| text(&part["AttributeName"])).collect(),
                });
            }
        }
        for (_, policy) in template.resources("AWS::Events::EventBusPolicy")? {
            made.buses.push(events::BusPolicy::of(&policy));
        }
        for (id, rule) in template.resources("AWS::Events::Rule")? {
            self.make_rule(template, &id, &rule, &mut made)
                .map_err(|error| format!("resource {id} of stack {}: {error}", template.stack))?;
        }
        Ok(made)
    }

    /// Lambda refuses a mapping whose queue shows messages again while the function still has them.
    /// Source: Lambda developer guide, "Configuring a queue to use with Lambda".
    async fn check_mapping(&self, properties: &Value) -> Result<(), String> {
        let Some(mapping) = Mapping::of(properties) else { return Ok(()) };
        let queue = self.queues.attributes(queues::name_of(&mapping.queue_arn)).await?;
        let timeout = self.host.timeout_of(&mapping.function).await?;
        if queue.visibility < timeout {
            return Err(format!(
                "Queue visibility timeout: {} seconds is less than Function timeout: {} seconds",
                queue.visibility.as_secs(),
                timeout.as_secs()
            ));
        }
        Ok(())
    }

    fn make_rule(
        self: &Arc<Self>,
        template: &Template,
        id: &str,
        rule: &Value,
        made: &mut Made,
    ) -> Result<(), String> {
        if rule["State"] == "DISABLED" {
            return Ok(());
        }
        let physical = template.physical.get(id).map_or(id, String::as_str);
        let rule_arn = if physical.starts_with("arn:") {
            physical.to_owned()
        } else {
            format!("arn:aws:events:{}:{}:rule/{physical}", aws::REGION, aws::ACCOUNT)
        };
        let mut targets = Vec::new();
        for target in rule["Targets"].as_array().into_iter().flatten() {
            for unsupported in ["InputPath", "InputTransformer"] {
                if !target[unsupported].is_null() {
                    return Err(format!("{unsupported} of a target is not supported"));
                }
            }
            // Source: EventBridge user guide, "Sending and receiving events between AWS accounts".
            let arn = target["Arn"].as_str().unwrap_or("");
            if arn.contains(":event-bus/") && target["RoleArn"].is_null() {
                return Err(format!("a target on another bus needs a RoleArn: {arn}"));
            }
            let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
            let policy = &target["RetryPolicy"];
            targets.push(Target {
                rule_arn: rule_arn.clone(),
                arn: target["Arn"].as_str().ok_or("a target has no Arn")?.to_owned(),
                input: target["Input"].as_str().map(str::to_owned),
                retries: number(&policy["MaximumRetryAttempts"])
                    .and_then(|retries| u32::try_from(retries).ok())
                    .unwrap_or(EVENT_RETRIES_DEFAULT),
                age: number(&policy["MaximumEventAgeInSeconds"])
                    .map_or(EVENT_AGE_DEFAULT, Duration::from_secs),
                dead_letters: target["DeadLetterConfig"]["Arn"].as_str().map(str::to_owned),
            });
        }
        if let Some(expression) = rule["ScheduleExpression"].as_str() {
            let schedule = Schedule::parse(expression)?;
            made.schedules.push(tokio::spawn(fire(Arc::clone(self), schedule, targets.clone())));
        }
        if !rule["EventPattern"].is_null() {
            let unknown = events::unknown_tests(&rule["EventPattern"]);
            if !unknown.is_empty() {
                return Err(format!(
                    "the event pattern uses {}, which is not supported",
                    unknown.join(", ")
                ));
            }
            let bus = rule["EventBusName"].as_str().unwrap_or(DEFAULT_BUS);
            let (bus, pattern) = (events::bus_name(bus).to_owned(), rule["EventPattern"].clone());
            made.rules.push(Rule { bus, pattern, targets });
        }
        Ok(())
    }

    /// Hands the end of an execution to the rules that ask for it.
    pub(crate) fn execution_ended(self: &Arc<Self>, ended: &ExecutionEnded) {
        self.put_event(None, DEFAULT_BUS, &events::execution_event(ended));
    }

    /// Hands an event on a bus of an account (the world's own if `None`) to the rules that ask for it.
    pub fn put_event(self: &Arc<Self>, account: Option<&str>, bus: &str, event: &Value) {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let here = stacks.values().filter(|made| made.account.as_deref() == account);
        let rules = here.flat_map(|made| &made.rules).filter(|rule| rule.bus == bus);
        for rule in rules.filter(|rule| events::matches(&rule.pattern, event)) {
            for target in &rule.targets {
                tokio::spawn(deliver(Arc::clone(self), target.clone(), event.to_string()));
            }
        }
    }

    /// Puts an event of another account on a bus, if that bus's policy lets it.
    fn forward(self: &Arc<Self>, bus_arn: &str, event: &str) -> Result<(), ApiError> {
        let event: Value = serde_json::from_str(event).unwrap_or(Value::Null);
        let account = bus_arn.split(':').nth(4).filter(|id| *id != aws::ACCOUNT);
        let bus = events::bus_name(bus_arn);
        let allowed = {
            let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            let there = stacks.values().filter(|made| made.account.as_deref() == account);
            there.flat_map(|made| &made.buses).any(|it| it.bus == bus && it.lets_in(&event))
        };
        if !allowed {
            let message = format!("the policy of {bus_arn} does not let this event in");
            return Err(ApiError { status: 403, code: "NO_PERMISSIONS".into(), message });
        }
        self.put_event(account, bus, &event);
        Ok(())
    }

    /// One try to hand an event to a target.
    async fn hand_over(self: &Arc<Self>, target: &Target, event: &str) -> Result<(), ApiError> {
        if target.arn.contains(":event-bus/") {
            return self.forward(&target.arn, event);
        }
        if target.arn.contains(":sqs:") {
            self.queues.dead_letter(&target.arn, event.to_owned(), BTreeMap::new());
            return Ok(());
        }
        let function = lambda_host::name_of(&target.arn);
        let permitted = {
            let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            permits(&stacks, &function, "lambda:InvokeFunction", "events.amazonaws.com")
        };
        if !permitted {
            let message =
                format!("{function} has no AWS::Lambda::Permission for events.amazonaws.com");
            return Err(ApiError { status: 403, code: "NO_PERMISSIONS".into(), message });
        }
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let headers = [("x-amz-invocation-type", "Event")];
        self.events
            .send("lambda", Method::POST, &path, &headers, event.to_owned())
            .await
            .map(|_| ())
    }

    async fn expire_items(&self) {
        let tables: Vec<(Option<String>, Table)> = {
            let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |made: &Made| {
                let account = made.account.clone();
                made.tables.clone().into_iter().map(move |table| (account.clone(), table))
            };
            stacks.values().flat_map(of).collect()
        };
        let lag = *self.expiry_lag.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.clock.now() - lag;
        for (account, table) in tables {
            let moto = self.moto.in_account(account.as_deref());
            if let Err(error) = expire_items_of(&moto, &table, before).await {
                tracing::warn!(table = table.name, %error, "expired items could not be deleted");
            }
        }
    }
}

/// A parameter's value. A list is its items with commas between them; moto writes it as Python does, `['a', 'b']`.
fn joined(value: &str) -> String {
    let inner = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner.filter(|inner| inner.is_empty() || inner.starts_with('\'')) {
        Some(items) => items.replace("', '", ",").trim_matches('\'').to_owned(),
        None => value.to_owned(),
    }
}

/// How a stack is known here.
fn key(account: Option<&str>, stack: &str) -> String {
    account.map_or_else(|| stack.to_owned(), |id| format!("{stack}@{id}"))
}

async fn expire_items_of(
    moto: &aws::Client,
    table: &Table,
    before: Timestamp,
) -> Result<(), ApiError> {
    let scan = json!({
        "TableName": table.name,
        "FilterExpression": "#ttl < :before",
        "ExpressionAttributeNames": {"#ttl": table.attribute},
        "ExpressionAttributeValues": {":before": {"N": before.seconds().to_string()}},
    });
    let found = moto.json("dynamodb", "DynamoDB_20120810.Scan", &scan).await?;
    for item in found["Items"].as_array().into_iter().flatten() {
        let key: serde_json::Map<String, Value> =
            table.key.iter().map(|name| (name.clone(), item[name].clone())).collect();
        let delete = json!({"TableName": table.name, "Key": key});
        moto.json("dynamodb", "DynamoDB_20120810.DeleteItem", &delete).await?;
    }
    Ok(())
}

fn permits(stacks: &BTreeMap<String, Made>, function: &str, action: &str, principal: &str) -> bool {
    stacks.values().flat_map(|made| &made.permissions).any(|permission| {
        permission.function == function
            && permission.action == action
            && permission.principal == principal
    })
}

async fn fire(deployments: Arc<Deployments>, schedule: Schedule, targets: Vec<Target>) {
    let clock = deployments.clock;
    let mut at = clock.now();
    while let Some(next) = schedule.next(at) {
        clock.sleep(next.since(clock.now())).await;
        at = next;
        for target in &targets {
            let event = target
                .input
                .clone()
                .unwrap_or_else(|| events::scheduled_event(&target.rule_arn, next).to_string());
            tokio::spawn(deliver(Arc::clone(&deployments), target.clone(), event));
        }
    }
}

/// Tries until the target has the event, or it is too old or was tried too often; then a dead letter.
async fn deliver(deployments: Arc<Deployments>, target: Target, event: String) {
    let event = target.input.clone().unwrap_or(event);
    let started = deployments.clock.now();
    let mut retries = 0;
    let (mut delay, longest) = EVENT_BACKOFF;
    let (error, condition) = loop {
        let Err(error) = deployments.hand_over(&target, &event).await else { return };
        let retryable = error.status == 0 || error.status == 429 || error.status >= 500;
        let aged = deployments.clock.now().since(started) >= target.age;
        match (retryable, retries >= target.retries, aged) {
            (false, ..) => break (error, "NonRetryable"),
            (true, true, _) => break (error, "MaximumRetryAttempts"),
            (true, false, true) => break (error, "MaximumEventAgeInSeconds"),
            (true, false, false) => {
                deployments.clock.sleep(delay).await;
                delay = (delay * 2).min(longest);
                retries += 1;
            }
        }
    };
    tracing::warn!(rule = target.rule_arn, target = target.arn, %error, "an event was not delivered");
    if let Some(queue) = &target.dead_letters {
        let attributes = [
            ("RULE_ARN", target.rule_arn.clone()),
            ("TARGET_ARN", target.arn.clone()),
            (
                "ERROR_CODE",
                if error.code.is_empty() { "SDK_CLIENT_ERROR".into() } else { error.code.clone() },
            ),
            ("ERROR_MESSAGE", error.message.clone()),
            ("EXHAUSTED_RETRY_CONDITION", condition.to_owned()),
            ("RETRY_ATTEMPTS", retries.to_string()),
        ];
        let attributes =
            attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        deployments.queues.dead_letter(queue, event, attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_parameter_has_commas_whatever_moto_makes_of_it() {
        assert_eq!(joined("['444455556666', '777788889999']"), "444455556666,777788889999");
        assert_eq!(joined("['']"), "");
        assert_eq!(joined("[]"), "");
        for plain in ["a,b", "", "[1, 5 minutes]"] {
            assert_eq!(joined(plain), plain);
        }
    }
}
