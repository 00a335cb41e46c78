//! Tables for a document.

use std::cmp::Reverse;
use std::io::{self, Write};

use comfy_table::{Table, presets};

use super::axis::{self, Axis};
use super::forward::Signs;
use super::table::{self, Column, Sheet};
use super::{Series, UNKNOWN, finding, format, forward, ladder, series};
use crate::measure::CellSummary;
use crate::sample::Cell;

/// Writes the document. Its parts have headings of the third level: "Overview", "Cells", "Layers" where any
/// was measured alone, and "Environment"; those of several series have its label behind, and there is a part
/// "Side by side", too.
///
/// # Errors
///
/// The writer's own.
pub(super) fn markdown(all: &[Series], out: &mut impl Write) -> io::Result<()> {
    let several = all.len() > 1;
    for (of, table) in side_by_side(all, Signs::PUBLISHED) {
        writeln!(out, "### Side by side{of}\n\nMedian Gbps, and its 95 % interval.\n")?;
        sheet(&table, out)?;
        writeln!(out)?;
    }
    for one in all {
        let of = if several { format!(": {}", escaped(&one.label)) } else { String::new() };
        writeln!(out, "### Overview{of}\n")?;
        overview(one, out)?;
        writeln!(out, "\n### Cells{of}\n")?;
        cells(one, out)?;
        let rungs = rungs(one);
        if !rungs.rows.is_empty() {
            writeln!(out, "\n### Layers{of}\n\nWhat each layer does alone, median Gbps:\n")?;
            sheet(&rungs, out)?;
        }
        writeln!(out)?;
    }
    writeln!(out, "### Environment\n")?;
    sheet(&environment(all), out)
}

/// What a series comes to: a sentence, the main rows, and what all runs had alike.
fn overview(one: &Series, out: &mut impl Write) -> io::Result<()> {
    let (key, table) = if one.is_forward() {
        (forward::KEY, forward::overview(one, Signs::PUBLISHED))
    } else {
        ("Median Gbps, and its 95 % interval:", main_table(one))
    };
    writeln!(out, "{}\n\n{key}\n", escaped(&finding::finding(one, None)))?;
    sheet(&table, out)?;
    let shared = one.shared().into_iter().chain([runs(one), one.machine()]).collect::<Vec<_>>();
    writeln!(out, "\nIn every run: {}.", escaped(&shared.join(", ")))
}

/// The same without anything around it, with what failed and what the reader should know.
///
/// # Errors
///
/// The writer's own.
pub(super) fn overview_alone(one: &Series, out: &mut impl Write) -> io::Result<()> {
    overview(one, out)?;
    notes(one, out)
}

/// The table of a series and its notes.
fn cells(one: &Series, out: &mut impl Write) -> io::Result<()> {
    sheet(&table::sheet(&one.summary), out)?;
    let shared = one.shared();
    if !shared.is_empty() {
        writeln!(out, "\nIn every run: {}.", escaped(&shared.join(", ")))?;
    }
    notes(one, out)
}

fn notes(one: &Series, out: &mut impl Write) -> io::Result<()> {
    list("Failures:", &format::details(&one.summary), out)?;
    list("Warnings:", &format::warnings(&one.summary), out)
}

fn list(title: &str, lines: &[String], out: &mut impl Write) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}\n")?;
    lines.iter().try_for_each(|line| writeln!(out, "- {}", escaped(line)))
}

/// How many runs a cell has, failed ones too.
fn runs(one: &Series) -> String {
    let counts = || one.summary.cells.iter().map(format::runs);
    match (counts().min(), counts().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} runs of each cell"),
        (Some(1), _) => "one run of each cell".to_owned(),
        (Some(runs), _) => format!("{runs} runs of each cell"),
        (None, _) => "no runs".to_owned(),
    }
}

