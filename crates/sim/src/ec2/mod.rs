//! EC2 as a launcher of runners meets it: instant fleets, capacity that runs out, quotas, throttling,
//! answers that lag behind the truth, machines that die, spot interruptions.
//!
//! A synchronous state machine: each method is one API call at time `now`, which never goes back. A
//! change that takes time (pending to running, the two minutes of a spot notice) is written into the
//! instance's history ahead of time, so that every answer follows from the history and `now` alone.
//! What happens in between calls is told by [`Ec2::events`], due at [`Ec2::next_event`].
//!
//! Sources of the rules stand beside them: "API" is the EC2 API Reference and its list of error codes,
//! "Guide" the EC2 User Guide, `owner/repo#n` a public report.

mod describe;
mod launch;
mod life;
#[cfg(test)]
mod tests;
mod throttle;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;

pub use describe::{DescribeQuery, Filter, Page, SpotRequest, SpotStatus};
pub use launch::{
    Allocation, Device, FleetAnswer, FleetError, FleetInstances, FleetRequest, LaunchFault,
    LaunchRule, Metadata, Override, Profile, Template,
};
pub use life::{Change, Event, Happening, InstanceAttribute};
pub use throttle::{Rate, Throttle};

/// Tags of a resource.
pub type Tags = BTreeMap<String, String>;

/// Terminated instances stay listed for about this long (Guide, "Terminate Amazon EC2 instances").
const LISTED_AFTER_END: Duration = Duration::from_secs(3600);

/// "After a short while" tags are no longer shown on a terminated instance (Guide, same page). The
/// length is ours.
const TAGGED_AFTER_END: Duration = Duration::from_secs(300);

/// Notice before a spot instance is taken (Guide, "Spot Instance interruption notices").
pub const SPOT_NOTICE: Duration = Duration::from_secs(120);

/// How a capacity pool is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Market {
    /// At the list price, for as long as wanted.
    OnDemand,
    /// Cheaper, and taken back with two minutes' notice.
    Spot,
}

impl Market {
    /// EC2's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// State of an instance (API, InstanceState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Being started.
    Pending,
    /// Powered.
    Running,
    /// On its way to the end.
    ShuttingDown,
    /// Ended, for good.
    Terminated,
    /// On its way to `Stopped`.
    Stopping,
    /// Without power, its disk kept.
    Stopped,
}

impl State {
    /// EC2's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    /// EC2's number for it.
    pub const fn code(self) -> u16 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
            Self::Stopping => 64,
            Self::Stopped => 80,
        }
    }

    /// Whether the instance is ended or about to be.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::Terminated)
    }
}

/// An error as EC2 answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// E.g. `InsufficientInstanceCapacity`.
    pub code: Cow<'static, str>,
    /// EC2's sentence.
    pub message: String,
}

impl Fault {
    /// An error of that code.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }

    /// HTTP status of an answer that is this error (API, "Common client error codes" are 400, "Server
    /// error codes" 500 and 503; `UnauthorizedOperation` is 403).
    pub fn status(&self) -> u16 {
        match &*self.code {
            "RequestLimitExceeded" | "ServiceUnavailable" | "Unavailable" => 503,
            "UnauthorizedOperation" | "AuthFailure" => 403,
            "InternalError" | "InternalFailure" => 500,
            code if code.starts_with("Insufficient") => 500,
            _ => 400,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Fault {}

/// A time drawn evenly between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// At least this.
    pub least: Duration,
    /// At most this.
    pub most: Duration,
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self::seconds(0, 0);

    /// Between two numbers of seconds.
    pub const fn seconds(least: u64, most: u64) -> Self {
        Self { least: Duration::from_secs(least), most: Duration::from_secs(most) }
    }

    fn draw(self, rng: &mut StdRng) -> Duration {
        if self.most <= self.least {
            return self.least;
        }
        rng.random_range(self.least..=self.most)
    }
}

/// How this EC2 behaves. The defaults are those of an ordinary day in an ordinary account.
#[derive(Clone, Debug)]
pub struct Options {
    /// From launch or start to `running`.
    pub pending: Span,
    /// From launch or start to the first line of the user data (Linux images: half a minute or so).
    pub boot: Span,
    /// From `stopping` to `stopped`.
    pub stopping: Span,
    /// From `shutting-down` to `terminated`.
    pub shutting_down: Span,
    /// For how long a new instance is unknown to every call (API, "Eventual consistency";
    /// boto/boto3#2556).
    pub unseen: Span,
    /// For how long, beyond that, filters on tags don't find it (aws/aws-sdk-ruby#859).
    pub untagged: Span,
    /// Whether pages may come short or empty while there is a next token (API, "Pagination").
    pub short_pages: bool,
    /// Request rates; `None` for no limits.
    pub throttle: Option<Throttle>,
    /// vCPUs that may run on demand at a time (API, `VcpuLimitExceeded`); `None` for no limit.
    pub on_demand_vcpus: Option<u32>,
    /// vCPUs that may run as spot at a time (API, `MaxSpotInstanceCountExceeded`); `None` for no limit.
    pub spot_vcpus: Option<u32>,
    /// Share of launches that come up as running, with nothing in them that ever starts.
    pub dead_boots: f64,
    /// Share of launches that need `slow_boot` instead of `boot`.
    pub slow_boots: f64,
    /// See `slow_boots`.
    pub slow_boot: Span,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pending: Span::seconds(4, 15),
            boot: Span::seconds(18, 40),
            stopping: Span::seconds(10, 40),
            shutting_down: Span::seconds(5, 45),
            unseen: Span::seconds(0, 3),
            untagged: Span::seconds(0, 5),
            short_pages: true,
            throttle: Some(Throttle::default()),
            on_demand_vcpus: None,
            spot_vcpus: None,
            dead_boots: 0.0,
            slow_boots: 0.0,
            slow_boot: Span::seconds(240, 900),
        }
    }
}

