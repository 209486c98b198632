//! Scans: what is read, what becomes a candidate, what stops them.

use super::*;

fn groups(ids: &[i64]) -> Config {
    let groups = ids.to_vec();
    config(|c| c.scope = Scope::Organization { name: "acme".into(), groups })
}

fn out(call: &str) -> Error {
    Error::Transient(format!("{call}: 502"))
}

/// Registrations that are kept, to fill pages.
fn others(numbers: std::ops::Range<u64>) -> impl Iterator<Item = Registration> {
    numbers.map(|number| Registration { offline: false, ..orphan(number) })
}

#[test]
fn j21_every_scan_begins_with_the_first_page_of_the_first_group() {
    let world = World::new(others(0..150));
    world.list(&group(2), []);
    for _ in 0..2 {
        world.scan(&groups(&[1, 2]));
    }
    let once = [
        "session acme",
        "page 1 of group 1 of acme",
        "session acme",
        "page 2 of group 1 of acme",
        "session acme",
        "page 1 of group 2 of acme",
    ];
    assert_eq!(world.calls(), [once, once].concat());
}

#[test]
fn j22_after_deletions_the_next_scan_finds_the_others() {
    let world = World::new((1..=250).map(orphan));
    let config = config(|c| c.max_candidates = 120);
    let mut scans = 0;
    while !world.ids().is_empty() {
        world.scan(&config);
        world.pass(OBSERVATION);
        while !world.queue.borrow().is_empty() {
            let batch: Vec<_> =
                world.queue.borrow().iter().take(10).map(Candidate::message).collect();
            assert_eq!(world.deliver(&config, &batch), Vec::<usize>::new());
            world.queue.borrow_mut().drain(..batch.len());
        }
        scans += 1;
        assert!(scans <= 3, "{:?}", world.ids());
    }
    assert_eq!(scans, 3);
}

#[test]
fn j23_candidates_of_a_page_are_queued_before_the_next_page_is_read() {
    let world = World::new(std::iter::once(orphan(1)).chain(others(2..150)));
    world.break_call("page 2 of group 1 of acme", out("page 2"));
    world.break_call("page 3 of group 1 of acme", out("page 3"));
    world.break_call("page 4 of group 1 of acme", out("page 4"));
    let summary = world.scan(&config(|_| {}));
    let calls = world.calls();
    let at = |call: &str| calls.iter().position(|made| made == call).unwrap();
    assert!(at("send") < at("page 2 of group 1 of acme"), "{calls:?}");
    assert_eq!((world.queued(), &summary["pageFailures"]), (vec![1], &json!(3)));
}

#[test]
fn j24_a_short_page_is_the_last_and_a_full_one_is_not() {
    for (entries, pages) in [(0, 1), (99, 1), (100, 2), (101, 2), (200, 3)] {
        let world = World::new(others(0..entries));
        let summary = world.scan(&config(|_| {}));
        assert_eq!((world.made("page"), &summary["pagesScanned"]), (pages, &json!(pages)));
    }
}

#[test]
fn j25_groups_and_pages_are_read_in_order_one_after_the_other() {
    let world = World::new(others(0..100));
    world.list(&group(5), others(200..301));
    world.scan(&groups(&[1, 5]));
    let pages: Vec<_> = world.calls().into_iter().filter(|call| call.starts_with("page")).collect();
    assert_eq!(
        pages,
        [
            "page 1 of group 1 of acme",
            "page 2 of group 1 of acme",
            "page 1 of group 5 of acme",
            "page 2 of group 5 of acme"
        ]
    );
}

#[test]
fn j26_three_failed_pages_end_the_group() {
    let world = World::new(others(0..1000));
    world.list(&group(2), [orphan(7)]);
    for page in 2..=9 {
        world.break_call(&format!("page {page} of group 1 of acme"), out("page"));
    }
    let summary = world.scan(&groups(&[1, 2]));
    assert_eq!(world.made("page"), 1 + 3 + 1);
    assert_eq!(world.queued(), [7], "the next group has its turn");
    assert_eq!(
        (&summary["pageFailures"], &summary["stopReason"]),
        (&json!(3), &json!("completed"))
    );
    assert_eq!(world.metric("JanitorFailure Page"), 3.0);
    assert_eq!(world.metric("ScanCompleted"), 0.0, "the group was not read to its end");
}

