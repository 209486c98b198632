//! The edge in front of a real moto, with functions in Python that speak the Runtime API.

#![allow(clippy::unwrap_used, reason = "tests; the lint's own exemption does not reach helpers")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use ostler_local::aws::{ApiError, Client};
use ostler_local::edge::{FaultKind, FaultRule, InstanceIdentity};
use ostler_local::lambda_host::zip_of;
use ostler_local::world::{World, WorldConfig};
use serde_json::{Value, json};

/// World seconds in a real one.
const SCALE: f64 = 20.0;

/// A function that says in its log what it gets, and does what the event asks.
const FUNCTION: &str = r#"#!/usr/bin/env python3
import base64, gzip, json, os, urllib.request
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
def post(path, body):
    urllib.request.urlopen(urllib.request.Request(api + path, json.dumps(body).encode(), method="POST")).read()
def say(kind, what):
    print(kind, json.dumps(what), flush=True)
def handle(event):
    if "awslogs" in event:
        say("LOGS", json.loads(gzip.decompress(base64.b64decode(event["awslogs"]["data"]))))
    elif "Records" in event:
        say("RECORDS", event)
        bad = [{"itemIdentifier": r["messageId"]} for r in event["Records"] if r["body"] == "bad"]
        return {"batchItemFailures": bad}
    elif "detail-type" in event:
        say("EVENT", event)
    elif "rawPath" in event:
        log = os.environ["AWS_LAMBDA_LOG_FORMAT"] + " " + os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        return {"statusCode": 201, "headers": {"x-log": log}, "body": os.environ["GREETING"] + " " + event.get("body", "")}
    else:
        say("STEP", event)
        job = event.get("job", {})
        if "fail" in job:
            raise ValueError(job["fail"])
        if "once" in job and not os.path.exists(job["once"]):
            open(job["once"], "w").close()
            raise ValueError("Transient")
    return {"seen": event}
while True:
    with urllib.request.urlopen(api + "next") as answer:
        id, event = answer.headers["lambda-runtime-aws-request-id"], json.loads(answer.read())
    try:
        post(id + "/response", handle(event))
    except ValueError as error:
        post(id + "/error", {"errorType": str(error), "errorMessage": "asked for"})
"#;

/// A stack with all that moto leaves out.
const STACK: &str = r#"
Parameters:
  Bucket: {Type: String}
  Key: {Type: String}
