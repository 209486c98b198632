//! What every function starts with: environment, clock, log, metrics, deadline, and the way an error of the
//! domain becomes the error that Step Functions matches.
//!
//! A function's `main` is `ostler_lambda::run(start, handle)`.

mod clock;
mod deadline;
mod emf;
mod environment;
mod run;

pub use clock::SystemClock;
pub use deadline::{Deadline, Invocation};
pub use emf::Emf;
pub use environment::Environment;
pub use run::{Failure, run};
