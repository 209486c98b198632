//! The reaper's port over EC2: the machines that carry an owner's tag.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_ec2::types::{
    CancelSpotInstanceRequestState, Filter, Instance as Ec2Instance,
    SpotInstanceRequest as Ec2SpotRequest, SpotInstanceState, SpotInstanceType,
};
use ostler_core::ports::{Machine, MachinePage, Machines, SpotRequest};
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};

use crate::errors::failed;
use crate::{PAGE, literal, state_of};

/// Between a sweep's calls that change something: EC2 refills five of them a second in an account and region
/// (EC2 API Reference, "Request throttling"), and a sweep must not take those that launches need.
const PACE: Duration = Duration::from_millis(500);

/// Machines of EC2, by a tag.
pub struct Ec2Machines {
    ec2: aws_sdk_ec2::Client,
    filters: Vec<Filter>,
    pub(crate) pace: Duration,
}

impl Ec2Machines {
    /// Those whose tag `key` has that value. Makes no call.
    pub fn new(config: &SdkConfig, key: &str, value: &str) -> Self {
        let filter = |name: String, values: &[&str]| {
            let values = values.iter().map(|value| literal(value)).collect();
            Filter::builder().name(name).set_values(Some(values)).build()
        };
        // What has ended stays listed for an hour, and can't be ended again.
        let living = ["pending", "running", "stopping", "stopped"];
        Self {
            ec2: aws_sdk_ec2::Client::new(config),
            filters: vec![
                filter(format!("tag:{key}"), &[value]),
                filter("instance-state-name".into(), &living),
            ],
            pace: PACE,
        }
    }
}

impl Machines for Ec2Machines {
    async fn list(&self, next: Option<String>) -> Result<MachinePage> {
        let answer = self
            .ec2
            .describe_instances()
            .set_filters(Some(self.filters.clone()))
            .max_results(PAGE)
            .set_next_token(next)
            .send()
            .await
            .map_err(|error| failed("list the machines", &error))?;
        let reservations = answer.reservations.unwrap_or_default().into_iter();
        Ok(MachinePage {
            machines: reservations
                .flat_map(|it| it.instances.unwrap_or_default())
                .filter_map(read)
                .collect(),
            // Pages may be short or empty before the last (EC2 API Reference, "Pagination").
            next: answer.next_token.filter(|token| !token.is_empty()),
        })
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>> {
        let answer = self.ec2.describe_instances().instance_ids(id).send().await;
        let Some(answer) = found(answer.map_err(|it| failed(&format!("look for {id}"), &it)))?
        else {
            return Ok(None);
        };
        let reservations = answer.reservations.unwrap_or_default().into_iter();
        let mut machines =
            reservations.flat_map(|it| it.instances.unwrap_or_default()).filter_map(read);
        // EC2 answers a known id with that instance, or says that there is none. An empty answer is what
        // becomes of one that ended long ago (ampedandwired/rancher-reaper#6).
        Ok(machines.find(|machine| machine.id == id))
    }

    async fn spot_request(&self, id: &str) -> Result<Option<SpotRequest>> {
        let what = format!("look for the spot request {id}");
        let answer =
            self.ec2.describe_spot_instance_requests().spot_instance_request_ids(id).send().await;
        let Some(answer) = found(answer.map_err(|error| failed(&what, &error)))? else {
            return Ok(None);
        };
        let requests = answer.spot_instance_requests.unwrap_or_default();
        let request = requests.into_iter().find(|it| it.spot_instance_request_id() == Some(id));
        // Asked by its id, EC2 says so if there is none: an answer without it proves nothing.
        let request =
            request.ok_or_else(|| Error::Transient(format!("{what}: EC2's answer lacks it")))?;
        Ok(Some(read_request(&request)))
    }

    async fn cancel_spot_request(&self, id: &str) -> Result<()> {
        let what = format!("cancel the spot request {id}");
        tokio::time::sleep(self.pace).await;
        let answer =
            self.ec2.cancel_spot_instance_requests().spot_instance_request_ids(id).send().await;
        let Some(answer) = found(answer.map_err(|error| failed(&what, &error)))? else {
            return Ok(());
        };
        let all = answer.cancelled_spot_instance_requests.unwrap_or_default();
        let state = all
            .into_iter()
            .find(|it| it.spot_instance_request_id() == Some(id))
            .and_then(|it| it.state);
        match state {
            Some(
                CancelSpotInstanceRequestState::Cancelled
                | CancelSpotInstanceRequestState::Closed
                | CancelSpotInstanceRequestState::Completed,
            ) => Ok(()),
            state => {
                let state = state.as_ref().map_or("unknown", |state| state.as_str());
                Err(Error::Transient(format!("{what}: EC2 still has it as {state}")))
            }
        }
    }

    async fn terminate(&self, id: &str) -> Result<()> {
        tokio::time::sleep(self.pace).await;
        let answer = self.ec2.terminate_instances().instance_ids(id).send().await;
        found(answer.map_err(|error| failed(&format!("terminate {id}"), &error))).map(|_| ())
    }
}

/// `None` where EC2 itself says that there is no such thing.
fn found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(instance: Ec2Instance) -> Option<Machine> {
    let tags = instance.tags.unwrap_or_default().into_iter();
    Some(Machine {
        state: state_of(instance.state.and_then(|state| state.name).as_ref()),
        started: instance
            .launch_time
            .and_then(|at| at.to_millis().ok())
            .map(Timestamp::from_millis),
        spot_request: instance.spot_instance_request_id.filter(|id| !id.is_empty()),
        tags: tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect(),
        id: instance.instance_id?,
    })
}

/// What is missing or new counts as the worse case.
fn read_request(request: &Ec2SpotRequest) -> SpotRequest {
    let over = matches!(
        request.state,
        Some(SpotInstanceState::Cancelled | SpotInstanceState::Closed | SpotInstanceState::Failed)
    );
    SpotRequest { persistent: request.r#type != Some(SpotInstanceType::OneTime), open: !over }
}
