//! Many jobs within seconds: when each has a runner online, what was refused on the way, and the least that GitHub's limit
//! on registrations, EC2's on purchases, and a machine's boot allow.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::time::Timestamp;
use serde::Serialize;

use super::{Bucket, arrival, of_table, percentiles};
use crate::ec2::{Span, Throttle};
use crate::github::{JobSpec, RateLimits};
use crate::invariants::{Allowance, violations};
use crate::simulation::Simulation;
use crate::world::{REPOSITORY, tier};

/// Registrations that one App may make in a minute: 5 points each, of 900 (docs.github.com, "About secondary rate
/// limits").
const REGISTRATIONS_PER_MINUTE: usize = 180;

/// How long the jobs run.
const JOB: Duration = Duration::from_secs(300);

/// How often it is looked whether all is over, which takes long where there is much. Not in step with the reconciler,
/// which is at work every 300 s.
const LOOK: Duration = Duration::from_secs(247);

/// Longer than any burst takes.
const LONGEST: Duration = Duration::from_secs(40 * 3600);

/// Apps with which nothing is ever limited here: the largest number that there may be.
const MANY_APPS: usize = 50;

/// What comes.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Jobs.
    pub jobs: usize,
    /// The time in which they are queued.
    pub over: Duration,
    /// GitHub Apps that registrations are spread over.
    pub apps: usize,
    /// Tiers that the jobs are for, in turn. GitHub gives a job to any runner of its tier.
    pub tiers: usize,
    /// How long a call takes.
    pub latency: Span,
    /// How long a machine takes until its user data runs.
    pub boot: Span,
    /// EC2's limits.
    pub ec2: Throttle,
    /// Of all chance.
    pub seed: u64,
}

/// What became of it.
#[derive(Clone, Debug, Serialize)]
pub struct BurstReport {
    /// Jobs.
    pub jobs: usize,
    /// Apps.
    pub apps: usize,
    /// Tiers.
    pub tiers: usize,
    /// From the first job until 50 %, 95 % and all of the jobs had their own runner online, s.
    pub online_s: [f64; 3],
    /// The same if nothing but GitHub's limit on registrations held anything up, s.
    pub github_bound_s: [f64; 3],
    /// The same with EC2's limits on purchases too, one machine at a time, s.
    pub bound_s: [f64; 3],
    /// Calls of GitHub for a job, mean.
    pub github_calls: f64,
    /// Calls that GitHub refused for a limit.
    pub github_limited: u64,
    /// Calls that EC2 refused for a limit, by action; `launch` counts machines.
    pub ec2_limited: BTreeMap<&'static str, u64>,
    /// Jobs that did not end well.
    pub lost: usize,
    /// What must hold and did not.
    pub violations: Vec<String>,
    /// State transitions of a job, mean.
    pub transitions: f64,
    /// Calls of a job by port and method, mean.
    pub calls: BTreeMap<&'static str, f64>,
    /// The most of these calls in one second, with the documented limit.
    pub peaks: Vec<Peak>,
}

/// The busiest second.
#[derive(Clone, Debug, Serialize)]
pub struct Peak {
    /// Of what.
    pub calls: &'static str,
    /// How many.
    pub most: usize,
    /// How many there may be a second in the long run.
    pub limit: usize,
    /// Where that limit stands.
    pub source: &'static str,
}

/// Plays it, without the limits and with them.
#[must_use]
pub fn play(burst: &Burst) -> BurstReport {
    let (unhindered, _) = history(burst, false);
    let (mut played, began) = history(burst, true);
    let end = began + LONGEST;
    while !played.at_rest() && played.now() < end {
        played.run_for(LOOK);
    }
    let rested = played.at_rest();
    let online = online(&played, began);
    let alone = self::online(&unhindered, began);
    let github = bound(burst, &alone, None);
    let both = bound(burst, &alone, Some(&burst.ec2));
    let longest = Allowance { longest_wait: LONGEST, ..Allowance::NONE };
    let mut broken = violations(&played, longest);
    if !rested {
        broken.push("it did not come to rest".to_owned());
    }
    let state = played.state();
    let ended_well = |job: &&crate::github::Job| job.conclusion.as_deref() == Some("success");
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    let per_job = |count: usize| count as f64 / burst.jobs as f64;
    let mut calls: BTreeMap<&'static str, usize> = BTreeMap::new();
    for call in &state.calls {
        *calls.entry(call.name).or_default() += 1;
    }
    BurstReport {
        jobs: burst.jobs,
        apps: burst.apps,
        tiers: burst.tiers,
        online_s: percentiles(online.into_values().map(|(_, at)| at).collect()),
        github_bound_s: percentiles(github),
        bound_s: percentiles(both),
        github_calls: per_job(
            calls
                .iter()
                .filter(|(name, _)| name.starts_with("Forge."))
                .map(|(_, count)| count)
                .sum(),
        ),
        github_limited: state.github.struck().limited,
        ec2_limited: state.ec2.throttled().clone(),
        lost: burst.jobs - state.github.all_jobs().filter(ended_well).count().min(burst.jobs),
        violations: broken,
        transitions: per_job(state.executions.values().map(|it| it.transitions()).sum()),
        calls: calls.into_iter().map(|(name, count)| (name, per_job(count))).collect(),
        peaks: peaks(&state.calls),
    }
}

