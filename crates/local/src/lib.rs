//! The local world: everything Ostler meets in AWS and at GitHub, as processes on loopback.

pub mod ec2;
pub mod time;
