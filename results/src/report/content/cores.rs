//! Speeds against the number of shards.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use super::{charts, overview, requests};
use crate::cell::Cell;
use crate::measure::metric::speed;
use crate::measure::{CellSummary, estimate};
use crate::plural;
use crate::report::axis;
use crate::report::format;
use crate::report::model::{Axis, Block, Column, Scale, Table};
use crate::report::series::Series;

type Round = BTreeMap<u16, f64>;

struct Subject<'a> {
    cell: Cell,
    rows: BTreeMap<u16, &'a CellSummary>,
    rounds: Vec<Round>,
}

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
    blocks
}

fn without_shards(cell: Cell) -> Cell {
    let one = NonZeroU16::MIN;
    let worker_threads = cell.worker_threads.map(|workers| if workers == cell.shards { one } else { workers });
    Cell { shards: one, worker_threads, ..cell }
}

fn subjects(one: &Series) -> Vec<Subject<'_>> {
    let mut rows: BTreeMap<Cell, BTreeMap<u16, &CellSummary>> = BTreeMap::new();
    for row in &one.summary.cells {
        rows.entry(without_shards(row.cell.clone())).or_default().insert(row.cell.shards.get(), row);
    }
    let several = rows.into_iter().filter(|(_, rows)| rows.len() > 1);
    several.map(|(cell, rows)| Subject { cell, rounds: rounds(one, &rows), rows }).collect()
}

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
    axis::push_differing(&mut table, &cells, &["netstack"]);
    let mut push = |title: String, value: &dyn Fn(&Subject<'_>) -> Option<String>| {
        table.push(Column::new(title, true), subjects.iter().map(value));
    };
    for count in counts {
        let title = format!("{}, {}", plural(count, "shard"), one.unit());
        push(title, &|of| of.rows.get(&count).map(|row| format::figure_or_failures(row)));
    }
    push(format!("{most} by 1"), &|of| {
        let times = |round: &Round| Some(round.get(&most)? / round.get(&1).filter(|speed| **speed > 0.0)?);
        let times: Vec<_> = of.rounds.iter().filter_map(times).collect();
        let never_failed = |count: &u16| of.rows.get(count).is_none_or(|row| row.failures.is_empty());
        let estimate = estimate(&times).filter(|_| [1, most].iter().all(never_failed))?;
        // One round has no interval.
        let interval = (times.len() > 1).then(|| format!(" ({})", format::ends(&estimate, |end| format!("{end:.2}"))));
        Some(format!("{:.2}{}", estimate.median, interval.unwrap_or_default()))
    });
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{in_round, run};
    use crate::report::model::{Mark, Plane, Plot, Shape, Sign};
    use crate::sample::Sample;

    /// Two rounds of a stack with these Gbps, by the number of shards. Each shard has a worker.
    fn runs(stack: &str, speeds: &[(u16, f64)]) -> Vec<Sample> {
        let run = |(shards, gbps): &(u16, f64), round| {
            in_round(run(&format!("-n {stack} -m reader --shards {shards} --worker-threads {shards}"), *gbps), round)
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
    fn subjects_with_several_numbers_of_shards_are_compared_within_rounds() {
        let several = runs("smoltcp", &[(1, 10.0), (2, 15.0)]);
        let one_instance = runs("lwip", &[(1, 20.0)]);
        let table = &blocks_of(&[several.clone(), one_instance].concat());
        let titles: Vec<_> = table_of(table).columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(titles, ["subject", "1 shard, Gbps", "2 shards, Gbps", "2 by 1"]);
        assert_eq!(table_of(table).rows, [["smoltcp", "10.00", "15.00", "1.50 (range 1.50 to 1.50)"]]);
        // Of two rounds, only one has both numbers of shards.
        assert_eq!(table_of(&blocks_of(&several[..3])).rows[0][3], "1.50");
    }

    #[test]
    fn a_chart_has_a_line_for_each_subject() {
        let smoltcp = runs("smoltcp", &[(1, 10.0), (2, 15.0), (4, 19.0)]);
        let lwip = runs("lwip", &[(1, 20.0)]);
        let blocks = blocks_of(&[smoltcp, lwip].concat());
        let Some(Block::Gallery(charts)) = blocks.first() else { unreachable!() };
        let [Plot::Plane(Plane { x, strokes, .. })] = &charts.iter().map(|chart| &chart.plot).collect::<Vec<_>>()[..]
        else {
            unreachable!()
        };
        assert!(x.range.start.abs() < 1e-9 && x.range.end > 4.0);
        let of = |mark| strokes.iter().find(|line| line.mark == mark && line.shape == Shape::Line).unwrap();
        assert_eq!(of(Mark::filled(Sign::Square)).points, [(1.0, 10.0), (2.0, 15.0), (4.0, 19.0)]);
        assert_eq!(of(Mark::filled(Sign::Circle)).points, [(1.0, 20.0)]);
    }

    #[test]
    fn one_number_of_shards_has_no_section() {
        assert!(blocks_of(&runs("smoltcp", &[(2, 15.0)])).is_empty());
    }
}
