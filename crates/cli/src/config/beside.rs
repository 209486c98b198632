//! What is valid by itself and wrong beside the rest: tiers that are in each other's way, settings without
//! an effect, instance types of another architecture.

use std::time::Duration;

use ostler_core::config::{Architecture, Market, Tier, Tiers};
use ostler_core::labels::SELF_HOSTED;

use super::Level;
use super::words::Said;

/// What was found at a key of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The key.
    pub key: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The words.
    pub said: Said,
}

/// Judges valid tiers, each beside the others. The text is the tier's name.
pub fn judge(tiers: &Tiers) -> Vec<(String, Found)> {
    let mut all = Vec::new();
    for tier in tiers.iter() {
        let found = labels(tier, tiers)
            .into_iter()
            .chain(times(tier))
            .chain(market(tier))
            .chain(tier.instance_types.iter().filter_map(|name| instance_type(tier, name)));
        all.extend(found.map(|found| (tier.name.clone(), found)));
    }
    all
}

fn found(key: &'static str, level: Level, problem: String, hint: &str) -> Found {
    Found { key, level, said: Said { problem, hint: hint.to_owned() } }
}

/// A tier whose labels are another's can never be chosen; one that has all of another's and more has
/// runners that GitHub may give the other's jobs to.
fn labels(tier: &Tier, tiers: &Tiers) -> Vec<Found> {
    let others = || tiers.iter().filter(|other| other.name != tier.name);
    let covers = |one: &Tier, other: &Tier| one.labels.cover(&other.labels);
    let equal = |other: &&Tier| covers(tier, other) && covers(other, tier);
    let mut all = Vec::new();
    if let Some(other) = others().filter(|other| other.name < tier.name).find(equal) {
        all.push(found(
            "labels",
            Level::Fail,
            format!("are those of tier '{}', which gets all jobs of both", other.name),
            "give one of them a label of its own",
        ));
    }
    let wider: Vec<_> = others()
        .filter(|other| !equal(other) && covers(tier, other))
        .map(|other| format!("'{}'", other.name))
        .collect();
    if !wider.is_empty() {
        all.push(found(
            "labels",
            Level::Warn,
            format!(
                "include all labels of {}: its runners may be given that one's jobs too",
                wider.join(", ")
            ),
            "give the other a label that this one has not got",
        ));
    }
    if tier.accepts_bare_self_hosted && !tier.labels.has(SELF_HOSTED) {
        all.push(found(
            "accepts_bare_self_hosted",
            Level::Warn,
            "has no effect, since self-hosted is none of the tier's labels".into(),
            "add the label, or leave implied_labels on",
        ));
    }
    all
}

fn times(tier: &Tier) -> Vec<Found> {
    let longer = |key: &'static str, time: Duration| {
        (time > tier.max_lifetime).then(|| {
            let problem = "is longer than max_lifetime, which ends the machine before".to_owned();
            found(key, Level::Warn, problem, "raise max_lifetime, or lower this")
        })
    };
    let times = [("max_idle", tier.max_idle), ("boot_timeout", tier.boot_timeout)];
    times.into_iter().filter_map(|(key, time)| longer(key, time)).collect()
}

fn market(tier: &Tier) -> Option<Found> {
    let set = tier.spot_breaker != ostler_core::instances::SpotBreaker::default();
    (set && tier.market != Market::SpotThenOnDemand).then(|| {
        let problem = "has an effect only with \"market\": \"spot-then-on-demand\"".to_owned();
        found("spot_breaker", Level::Warn, problem, "set that market, or leave this out")
    })
}

/// By its name alone: the letter g after the generation is Graviton, which is arm64.
/// (docs.aws.amazon.com, "Amazon EC2 instance type naming conventions".)
fn instance_type(tier: &Tier, name: &str) -> Option<Found> {
    let Some(own) = architecture_of(name) else {
        return Some(found(
            "instance_types",
            Level::Fail,
            format!("'{name}' is no instance type"),
            "it is family and size, as m7i.large",
        ));
    };
    (own != tier.architecture).then(|| {
        let (is, wanted) = (own.label(), tier.architecture.label());
        found(
            "instance_types",
            Level::Fail,
            format!("'{name}' is {is}, and the tier is {wanted}"),
            "choose another type, or change the tier's architecture",
        )
    })
}

/// The architecture of an instance type; none if that is no instance type's name.
fn architecture_of(name: &str) -> Option<Architecture> {
    let (family, size) = name.split_once('.')?;
    let fits = |text: &str| {
        let sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty() && text.bytes().all(sign)
    };
    let digit = family.find(|char: char| char.is_ascii_digit())?;
    if !fits(family) || !fits(size) || digit == 0 {
        return None;
    }
    let options = family[digit..].trim_start_matches(|char: char| char.is_ascii_digit());
    let options = options.split('-').next().unwrap_or(options);
    let graviton = options.contains('g') || family == "a1";
    Some(if graviton { Architecture::Arm64 } else { Architecture::X64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_types_name_says_its_architecture() {
        for x64 in [
            "m7i.large",
            "c7i-flex.xlarge",
            "m7a.48xlarge",
            "g4dn.xlarge",
            "g6.2xlarge",
            "t3.micro",
            "u-6tb1.metal",
            "x2idn.16xlarge",
            "trn1.2xlarge",
            "p5.48xlarge",
            "m5zn.large",
        ] {
            assert_eq!(architecture_of(x64), Some(Architecture::X64), "{x64}");
        }
        for arm64 in [
            "m7g.large",
            "c7gn.16xlarge",
            "t4g.nano",
            "a1.large",
            "im4gn.large",
            "g5g.xlarge",
            "x2gd.medium",
            "is4gen.large",
            "r8g.metal-24xl",
            "hpc7g.4xlarge",
        ] {
            assert_eq!(architecture_of(arm64), Some(Architecture::Arm64), "{arm64}");
        }
        for bad in
            ["", "large", "m7i", "m7i.", ".large", "M7I.large", "m7i large", "mi.large", "7.large"]
        {
            assert_eq!(architecture_of(bad), None, "{bad}");
        }
    }
}
