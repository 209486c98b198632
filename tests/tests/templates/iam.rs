//! What the stack's roles may do: a small evaluator of their policies, and the cases that matter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

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
    ];
    Stack::new(template, &values)
}

/// A role's statements, by the policies that stand in the template.
pub fn statements(stack: &Stack<'_>, role: &str) -> Vec<Value> {
    let properties = stack.properties(role);
    let policies = properties["Policies"].as_array().unwrap();
    policies
        .iter()
        .flat_map(|policy| {
            // One whose keys hold parameters is a text.
            let document = match &policy["PolicyDocument"] {
                Value::String(text) => serde_json::from_str(text).unwrap(),
                document => document.clone(),
            };
            document["Statement"].as_array().unwrap().clone()
        })
        .collect()
}

/// A request's context: each key with its values.
type Context<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Whether the role may, as IAM decides: some Allow matches, no Deny does.
pub fn may(
    stack: &Stack<'_>,
    role: &str,
    action: &str,
    resource: &str,
    context: &[(&str, &str)],
) -> bool {
    let context: Context<'_> = context.iter().map(|(key, value)| (*key, vec![*value])).collect();
    let matching: Vec<_> = statements(stack, role)
        .into_iter()
        .filter(|statement| {
            list(&statement["Action"]).iter().any(|pattern| wildcard(&scalar(pattern), action))
                && list(&statement["Resource"])
                    .iter()
                    .any(|pattern| wildcard(&scalar(pattern), resource))
                && statement["Condition"].as_object().is_none_or(|all| {
                    all.iter().all(|(operator, keys)| {
                        keys.as_object()
                            .unwrap()
                            .iter()
                            .all(|(key, values)| condition(operator, key, values, &context))
                    })
                })
        })
        .map(|statement| scalar(&statement["Effect"]))
        .collect();
    matching.iter().any(|effect| effect == "Allow")
        && !matching.iter().any(|effect| effect == "Deny")
}

fn condition(operator: &str, key: &str, values: &Value, context: &Context<'_>) -> bool {
    let actual = context.get(key);
    let expected: Vec<String> = list(values).into_iter().map(scalar).collect();
    // A policy variable: what the caller is, which the request can't choose.
    let expected: Vec<String> = expected
        .into_iter()
        .map(|value| match value.strip_prefix("${").and_then(|value| value.strip_suffix('}')) {
            Some(variable) => context[variable][0].to_owned(),
            None => value,
        })
        .collect();
    let one_of = |value: &&str| expected.iter().any(|expected| expected == value);
    match operator {
        "StringEquals" | "ArnEquals" | "Bool" => {
            actual.is_some_and(|values| values.iter().any(one_of))
        }
        "StringNotEquals" => !actual.is_some_and(|values| values.iter().any(one_of)),
        "ForAllValues:StringEquals" => actual.is_none_or(|values| values.iter().all(one_of)),
        "Null" => actual.is_none() == (expected == ["true"]),
        operator => panic!("this evaluator doesn't know {operator}"),
    }
}

fn wildcard(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len())
                .any(|skip| text.is_char_boundary(skip) && wildcard(rest, &text[skip..]))
        }),
    }
}

/// Whether the orchestrator may, as EC2 asks for each resource of a launch.
fn orchestrator(action: &str, resource: &str, context: &[(&str, &str)]) -> bool {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    may(&stack, "OrchestratorRole", action, resource, context)
}

const OWNED: (&str, &str) = ("aws:RequestTag/ostler:owner", "acme");
const FOREIGN: (&str, &str) = ("aws:RequestTag/ostler:owner", "other");
const V2: (&str, &str) = ("ec2:MetadataHttpTokens", "required");
const VPC: (&str, &str) = ("ec2:Vpc", "arn:aws:ec2:eu-west-1:111122223333:vpc/vpc-1");
const OTHER_VPC: (&str, &str) = ("ec2:Vpc", "arn:aws:ec2:eu-west-1:111122223333:vpc/vpc-2");

