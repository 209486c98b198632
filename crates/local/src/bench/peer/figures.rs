//! What the two sides did, pair by pair, and what is said of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::super::Sample;
use super::super::figures::{Calls, Function, MIB, Spread, ms, percentile, sorted};
use super::super::machine::Machine;
use super::SIZES_MB;
use super::prices::Prices;

/// Part of the memory that a function may fill: what comes unexpectedly needs some.
const FILLED_MAX: f64 = 0.9;
/// The longest start with a first event that "runs well" allows: GitHub gives a webhook 10 s, and an operator should
/// not see it.
const COLD_MAX_MS: f64 = 3_000.0;
const MILLION: f64 = 1e6;

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Ours.
    Ostler,
    /// Theirs.
    Peer,
}

impl Side {
    /// Both, ours first.
    pub const BOTH: [Self; 2] = [Self::Ostler, Self::Peer];

    /// Both, in the order of that turn.
    pub fn in_turn(turn: usize) -> [Self; 2] {
        if turn.is_multiple_of(2) { Self::BOTH } else { [Self::Peer, Self::Ostler] }
    }

    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ostler => "Ostler",
            Self::Peer => "peer",
        }
    }
}

/// A pair of functions that do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handler {
    /// Takes GitHub's deliveries.
    Webhook,
    /// Hears of runners that ran another job.
    StolenRunner,
    /// Gets what a runner registers with.
    Registration,
    /// Looks after a runner that is there.
    Check,
    /// Sends again what was not delivered.
    Redelivery,
}

impl Handler {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::Webhook, Self::StolenRunner, Self::Registration, Self::Check, Self::Redelivery];

    /// Our function.
    pub const fn ours(self) -> Function {
        match self {
            Self::Webhook => Function::Webhook,
            Self::StolenRunner => Function::StolenRunner,
            Self::Registration | Self::Check => Function::Orchestrator,
            Self::Redelivery => Function::Reconciler,
        }
    }

    /// Their bundle's name.
    pub const fn theirs(self) -> &'static str {
        match self {
            Self::Webhook => "webhook-handler",
            Self::StolenRunner => "stolen-runner-handler",
            Self::Registration => "token-retriever",
            Self::Check => "idle-runner-repear",
            Self::Redelivery => "webhook-redelivery",
        }
    }
}

/// The same work for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "their names below say what they are")]
pub enum Bout {
    Queued,
    InProgress,
    Ignored,
    BadSignature,
    Line,
    Lines100,
    Lines10000,
    OwnJobs,
    NobodysRunners,
    Shuffled,
    Stolen,
    Register,
    Check,
    Redelivery,
}

impl Bout {
    /// As tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "webhook: queued",
            Self::InProgress => "webhook: in_progress",
            Self::Ignored => "webhook: another event",
            Self::BadSignature => "webhook: bad signature",
            Self::Line => "log delivery of 1 line",
            Self::Lines100 => "log delivery of 100 lines",
            Self::Lines10000 => "log delivery of 10,000 lines",
            Self::OwnJobs => "10 reports: own jobs",
            Self::NobodysRunners => "10 reports: runners of others",
            Self::Shuffled => "10 reports: shuffled among ours",
            Self::Stolen => "10 reports: stolen, replaced",
            Self::Register => "registration (token / JIT)",
            Self::Check => "look at a busy runner",
            Self::Redelivery => "one failed delivery sent again",
        }
    }

    /// Who handles it.
    pub const fn handler(self) -> Handler {
        match self {
            Self::Queued | Self::InProgress | Self::Ignored | Self::BadSignature => {
                Handler::Webhook
            }
            Self::Register => Handler::Registration,
            Self::Check => Handler::Check,
            Self::Redelivery => Handler::Redelivery,
            _ => Handler::StolenRunner,
        }
    }
}

/// What one process was.
#[derive(Debug, Default)]
struct Processes {
    init_ms: Vec<f64>,
    first_ms: Vec<f64>,
    resident: Vec<u64>,
    peak: u64,
    /// Whether its next event is its first.
    fresh: bool,
}

/// What is noted of an event.
#[derive(Debug)]
struct Event {
    latency_ms: f64,
    cpu_ms: Option<f64>,
    aws: Calls,
    github: Calls,
}

impl From<Sample> for Event {
    fn from(sample: Sample) -> Self {
        let Sample { latency, cpu, aws, github, .. } = sample;
        Self { latency_ms: ms(latency), cpu_ms: cpu.map(ms), aws, github }
    }
}

