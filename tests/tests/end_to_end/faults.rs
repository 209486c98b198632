//! Jobs served while something fails: calls of the functions, machines, executions, deliveries, GitHub.

use std::time::Duration;

use ostler_local::ec2::{Ec2Fault, Fate, MarketName};
use ostler_local::edge::{FaultKind, FaultRule};
use ostler_local::github::DeliveryPlan;
use ostler_sim::github::{ApiError, Fault, FaultRule as GitHubFault, endpoint};
use serde_json::{Value, json};

use crate::hops::ic_09_an_event_travels_all_hops;
use crate::rig::{Rig, WEBHOOK, job_of, text, tiers};

/// An invocation's attempts at a call.
const ATTEMPTS: u32 = 3;

/// What fails for one job, whose runner these calls name: who calls, and what.
const CALLS: [(&str, &str); 7] = [
    ("fn-ostler-webhook", "states:StartExecution"),
    ("fn-ostler-webhook", "sqs:SendMessage"),
    ("fn-ostler-orchestrator", "dynamodb:UpdateItem"),
    ("fn-ostler-orchestrator", "dynamodb:GetItem"),
    ("fn-ostler-orchestrator", "ec2:CreateFleet"),
    ("fn-ostler-orchestrator", "ec2:DescribeInstances"),
    ("stepfunctions", "lambda:Invoke"),
];

