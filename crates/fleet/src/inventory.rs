//! The janitor's question, whether anything lives behind a name, over every configured region of EC2.
//!
//! What must hold: "nothing lives" takes a complete answer of every region, all its pages. One call asks
//! for many, and means the same as one call for each: what a refusal that may be owing to one value costs
//! is that value alone.

use std::collections::HashSet;
use std::ops::Range;

use aws_config::{Region, SdkConfig};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Builder;
use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName};
use ostler_core::janitor::{By, Inventory};
use ostler_core::{Error, Result};
use tokio::task::JoinSet;

use crate::errors::{answered, failed};
use crate::{MOST_PAGES, literal};

/// Most values of all filters of one call (EC2 API Reference, "Filtering": `FilterLimitExceeded`).
const MOST_VALUES: usize = 200;

/// Instances of one page, EC2's most: with a filter of 200 values there is seldom a second one.
const PAGE: i32 = 1000;

/// Refused calls of one look in one region after which it is given up: enough to halve 200 values down to
/// the one that is at fault.
const MOST_REFUSALS: usize = 9;

/// The tag that says for which runner an instance was launched.
const RUNNER_TAG: &str = "ostler:runner";

/// The instances of an account in some regions.
pub struct Ec2Inventory {
    regions: Vec<(String, Client)>,
}

impl Ec2Inventory {
    /// Over the SDK's configuration; no call is made.
    pub fn new(config: &SdkConfig, regions: &[String]) -> Self {
        let client = |name: &String| {
            let region = Builder::from(config).region(Region::new(name.clone())).build();
            (name.clone(), Client::from_conf(region))
        };
        Self { regions: regions.iter().map(client).collect() }
    }
}

impl Inventory for Ec2Inventory {
    async fn any_lives(&self, by: By, values: &[String]) -> Vec<Result<bool>> {
        if self.regions.is_empty() {
            let nowhere = || Err(Error::Permanent("no region is configured to look in".into()));
            return values.iter().map(|_| nowhere()).collect();
        }
        let mut looks = JoinSet::new();
        for (region, client) in &self.regions {
            looks.spawn(look(client.clone(), region.clone(), by, values.to_vec()));
        }
        let mut answers: Vec<Result<bool>> = vec![Ok(false); values.len()];
        while let Some(look) = looks.join_next().await {
            let lost =
                |error| Err(Error::Transient(format!("a look at a region broke off: {error}")));
            match look {
                Ok(found) => answers.iter_mut().zip(found).for_each(|(all, one)| both(all, one)),
                Err(error) => answers.iter_mut().for_each(|all| both(all, lost(&error))),
            }
        }
        answers
    }
}

/// What is alive anywhere is alive; otherwise what is unknown anywhere is unknown.
fn both(all: &mut Result<bool>, one: Result<bool>) {
    match (&all, &one) {
        (Ok(true), _) | (Err(_), Ok(false) | Err(_)) => {}
        (_, Ok(true)) | (Ok(false), _) => *all = one,
    }
}

/// One region's answer for each value.
async fn look(client: Client, region: String, by: By, values: Vec<String>) -> Vec<Result<bool>> {
    let unasked = || Err(Error::Transient("was not asked for".into()));
    let mut answers: Vec<Result<bool>> = values.iter().map(|_| unasked()).collect();
    let mut refusals = 0;
    let starts = (0..values.len()).step_by(MOST_VALUES).rev();
    let mut rest: Vec<Range<usize>> =
        starts.map(|start| start..(start + MOST_VALUES).min(values.len())).collect();
    while let Some(range) = rest.pop() {
        match living(&client, &region, by, &values[range.clone()]).await {
            Ok(living) => {
                for place in range {
                    answers[place] = Ok(living.contains(&values[place]));
                }
            }
            Err(Trouble::Refused(_)) if range.len() > 1 && refusals < MOST_REFUSALS => {
                refusals += 1;
                let middle = range.start + range.len() / 2;
                rest.push(middle..range.end);
                rest.push(range.start..middle);
            }
            Err(Trouble::Refused(error) | Trouble::Failed(error)) => {
                answers[range].iter_mut().for_each(|answer| *answer = Err(error.clone()));
            }
        }
    }
    answers
}

/// Why there is no answer.
enum Trouble {
    /// The request is refused, perhaps for one of its values.
    Refused(Error),
    /// Whatever was asked for.
    Failed(Error),
}

