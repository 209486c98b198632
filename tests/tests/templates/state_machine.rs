//! The state machine's laws. AWS accepts a definition that breaks most of them, and so does the emulator; they show in a
//! running execution, and there past every Catch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ostler_core::error::ERROR_TYPES;
use ostler_core::runner::LONGEST_SLOT_WAIT;
use serde_json::{Value, json};

use crate::template::{Stack, template};

/// The longest that a tier may let a runner live, and GitHub a job run.
const LIFETIME_SECONDS_MAX: u64 = 5 * 86_400;
/// How long GitHub keeps a job queued, and so how long a launch is tried.
const QUEUED_SECONDS_MAX: u64 = 86_400;
/// Minutes between checks: each once, the last one then for ever.
const CHECK_MINUTES: [u64; 5] = [1, 2, 4, 8, 15];
/// What the loops may take of the 25,000 events of history that Step Functions allows. The rest is for single retries.
const HISTORY_EVENTS_MAX: usize = 10_000;
/// The function's back-off while there is no capacity: doubled from the first to the last, with full jitter.
const BACK_OFF_SECONDS: (u64, u64) = (60, 900);

/// The definition as it is deployed.
fn definition() -> Value {
    let template = template("infra/control.yaml");
    let stack = Stack::new(&template, &[]);
    serde_json::from_str(stack.properties("StateMachine")["DefinitionString"].as_str().unwrap())
        .unwrap()
}

fn states(definition: &Value) -> BTreeMap<&str, &Value> {
    definition["States"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, state)| (name.as_str(), state))
        .collect()
}

fn of_type<'a>(definition: &'a Value, kind: &str) -> BTreeMap<&'a str, &'a Value> {
    states(definition).into_iter().filter(|(_, state)| state["Type"] == kind).collect()
}

/// Each value under `key`, anywhere inside.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key {
                    found.push(value);
                }
                all(value, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| all(item, key, found)),
        _ => {}
    }
}

fn collect<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    let mut found = vec![];
    all(value, key, &mut found);
    found
}

#[test]
fn every_next_exists_and_every_state_is_reached() {
    let definition = definition();
    let mut targets: BTreeSet<&str> = ["Next", "Default", "StartAt"]
        .iter()
        .flat_map(|key| collect(&definition, key))
        .map(|target| target.as_str().unwrap())
        .collect();
    for name in states(&definition).keys() {
        assert!(targets.remove(name), "nothing leads to {name}");
    }
    assert!(targets.is_empty(), "lead nowhere: {targets:?}");
    for (name, state) in states(&definition) {
        let ways =
            ["Next", "End", "Choices"].iter().filter(|key| state.get(*key).is_some()).count();
        assert_eq!(ways, usize::from(state["Type"] != "Fail"), "ways on from {name}");
    }
}

#[test]
fn every_error_name_is_one_of_ours_or_of_aws() {
    let definition = definition();
    let names = collect(&definition, "ErrorEquals");
    assert!(!names.is_empty());
    for name in names.into_iter().flat_map(|names| names.as_array().unwrap()) {
        let name = name.as_str().unwrap();
        assert!(
            ERROR_TYPES.contains(&name)
                || name.starts_with("States.")
                || name.starts_with("Lambda."),
            "nothing raises {name}"
        );
    }
}

/// A killed or timed-out function is `Lambda.Unknown`, a throttled one `Lambda.TooManyRequestsException`, and AWS may add
/// names: so what is not retried is named, and all else is retried.
#[test]
fn r10_r12_every_task_retries_all_but_the_permanent_and_then_cleans_up() {
    let definition = definition();
    let tasks = of_type(&definition, "Task");
    assert_eq!(
        tasks.keys().copied().collect::<Vec<_>>(),
        ["Abandon", "Check", "Cleanup", "Launch", "Register"]
    );
    for (name, task) in tasks {
        let retry = task["Retry"].as_array().unwrap();
        assert_eq!(retry[0], json!({"ErrorEquals": ["Permanent"], "MaxAttempts": 0}), "{name}");
        assert_eq!(retry.len(), 2, "{name}: the first retrier that matches is the only one");
        assert_eq!(retry[1]["ErrorEquals"], json!(["States.ALL"]), "{name}");
        assert_eq!(retry[1]["JitterStrategy"], "FULL", "{name}: or a burst retries as a burst");
        let caught = task["Catch"].as_array().unwrap();
        assert_eq!(caught.len(), 1);
        assert_eq!(caught[0]["ErrorEquals"], json!(["States.ALL"]), "{name}");
        let cleanup = if ["Cleanup", "Abandon"].contains(&name) { "Failed" } else { "Abandon" };
        assert_eq!(caught[0]["Next"], cleanup, "{name}");
        // Without it the error replaces the whole state, and the cleanup doesn't know the job.
        assert!(caught[0]["ResultPath"].as_str().unwrap().starts_with("$."), "{name}");
    }
}

