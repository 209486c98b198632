//! The documents keep up with the code: what can be set, what is counted and what alarms is named in them, and their
//! links lead somewhere.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ostler_core::metrics::{METRICS, Source};

/// Beside the pages of the book.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "functions/webhook/events/README.md",
    "functions/orchestrator/events/README.md",
    "functions/stolen-runner/events/README.md",
    "functions/registration-janitor/events/README.md",
    "functions/reaper/events/README.md",
    "functions/reconciler/events/README.md",
    "functions/instance-events/events/README.md",
];

const SUMMARY: &str = "docs/SUMMARY.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The Markdown files below a folder, from the root, sorted.
fn pages(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            found.extend(pages(&name));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(name);
        }
    }
    found.sort();
    found
}

/// All Rust files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.push(std::fs::read_to_string(&path).unwrap());
        }
    }
    texts
}

/// The same as one text.
fn sources(folder: &Path) -> String {
    files(folder).concat()
}

/// The texts between `before` and `after`, wherever they stand.
fn between<'a>(text: &'a str, before: &str, after: &str) -> BTreeSet<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split_once(after)).map(|(it, _)| it).collect()
}

/// Asserts that each of the names stands in the document as code.
fn named(document: &str, names: &BTreeSet<&str>) {
    let text = read(document);
    let missing: Vec<_> =
        names.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{document} says nothing of {missing:?}");
}

/// The code without its tests.
fn code(folder: &str) -> String {
    let own =
        |text: &str| text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
    files(&root().join(folder)).iter().map(|text| own(text)).collect()
}

/// The table of metrics is what the code counts, and nothing else; what is counted under a name that is no literal
/// stands in a list of such.
#[test]
fn the_table_of_metrics_is_what_the_code_and_the_templates_count() {
    let (core, functions) = (code("crates/core/src"), code("functions"));
    let code = core.clone() + &functions;
    let mut counted: BTreeSet<&str> = [".count(", ".count_by(", "counts.add(", "self.add("]
        .iter()
        .flat_map(|call| code.split(call).skip(1))
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'))
        .map(|(metric, _)| metric)
        .collect();
    // The reconciler and the reaper count from lists of names.
    let listed = between(&code, "(\"", "\", done.").into_iter();
    counted.extend(listed.chain(between(&code, "(\"", "\", swept.")));
    let filters = read("infra/control.yaml");
    counted.extend(between(&filters, "MetricNamespace: Ostler, MetricName: ", ","));
    let known: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert!(known.len() > 60, "{known:?}");
    assert_eq!(counted, known);
}

