//! Speeds against the number of shards, and what a model says about more shards than were measured.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroUsize};

use super::{charts, overview, requests};
use crate::measure::metric::speed;
use crate::measure::scaling::{self, Round, Scaling};
use crate::measure::{CellSummary, Estimate};
use crate::report::axis;
use crate::report::format;
use crate::report::model::{Axis, Block, Column, Scale, Table};
use crate::report::series::Series;
use crate::scenario::{Cell, Layer, RuntimeKind, plural};

/// A subject and its work, with each number of shards.
struct Subject<'a> {
    /// Its cell without the shards.
    cell: Cell,
    rows: BTreeMap<u16, &'a CellSummary>,
    rounds: Vec<Round>,
    /// The model; `None` over a device, and without a round that has every number of shards.
    model: Option<Scaling>,
}

/// Charts, and a table of the subjects with several numbers of shards.
pub(super) fn blocks(one: &Series) -> Vec<Block> {
    let subjects = if requests::has_speeds(one) { subjects(one) } else { Vec::new() };
    if subjects.is_empty() {
        return Vec::new();
    }
    let unit = one.unit();
    let plot = |rows: &[&CellSummary]| {
        let strokes = requests::lines(rows, |cell| cell.shards.get())?;
        let most = rows.iter().map(|row| row.cell.shards.get()).max()?;
        Some(charts::small(Axis { name: "", range: 0.0..f64::from(most) * 1.1, scale: Scale::Counts }, strokes))
    };
    let rows: Vec<_> = one.summary.cells.iter().collect();
    let charts = requests::charts(&rows, without_shards, &format!("{unit} by shards"), plot);
    let note = format!(
        "Median {unit} by the number of shards. A subject that makes full use of each shard is a straight line through \
         the corner."
    );
    let mut blocks = requests::with_note(charts, &note);
    blocks.push(Block::Table(table(one, &subjects)));
    blocks.push(Block::Text(overview::in_every_run(one)));
    let has = |figure: fn(&Scaling) -> Option<Estimate>| {
        subjects.iter().filter_map(|of| of.model.as_ref()).any(|model| figure(model).is_some())
    };
    if has(Scaling::serial) {
        blocks.push(Block::Text(explanation(has(Scaling::pairs))));
    }
    blocks
}

fn explanation(has_pairs: bool) -> String {
    let law = if has_pairs {
        "the universal scalability law: N shards are N / (1 + σ (N - 1) + κ N (N - 1)) times as fast as one. σ is the share \
         of the work that only one shard can do at a time, and κ is the work that each pair has with each other"
    } else {
        "Amdahl's law: N shards are N / (1 + σ (N - 1)) times as fast as one. σ is the share of the work that only one shard \
         can do at a time. Two numbers of shards cannot show what more shards cost each other"
    };
    format!(
        "The columns from σ on are a model, not a measurement. The model is {law}. It is fitted by least squares to the runs of each \
         round in memory, with at most as many shards as the machine has processors; each figure is the median of the \
         rounds, with its 95 % interval. The interval has the noise of the runs, not the error of the law."
    )
}

/// The cell with one shard, and a worker for it if each shard has one.
fn without_shards(cell: Cell) -> Cell {
    let shards = NonZeroUsize::from(cell.shards);
    let runtime = match cell.runtime {
        Some(RuntimeKind::MultiThread(Some(workers))) if workers == shards => {
            Some(RuntimeKind::MultiThread(Some(NonZeroUsize::MIN)))
        }
        runtime => runtime,
    };
    Cell { shards: NonZeroU16::MIN, runtime, ..cell }
}

/// The subjects with several numbers of shards.
fn subjects(one: &Series) -> Vec<Subject<'_>> {
    let mut rows: BTreeMap<Cell, BTreeMap<u16, &CellSummary>> = BTreeMap::new();
    for row in &one.summary.cells {
        rows.entry(without_shards(row.cell.clone())).or_default().insert(row.cell.shards.get(), row);
    }
    let processors = one.environment.machine.cpus;
    let subjects = rows.into_iter().filter(|(_, rows)| rows.len() > 1).map(|(cell, rows)| {
        let rounds = rounds(one, &rows);
        let mut fitted = rounds.clone();
        for round in &mut fitted {
            round.retain(|shards, _| processors.is_none_or(|count| usize::from(*shards) <= count));
        }
        // Over a device the kernel shares the processors with the stack.
        let model = (cell.layer() == Layer::Stack).then(|| Scaling::of(&fitted)).flatten();
        Subject { cell, rows, rounds, model }
    });
    subjects.collect()
}