/// `States.Runtime` (a path that leads nowhere) is not caught by `States.ALL`: it ends the execution with no cleanup.
#[test]
fn no_state_reads_a_path_that_may_be_missing() {
    let definition = definition();
    for (name, task) in of_type(&definition, "Task") {
        for part in ["Parameters", "ResultSelector"] {
            let mut paths = vec![];
            paths_of(&task[part], &mut paths);
            for path in paths {
                let known = ["$", "$$.Execution.Name", "$$.Execution.StartTime"].contains(&path)
                    // An Invoke without a Payload is an error of its own.
                    || (part == "ResultSelector" && path == "$.Payload");
                assert!(known, "{name}: {path} may be missing");
            }
        }
        for key in ["InputPath", "OutputPath", "TimeoutSecondsPath", "ItemsPath"] {
            assert!(task.get(key).is_none(), "{name}: {key}");
        }
    }
    for (name, choice) in of_type(&definition, "Choice") {
        let rules = choice["Choices"].as_array().unwrap();
        assert_eq!(
            rules[0],
            json!({"Variable": "$.run.state.next", "IsPresent": false, "Next": "Abandon"}),
            "{name}"
        );
        assert_eq!(choice["Default"], "Abandon", "{name}: an unknown answer");
        for rule in &rules[1..] {
            let waits = of_type(&definition, "Wait").contains_key(rule["Next"].as_str().unwrap());
            let guard = json!([
                {"Variable": "$.run.state.waitSeconds", "IsPresent": true},
                {"Variable": "$.run.state.waitSeconds", "IsNumeric": true}]);
            let guarded = rule["And"].as_array().is_some_and(|all| json!(all[1..]) == guard);
            assert_eq!(waits, guarded, "{name}: only a number leads to a Wait");
        }
    }
    for (name, wait) in of_type(&definition, "Wait") {
        assert_eq!(wait["SecondsPath"], "$.run.state.waitSeconds", "{name}");
    }
    assert_eq!(states(&definition)["Failed"]["CausePath"], "States.JsonToString($)");
}

fn paths_of<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    if let Value::Object(map) = value {
        for (key, value) in map {
            if key.ends_with(".$") {
                found.push(value.as_str().unwrap());
            }
            paths_of(value, found);
        }
    }
}

#[test]
fn every_task_hands_over_the_whole_state_and_its_step() {
    let definition = definition();
    for (name, task) in of_type(&definition, "Task") {
        let mut expected = json!({
            "step": match name { "Abandon" => "cleanup".into(), name => name.to_lowercase() },
            "runnerName.$": "$$.Execution.Name",
            "startedAt.$": "$$.Execution.StartTime",
            "job.$": "$",
        });
        if name == "Abandon" {
            expected["outcome"] = "failed".into();
        }
        assert_eq!(task["Parameters"]["Payload"], expected, "{name}");
        assert_eq!(task["ResultSelector"], json!({"state.$": "$.Payload"}), "{name}");
    }
}

/// A time-out of the whole would skip the cleanup; one of a task that is shorter than the function's would run the step
/// twice at once.
#[test]
fn time_outs_neither_skip_the_cleanup_nor_overlap_the_function() {
    let definition = definition();
    assert!(definition.get("TimeoutSeconds").is_none());
    let template = template("infra/control.yaml");
    let function = &template["Resources"]["OrchestratorFunction"]["Properties"]["Timeout"];
    for (name, task) in of_type(&definition, "Task") {
        assert!(task["TimeoutSeconds"].as_u64() > function.as_u64(), "{name}");
    }
}

