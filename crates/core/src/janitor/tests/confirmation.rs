//! The second observation.

use super::*;

/// A world with these orphans, found and ready to be confirmed.
fn found(numbers: std::ops::RangeInclusive<u64>) -> World {
    let world = World::new(numbers.map(orphan));
    world.scan(&config(|_| {}));
    world.calls.borrow_mut().clear();
    world.metrics.borrow_mut().clear();
    world.pass(OBSERVATION);
    world
}

/// The body of the message about an orphan, changed.
fn message(world: &World, change: impl FnOnce(&mut Value)) -> String {
    let mut body: Value = serde_json::from_str(&world.queue.borrow()[0].message()).unwrap();
    change(&mut body);
    body.to_string()
}

const DELETED: [&str; 4] = ["exist i-00000000000000001", "session acme", "get 1", "delete 1"];

#[test]
fn j47_a_candidate_that_has_not_changed_is_looked_at_in_order_and_deleted() {
    let world = found(1..=1);
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
    assert_eq!(world.calls(), DELETED);
    assert!(world.ids().is_empty());
    assert_eq!(world.metric("RegistrationDeleted"), 1.0);
}

#[test]
fn j47_the_order_of_the_checks_is_validity_time_and_then_dry_run() {
    let dry = config(|c| c.dry_run = true);
    let world = World::new([orphan(1)]);
    world.scan(&config(|_| {}));
    assert_eq!(world.confirm(&dry), [0], "too early is an error, also in a dry run");
    let other_scope = message(&world, |body| body["scope"] = json!("0"));
    assert_eq!(world.deliver(&dry, &[other_scope]), Vec::<usize>::new(), "void before early");
}

#[test]
fn j48_a_change_of_scope_makes_candidates_void() {
    for change in [
        (|c: &mut Config| c.github_api = "https://git.acme.example/api/v3".into())
            as fn(&mut Config),
        |c| c.scope = Scope::Organization { name: "acme".into(), groups: vec![1, 2] },
        |c| {
            c.provider = ProviderConfig::Ec2InstanceId { prefix: "x-".into(), regions: vec![] };
        },
    ] {
        let world = found(1..=1);
        assert_eq!(world.confirm(&config(change)), Vec::<usize>::new());
        assert_eq!((world.calls().len(), world.ids()), (0, vec![1]));
        assert_eq!(world.metric("RegistrationKept ScopeChanged"), 1.0);
    }
    let world = found(1..=1);
    *world.provider_scope.borrow_mut() = "one region less".into();
    world.confirm(&config(|_| {}));
    assert_eq!((world.calls().len(), world.ids()), (0, vec![1]));
}

#[test]
fn j49_a_message_that_discovery_would_not_send_is_discarded() {
    for change in [
        (|body: &mut Value| body["groupId"] = json!(2)) as fn(&mut Value),
        |body| body["groupId"] = json!(null),
        |body| {
            body.as_object_mut().unwrap().remove("groupId");
        },
        |body| body["repository"] = json!("acme/widgets"),
        |body| body["resourceId"] = json!("i-00000000000000002"),
        |body| body["resourceId"] = json!(""),
        |body| {
            body.as_object_mut().unwrap().remove("resourceId");
        },
        |body| body["runnerName"] = json!("laptop"),
        |body| body["runnerId"] = json!(0),
        |body| body["runnerId"] = json!(-1),
        |body| body["runnerId"] = json!("1"),
        |body| body["runnerId"] = json!(9_007_199_254_740_992_i64),
        |body| body["observedAt"] = json!(null),
        |body| body["observedAt"] = json!("yesterday"),
        |body| body["observedAt"] = json!(1.5),
        |body| body["scope"] = json!(null),
        |body| *body = json!([]),
        |body| *body = json!(7),
    ] {
        let world = found(1..=1);
        let body = message(&world, change);
        assert_eq!(
            world.deliver(&config(|_| {}), std::slice::from_ref(&body)),
            Vec::<usize>::new(),
            "{body}"
        );
        assert_eq!((world.calls().len(), world.ids()), (0, vec![1]), "{body}");
        let kept = world.metric("RegistrationKept Unusable")
            + world.metric("RegistrationKept ScopeChanged");
        assert_eq!(kept, 1.0, "{body}");
    }
}

