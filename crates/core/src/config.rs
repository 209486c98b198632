//! What an operator configures: tiers and App settings, read from JSON, checked, and ready to use.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::account::Account;
use crate::apps::AppCredential;
use crate::error::{self, Error};
use crate::instances::SpotBreaker;
use crate::job::Repository;
use crate::labels::{Labels, MAX_LABEL, MAX_LABELS, SELF_HOSTED};
use crate::names::NameKey;
use crate::ports::Place;
use crate::secret::Secret;
use crate::time::parse_duration;

/// Names that GitHub's own runners answer to. A self-hosted runner with one of them would take jobs meant
/// for GitHub's machines (docs.github.com, "Choosing GitHub-hosted runners").
const HOSTED_PREFIXES: [&str; 4] = ["ubuntu-", "windows-", "macos-", "github-hosted"];

/// A job runs at most 5 days on a self-hosted runner (docs.github.com, "Actions limits"); the reaper's
/// tag allows one day more.
const MAX_LIFETIME: Duration = Duration::from_secs(5 * 86_400);

/// More than any install has; a bound on what a mistaken file can make us do.
const MAX_TIERS: usize = 200;

/// Most that `max_runners` can be: their names stand in one item of the ledger, of at most 400 KB.
const MAX_RUNNERS: u32 = 4_000;

/// Bounds of a breaker: its failures stand in one item of the ledger.
const BREAKER_FAILURES: std::ops::RangeInclusive<u32> = 1..=20;
const BREAKER_TIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(86_400);

/// CreateFleet takes 300 overrides; types times subnets times images must stay below.
const MAX_INSTANCE_TYPES: usize = 20;

/// Where a tier's machines are bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Market {
    /// At the list price.
    OnDemand,
    /// Spot only: no capacity means waiting.
    Spot,
    /// Spot, and on-demand where spot has no capacity.
    SpotThenOnDemand,
}

/// Instruction set of a tier's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// 64-bit Intel and AMD.
    X64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// The label that GitHub's runner has for it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::X64 => "x64",
            Self::Arm64 => "arm64",
        }
    }
}

/// A kind of runner, checked.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Unique, of `[A-Za-z0-9_-]`, at most 40 characters.
    pub name: String,
    /// What its runners register and what jobs are matched against: one set for both.
    pub labels: Labels,
    /// Instruction set.
    pub architecture: Architecture,
    /// Image ids (`ami-…`) or names of SSM parameters that hold one.
    pub images: Vec<String>,
    /// EC2 instance types.
    pub instance_types: Vec<String>,
    /// Where they are bought.
    pub market: Market,
    /// Size of the root volume, in GiB; `None` for the image's own.
    pub root_volume_gib: Option<u32>,
    /// When it buys on-demand because spot fails too often.
    pub spot_breaker: SpotBreaker,
    /// Whether a job whose machine EC2 took back is run again.
    pub rerun_interrupted: bool,
    /// Runner group at GitHub by name or id; `None` for the default group.
    pub runner_group: Option<String>,
    /// Most instances of the tier at one time; `None` for no limit.
    pub max_runners: Option<u32>,
    /// Idle time after which a runner that got no job is ended.
    pub max_idle: Duration,
    /// Time after which a runner is ended, busy or not.
    pub max_lifetime: Duration,
    /// Time in which a machine must have claimed its registration.
    pub boot_timeout: Duration,
    /// Whether it takes jobs that ask for nothing but `self-hosted`.
    pub accepts_bare_self_hosted: bool,
    /// The account in which its machines live; `None` for the control plane's own.
    pub account: Option<Account>,
}

#[derive(Deserialize)]
struct TierFile {
    tiers: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTier {
    name: String,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default = "linux")]
    os: String,
    architecture: Architecture,
    images: Vec<String>,
    instance_types: Vec<String>,
    #[serde(default = "on_demand")]
    market: Market,
    root_volume_gib: Option<u32>,
    spot_breaker: Option<RawBreaker>,
    #[serde(default = "yes")]
    rerun_interrupted: bool,
    runner_group: Option<serde_json::Value>,
    max_runners: Option<u32>,
    max_idle: Option<String>,
    max_lifetime: Option<String>,
    boot_timeout: Option<String>,
    #[serde(default = "yes")]
    implied_labels: bool,
    #[serde(default)]
    accepts_bare_self_hosted: bool,
    account: Option<Account>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBreaker {
    failures: Option<u32>,
    within: Option<String>,
    on_demand_for: Option<String>,
}

