//! The options of a run that are properties of its cell: the same for one run and, with lists of values, for a matrix.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};
use platform::Offload;

use super::list::{List, Names, One, names, number, of, one};
use super::{Switch, values};
use crate::program::{Profile, Upstream};
use crate::scenario::{Layer, MAX_QUEUE, MIN_MTU, Mode, Outage, Processors, Protocol, RuntimeName, Verify};

/// The heading of the conditions.
const LINK: &str = "Conditions of the link between device and stack, or between both networks of a program, each way";

/// The properties of a cell. `None` is the default. Behind `matrix`, each option takes several values, separated by
/// commas, and names also "all".
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct Axes {
    /// What the kernel's client does [default of matrix: reader,writer]
    #[arg(short, long, value_name = "MODE", value_parser = names::<Mode>())]
    pub mode: Option<List<Mode>>,

    /// The stack in the process [default of matrix: all that this build has; gvisor and external only if named]
    #[arg(short, long, value_name = "STACK", value_parser = Names(compiled_in))]
    pub netstack: Option<List<StackKind>>,

    /// A program as it is in place of a stack, such as a proxy, a tunnel or a container's network: the name of a profile,
    /// the path of one, or a command with {tun}; a stack's name is our proxy on it. A command is a value of its own;
    /// repeat the option for more. See docs/your-program.md
    #[arg(long, visible_alias = "tunnel", value_name = "PROGRAM", value_parser = programs, conflicts_with_all = ["layer", "netstack"])]
    pub program: Vec<List<Profile>>,

    /// Only programs that send their connections to the SOCKS5 server, or open them themselves
    #[arg(long, value_name = "UPSTREAM", value_parser = names::<Upstream>(), hide_short_help = true)]
    pub upstream: Option<List<Upstream>>,

    /// Run the stack on tokio's current-thread runtime instead of the multi-thread one
    #[arg(long, conflicts_with = "runtime")]
    pub current_thread: bool,

    /// The same by name: current-thread, multi-thread [default: multi-thread; matrix: all]
    #[arg(long, value_name = "RUNTIME", value_parser = names::<RuntimeName>(), hide_short_help = true)]
    pub runtime: Option<List<RuntimeName>>,

    /// What carries the bytes: the whole path, one layer of it alone, or a proxy [default: path]
    #[arg(long, value_name = "LAYER", value_parser = names::<Layer>())]
    pub layer: Option<List<Layer>>,

    /// Transport protocol [default: tcp]
    #[arg(long, value_name = "PROTOCOL", value_parser = names::<Protocol>())]
    pub protocol: Option<List<Protocol>>,

    /// Workers of the multi-thread runtime [default: one for each processor]
    #[arg(long, value_name = "N", conflicts_with = "current_thread", value_parser = of(number(1..=1024_u16)),
        hide_short_help = true)]
    pub worker_threads: Option<List<u16>>,

    /// Instances of the stack side by side, each with its own link and lock, to 256; with --layer stack also with a thread,
    /// which runs its clients too. Not for lwip, which has one in a process [default: 1]
    #[arg(long, value_name = "N", value_parser = of(number(1..=256_u16)), hide_short_help = true)]
    pub shards: Option<List<u16>>,

    /// Queues of the device: one for each shard, or 1, which one shard reads and passes on the packets of the others
    /// [default: one for each shard where the device can have several]
    #[arg(long, value_name = "N", value_parser = of(number(1..=256_u16)), hide_short_help = true)]
    pub queues: Option<List<u16>>,

    /// Segmentation, receive-coalescing and checksum offload of the device [default: auto; matrix: on,off]
    #[arg(long, value_name = "OFFLOAD", value_parser = Names(offloads))]
    pub offload: Option<List<Offload>>,

    /// MTU of the device, in bytes, 576 to 65535 [default: 1500]
    #[arg(long, value_name = "N", value_parser = of(number(MIN_MTU..=u16::MAX)))]
    pub mtu: Option<List<u16>>,

    /// Connections at once, to 10000; bulk UDP flows, to 256 [default: 1]
    #[arg(long, value_name = "N", value_parser = of(number(1..=10_000_u16)))]
    pub parallel: Option<List<u16>>,

    /// Threads of the clients, to 64; 0 for the thread of the stack, with --layer stack [default: 1; streams: one for each,
    /// up to the processors; several shards: 0]
    #[arg(long, value_name = "N", value_parser = of(number(0..=64_u16)), hide_short_help = true)]
    pub client_threads: Option<List<u16>>,

    /// Keep client threads and workers on these processors, such as 0,1 or 0-3: clients, and shards with their clients, take
    /// them from the front in turn, workers of the runtime from the back. Repeat the option for more values. Only on Linux [default: the system chooses]
    #[arg(long, value_name = "CPUS", value_parser = one(str::parse::<Processors>), hide_short_help = true)]
    pub pin: Vec<List<Processors>>,

    /// IPv6 instead of IPv4, which needs an MTU of at least 1280; all for both
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_missing_value = "on",
        value_parser = names::<Switch>())]
    pub ipv6: Option<List<Switch>>,

    /// Payload of a datagram, with --protocol udp [default: what fills the MTU]
    #[arg(long, value_name = "SIZE", value_parser = of(values::size), hide_short_help = true)]
    pub datagram: Option<List<u64>>,

    /// A TCP stream beside the requests of rr and crr, or one each way: reader, writer, both
    #[arg(long, value_name = "MODE", value_parser = names::<Mode>(), hide_possible_values = true,
        hide_short_help = true)]
    pub background: Option<List<Mode>>,

    /// Send at most this many bits of payload a second in each direction, such as 100M [default: no limit; over
    /// UDP the highest rate that loses less than 0.1 %, found by a search]
    #[arg(long, value_name = "BITRATE", value_parser = of(values::rate), hide_short_help = true)]
    pub bitrate: Option<List<NonZeroU64>>,

    /// Length of a request (modes rr and crr) [default: 1B]
    #[arg(long, value_name = "SIZE", value_parser = of(values::size), hide_short_help = true)]
    pub request: Option<List<u64>>,

    /// Length of a response [default: 1B]
    #[arg(long, value_name = "SIZE", value_parser = of(values::size), hide_short_help = true)]
    pub response: Option<List<u64>>,

    /// Requests under way on a connection of rr, 1 to 1024 [default: 1]
    #[arg(long, value_name = "N", value_parser = of(number(1..=1024_u16)), hide_short_help = true)]
    pub depth: Option<List<u16>>,

    /// Requests a second in all, evenly spaced; latency counts from when each was due [default: as fast as they
    /// are answered]
    #[arg(long, value_name = "N", value_parser = of(number(1..=1_000_000_u32)))]
    pub rate: Option<List<u32>>,

    /// How long a connection of rr waits between a response and its next request, such as 1s: connections that mostly
    /// wait. Latency counts from the end of this time
    #[arg(long, value_name = "TIME", value_parser = of(values::delay), hide_short_help = true)]
    pub think: Option<List<Duration>>,

    /// Connects at once to an address behind a program or a proxy that stays silent, held open beside the requests of
    /// crr, to 1000
    #[arg(long, value_name = "N", value_parser = of(number(1..=1000_u16)), hide_short_help = true)]
    pub blackholes: Option<List<u16>>,

    /// How much to deliver [default: what arrives in a second, and up to ten seconds until it is 1GB; matrix: --time 1]
    #[arg(long, value_name = "SIZE", value_parser = one(values::size))]
    pub bytes: Option<List<u64>>,

    /// Deliver for this time instead
    #[arg(long, value_name = "TIME", conflicts_with = "bytes", value_parser = one(values::time))]
    pub time: Option<List<Duration>>,

    /// Close the client's side of each idle connection; the server leaves its side open
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_missing_value = "on",
        value_parser = names::<Switch>(), hide_short_help = true)]
    pub half_closed: Option<List<Switch>>,

    /// Read the memory of idle connections again this long after they were closed. A UDP flow has no end: it lives until
    /// the subject's own time-out [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = one(values::time), hide_short_help = true)]
    pub release: Option<List<Duration>>,

    /// How much to deliver first, not counted [default: 64MB, or less where the payload or the rate is less]
    #[arg(long, value_name = "SIZE", value_parser = one(values::size), hide_short_help = true)]
    pub warmup: Option<List<u64>>,

    /// Each stack's receive buffer and send buffer for a stream, 4KiB to less than 1GiB [default: 4MiB, less for more
    /// than 256 streams]
    #[arg(long, value_name = "SIZE", value_parser = of(values::size), hide_short_help = true)]
    pub window: Option<List<u64>>,

    /// Size of the reads and writes of a stream, to 64MiB [default: 1MB, less for more than 256 streams]
    #[arg(long, value_name = "SIZE", value_parser = of(values::size), hide_short_help = true)]
    pub buffer: Option<List<u64>>,

    /// Packets that may wait in the device before the kernel drops, to 262144 [default: room for every window; a program:
    /// as it made it]
    #[arg(long, value_name = "PACKETS", value_parser = of(number(1..=MAX_QUEUE)), hide_short_help = true)]
    pub queue: Option<List<u32>>,

    /// The congestion control of the kernel's sockets [default: cubic, or else the kernel's own]
    #[arg(long, value_name = "NAME", value_parser = one(name), hide_short_help = true)]
    pub congestion: Option<List<String>>,

    /// What our adapter does in the stack's place: all, none, the names of repairs, or -NAME for all but these; all,none are
    /// two values, names are one. Repeat the option for more. See docs/workarounds.md [default: all]
    #[arg(long, value_name = "REPAIRS", value_parser = values::repairs, allow_hyphen_values = true,
        hide_short_help = true)]
    pub repairs: Vec<List<Repairs>>,

    /// The congestion control of the stack smoltcp [default: none]
    #[arg(long, value_name = "NAME", value_parser = names::<StackCongestion>(), hide_short_help = true)]
    pub stack_congestion: Option<List<StackCongestion>>,

    /// Check the bytes against the seeded pattern: in the warm-up, all of them, or only their count [default: sample]
    #[arg(long, value_name = "VERIFY", value_parser = names::<Verify>(), hide_short_help = true)]
    pub verify: Option<List<Verify>>,

    /// The program that is the stack of --netstack external, and its arguments; see docs/external-stack.md
    #[arg(long, value_name = "COMMAND", value_parser = one(values::command), hide_short_help = true)]
    pub command: Option<List<String>>,

    /// How long every packet takes, such as 5ms: half of what it adds to a round trip
    #[arg(long, value_name = "TIME", value_parser = of(values::delay), help_heading = LINK)]
    pub delay: Option<List<Duration>>,

    /// Up to this much more or less, evenly distributed
    #[arg(long, value_name = "TIME", value_parser = of(values::delay), help_heading = LINK, hide_short_help = true)]
    pub jitter: Option<List<Duration>>,

    /// Packets that are lost
    #[arg(long, value_name = "PERCENT", value_parser = of(values::share), help_heading = LINK)]
    pub loss: Option<List<u32>>,

    /// Packets that the next three overtake
    #[arg(long, value_name = "PERCENT", value_parser = of(values::share), help_heading = LINK, hide_short_help = true)]
    pub reorder: Option<List<u32>>,

    /// Packets that come twice
    #[arg(long, value_name = "PERCENT", value_parser = of(values::share), help_heading = LINK, hide_short_help = true)]
    pub duplicate: Option<List<u32>>,

    /// Packets of which a bit is changed; without offload
    #[arg(long, value_name = "PERCENT", value_parser = of(values::share), help_heading = LINK, hide_short_help = true)]
    pub corrupt: Option<List<u32>>,

    /// Bits a second at most, such as 100M
    #[arg(long, value_name = "BITRATE", value_parser = of(values::rate), help_heading = LINK, hide_short_help = true)]
    pub rate_limit: Option<List<NonZeroU64>>,

    /// The longest packet that the path carries, in bytes, 576 to 65534; IPv6 at least 1280. ICMP tells the sender of a
    /// longer one
    #[arg(long, value_name = "N", value_parser = of(number(MIN_MTU..=u16::MAX - 1)), help_heading = LINK, hide_short_help = true)]
    pub path_mtu: Option<List<u16>>,

    /// Drop packets that are longer than --path-mtu silently: a black hole; all for both
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, default_missing_value = "on",
        value_parser = names::<Switch>(), help_heading = LINK, hide_short_help = true)]
    pub no_icmp: Option<List<Switch>>,

    /// The path carries nothing: from when, after the beginning of the timed window, and for how long, such as 1s,500ms
    #[arg(long, value_name = "AT,FOR", value_parser = one(values::outage), help_heading = LINK, hide_short_help = true)]
    pub outage: Option<List<Outage>>,

    /// Seed of all chance on the link, in the first round; the next round has the next seed [default: 1]
    #[arg(long, value_name = "N", value_parser = one(number(0..=u64::MAX)), help_heading = LINK,
        hide_short_help = true)]
    pub link_seed: Option<List<u64>>,
}

