//! Use case: what EC2 tells of instances. A runner that dies before it got a job is settled at once, rather
//! than at its next check; one that EC2 is about to take back is no supply any more, and whoever counted on it
//! gets another while it still lives. A job that loses its machine is noted, to be run again
//! ([`crate::reconciler`]).
//!
//! Nothing depends on these events: a check finds the same a little later. So they only ever bring forward what
//! is decided by what GitHub, EC2 and the ledger say: an event alone decides nothing, and one that comes late,
//! twice, or for a machine of another system, does nothing.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tracing::{info, warn};

use crate::account::Account;
use crate::config::{Market, Settings};
use crate::cost::{self, Bought};
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::job::{JobId, RunnerInput};
use crate::names::is_plausible;
use crate::ports::{
    Clock, Context, Forge, Gate, Instance, InstanceState, JobStatus, Ledger, Place, Ran, Removal,
    RunnerRecord, Telemetry,
};
use crate::reach::reached;
use crate::reconciler::{InterruptedJob, InterruptedRuns};
use crate::stolen::{Record, come_again};
use crate::time::Timestamp;

/// EC2's reason where someone asked for the end, which then is ours or an operator's: such a runner may be launched
/// again (API Reference, "StateReason").
const ASKED_FOR: &str = "UserInitiatedShutdown";

/// What EC2's reasons begin with where EC2 itself has ended the machine: `Server.SpotInstanceTermination`,
/// `Server.InternalError` (API Reference, "StateReason"). One that powers off after its job has `Client.…`.
const BY_EC2: &str = "Server.";

/// From the loss of a machine to the first look at its job: two minutes are left after a warning, and a runner that
/// is told to stop in them says so itself.
const FIRST_LOOK: Duration = Duration::from_secs(180);

/// Receives after which an event is left to the runner's checks: GitHub calls a runner that is lost offline within
/// a minute or two.
const MAX_RECEIVES: u32 = 4;

/// GitHub's busy flag lags by up to a minute: of a runner that is connected, "not busy" counts that long after its
/// interruption was noted. An event comes again a minute after it was received, and what a receive takes before it notes
/// anything is allowed for.
const SURE_AFTER: Duration = Duration::from_secs(50);

/// What happened to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It ends or has ended.
    Ended,
    /// EC2 takes it back in two minutes.
    Interrupted,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEvent {
    /// `i-…`.
    pub instance: String,
    /// What happened to it.
    pub what: Happening,
    /// When, as the event says.
    pub at: Option<Timestamp>,
    /// Whether it is the one from which on the machine is not charged any more: each has that once (User Guide,
    /// "Instance lifecycle").
    pub charged_until_now: bool,
    /// Account and region in which it happened, as EventBridge says; `None` if the event does not say.
    pub origin: Option<Origin>,
}

/// An account and a region in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The account's number.
    pub account: String,
    /// `eu-central-1`.
    pub region: String,
}

/// Whose machine an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    /// One of the control plane's own account and region.
    Home,
    /// One of the account in which a tier has its machines, and that may be asked of them.
    Elsewhere(&'a Account),
    /// That of nobody whom the tiers name.
    Nobodys,
}

