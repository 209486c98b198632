//! Use cases: the steps of a runner's life, one per task of the state machine. Each looks at the world,
//! decides, acts, and says what is next; each can be run twice, and be cut off anywhere.
//!
//! What a step must remember goes back to the state machine in [`RunState`] and comes again with the next
//! step. Nothing secret is in it.

mod check;
mod cleanup;
mod event;
mod launch;
mod register;
mod state;

pub use check::{Look, Seen, Verdict, decide};
pub use event::{Outcome, Step, StepEvent};
pub use state::{LONGEST_SLOT_WAIT, Next, RunState};

use std::time::Duration;

use tracing::{error, info};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::ports::{RunnerContext, Telemetry};
use crate::reach::reached;

/// Runs one step.
pub async fn run<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let outcome = match event.step {
        Step::Launch => launch::launch(context, settings, event).await,
        Step::Register => register::register(context, settings, event).await,
        Step::Check => check::check(context, settings, event).await,
        Step::Cleanup => cleanup::cleanup(context, settings, event).await,
    };
    match outcome {
        Err(Error::Later { after, reason }) if matches!(event.step, Step::Launch | Step::Check) => {
            Ok(told_later(event, after, reason))
        }
        other => waited_for(context.telemetry(), event, other),
    }
}

/// What only an operator can mend (a key that GitHub refuses, a permission that is missing) is waited for like anything
/// else that passes: a runner's life does not end by it, so that mending it in time costs no job. It is told by the
/// metric `ConfigurationError`.
pub fn waited_for<T>(
    telemetry: &impl Telemetry,
    event: &StepEvent,
    outcome: Result<T>,
) -> Result<T> {
    match outcome {
        Err(Error::Permanent(reason)) => {
            reached("step: an operator has to act");
            error!(runner = event.runner, reason, "an operator has to act");
            telemetry.count("ConfigurationError", None, 1.0);
            Err(Error::Later { after: state::LONGEST_WAIT, reason })
        }
        other => other,
    }
}

/// GitHub says when to come back, and means it: the state machine would ask again after seconds.
fn told_later(event: &StepEvent, after: Duration, reason: String) -> RunState {
    reached("step: GitHub says when to come back");
    info!(runner = event.runner, reason, "waiting for GitHub");
    let state = event.state.clone();
    let wait = after + state.spread(&event.runner);
    let state = state.later(wait, reason);
    match event.step {
        Step::Check => RunState { next: Next::Wait, waits: event.state.waits, ..state },
        _ => state,
    }
}
