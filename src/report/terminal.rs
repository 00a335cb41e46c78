//! Tables and notes for a terminal.

use std::io::{self, Write};

use comfy_table::presets;

use super::format;
use super::model::{Block, Table};

/// Writes blocks for a terminal with this many `columns`; `None` is no limit. If a table does not fit, columns at its
/// right are left out, and a line under it names them. Charts are left out.
pub(super) fn terminal(blocks: Vec<Block>, columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    for block in blocks {
        match block {
            Block::Text(text) => writeln!(out, "{}", format::one_line(&text))?,
            Block::List(title, lines) => {
                writeln!(out, "{title}")?;
                lines.iter().try_for_each(|line| writeln!(out, "  {}", format::one_line(line)))?;
            }
            Block::Table(table) => write_table(table, columns, out)?,
            Block::Chart(_) | Block::Gallery(_) | Block::Code(_) | Block::Details(..) => {}
        }
    }
    Ok(())
}

fn write_table(mut table: Table, columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = table.lines(presets::NOTHING, |text, _| format::one_line(text));
    let is_too_wide = |lines: &[String]| {
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        columns.is_some_and(|columns| widest > columns.into())
    };
    let mut left_out = Vec::new();
    while is_too_wide(&lines) {
        let Some(index) = table.columns.iter().rposition(|column| column.may_go) else { break };
        left_out.insert(0, table.columns.remove(index).title);
        table.rows.iter_mut().for_each(|row| drop(row.remove(index)));
        lines = table.lines(presets::NOTHING, |text, _| format::one_line(text));
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out)?;
    if left_out.is_empty() { Ok(()) } else { writeln!(out, "In a wider terminal also: {}.", left_out.join(", ")) }
}
