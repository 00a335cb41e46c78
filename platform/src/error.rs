//! The error of this crate: operation, object, cause and remedy.

use std::fmt;
use std::io;

/// Whose fault it is, and so which exit code it deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A right, a device or a capability of the system is missing.
    Unavailable,
    /// What was asked for cannot be.
    Invalid,
    /// It should have worked.
    Failed,
}

/// An operation that failed: `open /dev/net/tun: permission denied; run as root or …`.
#[derive(Debug)]
pub struct Error {
    class: Class,
    operation: &'static str,
    object: String,
    source: io::Error,
    remedy: Option<String>,
}

impl Error {
    /// An error of any class; see [`Error::remedy`] for what to do about it.
    pub fn new(class: Class, operation: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self { class, operation, object: object.into(), source, remedy: None }
    }

    /// The same error with what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// An operation that this system does not have.
    pub fn unsupported(operation: &'static str, object: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(
            Class::Unavailable,
            operation,
            object,
            io::Error::new(io::ErrorKind::Unsupported, "not supported on this system"),
        )
        .remedy(remedy)
    }

    /// Whose fault it is.
    pub fn class(&self) -> Class {
        self.class
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.object, self.source)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message already holds the source's.
        None
    }
}