Resources:
  Role: {Type: AWS::IAM::Role, Properties: {AssumeRolePolicyDocument: {Version: '2012-10-17', Statement: []}}}
  Function:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: !Sub '${AWS::StackName}-echo'
      Runtime: provided.al2023
      Handler: bootstrap
      Timeout: 10
      Role: !GetAtt Role.Arn
      Code: {S3Bucket: !Ref Bucket, S3Key: !Ref Key}
      LoggingConfig: {LogFormat: JSON, LogGroup: !Ref Logs}
      Environment: {Variables: {GREETING: hello}}
  Url: {Type: AWS::Lambda::Url, Properties: {TargetFunctionArn: !Ref Function, AuthType: NONE}}
  UrlPermission: {Type: AWS::Lambda::Permission, Properties: {FunctionName: !Ref Function, Action: 'lambda:InvokeFunctionUrl', Principal: '*', FunctionUrlAuthType: NONE}}
  InvokePermission: {Type: AWS::Lambda::Permission, Properties: {FunctionName: !Ref Function, Action: 'lambda:InvokeFunction', Principal: '*'}}
  EventPermission: {Type: AWS::Lambda::Permission, Properties: {FunctionName: !Ref Function, Action: 'lambda:InvokeFunction', Principal: events.amazonaws.com}}
  Standard: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 60, DelaySeconds: 20}}
  Fifo: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${AWS::StackName}-reports.fifo', FifoQueue: true, VisibilityTimeout: 60, RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}}}
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${AWS::StackName}-dead.fifo', FifoQueue: true}}
  RuleDead: {Type: AWS::SQS::Queue}
  Mapping: {Type: AWS::Lambda::EventSourceMapping, Properties: {EventSourceArn: !GetAtt Fifo.Arn, FunctionName: !Ref Function, FunctionResponseTypes: [ReportBatchItemFailures]}}
  StandardMapping: {Type: AWS::Lambda::EventSourceMapping, Properties: {EventSourceArn: !GetAtt Standard.Arn, FunctionName: !GetAtt Function.Arn}}
  Table:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: pk, AttributeType: S}]
      KeySchema: [{AttributeName: pk, KeyType: HASH}]
      TimeToLiveSpecification: {AttributeName: ttl, Enabled: true}
  Logs: {Type: AWS::Logs::LogGroup, Properties: {LogGroupName: !Sub '/test/${AWS::StackName}/runners'}}
  Filter: {Type: AWS::Logs::SubscriptionFilter, Properties: {LogGroupName: !Ref Logs, FilterPattern: '"CDKGHR JOB"', DestinationArn: !GetAtt Function.Arn}}
  Schedule: {Type: AWS::Events::Rule, Properties: {ScheduleExpression: rate(1 minute), Targets: [{Id: t, Arn: !GetAtt Function.Arn}]}}
  Machine:
    Type: AWS::StepFunctions::StateMachine
    Properties:
      StateMachineName: !Sub '${AWS::StackName}-machine'
      RoleArn: !GetAtt Role.Arn
      DefinitionString: !Sub '{"StartAt":"A","States":{"A":{"Type":"Task","Resource":"arn:aws:states:::lambda:invoke","Parameters":{"FunctionName":"${Function.Arn}","Payload":{"started.$":"$$.Execution.StartTime","entered.$":"$$.State.EnteredTime","job.$":"$"}},"ResultSelector":{"state.$":"$.Payload"},"Retry":[{"ErrorEquals":["Transient"],"IntervalSeconds":20,"MaxAttempts":2}],"Next":"W"},"W":{"Type":"Wait","Seconds":20,"End":true}}}'
  Ended:
    Type: AWS::Events::Rule
    Properties:
      EventPattern: {source: [aws.states], detail: {status: [FAILED, ABORTED, TIMED_OUT], stateMachineArn: [!Ref Machine]}}
      Targets: [{Id: t, Arn: !GetAtt Function.Arn, RetryPolicy: {MaximumRetryAttempts: 1}, DeadLetterConfig: {Arn: !GetAtt RuleDead.Arn}}]
Outputs:
  Url: {Value: !GetAtt Url.FunctionUrl}
  Machine: {Value: !Ref Machine}
  Fifo: {Value: !Ref Fifo}
  Standard: {Value: !Ref Standard}
  Dead: {Value: !Ref Dead}
  RuleDead: {Value: !Ref RuleDead}
  HandoffTableName: {Value: !Ref Table}
  RunnerLogGroup: {Value: !Ref Logs}
"#;

