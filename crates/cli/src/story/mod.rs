//! The story of a job: what ledger, executions, logs, EC2 and GitHub tell of it, in order, and what came of it. All of it
//! is a pure function of what was found. What could not be looked up is said, and proves nothing.

pub mod gather;
mod records;
mod remedy;
pub mod show;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use ostler_core::cost::{self, Bought};
use ostler_core::names::Lineage;
use ostler_core::time::Timestamp;
use serde::Serialize;

pub use records::{
    Answer, ExecutionSeen, ForgeSeen, JobItem, Looked, MachineSeen, Records, RunnerItem,
    RunnerSeen, Said, Step,
};
pub use remedy::Remedy;

/// Longest text that is taken over from a log or an error, in characters.
const MAX_WORDS: usize = 300;

/// How a line is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// As planned.
    Plain,
    /// All is well.
    Well,
    /// Something went wrong, or is not known.
    Odd,
    /// It failed, or somebody has to act.
    Bad,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// When; `None` for what holds now.
    #[serde(serialize_with = "as_text")]
    pub at: Option<Timestamp>,
    /// The runner that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// How it is to be taken.
    pub tone: Tone,
    /// The words.
    pub text: String,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// How it is to be taken.
    pub tone: Tone,
    /// In one sentence.
    pub text: String,
    /// What to do, where there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// A story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Story {
    /// What happened, in order.
    pub lines: Vec<Line>,
    /// What came of it.
    pub outcome: Outcome,
}

fn as_text<S: serde::Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.serialize_str(&at.to_string()),
        None => to.serialize_none(),
    }
}

/// Tells it.
pub fn tell(records: &Records) -> Story {
    let mut teller = Teller { lines: Vec::new() };
    teller.job(records);
    for seen in &records.runners {
        teller.runner(records, seen);
    }
    teller.lines.sort_by_key(|line| line.at.unwrap_or(Timestamp::from_millis(i64::MAX)));
    Story { lines: teller.lines, outcome: outcome(records) }
}

struct Teller {
    lines: Vec<Line>,
}

impl Teller {
    fn say(&mut self, at: Option<Timestamp>, runner: Option<&str>, tone: Tone, text: String) {
        let runner = runner.map(str::to_owned);
        self.lines.push(Line { at, runner, tone, text });
    }

    /// What could not be looked up.
    fn gap<T>(&mut self, runner: Option<&str>, what: &str, looked: &Looked<T>) {
        if let Err(why) = looked {
            let text = format!("{what} could not be looked up: {}", words(why));
            self.say(None, runner, Tone::Odd, text);
        }
    }

    fn job(&mut self, records: &Records) {
        self.gap(None, "GitHub's record of the job", &records.forge);
        self.gap(None, "the job in the ledger", &records.job);
        self.gap(None, "what GitHub has put off", &records.blocks);
        self.gap(None, "what the functions said of the job", &records.said);
        let item = records.job.as_ref().ok().and_then(Option::as_ref);
        let input = records.runners.iter().find_map(|seen| execution(seen)?.input.as_ref());
        let queued = item.and_then(|item| item.queued).or(input.and_then(|input| input.queued()));
        if let Some(at) = queued {
            let mut text = "GitHub queued the job".to_owned();
            if let Some(repository) = item.and_then(|item| item.repository.as_deref()) {
                let _ = write!(text, " of {repository}");
            }
            if let Some(input) = input.filter(|input| !input.job_labels.is_empty()) {
                let _ = write!(text, ", which asks for {}", input.job_labels);
            }
            self.say(Some(at), None, Tone::Plain, text);
        }
        if let Some(at) = item.and_then(|item| item.cancelled) {
            let text = "the job was over before a runner had it".to_owned();
            self.say(Some(at), None, Tone::Odd, text);
        }
        let latest = item.and_then(|item| item.runner.as_deref());
        if let (Some(latest), [one]) = (latest, records.runners.as_slice())
            && one.name != latest
        {
            self.say(None, None, Tone::Odd, format!("the job's latest runner is {latest}"));
        }
        if let Ok(Some(forge)) = &records.forge {
            let on = forge.runner.as_ref().map(|on| format!(" on {on}")).unwrap_or_default();
            self.say(None, None, Tone::Plain, format!("GitHub calls the job {}{on}", forge.status));
        }
        for block in records.blocks.iter().flatten().flatten().filter(|it| it.until > records.now) {
            let text = format!("launches wait until {}: {}", block.until, words(&block.reason));
            self.say(None, None, Tone::Odd, text);
        }
        self.said(None, &records.said);
    }

