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
pub use state::{Next, RunState};

use crate::config::Settings;
use crate::error::Result;
use crate::ports::RunnerContext;

/// Runs one step.
pub async fn run<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    match event.step {
        Step::Launch => launch::launch(context, settings, event).await,
        Step::Register => register::register(context, settings, event).await,
        Step::Check => check::check(context, settings, event).await,
        Step::Cleanup => cleanup::cleanup(context, settings, event).await,
    }
}