#[test]
fn j50_a_candidate_is_good_for_a_day() {
    for (age, deleted) in [(EXPIRY, true), (EXPIRY + Duration::from_millis(1), false)] {
        let world = World::new([orphan(1)]);
        world.scan(&config(|_| {}));
        world.pass(age);
        assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
        assert_eq!(world.ids().is_empty(), deleted, "{age:?}");
        assert_eq!(world.metric("RegistrationKept Expired"), f64::from(u8::from(!deleted)));
    }
}

#[test]
fn j51_a_message_that_comes_too_early_comes_again() {
    for (age, failed) in [(OBSERVATION - Duration::from_millis(1), vec![0]), (OBSERVATION, vec![])]
    {
        let world = World::new([orphan(1)]);
        world.scan(&config(|_| {}));
        world.pass(age);
        assert_eq!(world.confirm(&config(|_| {})), failed, "{age:?}");
        assert_eq!(world.ids().is_empty(), failed.is_empty());
    }
}

#[test]
fn an_observation_in_the_future_is_discarded_and_does_not_circle() {
    let world = found(1..=1);
    for ahead in [1, 86_400_000, 4_000_000_000_000] {
        let body = message(&world, |body| {
            body["observedAt"] = json!(world.now.get().millis() + ahead);
        });
        assert_eq!(world.deliver(&config(|_| {}), &[body]), Vec::<usize>::new());
    }
    assert_eq!((world.calls().len(), world.ids()), (0, vec![1]));
    assert_eq!(world.metric("RegistrationKept FromTheFuture"), 3.0);
}

#[test]
fn j17_j18_j20_a_dry_run_lets_go_of_what_was_queued_before() {
    let world = found(1..=2);
    assert_eq!(world.confirm(&config(|c| c.dry_run = true)), Vec::<usize>::new());
    assert_eq!((world.calls().len(), world.ids(), world.queued().len()), (0, vec![1, 2], 0));
    assert_eq!(world.metric("RegistrationKept DryRun"), 2.0);
}

#[test]
fn j52_a_registration_that_has_left_its_group_is_kept() {
    // By its own record.
    let world = found(1..=2);
    world.list(&group(2), [orphan(1)]);
    world.lists.borrow_mut().get_mut(&group(1).to_string()).unwrap().retain(|each| each.id != 1);
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
    assert_eq!((world.made("page"), world.ids()), (0, vec![1]), "no list is read for that");
    assert_eq!(world.metric("RegistrationKept Moved"), 1.0);
    // By the list, where its record does not say.
    let world = found(1..=2);
    world.names_groups.set(false);
    world.list(&group(2), [orphan(1)]);
    world.lists.borrow_mut().get_mut(&group(1).to_string()).unwrap().retain(|each| each.id != 1);
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
    assert_eq!((world.made("page"), world.ids()), (1, vec![1]));
    assert_eq!(world.metric("RegistrationKept Moved"), 1.0);
}

#[test]
fn j52_where_the_record_names_no_group_members_are_listed_page_by_page_and_once_for_a_batch() {
    let world = World::new((1..=350).map(orphan));
    world.scan(&config(|c| c.max_candidates = 1000));
    world.pass(OBSERVATION);
    world.names_groups.set(false);
    world.calls.borrow_mut().clear();
    let bodies: Vec<_> = [1, 150, 160, 2, 350]
        .map(|id| {
            let queue = world.queue.borrow();
            queue.iter().find(|each| each.runner_id == id).unwrap().message()
        })
        .to_vec();
    assert_eq!(world.deliver(&config(|c| c.max_candidates = 1000), &bodies), Vec::<usize>::new());
    let pages: Vec<_> = world.calls().into_iter().filter(|call| call.starts_with("page")).collect();
    let page = |n| format!("page {n} of group 1 of acme");
    assert_eq!(pages, [page(1), page(2), page(3), page(4)], "each once, as far as needed");
    assert_eq!(world.ids().len(), 345);
    // The last look at each comes after the list, and right before the deletion.
    let calls = world.calls();
    let last = calls.len() - 1;
    assert_eq!(calls[last - 2..], [page(4), "get 350".into(), "delete 350".into()]);
}

