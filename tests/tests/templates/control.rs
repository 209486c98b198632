//! The laws of `control.yaml`: sizes, what it must hold, and what it must not.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ostler_core::ports::OPERATOR_NEEDED;
use serde_json::{Value, json};

use crate::template::{Stack, TEMPLATES, list, parse, path, resources, scalar, template, text};

/// Of a template handed over with the request (CloudFormation quotas).
const TEMPLATE_BYTES_MAX: usize = 51_200;
/// What must be free, so that the next change is not about bytes.
const TEMPLATE_BYTES_ROOM: usize = 3_200;
/// EC2 takes 16,384; the rest is for what operators add to images of theirs.
const USER_DATA_BYTES_MAX: usize = 14 * 1024;
/// All names and values of a function's environment together (Lambda quotas).
const ENVIRONMENT_BYTES_MAX: usize = 4096;
/// `<stack>-orchestrator` may have 64 characters as a function's name.
const STACK_NAME_LONGEST: &str = "a-stack-name-of-fifty-characters-which-is-the-most";

#[test]
fn the_rendered_template_is_fresh() {
    let check = Command::new("python3")
        .arg(path("scripts/render_templates.py"))
        .arg("--check")
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn rendering_takes_away_what_people_read_and_nothing_else() {
    for name in ["control", "byoc-role"] {
        let source = with_parts(&text(&format!("infra/{name}.src.yaml")))
            .replace("{{bootstrap.sh}}", "the script")
            .replace("{{bootstrap.sh header}}", "its header")
            .replace("{{orchestrator.asl.json}}", "the definition");
        let mut rendered = template(&format!("infra/{name}.yaml"));
        rendered["Mappings"]["Bootstrap"]["Script"]["Body"] = "the script\n".into();
        if let Some(machine) = rendered["Resources"].get_mut("StateMachine") {
            machine["Properties"]["DefinitionString"] = json!({"Fn::Sub": "the definition"});
        }
        for id in ["OnDemandTemplate", "SpotTemplate"] {
            let data = &mut rendered["Resources"][id]["Properties"]["LaunchTemplateData"];
            data["UserData"]["Fn::Base64"]["Fn::Join"][1][0] = json!({"Fn::Sub": "its header"});
        }
        assert_eq!(rendered, parse(&source), "{name}");
    }
}

/// A source with its parts put in, each line of a part indented as the line that names it.
fn with_parts(source: &str) -> String {
    let expand = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        match line.trim().strip_prefix("{{parts/").and_then(|name| name.strip_suffix("}}")) {
            Some(name) => {
                let part = text(&format!("infra/parts/{name}"));
                part.lines().map(|line| format!("{indent}{line}\n")).collect()
            }
            None => format!("{line}\n"),
        }
    };
    source.lines().map(expand).collect()
}

#[test]
fn the_rendered_state_machine_is_the_source_without_comments() {
    let template = template("infra/control.yaml");
    let deployed =
        &template["Resources"]["StateMachine"]["Properties"]["DefinitionString"]["Fn::Sub"];
    let mut source: Value = serde_json::from_str(&text("infra/orchestrator.asl.json")).unwrap();
    let object = source.as_object_mut().unwrap();
    object.remove("Comment");
    for state in object["States"].as_object_mut().unwrap().values_mut() {
        state.as_object_mut().unwrap().remove("Comment");
    }
    assert_eq!(serde_json::from_str::<Value>(deployed.as_str().unwrap()).unwrap(), source);
}

#[test]
fn r01_each_template_fits_into_the_request_and_leaves_room_for_the_next_change() {
    for name in TEMPLATES {
        let bytes = text(name).len();
        assert!(
            bytes <= TEMPLATE_BYTES_MAX - TEMPLATE_BYTES_ROOM,
            "{name} has {bytes} of {TEMPLATE_BYTES_MAX} bytes, and {TEMPLATE_BYTES_ROOM} are to stay free for what comes \
             next. Say things once (a policy of several roles, as JobsPolicy), count several ends in one metric, or let \
             scripts/render_templates.py take away more of what only people read"
        );
    }
}

fn user_data(stack: &Stack<'_>, id: &str) -> String {
    stack.properties(id)["LaunchTemplateData"]["UserData"].as_str().unwrap().to_owned()
}

