//! The properties of a run that make it comparable: a row of a table. The doc comment of a field is the help of its option.

mod check;
mod forwarder;
mod kinds;
mod pin;
pub mod properties;
mod subject;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::mem;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Args, Parser};
use netstacks::{StackConfig, StackCongestion, StackKind, StackRecovery, Workarounds};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::properties::{PROPERTIES, Property};
use crate::program::{Program, ProgramName};
use crate::{is_default, units};

pub use self::check::{MIN_MTU_V6, Wrong};
pub use self::forwarder::{Forwarder, ROWS};
pub use self::kinds::{ForwarderName, Generator, Gso, Layer, Mode, Offload, Protocol, Runtime, Verify};
pub use self::pin::Processors;
pub use self::subject::Subject;
pub use self::workload::{Datagrams, Requests, Workload};
pub use platform::{Impairments, Napi, Outage, Tuning};

/// Longest `--queue`, in packets.
pub const MAX_QUEUE: u32 = 262_144;

/// Ethernet's MTU, in bytes.
pub const DEFAULT_MTU: u16 = 1500;

/// The properties of a run that make it comparable. Amounts, such as a time, and names of devices are none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// What carries the bytes: the whole path, or one layer of it alone
    #[arg(long, value_name = "LAYER", default_value_t = Layer::Path)]
    pub layer: Layer,

    /// The stack in the process, or the kernel's own TCP behind the same device [default of matrix: all that this build has;
    /// gvisor, external and kernel only if named]
    #[arg(short, long, value_name = "STACK")]
    pub netstack: Option<StackKind>,

    /// An unmodified program in place of a stack, such as a proxy, a tunnel or a container's network: the name of a profile,
    /// the path of one, or a command with {tun}; a stack's name is our proxy on it. A command is a value of its own;
    /// repeat the option for more. See docs/your-program.md
    #[arg(long, visible_alias = "tunnel", value_name = "PROGRAM", conflicts_with_all = ["layer", "netstack"])]
    pub program: Option<Program>,

    /// A device that a program of yours serves, such as a proxy, in place of a stack: nothing is started or set up. The client
    /// is bound to it, and the server listens at --dest. See docs/your-program.md
    #[arg(long, value_name = "NAME", conflicts_with_all = ["layer", "netstack", "program"], hide_short_help = true)]
    #[serde(rename = "given_device")]
    pub device: Option<String>,

    /// The program that forwards packets: this one's own, or the one in Go
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["layer", "netstack", "program"])]
    pub forwarder: Option<ForwarderName>,

    /// How a forwarder reads and writes its devices [default: sync]
    #[arg(long)]
    pub io: Option<forwarders::Io>,

    /// How packets get from a forwarder's reader to its writer [default: direct]
    #[arg(long)]
    pub hop: Option<forwarders::Handoff>,

    /// Workers of a forwarder in each direction; more than one reorder packets [default: 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<NonZeroU16>,

    /// Threads of a forwarder's runtime, for async and framed [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub thread: Option<NonZeroU16>,

    /// Transport protocol
    #[arg(long, value_name = "PROTOCOL", default_value_t = Protocol::Tcp)]
    pub protocol: Protocol,

    /// What the client does; download is reader, and upload is writer [default of matrix: reader,writer]
    #[arg(short, long, value_name = "MODE", display_order = 0)]
    pub mode: Option<Mode>,

    /// Close the client's side of each idle connection; the server leaves its side open
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_value = "off", default_missing_value = "on",
        value_parser = units::switch(), hide_short_help = true, action = clap::ArgAction::Set)]
    pub half_closed: bool,

    /// The server inside, behind a program, and the client outside: through the near end of a tunnel, or the ports that a
    /// program of a container's network forwards
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_value = "off", default_missing_value = "on",
        value_parser = units::switch(), hide_short_help = true, action = clap::ArgAction::Set)]
    pub inbound: bool,

    /// Peers of one tunnel, each with a process of its own at the far end; the connections go through them in turn, to 64. Only
    /// for profiles that say how, such as wireguard-go
    #[arg(long, value_name = "N", default_value_t = NonZeroU16::MIN, hide_short_help = true)]
    #[serde(skip_serializing_if = "is_one")]
    pub peers: NonZeroU16,

    /// What the link does to packets
    #[command(flatten)]
    #[serde(flatten)]
    pub impairments: Impairments,

    /// The runtime of the stack and its server [default of matrix: all]
    #[arg(long, value_name = "RUNTIME", default_value_t = Runtime::MultiThread, hide_short_help = true)]
    pub runtime: Runtime,

    /// Workers of the multi-thread runtime [default: one for each processor]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub worker_threads: Option<NonZeroU16>,

    /// Segmentation, receive-coalescing and checksum offload of the device [default of matrix: on,off]
    #[arg(long, value_name = "OFFLOAD", default_value_t = Offload::Auto)]
    pub offload: Offload,

    /// How the kernel takes the packets of the stack or the forwarder, without offload; only on Linux. See docs/linux.md
    #[arg(long, value_name = "NAPI", default_value = "off", hide_short_help = true)]
    #[serde(skip_serializing_if = "is_default")]
    pub napi: Napi,

    /// Super-packets on the device of a program, and several datagrams in one call of its clients and servers [default: as
    /// the program made its device]
    #[arg(long, value_name = "SWITCH", hide_short_help = true)]
    pub gso: Option<Gso>,

    /// Queueing discipline of the device; only on Linux [default: the system's]
    #[arg(long, value_name = "NAME", value_parser = ["noqueue", "pfifo_fast", "fq", "fq_codel"], hide_short_help = true)]
    pub qdisc: Option<String>,

    /// MTU of the device, in bytes, 576 to 65535 [default: 1500; a program: its own]
    #[arg(long, value_name = "N")]
    pub mtu: Option<u16>,

    /// Most connections and flows of a program that has an option for it, 1 to 65535 [default: its own]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub max_flows: Option<NonZeroU16>,

    /// Connections at once, to 10000; bulk UDP flows, to 256
    #[arg(short = 'P', long, value_name = "N", default_value_t = NonZeroU16::MIN)]
    pub parallel: NonZeroU16,

    /// Instances of the stack side by side, each with its own link and lock, to 256. Not for lwip, which has one in a process
    #[arg(long, value_name = "N", default_value_t = NonZeroU16::MIN, hide_short_help = true)]
    pub shards: NonZeroU16,

    /// Queues of the device: one for each shard, or 1, which one shard reads and passes on the packets of the others
    /// [default: one for each shard where the device can have several]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub queues: Option<NonZeroU16>,

    /// Threads of the clients, to 64 [default: 1; streams: one for each, up to the processors]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub client_threads: Option<NonZeroU16>,

    /// Keep client threads and workers on these processors, such as 0,1 or 0-3: clients take them from the front in turn,
    /// workers of the runtime from the back; a program has the rest, or all. Repeat the option for more values. Only on Linux
    /// [default: the system chooses]
    #[arg(long, value_name = "CPUS", hide_short_help = true)]
    pub pin: Option<Processors>,

    /// IPv6 instead of IPv4, which needs an MTU of at least 1280; all for both
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_value = "off", default_missing_value = "on",
        value_parser = units::switch(), action = clap::ArgAction::Set)]
    pub ipv6: bool,

    /// Payload of a datagram, with --protocol udp [default: what fills the MTU]
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true)]
    #[serde(rename = "datagram_bytes")]
    pub datagram: Option<u64>,

    /// A TCP stream beside the requests of rr and crr, or one each way: reader, writer, both
    #[arg(long, value_name = "MODE", hide_possible_values = true, hide_short_help = true)]
    pub background: Option<Mode>,

    /// Send at most this many bits of payload a second in each direction, such as 100M [default: no limit; over
    /// UDP the highest rate that loses less than 0.1 %, found by a search]
    #[arg(long, value_name = "BITRATE", value_parser = units::rate, hide_short_help = true)]
    pub bitrate: Option<NonZeroU64>,

    /// Length of a request (modes rr and crr)
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = units::size, hide_short_help = true)]
    #[serde(rename = "request_bytes")]
    pub request: u64,

    /// Length of a response
    #[arg(long, value_name = "SIZE", default_value = "1B", value_parser = units::size, hide_short_help = true)]
    #[serde(rename = "response_bytes")]
    pub response: u64,

    /// Requests under way on a connection of rr, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = NonZeroU16::MIN, hide_short_help = true)]
    pub depth: NonZeroU16,

    /// Requests a second in all, evenly spaced; latency counts from when each was due [default: as fast as they
    /// are answered]
    #[arg(long, value_name = "N")]
    pub rate: Option<NonZeroU32>,

    /// How long a connection of rr waits between a response and its next request, such as 1s: connections that mostly
    /// wait. Latency counts from the end of this time [default: 0]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::delay, hide_default_value = true,
        hide_short_help = true)]
    #[serde(rename = "think_ns", with = "units::nanoseconds")]
    pub think: Duration,

    /// Connects at once to an address behind a program that stays silent, held open beside the requests of crr, to 1000
    /// [default: 0]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, hide_short_help = true)]
    pub blackholes: u16,

    /// How long a program, or the subject of idle, is watched at rest, before the load and after it, to an hour
    #[arg(long, value_name = "TIME", default_value = "0.2", value_parser = units::rest, hide_short_help = true)]
    #[serde(rename = "rest_ns", with = "units::nanoseconds")]
    pub rest: Duration,

    /// Each stack's receive buffer and send buffer for a stream, 4KiB to less than 1GiB [default: 4MiB, less for more
    /// than 256 streams]
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true)]
    #[serde(rename = "window_bytes")]
    pub window: Option<u64>,

    /// Size of the reads and writes of a stream, to 64MiB [default: 1MB, less for more than 256 streams; forward: 128KiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true)]
    #[serde(rename = "buffer_bytes")]
    pub buffer: Option<u64>,

    /// Packets that may wait in the device before the kernel drops, to 262144 [default: room for every window; a program:
    /// as it made it; forward: 500]
    #[arg(long, value_name = "PACKETS", hide_short_help = true)]
    #[serde(rename = "queue_packets")]
    pub queue: Option<u32>,

    /// What our adapter does in the stack's place: all, none, the names of workarounds, or -NAME for all but these; all,none are
    /// two values, names are one. Repeat the option for more. See docs/workarounds.md
    #[arg(long, alias = "repairs", value_name = "WORKAROUNDS", default_value_t = Workarounds::ALL, allow_hyphen_values = true, hide_short_help = true)]
    pub workarounds: Workarounds,

    /// The congestion control of the stack smoltcp; of gvisor, where none is its own, reno
    #[arg(long, value_name = "NAME", default_value = "none", hide_short_help = true)]
    pub stack_congestion: StackCongestion,

    /// How the stack gvisor finds lost segments [default: its own, rack]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub stack_recovery: Option<StackRecovery>,

    /// The program that makes the load of a forwarder
    #[arg(long, value_name = "PROGRAM", default_value_t = Generator::Own)]
    pub generator: Generator,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &NonZeroU16) -> bool {
    *number == NonZeroU16::MIN
}

