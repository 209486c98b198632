//! A burst as the design of an established peer, cdk-github-runners 0.17, meets it. This is a model, and labelled so
//! wherever it is told: its calls follow from its documentation and from what its handlers were seen to call; nothing of
//! its own runs here.
//!
//! Each job: the webhook starts an execution; the execution gets a registration token from GitHub (a POST, 5 points of the
//! same 900 a minute as a registration of ours, by its one App), and buys one machine by `RunInstances`, which has a bucket
//! of its own; the machine registers itself. If GitHub or EC2 refuses, the next subnet is tried at once where that helps,
//! and then the whole attempt is made again after 1 minute, doubled each time up to 15, with full jitter.

use std::collections::{BTreeMap, BinaryHeap};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::burst::Burst;
use super::{Bucket, arrival, percentiles};
use crate::ec2::Rate;

/// `RunInstances` (EC2 Developer Guide, "Request throttling").
const RUN_INSTANCES: Rate = Rate { burst: 5.0, per_second: 2.0 };

/// Subnets that it tries one after the other; ours are tried in one call.
const SUBNETS: u32 = 2;

/// Registration tokens in a minute by one App.
const TOKENS_PER_MINUTE: usize = 180;

/// Calls until a token is asked for, and until a machine is bought: as many as ours there, at the same latency.
const CALLS: [u32; 2] = [4, 2];

/// From the machine's user data to a runner that listens, s: its registration and its start, as ours takes for the claim
/// and the start.
const START_UP_S: f64 = 3.0;

/// The longest pauses between attempts, s.
const PAUSES_S: (f64, f64) = (60.0, 900.0);

/// What became of the burst in the model.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// Jobs.
    pub jobs: usize,
    /// From the first job until 50 %, 95 % and all of the jobs had a runner online, s.
    pub online_s: [f64; 3],
    /// Calls refused for a limit.
    pub limited: BTreeMap<&'static str, u64>,
    /// Attempts beyond each job's first.
    pub repeated: u64,
}

/// What a job does next, ordered by time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    /// Milliseconds from the beginning.
    at: std::cmp::Reverse<u64>,
    job: std::cmp::Reverse<usize>,
    attempt: u32,
}

/// Plays the model of it.
#[must_use]
pub fn play(burst: &Burst) -> PeerReport {
    let mut rng = StdRng::seed_from_u64(burst.seed);
    let mut due: BinaryHeap<Due> = (0..burst.jobs)
        .map(|job| {
            let at = arrival(job, burst.jobs, burst.over).as_millis();
            let at = std::cmp::Reverse(u64::try_from(at).unwrap_or(u64::MAX));
            Due { at, job: std::cmp::Reverse(job), attempt: 0 }
        })
        .collect();
    let [mut requests, mut machines] = [RUN_INSTANCES, burst.ec2.launch].map(Bucket::new);
    let mut window = (0.0, 0);
    let mut report =
        PeerReport { jobs: burst.jobs, online_s: [0.0; 3], limited: BTreeMap::new(), repeated: 0 };
    let mut online = Vec::new();
    while let Some(Due { at, job, attempt }) = due.pop() {
        let [latency, boot] = [burst.latency, burst.boot].map(|span| {
            rng.random_range(span.least.as_secs_f64()..=span.most.as_secs_f64().max(1e-9))
        });
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of some hours")]
        let now = at.0 as f64 / 1000.0 + latency * f64::from(CALLS[0]);
        // GitHub's minute, as the model of GitHub counts it for both sides.
        if now - window.0 >= 60.0 {
            window = (now, 0);
        }
        window.1 += 1;
        let token = window.1 <= TOKENS_PER_MINUTE;
        let now = now + latency * f64::from(CALLS[1]);
        let bought = token
            && (0..SUBNETS).any(|_| {
                let taken = requests.take(now) && machines.take(now);
                if !taken {
                    *report.limited.entry("RunInstances").or_default() += 1;
                }
                taken
            });
        if bought {
            online.push(now + boot + START_UP_S);
            continue;
        }
        if !token {
            *report.limited.entry("registration tokens").or_default() += 1;
        }
        report.repeated += 1;
        let (first, most) = PAUSES_S;
        let longest = (first * 2f64.powi(i32::try_from(attempt).unwrap_or(i32::MAX))).min(most);
        let again = now + longest * rng.random::<f64>();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "milliseconds of some hours"
        )]
        let again = std::cmp::Reverse((again * 1000.0) as u64);
        due.push(Due { at: again, job, attempt: attempt + 1 });
    }
    report.online_s = percentiles(online);
    report
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ec2::{Span, Throttle};

    #[test]
    fn what_no_limit_holds_up_is_a_boot_and_what_one_does_comes_later() {
        let burst = |jobs| Burst {
            jobs,
            over: Duration::from_secs(10),
            apps: 1,
            tiers: 1,
            latency: Span { least: Duration::from_millis(10), most: Duration::from_millis(60) },
            boot: Span::seconds(18, 40),
            ec2: Throttle::default(),
            seed: 1,
        };
        let few = play(&burst(5));
        assert!(few.limited.is_empty() && few.repeated == 0, "{few:?}");
        assert!(few.online_s[2] < 60.0, "{few:?}");
        let many = play(&burst(500));
        assert!(many.limited["RunInstances"] > 100, "{many:?}");
        // 5 at once and 2 a second: 500 take four minutes at the least.
        assert!(many.online_s[2] > 240.0, "{many:?}");
    }
}
