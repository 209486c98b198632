//! The domain of Ostler: types, decisions, ports and use cases. No AWS, no HTTP, no clock of its own.

pub mod account;
pub mod apps;
pub mod config;
pub mod cost;
pub mod debts;
pub mod error;
pub mod instances;
pub mod janitor;
pub mod job;
pub mod keys;
pub mod labels;
pub mod metrics;
pub mod names;
pub mod ports;
pub mod reach;
pub mod reaper;
pub mod reconciler;
pub mod report;
pub mod runner;
pub mod secret;
pub mod setup;
pub mod stolen;
pub mod supply;
pub mod time;
pub mod together;
pub mod webhook;

pub use error::{Error, Result};
