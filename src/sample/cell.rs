//! What was run.

mod forward;
mod stack;

use std::fmt;

use serde::Serialize;

pub use self::forward::ForwardCell;
pub use self::stack::StackCell;
use crate::plan::{ForwardScenario, Runnable, Scenario};

/// Something to be run, whose place in a table is known before.
pub trait Planned: Runnable {
    /// That place.
    fn cell(&self) -> Cell;
}

impl Planned for Scenario {
    fn cell(&self) -> Cell {
        StackCell::planned(self).into()
    }
}

impl Planned for ForwardScenario {
    fn cell(&self) -> Cell {
        ForwardCell::of(self).into()
    }
}

/// The place of a sample in a table: samples of equal cells are runs of the same thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A stack over a TUN device, or one of the layers under it.
    Stack(StackCell),
    /// A forwarder between two TUN devices.
    Forward(ForwardCell),
}

impl Cell {
    /// The cell that a run is to have: with offload where it is asked for.
    pub fn planned(run: &impl Planned) -> Self {
        run.cell()
    }

    /// That of a stack; `None` for a forwarder's.
    pub const fn stack(&self) -> Option<&StackCell> {
        match self {
            Self::Stack(cell) => Some(cell),
            Self::Forward(_) => None,
        }
    }

    /// That of a forwarder; `None` for a stack's.
    pub const fn forward(&self) -> Option<&ForwardCell> {
        match self {
            Self::Stack(_) => None,
            Self::Forward(cell) => Some(cell),
        }
    }

    /// MTU of the device or of both, in bytes; `None` where there is none.
    pub const fn mtu(&self) -> Option<usize> {
        match self {
            Self::Stack(cell) => cell.mtu,
            Self::Forward(cell) => Some(cell.mtu),
        }
    }

    /// Streams at once.
    pub const fn parallel(&self) -> u16 {
        match self {
            Self::Stack(cell) => cell.parallel,
            Self::Forward(cell) => cell.parallel,
        }
    }

    /// Whether over IPv6.
    pub const fn ipv6(&self) -> bool {
        match self {
            Self::Stack(cell) => cell.ipv6,
            Self::Forward(cell) => cell.ipv6,
        }
    }

    /// Size of one read or write, in bytes.
    pub const fn buffer_bytes(&self) -> usize {
        match self {
            Self::Stack(cell) => cell.buffer_bytes,
            Self::Forward(cell) => cell.buffer_bytes,
        }
    }

    /// Whether the other does the same work: differs in stack and runtime, or in the forwarder, at most.
    pub fn same_work(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stack(cell), Self::Stack(other)) => cell.same_work(other),
            (Self::Forward(cell), Self::Forward(other)) => cell.same_work(other),
            (Self::Stack(_), Self::Forward(_)) | (Self::Forward(_), Self::Stack(_)) => false,
        }
    }

    /// Checks that what it has goes together.
    ///
    /// # Errors
    ///
    /// What it lacks, or has and cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Stack(cell) => cell.check(),
            Self::Forward(cell) => cell.check(),
        }
    }
}

impl From<StackCell> for Cell {
    fn from(cell: StackCell) -> Self {
        Self::Stack(cell)
    }
}

impl From<ForwardCell> for Cell {
    fn from(cell: ForwardCell) -> Self {
        Self::Forward(cell)
    }
}

/// All of it in a line, what is as by default left out.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stack(cell) => cell.fmt(f),
            Self::Forward(cell) => cell.fmt(f),
        }
    }
}
