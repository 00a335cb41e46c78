//! Checks what this machine lacks for a run.

use std::fmt;

pub use crate::sys::{drops_own_sources, examine, memory_bytes, strict_reverse_paths};

use crate::{Cause, Error};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is as it should be.
    Ok,
    /// Runs work, but the user should know something.
    Note,
    /// Something that a run needs is missing.
    Missing,
    /// It was tried and did not work.
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

/// One check and its result. Each text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// Its result.
    pub verdict: Verdict,
    /// A description of the result.
    pub finding: String,
    /// The cause of what is missing, for which the program has a remedy.
    pub cause: Option<Cause>,
    /// Advice for the user, if there is any.
    pub remedy: Option<String>,
}

impl Check {
    /// A check without a remedy.
    pub fn new(name: impl Into<String>, verdict: Verdict, finding: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, finding: finding.into(), cause: None, remedy: None }
    }

    /// Adds a remedy for the user.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// [`Verdict::Missing`], with the error's text and cause.
    pub fn of(name: impl Into<String>, error: &Error) -> Self {
        Self { cause: Some(error.cause()), ..Self::new(name, Verdict::Missing, error.to_string()) }
    }
}