#[test]
fn j53_what_is_behind_it_is_looked_for_again() {
    let world = found(1..=3);
    world.live(1);
    world.unknown.borrow_mut().insert(instance(2));
    assert_eq!(world.confirm(&config(|_| {})), [1], "the look that failed comes again");
    assert_eq!(world.ids(), [1, 2]);
    assert_eq!(world.made("exist"), 1, "once for the batch");
    assert_eq!(world.made("session"), 1, "and GitHub is asked only about what is absent");
}

#[test]
fn j54_online_busy_or_renamed_is_kept() {
    for (change, why) in [
        ((|each: &mut Registration| each.offline = false) as fn(&mut Registration), "Online"),
        (|each| each.busy = true, "Busy"),
        (|each| each.name = name(9), "Renamed"),
        (|each| each.name.push('x'), "Renamed"),
    ] {
        let world = found(1..=2);
        world.change(1, change);
        assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
        assert_eq!((world.ids(), world.made("delete")), (vec![1], 1), "{why}");
        assert_eq!(world.metric(&format!("RegistrationKept {why}")), 1.0);
    }
}

#[test]
fn j54_a_change_while_the_members_are_listed_is_seen() {
    let world = found(1..=1);
    world.names_groups.set(false);
    world.before("page 1 of group 1 of acme", |world| world.change(1, |each| each.offline = false));
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
    assert_eq!((world.ids(), world.made("delete")), (vec![1], 0));
}

#[test]
fn j55_j56_rr_12_every_answer_is_acted_on() {
    // Gone before the look, and gone before the deletion.
    for call in ["get 1", "delete 1"] {
        let world = found(1..=2);
        world.before(call, |world| {
            world.lists.borrow_mut().values_mut().for_each(|all| all.retain(|each| each.id != 1));
        });
        assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new(), "{call}");
        assert!(world.ids().is_empty());
        assert_eq!(
            (world.metric("RegistrationGone"), world.metric("RegistrationDeleted")),
            (1.0, 1.0)
        );
    }
    // 5xx and refusals come again; nothing is taken for deleted.
    for error in [
        Error::Transient("delete: 502".into()),
        Error::Permanent("delete: 403".into()),
        Error::Later { after: Duration::from_secs(60), reason: "rate limit".into() },
    ] {
        let world = found(1..=1);
        world.break_call("delete 1", error);
        assert_eq!(world.confirm(&config(|_| {})), [0]);
        assert_eq!((world.ids(), world.metric("RegistrationDeleted")), (vec![1], 0.0));
    }
}

#[test]
fn rr_13_a_job_that_lands_in_the_last_moment_keeps_its_runner() {
    let world = found(1..=2);
    world.before("delete 1", |world| world.change(1, |each| each.busy = true));
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new(), "said once, and not again");
    assert_eq!(world.ids(), [1]);
    assert_eq!(world.metric("RegistrationKept Busy"), 1.0);
}

#[test]
fn j57_rr_16_failed_look_ups_prove_nothing() {
    for (call, error) in [
        ("session acme", Error::Permanent("401".into())),
        ("get 1", Error::Transient("502".into())),
        ("get 1", Error::Permanent("403".into())),
        ("get 1", Error::Later { after: Duration::from_secs(1), reason: "limit".into() }),
        ("page 1 of group 1 of acme", Error::NotFound("404".into())),
    ] {
        let world = found(1..=1);
        world.names_groups.set(!call.starts_with("page"));
        world.break_call(call, error);
        assert_eq!(world.confirm(&config(|_| {})), [0], "{call}");
        assert_eq!((world.ids(), world.made("delete")), (vec![1], 0));
        assert_eq!(world.metric("JanitorFailure GitHub"), 1.0);
    }
}

