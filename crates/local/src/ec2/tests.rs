use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_core::time::Timestamp;
use ostler_sim::ec2::{Options, Span};

use super::*;
use crate::time::WorldClock;
use crate::xml::Node;

const IMAGE: &str = "ami-00000000000000001";

/// What the machines were told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Boot(String),
    Stop(String),
    Terminate(String),
    Notice(String),
}

#[derive(Default)]
struct Machines {
    told: Mutex<Vec<Told>>,
    boots: Mutex<Vec<BootRequest>>,
}

impl Machines {
    fn tell(&self, what: Told) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    fn boots(&self) -> Vec<BootRequest> {
        self.boots.lock().unwrap().clone()
    }

    async fn wait_for(&self, what: Told) {
        for _ in 0..500 {
            if self.told().contains(&what) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what:?} was not told: {:?}", self.told());
    }
}

impl InstanceHost for Machines {
    fn boot(&self, boot: BootRequest) {
        self.tell(Told::Boot(boot.instance_id.clone()));
        self.boots.lock().unwrap().push(boot);
    }
    fn terminate(&self, instance_id: &str) {
        self.tell(Told::Terminate(instance_id.to_owned()));
    }
    fn stop(&self, instance_id: &str) {
        self.tell(Told::Stop(instance_id.to_owned()));
    }
    fn spot_notice(&self, instance_id: &str, _at: Timestamp) {
        self.tell(Told::Notice(instance_id.to_owned()));
    }
}

/// Answers as moto 5.2.5 does (taken from it), for two templates: one whose profile is missing.
fn moto_says(form: &BTreeMap<String, String>) -> (u16, String) {
    let profile = if form.get("LaunchTemplateId").is_some_and(|id| id == "lt-noprofile") {
        "arn:aws:iam::123456789012:instance-profile/gone"
    } else {
        "arn:aws:iam::123456789012:instance-profile/p"
    };
    match form["Action"].as_str() {
        "DescribeLaunchTemplateVersions" if form["LaunchTemplateId"] == "lt-unknown" => (
            400,
            "<Response><Errors><Error><Code>InvalidLaunchTemplateId.NotFound</Code><Message>The \
             specified launch template, with template ID lt-unknown, does not exist.</Message></Error>\
             </Errors><RequestID>request-id</RequestID></Response>"
                .to_owned(),
        ),
        "DescribeLaunchTemplateVersions" => (
            200,
            format!(
                "<DescribeLaunchTemplateVersionsResponse><launchTemplateVersionSet><item>\
                 <launchTemplateId>{}</launchTemplateId><launchTemplateName>t</launchTemplateName>\
                 <versionNumber>3</versionNumber><defaultVersion>true</defaultVersion>\
                 <launchTemplateData><iamInstanceProfile><arn>{profile}</arn></iamInstanceProfile>\
                 <networkInterfaceSet><item><associatePublicIpAddress>true</associatePublicIpAddress>\
                 <deviceIndex>0</deviceIndex></item></networkInterfaceSet>\
                 <instanceInitiatedShutdownBehavior>terminate</instanceInitiatedShutdownBehavior>\
                 <userData>IyEvYmluL2Jhc2gKZWNobyBoaQ==</userData><tagSpecificationSet>\
                 <item><resourceType>volume</resourceType><tagSet><item><key>v</key><value>v</value>\
                 </item></tagSet></item><item><resourceType>instance</resourceType><tagSet><item>\
                 <key>from</key><value>template</value></item><item><key>both</key>\
                 <value>template</value></item></tagSet></item></tagSpecificationSet>\
                 <metadataOptions><httpTokens>required</httpTokens>\
                 <httpPutResponseHopLimit>2</httpPutResponseHopLimit>\
                 <instanceMetadataTags>enabled</instanceMetadataTags></metadataOptions>\
                 </launchTemplateData></item></launchTemplateVersionSet>\
                 </DescribeLaunchTemplateVersionsResponse>",
                form["LaunchTemplateId"]
            ),
        ),
        "GetInstanceProfile" if form["InstanceProfileName"] == "gone" => (
            404,
            "<ErrorResponse><Error><Type>Sender</Type><Code>NoSuchEntity</Code><Message>Instance \
             profile gone not found</Message></Error></ErrorResponse>"
                .to_owned(),
        ),
        "GetInstanceProfile" => (
            200,
            "<GetInstanceProfileResponse><GetInstanceProfileResult><InstanceProfile>\
             <InstanceProfileName>p</InstanceProfileName><InstanceProfileId>AIPA1</InstanceProfileId>\
             <Arn>arn:aws:iam::123456789012:instance-profile/p</Arn><Roles><member>\
             <RoleName>r</RoleName><RoleId>AROARZPUZDIKGAXZRU2BH</RoleId></member></Roles>\
             </InstanceProfile></GetInstanceProfileResult></GetInstanceProfileResponse>"
                .to_owned(),
        ),
        "DescribeSubnets" => (
            200,
            "<DescribeSubnetsResponse><subnetSet><item><subnetId>subnet-a</subnetId>\
             <vpcId>vpc-1</vpcId><availabilityZone>us-east-1a</availabilityZone></item><item>\
             <subnetId>subnet-b</subnetId><vpcId>vpc-1</vpcId>\
             <availabilityZone>us-east-1b</availabilityZone></item></subnetSet>\
             </DescribeSubnetsResponse>"
                .to_owned(),
        ),
        "CreateTags" => (200, "<CreateTagsResponse><return>true</return></CreateTagsResponse>".into()),
        other => panic!("moto is not asked for {other}"),
    }
}

