//! What the documents show can be done as it stands there: the JSON is accepted, the commands name targets, paths,
//! templates and parameters that exist. Lines of `ostler` are tested beside the command line (`crates/cli`), which
//! also runs the blocks that are marked for it.

// All of this is test code, which the lints on panics can't see outside of the test functions themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ostler_core::apps::read_manifest;
use ostler_core::config::{Settings, Tiers};
use ostler_core::labels::Labels;
use ostler_core::secret::Secret;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The documents: the pages of the book, and those at the root.
fn documents() -> Vec<String> {
    let pages = std::fs::read_dir(root().join("docs")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = pages.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    pages.chain(["README.md", "CONTRIBUTING.md"].map(str::to_owned)).collect()
}

/// A fenced block.
struct Block {
    document: String,
    /// What stands behind the fence: `sh`, `json tiers`.
    info: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for document in documents() {
        let text = read(&document);
        let mut open: Option<Block> = None;
        for line in text.lines() {
            let bare = line.trim_start();
            match (&mut open, bare.strip_prefix("```")) {
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => block.text += &format!("{line}\n"),
                (None, Some(info)) => {
                    let (document, info) = (document.clone(), info.to_owned());
                    open = Some(Block { document, info, text: String::new() });
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{document}: a block has no end");
    }
    blocks
}

fn shell() -> Vec<Block> {
    blocks().into_iter().filter(|block| block.info.starts_with("sh")).collect()
}

/// The commands of a block, each on one line, without comments.
fn commands(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" # ").next().unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn every_block_says_what_it_is() {
    let kinds = [
        "sh",
        "sh run",
        "console",
        "text",
        "yaml",
        "json",
        "json tiers",
        "json app",
        "json manifest",
    ];
    for Block { document, info, text } in blocks() {
        assert!(kinds.contains(&info.as_str()), "{document}: {info:?}, of {text}");
    }
}

#[test]
fn shown_tiers_app_settings_and_manifests_are_accepted() {
    let mut seen = BTreeSet::new();
    for Block { document, info, text } in blocks() {
        match info.as_str() {
            "json tiers" => {
                let tiers = Tiers::parse(&text);
                assert_eq!(tiers.problems, Vec::<String>::new(), "{document}");
                assert!(tiers.iter().next().is_some(), "{document}");
            }
            "json app" => {
                let texts = BTreeMap::from([("control/app".to_owned(), Secret::new(text))]);
                let settings = Settings::from_parameters(&texts);
                assert!(settings.app.is_some(), "{document}: {:?}", settings.tiers.problems);
            }
            "json manifest" => {
                let (apps, problems) = read_manifest(&text).unwrap();
                assert!(problems.is_empty() && !apps.is_empty(), "{document}: {problems:?}");
            }
            // Where something is left out, it is not the whole of it.
            "json" => {
                let whole = !text.contains('…') && !text.contains("providers");
                assert!(!whole || text.contains("provider"), "{document}: label {text}");
                continue;
            }
            _ => continue,
        }
        seen.insert(info);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn the_page_on_tiers_says_which_tier_its_jobs_go_to() {
    let tiers = blocks().into_iter().find(|block| block.document == "docs/tiers.md").unwrap();
    let tiers = Tiers::parse(&tiers.text);
    let page = read("docs/tiers.md");
    let rows = page.split_once("| `runs-on` | tier |\n| --- | --- |\n").unwrap().1;
    let rows: Vec<_> = rows.lines().take_while(|row| row.starts_with('|')).collect();
    for row in &rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let labels = cells[0].trim_matches(|c| "`[]".contains(c)).split(", ");
        let chosen = tiers.select(&Labels::new(labels)).map(|tier| format!("`{}`", tier.name));
        let said = cells[1].split(':').next().unwrap();
        assert_eq!(chosen.as_deref().unwrap_or("none"), said, "{row}");
    }
    assert!(rows.len() > 5);
}

#[test]
fn shell_blocks_are_shell() {
    for block in shell() {
        let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(block.text.as_bytes()).unwrap();
        assert!(bash.wait().unwrap().success(), "{}: {}", block.document, block.text);
    }
}

#[test]
fn targets_of_make_exist() {
    let makefile = read("Makefile");
    let mut seen = 0;
    let mut check = |document: &str, command: &str| {
        let Some(rest) = command.strip_prefix("make ") else { return };
        for word in rest.split(['\'', '"']).next().unwrap().split_whitespace() {
            if let Some((name, _)) = word.split_once('=') {
                assert!(makefile.contains(&format!("$({name})")), "{document}: {command}");
            } else {
                assert!(makefile.contains(&format!("\n{word}:")), "{document}: {command}");
                seen += 1;
            }
        }
    };
    for block in shell() {
        commands(&block).iter().for_each(|command| check(&block.document, command));
    }
    for document in documents() {
        let text = read(&document);
        for span in spans(&text) {
            check(&document, &span);
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn what_make_secrets_is_told_it_takes() {
    let script = read("scripts/secrets.sh");
    for block in shell() {
        for command in commands(&block).iter().filter(|it| it.starts_with("make secrets")) {
            let options =
                command.split("--").skip(1).map(|rest| rest.split(['=', ' ', '\'']).next());
            for option in options.map(Option::unwrap) {
                let known = script.contains(&format!("--{option})"));
                assert!(known, "{}: --{option} of {command}", block.document);
            }
        }
    }
}

/// The texts between single backquotes, outside of blocks.
fn spans(text: &str) -> Vec<String> {
    let mut spans = Vec::new();
    let mut fenced = false;
    let mut paragraph = String::new();
    let mut end = |paragraph: &mut String| {
        spans.extend(paragraph.split('`').skip(1).step_by(2).map(str::to_owned));
        paragraph.clear();
    };
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if line.trim().is_empty() || line.starts_with('|') {
            end(&mut paragraph);
        }
        if !fenced && !line.trim_start().starts_with("```") {
            paragraph += &format!("{line} ");
        }
    }
    end(&mut paragraph);
    spans
}

#[test]
fn paths_of_the_project_exist() {
    let folders = [
        "infra/",
        "crates/",
        "functions/",
        "scripts/",
        "tests/",
        "docs/",
        "fuzz/",
        "bench/",
        ".ci/",
    ];
    let mut seen = 0;
    for document in documents() {
        let text = read(&document);
        let code = blocks().into_iter().filter(|block| block.document == document);
        let code = code
            .flat_map(|block| block.text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for path in spans(&text).into_iter().chain(code) {
            let path = path.trim_end_matches(['/', ',', ')']);
            let ours = folders.iter().any(|folder| path.starts_with(folder));
            let plain = |c: char| c.is_ascii_alphanumeric() || "./_-*".contains(c);
            if !ours || !path.chars().all(plain) {
                continue;
            }
            seen += 1;
            // As far as it is one path, and not a pattern of several.
            let path = path.split_once('*').map_or(path, |(start, _)| {
                start.rsplit_once('/').map_or(start, |(folder, _)| folder)
            });
            assert!(root().join(path).exists(), "{document}: {path}");
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn deployments_name_templates_and_their_parameters() {
    let mut seen = BTreeSet::new();
    for block in shell() {
        for command in commands(&block).iter().filter(|it| it.contains("cloudformation deploy")) {
            let (_, rest) = command.split_once("--template-file ").unwrap();
            let file = rest.split_whitespace().next().unwrap();
            let template: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read(file)).unwrap();
            let parameters = template["Parameters"].as_mapping().unwrap();
            let given: BTreeSet<&str> = command
                .split_once("--parameter-overrides ")
                .map_or("", |(_, given)| given)
                .split_whitespace()
                .filter_map(|pair| pair.split_once('=').map(|(name, _)| name))
                .collect();
            for name in &given {
                let known = parameters.contains_key(*name);
                assert!(known, "{}: {file} has no parameter {name}", block.document);
            }
            for (name, parameter) in parameters {
                let name = name.as_str().unwrap();
                let required = parameter.get("Default").is_none();
                assert!(
                    !required || given.contains(name),
                    "{}: {file} needs {name}",
                    block.document
                );
            }
            // Roles: CloudFormation refuses them without a word.
            let text = read(file);
            let roles = text.contains("AWS::IAM::");
            assert_eq!(roles, command.contains("--capabilities CAPABILITY_IAM"), "{command}");
            seen.insert(file.to_owned());
        }
    }
    assert!(seen.len() > 5, "{seen:?}");
}

/// Says what is wrong with each line of its input: a service, an operation, and options of it. By the models that the AWS
/// CLI itself is made of.
const AWS_MODELS: &str = r#"
import sys
import botocore.session
from botocore import xform_name

COMMON = {"--output", "--query", "--region", "--profile", "--endpoint-url", "--no-cli-pager", "--cli-binary-format",
          "--cli-read-timeout", "--cli-input-json"}
# What the CLI adds to the services' own operations.
OWN = {("cloudformation", "deploy"), ("logs", "tail"), ("s3", "cp"), ("s3", "sync")}
session = botocore.session.get_session()
for line in sys.stdin:
    service, operation, *options = line.split()
    if (service, operation) in OWN:
        continue
    try:
        model = session.get_service_model(service)
    except Exception as error:
        print(f"{line.strip()}: {error}")
        continue
    names = {xform_name(name, "-"): name for name in model.operation_names}
    if operation not in names:
        print(f"{line.strip()}: no such operation")
        continue
    shape = model.operation_model(names[operation]).input_shape
    known = {f"--{xform_name(name, '-')}" for name in (shape.members if shape else {})}
    for option in options:
        if option not in known | COMMON and option.replace("--no-", "--", 1) not in known:
            print(f"{line.strip()}: no such option as {option}")
"#;

#[test]
fn commands_of_aws_exist_with_their_options() {
    let texts = documents().into_iter().flat_map(|document| spans(&read(&document)));
    let blocks = shell().iter().flat_map(commands).collect::<Vec<_>>();
    let mut lines = BTreeSet::new();
    for command in texts.chain(blocks) {
        let command = command.trim_start_matches(".venv/bin/").to_owned();
        let Some(rest) = command.strip_prefix("aws ") else { continue };
        // A pipe or another command ends it.
        let words: Vec<_> =
            rest.split_whitespace().take_while(|word| !["|", "&&", ">"].contains(word)).collect();
        if words.len() < 2 || words.iter().take(2).any(|word| word.starts_with('-')) {
            continue;
        }
        let options = words.iter().skip(2).filter(|word| word.starts_with("--"));
        let options = options.map(|word| word.split('=').next().unwrap().to_owned());
        let own = words[..2].iter().map(|word| (*word).to_owned());
        lines.insert(own.chain(options).collect::<Vec<_>>().join(" "));
    }
    assert!(lines.len() > 10, "{lines:?}");
    let python = root().join(".venv/bin/python");
    let mut python = Command::new(python)
        .args(["-c", AWS_MODELS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("make setup");
    let text = lines.into_iter().collect::<Vec<_>>().join("\n");
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = python.wait_with_output().unwrap();
    assert!(said.status.success());
    assert_eq!(String::from_utf8(said.stdout).unwrap(), "");
}
