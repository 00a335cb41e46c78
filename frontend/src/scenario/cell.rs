//! The place of a sample in a table.

use std::borrow::Cow;
use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};

use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};
use platform::Offload;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Conditions, DEFAULT_MTU, Forwarder, Generator, Layer, Mode, Processors, Protocol, Requests, RuntimeKind, Scenario,
    Subject, Workload, is_default, is_one, one, plural,
};
use crate::program::{ProgramName, is_baseline};

/// A scenario without its amounts: samples of equal cells are runs of the same thing. `None` is what the
/// subject does not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(into = "Fields", try_from = "Fields")]
pub struct Cell {
    /// What carries the bytes.
    pub subject: Subject,
    /// The work of the clients.
    pub workload: Workload,
    /// What the link does to packets.
    pub conditions: Conditions,
    /// The runtime of the stack and its server; a forwarder has its own.
    pub runtime: Option<RuntimeKind>,
    /// Whether super-packets and partial checksums cross the device; a forwarder has its own setting.
    pub offload: Option<bool>,
    /// MTU of the devices, in bytes.
    pub mtu: Option<usize>,
    /// Connections at once; streams in both directions are as many each.
    pub parallel: u16,
    /// Instances of the stack, each with its own link.
    pub shards: NonZeroU16,
    /// Queues of the device, if the stack has several shards; `None` for one for each shard where the device can have several.
    pub queues: Option<NonZeroU16>,
    /// Threads of the clients; `None` for the default, 0 for the thread of their stack.
    pub client_threads: Option<u16>,
    /// The processors of the client threads and of the workers; `None` for the system's choice.
    pub pin: Option<Processors>,
    /// Bits of payload a second that are sent at most in each direction.
    pub bitrate: Option<NonZeroU64>,
    /// The mode of a stream beside the requests.
    pub background: Option<Mode>,
    /// Whether the packets are IPv6.
    pub ipv6: bool,
    /// The stack's receive buffer and send buffer for each stream, in bytes, as asked for.
    pub window_bytes: Option<usize>,
    /// Size of one read or write of a stream, in bytes.
    pub buffer_bytes: usize,
    /// What the adapter does in the stack's place.
    pub repairs: Repairs,
    /// Congestion control of the stack, if it has a choice.
    pub stack_congestion: StackCongestion,
    /// How many packets may wait in each device before the kernel drops; `None` for the default.
    pub queue_packets: Option<u32>,
    /// The program that makes the load.
    pub generator: Generator,
}

/// A cell as the fields of a JSON object.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Fields {
    layer: Layer,
    netstack: Option<StackKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<ProgramName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forwarder: Option<Forwarder>,
    mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "is_default")]
    protocol: Protocol,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    datagram_bytes: Option<NonZeroU16>,
    #[serde(default, skip_serializing_if = "is_default")]
    half_closed: bool,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    shards: NonZeroU16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queues: Option<NonZeroU16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_threads: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pin: Option<Processors>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bitrate: Option<NonZeroU64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    background: Option<Mode>,
    #[serde(flatten)]
    requests: Option<Requests>,
    #[serde(default, skip_serializing_if = "is_default")]
    conditions: Conditions,
    #[serde(flatten)]
    runtime: Option<RuntimeKind>,
    offload: Option<bool>,
    mtu: Option<usize>,
    parallel: u16,
    ipv6: bool,
    window_bytes: Option<usize>,
    buffer_bytes: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    repairs: Repairs,
    #[serde(default, skip_serializing_if = "is_default")]
    stack_congestion: StackCongestion,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue_packets: Option<u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    generator: Generator,
}

