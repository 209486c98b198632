//! What EC2 tells: instances, spot requests and images, by id or filter, page by page.

use std::collections::BTreeSet;

use ostler_core::time::Timestamp;
use rand::Rng;

use super::throttle::Kind;
use super::{Ec2, Fault, Image, Instance, State, Tags, well_formed};

/// Most results of one page (API, DescribeInstances).
const LARGEST_PAGE: usize = 1000;

/// Fewest that may be asked for (API, DescribeInstances).
const SMALLEST_PAGE: usize = 5;

/// Most values of one filter (API, "Filtering": `FilterLimitExceeded`).
const MOST_VALUES: usize = 200;

/// Filters of DescribeInstances that the model has, besides `tag:<key>`.
const INSTANCE_FILTERS: [&str; 11] = [
    "availability-zone",
    "client-token",
    "image-id",
    "instance-id",
    "instance-lifecycle",
    "instance-state-code",
    "instance-state-name",
    "instance-type",
    "spot-instance-request-id",
    "subnet-id",
    "tag-key",
];

/// Filters of DescribeSpotInstanceRequests that the model has, besides `tag:<key>`.
const SPOT_FILTERS: [&str; 6] =
    ["instance-id", "spot-instance-request-id", "state", "status-code", "tag-key", "type"];

/// Filters of DescribeImages that the model has.
const IMAGE_FILTERS: [&str; 6] =
    ["architecture", "image-id", "name", "owner-id", "root-device-name", "state"];

/// A filter: one of its values must match; `*` and `?` are wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// E.g. `tag:ostler:owner`.
    pub name: String,
    /// Any of these.
    pub values: Vec<String>,
}

impl Filter {
    /// A filter.
    pub fn new(name: impl Into<String>, values: &[&str]) -> Self {
        Self { name: name.into(), values: values.iter().map(|it| (*it).to_owned()).collect() }
    }

    fn takes(&self, value: &str) -> bool {
        self.values.iter().any(|pattern| like(pattern.as_bytes(), value.as_bytes()))
    }
}

/// What is asked of a Describe call.
#[derive(Clone, Debug, Default)]
pub struct DescribeQuery {
    /// These; all if empty.
    pub ids: Vec<String>,
    /// All of these must match.
    pub filters: Vec<Filter>,
    /// `MaxResults`.
    pub most: Option<usize>,
    /// `NextToken`.
    pub next_token: Option<String>,
}

/// Part of a list. Only the missing token says that it is the last.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Perhaps fewer than asked for, perhaps none.
    pub items: Vec<T>,
    /// Where to go on.
    pub next_token: Option<String>,
}

/// A spot request: one-time, as instant fleets make them, or made persistent by [`Ec2::make_persistent`].
#[derive(Clone, Debug)]
pub struct SpotRequest {
    /// `sir-` and 8 characters.
    pub id: String,
    /// When it was made.
    pub created: Timestamp,
    /// Only the launch template's: CreateFleet cannot give it any.
    pub tags: Tags,
    /// When it was cancelled.
    pub cancelled: Option<Timestamp>,
    /// Whether it starts another instance when its own has ended.
    pub persistent: bool,
    /// Whether it has, so that it is the other's now.
    pub passed_on: bool,
}

/// A spot request's state (Guide, "Spot request status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotStatus {
    /// `active`, `disabled`, `closed` or `cancelled`.
    pub state: &'static str,
    /// Status code, e.g. `fulfilled`.
    pub code: &'static str,
}

impl SpotRequest {
    /// EC2's word for its type.
    pub const fn kind(&self) -> &'static str {
        if self.persistent { "persistent" } else { "one-time" }
    }
}

impl Instance {
    /// The state of its spot request.
    pub fn spot_status(&self, now: Timestamp) -> Option<SpotStatus> {
        let spot = self.spot.as_ref()?;
        let step = self.step(now);
        let over = step.state.is_over();
        let halted = matches!(step.state, State::Stopping | State::Stopped);
        let taken = step.reason.as_ref().is_some_and(|it| it.code.starts_with("Server.Spot"));
        let code = match (over, taken) {
            (true, true) => "instance-terminated-no-capacity",
            (true, false) => "instance-terminated-by-user",
            (false, _) if spot.cancelled.is_some() => "request-canceled-and-instance-running",
            (false, _) if self.interrupted.is_some() => "marked-for-termination",
            (false, _) if halted => "instance-stopped-by-user",
            (false, _) => "fulfilled",
        };
        let state = match (spot.cancelled.is_some(), over) {
            (true, _) => "cancelled",
            (false, true) => "closed",
            (false, false) if halted => "disabled",
            (false, false) => "active",
        };
        Some(SpotStatus { state, code })
    }

