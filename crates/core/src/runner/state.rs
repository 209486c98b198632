//! What is remembered between the steps of one runner, in the state of its execution.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::names::fraction;
use crate::ports::RunnerRecord;
use crate::time::Timestamp;

/// First wait after a refusal; doubled each time.
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// Longest wait between two tries.
pub const LONGEST_WAIT: Duration = Duration::from_secs(900);

/// Longest wait for a free place: each try costs three state transitions, and a history has room for a day of
/// them.
pub const LONGEST_SLOT_WAIT: Duration = Duration::from_secs(300);

/// Shortest wait: jitter may come near zero, and a state machine that spins costs money.
const SHORTEST_WAIT: Duration = Duration::from_secs(5);

/// What the state machine does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Next {
    /// After a launch: register.
    #[default]
    Register,
    /// Wait, then launch (again).
    Later,
    /// Wait, then check.
    Wait,
    /// Clean up.
    Ended,
    /// Nothing; the last answer.
    Done,
}

/// The state of one runner's execution. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunState {
    /// What is next: for the state machine, so it is not read back.
    #[serde(skip_deserializing)]
    pub next: Next,
    /// How long to wait before it, in seconds.
    pub wait_seconds: u64,
    /// Why, for whoever reads the execution's history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Purchases so far that are known to have brought no instance that lives: part of the client token.
    pub attempt: u32,
    /// Waits in a row before a launch.
    pub waits: u32,
    /// A token was found used with other parameters; its instance may not be listed yet.
    pub token_used: bool,
    /// When GitHub was last asked whether the launch is still needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// Whether it has a place among its tier's `max_runners`.
    pub slot: bool,
    /// The moment that was reserved for its registration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paced_at: Option<Timestamp>,
    /// The instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The account in which it was launched; `None` for the control plane's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// When it was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launched_at: Option<Timestamp>,
    /// The tier's lifetime at launch, in seconds.
    pub lifetime_seconds: u64,
    /// The tier's boot time-out at launch, in seconds.
    pub boot_seconds: u64,
    /// The runner's id at GitHub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<i64>,
    /// Checks so far.
    pub checks: u32,
    /// Another runner that has this one's job, and that was accounted for with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_runs_on: Option<String>,
    /// Whether the instance has claimed its registration.
    pub claimed: bool,
    /// When the runner was first seen online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online_at: Option<Timestamp>,
    /// When it was first seen without a job, in a row of such readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_at: Option<Timestamp>,
    /// When it was first seen busy, in a row of such readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_at: Option<Timestamp>,
    /// When the instance was first seen gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vanished_at: Option<Timestamp>,
    /// When the registration was first seen gone while the instance lived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unregistered_at: Option<Timestamp>,
    /// When the registration was deleted as idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deregistered_at: Option<Timestamp>,
    /// When it was first seen to be accounted for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounted_at: Option<Timestamp>,
    /// When its job was first seen completed while the instance lived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_over_at: Option<Timestamp>,
}

impl RunState {
    /// The runner's id at GitHub, from what is remembered and what the ledger knows: a step that was invoked twice
    /// may have registered it anew, and the highest id is the last registration's.
    pub fn registration(&self, record: &RunnerRecord) -> Option<i64> {
        self.runner_id.max(record.runner_id)
    }

    /// Ends the runner's life, for `reason`.
    pub fn ended(mut self, reason: impl Into<String>) -> Self {
        self.next = Next::Ended;
        self.reason = Some(reason.into());
        self
    }

    /// Launches again after about `wait`.
    pub fn later(mut self, wait: Duration, reason: impl Into<String>) -> Self {
        self.next = Next::Later;
        self.wait_seconds = wait.clamp(SHORTEST_WAIT, LONGEST_WAIT).as_secs();
        self.waits = self.waits.saturating_add(1);
        self.reason = Some(reason.into());
        self
    }

    /// The wait for a place among the tier's `max_runners`: as the back-off, but not above five minutes, and at
    /// least half of that. Those who wait ask at different times, so the more they are, the sooner a place that
    /// comes free is taken.
    pub fn slot_wait(&self, runner: &str) -> Duration {
        let longest = FIRST_WAIT.saturating_mul(1 << self.waits.min(8)).min(LONGEST_SLOT_WAIT);
        let share = fraction(&[runner, "slot", &self.waits.to_string()]);
        (longest / 2 + longest.mul_f64(share / 2.0)).max(SHORTEST_WAIT)
    }

    /// Up to a minute by which launches that wait for the same moment are spread.
    pub fn spread(&self, runner: &str) -> Duration {
        FIRST_WAIT.mul_f64(fraction(&[runner, "spread", &self.waits.to_string()]))
    }

    /// The wait before the next launch: from 1 minute, doubled each time, at most 15, full jitter. The
    /// jitter follows from the runner's name, so that a repeated step gives the same answer.
    pub fn back_off(&self, runner: &str) -> Duration {
        let longest = FIRST_WAIT.saturating_mul(1 << self.waits.min(8)).min(LONGEST_WAIT);
        let share = fraction(&[runner, "back-off", &self.waits.to_string()]);
        longest.mul_f64(share).max(SHORTEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ol_01_back_off_is_jittered_and_bounded(runner in "[a-z]{1,20}", waits in 0u32..2000) {
            let state = RunState { waits, ..RunState::default() };
            let wait = state.back_off(&runner);
            prop_assert!(wait >= SHORTEST_WAIT && wait <= LONGEST_WAIT);
            prop_assert_eq!(wait, state.back_off(&runner));
        }
    }

    #[test]
    fn ra_02_launches_that_wait_for_one_moment_are_spread_over_a_minute() {
        let state = RunState::default();
        let at: Vec<u64> = (0..200).map(|n| state.spread(&format!("w-{n}")).as_secs()).collect();
        for quarter in 0..4 {
            let within = at.iter().filter(|at| **at / 15 == quarter).count();
            assert!((25..=75).contains(&within), "{within} of 200 in quarter {quarter}");
        }
    }

    #[test]
    fn the_answer_reads_as_the_state_machine_expects() {
        let state = RunState::default().later(Duration::from_secs(61), "capacity");
        let value = serde_json::to_value(&state).unwrap();
        assert_eq!(
            (value["next"].as_str(), value["waitSeconds"].as_u64()),
            (Some("later"), Some(61))
        );
        let back: RunState = serde_json::from_value(value).unwrap();
        assert_eq!(RunState { next: Next::Later, ..back }, state);
    }
}
