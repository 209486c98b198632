//! A batch as a whole: runners side by side, each group in order, and what was read once.

use std::time::Duration;

use ostler_core::debts::{Debts, Payment};
use ostler_core::job::JobId;
use ostler_core::ports::{Ledger, Ran};
use ostler_core::stolen;
use ostler_sim::ec2::Span;
use ostler_sim::github::JobSpec;
use ostler_sim::world::{Plan, Progress, Strike};
use serde_json::{Value, json};

use crate::rules::input;
use crate::scene::{Mine, OTHER, Scene, record, with_gpu};

const LATENCY: Duration = Duration::from_millis(100);

/// Every port call takes as long.
fn slow(scene: &Scene) {
    scene.world.state().latency = Span { least: LATENCY, most: LATENCY };
}

fn id(job: u64) -> JobId {
    JobId(i64::try_from(job).unwrap())
}

fn batch(records: &[Value]) -> Value {
    json!({ "Records": records })
}

fn failed(answer: &Value) -> Vec<String> {
    let failures = answer["batchItemFailures"].as_array().unwrap();
    failures.iter().map(|it| it["itemIdentifier"].as_str().unwrap().to_owned()).collect()
}

/// Jobs of which each took the runner of the next: one chain, whose last runner is still to come.
fn chain(scene: &Scene, length: usize) -> Vec<Mine> {
    let jobs: Vec<Mine> = (0..length).map(|_| scene.accept(&Scene::small())).collect();
    for pair in jobs.windows(2) {
        scene.takes(&pair[0].runner, pair[1].job);
    }
    jobs
}

#[test]
fn runners_are_judged_side_by_side() {
    let alone = {
        let scene = Scene::new();
        let jobs = chain(&scene, 2);
        slow(&scene);
        let before = scene.world.state().now;
        assert!(!scene.judge(&scene.signed(&jobs[0].runner, jobs[1].job), 1));
        scene.world.state().now.since(before)
    };
    let scene = Scene::new();
    let pairs: Vec<_> = (0..10).map(|_| chain(&scene, 2)).collect();
    let records: Vec<_> = pairs
        .iter()
        .map(|pair| record(&pair[0].runner, &scene.signed(&pair[0].runner, pair[1].job), 1))
        .collect();
    slow(&scene);
    let before = scene.world.state().now;
    assert!(failed(&scene.handle(&batch(&records)).unwrap()).is_empty());
    assert_eq!(scene.world.state().now.since(before), alone, "ten take as long as one");
    assert!(pairs.iter().all(|pair| scene.ran(&pair[0].runner) != Ran::Unknown));
}

#[test]
fn a_batch_reads_every_item_once_however_long_the_chain_is() {
    let scene = Scene::new();
    let jobs = chain(&scene, 11);
    let records: Vec<_> = jobs
        .windows(2)
        .map(|pair| record(&pair[0].runner, &scene.signed(&pair[0].runner, pair[1].job), 1))
        .collect();
    slow(&scene);
    assert!(failed(&scene.handle(&batch(&records)).unwrap()).is_empty());
    let calls = |name| scene.world.count("stolen-runner", name);
    assert_eq!(calls("Ledger.account"), 10);
    assert!(calls("Ledger.job") <= 10, "{}", calls("Ledger.job"));
    assert!(calls("Ledger.runner") <= 10, "{}", calls("Ledger.runner"));
    assert!(calls("Executions.describe") <= 11, "{}", calls("Executions.describe"));
    assert!(scene.replacements(&jobs.iter().collect::<Vec<_>>()).is_empty());
}

#[test]
fn sq_10_b7_a_group_is_judged_in_order_though_its_first_record_is_slow() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &a);
    let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
    scene.takes(&a.runner, thief);
    scene.takes(&b.runner, b.job);
    let event = batch(&[
        record("m-1", &scene.signed(&a.runner, thief), 1),
        record("m-2", &scene.signed(&a.runner, thief), 1),
        record("m-3", &scene.signed(&b.runner, b.job), 1),
    ]);
    slow(&scene);
    // The first one of the group fails in its last call, long after the other group is done with.
    scene.world.state().plan = Plan::next("Executions.start", 1, Strike::Before);
    assert_eq!(failed(&scene.handle(&event).unwrap()), ["m-1", "m-2"]);
    assert_eq!(scene.world.count("stolen-runner", "Executions.start"), 1, "m-2 was not judged");
    assert!(scene.replacements(&[&a, &b]).is_empty());
    assert!(matches!(scene.ran(&b.runner), Ran::Job { .. }));
    // They come again, in their order, and nothing is started twice.
    assert!(failed(&scene.handle(&event).unwrap()).is_empty());
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", a.runner)]);
}