/// A list of names and paths, with or without a blank after each comma, or one command.
fn programs(text: &str) -> Result<List<Profile>, String> {
    let is_list = text.split(',').all(|item| !item.trim().contains(char::is_whitespace));
    if is_list { of(|item: &str| Profile::named(item.trim()))(text) } else { one(Profile::named)(text) }
}

impl Axes {
    /// The runtimes, if any were named.
    pub(crate) fn runtimes(&self) -> Option<List<RuntimeName>> {
        if self.current_thread { List::new([RuntimeName::CurrentThread]) } else { self.runtime.clone() }
    }

    /// The layer of one run.
    pub(crate) fn layer(&self) -> Layer {
        if self.program.is_empty() { self.layer.one().unwrap_or(Layer::Path) } else { Layer::Program }
    }
}

/// The stacks of this build.
pub(crate) fn compiled_in() -> Vec<StackKind> {
    StackKind::ALL.into_iter().filter(|stack| stack.compiled_in()).collect()
}

/// Both settings, where the system has offload.
pub(crate) fn offloads() -> Vec<Offload> {
    if platform::offload_supported() { vec![Offload::On, Offload::Off] } else { vec![Offload::Off] }
}

#[allow(clippy::unnecessary_wraps, reason = "it is a parser")]
fn name(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}