/// Calls of the orchestrator that name no runner, with what they hold: they fail for whichever job makes them. How many
/// answers to them are lost, and after how many calls that went well. None of `PutItem` here: see
/// [`the_answers_to_the_handoff_are_lost`]. Machines are ended rarely.
const ANYONES: [(&str, &str, u32, u32); 4] = [
    ("dynamodb:PutItem", "TableName", 0, 0),
    ("dynamodb:DeleteItem", "TableName", ATTEMPTS, ATTEMPTS),
    ("ec2:DescribeInstances", "InstanceId.1", ATTEMPTS, ATTEMPTS),
    ("ec2:TerminateInstances", "InstanceId.1", 1, 0),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_served_whatever_fails() {
    let rig = Rig::up("faults").await;
    rig.world.install(&tiers()).await.unwrap_or_else(|error| panic!("{error:#}"));
    every_front_end_is_served(&rig).await;
    the_answers_to_the_handoff_are_lost(&rig).await;
    let scenarios = async {
        // What befalls the next launch, whoever's it is, comes first, one by one.
        let silent = a_machine_that_never_starts(&rig).await;
        let dying = a_machine_that_dies(&rig).await;
        let stopped = an_execution_stopped_while_the_machine_boots(&rig).await;
        github_fails(&rig);
        tokio::join!(
            ic_09_an_event_travels_all_hops(&rig),
            calls_fail(&rig),
            spot_is_short(&rig),
            an_execution_stopped_while_the_job_runs(&rig),
            deliveries_repeated_while_the_job_runs(&rig),
            is_replaced(&rig, silent),
            is_replaced(&rig, dying),
            is_replaced(&rig, stopped),
        );
        // Alone: the computer has no more than it needs for this.
        cp_10_sixty_events_in_ten_seconds_are_accepted(&rig).await;
        rig.nothing_left().await;
    };
    tokio::select! {
        broken = rig.watch() => panic!("{broken}"),
        () = scenarios => {}
    }
    what_was_meant_to_fail_did(&rig).await;
    rig.answers_tell_nothing();
    rig.down().await;
}

/// API Gateway's two formats and load balancers invoke the function otherwise than a function URL, and want answers
/// of their own shapes. The events are a real delivery, that GitHub could not get through.
async fn every_front_end_is_served(rig: &Rig) {
    rig.world.github.plan_delivery(DeliveryPlan {
        action: Some("queued".into()),
        failed: true,
        ..DeliveryPlan::default()
    });
    let job = rig.post("front", "small");
    assert_eq!(rig.answer(job).await.0, 502);
    let delivery = rig.deliveries(job, "queued").remove(0);
    let body = std::str::from_utf8(&delivery.body).unwrap();
    let headers = json!(delivery.headers);
    let multi: Value =
        delivery.headers.iter().map(|(name, value)| (name.clone(), json!([value]))).collect();
    let v1 = json!({"resource": "/{proxy+}", "path": "/", "httpMethod": "POST", "headers": headers,
        "multiValueHeaders": multi, "queryStringParameters": null, "pathParameters": null, "stageVariables": null,
        "requestContext": {"stage": "prod", "httpMethod": "POST"}, "body": body, "isBase64Encoded": false});
    let v2 = json!({"version": "2.0", "routeKey": "POST /", "rawPath": "/", "rawQueryString": "", "headers": headers,
        "requestContext": {"http": {"method": "POST", "path": "/"}}, "body": body, "isBase64Encoded": false});
    let elb = json!({"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:us-east-1:1:targetgroup/a/1"}});
    let alb = json!({"requestContext": elb, "httpMethod": "POST", "path": "/", "queryStringParameters": {},
        "headers": headers, "body": body, "isBase64Encoded": false});
    let alb_multi = json!({"requestContext": elb, "httpMethod": "POST", "path": "/",
        "multiValueQueryStringParameters": {}, "multiValueHeaders": multi, "body": body, "isBase64Encoded": false});

    let started = rig.invoke(WEBHOOK, &v1).await;
    assert_eq!(started["statusCode"], 202, "{started}");
    assert_eq!(job_of(&text(&started["body"])), Some(job));
    // Two starts within a second are told apart by nobody, and need not be.
    rig.world.clock.sleep(Duration::from_secs(5)).await;
    let content = json!({"content-type": "text/plain; charset=utf-8"});
    let content_multi = json!({"content-type": ["text/plain; charset=utf-8"]});
    let plain = |status: u16, body: &str| json!({"statusCode": status, "headers": content, "body": body, "isBase64Encoded": false});
    assert_eq!(rig.invoke(WEBHOOK, &v1).await, plain(200, "already started"));
    assert_eq!(rig.invoke(WEBHOOK, &v2).await, plain(200, "already started"));
    let mut expected = plain(200, "already started");
    expected["statusDescription"] = json!("200 OK");
    assert_eq!(rig.invoke(WEBHOOK, &alb).await, expected);
    expected["multiValueHeaders"] = content_multi;
    expected.as_object_mut().unwrap().remove("headers");
    assert_eq!(rig.invoke(WEBHOOK, &alb_multi).await, expected);
    let mut forged = alb;
    forged["body"] = json!(body.replace("queued", "waiting"));
    let refused = rig.invoke(WEBHOOK, &forged).await;
    assert_eq!(
        (&refused["statusCode"], &refused["statusDescription"]),
        (&json!(401), &json!("401 Unauthorized"))
    );

    rig.served(job).await;
    assert_eq!(rig.executions_of(job).await.len(), 1);
}

/// While nobody else puts anything, and with a machine that comes up later: if it claimed its registration before any
/// attempt got an answer, nobody would know whether it ever lay there, and the runner would be replaced.
async fn the_answers_to_the_handoff_are_lost(rig: &Rig) {
    next_launch(rig, Fate::Slow, Some(300));
    let lost = FaultRule::on("dynamodb:PutItem", FaultKind::LostResponse);
    rig.world.edge.faults().add(lost.by("fn-ostler-orchestrator").times(ATTEMPTS));
    let job = rig.post("handed", "small");
    let runner = rig.served(job).await.runner.unwrap().name;
    let names: Vec<_> = rig.executions_of(job).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [runner]);
    assert_eq!(rig.instances(job).len(), 1);
}

