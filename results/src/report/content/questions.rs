//! Tables of the main figures: a row for each subject, a column for each question that cells of a preset answer.

use crate::cell::Cell;
use crate::measure::{CellSummary, Estimate, best};
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{Column, Table};
use crate::sample::WIDEST_REACH;

pub(super) struct Question {
    pub(super) title: &'static str,
    /// The words of its cells, beside those of their subject.
    pub(super) words: &'static str,
    /// The value of the column, from the figure by which runs are compared.
    pub(super) answer: fn(f64) -> f64,
    pub(super) less_is_better: bool,
    pub(super) decimals: usize,
    /// Whether it is compared with the reference. Where one request waits for the other, a relay before the reference decides.
    pub(super) has_ratio: bool,
}

/// The first column. The others say in what they differ.
pub(super) const READ: Question = Question {
    title: "read Gbps",
    words: "--mode reader",
    answer: |figure| figure,
    less_is_better: false,
    decimals: 1,
    has_ratio: true,
};

pub(super) const WRITE: Question = Question { title: "write Gbps", words: "--mode writer", ..READ };

pub(super) const REQUESTS: Question =
    Question { title: "requests/s", words: "--mode rr", decimals: 0, has_ratio: false, ..READ };

pub(super) const THOUSAND: Question =
    Question { title: "on 1,000 connections", words: "--mode rr --parallel 1000", has_ratio: true, ..REQUESTS };

pub(super) const NEW: Question = Question { title: "new connections/s", words: "--mode crr --parallel 50", ..THOUSAND };

pub(super) const MEMORY: Question = Question {
    title: "KiB a connection, 5 s",
    words: "--mode idle --parallel 1000",
    // The figure is connections in a megabyte.
    answer: |connections| 1e6 / connections / 1024.0,
    less_is_better: true,
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

type Has<'a> = dyn Fn(&Question, &Cell) -> bool + 'a;

pub(super) struct Row<'a> {
    pub(super) name: String,
    pub(super) has: Box<Has<'a>>,
    /// Whether it may be the best of a column. Others are for comparison.
    pub(super) is_rival: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Figures {
    Medians,
    /// With their intervals.
    Intervals,
}

/// The table. The first cell that answers a question for a row counts. A question without an answer has no column.
pub(super) fn table(
    title: &'static str,
    head: &str,
    rows: &[Row],
    questions: &[Question],
    cells: &[&CellSummary],
    figures: Figures,
) -> Table {
    let mut table = Table::new(title);
    table.push(Column::new(head, false), rows.iter().map(|row| row.name.clone()));
    for question in questions {
        let is_answer = |row: &Row, one: &&CellSummary| (row.has)(question, &one.cell) && question.asks(&one.cell);
        let answer = |row: &Row| cells.iter().copied().find(|one| is_answer(row, one));
        let answers: Vec<_> = rows.iter().map(answer).collect();
        if answers.iter().all(Option::is_none) {
            continue;
        }
        // The reference: the first row that is no rival.
        let kernel = rows.iter().zip(&answers).find(|(row, _)| !row.is_rival).and_then(|(_, answer)| *answer);
        let texts = rows.iter().zip(&answers).map(|(row, answer)| {
            let kernel = kernel.filter(|_| row.is_rival && question.has_ratio && figures == Figures::Medians);
            answer.map_or(UNKNOWN.to_owned(), |answer| text(question, answer, kernel, figures))
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

pub(super) fn about_bold(subject: &str) -> String {
    format!(
        "In each column of six runs or more the best {subject} that never failed is bold, and each other one within a tenth of it \
         that a test of all against the best, by the runs of the same rounds, does not tell apart. A range is of fewer than six \
         runs, or of runs with two modes."
    )
}

pub(super) fn text(question: &Question, row: &CellSummary, kernel: Option<&CellSummary>, figures: Figures) -> String {
    let Some(estimate) = row.estimate else { return format::behind_failures(row, None) };
    // The answer may be the reciprocal of the figure, so that its ends change places and its reach is another one.
    let [one, other, median] = [estimate.low, estimate.high, estimate.median].map(question.answer);
    let answer = Estimate { median, low: one.min(other), high: one.max(other), is_range: estimate.is_range };
    let figure = |figure| written(figure, question.decimals);
    let mut text = figure(median);
    let is_wide = answer.half_width() > WIDEST_REACH;
    let mut notes = Vec::new();
    if figures == Figures::Intervals || (answer.is_range && is_wide) {
        // A single run has no interval, and one from 0 connections has no end.
        let has_ends = row.speeds.len() > 1 && answer.high.is_finite();
        notes.extend(has_ends.then(|| format::ends(&answer, figure)));
    } else if is_wide {
        text = format!("{text} ±{:.0} %", answer.half_width() * 100.0);
    }
    let times = kernel.and_then(|kernel| row.times(kernel));
    let times = times.map(|times| if question.less_is_better { times.recip() } else { times });
    notes.extend(times.map(times_written));
    let text = if notes.is_empty() { text } else { format!("{text} ({})", notes.join("; ")) };
    format::behind_failures(row, Some(text))
}

fn times_written(times: f64) -> String {
    match times {
        times if times < 0.095 => format!("{times:.3}"),
        times if times < 10.0 => format!("{times:.2}"),
        times => written(times, 0),
    }
}

fn written(figure: f64, decimals: usize) -> String {
    let text = format!("{figure:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let is_place = |index: usize| index > 0 && index < whole && (whole - index).is_multiple_of(3);
    let mut grouped = String::new();
    for (index, digit) in text.char_indices() {
        grouped.extend(is_place(index).then_some(','));
        grouped.push(digit);
    }
    grouped
}