#[test]
fn ol_13_user_data_stays_far_below_the_limit_at_its_longest() {
    let template = template("infra/control.yaml");
    let url = format!("https://{}", "u".repeat(400));
    let region = "ap-southeast-99";
    let values = [
        ("AWS::StackName", STACK_NAME_LONGEST),
        ("AWS::Region", region),
        ("RunnerUrl", &url),
        ("RunnerVersion", "22.333.44"),
    ];
    let stack = Stack::new(&template, &values);
    let script = user_data(&stack, "SpotTemplate");
    assert_eq!(script, user_data(&stack, "OnDemandTemplate"), "one script for both markets");
    assert!(script.len() < USER_DATA_BYTES_MAX, "{} bytes", script.len());
    assert!(script.contains(&url) && script.contains(region), "rendered at its longest");
}

#[test]
fn user_data_is_the_bootstrap_script_with_the_stacks_values() {
    let template = template("infra/control.yaml");
    let script = user_data(&Stack::new(&template, &[]), "SpotTemplate");
    let mut expected = String::from("#!/bin/bash\n");
    for (name, value) in [
        ("REGION", "eu-west-1"),
        ("ROLE_ID", "AROAEXAMPLEEXAMPLE123"),
        ("HANDOFF_TABLE", "stack-HandoffTable-ABCDEFGHIJKLM"),
        ("LOG_GROUP", "/ostler/stack/runners"),
        ("RUNNER_VERSION", &scalar(&template["Parameters"]["RunnerVersion"]["Default"])),
        ("RUNNER_SHA256_X64", &scalar(&template["Parameters"]["RunnerSha256X64"]["Default"])),
        ("RUNNER_SHA256_ARM64", &scalar(&template["Parameters"]["RunnerSha256Arm64"]["Default"])),
        ("RUNNER_URL", ""),
    ] {
        writeln!(expected, "OSTLER_{name}='{value}'").unwrap();
    }
    let body = script
        .strip_prefix(&expected)
        .unwrap_or_else(|| panic!("it starts otherwise:\n{}", &script[..900]));
    let source = text("infra/bootstrap.sh");
    let source = source.rsplit_once("# --- rendered ---\n").unwrap().1;
    let code = |text: &str| {
        let lines = text.lines().map(str::trim_start);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(body, code(source));

    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success(), "bash can't parse it");
}

/// Nothing of the control plane has an address that could change under a machine: what it needs, it asks AWS for by name.
#[test]
fn r13_user_data_holds_no_address_but_the_metadata_services() {
    for name in ["infra/control.yaml", "infra/byoc-role.yaml"] {
        let template = template(name);
        let stack = Stack::new(&template, &[]);
        for id in resources(&template, "AWS::EC2::LaunchTemplate").keys() {
            let script = user_data(&stack, id);
            let words = script.split(|c: char| !(c.is_ascii_digit() || c == '.'));
            let addresses: BTreeSet<&str> =
                words.filter(|word| word.parse::<std::net::Ipv4Addr>().is_ok()).collect();
            assert_eq!(addresses, ["169.254.169.254"].into(), "{name}: {id}");
        }
    }
}

#[test]
fn ic_06_the_environment_fits_with_thirty_subnets() {
    let template = template("infra/control.yaml");
    let subnets: Vec<_> = (0..30).map(|n| format!("subnet-{n:017x}")).collect();
    let (subnets, owner, prefix) =
        (subnets.join(","), "o".repeat(64), format!("/{}", "p".repeat(200)));
    let values = [
        ("AWS::StackName", STACK_NAME_LONGEST),
        ("SubnetIds", &subnets),
        ("Owner", &owner),
        ("Prefix", &prefix),
    ];
    let stack = Stack::new(&template, &values);
    for id in resources(&template, "AWS::Lambda::Function").keys() {
        let environment = stack.properties(id)["Environment"]["Variables"].clone();
        let variables = environment.as_object().unwrap();
        let bytes: usize =
            variables.iter().map(|(name, value)| name.len() + scalar(value).len()).sum();
        assert!(bytes < ENVIRONMENT_BYTES_MAX, "{id}: {bytes} bytes");
        assert!(
            *id != "OrchestratorFunction" || scalar(&variables["OSTLER_SUBNET_IDS"]) == subnets
        );
    }
}