impl Options {
    /// Everything at once, nothing ever missing: for tests of something else.
    pub fn calm() -> Self {
        Self {
            pending: Span::ZERO,
            boot: Span::ZERO,
            stopping: Span::ZERO,
            shutting_down: Span::ZERO,
            unseen: Span::ZERO,
            untagged: Span::ZERO,
            short_pages: false,
            throttle: None,
            ..Self::default()
        }
    }
}

/// A set of machines of one kind: capacity is had or lacking per type, zone and market.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool {
    /// E.g. `m7i.large`.
    pub instance_type: String,
    /// E.g. `us-east-1a`.
    pub zone: String,
    /// Spot or on-demand.
    pub market: Market,
}

/// Which pools a rule is about; `None` means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolMatch {
    /// E.g. `m7i.large`.
    pub instance_type: Option<String>,
    /// E.g. `us-east-1a`.
    pub zone: Option<String>,
    /// Spot or on-demand.
    pub market: Option<Market>,
}

impl PoolMatch {
    fn covers(&self, pool: &Pool) -> bool {
        self.instance_type.as_ref().is_none_or(|it| *it == pool.instance_type)
            && self.zone.as_ref().is_none_or(|it| *it == pool.zone)
            && self.market.is_none_or(|it| it == pool.market)
    }
}

/// A machine image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `ami-…`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `x86_64` or `arm64`.
    pub architecture: String,
    /// E.g. `/dev/sda1`, `/dev/xvda`.
    pub root_device: String,
    /// Size of its snapshot, GiB: a root volume cannot be smaller.
    pub root_gib: u32,
    /// `available`, `pending`, `disabled`, …
    pub state: String,
    /// Account that owns it.
    pub owner: String,
}

/// One change in an instance's life, perhaps yet to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// To what.
    pub state: State,
    /// Why, if it is not as everyone would expect.
    pub reason: Option<Reason>,
}

/// Why an instance stopped or ended (API, StateReason and StateTransitionReason).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// E.g. `Client.UserInitiatedShutdown`.
    pub code: &'static str,
    /// EC2's sentence.
    pub message: Cow<'static, str>,
    /// E.g. `User initiated (2026-11-30 12:00:00 GMT)`; often empty.
    pub transition: String,
}

/// An instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Order of launch.
    seq: u64,
    /// `i-` and 17 hexadecimal digits.
    pub id: String,
    /// Of the reservation that it came with.
    pub reservation: String,
    /// What it was launched from.
    pub template: Arc<Template>,
    /// Type, zone and market.
    pub pool: Pool,
    /// Its subnet.
    pub subnet: String,
    /// Its image.
    pub image: Image,
    /// Token of the launch.
    pub client_token: String,
    /// When it was launched, or last started: it moves with each start (API, Instance.LaunchTime).
    pub launched: Timestamp,
    /// When its user data starts; `None` if nothing in it ever does.
    pub boots: Option<Timestamp>,
    /// Its tags.
    pub tags: Tags,
    /// Its volumes: device and GiB.
    pub volumes: Vec<(String, u32)>,
    /// Private address.
    pub address: String,
    /// Whether power-off from inside ends it, or only stops it.
    pub terminates_on_power_off: bool,
    /// Whether TerminateInstances is refused.
    pub protected: bool,
    /// User data, without base64.
    pub user_data: Arc<[u8]>,
    /// Its spot request.
    pub spot: Option<SpotRequest>,
    history: Vec<Step>,
    /// Its entries in the agenda.
    noted: Vec<(Timestamp, u64)>,
    seen_from: Timestamp,
    tagged_from: Timestamp,
    /// Whether it counts against its pool's capacity and the quota.
    holds_pool: bool,
    /// When it no longer will.
    released: Option<Timestamp>,
    interrupted: Option<Timestamp>,
}

