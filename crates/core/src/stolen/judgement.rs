//! The judgement of one report: was the runner stolen, and who waits because of it?

use tracing::{info, warn};

use crate::config::Settings;
use crate::debts::{Debts, Judgement, Payment};
use crate::error::Result;
use crate::job::{JobId, Repository, RunnerInput, split_full_name};
use crate::labels::Labels;
use crate::names::Lineage;
use crate::ports::{Forge, ForgeJob, Ran, ReportContext, RunnerRecord, Telemetry};
use crate::reach::reached;
use crate::report::Report;
use crate::stolen::Record;

/// From this receive on, 3 minutes after the first, a line about a job that we can't see is believed as far
/// as GitHub bears it out: the webhook's word about that runner would have been judged by then.
const BELIEVED_RECEIVE: u32 = 2;

/// What is to be done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing more.
    Done,
    /// It has to come again, because of this.
    Later(&'static str),
}

/// The job that a report is about.
enum Found {
    /// By GitHub's word.
    Job(JobId, String),
    /// One in a repository where the App is not installed.
    Invisible,
    /// The report is of no use.
    Unknown,
}

/// Judges a report that came in this record.
pub async fn judge<C: ReportContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    report: &Report,
    record: &Record,
) -> Result<Finding> {
    let (runner, receives) = (report.runner_name.as_str(), record.receives);
    let Some(execution) = debts.execution(runner).await? else {
        reached("report: of a runner that is not ours");
        not_ours(context, settings, report);
        return Ok(Finding::Done);
    };
    let started = execution.started;
    let Some(own) = execution.input else {
        reached("report: of an execution that can't be read");
        warn!(runner, "the input of a runner's execution can't be read: not judged");
        context.telemetry().count("ExecutionUnreadable", None, 1.0);
        return Ok(Finding::Done);
    };
    // Only GitHub's signed word accounts for a runner by itself.
    if let Some(id) = report.job_id {
        debts.account(runner, id, &report.repo).await?;
    }
    // The webhook sends at once: from its first event of the job to the one that says that the job began.
    if receives == 1
        && let Some(sent) =
            record.sent.filter(|_| own.job().is_some() && report.job_id == own.job())
    {
        let took = sent.since(started).as_secs_f64();
        context.telemetry().count("ReadySeconds", Some(("Tier", &own.provider)), took);
    }
    if own.job().is_none() {
        reached("report: of a runner started for no job");
        info!(runner, repo = report.repo, run = report.workflow_id, "WarmRunnerTaken");
        if report.job_id.is_some() {
            context.telemetry().count("WarmRunnerTaken", Some(("Tier", &own.provider)), 1.0);
        }
        return Ok(Finding::Done);
    }
    let case = Case { context, settings, debts, report, own: &own };
    if let Some(id) = report.job_id {
        reached("report: signed");
        return case.ran(id, &report.repo).await;
    }
    let known = debts.record(runner).await?;
    if let Ran::Job { id, repository } = &known.ran {
        reached("report: a line, of a runner that is accounted for");
        return case.ran(*id, repository.as_deref().unwrap_or(&report.repo)).await;
    }
    match case.find().await? {
        Found::Job(id, repository) => {
            reached("report: a line, borne out by GitHub");
            debts.account(runner, id, &repository).await?;
            case.ran(id, &repository).await
        }
        Found::Invisible => case.invisible(&known, receives).await,
        Found::Unknown => Ok(Finding::Done),
    }
}

/// Somebody else's runner, or an old one. A runner that no system of ours knows, with a job that one of our
/// tiers serves, is worth a look: whoever can register runners can take jobs.
fn not_ours<C: ReportContext>(context: &C, settings: &Settings, report: &Report) {
    let labels = report.job_labels.as_deref().map(Labels::from_joined);
    if labels.is_some_and(|labels| settings.tiers.accept(&labels)) {
        reached("report: a runner that nobody knows ran a job of ours");
        warn!(
            runner = report.runner_name,
            repo = report.repo,
            job = report.job_id.map(|id| id.0),
            "a runner that is not ours ran a job that a tier of ours serves"
        );
        context.telemetry().count("UnknownRunner", None, 1.0);
    }
}

/// A report of a runner of ours that was started for a job.
struct Case<'a, 'd, C> {
    context: &'a C,
    settings: &'a Settings,
    debts: &'a Debts<'d, C>,
    report: &'a Report,
    own: &'a RunnerInput,
}

impl<C: ReportContext> Case<'_, '_, C> {
    fn runner(&self) -> &str {
        &self.report.runner_name
    }

    /// The job that a line is about, as GitHub tells it.
    async fn find(&self) -> Result<Found> {
        let (runner, report) = (self.runner(), self.report);
        let Some((owner, name)) = split_full_name(&report.repo) else {
            reached("report: its repository is no name");
            return Ok(Found::Unknown);
        };
        let same_owner = self.own.owner.eq_ignore_ascii_case(owner);
        let at = Repository {
            owner: owner.to_owned(),
            name: name.to_owned(),
            installation: self.own.repository().installation.filter(|_| same_owner),
        };
        // That the App is installed where the runner's own job comes from needs no question.
        let home = same_owner && self.own.repo.eq_ignore_ascii_case(name);
        if !home && !self.context.forge().installed(&at).await? {
            return Ok(Found::Invisible);
        }
        let Some(jobs) = self.context.forge().run_jobs(&at, report.workflow_id).await? else {
            reached("report: there is no such run");
            warn!(runner, repo = report.repo, run = report.workflow_id, "there is no such run");
            self.unknown();
            return Ok(Found::Unknown);
        };
        let found = jobs.iter().find(|(_, job)| job.runner_name.as_deref() == Some(runner));
        let Some((id, _)) = found else {
            reached("report: no job of the run ran on it");
            warn!(
                runner,
                repo = report.repo,
                run = report.workflow_id,
                jobs = jobs.len(),
                "no job of the run ran on the runner"
            );
            self.unknown();
            return Ok(Found::Unknown);
        };
        Ok(Found::Job(*id, at.to_string()))
    }

