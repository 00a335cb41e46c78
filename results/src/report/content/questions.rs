//! Tables of the main figures: a row for each subject, a column for each question that cells of a preset answer.

use super::charts;
use crate::cell::Cell;
use crate::grouped_digits;
use crate::measure::{CellSummary, best};
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{ARROW, Block, Chart, Column, ColumnOfBars, Columns, Mark, Plot, Sign, Table};
use crate::sample::{AT_LIMIT, WIDEST_REACH};

pub(super) struct Question {
    /// The head of its column in a table.
    pub(super) title: &'static str,
    /// The head of its bars.
    pub(super) asked: &'static str,
    /// The words of its cells, beside those of their subject.
    pub(super) words: &'static str,
    /// The value of the column, from the figure by which runs are compared.
    pub(super) answer: fn(f64) -> f64,
    pub(super) decimals: usize,
    /// Whether a stack has two figures: as published, and with our adapter.
    pub(super) has_both: bool,
}

/// The first column. The others say in what they differ.
pub(super) const READ: Question = Question {
    title: "download Gbps",
    asked: "How fast is a download? Gbps",
    words: "--mode reader",
    answer: |figure| figure,
    decimals: 1,
    has_both: true,
};

pub(super) const WRITE: Question =
    Question { title: "upload Gbps", asked: "How fast is an upload? Gbps", words: "--mode writer", ..READ };

pub(super) const REQUESTS: Question =
    Question { title: "requests/s", words: "--mode rr", decimals: 0, has_both: false, ..READ };

pub(super) const THOUSAND: Question = Question {
    title: "requests/s on 1,000 connections",
    asked: "How many requests? /s on 1,000 connections",
    words: "--mode rr --parallel 1000",
    ..REQUESTS
};

pub(super) const NEW: Question = Question { title: "new connections/s", words: "--mode crr --parallel 50", ..THOUSAND };

pub(super) const MEMORY: Question = Question {
    title: "KiB a connection at rest",
    asked: "How much memory? KiB a connection at rest",
    words: "--mode idle --parallel 1000",
    // The figure is connections in a megabyte.
    answer: |connections| 1e6 / connections / 1024.0,
    has_both: false,
    ..READ
};

impl Question {
    /// Whether a cell answers it, with any offload and workarounds, and at a loss with any congestion control of the stack. A
    /// program may have no option for its limit of flows.
    pub(super) fn asks(&self, cell: &Cell) -> bool {
        let Ok(asked) = Cell::parse(self.words) else { return false };
        let Cell { runtime, worker_threads, max_flows, shards, queues, mut stack_congestion, .. } = asked;
        if self.loses() {
            stack_congestion = cell.stack_congestion;
        }
        let asked = asked.with_subject_of(cell);
        let (offload, max_flows) = (cell.offload, max_flows.and(cell.max_flows));
        let settings = Cell { runtime, worker_threads, max_flows, shards, queues, ..asked };
        let asked = Cell { offload, stack_congestion, ..settings };
        asked.checked().is_ok_and(|asked| asked == *cell)
    }

    pub(super) fn loses(&self) -> bool {
        self.words.contains("--loss")
    }
}

pub(super) type Has<'a> = dyn Fn(&Question, &Cell) -> bool + 'a;

pub(super) struct Row<'a> {
    pub(super) name: String,
    pub(super) has: Box<Has<'a>>,
    /// The cells of a stack as published. They stand before those with our adapter.
    pub(super) published: Option<Box<Has<'a>>>,
    /// Whether it may be the best of a column. Others are for comparison.
    pub(super) is_rival: bool,
}

impl Row<'_> {
    fn answer<'c>(&self, question: &Question, cells: &[&'c CellSummary]) -> Option<&'c CellSummary> {
        cells.iter().copied().find(|one| (self.has)(question, &one.cell) && question.asks(&one.cell))
    }

    /// Only where it is another cell: without its workarounds a stack may have nothing else.
    fn published<'c>(&self, question: &Question, cells: &[&'c CellSummary]) -> Option<&'c CellSummary> {
        let has = self.published.as_ref().filter(|_| question.has_both)?;
        cells.iter().copied().find(|one| has(question, &one.cell) && question.asks(&one.cell))
    }

    /// The cells of its figures in a table, each with the words for its place.
    pub(super) fn shown<'c>(
        &self,
        questions: &[Question],
        cells: &[&'c CellSummary],
    ) -> Vec<(String, &'c CellSummary)> {
        let of = |question: &Question| {
            let published = self.published(question, cells).map(|cell| (format!("{}, as published", self.name), cell));
            let own = self.answer(question, cells).map(|cell| (self.name.clone(), cell));
            published
                .into_iter()
                .chain(own)
                .map(|(name, cell)| (format!("{name}: {}", question.title), cell))
                .collect::<Vec<_>>()
        };
        questions.iter().flat_map(of).collect()
    }
}

