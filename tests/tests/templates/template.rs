//! CloudFormation templates as JSON, and enough of CloudFormation to evaluate what stands in them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use serde_yaml_ng::Value as Yaml;

/// All templates as they are deployed.
pub const TEMPLATES: [&str; 8] = [
    "infra/accounts.yaml",
    "infra/byoc-role.yaml",
    "infra/control.yaml",
    "infra/network.yaml",
    "infra/observability.yaml",
    "infra/reaper.yaml",
    "infra/recovery.yaml",
    "infra/registration-janitor.yaml",
];

/// A file of the project.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Its text.
pub fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A template with all short forms written out: `!GetAtt A.B` is `{"Fn::GetAtt": ["A", "B"]}`.
pub fn template(name: &str) -> Value {
    parse(&text(name))
}

/// The same of a text.
pub fn parse(text: &str) -> Value {
    plain(serde_yaml_ng::from_str(text).unwrap())
}

fn plain(yaml: Yaml) -> Value {
    match yaml {
        Yaml::Tagged(tagged) => {
            let name = tagged.tag.to_string();
            let value = plain(tagged.value);
            match name.trim_start_matches('!') {
                short @ ("Ref" | "Condition") => json!({ short: value }),
                "GetAtt" => {
                    let (resource, attribute) = value.as_str().unwrap().split_once('.').unwrap();
                    json!({"Fn::GetAtt": [resource, attribute]})
                }
                function => json!({ format!("Fn::{function}"): value }),
            }
        }
        Yaml::Mapping(pairs) => Value::Object(
            pairs
                .into_iter()
                .map(|(key, value)| (key.as_str().unwrap().into(), plain(value)))
                .collect(),
        ),
        Yaml::Sequence(items) => Value::Array(items.into_iter().map(plain).collect()),
        Yaml::Null => Value::Null,
        Yaml::Bool(value) => value.into(),
        Yaml::Number(value) => serde_json::to_value(value).unwrap(),
        Yaml::String(value) => value.into(),
    }
}

/// The resources of a type, by logical id.
pub fn resources<'a>(template: &'a Value, kind: &str) -> BTreeMap<&'a str, &'a Value> {
    let all = template["Resources"].as_object().unwrap();
    all.iter()
        .filter(|(_, resource)| resource["Type"] == kind)
        .map(|(id, resource)| (id.as_str(), resource))
        .collect()
}

/// A stack: a template with values for its parameters.
pub struct Stack<'a> {
    pub template: &'a Value,
    /// The value of `Ref`, and with a dot of `Fn::GetAtt`.
    pub values: BTreeMap<String, String>,
}

impl<'a> Stack<'a> {
    /// With the parameters' defaults and plausible ids, which `values` replaces or adds to.
    pub fn new(template: &'a Value, values: &[(&str, &str)]) -> Self {
        let pseudo = [
            ("AWS::StackName", "stack"),
            ("AWS::Region", "eu-west-1"),
            ("AWS::AccountId", "111122223333"),
            ("AWS::Partition", "aws"),
            ("AWS::URLSuffix", "amazonaws.com"),
        ];
        let mut stack = Self { template, values: BTreeMap::new() };
        for (name, parameter) in template["Parameters"].as_object().unwrap() {
            let value = parameter.get("Default").map_or_else(|| format!("some-{name}"), scalar);
            stack.values.insert(name.clone(), value);
        }
        for (name, value) in pseudo.iter().chain(values) {
            stack.values.insert(name.to_string(), value.to_string());
        }
        for (id, resource) in template["Resources"].as_object().unwrap() {
            stack.identify(id, resource);
        }
        stack
    }

    /// Adds a resource's `Ref` and attributes.
    fn identify(&mut self, id: &str, resource: &Value) {
        let kind = resource["Type"].as_str().unwrap();
        let named = match kind {
            "AWS::Logs::LogGroup" => "LogGroupName",
            "AWS::SQS::Queue" => "QueueName",
            "AWS::Lambda::Function" => "FunctionName",
            "AWS::StepFunctions::StateMachine" => "StateMachineName",
            _ => "",
        };
        let named = resource["Properties"].get(named);
        // What CloudFormation makes of an id where no name is given.
        let name = named.map_or_else(
            || format!("{}-{id}-ABCDEFGHIJKLM", self.value("AWS::StackName")),
            |name| scalar(&self.evaluate(name)),
        );
        let (region, account) = (self.value("AWS::Region"), self.value("AWS::AccountId"));
        let arn =
            |service: &str, rest: String| format!("arn:aws:{service}:{region}:{account}:{rest}");
        let (reference, attributes) = match kind {
            "AWS::IAM::Role" => (
                name.clone(),
                vec![
                    ("Arn", format!("arn:aws:iam::{account}:role/{name}")),
                    ("RoleId", "AROAEXAMPLEEXAMPLE123".into()),
                ],
            ),
            "AWS::Logs::LogGroup" => {
                (name.clone(), vec![("Arn", arn("logs", format!("log-group:{name}:*")))])
            }
            "AWS::SQS::Queue" => (
                format!("https://sqs.{region}.amazonaws.com/{account}/{name}"),
                vec![("Arn", arn("sqs", name.clone())), ("QueueName", name)],
            ),
            "AWS::StepFunctions::StateMachine" => {
                let arn = arn("states", format!("stateMachine:{name}"));
                (arn.clone(), vec![("Arn", arn)])
            }
            "AWS::EC2::LaunchTemplate" => {
                (format!("lt-0123456789{id}"), vec![("LatestVersionNumber", "12345".into())])
            }
            "AWS::KinesisFirehose::DeliveryStream" => {
                (name.clone(), vec![("Arn", arn("firehose", format!("deliverystream/{name}")))])
            }
            "AWS::DynamoDB::Table" => {
                (name.clone(), vec![("Arn", arn("dynamodb", format!("table/{name}")))])
            }
            "AWS::Lambda::Function" => {
                (name.clone(), vec![("Arn", arn("lambda", format!("function:{name}")))])
            }
            _ => (name.clone(), vec![("Arn", arn("other", name))]),
        };
        self.values.insert(id.to_owned(), reference);
        for (attribute, value) in attributes {
            self.values.insert(format!("{id}.{attribute}"), value);
        }
    }

