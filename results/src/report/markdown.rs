//! Sections with tables, for a document.

use std::io::{self, Write};

use comfy_table::presets;

use super::format;
use super::model::{Block, Document, Section, Table, bold_part};

pub(super) fn markdown(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let has_table = |section: &&Section| section.blocks.iter().any(|block| matches!(block, Block::Table(_)));
    for (index, section) in document.sections.iter().filter(has_table).enumerate() {
        let of = section.of.as_ref().map(|of| format!(": {}", escaped(of))).unwrap_or_default();
        writeln!(out, "{}### {}{of}", if index > 0 { "\n" } else { "" }, section.title)?;
        section.blocks.iter().try_for_each(|block| write_block(block, "\n", out))?;
    }
    Ok(())
}

pub(super) fn blocks(blocks: &[Block], out: &mut impl Write) -> io::Result<()> {
    let mut before = "";
    for block in blocks {
        write_block(block, before, out)?;
        before = "\n";
    }
    Ok(())
}

/// Writes a block after `before`. A document has no charts and no blocks to unfold. Code has lines as they are.
fn write_block(block: &Block, before: &str, out: &mut impl Write) -> io::Result<()> {
    match block {
        Block::Text(text) => writeln!(out, "{before}{}", escaped(text)),
        Block::List(title, lines) => {
            writeln!(out, "{before}{title}\n")?;
            lines.iter().try_for_each(|line| writeln!(out, "- {}", escaped(line)))
        }
        Block::Table(table) => {
            write!(out, "{before}")?;
            write_table(table, out)
        }
        Block::Code(lines) => {
            write!(out, "{before}")?;
            lines.iter().try_for_each(|line| writeln!(out, "    {line}"))
        }
        Block::Chart(_) | Block::Gallery(_) | Block::Details(..) => Ok(()),
    }
}

/// A table with a longer text is not padded: it would be several times as long, and its columns are not read in the source.
const MAX_PADDED: usize = 100;

fn write_table(table: &Table, out: &mut impl Write) -> io::Result<()> {
    // A number sign alone is neither a heading in a table nor a reference.
    let written = |text: &str, is_bold: bool| match escaped(text) {
        _ if text == "#" => text.to_owned(),
        text if is_bold => {
            let (before, bold) = bold_part(&text);
            format!("{before}**{bold}**")
        }
        text => text,
    };
    let is_long = table.rows.iter().flatten().any(|text| text.len() > MAX_PADDED);
    let lines = if is_long { unpadded(table, written) } else { table.lines(presets::ASCII_MARKDOWN, written) };
    for (number, line) in lines.into_iter().enumerate() {
        // The line under the head also says which columns are aligned to the right.
        let line = if number == 1 { aligned(&line, table) } else { line };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The head, the line under it, and the rows, without alignment.
fn unpadded(table: &Table, written: fn(&str, bool) -> String) -> Vec<String> {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let head = table.columns.iter().map(|column| written(&column.title, false)).collect();
    let rule = "|---".repeat(table.columns.len()) + "|";
    let row = |(number, cells): (usize, &Vec<String>)| {
        let cells = cells.iter().zip(&table.columns);
        let is_bold = |bold: &[bool]| bold.get(number).copied().unwrap_or_default();
        line(cells.map(|(cell, column)| written(cell, is_bold(&column.bold))).collect())
    };
    [line(head), rule].into_iter().chain(table.rows.iter().enumerate().map(row)).collect()
}

fn aligned(rule: &str, table: &Table) -> String {
    let dashes = rule
        .trim_matches('|')
        .split('|')
        .zip(&table.columns)
        .map(|(dashes, column)| if column.is_number { format!("{}:", &dashes[1..]) } else { dashes.to_owned() });
    format!("|{}|", dashes.collect::<Vec<_>>().join("|"))
}

/// An invisible character that ends a word where GitHub would make a link or a mention of it.
const WORD_JOINER: char = '\u{2060}';

/// Text that a document shows as it is: no markup, no new cell, no new line, no link and no mention.
pub(super) fn escaped(text: &str) -> String {
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

/// Whether GitHub would make a link of `https://`, `www.` or an address here, or a mention of `@name`.
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
    use crate::report::model::Column;

    #[test]
    fn a_long_cell_leaves_the_bold_ones_bold() {
        let mut table = Table::new("figures");
        let mut column = Column::new("Gbps", true);
        column.bold = vec![true, false];
        table.push(column, ["1", "2"].map(str::to_owned));
        table.push(Column::new("version", false), [String::from("v"), "v".repeat(MAX_PADDED + 1)]);
        let mut text = Vec::new();
        write_table(&table, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("| **1** | v |") && text.contains("| 2 | vv"), "{text}");
    }

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
