//! The table of axes: every property of a cell that has an option. From it come the product of a matrix, the refusal of
//! options that a cell does not take, and the command line that repeats a run.

use std::fmt::Display;
use std::time::Duration;

use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};
use platform::Offload;

use super::PlanError;
use crate::cli::Axes;
use crate::cli::list::{One, Values};
use crate::scenario::{
    Amount, Conditions, DEFAULT_MTU, DEFAULT_RELEASE, Layer, Mode, Protocol, Requests, RuntimeKind, RuntimeName,
    Scenario, Verify, Workload,
};

/// A property of a cell that has an option.
pub(super) struct Axis {
    /// The option.
    pub(super) option: &'static str,
    /// Whether cells of this kind take it.
    takes: fn(&Kind) -> bool,
    /// The cells that take it, for those that do not.
    who: &'static str,
    /// Whether it may be given beside a preset, which chooses the others.
    is_free: bool,
    /// How many values were given; `None` if it was left out.
    len: fn(&Axes) -> Option<usize>,
    /// Keeps only the value at an index.
    pick: fn(&mut Axes, usize),
    /// Leaves it out.
    clear: fn(&mut Axes),
    /// Its value as it is typed, or a flag in its place; `None` if that is the default.
    typed: fn(&Scenario) -> Option<String>,
}

/// The properties of a cell on which it depends what else the cell has.
struct Kind {
    layer: Layer,
    stack: Option<StackKind>,
    mode: Option<Mode>,
    protocol: Protocol,
    runtime: RuntimeName,
    has_streams: bool,
}

impl Kind {
    /// The kind of a cell with one value for each property that was given.
    fn of(axes: &Axes) -> Self {
        let mode = axes.mode.one();
        let protocol = axes.protocol.one().unwrap_or_default();
        let is_stream = protocol == Protocol::Tcp && mode.is_some_and(Mode::is_bulk);
        Self {
            layer: axes.layer(),
            stack: axes.netstack.one(),
            mode,
            protocol,
            runtime: axes.runtimes().one().unwrap_or(RuntimeName::MultiThread),
            has_streams: is_stream || axes.layer() == Layer::Device || axes.background.is_some(),
        }
    }

    fn is_bulk(&self) -> bool {
        self.mode.is_some_and(Mode::is_bulk)
    }

    fn has_requests(&self) -> bool {
        self.has_client() && matches!(self.mode, Some(Mode::Rr | Mode::Crr))
    }

    fn has_black_holes(&self) -> bool {
        self.mode == Some(Mode::Crr)
            && self.protocol == Protocol::Tcp
            && matches!(self.layer, Layer::Proxy | Layer::Program)
    }

    fn has_amount(&self) -> bool {
        self.has_streams && !self.has_requests()
    }

    fn is_idle(&self) -> bool {
        self.mode == Some(Mode::Idle)
    }

    fn has_window(&self) -> bool {
        self.has_stack() || self.layer == Layer::Device || self.has_bulk_datagrams()
    }

    fn has_stack(&self) -> bool {
        matches!(self.layer, Layer::Stack | Layer::Path | Layer::Proxy)
    }

    fn has_shards(&self) -> bool {
        let is_alone = self.layer == Layer::Stack && (self.is_idle() || self.runtime != RuntimeName::MultiThread);
        self.has_stack() && !is_alone && self.stack.is_none_or(StackKind::can_shard)
    }

    /// Whether the subject is of this program, and not a program as it is.
    fn is_own(&self) -> bool {
        self.layer != Layer::Program
    }

    fn has_client(&self) -> bool {
        self.layer != Layer::Device
    }

    fn has_link(&self) -> bool {
        matches!(self.layer, Layer::Path | Layer::Proxy | Layer::Kernel | Layer::Program)
    }

    /// Whether the MTU has an effect: over loopback, it is the room of a datagram.
    fn has_packets(&self) -> bool {
        self.layer != Layer::Loopback || self.protocol == Protocol::Udp
    }

    fn has_bulk_datagrams(&self) -> bool {
        self.protocol == Protocol::Udp && self.is_bulk()
    }

    fn has_kernel_tcp(&self) -> bool {
        !matches!(self.layer, Layer::Stack | Layer::Device) && (self.protocol == Protocol::Tcp || self.has_streams)
    }
}

