//! The table of the results, in seconds per gigabyte.

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, presets};

/// In the names of path columns: all checksums are computed.
pub(crate) const DONE: &str = "done";
/// In the names of path columns: only the IP header's checksum is computed.
pub(crate) const LEFT_OUT: &str = "left out";
/// The column of paths with the offloads of a TUN device.
pub(crate) const SUPER_PACKETS: &str = "super-packets";

const CHECKSUMS: [&str; 4] = ["1500 warm", "1500 cold", "65535 warm", "65535 cold"];
const PATHS: [&str; 5] = ["1500 done", "1500 left out", "65535 done", "65535 left out", SUPER_PACKETS];

/// The smallest number of records in a sample of criterion, so the last ones belong to the sample, not to the warm-up.
const SAMPLE: usize = 10;

/// A table of two parts, one below the other.
pub(crate) struct Table {
    /// The cost of the checksum alone.
    pub(crate) checksums: Section,
    /// The cost of the whole path.
    pub(crate) paths: Section,
}

pub(crate) struct Section {
    title: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Row>,
}

struct Row {
    name: String,
    /// The records of each column, in the order of time: seconds per gigabyte, or nanoseconds per byte.
    cells: Vec<Vec<f64>>,
}

impl Default for Table {
    fn default() -> Self {
        let section = |title, columns| Section { title, columns, rows: Vec::new() };
        Self { checksums: section("checksum", &CHECKSUMS), paths: section("whole path", &PATHS) }
    }
}

impl Section {
    /// Records the time of some bytes. A record of an unknown column is ignored.
    pub(crate) fn record(&mut self, row: &str, column: &str, elapsed: Duration, len_bytes: u64) {
        let Some(column) = self.columns.iter().position(|&other| other == column) else { return };
        let place = self.rows.iter().position(|other| other.name == row).unwrap_or_else(|| {
            self.rows.push(Row { name: row.to_owned(), cells: vec![Vec::new(); self.columns.len()] });
            self.rows.len() - 1
        });
        self.rows[place].cells[column].push(elapsed.as_nanos() as f64 / len_bytes as f64);
    }

    /// Returns whether something was measured, not only tried.
    fn is_measured(&self) -> bool {
        self.rows.iter().any(|row| (0..self.columns.len()).any(|column| row.median(column).is_some()))
    }

    fn lines(&self) -> impl Iterator<Item = Vec<String>> {
        let head = [self.title].into_iter().chain(self.columns.iter().copied()).map(str::to_owned).collect();
        let rows = self.rows.iter().map(|row| {
            let cells = (0..self.columns.len()).map(|column| self.cell(row, column));
            [row.name.clone()].into_iter().chain(cells).collect()
        });
        [head].into_iter().chain(rows)
    }

    /// Returns the figure. If the checksums are left out, adds the difference to the column with checksums.
    fn cell(&self, row: &Row, column: usize) -> String {
        let Some(figure) = row.median(column) else { return String::new() };
        let with = self.columns[column].ends_with(LEFT_OUT).then(|| row.median(column - 1)).flatten();
        let change = with.map(|with| format!(" ({:+.0} %)", (figure / with - 1.0) * 100.0));
        format!("{figure:.3}{}", change.unwrap_or_default())
    }
}

impl Row {
    /// Returns the median of the last [`SAMPLE`] records; `None` if there are fewer.
    fn median(&self, column: usize) -> Option<f64> {
        let mut last = self.cells[column].last_chunk::<SAMPLE>().copied()?;
        last.sort_by(f64::total_cmp);
        Some(f64::midpoint(last[SAMPLE / 2 - 1], last[SAMPLE / 2]))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sections: Vec<_> = [&self.checksums, &self.paths].into_iter().filter(|one| one.is_measured()).collect();
        if sections.is_empty() {
            return Ok(());
        }
        let mut table = comfy_table::Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        for (number, line) in sections.iter().flat_map(|section| section.lines()).enumerate() {
            if number == 0 {
                table.set_header(line);
            } else {
                table.add_row(line);
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(
            f,
            "Seconds per gigabyte, by bytes in a packet: the checksum alone, over bytes that are in the cache (warm)\n\
             or not (cold); and the whole path, with checksums done or left out.\n\n{table}"
        )
    }
}
