//! The plane: calls in, answers out, and the machines kept in step with what EC2 says of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ostler_core::time::Timestamp;
use ostler_sim::ec2::{
    Allocation, Change, Device, Ec2, Event, Fault, FleetRequest, Happening, Image,
    InstanceAttribute, LaunchFault, LaunchRule, Market, Options, Override, PoolMatch, SPOT_NOTICE,
    State,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::Notify;

use super::parameters::Parameters;
use super::templates::Templates;
use super::write::{Xml, market};
use super::{Answer, BootRequest, Ec2Fault, Fate, InstanceHost, InstanceView, MarketName};
use crate::aws::{Client, REGION};
use crate::time::WorldClock;

/// Seed of the world's chances, unless another is given.
const SEED: u64 = 20_261_130;

/// The plane looks at least this often (real time) whether something is due.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// Most launches whose fate is decided at once.
const MOST_PLANNED: usize = 10_000;

/// The actions answered here; moto has the rest.
const ACTIONS: [&str; 12] = [
    "CancelSpotInstanceRequests",
    "CreateFleet",
    "CreateTags",
    "DeleteTags",
    "DescribeImages",
    "DescribeInstanceStatus",
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
    "ModifyInstanceAttribute",
    "StartInstances",
    "StopInstances",
    "TerminateInstances",
];

/// Hears what happens to instances.
pub type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// EC2's data plane in the local world.
pub struct Ec2Plane {
    clock: WorldClock,
    templates: Templates,
    host: Arc<dyn InstanceHost>,
    model: Mutex<Model>,
    changed: Arc<Notify>,
    listener: OnceLock<Listener>,
}

struct Model {
    ec2: Ec2,
    /// The latest time that the model was told: it must not go back, whatever the machine's clock does.
    now: Timestamp,
    /// VPC by subnet.
    vpcs: BTreeMap<String, String>,
}

impl Ec2Plane {
    /// A plane that behaves as EC2 on an ordinary day. `moto` is moto's own base URL. Must be called
    /// within a Tokio runtime.
    pub fn new(clock: WorldClock, moto: String, host: Arc<dyn InstanceHost>) -> Arc<Self> {
        Self::with_options(clock, moto, host, Options::default(), SEED)
    }

    /// A plane that behaves as `options` say, all chance owed to the seed.
    pub fn with_options(
        clock: WorldClock,
        moto: String,
        host: Arc<dyn InstanceHost>,
        options: Options,
        seed: u64,
    ) -> Arc<Self> {
        Self::of(clock, Client::new(moto, "edge"), host, options, seed)
    }

    /// A plane of another account, whose templates and subnets `moto` reads. Its ids differ from those of others by the
    /// seed.
    pub fn elsewhere(
        clock: WorldClock,
        moto: Client,
        host: Arc<dyn InstanceHost>,
        seed: u64,
    ) -> Arc<Self> {
        Self::of(clock, moto, host, Options::default(), seed)
    }

    fn of(
        clock: WorldClock,
        moto: Client,
        host: Arc<dyn InstanceHost>,
        options: Options,
        seed: u64,
    ) -> Arc<Self> {
        let model = Model {
            ec2: Ec2::new(options, StdRng::seed_from_u64(seed)),
            now: clock.now(),
            vpcs: BTreeMap::new(),
        };
        let plane = Arc::new(Self {
            clock,
            templates: Templates::new(moto),
            host,
            model: Mutex::new(model),
            changed: Arc::default(),
            listener: OnceLock::new(),
        });
        tokio::spawn(keep_in_step(Arc::downgrade(&plane), Arc::clone(&plane.changed)));
        plane
    }

    /// Has someone hear what happens to instances, as EventBridge does. The first who asks is it.
    pub fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// Whether an action of EC2 is answered here.
    pub fn serves(action: &str) -> bool {
        ACTIONS.contains(&action)
    }

    /// Answers a call. `parameters` are the form's, decoded.
    pub async fn serve(&self, parameters: &BTreeMap<String, String>) -> Answer {
        let action = parameters.get("Action").map_or("", String::as_str);
        let answer = if action == "CreateFleet" {
            self.create_fleet(&Parameters::new(parameters)).await
        } else if self.is_foreign(parameters) {
            self.templates.hand_on(parameters).await.map(|()| Xml::done(action))
        } else {
            let answer = self.run(|model| call(model, action, &Parameters::new(parameters)));
            self.changed.notify_one();
            answer
        };
        answer.unwrap_or_else(|fault| Xml::error(&fault))
    }

    /// All instances that EC2 still lists, in order of launch.
    pub fn instances(&self) -> Vec<InstanceView> {
        self.with(|ec2, now| {
            ec2.instances()
                .map(|instance| {
                    let step = instance.step(now);
                    InstanceView {
                        instance_id: instance.id.clone(),
                        state: step.state.name().to_owned(),
                        state_reason: step
                            .reason
                            .as_ref()
                            .map_or_else(String::new, |it| it.code.to_owned()),
                        instance_type: instance.pool.instance_type.clone(),
                        spot: instance.spot.is_some(),
                        launched_at: instance.launched,
                        ended_at: instance.ended().filter(|ended| *ended <= now),
                        tags: instance.tags.clone(),
                    }
                })
                .collect()
        })
    }

    /// The machine has powered itself off.
    pub async fn powered_off(&self, instance_id: &str) {
        self.with(|ec2, now| ec2.power_off(now, instance_id));
    }

    /// Makes an image known.
    pub fn register_image(&self, image: Image) {
        self.with(|ec2, _| ec2.add_image(image));
    }

    /// Makes an image of the usual kind known: available, 8 GiB, the account's own.
    pub fn register_plain_image(&self, id: &str, architecture: &str, root_device: &str) {
        self.register_image(Image {
            id: id.to_owned(),
            name: format!("local-{architecture}"),
            architecture: architecture.to_owned(),
            root_device: root_device.to_owned(),
            root_gib: 8,
            state: "available".to_owned(),
            owner: crate::aws::ACCOUNT.to_owned(),
        });
    }

    /// Does to instances what the world is told to; answers whether there was anything to do it to.
    pub fn inject(&self, fault: Ec2Fault) -> bool {
        self.with(|ec2, now| apply(ec2, now, fault))
    }

    /// Refuses launches; see [`LaunchRule`].
    pub fn capacity_rule(&self, rule: LaunchRule) {
        self.with(|ec2, _| ec2.add_rule(rule));
    }

    /// Uses the model at world time; what that brings about reaches the machines before this returns.
    pub fn with<R>(&self, act: impl FnOnce(&mut Ec2, Timestamp) -> R) -> R {
        let result = self.run(|model| act(&mut model.ec2, model.now));
        self.changed.notify_one();
        result
    }

    fn run<R>(&self, act: impl FnOnce(&mut Model) -> R) -> R {
        let (result, events, deeds) = {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            model.now = model.now.max(self.clock.now());
            let now = model.now;
            let result = act(&mut model);
            let events = model.ec2.events(now);
            let deeds = events.iter().filter_map(|it| Deed::of(&model.ec2, now, it));
            let deeds: Vec<_> = deeds.collect();
            (result, events, deeds)
        };
        if let Some(listener) = self.listener.get() {
            events.iter().for_each(listener);
        }
        for deed in deeds {
            self.perform(deed);
        }
        result
    }

    /// Forgets what was read of launch templates: for when moto was reset.
    pub fn forget_templates(&self) {
        self.templates.forget();
    }

    fn perform(&self, deed: Deed) {
        match deed {
            Deed::Boot(boot) => self.host.boot(boot),
            Deed::Stop(id) => self.host.stop(&id),
            Deed::Terminate(id) => self.host.terminate(&id),
            Deed::SpotNotice(id, at) => self.host.spot_notice(&id, at),
        }
    }

    /// Tags of volumes, templates and the like are moto's.
    fn is_foreign(&self, parameters: &BTreeMap<String, String>) -> bool {
        let ids = Parameters::new(parameters).texts("ResourceId");
        !ids.is_empty() && !ids.iter().any(|id| id.starts_with("i-") || id.starts_with("sir-"))
    }

    async fn create_fleet(&self, given: &Parameters<'_>) -> Result<Answer, Fault> {
        let request = self.fleet_request(given).await?;
        dry_run(given)?;
        let answer = self.with(|ec2, now| ec2.create_fleet(now, &request))?;
        Ok(Xml::response("CreateFleet", |xml| xml.fleet(&request, &answer)))
    }

    async fn fleet_request(&self, given: &Parameters<'_>) -> Result<FleetRequest, Fault> {
        if given.text("Type") != Some("instant") {
            return Err(unsupported("fleets of type instant only"));
        }
        let configs = given.list("LaunchTemplateConfigs");
        let [config] = configs.as_slice() else {
            return Err(unsupported("exactly one element of LaunchTemplateConfigs"));
        };
        let named = config.below("LaunchTemplateSpecification");
        let version = named.text("Version").ok_or_else(|| missing("Version"))?;
        let (by, template) =
            match (named.text("LaunchTemplateId"), named.text("LaunchTemplateName")) {
                (Some(id), None) => ("LaunchTemplateId", id),
                (None, Some(name)) => ("LaunchTemplateName", name),
                _ => return Err(missing("LaunchTemplateId or LaunchTemplateName")),
            };
        let mut overrides = Vec::new();
        for given in config.list("Overrides") {
            let text = |name: &str| given.text(name).map(str::to_owned);
            let mut devices = Vec::new();
            for device in given.list("BlockDeviceMapping") {
                devices.push(Device {
                    name: device.text("DeviceName").unwrap_or_default().to_owned(),
                    gib: device.below("Ebs").number("VolumeSize")?,
                });
            }
            overrides.push(Override {
                instance_type: text("InstanceType"),
                subnet: text("SubnetId"),
                image: text("ImageId"),
                // A double in the API; whole numbers are all that we send.
                priority: given.text("Priority").and_then(|it| it.split('.').next()?.parse().ok()),
                devices,
            });
        }
        let target = given.below("TargetCapacitySpecification");
        let kind = target.text("DefaultTargetCapacityType").unwrap_or("on-demand");
        let market = market(kind).ok_or_else(|| unsupported("spot and on-demand"))?;
        let options = if kind == "spot" { "SpotOptions" } else { "OnDemandOptions" };
        let allocation = match given.below(options).text("AllocationStrategy") {
            Some("price-capacity-optimized" | "capacity-optimized") => Allocation::Capacity,
            Some("prioritized" | "capacity-optimized-prioritized") => Allocation::Prioritized,
            _ => Allocation::Listed,
        };
        for tags in given.list("TagSpecification") {
            // CreateFleet cannot tag spot requests (aws/karpenter-provider-aws#4550).
            let kind = tags.text("ResourceType").unwrap_or_default();
            if !matches!(kind, "instance" | "fleet" | "volume") {
                return Err(Fault::new(
                    "InvalidParameterValue",
                    format!("'{kind}' is not a valid taggable resource type for this operation."),
                ));
            }
        }
        let template = self.templates.template(by, template, version).await?;
        self.learn_subnets(&overrides).await?;
        Ok(FleetRequest {
            client_token: given.text("ClientToken").map(str::to_owned),
            template,
            overrides,
            market,
            capacity: target.number("TotalTargetCapacity")?.unwrap_or(0),
            allocation,
            tags: given.tags_for("instance"),
        })
    }

    /// Reads moto's subnets if one is asked for that is not known yet.
    async fn learn_subnets(&self, overrides: &[Override]) -> Result<(), Fault> {
        let unknown = self.with(|ec2, _| {
            overrides.iter().any(|it| it.subnet.as_ref().is_none_or(|id| !ec2.has_subnet(id)))
        });
        if !unknown && !overrides.is_empty() {
            return Ok(());
        }
        let subnets = self.templates.subnets().await?;
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        for subnet in subnets {
            model.ec2.add_subnet(&subnet.id, &subnet.zone);
            model.vpcs.insert(subnet.id, subnet.vpc);
        }
        Ok(())
    }
}

/// What is to be done to a machine.
enum Deed {
    Boot(BootRequest),
    Stop(String),
    Terminate(String),
    SpotNotice(String, Timestamp),
}

impl Deed {
    fn of(ec2: &Ec2, now: Timestamp, event: &Event) -> Option<Self> {
        let id = event.instance.clone();
        Some(match event.what {
            Happening::State(State::Pending) => {
                let instance = ec2.instance(&id)?;
                let profile = instance.template.profile.as_ref();
                Self::Boot(BootRequest {
                    user_data: instance.user_data.to_vec(),
                    tags: instance.tags.clone(),
                    region: REGION.to_owned(),
                    role_id: profile.map_or_else(String::new, |it| it.role_id.clone()),
                    architecture: instance.image.architecture.clone(),
                    boot_delay: instance.boots.map_or(Duration::ZERO, |boots| boots.since(now)),
                    dead: instance.boots.is_none(),
                    first_boot: instance.is_first_boot(),
                    instance_id: id,
                })
            }
            Happening::State(State::Stopping) => Self::Stop(id),
            Happening::State(State::ShuttingDown) => Self::Terminate(id),
            Happening::SpotWarning => Self::SpotNotice(id, event.at + SPOT_NOTICE),
            Happening::State(_) | Happening::Boots { .. } => return None,
        })
    }
}

/// Does what falls due between calls, as long as the plane exists.
async fn keep_in_step(plane: Weak<Ec2Plane>, changed: Arc<Notify>) {
    loop {
        let Some(alive) = plane.upgrade() else { return };
        let (next, now) = alive.run(|model| (model.ec2.next_event(), model.now));
        let wait = next.map_or(IDLE_LOOK, |at| alive.clock.real(at.since(now)).min(IDLE_LOOK));
        drop(alive);
        // Not less than the timer's grain.
        let _ = tokio::time::timeout(wait.max(Duration::from_millis(1)), changed.notified()).await;
    }
}

/// The calls that need nothing but the model.
fn call(model: &mut Model, action: &str, given: &Parameters<'_>) -> Result<Answer, Fault> {
    let Model { ec2, now, vpcs } = model;
    let now = *now;
    dry_run(given)?;
    let ids = given.texts("InstanceId");
    Ok(match action {
        "DescribeInstances" => {
            let page = ec2.describe_instances(now, &given.query("InstanceId")?)?;
            Xml::response(action, |xml| {
                xml.items("reservationSet", &page.items, |xml, instance| {
                    let vpc = vpcs.get(&instance.subnet).map_or("", String::as_str);
                    xml.reservation(now, instance, vpc);
                });
                xml.next_token(page.next_token.as_ref());
            })
        }
        "DescribeInstanceStatus" => {
            let every = given.flag("IncludeAllInstances");
            let page = ec2.describe_instances(now, &given.query("InstanceId")?)?;
            let shown = page.items.iter().filter(|it| every || it.state(now) == State::Running);
            Xml::response(action, |xml| {
                xml.items("instanceStatusSet", shown, |xml, it| xml.status(now, it));
                xml.next_token(page.next_token.as_ref());
            })
        }
        "DescribeSpotInstanceRequests" => {
            let page = ec2.describe_spot_requests(now, &given.query("SpotInstanceRequestId")?)?;
            Xml::response(action, |xml| {
                xml.items("spotInstanceRequestSet", &page.items, |xml, it| {
                    xml.spot_request(now, it);
                });
                xml.next_token(page.next_token.as_ref());
            })
        }
        "DescribeImages" => {
            let images = ec2.describe_images(now, &given.query("ImageId")?)?;
            Xml::response(action, |xml| xml.items("imagesSet", &images, Xml::image))
        }
        "TerminateInstances" => changed(action, &ec2.terminate_instances(now, &ids)?),
        "StopInstances" => changed(action, &ec2.stop_instances(now, &ids)?),
        "StartInstances" => changed(action, &ec2.start_instances(now, &ids)?),
        "CancelSpotInstanceRequests" => {
            let ids = given.texts("SpotInstanceRequestId");
            let cancelled = ec2.cancel_spot_requests(now, &ids)?;
            Xml::response(action, |xml| {
                xml.items("spotInstanceRequestSet", &cancelled, |xml, (id, state)| {
                    xml.leaf("spotInstanceRequestId", id);
                    xml.leaf("state", state);
                });
            })
        }
        "CreateTags" => {
            let tags = given.tags().into_iter();
            let tags: Vec<_> = tags.map(|(key, value)| (key, value.unwrap_or_default())).collect();
            ec2.create_tags(now, &given.texts("ResourceId"), &tags)?;
            Xml::done(action)
        }
        "DeleteTags" => {
            ec2.delete_tags(now, &given.texts("ResourceId"), &given.tags())?;
            Xml::done(action)
        }
        "ModifyInstanceAttribute" => {
            let id = given.text("InstanceId").ok_or_else(|| missing("InstanceId"))?;
            ec2.modify_instance(now, id, attribute(given)?)?;
            Xml::done(action)
        }
        _ => return Err(Fault::new("InvalidAction", format!("The action {action} is not valid"))),
    })
}

fn changed(action: &str, changes: &[Change]) -> Answer {
    Xml::response(action, |xml| xml.changes(changes))
}

fn attribute(given: &Parameters<'_>) -> Result<InstanceAttribute, Fault> {
    let value = |name: &str| given.below(name).text("Value");
    if let Some(data) = value("UserData") {
        let data = STANDARD.decode(data).map_err(|_| {
            Fault::new("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
        })?;
        return Ok(InstanceAttribute::UserData(data));
    }
    if let Some(behaviour) = value("InstanceInitiatedShutdownBehavior") {
        return Ok(InstanceAttribute::TerminatesOnPowerOff(behaviour == "terminate"));
    }
    match value("DisableApiTermination") {
        Some(text) => Ok(InstanceAttribute::Protected(text == "true")),
        None => Err(unsupported(
            "UserData, InstanceInitiatedShutdownBehavior and DisableApiTermination only",
        )),
    }
}

fn apply(ec2: &mut Ec2, now: Timestamp, fault: Ec2Fault) -> bool {
    let market = |name: Option<MarketName>| {
        name.map(|it| match it {
            MarketName::OnDemand => Market::OnDemand,
            MarketName::Spot => Market::Spot,
        })
    };
    match fault {
        Ec2Fault::Refuse { code, message, market: bought, instance_type, zone, subnet, times } => {
            let message = message.unwrap_or_else(|| format!("{code}, as the world was told"));
            ec2.add_rule(LaunchRule {
                pools: PoolMatch { instance_type, zone, market: market(bought) },
                subnet,
                fault: Fault::new(code, message),
                times,
            });
        }
        Ec2Fault::Capacity { instances, market: bought, instance_type, zone } => {
            let pools = PoolMatch { instance_type, zone, market: market(bought) };
            ec2.limit_capacity(pools, instances);
        }
        Ec2Fault::Quota { on_demand, spot } => {
            ec2.options().on_demand_vcpus = on_demand;
            ec2.options().spot_vcpus = spot;
        }
        Ec2Fault::Launches { fate, times, seconds } => {
            let fate = match fate {
                Fate::Dead => LaunchFault::Dead,
                Fate::Slow => LaunchFault::Slow(Duration::from_secs(seconds.unwrap_or(600))),
                Fate::Stuck => LaunchFault::StuckPending,
                Fate::Dies => LaunchFault::Dies,
            };
            ec2.plan_launches(std::iter::repeat_n(fate, times.unwrap_or(1).min(MOST_PLANNED)));
        }
        Ec2Fault::Interrupt { instance } => return ec2.interrupt(now, &instance),
        Ec2Fault::Clear => {
            ec2.clear_rules();
            ec2.restore_capacity();
            ec2.clear_plans();
            ec2.options().on_demand_vcpus = None;
            ec2.options().spot_vcpus = None;
        }
    }
    true
}

fn dry_run(given: &Parameters<'_>) -> Result<(), Fault> {
    if given.flag("DryRun") {
        let text = "Request would have succeeded, but DryRun flag is set.";
        return Err(Fault::new("DryRunOperation", text));
    }
    Ok(())
}

fn missing(name: &str) -> Fault {
    Fault::new("MissingParameter", format!("The request must contain the parameter {name}"))
}

/// What the local world does not play, said as such.
fn unsupported(what: &str) -> Fault {
    Fault::new("UnsupportedOperation", format!("The local world's EC2 has {what}"))
}
