//! Which runner an instance was launched for, by its tags.

use aws_config::SdkConfig;
use aws_sdk_ec2::types::InstanceLifecycleType;
use ostler_core::Result;
use ostler_core::cost::Bought;
use ostler_core::instances::{Found, Launched};
use ostler_core::time::Timestamp;

use crate::{Ec2Instance, described, read, tag};

/// Instances of EC2, by their ids.
pub struct Ec2Launched {
    ec2: aws_sdk_ec2::Client,
    owner: String,
}

impl Ec2Launched {
    /// Those of the install of that name. Makes no call.
    pub fn new(config: &SdkConfig, owner: &str) -> Self {
        Self { ec2: aws_sdk_ec2::Client::new(config), owner: owner.to_owned() }
    }
}

impl Launched for Ec2Launched {
    async fn launched_for(&self, id: &str) -> Result<Option<Found>> {
        let Some(found) = described(&self.ec2, id).await? else { return Ok(None) };
        let ours = tag(&found, "ostler:owner") == Some(&self.owner);
        let runner = tag(&found, "ostler:runner").filter(|_| ours).map(str::to_owned);
        let bought = bought(&found);
        Ok(runner.and_then(|runner| Some(Found { runner, instance: read(found)?, bought })))
    }
}

fn bought(instance: &Ec2Instance) -> Option<Bought> {
    Some(Bought {
        instance_type: instance.instance_type()?.as_str().to_owned(),
        spot: instance.instance_lifecycle() == Some(&InstanceLifecycleType::Spot),
        since: Timestamp::from_millis(instance.launch_time()?.to_millis().ok()?),
    })
}