#[test]
fn j27_a_failed_page_is_left_out_and_a_good_one_forgets_the_failures() {
    let world = World::new(others(0..650));
    for page in [2, 3, 5, 6] {
        world.break_call(&format!("page {page} of group 1 of acme"), out("page"));
    }
    let summary = world.scan(&config(|_| {}));
    assert_eq!(world.made("page"), 7, "each page once: {:?}", world.calls());
    assert_eq!((&summary["pagesScanned"], &summary["pageFailures"]), (&json!(3), &json!(4)));
    let world = World::new(others(0..150));
    world.list(&group(2), others(200..350));
    for call in ["page 1 of group 1", "page 1 of group 2", "page 3 of group 1"] {
        world.break_call(&format!("{call} of acme"), out("page"));
    }
    world.scan(&groups(&[1, 2]));
    assert_eq!(world.made("page"), 4, "counted for each group by itself");
}

#[test]
fn j28_j63_jp_03_an_app_is_chosen_for_each_page_and_an_owner_that_fails_costs_the_others_nothing() {
    let world = World::new([orphan(1)]);
    world.list(&repository("widgets"), [orphan(2)]);
    let beta =
        Part::Repository(Repository { owner: "beta".into(), name: "x".into(), installation: None });
    world.list(&beta, [orphan(3)]);
    let all = [repository("widgets"), beta].map(|part| match part {
        Part::Repository(repository) => repository,
        Part::Group { .. } => unreachable!(),
    });
    world.break_call("session acme", Error::Permanent("the App is not installed".into()));
    let summary = world.scan(&config(|c| c.scope = Scope::Repositories(all.to_vec())));
    assert_eq!(world.made("session acme"), 3, "as for pages: three in a row");
    assert_eq!((world.queued(), &summary["pageFailures"]), (vec![3], &json!(3)));
    assert_eq!(world.queue.borrow()[0].part.to_string(), "beta/x");
}

#[test]
fn j29_a_scan_that_read_no_page_fails_and_says_why() {
    let world = World::new([orphan(1)]);
    world.list(&group(2), [orphan(2)]);
    world.break_call("session acme", Error::Permanent("install the App".into()));
    let error = world.handle(&groups(&[1, 2]), &json!({})).unwrap_err();
    assert!(error.to_string().contains("install the App"), "{error}");
    assert_eq!(world.queued(), Vec::<i64>::new());
    assert_eq!(world.metric("JanitorFailure Page"), 6.0, "counted all the same");
    assert_eq!(world.metric("ScanCompleted"), 0.0);
    // One page is enough.
    world.broken.borrow_mut().clear();
    for page in 1..=3 {
        world.break_call(&format!("page {page} of group 1 of acme"), out("page"));
    }
    let summary = world.scan(&groups(&[1, 2]));
    assert_eq!((world.queued(), &summary["pageFailures"]), (vec![2], &json!(3)));
}

#[test]
fn j30_j43_jp_12_pages_that_shift_during_a_scan_cost_a_registration_only_a_turn() {
    let world = World::new((1..=250).map(orphan));
    // While the second page is fetched, an earlier confirmation deletes thirty of the first page.
    world.before("page 2 of group 1 of acme", |world| {
        world.lists.borrow_mut().values_mut().for_each(|all| all.retain(|each| each.id > 30));
    });
    let config = config(|c| c.max_candidates = 1000);
    world.scan(&config);
    let first = world.queued();
    assert!(first.len() < 250 && !first.contains(&110), "thirty slipped by");
    world.before.borrow_mut().clear();
    world.scan(&config);
    let ids: BTreeSet<_> = world.queued().into_iter().collect();
    assert!((31..=250).all(|id| ids.contains(&id)), "the next scan has them, and the others again");
}

