use rand::SeedableRng;

use super::*;

const NOON: Timestamp = Timestamp::from_seconds(1_796_040_000);

fn after(seconds: u64) -> Timestamp {
    NOON + Duration::from_secs(seconds)
}

fn image(id: &str, architecture: &str) -> Image {
    Image {
        id: id.to_owned(),
        name: "ubuntu".to_owned(),
        architecture: architecture.to_owned(),
        root_device: "/dev/sda1".to_owned(),
        root_gib: 8,
        state: "available".to_owned(),
        owner: "123456789012".to_owned(),
    }
}

const X64: &str = "ami-00000000000000001";
const ARM: &str = "ami-00000000000000002";

fn ec2(options: Options) -> Ec2 {
    let mut ec2 = Ec2::new(options, StdRng::seed_from_u64(7));
    ec2.add_subnet("subnet-a", "us-east-1a");
    ec2.add_subnet("subnet-b", "us-east-1b");
    ec2.add_image(image(X64, "x86_64"));
    ec2.add_image(image(ARM, "arm64"));
    ec2
}

fn calm() -> Ec2 {
    ec2(Options::calm())
}

fn on(instance_type: &str, subnet: &str) -> Override {
    Override {
        instance_type: Some(instance_type.to_owned()),
        subnet: Some(subnet.to_owned()),
        image: Some(X64.to_owned()),
        ..Override::default()
    }
}

/// Two types in two zones.
fn order(token: &str, market: Market) -> FleetRequest {
    FleetRequest {
        client_token: Some(token.to_owned()),
        template: Arc::new(Template { id: "lt-1".to_owned(), ..Template::default() }),
        overrides: vec![
            on("m7i.large", "subnet-a"),
            on("m7i.large", "subnet-b"),
            on("m6i.large", "subnet-a"),
            on("m6i.large", "subnet-b"),
        ],
        market,
        capacity: 1,
        allocation: Allocation::Capacity,
        tags: Tags::from([("ostler:runner".to_owned(), format!("runner-{token}"))]),
    }
}

fn ids(answer: &FleetAnswer) -> Vec<String> {
    answer.instances.iter().flat_map(|it| it.ids.clone()).collect()
}

fn codes(answer: &FleetAnswer) -> Vec<&str> {
    answer.errors.iter().map(|it| &*it.fault.code).collect()
}

fn buy(ec2: &mut Ec2, now: Timestamp, request: &FleetRequest) -> String {
    let answer = ec2.create_fleet(now, request).unwrap();
    ids(&answer).into_iter().next().unwrap_or_else(|| panic!("nothing bought: {answer:?}"))
}

fn by_ids(ids: &[&str]) -> DescribeQuery {
    DescribeQuery { ids: ids.iter().map(|it| (*it).to_owned()).collect(), ..Default::default() }
}

fn by(name: &str, values: &[&str]) -> DescribeQuery {
    DescribeQuery { filters: vec![Filter::new(name, values)], ..Default::default() }
}

fn state(ec2: &mut Ec2, now: Timestamp, id: &str) -> State {
    ec2.describe_instances(now, &by_ids(&[id])).unwrap().items[0].state(now)
}

fn seen(ec2: &mut Ec2, now: Timestamp, query: &DescribeQuery) -> usize {
    ec2.describe_instances(now, query).unwrap().items.len()
}

fn owned(id: &str) -> Vec<String> {
    vec![id.to_owned()]
}

#[test]
fn a_token_repeated_answers_the_same_instance_and_launches_nothing() {
    let mut ec2 = ec2(Options::default());
    let first = ec2.create_fleet(NOON, &order("a", Market::Spot)).unwrap();
    let again = ec2.create_fleet(after(90), &order("a", Market::Spot)).unwrap();
    assert_eq!((first, ec2.instances().count()), (again, 1));
}

#[test]
fn a_token_with_other_parameters_is_a_mismatch_even_if_it_launched_nothing() {
    let mut ec2 = calm();
    ec2.limit_capacity(PoolMatch::default(), 0);
    let answer = ec2.create_fleet(NOON, &order("a", Market::Spot)).unwrap();
    assert_eq!(codes(&answer), ["InsufficientInstanceCapacity"; 4]);
    let fault = ec2.create_fleet(NOON, &order("a", Market::OnDemand)).unwrap_err();
    assert_eq!((&*fault.code, fault.status()), ("IdempotentParameterMismatch", 400));
    // The same parameters get the same errors, though there is capacity by now.
    ec2.restore_capacity();
    assert_eq!(ec2.create_fleet(after(9), &order("a", Market::Spot)).unwrap(), answer);
    assert_eq!(buy(&mut ec2, after(9), &order("b", Market::Spot)).len(), 19);
}