struct Rig {
    world: World,
    client: Client,
    dir: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = WorldConfig { scale: SCALE, ..WorldConfig::new(dir.path().join("state")) };
        let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
        let client = world.edge.client("operator");
        let rig = Self { world, client, dir };
        rig.client.send("s3", Method::PUT, "/code", &[], Bytes::new()).await.unwrap();
        rig.deploy("1.zip", FUNCTION, STACK).await;
        rig
    }

    async fn deploy(&self, key: &str, function: &str, stack: &str) {
        let zip = zip_of(function.as_bytes()).unwrap();
        self.client.send("s3", Method::PUT, &format!("/code/{key}"), &[], zip).await.unwrap();
        let template = self.dir.path().join("stack.yaml");
        std::fs::write(&template, stack).unwrap();
        let parameters = [("Bucket", "code"), ("Key", key)];
        let deployed = self.world.deploy("test", &template, &parameters).await;
        deployed.unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn output(&self, name: &str) -> String {
        self.world.output(name).unwrap()
    }

    async fn call(&self, service: &str, target: &str, input: Value) -> Value {
        self.client
            .json(service, target, &input)
            .await
            .unwrap_or_else(|error| panic!("{target}: {error}"))
    }

    async fn sqs(&self, action: &str, queue: &str, mut input: Value) -> Value {
        input["QueueUrl"] = json!(self.output(queue));
        self.call("sqs", &format!("AmazonSQS.{action}"), input).await
    }

    async fn states(&self, action: &str, input: Value) -> Result<Value, ApiError> {
        self.client.json("states", &format!("AWSStepFunctions.{action}"), &input).await
    }

    async fn start_execution(&self, name: &str, input: Value) -> Result<Value, ApiError> {
        let machine = self.output("Machine");
        self.states(
            "StartExecution",
            json!({"stateMachineArn": machine, "name": name, "input": input.to_string()}),
        )
        .await
    }

    /// What the function has said of a kind.
    fn said(&self, kind: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.world.edge.lambda().log_path("test-echo"))
            .unwrap_or_default();
        let lines = log.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits (a minute of real time at most) until `find` finds something.
    async fn wait<T>(&self, what: &str, mut find: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..1200 {
            if let Some(found) = find().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("waited in vain for {what}");
    }

    /// Waits until the function has said something of a kind that fits.
    async fn heard(&self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait(kind, async || self.said(kind).into_iter().find(&fits)).await
    }

    /// Bodies of all records of a queue that the function was given, in order.
    fn bodies(&self, queue: &str) -> Vec<String> {
        let records = self.said("RECORDS").into_iter();
        records
            .flat_map(|event| event["Records"].as_array().cloned().unwrap())
            .filter(|record| record["eventSourceARN"].as_str().unwrap().contains(queue))
            .map(|record| record["body"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Everything that needs moto, in one test: starting it takes longer than all of this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_works_as_on_aws() {
    let rig = Rig::start().await;
    function_urls_answer(&rig).await;
    functions_are_changed_by_the_next_deployment(&rig).await;
    executions_run_functions_in_world_time(&rig).await;
    a_name_starts_once_however_many_start_it(&rig).await;
    the_end_of_an_execution_reaches_its_rule(&rig).await;
    an_undelivered_event_becomes_a_dead_letter(&rig).await;
    // Each of these mostly waits.
    let fifo = async {
        fifo_duplicates_are_swallowed(&rig).await;
        only_failed_records_come_again_and_end_as_dead_letters(&rig).await;
    };
    tokio::join!(
        both_of_two_messages_past_the_delay_are_received(&rig),
        fifo,
        subscriptions_filter_and_probe(&rig),
        schedules_fire_in_world_time(&rig),
        expired_items_are_deleted_late(&rig),
    );
    instances_may_do_what_their_role_says(&rig).await;
    faults_hit_in_every_way(&rig).await;
    rig.world.down().await;
}

/// The project's own templates, with the function above in place of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_stacks_are_installed() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "webhook",
        "orchestrator",
        "stolen-runner",
        "reaper",
        "registration-janitor",
        "reconciler",
        "instance-events",
    ] {
        std::fs::write(
            dir.path().join(format!("ostler-{name}")),
            FUNCTION.replace("os.environ[\"GREETING\"]", "\"hi\""),
        )
        .unwrap();
    }
    let config = WorldConfig {
        bin_dir: dir.path().into(),
        scale: SCALE,
        ..WorldConfig::new(dir.path().join("state"))
    };
    let world = World::up(config).await.unwrap_or_else(|error| panic!("{error:#}"));
    world.install(&json!({"tiers": []})).await.unwrap_or_else(|error| panic!("{error:#}"));
    let outputs = [
        "WebhookUrl",
        "StateMachineArn",
        "LedgerTableName",
        "HandoffTableName",
        "ReportQueueUrl",
        "RunnerLogGroup",
        "JanitorDeadLetterQueueUrl",
    ];
    for output in outputs {
        assert!(!world.output(output).unwrap().is_empty(), "{output}");
    }
    let client = world.edge.client("operator");
    let path = "/_url/ostler-webhook/";
    assert_eq!(
        client.send("none", Method::POST, path, &[], "there").await.unwrap().body().as_ref(),
        b"hi there"
    );
    let input = json!({"stateMachineArn": world.output("StateMachineArn").unwrap(), "name": "n", "input": "{}"});
    let mut ends = world.edge.executions_ended();
    client.json("states", "AWSStepFunctions.StartExecution", &input).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), ends.recv()).await.unwrap().unwrap();
    assert_eq!(
        (ended.name.as_str(), ended.status.as_str()),
        ("n", "FAILED"),
        "no step of the stand-in says what is next"
    );
    let names =
        json!({"Names": ["/ostler/control/tiers", "/ostler/control/app"], "WithDecryption": true});
    let found = client.json("ssm", "AmazonSSM.GetParameters", &names).await.unwrap();
    assert_eq!(found["Parameters"].as_array().unwrap().len(), 2);
    assert!(world.deploy("ostler-network", &dir.path().join("none.yaml"), &[]).await.is_err());
    world.down().await;
}

async fn function_urls_answer(rig: &Rig) {
    let url = rig.output("Url");
    let path = url.strip_prefix(rig.world.edge.url()).unwrap();
    let post = async |body: Bytes| rig.client.send("none", Method::POST, path, &[], body).await;
    let answer = post("world".into()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (201, &b"hello world"[..]));
    assert!(answer.headers().contains_key("x-amzn-requestid"));
    assert_eq!(answer.headers()["x-log"], "JSON /test/test/runners");
    assert_eq!(post(Bytes::from(vec![b'x'; (6 << 20) + 1])).await.unwrap_err().status, 413);
    let other = rig.client.send("none", Method::POST, "/_url/other/", &[], Bytes::new()).await;
    assert_eq!(other.unwrap_err().status, 403, "it has no URL");
}

async fn functions_are_changed_by_the_next_deployment(rig: &Rig) {
    let changed = FUNCTION.replace("\"GREETING\"] + \" \"", "\"GREETING\"] + \", \"");
    rig.deploy("2.zip", &changed, &STACK.replace("GREETING: hello", "GREETING: goodbye")).await;
    let path = "/_url/test-echo/";
    let answer = rig.client.send("none", Method::POST, path, &[], "world").await.unwrap();
    assert_eq!(answer.body().as_ref(), b"goodbye, world");
}

async fn executions_run_functions_in_world_time(rig: &Rig) {
    let before = rig.world.clock.now();
    let marker = rig.dir.path().join("once");
    let started = rig.start_execution("good", json!({"once": marker})).await.unwrap();
    let arn = started["executionArn"].as_str().unwrap().to_owned();
    let ended = rig
        .wait("an execution", async || {
            let execution =
                rig.states("DescribeExecution", json!({"executionArn": arn})).await.unwrap();
            (execution["status"] != "RUNNING").then_some(execution)
        })
        .await;
    assert_eq!(ended["status"], "SUCCEEDED", "{ended}");
    let seconds = |value: &Value| value.as_f64().unwrap();
    assert_eq!(started["startDate"], ended["startDate"]);
    assert!((seconds(&started["startDate"]) - before.millis() as f64 / 1000.0).abs() < 1200.0);
    let took = seconds(&ended["stopDate"]) - seconds(&ended["startDate"]);
    assert!(took >= 40.0, "a retry and a wait of 20 s each took {took} s");
    let step = rig.heard("STEP", |step| step["job"]["once"] != Value::Null).await;
    for name in ["started", "entered"] {
        let text = step[name].as_str().unwrap();
        assert!(
            text.ends_with('Z') && ostler_core::time::Timestamp::parse(text).is_some(),
            "{text}"
        );
    }
    let invalid = rig.start_execution("bad name", json!({})).await.unwrap_err();
    assert_eq!(invalid.code, "InvalidName");
    let calls = rig.world.edge.calls();
    assert!(calls["stepfunctions"]["lambda:Invoke"] >= 2, "{calls:?}");
}

async fn a_name_starts_once_however_many_start_it(rig: &Rig) {
    let input = json!({"stateMachineArn": rig.output("Machine"), "name": "same", "input": "{\"same\":true}"});
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, input) = (rig.client.clone(), input.clone());
        starts.spawn(async move {
            client.json("states", "AWSStepFunctions.StartExecution", &input).await.unwrap()
        });
    }
    let answers = starts.join_all().await;
    let dates: BTreeSet<String> =
        answers.iter().map(|answer| answer["startDate"].to_string()).collect();
    assert_eq!(dates.len(), 1, "{answers:?}");
    let other = rig.start_execution("same", json!({"same": false})).await.unwrap_err();
    assert_eq!(other.code, "ExecutionAlreadyExists");
}

