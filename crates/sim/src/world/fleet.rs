//! The `Fleet` port over the EC2 model, and the region that the stack lives in.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_core::cost::Bought;
use ostler_core::error::{Error, Result};
use ostler_core::instances::{Found, Launched};
use ostler_core::ports::{
    Fleet, Instance, InstanceState, Launch, LaunchOrder, Shortage, ec2_architecture,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{State, World};
use crate::ec2::{
    self, Allocation, DescribeQuery, Ec2, Fault, Filter, FleetRequest, Image, Market, Override,
    Profile, Tags, Template,
};
use crate::github::Status;

/// The image of x64 tiers.
pub const IMAGE: &str = "ami-0123456789abcdef0";

/// The image of arm64 tiers.
pub const IMAGE_ARM64: &str = "ami-0123456789abcdef1";

/// The install's name in the tag `ostler:owner`.
pub const OWNER: &str = "ostler-test";

/// What the stack knows of EC2.
#[derive(Clone, Debug)]
pub struct FleetSetup {
    /// Its subnets.
    pub subnets: Vec<String>,
    /// The launch template for on-demand machines.
    pub on_demand: Arc<Template>,
    /// The launch template for spot machines.
    pub spot: Arc<Template>,
    /// Images by the name of the SSM parameter that holds them.
    pub images: BTreeMap<String, String>,
}

/// A region with two zones and an image for each architecture.
pub(super) fn region(options: ec2::Options, seed: u64) -> (Ec2, FleetSetup) {
    let mut ec2 = Ec2::new(options, StdRng::seed_from_u64(seed));
    let subnets = [("subnet-a", "us-east-1a"), ("subnet-b", "us-east-1b")];
    for (subnet, zone) in subnets {
        ec2.add_subnet(subnet, zone);
    }
    for (id, architecture) in [(IMAGE, "x86_64"), (IMAGE_ARM64, "arm64")] {
        ec2.add_image(Image {
            id: id.into(),
            name: "ubuntu".into(),
            architecture: architecture.into(),
            root_device: "/dev/sda1".into(),
            root_gib: 8,
            state: "available".into(),
            owner: "123456789012".into(),
        });
    }
    let template = |spot: bool| {
        let tags = Tags::from([("ostler:owner".into(), OWNER.into())]);
        Arc::new(Template {
            id: if spot { "lt-spot" } else { "lt-on-demand" }.into(),
            version: "1".into(),
            user_data: Arc::from(&b"#!/bin/bash\n"[..]),
            spot_request_tags: if spot { tags } else { Tags::new() },
            terminates_on_power_off: true,
            profile: Some(Profile { role_id: "AROATEST".into(), ..Profile::default() }),
            ..Template::default()
        })
    };
    let setup = FleetSetup {
        subnets: subnets.iter().map(|(subnet, _)| (*subnet).into()).collect(),
        on_demand: template(false),
        spot: template(true),
        images: BTreeMap::new(),
    };
    (ec2, setup)
}

/// What an error of EC2 says about a launch.
fn shortage(code: &str) -> Shortage {
    match code {
        "InsufficientInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientFreeAddressesInSubnet"
        | "UnfulfillableCapacity"
        | "SpotMaxPriceTooLow"
        | "Unsupported" => Shortage::Capacity,
        "VcpuLimitExceeded"
        | "InstanceLimitExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "VolumeLimitExceeded" => Shortage::Quota,
        "RequestLimitExceeded" | "Throttling" | "ThrottlingException" => Shortage::Throttled,
        "UnauthorizedOperation" | "AuthFailure" | "InvalidParameterValue" => {
            Shortage::Configuration
        }
        code if code.starts_with("Invalid") || code.starts_with("Missing") => {
            Shortage::Configuration
        }
        _ => Shortage::Unknown,
    }
}

pub(super) fn trouble(fault: &Fault) -> Error {
    match shortage(&fault.code) {
        Shortage::Configuration => Error::Permanent(fault.to_string()),
        _ => Error::Transient(fault.to_string()),
    }
}

fn shown(instance: &ec2::Instance, now: ostler_core::time::Timestamp) -> Instance {
    Instance {
        id: instance.id.clone(),
        state: state_of(instance, now),
        reason: instance.step(now).reason.as_ref().map(|reason| reason.message.to_string()),
    }
}

pub(super) fn state_of(
    instance: &ec2::Instance,
    now: ostler_core::time::Timestamp,
) -> InstanceState {
    match instance.state(now) {
        ec2::State::Pending => InstanceState::Pending,
        ec2::State::Running => InstanceState::Running,
        ec2::State::Stopping | ec2::State::Stopped => InstanceState::Stopped,
        ec2::State::ShuttingDown | ec2::State::Terminated => InstanceState::Ended,
    }
}

impl State {
    fn order(&self, order: &LaunchOrder<'_>) -> std::result::Result<FleetRequest, Launch> {
        let tier = order.tier;
        let mut overrides = Vec::new();
        for image in &tier.images {
            let image = match image.starts_with('/') {
                true => self.fleet.images.get(image).ok_or_else(|| Launch::Refused {
                    shortage: Shortage::Configuration,
                    text: format!("the parameter {image} does not exist"),
                })?,
                false => image,
            };
            for instance_type in &tier.instance_types {
                overrides.extend(self.fleet.subnets.iter().map(|subnet| Override {
                    instance_type: Some(instance_type.clone()),
                    subnet: Some(subnet.clone()),
                    image: Some(image.clone()),
                    ..Override::default()
                }));
            }
        }
        debug_assert!(!ec2_architecture(tier.architecture).is_empty());
        let seconds = |time: std::time::Duration| time.as_secs().to_string();
        let tags = [
            ("ostler:owner", OWNER.into()),
            ("ostler:runner", order.runner.to_owned()),
            ("ostler:tier", tier.name.clone()),
            ("ostler:repo", order.repository.clone()),
            ("ostler:state", "used".into()),
            ("ostler:until", order.until.to_string()),
            ("ostler:boot-timeout", seconds(tier.boot_timeout)),
            ("ostler:max-lifetime", seconds(tier.max_lifetime)),
            ("Name", order.runner.to_owned()),
        ];
        let template = if order.spot { &self.fleet.spot } else { &self.fleet.on_demand };
        Ok(FleetRequest {
            client_token: Some(order.token.clone()),
            template: Arc::clone(template),
            overrides,
            market: if order.spot { Market::Spot } else { Market::OnDemand },
            capacity: 1,
            allocation: Allocation::Capacity,
            tags: tags.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        })
    }

    /// All instances with these filters, over all pages.
    fn all(&mut self, filters: &[Filter]) -> Result<Vec<Instance>> {
        let now = self.now;
        let mut query = DescribeQuery {
            filters: filters.to_vec(),
            most: Some(100),
            ..DescribeQuery::default()
        };
        let mut found = Vec::new();
        loop {
            let page = self.ec2.describe_instances(now, &query).map_err(|fault| trouble(&fault))?;
            found.extend(page.items.iter().map(|instance| shown(instance, now)));
            query.next_token = page.next_token;
            if query.next_token.is_none() {
                return Ok(found);
            }
        }
    }

    /// Notes it if a machine is ended in the middle of a job, before its time.
    pub(super) fn note_harm(&mut self, id: &str) {
        let Some(instance) = self.ec2.instance(id) else { return };
        let now = self.now;
        let lifetime = instance.tags.get("ostler:max-lifetime").and_then(|text| text.parse().ok());
        let lifetime = std::time::Duration::from_secs(lifetime.unwrap_or_default());
        let Some(runner) = instance.tags.get("ostler:runner") else { return };
        // One that was stopped runs nothing any more, whatever GitHub still shows.
        let powered = matches!(instance.state(now), ec2::State::Pending | ec2::State::Running);
        if !powered || now.since(instance.launched) >= lifetime {
            return;
        }
        let on_it = |job: &&crate::github::Job| {
            job.status == Status::InProgress
                && job.runner.as_ref().is_some_and(|found| found.name == *runner)
        };
        if let Some(job) = self.github.all_jobs().find(on_it) {
            self.harm
                .push(format!("{now}: {id} of {runner} was ended while it ran job {}", job.id));
        }
    }
}

impl Fleet for World {
    async fn launch(&self, order: &LaunchOrder<'_>) -> Result<Launch> {
        self.ask("Fleet.launch", |state| {
            let request = match state.order(order) {
                Ok(request) => request,
                Err(refused) => return Ok(refused),
            };
            let answer = match state.ec2.create_fleet(state.now, &request) {
                Ok(answer) => answer,
                Err(fault) if fault.code == "IdempotentParameterMismatch" => {
                    return Ok(Launch::TokenUsed);
                }
                Err(fault) => match shortage(&fault.code) {
                    shortage @ (Shortage::Configuration | Shortage::Quota | Shortage::Capacity) => {
                        return Ok(Launch::Refused { shortage, text: fault.to_string() });
                    }
                    Shortage::Throttled => return Ok(Launch::Busy { text: fault.to_string() }),
                    Shortage::Unknown => return Err(Error::Transient(fault.to_string())),
                },
            };
            let mut ids = answer.instances.into_iter().flat_map(|bought| bought.ids);
            if let Some(instance) = ids.next() {
                return Ok(Launch::Started { instance, surplus: ids.collect() });
            }
            let gravest = answer.errors.iter().max_by_key(|error| shortage(&error.fault.code));
            Ok(match gravest {
                Some(error) => Launch::Refused {
                    shortage: shortage(&error.fault.code),
                    text: error.fault.to_string(),
                },
                None => Launch::Refused {
                    shortage: Shortage::Unknown,
                    text: "neither instances nor errors".into(),
                },
            })
        })
        .await
    }

    async fn of_runner(&self, name: &str) -> Result<Vec<Instance>> {
        self.ask("Fleet.of_runner", |state| {
            state.all(&[
                Filter::new("tag:ostler:runner", &[name]),
                Filter::new("tag:ostler:owner", &[OWNER]),
            ])
        })
        .await
    }

    async fn instance(&self, id: &str) -> Result<Option<Instance>> {
        self.ask("Fleet.instance", |state| {
            let now = state.now;
            let query = DescribeQuery { ids: vec![id.into()], ..DescribeQuery::default() };
            match state.ec2.describe_instances(now, &query) {
                Ok(page) => Ok(page.items.first().map(|instance| shown(instance, now))),
                Err(fault) if fault.code == "InvalidInstanceID.NotFound" => Ok(None),
                Err(fault) => Err(trouble(&fault)),
            }
        })
        .await
    }

    async fn in_tier(&self, tier: &str) -> Result<Vec<(String, InstanceState)>> {
        self.ask("Fleet.in_tier", |state| {
            let found = state.all(&[
                Filter::new("tag:ostler:tier", &[tier]),
                Filter::new("tag:ostler:owner", &[OWNER]),
            ])?;
            let runner = |id: &str| {
                let instance = state.ec2.instance(id)?;
                instance.tags.get("ostler:runner").cloned()
            };
            Ok(found.into_iter().filter_map(|it| Some((runner(&it.id)?, it.state))).collect())
        })
        .await
    }

    async fn terminate(&self, id: &str) -> Result<()> {
        self.ask("Fleet.terminate", |state| {
            state.note_harm(id);
            match state.ec2.terminate_instances(state.now, &[id.to_owned()]) {
                Ok(_) => Ok(()),
                Err(fault) if fault.code == "InvalidInstanceID.NotFound" => Ok(()),
                Err(fault) => Err(trouble(&fault)),
            }
        })
        .await
    }
}

impl Launched for World {
    async fn launched_for(&self, id: &str) -> Result<Option<Found>> {
        self.ask("Launched.launched_for", |state| {
            let now = state.now;
            let query = DescribeQuery { ids: vec![id.into()], ..DescribeQuery::default() };
            let page = match state.ec2.describe_instances(now, &query) {
                Ok(page) => page,
                Err(fault) if fault.code == "InvalidInstanceID.NotFound" => return Ok(None),
                Err(fault) => return Err(trouble(&fault)),
            };
            let ours = |tags: &ec2::Tags| tags.get("ostler:owner").is_some_and(|it| it == OWNER);
            let found = page.items.first().filter(|instance| ours(&instance.tags));
            Ok(found.and_then(|instance| {
                let runner = instance.tags.get("ostler:runner")?.clone();
                let bought = Bought {
                    instance_type: instance.pool.instance_type.clone(),
                    spot: instance.spot.is_some(),
                    since: instance.launched,
                };
                Some(Found { runner, instance: shown(instance, now), bought: Some(bought) })
            }))
        })
        .await
    }
}
