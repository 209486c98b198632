//! Plays a scenario.

use std::collections::BTreeSet;
use std::time::Duration;

use ostler_core::names::{Lineage, MAX_REPLACEMENTS};
use ostler_core::time::Timestamp;
use rand::Rng;
use serde_json::json;

use super::scenario::{JobPlot, Kind, Loss, Outage, Part, Scenario, seconds};
use super::trouble::{self, ELSEWHERE, Mistake, PUBLIC, Quirk, STRANGE};
use crate::ec2::{LaunchFault, Market, PoolMatch, Span};
use crate::github::{JobSpec, RunnerView};
use crate::invariants::{Allowance, generation_is_full, violations};
use crate::simulation::{Fate, Simulation};
use crate::world::{BEGINNING, Execution, Plan, REPOSITORY, State, Status, World};

/// Longer than any history here: the day that GitHub keeps a job queued, and a runner's life.
const LONGEST: Duration = Duration::from_secs(40 * 3600);

/// Within this time an accepted job of a scenario with trouble has a runner: three replacements that each boot in
/// vain, and a half-hour check between.
const LONGEST_WAIT: Duration = Duration::from_secs(4 * 3600);

/// What a registration that GitHub refuses for an operator to mend costs: a quarter of an hour, and up to a minute by which
/// those that wait for the same are spread.
const REFUSED_WAIT: Duration = Duration::from_secs(960);

/// Longest wait between two tries of a step (`MaxDelaySeconds` of the definition), and how many calls in a row GitHub may
/// fail before a job waits for it: a step is tried so often within an hour.
const RETRY_WAIT: Duration = Duration::from_secs(900);
const SHORT_OUTAGE: u32 = 12;

/// Until somebody approves a job that is run again.
const APPROVED_AGAIN: Duration = Duration::from_secs(300);

/// How long a cleanup takes at most, from its look at GitHub to the end of its execution, with calls that are slow.
const CLEANUP: Duration = Duration::from_secs(120);

/// A scenario that was played.
pub struct Played {
    /// The history.
    pub history: Simulation,
    /// What did not hold, in one line each, beginning with the invariant.
    pub violations: Vec<String>,
}

/// Plays it to its end.
pub fn play(scenario: &Scenario) -> Played {
    let mut history = begin(scenario);
    let mut violations = match history.run_to_rest(LONGEST) {
        true => violations(&history, allowance(scenario, &history)),
        false => vec![format!("I5: it did not come to rest by {}", history.now())],
    };
    let excused = excused(scenario, &history);
    violations.retain(|violation| !excused.contains(violation));
    Played { history, violations }
}

/// What a scenario may cost. Each trouble may cost a runner: one that is lost within the moment in which GitHub's
/// busy flag lags is judged without its job. And each time that a large runner takes a small job, a large one is
/// started in its place, and a small one is left that can't stand in for it.
fn allowance(scenario: &Scenario, history: &Simulation) -> Allowance {
    let troubles = scenario.parts.iter().filter(|(_, part)| match part {
        Part::Job(plot) => plot.queued.is_none_or(|late| late > seconds(60)),
        _ => true,
    });
    let state = history.state();
    let large = state.executions.values().filter(|execution| {
        execution.input["provider"] == "large" && Lineage::parse(&execution.name).replacement > 0
    });
    // A job that GitHub gives to nobody has all its runners end in vain.
    let held = scenario.parts.iter().filter(|(_, part)| withholds(part)).count();
    let surplus = troubles.count() + large.count() + held * usize::from(MAX_REPLACEMENTS);
    let refused = |((name, _), times): (&(&str, String), &f64)| {
        if *name == "RegistrationRefused" { *times } else { 0.0 }
    };
    let refused: f64 = state.metrics.iter().map(refused).sum();
    // Nobody can tell that a runner is idle while GitHub does not answer.
    let silent: u32 = scenario
        .parts
        .iter()
        .map(|(_, part)| match part {
            Part::Outage(_, Outage::GitHub(rule)) => rule.times.saturating_sub(SHORT_OUTAGE),
            _ => 0,
        })
        .sum();
    let longest_wait = LONGEST_WAIT + REFUSED_WAIT.mul_f64(refused) + RETRY_WAIT * silent;
    Allowance { surplus, longest_wait }
}

