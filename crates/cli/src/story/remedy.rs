//! What to do, by the reasons that the steps, the machines and the webhook give.

use super::Tone;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Whether somebody has to act.
    pub tone: Tone,
    /// The words.
    pub what: &'static str,
}

const fn act(what: &'static str) -> Option<Remedy> {
    Some(Remedy { tone: Tone::Bad, what })
}

const fn odd(what: &'static str) -> Option<Remedy> {
    Some(Remedy { tone: Tone::Odd, what })
}

const fn plain(what: &'static str) -> Option<Remedy> {
    Some(Remedy { tone: Tone::Plain, what })
}

impl Remedy {
    /// Of a launch or registration that waits: its reason begins with a word.
    pub fn of_wait(reason: &str) -> Option<Self> {
        match reason.split_once(':').map_or(reason, |(word, _)| word) {
            "Capacity" => odd(
                "EC2 has no such machine there now. More instance types, zones or on-demand help; it is tried again.",
            ),
            "Quota" => act(
                "The account's EC2 quota is used up: ask AWS for more (`ostler doctor` says which), or lower max_runners.",
            ),
            "MaxRunners" => odd(
                "All of the tier's max_runners are in use: it starts as one ends. Raise max_runners if that is too slow.",
            ),
            "Pace" => plain("Registrations of a burst are spread over time; it goes on by itself."),
            "Blocked" => {
                odd("GitHub has said \"later\": the reason names what; it is tried again then.")
            }
            "Configuration" => act(
                "Mend what the reason names (tier, image, subnet, permission): the job is kept for 24 hours. `ostler config check` and `ostler doctor` help.",
            ),
            "Throttled" | "TokenUsed" | "Unknown" => plain("It passes by itself."),
            "RateLimit" => odd(
                "GitHub limits the App's calls: it passes. If it comes often, add an App (control/apps).",
            ),
            "GroupFull" => act(
                "The runner group has all the runners that it can have: remove registrations from it.",
            ),
            "GroupUnknown" | "GroupForbidden" => {
                act("Correct the tier's runner_group, or open the group to the App's repositories.")
            }
            "NotAllowed" => act(
                "Grant the App the permission that the reason names, and have the owner accept it.",
            ),
            "Invalid" => act(
                "GitHub refuses the registration as it is: correct the tier's labels and runner group.",
            ),
            _ => None,
        }
    }

    /// Of a runner that a step found over.
    pub fn of_end(reason: &str) -> Option<Self> {
        match reason {
            "idle" => odd(
                "It got no job in its idle time. If its own job still waited, labels or runner group do not fit.",
            ),
            "boot time-out" => act(
                "Its machine did not claim its registration in time: look at the image, at the network's way out, and at the machine's log.",
            ),
            "lifetime" => act(
                "It was ended at its tier's max_lifetime, perhaps in the middle of a job: raise it, or look why the job hangs.",
            ),
            "hung" => odd(
                "Its job was over and the machine went on: it was ended. Look at what the job leaves running.",
            ),
            "stopped" => odd("Somebody stopped the machine; runners can't be resumed."),
            "unregistered" => odd(
                "Its registration was removed at GitHub while it lived: by hand, or by another system.",
            ),
            "vanished" | "ran nothing" => odd(
                "Its machine was lost before a job was known to run on it; if the job waits, it gets another.",
            ),
            "cancelled" => plain("The job was cancelled before its machine was launched."),
            "unneeded" => plain("The job had been served meanwhile."),
            "no machine for 24 h" => act(
                "There was no machine for a day, and GitHub gives the job up: add instance types or zones, or ask AWS for more; re-run the job.",
            ),
            "the name is taken" => act(
                "GitHub has a runner of that name that can't be removed: look at the owner's runners.",
            ),
            _ => None,
        }
    }

    /// Of a machine's last word.
    pub fn of_machine(reason: &str) -> Option<Self> {
        match reason {
            "no-job" => odd("The runner ended without a job, mostly because it was idle."),
            "no-handoff" => act(
                "No registration came within the boot time-out: look at the orchestrator's log, and whether the machine reaches DynamoDB.",
            ),
            "bad-handoff" | "delete-unconfirmed" => odd(
                "The registration was not usable, or could not be deleted: the runner was not started.",
            ),
            "runner-download" | "runner-checksum" | "runner-unpack" => act(
                "The runner could not be fetched: look at the network's way out, and at RunnerVersion, RunnerSha256… and RunnerUrl of the stack.",
            ),
            "runner-deprecated" => act(
                "GitHub refuses this version of the runner: raise RunnerVersion, or build the image anew.",
            ),
            "max-lifetime" => act(
                "The machine was cut off at its tier's max_lifetime: raise it, or look why the job hangs.",
            ),
            "rebooted" => odd("The machine came up a second time; it never runs a second job."),
            "no-metadata" | "no-credentials" | "no-user" | "bootstrap-failed" => act(
                "The machine is not as it should be: look at the image, its instance profile and its metadata options.",
            ),
            other
                if other.starts_with("runner-")
                    || other.starts_with("killed-")
                    || other == "stopped" =>
            {
                odd("The runner ended badly: the machine's log, and the job's at GitHub, say more.")
            }
            _ => None,
        }
    }

    /// Of a job that the webhook started nothing for, by its line in the log.
    pub fn of_refusal(text: &str) -> Option<Self> {
        [
            ("NotSelfHosted", "The job must ask for `self-hosted`, or require_self_hosted in control/app be false."),
            ("NoTier", "No tier has all of the job's labels: correct runs-on, or add a tier (`ostler config check`)."),
            ("NotAllowed", "The repository is not on the allow list: add it in control/app (repositories.allow)."),
            ("Public", "The repository is public, which control/app refuses (repositories.public): strangers could run code."),
            ("Selector", "The selector function chose no tier: ask whoever maintains it."),
            ("approval", "The job waits for an approval; once approved, GitHub queues it again."),
        ]
        .into_iter()
        .find(|(word, _)| text.contains(word))
        .and_then(|(_, what)| odd(what))
    }
}
