//! AWS's errors, told apart by what the caller may do about them. This is the only place that knows codes.

use std::error::Error as StdError;

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use ostler_core::Error;

/// Longest text of an error: enough for code and cause.
const MAX_TEXT: usize = 400;

/// Codes that no repetition mends: permission, a resource that is not there, a request that is wrong. What
/// is not listed (throttling, 5xx, codes that are new) is [`Error::Transient`].
const PERMANENT: [(&str, &str); 27] = [
    ("AccessDenied", PERMISSION),
    ("AccessDeniedException", PERMISSION),
    ("UnauthorizedOperation", PERMISSION),
    ("KMSAccessDeniedException", PERMISSION),
    ("KmsAccessDeniedException", PERMISSION),
    ("KmsAccessDenied", PERMISSION),
    ("KmsDisabled", "enable the KMS key"),
    ("InvalidKeyId", "the KMS key of a parameter is gone or disabled"),
    ("ResourceNotFoundException", MISSING),
    ("StateMachineDoesNotExist", MISSING),
    ("StateMachineDeleting", MISSING),
    ("QueueDoesNotExist", MISSING),
    ("AWS.SimpleQueueService.NonExistentQueue", MISSING),
    ("InvalidArn", MISSING),
    ("InvalidAddress", MISSING),
    ("ValidationException", REQUEST),
    ("SerializationException", REQUEST),
    ("InvalidExecutionInput", REQUEST),
    ("InvalidParameterValue", REQUEST),
    ("InvalidParameterValueException", REQUEST),
    ("InvalidMessageContents", REQUEST),
    ("InvalidRequestContentException", REQUEST),
    ("RequestTooLargeException", REQUEST),
    ("ItemCollectionSizeLimitExceededException", REQUEST),
    ("MissingParameter", REQUEST),
    // Names are checked before they are sent, so this is no duplicate and no input of a user's: an
    // emulator that answers so for a repeated name (localstack/localstack#11104), or a new rule of AWS's.
    ("InvalidName", "the name passed our own check; this is not counted as a repeated start"),
    ("OptInRequired", "enable the region or the service for the account"),
];

const PERMISSION: &str =
    "the function's role lacks the permission; deploy the stack's current template";
const MISSING: &str =
    "the resource in the function's environment does not exist; deploy the stack again";
const REQUEST: &str =
    "the request itself is refused; this is a fault of Ostler's or of its configuration";

