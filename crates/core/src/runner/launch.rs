//! Launch: record the job, see whether a machine is still needed, and buy one.

use std::time::Duration;

use tracing::{error, info, warn};

use crate::config::{Market, Settings, Tier};
use crate::debts::Debts;
use crate::error::Result;
use crate::instances::strike;
use crate::names::{Lineage, fingerprint};
use crate::ports::{
    Clock, Context, Fleet, Forge, Gate, InstanceState, JobRecord, JobStatus, Launch, LaunchOrder,
    Ledger, RunnerContext, Shortage, Slot, Telemetry,
};
use crate::reach::reached;
use crate::reconciler::{self, ACTIVE};
use crate::runner::register::block_keys;
use crate::runner::state::LONGEST_WAIT;
use crate::runner::{Next, RunState, StepEvent};
use crate::time::Timestamp;

/// GitHub cancels a job that was queued for 24 h (docs.github.com, "Actions limits").
const LAUNCH_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Job items of the ledger: longer than GitHub keeps a job queued (24 h, cancelled up to 48 h later).
const JOB_KEPT: Duration = Duration::from_secs(4 * 86_400);

/// A launch this long after the job was queued may be too late: another runner may have run it.
const LATE: Duration = Duration::from_secs(120);

/// Between two questions to GitHub while a launch backs off.
const ASK_INTERVAL: Duration = Duration::from_secs(3600);

/// Tries to record the job. An unrecorded job costs one surplus runner, a job not launched costs the job.
const RECORD_TRIES: u32 = 3;

/// Waits in a row before one is taken for an operator's: together some minutes, which is longer than IAM and EC2 take
/// to know what is new, and than functions keep the configuration.
const SHORT_WAITS: u32 = 4;

/// From the moment a place is taken until its machine is bought and listed, at the latest: the function's time-out. A
/// runner that had a machine before may get another in this time.
const BOUGHT_WITHIN: Duration = Duration::from_secs(60);

/// The same where EC2 lists none of the runner's machines: its list lags (EC2 guide, "Eventual consistency").
const LISTED_WITHIN: Duration = Duration::from_secs(300);

/// Between two looks at EC2 of all who wait for a place of one tier together: many wait at a time, and each asks again
/// within minutes.
const LOOK_STEP: Duration = Duration::from_secs(30);

/// A wait for which a place is kept without more ado. After a longer one it would look like that of a machine that is gone.
const KEPT_FOR: Duration = Duration::from_secs(240);

/// Digits of the name by which a runner holds its place. All places of a tier are one item of the ledger, and each write is
/// paid by the item's size: with whole names it would be three times as long.
const HOLDER_DIGITS: usize = 12;

/// Why a launch waits whose tier has its `max_runners`.
const NO_PLACE: &str = "MaxRunners";

/// Places for registrations by one App. Each registration costs 5 points, of 900 a minute for one endpoint
/// (docs.github.com, "About secondary rate limits"): 180 are allowed, and some are left for repetitions.
const PLACES: u64 = 170;

/// For how long a registration keeps its place: GitHub's minute, and a little, because launches do not all take equally
/// long until they register.
const PLACE_HELD: Duration = Duration::from_secs(63);

/// Between two launches that had to wait for their places: EC2 takes 5 purchases a second beyond the first 50 (EC2
/// Developer Guide, "Request throttling"), and GitHub no more than 100 requests at a time.
const PLACE_APART: Duration = Duration::from_millis(150);

/// What is not worth a wait.
const SHORT_OF_PACE: Duration = Duration::from_secs(3);

/// Between two purchases once EC2 has taken no more: 5 a second (EC2 Developer Guide, "Request throttling").
const PURCHASE_STEP: Duration = Duration::from_millis(200);

/// Waits in a row after which a purchase that EC2 takes no more of is not put in line again: what it says then is not
/// of a burst.
const WAITS_IN_LINE: u32 = 3;

/// A moment that was reserved is good for this long: launches that waited for capacity may all go on at once.
const RESERVED_FOR: Duration = Duration::from_secs(60);

/// Until EC2's list is sure to show an instance of an earlier call, for the case that a token was used.
const LIST_LAG: Duration = Duration::from_secs(15);

/// The reaper leaves an instance alone for its lifetime and this long, and never longer than
/// [`LONGEST_UNTIL`].
const REAPER_MARGIN: Duration = Duration::from_secs(3600);

