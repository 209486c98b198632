//! The janitor's ports over this world.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::error::{Error, Result};
use ostler_core::janitor::{
    Bundled, By, Candidate, Confirmations, Context, Inventory, Listed, Part, Registration,
    Registrations,
};
use ostler_core::job::RunnerInput;
use ostler_core::ports::{Clock, Execution, Executions, Removal, Start, Telemetry};
use ostler_core::time::Timestamp;
use rand::Rng;

use super::{Deletion, State, World};
use crate::ec2::{self, DescribeQuery, Filter};
use crate::github::{ApiError, CallError, Caller, GitHub, Paging, RunnerView, Scope, endpoint};
use crate::queue::NewMessage;
use crate::world::ORGANIZATION;

/// One invocation's janitor. It remembers when its candidates were observed, for the law.
pub(super) struct Janitor {
    pub world: World,
    pub provider: Bundled<World, World>,
    pub observed: BTreeMap<u64, Timestamp>,
}

impl Context for Janitor {
    type Registrations = Self;
    type Confirmations = World;
    type Provider = Bundled<World, World>;
    fn name(&self) -> &str {
        "janitor"
    }
    fn registrations(&self) -> &Self {
        self
    }
    fn confirmations(&self) -> &World {
        &self.world
    }
    fn provider(&self) -> &Bundled<World, World> {
        &self.provider
    }
    fn clock(&self) -> &impl Clock {
        &self.world
    }
    fn telemetry(&self) -> &impl Telemetry {
        &self.world
    }
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.state().now
    }
}

impl Telemetry for World {
    fn count_by(&self, metric: &'static str, by: &[(&'static str, &str)], value: f64) {
        let names: Vec<_> = by.iter().skip(1).map(|(_, value)| *value).collect();
        let key = [vec![metric], names].concat().join(" ");
        *self.state().metrics.entry(key).or_default() += value;
    }
}

impl State {
    /// A call of GitHub's API: counted, struck by faults, and charged to the limits.
    fn github_call<T>(
        &mut self,
        name: &'static str,
        fails: bool,
        (method, template): (&str, &str),
        call: impl FnOnce(&mut GitHub) -> std::result::Result<T, ApiError>,
    ) -> Result<std::result::Result<T, u16>> {
        if fails {
            return Err(Error::Transient(format!("{name}: 502")));
        }
        let now = self.now;
        let caller = match self.github.owner_installation(ORGANIZATION) {
            Ok(id) => Caller::Installation(id),
            Err(_) => return Err(Error::Permanent("the App is not installed".into())),
        };
        let answer = self.github.call(now, &caller, method, template, call);
        let lost = self.faults.lost > 0.0 && self.rng.random_bool(self.faults.lost);
        match answer {
            _ if lost => Err(Error::Transient(format!("{name}: its answer was lost"))),
            Ok(value) => Ok(Ok(value)),
            Err(CallError::Lost(_)) => Err(Error::Transient(format!("{name}: no answer"))),
            Err(CallError::Api(error)) if matches!(error.status, 403 | 429) => {
                let header = |name: &str| {
                    let found = error.headers.iter().find(|(key, _)| key == name);
                    found.and_then(|(_, value)| value.parse::<i64>().ok())
                };
                let reset = header("x-ratelimit-reset").map(|at| at - now.seconds());
                let seconds = header("retry-after").or(reset).unwrap_or(60).max(1);
                let after = Duration::from_secs(seconds.unsigned_abs());
                self.limited_until = self.limited_until.max(now + after);
                Err(Error::Later { after, reason: format!("{name}: {}", error.message) })
            }
            Err(CallError::Api(error)) => match error.status {
                404 | 422 => Ok(Err(error.status)),
                status => Err(Error::Transient(format!("{name}: {status}"))),
            },
        }
    }

    fn registration(&self, view: RunnerView) -> Registration {
        Registration {
            id: i64::try_from(view.id).unwrap_or(i64::MAX),
            name: view.name,
            offline: !view.online,
            busy: view.busy,
            group: i64::try_from(view.group_id).ok().filter(|_| self.names_groups),
        }
    }
}

fn group_of(part: &Part) -> u64 {
    match part {
        Part::Group { id, .. } => id.unsigned_abs(),
        Part::Repository(_) => 0,
    }
}

fn runner(id: i64) -> u64 {
    u64::try_from(id).unwrap_or_default()
}

impl Registrations for Janitor {
    type Session = ();

    async fn session(&self, _: &Part) -> Result<()> {
        let mut state = self.world.state();
        if state.strikes("session", |faults| faults.github) {
            return Err(Error::Transient("no token: 502".into()));
        }
        // As the pool of Apps does: what GitHub has limited is not called.
        let now = state.now;
        if now < state.limited_until {
            let after = state.limited_until.since(now);
            return Err(Error::Later { after, reason: "rate limit".into() });
        }
        Ok(())
    }

    async fn page(&self, (): &(), part: &Part, page: u32) -> Result<Listed> {
        self.world.sleep_github().await;
        let mut state = self.world.state();
        let fails = state.strikes("page", |faults| faults.page);
        let (now, group) = (state.now, group_of(part));
        let paging = Paging { page: usize::try_from(page).unwrap_or(usize::MAX), per_page: 100 };
        let listed =
            state.github_call("page", fails, ("GET", endpoint::ORG_GROUP_RUNNERS), |github| {
                github.list_group_runners(now, ORGANIZATION, group, paging)
            })?;
        let views = listed.map_err(|status| Error::NotFound(status.to_string()))?.items;
        let entries = views.len();
        let registrations = views.into_iter().map(|view| state.registration(view)).collect();
        Ok(Listed { registrations, entries })
    }

