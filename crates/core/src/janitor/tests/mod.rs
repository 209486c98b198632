//! The janitor over a small world of its own, in which any look can be made to fail. Time stands still
//! unless a test moves it; every port answers at once.

mod config;
mod confirmation;
mod discovery;
mod provider;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::job::Repository;
use crate::ports::{Clock, Removal};
use crate::time::Timestamp;

/// When every test begins.
const NOW: Timestamp = Timestamp::from_seconds(1_796_040_000);
const PREFIX: &str = "acme-prod-";

/// Runs a future that never has to wait.
fn run<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a port of the test waited"),
    }
}

/// An instance id of seventeen digits.
fn instance(number: u64) -> String {
    format!("i-{number:017x}")
}

fn name(number: u64) -> String {
    format!("{PREFIX}{}", instance(number))
}

fn group(id: i64) -> Part {
    Part::Group { organization: "acme".into(), id }
}

fn repository(name: &str) -> Part {
    Part::Repository(Repository { owner: "acme".into(), name: name.into(), installation: None })
}

/// An orphan by all that GitHub says: offline, idle, of the prefix.
fn orphan(number: u64) -> Registration {
    let id = i64::try_from(number).unwrap();
    Registration { id, name: name(number), offline: true, busy: false, group: Some(1) }
}

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        scope: Scope::Organization { name: "acme".into(), groups: vec![1] },
        provider: ProviderConfig::Ec2InstanceId {
            prefix: PREFIX.into(),
            regions: vec!["eu-west-1".into(), "us-east-1".into()],
        },
        github_api: String::new(),
        dry_run: false,
        max_candidates: 100,
    };
    change(&mut config);
    config
}

/// A provider that is none of EC2's: a runner is behind its name, unless it is listed as gone.
struct Machines<'a>(&'a World);

impl Provider for Machines<'_> {
    fn kind(&self) -> &str {
        "test"
    }

    fn scope(&self) -> String {
        self.0.provider_scope.borrow().clone()
    }

    fn resource(&self, runner_name: &str) -> Option<String> {
        runner_name.strip_prefix(PREFIX).map(str::to_owned)
    }

    async fn exist(&self, resources: &[String]) -> Vec<Result<bool>> {
        self.0.say(format!("exist {}", resources.join(" ")));
        let answer = |resource: &String| {
            if self.0.unknown.borrow().contains(resource) {
                return Err(Error::Transient("EC2 does not answer".into()));
            }
            Ok(self.0.living.borrow().contains(resource))
        };
        resources.iter().map(answer).collect()
    }
}

/// All there is.
struct World {
    now: Cell<Timestamp>,
    lists: RefCell<BTreeMap<String, Vec<Registration>>>,
    /// What a look-up by id says of the group: not every server does.
    names_groups: Cell<bool>,
    living: RefCell<BTreeSet<String>>,
    unknown: RefCell<BTreeSet<String>>,
    provider_scope: RefCell<String>,
    queue: RefCell<Vec<Candidate>>,
    /// Ids of runners that the queue does not take.
    refused: RefCell<BTreeSet<i64>>,
    /// Errors by the call that they strike, each time.
    broken: RefCell<BTreeMap<String, Error>>,
    /// What happens right before a call.
    #[allow(clippy::type_complexity, reason = "a hook of the tests")]
    before: RefCell<BTreeMap<String, Box<dyn Fn(&World)>>>,
    /// Every call, in order.
    calls: RefCell<Vec<String>>,
    /// How often "may begin" says yes.
    begins: Cell<usize>,
    metrics: RefCell<BTreeMap<String, f64>>,
}

