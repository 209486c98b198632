use ostler_core::ports::{Machines, SpotRequest};

use super::*;
use crate::Ec2Machines;

async fn machines(
    owner: &str,
    answers: impl IntoIterator<Item = (u16, String)>,
) -> (Wire, Ec2Machines) {
    let (wire, config) = wired(answers).await;
    let mut machines = Ec2Machines::new(&config, "ostler:owner", owner);
    machines.pace = Duration::ZERO;
    (wire, machines)
}

const RUNNING: &str = "<item><instanceId>i-1</instanceId><instanceState><name>running</name>\
    </instanceState><launchTime>2026-11-30T12:00:00.000Z</launchTime>\
    <spotInstanceRequestId>sir-1</spotInstanceRequestId><tagSet><item><key>ostler:owner</key>\
    <value>acme</value></item><item><key>empty</key><value/></item></tagSet></item>";

fn listed(instances: &str, token: &str) -> (u16, String) {
    let body = format!(
        "<DescribeInstancesResponse><reservationSet><item><instancesSet>{instances}</instancesSet>\
         </item></reservationSet><nextToken>{token}</nextToken></DescribeInstancesResponse>"
    );
    (200, body)
}

fn request(kind: &str, state: &str) -> (u16, String) {
    let body = format!(
        "<DescribeSpotInstanceRequestsResponse><spotInstanceRequestSet><item>\
         <spotInstanceRequestId>sir-1</spotInstanceRequestId><type>{kind}</type>\
         <state>{state}</state></item></spotInstanceRequestSet>\
         </DescribeSpotInstanceRequestsResponse>"
    );
    (200, body)
}

fn cancelled(id: &str, state: &str) -> (u16, String) {
    let body = format!(
        "<CancelSpotInstanceRequestsResponse><spotInstanceRequestSet><item>\
         <spotInstanceRequestId>{id}</spotInstanceRequestId><state>{state}</state></item>\
         </spotInstanceRequestSet></CancelSpotInstanceRequestsResponse>"
    );
    (200, body)
}

#[tokio::test]
async fn re_01_re_12_the_list_asks_for_the_living_by_their_tag_page_by_page() {
    let answers = [listed("", "more"), listed(RUNNING, "")];
    let (wire, machines) = machines("a*c?me", answers).await;
    let first = machines.list(None).await.unwrap();
    assert_eq!((first.machines.len(), first.next.as_deref()), (0, Some("more")));
    let last = machines.list(first.next).await.unwrap();
    assert_eq!(last.next, None);
    let requests = wire.requests.lock().unwrap().clone();
    let asked = |key: &str| requests[0].get(key).cloned().unwrap_or_default();
    assert_eq!(asked("Filter.1.Name"), "tag:ostler:owner");
    assert_eq!(asked("Filter.1.Value.1"), "a\\*c\\?me", "not every owner that looks like it");
    assert_eq!(asked("Filter.2.Name"), "instance-state-name");
    let states: Vec<_> = (1..=5).map(|n| asked(&format!("Filter.2.Value.{n}"))).collect();
    assert_eq!(states, ["pending", "running", "stopping", "stopped", ""]);
    assert_eq!(requests[1]["NextToken"], "more");
    let [machine] = &last.machines[..] else { panic!("{last:?}") };
    assert_eq!((machine.id.as_str(), machine.state), ("i-1", InstanceState::Running));
    assert_eq!(machine.started, Timestamp::parse("2026-11-30T12:00:00Z"));
    assert_eq!(machine.spot_request.as_deref(), Some("sir-1"));
    let tags = [("empty".to_owned(), String::new()), ("ostler:owner".into(), "acme".into())];
    assert_eq!(machine.tags, tags.into());
}

#[tokio::test]
async fn a_page_that_fails_is_no_end_of_the_list() {
    let (_, machines) = machines("acme", [fault(400, "UnauthorizedOperation")]).await;
    assert!(matches!(machines.list(None).await, Err(Error::Permanent(_))));
}

