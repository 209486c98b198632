//! What each function costs: size, start, memory, and latency and calls per event, against the budgets of
//! the design.
//!
//! Each function runs as a process of its own, as it was deployed from its zip: over the Runtime API, with
//! the variables that AWS would give it, in real time. AWS and GitHub are the local world's, so latencies
//! hold their answers (milliseconds each, as on AWS, but others); the time that the process itself worked
//! is told beside them. No machine is booted, the state machine's steps are the measurement's own, and what is
//! queued stays in the queue.

mod figures;
mod janitor;
mod life;
mod machine;
pub mod peer;
mod reports;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ostler_sim::ec2;
use ostler_sim::github::RateLimits;
use serde::Serialize;
use serde_json::{Value, json};

use crate::demo;
use crate::lambda_host::{InvokeError, Probe};
use crate::world::{CONTROL_STACK, RECOVERY_STACK, World, WorldConfig};
use figures::{Budget, Calls, Figures, Function, FunctionReport, Kind};
use life::Deliveries;
use machine::Machine;

/// Jobs played before anything is noted: connections, parameters and tokens are there then.
const WARM_UP: usize = 2;
/// A state machine in place of the real one: its executions run on, and do nothing.
const STILL_MACHINE: &str =
    r#"{"StartAt": "Still", "States": {"Still": {"Type": "Wait", "Seconds": 86400, "End": true}}}"#;
/// AWS calls that are no event's: parameters are kept for five minutes.
const AWS_APART: &str = "ssm:GetParameters";
/// GitHub calls that are no event's: tokens are kept for an hour.
const GITHUB_APART: &str = "access_tokens";

/// More calls than any measurement makes.
const PLENTY: u32 = 100_000_000;

/// What is measured, and how much.
#[derive(Clone, Debug)]
pub struct Options {
    /// Zips of `make build`, or binaries of `cargo build`.
    pub code: Code,
    /// Where `bench.json` goes; the world's state is kept below it.
    pub out: PathBuf,
    /// Events of each kind.
    pub events: usize,
    /// Starts of each function.
    pub starts: usize,
}

/// Where the functions are.
#[derive(Clone, Debug)]
pub enum Code {
    /// A folder with `webhook.zip` and the others, as they are deployed.
    Zips(PathBuf),
    /// A folder with `ostler-webhook` and the others, to try the measurement.
    Binaries(PathBuf),
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// When.
    pub at: String,
    /// What was measured: the folder.
    pub measured: String,
    /// Where.
    pub machine: Machine,
    /// Versions of compiler, crates and Ostler.
    pub versions: BTreeMap<String, String>,
    /// By function.
    pub functions: Vec<FunctionReport>,
    /// Calls of GitHub for a job that goes well.
    pub github_calls_per_job: f64,
    /// Every figure that has a budget.
    pub budgets: Vec<Budget>,
    /// What to know about the figures.
    pub notes: Vec<String>,
}

/// Measures, prints the figures and writes them to `bench.json`. Being over a budget is no error.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    // Before the measurement makes its own load.
    let machine = Machine::this().await;
    let config = options.code.world(&options.out)?;
    let versions = machine::versions(&config.root);
    let world = World::up(config).await?;
    let measured = measure(&world, options).await;
    let at = world.clock.now().to_string();
    world.down().await;
    let functions = measured?;
    let report = Report {
        at,
        measured: options.code.folder().display().to_string(),
        versions,
        github_calls_per_job: figures::github_calls_per_job(&functions),
        budgets: figures::budgets(&functions),
        functions,
        notes: notes(&options.code, &machine),
        machine,
    };
    let json = serde_json::to_string_pretty(&report)?;
    let path = options.out.join("bench.json");
    std::fs::write(&path, json).with_context(|| format!("write {}", path.display()))?;
    print!("{}", show::table(&report));
    println!("written to {}", path.display());
    Ok(report)
}

