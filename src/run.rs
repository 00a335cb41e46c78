//! Executes one scenario and returns raw facts. The only stage that touches a device.
//!
//! Three parties share a run. The kernel's side is a plain blocking thread for each stream
//! (`client`); the stack's side is a task for each stream on the tokio runtime under test
//! (`server`); the `supervisor`, once all is set up (`setup`), races them against the stack's
//! driver, the user and the clock, and joins every one of them.

mod client;
mod pattern;
mod server;
mod setup;
mod supervisor;
mod transfer;

use std::fmt;
use std::time::Duration;

use netstacks::{Effective, StartError};
use platform::{Class, Environment, PacketCounts};
use serde::Serialize;

use crate::plan::{Scenario, Verify};

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

/// The raw facts of one run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What was run.
    pub scenario: Scenario,
    /// How it ended.
    pub status: Status,
    /// Where and why it failed.
    pub detail: Option<String>,
    /// Payload bytes that arrived in the timed window.
    pub bytes: u64,
    /// The timed window: from the client's go to the last byte's arrival (reader), or to the
    /// acknowledgement of the last byte by the application at the stack (writer).
    pub elapsed: Duration,
    /// CPU time of the client's threads in the timed window, user and system.
    pub client_cpu: Option<Duration>,
    /// CPU time of all other threads in the timed window, user and system: the stack's side, and the
    /// kernel's work on its behalf.
    pub stack_cpu: Option<Duration>,
    /// The process' largest resident set, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Segments that the kernel sent again in the timed window.
    pub retransmits: Option<u64>,
    /// Packets that the device dropped in the timed window, both ways.
    pub device_drops: Option<u64>,
    /// Packets that crossed the device in the timed window.
    pub packets: PacketCounts,
    /// The client's congestion control, where the system says.
    pub congestion: Option<String>,
    /// The device, once it was open.
    pub device: Option<DeviceFacts>,
    /// What the stack really used.
    pub effective: Option<Effective>,
    /// The machine.
    pub environment: Environment,
}

impl Sample {
    /// How much of the payload was really checked: without a warm-up there is no sample of it.
    pub fn verified(&self) -> Verify {
        match self.scenario.verify {
            Verify::Sample if self.scenario.warmup_bytes == 0 => Verify::Off,
            verify => verify,
        }
    }
}

/// The device as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The interface's name.
    pub name: String,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// Whether super-packets and undone checksums cross it.
    pub offload: bool,
    /// How many packets may wait for the stack, where the system has such a queue.
    pub tx_queue_len: Option<u32>,
}

/// How a run ended. A failure is a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// All that was to be delivered was.
    Ok,
    /// Time ran out, and nothing had arrived for a while.
    Stalled,
    /// The connection was reset or refused.
    Reset,
    /// Fewer bytes arrived than were sent.
    Short,
    /// Other bytes arrived than were sent.
    Corrupt,
    /// Time ran out while bytes were still arriving.
    Timeout,
    /// A task of the stack or the server panicked.
    Panicked,
    /// The device or the stack on it failed.
    DeviceLost,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Stalled => "stalled",
            Self::Reset => "reset",
            Self::Short => "short",
            Self::Corrupt => "corrupt",
            Self::Timeout => "timeout",
            Self::Panicked => "panicked",
            Self::DeviceLost => "device-lost",
        })
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
    /// The user stopped it.
    #[error("interrupted; the device is gone and nothing is left behind")]
    Interrupted,
}

impl RunError {
    /// The exit code that scripts see.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Platform(error) => match error.class() {
                Class::Unavailable => 3,
                Class::Invalid => 2,
                Class::Failed => 1,
            },
            Self::Start(_) => 1,
            Self::NotCompiledIn(_) => 2,
            // What a shell says of a process that SIGINT ended: 128 + 2.
            Self::Interrupted => 130,
        }
    }
}
