//! Kinds of cells, for the metrics that not all cells have.

use crate::cell::{Cell, Layer, Mode, Protocol};
use crate::program::Program;

pub(super) fn has_requests(cell: &Cell) -> bool {
    cell.workload().requests().is_some()
}

/// Whether its connections or flows are only held open.
pub(super) fn has_idle(cell: &Cell) -> bool {
    cell.workload().is_held()
}

/// Whether its load is bulk bytes in datagrams.
pub(super) fn is_datagrams(cell: &Cell) -> bool {
    cell.workload().datagram_bytes().is_some()
}

pub(super) fn is_udp(cell: &Cell) -> bool {
    cell.workload().protocol() == Some(Protocol::Udp)
}

/// Whether its load is bulk bytes.
pub(super) fn has_bytes(cell: &Cell) -> bool {
    cell.workload().is_bulk()
}

pub(super) fn has_client(cell: &Cell) -> bool {
    cell.layer != Layer::Device
}

pub(super) fn is_program(cell: &Cell) -> bool {
    cell.program().is_some()
}

/// Whether it is run to compare programs with it.
pub(super) fn is_reference(cell: &Cell) -> bool {
    cell.program.as_ref().is_some_and(Program::is_baseline)
}

pub(super) fn is_carrier(cell: &Cell) -> bool {
    cell.subject().is_carrier()
}

/// Whether packets cross a link in it.
pub(super) fn has_link(cell: &Cell) -> bool {
    cell.layer != Layer::Loopback
}

pub(super) fn has_other_mode(cell: &Cell) -> bool {
    cell.forwarder().is_none() && matches!(cell.mode, Some(Mode::Reader | Mode::Writer))
}

/// Whether the other cell differs in the mode alone. Both directions at once have no opposite.
pub(super) fn is_other_mode(cell: &Cell, other: &Cell) -> bool {
    has_other_mode(other) && cell.mode != other.mode && *cell == Cell { mode: cell.mode, ..other.clone() }
}