#[test]
fn a_call_that_was_throttled_leaves_no_token() {
    let mut ec2 = ec2(Options::default());
    let tokens: Vec<_> = (0..51).map(|n| n.to_string()).collect();
    let mut faults = Vec::new();
    for token in &tokens {
        if let Err(fault) = ec2.create_fleet(NOON, &order(token, Market::OnDemand)) {
            faults.push(fault);
        }
    }
    assert_eq!(faults, [Fault::new("RequestLimitExceeded", "Request limit exceeded.")]);
    assert_eq!(faults[0].status(), 503);
    // Five calls a second come back.
    assert!(!buy(&mut ec2, after(1), &order("50", Market::Spot)).is_empty());
}

#[test]
fn too_long_tokens_and_bad_tags_are_refused() {
    let mut ec2 = calm();
    let mut request = order(&"x".repeat(65), Market::Spot);
    assert_eq!(ec2.create_fleet(NOON, &request).unwrap_err().code, "InvalidParameterValue");
    request = order("a", Market::Spot);
    request.tags.insert("aws:x".to_owned(), String::new());
    assert_eq!(ec2.create_fleet(NOON, &request).unwrap_err().code, "InvalidParameterValue");
    request = order("a", Market::Spot);
    request.tags.insert("k".to_owned(), "v".repeat(257));
    assert_eq!(ec2.create_fleet(NOON, &request).unwrap_err().code, "InvalidParameterValue");
}

#[test]
fn ol_03_capacity_is_lacking_by_type_zone_and_market() {
    let mut ec2 = calm();
    let no = |instance_type: &str, zone: &str| PoolMatch {
        instance_type: Some(instance_type.to_owned()),
        zone: Some(zone.to_owned()),
        market: Some(Market::OnDemand),
    };
    ec2.limit_capacity(no("m7i.large", "us-east-1a"), 0);
    ec2.limit_capacity(no("m7i.large", "us-east-1b"), 1);
    ec2.limit_capacity(no("m6i.large", "us-east-1a"), 2);
    ec2.limit_capacity(no("m6i.large", "us-east-1b"), 0);
    let mut zones = Vec::new();
    for token in ["a", "b", "c"] {
        let id = buy(&mut ec2, NOON, &order(token, Market::OnDemand));
        let pool = &ec2.instance(&id).unwrap().pool;
        zones.push((pool.instance_type.clone(), pool.zone.clone()));
    }
    let pool = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        zones,
        [
            pool("m6i.large", "us-east-1a"),
            pool("m6i.large", "us-east-1a"),
            pool("m7i.large", "us-east-1b")
        ]
    );
    let answer = ec2.create_fleet(NOON, &order("d", Market::OnDemand)).unwrap();
    assert_eq!(codes(&answer), ["InsufficientInstanceCapacity"; 4]);
    assert_eq!(buy(&mut ec2, NOON, &order("e", Market::Spot)).len(), 19);
}

#[test]
fn an_ended_instance_gives_its_capacity_back() {
    let mut ec2 = calm();
    ec2.limit_capacity(PoolMatch::default(), 0);
    ec2.limit_capacity(
        PoolMatch { instance_type: Some("m7i.large".to_owned()), ..PoolMatch::default() },
        1,
    );
    let first = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    buy(&mut ec2, NOON, &order("b", Market::OnDemand));
    assert!(ids(&ec2.create_fleet(NOON, &order("c", Market::OnDemand)).unwrap()).is_empty());
    ec2.terminate_instances(NOON, &owned(&first)).unwrap();
    assert!(!buy(&mut ec2, after(1), &order("d", Market::OnDemand)).is_empty());
}