#[test]
fn a_launch_is_allowed_for_each_resource_that_ec2_asks_about() {
    let image = "arn:aws:ec2:eu-west-1::image/ami-1";
    for action in ["ec2:RunInstances", "ec2:CreateFleet"] {
        assert!(orchestrator(action, image, &[]));
        assert!(orchestrator(action, "arn:aws:ec2:eu-west-1::snapshot/snap-1", &[]));
        assert!(orchestrator(action, &format!("{ARN}:subnet/subnet-1"), &[VPC]));
        assert!(orchestrator(
            action,
            &format!("{ARN}:launch-template/lt-0123456789SpotTemplate"),
            &[]
        ));
        assert!(orchestrator(
            action,
            &format!("{ARN}:launch-template/lt-0123456789OnDemandTemplate"),
            &[]
        ));
        assert!(orchestrator(action, &format!("{ARN}:volume/*"), &[OWNED]));
        assert!(orchestrator(action, &format!("{ARN}:instance/*"), &[OWNED, V2]));
    }
    assert!(orchestrator("ec2:CreateFleet", &format!("{ARN}:fleet/*"), &[OWNED]));
    assert!(orchestrator("ec2:RunInstances", &format!("{ARN}:security-group/sg-1"), &[VPC]));
    // Made by the launch itself: it has no tags to be known by, only its VPC.
    assert!(orchestrator("ec2:RunInstances", &format!("{ARN}:network-interface/*"), &[VPC]));
    assert!(orchestrator("ec2:RunInstances", &format!("{ARN}:spot-instances-request/*"), &[OWNED]));
    for kind in ["instance", "volume", "spot-instances-request", "fleet"] {
        for by in ["RunInstances", "CreateFleet"] {
            let context = [OWNED, ("ec2:CreateAction", by)];
            assert!(
                orchestrator("ec2:CreateTags", &format!("{ARN}:{kind}/*"), &context),
                "{kind} by {by}"
            );
        }
    }
}

#[test]
fn a_launch_is_refused_that_is_not_this_installs_or_not_safe() {
    let instance = format!("{ARN}:instance/*");
    for (what, resource, context) in [
        ("untagged", &instance, vec![V2]),
        ("of another owner", &instance, vec![FOREIGN, V2]),
        ("with IMDSv1", &instance, vec![OWNED, ("ec2:MetadataHttpTokens", "optional")]),
        ("that says nothing of IMDS", &instance, vec![OWNED]),
        ("with an untagged volume", &format!("{ARN}:volume/*"), vec![]),
        ("with an untagged spot request", &format!("{ARN}:spot-instances-request/*"), vec![]),
        ("into another VPC", &format!("{ARN}:subnet/subnet-9"), vec![OTHER_VPC]),
        (
            "with an interface in another VPC",
            &format!("{ARN}:network-interface/*"),
            vec![OTHER_VPC],
        ),
        ("with another group of the VPC", &format!("{ARN}:security-group/sg-9"), vec![VPC]),
        ("with a key pair", &format!("{ARN}:key-pair/laptop"), vec![]),
        ("from another template", &format!("{ARN}:launch-template/lt-9"), vec![OWNED]),
    ] {
        assert!(!orchestrator("ec2:RunInstances", resource, &context), "a launch {what}");
    }
    assert!(!orchestrator("ec2:CreateFleet", &format!("{ARN}:fleet/*"), &[]), "an untagged fleet");
}

#[test]
fn only_own_instances_are_ended_and_none_is_adopted() {
    let instance = format!("{ARN}:instance/i-1");
    let own = ("aws:ResourceTag/ostler:owner", "acme");
    assert!(orchestrator("ec2:TerminateInstances", &instance, &[own]));
    assert!(!orchestrator(
        "ec2:TerminateInstances",
        &instance,
        &[("aws:ResourceTag/ostler:owner", "other")]
    ));
    assert!(!orchestrator("ec2:TerminateInstances", &instance, &[]));
    // Tagging after the launch would make a foreign instance ours, or give one of ours away.
    assert!(!orchestrator("ec2:CreateTags", &instance, &[OWNED]));
    assert!(!orchestrator("ec2:CreateTags", &instance, &[own, FOREIGN]));
    for action in [
        "DeleteTags",
        "StopInstances",
        "StartInstances",
        "ModifyInstanceAttribute",
        "CreateLaunchTemplate",
    ] {
        assert!(!orchestrator(&format!("ec2:{action}"), &instance, &[own]), "{action}");
    }
}