/// The speeds of the runs of some rows, by their rounds.
fn rounds(one: &Series, rows: &BTreeMap<u16, &CellSummary>) -> Vec<Round> {
    let mut rounds: BTreeMap<u32, Round> = BTreeMap::new();
    let good = one.samples.iter().filter(|sample| sample.is_ok());
    for sample in good.filter(|sample| rows.values().any(|row| row.cell == sample.cell)) {
        if let Some((round, speed)) = sample.measured.round.zip(speed(sample)) {
            rounds.entry(round).or_default().insert(sample.cell.shards.get(), speed);
        }
    }
    rounds.into_values().collect()
}

fn table(one: &Series, subjects: &[Subject<'_>]) -> Table {
    let cells: Vec<_> = subjects.iter().map(|of| &of.cell).collect();
    let counts: BTreeSet<u16> = subjects.iter().flat_map(|of| of.rows.keys().copied()).collect();
    let most = counts.last().copied().unwrap_or(1);
    let mut table = Table::new(format!("Shards of {}", one.label));
    table.push(Column::new("subject", false), cells.iter().map(|cell| charts::name(cell)));
    for axis in axis::differing(&cells).into_iter().filter(|axis| axis.name != "netstack") {
        table.push(Column::new(axis.title, axis.is_number), cells.iter().map(|cell| axis.value(cell)));
    }
    let mut push = |title: String, value: &dyn Fn(&Subject<'_>) -> Option<String>| {
        table.push(Column::new(title, true), subjects.iter().map(value));
    };
    for count in counts {
        let title = format!("{}, {}", plural(count, "shard"), one.unit());
        push(title, &|of| of.rows.get(&count).map(|row| format::figure_or_failures(row)));
    }
    push(format!("{most} by 1"), &|of| {
        let (times, rounds) = scaling::times(&of.rounds, most)?;
        Some(written(times, rounds, |times| format!("{times:.2}")))
    });
    let mut model =
        |title: String, figure: &dyn Fn(&Scaling) -> Option<Estimate>, write: &dyn Fn(f64, &Subject<'_>) -> String| {
            let of_subject = |of: &Subject<'_>| {
                let model = of.model.as_ref()?;
                Some(written(figure(model)?, model.rounds(), |value| write(value, of)))
            };
            let figures: Vec<_> = subjects.iter().map(of_subject).collect();
            if figures.iter().any(Option::is_some) {
                table.push(Column::new(title, true), figures);
            }
        };
    model("σ".to_owned(), &Scaling::serial, &|value, _| format!("{value:.3}"));
    model("κ".to_owned(), &Scaling::pairs, &|value, _| format!("{value:.5}"));
    for count in [2, 4].into_iter().filter_map(|times| most.checked_mul(times)) {
        let write =
            |value, of: &Subject<'_>| of.rows.values().next().map_or_else(String::new, |row| format::speed(row, value));
        model(format!("model: {count} shards"), &|model| model.speed(count), &write);
    }
    table
}

