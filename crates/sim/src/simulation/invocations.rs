//! Invocations of the functions: what each handler does with its use case, and who gets the answer.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ostler_core::error::Result;
use ostler_core::instances::{self, Handled, InstanceEvent};
use ostler_core::ports::Configuration;
use ostler_core::runner::{self, StepEvent};
use ostler_core::time::Timestamp;
use ostler_core::{reaper, reconciler, stolen, webhook};
use rand::Rng;
use serde_json::{Value, json};

use super::deliveries::Delivery;
use super::{Event, Simulation};
use crate::world::{OWNER, Progress, World};

/// Lambda tries an asynchronous invocation twice more, after one minute and two (Lambda guide,
/// "Asynchronous invocation").
const ORPHAN_TRIES: u32 = 2;

/// How often a delivery of the log is tried again.
const LINES_TRIES: u32 = 3;

/// How often an event of an instance is received, and the pause between (`infra/recovery.yaml`).
const TOLD_TRIES: u32 = 15;
const TOLD_PAUSE: Duration = Duration::from_secs(60);

/// Messages of one batch.
const BATCH: usize = 10;

/// Time-outs of the functions (`infra/control.yaml`).
const fn timeout(purpose: &Purpose) -> Duration {
    match purpose {
        Purpose::Webhook(_) => Duration::from_secs(15),
        Purpose::Step(_) | Purpose::Orphan(..) => Duration::from_secs(60),
        Purpose::Reports(_) | Purpose::Lines(..) => Duration::from_secs(120),
        Purpose::Others(_) => Duration::from_secs(15),
        Purpose::Sweep => Duration::from_secs(300),
        Purpose::Reconcile => Duration::from_secs(240),
        Purpose::Told(..) => Duration::from_secs(30),
        // It ends as the one that it repeats.
        Purpose::Nobody => Duration::from_secs(60),
    }
}

/// Whom an invocation serves.
pub(super) enum Purpose {
    /// Nobody: it repeats another, and its answer is not looked at.
    Nobody,
    /// A delivery.
    Webhook(Box<Delivery>),
    /// A step of an execution.
    Step(String),
    /// The cleanup of an execution that ended otherwise than well.
    Orphan(Value, u32),
    /// Messages of the report queue: ids and receipt handles.
    Reports(Vec<(String, String)>),
    /// A delivery of the runners' log.
    Lines(Value, u32),
    /// Others, who have called that function; nobody waits for the answer.
    Others(&'static str),
    /// The reaper's schedule.
    Sweep,
    /// The reconciler's schedule.
    Reconcile,
    /// What EC2 tells of an instance, and how often that was received.
    Told(Value, u32),
}

/// A function at work.
pub(super) struct Invocation {
    number: u64,
    caller: &'static str,
    purpose: Purpose,
    /// Then it is cut off.
    deadline: Timestamp,
    work: Pin<Box<dyn Future<Output = Result<Value>>>>,
}

impl Simulation {
    /// Invokes a function.
    pub(super) fn invoke(&mut self, caller: &'static str, purpose: Purpose, event: Value) {
        self.invocations += 1;
        let number = self.invocations;
        let deadline = self.now() + timeout(&purpose);
        let again = self.repeated.contains(&number).then(|| self.work(&purpose, event.clone()));
        let work = self.work(&purpose, event);
        if again.is_some() {
            self.struck("invocation: twice");
        }
        self.go_on(Invocation { number, caller, purpose, deadline, work });
        if let Some(work) = again {
            self.invocations += 1;
            let (number, purpose) = (self.invocations, Purpose::Nobody);
            self.go_on(Invocation { number, caller, purpose, deadline, work });
        }
    }

