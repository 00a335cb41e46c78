//! The layers under each path: what the kernel's loopback, the device and the stack do alone.

use super::axis::{self, Axis};
use crate::measure::{CellSummary, Summary};
use crate::plan::Layer;
use crate::sample::StackCell;

/// A path and the layers that it is made of, as far as they were measured.
pub(super) struct Ladder<'a> {
    pub(super) path: &'a CellSummary,
    /// What the path was.
    pub(super) cell: &'a StackCell,
    pub(super) loopback: Option<&'a CellSummary>,
    pub(super) device: Option<&'a CellSummary>,
    pub(super) stack: Option<&'a CellSummary>,
}

/// A ladder for each path of which a layer was measured, too.
pub(super) fn ladders(summary: &Summary) -> Vec<Ladder<'_>> {
    let stacks = summary.cells.iter().filter_map(|row| Some((row, row.cell.stack()?)));
    let ladders = stacks.filter(|(_, cell)| cell.layer == Layer::Path).map(|(path, cell)| Ladder {
        path,
        cell,
        loopback: find(summary, &loopback_of(cell)),
        device: find(summary, &device_of(cell)),
        stack: find(summary, &StackCell { layer: Layer::Stack, ..cell.clone() }),
    });
    ladders.filter(|ladder| ladder.loopback.or(ladder.device).or(ladder.stack).is_some()).collect()
}

fn find<'a>(summary: &'a Summary, cell: &StackCell) -> Option<&'a CellSummary> {
    summary.cells.iter().find(|row| row.cell.stack() == Some(cell))
}

/// The loopback has no link, and so none of its properties.
fn loopback_of(path: &StackCell) -> StackCell {
    let path = path.clone();
    StackCell { layer: Layer::Loopback, netstack: None, offload: None, mtu: None, window_bytes: None, ..path }
}

/// The device knows no direction.
fn device_of(path: &StackCell) -> StackCell {
    StackCell { layer: Layer::Device, netstack: None, mode: None, ..path.clone() }
}

/// In what the paths of the ladders differ.
pub(super) fn axes(ladders: &[Ladder<'_>]) -> Vec<Axis> {
    axis::differing(&ladders.iter().map(|ladder| &ladder.path.cell).collect::<Vec<_>>())
}