    fn unknown(&self) {
        self.context.telemetry().count("ReportUnknown", None, 1.0);
    }

    /// The runner ran that job.
    async fn ran(&self, id: JobId, repository: &str) -> Result<Finding> {
        let judgement = self.debts.judge(self.runner(), self.own, id, Some(repository)).await?;
        // Nobody waits for a runner. Whether it was a thief is only for the metric: not if the job was ours.
        if judgement == Judgement::Unneeded && self.debts.is_served(id).await? {
            reached("report: it ran a job of ours, and its own is over");
            return Ok(self.told(&Judgement::Settled, Some(id)));
        }
        Ok(self.told(&judgement, Some(id)))
    }

    /// A line says that the runner runs a job of a repository where the App is not installed. Nothing was
    /// started for that job, so the runner was stolen, if the line is true. It counts only if the runner's
    /// own job is not on it, and GitHub shows it busy, or its registration gone that was there.
    async fn invisible(&self, record: &RunnerRecord, receives: u32) -> Result<Finding> {
        let (runner, at) = (self.runner(), self.own.repository());
        let job = match self.own.job() {
            Some(id) => self.context.forge().job(&at, id).await?,
            None => None,
        };
        if self.own_job_is_on_a_runner(job.as_ref(), &at).await? {
            reached("report: forged, its own job ran on it");
            warn!(runner, repo = self.report.repo, "a forged or late line: its own job ran on it");
            self.context.telemetry().count("ReportForged", None, 1.0);
            return Ok(Finding::Done);
        }
        // Before it is believed: GitHub's flag may say "not busy" meanwhile, and its registration be gone, with which
        // everything is gone by which a job in it could be seen.
        if record.reported_at.is_none() {
            reached("report: invisible, and noted");
            self.debts.mark_reported(runner).await?;
        }
        if receives < BELIEVED_RECEIVE {
            reached("report: invisible, and not believed yet");
            return Ok(Finding::Later("it speaks of a repository that the App can't see"));
        }
        let place = self.settings.place(at)?;
        let forge = self.context.forge();
        let taken = match record.runner_id {
            Some(id) => forge.runner(&place, id).await?.is_none_or(|entry| entry.busy),
            None => forge.runner_named(&place, runner).await?.is_some_and(|entry| entry.busy),
        };
        if !taken {
            reached("report: invisible, and GitHub shows it idle");
            return Ok(Finding::Later("GitHub does not show the runner at work"));
        }
        reached("report: invisible, and taken");
        self.debts.mark_taken(runner).await?;
        let judgement = self.debts.settle(runner, self.own, job.as_ref()).await?;
        Ok(self.told(&judgement, None))
    }

    /// Whether the runner's own job ran on it. A look-up of a job accounts for the runner that it names.
    async fn own_job_is_on_a_runner(
        &self,
        job: Option<&ForgeJob>,
        at: &Repository,
    ) -> Result<bool> {
        let named = job.and_then(|job| job.runner_name.as_deref());
        let (Some(named), Some(id)) = (named, self.own.job()) else { return Ok(false) };
        let here = named == self.runner();
        match here {
            true => self.debts.account(named, id, &at.to_string()).await?,
            false => self.debts.account_if_ours(named, id, &at.to_string()).await?,
        }
        Ok(here)
    }

    /// Logs and counts a judgement.
    fn told(&self, judgement: &Judgement, thief: Option<JobId>) -> Finding {
        let (runner, own) = (self.runner(), self.own);
        let thief_id = thief.map(|id| id.0);
        match judgement {
            Judgement::TooEarly => {
                reached("report: judged later");
                return Finding::Later("its queued event may be on its way");
            }
            Judgement::Debt(Payment::Started(name)) => {
                reached("report: stolen, and replaced");
                self.stolen("true", Some(name), thief_id);
            }
            Judgement::Debt(Payment::Capped) => {
                reached("report: stolen, and no replacement is left");
                self.stolen("false", None, thief_id);
            }
            Judgement::Unneeded => {
                reached("report: stolen from a job that was over");
                self.stolen("unneeded", None, thief_id);
            }
            Judgement::Settled if thief == own.job() => reached("report: it ran its own job"),
            Judgement::Settled | Judgement::Debt(Payment::Supplied | Payment::NotQueued) => {
                reached("report: it ran another job, and nobody waits");
                info!(
                    runner,
                    job = thief_id,
                    own = own.job_id,
                    "the runner ran another job; no job lacks a runner"
                );
            }
        }
        Finding::Done
    }

    fn stolen(&self, replaced: &'static str, by: Option<&str>, thief: Option<i64>) {
        let own = self.own;
        warn!(
            metric = "StolenRunnerDetected",
            replaced,
            stolen = self.runner(),
            replacement = by,
            attempt = by.map(|name| Lineage::parse(name).replacement),
            thief,
            thief_repo = self.report.repo,
            thief_labels = self.report.job_labels,
            job = own.job_id,
            job_labels = own.job_labels,
            runner_labels = own.labels,
            url = own.job_url,
            owner = own.owner,
            repo = own.repo,
            provider = own.provider,
            "a runner was stolen"
        );
        self.context.telemetry().count_by(
            "StolenRunnerDetected",
            &[("Replaced", replaced), ("Tier", &own.provider)],
            1.0,
        );
    }
}
