//! Samples, what is said of them, and the budgets that they are held against.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::machine;

/// Bytes of a mebibyte.
pub const MIB: f64 = 1024.0 * 1024.0;

/// Largest zip of a function, MiB (design, section 10: what cargo-lambda makes of it must start quickly).
const ZIP_MIB: f64 = 4.0;
/// Longest start of the webhook, ms: a twelfth of the 223 ms of an established peer's handler.
const WEBHOOK_INIT_MS: f64 = 223.0 / 12.0;
/// Most resident memory of the webhook, MiB.
const WEBHOOK_MIB: f64 = 20.0;
/// Most calls of GitHub in a scan of 10,000 registrations in five groups.
const SCAN_CALLS: f64 = 105.0;
/// Most calls of AWS in it: for each list's page a look into three regions, and two batches of candidates.
const SCAN_AWS_CALLS: f64 = SCAN_CALLS * 5.0;
/// Longest such scan, ms.
const SCAN_MS: f64 = 60_000.0;
/// Most memory that such a scan takes beyond what was resident, MiB: some pages of a hundred, whatever it scans.
const SCAN_MIB: f64 = 4.0;
/// Most calls of GitHub for a job that goes well.
const GITHUB_CALLS_PER_JOB: f64 = 3.0;

/// The functions measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// `functions/webhook`.
    Webhook,
    /// `functions/orchestrator`.
    Orchestrator,
    /// `functions/stolen-runner`.
    StolenRunner,
    /// `functions/registration-janitor`.
    RegistrationJanitor,
    /// `functions/reconciler`.
    Reconciler,
}

impl Function {
    /// Those of the control plane.
    pub const CONTROL: [Self; 3] = [Self::Webhook, Self::Orchestrator, Self::StolenRunner];

    /// As its zip and its binary are named.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Orchestrator => "orchestrator",
            Self::StolenRunner => "stolen-runner",
            Self::RegistrationJanitor => "registration-janitor",
            Self::Reconciler => "reconciler",
        }
    }
}

/// The events measured, in the order in which one job brings them about; then those of runners that ran another
/// job than their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "their names below say what they are")]
pub enum Kind {
    Queued,
    QueuedAgain,
    InProgress,
    Completed,
    Cancelled,
    OtherEvent,
    Ping,
    BadSignature,
    Launch,
    Register,
    CheckBooting,
    CheckRunning,
    CheckAccounted,
    CheckGone,
    Cleanup,
    Line,
    OwnJob,
    OwnJobAgain,
    OwnJobByLine,
    ManyLines,
    NobodysRunner,
    NoSuchRun,
    Shuffled,
    NotCovered,
    TooYoung,
    Stolen,
    UsedUp,
    InvisibleFirst,
    Invisible,
    EmptyScan,
    Scan,
    Confirmation,
}

impl Kind {
    /// As figures name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued, new job",
            Self::QueuedAgain => "queued, repeated",
            Self::InProgress => "in_progress",
            Self::Completed => "completed, has run",
            Self::Cancelled => "completed, cancelled while queued",
            Self::OtherEvent => "another event",
            Self::Ping => "ping",
            Self::BadSignature => "bad signature",
            Self::Launch => "launch",
            Self::Register => "register",
            Self::CheckBooting => "check, booting",
            Self::CheckRunning => "check, running unaccounted",
            Self::CheckAccounted => "check, accounted",
            Self::CheckGone => "check, instance gone",
            Self::Cleanup => "cleanup",
            Self::Line => "delivery of a line",
            Self::OwnJob => "own job, signed (S13)",
            Self::OwnJobAgain => "own job, line after that (S13)",
            Self::OwnJobByLine => "own job, line alone (S13)",
            Self::ManyLines => "delivery of 10,000 lines",
            Self::NobodysRunner => "runner that is not ours (S9)",
            Self::NoSuchRun => "line of no such run (S12)",
            Self::Shuffled => "shuffled, covered (S14)",
            Self::NotCovered => "shuffled, not covered: replaced (S14)",
            Self::TooYoung => "job whose event may come (B16)",
            Self::Stolen => "stolen: replaced (S15)",
            Self::UsedUp => "stolen, none left: not replaced (S17)",
            Self::InvisibleFirst => "line, unseen repository, first (S12)",
            Self::Invisible => "line, unseen repository: replaced (S12)",
            Self::EmptyScan => "scan of five empty groups",
            Self::Scan => "scan of 10,000 registrations",
            Self::Confirmation => "confirmation of ten",
        }
    }

    /// Who gets it.
    pub const fn function(self) -> Function {
        match self {
            Self::Launch
            | Self::Register
            | Self::CheckBooting
            | Self::CheckRunning
            | Self::CheckAccounted
            | Self::CheckGone
            | Self::Cleanup => Function::Orchestrator,
            Self::Line
            | Self::OwnJob
            | Self::OwnJobAgain
            | Self::OwnJobByLine
            | Self::ManyLines
            | Self::NobodysRunner
            | Self::NoSuchRun
            | Self::Shuffled
            | Self::NotCovered
            | Self::TooYoung
            | Self::Stolen
            | Self::UsedUp
            | Self::InvisibleFirst
            | Self::Invisible => Function::StolenRunner,
            Self::EmptyScan | Self::Scan | Self::Confirmation => Function::RegistrationJanitor,
            _ => Function::Webhook,
        }
    }

    /// Most calls of AWS; `None` where the design sets none. A repeated delivery has to look whether its
    /// job still has a runner (design, section 6): the budget is for the first.
    const fn aws_budget(self) -> Option<f64> {
        match self {
            Self::Queued | Self::InProgress | Self::Cancelled => Some(1.0),
            Self::Completed | Self::OtherEvent | Self::Ping | Self::BadSignature => Some(0.0),
            Self::Scan => Some(SCAN_AWS_CALLS),
            _ => None,
        }
    }

    /// Whether it belongs to the life of a job that goes well.
    fn of_ordinary_job(self) -> bool {
        self <= Self::OwnJobAgain
            && !matches!(
                self,
                Self::QueuedAgain
                    | Self::Cancelled
                    | Self::OtherEvent
                    | Self::Ping
                    | Self::BadSignature
            )
    }
}