impl World {
    /// With these registrations in group 1.
    fn new(registrations: impl IntoIterator<Item = Registration>) -> Self {
        let world = Self {
            now: Cell::new(NOW),
            lists: RefCell::default(),
            names_groups: Cell::new(true),
            living: RefCell::default(),
            unknown: RefCell::default(),
            provider_scope: RefCell::new("everywhere".into()),
            queue: RefCell::default(),
            refused: RefCell::default(),
            broken: RefCell::default(),
            before: RefCell::default(),
            calls: RefCell::default(),
            begins: Cell::new(usize::MAX),
            metrics: RefCell::default(),
        };
        world.list(&group(1), registrations);
        world
    }

    fn list(&self, part: &Part, registrations: impl IntoIterator<Item = Registration>) {
        let part_group = match part {
            Part::Group { id, .. } => Some(*id),
            Part::Repository(_) => None,
        };
        let all = registrations.into_iter();
        let all = all.map(|each| Registration { group: part_group, ..each }).collect();
        self.lists.borrow_mut().insert(part.to_string(), all);
    }

    fn change(&self, id: i64, change: impl Fn(&mut Registration)) {
        let mut lists = self.lists.borrow_mut();
        lists.values_mut().flatten().filter(|each| each.id == id).for_each(change);
    }

    fn live(&self, number: u64) {
        self.living.borrow_mut().insert(instance(number));
    }

    fn break_call(&self, call: &str, error: Error) {
        self.broken.borrow_mut().insert(call.to_owned(), error);
    }

    fn before(&self, call: &str, act: impl Fn(&World) + 'static) {
        self.before.borrow_mut().insert(call.to_owned(), Box::new(act));
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn say(&self, call: String) {
        if let Some(act) = self.before.borrow().get(&call) {
            act(self);
        }
        self.calls.borrow_mut().push(call);
    }

    /// Notes a call and says whether it fails.
    fn call(&self, call: String) -> Result<()> {
        self.say(call.clone());
        self.broken.borrow().get(&call).map_or(Ok(()), |error| Err(error.clone()))
    }

    fn calls(&self) -> Vec<String> {
        self.calls.borrow().clone()
    }

    /// Calls that begin so.
    fn made(&self, start: &str) -> usize {
        self.calls.borrow().iter().filter(|call| call.starts_with(start)).count()
    }

    fn queued(&self) -> Vec<i64> {
        self.queue.borrow().iter().map(|candidate| candidate.runner_id).collect()
    }

    fn ids(&self) -> Vec<i64> {
        self.lists.borrow().values().flatten().map(|each| each.id).collect()
    }

    fn metric(&self, of: &str) -> f64 {
        self.metrics.borrow().get(of).copied().unwrap_or_default()
    }

    fn handle(&self, config: &Config, event: &Value) -> Result<Value> {
        let janitor = Janitor { world: self, provider: Machines(self) };
        run(handle(&janitor, config, event, || self.may_begin()))
    }

    fn may_begin(&self) -> bool {
        let left = self.begins.get();
        self.begins.set(left.saturating_sub(1));
        left > 0
    }

    /// A scan.
    fn scan(&self, config: &Config) -> Value {
        self.handle(config, &json!({"source": "aws.events"})).unwrap()
    }

    /// What is queued now comes back, at once if it is late enough. Answers which records failed, by their
    /// place; the others are gone from the queue.
    fn confirm(&self, config: &Config) -> Vec<usize> {
        let bodies: Vec<_> = self.queue.borrow().iter().map(Candidate::message).collect();
        let failed = self.deliver(config, &bodies);
        let mut place = 0;
        self.queue.borrow_mut().retain(|_| {
            place += 1;
            failed.contains(&(place - 1))
        });
        failed
    }

    fn deliver(&self, config: &Config, bodies: &[String]) -> Vec<usize> {
        let records: Vec<_> = bodies
            .iter()
            .enumerate()
            .map(|(place, body)| json!({"messageId": place.to_string(), "body": body}))
            .collect();
        let answer = self.handle(config, &json!({ "Records": records })).unwrap();
        let failures = answer["batchItemFailures"].as_array().unwrap();
        let place = |failure: &Value| failure["itemIdentifier"].as_str().unwrap().parse().unwrap();
        failures.iter().map(place).collect()
    }
}

/// The world as a janitor meets it.
struct Janitor<'a, P> {
    world: &'a World,
    provider: P,
}

