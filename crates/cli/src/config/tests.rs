use proptest::prelude::*;

use super::*;

fn source(kind: Kind, text: &str) -> Source {
    Source { name: "file.json".into(), kind, text: text.to_owned() }
}

fn findings(kind: Kind, text: &str) -> Vec<Finding> {
    judge(&[source(kind, text)]).findings
}

/// Line, key, and all words of each failure.
fn failures(kind: Kind, text: &str) -> Vec<(usize, String, String)> {
    findings(kind, text)
        .into_iter()
        .filter(|finding| finding.level == Level::Fail)
        .map(|finding| {
            let words = format!("{}; {}", finding.problem, finding.hint);
            (finding.line.unwrap(), finding.key, words)
        })
        .collect()
}

#[test]
fn all_problems_of_a_file_are_told_at_once_with_line_and_key() {
    let text = r#"{"tiers": [
  {"nmae": "small",
   "architecture": "x86",
   "images": ["ami-1", "ubuntu"],
   "instance_types": ["m7i.large"],
   "labels": ["ok", "ubuntu-latest", "a,b"],
   "max_runners": "5",
   "max_idle": "5",
   "spot_breaker": {"failurs": 3, "within": "1s"},
   "market": "spot_then_on_demand"},
  {"name": "two", "architecture": "x64", "instance_types": [], "labels": ["two"],
   "max_idle": "1m", "max_idle": "2m"}
]}"#;
    let found = failures(Kind::Tiers, text);
    let expected = [
        (2, "nmae", "did you mean 'name'?"),
        (3, "architecture", "allowed: x64, arm64"),
        (4, "images[1]", "AMI id"),
        (6, "labels[1]", "GitHub's own runners"),
        (6, "labels[2]", "without commas"),
        (7, "max_runners", "must be a whole number, 0 to 4000"),
        (8, "max_idle", "from 60s to 5d"),
        (9, "spot_breaker.failurs", "did you mean 'failures'?"),
        (9, "spot_breaker.within", "60s to 1d"),
        (10, "market", "did you mean 'spot-then-on-demand'?"),
        (11, "instance_types", "1 to 20"),
        (11, "", "'images' is missing"),
        (12, "tiers[1].max_idle", "stands twice"),
    ];
    for (line, key, says) in expected {
        let fits = |(at, of, words): &&(usize, String, String)| {
            (*at, of.as_str()) == (line, key) && words.contains(says)
        };
        assert_eq!(found.iter().filter(fits).count(), 1, "{line} {key} {says}: {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn each_key_of_a_tier_and_of_the_app_has_its_words() {
    let keys = |text: String| -> Vec<String> {
        let (_, known) = words::unknown_key(&text).unwrap();
        known.into_iter().map(str::to_owned).collect()
    };
    let mut tier = Value::Object(sound_tier("a"));
    tier["zzzzzz"] = json!(1);
    let known = keys(tier_problem(&tier, Registration::Organization).unwrap());
    for key in &known {
        assert!(TIER_KEYS.iter().any(|(name, _)| name == key), "{key}");
    }
    assert_eq!(known.len() + 1, TIER_KEYS.len(), "and one inside spot_breaker");
    let app = keys(app_problem(&json!({"app_id": 1, "zzzzzz": 1})).unwrap());
    assert_eq!(app, APP_KEYS.map(|(key, _)| key));
}

#[test]
fn app_settings_are_checked_as_the_functions_read_them_and_as_github_needs_them() {
    let text = r#"{
  "app_id": "4242",
  "github_url": "http://git.acme.example",
  "registration": "repo",
  "repositories": {"alow": ["acme/*"], "public": "refuse"},
  "selector": ""
}"#;
    let found = failures(Kind::App, text);
    for (line, key, says) in [
        (2, "app_id", "without quotes"),
        (3, "github_url", "must begin with https://"),
        (4, "registration", "allowed: organization, repository"),
        (5, "repositories.alow", "did you mean 'allow'?"),
        (6, "selector", "name or ARN"),
    ] {
        let fits = |(at, of, words): &&(usize, String, String)| {
            (*at, of.as_str()) == (line, key) && words.contains(says)
        };
        assert_eq!(found.iter().filter(fits).count(), 1, "{line} {key}: {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
    let patterns = r#"{"app_id": 1, "repositories": {"allow": ["acme/*", "*", "acme", "a/b/c"]}}"#;
    let found = failures(Kind::App, patterns);
    assert!(found.iter().all(|(_, key, _)| key == "repositories.allow"), "{found:#?}");
    assert!(!found.is_empty());
    assert_eq!(failures(Kind::App, r#"{"app_id": 1, "repositories": {"allow": ["*"]}}"#), []);
}

#[test]
fn a_text_that_is_no_json_names_the_line_of_its_fault() {
    let found = failures(Kind::Tiers, "{\"tiers\": [\n  {\"name\": \"a\",}\n]}");
    assert_eq!((found.len(), found[0].0), (1, 2), "{found:?}");
    for (text, says) in
        [("{}", "no list 'tiers'"), (r#"{"tiers": {}}"#, "no list"), ("[]", "no list")]
    {
        assert!(failures(Kind::Tiers, text)[0].2.contains(says), "{text}");
    }
    let near = findings(Kind::Tiers, r#"{"tier": []}"#);
    assert!(near.iter().any(|finding| finding.hint.contains("'tiers'")), "{near:?}");
    assert_eq!(findings(Kind::Tiers, r#"{"tiers": []}"#), [], "an install that is paused");
}

#[test]
fn a_manifest_of_apps_is_checked_without_repeating_its_text() {
    let text = r#"[{"idParamName": "/a/id", "keyParamName": "/a/key"},
 {"idParamName": "SECRET"}]"#;
    let found = failures(Kind::Apps, text);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0, found[0].1.as_str()), (2, "[1]"));
    assert!(!found[0].2.contains("SECRET"));
    assert!(failures(Kind::Apps, "{}")[0].2.contains("list"));
}

#[test]
fn what_a_file_is_shows_in_its_keys() {
    assert_eq!(kind_of(r#"{"tiers": []}"#), Kind::Tiers);
    assert_eq!(kind_of(r#"{"app_ID": 1}"#), Kind::App);
    assert_eq!(kind_of("[]"), Kind::Apps);
    assert_eq!(kind_of("{"), Kind::Tiers);
}

#[test]
fn a_runner_group_needs_organizations_whichever_file_says_so() {
    let app = source(Kind::App, r#"{"app_id": 1, "registration": "repository"}"#);
    let tiers = source(
        Kind::Tiers,
        r#"{"tiers": [{"name": "a", "architecture": "x64", "images": ["ami-1"],
            "instance_types": ["m7i.large"], "runner_group": "gpu"}]}"#,
    );
    let found = judge(&[tiers.clone(), app]).findings;
    assert_eq!((found.len(), found[0].key.as_str()), (1, "runner_group"), "{found:?}");
    assert_eq!(judge(&[tiers]).findings, []);
}

#[test]
fn tiers_in_each_others_way_are_told_of() {
    let tier = |name: &str, more: Value| {
        let mut tier = sound_tier(name);
        tier.extend(more.as_object().cloned().unwrap());
        Value::Object(tier)
    };
    let levels = |tiers: &[Value]| -> Vec<(String, String, Level)> {
        let found = findings(Kind::Tiers, &json!({ "tiers": tiers }).to_string());
        let of = |finding: Finding| (finding.tier.unwrap(), finding.key, finding.level);
        found.into_iter().map(of).collect()
    };
    let found = |tier: &str, key: &str, level| (tier.to_owned(), key.to_owned(), level);
    let (x, y) = (json!({"labels": ["X"]}), json!({"labels": ["y"]}));
    assert_eq!(levels(&[tier("a", x.clone()), tier("b", y)]), []);
    let same = [tier("a", x.clone()), tier("b", json!({"labels": ["x"]}))];
    assert_eq!(levels(&same), [found("b", "labels", Level::Fail)]);
    let wider = [tier("a", json!({})), tier("b", x)];
    assert_eq!(levels(&wider), [found("b", "labels", Level::Warn)]);
    let twice = [tier("a", json!({"labels": ["x"]})), tier("a", json!({"labels": ["y"]}))];
    assert_eq!(levels(&twice), [found("a", "name", Level::Fail)]);
    let alone = json!({"implied_labels": false, "labels": ["x"], "accepts_bare_self_hosted": true,
        "max_idle": "2h", "max_lifetime": "1h", "spot_breaker": {"failures": 2},
        "instance_types": ["m7g.large"]});
    assert_eq!(
        levels(&[tier("a", alone)]),
        [
            found("a", "accepts_bare_self_hosted", Level::Warn),
            found("a", "max_idle", Level::Warn),
            found("a", "spot_breaker", Level::Warn),
            found("a", "instance_types", Level::Fail),
        ]
    );
}

#[test]
fn a_finding_is_one_line_that_editors_can_jump_to() {
    let finding = Finding {
        source: "tiers.json".into(),
        line: Some(4),
        tier: Some("small".into()),
        key: "max_idle".into(),
        level: Level::Fail,
        problem: "is 5".into(),
        hint: "must be 60s".into(),
    };
    let line = line_of(&Output::plain(false), &finding);
    assert_eq!(line, "tiers.json:4: FAIL tier 'small': max_idle: is 5; must be 60s");
    let bare =
        Finding { line: None, tier: None, key: String::new(), hint: String::new(), ..finding };
    assert_eq!(line_of(&Output::plain(false), &bare), "tiers.json: FAIL is 5");
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z0-9-]{0,8}|5m|ami-1|x64|spot|ubuntu-latest".prop_map(Value::from),
        prop::collection::vec("[a-z,]{0,4}", 0..7).prop_map(Value::from),
        Just(json!({"failures": 99, "x": 1})),
    ]
}

proptest! {
    /// The law of the check: it finds a failure in exactly what the functions would leave out.
    #[test]
    fn the_check_and_the_functions_never_disagree(
        changes in prop::collection::vec((0..TIER_KEYS.len(), any_value()), 0..5),
        absent in prop::collection::vec(0..TIER_KEYS.len(), 0..2),
    ) {
        let mut tier = sound_tier("a");
        for (key, value) in changes {
            tier.insert(TIER_KEYS[key].0.to_owned(), value);
        }
        for key in absent {
            tier.remove(TIER_KEYS[key].0);
        }
        let tier = Value::Object(tier);
        let sound = sound_tier("b");
        let judge = |tier: &Value| tier_problem(tier, Registration::Organization);
        let (faults, mended) = faults::all(&tier, &sound, judge);
        prop_assert_eq!(faults.is_empty(), judge(&tier).is_none());
        prop_assert_eq!(judge(&mended), None, "what is mended is valid");
    }
}
