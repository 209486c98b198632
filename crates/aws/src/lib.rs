//! The ports over the AWS SDK: configuration and credentials (SSM), executions (Step Functions), ledger and
//! handoff (DynamoDB), reports and the janitor's candidates (SQS), and the operator's selector (Lambda). EC2 is in a crate of its own, because its
//! SDK takes minutes to compile.
//!
//! Every adapter is made from one [`SdkConfig`] and makes no call until it is asked something. All errors go
//! through one table, [`sdk_error`].

mod accounts;
mod agenda;
mod configuration;
mod confirmations;
mod credentials;
mod dead_letters;
mod error;
mod executions;
mod gate;
mod handoff;
mod item;
mod ledger;
mod parameters;
mod reports;
mod selector;
mod setup;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader, Region};

pub use accounts::Accounts;
pub use configuration::SsmConfiguration;
pub use confirmations::SqsConfirmations;
pub use credentials::{CredentialNames, SsmCredentials};
pub use dead_letters::{DeadLetters, HandedOver};
pub use error::sdk_error;
pub use executions::StepFunctions;
pub use handoff::DynamoHandoff;
pub use ledger::DynamoLedger;
pub use parameters::{read_parameters, write_parameter};
pub use reports::SqsReports;
pub use selector::LambdaSelector;
pub use setup::SetupParameters;

/// Attempts at a call, the first included. Longer retries belong to Step Functions and SQS.
const ATTEMPTS: u32 = 3;

/// First and longest pause between attempts: GitHub waits ten seconds for the webhook's answer in all.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Within a region a connection takes milliseconds; a second means that the address is wrong or blocked.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a function waits for AWS.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One attempt.
    attempt: Duration,
    /// A call with all its attempts.
    operation: Duration,
}

impl Patience {
    /// For a function whose caller waits: GitHub gives up after ten seconds.
    pub const CALLER_WAITS: Self =
        Self { attempt: Duration::from_secs(4), operation: Duration::from_secs(8) };

    /// For a step of the state machine: a slow answer is better than the same question again, of a
    /// service that is slow because it is asked too much.
    pub const STEP: Self =
        Self { attempt: Duration::from_secs(15), operation: Duration::from_secs(30) };
}

/// The SDK's configuration from the environment (region, credentials, endpoint), with our retries and
/// time-outs. One per process.
pub async fn sdk_config(patience: Patience) -> SdkConfig {
    sdk_config_in(None, patience).await
}

/// The same, in another region than the environment's if one is given.
pub async fn sdk_config_in(region: Option<String>, patience: Patience) -> SdkConfig {
    let loader = tuned(aws_config::defaults(BehaviorVersion::latest()), patience);
    let loader = match region {
        Some(region) => loader.region(Region::new(region)),
        None => loader,
    };
    loader.load().await
}

fn tuned(loader: ConfigLoader, patience: Patience) -> ConfigLoader {
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
                .operation_attempt_timeout(patience.attempt)
                .operation_timeout(patience.operation)
                .build(),
        )
        // Answers are small and the time-outs bound them; the guard would take a slow selector for a
        // stalled stream (awslabs/aws-sdk-rust#1166).
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cp_08_a_slow_answer_is_no_stalled_stream() {
        let config = testing::Wire::default().config().await;
        let guard = config.stalled_stream_protection().unwrap();
        assert!(!guard.upload_enabled() && !guard.download_enabled());
        // What bounds an answer in its place.
        let times = config.timeout_config().unwrap();
        assert!(times.operation_attempt_timeout().is_some() && times.operation_timeout().is_some());
    }

    #[test]
    fn gh_08_one_call_to_aws_leaves_time_within_githubs_ten_seconds() {
        assert!(Patience::CALLER_WAITS.operation < Duration::from_secs(10));
        assert!(Patience::CALLER_WAITS.attempt < Patience::CALLER_WAITS.operation);
    }
}
