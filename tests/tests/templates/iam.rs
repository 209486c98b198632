//! What the control plane's roles may do, and what not: the cases that matter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::policy::{Cases, Context, allowed, documents, problems, statements};
use crate::template::{Stack, list, resources, scalar, template};

/// Of a role's inline policies together (IAM quotas).
const POLICY_BYTES_MAX: usize = 10_240;

const ARN: &str = "arn:aws:ec2:eu-west-1:111122223333";

fn stack(template: &Value) -> Stack<'_> {
    let values = [
        ("Owner", "acme"),
        ("VpcId", "vpc-1"),
        ("RunnerSecurityGroupId", "sg-1"),
        ("SubnetIds", "subnet-1"),
        ("TrustedAccountId", "444455556666"),
        ("ExternalId", "an-external-id"),
        ("LedgerTableName", "ledger-1"),
        (
            "StateMachineArn",
            "arn:aws:states:eu-west-1:111122223333:stateMachine:ostler-orchestrator",
        ),
    ];
    Stack::new(template, &values)
}

/// Where the runner-compute statements stand, and the role that has them.
const COMPUTE: [(&str, &str); 2] =
    [("infra/control.yaml", "OrchestratorRole"), ("infra/byoc-role.yaml", "RunnerComputeRole")];

/// Asks about both roles that launch.
fn both(cases: impl Fn(&mut Cases)) {
    for (name, role) in COMPUTE {
        let template = template(name);
        let stack = stack(&template);
        let mut asked = Cases::of(&stack, role);
        cases(&mut asked);
        asked.hold();
    }
}

const OWNED: (&str, &str) = ("aws:RequestTag/ostler:owner", "acme");
const FOREIGN: (&str, &str) = ("aws:RequestTag/ostler:owner", "other");
const OWN: (&str, &str) = ("aws:ResourceTag/ostler:owner", "acme");
const OTHERS: (&str, &str) = ("aws:ResourceTag/ostler:owner", "other");
const V2: (&str, &str) = ("ec2:MetadataHttpTokens", "required");
const VPC: (&str, &str) = ("ec2:Vpc", "arn:aws:ec2:eu-west-1:111122223333:vpc/vpc-1");
const OTHER_VPC: (&str, &str) = ("ec2:Vpc", "arn:aws:ec2:eu-west-1:111122223333:vpc/vpc-2");

/// The document of that name, as text of the rendered template: from its first statement to what follows it.
fn rendered_compute(name: &str) -> String {
    let text = crate::template::text(name);
    let policy = text.split_once("- PolicyName: runner-compute\n").unwrap().1;
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = policy.lines();
    let document = lines.by_ref().find(|line| line.ends_with("Statement:")).unwrap();
    let own = lines
        .take_while(|line| depth(line) > depth(document) || line.trim_start().starts_with("- "));
    let own: Vec<_> = own.take_while(|line| depth(line) >= depth(document)).collect();
    own.join("\n")
}

#[test]
fn r60_r67_the_runner_compute_statements_stand_once_and_are_the_same_in_both_templates() {
    let [control, byoc] = COMPUTE.map(|(name, role)| {
        let template = template(name);
        let stack = stack(&template);
        let properties = stack.properties(role);
        let named = properties["Policies"].as_array().unwrap().iter();
        let compute: Vec<_> =
            named.filter(|policy| policy["PolicyName"] == "runner-compute").cloned().collect();
        assert_eq!(compute.len(), 1, "{name}");
        (
            rendered_compute(name),
            compute[0].to_string(),
            properties["Policies"].as_array().unwrap().len(),
        )
    });
    assert!(control.0.lines().count() > 60 && control.0.contains("Sid: PassRunnerRole"));
    assert_eq!(control.0, byoc.0, "byte for byte");
    assert_eq!(control.1, byoc.1, "and as CloudFormation makes them");
    assert_eq!(byoc.2, 1, "the role in the other account has nothing more");
    for name in ["infra/control.src.yaml", "infra/byoc-role.src.yaml"] {
        let source = crate::template::text(name);
        assert!(
            !source.contains("ec2:RunInstances")
                && source.contains("{{parts/runner-compute.yaml}}")
        );
    }
}

