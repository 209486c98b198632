//! The fleet port, the janitor's inventory and the reaper's machines, over EC2. Alone in their crate, because EC2's SDK takes minutes
//! to compile; what a function does not use, the linker leaves out.
//!
//! A launch is one CreateFleet of type `instant`: every image, type and subnet of the tier is an override,
//! EC2 takes the one that it can deliver, and the client token makes repetitions one purchase. All that
//! decides whether a machine is ours are tags given in that call: there is no second step that could be
//! missed.

mod errors;
mod images;
mod inventory;
mod launched;
mod machines;
#[cfg(test)]
mod tests;

use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::types::{
    DefaultTargetCapacityType, Filter, FleetBlockDeviceMappingRequest, FleetEbsBlockDeviceRequest,
    FleetLaunchTemplateConfigRequest, FleetLaunchTemplateOverridesRequest,
    FleetLaunchTemplateSpecificationRequest, FleetOnDemandAllocationStrategy, FleetType,
    Instance as Ec2Instance, InstanceStateName, OnDemandOptionsRequest, ResourceType,
    SpotAllocationStrategy, SpotOptionsRequest, Tag, TagSpecification,
    TargetCapacitySpecificationRequest,
};
use ostler_core::ports::{Clock, Fleet, Instance, InstanceState, Launch, LaunchOrder, Shortage};
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};

pub use inventory::Ec2Inventory;
pub use launched::Ec2Launched;
pub use machines::Ec2Machines;

use errors::{Meaning, answered, failed, gravity, lacks_type, meaning, told};
use images::{Image, Images};

/// CreateFleet tries one pool after the other before it answers: longer than other calls may take.
const CREATE_ATTEMPT: Duration = Duration::from_secs(12);

/// CreateFleet with its repetitions. Two of these (spot, then on-demand) fit into the function's minute.
const CREATE_OPERATION: Duration = Duration::from_secs(20);

/// Most overrides of a fleet (EC2 User Guide, "EC2 Fleet quotas").
const MOST_OVERRIDES: usize = 300;

/// The time limit in an instance's tag is rounded down to this, because it is part of what the client
/// token stands for: repeated some seconds later, the call must be the same. Less than the hour that it
/// has in reserve.
const UNTIL_GRAIN_SECONDS: i64 = 900;

/// Longest value of a tag (EC2 User Guide, "Tag restrictions").
const LONGEST_TAG: usize = 256;

/// Instances of one page.
const PAGE: i32 = 500;

/// Pages of one list; twice as many instances as a region runs by default.
const MOST_PAGES: usize = 200;

/// Pauses before an instance that EC2 does not know is taken for gone: right after a launch it may only
/// not know it yet (EC2 API Reference, "Eventual consistency").
const UNKNOWN_AGAIN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3)];

/// What the stack gives.
#[derive(Clone, Debug, Default)]
pub struct FleetSettings {
    /// The install's name: value of the tag `ostler:owner`.
    pub owner: String,
    /// Subnets, of several zones if possible.
    pub subnets: Vec<String>,
    /// `<launch template id>:<version>` for on-demand.
    pub on_demand_template: String,
    /// `<launch template id>:<version>` for spot: it alone tags spot requests.
    pub spot_template: String,
}

/// Machines of EC2.
pub struct Ec2Fleet<C> {
    ec2: aws_sdk_ec2::Client,
    images: Images,
    owner: String,
    subnets: Vec<String>,
    on_demand: Template,
    spot: Template,
    clock: C,
    unknown_again: [Duration; 3],
}

struct Template {
    id: String,
    version: String,
}

impl Template {
    fn parse(variable: &str, text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((id, version)) if id.starts_with("lt-") && !version.is_empty() => {
                Ok(Self { id: id.to_owned(), version: version.to_owned() })
            }
            _ => Err(Error::Permanent(format!(
                "{variable} is '{text}', not <launch template id>:<version>; deploy the stack again"
            ))),
        }
    }
}