/// The main rows of a series of stacks in little space: offload and runtime are columns.
fn main_table(one: &Series) -> Sheet {
    let rows = one.main_rows();
    let cells: Vec<&Cell> = rows.iter().map(|row| &row.cell).collect();
    let (across, down): (Vec<_>, Vec<_>) =
        axis::differing(&cells).into_iter().partition(|axis| matches!(axis, Axis::Offload | Axis::Runtime));
    let head = |cell: &Cell| axis::phrase(cell, across.iter().copied().rev());
    let side = |cell: &Cell| down.iter().map(|axis| axis.value(cell)).collect::<Vec<_>>();
    // With offload first: it is what a device is asked for where it can.
    let mut by_head = cells.clone();
    by_head.sort_by_key(|cell| cell.stack().map(|cell| (Reverse(cell.offload), cell.runtime)));
    let (heads, sides) = (unique(by_head.iter().map(|cell| head(cell))), unique(cells.iter().map(|cell| side(cell))));
    let mut columns: Vec<_> = down.iter().map(|axis| Column::new(axis.title(), axis.is_number())).collect();
    columns.extend(heads.iter().map(|head| Column::new(if head.is_empty() { "Gbps" } else { head }, true)));
    let lines = sides.into_iter().map(|place| {
        let find = |wanted: &String| rows.iter().find(|row| head(&row.cell) == *wanted && side(&row.cell) == place);
        let figures: Vec<_> = heads.iter().map(|wanted| find(wanted).map(|row| figure(row))).collect();
        let values = place.into_iter().chain(figures);
        values.map(|value| value.unwrap_or_else(|| UNKNOWN.to_owned())).collect()
    });
    Sheet { rows: lines.collect(), columns }
}

/// Each of the values once, in their order.
fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(&value) {
            unique.push(value);
        }
    }
    unique
}

/// The cells of all series, and the median of each: a table of the stacks and one of the forwarders, with what
/// follows its name, where there are several series to compare.
pub(super) fn side_by_side(all: &[Series], signs: Signs) -> Vec<(&'static str, Sheet)> {
    let (forwards, stacks): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_forward());
    let tables = [("", stacks), (if all.len() > forwards.len() { " of forwarders" } else { "" }, forwards)];
    tables.into_iter().filter(|(_, of)| of.len() > 1).map(|(name, of)| (name, compared(&of, signs))).collect()
}

/// Such a table, of series of one kind.
fn compared(all: &[&Series], signs: Signs) -> Sheet {
    let mut cells: Vec<&Cell> = all.iter().flat_map(|one| &one.summary.cells).map(|row| &row.cell).collect();
    cells.sort();
    cells.dedup();
    let mut sheet = if all.iter().any(|one| one.is_forward()) { forward::names(&cells, signs) } else { names(&cells) };
    sheet.columns.extend(all.iter().map(|one| Column::new(one.label.clone(), true)));
    for (values, cell) in sheet.rows.iter_mut().zip(cells) {
        let figures = all.iter().map(|one| one.summary.cells.iter().find(|row| row.cell == *cell).map(figure));
        values.extend(figures.map(|value| value.unwrap_or_else(|| UNKNOWN.to_owned())));
    }
    sheet
}

/// The columns in which the cells of stacks differ.
fn names(cells: &[&Cell]) -> Sheet {
    let axes = axis::differing(cells);
    let value = |axis: &Axis, cell: &Cell| axis.value(cell).unwrap_or_else(|| UNKNOWN.to_owned());
    Sheet {
        columns: axes.iter().map(|axis| Column::new(axis.title(), axis.is_number())).collect(),
        rows: cells.iter().map(|cell| axes.iter().map(|axis| value(axis, cell)).collect()).collect(),
    }
}

fn figure(row: &CellSummary) -> String {
    match row.estimate {
        Some(estimate) => format::median(row, estimate),
        None => format::failures(row),
    }
}

