//! CreateFleet of type `instant`: one synchronous attempt to buy machines from a list of pools.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::Rng;

use super::describe::SpotRequest;
use super::throttle::Kind;
use super::{Ec2, Fault, Image, Instance, Market, Pool, PoolMatch, Reason, Tags};

/// Longest client token (API, "Ensuring idempotency").
const LONGEST_TOKEN: usize = 64;

/// Largest user data before base64 (Guide, "Instance user data").
const LARGEST_USER_DATA: usize = 16_384;

/// Most overrides of all templates of a fleet (Guide, "EC2 Fleet quotas").
const MOST_OVERRIDES: usize = 300;

/// Most tags of a resource (Guide, "Tag restrictions").
const MOST_TAGS: usize = 50;

/// How many tokens are remembered. EC2 says nothing of how long it remembers.
const TOKENS_KEPT: usize = 100_000;

/// A launch template's version, resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// `lt-…`.
    pub id: String,
    /// The version's number.
    pub version: String,
    /// Image, if an override names none.
    pub image: Option<String>,
    /// Instance type, if an override names none.
    pub instance_type: Option<String>,
    /// Subnet, if an override names none.
    pub subnet: Option<String>,
    /// User data, without base64.
    pub user_data: Arc<[u8]>,
    /// Tags for instances.
    pub instance_tags: Tags,
    /// Tags for spot requests. CreateFleet itself cannot tag them (aws/karpenter-provider-aws#4550).
    pub spot_request_tags: Tags,
    /// `InstanceInitiatedShutdownBehavior`; EC2's default is to stop.
    pub terminates_on_power_off: bool,
    /// Instance profile.
    pub profile: Option<Profile>,
    /// IMDS.
    pub metadata: Metadata,
    /// What every launch from it fails with, if something that it refers to is wrong.
    pub fault: Option<Fault>,
}

/// An instance profile and the role in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// ARN of the profile.
    pub arn: String,
    /// Id of the profile (`AIPA…`).
    pub id: String,
    /// Unique id of its role (`AROA…`).
    pub role_id: String,
}

/// Options of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Whether a token is required (IMDSv2).
    pub token_required: bool,
    /// Hops that an answer may take.
    pub hop_limit: u32,
    /// Whether it tells the instance's tags.
    pub shows_tags: bool,
}

impl Default for Metadata {
    fn default() -> Self {
        Self { token_required: false, hop_limit: 1, shows_tags: false }
    }
}

/// A volume of an override.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// E.g. `/dev/xvda`. A name that is not the image's root device is a second volume.
    pub name: String,
    /// Size; `None` leaves the image's.
    pub gib: Option<u32>,
}

/// One of the combinations that a fleet may buy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Override {
    /// E.g. `m7i.large`.
    pub instance_type: Option<String>,
    /// `subnet-…`.
    pub subnet: Option<String>,
    /// `ami-…`.
    pub image: Option<String>,
    /// For [`Allocation::Prioritized`]: the lowest comes first.
    pub priority: Option<u32>,
    /// Volumes.
    pub devices: Vec<Device>,
}

/// Which pool is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// `lowest-price`, EC2's default: we know no prices, so the order of the request.
    Listed,
    /// `price-capacity-optimized`, `capacity-optimized`: the pool with the most room. What is known of
    /// the room lags, as it does at AWS: it is the pool's size that counts, not what is left of it.
    Capacity,
    /// `prioritized`, `capacity-optimized-prioritized`.
    Prioritized,
}

/// CreateFleet, type instant.
#[derive(Clone, Debug)]
pub struct FleetRequest {
    /// Makes repetitions one purchase.
    pub client_token: Option<String>,
    /// What to launch.
    pub template: Arc<Template>,
    /// Where and on what; empty: what the template says.
    pub overrides: Vec<Override>,
    /// `DefaultTargetCapacityType`.
    pub market: Market,
    /// `TotalTargetCapacity`.
    pub capacity: u32,
    /// The strategy of the market.
    pub allocation: Allocation,
    /// `TagSpecifications` for instances.
    pub tags: Tags,
}

impl FleetRequest {
    /// What a token stands for: the parameters of the call, not what the template says meanwhile.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.template.id, &self.template.version, &self.overrides, self.market).hash(&mut hasher);
        (self.capacity, self.allocation, &self.tags).hash(&mut hasher);
        hasher.finish()
    }
}

