//! Every metric of the namespace, in one table, from which `docs/metrics.md` is made. Nothing in the functions reads
//! it: it costs them nothing. Tests hold it against what the code counts.

/// CloudWatch namespace of all metrics.
pub const NAMESPACE: &str = "Ostler";

/// The unit of a metric, which its name says (CloudWatch API Reference, MetricDatum; it has no unit for money).
pub fn unit(metric: &str) -> &'static str {
    if metric.ends_with("Seconds") {
        "Seconds"
    } else if metric.ends_with("Usd") {
        "None"
    } else {
        "Count"
    }
}

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The webhook.
    Webhook,
    /// The steps of a runner's life.
    Orchestrator,
    /// The handler of reports.
    StolenRunner,
    /// What hears of machines that end.
    InstanceEvents,
    /// What looks for jobs that wait.
    Reconciler,
    /// What ends machines past their time.
    Reaper,
    /// What removes registrations that were left behind.
    Janitor,
    /// Lines of the runners' log, by a filter of the control stack.
    Instance,
}

impl Source {
    /// As it is called in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Orchestrator => "orchestrator",
            Self::StolenRunner => "stolen-runner",
            Self::InstanceEvents => "instance-events",
            Self::Reconciler => "reconciler",
            Self::Reaper => "reaper",
            Self::Janitor => "registration-janitor",
            Self::Instance => "instances",
        }
    }
}

/// A metric. Each has a series of its own, for alarms, and one for each value of its dimensions together, of which
/// there are few: tiers, reasons, Apps. No job, runner, repository or instance is ever one.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, which says its [`unit`].
    pub name: &'static str,
    /// Its dimensions.
    pub by: &'static [&'static str],
    /// What counts it.
    pub from: &'static [Source],
    /// What it means and what to do.
    pub meaning: &'static str,
}

