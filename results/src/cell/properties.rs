//! The table of properties: for each field of a [`Cell`] its column, its phrase, and the cells that have it.

use std::ops::RangeInclusive;

use bytesize::{ByteSize, Display};
use forwarders::{Handoff, Io};
use netstacks::{StackConfig, StackCongestion, StackKind, StackRecovery};

use super::{Cell, MAX_QUEUE, Mode, Offload, Protocol, Runtime};
use crate::{plural, si};

/// The mark of what is unknown, or not set.
pub const UNKNOWN: &str = "–";

/// A property of a cell.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub struct Property {
    /// Its option, with underscores.
    pub option: &'static str,
    /// Its field in JSON, and its column in CSV.
    pub name: &'static str,
    /// The head of its column in a table.
    pub title: &'static str,
    /// Whether its values are numbers.
    pub is_number: bool,
    /// Whether it is part of the work of a cell.
    is_work: bool,
    /// Whether it is one of the link's impairments.
    pub is_impairment: bool,
    /// Whether the name of a cell has its phrase.
    pub(super) is_named: bool,
    range: RangeInclusive<u64>,
    has: fn(&Cell) -> bool,
    /// Why other cells do not.
    pub others: &'static str,
    /// Its value for machines; `None` if it is not set.
    pub(super) value: fn(&Cell) -> Option<String>,
    /// Its value for people, of that for machines.
    shown: fn(&str) -> String,
    /// The value that need not be said.
    usual: &'static str,
    /// The value that the name of a cell need not say.
    pub(super) usual_in_names: &'static str,
    /// Its phrase: `{}` stands for the shown value, `{noun}` for what a load has several of, and `(s)` for a plural. It is
    /// empty if it is never said.
    phrase: &'static str,
}

const NO_FORWARDER: &str = "only a forwarder has it; see the command forward";
const NOT_GO: &str = "only the forwarder of this program has it: the one in Go reads and writes as Go's runtime does";
const NO_CLIENT: &str = "the layer device has packets without connections";
const FOREIGN: &str = "a program or a forwarder has its own";
const SHARDS: &str = "only the path and our proxy have several instances of a stack; lwip has one instance a process, and gvisor \
                      and external are processes of their own";
const NO_MAX_FLOWS: &str = "only a program has a limit, and its profile must say how to set it (set.max_flows)";
const NO_HALVES: &str = "only the TCP connections of idle can be half-closed";
const NO_INBOUND: &str = "only through a program can connections come from outside; a stack is the server itself";
const NO_PEERS: &str = "only a program can be a tunnel with several peers";
const NO_WORKERS: &str = "the current-thread runtime has none, and a program its own";
const NO_OFFLOAD: &str = "a program opens its own device and decides this itself; the layer loopback has no device";
const NO_THREADS: &str = "idle connections have one thread, and the layer device has no client";
const NO_PINS: &str = "only this program's threads and those of --program are kept on processors; use taskset";
const NO_BYTES: &str = "there are no bulk bytes; requests have --rate";
const NO_DEPTH: &str = "only rr over TCP has several requests under way on a connection; raise --parallel";
const NO_PAUSES: &str = "only the connections of rr wait between requests";
const NO_QUEUE: &str = "only the path, the kernel behind a device, programs and forwarders have a device with it";
const NO_NAPI: &str = "only a device that this program, our proxy or a forwarder opens has it";
const NO_GSO: &str = "only the device of a program has it; stacks and forwarders have --offload";
const NO_REST: &str = "only programs and the mode idle are watched at rest";
const NO_REQUESTS: &str = "only rr and crr have requests";
const NO_STACK: &str = "only a stack with an adapter of this program has it";
const NO_LINK: &str = "only the path, the kernel behind a device, and programs have a link with impairments";
const NO_OUTAGE: &str = "only the path, the kernel behind a device, and programs have a path that can be cut, and nothing crosses it in the mode idle";
const BLACK_HOLES: &str = "only crr over TCP through a program has them, not inbound; a stack answers for every address, and nothing is behind it";