#[test]
fn every_statement_could_match_by_the_service_authorization_data() {
    for (name, parameters) in [
        ("infra/control.yaml", &[("ImageKeyArn", "arn:aws:kms:eu-west-1:111122223333:key/k")][..]),
        (
            "infra/byoc-role.yaml",
            &[
                ("ImageKeyArn", "arn:aws:kms:eu-west-1:111122223333:key/k"),
                ("EventBusArn", "arn:aws:events:eu-west-1:444455556666:event-bus/b"),
            ],
        ),
        ("infra/reaper.yaml", &[("Owner", "acme")]),
        (
            "infra/accounts.yaml",
            &[("StolenRunnerFunctionArn", "arn:aws:lambda:eu-west-1:111122223333:function:f")],
        ),
        (
            "infra/registration-janitor.yaml",
            &[
                ("Provider", "ostler"),
                ("StateMachineArn", "arn:aws:states:eu-west-1:111122223333:stateMachine:m"),
                ("AppIdParameter", "/id"),
                ("AppKeyParameter", "/key"),
                ("AppKeyArn", "arn:aws:kms:eu-west-1:111122223333:key/k"),
                ("NameKeyParameter", "/name-key"),
                (
                    "AdditionalAppParameterArns",
                    "arn:aws:ssm:eu-west-1:111122223333:parameter/other",
                ),
            ],
        ),
        ("infra/recovery.yaml", &crate::recovery::OF_CONTROL),
    ] {
        let template = template(name);
        let mut stack = stack(&template);
        stack.values.extend(parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())));
        let roles = resources(&template, "AWS::IAM::Role");
        let all: Vec<_> = roles.keys().flat_map(|role| statements(&stack, role)).collect();
        assert!(all.len() > 3, "{name}");
        assert_eq!(problems(&all), Vec::<String>::new(), "{name}");
    }
    // And it would tell.
    let wrong = json!({"Sid": "S", "Effect": "Allow", "Action": ["ec2:EndInstances", "ec2:TerminateInstances"],
        "Resource": [format!("{ARN}:volume/*")], "Condition": {"StringEquals": {"ec2:Vpc": "v"}}});
    assert_eq!(problems(&[wrong]).len(), 3);
}

#[test]
fn r61_a_launch_is_allowed_for_each_resource_that_ec2_asks_about() {
    both(|asked| {
        for action in ["ec2:RunInstances", "ec2:CreateFleet"] {
            asked.allows(action, "arn:aws:ec2:eu-west-1::image/ami-1", &[]);
            asked.allows(action, &format!("{ARN}:subnet/subnet-1"), &[VPC]);
            for template in ["SpotTemplate", "OnDemandTemplate"] {
                asked.allows(
                    action,
                    &format!("{ARN}:launch-template/lt-0123456789{template}"),
                    &[],
                );
            }
            asked.allows(action, &format!("{ARN}:volume/vol-1"), &[OWNED]);
        }
        asked.allows("ec2:RunInstances", "arn:aws:ec2:eu-west-1::snapshot/snap-1", &[]);
        asked.allows("ec2:RunInstances", &format!("{ARN}:instance/i-1"), &[OWNED, V2]);
        asked.allows("ec2:CreateFleet", &format!("{ARN}:instance/i-1"), &[OWNED]);
        asked.allows("ec2:CreateFleet", &format!("{ARN}:fleet/fleet-1"), &[OWNED]);
        asked.allows("ec2:RunInstances", &format!("{ARN}:security-group/sg-1"), &[VPC]);
        // Made by the launch itself: it has no tags to be known by, only its VPC.
        asked.allows("ec2:RunInstances", &format!("{ARN}:network-interface/eni-1"), &[VPC]);
        asked.allows("ec2:RunInstances", &format!("{ARN}:spot-instances-request/sir-1"), &[OWNED]);
        for kind in
            ["instance/i-1", "volume/vol-1", "spot-instances-request/sir-1", "fleet/fleet-1"]
        {
            for by in ["RunInstances", "CreateFleet"] {
                let context = [OWNED, ("ec2:CreateAction", by)];
                asked.allows("ec2:CreateTags", &format!("{ARN}:{kind}"), &context);
            }
        }
    });
}

