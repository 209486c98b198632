//! What is measured under virtual time: bursts against the limits that GitHub and AWS document, and how work grows with
//! what there is. The use cases are the real ones; calls are counted, and time is the models'.
//!
//! - [`burst`]: many jobs at once, and the least time that the limits allow.
//! - [`peer`]: the same burst as the design of an established peer meets it: a model of its sequence of calls.
//! - [`growth`]: the registration janitor and the ledger by size.

pub mod burst;
pub mod growth;
pub mod peer;

use std::time::Duration;

/// Values that 50 % and 95 % of them do not exceed, and the largest; of seconds, as tables have them.
#[must_use]
pub fn percentiles(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place in a list"
        )]
        let place = (of.len() as f64 * share).ceil() as usize;
        of.get(place.saturating_sub(1)).copied().unwrap_or_default()
    };
    [at(0.5), at(0.95), at(1.0)]
}

/// Whether a call of that name, as the world counts it, is one of the ledger's table or of the handoff's.
#[must_use]
pub fn of_table(name: &str) -> bool {
    const PORTS: [&str; 7] = [
        "Ledger.",
        "Gate.",
        "Handoff.",
        "OpenJobs.",
        "ActiveRepositories.",
        "FailedDeliveries.",
        "InterruptedRuns.",
    ];
    PORTS.iter().any(|port| name.starts_with(port))
}

/// When the `n`th of `count` events comes that are spread evenly over a time.
fn arrival(n: usize, count: usize, over: Duration) -> Duration {
    let [n, count] = [n, count.max(1)].map(|it| u32::try_from(it).unwrap_or(u32::MAX));
    over * n / count
}

/// A token bucket of those who come in order: when each is let in.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: crate::ec2::Rate,
    tokens: f64,
    filled: f64,
}

impl Bucket {
    const fn new(rate: crate::ec2::Rate) -> Self {
        Self { rate, tokens: rate.burst, filled: 0.0 }
    }

    fn fill(&mut self, now: f64) {
        let more = (now - self.filled).max(0.0) * self.rate.per_second;
        self.tokens = (self.tokens + more).min(self.rate.burst);
        self.filled = self.filled.max(now);
    }

    /// Takes a token if there is one.
    fn take(&mut self, now: f64) -> bool {
        self.fill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// Waits for a token: when it is had, in seconds.
    fn wait(&mut self, now: f64) -> f64 {
        let now = now.max(self.filled);
        self.fill(now);
        let at = now + (1.0 - self.tokens).max(0.0) / self.rate.per_second;
        self.fill(at);
        self.tokens -= 1.0;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ec2::Rate;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        assert_eq!(percentiles((1..=100).rev().map(f64::from).collect()), [50.0, 95.0, 100.0]);
        assert_eq!(percentiles(vec![7.0]), [7.0; 3]);
        assert_eq!(percentiles(vec![]), [0.0; 3]);
    }

    #[test]
    fn who_waits_at_a_bucket_is_let_in_at_its_rate() {
        let mut bucket = Bucket::new(Rate { burst: 2.0, per_second: 4.0 });
        let at: Vec<f64> = (0..4).map(|_| bucket.wait(10.0)).collect();
        assert_eq!(at, [10.0, 10.0, 10.25, 10.5]);
        assert!(!bucket.take(10.5));
        assert!(bucket.take(10.75));
    }
}
