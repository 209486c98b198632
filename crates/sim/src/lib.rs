//! A world in memory under virtual time, for tests: models that are told the time and owe all chance to a seed.

pub mod ec2;
pub mod github;
pub mod invariants;
pub mod queue;
pub mod simulation;
pub mod world;
