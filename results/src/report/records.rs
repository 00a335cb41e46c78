//! The figures for other programs: CSV, and a format for figures from commit to commit.

use std::io::{self, Write};

use csv::WriterBuilder;
use serde_json::{Map, Value, json};

use super::format;
use super::model::Document;

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

/// Writes the format of <https://bencher.dev/docs/reference/bencher-metric-format/>.
pub(super) fn bmf(document: &Document, out: &mut impl Write) -> io::Result<()> {
    let benchmarks = document.benchmarks.iter().map(|benchmark| {
        let measures = benchmark.measures.iter().map(|measure| {
            let mut figures = json!({ "value": measure.value });
            if let Some([low, high]) = measure.interval {
                (figures["lower_value"], figures["upper_value"]) = (json!(low), json!(high));
            }
            (measure.name.to_owned(), figures)
        });
        (benchmark.name.clone(), measures.collect())
    });
    writeln!(out, "{:#}", Value::Object(benchmarks.collect::<Map<_, _>>()))
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
