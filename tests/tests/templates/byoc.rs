//! The laws of `byoc-role.yaml`. What its role may do is asked in `iam`, together with the control plane's.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::policy::Cases;
use crate::template::{Stack, resources, scalar, template};

const TEMPLATE: &str = "infra/byoc-role.yaml";
const EXTERNAL: (&str, &str) = ("sts:ExternalId", "an-external-id");

fn stack<'a>(template: &'a Value, more: &[(&str, &str)]) -> Stack<'a> {
    let values = [
        ("TrustedAccountId", "444455556666"),
        ("ExternalId", EXTERNAL.1),
        ("Owner", "acme"),
        ("SubnetIds", "subnet-1,subnet-2"),
    ];
    Stack::new(template, &[&values[..], more].concat())
}

#[test]
fn r66_the_role_is_assumed_from_the_trusted_account_with_the_external_id_alone() {
    let template = template(TEMPLATE);
    let mut asked = Cases::of_trust(&stack(&template, &[]), "RunnerComputeRole");
    let (trusted, stranger) =
        ("arn:aws:iam::444455556666:role/any", "arn:aws:iam::777788889999:role/any");
    asked.trusts(true, trusted, &[EXTERNAL]);
    asked.trusts(false, trusted, &[]);
    asked.trusts(false, trusted, &[("sts:ExternalId", "another-id")]);
    asked.trusts(false, stranger, &[EXTERNAL]);
    asked.trusts(false, "arn:aws:iam::111122223333:role/own", &[EXTERNAL]);
    asked.hold();
}

#[test]
fn r66_a_trusted_role_name_admits_that_role_of_the_account_alone() {
    let template = template(TEMPLATE);
    let role = ("TrustedRoleName", "ostler-OrchestratorRole-X");
    let mut asked = Cases::of_trust(&stack(&template, &[role]), "RunnerComputeRole");
    let named = "arn:aws:iam::444455556666:role/ostler-OrchestratorRole-X";
    asked.trusts(true, named, &[EXTERNAL]);
    asked.trusts(false, named, &[]);
    asked.trusts(false, "arn:aws:iam::444455556666:role/ostler-OrchestratorRole-Y", &[EXTERNAL]);
    asked.trusts(false, "arn:aws:iam::444455556666:user/ostler-OrchestratorRole-X", &[EXTERNAL]);
    asked.trusts(false, "arn:aws:iam::777788889999:role/ostler-OrchestratorRole-X", &[EXTERNAL]);
    asked.hold();
    let trust = stack(&template, &[]).properties("RunnerComputeRole");
    let statements = trust["AssumeRolePolicyDocument"]["Statement"].as_array().unwrap();
    let [statement] = &statements[..] else { panic!("{statements:?}") };
    assert_eq!(statement["Action"], "sts:AssumeRole", "no tagging of sessions");
    assert_eq!(statement["Principal"], json!({"AWS": "arn:aws:iam::444455556666:root"}));
}

