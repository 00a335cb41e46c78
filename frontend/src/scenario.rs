//! The description of one run: subject × workload × conditions × settings.
//!
//! A [`Scenario`] is the whole description. The plan makes it from the command line, and a child process receives it as
//! JSON. A [`Cell`] is the part that names a place in a table: another run of the same scenario is another sample of
//! the same cell.

mod cell;
mod conditions;
mod forwarder;
mod pin;
mod subject;
mod workload;

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use netstacks::{StackCongestion, Workarounds as Repairs};
use platform::{Network, Offload};
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::program::Profile;

pub use self::cell::Cell;
pub(crate) use self::cell::si;
pub use self::conditions::{Conditions, Outage};
pub use self::forwarder::{Forwarder, ROWS};
pub use self::pin::Processors;
pub use self::subject::{Layer, Subject};
pub use self::workload::{Datagrams, Mode, Protocol, Requests, Workload};

/// The default MTU of the device: Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;

/// Shortest `--mtu`, in bytes: every host takes an IPv4 packet of this length (RFC 1122, 3.3.2).
pub const MIN_MTU: u16 = 576;

/// Longest `--queue`, in packets.
pub const MAX_QUEUE: u32 = 262_144;

/// A search for the highest rate of datagrams accepts a rate if it loses a smaller share than this.
pub const MAX_LOST_SHARE: f64 = 0.001;

/// The shortest datagram of [`Workload::Datagrams`], in bytes: it must hold its number.
pub const SHORTEST_DATAGRAM: u16 = 12;

/// How long [`Mode::Idle`] lets the subject release memory by default.
pub const DEFAULT_RELEASE: Duration = Duration::from_secs(1);

pub(crate) const fn default_release() -> Duration {
    DEFAULT_RELEASE
}

/// Bytes for each stream in [`Scenario::path_check`].
const CHECKED_BYTES: u64 = 1_000_000;

/// Most bytes in it: a program of 0.2 Gbps carries them in time.
const MOST_CHECKED_BYTES: u64 = 200_000_000;

/// How long [`Scenario::path_check`] may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// How long [`Scenario::path_check`] makes requests, or loads a forwarder or a proxy.
const CHECK_TIME: Duration = Duration::from_millis(50);

/// Bits a second in datagrams in [`Scenario::path_check`].
const CHECK_BITRATE: u64 = 10_000_000;

/// A number and its noun, for messages.
pub fn plural(count: impl fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    format!("{count} {noun}{}", if count == "1" { "" } else { "s" })
}

/// The number of shards of a stack that is not sharded, which is left out of JSON.
pub(crate) const fn one() -> NonZeroU16 {
    NonZeroU16::MIN
}

/// Whether a stack is not sharded.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub fn is_one(shards: &NonZeroU16) -> bool {
    *shards == NonZeroU16::MIN
}

