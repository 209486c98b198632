//! A world in memory under virtual time, for tests: models that are told the time and owe all chance to a seed.
//!
//! - [`github`], [`ec2`], [`queue`]: the models, each a state machine of its own. The local world serves the
//!   same ones over HTTP.
//! - [`world`]: the ports of the use cases over these models, and the faults that strike at them.
//! - [`simulation`]: whole histories. Webhooks are delivered, executions are played by the real definition
//!   with the real use cases as their function, machines boot, work and die.
//! - [`janitor`]: the registration janitor's own world, with machines in several regions.
//! - [`invariants`]: what must hold in every history, and at its end.
//! - [`measure`]: bursts against the limits of GitHub and AWS, and how work grows.
//! - [`campaign`]: random histories in great number; the program `ostler-sim` plays them.
//!
//! A test makes the weather, posts jobs, lets the history run to its rest, and asks for violations.

pub mod campaign;
pub mod ec2;
pub mod github;
pub mod invariants;
pub mod janitor;
pub mod measure;
pub mod queue;
pub mod simulation;
pub mod world;
