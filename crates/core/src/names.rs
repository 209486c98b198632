//! Runner names: what they are made of, and the order in which the runners of one job follow each other.
//!
//! A name is used at GitHub, for the execution and in tags. It follows from the job's id alone (with the
//! repository's name in front for people's eyes), so that any number of deliveries of one job is one
//! execution; and it holds an HMAC, so that no other job can guess it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::job::JobId;
use crate::secret::Secret;

/// The longest base name, in characters: suffixes up to `-q3-r3` then stay within GitHub's 64.
pub const MAX_BASE_NAME: usize = 56;

/// The longest runner name that GitHub takes, in characters (generate-jitconfig answers 422 above it).
pub const MAX_RUNNER_NAME: usize = 64;

/// Replacements of one generation, and generations after the first: bounds on what thefts can start.
pub const MAX_REPLACEMENTS: u8 = 3;

/// Further generations of a job's runners (`-q1` … `-q3`).
pub const MAX_REQUEUES: u8 = 3;

/// Whether `name` is one that a runner of ours, or of a system whose executions we can read, may have:
/// 1 to 64 of `[A-Za-z0-9._-]`. Anything else never reaches a queue or another service's identifier.
pub fn is_plausible(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_RUNNER_NAME
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The install's key for names, made once at set-up and never rotated.
#[derive(Clone, Debug)]
pub struct NameKey(Secret);

impl NameKey {
    /// From the parameter's text. Empty text is no key.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(Secret::new(text)))
    }

    /// The base name of a job's runners:
    /// `<repository, cut>-<job id>-<12 hex of HMAC-SHA256(key, "runner-name:" + job id)>`, at most
    /// [`MAX_BASE_NAME`] characters from `[A-Za-z0-9_-]`.
    pub fn base_name(&self, repo: &str, job: JobId) -> String {
        let tail = format!("-{job}-{}", self.tag(job));
        let room = MAX_BASE_NAME.saturating_sub(tail.len());
        let cut: String = repo
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '-' })
            .take(room)
            .collect();
        format!("{cut}{tail}")
    }

    /// Whether this install made `name` for a job.
    pub fn made(&self, name: &str) -> bool {
        let lineage = Lineage::parse(name);
        let mut parts = lineage.base.rsplitn(3, '-');
        match (parts.next(), parts.next().and_then(|id| id.parse().ok())) {
            (Some(tag), Some(job)) => tag == self.tag(JobId(job)),
            _ => false,
        }
    }

    fn tag(&self, job: JobId) -> String {
        #[allow(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.expose().as_bytes()).expect("any length");
        mac.update(format!("runner-name:{job}").as_bytes());
        hex(&mac.finalize().into_bytes()[..6])
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The first `digits` hexadecimal digits of the SHA-256 of the parts, joined by zero bytes.
pub fn fingerprint(parts: &[&str], digits: usize) -> String {
    let mut text = hex(&Sha256::digest(parts.join("\0").as_bytes()));
    text.truncate(digits);
    text
}

/// A number in `0.0..1.0` that follows from the parts: jitter that a repetition repeats.
pub fn fraction(parts: &[&str]) -> f64 {
    let digits = fingerprint(parts, 8);
    f64::from(u32::from_str_radix(&digits, 16).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

/// A runner's place among the runners of its job: base name, generation (`-q<n>`, 0 for the first) and
/// replacement (`-r<n>`, 0 for the generation's first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The name without suffixes.
    pub base: String,
    /// 0 to [`MAX_REQUEUES`].
    pub generation: u8,
    /// 0 to [`MAX_REPLACEMENTS`].
    pub replacement: u8,
}

impl Lineage {
    /// Reads any name; one without suffixes of ours is its own base.
    pub fn parse(name: &str) -> Self {
        let (rest, replacement) = split_suffix(name, "-r", MAX_REPLACEMENTS);
        let (base, generation) = split_suffix(rest, "-q", MAX_REQUEUES);
        Self { base: base.to_owned(), generation, replacement }
    }

    /// The same job's runner at another place.
    pub fn at(&self, generation: u8, replacement: u8) -> Self {
        Self { base: self.base.clone(), generation, replacement }
    }

    /// The order of a job's runners: base < r1 < r2 < r3 < q1 < q1-r1 …
    pub fn rank(&self) -> u32 {
        u32::from(self.generation) * (u32::from(MAX_REPLACEMENTS) + 1) + u32::from(self.replacement)
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        if self.generation > 0 {
            write!(f, "-q{}", self.generation)?;
        }
        if self.replacement > 0 {
            write!(f, "-r{}", self.replacement)?;
        }
        Ok(())
    }
}

fn split_suffix<'a>(name: &'a str, mark: &str, max: u8) -> (&'a str, u8) {
    if let Some((rest, digit)) = name.rsplit_once(mark)
        && digit.len() == 1
        && let Ok(number) = digit.parse::<u8>()
        && (1..=max).contains(&number)
        && !rest.is_empty()
    {
        return (rest, number);
    }
    (name, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> NameKey {
        NameKey::new("a key of a test").unwrap()
    }

    #[test]
    fn ranks_follow_the_order_of_the_design() {
        let order = ["b", "b-r1", "b-r2", "b-r3", "b-q1", "b-q1-r1", "b-q1-r3", "b-q2", "b-q3-r3"];
        let ranks: Vec<u32> = order.iter().map(|name| Lineage::parse(name).rank()).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    #[test]
    fn no_other_job_can_guess_a_name() {
        let other = NameKey::new("another install").unwrap();
        let name = key().base_name("widgets", JobId(7));
        assert_ne!(name, other.base_name("widgets", JobId(7)));
        assert!(key().made(&name) && key().made(&format!("{name}-q1-r2")));
        assert!(!other.made(&name) && !key().made("widgets-7-000000000000") && !key().made("x"));
    }

    #[test]
    fn a_name_is_plausible_by_its_length_and_by_each_character() {
        for name in ["x", "a.B_9-c", &"x".repeat(MAX_RUNNER_NAME)] {
            assert!(is_plausible(name), "{name}");
        }
        for name in ["", "a b", "a/b", "é", &"x".repeat(MAX_RUNNER_NAME + 1)] {
            assert!(!is_plausible(name), "{name}");
        }
    }

    #[test]
    fn a_fraction_is_that_of_32_bits() {
        for parts in [&["a"][..], &["a", "b"], &[]] {
            let bits = u32::from_str_radix(&fingerprint(parts, 8), 16).unwrap();
            // Exact: no more than a shift.
            assert_eq!(fraction(parts) * 2f64.powi(32), f64::from(bits));
        }
    }

    #[test]
    fn an_empty_key_is_no_key() {
        assert!(NameKey::new("  \n").is_none());
    }

    proptest! {
        #[test]
        fn names_fit_and_follow_from_the_job(repo in ".{0,120}", id in 1..i64::MAX) {
            let name = key().base_name(&repo, JobId(id));
            prop_assert!(name.len() <= MAX_BASE_NAME);
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
            let middle = format!("-{id}-");
            prop_assert!(name.contains(&middle));
            prop_assert_eq!(&name, &key().base_name(&repo, JobId(id)));
            for generation in 0..=MAX_REQUEUES {
                for replacement in 0..=MAX_REPLACEMENTS {
                    let place = Lineage::parse(&name).at(generation, replacement);
                    let text = place.to_string();
                    prop_assert!(text.len() <= MAX_RUNNER_NAME && is_plausible(&text));
                    prop_assert_eq!(Lineage::parse(&text), place);
                    prop_assert!(key().made(&text));
                }
            }
        }

        #[test]
        fn s16_a_replacement_fits_64_characters_and_keeps_its_base(
            repo in "[A-Za-z0-9._-]{1,100}", id in 1..i64::MAX,
            generation in 0..=MAX_REQUEUES, replacement in 1..=MAX_REPLACEMENTS,
        ) {
            let base = key().base_name(&repo, JobId(id));
            let name = Lineage::parse(&base).at(generation, replacement).to_string();
            prop_assert!(name.len() <= MAX_RUNNER_NAME && is_plausible(&name));
            let suffix = format!("-r{replacement}");
            prop_assert!(name.starts_with(&base) && name.ends_with(&suffix));
            // The base is cut only where the whole name of the repository would not fit.
            let cut = base.strip_suffix(&format!("-{id}-{}", key().tag(JobId(id)))).unwrap();
            prop_assert!(cut.len() == repo.len() || base.len() == MAX_BASE_NAME);
            prop_assert_eq!(cut, &repo.replace('.', "-")[..cut.len()]);
        }

        #[test]
        fn two_jobs_never_share_a_name(a in 1..i64::MAX, b in 1..i64::MAX) {
            prop_assume!(a != b);
            prop_assert_ne!(key().base_name("w", JobId(a)), key().base_name("w", JobId(b)));
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,90}") {
            let lineage = Lineage::parse(&text);
            prop_assert_eq!(lineage.to_string(), text.clone());
            key().made(&text);
        }
    }
}
