//! Labels of jobs and runners. GitHub compares them without regard to case.

use std::fmt;

/// The label that every self-hosted runner has unless its operator turned the implied labels off.
pub const SELF_HOSTED: &str = "self-hosted";

/// Most labels of a runner, and so of a job that any runner can run (docs.github.com, generate-jitconfig: 1 to
/// 100).
pub const MAX_LABELS: usize = 100;

/// Longest label, in bytes.
pub const MAX_LABEL: usize = 256;

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

    /// These, and those of `more` that are not among them.
    pub fn with(&self, more: &Self) -> Self {
        Self::new(self.iter().chain(more.iter()))
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
        assert!(Labels::from_joined(" ,,").is_empty() && !labels.is_empty());
        assert_eq!(labels.iter().collect::<Vec<_>>(), ["linux", "X64"]);
    }

    fn labels() -> impl Strategy<Value = Labels> {
        let label =
            prop_oneof![4 => "[a-cA-C]{1,2}", 1 => Just(SELF_HOSTED.to_owned()), 1 => ".{0,6}"];
        proptest::collection::vec(label, 0..6).prop_map(Labels::new)
    }

    /// The same labels, spelled otherwise.
    fn respelled(labels: &Labels) -> Labels {
        let swapped = |label: &str| -> String {
            let swap = |c: char| match c.is_ascii_lowercase() {
                true => c.to_ascii_uppercase(),
                false => c.to_ascii_lowercase(),
            };
            label.chars().map(swap).collect()
        };
        Labels::new(labels.iter().map(swapped))
    }

    fn both(a: &Labels, b: &Labels) -> Labels {
        Labels::new(a.iter().chain(b.iter()))
    }

    proptest! {
        #[test]
        fn cover_is_reflexive(own in labels()) {
            prop_assert!(own.cover(&own) && own.cover_foreign(&own));
            prop_assert!(own.cover(&Labels::default()) && own.cover_foreign(&Labels::default()));
        }

        #[test]
        fn cover_is_monotone_in_what_is_available_and_in_what_is_wanted(
            own in labels(), more in labels(), wanted in labels(),
        ) {
            for cover in [Labels::cover, Labels::cover_foreign] {
                if cover(&own, &wanted) {
                    prop_assert!(cover(&both(&own, &more), &wanted), "more labels cover no less");
                }
                if cover(&own, &both(&wanted, &more)) {
                    prop_assert!(cover(&own, &wanted), "less is covered too");
                }
                prop_assert_eq!(
                    cover(&own, &both(&wanted, &more)),
                    cover(&own, &wanted) && cover(&own, &more)
                );
            }
            prop_assert!(!own.cover(&wanted) || own.cover_foreign(&wanted));
        }

        #[test]
        fn cover_is_blind_to_case(own in labels(), wanted in labels()) {
            for cover in [Labels::cover, Labels::cover_foreign] {
                let plain = cover(&own, &wanted);
                prop_assert_eq!(cover(&respelled(&own), &wanted), plain);
                prop_assert_eq!(cover(&own, &respelled(&wanted)), plain);
            }
        }

        #[test]
        fn self_hosted_is_free_for_runners_of_other_systems_alone(own in labels(), wanted in labels()) {
            let own = Labels::new(own.iter().filter(|label| !label.eq_ignore_ascii_case(SELF_HOSTED)));
            let more = both(&wanted, &Labels::new([SELF_HOSTED.to_uppercase()]));
            prop_assert!(!own.cover(&more));
            prop_assert_eq!(own.cover_foreign(&more), own.cover_foreign(&wanted));
        }

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
