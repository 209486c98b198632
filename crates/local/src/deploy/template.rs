//! A deployed stack's template as text, with its intrinsic functions resolved against what was created.
//! Source: CloudFormation user guide, "Intrinsic function reference".

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::aws::{ACCOUNT, REGION};

/// Depth of nested functions and conditions: a cycle ends here instead of never.
const DEPTH_MAX: usize = 64;

/// A template and what is known of its stack.
#[derive(Clone, Debug, Default)]
pub struct Template {
    /// The document, short forms (`!Ref`) written out.
    pub document: Value,
    /// Name of the stack.
    pub stack: String,
    /// Parameter values, defaults included.
    pub parameters: BTreeMap<String, String>,
    /// Physical ids by logical id.
    pub physical: BTreeMap<String, String>,
    /// Exports of all stacks.
    pub exports: BTreeMap<String, String>,
    /// Where function URLs are served, without a slash at the end.
    pub edge_url: String,
    /// Account of the stack; the world's own if empty.
    pub account: String,
}

impl Template {
    /// Reads JSON or YAML.
    pub fn parse(text: &str) -> Result<Value, String> {
        let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)
            .map_err(|error| format!("the template is neither YAML nor JSON: {error}"))?;
        written_out(&yaml)
    }

    /// Resources of a type whose condition holds, by logical id, with their properties resolved.
    pub fn resources(&self, kind: &str) -> Result<Vec<(String, Value)>, String> {
        self.found(kind, |properties| properties)
    }

    /// The same of one property, where the others may hold what is not known here.
    pub fn property(&self, kind: &str, name: &str) -> Result<Vec<(String, Value)>, String> {
        self.found(kind, |properties| &properties[name])
    }

    fn found(
        &self,
        kind: &str,
        part: impl Fn(&Value) -> &Value,
    ) -> Result<Vec<(String, Value)>, String> {
        let mut found = Vec::new();
        for (id, resource) in self.document["Resources"].as_object().into_iter().flatten() {
            if resource["Type"] != kind {
                continue;
            }
            if let Some(condition) = resource["Condition"].as_str()
                && !self.condition(condition, 0)?
            {
                continue;
            }
            let value = self
                .resolve(part(&resource["Properties"]), 0)
                .map_err(|error| format!("resource {id} of stack {}: {error}", self.stack))?;
            found.push((id.clone(), value.unwrap_or(Value::Null)));
        }
        Ok(found)
    }

    fn condition(&self, name: &str, depth: usize) -> Result<bool, String> {
        let condition = &self.document["Conditions"][name];
        if condition.is_null() {
            return Err(format!("condition {name} is not defined"));
        }
        self.truth(condition, depth + 1)
    }

    fn truth(&self, condition: &Value, depth: usize) -> Result<bool, String> {
        if depth > DEPTH_MAX {
            return Err("conditions are nested too deeply".to_owned());
        }
        let (name, argument) =
            single(condition).ok_or_else(|| format!("{condition} is no condition"))?;
        let list = argument.as_array().map(Vec::as_slice).unwrap_or_default();
        match name {
            "Condition" => self.condition(argument.as_str().unwrap_or(""), depth),
            "Fn::Equals" => {
                let [left, right] = list else {
                    return Err("Fn::Equals takes two values".to_owned());
                };
                Ok(self.text(left, depth)? == self.text(right, depth)?)
            }
            "Fn::Not" => Ok(!self.truth(list.first().unwrap_or(&Value::Null), depth + 1)?),
            "Fn::And" => {
                list.iter().try_fold(true, |all, each| Ok(all & self.truth(each, depth + 1)?))
            }
            "Fn::Or" => {
                list.iter().try_fold(false, |any, each| Ok(any | self.truth(each, depth + 1)?))
            }
            _ => Err(format!("condition function {name} is not supported")),
        }
    }

    fn text(&self, value: &Value, depth: usize) -> Result<String, String> {
        Ok(match self.resolve(value, depth + 1)? {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        })
    }

    /// `None` stands for `AWS::NoValue`.
    fn resolve(&self, value: &Value, depth: usize) -> Result<Option<Value>, String> {
        if depth > DEPTH_MAX {
            return Err("functions are nested too deeply".to_owned());
        }
        match value {
            Value::Object(object) => {
                if let Some((name, argument)) = single(value)
                    && (name == "Ref" || name.starts_with("Fn::"))
                {
                    return self.call(name, argument, depth + 1);
                }
                let mut out = Map::new();
                for (key, value) in object {
                    if let Some(value) = self.resolve(value, depth + 1)? {
                        out.insert(key.clone(), value);
                    }
                }
                Ok(Some(Value::Object(out)))
            }
            Value::Array(list) => {
                let mut out = Vec::new();
                for value in list {
                    out.extend(self.resolve(value, depth + 1)?);
                }
                Ok(Some(Value::Array(out)))
            }
            plain => Ok(Some(plain.clone())),
        }
    }

    fn call(&self, name: &str, argument: &Value, depth: usize) -> Result<Option<Value>, String> {
        let list = argument.as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |value: &Value| self.text(value, depth);
        let value = match (name, list) {
            ("Ref", _) => {
                let name = argument.as_str().unwrap_or("");
                if name == "AWS::NoValue" {
                    return Ok(None);
                }
                json!(self.reference(name)?)
            }
            ("Fn::GetAtt", _) => {
                let (id, attribute) = match (argument.as_str(), list) {
                    (Some(path), _) => path.split_once('.').unwrap_or((path, "")),
                    (None, [id, attribute]) => {
                        (id.as_str().unwrap_or(""), attribute.as_str().unwrap_or(""))
                    }
                    _ => return Err(format!("Fn::GetAtt does not take {argument}")),
                };
                json!(self.attribute(id, attribute)?)
            }
            ("Fn::Sub", _) => {
                let (pattern, values) = match list {
                    [pattern, values] => (pattern.as_str(), Some(values)),
                    _ => (argument.as_str(), None),
                };
                json!(self.substitute(pattern.ok_or("Fn::Sub takes a text")?, values, depth)?)
            }
            ("Fn::Join", [separator, parts]) => {
                let parts = match self.resolve(parts, depth)?.unwrap_or(Value::Null) {
                    // A parameter that is a list.
                    Value::String(list) => list.split(',').map(str::to_owned).collect(),
                    Value::Array(parts) => {
                        parts.iter().map(text).collect::<Result<Vec<String>, String>>()?
                    }
                    _ => Vec::new(),
                };
                json!(parts.join(separator.as_str().unwrap_or("")))
            }
            ("Fn::Select", [index, choices]) => {
                let index: usize =
                    text(index)?.parse().map_err(|_| format!("Fn::Select by {index}"))?;
                let choices = self.resolve(choices, depth)?.unwrap_or(Value::Null);
                choices
                    .get(index)
                    .cloned()
                    .ok_or_else(|| format!("Fn::Select has no item {index}"))?
            }
            ("Fn::Split", [separator, whole]) => {
                let whole = text(whole)?;
                json!(whole.split(separator.as_str().unwrap_or(",")).collect::<Vec<_>>())
            }
            ("Fn::If", [condition, yes, no]) => {
                let holds = self.condition(condition.as_str().unwrap_or(""), depth)?;
                return self.resolve(if holds { yes } else { no }, depth);
            }
            ("Fn::ImportValue", _) => {
                let name = text(argument)?;
                json!(self.exports.get(&name).ok_or_else(|| format!("no stack exports {name}"))?)
            }
            ("Fn::FindInMap", [map, first, second]) => {
                self.document["Mappings"][text(map)?][text(first)?][text(second)?].clone()
            }
            ("Fn::Base64", _) => {
                use base64::Engine as _;
                json!(base64::engine::general_purpose::STANDARD.encode(text(argument)?))
            }
            _ => return Err(format!("{name} of {argument} is not supported")),
        };
        Ok(Some(value))
    }

    fn account(&self) -> &str {
        if self.account.is_empty() { ACCOUNT } else { &self.account }
    }

    fn reference(&self, name: &str) -> Result<String, String> {
        let pseudo = match name {
            "AWS::AccountId" => self.account(),
            "AWS::Region" => REGION,
            "AWS::Partition" => "aws",
            "AWS::URLSuffix" => "amazonaws.com",
            "AWS::StackName" => &self.stack,
            _ => {
                let known = self.parameters.get(name).or_else(|| self.physical.get(name));
                return known.cloned().ok_or_else(|| {
                    format!("{name} is neither a parameter nor a created resource")
                });
            }
        };
        Ok(pseudo.to_owned())
    }

    fn attribute(&self, id: &str, attribute: &str) -> Result<String, String> {
        let physical = self.reference(id)?;
        let kind = self.document["Resources"][id]["Type"].as_str().unwrap_or("");
        let arn = |service: &str, rest: String| {
            format!("arn:aws:{service}:{REGION}:{}:{rest}", self.account())
        };
        let last = |separator: char| physical.rsplit(separator).next().unwrap_or("").to_owned();
        Ok(match (kind, attribute) {
            (_, "Arn") if physical.starts_with("arn:") => physical,
            ("AWS::Lambda::Function", "Arn") => arn("lambda", format!("function:{physical}")),
            ("AWS::SQS::Queue", "Arn") => arn("sqs", last('/')),
            ("AWS::SQS::Queue", "QueueName") => last('/'),
            ("AWS::SQS::Queue", "QueueUrl") => physical,
            ("AWS::DynamoDB::Table", "Arn") => arn("dynamodb", format!("table/{physical}")),
            ("AWS::Logs::LogGroup", "Arn") => arn("logs", format!("log-group:{physical}:*")),
            ("AWS::Events::Rule", "Arn") => arn("events", format!("rule/{physical}")),
            ("AWS::Events::EventBus", "Arn") => arn("events", format!("event-bus/{physical}")),
            ("AWS::IAM::Role", "Arn") => format!("arn:aws:iam::{}:role/{physical}", self.account()),
            ("AWS::StepFunctions::StateMachine", "Name") => last(':'),
            ("AWS::Lambda::Url", "FunctionUrl") => format!("{}/_url/{}/", self.edge_url, last(':')),
            _ => {
                return Err(format!(
                    "attribute {attribute} of {id} ({kind}) is not known to the local world"
                ));
            }
        })
    }

    fn substitute(
        &self,
        pattern: &str,
        values: Option<&Value>,
        depth: usize,
    ) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once("${") {
            out.push_str(before);
            let (name, after) =
                after.split_once('}').ok_or_else(|| format!("no end of ${{ in {pattern}"))?;
            rest = after;
            let given = values.and_then(|values| values.get(name));
            match (name.strip_prefix('!'), given, name.split_once('.')) {
                (Some(literal), ..) => out.push_str(&format!("${{{literal}}}")),
                (None, Some(value), _) => out.push_str(&self.text(value, depth)?),
                (None, None, Some((id, attribute))) => {
                    out.push_str(&self.attribute(id, attribute)?)
                }
                (None, None, None) => out.push_str(&self.reference(name)?),
            }
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// The one entry of an object that has one.
fn single(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.iter().next().map(|(name, argument)| (name.as_str(), argument))
}

/// YAML to JSON, `!Name x` to `{"Fn::Name": x}`.
fn written_out(yaml: &serde_yaml_ng::Value) -> Result<Value, String> {
    use serde_yaml_ng::Value as Yaml;
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => json!(flag),
        Yaml::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => json!(number),
            (None, Some(number)) => json!(number),
            _ => json!(number.as_f64()),
        },
        Yaml::String(text) => json!(text),
        Yaml::Sequence(list) => {
            Value::Array(list.iter().map(written_out).collect::<Result<_, _>>()?)
        }
        Yaml::Mapping(mapping) => {
            let mut out = Map::new();
            for (key, value) in mapping {
                let key = match written_out(key)? {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                out.insert(key, written_out(value)?);
            }
            Value::Object(out)
        }
        Yaml::Tagged(tagged) => {
            let tag = tagged.tag.to_string();
            let name = tag.trim_start_matches('!');
            let name = if ["Ref", "Condition"].contains(&name) {
                name.to_owned()
            } else {
                format!("Fn::{name}")
            };
            json!({name: written_out(&tagged.value)?})
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
Parameters: {Topic: {Type: String, Default: ''}, List: {Type: CommaDelimitedList}}
Conditions:
  HasTopic: !Not [!Equals [!Ref Topic, '']]
Mappings: {M: {a: {b: mapped}}}
Resources:
  Queue: {Type: AWS::SQS::Queue}
  F: {Type: AWS::Lambda::Function}
  Url: {Type: AWS::Lambda::Url}
  Off: {Type: T, Condition: HasTopic}
  On:
    Type: T
    Properties:
      Arn: !GetAtt Queue.Arn
      Long: {'Fn::GetAtt': [F, Arn]}
      Name: !Sub '${AWS::StackName}-x ${Queue.QueueName} ${!kept} $VAR $$'
      Listed: !Sub ['${A}-${F}', {A: !Ref AWS::Region}]
      Joined: !Join ['/', [a, !Select [1, !Split [',', 'b,c']]]]
      Flat: !Join ['+', !Ref List]
      Chosen: !If [HasTopic, yes, !Ref AWS::NoValue]
      Import: !ImportValue out
      Found: !FindInMap [M, a, b]
      Url: !GetAtt Url.FunctionUrl
      Number: 5
"#;

    fn template(topic: &str) -> Template {
        let pairs = |all: &[(&str, &str)]| {
            all.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
        };
        Template {
            document: Template::parse(TEXT).unwrap(),
            stack: "s".into(),
            parameters: pairs(&[("Topic", topic), ("List", "a,b")]),
            physical: pairs(&[
                ("Queue", "https://us-east-1.queue.amazonaws.com/123456789012/q.fifo"),
                ("F", "s-f"),
                ("Url", "arn:aws:lambda:us-east-1:123456789012:function:s-f"),
            ]),
            exports: pairs(&[("out", "imported")]),
            edge_url: "http://edge".into(),
            account: String::new(),
        }
    }

    #[test]
    fn functions_are_resolved_as_cloudformation_does() {
        let found = template("").resources("T").unwrap();
        assert_eq!(found.len(), 1, "the other one's condition does not hold");
        assert_eq!(
            found[0].1,
            json!({
                "Arn": "arn:aws:sqs:us-east-1:123456789012:q.fifo",
                "Long": "arn:aws:lambda:us-east-1:123456789012:function:s-f",
                "Name": "s-x q.fifo ${kept} $VAR $$",
                "Listed": "us-east-1-s-f",
                "Joined": "a/c",
                "Flat": "a+b",
                "Import": "imported",
                "Found": "mapped",
                "Url": "http://edge/_url/s-f/",
                "Number": 5,
            })
        );
        assert_eq!(template("t").resources("T").unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_known_is_an_error_that_names_it() {
        let mut unknown = template("");
        unknown.physical.clear();
        let error = unknown.resources("T").unwrap_err();
        assert!(
            error.contains("resource On of stack s") && error.contains("is neither"),
            "{error}"
        );
    }
}