#[test]
fn ol_04_errors_and_an_instance_come_in_one_answer() {
    let mut ec2 = calm();
    ec2.add_rule(LaunchRule {
        pools: PoolMatch::default(),
        subnet: Some("subnet-a".to_owned()),
        fault: Fault::new("UnfulfillableCapacity", "Unable to fulfill capacity"),
        times: Some(1),
    });
    let answer = ec2.create_fleet(NOON, &order("a", Market::Spot)).unwrap();
    assert_eq!((codes(&answer), ids(&answer).len()), (vec!["UnfulfillableCapacity"], 1));
    assert_eq!((answer.errors[0].place, answer.instances[0].place), (0, 1));
    // The rule was for one call.
    assert!(codes(&ec2.create_fleet(NOON, &order("b", Market::Spot)).unwrap()).is_empty());
}

#[test]
fn a_rule_counts_calls_not_overrides() {
    let mut ec2 = calm();
    ec2.add_rule(LaunchRule {
        pools: PoolMatch::default(),
        subnet: None,
        fault: Fault::new("InsufficientInstanceCapacity", "none"),
        times: Some(2),
    });
    for (token, bought) in [("a", 0), ("b", 0), ("c", 1)] {
        let answer = ec2.create_fleet(NOON, &order(token, Market::Spot)).unwrap();
        assert_eq!(ids(&answer).len(), bought, "{token}");
    }
}

#[test]
fn ol_05_quotas_are_per_market_and_counted_in_vcpus() {
    let options = Options { on_demand_vcpus: Some(4), spot_vcpus: Some(2), ..Options::calm() };
    let mut ec2 = ec2(options);
    let first = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    buy(&mut ec2, NOON, &order("b", Market::OnDemand));
    let answer = ec2.create_fleet(NOON, &order("c", Market::OnDemand)).unwrap();
    assert_eq!(codes(&answer), ["VcpuLimitExceeded"; 4]);
    buy(&mut ec2, NOON, &order("d", Market::Spot));
    let answer = ec2.create_fleet(NOON, &order("e", Market::Spot)).unwrap();
    assert_eq!(codes(&answer), ["MaxSpotInstanceCountExceeded"; 4]);
    ec2.terminate_instances(NOON, &owned(&first)).unwrap();
    buy(&mut ec2, after(1), &order("f", Market::OnDemand));
}

#[test]
fn mistakes_of_configuration_are_errors_of_their_override() {
    let mut ec2 = calm();
    let mut request = order("a", Market::OnDemand);
    request.overrides = vec![
        Override { image: Some("ami-0000000000000000f".to_owned()), ..on("m7i.large", "subnet-a") },
        Override { image: Some("ubuntu".to_owned()), ..on("m7i.large", "subnet-a") },
        Override { image: Some(ARM.to_owned()), ..on("m7i.large", "subnet-a") },
        on("m7g.large", "subnet-a"),
        on("m7i.large", "subnet-x"),
        Override {
            devices: vec![Device { name: "/dev/sda1".to_owned(), gib: Some(4) }],
            ..on("m7i.large", "subnet-a")
        },
        on("m7i.large", "subnet-b"),
    ];
    let answer = ec2.create_fleet(NOON, &request).unwrap();
    assert_eq!(
        codes(&answer),
        [
            "InvalidAMIID.NotFound",
            "InvalidAMIID.Malformed",
            "InvalidParameterValue",
            "InvalidParameterValue",
            "InvalidSubnetID.NotFound",
            "InvalidBlockDeviceMapping",
        ]
    );
    assert_eq!(answer.instances[0].place, 6);
}

#[test]
fn ol_12_ol_13_profile_and_user_data_fail_every_override() {
    let mut ec2 = calm();
    let mut request = order("a", Market::OnDemand);
    let fault = Fault::new("InvalidParameterValue", "Invalid IAM Instance Profile name");
    request.template = Arc::new(Template { fault: Some(fault.clone()), ..Template::default() });
    let answer = ec2.create_fleet(NOON, &request).unwrap();
    assert!(answer.errors.iter().all(|error| error.fault == fault) && answer.errors.len() == 4);
    request = order("b", Market::OnDemand);
    request.template =
        Arc::new(Template { user_data: vec![b'x'; 16_385].into(), ..Template::default() });
    let answer = ec2.create_fleet(NOON, &request).unwrap();
    assert_eq!(codes(&answer), ["InvalidParameterValue"; 4]);
}

