//! What a series comes to, in a sentence.

use super::axis::{self, Axis};
use super::{Series, format};
use crate::plan::Mode;
use crate::sample::{Cell, FEWEST_RUNS};

/// The sentence. `name` says of which series it is, where there are several.
pub(super) fn finding(series: &Series, name: Option<&str>) -> String {
    let phrases: Vec<_> = [Mode::Reader, Mode::Writer].into_iter().filter_map(|mode| fastest(series, mode)).collect();
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
fn fastest(series: &Series, mode: Mode) -> Option<String> {
    let all = series.main_rows();
    let rows = all.iter().filter_map(|row| Some((row, row.estimate?))).filter(|(row, _)| row.cell.mode == Some(mode));
    let rows: Vec<_> = rows.collect();
    let (best, estimate) = rows.iter().max_by(|(_, left), (_, right)| left.median.total_cmp(&right.median)).copied()?;
    let cells: Vec<_> = all.iter().map(|row| &row.cell).collect();
    let settings = axis::differing(&cells).into_iter().filter(|axis| !matches!(axis, Axis::Stack | Axis::Mode));
    let settings = match axis::phrase(&best.cell, settings) {
        settings if settings.is_empty() || best.cell.netstack.is_none() => String::new(),
        settings => format!(" with {settings}"),
    };
    let rivals: Vec<_> = rows.iter().filter(|(row, _)| is_rival(&row.cell, &best.cell)).collect();
    let fewest = rivals.iter().map(|(row, _)| row.gbps.len()).chain([best.gbps.len()]).min().unwrap_or_default();
    let doubt = if fewest < FEWEST_RUNS {
        let plural = if fewest == 1 { " is" } else { "s are" };
        format!(", though {fewest} run{plural} too few to be sure")
    } else {
        let close = rivals.iter().filter(|(_, other)| other.high >= estimate.low).map(|(row, _)| name(&row.cell));
        let mut close: Vec<_> = close.collect();
        close.dedup();
        if close.is_empty() { String::new() } else { format!(", not told apart from {}", close.join(" and ")) }
    };
    Some(format!(
        "{mode} is {} at {} Gbps ({}){settings}{doubt}",
        name(&best.cell),
        format::gbps(estimate.median),
        format::interval(estimate)
    ))
}

/// Whether a cell is another stack's at the same work: it differs in stack and runtime alone.
fn is_rival(cell: &Cell, best: &Cell) -> bool {
    cell.netstack != best.netstack && cell.same_work(best)
}

fn name(cell: &Cell) -> String {
    cell.netstack.map_or_else(|| cell.layer.to_string(), |stack| stack.to_string())
}