/// The table. The first cell that answers a question for a row counts. A question without an answer has no column. Failures and
/// intervals are said under it.
pub(super) fn table(
    title: &'static str,
    head: &str,
    rows: &[Row],
    questions: &[Question],
    cells: &[&CellSummary],
) -> Table {
    let mut table = Table::new(title);
    table.push(Column::new(head, false), rows.iter().map(|row| row.name.clone()));
    for question in questions {
        let answers: Vec<_> = rows.iter().map(|row| row.answer(question, cells)).collect();
        if answers.iter().all(Option::is_none) {
            continue;
        }
        let texts = rows.iter().zip(&answers).map(|(row, answer)| {
            let own = answer.map_or(UNKNOWN.to_owned(), |answer| text(question, answer));
            match row.published(question, cells) {
                Some(published) => format!("{} {ARROW} {own}", text(question, published)),
                None => own,
            }
        });
        let mut column = Column::new(question.title, true);
        // More is better, also where the answer is less: of memory, the figure is connections in a megabyte.
        let rivals = rows.iter().zip(&answers).map(|(row, answer)| answer.filter(|_| row.is_rival));
        column.bold = best(&rivals.collect::<Vec<_>>());
        let texts: Vec<_> = texts.collect();
        table.push(column, texts);
    }
    table
}

/// The same figures as bars.
pub(super) fn chart(
    label: &str,
    caption: Option<&str>,
    questions: &[Question],
    rows: &[Row],
    cells: &[&CellSummary],
) -> Chart {
    let mark = |row: &Row| {
        let shown = row.shown(questions, cells);
        shown.last().map_or(Mark::filled(Sign::Diamond), |(_, cell)| charts::mark(&cell.cell))
    };
    let column = |question: &Question| {
        let value = |answer: Option<&CellSummary>| Some((question.answer)(answer?.estimate?.median));
        let bar = |row: &Row| (value(row.published(question, cells)), value(row.answer(question, cells)));
        ColumnOfBars { title: question.asked, bars: rows.iter().map(bar).collect(), decimals: question.decimals }
    };
    let rows_of_chart = rows.iter().map(|row| (row.name.clone(), mark(row))).collect();
    let has_bar = |column: &ColumnOfBars| column.bars.iter().any(|(_, own)| own.is_some());
    let columns = questions.iter().map(column).filter(has_bar).collect();
    let plot = Plot::Columns(Columns { rows: rows_of_chart, columns });
    Chart {
        label: label.to_owned(),
        captions: caption.map(str::to_owned).into_iter().collect(),
        legend: Vec::new(),
        plot,
    }
}

pub(super) fn about_bold(subject: &str) -> String {
    format!("Bold: the best {subject} of a column, and those that a rank test does not tell apart from it.")
}

/// The failures of some cells, if there are any, each in a line: `ipstack, as published: download Gbps: 1 of 10 timeout`.
pub(super) fn failures(shown: &[(String, &CellSummary)]) -> Option<Block> {
    let failed = shown.iter().filter(|(_, row)| !row.failures.is_empty());
    let lines: Vec<_> = failed.map(|(name, row)| format!("{name}: {}", format::failures(row))).collect();
    (!lines.is_empty()).then_some(Block::List("Failed runs, which are in no figure:", lines))
}

/// How many of the figures have an interval that is wider than 10 %, and the widest.
pub(super) fn widths(shown: &[(String, &CellSummary)]) -> String {
    let widths: Vec<_> = shown.iter().filter_map(|(_, row)| Some(row.estimate?.half_width())).collect();
    let wide = widths.iter().filter(|width| **width > WIDEST_REACH).count();
    let most = widths.iter().copied().fold(0.0, f64::max) * 100.0;
    match wide {
        0 => "All are good to ±10 %.".to_owned(),
        wide => format!("{wide} of {} are no better than ±10 %, the worst is ±{most:.0} %.", widths.len()),
    }
}

fn text(question: &Question, row: &CellSummary) -> String {
    let Some(estimate) = row.estimate else {
        return row.failures.keys().next().map_or_else(|| UNKNOWN.to_owned(), ToString::to_string);
    };
    let (figure, decimals) = ((question.answer)(estimate.median), question.decimals);
    let least = 0.1_f64.powf(decimals as f64);
    let is_less = figure < least / 2.0;
    let text = grouped_digits(if is_less { least } else { figure }, decimals);
    let limit = if row.is_at_upstream_limit() { format!(" {AT_LIMIT}") } else { String::new() };
    format!("{}{text}{limit}", if is_less { "under " } else { "" })
}