impl InstanceEvent {
    /// Whose machine it is about. Accounts that no tier names, or that have no role for this, are not asked at all, whoever
    /// may put events on the bus.
    pub fn whose<'a>(&self, home: &Origin, settings: &'a Settings) -> Whose<'a> {
        let Some(origin) = self.origin.as_ref().filter(|origin| *origin != home) else {
            return Whose::Home;
        };
        let mut accounts = settings.tiers.iter().filter_map(|tier| tier.account.as_ref());
        let found = accounts.find(|account| {
            let same = (account.id(), &account.region) == (&origin.account, &origin.region);
            same && account.event_role_arn.is_some()
        });
        found.map_or(Whose::Nobodys, Whose::Elsewhere)
    }

    /// Reads an event of EventBridge; `None` if it is another one, or says nothing that can be used.
    pub fn read(event: &Value) -> Option<Self> {
        let detail = event.get("detail")?;
        let (what, charged_until_now) = match event.get("detail-type")?.as_str()? {
            "EC2 Spot Instance Interruption Warning" => (Happening::Interrupted, false),
            "EC2 Instance State-change Notification" => match detail.get("state")?.as_str()? {
                "shutting-down" => (Happening::Ended, true),
                "terminated" | "stopping" | "stopped" => (Happening::Ended, false),
                _ => return None,
            },
            _ => return None,
        };
        let instance = detail.get("instance-id")?.as_str()?.to_owned();
        let digits = instance.strip_prefix("i-")?;
        let plain = digits.len() <= 32 && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let at = event.get("time").and_then(Value::as_str).and_then(Timestamp::parse);
        let text = |key: &str| event.get(key).and_then(Value::as_str).map(str::to_owned);
        let origin = text("account").zip(text("region"));
        let origin = origin.map(|(account, region)| Origin { account, region });
        plain.then_some(Self { instance, what, at, charged_until_now, origin })
    }
}

/// An instance of this install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The runner that it was launched for.
    pub runner: String,
    /// The instance.
    pub instance: Instance,
    /// What is charged for it, where EC2 says so.
    pub bought: Option<Bought>,
}

/// What an instance was launched for.
pub trait Launched {
    /// The instance, if it is one of this install's and was launched for a runner; `None` if EC2 does not list it.
    /// Repeatable.
    fn launched_for(&self, id: &str) -> impl Future<Output = Result<Option<Found>>>;
}

/// What this use case needs.
pub trait InstanceContext: Context {
    /// Machines.
    type Launched: Launched;
    /// Bounds of launches.
    type Gate: Gate;
    /// Jobs that are to be run again.
    type Interrupted: InterruptedRuns;
    /// Machines.
    fn launched(&self) -> &Self::Launched;
    /// Bounds of launches.
    fn gate(&self) -> &Self::Gate;
    /// Jobs that are to be run again.
    fn interrupted(&self) -> &Self::Interrupted;
    /// The account whose machines those are; `None` for the control plane's own.
    fn account(&self) -> Option<&Account> {
        None
    }
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// There is nothing more to do.
    Done,
    /// It can't be told yet; the event is to come again.
    NotYet,
}

/// Handles a batch of SQS records that hold events. `handle` is told the event and how often it was received; what
/// fails, or can't be told yet, is answered so that it comes again.
pub async fn batch(
    event: &Value,
    telemetry: &impl Telemetry,
    may_begin: impl Fn() -> bool,
    handle: impl AsyncFn(InstanceEvent, u32) -> Result<Handled>,
) -> Result<Value> {
    let Some(records) = event.get("Records").and_then(Value::as_array) else {
        return Err(Error::Permanent(
            "the event is no batch of SQS records (Records, a list)".into(),
        ));
    };
    let mut again = Vec::new();
    for record in records {
        let record = Record::read(record)?;
        let event = serde_json::from_str(&record.body).ok();
        let Some(event) = event.as_ref().and_then(InstanceEvent::read) else {
            warn!(message = record.id, "a message that is no event of an instance is dropped");
            telemetry.count("InstanceEventUnusable", None, 1.0);
            continue;
        };
        let handled = match may_begin() {
            true => handle(event.clone(), record.receives).await,
            false => Ok(Handled::NotYet),
        };
        match handled {
            Ok(Handled::Done) => {}
            Ok(Handled::NotYet) => again.push(record.id),
            Err(failure) => {
                warn!(instance = event.instance, %failure, "an instance's event comes again");
                again.push(record.id);
            }
        }
    }
    Ok(come_again(&again))
}