#[test]
fn the_runners_role_is_passed_to_ec2_and_to_nothing_else() {
    let role = "arn:aws:iam::111122223333:role/stack-RunnerRole-ABCDEFGHIJKLM";
    let to = |service| ("iam:PassedToService", service);
    assert!(orchestrator("iam:PassRole", role, &[to("ec2.amazonaws.com")]));
    assert!(!orchestrator("iam:PassRole", role, &[to("lambda.amazonaws.com")]));
    let other = "arn:aws:iam::111122223333:role/Admin";
    assert!(!orchestrator("iam:PassRole", other, &[to("ec2.amazonaws.com")]));
}

#[test]
fn se_06_a_runner_reads_its_own_item_and_no_other() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let table = &stack.values["HandoffTable.Arn"];
    let caller = ("aws:userid", "AROAEXAMPLEEXAMPLE123:i-1");
    let may = |action: &str, resource: &str, key: &str| {
        may(&stack, "RunnerRole", action, resource, &[caller, ("dynamodb:LeadingKeys", key)])
    };
    for action in ["dynamodb:GetItem", "dynamodb:DeleteItem"] {
        assert!(may(action, table, "AROAEXAMPLEEXAMPLE123:i-1"));
        for other in ["AROAEXAMPLEEXAMPLE123:i-2", "AROAEXAMPLEEXAMPLE123:i-11", "", "job#1"] {
            assert!(!may(action, table, other), "{action} {other}");
        }
        assert!(!may(action, &stack.values["LedgerTable.Arn"], "AROAEXAMPLEEXAMPLE123:i-1"));
        // ForAllValues holds where there is no value at all.
        assert!(
            !super::iam::may(&stack, "RunnerRole", action, table, &[caller]),
            "{action} without a key"
        );
    }
    for action in ["PutItem", "UpdateItem", "Query", "Scan", "BatchGetItem", "PartiQLSelect"] {
        assert!(
            !may(&format!("dynamodb:{action}"), table, "AROAEXAMPLEEXAMPLE123:i-1"),
            "{action}"
        );
    }
}

#[test]
fn a_runner_appends_to_the_runners_log_group_alone() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let stream = |group: &str| {
        format!("arn:aws:logs:eu-west-1:111122223333:log-group:/ostler/stack/{group}:log-stream:x")
    };
    for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
        assert!(may(&stack, "RunnerRole", action, &stream("runners"), &[]));
        assert!(!may(&stack, "RunnerRole", action, &stream("webhook"), &[]));
    }
    for action in
        ["logs:GetLogEvents", "logs:FilterLogEvents", "logs:CreateLogGroup", "logs:DeleteLogStream"]
    {
        assert!(!may(&stack, "RunnerRole", action, &stream("runners"), &[]), "{action}");
    }
    let actions: BTreeSet<_> = allowed(&statements(&stack, "RunnerRole"));
    let all =
        ["dynamodb:DeleteItem", "dynamodb:GetItem", "logs:CreateLogStream", "logs:PutLogEvents"];
    assert_eq!(actions, all.map(str::to_owned).into(), "every job on a runner may do all of this");
}

