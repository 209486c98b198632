//! Supply: whether a waiting job has a runner that is bound to come free for it, and whose debt a lost
//! runner is. Pure rules over observed facts; the design's section 6 in code.
//!
//! A rule that lacks a fact says which ([`Need`]); the caller observes it and asks again. So the rules
//! stay pure functions, and only what decides is looked up.

use std::collections::{HashMap, HashSet};

use crate::job::{JobId, Repository, RunnerInput};
use crate::labels::Labels;
use crate::names::{NameKey, is_plausible};
use crate::ports::{Execution, ForgeJob, JobRecord, JobStatus, Ran, RunnerRecord};
use crate::reach::reached;

/// Steps from a job to the runner that will serve it: GitHub can shuffle a whole matrix (at most 256 jobs)
/// into one chain. The bound ends circles.
const MAX_CHAIN: usize = 256;

/// A fact that a rule needs and that has not been observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The ledger's item of a job.
    Job(JobId),
    /// The ledger's item of a runner.
    Runner(String),
    /// An execution.
    Execution(String),
    /// GitHub's record of a job.
    Forge(Repository, JobId),
}

/// A fact that was observed.
#[derive(Clone, Debug)]
pub enum Fact {
    /// [`Facts::jobs`].
    Job(JobId, Option<JobRecord>),
    /// [`Facts::runners`].
    Runner(String, RunnerRecord),
    /// [`Facts::executions`].
    Execution(String, Option<Execution>),
    /// [`Facts::forge`].
    Forge(JobId, Option<ForgeJob>),
}

/// What has been observed. Every entry was read; `None` in one is the source's own word that there is
/// nothing.
#[derive(Debug)]
pub struct Facts<'a> {
    names: &'a NameKey,
    /// Ledger items of jobs.
    pub jobs: HashMap<JobId, Option<JobRecord>>,
    /// Ledger items of runners.
    pub runners: HashMap<String, RunnerRecord>,
    /// Executions by name.
    pub executions: HashMap<String, Option<Execution>>,
    /// GitHub's records of jobs.
    pub forge: HashMap<JobId, Option<ForgeJob>>,
    /// Runners that jobs are known to have run on, by GitHub's word.
    ran_on: HashMap<JobId, String>,
}

/// A job by id, with its repository's name where that is known (the base name needs it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobKey {
    /// The job.
    pub id: JobId,
    /// Name of its repository, without the owner.
    pub repo: Option<String>,
}

impl JobKey {
    /// The job of an input; `None` for a warm runner.
    pub fn of(input: &RunnerInput) -> Option<Self> {
        input.job().map(|id| Self { id, repo: Some(input.repo.clone()) })
    }

    /// A job that the ledger names, with `owner/name` where it was noted.
    pub fn noted(id: JobId, repository: Option<&str>) -> Self {
        let repo =
            repository.and_then(|full| full.split_once('/')).map(|(_, name)| name.to_owned());
        Self { id, repo }
    }
}

/// Whose debt a lost runner is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// The input of the job that waits; `None` if nobody does.
    pub owner: Option<RunnerInput>,
    /// Nobody does, because the job at the end was completed without ever having had a runner.
    pub unneeded: bool,
    /// Runners that the look-ups accounted for on the way: runner, job, `owner/name`.
    pub accounts: Vec<(String, JobId, String)>,
}

impl<'a> Facts<'a> {
    /// Nothing observed yet.
    pub fn new(names: &'a NameKey) -> Self {
        Self {
            names,
            jobs: HashMap::new(),
            runners: HashMap::new(),
            executions: HashMap::new(),
            forge: HashMap::new(),
            ran_on: HashMap::new(),
        }
    }

    /// Notes that GitHub has shown the job on that runner.
    pub fn note_ran(&mut self, id: JobId, runner: &str) {
        self.ran_on.entry(id).or_insert_with(|| runner.to_owned());
    }

    /// Adds a fact; what was known of the same before is replaced.
    pub fn note(&mut self, fact: Fact) {
        match fact {
            Fact::Job(id, record) => {
                if let Some(runner) = record.as_ref().and_then(|record| record.ran_on.as_deref()) {
                    self.note_ran(id, runner);
                }
                self.jobs.insert(id, record);
            }
            Fact::Runner(name, record) => drop(self.runners.insert(name, record)),
            Fact::Execution(name, execution) => drop(self.executions.insert(name, execution)),
            Fact::Forge(id, job) => drop(self.forge.insert(id, job)),
        }
    }

