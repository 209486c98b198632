//! The executions port over Step Functions.

use aws_config::SdkConfig;
use aws_sdk_sfn::Client;
use aws_sdk_sfn::operation::describe_execution::DescribeExecutionError;
use aws_sdk_sfn::operation::start_execution::StartExecutionError;
use aws_sdk_sfn::types::ExecutionStatus;
use aws_smithy_types::DateTime;
use ostler_core::job::RunnerInput;
use ostler_core::names::is_plausible;
use ostler_core::ports::{Execution, Executions, Start};
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};

use crate::sdk_error;

/// Longest input of an execution, in bytes (docs.aws.amazon.com, "Step Functions service quotas").
const MAX_INPUT: usize = 262_144;

/// Executions of one state machine.
pub struct StepFunctions {
    client: Client,
    machine: String,
    /// ARN of an execution, up to its name.
    executions: String,
}

impl StepFunctions {
    /// Over the state machine of that ARN.
    pub fn new(config: &SdkConfig, machine_arn: &str) -> Result<Self> {
        let Some((before, name)) = machine_arn.split_once(":stateMachine:") else {
            return Err(Error::Permanent(format!(
                "'{machine_arn}' is not the ARN of a state machine (arn:…:stateMachine:<name>)"
            )));
        };
        Ok(Self {
            client: Client::new(config),
            executions: format!("{before}:execution:{name}:"),
            machine: machine_arn.to_owned(),
        })
    }
}

impl Executions for StepFunctions {
    async fn start(&self, name: &str, input: &RunnerInput) -> Result<Start> {
        check_name(name)?;
        let input = serde_json::to_string(input)
            .map_err(|error| Error::Permanent(format!("input of execution {name}: {error}")))?;
        if input.len() > MAX_INPUT {
            return Err(Error::Permanent(format!(
                "the input of execution {name} has {} bytes; Step Functions takes {MAX_INPUT}",
                input.len()
            )));
        }
        let started = self
            .client
            .start_execution()
            .state_machine_arn(&self.machine)
            .name(name)
            .input(input)
            .send()
            .await;
        match started {
            Ok(answer) => Ok(Start::Accepted { started: timestamp(answer.start_date()) }),
            Err(error) => match error.as_service_error() {
                Some(StartExecutionError::ExecutionAlreadyExists(_)) => Ok(Start::Exists),
                _ => Err(sdk_error(&format!("start execution {name}"), error)),
            },
        }
    }

    async fn describe(&self, name: &str) -> Result<Option<Execution>> {
        check_name(name)?;
        let described = self
            .client
            .describe_execution()
            .execution_arn(format!("{}{name}", self.executions))
            .send()
            .await;
        match described {
            Ok(answer) => Ok(Some(Execution {
                running: *answer.status() == ExecutionStatus::Running,
                started: timestamp(answer.start_date()),
                input: answer.input().and_then(|input| serde_json::from_str(input).ok()),
            })),
            Err(error) => match error.as_service_error() {
                Some(DescribeExecutionError::ExecutionDoesNotExist(_)) => Ok(None),
                _ => Err(sdk_error(&format!("describe execution {name}"), error)),
            },
        }
    }
}