    fn said(&mut self, runner: Option<&str>, said: &Looked<Vec<Said>>) {
        for line in said.iter().flatten().flatten() {
            let tone = match line.level.as_str() {
                "ERROR" => Tone::Bad,
                "WARN" => Tone::Odd,
                _ => Tone::Plain,
            };
            self.say(Some(line.at), runner, tone, format!("{}: {}", line.who, words(&line.text)));
        }
    }

    fn runner(&mut self, records: &Records, seen: &RunnerSeen) {
        let name = Some(seen.name.as_str());
        self.gap(name, "the runner in the ledger", &seen.item);
        self.gap(name, "its execution", &seen.execution);
        self.gap(name, "its machines", &seen.machines);
        self.gap(name, "its machine's log", &seen.log);
        self.gap(name, "what the functions said of it", &seen.said);
        if let Some(execution) = execution(seen) {
            self.execution(seen, execution);
        }
        for machine in seen.machines.iter().flatten().flatten() {
            self.machine(records, seen, machine);
        }
        for line in seen.log.iter().flatten().flatten() {
            let (tone, text) = machines_word(&line.text);
            self.say(Some(line.at), name, tone, text);
        }
        self.said(name, &seen.said);
        let Ok(Some(item)) = &seen.item else { return };
        if let (Some(at), Some(ran)) = (item.accounted, &item.ran) {
            let of = item.ran_repository.as_ref().map(|it| format!(" of {it}")).unwrap_or_default();
            let own = records.job_id.is_some_and(|id| *ran == id.to_string());
            let (tone, text) = match ran.as_str() {
                "taken" => {
                    (Tone::Odd, "it has another job than its own, which we can't see".into())
                }
                _ if own => (Tone::Well, "it is proved to have run its own job".to_owned()),
                _ => (Tone::Odd, format!("it is proved to have run another job, {ran}{of}")),
            };
            self.say(Some(at), name, tone, text);
        }
        if let Some(at) = item.interrupted {
            let text = "EC2 said that it takes the machine back in two minutes".to_owned();
            self.say(Some(at), name, Tone::Odd, text);
        }
        if let Some(at) = item.ended {
            self.say(Some(at), name, Tone::Plain, "its end was judged".to_owned());
        }
    }