impl<C: Clock> Ec2Fleet<C> {
    /// Over the SDK's configuration. Makes no call; an error says which setting is wrong.
    pub fn new(config: &SdkConfig, settings: FleetSettings, clock: C) -> Result<Self> {
        if settings.subnets.is_empty() || settings.owner.is_empty() {
            return Err(Error::Permanent(
                "OSTLER_SUBNET_IDS and OSTLER_OWNER must not be empty; deploy the stack again"
                    .into(),
            ));
        }
        let ec2 = aws_sdk_ec2::Client::new(config);
        Ok(Self {
            images: Images::new(ec2.clone(), aws_sdk_ssm::Client::new(config)),
            ec2,
            owner: settings.owner,
            subnets: settings.subnets,
            on_demand: Template::parse("OSTLER_TEMPLATE_ON_DEMAND", &settings.on_demand_template)?,
            spot: Template::parse("OSTLER_TEMPLATE_SPOT", &settings.spot_template)?,
            clock,
            unknown_again: UNKNOWN_AGAIN,
        })
    }

    /// Image × type × subnet. Images come first: where there are too many, it is the last image's
    /// combinations that are left out.
    fn overrides(
        &self,
        order: &LaunchOrder<'_>,
        images: &[Image],
    ) -> Vec<FleetLaunchTemplateOverridesRequest> {
        let mut overrides = Vec::new();
        for image in images {
            let root = order.tier.root_volume_gib.map(|gib| {
                FleetBlockDeviceMappingRequest::builder()
                    .device_name(&image.root_device)
                    .ebs(
                        FleetEbsBlockDeviceRequest::builder()
                            .volume_size(i32::try_from(gib).unwrap_or(i32::MAX))
                            .delete_on_termination(true)
                            .build(),
                    )
                    .build()
            });
            for instance_type in &order.tier.instance_types {
                for subnet in &self.subnets {
                    overrides.push(
                        FleetLaunchTemplateOverridesRequest::builder()
                            .instance_type(instance_type.as_str().into())
                            .subnet_id(subnet)
                            .image_id(&image.id)
                            .set_block_device_mappings(root.clone().map(|root| vec![root]))
                            .build(),
                    );
                }
            }
        }
        if overrides.len() > MOST_OVERRIDES {
            tracing::warn!(
                tier = order.tier.name,
                left_out = overrides.len() - MOST_OVERRIDES,
                "a fleet takes 300 combinations of image, type and subnet"
            );
            overrides.truncate(MOST_OVERRIDES);
        }
        overrides
    }

    /// The tags that the whole system knows its machines by.
    fn tags(&self, order: &LaunchOrder<'_>) -> Vec<TagSpecification> {
        let until = order.until.seconds().div_euclid(UNTIL_GRAIN_SECONDS) * UNTIL_GRAIN_SECONDS;
        let tier = order.tier;
        let instance = [
            ("ostler:owner", self.owner.clone()),
            ("ostler:runner", order.runner.to_owned()),
            ("ostler:tier", tier.name.clone()),
            ("ostler:repo", order.repository.clone()),
            ("ostler:state", "used".to_owned()),
            ("ostler:until", Timestamp::from_seconds(until).to_string()),
            ("ostler:boot-timeout", tier.boot_timeout.as_secs().to_string()),
            ("ostler:max-lifetime", tier.max_lifetime.as_secs().to_string()),
            ("Name", order.runner.to_owned()),
        ];
        let tag = |(key, value): (&str, String)| {
            let value: String = value.chars().take(LONGEST_TAG).collect();
            Tag::builder().key(key).value(value).build()
        };
        let instance = instance.map(tag);
        let owner = instance[..1].to_vec();
        [(ResourceType::Instance, instance.to_vec()), (ResourceType::Fleet, owner)]
            .map(|(kind, tags)| {
                TagSpecification::builder().resource_type(kind).set_tags(Some(tags)).build()
            })
            .to_vec()
    }

    /// All instances of this owner that pass the filters. Only a missing token ends the list: pages may
    /// be short or empty before (EC2 API Reference, "Pagination").
    async fn list(&self, what: &str, filters: &[(&str, &[&str])]) -> Result<Vec<Ec2Instance>> {
        let filter = |(name, values): &(&str, &[&str])| {
            let values = values.iter().map(|value| literal(value)).collect();
            Filter::builder().name(*name).set_values(Some(values)).build()
        };
        let owner: (&str, &[&str]) = ("tag:ostler:owner", &[&self.owner]);
        let filters: Vec<_> = std::iter::once(&owner).chain(filters).map(filter).collect();
        let (mut found, mut token) = (Vec::new(), None);
        for _ in 0..MOST_PAGES {
            let page = self
                .ec2
                .describe_instances()
                .set_filters(Some(filters.clone()))
                .max_results(PAGE)
                .set_next_token(token)
                .send()
                .await
                .map_err(|error| failed(what, &error))?;
            let reservations = page.reservations.unwrap_or_default().into_iter();
            found.extend(reservations.flat_map(|it| it.instances.unwrap_or_default()));
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(found);
            }
        }
        // An incomplete list must not pass for a complete one.
        Err(Error::Transient(format!("{what}: EC2's list has more than {MOST_PAGES} pages")))
    }
}