    /// Those that no time changes: which job a runner ran and on which runner a job ran, once that is known,
    /// and executions that are over. All others may be out of date a moment later.
    pub fn lasting(&self) -> Self {
        let ran = |record: &RunnerRecord| matches!(record.ran, Ran::Job { .. });
        let over = |execution: &Execution| !execution.running;
        let begun = |job: &ForgeJob| job.runner_name.is_some();
        let runners = self.runners.iter().filter(|(_, record)| ran(record));
        let executions = self.executions.iter().filter(|(_, it)| it.as_ref().is_some_and(over));
        let forge = self.forge.iter().filter(|(_, job)| job.as_ref().is_some_and(begun));
        Self {
            names: self.names,
            jobs: HashMap::new(),
            runners: runners.map(|(name, record)| (name.clone(), record.clone())).collect(),
            executions: executions.map(|(name, it)| (name.clone(), it.clone())).collect(),
            forge: forge.map(|(id, job)| (*id, job.clone())).collect(),
            ran_on: self.ran_on.clone(),
        }
    }

    /// Whether it is known that `runner` ran that job.
    pub fn is_accounted(&self, runner: &str, job: JobId) -> bool {
        let record = self.runners.get(runner);
        record.is_some_and(|it| matches!(it.ran, Ran::Job { id, .. } if id == job))
    }

    /// Whether it is known that an execution of that name was started.
    pub fn is_used(&self, name: &str) -> bool {
        self.executions.get(name).is_some_and(Option::is_some)
    }

    /// The ledger's word about a runner.
    pub fn runner(&self, name: &str) -> Result<&RunnerRecord, Need> {
        self.runners.get(name).ok_or_else(|| Need::Runner(name.to_owned()))
    }

    /// The execution of that name.
    pub fn execution(&self, name: &str) -> Result<Option<&Execution>, Need> {
        match self.executions.get(name) {
            Some(execution) => Ok(execution.as_ref()),
            None => Err(Need::Execution(name.to_owned())),
        }
    }

    /// Whether that runner can still get a job: its execution runs, and nothing is known of a job it ran
    /// or of its end, be it that EC2 has announced it. The runner being judged (`except`) never counts.
    ///
    /// Only runners that were started are asked about: the ledger names them, or StartExecution has said
    /// that they exist. That DescribeExecution does not know one proves that it was started a moment ago
    /// (API: "eventually consistent"), not that there is none.
    pub fn available(&self, name: &str, except: Option<&str>) -> Result<bool, Need> {
        if except == Some(name) {
            return Ok(false);
        }
        let record = self.runner(name)?;
        if record.ran != Ran::Unknown
            || record.ended_at.is_some()
            || record.interrupted_at.is_some()
        {
            return Ok(false);
        }
        Ok(self.execution(name)?.is_none_or(|execution| execution.running))
    }

    /// The latest runner of a job: the ledger's, else the execution of its base name if there is one.
    pub fn latest(&self, job: &JobKey) -> Result<Option<String>, Need> {
        let record = self.jobs.get(&job.id).ok_or(Need::Job(job.id))?;
        if let Some(name) = record.as_ref().and_then(|record| record.runner_name.clone()) {
            return Ok(Some(name));
        }
        let noted = record.as_ref().and_then(|record| record.repo.as_ref());
        let Some(repo) = noted.or(job.repo.as_ref()) else { return Ok(None) };
        let base = self.names.base_name(repo, job.id);
        Ok(self.execution(&base)?.map(|_| base))
    }

    /// Whether a runner was started for that job, by us or by a system that writes the same ledger.
    pub fn is_served(&self, id: JobId) -> Result<bool, Need> {
        let record = self.jobs.get(&id).ok_or(Need::Job(id))?;
        Ok(record.as_ref().is_some_and(|record| record.runner_labels.is_some()))
    }

    fn started_for(&self, runner: &str, id: JobId) -> Result<bool, Need> {
        let input = self.execution(runner)?.and_then(|execution| execution.input.as_ref());
        Ok(input.and_then(RunnerInput::job) == Some(id))
    }

