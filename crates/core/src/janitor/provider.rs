//! What is behind a runner, by its name. A provider reads names, says which of the resources behind them
//! exist, and tells where it looks. Discovery and confirmation know no more of it.

use std::future::Future;

use super::ports::{By, Inventory};
use crate::error::{Error, Result};
use crate::names::{NameKey, is_plausible};
use crate::ports::Executions;

/// Finds out whether what a runner runs on exists.
pub trait Provider {
    /// Its name, part of the fingerprint of every candidate.
    fn kind(&self) -> &str;
    /// Where it looks, in a stable form; part of the fingerprint.
    fn scope(&self) -> String;
    /// What a runner of that name runs on; `None` for a name that is none of its own.
    fn resource(&self, runner_name: &str) -> Option<String>;
    /// Whether each resource exists, in the order asked for. `Ok(false)` only after a complete look
    /// everywhere; a look that failed or may be incomplete is an error, of that resource alone.
    fn exist(&self, resources: &[String]) -> impl Future<Output = Vec<Result<bool>>>;
}

/// `ec2-instance-id`: a name is the prefix and the instance's id.
pub struct Ec2InstanceIds<I> {
    prefix: String,
    regions: Vec<String>,
    inventory: I,
}

impl<I: Inventory> Ec2InstanceIds<I> {
    /// `regions` are sorted, and those of the inventory.
    pub fn new(prefix: &str, regions: &[String], inventory: I) -> Self {
        Self { prefix: prefix.to_owned(), regions: regions.to_vec(), inventory }
    }
}

impl<I: Inventory> Provider for Ec2InstanceIds<I> {
    fn kind(&self) -> &str {
        "ec2-instance-id"
    }

    fn scope(&self) -> String {
        serde_json::json!(self.regions).to_string()
    }

    fn resource(&self, runner_name: &str) -> Option<String> {
        let id = runner_name.strip_prefix(&self.prefix)?;
        let digits = id.strip_prefix("i-")?;
        // EC2's ids had eight digits until 2018, and have seventeen since.
        let fits = matches!(digits.len(), 8 | 17)
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        fits.then(|| id.to_owned())
    }

    async fn exist(&self, resources: &[String]) -> Vec<Result<bool>> {
        self.inventory.any_lives(By::InstanceId, resources).await
    }
}

/// `ostler`: a name holds an HMAC under the install's key. The resource is the execution of that name, as
/// long as it runs, and every instance that is tagged with it.
pub struct OstlerRunners<I, E> {
    key: NameKey,
    regions: Vec<String>,
    state_machine_arn: String,
    inventory: I,
    executions: E,
}

impl<I: Inventory, E: Executions> OstlerRunners<I, E> {
    /// `regions` are sorted, and those of the inventory; `executions` are of that state machine.
    pub fn new(
        key: NameKey,
        regions: &[String],
        state_machine_arn: &str,
        inventory: I,
        executions: E,
    ) -> Self {
        let (regions, state_machine_arn) = (regions.to_vec(), state_machine_arn.to_owned());
        Self { key, regions, state_machine_arn, inventory, executions }
    }
}

impl<I: Inventory, E: Executions> Provider for OstlerRunners<I, E> {
    fn kind(&self) -> &str {
        "ostler"
    }

    fn scope(&self) -> String {
        serde_json::json!([self.state_machine_arn, self.regions]).to_string()
    }

    fn resource(&self, runner_name: &str) -> Option<String> {
        (is_plausible(runner_name) && self.key.made(runner_name)).then(|| runner_name.to_owned())
    }

    /// The instances of all at once, and the executions of those that have none: one by one, because Step
    /// Functions has no other way, and thirty a second is what it takes without throttling.
    async fn exist(&self, resources: &[String]) -> Vec<Result<bool>> {
        let mut exist = self.inventory.any_lives(By::RunnerTag, resources).await;
        for (name, exists) in resources.iter().zip(&mut exist) {
            if matches!(exists, Ok(false)) {
                let execution = self.executions.describe(name).await;
                *exists = execution.map(|found| found.is_some_and(|execution| execution.running));
            }
        }
        exist
    }
}

/// The providers that come with the janitor. Another one is another variant.
pub enum Bundled<I, E> {
    /// See [`Ec2InstanceIds`].
    Ec2InstanceIds(Ec2InstanceIds<I>),
    /// See [`OstlerRunners`].
    Ostler(OstlerRunners<I, E>),
}

impl<I: Inventory, E: Executions> Provider for Bundled<I, E> {
    fn kind(&self) -> &str {
        match self {
            Self::Ec2InstanceIds(one) => one.kind(),
            Self::Ostler(one) => one.kind(),
        }
    }

    fn scope(&self) -> String {
        match self {
            Self::Ec2InstanceIds(one) => one.scope(),
            Self::Ostler(one) => one.scope(),
        }
    }

    fn resource(&self, runner_name: &str) -> Option<String> {
        match self {
            Self::Ec2InstanceIds(one) => one.resource(runner_name),
            Self::Ostler(one) => one.resource(runner_name),
        }
    }

    async fn exist(&self, resources: &[String]) -> Vec<Result<bool>> {
        match self {
            Self::Ec2InstanceIds(one) => one.exist(resources).await,
            Self::Ostler(one) => one.exist(resources).await,
        }
    }
}

/// The answers to a question about `asked` resources, one for each: an answer that a provider owes proves
/// nothing.
pub(super) fn complete(asked: usize, mut answers: Vec<Result<bool>>) -> Vec<Result<bool>> {
    let owed = || Err(Error::Transient("the provider did not answer for that resource".into()));
    answers.truncate(asked);
    answers.resize_with(asked, owed);
    answers
}
