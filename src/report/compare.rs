//! Two files side by side, as text that a log of CI can hold.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::format;
use crate::measure::{CellChange, Change, Comparison, Difference, Differences, SIGNIFICANCE, Side, Verdict};
use crate::plan::Layer;
use crate::sample::Cell;

/// The columns, and whether they hold numbers, which stand at the right. Of the second and the fourth see
/// [`NORMALISED`].
const COLUMNS: [(&str, bool); 9] = [
    ("cell", false),
    ("old Gbps", true),
    ("runs", true),
    ("new Gbps", true),
    ("runs", true),
    ("change", true),
    ("95 % interval", true),
    ("p", true),
    ("verdict", false),
];

/// What the columns of figures are called where those are by the speed of loopback.
const NORMALISED: [(usize, &str); 2] = [(1, "old normalised"), (3, "new normalised")];

/// What stands where there is no figure.
const NONE: &str = "-";

/// Writes what is not alike, a row for each cell, and what came of it.
///
/// # Errors
///
/// The writer's own.
pub fn comparison(comparison: &Comparison, differences: &Differences, out: &mut impl Write) -> io::Result<()> {
    notes(comparison, differences, out)?;
    writeln!(out, "{}\n", table(comparison).trim_fmt())?;
    writeln!(out, "{}", counts(comparison))?;
    advice(comparison, out)?;
    out.flush()
}

fn notes(comparison: &Comparison, differences: &Differences, out: &mut impl Write) -> io::Result<()> {
    for (verdict, what) in
        [(Verdict::OnlyOld, "of the old file not in the new one"), (Verdict::NotRun, "that could not be run")]
    {
        let count = comparison.count(verdict);
        if count > 0 {
            writeln!(out, "note: not compared: {} {what}", plural(count, "cell"))?;
        }
    }
    if comparison.relative {
        writeln!(out, "note: the figures are normalised: a run by how fast loopback was in its round")?;
    }
    let notes = [
        ("the machines differ", &differences.machine, "; a comparison across machines is not one of programs"),
        ("the programs differ", &differences.program, ""),
        ("the runs were made in different ways", &differences.settings, "; that alone may be the change"),
    ];
    for (what, fields, advice) in notes.into_iter().filter(|(_, fields, _)| !fields.is_empty()) {
        let fields: Vec<_> = fields.iter().map(difference).collect();
        writeln!(out, "note: {what}: {}{advice}", fields.join(", "))?;
    }
    Ok(())
}

fn difference(field: &Difference) -> String {
    let Difference { name, old, new } = field;
    let [old, new] = [old, new].map(|values| format::one_line(&values.join(" or ")));
    if old == new { format!("{name} is {new} in both") } else { format!("{name} was {old} and is {new}") }
}

fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new();
    let mut titles = COLUMNS.map(|(title, _)| title);
    for (column, title) in NORMALISED.into_iter().filter(|_| comparison.relative) {
        titles[column] = title;
    }
    table.load_style(presets::NOTHING).set_header(titles);
    for cell in &comparison.cells {
        table.add_row(row(cell, &comparison.cells));
    }
    for (column, (_, is_number)) in table.column_iter_mut().zip(COLUMNS) {
        column.set_padding((0, 2));
        column.set_cell_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left });
    }
    table
}

fn row(cell: &CellChange, all: &[CellChange]) -> [String; COLUMNS.len()] {
    let [old, new] = [&cell.old, &cell.new].map(Option::as_ref);
    let change = cell.change.as_ref();
    [
        name(&cell.cell, all),
        gbps(old),
        runs(old),
        gbps(new),
        runs(new),
        change.map_or_else(none, |change| format!("{} %", percent(change.ratio.median))),
        change.map_or_else(none, interval),
        change.map_or_else(none, |change| p_value(change.p_value)),
        verdict(cell),
    ]
}

fn none() -> String {
    NONE.to_owned()
}

/// The cell's name, with what a name leaves out where two cells have the same.
fn name(cell: &Cell, all: &[CellChange]) -> String {
    let name = cell.to_string();
    if all.iter().filter(|other| other.cell.to_string() == name).count() == 1 {
        return name;
    }
    let window = cell.stack().and_then(|cell| cell.window_bytes).map(|bytes| format!(" window {bytes}"));
    format!("{name}{} buffer {}", window.unwrap_or_default(), cell.buffer_bytes())
}

fn gbps(side: Option<&Side>) -> String {
    side.and_then(|side| side.median).map_or_else(none, |gbps| format!("{gbps:.3}"))
}

fn runs(side: Option<&Side>) -> String {
    match side {
        None => none(),
        Some(side) if side.runs() == 0 => none(),
        Some(side) if side.failures.is_empty() => side.gbps.len().to_string(),
        Some(side) => format!("{} of {}", side.gbps.len(), side.runs()),
    }
}

fn percent(ratio: f64) -> String {
    // What rounds to nothing has no sign.
    let percent = ((ratio - 1.0) * 1000.0).round() / 10.0;
    if percent == 0.0 { "0.0".to_owned() } else { format!("{percent:+.1}") }
}

