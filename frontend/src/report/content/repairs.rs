//! The worth of each repair: how the main figures of a stack change when it is switched off.

use std::collections::BTreeSet;

use netstacks::{StackKind, Workarounds as Repairs};

use super::questions::{self, Figures, Question};
use super::stacks::{QUESTIONS, path};
use crate::measure::{CellChange, CellSummary, Comparison, Estimate};
use crate::report::format::percent;
use crate::report::model::{Block, Column, Table};
use crate::report::series::Series;
use crate::sample::Sample;
use crate::scenario::Cell;

/// The explanation of a table. The changes of its cells are not corrected for their number.
const KEY: &str = "The first row has the medians with all repairs. Each other row has the change when its repair is switched \
    off, or when all are (none): the median of the pairs of runs in one round, with its 95 % interval, or with the range if there \
    are fewer than six pairs. A dash means that the interval includes no change, or that the repair is not active there. About one \
    in twenty intervals is wrong by chance.";

/// A table for each stack, if samples of one machine and program have repairs that are switched off one by one.
pub(super) fn sections(all: &[Series]) -> Vec<(StackKind, Vec<Block>)> {
    let is_answer = |cell: &Cell| path(cell).is_some() && QUESTIONS.iter().any(|question| question.asks(cell));
    let alike = || all.iter().filter(|one| one.environment == all[0].environment);
    let samples: Vec<_> = alike().flat_map(|one| &one.samples).filter(|sample| is_answer(&sample.cell)).collect();
    let is_one_off = |sample: &&Sample| ![Repairs::ALL, Repairs::NONE].contains(&sample.cell.repairs);
    if !samples.iter().any(is_one_off) {
        return Vec::new();
    }
    let cells: Vec<_> = alike().flat_map(|one| &one.summary.cells).collect();
    let stacks: BTreeSet<_> = samples.iter().filter_map(|sample| path(&sample.cell)).collect();
    let blocks = |stack| vec![Block::Table(table(stack, &samples, &cells)), Block::Text(KEY.to_owned())];
    stacks.into_iter().map(|stack| (stack, blocks(stack))).collect()
}

/// The table of a stack: a row for each setting of its repairs, by the word of the command line.
fn table(stack: StackKind, samples: &[&Sample], cells: &[&CellSummary]) -> Table {
    let settings: Vec<_> = netstacks::Workaround::of(stack).map(Repairs::all_but).chain([Repairs::NONE]).collect();
    // The same cell for all settings: only then can they be compared.
    let with = |repairs: Repairs| -> Vec<Sample> {
        let is_its = |sample: &&&Sample| path(&sample.cell) == Some(stack) && sample.cell.repairs_as(repairs);
        let alike = |sample: &&Sample| Sample {
            cell: Cell { repairs: Repairs::ALL, ..sample.cell.clone() },
            ..(*sample).clone()
        };
        samples.iter().filter(is_its).map(alike).collect()
    };
    let all = with(Repairs::ALL);
    let changes: Vec<_> =
        settings.iter().map(|repairs| Comparison::within_rounds(&all, &with(*repairs), 0.0).ok()).collect();
    let mut table = Table::new(format!("Repairs of {stack}"));
    let names = [Repairs::ALL].iter().chain(&settings).map(Repairs::to_string);
    table.push(Column::new("repairs", false), names);
    for question in &QUESTIONS {
        let is_first = |row: &&&CellSummary| {
            path(&row.cell) == Some(stack) && row.cell.repairs == Repairs::ALL && question.asks(&row.cell)
        };
        let first = cells.iter().find(is_first).map(|row| questions::text(question, row, None, Figures::Medians));
        let of_setting = |comparison: &Option<Comparison>| {
            let cells = &comparison.as_ref()?.cells;
            change(question, cells.iter().find(|cell| question.asks(&cell.cell))?)
        };
        table.push(Column::new(question.title, true), [first].into_iter().chain(changes.iter().map(of_setting)));
    }
    table
}

/// The change of a cell; `None` if it is not told apart from none.
fn change(question: &Question, cell: &CellChange) -> Option<String> {
    let new = cell.new.as_ref()?;
    let ratio = cell.change.map(|change| change.ratio).map(|ratio| {
        let inverse = Estimate { median: 1.0 / ratio.median, low: 1.0 / ratio.high, high: 1.0 / ratio.low };
        if question.less_is_better { inverse } else { ratio }
    });
    let change = ratio.filter(|ratio| ratio.low > 1.0 || ratio.high < 1.0).map(|ratio| {
        let [median, low, high] = [ratio.median, ratio.low, ratio.high].map(percent);
        format!("{median} % ({low} to {high})")
    });
    let failures = (new.failed() > 0).then(|| format!("{} of {} failed", new.failed(), new.runs()));
    let words: Vec<_> = change.into_iter().chain(failures).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::measure::fixture::{cell, failed, in_round, sample};
    use crate::sample::{IdleFacts, Status};
    use crate::scenario::{Mode, RuntimeKind, Workload};

    /// A stream, and a thousand connections of so many bytes each, in six rounds.
    fn rounds(stack: StackKind, repairs: &str, gbps: f64, bytes: u64) -> Vec<Sample> {
        let runtime = Some(RuntimeKind::MultiThread(None));
        let stream =
            Cell { runtime, offload: Some(true), repairs: repairs.parse().unwrap(), ..cell(stack, Mode::Reader) };
        let idle = Cell { workload: Workload::Idle, parallel: 1000, ..stream.clone() };
        let of_round = |round: u32| {
            // The machine drifts.
            let stream = sample(&stream, gbps * f64::from(round));
            let mut idle = sample(&idle, 0.0);
            idle.measured.idle = Some(IdleFacts {
                connections: 1000,
                rss_before_bytes: Some(0),
                rss_open_bytes: Some(bytes * 1000),
                rss_idle_bytes: Some(bytes * 1000),
                ..IdleFacts::default()
            });
            [in_round(stream, round), in_round(idle, round)]
        };
        (1..=6).flat_map(of_round).collect()
    }

    #[test]
    fn each_repair_is_compared_with_all_of_them() {
        let smoltcp = |repairs, gbps, bytes| rounds(StackKind::Smoltcp, repairs, gbps, bytes);
        let mut broken = smoltcp("-no-ack-delay", 5.0, 2048);
        for run in broken.iter_mut().filter(|run| run.cell.workload == Workload::Idle).take(2) {
            *run = in_round(failed(&run.cell, Status::Stalled), run.measured.round.unwrap());
        }
        let with_all = [smoltcp("all", 10.0, 2048), rounds(StackKind::TcpIp, "all", 4.0, 1024)].concat();
        // The one repair that tcp_ip can switch off.
        let none = [smoltcp("none", 2.5, 1024), rounds(StackKind::TcpIp, "none", 1.0, 1024)].concat();
        assert!(sections(&Series::split("repairs", &[with_all.clone(), none.clone()].concat(), &[])).is_empty());
        let samples = [with_all, smoltcp("-late-fin", 10.0, 4096), broken, none].concat();
        let mut lines = Vec::new();
        for (stack, blocks) in sections(&Series::split("repairs", &samples, &[])) {
            let Block::Table(table) = &blocks[0] else { unreachable!() };
            let plain = |text: &str, _| text.to_owned();
            lines.push(stack.to_string());
            lines.extend(table.lines(comfy_table::presets::NOTHING, plain));
        }
        insta::assert_snapshot!(lines.join("\n"));
    }
}