/// All, by what counts them and by name.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "CancelledRunnerEnded",
        by: &[],
        from: &[Source::Webhook],
        meaning: "of those, such whose runner was booting: its registration was removed, so that it ends",
    },
    Metric {
        name: "ConfigurationError",
        by: &[],
        from: &[Source::Webhook, Source::Orchestrator, Source::StolenRunner, Source::Reconciler],
        meaning: "something fails until an operator acts: the log says on what (a parameter missing, an \
            invalid tier, a permission …). Jobs are kept for 24 hours meanwhile",
    },
    Metric {
        name: "DeliveryReceived",
        by: &[],
        from: &[Source::Webhook],
        meaning: "signed deliveries of GitHub's, of whatever event",
    },
    Metric {
        name: "DeliveryUnusable",
        by: &[],
        from: &[Source::Webhook],
        meaning: "a delivery without what is needed; the log says what is missing",
    },
    Metric {
        name: "EventIgnored",
        by: &["Event"],
        from: &[Source::Webhook],
        meaning: "the App subscribes to events that nobody uses: unsubscribe",
    },
    Metric {
        name: "JobAccepted",
        by: &["Tier"],
        from: &[Source::Webhook],
        meaning: "runners started for jobs",
    },
    Metric {
        name: "JobCancelled",
        by: &[],
        from: &[Source::Webhook],
        meaning: "jobs that were over before a runner had them",
    },
    Metric {
        name: "JobRefused",
        by: &["Reason"],
        from: &[Source::Webhook],
        meaning: "`NotSelfHosted`, `NoTier`, `NotAllowed`, `Public`, `Selector`. Expected, unless \
            someone waits for that job: the log names it",
    },
    Metric {
        name: "OperatorNeeded",
        by: &[],
        from: &[
            Source::Webhook,
            Source::Orchestrator,
            Source::StolenRunner,
            Source::Reconciler,
            Source::Instance,
        ],
        meaning: "`ConfigurationError`, `NotAssigned`, `UnknownRunner` and `RunnerDeprecated` once more, \
            for one alarm",
    },
    Metric {
        name: "QueueSeconds",
        by: &["Tier"],
        from: &[Source::Webhook],
        meaning: "from a job's creation to its start, by GitHub's own times, of jobs that began on a \
            runner of ours; by the tier that their labels choose",
    },
    Metric {
        name: "SelectorFailed",
        by: &[],
        from: &[Source::Webhook],
        meaning: "the selector failed, or its answer can't be used",
    },
    Metric {
        name: "SignatureRefused",
        by: &[],
        from: &[Source::Webhook],
        meaning: "someone guesses, or the secrets at GitHub and in SSM differ",
    },
    Metric {
        name: "WebhookUnavailable",
        by: &[],
        from: &[Source::Webhook],
        meaning: "answers of 5xx. Mend the cause that the log names, and redeliver",
    },
    Metric {
        name: "BusyWithoutExecution",
        by: &[],
        from: &[Source::Orchestrator],
        meaning: "an execution was stopped while its runner worked, or may have worked: GitHub's flag \
            lags. The machine powers off by itself, after the job if there is one",
    },
    Metric {
        name: "IdleRunner",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "got no job in its idle time. A few are the price of races; many mean that something \
            else takes the jobs",
    },
    Metric {
        name: "InstanceEnded",
        by: &["Reason"],
        from: &[Source::Orchestrator],
        meaning: "ended by us: `idle`, `boot time-out` (look at the image and the instance's log), \
            `lifetime` (**a job may have been cut off**), `hung` (its job had been over for 15 \
            minutes), `stopped`, `unregistered`",
    },
    Metric {
        name: "JobUnrecorded",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "the ledger could not be written; the launch went on. At worst a surplus runner",
    },
    Metric {
        name: "LaunchDelayed",
        by: &["Reason"],
        from: &[Source::Orchestrator],
        meaning: "a launch waits. `Capacity`: add instance types, zones, or on-demand. `Quota`: ask AWS \
            for more. `MaxRunners`: as you set it. `Pace`: a burst of registrations is spread over \
            time. `Blocked`: see `RegistrationRefused`. `Configuration`: **act**, the log says on \
            what; the job is kept for 24 hours (a single one after a deploy or a new tier passes \
            by itself: not everything knows at once what is new). `Throttled`, `TokenUsed`, \
            `Unknown`: passing",
    },
    Metric {
        name: "LaunchGivenUp",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "no machine for 24 hours: the job is lost",
    },
    Metric {
        name: "LaunchRefused",
        by: &["Reason"],
        from: &[Source::Orchestrator],
        meaning: "a single purchase of a machine that EC2 refused: `Capacity`, `Quota`, `Throttled`, `Configuration`, \
            `Unknown`",
    },
    Metric {
        name: "LaunchUnneeded",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "the job had been served meanwhile; nothing was bought",
    },
    Metric {
        name: "NameTaken",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "GitHub has another runner of that name that can't be removed; the next name is used",
    },
    Metric {
        name: "NotAssigned",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "a runner gets no job while its own waits: the runner group does not admit the repository, or \
            labels differ",
    },
    Metric {
        name: "RegistrationLeft",
        by: &[],
        from: &[Source::Orchestrator],
        meaning: "GitHub did not let a registration go for half an hour, or the App was uninstalled \
            meanwhile; remove it by hand if it stays",
    },
    Metric {
        name: "RegistrationRefused",
        by: &["Reason"],
        from: &[Source::Orchestrator],
        meaning: "`RateLimit`: passes. `GroupFull`: remove registrations from the group. `GroupUnknown`, \
            `GroupForbidden`, `NotAllowed`, `Invalid`: **act**, the log names group or permission. \
            The instance was ended, and launches wait that would be told the same: all of the \
            owner's for a limit, else the tier's",
    },
    Metric {
        name: "ReplacementStarted",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "a runner for a job that had lost its own",
    },
    Metric {
        name: "ReplacementsUsedUp",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "three replacements were lost too: the job waits. Find out what takes or kills its \
            runners; a redelivery starts the next generation after an hour",
    },
    Metric {
        name: "RunnerLaunched",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "machines that were bought",
    },
    Metric {
        name: "RunnerTaken",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "was given a job that is not its own; its own is looked after",
    },
    Metric {
        name: "SlotFreed",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "a place among `max_runners` whose machine was gone was freed by a launch that waited \
            for it",
    },
    Metric {
        name: "SpotBreakerOpened",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "spot failed too often: the tier buys on-demand for a while (`spot_breaker`). Add \
            instance types and zones",
    },
    Metric {
        name: "SpotReclaimed",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "EC2 took a spot machine back. GitHub fails the job that it ran, and the reconciler has \
            it [run again](operations.md#jobs-that-lose-their-machine). If it happens often, add \
            instance types and zones",
    },
    Metric {
        name: "SpotRested",
        by: &["Tier"],
        from: &[Source::Orchestrator],
        meaning: "launches that bought on-demand because spot had failed too often, or had failed this \
            very job",
    },
    Metric {
        name: "DeliveryUnreadable",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a delivery of the log that can't be unpacked; CloudWatch Logs tries again",
    },
    Metric {
        name: "ExecutionUnreadable",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a report names an execution with an input that is not Ostler's",
    },
    Metric {
        name: "ReadySeconds",
        by: &["Tier"],
        from: &[Source::StolenRunner],
        meaning: "our share of `QueueSeconds`: from the webhook's first event of a job (for a replacement: from \
            its own start) to the event that says that the job began on the runner that was \
            started for it",
    },
    Metric {
        name: "ReportBeyondLimit",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "more than 1,000 reports in one delivery: a job at play",
    },
    Metric {
        name: "ReportFailed",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a report could not be judged for the moment, and comes again",
    },
    Metric {
        name: "ReportForged",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a line claimed a strange repository while the runner ran its own job: forged",
    },
    Metric {
        name: "ReportGivenUp",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "what a line claimed was not borne out by GitHub at the fourth look",
    },
    Metric {
        name: "ReportQueued",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "lines of runners that were queued for judgement",
    },
    Metric {
        name: "ReportUnknown",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a line named a run that does not exist, or that did not use the runner: forged",
    },
    Metric {
        name: "ReportUnparsable",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "lines that hold the mark and no report. Only jobs print such lines; the log shows \
            them, with their stream",
    },
    Metric {
        name: "ReportUnusable",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a message of the queue that is no report: dropped, the log has its id",
    },
    Metric {
        name: "StolenRunnerDetected",
        by: &["Replaced", "Tier"],
        from: &[Source::StolenRunner],
        meaning: "a runner ran a job for which none was started, or whose own runner can't stand in. \
            `true`: another one was started. `false`: all replacements are used up, see \
            `ReplacementsUsedUp`. `unneeded`: its own job was over before it ran. Many of them: \
            something outside uses your labels. The log names the thief's repository",
    },
    Metric {
        name: "UnknownRunner",
        by: &[],
        from: &[Source::StolenRunner],
        meaning: "a runner that is not Ostler's ran a job that a tier would serve: another system with \
            the same labels, or **someone who registers runners**: look at the owner's runners",
    },
    Metric {
        name: "WarmRunnerTaken",
        by: &["Tier"],
        from: &[Source::StolenRunner],
        meaning: "a runner started for no job in particular got one",
    },
    Metric {
        name: "InstanceEventUnusable",
        by: &[],
        from: &[Source::InstanceEvents],
        meaning: "messages that are no events of instances, or that come from an account that no tier \
            names, or name a runner that does not live there: dropped",
    },
    Metric {
        name: "JobCostUnknown",
        by: &["Tier"],
        from: &[Source::InstanceEvents],
        meaning: "machines whose type is not in that list",
    },
    Metric {
        name: "JobCostUsd",
        by: &["Tier"],
        from: &[Source::InstanceEvents],
        meaning: "an estimate of what a runner's machine cost, from its launch to its end: its type and \
            market by the list in `crates/core/src/prices.json`, in USD. The average is that of a \
            job, the sum is what is spent. Volumes, addresses and traffic come on top; machines in \
            other accounts are in it where their events are passed on",
    },
    Metric {
        name: "JobInterrupted",
        by: &["Tier"],
        from: &[Source::InstanceEvents],
        meaning: "jobs that lost their machine, and are to be [run \
            again](operations.md#jobs-that-lose-their-machine)",
    },
    Metric {
        name: "LostRunnerSettled",
        by: &["Tier"],
        from: &[Source::InstanceEvents],
        meaning: "runners whose machine ended before they got a job, settled at once. Many: look at the \
            image and the instances' log",
    },
    Metric {
        name: "SpotInterrupted",
        by: &["Tier"],
        from: &[Source::InstanceEvents],
        meaning: "spot machines that EC2 announced to take back",
    },
    Metric {
        name: "DeliveryGivenUp",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "events that could not be delivered for three hours: mend what the webhook's log says",
    },
    Metric {
        name: "DeliveryRedelivered",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "deliveries that had failed and were sent again",
    },
    Metric {
        name: "GitHubQuotaLeft",
        by: &["App"],
        from: &[Source::Reconciler, Source::Janitor],
        meaning: "calls that the App has left this hour, with the owner where that is least. The \
            janitor's are by `Janitor` too",
    },
    Metric {
        name: "JobDiscovered",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "jobs whose event never came, and that got a runner. Also counted as `JobAccepted`",
    },
    Metric {
        name: "OldestWaitingSeconds",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "for how long the oldest job waits that this run has looked at and that is not known to \
            have begun; 0 if there is none. Each is looked at every ten minutes. A job that runs \
            on another runner of ours counts until its own runner has ended as idle",
    },
    Metric {
        name: "OpenJobLookedAt",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "jobs that were looked at because it was not known that they had begun",
    },
    Metric {
        name: "OpenJobPaid",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "of those, such that waited without a runner and got one. Something else has failed \
            before: the log names them",
    },
    Metric {
        name: "ReconcilerCompleted",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "a run that went well",
    },
    Metric {
        name: "ReconcilerLeft",
        by: &["Part"],
        from: &[Source::Reconciler],
        meaning: "open jobs, deliveries, runs or repositories that there was no time, or no calls, for: the next run \
            goes on with them. A part that leaves much for hours has more to do than its bounds allow",
    },
    Metric {
        name: "ReconcilerLimited",
        by: &[],
        from: &[Source::Reconciler],
        meaning: "GitHub wanted to be left alone: the next run goes on",
    },
    Metric {
        name: "Rerun",
        by: &["Tier"],
        from: &[Source::Reconciler],
        meaning: "jobs that had lost their machine and were run again",
    },
    Metric {
        name: "RerunSkipped",
        by: &["Reason"],
        from: &[Source::Reconciler],
        meaning: "such that were not. `Succeeded`: it ended well before. `FailedBefore`, \
            `EndedOtherwise`, `NotBegun`: not because of the machine. `Cancelled`: somebody did \
            not want it. `MovedOn`: somebody had run it again. `Attempts`: it was in its third \
            attempt. `TooLate`: its run went on for a day. `Gone`: run or job was deleted. \
            `Refused`: GitHub does not run it again, the log says why. `NotAllowed`: **act**, the \
            App lacks *Actions: read and write*. `RunUnknown` (of instance-events): the address of \
            its page does not name a run, as on old servers",
    },
    Metric {
        name: "ReaperEnded",
        by: &[],
        from: &[Source::Reaper],
        meaning: "instances ended. Something else has failed before: the log names them",
    },
    Metric {
        name: "ReaperFailed",
        by: &[],
        from: &[Source::Reaper],
        meaning: "instances past their time that could not be ended: **act**, the log says on what. A \
            spot request that can't be cancelled keeps its instance",
    },
    Metric {
        name: "ReaperKept",
        by: &["Reason"],
        from: &[Source::Reaper],
        meaning: "instances that stay. `Young`, `Until`: their time is not over. `Pool`: stopped, for \
            their next use. `DryRun`: would be ended. `Foreign`, `Undated`, `Ended`: EC2 showed \
            them oddly",
    },
    Metric {
        name: "ReaperLeft",
        by: &[],
        from: &[Source::Reaper],
        meaning: "there was no time for these; the next sweep goes on",
    },
    Metric {
        name: "JanitorFailure",
        by: &["Janitor", "Kind"],
        from: &[Source::Janitor],
        meaning: "`Page`: of a list, passes, or the log names the cure. `LookUp`: EC2 or Step Functions. \
            `Queue`: SQS did not take a candidate. `GitHub`: a second look or a deletion. \
            `TooEarly`, `Deadline`: come again. `Record`: a message that is no JSON",
    },
    Metric {
        name: "RegistrationCandidates",
        by: &["Janitor"],
        from: &[Source::Janitor],
        meaning: "those of them that were queued (in a dry run: would be)",
    },
    Metric {
        name: "RegistrationDeleted",
        by: &["Janitor"],
        from: &[Source::Janitor],
        meaning: "removed",
    },
    Metric {
        name: "RegistrationGone",
        by: &["Janitor"],
        from: &[Source::Janitor],
        meaning: "somebody else had removed it meanwhile",
    },
    Metric {
        name: "RegistrationKept",
        by: &["Janitor", "Reason"],
        from: &[Source::Janitor],
        meaning: "`Online`, `Busy`, `Foreign` (another name), `Exists` (its machine is there); and at \
            the second look also `Renamed`, `Moved` (to another group), `ScopeChanged` (the \
            configuration was changed), `Expired`, `FromTheFuture`, `Unusable` (no message of \
            ours), `DryRun`",
    },
    Metric {
        name: "RegistrationsSeen",
        by: &["Janitor"],
        from: &[Source::Janitor],
        meaning: "registrations that a scan has read",
    },
    Metric {
        name: "ScanCompleted",
        by: &["Janitor"],
        from: &[Source::Janitor],
        meaning: "scans that read every list to its end, neither stopped by limit or deadline nor left \
            for failures. One whose look-ups fail and find nothing to be gone, or of whose \
            candidates the queue takes none, is not completed",
    },
    Metric {
        name: "RunnerDeprecated",
        by: &[],
        from: &[Source::Instance],
        meaning: "GitHub has refused the runner's release: a new version is due",
    },
    Metric {
        name: "RunnerOld",
        by: &[],
        from: &[Source::Instance],
        meaning: "the runner's release is four weeks old, and GitHub refuses it a month after the next \
            one",
    },
];