#[test]
fn a_volume_under_another_name_than_the_root_device_is_a_second_volume() {
    let mut ec2 = calm();
    let mut request = order("a", Market::OnDemand);
    request.overrides.truncate(1);
    request.overrides[0].devices = vec![Device { name: "/dev/xvda".to_owned(), gib: Some(40) }];
    let id = buy(&mut ec2, NOON, &request);
    let device = |name: &str, gib| (name.to_owned(), gib);
    assert_eq!(
        ec2.instance(&id).unwrap().volumes,
        [device("/dev/sda1", 8), device("/dev/xvda", 40)]
    );
    request.overrides[0].devices[0].name = "/dev/sda1".to_owned();
    request.client_token = Some("b".to_owned());
    let id = buy(&mut ec2, NOON, &request);
    assert_eq!(ec2.instance(&id).unwrap().volumes, [device("/dev/sda1", 40)]);
}

#[test]
fn spot_requests_have_the_templates_tags_and_fail_an_on_demand_launch() {
    let mut ec2 = calm();
    let tag = Tags::from([("ostler:owner".to_owned(), "acme".to_owned())]);
    let template = Arc::new(Template { spot_request_tags: tag.clone(), ..Template::default() });
    let mut request = order("a", Market::OnDemand);
    request.template = Arc::clone(&template);
    let answer = ec2.create_fleet(NOON, &request).unwrap();
    assert!(answer.errors[0].fault.message.contains("cannot specify tags for Spot"));
    let mut request = order("b", Market::Spot);
    request.template = template;
    let id = buy(&mut ec2, NOON, &request);
    assert_eq!(ec2.instance(&id).unwrap().spot.as_ref().unwrap().tags, tag);
    buy(&mut ec2, NOON, &order("c", Market::Spot));
    let query = by("tag:ostler:owner", &["acme"]);
    assert_eq!(ec2.describe_spot_requests(NOON, &query).unwrap().items.len(), 1);
    assert_eq!(ec2.describe_spot_requests(NOON, &by("state", &["active"])).unwrap().items.len(), 2);
}

#[test]
fn an_instance_is_pending_before_it_runs_and_boots_later() {
    let options =
        Options { pending: Span::seconds(10, 10), boot: Span::seconds(30, 30), ..Options::calm() };
    let mut ec2 = ec2(options);
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    assert_eq!(state(&mut ec2, after(9), &id), State::Pending);
    assert_eq!(state(&mut ec2, after(10), &id), State::Running);
    assert_eq!(ec2.next_event(), Some(NOON));
    let happened: Vec<_> = ec2.events(after(60)).into_iter().map(|it| (it.at, it.what)).collect();
    assert_eq!(
        happened,
        [
            (NOON, Happening::State(State::Pending)),
            (after(10), Happening::State(State::Running)),
            (after(30), Happening::Boots { first: true }),
        ]
    );
    assert_eq!(ec2.next_event(), None);
}

#[test]
fn a_new_instance_is_not_found_by_id_at_first_and_by_tag_even_longer() {
    let options =
        Options { unseen: Span::seconds(3, 3), untagged: Span::seconds(4, 4), ..Options::calm() };
    let mut ec2 = ec2(options);
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    let fault = ec2.describe_instances(after(2), &by_ids(&[&id])).unwrap_err();
    assert_eq!(fault.code, "InvalidInstanceID.NotFound");
    assert!(ec2.terminate_instances(after(2), &owned(&id)).is_err());
    assert!(ec2.create_tags(after(2), &owned(&id), &[]).is_err());
    let tag = by("tag:ostler:runner", &["runner-a"]);
    assert_eq!(seen(&mut ec2, after(3), &by_ids(&[&id])), 1);
    assert_eq!(seen(&mut ec2, after(6), &tag), 0);
    assert_eq!(seen(&mut ec2, after(6), &by("tag-key", &["ostler:*"])), 0);
    assert_eq!(seen(&mut ec2, after(7), &tag), 1);
}

