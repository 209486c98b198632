//! Labels of jobs and runners. GitHub compares them without regard to case.

use std::fmt;

/// The label that every self-hosted runner has unless its operator turned the implied labels off.
pub const SELF_HOSTED: &str = "self-hosted";

/// A set of labels in the order in which they were given, without empty ones and repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<String>);

impl Labels {
    /// From labels in any case; blanks around them are cut, empty ones and repetitions dropped.
    pub fn new<S: AsRef<str>>(labels: impl IntoIterator<Item = S>) -> Self {
        let mut kept = Self::default();
        for label in labels {
            let label = label.as_ref().trim();
            if !label.is_empty() && !kept.has(label) {
                kept.0.push(label.to_owned());
            }
        }
        kept
    }

    /// From one comma-joined text, as executions carry them.
    pub fn from_joined(text: &str) -> Self {
        Self::new(text.split(','))
    }

    /// Whether `label` is among them.
    pub fn has(&self, label: &str) -> bool {
        self.0.iter().any(|own| own.to_lowercase() == label.to_lowercase())
    }

    /// Whether a runner with these labels can run a job that asks for `wanted`.
    pub fn cover(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|label| self.has(label))
    }

    /// As [`Labels::cover`], for a runner of another system, where `self-hosted` is implied though not
    /// written down.
    pub fn cover_foreign(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|label| label.eq_ignore_ascii_case(SELF_HOSTED) || self.has(label))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The labels, as given.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Comma-joined, as executions carry them.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_entries_and_repetitions_do_not_count() {
        let labels = Labels::from_joined("linux,, X64 ,Linux,x64,");
        assert_eq!(labels.to_string(), "linux,X64");
        assert!(labels.cover(&Labels::from_joined(",,")));
    }

    proptest! {
        #[test]
        fn case_and_order_never_decide(mut labels in proptest::collection::vec("[a-zA-Z0-9-]{1,8}", 1..8)) {
            let own = Labels::new(&labels);
            labels.reverse();
            let wanted = Labels::new(labels.iter().map(|label| label.to_uppercase()));
            prop_assert!(own.cover(&wanted));
            prop_assert_eq!(own.len(), wanted.len());
        }

        #[test]
        fn one_label_too_many_is_not_covered(labels in proptest::collection::vec("[a-z]{1,8}", 0..8)) {
            let own = Labels::new(&labels);
            let wanted = Labels::new(labels.iter().map(String::as_str).chain(["0-not-there"]));
            prop_assert!(!own.cover(&wanted));
        }
    }
}