/// The table: for each axis, whether a preset chooses it or it is free beside one; its field of [`Axes`] and its option;
/// the cells that take it, and the words for those that do not; and its value as it is typed.
macro_rules! axes {
    ($($use:ident $field:ident $option:literal: $takes:expr, $who:expr => $typed:expr;)+) => {
        /// All axes. The first ones decide which of the others a cell takes.
        pub(super) static AXES: &[Axis] = &[$(Axis {
            option: $option,
            takes: $takes,
            who: $who,
            is_free: matches!(Use::$use, Use::Free),
            len: |axes| axes.$field.count(),
            pick: |axes, index| axes.$field.pick(index),
            clear: |axes| axes.$field = Default::default(),
            typed: $typed,
        }),+];
    };
}

/// Whether a preset chooses an axis.
enum Use {
    Chosen,
    Free,
}

const NO_CLIENT: &str = "the layer device has packets without connections";
const SHARDS: &str = "only the layers stack, path and proxy have several instances of a stack; with the layer stack each has a thread, \
    so not with --current-thread, and not in the mode idle; lwip has one instance a process, and gvisor and external are \
    processes of their own";
const QUEUES: &str = "only the layers path and proxy have a device that shards share";
const OFFLOAD: &str = "a program opens its own device and decides this itself; the layer loopback has no device";
const NO_DEVICE: &str = "the layer loopback has no device";
const PROGRAM: &str = "--program chooses it";
const FOREIGN: &str = "a program has its own";
const NO_REQUESTS: &str = "only rr and crr have requests";
const BLACK_HOLES: &str = "only crr over TCP through a proxy or a program has them; a stack answers for every address, and nothing is behind it";
const NO_BYTES: &str = "requests, idle connections and datagrams last for a time; use --time";
const NO_LINK: &str = "only the layers path, proxy and kernel, and programs, have a link with conditions";
const NO_OUTAGE: &str = "only the layers path, proxy and kernel, and programs, have a path that can be cut, and nothing crosses it in \
    the mode idle";

