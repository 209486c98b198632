//! The domain of Ostler: types, decisions, ports and use cases. No AWS, no HTTP, no clock of its own.

pub mod time;