#[test]
fn r61_a_launch_is_refused_that_is_not_this_installs_or_not_safe() {
    both(|asked| {
        let instance = format!("{ARN}:instance/i-1");
        let v1 = ("ec2:MetadataHttpTokens", "optional");
        let refusals: [(&str, &str, &Context<'_>); 12] = [
            ("untagged", &instance, &[V2]),
            ("of another owner", &instance, &[FOREIGN, V2]),
            ("with IMDSv1", &instance, &[OWNED, v1]),
            ("that says nothing of IMDS", &instance, &[OWNED]),
            ("with an untagged volume", &format!("{ARN}:volume/vol-1"), &[]),
            ("with another's volume", &format!("{ARN}:volume/vol-1"), &[FOREIGN]),
            ("with an untagged spot request", &format!("{ARN}:spot-instances-request/sir-1"), &[]),
            ("into another VPC", &format!("{ARN}:subnet/subnet-9"), &[OTHER_VPC]),
            (
                "with an interface in another VPC",
                &format!("{ARN}:network-interface/eni-1"),
                &[OTHER_VPC],
            ),
            ("with a group of another VPC", &format!("{ARN}:security-group/sg-1"), &[OTHER_VPC]),
            ("with another group of the VPC", &format!("{ARN}:security-group/sg-9"), &[VPC]),
            ("with a key pair", &format!("{ARN}:key-pair/laptop"), &[]),
        ];
        for (what, resource, context) in refusals {
            asked.refuses(&format!("a launch {what}"), "ec2:RunInstances", resource, context);
        }
        for action in ["ec2:RunInstances", "ec2:CreateFleet"] {
            let other = format!("{ARN}:launch-template/lt-9");
            asked.refuses("from another template", action, &other, &[OWN]);
        }
        asked.refuses("an untagged fleet", "ec2:CreateFleet", &format!("{ARN}:fleet/fleet-1"), &[]);
        for (what, arn) in [
            ("in another region", instance.replace("eu-west-1", "us-east-1")),
            ("in another account", instance.replace("111122223333", "444455556666")),
        ] {
            asked.refuses(what, "ec2:RunInstances", &arn, &[OWNED, V2]);
        }
    });
}

/// Start, Modify and tagging come with what calls them. A condition on tags alone would not do for the last: whoever may tag
/// later makes a foreign instance his, or gives his own away.
#[test]
fn r62_r63_r65_only_own_instances_are_ended_and_none_is_adopted_or_changed() {
    both(|asked| {
        let instance = format!("{ARN}:instance/i-1");
        asked.allows("ec2:TerminateInstances", &instance, &[OWN]);
        asked.refuses("a foreign one", "ec2:TerminateInstances", &instance, &[OTHERS]);
        asked.refuses("an untagged one", "ec2:TerminateInstances", &instance, &[]);
        let tag = "ec2:CreateTags";
        asked.refuses("adopting a foreign instance", tag, &instance, &[OTHERS, OWNED]);
        asked.refuses("adopting an untagged instance", tag, &instance, &[OWNED]);
        asked.refuses("giving its own away", tag, &instance, &[OWN, FOREIGN]);
        let state =
            [OWN, ("aws:RequestTag/ostler:state", "ready"), ("aws:TagKeys", "ostler:state")];
        asked.refuses("the state of its own", tag, &instance, &state);
        let by = ("ec2:CreateAction", "RunInstances");
        asked.refuses("a foreign owner's tag on creation", tag, &instance, &[FOREIGN, by]);
        asked.refuses("no owner's tag on creation", tag, &instance, &[by]);
        let by = ("ec2:CreateAction", "CreateVolume");
        asked.refuses("by another call", tag, &format!("{ARN}:volume/vol-1"), &[OWNED, by]);
        for action in ["DeleteTags", "StopInstances", "StartInstances", "RebootInstances"] {
            asked.refuses(action, &format!("ec2:{action}"), &instance, &[OWN]);
        }
        for attribute in ["UserData", "InstanceType", "DisableApiTermination", "GroupSet"] {
            let context = [OWN, ("ec2:Attribute", attribute)];
            asked.refuses(attribute, "ec2:ModifyInstanceAttribute", &instance, &context);
        }
        let request = format!("{ARN}:spot-instances-request/sir-1");
        for (what, context) in [("its own", &[OWN][..]), ("an untagged one", &[])] {
            asked.refuses(what, "ec2:CancelSpotInstanceRequests", &request, context);
        }
        asked.refuses(
            "a template",
            "ec2:CreateLaunchTemplate",
            &format!("{ARN}:launch-template/lt-1"),
            &[],
        );
    });
}

#[test]
fn r64_image_parameters_are_read_and_nothing_else_below_the_prefix() {
    let parameter =
        |name: &str| format!("arn:aws:ssm:eu-west-1:111122223333:parameter/ostler/{name}");
    both(|asked| {
        let read = "ssm:GetParameters";
        asked.allows(read, &parameter("images/ubuntu-x64"), &[]);
        asked.refuses("another system's", read, &parameter("other"), &[]);
        asked.refuses("by path", "ssm:GetParametersByPath", &parameter("images"), &[]);
        asked.refuses("writing", "ssm:PutParameter", &parameter("images/ubuntu-x64"), &[]);
    });
    // Guard 13: whoever runs the other account's runners must not read an App's key that is kept there.
    let template = template("infra/byoc-role.yaml");
    let stack = stack(&template);
    let mut asked = Cases::of(&stack, "RunnerComputeRole");
    for name in ["app-private-key", "webhook-secret", "name-key", "tiers"] {
        asked.refuses(name, "ssm:GetParameters", &parameter(&format!("control/{name}")), &[]);
    }
    asked.hold();
}

#[test]
fn the_runners_role_is_passed_to_ec2_and_to_nothing_else() {
    both(|asked| {
        let role = "arn:aws:iam::111122223333:role/stack-RunnerRole-ABCDEFGHIJKLM";
        let to = |service| ("iam:PassedToService", service);
        asked.allows("iam:PassRole", role, &[to("ec2.amazonaws.com")]);
        asked.refuses("to a function", "iam:PassRole", role, &[to("lambda.amazonaws.com")]);
        let other = "arn:aws:iam::111122223333:role/Admin";
        asked.refuses("another role", "iam:PassRole", other, &[to("ec2.amazonaws.com")]);
    });
}

#[test]
fn registrations_are_laid_down_and_taken_away_and_never_read() {
    both(|asked| {
        let table =
            "arn:aws:dynamodb:eu-west-1:111122223333:table/stack-HandoffTable-ABCDEFGHIJKLM";
        for action in ["dynamodb:PutItem", "dynamodb:DeleteItem"] {
            asked.allows(action, table, &[]);
        }
        for action in ["GetItem", "UpdateItem", "Query", "Scan", "BatchGetItem", "PartiQLSelect"] {
            asked.refuses(action, &format!("dynamodb:{action}"), table, &[]);
        }
    });
}

#[test]
fn se_06_a_runner_reads_its_own_item_and_no_other() {
    for (name, _) in COMPUTE {
        let template = template(name);
        let stack = stack(&template);
        let table = &stack.values["HandoffTable.Arn"];
        let caller = ("aws:userid", "AROAEXAMPLEEXAMPLE123:i-1");
        let key = |key: &'static str| [caller, ("dynamodb:LeadingKeys", key)];
        let mut asked = Cases::of(&stack, "RunnerRole");
        for action in ["dynamodb:GetItem", "dynamodb:DeleteItem"] {
            asked.allows(action, table, &key("AROAEXAMPLEEXAMPLE123:i-1"));
            for other in ["AROAEXAMPLEEXAMPLE123:i-2", "AROAEXAMPLEEXAMPLE123:i-11", "", "job#1"] {
                asked.refuses("another's item", action, table, &key(other));
            }
            // ForAllValues holds where there is no value at all.
            asked.refuses("without a key", action, table, &[caller]);
            let other =
                "arn:aws:dynamodb:eu-west-1:111122223333:table/stack-LedgerTable-ABCDEFGHIJKLM";
            asked.refuses("the ledger", action, other, &key("AROAEXAMPLEEXAMPLE123:i-1"));
        }
        for action in ["PutItem", "UpdateItem", "Query", "BatchGetItem", "PartiQLSelect"] {
            let context = key("AROAEXAMPLEEXAMPLE123:i-1");
            asked.refuses(action, &format!("dynamodb:{action}"), table, &context);
        }
        asked.refuses("a scan", "dynamodb:Scan", table, &[caller]);
        let stream = |group: &str| {
            format!(
                "arn:aws:logs:eu-west-1:111122223333:log-group:/ostler/stack/{group}:log-stream:x"
            )
        };
        for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
            let of = |group: &str| match action {
                "logs:CreateLogStream" => {
                    stream(group).split(":log-stream").next().unwrap().to_owned() + ":*"
                }
                _ => stream(group),
            };
            asked.allows(action, &of("runners"), &[]);
            asked.refuses("another log", action, &of("webhook"), &[]);
        }
        asked.refuses("reading the log", "logs:GetLogEvents", &stream("runners"), &[]);
        asked.hold();
        let all = [
            "dynamodb:DeleteItem",
            "dynamodb:GetItem",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
        ];
        let actions = allowed(&statements(&stack, "RunnerRole"));
        assert_eq!(
            actions,
            all.map(str::to_owned).into(),
            "every job on a runner may do all of this"
        );
    }
}

