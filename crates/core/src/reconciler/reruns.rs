//! Jobs that lost their machine are run again: EC2 took it back, or it failed, and GitHub has failed the job.
//!
//! GitHub runs a job again only once its whole run is over (`NVIDIA-NeMo/RL#1193`: 403 "already running"), and of
//! several jobs of a run one by one only the first: the others then belong to an attempt that is past
//! (`runs-on/runs-on#259`, `#263`). So the ledger's item is the run, with all of its jobs that lost their machines;
//! it is looked at until the run is over, and then GitHub is asked once: for the job, if it is one, else for all
//! that did not end well.
//!
//! Each asking is a new attempt, so it is never repeated blindly. Whoever looks has claimed the run before. The
//! attempt that was the latest is noted before GitHub is asked; after a lost answer the next look sees whether
//! there is a newer one.

use std::time::Duration;

use serde_json::Value;
use tracing::{error, info, warn};

use super::{
    Again, Asked, First, InterruptedJob, InterruptedRun, InterruptedRuns, Reconciled,
    ReconcilerContext, Reruns, WaitingRuns, WorkflowRun,
};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::ports::{Clock, Gate, Telemetry};
use crate::reach::reached;
use crate::time::Timestamp;

/// The last attempt that is asked for: a job that two machines were taken from is run a third time.
const LAST_ATTEMPT: i64 = 3;

/// How long a run is waited for after it last lost a machine. GitHub lets runs last 35 days and be run again for 30
/// (docs.github.com, "Actions limits", "Re-running workflows and jobs"); but who waits for one has looked at it by then.
const WAITED_FOR: Duration = Duration::from_secs(86_400);

/// Between two looks at a run: less than the schedule's period, so that no run of ours is missed.
const AGAIN: Duration = Duration::from_secs(240);

/// The same an hour after it lost the machine.
const LATER: Duration = Duration::from_secs(840);

/// After this the time between two looks is the longer one.
const SOON: Duration = Duration::from_secs(3600);

/// Runs that one run of ours looks at: each costs GitHub one call while it goes on, and three or more once it is over.
const MAX_RUNS: usize = 50;

/// How long the jobs of a run that is run again are kept off spot: as long as GitHub keeps them queued.
const OFF_SPOT: Duration = Duration::from_secs(86_400);

/// A job that ended this long before its machine was taken has failed by itself. Clocks and times in whole seconds
/// differ by less.
const BEFORE: Duration = Duration::from_secs(5);

/// From the failure of one job of a matrix to the end of the others that GitHub cancels for it: five minutes are theirs
/// (docs.github.com, "Canceling a workflow"), and a minute is GitHub's.
const CANCELLED_WITHIN: Duration = Duration::from_secs(360);

/// What becomes of a job that lost its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It failed because of that, and is run again.
    Again,
    /// It is not; the reason is the metric's.
    Skipped(&'static str),
}

/// Somebody has run it, or others of its run, again.
const MOVED_ON: Outcome = Outcome::Skipped("MovedOn");

pub(super) async fn run_again<C: ReconcilerContext>(
    context: &C,
    done: &mut Reconciled,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let mut first = First(None);
    let due = context.agenda().due_reruns(MAX_RUNS + 1).await?;
    for (looked_at, run) in due.into_iter().enumerate() {
        if looked_at >= MAX_RUNS || !may_begin() {
            reached("rerun: no time is left");
            done.left += 1;
            continue;
        }
        let (repository, id) = (run.at.to_string(), run.run);
        let failure = match look(context, run, done).await {
            Ok(()) => continue,
            Err(failure) => failure,
        };
        // It was postponed when it was claimed, so it does not keep the others from their turn.
        warn!(repository, run = id, %failure, "an interrupted run can't be looked at");
        match failure {
            // An operator may mend it within the day, and nothing else is the worse for it.
            Error::Permanent(_) | Error::NotFound(_) => {
                reached("rerun: a run that an operator's mistake hides");
                context.telemetry().count("ConfigurationError", None, 1.0);
            }
            failure => {
                reached("rerun: a run that can't be looked at");
                first.note(failure);
            }
        }
    }
    first.answer()
}

