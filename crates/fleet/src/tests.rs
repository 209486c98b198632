mod machines;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_ec2::config::Credentials;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::retry::RetryConfig;
use ostler_core::config::{Tier, Tiers};

use super::*;

/// The wire: answers in turn, and the requests that were sent, as parameters (JSON bodies under `json`).
#[derive(Clone, Debug, Default)]
struct Wire {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    requests: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let body = String::from_utf8(request.body().bytes().unwrap().to_vec()).unwrap();
        let seen = if body.starts_with('{') {
            BTreeMap::from([("json".to_owned(), body)])
        } else {
            body.split('&')
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap();
                    (decode(key), decode(value))
                })
                .collect()
        };
        self.requests.lock().unwrap().push(seen);
        let (status, body) = self.answers.lock().unwrap().pop_front().expect("one more answer");
        let response = HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body));
        HttpConnectorFuture::ready(Ok(response))
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(&after[..2]).unwrap();
            bytes.push(u8::from_str_radix(hex, 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[derive(Clone)]
struct TestClock(Arc<Mutex<Timestamp>>);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

struct Setup {
    wire: Wire,
    clock: TestClock,
    fleet: Ec2Fleet<TestClock>,
    tier: Tier,
}

const NOON: Timestamp = Timestamp::from_seconds(1_796_040_000);

/// A wire with these answers, and the SDK's configuration that uses it.
async fn wired(answers: impl IntoIterator<Item = (u16, String)>) -> (Wire, SdkConfig) {
    let wire =
        Wire { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Wire::default() };
    let connector = SharedHttpConnector::new(wire.clone());
    let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let config = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client_fn(move |_, _| connector.clone()))
        .region(Region::from_static("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "tests"))
        .retry_config(retries.with_max_attempts(3).with_max_backoff(Duration::from_millis(2)))
        .load()
        .await;
    (wire, config)
}

async fn setup(images: &str, answers: impl IntoIterator<Item = (u16, String)>) -> Setup {
    let (wire, config) = wired(answers).await;
    let settings = FleetSettings {
        owner: "acme".to_owned(),
        subnets: vec!["subnet-a".to_owned(), "subnet-b".to_owned()],
        on_demand_template: "lt-1:7".to_owned(),
        spot_template: "lt-2:8".to_owned(),
    };
    let clock = TestClock(Arc::new(Mutex::new(NOON)));
    let mut fleet = Ec2Fleet::new(&config, settings, clock.clone()).unwrap();
    fleet.unknown_again = [Duration::from_millis(1); 3];
    let tiers = Tiers::parse(&format!(
        r#"{{"tiers": [{{"name": "linux-x64", "labels": ["small"], "architecture": "x64",
            "images": {images}, "instance_types": ["m7i.large", "m6i.large"],
            "root_volume_gib": 40, "boot_timeout": "5m", "max_lifetime": "6h"}}]}}"#
    ));
    assert!(tiers.problems.is_empty(), "{:?}", tiers.problems);
    Setup { wire, clock, fleet, tier: tiers.get("linux-x64").unwrap().clone() }
}

impl Setup {
    async fn launch(&self, spot: bool) -> Result<Launch> {
        let order = LaunchOrder {
            runner: "web-1-abc",
            repository: "acme/web".to_owned(),
            tier: &self.tier,
            spot,
            token: "token-1".to_owned(),
            until: NOON + Duration::from_secs(7 * 3600 + 59),
        };
        self.fleet.launch(&order).await
    }

    fn requests(&self) -> Vec<BTreeMap<String, String>> {
        self.wire.requests.lock().unwrap().clone()
    }
}

fn images(list: &[(&str, &str, &str)]) -> (u16, String) {
    let item = |(id, architecture, state): &(&str, &str, &str)| {
        format!(
            "<item><imageId>{id}</imageId><imageState>{state}</imageState>\
             <architecture>{architecture}</architecture><rootDeviceName>/dev/sda1</rootDeviceName>\
             </item>"
        )
    };
    let items: String = list.iter().map(item).collect();
    (
        200,
        format!("<DescribeImagesResponse><imagesSet>{items}</imagesSet></DescribeImagesResponse>"),
    )
}

fn one_image() -> (u16, String) {
    images(&[("ami-1", "x86_64", "available")])
}