/// The words of a cell, without those of a run.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    cell: Cell,
}

impl Default for Cell {
    fn default() -> Self {
        #[allow(clippy::expect_used, reason = "no option is required, and each default is a value of its option")]
        static DEFAULT: LazyLock<Cell> = LazyLock::new(|| Cell::parse("").expect("the defaults are values"));
        DEFAULT.clone()
    }
}

impl Cell {
    /// The cell of a line of words. It is not [checked](Self::checked).
    pub fn parse(line: &str) -> Result<Self, clap::Error> {
        Words::try_parse_from(line.split_whitespace()).map(|words| words.cell)
    }

    /// The same of words that may have blanks.
    pub fn of_words(words: &[String]) -> Result<Self, clap::Error> {
        Words::try_parse_from(words).map(|words| words.cell)
    }

    /// The cell of the fields of a JSON object, which may have others.
    pub fn of_fields(fields: &Map<String, Value>) -> Result<Self, String> {
        let cell = Self::deserialize(fields).map_err(|error| error.to_string())?;
        cell.checked().map_err(|wrong| wrong.to_string())
    }

    /// The properties that it has, by their names in JSON. Those that are not set, off or 0 are left out.
    pub fn fields(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(self) else { return Map::new() };
        fields.retain(|name, value| {
            let is_set = !matches!(value, Value::Null | Value::Bool(false)) && value.as_u64() != Some(0);
            is_set
                && PROPERTIES.iter().find(|property| property.name == name).is_none_or(|property| property.is_of(self))
        });
        fields
    }

