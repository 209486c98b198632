//! What a command ends with, for scripts.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It is done, or all is well.
    Done,
    /// It could not be done; the text says why and what to do. (clap itself ends with 2.)
    Failed,
    /// What was looked at has faults: a configuration that is invalid, a line of the doctor that says
    /// FAIL.
    Faults,
    /// Nothing was changed: nobody said yes.
    Declined,
    /// A deploy did not stand its test, and the version before it goes on serving.
    MovedBack,
}

/// For the end of `--help`.
pub const HELP: &str = "Exit codes: 0 done, all is well; 1 could not be done; 2 wrong arguments; \
    3 what was looked at has faults; 4 nothing was changed, because nobody said yes; 5 a deploy was \
    moved back, and the version before it goes on serving.";

impl Exit {
    /// The number that the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Faults => 3,
            Self::Declined => 4,
            Self::MovedBack => 5,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