#[test]
fn r21_each_function_gets_the_variables_that_it_asks_for() {
    let template = template("infra/control.yaml");
    let values = [("Owner", "acme"), ("SubnetIds", "subnet-1,subnet-2")];
    let stack = Stack::new(&template, &values);
    let machine = "arn:aws:states:eu-west-1:111122223333:stateMachine:stack-orchestrator";
    assert_eq!(
        stack.properties("WebhookFunction")["Environment"]["Variables"],
        json!({
            "OSTLER_OWNER": "acme",
            "OSTLER_PREFIX": "/ostler",
            "OSTLER_STATE_MACHINE_ARN": machine,
            "OSTLER_LEDGER_TABLE": "stack-LedgerTable-ABCDEFGHIJKLM",
            "OSTLER_REPORT_QUEUE_URL":
                "https://sqs.eu-west-1.amazonaws.com/111122223333/stack-reports.fifo",
        })
    );
    assert_eq!(
        stack.properties("OrchestratorFunction")["Environment"]["Variables"],
        json!({
            "OSTLER_OWNER": "acme",
            "OSTLER_PREFIX": "/ostler",
            "OSTLER_STATE_MACHINE_ARN": machine,
            "OSTLER_LEDGER_TABLE": "stack-LedgerTable-ABCDEFGHIJKLM",
            "OSTLER_HANDOFF_TABLE": "stack-HandoffTable-ABCDEFGHIJKLM",
            "OSTLER_RUNNER_ROLE_ID": "AROAEXAMPLEEXAMPLE123",
            "OSTLER_SUBNET_IDS": "subnet-1,subnet-2",
            // A number, not $Default: an update of the stack makes a new version and leaves the default.
            "OSTLER_TEMPLATE_ON_DEMAND": "lt-0123456789OnDemandTemplate:12345",
            "OSTLER_TEMPLATE_SPOT": "lt-0123456789SpotTemplate:12345",
        })
    );
    assert_eq!(
        stack.properties("StolenRunnerFunction")["Environment"]["Variables"],
        json!({
            "OSTLER_PREFIX": "/ostler",
            "OSTLER_STATE_MACHINE_ARN": machine,
            "OSTLER_LEDGER_TABLE": "stack-LedgerTable-ABCDEFGHIJKLM",
            "OSTLER_REPORT_QUEUE_URL":
                "https://sqs.eu-west-1.amazonaws.com/111122223333/stack-reports.fifo",
        })
    );
    // The ARN is put together from the name, because a reference would be a circle.
    assert_eq!(stack.properties("StateMachine")["StateMachineName"], "stack-orchestrator");
}

/// A group that Lambda made first, or that a deleted stack left, makes the next deploy fail.
#[test]
fn ic_05_every_log_group_is_the_stacks_own_and_goes_with_it() {
    let template = template("infra/control.yaml");
    let stack = Stack::new(&template, &[("LogRetentionDays", "7")]);
    let groups = resources(&template, "AWS::Logs::LogGroup");
    for id in groups.keys() {
        let properties = stack.properties(id);
        assert!(properties["LogGroupName"].as_str().unwrap().starts_with("/ostler/stack/"), "{id}");
        assert_eq!(properties["RetentionInDays"], "7", "{id}");
    }
    for (id, function) in resources(&template, "AWS::Lambda::Function") {
        let group = function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"].as_str();
        assert!(group.is_some_and(|group| groups.contains_key(group)), "{id} logs to {group:?}");
    }
    assert!(
        !text("infra/control.yaml").contains("CreateLogGroup"),
        "or it comes back after the stack"
    );
}