    /// The same cell over a device that offloads, or does not, where that was left to the device.
    #[must_use]
    pub fn with_offload(&self, is_on: bool) -> Self {
        let offload = if is_on { Offload::On } else { Offload::Off };
        Self {
            offload: if self.offload == Offload::Auto && self.has_offload() { offload } else { self.offload },
            ..self.clone()
        }
    }

    /// The same cell with the stack, program or forwarder of another, and its settings.
    #[must_use]
    pub(crate) fn with_subject_of(&self, other: &Self) -> Self {
        let Self { layer, netstack, program, device, forwarder, io, hop, workers, thread, .. } = other.clone();
        let Self { runtime, worker_threads, max_flows, shards, queues, workarounds, .. } = *other;
        let offload = if forwarder.is_some() { other.offload } else { self.offload };
        let own = Self { runtime, worker_threads, offload, max_flows, shards, queues, ..self.clone() };
        let Self { stack_congestion, stack_recovery, .. } = *other;
        let settings = Self { workarounds, stack_congestion, stack_recovery, ..own };
        Self { layer, netstack, program, device, forwarder, io, hop, workers, thread, ..settings }
    }

    pub(crate) fn has_stack_settings_of(&self, other: &Self) -> bool {
        PROPERTIES.iter().filter(|property| property.is_of_stack()).all(|property| property.is_equal(self, other))
    }