/// All that was measured.
#[derive(Debug, Default)]
pub struct Contest {
    processes: BTreeMap<(Handler, Side, Option<u32>), Processes>,
    /// Pairs on processes that had served before.
    warm: BTreeMap<(Bout, Option<u32>), Vec<[Event; 2]>>,
    /// What to know about the figures.
    pub notes: Vec<String>,
}

impl Contest {
    /// A process was started.
    pub fn started(&mut self, handler: Handler, side: Side, size: Option<u32>, init: Duration) {
        let processes = self.processes.entry((handler, side, size)).or_default();
        processes.init_ms.push(ms(init));
        processes.fresh = true;
    }

    /// What a process has grown to: resident and peak, bytes.
    pub fn weighed(
        &mut self,
        handler: Handler,
        side: Side,
        size: Option<u32>,
        (resident, peak): (u64, u64),
    ) {
        let processes = self.processes.entry((handler, side, size)).or_default();
        processes.resident.push(resident);
        processes.peak = processes.peak.max(peak);
    }

    /// Both handled an event. A process's first is not a warm one.
    pub fn met(&mut self, bout: Bout, size: Option<u32>, ours: Sample, theirs: Sample) {
        let mut first = false;
        for (side, sample) in [(Side::Ostler, &ours), (Side::Peer, &theirs)] {
            let processes = self.processes.entry((bout.handler(), side, size)).or_default();
            if std::mem::take(&mut processes.fresh) {
                processes.first_ms.push(ms(sample.latency));
                first = true;
            }
        }
        if !first {
            self.warm.entry((bout, size)).or_default().push([ours.into(), theirs.into()]);
        }
    }

    /// What is said of it.
    pub fn report(
        self,
        at: String,
        machine: Machine,
        versions: BTreeMap<String, String>,
        prices: &Prices,
    ) -> Report {
        let mut notes = self.notes.clone();
        if machine.is_busy() {
            notes.push("other work took the processors just before: times are worth little".into());
        }
        let handlers = Handler::ALL.map(|handler| self.handler(handler)).into();
        let bouts: Vec<Bout> = self.bouts();
        let sizes = bouts.iter().flat_map(|bout| self.sizes(*bout, prices)).collect();
        let bouts = bouts.into_iter().map(|bout| self.bout(bout, prices)).collect();
        Report { at, machine, versions, handlers, bouts, sizes, notes }
    }

    fn bouts(&self) -> Vec<Bout> {
        self.warm.keys().filter(|(_, size)| size.is_none()).map(|(bout, _)| *bout).collect()
    }

    fn handler(&self, handler: Handler) -> HandlerReport {
        let of = |side: Side| {
            let processes = &self.processes[&(handler, side, None)];
            #[allow(clippy::cast_precision_loss, reason = "sizes of some megabytes")]
            let mib: Vec<f64> =
                processes.resident.iter().map(|bytes| *bytes as f64 / MIB).collect();
            ProcessReport {
                init_ms: Spread::of(&processes.init_ms),
                first_ms: Spread::of(&processes.first_ms),
                resident_mib: Spread::of(&mib),
            }
        };
        HandlerReport {
            ours: handler.ours().name(),
            theirs: handler.theirs(),
            ostler: of(Side::Ostler),
            peer: of(Side::Peer),
        }
    }

    fn bout(&self, bout: Bout, prices: &Prices) -> BoutReport {
        let pairs = &self.warm[&(bout, None)];
        let ratios: Vec<f64> =
            pairs.iter().map(|[ours, theirs]| theirs.latency_ms / ours.latency_ms).collect();
        let ratios = sorted(&ratios);
        let side = |index: usize| EventReport::of(pairs.iter().map(|pair| &pair[index]), prices);
        BoutReport {
            event: bout.name(),
            pairs: pairs.len(),
            ostler: side(0),
            peer: side(1),
            ratio: [0.1, 0.5, 0.9].map(|share| percentile(&ratios, share)),
        }
    }

