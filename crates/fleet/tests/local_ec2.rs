//! The adapter, over the real SDK and HTTP, against the local world's EC2: each reads what the other
//! writes.

#![allow(clippy::unwrap_used, reason = "clippy exempts test functions, not their helpers")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use axum::http::StatusCode;
use ostler_core::config::{Tier, Tiers};
use ostler_core::ports::{Clock, Fleet, InstanceState, Launch, LaunchOrder, Shortage};
use ostler_core::time::Timestamp;
use ostler_fleet::{Ec2Fleet, FleetSettings};
use ostler_local::aws::form;
use ostler_local::ec2::{BootRequest, Ec2Fault, Ec2Plane, InstanceHost, MarketName};
use ostler_local::time::WorldClock;

const IMAGE: &str = "ami-00000000000000001";

/// What the plane asks moto for.
fn moto(action: &str) -> &'static str {
    match action {
        "DescribeLaunchTemplateVersions" => {
            "<r><launchTemplateVersionSet><item><launchTemplateId>lt-1</launchTemplateId>\
             <versionNumber>1</versionNumber><launchTemplateData>\
             <iamInstanceProfile><arn>arn:aws:iam::1:instance-profile/p</arn></iamInstanceProfile>\
             <instanceInitiatedShutdownBehavior>terminate</instanceInitiatedShutdownBehavior>\
             <userData>IyEvYmluL2Jhc2gK</userData></launchTemplateData></item>\
             </launchTemplateVersionSet></r>"
        }
        "GetInstanceProfile" => {
            "<r><GetInstanceProfileResult><InstanceProfile><Arn>a</Arn><Roles><member>\
             <RoleId>AROA1</RoleId></member></Roles></InstanceProfile></GetInstanceProfileResult></r>"
        }
        "DescribeSubnets" => {
            "<r><subnetSet><item><subnetId>subnet-a</subnetId><vpcId>vpc-1</vpcId>\
             <availabilityZone>us-east-1a</availabilityZone></item><item>\
             <subnetId>subnet-b</subnetId><vpcId>vpc-1</vpcId>\
             <availabilityZone>us-east-1b</availabilityZone></item></subnetSet></r>"
        }
        other => panic!("moto is not asked for {other}"),
    }
}

#[derive(Default)]
struct Machines(Mutex<Vec<BootRequest>>);

impl InstanceHost for Machines {
    fn boot(&self, boot: BootRequest) {
        self.0.lock().unwrap().push(boot);
    }
    fn terminate(&self, _: &str) {}
}

struct RealClock(WorldClock);

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

