//! What all templates have in common: that they deploy, anywhere, from parameters alone; and what they cost.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::template::{Stack, TEMPLATES, resources, scalar, template, text};

/// Source: CloudFormation quotas.
const RESOURCES_MAX: usize = 500;
const PARAMETERS_MAX: usize = 200;
const OUTPUTS_MAX: usize = 200;
const DESCRIPTION_BYTES_MAX: usize = 1024;

#[test]
fn r01_templates_stay_under_cloudformations_limits() {
    for name in TEMPLATES {
        let template = template(name);
        let count = |part: &str| template[part].as_object().map_or(0, serde_json::Map::len);
        assert!((1..RESOURCES_MAX).contains(&count("Resources")), "{name}");
        assert!((1..PARAMETERS_MAX).contains(&count("Parameters")), "{name}");
        assert!((1..OUTPUTS_MAX).contains(&count("Outputs")), "{name}");
        assert!(scalar(&template["Description"]).len() < DESCRIPTION_BYTES_MAX, "{name}");
        // Nothing is fetched, transformed or looked up in another stack: the request is all there is.
        for part in ["Transform", "Metadata"] {
            assert!(template.get(part).is_none(), "{name}: {part}");
        }
        for word in ["Fn::ImportValue", "ImportValue", "AWS::CloudFormation::Stack", "{{resolve:"] {
            assert!(!text(name).contains(word), "{name}: {word}");
        }
    }
}

/// What has a name of its own asks for CAPABILITY_NAMED_IAM, and can be there only once in an account.
#[test]
fn r07_the_capability_iam_is_enough() {
    for name in TEMPLATES {
        let template = template(name);
        for (id, resource) in template["Resources"].as_object().unwrap() {
            let kind = scalar(&resource["Type"]);
            let named =
                ["RoleName", "UserName", "GroupName", "ManagedPolicyName", "InstanceProfileName"];
            let named = named.iter().find(|key| resource["Properties"].get(**key).is_some());
            assert!(!kind.starts_with("AWS::IAM::") || named.is_none(), "{name}: {id}: {named:?}");
        }
    }
}

/// What is `aws` and `amazonaws.com` here is otherwise in China and GovCloud.
#[test]
fn r01_nothing_is_of_one_partition_or_region() {
    // Services that are called the same in every partition. EC2 is not.
    let everywhere = ["lambda", "states", "events", "logs", "firehose", "apigateway"];
    for name in TEMPLATES {
        let text = text(name);
        let own = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        for line in own {
            assert!(!line.contains("arn:aws"), "{name}: {line}");
            for region in ["us-east-1", "eu-west-1", "eu-central-1"] {
                // Defaults and examples for people.
                let free = line.contains("Description:") || line.contains("Default:");
                assert!(free || !line.contains(region), "{name}: {line}");
            }
            for (before, _) in line.match_indices(".amazonaws.com") {
                let service = line[..before].rsplit(|c: char| !c.is_ascii_alphanumeric()).next();
                let service = service.unwrap();
                let script = line.contains("suffix=") || line.contains("169.254");
                assert!(script || everywhere.contains(&service), "{name}: {line}");
            }
        }
    }
    // In China, what EC2 is called follows the partition.
    for name in ["infra/control.yaml", "infra/byoc-role.yaml"] {
        let template = template(name);
        let china = [
            ("AWS::Partition", "aws-cn"),
            ("AWS::Region", "cn-north-1"),
            ("AWS::URLSuffix", "amazonaws.com.cn"),
        ];
        let stack = Stack::new(&template, &china);
        let trust = stack.properties("RunnerRole")["AssumeRolePolicyDocument"].to_string();
        assert!(trust.contains("ec2.amazonaws.com.cn"), "{name}: {trust}");
        let roles = resources(&template, "AWS::IAM::Role").into_iter();
        for (role, _) in roles.filter(|(_, resource)| stack.makes(resource)) {
            for statement in crate::policy::statements(&stack, role) {
                for resource in
                    crate::template::list(&statement["Resource"]).into_iter().map(scalar)
                {
                    // Of other resources the test knows no partition but its own.
                    let made = resource.starts_with("arn:aws:") || resource.starts_with("http");
                    assert!(
                        made || resource == "*" || resource.starts_with("arn:aws-cn:"),
                        "{role}: {resource}"
                    );
                }
            }
        }
    }
}

