//! What can go wrong, said by what the caller may do about it.

use std::time::Duration;

/// A failure of a port or a use case. The text says what happened, to what, and what to do; it never
/// holds a secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Throttling, 5xx, network, an unknown code: the same call may succeed if repeated.
    #[error("{0}")]
    Transient(String),
    /// The other side said when to come back (rate limit, capacity).
    #[error("{reason}; to be tried again in {} s", after.as_secs())]
    Later {
        /// How long to wait from now.
        after: Duration,
        /// What was refused, and by whom.
        reason: String,
    },
    /// What was to be made is there already, and is not what was asked for.
    #[error("{0}")]
    Conflict(String),
    /// What was asked for is proved not to be there.
    #[error("{0}")]
    NotFound(String),
    /// Configuration or input that no repetition will mend; the text says what to fix.
    #[error("{0}")]
    Permanent(String),
}

/// Every value of [`Error::error_type`], for the test that compares them with the state machine's.
pub const ERROR_TYPES: [&str; 5] = ["Transient", "Later", "Conflict", "NotFound", "Permanent"];

impl Error {
    /// The fixed name under which Step Functions matches this error (`ErrorEquals`).
    pub const fn error_type(&self) -> &'static str {
        match self {
            Self::Transient(_) => ERROR_TYPES[0],
            Self::Later { .. } => ERROR_TYPES[1],
            Self::Conflict(_) => ERROR_TYPES[2],
            Self::NotFound(_) => ERROR_TYPES[3],
            Self::Permanent(_) => ERROR_TYPES[4],
        }
    }
}

/// The result of a port or use case.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_the_name_that_the_state_machine_matches() {
        let text = || String::from("x");
        let errors = [
            Error::Transient(text()),
            Error::Later { reason: text(), after: Duration::ZERO },
            Error::Conflict(text()),
            Error::NotFound(text()),
            Error::Permanent(text()),
        ];
        assert_eq!(errors.map(|error| error.error_type()), ERROR_TYPES);
    }
}
