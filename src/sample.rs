//! The facts of one run, and the lines of the files that hold them.
//!
//! A [`Sample`] says what was run (its [`Cell`]), how it ended and what it cost. It is a JSON object on
//! a line ([`line()`]), the same from `--json` and in every file ([`SampleFile`]).

mod cell;
mod environment;
mod fields;
mod file;
mod line;
mod load;
mod warning;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use netstacks::Effective;
use platform::PacketCounts;
use serde::{Deserialize, Serialize};

pub use self::cell::{Cell, ForwardCell, Planned, StackCell};
pub use self::environment::{Environment, Program};
pub use self::fields::{field_text, fields};
pub use self::file::{Appender, FileError, SampleFile};
pub use self::line::{Head, SCHEMA, line, line_of_its_own, parse_line};
pub use self::load::Load;
pub use self::warning::{FEWEST_RUNS, SHORTEST_WINDOW, WIDEST_INTERVAL, Warning};
use crate::plan::{Mode, Verify};

/// The raw facts of one run. `None` is what the system does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What was run.
    pub cell: Cell,
    /// Facts that have no unit of their own in the file.
    pub facts: Facts,
    /// The machine and the program.
    pub environment: Arc<Environment>,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// How it ended.
    pub status: Status,
    /// Where and why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The client's congestion control.
    pub congestion: Option<String>,
    /// Payload bytes delivered before the timed window.
    pub warmup_bytes: u64,
    /// Payload bytes that arrived in the timed window.
    pub bytes: u64,
    /// Of these, those that went from the far network to the near one, where payload went both ways at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_back: Option<u64>,
    /// The timed window: from the client's go to the last byte's arrival (reader), or to the
    /// acknowledgement of the last byte by the application at the stack (writer).
    #[serde(rename = "elapsed_ns", with = "nanoseconds")]
    pub elapsed: Duration,
    /// How much of the payload was really checked.
    pub verified: Verify,
    /// CPU time in the timed window.
    pub cpu: CpuTime,
    /// The largest resident set of the process, or of the forwarder's, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Segments that the kernel sent again in the timed window.
    pub retransmits: Option<u64>,
    /// Packets that the forwarder wrote in the timed window after a later one of their flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    /// Packets that the device dropped in the timed window, both ways.
    pub device_drops: Option<u64>,
    /// Packets that crossed the device in the timed window.
    pub packets: Packets,
    /// The client's connection at the end of the timed window; of several the first.
    #[serde(default)]
    pub tcp: Option<TcpFacts>,
    /// What had arrived when, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// When the run began, in milliseconds since 1970 (UTC).
    #[serde(default)]
    pub started_unix_ms: Option<u64>,
    /// The device, once it was open.
    pub device: Option<DeviceFacts>,
    /// What the stack really used.
    pub effective: Option<Effective>,
    /// The round of a matrix, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
}

/// CPU time, user and system, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Of the client's threads; with a forwarder, of all of the generator.
    pub client_seconds: Option<f64>,
    /// Of all other threads: the stack's side, and the kernel's work on its behalf. `None` with a forwarder.
    pub stack_seconds: Option<f64>,
    /// Of the forwarder, and the kernel's work on its behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarder_seconds: Option<f64>,
}

/// Packets that crossed the link, a super-packet being one. Of a forwarder they are those with the payload's
/// direction; where payload went both ways, all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// From the device to the stack, or those that the forwarder read.
    pub rx: u64,
    /// From the stack to the device, or those that the forwarder wrote.
    pub tx: u64,
    /// Bytes of the former, IP headers included.
    #[serde(default)]
    pub rx_bytes: u64,
    /// Bytes of the latter, IP headers included.
    #[serde(default)]
    pub tx_bytes: u64,
}

impl From<PacketCounts> for Packets {
    fn from(counts: PacketCounts) -> Self {
        let PacketCounts { rx_packets, rx_bytes, tx_packets, tx_bytes } = counts;
        Self { rx: rx_packets, tx: tx_packets, rx_bytes, tx_bytes }
    }
}

/// What the kernel says of the client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFacts {
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: Option<u64>,
    /// Smallest round-trip time that was seen, in microseconds.
    pub min_rtt_us: Option<u64>,
    /// Congestion window, in bytes.
    pub congestion_window_bytes: Option<u64>,
    /// Window that the stack advertises, in bytes.
    pub send_window_bytes: Option<u64>,
    /// Window that the kernel advertises, in bytes.
    pub receive_window_bytes: Option<u64>,
}