async fn serve(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

struct World {
    plane: Arc<Ec2Plane>,
    machines: Arc<Machines>,
    fleet: Ec2Fleet<RealClock>,
    tier: Tier,
}

impl World {
    async fn start() -> Self {
        let answer = |body: String| async move { moto(&form(body.as_bytes())["Action"]) };
        let moto = serve(axum::Router::new().fallback(answer)).await;
        let machines = Arc::new(Machines::default());
        let clock = WorldClock::starting_now(60.0);
        let plane = Ec2Plane::new(clock, moto, Arc::clone(&machines) as _);
        plane.register_plain_image(IMAGE, "x86_64", "/dev/xvda");
        let served = Arc::clone(&plane);
        let answer = move |body: String| {
            let plane = Arc::clone(&served);
            async move {
                if body.starts_with('{') {
                    // The only call of another service: SSM GetParameters.
                    let parameter =
                        serde_json::json!({"Name": "/ostler/images/x64", "Value": IMAGE});
                    let known = serde_json::json!({"Parameters": [parameter]});
                    return (StatusCode::OK, known.to_string());
                }
                let answer = plane.serve(&form(body.as_bytes())).await;
                (StatusCode::from_u16(answer.status).unwrap(), answer.body)
            }
        };
        let edge = serve(axum::Router::new().fallback(answer)).await;
        let credentials = aws_sdk_ec2::config::Credentials::new("fn-x", "x", None, None, "tests");
        let config: SdkConfig = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(edge)
            .region(Region::from_static("us-east-1"))
            .credentials_provider(credentials)
            .load()
            .await;
        let settings = FleetSettings {
            owner: "acme".to_owned(),
            subnets: vec!["subnet-a".to_owned(), "subnet-b".to_owned()],
            on_demand_template: "lt-1:1".to_owned(),
            spot_template: "lt-1:1".to_owned(),
        };
        let fleet = Ec2Fleet::new(&config, settings, RealClock(clock)).unwrap();
        let tiers = Tiers::parse(
            r#"{"tiers": [{"name": "t", "architecture": "x64", "images": ["/ostler/images/x64"],
                "instance_types": ["m7i.large", "m6i.large"], "root_volume_gib": 40}]}"#,
        );
        let tier = tiers.get("t").unwrap().clone();
        Self { plane, machines, fleet, tier }
    }

    async fn launch(&self, runner: &str, token: &str, spot: bool) -> Launch {
        let order = LaunchOrder {
            runner,
            repository: "acme/web".to_owned(),
            tier: &self.tier,
            spot,
            token: token.to_owned(),
            until: Timestamp::from_seconds(1_800_000_000),
        };
        self.fleet.launch(&order).await.unwrap()
    }

    async fn started(&self, runner: &str, token: &str) -> String {
        match self.launch(runner, token, true).await {
            Launch::Started { instance, surplus } if surplus.is_empty() => instance,
            other => panic!("{other:?}"),
        }
    }

    /// EC2's lists lag: asks until the runner's instances are in that state.
    async fn wait_for(&self, runner: &str, state: InstanceState) -> String {
        for _ in 0..500 {
            let found = self.fleet.of_runner(runner).await.unwrap();
            if let Some(found) = found.into_iter().find(|it| it.state == state) {
                return found.id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no instance of {runner} is {state:?}: {:?}", self.plane.instances());
    }
}

/// Machines of the tier that have not ended.
async fn live(world: &World) -> usize {
    let listed = world.fleet.in_tier("t").await.unwrap();
    listed.iter().filter(|(_, state)| *state != InstanceState::Ended).count()
}

#[tokio::test]
async fn a_machine_lives_from_launch_to_end() {
    let world = World::start().await;
    let id = world.started("web-1", "token-1").await;
    assert_eq!(world.started("web-1", "token-1").await, id);
    assert_eq!(world.wait_for("web-1", InstanceState::Running).await, id);
    let boots = world.machines.0.lock().unwrap().clone();
    assert_eq!(boots.len(), 1);
    assert_eq!(
        (boots[0].role_id.as_str(), &boots[0].user_data[..]),
        ("AROA1", &b"#!/bin/bash\n"[..])
    );
    assert_eq!(boots[0].tags["ostler:runner"], "web-1");
    let volumes = world.plane.with(|ec2, _| ec2.instance(&id).unwrap().volumes.clone());
    assert_eq!(volumes, [("/dev/xvda".to_owned(), 40)]);
    assert_eq!(live(&world).await, 1);
    world.fleet.terminate(&id).await.unwrap();
    world.fleet.terminate(&id).await.unwrap();
    let ended = world.fleet.instance(&id).await.unwrap().unwrap();
    assert_eq!(ended.state, InstanceState::Ended);
    assert!(ended.reason.unwrap().contains("User initiated"));
    assert_eq!(live(&world).await, 0);
    assert_eq!(world.fleet.instance("i-0123456789abcdef0").await.unwrap(), None);
}

#[tokio::test]
async fn an_end_right_after_the_launch_waits_until_ec2_knows_the_instance() {
    let world = World::start().await;
    for n in 0..5 {
        let id = world.started(&format!("web-{n}"), &format!("token-{n}")).await;
        world.fleet.terminate(&id).await.unwrap();
    }
    assert!(
        world
            .plane
            .instances()
            .iter()
            .all(|it| it.state == "shutting-down" || it.state == "terminated")
    );
}

#[tokio::test]
async fn refusals_and_used_tokens_are_understood() {
    let world = World::start().await;
    let none = |market| Ec2Fault::Capacity {
        instances: 0,
        market: Some(market),
        instance_type: None,
        zone: None,
    };
    world.plane.inject(none(MarketName::Spot));
    world.plane.inject(Ec2Fault::Quota { on_demand: Some(0), spot: None });
    for (token, spot, expected) in [("a", true, Shortage::Capacity), ("b", false, Shortage::Quota)]
    {
        match world.launch("web-1", token, spot).await {
            Launch::Refused { shortage, text } if shortage == expected => {
                assert!(text.contains("(and 3 more errors)"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    world.plane.inject(Ec2Fault::Clear);
    assert_eq!(world.launch("web-2", "a", true).await, Launch::TokenUsed);
    assert!(matches!(world.launch("web-2", "c", true).await, Launch::Started { .. }));
}

#[tokio::test]
async fn lists_of_many_pages_are_complete() {
    let world = World::start().await;
    for n in 0..12 {
        world.started("web-1", &format!("token-{n}")).await;
    }
    // Pages come short and empty by chance; by now all are listed.
    for _ in 0..500 {
        if world.fleet.of_runner("web-1").await.unwrap().len() == 12 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..5 {
        assert_eq!(world.fleet.of_runner("web-1").await.unwrap().len(), 12);
        assert_eq!(live(&world).await, 12);
    }
}
