//! Scenes: turns that chance alone would hardly bring about within a minute. Each is staged for few jobs, and varies
//! with its seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::scenario::{JobPlot, Kind, Loss, Outage, Part, PartId, Scenario, seconds};
use super::trouble::{Deed, Mistake, Quirk, Refusal, Stranger, any};
use crate::github::{ApiError, Fault, FaultRule, endpoint};
use crate::simulation::Fate;
use crate::world::Strike;

/// What a scene is made of.
type Parts = Vec<(char, Part)>;

/// Draws one.
type Scene = fn(&mut StdRng) -> Parts;

/// All scenes; those that have many turns more than once.
const SCENES: &[Scene] = &[
    used_up,
    a_day_without_machines,
    late_boot,
    changed_tier,
    lost_registration,
    registered_twice,
    lost_handover,
    unrecorded,
    warm_runner_taken,
    idle_runner,
    refused_registrations,
    frozen_at_start,
    given_up,
    queue_out,
    unlisted,
    slow,
    locked_out,
    refused_launches,
    odd_selector,
    refused_once,
    vanishing,
    invoked_twice,
    aborted_early,
    aborted_and_called_idle,
    called_idle,
    forged,
    forged_early,
    forged_in_vain,
    deleted,
    invalid_tier,
    burst,
    spot_fails,
    few_places,
    fewer_places,
    served_meanwhile,
    taken_back,
    refused_deliveries,
    unheard,
    cancelled_early,
    cancelled_late,
    held_unknown,
    lost_machines,
    lost_machines,
    lost_machines,
    lost_machines,
    refused_reruns,
    refused_reruns,
    refused_reruns,
    refused_reruns,
    lost_again_and_again,
    lost_with_its_tier,
];

/// Those that are about spot machines, and about what the recovery stack makes of their loss.
const OF_SPOT: [Scene; 4] =
    [lost_machines, refused_reruns, lost_again_and_again, lost_with_its_tier];

/// The scene of a seed.
pub(super) fn stage(seed: u64) -> Scenario {
    let mut rng = StdRng::seed_from_u64(seed);
    let turn = usize::try_from(seed / 4).unwrap_or_default();
    let scene = SCENES[turn % SCENES.len()];
    let parts = scene(&mut rng);
    // Where the machines of all names are lost, nobody can help.
    let lost = parts.iter().filter(|(_, part)| matches!(part, Part::Loss(..))).count();
    let hopeless = lost >= 16;
    let mut counts = std::collections::BTreeMap::<char, usize>::new();
    let named = parts.into_iter().map(|(kind, part)| {
        let number = counts.entry(kind).or_default();
        *number += 1;
        (PartId(kind, *number - 1), part)
    });
    let mut market = || any(&mut rng, &["on-demand", "on-demand", "spot", "spot-then-on-demand"]);
    let of_spot = OF_SPOT.iter().any(|it| std::ptr::fn_addr_eq(*it, scene));
    let markets = if of_spot { ["spot"; 2] } else { [market(), market()] };
    Scenario {
        recovers: of_spot || !hopeless && rng.random(),
        seed,
        overlaps: true,
        judged: true,
        busy_lag: seconds(rng.random_range(0..40)),
        linger: Duration::ZERO,
        unused_life: None,
        markets,
        sweeps: false,
        unseen: false,
        verbose: false,
        parts: named.collect(),
    }
}

fn plain(at: u64, lasts: u64) -> JobPlot {
    JobPlot {
        at: seconds(at),
        lasts: seconds(lasts),
        kind: Kind::Small,
        cancelled: None,
        approved: None,
        queued: Some(seconds(1)),
        again: None,
        beside: false,
    }
}

fn job(at: u64, lasts: u64) -> (char, Part) {
    ('j', Part::Job(plain(at, lasts)))
}

fn aimed(port: &'static str, number: usize, times: usize, strike: Strike) -> (char, Part) {
    ('p', Part::Aimed { port, number, times, strike })
}