/// Of one launch, whoever's it is.
pub fn next_launch(rig: &Rig, fate: Fate, seconds: Option<u64>) {
    assert!(rig.world.ec2.inject(Ec2Fault::Launches { fate, times: Some(1), seconds }));
}

async fn a_machine_that_never_starts(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Dead, None);
    let job = rig.post("silent", "small");
    rig.launched(job).await;
    job
}

async fn a_machine_that_dies(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Dies, None);
    let job = rig.post("dying", "small");
    rig.launched(job).await;
    job
}

/// The rule on executions that ended cleans up after it: its machine, which would come up otherwise, and its
/// registration.
async fn an_execution_stopped_while_the_machine_boots(rig: &Rig) -> u64 {
    next_launch(rig, Fate::Slow, Some(3600));
    let job = rig.post("stopped", "small");
    let instance = rig.launched(job).await;
    let registered = async || {
        let runners = rig.world.github.snapshot().runners;
        runners.into_iter().find(|runner| job_of(&runner.name) == Some(job))
    };
    let runner = rig.until("it is registered", registered).await;
    rig.stop_execution(&runner.name).await;
    rig.until("its machine is ended", async || {
        let (id, state) = rig.instances(job).into_iter().next()?;
        (id == instance && state == "terminated").then_some(())
    })
    .await;
    job
}

/// The job is served by the replacement that its first runner's end owed.
pub async fn is_replaced(rig: &Rig, job: u64) {
    let done = rig.served(job).await;
    let replacement = done.runner.unwrap().name;
    assert!(replacement.ends_with("-r1"), "{} was served by {replacement}", done.repository);
    let names: Vec<_> = rig.executions_of(job).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [replacement.strip_suffix("-r1").unwrap(), &replacement]);
}