    fn sizes(&self, bout: Bout, prices: &Prices) -> Vec<SizeReport> {
        let mut reports = Vec::new();
        for size in SIZES_MB {
            let Some(pairs) = self.warm.get(&(bout, Some(size))) else { continue };
            for (index, side) in Side::BOTH.into_iter().enumerate() {
                let latency: Vec<f64> = pairs.iter().map(|pair| pair[index].latency_ms).collect();
                let duration = percentile(&sorted(&latency), 0.5);
                let processes = &self.processes[&(bout.handler(), side, Some(size))];
                let cold = percentile(&sorted(&processes.init_ms), 0.5)
                    + percentile(&sorted(&processes.first_ms), 0.5);
                #[allow(clippy::cast_precision_loss, reason = "sizes of some megabytes")]
                let peak = processes.peak as f64 / MIB;
                reports.push(SizeReport {
                    event: bout.name(),
                    side,
                    memory_mb: size,
                    duration_ms: duration,
                    cold_ms: cold,
                    peak_mib: peak,
                    lambda_usd_per_million: prices.invocation(duration, size) * MILLION,
                    runs_well: peak <= f64::from(size) * FILLED_MAX && cold <= COLD_MAX_MS,
                });
            }
        }
        reports
    }
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// When.
    pub at: String,
    /// Where.
    pub machine: Machine,
    /// Of what.
    pub versions: BTreeMap<String, String>,
    /// By pair of functions.
    pub handlers: Vec<HandlerReport>,
    /// By kind of event.
    pub bouts: Vec<BoutReport>,
    /// By kind of event, memory size and side.
    pub sizes: Vec<SizeReport>,
    /// What to know about the figures.
    pub notes: Vec<String>,
}

/// A pair of functions.
#[derive(Debug, Serialize)]
pub struct HandlerReport {
    /// Our function.
    pub ours: &'static str,
    /// Theirs.
    pub theirs: &'static str,
    /// Of our processes.
    pub ostler: ProcessReport,
    /// Of theirs.
    pub peer: ProcessReport,
}

/// Processes of a function.
#[derive(Debug, Serialize)]
pub struct ProcessReport {
    /// From a process's start to its first question for work.
    pub init_ms: Spread,
    /// Its first event.
    pub first_ms: Spread,
    /// Resident memory at a round's end.
    pub resident_mib: Spread,
}

/// A kind of event.
#[derive(Debug, Serialize)]
pub struct BoutReport {
    /// Which.
    pub event: &'static str,
    /// Pairs on warm processes.
    pub pairs: usize,
    /// Ours.
    pub ostler: EventReport,
    /// Theirs.
    pub peer: EventReport,
    /// Their latency over ours, pair by pair: 10th, 50th and 90th percentile.
    pub ratio: [f64; 3],
}

/// One side of it.
#[derive(Debug, Serialize)]
pub struct EventReport {
    /// Latency of the median event.
    pub p50_ms: f64,
    /// Of all but the slowest hundredth.
    pub p99_ms: f64,
    /// Seconds of one processor for 1,000 events; `None` where the system does not tell.
    pub cpu_s_per_1000: Option<f64>,
    /// Mean calls of AWS.
    pub aws_calls: f64,
    /// Mean calls of GitHub.
    pub github_calls: f64,
    /// USD of the charged calls of a million events.
    pub calls_usd_per_million: f64,
    /// Mean by what was called.
    pub by_call: BTreeMap<String, f64>,
}

impl EventReport {
    #[allow(clippy::cast_precision_loss, reason = "some hundreds of events")]
    fn of<'a>(events: impl Iterator<Item = &'a Event> + Clone, prices: &Prices) -> Self {
        let latency: Vec<f64> = events.clone().map(|event| event.latency_ms).collect();
        let latency = sorted(&latency);
        let count = latency.len() as f64;
        let cpu: Vec<f64> = events.clone().filter_map(|event| event.cpu_ms).collect();
        let mean = |of: fn(&Event) -> &Calls| {
            events.clone().flat_map(|event| of(event).values()).sum::<u64>() as f64 / count
        };
        let usd: f64 = events.clone().map(|event| prices.calls(&event.aws)).sum();
        let mut by_call: BTreeMap<String, f64> = BTreeMap::new();
        for (call, times) in events.clone().flat_map(|event| event.aws.iter().chain(&event.github))
        {
            *by_call.entry(call.clone()).or_default() += *times as f64 / count;
        }
        Self {
            p50_ms: percentile(&latency, 0.5),
            p99_ms: percentile(&latency, 0.99),
            // ms of one event are s of a thousand.
            cpu_s_per_1000: (!cpu.is_empty()).then(|| cpu.iter().sum::<f64>() / cpu.len() as f64),
            aws_calls: mean(|event| &event.aws),
            github_calls: mean(|event| &event.github),
            calls_usd_per_million: usd / count * MILLION,
            by_call,
        }
    }
}

