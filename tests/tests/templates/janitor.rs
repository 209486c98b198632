//! The registration janitor's template: `jNN_` names the requirement of the janitor that it shows.

use std::collections::BTreeSet;

use ostler_core::janitor::{Config, Part, ProviderConfig};
use serde_json::{Value, json};

use crate::template::{Stack, list, resources, scalar, template};

const NAME: &str = "infra/registration-janitor.yaml";

/// What an operator has to give.
const GIVEN: [(&str, &str); 7] = [
    ("Organization", "acme"),
    ("RunnerGroupIds", "7,3"),
    ("RunnerNamePrefix", "acme-prod-"),
    ("Regions", "us-east-1,eu-west-1"),
    ("AppIdParameter", "/gh/id"),
    ("AppKeyParameter", "/gh/key"),
    ("CodeBucket", "bucket"),
];

const OSTLER: [(&str, &str); 4] = [
    ("Provider", "ostler"),
    ("RunnerNamePrefix", ""),
    ("StateMachineArn", "arn:aws:states:eu-west-1:111122223333:stateMachine:ostler-orchestrator"),
    ("NameKeyParameter", "/ostler/control/name-key"),
];

fn given<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GIVEN.iter().chain(more).copied().collect()
}

/// The descriptions of the assertions that fail.
fn refusals(template: &Value, values: &[(&str, &str)]) -> Vec<String> {
    let stack = Stack::new(template, values);
    let mut refusals = Vec::new();
    for rule in template["Rules"].as_object().unwrap().values() {
        if stack.evaluate(&rule["RuleCondition"]) == json!(true) {
            for assertion in rule["Assertions"].as_array().unwrap() {
                if stack.evaluate(&assertion["Assert"]) == json!(false) {
                    refusals.push(scalar(&assertion["AssertDescription"]));
                }
            }
        }
    }
    refusals
}

fn variables(stack: &Stack<'_>) -> Value {
    stack.properties("Function")["Environment"]["Variables"].clone()
}

fn config(template: &Value, values: &[(&str, &str)]) -> ostler_core::Result<Config> {
    let stack = Stack::new(template, values);
    Config::parse(variables(&stack)["REGISTRATION_JANITOR_CONFIG"].as_str())
}

/// All statements of the policies that hang on the function's role, by policy.
fn statements(stack: &Stack<'_>, policy: &str) -> Vec<Value> {
    let properties = stack.properties(policy);
    assert_eq!(properties["Roles"], json!([stack.values["Role"]]), "{policy}");
    properties["PolicyDocument"]["Statement"].as_array().unwrap().clone()
}

#[test]
fn j01_j08_the_stack_depends_on_no_other_and_nothing_else_depends_on_it() {
    let template = template(NAME);
    let text = template.to_string();
    assert!(!text.contains("Fn::ImportValue") && !text.contains("ExportName"));
    assert!(template["Outputs"].as_object().unwrap().values().all(|it| it.get("Export").is_none()));
    for other in ["infra/control.yaml", "infra/network.yaml"] {
        assert!(!crate::template::text(other).contains("anitor"), "{other} makes it unasked");
    }
    // Several of them beside each other: every name is made of the stack's.
    let (one, two) = (given(&[("AWS::StackName", "one")]), given(&[("AWS::StackName", "two")]));
    let (one, two) = (Stack::new(&template, &one), Stack::new(&template, &two));
    for (id, resource) in template["Resources"].as_object().unwrap() {
        for name in ["QueueName", "FunctionName", "LogGroupName", "RoleName", "Name"] {
            if let Some(name) = resource["Properties"].get(name) {
                assert_ne!(one.evaluate(name), two.evaluate(name), "{id}");
            }
        }
    }
}

