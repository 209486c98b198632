//! What may befall a history besides what its jobs bring, and how it does.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::error::Error;
use ostler_core::job::RunnerInput;
use ostler_core::secret::Secret;
use ostler_core::time::Timestamp;
use ostler_core::webhook;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::scenario::seconds;
use crate::ec2::{self, LaunchRule, PoolMatch};
use crate::github::{JobSpec, Poll, Scope, Status as JobStatus, Turn};
use crate::queue::NewMessage;
use crate::simulation::{Simulation, log_delivery, packed, request, stream_delivery};
use crate::world::{
    Execution, ORGANIZATION, Plan, REPOSITORY, Status, Strike, WEBHOOK_SECRET, tier,
};

/// A repository where the App is not installed, of the same organisation.
pub const STRANGE: &str = "acme/strange";

/// A public one, which is not served unless asked for.
pub const PUBLIC: &str = "acme/public";

/// One of another organisation, which is not on the list of those that are served.
pub const ELSEWHERE: &str = "other/things";

/// A list of names for an enum whose variants need nothing more.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// What it is called in the report.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// What GitHub sometimes does to a registration.
    Quirk {
        /// The flag says "not busy" for minutes, whatever the truth.
        SaysIdle = "GitHub: says idle of a runner at work",
        /// The flag says "busy" for minutes, whatever the truth.
        SaysBusy = "GitHub: says busy of an idle runner",
        /// Listings leave it out for minutes.
        Hidden = "GitHub: a registration is not listed",
        /// It is removed.
        Dropped = "GitHub: a registration vanishes",
        /// Its next job is lost at the last moment, and it listens for ever.
        LosesJob = "GitHub: a runner loses its job as it fetches it",
        /// The job of another is announced anew.
        Announced = "GitHub: a job is announced anew",
        /// Lists are minutes old for some time.
        StaleLists = "GitHub: lists are stale",
        /// A job is given to nobody for some time, though runners would fit.
        Withheld = "GitHub: a job is given to nobody for a while",
        /// Somebody runs what failed of a run again.
        RunAgain = "people: a run is run again",
    }
}

kinds! {
    /// What people and EC2 do to a machine from outside.
    Deed {
        /// Somebody stops it.
        Stopped = "machine: stopped by somebody",
        /// Somebody ends it.
        Terminated = "machine: ended by somebody",
        /// EC2 takes it back, with two minutes' notice.
        Reclaimed = "machine: taken back by the spot market",
    }
}

kinds! {
    /// Why EC2 refuses launches for a while, inside a 200 (`Double`: what it should not sell).
    Refusal {
        /// A quota.
        Quota = "EC2: a quota is reached",
        /// Too many calls.
        Throttled = "EC2: too many launches at a time",
        /// A permission is missing.
        Forbidden = "EC2: a permission is missing",
        /// An error that nobody knows.
        Odd = "EC2: an error that nobody knows",
        /// Two instances are sold where one was asked for.
        Double = "EC2: two instances of one purchase",
    }
}

kinds! {
    /// An operator's mistake or change. Most are mended after a while.
    Mistake {
        /// A tier is taken away.
        TierGone = "operator: a tier is gone",
        /// A tier is written wrongly.
        TierInvalid = "operator: a tier is invalid",
        /// There are no tiers yet.
        NoTiers = "operator: no tiers",
        /// The App's settings are gone.
        NoApp = "operator: no App",
        /// The webhook's secret is gone.
        NoSecret = "operator: no webhook secret",
        /// The webhook's secret is another one, for good.
        NewSecret = "operator: a new webhook secret",
        /// A tier's image does not exist.
        WrongImage = "operator: a wrong image",
        /// A tier's group does not exist.
        UnknownGroup = "operator: an unknown group",
        /// A tier's group may not be used.
        ForbiddenGroup = "operator: a forbidden group",
        /// A tier's group has no room.
        FullGroup = "operator: a full group",
        /// A tier may have few runners.
        FewRunners = "operator: few runners allowed",
        /// A tier is changed while a launch's answer is lost, for good.
        ChangedTier = "operator: a tier is changed during a launch",
        /// The App is uninstalled.
        Uninstalled = "operator: the App is uninstalled",
        /// A selector of the operator's chooses tiers, oddly.
        Selector = "operator: an odd selector",
    }
}