/// Every machine of a job dies, and its event comes again each hour, until all names are used up.
fn used_up(_: &mut StdRng) -> Parts {
    let mut parts = vec![job(1, 60)];
    parts.extend((0..40).map(|launch| ('l', Part::Loss(launch, Loss::DiesAtLaunch))));
    parts.extend(
        (1..=8)
            .map(|hour| ('q', Part::Quirk(seconds(hour * 3700), Quirk::Announced, 0, seconds(1)))),
    );
    parts
}

/// There is no machine for more than a day, and GitHub's word that it has cancelled the job is lost.
fn a_day_without_machines(rng: &mut StdRng) -> Parts {
    let lasts = seconds(26 * 3600);
    let late = seconds(rng.random_range(60..400));
    let lost = JobPlot { again: Some(late), ..plain(1, 60) };
    vec![
        ('o', Part::Outage(Duration::ZERO, Outage::Capacity(lasts))),
        ('j', Part::Job(lost)),
        aimed("Ledger.cancel_job", 1, 20, Strike::Before),
    ]
}

/// Machines boot about when they are given up.
fn late_boot(rng: &mut StdRng) -> Parts {
    let boot = |rng: &mut StdRng| Loss::SlowBoot(seconds(rng.random_range(296..330)));
    let mut parts: Parts = (0..6).map(|at| job(1 + at, 300)).collect();
    parts.extend((0..6).map(|launch| ('l', Part::Loss(launch, boot(rng)))));
    parts.push(aimed("Handoff.lies", 1, 40, Strike::Slow));
    parts.push(aimed("Handoff.withdraw", 1, 40, Strike::Slow));
    parts
}

/// The tier is changed while a launch's answer is lost, with or without capacity.
fn changed_tier(rng: &mut StdRng) -> Parts {
    let at = seconds(1);
    let mut parts = vec![('m', Part::Mistake(at, Mistake::ChangedTier, seconds(600)))];
    if rng.random_ratio(1, 2) {
        let lasts = seconds(rng.random_range(20..400));
        parts.push(('o', Part::Outage(at, Outage::Capacity(lasts))));
    }
    parts.push(job(20, 60));
    parts
}

/// Answers about the registration are lost, one after the other.
fn lost_registration(rng: &mut StdRng) -> Parts {
    let strikes = [Strike::After, Strike::CutAfter, Strike::Before, Strike::CutBefore];
    let mut parts = vec![job(1, 200), job(2, 30)];
    for port in
        ["Forge.register", "Ledger.record_registration", "Handoff.put", "Forge.runner_named"]
    {
        let strike = strikes[rng.random_range(0..strikes.len())];
        parts.push(aimed(port, rng.random_range(1..4), rng.random_range(1..4), strike));
    }
    parts
}

/// A registration is made, its noting fails, and the next answer is another refusal or none.
fn registered_twice(rng: &mut StdRng) -> Parts {
    let fault = match rng.random_range(0..3) {
        0 => Fault::Lost(0),
        1 => Fault::Refuse(ApiError::new(422, "Invalid request.")),
        _ => Fault::Refuse(ApiError::new(409, "Already exists")),
    };
    // The first is made, the second meets the first's name, the third comes after that was removed.
    let skip = if rng.random_ratio(1, 3) { 0 } else { 2 };
    let rule = jit(skip, rng.random_range(1..3), fault);
    vec![
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))),
        aimed("Ledger.record_registration", 1, rng.random_range(1..3), Strike::Before),
        job(1, 100),
    ]
}

/// The handover is made, and its answers are lost until the machine has claimed it.
fn lost_handover(rng: &mut StdRng) -> Parts {
    let strike = [Strike::After, Strike::CutAfter][rng.random_range(0..2)];
    let mut parts = vec![
        job(1, rng.random_range(10..400)),
        aimed("Handoff.put", 1, 1, strike),
        aimed("Ledger.record_handover", 1, rng.random_range(1..4), Strike::Before),
        aimed("Ledger.runner", 2, rng.random_range(3..7), Strike::Before),
        aimed("Forge.register", 2, 3, Strike::Slow),
    ];
    if rng.random_ratio(1, 2) {
        parts.push(aimed("Handoff.lies", 1, rng.random_range(1..6), Strike::Slow));
    }
    parts
}

