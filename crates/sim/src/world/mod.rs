//! The world that the use cases meet: their ports in memory, over the models of this crate, under virtual
//! time.
//!
//! One [`World`] is all ports at once, and cheap to clone. A port call may take virtual time, and is the
//! one place where a fault strikes ([`Plan`]): it fails before it took effect, or after, or the function
//! that makes it is cut off there, as a Lambda that is killed. So "every call, failed in every way" is a
//! loop over call numbers. Calls are written down with who made them, so that budgets can be asserted.

mod agenda;
mod executions;
mod fleet;
mod forge;
mod ledger;
mod machines;
mod plan;
mod small;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use ostler_core::config::Settings;
use ostler_core::error::{Error, Result};
use ostler_core::names::NameKey;
use ostler_core::ports::{self, Clock};
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

pub use agenda::DeliveryLog;
pub use executions::{Execution, RepeatedName, Status};
pub use fleet::{FleetSetup, IMAGE, OWNER};
pub use ledger::{LedgerTable, RepositoryItem};
pub use plan::{Call, Plan, Strike};
pub use small::HandoffItem;

use crate::ec2::{self, Ec2, Span};
use crate::github::{self, GitHub, OwnerKind};
use crate::queue::{Attributes, Queue, Redrive};

/// When a world begins, unless a test says otherwise: 2026-11-30T12:00:00Z.
pub const BEGINNING: Timestamp = Timestamp::from_seconds(1_796_040_000);

/// The organisation that has everything installed.
pub const ORGANIZATION: &str = "acme";

/// Its private repository, for which most jobs are.
pub const REPOSITORY: &str = "acme/widgets";

/// The webhook's secret at the beginning.
pub const WEBHOOK_SECRET: &str = "a webhook secret of a test";

/// The key of runner names.
pub const NAME_KEY: &str = "a name key of a test";

/// GitHub shows a runner as offline when it has not been heard of for about this long. The length is ours.
const OFFLINE_AFTER: Duration = Duration::from_secs(90);

/// A call that a fault makes slow: about as long as the adapters' clients wait for an answer.
const SLOW_CALL: Duration = Duration::from_secs(9);

/// The operator's selector: request to answer.
type SelectorFunction = Box<dyn FnMut(&Value) -> Result<Value>>;

/// All there is. Everything is open to tests: they make weather here.
pub struct State {
    /// The time.
    pub now: Timestamp,
    /// All chance of the ports (the models have their own).
    pub rng: StdRng,
    /// How long a port call takes; zero by default, and then a use case is one moment.
    pub latency: Span,
    /// GitHub.
    pub github: GitHub,
    /// EC2.
    pub ec2: Ec2,
    /// What the stack knows of EC2.
    pub fleet: FleetSetup,
    /// The report queue.
    pub reports: Queue,
    /// Of which runners the queue does not take the next reports sent in a batch, and how many.
    pub refused_reports: BTreeMap<String, u32>,
    /// The App's log of deliveries.
    pub deliveries: DeliveryLog,
    /// What owners are, as GitHub was asked: that is remembered.
    pub(crate) owner_kinds: BTreeMap<String, OwnerKind>,
    /// Executions by name.
    pub executions: BTreeMap<String, Execution>,
    /// Executions that were started and have not begun.
    pub(crate) begun: VecDeque<String>,
    /// What a start under a used name answers.
    pub repeated_name: RepeatedName,
    /// For how long a look-up of an execution may not know its latest change.
    pub describe_lag: Span,
    /// The ledger.
    pub ledger: LedgerTable,
    /// Handoff items by instance.
    pub handoff: BTreeMap<String, HandoffItem>,
    /// Parameters by their name after the prefix.
    pub parameters: BTreeMap<String, Secret>,
    /// Settings as they were read last, and when.
    pub settings: Option<(Timestamp, Arc<Settings>)>,
    /// Of how many looks at the settings one is by a function's new instance, which knows nothing; 0: none.
    pub cold_in: u32,
    /// How many were.
    pub cold: u64,
    /// The operator's selector.
    pub selector: Option<SelectorFunction>,
    /// What telemetry counted, by metric and value of its dimension.
    pub metrics: BTreeMap<(&'static str, String), f64>,
    /// The faults to come.
    pub plan: Plan,
    /// Every port call so far.
    pub calls: Vec<Call>,
    /// Who calls, for the record.
    pub caller: &'static str,
    /// Every JIT configuration that was handed out, to be looked for where it must not be.
    pub secrets: Vec<String>,
    /// What was done to jobs that ran.
    pub harm: Vec<String>,
}

/// See the module. Clones are the same world.
#[derive(Clone)]
pub struct World(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    /// Until when the future being polled sleeps: the first of the calls that it makes side by side.
    wake: Cell<Option<Timestamp>>,
    /// Whether a call of it was cut off, and all of it with that.
    cut: Cell<bool>,
}

/// Whether a future asked to be polled again: one part of it waits for another.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How far a future came.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// It ended.
    Done(T),
    /// It goes on then.
    Sleeps(Timestamp),
    /// It was cut off, and never goes on.
    Killed,
}