#[test]
fn a_group_that_holds_signed_words_and_lines_keeps_its_order() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::strange());
    scene.takes(&mine.runner, thief);
    // As another system sends its lines: in the runner's group.
    let mut line = record("m-1", &scene.line(&mine.runner, thief), 1);
    line["attributes"]["MessageGroupId"] = json!(mine.runner);
    let signed = record("m-2", &scene.signed(&mine.runner, thief), 1);
    let answer = scene.handle(&batch(&[line, signed])).unwrap();
    assert_eq!(failed(&answer), ["m-1", "m-2"], "the line is deferred, and what follows it too");
    assert_eq!(scene.ran(&mine.runner), Ran::Unknown);
}

#[test]
fn two_losses_with_one_debtor_pay_once_side_by_side() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &b);
    let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
    // a's runner has b's job, and b's runner a stranger's: both losses are a's, which waits.
    scene.takes(&a.runner, b.job);
    scene.takes(&b.runner, thief);
    slow(&scene);
    let event = batch(&[
        record("m-1", &scene.signed(&a.runner, b.job), 1),
        record("m-2", &scene.signed(&b.runner, thief), 1),
    ]);
    assert!(failed(&scene.handle(&event).unwrap()).is_empty());
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", a.runner)]);
    assert!((scene.detected("true") - 1.0).abs() < 0.1, "told once");
    assert!((scene.world.metric("ReplacementStarted") - 1.0).abs() < 0.1);
    assert_eq!(scene.world.count("stolen-runner", "Executions.start"), 1);
}

#[test]
fn who_waits_for_a_payment_that_fails_pays_itself() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    with_gpu(&scene, &b);
    let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
    scene.takes(&a.runner, b.job);
    scene.takes(&b.runner, thief);
    slow(&scene);
    let event = batch(&[
        record("m-1", &scene.signed(&a.runner, b.job), 1),
        record("m-2", &scene.signed(&b.runner, thief), 1),
    ]);
    scene.world.state().plan = Plan::next("Executions.start", 1, Strike::Before);
    assert_eq!(failed(&scene.handle(&event).unwrap()).len(), 1);
    assert_eq!(scene.replacements(&[&a, &b]), [format!("{}-r1", a.runner)]);
}

/// What was read before may be out of date when a debt is paid.
#[test]
fn f13_supply_that_came_since_it_was_last_looked_for_is_seen_before_a_payment() {
    let scene = Scene::new();
    let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
    let settings = scene.world.current_settings();
    let debts = Debts::new(&scene.world, &settings).unwrap();
    let own = input(&scene, &a.runner);
    let lost = Some(a.runner.as_str());
    let supplied = || scene.world.run("test", debts.supplied(&own, lost)).unwrap().unwrap();
    assert!(!supplied(), "nothing is known of what its runner ran");
    // Somebody else learns that it was a shuffle.
    let ran = Ran::Job { id: id(b.job), repository: Some("acme/widgets".into()) };
    let now = scene.world.state().now;
    let noted = scene.world.account(&a.runner, &ran, now, now + Duration::from_secs(86_400));
    scene.world.run("another", noted).unwrap().unwrap();
    assert!(!supplied(), "what was read is not read again");
    let paid = scene.world.run("test", debts.pay(&own, lost, false)).unwrap().unwrap();
    assert_eq!(paid, Payment::Supplied);
    assert!(scene.replacements(&[&a, &b]).is_empty());
}

#[test]
fn a_runner_whose_execution_ended_since_it_was_last_looked_at_is_no_supply() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let settings = scene.world.current_settings();
    let debts = Debts::new(&scene.world, &settings).unwrap();
    let own = input(&scene, &mine.runner);
    assert!(scene.world.run("test", debts.supplied(&own, None)).unwrap().unwrap());
    // It is aborted, and its cleanup has not begun.
    scene.ends(&mine.runner);
    let paid = scene.world.run("test", debts.pay(&own, None, false)).unwrap().unwrap();
    assert_eq!(paid, Payment::Started(format!("{}-r1", mine.runner)));
}

#[test]
fn both_reports_of_a_theft_in_one_batch_cause_one_replacement() {
    for fails in [false, true] {
        let scene = Scene::new();
        let mine = scene.accept(&Scene::small());
        with_gpu(&scene, &mine);
        let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
        scene.takes(&mine.runner, thief);
        slow(&scene);
        let event = batch(&[
            record("line", &scene.line(&mine.runner, thief), 1),
            record("signed", &scene.signed(&mine.runner, thief), 1),
        ]);
        if fails {
            scene.world.state().plan = Plan::next("Executions.start", 1, Strike::Before);
        }
        // Where the one can't be judged, the other is.
        let wanted: &[&str] = if fails { &["signed"] } else { &[] };
        assert_eq!(failed(&scene.handle(&event).unwrap()), wanted);
        assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
        assert!((scene.detected("true") - 1.0).abs() < 0.1);
    }
}