/// A job can't be recorded.
fn unrecorded(rng: &mut StdRng) -> Parts {
    let strike = [Strike::Before, Strike::After][rng.random_range(0..2)];
    vec![job(1, 60), job(1, 60), aimed("Ledger.record_job", 1, 3, strike)]
}

/// A job for which nothing was started takes a warm runner.
fn warm_runner_taken(_: &mut StdRng) -> Parts {
    let silent = JobPlot { queued: None, ..plain(200, 60) };
    vec![('s', Part::Stranger(seconds(1), Stranger::Warm, 0)), ('j', Part::Job(silent))]
}

/// GitHub gives a job to nobody, so that its runner waits in vain; perhaps in a machine that freezes.
fn idle_runner(rng: &mut StdRng) -> Parts {
    let mut parts = vec![job(1, 60)];
    let held = seconds(rng.random_range(1200..3000));
    parts.push(('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, held)));
    match rng.random_range(0..4) {
        3 => {
            let busy = Fault::Refuse(ApiError::new(422, "is currently running a job"));
            let rule = FaultRule {
                method: "DELETE".into(),
                template: endpoint::ORG_RUNNER.into(),
                skip: 0,
                times: 2,
                fault: busy,
            };
            parts.push(('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))));
        }
        0 => parts.push((
            'l',
            Part::Loss(0, Loss::Then(Fate::Freezes(seconds(rng.random_range(20..200))))),
        )),
        1 => parts.push(('q', Part::Quirk(seconds(300), Quirk::SaysBusy, 0, seconds(150)))),
        _ => {}
    }
    parts
}

/// A registration is refused for as long as Register is tried, after a machine was launched.
fn refused_registrations(rng: &mut StdRng) -> Parts {
    let error = Fault::Refuse(ApiError::new(500, "Server Error"));
    let faults = [Fault::Lost(0), Fault::Lost(502), error];
    let fault = faults[rng.random_range(0..faults.len())].clone();
    let rule = jit(0, rng.random_range(20..70), fault);
    let outage = ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule)));
    let early = JobPlot { queued: None, ..plain(1, rng.random_range(30..900)) };
    vec![outage, job(1, 30), ('j', Part::Job(early))]
}

/// A machine freezes as soon as it has claimed its registration.
fn frozen_at_start(rng: &mut StdRng) -> Parts {
    let mut parts: Parts = (0..4).map(|at| job(1 + at, 300)).collect();
    let fate = |rng: &mut StdRng| Fate::Freezes(seconds(rng.random_range(0..4)));
    parts.extend((0..4).map(|launch| ('l', Part::Loss(launch, Loss::Then(fate(rng))))));
    parts
}

/// A step is tried until its tries are used up, while the machine works or boots.
fn given_up(rng: &mut StdRng) -> Parts {
    let port = ["Ledger.record_registration", "Handoff.put", "Ledger.record_handover"]
        [rng.random_range(0..3)];
    let mut parts = vec![job(1, rng.random_range(600..1500)), job(1, 60)];
    parts.push(aimed(port, 1, rng.random_range(20..50), Strike::After));
    if rng.random_ratio(1, 2) {
        let thief = JobPlot { kind: Kind::Strange, ..plain(1, 2000) };
        parts.push(('j', Part::Job(thief)));
    }
    parts
}

/// The report queue is out when lines come.
fn queue_out(rng: &mut StdRng) -> Parts {
    let strike = [Strike::Before, Strike::After][rng.random_range(0..2)];
    vec![job(1, 60), job(1, 60), aimed("Reports.send_batch", 1, rng.random_range(2..6), strike)]
}

/// Calls take so long that functions are cut off.
fn slow(rng: &mut StdRng) -> Parts {
    let mut parts: Parts = (0..4).map(|at| job(1 + 40 * at, 200)).collect();
    parts.push(aimed("", rng.random_range(1..30), rng.random_range(8..20), Strike::Slow));
    parts
}

/// A machine works, perhaps on a job that nobody can see, while its execution fails: Register's answer is lost, and what it
/// asks first then fails until its tries are used up.
fn locked_out(rng: &mut StdRng) -> Parts {
    let mut parts = vec![job(1, rng.random_range(900..2000))];
    if rng.random_ratio(2, 3) {
        let thief = JobPlot { kind: Kind::Strange, ..plain(10, rng.random_range(900..4000)) };
        let held = seconds(rng.random_range(1000..3000));
        parts.push(('j', Part::Job(thief)));
        parts.push(('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, held)));
    }
    parts.push(('n', Part::LostAnswer(3)));
    let strike = if rng.random_ratio(1, 2) { Strike::Before } else { Strike::CutBefore };
    parts.push(aimed("Ledger.runner", 2, rng.random_range(20..26), strike));
    parts
}

/// Each kind of refusal by EC2.
fn refused_launches(rng: &mut StdRng) -> Parts {
    let mut parts = Vec::new();
    for (index, refusal) in (0..).zip(Refusal::ALL) {
        let at = seconds(index * 900);
        parts.push(('o', Part::Outage(at, Outage::Refused(*refusal, rng.random_range(1..6)))));
        parts.extend((0..3).map(|more| job(index * 900 + 5 + more, 30)));
    }
    parts
}

/// A selector that fails, refuses, errs and chooses by turns.
fn odd_selector(_: &mut StdRng) -> Parts {
    let mistake = Part::Mistake(Duration::ZERO, Mistake::Selector, seconds(5000));
    let mut parts = vec![('m', mistake)];
    parts.extend((1..9).map(|at| job(at * 20, 30)));
    parts
}

/// GitHub refuses registrations for a reason of its own, or for one that an operator has to mend.
fn refused_once(rng: &mut StdRng) -> Parts {
    let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
    limit.headers.push(("retry-after".into(), rng.random_range(30..300u32).to_string()));
    let mistake = |mistake| ('m', Part::Mistake(Duration::ZERO, mistake, seconds(1000)));
    let fault = |error| {
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(jit(0, 2, Fault::Refuse(error)))))
    };
    let mut parts = vec![match rng.random_range(0..7) {
        0 => fault(limit),
        1 => fault(ApiError::new(422, "Invalid request.")),
        2 => fault(ApiError::new(401, "Bad credentials")),
        3 => mistake(Mistake::ForbiddenGroup),
        4 => mistake(Mistake::UnknownGroup),
        5 => mistake(Mistake::FullGroup),
        _ => mistake(Mistake::FewRunners),
    }];
    parts.extend((1..4).map(|at| job(at, 60)));
    parts
}

/// GitHub does not know a registration for a while.
fn vanishing(rng: &mut StdRng) -> Parts {
    let rule = FaultRule {
        method: "GET".into(),
        template: endpoint::ORG_RUNNER.into(),
        skip: rng.random_range(0..2),
        times: rng.random_range(2..4),
        fault: Fault::Refuse(ApiError::not_found()),
    };
    vec![
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))),
        ('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(4000))),
        job(1, 60),
    ]
}

