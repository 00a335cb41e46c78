//! In what cells differ, and what is alike for all of them.

use bytesize::ByteSize;

use crate::measure::Summary;
use crate::plan::{Layer, RuntimeKind};
use crate::sample::Cell;

/// A property of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Layer,
    Stack,
    Mode,
    Runtime,
    Offload,
    Mtu,
    Streams,
    Version,
    Window,
    Buffer,
}

impl Axis {
    const ALL: [Self; 10] = [
        Self::Layer,
        Self::Stack,
        Self::Mode,
        Self::Runtime,
        Self::Offload,
        Self::Mtu,
        Self::Streams,
        Self::Version,
        Self::Window,
        Self::Buffer,
    ];

    /// Of the axes of a piece of work, whose rivals differ in stack and runtime alone.
    pub(super) fn is_of_work(self) -> bool {
        !matches!(self, Self::Stack | Self::Runtime)
    }

    /// The head of its column.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Stack => "stack",
            Self::Mode => "mode",
            Self::Runtime => "runtime",
            Self::Offload => "offload",
            Self::Mtu => "MTU",
            Self::Streams => "streams",
            Self::Version => "IP",
            Self::Window => "window",
            Self::Buffer => "buffer",
        }
    }

    /// Whether its values are numbers.
    pub(super) const fn is_number(self) -> bool {
        matches!(self, Self::Mtu | Self::Streams)
    }

    /// What a cell has in the column; `None` where its layer does not have the property.
    pub(super) fn value(self, cell: &Cell) -> Option<String> {
        match self {
            Self::Layer => Some(cell.layer.to_string()),
            Self::Stack => cell.netstack.map(|stack| stack.to_string()),
            Self::Mode => cell.mode.map(|mode| mode.to_string()),
            Self::Runtime => Some(match cell.runtime {
                RuntimeKind::MultiThread(Some(workers)) => format!("{} ({workers})", cell.runtime),
                runtime => runtime.to_string(),
            }),
            Self::Offload => cell.offload.map(|offload| if offload { "on" } else { "off" }.to_owned()),
            Self::Mtu => cell.mtu.map(|mtu| mtu.to_string()),
            Self::Streams => Some(cell.parallel.to_string()),
            Self::Version => Some(if cell.ipv6 { "IPv6" } else { "IPv4" }.to_owned()),
            Self::Window => cell.window_bytes.map(|bytes| ByteSize(bytes as u64).display().iec().to_string()),
            Self::Buffer => Some(ByteSize(cell.buffer_bytes as u64).display().si().to_string()),
        }
    }

    /// What a cell has, where no column says what it is. The whole path goes without saying.
    pub(super) fn phrase(self, cell: &Cell) -> Option<String> {
        let value = self.value(cell)?;
        Some(match self {
            Self::Layer if cell.layer == Layer::Path => return None,
            Self::Layer => format!("layer {value}"),
            Self::Stack | Self::Mode | Self::Runtime | Self::Version => value,
            Self::Offload => format!("offload {value}"),
            Self::Mtu => format!("MTU {value}"),
            Self::Streams if cell.parallel == 1 => "1 stream".to_owned(),
            Self::Streams => format!("{value} streams"),
            Self::Window => format!("window {value}"),
            Self::Buffer => format!("buffer {value}"),
        })
    }
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