    /// The labels of a job's runner as another system has recorded them in the ledger: without its name.
    /// Nothing more can be known of that runner than that it was started.
    fn foreign(&self, id: JobId) -> Option<&Labels> {
        let record = self.jobs.get(&id)?.as_ref()?;
        record.runner_labels.as_ref().filter(|_| record.runner_name.is_none())
    }

    /// Whether a runner is bound to come free for `job`: latest runner, the job that it ran, that job's
    /// latest runner, and so on; the first available one decides, by whether its labels cover what `job`
    /// asks for.
    pub fn supply(
        &self,
        job: &JobKey,
        wanted: &Labels,
        except: Option<&str>,
    ) -> Result<bool, Need> {
        let mut at = job.clone();
        for _ in 0..MAX_CHAIN {
            let name = match self.latest(&at)? {
                Some(name) => name,
                // Another system records no runners' names. Of the job itself the lost one is known, which
                // is none any more; of a job on the way nothing is, but that its runner was started.
                None => match except {
                    Some(lost) if at.id == job.id && self.started_for(lost, job.id)? => lost.into(),
                    _ if at.id == job.id => {
                        reached("supply: no runner was started for it");
                        return Ok(false);
                    }
                    _ => {
                        reached("supply: through a job that has no runner of ours");
                        let labels = self.foreign(at.id);
                        return Ok(labels.is_some_and(|labels| labels.cover_foreign(wanted)));
                    }
                },
            };
            if self.available(&name, except)? {
                reached("supply: a runner is available");
                let input = self.execution(&name)?.and_then(|execution| execution.input.as_ref());
                // A job's own runner covers it, also where its input is not to be seen yet.
                return Ok(input.map_or(at.id == job.id, |input| input.covers(wanted)));
            }
            match &self.runner(&name)?.ran {
                Ran::Job { id, repository } => {
                    reached("supply: it ran another job, whose runner is next");
                    at = JobKey::noted(*id, repository.as_deref());
                }
                Ran::Taken | Ran::Unknown => {
                    reached("supply: the last one is lost");
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// The runner that is bound to come free for `job`, whatever its labels: the first available one on the way
    /// that [`Facts::supply`] goes. Nobody else counts on it: each runner ran one job at most, so only `job`'s
    /// way leads there.
    pub fn supplier(&self, job: &JobKey) -> Result<Option<String>, Need> {
        let mut at = job.clone();
        for _ in 0..MAX_CHAIN {
            let Some(name) = self.latest(&at)? else { return Ok(None) };
            if self.available(&name, None)? {
                return Ok(Some(name));
            }
            match &self.runner(&name)?.ran {
                Ran::Job { id, repository } => at = JobKey::noted(*id, repository.as_deref()),
                Ran::Taken | Ran::Unknown => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Whether nobody can wait because `lost`, started with `own`, ran `ran`: told by the ledger alone, for
    /// that is what happens to most runners of a burst. Whoever counted on the lost runner now counts on the
    /// runner of the job that it ran, or on the one after that. It is relieved if
    /// - the first of these that is available covers all that the lost one covered, or
    /// - the chain comes back to the lost runner's own job: all jobs of that circle have run.
    ///
    /// Each runner's end is judged, so that each step of a chain is looked at when it comes about, and the
    /// way back to the job that waits needs to be walked only where one of them brings less.
    pub fn relieved(&self, lost: &str, own: &RunnerInput, ran: &JobKey) -> Result<bool, Need> {
        let mut at = ran.clone();
        for _ in 0..MAX_CHAIN {
            if own.job() == Some(at.id) {
                reached("relieved: the jobs of a circle have all run");
                return Ok(true);
            }
            let Some(name) = self.latest(&at)? else { return Ok(false) };
            if self.available(&name, Some(lost))? {
                reached("relieved: perhaps, by one that is available");
                let input = self.execution(&name)?.and_then(|execution| execution.input.as_ref());
                return Ok(input.is_some_and(|input| input.covers(&own.registered())));
            }
            match &self.runner(&name)?.ran {
                Ran::Job { id, repository } => {
                    reached("relieved: perhaps, by the next of the chain");
                    at = JobKey::noted(*id, repository.as_deref());
                }
                Ran::Taken | Ran::Unknown => {
                    reached("relieved: not, the last one is lost");
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Whose debt it is that a runner started with `own` is lost: back from its own job to the one that waits, by the
    /// runners that GitHub has shown with them. Of most jobs of a burst the ledger has noted that; only of the others GitHub
    /// is asked, and of each that waits by its word.
    pub fn debt(&self, own: &RunnerInput) -> Result<Debt, Need> {
        let mut debt = Debt::default();
        let mut seen = HashSet::new();
        let mut at = own;
        while let Some(id) = at.job() {
            if !seen.insert(id) {
                reached("debt: a circle");
                return Ok(debt);
            }
            let repository = at.repository();
            let full_name = repository.to_string();
            let noted = self.ran_on.get(&id);
            let name = match (noted, self.forge.get(&id)) {
                (Some(name), _) => {
                    reached("debt: a job on the runner that the ledger has noted");
                    Some(name)
                }
                (None, Some(None)) => {
                    reached("debt: a job on the way is gone");
                    return Ok(debt);
                }
                (None, Some(Some(record))) if record.status == JobStatus::Queued => {
                    reached("debt: a job waits");
                    debt.owner = Some(at.clone());
                    return Ok(debt);
                }
                (None, Some(Some(record))) => {
                    let over = record.status == JobStatus::Completed;
                    debt.unneeded = over && record.runner_name.is_none();
                    record.runner_name.as_ref()
                }
                (None, None) if !self.jobs.contains_key(&id) => return Err(Need::Job(id)),
                (None, None) => return Err(Need::Forge(repository, id)),
            };
            let Some(name) = name.filter(|name| is_plausible(name)) else {
                reached("debt: a job that no runner has");
                return Ok(debt);
            };
            let Some(input) = self.execution(name)?.and_then(|execution| execution.input.as_ref())
            else {
                reached("debt: a job on a runner that is not ours");
                return Ok(debt);
            };
            reached("debt: a job on a runner of ours");
            if noted.is_none() {
                debt.accounts.push((name.clone(), id, full_name));
            }
            at = input;
        }
        Ok(debt)
    }

    /// Whether a runner that GitHub has just connected with a strange job `k` is judged too early: a job
    /// that a tier of ours would take and that nothing is known of may only have a late `queued` event.
    pub fn too_early(
        &self,
        job: &JobKey,
        repository: &Repository,
        accepts: impl Fn(&Labels) -> bool,
        young: impl Fn(&ForgeJob) -> bool,
    ) -> Result<bool, Need> {
        if self.latest(job)?.is_some() || self.foreign(job.id).is_some() {
            return Ok(false);
        }
        let Some(record) = self.forge.get(&job.id) else {
            return Err(Need::Forge(repository.clone(), job.id));
        };
        Ok(record.as_ref().is_some_and(|record| young(record) && accepts(&record.labels)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn key() -> NameKey {
        NameKey::new("k").unwrap()
    }

    fn input(id: i64, job_labels: &str, labels: &str) -> RunnerInput {
        RunnerInput {
            owner: "acme".into(),
            repo: "widgets".into(),
            job_id: id,
            job_url: String::new(),
            installation_id: 1,
            job_labels: job_labels.into(),
            provider: "t".into(),
            labels: labels.into(),
            max_idle_seconds: 300,
            queued_at: Some("2026-11-30T12:00:00Z".into()),
        }
    }

    fn job(id: i64) -> JobKey {
        JobKey { id: JobId(id), repo: Some("widgets".into()) }
    }

    /// A small world: jobs 1.. with labels "a", their base runners all running.
    struct Small {
        key: NameKey,
    }

    impl Small {
        fn facts(&self, jobs: i64) -> Facts<'_> {
            let mut facts = Facts::new(&self.key);
            for id in 1..=jobs {
                let name = self.name(id);
                facts.jobs.insert(
                    JobId(id),
                    Some(JobRecord { runner_name: Some(name.clone()), ..JobRecord::default() }),
                );
                facts.runners.insert(name.clone(), RunnerRecord::default());
                facts.executions.insert(name, Some(running(input(id, "a", "a"))));
                facts.forge.insert(JobId(id), Some(forge(JobStatus::Queued, None)));
            }
            facts
        }

        fn name(&self, id: i64) -> String {
            self.key.base_name("widgets", JobId(id))
        }
    }

    fn running(input: RunnerInput) -> Execution {
        Execution { running: true, started: Timestamp::default(), input: Some(input) }
    }

    fn forge(status: JobStatus, runner: Option<&str>) -> ForgeJob {
        ForgeJob {
            status,
            runner_name: runner.map(str::to_owned),
            labels: Labels::new(["a"]),
            created: None,
        }
    }

    fn ran(id: i64) -> RunnerRecord {
        let repository = Some("acme/widgets".into());
        RunnerRecord { ran: Ran::Job { id: JobId(id), repository }, ..RunnerRecord::default() }
    }

    #[test]
    fn a_waiting_job_has_its_own_runner_as_supply() {
        let world = Small { key: key() };
        let facts = world.facts(1);
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), None), Ok(true));
        assert_eq!(facts.supply(&job(1), &Labels::new(["b"]), None), Ok(false), "labels decide");
        let name = world.name(1);
        assert_eq!(
            facts.supply(&job(1), &Labels::new(["a"]), Some(&name)),
            Ok(false),
            "not itself"
        );
    }

    #[test]
    fn st_10_a_shuffle_between_compatible_jobs_leaves_both_supplied() {
        let world = Small { key: key() };
        let mut facts = world.facts(2);
        facts.runners.insert(world.name(1), ran(2));
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), None), Ok(true));
        facts.runners.insert(world.name(2), ran(1));
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), None), Ok(false), "a full swap");
    }

    #[test]
    fn taken_ended_and_closed_runners_are_no_supply() {
        let world = Small { key: key() };
        let wanted = Labels::new(["a"]);
        let mut facts = world.facts(1);
        let name = world.name(1);
        facts.runners.insert(name.clone(), RunnerRecord { ran: Ran::Taken, ..Default::default() });
        assert_eq!(facts.supply(&job(1), &wanted, None), Ok(false));
        let ended = RunnerRecord { ended_at: Some(Timestamp::default()), ..Default::default() };
        facts.runners.insert(name.clone(), ended);
        assert_eq!(facts.supply(&job(1), &wanted, None), Ok(false));
        let doomed = Some(Timestamp::default());
        let doomed = RunnerRecord { interrupted_at: doomed, ..Default::default() };
        facts.runners.insert(name.clone(), doomed);
        assert_eq!(facts.supply(&job(1), &wanted, None), Ok(false));
        facts.runners.insert(name.clone(), RunnerRecord::default());
        let closed = Execution { running: false, ..running(input(1, "a", "a")) };
        facts.executions.insert(name.clone(), Some(closed));
        assert_eq!(facts.supply(&job(1), &wanted, None), Ok(false));
        // The ledger knows it, and DescribeExecution not yet.
        facts.jobs.insert(
            JobId(1),
            Some(JobRecord { runner_name: Some(name.clone()), ..JobRecord::default() }),
        );
        facts.executions.insert(name, None);
        assert_eq!(facts.supply(&job(1), &wanted, None), Ok(true));
    }

    #[test]
    fn an_unrecorded_job_is_found_by_its_base_name() {
        let world = Small { key: key() };
        let mut facts = world.facts(1);
        facts.jobs.insert(JobId(1), None);
        assert_eq!(facts.latest(&job(1)), Ok(Some(world.name(1))));
        facts.executions.insert(world.name(1), None);
        assert_eq!(facts.latest(&job(1)), Ok(None));
        assert_eq!(facts.latest(&JobKey { id: JobId(1), repo: None }), Ok(None));
    }

    #[test]
    fn a_job_recorded_by_another_system_is_supply_by_its_labels() {
        let world = Small { key: key() };
        let mut facts = world.facts(1);
        facts.executions.insert(world.name(9), None);
        let record = |labels| JobRecord {
            runner_labels: Some(Labels::from_joined(labels)),
            ..JobRecord::default()
        };
        // Of job 1 no runner's name is known either, but that it was started as "theirs" and is lost.
        facts.jobs.insert(JobId(1), Some(record("a")));
        facts.executions.insert(world.name(1), None);
        facts.executions.insert("theirs".into(), Some(running(input(1, "a", "a"))));
        facts.runners.insert("theirs".into(), RunnerRecord { ran: Ran::Taken, ..ran(9) });
        let theirs = Some("theirs");
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), theirs), Ok(false), "stolen");
        facts.runners.insert("theirs".into(), ran(9));
        for (labels, supplied) in [("a,x64", true), ("b", false), ("", false)] {
            facts.jobs.insert(JobId(9), Some(record(labels)));
            let wanted = Labels::new(["self-hosted", "a"]);
            assert_eq!(facts.supply(&job(1), &wanted, theirs), Ok(supplied), "{labels}");
            assert_eq!(
                facts.too_early(&job(9), &input(9, "", "").repository(), |_| true, |_| true),
                Ok(false),
                "it is known"
            );
        }
    }

    #[test]
    fn of_a_job_of_another_system_only_the_runner_that_was_started_for_it_is_followed() {
        let world = Small { key: key() };
        let mut facts = world.facts(1);
        let labels = Some(Labels::from_joined("a"));
        let theirs = JobRecord { runner_labels: labels, ..JobRecord::default() };
        for id in [1, 9] {
            facts.jobs.insert(JobId(id), Some(theirs.clone()));
            facts.executions.insert(world.name(id), None);
        }
        // The lost one ran a job whose runner could stand in, but it was not started for job 1.
        facts.runners.insert("lost".into(), ran(9));
        for (own, supplied) in [(1, true), (5, false)] {
            facts.executions.insert("lost".into(), Some(running(input(own, "a", "a"))));
            let found = facts.supply(&job(1), &Labels::new(["a"]), Some("lost"));
            assert_eq!(found, Ok(supplied), "started for {own}");
        }
    }

    #[test]
    fn b10_a_job_that_ended_without_a_runner_needs_none() {
        let world = Small { key: key() };
        let mut facts = world.facts(1);
        facts.forge.insert(JobId(1), Some(forge(JobStatus::Completed, None)));
        assert!(facts.debt(&input(1, "a", "a")).unwrap().unneeded);
        for served in [
            forge(JobStatus::InProgress, None),
            forge(JobStatus::Completed, Some("GitHub Actions 6")),
        ] {
            facts.forge.insert(JobId(1), Some(served));
            facts.executions.insert("GitHub Actions 6".into(), None);
            assert!(!facts.debt(&input(1, "a", "a")).unwrap().unneeded);
        }
    }

    #[test]
    fn the_debt_goes_back_to_the_job_that_waits() {
        let world = Small { key: key() };
        let mut facts = world.facts(3);
        facts.forge.insert(JobId(1), Some(forge(JobStatus::InProgress, Some(&world.name(2)))));
        facts.forge.insert(JobId(2), Some(forge(JobStatus::Completed, Some(&world.name(3)))));
        let debt = facts.debt(&input(1, "a", "a")).unwrap();
        assert_eq!(debt.owner.map(|owner| owner.job_id), Some(3));
        let accounts: Vec<_> =
            debt.accounts.iter().map(|(name, id, _)| (name.clone(), id.0)).collect();
        assert_eq!(accounts, [(world.name(2), 1), (world.name(3), 2)]);
    }

    #[test]
    fn the_debt_goes_back_by_the_ledger_and_asks_github_only_of_who_waits() {
        let world = Small { key: key() };
        let mut facts = world.facts(3);
        facts.forge.clear();
        for (id, runner) in [(1, 2), (2, 3)] {
            let ran_on = Some(world.name(runner));
            facts.note(Fact::Job(JobId(id), Some(JobRecord { ran_on, ..JobRecord::default() })));
        }
        let own = input(1, "a", "a");
        assert_eq!(facts.debt(&own), Err(Need::Forge(own.repository(), JobId(3))));
        let facts = facts.lasting();
        assert_eq!(
            facts.debt(&own),
            Err(Need::Execution(world.name(2))),
            "what ran on what, lasts"
        );
        let mut facts = Facts { executions: world.facts(3).executions, ..facts };
        assert_eq!(facts.debt(&own), Err(Need::Job(JobId(3))), "the ledger is asked first");
        facts.note(Fact::Job(JobId(3), None));
        facts.note(Fact::Forge(JobId(3), Some(forge(JobStatus::Queued, None))));
        assert_eq!(facts.debt(&own).unwrap().owner.map(|owner| owner.job_id), Some(3));
    }

    #[test]
    fn nobody_owes_where_nobody_waits() {
        let world = Small { key: key() };
        let own = input(1, "a", "a");
        for end in [
            Some(forge(JobStatus::Held, None)),
            Some(forge(JobStatus::Completed, None)),
            Some(forge(JobStatus::InProgress, Some("GitHub Actions 6"))),
            Some(forge(JobStatus::InProgress, Some(&world.name(1)))),
            None,
        ] {
            let mut facts = world.facts(1);
            facts.forge.insert(JobId(1), end.clone());
            assert_eq!(facts.debt(&own).unwrap().owner, None, "{end:?}");
        }
        let mut facts = world.facts(2);
        facts.executions.insert("theirs".into(), None);
        facts.forge.insert(JobId(1), Some(forge(JobStatus::InProgress, Some("theirs"))));
        assert_eq!(facts.debt(&own).unwrap(), Debt::default(), "a runner that is not ours");
        let warm = RunnerInput { job_id: -1, ..own };
        assert_eq!(facts.debt(&warm).unwrap(), Debt::default());
    }

    #[test]
    fn a_shuffle_is_relieved_without_a_word_from_github() {
        let world = Small { key: key() };
        let own = input(1, "a", "a");
        let lost = world.name(1);
        // 1 ran 2, and the runner of 2 is still to come.
        let mut facts = world.facts(4);
        facts.runners.insert(lost.clone(), ran(2));
        facts.forge.clear();
        assert_eq!(facts.relieved(&lost, &own, &job(2)), Ok(true));
        // It covers less than the lost one did: whoever waits may need more.
        let more = input(1, "a", "a,b");
        assert_eq!(facts.relieved(&lost, &more, &job(2)), Ok(false));
        // 2 ran 3, 3 ran 1: all have run.
        facts.runners.insert(world.name(2), ran(3));
        facts.runners.insert(world.name(3), ran(1));
        assert_eq!(facts.relieved(&lost, &more, &job(2)), Ok(true));
        // 3 was taken by a job that we can't see: somebody waits.
        let taken = RunnerRecord { ran: Ran::Taken, ..RunnerRecord::default() };
        facts.runners.insert(world.name(3), taken);
        assert_eq!(facts.relieved(&lost, &own, &job(2)), Ok(false));
        // 1 ran a job that nothing was started for.
        facts.jobs.insert(JobId(9), None);
        facts.executions.insert(world.name(9), None);
        assert_eq!(facts.relieved(&lost, &own, &job(9)), Ok(false));
    }

    #[test]
    fn i6_what_a_runner_covers_that_can_not_be_looked_up_yet_is_not_known() {
        let world = Small { key: key() };
        let mut facts = world.facts(2);
        // 1 ran 2, whose runner the ledger names; DescribeExecution lags behind.
        facts.runners.insert(world.name(1), ran(2));
        facts.executions.insert(world.name(2), None);
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), None), Ok(false));
        assert_eq!(facts.relieved(&world.name(1), &input(1, "a", "a"), &job(2)), Ok(false));
    }

    #[test]
    fn supply_is_found_at_the_end_of_a_matrix_that_was_shuffled_into_one_chain() {
        let world = Small { key: key() };
        let mut facts = world.facts(250);
        for id in 1..250 {
            facts.runners.insert(world.name(id), ran(id + 1));
        }
        assert_eq!(facts.supply(&job(1), &Labels::new(["a"]), None), Ok(true));
        assert_eq!(facts.relieved(&world.name(1), &input(1, "a", "a"), &job(2)), Ok(true));
    }

    #[test]
    fn a_missing_fact_is_asked_for_and_never_assumed() {
        let world = Small { key: key() };
        let empty = Facts::new(&world.key);
        let wanted = Labels::new(["a"]);
        assert_eq!(empty.supply(&job(1), &wanted, None), Err(Need::Job(JobId(1))));
        assert_eq!(empty.debt(&input(1, "a", "a")), Err(Need::Job(JobId(1))));
        let mut facts = world.facts(1);
        facts.runners.clear();
        assert_eq!(facts.supply(&job(1), &wanted, None), Err(Need::Runner(world.name(1))));
    }
}