impl Instance {
    /// The latest change up to `now`.
    pub fn step(&self, now: Timestamp) -> &Step {
        self.history.iter().rev().find(|step| step.at <= now).unwrap_or(&self.history[0])
    }

    /// Its state.
    pub fn state(&self, now: Timestamp) -> State {
        self.step(now).state
    }

    /// When it was or will be terminated.
    pub fn ended(&self) -> Option<Timestamp> {
        self.history.iter().find(|step| step.state == State::Terminated).map(|step| step.at)
    }

    /// The tags that EC2 shows at `now`.
    pub fn shown_tags(&self, now: Timestamp) -> &Tags {
        static NONE: Tags = Tags::new();
        match self.ended() {
            Some(ended) if now >= ended + TAGGED_AFTER_END => &NONE,
            _ => &self.tags,
        }
    }

    fn listed(&self, now: Timestamp) -> bool {
        now >= self.seen_from && self.ended().is_none_or(|ended| now < ended + LISTED_AFTER_END)
    }

    /// Whether the latest start was the first.
    pub fn is_first_boot(&self) -> bool {
        !self.history.iter().any(|step| step.state == State::Stopped)
    }
}

/// EC2 in one region of one account.
pub struct Ec2 {
    options: Options,
    rng: StdRng,
    subnets: BTreeMap<String, String>,
    images: BTreeMap<String, Image>,
    shortages: Vec<(PoolMatch, u32)>,
    rules: Vec<LaunchRule>,
    plans: VecDeque<LaunchFault>,
    instances: BTreeMap<u64, Instance>,
    ids: BTreeMap<String, u64>,
    tagged: BTreeMap<(String, String), BTreeSet<u64>>,
    used: BTreeMap<Pool, u32>,
    releases: BTreeSet<(Timestamp, u64)>,
    drops: BTreeSet<(Timestamp, u64)>,
    agenda: BTreeMap<(Timestamp, u64), Event>,
    tokens: launch::Tokens,
    /// Purchases to come that get one instance more than asked for.
    doubles: u32,
    doubled: u64,
    refusals: BTreeMap<Cow<'static, str>, u64>,
    buckets: throttle::Buckets,
    next: u64,
}

impl Ec2 {
    /// An EC2 without subnets, images and instances, with endless capacity.
    pub fn new(options: Options, rng: StdRng) -> Self {
        Self {
            options,
            rng,
            subnets: BTreeMap::new(),
            images: BTreeMap::new(),
            shortages: Vec::new(),
            rules: Vec::new(),
            plans: VecDeque::new(),
            instances: BTreeMap::new(),
            ids: BTreeMap::new(),
            tagged: BTreeMap::new(),
            used: BTreeMap::new(),
            releases: BTreeSet::new(),
            drops: BTreeSet::new(),
            agenda: BTreeMap::new(),
            tokens: launch::Tokens::default(),
            doubles: 0,
            doubled: 0,
            refusals: BTreeMap::new(),
            buckets: throttle::Buckets::default(),
            next: 0,
        }
    }

    /// The behaviour, to be changed at any time.
    pub fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Makes a subnet known.
    pub fn add_subnet(&mut self, id: &str, zone: &str) {
        self.subnets.insert(id.to_owned(), zone.to_owned());
    }

    /// Whether a subnet is known.
    pub fn has_subnet(&self, id: &str) -> bool {
        self.subnets.contains_key(id)
    }

    /// Makes an image known, or changes one.
    pub fn add_image(&mut self, image: Image) {
        self.images.insert(image.id.clone(), image);
    }

    /// Lets each pool that matches hold at most `instances` at a time; of several rules the latest
    /// decides. What runs already stays.
    pub fn limit_capacity(&mut self, pools: PoolMatch, instances: u32) {
        self.shortages.push((pools, instances));
    }