#[test]
fn each_function_reads_its_parameters_and_no_others() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let reads = |role: &str, name: &str| {
        let arn = format!("arn:aws:ssm:eu-west-1:111122223333:parameter/ostler/{name}");
        may(&stack, role, "ssm:GetParameters", &arn, &[])
    };
    for shared in ["tiers", "app", "app-private-key", "name-key"] {
        assert!(reads("StolenRunnerRole", &format!("control/{shared}")), "{shared}");
    }
    for shared in ["tiers", "app", "apps", "app-private-key", "name-key"] {
        assert!(reads("WebhookRole", &format!("control/{shared}")), "{shared}");
        assert!(reads("OrchestratorRole", &format!("control/{shared}")), "{shared}");
    }
    for secret in ["webhook-secret", "webhook-secret-previous"] {
        assert!(reads("WebhookRole", &format!("control/{secret}")));
        for role in ["OrchestratorRole", "StolenRunnerRole"] {
            assert!(
                !reads(role, &format!("control/{secret}")),
                "only the webhook checks signatures"
            );
        }
    }
    // Images' parameters belong to whoever builds images; they must not lead to the App's key.
    assert!(reads("OrchestratorRole", "images/ubuntu-x64"));
    assert!(!reads("WebhookRole", "images/ubuntu-x64"));
    for role in ["WebhookRole", "OrchestratorRole", "StolenRunnerRole"] {
        assert!(
            !reads(role, "control/anything-else") && !reads(role, "../other/control/tiers"),
            "{role}"
        );
    }
    assert!(
        !reads("RunnerRole", "control/app-private-key")
            && !reads("StateMachineRole", "control/tiers")
    );
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
        let may = |action: &str, resource: &str| may(&stack, role, action, resource, &[]);
        assert!(may("states:StartExecution", &arn("stateMachine", "stack-orchestrator")));
        assert!(!may("states:StartExecution", &arn("stateMachine", "other-orchestrator")));
        assert!(may(
            "states:DescribeExecution",
            &arn("execution", "stack-orchestrator:app-1-0123")
        ));
        assert!(!may("states:DescribeExecution", &arn("execution", "other:app-1-0123")));
        assert!(!may("states:StopExecution", &arn("execution", "stack-orchestrator:app-1-0123")));
    }
}

#[test]
fn the_stolen_runner_function_may_do_what_it_does_and_no_more() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let may = |action: &str, resource: &str| may(&stack, "StolenRunnerRole", action, resource, &[]);
    let queue = &stack.values["ReportQueue.Arn"];
    for action in ["SendMessage", "ReceiveMessage", "DeleteMessage", "GetQueueAttributes"] {
        assert!(may(&format!("sqs:{action}"), queue), "{action}");
        assert!(!may(&format!("sqs:{action}"), &stack.values["ReportDeadLetterQueue.Arn"]));
    }
    assert!(may("dynamodb:UpdateItem", &stack.values["LedgerTable.Arn"]));
    assert!(!may("dynamodb:GetItem", &stack.values["HandoffTable.Arn"]), "no registration is its");
    let actions = allowed(&statements(&stack, "StolenRunnerRole"));
    assert!(!actions.iter().any(|action| action.starts_with("ec2:")), "{actions:?}");
    assert!(!actions.iter().any(|action| action.contains('*')), "{actions:?}");
}

#[test]
fn a_selector_may_be_asked_only_where_there_is_one() {
    let template = template("infra/control.yaml");
    let selector = "arn:aws:lambda:eu-west-1:111122223333:function:choose";
    let with = Stack::new(
        &template,
        &[("Owner", "acme"), ("VpcId", "vpc-1"), ("SelectorFunctionArn", selector)],
    );
    assert!(may(&with, "WebhookRole", "lambda:InvokeFunction", selector, &[]));
    assert!(!may(&stack(&template), "WebhookRole", "lambda:InvokeFunction", selector, &[]));
}

/// Without the grant an instance from an encrypted image dies right after its start, and EC2 says little.
#[test]
fn ic_03_the_key_of_encrypted_images_can_be_used_only_where_it_is_given() {
    let template = template("infra/control.yaml");
    let key = "arn:aws:kms:eu-west-1:111122223333:key/k";
    let mut values = stack(&template).values;
    values.insert("ImageKeyArn".into(), key.into());
    let with = Stack { template: &template, values };
    let by_ec2 = ("kms:ViaService", "ec2.eu-west-1.amazonaws.com");
    let for_aws = ("kms:GrantIsForAWSResource", "true");
    for action in [
        "Decrypt",
        "DescribeKey",
        "GenerateDataKeyWithoutPlaintext",
        "ReEncryptFrom",
        "ReEncryptTo",
    ] {
        let action = format!("kms:{action}");
        assert!(may(&with, "OrchestratorRole", &action, key, &[by_ec2]), "{action}");
        assert!(!may(&with, "OrchestratorRole", &action, key, &[]), "{action} not through EC2");
        assert!(
            !may(&stack(&template), "OrchestratorRole", &action, key, &[by_ec2]),
            "{action} without a key"
        );
    }
    assert!(may(&with, "OrchestratorRole", "kms:CreateGrant", key, &[for_aws]));
    assert!(!may(&with, "OrchestratorRole", "kms:CreateGrant", key, &[]));
    let other = "arn:aws:kms:eu-west-1:111122223333:key/other";
    assert!(!may(&with, "OrchestratorRole", "kms:CreateGrant", other, &[for_aws]));
}

