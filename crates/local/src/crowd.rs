//! A crowd: an organisation with thousands of registrations in five runner groups, and the instances behind them in
//! three regions, with nothing on them. For tests and measurements of the registration janitor, where a process for
//! each machine would be too much.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ostler_core::janitor::{
    self, By, Candidate, Config, Ec2InstanceIds, Inventory, Part, ProviderConfig,
};
use ostler_sim::ec2::{self, Allocation, FleetRequest, Image, Market, Override, Tags, Template};
use ostler_sim::github::{Scope, Visibility};

use crate::ec2::Ec2Plane;
use crate::github::refused;
use crate::world::World;

/// Where the instances are: other regions than the world's own.
pub const REGIONS: [&str; 3] = ["eu-west-1", "us-west-2", "ap-southeast-2"];
/// What names of their runners begin with; the instance's id follows.
pub const PREFIX: &str = "acme-prod-";
/// The organisation.
pub const ORGANIZATION: &str = "acme";

/// The image of all instances.
const IMAGE: &str = "ami-00000000000000064";
/// Runner groups.
const GROUPS: usize = 5;
/// How long a registration may stay: what is left behind is the janitor's to remove, and not GitHub's.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A machine that has just been bought is not known to EC2 at once, and not running: what happens to it, happens
/// this much later.
const KNOWN_AFTER: Duration = Duration::from_secs(60);

/// A runner with a machine.
#[derive(Debug)]
pub struct Runner {
    /// Its registration.
    pub id: u64,
    /// Its instance.
    pub instance: String,
    region: usize,
    session: Option<String>,
}

/// See the module.
pub struct Crowd {
    planes: Vec<Arc<Ec2Plane>>,
    /// See [`KNOWN_AFTER`].
    known_after: Duration,
    groups: Vec<u64>,
    /// Registrations that were left behind.
    pub orphans: BTreeSet<u64>,
    /// Runners with their machines.
    pub living: Vec<Runner>,
}

impl Crowd {
    /// The organisation, its groups and the regions; nobody is there yet.
    pub fn new(world: &World) -> anyhow::Result<Self> {
        let options = ec2::Options { throttle: None, ..ec2::Options::default() };
        let planes = REGIONS.map(|name| world.add_region(name, options.clone())).to_vec();
        let groups = world.github.with_model(|model, _| {
            model.add_repository("acme/widgets", true);
            let mut groups = vec![1];
            for group in 1..GROUPS {
                let name = format!("group {group}");
                groups.push(model.add_group(ORGANIZATION, &name, Visibility::All, true)?);
            }
            Ok(groups)
        });
        let groups = groups.map_err(refused)?;
        let (orphans, living) = (BTreeSet::new(), Vec::new());
        Ok(Self { planes, known_after: KNOWN_AFTER, groups, orphans, living })
    }

    /// So many registrations: 15 of 100 were left behind (for two of three EC2 has forgotten the instance, of
    /// the third it says that it is terminated), 5 are offline and alive (stopped, or booting for ever), the
    /// others are online. And one of another system, offline between its jobs.
    pub fn fill(&mut self, world: &World, registrations: usize) -> anyhow::Result<()> {
        world.github.with_model(|model, _| {
            let options = model.options_mut();
            // Nobody polls here, and thousands take long to look through.
            options.offline_after = None;
            options.timer_grain = Duration::from_secs(60);
            options.offline_registration_life = FOR_EVER;
            options.jit_bytes = 0;
        });
        let mut bought = Vec::new();
        for region in 0..REGIONS.len() {
            let count =
                u32::try_from(registrations / REGIONS.len() + 1).context("a crowd too large")?;
            bought.push(self.buy(region, count)?);
        }
        for number in 0..registrations {
            let (group, region) = (number % GROUPS, number % REGIONS.len());
            let mut next = || bought[region].pop().context("one machine for each");
            match number / GROUPS % 20 {
                0 | 1 => {
                    let forgotten = format!("i-{number:017x}");
                    self.orphans.insert(self.register(world, group, &forgotten, false)?.0);
                }
                2 => {
                    let instance = next()?;
                    self.orphans.insert(self.register(world, group, &instance, false)?.0);
                    self.terminate(region, &instance)?;
                }
                share => {
                    let instance = next()?;
                    let (id, session) = self.register(world, group, &instance, share > 3)?;
                    if share == 3 && number / GROUPS % 40 == 3 {
                        let stopped = [instance.clone()];
                        self.planes[region].with(|ec2, now| {
                            ec2.stop_instances(now + self.known_after, &stopped)
                        })?;
                    }
                    self.living.push(Runner { id, instance, region, session });
                }
            }
        }
        let scope = Scope::Organization(ORGANIZATION.into());
        let labels = ["self-hosted".to_owned()];
        world
            .github
            .with_model(|model, now| model.generate_jit(now, &scope, "build-box", Some(1), &labels))
            .map(drop)
            .map_err(refused)
    }

    /// From now on all machines are known, running and gone at once.
    pub fn calm(&mut self) {
        self.behave(ec2::Options::calm());
        self.known_after = Duration::ZERO;
    }

    /// How EC2 behaves in all regions from now on.
    pub fn behave(&self, options: ec2::Options) {
        for plane in &self.planes {
            plane.with(|ec2, _| *ec2.options() = options.clone());
        }
    }