/// Of these values those behind which something lives: all pages of one call.
async fn living(
    client: &Client,
    region: &str,
    by: By,
    values: &[String],
) -> std::result::Result<HashSet<String>, Trouble> {
    let what = format!("look for {} instances in {region}", values.len());
    let name = match by {
        By::InstanceId => "instance-id".to_owned(),
        By::RunnerTag => format!("tag:{RUNNER_TAG}"),
    };
    // A filter, so that one that is not there is missing and no error; and no other filter: a machine that
    // was stopped, or whose other tags were changed, is there all the same.
    let literal = values.iter().map(|value| literal(value)).collect();
    let filter = Filter::builder().name(name).set_values(Some(literal)).build();
    let mut living = HashSet::new();
    let mut token = None;
    for _ in 0..MOST_PAGES {
        let call = client.describe_instances().filters(filter.clone()).max_results(PAGE);
        let page = call.set_next_token(token.clone()).send().await.map_err(|error| {
            let refused = answered(&error).is_some_and(|(code, _)| code.starts_with("Invalid"));
            let error = failed(&what, &error);
            if refused { Trouble::Refused(error) } else { Trouble::Failed(error) }
        })?;
        let reservations = page.reservations.unwrap_or_default().into_iter();
        for instance in reservations.flat_map(|it| it.instances.unwrap_or_default()) {
            if is_terminated(&instance) {
                continue;
            }
            match key(&instance, by).filter(|key| values.contains(key)) {
                Some(key) => living.insert(key),
                // Something lives, and it is not known whose it is: it may be anyone's.
                None => {
                    let text = format!("{what}: EC2 lists one that was not asked for");
                    return Err(Trouble::Failed(Error::Transient(text)));
                }
            };
        }
        let next = page.next_token.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(living);
        }
        if next == token {
            let text = format!("{what}: EC2 gives the same page again and again");
            return Err(Trouble::Failed(Error::Transient(text)));
        }
        token = next;
    }
    let text = format!("{what}: EC2's list has more than {MOST_PAGES} pages");
    Err(Trouble::Failed(Error::Transient(text)))
}

/// Only EC2's own "terminated" is the end. A state that is missing or new is alive.
fn is_terminated(instance: &Instance) -> bool {
    let state = instance.state.as_ref().and_then(|state| state.name.as_ref());
    matches!(state, Some(InstanceStateName::Terminated))
}

