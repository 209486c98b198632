//! Finds what there is of a job and its runners. Nothing is changed by it, and what fails is noted in its place.

use std::rc::Rc;
use std::time::Duration;

use ostler_core::job::{JobId, Repository};
use ostler_core::names::{Lineage, MAX_REPLACEMENTS, is_plausible};
use ostler_core::ports::{Block, Configuration, Forge as _, JobStatus};
use ostler_core::time::Timestamp;
use serde_json::Value;

use crate::look::{Deployed, Lookout, at_once, job_item, runner_item, text, time};
use crate::story::{ForgeSeen, JobItem, Looked, Records, RunnerSeen, Said};

/// How long before a job's start its traces may be: clocks differ, and an event comes late.
const BEFORE: Duration = Duration::from_secs(600);

/// For how long logs are searched where no start is known.
const BACK: Duration = Duration::from_secs(3 * 86_400);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A runner, by its name.
    Runner(String),
    /// A job, by its page at GitHub or its number.
    Job {
        /// Its number.
        id: i64,
        /// `owner`, `name`, where the address says so.
        repository: Option<(String, String)>,
    },
}

impl Asked {
    /// A runner's name.
    pub fn runner(name: &str) -> Result<Self, String> {
        match is_plausible(name) {
            true => Ok(Self::Runner(name.to_owned())),
            false => Err(format!("'{}' can't be a runner's name", super::words(name))),
        }
    }

    /// `https://github.com/acme/widgets/actions/runs/1/job/42`, with or without what GitHub puts behind it; or 42.
    pub fn job(address: &str) -> Result<Self, String> {
        if let Ok(id) = address.parse::<i64>() {
            return Ok(Self::Job { id, repository: None });
        }
        let wrong = || {
            format!(
                "'{}' is no job's address: open the job at GitHub and copy it \
                 (https://…/<owner>/<repository>/actions/runs/<run>/job/<number>), or give its number",
                super::words(address)
            )
        };
        let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        // Host, owner, repository, actions, runs, run, job, number; the API has repos before, and no run.
        let id = parts.windows(2).find_map(|two| match two {
            ["job" | "jobs", id] => id.parse::<i64>().ok(),
            _ => None,
        });
        let at = parts.iter().position(|part| *part == "actions").ok_or_else(wrong)?;
        let repository = match parts.get(at.wrapping_sub(2)..at) {
            Some([owner, name]) => Some(((*owner).to_owned(), (*name).to_owned())),
            _ => None,
        };
        let id = id.filter(|id| *id > 0).ok_or_else(wrong)?;
        Ok(Self::Job { id, repository })
    }
}

/// The number of the job that a runner of that name is for.
pub fn job_of(runner: &str) -> Option<i64> {
    let base = Lineage::parse(runner).base;
    let mut parts = base.rsplitn(3, '-');
    let tag = parts.next()?;
    let id = parts.next()?.parse().ok()?;
    (tag.len() == 12 && parts.next().is_some()).then_some(id)
}

/// The names of a job's runners up to the latest, in their order.
pub fn names_up_to(latest: &str) -> Vec<String> {
    let last = Lineage::parse(latest);
    let all = (0..=last.generation).flat_map(|generation| {
        (0..=MAX_REPLACEMENTS).map(move |replacement| (generation, replacement))
    });
    let mut names: Vec<String> = all
        .map(|(generation, replacement)| last.at(generation, replacement))
        .filter(|place| place.rank() < last.rank())
        .map(|place| place.to_string())
        .collect();
    names.push(latest.to_owned());
    names
}