/// Each event is answered before GitHub gives up on it, and accepted at once. Their launches wait, because GitHub has
/// said "later" to their owner, and then they are cancelled: nothing is ever bought.
async fn cp_10_sixty_events_in_ten_seconds_are_accepted(rig: &Rig) {
    let until = (rig.world.clock.now() + Duration::from_secs(86_400)).to_string();
    let item =
        json!({"pk": {"S": "blocked#crowd"}, "until": {"S": until}, "reason": {"S": "RateLimit"}});
    let put = json!({"TableName": rig.world.output("LedgerTableName").unwrap(), "Item": item});
    rig.operator.json("dynamodb", "DynamoDB_20120810.PutItem", &put).await.unwrap();
    let post = async {
        let mut jobs = Vec::new();
        for _ in 0..10 {
            jobs.extend((0..6).map(|_| rig.post("crowd", "small")));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for &job in &jobs {
            rig.until("it is delivered", async || rig.deliveries(job, "queued").pop()).await;
        }
        jobs
    };
    let mut slowest = Duration::ZERO;
    let jobs = tokio::select! {
        jobs = post => jobs,
        never = slowness(rig, &mut slowest) => match never {},
    };
    // A computer on which one call of the emulated AWS takes seconds shows nothing of the function. What counts there is
    // that no event is lost.
    if slowest < Duration::from_secs(2) {
        for &job in &jobs {
            let first = rig.deliveries(job, "queued").remove(0);
            assert_eq!(first.status_code, 202, "{} after {:?}", first.answer, first.duration);
            assert_eq!(job_of(&first.answer), Some(job));
        }
    }
    let accepted = async || {
        let accepted = |job: &u64| {
            rig.deliveries(*job, "queued").iter().any(|delivery| delivery.status_code < 300)
        };
        jobs.iter().all(accepted).then_some(())
    };
    rig.until("all are accepted", accepted).await;
    jobs.iter().for_each(|job| rig.world.github.cancel_job(*job).unwrap());
    let ended = async || {
        let executions = rig.executions().await;
        let crowd: Vec<_> =
            executions.iter().filter(|(name, _)| name.starts_with("crowd-")).collect();
        assert_eq!(crowd.len(), jobs.len(), "one for each");
        crowd.iter().all(|(_, status)| *status == "SUCCEEDED").then_some(())
    };
    rig.until("the cancelled jobs' executions have ended", ended).await;
    assert!(jobs.iter().all(|job| rig.instances(*job).is_empty()));
}

/// Notes how long a small call of the emulated AWS takes at most.
async fn slowness(rig: &Rig, slowest: &mut Duration) -> std::convert::Infallible {
    let names = json!({"Names": ["/ostler/control/tiers"]});
    loop {
        let began = tokio::time::Instant::now();
        rig.operator.json("ssm", "AmazonSSM.GetParameters", &names).await.unwrap();
        *slowest = began.elapsed().max(*slowest);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Registrations that are refused, that are made while the answer is lost, and one that has to wait.
fn github_fails(rig: &Rig) {
    let refusal = |status: u16, message: &str| Fault::Refuse(ApiError::new(status, message));
    let mut limited =
        ApiError::new(403, "You have exceeded a secondary rate limit. Please wait a few minutes.");
    limited.headers.push(("retry-after".into(), "90".into()));
    let registrations =
        [refusal(502, "Server Error"), Fault::Lost(0), Fault::Refuse(limited), Fault::Lost(502)];
    let looks =
        [refusal(500, "Server Error"), Fault::Lost(0), refusal(503, "No server is available")];
    let plan = [
        ("POST", endpoint::ORG_JIT, registrations.to_vec()),
        ("GET", endpoint::JOB, looks.to_vec()),
        ("DELETE", endpoint::ORG_RUNNER, looks.to_vec()),
        ("POST", endpoint::ACCESS_TOKENS, looks.to_vec()),
    ];
    for (method, template, faults) in plan {
        for fault in faults {
            let (method, template) = (method.to_owned(), template.to_owned());
            rig.world.github.add_fault(GitHubFault { method, template, skip: 0, times: 1, fault });
        }
    }
}

/// For each call of a runner's life one job for which it is refused, by throttling and by AWS's own failure; and one for
/// which it is done, but its answer is lost.
async fn calls_fail(rig: &Rig) {
    let faults = rig.world.edge.faults();
    let mut jobs = Vec::new();
    for how in ["refused", "lost"] {
        // More often than one invocation tries, or each time that it does.
        let kinds = |lost: u32| match how {
            "refused" => vec![(FaultKind::Throttle, ATTEMPTS + 1), (FaultKind::ServerError, 2)],
            _ => vec![(FaultKind::LostResponse, lost)],
        };
        for (action, containing, lost, after) in ANYONES {
            for (kind, times) in kinds(lost).into_iter().filter(|(_, times)| *times > 0) {
                let after = if how == "lost" { after } else { 0 };
                let rule = FaultRule::on(action, kind).by("fn-ostler-orchestrator");
                faults.add(FaultRule { after, ..rule.containing(containing).times(times) });
            }
        }
        for (caller, action) in CALLS {
            let name = format!("{how}-{}", action.split_once(':').unwrap().1.to_lowercase());
            for (kind, times) in kinds(ATTEMPTS) {
                let rule = FaultRule::on(action, kind).by(caller).containing(&format!("{name}-"));
                faults.add(rule.times(times));
            }
            jobs.push((rig.post(&name, "small"), name));
        }
    }
    // The answer of each step, not of the first alone: a rule lets those calls pass that repeat what the rules before
    // it have hit.
    let every_step =
        FaultRule::on("lambda:Invoke", FaultKind::LostResponse).containing("lost-steps-").times(1);
    (0..3).for_each(|after| faults.add(FaultRule { after, ..every_step.clone() }));
    jobs.push((rig.post("lost-steps", "small"), "lost-steps".into()));
    for (job, name) in jobs {
        let done = rig.served(job).await;
        let runner = done.runner.unwrap().name;
        let started = rig.executions_of(job).await;
        assert_eq!(started.len(), 1, "{name}: {started:?}");
        assert_eq!(started[0].0, runner, "{name}");
    }
}

async fn spot_is_short(rig: &Rig) {
    rig.no_machine("c7i.4xlarge", Some(MarketName::Spot), Some(1));
    let first = rig.post("short", "fleeting");
    let on_demand = rig.launched(first).await;
    let second = rig.post("plenty", "fleeting");
    let spot = rig.launched(second).await;
    let bought = rig.world.ec2.instances();
    let on_spot = |id: &str| bought.iter().find(|view| view.instance_id == id).unwrap().spot;
    assert_eq!((on_spot(&on_demand), on_spot(&spot)), (false, true));
    rig.served(first).await;
    rig.served(second).await;
    assert_eq!(rig.executions_of(first).await.len(), 1);
}

/// The runner is left alone in the middle of its job, and ends by itself.
async fn an_execution_stopped_while_the_job_runs(rig: &Rig) {
    let job = rig.post_gated("working");
    let runner = rig.running(job).await;
    rig.stop_execution(&runner).await;
    rig.until("the cleanup from outside has seen it at work", async || {
        (rig.count("BusyWithoutExecution", None) > 0).then_some(())
    })
    .await;
    rig.open_gate("working");
    assert_eq!(rig.served(job).await.runner.unwrap().name, runner);
    assert_eq!(rig.executions_of(job).await, [(runner, "ABORTED".to_owned())]);
}

async fn deliveries_repeated_while_the_job_runs(rig: &Rig) {
    let job = rig.post_gated("repeated");
    let runner = rig.running(job).await;
    let delivery = rig.deliveries(job, "queued").remove(0);
    for _ in 0..3 {
        rig.world.github.redeliver(delivery.id);
    }
    let repeated = async || {
        let mut deliveries = rig.deliveries(job, "queued");
        deliveries.retain(|delivery| delivery.redelivery && delivery.status_code < 500);
        (deliveries.len() >= 3).then_some(deliveries)
    };
    for delivery in rig.until("the repetitions are answered", repeated).await {
        assert_eq!((delivery.status_code, delivery.answer.as_str()), (200, "already started"));
    }
    rig.open_gate("repeated");
    rig.served(job).await;
    assert_eq!(rig.executions_of(job).await.len(), 1);
    assert_eq!(rig.instances(job).len(), 1, "{runner}");
}

/// Nothing above would show anything if the world had been kinder than intended.
async fn what_was_meant_to_fail_did(rig: &Rig) {
    let rules = rig.world.edge.faults().rules();
    let unused: Vec<_> = rules.iter().filter(|rule| rule.times != Some(0)).collect();
    assert!(unused.is_empty(), "faults that struck nothing: {unused:#?}");
    // If the answer to the withdrawal of its registration was lost, the dead machine counts as one that is idle.
    assert!(
        rig.count("InstanceEnded", Some("boot time-out"))
            + rig.count("InstanceEnded", Some("idle"))
            > 0
    );
    for (metric, reason) in [
        ("LaunchRefused", Some("Capacity")),
        ("RegistrationRefused", Some("RateLimit")),
        ("ReplacementStarted", None),
    ] {
        assert!(rig.count(metric, reason) > 0, "{metric} {reason:?}");
    }
    let ended_badly: Vec<_> =
        rig.executions().await.into_iter().filter(|(_, status)| status != "SUCCEEDED").collect();
    let stopped = |name: &str| name.starts_with("stopped-") || name.starts_with("working-");
    assert!(
        ended_badly.iter().all(|(name, status)| stopped(name) && status == "ABORTED"),
        "{ended_badly:?}"
    );
    assert_eq!(ended_badly.len(), 2);
    for metric in ["LaunchGivenUp", "ReplacementsUsedUp", "JobUnrecorded", "RegistrationLeft"] {
        assert_eq!(rig.count(metric, None), 0, "{metric}");
    }
}
