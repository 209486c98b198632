//! Dead-letter queues of all templates: each has an alarm, and an operator's tool that knows it.

use serde_json::Value;

use crate::template::{TEMPLATES, path, resources, template, text};

/// The queues of a template into which something is put aside that could not be handled: by a queue, by a rule or by an
/// asynchronous invocation.
fn dead_letter_queues(template: &Value) -> Vec<String> {
    let mut found = Vec::new();
    targets(&template["Resources"], &mut found);
    found.sort();
    found.dedup();
    found
}

/// What is named as such a target anywhere below.
fn targets(value: &Value, found: &mut Vec<String>) {
    let named = |target: &Value| {
        let queue = target["Fn::GetAtt"][0].as_str();
        queue
            .unwrap_or_else(|| panic!("a dead-letter queue that is no resource's: {target}"))
            .to_owned()
    };
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                match name.as_str() {
                    "deadLetterTargetArn" => found.push(named(inner)),
                    "DeadLetterConfig" => {
                        // Of a rule, a function, a schedule.
                        let arn = inner.get("Arn").or_else(|| inner.get("TargetArn"));
                        found.push(named(arn.unwrap_or(inner)));
                    }
                    "OnFailure" => found.push(named(&inner["Destination"])),
                    _ => targets(inner, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| targets(item, found)),
        _ => {}
    }
}

/// The queue that an alarm watches for messages, if that is what it does.
fn watched(alarm: &Value) -> Option<String> {
    let properties = &alarm["Properties"];
    let visible = properties["MetricName"] == "ApproximateNumberOfMessagesVisible"
        && properties["Namespace"] == "AWS/SQS"
        && properties["Threshold"] == 1
        && properties["ComparisonOperator"] == "GreaterThanOrEqualToThreshold";
    let dimension = properties["Dimensions"].as_array().filter(|_| visible)?.first()?;
    let queue = dimension["Value"]["Fn::GetAtt"].as_array()?;
    (queue[1] == "QueueName").then(|| queue[0].as_str().map(str::to_owned))?
}

/// What is wrong with the dead-letter queues of a template.
fn problems(name: &str, template: &Value) -> Vec<String> {
    let alarms: Vec<String> = resources(template, "AWS::CloudWatch::Alarm")
        .values()
        .filter_map(|it| watched(it))
        .collect();
    let queues = resources(template, "AWS::SQS::Queue");
    let mut wrong = Vec::new();
    for queue in dead_letter_queues(template) {
        if !alarms.contains(&queue) {
            wrong.push(format!("{name}: nobody hears of what is in {queue}: give it an alarm"));
        }
        let properties = &queues[queue.as_str()]["Properties"];
        if properties["MessageRetentionPeriod"] != 1_209_600 {
            wrong.push(format!("{name}: {queue} does not keep messages for 14 days"));
        }
        let named = properties["QueueName"]["Fn::Sub"].as_str().unwrap_or("");
        if !named.trim_end_matches(".fifo").ends_with("-dead") {
            wrong.push(format!("{name}: the name of {queue} does not end in -dead"));
        }
    }
    // And one that is called so is one.
    for (id, queue) in &queues {
        let called = queue["Properties"]["QueueName"]["Fn::Sub"].as_str().unwrap_or("");
        if called.contains("-dead") && !dead_letter_queues(template).iter().any(|it| it == id) {
            wrong.push(format!("{name}: nothing is put aside into {id}"));
        }
    }
    wrong
}

#[test]
fn every_dead_letter_queue_has_an_alarm_and_keeps_messages_for_a_fortnight() {
    let mut all = 0;
    for name in TEMPLATES {
        let template = template(name);
        assert_eq!(problems(name, &template), Vec::<String>::new());
        all += dead_letter_queues(&template).len();
    }
    assert_eq!(all, 4, "of reports, ended executions, instances, confirmations");
}

/// Each takes an alarm away, and each adds a queue without one.
#[test]
fn a_dead_letter_queue_without_an_alarm_is_noticed() {
    for name in ["infra/control.yaml", "infra/recovery.yaml", "infra/registration-janitor.yaml"] {
        let good = template(name);
        for (id, alarm) in resources(&good, "AWS::CloudWatch::Alarm") {
            if watched(alarm).is_some() {
                let mut bad = good.clone();
                bad["Resources"].as_object_mut().unwrap().remove(id);
                assert_eq!(problems(name, &bad).len(), 1, "{name} without {id}");
            }
        }
        let mut bad = good.clone();
        bad["Resources"]["MoreLetters"] = serde_json::json!({"Type": "AWS::SQS::Queue", "Properties":
            {"QueueName": {"Fn::Sub": "${AWS::StackName}-more-dead"}, "MessageRetentionPeriod": 1_209_600}});
        bad["Resources"]["More"] = serde_json::json!({"Type": "AWS::Lambda::EventInvokeConfig", "Properties":
            {"DestinationConfig": {"OnFailure": {"Destination": {"Fn::GetAtt": ["MoreLetters", "Arn"]}}}}});
        assert_eq!(problems(name, &bad).len(), 1, "{name} with one more");
    }
}

/// The tool, and what it says to do with each in the operations manual.
#[test]
fn the_operators_tool_and_the_manual_know_every_dead_letter_queue() {
    let sources =
        std::fs::read_dir(path("crates/cli/src")).unwrap().map(|entry| entry.unwrap().path());
    let sources = sources.filter(|it| it.extension().is_some_and(|end| end == "rs"));
    let tool: String = sources.map(|it| std::fs::read_to_string(it).unwrap()).collect();
    let manual = text("docs/operations.md");
    for name in TEMPLATES {
        let template = template(name);
        let queues = resources(&template, "AWS::SQS::Queue");
        for queue in dead_letter_queues(&template) {
            let called = queues[queue.as_str()]["Properties"]["QueueName"]["Fn::Sub"].as_str();
            let suffix = called.unwrap().rsplit('}').next().unwrap();
            assert!(tool.contains(suffix), "ostler dlq does not know <stack>{suffix}");
            assert!(manual.contains(suffix), "docs/operations.md says nothing of <stack>{suffix}");
        }
    }
}
