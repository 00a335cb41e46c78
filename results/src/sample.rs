//! The measurements of one run, and the files that hold them as lines of JSON.

#![allow(missing_docs, reason = "docs/json.md explains each field, and a test compares it with samples")]

mod environment;
mod facts;
mod file;
mod latency;
mod line;
mod load;
mod manners;
mod score;
mod warning;

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use netstacks::Effective;
use platform::{FaultCounts, PacketCounts, Switches, Throttled};
use serde::{Deserialize, Serialize};

pub use self::environment::{Environment, Origin, Program, field_text, fields};
pub use self::facts::{
    AdoptedFacts, BlackHoleFacts, CaptureFacts, DatagramFacts, IdleFacts, ProcessFacts, ProgramFacts, RequestFacts,
    RestFacts, Unloaded, UnloadedFacts,
};
pub use self::file::{Appender, FileError, SampleFile};
pub use self::latency::Latency;
pub use self::line::{Head, SCHEMA, line, line_of_its_own, manner_line, parse_line, score_line};
pub use self::manners::MannerScore;
pub use self::score::{CaseResult, Score};
pub(crate) use self::warning::AT_LIMIT;
pub use self::warning::{FEWEST_RUNS, SHORTEST_WINDOW, WIDEST_REACH, Warning};
use crate::cell::{Cell, Mode, Subject, Verify};
use crate::is_default;
use crate::units::nanoseconds;

/// A search for the highest rate of datagrams accepts a rate if it loses at most this share.
pub const MAX_LOST_SHARE: f64 = 0.001;

/// Between the names of congestion controls.
pub const MIXED: &str = " and ";

/// One run. A value that the system does not report is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub cell: Cell,
    pub measured: Measurements,
    pub environment: Arc<Environment>,
}

/// A build of this program whose runs are in a file of `matrix --against`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Build {
    /// The build that wrote the file
    This,
    /// The build that --against named
    Against,
}

impl Build {
    /// Whether it made a sample.
    pub fn made(self, sample: &Sample) -> bool {
        sample.measured.against == (self == Self::Against)
    }
}

/// How a run ended, and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    pub status: Status,
    /// Where and why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Congestion control of the kernel's TCP sockets: several names if those of the run's networks differ ([`MIXED`]).
    pub congestion: Option<String>,
    /// Settings of the kernel that decide how fast these are, in the network of the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// Payload bytes delivered before the timed window.
    pub warmup_bytes: u64,
    pub bytes: u64,
    /// The part of them that clients read, where others wrote at the same time ([`Mode::Both`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_back: Option<u64>,
    /// The timed window: from the client's go to the last byte's arrival, or its acknowledgement by the server (writer).
    #[serde(rename = "elapsed_ns", with = "nanoseconds")]
    pub elapsed: Duration,
    /// How much of the payload was really checked.
    pub verified: Verify,
    pub cpu: CpuTime,
    #[serde(default)]
    pub switches: SwitchFacts,
    /// The share of all processors' time that the host of this virtual machine took (steal): 0 to 1.
    pub stolen_share: Option<f64>,
    /// How much a quota of the processor held this process back in the timed window; `None` without a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Throttled>,
    /// For how long this process was stopped or not scheduled at all in the timed window, in seconds.
    pub stopped_seconds: Option<f64>,
    /// The largest resident set of the process of the subject, in bytes.
    pub peak_rss_bytes: Option<u64>,
    pub retransmits: Option<u64>,
    /// Packets that a forwarder wrote in the timed window after a later one of their flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reordered: Option<u64>,
    /// Packets that the device dropped in the timed window, both ways.
    pub device_drops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<FaultCounts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_facts: Option<QueueFacts>,
    /// The packets that were written to a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcap: Option<CaptureFacts>,
    pub packets: Packets,
    /// Of the client's first connection, at the end of the timed window.
    pub tcp: Option<TcpFacts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// Payload bytes that arrived in each third of the timed window, if it was long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thirds: Option<[u64; 3]>,
    /// The same of each tenth. Only the report of a single run has them.
    #[serde(skip)]
    pub tenths: Option<[u64; 10]>,
    /// From the end of the outage until something arrived again, in seconds; `None` if nothing did, or without an outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_seconds: Option<f64>,
    /// Whether what was measured did not pass on the end of a stream, so that the run ended both sides itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ends_withheld: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestFacts>,
    /// Payload bytes of the stream beside the requests, both ways, in the timed window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleFacts>,
    #[serde(rename = "program_facts", default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Box<ProgramFacts>>,
    /// When the run began, in milliseconds since 1970 (UTC).
    pub started_unix_ms: Option<u64>,
    pub device: Option<DeviceFacts>,
    pub effective: Option<Effective>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// Whether the other build of `matrix --against` made the run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub against: bool,
}