async fn look<C: ReconcilerContext>(
    context: &C,
    mut run: InterruptedRun,
    done: &mut Reconciled,
) -> Result<()> {
    let now = context.clock().now();
    let lost = run.jobs.iter().map(|job| now.since(job.lost_at)).min().unwrap_or(WAITED_FOR);
    let until = now + if lost < SOON { AGAIN } else { LATER };
    let asked = run.asked;
    if !claim(context, &mut run, until, asked).await? {
        reached("rerun: another looks at it");
        return Ok(());
    }
    let outcomes = match lost < WAITED_FOR {
        true => decide(context, &mut run).await?,
        false => {
            reached("rerun: waited for too long");
            Some(run.jobs.iter().map(|_| Outcome::Skipped("TooLate")).collect())
        }
    };
    let Some(outcomes) = outcomes else { return Ok(()) };
    context.agenda().settle_rerun(&run).await?;
    for (job, outcome) in run.jobs.iter().zip(outcomes) {
        let (id, repository) = (job.id.0, run.at.to_string());
        match outcome {
            Outcome::Again => {
                reached("rerun: a job runs again");
                info!(
                    job = id,
                    repository,
                    run = run.run,
                    "a job that lost its machine runs again"
                );
                done.run_again += 1;
                context.telemetry().count("Rerun", Some(("Tier", &job.tier)), 1.0);
            }
            Outcome::Skipped(reason) => {
                reached("rerun: a job does not run again");
                info!(job = id, repository, run = run.run, reason, "it is not run again");
                context.telemetry().count("RerunSkipped", Some(("Reason", reason)), 1.0);
            }
        }
    }
    Ok(())
}

/// Takes the run until then. What is read of it stays true as long as that.
async fn claim<C: ReconcilerContext>(
    context: &C,
    run: &mut InterruptedRun,
    until: Timestamp,
    asked: Option<i64>,
) -> Result<bool> {
    let claimed = context.agenda().claim_rerun(run, until, asked).await?;
    (run.due, run.asked) = (until, asked);
    Ok(claimed)
}

/// What becomes of each of the run's jobs; `None` while that can't be told.
async fn decide<C: ReconcilerContext>(
    context: &C,
    run: &mut InterruptedRun,
) -> Result<Option<Vec<Outcome>>> {
    let backlog = context.backlog();
    let Some(seen) = backlog.run(&run.at, run.run).await? else {
        reached("rerun: the run is not there");
        return Ok(Some(run.jobs.iter().map(|_| Outcome::Skipped("Gone")).collect()));
    };
    // An answer was lost, and that attempt is what came of it.
    let ours = run.asked.is_some_and(|asked| seen.attempt > asked);
    if !seen.completed && !ours {
        reached("rerun: the run goes on");
        return Ok(None);
    }
    let jobs = backlog.jobs(&run.at, run.run).await?;
    let judged = run.jobs.iter().map(|job| judge(job, seen, &jobs));
    let Some(mut outcomes) = judged.collect::<Option<Vec<_>>>() else {
        reached("rerun: GitHub does not say how a job ended");
        return Ok(None);
    };
    let wanted = run.jobs.iter().zip(&outcomes).filter(|(_, it)| **it == Outcome::Again);
    let wanted: Vec<InterruptedJob> = wanted.map(|(job, _)| job.clone()).collect();
    if !wanted.is_empty() {
        let what = what(&wanted, &jobs);
        let asked = match (seen.completed, seen.attempt < LAST_ATTEMPT) {
            (false, _) => {
                reached("rerun: our attempt goes on, and a job failed in it");
                None
            }
            (true, false) => {
                reached("rerun: that was the last attempt");
                Some(Outcome::Skipped("Attempts"))
            }
            (true, true) => ask(context, run, &wanted, what, seen.attempt).await?,
        };
        let Some(asked) = asked else { return Ok(None) };
        replace(&mut outcomes, Outcome::Again, asked);
    }
    if ours {
        reached("rerun: an attempt came of a lost answer");
        replace(&mut outcomes, MOVED_ON, Outcome::Again);
    }
    Ok(Some(outcomes))
}

fn replace(outcomes: &mut [Outcome], old: Outcome, new: Outcome) {
    outcomes.iter_mut().filter(|it| **it == old).for_each(|it| *it = new);
}

