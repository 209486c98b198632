//! What a janitor is set up to do: one JSON text, checked whole before anything is looked at. What is not
//! said is not guessed; above all, a janitor without `dryRun` does not run.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use super::provider::Provider;
use crate::error::{Error, Result};
use crate::job::{Repository, split_full_name};
use crate::names::{MAX_RUNNER_NAME, fingerprint};

/// Most registrations that one scan may queue, whatever is configured: a mistake deletes no more.
pub const MAX_CANDIDATES: usize = 1000;

/// The largest integer that JSON's other readers read exactly (2^53 - 1); ids beyond it are none.
pub const MAX_SAFE_INTEGER: i64 = 9_007_199_254_740_991;

/// Groups or repositories of one janitor: more is a mistake.
const MAX_PARTS: usize = 1000;

/// More regions than AWS has.
const MAX_REGIONS: usize = 64;

/// The shortest runner name of a machine: an EC2 id of eight digits.
const SHORTEST_ID: usize = "i-01234567".len();

/// What a janitor does, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where registrations are looked at.
    pub scope: Scope,
    /// Whose registrations, and what is behind them.
    pub provider: ProviderConfig,
    /// The API's address of a GitHub Enterprise Server or of ghe.com; empty for github.com.
    pub github_api: String,
    /// Whether candidates are only told of.
    pub dry_run: bool,
    /// Candidates of one scan at most, 1 to [`MAX_CANDIDATES`].
    pub max_candidates: usize,
}

/// Where registrations are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In these groups of an organisation, in ascending order.
    Organization {
        /// Its login.
        name: String,
        /// Ids of its groups.
        groups: Vec<i64>,
    },
    /// With these repositories, by name.
    Repositories(Vec<Repository>),
}

/// One list of registrations at GitHub.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A runner group of an organisation.
    Group {
        /// The organisation's login.
        organization: String,
        /// The group's id.
        id: i64,
    },
    /// A repository.
    Repository(Repository),
}

impl Part {
    /// The account whose App installation it takes to see it.
    pub fn owner(&self) -> &str {
        match self {
            Self::Group { organization, .. } => organization,
            Self::Repository(repository) => &repository.owner,
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Group { organization, id } => write!(f, "group {id} of {organization}"),
            Self::Repository(repository) => repository.fmt(f),
        }
    }
}

impl Scope {
    /// The lists, in the order in which they are read.
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Organization { name, groups } => groups
                .iter()
                .map(|id| Part::Group { organization: name.clone(), id: *id })
                .collect(),
            Self::Repositories(all) => all.iter().cloned().map(Part::Repository).collect(),
        }
    }
}

/// How a runner's name leads to what it runs on, and where that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderConfig {
    /// `ec2-instance-id`: names are the prefix and an EC2 instance id, of any system's runners.
    Ec2InstanceId {
        /// What the names of this account's runners, and no others, begin with.
        prefix: String,
        /// Every region in which such runners may be, in alphabetical order.
        regions: Vec<String>,
    },
    /// `ostler`: runners of an install of Ostler, known by its name key.
    Ostler {
        /// Every region in which it has instances, in alphabetical order.
        regions: Vec<String>,
        /// Its state machine.
        state_machine_arn: String,
        /// The SSM parameter that holds its name key.
        name_key_parameter: String,
    },
}

impl ProviderConfig {
    /// Its name in the configuration.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Ec2InstanceId { .. } => "ec2-instance-id",
            Self::Ostler { .. } => "ostler",
        }
    }

    /// Where its instances may be.
    pub fn regions(&self) -> &[String] {
        match self {
            Self::Ec2InstanceId { regions, .. } | Self::Ostler { regions, .. } => regions,
        }
    }

    /// What names of its runners begin with; empty where something else tells them.
    pub fn prefix(&self) -> &str {
        match self {
            Self::Ec2InstanceId { prefix, .. } => prefix,
            Self::Ostler { .. } => "",
        }
    }
}

