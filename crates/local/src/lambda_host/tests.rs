use super::*;

/// A runtime in bash: the event's `do` says what happens.
const RUNTIME: &str = r#"#!/bin/bash
base="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime"
if [ -n "$INIT_FAILS" ]; then
  curl -s "$base/init/error" -d '{"errorType":"Init","errorMessage":"no"}' >/dev/null; exit 1
fi
[ -n "$INIT_EXITS" ] && exit 3
echo '{"_aws":{"CloudWatchMetrics":[{"Namespace":"N","Dimensions":[[],["Tier"]],"Metrics":[{"Name":"Started"}]}]},"Tier":"t","Started":2}'
count=0
while true; do
  event=$(curl -s -D "head.$$" "$base/invocation/next"); id=$(grep -i request-id "head.$$" | tr -d '\r' | cut -d' ' -f2)
  count=$((count + 1))
  case "$event" in
    *crash*) kill -9 $$ ;;
    *leave*) exit 7 ;;
    *sleep*) sleep 30 ;;
    *pause*) sleep 0.4 ;;
    *fail*) curl -s "$base/invocation/$id/error" -d '{"errorType":"Transient","errorMessage":"x"}' >/dev/null; continue ;;
    *huge*) head -c 7000000 /dev/zero | curl -s "$base/invocation/$id/response" --data-binary @- >/dev/null; continue ;;
  esac
  curl -s "$base/invocation/$id/response" -d "{\"pid\":$$,\"count\":$count,\"key\":\"$AWS_ACCESS_KEY_ID\",\"token\":\"$AWS_SESSION_TOKEN\",\"own\":\"$OWN\"}" >/dev/null
done
"#;

struct Rig {
    host: Arc<Host>,
    _dir: tempfile::TempDir,
}

async fn rig(change: impl Fn(&mut FunctionConfig)) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::new(WorldClock::starting_now(60.0), dir.path(), "http://127.0.0.1:1", None);
    let mut config = FunctionConfig {
        name: "f".to_owned(),
        timeout: Duration::from_secs(2),
        memory_mb: 128,
        environment: BTreeMap::from([("OWN".to_owned(), "mine".to_owned())]),
        ..FunctionConfig::default()
    };
    change(&mut config);
    host.define(config, &zip_of(RUNTIME.as_bytes()).unwrap()).await.unwrap();
    Rig { host, _dir: dir }
}

impl Rig {
    async fn ask(&self, what: &str) -> Outcome {
        self.host.invoke("f", format!("{{\"do\":\"{what}\"}}").into()).await.unwrap().1
    }

    async fn value(&self, what: &str) -> Value {
        let outcome = self.ask(what).await;
        assert!(!outcome.error, "{outcome:?}");
        serde_json::from_slice(&outcome.payload).unwrap()
    }
}

#[tokio::test]
async fn a_warm_sandbox_is_used_again_and_knows_its_function() {
    let rig = rig(|_| ()).await;
    let (first, second) = (rig.value("a").await, rig.value("b").await);
    assert_eq!(first["pid"], second["pid"]);
    assert_eq!(second["count"], 2);
    assert_eq!(first["key"], "fn-f");
    assert_eq!(first["own"], "mine");
    assert_eq!(rig.host.metric_sum("Started"), 2.0, "one sandbox started");
    assert_eq!(rig.host.metrics()[0].dimensions["Tier"], "t");
}

/// Of two that run, and the other one goes on.
#[tokio::test]
async fn a_sandbox_is_killed_in_the_middle_of_its_invocation() {
    let rig = rig(|_| ()).await;
    let (a, b) = tokio::join!(rig.value("pause"), rig.value("pause"));
    assert_ne!(a["token"], b["token"], "each sandbox has its own");
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.host.kill(a["token"].as_str().unwrap());
    };
    let (first, second, ()) = tokio::join!(rig.ask("pause"), rig.ask("pause"), kill);
    let (killed, answered) = if first.error { (first, second) } else { (second, first) };
    assert_eq!(killed.error_type().as_deref(), Some("Runtime.ExitError"), "{killed:?}");
    let answer: Value = serde_json::from_slice(&answered.payload).unwrap();
    assert_eq!(answer["token"], b["token"]);
    assert!(rig.value("a").await["pid"].is_number(), "and it is started again");
}

#[tokio::test]
async fn concurrency_is_the_number_of_sandboxes() {
    let rig = rig(|config| config.concurrency = Some(2)).await;
    let (a, b, c) = tokio::join!(
        rig.host.invoke("f", "{\"do\":\"pause\"}".into()),
        rig.host.invoke("f", "{\"do\":\"pause\"}".into()),
        rig.host.invoke("f", "{\"do\":\"pause\"}".into()),
    );
    let pid = |outcome: &Outcome| {
        serde_json::from_slice::<Value>(&outcome.payload).unwrap()["pid"].clone()
    };
    assert_ne!(pid(&a.unwrap().1), pid(&b.unwrap().1));
    assert_eq!(c.unwrap_err(), InvokeError::Throttled, "reserved concurrency is a limit");
}