/// CreateFleet's answer. Instances and errors may come together (osbuild/osbuild-composer#4507).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetAnswer {
    /// `fleet-…`.
    pub fleet: String,
    /// What was bought, by override.
    pub instances: Vec<FleetInstances>,
    /// What was tried in vain, by override.
    pub errors: Vec<FleetError>,
}

/// Instances of one override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetInstances {
    /// Index of the override in the request.
    pub place: usize,
    /// Their type.
    pub instance_type: String,
    /// Their ids.
    pub ids: Vec<String>,
}

/// Why an override gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetError {
    /// Index of the override in the request.
    pub place: usize,
    /// The error.
    pub fault: Fault,
}

/// Refuses launches, inside a 200.
#[derive(Clone, Debug)]
pub struct LaunchRule {
    /// In which pools.
    pub pools: PoolMatch,
    /// In which subnet; `None` means any.
    pub subnet: Option<String>,
    /// With which error.
    pub fault: Fault,
    /// For how many CreateFleet calls that meet it; `None`: until it is cleared.
    pub times: Option<u32>,
}

/// What becomes of a launch that succeeds.
#[derive(Clone, Debug)]
pub enum LaunchFault {
    /// Nothing bad.
    None,
    /// Runs, and nothing in it ever starts.
    Dead,
    /// Its user data starts after this.
    Slow(Duration),
    /// Stays `pending` (buildkite/elastic-ci-stack-for-aws#572).
    StuckPending,
    /// Shuts down at once, `Client.InternalError` (a KMS key that may not be used:
    /// github-aws-runners/terraform-aws-github-runner#3422).
    Dies,
}

/// Answers by token.
#[derive(Default)]
pub(super) struct Tokens {
    known: BTreeMap<String, (u64, FleetAnswer)>,
    order: VecDeque<String>,
}

impl Tokens {
    fn keep(&mut self, token: String, fingerprint: u64, answer: FleetAnswer) {
        if self.order.len() >= TOKENS_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(token.clone());
        self.known.insert(token, (fingerprint, answer));
    }
}

/// An override that can be launched.
struct Candidate {
    pool: Pool,
    subnet: String,
    image: Image,
    volumes: Vec<(String, u32)>,
}

impl Ec2 {
    /// CreateFleet. A token that was used before answers what it answered then if the parameters are the
    /// same, errors included, and `IdempotentParameterMismatch` otherwise, even if nothing was launched
    /// (API, "Ensuring idempotency"; runs-on/runs-on#251). A call that failed leaves no token.
    pub fn create_fleet(
        &mut self,
        now: Timestamp,
        request: &FleetRequest,
    ) -> Result<FleetAnswer, Fault> {
        self.admit(now, "CreateFleet", Kind::Change)?;
        self.settle(now);
        check(request)?;
        let fingerprint = request.fingerprint();
        if let Some(token) = &request.client_token
            && let Some((before, answer)) = self.tokens.known.get(token)
        {
            return if *before == fingerprint {
                Ok(answer.clone())
            } else {
                Err(Fault::new(
                    "IdempotentParameterMismatch",
                    "Arguments on this idempotent request are inconsistent with arguments used in \
                     previous request(s).",
                ))
            };
        }
        let answer = self.buy(now, request);
        if let Some(token) = &request.client_token {
            self.tokens.keep(token.clone(), fingerprint, answer.clone());
        }
        Ok(answer)
    }