/// Finds everything.
pub async fn gather(lookout: &Lookout, asked: &Asked) -> Result<Records, String> {
    let deployed = lookout.deployed().await?;
    let configuration = lookout.configuration(&deployed.prefix);
    let settings = configuration.settings().await.map_err(|error| error.to_string());
    let now = ostler_core::ports::Clock::now(&lookout.clock);
    let (id, said_repository) = match asked {
        Asked::Runner(name) => (job_of(name), None),
        Asked::Job { id, repository } => (Some(*id), repository.clone()),
    };
    let (job, blocked) = job_and_blocks(lookout, &deployed, id).await;
    let item = job.as_ref().ok().and_then(Option::as_ref);
    // Where the ledger has forgotten the job, its name still follows from its number.
    let named = match (&settings, &said_repository, id) {
        (Ok(settings), Some((_, name)), Some(id)) => {
            settings.name_key.as_ref().map(|key| key.base_name(name, JobId(id)))
        }
        _ => None,
    };
    let latest = item.and_then(|item| item.runner.clone()).or(named);
    let names = match (asked, latest) {
        (Asked::Runner(name), _) => vec![name.clone()],
        (_, Some(latest)) => names_up_to(&latest),
        (_, None) => Vec::new(),
    };
    let from = item.and_then(|item| item.queued).map_or(now - BACK, |queued| queued - BEFORE);
    let keys: Vec<String> = names.iter().map(|name| format!("runner#{name}")).collect();
    let (items, runners, said) = tokio::join!(
        lookout.items(&deployed.table, &keys),
        at_once(names.iter().map(|name| runner(lookout, &deployed, name, from))),
        said_of_job(lookout, id, from),
    );
    let mut runners: Vec<RunnerSeen> = runners;
    for seen in &mut runners {
        seen.item = match &items {
            Ok(items) => Ok(items.get(&format!("runner#{}", seen.name)).map(runner_item)),
            Err(why) => Err(why.clone()),
        };
    }
    // Names that were never used.
    if runners.len() > 1 {
        runners.retain(|seen| !matches!((&seen.execution, &seen.item), (Ok(None), Ok(None))));
    }
    let input =
        runners.iter().find_map(|seen| seen.execution.as_ref().ok()?.as_ref()?.input.clone());
    let place = input.map(|input| input.repository()).or_else(|| {
        let full = item.and_then(|item| item.repository.as_deref()?.split_once('/'));
        let full = full.map(|(owner, name)| (owner.to_owned(), name.to_owned()));
        let (owner, name) = full.or(said_repository)?;
        Some(Repository { owner, name, installation: None })
    });
    let forge = match (place, id) {
        (Some(at), Some(id)) => at_forge(lookout, &configuration, &at, JobId(id)).await,
        _ => Ok(None),
    };
    let blocks = blocked.map(|all| {
        Some(
            all.into_iter()
                .filter_map(|(key, block)| concerns(&key, item).then_some(block))
                .collect(),
        )
    });
    let asked = match asked {
        Asked::Runner(name) => format!("the runner {name}"),
        Asked::Job { id, .. } => format!("job {id}"),
    };
    Ok(Records { now, asked, job_id: id, forge, job, runners, blocks, said })
}

type Blocks = Result<Vec<(String, Block)>, String>;

/// The job's item; and with the tier and repository that it names, what GitHub has put off there.
async fn job_and_blocks(
    lookout: &Lookout,
    deployed: &Deployed,
    id: Option<i64>,
) -> (Looked<JobItem>, Blocks) {
    let Some(id) = id else { return (Ok(None), Ok(Vec::new())) };
    let key = format!("job#{id}");
    let job = match lookout.items(&deployed.table, std::slice::from_ref(&key)).await {
        Ok(items) => Ok(items.get(&key).map(job_item)),
        Err(why) => return (Err(why.clone()), Err(why)),
    };
    let Ok(Some(item)) = &job else { return (job, Ok(Vec::new())) };
    let keys = block_keys(item);
    let found = lookout.items(&deployed.table, &keys).await;
    (
        job,
        found.map(|items| {
            items.iter().filter_map(|(key, item)| Some((key.clone(), block(item)?))).collect()
        }),
    )
}

/// `blocked#<owner>`, `blocked#<owner>/<tier>`, `blocked#<owner>/<repository>/<tier>`, in lower case.
fn block_keys(item: &JobItem) -> Vec<String> {
    let (Some(repository), Some(tier)) = (&item.repository, &item.tier) else { return Vec::new() };
    let owner = repository.split('/').next().unwrap_or_default();
    [owner.to_owned(), format!("{owner}/{tier}"), format!("{repository}/{tier}")]
        .map(|whose| format!("blocked#{}", whose.to_lowercase()))
        .into()
}

fn concerns(key: &str, item: Option<&JobItem>) -> bool {
    item.is_some_and(|item| block_keys(item).iter().any(|own| own == key))
}

fn block(item: &Value) -> Option<Block> {
    let reason = text(&item["reason"]["S"]).unwrap_or_default();
    Some(Block { until: time(&item["until"])?, reason })
}

async fn runner(lookout: &Lookout, deployed: &Deployed, name: &str, from: Timestamp) -> RunnerSeen {
    let (control, recovery) = (&lookout.stacks.stack, &lookout.stacks.recovery_stack);
    let groups = [
        format!("/ostler/{control}/webhook"),
        format!("/ostler/{control}/orchestrator"),
        format!("/ostler/{control}/stolen-runner"),
        format!("/ostler/{recovery}/reconciler"),
        format!("/ostler/{recovery}/instance-events"),
    ];
    let machines_log = format!("/ostler/{control}/runners");
    let stream = format!("{name}/");
    let (execution, machines, log, said) = tokio::join!(
        lookout.execution(&deployed.machine, name),
        lookout.machines(&deployed.owner, Some(name)),
        lookout.lines(&machines_log, Some(&stream), None, from),
        at_once(groups.iter().map(|group| lookout.lines(group, None, Some(name), from))),
    );
    let machines =
        machines.map(|all| Some(all.into_iter().map(|(_, _, machine)| machine).collect()));
    RunnerSeen {
        name: name.into(),
        item: Ok(None),
        execution,
        machines,
        log,
        said: together(said, worth_telling),
    }
}