kinds! {
    /// What others send, print and do, most of it to be ignored.
    Stranger {
        /// A delivery whose signature is wrong.
        WrongSignature = "others: a wrong signature",
        /// A delivery without an event.
        NoEvent = "others: a request without an event",
        /// GitHub's ping.
        Ping = "others: a ping",
        /// An event that is of no use.
        OtherEvent = "others: another event",
        /// A `workflow_job` event of an action that is of no use.
        OtherAction = "others: another action",
        /// A signed body that is no JSON.
        NotJson = "others: a body that is no JSON",
        /// A body as a form.
        Form = "others: a form",
        /// A body of another type.
        OtherMedia = "others: another media type",
        /// A body that is said to be base64 and is not.
        NotBase64 = "others: no base64",
        /// CloudWatch Logs' probe.
        Probe = "others: a probe of the log",
        /// A log delivery of a kind that nobody knows.
        UnknownDelivery = "others: a log delivery of an unknown kind",
        /// Lines that can't be read, and one twice.
        Garbage = "others: odd lines",
        /// A line that names a runner at work, and a repository that can't be seen.
        ForgedInvisible = "others: a forged line of an invisible job",
        /// A line that names a runner, and a run in which it had no part.
        ForgedRun = "others: a forged line of a visible run",
        /// A line that names a runner, and a run that is not there.
        ForgedNoRun = "others: a forged line of no run",
        /// A message in the report queue that is none.
        NotAReport = "others: a message that is no report",
        /// A line of an execution of another system.
        OtherSystem = "others: an execution of another system",
        /// A runner of another system takes a job.
        OtherRunner = "others: a runner of another system takes a job",
        /// A runner for no job in particular is started.
        Warm = "others: a warm runner",
        /// A job of a public repository.
        Public = "others: a job of a public repository",
        /// A job that no tier has the labels of.
        Unmatched = "others: a job that fits no tier",
        /// A job for GitHub's own runners.
        Hosted = "others: a job for hosted runners",
        /// A job of an organisation that is not served.
        Elsewhere = "others: a job of another organisation",
        /// A job that is skipped.
        Skipped = "others: a job that is skipped",
        /// A run that is over is deleted.
        DeletesRun = "others: a run is deleted",
    }
}

/// How a runner of another system listens: as often as ours, for so long.
const LISTENS: Duration = Duration::from_secs(1800);