impl Config {
    /// Reads and checks `REGISTRATION_JANITOR_CONFIG`; `None` and an empty text are refused as well. The
    /// error names all that is wrong.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        let invalid = |why: String| {
            Err(Error::Permanent(format!(
                "invalid config: {why}; REGISTRATION_JANITOR_CONFIG is set by the stack's parameters"
            )))
        };
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
            return invalid("there is none".into());
        };
        let object = match serde_json::from_str(text) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return invalid("it is no JSON object".into()),
            Err(error) => return invalid(format!("it is no JSON: {error}")),
        };
        let mut reader = Reader { object, problems: Vec::new() };
        let config = Self {
            scope: reader.scope(),
            provider: reader.provider(),
            github_api: reader.github_api(),
            dry_run: reader.dry_run(),
            max_candidates: reader.max_candidates(),
        };
        match reader.problems.is_empty() {
            true => Ok(config),
            false => invalid(reader.problems.join("; ")),
        }
    }

    /// What a candidate was found under: if anything of it has changed, the candidate is void. A SHA-256
    /// in hexadecimal over a canonical JSON; whether it is a dry run, and how many candidates there may
    /// be, is no part of it.
    pub fn fingerprint(&self, provider: &impl Provider) -> String {
        let (organization, runner_group_ids, repositories) = match &self.scope {
            Scope::Organization { name, groups } => {
                (Some(name.as_str()), Some(groups.as_slice()), None)
            }
            Scope::Repositories(all) => {
                let names = all.iter().map(|each| each.to_string().to_lowercase()).collect();
                (None, None, Some(names))
            }
        };
        let canonical = Canonical {
            organization,
            repositories,
            runner_name_prefix: self.provider.prefix(),
            compute_provider: CanonicalProvider { kind: provider.kind(), scope: provider.scope() },
            runner_group_ids,
            ghes_api_url: &self.github_api,
        };
        let text = serde_json::to_string(&canonical).unwrap_or_default();
        fingerprint(&[&text], 64)
    }
}

/// The order of the fields is part of the fingerprint.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Canonical<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    organization: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repositories: Option<Vec<String>>,
    runner_name_prefix: &'a str,
    compute_provider: CanonicalProvider<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runner_group_ids: Option<&'a [i64]>,
    ghes_api_url: &'a str,
}

#[derive(Serialize)]
struct CanonicalProvider<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    scope: String,
}

/// Takes the object apart and collects what is wrong with it. What it gives for something wrong is never
/// used.
struct Reader {
    object: Map<String, Value>,
    problems: Vec<String>,
}

impl Reader {
    fn wrong(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// A text without blanks around it; `None` if it is missing, null or empty.
    fn text(&mut self, of: &Map<String, Value>, key: &str) -> Option<String> {
        match of.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => {
                let text = text.trim();
                (!text.is_empty()).then(|| text.to_owned())
            }
            Some(_) => {
                self.wrong(format!("{key} must be a text"));
                None
            }
        }
    }

    fn own_text(&mut self, key: &str) -> Option<String> {
        let object = std::mem::take(&mut self.object);
        let text = self.text(&object, key);
        self.object = object;
        text
    }