/// A history into which the jobs come. Without limits it has been played until all runners are online.
fn history(burst: &Burst, limited: bool) -> (Simulation, Timestamp) {
    let mut history = Simulation::new(burst.seed);
    history.judges_reports = true;
    history.reconciles = true;
    history.hears_instances = true;
    let apps = if limited { burst.apps } else { MANY_APPS };
    let manifest: Vec<_> = (1..apps)
        .map(|n| {
            serde_json::json!({"idParamName": format!("control/app-{n}/id"),
                "keyParamName": format!("control/app-{n}/key")})
        })
        .collect();
    for n in 1..apps {
        history.world.configure(&format!("control/app-{n}/id"), format!("{}", 5000 + n));
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n";
        history.world.configure(&format!("control/app-{n}/key"), key);
    }
    if apps > 1 {
        history.world.configure("control/apps", serde_json::Value::from(manifest).to_string());
    }
    {
        let mut state = history.state();
        state.latency = burst.latency;
        let github = state.github.options_mut();
        github.jit_bytes = 0;
        github.timer_grain = Duration::from_secs(5);
        // The Apps' limits add up: each call goes by the App that has most left.
        let all = RateLimits::default();
        let times = |limit: u32| limit.saturating_mul(u32::try_from(apps).unwrap_or(u32::MAX));
        github.rate_limits = limited.then(|| RateLimits {
            primary_per_hour: times(all.primary_per_hour),
            registrations_per_hour: times(all.registrations_per_hour),
            points_per_minute: times(all.points_per_minute),
            tokens_per_hour: times(all.tokens_per_hour),
            ..all
        });
        let ec2 = state.ec2.options();
        *ec2 = crate::ec2::Options {
            boot: burst.boot,
            throttle: limited.then_some(burst.ec2),
            ..crate::ec2::Options::default()
        };
    }
    let label = |n: usize| format!("tier{n}");
    let tiers: Vec<_> = (0..burst.tiers).map(|n| tier(&label(n), &[&label(n)])).collect();
    history.world.tiers(&tiers);
    let began = history.now();
    let Burst { jobs, over, .. } = *burst;
    for n in 0..jobs {
        let own = label(n % burst.tiers.max(1));
        history.after(arrival(n, jobs, over), move |history| {
            let spec = JobSpec::new(REPOSITORY, &["self-hosted", &own]);
            history.post(&JobSpec { duration: JOB, ..spec });
        });
    }
    if !limited {
        history.run_for(over + burst.boot.most + JOB);
    }
    (history, began)
}

/// By job, in the order in which they came: when it was queued, and when its own runner came online, s from the
/// beginning.
fn online(history: &Simulation, began: Timestamp) -> BTreeMap<u64, (f64, f64)> {
    let state = history.state();
    let mut found: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for machine in history.machines.values() {
        let execution = state.executions.get(&machine.runner);
        let Some((job, at)) =
            execution.and_then(crate::world::Execution::job).zip(machine.listened)
        else {
            continue;
        };
        let queued = state.github.all_jobs().find(|it| it.id == job).map(|it| it.queued_at);
        let queued = queued.unwrap_or(began).since(began).as_secs_f64();
        let at = at.since(began).as_secs_f64();
        let first = found.entry(job).or_insert((queued, at));
        first.1 = first.1.min(at);
    }
    found
}