/// The layers under each path.
pub(super) fn rungs(one: &Series) -> Sheet {
    let ladders = ladder::ladders(&one.summary);
    let axes = ladder::axes(&ladders);
    let mut columns: Vec<_> = axes.iter().map(|axis| Column::new(axis.title(), axis.is_number())).collect();
    columns.extend(["loopback", "device", "stack in memory", "path", "of stack"].map(|name| Column::new(name, true)));
    let median = |row: Option<&CellSummary>| row.and_then(|row| row.estimate).map(|estimate| estimate.median);
    let rows = ladders.iter().map(|ladder| {
        let (stack, path) = (median(ladder.stack), median(Some(ladder.path)));
        let mut values: Vec<_> = axes.iter().map(|axis| axis.value(&ladder.path.cell)).collect();
        values.extend([median(ladder.loopback), median(ladder.device), stack, path].map(|gbps| gbps.map(format::gbps)));
        values.push(stack.zip(path).map(|(stack, path)| format::percent(path / stack)));
        values.into_iter().map(|value| value.unwrap_or_else(|| UNKNOWN.to_owned())).collect()
    });
    Sheet { rows: rows.collect(), columns }
}

fn environment(all: &[Series]) -> Sheet {
    let mut columns = vec![Column::new("", false)];
    columns.extend(all.iter().map(|one| Column::new(one.label.clone(), false)));
    let rows = series::environments(all).into_iter().map(|(name, values)| [vec![name], values].concat());
    Sheet { columns, rows: rows.collect() }
}

/// Writes a table.
fn sheet(sheet: &Sheet, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new();
    // A number sign alone is neither a heading in a table nor a reference.
    let title = |column: &Column| if column.title == "#" { "#".to_owned() } else { escaped(&column.title) };
    table.load_style(presets::ASCII_MARKDOWN).set_header(sheet.columns.iter().map(title));
    for row in &sheet.rows {
        table.add_row(row.iter().map(|value| escaped(value)));
    }
    table::align(&mut table, sheet);
    for (number, line) in table.lines().enumerate() {
        // The line under the head also says which columns stand at the right.
        let line = if number == 1 { aligned(&line, sheet) } else { line };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn aligned(rule: &str, sheet: &Sheet) -> String {
    let dashes = rule
        .trim_matches('|')
        .split('|')
        .zip(&sheet.columns)
        .map(|(dashes, column)| if column.is_number { format!("{}:", &dashes[1..]) } else { dashes.to_owned() });
    format!("|{}|", dashes.collect::<Vec<_>>().join("|"))
}

/// What ends a word where GitHub would make a link or a mention of it, and is not seen.
const WORD_JOINER: char = '\u{2060}';

/// Text of a file that a document shows as it is: no markup, no new cell, no new line, no link and no mention.
fn escaped(text: &str) -> String {
    let line = format::one_line(text);
    let mut escaped = String::new();
    for (index, character) in line.char_indices() {
        if matches!(character, '\\' | '|' | '<' | '&' | '`' | '*' | '_' | '~' | '[' | ']' | '#') {
            escaped.push('\\');
        }
        escaped.push(character);
        if begins_link(&line[..index], character, &line[index + character.len_utf8()..]) {
            escaped.push(WORD_JOINER);
        }
    }
    escaped
}

/// Whether a character is the one after which `https://`, `www.`, an address or `@name` is what it is. A
/// backslash before it changes nothing: links are looked for once the markup is gone.
fn begins_link(before: &str, character: char, after: &str) -> bool {
    match character {
        ':' => after.starts_with("//"),
        '.' => before.get(before.len().saturating_sub(3)..).is_some_and(|word| word.eq_ignore_ascii_case("www")),
        '@' => after.starts_with(|next: char| next.is_alphanumeric()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_makes_no_link_and_no_mention() {
        for (text, written) in [
            ("see https://example.org/a", "see https:\u{2060}//example.org/a"),
            ("WWW.example.org", "WWW.\u{2060}example.org"),
            ("ask @name or a@example.org", "ask @\u{2060}name or a@\u{2060}example.org"),
            ("&#64;name &lt;b>", "\\&\\#64;name \\&lt;b>"),
            ("Example CPU @ 2.20 GHz: 3.", "Example CPU @ 2.20 GHz: 3."),
            ("ä.b", "ä.b"),
        ] {
            assert_eq!(escaped(text), written, "{text:?}");
        }
    }
}