#[test]
fn r59_its_parameters_are_those_of_the_role_the_network_and_the_runners() {
    let template = template(TEMPLATE);
    let parameters = template["Parameters"].as_object().unwrap();
    let required: BTreeSet<_> = parameters
        .iter()
        .filter(|(_, parameter)| parameter.get("Default").is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let expected =
        ["ExternalId", "Owner", "RunnerSecurityGroupId", "SubnetIds", "TrustedAccountId", "VpcId"];
    assert_eq!(required, expected.into());
    assert_eq!(parameters["TrustedRoleName"]["Default"], "");
    assert_eq!(parameters["Prefix"]["Default"], "/ostler");
    // What both templates ask for they ask for alike.
    let control = crate::template::template("infra/control.yaml");
    for (name, parameter) in parameters {
        let other = &control["Parameters"][name];
        for key in ["Type", "Default", "AllowedPattern", "AllowedValues"] {
            assert!(other.is_null() || other[key] == parameter[key], "{name}: {key}");
        }
    }
}

/// R68: what the runners need to get their registration, with no endpoint in the VPC.
#[test]
fn r68_what_runners_need_is_the_same_in_both_accounts() {
    let (byoc, control) = (template(TEMPLATE), template("infra/control.yaml"));
    let shared = [
        "HandoffTable",
        "RunnerLogs",
        "RunnerRole",
        "RunnerInstanceProfile",
        "OnDemandTemplate",
        "SpotTemplate",
    ];
    for id in shared {
        assert_eq!(byoc["Resources"][id], control["Resources"][id], "{id}");
    }
    assert_eq!(byoc["Mappings"], control["Mappings"]);
    let own: BTreeSet<_> =
        byoc["Resources"].as_object().unwrap().keys().map(String::as_str).collect();
    let more = ["RunnerComputeRole", "RunnerLines"];
    let events = ["EventRole", "ForwardRole", "InstanceRule", "InterruptionRule"];
    assert_eq!(own, shared.into_iter().chain(more).chain(events).collect());
    assert!(resources(&byoc, "AWS::EC2::VPCEndpoint").is_empty());
}

#[test]
fn runners_reports_go_to_the_control_account_where_there_is_a_way() {
    let template = template(TEMPLATE);
    let filter = &template["Resources"]["RunnerLines"];
    assert!(!stack(&template, &[]).makes(filter));
    let destination = "arn:aws:logs:eu-west-1:444455556666:destination:ostler";
    let with = stack(&template, &[("LogDestinationArn", destination)]);
    assert!(with.makes(filter));
    let properties = with.properties("RunnerLines");
    assert_eq!(properties["DestinationArn"], destination);
    assert_eq!(properties["LogGroupName"], "/ostler/stack/runners");
    let control = crate::template::template("infra/control.yaml");
    let own = &control["Resources"]["StolenRunnerLines"]["Properties"]["FilterPattern"];
    assert_eq!(&properties["FilterPattern"], own);
}

const BUS: (&str, &str) =
    ("EventBusArn", "arn:aws:events:eu-west-1:444455556666:event-bus/ostler-recovery-instances");
const EVENT_ROLE: (&str, &str) = ("TrustedEventRoleName", "ostler-recovery-InstanceRole-X");

/// What the control plane hears of its own machines, it hears of these: the same patterns.
#[test]
fn events_of_instances_go_to_the_control_account_where_there_is_a_way() {
    let (template, recovery) =
        (template(TEMPLATE), crate::template::template("infra/recovery.yaml"));
    let (without, with) = (stack(&template, &[]), stack(&template, &[BUS, EVENT_ROLE]));
    for id in ["InstanceRule", "InterruptionRule", "ForwardRole", "EventRole"] {
        let resource = &template["Resources"][id];
        assert!(!without.makes(resource) && with.makes(resource), "{id}");
    }
    for rule in ["InstanceRule", "InterruptionRule"] {
        let own = with.properties(rule);
        let home = &recovery["Resources"][rule]["Properties"]["EventPattern"];
        assert_eq!(&own["EventPattern"], home, "{rule}");
        let role = "arn:aws:iam::111122223333:role/stack-ForwardRole-ABCDEFGHIJKLM";
        assert_eq!(own["Targets"], json!([{"Id": "control", "Arn": BUS.1, "RoleArn": role}]));
    }
    let mut asked = Cases::of(&with, "ForwardRole");
    asked.allows("events:PutEvents", BUS.1, &[]);
    let other = BUS.1.replace("ostler-recovery-instances", "default");
    asked.refuses("another bus", "events:PutEvents", &other, &[]);
    asked.hold();
    // The parameters are outputs of the recovery stack, and the other way round.
    for (name, _) in [BUS, EVENT_ROLE] {
        assert!(recovery["Outputs"].get(name).is_some(), "{name}");
    }
    for name in ["EventRoleArns", "RunnerAccountIds"] {
        assert!(template["Outputs"].get(name).is_some(), "{name}");
        assert!(recovery["Parameters"].get(name).is_some(), "{name}");
    }
}

#[test]
fn r66_the_role_for_events_only_looks_and_is_assumed_by_its_function_with_the_external_id() {
    let template = template(TEMPLATE);
    let with = stack(&template, &[BUS, EVENT_ROLE]);
    let mut asked = Cases::of(&with, "EventRole");
    let here = ("aws:RequestedRegion", "eu-west-1");
    asked.allows("ec2:DescribeInstances", "*", &[here]);
    asked.refuses("elsewhere", "ec2:DescribeInstances", "*", &[("aws:RequestedRegion", "x")]);
    let instance = "arn:aws:ec2:eu-west-1:111122223333:instance/i-1";
    asked.refuses("an end", "ec2:TerminateInstances", instance, &[here]);
    asked.hold();
    let mut asked = Cases::of_trust(&with, "EventRole");
    let named = format!("arn:aws:iam::444455556666:role/{}", EVENT_ROLE.1);
    asked.trusts(true, &named, &[EXTERNAL]);
    asked.trusts(false, &named, &[]);
    asked.trusts(false, "arn:aws:iam::444455556666:role/ostler-OrchestratorRole-X", &[EXTERNAL]);
    asked.trusts(false, &named.replace("444455556666", "777788889999"), &[EXTERNAL]);
    asked.hold();
}

#[test]
fn the_output_account_is_what_a_tier_takes() {
    let template = template(TEMPLATE);
    let stack = stack(&template, &[]);
    let account = scalar(&stack.evaluate(&template["Outputs"]["Account"]["Value"]));
    let account: Value = serde_json::from_str(&account).unwrap();
    assert_eq!(
        account,
        json!({
            "role_arn": "arn:aws:iam::111122223333:role/stack-RunnerComputeRole-ABCDEFGHIJKLM",
            "external_id": "an-external-id",
            "region": "eu-west-1",
            "subnets": ["subnet-1", "subnet-2"],
            "template_on_demand": "lt-0123456789OnDemandTemplate:12345",
            "template_spot": "lt-0123456789SpotTemplate:12345",
            "handoff_table": "stack-HandoffTable-ABCDEFGHIJKLM",
            "runner_role_id": "AROAEXAMPLEEXAMPLE123",
        })
    );
    let tiers = json!({"tiers": [{"name": "t", "architecture": "x64", "images": ["ami-1"],
        "instance_types": ["m7i.large"], "account": account}]});
    let tiers = ostler_core::config::Tiers::parse(&tiers.to_string());
    assert_eq!(tiers.problems, Vec::<String>::new());
    let with = self::stack(&template, &[BUS]);
    let with = scalar(&with.evaluate(&template["Outputs"]["Account"]["Value"]));
    let with: ostler_core::account::Account = serde_json::from_str(&with).unwrap();
    assert_eq!(with.problem(), None);
    assert!(with.for_events().unwrap().role_arn.contains("-EventRole-"));
}
