//! What this machine has for a run, and what it lacks: found by looking, with nothing made or changed.

use std::fmt;

use crate::sys::{Native, System};
use crate::{Cause, Error};

/// How something was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Runs can be made, but there is something that one should know.
    Note,
    /// What a run needs is not there.
    Missing,
    /// It was tried, and did not work.
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
            Self::Failed => "failed",
        })
    }
}

/// Something that was looked at. Its texts are of one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub finding: String,
    /// The cause, if something failed.
    pub cause: Option<Cause>,
    /// What can be done about it.
    pub remedy: Option<String>,
}

impl Check {
    /// A check without a remedy.
    pub fn new(name: impl Into<String>, verdict: Verdict, finding: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, finding: finding.into(), cause: None, remedy: None }
    }

    /// The same check with what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same check with a cause, for which the program has a remedy.
    #[must_use]
    pub fn caused_by(self, cause: Cause) -> Self {
        Self { cause: Some(cause), ..self }
    }

    /// Whether something is there: else it is missing, in the error's words.
    pub fn of(name: impl Into<String>, result: Result<String, Error>) -> Self {
        match result {
            Ok(finding) => Self::new(name, Verdict::Ok, finding),
            Err(error) => Self::new(name, Verdict::Missing, error.to_string()).caused_by(error.cause()),
        }
    }
}

/// Looks at what runs need of the system, with windows of `window_bytes`.
pub fn examine(window_bytes: usize) -> Vec<Check> {
    Native::examine(window_bytes)
}

/// The machine's memory, in bytes, where the system says.
pub fn memory_bytes() -> Option<u64> {
    Native::memory_bytes()
}