/// The instance, whoever launched it; `None` if EC2 does not list it.
async fn described(ec2: &aws_sdk_ec2::Client, id: &str) -> Result<Option<Ec2Instance>> {
    match ec2.describe_instances().instance_ids(id).send().await {
        Ok(answer) => {
            let reservations = answer.reservations.unwrap_or_default().into_iter();
            let mut instances = reservations.flat_map(|it| it.instances.unwrap_or_default());
            Ok(instances.find(|it| it.instance_id.as_deref() == Some(id)))
        }
        Err(error) => match failed(&format!("look for instance {id}"), &error) {
            Error::NotFound(_) => Ok(None),
            error => Err(error),
        },
    }
}

impl<C: Clock> Fleet for Ec2Fleet<C> {
    async fn launch(&self, order: &LaunchOrder<'_>) -> Result<Launch> {
        let images = match self.images.of(order.tier, self.clock.now()).await? {
            Ok(images) => images,
            Err(text) => return Ok(Launch::Refused { shortage: Shortage::Configuration, text }),
        };
        let template = if order.spot { &self.spot } else { &self.on_demand };
        let config = FleetLaunchTemplateConfigRequest::builder()
            .launch_template_specification(
                FleetLaunchTemplateSpecificationRequest::builder()
                    .launch_template_id(&template.id)
                    .version(&template.version)
                    .build(),
            )
            .set_overrides(Some(self.overrides(order, &images)))
            .build();
        let capacity = TargetCapacitySpecificationRequest::builder().total_target_capacity(1);
        let call = self
            .ec2
            .create_fleet()
            .r#type(FleetType::Instant)
            .client_token(&order.token)
            .launch_template_configs(config)
            .set_tag_specifications(Some(self.tags(order)));
        let call = if order.spot {
            call.spot_options(
                SpotOptionsRequest::builder()
                    .allocation_strategy(SpotAllocationStrategy::PriceCapacityOptimized)
                    .build(),
            )
            .target_capacity_specification(
                capacity.default_target_capacity_type(DefaultTargetCapacityType::Spot).build(),
            )
        } else {
            call.on_demand_options(
                OnDemandOptionsRequest::builder()
                    .allocation_strategy(FleetOnDemandAllocationStrategy::LowestPrice)
                    .build(),
            )
            .target_capacity_specification(
                capacity.default_target_capacity_type(DefaultTargetCapacityType::OnDemand).build(),
            )
        };
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(CREATE_ATTEMPT)
            .operation_timeout(CREATE_OPERATION)
            .build();
        let slow = aws_sdk_ec2::config::Builder::new().timeout_config(timeouts);
        match call.customize().config_override(slow).send().await {
            Ok(answer) => Ok(outcome(answer)),
            Err(error) => match answered(&error).map(|(code, it)| (meaning(code, it), code, it)) {
                Some((Meaning::TokenUsed, ..)) => Ok(Launch::TokenUsed),
                // Final: had an earlier try of the same call bought something, EC2 would have answered it.
                Some((
                    Meaning::Refused(
                        shortage @ (Shortage::Capacity | Shortage::Quota | Shortage::Configuration),
                        advice,
                    ),
                    code,
                    message,
                )) => Ok(Launch::Refused { shortage, text: told(code, message, advice) }),
                // Whether an earlier try of the same call bought something is not known, so the same token again.
                Some((Meaning::Refused(Shortage::Throttled, advice), code, message)) => {
                    Ok(Launch::Busy { text: told(code, message, advice) })
                }
                // Lost: the same.
                _ => Err(failed(&format!("launch {}", order.runner), &error)),
            },
        }
    }