/// Which stack's outputs are which stack's parameters.
#[test]
fn r02_outputs_are_named_like_the_parameters_that_take_them() {
    for (from, to, names) in [
        ("network", "control", &["VpcId", "SubnetIds", "RunnerSecurityGroupId"][..]),
        ("network", "byoc-role", &["VpcId", "SubnetIds", "RunnerSecurityGroupId"]),
        ("control", "accounts", &["OrchestratorRoleName", "StolenRunnerFunctionArn"]),
        ("accounts", "byoc-role", &["TrustedAccountId", "TrustedRoleName", "LogDestinationArn"]),
        ("byoc-role", "accounts", &["RunnerRoleArns", "RunnerAccountIds"]),
        ("control", "registration-janitor", &["StateMachineArn"]),
    ] {
        let [from_template, to_template] =
            [from, to].map(|name| template(&format!("infra/{name}.yaml")));
        for name in names {
            assert!(from_template["Outputs"].get(name).is_some(), "{from} puts out no {name}");
            assert!(to_template["Parameters"].get(name).is_some(), "{to} takes no {name}");
        }
    }
}

/// What a resource costs while nothing runs.
enum Price {
    /// Nothing: it is paid by use, or not at all.
    None,
    /// By the metrics that it looks at.
    Alarm,
    /// Lambda asks a queue all the time.
    Polling,
    /// A schedule runs a function.
    Schedule,
}

fn price(kind: &str, properties: &Value) -> Price {
    match kind {
        "AWS::CloudWatch::Alarm" => Price::Alarm,
        "AWS::Lambda::EventSourceMapping" => Price::Polling,
        "AWS::Events::Rule" if properties.get("ScheduleExpression").is_some() => Price::Schedule,
        "AWS::ApiGatewayV2::Api"
        // Two budgets without actions are free in an account, and three dashboards of up to fifty metrics.
        | "AWS::Budgets::Budget"
        | "AWS::CloudWatch::Dashboard"
        | "AWS::DynamoDB::Table"
        | "AWS::EC2::InternetGateway"
        | "AWS::EC2::LaunchTemplate"
        | "AWS::EC2::Route"
        | "AWS::EC2::RouteTable"
        | "AWS::EC2::SecurityGroup"
        | "AWS::EC2::Subnet"
        | "AWS::EC2::SubnetRouteTableAssociation"
        | "AWS::EC2::VPC"
        | "AWS::EC2::VPCGatewayAttachment"
        | "AWS::Events::EventBus"
        | "AWS::Events::EventBusPolicy"
        | "AWS::Events::Rule"
        | "AWS::IAM::InstanceProfile"
        | "AWS::IAM::Policy"
        | "AWS::IAM::Role"
        | "AWS::KinesisFirehose::DeliveryStream"
        | "AWS::Lambda::EventInvokeConfig"
        | "AWS::Lambda::Function"
        | "AWS::Lambda::Permission"
        | "AWS::Lambda::Url"
        | "AWS::Logs::Destination"
        | "AWS::Logs::LogGroup"
        | "AWS::Logs::LogStream"
        | "AWS::Logs::MetricFilter"
        | "AWS::Logs::SubscriptionFilter"
        | "AWS::SQS::Queue"
        | "AWS::SQS::QueuePolicy"
        | "AWS::StepFunctions::StateMachine" => Price::None,
        // Of the other kind each costs some 7 USD a month and zone.
        "AWS::EC2::VPCEndpoint" if properties["VpcEndpointType"] == "Gateway" => Price::None,
        other => panic!(
            "what does {other} cost a month while nothing runs? Say it here, and in docs/cost.md, \
             \"What it costs while nothing runs\""
        ),
    }
}

