//! Tables and notes for a terminal.

use std::io::{self, Write};

use comfy_table::presets;

use super::format;
use super::model::{Block, Need, Table};

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
    out.flush()
}

fn write_table(mut table: Table, columns: Option<u16>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = table.lines(presets::NOTHING, |text, _| format::one_line(text));
    let is_too_wide = |lines: &[String]| {
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        columns.is_some_and(|columns| widest > columns.into())
    };
    let titles: Vec<_> = table.columns.iter().map(|column| column.title.clone()).collect();
    while is_too_wide(&lines) {
        let last = |need| table.columns.iter().rposition(|column| column.need == need);
        let Some(index) = last(Need::Extra).or_else(|| last(Need::Wanted)) else { break };
        table.columns.remove(index);
        table.rows.iter_mut().for_each(|row| drop(row.remove(index)));
        lines = table.lines(presets::NOTHING, |text, _| format::one_line(text));
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out)?;
    let is_left_out = |title: &&String| !table.columns.iter().any(|column| column.title == **title);
    let left_out: Vec<_> = titles.iter().filter(is_left_out).map(String::as_str).collect();
    if left_out.is_empty() { Ok(()) } else { writeln!(out, "In a wider terminal also: {}.", left_out.join(", ")) }
}