/// CPU time, user and system, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Of the load: the client's threads; with a forwarder or a proxy, clients and servers.
    pub client_seconds: Option<f64>,
    /// Of the subject, on Linux with the kernel's receive path for its packets: all other threads, or the process of the
    /// forwarder or proxy.
    pub subject_seconds: Option<f64>,
}

/// Context switches of the threads of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchFacts {
    /// Of the threads of [`CpuTime::client_seconds`].
    pub client: Option<Switches>,
    /// Of the threads of [`CpuTime::subject_seconds`]. Of another process, only threads that have not ended count.
    pub subject: Option<Switches>,
}

/// Packets that crossed the link; a super-packet counts as one. With a forwarder those in the payload's direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// From the device to the stack, or those that the forwarder read.
    pub rx: u64,
    /// From the stack to the device, or those that the forwarder wrote.
    pub tx: u64,
    /// Bytes of the former, with IP headers.
    pub rx_bytes: u64,
    /// Bytes of the latter, with IP headers.
    pub tx_bytes: u64,
}

impl From<PacketCounts> for Packets {
    fn from(counts: PacketCounts) -> Self {
        let PacketCounts { rx_packets, rx_bytes, tx_packets, tx_bytes } = counts;
        Self { rx: rx_packets, tx: tx_packets, rx_bytes, tx_bytes }
    }
}

/// The queues of a device between several shards of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueFacts {
    /// How many there are: one for each shard, or one in all.
    pub queues: u16,
    /// Packets that a shard got and passed on to another, whose flow they were of, in the timed window.
    pub passed_on: u64,
}

impl QueueFacts {
    /// The packets since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { passed_on: self.passed_on.saturating_sub(earlier.passed_on), ..self }
    }
}

/// The kernel's statistics of the client's connection, or quinn's over QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpFacts {
    pub rtt_us: Option<u64>,
    /// Smallest round-trip time so far, in microseconds.
    pub min_rtt_us: Option<u64>,
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
    pub bytes: u64,
    /// CPU time in it of the forwarder or proxy, user and system, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
}

/// The device of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub name: String,
    pub mtu: usize,
    pub offload: bool,
    pub tx_queue_len: Option<u32>,
    /// The queueing discipline of packets from the kernel. Older files do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qdisc: Option<String>,
}

/// How a run ended. A failure is a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Everything was delivered.
    #[default]
    Ok,
    /// Time ran out, and nothing had arrived for a while.
    Stalled,
    /// The connection was reset or refused.
    Reset,
    /// Fewer bytes arrived than were sent.
    Short,
    /// The timed window lost more datagrams than a search for their rate accepts.
    Lossy,
    /// Other bytes arrived than were sent, or the device has a packet that cannot be.
    Corrupt,
    /// Time ran out while bytes were still arriving.
    Timeout,
    /// A task of the stack or the server panicked, or the process crashed.
    Panicked,
    /// The device or the stack on it failed.
    DeviceLost,
    /// In a matrix: the run was not tried, because two of its cell had timed out or stalled, and none had succeeded.
    GivenUp,
    /// In a matrix: the run could not begin although nothing that it needs is missing.
    NotStarted,
    /// In a matrix: the run could not begin because this system lacks something that it needs.
    Unavailable,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file has the same names.
        self.serialize(f)
    }
}

