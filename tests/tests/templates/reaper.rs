//! The laws of `reaper.yaml`.

use std::collections::BTreeSet;
use std::time::Duration;

use ostler_core::config::Tiers;
use serde_json::{Value, json};

use crate::policy::{Cases, allowed, statements};
use crate::template::{Stack, resources, scalar, template, text};

const TEMPLATE: &str = "infra/reaper.yaml";
const OWN: [(&str, &str); 1] = [("Owner", "acme")];

#[test]
fn r49_the_rule_speaks_of_one_minute_in_the_singular() {
    let template = template(TEMPLATE);
    for (minutes, expected) in [
        ("1", "rate(1 minute)"),
        ("2", "rate(2 minutes)"),
        ("15", "rate(15 minutes)"),
        ("720", "rate(720 minutes)"),
    ] {
        let stack = Stack::new(&template, &[("EveryMinutes", minutes)]);
        assert_eq!(stack.properties("Schedule")["ScheduleExpression"], expected);
    }
    let defaults = &template["Parameters"];
    assert_eq!(
        ["EveryMinutes", "MaxAgeMinutes", "DryRun"].map(|name| scalar(&defaults[name]["Default"])),
        ["15", "720", "false"]
    );
    let stack = Stack::new(&template, &[]);
    let function = &stack.values["Function.Arn"];
    assert_eq!(stack.properties("Schedule")["Targets"], json!([{"Id": "reaper", "Arn": function}]));
    let permission = &template["Resources"]["SchedulePermission"]["Properties"];
    assert_eq!(permission["Principal"], "events.amazonaws.com");
    assert_eq!(permission["SourceArn"], json!({"Fn::GetAtt": ["Schedule", "Arn"]}));
}

#[test]
fn r54_a_sweep_that_failed_is_not_repeated_and_two_do_not_run_at_a_time() {
    let template = template(TEMPLATE);
    let stack = Stack::new(&template, &[]);
    let invocation = stack.properties("Invocation");
    assert_eq!(invocation["MaximumRetryAttempts"], 0);
    assert_eq!(invocation["MaximumEventAgeInSeconds"], 60);
    assert_eq!(invocation["FunctionName"], stack.values["Function"]);
    assert_eq!(stack.properties("Function")["ReservedConcurrentExecutions"], 1);
    // An account that is new has no concurrency to reserve.
    let small = Stack::new(&template, &[("OneSweepAtATime", "false")]);
    assert!(small.properties("Function").get("ReservedConcurrentExecutions").is_none());
}

#[test]
fn r57_the_log_is_the_stacks_and_goes_with_it() {
    let template = template(TEMPLATE);
    let stack = Stack::new(&template, &[("LogRetentionDays", "7")]);
    let logs = stack.properties("Logs");
    assert_eq!(
        (&logs["LogGroupName"], &logs["RetentionInDays"]),
        (&json!("/ostler/stack/reaper"), &json!("7"))
    );
    assert_eq!(stack.properties("Function")["LoggingConfig"]["LogGroup"], "/ostler/stack/reaper");
    assert!(template["Resources"]["Logs"].get("DeletionPolicy").is_none());
    let actions = allowed(&statements(&stack, "Role"));
    assert!(!actions.contains("logs:CreateLogGroup"), "or it comes back after the stack");
}

#[test]
fn r58_it_needs_the_owners_name_and_nothing_of_another_stack() {
    let template = template(TEMPLATE);
    let required: BTreeSet<_> = template["Parameters"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, parameter)| parameter.get("Default").is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(required, ["CodeBucket", "Owner"].into(), "its code, and the owner");
    let text = text(TEMPLATE);
    for word in ["ImportValue", "ssm", "github", "VpcId"] {
        assert!(
            !text.to_lowercase().replace("can't ask github", "").contains(&word.to_lowercase()),
            "{word}"
        );
    }
}