/// Deleting the stack while jobs run leaves nothing: no resource outlives it, and instances end themselves.
#[test]
fn a_deleted_stack_leaves_nothing_behind() {
    let template = template("infra/control.yaml");
    for (id, resource) in template["Resources"].as_object().unwrap() {
        assert!(resource.get("DeletionPolicy").is_none_or(|policy| policy == "Delete"), "{id}");
        assert!(resource["Properties"].get("DeletionProtectionEnabled").is_none(), "{id}");
    }
    for (id, launch) in resources(&template, "AWS::EC2::LaunchTemplate") {
        let data = &launch["Properties"]["LaunchTemplateData"];
        assert_eq!(data["InstanceInitiatedShutdownBehavior"], "terminate", "{id}");
        assert_eq!(data["NetworkInterfaces"][0]["DeleteOnTermination"], true, "{id}");
    }
}

#[test]
fn instances_are_launched_as_the_runners_role_expects() {
    let template = template("infra/control.yaml");
    let stack = Stack::new(
        &template,
        &[("Owner", "acme"), ("RunnerSecurityGroupId", "sg-1"), ("PublicIp", "false")],
    );
    let owner = json!([{"Key": "ostler:owner", "Value": "acme"}]);
    for id in resources(&template, "AWS::EC2::LaunchTemplate").keys() {
        let properties = stack.properties(id);
        let data = &properties["LaunchTemplateData"];
        assert_eq!(
            data["MetadataOptions"],
            json!({"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 2,
                   "InstanceMetadataTags": "enabled"}),
            "{id}"
        );
        assert_eq!(
            data["NetworkInterfaces"],
            json!([{"DeviceIndex": 0, "AssociatePublicIpAddress": "false", "DeleteOnTermination": true, "Groups": ["sg-1"]}]),
            "{id}"
        );
        assert_eq!(
            properties["TagSpecifications"],
            json!([{"ResourceType": "launch-template", "Tags": owner}])
        );
        // Tagging a spot request where none is made fails the launch; not tagging one leaves it for ever.
        let mut tagged = vec![json!({"ResourceType": "volume", "Tags": owner})];
        if *id == "SpotTemplate" {
            tagged.push(json!({"ResourceType": "spot-instances-request", "Tags": owner}));
        }
        assert_eq!(data["TagSpecifications"], json!(tagged), "{id}");
        for key in ["ImageId", "InstanceType", "KeyName", "SecurityGroupIds", "BlockDeviceMappings"]
        {
            assert!(
                data.get(key).is_none(),
                "{id}: {key} is the tier's, or clashes with the interface"
            );
        }
    }
}

#[test]
fn the_webhook_is_open_to_all_by_both_statements_that_aws_asks_for() {
    let template = template("infra/control.yaml");
    let permissions: Vec<_> = resources(&template, "AWS::Lambda::Permission")
        .values()
        .map(|permission| &permission["Properties"])
        .filter(|permission| permission["Principal"] == "*")
        .collect();
    assert_eq!(permissions.len(), 2);
    let webhook = json!({"Ref": "WebhookFunction"});
    for permission in permissions {
        assert_eq!(permission["FunctionName"], webhook);
        match permission["Action"].as_str().unwrap() {
            "lambda:InvokeFunctionUrl" => assert_eq!(permission["FunctionUrlAuthType"], "NONE"),
            "lambda:InvokeFunction" => assert_eq!(permission["InvokedViaFunctionUrl"], true),
            action => panic!("anyone may {action}"),
        }
    }
    let url = &template["Resources"]["WebhookUrl"]["Properties"];
    assert_eq!((&url["AuthType"], &url["TargetFunctionArn"]), (&json!("NONE"), &webhook));
}

#[test]
fn cp_12_no_function_is_held_below_a_burst() {
    let template = template("infra/control.yaml");
    for (id, function) in resources(&template, "AWS::Lambda::Function") {
        assert!(function["Properties"].get("ReservedConcurrentExecutions").is_none(), "{id}");
    }
    assert_eq!(
        template["Resources"]["WebhookThrottlesAlarm"]["Properties"]["MetricName"],
        "Throttles"
    );
}

