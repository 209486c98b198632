//! `ostler config check`: tiers and App settings are judged before anything uses them. All problems are
//! told at once, each with its line, its key, and what is allowed.

mod account;
mod beside;
mod faults;
mod lines;
mod words;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use ostler_core::apps;
use ostler_core::config::{AppSettings, Registration, Settings, Tiers};
use ostler_core::names::NameKey;
use ostler_core::secret::Secret;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::output::{Mark, Output};
use crate::shell::Shell;
use lines::{Lines, Path, Step, written};
use words::{APP_KEYS, Said, TIER_KEYS, nearest, said};

#[derive(Subcommand)]
pub enum Config {
    /// Says all that is wrong with tiers and App settings: in a file, or as they are in SSM
    Check(Check),
}

#[derive(clap::Args, Clone, Debug)]
pub struct Check {
    /// A file as control/tiers, control/app or control/apps is to be; `-` for the standard input.
    /// Without it the parameters in SSM are checked
    file: Option<PathBuf>,
    /// Does not ask AWS about images, instance types, subnets, roles and limits
    #[arg(long)]
    offline: bool,
    /// The control stack, for its subnets
    #[arg(long, default_value = "ostler")]
    stack: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// The functions leave that part out, or can't work with it.
    Fail,
    /// It works, and is probably not what was meant.
    Warn,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// File or parameter.
    pub source: String,
    /// From 1; none where there is no text.
    pub line: Option<usize>,
    /// The tier's name, or its place from 1 where it has none.
    pub tier: Option<String>,
    /// As `labels[0]`; empty for the whole.
    pub key: String,
    /// How bad it is.
    pub level: Level,
    /// What is wrong.
    pub problem: String,
    /// What to do; empty where the problem says it.
    pub hint: String,
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tiers,
    App,
    Apps,
}

/// A text to check, and where it comes from.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    kind: Kind,
    text: String,
}

impl Source {
    fn finding(&self, line: usize, level: Level, key: String, said: Said) -> Finding {
        let Said { problem, hint } = said;
        let (source, line) = (self.name.clone(), Some(line));
        Finding { source, line, tier: None, key, level, problem, hint }
    }
}

/// What has been judged: the findings, and the tiers that are left when all is mended.
struct Judged {
    findings: Vec<Finding>,
    tiers: Tiers,
    /// Each valid tier's line, by its name, and the source.
    places: BTreeMap<String, (String, usize)>,
}

/// Runs the command.
pub async fn run(shell: &Shell, command: Config) -> anyhow::Result<Exit> {
    let Config::Check(check) = command;
    let findings = check_all(shell, &check).await?;
    tell(&shell.output, &findings);
    Ok(if valid(&findings) { Exit::Done } else { Exit::Faults })
}

/// Whether the functions can work with all of it.
pub fn valid(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.level != Level::Fail)
}

/// Says what was found, the worst first.
pub fn tell(output: &Output, findings: &[Finding]) {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (failures, warnings) = (count(Level::Fail), count(Level::Warn));
    let answer = json!({"valid": failures == 0, "findings": findings});
    output.answer(&answer, || {
        let mut text: String =
            findings.iter().map(|finding| format!("{}\n", line_of(output, finding))).collect();
        text.push_str(&match (failures, warnings) {
            (0, 0) => output.paint(Mark::Ok, "The configuration is valid."),
            (0, _) => format!("The configuration is valid, with {warnings} warnings."),
            _ => {
                format!("The configuration is not valid: {failures} problems, {warnings} warnings.")
            }
        });
        text
    });
}

/// `tiers.json:4: FAIL tier 'small': max_idle: …`
fn line_of(output: &Output, finding: &Finding) -> String {
    let mark = match finding.level {
        Level::Fail => output.paint(Mark::Fail, "FAIL"),
        Level::Warn => output.paint(Mark::Warn, "WARN"),
    };
    let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
    let tier = finding.tier.as_ref().map(|tier| format!(" tier '{tier}':")).unwrap_or_default();
    let key = if finding.key.is_empty() { String::new() } else { format!(" {}:", finding.key) };
    let hint = if finding.hint.is_empty() { String::new() } else { format!("; {}", finding.hint) };
    format!("{}{line}: {mark}{tier}{key} {}{hint}", finding.source, finding.problem)
}

