//! The table of a comparison, as plain text that fits in a CI log.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::presets;

use super::format::{self, percent};
use super::model::{Column, Table};
use crate::cell::Cell;
use crate::measure::metric::speed_of;
use crate::measure::{CellChange, Comparison, Difference, Differences, Estimate, Method, SIGNIFICANCE, Side, Verdict};
use crate::plural;

const NONE: &str = "-";

/// Writes what differs between the samples, a row for each cell, and the verdicts in a sentence.
pub fn comparison(comparison: &Comparison, differences: &Differences, out: &mut impl Write) -> io::Result<()> {
    notes(comparison, differences, out)?;
    for line in table(comparison).lines(presets::NOTHING, |text, _| text.to_owned()) {
        // A log needs no space at the left.
        writeln!(out, "{}", line.strip_prefix(' ').unwrap_or(&line))?;
    }
    writeln!(out, "\n{}", counts(comparison))?;
    detectable(comparison, out)?;
    advice(comparison, out)?;
    out.flush()
}

fn notes(comparison: &Comparison, differences: &Differences, out: &mut impl Write) -> io::Result<()> {
    for (verdict, reason) in
        [(Verdict::OnlyOld, "only in the old file"), (Verdict::NotRun, "could not run, or has no figure")]
    {
        let count = comparison.count(verdict);
        if count > 0 {
            writeln!(out, "note: not compared: {} ({reason})", plural(count, "cell"))?;
        }
    }
    match comparison.method {
        Method::AllRuns => (),
        Method::WithinRounds => writeln!(
            out,
            "note: each new run is compared with the old run of its round; the change is the median of these pairs"
        )?,
    }
    match (comparison.method, comparison.machine) {
        (Method::AllRuns, Some([least, most])) => writeln!(
            out,
            "note: the files were made one after the other; by the references the machine's speed changed by {} to {}, and \
             only what is beyond that is slower or faster",
            percent(least),
            change(most)
        )?,
        (Method::AllRuns, None) | (Method::WithinRounds, _) => (),
    }
    if comparison.cells.iter().any(|cell| speed_of(&cell.cell).less_is_better()) {
        writeln!(out, "note: cells with a rate are compared by the p99 of their latencies, of which less is better")?;
    }
    let notes = [
        ("the machines differ", &differences.machine, "; that alone may explain a change"),
        ("the programs differ", &differences.program, ""),
        ("the settings differ", &differences.settings, "; that alone may explain a change"),
    ];
    for (title, fields, advice) in notes.into_iter().filter(|(_, fields, _)| !fields.is_empty()) {
        let fields: Vec<_> = fields.iter().map(difference).collect();
        writeln!(out, "note: {title}: {}{advice}", fields.join(", "))?;
    }
    Ok(())
}

fn difference(field: &Difference) -> String {
    let Difference { name, old, new } = field;
    let [old, new] = [old, new].map(|values| format::one_line(&values.join(" or ")));
    if old == new { format!("{name} is {new} in both") } else { format!("{name} was {old} and is {new}") }
}

fn table(comparison: &Comparison) -> Table {
    let cells = &comparison.cells;
    let has_requests = cells.iter().any(|cell| !cell.cell.workload().is_bulk());
    let [old, new] = if has_requests { ["old", "new"] } else { ["old Gbps", "new Gbps"] };
    // With requests the values have their units, because rows may differ in it.
    let median = |cell: &CellChange, side: &Option<Side>| {
        let unit = if has_requests { speed_of(&cell.cell).unit } else { "" };
        Some(format!("{:.3} {unit}", side.as_ref()?.median?).trim_end().to_owned())
    };
    let mut table = Table::new("");
    let mut push = |title, is_number, value: &dyn Fn(&CellChange) -> Option<String>| {
        let values = cells.iter().map(|cell| value(cell).unwrap_or_else(|| NONE.to_owned()));
        table.push(Column::new(title, is_number), values);
    };
    push("cell", false, &|cell| Some(name(&cell.cell, cells)));
    push(old, true, &|cell| median(cell, &cell.old));
    push("runs", true, &|cell| runs(cell.old.as_ref()?));
    push(new, true, &|cell| median(cell, &cell.new));
    push("runs", true, &|cell| runs(cell.new.as_ref()?));
    push("change", true, &|cell| Some(cell.change?.ratio.median).filter(|ratio| ratio.is_finite()).map(change));
    push("95 % interval", true, &|cell| interval(cell.change?.ratio));
    push("detectable", true, &|cell| Some(format!("{:.0} %", comparison.detectable(cell)? * 100.0)));
    push("p", true, &|cell| cell.p_value.map(p_value));
    push("verdict", false, &|cell| Some(verdict(cell)));
    table
}

fn name(cell: &Cell, all: &[CellChange]) -> String {
    let name = cell.to_string();
    if all.iter().filter(|other| other.cell.to_string() == name).count() == 1 {
        return name;
    }
    format::full_name(cell)
}