/// What does not hold in this history, and could not.
fn excused(scenario: &Scenario, history: &Simulation) -> BTreeSet<String> {
    let state = history.state();
    let mut excused = BTreeSet::new();
    for entry in state.github.registrations() {
        if state
            .executions
            .get(&entry.name)
            .is_some_and(|its| janitors(scenario, &state, &entry, its))
        {
            excused.insert(format!("I5: the registration of {} is left", entry.name));
        }
    }
    for job in state.github.all_jobs() {
        let id = job.id;
        let its = || state.executions.values().filter(move |it| it.job() == Some(id));
        // GitHub cancels a job after a day in which there was no machine.
        if outlasts_a_day(scenario, job.queued_at) {
            excused.insert(format!("I2: job {id} was never served"));
        }
        // Its runner was aborted, nobody was told of that, and its machine froze: with no reconciler that is for people.
        let aborted = its().any(|it| it.status == Status::Aborted);
        // GitHub gave it to nobody until all runners of a generation had ended in vain: it waits for the next one, which
        // the reconciler starts.
        let withheld = scenario.parts.iter().any(|(_, part)| withholds(part));
        if !scenario.recovers
            && (scenario.sweeps && aborted || withheld && generation_is_full(&state, id))
        {
            excused.insert(format!("I2: job {id} waits for ever"));
        }
    }
    excused
}

/// Whether a registration is the janitor's to remove.
fn janitors(scenario: &Scenario, state: &State, entry: &RunnerView, its: &Execution) -> bool {
    // Its execution was ended from outside, and its machine was ended by the reaper, hours after Lambda had tried the
    // cleanup for the last time; or nobody was told.
    if scenario.sweeps && its.status != Status::Succeeded {
        return true;
    }
    let noted = state.runner_record(&its.name).runner_id;
    let unknown = noted.and_then(|id| u64::try_from(id).ok()) != Some(entry.id);
    let Some(ended) = its.ended else { return false };
    let during = |at: Duration, lasts: Duration| {
        ended >= BEGINNING + at && ended <= BEGINNING + at + lasts + CLEANUP
    };
    scenario.parts.iter().any(|(_, part)| match part {
        // Nobody can remove any while the App is not installed.
        Part::Mistake(at, Mistake::Uninstalled, lasts) => during(*at, *lasts),
        // Its id was lost with an answer, and GitHub does not list its name.
        Part::Quirk(at, Quirk::Hidden | Quirk::StaleLists, _, lasts) => {
            unknown && during(*at, *lasts)
        }
        _ => false,
    })
}

/// Whether there is no machine for a day from then on: as long as GitHub keeps a job.
fn outlasts_a_day(scenario: &Scenario, queued: Timestamp) -> bool {
    let day = Duration::from_secs(24 * 3600);
    scenario.parts.iter().any(|(_, part)| match part {
        Part::Outage(at, Outage::Capacity(lasts)) => {
            queued >= BEGINNING + *at && queued + day <= BEGINNING + *at + *lasts
        }
        _ => false,
    })
}

fn withholds(part: &Part) -> bool {
    matches!(part, Part::Quirk(_, Quirk::Withheld, ..))
}

