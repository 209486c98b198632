//! How long an invocation may go on. Lambda's time-outs are real, also where the world's clock is stretched.

use std::time::Duration;

use crate::clock::since_1970;

/// Time kept for returning what was not done.
const MARGIN: Duration = Duration::from_secs(10);

/// The same in functions that have no more than [`SHORT`] in all.
const MARGIN_SHORT: Duration = Duration::from_secs(3);

/// Functions up to this time-out keep the smaller margin: ten seconds would be most of what they have.
const SHORT: Duration = Duration::from_secs(30);

/// When the invocation is killed, and how long before that no new work is begun.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Real time since 1970.
    at: Duration,
    margin: Duration,
}

impl Deadline {
    /// From the runtime's deadline, in milliseconds since 1970, at the start of an invocation.
    pub fn starting_now(deadline_millis: u64) -> Self {
        Self::new(Duration::from_millis(deadline_millis), since_1970())
    }

    fn new(at: Duration, now: Duration) -> Self {
        let margin = if at.saturating_sub(now) <= SHORT { MARGIN_SHORT } else { MARGIN };
        Self { at, margin }
    }

    /// Time left; zero once it is past.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_sub(since_1970())
    }

    /// Whether new work may be begun; if not, what is left is returned as not done.
    pub fn allows_new_work(&self) -> bool {
        self.remaining() > self.margin
    }
}

/// What is known of one invocation besides its event.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Lambda's id of it.
    pub request_id: String,
    /// When it has to be over.
    pub deadline: Deadline,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_seconds(seconds: u64) -> Deadline {
        let now = since_1970();
        Deadline::new(now + Duration::from_secs(seconds), now)
    }

    #[test]
    fn new_work_stops_ten_seconds_before_the_end_and_three_in_short_functions() {
        assert_eq!(in_seconds(60).margin, MARGIN);
        assert_eq!(in_seconds(30).margin, MARGIN_SHORT);
        assert!(in_seconds(60).allows_new_work() && in_seconds(15).allows_new_work());
        assert!(!in_seconds(2).allows_new_work());
        let long = Deadline { margin: MARGIN, ..in_seconds(9) };
        assert!(!long.allows_new_work(), "nine seconds of a long function are for returning");
    }

    #[test]
    fn a_deadline_in_the_past_leaves_nothing() {
        let past = Deadline::starting_now(0);
        assert_eq!(past.remaining(), Duration::ZERO);
        assert!(!past.allows_new_work());
    }
}
