//! The laws of the templates in `infra/`: what cfn-lint can't see, and what a deploy to an emulator doesn't show.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod byoc;
mod control;
mod dead_letters;
mod deploy;
mod iam;
mod janitor;
mod network;
mod observability;
mod policy;
mod reaper;
mod recovery;
mod state_machine;
mod template;
