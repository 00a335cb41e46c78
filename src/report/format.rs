//! Figures as a reader sees them: as many digits as mean something, the same number in all rows.

use std::mem::{self, Discriminant};

use crate::measure::{CellSummary, Estimate, Summary};
use crate::sample::{Cell, Warning};

/// Why a run failed may be long; a table has room for so many characters of it.
const DETAIL_CHARACTERS: usize = 200;

pub(super) fn gbps(gbps: f64) -> String {
    format!("{gbps:.2}")
}

/// The interval of a median, which one run has not.
pub(super) fn interval(row: &CellSummary) -> Option<String> {
    let estimate = row.estimate.filter(|_| row.gbps.len() > 1)?;
    Some(format!("{:.2} to {:.2}", estimate.low, estimate.high))
}

/// CPU seconds for a gigabyte.
pub(super) fn cost(seconds: f64) -> String {
    format!("{seconds:.3}")
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Bytes in units of 10⁶.
pub(super) fn megabytes(bytes: f64) -> String {
    format!("{:.2}", bytes / 1e6)
}

/// How busy processors are, in percent of one.
pub(super) fn load(percent: f64) -> String {
    format!("{percent:.1}")
}

pub(super) fn count(count: f64) -> String {
    format!("{count:.0}")
}

pub(super) fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// How the runs of a cell failed: `3 of 10 stalled`; nothing where none did.
pub(super) fn failures(row: &CellSummary) -> String {
    let runs = runs(row);
    let kinds: Vec<_> = row.failures.iter().map(|(status, count)| format!("{count} of {runs} {status}")).collect();
    kinds.join(", ")
}

/// All runs of a cell, those that failed too.
pub(super) fn runs(row: &CellSummary) -> usize {
    row.gbps.len() + row.failures.values().sum::<usize>()
}

/// The median, and its interval where there is one.
pub(super) fn median(row: &CellSummary, estimate: Estimate) -> String {
    with_interval(row, gbps(estimate.median))
}

/// The same in a line of text.
pub(super) fn rate(row: &CellSummary, estimate: Estimate) -> String {
    with_interval(row, format!("{} Gbps", gbps(estimate.median)))
}

fn with_interval(row: &CellSummary, median: String) -> String {
    match interval(row) {
        Some(interval) => format!("{median} ({interval})"),
        None => median,
    }
}

/// A cell in a line of text, with its number where a table has one.
pub(super) fn name(cell: &Cell) -> String {
    match cell.forward().and_then(|cell| cell.forwarder.row()) {
        Some(row) => format!("row {row} ({cell})"),
        None => cell.to_string(),
    }
}

/// A line for each cell that has failures: which, how many and why the first.
pub(super) fn details(summary: &Summary) -> Vec<String> {
    let failed = summary.cells.iter().filter(|row| !row.failures.is_empty());
    let lines = failed.map(|row| {
        let detail = row.detail.as_deref().map(|detail| format!(": {}", shortened(detail))).unwrap_or_default();
        format!("{}: {}{detail}", name(&row.cell), failures(row))
    });
    lines.collect()
}

/// A text without line feeds and other control characters: no terminal obeys it, and no table breaks.
pub(super) fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split(|character: char| character.is_control() || character == ' ').collect();
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A text of one line, cut where it is too long for a table.
pub(super) fn shortened(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(DETAIL_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// What the reader should know: first what holds for all cells, then each kind of warning once, with the
/// cells that gave reason for it.
pub(super) fn warnings(summary: &Summary) -> Vec<String> {
    let mut kinds: Vec<(&Cell, &Warning, usize)> = Vec::new();
    for row in &summary.cells {
        for warning in &row.warnings {
            match kinds.iter_mut().find(|(_, first, _)| kind(first) == kind(warning)) {
                Some((_, _, count)) => *count += 1,
                None => kinds.push((&row.cell, warning, 1)),
            }
        }
    }
    let cells = summary.cells.len();
    let of_cells = kinds.into_iter().map(|(cell, warning, count)| match count {
        1 => format!("{}: {warning}", name(cell)),
        _ => format!("{count} of {cells} cells, the first {}: {warning}", name(cell)),
    });
    let of_all = summary.warnings.iter().map(ToString::to_string);
    of_all.chain(of_cells).map(|line| one_line(&line)).collect()
}

/// What the advice is about, in however many runs and whatever amount.
fn kind(warning: &Warning) -> Discriminant<Warning> {
    match warning {
        Warning::InRuns(warning, ..) => kind(warning),
        warning => mem::discriminant(warning),
    }
}