#[test]
fn cp_02_functions_run_a_bootstrap_of_the_chosen_architecture() {
    let template = template("infra/control.yaml");
    assert_eq!(template["Parameters"]["Architecture"]["Default"], "arm64");
    let stack = Stack::new(
        &template,
        &[("CodePrefix", "b1/"), ("Architecture", "x86_64"), ("CodeBucket", "code")],
    );
    for (id, name, seconds) in [
        ("WebhookFunction", "webhook", 15),
        ("OrchestratorFunction", "orchestrator", 60),
        ("StolenRunnerFunction", "stolen-runner", 120),
    ] {
        let properties = stack.properties(id);
        assert_eq!(properties["FunctionName"], format!("stack-{name}"));
        assert_eq!(
            properties["Code"],
            json!({"S3Bucket": "code", "S3Key": format!("b1/{name}.zip")})
        );
        assert_eq!(
            (&properties["Runtime"], &properties["Handler"]),
            (&json!("provided.al2023"), &json!("bootstrap"))
        );
        assert_eq!(properties["Architectures"], json!(["x86_64"]));
        assert_eq!(
            (&properties["Timeout"], &properties["MemorySize"]),
            (&json!(seconds), &json!(256))
        );
    }
}

/// Nothing but the executions' own end says that one failed or was stopped, and an invocation that fails must be seen.
#[test]
fn r11_executions_that_ended_badly_reach_the_orchestrator_or_a_dead_letter_queue() {
    let template = template("infra/control.yaml");
    let rule = &template["Resources"]["EndedExecutionRule"]["Properties"];
    assert_eq!(
        rule["EventPattern"],
        json!({
            "source": ["aws.states"],
            "detail-type": ["Step Functions Execution Status Change"],
            "detail": {"status": ["FAILED", "ABORTED", "TIMED_OUT"], "stateMachineArn": [{"Ref": "StateMachine"}]},
        })
    );
    let dead = json!({"Fn::GetAtt": ["EndedExecutionDeadLetterQueue", "Arn"]});
    let target = &rule["Targets"][0];
    assert_eq!(target["Arn"], json!({"Fn::GetAtt": ["OrchestratorFunction", "Arn"]}));
    assert_eq!(target["DeadLetterConfig"]["Arn"], dead);
    assert!(target.get("InputTransformer").is_none() && target.get("InputPath").is_none());
    // EventBridge's queue takes what can't be handed over; a function that fails afterwards is Lambda's business.
    let invocation = &template["Resources"]["EndedExecutionInvocation"]["Properties"];
    assert_eq!(invocation["DestinationConfig"]["OnFailure"]["Destination"], dead);
    let permission = &template["Resources"]["EndedExecutionPermission"]["Properties"];
    assert_eq!(permission["SourceArn"], json!({"Fn::GetAtt": ["EndedExecutionRule", "Arn"]}));
    let policy = &template["Resources"]["EndedExecutionDeadLetterPolicy"]["Properties"];
    let statement = &policy["PolicyDocument"]["Statement"][0];
    assert_eq!(statement["Principal"]["Service"], "events.amazonaws.com");
    assert_eq!(statement["Condition"]["ArnEquals"]["aws:SourceArn"], permission["SourceArn"]);
    assert_eq!(
        template["Resources"]["EndedExecutionDeadLetterQueue"]["Properties"]["FifoQueue"],
        Value::Null
    );
}

#[test]
fn ic_07_no_rule_has_more_targets_than_eventbridge_takes() {
    let template = template("infra/control.yaml");
    let rules = resources(&template, "AWS::Events::Rule");
    assert!(!rules.is_empty());
    for (id, rule) in rules {
        assert!(rule["Properties"]["Targets"].as_array().unwrap().len() <= 5, "{id}");
    }
}

/// The queues that functions are fed from by mappings that would repeat a whole batch for one bad message.
fn mappings_without_partial_failures(template: &Value) -> Vec<&str> {
    resources(template, "AWS::Lambda::EventSourceMapping")
        .into_iter()
        .filter(|(_, mapping)| {
            !list(&mapping["Properties"]["FunctionResponseTypes"])
                .contains(&&json!("ReportBatchItemFailures"))
        })
        .map(|(id, _)| id)
        .collect()
}

#[test]
fn sq_05_a_bad_message_never_repeats_its_whole_batch() {
    let of = |properties: Value| json!({"Resources": {"M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": properties}}});
    assert_eq!(mappings_without_partial_failures(&of(json!({"BatchSize": 10}))), ["M"]);
    let good = of(json!({"FunctionResponseTypes": ["ReportBatchItemFailures"]}));
    assert!(mappings_without_partial_failures(&good).is_empty());
    assert!(mappings_without_partial_failures(&template("infra/control.yaml")).is_empty());
}

