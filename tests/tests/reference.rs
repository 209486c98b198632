//! The reference pages of the book are made from what they tell of: the templates, the tables of keys, the functions' code.
//! `make reference` (`UPDATE=1` for these tests) writes them anew; without it they must be what would be written.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use ostler_core::keys::{self, Key, Without};
use ostler_core::metrics;
use serde_yaml_ng::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Writes the page if `UPDATE` is set; asserts that it is there as it should be.
fn check(page: &str, made: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(root().join(page), made).unwrap();
    }
    let there = std::fs::read_to_string(root().join(page)).unwrap_or_default();
    assert!(there == made, "{page} is stale: `make reference` writes it anew");
}

/// A table's cell: one line, and no bar that would end it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

// --- The stacks ---

/// The templates in the order in which they are deployed, with what there is to say of each as a whole.
const STACKS: [(&str, &str); 8] = [
    (
        "network",
        "A VPC for those who have none to give. The [quick start](quick-start.md) deploys it first.",
    ),
    (
        "control",
        "The control plane. The stack's name becomes part of names that AWS limits: at most 50 characters.",
    ),
    (
        "recovery",
        "What finds jobs that wait unnoticed, and hears of machines that end. One for each control stack.",
    ),
    (
        "reaper",
        "What ends instances past their time. It needs none of the other stacks ([more](operations.md#the-reaper)).",
    ),
    (
        "observability",
        "A dashboard, and alarms on the install as a whole ([more](operations.md#observability)). It only reads metrics.",
    ),
    (
        "registration-janitor",
        "What removes registrations that were left behind. It has [a page of its own](registration-janitor.md).",
    ),
    (
        "accounts",
        "In the control plane's account, for [runners in other accounts](other-accounts.md). One for each region.",
    ),
    ("byoc-role", "In each of those other accounts ([more](other-accounts.md))."),
];

/// A parameter's type, and what its constraints come to, in words.
fn limits(parameter: &Value) -> String {
    let mut limits = vec![code(parameter["Type"].as_str().unwrap())];
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => serde_yaml_ng::to_string(other).unwrap().trim().to_owned(),
    };
    if let Some(values) = parameter["AllowedValues"].as_sequence() {
        limits.push(values.iter().map(|value| code(&text(value))).collect::<Vec<_>>().join(", "));
    }
    match (&parameter["MinValue"], &parameter["MaxValue"]) {
        (Value::Null, Value::Null) => {}
        (least, Value::Null) => limits.push(format!("at least {}", text(least))),
        (Value::Null, most) => limits.push(format!("at most {}", text(most))),
        (least, most) => limits.push(format!("{} to {}", text(least), text(most))),
    }
    if !parameter["MaxLength"].is_null() {
        limits.push(format!("at most {} characters", text(&parameter["MaxLength"])));
    }
    if let Some(pattern) = parameter["AllowedPattern"].as_str() {
        limits.push(code(pattern));
    }
    limits.join("; ")
}

fn default(parameter: &Value) -> String {
    match &parameter["Default"] {
        Value::Null => "**required**".into(),
        Value::String(text) if text.is_empty() => "empty".into(),
        Value::String(text) => code(text),
        other => code(serde_yaml_ng::to_string(other).unwrap().trim()),
    }
}

fn description(of: &str, name: &str, value: &Value) -> String {
    let text = value["Description"].as_str();
    cell(text.unwrap_or_else(|| {
        panic!("{of}: {name} needs a description, for this page and the console")
    }))
}

fn stacks() -> String {
    let mut page = String::from(
        "<!-- Made from infra/*.yaml by `make reference`. Do not edit. -->\n\n# Parameters and outputs of the stacks\n\n\
         Every parameter and output of the templates in `infra/`. A parameter without a default has to be given. A limit \
         that looks like\n`^…$` is a regular expression that the value must match.\n",
    );
    for (name, about) in STACKS {
        let file = format!("infra/{name}.yaml");
        let template: Value = serde_yaml_ng::from_str(&read(&file)).unwrap();
        page += &format!("\n## {name}\n\n`{file}`. {about}\n");
        page +=
            "\n| parameter | default | meaning | type and limits |\n| --- | --- | --- | --- |\n";
        for (key, parameter) in template["Parameters"].as_mapping().unwrap() {
            let key = key.as_str().unwrap();
            let default = default(parameter);
            let meaning = description(&file, key, parameter);
            let limits = limits(parameter);
            page += &format!("| `{key}` | {default} | {meaning} | {limits} |\n");
        }
        page += "\n| output | meaning |\n| --- | --- |\n";
        for (key, output) in template["Outputs"].as_mapping().unwrap() {
            let key = key.as_str().unwrap();
            page += &format!("| `{key}` | {} |\n", description(&file, key, output));
        }
    }
    page
}

