//! Whole histories.