    fn execution(&mut self, seen: &RunnerSeen, execution: &ExecutionSeen) {
        let name = Some(seen.name.as_str());
        let place = Lineage::parse(&seen.name);
        let input = execution.input.as_ref();
        let tier = input.map(|it| format!(" of tier {}", it.provider)).unwrap_or_default();
        let after = input
            .and_then(|input| input.queued())
            .filter(|_| place.rank() == 0)
            .map(|queued| {
                format!(", {} after it was created", span(execution.started.since(queued)))
            })
            .unwrap_or_default();
        let text = match (place.generation, place.replacement) {
            (0, 0) => format!("a runner{tier} was started for the job{after}"),
            (_, 0) => format!("a runner{tier} was started anew, because the job still waited"),
            _ => format!("a runner{tier} was started in place of one that was lost"),
        };
        self.say(Some(execution.started), name, Tone::Plain, text);
        let mut before = Answer::default();
        let mut repeats = Repeats::default();
        for step in &execution.steps {
            match &step.outcome {
                Err(why) => {
                    let why = words(why);
                    if repeats.again(&step.name, &why) {
                        repeats.last = Some(step.at);
                        continue;
                    }
                    self.flush(name, &mut repeats);
                    repeats.begin(&step.name, &why);
                    let text = format!("{} failed, and is repeated: {why}", step.name);
                    self.say(Some(step.at), name, Tone::Odd, text);
                }
                Ok(answer) => {
                    let reason = answer.state.reason.as_deref().map(words);
                    let waits = answer.next == "later";
                    if waits && repeats.again(&step.name, reason.as_deref().unwrap_or_default()) {
                        repeats.last = Some(step.at);
                        before = answer.clone();
                        continue;
                    }
                    self.flush(name, &mut repeats);
                    if waits {
                        repeats.begin(&step.name, reason.as_deref().unwrap_or_default());
                    }
                    for (tone, text) in told(&step.name, answer, &before) {
                        self.say(Some(step.at), name, tone, text);
                    }
                    before = answer.clone();
                }
            }
        }
        self.flush(name, &mut repeats);
        if execution.more {
            let text = "its execution has more steps than were read".to_owned();
            self.say(None, name, Tone::Odd, text);
        }
        if let (Some(at), true) = (execution.stopped, execution.status != "SUCCEEDED") {
            let why = execution.failure.as_deref().map(|why| format!(": {}", words(why)));
            let text =
                format!("its execution {}{}", ending(&execution.status), why.unwrap_or_default());
            self.say(Some(at), name, Tone::Bad, text);
        }
    }

    /// Says how often something was repeated.
    fn flush(&mut self, runner: Option<&str>, repeats: &mut Repeats) {
        if repeats.times > 1 {
            let text = format!("{}: {} times in all", repeats.step, repeats.times);
            self.say(repeats.last, runner, Tone::Odd, text);
        }
        *repeats = Repeats::default();
    }

    fn machine(&mut self, records: &Records, seen: &RunnerSeen, machine: &MachineSeen) {
        let name = Some(seen.name.as_str());
        let market = if machine.spot { "spot" } else { "on-demand" };
        let MachineSeen { id, instance_type, zone, state, .. } = machine;
        let text = format!("EC2 started {id} ({instance_type}, {market}, {zone})");
        self.say(machine.launched, name, Tone::Plain, text);
        let mut text = format!("EC2 calls {id} {state}");
        if let Some(reason) = &machine.reason {
            let _ = write!(text, " ({})", words(reason));
        }
        let ended = execution(seen).and_then(|it| it.stopped).unwrap_or(records.now);
        let bought = machine.launched.map(|since| Bought {
            instance_type: instance_type.clone(),
            spot: machine.spot,
            since,
        });
        if let Some(usd) = bought.and_then(|bought| cost::of(&bought, ended)) {
            let _ = write!(text, "; it cost about {usd:.4} USD so far");
        }
        self.say(None, name, Tone::Plain, text);
    }
}

/// The same thing over and over.
#[derive(Default)]
struct Repeats {
    step: String,
    why: String,
    times: u32,
    last: Option<Timestamp>,
}

impl Repeats {
    fn begin(&mut self, step: &str, why: &str) {
        *self = Self { step: step.into(), why: why.into(), times: 1, last: None };
    }

    fn again(&mut self, step: &str, why: &str) -> bool {
        let same = self.times > 0 && self.step == step && self.why == why;
        self.times += u32::from(same);
        same
    }
}

