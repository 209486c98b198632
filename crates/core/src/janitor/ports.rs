//! What the janitor asks of the world.

use std::future::Future;

use super::candidate::Candidate;
use super::config::Part;
use super::provider::Provider;
use crate::error::Result;
use crate::ports::{Clock, Removal, Telemetry};

/// A registration as GitHub tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Whether GitHub says in so many words that it is offline.
    pub offline: bool,
    /// Whether it is busy: all but an explicit "no".
    pub busy: bool,
    /// Its runner group, where the answer names it.
    pub group: Option<i64>,
}

/// A page of registrations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Those that could be read.
    pub registrations: Vec<Registration>,
    /// How many entries there were, readable or not: fewer than [`super::PAGE`] is the last page.
    pub entries: usize,
}

/// Registrations at GitHub. A failed look-up is an error; `None`, and being in no page, is GitHub's own
/// word. Nothing is repeated in here.
pub trait Registrations {
    /// The App that was chosen for a page or for a candidate, signed in with the owner.
    type Session;
    /// Chooses an App by the quota that it has left, and signs in with the part's owner; tries the others if
    /// that fails.
    fn session(&self, part: &Part) -> impl Future<Output = Result<Self::Session>>;
    /// A page of a list, from 1, of [`super::PAGE`] entries.
    fn page(
        &self,
        session: &Self::Session,
        part: &Part,
        page: u32,
    ) -> impl Future<Output = Result<Listed>>;
    /// The registration with that id.
    fn registration(
        &self,
        session: &Self::Session,
        part: &Part,
        id: i64,
    ) -> impl Future<Output = Result<Option<Registration>>>;
    /// Removes one. Repeatable.
    fn remove(
        &self,
        session: &Self::Session,
        part: &Part,
        id: i64,
    ) -> impl Future<Output = Result<Removal>>;
    /// Calls that each App has left, by the App's id, as far as GitHub has said.
    fn quotas(&self) -> Vec<(u64, u64)>;
}

/// How instances are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By their ids.
    InstanceId,
    /// By the runner's name in their tag `ostler:runner`.
    RunnerTag,
}

/// Instances in every configured region of the account.
pub trait Inventory {
    /// Whether any instance of that id or tag is in another state than `terminated`, for each value in
    /// the order asked for. `Ok(false)` only after complete answers of all regions.
    fn any_lives(&self, by: By, values: &[String]) -> impl Future<Output = Vec<Result<bool>>>;
}

/// Candidates that one call sends at most: SQS's limit of a batch.
pub const MAX_SENT: usize = 10;

/// The queue in which candidates wait for their second observation.
pub trait Confirmations {
    /// Sends up to [`MAX_SENT`] candidates, each to be delivered [`super::OBSERVATION`] later. Answers
    /// the places of those that the queue did not take. Repeatable: a candidate may be confirmed twice.
    fn send(&self, candidates: &[Candidate]) -> impl Future<Output = Result<Vec<usize>>>;
}

/// What a janitor has.
pub trait Context {
    /// GitHub.
    type Registrations: Registrations;
    /// The queue.
    type Confirmations: Confirmations;
    /// What is behind runners.
    type Provider: Provider;
    /// Names this janitor in metrics.
    fn name(&self) -> &str;
    /// GitHub.
    fn registrations(&self) -> &Self::Registrations;
    /// The queue.
    fn confirmations(&self) -> &Self::Confirmations;
    /// What is behind runners.
    fn provider(&self) -> &Self::Provider;
    /// The time.
    fn clock(&self) -> &impl Clock;
    /// Metrics.
    fn telemetry(&self) -> &impl Telemetry;
}