    fn buy(&mut self, now: Timestamp, request: &FleetRequest) -> FleetAnswer {
        let mut answer = FleetAnswer { fleet: self.fleet_id(), ..FleetAnswer::default() };
        let own = [Override::default()];
        let overrides = if request.overrides.is_empty() { &own[..] } else { &request.overrides };
        let mut ready: Vec<(usize, Candidate)> = Vec::new();
        for (place, wanted) in overrides.iter().enumerate() {
            match self.candidate(request, wanted) {
                Ok(candidate) => ready.push((place, candidate)),
                Err(fault) => answer.errors.push(FleetError { place, fault }),
            }
        }
        match request.allocation {
            Allocation::Listed => {}
            Allocation::Capacity => {
                ready.sort_by_key(|(_, it)| std::cmp::Reverse(self.capacity(&it.pool)));
            }
            Allocation::Prioritized => {
                ready.sort_by_key(|(place, _)| overrides[*place].priority.unwrap_or(u32::MAX));
            }
        }
        let mut met = vec![false; self.rules.len()];
        let mut missing = request.capacity;
        if self.doubles > 0 {
            self.doubles -= 1;
            missing += 1;
        }
        for (place, candidate) in ready {
            let mut ids = Vec::new();
            while missing > 0 {
                match self.attempt(now, request, &candidate, &mut met) {
                    Ok(id) => ids.push(id),
                    Err(fault) => {
                        *self.refusals.entry(fault.code.clone()).or_default() += 1;
                        answer.errors.push(FleetError { place, fault });
                        break;
                    }
                }
                missing -= 1;
            }
            if !ids.is_empty() {
                let instance_type = candidate.pool.instance_type;
                answer.instances.push(FleetInstances { place, instance_type, ids });
            }
        }
        let bought: usize = answer.instances.iter().map(|bought| bought.ids.len()).sum();
        self.doubled += u64::from(u32::try_from(bought).is_ok_and(|it| it > request.capacity));
        let mut met = met.into_iter();
        self.rules.retain_mut(|rule| {
            let Some(times) = rule.times.as_mut().filter(|_| met.next() == Some(true)) else {
                return true;
            };
            *times = times.saturating_sub(1);
            *times > 0
        });
        answer
    }

    /// What is wrong with an override whatever the capacity.
    fn candidate(&self, request: &FleetRequest, wanted: &Override) -> Result<Candidate, Fault> {
        let template = &request.template;
        if let Some(fault) = &template.fault {
            return Err(fault.clone());
        }
        // Code and sentence: github-aws-runners/terraform-aws-github-runner#4561.
        if request.market == Market::OnDemand && !template.spot_request_tags.is_empty() {
            return Err(Fault::new(
                "InvalidParameterValue",
                "You cannot specify tags for Spot instances requests if there are no Spot instances \
                 requests being created by the request.",
            ));
        }
        if template.user_data.len() > LARGEST_USER_DATA {
            return Err(Fault::new(
                "InvalidParameterValue",
                format!("User data is limited to {LARGEST_USER_DATA} bytes"),
            ));
        }
        let pick = |own: &Option<String>, default: &Option<String>, name: &str| {
            own.clone().or_else(|| default.clone()).ok_or_else(|| {
                Fault::new("MissingParameter", format!("The request must contain {name}"))
            })
        };
        let instance_type = pick(&wanted.instance_type, &template.instance_type, "InstanceType")?;
        let subnet = pick(&wanted.subnet, &template.subnet, "SubnetId")?;
        let image = pick(&wanted.image, &template.image, "ImageId")?;
        let Some(zone) = self.subnets.get(&subnet) else {
            return Err(Fault::new(
                "InvalidSubnetID.NotFound",
                format!("The subnet ID '{subnet}' does not exist"),
            ));
        };
        let image = self.launchable(&image, &instance_type)?;
        let mut volumes = vec![(image.root_device.clone(), image.root_gib)];
        for device in &wanted.devices {
            let gib = device.gib.unwrap_or(image.root_gib);
            if device.name != image.root_device {
                volumes.push((device.name.clone(), gib));
            } else if gib < image.root_gib {
                return Err(Fault::new(
                    "InvalidBlockDeviceMapping",
                    format!(
                        "Volume of size {gib}GB is smaller than snapshot, expect size >= {}GB",
                        image.root_gib
                    ),
                ));
            } else {
                volumes[0].1 = gib;
            }
        }
        let pool = Pool { instance_type, zone: zone.clone(), market: request.market };
        Ok(Candidate { pool, subnet, image, volumes })
    }

    fn launchable(&self, id: &str, instance_type: &str) -> Result<Image, Fault> {
        if !super::well_formed(id, "ami-") {
            return Err(Fault::new("InvalidAMIID.Malformed", format!("Invalid id: \"{id}\"")));
        }
        let Some(image) = self.images.get(id) else {
            return Err(Fault::new(
                "InvalidAMIID.NotFound",
                format!("The image id '[{id}]' does not exist"),
            ));
        };
        if image.state != "available" {
            return Err(Fault::new(
                "InvalidAMIID.Unavailable",
                format!("The image ID '{id}' is currently unavailable"),
            ));
        }
        let architecture = architecture_of(instance_type);
        if architecture != image.architecture {
            return Err(Fault::new(
                "InvalidParameterValue",
                format!(
                    "The architecture '{architecture}' of the specified instance type does not \
                     match the architecture '{}' of the specified AMI. Specify an instance type and \
                     an AMI that have matching architectures, and try again.",
                    image.architecture
                ),
            ));
        }
        Ok(image.clone())
    }

