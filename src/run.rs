//! Executes one scenario and returns raw facts. The only stage that touches a device.
//!
//! Three parties share a run. The kernel's side is a plain blocking thread for each stream
//! (`client`); the stack's side is a task for each stream on the tokio runtime under test
//! (`server`); the `supervisor`, once all is set up (`setup`), races them against the stack's
//! driver, the user and the clock, and joins every one of them.

mod client;
mod doctor;
mod matrix;
mod pattern;
mod process;
mod server;
mod setup;
mod supervisor;
mod transfer;

use netstacks::StartError;
use platform::Class;

pub use self::doctor::{doctor, facts};
pub use self::matrix::{MatrixError, Observer, matrix};
pub use self::process::ProcessExecutor;
use crate::plan::Scenario;
use crate::sample::Sample;

/// Something that executes scenarios: the real one, or a test's with fixed samples.
pub trait Executor {
    /// Runs the scenario. A run that began and failed is a sample too, whose status says how.
    ///
    /// # Errors
    ///
    /// The run could not begin, or the user interrupted it.
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError>;
}

/// Runs scenarios over a TUN device.
///
/// Where the scenario is isolated, the calling thread stays in the run's network namespace. An
/// ordinary user has to call it from a process without other threads (`user_namespaces(7)`).
#[derive(Clone, Copy, Debug, Default)]
pub struct TunExecutor;

impl Executor for TunExecutor {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        setup::execute(scenario)
    }
}

/// Why a run could not begin, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system would not have it.
    #[error(transparent)]
    Platform(#[from] platform::Error),
    /// The stack would not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This build is without the stack.
    #[error(transparent)]
    NotCompiledIn(#[from] netstacks::NotCompiledIn),
    /// The run's own process says so.
    #[error("{text}")]
    Process {
        /// Whose fault it is.
        class: Class,
        /// The process' error, word for word.
        text: String,
    },
    /// The user stopped it.
    #[error("interrupted; the device is gone and nothing is left behind")]
    Interrupted,
}

impl RunError {
    /// Whose fault it is; an interruption is nobody's, and counts as failed.
    pub fn class(&self) -> Class {
        match self {
            Self::Platform(error) => error.class(),
            Self::Process { class, .. } => *class,
            Self::NotCompiledIn(_) => Class::Invalid,
            Self::Start(_) | Self::Interrupted => Class::Failed,
        }
    }

    /// The exit code that scripts see.
    pub fn exit_code(&self) -> u8 {
        match (self, self.class()) {
            // What a shell says of a process that SIGINT ended: 128 + 2.
            (Self::Interrupted, _) => 130,
            (_, Class::Failed) => 1,
            (_, Class::Invalid) => 2,
            (_, Class::Unavailable) => 3,
        }
    }
}