#[test]
fn r20_r23_each_function_reads_its_parameters_and_no_others() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let arn = |name: &str| format!("arn:aws:ssm:eu-west-1:111122223333:parameter/ostler/{name}");
    let read = "ssm:GetParameters";
    for (role, names) in [
        ("StolenRunnerRole", &["tiers", "app", "app-private-key", "name-key"][..]),
        ("WebhookRole", &["tiers", "app", "apps", "app-private-key", "name-key"]),
        ("OrchestratorRole", &["tiers", "app", "apps", "app-private-key", "name-key"]),
        ("StateMachineRole", &[]),
        ("RunnerRole", &[]),
    ] {
        let mut asked = Cases::of(&stack, role);
        for name in names {
            asked.allows(read, &arn(&format!("control/{name}")), &[]);
        }
        for secret in ["webhook-secret", "webhook-secret-previous"] {
            let arn = arn(&format!("control/{secret}"));
            // Only the webhook checks signatures.
            if role == "WebhookRole" {
                asked.allows(read, &arn, &[]);
            } else {
                asked.refuses(role, read, &arn, &[]);
            }
        }
        // Images' parameters belong to whoever builds images; they must not lead to the App's key.
        if role != "OrchestratorRole" {
            asked.refuses(role, read, &arn("images/ubuntu-x64"), &[]);
        }
        for other in ["control/anything-else", "control", "images"] {
            asked.refuses(role, read, &arn(other), &[]);
        }
        if names.is_empty() {
            asked.refuses(role, read, &arn("control/app-private-key"), &[]);
        }
        asked.hold();
    }
}