    /// Whether it passes a filter of [`INSTANCE_FILTERS`].
    fn passes(&self, now: Timestamp, filter: &Filter) -> bool {
        if let Some(key) = filter.name.strip_prefix("tag:") {
            let value = self.shown_tags(now).get(key).filter(|_| now >= self.tagged_from);
            return value.is_some_and(|value| filter.takes(value));
        }
        match filter.name.as_str() {
            "tag-key" => {
                now >= self.tagged_from && self.shown_tags(now).keys().any(|key| filter.takes(key))
            }
            "instance-state-name" => filter.takes(self.state(now).name()),
            "instance-state-code" => filter.takes(&self.state(now).code().to_string()),
            "instance-id" => filter.takes(&self.id),
            "instance-type" => filter.takes(&self.pool.instance_type),
            "availability-zone" => filter.takes(&self.pool.zone),
            "subnet-id" => filter.takes(&self.subnet),
            "image-id" => filter.takes(&self.image.id),
            "client-token" => filter.takes(&self.client_token),
            "instance-lifecycle" => self.spot.is_some() && filter.takes("spot"),
            "spot-instance-request-id" => {
                self.spot.as_ref().is_some_and(|spot| filter.takes(&spot.id))
            }
            _ => false,
        }
    }

    /// Whether its spot request passes a filter of [`SPOT_FILTERS`].
    fn spot_passes(&self, now: Timestamp, filter: &Filter) -> bool {
        let (Some(spot), Some(status)) = (&self.spot, self.spot_status(now)) else { return false };
        if let Some(key) = filter.name.strip_prefix("tag:") {
            return spot.tags.get(key).is_some_and(|value| filter.takes(value));
        }
        match filter.name.as_str() {
            "tag-key" => spot.tags.keys().any(|key| filter.takes(key)),
            "state" => filter.takes(status.state),
            "status-code" => filter.takes(status.code),
            "instance-id" => filter.takes(&self.id),
            "spot-instance-request-id" => filter.takes(&spot.id),
            "type" => filter.takes(spot.kind()),
            _ => false,
        }
    }
}

