//! Which machine is past its time: a pure function of what EC2 showed of it and of the time.

use std::time::Duration;

use crate::ports::{InstanceState, Machine};
use crate::reach::reached;
use crate::time::Timestamp;

/// The furthest that an `until` tag moves a machine's end, counted from its latest start: a job runs at
/// most five days (docs.github.com, "Actions limits"), and what launches for one adds hours to that. What
/// is beyond comes from a mistake, and must not leave a machine for ever.
const LONGEST_UNTIL: Duration = Duration::from_secs(6 * 86_400);

/// What the reaper is told of the machines that it looks after.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The tag that all of them carry.
    pub owner_tag: String,
    /// Its value.
    pub owner: String,
    /// The tag that says what a machine is there for.
    pub state_tag: String,
    /// Values of it that mean that a stopped machine waits for its next use.
    pub kept_states: Vec<String>,
    /// The tag with the time before which a machine is not ended (RFC 3339).
    pub until_tag: String,
    /// How long a machine may run after its latest start. Longer than the longest job: nobody asks here
    /// whether one is running.
    pub max_age: Duration,
}

/// What is to become of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is ended: its time was over then.
    End(Timestamp),
    /// It stays.
    Keep(Kept),
}

/// Why a machine stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// It does not carry the owner's tag: whatever EC2 was asked, this is not one of ours.
    Foreign,
    /// It is ending, or has ended.
    Ended,
    /// It is stopped, and waits for its next use.
    Pool,
    /// EC2 does not say when it was started, so its age proves nothing.
    Undated,
    /// Its start is not long ago.
    Young,
    /// Its `until` tag gives it longer than that.
    Until,
    /// Its time is over, and this is a rehearsal.
    DryRun,
}

impl Kept {
    /// The dimension of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreign => "Foreign",
            Self::Ended => "Ended",
            Self::Pool => "Pool",
            Self::Undated => "Undated",
            Self::Young => "Young",
            Self::Until => "Until",
            Self::DryRun => "DryRun",
        }
    }
}