    fn value(&self, name: &str) -> String {
        self.values.get(name).unwrap_or_else(|| panic!("nothing is known of {name}")).clone()
    }

    fn holds(&self, condition: &str) -> bool {
        match self.evaluate(&self.template["Conditions"][condition]) {
            Value::Bool(value) => value,
            other => panic!("condition {condition} is {other}"),
        }
    }

    /// Whether a resource is made.
    pub fn makes(&self, resource: &Value) -> bool {
        resource["Condition"].as_str().is_none_or(|condition| self.holds(condition))
    }

    /// A value with all functions in it applied. What `AWS::NoValue` stands for is left out.
    pub fn evaluate(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) => match map.iter().next() {
                Some((name, argument)) if map.len() == 1 => {
                    self.function(name, argument).unwrap_or_else(|| self.map(map))
                }
                _ => self.map(map),
            },
            Value::Array(items) => items
                .iter()
                .map(|item| self.evaluate(item))
                .filter(|item| !item.is_null())
                .collect(),
            other => other.clone(),
        }
    }

    fn map(&self, map: &Map<String, Value>) -> Value {
        let pairs = map.iter().map(|(key, value)| (key.clone(), self.evaluate(value)));
        Value::Object(pairs.filter(|(_, value)| !value.is_null()).collect())
    }

    fn function(&self, name: &str, argument: &Value) -> Option<Value> {
        let arguments = |index: usize| self.evaluate(&argument[index]);
        Some(match name {
            "Ref" => match argument.as_str().unwrap() {
                "AWS::NoValue" => Value::Null,
                name => self.value(name).into(),
            },
            "Condition" if argument.is_string() => self.holds(&scalar(argument)).into(),
            "Fn::And" => {
                argument.as_array().unwrap().iter().all(|it| self.evaluate(it) == true).into()
            }
            "Fn::GetAtt" => {
                self.value(&format!("{}.{}", scalar(&argument[0]), scalar(&argument[1]))).into()
            }
            "Fn::Sub" => match argument.as_array() {
                None => self.substitute(argument.as_str().unwrap(), &Value::Null).into(),
                Some(pair) => {
                    self.substitute(pair[0].as_str().unwrap(), &self.evaluate(&pair[1])).into()
                }
            },
            "Fn::Split" => {
                let whole = scalar(&arguments(1));
                json!(whole.split(&scalar(&argument[0])).collect::<Vec<_>>())
            }
            "Fn::Select" => {
                let index: usize = scalar(&argument[0]).parse().unwrap();
                match arguments(1) {
                    Value::Array(items) => items[index].clone(),
                    _ => return None,
                }
            }
            "Fn::Join" => {
                // A list parameter is the comma-joined text here.
                let parts = match arguments(1) {
                    Value::Array(parts) => parts.iter().map(scalar).collect(),
                    list => scalar(&list).split(',').map(str::to_owned).collect::<Vec<_>>(),
                };
                parts.join(&scalar(&argument[0])).into()
            }
            "Fn::If" => arguments(if self.holds(argument[0].as_str().unwrap()) { 1 } else { 2 }),
            "Fn::Equals" => (scalar(&arguments(0)) == scalar(&arguments(1))).into(),
            "Fn::Not" => (!arguments(0).as_bool().unwrap()).into(),
            "Fn::FindInMap" => {
                let key = |index: usize| argument[index].as_str().unwrap();
                self.template["Mappings"][key(0)][key(1)][key(2)].clone()
            }
            // Left as text: what matters is what was encoded.
            "Fn::Base64" => self.evaluate(argument),
            _ => return None,
        })
    }

    /// `own` are the values that stand in the function itself.
    fn substitute(&self, text: &str, own: &Value) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').unwrap();
            out += before;
            match name.strip_prefix('!') {
                Some(literal) => out += &format!("${{{literal}}}"),
                None => match own.get(name) {
                    Some(value) => out += &scalar(value),
                    None => out += &self.value(name),
                },
            }
            rest = after;
        }
        out + rest
    }

    /// The evaluated properties of a resource.
    pub fn properties(&self, id: &str) -> Value {
        self.evaluate(&self.template["Resources"][id]["Properties"])
    }
}

/// A scalar as text, however it was written.
pub fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A value as a list: itself, or what it holds.
pub fn list(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |items| items.iter().collect())
}
