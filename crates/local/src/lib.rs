//! The local world: everything Ostler meets in AWS and at GitHub, as processes on loopback.

pub mod aws;
pub mod bench;
pub mod chaos;
pub mod crowd;
pub mod demo;
pub mod deploy;
pub mod ec2;
pub mod edge;
pub mod github;
pub mod instances;
pub mod lambda_host;
pub mod moto;
pub mod process;
pub mod queues;
pub mod time;
pub mod world;
pub mod xml;