#[test]
fn j58_a_poison_record_affects_itself_only() {
    let world = found(1..=2);
    let mut bodies: Vec<_> = world.queue.borrow().iter().map(Candidate::message).collect();
    bodies.insert(0, "not json".into());
    bodies.insert(2, String::new());
    bodies.push("{}".into());
    assert_eq!(world.deliver(&config(|_| {}), &bodies), [0, 2]);
    assert!(world.ids().is_empty());
    assert_eq!(world.metric("JanitorFailure Record"), 2.0);
    let world = found(1..=3);
    world.break_call("get 2", Error::Transient("502".into()));
    assert_eq!(world.confirm(&config(|_| {})), [1]);
    assert_eq!(world.ids(), [2]);
    assert_eq!(world.confirm(&config(|_| {})), [0], "it alone comes again");
}

#[test]
fn records_that_are_none_are_refused_whole() {
    let world = World::new([]);
    for records in [json!({}), json!([{"body": "{}"}]), json!(vec![json!({"messageId": "m"}); 101])]
    {
        let error = world.handle(&config(|_| {}), &json!({ "Records": records })).unwrap_err();
        assert!(matches!(error, Error::Permanent(_)), "{error}");
    }
}

#[test]
fn j59_j60_j61_at_each_stage_no_time_returns_the_record_and_all_after_it() {
    // Guards: look-up, sign-in, re-read (and list, and re-read), deletion.
    for (begins, calls) in [
        (0, &[][..]),
        (1, &DELETED[..1]),
        (2, &DELETED[..2]),
        (3, &DELETED[..3]),
        (4, &DELETED[..4]),
    ] {
        let world = found(1..=2);
        world.begins.set(begins);
        let failed = world.confirm(&config(|_| {}));
        let expected = if begins < 4 { vec![0, 1] } else { vec![1] };
        assert_eq!(failed, expected, "{begins}");
        let both = format!("exist {} {}", instance(1), instance(2));
        let made: Vec<_> =
            world.calls().into_iter().map(|call| call.replace(&both, DELETED[0])).collect();
        assert_eq!(made, calls, "exactly the earlier stages");
    }
    let world = found(1..=2);
    world.names_groups.set(false);
    world.begins.set(3);
    assert_eq!(world.confirm(&config(|_| {})), [0, 1]);
    assert_eq!((world.made("get"), world.made("page"), world.made("delete")), (1, 0, 0));
    assert_eq!(world.metric("JanitorFailure Deadline"), 2.0);
}

#[test]
fn j62_j63_an_app_is_chosen_for_each_candidate() {
    let world = found(1..=3);
    world.confirm(&config(|_| {}));
    assert_eq!(world.made("session acme"), 3);
}

#[test]
fn jp_11_one_observation_is_never_enough() {
    let world = World::new([orphan(1)]);
    // The first look did not see it alive, though it was: it flickers.
    world.scan(&config(|_| {}));
    world.change(1, |each| each.offline = false);
    world.pass(OBSERVATION);
    assert_eq!(world.confirm(&config(|_| {})), Vec::<usize>::new());
    world.change(1, |each| each.offline = true);
    world.live(1);
    world.scan(&config(|_| {}));
    world.pass(OBSERVATION);
    world.confirm(&config(|_| {}));
    assert_eq!(world.ids(), [1]);
}

#[test]
fn jp_14_what_is_not_allowed_is_tried_once_for_a_batch() {
    let world = found(1..=10);
    for id in 1..=10 {
        world.break_call(&format!("delete {id}"), Error::Permanent("403: permission".into()));
    }
    assert_eq!(world.confirm(&config(|_| {})).len(), 10, "all come again");
    assert_eq!((world.made("delete"), world.made("get")), (1, 1));
    assert_eq!(world.ids().len(), 10);
}

