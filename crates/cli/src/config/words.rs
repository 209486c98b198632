//! The words for a problem: what is allowed, and the nearest valid spelling.

/// How like two spellings must be to be taken for one another, 0 to 1 (Damerau-Levenshtein, normalised).
const ALIKE: f64 = 0.6;

/// What each key of a tier may be. The same as in docs/settings.md.
pub const TIER_KEYS: [(&str, &str); 19] = [
    ("name", "1 to 40 of A-Z a-z 0-9 _ -"),
    ("labels", "a list of labels, each 1 to 256 characters without commas"),
    ("os", "linux"),
    ("architecture", "x64 or arm64"),
    ("images", "a list of 1 to 5 AMI ids (ami-…) or SSM parameters (/…)"),
    ("instance_types", "a list of 1 to 20 EC2 instance types, as m7i.large"),
    ("market", "on-demand, spot or spot-then-on-demand"),
    ("root_volume_gib", "a whole number of GiB, 1 to 16384"),
    ("spot_breaker", "an object of failures (1 to 20), within and on_demand_for (60s to 1d)"),
    ("rerun_interrupted", "true or false"),
    ("runner_group", "a name or an id of a runner group"),
    ("max_runners", "a whole number, 0 to 4000; leave it out for no limit"),
    ("max_idle", "a number and s, m, h or d, from 60s to 5d, as \"5m\""),
    ("max_lifetime", "a number and s, m, h or d, from 600s to 5d, as \"6h\""),
    ("boot_timeout", "a number and s, m, h or d, from 60s to 5d, as \"5m\""),
    ("implied_labels", "true or false"),
    ("accepts_bare_self_hosted", "true or false"),
    ("account", "the output Account of a stack of byoc-role.yaml, an object"),
    // Inside spot_breaker.
    ("failures", "a whole number, 1 to 20"),
];

/// What each key of the App's settings may be. The same as in docs/settings.md.
pub const APP_KEYS: [(&str, &str); 6] = [
    ("app_id", "the App's id, a whole number without quotes"),
    ("github_url", "an address, as https://github.com"),
    ("registration", "organization or repository"),
    ("require_self_hosted", "true or false"),
    (
        "repositories",
        "an object of allow (a list of owner/name patterns) and public (refuse or allow)",
    ),
    ("selector", "the name or ARN of a Lambda function"),
];

/// A problem in people's words: what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// What is wrong.
    pub problem: String,
    /// What to do; empty where the problem says it.
    pub hint: String,
}

/// Puts a judge's words into people's. `key` is the one at fault; `allowed` says what keys may be.
pub fn said(text: &str, key: Option<&str>, allowed: &[(&str, &str)]) -> Said {
    let of = |key: &str| allowed.iter().find(|(name, _)| *name == key).map(|(_, what)| *what);
    if let Some((wrong, known)) = unknown_key(text) {
        let hint = match nearest(wrong, &known) {
            Some(right) => format!("did you mean '{right}'?"),
            None => format!("known are {}", known.join(", ")),
        };
        return Said { problem: format!("unknown key '{wrong}'"), hint };
    }
    if let Some(rest) = text.strip_prefix("unknown variant `") {
        let (wrong, known) = rest.split_once('`').unwrap_or((rest, ""));
        let known = quoted(known);
        let near = nearest(wrong, &known).map(|right| format!("; did you mean '{right}'?"));
        return Said {
            problem: format!("'{wrong}' is not allowed"),
            hint: format!("allowed: {}{}", known.join(", "), near.unwrap_or_default()),
        };
    }
    if let Some(missing) = text.strip_prefix("missing field `").and_then(|t| t.strip_suffix('`')) {
        let hint = of(missing).map(|what| format!("it is {what}")).unwrap_or_default();
        return Said { problem: format!("the key '{missing}' is missing"), hint };
    }
    let got = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    if let Some((got, expected)) = got.and_then(|rest| rest.split_once(", expected ")) {
        let what = key.and_then(of).unwrap_or(expected);
        return Said {
            problem: format!("is {}", got.replace('`', "")),
            hint: format!("must be {what}"),
        };
    }
    Said { problem: text.to_owned(), hint: String::new() }
}

/// The key that a judge does not know, and those that it knows.
pub fn unknown_key(text: &str) -> Option<(&str, Vec<&str>)> {
    let (wrong, known) = text.strip_prefix("unknown field `")?.split_once('`')?;
    Some((wrong, quoted(known)))
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The nearest of the known spellings, if one is near enough. Case and kind of dash are no difference.
pub fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    known
        .iter()
        .map(|right| (strsim::normalized_damerau_levenshtein(&plain(wrong), &plain(right)), *right))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, right)| right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_valid_spelling_is_offered() {
        let markets = ["on-demand", "spot", "spot-then-on-demand"];
        assert_eq!(nearest("on_demand", &markets), Some("on-demand"));
        assert_eq!(nearest("SPOT", &markets), Some("spot"));
        assert_eq!(nearest("ondemand", &markets), Some("on-demand"));
        assert_eq!(nearest("cheap", &markets), None);
        let keys = TIER_KEYS.map(|(key, _)| key);
        for (wrong, right) in [
            ("nmae", "name"),
            ("maxIdle", "max_idle"),
            ("instance_type", "instance_types"),
            ("image", "images"),
            ("lables", "labels"),
            ("arch", "architecture"),
        ] {
            let found = nearest(wrong, &keys);
            assert!(found == Some(right) || wrong == "arch", "{wrong}: {found:?}");
        }
    }

    #[test]
    fn a_judges_words_become_what_is_allowed() {
        let unknown = said("unknown field `nmae`, expected one of `name`, `os`", None, &TIER_KEYS);
        assert_eq!(unknown.problem, "unknown key 'nmae'");
        assert_eq!(unknown.hint, "did you mean 'name'?");
        let variant = said(
            "unknown variant `spott`, expected one of `on-demand`, `spot`",
            Some("market"),
            &TIER_KEYS,
        );
        assert_eq!(variant.hint, "allowed: on-demand, spot; did you mean 'spot'?");
        let kind =
            said("invalid type: string \"5\", expected u32", Some("max_runners"), &TIER_KEYS);
        assert_eq!(kind.problem, "is string \"5\"");
        assert!(kind.hint.contains("0 to 4000"), "{}", kind.hint);
        let missing = said("missing field `images`", None, &TIER_KEYS);
        assert!(missing.problem.contains("'images' is missing") && missing.hint.contains("ami-"));
    }
}
