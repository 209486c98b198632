//! The whole of it in the local world: the real function binaries, the real state machine, the real templates,
//! machines as processes. The binaries are those of `cargo build --workspace`.
//!
//! A world takes some ten seconds to start and to install, so there are few, and each shows many things: at the same
//! time where it can, in organisations of their own, so that no job is given to another scenario's runner.
//!
//! Not here, because it is shown closer to where it is decided: an instance's role reads its own handoff item and
//! nothing else (`instances_may_do_what_their_role_says` in crates/local/tests/edge.rs); a function that crashes or
//! times out is a 502 at its URL, never a success (CP-13: `a_crash_a_time_out_and_an_error_are_told_in_lambdas_words`
//! and `answers_follow_the_rules_of_function_urls` in crates/local/src/lambda_host).

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../permissions/mod.rs"]
mod permissions;

mod accounts;
mod duties;
mod faults;
mod hops;
mod recovery;
mod rig;
mod stack;