impl RawBreaker {
    fn checked(self) -> Result<SpotBreaker, String> {
        let default = SpotBreaker::default();
        let duration = |key: &str, text: Option<String>, default: Duration| match text {
            None => Ok(default),
            Some(text) => parse_duration(&text)
                .filter(|time| BREAKER_TIMES.contains(time))
                .ok_or(format!("spot_breaker.{key} '{text}' must be 60s to 1d")),
        };
        let failures = self.failures.unwrap_or(default.failures);
        if !BREAKER_FAILURES.contains(&failures) {
            return Err(format!("spot_breaker.failures {failures} must be 1 to 20"));
        }
        Ok(SpotBreaker {
            failures,
            within: duration("within", self.within, default.within)?,
            on_demand_for: duration("on_demand_for", self.on_demand_for, default.on_demand_for)?,
        })
    }
}

fn linux() -> String {
    "linux".into()
}

const fn on_demand() -> Market {
    Market::OnDemand
}

const fn yes() -> bool {
    true
}

/// The tiers that are valid, and what is wrong with the others.
#[derive(Clone, Debug, Default)]
pub struct Tiers {
    valid: Vec<Tier>,
    /// One text per invalid tier (or for the whole file): which, what is wrong, what is allowed.
    pub problems: Vec<String>,
    /// Whether there is a list at all, valid or not: an empty one pauses the install, none is none yet.
    pub given: bool,
}

impl Tiers {
    /// Reads `control/tiers`. An invalid tier is left out and told of in `problems`; it costs the others
    /// nothing.
    pub fn parse(text: &str) -> Self {
        let file: TierFile = match serde_json::from_str(text) {
            Ok(file) => file,
            Err(error) => {
                let problems = vec![format!("control/tiers: {error}")];
                return Self { valid: vec![], problems, given: true };
            }
        };
        let mut tiers = Self { given: true, ..Self::default() };
        if file.tiers.len() > MAX_TIERS {
            tiers
                .problems
                .push(format!("control/tiers: more than {MAX_TIERS} tiers; the rest is left out"));
        }
        for (index, raw) in file.tiers.into_iter().take(MAX_TIERS).enumerate() {
            let called = match raw.get("name").and_then(|name| name.as_str()) {
                Some(name) => format!("tier '{name}'"),
                None => format!("tier {}", index + 1),
            };
            match serde_json::from_value(raw)
                .map_err(|error| error.to_string())
                .and_then(check_tier)
            {
                Ok(tier) if tiers.get(&tier.name).is_some() => {
                    tiers.problems.push(format!("{called}: the name is taken by an earlier tier"));
                }
                Ok(tier) => tiers.valid.push(tier),
                Err(problem) => tiers.problems.push(format!("{called}: {problem}")),
            }
        }
        tiers.valid.sort_by(|a, b| a.name.cmp(&b.name));
        tiers
    }

    /// The tier of that name.
    pub fn get(&self, name: &str) -> Option<&Tier> {
        self.valid.iter().find(|tier| tier.name == name)
    }

    /// All valid tiers, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Tier> {
        self.valid.iter()
    }

    /// The tier for a job: the one that has all its labels and the fewest others; ties go by name. A job
    /// without labels matches nothing; one that asks for nothing but `self-hosted` matches only a tier
    /// that accepts such jobs.
    pub fn select(&self, wanted: &Labels) -> Option<&Tier> {
        let bare = wanted.len() == 1 && wanted.has(SELF_HOSTED);
        self.valid
            .iter()
            .filter(|tier| !wanted.is_empty() && tier.labels.cover(wanted))
            .filter(|tier| !bare || tier.accepts_bare_self_hosted)
            .min_by_key(|tier| (tier.labels.len(), &tier.name))
    }

    /// Whether a job with these labels would be accepted by one of the tiers.
    pub fn accept(&self, wanted: &Labels) -> bool {
        self.select(wanted).is_some()
    }

    /// The longest lifetime of any tier: how long what is kept about a runner may be needed.
    pub fn longest_lifetime(&self) -> Duration {
        self.valid.iter().map(|tier| tier.max_lifetime).max().unwrap_or(MAX_LIFETIME)
    }
}