    /// Takes back all limits of capacity.
    pub fn restore_capacity(&mut self) {
        self.shortages.clear();
    }

    /// Adds a rule that refuses launches.
    pub fn add_rule(&mut self, rule: LaunchRule) {
        self.rules.push(rule);
    }

    /// Takes back all such rules.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Gives the next purchases one instance more than they ask for. EC2 promises not to; a caller that relies on it
    /// pays for a machine that nobody knows.
    pub fn double_launches(&mut self, purchases: u32) {
        self.doubles += purchases;
    }

    /// How many purchases got more than they asked for.
    pub fn doubled(&self) -> u64 {
        self.doubled
    }

    /// How often launches were refused, by the error's code.
    pub fn refusals(&self) -> &BTreeMap<Cow<'static, str>, u64> {
        &self.refusals
    }

    /// Decides the fate of the next instances launched, one each.
    pub fn plan_launches(&mut self, fates: impl IntoIterator<Item = LaunchFault>) {
        self.plans.extend(fates);
    }

    /// Takes back the fates that no launch has met yet.
    pub fn clear_plans(&mut self) {
        self.plans.clear();
    }

    /// All instances that the model still holds, in order of launch, visible or not. Not an API call.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// The instance, visible or not. Not an API call.
    pub fn instance(&self, id: &str) -> Option<&Instance> {
        self.instances.get(self.ids.get(id)?)
    }

    fn sequence(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A hexadecimal id as EC2 makes them since 2016: 17 digits.
    fn id(&mut self, prefix: &str) -> String {
        format!("{prefix}-0{:016x}", self.rng.random::<u64>())
    }

    /// The room that a pool has in all; `u32::MAX` if nobody limited it.
    fn capacity(&self, pool: &Pool) -> u32 {
        self.shortages.iter().rev().find(|(it, _)| it.covers(pool)).map_or(u32::MAX, |(_, n)| *n)
    }

    /// Brings the book-keeping up to `now`: pools freed, instances that EC2 no longer lists.
    fn settle(&mut self, now: Timestamp) {
        while let Some(&(at, seq)) = self.releases.first()
            && at <= now
        {
            self.releases.pop_first();
            let Some(instance) = self.instances.get_mut(&seq) else { continue };
            instance.holds_pool = false;
            instance.released = None;
            if let Some(used) = self.used.get_mut(&instance.pool) {
                *used = used.saturating_sub(1);
            }
        }
        while let Some(&(at, seq)) = self.drops.first()
            && at <= now
        {
            self.drops.pop_first();
            self.forget(seq);
        }
    }

    fn forget(&mut self, seq: u64) {
        let Some(instance) = self.instances.remove(&seq) else { return };
        self.ids.remove(&instance.id);
        for tag in instance.tags {
            self.untag(seq, tag);
        }
    }

    fn untag(&mut self, seq: u64, tag: (String, String)) {
        if let Some(set) = self.tagged.get_mut(&tag) {
            set.remove(&seq);
            if set.is_empty() {
                self.tagged.remove(&tag);
            }
        }
    }

    /// The instances of those ids, or the error that fails the call as a whole: one id unknown (not
    /// visible yet, or no longer) is enough (API; pytorch/test-infra#6852).
    fn resolve(&self, now: Timestamp, ids: &[String]) -> Result<Vec<u64>, Fault> {
        if let Some(bad) = ids.iter().find(|id| !well_formed(id, "i-")) {
            return Err(Fault::new(
                "InvalidInstanceID.Malformed",
                format!("Invalid id: \"{bad}\""),
            ));
        }
        let known =
            |id: &&String| self.ids.get(*id).is_some_and(|seq| self.instances[seq].listed(now));
        let missing: Vec<_> = ids.iter().filter(|id| !known(id)).map(String::as_str).collect();
        match missing.as_slice() {
            [] => Ok(ids.iter().map(|id| self.ids[id]).collect()),
            [one] => Err(Fault::new(
                "InvalidInstanceID.NotFound",
                format!("The instance ID '{one}' does not exist"),
            )),
            many => Err(Fault::new(
                "InvalidInstanceID.NotFound",
                format!("The instance IDs '{}' do not exist", many.join(", ")),
            )),
        }
    }
}

/// Whether an id is the prefix and 8 or 17 hexadecimal digits.
fn well_formed(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|hex| {
        matches!(hex.len(), 8 | 17) && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}