#[test]
fn j12_what_is_missing_is_refused_before_anything_is_made() {
    let template = template(NAME);
    assert_eq!(refusals(&template, &given(&[])), Vec::<String>::new());
    assert_eq!(refusals(&template, &given(&OSTLER)), Vec::<String>::new());
    for (bad, says) in [
        (vec![("RunnerNamePrefix", "")], "RunnerNamePrefix"),
        (vec![("Organization", "")], "Organization"),
        (vec![("RunnerGroupIds", "")], "RunnerGroupIds"),
        (vec![("Repositories", "acme/widgets")], "not both"),
        ([&OSTLER[..], &[("NameKeyParameter", "")]].concat(), "NameKeyParameter"),
        ([&OSTLER[..], &[("StateMachineArn", "")]].concat(), "StateMachineArn"),
        ([&OSTLER[..], &[("RunnerNamePrefix", "x-")]].concat(), "RunnerNamePrefix"),
    ] {
        let refusals = refusals(&template, &given(&bad));
        assert!(refusals.len() == 1 && refusals[0].contains(says), "{bad:?}: {refusals:?}");
        // And by the function, should they ever get past that.
        assert!(config(&template, &given(&bad)).is_err(), "{bad:?}");
    }
    let parameters = &template["Parameters"];
    let bounds = |key: &str| parameters["MaxCandidates"][key].as_u64();
    assert_eq!((bounds("MinValue"), bounds("MaxValue")), (Some(1), Some(1000)));
    // Required, so that no default is ever taken for all regions.
    assert!(parameters["Regions"].get("Default").is_none());
    for name in ["Regions", "RunnerGroupIds", "Organization", "RunnerNamePrefix", "Repositories"] {
        let pattern = scalar(&parameters[name]["AllowedPattern"]);
        assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{name}: {pattern}");
    }
}

#[test]
fn j84_the_function_reads_the_configuration_that_the_parameters_make() {
    let template = template(NAME);
    let read = config(&template, &given(&[])).unwrap();
    let parts: Vec<_> = read.scope.parts().iter().map(ToString::to_string).collect();
    assert_eq!(parts, ["group 3 of acme", "group 7 of acme"]);
    assert_eq!(read.provider.regions(), ["eu-west-1", "us-east-1"]);
    assert_eq!((read.provider.prefix(), read.github_api.as_str()), ("acme-prod-", ""));

    let ghes = [("GhesApiUrl", "https://git.acme.example/api/v3"), ("MaxCandidates", "7")];
    let read = config(&template, &given(&ghes)).unwrap();
    assert_eq!((read.github_api.as_str(), read.max_candidates), (ghes[0].1, 7));

    let repositories =
        [("Organization", ""), ("RunnerGroupIds", ""), ("Repositories", "acme/widgets,acme/tools")];
    let read = config(&template, &given(&repositories)).unwrap();
    assert!(matches!(&read.scope.parts()[..], [Part::Repository(one), Part::Repository(two)]
        if one.name == "tools" && two.name == "widgets"));

    let read = config(&template, &given(&OSTLER)).unwrap();
    assert!(matches!(&read.provider, ProviderConfig::Ostler { state_machine_arn, .. }
        if state_machine_arn == OSTLER[2].1));

    let with = given(&[("AppsManifestParameter", "/gh/apps")]);
    let with = variables(&Stack::new(&template, &with));
    assert_eq!(with["PARAMETER_GITHUB_APPS_MANIFEST_NAME"], "/gh/apps");
    let without = variables(&Stack::new(&template, &given(&[])));
    let mut names: Vec<_> = without.as_object().unwrap().keys().cloned().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "PARAMETER_GITHUB_APP_ID_NAME",
            "PARAMETER_GITHUB_APP_KEY_BASE64_NAME",
            "REGISTRATION_JANITOR_CONFIG",
            "REGISTRATION_JANITOR_QUEUE_URL"
        ],
        "no manifest, no variable"
    );
    assert_eq!(without["PARAMETER_GITHUB_APP_ID_NAME"], "/gh/id");
}

#[test]
fn j16_dry_run_is_the_default() {
    let template = template(NAME);
    assert!(config(&template, &given(&[])).unwrap().dry_run);
    assert!(!config(&template, &given(&[("DryRun", "false")])).unwrap().dry_run);
}

#[test]
fn j04_j78_j79_the_compute_policy_reads_instances_of_the_configured_regions_and_no_more() {
    let template = template(NAME);
    let stack = Stack::new(&template, &given(&[]));
    assert_eq!(
        statements(&stack, "ComputePolicy"),
        [json!({"Sid": "Instances", "Effect": "Allow", "Action": "ec2:DescribeInstances",
            "Resource": "*",
            "Condition": {"StringEquals": {"aws:RequestedRegion": ["us-east-1", "eu-west-1"]}}})]
    );
    let ostler = given(&OSTLER);
    let ostler = Stack::new(&template, &ostler);
    let executions = &statements(&ostler, "ComputePolicy")[1];
    assert_eq!(executions["Action"], "states:DescribeExecution");
    assert_eq!(
        executions["Resource"],
        "arn:aws:states:eu-west-1:111122223333:execution:ostler-orchestrator:*"
    );
    // The two policies are apart, and the role has nothing besides.
    assert_eq!(
        resources(&template, "AWS::IAM::Policy").keys().copied().collect::<Vec<_>>(),
        ["CleanupPolicy", "ComputePolicy"]
    );
    let role = stack.properties("Role");
    assert!(role.get("Policies").is_none() && role.get("ManagedPolicyArns").is_none());
    let actions: BTreeSet<String> = [&stack, &ostler]
        .into_iter()
        .flat_map(|stack| {
            ["ComputePolicy", "CleanupPolicy"].map(|policy| statements(stack, policy)).concat()
        })
        .flat_map(|it| list(&it["Action"]).into_iter().map(scalar).collect::<Vec<_>>())
        .collect();
    assert_eq!(
        actions.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "ec2:DescribeInstances",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
            "sqs:ReceiveMessage",
            "sqs:SendMessage",
            "ssm:GetParameters",
            "states:DescribeExecution",
        ],
        "no machine is ended, no parameter deleted"
    );
}

