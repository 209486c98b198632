//! A function's life: start once, then one invocation after the other.

use std::fmt;
use std::process::ExitCode;

use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use ostler_core::Error;
use serde::Serialize;
use serde_json::Value;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::deadline::{Deadline, Invocation};
use crate::environment::Environment;

/// An invocation's failure. Lambda reports it under the error's fixed name, which is what the state machine
/// matches (`ErrorEquals`).
#[derive(Clone)]
pub struct Failure(pub Error);

/// The runtime logs failures by their debug form: it is the text, not the enum's shape.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.error_type(), self.0)
    }
}

impl From<Failure> for Diagnostic {
    fn from(Failure(error): Failure) -> Self {
        Self { error_type: error.error_type().to_owned(), error_message: error.to_string() }
    }
}

/// Runs a function until its sandbox ends. `start` builds what all invocations share; if it fails, the
/// reason is logged and the process exits with 1. `handle` serves one event; its error, or its panic, is
/// that invocation's failure and no other's. Events come as JSON values, because a shape that is not
/// expected is for the function to judge, not a reason to stop.
pub fn run<S, R: Serialize>(
    start: impl AsyncFnOnce(Environment) -> Result<S, Error>,
    handle: impl AsyncFn(&S, Value, &Invocation) -> Result<R, Error>,
) -> ExitCode {
    let mut environment = Environment::of_process();
    let level = environment.optional("OSTLER_LOG");
    // Fails only if a subscriber is set already, and then there is a log.
    let _ = tracing::subscriber::set_global_default(log(level.as_deref(), std::io::stdout));
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(reason = panic.payload_as_str(), location, "panic");
    }));
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no asynchronous runtime: {error}"))
        .and_then(|runtime| runtime.block_on(serve(environment, start, handle)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            tracing::error!(reason, "the function cannot run");
            ExitCode::FAILURE
        }
    }
}

async fn serve<S, R: Serialize>(
    environment: Environment,
    start: impl AsyncFnOnce(Environment) -> Result<S, Error>,
    handle: impl AsyncFn(&S, Value, &Invocation) -> Result<R, Error>,
) -> Result<(), String> {
    let shared = start(environment).await.map_err(|error| error.to_string())?;
    let (shared, handle) = (&shared, &handle);
    let service = service_fn(move |event: LambdaEvent<Value>| async move {
        let invocation = Invocation {
            deadline: Deadline::starting_now(event.context.deadline),
            request_id: event.context.request_id,
        };
        let function = &event.context.env_config.function_name;
        let span = tracing::info_span!("invocation", request_id = invocation.request_id, function);
        let handled = async {
            handle(shared, event.payload, &invocation).await.map_err(|error| {
                let error_type = error.error_type();
                tracing::error!(error_type, reason = %error, "the invocation failed");
                Failure(error)
            })
        };
        handled.instrument(span).await
    });
    lambda_runtime::run(service).await.map_err(|error| error.to_string())
}

/// The log: JSON lines with the request's id, without colours. `level` is for our own crates; others stay
/// at warnings, because at lower levels HTTP and SDK crates write what they send. Failures and panics are
/// logged by [`run`] with the request's id; the runtime's own lines of them, without it, are left out.
fn log<W>(level: Option<&str>, out: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = level.and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_ansi(false)
        .with_writer(out);
    let targets = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("lambda_runtime::layers::panic", LevelFilter::OFF)
        .with_target("ostler", level);
    tracing_subscriber::registry().with(targets).with(lines)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use ostler_core::error::ERROR_TYPES;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: Option<&str>, write: impl FnOnce()) -> Vec<Value> {
        let lines = Lines::default();
        let out = lines.clone();
        tracing::subscriber::with_default(log(level, move || out.clone()), write);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    #[test]
    fn every_error_is_reported_under_its_fixed_name() {
        let text = || "what happened".to_owned();
        let errors = [
            Error::Transient(text()),
            Error::Later { after: Duration::from_secs(60), reason: text() },
            Error::Conflict(text()),
            Error::NotFound(text()),
            Error::Permanent(text()),
        ];
        let names: Vec<_> = errors
            .into_iter()
            .map(|error| {
                let diagnostic = Diagnostic::from(Failure(error));
                assert!(diagnostic.error_message.contains("what happened"));
                diagnostic.error_type
            })
            .collect();
        assert_eq!(names, ERROR_TYPES);
    }

    #[test]
    fn log_lines_are_json_with_the_requests_id() {
        let lines = logged(None, || {
            let span = tracing::info_span!("invocation", request_id = "r-1");
            let _inside = span.enter();
            tracing::info!(runner = "widgets-1", "launched");
            tracing::debug!("not at the default level");
        });
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["message"], "launched");
        assert_eq!(lines[0]["runner"], "widgets-1");
        assert_eq!(lines[0]["span"]["request_id"], "r-1");
    }

    #[test]
    fn i9_dependencies_never_log_below_warnings() {
        let lines = logged(Some("trace"), || {
            tracing::trace!("ours");
            tracing::debug!(target: "hyper", "authorization: Bearer x");
            tracing::info!(target: "aws_smithy_runtime", "request body");
            tracing::warn!(target: "hyper", "kept");
        });
        let messages: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["ours", "kept"]);
    }

    #[test]
    fn a_level_that_is_none_is_the_default() {
        let lines = logged(Some("loud"), || {
            tracing::debug!("no");
            tracing::info!("yes");
        });
        assert_eq!(lines.len(), 1);
    }
}
