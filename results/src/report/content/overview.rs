//! A short table of a series, and several series side by side.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::published;
use crate::cell::Cell;
use crate::plural;
use crate::report::axis::{self, Shared};
use crate::report::format::{self, unique};
use crate::report::model::{Block, Column, Table};
use crate::report::series::{Kind, Series};

pub(super) fn blocks(one: &Series) -> Vec<Block> {
    let (key, table) = if one.is_forward() {
        (published::KEY, published::table(one))
    } else {
        (&*format!("Median {}, and its 95 % interval:", one.unit()), main_table(one))
    };
    vec![Block::Text(key.to_owned()), Block::Table(table), Block::Text(in_every_run(one))]
}

pub(super) fn in_every_run(one: &Series) -> String {
    let mut shared = one.shared();
    shared.extend(true, [runs(one), one.machine()]);
    shared.sentences()
}

fn runs(one: &Series) -> String {
    let counts = || one.summary.cells.iter().map(|row| row.runs);
    match (counts().min(), counts().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} runs of each cell"),
        (runs, _) => format!("{} of each cell", plural(runs.unwrap_or_default(), "run")),
    }
}

pub(super) fn shared(all: &[Series]) -> Option<String> {
    let shared = Shared::of(&axis::cells(all.iter().flat_map(Series::main_rows)));
    Some(shared.sentences()).filter(|sentences| !sentences.is_empty())
}

fn main_table(one: &Series) -> Table {
    let rows = one.main_rows();
    let cells = axis::cells(rows.iter().copied());
    let (across, down): (Vec<_>, Vec<_>) =
        axis::differing(&cells).into_iter().partition(|axis| matches!(axis.name, "offload" | "runtime"));
    let head = |cell: &Cell| axis::phrase(cell, across.iter().rev().copied());
    let side = |cell: &Cell| down.iter().map(|axis| axis.text(cell)).collect::<Vec<_>>();
    // Offload on comes first: it is the default if the device can offload.
    let mut by_head = cells.clone();
    by_head.sort_by_key(|cell| (Reverse(cell.offload), cell.runtime));
    let (heads, sides) = (unique(by_head.iter().map(|cell| head(cell))), unique(cells.iter().map(|cell| side(cell))));
    let mut table = Table::new(format!("Overview of {}", one.label));
    for (index, axis) in down.iter().enumerate() {
        table.push(Column::property(axis.title, axis.is_number), sides.iter().map(|side| side[index].clone()));
    }
    for wanted in heads {
        let figure = |place: &Vec<String>| {
            let row = rows.iter().find(|row| head(&row.cell) == wanted && side(&row.cell) == *place);
            row.map(|row| format::median_or_failures(row))
        };
        let title = if wanted.is_empty() { one.unit() } else { wanted.clone() };
        table.push(Column::new(title, true), sides.iter().map(figure));
    }
    table
}

pub(super) fn side_by_side(all: &[Series]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for kind in all.iter().map(Series::kind).collect::<BTreeSet<_>>() {
        let series: Vec<_> = all.iter().filter(|one| one.kind() == kind).collect();
        if series.len() > 1 {
            let of = if kind == Kind::Streams { "stacks" } else { kind.name() };
            blocks.push(Block::Text(format!("Median {} of {of}, and its 95 % interval:", series[0].unit())));
            blocks.push(Block::Table(compared(of, &series)));
        }
    }
    blocks
}

fn compared(of: &str, all: &[&Series]) -> Table {
    let mut cells = axis::cells(all.iter().flat_map(|one| &one.summary.cells));
    cells.sort_by_key(|cell| cell.place());
    cells.dedup();
    let mut table = Table::new(format!("Side by side: {of}"));
    if all.iter().any(|one| one.is_forward()) {
        published::names(&cells, &mut table);
    } else {
        axis::push_differing(&mut table, &cells, &[]);
    }
    for one in all {
        let figures = cells.iter().map(|cell| {
            let row = one.summary.cells.iter().find(|row| row.cell == **cell);
            row.map(format::median_or_failures)
        });
        table.push(Column::new(one.label.clone(), true), figures);
    }
    table
}