struct World {
    plane: Arc<Ec2Plane>,
    machines: Arc<Machines>,
    /// What moto was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl World {
    async fn new(options: Options, scale: f64) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let answer = move |body: bytes::Bytes| {
            let form = crate::aws::form(&body);
            log.lock().unwrap().push(form["Action"].clone());
            let (status, body) = moto_says(&form);
            async move { (axum::http::StatusCode::from_u16(status).unwrap(), body) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let moto = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let machines = Arc::new(Machines::default());
        let host: Arc<dyn InstanceHost> = Arc::clone(&machines) as _;
        let clock = WorldClock::starting_now(scale);
        let plane = Ec2Plane::with_options(clock, moto, host, options, 1);
        plane.register_plain_image(IMAGE, "x86_64", "/dev/sda1");
        Self { plane, machines, asked }
    }

    async fn calm() -> Self {
        Self::new(Options::calm(), 1.0).await
    }

    async fn call(&self, action: &str, parameters: &[(&str, &str)]) -> (u16, Node) {
        assert!(Ec2Plane::serves(action));
        let mut form = BTreeMap::from([("Action".to_owned(), action.to_owned())]);
        form.extend(parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let answer = self.plane.serve(&form).await;
        (answer.status, Node::parse(&answer.body).unwrap())
    }

    async fn ok(&self, action: &str, parameters: &[(&str, &str)]) -> Node {
        let (status, root) = self.call(action, parameters).await;
        assert_eq!((status, root.name.as_str()), (200, format!("{action}Response").as_str()));
        assert!(!root.text_at("requestId").is_empty());
        root
    }

    async fn fault(&self, action: &str, parameters: &[(&str, &str)]) -> (u16, String) {
        let (status, root) = self.call(action, parameters).await;
        assert_eq!(root.name, "Response");
        assert!(!root.text_at("RequestID").is_empty());
        (status, root.text_at("Errors/Error/Code").to_owned())
    }

    async fn buy(&self, market: &str) -> String {
        let answer = self.ok("CreateFleet", &order(market)).await;
        answer.text_at("fleetInstanceSet/item/instanceIds/item").to_owned()
    }
}

/// The parameters as aws-sdk-ec2 1.274.0 writes them.
fn order(market: &str) -> Vec<(&str, &str)> {
    const CONFIG: [(&str, &str); 15] = [
        ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateId", "lt-1"),
        ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version", "3"),
        ("LaunchTemplateConfigs.1.Overrides.1.InstanceType", "m7i.large"),
        ("LaunchTemplateConfigs.1.Overrides.1.SubnetId", "subnet-a"),
        ("LaunchTemplateConfigs.1.Overrides.1.ImageId", IMAGE),
        ("LaunchTemplateConfigs.1.Overrides.1.BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("LaunchTemplateConfigs.1.Overrides.1.BlockDeviceMapping.1.Ebs.VolumeSize", "40"),
        ("LaunchTemplateConfigs.1.Overrides.2.InstanceType", "m6i.large"),
        ("LaunchTemplateConfigs.1.Overrides.2.SubnetId", "subnet-b"),
        ("LaunchTemplateConfigs.1.Overrides.2.ImageId", IMAGE),
        ("TargetCapacitySpecification.TotalTargetCapacity", "1"),
        ("Type", "instant"),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "ostler:runner"),
        ("TagSpecification.1.Tag.1.Value", "runner-1"),
    ];
    let mut parameters = CONFIG.to_vec();
    parameters.push(("TagSpecification.1.Tag.2.Key", "both"));
    parameters.push(("TagSpecification.1.Tag.2.Value", "request"));
    parameters.push(("TargetCapacitySpecification.DefaultTargetCapacityType", market));
    parameters.push(("SpotOptions.AllocationStrategy", "price-capacity-optimized"));
    parameters
}

#[tokio::test]
async fn a_fleet_boots_what_the_template_says_with_tags_of_both() {
    let world = World::calm().await;
    let answer = world.ok("CreateFleet", &order("spot")).await;
    assert!(answer.text_at("fleetId").starts_with("fleet-"));
    let item = answer.find("fleetInstanceSet/item").unwrap();
    assert_eq!(item.text_at("lifecycle"), "spot");
    assert_eq!(item.text_at("instanceType"), "m7i.large");
    let chosen = item.find("launchTemplateAndOverrides").unwrap();
    assert_eq!(chosen.text_at("launchTemplateSpecification/launchTemplateId"), "lt-1");
    assert_eq!(chosen.text_at("launchTemplateSpecification/version"), "3");
    assert_eq!(chosen.text_at("overrides/subnetId"), "subnet-a");
    assert_eq!(answer.list("errorSet"), []);
    let id = item.text_at("instanceIds/item");
    let boot = &world.machines.boots()[0];
    assert_eq!(
        (boot.instance_id.as_str(), boot.user_data.as_slice()),
        (id, &b"#!/bin/bash\necho hi"[..])
    );
    assert_eq!(
        (boot.role_id.as_str(), boot.architecture.as_str()),
        ("AROARZPUZDIKGAXZRU2BH", "x86_64")
    );
    assert!(boot.first_boot && !boot.dead);
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let tags = [tag("both", "request"), tag("from", "template"), tag("ostler:runner", "runner-1")];
    assert_eq!(boot.tags, BTreeMap::from(tags));
}

#[tokio::test]
async fn instances_are_told_with_the_names_that_sdks_read() {
    let world = World::calm().await;
    let id = world.buy("spot").await;
    let query = [
        ("Filter.1.Name", "tag:ostler:runner"),
        ("Filter.1.Value.1", "runner-0"),
        ("Filter.1.Value.2", "runner-1"),
        ("Filter.2.Name", "instance-state-name"),
        ("Filter.2.Value.1", "running"),
    ];
    let answer = world.ok("DescribeInstances", &query).await;
    let instance = answer.find("reservationSet/item/instancesSet/item").unwrap();
    for (path, value) in [
        ("instanceId", id.as_str()),
        ("imageId", IMAGE),
        ("instanceState/code", "16"),
        ("instanceState/name", "running"),
        ("instanceType", "m7i.large"),
        ("placement/availabilityZone", "us-east-1a"),
        ("subnetId", "subnet-a"),
        ("vpcId", "vpc-1"),
        ("architecture", "x86_64"),
        ("rootDeviceName", "/dev/sda1"),
        ("blockDeviceMapping/item/deviceName", "/dev/sda1"),
        ("instanceLifecycle", "spot"),
        ("iamInstanceProfile/arn", "arn:aws:iam::123456789012:instance-profile/p"),
        ("metadataOptions/httpTokens", "required"),
        ("metadataOptions/httpPutResponseHopLimit", "2"),
        ("metadataOptions/instanceMetadataTags", "enabled"),
        ("reason", ""),
    ] {
        assert_eq!(instance.text_at(path), value, "{path}");
    }
    assert!(Timestamp::parse(instance.text_at("launchTime")).is_some());
    assert_eq!(instance.list("tagSet").len(), 3);
    let spot = instance.text_at("spotInstanceRequestId");
    let answer =
        world.ok("DescribeSpotInstanceRequests", &[("SpotInstanceRequestId.1", spot)]).await;
    let request = answer.find("spotInstanceRequestSet/item").unwrap();
    assert_eq!(request.text_at("instanceId"), id);
    assert_eq!((request.text_at("state"), request.text_at("type")), ("active", "one-time"));
    assert_eq!(request.text_at("status/code"), "fulfilled");
    // The template does not tag them, and CreateFleet cannot.
    assert_eq!(request.list("tagSet"), []);
    let answer = world.ok("CancelSpotInstanceRequests", &[("SpotInstanceRequestId.1", spot)]).await;
    assert_eq!(answer.text_at("spotInstanceRequestSet/item/state"), "cancelled");
}

#[tokio::test]
async fn an_end_reaches_the_machine_and_stays_listed_with_its_reason() {
    let world = World::calm().await;
    let id = world.buy("on-demand").await;
    let answer = world.ok("TerminateInstances", &[("InstanceId.1", &id)]).await;
    let change = answer.find("instancesSet/item").unwrap();
    assert_eq!(change.text_at("instanceId"), id);
    assert_eq!(change.text_at("previousState/name"), "running");
    assert_eq!(change.text_at("currentState/code"), "48");
    assert_eq!(world.machines.told(), [Told::Boot(id.clone()), Told::Terminate(id.clone())]);
    let answer = world.ok("DescribeInstances", &[("InstanceId.1", &id)]).await;
    let instance = answer.find("reservationSet/item/instancesSet/item").unwrap();
    assert_eq!(instance.text_at("stateReason/code"), "Client.UserInitiatedShutdown");
    assert!(instance.text_at("reason").starts_with("User initiated ("));
    assert!(instance.find("subnetId").is_none());
    let view = &world.plane.instances()[0];
    assert_eq!((view.state.as_str(), view.spot), ("terminated", false));
    assert!(view.ended_at.is_some());
}

#[tokio::test]
async fn power_off_from_inside_terminates_as_the_template_says() {
    let world = World::calm().await;
    let id = world.buy("on-demand").await;
    world.plane.powered_off(&id).await;
    let view = &world.plane.instances()[0];
    assert_eq!(view.state, "terminated");
    assert_eq!(view.state_reason, "Client.InstanceInitiatedShutdown");
}

#[tokio::test]
async fn a_stopped_instance_boots_again_and_not_as_new() {
    let world = World::calm().await;
    let id = world.buy("on-demand").await;
    world.ok("StopInstances", &[("InstanceId.1", &id)]).await;
    let modify = [("InstanceId", id.as_str()), ("UserData.Value", "eA==")];
    world.ok("ModifyInstanceAttribute", &modify).await;
    world.ok("StartInstances", &[("InstanceId.1", &id)]).await;
    let told = [Told::Boot(id.clone()), Told::Stop(id.clone()), Told::Boot(id.clone())];
    assert_eq!(world.machines.told(), told);
    let boots = world.machines.boots();
    assert_eq!((boots[1].first_boot, boots[1].user_data.as_slice()), (false, &b"x"[..]));
}

#[tokio::test]
async fn errors_have_ec2s_form_and_status() {
    let world = World::calm().await;
    let gone = "i-0123456789abcdef0";
    assert_eq!(
        world.fault("DescribeInstances", &[("InstanceId.1", gone)]).await,
        (400, "InvalidInstanceID.NotFound".to_owned())
    );
    assert_eq!(
        world.fault("DescribeInstances", &[("Filter.1.Name", "colour")]).await.1,
        "InvalidParameterValue"
    );
    assert_eq!(
        world.fault("DescribeInstances", &[("MaxResults", "many")]).await.1,
        "InvalidParameterValue"
    );
    assert_eq!(
        world.fault("DescribeImages", &[("ImageId.1", "ami-0000000000000000f")]).await.1,
        "InvalidAMIID.NotFound"
    );
    assert_eq!(
        world.fault("TerminateInstances", &[("DryRun", "true")]).await,
        (412, "DryRunOperation".to_owned())
    );
    let mut request = order("spot");
    request[0].1 = "lt-unknown";
    assert_eq!(
        world.fault("CreateFleet", &request).await,
        (400, "InvalidLaunchTemplateId.NotFound".to_owned())
    );
    let mut request = order("spot");
    request.push(("TagSpecification.2.ResourceType", "spot-instances-request"));
    assert_eq!(world.fault("CreateFleet", &request).await.1, "InvalidParameterValue");
}

#[tokio::test]
async fn moto_that_fails_is_an_internal_error() {
    let host: Arc<dyn InstanceHost> = Arc::new(Machines::default());
    let clock = WorldClock::starting_now(1.0);
    let plane = Ec2Plane::new(clock, "http://127.0.0.1:1".to_owned(), host);
    let mut form = BTreeMap::from([("Action".to_owned(), "CreateFleet".to_owned())]);
    form.extend(order("spot").into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
    let answer = plane.serve(&form).await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("<Code>InternalError</Code>"), "{}", answer.body);
}

#[tokio::test]
async fn ol_12_a_profile_that_does_not_exist_is_an_error_inside_a_200() {
    let world = World::calm().await;
    let mut request = order("on-demand");
    request[0].1 = "lt-noprofile";
    let answer = world.ok("CreateFleet", &request).await;
    let errors = answer.list("errorSet");
    assert_eq!((errors.len(), answer.list("fleetInstanceSet").len()), (2, 0));
    assert_eq!(errors[0].text_at("errorCode"), "InvalidParameterValue");
    assert!(errors[0].text_at("errorMessage").ends_with("Invalid IAM Instance Profile ARN"));
    assert_eq!(errors[1].text_at("launchTemplateAndOverrides/overrides/instanceType"), "m6i.large");
}

#[tokio::test]
async fn a_client_token_is_kept_and_a_numbered_template_is_read_once() {
    let world = World::calm().await;
    let mut request = order("spot");
    request.push(("ClientToken", "abc"));
    let instance = |answer: &Node| answer.find("fleetInstanceSet/item").cloned();
    let first = instance(&world.ok("CreateFleet", &request).await).unwrap();
    let again = instance(&world.ok("CreateFleet", &request).await).unwrap();
    assert_eq!((first, world.machines.boots().len()), (again, 1));
    let asked = ["DescribeLaunchTemplateVersions", "GetInstanceProfile", "DescribeSubnets"];
    assert_eq!(*world.asked.lock().unwrap(), asked);
    request[2].1 = "m7i.xlarge";
    assert_eq!(world.fault("CreateFleet", &request).await.1, "IdempotentParameterMismatch");
}

#[tokio::test]
async fn faults_are_told_as_json() {
    let world = World::calm().await;
    let inject = |json: &str| world.plane.inject(serde_json::from_str(json).unwrap());
    inject(r#"{"kind": "refuse", "code": "UnfulfillableCapacity", "market": "spot", "times": 1}"#);
    let answer = world.ok("CreateFleet", &order("spot")).await;
    assert_eq!(answer.list("errorSet").len(), 2);
    assert_eq!(answer.text_at("errorSet/item/errorCode"), "UnfulfillableCapacity");
    assert_eq!(answer.text_at("errorSet/item/lifecycle"), "spot");
    inject(r#"{"kind": "capacity", "instances": 0, "zone": "us-east-1a"}"#);
    let id = world.buy("spot").await;
    assert_eq!(
        world.plane.with(|ec2, _| ec2.instance(&id).unwrap().pool.zone.clone()),
        "us-east-1b"
    );
    inject(r#"{"kind": "quota", "on_demand": 0}"#);
    let answer = world.ok("CreateFleet", &order("on-demand")).await;
    let codes: Vec<_> = answer.list("errorSet").iter().map(|it| it.text_at("errorCode")).collect();
    assert_eq!(codes, ["VcpuLimitExceeded"; 2]);
    inject(r#"{"kind": "clear"}"#);
    inject(r#"{"kind": "launches", "fate": "dead"}"#);
    world.buy("on-demand").await;
    assert!(world.machines.boots().last().unwrap().dead);
    assert!(!inject(r#"{"kind": "interrupt", "instance": "i-0123456789abcdef0"}"#));
    assert!(
        serde_json::from_str::<Ec2Fault>(
            r#"{"kind": "interrupt", "instance": "i-1", "colour": 1}"#
        )
        .is_err()
    );
}

#[tokio::test]
async fn a_spot_notice_and_the_end_come_by_themselves() {
    let options = Options { boot: Span::seconds(5, 5), ..Options::calm() };
    let world = World::new(options, 600.0).await;
    let id = world.buy("spot").await;
    assert!(world.machines.boots()[0].boot_delay > Duration::from_secs(4));
    world.plane.inject(Ec2Fault::Interrupt { instance: id.clone() });
    assert_eq!(world.machines.told().last(), Some(&Told::Notice(id.clone())));
    world.machines.wait_for(Told::Terminate(id)).await;
    assert_eq!(world.plane.instances()[0].state_reason, "Server.SpotInstanceTermination");
}

#[tokio::test]
async fn tags_of_instances_are_ours_and_of_all_else_motos() {
    let world = World::calm().await;
    let id = world.buy("on-demand").await;
    let tag =
        [("ResourceId.1", id.as_str()), ("Tag.1.Key", "ostler:state"), ("Tag.1.Value", "ready")];
    world.ok("CreateTags", &tag).await;
    assert_eq!(world.plane.instances()[0].tags["ostler:state"], "ready");
    world.ok("DeleteTags", &tag[..2]).await;
    assert!(!world.plane.instances()[0].tags.contains_key("ostler:state"));
    world.ok("CreateTags", &[("ResourceId.1", "vol-1"), ("Tag.1.Key", "k")]).await;
    assert_eq!(world.asked.lock().unwrap().last().unwrap(), "CreateTags");
}

#[tokio::test]
async fn images_and_status_checks_are_told() {
    let world = World::calm().await;
    let answer = world.ok("DescribeImages", &[("ImageId.1", IMAGE)]).await;
    let image = answer.find("imagesSet/item").unwrap();
    for (path, value) in [
        ("imageId", IMAGE),
        ("imageState", "available"),
        ("architecture", "x86_64"),
        ("rootDeviceName", "/dev/sda1"),
        ("blockDeviceMapping/item/ebs/volumeSize", "8"),
    ] {
        assert_eq!(image.text_at(path), value, "{path}");
    }
    world.plane.inject(Ec2Fault::Launches { fate: Fate::Dead, times: None, seconds: None });
    let id = world.buy("on-demand").await;
    let answer = world.ok("DescribeInstanceStatus", &[("InstanceId.1", &id)]).await;
    let status = answer.find("instanceStatusSet/item").unwrap();
    assert_eq!(status.text_at("instanceStatus/status"), "impaired");
    assert_eq!(status.text_at("instanceState/name"), "running");
}