/// Everything that can be found, as the flags ask.
pub async fn check_all(shell: &Shell, check: &Check) -> anyhow::Result<Vec<Finding>> {
    let (sources, mut findings) = match &check.file {
        Some(file) => {
            let name = file.display().to_string();
            let text = if name == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map(|_| text)
            } else {
                std::fs::read_to_string(file)
            };
            let text = text.with_context(|| format!("read {name}"))?;
            (vec![Source { kind: kind_of(&text), name, text }], vec![])
        }
        None => installed(shell).await?,
    };
    let judged = judge(&sources);
    findings.extend(judged.findings);
    if !check.offline && sources.iter().any(|source| source.kind == Kind::Tiers) {
        let work = account::look(shell, &check.stack, &judged.tiers);
        let seen = shell.output.progress("Asking AWS", None, work).await;
        for found in account::judge(&judged.tiers, &seen) {
            let place = judged.places.get(&found.tier);
            let (source, line) = match place {
                Some((source, line)) => (source.clone(), Some(*line)),
                None => (sources[0].name.clone(), None),
            };
            let tier = (!found.tier.is_empty()).then_some(found.tier);
            let account::Found { key, level, problem, hint, .. } = found;
            findings.push(Finding { source, line, tier, key, level, problem, hint });
        }
    }
    findings.sort_by(|a, b| (a.level, &a.source, a.line).cmp(&(b.level, &b.source, b.line)));
    Ok(findings)
}

/// The parameters in SSM, and what is wrong with those that are no text to check.
async fn installed(shell: &Shell) -> anyhow::Result<(Vec<Source>, Vec<Finding>)> {
    let name = |name: &str| shell.parameter(&format!("control/{name}"));
    let names = ["tiers", "app", "apps", "app-private-key", "webhook-secret", "name-key"].map(name);
    let aws = shell.aws().await;
    let texts = ostler_aws::read_parameters(&aws, &names);
    let texts = shell.output.progress("Reading the parameters", None, texts).await?;
    let [tiers, app, apps, key, secret, name_key] = names;
    let mut findings = Vec::new();
    let mut missing = |name: &str, problem: &str, hint: &str| {
        findings.push(Finding {
            source: name.to_owned(),
            line: None,
            tier: None,
            key: String::new(),
            level: Level::Fail,
            problem: problem.to_owned(),
            hint: hint.to_owned(),
        });
    };
    let text = |name: &String| texts.get(name).filter(|text| !text.expose().trim().is_empty());
    if text(&key).and_then(apps::private_key).is_none() {
        missing(&key, "there is no private key in it", "store the App's key, a PEM file");
    }
    if text(&secret).is_none() {
        missing(&secret, "is not set", "it is what GitHub signs deliveries with: make secrets");
    }
    if text(&name_key).and_then(|text| NameKey::new(text.expose())).is_none() {
        missing(&name_key, "is not set or too short", "make secrets makes one; it never changes");
    }
    let mut sources = Vec::new();
    for (name, kind, needed) in
        [(tiers, Kind::Tiers, true), (app, Kind::App, true), (apps, Kind::Apps, false)]
    {
        match text(&name) {
            Some(text) => sources.push(Source { name, kind, text: text.expose().to_owned() }),
            None if needed => missing(&name, "is not set", "see docs/settings.md"),
            None => {}
        }
    }
    Ok((sources, findings))
}

/// What a text is meant to be, by its keys.
fn kind_of(text: &str) -> Kind {
    match serde_json::from_str(text) {
        Ok(Value::Array(_)) => Kind::Apps,
        Ok(Value::Object(object)) if object.keys().any(|key| is_of_app(key)) => Kind::App,
        _ => Kind::Tiers,
    }
}

fn is_of_app(key: &str) -> bool {
    key != "tiers" && nearest(key, &APP_KEYS.map(|(key, _)| key)).is_some()
}

/// Judges the texts, offline.
fn judge(sources: &[Source]) -> Judged {
    let of = |kind| sources.iter().filter(move |source| source.kind == kind);
    let mut findings = Vec::new();
    let mut registration = Registration::default();
    for source in of(Kind::App) {
        let (found, app) = judge_app(source);
        findings.extend(found);
        registration = app.map(|app| app.registration).unwrap_or_default();
    }
    for source in of(Kind::Apps) {
        findings.extend(judge_apps(source));
    }
    let mut judged = Judged { findings, tiers: Tiers::default(), places: BTreeMap::new() };
    for source in of(Kind::Tiers) {
        judge_tiers(source, registration, &mut judged);
    }
    judged
}