/// What the webhook and the reconciler said of the job by its number: why nothing was started, mostly.
async fn said_of_job(lookout: &Lookout, id: Option<i64>, from: Timestamp) -> Looked<Vec<Said>> {
    let Some(id) = id else { return Ok(None) };
    let number = id.to_string();
    let groups = [
        format!("/ostler/{}/webhook", lookout.stacks.stack),
        format!("/ostler/{}/reconciler", lookout.stacks.recovery_stack),
    ];
    let said = groups.iter().map(|group| lookout.lines(group, None, Some(&number), from));
    together(at_once(said).await, |line| {
        worth_telling(line) || line.text.starts_with("no runner is started")
    })
}

/// What goes as planned is told by the execution.
fn worth_telling(line: &Said) -> bool {
    matches!(line.level.as_str(), "WARN" | "ERROR")
}

/// Lines of several logs, by time. One that could not be read makes the whole unknown: what it holds may be what counts.
fn together(all: Vec<Looked<Vec<Said>>>, wanted: impl Fn(&Said) -> bool) -> Looked<Vec<Said>> {
    let mut lines = Vec::new();
    for found in all {
        lines.extend(found?.unwrap_or_default());
    }
    lines.retain(wanted);
    lines.sort_by_key(|line| line.at);
    lines.dedup();
    Ok(Some(lines))
}

async fn at_forge(
    lookout: &Lookout,
    configuration: &Rc<ostler_aws::SsmConfiguration<ostler_lambda::SystemClock>>,
    at: &Repository,
    id: JobId,
) -> Looked<ForgeSeen> {
    let job = lookout.forge(configuration).job(at, id).await.map_err(|error| error.to_string())?;
    Ok(job.map(|job| ForgeSeen {
        status: match job.status {
            JobStatus::Queued => "queued",
            JobStatus::Held => "held",
            JobStatus::InProgress => "in progress",
            JobStatus::Completed => "completed",
        }
        .into(),
        runner: job.runner_name,
        labels: job.labels.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_address_is_read_as_browsers_and_the_api_write_it() {
        let acme = Some(("acme".to_owned(), "widgets".to_owned()));
        for (address, repository) in [
            ("https://github.com/acme/widgets/actions/runs/7/job/42", &acme),
            ("https://github.com/acme/widgets/actions/runs/7/job/42?pr=3#step:2:1", &acme),
            ("https://ghes.example.com/acme/widgets/actions/runs/7/attempts/2/job/42", &acme),
            ("https://api.github.com/repos/acme/widgets/actions/jobs/42", &acme),
            ("github.com/acme/widgets/actions/runs/7/job/42/", &acme),
            ("42", &None),
        ] {
            let asked = Asked::job(address).unwrap();
            assert_eq!(asked, Asked::Job { id: 42, repository: repository.clone() }, "{address}");
        }
        for odd in [
            "",
            "acme/widgets",
            "https://github.com/acme/widgets/actions/runs/7",
            "https://x/job/x",
            "https://x/actions/job/-1",
        ] {
            let why = Asked::job(odd).unwrap_err();
            assert!(why.contains("no job's address"), "{odd}: {why}");
        }
    }

    #[test]
    fn a_runners_name_tells_its_job() {
        assert_eq!(job_of("widgets-42-0123456789ab"), Some(42));
        assert_eq!(job_of("a-b-42-0123456789ab-q1-r2"), Some(42));
        for other in
            ["widgets", "warm-small-0123456789abcdef", "42-0123456789ab", "widgets-x-0123456789ab"]
        {
            assert_eq!(job_of(other), None, "{other}");
        }
        assert!(Asked::runner("widgets-42-0123456789ab").is_ok());
        assert!(Asked::runner("a b").is_err() && Asked::runner("").is_err());
    }

    #[test]
    fn the_runners_of_a_job_are_asked_for_in_their_order_and_none_beyond_the_latest() {
        assert_eq!(names_up_to("w-1-a"), ["w-1-a"]);
        assert_eq!(names_up_to("w-1-a-r2"), ["w-1-a", "w-1-a-r1", "w-1-a-r2"]);
        let names = names_up_to("w-1-a-q1-r1");
        assert_eq!(names, ["w-1-a", "w-1-a-r1", "w-1-a-r2", "w-1-a-r3", "w-1-a-q1", "w-1-a-q1-r1"]);
    }

    #[test]
    fn one_log_that_could_not_be_read_makes_the_whole_unknown() {
        let line = |text: &str, level: &str| Said {
            at: Timestamp::from_seconds(1),
            who: "webhook".into(),
            level: level.into(),
            text: text.into(),
        };
        let known =
            Ok(Some(vec![line("planned", "INFO"), line("odd", "WARN"), line("odd", "WARN")]));
        assert_eq!(
            together(vec![known.clone(), Ok(None)], worth_telling),
            Ok(Some(vec![line("odd", "WARN")]))
        );
        assert_eq!(
            together(vec![known, Err("denied".into())], worth_telling),
            Err("denied".into())
        );
    }
}