impl World {
    /// A calm world: one organisation with a private repository, one tier `small`
    /// (`self-hosted,linux,x64,small`), endless capacity, no latency, no faults.
    pub fn new(seed: u64) -> Self {
        let mut github = GitHub::new(
            github::Options { offline_after: Some(OFFLINE_AFTER), ..github::Options::default() },
            seed,
        );
        github.add_repository(REPOSITORY, true);
        let (ec2, fleet) = fleet::region(ec2::Options::calm(), seed);
        let reports = Attributes {
            fifo: true,
            delay: Duration::from_secs(60),
            visibility: Duration::from_secs(180),
            retention: Duration::from_secs(3600),
            redrive: Some(Redrive { target_arn: "arn:dead".into(), max_receive_count: 5 }),
            ..Attributes::default()
        };
        let world = Self(Rc::new(Inner {
            wake: Cell::new(None),
            cut: Cell::new(false),
            state: RefCell::new(State {
                now: BEGINNING,
                rng: StdRng::seed_from_u64(seed),
                latency: Span::ZERO,
                github,
                ec2,
                fleet,
                reports: Queue::new(reports),
                refused_reports: BTreeMap::new(),
                deliveries: DeliveryLog::default(),
                owner_kinds: BTreeMap::new(),
                executions: BTreeMap::new(),
                begun: VecDeque::new(),
                repeated_name: RepeatedName::Real,
                describe_lag: Span::ZERO,
                ledger: LedgerTable::default(),
                handoff: BTreeMap::new(),
                parameters: BTreeMap::new(),
                settings: None,
                cold_in: 0,
                cold: 0,
                selector: None,
                metrics: BTreeMap::new(),
                plan: Plan::default(),
                calls: Vec::new(),
                caller: "",
                secrets: Vec::new(),
                harm: Vec::new(),
            }),
        }));
        world.configure("control/app", json!({"app_id": 4242}).to_string());
        world.configure("control/app-private-key", "a private key of a test");
        world.configure("control/webhook-secret", WEBHOOK_SECRET);
        world.configure("control/name-key", NAME_KEY);
        world.tiers(&[tier("small", &["small"])]);
        world
    }

    /// Sets a parameter. What was read before is forgotten.
    pub fn configure(&self, name: &str, text: impl Into<String>) {
        let mut state = self.state();
        state.parameters.insert(name.into(), Secret::new(text));
        state.settings = None;
    }

    /// Sets the tiers.
    pub fn tiers(&self, tiers: &[Value]) {
        self.configure("control/tiers", json!({ "tiers": tiers }).to_string());
    }

