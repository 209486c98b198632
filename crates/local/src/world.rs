//! The whole local world: moto, the edge, a GitHub server and instances, started and ended together.
