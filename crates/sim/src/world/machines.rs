//! The `Machines` port over the EC2 model: what the reaper sees and does.

use ostler_core::error::{Error, Result};
use ostler_core::ports::{Machine, MachinePage, Machines, SpotRequest};

use super::World;
use super::fleet::{OWNER, state_of, trouble};
use crate::ec2::{self, DescribeQuery, Filter};

/// Machines of one page: few, so that small worlds have several.
const PAGE: usize = 5;

fn shown(instance: &ec2::Instance, now: ostler_core::time::Timestamp) -> Machine {
    Machine {
        id: instance.id.clone(),
        state: state_of(instance, now),
        started: Some(instance.launched),
        spot_request: instance.spot.as_ref().map(|spot| spot.id.clone()),
        tags: instance.shown_tags(now).clone(),
    }
}

/// `None` for what EC2 says is not there.
fn found<T>(answer: std::result::Result<T, ec2::Fault>) -> Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.code.ends_with(".NotFound") => Ok(None),
        Err(fault) => Err(trouble(&fault)),
    }
}

impl Machines for World {
    async fn list(&self, next: Option<String>) -> Result<MachinePage> {
        self.ask("Machines.list", |state| {
            let query = DescribeQuery {
                filters: vec![
                    Filter::new("tag:ostler:owner", &[OWNER]),
                    Filter::new(
                        "instance-state-name",
                        &["pending", "running", "stopping", "stopped"],
                    ),
                ],
                most: Some(PAGE),
                next_token: next.clone(),
                ..DescribeQuery::default()
            };
            let page =
                state.ec2.describe_instances(state.now, &query).map_err(|fault| trouble(&fault))?;
            Ok(MachinePage {
                machines: page.items.iter().map(|it| shown(it, state.now)).collect(),
                next: page.next_token,
            })
        })
        .await
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>> {
        self.ask("Machines.machine", |state| {
            let query = DescribeQuery { ids: vec![id.into()], ..DescribeQuery::default() };
            let page = found(state.ec2.describe_instances(state.now, &query))?;
            Ok(page.and_then(|page| page.items.first().map(|it| shown(it, state.now))))
        })
        .await
    }

    async fn spot_request(&self, id: &str) -> Result<Option<SpotRequest>> {
        self.ask("Machines.spot_request", |state| {
            let now = state.now;
            let query = DescribeQuery { ids: vec![id.into()], ..DescribeQuery::default() };
            let page = found(state.ec2.describe_spot_requests(now, &query))?;
            Ok(page.and_then(|page| {
                let instance = page.items.first()?;
                let (spot, status) = (instance.spot.as_ref()?, instance.spot_status(now)?);
                let open = !matches!(status.state, "cancelled" | "closed" | "failed");
                Some(SpotRequest { persistent: spot.persistent, open })
            }))
        })
        .await
    }

    async fn cancel_spot_request(&self, id: &str) -> Result<()> {
        self.ask("Machines.cancel_spot_request", |state| {
            match state.ec2.cancel_spot_requests(state.now, &[id.to_owned()]) {
                Ok(_) => Ok(()),
                Err(fault) => Err(Error::Transient(fault.to_string())),
            }
        })
        .await
    }

    async fn terminate(&self, id: &str) -> Result<()> {
        self.ask("Machines.terminate", |state| {
            state.note_harm(id);
            found(state.ec2.terminate_instances(state.now, &[id.to_owned()])).map(|_| ())
        })
        .await
    }
}