impl Code {
    /// A fresh world in real time, with this in it.
    fn world(&self, out: &Path) -> anyhow::Result<WorldConfig> {
        let mut config = WorldConfig { scale: 1.0, ..WorldConfig::fresh(&out.join("world"))? };
        match self {
            Self::Zips(zips) => config.zips = Some(zips.clone()),
            Self::Binaries(binaries) => config.bin_dir.clone_from(binaries),
        }
        Ok(config)
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Zips(folder) | Self::Binaries(folder) => folder,
        }
    }

    /// Size of what is deployed.
    fn zip_bytes(&self, function: Function) -> anyhow::Result<Option<u64>> {
        let Self::Zips(zips) = self else { return Ok(None) };
        let path = zips.join(format!("{}.zip", function.name()));
        let size = std::fs::metadata(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(Some(size.len()))
    }
}

fn notes(code: &Code, machine: &Machine) -> Vec<String> {
    let mut notes = vec![
        "latency is from the event's delivery to the answer, with the answers of the local AWS and GitHub; \
         CPU is the process's own work"
            .to_owned(),
        "calls: of the median event, and of the one with most in brackets; parameters and installation \
         tokens are apart"
            .to_owned(),
    ];
    if matches!(code, Code::Binaries(_)) {
        notes.push(
            "these are binaries that nobody deploys: sizes, times and memory say nothing (make bench \
             builds the zips)"
                .to_owned(),
        );
    }
    if machine.is_busy() {
        let busy = machine.busy.unwrap_or_default() * 100.0;
        notes.push(format!(
            "other work took {busy:.0} % of the processors just before: times are worth little"
        ));
    }
    notes
}

async fn measure(world: &World, options: &Options) -> anyhow::Result<Vec<FunctionReport>> {
    println!("deploying {} into the local world", options.code.folder().display());
    world.install_control(&demo::tiers()).await?;
    life::prepare(world);
    settle(world);
    let mut bench = Bench::start(world, options).await?;
    // What is queued is handled where it is measured, and not by a function behind our back.
    world.edge.queues().unmap(CONTROL_STACK);
    println!("{} events of each kind", options.events);
    bench.stand().await?;
    for _ in 0..WARM_UP {
        bench.life().await?;
        bench.thefts().await?;
    }
    bench.warm = true;
    for _ in 0..options.events {
        bench.life().await?;
        bench.thefts().await?;
    }
    bench.sweep(options).await?;
    bench.finish()
}

/// Machines that never start and are seen at once, and a GitHub that serves as many calls as it is sent:
/// hours of ordinary work pass in a minute here.
fn settle(world: &World) {
    world.ec2.with(|ec2, _| {
        *ec2.options() = ec2::Options { dead_boots: 1.0, ..ec2::Options::calm() };
    });
    world.github.with_model(|github, _| {
        github.options_mut().rate_limits = Some(RateLimits {
            primary_per_hour: PLENTY,
            registrations_per_hour: PLENTY,
            points_per_minute: PLENTY,
            tokens_per_hour: PLENTY,
            ..RateLimits::default()
        });
    });
}

/// A function under measurement.
struct Subject {
    process: Probe,
    figures: Figures,
}

/// One event, as its process handled it.
struct Sample {
    answer: Value,
    /// The answer, where it is an error.
    error: Option<String>,
    /// From its delivery to the answer.
    latency: Duration,
    /// The process's own work; `None` where the system does not tell.
    cpu: Option<Duration>,
    aws: Calls,
    github: Calls,
}

impl Sample {
    /// Of a function that is called `name`.
    async fn take(
        world: &World,
        process: &mut Probe,
        name: &str,
        event: &Value,
    ) -> anyhow::Result<Self> {
        let before = calls(world, name);
        let id = process.process_id().unwrap_or_default();
        let worked = machine::cpu_time_of(id);
        let handled = process.invoke(event.to_string().into()).await;
        let (outcome, latency) = handled.map_err(|error| broken(name, &error))?;
        let cpu = machine::cpu_time_of(id)
            .zip(worked)
            .map(|(after, before)| after.saturating_sub(before));
        let after = calls(world, name);
        let text = || String::from_utf8_lossy(&outcome.payload).into_owned();
        Ok(Self {
            answer: serde_json::from_slice(&outcome.payload).unwrap_or(Value::Null),
            error: outcome.error.then(text),
            latency,
            cpu,
            aws: added(&before.0, &after.0),
            github: added(&before.1, &after.1),
        })
    }
}

