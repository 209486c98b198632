//! ostler-lambda
