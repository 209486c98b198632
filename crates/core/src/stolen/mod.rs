//! Use case: which runner took which job. Lines that runners print are queued as reports; reports, the
//! webhook's and those, are judged a minute later, and a job that waits in vain gets another runner.
//!
//! Invariants: a line, which any job can forge, accounts for no runner and starts none by itself; it only
//! makes us look at what GitHub says. A record that can't be used affects itself only. Judging is
//! idempotent: any record may come any number of times.

mod delivery;
mod judgement;
mod record;

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};
use tracing::{error, info, warn};

pub use delivery::{Delivery, report_in, shown};
pub use record::{Record, come_again};

use crate::config::Settings;
use crate::debts::Debts;
use crate::error::{Error, Result};
use crate::ports::{Configuration, MAX_REPORT_BATCH, ReportContext, ReportQueue, Telemetry};
use crate::reach::reached;
use crate::report::{LINE_GROUP, Report};
use crate::together;
use judgement::Finding;

/// Reports of one delivery that are queued. A delivery is of one log stream, hence of one runner; more
/// reports are a job's work.
const MAX_REPORTS: usize = 1000;

/// Lines of one delivery that are logged as unreadable, and as many as repeated; the rest is told of by number.
const MAX_WARNINGS: usize = 100;

/// Runners named in the error of a delivery that could not be queued.
const MAX_NAMED: usize = 20;

/// Receives after which a report that only a line speaks for is given up, if it still can't be judged: the
/// next one would put it in the dead-letter queue, which is for what an operator can mend.
const MAX_LINE_RECEIVES: u32 = 4;

/// Handles one Lambda event: a delivery of CloudWatch Logs, some of them that came through a delivery stream from
/// other accounts, or a batch of SQS records. `may_begin` says whether there is time to begin something; what is left
/// is answered as failed.
pub async fn handle<C: ReportContext>(
    context: &C,
    event: &Value,
    may_begin: impl Fn() -> bool,
) -> Result<Value> {
    if let Some(data) = event.pointer("/awslogs/data").and_then(Value::as_str) {
        return receive(context, data, may_begin).await.map(|()| Value::Null);
    }
    if event.get("deliveryStreamArn").is_some()
        && let Some(records) = event.get("records").and_then(Value::as_array)
    {
        return receive_stream(context, records, may_begin).await;
    }
    let Some(records) = event.get("Records").and_then(Value::as_array) else {
        return Err(Error::Permanent(
            "the event is neither a CloudWatch Logs delivery (awslogs.data, a text) nor a batch of SQS \
             records (Records, a list) nor one of a delivery stream (deliveryStreamArn, records)"
                .into(),
        ));
    };
    let records = records.iter().map(Record::read).collect::<Result<Vec<_>>>()?;
    let failed = judge(context, &records, may_begin).await?;
    Ok(come_again(&failed))
}

/// Log deliveries of other accounts, which come through a delivery stream whose processor this is. It wants to know what
/// became of each record: what was handled is dropped, so that nothing is ever stored, and what can't be read is marked,
/// and kept by the stream for whoever looks into it. An error has the stream ask again, three times.
async fn receive_stream<C: ReportContext>(
    context: &C,
    records: &[Value],
    may_begin: impl Fn() -> bool,
) -> Result<Value> {
    let (mut answers, mut passing) = (Vec::new(), None);
    for record in records {
        let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
        let result = match receive(context, text("data"), &may_begin).await {
            Ok(()) => "Dropped",
            Err(Error::Permanent(reason)) => {
                warn!(reason, "a record of the delivery stream is left to it");
                "ProcessingFailed"
            }
            Err(failure) => {
                passing.get_or_insert(failure);
                continue;
            }
        };
        answers.push(json!({"recordId": text("recordId"), "result": result, "data": text("data")}));
    }
    match passing {
        Some(failure) => Err(failure),
        None => Ok(json!({ "records": answers })),
    }
}

