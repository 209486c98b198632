//! Time as the domain sees it: instants in milliseconds since 1970, always handed in, never read.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// An instant, in milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// From seconds since 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Milliseconds since 1970.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Reads an RFC 3339 text (`2026-11-30T12:00:00Z`, any offset and fraction, as GitHub, AWS and
    /// their emulators write it). `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text.trim()).ok().map(|at| Self(at.timestamp_millis()))
    }

    /// How long ago `earlier` was; zero if it is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(after.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(before.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// RFC 3339 in UTC to the second: `2026-11-30T12:00:00Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp_millis(self.0) {
            Some(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::Secs, true)),
            None => write!(f, "{} ms", self.0),
        }
    }
}

/// Reads a duration with a unit, as the configuration writes it: `90s`, `5m`, `6h`, `2d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_read_as_github_aws_and_emulators_write_them() {
        let at = Timestamp::parse("2026-11-30T12:00:00Z");
        assert_eq!(at, Timestamp::parse("2026-11-30T12:00:00.000Z"));
        assert_eq!(at, Timestamp::parse("2026-11-30T14:00:00.000000+02:00"));
        assert_eq!(at.map(|at| at.to_string()).as_deref(), Some("2026-11-30T12:00:00Z"));
        assert_eq!(Timestamp::parse("yesterday"), None);
    }

    #[test]
    fn seconds_are_whole_and_rounded_down() {
        assert_eq!(Timestamp::from_millis(90_999).seconds(), 90);
        assert_eq!(Timestamp::from_millis(-1).seconds(), -1);
        assert_eq!(Timestamp::from_seconds(90).millis(), 90_000);
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse_duration("6h"), Some(Duration::from_secs(21_600)));
        for bad in ["", "5", "m", "-5m", "5 minutes", "5é", "99999999999999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
