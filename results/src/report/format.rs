//! Figures and words as a reader sees them.

use std::mem::{self, Discriminant};

use netstacks::{StackKind, Workarounds};

use crate::cell::properties::PROPERTIES;
use crate::cell::{Cell, Protocol, Subject};
use crate::measure::metric::{Metric, speed_of};
use crate::measure::{CellSummary, Estimate, Summary, grouped};
use crate::sample::{AT_LIMIT, Warning};

pub(super) const UNKNOWN: &str = "–";

const DETAIL_CHARACTERS: usize = 200;

pub(super) fn speed(row: &CellSummary, speed: f64) -> String {
    speed_of(&row.cell).write(speed)
}

pub(super) fn figure(row: &CellSummary, metric: &Metric) -> Option<String> {
    row.figure(metric.name).map(|value| metric.write(value))
}

/// The interval of a median, or the range, which is called so; a single run has none.
pub(super) fn interval(row: &CellSummary) -> Option<String> {
    Some(ends(&row.estimate.filter(|_| row.speeds.len() > 1)?, |end| speed(row, end)))
}

pub(super) fn ends(estimate: &Estimate, write: impl Fn(f64) -> String) -> String {
    let name = if estimate.is_range { "range " } else { "" };
    format!("{name}{} to {}", write(estimate.low), write(estimate.high))
}

pub(super) fn percent(ratio: f64) -> String {
    // A rounded zero has no sign.
    let percent = ((ratio - 1.0) * 1000.0).round() / 10.0;
    if percent == 0.0 { "0.0".to_owned() } else { format!("{percent:+.1}") }
}

/// How the runs of a cell failed: `3 of 10 stalled`. Empty if none failed.
pub(super) fn failures(row: &CellSummary) -> String {
    let runs = row.runs;
    let kinds: Vec<_> = row.failures.iter().map(|(status, count)| format!("{count} of {runs} {status}")).collect();
    kinds.join(", ")
}

/// How the runs failed, and behind it the figure of those that did not. A percentile that no run has alone is of all together.
pub(super) fn behind_failures(row: &CellSummary, figure: Option<String>) -> String {
    let figure = figure.or_else(|| self::figure(row, speed_of(&row.cell)));
    let figure = figure.map(|figure| if row.is_at_upstream_limit() { format!("{figure} {AT_LIMIT}") } else { figure });
    let words = [Some(failures(row)).filter(|text| !text.is_empty()), figure].into_iter().flatten();
    let words: Vec<_> = words.collect();
    if words.is_empty() { UNKNOWN.to_owned() } else { words.join("; ") }
}

/// The median, behind the failures.
pub(super) fn figure_or_failures(row: &CellSummary) -> String {
    behind_failures(row, row.estimate.map(|estimate| speed(row, estimate.median)))
}

/// The same, and its interval if there is one.
pub(super) fn median_or_failures(row: &CellSummary) -> String {
    let median = figure_or_failures(row);
    interval(row).map_or_else(|| median.clone(), |interval| format!("{median} ({interval})"))
}

pub(super) fn head(metric: &Metric, cells: &[&Cell]) -> String {
    with_sides(&format!("{} {}", metric.title, metric.unit), cells).trim().to_owned()
}

pub(super) fn with_sides(text: &str, cells: &[&Cell]) -> String {
    let [client, subject] = sides(cells);
    let is_quic = cells.iter().all(|cell| cell.protocol == Protocol::Quic);
    let sender = if is_quic { "quinn" } else { "the kernel" };
    text.replace("{client}", client).replace("{subject}", subject).replace("{sender}", sender)
}

pub(super) fn sides(cells: &[&Cell]) -> [&'static str; 2] {
    let name = |cell: &&Cell| match cell.subject() {
        Subject::Loopback | Subject::Kernel => "server",
        Subject::Device => "device",
        Subject::Stack(_) | Subject::Path(_) => "stack",
        Subject::Program(_) | Subject::Given => "program",
        Subject::Forward(_) => "forwarder",
    };
    // A table of stacks may also have their layers.
    let mut names: Vec<_> = cells.iter().map(name).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        names.retain(|name| !matches!(*name, "server" | "device"));
    }
    let client = if cells.iter().all(|cell| cell.subject().is_carrier()) { "load" } else { "client" };
    [client, if let [name] = names.as_slice() { name } else { "subject" }]
}

pub(super) type Stack = (StackKind, Workarounds);

pub(super) fn name_of((stack, workarounds): Stack) -> String {
    match workarounds {
        Workarounds::ALL => stack.to_string(),
        Workarounds::NONE => format!("{stack}, as published"),
        some => format!("{stack}, workarounds {some}"),
    }
}

/// A cell in a line of text, with its row number if the published table has it.
pub(super) fn name(cell: &Cell) -> String {
    match cell.forwarder().and_then(crate::cell::Forwarder::row) {
        Some(row) => format!("row {row} ({cell})"),
        None => cell.to_string(),
    }
}

/// A cell's full name, which also has the window and the buffer.
pub(super) fn full_name(cell: &Cell) -> String {
    let sizes = PROPERTIES.iter().filter(|property| matches!(property.option, "window" | "buffer"));
    let sizes = sizes.filter_map(|property| property.phrase(cell));
    [cell.to_string()].into_iter().chain(sizes).collect::<Vec<_>>().join(" ")
}

pub(super) fn details(summary: &Summary) -> Vec<String> {
    let failed = summary.cells.iter().filter(|row| !row.failures.is_empty());
    let lines = failed.map(|row| {
        let detail = row.detail.as_deref().map(|detail| format!(": {}", shortened(detail))).unwrap_or_default();
        format!("{}: {}{detail}", name(&row.cell), failures(row))
    });
    lines.collect()
}

/// Each of the values once, in their order.
pub(super) fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    grouped(values, T::eq).into_iter().filter_map(|group| group.into_iter().next()).collect()
}

/// The names, with a number behind each one that comes several times.
pub(super) fn told_apart(names: &[String]) -> Vec<String> {
    let number = |(index, name): (usize, &String)| {
        let is_alone = names.iter().filter(|other| *other == name).count() == 1;
        let earlier = names[..index].iter().filter(|other| *other == name).count();
        if is_alone { name.clone() } else { format!("{name} ({})", earlier + 1) }
    };
    names.iter().enumerate().map(number).collect()
}

/// A text without line feeds and other control characters. It cannot control a terminal or break a table.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split(|character: char| character.is_control() || character == ' ');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A text of one line, cut where it is too long for a table.
pub(super) fn shortened(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(DETAIL_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The warnings: first those about all cells, then each kind once, with the number of cells that have it.
pub(super) fn warnings(summary: &Summary) -> Vec<String> {
    let all = summary.cells.iter().flat_map(|row| row.warnings.iter().map(|warning| (&row.cell, warning)));
    let kinds = grouped(all, |(_, first), (_, warning)| kind(first) == kind(warning));
    let cells = summary.cells.len();
    let of_cells = kinds.into_iter().map(|group| match group[..] {
        [(cell, warning)] => format!("{}: {warning}", name(cell)),
        _ => format!("{} of {cells} cells, the first {}: {}", group.len(), name(group[0].0), group[0].1),
    });
    let of_all = summary.warnings.iter().map(ToString::to_string);
    of_all.chain(of_cells).map(|line| one_line(&line)).collect()
}

fn kind(warning: &Warning) -> Discriminant<Warning> {
    match warning {
        Warning::InRuns(warning, ..) => kind(warning),
        warning => mem::discriminant(warning),
    }
}