/// The longest time that the reaper leaves an instance alone.
const LONGEST_UNTIL: Duration = Duration::from_secs(6 * 86_400);

pub(super) async fn launch<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
) -> Result<RunState> {
    let debts = Debts::new(context, settings)?;
    let (runner, input) = (event.runner.as_str(), &event.input);
    let mut state = event.state.clone();
    let now = context.clock().now();
    let record = record(context, settings, event, now).await;
    if record.is_some_and(|record| record.cancelled_at.is_some()) {
        reached("launch: cancelled");
        info!(runner, "not launched: the job was cancelled");
        return Ok(state.ended("cancelled"));
    }
    if now.since(event.started) >= LAUNCH_WINDOW {
        reached("launch: given up after a day");
        error!(runner, reason = state.reason, "given up: no machine for 24 h");
        context.telemetry().count("LaunchGivenUp", Some(("Tier", &input.provider)), 1.0);
        return Ok(state.ended("no machine for 24 h"));
    }
    for key in block_keys(&settings.place(input.repository())?, &input.provider) {
        if let Some(block) = context.ledger().blocked(&key).await?
            && block.until > now
        {
            reached("launch: blocked");
            // All that wait for it would start at the same moment, and GitHub would say "later" again.
            let wait = block.until.since(now) + state.spread(runner);
            return Ok(delayed(context, state, wait, "Blocked", &block.reason));
        }
    }
    if !still_needed(&debts, context, event, &mut state, now).await? {
        reached("launch: unneeded");
        info!(runner, url = input.job_url, "not launched: the job needs this runner no more");
        context.telemetry().count("LaunchUnneeded", Some(("Tier", &input.provider)), 1.0);
        return Ok(state.ended("unneeded"));
    }
    let waited_for_place = state.reason.as_deref().is_some_and(|it| it.starts_with(NO_PLACE));
    let Some(tier) = settings.tiers.get(&input.provider) else {
        reached("launch: no such tier");
        error!(
            runner,
            tier = input.provider,
            problems = settings.tiers.problems.join("; "),
            "the tier does not exist or is invalid: correct control/tiers"
        );
        let wait = operators_time(&state, runner);
        return Ok(delayed(context, state, wait, "Configuration", "the tier does not exist"));
    };
    if let Some(most) = tier.max_runners
        && let Some(reason) = full(context, runner, tier, most, &mut state).await?
    {
        reached("launch: the tier is full");
        let wait = state.slot_wait(runner);
        return Ok(delayed(context, state, wait, NO_PLACE, &reason));
    }
    // While it waited for its place, a runner that came free may have run its job.
    if waited_for_place && state.asked_at.is_some_and(|asked| now.since(asked) > LATE) {
        state.asked_at = None;
        if !still_needed(&debts, context, event, &mut state, now).await? {
            reached("launch: served while it waited for a place");
            context.gate().free_slot(&tier.name, &holder(runner)).await?;
            info!(runner, url = input.job_url, "not launched: the job was served meanwhile");
            context.telemetry().count("LaunchUnneeded", Some(("Tier", &input.provider)), 1.0);
            return Ok(RunState { slot: false, ..state }.ended("unneeded"));
        }
    }
    let attempt = state.attempt;
    let bought = match pace(context, settings, event, &mut state, now).await {
        Some(wait) => delayed(context, state, wait, "Pace", "registrations are spread over time"),
        None => buy(context, settings, event, tier, state, now).await?,
    };
    if bought.instance.is_some() || !bought.slot {
        return Ok(bought);
    }
    // Without a machine it keeps no place from those who can be served. One that waits for its moment, or whose purchase
    // is made again because its outcome is not known, keeps it.
    let (gate, holder) = (context.gate(), holder(runner));
    if bought.attempt != attempt {
        reached("launch: no machine, and its place is given back");
        gate.free_slot(&tier.name, &holder).await?;
        return Ok(RunState { slot: false, ..bought });
    }
    let wait = Duration::from_secs(bought.wait_seconds);
    if let (Some(most), true) = (tier.max_runners, wait > KEPT_FOR) {
        reached("launch: its place is kept for a long wait");
        gate.take_slot(&tier.name, &holder, most, context.clock().now() + wait).await?;
    }
    Ok(bought)
}

