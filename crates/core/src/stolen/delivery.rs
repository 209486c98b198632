//! A delivery of CloudWatch Logs, and the report lines in it. Lines are hostile input: any job can write
//! any, so everything is bounded, and nothing is passed on that a queue or another service could choke on.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::job::split_full_name;
use crate::names::is_plausible;
use crate::report::Report;

/// Longest delivery, unpacked, in bytes. CloudWatch Logs packs at most 1 MiB of events or so; more is not
/// its work.
const MAX_UNPACKED: u64 = 16 * 1024 * 1024;

/// Of a line that can't be read, this many characters are logged.
const MAX_SHOWN: usize = 256;

/// What the job-started hook prints before the runner's name.
const MARK: &str = "CDKGHR JOB RUNNER=";

/// What is in a delivery.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// `DATA_MESSAGE`, or `CONTROL_MESSAGE` for a probe of the destination.
    pub kind: String,
    /// The log group.
    pub group: String,
    /// The log stream.
    pub stream: String,
    /// The events' lines; `None` for an event without text.
    pub lines: Vec<Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    message_type: Option<String>,
    #[serde(default)]
    log_group: Option<String>,
    #[serde(default)]
    log_stream: Option<String>,
    log_events: Vec<Line>,
}

/// An event's line. An event of another shape costs only itself.
#[derive(Deserialize)]
#[serde(from = "Value")]
struct Line(Option<String>);

impl From<Value> for Line {
    fn from(mut event: Value) -> Self {
        match event.get_mut("message").map(Value::take) {
            Some(Value::String(text)) => Self(Some(text)),
            _ => Self(None),
        }
    }
}

impl Delivery {
    /// Unpacks `awslogs.data`: base64, gzip, JSON (CloudWatch Logs user guide, "Using subscription
    /// filters with AWS Lambda").
    pub fn unpack(data: &str) -> Result<Self> {
        let wrong = |what: &str, why: String| {
            Error::Permanent(format!("a log delivery can't be read: {what}: {why}"))
        };
        let packed =
            STANDARD.decode(data.trim()).map_err(|why| wrong("not base64", why.to_string()))?;
        let mut bytes = Vec::new();
        MultiGzDecoder::new(packed.as_slice())
            .take(MAX_UNPACKED + 1)
            .read_to_end(&mut bytes)
            .map_err(|why| wrong("not gzip", why.to_string()))?;
        drop(packed);
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_UNPACKED) {
            return Err(wrong("too long", format!("more than {MAX_UNPACKED} bytes unpacked")));
        }
        // Bytes that are no UTF-8 are replaced: one odd line must not cost the others.
        let text = String::from_utf8_lossy(&bytes);
        let raw: Raw =
            serde_json::from_str(&text).map_err(|why| wrong("not JSON", why.to_string()))?;
        Ok(Self {
            kind: raw.message_type.unwrap_or_else(|| "DATA_MESSAGE".to_owned()),
            group: raw.log_group.unwrap_or_default(),
            stream: raw.log_stream.unwrap_or_default(),
            lines: raw.log_events.into_iter().map(|line| line.0).collect(),
        })
    }
}

/// The report in a line: `CDKGHR JOB RUNNER=<name> REPO=<owner/name> WORKFLOW_ID=<run id>`, anywhere in it.
/// `None` if there is none whose name a runner may have, whose repository GitHub may have, and whose run id
/// is positive.
pub fn report_in(line: &str) -> Option<Report> {
    line.match_indices(MARK).find_map(|(at, _)| report_at(&line[at + MARK.len()..]))
}

fn report_at(rest: &str) -> Option<Report> {
    let (name, rest) = rest.split_once(" REPO=")?;
    let (repo, rest) = rest.split_once(" WORKFLOW_ID=")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    let workflow_id = digits.parse().ok().filter(|id| *id > 0)?;
    (is_plausible(name) && split_full_name(repo).is_some()).then(|| Report {
        runner_name: name.to_owned(),
        repo: repo.to_owned(),
        workflow_id,
        job_id: None,
        job_labels: None,
    })
}