/// Register is invoked twice, and the second time takes until the machine has claimed what the first had handed over; or
/// it makes a registration of its own, and ends before it notes that.
fn invoked_twice(rng: &mut StdRng) -> Parts {
    if rng.random_ratio(1, 2) {
        let (port, number, strike) = match rng.random_range(0..3) {
            0 => ("Forge.register", 3, Strike::After),
            1 => ("Forge.register", 3, Strike::CutAfter),
            _ => ("Ledger.record_registration", 2, Strike::CutBefore),
        };
        return vec![job(1, 60), ('t', Part::Twice(3)), aimed(port, number, 1, strike)];
    }
    vec![
        job(1, 60),
        ('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(1500))),
        ('t', Part::Twice(3)),
        aimed("Forge.", rng.random_range(1..4), rng.random_range(1..4), Strike::Slow),
        aimed("Handoff.put", 2, 1, Strike::Slow),
        aimed("Ledger.record_registration", 2, 1, Strike::Slow),
    ]
}

/// An execution is aborted while its registration is not noted yet.
fn aborted_early(rng: &mut StdRng) -> Parts {
    vec![
        job(1, 60),
        aimed("Ledger.record_registration", 1, 40, Strike::Before),
        ('a', Part::Abort(seconds(rng.random_range(3..60)), 0)),
    ]
}

/// A runner has a job that nobody can see, and GitHub calls it idle.
fn unseen_at_work(rng: &mut StdRng) -> Parts {
    let thief = JobPlot { kind: Kind::Strange, ..plain(10, rng.random_range(900..4000)) };
    vec![
        job(1, 60),
        ('j', Part::Job(thief)),
        ('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(2000))),
        ('q', Part::Quirk(seconds(20), Quirk::SaysIdle, 0, seconds(720))),
    ]
}

/// That, and its execution is aborted.
fn aborted_and_called_idle(rng: &mut StdRng) -> Parts {
    let mut parts = unseen_at_work(rng);
    parts.push(('a', Part::Abort(seconds(rng.random_range(40..300)), 0)));
    parts
}

/// That, and what its line brings to light can't be noted.
fn called_idle(rng: &mut StdRng) -> Parts {
    let mut parts = unseen_at_work(rng);
    parts.push(aimed("Ledger.account", 1, rng.random_range(1..6), Strike::Before));
    parts
}

/// A line that is not true: while the runner works on its own job, or waits for one.
fn forged(rng: &mut StdRng) -> Parts {
    let lines = [Stranger::ForgedInvisible, Stranger::ForgedRun, Stranger::ForgedNoRun];
    let line = lines[rng.random_range(0..lines.len())];
    let mut parts = vec![job(1, 2000)];
    if rng.random_ratio(1, 2) {
        parts.push(('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(2500))));
        parts.push(('s', Part::Stranger(seconds(100), line, 0)));
    }
    // The queue takes one line of a runner in five minutes.
    parts.push(('s', Part::Stranger(seconds(rng.random_range(410..440)), line, 0)));
    parts
}

/// A line that is not true comes before all that is, and before the first check.
fn forged_early(rng: &mut StdRng) -> Parts {
    vec![
        job(1, 2000),
        ('s', Part::Stranger(seconds(rng.random_range(5..12)), Stranger::ForgedInvisible, 0)),
        // The first is that line, the second GitHub's word.
        aimed("Reports.send", 2, 3, Strike::Before),
        aimed("Fleet.instance", 1, 9, Strike::Before),
    ]
}

/// A line about a runner that waits for its job, and that GitHub does not let go; then another.
fn forged_in_vain(rng: &mut StdRng) -> Parts {
    let rule = FaultRule {
        method: "DELETE".into(),
        template: endpoint::ORG_RUNNER.into(),
        skip: 0,
        times: 12,
        fault: Fault::Refuse(ApiError::new(422, "is currently running a job")),
    };
    let line = |at| ('s', Part::Stranger(seconds(at), Stranger::ForgedInvisible, 0));
    vec![
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))),
        ('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(2000))),
        job(1, 60),
        line(rng.random_range(60..90)),
        line(rng.random_range(410..440)),
    ]
}

/// A job is cancelled, and its run deleted, before its event comes; that it was cancelled can't be noted.
fn deleted(rng: &mut StdRng) -> Parts {
    let gone = JobPlot {
        cancelled: Some(seconds(60)),
        queued: Some(seconds(rng.random_range(300..600))),
        ..plain(1, 60)
    };
    vec![
        ('j', Part::Job(gone)),
        ('s', Part::Stranger(seconds(200), Stranger::DeletesRun, 0)),
        aimed("Ledger.cancel_job", 1, 20, Strike::Before),
    ]
}

/// A tier is written wrongly when a job comes that only it could serve.
fn invalid_tier(rng: &mut StdRng) -> Parts {
    let large = JobPlot { kind: Kind::Large, ..plain(5, 60) };
    let lasts = seconds(rng.random_range(330..900));
    vec![('m', Part::Mistake(Duration::ZERO, Mistake::TierInvalid, lasts)), ('j', Part::Job(large))]
}

/// So many jobs at once that their registrations are spread over time.
fn burst(rng: &mut StdRng) -> Parts {
    let mut parts: Parts = (0..36).map(|_| job(1, 60)).collect();
    parts.push(aimed("Gate.reserve", rng.random_range(1..36), 1, Strike::Before));
    parts
}

/// The spot market has nothing for a while.
fn spot_fails(rng: &mut StdRng) -> Parts {
    let lasts = seconds(rng.random_range(300..1200));
    let pool = |zone| ('o', Part::Outage(Duration::ZERO, Outage::Pool(lasts, zone)));
    let mut parts = vec![pool(0), pool(1)];
    parts.extend((0..6).map(|at| job(1 + 30 * at, 60)));
    parts.push(aimed("Gate.strike", rng.random_range(1..4), 1, Strike::Before));
    parts
}

/// One runner of a tier at a time, and machines that die at work.
fn few_places(rng: &mut StdRng) -> Parts {
    let mistake = Part::Mistake(Duration::ZERO, Mistake::FewRunners, seconds(4000));
    let mut parts = vec![('m', mistake)];
    parts.extend((0..4).map(|at| job(1 + at, rng.random_range(100..600))));
    let after = seconds(rng.random_range(1..100));
    parts.push(('l', Part::Loss(0, Loss::Then(Fate::DiesAtWork(after)))));
    parts
}

/// A tier's limit is lowered while more runners than that are there; and capacity is gone for a while.
fn fewer_places(rng: &mut StdRng) -> Parts {
    let mistake = Part::Mistake(seconds(30), Mistake::FewRunners, seconds(6000));
    let mut parts = vec![('m', mistake)];
    parts.extend((0..3).map(|at| job(1 + at, 2000)));
    parts.extend((0..2).map(|at| job(400 + at, 60)));
    let lasts = seconds(rng.random_range(300..900));
    parts.push(('o', Part::Outage(seconds(2000), Outage::Capacity(lasts))));
    parts
}

/// While a launch waits for its tier's only place, a runner of another tier takes its job.
fn served_meanwhile(rng: &mut StdRng) -> Parts {
    let large = JobPlot { kind: Kind::Large, ..plain(700, 60) };
    vec![
        ('m', Part::Mistake(Duration::ZERO, Mistake::FewRunners, seconds(9000))),
        job(1, rng.random_range(1300..1700)),
        job(3, 3000),
        ('j', Part::Job(large)),
    ]
}

/// EC2 takes machines back, at every moment of their lives.
fn taken_back(rng: &mut StdRng) -> Parts {
    let mut parts: Parts = (0..6).map(|at| job(1 + 20 * at, 300)).collect();
    let mut deed = |at: u64| {
        let at = seconds(at + rng.random_range(0..20));
        ('d', Part::Deed(at, Deed::Reclaimed, rng.random_range(0..6)))
    };
    parts.extend((0..6).map(|turn| deed(5 + 20 * turn)));
    if rng.random_ratio(1, 2) {
        parts.push(('q', Part::Quirk(seconds(4), Quirk::Withheld, 0, seconds(900))));
    }
    if rng.random_ratio(1, 3) {
        let busy = Fault::Refuse(ApiError::new(422, "is currently running a job"));
        let rule = FaultRule {
            method: "DELETE".into(),
            template: endpoint::ORG_RUNNER.into(),
            skip: 0,
            times: 6,
            fault: busy,
        };
        parts.push(('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))));
    }
    parts
}

/// Deliveries fail, perhaps for hours, and GitHub does not send all of them again.
fn refused_deliveries(rng: &mut StdRng) -> Parts {
    let mut parts = vec![job(1, 60)];
    parts.extend((0..4).map(|at| job(600 + at, 60)));
    match rng.random_range(0..3) {
        0 => {
            let mistake = Part::Mistake(seconds(200), Mistake::NoSecret, seconds(5 * 3600));
            parts.push(('m', mistake));
        }
        1 => parts.push(aimed("Executions.start", 2, 9, Strike::Before)),
        _ => {
            parts.push(aimed("Executions.start", 1, 1, Strike::Before));
            // The webhook's call is the first, and the reconciler's come next.
            parts.extend((2..6).map(|number| ('t', Part::Twice(number))));
        }
    }
    let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
    limit.headers.push(("retry-after".into(), "60".into()));
    let error = match rng.random_range(0..4) {
        0 => limit,
        1 => ApiError::not_found(),
        2 => ApiError::new(500, "Server Error"),
        _ => return parts,
    };
    let rule = FaultRule {
        method: "POST".into(),
        template: endpoint::DELIVERY_ATTEMPTS.into(),
        skip: 0,
        times: rng.random_range(1..4),
        fault: Fault::Refuse(error),
    };
    parts.push(('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))));
    parts
}

/// No event of some jobs comes, and the repository can't be looked at for a while.
fn unheard(rng: &mut StdRng) -> Parts {
    let silent = |at: u64| ('j', Part::Job(JobPlot { queued: None, ..plain(at, 60) }));
    let mut parts = vec![job(1, 900)];
    parts.extend((0..3).map(|_| silent(rng.random_range(100..900))));
    let error = match rng.random_range(0..4) {
        0 => ApiError::not_found(),
        1 => ApiError::new(403, "Resource not accessible by integration"),
        2 => ApiError::new(503, "No server is currently available"),
        _ => return parts,
    };
    let template = if rng.random_ratio(1, 2) { endpoint::RUNS } else { endpoint::RUN_JOBS };
    let rule = FaultRule {
        method: "GET".into(),
        template: template.into(),
        skip: rng.random_range(0..2),
        times: rng.random_range(1..4),
        fault: Fault::Refuse(error),
    };
    parts.push(('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))));
    parts
}

/// Jobs are cancelled while their machines are bought, registered or boot; perhaps GitHub can't be asked about them.
fn cancelled_early(rng: &mut StdRng) -> Parts {
    let cancelled = |after: u64| JobPlot { cancelled: Some(seconds(after)), ..plain(1, 60) };
    let mut parts: Parts =
        (0..8).map(|_| ('j', Part::Job(cancelled(rng.random_range(1..25))))).collect();
    parts.push(aimed("Fleet.launch", 1, 6, Strike::Slow));
    if rng.random_ratio(1, 2) {
        parts.push(aimed("Forge.runner", rng.random_range(1..4), 3, Strike::Before));
    }
    parts
}

/// A job is cancelled when all of its runners are lost.
fn cancelled_late(rng: &mut StdRng) -> Parts {
    let cancelled = Some(seconds(rng.random_range(900..3000)));
    let mut parts = vec![('j', Part::Job(JobPlot { cancelled, ..plain(1, 60) }))];
    parts.extend((0..5).map(|launch| ('l', Part::Loss(launch, Loss::DiesAtLaunch))));
    parts
}

/// That a job's deployment waits can't be told, so its runner waits in vain.
fn held_unknown(rng: &mut StdRng) -> Parts {
    let approved = Some(seconds(rng.random_range(2000..5000)));
    vec![
        ('j', Part::Job(JobPlot { approved, ..plain(1, 60) })),
        aimed("Forge.deployment_waits", 1, 1, Strike::Before),
    ]
}

/// EC2 takes the machine of a job back at this time: of the `index`th that lives.
fn taken(at: u64, index: usize) -> (char, Part) {
    ('d', Part::Deed(seconds(at), Deed::Reclaimed, index))
}

/// Jobs lose their machines at work, alone or as several of one run, and are run again once it is over: unless they end
/// well before, are cancelled, or somebody else runs them. Functions fail meanwhile, or run twice.
fn lost_machines(rng: &mut StdRng) -> Parts {
    let lasts = rng.random_range(300..1500);
    let mut parts = vec![job(1, lasts), taken(rng.random_range(20..200), 0)];
    let beside = |rng: &mut StdRng| {
        let lasts = rng.random_range(30..3000);
        ('j', Part::Job(JobPlot { beside: true, ..plain(5, lasts) }))
    };
    match rng.random_range(0..8) {
        // All of the run lose theirs.
        0 => {
            parts.push(beside(rng));
            parts.push(taken(rng.random_range(20..300), 1));
        }
        // The run goes on for long.
        1 => parts.push(beside(rng)),
        // It ends in the two minutes of the warning.
        2 => parts = vec![job(1, lasts), taken(lasts - rng.random_range(1..60), 0)],
        // Somebody cancels it when its machine is gone.
        3 => {
            let cancelled = Some(seconds(rng.random_range(330..700)));
            parts[0] = ('j', Part::Job(JobPlot { cancelled, ..plain(1, lasts) }));
        }
        // Somebody runs it again.
        4 => parts.push((
            'q',
            Part::Quirk(seconds(rng.random_range(800..1200)), Quirk::RunAgain, 0, seconds(1)),
        )),
        // It takes the runner of another, and its own event is lost: nothing of ours was started for it.
        5 => {
            let silent = JobPlot { queued: None, ..plain(3, lasts) };
            parts = vec![job(1, 60), ('j', Part::Job(silent))];
            parts.push(('q', Part::Quirk(seconds(2), Quirk::Withheld, 0, seconds(400))));
            parts.push(taken(rng.random_range(20..90), 0));
        }
        6 => {
            let ports = ["InterruptedRuns.", "Reruns.", "WaitingRuns.jobs", "Gate.keep_off_spot"];
            let strike = any(rng, &Strike::ALL);
            for port in ports {
                parts.push(aimed(port, rng.random_range(1..5), rng.random_range(1..4), strike));
            }
        }
        _ => parts.extend((5..60).map(|number| ('t', Part::Twice(number)))),
    }
    parts
}

/// GitHub does not run a job again: for now, or ever; or its answer is lost.
fn refused_reruns(rng: &mut StdRng) -> Parts {
    let refused = |status, text| Fault::Refuse(ApiError::new(status, text));
    let mut limit = ApiError::new(403, "You have exceeded a secondary rate limit.");
    limit.headers.push(("retry-after".into(), rng.random_range(30..600u32).to_string()));
    let faults = [
        Fault::Refuse(limit),
        refused(401, "Bad credentials"),
        refused(403, "The workflow run containing this job is already running"),
        refused(403, "Only jobs from the current attempt can be re-run"),
        refused(403, "This workflow run cannot be retried"),
        refused(403, "Resource not accessible by integration"),
        refused(404, "Not Found"),
        refused(500, "Server Error"),
        Fault::Lost(502),
    ];
    let fault = faults[rng.random_range(0..faults.len())].clone();
    let asks = ("POST", endpoint::JOB_RERUN, rng.random_range(1..3));
    // For a day, or for a moment.
    let looks = ("GET", endpoint::RUN, if rng.random_ratio(1, 2) { 400 } else { 2 });
    let (method, template, times) = if rng.random_ratio(2, 3) { asks } else { looks };
    let rule =
        FaultRule { method: method.into(), template: template.into(), skip: 0, times, fault };
    vec![
        job(1, rng.random_range(300..1500)),
        taken(rng.random_range(20..200), 0),
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))),
    ]
}

/// Whenever a job is run again, its machine is taken again.
fn lost_again_and_again(rng: &mut StdRng) -> Parts {
    let mut parts = vec![job(1, 4000)];
    parts.extend((0..8).map(|turn| taken(turn * 900 + rng.random_range(30..400), 0)));
    parts
}

/// A job's tier is gone when its machine is.
fn lost_with_its_tier(rng: &mut StdRng) -> Parts {
    let large = JobPlot { kind: Kind::Large, ..plain(1, 3000) };
    let gone = Part::Mistake(seconds(10), Mistake::TierGone, seconds(9000));
    vec![('j', Part::Job(large)), ('m', gone), taken(rng.random_range(400..1500), 0)]
}

/// A fault at registrations.
fn jit(skip: u32, times: u32, fault: Fault) -> FaultRule {
    FaultRule { method: "POST".into(), template: endpoint::ORG_JIT.into(), skip, times, fault }
}

/// A runner is known by its name alone, and lists do not show it.
fn unlisted(rng: &mut StdRng) -> Parts {
    let rule = jit(0, rng.random_range(1..4), Fault::Lost(0));
    vec![
        ('o', Part::Outage(Duration::ZERO, Outage::GitHub(rule))),
        ('q', Part::Quirk(seconds(2), Quirk::StaleLists, 0, seconds(rng.random_range(5..60)))),
        job(1, 60),
        job(5, 60),
    ]
}