#[test]
fn the_function_gets_the_variables_that_it_asks_for() {
    let template = template(TEMPLATE);
    let stack =
        Stack::new(&template, &[("Owner", "acme"), ("CodePrefix", "b1/"), ("CodeBucket", "code")]);
    let function = stack.properties("Function");
    assert_eq!(
        function["Environment"]["Variables"],
        json!({
            "OSTLER_OWNER": "acme",
            "OSTLER_OWNER_TAG": "ostler:owner",
            "OSTLER_STATE_TAG": "ostler:state",
            "OSTLER_KEPT_STATES": "ready,warming",
            "OSTLER_UNTIL_TAG": "ostler:until",
            "OSTLER_MAX_AGE_MINUTES": "720",
            "OSTLER_DRY_RUN": "false",
        })
    );
    assert_eq!(function["Code"], json!({"S3Bucket": "code", "S3Key": "b1/reaper.zip"}));
    // The function refuses to start with another limit than the template lets through.
    let limit = &template["Parameters"]["MaxAgeMinutes"];
    assert_eq!((&limit["MinValue"], &limit["MaxValue"]), (&json!(10), &json!(43_200)));
    assert!(text("functions/reaper/src/main.rs").contains("= 10..=43_200;"));
}

#[test]
fn alarms_look_back_for_two_periods_at_errors_and_at_silence() {
    let template = template(TEMPLATE);
    let topic = "arn:aws:sns:eu-west-1:111122223333:alarms";
    for minutes in ["1", "15", "720"] {
        let stack = Stack::new(&template, &[("EveryMinutes", minutes), ("AlarmTopicArn", topic)]);
        let number = |value: &Value| scalar(value).parse::<u64>().unwrap();
        for id in ["ErrorsAlarm", "SilenceAlarm"] {
            assert!(stack.makes(&template["Resources"][id]), "{id}");
            let alarm = stack.properties(id);
            assert_eq!(alarm["AlarmActions"], json!([topic]), "{id}");
            let period = match alarm["Metrics"].as_array() {
                None => number(&alarm["Period"]),
                Some(metrics) => number(&metrics[1]["MetricStat"]["Period"]),
            };
            let window = period * number(&alarm["EvaluationPeriods"]);
            assert_eq!(window, 2 * 60 * number(&minutes.into()), "{id}");
            assert!(window <= 86_400, "CloudWatch looks back for a day at most");
            assert!(alarm["AlarmDescription"].as_str().unwrap().len() > 30, "{id} says what to do");
        }
        // One failure is enough, and its absence for two periods ends the alarm.
        let errors = stack.properties("ErrorsAlarm");
        assert_eq!(
            (&errors["MetricName"], &errors["DatapointsToAlarm"]),
            (&json!("Errors"), &json!(1))
        );
        assert_eq!(errors["ComparisonOperator"], "GreaterThanOrEqualToThreshold");
        assert_eq!(errors["TreatMissingData"], "notBreaching");
        // Silence is no sweep that went well: neither none at all, nor only failures.
        let silence = stack.properties("SilenceAlarm");
        assert_eq!(silence["Metrics"][0]["Expression"], "FILL(errors, 1)");
        let metric = json!({"Namespace": "AWS/Lambda", "MetricName": "Errors",
            "Dimensions": [{"Name": "FunctionName", "Value": stack.values["Function"]}]});
        assert_eq!(silence["Metrics"][1]["MetricStat"]["Metric"], metric);
        assert_eq!(silence["Metrics"][1]["MetricStat"]["Stat"], "Average");
        assert_eq!(silence["ComparisonOperator"], "GreaterThanOrEqualToThreshold");
        assert!(silence.get("DatapointsToAlarm").is_none(), "all of them");
        assert_eq!(
            (&silence["Threshold"], &silence["TreatMissingData"]),
            (&json!(1), &json!("breaching"))
        );
    }
    let silent = Stack::new(&template, &[]);
    for (id, alarm) in resources(&template, "AWS::CloudWatch::Alarm") {
        assert!(!silent.makes(alarm), "{id} would cost money, and nobody would hear it");
    }
}