/// Has GitHub make another attempt after `attempt`. `None` if that is not known to have come to anything.
async fn ask<C: ReconcilerContext>(
    context: &C,
    run: &mut InterruptedRun,
    wanted: &[InterruptedJob],
    what: Again,
    attempt: i64,
) -> Result<Option<Outcome>> {
    let now = context.clock().now();
    // Before there is a job to launch for.
    for job in wanted {
        context.gate().keep_off_spot(&job.tier, run.run, now + OFF_SPOT).await?;
    }
    let until = run.due;
    if !claim(context, run, until, Some(attempt)).await? {
        reached("rerun: another asks");
        return Ok(None);
    }
    let (repository, id) = (run.at.to_string(), run.run);
    match context.backlog().rerun(&run.at, run.run, what).await {
        Ok(Asked::Begun) => {
            reached("rerun: another attempt begins");
            Ok(Some(Outcome::Again))
        }
        Ok(Asked::Superseded) => {
            reached("rerun: there is another attempt already");
            Ok(Some(MOVED_ON))
        }
        Ok(Asked::Gone) => {
            reached("rerun: the run is gone when it is asked for");
            Ok(Some(Outcome::Skipped("Gone")))
        }
        Ok(Asked::Refused(words)) => {
            reached("rerun: refused");
            warn!(repository, run = id, words, "GitHub does not run it again");
            Ok(Some(Outcome::Skipped("Refused")))
        }
        Ok(Asked::NotAllowed(words)) => {
            reached("rerun: not allowed");
            error!(repository, run = id, words, "an interrupted job can't be run again");
            context.telemetry().count("ConfigurationError", None, 1.0);
            Ok(Some(Outcome::Skipped("NotAllowed")))
        }
        Ok(Asked::Running) => {
            reached("rerun: the run goes on when it is asked for");
            claim(context, run, until, None).await?;
            Ok(None)
        }
        // Nothing was made of it.
        Err(refused @ (Error::Later { .. } | Error::Permanent(_))) => {
            reached("rerun: nothing came of the asking");
            claim(context, run, until, None).await?;
            Err(refused)
        }
        Err(lost) => {
            reached("rerun: what came of the asking is not known");
            Err(lost)
        }
    }
}

/// What becomes of a job, by the latest attempt of its run as GitHub shows it; `None` while GitHub does not say how it
/// ended.
fn judge(job: &InterruptedJob, seen: WorkflowRun, jobs: &[Value]) -> Option<Outcome> {
    let shown = shown(job.id, jobs);
    let attempt = shown.and_then(|shown| shown.get("run_attempt")).and_then(Value::as_i64);
    let Some(shown) = shown.filter(|_| attempt.is_none_or(|attempt| attempt >= seen.attempt))
    else {
        reached("rerun: a job of an attempt that is past");
        return Some(MOVED_ON);
    };
    let conclusion = text(shown, "conclusion")?;
    let reason = match conclusion {
        "success" => {
            reached("rerun: a job ended well");
            "Succeeded"
        }
        // By a person, as far as can be told: a job that lost its runner fails, and so does one whose runner was told to
        // stop (`actions/runner#4668`, `#1792`).
        "cancelled" => {
            reached("rerun: a job was cancelled");
            "Cancelled"
        }
        _ if seen.cancelled => {
            reached("rerun: a run was cancelled");
            "Cancelled"
        }
        "failure" if !has_begun(shown) => {
            reached("rerun: a job had not begun");
            "NotBegun"
        }
        "failure" if ended(shown).is_some_and(|at| at + BEFORE < job.lost_at) => {
            reached("rerun: a job had failed before");
            "FailedBefore"
        }
        "failure" => {
            reached("rerun: a job failed for want of its machine");
            return Some(Outcome::Again);
        }
        _ => {
            reached("rerun: a job ended in another way");
            "EndedOtherwise"
        }
    };
    Some(Outcome::Skipped(reason))
}

/// What is to be run again for these. GitHub runs one job again, or all that did not end well. The latter is wanted also
/// for one whose failure made GitHub cancel the others of its matrix ("fail-fast"; `runs-on/runs-on#192`).
fn what(wanted: &[InterruptedJob], jobs: &[Value]) -> Again {
    match wanted {
        [one] if !took_others_along(one.id, jobs) => {
            reached("rerun: one job");
            Again::Job(one.id)
        }
        _ => {
            reached("rerun: all that failed");
            Again::Failed
        }
    }
}

fn took_others_along(id: JobId, jobs: &[Value]) -> bool {
    // `build (linux, 3)`: how GitHub names the jobs of a matrix (docs.github.com, "Running variations of jobs").
    let matrix = |job| text(job, "name").and_then(|name| Some(name.split_once(" (")?.0));
    let Some(own) = shown(id, jobs) else { return false };
    let (Some(its), Some(failed)) = (matrix(own), ended(own)) else { return false };
    jobs.iter()
        .filter(|job| text(job, "conclusion") == Some("cancelled") && matrix(job) == Some(its))
        .filter_map(ended)
        .any(|at| at >= failed && at.since(failed) <= CANCELLED_WITHIN)
}

fn shown(id: JobId, jobs: &[Value]) -> Option<&Value> {
    jobs.iter().find(|job| job.get("id").and_then(Value::as_i64) == Some(id.0))
}

