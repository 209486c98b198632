//! Stories from records.

use ostler_core::job::RunnerInput;
use ostler_core::ports::Block;
use ostler_core::runner::RunState;
use serde_json::json;

use super::*;

const NAME: &str = "widgets-42-0123456789ab";

fn at(minute: i64) -> Timestamp {
    Timestamp::from_seconds(1_764_504_000 + 60 * minute)
}

fn input() -> RunnerInput {
    serde_json::from_value(json!({"owner": "acme", "repo": "widgets", "jobId": 42, "provider": "small",
        "labels": "self-hosted,linux,x64,small", "jobLabels": "self-hosted,small", "maxIdleSeconds": 300,
        "queuedAt": at(0).to_string()}))
    .unwrap()
}

fn answer(minute: i64, name: &str, next: &str, state: RunState) -> Step {
    Step { at: at(minute), name: name.into(), outcome: Ok(Answer { next: next.into(), state }) }
}

fn later(minute: i64, reason: &str) -> Step {
    let state = RunState { wait_seconds: 90, reason: Some(reason.into()), ..RunState::default() };
    answer(minute, "Launch", "later", state)
}

fn failed(minute: i64, name: &str, why: &str) -> Step {
    Step { at: at(minute), name: name.into(), outcome: Err(why.into()) }
}

fn launched() -> RunState {
    RunState { instance: Some("i-1".into()), launched_at: Some(at(1)), ..RunState::default() }
}

fn registered() -> RunState {
    RunState { runner_id: Some(7), ..launched() }
}

/// A runner's life so far.
fn execution(status: &str, steps: Vec<Step>) -> ExecutionSeen {
    let stopped = (status != "RUNNING").then(|| at(20));
    ExecutionSeen {
        status: status.into(),
        started: at(0) + Duration::from_secs(2),
        stopped,
        input: Some(input()),
        failure: None,
        steps,
        more: false,
    }
}

fn booted() -> Vec<Step> {
    vec![answer(1, "Launch", "register", launched()), answer(1, "Register", "wait", registered())]
}

fn ended(reason: &str) -> Vec<Step> {
    let over = RunState { reason: Some(reason.into()), ..registered() };
    let mut steps = booted();
    steps.push(answer(19, "Check", "ended", over.clone()));
    steps.push(answer(20, "Cleanup", "done", over));
    steps
}

fn runner(name: &str, execution: ExecutionSeen) -> RunnerSeen {
    RunnerSeen {
        name: name.into(),
        item: Ok(Some(RunnerItem { id: Some(7), ..RunnerItem::default() })),
        execution: Ok(Some(execution)),
        machines: Ok(Some(Vec::new())),
        log: Ok(Some(Vec::new())),
        said: Ok(Some(Vec::new())),
    }
}

fn ran(name: &str, job: &str, execution: ExecutionSeen) -> RunnerSeen {
    let item =
        RunnerItem { ran: Some(job.into()), accounted: Some(at(4)), ..RunnerItem::default() };
    RunnerSeen { item: Ok(Some(item)), ..runner(name, execution) }
}

fn records(runners: Vec<RunnerSeen>) -> Records {
    let latest = runners.last().map(|seen| seen.name.clone());
    let job = latest.map(|latest| JobItem {
        runner: Some(latest),
        tier: Some("small".into()),
        repository: Some("acme/widgets".into()),
        queued: Some(at(0)),
        ..JobItem::default()
    });
    Records {
        now: at(30),
        asked: "job 42".into(),
        job_id: Some(42),
        forge: Ok(None),
        job: Ok(job),
        runners,
        blocks: Ok(Some(Vec::new())),
        said: Ok(Some(Vec::new())),
    }
}

fn forge(status: &str, runner: Option<&str>) -> Looked<ForgeSeen> {
    let runner = runner.map(str::to_owned);
    Ok(Some(ForgeSeen { status: status.into(), runner, labels: "self-hosted,small".into() }))
}