/// The value of a JSON text, or the finding that it is none.
fn parsed(source: &Source) -> Result<Value, Box<Finding>> {
    serde_json::from_str(&source.text).map_err(|error| {
        let text = error.to_string();
        let problem = text.split(" at line ").next().unwrap_or(&text).to_owned();
        let hint = format!("the text is no JSON from column {} on", error.column());
        Box::new(source.finding(error.line(), Level::Fail, String::new(), Said { problem, hint }))
    })
}

/// Keys that stand twice.
fn twice<'a>(source: &'a Source, lines: &'a Lines) -> impl Iterator<Item = Finding> + 'a {
    lines.twice.iter().map(|path| {
        let said = Said {
            problem: "the key stands twice in one object".into(),
            hint: "only the last one counts: remove one".into(),
        };
        source.finding(lines.line(path), Level::Fail, written(path), said)
    })
}

fn last_key(path: &[Step]) -> Option<&str> {
    path.iter().rev().find_map(|step| match step {
        Step::Key(key) => Some(key.as_str()),
        Step::At(_) => None,
    })
}

fn judge_app(source: &Source) -> (Vec<Finding>, Option<AppSettings>) {
    let value = match parsed(source) {
        Ok(value) => value,
        Err(finding) => return (vec![*finding], None),
    };
    let lines = Lines::of(&source.text);
    let mut findings: Vec<_> = twice(source, &lines).collect();
    let sound = Map::from_iter([("app_id".to_owned(), json!(1))]);
    let (faults, mended) = faults::all(&value, &sound, app_problem);
    findings.extend(faults.into_iter().map(|fault| {
        let said = said(&fault.text, last_key(&fault.path), &APP_KEYS);
        source.finding(lines.line(&fault.path), Level::Fail, written(&fault.path), said)
    }));
    (findings, serde_json::from_value(mended).ok())
}

/// What the functions would say of the App's settings, and what would fail at GitHub.
fn app_problem(value: &Value) -> Option<String> {
    let app: AppSettings = match serde_json::from_value(value.clone()) {
        Ok(app) => app,
        Err(error) => return Some(error.to_string()),
    };
    if app.app_id == 0 {
        return Some("app_id 0 is no App's id; its page at GitHub shows it".into());
    }
    if let Err(error) = ostler_github::api_address(&app.github_url) {
        return Some(error.to_string());
    }
    let pattern = |pattern: &&String| {
        let mut parts = pattern.split('/');
        let part = |part: Option<&str>| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-*".contains(&byte);
            part.is_some_and(|part| !part.is_empty() && part.bytes().all(fits))
        };
        // One star alone is all of them.
        *pattern == "*" || part(parts.next()) && part(parts.next()) && parts.next().is_none()
    };
    if let Some(bad) = app.repositories.allow.iter().find(|one| !pattern(one)) {
        return Some(format!("'{bad}' must be owner/name, with * for any text, as acme/*"));
    }
    let name = app.selector.as_deref().unwrap_or("selector");
    (name.trim().is_empty() || name.contains(char::is_whitespace)).then(|| {
        "selector must be the name or ARN of a Lambda function; leave it out for none".into()
    })
}

fn judge_apps(source: &Source) -> Vec<Finding> {
    let lines = Lines::of(&source.text);
    let problem = |problem: String| Said {
        problem,
        hint: r#"it is a list of {"idParamName": "…", "keyParamName": "…"}"#.into(),
    };
    match (apps::read_manifest(&source.text), parsed(source)) {
        (_, Err(finding)) => vec![*finding],
        (Err(text), Ok(_)) => vec![source.finding(1, Level::Fail, String::new(), problem(text))],
        (Ok(_), Ok(value)) => value
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .filter_map(|(at, entry)| {
                let alone = Value::Array(vec![entry.clone()]).to_string();
                let (_, problems) = apps::read_manifest(&alone).ok()?;
                let path = [Step::At(at)];
                let said = Said {
                    problem: "does not say idParamName and keyParamName".into(),
                    hint: "both are names of SSM parameters".into(),
                };
                (!problems.is_empty())
                    .then(|| source.finding(lines.line(&path), Level::Fail, written(&path), said))
            })
            .collect(),
    }
}

/// A tier that is valid, whatever its name.
fn sound_tier(name: &str) -> Map<String, Value> {
    let tier = json!({"name": name, "architecture": "x64", "images": ["ami-1"],
        "instance_types": ["m7i.large"]});
    tier.as_object().cloned().unwrap_or_default()
}

