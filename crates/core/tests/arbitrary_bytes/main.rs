//! Parsing never panics on arbitrary bytes: the functions that `fuzz/` gives to libFuzzer, on bytes that chance makes
//! of what is nearly right.

#![allow(clippy::unwrap_used, reason = "helpers of tests, whose failure is the test's")]

mod inputs;

use proptest::collection::vec;
use proptest::prelude::*;

/// Arbitrary bytes, or pieces of what is expected with anything between and in them.
fn bytes(pieces: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let anything = vec(any::<u8>(), 0..40);
    let piece = proptest::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec());
    let nearly = vec(prop_oneof![6 => piece, 1 => anything], 0..24).prop_map(|all| all.concat());
    let bitten =
        (nearly, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut all, at, byte)| {
            if !all.is_empty() && byte % 4 == 0 {
                let at = at.index(all.len());
                all[at] = byte;
            }
            all
        });
    prop_oneof![1 => vec(any::<u8>(), 0..600), 4 => bitten]
}

const LINES: &[&str] = &[
    "CDKGHR JOB RUNNER=widgets-7-0123456789ab REPO=acme/widgets WORKFLOW_ID=9",
    "CDKGHR JOB RUNNER=",
    " REPO=",
    " WORKFLOW_ID=",
    "acme/widgets",
    "/",
    "9223372036854775807",
    "-1",
    "\"",
    "\\u0000",
    "\n",
    "é",
    "{\"logEvents\": [",
    "{\"message\": \"",
    "\"}",
    ",",
    "]}",
    "x",
];

const MESSAGES: &[&str] = &[
    "{",
    "}",
    ",",
    ":",
    "\"kind\": \"report\"",
    "\"runnerName\": \"w-7\"",
    "\"repo\": \"acme/w\"",
    "\"workflowId\": 9",
    "\"jobId\": 7",
    "\"jobId\": -7",
    "\"jobLabels\": \"a,b\"",
    "\"jobLabels\": null",
    "\"messageId\": \"m\"",
    "\"body\": \"{}\"",
    "\"attributes\": {\"ApproximateReceiveCount\": \"3\"}",
    "[",
    "]",
    "\"MessageGroupId\"",
    "1e999",
    "\"",
];

const HOOKS: &[&str] = &[
    "{",
    "}",
    ",",
    "\"action\": \"queued\"",
    "\"workflow_job\": {",
    "\"id\": 7",
    "\"labels\": [\"a\", 7]",
    "\"runner_name\": \"w-7\"",
    "\"run_id\": 9",
    "\"created_at\": \"2026-11-30T12:00:00Z\"",
    "\"repository\": {",
    "\"full_name\": \"acme/widgets\"",
    "\"name\": \"widgets\"",
    "\"owner\": {\"login\": \"acme\"}",
    "null",
    "[",
    "]",
    "\"body\": \"\"",
    "\"headers\": {\"content-type\": \"application/json\"}",
    "\"isBase64Encoded\": true",
    "payload=",
    "&",
    "%7B",
    "%",
    "+",
];

const NAMES: &[&str] = &[
    "widgets-7-0123456789ab",
    "-r1",
    "-r",
    "-q3",
    "-",
    "r9",
    "self-hosted",
    ",",
    " ",
    "Linux",
    "İ",
    "ß",
    "/",
    ".",
    "..",
    "2026-11-30",
    "T12:00:00Z",
    "{\"tiers\": [",
    "{\"name\": \"small\"",
    "\"labels\": [\"a\"]",
    "\"images\": [\"ami-1\"]",
    "\"instance_types\": [\"m7i.large\"]",
    "\"architecture\": \"x64\"",
    "}",
    "]}",
    "\"max_idle\": \"5m\"",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn ls_02_a_log_delivery_of_arbitrary_bytes_panics_never(bytes in bytes(LINES)) {
        inputs::log_delivery(&bytes);
    }

    #[test]
    fn s7_a_report_message_of_arbitrary_bytes_panics_never(bytes in bytes(MESSAGES)) {
        inputs::report_message(&bytes);
    }

    #[test]
    fn se_04_a_webhooks_request_of_arbitrary_bytes_panics_never(bytes in bytes(HOOKS)) {
        inputs::webhook_body(&bytes);
    }

    #[test]
    fn names_and_labels_of_arbitrary_bytes_panic_never(bytes in bytes(NAMES)) {
        inputs::names_and_labels(&bytes);
    }
}