/// A measurement under way.
struct Bench<'a> {
    world: &'a World,
    deliveries: Deliveries,
    machine_arn: String,
    subjects: BTreeMap<Function, Subject>,
    /// The delivery that is repeated.
    standing: Value,
    /// Whether events are noted.
    warm: bool,
}

impl<'a> Bench<'a> {
    /// Starts a function's process anew; gives how long it took to be ready. `procs` is the `cgroup.procs` of a control
    /// group that it is to start in.
    async fn restart(
        &mut self,
        function: Function,
        procs: Option<&Path>,
    ) -> anyhow::Result<Duration> {
        let name = deployed_name(function);
        let own = own_variables(&self.machine_arn);
        let process = self.world.edge.lambda().probe(&name, &own, procs).await;
        let process = process.map_err(|error| broken(&name, &error))?;
        let init = process.init();
        self.subject(function)?.process = process;
        Ok(init)
    }

    /// Starts the control plane's functions.
    async fn start(world: &'a World, options: &Options) -> anyhow::Result<Self> {
        let machine_arn = still_machine(world, "ostler-bench").await?;
        let deliveries = Deliveries::of(world).await?;
        let (subjects, standing) = (BTreeMap::new(), Value::Null);
        let mut bench = Self { world, deliveries, machine_arn, subjects, standing, warm: false };
        for function in Function::CONTROL {
            bench.start_one(function, options).await?;
        }
        Ok(bench)
    }

    /// Starts a function so often, and keeps its last process.
    async fn start_one(&mut self, function: Function, options: &Options) -> anyhow::Result<()> {
        println!("starting the {} {} times", function.name(), options.starts);
        let own = own_variables(&self.machine_arn);
        let name = deployed_name(function);
        let zip_bytes = options.code.zip_bytes(function)?;
        let mut figures = Figures { zip_bytes, ..Figures::default() };
        let mut last: Option<Probe> = None;
        for _ in 0..options.starts.max(1) {
            // The one before ends first, so that no two of them share the machine.
            drop(last.take());
            let process = self.world.edge.lambda().probe(&name, &own, None).await;
            let process = process.map_err(|error| broken(&name, &error))?;
            figures.init.push(process.init());
            last = Some(process);
        }
        let process = last.ok_or_else(|| anyhow!("{} was not started", function.name()))?;
        self.subjects.insert(function, Subject { process, figures });
        Ok(())
    }

    /// Hands an event to its function, and gives the answer.
    async fn measure(&mut self, kind: Kind, event: &Value) -> anyhow::Result<Value> {
        let subject = self.subject(kind.function())?;
        let process = subject.process.process_id().unwrap_or_default();
        let resident = match kind {
            Kind::ManyLines | Kind::Scan => subject.figures.weigh(process),
            _ => None,
        };
        let sample = self.sample(kind.function(), event).await?;
        if let Some(error) = sample.error {
            bail!("{} failed: {error}", kind.name());
        }
        let [(aws, aws_apart), (github, github_apart)] = [
            split(sample.aws, |call| call.starts_with(AWS_APART)),
            split(sample.github, |call| call.ends_with(GITHUB_APART)),
        ];
        let warm = self.warm;
        let subject = self.subject(kind.function())?;
        for (call, times) in aws_apart.into_iter().chain(github_apart) {
            *subject.figures.apart.entry(call).or_default() += times;
        }
        let samples = subject.figures.events.entry(kind).or_default();
        // Not only once it is warm: what a process has grown to, it keeps.
        if let Some((before, (_, most))) = resident.zip(machine::memory_of(process)) {
            samples.note_growth(most.saturating_sub(before));
        }
        if warm {
            samples.note(sample.latency, sample.cpu, aws, github);
        }
        Ok(sample.answer)
    }

    /// Hands an event to a function, and notes nothing.
    async fn sample(&mut self, function: Function, event: &Value) -> anyhow::Result<Sample> {
        let world = self.world;
        let process = &mut self.subject(function)?.process;
        Sample::take(world, process, &deployed_name(function), event).await
    }

    /// How many events of that kind were noted.
    fn measured(&self, kind: Kind) -> usize {
        let figures = self.subjects.get(&kind.function()).map(|subject| &subject.figures);
        figures.and_then(|figures| figures.events.get(&kind)).map_or(0, figures::Samples::count)
    }