#[test]
fn ra_12_ra_13_nothing_writes_parameters() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    for role in resources(&template, "AWS::IAM::Role").keys() {
        let actions = allowed(&statements(&stack, role));
        let writes = actions.iter().find(|it| it.starts_with("ssm:") && *it != "ssm:GetParameters");
        assert_eq!(writes, None, "{role}: a launch writes no parameter, and leaves none behind");
    }
}

#[test]
fn executions_are_started_and_looked_up_only_on_this_stacks_machine() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let arn =
        |kind: &str, rest: &str| format!("arn:aws:states:eu-west-1:111122223333:{kind}:{rest}");
    for role in ["WebhookRole", "OrchestratorRole", "StolenRunnerRole"] {
        let mut asked = Cases::of(&stack, role);
        let (start, describe) = ("states:StartExecution", "states:DescribeExecution");
        asked.allows(start, &arn("stateMachine", "stack-orchestrator"), &[]);
        asked.refuses("another machine", start, &arn("stateMachine", "other-orchestrator"), &[]);
        asked.allows(describe, &arn("execution", "stack-orchestrator:app-1-0123"), &[]);
        asked.refuses("another's", describe, &arn("execution", "other:app-1-0123"), &[]);
        let own = arn("execution", "stack-orchestrator:app-1-0123");
        asked.refuses("stopping", "states:StopExecution", &own, &[]);
        asked.hold();
    }
}