/// What a step's answer tells that the one before did not.
fn told(step: &str, answer: &Answer, before: &Answer) -> Vec<(Tone, String)> {
    let state = &answer.state;
    let reason = state.reason.as_deref().map(words).unwrap_or_default();
    let wait = span(Duration::from_secs(state.wait_seconds));
    let mut told = Vec::new();
    match (step, answer.next.as_str()) {
        ("Launch", "register") => {
            let machine = state.instance.as_deref().unwrap_or("a machine");
            told.push((Tone::Plain, format!("{machine} was launched")));
        }
        ("Launch", "later") => {
            told.push((Tone::Odd, format!("no machine yet: {reason}; next try in {wait}")));
        }
        ("Launch", "ended") => {
            told.push((Tone::Plain, format!("no machine was launched: {reason}")))
        }
        ("Register", "wait") => {
            let id = state.runner_id.map(|id| format!(" as {id}")).unwrap_or_default();
            told.push((Tone::Plain, format!("it was registered at GitHub{id}")));
        }
        ("Register", "later") => {
            let text = format!(
                "GitHub did not register it: {reason}; its machine was ended, next try in {wait}"
            );
            told.push((Tone::Bad, text));
        }
        ("Register", _) => told.push((Tone::Bad, format!("it was not registered: {reason}"))),
        ("Check", next) => {
            if state.claimed && !before.state.claimed {
                told.push((Tone::Plain, "its machine has claimed its registration".into()));
            }
            if let (Some(at), None) = (state.online_at, before.state.online_at) {
                told.push((Tone::Plain, format!("it was seen online at {at}")));
            }
            if let (Some(other), None) = (&state.job_runs_on, &before.state.job_runs_on) {
                told.push((Tone::Odd, format!("its job runs on another runner, {other}")));
            }
            if state.deregistered_at.is_some() && before.state.deregistered_at.is_none() {
                told.push((Tone::Odd, "its registration was removed, because it was idle".into()));
            }
            if state.vanished_at.is_some() && before.state.vanished_at.is_none() {
                told.push((Tone::Odd, "its machine was seen gone".into()));
            }
            if next == "ended" {
                told.push((Tone::Plain, format!("a check found it over: {reason}")));
            }
        }
        ("Cleanup", _) => told.push((Tone::Plain, "it was cleaned up".into())),
        (other, next) => told.push((Tone::Plain, format!("{other} answered {next} {reason}"))),
    }
    told
}

/// What a line of the machine's log means.
fn machines_word(text: &str) -> (Tone, String) {
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text)
        && value["ostler"] == "ended"
    {
        let reason = words(value["reason"].as_str().unwrap_or("?"));
        let tone =
            if matches!(reason.as_str(), "done" | "no-job") { Tone::Plain } else { Tone::Bad };
        return (tone, format!("its machine ended: {reason}"));
    }
    if let Some(report) = text.split_once("CDKGHR JOB ").map(|(_, report)| report) {
        return (
            Tone::Plain,
            format!("its machine says that it was given a job: {}", words(report)),
        );
    }
    (Tone::Plain, format!("its machine: {}", words(text)))
}

/// The reason in the machine's last word.
fn last_word(seen: &RunnerSeen) -> Option<String> {
    let lines = seen.log.as_ref().ok()?.as_ref()?;
    lines.iter().rev().find_map(|line| {
        let value: serde_json::Value = serde_json::from_str(&line.text).ok()?;
        (value["ostler"] == "ended").then(|| value["reason"].as_str().map(str::to_owned))?
    })
}

fn execution(seen: &RunnerSeen) -> Option<&ExecutionSeen> {
    seen.execution.as_ref().ok()?.as_ref()
}

fn ending(status: &str) -> &'static str {
    match status {
        "ABORTED" => "was stopped from outside; what it left was cleaned up",
        "TIMED_OUT" => "timed out; what it left was cleaned up",
        "FAILED" => "failed; what it left was cleaned up",
        _ => "ended",
    }
}

/// What came of it, by the latest runner.
fn outcome(records: &Records) -> Outcome {
    let unknown = gaps(records);
    let found = find(records);
    let Some(unknown) = unknown else { return found };
    // What was not seen may say otherwise.
    let text =
        format!("{} ({unknown} could not be looked up, so that this may not be all)", found.text);
    let tone = if found.tone == Tone::Bad { Tone::Bad } else { Tone::Odd };
    Outcome { tone, text, ..found }
}

