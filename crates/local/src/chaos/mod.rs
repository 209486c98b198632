//! `ostler-local chaos`: a script of faults, played in the local world over the real processes. Whatever befalls them, at
//! the end every accepted job has run exactly once or was cancelled, and nothing is left behind.

mod report;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use ostler_core::time::Timestamp;
use ostler_sim::github::{Job, JobSpec, Status, Turn};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::demo::remains::{Remainder, is_over, of_job};
use crate::ec2::Ec2Fault;
use crate::github::refused;
use crate::world::World;
pub use report::Report;
pub use script::tiers;

/// Between two looks at the world, in real time.
const LOOK: Duration = Duration::from_millis(300);

/// A script that is not over by then is stopped and judged as it stands. World time: a quarter of an hour at the usual speed,
/// of which a quiet computer needs a third.
const DEADLINE: Duration = Duration::from_secs(15 * 1800);

/// For how long one thing is waited for within the script, in world time.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How long a job has run when its machine is taken back. World time.
const AT_WORK: Duration = Duration::from_secs(30);

/// What is wanted of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It runs, once.
    Once,
    /// It was cancelled before it ran: it never does.
    Cancelled,
    /// Its machine was taken back while it ran: it is cut off and run again, and comes to its end once.
    Again,
}

/// When a job's machine is taken back by EC2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before its runner is there.
    Booting,
    /// While its runner waits for a job.
    Idle,
    /// While it runs the job.
    AtWork,
}

/// A job of the script.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its id at GitHub.
    pub id: u64,
    /// The run that it belongs to, by which later attempts are known.
    run: u64,
    /// What befell it.
    pub befell: String,
    /// What is wanted.
    pub wanted: Wanted,
    /// When it was posted.
    pub queued: Timestamp,
    /// What its script has written.
    trace: PathBuf,
    /// When its last attempt began.
    pub began: Option<Timestamp>,
    /// When it was over.
    pub over: Option<Timestamp>,
    /// How it ended at GitHub.
    pub conclusion: Option<String>,
    /// Attempts of its run.
    pub attempts: u32,
    /// Runners that were started for it.
    pub runners: usize,
}

impl Subject {
    /// Whether nothing more will happen to it: what was cut off is run again some minutes later.
    fn is_over(&self) -> bool {
        let ended = self.wanted != Wanted::Again || self.conclusion.as_deref() == Some("success");
        self.over.is_some() && ended
    }

    /// How often its script began, and how often it came to its end.
    fn traces(&self) -> (usize, usize) {
        let text = std::fs::read_to_string(&self.trace).unwrap_or_default();
        let count = |word: &str| text.lines().filter(|line| *line == word).count();
        (count("began"), count("ended"))
    }
}

/// Plays the script in a world with everything installed, prints what happens, and writes `report.md` and `report.json`
/// into `out`. The answer holds what was violated.
pub async fn play(world: &World, out: &Path, seed: u64) -> anyhow::Result<Report> {
    let traces = world.log_dir().join("traces");
    std::fs::create_dir_all(&traces).with_context(|| format!("make {}", traces.display()))?;
    let mut chaos = Chaos {
        world,
        start: world.clock.now(),
        rng: StdRng::seed_from_u64(seed),
        traces,
        jobs: Vec::new(),
        taken_back: Vec::new(),
        idle: Vec::new(),
        missed: Vec::new(),
    };
    println!("playing faults at {}× speed, seed {seed}", world.clock.scale());
    script::play(&mut chaos).await?;
    let mut remains = Remainder::default();
    loop {
        chaos.pause(LOOK.mul_f64(world.clock.scale())).await;
        let over = chaos.jobs.iter().all(Subject::is_over);
        let registered = !world.github.snapshot().runners.is_empty();
        if over && !registered && remains.nothing_left(world).await? {
            break;
        }
        if world.clock.now().since(chaos.start) >= DEADLINE {
            println!("not over after {} hours of world time: stopping", DEADLINE.as_secs() / 3600);
            break;
        }
    }
    chaos.count_runners(&remains.executions(world).await?);
    let found = remains.find(world, &[]).await?;
    let report = Report::of(&chaos, seed, &found);
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    report.write(out)?;
    report.print(out);
    Ok(report)
}

struct Chaos<'a> {
    world: &'a World,
    start: Timestamp,
    rng: StdRng,
    traces: PathBuf,
    jobs: Vec<Subject>,
    /// Jobs whose machines are to be taken back, and when.
    taken_back: Vec<(u64, When)>,
    /// Jobs that nobody gets before their idle runners' machines have ended.
    idle: Vec<(u64, String)>,
    /// Faults that never struck.
    missed: Vec<String>,
}

