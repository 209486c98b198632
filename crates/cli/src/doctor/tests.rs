//! Verdicts over what was found.

use std::collections::BTreeMap;

use ostler_core::config::Settings;
use ostler_core::secret::Secret;

use super::*;

fn permissions(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, level)| ((*name).to_owned(), (*level).to_owned())).collect()
}

fn granted() -> BTreeMap<String, String> {
    permissions(&[
        ("actions", "write"),
        ("metadata", "read"),
        ("deployments", "read"),
        ("organization_self_hosted_runners", "write"),
    ])
}

fn seen() -> AppSeen {
    AppSeen {
        slug: "ostler-acme".into(),
        permissions: granted(),
        events: vec!["workflow_job".into()],
    }
}

fn worst(findings: &[Finding]) -> Verdict {
    findings.iter().map(|finding| finding.verdict).max().unwrap()
}

/// Whatever is not well says what to do.
fn all_have_a_fix(findings: &[Finding]) {
    for finding in findings {
        assert_eq!(finding.fix.is_some(), finding.verdict != Verdict::Ok, "{finding:?}");
    }
}

#[test]
fn parameters_that_are_missing_fail_and_name_themselves() {
    let findings = secrets(&Settings::default());
    let failed: Vec<_> = findings
        .iter()
        .filter(|it| it.verdict == Verdict::Fail)
        .map(|it| it.what.as_str())
        .collect();
    assert_eq!(
        failed,
        [
            "control/app",
            "control/app-private-key",
            "control/webhook-secret",
            "control/name-key",
            "control/tiers"
        ]
    );
    all_have_a_fix(&findings);
    let texts = BTreeMap::from([
        ("control/webhook-secret".to_owned(), Secret::new("s")),
        ("control/name-key".to_owned(), Secret::new("k")),
        ("control/tiers".to_owned(), Secret::new(r#"{"tiers": [{"name": "x"}]}"#)),
    ]);
    let findings = secrets(&Settings::from_parameters(&texts));
    let of = |what: &str| findings.iter().find(|it| it.what == what).unwrap();
    assert_eq!(
        (of("control/webhook-secret").verdict, of("control/name-key").verdict),
        (Verdict::Ok, Verdict::Ok)
    );
    assert_eq!(of("control/tiers").verdict, Verdict::Fail);
    assert!(of("control/tiers").found.contains("x"), "{:?}", of("control/tiers"));
    assert!(!format!("{findings:?}").contains("Secret"), "no secret is told");
}

#[test]
fn an_app_needs_its_permissions_and_one_event() {
    assert_eq!(worst(&app(Registration::Organization, &seen())), Verdict::Ok);
    // At repositories it is another permission.
    let findings = app(Registration::Repository, &seen());
    assert!(findings[0].found.contains("administration: write"), "{findings:?}");
    for missing in ["actions", "metadata", "organization_self_hosted_runners"] {
        let mut without = seen();
        without.permissions.remove(missing);
        let findings = app(Registration::Organization, &without);
        assert_eq!(worst(&findings), Verdict::Fail, "{missing}");
        assert!(findings[0].found.contains(missing));
        all_have_a_fix(&findings);
    }
    let mut less = seen();
    less.permissions.insert("organization_self_hosted_runners".into(), "read".into());
    assert_eq!(
        worst(&app(Registration::Organization, &less)),
        Verdict::Fail,
        "reading is not enough"
    );
    let mut without = seen();
    without.permissions.remove("deployments");
    assert_eq!(worst(&app(Registration::Organization, &without)), Verdict::Warn);
    let mut reader = seen();
    reader.permissions.insert("actions".into(), "read".into());
    assert_eq!(worst(&app(Registration::Organization, &reader)), Verdict::Warn);
    let deaf = AppSeen { events: vec!["push".into()], ..seen() };
    assert_eq!(worst(&app(Registration::Organization, &deaf)), Verdict::Fail);
    let curious = AppSeen { events: vec!["push".into(), "workflow_job".into()], ..seen() };
    assert_eq!(worst(&app(Registration::Organization, &curious)), Verdict::Warn);
}

#[test]
fn an_installation_that_has_not_accepted_is_named() {
    let installed = |login: &str| InstallationSeen {
        login: login.into(),
        permissions: granted(),
        suspended: false,
    };
    let judge = |all: &[InstallationSeen]| installations(Registration::Organization, all);
    assert_eq!(worst(&judge(&[installed("acme")])), Verdict::Ok);
    assert_eq!(worst(&judge(&[])), Verdict::Fail);
    let old = InstallationSeen {
        permissions: permissions(&[("metadata", "read")]),
        ..installed("initech")
    };
    let findings = judge(&[installed("acme"), old]);
    assert!(
        worst(&findings) == Verdict::Fail && findings[0].found.contains("initech"),
        "{findings:?}"
    );
    let asleep = InstallationSeen { suspended: true, ..installed("umbrella") };
    assert_eq!(worst(&judge(&[asleep])), Verdict::Warn);
}

#[test]
fn the_webhook_must_lead_to_the_function() {
    let own = "https://abc.lambda-url.eu-west-1.on.aws/";
    let set = HookSeen {
        url: Some("https://abc.lambda-url.eu-west-1.on.aws".into()),
        content_type: Some("json".into()),
        insecure_ssl: Some("0".into()),
        secret: Some("********".into()),
    };
    assert_eq!(worst(&hook(&set, Some(own))), Verdict::Ok, "with or without a slash at its end");
    let elsewhere = HookSeen { url: Some("https://example.com/hook".into()), ..set.clone() };
    assert_eq!(worst(&hook(&elsewhere, Some(own))), Verdict::Fail);
    assert_eq!(worst(&hook(&elsewhere, None)), Verdict::Warn, "a front end of one's own");
    for broken in [
        HookSeen { url: None, ..set.clone() },
        HookSeen { secret: None, ..set.clone() },
        HookSeen { content_type: Some("xml".into()), ..set.clone() },
    ] {
        assert_eq!(worst(&hook(&broken, Some(own))), Verdict::Fail, "{broken:?}");
    }
    for insecure in [serde_json::json!("1"), serde_json::json!(1)] {
        let open = HookSeen { insecure_ssl: Some(insecure), ..set.clone() };
        assert_eq!(worst(&hook(&open, Some(own))), Verdict::Warn);
    }
}

#[test]
fn only_a_refusal_of_what_is_not_signed_is_well() {
    let of = |status| worst(&reachability("https://x", status));
    assert_eq!(of(Ok(401)), Verdict::Ok);
    for status in [200, 202, 403, 404, 500, 502, 503] {
        assert_eq!(of(Ok(status)), Verdict::Fail, "{status}");
    }
    assert_eq!(of(Err("no answer within 15 s".into())), Verdict::Fail);
}

#[test]
fn deliveries_that_fail_now_and_then_are_looked_at_and_most_of_them_are_broken() {
    let ago = Some(Duration::from_secs(90));
    assert_eq!(worst(&deliveries(100, 0, ago)), Verdict::Ok);
    assert_eq!(worst(&deliveries(100, 1, ago)), Verdict::Warn);
    assert_eq!(worst(&deliveries(100, 51, ago)), Verdict::Fail);
    assert_eq!(worst(&deliveries(0, 0, None)), Verdict::Warn);
}

#[test]
fn an_image_must_be_there_be_available_and_fit() {
    let seen = |state: &str, architecture: &str| ImageSeen {
        state: state.into(),
        architecture: architecture.into(),
    };
    let of = |id, seen: Option<ImageSeen>| {
        image("small", "x86_64", "/ostler/images/x", id, seen.as_ref()).verdict
    };
    assert_eq!(of(Some("ami-1"), Some(seen("available", "x86_64"))), Verdict::Ok);
    assert_eq!(of(Some("ami-1"), Some(seen("pending", "x86_64"))), Verdict::Fail);
    assert_eq!(of(Some("ami-1"), Some(seen("available", "arm64"))), Verdict::Fail);
    assert_eq!(of(Some("ami-1"), None), Verdict::Fail);
    assert_eq!(of(None, None), Verdict::Fail);
}

#[test]
fn a_quota_counts_only_where_a_tier_needs_it() {
    let of = |needed, limit, used| quota("spot", SPOT_QUOTA, needed, limit, used).verdict;
    assert_eq!(of(true, 640.0, 100.0), Verdict::Ok);
    assert_eq!(of(true, 640.0, 512.0), Verdict::Warn);
    assert_eq!(of(true, 640.0, 640.0), Verdict::Fail);
    assert_eq!(of(true, 0.0, 0.0), Verdict::Fail);
    assert_eq!(of(false, 0.0, 0.0), Verdict::Ok);
}

#[test]
fn machines_need_a_way_out_that_fits_their_addresses() {
    let of = |way: WayOut, public| egress("subnet-1", &way, public).verdict;
    let nat = || WayOut::Through("nat-1".into());
    assert_eq!(of(WayOut::Internet, Some(true)), Verdict::Ok);
    assert_eq!(of(WayOut::Internet, None), Verdict::Ok);
    assert_eq!(of(WayOut::Internet, Some(false)), Verdict::Fail);
    assert_eq!(of(nat(), Some(false)), Verdict::Ok);
    assert_eq!(of(nat(), Some(true)), Verdict::Warn);
    assert_eq!(of(WayOut::None, Some(true)), Verdict::Fail);
}

#[test]
fn a_clock_may_be_off_by_seconds_either_way() {
    let at = Timestamp::from_seconds;
    for (own, theirs, verdict) in [
        (100, 100, Verdict::Ok),
        (100, 108, Verdict::Ok),
        (100, 130, Verdict::Warn),
        (130, 100, Verdict::Warn),
        (100, 200, Verdict::Fail),
        (200, 100, Verdict::Fail),
    ] {
        assert_eq!(clock(at(own), at(theirs)).verdict, verdict, "{own} {theirs}");
    }
    let date = http_date("Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(date, Timestamp::parse("1994-11-06T08:49:37Z"));
    for odd in ["", "yesterday", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 6 Foo 1994 08:49:37 GMT"] {
        assert_eq!(http_date(odd), None, "{odd}");
    }
}

#[test]
fn a_function_that_is_missing_fails_where_jobs_need_it() {
    assert_eq!(function("f", None, Some("Active")).verdict, Verdict::Ok);
    assert_eq!(function("f", None, None).verdict, Verdict::Fail);
    assert_eq!(function("f", Some("without it …"), None).verdict, Verdict::Warn);
    assert_eq!(function("f", None, Some("Failed")).verdict, Verdict::Fail);
}

#[test]
fn i6_a_look_up_that_failed_is_never_well() {
    let findings = judged("Thing", Err::<(), _>("AccessDenied".into()), |()| {
        vec![Finding::ok("Thing", "fine")]
    });
    assert_eq!(worst(&findings), Verdict::Warn);
    assert!(findings[0].found.contains("could not be checked: AccessDenied"));
    let findings = judged("Thing", Ok(()), |()| vec![Finding::ok("Thing", "fine")]);
    assert_eq!(worst(&findings), Verdict::Ok);
}

#[test]
fn each_line_begins_with_its_verdict_and_is_followed_by_its_fix() {
    let findings = [
        Finding::ok("A", "well"),
        Finding::warn("B", "odd", "Look."),
        Finding::fail("C", "broken", "Mend it."),
    ];
    let text = show(&Output::plain(false), &findings);
    assert_eq!(
        text,
        "OK    A: well\nWARN  B: odd\n      Look.\nFAIL  C: broken\n      Mend it.\n\n1 well, 1 to look at, 1 broken"
    );
    let value = serde_json::to_value(&findings).unwrap();
    assert_eq!(
        value[2],
        serde_json::json!({"what": "C", "verdict": "FAIL", "found": "broken", "fix": "Mend it."})
    );
}
