//! The laws of `recovery.yaml`.

use serde_json::{Value, json};

use crate::policy::{Cases, allowed, statements};
use crate::template::{Stack, resources, scalar, template};

const TEMPLATE: &str = "infra/recovery.yaml";

/// What a control stack answers.
pub const OF_CONTROL: [(&str, &str); 3] = [
    ("Owner", "acme"),
    ("LedgerTableName", "ledger-1"),
    ("StateMachineArn", "arn:aws:states:eu-west-1:111122223333:stateMachine:ostler-orchestrator"),
];

fn stack(template: &Value) -> Stack<'_> {
    Stack::new(template, &OF_CONTROL)
}

#[test]
fn its_parameters_are_named_like_the_control_stacks_outputs_and_parameters() {
    let (control, own) = (template("infra/control.yaml"), template(TEMPLATE));
    for (name, parameter) in own["Parameters"].as_object().unwrap() {
        match control["Parameters"].get(name) {
            Some(other) => {
                for key in ["Type", "Default", "AllowedPattern", "AllowedValues"] {
                    assert_eq!(parameter.get(key), other.get(key), "{name}: {key}");
                }
            }
            // Or like those of the stacks in other accounts.
            None => {
                let elsewhere = template("infra/byoc-role.yaml");
                let put_out = [&control, &elsewhere].map(|it| it["Outputs"].get(name).is_some());
                assert!(put_out.contains(&true), "{name}");
            }
        }
    }
}

#[test]
fn the_reconciler_reads_the_index_and_writes_items_and_starts_on_one_machine() {
    let template = template(TEMPLATE);
    let stack = stack(&template);
    let mut asked = Cases::of(&stack, "ReconcilerRole");
    let table = "arn:aws:dynamodb:eu-west-1:111122223333:table/ledger-1";
    for action in ["dynamodb:GetItem", "dynamodb:UpdateItem"] {
        asked.allows(action, table, &[]);
        asked.refuses("another table", action, &table.replace("ledger-1", "ledger-2"), &[]);
    }
    asked.allows("dynamodb:Query", &format!("{table}/index/due"), &[]);
    asked.refuses("the table itself", "dynamodb:Query", table, &[]);
    for action in ["dynamodb:Scan", "dynamodb:DeleteItem", "dynamodb:PutItem"] {
        asked.refuses(action, action, table, &[]);
    }
    let arn =
        |kind: &str, rest: &str| format!("arn:aws:states:eu-west-1:111122223333:{kind}:{rest}");
    asked.allows("states:StartExecution", &arn("stateMachine", "ostler-orchestrator"), &[]);
    asked.refuses("another", "states:StartExecution", &arn("stateMachine", "other"), &[]);
    asked.allows("states:DescribeExecution", &arn("execution", "ostler-orchestrator:w-1"), &[]);
    asked.refuses("another's", "states:DescribeExecution", &arn("execution", "other:w-1"), &[]);
    let parameter =
        |name: &str| format!("arn:aws:ssm:eu-west-1:111122223333:parameter/ostler/control/{name}");
    for name in ["tiers", "app", "apps", "app-private-key", "name-key"] {
        asked.allows("ssm:GetParameters", &parameter(name), &[]);
    }
    asked.refuses("webhook's", "ssm:GetParameters", &parameter("webhook-secret"), &[]);
    asked.hold();
    let all = [
        "dynamodb:GetItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "ssm:GetParameters",
        "states:DescribeExecution",
        "states:StartExecution",
    ];
    let actions = allowed(&statements(&stack, "ReconcilerRole"));
    assert_eq!(actions, all.map(str::to_owned).into());
}

#[test]
fn a_selector_may_be_asked_only_where_there_is_one() {
    let template = template(TEMPLATE);
    let selector = "arn:aws:lambda:eu-west-1:111122223333:function:choose";
    let mut with = stack(&template);
    with.values.insert("SelectorFunctionArn".into(), selector.into());
    let mut asked = Cases::of(&with, "ReconcilerRole");
    asked.allows("lambda:InvokeFunction", selector, &[]);
    asked.hold();
    let mut asked = Cases::of(&stack(&template), "ReconcilerRole");
    asked.refuses("without one", "lambda:InvokeFunction", selector, &[]);
    asked.hold();
}