    /// Messages about so many orphans, as if they had been found half an hour ago; each is an orphan of another
    /// kind from then on, because its registration is about to go.
    pub fn messages(&mut self, world: &World, count: usize) -> anyhow::Result<Vec<String>> {
        let mut regions = REGIONS.map(str::to_owned).to_vec();
        regions.sort();
        let groups = self.groups.iter().filter_map(|id| i64::try_from(*id).ok()).collect();
        let config = Config {
            scope: janitor::Scope::Organization { name: ORGANIZATION.into(), groups },
            provider: ProviderConfig::Ec2InstanceId {
                prefix: PREFIX.into(),
                regions: regions.clone(),
            },
            github_api: format!("{}/api/v3", world.github.url()),
            dry_run: false,
            max_candidates: janitor::MAX_CANDIDATES,
        };
        let scope = config.fingerprint(&Ec2InstanceIds::new(PREFIX, &regions, Nowhere));
        let observed_at = world.clock.now() - 2 * janitor::OBSERVATION;
        let mut messages = Vec::new();
        while messages.len() < count {
            let id = self.orphans.pop_first().context("no orphan is left")?;
            let view = world.github.with_model(|model, _| model.registration(id));
            let Some(view) = view else { continue };
            let candidate = Candidate {
                runner_id: i64::try_from(id)?,
                resource: view.name.strip_prefix(PREFIX).unwrap_or_default().to_owned(),
                runner_name: view.name,
                part: Part::Group {
                    organization: ORGANIZATION.into(),
                    id: i64::try_from(view.group_id)?,
                },
                observed_at,
                scope: scope.clone(),
            };
            messages.push(candidate.message());
        }
        Ok(messages)
    }

    /// Removes orphans until so many are left; answers how many those were.
    pub fn clear(&mut self, world: &World, left: usize) -> anyhow::Result<usize> {
        let scope = Scope::Organization(ORGANIZATION.into());
        let mut removed = 0;
        while self.orphans.len() > left {
            let id = self.orphans.pop_first().context("no orphan is left")?;
            let gone = world.github.with_model(|model, now| model.delete_runner(now, &scope, id));
            gone.map_err(refused)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Parameters of the janitor's stack for this crowd.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let groups: Vec<_> = self.groups.iter().map(u64::to_string).collect();
        vec![
            ("Organization", ORGANIZATION.to_owned()),
            ("RunnerGroupIds", groups.join(",")),
            ("RunnerNamePrefix", PREFIX.to_owned()),
            ("Regions", REGIONS.join(",")),
        ]
    }

    /// The runner groups.
    pub fn groups(&self) -> &[u64] {
        &self.groups
    }

    /// A machine more, with its runner; `online` if that comes up.
    pub fn come(&self, world: &World, turn: usize, online: bool) -> anyhow::Result<Runner> {
        let region = turn % REGIONS.len();
        let instance = self.buy(region, 1)?.pop().context("no machine was sold")?;
        let (id, session) = self.register(world, turn % GROUPS, &instance, online)?;
        Ok(Runner { id, instance, region, session })
    }

    /// A runner's machine ends, and its registration is left behind.
    pub fn go(&self, world: &World, runner: &Runner) -> anyhow::Result<()> {
        if let Some(session) = &runner.session {
            world.github.with_model(|model, now| model.disconnect(now, session));
        }
        self.terminate(runner.region, &runner.instance)
    }

    fn terminate(&self, region: usize, instance: &str) -> anyhow::Result<()> {
        let ended = [instance.to_owned()];
        let after = self.known_after;
        self.planes[region].with(|ec2, now| ec2.terminate_instances(now + after, &ended))?;
        Ok(())
    }

    fn buy(&self, region: usize, count: u32) -> anyhow::Result<Vec<String>> {
        let request = FleetRequest {
            client_token: None,
            template: Arc::new(Template::default()),
            overrides: vec![Override {
                instance_type: Some("m7i.large".into()),
                subnet: Some("subnet-a".into()),
                image: Some(IMAGE.into()),
                ..Override::default()
            }],
            market: Market::OnDemand,
            capacity: count,
            allocation: Allocation::Listed,
            tags: Tags::new(),
        };
        let answer = self.planes[region].with(|ec2, now| {
            if !ec2.has_subnet("subnet-a") {
                ec2.add_subnet("subnet-a", "a");
                ec2.add_image(Image {
                    id: IMAGE.into(),
                    name: "ubuntu".into(),
                    architecture: "x86_64".into(),
                    root_device: "/dev/sda1".into(),
                    root_gib: 8,
                    state: "available".into(),
                    owner: crate::aws::ACCOUNT.into(),
                });
            }
            ec2.create_fleet(now, &request)
        })?;
        Ok(answer.instances.into_iter().flat_map(|bought| bought.ids).collect())
    }

    /// Registers a runner for a machine; answers its id, and its session if it has come online.
    fn register(
        &self,
        world: &World,
        group: usize,
        instance: &str,
        online: bool,
    ) -> anyhow::Result<(u64, Option<String>)> {
        let (scope, group) = (Scope::Organization(ORGANIZATION.into()), self.groups[group]);
        let name = format!("{PREFIX}{instance}");
        let labels = ["self-hosted".to_owned()];
        world
            .github
            .with_model(|model, now| {
                let jit = model.generate_jit(now, &scope, &name, Some(group), &labels)?;
                let session = match online {
                    true => Some(model.connect(now, &jit.encoded)?.id),
                    false => None,
                };
                Ok((jit.runner.id, session))
            })
            .map_err(refused)
    }
}

/// For a fingerprint nothing is looked up.
struct Nowhere;

impl Inventory for Nowhere {
    async fn any_lives(&self, _: By, _: &[String]) -> Vec<ostler_core::Result<bool>> {
        Vec::new()
    }
}