    fn work(
        &self,
        purpose: &Purpose,
        event: Value,
    ) -> Pin<Box<dyn Future<Output = Result<Value>>>> {
        let world = self.world.clone();
        match purpose {
            Purpose::Told(_, receives) => {
                let receives = *receives;
                Box::pin(async move {
                    let settings = world.settings().await?;
                    let Some(event) = InstanceEvent::read(&event) else { return Ok(Value::Null) };
                    let handled = instances::handle(&world, &settings, &event, receives).await?;
                    Ok(json!(handled == Handled::Done))
                })
            }
            Purpose::Reconcile => {
                let time =
                    if self.hurried { world.state().rng.random_range(0..30) } else { u32::MAX };
                let left = Cell::new(if time < 3 { time } else { u32::MAX });
                Box::pin(async move {
                    let settings = world.settings().await?;
                    let may_begin = || left.replace(left.get().saturating_sub(1)) > 0;
                    reconciler::reconcile(&world, &settings, may_begin).await?;
                    Ok(Value::Null)
                })
            }
            Purpose::Webhook(_) => {
                Box::pin(async move { Ok(webhook::handle(&world, &event).await) })
            }
            Purpose::Step(_) | Purpose::Orphan(..) | Purpose::Nobody => {
                Box::pin(orchestrator(world, event))
            }
            Purpose::Reports(_) | Purpose::Lines(..) => {
                Box::pin(async move { stolen::handle(&world, &event, || true).await })
            }
            Purpose::Others("webhook") => {
                Box::pin(async move { Ok(webhook::handle(&world, &event).await) })
            }
            Purpose::Others(_) => {
                Box::pin(async move { stolen::handle(&world, &event, || true).await })
            }
            Purpose::Sweep => {
                // One sweep in ten is a rehearsal, and one in ten has time for one machine only.
                let dice = world.state().rng.random_range(0..10);
                Box::pin(async move {
                    let begun = Cell::new(0);
                    let may_begin = || dice != 1 || begun.replace(1) == 0;
                    reaper::sweep(&world, &world, &world, &rules(), dice == 0, may_begin)
                        .await
                        .map(|_| Value::Null)
                })
            }
        }
    }

    pub(super) fn resume(&mut self, number: u64) {
        if let Some(invocation) = self.running.remove(&number) {
            self.go_on(invocation);
        }
    }

    fn go_on(&mut self, mut invocation: Invocation) {
        self.world.state().caller = invocation.caller;
        match self.world.poll(invocation.work.as_mut()) {
            Progress::Sleeps(until) if until > invocation.deadline => {
                self.timed_out += 1;
                self.struck("invocation: cut off at its time-out");
                let Invocation { number, caller, purpose, deadline, .. } = invocation;
                let work = Box::pin(std::future::pending());
                self.running.insert(number, Invocation { number, caller, purpose, deadline, work });
                self.push(deadline, Event::Resume(number));
            }
            Progress::Sleeps(until) => {
                self.push(until, Event::Resume(invocation.number));
                self.running.insert(invocation.number, invocation);
            }
            Progress::Killed => self.ended(invocation.purpose, None),
            Progress::Done(answer) => {
                let lost = self.lost_answers.contains(&invocation.number);
                if lost {
                    self.struck("invocation: its answer is lost");
                }
                self.ended(invocation.purpose, Some(answer).filter(|_| !lost));
            }
        }
    }