#[test]
fn a_registration_that_comes_again_on_a_later_page_is_one_candidate() {
    let world = World::new((1..=150).map(orphan));
    // New ones before it push the last of page one to page two.
    world.before("page 2 of group 1 of acme", |world| {
        let mut lists = world.lists.borrow_mut();
        for all in lists.values_mut() {
            all.splice(0..0, (900..920).map(|n| Registration { offline: false, ..orphan(n) }));
        }
    });
    world.scan(&config(|c| c.max_candidates = 1000));
    let queued = world.queued();
    assert_eq!(queued.len(), queued.iter().collect::<BTreeSet<_>>().len(), "{queued:?}");
}

#[test]
fn j31_only_an_explicit_offline_and_an_explicit_idle_make_a_candidate() {
    let with = |offline, busy, number| Registration { offline, busy, ..orphan(number) };
    let world =
        World::new([with(true, true, 1), with(false, false, 2), with(false, true, 3), orphan(4)]);
    world.scan(&config(|_| {}));
    assert_eq!(world.queued(), [4]);
    assert_eq!(world.calls().iter().filter(|call| call.starts_with("exist")).count(), 1);
    assert_eq!(world.metric("RegistrationKept Online"), 2.0);
    assert_eq!(world.metric("RegistrationKept Busy"), 1.0);
    assert_eq!(world.metric("RegistrationsSeen"), 4.0);
}

#[test]
fn j32_jp_09_jp_10_foreign_runners_are_passed_over_without_a_look_up() {
    let foreign =
        |number: i64, name: &str| Registration { id: number, name: name.into(), ..orphan(1) };
    let world = World::new([foreign(1, "s390x-builder-1"), foreign(2, "acme-test-i-01234567")]);
    let summary = world.scan(&config(|c| c.dry_run = true));
    assert_eq!((world.made("exist"), &summary["dryRunCandidates"]), (0, &json!(0)));
    assert_eq!(world.metric("RegistrationKept Foreign"), 2.0);
}

#[test]
fn j33_j34_whatever_is_there_protects() {
    let world = World::new([orphan(1), orphan(2)]);
    world.live(1);
    let summary = world.scan(&config(|_| {}));
    assert_eq!((world.queued(), &summary["existingResources"]), (vec![2], &json!(1)));
    assert_eq!(world.metric("RegistrationKept Exists"), 1.0);
}

