//! What a history is made of, drawn from a seed: jobs, and what befalls them.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::scenes;
use super::trouble::{Deed, Mistake, Quirk, Refusal, Stranger, any};
use crate::github::{ApiError, Fault, FaultRule, endpoint};
use crate::simulation::Fate;
use crate::world::Strike;

/// Port calls of one job's life, by experience: faults at calls are spread over so many for each job.
const CALLS_PER_JOB: usize = 45;

/// Invocations of one job's life, by experience.
const INVOCATIONS_PER_JOB: u64 = 9;

/// Which kinds of trouble a scenario may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// None.
    Calm,
    /// Webhooks late, lost, and sent again.
    Deliveries,
    /// Machines that don't come up, die, freeze, are stopped, ended or taken back.
    Machines,
    /// Port calls that fail before or after they took effect, take long, or are where a function is killed;
    /// answers of functions that are lost; invocations made twice.
    Calls,
    /// Jobs of repositories where the App is not installed take runners.
    Thefts,
    /// Executions are aborted, also of runners that were stolen and that GitHub calls idle. Apart from other losses: Lambda repeats the cleanup from outside only twice, and
    /// what is left of a machine that is lost as well is for reaper and janitor.
    Aborts,
    /// EC2 has no capacity for minutes or refuses, and GitHub refuses, limits, or loses its answers.
    Weather,
    /// GitHub's flags lie, its lists are old, and its registrations vanish.
    Quirks,
    /// Operators err, and change what they have set.
    Mistakes,
    /// What others send, print and start.
    Strangers,
    /// Executions are aborted and machines lost, and there is a reaper. What is left at GitHub is the janitor's.
    Remains,
    /// Turns that chance alone would hardly bring about, staged one by one.
    Scenes,
    /// All of these at once, apart from aborted executions, mistakes and scenes.
    All,
}

impl Profile {
    /// All of them.
    pub const EACH: [Self; 13] = [
        Self::Calm,
        Self::Deliveries,
        Self::Machines,
        Self::Calls,
        Self::Thefts,
        Self::Aborts,
        Self::Weather,
        Self::Quirks,
        Self::Mistakes,
        Self::Strangers,
        Self::Remains,
        Self::Scenes,
        Self::All,
    ];

    /// What it is called on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Deliveries => "deliveries",
            Self::Machines => "machines",
            Self::Calls => "calls",
            Self::Thefts => "thefts",
            Self::Aborts => "aborts",
            Self::Weather => "weather",
            Self::Quirks => "quirks",
            Self::Mistakes => "mistakes",
            Self::Strangers => "strangers",
            Self::Remains => "remains",
            Self::Scenes => "scenes",
            Self::All => "all",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::EACH.into_iter().find(|profile| profile.name() == name)
    }

    fn has(self, kind: Self) -> bool {
        self == kind || self == Self::All
    }
}

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What both tiers have.
    Small,
    /// What one tier alone has, whose runners can run small jobs too.
    Large,
    /// Like small, of a repository where the App is not installed: nothing is started for it.
    Strange,
}

/// A job, and what people and the network do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPlot {
    /// When it is posted.
    pub at: Duration,
    /// How long it runs.
    pub lasts: Duration,
    /// What it asks for.
    pub kind: Kind,
    /// When it is cancelled, after it was posted.
    pub cancelled: Option<Duration>,
    /// It is behind an environment, and approved that much later.
    pub approved: Option<Duration>,
    /// How long its `queued` event is on its way; `None`: it is lost.
    pub queued: Option<Duration>,
    /// When that event comes again, after it was posted.
    pub again: Option<Duration>,
    /// It belongs to the run of the job that was posted before it.
    pub beside: bool,
}

/// How a machine is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It runs, and nothing in it ever starts.
    DeadBoot,
    /// It boots that slowly.
    SlowBoot(Duration),
    /// It stays pending.
    StuckPending,
    /// It shuts down at once.
    DiesAtLaunch,
    /// Something later.
    Then(Fate),
}

/// What is wrong with a service for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outage {
    /// No machine can be had for so long.
    Capacity(Duration),
    /// No machine can be had for so long in the zone and market of that number.
    Pool(Duration, usize),
    /// EC2 refuses so many launches.
    Refused(Refusal, u32),
    /// GitHub answers so.
    GitHub(FaultRule),
}