/// Calls by what was called.
pub type Calls = BTreeMap<String, u64>;

/// The samples of one kind of event.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    latency_ms: Vec<f64>,
    cpu_ms: Vec<f64>,
    grown: Vec<u64>,
    aws: Vec<Calls>,
    github: Vec<Calls>,
}

impl Samples {
    /// Notes one event. `cpu` is `None` where the system does not tell.
    pub fn note(&mut self, latency: Duration, cpu: Option<Duration>, aws: Calls, github: Calls) {
        self.latency_ms.push(ms(latency));
        self.cpu_ms.extend(cpu.map(ms));
        self.aws.push(aws);
        self.github.push(github);
    }

    /// How many were noted.
    pub fn count(&self) -> usize {
        self.latency_ms.len()
    }

    /// Notes how much more memory one event took at most than was resident before it, in bytes.
    pub fn note_growth(&mut self, bytes: u64) {
        self.grown.push(bytes);
    }

    fn report(&self, kind: Kind) -> EventReport {
        let latency = sorted(&self.latency_ms);
        EventReport {
            kind,
            event: kind.name(),
            count: latency.len(),
            p50_ms: percentile(&latency, 0.50),
            p99_ms: percentile(&latency, 0.99),
            cpu_p50_ms: (!self.cpu_ms.is_empty()).then(|| percentile(&sorted(&self.cpu_ms), 0.50)),
            grown_bytes: self.grown.iter().copied().max(),
            aws_calls: CallReport::of(&self.aws),
            github_calls: CallReport::of(&self.github),
        }
    }
}

/// Median and ends of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of at least one sample; all zero of none.
    pub fn of(samples: &[f64]) -> Self {
        let samples = sorted(samples);
        Self {
            count: samples.len(),
            median: percentile(&samples, 0.50),
            min: percentile(&samples, 0.0),
            max: percentile(&samples, 1.0),
        }
    }
}

/// Calls per event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallReport {
    /// Calls of the median event.
    pub median: f64,
    /// Calls of the event that made most.
    pub max: f64,
    /// Mean by what was called.
    pub mean_by_call: BTreeMap<String, f64>,
}

impl CallReport {
    #[allow(clippy::cast_precision_loss, reason = "a few calls, in some hundreds of events")]
    fn of(events: &[Calls]) -> Self {
        let totals: Vec<f64> =
            events.iter().map(|calls| calls.values().sum::<u64>() as f64).collect();
        let spread = Spread::of(&totals);
        let mut sums = Calls::new();
        for (call, times) in events.iter().flatten() {
            *sums.entry(call.clone()).or_default() += times;
        }
        let mean = |times: u64| times as f64 / events.len() as f64;
        let mean_by_call = sums.into_iter().map(|(call, times)| (call, mean(times))).collect();
        Self { median: spread.median, max: spread.max, mean_by_call }
    }
}