impl From<Cell> for Fields {
    fn from(cell: Cell) -> Self {
        Self {
            layer: cell.subject.layer(),
            netstack: cell.subject.stack(),
            program: cell.subject.program(),
            forwarder: cell.subject.forwarder(),
            mode: cell.workload.mode(),
            protocol: cell.workload.protocol().unwrap_or_default(),
            datagram_bytes: cell.workload.datagram_bytes(),
            half_closed: cell.workload == Workload::HalfClosed,
            shards: cell.shards,
            queues: cell.queues,
            client_threads: cell.client_threads,
            pin: cell.pin,
            bitrate: cell.bitrate,
            background: cell.background,
            requests: cell.workload.requests(),
            conditions: cell.conditions,
            runtime: cell.runtime,
            offload: cell.offload,
            mtu: cell.mtu,
            parallel: cell.parallel,
            ipv6: cell.ipv6,
            window_bytes: cell.window_bytes,
            buffer_bytes: cell.buffer_bytes,
            repairs: cell.repairs,
            stack_congestion: cell.stack_congestion,
            queue_packets: cell.queue_packets,
            generator: cell.generator,
        }
    }
}

/// Refuses fields that do not go together.
impl TryFrom<Fields> for Cell {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let layer = fields.layer;
        if fields.parallel == 0 {
            return Err("\"parallel\" is 0".to_owned());
        }
        let missing = |name: &str| format!("no \"{name}\", which the layer {layer} has");
        let stack = || fields.netstack.ok_or_else(|| missing("netstack"));
        let program = || fields.program.ok_or_else(|| missing("program"));
        let subject = Subject::of(layer, stack, program, || fields.forwarder.ok_or_else(|| missing("forwarder")))?;
        if let Subject::Forward(forwarder) = subject {
            forwarder.check()?;
        }
        let mut workload = match (layer, fields.mode, fields.protocol) {
            (Layer::Device, ..) => Workload::Packets,
            (_, Some(mode), Protocol::Tcp) => {
                Workload::tcp(mode, fields.requests).ok_or_else(|| missing("request_bytes"))?
            }
            (_, Some(mode), Protocol::Udp) => Workload::udp(mode, fields.requests, fields.datagram_bytes)
                .ok_or_else(|| format!("the mode {mode} over UDP lacks \"datagram_bytes\" or \"request_bytes\""))?,
            (_, None, _) => return Err(missing("mode")),
        };
        if fields.half_closed {
            workload =
                workload.half_closed().ok_or("there is a \"half_closed\", and the load holds no connections open")?;
        }
        if fields.runtime.is_none() && !matches!(layer, Layer::Forward | Layer::Program) {
            return Err(missing("runtime"));
        }
        for (name, is_there, may_be) in [
            ("netstack", fields.netstack.is_some(), subject.stack().is_some()),
            ("program", fields.program.is_some(), subject.program().is_some()),
            ("forwarder", fields.forwarder.is_some(), subject.forwarder().is_some()),
            ("mode", fields.mode.is_some(), workload.mode().is_some()),
        ] {
            if is_there && !may_be {
                return Err(format!("there is a \"{name}\", and the layer {layer} has none"));
            }
        }
        if fields.datagram_bytes != workload.datagram_bytes() {
            return Err("there is a \"datagram_bytes\", and the load is not bulk bytes over UDP".to_owned());
        }
        Ok(Self {
            subject,
            workload,
            conditions: fields.conditions,
            runtime: fields.runtime,
            offload: fields.offload,
            mtu: fields.mtu,
            parallel: fields.parallel,
            shards: fields.shards,
            queues: fields.queues,
            client_threads: fields.client_threads,
            pin: fields.pin,
            bitrate: fields.bitrate,
            background: fields.background,
            ipv6: fields.ipv6,
            window_bytes: fields.window_bytes,
            buffer_bytes: fields.buffer_bytes,
            repairs: fields.repairs,
            stack_congestion: fields.stack_congestion,
            queue_packets: fields.queue_packets,
            generator: fields.generator,
        })
    }
}

impl Cell {
    /// The cell of a scenario before its run. It has offload only if the scenario demands it.
    pub fn planned(scenario: &Scenario) -> Self {
        Self::of(scenario, scenario.offload == Offload::On)
    }

