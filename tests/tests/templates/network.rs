//! The laws of `network.yaml`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::template::{Stack, resources, scalar, template};

#[test]
fn r03_a_network_has_two_or_three_public_subnets_in_zones_of_their_own() {
    let template = template("infra/network.yaml");
    for zones in ["2", "3"] {
        let stack = Stack::new(&template, &[("Zones", zones)]);
        let count: usize = zones.parse().unwrap();
        let subnets: Vec<_> = resources(&template, "AWS::EC2::Subnet")
            .into_iter()
            .filter(|(_, subnet)| stack.makes(subnet))
            .map(|(id, _)| (id, stack.properties(id)))
            .collect();
        assert_eq!(subnets.len(), count);
        let distinct = |key: &str| {
            subnets.iter().map(|(_, subnet)| subnet[key].to_string()).collect::<BTreeSet<_>>()
        };
        assert_eq!(distinct("AvailabilityZone").len(), count, "each in its own zone");
        assert_eq!(distinct("CidrBlock").len(), count);
        let routed: BTreeSet<_> = resources(&template, "AWS::EC2::SubnetRouteTableAssociation")
            .into_iter()
            .filter(|(_, association)| stack.makes(association))
            .map(|(_, association)| association["Properties"]["SubnetId"]["Ref"].as_str().unwrap())
            .collect();
        assert_eq!(routed, subnets.iter().map(|(id, _)| *id).collect(), "each has the route out");
        assert!(subnets.iter().all(|(_, subnet)| subnet["MapPublicIpOnLaunch"] == true));
        let ids: Vec<_> = subnets.iter().map(|(id, _)| stack.values[*id].clone()).collect();
        assert_eq!(stack.evaluate(&template["Outputs"]["SubnetIds"]["Value"]), ids.join(","));
    }
    // Some regions have only two.
    assert_eq!(template["Parameters"]["Zones"]["Default"], 2);
}

#[test]
fn r03_a_network_leads_out() {
    let template = template("infra/network.yaml");
    let route = &template["Resources"]["InternetRoute"];
    assert_eq!(route["Properties"]["DestinationCidrBlock"], "0.0.0.0/0");
    assert_eq!(route["Properties"]["GatewayId"], json!({"Ref": "InternetGateway"}));
    // The gateway must be attached first.
    assert_eq!(route["DependsOn"], "InternetGatewayAttachment");
    let attachment = &template["Resources"]["InternetGatewayAttachment"]["Properties"];
    assert_eq!(attachment["VpcId"], json!({"Ref": "Vpc"}));
    // The one table has that route, and every subnet has that table.
    assert_eq!(resources(&template, "AWS::EC2::RouteTable").len(), 1);
    for (id, association) in resources(&template, "AWS::EC2::SubnetRouteTableAssociation") {
        assert_eq!(association["Properties"]["RouteTableId"], json!({"Ref": "RouteTable"}), "{id}");
    }
    // It would cost more than all the rest.
    assert!(resources(&template, "AWS::EC2::NatGateway").is_empty());
}

/// Endpoints of that kind cost nothing, and spare S3 and DynamoDB the way over the internet.
#[test]
fn r03_gateway_endpoints_lead_to_s3_and_dynamodb_from_every_subnet() {
    let template = template("infra/network.yaml");
    let table = json!([{"Ref": "RouteTable"}]);
    let endpoints = resources(&template, "AWS::EC2::VPCEndpoint");
    let services: BTreeSet<_> = endpoints
        .values()
        .map(|endpoint| {
            let properties = &endpoint["Properties"];
            assert_eq!(
                (&properties["VpcEndpointType"], &properties["RouteTableIds"]),
                (&json!("Gateway"), &table)
            );
            Stack::new(&template, &[]).evaluate(&properties["ServiceName"])
        })
        .collect::<Vec<_>>()
        .iter()
        .map(scalar)
        .collect();
    let expected = ["com.amazonaws.eu-west-1.dynamodb", "com.amazonaws.eu-west-1.s3"];
    assert_eq!(services, expected.map(str::to_owned).into());
}

#[test]
fn r04_names_are_resolved_and_given() {
    let template = template("infra/network.yaml");
    let vpc = &template["Resources"]["Vpc"]["Properties"];
    let on = json!(true);
    assert_eq!((&vpc["EnableDnsSupport"], &vpc["EnableDnsHostnames"]), (&on, &on));
}

#[test]
fn r05_the_runners_group_lets_nothing_in_and_everything_out() {
    let template = template("infra/network.yaml");
    let groups = resources(&template, "AWS::EC2::SecurityGroup");
    assert_eq!(groups.keys().copied().collect::<Vec<_>>(), ["RunnerSecurityGroup"]);
    let group = &groups["RunnerSecurityGroup"]["Properties"];
    assert!(group.get("SecurityGroupIngress").is_none());
    for name in crate::template::TEMPLATES {
        let ingress =
            resources(&crate::template::template(name), "AWS::EC2::SecurityGroupIngress").len();
        assert_eq!(ingress, 0, "{name}");
    }
    let egress = group["SecurityGroupEgress"].as_array().unwrap();
    assert_eq!(egress.len(), 1);
    assert_eq!(
        (&egress[0]["IpProtocol"], &egress[0]["CidrIp"]),
        (&json!("-1"), &json!("0.0.0.0/0"))
    );
}

#[test]
fn r03_a_network_deploys_without_parameters_and_without_capabilities() {
    let template = template("infra/network.yaml");
    for (name, parameter) in template["Parameters"].as_object().unwrap() {
        assert!(parameter.get("Default").is_some(), "{name}");
    }
    for (id, resource) in template["Resources"].as_object().unwrap() {
        assert!(!resource["Type"].as_str().unwrap().starts_with("AWS::IAM::"), "{id}");
    }
}

#[test]
fn r06_what_the_network_puts_out_the_control_plane_takes_or_a_vpc_of_ones_own_gives() {
    let (network, control) = (template("infra/network.yaml"), template("infra/control.yaml"));
    for (output, kind) in [
        ("VpcId", "AWS::EC2::VPC::Id"),
        ("SubnetIds", "List<AWS::EC2::Subnet::Id>"),
        ("RunnerSecurityGroupId", "AWS::EC2::SecurityGroup::Id"),
    ] {
        assert_eq!(control["Parameters"][output]["Type"], kind, "{output}");
    }
    assert_eq!(network["Outputs"].as_object().unwrap().len(), 3);
    let own: Vec<&Value> = network["Outputs"].as_object().unwrap().values().collect();
    assert!(own.iter().all(|output| output["Description"].is_string()));
}