fn check_tier(raw: RawTier) -> Result<Tier, String> {
    if raw.name.is_empty()
        || raw.name.len() > 40
        || !raw.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    {
        return Err("name must be 1 to 40 of A-Z a-z 0-9 _ -".into());
    }
    if raw.os != "linux" {
        return Err(format!("os '{}' is not supported; allowed: linux", raw.os));
    }
    for label in &raw.labels {
        let lower = label.trim().to_lowercase();
        if label.contains(',') || lower.is_empty() || label.len() > MAX_LABEL {
            return Err(format!(
                "label '{label}' must be 1 to {MAX_LABEL} characters without commas"
            ));
        }
        if HOSTED_PREFIXES.iter().any(|hosted| lower.starts_with(hosted)) {
            return Err(format!(
                "label '{label}' is a name of GitHub's own runners; choose another"
            ));
        }
    }
    let implied = [SELF_HOSTED, raw.os.as_str(), raw.architecture.label()];
    let labels = if raw.implied_labels {
        Labels::new(implied.into_iter().chain(raw.labels.iter().map(String::as_str)))
    } else {
        Labels::new(&raw.labels)
    };
    if labels.is_empty() || labels.len() > MAX_LABELS {
        return Err(format!("a tier has 1 to {MAX_LABELS} labels, this one {}", labels.len()));
    }
    if raw.images.is_empty() || raw.images.len() > 5 {
        return Err("images must name 1 to 5 AMI ids or SSM parameters".into());
    }
    for image in &raw.images {
        if !(image.starts_with("ami-") || image.starts_with('/')) {
            return Err(format!(
                "image '{image}' must be an AMI id (ami-…) or an SSM parameter (/…)"
            ));
        }
    }
    if raw.instance_types.is_empty() || raw.instance_types.len() > MAX_INSTANCE_TYPES {
        return Err(format!("instance_types must name 1 to {MAX_INSTANCE_TYPES} types"));
    }
    if raw.root_volume_gib.is_some_and(|gib| gib == 0 || gib > 16_384) {
        return Err("root_volume_gib must be 1 to 16384".into());
    }
    if raw.max_runners.is_some_and(|most| most > MAX_RUNNERS) {
        return Err(format!(
            "max_runners must be at most {MAX_RUNNERS}; leave it out for no limit"
        ));
    }
    if let Some(problem) = raw.account.as_ref().and_then(Account::problem) {
        return Err(problem);
    }
    let runner_group = match raw.runner_group {
        None | Some(serde_json::Value::Null) => None,
        Some(serde_json::Value::Number(id)) => Some(id.to_string()),
        Some(serde_json::Value::String(name)) => {
            let name = name.trim();
            (!name.is_empty() && !name.eq_ignore_ascii_case("default") && name != "1")
                .then(|| name.to_owned())
        }
        Some(_) => return Err("runner_group must be a name or an id".into()),
    };
    let duration = |key: &str, text: Option<String>, default: &str, least: u64| {
        let text = text.unwrap_or_else(|| default.to_owned());
        parse_duration(&text)
            .filter(|time| *time >= Duration::from_secs(least) && *time <= MAX_LIFETIME)
            .ok_or_else(|| {
                format!("{key} '{text}' must be a number and s, m, h or d, from {least}s to 5d")
            })
    };
    Ok(Tier {
        architecture: raw.architecture,
        images: raw.images,
        instance_types: raw.instance_types,
        market: raw.market,
        root_volume_gib: raw.root_volume_gib,
        runner_group,
        rerun_interrupted: raw.rerun_interrupted,
        spot_breaker: raw
            .spot_breaker
            .map_or_else(|| Ok(SpotBreaker::default()), RawBreaker::checked)?,
        max_runners: raw.max_runners,
        max_idle: duration("max_idle", raw.max_idle, "5m", 60)?,
        max_lifetime: duration("max_lifetime", raw.max_lifetime, "6h", 600)?,
        boot_timeout: duration("boot_timeout", raw.boot_timeout, "5m", 60)?,
        accepts_bare_self_hosted: raw.accepts_bare_self_hosted,
        account: raw.account,
        name: raw.name,
        labels,
    })
}