fn fleet(ids: &[&str], errors: &[(&str, &str)]) -> (u16, String) {
    let ids: String = ids.iter().map(|id| format!("<item>{id}</item>")).collect();
    let error = |(code, message): &(&str, &str)| {
        format!(
            "<item><lifecycle>spot</lifecycle><errorCode>{code}</errorCode>\
             <errorMessage>{message}</errorMessage></item>"
        )
    };
    let errors: String = errors.iter().map(error).collect();
    let bought = format!("<item><instanceIds>{ids}</instanceIds></item>");
    let body = format!(
        "<CreateFleetResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><fleetId>fleet-1</fleetId>\
         <errorSet>{errors}</errorSet><fleetInstanceSet>{bought}</fleetInstanceSet>\
         </CreateFleetResponse>"
    );
    (200, body)
}

fn fault(status: u16, code: &str) -> (u16, String) {
    let body = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>words</Message></Error></Errors>\
         <RequestID>r</RequestID></Response>"
    );
    (status, body)
}

fn page(instances: &[(&str, &str)], token: &str) -> (u16, String) {
    let item = |(id, state): &(&str, &str)| {
        format!(
            "<item><instancesSet><item><instanceId>{id}</instanceId><instanceState><name>{state}</name>\
             </instanceState><stateReason><code>C</code><message>why</message></stateReason>\
             <tagSet><item><key>ostler:owner</key><value>acme</value></item>\
             <item><key>ostler:runner</key><value>runner-of-{id}</value></item></tagSet>\
             </item></instancesSet></item>"
        )
    };
    let items: String = instances.iter().map(item).collect();
    let token =
        if token.is_empty() { String::new() } else { format!("<nextToken>{token}</nextToken>") };
    let body = format!(
        "<DescribeInstancesResponse><reservationSet>{items}</reservationSet>{token}\
         </DescribeInstancesResponse>"
    );
    (200, body)
}

fn parameters(values: &[(&str, &str)], invalid: &[&str]) -> (u16, String) {
    let known: Vec<_> = values
        .iter()
        .map(|(name, value)| serde_json::json!({"Name": name, "Value": value, "Type": "String"}))
        .collect();
    (200, serde_json::json!({"Parameters": known, "InvalidParameters": invalid}).to_string())
}

const ONE: &str = r#"["ami-1"]"#;

#[tokio::test]
async fn a_launch_asks_for_every_type_in_every_subnet_with_the_callers_token() {
    let setup = setup(ONE, [one_image(), fleet(&["i-1"], &[])]).await;
    let launch = setup.launch(true).await.unwrap();
    assert_eq!(launch, Launch::Started { instance: "i-1".to_owned(), surplus: vec![] });
    let request = &setup.requests()[1];
    let config = "LaunchTemplateConfigs.1";
    for (key, value) in [
        ("Action", "CreateFleet"),
        ("Type", "instant"),
        ("ClientToken", "token-1"),
        ("TargetCapacitySpecification.TotalTargetCapacity", "1"),
        ("TargetCapacitySpecification.DefaultTargetCapacityType", "spot"),
        ("SpotOptions.AllocationStrategy", "price-capacity-optimized"),
        ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateId", "lt-2"),
        ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version", "8"),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.2.ResourceType", "fleet"),
        ("TagSpecification.2.Tag.1.Key", "ostler:owner"),
        ("TagSpecification.2.Tag.1.Value", "acme"),
    ] {
        assert_eq!(request.get(key).map(String::as_str), Some(value), "{key}");
    }
    let pools: Vec<_> = (1..=4)
        .map(|n| {
            let part = |key: &str| request[&format!("{config}.Overrides.{n}.{key}")].clone();
            assert_eq!(part("ImageId"), "ami-1");
            assert_eq!(part("BlockDeviceMapping.1.DeviceName"), "/dev/sda1");
            assert_eq!(part("BlockDeviceMapping.1.Ebs.VolumeSize"), "40");
            (part("InstanceType"), part("SubnetId"))
        })
        .collect();
    let pool = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        pools,
        [
            pool("m7i.large", "subnet-a"),
            pool("m7i.large", "subnet-b"),
            pool("m6i.large", "subnet-a"),
            pool("m6i.large", "subnet-b"),
        ]
    );
    assert!(!request.contains_key(&format!("{config}.Overrides.5.InstanceType")));
    let tags: BTreeMap<_, _> = (1..=9)
        .map(|n| {
            let part = |key: &str| request[&format!("TagSpecification.1.Tag.{n}.{key}")].clone();
            (part("Key"), part("Value"))
        })
        .collect();
    let expected = [
        ("Name", "web-1-abc"),
        ("ostler:boot-timeout", "300"),
        ("ostler:max-lifetime", "21600"),
        ("ostler:owner", "acme"),
        ("ostler:repo", "acme/web"),
        ("ostler:runner", "web-1-abc"),
        ("ostler:state", "used"),
        ("ostler:tier", "linux-x64"),
        // Rounded down, so that a repetition seconds later is the same call.
        ("ostler:until", &(NOON + Duration::from_secs(7 * 3600)).to_string()),
    ];
    assert_eq!(tags, BTreeMap::from(expected.map(|(a, b)| (a.to_owned(), b.to_owned()))));
}