/// Whether a field is left out of JSON.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Everything that describes one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Scenario {
    /// What carries the bytes.
    pub subject: Subject,
    /// The work of the clients.
    pub workload: Workload,
    /// What the link does to packets.
    pub conditions: Conditions,
    /// The seed of all chance on the link.
    #[serde(default)]
    pub link_seed: u64,
    /// The runtime of the stack and its server. A forwarder has its own.
    #[serde(flatten)]
    pub runtime: RuntimeKind,
    /// Whether the device offloads segmentation and checksums. The sample says whether it did. A forwarder has
    /// its own setting.
    pub offload: Offload,
    /// MTU of the devices, in bytes: 576 to 65,535.
    pub mtu: u16,
    /// Connections at once; streams in both directions are as many each.
    pub parallel: NonZeroU16,
    /// Instances of the stack, each with its own link.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: NonZeroU16,
    /// Queues of the device, if the stack has several shards; `None` for one for each shard where the device can have several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<NonZeroU16>,
    /// Threads of the clients; `None` for one, or for as many as there are streams, up to the processors. With 0 they run on
    /// the thread of their stack, over memory; those of several shards do anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_threads: Option<u16>,
    /// The processors of the client threads and of the workers; `None` for the system's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Processors>,
    /// Most bits of payload a second to send in each direction; `None` for no limit, and with [`Workload::Datagrams`]
    /// for a search for the highest rate that arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitrate: Option<NonZeroU64>,
    /// The mode of a stream beside the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<Mode>,
    /// The stack's receive buffer and send buffer for each stream, in bytes.
    pub window_bytes: usize,
    /// Size of one read or write of client and server, in bytes.
    pub buffer_bytes: NonZeroUsize,
    /// What the adapter does in the stack's place.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repairs: Repairs,
    /// Congestion control of the stack, if it has a choice.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stack_congestion: StackCongestion,
    /// How many packets may wait in the device before the kernel drops; `None` for room for every window, or for the queue
    /// that a program has made.
    pub queue_packets: Option<u32>,
    /// The congestion control of the kernel's sockets; `None` for cubic, or else the kernel's own.
    pub congestion: Option<String>,
    /// How much of the payload is checked.
    pub verify: Verify,
    /// The program that makes the load.
    pub generator: Generator,
    /// How much is delivered in the timed window, by all streams of a direction together.
    pub amount: Amount,
    /// [`Mode::Idle`] reads the memory this long after it has closed its last connection.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "release_ns", with = "nanoseconds", default = "default_release")]
    pub release: Duration,
    /// How much is delivered before the timed window, in bytes, by all streams of a direction together.
    pub warmup_bytes: u64,
    /// How often arrived bytes are recorded.
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    #[serde(rename = "interval_ns", with = "optional_nanoseconds", default)]
    pub interval: Option<Duration>,
    /// The run has failed after this time.
    #[cfg_attr(test, schemars(with = "u64"))]
    #[serde(rename = "timeout_ns", with = "nanoseconds")]
    pub timeout: Duration,
    /// Whether the run gets a network namespace of its own.
    pub isolated: bool,
    /// Names and addresses of the devices.
    pub devices: Devices,
    /// The forwarder in Go, if it is already built.
    pub go_forwarder: Option<PathBuf>,
    /// The command of a stack that is a process of its own; gVisor has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The program that carries the bytes, if it is none of this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Box<Profile>>,
    /// The file for a flame graph. A run that makes one is not scored.
    pub profile: Option<PathBuf>,
}

/// How much is delivered in the timed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Amount {
    /// This number of bytes.
    Bytes(NonZeroU64),
    /// For a time, and up to ten times as long if that is enough to deliver a number of bytes.
    Time {
        /// The shortest time.
        #[cfg_attr(test, schemars(with = "u64"))]
        #[serde(rename = "time_ns", with = "nanoseconds")]
        time: Duration,
        /// The fewest bytes, of all streams of a direction together.
        bytes: u64,
    },
}

impl Amount {
    /// For a time, with no least number of bytes.
    pub const fn time(time: Duration) -> Self {
        Self::Time { time, bytes: 0 }
    }

    /// How many times as long as its time a window lasts at most, to deliver its bytes.
    pub const STRETCH: u32 = 10;

    /// Whether a window is over `elapsed` after its begin, when `arrived` bytes of a direction have arrived. A window
    /// whose bytes would not be there in ten times its time, at the rate so far, is over after its time.
    #[inline]
    pub fn is_over(self, elapsed: Duration, arrived: u64) -> bool {
        match self {
            Self::Bytes(bytes) => arrived >= bytes.get(),
            Self::Time { time, bytes } => {
                let expected = u128::from(arrived) * (time * Self::STRETCH).as_nanos();
                elapsed >= time && (arrived >= bytes || expected < u128::from(bytes) * elapsed.as_nanos())
            }
        }
    }
}

/// The runtime of the stack and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(into = "RuntimeFields", from = "RuntimeFields")]
pub enum RuntimeKind {
    /// Tokio's current-thread runtime.
    CurrentThread,
    /// Tokio's multi-thread runtime, with a number of workers; `None` for one for each processor.
    MultiThread(Option<NonZeroUsize>),
}

impl RuntimeKind {
    /// Its name, without the number of workers.
    pub const fn name(self) -> RuntimeName {
        match self {
            Self::CurrentThread => RuntimeName::CurrentThread,
            Self::MultiThread(_) => RuntimeName::MultiThread,
        }
    }

    /// The number of workers that it was given.
    pub const fn workers(self) -> Option<NonZeroUsize> {
        match self {
            Self::CurrentThread => None,
            Self::MultiThread(workers) => workers,
        }
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

/// A [`RuntimeKind`] as two fields of a JSON object.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct RuntimeFields {
    runtime: RuntimeName,
    worker_threads: Option<NonZeroUsize>,
}

/// A [`RuntimeKind`] without its number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeName {
    /// Tokio's current-thread runtime
    CurrentThread,
    /// Tokio's multi-thread runtime
    MultiThread,
}