/// What the function answers to one call of a step.
#[derive(Clone)]
enum Answer {
    Ok(Value),
    Error(&'static str),
}

/// What an execution did.
#[derive(Debug, Default)]
struct Run {
    entered: Vec<String>,
    retries: usize,
    events: usize,
}

/// Runs the definition against given answers by step, counting history events as Step Functions writes them: two for a
/// state, three more for a task's try, one for the start and one for the end. (Checked against the emulator's histories.)
fn run(definition: &Value, answers: impl IntoIterator<Item = (&'static str, Vec<Answer>)>) -> Run {
    let mut answers: BTreeMap<&str, VecDeque<Answer>> =
        answers.into_iter().map(|(step, answers)| (step, answers.into())).collect();
    let states = states(definition);
    let mut run = Run { events: 2, ..Run::default() };
    let mut data = json!({"jobId": 1});
    let mut name = definition["StartAt"].as_str().unwrap();
    loop {
        let state = states[name];
        run.entered.push(name.to_owned());
        run.events += if state["Type"] == "Fail" { 1 } else { 2 };
        name = match state["Type"].as_str().unwrap() {
            "Task" => {
                let step = state["Parameters"]["Payload"]["step"].as_str().unwrap();
                match invoke(state, answers.entry(step).or_default(), &mut run) {
                    Ok(payload) => {
                        data[&state["ResultPath"].as_str().unwrap()[2..]] =
                            json!({ "state": payload });
                        match state["Next"].as_str() {
                            Some(next) => next,
                            None => return run,
                        }
                    }
                    Err(_) => state["Catch"][0]["Next"].as_str().unwrap(),
                }
            }
            "Choice" => state["Choices"]
                .as_array()
                .unwrap()
                .iter()
                .find(|rule| holds(rule, &data))
                .map_or(&state["Default"], |rule| &rule["Next"])
                .as_str()
                .unwrap(),
            "Wait" => state["Next"].as_str().unwrap(),
            "Fail" => return run,
            kind => panic!("no state of type {kind} is expected"),
        };
    }
}

fn invoke(task: &Value, answers: &mut VecDeque<Answer>, run: &mut Run) -> Result<Value, ()> {
    let mut attempts = BTreeMap::<usize, u64>::new();
    loop {
        run.events += 3;
        let error = match answers.pop_front().unwrap_or(Answer::Ok(json!({"next": "done"}))) {
            Answer::Ok(payload) => return Ok(payload),
            Answer::Error(error) => error,
        };
        let retriers = task["Retry"].as_array().unwrap();
        let matching = retriers.iter().position(|retrier| {
            let names = retrier["ErrorEquals"].as_array().unwrap();
            names.contains(&error.into()) || names.contains(&"States.ALL".into())
        });
        let used = attempts.entry(matching.ok_or(())?).or_default();
        if *used >= retriers[matching.ok_or(())?]["MaxAttempts"].as_u64().unwrap() {
            return Err(());
        }
        *used += 1;
        run.retries += 1;
    }
}

fn holds(rule: &Value, data: &Value) -> bool {
    if let Some(all) = rule["And"].as_array() {
        return all.iter().all(|rule| holds(rule, data));
    }
    let path = rule["Variable"].as_str().unwrap().trim_start_matches('$').replace('.', "/");
    let value = data.pointer(&path);
    if let Some(present) = rule["IsPresent"].as_bool() {
        return value.is_some() == present;
    }
    let value = value.expect("a Choice over a missing path fails the execution");
    if let Some(text) = rule["StringEquals"].as_str() {
        return value == text;
    }
    rule["IsNumeric"].as_bool().expect("an operator that this test knows") == value.is_number()
}

fn answer(next: &str) -> Answer {
    Answer::Ok(json!({"next": next, "waitSeconds": 60}))
}

fn checks(count: usize) -> Vec<Answer> {
    let mut answers = vec![answer("wait"); count - 1];
    answers.push(answer("ended"));
    answers
}

fn happy(checked: usize) -> [(&'static str, Vec<Answer>); 3] {
    [
        ("launch", vec![answer("register")]),
        ("register", vec![answer("wait")]),
        ("check", checks(checked)),
    ]
}

#[test]
fn a_job_that_goes_well_enters_five_states_and_three_for_each_check() {
    let definition = definition();
    for checked in 1..5 {
        let run = run(&definition, happy(checked));
        assert_eq!(run.entered.len(), 5 + 3 * checked, "{:?}", run.entered);
        assert_eq!(run.retries, 0);
        // As the emulator's history has it: 30, 39, 48, …
        assert_eq!(run.events, 21 + 9 * checked);
    }
}

#[test]
fn every_fault_of_the_function_ends_in_a_cleanup() {
    let definition = definition();
    let end = |answers: Vec<(&'static str, Vec<Answer>)>| {
        let run = run(&definition, answers);
        run.entered[run.entered.len() - 2..].join(" ")
    };
    let up_to = |step: &'static str, answer: Answer| {
        let mut answers = happy(1).to_vec();
        answers.iter_mut().find(|(name, _)| *name == step).unwrap().1 = vec![answer];
        answers
    };
    for step in ["launch", "register", "check"] {
        for bad in [
            Answer::Error("Permanent"),
            Answer::Ok(json!({})),
            Answer::Ok(Value::Null),
            Answer::Ok(json!({"next": "unheard-of"})),
            Answer::Ok(json!({"next": 1})),
            Answer::Ok(json!({"next": if step == "launch" { "later" } else { "wait" }})),
            Answer::Ok(
                json!({"next": if step == "launch" { "later" } else { "wait" }, "waitSeconds": "60"}),
            ),
        ] {
            assert_eq!(end(up_to(step, bad)), "Abandon Failed", "{step}");
        }
        assert!(end(up_to(step, answer("ended"))).ends_with(" Cleanup"), "{step}");
    }
    // The cleanup itself: the rule on executions that failed is what is left.
    let run = run(
        &definition,
        [("launch", vec![answer("ended")]), ("cleanup", vec![Answer::Error("Permanent")])],
    );
    assert_eq!(run.entered, ["Launch", "Launched?", "Cleanup", "Failed"]);
}

/// Numbers that are the same in each run, spread over 0..1 well enough for a jitter.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        // Knuth's MMIX generator; its high bits are the good ones.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 32).unwrap()) / f64::from(u32::MAX)
    }
}

