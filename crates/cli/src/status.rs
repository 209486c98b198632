//! `ostler status`: an install at a glance.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_aws::DeadLetters;
use ostler_core::ports::Clock;
use ostler_core::reconciler::Deliveries;
use ostler_core::time::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::exit::Exit;
use crate::look::{Deployed, Lookout, Stacks, at_once, job_item, list, runner_item, text};
use crate::output::{Mark, Output, Table};
use crate::shell::Shell;
use crate::story::gather::job_of;
use crate::story::{MachineSeen, span, words};
use crate::wire::SSM;

/// Owners whose quota at GitHub is asked for.
const MAX_OWNERS: usize = 5;

/// What is known, or why it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<T>(pub Result<T, String>);

impl<T: Serialize> Serialize for Known<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(value) => value.serialize(to),
            Err(why) => json!({ "unknown": why }).serialize(to),
        }
    }
}

/// So many, and how long the oldest of them is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ages {
    /// How many.
    pub count: usize,
    /// Of the oldest, in seconds.
    pub oldest_seconds: u64,
}

impl Ages {
    fn add(&mut self, age: Duration) {
        self.count += 1;
        self.oldest_seconds = self.oldest_seconds.max(age.as_secs());
    }

    fn text(self) -> String {
        match self.count {
            0 => "-".into(),
            count => format!("{count} ({})", span(Duration::from_secs(self.oldest_seconds))),
        }
    }
}

/// The runners of a tier, by what they are at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierRow {
    /// Jobs that wait for a machine; since they were created.
    pub queued: Ages,
    /// Machines that boot, or have not got their job yet; since their job was created.
    pub launching: Ages,
    /// Machines that were started for no job in particular.
    pub warm: Ages,
    /// Runners with a job; since that was noted.
    pub running: Ages,
}

/// All runners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Board {
    /// By tier; `?` where the ledger does not tell.
    pub tiers: BTreeMap<String, TierRow>,
    /// Machines that live and have no execution any more: they end with their job, or by the reaper.
    pub without_execution: usize,
    /// Whether there are more executions than were read.
    pub more: bool,
}

/// The last deliveries of GitHub's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Webhook {
    /// How long ago the last one was sent, in seconds; `None` if GitHub shows none.
    pub last_seconds_ago: Option<u64>,
    /// Of the last ones that GitHub shows, how many.
    pub shown: usize,
    /// And how many of them failed.
    pub failed: usize,
}

/// What is left of a quota at GitHub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GitHubQuota {
    /// With that owner.
    pub owner: String,
    /// Calls an hour, and how many of them are left; `None` on a server without limits.
    pub calls: Option<(u64, u64)>,
}

/// An install at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// When.
    pub at: String,
    /// What is deployed, as the deployment wrote it; `None` if it wrote nothing.
    pub version: Known<Option<String>>,
    /// Runners.
    pub runners: Known<Board>,
    /// GitHub's events.
    pub webhook: Known<Webhook>,
    /// What GitHub still lets us ask.
    pub github_quota: Known<Vec<GitHubQuota>>,
    /// Alarms that ring: name and what it asks for.
    pub alarms: Known<Vec<(String, String)>>,
    /// Messages in dead-letter queues; `None` for a queue that is not there.
    pub dead_letters: Known<BTreeMap<String, Option<u64>>>,
}

/// A runner as the board needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Its tier, where that is known.
    pub tier: Option<String>,
    /// Whether it was started for no job in particular.
    pub warm: bool,
    /// When its execution was started.
    pub started: Timestamp,
    /// When its job was created.
    pub queued: Option<Timestamp>,
    /// Since when it is known to have a job.
    pub busy: Option<Timestamp>,
    /// Whether a machine of it lives.
    pub machine: bool,
}

/// Sorts the runners.
pub fn board(now: Timestamp, seats: &[Seat]) -> Board {
    let mut board = Board::default();
    for seat in seats {
        let tier = seat.tier.clone().unwrap_or_else(|| "?".into());
        let row = board.tiers.entry(tier).or_default();
        let waits = now.since(seat.queued.unwrap_or(seat.started));
        match seat {
            Seat { busy: Some(since), .. } => row.running.add(now.since(*since)),
            Seat { warm: true, .. } => row.warm.add(now.since(seat.started)),
            Seat { machine: true, .. } => row.launching.add(waits),
            Seat { .. } => row.queued.add(waits),
        }
    }
    board
}