/// One kind of event.
#[derive(Clone, Debug, Serialize)]
pub struct EventReport {
    /// Which.
    #[serde(skip)]
    pub kind: Kind,
    /// Its name.
    pub event: &'static str,
    /// Events measured.
    pub count: usize,
    /// Latency of the median event, ms, the answers of the local AWS and GitHub included.
    pub p50_ms: f64,
    /// Latency of all but the slowest hundredth, ms.
    pub p99_ms: f64,
    /// The process's own work for the median event, ms of one core.
    pub cpu_p50_ms: Option<f64>,
    /// Memory that one of them took at most beyond what was resident before it, bytes; where that is measured.
    pub grown_bytes: Option<u64>,
    /// Calls of AWS, parameters apart.
    pub aws_calls: CallReport,
    /// Calls of GitHub, installation tokens apart.
    pub github_calls: CallReport,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    /// Its name.
    pub name: &'static str,
    /// Size of what is deployed; `None` where a binary was measured that nobody deploys.
    pub zip_bytes: Option<u64>,
    /// From the start of a process to its first question for work, ms.
    pub init_ms: Spread,
    /// Resident memory after all events, bytes.
    pub resident_bytes: u64,
    /// Most resident memory that it ever had, bytes.
    pub peak_bytes: u64,
    /// Events by kind.
    pub events: Vec<EventReport>,
    /// Calls that are made once in a while, not for an event, in all the measurement.
    pub apart: Calls,
}

/// A figure, and what the design allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// What was measured.
    pub what: String,
    /// The figure.
    pub measured: f64,
    /// At most this.
    pub budget: f64,
    /// `ms`, `MiB` or `calls`.
    pub unit: &'static str,
    /// Whether it is kept.
    pub ok: bool,
}

impl Budget {
    fn new(what: impl Into<String>, measured: f64, budget: f64, unit: &'static str) -> Self {
        Self { what: what.into(), measured, budget, unit, ok: measured <= budget }
    }
}

/// What is measured of one function.
#[derive(Debug, Default)]
pub struct Figures {
    /// See [`FunctionReport::zip_bytes`].
    pub zip_bytes: Option<u64>,
    /// Starts.
    pub init: Vec<Duration>,
    /// Resident and peak memory, bytes.
    pub memory: (u64, u64),
    /// Events.
    pub events: BTreeMap<Kind, Samples>,
    /// See [`FunctionReport::apart`].
    pub apart: Calls,
}

impl Figures {
    /// Resident memory of the process, whose peak is counted from now; what it was before is kept.
    pub fn weigh(&mut self, process: u32) -> Option<u64> {
        let (resident, peak) = machine::memory_of(process)?;
        self.memory.1 = self.memory.1.max(peak);
        machine::forget_peak_of(process).then_some(resident)
    }

    /// What is said of them.
    pub fn report(&self, function: Function) -> FunctionReport {
        let init: Vec<f64> = self.init.iter().copied().map(ms).collect();
        FunctionReport {
            name: function.name(),
            zip_bytes: self.zip_bytes,
            init_ms: Spread::of(&init),
            resident_bytes: self.memory.0,
            peak_bytes: self.memory.1,
            events: self
                .events
                .iter()
                .filter(|(_, samples)| !samples.latency_ms.is_empty())
                .map(|(kind, samples)| samples.report(*kind))
                .collect(),
            apart: self.apart.clone(),
        }
    }
}

/// GitHub calls of a job that goes well: those of its events, added up.
pub fn github_calls_per_job(functions: &[FunctionReport]) -> f64 {
    functions
        .iter()
        .flat_map(|function| &function.events)
        .filter(|event| event.kind.of_ordinary_job())
        .map(|event| event.github_calls.median)
        .sum()
}

/// Every figure that has a budget.
#[allow(clippy::cast_precision_loss, reason = "sizes of some megabytes")]
pub fn budgets(functions: &[FunctionReport]) -> Vec<Budget> {
    let mut budgets = Vec::new();
    for function in functions {
        let name = function.name;
        if let Some(bytes) = function.zip_bytes {
            budgets.push(Budget::new(format!("{name}: zip"), bytes as f64 / MIB, ZIP_MIB, "MiB"));
        }
        if name == Function::Webhook.name() {
            let resident = function.resident_bytes as f64 / MIB;
            budgets.extend([
                Budget::new(
                    "webhook: init, median",
                    function.init_ms.median,
                    WEBHOOK_INIT_MS,
                    "ms",
                ),
                Budget::new("webhook: resident memory", resident, WEBHOOK_MIB, "MiB"),
            ]);
        }
        for event in &function.events {
            if event.kind == Kind::Scan {
                let (calls, grown) =
                    (event.github_calls.max, event.grown_bytes.unwrap_or(0) as f64);
                let what = |what: &str| format!("{name}: {}, {what}", event.event);
                budgets.extend([
                    Budget::new(what("GitHub calls, most"), calls, SCAN_CALLS, "calls"),
                    Budget::new(what("time, p99"), event.p99_ms, SCAN_MS, "ms"),
                    Budget::new(
                        what("memory beyond what was resident"),
                        grown / MIB,
                        SCAN_MIB,
                        "MiB",
                    ),
                ]);
            }
            if let Some(budget) = event.kind.aws_budget() {
                let what = format!("{name}: AWS calls of {}, most", event.event);
                budgets.push(Budget::new(what, event.aws_calls.max, budget, "calls"));
            }
        }
    }
    let per_job = github_calls_per_job(functions);
    budgets.push(Budget::new("GitHub calls per job", per_job, GITHUB_CALLS_PER_JOB, "calls"));
    budgets
}

