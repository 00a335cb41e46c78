//! The main figures of each stack, in one table.

use std::collections::BTreeSet;

use netstacks::{StackKind, Workarounds};

use super::questions::{self, Has, MEMORY, Question, READ, Row, THOUSAND, WRITE};
use crate::cell::{Cell, Layer, Offload, Subject};
use crate::measure::CellSummary;
use crate::report::model::{ARROW, Block, Chart};
use crate::report::series::{self, Series};

/// The columns of the table.
pub(super) const QUESTIONS: [Question; 4] = [READ, WRITE, THOUSAND, MEMORY];

/// The table of the cells of one machine and program, and its chart: a row for each stack, and for the kernel behind the same device;
/// `None` unless they have a download, an upload and requests.
pub(super) fn main(all: &[Series]) -> Option<(Vec<Block>, Chart)> {
    let alike = series::together(all);
    let mut cells: Vec<&CellSummary> = alike.iter().flat_map(|one| &one.summary.cells).collect();
    // The first cell that answers a question counts, so cells without offload come last.
    cells.sort_by_key(|row| row.cell.offload == Offload::Off);
    let asks = |row: &CellSummary| QUESTIONS.iter().any(|question| question.asks(&row.cell));
    let has = |question: &Question| cells.iter().any(|row| path(&row.cell).is_some() && question.asks(&row.cell));
    if ![READ, WRITE, THOUSAND].iter().all(has) {
        return None;
    }
    let stacks: BTreeSet<_> = cells.iter().filter(|row| asks(row)).filter_map(|row| path(&row.cell)).collect();
    let of_stack = |stack: StackKind| {
        let as_set = move |workarounds| -> Box<Has<'static>> {
            Box::new(move |_, cell| path(cell) == Some(stack) && cell.workarounds == workarounds)
        };
        let published = Some(as_set(Workarounds::NONE));
        Row { name: stack.to_string(), has: as_set(Workarounds::ALL), published, is_rival: true }
    };
    let kernel = Row {
        name: "the kernel".to_owned(),
        has: Box::new(|_, cell| cell.subject() == Subject::Kernel),
        published: None,
        is_rival: false,
    };
    let rows: Vec<_> = stacks.into_iter().map(of_stack).chain([kernel]).collect();
    let shown: Vec<_> = rows.iter().flat_map(|row| row.shown(&QUESTIONS, &cells)).collect();
    let note = format!(
        "Medians on {}. As published {ARROW} with our adapter; one figure where both are the same, and with our adapter. \
         One stream, or the number of connections in the head; at rest: after 5 s. The kernel is its TCP behind the same device. {} {}",
        series::machine_and_days(&alike),
        questions::about_bold("stack"),
        questions::widths(&shown),
    );
    let blocks = [Block::Table(questions::table("Stacks", "stack", &rows, &QUESTIONS, &cells)), Block::Text(note)];
    let (label, caption) =
        ("Download, upload, requests and memory of each stack", "Dark: as published. Light: with our adapter.");
    let chart = questions::chart(label, Some(caption), &QUESTIONS, &rows, &cells);
    Some((blocks.into_iter().chain(questions::failures(&shown)).collect(), chart))
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
        let answer = |question: &Question| run(&format!("-n {stack} {} --offload on", question.words), figure);
        QUESTIONS.iter().map(answer).collect()
    }

    /// The samples of each round.
    fn in_rounds(rounds: impl IntoIterator<Item = Vec<Sample>>) -> Vec<Sample> {
        let of_round = |(round, samples): (u32, Vec<Sample>)| samples.into_iter().map(move |run| in_round(run, round));
        (1..).zip(rounds).flat_map(of_round).collect()
    }

    fn blocks_of(samples: &[Sample]) -> Vec<Block> {
        main(&Series::split("stacks", samples, &[])).map(|(blocks, _)| blocks).unwrap_or_default()
    }

    /// The table, with stars around what is bold.
    fn written(samples: &[Sample]) -> String {
        let blocks = blocks_of(samples);
        let Block::Table(table) = &blocks[0] else { unreachable!() };
        let star = |text: &str, is_bold: bool| if is_bold { format!("*{text}*") } else { text.to_owned() };
        table.lines(comfy_table::presets::NOTHING, star).join("\n")
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
        }
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
            "-n smoltcp -m rr --parallel 1000 --request 1000",
            "-n smoltcp -m rr --parallel 1000 --depth 4",
            "-n smoltcp -m rr",
            "-n smoltcp -m idle --parallel 10",
            "-n smoltcp -m idle --parallel 1000 --delay 5ms",
            "-n smoltcp -m reader --loss 1%",
        ] {
            assert_eq!(answered(other), 0, "{other}");
        }
    }

    /// Without offload `tcp_ip` has no active workaround, so its cell is the same with and without them. One workaround that is off
    /// makes another cell.
    #[test]
    fn a_cell_has_the_figure_as_published_and_with_our_adapter() {
        let smoltcp = answers("smoltcp", 3000.0);
        let published = answers("smoltcp --workarounds none", 0.01);
        let tcp_ip = answers("tcp_ip", 1000.0);
        let one_off = answers("smoltcp --workarounds=-partial-ack", 9000.0);
        insta::assert_snapshot!(written(&[smoltcp, published, tcp_ip, one_off].concat()));
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

    /// A row that failed is behind all others, and its failures are under the table. Loopback has no row.
    #[test]
    fn the_best_stack_of_each_column_is_bold_and_the_kernel_is_no_rival() {
        let [slow, fast, kernel] =
            [("ipstack", 2000.0), ("lwip", 3000.0), ("kernel", 1500.0)].map(|(stack, figure)| answers(stack, figure));
        let stalled = failed(&slow[1].cell, Status::Stalled);
        let loopback: Vec<_> =
            QUESTIONS.iter().map(|question| run(&format!("--layer loopback {}", question.words), 9000.0)).collect();
        let six = vec![[slow.clone(), fast, kernel, loopback].concat(); 6];
        let samples = [in_rounds(six), vec![stalled]].concat();
        insta::assert_snapshot!(written(&samples));
        let [_, Block::Text(note), Block::List(_, failures)] = &blocks_of(&samples)[..] else { unreachable!() };
        assert_eq!(failures, &["ipstack: upload Gbps: 1 of 7 stalled"]);
        assert!(note.contains("All are good to ±10 %"), "{note}");
        assert!(blocks_of(&slow[1..]).is_empty(), "no download");
    }

    fn head(seed: u64) -> Head {
        let environment = fixture::environment();
        Head { id: String::new(), environment, arguments: Vec::new(), seed, plan: Vec::new(), profiles: Vec::new() }
    }

    /// Two files of one build and machine may have rounds of the same number, which are others.
    #[test]
    fn a_table_is_of_one_matrix() {
        let of = |seed, stack| {
            let series = Series::split("stacks", &in_rounds(vec![answers(stack, 1000.0); 6]), &[]);
            series.into_iter().map(move |one| Series { head: Some(head(seed)), ..one })
        };
        let table = |seeds: [u64; 2]| {
            let all: Vec<_> = of(seeds[0], "lwip").chain(of(seeds[1], "smoltcp")).collect();
            let Block::Table(table) = &main(&all).unwrap().0[0] else { unreachable!() };
            table.lines(comfy_table::presets::NOTHING, |text, _| text.to_owned()).join("\n")
        };
        assert!(table([1, 1]).contains("smoltcp"));
        assert!(!table([1, 2]).contains("smoltcp"));
    }
}
