//! Launch: record the job, see whether a machine is still needed, and buy one.

use std::time::Duration;

use tracing::{error, info, warn};

use crate::config::{Market, Settings, Tier};
use crate::debts::Debts;
use crate::error::Result;
use crate::names::fingerprint;
use crate::ports::{
    Clock, Context, Fleet, Forge, InstanceState, JobRecord, JobStatus, Launch, LaunchOrder, Ledger,
    RunnerContext, Shortage, Telemetry,
};
use crate::reach::reached;
use crate::runner::register::{block_keys, place};
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
    let record = record(context, event, now).await;
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
    for key in block_keys(&place(settings, event)?, &input.provider) {
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
    if let Some(most) = tier.max_runners {
        let live = context.fleet().live_in_tier(&tier.name).await?;
        // One that was bought by a call whose answer was lost counts, and must be got hold of.
        if live >= most && !has_instance(context, runner).await? {
            reached("launch: the tier is full");
            let wait = state.back_off(runner);
            let reason = format!("{live} of {most} runners of the tier are there");
            return Ok(delayed(context, state, wait, "MaxRunners", &reason));
        }
    }
    buy(context, event, tier, state, now).await
}

async fn record<C: RunnerContext>(
    context: &C,
    event: &StepEvent,
    now: Timestamp,
) -> Option<JobRecord> {
    event.input.job()?;
    for attempt in 1..=RECORD_TRIES {
        match context.ledger().record_job(&event.runner, &event.input, now + JOB_KEPT).await {
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
    event: &StepEvent,
    tier: &Tier,
    mut state: RunState,
    now: Timestamp,
) -> Result<RunState> {
    let runner = event.runner.as_str();
    let markets: &[bool] = match tier.market {
        Market::OnDemand => &[false],
        Market::Spot => &[true],
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
                return Ok(launched(state, tier, instance, now));
            }
            Launch::TokenUsed => return token_used(context, event, tier, state, now).await,
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

async fn has_instance<C: RunnerContext>(context: &C, runner: &str) -> Result<bool> {
    let instances = context.fleet().of_runner(runner).await?;
    Ok(instances.iter().any(|instance| instance.state != InstanceState::Ended))
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