/// The error of the domain for an error of the SDK; `what` says what was to be done, and to what. The text
/// has AWS's code and message, and never what was sent.
pub fn sdk_error<E, R>(what: &str, error: SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
    R: std::fmt::Debug + 'static,
{
    let message = error.as_service_error().and_then(ProvideErrorMetadata::message);
    told(what, &error, message.map(str::to_owned).unwrap_or_default())
}

/// The same without AWS's message: for requests that carry a secret, which a message might repeat.
pub(crate) fn sdk_error_of_secret<E, R>(what: &str, error: SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
    R: std::fmt::Debug + 'static,
{
    told(what, &error, String::new())
}

fn told<E, R>(what: &str, error: &SdkError<E, R>, message: String) -> Error
where
    E: ProvideErrorMetadata + StdError + 'static,
    R: std::fmt::Debug + 'static,
{
    let Some(code) = error.as_service_error().and_then(ProvideErrorMetadata::code) else {
        let text = cut(format!("{what}: {}", causes(error)));
        return match error {
            SdkError::ConstructionFailure(_) => Error::Permanent(text),
            _ => Error::Transient(text),
        };
    };
    let text = |advice: &str| cut(format!("{what}: {code} {message}{advice}"));
    match code {
        "ConditionalCheckFailedException" | "ExecutionAlreadyExists" => Error::Conflict(text("")),
        "ExecutionDoesNotExist" => Error::NotFound(text("")),
        _ => match PERMANENT.iter().find(|(listed, _)| *listed == code) {
            Some((_, advice)) => Error::Permanent(text(&format!(" ({advice})"))),
            None => Error::Transient(text("")),
        },
    }
}

/// What went wrong below the service: the SDK's own text is one of four words, the cause says which host
/// refused or which time was over. Display forms only: debug forms print headers and bodies.
fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

#[cfg(test)]
mod tests {
    use aws_sdk_sfn::operation::describe_execution::DescribeExecutionError;
    use aws_smithy_runtime_api::client::result::ConnectorError;
    use aws_smithy_types::error::ErrorMetadata;

    use super::*;

    fn service(code: &str) -> Error {
        let metadata = ErrorMetadata::builder().code(code).message("words of AWS").build();
        sdk_error(
            "describe x",
            SdkError::service_error(DescribeExecutionError::generic(metadata), ()),
        )
    }

    #[test]
    fn cp_09_throttling_and_failures_of_the_service_may_be_repeated() {
        for code in [
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "TooManyRequestsException",
            "ProvisionedThroughputExceededException",
            "LimitExceededException",
            "SlowDown",
            "ExecutionLimitExceeded",
            "ServiceUnavailable",
            "Unavailable",
            "InternalServerError",
            "InternalFailure",
            "InternalError",
            "ServiceException",
            "RequestTimeout",
            "KmsThrottled",
            "EC2ThrottledException",
            "ExpiredTokenException",
            "UnrecognizedClientException",
            "ResourceConflictException",
            "ACodeThatIsNewNextYear",
        ] {
            let error = service(code);
            assert!(matches!(error, Error::Transient(_)), "{code}: {error:?}");
            assert_eq!(error.to_string(), format!("describe x: {code} words of AWS"));
        }
    }

    #[test]
    fn what_no_repetition_mends_says_what_to_do() {
        for (code, advice) in PERMANENT {
            let error = service(code);
            assert!(matches!(&error, Error::Permanent(text) if text.contains(advice)), "{error:?}");
        }
    }

    #[test]
    fn do_18_invalid_name_is_no_duplicate() {
        assert!(matches!(service("InvalidName"), Error::Permanent(_)));
        assert!(matches!(service("ExecutionAlreadyExists"), Error::Conflict(_)));
        assert!(matches!(service("ConditionalCheckFailedException"), Error::Conflict(_)));
        assert!(matches!(service("ExecutionDoesNotExist"), Error::NotFound(_)));
    }

    #[test]
    fn a_lost_connection_may_be_repeated_and_its_cause_is_told() {
        let cause = std::io::Error::other("connection refused by 10.0.0.1");
        let error: SdkError<DescribeExecutionError, ()> =
            SdkError::dispatch_failure(ConnectorError::io(cause.into()));
        let error = sdk_error("describe x", error);
        assert!(
            matches!(&error, Error::Transient(text) if text.contains("refused by 10.0.0.1")),
            "{error}"
        );
        let timeout: SdkError<DescribeExecutionError, ()> = SdkError::timeout_error("4 s");
        assert!(matches!(sdk_error("describe x", timeout), Error::Transient(_)));
    }

    #[test]
    fn i9_requests_with_a_secret_never_repeat_the_services_words() {
        let metadata =
            ErrorMetadata::builder().code("ValidationException").message("SECRET").build();
        let error = SdkError::service_error(DescribeExecutionError::generic(metadata), ());
        let text = sdk_error_of_secret("put x", error).to_string();
        assert!(text.contains("ValidationException") && !text.contains("SECRET"), "{text}");
    }

    #[test]
    fn long_words_are_cut_at_a_character() {
        let metadata = ErrorMetadata::builder().code("X").message("é".repeat(2000)).build();
        let error = SdkError::service_error(DescribeExecutionError::generic(metadata), ());
        assert!(sdk_error("x", error).to_string().len() <= MAX_TEXT);
    }
}