#[test]
fn j71_j80_the_cleanup_policy_has_the_credentials_that_are_configured_and_one_queue() {
    let template = template(NAME);
    let parameter = |name: &str| format!("arn:aws:ssm:eu-west-1:111122223333:parameter{name}");
    let of = |values: &[(&'static str, &'static str)], sid: &str| {
        let values = given(values);
        let stack = Stack::new(&template, &values);
        statements(&stack, "CleanupPolicy").into_iter().find(|it| it["Sid"] == sid)
    };
    let credentials = |values: &[(&'static str, &'static str)]| {
        of(values, "Credentials").unwrap()["Resource"].clone()
    };
    let two = json!([parameter("/gh/id"), parameter("/gh/key")]);
    assert_eq!(credentials(&[]), two);
    let manifest = [("AppsManifestParameter", "/gh/apps")];
    assert_eq!(credentials(&manifest)[2], parameter("/gh/apps"));
    assert_eq!(credentials(&OSTLER)[2], parameter("/ostler/control/name-key"));
    assert!(of(&[], "AdditionalApps").is_none() && of(&[], "AppKey").is_none());
    let arns = "arn:aws:ssm:eu-west-1:111122223333:parameter/gh/2/id,\
                arn:aws:ssm:eu-west-1:111122223333:parameter/gh/2/key";
    let more = of(&[("AdditionalAppParameterArns", arns)], "AdditionalApps").unwrap();
    assert_eq!(more["Action"], "ssm:GetParameters");
    assert_eq!(more["Resource"], json!([parameter("/gh/2/id"), parameter("/gh/2/key")]));
    let key = "arn:aws:kms:eu-west-1:111122223333:key/1";
    let own = of(&[("AppKeyArn", key)], "AppKey").unwrap();
    assert_eq!((&own["Action"], &own["Resource"]), (&json!("kms:Decrypt"), &json!(key)));
    let queue = of(&[], "Confirmations").unwrap();
    assert_eq!(queue["Resource"], "arn:aws:sqs:eu-west-1:111122223333:stack-confirmations");
    for sid in ["Log", "Credentials", "Confirmations"] {
        let statement = of(&[], sid).unwrap();
        assert!(!statement["Resource"].to_string().contains("\"*\""), "{sid}");
    }
}

#[test]
fn j44_j58_j81_the_queues_hold_candidates_for_fifteen_minutes_and_three_tries() {
    let template = template(NAME);
    let stack = Stack::new(&template, &given(&[]));
    let queue = stack.properties("ConfirmationQueue");
    let number = |key: &str| queue[key].as_u64();
    assert_eq!(number("DelaySeconds"), Some(900));
    let timeout = stack.properties("Function")["Timeout"].as_u64().unwrap();
    assert_eq!((timeout, number("VisibilityTimeout")), (300, Some(6 * timeout)));
    assert_eq!(number("MessageRetentionPeriod"), Some(86_400));
    assert_eq!(queue["SqsManagedSseEnabled"], true);
    let redrive = &queue["RedrivePolicy"];
    assert_eq!(redrive["maxReceiveCount"], 3);
    assert_eq!(redrive["deadLetterTargetArn"], stack.values["ConfirmationDeadLetterQueue.Arn"]);
    let dead = stack.properties("ConfirmationDeadLetterQueue");
    assert_eq!(dead["MessageRetentionPeriod"], 1_209_600);
    assert_eq!(dead["SqsManagedSseEnabled"], true);
}