/// The name by which a runner holds its place.
pub(super) fn holder(runner: &str) -> String {
    fingerprint(&[runner], HOLDER_DIGITS)
}

/// Why there is no place for the runner among its tier's `most`; `None` if it has one now. The ledger counts the
/// runners of all executions, one by one, so that no burst gets by. EC2 counts the machines that have no execution
/// any more, and shows which places are held by runners whose machines are gone.
async fn full<C: RunnerContext>(
    context: &C,
    runner: &str,
    tier: &Tier,
    most: u32,
    state: &mut RunState,
) -> Result<Option<String>> {
    let (gate, own) = (context.gate(), holder(runner));
    let now = context.clock().now();
    let mut slot = gate.take_slot(&tier.name, &own, most, now).await?;
    let looks = match &slot {
        Slot::Taken => true,
        Slot::Full { holders, looked_at } => {
            let before = now - LOOK_STEP;
            looked_at.is_none_or(|looked_at| looked_at <= before)
                && holders.iter().any(|(_, from)| now.since(*from) >= BOUGHT_WITHIN)
                && gate.note_look_at_slots(&tier.name, before, now).await?
        }
    };
    let machines = if looks { context.fleet().in_tier(&tier.name).await? } else { vec![] };
    if let (Slot::Full { holders, .. }, true) = (&slot, looks) {
        let stale = stale(holders, &machines, now);
        for holder in &stale {
            if gate.free_slot(&tier.name, holder).await? {
                reached("launch: the place of a machine that is gone is freed");
                warn!(holder, tier = tier.name, "freed the place of a machine that is gone");
                context.telemetry().count("SlotFreed", Some(("Tier", &tier.name)), 1.0);
            }
        }
        if !stale.is_empty() {
            slot = gate.take_slot(&tier.name, &own, most, now).await?;
        }
    }
    if slot != Slot::Taken {
        reached("launch: all places are taken");
        return Ok(Some(format!("all {most} places of the tier are taken")));
    }
    state.slot = true;
    let live = |(_, state): &&(String, InstanceState)| *state != InstanceState::Ended;
    // One that was bought by a call whose answer was lost counts, and must be got hold of.
    let bought = machines.iter().filter(live).any(|(name, _)| name == runner);
    let live = machines.iter().filter(live).count();
    if bought || live < usize::try_from(most).unwrap_or(usize::MAX) {
        reached("launch: it has a place");
        return Ok(None);
    }
    reached("launch: a place, but all machines are there");
    gate.free_slot(&tier.name, &own).await?;
    state.slot = false;
    Ok(Some(format!("{live} of {most} runners of the tier are there")))
}

/// The holders of places whose machines are gone: EC2 shows them ended, or does not list any although it must by now.
fn stale<'a>(
    holders: &'a [(String, Timestamp)],
    machines: &[(String, InstanceState)],
    now: Timestamp,
) -> Vec<&'a str> {
    let machines: Vec<(String, InstanceState)> =
        machines.iter().map(|(runner, state)| (holder(runner), *state)).collect();
    let gone = |(holder, from): &&(String, Timestamp)| {
        let held = now.since(*from);
        let mut its = machines.iter().filter(|(its, _)| its == holder).peekable();
        match its.peek() {
            None => held >= LISTED_WITHIN,
            Some(_) => {
                held >= BOUGHT_WITHIN && its.all(|(_, state)| *state == InstanceState::Ended)
            }
        }
    };
    holders.iter().filter(gone).map(|(holder, _)| holder.as_str()).collect()
}

/// How long to wait for the moment that is reserved for the runner's registration, if that is worth a wait. All
/// executions take the places of the Apps in turn, and each place serves one in a minute: so as many register at once as
/// GitHub allows, and in no minute more. Where that can't be told, the launch goes on: GitHub's own word is minded too.
async fn pace<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
    state: &mut RunState,
    now: Timestamp,
) -> Option<Duration> {
    let reserved = state.paced_at.filter(|at| *at + RESERVED_FOR > now);
    let at = match reserved {
        Some(at) => {
            reached("launch: its moment was reserved before");
            at
        }
        None => {
            let app = settings.app.as_ref()?;
            let apps = u64::try_from(settings.additional_apps.len()).unwrap_or(u64::MAX);
            let places = apps.saturating_add(1).saturating_mul(PLACES);
            match reserve(context.gate(), app.app_id, places).await {
                Ok((_, at)) if at.since(now) <= SHORT_OF_PACE => at,
                // All places of a minute come free at about the same moment.
                Ok((place, at)) => at + PLACE_APART.saturating_mul(place),
                Err(failure) => {
                    reached("launch: no moment could be reserved");
                    warn!(runner = event.runner, %failure, "no moment could be reserved");
                    return None;
                }
            }
        }
    };
    state.paced_at = Some(at);
    // Counted from now: the steps before this one have taken their time.
    let wait = at.since(context.clock().now());
    if wait <= SHORT_OF_PACE {
        return None;
    }
    reached("launch: waits for its moment");
    Some(wait)
}

