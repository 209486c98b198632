//! ostler-fleet