/// What could not be looked up of what decides.
fn gaps(records: &Records) -> Option<&'static str> {
    let runner = |seen: &RunnerSeen| match (&seen.item, &seen.execution) {
        (Err(_), _) => Some("the ledger"),
        (_, Err(_)) => Some("the execution"),
        _ => None,
    };
    match (&records.job, &records.forge) {
        (Err(_), _) => Some("the ledger"),
        _ => records.runners.last().and_then(runner),
    }
}

fn find(records: &Records) -> Outcome {
    let of = |tone, text: String, remedy: Option<&str>| Outcome {
        tone,
        text,
        remedy: remedy.map(str::to_owned),
    };
    let forge = records.forge.as_ref().ok().and_then(Option::as_ref);
    let item = records.job.as_ref().ok().and_then(Option::as_ref);
    let status = forge.map(|forge| forge.status.as_str());
    // GitHub's word about the job comes first.
    if let Some(on) = forge.and_then(|forge| forge.runner.as_deref()) {
        let ours = records.runners.iter().any(|seen| seen.name == on);
        let word = if status == Some("completed") { "ran" } else { "runs" };
        let text = match ours {
            true => format!("The job {word} on {on}."),
            false => format!(
                "The job {word} on {on}, which was not started for it; its own runner is another job's, or ends as idle."
            ),
        };
        return of(Tone::Well, text, None);
    }
    if item.is_some_and(|item| item.cancelled.is_some()) || status == Some("completed") {
        return of(
            Tone::Plain,
            "The job was over before a runner had it; nothing is owed.".into(),
            None,
        );
    }
    if status == Some("held") {
        let text = "The job waits for something else than a runner: an approval, or its concurrency group.";
        return of(
            Tone::Plain,
            text.into(),
            Some("Approve it at GitHub, or wait for the other run."),
        );
    }
    let Some(seen) = records.runners.iter().rev().find(|seen| execution(seen).is_some()) else {
        return unheard(records);
    };
    let Some(execution) = execution(seen) else { return unheard(records) };
    let runner = &seen.name;
    let ran = seen.item.as_ref().ok().and_then(Option::as_ref).and_then(|item| item.ran.as_deref());
    let own = records.job_id.map(|id| id.to_string());
    if let Some(ran) = ran {
        if own.as_deref() == Some(ran) {
            let word = if execution.status == "RUNNING" { "runs" } else { "ran" };
            return of(Tone::Well, format!("The job {word} on its runner {runner}."), None);
        }
        if own.is_none() {
            return of(Tone::Well, format!("{runner} ran job {ran}."), None);
        }
        let text = format!(
            "{runner} was given another job ({ran}); if its own still waits, a replacement is started, or is already on its way."
        );
        let remedy = "Look for jobs with the same labels in other repositories; runners take any job whose labels fit.";
        return of(Tone::Odd, text, Some(remedy));
    }
    let last = execution
        .steps
        .iter()
        .rev()
        .find_map(|step| step.outcome.as_ref().ok().map(|it| (step, it)));
    if execution.status == "RUNNING" {
        return under_way(seen, execution, last);
    }
    if execution.status != "SUCCEEDED" {
        let why =
            execution.failure.as_deref().map(|why| format!(": {}", words(why))).unwrap_or_default();
        let text = format!("The execution of {runner} {}{why}.", ending(&execution.status));
        let remedy =
            "If the job still waits, the reconciler finds it within minutes; or re-run it.";
        return of(Tone::Bad, text, Some(remedy));
    }
    let reason = execution
        .steps
        .iter()
        .rev()
        .find_map(|step| step.outcome.as_ref().ok()?.state.reason.clone())
        .unwrap_or_default();
    let word = last_word(seen);
    let remedy = word
        .as_deref()
        .and_then(Remedy::of_machine)
        .or_else(|| Remedy::of_end(&reason))
        .or_else(|| Remedy::of_wait(&reason));
    let said =
        word.map(|word| format!(", and its machine said \"{}\"", words(&word))).unwrap_or_default();
    let text = format!("{runner} ended without a job that we know of: {}{said}.", words(&reason));
    match remedy {
        Some(Remedy { tone, what }) => of(tone, text, Some(what)),
        None => of(Tone::Odd, text, None),
    }
}