/// The next place in turn, and the moment at which it is free.
async fn reserve(gate: &impl Gate, app: u64, places: u64) -> Result<(u32, Timestamp)> {
    let place = gate.turn(&app.to_string()).await? % places;
    let at = gate.reserve(&format!("{app}/{place}"), PLACE_HELD).await?;
    Ok((u32::try_from(place).unwrap_or(u32::MAX), at))
}

/// How long to wait for the next try of a purchase that EC2 took no more of. Those of a burst stand in line, at the
/// pace at which EC2 takes them; what is refused again and again backs off.
async fn in_line<C: RunnerContext>(context: &C, state: &RunState, runner: &str) -> Duration {
    if state.waits >= WAITS_IN_LINE {
        return state.back_off(runner);
    }
    match context.gate().reserve("ec2", PURCHASE_STEP).await {
        Ok(at) => at.since(context.clock().now()),
        Err(failure) => {
            warn!(runner, %failure, "no place in line could be reserved");
            state.back_off(runner)
        }
    }
}

async fn record<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
    now: Timestamp,
) -> Option<JobRecord> {
    event.input.job()?;
    let due = reconciler::due(settings, &event.input.provider, now);
    if event.state == RunState::default() && Lineage::parse(&event.runner).rank() == 0 {
        let noted = context.ledger().note_repository(&event.input.repository(), now + ACTIVE).await;
        if let Err(failure) = noted {
            reached("launch: the repository is not noted as active");
            warn!(runner = event.runner, %failure, "the repository is not noted as active");
        }
    }
    for attempt in 1..=RECORD_TRIES {
        match context.ledger().record_job(&event.runner, &event.input, due, now + JOB_KEPT).await {
            Ok(record) => return Some(record),
            Err(failure) => {
                reached("launch: recording the job failed");
                warn!(runner = event.runner, attempt, %failure, "the job is not recorded")
            }
        }
    }
    reached("launch: the job is not recorded");
    context.telemetry().count("JobUnrecorded", Some(("Tier", &event.input.provider)), 1.0);
    None
}

/// Whether the machine is still needed. A runner whose job was served by another one is launched only for
/// the job that waits in its place.
async fn still_needed<C: RunnerContext>(
    debts: &Debts<'_, C>,
    context: &C,
    event: &StepEvent,
    state: &mut RunState,
    now: Timestamp,
) -> Result<bool> {
    let (Some(id), Some(queued)) = (event.input.job(), event.input.queued()) else {
        return Ok(true);
    };
    let asked_lately = state.asked_at.is_some_and(|asked| now.since(asked) < ASK_INTERVAL);
    if now.since(queued) <= LATE {
        reached("launch: in time");
        return Ok(true);
    }
    if asked_lately {
        reached("launch: asked lately whether it is needed");
        return Ok(true);
    }
    let job = context.forge().job(&event.input.repository(), id).await?;
    state.asked_at = Some(now);
    let Some(job) = job else {
        reached("launch: its job is gone");
        return Ok(false);
    };
    if job.status == JobStatus::Queued {
        reached("launch: late, and its job waits");
        return Ok(true);
    }
    let Some(owner) = debts.owner(&event.input, Some(&job)).await? else {
        reached("launch: late, and nobody waits");
        return Ok(false);
    };
    if debts.supplied(&owner, Some(&event.runner)).await? {
        reached("launch: late, and who waits has supply");
        return Ok(false);
    }
    if event.input.covers(&owner.wanted()) {
        reached("launch: late, for another job than its own");
        return Ok(true);
    }
    reached("launch: late, and pays for a job that it does not cover");
    debts.pay(&owner, Some(&event.runner), false).await?;
    Ok(false)
}

