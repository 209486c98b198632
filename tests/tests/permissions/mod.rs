//! Permission coverage: what each role of the local world may do, as deployed, against what was called with it. A call that
//! is not granted would have failed in AWS; a grant that nothing calls is too much, unless the template says why beside it:
//!
//! ```yaml
//! # Uncalled logs:CreateLogStream, logs:PutLogEvents: Lambda writes the log in the function's name.
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use ostler_local::aws::{Client, percent_decode};
use ostler_local::edge::Calls;
use ostler_local::world::World;
use serde_json::Value;

const IAM: &str = "2010-05-08";
/// How far below such a comment the actions may stand that it names, in lines.
const BESIDE: usize = 30;

/// A role, who calls with it, and where its policies are written.
pub struct Subject<'a> {
    /// Key id of the caller, or with `*` what it begins with.
    pub caller: &'a str,
    /// Name of the role.
    pub role: String,
    /// Its account, where it is not the world's own.
    pub account: Option<&'a str>,
    /// Files of infra/, or with `#` a resource in one: only what is written of it counts then.
    pub written: &'a [&'a str],
}

impl<'a> Subject<'a> {
    /// The role of a function.
    pub async fn function(
        world: &World,
        function: &str,
        caller: &'a str,
        written: &'a [&'a str],
    ) -> Self {
        let path = format!("/2015-03-31/functions/{function}/configuration");
        let answer = world.edge.moto().send("lambda", http::Method::GET, &path, &[], "").await;
        let answer: Value = serde_json::from_slice(answer.unwrap().body()).unwrap();
        let role = answer["Role"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        Self { caller, role, account: None, written }
    }
}

/// Grants and calls of a role.
#[derive(Default)]
struct Coverage {
    called: BTreeMap<String, u64>,
    granted: BTreeSet<String>,
    excused: BTreeMap<String, String>,
}

/// Prints the table, and gives what is wrong. `all` says that this world has played everything that its roles are for;
/// without it only calls that are not granted are wrong.
pub async fn covered(world: &World, subjects: &[Subject<'_>], all: bool) -> Vec<String> {
    let calls = world.edge.calls();
    let mut wrong = Vec::new();
    let mut table = String::new();
    for subject in subjects {
        let coverage = Coverage {
            called: called(&calls, subject.caller),
            granted: granted(world, subject).await,
            excused: excused(subject.written),
        };
        let _ = writeln!(table, "\n{:<36} {:>7}  granted", subject.caller, "calls");
        coverage.judge(subject.caller, all, &mut table, &mut wrong);
    }
    // Past what the test runner holds back of tests that pass: it is there to be read.
    std::io::stdout().write_all(format!("\n{table}\n").as_bytes()).unwrap();
    wrong
}

impl Coverage {
    fn judge(&self, caller: &str, all: bool, table: &mut String, wrong: &mut Vec<String>) {
        let actions: BTreeSet<&String> = self.granted.iter().chain(self.called.keys()).collect();
        for action in actions {
            let calls = self.called.get(action).copied().unwrap_or(0);
            let excuse = self.excused.get(action);
            let granted = self.granted.contains(action);
            let word = match (granted, calls, excuse) {
                (false, ..) => "NO",
                (true, 0, Some(why)) => why,
                (true, 0, None) => "never called",
                (true, ..) => "yes",
            };
            let _ = writeln!(table, "  {action:<34} {calls:>7}  {word}");
            if !granted {
                wrong.push(format!("{caller} calls {action}, which its role does not grant"));
            } else if all && calls == 0 && excuse.is_none() {
                wrong.push(format!(
                    "{caller} may call {action} and never does: take it away, or say why in a comment beside it"
                ));
            }
        }
    }
}

/// Operations that IAM knows by the name of another (service authorization data).
const AS_ANOTHER: [(&str, &str); 2] =
    [("lambda:Invoke", "lambda:InvokeFunction"), ("sqs:SendMessageBatch", "sqs:SendMessage")];

/// Calls of a caller by IAM action.
fn called(calls: &Calls, caller: &str) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    let is = |name: &str| match caller.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == caller,
    };
    for (_, actions) in calls.iter().filter(|(name, _)| is(name)) {
        for (action, count) in actions {
            let known = AS_ANOTHER.iter().find(|(operation, _)| operation == action);
            let action = known.map_or(action.as_str(), |(_, known)| known);
            *sum.entry(action.to_owned()).or_default() += count;
        }
    }
    sum
}

/// Actions that the deployed role allows.
async fn granted(world: &World, subject: &Subject<'_>) -> BTreeSet<String> {
    let iam = world.edge.moto().in_account(subject.account);
    let role = [("RoleName", subject.role.as_str())];
    let listed = query(&iam, "ListRolePolicies", &role).await;
    let names: Vec<_> = listed
        .list("ListRolePoliciesResult/PolicyNames")
        .iter()
        .map(|name| name.text.trim().to_owned())
        .collect();
    assert!(!names.is_empty(), "{} has no policy", subject.role);
    let mut actions = BTreeSet::new();
    for name in names {
        let answer = query(
            &iam,
            "GetRolePolicy",
            &[("RoleName", subject.role.as_str()), ("PolicyName", name.as_str())],
        )
        .await;
        let document = answer.text_at("GetRolePolicyResult/PolicyDocument");
        let document = match document.starts_with('%') {
            true => percent_decode(document.as_bytes()),
            false => document.to_owned(),
        };
        let document: Value = serde_json::from_str(&document).unwrap();
        for statement in document["Statement"].as_array().unwrap() {
            if statement["Effect"] == "Allow" {
                let given = &statement["Action"];
                let given = given.as_array().cloned().unwrap_or_else(|| vec![given.clone()]);
                actions.extend(given.iter().map(|action| action.as_str().unwrap().to_owned()));
            }
        }
    }
    actions
}

async fn query(iam: &Client, action: &str, parameters: &[(&str, &str)]) -> ostler_local::xml::Node {
    iam.query("iam", IAM, action, parameters).await.unwrap()
}

/// The actions that comments in these files excuse, with the reasons.
fn excused(files: &[&str]) -> BTreeMap<String, String> {
    let mut excused = BTreeMap::new();
    for file in files {
        let (name, resource) = file.split_once('#').unwrap_or((file, ""));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../infra").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = match resource {
            "" => text.lines().map(str::trim).collect(),
            resource => {
                let start = format!("  {resource}:");
                let own = text.lines().skip_while(|line| *line != start).skip(1);
                own.take_while(|line| line.is_empty() || line.starts_with("    "))
                    .map(str::trim)
                    .collect()
            }
        };
        assert!(!lines.is_empty(), "{file} is not there");
        for (at, line) in lines.iter().enumerate() {
            let Some((actions, why)) =
                line.strip_prefix("# Uncalled ").and_then(|rest| rest.split_once(": "))
            else {
                continue;
            };
            let below = lines[at + 1..].iter().take(BESIDE).copied();
            let below: Vec<&str> = below.filter(|line| !line.starts_with('#')).collect();
            for action in actions.split(", ") {
                assert!(
                    below.iter().any(|line| line.contains(action)),
                    "{file}:{}: {action} is not granted beside this comment",
                    at + 1
                );
                excused.insert(action.to_owned(), why.to_owned());
            }
        }
    }
    excused
}