/// All properties, in the order of their columns. Those that decide which of the others a cell has come first.
pub static PROPERTIES: &[Property] = &[
    property("layer", "layer", |cell| Some(text(cell.layer)))
        .of(|cell| !cell.subject().is_carrier(), "--program, --device and forward choose it")
        .unnamed()
        .usual("path")
        .said("layer {}"),
    setting("netstack", "stack", |cell| cell.netstack.map(text))
        .of(Cell::has_netstack, "only the layers stack and path have one"),
    setting("program", "program", |cell| cell.program.as_ref().map(text)),
    setting("device", "device", |cell| cell.device.clone()).called("given_device"),
    setting("forwarder", "forwarder", |cell| cell.forwarder.map(text)).said(""),
    setting("io", "io", |cell| cell.io.map(|io| Io::name(io).to_owned())).of(Cell::is_rust, NOT_GO),
    setting("hop", "hop", |cell| cell.hop.map(|hop| Handoff::name(hop).to_owned()))
        .of(|cell| cell.forwarder.is_some(), NO_FORWARDER),
    count("workers", "workers", |cell| cell.workers.map(text)).of(Cell::is_rust, NOT_GO).said("{} worker(s)"),
    count("thread", "threads", |cell| cell.thread.map(text)).of(Cell::is_rust, NOT_GO).said("{} thread(s)"),
    property("protocol", "protocol", |cell| Some(text(cell.protocol)))
        .of(|cell| cell.has_client() && cell.forwarder.is_none(), "the layer device and forwarders have no choice")
        .shown(str::to_uppercase)
        .usual("TCP"),
    property("mode", "mode", |cell| cell.mode.map(text)).of(Cell::has_client, NO_CLIENT).shown(Mode::shown),
    property("half_closed", "half-closed", |cell| Some(if cell.half_closed { "yes" } else { "no" }.to_owned()))
        .of(|cell| cell.is_idle() && cell.protocol == Protocol::Tcp, NO_HALVES)
        // The noun of its connections says it.
        .said(""),
    property("inbound", "inbound", |cell| Some(if cell.inbound { "yes" } else { "no" }.to_owned()))
        .of(|cell| cell.program.is_some(), NO_INBOUND)
        .usual("no")
        .said("inbound"),
    number("peers", "peers", |cell| Some(text(cell.peers)))
        .of(|cell| cell.program.is_some(), NO_PEERS)
        .within(1..=64)
        .usual("1")
        .said("{} peer(s)"),
    property("runtime", "runtime", |cell| Some(text(cell.runtime))).of(Cell::has_runtime, FOREIGN).no_work(),
    number("worker_threads", "workers", |cell| cell.worker_threads.map(text))
        .of(|cell| cell.has_runtime() && cell.program.is_none() && cell.runtime == Runtime::MultiThread, NO_WORKERS)
        .within(1..=1024)
        .no_work()
        .said("{} worker(s)"),
    number("shards", "shards", |cell| Some(text(cell.shards)))
        .of(Cell::has_shards, SHARDS)
        .within(1..=256)
        .no_work()
        .usual("1")
        .said("{} shard(s)"),
    number("queues", "queues", |cell| cell.queues.map(text))
        .of(Cell::has_shards, SHARDS)
        .within(1..=256)
        .no_work()
        .said("{} queue(s)"),
    property("offload", "offload", |cell| (cell.offload != Offload::Auto).then(|| text(cell.offload)))
        .of(Cell::has_offload, NO_OFFLOAD)
        .said("offload {}"),
    property("napi", "NAPI", |cell| Some(cell.napi.name().to_owned()))
        .of(Cell::has_napi, NO_NAPI)
        .usual("off")
        .said("NAPI {}"),
    property("gso", "GSO", |cell| cell.gso.map(text)).of(|cell| cell.program.is_some(), NO_GSO).said("GSO {}"),
    property("qdisc", "qdisc", |cell| cell.qdisc.clone()).of(Cell::has_queue, NO_QUEUE).said("qdisc {}"),
    number("mtu", "MTU", |cell| cell.mtu.map(text))
        // Over loopback it is the room of a datagram.
        .of(
            |cell| cell.has_device() || cell.protocol == Protocol::Udp,
            "the layer loopback has no device, and --device names one that another program has made",
        )
        // Every host takes an IPv4 packet of 576 bytes (RFC 1122, 3.3.2).
        .within(576..=65_535)
        .said("MTU {}"),
    number("max_flows", "most flows", |cell| cell.max_flows.map(text))
        .of(Cell::has_max_flows, NO_MAX_FLOWS)
        .within(1..=65_535)
        .no_work()
        .said("at most {} flow(s)"),
    number("parallel", "connections", |cell| Some(text(cell.parallel)))
        .of(Cell::has_client, "the layer device has one stream")
        .within(1..=10_000)
        .usual_in_names("1")
        .said("{} {noun}(s)"),
    number("client_threads", "client threads", |cell| cell.client_threads.map(text))
        .of(|cell| cell.has_client() && !cell.is_idle() && cell.forwarder.is_none(), NO_THREADS)
        .within(1..=64)
        .said("{} client thread(s)"),
    property("pin", "pinned to", |cell| cell.pin.as_ref().map(text)).of(Cell::has_pins, NO_PINS).said("pinned to {}"),
    property("ipv6", "IP", |cell| Some(cell.ipv6.to_string()))
        .shown(|value| if value == "true" { "IPv6" } else { "IPv4" }.to_owned())
        .usual_in_names("IPv4"),
    number("datagram", "datagram", |cell| cell.datagram.map(text))
        .called("datagram_bytes")
        .of(Cell::has_datagrams, "only reader, writer and both over UDP have it; requests have --request")
        .said("datagrams of {} byte(s)"),
    number("bitrate", "bit/s", |cell| cell.bitrate.map(text))
        .of(
            |cell| cell.forwarder.is_none() && (cell.has_streams() || cell.has_datagrams()) && cell.has_client(),
            NO_BYTES,
        )
        .shown(prefixed)
        .said("at {}bit/s"),
    property("background", "beside", |cell| cell.background.map(text))
        .shown(Mode::shown)
        .of(Cell::has_requests, "only the requests of rr and crr have a stream beside them")
        .said("beside a stream ({})"),
    number("request", "request", |cell| Some(text(cell.request)))
        .called("request_bytes")
        .of(Cell::has_requests, NO_REQUESTS)
        .within(1..=64 << 20)
        .usual_in_names("1")
        .said("request of {} byte(s)"),
    number("response", "response", |cell| Some(text(cell.response)))
        .called("response_bytes")
        .of(Cell::has_requests, NO_REQUESTS)
        .within(1..=64 << 20)
        .usual_in_names("1")
        .said("response of {} byte(s)"),
    number("depth", "depth", |cell| Some(text(cell.depth)))
        .of(|cell| cell.mode == Some(Mode::Rr) && cell.protocol == Protocol::Tcp && cell.has_requests(), NO_DEPTH)
        .within(1..=1024)
        .usual("1")
        .said("depth {}"),
    number("rate", "rate /s", |cell| cell.rate.map(text))
        .of(Cell::has_requests, "only rr and crr have requests; bulk bytes have --bitrate")
        .within(1..=1_000_000)
        .said("at {} request(s) a second"),
    number("think", "think ms", |cell| Some(text(cell.think.as_nanos())))
        .called("think_ns")
        .of(|cell| cell.has_requests() && cell.mode == Some(Mode::Rr), NO_PAUSES)
        .shown(milliseconds)
        .usual("0")
        .said("{} ms between a response and the next request"),
    number("blackholes", "black holes", |cell| Some(text(cell.blackholes)))
        .of(Cell::has_black_holes, BLACK_HOLES)
        .within(0..=1000)
        .usual("0")
        .said("beside {} black hole(s)"),
    number("rest", "rest ms", |cell| Some(text(cell.rest.as_nanos())))
        .called("rest_ns")
        .of(|cell| cell.program.is_some() || cell.is_idle(), NO_REST)
        .shown(milliseconds)
        .usual("200")
        .said("{} ms at rest"),
    number("window", "window", |cell| cell.window.map(text))
        .called("window_bytes")
        .of(Cell::has_window, "there is no stack of this program; leave it out")
        .within(StackConfig::MIN_WINDOW as u64..=StackConfig::MAX_WINDOW as u64)
        .shown(|value| size(value, |bytes| [bytes.display().iec(), bytes.display().si()]))
        .unnamed()
        .said("window {}"),
    number("buffer", "buffer", |cell| cell.buffer.map(text))
        .called("buffer_bytes")
        .of(Cell::has_streams, "only streams have it")
        .within(1..=64 << 20)
        .shown(|value| size(value, |bytes| [bytes.display().si(), bytes.display().iec()]))
        .unnamed()
        .said("buffer {}"),
    number("queue", "queue", |cell| cell.queue.map(text))
        .called("queue_packets")
        .of(Cell::has_queue, NO_QUEUE)
        .within(1..=MAX_QUEUE as u64)
        .said("queue of {} packet(s)"),
    property("workarounds", "workarounds", |cell| Some(text(cell.workarounds)))
        .of(|cell| cell.adapter().is_some(), NO_STACK)
        .no_work()
        .usual("all")
        .said("workarounds {}"),
    property("stack_congestion", "stack's congestion control", |cell| {
        // Without a choice gVisor has its own.
        let is_own = cell.adapter() == Some(StackKind::Gvisor) && cell.stack_congestion == StackCongestion::None;
        (!is_own).then(|| cell.stack_congestion.name().to_owned())
    })
    .of(
        |cell| matches!(cell.adapter(), Some(StackKind::Smoltcp | StackKind::Gvisor)),
        "only the stacks smoltcp and gvisor have a choice",
    )
    .no_work()
    .usual("none")
    .said("{} in the stack"),
    property("stack_recovery", "stack's recovery", |cell| {
        cell.stack_recovery.map(|name| StackRecovery::name(name).to_owned())
    })
    .of(|cell| cell.adapter() == Some(StackKind::Gvisor), "only the stack gvisor has a choice")
    .no_work()
    .said("recovery by {} in the stack"),
    property("generator", "generator", |cell| Some(text(cell.generator)))
        .of(|cell| cell.forwarder.is_some(), NO_FORWARDER)
        .usual("own")
        .said("load by {}"),
    time_of_link("delay", "delay ms", |cell| Some(text(cell.impairments.delay.as_nanos())))
        .called("delay_ns")
        .said("delay {} ms"),
    time_of_link("jitter", "jitter ms", |cell| Some(text(cell.impairments.jitter.as_nanos())))
        .called("jitter_ns")
        .said("jitter {} ms"),
    share("loss", "loss %", |cell| Some(text(cell.impairments.loss_ppm))).called("loss_ppm").said("loss {} %"),
    share("reorder", "reorder %", |cell| Some(text(cell.impairments.reorder_ppm)))
        .called("reorder_ppm")
        .said("reorder {} %"),
    share("duplicate", "duplicate %", |cell| Some(text(cell.impairments.duplicate_ppm)))
        .called("duplicate_ppm")
        .said("duplicate {} %"),
    share("corrupt", "corrupt %", |cell| Some(text(cell.impairments.corrupt_ppm)))
        .called("corrupt_ppm")
        .said("corrupt {} %"),
    link("rate_limit", "rate limit", |cell| cell.impairments.rate_limit.map(text))
        .shown(prefixed)
        .said("rate limit {}bit/s"),
    link("path_mtu", "path MTU", |cell| cell.impairments.path_mtu.map(text)).within(576..=65_534).said("path MTU {}"),
    link("no_icmp", "no ICMP", |cell| cell.impairments.no_icmp.then(|| "yes".to_owned())).said("no ICMP"),
    link("outage", "outage", |cell| cell.impairments.outage.map(text))
        .of(|cell| cell.subject().has_link() && !cell.is_idle(), NO_OUTAGE)
        .shown(|value| value.replace(',', " for "))
        .said("outage {}"),
];