    /// Everything, to be looked at and changed. Not across a port call.
    pub fn state(&self) -> RefMut<'_, State> {
        self.0.state.borrow_mut()
    }

    /// The settings as the parameters are now.
    pub fn current_settings(&self) -> Settings {
        Settings::from_parameters(&self.state().parameters)
    }

    /// The base name of a job's runners.
    pub fn base_name(&self, repository: &str, job: u64) -> String {
        let repo = repository.split_once('/').map_or(repository, |(_, name)| name);
        let id = i64::try_from(job).unwrap_or(i64::MAX);
        NameKey::new(NAME_KEY)
            .map(|key| key.base_name(repo, ostler_core::job::JobId(id)))
            .unwrap_or_default()
    }

    /// Sum of a metric over all values of its dimension.
    pub fn metric(&self, metric: &str) -> f64 {
        let state = self.state();
        state.metrics.iter().filter(|((name, _), _)| *name == metric).map(|(_, n)| n).sum()
    }

    /// A metric by its dimension.
    pub fn metric_by(&self, metric: &'static str, value: &str) -> f64 {
        self.state().metrics.get(&(metric, value.to_owned())).copied().unwrap_or_default()
    }

    /// How often a caller (`""`: anyone) called ports whose names begin so.
    pub fn count(&self, caller: &str, name: &str) -> usize {
        let state = self.state();
        let by = |call: &&Call| caller.is_empty() || call.caller == caller;
        state.calls.iter().filter(by).filter(|call| call.name.starts_with(name)).count()
    }

    /// Runs a use case to its end, letting virtual time pass. `None`: it was cut off.
    pub fn run<T>(&self, caller: &'static str, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        loop {
            self.state().caller = caller;
            match self.poll(future.as_mut()) {
                Progress::Done(done) => return Some(done),
                Progress::Sleeps(until) => self.pass_until(until),
                Progress::Killed => return None,
            }
        }
    }

    /// Takes a future as far as it goes at this time.
    pub fn poll<F: Future + ?Sized>(&self, mut future: Pin<&mut F>) -> Progress<F::Output> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            self.0.wake.set(None);
            self.0.cut.set(false);
            let polled = future.as_mut().poll(&mut TaskContext::from_waker(&waker));
            if self.0.cut.get() {
                return Progress::Killed;
            }
            match (polled, self.0.wake.take()) {
                (Poll::Ready(done), _) => return Progress::Done(done),
                _ if woken.0.swap(false, Ordering::Relaxed) => {}
                (Poll::Pending, Some(until)) => return Progress::Sleeps(until),
                (Poll::Pending, None) => return Progress::Killed,
            }
        }
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let until = self.state().now + time;
        self.pass_until(until);
    }

    /// Lets time pass until then.
    pub fn pass_until(&self, until: Timestamp) {
        let mut state = self.state();
        state.now = state.now.max(until);
    }

    /// A port call that answers with the domain's errors.
    async fn ask<T>(
        &self,
        name: &'static str,
        act: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        self.call(name, act, |what| Err(Error::Transient(what))).await
    }

    /// A port call. `failed` makes the answer of one that a fault strikes.
    async fn call<T>(
        &self,
        name: &'static str,
        mut act: impl FnMut(&mut State) -> T,
        failed: impl FnOnce(String) -> T,
    ) -> T {
        let latency = self.latency();
        self.sleep(latency).await;
        if self.0.cut.get() {
            // Another call of the same function was cut off a moment ago.
            return pending().await;
        }
        let strike = self.state().enter(name);
        match strike {
            Some(Strike::Slow) => {
                self.sleep(SLOW_CALL).await;
                act(&mut self.state())
            }
            Some(Strike::CutBefore) => self.cut().await,
            Some(Strike::Before) => failed(format!("{name} failed before it took effect")),
            None => act(&mut self.state()),
            Some(Strike::Twice) if name != "Forge.register" => {
                act(&mut self.state());
                let latency = self.latency();
                self.sleep(latency).await;
                act(&mut self.state())
            }
            Some(Strike::After | Strike::Twice) => {
                act(&mut self.state());
                failed(format!("{name}: its answer was lost"))
            }
            Some(Strike::CutAfter) => {
                act(&mut self.state());
                self.cut().await
            }
        }
    }

    async fn cut<T>(&self) -> T {
        self.0.cut.set(true);
        pending().await
    }

    /// How long the next port call takes.
    fn latency(&self) -> Duration {
        let mut state = self.state();
        let (least, most) = (state.latency.least, state.latency.most);
        if most.is_zero() { most } else { state.rng.random_range(least..=most) }
    }

    async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        poll_fn(|_| {
            if self.now() >= until {
                return Poll::Ready(());
            }
            let sooner = self.0.wake.take().map_or(until, |other| other.min(until));
            self.0.wake.set(Some(sooner));
            Poll::Pending
        })
        .await;
    }
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.state().now
    }
}

impl ports::Context for World {
    type Ledger = Self;
    type Executions = Self;
    type Forge = Self;
    fn ledger(&self) -> &Self {
        self
    }
    fn executions(&self) -> &Self {
        self
    }
    fn forge(&self) -> &Self {
        self
    }
    fn clock(&self) -> &impl Clock {
        self
    }
    fn telemetry(&self) -> &impl ports::Telemetry {
        self
    }
}

impl ports::ReportContext for World {
    type Configuration = Self;
    type Reports = Self;
    fn configuration(&self) -> &Self {
        self
    }
    fn reports(&self) -> &Self {
        self
    }
}

impl ports::AcceptContext for World {
    type Selector = Self;
    fn selector(&self) -> &Self {
        self
    }
}

impl ports::RunnerContext for World {
    type Fleet = Self;
    type Handoff = Self;
    type Gate = Self;
    fn fleet(&self) -> &Self {
        self
    }
    fn handoff(&self) -> &Self {
        self
    }
    fn gate(&self) -> &Self {
        self
    }
}

impl ostler_core::instances::InstanceContext for World {
    type Launched = Self;
    type Gate = Self;
    type Interrupted = Self;
    fn interrupted(&self) -> &Self {
        self
    }
    fn launched(&self) -> &Self {
        self
    }
    fn gate(&self) -> &Self {
        self
    }
}

/// A tier of small x64 machines in the configuration's JSON, to be changed further.
pub fn tier(name: &str, labels: &[&str]) -> Value {
    json!({"name": name, "labels": labels, "architecture": "x64", "images": [fleet::IMAGE],
        "instance_types": ["m7i.large", "m6i.large"]})
}