/// The least sample that at least `share` of all are not above (nearest rank); 0 of none.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among some hundreds"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// In ascending order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    samples
}

/// Milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(of: &[(&str, u64)]) -> Calls {
        of.iter().map(|(call, times)| ((*call).to_owned(), *times)).collect()
    }

    fn figures(kinds: &[(Kind, u64, u64)]) -> Figures {
        let mut figures = Figures { init: vec![Duration::from_millis(18)], ..Figures::default() };
        for (kind, aws, github) in kinds {
            let samples = figures.events.entry(*kind).or_default();
            let (aws, github) = (calls(&[("a:B", *aws)]), calls(&[("GET /", *github)]));
            samples.note(Duration::from_millis(2), None, aws, github);
        }
        figures
    }

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let samples: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.50), 100.0);
        assert_eq!(percentile(&samples, 0.99), 198.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.50), 0.0);
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { count: 3, median: 2.0, min: 1.0, max: 3.0 });
    }

    #[test]
    fn calls_are_told_by_median_most_and_kind() {
        let events = [calls(&[("a:B", 1)]), calls(&[("a:B", 1)]), calls(&[("a:B", 2), ("c:D", 1)])];
        let report = CallReport::of(&events);
        assert_eq!((report.median, report.max), (1.0, 3.0));
        assert_eq!(report.mean_by_call["a:B"], 4.0 / 3.0);
        assert_eq!(report.mean_by_call["c:D"], 1.0 / 3.0);
    }

    #[test]
    fn every_figure_with_a_budget_is_held_against_it() {
        let webhook =
            figures(&[(Kind::Queued, 2, 0), (Kind::Ping, 0, 0), (Kind::QueuedAgain, 4, 0)]);
        let webhook = Figures { zip_bytes: Some(5 << 20), memory: (19 << 20, 30 << 20), ..webhook };
        let orchestrator = figures(&[(Kind::Launch, 9, 0), (Kind::Register, 3, 1)]);
        let budgets = budgets(&[
            webhook.report(Function::Webhook),
            orchestrator.report(Function::Orchestrator),
        ]);
        let verdicts: Vec<_> =
            budgets.iter().map(|budget| (budget.what.as_str(), budget.ok)).collect();
        assert_eq!(
            verdicts,
            [
                ("webhook: zip", false),
                ("webhook: init, median", true),
                ("webhook: resident memory", true),
                ("webhook: AWS calls of queued, new job, most", false),
                ("webhook: AWS calls of ping, most", true),
                ("GitHub calls per job", true),
            ]
        );
    }

    #[test]
    fn a_scan_is_held_against_calls_time_and_memory() {
        let mut janitor = figures(&[(Kind::Scan, 526, 105), (Kind::Confirmation, 9, 200)]);
        janitor.events.entry(Kind::Scan).or_default().note_growth(5 << 20);
        let budgets = budgets(&[janitor.report(Function::RegistrationJanitor)]);
        let verdicts: Vec<_> = budgets.iter().map(|budget| (budget.measured, budget.ok)).collect();
        assert_eq!(
            verdicts,
            [(105.0, true), (2.0, true), (5.0, false), (526.0, false), (0.0, true)]
        );
    }

    #[test]
    fn calls_of_a_job_are_those_of_its_own_life() {
        let reports = [
            figures(&[(Kind::Queued, 1, 0), (Kind::QueuedAgain, 4, 7)]).report(Function::Webhook),
            figures(&[(Kind::Register, 1, 1), (Kind::Cleanup, 1, 3)])
                .report(Function::Orchestrator),
        ];
        assert_eq!(github_calls_per_job(&reports), 4.0);
        let last = budgets(&reports).pop().unwrap();
        assert_eq!((last.what.as_str(), last.ok), ("GitHub calls per job", false));
    }
}