    /// Whether `other` does the same work: only the stack and its settings, the program or the forwarder may differ.
    pub fn same_work(&self, other: &Self) -> bool {
        let is_alike = mem::discriminant(&self.subject()) == mem::discriminant(&other.subject());
        let mut own = self.with_subject_of(other);
        if self.has_offload() != other.has_offload() {
            (own.offload, own.window) = (other.offload, other.window);
        }
        is_alike && own == *other
    }

    /// What the order of cells in tables is by: the subject, then all else. Forwarders are in the order of the published table.
    pub(crate) fn place(&self) -> (Subject, &Self) {
        (self.subject(), self)
    }

    /// The settings of its stack that differ from the usual ones, as words.
    pub(crate) fn variant(&self) -> impl Iterator<Item = String> {
        let workarounds = (self.workarounds != Workarounds::ALL).then(|| format!("workarounds {}", self.workarounds));
        let congestion = self.stack_congestion;
        workarounds
            .into_iter()
            .chain((congestion != StackCongestion::None).then(|| format!("with {}", congestion.name())))
            .chain(self.stack_recovery.map(|recovery| format!("recovery {}", recovery.name())))
    }

    /// Whether the same workarounds would be active in it with this choice of them.
    pub(crate) fn workarounds_as(&self, workarounds: Workarounds) -> bool {
        let active = |workarounds: Workarounds| Some(workarounds.active(self.adapter()?, self.offload != Offload::Off));
        active(workarounds) == active(self.workarounds)
    }