/// Something in a scenario that could be left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A job is posted.
    Job(JobPlot),
    /// The launch of that number is lost.
    Loss(usize, Loss),
    /// The port call of that number, from 1, is struck.
    Strike(usize, Strike),
    /// Some calls of a port are struck in a row.
    Aimed {
        /// What their names begin with.
        port: &'static str,
        /// The first of them, from 1.
        number: usize,
        /// How many.
        times: usize,
        /// How.
        strike: Strike,
    },
    /// The invocation of that number, from 1, is made twice.
    Twice(u64),
    /// The answer of the invocation of that number, from 1, is lost.
    LostAnswer(u64),
    /// At that time the execution of that number among those that run is aborted.
    Abort(Duration, usize),
    /// At that time something goes out.
    Outage(Duration, Outage),
    /// At that time something befalls the registration of that number, for so long.
    Quirk(Duration, Quirk, usize, Duration),
    /// At that time something is done to the machine of that number.
    Deed(Duration, Deed, usize),
    /// At that time an operator errs, for so long.
    Mistake(Duration, Mistake, Duration),
    /// At that time others do something, perhaps about the execution of that number.
    Stranger(Duration, Stranger, usize),
}

/// The name of a part within its scenario: a letter for its kind, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartId(pub(super) char, pub(super) usize);

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

impl std::str::FromStr for PartId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut letters = text.chars();
        let kind = letters.next().filter(char::is_ascii_lowercase);
        let number = letters.as_str().parse().ok();
        kind.zip(number)
            .map(|(kind, number)| Self(kind, number))
            .ok_or_else(|| format!("'{text}' names no part: a letter and a number, as j3"))
    }
}

/// A whole scenario. The same seed, number of jobs and profile make the same one.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// All other chance.
    pub seed: u64,
    /// Whether port calls take time, so that invocations overlap.
    pub overlaps: bool,
    /// Whether there is a stolen-runner handler, or only checks notice a theft.
    pub judged: bool,
    /// Whether there is a recovery stack: a reconciler, and events of instances. Then no job of an active repository
    /// may wait for ever.
    pub recovers: bool,
    /// For how long GitHub's busy flag lags.
    pub busy_lag: Duration,
    /// For how long GitHub keeps a registration, busy, after its job.
    pub linger: Duration,
    /// For how long GitHub keeps a registration that has no job, if that is not a day.
    pub unused_life: Option<Duration>,
    /// Where the two tiers' machines are bought.
    pub markets: [&'static str; 2],
    /// Whether there is a reaper, and tiers whose runners live for more than half a day.
    pub sweeps: bool,
    /// Whether EC2 does not show new machines for up to two minutes.
    pub unseen: bool,
    /// Whether payloads and registrations have all that GitHub writes into them, or only what is read: the first
    /// takes most of the time of a history.
    pub verbose: bool,
    /// Its parts, each with its name.
    pub parts: Vec<(PartId, Part)>,
}

