//! Why a run could not begin, or did not end.

use netstacks::StartError;
use platform::{Class, End, PROTOCOL};

use crate::remedy::SystemError;

/// Why a run could not begin, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system refused an operation.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The stack did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This build does not have the stack.
    #[error(transparent)]
    NotCompiledIn(#[from] netstacks::NotCompiledIn),
    /// The error of the child process.
    #[error("{text}")]
    Process {
        /// Whether the request, the system or the run is at fault.
        class: Class,
        /// The error, word for word.
        text: String,
    },
    /// A stack's process opened its device without the offload that was asked for, whatever the system has.
    #[error("the stack's process opened its device without offload; leave out --offload on")]
    NoOffload,
    /// Two programs speak different versions of the protocol between a process and its child processes.
    #[error(
        "{program} speaks version {theirs} of the protocol for child processes, and this program version {ours}; \
         use two builds that speak the same version", ours = PROTOCOL
    )]
    OtherProtocol {
        /// The other program.
        program: String,
        /// Its version.
        theirs: u32,
    },
    /// A program does not speak that protocol at all.
    #[error(
        "{program} does not speak the protocol for child processes (this program speaks version {ours}); \
         use a newer build of rust-tun-perf", ours = PROTOCOL
    )]
    NoProtocol {
        /// The other program.
        program: String,
    },
    /// The user interrupted it.
    #[error("interrupted; the device is gone and nothing is left behind")]
    Interrupted,
}

impl From<platform::Error> for RunError {
    fn from(error: platform::Error) -> Self {
        SystemError::from(error).into()
    }
}

impl RunError {
    pub(crate) fn stated(end: &End) -> Option<Self> {
        end.stated_error().map(|(class, text)| Self::Process { class, text })
    }

    /// Whether the request, the system or the run is at fault. An interruption counts as failed.
    pub fn class(&self) -> Class {
        match self {
            Self::System(error) => error.class(),
            Self::Process { class, .. } => *class,
            Self::NoOffload => Class::Unavailable,
            Self::NotCompiledIn(_) | Self::OtherProtocol { .. } | Self::NoProtocol { .. } => Class::Invalid,
            Self::Start(_) | Self::Interrupted => Class::Failed,
        }
    }

    /// The exit code that scripts see.
    pub fn exit_code(&self) -> u8 {
        match (self, self.class()) {
            // A shell reports a process that SIGINT ended like this: 128 + 2.
            (Self::Interrupted, _) => 130,
            (_, Class::Failed) => 1,
            (_, Class::Invalid) => 2,
            (_, Class::Unavailable) => 3,
        }
    }
}