fn key(instance: &Instance, by: By) -> Option<String> {
    match by {
        By::InstanceId => instance.instance_id.clone(),
        By::RunnerTag => {
            let tags = instance.tags.as_deref().unwrap_or_default().iter();
            let mut own = tags.filter(|tag| tag.key.as_deref() == Some(RUNNER_TAG));
            own.next()?.value.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use aws_config::BehaviorVersion;
    use aws_sdk_ec2::config::Credentials;
    use aws_smithy_runtime_api::client::http::{
        HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
    };
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use aws_smithy_types::body::SdkBody;
    use aws_smithy_types::retry::RetryConfig;

    use super::*;

    const OUT: (u16, &str) =
        (500, "<Response><Errors><Error><Code>InternalError</Code></Error></Errors></Response>");

    /// EC2 of two regions: an answer to each call, by its region, its values and its page.
    #[derive(Clone)]
    struct Wire {
        answer: Arc<Answer>,
        asked: Arc<Mutex<Vec<Asked>>>,
    }

    /// Region and parameters of a call.
    type Asked = (String, BTreeMap<String, String>);

    type Answer = dyn Fn(&str, &[String], Option<&str>) -> (u16, String) + Send + Sync;

    impl std::fmt::Debug for Wire {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Wire")
        }
    }

    impl HttpConnector for Wire {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let region = request.uri().split('.').nth(1).unwrap().to_owned();
            let body = String::from_utf8(request.body().bytes().unwrap().to_vec()).unwrap();
            let parameters: BTreeMap<String, String> = body
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.replace("%3A", ":")))
                .collect();
            let values: Vec<String> = (1..)
                .map_while(|n| parameters.get(&format!("Filter.1.Value.{n}")).cloned())
                .collect();
            let token = parameters.get("NextToken").map(String::as_str);
            let (status, body) = (self.answer)(&region, &values, token);
            self.asked.lock().unwrap().push((region, parameters));
            let response = HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body));
            HttpConnectorFuture::ready(Ok(response))
        }
    }

    impl Wire {
        fn new(
            answer: impl Fn(&str, &[String], Option<&str>) -> (u16, String) + Send + Sync + 'static,
        ) -> Self {
            Self { answer: Arc::new(answer), asked: Arc::default() }
        }

        async fn inventory(&self, regions: &[&str]) -> Ec2Inventory {
            let connector = SharedHttpConnector::new(self.clone());
            let retries = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
            let config = aws_config::defaults(BehaviorVersion::latest())
                .http_client(http_client_fn(move |_, _| connector.clone()))
                .region(Region::from_static("eu-central-1"))
                .credentials_provider(Credentials::new("id", "secret", None, None, "tests"))
                .retry_config(
                    retries.with_max_attempts(2).with_max_backoff(Duration::from_millis(2)),
                )
                .load()
                .await;
            let regions: Vec<_> = regions.iter().map(|region| (*region).to_owned()).collect();
            Ec2Inventory::new(&config, &regions)
        }

        fn asked(&self) -> Vec<(String, BTreeMap<String, String>)> {
            self.asked.lock().unwrap().clone()
        }
    }

    /// A page with these instances (id, state, runner) and that next token.
    fn page(instances: &[(&str, Option<&str>, &str)], token: Option<&str>) -> (u16, String) {
        let item = |(id, state, runner): &(&str, Option<&str>, &str)| {
            let state = state.map(|it| format!("<instanceState><name>{it}</name></instanceState>"));
            format!(
                "<item><instancesSet><item><instanceId>{id}</instanceId>{}<tagSet><item>\
                 <key>ostler:runner</key><value>{runner}</value></item></tagSet></item>\
                 </instancesSet></item>",
                state.unwrap_or_default()
            )
        };
        let items: String = instances.iter().map(item).collect();
        let token = token.map(|it| format!("<nextToken>{it}</nextToken>")).unwrap_or_default();
        let text = format!(
            "<DescribeInstancesResponse><reservationSet>{items}</reservationSet>{token}\
             </DescribeInstancesResponse>"
        );
        (200, text)
    }

    fn ids(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|n| format!("i-{n:08x}")).collect()
    }

    const BOTH: [&str; 2] = ["eu-west-1", "us-east-1"];

    async fn exists(wire: &Wire, by: By, values: &[String]) -> Vec<Option<bool>> {
        let answers = wire.inventory(&BOTH).await.any_lives(by, values).await;
        answers.into_iter().map(std::result::Result::ok).collect()
    }

    #[tokio::test]
    async fn j33_j34_any_state_but_terminated_protects_in_any_region() {
        for region in BOTH {
            for (state, lives) in [
                (Some("pending"), true),
                (Some("running"), true),
                (Some("stopping"), true),
                (Some("stopped"), true),
                (Some("shutting-down"), true),
                (Some("a-new-one"), true),
                (None, true),
                (Some("terminated"), false),
            ] {
                let wire = Wire::new(move |asked, _, _| match asked == region {
                    true => page(&[("i-00000000", state, "x")], None),
                    false => page(&[], None),
                });
                assert_eq!(exists(&wire, By::InstanceId, &ids(0..1)).await, [Some(lives)]);
            }
        }
    }

    #[tokio::test]
    async fn j35_absence_takes_every_region_and_every_page() {
        // On a later page, after an empty one.
        let wire = Wire::new(|region, _, token| match (region, token) {
            ("us-east-1", None) => page(&[], Some("p2")),
            ("us-east-1", Some("p2")) => {
                page(&[("i-00000000", Some("terminated"), "x")], Some("p3"))
            }
            ("us-east-1", Some("p3")) => page(&[("i-00000001", Some("stopped"), "x")], None),
            _ => page(&[], None),
        });
        let found = exists(&wire, By::InstanceId, &ids(0..3)).await;
        assert_eq!(found, [Some(false), Some(true), Some(false)]);
        // A page that fails, and a region that fails, leave all unknown but what was seen alive elsewhere.
        for failing_page in [None, Some("p2")] {
            let wire = Wire::new(move |region, _, token| match (region, token) {
                ("us-east-1", token) if token == failing_page => (OUT.0, OUT.1.into()),
                ("us-east-1", None) => page(&[], Some("p2")),
                _ => page(&[("i-00000001", Some("running"), "x")], None),
            });
            let found = exists(&wire, By::InstanceId, &ids(0..2)).await;
            assert_eq!(found, [None, Some(true)], "{failing_page:?}");
        }
        // Odd answers are none.
        for body in ["", "<html>", "{}"] {
            let wire = Wire::new(move |_, _, _| (200, body.into()));
            assert_eq!(exists(&wire, By::InstanceId, &ids(0..1)).await, [None], "{body}");
        }
    }

    #[tokio::test]
    async fn j36_j77_j79_one_filter_of_the_names_in_question_in_the_regions_own_endpoint() {
        let wire = Wire::new(|_, _, _| page(&[], None));
        exists(&wire, By::InstanceId, &ids(0..2)).await;
        let mut regions = Vec::new();
        for (region, parameters) in wire.asked() {
            regions.push(region);
            let text = |name: &str| parameters.get(name).map(String::as_str);
            assert_eq!(text("Action"), Some("DescribeInstances"));
            assert_eq!(text("Filter.1.Name"), Some("instance-id"));
            assert_eq!(text("Filter.1.Value.2"), Some("i-00000001"));
            assert!(text("Filter.2.Name").is_none() && text("InstanceId.1").is_none());
            assert!(text("Filter.1.Value.3").is_none(), "no more than was asked for");
        }
        regions.sort();
        assert_eq!(regions, BOTH);
        let wire = Wire::new(|_, _, _| page(&[("i-1", Some("running"), "widgets-7-aa")], None));
        let names = ["widgets-7-aa".to_owned()];
        assert_eq!(exists(&wire, By::RunnerTag, &names).await, [Some(true)]);
        assert_eq!(wire.asked()[0].1["Filter.1.Name"], "tag:ostler:runner");
    }

    #[tokio::test]
    async fn two_hundred_values_are_one_call_a_region() {
        let wire = Wire::new(|_, values, _| {
            assert!(values.len() <= 200);
            let living = values.iter().filter(|id| id.ends_with('7'));
            let living: Vec<_> = living.map(|id| (id.as_str(), Some("running"), "x")).collect();
            page(&living, None)
        });
        for (count, calls) in [(1, 2), (200, 2), (201, 4), (450, 6)] {
            let values = ids(0..count);
            wire.asked.lock().unwrap().clear();
            let found = exists(&wire, By::InstanceId, &values).await;
            assert_eq!(wire.asked().len(), calls);
            for (value, found) in values.iter().zip(found) {
                assert_eq!(found, Some(value.ends_with('7')), "{value}");
            }
        }
        assert!(exists(&wire, By::InstanceId, &[]).await.is_empty());
    }

    #[tokio::test]
    async fn a_batch_means_the_same_as_one_by_one() {
        // A value that EC2 refuses costs itself alone, wherever it stands.
        for bad in [0, 57, 199] {
            let poison = ids(bad..bad + 1).remove(0);
            let wire = Wire::new(move |_, values, _| match values.contains(&poison) {
                true => {
                    let error =
                        "<Error><Code>InvalidParameterValue</Code><Message>x</Message></Error>";
                    (400, format!("<Response><Errors>{error}</Errors></Response>"))
                }
                false => page(&[], None),
            });
            let found = exists(&wire, By::InstanceId, &ids(0..200)).await;
            let unknown: Vec<_> = (0..200).filter(|n| found[*n].is_none()).collect();
            assert_eq!(unknown, [bad]);
            assert!(found.iter().flatten().all(|lives| !lives));
        }
        // What is not owing to a value is not asked again and again.
        for (status, code) in [(403, "UnauthorizedOperation"), (503, "RequestLimitExceeded")] {
            let wire = Wire::new(move |_, _, _| {
                let error = format!("<Error><Code>{code}</Code><Message>x</Message></Error>");
                (status, format!("<Response><Errors>{error}</Errors></Response>"))
            });
            let found = exists(&wire, By::InstanceId, &ids(0..200)).await;
            assert!(found.iter().all(Option::is_none));
            assert!(wire.asked().len() <= 4, "two regions, two tries: {}", wire.asked().len());
        }
        // All refused: it ends.
        let wire = Wire::new(|_, _, _| {
            let error = "<Error><Code>InvalidFilter</Code><Message>x</Message></Error>";
            (400, format!("<Response><Errors>{error}</Errors></Response>"))
        });
        let found = exists(&wire, By::InstanceId, &ids(0..200)).await;
        assert!(found.iter().all(Option::is_none));
        assert!(wire.asked().len() <= 2 * 2 * (MOST_REFUSALS + 1) + 2, "{}", wire.asked().len());
    }

    #[tokio::test]
    async fn something_alive_of_unknown_name_leaves_all_unknown() {
        let wire = Wire::new(|_, _, _| page(&[("i-0000000f", Some("running"), "other")], None));
        assert_eq!(exists(&wire, By::InstanceId, &ids(0..2)).await, [None, None]);
        assert_eq!(exists(&wire, By::RunnerTag, &["mine".to_owned()]).await, [None]);
        let dead = Wire::new(|_, _, _| page(&[("i-0000000f", Some("terminated"), "other")], None));
        assert_eq!(exists(&dead, By::InstanceId, &ids(0..1)).await, [Some(false)]);
    }

    #[tokio::test]
    async fn a_list_without_end_is_no_answer() {
        let wire = Wire::new(|_, _, token| page(&[], Some(&format!("{}x", token.unwrap_or("p")))));
        assert_eq!(exists(&wire, By::InstanceId, &ids(0..1)).await, [None]);
        assert_eq!(wire.asked().len(), 2 * MOST_PAGES);
        // One that goes round in a circle is not followed for long.
        let wire = Wire::new(|_, _, _| page(&[], Some("again")));
        assert_eq!(exists(&wire, By::InstanceId, &ids(0..1)).await, [None]);
        assert_eq!(wire.asked().len(), 4);
    }

    #[tokio::test]
    async fn j13_without_regions_nothing_is_absent() {
        let wire = Wire::new(|_, _, _| page(&[], None));
        let answers = wire.inventory(&[]).await.any_lives(By::InstanceId, &ids(0..1)).await;
        assert!(answers[0].is_err());
    }
}
