//! The ports over the AWS SDK: configuration (SSM), executions (Step Functions), ledger and handoff
//! (DynamoDB), reports (SQS), and the operator's selector (Lambda). EC2 is in a crate of its own, because its
//! SDK takes minutes to compile.
//!
//! Every adapter is made from one [`SdkConfig`] and makes no call until it is asked something. All errors go
//! through one table, [`sdk_error`].

mod configuration;
mod error;
mod executions;
mod handoff;
mod item;
mod ledger;
mod reports;
mod selector;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader};

pub use configuration::SsmConfiguration;
pub use error::sdk_error;
pub use executions::StepFunctions;
pub use handoff::DynamoHandoff;
pub use ledger::DynamoLedger;
pub use reports::SqsReports;
pub use selector::LambdaSelector;

/// Attempts at a call, the first included. Longer retries belong to Step Functions and SQS.
const ATTEMPTS: u32 = 3;

/// First and longest pause between attempts: GitHub waits ten seconds for the webhook's answer in all.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Within a region a connection takes milliseconds; a second means that the address is wrong or blocked.
const CONNECT: Duration = Duration::from_secs(1);

/// One attempt. The slowest call (CreateFleet) answers in about two seconds.
const ATTEMPT: Duration = Duration::from_secs(4);

/// A call with all its attempts.
const OPERATION: Duration = Duration::from_secs(8);

/// The SDK's configuration from the environment (region, credentials, endpoint), with our retries and
/// time-outs. One per process.
pub async fn sdk_config() -> SdkConfig {
    tuned(aws_config::defaults(BehaviorVersion::latest())).load().await
}

fn tuned(loader: ConfigLoader) -> ConfigLoader {
    loader
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(ATTEMPTS)
                .with_initial_backoff(BACKOFF.0)
                .with_max_backoff(BACKOFF.1),
        )
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT)
                .operation_attempt_timeout(ATTEMPT)
                .operation_timeout(OPERATION)
                .build(),
        )
        // Answers are small and the time-outs bound them; the guard would take a slow selector for a
        // stalled stream (awslabs/aws-sdk-rust#1166).
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}
