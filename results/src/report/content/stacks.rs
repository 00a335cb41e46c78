//! The main figures of each stack, in one table.

use std::collections::BTreeSet;

use netstacks::{StackCongestion, StackKind, Workarounds};

use super::questions::{self, Figures, MEMORY, NEW, Question, READ, REQUESTS, Row, THOUSAND, WRITE};
use crate::cell::{Cell, Layer, Offload, Subject};
use crate::measure::CellSummary;
use crate::report::format::{Stack, name_of};
use crate::report::model::Block;
use crate::report::series::{self, Series};

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

const AS_IT_IS: &str = " As it is: without the workarounds of our adapter (--workarounds none).";

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
    let stacks = cells.iter().filter(is_answer).filter_map(|row| Some((path(&row.cell)?, row.cell.workarounds)));
    let stacks: BTreeSet<_> =
        stacks.filter(|(_, workarounds)| [Workarounds::ALL, Workarounds::NONE].contains(workarounds)).collect();
    let of_stack = |(stack, workarounds): Stack| Row {
        name: name_of((stack, workarounds)),
        has: Box::new(move |_, cell| path(cell) == Some(stack) && cell.workarounds_as(workarounds)),
        is_rival: true,
    };
    let of_kernel = Row { name: "the kernel".to_owned(), has: Box::new(is_kernel), is_rival: false };
    let has_workarounds = stacks.iter().any(|(_, workarounds)| *workarounds == Workarounds::NONE);
    let rows: Vec<_> = stacks.into_iter().map(of_stack).chain([of_kernel]).collect();
    let table = questions::table("Stacks", "stack", &rows, &QUESTIONS, &cells, Figures::Medians);
    let note = format!(
        "Medians of the runs that succeeded, on {}, with one stream or as many connections as the column says. {} The kernel's \
         figures are over loopback; at 1 % loss they are through two TUN devices. In parentheses: how many times the kernel's figure it is, by the \
         runs of the same rounds. ±: the interval of the median, where it is wider than 10 %.{}",
        series::machine_and_days(&alike().collect::<Vec<_>>()),
        questions::about_bold("stack"),
        if has_workarounds { AS_IT_IS } else { "" }
    );
    vec![Block::Table(table), Block::Text(note)]
}

