//! ostler-github