    async fn registration(&self, (): &(), _: &Part, id: i64) -> Result<Option<Registration>> {
        self.world.sleep_github().await;
        let mut state = self.world.state();
        let fails = state.strikes("get", |faults| faults.github);
        let (now, scope) = (state.now, Scope::Organization(ORGANIZATION.into()));
        let found = state.github_call("get", fails, ("GET", endpoint::ORG_RUNNER), |github| {
            github.get_runner(now, &scope, runner(id))
        })?;
        match found {
            Ok(view) => Ok(Some(state.registration(view))),
            Err(404) => Ok(None),
            Err(status) => Err(Error::Transient(status.to_string())),
        }
    }

    async fn remove(&self, (): &(), _: &Part, id: i64) -> Result<Removal> {
        self.world.sleep_github().await;
        let mut state = self.world.state();
        let fails = state.strikes("delete", |faults| faults.github);
        let (now, id) = (state.now, runner(id));
        let scope = Scope::Organization(ORGANIZATION.into());
        let before = state.github.registration(id);
        let name = before.as_ref().map(|view| view.name.clone()).unwrap_or_default();
        let judged = match self.observed.get(&id) {
            Some(observed) => state.judge_deletion(id, &name, *observed),
            None => Some(format!("{name} was no candidate of this batch")),
        };
        let removed =
            state.github_call("delete", fails, ("DELETE", endpoint::ORG_RUNNER), |github| {
                github.delete_runner(now, &scope, id)
            });
        // Also where the answer was lost.
        if before.is_some() && state.github.registration(id).is_none() {
            state.deletions.push(Deletion { name, at: now });
            state.violations.extend(judged.map(|why| format!("{now}: {why}, and was deleted")));
        }
        match removed? {
            Ok(()) => Ok(Removal::Removed),
            Err(404) => Ok(Removal::Gone),
            Err(_) => Ok(Removal::Busy),
        }
    }

    fn quotas(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

impl Confirmations for World {
    async fn send(&self, candidates: &[Candidate]) -> Result<Vec<usize>> {
        self.sleep_aws().await;
        let mut state = self.state();
        let fails = state.strikes("send", |faults| faults.queue);
        let lost = fails && state.rng.random_bool(0.5);
        if fails && !lost {
            return Err(Error::Transient("the queue does not answer".into()));
        }
        let state = &mut *state;
        let mut refused = Vec::new();
        for (place, candidate) in candidates.iter().enumerate() {
            let share = state.faults.queue;
            if share > 0.0 && state.rng.random_bool(share) {
                refused.push(place);
                continue;
            }
            let message = NewMessage {
                body: candidate.message(),
                delay: Some(ostler_core::janitor::OBSERVATION),
                ..NewMessage::default()
            };
            if state.queue.send(state.now, message, &mut state.rng).is_err() {
                refused.push(place);
            }
        }
        match lost {
            true => Err(Error::Transient("the queue's answer was lost".into())),
            false => Ok(refused),
        }
    }
}

impl Inventory for World {
    async fn any_lives(&self, by: By, values: &[String]) -> Vec<Result<bool>> {
        let mut all: Vec<Result<bool>> = vec![Ok(false); values.len()];
        self.sleep_aws().await;
        let mut state = self.state();
        let names: Vec<_> = state.regions.keys().cloned().collect();
        for name in names {
            let living = state.living(&name, by, values);
            for (value, answer) in values.iter().zip(&mut all) {
                match &living {
                    Ok(living) if living.contains(value) => *answer = Ok(true),
                    Err(error) if !matches!(answer, Ok(true)) => *answer = Err(error.clone()),
                    _ => {}
                }
            }
        }
        all
    }
}

impl State {
    fn living(&mut self, region: &str, by: By, values: &[String]) -> Result<Vec<String>> {
        let now = self.now;
        let name = match by {
            By::InstanceId => "instance-id",
            By::RunnerTag => "tag:ostler:runner",
        };
        let mut living = Vec::new();
        for values in values.chunks(200) {
            let filter = Filter { name: name.to_owned(), values: values.to_vec() };
            let mut query = DescribeQuery {
                filters: vec![filter],
                most: Some(1000),
                ..DescribeQuery::default()
            };
            loop {
                if self.strikes("describe", |faults| faults.look_up) {
                    return Err(Error::Transient(format!("{region} does not answer")));
                }
                let Some(ec2) = self.regions.get_mut(region) else { break };
                let page = ec2
                    .describe_instances(now, &query)
                    .map_err(|fault| Error::Transient(fault.to_string()))?;
                for instance in &page.items {
                    if instance.state(now) == ec2::State::Terminated {
                        continue;
                    }
                    living.push(match by {
                        By::InstanceId => instance.id.clone(),
                        By::RunnerTag => {
                            instance.tags.get("ostler:runner").cloned().unwrap_or_default()
                        }
                    });
                }
                query.next_token = page.next_token;
                if query.next_token.is_none() {
                    break;
                }
            }
        }
        Ok(living)
    }
}

impl Executions for World {
    async fn start(&self, name: &str, _: &RunnerInput) -> Result<Start> {
        self.state().violations.push(format!("the janitor started {name}"));
        Ok(Start::Exists)
    }

    async fn describe(&self, name: &str) -> Result<Option<Execution>> {
        self.sleep_aws().await;
        let mut state = self.state();
        if state.strikes("execution", |faults| faults.look_up) {
            return Err(Error::Transient("Step Functions does not answer".into()));
        }
        let started = state.now;
        let running = state.executions.get(name).copied();
        Ok(running.map(|running| Execution { running, started, input: None }))
    }
}