fn interval(change: &Change) -> String {
    format!("{} to {} %", percent(change.ratio.low), percent(change.ratio.high))
}

fn p_value(p: f64) -> String {
    if p < 0.0001 { "<0.0001".to_owned() } else { format!("{p:.4}") }
}

fn verdict(cell: &CellChange) -> String {
    let failures = |side: Option<&Side>| {
        let failures = side.iter().flat_map(|side| &side.failures);
        failures.map(|(status, count)| format!("{count} {status}")).collect::<Vec<_>>().join(", ")
    };
    let word = word(cell.verdict);
    match cell.verdict {
        Verdict::Broken | Verdict::Failing => format!("{word}: {}", failures(cell.new.as_ref())),
        Verdict::Mended => format!("{word}: was {}", failures(cell.old.as_ref())),
        Verdict::NotRun => format!("{word} {}", missing(cell)),
        _ => match &cell.new {
            Some(new) if cell.old.is_some() && new.failed() > 0 => {
                format!("{word}; {} of {} failed: {}", new.failed(), new.runs(), failures(Some(new)))
            }
            _ => word.to_owned(),
        },
    }
}

/// In which of the files a cell could not be run.
fn missing(cell: &CellChange) -> &'static str {
    let [old, new] = [&cell.old, &cell.new].map(|side| side.as_ref().is_some_and(|side| side.runs() > 0));
    match (old, new) {
        (true, _) => "in new",
        (false, true) => "in old",
        (false, false) => "in either",
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Slower => "slower",
        Verdict::Broken => "broken",
        Verdict::Faster => "faster",
        Verdict::Mended => "mended",
        Verdict::Inconclusive => "inconclusive",
        Verdict::TooFewRuns => "too few runs",
        Verdict::Failing => "failing",
        Verdict::NotRun => "not run",
        Verdict::OnlyOld => "only in old",
        Verdict::OnlyNew => "only in new",
    }
}

/// The verdicts in a sentence, the worst first.
fn counts(comparison: &Comparison) -> String {
    let verdicts = [
        Verdict::Slower,
        Verdict::Broken,
        Verdict::Faster,
        Verdict::Mended,
        Verdict::Inconclusive,
        Verdict::TooFewRuns,
        Verdict::Failing,
        Verdict::NotRun,
        Verdict::OnlyOld,
        Verdict::OnlyNew,
    ];
    let counts = verdicts.map(|verdict| (comparison.count(verdict), word(verdict)));
    let counts: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    let cells = plural(comparison.cells.len(), "cell");
    let relative = if comparison.relative { ", normalised by loopback" } else { "" };
    let verdicts = format!("Of {cells}{relative}: {}.", counts.join(", "));
    if comparison.tested() == 0 {
        return verdicts;
    }
    format!(
        "{verdicts} Slower and faster are by more than {} % and significant at {} %, by a rank test corrected for {}.",
        number(comparison.floor * 100.0),
        number(SIGNIFICANCE * 100.0),
        plural(comparison.tested(), "test"),
    )
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A number of percent without needless digits.
fn number(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

/// Why cells are broken, and what to do where the comparison could not answer.
fn advice(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    for cell in comparison.cells.iter().filter(|cell| cell.verdict == Verdict::Broken) {
        if let Some(detail) = cell.new.as_ref().and_then(|side| side.detail.as_ref()) {
            writeln!(out, "Broken: {}: {}.", name(&cell.cell, &comparison.cells), format::shortened(detail))?;
        }
    }
    for cell in comparison.cells.iter().filter(|cell| cell.verdict == Verdict::NotRun) {
        let mut lacking = [&cell.new, &cell.old].into_iter().flatten().filter(|side| side.runs() == 0);
        if let Some(detail) = lacking.find_map(|side| side.detail.as_ref()) {
            writeln!(out, "Not run: {}: {}.", name(&cell.cell, &comparison.cells), format::shortened(detail))?;
        }
    }
    let mut few = comparison.cells.iter().filter(|cell| cell.verdict == Verdict::TooFewRuns);
    if let Some(CellChange { old: Some(old), new: Some(new), change: Some(change), .. }) = few.next() {
        writeln!(
            out,
            "Too few runs: of {} and {} runs the smallest p in this table is {:.2}; make at least {} of each cell, \
             with --runs.",
            old.gbps.len(),
            new.gbps.len(),
            change.smallest_p_value,
            comparison.runs_needed(),
        )?;
    }
    let drifted = |cell: &&CellChange| {
        let is_loopback = cell.cell.stack().is_some_and(|cell| cell.layer == Layer::Loopback);
        is_loopback && matches!(cell.verdict, Verdict::Slower | Verdict::Faster)
    };
    if let Some(cell) = comparison.cells.iter().find(drifted) {
        writeln!(
            out,
            "Loopback, which no stack is in, changed too: {} got {}. It is the machine, or what every layer shares \
             (client, server, tokio); if the machine, compare with --relative.",
            cell.cell,
            word(cell.verdict)
        )?;
    }
    Ok(())
}