/// The lines of the table in docs/cost.md: quantity a month, list price of one in USD, how many of an account are free.
fn table() -> BTreeMap<String, [f64; 3]> {
    let docs = text("docs/cost.md");
    let (_, section) = docs.split_once("## What it costs while nothing runs\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ") && line.contains(" USD"));
    let number = |cell: &str| -> f64 {
        cell.trim()
            .trim_end_matches(" USD")
            .replace(',', "")
            .parse()
            .unwrap_or_else(|_| panic!("{cell}"))
    };
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        (cells[0].trim().to_owned(), [number(cells[1]), number(cells[2]), number(cells[3])])
    })
    .collect()
}

/// What a month has of the things that are paid for while nothing runs.
struct Standing {
    alarms: usize,
    polled: u32,
    schedules: usize,
}

/// Of stacks in one account, with alarms.
fn standing(names: &[&str]) -> Standing {
    let topic = ("AlarmTopicArn", "arn:aws:sns:eu-west-1:111122223333:alarms");
    let mut all = Standing { alarms: 0, polled: 0, schedules: 0 };
    for name in names {
        let template = template(name);
        let stack = Stack::new(&template, &[topic]);
        for resource in template["Resources"].as_object().unwrap().values() {
            if !stack.makes(resource) {
                continue;
            }
            let properties = &resource["Properties"];
            match price(resource["Type"].as_str().unwrap(), properties) {
                Price::None => {}
                Price::Alarm => {
                    let metrics = properties["Metrics"].as_array();
                    let read = |all: &Vec<Value>| {
                        all.iter().filter(|it| it.get("MetricStat").is_some()).count()
                    };
                    all.alarms += metrics.map_or(1, read);
                }
                Price::Polling => all.polled += 1,
                Price::Schedule => all.schedules += 1,
            }
        }
    }
    all
}

/// The stack that finds what else went wrong, and the one to look at, are paid for apart: an install does without them.
const APART: [&str; 2] = ["infra/recovery.yaml", "infra/observability.yaml"];

#[test]
fn the_stacks_cost_less_than_a_dollar_a_month_while_nothing_runs() {
    let Standing { alarms, polled, schedules } = standing(&TEMPLATES);
    // Five pollers a queue ask three times a minute, 43,800 minutes a month (Lambda developer guide, SQS; and long polling's
    // 20 s).
    let asked = |queues: u32| f64::from(queues * 5 * 3 * 43_800);
    let table = table();
    let quantity = |line: &str| table.get(line).unwrap_or_else(|| panic!("no line {line:?}"))[0];
    assert_eq!(quantity("alarms' metrics"), alarms as f64, "docs/cost.md says otherwise");
    assert_eq!(quantity("requests to queues"), asked(polled));
    // Every 5 minutes the reconciler, every 15 the reaper, every 30 the janitor.
    assert_eq!(schedules, 3);
    let runs: f64 = [5.0, 15.0, 30.0].iter().map(|minutes| 43_800.0 / minutes).sum();
    assert_eq!(quantity("runs of functions"), runs);
    let billed = |alarms: usize, queues: u32| -> f64 {
        let month = |(line, [quantity, price, free]): (&String, &[f64; 3])| {
            let quantity = match line.as_str() {
                "alarms' metrics" => alarms as f64,
                "requests to queues" => asked(queues),
                _ => *quantity,
            };
            (quantity - free).max(0.0) * price
        };
        table.iter().map(month).sum()
    };
    let rest: Vec<&str> = TEMPLATES.into_iter().filter(|name| !APART.contains(name)).collect();
    let rest = standing(&rest);
    let (most, without) = (billed(alarms, polled), billed(rest.alarms, rest.polled));
    assert!(without < 1.0, "{without} USD a month");
    let docs = text("docs/cost.md");
    for stated in [format!("**{without:.2} USD**"), format!("{most:.2} USD with the recovery")] {
        assert!(docs.contains(&stated), "docs/cost.md must say {stated}");
    }
}