/// Judges a machine. It is ended if it lives, carries the owner's tag, is not a stopped one of a pool, and
/// was last started more than `max_age` ago; a valid `until` tag moves that out, never in.
pub fn judge(machine: &Machine, rules: &Rules, now: Timestamp) -> Verdict {
    let tag = |name: &String| machine.tags.get(name);
    if tag(&rules.owner_tag) != Some(&rules.owner) {
        reached("reaper: not ours");
        return Verdict::Keep(Kept::Foreign);
    }
    match machine.state {
        InstanceState::Ended => {
            reached("reaper: over already");
            return Verdict::Keep(Kept::Ended);
        }
        InstanceState::Stopped
            if tag(&rules.state_tag).is_some_and(|state| rules.kept_states.contains(state)) =>
        {
            reached("reaper: a stopped one of a pool");
            return Verdict::Keep(Kept::Pool);
        }
        // A machine of a pool that runs is in use, or was forgotten: its time counts.
        InstanceState::Stopped | InstanceState::Pending | InstanceState::Running => {}
    }
    let Some(started) = machine.started else {
        reached("reaper: without a date");
        return Verdict::Keep(Kept::Undated);
    };
    let limit = started + rules.max_age;
    let until = tag(&rules.until_tag)
        .and_then(|text| Timestamp::parse(text))
        .map(|until| until.min(started + LONGEST_UNTIL));
    let end = until.map_or(limit, |until| until.max(limit));
    if now > end {
        reached("reaper: past its time");
        Verdict::End(end)
    } else if now > limit {
        reached("reaper: given longer by its tag");
        Verdict::Keep(Kept::Until)
    } else {
        reached("reaper: young");
        Verdict::Keep(Kept::Young)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_seconds(1_796_040_000);
    const HOUR: Duration = Duration::from_secs(3600);
    const MILLI: Duration = Duration::from_millis(1);

    fn rules() -> Rules {
        Rules {
            owner_tag: "ostler:owner".into(),
            owner: "acme".into(),
            state_tag: "ostler:state".into(),
            kept_states: vec!["ready".into(), "warming".into()],
            until_tag: "ostler:until".into(),
            max_age: 12 * HOUR,
        }
    }

    fn machine(state: InstanceState, tags: &[(&str, &str)]) -> Machine {
        let owner = [("ostler:owner", "acme")];
        let tags = owner.iter().chain(tags).map(|(key, value)| ((*key).into(), (*value).into()));
        Machine {
            id: "i-1".into(),
            state,
            started: Some(START),
            spot_request: None,
            tags: tags.collect(),
        }
    }

    fn after(age: Duration, state: InstanceState, tags: &[(&str, &str)]) -> Verdict {
        judge(&machine(state, tags), &rules(), START + age)
    }

    const LIVING: [InstanceState; 3] =
        [InstanceState::Pending, InstanceState::Running, InstanceState::Stopped];

    #[test]
    fn r50_the_limit_is_passed_a_moment_after_it_and_not_at_it() {
        for state in LIVING {
            let used = [("ostler:state", "used")];
            assert_eq!(after(12 * HOUR, state, &used), Verdict::Keep(Kept::Young));
            let over = after(12 * HOUR + MILLI, state, &used);
            assert_eq!(over, Verdict::End(START + 12 * HOUR), "{state:?}");
        }
    }

    #[test]
    fn r50_a_start_in_the_future_is_a_clock_that_differs() {
        let verdict = judge(&machine(InstanceState::Running, &[]), &rules(), START - HOUR);
        assert_eq!(verdict, Verdict::Keep(Kept::Young));
    }

    #[test]
    fn bf_12_r51_r52_stopped_machines_end_unless_they_wait_for_their_next_use() {
        for state in ["ready", "warming"] {
            let tags = [("ostler:state", state)];
            let kept = Verdict::Keep(Kept::Pool);
            assert_eq!(after(1000 * HOUR, InstanceState::Stopped, &tags), kept, "{state}");
            for running in [InstanceState::Running, InstanceState::Pending] {
                let verdict = after(13 * HOUR, running, &tags);
                assert_eq!(verdict, Verdict::End(START + 12 * HOUR), "{state} but {running:?}");
            }
        }
        let odd = [&[][..], &[("ostler:state", "used")], &[("ostler:state", "Ready")]];
        let odd = odd.into_iter().chain([&[("ostler:state", "")][..], &[("ostler:state", "odd")]]);
        for tags in odd {
            let verdict = after(13 * HOUR, InstanceState::Stopped, tags);
            assert_eq!(verdict, Verdict::End(START + 12 * HOUR), "{tags:?} counts as used");
        }
    }

    #[test]
    fn the_until_tag_moves_the_end_out_and_never_in() {
        let at = |age: Duration, until: Timestamp| {
            after(age, InstanceState::Running, &[("ostler:until", &until.to_string())])
        };
        let until = START + 30 * HOUR;
        assert_eq!(at(12 * HOUR, until), Verdict::Keep(Kept::Young));
        assert_eq!(at(13 * HOUR, until), Verdict::Keep(Kept::Until));
        assert_eq!(at(30 * HOUR, until), Verdict::Keep(Kept::Until));
        assert_eq!(at(30 * HOUR + MILLI, until), Verdict::End(until));
        for early in [START - HOUR, START, START + HOUR, START + 12 * HOUR] {
            assert_eq!(at(12 * HOUR, early), Verdict::Keep(Kept::Young), "{early}");
            assert_eq!(at(12 * HOUR + MILLI, early), Verdict::End(START + 12 * HOUR), "{early}");
        }
    }

    #[test]
    fn an_until_tag_that_is_no_time_moves_nothing() {
        for text in ["", "never", "1796140000", "2026-13-01T00:00:00Z", "2099-01-01", "∞"] {
            let tags = [("ostler:until", text)];
            let kept = after(12 * HOUR, InstanceState::Running, &tags);
            assert_eq!(kept, Verdict::Keep(Kept::Young), "{text}");
            let verdict = after(12 * HOUR + MILLI, InstanceState::Running, &tags);
            assert_eq!(verdict, Verdict::End(START + 12 * HOUR), "{text}");
        }
    }

    #[test]
    fn an_until_tag_leaves_no_machine_for_ever() {
        let tags = [("ostler:until", "9999-12-31T23:59:59Z")];
        let six_days = 6 * 24 * HOUR;
        let kept = after(six_days, InstanceState::Running, &tags);
        assert_eq!(kept, Verdict::Keep(Kept::Until));
        let verdict = after(six_days + MILLI, InstanceState::Running, &tags);
        assert_eq!(verdict, Verdict::End(START + six_days));
        // A limit that is set higher than that stays the later of the two.
        let rules = Rules { max_age: 200 * HOUR, ..rules() };
        let old = machine(InstanceState::Running, &tags);
        assert_eq!(judge(&old, &rules, START + 200 * HOUR), Verdict::Keep(Kept::Young));
        let verdict = judge(&old, &rules, START + 201 * HOUR);
        assert_eq!(verdict, Verdict::End(START + 200 * HOUR));
    }

    #[test]
    fn re_01_what_has_ended_is_left_alone() {
        let verdict = after(1000 * HOUR, InstanceState::Ended, &[]);
        assert_eq!(verdict, Verdict::Keep(Kept::Ended));
    }

    #[test]
    fn i6_a_machine_without_a_start_is_not_old() {
        let undated = Machine { started: None, ..machine(InstanceState::Running, &[]) };
        let verdict = judge(&undated, &rules(), START + 1000 * HOUR);
        assert_eq!(verdict, Verdict::Keep(Kept::Undated));
    }

    #[test]
    fn only_machines_of_this_owner_are_ended() {
        for tags in [&[("ostler:owner", "other")][..], &[("ostler:owner", "Acme")], &[]] {
            let mut foreign = machine(InstanceState::Running, &[]);
            foreign.tags = tags.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            foreign.tags.insert("OSTLER:owner".into(), "acme".into());
            let verdict = judge(&foreign, &rules(), START + 1000 * HOUR);
            assert_eq!(verdict, Verdict::Keep(Kept::Foreign), "{tags:?}");
        }
    }

    #[test]
    fn other_systems_tags_serve_as_well() {
        let rules = Rules {
            owner_tag: "team".into(),
            owner: "ci".into(),
            state_tag: "pool".into(),
            kept_states: vec!["spare".into()],
            until_tag: "expires".into(),
            max_age: HOUR,
        };
        let verdict = |state, tags: &[(&str, &str)]| {
            let mut machine = machine(state, tags);
            machine.tags.insert("team".into(), "ci".into());
            judge(&machine, &rules, START + 2 * HOUR)
        };
        let end = Verdict::End(START + HOUR);
        assert_eq!(verdict(InstanceState::Running, &[]), end);
        let spare = [("pool", "spare")];
        assert_eq!(verdict(InstanceState::Stopped, &spare), Verdict::Keep(Kept::Pool));
        assert_eq!(verdict(InstanceState::Stopped, &[("ostler:state", "ready")]), end);
        let later = (START + 3 * HOUR).to_string();
        let expires = [("expires", later.as_str())];
        assert_eq!(verdict(InstanceState::Running, &expires), Verdict::Keep(Kept::Until));
        assert_eq!(verdict(InstanceState::Running, &[("ostler:until", &later)]), end);
    }

    proptest! {
        /// Whatever the tags say: nothing is ended before its limit, and what is ended once stays so.
        #[test]
        fn r50_nothing_is_ended_before_its_limit(
            state in proptest::sample::select(LIVING.to_vec()),
            tag in "(used|ready|warming|[a-z]{0,8})",
            until in proptest::option::of(-1_000_000i64..2_000_000),
            age in 0u64..1_500_000,
        ) {
            let until = until.map(|seconds| {
                Timestamp::from_seconds(START.seconds() + seconds).to_string()
            });
            let mut tags = vec![("ostler:state", tag.as_str())];
            tags.extend(until.as_deref().map(|until| ("ostler:until", until)));
            let age = Duration::from_secs(age);
            let verdict = after(age, state, &tags);
            if let Verdict::End(end) = verdict {
                prop_assert!(age > 12 * HOUR && end >= START + 12 * HOUR);
                prop_assert_eq!(after(age + HOUR, state, &tags), verdict);
            } else if age > LONGEST_UNTIL {
                prop_assert_eq!(verdict, Verdict::Keep(Kept::Pool), "six days are the most");
            }
        }
    }
}
