//! What a series comes to, in a sentence.

use super::{Series, format};
use crate::plan::Mode;
use crate::sample::Cell;

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

/// The fastest cell of a mode, and the stacks whose best is not clearly below it.
fn fastest(series: &Series, mode: Mode) -> Option<String> {
    let all = series.main_rows();
    let rows = all.iter().filter_map(|row| Some((row, row.estimate?))).filter(|(row, _)| row.cell.mode == Some(mode));
    let rows: Vec<_> = rows.collect();
    let (best, estimate) = rows.iter().max_by(|(_, left), (_, right)| left.median.total_cmp(&right.median)).copied()?;
    let mut close: Vec<_> = rows
        .iter()
        .filter(|(row, other)| row.cell.netstack != best.cell.netstack && other.high >= estimate.low)
        .map(|(row, _)| name(&row.cell))
        .collect();
    close.dedup();
    let close = if close.is_empty() { String::new() } else { format!(", not told apart from {}", close.join(" and ")) };
    Some(format!(
        "{mode} is {} at {} Gbps ({}{close})",
        name(&best.cell),
        format::gbps(estimate.median),
        format::interval(estimate)
    ))
}

fn name(cell: &Cell) -> String {
    cell.netstack.map_or_else(|| cell.layer.to_string(), |stack| stack.to_string())
}