#[test]
fn jp_03_a_repository_that_takes_no_deletions_costs_the_owners_others_nothing() {
    let world = World::new([]);
    world.list(&repository("archived"), [orphan(1)]);
    world.list(&repository("widgets"), [orphan(2)]);
    let config = config(|c| {
        let all = ["archived", "widgets"].map(|name| match repository(name) {
            Part::Repository(repository) => repository,
            Part::Group { .. } => unreachable!(),
        });
        c.scope = Scope::Repositories(all.into());
    });
    world.scan(&config);
    world.pass(OBSERVATION);
    let archived = "403: Repository was archived so is read-only.";
    world.break_call("delete 1", Error::Permanent(archived.into()));
    assert_eq!(world.confirm(&config), [0]);
    assert_eq!(world.ids(), [1]);
}

#[test]
fn jp_05_only_a_look_that_answered_counts_and_a_scan_can_never_take_everything() {
    let world = World::new((1..=300).map(orphan));
    let config = config(|c| c.max_candidates = 50);
    for number in 1..=300 {
        world.unknown.borrow_mut().insert(instance(number));
    }
    world.scan(&config);
    assert!(world.queued().is_empty(), "an outage of EC2 makes no candidates");
    world.unknown.borrow_mut().clear();
    world.scan(&config);
    assert_eq!(world.queued().len(), 50);
}

#[test]
fn j03_sp_02_rr_15_a_registration_of_which_no_event_ever_told_is_found_and_removed() {
    let world = World::new([orphan(1)]);
    world.scan(&config(|_| {}));
    assert_eq!(world.ids(), [1]);
    world.pass(OBSERVATION);
    world.confirm(&config(|_| {}));
    assert!(world.ids().is_empty());
}

#[test]
fn every_step_can_run_twice() {
    let world = World::new([orphan(1), orphan(2)]);
    world.scan(&config(|_| {}));
    world.scan(&config(|_| {}));
    assert_eq!(world.queued(), [1, 2, 1, 2]);
    world.pass(OBSERVATION);
    let bodies: Vec<_> = world.queue.borrow().iter().map(Candidate::message).collect();
    for _ in 0..2 {
        assert_eq!(world.deliver(&config(|_| {}), &bodies), Vec::<usize>::new());
    }
    assert!(world.ids().is_empty());
    assert_eq!(world.metric("RegistrationDeleted"), 2.0);
}

#[test]
fn j04_the_janitor_has_no_way_to_end_a_machine() {
    // Its ports can list, look and delete registrations, and ask whether machines exist. A whole round
    // calls these and no others.
    let world = found(1..=1);
    world.confirm(&config(|_| {}));
    for call in world.calls() {
        let verb = call.split(' ').next().unwrap().to_owned();
        assert!(["exist", "session", "get", "page", "delete", "send"].contains(&verb.as_str()));
    }
}

#[test]
fn j74_j76_any_provider_goes_through_discovery_and_confirmation() {
    // All of these tests run over a provider that is none of EC2's; here with names of another kind.
    struct Pods;
    impl Provider for Pods {
        fn kind(&self) -> &str {
            "pods"
        }
        fn scope(&self) -> String {
            "cluster-1".into()
        }
        fn resource(&self, runner_name: &str) -> Option<String> {
            runner_name.strip_prefix("pod/").map(str::to_owned)
        }
        async fn exist(&self, resources: &[String]) -> Vec<Result<bool>> {
            resources.iter().map(|resource| Ok(resource == "alive")).collect()
        }
    }
    let pod = |id: i64, name: &str| Registration { id, name: name.into(), ..orphan(1) };
    let world = World::new([pod(1, "pod/alive"), pod(2, "pod/dead"), orphan(3)]);
    let janitor = Janitor { world: &world, provider: Pods };
    let config = config(|_| {});
    run(handle(&janitor, &config, &json!({}), || true)).unwrap();
    assert_eq!(world.queued(), [2]);
    world.pass(OBSERVATION);
    let body = world.queue.borrow()[0].message();
    let event = json!({"Records": [{"messageId": "m", "body": body}]});
    run(handle(&janitor, &config, &event, || true)).unwrap();
    assert_eq!(
        (world.ids(), world.made("exist")),
        (vec![1, 3], 0),
        "nothing was asked of machines"
    );
}