    /// Whether it is one of those that are compared: a stack or a program, and not the kernel alone beside them.
    pub fn is_contender(&self) -> bool {
        self.netstack.is_some_and(|stack| stack != StackKind::Kernel)
            || self.program.as_ref().is_some_and(|program| !program.is_baseline())
            || self.device.is_some()
    }

    /// Whether super-packets could cross the device.
    pub fn offloads(&self) -> bool {
        matches!(self.offload, Offload::On | Offload::Whole | Offload::Tso)
    }

    /// The MTU of its device, in bytes. A program may have one of its own: then it is that of the link.
    pub fn mtu(&self) -> u16 {
        self.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// The receive buffer and the send buffer of each stream, in bytes: of a stack, or of UDP sockets.
    pub fn window_len(&self) -> usize {
        self.window.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(StackConfig::default().window)
    }

    /// The size of a read or write of a stream, in bytes.
    pub fn buffer_len(&self) -> usize {
        self.buffer.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(1)
    }

    /// What its device does.
    pub const fn device_offload(&self) -> platform::Offload {
        match self.offload {
            Offload::Auto => platform::Offload::Auto,
            Offload::On | Offload::Whole => platform::Offload::On,
            Offload::Tso => platform::Offload::Tso,
            Offload::Off => platform::Offload::Off,
        }
    }

    /// The other settings of its device.
    pub fn tuning(&self) -> Tuning {
        Tuning { napi: self.napi, qdisc: self.qdisc.clone() }
    }

    /// The stack in it, in this process or one of its own.
    pub fn stack(&self) -> Option<StackKind> {
        self.netstack.filter(|stack| *stack != StackKind::Kernel)
    }

    /// The words for the command `proxy` that its properties are for our proxy.
    pub fn proxy_words(&self) -> Vec<String> {
        let of_proxy = ["offload", "napi", "runtime", "shards", "queues", "window", "workarounds", "stack_congestion"];
        let own = PROPERTIES.iter().filter(|property| of_proxy.contains(&property.option));
        let words = own.map(|property| (property, property.machine_value(self))).filter(|(_, value)| !value.is_empty());
        words.map(|(property, value)| format!("--{}={value}", property.long())).collect()
    }

    /// Whether its program, if it is one, is as its authors ship it.
    pub fn is_shipped(&self) -> bool {
        self.mtu.is_none() && self.max_flows.is_none()
    }

    /// The name of the program that it is.
    pub fn program(&self) -> Option<ProgramName> {
        self.program.as_ref().map(|program| program.name)
    }

    /// The stack that an adapter of ours drives, in this process or in our proxy.
    pub fn adapter(&self) -> Option<StackKind> {
        self.stack().filter(|stack| *stack != StackKind::External).or_else(|| self.program.as_ref()?.stack())
    }
}

/// One line: the subject and its phrases. The name of a forwarder has only what differs from the defaults.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject() {
            Subject::Stack(stack) => format!("{stack} in memory"),
            Subject::Path(stack) => stack.to_string(),
            Subject::Program(program) => program.to_string(),
            Subject::Forward(forwarder) => forwarder.to_string(),
            Subject::Given => format!("through {}", self.device.as_deref().unwrap_or_default()),
            subject => subject.name().to_owned(),
        };
        let usual = self.forwarder.and_then(|_| Self::default().with_subject_of(self).checked().ok());
        let is_said = |property: &&Property| {
            let is_usual = usual.as_ref().is_some_and(|usual| property.value(usual) == property.value(self));
            let is_quiet = property.value(self).is_some_and(|value| value == property.usual_in_names);
            property.is_named && !is_usual && !is_quiet
        };
        let phrases = PROPERTIES.iter().filter(is_said).filter_map(|property| property.phrase(self));
        let words: Vec<_> = Some(subject).into_iter().chain(phrases).collect();
        f.pad(&words.join(if self.forwarder.is_some() { ", " } else { " " }))
    }
}
