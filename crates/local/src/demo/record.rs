//! What a demo run was seen to do, and what of it breaks a promise.

use std::collections::BTreeMap;

use ostler_core::time::Timestamp;
use serde::Serialize;

use super::scenario::RUBBISH;

/// What the scenario wants to see of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is accepted and runs.
    Served,
    /// Its event is lost: the reconciler has it sent again, or finds the job, and it runs.
    Recovered,
    /// It is refused, with these words in the answer.
    Refused(&'static str),
    /// It is cancelled before it starts.
    Cancelled,
    /// Its first runner is lost, and it runs on the replacement.
    Replaced,
    /// As [`Expected::Replaced`], unless another runner happens to come free for it first.
    PerhapsReplaced,
    /// Its own runner and three replacements are taken by others: nothing more is started within the hour; then the
    /// reconciler looks at it, and it is served.
    UsedUp,
    /// It takes a runner that was started for another job; nothing is started for it.
    Thief,
    /// It is served, and one runner is started for it, whatever a hostile job says of that.
    Undisturbed,
}

impl Expected {
    /// Replacements that are started for such a job.
    const fn replacements(self) -> u64 {
        match self {
            Self::Replaced | Self::PerhapsReplaced => 1,
            Self::UsedUp => 4,
            Self::Served
            | Self::Recovered
            | Self::Undisturbed
            | Self::Refused(_)
            | Self::Cancelled
            | Self::Thief => 0,
        }
    }
}

/// One job of the scenario, with the instants at which things were first seen.
#[derive(Clone, Debug)]
pub struct JobRecord {
    /// Its id at GitHub.
    pub id: u64,
    /// `owner/name`.
    pub repository: String,
    /// What it asked for, comma-joined.
    pub labels: String,
    /// The part of the scenario that it belongs to.
    pub part: &'static str,
    /// What is wanted.
    pub expected: Expected,
    /// When it was posted.
    pub queued: Timestamp,
    /// When its execution was first seen.
    pub launching: Option<Timestamp>,
    /// When its runner connected.
    pub online: Option<Timestamp>,
    /// When it began to run.
    pub running: Option<Timestamp>,
    /// When it was over.
    pub done: Option<Timestamp>,
    /// The runner it ran on.
    pub runner: Option<String>,
    /// How it ended at GitHub.
    pub conclusion: Option<String>,
    /// Executions started for it.
    pub executions: u64,
    /// What the webhook answered to its `queued` deliveries: status and words.
    pub answers: Vec<(u16, String)>,
}

impl JobRecord {
    /// Whether the webhook took it, or the reconciler.
    pub fn accepted(&self) -> bool {
        let found = self.expected == Expected::Recovered && self.running.is_some();
        found || self.answers.iter().any(|(status, _)| *status == 202)
    }

    /// The runner that the webhook started for it.
    pub fn started(&self) -> Option<String> {
        let accepted = self.answers.iter().find(|(status, _)| *status == 202);
        accepted.map(|(_, runner)| runner.clone())
    }

    /// Whether nothing more will happen to it.
    pub fn is_over(&self) -> bool {
        self.done.is_some() || !self.waits()
    }

    fn waits(&self) -> bool {
        let wanted = self.accepted() || self.expected == Expected::Recovered;
        wanted && self.done.is_none()
    }
}

/// Jobs by fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobCounts {
    /// Made at GitHub.
    pub posted: usize,
    /// Answered 202.
    pub accepted: usize,
    /// Answered 200 with a reason.
    pub refused: usize,
    /// Ran on a runner of ours.
    pub served: usize,
    /// Cancelled before they ran.
    pub cancelled: usize,
    /// Accepted and not over.
    pub waiting: usize,
}

/// One surplus runner per this many accepted jobs is no violation. Where the report of a job comes later
/// than three minutes after its runner's end, the surplus runner is preferred to a job that waits; and in a
/// world that plays a minute in two seconds, one slow answer is that late. A surplus runner ends as idle.
const JOBS_PER_SURPLUS: u64 = 10;

/// Runners by fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunnerCounts {
    /// Executions started.
    pub started: u64,
    /// Of them, in place of runners that other jobs took, or that died.
    pub replacements: u64,
    /// Of them, for no job in particular.
    pub warm: u64,
    /// Of the replacements, those that nobody needed, because a report came too late.
    pub surplus: u64,
    /// Instances, registrations, handoff items and executions that are left.
    pub left_behind: usize,
}

/// Waiting time of served jobs, in world seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QueueSeconds {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
}

