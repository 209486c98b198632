//! The stolen-runner handler over the world in memory: its requirements one by one (S and B), field reports (LS,
//! SQ, ST, SE), and whole histories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

mod batches;
#[path = "../common/mod.rs"]
mod common;
mod compatibility;
mod deliveries;
mod histories;
mod judgement;
mod laws;
mod rules;
mod scene;