async fn buy<C: RunnerContext>(
    context: &C,
    settings: &Settings,
    event: &StepEvent,
    tier: &Tier,
    mut state: RunState,
    now: Timestamp,
) -> Result<RunState> {
    let runner = event.runner.as_str();
    let markets: &[bool] = match tier.market {
        Market::OnDemand => &[false],
        Market::Spot => &[true],
        Market::SpotThenOnDemand if spot_rests(context, event, tier).await => &[false],
        Market::SpotThenOnDemand => &[true, false],
    };
    let mut refusals = Vec::new();
    for &spot in markets {
        let market = if spot { "spot" } else { "on-demand" };
        let order = LaunchOrder {
            runner,
            repository: event.input.repository().to_string(),
            tier,
            spot,
            token: fingerprint(&[runner, &state.attempt.to_string(), market], 40),
            until: until(event.started, now, tier),
        };
        match context.fleet().launch(&order).await? {
            Launch::Started { instance, surplus } => {
                for surplus in &surplus {
                    reached("launch: two instances of one purchase");
                    warn!(runner, instance = surplus, "ended a second instance of one purchase");
                    context.fleet().terminate(surplus).await?;
                }
                match spot {
                    true => reached("launch: bought on the spot market"),
                    false => reached("launch: bought on demand"),
                }
                info!(runner, instance, market, "launched");
                context.telemetry().count("RunnerLaunched", Some(("Tier", &tier.name)), 1.0);
                return Ok(launched(state, tier, instance, now));
            }
            Launch::TokenUsed => return token_used(context, event, tier, state, now).await,
            Launch::Busy { text } => {
                reached("launch: EC2 takes no more calls");
                warn!(runner, market, text, "no machine yet");
                let reason = name_of(Shortage::Throttled);
                context.telemetry().count("LaunchRefused", Some(("Reason", reason)), 1.0);
                let wait = in_line(context, &state, runner).await;
                return Ok(delayed(context, state, wait, reason, &text));
            }
            Launch::Refused { shortage, text } => {
                match shortage {
                    Shortage::Capacity => reached("launch: refused for want of capacity"),
                    Shortage::Quota => reached("launch: refused for a quota"),
                    Shortage::Throttled => reached("launch: refused for too many calls"),
                    Shortage::Configuration => reached("launch: refused for a mistake"),
                    Shortage::Unknown => reached("launch: refused for a reason unknown"),
                }
                warn!(runner, market, reason = ?shortage, text, "no machine");
                context.telemetry().count(
                    "LaunchRefused",
                    Some(("Reason", name_of(shortage))),
                    1.0,
                );
                refusals.push((shortage, text));
                if shortage == Shortage::Throttled {
                    break;
                }
                if spot && shortage == Shortage::Capacity {
                    let (gate, telemetry) = (context.gate(), context.telemetry());
                    let counted = strike(gate, telemetry, settings, &tier.name, now).await;
                    if let Err(failure) = counted {
                        reached("launch: a failure of spot is not counted");
                        warn!(runner, %failure, "a failure of spot is not counted");
                    }
                }
            }
        }
    }
    state.attempt = state.attempt.saturating_add(1);
    let configuration = refusals.iter().find(|(shortage, _)| *shortage == Shortage::Configuration);
    let (shortage, text) = match configuration.or(refusals.last()) {
        Some((shortage, text)) => (*shortage, text.as_str()),
        None => (Shortage::Unknown, "EC2 gave no reason"),
    };
    let wait = match shortage {
        Shortage::Configuration => operators_time(&state, runner),
        _ => state.back_off(runner),
    };
    Ok(delayed(context, state, wait, name_of(shortage), text))
}

/// Whether the tier's spot market has failed too often lately, or just now this very job. Where that can't be told,
/// spot is tried.
async fn spot_rests<C: RunnerContext>(context: &C, event: &StepEvent, tier: &Tier) -> bool {
    let rests = context.gate().spot_rests(&tier.name, event.input.run()).await.unwrap_or(false);
    if rests {
        reached("launch: spot rests");
        context.telemetry().count("SpotRested", Some(("Tier", &tier.name)), 1.0);
    }
    rests
}

