//! Why a load failed.

use std::io;

use crate::failure::Failure;
use crate::sample::Status;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{operation}: {source}")]
    Io { operation: &'static str, source: io::Error },
    #[error("the stream ended after {got} of {expected} bytes")]
    Short { got: u64, expected: u64 },
    #[error("packets were lost: {got} of {expected} bytes came back")]
    Lost { got: u64, expected: u64 },
    #[error("byte {offset} of the stream differs from the one that was sent")]
    Corrupt { offset: u64 },
    #[error("{arrived} datagrams were received, or would have been without a loss; only {sent} were sent")]
    Overcounted { sent: u64, arrived: u64 },
    #[error("none of {sent} datagrams arrived")]
    Silent { sent: u64 },
    #[error("the server received no datagram by which it learns where the client is")]
    Ungreeted,
    #[error(
        "no rate down to {per_second} datagrams a second lost next to nothing twice in a row; give one, with --bitrate"
    )]
    Unsteady { per_second: u64 },
    #[error("{failed} requests failed ({kinds}), {answered} were answered")]
    Requests { status: Status, failed: u64, answered: u64, kinds: String },
    #[error("the run was cancelled")]
    Cancelled,
}

impl LoadError {
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// The failure of a run, of which this side noticed it.
    pub(crate) fn failure(&self, who: &str) -> Failure {
        Failure { status: self.status(), detail: format!("{who}: {self}") }
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::UnexpectedEof => Status::Short,
                // The other side did not reply in time.
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Status::Stalled,
                _ => Status::Reset,
            },
            Self::Short { .. } | Self::Lost { .. } | Self::Unsteady { .. } => Status::Short,
            Self::Corrupt { .. } | Self::Overcounted { .. } => Status::Corrupt,
            Self::Silent { .. } | Self::Ungreeted => Status::Stalled,
            Self::Requests { status, .. } => *status,
            Self::Cancelled => Status::Timeout,
        }
    }
}

/// The result of an operation that may find nothing to do: `None` if it would block.
pub(crate) fn unless_blocked<T>(
    operation: &'static str,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> Result<Option<T>, LoadError> {
    loop {
        match attempt() {
            Ok(value) => return Ok(Some(value)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(LoadError::Io { operation, source }),
        }
    }
}
