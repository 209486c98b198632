//! ostler-sim