/// The run in figures: `summary.json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Jobs by fate.
    pub jobs: JobCounts,
    /// Runners by fate.
    pub runners: RunnerCounts,
    /// AWS calls: function, `service:Action`, count.
    pub calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// Calls to GitHub by `METHOD path template`.
    pub github_calls: BTreeMap<String, u64>,
    /// What was counted, by metric; stolen runners also by what came of it.
    pub metrics: BTreeMap<String, f64>,
    /// States entered and retries, per served job.
    pub transitions_per_job: f64,
    /// From queued to running.
    pub queue_seconds: QueueSeconds,
    /// Promises that did not hold; empty if all did.
    pub violations: Vec<String>,
}

/// What was found when everything should have been over.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Instances that are not terminated.
    pub instances: Vec<String>,
    /// Registrations at GitHub.
    pub registrations: Vec<String>,
    /// Items in the handoff table.
    pub handoffs: Vec<String>,
    /// Executions that run.
    pub executions: Vec<String>,
    /// Executions that ended otherwise than well.
    pub failed: Vec<String>,
    /// Executions in all.
    pub executions_started: u64,
    /// Of them, for no job in particular.
    pub warm_started: u64,
    /// What the ledger says of a runner, and GitHub does not.
    pub untrue: Vec<String>,
    /// States entered and retries of all executions.
    pub transitions: u64,
    /// Where a secret was found: `<where>: <which>`.
    pub leaks: Vec<String>,
    /// A forged delivery: the status it was answered with, and the AWS calls that followed from it.
    pub forged_status: Option<u16>,
}

impl Remains {
    /// What should have been gone: what it is, and its name.
    fn left_behind(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let kinds = [
            ("instance", &self.instances),
            ("registration", &self.registrations),
            ("handoff item", &self.handoffs),
            ("execution", &self.executions),
        ];
        kinds.into_iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, name)))
    }

    /// What of it breaks a promise, whatever was played: I5, I7 and I9.
    pub fn broken(&self) -> Vec<String> {
        let left = self.left_behind().map(|(kind, name)| format!("I5: {kind} left behind: {name}"));
        let untrue = self.untrue.iter().map(|untrue| format!("I7: {untrue}"));
        let leaks = self.leaks.iter().map(|leak| format!("I9: secret found in {leak}"));
        left.chain(untrue).chain(leaks).collect()
    }
}

/// What was counted in a run.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// See [`Summary::calls`].
    pub calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// See [`Summary::github_calls`].
    pub github_calls: BTreeMap<String, u64>,
    /// See [`Summary::metrics`].
    pub metrics: BTreeMap<String, f64>,
}

/// What the scenario's troubles are counted by: metric, at least how often, and what it shows.
const TROUBLES: [(&str, f64, &str); 11] = [
    (STOLEN_REPLACED, 1.0, "no theft was found by a report"),
    ("ReplacementStarted", 4.0, "four runners were lost for good"),
    ("ReplacementsUsedUp", 1.0, "the last of four thefts was not told of"),
    ("WarmRunnerTaken", 1.0, "a warm runner took a job, and nobody said so"),
    ("ReportUnparsable", 1.0, "lines that can't be read were not counted"),
    ("ReportUnusable", RUBBISH.len() as f64, "messages that are no reports were not counted"),
    ("DeliveryUnreadable", 1.0, "a log delivery that can't be read was not counted"),
    ("DeliveryRedelivered", 2.0, "no one had the lost events sent again"),
    ("JobDiscovered", 1.0, "the job whose event was never sent was not found"),
    ("SpotInterrupted", 1.0, "nobody heard that EC2 takes a machine back"),
    ("RegistrationDeleted", 1.0, "no janitor removed the registration that was left behind"),
];

/// What the name of the first runner ends with that the reconciler starts for a job that had one.
const LATER: &str = "-q1";

/// [`Summary::metrics`]: stolen runners that were replaced.
const STOLEN_REPLACED: &str = "StolenRunnerDetected, Replaced true";