    /// The cell of a scenario with a device that offloads, or does not.
    pub fn of(scenario: &Scenario, offload: bool) -> Self {
        let subject = scenario.subject;
        let has_device = subject != Subject::Loopback;
        let is_forward = subject.forwarder().is_some();
        // A program has its own runtime, device and buffers.
        let is_own = !is_forward && subject.program().is_none();
        Self {
            subject,
            workload: scenario.workload,
            conditions: scenario.conditions,
            runtime: is_own.then_some(scenario.runtime),
            offload: (has_device && is_own).then_some(offload),
            mtu: has_device.then_some(scenario.mtu.into()),
            parallel: scenario.parallel.get(),
            shards: scenario.shards,
            queues: scenario.queues,
            client_threads: scenario.client_threads,
            pin: scenario.pin.clone(),
            bitrate: scenario.bitrate,
            background: scenario.background,
            ipv6: scenario.ipv6(),
            window_bytes: (has_device && is_own && subject != Subject::Kernel).then_some(scenario.window_bytes),
            buffer_bytes: scenario.buffer_bytes.get(),
            repairs: scenario.repairs,
            stack_congestion: scenario.stack_congestion,
            queue_packets: scenario.queue_packets,
            generator: scenario.generator,
        }
    }

    /// The same cell with the stack of another and its settings.
    pub(crate) fn with_subject_of(&self, other: &Self) -> Self {
        let Self { subject, runtime, shards, queues, repairs, stack_congestion, .. } = *other;
        Self { subject, runtime, shards, queues, repairs, stack_congestion, ..self.clone() }
    }

    /// Whether another cell has the same settings of its stack.
    pub(crate) fn has_stack_settings_of(&self, other: &Self) -> bool {
        let of = |cell: &Self| (cell.runtime, cell.shards, cell.queues, cell.repairs, cell.stack_congestion);
        of(self) == of(other)
    }

    /// The settings of its stack that differ from the usual ones, as words.
    pub(crate) fn variant(&self) -> impl Iterator<Item = String> {
        let repairs = (self.repairs != Repairs::ALL).then(|| format!("repairs {}", self.repairs));
        let congestion = self.stack_congestion;
        repairs.into_iter().chain((congestion != StackCongestion::None).then(|| format!("with {}", congestion.name())))
    }

    /// The names of the repairs that are active in it.
    pub(crate) fn active_repairs(&self) -> Vec<Cow<'static, str>> {
        self.stack().map_or_else(Vec::new, |stack| self.repairs.active(stack, self.offload == Some(true)))
    }

    /// Whether the same repairs would be active with this setting.
    pub(crate) fn repairs_as(&self, repairs: Repairs) -> bool {
        let active = |repairs: Repairs| Some(repairs.active(self.stack()?, self.offload == Some(true)));
        active(repairs) == active(self.repairs)
    }

    /// Its layer.
    pub const fn layer(&self) -> Layer {
        self.subject.layer()
    }

    /// The stack in it.
    pub const fn stack(&self) -> Option<StackKind> {
        self.subject.stack()
    }

    /// The program that it is.
    pub const fn program(&self) -> Option<ProgramName> {
        self.subject.program()
    }

    /// Whether it is one of those that are compared: a stack or a program, and not the kernel alone beside them.
    pub fn is_contender(&self) -> bool {
        self.stack().is_some() || self.program().is_some_and(|program| !is_baseline(program))
    }

    /// The forwarder in it.
    pub const fn forwarder(&self) -> Option<Forwarder> {
        self.subject.forwarder()
    }

    /// The mode of its client.
    pub const fn mode(&self) -> Option<Mode> {
        self.workload.mode()
    }

    /// Whether super-packets could cross the device.
    pub fn offloads(&self) -> bool {
        match self.subject {
            Subject::Forward(forwarder) => forwarder.offload() != forwarders::Offload::Off,
            _ => self.offload == Some(true),
        }
    }

    /// Whether `other` does the same work: only the stack and its settings, the runtime, the program or the forwarder may differ. A
    /// program does the work of our proxy, and has a device and buffers of its own.
    pub fn same_work(&self, other: &Self) -> bool {
        let is_proxy = |cell: &Self| matches!(cell.layer(), Layer::Proxy | Layer::Program);
        let mut own = self.with_subject_of(other);
        if self.layer() != other.layer() {
            if !(is_proxy(self) && is_proxy(other)) {
                return false;
            }
            (own.offload, own.window_bytes) = (other.offload, other.window_bytes);
        }
        own == *other
    }
}