    /// An invocation is over. Without an answer the function was killed, or its answer lost.
    fn ended(&mut self, purpose: Purpose, answer: Option<Result<Value>>) {
        match purpose {
            // The next run does the same, and more recently.
            Purpose::Nobody | Purpose::Others(_) | Purpose::Sweep | Purpose::Reconcile => {}
            Purpose::Told(event, receives) => {
                if !matches!(answer, Some(Ok(Value::Bool(true)))) && receives < TOLD_TRIES {
                    let at = self.now() + TOLD_PAUSE;
                    self.push(at, Event::Told(event, receives + 1));
                }
            }
            Purpose::Webhook(delivery) => {
                let answer = answer.and_then(Result::ok);
                self.answered(*delivery, answer.as_ref());
            }
            Purpose::Step(name) => {
                if let Some(Ok(answer)) = &answer {
                    crate::invariants::gone_is_proved(self, &name, answer);
                }
                self.advance(&name, |definition, execution, rng| match answer {
                    Some(Ok(answer)) => definition.answered(execution, answer),
                    Some(Err(error)) => {
                        // As Lambda tells it, in the words of functions in Rust.
                        let cause = json!({"errorType": error.error_type(), "errorMessage": error.to_string()});
                        definition.errored(execution, error.error_type(), &cause.to_string(), rng)
                    }
                    None => definition.errored(execution, "Lambda.Unknown", "killed", rng),
                });
            }
            Purpose::Orphan(event, tries) => match answer {
                Some(Ok(_)) => {}
                _ if tries < ORPHAN_TRIES => {
                    let at = self.now() + Duration::from_secs(60) * (tries + 1);
                    self.push(at, Event::Orphan(event, tries + 1));
                }
                _ => self.dead_letters += 1,
            },
            Purpose::Reports(messages) => {
                let Some(Ok(answer)) = answer else { return };
                let failures = answer["batchItemFailures"].as_array().cloned().unwrap_or_default();
                let failed = |id: &str| failures.iter().any(|it| it["itemIdentifier"] == id);
                let mut state = self.world.state();
                let now = state.now;
                for (_, receipt) in messages.iter().filter(|(id, _)| !failed(id)) {
                    // A handle that has expired: the message comes again, which is harmless.
                    let _ = state.reports.delete(now, receipt);
                }
            }
            Purpose::Lines(event, tries) => {
                if !matches!(answer, Some(Ok(_))) && tries < LINES_TRIES {
                    let at = self.now() + Duration::from_secs(60);
                    self.push(at, Event::Lines(event, tries + 1));
                }
            }
        }
    }

    /// Others call a function, with an event of theirs.
    pub fn stranger(&mut self, function: &'static str, event: Value) {
        self.invoke("others", Purpose::Others(function), event);
    }

    pub(super) fn clean_orphan(&mut self, event: Value, tries: u32) {
        self.invoke("orphan", Purpose::Orphan(event.clone(), tries), event);
    }

    pub(super) fn receive_reports(&mut self) {
        if !self.judges_reports {
            return;
        }
        let received = {
            let mut state = self.world.state();
            let state = &mut *state;
            state.reports.receive(state.now, BATCH, None, &mut state.rng)
        };
        let Ok((received, dead)) = received else { return };
        self.dead_reports += dead.len();
        if received.is_empty() {
            return;
        }
        let records: Vec<_> = received
            .iter()
            .map(|message| {
                json!({
                    "messageId": message.message_id,
                    "body": message.body,
                    "attributes": {
                        "ApproximateReceiveCount": message.receive_count.to_string(),
                        "MessageGroupId": message.group,
                        "SentTimestamp": message.sent_at.millis().to_string(),
                    },
                })
            })
            .collect();
        let messages =
            received.into_iter().map(|message| (message.message_id, message.receipt_handle));
        self.invoke("report", Purpose::Reports(messages.collect()), json!({ "Records": records }));
    }

    pub(super) fn lines_arrive(&mut self, event: Value, tries: u32) {
        self.invoke("lines", Purpose::Lines(event.clone(), tries), event);
    }
}

/// The reaper's rules as `infra/reaper.yaml` has them by default, over Ostler's machines.
fn rules() -> reaper::Rules {
    reaper::Rules {
        owner_tag: "ostler:owner".into(),
        owner: OWNER.into(),
        state_tag: "ostler:state".into(),
        kept_states: vec!["ready".into(), "warming".into()],
        until_tag: "ostler:until".into(),
        max_age: Duration::from_secs(12 * 3600),
    }
}

/// As `functions/orchestrator` does it.
async fn orchestrator(world: World, event: Value) -> Result<Value> {
    let event = StepEvent::read(&event)?;
    let settings = world.settings().await?;
    let state = runner::run(&world, &settings, &event).await?;
    Ok(serde_json::to_value(state).unwrap_or_default())
}