/// Names are checked here too, so that an `InvalidName` of the service is never a name of ours: it is not
/// taken for a repeated start.
fn check_name(name: &str) -> Result<()> {
    if is_plausible(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
    Err(Error::Permanent(format!("'{shown}' cannot be the name of a runner's execution")))
}

/// In milliseconds, which is what Step Functions keeps. It sends them as a decimal fraction; cut instead of
/// rounded, a start could come out a millisecond older than it is, and older than its own call.
fn timestamp(at: &DateTime) -> Timestamp {
    let millis = (i64::from(at.subsec_nanos()) + 500_000) / 1_000_000;
    Timestamp::from_millis(at.secs().saturating_mul(1000).saturating_add(millis))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Wire;

    const ARN: &str = "arn:aws:states:eu-west-1:123456789012:stateMachine:ostler-orchestrator";

    async fn executions(wire: &Wire) -> StepFunctions {
        StepFunctions::new(&wire.config().await, ARN).unwrap()
    }

    fn input() -> RunnerInput {
        serde_json::from_value(
            json!({"owner": "acme", "repo": "w", "jobId": 7, "queuedAt": "2026-11-30T12:00:00Z"}),
        )
        .unwrap()
    }

    fn failure(kind: &str) -> (u16, Value) {
        (400, json!({"__type": kind, "message": "words"}))
    }

    #[tokio::test]
    async fn a_start_answers_the_services_date() {
        let wire =
            Wire::new([(200, json!({"executionArn": "arn", "startDate": 1_796_040_000.123}))]);
        let start = executions(&wire).await.start("w-7-aa", &input()).await.unwrap();
        assert_eq!(start, Start::Accepted { started: Timestamp::from_millis(1_796_040_000_123) });
        let sent = &wire.requests()[0];
        assert_eq!((&sent["stateMachineArn"], &sent["name"]), (&json!(ARN), &json!("w-7-aa")));
        let given: Value = serde_json::from_str(sent["input"].as_str().unwrap()).unwrap();
        assert_eq!(given, serde_json::to_value(input()).unwrap());
    }

    #[tokio::test]
    async fn do_08_do_17_an_existing_name_is_an_answer_and_no_error() {
        let wire = Wire::new([failure("ExecutionAlreadyExists")]);
        assert_eq!(executions(&wire).await.start("w-7-aa", &input()).await.unwrap(), Start::Exists);
    }

    #[tokio::test]
    async fn do_18_invalid_name_from_the_service_is_an_error_of_its_own() {
        let wire = Wire::new([failure("InvalidName")]);
        let error = executions(&wire).await.start("w-7-aa", &input()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Permanent(text) if text.contains("InvalidName")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn do_18_names_are_checked_before_the_call() {
        let wire = Wire::new([(200, json!({}))]);
        let executions = executions(&wire).await;
        for bad in ["", "bad name", "a/b", "a:b", &"x".repeat(81), "é", "a\n"] {
            assert!(
                matches!(executions.start(bad, &input()).await, Err(Error::Permanent(_))),
                "{bad}"
            );
            assert!(matches!(executions.describe(bad).await, Err(Error::Permanent(_))), "{bad}");
        }
        assert_eq!(wire.requests(), Vec::<Value>::new());
    }

    #[tokio::test]
    async fn an_input_above_the_limit_is_refused_before_the_call() {
        let wire = Wire::new([(200, json!({}))]);
        let long = RunnerInput { job_labels: "x".repeat(MAX_INPUT), ..input() };
        let error = executions(&wire).await.start("w-7-aa", &long).await.unwrap_err();
        assert!(matches!(error, Error::Permanent(_)) && wire.requests().is_empty());
    }

    #[tokio::test]
    async fn an_execution_is_found_by_name() {
        let body = |status: &str, input: &str| {
            (
                200,
                json!({"executionArn": "arn", "stateMachineArn": ARN, "status": status,
                "startDate": 1_796_040_000.5, "input": input}),
            )
        };
        let text = serde_json::to_string(&input()).unwrap();
        let wire = Wire::new([
            body("RUNNING", &text),
            body("PENDING_REDRIVE", "[1]"),
            body("SOMETHING_NEW", "{}"),
        ]);
        let executions = executions(&wire).await;
        let found = executions.describe("w-7-aa").await.unwrap().unwrap();
        assert_eq!((found.running, found.input), (true, Some(input())));
        assert_eq!(found.started, Timestamp::from_millis(1_796_040_000_500));
        for _ in 0..2 {
            let found = executions.describe("w-7-aa").await.unwrap().unwrap();
            assert!(
                !found.running && found.input.is_none(),
                "an input that is not ours is no error"
            );
        }
        assert_eq!(
            wire.requests()[0]["executionArn"],
            "arn:aws:states:eu-west-1:123456789012:execution:ostler-orchestrator:w-7-aa"
        );
    }

    /// As cdk-github-runners 0.17 writes it.
    #[tokio::test]
    async fn an_execution_of_another_system_is_understood() {
        let text = r#"{"owner":"acme","repo":"widgets","jobId":57012345678,"jobUrl":"https://github.com/acme/widgets/actions/runs/1/job/57012345678","installationId":-1,"jobLabels":"self-hosted,small","provider":"Stack/Runners/Ec2","labels":"small,linux,x64","maxIdleSeconds":300}"#;
        let wire = Wire::new([(
            200,
            json!({"executionArn": "arn", "stateMachineArn": ARN, "status": "RUNNING",
                "startDate": 1_796_040_000.5, "input": text}),
        )]);
        let name = "widgets-5f2a77c0-ce5b-11f0-8d6b-000000000001";
        let input = executions(&wire).await.describe(name).await.unwrap().unwrap().input.unwrap();
        assert_eq!((input.job_id, input.queued_at.as_deref()), (57_012_345_678, None));
        assert!(input.covers(&input.wanted()), "self-hosted is implied in theirs");
        // Started again, it is what they wrote, key by key.
        let again = serde_json::to_value(&input).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
    }

    #[tokio::test]
    async fn i6_only_the_services_word_is_absence() {
        let wire = Wire::new([failure("ExecutionDoesNotExist")]);
        assert!(executions(&wire).await.describe("w-7-aa").await.unwrap().is_none());
        for (kind, status) in
            [("InvalidArn", 400), ("AccessDeniedException", 400), ("InternalError", 500)]
        {
            let wire = Wire::new([(status, json!({"__type": kind}))]);
            assert!(executions(&wire).await.describe("w-7-aa").await.is_err(), "{kind}");
        }
    }

    #[tokio::test]
    async fn an_address_that_is_no_state_machines_is_refused() {
        let config = Wire::default().config().await;
        assert!(StepFunctions::new(&config, "arn:aws:sqs:eu-west-1:1:q").is_err());
    }
}