/// Handles one event.
pub async fn handle<C: InstanceContext>(
    context: &C,
    settings: &Settings,
    event: &InstanceEvent,
    receives: u32,
) -> Result<Handled> {
    let found = context.launched().launched_for(&event.instance).await?;
    let Some(found) = found.filter(|found| is_plausible(&found.runner)) else {
        reached("instance: not one of ours");
        return Ok(Handled::Done);
    };
    let Found { runner, instance, bought } = found;
    let debts = Debts::new(context, settings)?;
    let Some(own) = debts.execution(&runner).await?.and_then(|execution| execution.input) else {
        reached("instance: its runner has no execution");
        return Ok(Handled::Done);
    };
    // Tags are whatever the account says: it may speak for runners that live there, and for no others.
    let lives = settings.tiers.get(&own.provider).map(|tier| tier.account.as_ref());
    let there = match (context.account(), lives.flatten()) {
        (None, None) => true,
        (Some(account), Some(lives)) => account.is_beside(lives),
        (None, Some(_)) | (Some(_), None) => false,
    };
    if !there {
        warn!(runner, instance = event.instance, "an account's event names another's runner");
        context.telemetry().count("InstanceEventUnusable", None, 1.0);
        return Ok(Handled::Done);
    }
    if event.charged_until_now {
        let now = context.clock().now();
        // By the mark, not by the number of receives: the first may have failed, or be handled twice.
        let ledger = context.ledger();
        if ledger.charge_machine(&runner, &event.instance, now, debts.expiry()).await? {
            charge(context.telemetry(), &own.provider, bought.as_ref(), event.at.unwrap_or(now));
        }
    }
    let asked_for = instance.reason.as_deref().is_some_and(|reason| reason.contains(ASKED_FOR));
    if event.what == Happening::Ended && (asked_for || instance.state == InstanceState::Running) {
        reached("instance: its end was asked for");
        return Ok(Handled::Done);
    }
    let by_ec2 = instance.reason.as_deref().is_some_and(|reason| reason.starts_with(BY_EC2));
    let taken = by_ec2 || event.what == Happening::Interrupted;
    let record = context.ledger().runner(&runner).await?;
    // By the mark, not by the number of receives: the first may have failed, or have found no time.
    if event.what == Happening::Interrupted && record.interrupted_at.is_none() {
        interrupted(context, settings, &debts, &runner, &own.provider).await?;
    }
    if let (true, Ran::Job { id, .. }) = (taken, &record.ran) {
        note(context, settings, &debts, &own, *id, event).await?;
        return Ok(Handled::Done);
    }
    if record.ended_at.is_some() || record.ran != Ran::Unknown {
        reached("instance: all is known of its runner");
        return Ok(Handled::Done);
    }
    let job = match own.job() {
        Some(id) => context.forge().job(&own.repository(), id).await?,
        None => None,
    };
    if let (Some(id), Some(job)) = (own.job(), &job)
        && job.runner_name.as_deref() == Some(&runner)
    {
        reached("instance: its own job is on it");
        debts.account(&runner, id, &own.repository().to_string()).await?;
        if taken {
            note(context, settings, &debts, &own, id, event).await?;
        }
        return Ok(Handled::Done);
    }
    let place = settings.place(own.repository())?;
    match registration(context, &place, &runner, &record, event.what).await? {
        Sight::RanNothing => {}
        // Whoever counts on it need not wait until it is known whether it got a job.
        Sight::Unknown if event.what == Happening::Interrupted => {
            let waits = job.as_ref().is_some_and(|job| job.status == JobStatus::Queued);
            if waits || own.job().is_none() {
                reached("instance: who counts on it is looked after");
                debts.settle(&runner, &own, job.as_ref()).await?;
            }
            return Ok(again(receives));
        }
        Sight::Unknown => return Ok(again(receives)),
    }
    reached("instance: it ended without a job");
    let now = context.clock().now();
    context.ledger().end_runner(&runner, now, debts.expiry()).await?;
    let judgement = debts.end(&runner, &own, &record, job.as_ref()).await?;
    info!(runner, instance = event.instance, ?judgement, "settled: it ended without a job");
    context.telemetry().count("LostRunnerSettled", Some(("Tier", &own.provider)), 1.0);
    Ok(Handled::Done)
}