    fn subject(&mut self, function: Function) -> anyhow::Result<&mut Subject> {
        let subject = self.subjects.get_mut(&function);
        subject.ok_or_else(|| anyhow!("{} is not there", function.name()))
    }

    fn finish(self) -> anyhow::Result<Vec<FunctionReport>> {
        let mut reports = Vec::new();
        for (function, mut subject) in self.subjects {
            let process = subject.process.process_id().unwrap_or_default();
            let (resident, peak) = machine::memory_of(process).with_context(|| {
                format!("the memory of the {} can't be read: Linux tells it", function.name())
            })?;
            subject.figures.memory = (resident, peak.max(subject.figures.memory.1));
            reports.push(subject.figures.report(function));
        }
        Ok(reports)
    }
}

/// What leads a function to the state machine that does nothing.
fn own_variables(machine_arn: &str) -> [(String, String); 1] {
    [("OSTLER_STATE_MACHINE_ARN".to_owned(), machine_arn.to_owned())]
}

fn deployed_name(function: Function) -> String {
    match function {
        Function::RegistrationJanitor => janitor::STACK.to_owned(),
        Function::Reconciler => format!("{RECOVERY_STACK}-reconciler"),
        _ => format!("{CONTROL_STACK}-{}", function.name()),
    }
}

fn broken(name: &str, error: &InvokeError) -> anyhow::Error {
    anyhow!("{name} could not be run: {error:?}")
}

/// Makes a state machine whose executions run and do nothing.
async fn still_machine(world: &World, name: &str) -> anyhow::Result<String> {
    let input = json!({
        "name": name,
        "definition": STILL_MACHINE,
        "roleArn": format!("arn:aws:iam::{}:role/ostler-bench", crate::aws::ACCOUNT),
    });
    let target = "AWSStepFunctions.CreateStateMachine";
    let made = world.edge.moto().json("states", target, &input).await;
    let made = made.context("make a state machine that does nothing")?;
    made["stateMachineArn"].as_str().map(str::to_owned).context("the state machine has no ARN")
}

/// Calls so far: of AWS by a function, and of GitHub by anyone, because functions work in turn here.
fn calls(world: &World, function: &str) -> (Calls, Calls) {
    let caller = format!("fn-{function}");
    (world.edge.calls().remove(&caller).unwrap_or_default(), world.github.calls())
}

/// What was added.
fn added(before: &Calls, after: &Calls) -> Calls {
    after
        .iter()
        .map(|(call, times)| (call.clone(), times - before.get(call).unwrap_or(&0)))
        .filter(|(_, times)| *times > 0)
        .collect()
}

/// Those that are an event's, and those that are apart.
fn split(calls: Calls, apart: impl Fn(&str) -> bool) -> (Calls, Calls) {
    calls.into_iter().partition(|(call, _)| !apart(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(calls: &[(&str, u64)]) -> Calls {
        calls.iter().map(|(call, times)| ((*call).to_owned(), *times)).collect()
    }

    #[test]
    fn only_what_was_added_counts_and_tokens_and_parameters_are_apart() {
        let before = of(&[("ssm:GetParameters", 1), ("states:StartExecution", 4)]);
        let after =
            of(&[("ssm:GetParameters", 2), ("states:StartExecution", 5), ("sqs:SendMessage", 1)]);
        let (own, apart) = split(added(&before, &after), |call| call.starts_with(AWS_APART));
        assert_eq!(own, of(&[("sqs:SendMessage", 1), ("states:StartExecution", 1)]));
        assert_eq!(apart, of(&[("ssm:GetParameters", 1)]));
        assert_eq!(added(&after, &after), Calls::new());
    }

    #[test]
    fn who_measures_what_nobody_deploys_or_on_a_busy_machine_is_told() {
        let machine = |busy| Machine { cpu: String::new(), cores: 2, busy: Some(busy) };
        let zips = Code::Zips("target/package/x86_64".into());
        let binaries = Code::Binaries("target/debug".into());
        assert_eq!(notes(&zips, &machine(0.01)).len(), 2);
        assert!(notes(&binaries, &machine(0.01))[2].contains("nobody deploys"));
        assert!(notes(&zips, &machine(0.9))[2].contains("90 %"));
    }
}
