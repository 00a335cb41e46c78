//! A report before it has a format: headings, sentences, tables and charts.

mod chart;

use comfy_table::{CellAlignment, TableStyle};

pub(super) use self::chart::{
    Axis, Bar, Chart, ColumnOfBars, Columns, Group, Guide, Mark, Panel, Plane, Plot, Reference, Scale, Shape, Sign,
    Size, Strokes,
};
use super::format::UNKNOWN;

pub(super) struct Document {
    pub(super) title: &'static str,
    /// The machines, and the days of the runs.
    pub(super) about: Vec<String>,
    pub(super) picture: Chart,
    pub(super) sections: Vec<Section>,
    /// A row for each cell of each series, with all figures unrounded, for other programs.
    pub(super) records: Table,
    /// The same figures for programs that track them from commit to commit.
    pub(super) benchmarks: Vec<Benchmark>,
}

/// Figures under a name that is the same in every file.
pub(super) struct Benchmark {
    pub(super) name: String,
    pub(super) measures: Vec<Measure>,
}

pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) value: f64,
    pub(super) interval: Option<[f64; 2]>,
}

pub(super) struct Section {
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) of: Option<String>,
    pub(super) blocks: Vec<Block>,
}

/// A piece of a section.
pub(super) enum Block {
    /// A paragraph.
    Text(String),
    /// Lines with a title.
    List(&'static str, Vec<String>),
    Table(Table),
    Chart(Chart),
    /// Many small charts.
    Gallery(Vec<Chart>),
    /// Command lines.
    Code(Vec<String>),
    /// Blocks that a reader unfolds, under their title. Only a page has them.
    Details(String, Vec<Block>),
}

pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Stands between two figures of a cell: as published, and with our adapter.
pub(super) const ARROW: &str = "→";

/// The part of a text that is never bold, and the one that may be: the second of two figures.
pub(super) fn bold_part(text: &str) -> (&str, &str) {
    let before = text.rsplit_once(ARROW).map_or(text, |(_, second)| second.trim_start());
    text.split_at(text.len() - before.len())
}

pub(super) struct Column {
    pub(super) title: String,
    /// Whether it holds numbers, which are aligned to the right.
    pub(super) is_number: bool,
    /// Whether it tells rows apart, and is no figure.
    pub(super) is_property: bool,
    pub(super) need: Need,
    /// How good the value of each row is, which a page shows as a colour; empty for none.
    pub(super) percent_of_best: Vec<u8>,
    pub(super) bold: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Always,
    /// As long as there is room.
    Wanted,
    /// If there is room after those that are wanted.
    Extra,
}

impl Column {
    pub(super) fn new(title: impl Into<String>, is_number: bool) -> Self {
        Self {
            title: title.into(),
            is_number,
            is_property: false,
            need: Need::Always,
            percent_of_best: Vec::new(),
            bold: Vec::new(),
        }
    }

    pub(super) fn property(title: &str, is_number: bool) -> Self {
        Self { is_property: true, ..Self::new(title, is_number) }
    }

    pub(super) fn if_room(self, need: Need) -> Self {
        Self { need, ..self }
    }
}

impl Table {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), columns: Vec::new(), rows: Vec::new() }
    }

    /// Appends a column, with a value for each row; [`UNKNOWN`] for `None`.
    pub(super) fn push<T: Into<Option<String>>>(&mut self, column: Column, values: impl IntoIterator<Item = T>) {
        self.columns.push(column);
        for (index, value) in values.into_iter().enumerate() {
            let value = value.into().unwrap_or_else(|| UNKNOWN.to_owned());
            match self.rows.get_mut(index) {
                Some(row) => row.push(value),
                None => self.rows.push(vec![value]),
            }
        }
    }

    /// Puts a column with a text for each row before the one at `place`.
    pub(super) fn insert(&mut self, place: usize, column: Column, values: impl IntoIterator<Item = String>) {
        self.columns.insert(place, column);
        self.rows.iter_mut().zip(values).for_each(|(row, value)| row.insert(place, value));
    }

    pub(super) fn lines(&self, style: TableStyle, written: fn(&str, bool) -> String) -> Vec<String> {
        let mut table = comfy_table::Table::new();
        table.load_style(style).set_header(self.columns.iter().map(|column| written(&column.title, false)));
        for (index, row) in self.rows.iter().enumerate() {
            let is_bold = |column: &Column| column.bold.get(index).copied().unwrap_or_default();
            table.add_row(row.iter().zip(&self.columns).map(|(value, column)| written(value, is_bold(column))));
        }
        for (column, Column { is_number, .. }) in table.column_iter_mut().zip(&self.columns) {
            column.set_cell_alignment(if *is_number { CellAlignment::Right } else { CellAlignment::Left });
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}
