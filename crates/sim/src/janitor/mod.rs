//! The registration janitor's world: an organisation's runners on EC2 in several regions, each living its
//! life; the queue of candidates, the schedule, and the real use case as the function, under virtual time.
//!
//! It watches every deletion. The law: nothing goes that was, at any moment from the first observation on,
//! online, busy, renamed, moved, or on a machine that had not ended, and nothing of another system's. A
//! stopped machine may start again, a terminated one never does; a runner is online only while its machine
//! runs.

mod life;
mod play;
mod ports;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ostler_core::janitor::{Config, ProviderConfig, Scope};
use ostler_core::names::NameKey;
use ostler_core::time::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use life::{Fate, Habits, Machine};
pub use play::Play;

use crate::ec2::{self, Ec2, Image, Span, Template};
use crate::github::{self, GitHub, Visibility};
use crate::queue::{Attributes, Queue, Redrive};
use crate::world::{BEGINNING, NAME_KEY, ORGANIZATION};
use life::Event;

/// Where the machines are.
pub const REGIONS: [&str; 3] = ["eu-west-1", "us-east-1", "us-west-2"];

/// What names of the machines' runners begin with, where they are not Ostler's.
pub const PREFIX: &str = "acme-prod-";

/// The group that the janitor is not told of.
const ELSEWHERE: &str = "elsewhere";

/// The state machine of Ostler's runners.
const STATE_MACHINE: &str = "arn:aws:states:eu-west-1:123456789012:stateMachine:ostler";

/// How names are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Prefix and instance id.
    InstanceIds,
    /// Ostler's own.
    Ostler,
}

/// Shares of calls that fail, 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Pages of registrations.
    pub page: f64,
    /// Calls about one registration, and signing in.
    pub github: f64,
    /// EC2, for one region.
    pub look_up: f64,
    /// Batches that the queue refuses, and entries of batches.
    pub queue: f64,
    /// Calls whose effect is there and whose answer is not.
    pub lost: f64,
    /// Messages that are delivered twice.
    pub twice: f64,
    /// Invocations that are killed on their way.
    pub killed: f64,
}

/// A registration that the janitor removed.
#[derive(Clone, Debug)]
pub struct Deletion {
    /// Its name.
    pub name: String,
    /// When.
    pub at: Timestamp,
}

/// All there is.
pub struct State {
    /// The time.
    pub now: Timestamp,
    /// All chance but the models' own.
    pub rng: StdRng,
    /// How long a call to GitHub takes.
    pub github_latency: Span,
    /// How long any other call takes, in thousandths.
    pub aws_latency: Span,
    /// GitHub.
    pub github: GitHub,
    /// EC2 by region.
    pub regions: BTreeMap<String, Ec2>,
    /// Executions by name: whether they run.
    pub executions: BTreeMap<String, bool>,
    /// The confirmation queue.
    pub queue: Queue,
    /// Messages that were given up.
    pub dead: usize,
    /// What fails.
    pub faults: Faults,
    /// Whether GitHub's record of a runner names its group.
    pub names_groups: bool,
    /// How names are made.
    pub names: Names,
    /// Machines by the names of their runners.
    pub machines: BTreeMap<String, Machine>,
    /// What machines do.
    pub habits: Habits,
    /// Calls by name.
    pub calls: BTreeMap<&'static str, u64>,
    /// Metrics by name and the values of their dimensions.
    pub metrics: BTreeMap<String, f64>,
    /// What was removed.
    pub deletions: Vec<Deletion>,
    /// What must not happen, and did.
    pub violations: Vec<String>,
    /// When something about a runner last showed life, by its id: online, busy, moved, renamed.
    pub(crate) touched: BTreeMap<u64, Timestamp>,
    pub(crate) limited_until: Timestamp,
    /// Also those that the janitor is not told of.
    all_groups: Vec<u64>,
    agenda: BTreeMap<(Timestamp, u64), Event>,
    next_event: u64,
    next_job: i64,
    key: NameKey,
    template: Arc<Template>,
}

/// See the module. Clones are the same world.
#[derive(Clone)]
pub struct World(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    /// Until when the future being polled sleeps.
    wake: Cell<Option<Timestamp>>,
}

impl World {
    /// An organisation with so many groups (1, and from 3 on) and one more that the janitor is not told of,
    /// three regions without machines, nothing that fails, and no latency.
    pub fn new(names: Names, groups: usize, seed: u64) -> Self {
        let options = github::Options { jit_bytes: 0, ..github::Options::default() };
        let mut github = GitHub::new(options, seed);
        github.add_repository("acme/widgets", true);
        let more = (1..groups).map(|group| format!("g{group}")).chain([ELSEWHERE.to_owned()]);
        let made = more
            .filter_map(|name| github.add_group(ORGANIZATION, &name, Visibility::All, true).ok());
        let all_groups = std::iter::once(1).chain(made.collect::<Vec<_>>()).collect();
        let regions =
            REGIONS.iter().zip(1..).map(|(name, n)| ((*name).to_owned(), region(seed + n)));
        let confirmations = Attributes {
            delay: Duration::from_secs(900),
            visibility: Duration::from_secs(1800),
            retention: Duration::from_secs(86_400),
            redrive: Some(Redrive { target_arn: "arn:dead".into(), max_receive_count: 3 }),
            ..Attributes::default()
        };
        #[allow(clippy::expect_used, reason = "a constant")]
        let key = NameKey::new(NAME_KEY).expect("a key");
        let state = State {
            now: BEGINNING,
            rng: StdRng::seed_from_u64(seed),
            github_latency: Span::ZERO,
            aws_latency: Span::ZERO,
            github,
            regions: regions.collect(),
            executions: BTreeMap::new(),
            queue: Queue::new(confirmations),
            dead: 0,
            faults: Faults::default(),
            names_groups: true,
            names,
            machines: BTreeMap::new(),
            habits: Habits::default(),
            calls: BTreeMap::new(),
            metrics: BTreeMap::new(),
            deletions: Vec::new(),
            violations: Vec::new(),
            touched: BTreeMap::new(),
            limited_until: Timestamp::default(),
            all_groups,
            agenda: BTreeMap::new(),
            next_event: 0,
            next_job: 1000,
            key,
            template: Arc::new(Template { terminates_on_power_off: true, ..Template::default() }),
        };
        Self(Rc::new(Inner { state: RefCell::new(state), wake: Cell::new(None) }))
    }