    fn list(&mut self, key: &str) -> Option<Vec<Value>> {
        match self.object.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items.clone()),
            Some(_) => {
                self.wrong(format!("{key} must be a list"));
                Some(Vec::new())
            }
        }
    }

    fn scope(&mut self) -> Scope {
        let organization = self.own_text("organization");
        let groups = self.list("runnerGroupIds");
        match self.list("repositories").filter(|listed| !listed.is_empty()) {
            Some(repositories) => {
                // Empty ones are what a template without them writes.
                if organization.is_some() || groups.is_some_and(|groups| !groups.is_empty()) {
                    self.wrong(
                        "organization and runnerGroupIds, or repositories, but not both kinds",
                    );
                }
                self.repositories(&repositories)
            }
            None => self.organization(organization, groups.unwrap_or_default()),
        }
    }

    fn organization(&mut self, name: Option<String>, groups: Vec<Value>) -> Scope {
        let name = name.unwrap_or_default();
        if split_full_name(&format!("{name}/x")).is_none() {
            self.wrong("organization must be the login of an organization");
        }
        let ids: Option<BTreeSet<i64>> = groups
            .iter()
            .map(|id| id.as_i64().filter(|id| (1..=MAX_SAFE_INTEGER).contains(id)))
            .collect();
        let ids = ids.unwrap_or_default();
        if ids.is_empty() || ids.len() > MAX_PARTS {
            self.wrong("runnerGroupIds must list 1 to 1000 positive integers");
        }
        Scope::Organization { name, groups: ids.into_iter().collect() }
    }

    fn repositories(&mut self, listed: &[Value]) -> Scope {
        let mut names = BTreeSet::new();
        for item in listed {
            match item.as_str().map(str::trim).and_then(split_full_name) {
                Some((owner, name)) => {
                    // GitHub does not tell them apart by case.
                    names.insert((owner.to_lowercase(), name.to_lowercase()));
                }
                None => self.wrong("repositories must list owner/name"),
            }
        }
        if names.len() > MAX_PARTS {
            self.wrong("repositories must list 1 to 1000 repositories");
        }
        let all = names.into_iter();
        let all = all.map(|(owner, name)| Repository { owner, name, installation: None });
        Scope::Repositories(all.collect())
    }

    fn provider(&mut self) -> ProviderConfig {
        let given = match self.object.get("computeProvider") {
            Some(Value::Object(given)) => given.clone(),
            _ => Map::new(),
        };
        let options = match given.get("options") {
            Some(Value::Object(options)) => options.clone(),
            _ => Map::new(),
        };
        let regions = self.regions(options.get("regions"));
        let prefix = self.own_text("runnerNamePrefix");
        match given.get("type").and_then(Value::as_str) {
            Some("ostler") => {
                if prefix.is_some() {
                    self.wrong("runnerNamePrefix must be empty: runners of Ostler are known by its name key");
                }
                let state_machine_arn = self.text(&options, "stateMachineArn").unwrap_or_default();
                if !state_machine_arn.contains(":stateMachine:") {
                    self.wrong("stateMachineArn must be the ARN of the install's state machine");
                }
                let name_key_parameter =
                    self.text(&options, "nameKeyParamName").unwrap_or_default();
                if name_key_parameter.is_empty() {
                    self.wrong(
                        "nameKeyParamName must name the SSM parameter with the install's name key",
                    );
                }
                ProviderConfig::Ostler { regions, state_machine_arn, name_key_parameter }
            }
            Some("ec2-instance-id") => {
                let prefix = prefix.unwrap_or_default();
                if prefix.is_empty() || prefix.len() > MAX_RUNNER_NAME - SHORTEST_ID {
                    self.wrong(
                        "runnerNamePrefix must be what the names of this account's runners, and no \
                         others, begin with",
                    );
                }
                ProviderConfig::Ec2InstanceId { prefix, regions }
            }
            other => {
                let other: String = other.unwrap_or("none").chars().take(40).collect();
                self.wrong(format!(
                    "computeProvider.type '{}' is unknown; there are ec2-instance-id and ostler",
                    other.escape_default()
                ));
                ProviderConfig::Ec2InstanceId { prefix: String::new(), regions }
            }
        }
    }

    fn regions(&mut self, given: Option<&Value>) -> Vec<String> {
        let region = |value: &Value| {
            let text = value.as_str()?.trim();
            let fits = (5..=32).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            fits.then(|| text.to_owned())
        };
        let given = given.and_then(Value::as_array);
        let regions: Option<BTreeSet<String>> =
            given.map_or(Some(BTreeSet::new()), |given| given.iter().map(region).collect());
        let regions = regions.unwrap_or_default();
        if regions.is_empty() || regions.len() > MAX_REGIONS {
            self.wrong("computeProvider.options.regions must list every region with such runners");
        }
        regions.into_iter().collect()
    }

    fn github_api(&mut self) -> String {
        let url = self.own_text("ghesApiUrl").unwrap_or_default();
        url.trim_end_matches('/').to_owned()
    }

    fn dry_run(&mut self) -> bool {
        match self.object.get("dryRun") {
            Some(Value::Bool(dry_run)) => *dry_run,
            _ => {
                self.wrong("dryRun must be true or false");
                true
            }
        }
    }

    fn max_candidates(&mut self) -> usize {
        let given = self.object.get("maxCandidates").and_then(Value::as_u64);
        let number = given.and_then(|number| usize::try_from(number).ok());
        number.filter(|number| (1..=MAX_CANDIDATES).contains(number)).unwrap_or_else(|| {
            self.wrong(format!("maxCandidates must be an integer from 1 to {MAX_CANDIDATES}"));
            1
        })
    }
}