/// Queues the reports of a delivery. An error has CloudWatch Logs deliver it again: a lost report is a
/// missed theft.
async fn receive<C: ReportContext>(
    context: &C,
    data: &str,
    may_begin: impl Fn() -> bool,
) -> Result<()> {
    let telemetry = context.telemetry();
    let delivery =
        Delivery::unpack(data).inspect_err(|_| telemetry.count("DeliveryUnreadable", None, 1.0))?;
    match delivery.kind.as_str() {
        "DATA_MESSAGE" => {}
        // CloudWatch Logs tries whether we can be reached.
        "CONTROL_MESSAGE" => {
            reached("lines: a probe");
            return Ok(());
        }
        other => {
            reached("lines: a delivery of an unknown kind");
            warn!(kind = shown(other), "ignored a log delivery of an unknown kind");
            return Ok(());
        }
    }
    let reports = reports(context, &delivery);
    let mut unsent = Vec::new();
    for batch in reports.chunks(MAX_REPORT_BATCH) {
        unsent.extend(send(context, batch, &may_begin).await);
    }
    let queued = reports.len() - unsent.len();
    info!(group = delivery.group, stream = delivery.stream, queued, "queued runners' reports");
    telemetry.count("ReportQueued", None, as_count(queued));
    if unsent.is_empty() {
        reached("lines: queued");
        return Ok(());
    }
    reached("lines: not all could be queued");
    let named = unsent.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    Err(Error::Transient(format!("{} reports could not be queued: of {named}", unsent.len())))
}

/// The reports of a delivery's lines: one per runner, and not more than [`MAX_REPORTS`].
fn reports<C: ReportContext>(context: &C, delivery: &Delivery) -> Vec<Report> {
    let (group, stream) = (&delivery.group, &delivery.stream);
    let mut reports: Vec<Report> = Vec::new();
    let mut seen = HashSet::new();
    let (mut unparsable, mut repeated, mut beyond) = (0, 0, 0);
    for line in &delivery.lines {
        let Some(report) = line.as_deref().and_then(report_in) else {
            reached("lines: a line that can't be read");
            unparsable += 1;
            if unparsable <= MAX_WARNINGS {
                let line = line.as_deref().map(shown);
                warn!(group, stream, line, "a runner's report can't be read");
            }
            continue;
        };
        if seen.contains(&report.runner_name) {
            reached("lines: a runner that was named before");
            repeated += 1;
            if repeated <= MAX_WARNINGS {
                let runner = report.runner_name;
                warn!(group, stream, runner, "reported before in this delivery");
            }
        } else if reports.len() == MAX_REPORTS {
            beyond += 1;
        } else {
            seen.insert(report.runner_name.clone());
            reports.push(report);
        }
    }
    if unparsable > 0 {
        context.telemetry().count("ReportUnparsable", None, as_count(unparsable));
    }
    if unparsable > MAX_WARNINGS {
        warn!(group, stream, unparsable, "more reports can't be read");
    }
    if repeated > MAX_WARNINGS {
        warn!(group, stream, repeated, "more runners were reported before in this delivery");
    }
    if beyond > 0 {
        warn!(group, stream, beyond, "more reports than one delivery may bring: dropped");
        context.telemetry().count("ReportBeyondLimit", None, as_count(beyond));
    }
    reports
}

/// Sends a batch, and what the queue did not take once more. Answers the runners whose reports are not
/// queued.
async fn send<'a, C: ReportContext>(
    context: &C,
    batch: &'a [Report],
    may_begin: &impl Fn() -> bool,
) -> Vec<&'a str> {
    let mut left: Vec<&Report> = batch.iter().collect();
    for _ in 0..2 {
        if left.is_empty() || !may_begin() {
            break;
        }
        let sent: Vec<Report> = left.iter().copied().cloned().collect();
        match context.reports().send_batch(&sent).await {
            Ok(refused) => {
                left = refused.into_iter().filter_map(|place| left.get(place).copied()).collect();
            }
            Err(failure) => {
                reached("lines: the queue failed");
                warn!(%failure, reports = left.len(), "a batch could not be queued");
            }
        }
    }
    left.into_iter().map(|report| report.runner_name.as_str()).collect()
}

/// A record that is a report.
struct Case<'a> {
    record: &'a Record,
    report: Report,
    group: String,
}

impl<'a> Case<'a> {
    fn new(record: &'a Record, report: Report) -> Self {
        let group = record.group.clone().unwrap_or_else(|| report.group());
        Self { record, report, group }
    }