fn begin(scenario: &Scenario) -> Simulation {
    let world = World::new(scenario.seed);
    let mut tiers = trouble::tiers(scenario.markets);
    if scenario.sweeps {
        // Longer than the reaper's own limit, so that the machine's tag decides.
        tiers.iter_mut().for_each(|tier| tier["max_lifetime"] = json!("14h"));
    }
    world.tiers(&tiers);
    world.configure("control/app", trouble::app());
    let launches = 1 + scenario
        .parts
        .iter()
        .map(|(_, part)| match part {
            Part::Loss(launch, _) => *launch,
            _ => 0,
        })
        .max()
        .unwrap_or(0);
    let loss = |launch: usize| {
        scenario.parts.iter().find_map(|(_, part)| match part {
            Part::Loss(index, loss) if *index == launch => Some(*loss),
            _ => None,
        })
    };
    {
        let mut state = world.state();
        state.ec2.plan_launches((0..launches).map(|launch| match loss(launch) {
            Some(Loss::DeadBoot) => LaunchFault::Dead,
            Some(Loss::SlowBoot(after)) => LaunchFault::Slow(after),
            Some(Loss::StuckPending) => LaunchFault::StuckPending,
            Some(Loss::DiesAtLaunch) => LaunchFault::Dies,
            Some(Loss::Then(_)) | None => LaunchFault::None,
        }));
        let options = state.github.options_mut();
        options.busy_lag = scenario.busy_lag;
        options.ephemeral_linger = scenario.linger;
        options.unused_registration_life = scenario.unused_life;
        options.brief = !scenario.verbose;
        state.github.add_repository(STRANGE, true).installed = false;
        state.github.add_repository(PUBLIC, false);
        state.github.add_repository(ELSEWHERE, true);
        if scenario.overlaps {
            state.latency =
                Span { least: Duration::from_millis(20), most: Duration::from_millis(400) };
        }
        state.cold_in = 12;
        // DescribeExecution is eventually consistent.
        state.describe_lag = Span::seconds(0, 3);
        if scenario.unseen {
            state.ec2.options().unseen = Span::seconds(0, 120);
        }
        for (_, part) in &scenario.parts {
            let plan = match part {
                Part::Strike(call, strike) => Plan::call(*call, *strike),
                Part::Aimed { port, number, times, strike } => {
                    Plan::some(port, *number, *times, *strike)
                }
                _ => continue,
            };
            state.plan = std::mem::take(&mut state.plan).and(plan);
        }
    }
    let mut begun = Simulation::over(world);
    begun.judges_reports = scenario.judged;
    begun.approves_again = Some(APPROVED_AGAIN);
    if scenario.recovers {
        begun.reconciles = true;
        begun.hurried = true;
        begun.hears_instances = true;
        begun.redelivery = None;
    }
    begun.fates = (0..launches)
        .map(|launch| match loss(launch) {
            Some(Loss::Then(fate)) => fate,
            _ => Fate::Healthy,
        })
        .collect();
    deliver_as_drawn(&mut begun, scenario);
    for (index, plot) in scenario.jobs() {
        begun.after(plot.at, move |history| post(history, index, plot));
    }
    for (_, part) in &scenario.parts {
        befall(&mut begun, part, scenario.markets);
    }
    // What nobody is told of is the reaper's.
    let reaped = scenario.sweeps;
    begun.ruler = Box::new(move |_, rng| match rng.random_range(0..8) {
        0 if reaped => vec![],
        1 => vec![seconds(2), seconds(rng.random_range(2..90))],
        2 => vec![seconds(rng.random_range(30..1200))],
        _ => vec![seconds(2)],
    });
    if scenario.sweeps {
        begun.sweep();
    }
    begun
}

fn deliver_as_drawn(begun: &mut Simulation, scenario: &Scenario) {
    let plots: std::collections::BTreeMap<usize, JobPlot> = scenario.jobs().collect();
    // Where deliveries are troubled, one in ten of the other events is lost.
    let lossy = plots.values().any(|plot| plot.queued.is_none() || plot.again.is_some());
    begun.courier = Box::new(move |event, rng| {
        let name = event.payload["workflow_job"]["name"].as_str();
        let index = name.and_then(|name| name.parse::<usize>().ok());
        let Some(plot) = index.and_then(|index| plots.get(&index)) else {
            return vec![Duration::from_millis(rng.random_range(300..4000))];
        };
        match event.action.as_deref() {
            Some("queued") => plot.queued.into_iter().chain(plot.again).collect(),
            _ if lossy && rng.random_ratio(1, 10) => vec![],
            _ => vec![Duration::from_millis(rng.random_range(300..4000))],
        }
    });
}

fn post(history: &mut Simulation, index: usize, plot: JobPlot) {
    let base = match plot.kind {
        Kind::Small => JobSpec::new(REPOSITORY, &["self-hosted", "small"]),
        Kind::Large => JobSpec::new(REPOSITORY, &["self-hosted", "large"]),
        Kind::Strange => JobSpec::new(STRANGE, &["self-hosted", "small"]),
    };
    let environment = plot.approved.map(|_| "production".to_owned());
    let run_id = history.state().github.all_jobs().last().map(|job| job.run_id);
    let job = history.post(&JobSpec {
        name: index.to_string(),
        duration: plot.lasts,
        environment,
        run_id: run_id.filter(|_| plot.beside),
        ..base
    });
    if let Some(after) = plot.approved {
        history.after(after, move |history| history.approve(job));
    }
    if let Some(after) = plot.cancelled {
        history.after(after, move |history| history.cancel(job));
    }
}