#[test]
fn b11_reports_that_can_not_be_judged_are_kept_for_a_fortnight_with_an_alarm() {
    let template = template("infra/control.yaml");
    let stack = Stack::new(&template, &[]);
    let redrive = &stack.properties("ReportQueue")["RedrivePolicy"];
    assert_eq!(redrive["maxReceiveCount"], 5);
    assert_eq!(stack.properties("ReportDeadLetterQueue")["MessageRetentionPeriod"], 14 * 86_400);
    let alarm = stack.properties("ReportDeadLetterAlarm");
    assert_eq!(
        (&alarm["MetricName"], &alarm["Threshold"]),
        (&json!("ApproximateNumberOfMessagesVisible"), &json!(1))
    );
}

/// The function is fed by the report queue in batches of ten, and by the runners' log, of this account alone.
#[test]
fn s7_ls_08_reports_and_lines_reach_the_stolen_runner_function() {
    let template = template("infra/control.yaml");
    let stack = Stack::new(&template, &[]);
    let mapping = &template["Resources"]["StolenRunnerReports"]["Properties"];
    assert_eq!(mapping["EventSourceArn"], json!({"Fn::GetAtt": ["ReportQueue", "Arn"]}));
    assert_eq!(mapping["FunctionName"], json!({"Ref": "StolenRunnerFunction"}));
    assert_eq!(mapping["BatchSize"], 10);
    let function = stack.properties("StolenRunnerFunction");
    assert_eq!(function["Timeout"], 120);
    let visibility = stack.properties("ReportQueue")["VisibilityTimeout"].as_u64().unwrap();
    assert!(visibility >= 120, "a message shows itself again only when its function has ended");
    // One filter, under a name that stays: a group has room for two, and a new one is made before the old one goes.
    let filters = resources(&template, "AWS::Logs::SubscriptionFilter");
    assert_eq!(filters.keys().collect::<Vec<_>>(), [&"StolenRunnerLines"]);
    let filter = filters["StolenRunnerLines"];
    assert_eq!(filter["DependsOn"], "StolenRunnerLinesPermission");
    assert_eq!(filter["Properties"]["LogGroupName"], json!({"Ref": "RunnerLogs"}));
    assert_eq!(filter["Properties"]["FilterPattern"], "\"CDKGHR JOB RUNNER=\"");
    let permission = &template["Resources"]["StolenRunnerLinesPermission"]["Properties"];
    assert_eq!(permission["Principal"], "logs.amazonaws.com");
    assert_eq!(permission["SourceArn"], json!({"Fn::GetAtt": ["RunnerLogs", "Arn"]}));
    assert_eq!(permission["SourceAccount"], json!({"Ref": "AWS::AccountId"}));
}

#[test]
fn reports_wait_a_minute_and_are_tried_within_the_hour() {
    let template = template("infra/control.yaml");
    let stack = Stack::new(&template, &[]);
    let queue = stack.properties("ReportQueue");
    let dead = stack.properties("ReportDeadLetterQueue");
    let number = |key: &str| queue[key].as_u64().unwrap();
    assert_eq!(number("DelaySeconds"), 60);
    let tries = queue["RedrivePolicy"]["maxReceiveCount"].as_u64().unwrap();
    assert!(
        60 + number("VisibilityTimeout") * tries <= number("MessageRetentionPeriod"),
        "or it expires unseen"
    );
    assert_eq!((&queue["FifoQueue"], &dead["FifoQueue"]), (&json!(true), &json!(true)));
    for queue in [&queue, &dead] {
        assert!(queue["QueueName"].as_str().unwrap().ends_with(".fifo"));
    }
    assert_eq!(dead["MessageRetentionPeriod"], 14 * 86_400);
}

#[test]
fn items_of_both_tables_expire() {
    let template = template("infra/control.yaml");
    for id in ["LedgerTable", "HandoffTable"] {
        let properties = &template["Resources"][id]["Properties"];
        assert_eq!(
            properties["TimeToLiveSpecification"],
            json!({"AttributeName": "ttl", "Enabled": true})
        );
        assert_eq!(properties["KeySchema"], json!([{"AttributeName": "pk", "KeyType": "HASH"}]));
        assert_eq!(properties["BillingMode"], "PAY_PER_REQUEST");
    }
}

