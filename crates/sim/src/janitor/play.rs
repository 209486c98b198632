//! The schedule and the event source: scans and confirmations that overlap, by the real use case.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use ostler_core::error::Result;
use ostler_core::janitor::{
    self, Body, Bundled, Candidate, Config, Ec2InstanceIds, OstlerRunners, ProviderConfig,
};
use ostler_core::names::NameKey;
use ostler_core::time::Timestamp;
use rand::Rng;
use serde_json::{Value, json};

use super::World;
use super::ports::Janitor;
use crate::queue::Received;
use crate::world::{NAME_KEY, ORGANIZATION};

/// Between two scans.
const PERIOD: Duration = Duration::from_secs(1800);

/// An invocation's time without its reserve.
const BUDGET: Duration = Duration::from_secs(290);

/// Batches at a time.
const CONCURRENCY: usize = 2;

/// A history of scans and confirmations.
pub struct Play {
    world: World,
    config: Rc<Config>,
    running: Vec<Invocation>,
    next_scan: Timestamp,
    /// Summaries of the scans that ended well, with the time that each took.
    pub scans: Vec<(Value, Duration)>,
    /// Scans that failed.
    pub failed_scans: usize,
}

struct Invocation {
    future: Pin<Box<dyn Future<Output = Result<Value>>>>,
    began: Timestamp,
    /// It goes on then.
    wake: Timestamp,
    /// Killed then, if ever.
    killed: Option<Timestamp>,
    /// What it confirms; a scan if it is nothing.
    batch: Vec<Received>,
}

impl Play {
    /// The first scan is due at once.
    pub fn new(world: &World, config: Config) -> Self {
        let next_scan = world.state().now;
        Self {
            world: world.clone(),
            config: Rc::new(config),
            running: Vec::new(),
            next_scan,
            scans: Vec::new(),
            failed_scans: 0,
        }
    }

    /// Another configuration from now on.
    pub fn configure(&mut self, config: Config) {
        self.config = Rc::new(config);
    }

    /// Goes on until then.
    pub fn until(&mut self, end: Timestamp) {
        loop {
            let now = self.world.state().now;
            let next = self.next(now).filter(|next| *next <= end);
            let Some(next) = next else {
                self.world.pass_until(end);
                return;
            };
            self.world.pass_until(next);
            self.step();
        }
    }

    /// For that long.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.world.state().now + time;
        self.until(end);
    }

    /// When something of the janitor's is due.
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let mut due = vec![self.next_scan];
        due.extend(self.running.iter().map(|it| it.wake));
        if self.confirming() < CONCURRENCY {
            due.extend(self.world.state().queue.next_change(now).map(|at| at.max(now)));
        }
        due.into_iter().min()
    }

    fn confirming(&self) -> usize {
        self.running.iter().filter(|it| !it.batch.is_empty()).count()
    }

    fn step(&mut self) {
        let now = self.world.state().now;
        if self.next_scan <= now {
            self.next_scan = now + PERIOD;
            self.invoke(json!({"source": "aws.events"}), Vec::new());
        }
        while self.confirming() < CONCURRENCY {
            let received = {
                let state = &mut *self.world.state();
                let got = state.queue.receive(now, 10, None, &mut state.rng);
                let (received, dead) = got.unwrap_or_default();
                state.dead += dead.len();
                received
            };
            if received.is_empty() {
                break;
            }
            let records: Vec<_> = received
                .iter()
                .map(|it| json!({"messageId": it.message_id, "body": it.body}))
                .collect();
            self.invoke(json!({ "Records": records }), received);
        }
        let due: Vec<_> =
            (0..self.running.len()).filter(|n| self.running[*n].wake <= now).collect();
        for place in due.into_iter().rev() {
            self.go_on(place);
        }
    }

    fn invoke(&mut self, event: Value, batch: Vec<Received>) {
        let (world, config) = (self.world.clone(), Rc::clone(&self.config));
        let began = world.state().now;
        let mut observed = BTreeMap::new();
        for message in &batch {
            if let Ok(Body::Candidate(candidate)) =
                Candidate::read(&message.body, Some(ORGANIZATION))
                && let Ok(id) = u64::try_from(candidate.runner_id)
            {
                // Of two messages about one runner either may lead to its deletion: the later is the stricter
                // observation, the earlier the stricter law.
                let at = observed.entry(id).or_insert(candidate.observed_at);
                *at = (*at).max(candidate.observed_at);
            }
        }
        let killed = {
            let mut state = world.state();
            let share = state.faults.killed;
            let killed = share > 0.0 && state.rng.random_bool(share);
            killed.then(|| began + Duration::from_millis(state.rng.random_range(0..20_000)))
        };
        let provider = provider(&world, &config);
        let janitor = Janitor { world, provider, observed };
        let future = Box::pin(async move {
            let clock = janitor.world.clone();
            let may_begin = move || clock.state().now < began + BUDGET;
            janitor::handle(&janitor, &config, &event, may_begin).await
        });
        self.running.push(Invocation { future, began, wake: began, killed, batch });
    }

    /// Takes an invocation as far as it goes at this time.
    fn go_on(&mut self, place: usize) {
        let now = self.world.state().now;
        let invocation = &mut self.running[place];
        if invocation.killed.is_some_and(|at| at <= now) {
            // What it had received shows itself again.
            self.running.remove(place);
            return;
        }
        self.world.0.wake.set(None);
        let mut context = TaskContext::from_waker(Waker::noop());
        match invocation.future.as_mut().poll(&mut context) {
            Poll::Pending => {
                // A port that waits says until when.
                invocation.wake = self.world.0.wake.take().unwrap_or(now);
            }
            Poll::Ready(answer) => {
                let ended = self.running.remove(place);
                self.finish(ended, answer);
            }
        }
    }

    fn finish(&mut self, ended: Invocation, answer: Result<Value>) {
        let now = self.world.state().now;
        if ended.batch.is_empty() {
            match answer {
                Ok(summary) => self.scans.push((summary, now.since(ended.began))),
                Err(_) => self.failed_scans += 1,
            }
            return;
        }
        let Ok(answer) = answer else { return };
        let failed: Vec<_> = answer["batchItemFailures"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it["itemIdentifier"].as_str())
            .collect();
        let state = &mut *self.world.state();
        for message in &ended.batch {
            let twice = state.faults.twice > 0.0 && state.rng.random_bool(state.faults.twice);
            if !failed.contains(&message.message_id.as_str()) && !twice {
                let _ = state.queue.delete(now, &message.receipt_handle);
            }
        }
    }
}

fn provider(world: &World, config: &Config) -> Bundled<World, World> {
    let regions = config.provider.regions();
    match &config.provider {
        ProviderConfig::Ec2InstanceId { prefix, .. } => {
            Bundled::Ec2InstanceIds(Ec2InstanceIds::new(prefix, regions, world.clone()))
        }
        ProviderConfig::Ostler { state_machine_arn, .. } => {
            #[allow(clippy::expect_used, reason = "a constant")]
            let key = NameKey::new(NAME_KEY).expect("a key");
            let (inventory, executions) = (world.clone(), world.clone());
            let ours = OstlerRunners::new(key, regions, state_machine_arn, inventory, executions);
            Bundled::Ostler(ours)
        }
    }
}