/// Sums up a run and judges it by the design's promises I1 to I9.
pub fn sum_up(jobs: &[JobRecord], remains: &Remains, counts: Counts) -> Summary {
    let served = |job: &&JobRecord| {
        job.expected != Expected::Thief && job.conclusion.as_deref() == Some("success")
    };
    let mut waits: Vec<f64> = jobs
        .iter()
        .filter(served)
        .filter_map(|job| job.running.map(|at| at.since(job.queued).as_secs_f64()))
        .collect();
    waits.sort_by(f64::total_cmp);
    let served = jobs.iter().filter(served).count();
    let mut summary = Summary {
        jobs: JobCounts {
            posted: jobs.len(),
            accepted: jobs.iter().filter(|job| job.accepted()).count(),
            refused: jobs
                .iter()
                .filter(|job| matches!(job.expected, Expected::Refused(_)) && !job.accepted())
                .count(),
            served,
            cancelled: jobs
                .iter()
                .filter(|job| job.conclusion.as_deref() == Some("cancelled"))
                .count(),
            waiting: jobs.iter().filter(|job| job.waits()).count(),
        },
        runners: RunnerCounts {
            started: remains.executions_started,
            replacements: jobs.iter().map(|job| job.executions.saturating_sub(1)).sum(),
            warm: remains.warm_started,
            surplus: jobs
                .iter()
                .map(|job| job.executions.saturating_sub(1 + job.expected.replacements()))
                .sum(),
            left_behind: remains.left_behind().count(),
        },
        calls: counts.calls,
        github_calls: counts.github_calls,
        metrics: counts.metrics,
        #[allow(clippy::cast_precision_loss, reason = "counts of a demo")]
        transitions_per_job: (remains.transitions as f64 / served.max(1) as f64 * 100.0).round()
            / 100.0,
        queue_seconds: QueueSeconds { p50: percentile(&waits, 50), p95: percentile(&waits, 95) },
        violations: Vec::new(),
    };
    summary.violations = violations(jobs, remains, &summary);
    summary
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).map_or(0.0, |value| (value * 10.0).round() / 10.0)
}