/// One line, without settings at their default.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.push(match self.subject {
            Subject::Path(stack) => stack.to_string(),
            Subject::Stack(stack) => format!("{stack} in memory"),
            Subject::Proxy(stack) => format!("proxy on {stack}"),
            Subject::Program(program) => program.to_string(),
            Subject::Forward(forwarder) => forwarder.to_string(),
            Subject::Loopback | Subject::Kernel | Subject::Device => self.layer().to_string(),
        });
        let is_forward = self.forwarder().is_some();
        words.extend(self.mode().filter(|mode| !(is_forward && *mode == Mode::Writer)).map(|mode| mode.to_string()));
        words.extend((self.workload.protocol() == Some(Protocol::Udp)).then(|| "UDP".to_owned()));
        words.extend(self.runtime.map(|runtime| match runtime.workers() {
            Some(workers) => format!("{runtime} ({workers} workers)"),
            None => runtime.to_string(),
        }));
        words.extend((!is_one(&self.shards)).then(|| format!("{} shards", self.shards)));
        words.extend(self.queues.map(|queues| plural(queues, "queue")));
        words.extend(self.offload.map(|offload| format!("offload {}", if offload { "on" } else { "off" })));
        let usual_mtu = is_forward && self.mtu == Some(DEFAULT_MTU.into());
        words.extend(self.mtu.filter(|_| !usual_mtu).map(|mtu| format!("MTU {mtu}")));
        match self.workload.requests() {
            Some(requests) => words.extend(load(requests, self.parallel)),
            None => match self.workload.held() {
                Some(held) => words.push(plural(self.parallel, held)),
                None => words.extend((self.parallel != 1).then(|| format!("{} streams", self.parallel))),
            },
        }
        words.extend(self.client_threads.map(|threads| match threads {
            0 => "clients on the stack's thread".to_owned(),
            threads => plural(threads, "client thread"),
        }));
        words.extend(self.pin.as_ref().map(|processors| format!("pinned to {processors}")));
        words.extend(self.workload.datagram_bytes().map(|len| format!("{len}-byte datagrams")));
        words.extend(self.background.map(|mode| match mode {
            Mode::Both => "with streams both ways beside".to_owned(),
            mode => format!("with a {mode} beside"),
        }));
        words.extend(self.bitrate.map(|rate| format!("at {}bit/s", si(rate.get()))));
        words.extend(self.ipv6.then(|| "IPv6".to_owned()));
        words.extend(self.variant());
        words.extend(self.queue_packets.filter(|_| !is_forward).map(|packets| format!("queue {packets}")));
        words.extend((self.conditions != Conditions::default()).then(|| self.conditions.to_string()));
        words.extend((self.generator != Generator::Own).then(|| format!("by {}", self.generator)));
        f.pad(&words.join(if is_forward { ", " } else { " " }))
    }
}

/// A whole number, with an SI prefix if that is shorter: `100 M`.
pub(crate) fn si(number: u64) -> String {
    let prefixes = [(1_000_000_000, " G"), (1_000_000, " M"), (1000, " k")];
    let (unit, prefix) = prefixes.into_iter().find(|(unit, _)| number.is_multiple_of(*unit)).unwrap_or((1, " "));
    format!("{}{prefix}", number / unit)
}

/// The words for requests, without settings at their default.
fn load(requests: Requests, connections: u16) -> impl Iterator<Item = String> {
    let Requests { request_bytes, response_bytes, depth, rate, think, blackholes } = requests;
    let usual = Requests::default();
    [
        (connections != 1).then(|| format!("{connections} connections")),
        ([request_bytes, response_bytes] != [usual.request_bytes, usual.response_bytes])
            .then(|| format!("{request_bytes} for {}", plural(response_bytes, "byte"))),
        (depth != usual.depth).then(|| format!("depth {depth}")),
        rate.map(|rate| format!("at {rate}/s")),
        (think != usual.think).then(|| format!("thinking {think:?}")),
        (blackholes > 0).then(|| format!("beside {}", plural(blackholes, "black hole"))),
    ]
    .into_iter()
    .flatten()
}