    /// A configuration for this world, live, over all its groups and regions.
    pub fn config(&self) -> Config {
        let groups = self.groups();
        let regions = REGIONS.map(str::to_owned).to_vec();
        let provider = match self.state().names {
            Names::InstanceIds => ProviderConfig::Ec2InstanceId { prefix: PREFIX.into(), regions },
            Names::Ostler => ProviderConfig::Ostler {
                regions,
                state_machine_arn: STATE_MACHINE.into(),
                name_key_parameter: "/ostler/control/name-key".into(),
            },
        };
        Config {
            scope: Scope::Organization { name: ORGANIZATION.into(), groups },
            provider,
            github_api: String::new(),
            dry_run: false,
            max_candidates: 1000,
        }
    }

    /// Ids of the groups that the janitor is told of, ascending.
    pub fn groups(&self) -> Vec<i64> {
        let paging = github::Paging { page: 1, per_page: 100 };
        let listed = self.state().github.list_groups(ORGANIZATION, paging);
        let listed = listed.map(|page| page.items).unwrap_or_default();
        let own = listed.iter().filter(|it| it.name != "GitHub Actions" && it.name != ELSEWHERE);
        own.filter_map(|group| i64::try_from(group.id).ok()).collect()
    }

    /// Everything, to be looked at and changed. Not across a port call.
    pub fn state(&self) -> RefMut<'_, State> {
        self.0.state.borrow_mut()
    }

    /// Lets time pass until then, with all that happens meanwhile.
    pub fn pass_until(&self, until: Timestamp) {
        self.state().advance(until);
    }

    /// Sum of a metric over all values of its dimensions.
    pub fn metric(&self, name: &str) -> f64 {
        let of = |key: &str| key == name || key.starts_with(&format!("{name} "));
        self.state().metrics.iter().filter(|(key, _)| of(key)).map(|(_, value)| value).sum()
    }

    /// Registrations that are left behind: in a group that is looked at, named as ours are, offline, idle,
    /// and with nothing behind them.
    pub fn orphans(&self) -> Vec<String> {
        let groups = self.groups().into_iter();
        let mut state = self.state();
        let now = state.now;
        state.github.tick(now);
        let views = state.github.registrations();
        let groups = groups.map(i64::unsigned_abs);
        let scanned = |view: &github::RunnerView| groups.clone().any(|id| id == view.group_id);
        let left = views.into_iter().filter(|view| !view.online && !view.busy && scanned(view));
        left.map(|view| view.name).filter(|name| state.is_orphan(name)).collect()
    }

    /// A call takes its time.
    async fn sleep(&self, latency: impl FnOnce(&State) -> Span) {
        let until = {
            let mut state = self.state();
            let span = latency(&state);
            if span == Span::ZERO {
                return;
            }
            state.now + state.rng.random_range(span.least..=span.most)
        };
        std::future::poll_fn(|_| {
            if self.state().now >= until {
                return Poll::Ready(());
            }
            self.0.wake.set(Some(until));
            Poll::Pending
        })
        .await;
    }

    fn sleep_github(&self) -> impl Future<Output = ()> {
        self.sleep(|state| state.github_latency)
    }

    fn sleep_aws(&self) -> impl Future<Output = ()> {
        self.sleep(|state| state.aws_latency)
    }
}

impl State {
    /// Counts a call, and says whether it is one of those that fail.
    fn strikes(&mut self, call: &'static str, share: impl Fn(&Faults) -> f64) -> bool {
        *self.calls.entry(call).or_default() += 1;
        let share = share(&self.faults);
        share > 0.0 && self.rng.random_bool(share.min(1.0))
    }

    /// Lets everything happen that is due by then.
    fn advance(&mut self, until: Timestamp) {
        while let Some((at, event)) = self.due(until) {
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(until);
    }

    fn due(&mut self, until: Timestamp) -> Option<(Timestamp, Event)> {
        let (key, _) = self.agenda.first_key_value().filter(|((at, _), _)| *at <= until)?;
        let key = *key;
        self.agenda.remove(&key).map(|event| (key.0, event))
    }

    fn note(&mut self, at: Timestamp, event: Event) {
        self.next_event += 1;
        self.agenda.insert((at, self.next_event), event);
    }
}

/// A region with one subnet and one image.
fn region(seed: u64) -> Ec2 {
    let options = ec2::Options { throttle: None, ..ec2::Options::default() };
    let mut ec2 = Ec2::new(options, StdRng::seed_from_u64(seed));
    ec2.add_subnet("subnet-a", "a");
    ec2.add_image(Image {
        id: "ami-0123456789abcdef0".into(),
        name: "ubuntu".into(),
        architecture: "x86_64".into(),
        root_device: "/dev/sda1".into(),
        root_gib: 8,
        state: "available".into(),
        owner: "123456789012".into(),
    });
    ec2
}
