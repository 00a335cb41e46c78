//! The layers under each path: what the kernel's loopback, the device and the stack do alone.

use super::axis::{self, Axis};
use crate::measure::{CellSummary, Summary};
use crate::plan::Layer;
use crate::sample::Cell;

/// A path and the layers that it is made of, as far as they were measured.
pub(super) struct Ladder<'a> {
    pub(super) path: &'a CellSummary,
    pub(super) loopback: Option<&'a CellSummary>,
    pub(super) device: Option<&'a CellSummary>,
    pub(super) stack: Option<&'a CellSummary>,
}

/// A ladder for each path of which a layer was measured, too.
pub(super) fn ladders(summary: &Summary) -> Vec<Ladder<'_>> {
    let paths = summary.cells.iter().filter(|row| row.cell.layer == Layer::Path);
    let ladders = paths.map(|path| Ladder {
        path,
        loopback: find(summary, &loopback_of(&path.cell)),
        device: find(summary, &device_of(&path.cell)),
        stack: find(summary, &Cell { layer: Layer::Stack, ..path.cell.clone() }),
    });
    ladders.filter(|ladder| ladder.loopback.or(ladder.device).or(ladder.stack).is_some()).collect()
}

fn find<'a>(summary: &'a Summary, cell: &Cell) -> Option<&'a CellSummary> {
    summary.cells.iter().find(|row| row.cell == *cell)
}

/// The loopback has no link, and so none of its properties.
fn loopback_of(path: &Cell) -> Cell {
    let path = path.clone();
    Cell { layer: Layer::Loopback, netstack: None, offload: None, mtu: None, window_bytes: None, ..path }
}

/// The device knows no direction.
fn device_of(path: &Cell) -> Cell {
    Cell { layer: Layer::Device, netstack: None, mode: None, ..path.clone() }
}

/// In what the paths of the ladders differ.
pub(super) fn axes(ladders: &[Ladder<'_>]) -> Vec<Axis> {
    axis::differing(&ladders.iter().map(|ladder| &ladder.path.cell).collect::<Vec<_>>())
}
