//! The main figures of each stack, in one table.

use std::collections::BTreeSet;

use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};

use super::questions::{self, Figures, MEMORY, NEW, Question, READ, REQUESTS, Row, THOUSAND, WRITE};
use crate::cell::{Cell, Layer, Offload, Subject};
use crate::measure::CellSummary;
use crate::report::format::{Stack, name_of};
use crate::report::model::Block;
use crate::report::series::Series;

/// Those of the preset `stacks`.
pub(super) const QUESTIONS: [Question; 7] = [
    READ,
    WRITE,
    REQUESTS,
    THOUSAND,
    NEW,
    MEMORY,
    Question {
        title: "read Mbit/s at 1 % loss",
        words: "--mode reader --loss 1%",
        answer: |gbps| gbps * 1000.0,
        decimals: 0,
        ..READ
    },
];

/// The end of the note, if stacks have two rows.
const AS_IT_IS: &str = " As it is: without the repairs of our adapter (--repairs none).";

/// Whether a cell of the kernel alone is compared with the stacks.
fn is_kernel(question: &Question, cell: &Cell) -> bool {
    match cell.subject() {
        Subject::Loopback => !question.loses(),
        Subject::Kernel => question.loses(),
        _ => false,
    }
}

/// The table, if series of one machine and program answer all questions.
pub(super) fn blocks(all: &[Series]) -> Vec<Block> {
    let alike = || all.iter().filter(|one| one.environment == all[0].environment);
    let mut cells: Vec<&CellSummary> = alike().flat_map(|one| &one.summary.cells).collect();
    // The first cell that answers a question counts, so cells without offload or congestion control come last.
    cells.sort_by_key(|row| (row.cell.offload == Offload::Off, row.cell.stack_congestion != StackCongestion::Cubic));
    let is_asked = |question: &Question| cells.iter().any(|row| path(&row.cell).is_some() && question.asks(&row.cell));
    if !QUESTIONS.iter().all(is_asked) {
        return Vec::new();
    }
    let is_answer = |row: &&&CellSummary| QUESTIONS.iter().any(|question| question.asks(&row.cell));
    let stacks = cells.iter().filter(is_answer).filter_map(|row| Some((path(&row.cell)?, row.cell.repairs)));
    let stacks: BTreeSet<_> = stacks.filter(|(_, repairs)| [Repairs::ALL, Repairs::NONE].contains(repairs)).collect();
    let of_stack = |(stack, repairs): Stack| Row {
        name: name_of((stack, repairs)),
        has: Box::new(move |_, cell| path(cell) == Some(stack) && cell.repairs == repairs),
        is_rival: true,
    };
    let of_kernel = Row { name: "the kernel".to_owned(), has: Box::new(is_kernel), is_rival: false };
    let has_repairs = stacks.iter().any(|(_, repairs)| *repairs == Repairs::NONE);
    let rows: Vec<_> = stacks.into_iter().map(of_stack).chain([of_kernel]).collect();
    let table = questions::table("Stacks", "stack", &rows, &QUESTIONS, &cells, Figures::Medians);
    let note = format!(
        "Medians of the runs that succeeded, on {}, with one stream or as many connections as the column says. {} The kernel's \
         figures are over loopback; at 1 % loss they are through two TUN devices. In parentheses: how many times the kernel's figure it is, by the \
         runs of the same rounds. ±: the interval of the median, where it is wider than 10 %.{}",
        all[0].machine(),
        questions::about_bold("stack"),
        if has_repairs { AS_IT_IS } else { "" }
    );
    vec![Block::Table(table), Block::Text(note)]
}

/// The stack of a cell of the whole path.
pub(super) fn path(cell: &Cell) -> Option<StackKind> {
    cell.stack().filter(|_| cell.layer == Layer::Path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::cell::{Conditions, Mode, Requests, RuntimeKind, Workload};
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
        lossy.cell.impairments = Conditions { loss_ppm: 10_000, ..Conditions::default() };
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
        // With repairs and without, and the kernel's.
        assert_eq!(preset.len(), 3 * QUESTIONS.len());
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

    /// The table, with stars around what is bold.
    fn written(samples: &[Sample]) -> String {
        let blocks = blocks(&Series::split("stacks", samples, &[]));
        let Block::Table(table) = &blocks[0] else { unreachable!() };
        let star = |text: &str, is_bold: bool| if is_bold { format!("*{text}*") } else { text.to_owned() };
        table.lines(comfy_table::presets::NOTHING, star).join("\n")
    }

    /// At a loss, a cell with congestion control comes first. Without offload `tcp_ip` has no active repair, so both of its
    /// rows have the same cell.
    #[test]
    fn a_stack_has_a_row_as_it_is() {
        let stack = |stack, figure, repairs| {
            let mut runs = answers(Subject::Path(stack), figure);
            for run in &mut runs {
                run.cell.repairs = repairs;
                run.cell.offload = Some(run.cell.impairments.loss_ppm == 0);
            }
            runs
        };
        let mut smoltcp = stack(StackKind::Smoltcp, 3000.0, Repairs::ALL);
        let mut with_cubic = smoltcp[6].clone();
        with_cubic.cell.stack_congestion = StackCongestion::Cubic;
        with_cubic.measured.bytes /= 2;
        smoltcp.push(with_cubic);
        let tcp_ip = stack(StackKind::TcpIp, 1000.0, Repairs::ALL);
        let published = stack(StackKind::TcpIp, 500.0, Repairs::NONE)[..6].to_vec();
        let one_off = stack(StackKind::Smoltcp, 9000.0, "-late-fin".parse().unwrap());
        insta::assert_snapshot!(written(&[smoltcp, tcp_ip, published, one_off].concat()));
    }

    /// Its three runs are from 2,000 to 4,000, and so is the best.
    #[test]
    fn a_tie_is_bold_for_both() {
        let of = |stack, figures: [f64; 3]| figures.map(|figure| answers(Subject::Path(stack), figure)).concat();
        let best = of(StackKind::Lwip, [2000.0, 3100.0, 4000.0]);
        let tie = of(StackKind::Ipstack, [2100.0, 3000.0, 3900.0]);
        let third = of(StackKind::Smoltcp, [1000.0, 1001.0, 1002.0]);
        insta::assert_snapshot!(written(&[best, tie, third].concat()));
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
        insta::assert_snapshot!(written(&samples));
        assert!(blocks(&Series::split("stacks", &slow[1..], &[])).is_empty(), "a question without an answer");
    }
}