fn runs(side: &Side) -> Option<String> {
    let (good, all) = (side.speeds.len(), side.runs());
    (all > 0).then(|| if side.failures.is_empty() { good.to_string() } else { format!("{good} of {all}") })
}

fn change(ratio: f64) -> String {
    format!("{} %", percent(ratio))
}

/// A change from 0 has no end above, and none at all if all old runs have 0.
fn interval(ratio: Estimate) -> Option<String> {
    match (ratio.low, ratio.high) {
        (low, high) if high.is_finite() => {
            let name = if ratio.is_range { "range " } else { "" };
            Some(format!("{name}{} to {}", percent(low), change(high)))
        }
        (low, _) => low.is_finite().then(|| format!("above {}", change(low))),
    }
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
        Verdict::Recovered => format!("{word}: was {}", failures(cell.old.as_ref())),
        Verdict::NotRun => {
            let ran = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.runs() > 0);
            let place = if ran(&cell.old) {
                "new"
            } else if ran(&cell.new) {
                "old"
            } else {
                "either"
            };
            format!("{word} in {place}")
        }
        _ => match &cell.new {
            Some(new) if cell.old.is_some() && new.failed() > 0 => {
                format!("{word}; {} of {} failed: {}", new.failed(), new.runs(), failures(Some(new)))
            }
            _ => word.to_owned(),
        },
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Slower => "slower",
        Verdict::Broken => "broken",
        Verdict::Faster => "faster",
        Verdict::Recovered => "recovered",
        Verdict::Inconclusive => "inconclusive",
        Verdict::TooFewRuns => "too few runs",
        Verdict::NoReference => "no reference",
        Verdict::Failing => "failing",
        Verdict::NotRun => "not run",
        Verdict::OnlyOld => "only in old",
        Verdict::OnlyNew => "only in new",
    }
}

fn counts(comparison: &Comparison) -> String {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for cell in &comparison.cells {
        *counts.entry(cell.verdict).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().map(|(verdict, count)| format!("{count} {}", word(verdict))).collect();
    let cells = plural(comparison.cells.len(), "cell");
    let mut sentences = vec![format!("Of {cells}: {}.", counts.join(", "))];
    let significance = number(SIGNIFICANCE * 100.0);
    if comparison.tested() > 0 {
        let (floor, tests) = (number(comparison.floor * 100.0), plural(comparison.tested(), "cell"));
        sentences.push(format!(
            "Slower and faster: the whole interval is beyond {floor} %, and p is at most {significance} % (a rank test, \
             corrected for {tests})."
        ));
    }
    if comparison.count(Verdict::Broken) + comparison.count(Verdict::Recovered) > 0 {
        sentences.push(format!(
            "Broken and recovered: p is of Fisher's test of the failures, corrected too, and at most {significance} %."
        ));
    }
    sentences.join(" ")
}

/// What the noise of these runs would have hidden.
fn detectable(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let mut losses: Vec<_> = comparison.cells.iter().filter_map(|cell| comparison.detectable(cell)).collect();
    losses.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (losses.first(), losses.last()) else { return Ok(()) };
    writeln!(
        out,
        "detectable here: {:.0} % ({:.0} to {:.0} %): a cell that loses so much of its speed is called slower in nine tables of ten",
        losses[losses.len() / 2] * 100.0,
        least * 100.0,
        most * 100.0
    )
}

/// A percentage without the digits of rounding errors.
fn number(percent: f64) -> f64 {
    (percent * 1e6).round() / 1e6
}

fn advice(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let mut reason = |title, cell: &CellChange, side: Option<&Side>| match side.and_then(|side| side.detail.as_ref()) {
        Some(detail) => {
            writeln!(out, "{title}: {}: {}.", name(&cell.cell, &comparison.cells), format::shortened(detail))
        }
        None => Ok(()),
    };
    for cell in comparison.cells.iter().filter(|cell| cell.verdict == Verdict::Broken) {
        reason("Broken", cell, cell.new.as_ref())?;
    }
    for cell in comparison.cells.iter().filter(|cell| cell.verdict == Verdict::NotRun) {
        let lacking = [&cell.new, &cell.old].into_iter().flatten().find(|side| side.runs() == 0);
        reason("Not run", cell, lacking)?;
    }
    let mut few = comparison.cells.iter().filter(|cell| cell.verdict == Verdict::TooFewRuns);
    if let Some(change) = few.find_map(|cell| cell.change) {
        writeln!(
            out,
            "Too few runs: the smallest possible p is {:.2}; make at least {} runs of each cell, with --runs.",
            change.smallest_p_value,
            comparison.runs_needed(),
        )?;
    }
    let drifted = |cell: &&CellChange| {
        cell.cell.subject().is_reference() && matches!(cell.verdict, Verdict::Slower | Verdict::Faster)
    };
    if let Some(cell) = comparison.cells.iter().find(drifted) {
        writeln!(
            out,
            "A reference changed too: {} got {}. The cause is the machine, or something that all cells share (client, \
             server, tokio).",
            cell.cell,
            word(cell.verdict)
        )?;
    }
    Ok(())
}