#[test]
fn re_01_terminated_instances_stay_listed_for_an_hour_and_lose_their_tags_before() {
    let options = Options { shutting_down: Span::seconds(20, 20), ..Options::calm() };
    let mut ec2 = ec2(options);
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    let changes = ec2.terminate_instances(after(5), &owned(&id)).unwrap();
    assert_eq!((changes[0].previous, changes[0].current), (State::Running, State::ShuttingDown));
    assert_eq!(state(&mut ec2, after(24), &id), State::ShuttingDown);
    assert_eq!(state(&mut ec2, after(25), &id), State::Terminated);
    let reason = ec2.instance(&id).unwrap().step(after(25)).reason.clone().unwrap();
    assert_eq!(reason.code, "Client.UserInitiatedShutdown");
    assert!(reason.transition.starts_with("User initiated (2026-11-30 "), "{reason:?}");
    let tag = by("tag:ostler:runner", &["runner-a"]);
    assert_eq!(seen(&mut ec2, after(60), &tag), 1);
    assert_eq!(seen(&mut ec2, after(330), &tag), 0);
    assert_eq!(seen(&mut ec2, after(3600), &by_ids(&[&id])), 1);
    let fault = ec2.describe_instances(after(3626), &by_ids(&[&id])).unwrap_err();
    assert_eq!(fault.code, "InvalidInstanceID.NotFound");
    buy(&mut ec2, after(3700), &order("b", Market::OnDemand));
    assert!(ec2.instance(&id).is_none() && ec2.instances().count() == 1);
}

#[test]
fn re_02_one_bad_id_fails_the_whole_call_and_ended_ones_are_no_error() {
    let mut ec2 = calm();
    let good = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    let gone = "i-0123456789abcdef0".to_owned();
    let fault = ec2.terminate_instances(NOON, &[good.clone(), gone]).unwrap_err();
    assert_eq!(fault.code, "InvalidInstanceID.NotFound");
    assert_eq!(state(&mut ec2, NOON, &good), State::Running);
    let fault = ec2.terminate_instances(NOON, &[good.clone(), "i-1".to_owned()]).unwrap_err();
    assert_eq!(fault.code, "InvalidInstanceID.Malformed");
    ec2.terminate_instances(NOON, &owned(&good)).unwrap();
    let again = ec2.terminate_instances(NOON, &owned(&good)).unwrap();
    assert_eq!((again[0].previous, again[0].current), (State::Terminated, State::Terminated));
    assert!(ec2.terminate_instances(NOON, &[]).is_err());
}

#[test]
fn a_protected_instance_is_not_terminated() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    ec2.modify_instance(NOON, &id, InstanceAttribute::Protected(true)).unwrap();
    let fault = ec2.terminate_instances(NOON, &owned(&id)).unwrap_err();
    assert_eq!(fault.code, "OperationNotPermitted");
    ec2.modify_instance(NOON, &id, InstanceAttribute::Protected(false)).unwrap();
    ec2.terminate_instances(NOON, &owned(&id)).unwrap();
}

#[test]
fn power_off_from_inside_ends_or_stops_as_the_template_says() {
    let mut ec2 = calm();
    let mut request = order("a", Market::OnDemand);
    request.template = Arc::new(Template { terminates_on_power_off: true, ..Template::default() });
    let ends = buy(&mut ec2, NOON, &request);
    let stops = buy(&mut ec2, NOON, &order("b", Market::OnDemand));
    for id in [&ends, &stops] {
        ec2.power_off(after(1), id);
    }
    assert_eq!(state(&mut ec2, after(1), &ends), State::Terminated);
    assert_eq!(state(&mut ec2, after(1), &stops), State::Stopped);
    let reason = ec2.instance(&ends).unwrap().step(after(1)).reason.clone().unwrap();
    assert_eq!(reason.code, "Client.InstanceInitiatedShutdown");
    ec2.power_off(after(2), &ends);
    assert_eq!(ec2.instance(&ends).unwrap().ended(), Some(after(1)));
}

#[test]
fn re_09_a_stop_takes_a_while_and_a_start_moves_the_launch_time() {
    let options = Options {
        stopping: Span::seconds(30, 30),
        pending: Span::seconds(10, 10),
        ..Options::calm()
    };
    let mut ec2 = ec2(options);
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    ec2.stop_instances(after(100), &owned(&id)).unwrap();
    assert_eq!(state(&mut ec2, after(129), &id), State::Stopping);
    let fault = ec2.start_instances(after(129), &owned(&id)).unwrap_err();
    assert_eq!(fault.code, "IncorrectInstanceState");
    assert_eq!(state(&mut ec2, after(130), &id), State::Stopped);
    ec2.modify_instance(after(130), &id, InstanceAttribute::UserData(vec![1])).unwrap();
    ec2.start_instances(after(200), &owned(&id)).unwrap();
    assert_eq!(state(&mut ec2, after(209), &id), State::Pending);
    assert_eq!(state(&mut ec2, after(210), &id), State::Running);
    assert_eq!(ec2.instance(&id).unwrap().launched, after(200));
    assert!(ec2.modify_instance(after(210), &id, InstanceAttribute::UserData(vec![])).is_err());
    let boots: Vec<_> = ec2
        .events(after(300))
        .into_iter()
        .filter_map(|it| match it.what {
            Happening::Boots { first } => Some(first),
            _ => None,
        })
        .collect();
    assert_eq!(boots, [true, false]);
}