#[test]
fn the_index_that_it_reads_is_the_ledgers_and_sparse() {
    let control = template("infra/control.yaml");
    let ledger = &control["Resources"]["LedgerTable"]["Properties"];
    let index = &ledger["GlobalSecondaryIndexes"][0];
    assert_eq!(index["IndexName"], "due");
    assert_eq!(index["Projection"], json!({"ProjectionType": "KEYS_ONLY"}));
    let keys: Vec<_> = index["KeySchema"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| (scalar(&key["AttributeName"]), scalar(&key["KeyType"])))
        .collect();
    let own = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    assert_eq!(keys, [own("due", "HASH"), own("dueAt", "RANGE")]);
    let known = ledger["AttributeDefinitions"].as_array().unwrap();
    let known: Vec<_> = known.iter().map(|it| scalar(&it["AttributeName"])).collect();
    assert_eq!(known, ["pk", "due", "dueAt"]);
}

#[test]
fn it_runs_every_five_minutes_and_a_run_ends_before_the_next() {
    let template = template(TEMPLATE);
    let stack = stack(&template);
    let schedule = stack.properties("ReconcilerSchedule");
    assert_eq!(schedule["ScheduleExpression"], "rate(5 minutes)");
    let function = stack.properties("ReconcilerFunction");
    assert!(scalar(&function["Timeout"]).parse::<u64>().unwrap() < 300);
    assert_eq!(stack.properties("ReconcilerInvocation")["MaximumRetryAttempts"], 0);
    assert_eq!(
        function["Environment"]["Variables"],
        json!({
            "OSTLER_PREFIX": "/ostler",
            "OSTLER_STATE_MACHINE_ARN": OF_CONTROL[2].1,
            "OSTLER_LEDGER_TABLE": "ledger-1",
        })
    );
}

#[test]
fn errors_silence_and_what_could_not_be_delivered_have_alarms_where_someone_hears_them() {
    let template = template(TEMPLATE);
    let alarms = resources(&template, "AWS::CloudWatch::Alarm");
    let names: Vec<_> = alarms.keys().copied().collect();
    assert_eq!(names, ["InstanceDeadLetterAlarm", "ReconcilerSilenceAlarm", "UndeliveredAlarm"]);
    let silent = stack(&template);
    let mut heard = stack(&template);
    heard.values.insert("AlarmTopicArn".into(), "arn:aws:sns:eu-west-1:111122223333:alarms".into());
    for (name, alarm) in alarms {
        assert!(!silent.makes(alarm) && heard.makes(alarm), "{name}");
        assert!(scalar(&alarm["Properties"]["AlarmDescription"]).len() > 30, "{name}");
    }
    assert_eq!(heard.properties("ReconcilerSilenceAlarm")["TreatMissingData"], "breaching");
}

#[test]
fn the_log_is_the_stacks_and_goes_with_it() {
    let template = template(TEMPLATE);
    let stack = stack(&template);
    let logs = stack.properties("ReconcilerLogs");
    assert_eq!(logs["LogGroupName"], "/ostler/stack/reconciler");
    let function = stack.properties("ReconcilerFunction");
    assert_eq!(function["LoggingConfig"]["LogGroup"], "/ostler/stack/reconciler");
}

#[test]
fn instance_events_hear_of_ends_and_warnings_and_only_look_at_instances() {
    let template = template(TEMPLATE);
    let stack = stack(&template);
    // What the rules let through is what the function understands.
    for (rule, kind) in [
        ("InstanceRule", "EC2 Instance State-change Notification"),
        ("InterruptionRule", "EC2 Spot Instance Interruption Warning"),
    ] {
        let rule = stack.properties(rule);
        let pattern = &rule["EventPattern"];
        assert_eq!(
            (&pattern["source"], &pattern["detail-type"]),
            (&json!(["aws.ec2"]), &json!([kind]))
        );
        let states = pattern["detail"]["state"].as_array().cloned().unwrap_or(vec![Value::Null]);
        for state in states {
            let detail = json!({"instance-id": "i-1", "state": state});
            let event = json!({"detail-type": kind, "detail": detail});
            assert!(ostler_core::instances::InstanceEvent::read(&event).is_some(), "{event}");
        }
    }
    let mut asked = Cases::of(&stack, "InstanceRole");
    let here = ("aws:RequestedRegion", "eu-west-1");
    asked.allows("ec2:DescribeInstances", "*", &[here]);
    let instance = "arn:aws:ec2:eu-west-1:111122223333:instance/i-1";
    for action in ["ec2:TerminateInstances", "ec2:StopInstances"] {
        asked.refuses(action, action, instance, &[("aws:ResourceTag/ostler:owner", "acme"), here]);
    }
    let table = "arn:aws:dynamodb:eu-west-1:111122223333:table/ledger-1";
    asked.allows("dynamodb:UpdateItem", table, &[]);
    asked.refuses("the index", "dynamodb:Query", &format!("{table}/index/due"), &[]);
    asked.hold();
    let actions = allowed(&statements(&stack, "InstanceRole"));
    let all = [
        "dynamodb:GetItem",
        "dynamodb:UpdateItem",
        "ec2:DescribeInstances",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
        "ssm:GetParameters",
        "states:DescribeExecution",
        "states:StartExecution",
    ];
    assert_eq!(actions, all.map(str::to_owned).into());
}