    async fn of_runner(&self, name: &str) -> Result<Vec<Instance>> {
        let what = format!("look for the instances of {name}");
        let found = self.list(&what, &[("tag:ostler:runner", &[name])]).await?;
        Ok(found.into_iter().filter_map(read).collect())
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>> {
        Ok(described(&self.ec2, id).await?.and_then(read))
    }

    async fn in_tier(&self, tier: &str) -> Result<Vec<(String, InstanceState)>> {
        let what = format!("list the machines of tier '{tier}'");
        let found = self.list(&what, &[("tag:ostler:tier", &[tier])]).await?;
        let named = |instance: Ec2Instance| {
            let runner = tag(&instance, "ostler:runner")?.to_owned();
            Some((runner, read(instance)?.state))
        };
        Ok(found.into_iter().filter_map(named).collect())
    }

    async fn terminate(&self, id: &str) -> Result<()> {
        let mut pauses = self.unknown_again.iter();
        loop {
            let Err(error) = self.ec2.terminate_instances().instance_ids(id).send().await else {
                return Ok(());
            };
            match (failed(&format!("terminate {id}"), &error), pauses.next()) {
                (Error::NotFound(_), Some(pause)) => tokio::time::sleep(*pause).await,
                (Error::NotFound(_), None) => return Ok(()),
                (error, _) => return Err(error),
            }
        }
    }
}

/// An instance wins over errors beside it (osbuild/osbuild-composer#4507).
fn outcome(answer: CreateFleetOutput) -> Launch {
    let bought = answer.instances.unwrap_or_default().into_iter();
    let mut ids = bought.flat_map(|it| it.instance_ids.unwrap_or_default());
    if let Some(instance) = ids.next() {
        return Launch::Started { instance, surplus: ids.collect() };
    }
    let errors = answer.errors.unwrap_or_default();
    let reason = |error: &aws_sdk_ec2::types::CreateFleetError| {
        let code = error.error_code.as_deref().unwrap_or("(no code)");
        let message = error.error_message.as_deref().unwrap_or_default();
        let (shortage, advice) = match meaning(code, message) {
            Meaning::Refused(shortage, advice) => (shortage, advice),
            Meaning::TokenUsed | Meaning::NoInstance => (Shortage::Unknown, ""),
        };
        (shortage, told(code, message, advice))
    };
    // Of equals the first: EC2 tried it first.
    let gravest = errors.iter().map(reason).rev().max_by_key(|(shortage, _)| gravity(*shortage));
    let (mut shortage, text) = gravest.unwrap_or_else(|| {
        (Shortage::Unknown, "EC2 gave neither an instance nor an error".to_owned())
    });
    let nowhere = |error: &aws_sdk_ec2::types::CreateFleetError| {
        let (code, message) = (error.error_code.as_deref(), error.error_message.as_deref());
        lacks_type(code.unwrap_or_default(), message.unwrap_or_default())
    };
    if !errors.is_empty() && errors.iter().all(nowhere) {
        shortage = Shortage::Configuration;
    }
    let others = errors.len().saturating_sub(1);
    let text = if others > 0 { format!("{text} (and {others} more errors)") } else { text };
    Launch::Refused { shortage, text }
}

/// A state that is missing or new counts as running: nothing is gone that EC2 still lists.
fn state_of(name: Option<&InstanceStateName>) -> InstanceState {
    match name {
        Some(InstanceStateName::Pending) => InstanceState::Pending,
        Some(InstanceStateName::Stopping | InstanceStateName::Stopped) => InstanceState::Stopped,
        Some(InstanceStateName::ShuttingDown | InstanceStateName::Terminated) => {
            InstanceState::Ended
        }
        _ => InstanceState::Running,
    }
}

fn tag<'a>(instance: &'a Ec2Instance, key: &str) -> Option<&'a str> {
    instance.tags().iter().find(|tag| tag.key() == Some(key))?.value()
}

fn read(instance: Ec2Instance) -> Option<Instance> {
    let state = state_of(instance.state.and_then(|state| state.name).as_ref());
    let reason = instance.state_reason.and_then(|it| it.message.or(it.code));
    Some(Instance { id: instance.instance_id?, state, reason })
}

/// A filter's value that matches itself alone: `*` and `?` are wildcards (EC2 API Reference, "Filters").
fn literal(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '*' | '?' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text
}