axes! {
    Free program "--program": |_| true, "" => |run| run.program.as_ref().map(|profile| profile.typed.clone());
    Free upstream "--upstream": |kind| !kind.is_own(), "only the programs of --program have one" => |_| None;
    Chosen layer "--layer": Kind::is_own, PROGRAM
        => |run| unless(Layer::Path, run.subject.layer()).filter(|_| run.program.is_none());
    Chosen mode "--mode": Kind::has_client, NO_CLIENT => |run| run.workload.mode().map(text);
    Free netstack "--netstack": Kind::has_stack, "only the layers stack, path and proxy have one"
        => |run| run.subject.stack().map(text);
    Chosen protocol "--protocol": Kind::has_client, NO_CLIENT
        => |run| unless(Protocol::Tcp, run.workload.protocol().unwrap_or_default());
    Chosen runtime "--runtime": Kind::is_own, FOREIGN
        => |run| (run.runtime == RuntimeKind::CurrentThread).then(|| "--current-thread".to_owned());
    Chosen background "--background": Kind::has_requests, "only the requests of rr and crr have a stream beside them"
        => |run| run.background.map(text);
    Free worker_threads "--worker-threads": |kind| kind.is_own() && kind.runtime == RuntimeName::MultiThread, "the current-thread runtime has none"
        => |run| run.runtime.workers().map(text);
    Free shards "--shards": Kind::has_shards, SHARDS
        => |run| unless(1, run.shards.get());
    Free queues "--queues": |kind| kind.has_shards() && kind.layer != Layer::Stack, QUEUES => |run| run.queues.map(text);
    Chosen offload "--offload": |kind| kind.layer != Layer::Loopback && kind.is_own(), OFFLOAD
        => |run| match run.offload {
            Offload::Auto => None,
            Offload::On => Some("on".to_owned()),
            Offload::Off => Some("off".to_owned()),
        };
    Chosen mtu "--mtu": Kind::has_packets, NO_DEVICE
        => |run| unless(DEFAULT_MTU, run.mtu).filter(|_| run.tun_fd().is_none());
    Chosen parallel "--parallel": Kind::has_client, "the layer device has one stream"
        => |run| unless(1, run.parallel.get());
    Free client_threads "--client-threads": |kind| kind.has_client() && !kind.is_idle(), "idle connections have one thread, and the layer device has no client"
        => |run| run.client_threads.map(text);
    Free pin "--pin": |kind| kind.is_own() && !kind.stack.is_some_and(StackKind::is_process), "its threads are another program's; use taskset"
        => |run| run.pin.as_ref().map(text);
    Chosen ipv6 "--ipv6": |_| true, "" => |run| run.ipv6().then(|| "--ipv6".to_owned());
    Chosen datagram "--datagram": Kind::has_bulk_datagrams, "only reader, writer and both over UDP have it; requests have --request"
        => |run| run.workload.datagram_bytes().map(text);
    Chosen bitrate "--bitrate": |kind| kind.has_client() && (kind.is_bulk() || kind.has_streams), "there are no bulk bytes; requests have --rate"
        => |run| run.bitrate.map(text);
    Chosen request "--request": Kind::has_requests, NO_REQUESTS
        => |run| of_requests(run, |requests| requests.request_bytes);
    Chosen response "--response": Kind::has_requests, NO_REQUESTS
        => |run| of_requests(run, |requests| requests.response_bytes);
    Chosen depth "--depth": |kind| kind.mode == Some(Mode::Rr) && kind.protocol == Protocol::Tcp, "only rr over TCP has several requests under way on a connection; raise --parallel"
        => |run| of_requests(run, |requests| requests.depth);
    Chosen rate "--rate": Kind::has_requests, "only rr and crr have requests; bulk bytes have --bitrate"
        => |run| run.workload.requests()?.rate.map(text);
    Chosen think "--think": |kind| kind.has_client() && kind.mode == Some(Mode::Rr), "only the connections of rr wait between requests"
        => |run| Some(run.workload.requests()?.think).filter(|think| !think.is_zero()).map(time);
    Chosen blackholes "--blackholes": Kind::has_black_holes, BLACK_HOLES
        => |run| unless(0, run.workload.requests()?.blackholes);
    Free bytes "--bytes": Kind::has_amount, NO_BYTES
        => |run| if let Amount::Bytes(bytes) = run.amount { Some(text(bytes)) } else { None };
    Free time "--time": |_| true, ""
        => |run| if let Amount::Time { time, bytes: 0 } = run.amount { Some(self::time(time)) } else { None };
    Chosen half_closed "--half-closed": |kind| kind.is_idle() && kind.protocol == Protocol::Tcp, "only the TCP connections of idle can be half-closed"
        => |run| (run.workload == Workload::HalfClosed).then(|| "--half-closed".to_owned());
    Free release "--release": Kind::is_idle, "only the mode idle reads the memory again after its connections have closed"
        => |run| Some(run.release).filter(|release| *release != DEFAULT_RELEASE).map(time);
    Free warmup "--warmup": Kind::has_amount, NO_BYTES
        => |run| run.workload.is_stream().then(|| text(run.warmup_bytes));
    Free window "--window": Kind::has_window, "there is no stack; leave it out"
        => |run| run.subject.has_window(run.workload).then(|| text(run.window_bytes));
    Free buffer "--buffer": |kind| kind.has_streams, "only streams have it"
        => |run| (run.workload.is_stream() || run.background.is_some()).then(|| text(run.buffer_bytes));
    Chosen queue "--queue": Kind::has_link, "only the layers path, proxy and kernel have a device with it, and programs"
        => |run| run.queue_packets.map(text);
    Free congestion "--congestion": Kind::has_kernel_tcp, "there are no TCP sockets of the kernel"
        => |run| run.congestion.clone();
    Free repairs "--repairs": |kind| kind.has_stack() && kind.stack != Some(StackKind::External), "only a stack with an adapter of this program has repairs"
        => |run| unless(Repairs::ALL, run.repairs);
    Free stack_congestion "--stack-congestion": |kind| kind.has_stack() && kind.stack == Some(StackKind::Smoltcp), "only the stack smoltcp has a choice"
        => |run| Some(run.stack_congestion).filter(|name| *name != StackCongestion::None).map(|name| name.name().to_owned());
    Free verify "--verify": |_| true, "" => |run| unless(Verify::Sample, run.verify);
    Free command "--command": |kind| kind.stack == Some(StackKind::External), "only --netstack external takes it"
        => |run| run.command.clone();
    Chosen delay "--delay": Kind::has_link, NO_LINK => |run| of_link(run, "--delay");
    Chosen jitter "--jitter": Kind::has_link, NO_LINK => |run| of_link(run, "--jitter");
    Chosen loss "--loss": Kind::has_link, NO_LINK => |run| of_link(run, "--loss");
    Chosen reorder "--reorder": Kind::has_link, NO_LINK => |run| of_link(run, "--reorder");
    Chosen duplicate "--duplicate": Kind::has_link, NO_LINK => |run| of_link(run, "--duplicate");
    Chosen corrupt "--corrupt": Kind::has_link, NO_LINK => |run| of_link(run, "--corrupt");
    Chosen rate_limit "--rate-limit": Kind::has_link, NO_LINK => |run| of_link(run, "--rate-limit");
    Chosen path_mtu "--path-mtu": Kind::has_link, NO_LINK => |run| of_link(run, "--path-mtu");
    Chosen no_icmp "--no-icmp": Kind::has_link, NO_LINK => |run| of_link(run, "--no-icmp");
    Chosen outage "--outage": |kind| kind.has_link() && kind.mode != Some(Mode::Idle), NO_OUTAGE
        => |run| of_link(run, "--outage");
    Free link_seed "--link-seed": Kind::has_link, NO_LINK
        => |run| unless(1, run.link_seed).filter(|_| run.conditions != Conditions::default());
}