fn text<'a>(job: &'a Value, key: &str) -> Option<&'a str> {
    job.get(key)?.as_str()
}

fn ended(job: &Value) -> Option<Timestamp> {
    text(job, "completed_at").and_then(Timestamp::parse)
}

/// Whether a step of it has begun. One without steps never ran.
fn has_begun(job: &Value) -> bool {
    let steps = job.get("steps").and_then(Value::as_array);
    let begun = |step: &Value| !matches!(text(step, "status"), None | Some("queued" | "pending"));
    steps.is_some_and(|steps| steps.iter().any(begun))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LOST: i64 = 1_796_040_000;

    fn seen(attempt: i64) -> WorkflowRun {
        WorkflowRun { attempt, completed: true, cancelled: false }
    }

    fn at(seconds: i64) -> String {
        Timestamp::from_seconds(LOST + seconds).to_string()
    }

    fn lost(id: i64) -> InterruptedJob {
        let lost_at = Timestamp::from_seconds(LOST);
        InterruptedJob { id: JobId(id), tier: "small".into(), lost_at }
    }

    /// A job that lost its machine, with that changed.
    fn job(id: i64, changed: Value) -> Value {
        let mut job = json!({"id": id, "run_attempt": 1, "status": "completed",
            "conclusion": "failure", "name": format!("build ({id})"), "completed_at": at(700),
            "steps": [{"name": "Set up job", "status": "completed"}, {"status": "in_progress"}]});
        for (key, value) in changed.as_object().unwrap() {
            job[key] = value.clone();
        }
        job
    }

    #[test]
    fn sp_11_only_a_job_whose_steps_had_begun_and_that_failed_is_run_again() {
        for (changed, outcome) in [
            (json!({}), Some(Outcome::Again)),
            (json!({"completed_at": at(-5)}), Some(Outcome::Again)),
            (json!({"completed_at": at(-6)}), Some(Outcome::Skipped("FailedBefore"))),
            (json!({"conclusion": "success"}), Some(Outcome::Skipped("Succeeded"))),
            (json!({"conclusion": "cancelled"}), Some(Outcome::Skipped("Cancelled"))),
            (json!({"conclusion": "timed_out"}), Some(Outcome::Skipped("EndedOtherwise"))),
            (json!({"steps": []}), Some(Outcome::Skipped("NotBegun"))),
            (json!({"steps": null}), Some(Outcome::Skipped("NotBegun"))),
            (json!({"steps": [{"status": "queued"}]}), Some(Outcome::Skipped("NotBegun"))),
            (json!({"conclusion": null}), None),
        ] {
            let jobs = [job(8, json!({})), job(7, changed.clone())];
            assert_eq!(judge(&lost(7), seen(1), &jobs), outcome, "{changed}");
        }
    }

    #[test]
    fn a_job_of_an_attempt_that_is_past_or_of_a_run_that_was_cancelled_is_settled() {
        let moved = Some(MOVED_ON);
        assert_eq!(judge(&lost(7), seen(2), &[job(7, json!({}))]), moved, "carried over");
        assert_eq!(judge(&lost(7), seen(2), &[job(9, json!({"run_attempt": 2}))]), moved);
        assert_eq!(judge(&lost(7), seen(1), &[]), moved);
        let cancelled = WorkflowRun { cancelled: true, ..seen(1) };
        let outcome = judge(&lost(7), cancelled, &[job(7, json!({}))]);
        assert_eq!(outcome, Some(Outcome::Skipped("Cancelled")));
    }

    #[test]
    fn several_jobs_or_one_that_took_its_matrix_along_need_all_that_failed() {
        let other = |changed| [job(7, json!({})), job(8, changed)];
        assert_eq!(what(&[lost(7), lost(8)], &other(json!({}))), Again::Failed);
        for (changed, again) in [
            (json!({}), Again::Job(JobId(7))),
            (json!({"conclusion": "cancelled"}), Again::Failed),
            (json!({"conclusion": "cancelled", "completed_at": at(1060)}), Again::Failed),
            (json!({"conclusion": "cancelled", "completed_at": at(1061)}), Again::Job(JobId(7))),
            (json!({"conclusion": "cancelled", "completed_at": at(699)}), Again::Job(JobId(7))),
            (json!({"conclusion": "cancelled", "name": "test (8)"}), Again::Job(JobId(7))),
            (json!({"conclusion": "cancelled", "name": "build"}), Again::Job(JobId(7))),
        ] {
            assert_eq!(what(&[lost(7)], &other(changed.clone())), again, "{changed}");
        }
    }
}