fn texts(story: &Story) -> Vec<&str> {
    story.lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn a_job_that_went_well_is_told_from_its_queueing_to_its_runners_end() {
    let mut seen = ran(NAME, "42", execution("SUCCEEDED", ended("ran a job")));
    seen.machines = Ok(Some(vec![MachineSeen {
        id: "i-1".into(),
        instance_type: "m7i.large".into(),
        spot: true,
        zone: "eu-west-1a".into(),
        state: "terminated".into(),
        launched: Some(at(1)),
        reason: None,
    }]));
    let say = |minute, text: &str| Said {
        at: at(minute),
        who: "runners".into(),
        level: String::new(),
        text: text.into(),
    };
    seen.log = Ok(Some(vec![
        say(3, "CDKGHR JOB RUNNER=widgets-42-0123456789ab REPO=acme/widgets WORKFLOW_ID=9"),
        say(18, r#"{"ostler":"ended","reason":"done","days":3}"#),
    ]));
    let story = tell(&Records { forge: forge("completed", Some(NAME)), ..records(vec![seen]) });
    let texts = texts(&story);
    assert_eq!(
        texts,
        [
            "GitHub queued the job of acme/widgets, which asks for self-hosted,small",
            "a runner of tier small was started for the job, 2 s after it was created",
            "i-1 was launched",
            "it was registered at GitHub as 7",
            "EC2 started i-1 (m7i.large, spot, eu-west-1a)",
            "its machine says that it was given a job: RUNNER=widgets-42-0123456789ab REPO=acme/widgets WORKFLOW_ID=9",
            "it is proved to have run its own job",
            "its machine ended: done",
            "a check found it over: ran a job",
            "it was cleaned up",
            "GitHub calls the job completed on widgets-42-0123456789ab",
            "EC2 calls i-1 terminated; it cost about 0.0128 USD so far",
        ]
    );
    assert!(story.lines.iter().filter_map(|line| line.at).is_sorted());
    let outcome = story.outcome;
    assert_eq!((outcome.tone, outcome.remedy), (Tone::Well, None));
    assert_eq!(outcome.text, format!("The job ran on {NAME}."));
}

#[test]
fn launches_that_wait_are_told_once_with_how_often_and_what_to_do() {
    for (reason, acts) in [
        ("Capacity: InsufficientInstanceCapacity", false),
        ("Quota: VcpuLimitExceeded", true),
        ("MaxRunners: all 5 places of the tier are taken", false),
        ("Configuration: the tier does not exist", true),
        ("Blocked: GroupFull: the group has its 10,000 runners", false),
        ("GroupUnknown: there is no group fast", true),
        ("NotAllowed: grant the App …", true),
    ] {
        let steps = (1..6).map(|minute| later(minute, reason)).collect();
        let story = tell(&records(vec![runner(NAME, execution("RUNNING", steps))]));
        let texts = texts(&story);
        let told: Vec<_> = texts.iter().filter(|text| text.contains(reason)).collect();
        assert_eq!(told.len(), 1, "{texts:?}");
        assert!(texts.contains(&"Launch: 5 times in all"), "{texts:?}");
        let outcome = story.outcome;
        assert!(outcome.text.contains("waits for its launch") && outcome.text.contains(reason));
        assert!(
            outcome.text.contains(&(at(5) + Duration::from_secs(90)).to_string()),
            "{}",
            outcome.text
        );
        assert!(outcome.remedy.is_some_and(|it| it.len() > 20), "{reason}");
        assert_eq!(outcome.tone == Tone::Bad, acts, "{reason}");
    }
}

#[test]
fn what_fails_again_and_again_is_told_once_and_names_the_cause() {
    let steps = vec![
        failed(1, "Register", "Later: control/app-private-key is not set"),
        failed(2, "Register", "Later: control/app-private-key is not set"),
        failed(3, "Register", "Later: control/app-private-key is not set"),
    ];
    let mut all = vec![answer(1, "Launch", "register", launched())];
    all.extend(steps);
    let story = tell(&records(vec![runner(NAME, execution("RUNNING", all))]));
    let texts = texts(&story);
    assert_eq!(texts.iter().filter(|text| text.contains("is not set")).count(), 1, "{texts:?}");
    assert!(texts.contains(&"Register: 3 times in all"), "{texts:?}");
    assert_eq!(story.outcome.tone, Tone::Bad);
    assert!(story.outcome.text.contains("control/app-private-key"), "{}", story.outcome.text);
}

#[test]
fn st_a_stolen_runner_and_its_replacement_are_told_in_order() {
    let replacement = format!("{NAME}-r1");
    let mut second = execution("RUNNING", booted());
    second.started = at(6);
    let all = vec![
        ran(NAME, "77", execution("SUCCEEDED", ended("ran a job"))),
        runner(&replacement, second),
    ];
    let story = tell(&Records { forge: forge("queued", None), ..records(all) });
    let texts = texts(&story);
    let place = |text: &str| {
        texts.iter().position(|it| it.contains(text)).unwrap_or_else(|| panic!("{text}: {texts:?}"))
    };
    assert!(place("another job, 77") < place("in place of one that was lost"));
    assert_eq!(story.outcome.text, format!("{replacement} is registered, and its machine boots."));
    // By itself, the first one's story says what became of it.
    let one = ran(NAME, "77", execution("SUCCEEDED", ended("ran a job")));
    let mut alone = records(vec![one]);
    alone.job = Ok(Some(JobItem { runner: Some(replacement.clone()), ..JobItem::default() }));
    let story = tell(&alone);
    assert!(story.outcome.text.contains("was given another job (77)"), "{}", story.outcome.text);
    assert!(
        story
            .lines
            .iter()
            .any(|line| line.text == format!("the job's latest runner is {replacement}"))
    );
}

#[test]
fn a_job_on_a_runner_that_was_not_started_for_it_is_well() {
    let seen = ran(NAME, "43", execution("SUCCEEDED", ended("ran a job")));
    let story = tell(&Records {
        forge: forge("in progress", Some("widgets-43-ba9876543210")),
        ..records(vec![seen])
    });
    assert_eq!(story.outcome.tone, Tone::Well);
    assert!(story.outcome.text.contains("runs on widgets-43-ba9876543210"));
}

#[test]
fn each_end_without_a_job_names_its_cause_and_a_cure() {
    for (reason, acts) in [
        ("idle", false),
        ("boot time-out", true),
        ("lifetime", true),
        ("hung", false),
        ("stopped", false),
        ("unregistered", false),
        ("vanished", false),
        ("ran nothing", false),
        ("no machine for 24 h", true),
        ("the name is taken", true),
    ] {
        let story = tell(&records(vec![runner(NAME, execution("SUCCEEDED", ended(reason)))]));
        let outcome = story.outcome;
        assert!(outcome.text.contains(reason), "{}", outcome.text);
        assert!(outcome.remedy.is_some(), "{reason}");
        assert_eq!(outcome.tone == Tone::Bad, acts, "{reason}");
    }
}

#[test]
fn the_machines_last_word_goes_before_what_a_check_saw() {
    for (word, cure) in [
        ("no-handoff", "boot time-out"),
        ("runner-checksum", "RunnerSha256"),
        ("runner-deprecated", "RunnerVersion"),
        ("no-credentials", "instance profile"),
        ("killed-9", "log"),
        ("runner-exit-1", "log"),
    ] {
        let mut seen = runner(NAME, execution("SUCCEEDED", ended("ran nothing")));
        let text = json!({"ostler": "ended", "reason": word, "days": 1}).to_string();
        seen.log =
            Ok(Some(vec![Said { at: at(5), who: "runners".into(), level: String::new(), text }]));
        let outcome = tell(&records(vec![seen])).outcome;
        assert!(outcome.text.contains(word), "{}", outcome.text);
        assert!(
            outcome.remedy.as_deref().is_some_and(|it| it.contains(cure)),
            "{word}: {:?}",
            outcome.remedy
        );
    }
}

#[test]
fn a_stopped_execution_is_told_with_its_cause() {
    for (status, word) in
        [("ABORTED", "stopped from outside"), ("FAILED", "failed"), ("TIMED_OUT", "timed out")]
    {
        let mut execution = execution(status, booted());
        execution.failure = Some("Operator: a test".into());
        let story = tell(&records(vec![runner(NAME, execution)]));
        assert_eq!(story.outcome.tone, Tone::Bad);
        assert!(
            story.outcome.text.contains(word) && story.outcome.text.contains("Operator: a test")
        );
    }
}

#[test]
fn cancelled_held_and_completed_jobs_owe_nothing() {
    let mut cancelled = records(vec![runner(NAME, execution("SUCCEEDED", ended("cancelled")))]);
    cancelled.job =
        cancelled.job.map(|job| job.map(|job| JobItem { cancelled: Some(at(2)), ..job }));
    let story = tell(&cancelled);
    assert!(story.outcome.text.contains("over before a runner had it"), "{}", story.outcome.text);
    assert!(texts(&story).contains(&"the job was over before a runner had it"));
    let held = Records { forge: forge("held", None), ..records(vec![]) };
    assert!(tell(&held).outcome.text.contains("an approval"));
    let over = Records { forge: forge("completed", None), ..records(vec![]) };
    assert_eq!(tell(&over).outcome.tone, Tone::Plain);
}

#[test]
fn a_job_for_which_nothing_was_started_is_explained_by_the_webhooks_words() {
    let said = |text: &str| Said {
        at: at(1),
        who: "webhook".into(),
        level: "INFO".into(),
        text: text.into(),
    };
    for (text, cure) in [
        ("no runner is started; reason: NoTier", "tier"),
        ("no runner is started; reason: NotSelfHosted", "self-hosted"),
        ("no runner is started; reason: NotAllowed", "allow list"),
        ("no runner is started; reason: Public", "public"),
        ("no runner is started: the job's deployment waits for approval", "approval"),
    ] {
        let refused = Records { said: Ok(Some(vec![said(text)])), ..records(vec![]) };
        let outcome = tell(&refused).outcome;
        assert!(outcome.text.contains(text), "{}", outcome.text);
        assert!(outcome.remedy.as_deref().is_some_and(|it| it.contains(cure)), "{text}");
    }
    let unheard = tell(&records(vec![])).outcome;
    assert_eq!(unheard.tone, Tone::Odd);
    assert!(unheard.text.contains("Nothing is known of job 42"));
    assert!(unheard.remedy.is_some_and(|it| it.contains("recent deliveries")));
}

#[test]
fn i6_what_could_not_be_looked_up_is_said_and_proves_nothing() {
    let denied = || "AccessDeniedException: no".to_owned();
    let mut unknown = records(vec![]);
    unknown.job = Err(denied());
    let story = tell(&unknown);
    assert!(texts(&story)[0].contains("could not be looked up: AccessDeniedException"));
    assert!(story.outcome.text.contains("may not be all"), "{}", story.outcome.text);
    // It does not make a bad end look better, nor a good one certain.
    let mut seen = ran(NAME, "42", execution("SUCCEEDED", ended("ran a job")));
    seen.item = Err(denied());
    let outcome = tell(&records(vec![seen])).outcome;
    assert_ne!(outcome.tone, Tone::Well);
    assert!(outcome.text.contains("the ledger could not be looked up"), "{}", outcome.text);
    let mut seen = runner(NAME, execution("RUNNING", booted()));
    seen.execution = Err(denied());
    assert_eq!(tell(&records(vec![seen])).outcome.tone, Tone::Odd);
    // Each of the others is said too.
    let mut seen = runner(NAME, execution("RUNNING", booted()));
    (seen.machines, seen.log, seen.said) = (Err(denied()), Err(denied()), Err(denied()));
    let all = Records {
        forge: Err(denied()),
        blocks: Err(denied()),
        said: Err(denied()),
        ..records(vec![seen])
    };
    let story = tell(&all);
    let gaps = texts(&story).iter().filter(|text| text.contains("could not be looked up")).count();
    assert_eq!(gaps, 6, "{:?}", texts(&story));
}

#[test]
fn what_github_has_put_off_is_told_while_it_lasts() {
    let block = |minute| Block { until: at(minute), reason: "RateLimit: secondary".into() };
    let blocked = Records { blocks: Ok(Some(vec![block(40), block(20)])), ..records(vec![]) };
    let story = tell(&blocked);
    let told: Vec<_> =
        texts(&story).into_iter().filter(|text| text.contains("launches wait until")).collect();
    assert_eq!(told, [format!("launches wait until {}: RateLimit: secondary", at(40))]);
}

#[test]
fn a_runner_that_is_idle_while_it_lives_says_what_may_be_wrong() {
    let idle =
        RunState { claimed: true, online_at: Some(at(3)), idle_at: Some(at(3)), ..registered() };
    let mut steps = booted();
    steps.push(answer(4, "Check", "wait", idle));
    let story = tell(&records(vec![runner(NAME, execution("RUNNING", steps))]));
    assert!(texts(&story).contains(&"its machine has claimed its registration"));
    assert!(story.outcome.text.contains("waits for its job"));
    assert!(story.outcome.remedy.is_some_and(|it| it.contains("runner group")));
}

#[test]
fn se_untrusted_words_are_bounded_and_move_no_terminal() {
    let mut seen = runner(NAME, execution("RUNNING", booted()));
    let text = format!("\u{1b}[2J\r\n{}", "x".repeat(100_000));
    seen.log =
        Ok(Some(vec![Said { at: at(5), who: "runners".into(), level: String::new(), text }]));
    let story = tell(&records(vec![seen]));
    for line in &story.lines {
        assert!(line.text.chars().count() < 400 && !line.text.chars().any(char::is_control));
    }
}

#[test]
fn spans_are_told_in_two_units() {
    let told = [0, 59, 61, 3_600, 3_661, 90_000].map(|seconds| span(Duration::from_secs(seconds)));
    assert_eq!(told, ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 h 1 min", "1 d 1 h"]);
}