/// Counts what the machine cost.
fn charge(telemetry: &impl Telemetry, tier: &str, bought: Option<&Bought>, until: Timestamp) {
    match bought.and_then(|bought| cost::of(bought, until)) {
        Some(usd) => telemetry.count("JobCostUsd", Some(("Tier", tier)), usd),
        None => {
            info!(tier, ?bought, "its price is not in the list");
            telemetry.count("JobCostUnknown", Some(("Tier", tier)), 1.0);
        }
    }
}

fn again(receives: u32) -> Handled {
    if receives < MAX_RECEIVES {
        reached("instance: it can't be told yet");
        return Handled::NotYet;
    }
    reached("instance: left to the runner's checks");
    Handled::Done
}

/// What can be told of a runner that is lost, or about to be.
enum Sight {
    /// It never got a job, and can't get one any more.
    RanNothing,
    /// It may have one.
    Unknown,
}

/// Looks at the registration, and takes it away where that shows that the runner has no job.
async fn registration<C: InstanceContext>(
    context: &C,
    place: &Place,
    runner: &str,
    record: &RunnerRecord,
    what: Happening,
) -> Result<Sight> {
    let forge = context.forge();
    let entry = match record.runner_id {
        Some(id) => forge.runner(place, id).await?,
        None => forge.runner_named(place, runner).await?,
    };
    let Some(entry) = entry else {
        // One that was registered may have run a job and be gone with it. One that was not may be any moment; or it is
        // launched again under its name, and then the end of this machine was not its own.
        reached("instance: its registration is not there");
        return Ok(Sight::Unknown);
    };
    let now = context.clock().now();
    let noted = record.interrupted_at.filter(|_| what == Happening::Interrupted);
    let sure = !entry.online || noted.is_some_and(|noted| now.since(noted) >= SURE_AFTER);
    if entry.busy || !sure {
        reached("instance: its runner may be busy");
        return Ok(Sight::Unknown);
    }
    Ok(match forge.remove_runner(place, entry.id).await? {
        Removal::Removed => Sight::RanNothing,
        Removal::Gone | Removal::Busy => {
            reached("instance: its registration does not go");
            Sight::Unknown
        }
    })
}

/// Notes that the job, which ran on a runner started with `own`, loses its machine, so that it is run again. By the
/// option of the job's own tier.
async fn note<C: InstanceContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    own: &RunnerInput,
    id: JobId,
    event: &InstanceEvent,
) -> Result<()> {
    let job = match own.job() == Some(id) {
        true => Some(own.clone()),
        false => input_of(context, debts, id).await?,
    };
    let Some(job) = job else {
        reached("instance: another system's job loses it");
        info!(job = id.0, "another system's job loses its machine");
        return Ok(());
    };
    let tier = job.provider.as_str();
    if settings.tiers.get(tier).is_none_or(|tier| !tier.rerun_interrupted) {
        reached("instance: its job's tier runs nothing again");
        return Ok(());
    }
    let run = job.run().and_then(|run| run.parse().ok()).filter(|run: &i64| *run > 0);
    let Some(run) = run else {
        reached("instance: its job's run is not known");
        warn!(job = id.0, url = job.job_url, "its run is not known: it can't be run again");
        context.telemetry().count("RerunSkipped", Some(("Reason", "RunUnknown")), 1.0);
        return Ok(());
    };
    let now = context.clock().now();
    let lost_at = event.at.map_or(now, |at| at.min(now));
    let interrupted = InterruptedJob { id, tier: tier.to_owned(), lost_at };
    let due = now + FIRST_LOOK;
    if context.interrupted().note_interrupted(&job.repository(), run, &interrupted, due).await? {
        reached("instance: its job is to be run again");
        warn!(job = id.0, url = job.job_url, tier, "a job loses its machine, to be run again");
        context.telemetry().count("JobInterrupted", Some(("Tier", tier)), 1.0);
    } else {
        reached("instance: its job is noted already");
    }
    Ok(())
}

