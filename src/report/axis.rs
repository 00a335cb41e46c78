//! In what cells differ, and what is alike for all of them.

use bytesize::ByteSize;
use forwarders::{ForwardConfig as Way, Io};

use super::UNKNOWN;
use crate::measure::Summary;
use crate::plan::{Direction, Forwarder, Generator, Layer, RuntimeKind};
use crate::sample::{Cell, ForwardCell, StackCell};

/// Threads of a runtime that nobody has said.
const AS_PROCESSORS: &str = "as processors";

/// A property of a cell. Some are of stacks or of forwarders alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Layer,
    Stack,
    Mode,
    Runtime,
    /// The number in the published table.
    Row,
    Forwarder,
    Io,
    Offload,
    Hop,
    Workers,
    Threads,
    Direction,
    Generator,
    Mtu,
    Streams,
    Version,
    Window,
    Buffer,
    Queue,
}

impl Axis {
    const ALL: [Self; 19] = [
        Self::Layer,
        Self::Stack,
        Self::Mode,
        Self::Runtime,
        Self::Row,
        Self::Forwarder,
        Self::Io,
        Self::Offload,
        Self::Hop,
        Self::Workers,
        Self::Threads,
        Self::Direction,
        Self::Generator,
        Self::Mtu,
        Self::Streams,
        Self::Version,
        Self::Window,
        Self::Buffer,
        Self::Queue,
    ];

    /// Of the axes of a piece of work, whose rivals differ in stack and runtime alone, or in the forwarder.
    pub(super) fn is_of_work(self, cell: &Cell) -> bool {
        match self {
            Self::Offload => cell.stack().is_some(),
            Self::Layer | Self::Mode => true,
            axis => axis.is_setting(),
        }
    }

    /// Of those that are neither the stack's or the forwarder's own, nor what the run is of.
    pub(super) const fn is_setting(self) -> bool {
        matches!(
            self,
            Self::Direction
                | Self::Generator
                | Self::Mtu
                | Self::Streams
                | Self::Version
                | Self::Window
                | Self::Buffer
                | Self::Queue
        )
    }