/// A part of the timed window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end, from the beginning of the timed window.
    #[serde(rename = "end_ns", with = "nanoseconds")]
    pub end: Duration,
    /// Payload bytes that arrived in it.
    pub bytes: u64,
    /// CPU time of the forwarder in it, user and system, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// The forwarder's resident set at its end, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
}

/// The device as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// A task of the stack or the server panicked, or the process crashed.
    Panicked,
    /// The device or the stack on it failed.
    DeviceLost,
    /// Of a matrix: the run could not begin, because this system lacks what it needs, or had no more of it,
    /// as of threads or descriptors.
    Unavailable,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Stalled => "stalled",
            Self::Reset => "reset",
            Self::Short => "short",
            Self::Corrupt => "corrupt",
            Self::Timeout => "timeout",
            Self::Panicked => "panicked",
            Self::DeviceLost => "device-lost",
            Self::Unavailable => "unavailable",
        })
    }
}

impl Facts {
    /// A run that never came to its timed window.
    pub fn failed(status: Status, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: Some(detail.into()),
            congestion: None,
            warmup_bytes: 0,
            bytes: 0,
            bytes_back: None,
            elapsed: Duration::ZERO,
            verified: Verify::Off,
            cpu: CpuTime::default(),
            peak_rss_bytes: None,
            retransmits: None,
            reordered: None,
            device_drops: None,
            packets: Packets::default(),
            tcp: None,
            intervals: Vec::new(),
            started_unix_ms: None,
            device: None,
            effective: None,
            round: None,
        }
    }
}

impl Sample {
    /// Whether it has a figure: a failed run has none.
    pub fn is_ok(&self) -> bool {
        self.facts.status == Status::Ok
    }

    /// Delivered payload by time, in 10⁹ bits a second; 0 where no time has passed.
    pub fn gbps(&self) -> f64 {
        gbps(self.facts.bytes, self.facts.elapsed)
    }

    /// Bytes of a packet on the average, IP headers included, in the direction of the payload: it
    /// shows at once whether whole super-packets crossed the device. `None` without packets.
    pub fn bytes_per_packet(&self) -> Option<f64> {
        let packets = self.facts.packets;
        let is_written = match &self.cell {
            Cell::Stack(cell) => cell.mode? == Mode::Reader,
            Cell::Forward(_) => true,
        };
        let (bytes, count) = if is_written { (packets.tx_bytes, packets.tx) } else { (packets.rx_bytes, packets.rx) };
        (count > 0 && bytes > 0).then(|| bytes as f64 / count as f64)
    }

    /// CPU seconds of the client for each gigabyte, 10⁹ bytes, of payload.
    pub fn client_cpu_per_gb(&self) -> Option<f64> {
        self.per_gb(self.facts.cpu.client_seconds)
    }

    /// CPU seconds of what carries the bytes, the stack's side or the forwarder, for each gigabyte, 10⁹
    /// bytes, of payload.
    pub fn subject_cpu_per_gb(&self) -> Option<f64> {
        let cpu = self.facts.cpu;
        self.per_gb(match self.cell {
            Cell::Stack(_) => cpu.stack_seconds,
            Cell::Forward(_) => cpu.forwarder_seconds,
        })
    }

    fn per_gb(&self, seconds: Option<f64>) -> Option<f64> {
        seconds.filter(|_| self.facts.bytes > 0).map(|seconds| seconds / (self.facts.bytes as f64 / 1e9))
    }

    /// How busy the forwarder kept the processors, in percent of one; `None` for a stack.
    pub fn cpu_percent(&self) -> Option<Load> {
        load::cpu_percent(&self.facts)
    }

    /// The forwarder's resident set as it was sampled at the ends of the intervals, in bytes; `None` for a
    /// stack, and where there was no interval.
    pub fn memory_bytes(&self) -> Option<Load> {
        load::memory_bytes(&self.facts)
    }

    /// What the reader of the figure should know.
    pub fn warnings(&self) -> Vec<Warning> {
        warning::of(self)
    }
}

/// Payload by time, in 10⁹ bits a second; 0 where no time has passed.
pub fn gbps(bytes: u64, elapsed: Duration) -> f64 {
    let elapsed_ns = elapsed.as_nanos();
    if elapsed_ns == 0 { 0.0 } else { bytes as f64 * 8.0 / elapsed_ns as f64 }
}

/// A duration as a number of nanoseconds.
mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}