#[test]
fn a_start_needs_capacity_anew() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    ec2.stop_instances(NOON, &owned(&id)).unwrap();
    ec2.limit_capacity(PoolMatch::default(), 0);
    let fault = ec2.start_instances(after(1), &owned(&id)).unwrap_err();
    assert_eq!((&*fault.code, fault.status()), ("InsufficientInstanceCapacity", 500));
}

#[test]
fn a_one_time_spot_instance_cannot_be_stopped() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::Spot));
    let fault = ec2.stop_instances(NOON, &owned(&id)).unwrap_err();
    assert_eq!(fault.code, "UnsupportedOperation");
}

#[test]
fn sp_01_a_spot_instance_is_taken_two_minutes_after_the_warning() {
    let mut ec2 = calm();
    let spot = buy(&mut ec2, NOON, &order("a", Market::Spot));
    let plain = buy(&mut ec2, NOON, &order("b", Market::OnDemand));
    ec2.events(NOON);
    assert!(!ec2.interrupt(after(60), &plain));
    assert!(ec2.interrupt(after(60), &spot) && !ec2.interrupt(after(61), &spot));
    let status = |ec2: &Ec2, now| ec2.instance(&spot).unwrap().spot_status(now).unwrap();
    assert_eq!(status(&ec2, after(61)).code, "marked-for-termination");
    assert_eq!(ec2.instance(&spot).unwrap().state(after(179)), State::Running);
    let last = SpotStatus { state: "closed", code: "instance-terminated-no-capacity" };
    assert_eq!(status(&ec2, after(180)), last);
    let step = ec2.instance(&spot).unwrap().step(after(180)).clone();
    assert_eq!(step.reason.unwrap().code, "Server.SpotInstanceTermination");
    let told: Vec<_> = ec2.events(after(200)).into_iter().map(|it| (it.at, it.what)).collect();
    assert_eq!(
        told,
        [
            (after(60), Happening::SpotWarning),
            (after(180), Happening::State(State::ShuttingDown)),
            (after(180), Happening::State(State::Terminated)),
        ]
    );
}

#[test]
fn an_end_within_the_notice_is_the_users_and_comes_once() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::Spot));
    ec2.interrupt(NOON, &id);
    ec2.terminate_instances(after(30), &owned(&id)).unwrap();
    let ends: Vec<_> = ec2
        .events(after(500))
        .into_iter()
        .filter(|it| it.what == Happening::State(State::Terminated))
        .map(|it| it.at)
        .collect();
    assert_eq!(ends, [after(30)]);
    let status = ec2.instance(&id).unwrap().spot_status(after(500)).unwrap();
    assert_eq!(status.code, "instance-terminated-by-user");
}

#[test]
fn cancelling_an_active_request_leaves_the_instance_running() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::Spot));
    let request = ec2.instance(&id).unwrap().spot.as_ref().unwrap().id.clone();
    let answer = ec2.cancel_spot_requests(NOON, &owned(&request)).unwrap();
    assert_eq!(answer, [(request, "cancelled")]);
    assert_eq!(state(&mut ec2, after(1), &id), State::Running);
    let fault = ec2.cancel_spot_requests(NOON, &owned("sir-00000000")).unwrap_err();
    assert_eq!(fault.code, "InvalidSpotInstanceRequestID.NotFound");
}

