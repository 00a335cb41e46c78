//! The main figures of each stack, in one table.

use std::collections::BTreeSet;

use netstacks::StackKind;

use super::questions::{self, Figures, MEMORY, NEW, Question, READ, REQUESTS, Row, THOUSAND, WRITE};
use crate::measure::CellSummary;
use crate::report::model::Block;
use crate::report::series::Series;
use crate::scenario::{Cell, Layer, Subject};

/// Those of the preset `stacks`.
const QUESTIONS: [Question; 7] = [
    READ,
    WRITE,
    REQUESTS,
    THOUSAND,
    NEW,
    MEMORY,
    // One packet in a hundred.
    Question { title: "read Mbit/s at 1 % loss", loss_ppm: 10_000, answer: |gbps| gbps * 1000.0, decimals: 0, ..READ },
];

/// Whether a cell of the kernel alone is compared with the stacks.
fn is_kernel(question: &Question, cell: &Cell) -> bool {
    match cell.subject {
        Subject::Loopback => question.loss_ppm == 0,
        Subject::Kernel => question.loss_ppm > 0,
        _ => false,
    }
}

/// The table, if series of one machine and program answer all questions.
pub(super) fn blocks(all: &[Series]) -> Vec<Block> {
    let alike = || all.iter().filter(|one| one.environment == all[0].environment);
    let mut cells: Vec<&CellSummary> = alike().flat_map(|one| &one.summary.cells).collect();
    // The first cell that answers a question counts, so cells without offload come last.
    cells.sort_by_key(|row| row.cell.offload == Some(false));
    let is_asked = |question: &Question| cells.iter().any(|row| path(&row.cell).is_some() && question.asks(&row.cell));
    if !QUESTIONS.iter().all(is_asked) {
        return Vec::new();
    }
    let is_answer = |row: &&&CellSummary| QUESTIONS.iter().any(|question| question.asks(&row.cell));
    let stacks: BTreeSet<StackKind> = cells.iter().filter(is_answer).filter_map(|row| path(&row.cell)).collect();
    let of_stack = |stack: StackKind| Row {
        name: stack.name().to_owned(),
        has: Box::new(move |_, cell| path(cell) == Some(stack)),
        is_rival: true,
    };
    let of_kernel = Row { name: "the kernel".to_owned(), has: Box::new(is_kernel), is_rival: false };
    let rows: Vec<_> = stacks.into_iter().map(of_stack).chain([of_kernel]).collect();
    let table = questions::table("Stacks", "stack", &rows, &QUESTIONS, &cells, Figures::Medians);
    let note = format!(
        "Medians of the runs that succeeded, on {}, with one stream or as many connections as the column says. The best \
         stack of each column is bold, of those that never failed. The kernel's figures are over loopback; at 1 % loss they \
         are through two TUN devices.",
        all[0].machine()
    );
    vec![Block::Table(table), Block::Text(note)]
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
    use crate::scenario::{Conditions, Mode, Requests, RuntimeKind, Workload};

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

        let is_whole = |question: &Question, cell: &Cell| {
            (path(cell).is_some() || is_kernel(question, cell)) && question.asks(cell)
        };
        let answered = |cell: &Cell| QUESTIONS.iter().filter(|question| is_whole(question, cell)).count();
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