    /// The runner whose group it is.
    fn runner(&self) -> &str {
        self.group.strip_prefix(LINE_GROUP).unwrap_or(&self.group)
    }

    /// Whether nothing but a line speaks for it, which any job could have printed.
    fn is_line(&self) -> bool {
        self.report.job_id.is_none()
    }
}

/// Judges a batch: what is about one runner in order, and runners side by side. Answers the ids of the records
/// that have to come again.
async fn judge<'a, C: ReportContext>(
    context: &C,
    records: &'a [Record],
    may_begin: impl Fn() -> bool,
) -> Result<Vec<&'a str>> {
    let settings = context.configuration().settings().await?;
    let debts = Debts::new(context, &settings)?;
    let mut runners: BTreeMap<String, Vec<Case<'a>>> = BTreeMap::new();
    for case in usable(context, records) {
        runners.entry(case.runner().to_owned()).or_default().push(case);
    }
    let work = runners
        .into_values()
        .map(|cases| judge_runner(context, &settings, &debts, cases, &may_begin));
    Ok(together::all(work).await.into_iter().flatten().collect())
}

/// Judges the records of one runner's groups. Answers the ids of those that have to come again.
async fn judge_runner<'a, C: ReportContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    mut cases: Vec<Case<'a>>,
    may_begin: &impl Fn() -> bool,
) -> Vec<&'a str> {
    // GitHub's word first: the line that says the same, a moment later, needs no judgement of its own then.
    // Each has a group of its own, so that no group's order is changed.
    cases.sort_by_key(|case| case.group.starts_with(LINE_GROUP));
    let mut failed = Vec::new();
    let mut stopped = HashSet::new();
    let mut judged = HashSet::new();
    for case in &cases {
        // In a FIFO queue what follows a failed message must not be handled before it.
        if stopped.contains(&case.group) || !may_begin() {
            reached("report: behind one that comes again");
            failed.push(case.record.id.as_str());
            stopped.insert(&case.group);
            continue;
        }
        if case.is_line() && judged.contains(&case.report.runner_name) {
            reached("report: a line, after GitHub's word was judged");
            continue;
        }
        let judgement = judgement::judge(context, settings, debts, &case.report, case.record).await;
        if comes_again(context, case, &judgement) {
            failed.push(case.record.id.as_str());
            stopped.insert(&case.group);
        } else if !case.is_line() {
            judged.insert(&case.report.runner_name);
        }
    }
    failed
}

/// Whether a record has to come again. Tells why.
fn comes_again<C: ReportContext>(
    context: &C,
    case: &Case<'_>,
    judgement: &Result<Finding>,
) -> bool {
    let (message_id, report) = (&case.record.id, &case.report);
    let runner = &report.runner_name;
    match judgement {
        Ok(Finding::Done) => false,
        Ok(Finding::Later(_)) if case.is_line() && case.record.receives >= MAX_LINE_RECEIVES => {
            reached("report: a line is given up");
            info!(runner, repo = report.repo, "a line's report is given up");
            context.telemetry().count("ReportGivenUp", None, 1.0);
            false
        }
        Ok(Finding::Later(reason)) => {
            reached("report: comes again");
            info!(message_id, runner, reason, "judged later");
            true
        }
        Err(failure) => {
            reached("report: could not be judged");
            error!(message_id, ?report, %failure, "a report could not be judged");
            context.telemetry().count("ReportFailed", None, 1.0);
            if matches!(failure, Error::Permanent(_)) {
                context.telemetry().count("ConfigurationError", None, 1.0);
            }
            true
        }
    }
}

/// The records that are reports; the others are told of and dropped.
fn usable<'a, C: ReportContext>(context: &C, records: &'a [Record]) -> Vec<Case<'a>> {
    let mut usable = Vec::new();
    for record in records {
        match record.report() {
            Ok(report) => usable.push(Case::new(record, report)),
            Err(reason) => {
                reached("report: a message that is none");
                error!(
                    message_id = record.id,
                    reason, "a message of the report queue can't be used"
                );
                context.telemetry().count("ReportUnusable", None, 1.0);
            }
        }
    }
    usable
}

/// Counts are small.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn as_count(number: usize) -> f64 {
    number as f64
}
