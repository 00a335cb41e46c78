//! The validated request. After this stage no text holds an address, a size or a mode, and what is
//! out of range has been refused by the name of its option.

mod arguments;
mod check;
mod forward;
mod matrix;

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use forwarders::{DevicePair as Ends, ForwardConfig as Way};
use netstacks::StackKind;
use platform::{Network, Offload};
use serde::{Deserialize, Serialize};

pub use self::forward::{Direction, End, ForwardScenario, Forwarder, Generator, ROWS};
pub use self::matrix::{MatrixPlan, Runnable};
use crate::cli::{Cli, Command, Format};

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Plan {
    /// One run.
    Run {
        /// The run.
        scenario: Box<Scenario>,
        /// Whether the result is written as JSON.
        json: bool,
        /// Where a flame graph of the run goes, which then is not scored.
        profile: Option<PathBuf>,
    },
    /// Many runs and a table.
    Matrix(MatrixPlan),
    /// One run of a forwarder.
    Forward {
        /// The run.
        scenario: Box<ForwardScenario>,
        /// Whether the result is written as JSON.
        json: bool,
    },
    /// Many runs of forwarders, and their table.
    ForwardTable(MatrixPlan<ForwardScenario>),
    /// A verdict for each cell of two files.
    Compare {
        /// The samples from before.
        old: PathBuf,
        /// The samples from after.
        new: PathBuf,
        /// Changes below this fraction are nobody's concern.
        floor: f64,
        /// Whether figures are by the speed of loopback in their round.
        relative: bool,
    },
    /// A page, a table or a picture.
    Report {
        /// Files of samples.
        files: Vec<PathBuf>,
        /// What to make of them.
        format: Format,
        /// Where to write it; `None` for standard output.
        out: Option<PathBuf>,
    },
    /// What this machine can run.
    Doctor,
    /// Packets are carried between two TUN devices, for the process that has started this one.
    Forwarder {
        /// The devices.
        ends: Ends,
        /// How.
        way: Way,
        /// Where a flame graph goes.
        profile: Option<PathBuf>,
    },
}

/// Everything that says how one run is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What carries the bytes.
    pub subject: Subject,
    /// What the stack runs on.
    pub runtime: RuntimeKind,
    /// Whether super-packets and undone checksums are to cross the device. What came of it is the
    /// sample's to say.
    pub offload: Offload,
    /// MTU of the device, in bytes: 576 to 65,535.
    pub mtu: u16,
    /// How much is delivered in the timed window, by all streams together.
    pub amount: Amount,
    /// How much is delivered before the timed window, in bytes, by all streams together.
    pub warmup_bytes: u64,
    /// How often it is taken note of what has arrived.
    pub interval: Option<Duration>,
    /// Streams at once.
    pub parallel: NonZeroU16,
    /// The stack's receive buffer and send buffer for each stream, in bytes.
    pub window_bytes: usize,
    /// Size of one read or write, in bytes, of both client and server.
    pub buffer_bytes: NonZeroUsize,
    /// The kernel client's congestion control; `None` for cubic or else the kernel's own.
    pub congestion: Option<String>,
    /// How much of the payload is checked.
    pub verify: Verify,
    /// Whether the run gets a network of its own.
    pub isolated: bool,
    /// After how long the run has failed.
    pub timeout: Duration,
    /// The device's name.
    pub tun_name: String,
    /// Its addresses.
    pub network: Network,
    /// A device to take over instead of making one.
    pub tun_fd: Option<i32>,
}

/// What carries the bytes: the whole path, or one layer of it alone, so that one sees what each costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// All of it: a kernel client, the TUN device, the stack.
    Path(StackKind, Mode),
    /// The stack alone, over a link in memory, with a scripted client.
    Stack(StackKind, Mode),
    /// The kernel's TCP on both sides, over its loopback; the server is on tokio, too.
    Loopback(Mode),
    /// The TUN device alone: packets that the kernel routes back into it, without any TCP.
    Device,
}

impl Subject {
    /// Its layer.
    pub const fn layer(self) -> Layer {
        match self {
            Self::Path(..) => Layer::Path,
            Self::Stack(..) => Layer::Stack,
            Self::Loopback(_) => Layer::Loopback,
            Self::Device => Layer::Device,
        }
    }

    /// The stack in it.
    pub const fn stack(self) -> Option<StackKind> {
        match self {
            Self::Path(stack, _) | Self::Stack(stack, _) => Some(stack),
            Self::Loopback(_) | Self::Device => None,
        }
    }