#[test]
fn what_no_time_changes_is_not_read_again_for_a_payment() {
    let scene = Scene::new();
    let jobs = chain(&scene, 6);
    let last = jobs.last().unwrap();
    let reports: Vec<_> = jobs
        .windows(2)
        .map(|pair| record(&pair[0].runner, &scene.signed(&pair[0].runner, pair[1].job), 1))
        .collect();
    // The last runner dies: the first job waits, and the end of the chain is not known to be lost until a payment.
    scene.ends(&last.runner);
    assert!(failed(&scene.handle(&batch(&reports)).unwrap()).is_empty());
    assert_eq!(
        scene.replacements(&jobs.iter().collect::<Vec<_>>()),
        [format!("{}-r1", jobs[0].runner)]
    );
    // Each of five payments looks at every job of the chain, and of the runners at the last one alone.
    let reads = scene.world.count("stolen-runner", "Ledger.runner");
    assert!(reads <= 5 + 5 + 5, "{reads}");
}

#[test]
fn sq_09_a_report_that_is_deferred_is_not_sent_again_but_comes_back_by_itself() {
    let scene = Scene::new();
    let mine = scene.accept(&Scene::small());
    let thief = scene.post(&Scene::small());
    scene.takes(&mine.runner, thief);
    let report = scene.signed(&mine.runner, thief);
    let sent = ostler_core::ports::ReportQueue::send(&scene.world, &report);
    scene.world.run("webhook", sent).unwrap().unwrap();
    let mut received = 0;
    for wait in [61, 181] {
        scene.world.pass(Duration::from_secs(wait));
        let message = {
            let mut state = scene.world.state();
            let state = &mut *state;
            let (mut all, _) = state.reports.receive(state.now, 10, None, &mut state.rng).unwrap();
            all.pop().unwrap()
        };
        received += 1;
        assert_eq!(message.receive_count, received);
        // Its own event may be late until four minutes after it was queued; then it is judged.
        assert_eq!(scene.judge(&report, message.receive_count), received == 1);
    }
    assert_eq!(scene.world.count("stolen-runner", "Reports"), 0, "nothing was sent");
    assert_eq!(scene.replacements(&[&mine]), [format!("{}-r1", mine.runner)]);
}

#[test]
fn a_batch_that_is_cut_off_anywhere_is_made_up_for_when_it_comes_again() {
    for strike in Strike::ALL {
        let mut number = 0;
        loop {
            number += 1;
            let scene = Scene::new();
            let (a, b) = (scene.accept(&Scene::small()), scene.accept(&Scene::small()));
            let c = scene.accept(&Scene::small());
            with_gpu(&scene, &b);
            let thief = scene.post(&JobSpec::new(OTHER, &["self-hosted", "gpu"]));
            scene.takes(&a.runner, b.job);
            scene.takes(&b.runner, thief);
            scene.takes(&c.runner, c.job);
            slow(&scene);
            let records = [
                record("m-1", &scene.signed(&a.runner, b.job), 1),
                record("m-2", &scene.signed(&b.runner, thief), 1),
                record("m-3", &scene.signed(&c.runner, c.job), 1),
                record("m-4", &scene.line(&c.runner, c.job), 1),
            ];
            scene.world.state().plan = Plan::call(number, strike);
            let event = batch(&records);
            let mut left = event.clone();
            for _ in 0..3 {
                let work = stolen::handle(&scene.world, &left, || true);
                // An answer that never came, or an error, has the whole batch delivered again.
                if let Some(Ok(answer)) = scene.world.run("stolen-runner", work) {
                    let failed = failed(&answer);
                    let again = |record: &&Value| {
                        failed.iter().any(|id| record["messageId"] == id.as_str())
                    };
                    left = batch(&records.iter().filter(again).cloned().collect::<Vec<_>>());
                }
            }
            let at = format!("{strike:?} at call {number}");
            assert_eq!(left, batch(&[]), "{at}");
            assert_eq!(scene.replacements(&[&a, &b, &c]), [format!("{}-r1", a.runner)], "{at}");
            assert!(
                matches!(scene.ran(&c.runner), Ran::Job { id: ran, .. } if ran == id(c.job)),
                "{at}"
            );
            if !scene.world.state().plan.is_over() {
                break;
            }
        }
        assert!(number > 10, "{number}");
    }
}

#[test]
fn a_batch_that_is_cut_off_does_nothing_more() {
    let scene = Scene::new();
    let jobs: Vec<_> = (0..3).map(|_| scene.accept(&Scene::small())).collect();
    for mine in &jobs {
        scene.takes(&mine.runner, mine.job);
    }
    let records: Vec<_> = jobs
        .iter()
        .map(|mine| record(&mine.runner, &scene.signed(&mine.runner, mine.job), 1))
        .collect();
    slow(&scene);
    scene.world.state().plan = Plan::nth("Ledger.account", 2, Strike::CutBefore);
    let event = batch(&records);
    let mut work = std::pin::pin!(stolen::handle(&scene.world, &event, || true));
    loop {
        match scene.world.poll(work.as_mut()) {
            Progress::Sleeps(until) => scene.world.pass_until(until),
            Progress::Killed => break,
            Progress::Done(answer) => panic!("{answer:?}"),
        }
    }
    let accounted = jobs.iter().filter(|mine| scene.ran(&mine.runner) != Ran::Unknown).count();
    assert_eq!(accounted, 1);
}