impl<P: Provider> Context for Janitor<'_, P> {
    type Registrations = World;
    type Confirmations = World;
    type Provider = P;
    fn name(&self) -> &str {
        "janitor"
    }
    fn registrations(&self) -> &World {
        self.world
    }
    fn confirmations(&self) -> &World {
        self.world
    }
    fn provider(&self) -> &P {
        &self.provider
    }
    fn clock(&self) -> &impl Clock {
        self.world
    }
    fn telemetry(&self) -> &impl Telemetry {
        self.world
    }
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.now.get()
    }
}

impl Telemetry for World {
    fn count_by(&self, metric: &'static str, by: &[(&'static str, &str)], value: f64) {
        let names: Vec<_> = by.iter().skip(1).map(|(_, value)| *value).collect();
        assert_eq!(by[0], ("Janitor", "janitor"));
        let key = [vec![metric], names].concat().join(" ");
        *self.metrics.borrow_mut().entry(key).or_default() += value;
    }
}

impl Registrations for World {
    type Session = ();

    async fn session(&self, part: &Part) -> Result<()> {
        self.call(format!("session {}", part.owner()))
    }

    async fn page(&self, (): &(), part: &Part, page: u32) -> Result<Listed> {
        self.call(format!("page {page} of {part}"))?;
        let lists = self.lists.borrow();
        let all = lists.get(&part.to_string()).map(Vec::as_slice).unwrap_or_default();
        let skip = usize::try_from(page - 1).unwrap() * PAGE;
        let registrations: Vec<_> = all.iter().skip(skip).take(PAGE).cloned().collect();
        Ok(Listed { entries: registrations.len(), registrations })
    }

    async fn registration(&self, (): &(), part: &Part, id: i64) -> Result<Option<Registration>> {
        self.call(format!("get {id}"))?;
        let lists = self.lists.borrow();
        // An organisation's address finds its runners in any group.
        let found = lists.iter().filter(|(key, _)| match part {
            Part::Group { .. } => key.starts_with("group"),
            Part::Repository(_) => **key == part.to_string(),
        });
        let found = found.flat_map(|(_, all)| all).find(|each| each.id == id).cloned();
        let group = |each: &Registration| each.group.filter(|_| self.names_groups.get());
        Ok(found.map(|each| Registration { group: group(&each), ..each }))
    }

    async fn remove(&self, (): &(), _: &Part, id: i64) -> Result<Removal> {
        self.call(format!("delete {id}"))?;
        let mut lists = self.lists.borrow_mut();
        if lists.values().flatten().any(|each| each.id == id && each.busy) {
            return Ok(Removal::Busy);
        }
        let before: usize = lists.values().map(Vec::len).sum();
        lists.values_mut().for_each(|all| all.retain(|each| each.id != id));
        let after: usize = lists.values().map(Vec::len).sum();
        Ok(if after < before { Removal::Removed } else { Removal::Gone })
    }

    fn quotas(&self) -> Vec<(u64, u64)> {
        vec![(4242, 4999)]
    }
}

impl Confirmations for World {
    async fn send(&self, candidates: &[Candidate]) -> Result<Vec<usize>> {
        let ids: Vec<_> = candidates.iter().map(|each| each.runner_id.to_string()).collect();
        assert!((1..=MAX_SENT).contains(&ids.len()), "{ids:?}");
        self.call("send".into())?;
        let mut refused = Vec::new();
        for (place, candidate) in candidates.iter().enumerate() {
            match self.refused.borrow().contains(&candidate.runner_id) {
                true => refused.push(place),
                false => self.queue.borrow_mut().push(candidate.clone()),
            }
        }
        Ok(refused)
    }
}