/// The runner's execution goes on, and no job is known to be on it.
fn under_way(
    seen: &RunnerSeen,
    execution: &ExecutionSeen,
    last: Option<(&Step, &Answer)>,
) -> Outcome {
    let runner = &seen.name;
    let failing = execution.steps.last().and_then(|step| {
        let why = step.outcome.as_ref().err()?;
        Some(format!("{} fails: {}", step.name, words(why)))
    });
    if let Some(failing) = failing {
        let remedy =
            "It is repeated. The orchestrator's log says more; `ostler doctor` finds most causes.";
        let text = format!("{runner} is under way, but {failing}.");
        return Outcome { tone: Tone::Bad, text, remedy: Some(remedy.into()) };
    }
    let Some((step, answer)) = last else {
        let text = format!("{runner} was only just started.");
        return Outcome { tone: Tone::Plain, text, remedy: None };
    };
    if answer.next == "later" {
        let reason = answer.state.reason.as_deref().map(words).unwrap_or_default();
        let until = step.at + Duration::from_secs(answer.state.wait_seconds);
        let text = format!("{runner} waits for its launch: {reason}; next try at {until}.");
        let remedy = Remedy::of_wait(&reason);
        let tone = remedy.as_ref().map_or(Tone::Odd, |remedy| remedy.tone);
        return Outcome { tone, text, remedy: remedy.map(|remedy| remedy.what.into()) };
    }
    let state = &answer.state;
    let text = match (state.online_at, state.claimed) {
        (Some(at), _) => format!("{runner} is online since about {at} and waits for its job."),
        (None, true) => format!("{runner} has claimed its registration and connects to GitHub."),
        (None, false) if state.runner_id.is_some() => {
            format!("{runner} is registered, and its machine boots.")
        }
        (None, false) => format!("{runner} has a machine and is being registered."),
    };
    let remedy = state.idle_at.map(|since| {
        format!(
            "It has been idle since {since}: do the tier's runner group and labels admit the repository's jobs? \
             It ends by itself after the tier's max_idle."
        )
    });
    let tone = if remedy.is_some() { Tone::Odd } else { Tone::Plain };
    Outcome { tone, text, remedy }
}

/// Nothing was ever started for it, as far as is known.
fn unheard(records: &Records) -> Outcome {
    let mut said = records.said.iter().flatten().flatten();
    let refused = said.rfind(|line| line.text.contains("no runner is started"));
    if let Some(line) = refused {
        let remedy = Remedy::of_refusal(&line.text);
        let text = format!("The webhook started no runner for it: {}.", words(&line.text));
        let what = remedy.map(|remedy| remedy.what.to_owned());
        return Outcome { tone: Tone::Odd, text, remedy: what };
    }
    let text = format!(
        "Nothing is known of {}: no runner was started, or it is longer ago than is kept.",
        words(&records.asked)
    );
    let remedy = "Look at the App's recent deliveries for its `queued` event: the answer says why. If there is none, the App \
                  is not installed for the repository or its webhook is not active (`ostler doctor`).";
    Outcome { tone: Tone::Odd, text, remedy: Some(remedy.into()) }
}

/// Words from outside: bounded, and nothing in them that a terminal would obey.
pub fn words(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(MAX_WORDS)
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    if text.chars().nth(MAX_WORDS).is_some() {
        shown.push('…');
    }
    shown
}

/// `1 h 5 min`, `3 min 20 s`, `12 s`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
