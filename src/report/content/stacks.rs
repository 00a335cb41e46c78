//! The main figures of each stack, in one table.

use std::collections::BTreeSet;

use netstacks::{StackConfig, StackKind};

use crate::measure::CellSummary;
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{Block, Column, Table};
use crate::report::series::Series;
use crate::scenario::{
    Cell, Conditions, DEFAULT_MTU, Generator, Layer, Mode, Requests, RuntimeKind, Subject, Workload,
};

/// A column of the table: a question that cells of the preset `stacks` answer.
struct Question {
    title: &'static str,
    workload: fn() -> Workload,
    /// Streams or connections.
    parallel: u16,
    loss_ppm: u32,
    /// The value of the column, from the figure by which runs are compared.
    answer: fn(f64) -> f64,
    less_is_better: bool,
    decimals: usize,
}

/// The first column. The others say in what they differ.
const READ: Question = Question {
    title: "read Gbps",
    workload: || Workload::Stream(Mode::Reader),
    parallel: 1,
    loss_ppm: 0,
    answer: |figure| figure,
    less_is_better: false,
    decimals: 1,
};

const REQUESTS: Question =
    Question { title: "requests/s", workload: || Workload::Rr(Requests::default()), decimals: 0, ..READ };

const QUESTIONS: [Question; 7] = [
    READ,
    Question { title: "write Gbps", workload: || Workload::Stream(Mode::Writer), ..READ },
    REQUESTS,
    Question { title: "on 1,000 connections", parallel: 1000, ..REQUESTS },
    Question { title: "new connections/s", workload: || Workload::Crr(Requests::default()), parallel: 50, ..REQUESTS },
    Question {
        title: "KiB a connection",
        workload: || Workload::Idle,
        parallel: 1000,
        // The figure is connections in a megabyte.
        answer: |connections| 1e6 / connections / 1024.0,
        less_is_better: true,
        ..READ
    },
    // One packet in a hundred.
    Question { title: "read Mbit/s at 1 % loss", loss_ppm: 10_000, answer: |gbps| gbps * 1000.0, decimals: 0, ..READ },
];

/// The default of `--buffer`, in bytes.
const DEFAULT_BUFFER: usize = 1_000_000;

impl Question {
    /// Whether a cell answers it, with offload or without; [`blocks`] prefers those with it. All that the title does not
    /// say is as in the preset.
    fn asks(&self, cell: &Cell) -> bool {
        let is_whole = match cell.subject {
            Subject::Path(_) => true,
            Subject::Loopback => self.loss_ppm == 0,
            Subject::Kernel => self.loss_ppm > 0,
            _ => false,
        };
        let asked = Cell {
            workload: (self.workload)(),
            parallel: self.parallel,
            conditions: Conditions { loss_ppm: self.loss_ppm, ..Conditions::default() },
            runtime: Some(RuntimeKind::MultiThread(None)),
            mtu: cell.mtu.and(Some(DEFAULT_MTU.into())),
            client_threads: None,
            bitrate: None,
            background: None,
            ipv6: false,
            window_bytes: cell.window_bytes.and(Some(StackConfig::default().window)),
            buffer_bytes: DEFAULT_BUFFER,
            queue_packets: None,
            generator: Generator::Own,
            ..cell.clone()
        };
        is_whole && asked == *cell
    }
}

