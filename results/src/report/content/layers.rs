//! The layers under each path: the kernel's loopback, the device and the stack, each alone. And the kernel behind the same device.

use super::{charts, requests};
use crate::cell::properties::Property;
use crate::cell::{Cell, Layer, Offload, Subject};
use crate::measure::{CellSummary, Summary};
use crate::report::axis;
use crate::report::format;
use crate::report::model::{Block, Column, Group, Panel, Table};
use crate::report::series::{Kind, Series};

struct Layers<'a> {
    path: &'a CellSummary,
    loopback: Option<&'a CellSummary>,
    device: Option<&'a CellSummary>,
    stack: Option<&'a CellSummary>,
    /// In the place of the stack, behind a second device.
    kernel: Option<&'a CellSummary>,
}

/// A chart and a table, if any layer was measured alone.
pub(super) fn blocks(one: &Series) -> Vec<Block> {
    if one.kind() != Kind::Streams && !one.is_forward() {
        return Vec::new();
    }
    let paths = paths(&one.summary);
    if paths.is_empty() {
        return Vec::new();
    }
    let cells = axis::cells(paths.iter().map(|layers| layers.path));
    let axes = axis::differing(&cells);
    let chart = charts::of_panels(
        vec![Panel { axis: charts::THROUGHPUT, groups: groups(&paths, &axes) }],
        "Throughput of each layer alone and of the whole path",
        "From above: the kernel’s TCP over its loopback, without a device, which is an upper bound; the device with packets that the \
         kernel sends back, without TCP; the kernel’s TCP behind the device; each stack alone over a link in memory; and the whole \
         path, client to stack.",
    );
    let text = Block::Text("Each layer alone, median Gbps:".to_owned());
    vec![Block::Chart(chart), text, Block::Table(table(one, &paths, &axes))]
}

fn paths(summary: &Summary) -> Vec<Layers<'_>> {
    let find = |cell: &Cell| summary.cells.iter().find(|row| row.cell == *cell);
    let paths = summary.cells.iter().filter_map(|path| {
        let Subject::Path(stack) = path.cell.subject() else { return None };
        let alone = |layer, netstack| Cell { layer, netstack, ..path.cell.clone() };
        // Loopback has no device, so it does not have the properties of one.
        let (offload, mtu, window) = (Offload::Auto, None, None);
        Some(Layers {
            path,
            loopback: find(&Cell { offload, mtu, window, ..alone(Layer::Loopback, None) }),
            device: find(&Cell { mode: None, ..alone(Layer::Device, None) }),
            stack: find(&alone(Layer::Stack, Some(stack))),
            kernel: summary.cells.iter().find(|row| is_kernel_of(&path.cell, &row.cell)),
        })
    });
    paths.filter(|layers| layers.loopback.or(layers.device).or(layers.stack).is_some()).collect()
}

fn table(one: &Series, paths: &[Layers<'_>], axes: &[&Property]) -> Table {
    let mut table = Table::new(format!("Layers of {}", one.label));
    for axis in axes {
        let values = paths.iter().map(|layers| axis.value(&layers.path.cell));
        table.push(Column::property(axis.title, axis.is_number), values);
    }
    let mut push = |title, value: &dyn Fn(&Layers<'_>) -> Option<String>| {
        table.push(Column::new(title, true), paths.iter().map(value));
    };
    let figure = |row: Option<&CellSummary>| row.map(format::figure_or_failures);
    push("loopback", &|layers| figure(layers.loopback));
    push("device", &|layers| figure(layers.device));
    push("kernel behind it", &|layers| figure(layers.kernel));
    push("stack in memory", &|layers| figure(layers.stack));
    push("path", &|layers| figure(Some(layers.path)));
    push("of stack", &|layers| {
        let stack = layers.stack?.ranked().filter(|stack| *stack > 0.0)?;
        Some(format!("{:.0} %", layers.path.ranked()? / stack * 100.0))
    });
    table
}

/// A group of bars for each piece of work and runtime. The layers that all stacks share are at its top.
fn groups(paths: &[Layers<'_>], axes: &[&Property]) -> Vec<Group> {
    let is_first = |(index, work): &(usize, &Layers<'_>)| {
        !paths[..*index].iter().any(|earlier| is_same(&earlier.path.cell, &work.path.cell))
    };
    let groups = paths.iter().enumerate().filter(is_first).map(|(_, work)| {
        let mine = || paths.iter().filter(|layers| is_same(&layers.path.cell, &work.path.cell));
        let mut rows: Vec<&CellSummary> = Vec::new();
        rows.extend(mine().find_map(|layers| layers.loopback));
        rows.extend(mine().find_map(|layers| layers.device));
        rows.extend(mine().find_map(|layers| layers.kernel));
        rows.extend(mine().flat_map(|layers| [layers.stack, Some(layers.path)]).flatten());
        let bars = rows.into_iter().map(|row| charts::bar(name(row.cell.subject()), row)).collect();
        let title = axis::phrase(&work.path.cell, axes.iter().copied().filter(|axis| axis.name != "netstack"));
        Group { title, bars, references: Vec::new() }
    });
    groups.collect()
}

/// Whether a cell has the kernel's TCP in the place of a path's stack.
pub(super) fn is_kernel_of(path: &Cell, cell: &Cell) -> bool {
    cell.subject() == Subject::Kernel && requests::is_rival(&path.with_subject_of(cell), cell)
}

fn is_same(cell: &Cell, other: &Cell) -> bool {
    cell.has_stack_settings_of(other) && cell.same_work(other)
}

fn name(subject: Subject) -> String {
    match subject {
        Subject::Stack(stack) => format!("{stack}, in memory"),
        Subject::Path(stack) => format!("{stack}, whole path"),
        Subject::Loopback => "kernel, loopback".to_owned(),
        Subject::Kernel => "kernel, two devices".to_owned(),
        subject => subject.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::run;

    #[test]
    fn a_path_is_beside_its_layers() {
        let runs = [
            run("--layer loopback -m reader", 50.0),
            run("--layer device --offload on", 60.0),
            run("-n kernel -m reader --offload on", 20.0),
            run("-n kernel -m reader --offload on --loss 1%", 2.0),
            run("--layer stack -n smoltcp -m reader --offload on", 40.0),
            run("-n smoltcp -m reader --offload on", 30.0),
            // Nothing below it was measured alone but the kernel's TCP.
            run("-n lwip -m reader --offload off", 2.0),
            // No layer was measured alone like these.
            run("-n lwip -m reader --offload off --loss 1%", 1.0),
            run("-n smoltcp -m reader --offload on --workarounds none", 1.0),
        ];
        let blocks = blocks(&Series::split("runs", &runs, &[])[0]);
        let [.., Block::Table(table)] = &blocks[..] else { unreachable!() };
        assert_eq!(
            table.rows,
            [
                ["lwip", "off", "50.00", "–", "–", "–", "2.00", "–"],
                ["smoltcp", "on", "50.00", "60.00", "20.00", "40.00", "30.00", "75 %"]
            ]
        );
    }
}