/// Delays with full jitter, from the first to the last doubled, until `seconds` are over: how many there were.
fn back_offs(dice: &mut Dice, (first, last): (u64, u64), seconds: u64) -> usize {
    let (mut count, mut elapsed, mut delay) = (0, 0.0, first);
    while elapsed < seconds as f64 {
        elapsed += dice.roll() * delay as f64;
        delay = (delay * 2).min(last);
        count += 1;
    }
    count
}

/// The most that came up in a thousand tries.
fn most_back_offs(delays: (u64, u64), seconds: u64) -> usize {
    let mut dice = Dice(1);
    (0..1000).map(|_| back_offs(&mut dice, delays, seconds)).max().unwrap()
}

#[test]
fn retries_last_as_long_as_there_is_hope() {
    let definition = definition();
    for (state, seconds) in
        [("Launch", QUEUED_SECONDS_MAX), ("Check", LIFETIME_SECONDS_MAX), ("Abandon", 86_400)]
    {
        let retrier = &states(&definition)[state]["Retry"][1];
        assert_eq!(retrier["BackoffRate"], 2);
        let delays = (
            retrier["IntervalSeconds"].as_u64().unwrap(),
            retrier["MaxDelaySeconds"].as_u64().unwrap(),
        );
        let needed = most_back_offs(delays, seconds);
        let attempts = retrier["MaxAttempts"].as_u64().unwrap();
        assert!(attempts >= needed as u64, "{state}: {attempts} tries, but {needed} may be needed");
    }
}

#[test]
fn the_history_of_the_longest_execution_fits() {
    let definition = definition();
    let laps = most_back_offs(BACK_OFF_SECONDS, QUEUED_SECONDS_MAX);
    let mut checked = 0;
    let mut elapsed = 0;
    while elapsed < LIFETIME_SECONDS_MAX {
        elapsed += 60 * CHECK_MINUTES[checked.min(CHECK_MINUTES.len() - 1)];
        checked += 1;
    }
    // The worst day of back-off: each time there is an instance, and GitHub won't register it.
    let worst = |faults: &dyn Fn(&str) -> Vec<Answer>| {
        let mut register = vec![answer("later"); laps];
        register.push(answer("wait"));
        let after = |step: &str, answers: Vec<Answer>| [faults(step), answers].concat();
        run(
            &definition,
            [
                ("launch", after("Launch", vec![answer("register"); laps + 1])),
                ("register", after("Register", register)),
                ("check", after("Check", checks(checked))),
                ("cleanup", faults("Cleanup")),
            ],
        )
    };
    let loops = worst(&|_| vec![]);
    assert!(loops.entered.ends_with(&["Checked?".into(), "Cleanup".into()]));
    assert!(
        loops.events < HISTORY_EVENTS_MAX,
        "{} events, {laps} laps, {checked} checks",
        loops.events
    );

    // A day of waiting for one of the tier's places: shorter waits, without a machine.
    let mut dice = Dice(1);
    let mut slot_laps = |_| {
        let (mut laps, mut elapsed) = (0, 0.0);
        while elapsed < QUEUED_SECONDS_MAX as f64 {
            elapsed += LONGEST_SLOT_WAIT.as_secs_f64() * (1.0 + dice.roll()) / 2.0;
            laps += 1;
        }
        laps
    };
    let laps = (0..1000).map(&mut slot_laps).max().unwrap();
    let mut launch = vec![answer("later"); laps];
    launch.push(answer("register"));
    let waits = run(
        &definition,
        [
            ("launch", launch),
            ("register", vec![answer("wait")]),
            ("check", checks(checked)),
            ("cleanup", vec![]),
        ],
    );
    assert!(waits.events < HISTORY_EVENTS_MAX, "{} events, {laps} laps", waits.events);

    // All of that although a day and five days of retries leave no time for it: still far from 25,000.
    let retried = worst(&|state| {
        let attempts = states(&definition)[state]["Retry"][1]["MaxAttempts"].as_u64().unwrap();
        vec![Answer::Error("Transient"); usize::try_from(attempts).unwrap()]
    });
    assert_eq!(retried.entered, loops.entered);
    assert!(retried.events < 2 * HISTORY_EVENTS_MAX, "{} events", retried.events);
}