async fn the_end_of_an_execution_reaches_its_rule(rig: &Rig) {
    let mut ends = rig.world.edge.executions_ended();
    rig.start_execution("doomed", json!({"fail": "Permanent"})).await.unwrap();
    let event = rig.heard("EVENT", |event| event["detail"]["name"] == "doomed").await;
    assert_eq!(event["source"], "aws.states");
    assert_eq!(event["detail"]["status"], "FAILED");
    assert_eq!(event["detail"]["input"], json!({"fail": "Permanent"}).to_string());
    assert!(event["detail"]["startDate"].as_i64().unwrap() > 1_600_000_000_000);
    let started = rig.start_execution("stopped", json!({})).await.unwrap();
    let stop =
        json!({"executionArn": started["executionArn"], "error": "Operator", "cause": "asked"});
    rig.states("StopExecution", stop).await.unwrap();
    let event = rig.heard("EVENT", |event| event["detail"]["name"] == "stopped").await;
    assert_eq!(
        (&event["detail"]["status"], &event["detail"]["error"]),
        (&json!("ABORTED"), &json!("Operator"))
    );
    let names = async {
        let mut names = BTreeSet::new();
        while !names.is_superset(&BTreeSet::from(["doomed".to_owned(), "stopped".to_owned()])) {
            names.insert(ends.recv().await.unwrap().name);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), names).await.unwrap();
}

