//! The laws of `observability.yaml`: it looks at what there is, and says what to do.

use std::collections::BTreeSet;

use ostler_core::metrics::METRICS;
use serde_json::{Value, json};

use crate::template::{Stack, TEMPLATES, resources, scalar, template, text};

const TEMPLATE: &str = "infra/observability.yaml";

const TOPIC: (&str, &str) = ("AlarmTopicArn", "arn:aws:sns:eu-west-1:111122223333:alarms");

/// The widgets of the dashboard, as CloudWatch gets them.
fn widgets(stack: &Stack<'_>) -> Vec<Value> {
    let body = scalar(&stack.properties("Dashboard")["DashboardBody"]);
    let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    body["widgets"].as_array().unwrap().clone()
}

/// Our metrics that a widget shows, with the dimensions that it asks for.
fn shown(widget: &Value) -> Vec<(String, Vec<String>)> {
    let metrics = widget["properties"]["metrics"].as_array().unwrap();
    let mut shown = Vec::new();
    for metric in metrics {
        if metric[0] == "Ostler" {
            let dimensions = metric.as_array().unwrap()[2..].iter().filter_map(Value::as_str);
            shown.push((scalar(&metric[1]), dimensions.step_by(2).map(str::to_owned).collect()));
        } else if let Some(expression) = metric[0]["expression"].as_str() {
            let (_, schema) = expression.split_once("SEARCH('{Ostler,").unwrap();
            let (dimensions, rest) = schema.split_once("} MetricName=\"").unwrap();
            let name = rest.split('"').next().unwrap();
            shown.push((name.into(), dimensions.split(',').map(str::to_owned).collect()));
        }
    }
    shown
}

#[test]
fn every_metric_on_the_dashboard_is_counted_by_those_dimensions() {
    let template = template(TEMPLATE);
    let widgets = widgets(&Stack::new(&template, &[]));
    let shown: Vec<_> = widgets.iter().flat_map(shown).collect();
    assert!(shown.len() > 20, "{shown:?}");
    for (name, dimensions) in &shown {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("nothing counts {name}"));
        assert!(dimensions.is_empty() || metric.by == *dimensions, "{name} by {dimensions:?}");
    }
    // What somebody looks at first.
    let names: BTreeSet<&str> = shown.iter().map(|(name, _)| name.as_str()).collect();
    for wanted in
        ["QueueSeconds", "ReadySeconds", "OldestWaitingSeconds", "GitHubQuotaLeft", "JobCostUsd"]
    {
        assert!(names.contains(wanted), "{wanted}");
    }
}

#[test]
fn the_dashboard_has_room_for_its_widgets_and_asks_for_what_the_stacks_make() {
    let observed = template(TEMPLATE);
    let stack = Stack::new(&observed, &[]);
    let mut taken = BTreeSet::new();
    for widget in widgets(&stack) {
        let number = |key: &str| widget[key].as_u64().unwrap();
        assert_eq!(widget["properties"]["region"], "eu-west-1");
        for x in number("x")..number("x") + number("width") {
            assert!(x < 24, "a dashboard is 24 wide");
            for y in number("y")..number("y") + number("height") {
                assert!(taken.insert((x, y)), "two widgets at {x}, {y}");
            }
        }
    }
    // Functions and queues have the names that the stacks of those names give them.
    let body = widgets(&stack).iter().map(Value::to_string).collect::<String>();
    for (file, name) in
        [("control", "ostler"), ("recovery", "ostler-recovery"), ("reaper", "ostler-reaper")]
    {
        let its = template(&format!("infra/{file}.yaml"));
        let its = Stack::new(&its, &[("AWS::StackName", name)]);
        for (kind, key) in
            [("AWS::Lambda::Function", "FunctionName"), ("AWS::SQS::Queue", "QueueName")]
        {
            for id in resources(its.template, kind).keys() {
                let physical = scalar(&its.properties(id)[key]);
                let dead = physical.contains("-dead");
                if kind == "AWS::Lambda::Function" || dead {
                    assert!(body.contains(&format!("\"{physical}\"")), "{physical} is not shown");
                }
            }
        }
    }
}

#[test]
fn every_metric_of_an_alarm_is_counted() {
    let mut watched = BTreeSet::new();
    for name in TEMPLATES {
        let template = template(name);
        for (id, alarm) in resources(&template, "AWS::CloudWatch::Alarm") {
            let properties = &alarm["Properties"];
            let own = |metric: &Value| {
                (metric["Namespace"] == "Ostler").then(|| scalar(&metric["MetricName"]))
            };
            let listed = properties["Metrics"].as_array().into_iter().flatten();
            let metrics = listed.filter_map(|it| it.get("MetricStat")).map(|it| &it["Metric"]);
            for metric in metrics.chain([properties]).filter_map(own) {
                assert!(METRICS.iter().any(|it| it.name == metric), "{name}: {id}: {metric}");
                watched.insert(metric);
            }
        }
    }
    for wanted in ["OldestWaitingSeconds", "QueueSeconds", "DeliveryReceived", "GitHubQuotaLeft"] {
        assert!(watched.contains(wanted), "no alarm on {wanted}");
    }
}

