//! Where a command runs: its output, the prefix, and AWS as the shell reaches it.

use ostler_aws::{Patience, SdkConfig};

use crate::output::Output;
use crate::tool::Tool;

/// What every command gets.
pub struct Shell {
    /// Where it speaks.
    pub output: Output,
    /// The path of the SSM parameters, without a slash at its end.
    pub prefix: String,
    region: Option<String>,
}

impl Shell {
    /// For the given flags.
    pub fn new(output: Output, prefix: &str, region: Option<String>) -> Self {
        Self { output, prefix: prefix.trim_end_matches('/').to_owned(), region }
    }

    /// Credentials, region and endpoint, as the AWS CLI would find them.
    pub async fn aws(&self) -> SdkConfig {
        ostler_aws::sdk_config_in(self.region.clone(), Patience::STEP).await
    }

    /// AWS by its own tool, in the same region.
    pub fn tool(&self) -> Tool {
        Tool::new(self.region.clone())
    }

    /// The full name of a parameter, as `control/tiers`.
    pub fn parameter(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}