/// A kind of event at a memory size.
#[derive(Debug, Serialize)]
pub struct SizeReport {
    /// Which.
    pub event: &'static str,
    /// Whose.
    pub side: Side,
    /// Memory size, MB, whose share of a processor it had.
    pub memory_mb: u32,
    /// Latency of the median event.
    pub duration_ms: f64,
    /// Start and first event together, medians.
    pub cold_ms: f64,
    /// Most resident memory, MiB.
    pub peak_mib: f64,
    /// USD that Lambda charges for a million of them.
    pub lambda_usd_per_million: f64,
    /// Whether the memory holds it with a tenth left, and a cold start takes at most 3 s.
    pub runs_well: bool,
}

impl Report {
    /// The smallest size at which a side runs an event well.
    pub fn smallest(&self, event: &str, side: Side) -> Option<&SizeReport> {
        let of = |size: &&SizeReport| size.event == event && size.side == side && size.runs_well;
        self.sizes.iter().filter(of).min_by_key(|size| size.memory_mb)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn sample(latency_ms: u64, aws: u64) -> Sample {
        Sample {
            answer: Value::Null,
            error: None,
            latency: Duration::from_millis(latency_ms),
            cpu: Some(Duration::from_millis(1)),
            aws: Calls::from([("sqs:SendMessage".to_owned(), aws)]),
            github: Calls::new(),
        }
    }

    fn prices() -> Prices {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Prices::read(&root.join("bench/prices.json")).unwrap()
    }

    #[test]
    fn the_sides_take_turns() {
        assert_eq!(Side::in_turn(0), [Side::Ostler, Side::Peer]);
        assert_eq!(Side::in_turn(1), [Side::Peer, Side::Ostler]);
    }

    #[test]
    fn first_events_are_apart_and_ratios_are_of_pairs() {
        let mut contest = Contest::default();
        for side in Side::BOTH {
            contest.started(Handler::Webhook, side, None, Duration::from_millis(10));
        }
        contest.met(Bout::Queued, None, sample(90, 1), sample(900, 1));
        // Each pair is twice as slow as ours, though the medians alone would say otherwise.
        contest.met(Bout::Queued, None, sample(1, 1), sample(2, 3));
        contest.met(Bout::Queued, None, sample(10, 1), sample(20, 3));
        contest.met(Bout::Queued, None, sample(100, 1), sample(200, 3));
        let bout = contest.bout(Bout::Queued, &prices());
        assert_eq!((bout.pairs, bout.ratio), (3, [2.0; 3]));
        assert_eq!((bout.ostler.p50_ms, bout.peer.p50_ms), (10.0, 20.0));
        assert_eq!((bout.ostler.aws_calls, bout.peer.aws_calls), (1.0, 3.0));
        assert_eq!(bout.ostler.cpu_s_per_1000, Some(1.0));
        assert!((bout.peer.calls_usd_per_million - 1.5).abs() < 1e-9);
        assert_eq!(contest.handler(Handler::Webhook).peer.first_ms.median, 900.0);
    }

    #[test]
    fn a_size_runs_well_if_memory_and_cold_start_fit() {
        let mut contest = Contest::default();
        for (size, peak_mib, init_ms) in [(128, 120, 10), (256, 120, 4_000), (512, 120, 10)] {
            for side in Side::BOTH {
                let init = Duration::from_millis(init_ms);
                contest.started(Handler::Webhook, side, Some(size), init);
                contest.weighed(Handler::Webhook, side, Some(size), (1 << 20, peak_mib << 20));
            }
            contest.met(Bout::Queued, Some(size), sample(1, 1), sample(1, 1));
            contest.met(Bout::Queued, Some(size), sample(1, 1), sample(3, 1));
        }
        let sizes = contest.sizes(Bout::Queued, &prices());
        let well: Vec<_> = sizes.iter().map(|size| (size.memory_mb, size.runs_well)).collect();
        assert_eq!(
            well,
            [(128, false), (128, false), (256, false), (256, false), (512, true), (512, true)]
        );
        let [ours, theirs] = [&sizes[4], &sizes[5]].map(|size| size.lambda_usd_per_million);
        assert!((ours - (0.2 + 0.5 * 16.6667 / 1000.0)).abs() < 1e-6, "{ours}");
        assert!(theirs > ours);
    }
}
