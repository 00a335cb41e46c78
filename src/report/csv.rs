//! The records as comma-separated values, for other programs.

use std::io::{self, Write};

use csv::WriterBuilder;

use super::format;
use super::model::Document;

/// Writes a line with the names, and a line for each row.
pub(super) fn csv(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let table = &document.records;
    let mut writer = WriterBuilder::new().from_writer(out);
    writer.write_record(table.columns.iter().map(|column| &column.title))?;
    for row in &table.rows {
        let values = row.iter().zip(&table.columns);
        writer
            .write_record(values.map(|(value, column)| if column.is_number { value.clone() } else { plain(value) }))?;
    }
    writer.flush()
}

/// A text on one line, which no spreadsheet takes for a formula.
fn plain(text: &str) -> String {
    let line = format::one_line(text);
    if line.starts_with(['=', '+', '-', '@']) { format!("'{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_formula_and_one_line() {
        for (text, written) in [
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'=1"),
            ("\r\n =1\n+2", "'=1 +2"),
            ("it did\nnot\u{1b}[31m go on", "it did not [31m go on"),
            ("a = b", "a = b"),
            ("", ""),
        ] {
            assert_eq!(plain(text), written, "{text:?}");
        }
    }
}