impl Ec2 {
    /// DescribeInstances. By id, an instance that is not visible fails the call
    /// (`InvalidInstanceID.NotFound`); by filter it is only missing.
    pub fn describe_instances(
        &mut self,
        now: Timestamp,
        query: &DescribeQuery,
    ) -> Result<Page<&Instance>, Fault> {
        self.admit(now, "DescribeInstances", kind(query))?;
        check(query, "instancesSet", &INSTANCE_FILTERS)?;
        let chosen: Vec<u64> = if query.ids.is_empty() {
            self.indexed(query)
        } else {
            let mut ids = self.resolve(now, &query.ids)?;
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        self.page(query, chosen, |instance| {
            instance.listed(now) && query.filters.iter().all(|it| instance.passes(now, it))
        })
    }

    /// DescribeSpotInstanceRequests: the instances whose requests are asked for, each with its request.
    pub fn describe_spot_requests(
        &mut self,
        now: Timestamp,
        query: &DescribeQuery,
    ) -> Result<Page<&Instance>, Fault> {
        self.admit(now, "DescribeSpotInstanceRequests", kind(query))?;
        check(query, "spotInstanceRequestIdSet", &SPOT_FILTERS)?;
        let chosen: Vec<u64> = if query.ids.is_empty() {
            self.instances.keys().copied().collect()
        } else {
            self.spot_requests_of(now, &query.ids)?
        };
        self.page(query, chosen, |instance| {
            instance.spot.as_ref().is_some_and(|spot| !spot.passed_on)
                && instance.listed(now)
                && query.filters.iter().all(|it| instance.spot_passes(now, it))
        })
    }

    /// DescribeImages. An unknown id fails the call.
    pub fn describe_images(
        &mut self,
        now: Timestamp,
        query: &DescribeQuery,
    ) -> Result<Vec<Image>, Fault> {
        self.admit(now, "DescribeImages", kind(query))?;
        check(query, "imagesSet", &IMAGE_FILTERS)?;
        for id in &query.ids {
            if !well_formed(id, "ami-") {
                return Err(Fault::new("InvalidAMIID.Malformed", format!("Invalid id: \"{id}\"")));
            }
            if !self.images.contains_key(id) {
                return Err(Fault::new(
                    "InvalidAMIID.NotFound",
                    format!("The image id '[{id}]' does not exist"),
                ));
            }
        }
        let passes = |image: &Image, filter: &Filter| match filter.name.as_str() {
            "architecture" => filter.takes(&image.architecture),
            "state" => filter.takes(&image.state),
            "image-id" => filter.takes(&image.id),
            "name" => filter.takes(&image.name),
            "root-device-name" => filter.takes(&image.root_device),
            "owner-id" => filter.takes(&image.owner),
            _ => false,
        };
        let wanted = |image: &&Image| {
            (query.ids.is_empty() || query.ids.contains(&image.id))
                && query.filters.iter().all(|filter| passes(image, filter))
        };
        Ok(self.images.values().filter(wanted).cloned().collect())
    }

    /// The instances that can pass, by the indexes of ids and tags where a filter names one without
    /// wildcards.
    fn indexed(&self, query: &DescribeQuery) -> Vec<u64> {
        let wild = |it: &Filter| it.values.iter().any(|value| value.contains(['*', '?', '\\']));
        let mut literal = query.filters.iter().filter(|filter| !wild(filter));
        if let Some(by_id) = literal.clone().find(|filter| filter.name == "instance-id") {
            let mut chosen: Vec<u64> =
                by_id.values.iter().filter_map(|id| self.ids.get(id).copied()).collect();
            chosen.sort_unstable();
            chosen.dedup();
            return chosen;
        }
        let exact =
            literal.find_map(|filter| Some((filter.name.strip_prefix("tag:")?, &filter.values)));
        let Some((key, values)) = exact else {
            return self.instances.keys().copied().collect();
        };
        let mut chosen = BTreeSet::new();
        for value in values {
            if let Some(set) = self.tagged.get(&(key.to_owned(), value.clone())) {
                chosen.extend(set);
            }
        }
        chosen.into_iter().collect()
    }

    fn page(
        &mut self,
        query: &DescribeQuery,
        chosen: Vec<u64>,
        passes: impl Fn(&Instance) -> bool,
    ) -> Result<Page<&Instance>, Fault> {
        let after = match &query.next_token {
            None => 0,
            Some(token) => token
                .strip_prefix("page-")
                .and_then(|hex| u64::from_str_radix(hex, 16).ok())
                .ok_or_else(|| {
                    Fault::new("InvalidParameterValue", "Unable to parse pagination token")
                })?,
        };
        let size = query.most.unwrap_or(LARGEST_PAGE).min(LARGEST_PAGE);
        let paged = query.most.is_some() || query.next_token.is_some();
        let size = match paged && self.options.short_pages {
            true if self.rng.random_ratio(1, 4) => 0,
            true => self.rng.random_range(1..=size),
            false => size,
        };
        let mut items = Vec::new();
        let mut last = after;
        let mut more = false;
        for seq in chosen.into_iter().filter(|seq| *seq > after) {
            let instance = &self.instances[&seq];
            if !passes(instance) {
                continue;
            }
            if items.len() == size {
                more = true;
                break;
            }
            last = seq;
            items.push(instance);
        }
        Ok(Page { items, next_token: more.then(|| format!("page-{last:016x}")) })
    }
}

fn kind(query: &DescribeQuery) -> Kind {
    if query.ids.is_empty() && query.filters.is_empty() && query.most.is_none() {
        Kind::ReadAll
    } else {
        Kind::Read
    }
}

fn check(query: &DescribeQuery, ids: &str, filters: &[&str]) -> Result<(), Fault> {
    let known = |name: &str| name.starts_with("tag:") || filters.contains(&name);
    if let Some(unknown) = query.filters.iter().find(|filter| !known(&filter.name)) {
        return Err(Fault::new(
            "InvalidParameterValue",
            format!("The filter '{}' is invalid", unknown.name),
        ));
    }
    if let Some(most) = query.most {
        if !query.ids.is_empty() {
            return Err(Fault::new(
                "InvalidParameterCombination",
                format!("The parameter {ids} cannot be used with the parameter maxResults"),
            ));
        }
        if most < SMALLEST_PAGE {
            return Err(Fault::new(
                "InvalidParameterValue",
                format!(
                    "Value ( {most} ) for parameter maxResults is invalid. Expecting a value \
                     greater than {SMALLEST_PAGE}."
                ),
            ));
        }
    }
    if query.filters.iter().any(|filter| filter.values.len() > MOST_VALUES) {
        return Err(Fault::new(
            "FilterLimitExceeded",
            format!(
                "The maximum number of filter values specified on a single call is {MOST_VALUES}"
            ),
        ));
    }
    Ok(())
}

/// Whether the value matches a pattern with `*`, `?` and `\` before a literal one.
fn like(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern, value) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            like(rest, value) || matches!(value, [_, after @ ..] if like(pattern, after))
        }
        ([b'?', rest @ ..], [_, after @ ..]) => like(rest, after),
        ([b'\\', literal, rest @ ..], [first, after @ ..]) => literal == first && like(rest, after),
        ([literal, rest @ ..], [first, after @ ..]) => literal == first && like(rest, after),
        _ => false,
    }
}