#[tokio::test]
async fn a_crash_a_time_out_and_an_error_are_told_in_lambdas_words() {
    let rig = rig(|_| ()).await;
    let first = rig.value("a").await;
    let crash = rig.ask("crash").await;
    assert_eq!(crash.error_type().as_deref(), Some("Runtime.ExitError"));
    assert!(String::from_utf8_lossy(&crash.payload).contains("signal: killed"));
    assert!(String::from_utf8_lossy(&rig.ask("leave").await.payload).contains("exit status 7"));
    assert_ne!(rig.value("a").await["pid"], first["pid"], "a new sandbox serves");
    assert_eq!(rig.ask("fail").await.error_type().as_deref(), Some("Transient"));
    let before = rig.value("a").await["pid"].as_i64().unwrap();
    let timeout = rig.ask("sleep").await;
    assert_eq!(timeout.error_type().as_deref(), Some("Sandbox.Timedout"));
    assert!(
        String::from_utf8_lossy(&timeout.payload).contains("Task timed out after 2.00 seconds")
    );
    // Killed, and gone as soon as its parent has heard of it.
    let command = format!("/proc/{before}/cmdline");
    let lives = || std::fs::read(&command).is_ok_and(|line| !line.is_empty());
    for _ in 0..100 {
        if !lives() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!lives(), "the sandbox outlives its time-out");
    assert_eq!(
        rig.ask("huge").await.error_type().as_deref(),
        Some("Function.ResponseSizeTooLarge")
    );
}

#[tokio::test]
async fn cp_13_a_function_that_times_out_or_dies_is_5xx_at_its_url() {
    let rig = rig(|config| config.timeout = Duration::from_millis(800)).await;
    for what in ["sleep", "crash", "leave", "fail"] {
        let answer = url::response(&rig.ask(what).await);
        assert!(answer.status().is_server_error(), "{what}: {}", answer.status());
    }
}

#[tokio::test]
async fn a_failing_init_is_the_invocations_error() {
    let fails =
        rig(|config| drop(config.environment.insert("INIT_FAILS".into(), "1".into()))).await;
    assert_eq!(fails.ask("a").await.error_type().as_deref(), Some("Init"));
    let exits =
        rig(|config| drop(config.environment.insert("INIT_EXITS".into(), "1".into()))).await;
    let outcome = exits.ask("a").await;
    assert_eq!(outcome.error_type().as_deref(), Some("Runtime.ExitError"));
    assert!(String::from_utf8_lossy(&outcome.payload).contains("exit status 3"));
}

#[tokio::test]
async fn invoke_answers_as_the_api_does() {
    let rig = rig(|_| ()).await;
    let serve = async |function: &str, kind: &str, payload: Bytes| {
        let mut headers = http::HeaderMap::new();
        headers.insert("x-amz-invocation-type", kind.parse().unwrap());
        let path = format!("/2015-03-31/functions/{function}/invocations");
        rig.host.serve(&path, &headers, payload).await
    };
    let arn = aws::percent_encode(&arn_of("f"));
    assert_eq!(serve(&arn, "RequestResponse", "{}".into()).await.status(), 200);
    let failed = serve("f", "RequestResponse", "{\"do\":\"fail\"}".into()).await;
    assert_eq!(failed.headers()["x-amz-function-error"], "Unhandled");
    assert_eq!(serve("f:$LATEST", "DryRun", "{}".into()).await.status(), 204);
    assert_eq!(serve("g", "Event", "{}".into()).await.status(), 404);
    assert_eq!(serve("f", "RequestResponse", "not json".into()).await.status(), 400);
    let large = serve("f", "RequestResponse", format!("\"{}\"", "x".repeat(6 << 20)).into()).await;
    assert_eq!(large.status(), 413);
    assert_eq!(large.headers()["x-amzn-errortype"], "RequestEntityTooLargeException");
}

#[tokio::test]
async fn an_event_is_tried_three_times_and_then_a_dead_letter() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::new(WorldClock::starting_now(3600.0), dir.path(), "http://127.0.0.1:1", None);
    let config = FunctionConfig {
        name: "f".into(),
        timeout: Duration::from_secs(5),
        ..FunctionConfig::default()
    };
    host.define(config, &zip_of(RUNTIME.as_bytes()).unwrap()).await.unwrap();
    host.set_async("f", AsyncConfig { retries: None, on_failure: Some("arn:queue".to_owned()) });
    let (sender, mut letters) = tokio::sync::mpsc::unbounded_channel();
    host.set_dead_letters(Arc::new(move |queue: &str, body: String| {
        let _ = sender.send((queue.to_owned(), body));
    }));
    host.invoke_async("f", "{\"do\":\"fail\"}".into());
    let letter =
        tokio::time::timeout(Duration::from_secs(20), letters.recv()).await.unwrap().unwrap();
    let body: Value = serde_json::from_str(&letter.1).unwrap();
    assert_eq!(letter.0, "arn:queue");
    assert_eq!(body["requestContext"]["approximateInvokeCount"], 3);
    assert_eq!(body["requestPayload"]["do"], "fail");
    assert_eq!(body["responsePayload"]["errorType"], "Transient");
}
