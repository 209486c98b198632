//! An operator's own function that chooses the tier. Its shapes are those that selectors of
//! cdk-github-runners know, so that they go on working: `{payload, providers, defaultProvider,
//! defaultLabels}` in, `{provider, labels}` out.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::{Settings, Tier};
use crate::error::{Error, Result};
use crate::labels::{Labels, MAX_LABEL, MAX_LABELS};
use crate::ports::{AcceptContext, Selector};
use crate::webhook::Payload;

/// The chosen tier, and what its runner registers.
pub struct Choice<'a> {
    pub tier: &'a Tier,
    pub labels: Labels,
}

/// Asks the selector. `None`: it wants no runner. An answer that names an unknown tier is an error.
pub async fn ask<'a, C: AcceptContext>(
    context: &C,
    function: &str,
    settings: &'a Settings,
    default: Option<&Tier>,
    payload: &Payload,
) -> Result<Option<Choice<'a>>> {
    let request = request(settings, default, &payload.raw);
    let answer = context.selector().choose(function, &request).await?;
    read(settings, &answer, &payload.labels)
}

fn request(settings: &Settings, default: Option<&Tier>, payload: &Value) -> Value {
    let list = |tier: &Tier| tier.labels.iter().map(str::to_owned).collect::<Vec<_>>();
    let providers: BTreeMap<_, _> =
        settings.tiers.iter().map(|tier| (tier.name.clone(), list(tier))).collect();
    let mut request = json!({"payload": payload, "providers": providers});
    if let Some(tier) = default {
        request["defaultProvider"] = json!(tier.name);
        request["defaultLabels"] = json!(list(tier));
    }
    request
}

/// What the job asks for is always registered: GitHub would give it to no other runner, and selectors that were made
/// for cdk-github-runners leave out `self-hosted`, which its runners have by themselves.
fn read<'a>(settings: &'a Settings, answer: &Value, wanted: &Labels) -> Result<Option<Choice<'a>>> {
    let provider = match answer.get("provider") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(name)) if name.trim().is_empty() => return Ok(None),
        Some(Value::String(name)) => name.trim(),
        Some(_) => return Err(wrong("its provider is not a text")),
    };
    let tier =
        settings.tiers.get(provider).ok_or_else(|| wrong("it names a tier that does not exist"))?;
    let labels = match answer.get("labels") {
        None | Some(Value::Null) => tier.labels.clone(),
        Some(Value::Array(labels)) => {
            let texts: Vec<_> = labels.iter().filter_map(Value::as_str).collect();
            let fits = |label: &&str| !label.contains(',') && label.len() <= MAX_LABEL;
            if texts.len() != labels.len() || !texts.iter().all(fits) || texts.len() > MAX_LABELS {
                return Err(wrong("its labels are not up to 100 texts without commas"));
            }
            Labels::new(texts)
        }
        Some(_) => return Err(wrong("its labels are not a list")),
    };
    if labels.is_empty() {
        return Err(wrong("its list of labels is empty"));
    }
    Ok(Some(Choice { tier, labels: labels.with(wanted) }))
}

fn wrong(what: &str) -> Error {
    Error::Permanent(format!("the provider selector's answer can't be used: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiers;

    fn settings() -> Settings {
        Settings { tiers: tiers(&[("a", &["small"]), ("b", &["large"])]), ..Settings::default() }
    }

    #[test]
    fn the_request_has_the_shape_that_selectors_know() {
        let settings = settings();
        let payload = json!({"action": "queued"});
        let request = request(&settings, settings.tiers.get("a"), &payload);
        assert_eq!(
            request,
            json!({"payload": {"action": "queued"},
                "providers": {"a": ["self-hosted", "linux", "x64", "small"],
                    "b": ["self-hosted", "linux", "x64", "large"]},
                "defaultProvider": "a", "defaultLabels": ["self-hosted", "linux", "x64", "small"]})
        );
    }

    #[test]
    fn null_undefined_and_empty_answers_start_nothing() {
        for answer in [json!(null), json!({}), json!({"provider": null}), json!({"provider": ""})] {
            let (settings, wanted) = (settings(), Labels::default());
            assert!(read(&settings, &answer, &wanted).unwrap().is_none(), "{answer}");
        }
    }

    #[test]
    fn unusable_answers_are_errors() {
        for answer in [
            json!({"provider": "c"}),
            json!({"provider": 5}),
            json!({"provider": "a", "labels": []}),
            json!({"provider": "a", "labels": "small"}),
            json!({"provider": "a", "labels": [1]}),
            json!({"provider": "a", "labels": ["x,y"]}),
            json!({"provider": "a", "labels": ["x".repeat(257)]}),
            json!({"provider": "a", "labels": vec!["x"; 101]}),
        ] {
            let (settings, wanted) = (settings(), Labels::default());
            let chosen = read(&settings, &answer, &wanted);
            assert!(matches!(chosen, Err(Error::Permanent(_))), "{answer}");
        }
    }

    #[test]
    fn labels_of_the_selector_are_what_is_registered() {
        let (settings, wanted) = (settings(), Labels::new(["x"]));
        let answer = json!({"provider": "b", "labels": ["x", "y"]});
        let choice = read(&settings, &answer, &wanted).unwrap().unwrap();
        assert_eq!((choice.tier.name.as_str(), choice.labels.to_string()), ("b", "x,y".into()));
        let choice =
            read(&settings, &json!({"provider": "b"}), &Labels::default()).unwrap().unwrap();
        assert_eq!(choice.labels, choice.tier.labels);
    }

    #[test]
    fn lm_12_lm_14_what_the_job_asks_for_is_registered_whatever_the_selector_says() {
        let (settings, wanted) = (settings(), Labels::new(["Self-Hosted", "gpu"]));
        for (answer, registered) in [
            (json!({"provider": "b", "labels": ["GPU"]}), "GPU,Self-Hosted"),
            (json!({"provider": "b", "labels": ["self-hosted", "gpu", "z"]}), "self-hosted,gpu,z"),
            (json!({"provider": "b"}), "self-hosted,linux,x64,large,gpu"),
        ] {
            let choice = read(&settings, &answer, &wanted).unwrap().unwrap();
            assert_eq!(choice.labels.to_string(), registered, "{answer}");
        }
    }
}