#[test]
fn alarms_are_there_where_someone_hears_them_and_silence_is_one() {
    let template = template(TEMPLATE);
    let (silent, heard) = (Stack::new(&template, &[]), Stack::new(&template, &[TOPIC]));
    let alarms = resources(&template, "AWS::CloudWatch::Alarm");
    let names: Vec<_> = alarms.keys().copied().collect();
    assert_eq!(
        names,
        ["GitHubQuotaAlarm", "OldestWaitingAlarm", "QueueTimeAlarm", "WebhookSilenceAlarm"]
    );
    for (name, alarm) in &alarms {
        assert!(!silent.makes(alarm) && heard.makes(alarm), "{name}");
        assert_eq!(heard.properties(name)["AlarmActions"], json!([TOPIC.1]), "{name}");
        assert!(scalar(&alarm["Properties"]["AlarmDescription"]).len() > 30, "{name}");
        let missing = if *name == "WebhookSilenceAlarm" { "breaching" } else { "notBreaching" };
        assert_eq!(alarm["Properties"]["TreatMissingData"], missing, "{name}");
    }
    let never = Stack::new(&template, &[TOPIC, ("SilentHours", "0")]);
    assert!(!never.makes(alarms["WebhookSilenceAlarm"]));
}

/// The limits of periods: a day in all (CloudWatch API Reference, PutMetricAlarm).
#[test]
fn an_alarm_looks_back_no_further_than_cloudwatch_does() {
    let template = template(TEMPLATE);
    let most = ("SilentHours", scalar(&template["Parameters"]["SilentHours"]["MaxValue"]));
    let stack = Stack::new(&template, &[TOPIC, (most.0, &most.1)]);
    let alarm = stack.properties("WebhookSilenceAlarm");
    let number = |key: &str| scalar(&alarm[key]).parse::<u64>().unwrap();
    assert_eq!(number("Period") * number("EvaluationPeriods"), 86_400);
}

#[test]
fn a_budget_is_asked_for_counts_the_owners_tag_and_tells_the_topic() {
    let template = template(TEMPLATE);
    let budget = resources(&template, "AWS::Budgets::Budget")["DailyBudget"];
    assert!(!Stack::new(&template, &[TOPIC]).makes(budget));
    assert!(!Stack::new(&template, &[("DailyBudgetUsd", "50")]).makes(budget));
    let asked = Stack::new(&template, &[TOPIC, ("DailyBudgetUsd", "50"), ("Owner", "acme")]);
    assert!(asked.makes(budget));
    let properties = asked.properties("DailyBudget");
    assert_eq!(properties["Budget"]["TimeUnit"], "DAILY");
    assert_eq!(properties["Budget"]["BudgetLimit"], json!({"Amount": "50", "Unit": "USD"}));
    assert_eq!(
        properties["Budget"]["CostFilters"],
        json!({"TagKeyValue": ["user:ostler:owner$acme"]})
    );
    let told = &properties["NotificationsWithSubscribers"][0]["Subscribers"][0];
    assert_eq!(told, &json!({"SubscriptionType": "SNS", "Address": TOPIC.1}));
}

/// The runbook: what each alarm means and what to do.
#[test]
fn every_alarm_has_its_heading_in_the_runbook() {
    let docs = text("docs/operations.md");
    let headings: Vec<&str> = docs.lines().filter(|line| line.starts_with("### ")).collect();
    let mut alarms = 0;
    for name in TEMPLATES {
        let template = template(name);
        let word = match name {
            "infra/registration-janitor.yaml" => "Registration janitor".to_owned(),
            _ => {
                let stem = name.trim_start_matches("infra/").trim_end_matches(".yaml");
                stem[..1].to_uppercase() + &stem[1..]
            }
        };
        let budgets = resources(&template, "AWS::Budgets::Budget");
        for id in resources(&template, "AWS::CloudWatch::Alarm").keys().chain(budgets.keys()) {
            alarms += 1;
            let its = |line: &&&str| {
                line.starts_with(&format!("### {word}: ")) && line.contains(&format!("`{id}`"))
            };
            let heading = headings.iter().find(its);
            let heading = heading.unwrap_or_else(|| panic!("no heading for {id} of {name}"));
            let (_, entry) = docs.split_once(&format!("{heading}\n")).unwrap();
            let entry = entry.split("\n#").next().unwrap().trim();
            assert!(entry.len() > 40, "{id} of {name}: {entry}");
        }
    }
    assert!(alarms > 20, "{alarms}");
}