impl Scenario {
    /// Draws one.
    pub fn draw(seed: u64, jobs: usize, profile: Profile) -> Self {
        if profile == Profile::Scenes {
            return scenes::stage(seed);
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let mut parts = Vec::new();
        let mut at = Duration::ZERO;
        for index in 0..jobs {
            // A matrix comes at once, other jobs one by one.
            if rng.random_ratio(2, 3) {
                at += seconds(rng.random_range(0..40));
            }
            parts.push((PartId('j', index), Part::Job(job(&mut rng, at, profile))));
        }
        let few = |rng: &mut StdRng| rng.random_range(0..=(jobs / 4).max(1));
        let spread = at.as_secs() + 900;
        if profile.has(Profile::Machines) || profile == Profile::Remains {
            for index in 0..few(&mut rng) {
                let at = seconds(rng.random_range(0..spread));
                let deed = Part::Deed(at, any(&mut rng, Deed::ALL), rng.random_range(0..jobs));
                parts.push((PartId('d', index), deed));
            }
            for index in 0..few(&mut rng) {
                let launch = rng.random_range(0..jobs * 3 / 2 + 1);
                parts.push((PartId('l', index), Part::Loss(launch, loss(&mut rng))));
            }
        }
        if profile.has(Profile::Calls) {
            for index in 0..few(&mut rng) {
                let call = rng.random_range(1..=jobs * CALLS_PER_JOB);
                let strike = *Strike::ALL.choose(&mut rng).unwrap_or(&Strike::Before);
                parts.push((PartId('c', index), Part::Strike(call, strike)));
            }
            for index in 0..few(&mut rng) {
                let port = if rng.random_ratio(1, 4) { "" } else { any(&mut rng, PORTS) };
                parts.push((PartId('p', index), aimed(&mut rng, port, jobs)));
            }
            let invocations = u64::try_from(jobs).unwrap_or(u64::MAX) * INVOCATIONS_PER_JOB;
            for index in 0..few(&mut rng) {
                let number = rng.random_range(1..=invocations);
                parts.push((PartId('t', index), Part::Twice(number)));
            }
            for index in 0..few(&mut rng) {
                let number = rng.random_range(1..=invocations);
                parts.push((PartId('n', index), Part::LostAnswer(number)));
            }
        }
        if profile == Profile::Remains {
            // Machines that freeze and that nobody looks after any more.
            for index in 0..jobs / 3 {
                let fate = Fate::Freezes(seconds(rng.random_range(0..60)));
                let launch = rng.random_range(0..jobs);
                parts.push((PartId('f', index), Part::Loss(launch, Loss::Then(fate))));
            }
            let port = any(&mut rng, &["Machines.list", "Machines.terminate", "Machines.machine"]);
            let strike = any(&mut rng, &[Strike::Before, Strike::After, Strike::Twice]);
            let number = rng.random_range(1..4);
            let part = Part::Aimed { port, number, times: 2, strike };
            parts.push((PartId('p', 0), part));
        }
        if matches!(profile, Profile::Aborts | Profile::Remains) {
            let most = if profile == Profile::Remains { jobs } else { few(&mut rng) };
            for index in 0..most {
                let at = seconds(rng.random_range(5..spread * 2));
                parts.push((PartId('a', index), Part::Abort(at, rng.random_range(0..jobs))));
            }
        }
        if profile.has(Profile::Weather) {
            for index in 0..few(&mut rng).min(6) {
                let at = seconds(rng.random_range(0..spread));
                parts.push((PartId('o', index), Part::Outage(at, outage(&mut rng))));
            }
        }
        let quirks: &[Quirk] = match profile {
            Profile::Aborts => &[Quirk::SaysIdle],
            _ => Quirk::ALL,
        };
        if profile.has(Profile::Quirks) || profile == Profile::Aborts {
            for index in 0..few(&mut rng) {
                let at = seconds(rng.random_range(0..spread));
                let quirk = any(&mut rng, quirks);
                // The flag has been seen to lie for up to 12 minutes.
                let lasts = seconds(rng.random_range(30..720));
                let quirk = Part::Quirk(at, quirk, rng.random_range(0..jobs), lasts);
                parts.push((PartId('q', index), quirk));
            }
        }
        if profile == Profile::Mistakes {
            for index in 0..few(&mut rng).min(3) {
                let at = seconds(rng.random_range(0..spread));
                let mistake = any(&mut rng, Mistake::ALL);
                // Longer than functions keep what they have read.
                let lasts = seconds(rng.random_range(330..5400));
                parts.push((PartId('m', index), Part::Mistake(at, mistake, lasts)));
            }
        }
        if profile.has(Profile::Strangers) {
            for index in 0..few(&mut rng) * 2 {
                let at = seconds(rng.random_range(0..spread));
                let stranger = any(&mut rng, Stranger::ALL);
                let stranger = Part::Stranger(at, stranger, rng.random_range(0..jobs));
                parts.push((PartId('s', index), stranger));
            }
        }
        let quirky = profile.has(Profile::Quirks);
        let sometimes = |rng: &mut StdRng, one_in: u32, span: std::ops::Range<u64>| {
            (quirky && rng.random_ratio(1, one_in)).then(|| seconds(rng.random_range(span)))
        };
        // Not for so long that cleanup leaves it to the janitor.
        let linger = sometimes(&mut rng, 4, 10..1500).unwrap_or_default();
        let unused_life = sometimes(&mut rng, 6, 120..360);
        let market = |rng: &mut StdRng| any(rng, &["on-demand", "spot", "spot-then-on-demand"]);
        Self {
            seed,
            linger,
            unused_life,
            markets: [market(&mut rng), market(&mut rng)],
            sweeps: profile == Profile::Remains,
            unseen: profile.has(Profile::Weather) && rng.random_ratio(1, 4),
            verbose: rng.random_ratio(1, 8),
            overlaps: rng.random_ratio(3, 4),
            // Checks alone notice all that happens only as long as nothing keeps them from looking.
            judged: profile != Profile::Calm || rng.random_ratio(1, 2),
            busy_lag: seconds(rng.random_range(0..=40)),
            // Every other one of each profile, where profiles take turns.
            recovers: seed / Profile::EACH.len() as u64 % 2 == 1,
            parts,
        }
    }

    /// The same with only those of its parts.
    pub fn only(&self, keep: &[PartId]) -> Self {
        let mut fewer = self.clone();
        fewer.parts.retain(|(id, _)| keep.contains(id));
        fewer
    }

    /// The names of its parts.
    pub fn ids(&self) -> Vec<PartId> {
        self.parts.iter().map(|(id, _)| *id).collect()
    }

    /// Its jobs, by their number.
    pub fn jobs(&self) -> impl Iterator<Item = (usize, JobPlot)> {
        self.parts.iter().filter_map(|(id, part)| match part {
            Part::Job(plot) => Some((id.1, *plot)),
            _ => None,
        })
    }
}

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn job(rng: &mut StdRng, at: Duration, profile: Profile) -> JobPlot {
    let lasts = match rng.random_range(0..4) {
        0 => rng.random_range(5..120),
        1 | 2 => rng.random_range(120..900),
        _ => rng.random_range(3600..7200),
    };
    let kind = match rng.random_range(0..7) {
        0 | 1 => Kind::Large,
        2 if profile.has(Profile::Thefts) || profile == Profile::Aborts => Kind::Strange,
        _ => Kind::Small,
    };
    let sometimes = |rng: &mut StdRng, one_in: u32, span: std::ops::Range<u64>| {
        rng.random_ratio(1, one_in).then(|| seconds(rng.random_range(span)))
    };
    let troubled = profile.has(Profile::Deliveries);
    let queued = match rng.random_range(0..10) {
        0 | 1 if troubled => Some(seconds(rng.random_range(60..600))),
        2 if troubled => None,
        _ => Some(seconds(rng.random_range(1..4))),
    };
    let again = if troubled { sometimes(rng, 4, 2..4000) } else { None };
    JobPlot {
        at,
        lasts: seconds(lasts),
        kind,
        cancelled: sometimes(rng, 8, 1..400),
        approved: sometimes(rng, 10, 30..1200),
        queued,
        again,
        beside: false,
    }
}

/// Ports whose calls are struck on purpose: by their number alone the rare ones would hardly be met.
const PORTS: &[&str] = &[
    "Configuration.settings",
    "Ledger.record_job",
    "Ledger.job",
    "Ledger.runner",
    "Ledger.record_registration",
    "Ledger.record_handover",
    "Ledger.account",
    "Ledger.end_runner",
    "Ledger.cancel_job",
    "Ledger.interrupt_runner",
    "Ledger.report_runner",
    "Ledger.note_ran",
    "Ledger.note_repository",
    "Ledger.block",
    "Executions.start",
    "Executions.describe",
    "Fleet.launch",
    "Fleet.of_runner",
    "Fleet.instance",
    "Fleet.terminate",
    "Handoff.put",
    "Handoff.lies",
    "Handoff.withdraw",
    "Forge.job",
    "Forge.run_jobs",
    "Forge.installed",
    "Forge.deployment_waits",
    "Forge.register",
    "Forge.runner",
    "Forge.runner_named",
    "Forge.remove_runner",
    "Reports.send",
    "Reports.send_batch",
    "Gate.",
    "Launched.",
    "OpenJobs.",
    "ActiveRepositories.",
    "FailedDeliveries.",
    "Deliveries.",
    "WaitingRuns.",
];

fn aimed(rng: &mut StdRng, port: &'static str, jobs: usize) -> Part {
    let strike = any(rng, &Strike::ALL);
    let number = rng.random_range(1..=jobs * 2);
    // As many slow calls as it takes to outlast a function's time-out.
    let times =
        if strike == Strike::Slow { rng.random_range(1..=9) } else { rng.random_range(1..=3) };
    Part::Aimed { port, number, times, strike }
}

fn loss(rng: &mut StdRng) -> Loss {
    match rng.random_range(0..8) {
        0 => Loss::DeadBoot,
        1 => Loss::SlowBoot(seconds(rng.random_range(200..600))),
        2 => Loss::StuckPending,
        3 => Loss::DiesAtLaunch,
        4 => Loss::Then(Fate::Dies(seconds(rng.random_range(0..400)))),
        6 if rng.random_ratio(1, 2) => Loss::Then(Fate::Freezes(seconds(rng.random_range(0..9)))),
        5 => Loss::Then(Fate::DiesAtWork(seconds(rng.random_range(1..300)))),
        6 => Loss::Then(Fate::Freezes(seconds(rng.random_range(0..400)))),
        _ => Loss::Then(Fate::FreezesAtWork(seconds(rng.random_range(1..300)))),
    }
}

fn outage(rng: &mut StdRng) -> Outage {
    match rng.random_range(0..6) {
        0 => return Outage::Capacity(seconds(rng.random_range(60..1800))),
        1 => return Outage::Pool(seconds(rng.random_range(60..1800)), rng.random_range(0..4)),
        2 => return Outage::Refused(any(rng, Refusal::ALL), rng.random_range(1..9)),
        _ => {}
    }
    let (method, template) = *[
        ("POST", endpoint::ORG_JIT),
        ("GET", endpoint::JOB),
        ("GET", endpoint::ORG_RUNNER),
        ("GET", endpoint::ORG_RUNNERS),
        ("DELETE", endpoint::ORG_RUNNER),
        ("GET", endpoint::DEPLOYMENT_STATUSES),
        ("GET", endpoint::RUN_JOBS),
        ("GET", endpoint::REPO_INSTALLATION),
        ("GET", endpoint::REPO),
        ("GET", endpoint::RUNS),
        ("GET", endpoint::DELIVERIES),
        ("POST", endpoint::DELIVERY_ATTEMPTS),
        ("*", "*"),
    ]
    .choose(rng)
    .unwrap_or(&("*", "*"));
    let fault = match rng.random_range(0..8) {
        // Registrations have been seen to vanish and return (actions/runner#756).
        7 if template == endpoint::ORG_RUNNER && method == "GET" => {
            Fault::Refuse(ApiError::not_found())
        }
        0 => Fault::Refuse(ApiError::new(500, "Server Error")),
        1 => Fault::Refuse(ApiError::new(503, "No server is currently available")),
        2 => {
            let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
            let wait = rng.random_range(30..300u32);
            limit.headers.push(("retry-after".into(), wait.to_string()));
            Fault::Refuse(limit)
        }
        3 => Fault::Refuse(ApiError::new(403, "Resource not accessible by integration")),
        4 => Fault::Refuse(ApiError::new(422, "Invalid request.")),
        5 => Fault::Lost(0),
        _ => Fault::Lost(502),
    };
    Outage::GitHub(FaultRule {
        method: method.into(),
        template: template.into(),
        skip: 0,
        // Some outlast the tries of a step.
        times: if rng.random_ratio(1, 5) {
            rng.random_range(25..60)
        } else {
            rng.random_range(1..12)
        },
        fault,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_scenario_and_a_part_is_found_by_its_name() {
        let drawn = Scenario::draw(7, 12, Profile::All);
        assert_eq!(drawn, Scenario::draw(7, 12, Profile::All));
        assert_ne!(drawn, Scenario::draw(8, 12, Profile::All));
        let ids = drawn.ids();
        let told: Vec<PartId> = ids.iter().map(|id| id.to_string().parse().unwrap()).collect();
        assert_eq!(told, ids);
        let fewer = drawn.only(&ids[3..5]);
        assert_eq!(fewer.ids(), ids[3..5]);
        assert_eq!(fewer.jobs().map(|(index, _)| index).collect::<Vec<_>>(), [3, 4]);
        for wrong in ["", "3", "j", "J3", "j-1", "jj"] {
            assert!(wrong.parse::<PartId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_profile_holds_its_own_troubles() {
        let kinds = |profile: Profile| -> String {
            let drawn = (0..40).flat_map(|seed| Scenario::draw(seed, 8, profile).ids());
            let mut kinds: Vec<char> = drawn.map(|id| id.0).collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds.into_iter().collect()
        };
        let drawn: Vec<String> = Profile::EACH.map(kinds).into_iter().collect();
        let scenes = 11;
        assert_eq!(
            drawn[..scenes],
            ["j", "j", "djl", "cjnpt", "j", "ajq", "jo", "jq", "jm", "js", "adfjlp"]
        );
        assert_eq!(drawn[scenes + 1], "cdjlnopqst");
        for profile in Profile::EACH {
            assert_eq!(Profile::named(profile.name()), Some(profile));
        }
    }
}