/// The table, if series of one machine and program answer all questions.
pub(super) fn blocks(all: &[Series]) -> Vec<Block> {
    let alike = || all.iter().filter(|one| one.environment == all[0].environment);
    let mut rows: Vec<&CellSummary> = alike().flat_map(|one| &one.summary.cells).collect();
    // The first row that answers a question counts, so rows without offload come last.
    rows.sort_by_key(|row| row.cell.offload == Some(false));
    let is_asked = |question: &Question| rows.iter().any(|row| path(&row.cell).is_some() && question.asks(&row.cell));
    if !QUESTIONS.iter().all(is_asked) {
        return Vec::new();
    }
    let is_answer = |row: &&&CellSummary| QUESTIONS.iter().any(|question| question.asks(&row.cell));
    let stacks: BTreeSet<StackKind> = rows.iter().filter(is_answer).filter_map(|row| path(&row.cell)).collect();
    let names = stacks.iter().map(|stack| stack.name()).chain(["the kernel"]);
    let mut table = Table::new("Stacks");
    table.push(Column::new("stack", false), names.map(ToOwned::to_owned));
    for question in &QUESTIONS {
        let cell = |of: &dyn Fn(&Cell) -> bool| rows.iter().find(|row| of(&row.cell) && question.asks(&row.cell));
        let of_stacks = stacks.iter().map(|stack| cell(&|cell| path(cell) == Some(*stack)));
        let places: Vec<_> = of_stacks.chain([cell(&|cell| path(cell).is_none())]).collect();
        let figure = |row: &&&CellSummary| Some((question.answer)(row.estimate?.median));
        let mut figures: Vec<Option<f64>> = places.iter().map(|row| row.as_ref().and_then(figure)).collect();
        let texts = places.iter().zip(&figures).map(|(row, figure)| match (row, figure) {
            (Some(row), Some(figure)) if row.failures.is_empty() => written(*figure, question.decimals),
            (Some(row), Some(figure)) => format!("{} ({})", written(*figure, question.decimals), format::failures(row)),
            (Some(row), None) => format::no_figure(row),
            (None, _) => UNKNOWN.to_owned(),
        });
        let texts = texts.collect();
        // A stack that fails in any run cannot be the best.
        for (figure, row) in figures.iter_mut().zip(&places) {
            *figure = figure.filter(|_| row.is_some_and(|row| row.failures.is_empty()));
        }
        push(&mut table, question.title, texts, &figures, question.less_is_better);
    }
    let note = format!(
        "Medians of the runs that succeeded, on {}, with one stream or as many connections as the column says. The best \
         stack of each column is bold, of those that never failed. The kernel's figures are over loopback; at 1 % loss they \
         are through two TUN devices.",
        all[0].machine()
    );
    vec![Block::Table(table), Block::Text(note)]
}

/// A number with this many decimals, and commas between its thousands.
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

/// Appends a column. The kernel, in the last row, is for comparison and cannot be the best.
fn push(table: &mut Table, title: &str, texts: Vec<String>, figures: &[Option<f64>], less_is_better: bool) {
    let worth = |figure: &f64| if less_is_better { -figure } else { *figure };
    let rivals = &figures[..figures.len() - 1];
    let best = rivals.iter().flatten().map(worth).reduce(f64::max);
    let is_best = |figure: &Option<f64>| figure.as_ref().map(worth).is_some_and(|worth| Some(worth) == best);
    let mut column = Column::new(title, true);
    column.bold = rivals.iter().map(is_best).chain([false]).collect();
    table.push(column, texts);
}