/// `docs/metrics.md`, whole.
pub fn reference() -> String {
    let mut text = format!(
        "<!-- Made from crates/core/src/metrics.rs by `make reference`. Do not edit. -->\n\n# Metrics\n\n\
         Namespace `{NAMESPACE}`. Each metric has a\nseries of its own and, where dimensions are named, one for each of their values together. They \
         do not tell installs apart:\ntwo in one account and region add up. What the alarms among them ask for stands \
         in\n[operations.md](operations.md#alarms).\n\n\
         | metric | unit | by | from | what it means, what to do |\n| --- | --- | --- | --- | --- |\n"
    );
    for Metric { name, by, from, meaning } in METRICS {
        let by: Vec<_> = by.iter().map(|name| format!("`{name}`")).collect();
        let from: Vec<_> = from.iter().map(|source| source.name()).collect();
        let unit = match unit(name) {
            "None" => "USD",
            "Seconds" => "s",
            _ => "",
        };
        let (by, from) = (by.join(", "), from.join(", "));
        text += &format!("| `{name}` | {unit} | {by} | {from} | {meaning} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_metric_is_there_once_and_says_what_it_means() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, from, meaning, .. } in METRICS {
            assert!(!from.is_empty() && meaning.len() > 5 && !meaning.contains('|'), "{name}");
        }
    }

    #[test]
    fn dimensions_have_few_values() {
        // Tiers and Apps are an operator's own, the others are words of the code.
        let few = ["App", "Event", "Janitor", "Kind", "Part", "Reason", "Replaced", "Tier"];
        for metric in METRICS {
            assert!(metric.by.iter().all(|by| few.contains(by)), "{}", metric.name);
        }
    }

    #[test]
    fn the_page_gives_unit_and_source_of_each_metric() {
        assert_eq!(["WaitSeconds", "SpentUsd", "Jobs"].map(unit), ["Seconds", "None", "Count"]);
        let page = reference();
        let mut sources = BTreeSet::new();
        for Metric { name, from, .. } in METRICS {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let unit = match () {
                () if name.ends_with("Seconds") => "s",
                () if name.ends_with("Usd") => "USD",
                () => "",
            };
            assert_eq!((cells[2], cells[4].split(", ").count()), (unit, from.len()), "{row}");
            for (source, called) in from.iter().zip(cells[4].split(", ")) {
                sources.insert((format!("{source:?}"), called.to_owned()));
            }
        }
        let names: BTreeSet<_> = sources.iter().map(|(_, called)| called).collect();
        assert_eq!(names.len(), sources.len(), "no two are called alike: {sources:?}");
    }
}