#[tokio::test]
async fn on_demand_has_its_own_template_and_no_spot_options() {
    let setup = setup(ONE, [one_image(), fleet(&["i-1"], &[])]).await;
    setup.launch(false).await.unwrap();
    let request = &setup.requests()[1];
    let template = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateId";
    assert_eq!(request[template], "lt-1");
    assert_eq!(request["TargetCapacitySpecification.DefaultTargetCapacityType"], "on-demand");
    assert!(!request.keys().any(|key| key.starts_with("SpotOptions")));
}

#[tokio::test]
async fn ol_04_errors_inside_a_200_are_refusals_the_gravest_of_which_is_told() {
    let capacity = ("InsufficientInstanceCapacity", "none here");
    let zone = (
        "InvalidFleetConfiguration",
        "Your requested instance type (m7i.large) is not supported in your requested Availability Zone (a).",
    );
    for (errors, shortage, said) in [
        (vec![zone, capacity], Shortage::Capacity, "and 1 more errors"),
        (vec![zone, zone], Shortage::Configuration, "a subnet's zone may not have that type"),
        (vec![capacity, capacity], Shortage::Capacity, "none here (and 1 more errors)"),
        (vec![capacity, ("VcpuLimitExceeded", "m")], Shortage::Quota, "VcpuLimitExceeded"),
        (vec![("NewCode", "m"), capacity], Shortage::Unknown, "NewCode"),
        (vec![("RequestLimitExceeded", "m")], Shortage::Throttled, "RequestLimitExceeded"),
        (
            vec![capacity, ("InvalidSubnetID.NotFound", "m")],
            Shortage::Configuration,
            "subnets that exist",
        ),
        (vec![], Shortage::Unknown, "neither an instance nor an error"),
    ] {
        let setup = setup(ONE, [one_image(), fleet(&[], &errors)]).await;
        match setup.launch(true).await.unwrap() {
            Launch::Refused { shortage: told, text } if told == shortage && text.contains(said) => {
            }
            other => panic!("{errors:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_instance_wins_over_errors_and_a_second_one_is_surplus() {
    let errors = [("InsufficientInstanceCapacity", "none here")];
    let setup = setup(ONE, [one_image(), fleet(&["i-1", "i-2"], &errors)]).await;
    let expected = Launch::Started { instance: "i-1".to_owned(), surplus: vec!["i-2".to_owned()] };
    assert_eq!(setup.launch(true).await.unwrap(), expected);
}

#[tokio::test]
async fn a_token_used_with_other_parameters_is_told_as_such() {
    let setup = setup(ONE, [one_image(), fault(400, "IdempotentParameterMismatch")]).await;
    assert_eq!(setup.launch(true).await.unwrap(), Launch::TokenUsed);
}

#[tokio::test]
async fn a_call_whose_effect_is_unknown_is_to_be_repeated_with_the_same_token() {
    for (status, code) in [(503, "RequestLimitExceeded"), (500, "InternalError")] {
        let answers = [one_image(), fault(status, code), fault(status, code), fault(status, code)];
        let setup = setup(ONE, answers).await;
        match (setup.launch(true).await, status) {
            (Ok(Launch::Busy { text }), 503) if text.contains(code) => {}
            (Err(Error::Transient(_)), 500) => {}
            other => panic!("{code}: {other:?}"),
        }
        let tokens: Vec<_> =
            setup.requests()[1..].iter().map(|it| it["ClientToken"].clone()).collect();
        assert_eq!(tokens, ["token-1"; 3], "{code}");
    }
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_found() {
    let answers = [one_image(), fault(500, "InternalError"), fleet(&["i-1"], &[])];
    let setup = setup(ONE, answers).await;
    assert!(matches!(setup.launch(true).await.unwrap(), Launch::Started { .. }));
}

#[tokio::test]
async fn a_call_that_is_refused_as_a_whole_is_a_refusal() {
    for (code, shortage) in [
        ("UnauthorizedOperation", Shortage::Configuration),
        ("InvalidLaunchTemplateId.NotFound", Shortage::Configuration),
        ("InstanceLimitExceeded", Shortage::Quota),
    ] {
        let setup = setup(ONE, [one_image(), fault(400, code)]).await;
        match setup.launch(false).await.unwrap() {
            Launch::Refused { shortage: told, text } if told == shortage && text.contains(code) => {
            }
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn images_come_from_parameters_and_are_read_every_five_minutes() {
    let names = r#"["/ostler/images/a", "ami-2"]"#;
    let read = || {
        [
            parameters(&[("/ostler/images/a", "ami-1\n")], &[]),
            images(&[("ami-2", "x86_64", "available"), ("ami-1", "x86_64", "available")]),
        ]
    };
    let [p, d] = read();
    let [p2, d2] = read();
    let bought = || fleet(&["i-1"], &[]);
    let setup = setup(names, [p, d, bought(), bought(), p2, d2, bought()]).await;
    setup.launch(true).await.unwrap();
    let first = &setup.requests()[2];
    let image = |n: u8| first[&format!("LaunchTemplateConfigs.1.Overrides.{n}.ImageId")].clone();
    // In the tier's order, whatever EC2's: the call must be the same each time.
    assert_eq!((image(1), image(5)), ("ami-1".to_owned(), "ami-2".to_owned()));
    *setup.clock.0.lock().unwrap() = NOON + Duration::from_secs(299);
    setup.launch(true).await.unwrap();
    assert_eq!(setup.requests().len(), 4);
    *setup.clock.0.lock().unwrap() = NOON + Duration::from_secs(300);
    setup.launch(true).await.unwrap();
    assert_eq!(setup.requests().len(), 7);
    assert!(setup.requests()[0]["json"].contains("/ostler/images/a"));
}

#[tokio::test]
async fn an_image_that_is_wrong_costs_the_others_nothing() {
    let list = r#"["ami-1", "ami-2", "ami-3", "/ostler/images/gone"]"#;
    let answers = [
        parameters(&[], &["/ostler/images/gone"]),
        fault(400, "InvalidAMIID.NotFound"),
        one_image(),
        fault(400, "InvalidAMIID.NotFound"),
        images(&[("ami-3", "arm64", "available")]),
        fleet(&["i-1"], &[]),
    ];
    let setup = setup(list, answers).await;
    assert!(matches!(setup.launch(true).await.unwrap(), Launch::Started { .. }));
    let request = setup.requests().pop().unwrap();
    let used = request.iter().filter(|(key, _)| key.ends_with("ImageId"));
    assert!(used.clone().count() == 4 && used.clone().all(|(_, image)| image == "ami-1"));
}

#[tokio::test]
async fn a_tier_without_a_usable_image_says_what_to_mend() {
    for (list, answers, said) in [
        (r#"["ami-1"]"#, vec![fault(400, "InvalidAMIID.NotFound")], "correct the tier's images"),
        (r#"["ami-1"]"#, vec![images(&[("ami-1", "arm64", "available")])], "is for arm64"),
        (r#"["ami-1"]"#, vec![images(&[("ami-1", "x86_64", "pending")])], "is pending"),
        (r#"["/a"]"#, vec![parameters(&[], &["/a"])], "no parameter /a"),
        (r#"["/a"]"#, vec![parameters(&[("/a", "ubuntu")], &[])], "does not hold an image id"),
        (
            r#"["/a"]"#,
            vec![(400, r#"{"__type": "AccessDeniedException", "message": "no"}"#.to_owned())],
            "<prefix>/images/",
        ),
    ] {
        let setup = setup(list, answers).await;
        match setup.launch(true).await.unwrap() {
            Launch::Refused { shortage: Shortage::Configuration, text } if text.contains(said) => {}
            other => panic!("{said}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn images_that_cannot_be_looked_up_are_an_error_that_passes() {
    let setup = setup(
        ONE,
        [fault(503, "Unavailable"), fault(503, "Unavailable"), fault(503, "Unavailable")],
    )
    .await;
    assert!(matches!(setup.launch(true).await, Err(Error::Transient(_))));
}

#[tokio::test]
async fn re_12_lists_are_read_to_the_end_through_empty_pages() {
    let answers = [
        page(&[("i-1", "pending"), ("i-2", "running")], "a"),
        page(&[], "b"),
        page(&[("i-3", "stopping"), ("i-4", "shutting-down"), ("i-5", "terminated")], ""),
    ];
    let setup = setup(ONE, answers).await;
    let found = setup.fleet.of_runner("web-1*").await.unwrap();
    let states: Vec<_> = found.iter().map(|it| (it.id.as_str(), it.state)).collect();
    assert_eq!(
        states,
        [
            ("i-1", InstanceState::Pending),
            ("i-2", InstanceState::Running),
            ("i-3", InstanceState::Stopped),
            ("i-4", InstanceState::Ended),
            ("i-5", InstanceState::Ended),
        ]
    );
    assert_eq!(found[4].reason.as_deref(), Some("why"));
    let requests = setup.requests();
    assert_eq!(requests[0]["Filter.1.Name"], "tag:ostler:owner");
    assert_eq!(requests[0]["Filter.1.Value.1"], "acme");
    assert_eq!(requests[0]["Filter.2.Value.1"], "web-1\\*");
    assert_eq!(requests[2]["NextToken"], "b");
}

#[tokio::test]
async fn the_machines_of_a_tier_are_listed_over_all_pages_ended_ones_included() {
    let answers = [page(&[("i-1", "pending")], "a"), page(&[("i-2", "terminated")], "")];
    let setup = setup(ONE, answers).await;
    let listed = setup.fleet.in_tier("linux-x64").await.unwrap();
    let of = |id: &str, state| (format!("runner-of-{id}"), state);
    assert_eq!(listed, [of("i-1", InstanceState::Pending), of("i-2", InstanceState::Ended)]);
    let request = &setup.requests()[1];
    assert_eq!(request["Filter.2.Name"], "tag:ostler:tier");
    assert!(!request.contains_key("Filter.3.Name"), "of whatever state");
}

#[tokio::test]
async fn re_15_only_ec2s_word_makes_an_instance_gone() {
    let answers = [
        fault(400, "InvalidInstanceID.NotFound"),
        page(&[], ""),
        page(&[("i-1", "running")], ""),
        fault(403, "UnauthorizedOperation"),
    ];
    let setup = setup(ONE, answers).await;
    assert_eq!(setup.fleet.instance("i-1").await.unwrap(), None);
    assert_eq!(setup.fleet.instance("i-1").await.unwrap(), None);
    assert_eq!(setup.fleet.instance("i-1").await.unwrap().unwrap().state, InstanceState::Running);
    assert!(matches!(setup.fleet.instance("i-1").await, Err(Error::Permanent(_))));
}

#[tokio::test]
async fn re_02_an_end_names_one_instance_and_believes_not_found_only_after_a_while() {
    let ended = || (200, "<TerminateInstancesResponse></TerminateInstancesResponse>".to_owned());
    let unknown = || fault(400, "InvalidInstanceID.NotFound");
    let setup = setup(
        ONE,
        [
            unknown(),
            ended(),
            unknown(),
            unknown(),
            unknown(),
            unknown(),
            fault(400, "OperationNotPermitted"),
        ],
    )
    .await;
    setup.fleet.terminate("i-1").await.unwrap();
    assert_eq!(setup.requests().len(), 2);
    assert_eq!(setup.requests()[1]["InstanceId.1"], "i-1");
    assert!(!setup.requests()[1].contains_key("InstanceId.2"));
    setup.fleet.terminate("i-2").await.unwrap();
    assert_eq!(setup.requests().len(), 6);
    let error = setup.fleet.terminate("i-3").await.unwrap_err();
    assert!(matches!(&error, Error::Permanent(text) if text.contains("termination protection")));
}

#[test]
fn settings_that_are_wrong_are_named() {
    let config = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    let clock = TestClock(Arc::new(Mutex::new(NOON)));
    let good = FleetSettings {
        owner: "acme".to_owned(),
        subnets: vec!["subnet-a".to_owned()],
        on_demand_template: "lt-1:1".to_owned(),
        spot_template: "lt-2:1".to_owned(),
    };
    assert!(Ec2Fleet::new(&config, good.clone(), clock.clone()).is_ok());
    for (wrong, named) in [
        (FleetSettings { spot_template: "lt-2".to_owned(), ..good.clone() }, "TEMPLATE_SPOT"),
        (FleetSettings { on_demand_template: ":1".to_owned(), ..good.clone() }, "ON_DEMAND"),
        (FleetSettings { subnets: vec![], ..good.clone() }, "SUBNET_IDS"),
        (FleetSettings { owner: String::new(), ..good }, "OWNER"),
    ] {
        let error = Ec2Fleet::new(&config, wrong, clock.clone()).err().unwrap();
        assert!(error.to_string().contains(named), "{error}");
    }
}