/// The tiers of every history; what they are bought as is drawn.
pub(super) fn tiers(markets: [&'static str; 2]) -> Vec<Value> {
    let mut tiers = vec![tier("small", &["small"]), tier("large", &["small", "large"])];
    for (tier, market) in tiers.iter_mut().zip(markets) {
        tier["market"] = json!(market);
    }
    tiers
}

/// The App's settings of every history.
pub(super) fn app() -> String {
    json!({"app_id": 4242, "repositories": {"allow": ["acme/*"]}}).to_string()
}

/// The `index`th of the registrations of ours, counted round.
fn registration(history: &Simulation, index: usize) -> Option<u64> {
    let state = history.state();
    let ours = |name: &str| state.executions.contains_key(name);
    let ids: Vec<u64> =
        state.github.registrations().iter().filter(|it| ours(&it.name)).map(|it| it.id).collect();
    (!ids.is_empty()).then(|| ids[index % ids.len()])
}

/// The `index`th of the machines that live, counted round.
fn machine(history: &Simulation, index: usize) -> Option<String> {
    let state = history.state();
    let living = state.ec2.instances().filter(|it| !it.state(state.now).is_over());
    let ids: Vec<String> = living.map(|it| it.id.clone()).collect();
    (!ids.is_empty()).then(|| ids[index % ids.len()].clone())
}

/// The `index`th of the executions that run, counted round.
pub(super) fn running(history: &Simulation, index: usize) -> Option<String> {
    let state = history.state();
    let names: Vec<&String> = state
        .executions
        .iter()
        .filter(|(_, it)| it.status == Status::Running)
        .map(|(name, _)| name)
        .collect();
    (!names.is_empty()).then(|| names[index % names.len()].clone())
}

impl Quirk {
    /// Befalls the `index`th registration now, for that long.
    pub(super) fn befall(self, history: &mut Simulation, index: usize, lasts: Duration) {
        let now = history.now();
        if self == Self::StaleLists {
            history.struck(self.name());
            history.state().github.options_mut().list_staleness = lasts;
            return history.after(lasts, |history| {
                history.state().github.options_mut().list_staleness = Duration::ZERO;
            });
        }
        let of_jobs = matches!(self, Self::Announced | Self::Withheld | Self::RunAgain);
        let id = registration(history, index).or(of_jobs.then_some(0));
        let Some(id) = id else { return };
        let until = now + lasts;
        {
            let mut state = history.state();
            let github = &mut state.github;
            match self {
                Self::SaysIdle => github.lie_about_busy(id, false, until),
                Self::SaysBusy => github.lie_about_busy(id, true, until),
                Self::Hidden => github.hide_from_listings(id, until),
                Self::Dropped => github.drop_registration(id),
                Self::LosesJob => github.lose_acquires(1),
                Self::Announced => {
                    let ids: Vec<u64> = github.all_jobs().map(|job| job.id).collect();
                    let Some(id) = ids.get(index % ids.len().max(1)) else { return };
                    github.announce_again(*id);
                }
                Self::Withheld => {
                    let held = github.all_jobs().filter(|job| job.status == JobStatus::Queued);
                    let ids: Vec<u64> = held.map(|job| job.id).collect();
                    let Some(id) = ids.get(index % ids.len().max(1)).copied() else { return };
                    github.set_turn(id, Turn::Later);
                    drop(state);
                    history.after(lasts, move |history| {
                        history.state().github.set_turn(id, Turn::Chance);
                    });
                }
                Self::RunAgain => {
                    let runs: Vec<u64> = github.all_jobs().map(|job| job.run_id).collect();
                    let Some(run) = runs.get(index % runs.len().max(1)) else { return };
                    if github.rerun_failed(now, REPOSITORY, *run).is_err() {
                        return;
                    }
                }
                Self::StaleLists => {}
            }
        };
        history.struck(self.name());
    }
}

impl Deed {
    /// Befalls the `index`th machine now.
    pub(super) fn befall(self, history: &mut Simulation, index: usize) {
        let Some(id) = machine(history, index) else { return };
        let done = {
            let mut state = history.state();
            let now = state.now;
            match self {
                Self::Stopped => state.ec2.stop_instances(now, &[id]).is_ok(),
                Self::Terminated => state.ec2.terminate_instances(now, &[id]).is_ok(),
                Self::Reclaimed => state.ec2.interrupt(now, &id),
            }
        };
        if done {
            history.struck(self.name());
        }
    }
}

impl Refusal {
    /// Befalls the next launches now.
    pub(super) fn befall(self, history: &mut Simulation, times: u32) {
        let (code, text) = match self {
            Self::Quota => ("VcpuLimitExceeded", "You have requested more vCPU capacity"),
            Self::Throttled => ("RequestLimitExceeded", "Request limit exceeded."),
            Self::Forbidden => ("UnauthorizedOperation", "You are not authorized"),
            Self::Odd => ("OddError", "Something that nobody has seen before."),
            Self::Double => {
                history.state().ec2.double_launches(times);
                return;
            }
        };
        history.state().ec2.add_rule(LaunchRule {
            pools: PoolMatch::default(),
            subnet: None,
            fault: ec2::Fault::new(code, text),
            times: Some(times),
        });
    }

    /// How often launches were refused so.
    pub(super) fn struck(self, ec2: &ec2::Ec2) -> u64 {
        ec2.refusals()
            .get(match self {
                Self::Quota => "VcpuLimitExceeded",
                Self::Throttled => "RequestLimitExceeded",
                Self::Forbidden => "UnauthorizedOperation",
                Self::Odd => "OddError",
                Self::Double => return ec2.doubled(),
            })
            .copied()
            .unwrap_or_default()
    }
}

/// Writes a parameter, or takes it away, as an operator does: functions have what they read before for minutes.
fn write(history: &mut Simulation, name: &str, text: Option<String>) {
    let mut state = history.state();
    match text {
        Some(text) => state.parameters.insert(name.into(), Secret::new(text)),
        None => state.parameters.remove(name),
    };
}

impl Mistake {
    /// Is made now, and mended after that long.
    pub(super) fn befall(
        self,
        history: &mut Simulation,
        lasts: Duration,
        markets: [&'static str; 2],
    ) {
        history.struck(self.name());
        let changed = |change: &dyn Fn(&mut Vec<Value>)| {
            let mut tiers = tiers(markets);
            change(&mut tiers);
            Some(json!({ "tiers": tiers }).to_string())
        };
        let both = |key: &str, value: Value| {
            changed(&|tiers| tiers.iter_mut().for_each(|tier| tier[key] = value.clone()))
        };
        let (parameter, text) = match self {
            Self::TierGone => ("control/tiers", changed(&|tiers| drop(tiers.pop()))),
            Self::TierInvalid => {
                ("control/tiers", changed(&|tiers| tiers[1]["instance_types"] = json!([])))
            }
            Self::NoTiers => ("control/tiers", None),
            Self::NoApp => ("control/app", None),
            Self::NoSecret => ("control/webhook-secret", None),
            Self::NewSecret => {
                let secret = "another webhook secret of a test";
                return write(history, "control/webhook-secret", Some(secret.into()));
            }
            Self::WrongImage => ("control/tiers", both("images", json!(["ami-00000000000000000"]))),
            Self::UnknownGroup => ("control/tiers", both("runner_group", json!("nobody's"))),
            Self::ForbiddenGroup => ("control/tiers", both("runner_group", json!("2"))),
            Self::FewRunners => ("control/tiers", both("max_runners", json!(1))),
            Self::ChangedTier => {
                {
                    let mut state = history.state();
                    let lost = Plan::next("Fleet.launch", 1, Strike::After);
                    state.plan = std::mem::take(&mut state.plan).and(lost);
                }
                // Whatever is launched first from now on is tried again with other types.
                let text = both("instance_types", json!(["m7i.large", "m7i.xlarge"]));
                let until = history.now() + lasts;
                return history.after(seconds(1), move |history| watch(history, text, until));
            }
            Self::FullGroup => {
                history.state().github.options_mut().group_limit = 0;
                return history.after(lasts, |history| {
                    history.state().github.options_mut().group_limit = 10_000;
                });
            }
            Self::Uninstalled => {
                history.state().github.uninstall(ORGANIZATION);
                return history.after(lasts, |history| {
                    // An organisation that is there.
                    let _ = history.state().github.reinstall(ORGANIZATION);
                });
            }
            Self::Selector => {
                history.state().selector = Some(Box::new(odd_selector));
                let app = json!({"app_id": 4242, "selector": "choose"});
                ("control/app", Some(app.to_string()))
            }
        };
        write(history, parameter, text);
        let right = match parameter {
            "control/tiers" => json!({ "tiers": tiers(markets) }).to_string(),
            "control/app" => app(),
            _ => WEBHOOK_SECRET.to_owned(),
        };
        history.after(lasts, move |history| write(history, parameter, Some(right)));
    }
}

/// Writes the tiers anew as soon as a launch's answer was lost.
fn watch(history: &mut Simulation, tiers: Option<String>, until: Timestamp) {
    let lost = history
        .state()
        .calls
        .iter()
        .rev()
        .find(|call| call.name == "Fleet.launch")
        .is_some_and(|call| call.struck == Some(Strike::After));
    if lost {
        write(history, "control/tiers", tiers);
        history.state().settings = None;
    } else if history.now() < until {
        history.after(Duration::from_millis(500), move |history| watch(history, tiers, until));
    }
}

/// A selector that fails, refuses, errs, and chooses, by turns that follow from the job.
fn odd_selector(asked: &Value) -> Result<Value, Error> {
    let job = asked.pointer("/payload/workflow_job/id").and_then(Value::as_u64);
    match job.unwrap_or_default() % 4 {
        0 => Err(Error::Transient("the selector timed out".into())),
        1 => Ok(json!({})),
        2 => Ok(json!({"provider": "nobody's"})),
        _ => Ok(json!({"provider": "large"})),
    }
}

impl Stranger {
    /// Comes now; where it is about one of ours, about the `index`th.
    pub(super) fn befall(self, history: &mut Simulation, index: usize) {
        let secret = history.state().parameters.get("control/webhook-secret").cloned();
        let secret = secret.unwrap_or_else(|| Secret::new(""));
        let post = |event: &str, body: &str| {
            request(event, "guid-of-others", body, &webhook::sign(body.as_bytes(), &secret))
        };
        let spec = |repository: &str, labels: &[&str]| JobSpec {
            name: "others'".into(),
            ..JobSpec::new(repository, labels)
        };
        match self {
            Self::WrongSignature => {
                let event = request("workflow_job", "guid-of-others", "{}", "sha256=00");
                history.stranger("webhook", event);
            }
            Self::NoEvent => history.stranger("webhook", post("", "{}")),
            Self::Ping => history.stranger("webhook", post("ping", "{}")),
            Self::OtherEvent => history.stranger("webhook", post("push", "{}")),
            Self::OtherAction => {
                let body = json!({"action": "waiting", "workflow_job": {"id": 7},
                    "repository": {"full_name": REPOSITORY, "name": "widgets", "owner": {"login": "acme"}}});
                history.stranger("webhook", post("workflow_job", &body.to_string()));
            }
            Self::NotJson => history.stranger("webhook", post("workflow_job", "{")),
            Self::Form | Self::OtherMedia => {
                let mut event = post("workflow_job", "payload=%7B%7D");
                event["headers"]["content-type"] = match self {
                    Self::Form => json!("application/x-www-form-urlencoded"),
                    _ => json!("text/plain"),
                };
                history.stranger("webhook", event);
            }
            Self::NotBase64 => {
                let mut event = post("workflow_job", "*");
                event["isBase64Encoded"] = json!(true);
                history.stranger("webhook", event);
            }
            Self::Probe | Self::UnknownDelivery => {
                let kind = if self == Self::Probe { "CONTROL_MESSAGE" } else { "NEWS" };
                let text = json!({"messageType": kind, "logEvents": []}).to_string();
                history.stranger("lines", packed(text.as_bytes()));
            }
            Self::Garbage => {
                let line = "CDKGHR JOB RUNNER=somebody REPO=acme/widgets WORKFLOW_ID=5";
                let lines = [line, "CDKGHR JOB RUNNER=?", line];
                history.stranger("lines", stream_delivery(&log_delivery(&lines)));
            }
            Self::ForgedInvisible | Self::ForgedRun | Self::ForgedNoRun => {
                let Some(name) = running(history, index) else { return };
                let run = {
                    let state = history.state();
                    let runs: Vec<u64> = state.github.all_jobs().map(|job| job.run_id).collect();
                    runs.get(index % runs.len().max(1)).copied().unwrap_or(1)
                };
                let (repository, run) = match self {
                    Self::ForgedInvisible => (STRANGE, run),
                    Self::ForgedRun => (REPOSITORY, run),
                    _ => (REPOSITORY, 12),
                };
                history.print(&format!(
                    "CDKGHR JOB RUNNER={name} REPO={repository} WORKFLOW_ID={run}"
                ));
            }
            Self::NotAReport => {
                let mut state = history.state();
                let state = &mut *state;
                let message = NewMessage {
                    body: "{}".into(),
                    group: Some("others".into()),
                    deduplication_id: Some(format!("others-{index}")),
                    ..NewMessage::default()
                };
                // A queue that is full or that knows the message is no matter.
                let _ = state.reports.send(state.now, message, &mut state.rng);
            }
            Self::OtherSystem => {
                let name = "another-systems-execution";
                {
                    let mut state = history.state();
                    let now = state.now;
                    let mut other = Execution::begun(name, json!({"of": "others"}), now);
                    other.status = Status::Succeeded;
                    other.ended = Some(now);
                    state.executions.insert(name.into(), other);
                }
                history.print(&format!("CDKGHR JOB RUNNER={name} REPO=acme/widgets WORKFLOW_ID=5"));
            }
            Self::OtherRunner => other_runner(history),
            Self::Warm => warm(history, index),
            Self::Public => drop(history.post(&spec(PUBLIC, &["self-hosted", "small"]))),
            Self::Unmatched => drop(history.post(&spec(REPOSITORY, &["self-hosted", "gpu"]))),
            Self::Hosted => {
                let hosted = JobSpec { hosted: true, ..spec(REPOSITORY, &["ubuntu-latest"]) };
                history.post(&hosted);
            }
            Self::Elsewhere => drop(history.post(&spec(ELSEWHERE, &["self-hosted", "small"]))),
            Self::DeletesRun => {
                let mut state = history.state();
                let over = state.github.all_jobs().filter(|job| job.status == JobStatus::Completed);
                let runs: Vec<u64> = over.map(|job| job.run_id).collect();
                let Some(run) = runs.get(index % runs.len().max(1)).copied() else { return };
                state.github.delete_run(run);
            }
            Self::Skipped => {
                history.post(&JobSpec { skipped: true, ..spec(REPOSITORY, &["self-hosted"]) });
            }
        }
        history.struck(self.name());
    }
}

/// A runner for no job in particular, as a pool would start it.
fn warm(history: &mut Simulation, index: usize) {
    let name = format!("warm-small-{index:016x}");
    let input = RunnerInput {
        owner: ORGANIZATION.into(),
        repo: "widgets".into(),
        job_id: -1,
        job_url: String::new(),
        installation_id: -1,
        job_labels: String::new(),
        provider: "small".into(),
        labels: "self-hosted,linux,x64,small".into(),
        max_idle_seconds: 900,
        queued_at: None,
    };
    let input = serde_json::to_value(input).unwrap_or_default();
    history.begin(&name, input);
}

/// A runner of another system comes up, and runs the first job that it gets.
fn other_runner(history: &mut Simulation) {
    let now = history.now();
    let session = {
        let mut state = history.state();
        let name = format!("others-{}", now.millis());
        let labels = ["self-hosted", "small", "large"].map(str::to_owned);
        let scope = Scope::Organization(ORGANIZATION.into());
        let jit = state.github.generate_jit(now, &scope, &name, Some(1), &labels);
        jit.and_then(|jit| state.github.connect(now, &jit.encoded))
    };
    if let Ok(session) = session {
        listens(history, session.id, now + LISTENS);
    }
}

fn listens(history: &mut Simulation, session: String, until: Timestamp) {
    match history.at_github(|github, now| github.poll_job(now, &session)) {
        Ok(Poll::Idle) if history.now() < until => {
            history.after(seconds(5), move |history| listens(history, session, until));
        }
        Ok(Poll::Job(given)) => {
            history.after(given.duration.min(seconds(300)), move |history| {
                // The job may have been cancelled meanwhile.
                let _ = history.at_github(|github, now| {
                    github.complete(now, &session, given.job_id, "success")
                });
                history.at_github(|github, now| github.disconnect(now, &session));
            });
        }
        _ => history.at_github(|github, now| github.disconnect(now, &session)),
    }
}

/// Draws one of them.
pub(super) fn any<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// Kinds that are counted elsewhere.
pub(super) const OTHER_KINDS: &[&str] = &[
    "webhook: lost",
    "webhook: late",
    "webhook: again",
    "job: cancelled",
    "job: held by an environment",
    "job: of an invisible repository",
    "machine: never boots",
    "machine: boots slowly",
    "machine: stays pending",
    "machine: dies at launch",
    "machine: dies",
    "machine: dies at work",
    "machine: freezes",
    "machine: freezes at work",
    "invocation: twice",
    "invocation: its answer is lost",
    "invocation: cut off at its time-out",
    "execution: aborted",
    "rule: never told",
    "rule: told late",
    "rule: told twice",
    "function: a cold instance",
    "EC2: no capacity",
    "EC2: no capacity in one pool",
    "GitHub: refuses a call",
    "GitHub: limits calls",
    "GitHub: loses an answer",
    "call: fails before",
    "call: fails after",
    "call: killed before",
    "call: killed after",
    "call: slow",
    "call: made twice",
];

/// Names of all kinds of faults.
pub(super) fn kinds() -> BTreeMap<&'static str, u64> {
    let own = Quirk::ALL.iter().map(|it| it.name()).chain(Deed::ALL.iter().map(|it| it.name()));
    let own = own.chain(Refusal::ALL.iter().map(|it| it.name()));
    let own = own.chain(Mistake::ALL.iter().map(|it| it.name()));
    let own = own.chain(Stranger::ALL.iter().map(|it| it.name()));
    own.chain(OTHER_KINDS.iter().copied()).map(|name| (name, 0)).collect()
}