const fn property(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    Property {
        option,
        name: option,
        title,
        is_number: false,
        is_work: true,
        is_impairment: false,
        is_named: true,
        range: 0..=u64::MAX,
        has: |_| true,
        others: "",
        value,
        shown: ToOwned::to_owned,
        usual: UNKNOWN,
        usual_in_names: UNKNOWN,
        phrase: "{}",
    }
}

const fn number(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    Property { is_number: true, ..property(option, title, value) }
}

const fn setting(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    Property { is_work: false, is_named: false, ..property(option, title, value) }
}

const fn count(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    Property { is_number: true, ..setting(option, title, value) }
}

const fn link(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    let property = number(option, title, value).of(|cell| cell.subject().has_link(), NO_LINK);
    Property { is_impairment: true, ..property }
}

const fn time_of_link(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    link(option, title, value).shown(milliseconds).usual("0")
}

const fn share(option: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Property {
    link(option, title, value).shown(percent).usual("0")
}

impl Property {
    setters! {
        called(name: &'static str);
        within(range: RangeInclusive<u64>);
        shown(shown: fn(&str) -> String);
        usual(usual: &'static str);
        usual_in_names(usual_in_names: &'static str);
        said(phrase: &'static str);
    }

    const fn of(self, has: fn(&Cell) -> bool, others: &'static str) -> Self {
        Self { has, others, ..self }
    }

    const fn no_work(self) -> Self {
        Self { is_work: false, ..self }
    }

    const fn unnamed(self) -> Self {
        Self { is_named: false, ..self }
    }

    /// Whether it is a setting of a stack, and not the stack itself.
    pub(super) const fn is_of_stack(&self) -> bool {
        !self.is_work && self.is_named
    }

    pub(super) fn is_equal(&self, one: &Cell, other: &Cell) -> bool {
        (self.value)(one) == (self.value)(other)
    }

    /// Its option, without its first hyphens.
    pub fn long(&self) -> String {
        self.option.replace('_', "-")
    }

    /// Whether a cell has it.
    pub fn is_of(&self, cell: &Cell) -> bool {
        (self.has)(cell)
    }

    /// Whether it is part of the work of a cell. Cells with the same work differ only in the other properties.
    pub fn is_work_of(&self, cell: &Cell) -> bool {
        self.is_work && !(self.option == "offload" && cell.forwarder.is_some())
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        self.range.contains(&number)
    }

    /// The numbers that it may be, in words; `None` for all.
    pub fn bounds(&self) -> Option<String> {
        let of_bytes = if self.name.ends_with("_bytes") { " of bytes" } else { "" };
        let (first, last) = (self.range.start(), self.range.end());
        (*last < u64::MAX).then(|| format!("must be a whole number{of_bytes} from {first} to {last}"))
    }

    /// Its value for machines; empty if the cell does not have it, or it is not set.
    pub fn machine_value(&self, cell: &Cell) -> String {
        if self.is_of(cell) { (self.value)(cell).unwrap_or_default() } else { String::new() }
    }

    /// Its value in a table; `None` if the cell does not have it.
    pub fn value(&self, cell: &Cell) -> Option<String> {
        let shown = || (self.value)(cell).map_or_else(|| UNKNOWN.to_owned(), |value| (self.shown)(&value));
        self.is_of(cell).then(shown)
    }

    /// The same; [`UNKNOWN`] if the cell does not have it.
    pub fn text(&self, cell: &Cell) -> String {
        self.value(cell).unwrap_or_else(|| UNKNOWN.to_owned())
    }

    /// Its value, or the usual one if it is not set; `None` if the cell does not have it.
    pub fn value_or_usual(&self, cell: &Cell) -> Option<String> {
        self.value(cell).map(|value| if value == UNKNOWN { self.usual.to_owned() } else { value })
    }

    /// Its value as a phrase, for text without a column head; `None` if it need not be mentioned.
    pub fn phrase(&self, cell: &Cell) -> Option<String> {
        let value = self.value(cell).filter(|value| value != UNKNOWN && *value != self.usual)?;
        let phrase = self.phrase.replace("{noun}", cell.workload().unit()).replace("{}", &value);
        Some(phrase.replace("(s)", if value == "1" { "" } else { "s" })).filter(|phrase| !phrase.is_empty())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it maps options")]
fn text(value: impl ToString) -> String {
    value.to_string()
}

/// Nanoseconds as milliseconds.
fn milliseconds(value: &str) -> String {
    value.parse::<f64>().map_or_else(|_| value.to_owned(), |nanoseconds| (nanoseconds / 1e6).to_string())
}

/// Parts per million as a percentage.
fn percent(value: &str) -> String {
    value.parse::<f64>().map_or_else(|_| value.to_owned(), |ppm| (ppm / 1e4).to_string())
}

/// A number with an SI prefix before its unit.
fn prefixed(value: &str) -> String {
    value.parse().map_or_else(|_| value.to_owned(), si)
}

/// A number of bytes in the first form that is exact, else in full: no two have the same text.
fn size(value: &str, forms: impl Fn(ByteSize) -> [Display; 2]) -> String {
    let Ok(bytes) = value.parse().map(ByteSize) else { return value.to_owned() };
    let exact = forms(bytes).map(|form| form.to_string()).into_iter().find(|text| text.parse().ok() == Some(bytes));
    exact.unwrap_or_else(|| plural(bytes.as_u64(), "byte"))
}