impl Chaos<'_> {
    /// Posts a job that takes so long, and says what befalls it.
    fn post(
        &mut self,
        repository: &str,
        label: &str,
        seconds: u64,
        befell: &str,
        wanted: Wanted,
    ) -> anyhow::Result<u64> {
        let trace = self.traces.join(self.jobs.len().to_string());
        let path = trace.display();
        let script = format!("echo began >> {path}; sleep {seconds}; echo ended >> {path}");
        let labels = ["self-hosted", "linux", "x64", label];
        let spec = JobSpec {
            duration: Duration::ZERO,
            script: Some(script),
            ..JobSpec::new(&format!("acme/{repository}"), &labels)
        };
        self.world.github.add_repository(&spec.repository, true);
        let id = self.world.github.post_job(&spec).map_err(refused)?;
        let job = self
            .world
            .github
            .with_model(|model, _| model.all_jobs().find(|job| job.id == id).map(|job| job.run_id));
        self.say(&format!("job {id} is queued: {befell}"));
        self.jobs.push(Subject {
            id,
            run: job.with_context(|| format!("GitHub does not know job {id}"))?,
            befell: befell.to_owned(),
            wanted,
            queued: self.world.clock.now(),
            trace,
            began: None,
            over: None,
            conclusion: None,
            attempts: 1,
            runners: 0,
        });
        Ok(id)
    }

    fn say(&self, what: &str) {
        let seconds = self.world.clock.now().since(self.start).as_secs();
        println!("{:>3}:{:02}  {what}", seconds / 60, seconds % 60);
    }

    /// Lets that much world time pass.
    async fn pause(&mut self, time: Duration) {
        let end = self.world.clock.now() + time;
        while self.world.clock.now() < end {
            tokio::time::sleep(LOOK).await;
            self.look();
        }
    }

    /// Looks until it is so, for half an hour of world time at most: what never was so is told at the end.
    async fn until(&mut self, mut so: impl FnMut(&Self) -> bool) {
        let end = self.world.clock.now() + PATIENCE;
        while !so(self) && self.world.clock.now() < end {
            tokio::time::sleep(LOOK).await;
            self.look();
        }
    }

    /// Whether a machine was ever launched for the job.
    fn launched(&self, id: u64) -> bool {
        self.machine(id).is_some()
    }

    /// The first machine for a job: its id, and its runner's name.
    fn machine(&self, id: u64) -> Option<(String, String)> {
        self.world.ec2.instances().into_iter().find_map(|view| {
            let runner = view.tags.get("ostler:runner")?;
            of_job(runner, id).then(|| (view.instance_id.clone(), runner.clone()))
        })
    }

    /// Notes what is new of each job, and takes machines back whose time has come.
    fn look(&mut self) {
        let snapshot = self.world.github.snapshot();
        let mut by_run: BTreeMap<u64, Vec<&Job>> = BTreeMap::new();
        for job in &snapshot.jobs {
            by_run.entry(job.run_id).or_default().push(job);
        }
        let mut told = Vec::new();
        for subject in &mut self.jobs {
            let attempts = by_run.get(&subject.run).map(Vec::as_slice).unwrap_or_default();
            let Some(job) = attempts.iter().max_by_key(|job| job.attempt) else { continue };
            if job.attempt > subject.attempts {
                subject.attempts = job.attempt;
                (subject.began, subject.over, subject.conclusion) = (None, None, None);
                told.push(format!("job {} is run again, as {}", subject.id, job.id));
            }
            if subject.began.is_none() && job.started_at.is_some() && job.runner.is_some() {
                subject.began = job.started_at;
                let runner = job.runner.as_ref().map_or("-", |on| on.name.as_str());
                told.push(format!("job {} runs on {runner}", job.id));
            }
            if subject.over.is_none() && job.status == Status::Completed {
                subject.over = Some(job.completed_at.unwrap_or(snapshot.at));
                subject.conclusion.clone_from(&job.conclusion);
                let how = job.conclusion.as_deref().unwrap_or("over");
                told.push(format!("job {} is over: {how}", job.id));
            }
        }
        told.iter().for_each(|what| self.say(what));
        self.take_back(&snapshot);
    }

    fn take_back(&mut self, snapshot: &crate::github::Snapshot) {
        let jobs: BTreeMap<u64, &Job> = snapshot.jobs.iter().map(|job| (job.id, job)).collect();
        for (id, when) in std::mem::take(&mut self.taken_back) {
            let registered = snapshot.runners.iter().find(|runner| of_job(&runner.name, id));
            let job = jobs.get(&id);
            let due = match when {
                When::Booting => registered.is_some_and(|runner| !runner.online),
                When::Idle => registered.is_some_and(|runner| runner.online && !runner.busy),
                When::AtWork => job
                    .and_then(|job| job.started_at)
                    .is_some_and(|at| snapshot.at.since(at) >= AT_WORK),
            };
            let on = job.and_then(|job| job.runner.as_ref()).map(|on| on.name.clone());
            let machine = match (due, on) {
                (false, _) => None,
                (true, Some(on)) => self.machine_of(&on),
                (true, None) => self.machine(id).map(|(machine, _)| machine),
            };
            let Some(machine) = machine else {
                self.taken_back.push((id, when));
                continue;
            };
            if self.world.ec2.inject(Ec2Fault::Interrupt { instance: machine.clone() }) {
                self.say(&format!("EC2 takes {machine} of job {id} back in two minutes"));
            } else {
                self.missed.push(format!("{machine} of job {id} could not be taken back"));
            }
            if when == When::Idle {
                self.idle.push((id, machine));
            }
        }
        let ended: Vec<String> = self
            .world
            .ec2
            .instances()
            .into_iter()
            .filter(|view| is_over(&view.state))
            .map(|view| view.instance_id)
            .collect();
        self.idle.retain(|(id, machine)| {
            let waits = !ended.contains(machine);
            if !waits {
                self.world.github.with_model(|model, _| model.set_turn(*id, Turn::Chance));
            }
            waits
        });
    }

    fn machine_of(&self, runner: &str) -> Option<String> {
        let views = self.world.ec2.instances().into_iter();
        let mut of =
            views.filter(|view| view.tags.get("ostler:runner").is_some_and(|name| name == runner));
        of.next().map(|view| view.instance_id)
    }

    fn count_runners(&mut self, names: &[String]) {
        for job in &mut self.jobs {
            job.runners = names.iter().filter(|name| of_job(name, job.id)).count();
        }
    }
}