    fn attempt(
        &mut self,
        now: Timestamp,
        request: &FleetRequest,
        wanted: &Candidate,
        met: &mut [bool],
    ) -> Result<String, Fault> {
        for (rule, met) in self.rules.iter().zip(met) {
            if rule.pools.covers(&wanted.pool)
                && rule.subnet.as_ref().is_none_or(|it| *it == wanted.subnet)
            {
                *met = true;
                return Err(rule.fault.clone());
            }
        }
        self.quota(&wanted.pool)?;
        self.room(&wanted.pool)?;
        self.admit(now, "launch", Kind::Launch)?;
        Ok(self.launch(now, request, wanted))
    }

    /// Whether the pool has a machine left.
    pub(super) fn room(&self, pool: &Pool) -> Result<(), Fault> {
        if self.used.get(pool).copied().unwrap_or(0) < self.capacity(pool) {
            return Ok(());
        }
        let message = match pool.market {
            Market::Spot => {
                "There is no Spot capacity available that matches your request.".to_owned()
            }
            Market::OnDemand => format!(
                "We currently do not have sufficient {} capacity in the Availability Zone you \
                 requested ({}). Our system will be working on provisioning additional capacity.",
                pool.instance_type, pool.zone
            ),
        };
        Err(Fault::new("InsufficientInstanceCapacity", message))
    }