/// What the functions would say of tiers and App's settings.
fn problems(tiers: &str, registration: Registration) -> Vec<String> {
    let level =
        if registration == Registration::Repository { "repository" } else { "organization" };
    let app = json!({"app_id": 1, "registration": level}).to_string();
    let texts = BTreeMap::from([
        ("control/tiers".to_owned(), Secret::new(tiers)),
        ("control/app".to_owned(), Secret::new(app)),
    ]);
    Settings::from_parameters(&texts).tiers.problems
}

/// The same of one tier alone, without the words that say which.
fn tier_problem(tier: &Value, registration: Registration) -> Option<String> {
    let text = problems(&json!({"tiers": [tier]}).to_string(), registration).into_iter().next()?;
    let called =
        tier["name"].as_str().map_or_else(|| "tier 1: ".into(), |n| format!("tier '{n}': "));
    Some(text.strip_prefix(&called).map(str::to_owned).unwrap_or(text))
}

fn judge_tiers(source: &Source, registration: Registration, judged: &mut Judged) {
    let value = match parsed(source) {
        Ok(value) => value,
        Err(finding) => return judged.findings.push(*finding),
    };
    let lines = Lines::of(&source.text);
    judged.findings.extend(twice(source, &lines));
    let fail =
        |path: &[Step], said| source.finding(lines.line(path), Level::Fail, written(path), said);
    let keys = value.as_object().map(|object| object.keys().collect::<Vec<_>>());
    for other in keys.into_iter().flatten().filter(|key| *key != "tiers") {
        let problem = format!("unknown key '{other}', which is not looked at");
        let hint = nearest(other, &["tiers"]).map(|_| "did you mean 'tiers'?".to_owned());
        let said = Said { problem, hint: hint.unwrap_or_default() };
        let path: Path = vec![Step::Key(other.clone())];
        let level = Level::Warn;
        judged.findings.push(source.finding(lines.line(&path), level, written(&path), said));
    }
    let Some(tiers) = value["tiers"].as_array() else {
        let said = Said {
            problem: "there is no list 'tiers'".into(),
            hint: r#"it is {"tiers": [ … ]}"#.into(),
        };
        return judged.findings.push(fail(&["tiers".into()], said));
    };
    let mut names: Vec<&str> = Vec::new();
    let mut mended_tiers = Vec::new();
    for (at, tier) in tiers.iter().enumerate() {
        let place: Path = vec!["tiers".into(), at.into()];
        let name = tier["name"].as_str();
        let called = name.map_or_else(|| (at + 1).to_string(), str::to_owned);
        let judge = |tier: &Value| tier_problem(tier, registration);
        let own = format!("tier-{}", at + 1);
        let (faults, mut mended) = faults::all(tier, &sound_tier(&own), judge);
        let invalid = !faults.is_empty();
        let told = faults.into_iter().map(|fault| {
            (fault.path.clone(), { said(&fault.text, last_key(&fault.path), &TIER_KEYS) })
        });
        let mut told: Vec<_> = told.collect();
        if name.is_some_and(|name| names.contains(&name)) {
            let said = Said {
                problem: format!("the name '{called}' is taken by an earlier tier"),
                hint: "each tier has a name of its own".into(),
            };
            told.push((vec!["name".into()], said));
            mended["name"] = json!(own);
        }
        names.extend(name);
        for (path, said) in told {
            let whole = [place.clone(), path.clone()].concat();
            let finding = source.finding(lines.line(&whole), Level::Fail, written(&path), said);
            judged.findings.push(Finding { tier: Some(called.clone()), ..finding });
        }
        // What is beside the point of an invalid tier can wait until it is mended.
        if !invalid {
            let place = (source.name.clone(), lines.line(&place));
            judged.places.insert(mended["name"].as_str().unwrap_or_default().to_owned(), place);
            mended_tiers.push(mended);
        }
    }
    let whole = json!({ "tiers": mended_tiers }).to_string();
    for text in problems(&whole, registration) {
        judged.findings.push(fail(&["tiers".into()], Said { problem: text, hint: String::new() }));
    }
    judged.tiers = Tiers::parse(&whole);
    for (tier, found) in beside::judge(&judged.tiers) {
        let beside::Found { key, level, said } = found;
        let at = tiers.iter().position(|one| one["name"] == tier.as_str()).unwrap_or(0);
        let path: Path = vec!["tiers".into(), at.into(), key.into()];
        let finding = source.finding(lines.line(&path), level, key.to_owned(), said);
        judged.findings.push(Finding { tier: Some(tier), ..finding });
    }
}

#[cfg(test)]
mod tests;