impl From<RuntimeKind> for RuntimeFields {
    fn from(kind: RuntimeKind) -> Self {
        Self { runtime: kind.name(), worker_threads: kind.workers() }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Every byte of the warm-up, then only the count
    Sample,
    /// Every byte
    Full,
    /// Only the count
    #[default]
    Off,
}

impl Verify {
    /// Whether payload is compared, in the warm-up or after it.
    #[inline]
    pub fn checks(self, is_warm_up: bool) -> bool {
        match self {
            Self::Off => false,
            Self::Sample => is_warm_up,
            Self::Full => true,
        }
    }
}

/// The program that makes the load of a forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Generator {
    /// This program
    #[default]
    Own,
    /// iperf3
    Iperf3,
}

/// Names and addresses of the devices of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Devices {
    /// One device, with the stack on its other side. Subjects without a device use the addresses alone.
    Tun(Tun),
    /// One device in each of two networks: those of a forwarder.
    Pair {
        /// The device in the network of the clients.
        near: End,
        /// The device in the network of the servers.
        far: End,
    },
}

/// A TUN device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Tun {
    /// The interface's name.
    pub name: String,
    /// Its addresses.
    pub network: Network,
    /// An open device to take over instead of making one.
    pub fd: Option<i32>,
}

/// One of the two devices of a forwarder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct End {
    /// The interface's name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
}

impl End {
    /// Length of the prefix of its network, in bits.
    pub const fn prefix_len(&self) -> u8 {
        if self.address.is_ipv6() { 64 } else { 24 }
    }
}

impl Scenario {
    /// Whether the packets are IPv6.
    pub const fn ipv6(&self) -> bool {
        match &self.devices {
            Devices::Tun(tun) => tun.network.address.is_ipv6(),
            Devices::Pair { near, .. } => near.address.is_ipv6(),
        }
    }

    /// The device that it takes over.
    pub(crate) const fn tun_fd(&self) -> Option<i32> {
        match &self.devices {
            Devices::Tun(tun) => tun.fd,
            Devices::Pair { .. } => None,
        }
    }

    /// Whether each shard has a thread that runs its stack, the server on it and its clients. So shards over memory share
    /// nothing.
    pub fn shards_have_threads(&self) -> bool {
        self.subject.layer() == Layer::Stack && (!is_one(&self.shards) || self.client_threads == Some(0))
    }

    /// Whether the highest rate of its datagrams is searched for.
    pub fn searches(&self) -> bool {
        self.workload.datagram_bytes().is_some() && self.bitrate.is_none()
    }

    /// A short run of the same cell that compares every byte: it shows whether the path works at all.
    #[must_use]
    pub fn path_check(&self) -> Self {
        let bytes = (CHECKED_BYTES * u64::from(self.parallel.get())).min(MOST_CHECKED_BYTES);
        let (amount, warmup_bytes) = if !self.workload.is_stream() {
            (Amount::time(CHECK_TIME), 0)
        } else if self.subject.is_carrier() {
            (Amount::time(CHECK_TIME), bytes)
        } else {
            (Amount::Bytes(NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN)), 0)
        };
        Self {
            // The check asks whether the path works, not how well it works under bad conditions.
            conditions: Conditions::default(),
            bitrate: self.workload.datagram_bytes().and(NonZeroU64::new(CHECK_BITRATE)),
            background: None,
            generator: Generator::Own,
            amount,
            warmup_bytes,
            interval: None,
            verify: Verify::Full,
            timeout: self.timeout.min(CHECK_TIMEOUT),
            release: if self.workload.held().is_some() { self.release.min(CHECK_TIME) } else { self.release },
            profile: None,
            ..self.clone()
        }
    }
}

/// Displays a value by its name on the command line, which is its name in JSON, too.
macro_rules! display_by_name {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.to_possible_value().as_ref().map_or("", clap::builder::PossibleValue::get_name))
            }
        }
    )+};
}

display_by_name!(Layer, Mode, Protocol, RuntimeName, Generator, Verify);

/// A duration as a number of nanoseconds.
pub(crate) mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}

/// The same, or `null`.
mod optional_nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_nanos))
    }
}
