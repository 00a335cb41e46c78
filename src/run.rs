//! Executes one scenario and returns raw facts. The only stage that touches a device.
//!
//! Three parties share a run. The client's side is a plain blocking thread for each stream
//! (`client`); the stack's side is a task for each stream on the tokio runtime under test (`party`,
//! `server`); the `supervisor`, once all is set up (`setup`), races them against the stack's
//! driver, the user and the clock, and joins every one of them.
//!
//! What lies between the two sides is the scenario's [layer](crate::plan::Layer), a file each:
//!
//! | layer | client | between | stack's side |
//! |---|---|---|---|
//! | `path` | kernel sockets | TUN device | the stack |
//! | `stack` (`memory`) | [`netstacks::peer`] | link in memory | the stack |
//! | `loopback` | kernel sockets | the kernel's loopback | the kernel, on the same runtime |
//! | `device` | none | TUN device, and the kernel's routing | a task that writes packets and reads them again |
//!
//! A stack that is not one of this program's is run by its type, without a device or any right over a
//! link in memory:
//!
//! ```
//! use std::time::Duration;
//!
//! use netstacks::StackKind;
//! use rust_tun_perf::plan::{Amount, Mode, Scenario, Subject, Verify};
//! use rust_tun_perf::run::{Executor, StackExecutor, StackUnderTest};
//! use rust_tun_perf::sample::Status;
//!
//! /// How fast `S` receives, in 10⁹ bits a second; `row` is the stack whose name it has in tables.
//! fn receives<S: StackUnderTest>(row: StackKind) -> Result<f64, Box<dyn std::error::Error>> {
//!     let mut scenario = Scenario::new(row, Mode::Writer)?;
//!     scenario.subject = Subject::Stack(row, Mode::Writer);
//!     scenario.amount = Amount::Time(Duration::from_millis(100));
//!     scenario.warmup_bytes = 1_000_000;
//!     scenario.verify = Verify::Full;
//!     let sample = StackExecutor::<S>::new().execute(&scenario)?;
//!     assert_eq!(sample.facts.status, Status::Ok, "{:?}", sample.facts.detail);
//!     Ok(sample.gbps())
//! }
//! # #[cfg(feature = "smoltcp")]
//! # receives::<netstacks::Smoltcp>(StackKind::Smoltcp)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod device;
mod doctor;
mod failure;
mod forward;
mod forwarder;
mod go;
mod intervals;
mod kernel;
mod loopback;
mod matrix;
mod memory;
mod meter;
mod party;
mod path;
mod pattern;
mod process;
mod server;
mod setup;
mod stack;
mod supervisor;
mod transfer;
mod tun;

use std::fmt;
use std::marker::PhantomData;

use netstacks::{Netstack, StartError};
use platform::{Class, Counted, MemoryLink, TunDevice};

pub use self::doctor::{doctor, facts};
pub use self::forwarder::forwarder;
pub use self::matrix::{MatrixError, Observer, matrix};
pub use self::process::{ProcessExecutor, end_with_parent};
use self::stack::{Named, Only};
use crate::plan::{ForwardScenario, Forwarder, Scenario};
use crate::sample::{Planned, Sample};

/// Something that executes scenarios: the real one, or a test's with fixed samples.
pub trait Executor<S = Scenario> {
    /// Runs the scenario. A run that began and failed is a sample too, whose status says how.
    ///
    /// # Errors
    ///
    /// The run could not begin, or the user interrupted it.
    fn execute(&self, scenario: &S) -> Result<Sample, RunError>;

    /// Is told of the scenarios that are to be run, before the first of them.
    fn prepare(&self, _scenarios: &[S]) {}
}

/// Runs scenarios of every layer with the stack that each names.
///
/// Where the scenario is isolated and its layer wants that, the calling thread stays in the run's network
/// namespace. An ordinary user has to call it from a process without other threads
/// (`user_namespaces(7)`).
#[derive(Clone, Copy, Debug, Default)]
pub struct TunExecutor;

impl Executor for TunExecutor {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        setup::execute(scenario, &Named)
    }
}

/// Something that is run in a process of its own.
pub trait Job: Planned {
    /// Makes what runs need and what takes its time, so that it is not made while others are measured. What is
    /// missing is for the runs to say.
    fn prepare(_runs: &[Self]) {}
}

impl Job for Scenario {}

/// The forwarder in Go, which may have to be built.
impl Job for ForwardScenario {
    fn prepare(runs: &[Self]) {
        if runs.iter().any(|run| matches!(run.forwarder, Forwarder::Go { .. })) {
            let _told_by_the_runs = go::forwarder();
        }
    }
}

impl Executor<ForwardScenario> for TunExecutor {
    fn execute(&self, scenario: &ForwardScenario) -> Result<Sample, RunError> {
        forward::execute(scenario)
    }
}

/// A stack that runs over all links that a run has: what [`StackExecutor`] runs. A stack that is generic in
/// its link is one.
pub trait StackUnderTest: Netstack<Counted<TunDevice>> + Netstack<Counted<MemoryLink>> {}

impl<S: Netstack<Counted<TunDevice>> + Netstack<Counted<MemoryLink>>> StackUnderTest for S {}

/// Runs scenarios with the stack `S` in the place of the one that they name, whose name the samples keep.
/// Else it is like [`TunExecutor`].
pub struct StackExecutor<S>(PhantomData<fn() -> S>);

impl<S: StackUnderTest> StackExecutor<S> {
    /// The executor of that stack.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<S: StackUnderTest> Default for StackExecutor<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> fmt::Debug for StackExecutor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackExecutor").finish()
    }
}

impl<S: StackUnderTest> Executor for StackExecutor<S> {
    fn execute(&self, scenario: &Scenario) -> Result<Sample, RunError> {
        setup::execute(scenario, &Only::<S>::new())
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
