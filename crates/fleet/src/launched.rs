//! Which runner an instance was launched for, by its tags.

use aws_config::SdkConfig;
use ostler_core::Result;
use ostler_core::instances::Launched;
use ostler_core::ports::Instance;

use crate::{described, read, tag};

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
    async fn launched_for(&self, id: &str) -> Result<Option<(String, Instance)>> {
        let Some(found) = described(&self.ec2, id).await? else { return Ok(None) };
        let ours = tag(&found, "ostler:owner") == Some(&self.owner);
        let runner = tag(&found, "ostler:runner").filter(|_| ours).map(str::to_owned);
        Ok(runner.and_then(|runner| Some((runner, read(found)?))))
    }
}
