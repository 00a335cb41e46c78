//! What a series comes to, in a sentence.

use netstacks::StackKind;

use super::axis::{self, Axis};
use super::{Series, format, forward, svg};
use crate::measure::{CellSummary, Estimate};
use crate::plan::Mode;
use crate::sample::{Cell, FEWEST_RUNS, StackCell};

/// A cell that has a figure.
type Figure<'a> = (&'a CellSummary, Estimate);

/// The row of the published table that others are held against: plain calls, one thread each way, and
/// super-packets that are cut and joined.
const REFERENCE_ROW: usize = 10;

/// The sentence. `name` says of which series it is, where there are several.
pub(super) fn finding(series: &Series, name: Option<&str>) -> String {
    let phrases: Vec<_> = if series.is_forward() {
        forwarders(series)
    } else {
        [Mode::Reader, Mode::Writer].into_iter().filter_map(|mode| fastest_stack(series, mode)).collect()
    };
    let sentence = match phrases.as_slice() {
        [] => "no run came to a figure".to_owned(),
        phrases => format!("the fastest {}", phrases.join("; the fastest ")),
    };
    let sentence = match name {
        Some(name) => format!("{name}: {sentence}."),
        None => format!("{sentence}."),
    };
    let mut characters = sentence.chars();
    match characters.next().filter(|_| name.is_none()) {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => sentence,
    }
}

/// The fastest cell of a mode and what it was run with, and the stacks whose best at the same work is not
/// clearly below it; or that there are too few runs to say so.
fn fastest_stack(series: &Series, mode: Mode) -> Option<String> {
    let all = series.main_rows();
    let is_of_mode = |row: &CellSummary| row.cell.stack().is_some_and(|cell| cell.mode == Some(mode));
    let rows = figures(all.iter().copied().filter(|row| is_of_mode(row)));
    let (best, estimate) = fastest(&rows)?;
    let cells: Vec<_> = all.iter().map(|row| &row.cell).collect();
    let settings = axis::differing(&cells).into_iter().filter(|axis| !matches!(axis, Axis::Stack | Axis::Mode));
    let settings = match axis::phrase(&best.cell, settings) {
        settings if settings.is_empty() || stack(&best.cell).is_none() => String::new(),
        settings => format!(" with {settings}"),
    };
    let rivals: Vec<_> = rows.iter().copied().filter(|(row, _)| is_rival(&row.cell, &best.cell)).collect();
    Some(format!(
        "{mode} is {} at {}{settings}{}",
        name(&best.cell),
        format::rate(best, estimate),
        doubt((best, estimate), &rivals)
    ))
}

/// The fastest forwarder at each piece of work, how many times as fast as the reference it is, and those that
/// are not clearly below it.
fn forwarders(series: &Series) -> Vec<String> {
    let cells = axis::cells(&series.summary);
    let settings: Vec<_> = axis::differing(&cells).into_iter().filter(|axis| axis.is_setting()).collect();
    let phrases = svg::jobs(&cells).into_iter().filter_map(|job| {
        let rows = figures(series.summary.cells.iter().filter(|row| row.cell.same_work(&job)));
        let (best, estimate) = fastest(&rows)?;
        let settings = match axis::phrase(&job, settings.iter().copied()) {
            settings if settings.is_empty() => String::new(),
            settings => format!("with {settings} "),
        };
        let rivals: Vec<_> = rows.iter().copied().filter(|(row, _)| row.cell != best.cell).collect();
        Some(format!(
            "{settings}is {} at {}{}{}",
            name(&best.cell),
            format::rate(best, estimate),
            times_reference((best, estimate), &rivals),
            doubt((best, estimate), &rivals)
        ))
    });
    phrases.collect()
}

/// How many times as fast as the reference the fastest is; nothing where it is itself, or was not run.
fn times_reference((_, best): Figure<'_>, others: &[Figure<'_>]) -> String {
    let is_reference =
        |row: &CellSummary| row.cell.forward().and_then(|cell| cell.forwarder.row()) == Some(REFERENCE_ROW);
    let reference = others.iter().find(|(row, other)| is_reference(row) && other.median > 0.0);
    let times = |(_, other): &Figure<'_>| format!(", {:.2} times row {REFERENCE_ROW}", best.median / other.median);
    reference.map(times).unwrap_or_default()
}

fn figures<'a>(rows: impl Iterator<Item = &'a CellSummary>) -> Vec<Figure<'a>> {
    rows.filter_map(|row| Some((row, row.estimate?))).collect()
}

fn fastest<'a>(rows: &[Figure<'a>]) -> Option<Figure<'a>> {
    rows.iter().max_by(|(_, left), (_, right)| left.median.total_cmp(&right.median)).copied()
}

/// Why the fastest may not be: too few runs, or rivals whose intervals reach into its own.
fn doubt((best, estimate): Figure<'_>, rivals: &[Figure<'_>]) -> String {
    let fewest = rivals.iter().map(|(row, _)| row.gbps.len()).chain([best.gbps.len()]).min().unwrap_or_default();
    if fewest < FEWEST_RUNS {
        let plural = if fewest == 1 { " is" } else { "s are" };
        return format!(", though {fewest} run{plural} too few to be sure");
    }
    let close = rivals.iter().filter(|(_, other)| other.high >= estimate.low).map(|(row, _)| name(&row.cell));
    let mut close: Vec<_> = close.collect();
    close.dedup();
    if close.is_empty() { String::new() } else { format!(", not told apart from {}", close.join(" and ")) }
}

/// Whether a cell is another stack's at the same work: it differs in stack and runtime alone.
fn is_rival(cell: &Cell, best: &Cell) -> bool {
    stack(cell) != stack(best) && cell.same_work(best)
}

fn stack(cell: &Cell) -> Option<StackKind> {
    cell.stack()?.netstack
}

fn name(cell: &Cell) -> String {
    match cell {
        Cell::Stack(cell) => StackCell::name(cell),
        Cell::Forward(cell) => {
            let name = forward::name(cell.forwarder);
            cell.forwarder.row().map_or_else(|| name.clone(), |row| format!("row {row} ({name})"))
        }
    }
}