/// Where runners are registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    /// With the organisation (user accounts have none: their runners go to the repository).
    #[default]
    Organization,
    /// With the job's repository.
    Repository,
}

/// What happens to jobs of public repositories, whose workflows anyone can change by a pull request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicRepositories {
    /// No runner is started.
    #[default]
    Refuse,
    /// They are served like any other.
    Allow,
}

/// Which repositories are served.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepositoryRules {
    /// `owner/name` patterns with `*` for any text; empty for all.
    pub allow: Vec<String>,
    /// Public ones.
    pub public: PublicRepositories,
}

impl RepositoryRules {
    /// Whether the allow list admits `owner/name` (without regard to case).
    pub fn allows(&self, full_name: &str) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|pattern| glob(pattern, full_name))
    }
}

fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.to_lowercase(), text.to_lowercase());
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// `control/app`: the GitHub App and how it is used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSettings {
    /// The App's numeric id.
    pub app_id: u64,
    /// `https://github.com`, a GHES address, or a ghe.com one: web and API addresses follow from it.
    #[serde(default = "github_com")]
    pub github_url: String,
    /// Where runners are registered.
    #[serde(default)]
    pub registration: Registration,
    /// Whether jobs must ask for `self-hosted` to be served.
    #[serde(default = "yes")]
    pub require_self_hosted: bool,
    /// Which repositories are served.
    #[serde(default)]
    pub repositories: RepositoryRules,
    /// Name or ARN of a Lambda function that chooses the tier.
    pub selector: Option<String>,
}

fn github_com() -> String {
    "https://github.com".into()
}

/// Everything that is configured, as one function sees it. Parts that the function does not read, or that
/// are not set yet, are `None`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The tiers.
    pub tiers: Tiers,
    /// The App's settings; `None` before set-up.
    pub app: Option<AppSettings>,
    /// The App's private key, PEM.
    pub app_private_key: Option<Secret>,
    /// Additional Apps, for more calls an hour.
    pub additional_apps: Vec<AppCredential>,
    /// Secrets that sign webhooks: the current one and, while one is rotated, the previous.
    pub webhook_secrets: Vec<Secret>,
    /// The key of runner names.
    pub name_key: Option<NameKey>,
}

/// What is said where a parameter is needed that is not there.
pub(crate) fn not_set(parameter: &str) -> Error {
    Error::Permanent(format!("{parameter} is not set or invalid: run the set-up (make secrets)"))
}

impl Settings {
    /// From the parameters' texts, by the part of their names after the prefix (`control/tiers`).
    /// Invalid texts are told of in `tiers.problems`; nothing is guessed in their place.
    pub fn from_parameters(texts: &BTreeMap<String, Secret>) -> Self {
        let text =
            |name: &str| texts.get(name).map(Secret::expose).filter(|text| !text.trim().is_empty());
        let mut tiers = text("control/tiers").map(Tiers::parse).unwrap_or_default();
        let app = match text("control/app").map(serde_json::from_str::<AppSettings>) {
            Some(Ok(app)) => Some(app),
            Some(Err(error)) => {
                tiers.problems.push(format!("control/app: {error}"));
                None
            }
            None => None,
        };
        if let Some(app) = &app
            && app.registration == Registration::Repository
        {
            tiers.refuse_groups();
        }
        Self {
            app,
            tiers,
            app_private_key: text("control/app-private-key").map(Secret::new),
            // Their parameters are named by a manifest, and read after it.
            additional_apps: Vec::new(),
            webhook_secrets: ["control/webhook-secret", "control/webhook-secret-previous"]
                .into_iter()
                .filter_map(|name| text(name).map(|secret| Secret::new(secret.trim())))
                .collect(),
            name_key: text("control/name-key").and_then(NameKey::new),
        }
    }
}