fn violations(jobs: &[JobRecord], remains: &Remains, summary: &Summary) -> Vec<String> {
    let mut broken = Vec::new();
    for job in jobs {
        let what = format!("job {} ({}, {})", job.id, job.repository, job.part);
        match job.expected {
            Expected::Served
            | Expected::Recovered
            | Expected::Undisturbed
            | Expected::Replaced
            | Expected::PerhapsReplaced => {
                if job.conclusion.as_deref() != Some("success") {
                    broken.push(format!("I2: {what} was not served: {:?}", job.conclusion));
                }
                let wanted = 1 + job.expected.replacements();
                if job.executions < wanted && job.expected != Expected::PerhapsReplaced {
                    let got = job.executions;
                    broken.push(format!("I2: {what} got {got} runners, and needed {wanted}"));
                }
                if job.executions > 4 {
                    broken.push(format!("I3: {what} got {} runners", job.executions));
                }
                if job.executions > 1 && job.expected == Expected::Undisturbed {
                    broken
                        .push(format!("I7: {what} got {} runners by forged lines", job.executions));
                }
            }
            Expected::UsedUp => {
                let later = job.runner.as_ref().is_some_and(|name| name.ends_with(LATER));
                if !later || job.executions != 5 || job.conclusion.as_deref() != Some("success") {
                    broken.push(format!(
                        "I3: {what} was to lose four runners, and no more, and to be served by one of the next \
                         hour: {} runners, {:?} on {:?}",
                        job.executions, job.conclusion, job.runner
                    ));
                }
            }
            Expected::Thief => {
                if job.executions > 0 || !job.answers.is_empty() || job.running.is_none() {
                    broken
                        .push(format!("{what} was to take a runner, and no one to be told of it"));
                }
            }
            Expected::Refused(words) => {
                if job.accepted() || job.executions > 0 {
                    broken.push(format!("{what} was accepted, and should have been refused"));
                } else if !job
                    .answers
                    .iter()
                    .any(|(status, said)| *status == 200 && said.contains(words))
                {
                    broken.push(format!(
                        "{what} was refused without the reason \"{words}\": {:?}",
                        job.answers
                    ));
                }
            }
            Expected::Cancelled => {
                if job.conclusion.as_deref() != Some("cancelled") || job.running.is_some() {
                    broken.push(format!("{what} was not cancelled before it ran"));
                }
            }
        }
        if job.waits() {
            broken.push(format!("I2: {what} waits for ever"));
        }
    }
    let accepted = u64::try_from(summary.jobs.accepted).unwrap_or(u64::MAX);
    let (started, replacements) = (summary.runners.started, summary.runners.replacements);
    let warm = summary.runners.warm;
    if started != accepted + replacements + warm {
        broken.push(format!(
            "I3: {started} runners for {accepted} accepted jobs, {replacements} replacements and {warm} warm ones"
        ));
    }
    if summary.runners.surplus > accepted.div_ceil(JOBS_PER_SURPLUS) {
        let surplus = summary.runners.surplus;
        broken.push(format!("I1, I3: {surplus} runners that nobody needed, for {accepted} jobs"));
    }
    broken.extend(remains.broken());
    broken.extend(remains.failed.iter().map(|name| format!("execution failed: {name}")));
    if remains.forged_status != Some(401) {
        broken.push(format!(
            "a delivery with a bad signature was answered {:?}, not 401",
            remains.forged_status
        ));
    }
    for (metric, least, says) in TROUBLES {
        let counted = summary.metrics.get(metric).copied().unwrap_or_default();
        if counted < least {
            broken.push(format!("{metric} was counted {counted} times, not {least}: {says}"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(expected: Expected) -> JobRecord {
        let at = Timestamp::from_seconds;
        JobRecord {
            id: 7,
            repository: "acme/widgets".into(),
            labels: "self-hosted".into(),
            part: "single",
            expected,
            queued: at(0),
            launching: Some(at(1)),
            online: Some(at(40)),
            running: Some(at(50)),
            done: Some(at(90)),
            runner: Some("widgets-7".into()),
            conclusion: Some("success".into()),
            executions: 1,
            answers: vec![(202, "widgets-7".into())],
        }
    }

    fn remains() -> Remains {
        Remains {
            executions_started: 1,
            transitions: 8,
            forged_status: Some(401),
            ..Remains::default()
        }
    }

    fn counts() -> Counts {
        let metrics = TROUBLES.iter().map(|(metric, least, _)| ((*metric).to_owned(), *least));
        Counts { metrics: metrics.collect(), ..Counts::default() }
    }

    fn judge(job: JobRecord, remains: &Remains) -> Vec<String> {
        sum_up(&[job], remains, counts()).violations
    }

    #[test]
    fn a_good_run_breaks_nothing() {
        let summary = sum_up(&[job(Expected::Served)], &remains(), counts());
        assert_eq!(summary.violations, Vec::<String>::new());
        assert_eq!((summary.jobs.served, summary.queue_seconds.p50), (1, 50.0));
    }

    #[test]
    fn every_promise_is_watched() {
        let waiting = JobRecord { done: None, conclusion: None, ..job(Expected::Served) };
        assert!(judge(waiting, &remains()).iter().any(|broken| broken.contains("waits for ever")));
        let thrice = JobRecord { executions: 3, ..job(Expected::Served) };
        assert!(judge(thrice, &remains()).iter().any(|broken| broken.starts_with("I1")));
        let replaced = JobRecord { expected: Expected::Replaced, ..job(Expected::Served) };
        assert!(judge(replaced, &remains()).iter().any(|broken| broken.contains("needed 2")));
        let later = JobRecord {
            executions: 5,
            runner: Some("widgets-7-q1".into()),
            ..job(Expected::UsedUp)
        };
        let five = Remains { executions_started: 5, ..remains() };
        assert_eq!(judge(later.clone(), &five), Vec::<String>::new());
        for wrong in [
            JobRecord { executions: 6, ..later.clone() },
            JobRecord { runner: Some("widgets-7-r3".into()), ..later.clone() },
            JobRecord { conclusion: None, ..later },
        ] {
            assert!(judge(wrong, &five).iter().any(|broken| broken.contains("and no more")));
        }
        assert!(judge(job(Expected::Thief), &remains()).iter().any(|it| it.contains("to be told")));
        let surplus = Remains { executions_started: 2, ..remains() };
        assert!(
            judge(job(Expected::Served), &surplus).iter().any(|broken| broken.starts_with("I3"))
        );
        let warm = Remains { warm_started: 1, ..surplus.clone() };
        assert_eq!(judge(job(Expected::Served), &warm), Vec::<String>::new());
        let plagued = JobRecord { executions: 2, ..job(Expected::Undisturbed) };
        assert!(judge(plagued, &surplus).iter().any(|broken| broken.starts_with("I7")));
        let untrue = Remains { untrue: vec!["w ran job 9".into()], ..remains() };
        assert!(judge(job(Expected::Served), &untrue).iter().any(|it| it == "I7: w ran job 9"));
        let unseen = sum_up(&[job(Expected::Served)], &remains(), Counts::default()).violations;
        assert_eq!(unseen.len(), TROUBLES.len(), "{unseen:?}");
        let left = Remains { instances: vec!["i-1".into()], ..remains() };
        assert!(judge(job(Expected::Served), &left).iter().any(|broken| broken.starts_with("I5")));
        let leak = Remains { leaks: vec!["a log: the key".into()], ..remains() };
        assert!(judge(job(Expected::Served), &leak).iter().any(|broken| broken.starts_with("I9")));
        assert!(!judge(job(Expected::Refused("public")), &remains()).is_empty());
        assert!(!judge(job(Expected::Cancelled), &remains()).is_empty());
        let forged = Remains { forged_status: Some(202), ..remains() };
        assert!(!judge(job(Expected::Served), &forged).is_empty());
    }
}