/// `warm-<tier>-<16 hex>`.
fn warm_tier(runner: &str) -> Option<&str> {
    let (tier, tail) = runner.strip_prefix("warm-")?.rsplit_once('-')?;
    (tail.len() == 16 && tail.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(tier)
}

async fn runners(lookout: &Lookout, deployed: &Deployed) -> Result<Board, String> {
    let now = lookout.clock.now();
    let (executions, machines) =
        tokio::join!(lookout.running(&deployed.machine), lookout.machines(&deployed.owner, None));
    let ((executions, more), machines) = (executions?, machines?);
    let keys: Vec<String> = executions
        .iter()
        .flat_map(|(name, _)| {
            let job = job_of(name).map(|id| format!("job#{id}"));
            job.into_iter().chain([format!("runner#{name}")])
        })
        .collect();
    // Replacements of one job share its item.
    let keys: Vec<String> =
        keys.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let items = lookout.items(&deployed.table, &keys).await?;
    let by_runner: BTreeMap<&str, (&str, &MachineSeen)> = machines
        .iter()
        .map(|(runner, tier, machine)| (runner.as_str(), (tier.as_str(), machine)))
        .collect();
    let seat = |(name, started): &(String, Timestamp)| {
        let job = job_of(name)
            .and_then(|id| items.get(&format!("job#{id}")))
            .map(job_item)
            .unwrap_or_default();
        let item = items.get(&format!("runner#{name}")).map(runner_item).unwrap_or_default();
        let machine = by_runner.get(name.as_str());
        let of_machine =
            machine.map(|(tier, _)| (*tier).to_owned()).filter(|tier| !tier.is_empty());
        let warm = warm_tier(name);
        Seat {
            tier: of_machine.or(job.tier).or(warm.map(str::to_owned)),
            warm: warm.is_some(),
            started: *started,
            queued: job.queued,
            busy: item.ran.as_ref().and(item.accounted),
            machine: machine.is_some(),
        }
    };
    let seats: Vec<Seat> = executions.iter().map(seat).collect();
    let running = |runner: &str| executions.iter().any(|(name, _)| name == runner);
    let without_execution =
        machines.iter().filter(|(runner, _, _)| !more && !running(runner)).count();
    Ok(Board { without_execution, more, ..board(now, &seats) })
}

/// Looks at everything at the same time.
pub async fn look(lookout: &Lookout) -> Result<Status, String> {
    let deployed = lookout.deployed().await?;
    let configuration = lookout.configuration(&deployed.prefix);
    let forge = lookout.forge(&configuration);
    let letters = DeadLetters::new(&lookout.aws);
    let webhook = async {
        let page = forge.page(None).await.map_err(|error| error.to_string())?;
        let now = lookout.clock.now();
        let last = page.entries.iter().map(|entry| entry.at).max();
        Ok(Webhook {
            last_seconds_ago: last.map(|at| now.since(at).as_secs()),
            shown: page.entries.len(),
            failed: page.entries.iter().filter(|entry| !entry.ok).count(),
        })
    };
    let quota = async {
        let installations = forge.installations().await.map_err(|error| error.to_string())?;
        let asked =
            installations.iter().filter(|it| !it.suspended).take(MAX_OWNERS).map(async |it| {
                let quota = forge.quota_with(&it.login).await.map_err(|error| error.to_string())?;
                let calls = quota.map(|quota| (quota.limit, quota.remaining));
                Ok(GitHubQuota { owner: it.login.clone(), calls })
            });
        at_once(asked).await.into_iter().collect()
    };
    let dead = async {
        let queues = dead_letter_queues(&lookout.stacks);
        let counted = at_once(queues.iter().map(async |queue| {
            let count = letters.count(queue).await.map_err(|error| error.to_string())?;
            Ok((queue.clone(), count))
        }));
        counted.await.into_iter().collect()
    };
    let (version, runners, webhook, quota, alarms, dead) = tokio::join!(
        version(lookout, &deployed.prefix),
        runners(lookout, &deployed),
        webhook,
        quota,
        lookout.alarms(),
        dead
    );
    Ok(Status {
        at: lookout.clock.now().to_string(),
        version: Known(version),
        runners: Known(runners),
        webhook: Known(webhook),
        github_quota: Known(quota),
        alarms: Known(alarms),
        dead_letters: Known(dead),
    })
}

async fn version(lookout: &Lookout, prefix: &str) -> Result<Option<String>, String> {
    let name = format!("{prefix}/control/version");
    let answer = lookout.wire.ask(SSM, "GetParameters", &json!({"Names": [name]})).await?;
    Ok(list(&answer["Parameters"]).first().and_then(|parameter| text(&parameter["Value"])))
}

/// All dead-letter queues of the stacks.
pub fn dead_letter_queues(stacks: &Stacks) -> Vec<String> {
    let Stacks { stack, recovery_stack, janitor_stack, .. } = stacks;
    vec![
        format!("{stack}-ended-executions-dead"),
        format!("{stack}-reports-dead.fifo"),
        format!("{recovery_stack}-instances-dead"),
        format!("{janitor_stack}-confirmations-dead"),
    ]
}

/// Runs the command.
pub async fn run(shell: &Shell, stacks: Stacks) -> anyhow::Result<Exit> {
    let lookout = Lookout::new(shell.aws().await, stacks)?;
    let status = shell.output.progress("Looking", None, look(&lookout)).await;
    let status = status.map_err(anyhow::Error::msg)?;
    shell.output.answer(&status, || show(&shell.output, &status));
    Ok(Exit::Done)
}

/// The text for people.
fn show(output: &Output, status: &Status) -> String {
    let mut lines = vec![format!(
        "{}  {}",
        status.at,
        match &status.version.0 {
            Ok(Some(version)) => format!("version {}", words(version)),
            Ok(None) => "version not noted (deployed without `ostler deploy`)".into(),
            Err(why) => unknown(output, "version", why),
        }
    )];
    lines.push(String::new());
    match &status.runners.0 {
        Err(why) => lines.push(unknown(output, "runners", why)),
        Ok(board) => {
            let mut table = Table::new(["tier", "queued", "launching", "warm", "running"]);
            for (tier, row) in &board.tiers {
                let TierRow { queued, launching, warm, running } = row;
                table.row([
                    words(tier),
                    queued.text(),
                    launching.text(),
                    warm.text(),
                    running.text(),
                ]);
            }
            match board.tiers.is_empty() {
                true => lines.push("no runner is wanted or there".into()),
                false => lines.push(table.text()),
            }
            if board.more {
                lines.push(output.paint(Mark::Warn, "there are more executions than were read"));
            }
            if board.without_execution > 0 {
                let text =
                    format!("{} machines have no execution any more", board.without_execution);
                lines.push(output.paint(Mark::Warn, &text));
            }
        }
    }
    lines.push(String::new());
    lines.push(match &status.webhook.0 {
        Err(why) => unknown(output, "webhook", why),
        Ok(Webhook { last_seconds_ago: None, .. }) => {
            output.paint(Mark::Warn, "webhook: GitHub shows no delivery")
        }
        Ok(Webhook { last_seconds_ago: Some(ago), shown, failed }) => {
            let ago = span(Duration::from_secs(*ago));
            let text = format!(
                "webhook: the last event was sent {ago} ago; {failed} of the last {shown} failed"
            );
            let mark = if *failed > 0 { Mark::Warn } else { Mark::Ok };
            output.paint(mark, &text)
        }
    });
    match &status.github_quota.0 {
        Err(why) => lines.push(unknown(output, "GitHub's quota", why)),
        Ok(quotas) => lines.extend(quotas.iter().map(|quota| match quota.calls {
            None => format!("GitHub: {} has no limit", words(&quota.owner)),
            Some((limit, left)) => {
                let text = format!(
                    "GitHub: {left} of {limit} calls left this hour with {}",
                    words(&quota.owner)
                );
                let mark = if left * 10 < limit { Mark::Warn } else { Mark::Ok };
                output.paint(mark, &text)
            }
        })),
    }
    match &status.alarms.0 {
        Err(why) => lines.push(unknown(output, "alarms", why)),
        Ok(alarms) if alarms.is_empty() => lines.push(output.paint(Mark::Ok, "alarms: none rings")),
        Ok(alarms) => lines.extend(alarms.iter().map(|(name, what)| {
            output.paint(Mark::Fail, &format!("alarm {}: {}", words(name), words(what)))
        })),
    }
    match &status.dead_letters.0 {
        Err(why) => lines.push(unknown(output, "dead letters", why)),
        Ok(queues) => {
            let full = queues
                .iter()
                .filter_map(|(queue, count)| Some((queue, count.filter(|it| *it > 0)?)));
            let full: Vec<_> = full.map(|(queue, count)| format!("{count} in {queue}")).collect();
            lines.push(match full.is_empty() {
                true => output.paint(Mark::Ok, "dead letters: none"),
                false => output.paint(
                    Mark::Warn,
                    &format!("dead letters: {} (`ostler dlq`)", full.join(", ")),
                ),
            });
        }
    }
    lines.join("\n")
}

fn unknown(output: &Output, what: &str, why: &str) -> String {
    output.paint(Mark::Warn, &format!("{what}: not known, because {}", words(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_seconds(second)
    }

    #[test]
    fn runners_are_sorted_by_tier_and_by_what_they_are_at() {
        let seat = Seat {
            tier: Some("small".into()),
            started: at(100),
            queued: Some(at(90)),
            ..Seat::default()
        };
        let seats = [
            seat.clone(),
            Seat { queued: Some(at(50)), ..seat.clone() },
            Seat { machine: true, ..seat.clone() },
            Seat { machine: true, busy: Some(at(150)), ..seat.clone() },
            // Its machine is not listed yet, or any more.
            Seat { busy: Some(at(120)), ..seat.clone() },
            Seat { warm: true, machine: true, queued: None, ..seat.clone() },
            Seat { tier: None, queued: None, ..seat },
        ];
        let board = board(at(200), &seats);
        let ages = |count, oldest_seconds| Ages { count, oldest_seconds };
        assert_eq!(
            board.tiers["small"],
            TierRow {
                queued: ages(2, 150),
                launching: ages(1, 110),
                warm: ages(1, 100),
                running: ages(2, 80)
            }
        );
        assert_eq!(board.tiers["?"].queued, ages(1, 100), "since its start");
        assert_eq!(board.tiers.len(), 2);
    }

    #[test]
    fn warm_runners_tell_their_tier() {
        assert_eq!(warm_tier("warm-linux-x64-0123456789abcdef"), Some("linux-x64"));
        for other in ["warm-0123456789abcdef", "warm-x-1", "widgets-42-0123456789ab"] {
            assert_eq!(warm_tier(other), None, "{other}");
        }
    }

    fn status() -> Status {
        Status {
            at: at(0).to_string(),
            version: Known(Ok(Some("1.2.0".into()))),
            runners: Known(Ok(Board::default())),
            webhook: Known(Ok(Webhook { last_seconds_ago: Some(75), shown: 100, failed: 0 })),
            github_quota: Known(Ok(vec![GitHubQuota {
                owner: "acme".into(),
                calls: Some((5000, 4000)),
            }])),
            alarms: Known(Ok(vec![])),
            dead_letters: Known(Ok(BTreeMap::from([("ostler-reports-dead.fifo".into(), Some(0))]))),
        }
    }

    #[test]
    fn all_is_told_in_a_few_lines() {
        let text = show(&Output::plain(false), &status());
        for part in [
            "version 1.2.0",
            "no runner is wanted",
            "sent 1 min 15 s ago; 0 of the last 100 failed",
            "4000 of 5000 calls left this hour with acme",
            "alarms: none rings",
            "dead letters: none",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn i6_what_is_not_known_is_said_so_in_words_and_in_json() {
        let denied = || "AccessDenied".to_owned();
        let unknown = Status {
            version: Known(Err(denied())),
            runners: Known(Err(denied())),
            webhook: Known(Err(denied())),
            github_quota: Known(Err(denied())),
            alarms: Known(Err(denied())),
            dead_letters: Known(Err(denied())),
            ..status()
        };
        let text = show(&Output::plain(false), &unknown);
        assert_eq!(text.matches("not known, because AccessDenied").count(), 6, "{text}");
        assert!(!text.contains("none"), "{text}");
        let value = serde_json::to_value(&unknown).unwrap();
        for part in ["version", "runners", "webhook", "github_quota", "alarms", "dead_letters"] {
            assert_eq!(value[part], json!({"unknown": "AccessDenied"}), "{part}");
        }
    }

    #[test]
    fn what_rings_and_what_is_dead_is_told() {
        let odd = Status {
            webhook: Known(Ok(Webhook { last_seconds_ago: None, shown: 0, failed: 0 })),
            alarms: Known(Ok(vec![("ostler-Webhook5xxAlarm-1".into(), "Redeliver those.".into())])),
            dead_letters: Known(Ok(BTreeMap::from([
                ("q-dead".into(), Some(3)),
                ("p-dead".into(), None),
            ]))),
            ..status()
        };
        let text = show(&Output::plain(false), &odd);
        assert!(text.contains("GitHub shows no delivery"), "{text}");
        assert!(text.contains("alarm ostler-Webhook5xxAlarm-1: Redeliver those."), "{text}");
        assert!(text.contains("dead letters: 3 in q-dead"), "{text}");
    }
}
