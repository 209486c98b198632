//! GitHub under the configuration of the moment: a new client when the App or its key was changed, and the
//! configuration read again when GitHub refuses the key.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ostler_core::error::{Error, Result};
use ostler_core::job::{JobId, Repository};
use ostler_core::labels::Labels;
use ostler_core::ports::{
    Clock, Configuration, Forge, ForgeJob, Jit, Place, Refusal, Registered, Removal,
};

use crate::GitHub;
use crate::reply::refusal;

/// How long the webhook waits to be told whether a deployment waits, tokens included. GitHub itself waits ten seconds
/// for the webhook's answer, and without one the job's start would be lost, which comes after this question.
const DEPLOYMENT_ANSWER: Duration = Duration::from_secs(4);

/// The forge of a function: nothing is built before the first call, so that events which need no look-up
/// cost none.
pub struct ConfiguredGitHub<F, C> {
    configuration: Rc<F>,
    clock: C,
    client: RefCell<Option<Rc<GitHub<C>>>>,
    pub(crate) deployment_answer: Duration,
}

impl<F: Configuration, C: Clock + Clone> ConfiguredGitHub<F, C> {
    /// A forge that takes App and key from `configuration`.
    pub fn new(configuration: Rc<F>, clock: C) -> Self {
        let (client, deployment_answer) = (RefCell::new(None), DEPLOYMENT_ANSWER);
        Self { configuration, clock, client, deployment_answer }
    }

    /// By App, the calls that it has left this hour with the owner where that is least; of those alone that GitHub has
    /// told of.
    pub fn quotas(&self) -> Vec<(u64, u64)> {
        let client = self.client.borrow();
        let quotas = client.as_ref().map(|client| client.quotas()).unwrap_or_default();
        quotas.into_iter().map(|(app, quota)| (app, quota.remaining)).collect()
    }

    pub(crate) async fn client(&self) -> Result<Rc<GitHub<C>>> {
        let refused = self.client.borrow().as_ref().is_some_and(|client| client.key_refused());
        let settings = match refused {
            true => self.configuration.reread().await?,
            false => self.configuration.settings().await?,
        };
        let (Some(app), Some(key)) = (&settings.app, &settings.app_private_key) else {
            return Err(Error::Permanent(
                "control/app or control/app-private-key is not set: run the set-up (make secrets)"
                    .into(),
            ));
        };
        let mut client = self.client.borrow_mut();
        let others = &settings.additional_apps;
        if let Some(current) = client.as_ref().filter(|current| current.is_for(app, key, others)) {
            return Ok(Rc::clone(current));
        }
        let made = Rc::new(GitHub::new(app, key, others, self.clock.clone())?);
        *client = Some(Rc::clone(&made));
        Ok(made)
    }
}

impl<F: Configuration, C: Clock + Clone> Forge for ConfiguredGitHub<F, C> {
    async fn installed(&self, at: &Repository) -> Result<bool> {
        self.client().await?.installed(at).await
    }

    async fn run_jobs(&self, at: &Repository, run: i64) -> Result<Option<Vec<(JobId, ForgeJob)>>> {
        self.client().await?.run_jobs(at, run).await
    }

    async fn job(&self, at: &Repository, id: JobId) -> Result<Option<ForgeJob>> {
        self.client().await?.job(at, id).await
    }

    async fn deployment_waits(&self, at: &Repository, deployment: i64) -> Result<bool> {
        let asked = async { self.client().await?.deployment_waits(at, deployment).await };
        tokio::time::timeout(self.deployment_answer, asked).await.unwrap_or_else(|_| {
            let limit = self.deployment_answer;
            Err(Error::Transient(format!("whether {at} waits: no answer within {limit:?}")))
        })
    }

    async fn runner(&self, place: &Place, id: i64) -> Result<Option<Registered>> {
        self.client().await?.runner(place, id).await
    }

    async fn runner_named(&self, place: &Place, name: &str) -> Result<Option<Registered>> {
        self.client().await?.runner_named(place, name).await
    }

    async fn register(
        &self,
        place: &Place,
        name: &str,
        group: Option<&str>,
        labels: &Labels,
    ) -> std::result::Result<Jit, Refusal> {
        match self.client().await {
            Ok(client) => client.register(place, name, group, labels).await,
            Err(failure) => Err(refusal(failure)),
        }
    }

    async fn remove_runner(&self, place: &Place, id: i64) -> Result<Removal> {
        self.client().await?.remove_runner(place, id).await
    }
}