async fn an_undelivered_event_becomes_a_dead_letter(rig: &Rig) {
    let faults = rig.world.edge.faults();
    faults.add(
        FaultRule::on("lambda:Invoke", FaultKind::Throttle).by("events").containing("undelivered"),
    );
    rig.start_execution("undelivered", json!({"fail": "Permanent"})).await.unwrap();
    let letter = rig
        .wait("a dead letter", async || {
            let input = json!({"MessageAttributeNames": ["All"]});
            let mut got = rig.sqs("ReceiveMessage", "RuleDead", input).await;
            got["Messages"].get_mut(0).map(Value::take)
        })
        .await;
    faults.clear();
    let body: Value = serde_json::from_str(letter["Body"].as_str().unwrap()).unwrap();
    assert_eq!(body["detail"]["name"], "undelivered");
    let attribute = |name: &str| letter["MessageAttributes"][name]["StringValue"].clone();
    assert_eq!(attribute("EXHAUSTED_RETRY_CONDITION"), "MaximumRetryAttempts");
    assert_eq!(attribute("RETRY_ATTEMPTS"), "1");
}

async fn both_of_two_messages_past_the_delay_are_received(rig: &Rig) {
    let sent_at = rig.world.clock.now();
    let entries =
        json!([{"Id": "a", "MessageBody": "first"}, {"Id": "b", "MessageBody": "second"}]);
    let sent = rig.sqs("SendMessageBatch", "Standard", json!({"Entries": entries})).await;
    assert_eq!(sent["Successful"].as_array().unwrap().len(), 2);
    let counts =
        rig.sqs("GetQueueAttributes", "Standard", json!({"AttributeNames": ["All"]})).await;
    assert_eq!(counts["Attributes"]["ApproximateNumberOfMessagesDelayed"], "2");
    assert_eq!(counts["Attributes"]["DelaySeconds"], "20");
    rig.wait("two records", async || (rig.bodies("Standard").len() == 2).then_some(())).await;
    assert!(rig.world.clock.now().since(sent_at) >= Duration::from_secs(20));
    assert_eq!(
        rig.bodies("Standard").into_iter().collect::<BTreeSet<_>>(),
        BTreeSet::from(["first".into(), "second".into()])
    );
}