impl Settings {
    /// Where a runner for a job of that repository is registered. An error before the set-up.
    pub fn place(&self, repository: Repository) -> error::Result<Place> {
        let level = self.app.as_ref().ok_or_else(|| not_set("control/app"))?.registration;
        Ok(Place { repository, level })
    }

    /// Whether a job with these labels might be served: by a tier that has them, or as the operator's selector
    /// decides.
    pub fn may_serve(&self, wanted: &Labels) -> bool {
        let asked = self.app.as_ref().is_some_and(|app| {
            app.selector.is_some() && (!app.require_self_hosted || wanted.has(SELF_HOSTED))
        });
        asked || self.tiers.accept(wanted)
    }
}

impl Tiers {
    /// Runner groups exist in organisations only: a tier that names one while runners are registered with
    /// repositories would fail after its machine has booted, so it is refused here.
    fn refuse_groups(&mut self) {
        let problems = &mut self.problems;
        self.valid.retain(|tier| match &tier.runner_group {
            Some(group) => {
                problems.push(format!(
                    "tier '{}': runner_group '{group}' needs \"registration\": \"organization\"",
                    tier.name
                ));
                false
            }
            None => true,
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Tiers from (name, labels); a helper of several test modules.
    pub(crate) fn tiers(of: &[(&str, &[&str])]) -> Tiers {
        let tiers: Vec<_> = of.iter().map(|(name, labels)| tier(name, labels)).collect();
        let tiers = Tiers::parse(&json!({ "tiers": tiers }).to_string());
        assert_eq!(tiers.problems, Vec::<String>::new());
        tiers
    }

    fn tier(name: &str, labels: &[&str]) -> serde_json::Value {
        json!({"name": name, "labels": labels, "architecture": "x64", "images": ["ami-1"],
            "instance_types": ["m7i.large"]})
    }

    fn chosen(tiers: &Tiers, labels: &[&str]) -> Option<String> {
        tiers.select(&Labels::new(labels)).map(|tier| tier.name.clone())
    }

    #[test]
    fn the_designs_example_is_valid() {
        let tiers = Tiers::parse(
            r#"{"tiers": [{"name": "linux-x64", "labels": ["small"], "os": "linux", "architecture": "x64",
            "images": ["/ostler/images/ubuntu-x64"], "instance_types": ["m7i.large", "m6i.large"],
            "market": "spot-then-on-demand", "root_volume_gib": 40, "runner_group": "Default",
            "max_runners": 50, "max_idle": "5m", "max_lifetime": "6h", "boot_timeout": "5m"}]}"#,
        );
        assert_eq!(tiers.problems, Vec::<String>::new());
        let tier = tiers.get("linux-x64").unwrap();
        assert_eq!(tier.labels.to_string(), "self-hosted,linux,x64,small");
        assert_eq!(tier.market, Market::SpotThenOnDemand);
        assert_eq!(tier.runner_group, None);
        assert_eq!(tier.max_lifetime, Duration::from_secs(6 * 3600));
        assert!(tier.rerun_interrupted, "unless a tier says otherwise");
    }

    #[test]
    fn lm_05_a_job_matches_inside_one_tier_only() {
        let tiers = tiers(&[("a", &["a", "b"]), ("b", &["a", "on-demand"])]);
        assert_eq!(chosen(&tiers, &["a", "b", "on-demand"]), None);
        assert_eq!(chosen(&tiers, &["a", "on-demand"]).as_deref(), Some("b"));
    }