#[test]
fn ol_11_re_14_launches_that_come_to_nothing() {
    let options =
        Options { pending: Span::seconds(10, 10), boot: Span::seconds(30, 30), ..Options::calm() };
    let mut ec2 = ec2(options);
    ec2.plan_launches([
        LaunchFault::Dies,
        LaunchFault::StuckPending,
        LaunchFault::Dead,
        LaunchFault::Slow(Duration::from_secs(600)),
    ]);
    let bought: Vec<_> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|token| buy(&mut ec2, NOON, &order(token, Market::OnDemand)))
        .collect();
    let at = |id: &String, now| ec2.instance(id).unwrap().step(now).clone();
    assert_eq!(at(&bought[0], after(2)).state, State::Pending);
    assert_eq!(at(&bought[0], after(3)).state, State::Terminated);
    assert_eq!(at(&bought[0], after(3)).reason.unwrap().code, "Client.InternalError");
    assert_eq!(at(&bought[1], after(1500)).state, State::Pending);
    assert_eq!(at(&bought[2], after(1500)).state, State::Running);
    let booted: Vec<_> = ec2
        .events(after(3600))
        .into_iter()
        .filter(|it| matches!(it.what, Happening::Boots { .. }))
        .map(|it| (it.instance, it.at))
        .collect();
    assert_eq!(booted, [(bought[4].clone(), after(30)), (bought[3].clone(), after(600))]);
    ec2.terminate_instances(after(1500), &bought[1..2]).unwrap();
    assert_eq!(state(&mut ec2, after(1500), &bought[1]), State::Terminated);
}

#[test]
fn re_12_pages_may_be_short_or_empty_and_together_are_complete() {
    let options = Options { short_pages: true, ..Options::calm() };
    let mut ec2 = ec2(options);
    for n in 0..40 {
        buy(&mut ec2, NOON, &order(&n.to_string(), Market::OnDemand));
    }
    let mut query = by("tag:ostler:runner", &["runner-*"]);
    query.most = Some(5);
    let (mut all, mut empty) = (BTreeSet::new(), 0);
    loop {
        let page = ec2.describe_instances(NOON, &query).unwrap();
        all.extend(page.items.iter().map(|it| it.id.clone()));
        empty += usize::from(page.items.is_empty() && page.next_token.is_some());
        query.next_token = page.next_token;
        if query.next_token.is_none() {
            break;
        }
    }
    assert!(all.len() == 40 && empty > 0, "{} seen, {empty} empty pages", all.len());
}

#[test]
fn filters_are_ored_within_and_anded_among() {
    let mut ec2 = calm();
    let a = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    let b = buy(&mut ec2, NOON, &order("b", Market::Spot));
    ec2.terminate_instances(NOON, &owned(&a)).unwrap();
    let mut query = by("tag:ostler:runner", &["runner-a", "runner-b"]);
    assert_eq!(seen(&mut ec2, NOON, &query), 2);
    query.filters.push(Filter::new("instance-state-name", &["pending", "running"]));
    assert_eq!(seen(&mut ec2, NOON, &query), 1);
    assert_eq!(seen(&mut ec2, NOON, &by("instance-id", &[&b, "i-0123456789abcdef0"])), 1);
    assert_eq!(seen(&mut ec2, NOON, &by("instance-lifecycle", &["spot"])), 1);
    assert_eq!(seen(&mut ec2, NOON, &by("tag:ostler:runner", &["runner-?"])), 2);
    let fault = ec2.describe_instances(NOON, &by("colour", &["red"])).unwrap_err();
    assert_eq!(fault.code, "InvalidParameterValue");
    let mut query = by_ids(&[&b]);
    query.most = Some(10);
    let fault = ec2.describe_instances(NOON, &query).unwrap_err();
    assert_eq!(fault.code, "InvalidParameterCombination");
}

#[test]
fn tags_are_found_after_a_change() {
    let mut ec2 = calm();
    let id = buy(&mut ec2, NOON, &order("a", Market::OnDemand));
    let ready = ("ostler:state".to_owned(), "ready".to_owned());
    ec2.create_tags(NOON, &owned(&id), &[ready]).unwrap();
    assert_eq!(seen(&mut ec2, NOON, &by("tag:ostler:state", &["ready"])), 1);
    let other = [("ostler:state".to_owned(), Some("used".to_owned()))];
    ec2.delete_tags(NOON, &owned(&id), &other).unwrap();
    assert_eq!(seen(&mut ec2, NOON, &by("tag:ostler:state", &["ready"])), 1);
    ec2.delete_tags(NOON, &owned(&id), &[("ostler:state".to_owned(), None)]).unwrap();
    assert_eq!(seen(&mut ec2, NOON, &by("tag:ostler:state", &["ready"])), 0);
}

#[test]
fn images_are_told_by_id_and_filter() {
    let mut ec2 = calm();
    let found = ec2.describe_images(NOON, &by_ids(&[X64])).unwrap();
    assert_eq!(found, [image(X64, "x86_64")]);
    assert_eq!(ec2.describe_images(NOON, &by("architecture", &["arm64"])).unwrap().len(), 1);
    let fault = ec2.describe_images(NOON, &by_ids(&["ami-0000000000000000f"])).unwrap_err();
    assert_eq!(fault.code, "InvalidAMIID.NotFound");
}

