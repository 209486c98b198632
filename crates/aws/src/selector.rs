//! The selector port over Lambda: an operator's own function.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_lambda::Client;
use aws_sdk_lambda::config::Config;
use aws_smithy_types::Blob;
use ostler_core::ports::Selector;
use ostler_core::{Error, Result};
use serde_json::Value;

use crate::sdk_error;

/// How long a selector may take: GitHub waits ten seconds for the webhook's answer, and starting the runner
/// comes after the selector.
const LIMIT: Duration = Duration::from_secs(6);

/// Longest text of a selector's own error that is repeated in ours.
const MAX_WORDS: usize = 200;

/// Calls selectors.
pub struct LambdaSelector {
    client: Client,
}

impl LambdaSelector {
    /// For functions of this account and region.
    pub fn new(config: &SdkConfig) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(crate::CONNECT)
            .operation_attempt_timeout(LIMIT)
            .operation_timeout(LIMIT)
            .build();
        let config = aws_sdk_lambda::config::Builder::from(config)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::standard().with_max_attempts(2))
            .build();
        Self::of(config)
    }

    fn of(config: Config) -> Self {
        Self { client: Client::from_conf(config) }
    }
}

impl Selector for LambdaSelector {
    async fn choose(&self, function: &str, request: &Value) -> Result<Value> {
        let answer = self
            .client
            .invoke()
            .function_name(function)
            .payload(Blob::new(request.to_string()))
            .send()
            .await
            .map_err(|error| sdk_error(&format!("ask the selector {function}"), error))?;
        let payload = answer.payload.map(Blob::into_inner).unwrap_or_default();
        if let Some(kind) = answer.function_error {
            let words = String::from_utf8_lossy(&payload);
            let words = &words[..words.floor_char_boundary(MAX_WORDS)];
            return Err(Error::Transient(format!(
                "the selector {function} failed ({kind}): {words}"
            )));
        }
        if payload.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&payload).map_err(|error| {
            Error::Permanent(format!(
                "the selector {function} answered something else than JSON: {error}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Wire;

    async fn chosen(answer: (u16, Value)) -> (Wire, Result<Value>) {
        let wire = Wire::new([answer]);
        let selector = LambdaSelector::new(&wire.config().await);
        let result = selector.choose("pick", &json!({"payload": 1})).await;
        (wire, result)
    }

    #[tokio::test]
    async fn the_functions_answer_is_passed_on() {
        let (wire, result) = chosen((200, json!({"provider": "linux-x64"}))).await;
        assert_eq!(result.unwrap(), json!({"provider": "linux-x64"}));
        let sent = &wire.requests()[0];
        assert_eq!(sent["payload"], 1);
        assert!(sent["#uri"].as_str().unwrap().ends_with("/2015-03-31/functions/pick/invocations"));
        assert_eq!(chosen((200, Value::Null)).await.1.unwrap(), Value::Null);
    }

    #[tokio::test]
    async fn a_functions_error_is_an_error() {
        let (_, result) = chosen((200, json!({"errorType": "FunctionErrorForTests"}))).await;
        let error = result.unwrap_err();
        assert!(error.to_string().contains("pick failed (Unhandled)"), "{error}");
    }

    #[tokio::test]
    async fn a_selector_that_is_not_there_is_told_of() {
        let (_, result) =
            chosen((404, json!({"Type": "User", "__type": "ResourceNotFoundException"}))).await;
        assert!(matches!(result, Err(Error::Permanent(_))), "{result:?}");
    }
}