fn befall(begun: &mut Simulation, part: &Part, markets: [&'static str; 2]) {
    match part.clone() {
        Part::Job(_) | Part::Loss(..) | Part::Strike(..) | Part::Aimed { .. } => {}
        Part::Twice(number) => begun.repeated.push(number),
        Part::LostAnswer(number) => begun.lost_answers.push(number),
        Part::Abort(at, index) => begun.after(at, move |history| {
            let running = {
                let state = history.state();
                let mut running =
                    state.executions.values().filter(|it| it.status == Status::Running);
                running.nth(index).map(|it| it.name.clone())
            };
            if let Some(name) = running {
                history.end_execution(&name, Status::Aborted);
                history.struck("execution: aborted");
            }
        }),
        Part::Quirk(at, quirk, index, lasts) => {
            begun.after(at, move |history| quirk.befall(history, index, lasts));
        }
        Part::Deed(at, deed, index) => {
            begun.after(at, move |history| deed.befall(history, index));
        }
        Part::Mistake(at, mistake, lasts) => {
            begun.after(at, move |history| mistake.befall(history, lasts, markets));
        }
        Part::Stranger(at, stranger, index) => {
            begun.after(at, move |history| stranger.befall(history, index));
        }
        Part::Outage(at, Outage::Refused(refusal, times)) => {
            begun.after(at, move |history| refusal.befall(history, times));
        }
        Part::Outage(at, Outage::Pool(lasts, number)) => {
            let zone = ["us-east-1a", "us-east-1b"][number % 2];
            let market = [Market::Spot, Market::OnDemand][number / 2 % 2];
            let pools =
                PoolMatch { zone: Some(zone.into()), market: Some(market), ..PoolMatch::default() };
            begun.after(at, move |history| {
                history.struck("EC2: no capacity in one pool");
                history.state().ec2.limit_capacity(pools, 0);
                history.after(lasts, |history| history.state().ec2.restore_capacity());
            });
        }
        Part::Outage(at, Outage::Capacity(lasts)) => {
            begun.after(at, move |history| {
                history.struck("EC2: no capacity");
                history.state().ec2.limit_capacity(PoolMatch::default(), 0);
                history.after(lasts, |history| history.state().ec2.restore_capacity());
            });
        }
        Part::Outage(at, Outage::GitHub(rule)) => {
            begun.after(at, move |history| history.state().github.add_fault(rule));
        }
    }
}

/// What happened, in order, for whoever looks into a violation.
pub fn story(history: &Simulation) -> String {
    let state = history.state();
    let mut lines: Vec<_> = state
        .calls
        .iter()
        .enumerate()
        .filter(|(_, call)| !call.name.starts_with("Configuration"))
        .map(|(index, call)| {
            let struck = call.struck.map(|strike| format!(" struck: {strike:?}"));
            let struck = struck.unwrap_or_default();
            format!("{:4} {} {}: {}{struck}", index + 1, call.at, call.caller, call.name)
        })
        .collect();
    for job in state.github.all_jobs() {
        lines.push(format!(
            "job {} ({}) {:?} {:?} {:?} on {:?}, queued {}, started {:?}",
            job.id,
            job.name,
            job.labels,
            job.status,
            job.conclusion,
            job.runner.as_ref().map(|runner| &runner.name),
            job.queued_at,
            job.started_at.map(|at| at.to_string()),
        ));
    }
    for execution in state.executions.values() {
        lines.push(format!(
            "{} {:?} ({:?}) {} to {:?}: {:?}, {} retries, {:?}",
            execution.name,
            execution.status,
            execution.failure.as_ref().map(|(error, _)| error),
            execution.started,
            execution.ended.map(|at| at.to_string()),
            execution.reason(),
            execution.retries,
            state.runner_record(&execution.name),
        ));
    }
    lines.push(
        json!(
            state
                .metrics
                .iter()
                .map(|((name, by), n)| (format!("{name} {by}"), n))
                .collect::<std::collections::BTreeMap<_, _>>()
        )
        .to_string(),
    );
    lines.join("\n")
}