/// All actions that they allow.
pub fn allowed(statements: &[Value]) -> BTreeSet<String> {
    statements
        .iter()
        .filter(|statement| statement["Effect"] == "Allow")
        .flat_map(|statement| {
            list(&statement["Action"]).into_iter().map(scalar).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn no_role_is_wider_than_it_must_be() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    let roles = resources(&template, "AWS::IAM::Role");
    assert_eq!(
        roles.keys().copied().collect::<Vec<_>>(),
        ["OrchestratorRole", "RunnerRole", "StateMachineRole", "StolenRunnerRole", "WebhookRole"]
    );
    for (role, resource) in roles {
        let properties = &resource["Properties"];
        assert!(
            properties.get("RoleName").is_none(),
            "{role}: a named role needs CAPABILITY_NAMED_IAM"
        );
        assert!(
            properties.get("ManagedPolicyArns").is_none(),
            "{role}: managed policies grant more than is needed"
        );
        let statements = statements(&stack, role);
        let bytes = json!(statements).to_string().len();
        assert!(bytes < POLICY_BYTES_MAX, "{role}: {bytes} bytes");
        for statement in &statements {
            let sid = format!("{role}/{}", scalar(&statement["Sid"]));
            assert!(
                statement.get("NotAction").is_none() && statement.get("NotResource").is_none(),
                "{sid}"
            );
            let actions: Vec<_> = list(&statement["Action"]).into_iter().map(scalar).collect();
            assert!(actions.iter().all(|action| !action.contains('*')), "{sid}: {actions:?}");
            if list(&statement["Resource"]).contains(&&json!("*")) {
                assert!(
                    actions.iter().all(|action| action.starts_with("ec2:Describe")),
                    "{sid} on everything"
                );
                let region = &statement["Condition"]["StringEquals"]["aws:RequestedRegion"];
                assert_eq!(region, "eu-west-1", "{sid}");
            }
        }
    }
    // Every action of the stack, so that a new one is a decision.
    let actions: BTreeMap<&str, BTreeSet<String>> =
        ["WebhookRole", "OrchestratorRole", "StateMachineRole"]
            .into_iter()
            .map(|role| (role, allowed(&statements(&stack, role))))
            .collect();
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(
        actions["WebhookRole"],
        set(&[
            "dynamodb:GetItem",
            "dynamodb:UpdateItem",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
            "sqs:SendMessage",
            "ssm:GetParameters",
            "states:DescribeExecution",
            "states:StartExecution",
        ])
    );
    assert_eq!(
        actions["OrchestratorRole"],
        set(&[
            "dynamodb:DeleteItem",
            "dynamodb:GetItem",
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
            "ec2:CreateFleet",
            "ec2:CreateTags",
            "ec2:DescribeImages",
            "ec2:DescribeInstances",
            "ec2:RunInstances",
            "ec2:TerminateInstances",
            "iam:PassRole",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
            "sqs:SendMessage",
            "ssm:GetParameters",
            "states:DescribeExecution",
            "states:StartExecution",
        ])
    );
    assert_eq!(actions["StateMachineRole"], set(&["lambda:InvokeFunction"]));
}

#[test]
fn each_role_trusts_one_service() {
    let template = template("infra/control.yaml");
    let stack = stack(&template);
    for (role, service) in [
        ("WebhookRole", "lambda"),
        ("OrchestratorRole", "lambda"),
        ("StateMachineRole", "states"),
        ("RunnerRole", "ec2"),
    ] {
        let trust = stack.properties(role)["AssumeRolePolicyDocument"]["Statement"].clone();
        let principal = json!({"Service": format!("{service}.amazonaws.com")});
        assert_eq!(
            trust,
            json!([{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}]),
            "{role}"
        );
    }
}