/// With what runners were started for a job; `None` if none of ours was.
async fn input_of<C: InstanceContext>(
    context: &C,
    debts: &Debts<'_, C>,
    id: JobId,
) -> Result<Option<RunnerInput>> {
    let record = context.ledger().job(id).await?;
    let Some(runner) = record.and_then(|record| record.runner_name) else { return Ok(None) };
    let input = debts.execution(&runner).await?.and_then(|execution| execution.input);
    Ok(input.filter(|input| input.job() == Some(id)))
}

/// Marks the runner, and counts against its tier's spot machines.
async fn interrupted<C: InstanceContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    runner: &str,
    tier: &str,
) -> Result<()> {
    reached("instance: taken back");
    let now = context.clock().now();
    context.ledger().interrupt_runner(runner, now, debts.expiry()).await?;
    warn!(runner, tier, "EC2 takes a spot machine back");
    context.telemetry().count("SpotInterrupted", Some(("Tier", tier)), 1.0);
    strike(context.gate(), context.telemetry(), settings, tier, now).await
}

/// Counts a failure of a tier's spot market: a machine that was taken back, or that could not be had. Enough of them
/// in a while, and the tier buys on-demand for a time.
pub async fn strike(
    gate: &impl Gate,
    telemetry: &impl Telemetry,
    settings: &Settings,
    tier: &str,
    now: Timestamp,
) -> Result<()> {
    let Some(tier) = settings.tiers.get(tier).filter(|it| it.market == Market::SpotThenOnDemand)
    else {
        return Ok(());
    };
    let breaker = &tier.spot_breaker;
    if gate.strike(&tier.name, now, breaker).await? {
        reached("spot: the breaker opens");
        let minutes = breaker.on_demand_for.as_secs() / 60;
        warn!(tier = tier.name, minutes, "spot fails too often: on-demand for a while");
        telemetry.count("SpotBreakerOpened", Some(("Tier", &tier.name)), 1.0);
    }
    Ok(())
}

/// A tier's circuit breaker for spot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotBreaker {
    /// So many failures …
    pub failures: u32,
    /// … within this time …
    pub within: Duration,
    /// … make the tier buy on-demand for so long.
    pub on_demand_for: Duration,
}

impl Default for SpotBreaker {
    fn default() -> Self {
        Self {
            failures: 3,
            within: Duration::from_secs(15 * 60),
            on_demand_for: Duration::from_secs(30 * 60),
        }
    }
}

impl SpotBreaker {
    /// Of these failures, those that still count at `now`.
    pub fn recent(&self, failures: &[Timestamp], now: Timestamp) -> Vec<Timestamp> {
        failures.iter().copied().filter(|at| now.since(*at) < self.within).collect()
    }