/// All source text under a folder.
fn sources(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(
            |path| {
                if path.is_dir() { sources(&path) } else { std::fs::read_to_string(path).unwrap() }
            },
        )
        .collect()
}

#[test]
fn alarms_see_each_way_to_fail_and_notify_only_where_someone_listens() {
    let template = template("infra/control.yaml");
    let silent = Stack::new(&template, &[]);
    let heard =
        Stack::new(&template, &[("AlarmTopicArn", "arn:aws:sns:eu-west-1:111122223333:alarms")]);
    let (mut watched, mut own) = (BTreeSet::new(), BTreeSet::new());
    for id in resources(&template, "AWS::CloudWatch::Alarm").keys() {
        let alarm = silent.properties(id);
        let made = &template["Resources"][*id];
        assert!(!silent.makes(made) && heard.makes(made), "{id} costs where nobody listens");
        assert_eq!(
            heard.properties(id)["AlarmActions"],
            json!(["arn:aws:sns:eu-west-1:111122223333:alarms"])
        );
        assert_eq!(alarm["TreatMissingData"], "notBreaching", "{id}");
        assert!(alarm["AlarmDescription"].as_str().unwrap().len() > 30, "{id} says what to do");
        let raw = &template["Resources"][*id]["Properties"];
        // Those of the front end: a function URL's.
        let first = |value: &'_ Value| value["Fn::If"].get(1).unwrap_or(value).clone();
        let dimension = &first(&raw["Dimensions"][0])["Value"];
        let of = dimension
            .get("Ref")
            .or_else(|| dimension["Fn::GetAtt"].get(0))
            .map_or("", |id| id.as_str().unwrap());
        match raw["Metrics"].as_array() {
            None => drop(watched.insert(format!("{} {of}", scalar(&first(&raw["MetricName"]))))),
            Some(metrics) => own.extend(
                metrics[1..]
                    .iter()
                    .map(|metric| scalar(&metric["MetricStat"]["Metric"]["MetricName"])),
            ),
        }
    }
    // Our own metrics are strings in the code, or of a metric filter.
    let counted = sources(&path("crates/core/src"))
        + &template["Resources"]["RunnerDeprecatedMetric"].to_string();
    for metric in own {
        assert!(counted.contains(&format!("\"{metric}\"")), "nothing counts {metric}");
    }
    for expected in [
        "Errors OrchestratorFunction",
        "Throttles WebhookFunction",
        "Url5xxCount WebhookFunction",
        "TriggeredRules EndedExecutionRule",
        "ApproximateNumberOfMessagesVisible ReportDeadLetterQueue",
        "ApproximateNumberOfMessagesVisible EndedExecutionDeadLetterQueue",
    ] {
        assert!(watched.contains(expected), "nothing watches {expected}: {watched:#?}");
    }
}