/// When the runners could be online at the earliest: each takes as long as without any limit, from the moment at which
/// it may be registered (and bought).
fn bound(
    burst: &Burst,
    unhindered: &BTreeMap<u64, (f64, f64)>,
    ec2: Option<&Throttle>,
) -> Vec<f64> {
    let minute = burst.apps * REGISTRATIONS_PER_MINUTE;
    let mut buckets = ec2.map(|limits| [limits.change, limits.launch].map(Bucket::new));
    let mut registered: Vec<f64> = Vec::new();
    let mut online = Vec::new();
    for (queued, at) in unhindered.values() {
        let mut from = *queued;
        if let Some(earlier) = registered.len().checked_sub(minute) {
            from = from.max(registered[earlier] + 60.0);
        }
        registered.push(from);
        let mut bought = *queued;
        for bucket in buckets.iter_mut().flatten() {
            bought = bucket.wait(bought);
        }
        online.push(from.max(bought) + (at - queued));
    }
    online
}

fn peaks(calls: &[crate::world::Call]) -> Vec<Peak> {
    let most = |ours: &dyn Fn(&str) -> bool| {
        let mut seconds: BTreeMap<i64, usize> = BTreeMap::new();
        for call in calls.iter().filter(|call| ours(call.name)) {
            *seconds.entry(call.at.seconds()).or_default() += 1;
        }
        seconds.into_values().max().unwrap_or_default()
    };
    vec![
        Peak {
            calls: "StartExecution",
            most: most(&|name| name == "Executions.start"),
            limit: 300,
            source: "Step Functions guide, Quotas: us-east-1; bursts of 1,300",
        },
        Peak {
            calls: "the ledger's and the handoff's items",
            most: most(&of_table),
            limit: 4_000,
            source: "DynamoDB guide, On-demand capacity: a new table's writes",
        },
        Peak {
            calls: "updates of the pace's item",
            most: most(&|name| name == "Gate.turn"),
            limit: 1_000,
            source: "DynamoDB guide, Quotas: writes of a partition",
        },
        Peak {
            calls: "SendMessage to the report queue",
            most: most(&|name| name.starts_with("Reports.")),
            limit: 300,
            source: "SQS guide, Quotas: a FIFO queue's calls without high throughput",
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(jobs: usize, apps: usize) -> Burst {
        Burst {
            jobs,
            over: Duration::from_secs(10),
            apps,
            tiers: 10,
            latency: Span { least: Duration::from_millis(10), most: Duration::from_millis(60) },
            boot: Span::seconds(18, 40),
            ec2: Throttle::default(),
            seed: 1,
        }
    }

    #[test]
    fn ra_02_a_burst_is_online_within_a_tenth_of_the_least_that_the_limits_allow() {
        // More than GitHub lets register in a minute; the bench plays thousands.
        let report = play(&burst(200, 1));
        assert_eq!((report.lost, &report.violations), (0, &vec![]), "{report:?}");
        assert_eq!(report.github_limited, 0, "{report:?}");
        for (took, bound) in report.online_s.iter().zip(report.bound_s) {
            assert!(*took <= bound * 1.1, "{:?} and {:?}", report.online_s, report.bound_s);
        }
    }

    /// GitHub gives a job to any runner of its tier, so that in such a burst nearly every runner has another's.
    #[test]
    fn a_burst_of_one_tier_costs_each_job_few_more_calls_of_github_the_larger_it_is() {
        let [small, large] = [30, 150].map(|jobs| play(&Burst { tiers: 1, ..burst(jobs, 1) }));
        assert_eq!((large.lost, &large.violations), (0, &vec![]), "{large:?}");
        assert!(
            large.github_calls <= small.github_calls + 2.5,
            "{} and {}",
            small.github_calls,
            large.github_calls
        );
    }

    #[test]
    fn the_bound_lets_so_many_in_a_minute_as_the_apps_may_register() {
        let alone = (0..400).map(|job| (job, (0.0, 30.0))).collect();
        let bound = bound(&burst(400, 1), &alone, None);
        assert_eq!((bound[0], bound[179], bound[180], bound[360]), (30.0, 30.0, 90.0, 150.0));
        let three = super::bound(&burst(400, 3), &alone, None);
        assert!(three.iter().all(|at| *at == 30.0));
        let bought = super::bound(&burst(400, 3), &alone, Some(&Throttle::default()));
        assert_eq!((bought[49], bought[50], bought[399]), (30.0, 30.2, 100.0));
    }
}