    /// Whether those that still count are too many.
    pub fn opens(&self, recent: &[Timestamp]) -> bool {
        u32::try_from(recent.len()).unwrap_or(u32::MAX) >= self.failures
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(detail_type: &str, detail: Value) -> Value {
        json!({"version": "0", "detail-type": detail_type, "source": "aws.ec2",
            "time": "2026-11-30T12:00:00Z", "account": "444455556666", "region": "eu-central-1", "detail": detail})
    }

    #[test]
    fn events_are_read_as_eventbridge_sends_them() {
        let warning = event(
            "EC2 Spot Instance Interruption Warning",
            json!({"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"}),
        );
        let read = InstanceEvent::read(&warning).unwrap();
        assert_eq!(
            (read.what, read.instance.as_str()),
            (Happening::Interrupted, "i-0123456789abcdef0")
        );
        assert_eq!(read.at, Timestamp::parse("2026-11-30T12:00:00Z"));
        for (state, ended) in [
            ("pending", false),
            ("running", false),
            ("shutting-down", true),
            ("terminated", true),
            ("stopping", true),
            ("stopped", true),
        ] {
            let detail = json!({"instance-id": "i-1", "state": state});
            let read =
                InstanceEvent::read(&event("EC2 Instance State-change Notification", detail));
            let charged = read.as_ref().is_some_and(|it| it.charged_until_now);
            assert_eq!(charged, state == "shutting-down", "once for each machine");
            assert_eq!(read.map(|it| it.what), ended.then_some(Happening::Ended), "{state}");
        }
    }

    #[test]
    fn i7_only_accounts_that_a_tier_names_are_asked() {
        let account = |id: &str, region: &str, role: bool| {
            let mut account = json!({"role_arn": format!("arn:aws:iam::{id}:role/runners"),
                "external_id": "acme/1", "region": region, "subnets": ["subnet-1"],
                "template_on_demand": "lt-1:1", "template_spot": "lt-2:1",
                "handoff_table": "handoff", "runner_role_id": "AROA1"});
            if role {
                account["event_role_arn"] = format!("arn:aws:iam::{id}:role/events").into();
            }
            account
        };
        let tier = |name: &str, account: Value| {
            json!({"name": name, "architecture": "x64", "images": ["ami-1"],
                "instance_types": ["m7i.large"], "labels": [name], "account": account})
        };
        let tiers = json!({"tiers": [
            tier("a", account("444455556666", "eu-central-1", true)),
            tier("b", account("777788889999", "eu-central-1", false)),
        ]});
        let tiers = crate::config::Tiers::parse(&tiers.to_string());
        assert_eq!(tiers.problems, Vec::<String>::new());
        let settings = Settings { tiers, ..Settings::default() };
        let origin =
            |account: &str, region: &str| Origin { account: account.into(), region: region.into() };
        let home = origin("111122223333", "eu-west-1");
        let whose = |origin: Option<Origin>| {
            let what = Happening::Ended;
            let event = InstanceEvent {
                instance: "i-1".into(),
                what,
                at: None,
                charged_until_now: false,
                origin,
            };
            match event.whose(&home, &settings) {
                Whose::Home => "home".to_owned(),
                Whose::Elsewhere(account) => account.id().to_owned(),
                Whose::Nobodys => "nobody".to_owned(),
            }
        };
        assert_eq!(whose(None), "home");
        assert_eq!(whose(Some(home.clone())), "home");
        assert_eq!(whose(Some(origin("111122223333", "eu-west-2"))), "nobody");
        assert_eq!(whose(Some(origin("444455556666", "eu-central-1"))), "444455556666");
        assert_eq!(whose(Some(origin("444455556666", "eu-west-1"))), "nobody");
        assert_eq!(whose(Some(origin("777788889999", "eu-central-1"))), "nobody", "no role");
        assert_eq!(whose(Some(origin("123456789012", "eu-central-1"))), "nobody");
    }

    #[test]
    fn i8_what_is_no_such_event_is_none() {
        let kind = "EC2 Instance State-change Notification";
        for odd in [
            Value::Null,
            json!([]),
            event("Scheduled Event", json!({})),
            event(kind, json!({"state": "terminated"})),
            event(kind, json!({"instance-id": "i-../x", "state": "terminated"})),
            event(kind, json!({"instance-id": "x", "state": "terminated"})),
            event(kind, json!({"instance-id": 7, "state": "terminated"})),
        ] {
            assert_eq!(InstanceEvent::read(&odd), None, "{odd}");
        }
    }

    #[test]
    fn a_breaker_opens_at_so_many_failures_within_its_time() {
        let at = |minute: i64| Timestamp::from_seconds(60 * minute);
        let breaker = SpotBreaker::default();
        let failures = [at(0), at(10), at(14), at(16)];
        assert!(breaker.opens(&breaker.recent(&failures[..3], at(14))));
        assert_eq!(
            breaker.recent(&failures[..3], at(15)),
            [at(10), at(14)],
            "a quarter of an hour"
        );
        assert!(!breaker.opens(&breaker.recent(&failures[..3], at(15))));
        assert!(breaker.opens(&breaker.recent(&failures, at(16))));
        assert!(!breaker.opens(&[]));
    }
}