#[test]
fn rr_07_a_runner_that_github_will_refuse_and_one_that_it_refused_are_counted() {
    let template = template("infra/control.yaml");
    let filters = resources(&template, "AWS::Logs::MetricFilter");
    let script = text("infra/bootstrap.sh");
    assert!(script.contains(r#"\"ostler\":\"ended\""#) && script.contains(r#"\"days\":$days"#));
    let of = |metric: &str| {
        let its = |filter: &&&Value| {
            filter["Properties"]["MetricTransformations"][0]["MetricName"] == metric
        };
        scalar(&filters.values().find(its).unwrap()["Properties"]["FilterPattern"])
    };
    assert!(of("RunnerDeprecated").contains("runner-deprecated"));
    assert_eq!(of(OPERATOR_NEEDED), of("RunnerDeprecated"), "and rings the alarm");
    assert!(of("RunnerOld").contains("$.days > 27"), "before the month is over");
}

#[test]
fn r01_nothing_in_the_templates_belongs_to_one_account() {
    for name in [
        "control.src.yaml",
        "control.yaml",
        "network.yaml",
        "reaper.yaml",
        "byoc-role.src.yaml",
        "byoc-role.yaml",
        "parts/runner-compute.yaml",
        "parts/runners.yaml",
        "orchestrator.asl.json",
        "bootstrap.sh",
    ] {
        let text = text(&format!("infra/{name}"));
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            let account = word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_digit());
            let id = word.split_once('-').is_some_and(|(kind, id)| {
                ["vpc", "subnet", "sg", "ami", "lt", "i", "rtb", "igw"].contains(&kind)
                    && id.len() >= 8
                    && id.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
            assert!(!account && !id, "{name}: {word}");
        }
    }
}

#[test]
fn r08_wrong_parameters_are_refused_before_anything_is_made() {
    let template = template("infra/control.yaml");
    let required: BTreeSet<_> = template["Parameters"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, parameter)| parameter.get("Default").is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        required,
        ["CodeBucket", "Owner", "RunnerSecurityGroupId", "SubnetIds", "VpcId"].into()
    );
    // What goes into a shell script between single quotes must not be able to end them.
    for name in ["RunnerVersion", "RunnerSha256X64", "RunnerSha256Arm64", "RunnerUrl"] {
        let pattern = template["Parameters"][name]["AllowedPattern"].as_str().unwrap();
        assert!(
            pattern.starts_with('^') && pattern.ends_with('$') && !pattern.contains('\''),
            "{name}"
        );
    }
}

/// GovCloud and the regions of China have no function URLs.
#[test]
fn r01_an_http_api_takes_the_place_of_the_function_url_where_it_is_asked_for() {
    let template = template("infra/control.yaml");
    let made = |front_end: &str| {
        let topic = "arn:aws:sns:eu-west-1:111122223333:alarms";
        let mut stack = Stack::new(&template, &[("FrontEnd", front_end), ("AlarmTopicArn", topic)]);
        for (attribute, value) in [
            ("WebhookUrl.FunctionUrl", "https://x.lambda-url.eu-west-1.on.aws/"),
            ("WebhookApi.ApiEndpoint", "https://x.execute-api.eu-west-1.amazonaws.com"),
        ] {
            stack.values.insert(attribute.into(), value.into());
        }
        let all = template["Resources"].as_object().unwrap();
        let front: BTreeSet<String> = all
            .iter()
            .filter(|(id, resource)| {
                let kind = scalar(&resource["Type"]);
                let webhooks = id.starts_with("Webhook") && !kind.contains("CloudWatch");
                webhooks
                    && (kind.contains("Url") || kind.contains("Api") || kind.contains("Permission"))
            })
            .filter(|(_, resource)| stack.makes(resource))
            .map(|(id, _)| id.clone())
            .collect();
        let alarms = ["Webhook5xxAlarm", "Webhook4xxAlarm"].map(|id| {
            let alarm = stack.properties(id);
            [&alarm["Namespace"], &alarm["MetricName"], &alarm["Dimensions"][0]["Name"]].map(scalar)
        });
        let output = scalar(&stack.evaluate(&template["Outputs"]["WebhookUrl"]["Value"]));
        let principals: BTreeSet<_> = front
            .iter()
            .filter_map(|id| stack.properties(id)["Principal"].as_str().map(str::to_owned))
            .collect();
        (front, alarms, output, principals)
    };
    let set = |items: &[&str]| items.iter().map(|it| (*it).to_owned()).collect::<BTreeSet<_>>();
    let (front, alarms, output, principals) = made("FunctionUrl");
    assert_eq!(front, set(&["WebhookInvokePermission", "WebhookUrl", "WebhookUrlPermission"]));
    assert_eq!(alarms[0], ["AWS/Lambda", "Url5xxCount", "FunctionName"]);
    assert!(output.contains("lambda-url") && principals == set(&["*"]));
    let (front, alarms, output, principals) = made("HttpApi");
    assert_eq!(front, set(&["WebhookApi", "WebhookApiPermission"]));
    assert_eq!(alarms[0], ["AWS/ApiGateway", "5xx", "ApiId"]);
    assert_eq!(alarms[1], ["AWS/ApiGateway", "4xx", "ApiId"]);
    assert!(output.contains("execute-api") && principals == set(&["apigateway.amazonaws.com"]));
}