#[test]
fn processors_and_vcpus_follow_from_the_types_name() {
    for (name, architecture) in [
        ("m7i.large", "x86_64"),
        ("m7i-flex.large", "x86_64"),
        ("g4dn.xlarge", "x86_64"),
        ("t3.medium", "x86_64"),
        ("m7g.large", "arm64"),
        ("c7gn.4xlarge", "arm64"),
        ("g5g.xlarge", "arm64"),
        ("t4g.small", "arm64"),
        ("a1.medium", "arm64"),
    ] {
        assert_eq!(launch::architecture_of(name), architecture, "{name}");
    }
    for (name, vcpus) in
        [("m7i.large", 2), ("m7i.xlarge", 4), ("m7i.4xlarge", 16), ("m7i.medium", 1)]
    {
        assert_eq!(launch::vcpus_of(name), vcpus, "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run = || {
        let mut ec2 = ec2(Options { dead_boots: 0.2, slow_boots: 0.2, ..Options::default() });
        for n in 0..20 {
            let now = after(n * 7);
            let id = buy(&mut ec2, now, &order(&n.to_string(), Market::Spot));
            if n % 3 == 0 {
                ec2.interrupt(now + Duration::from_secs(40), &id);
            }
        }
        ec2.events(after(4000))
    };
    assert_eq!(run(), run());
}

/// A spot instance whose request is persistent, with that request's id.
fn persistent(ec2: &mut Ec2) -> (String, String) {
    let id = buy(ec2, NOON, &order("a", Market::Spot));
    ec2.make_persistent(&id);
    let request = ec2.instance(&id).unwrap().spot.as_ref().unwrap().id.clone();
    (id, request)
}

fn request_of(ec2: &mut Ec2, now: Timestamp, request: &str) -> (String, SpotStatus) {
    let page = ec2.describe_spot_requests(now, &by_ids(&[request])).unwrap();
    let [instance] = page.items[..] else { panic!("one request, not {:?}", page.items) };
    (instance.id.clone(), instance.spot_status(now).unwrap())
}

/// github-aws-runners/terraform-aws-github-runner#5204, hashicorp/terraform#3311.
#[test]
fn a_persistent_request_starts_an_untagged_instance_in_place_of_the_one_that_ended() {
    let mut ec2 = calm();
    let (id, request) = persistent(&mut ec2);
    ec2.terminate_instances(after(60), &owned(&id)).unwrap();
    let (next, status) = request_of(&mut ec2, after(60), &request);
    assert_ne!(next, id);
    assert_eq!(status.state, "active");
    let instance = ec2.instance(&next).unwrap();
    assert!(instance.tags.is_empty() && instance.launched == after(60));
    assert_eq!(state(&mut ec2, after(61), &next), State::Running);
    // And again, until the request is cancelled.
    ec2.power_off(after(100), &next);
    assert_eq!(state(&mut ec2, after(100), &next), State::Stopped);
    assert_eq!(request_of(&mut ec2, after(100), &request).1.state, "disabled");
    ec2.terminate_instances(after(101), &owned(&next)).unwrap();
    let (third, _) = request_of(&mut ec2, after(101), &request);
    assert!(third != next && third != id);
    ec2.cancel_spot_requests(after(110), &owned(&request)).unwrap();
    assert_eq!(state(&mut ec2, after(111), &third), State::Running);
    ec2.terminate_instances(after(120), &owned(&third)).unwrap();
    assert_eq!(request_of(&mut ec2, after(120), &request).1.state, "cancelled");
    let living = ec2.instances().filter(|it| !it.state(after(200)).is_over()).count();
    assert_eq!(living, 0);
}

#[test]
fn cancelling_the_request_of_a_stopped_instance_ends_it() {
    let mut ec2 = calm();
    let (id, request) = persistent(&mut ec2);
    ec2.stop_instances(after(10), &owned(&id)).unwrap();
    assert_eq!(request_of(&mut ec2, after(11), &request).1.state, "disabled");
    ec2.cancel_spot_requests(after(20), &owned(&request)).unwrap();
    assert_eq!(state(&mut ec2, after(20), &id), State::Terminated);
    assert_eq!(ec2.instances().count(), 1);
}