    /// The head of its column.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Stack => "stack",
            Self::Mode => "mode",
            Self::Runtime => "runtime",
            Self::Row => "#",
            Self::Forwarder => "forwarder",
            Self::Io => "io",
            Self::Offload => "offload",
            Self::Hop => "hop",
            Self::Workers => "workers",
            Self::Threads => "threads",
            Self::Direction => "direction",
            Self::Generator => "generator",
            Self::Mtu => "MTU",
            Self::Streams => "streams",
            Self::Version => "IP",
            Self::Window => "window",
            Self::Buffer => "buffer",
            Self::Queue => "queue",
        }
    }

    /// Whether its values are numbers.
    pub(super) const fn is_number(self) -> bool {
        matches!(self, Self::Row | Self::Workers | Self::Threads | Self::Mtu | Self::Streams | Self::Queue)
    }

    /// What a cell has in the column; `None` where its kind or layer does not have the property.
    pub(super) fn value(self, cell: &Cell) -> Option<String> {
        match self {
            Self::Mtu => cell.mtu().map(|mtu| mtu.to_string()),
            Self::Streams => Some(cell.parallel().to_string()),
            Self::Version => Some(if cell.ipv6() { "IPv6" } else { "IPv4" }.to_owned()),
            Self::Buffer => Some(ByteSize(cell.buffer_bytes() as u64).display().si().to_string()),
            _ => match cell {
                Cell::Stack(cell) => self.of_stack(cell),
                Cell::Forward(cell) => self.of_forwarder(cell),
            },
        }
    }

    fn of_stack(self, cell: &StackCell) -> Option<String> {
        match self {
            Self::Layer => Some(cell.layer.to_string()),
            Self::Stack => cell.netstack.map(|stack| stack.to_string()),
            Self::Mode => cell.mode.map(|mode| mode.to_string()),
            Self::Runtime => Some(match cell.runtime {
                RuntimeKind::MultiThread(Some(workers)) => format!("{} ({workers})", cell.runtime),
                runtime => runtime.to_string(),
            }),
            Self::Offload => cell.offload.map(|offload| if offload { "on" } else { "off" }.to_owned()),
            Self::Window => cell.window_bytes.map(|bytes| ByteSize(bytes as u64).display().iec().to_string()),
            _ => None,
        }
    }

    fn of_forwarder(self, cell: &ForwardCell) -> Option<String> {
        let forwarder = cell.forwarder;
        let rust = |of: fn(Way) -> String| match forwarder {
            Forwarder::Rust(way) => Some(of(way)),
            Forwarder::Go { .. } => None,
        };
        match self {
            Self::Row => forwarder.row().map(|row| row.to_string()),
            Self::Forwarder => Some(rust(|_| "rust".to_owned()).unwrap_or_else(|| "go".to_owned())),
            Self::Io => Some(forwarder.io().map_or(UNKNOWN, Io::name).to_owned()),
            Self::Offload => Some(forwarder.offload().name().to_owned()),
            Self::Hop => Some(forwarder.hop().name().to_owned()),
            Self::Workers => Some(rust(|way| way.workers.to_string()).unwrap_or_else(|| UNKNOWN.to_owned())),
            Self::Threads if forwarder.io() == Some(Io::Sync) => None,
            Self::Threads => rust(|way| way.threads.map_or_else(|| AS_PROCESSORS.to_owned(), |n| n.to_string())),
            Self::Direction => Some(direction(cell.direction).to_owned()),
            Self::Generator => Some(generator(cell.generator).to_owned()),
            Self::Queue => Some(cell.queue_packets.to_string()),
            _ => None,
        }
    }

    /// What a cell has, where no column says what it is. What is usual goes without saying.
    pub(super) fn phrase(self, cell: &Cell) -> Option<String> {
        let value = self.value(cell)?;
        Some(match self {
            Self::Layer if cell.stack().is_some_and(|cell| cell.layer == Layer::Path) => return None,
            Self::Row => return None,
            Self::Io | Self::Workers if value == UNKNOWN => return None,
            Self::Threads if value == AS_PROCESSORS => return None,
            Self::Layer => format!("layer {value}"),
            Self::Stack | Self::Mode | Self::Runtime | Self::Forwarder | Self::Io | Self::Hop | Self::Version => value,
            Self::Offload => format!("offload {value}"),
            Self::Workers => counted(&value, "worker"),
            Self::Threads => counted(&value, "thread"),
            Self::Direction if value == direction(Direction::Bidir) => "payload both ways".to_owned(),
            Self::Direction => format!("payload {value}"),
            Self::Generator if value == generator(Generator::Own) => "load by this program".to_owned(),
            Self::Generator => format!("load by {value}"),
            Self::Mtu => format!("MTU {value}"),
            Self::Streams => counted(&value, "stream"),
            Self::Window => format!("window {value}"),
            Self::Buffer => format!("buffer {value}"),
            Self::Queue => format!("queue of {}", counted(&value, "packet")),
        })
    }
}

/// Which way the payload of a forwarder goes.
pub(super) const fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Reverse => "reverse",
        Direction::Bidir => "bidir",
    }
}

/// Who makes the load of a forwarder.
pub(super) const fn generator(generator: Generator) -> &'static str {
    match generator {
        Generator::Own => "own",
        Generator::Iperf3 => "iperf3",
    }
}

fn counted(count: &str, noun: &str) -> String {
    if count == "1" { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The axes in which the cells differ. What a cell does not have makes no difference.
pub(super) fn differing(cells: &[&Cell]) -> Vec<Axis> {
    Axis::ALL.into_iter().filter(|axis| !is_alike(*axis, cells)).collect()
}

/// What all cells have alike, as phrases.
pub(super) fn shared(cells: &[&Cell]) -> Vec<String> {
    let alike = Axis::ALL.into_iter().filter(|axis| is_alike(*axis, cells));
    alike.filter_map(|axis| cells.iter().find_map(|cell| axis.phrase(cell))).collect()
}

fn is_alike(axis: Axis, cells: &[&Cell]) -> bool {
    let mut values = cells.iter().filter_map(|cell| axis.value(cell));
    let first = values.next();
    values.all(|value| Some(value) == first)
}

/// What a cell has on some axes, as one phrase.
pub(super) fn phrase(cell: &Cell, axes: impl Iterator<Item = Axis>) -> String {
    axes.filter_map(|axis| axis.phrase(cell)).collect::<Vec<_>>().join(", ")
}

/// The cells of a table.
pub(super) fn cells(summary: &Summary) -> Vec<&Cell> {
    summary.cells.iter().map(|row| &row.cell).collect()
}