pub(super) fn path(cell: &Cell) -> Option<StackKind> {
    cell.stack().filter(|_| cell.layer == Layer::Path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{self, failed};
    use crate::sample::{IdleFacts, RequestFacts, RestFacts, Sample, Status};

    /// A run with this figure, whatever its work.
    fn run(words: &str, figure: f64) -> Sample {
        let mut run = fixture::run(words, figure);
        let answered = (figure * run.measured.elapsed.as_secs_f64()) as u64;
        run.measured.requests = Some(RequestFacts { answered, ..RequestFacts::default() });
        let connections = u64::from(run.cell.parallel.get());
        // This many bytes for each connection.
        let open = (figure * connections as f64) as u64;
        run.measured.idle = Some(IdleFacts {
            connections,
            rss_before_bytes: Some(0),
            rss_open_bytes: Some(open),
            rest: vec![RestFacts { after: IdleFacts::COMPARED, rss_bytes: Some(open), kernel_bytes: Some(0) }],
            ..IdleFacts::default()
        });
        run
    }

    /// All questions with the same figure. The kernel is over loopback, or at a loss behind a device.
    fn answers(subject: &str, figure: f64) -> Vec<Sample> {
        let answer = |question: &Question| match subject {
            "" if question.loses() => run(&format!("-n kernel {}", question.words), figure),
            "" => run(&format!("--layer loopback {}", question.words), figure),
            stack => run(
                &format!("-n {stack} {} --offload {}", question.words, if question.loses() { "off" } else { "on" }),
                figure,
            ),
        };
        QUESTIONS.iter().map(answer).collect()
    }

    /// Each of its own cells answers a question, whatever the stack's settings. A cell that differs in anything else answers none.
    #[test]
    fn a_column_has_cells_of_its_question_alone() {
        let answered = |words: &str| {
            let cell = fixture::cell(words);
            let is_whole = |question: &&Question| path(&cell).is_some() || is_kernel(question, &cell);
            QUESTIONS.iter().filter(is_whole).filter(|question| question.asks(&cell)).count()
        };
        for question in &QUESTIONS {
            let kernel = if question.loses() { "-n kernel" } else { "--layer loopback" };
            for subject in ["-n smoltcp", "-n smoltcp --workarounds none", "-n lwip --offload off", kernel] {
                assert_eq!(answered(&format!("{subject} {}", question.words)), 1, "{subject} {}", question.words);
            }
        }
        assert_eq!(answered("-n smoltcp -m reader --loss 1 --stack-congestion cubic"), 1);
        for other in [
            "-n smoltcp -m reader --bitrate 1M",
            "-n smoltcp -m reader --buffer 1",
            "-n smoltcp -m reader --window 64KiB",
            "-n smoltcp -m reader --worker-threads 1",
            "-n smoltcp -m reader --runtime current-thread",
            "-n smoltcp -m reader --shards 2",
            "-n smoltcp -m reader --stack-congestion cubic",
            "-n smoltcp -m reader --ipv6",
            "-n smoltcp -m reader --mtu 9000",
            "-n smoltcp -m reader --layer stack",
            "-n kernel -m reader",
            "--program kernel -m reader",
            "-n smoltcp -m rr --request 1000",
            "-n smoltcp -m rr --parallel 1000 --depth 4",
            "-n smoltcp -m rr --background reader",
            "-n smoltcp -m crr --parallel 50 --response 1MB",
            "-n smoltcp -m idle --parallel 10",
            "-n smoltcp -m idle --parallel 1000 --delay 5ms",
            "-n smoltcp -m reader --loss 1% --delay 5ms",
        ] {
            assert_eq!(answered(other), 0, "{other}");
        }
    }

    /// The table, with stars around what is bold.
    fn written(samples: &[Sample]) -> String {
        let blocks = blocks(&Series::split("stacks", samples, &[]));
        let Block::Table(table) = &blocks[0] else { unreachable!() };
        let star = |text: &str, is_bold: bool| if is_bold { format!("*{text}*") } else { text.to_owned() };
        table.lines(comfy_table::presets::NOTHING, star).join("\n")
    }

    /// At a loss, a cell with congestion control comes first. Without offload `tcp_ip` has no active workaround, so both of its
    /// rows have the same cell.
    #[test]
    fn a_stack_has_a_row_as_it_is() {
        let smoltcp = answers("smoltcp", 3000.0);
        let with_cubic = run("-n smoltcp -m reader --loss 1 --offload off --stack-congestion cubic", 1500.0);
        let tcp_ip = answers("tcp_ip", 1000.0);
        let published = answers("tcp_ip --workarounds none", 500.0)[..6].to_vec();
        let one_off = answers("smoltcp --workarounds=-partial-ack", 9000.0);
        insta::assert_snapshot!(written(&[smoltcp, vec![with_cubic], tcp_ip, published, one_off].concat()));
    }

    /// Its runs are from 2,000 to 4,000, and so are those of the best.
    #[test]
    fn a_tie_is_bold_for_both() {
        let of = |stack, figures: [f64; 6]| figures.map(|figure| answers(stack, figure)).concat();
        let best = of("lwip", [2000.0, 3100.0, 4000.0, 2500.0, 3600.0, 3000.0]);
        let tie = of("ipstack", [2100.0, 3000.0, 3900.0, 2600.0, 3500.0, 2900.0]);
        let third = of("smoltcp", [1000.0, 1001.0, 1002.0, 1003.0, 1004.0, 1005.0]);
        insta::assert_snapshot!(written(&[best, tie, third].concat()));
    }

    #[test]
    fn the_best_stack_of_each_column_is_bold_and_the_kernel_is_no_rival() {
        let [slow, fast, kernel] =
            [("ipstack", 2000.0), ("lwip", 3000.0), ("", 9000.0)].map(|(subject, figure)| answers(subject, figure));
        let stalled = failed(&slow[4].cell, Status::Stalled);
        let six = vec![[slow.clone(), fast, kernel].concat(); 6].concat();
        let samples = [six, vec![stalled]].concat();
        insta::assert_snapshot!(written(&samples));
        assert!(blocks(&Series::split("stacks", &slow[1..], &[])).is_empty(), "a question without an answer");
    }
}