/// Where the dimensions stand beside the name, they are those of the table.
#[test]
fn metrics_are_counted_by_the_dimensions_of_the_table() {
    let code = code("crates/core/src") + &code("functions");
    let mut seen = 0;
    for call in code.split(".count(").skip(1) {
        let call = call.trim_start();
        let Some((name, rest)) = call.strip_prefix('"').and_then(|it| it.split_once('"')) else {
            continue;
        };
        let rest = rest.trim_start_matches(',').trim_start();
        let by = match rest.strip_prefix("Some((\"") {
            Some(rest) => vec![rest.split('"').next().unwrap()],
            None if rest.starts_with("None") => vec![],
            // The tier, by the name of a variable.
            None => vec!["Tier"],
        };
        let metric = METRICS.iter().find(|metric| metric.name == name).unwrap();
        assert_eq!(metric.by, by, "{name}");
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_janitors_document_names_its_metrics() {
    let own = METRICS.iter().filter(|metric| metric.from.contains(&Source::Janitor));
    let names: BTreeSet<_> = own.map(|metric| metric.name).collect();
    assert!(names.contains("ScanCompleted") && names.len() > 7, "{names:?}");
    named("docs/registration-janitor.md", &names);
    let reasons = read("crates/core/src/janitor/mod.rs");
    let reasons: BTreeSet<_> = between(&reasons, "Self::", " =>").into_iter().collect();
    named("docs/registration-janitor.md", &reasons);
}

#[test]
fn every_alarm_is_named() {
    for (template, document) in [
        ("infra/network.yaml", "docs/operations.md"),
        ("infra/control.yaml", "docs/operations.md"),
        ("infra/recovery.yaml", "docs/operations.md"),
        ("infra/reaper.yaml", "docs/operations.md"),
        ("infra/observability.yaml", "docs/operations.md"),
        ("infra/registration-janitor.yaml", "docs/registration-janitor.md"),
    ] {
        let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read(template)).unwrap();
        let keys = |of: &str| -> Vec<String> {
            let keys = yaml[of].as_mapping().unwrap().keys();
            keys.map(|key| key.as_str().unwrap().to_owned()).collect()
        };
        let resources = keys("Resources");
        let alarms = resources.iter().filter(|name| name.ends_with("Alarm"));
        named(document, &alarms.map(String::as_str).collect());
    }
}

/// Names of all functions, with an underscore before and after.
fn function_names() -> Vec<String> {
    let code: String =
        ["crates", "functions", "tests"].map(|folder| sources(&root().join(folder))).concat();
    between(&code, "fn ", "(").into_iter().map(|name| format!("_{name}_")).collect()
}

/// Asserts that a test is named for each of these numbers but those that have a reason, which no test is named for.
fn shown(
    names: &[String],
    kind: &str,
    numbers: impl IntoIterator<Item = u32>,
    but: &[(&[u32], &str)],
) {
    let excused: BTreeSet<u32> =
        but.iter().flat_map(|(numbers, _)| numbers.iter().copied()).collect();
    for number in numbers {
        let part = format!("_{kind}{number:02}_");
        let named = names.iter().any(|name| name.contains(&part));
        let why = but.iter().find(|(numbers, _)| numbers.contains(&number)).map(|(_, why)| *why);
        assert_ne!(named, excused.contains(&number), "{part}: named {named}, and excused {why:?}");
    }
}

#[test]
fn every_requirement_of_the_janitor_has_a_test_that_is_named_for_it() {
    let documents: &[(&[u32], &str)] = &[(&[2, 9], "for documents alone")];
    shown(&function_names(), "j", 1..=88, documents);
}

#[test]
fn every_requirement_of_the_stacks_has_a_test_that_is_named_for_it_or_a_reason() {
    let but: &[(&[u32], &str)] = &[
        (&[14, 15], "name and image of a control machine: there is none"),
        (&[25, 26, 27], "one command that deploys, watches and goes back: so far CloudFormation's"),
        (&[28], "a listener that must not run twice: webhooks need none"),
        (&[31], "a recommendation for whoever publishes releases"),
        (&[33, 34, 35], "how to look into a control machine: executions and logs take its place"),
        (&[36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48], "the dependency cache: for later"),
    ];
    shown(&function_names(), "r", 1..=68, but);
}

#[test]
fn every_field_report_on_stacks_and_machines_has_a_test_that_is_named_for_it_or_a_reason() {
    let names = function_names();
    shown(&names, "re_", [1, 2, 4, 6, 7, 8, 9, 12, 13, 14, 15], &[]);
    shown(&names, "ic_", [3, 5, 6, 7, 8, 9], &[]);
    shown(&names, "cl_", [2, 3, 6, 7, 8, 9, 10], &[]);
}

#[test]
fn every_page_stands_in_the_summary_once() {
    let summary = read(SUMMARY);
    let mut named: Vec<_> =
        summary.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()).collect();
    named.sort_unstable();
    let pages = pages("docs");
    let pages: Vec<_> =
        pages.iter().filter(|page| *page != SUMMARY).map(|page| &page["docs/".len()..]).collect();
    assert_eq!(named, pages);
}

#[test]
fn links_within_the_project_lead_somewhere() {
    let pages = pages("docs");
    let book: Vec<&str> = pages.iter().map(String::as_str).collect();
    for document in DOCUMENTS.iter().chain(&book) {
        let text = read(document);
        let folder = root().join(document).parent().unwrap().to_owned();
        for link in between(&text, "](", ")") {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(document) } else { folder.join(path) };
            assert!(target.exists(), "{document}: {link}");
            // The book holds nothing that is outside of docs/.
            let target = target.canonicalize().unwrap();
            let inside = target.starts_with(root().join("docs").canonicalize().unwrap());
            assert!(inside || !document.starts_with("docs/"), "{document}: {link} leaves the book");
            if !anchor.is_empty() {
                let target = std::fs::read_to_string(&target).unwrap();
                let found =
                    target.lines().any(|line| line.starts_with('#') && slug(line) == anchor);
                assert!(found, "{document}: no heading for {link}");
            }
        }
    }
}

/// A heading's anchor as GitHub makes it.
fn slug(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}