    fn quota(&self, pool: &Pool) -> Result<(), Fault> {
        let limit = match pool.market {
            Market::OnDemand => self.options.on_demand_vcpus,
            Market::Spot => self.options.spot_vcpus,
        };
        let Some(limit) = limit else { return Ok(()) };
        let used = self.used.iter().filter(|(it, _)| it.market == pool.market);
        let used: u32 = used.map(|(it, n)| n * vcpus_of(&it.instance_type)).sum();
        if used + vcpus_of(&pool.instance_type) <= limit {
            return Ok(());
        }
        Err(match pool.market {
            Market::OnDemand => Fault::new(
                "VcpuLimitExceeded",
                format!(
                    "You have requested more vCPU capacity than your current vCPU limit of {limit} \
                     allows for the instance bucket that the specified instance type belongs to. \
                     Please visit http://aws.amazon.com/contact-us/ec2-request to request an \
                     adjustment to this limit."
                ),
            ),
            Market::Spot => {
                Fault::new("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
            }
        })
    }

    fn launch(&mut self, now: Timestamp, request: &FleetRequest, wanted: &Candidate) -> String {
        let seq = self.sequence();
        let id = self.id("i");
        let reservation = self.id("r");
        let template = Arc::clone(&request.template);
        let mut tags = template.instance_tags.clone();
        tags.extend(request.tags.clone());
        let spot = (wanted.pool.market == Market::Spot).then(|| SpotRequest {
            id: format!("sir-{:08x}", self.rng.random::<u32>()),
            created: now,
            tags: template.spot_request_tags.clone(),
            cancelled: None,
            persistent: false,
            passed_on: false,
        });
        let seen_from = now + self.options.unseen.draw(&mut self.rng);
        let tagged_from = seen_from + self.options.untagged.draw(&mut self.rng);
        let [_, b, c, d] = self.rng.random::<u32>().to_be_bytes();
        for tag in &tags {
            self.tagged.entry((tag.0.clone(), tag.1.clone())).or_default().insert(seq);
        }
        self.ids.insert(id.clone(), seq);
        let instance = Instance {
            seq,
            id: id.clone(),
            reservation,
            pool: wanted.pool.clone(),
            subnet: wanted.subnet.clone(),
            image: wanted.image.clone(),
            client_token: request.client_token.clone().unwrap_or_default(),
            launched: now,
            boots: None,
            tags,
            volumes: wanted.volumes.clone(),
            address: format!("10.{b}.{c}.{d}"),
            terminates_on_power_off: template.terminates_on_power_off,
            protected: false,
            user_data: Arc::clone(&template.user_data),
            template,
            spot,
            history: Vec::new(),
            noted: Vec::new(),
            seen_from,
            tagged_from,
            holds_pool: false,
            released: None,
            interrupted: None,
        };
        self.instances.insert(seq, instance);
        let fate = self.fate();
        self.power_on(now, seq);
        match fate {
            LaunchFault::None => {}
            LaunchFault::Dead => self.boot_at(seq, None),
            LaunchFault::Slow(after) => self.boot_at(seq, Some(now + after)),
            LaunchFault::StuckPending => self.stick(seq),
            LaunchFault::Dies => {
                self.stick(seq);
                let reason = Reason {
                    code: "Client.InternalError",
                    message: "Client.InternalError: Client error on launch".into(),
                    transition: String::new(),
                };
                self.end(now + DIES_AFTER, seq, reason);
            }
        }
        id
    }

    fn fate(&mut self) -> LaunchFault {
        if let Some(planned) = self.plans.pop_front() {
            return planned;
        }
        let (dead, slow) = (self.options.dead_boots, self.options.slow_boots);
        let dice = self.rng.random::<f64>();
        if dice < dead {
            LaunchFault::Dead
        } else if dice < dead + slow {
            LaunchFault::Slow(self.options.slow_boot.draw(&mut self.rng))
        } else {
            LaunchFault::None
        }
    }

    fn fleet_id(&mut self) -> String {
        let [a, b] = [self.rng.random::<u64>(), self.rng.random::<u64>()];
        let text = format!("{a:016x}{b:016x}");
        let part = |from: usize, to: usize| &text[from..to];
        format!(
            "fleet-{}-{}-{}-{}-{}",
            part(0, 8),
            part(8, 12),
            part(12, 16),
            part(16, 20),
            part(20, 32)
        )
    }
}

/// From launch to the end of an instance whose volume cannot be decrypted.
const DIES_AFTER: Duration = Duration::from_secs(3);

fn check(request: &FleetRequest) -> Result<(), Fault> {
    let invalid = |text: String| Err(Fault::new("InvalidParameterValue", text));
    if let Some(token) = &request.client_token
        && (token.len() > LONGEST_TOKEN || !token.is_ascii())
    {
        return invalid(format!("Client token must be at most {LONGEST_TOKEN} ASCII characters"));
    }
    if request.capacity == 0 {
        return invalid("TotalTargetCapacity must be greater than 0".to_owned());
    }
    if request.overrides.len() > MOST_OVERRIDES {
        return invalid(format!("At most {MOST_OVERRIDES} overrides may be given"));
    }
    if request.tags.len() > MOST_TAGS {
        return Err(Fault::new("TagLimitExceeded", "The maximum number of tags was exceeded"));
    }
    // Key and value lengths, and the reserved prefix: Guide, "Tag restrictions".
    let bad = request.tags.iter().find(|(key, value)| {
        key.is_empty()
            || key.chars().count() > 128
            || value.chars().count() > 256
            || key.to_ascii_lowercase().starts_with("aws:")
    });
    match bad {
        Some((key, _)) => invalid(format!("Tag '{key}' is not valid")),
        None => Ok(()),
    }
}

/// `arm64` for AWS's own processors: their families have a `g` after the generation (`m7g`, `c7gn`), and
/// `a1` (Guide, "Instance type naming conventions").
pub(super) fn architecture_of(instance_type: &str) -> &'static str {
    let family = instance_type.split('.').next().unwrap_or_default();
    let options = family.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let options = options.trim_start_matches(|c: char| c.is_ascii_digit());
    let options = options.split('-').next().unwrap_or_default();
    if family == "a1" || options.contains('g') { "arm64" } else { "x86_64" }
}

/// vCPUs by the size's name: 2 for `large`, 4 for `xlarge`, n times that for `<n>xlarge`. Good enough
/// for quotas; some families differ.
pub(super) fn vcpus_of(instance_type: &str) -> u32 {
    let size = instance_type.split('.').nth(1).unwrap_or_default();
    match size.strip_suffix("xlarge") {
        Some("") => 4,
        Some(n) => n.parse::<u32>().unwrap_or(1).saturating_mul(4),
        None if size.starts_with("metal") => 96,
        None if size == "medium" || size == "small" => 1,
        None => 2,
    }
}