impl Measurements {
    /// The intervals, each with its start and its length.
    pub fn parts(&self) -> impl Iterator<Item = (Duration, Duration, &Interval)> {
        let mut begin = Duration::ZERO;
        self.intervals.iter().map(move |interval| {
            let start = mem::replace(&mut begin, interval.end);
            (start, interval.end.saturating_sub(start), interval)
        })
    }

    /// The same, as lossy if a search has found the rate of its datagrams and the timed window did not hold it: too many did not
    /// arrive in time, and only those that did are in its bytes. Files of older versions have such runs as good ones.
    #[must_use]
    pub fn judged(self, cell: &Cell) -> Self {
        let (Some(facts), Some(len), Status::Ok) = (self.datagrams, cell.workload().datagram_bytes(), self.status)
        else {
            return self;
        };
        let sent = facts.sent as f64;
        let missing = facts.sent.saturating_sub(facts.arrived.min(self.bytes / u64::from(len.get()))) as f64;
        if !cell.searches() || missing <= MAX_LOST_SHARE * sent {
            return self;
        }
        let (rate, share, most) = (sent / self.elapsed.as_secs_f64(), missing / sent * 100.0, MAX_LOST_SHARE * 100.0);
        let detail = format!(
            "{share:.3} % of {rate:.0} datagrams a second did not arrive in time, and a rate counts if at most {most} % do not"
        );
        Self { status: Status::Lossy, detail: Some(detail), ..self }
    }

    /// The measurements of a run that failed before its timed window.
    pub fn failed(status: Status, detail: impl Into<String>) -> Self {
        Self { status, detail: Some(detail.into()), ..Self::default() }
    }
}

impl Sample {
    /// Whether it has a figure: a failed run has none.
    pub fn is_ok(&self) -> bool {
        self.measured.status == Status::Ok
    }

    /// Delivered payload per time, in 10⁹ bits a second; 0 if no time has passed.
    pub fn gbps(&self) -> f64 {
        gbps(self.measured.bytes, self.measured.elapsed)
    }

    /// Answered requests a second; `None` if the load was not of requests.
    pub fn requests_per_second(&self) -> Option<f64> {
        let answered = self.measured.requests.as_ref()?.answered;
        let seconds = self.measured.elapsed.as_secs_f64();
        Some(if seconds > 0.0 { answered as f64 / seconds } else { 0.0 })
    }

    /// Idle connections, or flows, in a megabyte (10⁶ bytes) of memory after 5 seconds of rest; `None` for other loads, or if the
    /// memory is unknown.
    pub fn connections_per_mb(&self) -> Option<f64> {
        self.measured.idle.as_ref()?.bytes_per_connection(IdleFacts::COMPARED).map(|bytes| 1e6 / bytes)
    }

    /// Mean size of the packets in the direction of the payload, in bytes, with IP headers; `None` without packets.
    pub fn bytes_per_packet(&self) -> Option<f64> {
        let Packets { rx, tx, rx_bytes, tx_bytes } = self.measured.packets;
        let (bytes, count) = match (self.cell.subject(), self.cell.mode?, self.cell.inbound) {
            (Subject::Forward(_), ..) | (_, Mode::Reader, false) | (_, Mode::Writer, true) => (tx_bytes, tx),
            (_, Mode::Writer | Mode::Reader, _) => (rx_bytes, rx),
            (_, Mode::Both | Mode::Rr | Mode::Crr | Mode::Idle, _) => {
                (rx_bytes.checked_add(tx_bytes)?, rx.checked_add(tx)?)
            }
        };
        (count > 0 && bytes > 0).then(|| bytes as f64 / count as f64)
    }
}

/// Payload per time, in 10⁹ bits a second; 0 if no time has passed.
pub fn gbps(bytes: u64, elapsed: Duration) -> f64 {
    let elapsed_ns = elapsed.as_nanos();
    if elapsed_ns == 0 { 0.0 } else { bytes as f64 * 8.0 / elapsed_ns as f64 }
}