    #[test]
    fn lm_08_the_tier_with_all_labels_wins_in_any_order() {
        for names in [["x", "y"], ["y", "x"]] {
            let tiers = tiers(&[(names[0], &["cloud"]), (names[1], &["cloud", "ec2"])]);
            let both = chosen(&tiers, &["self-hosted", "cloud", "ec2"]);
            assert_eq!(both.as_deref(), Some(names[1]));
            assert_eq!(chosen(&tiers, &["cloud"]).as_deref(), Some(names[0]), "the fewest others");
        }
    }

    #[test]
    fn lm_09_lm_10_unknown_labels_match_nothing() {
        let tiers = tiers(&[("a", &["small"])]);
        assert_eq!(chosen(&tiers, &["self-hosted", "smal"]), None);
        assert_eq!(chosen(&tiers, &["ubuntu-latest"]), None);
        assert_eq!(chosen(&tiers, &[]), None);
    }

    #[test]
    fn lm_11_implied_labels_serve_matching_and_registration_alike() {
        let on = tiers(&[("a", &["dependabot"])]);
        assert_eq!(chosen(&on, &["Linux", "dependabot"]).as_deref(), Some("a"));
        let off = Tiers::parse(
            &json!({"tiers": [{"name": "a", "labels": ["dependabot"], "architecture": "x64",
                "images": ["ami-1"], "instance_types": ["m7i.large"], "implied_labels": false}]})
            .to_string(),
        );
        assert_eq!(chosen(&off, &["linux", "dependabot"]), None);
        assert_eq!(chosen(&off, &["self-hosted", "dependabot"]), None, "not registered, not free");
        assert_eq!(off.get("a").unwrap().labels.to_string(), "dependabot");
    }

    #[test]
    fn lm_15_hosted_label_names_are_refused() {
        for label in ["ubuntu-latest", "Windows-2025", "macos-15"] {
            let tiers =
                Tiers::parse(&json!({"tiers": [tier("a", &[label]), tier("b", &[])]}).to_string());
            assert!(tiers.problems[0].contains(label), "{:?}", tiers.problems);
            assert!(
                tiers.get("a").is_none() && tiers.get("b").is_some(),
                "only the bad one is lost"
            );
        }
    }

    #[test]
    fn lm_17_bare_self_hosted_needs_a_tier_that_says_so() {
        let none = tiers(&[("gpu", &["gpu"])]);
        assert_eq!(chosen(&none, &["self-hosted"]), None);
        let mut open = tier("open", &[]);
        open["accepts_bare_self_hosted"] = json!(true);
        let both = Tiers::parse(&json!({"tiers": [tier("gpu", &["gpu"]), open]}).to_string());
        assert_eq!(chosen(&both, &["Self-Hosted"]).as_deref(), Some("open"));
    }

