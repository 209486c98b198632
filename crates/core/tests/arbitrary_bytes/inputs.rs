//! What comes from outside, read from arbitrary bytes: nothing panics, and what is accepted keeps the rules that the
//! rest relies on. Here chance makes the bytes; in `fuzz/` libFuzzer does.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use ostler_core::config::Tiers;
use ostler_core::job::{JobId, split_full_name};
use ostler_core::labels::Labels;
use ostler_core::names::{Lineage, MAX_BASE_NAME, MAX_RUNNER_NAME, NameKey, is_plausible};
use ostler_core::report::Report;
use ostler_core::stolen::{Delivery, Record, report_in, shown};
use ostler_core::time::Timestamp;
use ostler_core::webhook::{Request, read_body};
use serde_json::{Value, json};

/// A delivery of CloudWatch Logs: as it is, and with the layers around it that let the bytes get further.
pub fn log_delivery(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let events = json!({"messageType": "DATA_MESSAGE", "logEvents": [{"message": text}]});
    let deliveries = [
        text.clone().into_owned(),
        STANDARD.encode(bytes),
        STANDARD.encode(packed(bytes)),
        STANDARD.encode(packed(events.to_string().as_bytes())),
    ];
    for delivery in &deliveries {
        let Ok(delivery) = Delivery::unpack(delivery) else { continue };
        for line in delivery.lines.iter().flatten() {
            assert!(!shown(line).chars().any(char::is_control));
            if let Some(report) = report_in(line) {
                assert!(report.job_id.is_none() && report.job_labels.is_none());
                fit_for_the_queue(&report);
            }
        }
    }
    let whole = Delivery::unpack(&deliveries[3]).map(|delivery| delivery.lines.len());
    assert!(matches!(whole, Ok(1)), "{whole:?}");
}

/// A record of the report queue: its body, and all of it.
pub fn report_message(bytes: &[u8]) {
    let body = String::from_utf8_lossy(bytes).into_owned();
    let record = serde_json::from_slice(bytes).map(|value: Value| Record::read(&value));
    let of_body = Record { id: "m".into(), body, group: None, receives: 1, sent: None };
    for record in record.into_iter().flatten().chain([of_body]) {
        assert!(!record.id.is_empty());
        if let Ok(report) = record.report() {
            fit_for_the_queue(&report);
            assert!(report.job_id.is_none_or(|id| id.0 > 0));
        }
    }
}

/// A request to the webhook: an event of any front end, and a body in any encoding.
pub fn webhook_body(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let events = [
        serde_json::from_slice(bytes).unwrap_or(Value::Null),
        json!({"body": text}),
        json!({"body": STANDARD.encode(bytes), "isBase64Encoded": true,
            "headers": {"content-type": "application/x-www-form-urlencoded"}}),
        json!({"body": format!("payload={text}"),
            "headers": {"Content-Type": "application/x-www-form-urlencoded"}}),
    ];
    for event in &events {
        let Ok(request) = Request::read(event) else { continue };
        let Ok(payload) = read_body(&request) else { continue };
        assert!(payload.id.0 > 0);
        assert!(split_full_name(&payload.repository.to_string()).is_some());
        let input = payload.input("tier", &payload.labels, 300);
        // A label with a comma fits no tier, so that it is never part of an input.
        let plain = payload.labels.iter().all(|label| !label.contains(','));
        assert!(!plain || input.wanted() == payload.labels);
        if let Some(runner) = payload.plausible_runner() {
            assert!(is_plausible(runner));
        }
    }
}

/// Names, labels, times and tiers.
pub fn names_and_labels(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lineage = Lineage::parse(&text);
    assert_eq!(lineage.to_string(), text);
    let key = NameKey::new("a key of a test").unwrap();
    key.made(&text);
    let base = key.base_name(&text, JobId(i64::MAX));
    assert!(base.len() <= MAX_BASE_NAME && is_plausible(&base));
    let last = Lineage::parse(&base).at(3, 3).to_string();
    assert!(last.len() <= MAX_RUNNER_NAME && last.starts_with(&base));
    let labels = Labels::from_joined(&text);
    assert!(labels.cover(&labels) && labels.cover_foreign(&labels));
    assert_eq!(Labels::from_joined(&labels.to_string()), labels);
    if let Some((owner, name)) = split_full_name(&text) {
        assert_eq!(format!("{owner}/{name}"), text);
    }
    Timestamp::parse(&text);
    let tiers = Tiers::parse(&text);
    assert!(tiers.select(&labels).is_none_or(|tier| tier.labels.cover_foreign(&labels)));
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What SQS and the other services take: group and deduplication ids are 1 to 128 of letters, digits and punctuation.
fn fit_for_the_queue(report: &Report) {
    for id in [report.group(), report.deduplication_id()] {
        assert!((1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    assert!(is_plausible(&report.runner_name) && split_full_name(&report.repo).is_some());
    assert!(report.workflow_id > 0);
}