#[test]
fn j20_j82_batches_of_ten_answer_record_by_record_two_at_a_time() {
    let template = template(NAME);
    let mapping = &template["Resources"]["Confirmations"];
    assert_eq!(mapping["DependsOn"], json!(["ComputePolicy", "CleanupPolicy"]));
    let mapping = &mapping["Properties"];
    assert_eq!(mapping["BatchSize"], 10);
    assert_eq!(mapping["FunctionResponseTypes"], json!(["ReportBatchItemFailures"]));
    assert_eq!(mapping["ScalingConfig"]["MaximumConcurrency"], 2);
    assert!(
        mapping.get("Enabled").is_none(),
        "a schedule that is switched off stops no confirmation"
    );
}

#[test]
fn j83_half_an_hour_five_minutes_half_a_gibibyte_and_thirty_days() {
    let template = template(NAME);
    let stack = Stack::new(&template, &given(&[]));
    let schedule = stack.properties("Schedule");
    assert_eq!(schedule["ScheduleExpression"], "rate(30 minutes)");
    assert_eq!(schedule["State"], "ENABLED");
    let off = given(&[("ScheduleState", "DISABLED")]);
    assert_eq!(Stack::new(&template, &off).properties("Schedule")["State"], "DISABLED");
    let function = stack.properties("Function");
    assert_eq!((&function["Timeout"], &function["MemorySize"]), (&json!(300), &json!(512)));
    assert_eq!(function["Architectures"], json!(["arm64"]));
    assert_eq!(scalar(&stack.properties("Logs")["RetentionInDays"]), "30");
    // A scan that fails is the next tick's business: a second one would only use up the quota.
    assert_eq!(stack.properties("ScheduleInvocation")["MaximumRetryAttempts"], 0);
    let permission = stack.properties("SchedulePermission");
    assert_eq!(permission["Principal"], "events.amazonaws.com");
    assert_eq!(permission["SourceArn"], stack.values["Schedule.Arn"]);
}

#[test]
fn j85_the_outputs_name_the_function_and_the_dead_letter_queue() {
    let template = template(NAME);
    let outputs = template["Outputs"].as_object().unwrap();
    for name in ["JanitorFunctionName", "JanitorFunctionArn", "JanitorLogGroup", "JanitorRoleName"]
    {
        assert!(outputs.contains_key(name), "{name}");
    }
    let dead = scalar(&outputs["JanitorDeadLetterQueueUrl"]["Description"]);
    assert!(dead.contains("Inspect") && dead.contains("24 hours"), "{dead}");
}

#[test]
fn j88_jp_08_errors_dead_letters_and_three_periods_without_a_scan_raise_alarms() {
    let template = template(NAME);
    let topic = [("AlarmTopicArn", "arn:aws:sns:eu-west-1:111122223333:alarms")];
    let values = given(&topic);
    let stack = Stack::new(&template, &values);
    let alarms = resources(&template, "AWS::CloudWatch::Alarm");
    assert_eq!(
        alarms.keys().copied().collect::<Vec<_>>(),
        ["DeadLetterAlarm", "ErrorsAlarm", "NoScanAlarm"]
    );
    for alarm in alarms.keys() {
        assert_eq!(stack.properties(alarm)["AlarmActions"], json!([topic[0].1]), "{alarm}");
    }
    let errors = stack.properties("ErrorsAlarm");
    assert_eq!(
        (&errors["Namespace"], &errors["MetricName"]),
        (&json!("AWS/Lambda"), &json!("Errors"))
    );
    assert_eq!(errors["Dimensions"], json!([{"Name": "FunctionName", "Value": "stack"}]));
    let dead = stack.properties("DeadLetterAlarm");
    assert_eq!(dead["MetricName"], "ApproximateNumberOfMessagesVisible");
    assert_eq!(
        dead["Dimensions"],
        json!([{"Name": "QueueName", "Value": "stack-confirmations-dead"}])
    );
    let scans = stack.properties("NoScanAlarm");
    assert_eq!(
        (&scans["Namespace"], &scans["MetricName"]),
        (&json!("Ostler"), &json!("ScanCompleted"))
    );
    assert_eq!(scans["Dimensions"], json!([{"Name": "Janitor", "Value": "stack"}]));
    assert_eq!(
        (scalar(&scans["Period"]).as_str(), &scans["EvaluationPeriods"]),
        ("1800", &json!(3))
    );
    assert_eq!(
        scans["TreatMissingData"], "breaching",
        "a janitor that is silent is what it is about"
    );
    assert_eq!(scans["ComparisonOperator"], "LessThanThreshold");
    // Longest that an alarm may look back.
    let longest = template["Parameters"]["SchedulePeriodSeconds"]["MaxValue"].as_u64().unwrap();
    assert!(longest * 3 <= 86_400);
}