    #[test]
    fn ol_20_a_group_with_repository_registration_is_refused_before_any_launch() {
        let mut grouped = tier("grouped", &[]);
        grouped["runner_group"] = json!("special");
        let texts = BTreeMap::from([
            (
                "control/tiers".into(),
                Secret::new(json!({"tiers": [grouped, tier("b", &[])]}).to_string()),
            ),
            ("control/app".into(), Secret::new(r#"{"app_id": 1, "registration": "repository"}"#)),
        ]);
        let settings = Settings::from_parameters(&texts);
        assert!(settings.tiers.get("grouped").is_none() && settings.tiers.get("b").is_some());
        assert!(
            settings.tiers.problems[0].contains("organization"),
            "{:?}",
            settings.tiers.problems
        );
    }

    #[test]
    fn ol_21_an_empty_group_is_the_default_group() {
        for group in ["", " ", "Default", "default", "1"] {
            let mut with = tier("a", &[]);
            with["runner_group"] = json!(group);
            let tiers = Tiers::parse(&json!({"tiers": [with]}).to_string());
            assert_eq!(tiers.get("a").unwrap().runner_group, None, "{group:?}");
        }
    }

    #[test]
    fn r16_r18_bad_configuration_names_the_tier_and_what_is_allowed() {
        let cases = [
            (json!({"nmae": "a"}), "tier 1"),
            (
                json!({"name": "a", "architecture": "x64", "images": ["ami-1"], "instance_types": ["t"],
                "max_idle": "5"}),
                "max_idle '5'",
            ),
            (
                json!({"name": "a", "architecture": "mips", "images": ["ami-1"], "instance_types": ["t"]}),
                "x64",
            ),
            (
                json!({"name": "a", "architecture": "x64", "images": ["ubuntu"], "instance_types": ["t"]}),
                "image 'ubuntu'",
            ),
            (
                json!({"name": "a", "architecture": "x64", "images": ["ami-1"], "instance_types": []}),
                "instance_types",
            ),
            (
                json!({"name": "a", "os": "windows", "architecture": "x64", "images": ["ami-1"],
                "instance_types": ["t"]}),
                "allowed: linux",
            ),
        ];
        for (raw, says) in cases {
            let tiers = Tiers::parse(&json!({"tiers": [raw]}).to_string());
            assert!(tiers.problems[0].contains(says), "{:?}", tiers.problems);
        }
        for odd in ["{", "[]", "null", "{}", r#"{"tiers": null}"#, r#"{"tier": []}"#] {
            assert!(Tiers::parse(odd).problems[0].starts_with("control/tiers"), "{odd}");
        }
        assert!(Tiers::parse(r#"{"tiers": []}"#).problems.is_empty(), "an install that is paused");
    }

    #[test]
    fn tiers_are_given_if_there_is_any_text_of_them() {
        for text in ["{", r#"{"tiers": []}"#, r#"{"tiers": [{}]}"#] {
            assert!(Tiers::parse(text).given, "{text}");
        }
        assert!(!Settings::from_parameters(&BTreeMap::new()).tiers.given);
    }

    /// What is said of a tier with these keys set; `None` if it is valid.
    fn problem(keys: &[(&str, serde_json::Value)]) -> Option<String> {
        let mut raw = tier("a", &[]);
        for (key, value) in keys {
            raw[key] = value.clone();
        }
        let tiers = Tiers::parse(&json!({"tiers": [raw]}).to_string());
        assert_eq!(tiers.problems.len() + tiers.iter().count(), 1, "valid, or told of");
        tiers.problems.into_iter().next()
    }

    #[test]
    fn each_bound_of_a_tier_admits_its_last_value_and_refuses_the_next() {
        let names = |count: usize| json!((0..count).map(|n| format!("/{n}")).collect::<Vec<_>>());
        let bounds = [
            ("name", json!("a_b-C9"), json!("a b")),
            ("name", json!("x"), json!("")),
            ("name", json!("x".repeat(40)), json!("x".repeat(41))),
            ("labels", json!(["x"]), json!([" "])),
            ("labels", json!(["a b"]), json!(["a,b"])),
            ("labels", json!(["x".repeat(MAX_LABEL)]), json!(["x".repeat(MAX_LABEL + 1)])),
            // Three more are implied.
            ("labels", names(MAX_LABELS - 3), names(MAX_LABELS - 2)),
            ("images", names(1), names(0)),
            ("images", names(5), names(6)),
            ("instance_types", names(1), names(0)),
            ("instance_types", names(MAX_INSTANCE_TYPES), names(MAX_INSTANCE_TYPES + 1)),
            ("root_volume_gib", json!(1), json!(0)),
            ("root_volume_gib", json!(16_384), json!(16_385)),
            ("max_runners", json!(MAX_RUNNERS), json!(MAX_RUNNERS + 1)),
            ("runner_group", json!(7), json!(["special"])),
            ("max_lifetime", json!("5d"), json!("6d")),
        ];
        for (key, last, next) in bounds {
            assert_eq!(problem(&[(key, last.clone())]), None, "{key} {last}");
            assert!(problem(&[(key, next.clone())]).is_some(), "{key} {next}");
        }
        let own =
            |labels: serde_json::Value| [("implied_labels", json!(false)), ("labels", labels)];
        assert_eq!(problem(&own(names(1))), None);
        assert!(problem(&own(names(0))).unwrap().contains("this one 0"));
    }

    #[test]
    fn a_spot_breaker_is_as_the_tier_says_within_its_bounds() {
        let mut raw = tier("a", &[]);
        raw["spot_breaker"] = json!({"failures": 20, "within": "1m", "on_demand_for": "1d"});
        let tiers = Tiers::parse(&json!({"tiers": [raw]}).to_string());
        let expected = SpotBreaker {
            failures: 20,
            within: Duration::from_secs(60),
            on_demand_for: Duration::from_secs(86_400),
        };
        assert_eq!(tiers.get("a").unwrap().spot_breaker, expected);
        for wrong in [
            json!({"failures": 0}),
            json!({"failures": 21}),
            json!({"within": "59s"}),
            json!({"on_demand_for": "2d"}),
        ] {
            let told = problem(&[("spot_breaker", wrong.clone())]);
            assert!(told.is_some_and(|told| told.contains("spot_breaker")), "{wrong}");
        }
    }

    #[test]
    fn an_app_is_at_github_com_unless_it_says_otherwise() {
        let app: AppSettings = serde_json::from_str(r#"{"app_id": 1}"#).unwrap();
        assert_eq!(app.github_url, "https://github.com");
        assert!(app.require_self_hosted && app.registration == Registration::Organization);
    }

    #[test]
    fn with_a_selector_any_job_that_asks_for_self_hosted_may_be_served() {
        let settings = |app: &str| {
            let tiers = json!({"tiers": [tier("a", &["small"])]}).to_string();
            Settings::from_parameters(&BTreeMap::from([
                ("control/app".into(), Secret::new(app)),
                ("control/tiers".into(), Secret::new(tiers)),
            ]))
        };
        let (gpu, hosted) = (Labels::new(["self-hosted", "gpu"]), Labels::new(["ubuntu-latest"]));
        let none = settings(r#"{"app_id": 1}"#);
        assert!(none.may_serve(&Labels::new(["small"])) && !none.may_serve(&gpu));
        let asks = settings(r#"{"app_id": 1, "selector": "choose"}"#);
        assert!(asks.may_serve(&gpu) && !asks.may_serve(&hosted));
        let all = settings(r#"{"app_id": 1, "selector": "choose", "require_self_hosted": false}"#);
        assert!(all.may_serve(&hosted));
    }

    #[test]
    fn ic_06_thirty_tiers_are_read() {
        let many: Vec<_> = (0..30).map(|n| tier(&format!("t{n}"), &[&format!("l{n}")])).collect();
        assert_eq!(Tiers::parse(&json!({ "tiers": many }).to_string()).iter().count(), 30);
    }

    #[test]
    fn the_allow_list_knows_stars() {
        let rules = |allow: &[&str]| RepositoryRules {
            allow: allow.iter().map(|&p| p.to_owned()).collect(),
            ..RepositoryRules::default()
        };
        assert!(rules(&[]).allows("acme/widgets"));
        assert!(rules(&["acme/*"]).allows("Acme/widgets"));
        assert!(rules(&["*/widgets"]).allows("acme/widgets"));
        assert!(rules(&["acme/w*ts"]).allows("acme/widgets"));
        assert!(!rules(&["acme/*"]).allows("acme-evil/widgets"));
        assert!(!rules(&["acme/widget"]).allows("acme/widgets"));
    }

    proptest! {
        #[test]
        fn lm_12_registered_labels_cover_the_labels_of_any_accepted_job(
            sets in proptest::collection::vec(proptest::collection::vec("[a-d]", 0..4), 1..5),
            wanted in proptest::collection::vec("[a-e]|self-hosted|linux|x64", 0..4),
        ) {
            let raw: Vec<_> = sets.iter().enumerate().map(|(n, labels)| {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                tier(&format!("t{n}"), &labels)
            }).collect();
            let tiers = Tiers::parse(&json!({"tiers": raw}).to_string());
            let wanted = Labels::new(&wanted);
            if let Some(tier) = tiers.select(&wanted) {
                prop_assert!(tier.labels.cover(&wanted));
                prop_assert!(tiers.iter().all(|other| !other.labels.cover(&wanted)
                    || (other.labels.len(), &other.name) >= (tier.labels.len(), &tier.name)));
            }
        }
    }
}