#[test]
fn j37_a_look_that_failed_is_no_absence_and_stops_nobody_else() {
    let world = World::new([orphan(1), orphan(2)]);
    world.unknown.borrow_mut().insert(instance(1));
    let summary = world.scan(&config(|_| {}));
    assert_eq!((world.queued(), &summary["candidateFailures"]), (vec![2], &json!(1)));
    assert_eq!(world.metric("JanitorFailure LookUp"), 1.0);
    assert_eq!(world.metric("ScanCompleted"), 1.0);
    // Where no look at all is answered, the alarm that no scan was completed has to ring.
    world.unknown.borrow_mut().insert(instance(2));
    world.scan(&config(|_| {}));
    assert_eq!(world.metric("ScanCompleted"), 1.0, "still the one");
    // So where a region is shut: others say what is there, and nothing is ever found to be gone.
    world.unknown.borrow_mut().remove(&instance(2));
    world.live(2);
    let summary = world.scan(&config(|_| {}));
    assert_eq!(
        (&summary["existingResources"], &summary["candidateFailures"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(world.metric("ScanCompleted"), 1.0, "still the one");
}

#[test]
fn j38_a_candidate_that_the_queue_does_not_take_is_a_failure_of_its_own() {
    let world = World::new([orphan(1), orphan(2), orphan(3)]);
    world.refused.borrow_mut().insert(2);
    let summary = world.scan(&config(|_| {}));
    assert_eq!(world.queued(), [1, 3]);
    assert_eq!(
        (&summary["candidatesQueued"], &summary["candidateFailures"]),
        (&json!(2), &json!(1))
    );
    for error in [out("send"), Error::Permanent("the queue does not exist".into())] {
        let world = World::new([orphan(1)]);
        world.break_call("send", error);
        let summary = world.scan(&config(|_| {}));
        assert_eq!(
            (&summary["candidatesQueued"], &summary["candidateFailures"]),
            (&json!(0), &json!(1))
        );
        assert_eq!(world.metric("JanitorFailure Queue"), 1.0);
        assert_eq!(world.metric("ScanCompleted"), 0.0, "nothing can ever come of it");
    }
}

#[test]
fn j39_the_limit_is_for_all_groups_together() {
    let world = World::new((1..=5).map(orphan));
    world.list(&group(2), (11..=15).map(orphan));
    let limited = |max: usize| {
        world.queue.borrow_mut().clear();
        let mut config = groups(&[1, 2]);
        config.max_candidates = max;
        let summary = world.scan(&config);
        (world.queued().len(), summary["stopReason"].clone())
    };
    assert_eq!(limited(7), (7, json!("candidate-limit")));
    assert_eq!(limited(5), (5, json!("candidate-limit")), "the second group is not begun");
    assert_eq!(limited(10), (10, json!("completed")), "all there were");
    assert_eq!(limited(1), (1, json!("candidate-limit")));
}

#[test]
fn j40_what_is_kept_or_fails_does_not_use_the_limit_up() {
    let world = World::new([orphan(1), orphan(2), orphan(3), orphan(4)]);
    world.live(1);
    world.unknown.borrow_mut().insert(instance(2));
    world.refused.borrow_mut().insert(3);
    let summary = world.scan(&config(|c| c.max_candidates = 1));
    assert_eq!(world.queued(), [4], "{summary}");
}

#[test]
fn j41_j42_without_time_nothing_new_is_begun_and_the_scan_ends_as_well_as_any() {
    // Guards: before page 1, before the look-up, before the send, before page 2.
    for (begins, calls) in [(0, 0), (1, 2), (2, 3), (3, 4), (4, 6)] {
        let world = World::new(std::iter::once(orphan(1)).chain(others(2..150)));
        world.begins.set(begins);
        let summary = world.scan(&config(|_| {}));
        let reason = if begins < 4 { "deadline" } else { "completed" };
        assert_eq!((world.calls().len(), &summary["stopReason"]), (calls, &json!(reason)));
        assert_eq!(world.queued().len(), usize::from(begins >= 3));
    }
}

#[test]
fn j44_j45_j46_a_message_says_who_was_seen_when_and_under_which_scope() {
    let world = World::new([orphan(7)]);
    let config = config(|_| {});
    world.scan(&config);
    let message: Value = serde_json::from_str(&world.queue.borrow()[0].message()).unwrap();
    let scope = config.fingerprint(&Machines(&world));
    let expected = json!({"runnerId": 7, "runnerName": name(7), "resourceId": instance(7),
        "groupId": 1, "observedAt": NOW.millis(), "scope": scope});
    assert_eq!(message, expected, "and no progress of the scan");
}

#[test]
fn a_message_about_a_repositorys_runner_names_the_repository() {
    let world = World::new([]);
    world.list(&repository("widgets"), [orphan(7)]);
    let Part::Repository(widgets) = repository("widgets") else { unreachable!() };
    let config = config(|c| c.scope = Scope::Repositories(vec![widgets]));
    world.scan(&config);
    let message: Value = serde_json::from_str(&world.queue.borrow()[0].message()).unwrap();
    assert_eq!(message["repository"], "acme/widgets");
    assert!(message.get("groupId").is_none());
    world.pass(OBSERVATION);
    assert_eq!((world.confirm(&config), world.ids().len()), (vec![], 0), "and is found by it");
}

#[test]
fn j45_the_time_of_the_observation_is_when_all_of_it_was_over() {
    let world = World::new([orphan(1)]);
    world.before(&format!("exist {}", instance(1)), |world| world.pass(Duration::from_secs(40)));
    world.scan(&config(|_| {}));
    assert_eq!(world.queue.borrow()[0].observed_at, NOW + Duration::from_secs(40));
}

#[test]
fn j16_j17_j19_a_dry_run_queues_nothing_and_counts_against_the_limit() {
    let world = World::new((1..=5).map(orphan));
    let summary = world.scan(&config(|c| {
        c.dry_run = true;
        c.max_candidates = 3;
    }));
    assert_eq!((world.made("send"), world.queued().len()), (0, 0));
    assert_eq!(
        (&summary["dryRunCandidates"], &summary["stopReason"], &summary["dryRun"]),
        (&json!(3), &json!("candidate-limit"), &json!(true))
    );
}

#[test]
fn j86_every_scan_tells_the_same_things_however_it_ends() {
    let keys = [
        "candidateFailures",
        "candidatesQueued",
        "dryRun",
        "dryRunCandidates",
        "existingResources",
        "pageFailures",
        "pagesScanned",
        "stopReason",
    ];
    for (begins, max) in [(usize::MAX, 100), (1, 100), (0, 100), (usize::MAX, 1)] {
        let world = World::new((1..=3).map(orphan));
        world.begins.set(begins);
        let summary = world.scan(&config(|c| c.max_candidates = max));
        assert_eq!(summary.as_object().unwrap().keys().collect::<Vec<_>>(), keys);
        assert!(world.metrics.borrow().contains_key("RegistrationsSeen"));
        let completed = if summary["stopReason"] == "completed" { 1.0 } else { 0.0 };
        assert_eq!(world.metric("ScanCompleted"), completed, "{summary}");
    }
    let world = World::new((1..=3).map(orphan));
    world.scan(&config(|_| {}));
    assert_eq!(world.metric("RegistrationCandidates"), 3.0);
    assert_eq!(
        (world.metric("ScanCompleted"), world.metric("GitHubQuotaLeft 4242")),
        (1.0, 4999.0)
    );
}

#[test]
fn jp_06_each_group_is_listed_once_in_a_scan() {
    let world = World::new((1..=99).map(orphan));
    world.list(&group(2), (101..=199).map(orphan));
    let mut config = groups(&[1, 2]);
    config.max_candidates = 1000;
    let summary = world.scan(&config);
    assert_eq!((world.made("page"), &summary["candidatesQueued"]), (2, &json!(198)));
}

#[test]
fn a_list_without_end_is_left_after_twice_the_pages_of_the_largest_group() {
    struct Endless<'a>(&'a World);
    impl Registrations for Endless<'_> {
        type Session = ();
        async fn session(&self, _: &Part) -> Result<()> {
            Ok(())
        }
        async fn page(&self, (): &(), _: &Part, page: u32) -> Result<Listed> {
            self.0.say(format!("page {page}"));
            Ok(Listed { registrations: vec![], entries: PAGE })
        }
        async fn registration(&self, (): &(), _: &Part, _: i64) -> Result<Option<Registration>> {
            Ok(None)
        }
        async fn remove(&self, (): &(), _: &Part, _: i64) -> Result<Removal> {
            Ok(Removal::Gone)
        }
        fn quotas(&self) -> Vec<(u64, u64)> {
            vec![]
        }
    }
    struct EndlessJanitor<'a> {
        endless: Endless<'a>,
        provider: Machines<'a>,
    }
    impl<'a> Context for EndlessJanitor<'a> {
        type Registrations = Endless<'a>;
        type Confirmations = World;
        type Provider = Machines<'a>;
        fn name(&self) -> &str {
            "janitor"
        }
        fn registrations(&self) -> &Endless<'a> {
            &self.endless
        }
        fn confirmations(&self) -> &World {
            self.endless.0
        }
        fn provider(&self) -> &Machines<'a> {
            &self.provider
        }
        fn clock(&self) -> &impl Clock {
            self.endless.0
        }
        fn telemetry(&self) -> &impl Telemetry {
            self.endless.0
        }
    }
    let world = World::new([]);
    let janitor = EndlessJanitor { endless: Endless(&world), provider: Machines(&world) };
    run(handle(&janitor, &config(|_| {}), &json!({}), || true)).unwrap();
    assert_eq!(world.made("page"), 200);
    assert_eq!(world.metric("ScanCompleted"), 0.0, "there is more of it, which no scan sees");
}