/// A line for the log: cut, and without control characters.
pub fn shown(line: &str) -> String {
    let mut text = String::new();
    for c in line.chars().take(MAX_SHOWN) {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn packed(bytes: &[u8]) -> String {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        STANDARD.encode(encoder.finish().unwrap())
    }

    fn delivery(value: &Value) -> Result<Delivery> {
        Delivery::unpack(&packed(value.to_string().as_bytes()))
    }

    #[test]
    fn s2_ls_02_a_delivery_is_base64_of_gzip_of_json() {
        let read = delivery(&json!({"messageType": "DATA_MESSAGE", "owner": "123456789012",
            "logGroup": "/ostler/x/runners", "logStream": "i-1", "subscriptionFilters": ["f"],
            "logEvents": [{"id": "3", "timestamp": 1, "message": "one"}, {"message": "two"}]}))
        .unwrap();
        assert_eq!(
            (read.group.as_str(), read.stream.as_str(), read.kind.as_str()),
            ("/ostler/x/runners", "i-1", "DATA_MESSAGE")
        );
        assert_eq!(read.lines, [Some("one".to_owned()), Some("two".to_owned())]);
    }

    #[test]
    fn ls_02_ls_06_each_layer_that_is_broken_is_named_and_nothing_panics() {
        for (data, says) in [
            ("%%%".to_owned(), "not base64"),
            (STANDARD.encode("plain"), "not gzip"),
            (STANDARD.encode(&STANDARD.decode(packed(b"{\"a\": 1}")).unwrap()[..12]), "not gzip"),
            (packed(b"{"), "not JSON"),
            (packed(b"[]"), "not JSON"),
            (packed(b"{\"messageType\": \"DATA_MESSAGE\"}"), "logEvents"),
            (String::new(), "not "),
        ] {
            let error = Delivery::unpack(&data).unwrap_err();
            assert!(matches!(&error, Error::Permanent(text) if text.contains(says)), "{error}");
        }
    }

    #[test]
    fn b2_unpacking_is_bounded() {
        let bomb = packed(&vec![b' '; 17 * 1024 * 1024]);
        assert!(bomb.len() < 1_000_000, "a small delivery");
        let error = Delivery::unpack(&bomb).unwrap_err();
        assert!(error.to_string().contains("more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn ls_04_text_is_utf_8_and_what_is_not_is_replaced() {
        let read = delivery(&json!({"logEvents": [{"message": "job 🐎"}]})).unwrap();
        assert_eq!(read.lines, [Some("job 🐎".to_owned())]);
        let odd = b"{\"logEvents\": [{\"message\": \"a\xffb\"}, {\"message\": \"c\"}]}";
        let read = Delivery::unpack(&packed(odd)).unwrap();
        assert_eq!(read.lines, [Some("a\u{fffd}b".to_owned()), Some("c".to_owned())]);
    }

    #[test]
    fn ls_05_an_event_of_another_shape_costs_only_itself() {
        let read = delivery(&json!({"logEvents": [{"message": "a"}, {"message": 7}, "text", null,
            {"id": "x"}, {"message": "b"}]}))
        .unwrap();
        let there: Vec<_> = read.lines.iter().flatten().map(String::as_str).collect();
        assert_eq!((read.lines.len(), there), (6, vec!["a", "b"]));
    }

    fn line(name: &str, repo: &str, run: &str) -> String {
        format!("CDKGHR JOB RUNNER={name} REPO={repo} WORKFLOW_ID={run}")
    }

    #[test]
    fn s3_a_report_is_found_anywhere_in_a_line() {
        let plain = line("widgets-7-abc", "acme/widgets", "9000000000");
        for text in [plain.clone(), format!("2026-11-30 {plain} and more"), format!("{plain}\n")] {
            let report = report_in(&text).unwrap();
            assert_eq!(
                (report.runner_name.as_str(), report.repo.as_str(), report.workflow_id),
                ("widgets-7-abc", "acme/widgets", 9_000_000_000)
            );
            assert_eq!((report.job_id, report.job_labels), (None, None));
        }
    }

    #[test]
    fn b3_what_no_runner_repository_or_run_can_be_is_no_report() {
        let name = |name: &str| line(name, "acme/widgets", "9");
        let repo = |repo: &str| line("w", repo, "9");
        let run = |run: &str| line("w", "acme/widgets", run);
        for bad in [
            name(""),
            name(&"x".repeat(65)),
            name("a/b"),
            name("a b"),
            name("ä"),
            name("a\u{0}"),
            repo(""),
            repo("widgets"),
            repo("acme/"),
            repo("/widgets"),
            repo("acme/widgets/x"),
            repo("acme/.."),
            repo("acme/wid gets"),
            repo("acme/w?x=1"),
            repo(&format!("acme/{}", "x".repeat(101))),
            repo(&format!("{}/w", "x".repeat(101))),
            run(""),
            run("0"),
            run("-1"),
            run("abc"),
            run("9223372036854775808"),
            run(&"9".repeat(400)),
            "CDKGHR JOB RUNNER=w".to_owned(),
            "CDKGHR JOB RUNNER=w WORKFLOW_ID=9 REPO=acme/widgets".to_owned(),
            "nothing".to_owned(),
            String::new(),
        ] {
            assert_eq!(report_in(&bad), None, "{bad}");
        }
        assert_eq!(report_in(&run("9223372036854775807")).unwrap().workflow_id, i64::MAX);
        assert!(report_in(&name(&"x".repeat(64))).is_some());
    }

    #[test]
    fn ls_10_text_without_a_newline_does_not_hide_the_report() {
        let glued = format!("abc CDKGHR JOB RUNNER= x{}", line("w", "acme/widgets", "9"));
        assert_eq!(report_in(&glued).unwrap().runner_name, "w");
    }

    #[test]
    fn ls_11_a_hook_without_a_name_reports_nothing() {
        assert_eq!(report_in("CDKGHR JOB RUNNER= REPO=acme/widgets WORKFLOW_ID=9"), None);
    }

    #[test]
    fn b3_a_shown_line_is_cut_and_has_no_control_characters() {
        let text = shown(&format!("a\u{1b}[31m\r\n\u{9b}b{}", "é".repeat(300)));
        assert!(text.starts_with(r"a\u{1b}[31m\r\n\u{9b}bé"), "{text}");
        assert!(!text.chars().any(char::is_control));
        assert_eq!(shown(&"é".repeat(300)).chars().count(), 256);
    }

    proptest! {
        #[test]
        fn ls_02_no_bytes_make_unpacking_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Delivery::unpack(&STANDARD.encode(&bytes));
            let _ = Delivery::unpack(&String::from_utf8_lossy(&bytes));
            let _ = Delivery::unpack(&packed(&bytes));
        }

        #[test]
        fn b3_any_accepted_report_is_fit_for_the_queue(
            name in ".{0,70}", repo in "[a-z/.?]{0,12}|acme/w", run in "[0-9]{0,20}",
        ) {
            let text = line(&name, &repo, &run);
            prop_assert!(!shown(&text).chars().any(char::is_control));
            if let Some(report) = report_in(&text) {
                // SQS: group and deduplication ids are 1 to 128 of letters, digits and punctuation.
                for id in [report.group(), report.deduplication_id()] {
                    prop_assert!((1..=128).contains(&id.len()));
                    prop_assert!(id.bytes().all(|b| b.is_ascii_graphic()));
                }
                prop_assert!(report.workflow_id > 0 && is_plausible(&report.runner_name));
                prop_assert!(split_full_name(&report.repo).is_some());
            }
        }
    }
}