async fn fifo_duplicates_are_swallowed(rig: &Rig) {
    let message =
        json!({"MessageBody": "one", "MessageGroupId": "g", "MessageDeduplicationId": "d"});
    let first = rig.sqs("SendMessage", "Fifo", message.clone()).await;
    rig.wait("a record", async || (!rig.bodies("reports").is_empty()).then_some(())).await;
    rig.wait("its deletion", async || {
        let counts =
            rig.sqs("GetQueueAttributes", "Fifo", json!({"AttributeNames": ["All"]})).await;
        (counts["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0").then_some(())
    })
    .await;
    let second = rig.sqs("SendMessage", "Fifo", message).await;
    assert_eq!(first["MessageId"], second["MessageId"]);
    assert_eq!(first["MD5OfMessageBody"], "f97c5d29941bfb1b2fdab0874906ab82");
    rig.world.clock.sleep(Duration::from_secs(30)).await;
    assert_eq!(rig.bodies("reports"), ["one"]);
}

async fn only_failed_records_come_again_and_end_as_dead_letters(rig: &Rig) {
    let entry = |id: &str, body: &str| json!({"Id": id, "MessageBody": body, "MessageGroupId": id, "MessageDeduplicationId": id});
    let entries =
        json!([entry("x", "bad"), entry("y", "fine"), {"Id": "z", "MessageBody": "no group"}]);
    let sent = rig.sqs("SendMessageBatch", "Fifo", json!({"Entries": entries})).await;
    assert_eq!(sent["Failed"][0]["Id"], "z");
    let letter = rig
        .wait("a dead letter", async || {
            let mut got = rig.sqs("ReceiveMessage", "Dead", json!({"WaitTimeSeconds": 20})).await;
            got["Messages"].get_mut(0).map(Value::take)
        })
        .await;
    assert_eq!(letter["Body"], "bad");
    let bodies = rig.bodies("reports");
    let count = |body: &str| bodies.iter().filter(|other| *other == body).count();
    assert_eq!((count("bad"), count("fine")), (3, 1));
    rig.sqs("DeleteMessage", "Dead", json!({"ReceiptHandle": letter["ReceiptHandle"]})).await;
    let missing = json!({"QueueUrl": "http://x/1/none", "MessageBody": "a"});
    let missing = rig.client.json("sqs", "AmazonSQS.SendMessage", &missing).await;
    assert_eq!(missing.unwrap_err().code, "QueueDoesNotExist");
}

async fn subscriptions_filter_and_probe(rig: &Rig) {
    rig.heard("LOGS", |data| data["messageType"] == "CONTROL_MESSAGE").await;
    let group = "/test/test/runners";
    rig.call(
        "logs",
        "Logs_20140328.CreateLogStream",
        json!({"logGroupName": group, "logStreamName": "s"}),
    )
    .await;
    let now = rig.world.clock.now().millis();
    let events = json!([{"timestamp": now, "message": "noise"}, {"timestamp": now, "message": "CDKGHR JOB RUNNER=r"}]);
    let input = json!({"logGroupName": group, "logStreamName": "s", "logEvents": events});
    rig.call("logs", "Logs_20140328.PutLogEvents", input).await;
    let data = rig.heard("LOGS", |data| data["messageType"] == "DATA_MESSAGE").await;
    assert_eq!((&data["logGroup"], &data["logStream"]), (&json!(group), &json!("s")));
    let events = data["logEvents"].as_array().unwrap();
    assert_eq!((events.len(), &events[0]["message"]), (1, &json!("CDKGHR JOB RUNNER=r")));
    assert_eq!(events[0]["id"].as_str().unwrap().len(), 56);
}

async fn schedules_fire_in_world_time(rig: &Rig) {
    let event = rig.heard("EVENT", |event| event["detail-type"] == "Scheduled Event").await;
    assert_eq!(event["source"], "aws.events");
}

async fn expired_items_are_deleted_late(rig: &Rig) {
    let table = rig.output("HandoffTableName");
    let now = rig.world.clock.now().seconds();
    for (pk, ttl) in [("old", now - 200_000), ("due", now - 1000), ("young", now + 1_000_000)] {
        let item = json!({"pk": {"S": pk}, "ttl": {"N": ttl.to_string()}});
        rig.call(
            "dynamodb",
            "DynamoDB_20120810.PutItem",
            json!({"TableName": table, "Item": item}),
        )
        .await;
    }
    let left = async || -> BTreeSet<String> {
        let found =
            rig.call("dynamodb", "DynamoDB_20120810.Scan", json!({"TableName": table})).await;
        found["Items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["pk"]["S"].as_str().unwrap().to_owned())
            .collect()
    };
    let is = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    rig.wait("the expiry", async || (left().await == is(&["due", "young"])).then_some(())).await;
    rig.world.edge.deployments().set_expiry_lag(Duration::ZERO);
    rig.wait("the expiry", async || (left().await == is(&["young"])).then_some(())).await;
}

/// Signed by curl, which shares no code with the edge.
async fn instances_may_do_what_their_role_says(rig: &Rig) {
    let (id, secret, user) =
        ("instance-i-0123456789abcdef0", "their-secret", "AROA1:i-0123456789abcdef0");
    let identity = InstanceIdentity {
        secret: secret.into(),
        session_token: "their-token".into(),
        user_id: user.into(),
    };
    rig.world.edge.set_instance_keys(Arc::new(move |key| (key == id).then(|| identity.clone())));
    let url = rig.world.edge.url().to_owned();
    let send = async |service: &str,
                      target: &str,
                      input: Value,
                      secret: &str,
                      token: &str|
           -> (u64, Value) {
        let stamp: String =
            rig.world.clock.now().to_string().chars().filter(|c| !"-:".contains(*c)).collect();
        let mut curl = tokio::process::Command::new("curl");
        curl.args([
            "-s",
            "-w",
            "\n%{http_code}",
            "--aws-sigv4",
            &format!("aws:amz:us-east-1:{service}"),
        ])
        .args(["-u", &format!("{id}:{secret}"), "-H", &format!("x-amz-date: {stamp}")])
        .args([
            "-H",
            &format!("x-amz-security-token: {token}"),
            "-H",
            &format!("x-amz-target: {target}"),
        ])
        .args([
            "-H",
            "content-type: application/x-amz-json-1.0",
            "-d",
            &input.to_string(),
            &url,
        ]);
        let text = String::from_utf8(curl.output().await.unwrap().stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
    };
    let ask = async |service: &str, target: &str, input: Value| {
        send(service, target, input, secret, "their-token").await
    };
    let table = rig.output("HandoffTableName");
    let get =
        |pk: &str| json!({"TableName": table, "Key": {"pk": {"S": pk}}, "ConsistentRead": true});
    let (group, now) = ("/test/test/runners", rig.world.clock.now().millis());
    let (get_item, delete_item) = ("DynamoDB_20120810.GetItem", "DynamoDB_20120810.DeleteItem");
    assert_eq!(ask("dynamodb", get_item, get(user)).await.0, 200);
    assert_eq!(ask("dynamodb", delete_item, get(user)).await.0, 200);
    let stream = json!({"logGroupName": group, "logStreamName": "mine"});
    assert_eq!(ask("logs", "Logs_20140328.CreateLogStream", stream).await.0, 200);
    let line = json!([{"timestamp": now, "message": "from an instance"}]);
    let put =
        |group: &str| json!({"logGroupName": group, "logStreamName": "mine", "logEvents": line});
    assert_eq!(ask("logs", "Logs_20140328.PutLogEvents", put(group)).await.0, 200);
    for (service, target, input) in [
        ("dynamodb", get_item, get("AROA1:i-another")),
        ("dynamodb", get_item, json!({"TableName": "other", "Key": {"pk": {"S": user}}})),
        (
            "dynamodb",
            "DynamoDB_20120810.PutItem",
            json!({"TableName": table, "Item": {"pk": {"S": user}}}),
        ),
        ("dynamodb", "DynamoDB_20120810.Scan", json!({"TableName": table})),
        ("logs", "Logs_20140328.PutLogEvents", put("/other")),
        (
            "logs",
            "Logs_20140328.GetLogEvents",
            json!({"logGroupName": group, "logStreamName": "mine"}),
        ),
        ("states", "AWSStepFunctions.ListStateMachines", json!({})),
        ("ssm", "AmazonSSM.GetParameters", json!({"Names": ["/ostler/control/app"]})),
    ] {
        let (status, body) = ask(service, target, input).await;
        assert_eq!((status, &body["__type"]), (400, &json!("AccessDeniedException")), "{target}");
    }
    for (secret, token, code) in [
        ("wrong", "their-token", "InvalidSignatureException"),
        (secret, "wrong", "UnrecognizedClientException"),
    ] {
        let (status, body) = send("dynamodb", get_item, get(user), secret, token).await;
        assert_eq!((status, &body["__type"]), (403, &json!(code)));
    }
    let unknown =
        rig.world.edge.client("instance-i-unknown").json("dynamodb", get_item, &get(user)).await;
    assert_eq!(unknown.unwrap_err().code, "UnrecognizedClientException");
}

async fn faults_hit_in_every_way(rig: &Rig) {
    let faults = rig.world.edge.faults();
    let table = rig.output("HandoffTableName");
    let item = |pk: &str| json!({"TableName": table, "Item": {"pk": {"S": pk}}});
    let caller = rig.world.edge.client("fn-somebody");
    let put =
        async |pk: &str| caller.json("dynamodb", "DynamoDB_20120810.PutItem", &item(pk)).await;
    let rule = |kind: FaultKind| FaultRule::on("dynamodb:PutItem", kind).by("fn-somebody").times(1);
    faults.add(rule(FaultKind::Throttle));
    assert_eq!(put("a").await.unwrap_err().code, "ProvisionedThroughputExceededException");
    put("a").await.unwrap();
    faults.add(rule(FaultKind::ServerError));
    assert_eq!(put("b").await.unwrap_err().status, 500);
    faults.add(rule(FaultKind::Error {
        status: 400,
        code: "ValidationException".into(),
        message: "no".into(),
    }));
    assert_eq!(put("b").await.unwrap_err().code, "ValidationException");
    faults.add(rule(FaultKind::Latency { world_seconds: 10.0 }));
    let before = rig.world.clock.now();
    put("b").await.unwrap();
    assert!(rig.world.clock.now().since(before) >= Duration::from_secs(10));
    faults.add(rule(FaultKind::LostResponse));
    assert_eq!(put("lost").await.unwrap_err().status, 0, "no answer");
    let key = json!({"TableName": table, "Key": {"pk": {"S": "lost"}}});
    let found = rig.call("dynamodb", "DynamoDB_20120810.GetItem", key).await;
    assert_eq!(found["Item"]["pk"]["S"], "lost", "but done");
    let calls = rig.world.edge.calls();
    assert_eq!(calls["fn-somebody"]["dynamodb:PutItem"], 6);
    let admin = json!([{"action": "ssm:GetParameters", "kind": "throttle", "times": 1}]);
    rig.client.send("none", Method::POST, "/_edge/faults", &[], admin.to_string()).await.unwrap();
    let get =
        async || rig.client.json("ssm", "AmazonSSM.GetParameters", &json!({"Names": ["x"]})).await;
    assert_eq!(get().await.unwrap_err().code, "ThrottlingException");
    get().await.unwrap();
    rig.client.send("none", Method::POST, "/_edge/reset", &[], "").await.unwrap();
    assert!(rig.world.edge.calls().is_empty());
}