#[test]
fn the_reference_of_parameters_and_outputs_is_made_from_the_templates() {
    check("docs/stacks.md", &stacks());
}

#[test]
fn every_template_stands_on_the_page() {
    let mut there: Vec<String> = std::fs::read_dir(root().join("infra"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".yaml").map(str::to_owned))
        // Those are sources of others, and what a linter is told.
        .filter(|name| !name.ends_with(".src") && name != "checkov")
        .collect();
    there.sort();
    let mut here: Vec<_> = STACKS.map(|(name, _)| name.to_owned()).to_vec();
    here.sort();
    assert_eq!(there, here);
}

// --- Keys and SSM parameters ---

fn keys(table: &[Key]) -> String {
    let mut text = String::from(
        "\n| key | default | meaning | type and limits |\n| --- | --- | --- | --- |\n",
    );
    for Key { name, kind, without, limits, meaning } in table {
        let without = match without {
            Without::Invalid => "**required**".into(),
            Without::Same(value) => code(value),
            Without::Else(words) => (*words).to_owned(),
        };
        let limits = if limits.is_empty() { String::new() } else { format!("; {limits}") };
        text += &format!("| `{name}` | {without} | {meaning} | {kind}{limits} |\n");
    }
    text
}

/// The functions whose `PARAMETERS` name it.
fn readers(parameter: &str) -> Vec<String> {
    let mut readers = Vec::new();
    for entry in std::fs::read_dir(root().join("functions")).unwrap() {
        let function = entry.unwrap().file_name().into_string().unwrap();
        let code = read(&format!("functions/{function}/src/main.rs"));
        if code.contains(&format!("\"{parameter}\"")) {
            readers.push(function);
        }
    }
    readers.sort();
    readers
}

fn settings() -> String {
    let mut page = String::from(
        "<!-- Made from crates/core/src/keys.rs by `make reference`. Do not edit. -->\n\n# Tiers, App settings and SSM \
         parameters\n\n## SSM parameters\n\nUnder the stack's `Prefix`, `/ostler` as a rule. `make secrets` writes them. A \
         change is seen within five minutes. If a read\nfails, the last settings go on being used.\n",
    );
    page += "\n| name | type | read by | what |\n| --- | --- | --- | --- |\n";
    for keys::Parameter { name, kind, meaning } in keys::PARAMETERS {
        let readers = readers(name);
        assert!(!readers.is_empty(), "nothing reads {name}");
        page += &format!("| `{name}` | {kind} | {} | {meaning} |\n", readers.join(", "));
    }
    page += "| `images/…` | String | orchestrator | image ids, for tiers that name them |\n";
    page += "\n## A tier\n\nAn object in the list `tiers` of `control/tiers`: `{\"tiers\": [ … ]}`, at most 200. \
             [Tiers](tiers.md) explains them. A key that is\nnot in these tables makes the tier invalid. Durations are a \
             number and `s`, `m`, `h` or `d`.\n";
    page += &keys(keys::TIER);
    page += "\n### spot_breaker\n";
    page += &keys(keys::SPOT_BREAKER);
    page +=
        "\n### account\n\nThe output `Account` of a stack of `infra/byoc-role.yaml`, as it is.\n";
    page += &keys(keys::ACCOUNT);
    page += "\n## The App\n\n`control/app`, one object. A key that is not in these tables makes all of it invalid: the webhook \
             then answers 503 to jobs,\nand its log says why.\n";
    page += &keys(keys::APP);
    page += "\n### repositories\n";
    page += &keys(keys::REPOSITORIES);
    page
}

#[test]
fn the_reference_of_settings_is_made_from_the_tables_of_keys() {
    check("docs/settings.md", &settings());
}

#[test]
fn the_table_of_ssm_parameters_has_all_that_a_function_reads() {
    for entry in std::fs::read_dir(root().join("functions")).unwrap() {
        let main = entry.unwrap().path().join("src/main.rs");
        let code = std::fs::read_to_string(main).unwrap();
        for name in code.split('"').filter(|text| text.starts_with("control/")) {
            assert!(keys::PARAMETERS.iter().any(|parameter| parameter.name == name), "{name}");
        }
    }
}

// --- Metrics ---

#[test]
fn the_reference_of_metrics_is_made_from_their_table() {
    check("docs/metrics.md", &metrics::reference());
}