#[tokio::test]
async fn re_15_a_machine_is_gone_by_ec2s_word_or_an_empty_answer_and_not_by_a_failure() {
    let throttled = || fault(503, "RequestLimitExceeded");
    let answers = [
        listed(RUNNING, ""),
        fault(400, "InvalidInstanceID.NotFound"),
        listed("", ""),
        throttled(),
        throttled(),
        throttled(),
    ];
    let (_, machines) = machines("acme", answers).await;
    assert_eq!(machines.machine("i-1").await.unwrap().unwrap().id, "i-1");
    assert_eq!(machines.machine("i-1").await.unwrap(), None);
    assert_eq!(machines.machine("i-1").await.unwrap(), None);
    assert!(matches!(machines.machine("i-1").await, Err(Error::Transient(_))));
}

#[tokio::test]
async fn r53_a_request_is_read_as_the_worse_case_where_ec2_says_something_new() {
    for (kind, state, persistent, open) in [
        ("one-time", "active", false, true),
        ("persistent", "active", true, true),
        ("persistent", "open", true, true),
        ("persistent", "disabled", true, true),
        ("persistent", "cancelled", true, false),
        ("persistent", "closed", true, false),
        ("persistent", "failed", true, false),
        ("eternal", "dormant", true, true),
    ] {
        let (_, machines) = machines("acme", [request(kind, state)]).await;
        let read = machines.spot_request("sir-1").await.unwrap();
        assert_eq!(read, Some(SpotRequest { persistent, open }), "{kind} {state}");
    }
}

#[tokio::test]
async fn r53_only_ec2s_word_makes_a_request_gone() {
    let not_found = fault(400, "InvalidSpotInstanceRequestID.NotFound");
    let (_, gone) = machines("acme", [not_found]).await;
    assert_eq!(gone.spot_request("sir-1").await.unwrap(), None);
    let empty = "<DescribeSpotInstanceRequestsResponse><spotInstanceRequestSet/>\
                 </DescribeSpotInstanceRequestsResponse>";
    let (_, silent) = machines("acme", [(200, empty.to_owned())]).await;
    assert!(matches!(silent.spot_request("sir-1").await, Err(Error::Transient(_))));
    let (_, refused) = machines("acme", [fault(403, "UnauthorizedOperation")]).await;
    assert!(matches!(refused.spot_request("sir-1").await, Err(Error::Permanent(_))));
}

#[tokio::test]
async fn r53_a_cancel_is_believed_when_ec2_says_that_it_took_effect() {
    for state in ["cancelled", "closed", "completed"] {
        let (wire, machines) = machines("acme", [cancelled("sir-1", state)]).await;
        machines.cancel_spot_request("sir-1").await.unwrap();
        let request = wire.requests.lock().unwrap()[0].clone();
        assert_eq!(request["SpotInstanceRequestId.1"], "sir-1");
        assert!(!request.contains_key("SpotInstanceRequestId.2"));
    }
    for (id, state) in [("sir-1", "active"), ("sir-1", "open"), ("sir-2", "cancelled")] {
        let (_, machines) = machines("acme", [cancelled(id, state)]).await;
        let outcome = machines.cancel_spot_request("sir-1").await;
        assert!(matches!(outcome, Err(Error::Transient(_))), "{id} {state}: {outcome:?}");
    }
    let not_found = fault(400, "InvalidSpotInstanceRequestID.NotFound");
    let (_, gone) = machines("acme", [not_found]).await;
    gone.cancel_spot_request("sir-1").await.unwrap();
    let (_, refused) = machines("acme", [fault(403, "UnauthorizedOperation")]).await;
    assert!(refused.cancel_spot_request("sir-1").await.is_err());
}

#[tokio::test]
async fn re_02_an_end_names_one_machine_and_not_found_is_success_at_once() {
    let (wire, machines) = machines(
        "acme",
        [
            (200, "<TerminateInstancesResponse/>".to_owned()),
            fault(400, "InvalidInstanceID.NotFound"),
            fault(400, "OperationNotPermitted"),
        ],
    )
    .await;
    machines.terminate("i-1").await.unwrap();
    machines.terminate("i-1").await.unwrap();
    match machines.terminate("i-1").await {
        Err(Error::Permanent(text)) if text.contains("take termination protection off") => {}
        other => panic!("{other:?}"),
    }
    let requests = wire.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert_eq!(request["InstanceId.1"], "i-1");
        assert!(!request.contains_key("InstanceId.2"));
    }
}