/// The value as text.
fn text(value: impl Display) -> String {
    value.to_string()
}

fn time(value: Duration) -> String {
    value.as_secs_f64().to_string()
}

/// The value as text, unless it is the default.
fn unless<T: Copy + PartialEq + Display>(default: T, value: T) -> Option<String> {
    (value != default).then(|| value.to_string())
}

fn of_requests<T: Copy + PartialEq + Display>(run: &Scenario, value: fn(Requests) -> T) -> Option<String> {
    unless(value(Requests::default()), value(run.workload.requests()?))
}

fn of_link(run: &Scenario, option: &str) -> Option<String> {
    run.conditions.options().find(|(name, _)| *name == option).map(|(_, value)| value)
}

/// Every combination of the values, in the order of the table. An option is left out of the cells that do not take it.
///
/// # Errors
///
/// Names an option of `asked` that no cell takes. The other options of `axes` are defaults.
pub(super) fn product(axes: &Axes, asked: &Axes) -> Result<Vec<Axes>, PlanError> {
    let mut cells = vec![axes.clone()];
    for axis in AXES {
        let Some(len) = (axis.len)(axes) else { continue };
        let mut is_taken = false;
        cells = cells.into_iter().fold(Vec::new(), |mut all, cell| {
            let takes = (axis.takes)(&Kind::of(&cell));
            is_taken |= takes;
            let with = |index: Option<usize>| {
                let mut cell = cell.clone();
                match index {
                    Some(index) => (axis.pick)(&mut cell, index),
                    None => (axis.clear)(&mut cell),
                }
                cell
            };
            let indices = if takes { (0..len).map(Some).collect() } else { vec![None] };
            all.extend(indices.into_iter().map(with));
            all
        });
        if !is_taken && (axis.len)(asked).is_some() {
            return Err(PlanError::new(axis.option, axis.who));
        }
    }
    Ok(cells)
}

/// The one cell of a run.
///
/// # Errors
///
/// Names an option that the cell does not take, or that has several values.
pub(super) fn single(axes: &Axes) -> Result<Axes, PlanError> {
    let several = AXES.iter().find_map(|axis| Some((axis, (axis.len)(axes).filter(|len| *len > 1)?)));
    if let Some((axis, len)) = several {
        return Err(PlanError::new(axis.option, format!("has {len} values; use matrix, which runs them all")));
    }
    // One value for each option makes one cell.
    Ok(product(axes, axes)?.pop().unwrap_or_default())
}

/// The first option that a preset chooses, if any of them was given.
pub(super) fn chosen_by_presets(axes: &Axes) -> Option<&'static str> {
    AXES.iter().find(|axis| !axis.is_free && (axis.len)(axes).is_some()).map(|axis| axis.option)
}

/// The options of a run that differ from constant defaults, each with its value as one word.
pub(super) fn words(run: &Scenario) -> Vec<String> {
    let word = |axis: &Axis| match (axis.typed)(run)? {
        flag if flag.starts_with("--") => Some(flag),
        value => Some(format!("{}={value}", axis.option)),
    };
    AXES.iter().filter_map(word).collect()
}
