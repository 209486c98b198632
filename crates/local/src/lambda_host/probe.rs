//! A process of a function for oneself, to be measured: the deployed code and environment, but real time.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::sandbox::{self, Invocation, Outcome, Sandbox};
use super::{Host, InvokeError, arn_of, real_ms, request_id};

/// One process of a deployed function that serves nobody else. Between invocations it is idle.
pub struct Probe {
    sandbox: Sandbox,
    function: String,
    timeout: Duration,
    init: Duration,
}

impl Host {
    /// Starts a process of a deployed function, and waits until it asks for work. It gets the variables
    /// that AWS gives it, thus no clock of the world's, and `own` over them. `cgroup` is the `cgroup.procs` of a
    /// control group that it is to start in.
    pub async fn probe(
        &self,
        name: &str,
        own: &[(String, String)],
        cgroup: Option<&Path>,
    ) -> Result<Probe, InvokeError> {
        let function = self.function(name).await?;
        let endpoint = self.common.iter().filter(|(name, _)| name != "OSTLER_CLOCK");
        let own: Vec<_> = endpoint.chain(own).cloned().collect();
        let variables = sandbox::variables(&function, &function.root, &own);
        let started = Instant::now();
        let sandbox =
            Sandbox::start(&function, &variables, cgroup).await.map_err(InvokeError::Broken)?;
        let mut probe = Probe {
            sandbox,
            function: name.to_owned(),
            timeout: function.config.timeout,
            init: Duration::ZERO,
        };
        probe.ready().await?;
        probe.init = started.elapsed();
        Ok(probe)
    }
}

impl Probe {
    /// From just before the process was started to its first question for work.
    pub fn init(&self) -> Duration {
        self.init
    }

    /// Process id; `None` once the process has ended.
    pub fn process_id(&self) -> Option<u32> {
        self.sandbox.process_id()
    }

    /// Runs one invocation: the answer, and how long it took from the event's delivery to the answer.
    pub async fn invoke(&mut self, payload: Bytes) -> Result<(Outcome, Duration), InvokeError> {
        let invocation = Invocation {
            request_id: request_id(),
            payload,
            deadline_ms: 0,
            arn: arn_of(&self.function),
        };
        let started = Instant::now();
        let outcome = self.sandbox.perform(invocation, self.timeout, real_ms).await;
        let took = started.elapsed();
        let outcome = outcome.ok_or_else(|| self.broken("is gone"))?;
        let ready = self.ready().await;
        // Where the process ended over it, the error says more.
        if !outcome.error {
            ready?;
        }
        Ok((outcome, took))
    }

    async fn ready(&mut self) -> Result<(), InvokeError> {
        let ready = self.sandbox.ready("none", self.timeout).await;
        ready.map_err(|end| match end {
            Some(outcome) => self.broken(&String::from_utf8_lossy(&outcome.payload)),
            None => self.broken("has ended"),
        })
    }

    fn broken(&self, how: &str) -> InvokeError {
        InvokeError::Broken(format!("the process of {} {how}", self.function))
    }
}
