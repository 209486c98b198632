//! Policies, asked as IAM would be: by an evaluator that others keep, and by AWS's service authorization data.
//! Questions are collected and asked together, because each start of the evaluator takes a quarter of a second.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::template::{Stack, list, path, resources, scalar};

/// A request's context: keys and values.
pub type Context<'a> = [(&'a str, &'a str)];

/// Asks `tests/policies/evaluate.mjs`.
fn evaluate(questions: &Value) -> Value {
    let mut evaluator = Command::new(path(".venv/bin/node"))
        .arg(path("tests/policies/evaluate.mjs"))
        .arg(path(".venv/policies"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("run .venv/bin/node: {error}; is `make setup` done?"));
    evaluator.stdin.take().unwrap().write_all(questions.to_string().as_bytes()).unwrap();
    let answer = evaluator.wait_with_output().unwrap();
    assert!(answer.status.success(), "the evaluator failed, see above");
    serde_json::from_slice(&answer.stdout).unwrap()
}

/// A policy's document: one whose keys hold parameters is a text.
fn document(value: &Value) -> Value {
    match value {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        document => document.clone(),
    }
}

/// A role's policies: its own, by the properties in the template, and those of several roles.
pub fn documents(stack: &Stack<'_>, role: &str) -> Vec<Value> {
    let properties = stack.properties(role);
    let own = properties["Policies"].as_array().into_iter().flatten().cloned();
    let shared = resources(stack.template, "AWS::IAM::Policy").into_iter();
    let shared = shared.filter(|(_, policy)| {
        let made = stack.makes(policy);
        made && policy["Properties"]["Roles"].as_array().unwrap().contains(&json!({ "Ref": role }))
    });
    let all = own.chain(shared.map(|(id, _)| stack.properties(id)));
    all.map(|policy| document(&policy["PolicyDocument"])).collect()
}

/// All their statements.
pub fn statements(stack: &Stack<'_>, role: &str) -> Vec<Value> {
    let documents = documents(stack, role).into_iter();
    documents.flat_map(|it| it["Statement"].as_array().unwrap().clone()).collect()
}

/// All actions that statements allow.
pub fn allowed(statements: &[Value]) -> std::collections::BTreeSet<String> {
    let allow = statements.iter().filter(|statement| statement["Effect"] == "Allow");
    allow.flat_map(|statement| list(&statement["Action"]).into_iter().map(scalar)).collect()
}

/// What in these statements could never match, by the service authorization data: actions that do not exist, resources
/// that they are not asked about, condition keys that they do not have.
pub fn problems(statements: &[Value]) -> Vec<String> {
    let answer = evaluate(&json!({ "documents": [statements] }));
    answer["documents"][0].as_array().unwrap().iter().map(scalar).collect()
}

/// Questions about a role, with the answers that are expected.
pub struct Cases {
    kind: &'static str,
    subject: Value,
    asked: Vec<Value>,
    expected: Vec<(String, &'static [&'static str])>,
}

const ALLOWED: &[&str] = &["Allowed"];
const REFUSED: &[&str] = &["ImplicitlyDenied", "ExplicitlyDenied"];

impl Cases {
    /// About what a role may do.
    pub fn of(stack: &Stack<'_>, role: &str) -> Self {
        let subject = json!({ "policies": documents(stack, role) });
        Self { kind: "requests", subject, asked: vec![], expected: vec![] }
    }

    /// About who in another account may assume a role.
    pub fn of_trust(stack: &Stack<'_>, role: &str) -> Self {
        let policy = document(&stack.properties(role)["AssumeRolePolicyDocument"]);
        let subject = json!({"policy": policy, "action": "sts:AssumeRole",
            "resource": stack.values[&format!("{role}.Arn")]});
        Self { kind: "trusts", subject, asked: vec![], expected: vec![] }
    }

    /// It may, as EC2 asks for each resource of a launch.
    pub fn allows(&mut self, action: &str, resource: &str, context: &Context<'_>) {
        let what = format!("{action} on {resource} with {context:?}");
        self.ask(what, json!({"action": action, "resource": resource}), context, ALLOWED);
    }

    /// It may not; `what` says what is asked for.
    pub fn refuses(&mut self, what: &str, action: &str, resource: &str, context: &Context<'_>) {
        let what = format!("{what}: {action} on {resource} with {context:?}");
        self.ask(what, json!({"action": action, "resource": resource}), context, REFUSED);
    }

    /// A caller may assume the role, or may not.
    pub fn trusts(&mut self, trusted: bool, principal: &str, context: &Context<'_>) {
        let what = format!("{principal} with {context:?}");
        let expected = if trusted { ALLOWED } else { REFUSED };
        let mut context = context.to_vec();
        context.push(("aws:PrincipalArn", principal));
        self.ask(what, json!({ "principal": principal }), &context, expected);
    }

    fn ask(
        &mut self,
        what: String,
        question: Value,
        context: &Context<'_>,
        expected: &'static [&'static str],
    ) {
        // Keys that have several values, by AWS's list of them.
        let several = ["aws:TagKeys", "dynamodb:LeadingKeys"];
        let value = |key: &str, value: &str| {
            if several.contains(&key) {
                json!(value.split(',').collect::<Vec<_>>())
            } else {
                value.into()
            }
        };
        let context: Map<String, Value> =
            context.iter().map(|(key, text)| ((*key).to_owned(), value(key, text))).collect();
        let mut asked = self.subject.clone();
        let map = asked.as_object_mut().unwrap();
        map.extend(question.as_object().unwrap().clone());
        map.insert("context".into(), context.into());
        self.asked.push(asked);
        self.expected.push((what, expected));
    }

    /// Asks all of them, and fails with those that are answered otherwise.
    pub fn hold(self) {
        assert!(!self.asked.is_empty());
        let answers = evaluate(&json!({ self.kind: self.asked }));
        let answers = answers[self.kind].as_array().unwrap();
        let wrong: Vec<_> = answers
            .iter()
            .zip(&self.expected)
            .filter(|(answer, (_, expected))| !expected.contains(&answer.as_str().unwrap()))
            .map(|(answer, (what, _))| format!("{what} is {answer}"))
            .collect();
        assert_eq!(answers.len(), self.expected.len());
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