#[test]
fn the_stolen_runner_function_may_do_what_it_does_and_no_more() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let mut asked = Cases::of(&stack, "StolenRunnerRole");
    for action in ["SendMessage", "ReceiveMessage", "DeleteMessage", "GetQueueAttributes"] {
        asked.allows(&format!("sqs:{action}"), &stack.values["ReportQueue.Arn"], &[]);
        let dead = &stack.values["ReportDeadLetterQueue.Arn"];
        asked.refuses("dead letters", &format!("sqs:{action}"), dead, &[]);
    }
    asked.allows("dynamodb:UpdateItem", &stack.values["LedgerTable.Arn"], &[]);
    let handoff = &stack.values["HandoffTable.Arn"];
    asked.refuses("no registration is its", "dynamodb:GetItem", handoff, &[]);
    asked.hold();
    let actions = allowed(&statements(&stack, "StolenRunnerRole"));
    assert!(!actions.iter().any(|action| action.starts_with("ec2:")), "{actions:?}");
}

#[test]
fn a_selector_may_be_asked_only_where_there_is_one() {
    let template = template("infra/control.yaml");
    let selector = "arn:aws:lambda:eu-west-1:111122223333:function:choose";
    let mut with = stack(&template);
    with.values.insert("SelectorFunctionArn".into(), selector.into());
    let mut asked = Cases::of(&with, "WebhookRole");
    asked.allows("lambda:InvokeFunction", selector, &[]);
    asked.hold();
    let mut asked = Cases::of(&stack(&template), "WebhookRole");
    asked.refuses("without one", "lambda:InvokeFunction", selector, &[]);
    asked.hold();
}

/// Without the grant an instance from an encrypted image dies right after its start, and EC2 says little.
#[test]
fn ic_03_the_key_of_encrypted_images_can_be_used_only_where_it_is_given() {
    let key = "arn:aws:kms:eu-west-1:111122223333:key/k";
    let by_ec2 = ("kms:ViaService", "ec2.eu-west-1.amazonaws.com");
    let for_aws = ("kms:GrantIsForAWSResource", "true");
    let actions = [
        "Decrypt",
        "DescribeKey",
        "GenerateDataKeyWithoutPlaintext",
        "ReEncryptFrom",
        "ReEncryptTo",
    ];
    for (name, role) in COMPUTE {
        let template = template(name);
        let mut with = stack(&template);
        with.values.insert("ImageKeyArn".into(), key.into());
        let mut asked = Cases::of(&with, role);
        for action in actions.map(|action| format!("kms:{action}")) {
            asked.allows(&action, key, &[by_ec2]);
            asked.refuses("not through EC2", &action, key, &[]);
        }
        asked.allows("kms:CreateGrant", key, &[for_aws]);
        asked.refuses("for anyone", "kms:CreateGrant", key, &[]);
        let other = "arn:aws:kms:eu-west-1:111122223333:key/other";
        asked.refuses("another key", "kms:CreateGrant", other, &[for_aws]);
        asked.hold();
        let mut asked = Cases::of(&stack(&template), role);
        for action in actions {
            asked.refuses("without a key", &format!("kms:{action}"), key, &[by_ec2]);
        }
        asked.refuses("without a key", "kms:CreateGrant", key, &[for_aws]);
        asked.hold();
    }
}

#[test]
fn r07_r32_no_role_is_wider_than_it_must_be() {
    for (name, expected) in [
        (
            "infra/control.yaml",
            &[
                "OrchestratorRole",
                "RunnerRole",
                "StateMachineRole",
                "StolenRunnerRole",
                "WebhookRole",
            ][..],
        ),
        ("infra/byoc-role.yaml", &["EventRole", "ForwardRole", "RunnerComputeRole", "RunnerRole"]),
        ("infra/reaper.yaml", &["Role"]),
        ("infra/accounts.yaml", &["DestinationRole", "ReportsRole"]),
        ("infra/recovery.yaml", &["InstanceRole", "ReconcilerRole"]),
    ] {
        let template = template(name);
        let stack = stack(&template);
        let roles = resources(&template, "AWS::IAM::Role");
        assert_eq!(roles.keys().copied().collect::<Vec<_>>(), expected);
        for (role, resource) in roles {
            let properties = &resource["Properties"];
            let what = format!("{name}: {role}");
            assert!(
                properties.get("RoleName").is_none(),
                "{what}: a named role needs CAPABILITY_NAMED_IAM"
            );
            assert!(
                properties.get("ManagedPolicyArns").is_none(),
                "{what}: managed policies grant more than is needed"
            );
            let bytes: usize =
                documents(&stack, role).iter().map(|document| document.to_string().len()).sum();
            assert!(bytes < POLICY_BYTES_MAX, "{what}: {bytes} bytes");
            for statement in &statements(&stack, role) {
                not_wide(&format!("{what}/{}", scalar(&statement["Sid"])), statement);
            }
        }
    }
}

