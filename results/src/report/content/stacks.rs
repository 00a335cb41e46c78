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
pub(super) const QUESTIONS: [Question; 8] = [
    READ,
    WRITE,
    REQUESTS,
    THOUSAND,
    NEW,
    MEMORY,
    Question {
        title: "read Mbit/s at 20 ms and 0.1 % loss",
        words: "--mode reader --delay 10ms --loss 0.1%",
        answer: |gbps| gbps * 1000.0,
        ..READ
    },
    Question {
        title: "at 20 ms and 1 % loss",
        words: "--mode reader --delay 10ms --loss 1%",
        answer: |gbps| gbps * 1000.0,
        ..READ
    },
];

const AS_IT_IS: &str = " As it is: without the workarounds of our adapter (--workarounds none).";

/// The rows that are no stack: the reference, which is on the same path, and the upper bound.
fn beside() -> [Row<'static>; 2] {
    let row = |name: &str, subject: Subject| {
        let has = Box::new(move |_: &Question, cell: &Cell| cell.subject() == subject);
        Row { name: name.to_owned(), has, is_rival: false }
    };
    [row("the kernel", Subject::Kernel), row("loopback, the upper bound", Subject::Loopback)]
}

/// The table, if series of one machine and program answer all questions but those about a loss.
pub(super) fn blocks(all: &[Series]) -> Vec<Block> {
    let alike = series::together(all);
    let mut cells: Vec<&CellSummary> = alike.iter().flat_map(|one| &one.summary.cells).collect();
    // The first cell that answers a question counts, so cells without offload or congestion control come last.
    cells.sort_by_key(|row| (row.cell.offload == Offload::Off, row.cell.stack_congestion != StackCongestion::Cubic));
    let is_asked = |question: &Question| cells.iter().any(|row| path(&row.cell).is_some() && question.asks(&row.cell));
    if !QUESTIONS.iter().filter(|question| !question.loses()).all(is_asked) {
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
    let has_workarounds = stacks.iter().any(|(_, workarounds)| *workarounds == Workarounds::NONE);
    let mut rows: Vec<_> = stacks.into_iter().map(of_stack).collect();
    let relay = relay(&rows, &cells).unwrap_or_default();
    let has_row = |row: &Row| {
        cells
            .iter()
            .any(|one| QUESTIONS.iter().any(|question| (row.has)(question, &one.cell) && question.asks(&one.cell)))
    };
    let [kernel, loopback] = beside();
    // The first row that is no stack is the reference, also where it has no figure: loopback never is.
    let has_loopback = has_row(&loopback);
    rows.extend(Some(kernel).filter(|kernel| has_loopback || has_row(kernel)));
    rows.extend(Some(loopback).filter(|_| has_loopback));
    let table = questions::table("Stacks", "stack", &rows, &QUESTIONS, &cells, Figures::Medians);
    let note = format!(
        "Medians of the runs that succeeded, on {}, with one stream or as many connections as the column says. {} In parentheses: how \
         many times the kernel's figure it is, by the runs of the same rounds. The kernel is its TCP behind the same device, and behind a \
         second one and a relay between both.{relay} Loopback has no device: it is no rival, and no reference. At 20 ms: the round trip of \
         the link, whose packets are lost at random each way. ±: the interval of the median, where it is wider than 10 %.{}",
        series::machine_and_days(&alike),
        questions::about_bold("stack"),
        if has_workarounds { AS_IT_IS } else { "" }
    );
    vec![Block::Table(table), Block::Text(note)]
}

/// What the relay costs where one request waits for the other: the kernel's round trip against that of the fastest stack.
fn relay(rows: &[Row], cells: &[&CellSummary]) -> Option<String> {
    let asked = || cells.iter().copied().filter(|one| REQUESTS.asks(&one.cell));
    let kernel = asked().find(|one| one.cell.subject() == Subject::Kernel)?;
    let stacks = asked().filter(|one| rows.iter().any(|row| (row.has)(&REQUESTS, &one.cell)));
    let fastest = stacks.filter_map(|one| one.times(kernel)).max_by(f64::total_cmp)?;
    Some(format!(
        " So a request that waits for the one before takes it {fastest:.1} times as long as the fastest stack: that column has no ratio."
    ))
}

pub(super) fn path(cell: &Cell) -> Option<StackKind> {
    cell.stack().filter(|_| cell.layer == Layer::Path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{self, failed, in_round};
    use crate::sample::{Head, IdleFacts, RequestFacts, RestFacts, Sample, Status};

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

    /// All questions with the same figure.
    fn answers(stack: &str, figure: f64) -> Vec<Sample> {
        let answer = |question: &Question| {
            let offload = if question.loses() { "off" } else { "on" };
            run(&format!("-n {stack} {} --offload {offload}", question.words), figure)
        };
        QUESTIONS.iter().map(answer).collect()
    }

    /// The samples of each round.
    fn in_rounds(rounds: impl IntoIterator<Item = Vec<Sample>>) -> Vec<Sample> {
        let of_round = |(round, samples): (u32, Vec<Sample>)| samples.into_iter().map(move |run| in_round(run, round));
        (1..).zip(rounds).flat_map(of_round).collect()
    }

    /// Each of its own cells answers a question, whatever the stack's settings. A cell that differs in anything else answers none.
    #[test]
    fn a_column_has_cells_of_its_question_alone() {
        let answered = |words: &str| {
            let cell = fixture::cell(words);
            QUESTIONS.iter().filter(|question| path(&cell).is_some() && question.asks(&cell)).count()
        };
        for question in &QUESTIONS {
            for subject in ["-n smoltcp", "-n smoltcp --workarounds none", "-n lwip --offload off"] {
                assert_eq!(answered(&format!("{subject} {}", question.words)), 1, "{subject} {}", question.words);
            }
            // Of the rows beside the stacks, the kernel alone has a lossy link.
            for (subject, is_asked) in [("-n kernel", true), ("--layer loopback", !question.loses())] {
                let Ok(cell) = Cell::parse(&format!("{subject} {}", question.words)).unwrap().checked() else {
                    assert!(!is_asked);
                    continue;
                };
                let rows = beside().iter().filter(|row| (row.has)(question, &cell) && question.asks(&cell)).count();
                assert_eq!(rows, usize::from(is_asked), "{subject} {}", question.words);
            }
        }
        assert_eq!(answered("-n smoltcp -m reader --delay 10ms --loss 1 --stack-congestion cubic"), 1);
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
            "-n smoltcp -m reader --loss 1%",
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
        let with_cubic =
            run("-n smoltcp -m reader --delay 10ms --loss 1 --offload off --stack-congestion cubic", 1500.0);
        let tcp_ip = answers("tcp_ip", 1000.0);
        let published = answers("tcp_ip --workarounds none", 500.0)[..6].to_vec();
        let one_off = answers("smoltcp --workarounds=-partial-ack", 9000.0);
        insta::assert_snapshot!(written(&[smoltcp, vec![with_cubic], tcp_ip, published, one_off].concat()));
    }

    /// An older file has loopback, no kernel behind the device, and no loss at a delay.
    #[test]
    fn nothing_is_a_multiple_of_the_upper_bound() {
        let of = |subject: &str, figure| {
            let asked = QUESTIONS.iter().filter(|question| !question.loses());
            asked.map(|question| run(&format!("{subject} {}", question.words), figure)).collect::<Vec<_>>()
        };
        let round = || [of("-n lwip --offload on", 3000.0), of("--layer loopback", 9000.0)].concat();
        let text = written(&in_rounds([(); 7].map(|()| round())));
        assert!(text.contains("the kernel") && text.contains("upper bound") && !text.contains('('), "{text}");
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

    /// A column has a ratio to the kernel behind the same device, where the relay does not decide, and to nothing else.
    #[test]
    fn the_best_stack_of_each_column_is_bold_and_the_kernel_is_no_rival() {
        let [slow, fast, kernel] =
            [("ipstack", 2000.0), ("lwip", 3000.0), ("kernel", 1500.0)].map(|(stack, figure)| answers(stack, figure));
        let stalled = failed(&slow[4].cell, Status::Stalled);
        let loopback = QUESTIONS.iter().filter(|question| !question.loses());
        let loopback: Vec<_> =
            loopback.map(|question| run(&format!("--layer loopback {}", question.words), 9000.0)).collect();
        let six = vec![[slow.clone(), fast, kernel, loopback].concat(); 6];
        let samples = [in_rounds(six.clone()), vec![stalled]].concat();
        insta::assert_snapshot!(written(&samples));
        let blocks_of = |samples: &[Sample]| blocks(&Series::split("stacks", samples, &[]));
        let [_, Block::Text(note)] = &blocks_of(&samples)[..] else { unreachable!() };
        assert!(note.contains("takes it 2.0 times as long as the fastest stack"), "{note}");
        assert!(blocks_of(&slow[1..]).is_empty(), "a question without an answer");
        // Runs of no round have no ratio.
        assert!(!written(&six.concat()).contains('('));
    }

    fn head(seed: u64) -> Head {
        let environment = fixture::environment();
        Head { id: String::new(), environment, arguments: Vec::new(), seed, plan: Vec::new(), profiles: Vec::new() }
    }

    /// Two files of one build and machine may have rounds of the same number, which are others.
    #[test]
    fn a_ratio_is_of_the_rounds_of_one_matrix() {
        let of = |seed, stack| {
            let series = Series::split("stacks", &in_rounds(vec![answers(stack, 1000.0); 6]), &[]);
            series.into_iter().map(move |one| Series { head: Some(head(seed)), ..one })
        };
        let table = |seeds: [u64; 2]| {
            let all: Vec<_> = of(seeds[0], "lwip").chain(of(seeds[1], "kernel")).collect();
            let Block::Table(table) = &blocks(&all)[0] else { unreachable!() };
            table.lines(comfy_table::presets::NOTHING, |text, _| text.to_owned()).join("\n")
        };
        assert!(table([1, 1]).contains("the kernel") && table([1, 1]).contains("(1.00)"));
        assert!(!table([1, 2]).contains("the kernel") && !table([1, 2]).contains('('));
    }
}
