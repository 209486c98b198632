//! ostler-aws