/// A figure of so many rounds and its interval, which one round does not have.
fn written(figure: Estimate, rounds: usize, write: impl Fn(f64) -> String) -> String {
    let Estimate { median, low, high } = figure;
    let interval = (rounds > 1).then(|| format!(" ({} to {})", write(low), write(high)));
    write(median) + &interval.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use netstacks::StackKind;

    use super::*;
    use crate::measure::fixture::{cell, in_round, sample};
    use crate::report::model::{Mark, Plot, Shape, Sign};
    use crate::sample::Sample;
    use crate::scenario::{Mode, Subject as Of};

    /// Two rounds of a stack with these Gbps, by the number of shards. Each shard has a worker.
    fn runs(subject: Of, speeds: &[(u16, f64)]) -> Vec<Sample> {
        let run = |(shards, gbps): &(u16, f64), round| {
            let runtime = Some(RuntimeKind::MultiThread(NonZeroUsize::new(usize::from(*shards))));
            let shards = NonZeroU16::new(*shards).unwrap();
            in_round(sample(&Cell { subject, runtime, shards, ..cell(StackKind::Lwip, Mode::Reader) }, *gbps), round)
        };
        (1..=2).flat_map(|round| speeds.iter().map(move |speed| run(speed, round))).collect()
    }

    fn blocks_of(runs: &[Sample]) -> Vec<Block> {
        blocks(&Series::split("runs", runs, &[])[0])
    }

    fn table_of(blocks: &[Block]) -> &Table {
        blocks.iter().find_map(|block| if let Block::Table(table) = block { Some(table) } else { None }).unwrap()
    }

    #[test]
    fn memory_has_a_model_and_a_path_has_measurements() {
        let memory = runs(Of::Stack(StackKind::Smoltcp), &[(1, 10.0), (2, 15.0)]);
        let path = runs(Of::Path(StackKind::Smoltcp), &[(1, 8.0), (2, 8.0)]);
        let one_instance = runs(Of::Stack(StackKind::Lwip), &[(1, 20.0)]);
        let blocks = blocks_of(&[memory, path, one_instance].concat());
        let table = table_of(&blocks);
        let titles: Vec<_> = table.columns.iter().map(|column| column.title.as_str()).collect();
        let expected = [
            "subject",
            "layer",
            "1 shard, Gbps",
            "2 shards, Gbps",
            "2 by 1",
            "σ",
            "model: 4 shards",
            "model: 8 shards",
        ];
        assert_eq!(titles, expected);
        let memory = [
            "smoltcp",
            "stack",
            "10.00",
            "15.00",
            "1.50 (1.50 to 1.50)",
            "0.333 (0.333 to 0.333)",
            "20.00 (20.00 to 20.00)",
            "24.00 (24.00 to 24.00)",
        ];
        let path = ["smoltcp", "path", "8.00", "8.00", "1.00 (1.00 to 1.00)", "–", "–", "–"];
        assert_eq!(table.rows, [memory, path]);
        let Some(Block::Text(explained)) = blocks.last() else { unreachable!() };
        assert!(explained.contains("a model, not a measurement. The model is Amdahl's law"), "{explained}");
    }

    /// Of two rounds, only one has both numbers of shards.
    #[test]
    fn one_pair_has_no_interval() {
        let mut runs = runs(Of::Stack(StackKind::Smoltcp), &[(1, 10.0), (2, 15.0)]);
        runs.pop();
        let blocks = blocks_of(&runs);
        assert_eq!(table_of(&blocks).rows[0][3..], ["1.50", "0.333", "20.00", "24.00"]);
    }

    #[test]
    fn a_chart_has_a_line_for_each_subject() {
        let smoltcp = runs(Of::Stack(StackKind::Smoltcp), &[(1, 10.0), (2, 15.0), (4, 19.0)]);
        let lwip = runs(Of::Stack(StackKind::Lwip), &[(1, 20.0)]);
        let blocks = blocks_of(&[smoltcp, lwip].concat());
        let Some(Block::Gallery(charts)) = blocks.first() else { unreachable!() };
        let [Plot::Plane { x, strokes, .. }] = &charts.iter().map(|chart| &chart.plot).collect::<Vec<_>>()[..] else {
            unreachable!()
        };
        assert!(x.range.start.abs() < 1e-9 && x.range.end > 4.0);
        let of = |mark| strokes.iter().find(|line| line.mark == mark && line.shape == Shape::Line).unwrap();
        assert_eq!(of(Mark::filled(Sign::Square)).points, [(1.0, 10.0), (2.0, 15.0), (4.0, 19.0)]);
        assert_eq!(of(Mark::filled(Sign::Circle)).points, [(1.0, 20.0)]);
    }

    /// The machine of the fixture has two processors, so four shards wait for each other.
    #[test]
    fn more_shards_than_processors_are_not_in_the_model() {
        let blocks = blocks_of(&runs(Of::Stack(StackKind::Smoltcp), &[(1, 10.0), (2, 15.0), (4, 11.0)]));
        let row = &table_of(&blocks).rows[0];
        assert_eq!(
            row[4..],
            ["1.10 (1.10 to 1.10)", "0.333 (0.333 to 0.333)", "24.00 (24.00 to 24.00)", "26.67 (26.67 to 26.67)"]
        );
    }

    #[test]
    fn one_number_of_shards_has_no_section() {
        assert!(blocks_of(&runs(Of::Stack(StackKind::Smoltcp), &[(2, 15.0)])).is_empty());
    }
}
