//! A row for each cell: as plain text, and as the sheet that other formats write in their own way.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::UNKNOWN;
use super::axis;
use super::format;
use crate::measure::{CellSummary, Summary};

/// A table before it has a format.
pub(super) struct Sheet {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A column's head.
pub(super) struct Column {
    pub(super) title: String,
    /// Whether it holds numbers, which stand at the right.
    pub(super) is_number: bool,
    /// Whether it is left out first where there is no room.
    may_go: bool,
}

impl Column {
    pub(super) fn new(title: impl Into<String>, is_number: bool) -> Self {
        Self { title: title.into(), is_number, may_go: false }
    }
}

/// A figure's column: its title and what a row has in it.
type Figure = (&'static str, fn(&CellSummary) -> Option<String>);

/// The columns after those that say what was run, of stacks.
const STACK_FIGURES: [Figure; 10] = [
    ("Gbps", |row| Some(row.estimate.map_or_else(|| format::failures(row), |estimate| format::gbps(estimate.median)))),
    ("95 % interval", format::interval),
    ("runs", |row| Some(row.gbps.len().to_string())),
    ("client s/GB", |row| row.client_cpu_per_gb.map(format::cost)),
    ("stack s/GB", |row| row.subject_cpu_per_gb.map(format::cost)),
    ("peak MiB", |row| row.peak_rss_bytes.map(format::mebibytes)),
    ("retrans.", |row| row.retransmits.map(format::count)),
    ("bytes/packet", |row| row.bytes_per_packet.map(format::count)),
    ("of fastest", |row| row.of_fastest.map(format::percent)),
    ("of other mode", |row| row.of_other_mode.map(format::percent)),
];

/// The same of forwarders.
const FORWARD_FIGURES: [Figure; 15] = [
    STACK_FIGURES[0],
    STACK_FIGURES[1],
    STACK_FIGURES[2],
    ("CPU avg %", |row| row.cpu_percent.map(|load| format::load(load.average))),
    ("CPU max %", |row| row.cpu_percent.map(|load| format::load(load.maximum))),
    ("load s/GB", |row| row.client_cpu_per_gb.map(format::cost)),
    ("forwarder s/GB", |row| row.subject_cpu_per_gb.map(format::cost)),
    ("mem. avg MB", |row| row.memory_bytes.map(|load| format::megabytes(load.average))),
    ("mem. max MB", |row| row.memory_bytes.map(|load| format::megabytes(load.maximum))),
    ("peak MB", |row| row.peak_rss_bytes.map(|bytes| format::megabytes(bytes as f64))),
    ("retrans.", |row| row.retransmits.map(format::count)),
    ("reordered", |row| row.reordered.map(format::count)),
    ("drops", |row| row.device_drops.map(format::count)),
    ("bytes/packet", |row| row.bytes_per_packet.map(format::count)),
    ("of fastest", |row| row.of_fastest.map(format::percent)),
];

/// How many of them, from the first, a table is nothing without.
const ESSENTIAL: usize = 2;

/// The sheet of a summary. What is alike for all rows has no column; see [`axis::shared`].
pub(super) fn sheet(summary: &Summary) -> Sheet {
    let axes = axis::differing(&axis::cells(summary));
    let all: &[Figure] =
        if summary.cells.iter().any(|row| row.cell.stack().is_some()) { &STACK_FIGURES } else { &FORWARD_FIGURES };
    let mixed = |row: &CellSummary| !row.failures.is_empty() && row.estimate.is_some();
    let failed = summary.cells.iter().any(mixed);
    let mut columns: Vec<_> = axes.iter().map(|axis| Column::new(axis.title(), axis.is_number())).collect();
    let figures = all.iter().enumerate();
    columns
        .extend(figures.map(|(index, (title, _))| Column { may_go: index >= ESSENTIAL, ..Column::new(*title, true) }));
    if failed {
        columns.push(Column::new("failed", false));
    }
    let rows = summary.cells.iter().map(|row| {
        let mut values: Vec<_> = axes.iter().map(|axis| axis.value(&row.cell)).collect();
        values.extend(all.iter().map(|(_, figure)| figure(row)));
        if failed {
            values.push(mixed(row).then(|| format::failures(row)));
        }
        values.into_iter().map(|value| value.unwrap_or_else(|| UNKNOWN.to_owned())).collect()
    });
    Sheet { columns, rows: rows.collect() }
}

/// Writes a table, with what belongs to it, for a terminal of `width` columns. Where that is too narrow
/// for all figures, those at the right are left out. `None` is as wide as it gets.
///
/// # Errors
///
/// The writer's own.
pub fn table(summary: &Summary, width: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    let mut sheet = sheet(summary);
    let mut lines = lines(&sheet);
    let is_too_wide = |lines: &[String]| {
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        width.is_some_and(|width| widest > width.into())
    };
    let mut left_out = Vec::new();
    while is_too_wide(&lines) {
        let Some(index) = sheet.columns.iter().rposition(|column| column.may_go) else { break };
        left_out.insert(0, sheet.columns.remove(index).title);
        sheet.rows.iter_mut().for_each(|row| drop(row.remove(index)));
        lines = self::lines(&sheet);
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    if !left_out.is_empty() {
        writeln!(out, "in a wider terminal also: {}", left_out.join(", "))?;
    }
    let shared = axis::shared(&axis::cells(summary));
    if !shared.is_empty() {
        writeln!(out, "in every run: {}", shared.join(", "))?;
    }
    for line in format::details(summary) {
        writeln!(out, "failed: {line}")?;
    }
    for line in format::warnings(summary) {
        writeln!(out, "warning: {line}")?;
    }
    out.flush()
}

/// A sheet as text.
fn lines(sheet: &Sheet) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(sheet.columns.iter().map(|column| column.title.as_str()));
    for row in &sheet.rows {
        table.add_row(row.iter().map(|value| format::one_line(value)));
    }
    align(&mut table, sheet);
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Numbers to the right.
pub(super) fn align(table: &mut Table, sheet: &Sheet) {
    for (index, column) in sheet.columns.iter().enumerate() {
        if let Some(target) = table.column_mut(index).filter(|_| column.is_number) {
            target.set_cell_alignment(CellAlignment::Right);
        }
    }
}