const ELSEWHERE: &str = "444455556666";

/// Only accounts that are named may put anything on the bus, and only what EC2 says of instances.
#[test]
fn r66_the_accounts_of_runners_put_events_of_instances_on_a_bus_of_their_own() {
    let template = template(TEMPLATE);
    let mut with = stack(&template);
    with.values.insert("RunnerAccountIds".into(), ELSEWHERE.into());
    for id in ["InstanceBus", "InstanceBusPolicy", "ForwardedRule"] {
        let resource = &template["Resources"][id];
        assert!(!stack(&template).makes(resource) && with.makes(resource), "{id}");
    }
    let policy = with.properties("InstanceBusPolicy");
    let statement = &policy["Statement"];
    assert_eq!(statement["Principal"], json!({"AWS": ELSEWHERE}));
    assert_eq!(statement["Action"], "events:PutEvents");
    let condition = &statement["Condition"]["StringEquals"];
    assert_eq!(condition["events:source"], "aws.ec2");
    let own = ["InstanceRule", "InterruptionRule"]
        .map(|rule| with.properties(rule)["EventPattern"]["detail-type"][0].clone());
    assert_eq!(condition["events:detail-type"], json!(own));
    // The account's own bus lets nobody in, and no rule of the own bus takes what is forwarded.
    let rule = with.properties("ForwardedRule");
    assert_eq!(rule["EventBusName"], policy["EventBusName"]);
    assert_eq!(rule["Targets"], with.properties("InstanceRule")["Targets"]);
    let senders = |stack: &Stack<'_>| {
        let policy = stack.properties("InstanceQueuePolicy");
        let condition = &policy["PolicyDocument"]["Statement"][0]["Condition"]["ArnEquals"];
        condition["aws:SourceArn"].as_array().unwrap().len()
    };
    assert_eq!((senders(&stack(&template)), senders(&with)), (2, 3));
}

#[test]
fn r66_roles_elsewhere_are_assumed_one_by_one_and_none_before_there_is_one() {
    let template = template(TEMPLATE);
    let role = "arn:aws:iam::444455556666:role/ostler-runners-EventRole-X";
    let mut with = stack(&template);
    with.values.insert("EventRoleArns".into(), role.into());
    let mut asked = Cases::of(&with, "InstanceRole");
    asked.allows("sts:AssumeRole", role, &[]);
    asked.refuses("another", "sts:AssumeRole", &role.replace("-X", "-Y"), &[]);
    asked.hold();
    let mut asked = Cases::of(&stack(&template), "InstanceRole");
    asked.refuses("without one", "sts:AssumeRole", role, &[]);
    asked.hold();
}

#[test]
fn an_event_comes_again_long_enough_and_then_to_a_queue_with_an_alarm() {
    let template = template(TEMPLATE);
    let stack = stack(&template);
    let (queue, function) =
        (stack.properties("InstanceQueue"), stack.properties("InstanceFunction"));
    let number = |value: &Value| scalar(value).parse::<u64>().unwrap();
    assert!(number(&queue["VisibilityTimeout"]) >= 2 * number(&function["Timeout"]));
    let receives = number(&queue["RedrivePolicy"]["maxReceiveCount"]);
    assert!(receives * number(&queue["VisibilityTimeout"]) >= 900);
    assert_eq!(
        stack.properties("InstanceEvents")["FunctionResponseTypes"],
        json!(["ReportBatchItemFailures"])
    );
    let alarm = &template["Resources"]["InstanceDeadLetterAlarm"]["Properties"];
    let dead = json!({"Fn::GetAtt": ["InstanceDeadLetterQueue", "QueueName"]});
    assert_eq!(alarm["Dimensions"][0]["Value"], dead);
}
