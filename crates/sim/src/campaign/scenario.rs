//! What a history is made of, drawn from a seed: jobs, and what befalls them.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

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
    /// Machines that don't come up, die, freeze, or are interrupted.
    Machines,
    /// Port calls that fail before or after they took effect, take long, or are where a function is killed;
    /// answers of functions that are lost; invocations made twice.
    Calls,
    /// Jobs of repositories where the App is not installed take runners.
    Thefts,
    /// Executions are aborted. Apart from other losses: Lambda repeats the cleanup from outside only twice, and
    /// what is left of a machine that is lost as well is for reaper and janitor.
    Aborts,
    /// EC2 has no capacity for minutes, and GitHub refuses, limits, or loses its answers.
    Weather,
    /// Everything but aborted executions.
    All,
}

impl Profile {
    /// All of them.
    pub const EACH: [Self; 8] = [
        Self::Calm,
        Self::Deliveries,
        Self::Machines,
        Self::Calls,
        Self::Thefts,
        Self::Aborts,
        Self::Weather,
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
    /// The invocation of that number, from 1, is made twice.
    Twice(u64),
    /// The answer of the invocation of that number, from 1, is lost.
    LostAnswer(u64),
    /// At that time the execution of that number among those that run is aborted.
    Abort(Duration, usize),
    /// At that time something goes out.
    Outage(Duration, Outage),
}

/// The name of a part within its scenario: a letter for its kind, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartId(char, usize);

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
    /// For how long GitHub's busy flag lags.
    pub busy_lag: Duration,
    /// Its parts, each with its name.
    pub parts: Vec<(PartId, Part)>,
}

impl Scenario {
    /// Draws one.
    pub fn draw(seed: u64, jobs: usize, profile: Profile) -> Self {
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
        if profile.has(Profile::Machines) {
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
        if profile == Profile::Aborts {
            for index in 0..few(&mut rng) {
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
        Self {
            seed,
            overlaps: rng.random_ratio(3, 4),
            // Checks alone notice all that happens only as long as nothing keeps them from looking.
            judged: profile != Profile::Calm || rng.random_ratio(1, 2),
            busy_lag: seconds(rng.random_range(0..=40)),
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
        2 if profile.has(Profile::Thefts) => Kind::Strange,
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
    }
}

fn loss(rng: &mut StdRng) -> Loss {
    match rng.random_range(0..8) {
        0 => Loss::DeadBoot,
        1 => Loss::SlowBoot(seconds(rng.random_range(200..600))),
        2 => Loss::StuckPending,
        3 => Loss::DiesAtLaunch,
        4 => Loss::Then(Fate::Dies(seconds(rng.random_range(0..400)))),
        5 => Loss::Then(Fate::DiesAtWork(seconds(rng.random_range(1..300)))),
        6 => Loss::Then(Fate::Freezes(seconds(rng.random_range(0..400)))),
        _ => Loss::Then(Fate::FreezesAtWork(seconds(rng.random_range(1..300)))),
    }
}

fn outage(rng: &mut StdRng) -> Outage {
    if rng.random_ratio(1, 3) {
        return Outage::Capacity(seconds(rng.random_range(60..1800)));
    }
    let (method, template) = *[
        ("POST", endpoint::ORG_JIT),
        ("GET", endpoint::JOB),
        ("GET", endpoint::ORG_RUNNER),
        ("GET", endpoint::ORG_RUNNERS),
        ("DELETE", endpoint::ORG_RUNNER),
        ("GET", endpoint::REPO),
        ("*", "*"),
    ]
    .choose(rng)
    .unwrap_or(&("*", "*"));
    let fault = match rng.random_range(0..5) {
        0 => Fault::Refuse(ApiError::new(500, "Server Error")),
        1 => Fault::Refuse(ApiError::new(503, "No server is currently available")),
        2 => {
            let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
            let wait = rng.random_range(30..300u32);
            limit.headers.push(("retry-after".into(), wait.to_string()));
            Fault::Refuse(limit)
        }
        3 => Fault::Lost(0),
        _ => Fault::Lost(502),
    };
    Outage::GitHub(FaultRule {
        method: method.into(),
        template: template.into(),
        skip: 0,
        times: rng.random_range(1..12),
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
        assert_eq!(Profile::EACH.map(kinds), ["j", "j", "jl", "cjnt", "j", "aj", "jo", "cjlnot"]);
        for profile in Profile::EACH {
            assert_eq!(Profile::named(profile.name()), Some(profile));
        }
    }
}