fn not_wide(sid: &str, statement: &Value) {
    assert!(
        statement.get("NotAction").is_none() && statement.get("NotResource").is_none(),
        "{sid}"
    );
    let actions: Vec<_> = list(&statement["Action"]).into_iter().map(scalar).collect();
    assert!(actions.iter().all(|action| !action.contains('*')), "{sid}: {actions:?}");
    assert!(!actions.contains(&"logs:CreateLogGroup".to_owned()), "{sid}");
    if list(&statement["Resource"]).contains(&&json!("*")) {
        assert!(
            actions.iter().all(|action| action.starts_with("ec2:Describe")),
            "{sid} on everything"
        );
        let region = &statement["Condition"]["StringEquals"]["aws:RequestedRegion"];
        assert_eq!(region, "eu-west-1", "{sid}");
    }
}

/// Every action of the stacks, so that a new one is a decision.
#[test]
fn what_each_role_may_do_at_all() {
    let compute = [
        "dynamodb:DeleteItem",
        "dynamodb:PutItem",
        "ec2:CreateFleet",
        "ec2:CreateTags",
        "ec2:DescribeImages",
        "ec2:DescribeInstances",
        "ec2:RunInstances",
        "ec2:TerminateInstances",
        "iam:PassRole",
        "ssm:GetParameters",
    ];
    let function = [
        "dynamodb:GetItem",
        "dynamodb:UpdateItem",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "sqs:SendMessage",
        "ssm:GetParameters",
        "states:DescribeExecution",
        "states:StartExecution",
    ];
    let set =
        |lists: &[&[&str]]| lists.concat().into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let (control, byoc) = (template("infra/control.yaml"), template("infra/byoc-role.yaml"));
    let of = |template, role| allowed(&statements(&stack(template), role));
    let actual: BTreeMap<_, _> = [
        ("WebhookRole", of(&control, "WebhookRole")),
        ("OrchestratorRole", of(&control, "OrchestratorRole")),
        ("StateMachineRole", of(&control, "StateMachineRole")),
        ("RunnerComputeRole", of(&byoc, "RunnerComputeRole")),
    ]
    .into();
    let expected: BTreeMap<_, _> = [
        ("WebhookRole", set(&[&function])),
        ("OrchestratorRole", set(&[&function, &compute])),
        ("StateMachineRole", set(&[&["lambda:InvokeFunction"]])),
        ("RunnerComputeRole", set(&[&compute])),
    ]
    .into();
    assert_eq!(actual, expected);
}

#[test]
fn each_role_trusts_one_service() {
    for (name, role, service) in [
        ("infra/control.yaml", "WebhookRole", "lambda"),
        ("infra/control.yaml", "OrchestratorRole", "lambda"),
        ("infra/control.yaml", "StolenRunnerRole", "lambda"),
        ("infra/control.yaml", "StateMachineRole", "states"),
        ("infra/control.yaml", "RunnerRole", "ec2"),
        ("infra/byoc-role.yaml", "RunnerRole", "ec2"),
        ("infra/reaper.yaml", "Role", "lambda"),
        ("infra/accounts.yaml", "DestinationRole", "logs"),
        ("infra/recovery.yaml", "InstanceRole", "lambda"),
        ("infra/recovery.yaml", "ReconcilerRole", "lambda"),
    ] {
        let template = template(name);
        let trust =
            stack(&template).properties(role)["AssumeRolePolicyDocument"]["Statement"].clone();
        let principal = json!({"Service": format!("{service}.amazonaws.com")});
        assert_eq!(
            trust,
            json!([{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}]),
            "{name}: {role}"
        );
    }
}

