//! The small ports: handoff, reports, configuration, selector, telemetry.

use std::sync::Arc;
use std::time::Duration;

use ostler_core::config::Settings;
use ostler_core::error::{Error, Result};
use ostler_core::ports::{Configuration, Handoff, Jit, ReportQueue, Selector, Telemetry};
use ostler_core::report::Report;
use ostler_core::time::Timestamp;
use rand::Rng;
use serde_json::Value;

use super::{State, World};
use crate::queue::NewMessage;

/// Settings are kept this long.
const KEPT: Duration = Duration::from_secs(300);

/// They are read again at most this often.
const REREAD_EVERY: Duration = Duration::from_secs(60);

/// A registration on its way.
#[derive(Clone, Debug)]
pub struct HandoffItem {
    /// It.
    pub jit: Jit,
    /// It is not there any more from then on.
    pub expires: Timestamp,
}

impl State {
    /// What the instance finds when it looks for its registration.
    pub fn claim(&self, instance: &str) -> Option<&Jit> {
        let item = self.handoff.get(instance).filter(|item| item.expires > self.now);
        item.map(|item| &item.jit)
    }

    fn read_settings(&mut self) -> Arc<Settings> {
        let settings = Arc::new(Settings::from_parameters(&self.parameters));
        self.settings = Some((self.now, Arc::clone(&settings)));
        settings
    }
}

impl Handoff for World {
    async fn put(&self, instance: &str, jit: &Jit, expires: Timestamp) -> Result<()> {
        self.ask("Handoff.put", |state| {
            state.handoff.insert(instance.into(), HandoffItem { jit: jit.clone(), expires });
            Ok(())
        })
        .await
    }

    async fn lies(&self, instance: &str) -> Result<bool> {
        self.ask("Handoff.lies", |state| Ok(state.claim(instance).is_some())).await
    }

    async fn withdraw(&self, instance: &str) -> Result<bool> {
        self.ask("Handoff.withdraw", |state| {
            let now = state.now;
            Ok(state.handoff.remove(instance).is_some_and(|item| item.expires > now))
        })
        .await
    }
}

impl State {
    fn queue(&mut self, report: &Report) -> Result<()> {
        let message = NewMessage {
            body: serde_json::to_string(report)
                .map_err(|error| Error::Permanent(error.to_string()))?,
            group: Some(report.group()),
            deduplication_id: Some(report.deduplication_id()),
            ..NewMessage::default()
        };
        match self.reports.send(self.now, message, &mut self.rng) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Permanent(format!("the report queue: {error:?}"))),
        }
    }
}

impl ReportQueue for World {
    async fn send(&self, report: &Report) -> Result<()> {
        self.ask("Reports.send", |state| state.queue(report)).await
    }

    async fn send_batch(&self, reports: &[Report]) -> Result<Vec<usize>> {
        self.ask("Reports.send_batch", |state| {
            let mut refused = Vec::new();
            for (place, report) in reports.iter().enumerate() {
                let left = state.refused_reports.entry(report.runner_name.clone()).or_default();
                let refuses = *left > 0;
                *left = left.saturating_sub(1);
                if refuses || state.queue(report).is_err() {
                    refused.push(place);
                }
            }
            Ok(refused)
        })
        .await
    }
}

impl Configuration for World {
    async fn settings(&self) -> Result<Arc<Settings>> {
        self.ask("Configuration.settings", |state| {
            // Instances run side by side, and each keeps what it has read itself (Lambda guide, "Execution environment").
            if state.cold_in > 0 && state.rng.random_ratio(1, state.cold_in) {
                state.cold += 1;
                return Ok(Arc::new(Settings::from_parameters(&state.parameters)));
            }
            Ok(match &state.settings {
                Some((read, settings)) if state.now.since(*read) < KEPT => Arc::clone(settings),
                _ => state.read_settings(),
            })
        })
        .await
    }

    async fn reread(&self) -> Result<Arc<Settings>> {
        self.ask("Configuration.reread", |state| {
            Ok(match &state.settings {
                Some((read, settings)) if state.now.since(*read) < REREAD_EVERY => {
                    Arc::clone(settings)
                }
                _ => state.read_settings(),
            })
        })
        .await
    }
}

impl Selector for World {
    async fn choose(&self, function: &str, request: &Value) -> Result<Value> {
        self.ask("Selector.choose", |state| match state.selector.as_mut() {
            Some(choose) => choose(request),
            None => Err(Error::Permanent(format!("there is no function {function}"))),
        })
        .await
    }
}

impl Telemetry for World {
    fn count_by(&self, metric: &'static str, by: &[(&'static str, &str)], value: f64) {
        let dimension = by.iter().map(|(_, value)| *value).collect::<Vec<_>>().join(",");
        *self.state().metrics.entry((metric, dimension)).or_default() += value;
    }
}
