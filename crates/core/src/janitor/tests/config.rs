//! The configuration, and what a candidate's fingerprint covers.

use super::*;

fn valid() -> Value {
    json!({"organization": "acme", "runnerGroupIds": [7, 3, 7], "runnerNamePrefix": PREFIX,
        "computeProvider": {"type": "ec2-instance-id",
            "options": {"regions": ["us-east-1", "eu-west-1", "us-east-1"]}},
        "dryRun": true, "maxCandidates": 100, "ghesApiUrl": ""})
}

fn parse(value: &Value) -> Result<Config> {
    Config::parse(Some(&value.to_string()))
}

/// The text of the refusal.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let mut value = valid();
    change(&mut value);
    let Err(Error::Permanent(text)) = parse(&value) else { panic!("taken: {value}") };
    assert!(text.starts_with("invalid config"), "{text}");
    text
}

#[test]
fn j10_a_janitor_without_a_configuration_does_nothing() {
    for text in [None, Some(""), Some("  "), Some("{"), Some("null"), Some("[]"), Some("{}")] {
        let error = Config::parse(text).unwrap_err();
        assert!(
            matches!(&error, Error::Permanent(why) if why.contains("invalid config")),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn j06_j11_what_is_missing_or_wrong_is_refused_by_name() {
    for key in ["organization", "runnerNamePrefix"] {
        for bad in [json!(null), json!(""), json!("  "), json!(7), json!("x".repeat(120))] {
            assert!(refused(|value| value[key] = bad).contains(key), "{key}");
        }
    }
    for bad in [
        json!(null),
        json!([]),
        json!("3"),
        json!([0]),
        json!([-1]),
        json!([3, "4"]),
        json!([1.5]),
        json!([9_007_199_254_740_992_i64]),
    ] {
        assert!(refused(|value| value["runnerGroupIds"] = bad).contains("runnerGroupIds"));
    }
    for bad in [json!(null), json!("false"), json!(0)] {
        assert!(refused(|value| value["dryRun"] = bad).contains("dryRun"));
    }
    let text = refused(|value| {
        value.as_object_mut().unwrap().remove("dryRun");
    });
    assert!(text.contains("dryRun"), "what is not said is never live: {text}");
    for bad in [json!(null), json!(0), json!(-1), json!(1001), json!(1.5), json!("100")] {
        assert!(refused(|value| value["maxCandidates"] = bad).contains("maxCandidates"));
    }
    for good in [1, 1000] {
        let mut value = valid();
        value["maxCandidates"] = json!(good);
        assert_eq!(parse(&value).unwrap().max_candidates, good);
    }
    let text = refused(|value| *value = json!({"organization": ""}));
    for key in ["organization", "runnerGroupIds", "computeProvider", "dryRun", "maxCandidates"] {
        assert!(text.contains(key), "all at once: {text}");
    }
}

#[test]
fn j06_j13_regions_are_required_and_real() {
    for bad in [
        json!(null),
        json!([]),
        json!([""]),
        json!(["us-east-1", " "]),
        json!("us-east-1"),
        json!(["us-east-1", 1]),
        json!(["us-east-1.example.com/"]),
    ] {
        let text = refused(|value| value["computeProvider"]["options"]["regions"] = bad);
        assert!(text.contains("regions"), "{text}");
    }
}

#[test]
fn j14_an_unknown_provider_is_refused() {
    for bad in [json!(null), json!("ec2"), json!(""), json!("EC2-instance-id")] {
        let text = refused(|value| value["computeProvider"]["type"] = bad);
        assert!(text.contains("computeProvider.type"), "{text}");
    }
    assert!(refused(|value| value["computeProvider"] = json!(7)).contains("computeProvider.type"));
}

#[test]
fn j15_groups_and_regions_are_sorted_and_each_is_there_once() {
    let config = parse(&valid()).unwrap();
    assert_eq!(config.scope.parts(), [group(3), group(7)]);
    assert_eq!(config.provider.regions(), ["eu-west-1", "us-east-1"]);
    assert!(config.dry_run);
}

#[test]
fn j05_an_organisation_with_groups_or_repositories_but_not_both() {
    let repositories = json!(["Acme/widgets", " beta/tools ", "acme/Widgets"]);
    let mut value = valid();
    value["repositories"] = repositories.clone();
    assert!(parse(&value).is_err(), "both");
    value["organization"] = json!("");
    value["runnerGroupIds"] = json!([]);
    let names: Vec<_> =
        parse(&value).unwrap().scope.parts().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["acme/widgets", "beta/tools"]);
    for bad in [json!(["widgets"]), json!(["a/b/c"]), json!([7]), json!("acme/widgets")] {
        value["repositories"] = bad;
        assert!(parse(&value).is_err(), "{value}");
    }
}

#[test]
fn ostlers_own_runners_are_known_by_the_name_key_and_by_no_prefix() {
    let mut value = valid();
    let arn = "arn:aws:states:eu-west-1:123456789012:stateMachine:ostler-orchestrator";
    value["runnerNamePrefix"] = json!("");
    value["computeProvider"] = json!({"type": "ostler", "options": {"regions": ["eu-west-1"],
        "stateMachineArn": arn, "nameKeyParamName": "/ostler/control/name-key"}});
    let config = parse(&value).unwrap();
    assert_eq!((config.provider.kind(), config.provider.prefix()), ("ostler", ""));
    for (key, bad) in [("stateMachineArn", json!("ostler")), ("nameKeyParamName", json!(""))] {
        let mut value = value.clone();
        value["computeProvider"]["options"][key] = bad;
        let error = parse(&value).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    value["runnerNamePrefix"] = json!("x-");
    assert!(parse(&value).is_err());
}

#[test]
fn j46_j48_the_fingerprint_covers_what_a_candidate_was_found_under_and_nothing_else() {
    let print = |world: &World, config: &Config| config.fingerprint(&Machines(world));
    let world = World::new([]);
    let one = print(&world, &config(|_| {}));
    assert_eq!(one.len(), 64);
    assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(one, print(&world, &config(|_| {})), "stable");
    let same = config(|c| {
        c.dry_run = true;
        c.max_candidates = 1;
    });
    assert_eq!(one, print(&world, &same));
    let set_groups = |groups: Vec<i64>| {
        config(|c| c.scope = Scope::Organization { name: "acme".into(), groups })
    };
    let others = [
        set_groups(vec![1, 2]),
        set_groups(vec![2]),
        config(|c| c.scope = Scope::Organization { name: "beta".into(), groups: vec![1] }),
        config(|c| c.github_api = "https://git.acme.example/api/v3".into()),
        config(|c| {
            c.provider = ProviderConfig::Ec2InstanceId { prefix: "other-".into(), regions: vec![] };
        }),
    ];
    let mut prints: BTreeSet<_> = others.iter().map(|other| print(&world, other)).collect();
    *world.provider_scope.borrow_mut() = "elsewhere".into();
    prints.insert(print(&world, &config(|_| {})));
    prints.insert(one);
    assert_eq!(prints.len(), others.len() + 2, "each is another");
}

#[test]
fn j73_the_address_of_a_ghes_is_read_without_a_slash_at_its_end() {
    let mut value = valid();
    value["ghesApiUrl"] = json!("https://git.acme.example/api/v3/");
    assert_eq!(parse(&value).unwrap().github_api, "https://git.acme.example/api/v3");
}
