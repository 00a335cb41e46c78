//! Forwarders as the published table has them.

use std::io::{self, Write};
use std::num::NonZeroU16;

use forwarders::{ForwardConfig as Way, Handoff as Hop, Io, Offload};

use super::axis;
use super::series::Series;
use super::table::{Column, Sheet};
use super::{UNKNOWN, format, markdown};
use crate::measure::CellSummary;
use crate::plan::Forwarder;
use crate::sample::{Cell, Sample};

/// What stands for a yes and a no.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    yes: &'static str,
    no: &'static str,
}

impl Signs {
    /// Those of the published table.
    pub(super) const PUBLISHED: Self = Self { yes: "✅", no: "❌" };
    /// For where nobody knows what fonts there are.
    pub(super) const WORDS: Self = Self { yes: "yes", no: "no" };
}

/// A figure's column: its title and what a row has in it.
type Figure = (&'static str, fn(&CellSummary) -> Option<String>);

/// The published columns after those that say what was run, and one that it has not.
const FIGURES: [Figure; 7] = [
    ("Gbps", |row| Some(rate(row))),
    ("Retr", |row| row.retransmits.map(format::count)),
    ("CPU Avg", |row| row.cpu_percent.map(|load| format::load(load.average))),
    ("CPU Max", |row| row.cpu_percent.map(|load| format::load(load.maximum))),
    ("Mem Avg", |row| row.memory_bytes.map(|load| format::megabytes(load.average))),
    ("Mem Max", |row| row.memory_bytes.map(|load| format::megabytes(load.maximum))),
    ("Reord.", |row| row.reordered.map(format::count)),
];

/// What the figures are.
pub(super) const KEY: &str = "Median Gbps, and its 95 % interval where there are several runs; median \
    retransmissions and reordered packets; CPU in percent of one processor and memory in MB, 10⁶ bytes, both of the \
    forwarder: the median of the averages, and the most of any second.";

/// Writes the table that is shown once every row has been run, in Markdown, with what failed and what the
/// reader should know. Samples of stacks are left out.
///
/// # Errors
///
/// The writer's own.
pub fn forward_table(samples: &[Sample], out: &mut impl Write) -> io::Result<()> {
    let samples: Vec<_> = samples.iter().filter(|sample| sample.cell.forward().is_some()).cloned().collect();
    if !samples.is_empty() {
        markdown::overview_alone(&Series::of_samples(String::new(), samples), out)?;
    }
    out.flush()
}

/// The rows of a series as the published table has them.
pub(super) fn overview(one: &Series, signs: Signs) -> Sheet {
    let cells = axis::cells(&one.summary);
    let mut sheet = names(&cells, signs);
    sheet.columns.extend(FIGURES.iter().map(|(title, _)| Column::new(*title, true)));
    for (values, row) in sheet.rows.iter_mut().zip(&one.summary.cells) {
        let figures = FIGURES.iter().map(|(_, figure)| figure(row));
        values.extend(figures.map(|value| value.unwrap_or_else(|| UNKNOWN.to_owned())));
    }
    sheet
}

/// The columns that say what was run: those of the published table, and what else differs.
pub(super) fn names(cells: &[&Cell], signs: Signs) -> Sheet {
    let settings: Vec<_> = axis::differing(cells).into_iter().filter(|axis| axis.is_setting()).collect();
    let mut columns = vec![Column::new("#", true)];
    columns.extend(["Mode", "Offload", "Channel"].map(|title| Column::new(title, false)));
    columns.extend(settings.iter().map(|axis| Column::new(axis.title(), axis.is_number())));
    let unknown = || UNKNOWN.to_owned();
    let rows = cells.iter().filter_map(|cell| {
        let forwarder = cell.forward()?.forwarder;
        let number = forwarder.row().map_or_else(unknown, |row| row.to_string());
        let mut values = vec![number, mode(forwarder), offload(forwarder, signs), channel(forwarder, signs)];
        values.extend(settings.iter().map(|axis| axis.value(cell).unwrap_or_else(unknown)));
        Some(values)
    });
    Sheet { rows: rows.collect(), columns }
}

/// What a row came to, and how its runs failed.
fn rate(row: &CellSummary) -> String {
    let failures = format::failures(row);
    match row.estimate {
        None => failures,
        Some(estimate) if failures.is_empty() => format::median(row, estimate),
        Some(estimate) => format!("{}, {failures}", format::median(row, estimate)),
    }
}

/// What the published table calls a forwarder, offload and channel aside, which have columns of their own.
fn mode(forwarder: Forwarder) -> String {
    let (io, workers, threads) = match forwarder {
        Forwarder::Rust(Way { io: Io::Sync, workers, threads, .. }) => ("Sync", workers.get(), threads),
        Forwarder::Rust(Way { io: Io::Async, workers, threads, .. }) => ("Async", workers.get(), threads),
        Forwarder::Rust(Way { io: Io::Framed, workers, threads, .. }) => ("AsyncFramed", workers.get(), threads),
        Forwarder::Go { .. } => ("Golang", 1, None),
    };
    let concurrent = match workers {
        1 => String::new(),
        2 => " (Concurrent)".to_owned(),
        workers => format!(" ({workers} Concurrent)"),
    };
    let pool = if forwarder.hop() == Hop::Pool { " + BytesPool" } else { "" };
    let threads = match threads.map(NonZeroU16::get) {
        None => String::new(),
        Some(1) => ", 1 thread".to_owned(),
        Some(threads) => format!(", {threads} threads"),
    };
    format!("{io}{concurrent}{pool}{threads}")
}

fn offload(forwarder: Forwarder, signs: Signs) -> String {
    match forwarder.offload() {
        Offload::Off => signs.no,
        Offload::On => signs.yes,
        Offload::Whole => "whole",
    }
    .to_owned()
}

fn channel(forwarder: Forwarder, signs: Signs) -> String {
    if forwarder.hop() == Hop::Direct { signs.no } else { signs.yes }.to_owned()
}

/// All of it in one name: `Sync, offload`.
pub(super) fn name(forwarder: Forwarder) -> String {
    let offload = match forwarder.offload() {
        Offload::Off => "",
        Offload::On => ", offload",
        Offload::Whole => ", whole",
    };
    let channel = if forwarder.hop() == Hop::Channel { ", channel" } else { "" };
    format!("{}{offload}{channel}", mode(forwarder))
}

/// The same with the number in front, where the published table has one.
pub(super) fn label(forwarder: Forwarder) -> String {
    let name = name(forwarder);
    forwarder.row().map_or_else(|| name.clone(), |row| format!("{row} {name}"))
}

/// What a mark of the forwarder's colour stands for.
pub(super) const fn kind(forwarder: Forwarder) -> &'static str {
    match (forwarder, forwarder.offload()) {
        (Forwarder::Go { .. }, _) => "Golang",
        (Forwarder::Rust(_), Offload::Off) => "Rust",
        (Forwarder::Rust(_), Offload::On) => "Rust, offload",
        (Forwarder::Rust(_), Offload::Whole) => "Rust, whole",
    }
}