/// The roles in other accounts, one by one: what an install may assume is no pattern.
#[test]
fn r66_the_orchestrator_assumes_the_roles_it_is_told_of_and_no_others() {
    let template = template("infra/accounts.yaml");
    let own = "arn:aws:iam::444455556666:role/ostler-runners-RunnerComputeRole-X";
    let stack = |arns: &str| {
        let mut stack = stack(&template);
        stack.values.insert("RunnerRoleArns".into(), arns.into());
        stack
    };
    let with = stack(own);
    assert!(with.makes(&template["Resources"]["AssumePolicy"]));
    assert!(!stack("").makes(&template["Resources"]["AssumePolicy"]), "none, before there is one");
    let policy = with.properties("AssumePolicy");
    assert_eq!(policy["Roles"], json!(["some-OrchestratorRoleName"]));
    let document = &policy["PolicyDocument"];
    assert_eq!(
        document["Statement"],
        json!([{"Sid": "Assume", "Effect": "Allow", "Action": "sts:AssumeRole", "Resource": own}])
    );
    // No ARN that the parameter takes is a pattern of ARNs.
    let pattern = scalar(&template["Parameters"]["RunnerRoleArns"]["AllowedPattern"]);
    assert_eq!(pattern, r"^(arn:[a-z-]+:iam::\d{12}:role/[A-Za-z0-9_+=,.@/-]+)?$");
}

/// Runners' lines come in from the accounts that are listed, into the one stream, and reach the one function.
#[test]
fn r68_only_the_accounts_that_are_listed_may_send_reports() {
    let template = template("infra/accounts.yaml");
    let mut stack = stack(&template);
    let function = "arn:aws:lambda:eu-west-1:111122223333:function:f";
    for (name, value) in [
        ("RunnerAccountIds", "444455556666,777788889999"),
        ("StolenRunnerFunctionArn", function),
        ("CodeBucket", "code"),
    ] {
        stack.values.insert(name.into(), value.into());
    }
    let policy: Value =
        serde_json::from_str(&scalar(&stack.properties("Destination")["DestinationPolicy"]))
            .unwrap();
    let statement = &policy["Statement"][0];
    assert_eq!(policy["Statement"].as_array().unwrap().len(), 1);
    assert_eq!(statement["Principal"]["AWS"], json!(["444455556666", "777788889999"]));
    assert_eq!(statement["Action"], "logs:PutSubscriptionFilter");
    let stream = stack.values["Reports.Arn"].clone();
    assert_eq!(allowed(&statements(&stack, "DestinationRole")).len(), 2);
    for statement in statements(&stack, "DestinationRole") {
        assert_eq!(statement["Resource"], stream);
    }
    let mut asked = Cases::of(&stack, "ReportsRole");
    asked.allows("lambda:InvokeFunction", function, &[]);
    asked.refuses("another function", "lambda:InvokeFunction", &format!("{function}2"), &[]);
    asked.allows("s3:PutObject", "arn:aws:s3:::code/reports-failed/x", &[]);
    asked.refuses("the functions' code", "s3:PutObject", "arn:aws:s3:::code/b1/webhook.zip", &[]);
    asked.refuses("reading", "s3:GetObject", "arn:aws:s3:::code/reports-failed/x", &[]);
    asked.hold();
}

/// Parameters that are SecureStrings use the account's own key for SSM, which needs no permission here.
#[test]
fn r22_r24_no_role_has_keys_of_others_or_makes_roles() {
    for name in crate::template::TEMPLATES {
        let template = template(name);
        let stack = stack(&template);
        for (role, _) in resources(&template, "AWS::IAM::Role") {
            if template["Resources"][role]["Properties"].get("Policies").is_none() {
                continue;
            }
            for action in allowed(&statements(&stack, role)) {
                let wide = ["kms:", "iam:Create", "iam:Put", "iam:Attach", "secretsmanager:"];
                assert!(!wide.iter().any(|it| action.starts_with(it)), "{name}: {role}: {action}");
            }
        }
    }
}

/// An install is known by its owner's tag, so what it starts carries the tag from the first moment, and nothing else counts.
#[test]
fn r09_re_04_every_launch_is_tagged_by_the_launch_itself() {
    both(|asked| {
        let instance = format!("{ARN}:instance/i-1");
        for action in ["ec2:RunInstances", "ec2:CreateFleet"] {
            asked.refuses("without the tag", action, &instance, &[V2]);
        }
        asked.refuses("tagging later", "ec2:CreateTags", &instance, &[OWNED]);
        asked.refuses("taking the tag off", "ec2:DeleteTags", &instance, &[OWN]);
    });
}