    /// What its client does.
    pub const fn mode(self) -> Option<Mode> {
        match self {
            Self::Path(_, mode) | Self::Stack(_, mode) | Self::Loopback(mode) => Some(mode),
            Self::Device => None,
        }
    }

    /// Whether a TUN device is in it, with an MTU and perhaps offload; or a link in memory like one.
    pub const fn has_link(self) -> bool {
        !matches!(self, Self::Loopback(_))
    }
}

/// The rungs of the ladder from the kernel's own loopback to the whole path, without what is measured
/// on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// [`Subject::Loopback`].
    Loopback,
    /// [`Subject::Device`].
    Device,
    /// [`Subject::Stack`].
    Stack,
    /// [`Subject::Path`].
    Path,
}

impl Layer {
    /// The name by which users choose the layer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Device => "device",
            Self::Stack => "stack",
            Self::Path => "path",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How much is delivered in the timed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(NonZeroU64),
    /// As many as can be in that time.
    Time(Duration),
}

/// What the kernel client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It reads what the stack sends.
    Reader,
    /// It writes, and the stack receives.
    Writer,
}

impl Mode {
    /// The name by which users choose the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the stack and its server run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "RuntimeFields", from = "RuntimeFields")]
pub enum RuntimeKind {
    /// Tokio's current-thread runtime.
    CurrentThread,
    /// Tokio's multi-thread runtime, with its own number of workers or the user's.
    MultiThread(Option<NonZeroUsize>),
}

impl RuntimeKind {
    /// The name in samples.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current-thread",
            Self::MultiThread(_) => "multi-thread",
        }
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A [`RuntimeKind`] as two fields of a sample.
#[derive(Serialize, Deserialize)]
struct RuntimeFields {
    runtime: RuntimeName,
    worker_threads: Option<NonZeroUsize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuntimeName {
    CurrentThread,
    MultiThread,
}

impl From<RuntimeKind> for RuntimeFields {
    fn from(kind: RuntimeKind) -> Self {
        match kind {
            RuntimeKind::CurrentThread => Self { runtime: RuntimeName::CurrentThread, worker_threads: None },
            RuntimeKind::MultiThread(worker_threads) => Self { runtime: RuntimeName::MultiThread, worker_threads },
        }
    }
}

impl From<RuntimeFields> for RuntimeKind {
    fn from(fields: RuntimeFields) -> Self {
        match fields.runtime {
            RuntimeName::CurrentThread => Self::CurrentThread,
            RuntimeName::MultiThread => Self::MultiThread(fields.worker_threads),
        }
    }
}

/// How much of the payload is compared with the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The warm-up.
    Sample,
    /// Everything.
    Full,
    /// Nothing: only the count.
    Off,
}

/// An option whose value cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct PlanError {
    option: &'static str,
    reason: String,
}

impl PlanError {
    fn new(option: &'static str, reason: impl Into<String>) -> Self {
        Self { option, reason: reason.into() }
    }
}

impl TryFrom<Cli> for Plan {
    type Error = PlanError;

    fn try_from(cli: Cli) -> Result<Self, PlanError> {
        Ok(match cli.command {
            None => {
                let (json, profile) = (cli.run.json, cli.run.profile.clone());
                Self::Run { scenario: Box::new(Scenario::try_from(cli.run)?), json, profile }
            }
            Some(Command::Matrix(matrix)) => Self::Matrix(MatrixPlan::try_from(*matrix)?),
            Some(Command::Forward(forward)) if forward.all || forward.row.is_some() => {
                Self::ForwardTable(MatrixPlan::try_from(*forward)?)
            }
            Some(Command::Forward(forward)) => {
                Self::Forward { json: forward.json, scenario: Box::new(ForwardScenario::try_from(*forward)?) }
            }
            Some(Command::Compare(compare)) => Self::Compare {
                old: compare.old,
                new: compare.new,
                floor: compare.floor / 100.0,
                relative: compare.relative,
            },
            Some(Command::Report(report)) => {
                Self::Report { files: report.files, format: report.format, out: report.out }
            }
            Some(Command::Doctor) => Self::Doctor,
            Some(Command::Forwarder(forwarder)) => {
                // Whoever makes the devices sees whether there can be such.
                let ends = Ends { near: forwarder.near, far: forwarder.far, far_namespace: forwarder.far_namespace };
                Self::Forwarder { ends, way: forwarder.way.try_into()?, profile: forwarder.profile }
            }
        })
    }
}