/// The stack of a cell of the whole path.
fn path(cell: &Cell) -> Option<StackKind> {
    cell.stack().filter(|_| cell.layer() == Layer::Path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::measure::fixture::{cell, failed, sample};
    use crate::sample::{IdleFacts, RequestFacts, Sample, Status};

    fn run(subject: Subject, workload: Workload, parallel: u16, figure: f64) -> Sample {
        let runtime = Some(RuntimeKind::MultiThread(None));
        let cell = Cell { subject, workload, runtime, parallel, ..cell(StackKind::Lwip, Mode::Reader) };
        let mut run = sample(&cell, figure);
        let answered = (figure * run.measured.elapsed.as_secs_f64()) as u64;
        run.measured.requests = Some(RequestFacts { answered, ..RequestFacts::default() });
        // This many bytes for each connection.
        let open = (figure * f64::from(parallel)) as u64;
        run.measured.idle = Some(IdleFacts {
            connections: parallel.into(),
            rss_before_bytes: Some(0),
            rss_open_bytes: Some(open),
            rss_idle_bytes: Some(open),
            ..IdleFacts::default()
        });
        run
    }

    /// All questions with the same figure.
    fn answers(subject: Subject, figure: f64) -> Vec<Sample> {
        let requests = Requests::default();
        let works = [
            (Workload::Stream(Mode::Reader), 1),
            (Workload::Stream(Mode::Writer), 1),
            (Workload::Rr(requests), 1),
            (Workload::Rr(requests), 1000),
            (Workload::Crr(requests), 50),
            (Workload::Idle, 1000),
        ];
        let mut runs: Vec<_> = works.map(|(workload, parallel)| run(subject, workload, parallel, figure)).into();
        let subject = if subject == Subject::Loopback { Subject::Kernel } else { subject };
        let mut lossy = run(subject, Workload::Stream(Mode::Reader), 1, figure);
        lossy.cell.conditions = Conditions { loss_ppm: 10_000, ..Conditions::default() };
        runs.push(lossy);
        runs
    }

    /// The cells of the preset answer the questions, each one. A cell that differs in anything else answers none.
    #[cfg(all(target_os = "linux", feature = "smoltcp"))]
    #[test]
    fn a_column_has_cells_of_the_preset_alone() {
        use clap::Parser;

        use crate::cli::Cli;
        use crate::plan::Plan;

        let answered = |cell: &Cell| QUESTIONS.iter().filter(|question| question.asks(cell)).count();
        let cells = |arguments: &str| -> Vec<Cell> {
            let words = format!("x matrix --netstack smoltcp {arguments}");
            let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
            let Plan::Matrix(plan) = Plan::try_from(cli).unwrap() else { unreachable!() };
            plan.scenarios.iter().map(Cell::planned).collect()
        };
        let preset = cells("--preset stacks");
        assert_eq!(preset.len(), 2 * QUESTIONS.len());
        assert!(preset.iter().all(|cell| answered(cell) == 1), "{preset:?}");
        for other in [
            "--mode reader --bitrate 1M",
            "--mode reader --buffer 1",
            "--mode reader --window 64KiB",
            "--mode reader --worker-threads 1",
            "--mode reader --layer kernel,proxy,stack",
            "--mode rr --request 1000",
            "--mode rr --parallel 1000 --depth 4",
            "--mode rr --background reader",
            "--mode crr --parallel 50 --response 1MB",
            "--mode idle --parallel 10",
            "--mode rr,idle --parallel 1000 --layer path --delay 5ms",
            "--mode reader --loss 1% --delay 5ms",
        ] {
            let cells = cells(&format!("--runtime multi-thread {other}"));
            assert!(!cells.is_empty() && cells.iter().all(|cell| answered(cell) == 0), "{other}: {cells:?}");
        }
    }

    #[test]
    fn the_best_stack_of_each_column_is_bold_and_the_kernel_is_no_rival() {
        let [slow, fast, kernel] = [
            (Subject::Path(StackKind::Ipstack), 2000.0),
            (Subject::Path(StackKind::Lwip), 3000.0),
            (Subject::Loopback, 9000.0),
        ]
        .map(|(subject, figure)| answers(subject, figure));
        let stalled = failed(&slow[4].cell, Status::Stalled);
        let samples = [slow.clone(), vec![stalled], fast, kernel].concat();
        let blocks = blocks(&Series::split("stacks", &samples, &[]));
        let Block::Table(table) = &blocks[0] else { unreachable!() };
        let text =
            table.lines(
                comfy_table::presets::NOTHING,
                |text, is_bold| {
                    if is_bold { format!("*{text}*") } else { text.to_owned() }
                },
            );
        insta::assert_snapshot!(text.join("\n"));
        assert!(super::blocks(&Series::split("stacks", &slow[1..], &[])).is_empty(), "a question without an answer");
    }
}