#[test]
fn it_ends_and_cancels_what_carries_the_owners_tag_and_does_nothing_else() {
    let template = template(TEMPLATE);
    for (tag, values) in
        [("ostler:owner", &OWN[..]), ("team name", &[("Owner", "acme"), ("OwnerTag", "team name")])]
    {
        let stack = Stack::new(&template, values);
        let key = format!("aws:ResourceTag/{tag}");
        let arn = |rest: &str| format!("arn:aws:ec2:eu-west-1:111122223333:{rest}");
        let mut asked = Cases::of(&stack, "Role");
        for (action, resource) in [
            ("ec2:TerminateInstances", arn("instance/i-1")),
            ("ec2:CancelSpotInstanceRequests", arn("spot-instances-request/sir-1")),
        ] {
            asked.allows(action, &resource, &[(&key, "acme")]);
            asked.refuses("another's", action, &resource, &[(&key, "other")]);
            asked.refuses("what has no tag", action, &resource, &[]);
            asked.refuses(
                "by another tag",
                action,
                &resource,
                &[("aws:ResourceTag/other", "acme")],
            );
            let abroad = resource.replace("eu-west-1", "us-east-1");
            asked.refuses("in another region", action, &abroad, &[(&key, "acme")]);
        }
        for action in ["ec2:DescribeInstances", "ec2:DescribeSpotInstanceRequests"] {
            asked.allows(action, "*", &[("aws:RequestedRegion", "eu-west-1")]);
            asked.refuses("elsewhere", action, "*", &[("aws:RequestedRegion", "us-east-1")]);
        }
        for action in ["ec2:StopInstances", "ec2:ModifyInstanceAttribute", "ec2:StartInstances"] {
            asked.refuses("nothing else", action, &arn("instance/i-1"), &[(&key, "acme")]);
        }
        asked.hold();
        let all = [
            "ec2:CancelSpotInstanceRequests",
            "ec2:DescribeInstances",
            "ec2:DescribeSpotInstanceRequests",
            "ec2:TerminateInstances",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
        ];
        let actions = allowed(&statements(&stack, "Role"));
        assert_eq!(actions, all.map(str::to_owned).into());
    }
}

/// It can't ask GitHub whether a job runs. A tier whose lifetime is longer than the limit tags its machines with their end.
#[test]
fn r56_the_limit_is_above_the_longest_job_and_says_so() {
    let template = template(TEMPLATE);
    let parameter = &template["Parameters"]["MaxAgeMinutes"];
    let minutes = |key: &str| Duration::from_secs(60 * parameter[key].as_u64().unwrap());
    let tier =
        json!({"name": "a", "architecture": "x64", "images": ["ami-1"], "instance_types": ["t"]});
    let tiers = Tiers::parse(&json!({ "tiers": [tier] }).to_string());
    let usual = tiers.get("a").unwrap();
    assert!(
        minutes("Default") > usual.max_lifetime + usual.boot_timeout + Duration::from_secs(3600)
    );
    // GitHub ends a job after five days (docs.github.com, "Actions limits").
    assert!(minutes("MaxValue") > Duration::from_secs(5 * 86_400));
    assert!(scalar(&parameter["Description"]).contains("More than the longest job"));
    let docs = text("docs/operations.md");
    let docs = docs.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(docs.contains("`MaxAgeMinutes` **must be above the longest job**"));
}

/// The policy is a text in which parameters are replaced: none of them may end that text.
#[test]
fn parameters_can_not_break_the_policy() {
    let template = template(TEMPLATE);
    for name in ["Owner", "OwnerTag", "StateTag", "KeptStates", "UntilTag"] {
        let pattern = template["Parameters"][name]["AllowedPattern"].as_str().unwrap();
        assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{name}");
        let class = pattern.split(['[', ']']).nth(1).unwrap();
        for character in ['"', '\\', '$', '{', '}', '*', '?', '\n'] {
            assert!(!class.contains(character), "{name} admits {character:?}");
        }
        // A dash between two characters is a range.
        assert!(class.ends_with('-') && class.starts_with("A-Za-z0-9 "), "{name}");
    }
}