/// The wait for an operator: the job stays alive, so that acting within 24 h rescues it. The first waits are short.
/// What was made a moment ago (a profile, a group, a tier) is not known everywhere at once, and looks the same.
fn operators_time(state: &RunState, runner: &str) -> Duration {
    if state.waits < SHORT_WAITS {
        reached("launch: a mistake that may be only just made");
        return state.back_off(runner);
    }
    reached("launch: a mistake that an operator has to mend");
    LONGEST_WAIT
}

/// Until when the reaper leaves a machine alone that is launched now, counted from the next whole hour of
/// the execution's life: a purchase that is repeated because its answer was lost must be the same in every
/// parameter, its tags included, or EC2 refuses its token.
fn until(started: Timestamp, now: Timestamp, tier: &Tier) -> Timestamp {
    let hours = now.since(started).as_secs() / 3600 + 1;
    started
        + Duration::from_secs(3600).saturating_mul(u32::try_from(hours).unwrap_or(u32::MAX))
        + (tier.max_lifetime + REAPER_MARGIN).min(LONGEST_UNTIL)
}

/// The token of this attempt belongs to a purchase with other parameters: the tier was changed after a
/// call whose answer was lost. Its instance is found by tag once EC2 lists it; without one, the next
/// attempt has a token of its own.
async fn token_used<C: RunnerContext>(
    context: &C,
    event: &StepEvent,
    tier: &Tier,
    mut state: RunState,
    now: Timestamp,
) -> Result<RunState> {
    reached("launch: token used with other parameters");
    let instances = context.fleet().of_runner(&event.runner).await?;
    if let Some(found) = instances.into_iter().find(|found| found.state != InstanceState::Ended) {
        reached("launch: token used, and its instance found");
        return Ok(launched(state, tier, found.id, now));
    }
    if state.token_used {
        reached("launch: token used, and no instance came of it");
        state.attempt = state.attempt.saturating_add(1);
    }
    state.token_used = !state.token_used;
    Ok(delayed(context, state, LIST_LAG, "TokenUsed", "the tier was changed during a launch"))
}

fn launched(state: RunState, tier: &Tier, instance: String, now: Timestamp) -> RunState {
    RunState {
        next: Next::Register,
        reason: None,
        wait_seconds: 0,
        waits: 0,
        token_used: false,
        instance: Some(instance),
        account: tier.account.clone(),
        launched_at: Some(now),
        lifetime_seconds: tier.max_lifetime.as_secs(),
        boot_seconds: tier.boot_timeout.as_secs(),
        ..state
    }
}

fn delayed<C: Context>(
    context: &C,
    state: RunState,
    wait: Duration,
    reason: &'static str,
    text: &str,
) -> RunState {
    context.telemetry().count("LaunchDelayed", Some(("Reason", reason)), 1.0);
    if reason == "Configuration" {
        context.telemetry().count("ConfigurationError", None, 1.0);
    }
    state.later(wait, format!("{reason}: {text}"))
}

const fn name_of(shortage: Shortage) -> &'static str {
    match shortage {
        Shortage::Capacity => "Capacity",
        Shortage::Quota => "Quota",
        Shortage::Throttled => "Throttled",
        Shortage::Configuration => "Configuration",
        Shortage::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_stale_once_its_machine_is_gone_and_no_sooner() {
        let now = Timestamp::from_seconds(10_000);
        let ago = |seconds| now - Duration::from_secs(seconds);
        let holders: Vec<(String, Timestamp)> = [
            ("lives", 9_000),
            ("ended", 60),
            ("ended-just-now-and-bought-anew", 59),
            ("two-machines", 9_000),
            ("unlisted", 300),
            ("not-listed-yet", 299),
        ]
        .map(|(name, seconds)| (holder(name), ago(seconds)))
        .into();
        let waits = (holder("waits"), now + Duration::from_secs(60));
        let holders = [holders, vec![waits]].concat();
        let machines = [
            ("lives", InstanceState::Running),
            ("ended", InstanceState::Ended),
            ("ended-just-now-and-bought-anew", InstanceState::Ended),
            ("two-machines", InstanceState::Ended),
            ("two-machines", InstanceState::Pending),
            ("another", InstanceState::Ended),
        ]
        .map(|(name, state)| (name.to_owned(), state));
        assert_eq!(stale(&holders, &machines, now), [holder("ended"), holder("unlisted")]);
    }
}
