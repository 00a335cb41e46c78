//! Tables with a row for each cell or each sample, made from the lists of axes and metrics.

use crate::cell::Cell;
use crate::cell::properties::PROPERTIES;
use crate::measure::CellSummary;
use crate::measure::metric::{METRICS, Metric, Taken, speed_of};
use crate::report::axis;
use crate::report::format;
use crate::report::model::{Benchmark, Block, Column, Measure, Need, Table};
use crate::report::series::Series;
use crate::sample::Sample;

pub(in crate::report) fn blocks(one: &Series) -> Vec<Block> {
    let mut blocks = vec![Block::Table(table(one))];
    blocks.extend(at_rest(one));
    let shared = one.shared().sentences();
    blocks.extend((!shared.is_empty()).then_some(Block::Text(shared)));
    blocks.extend(notes(one));
    let cells = axis::cells(&one.summary.cells);
    let columns = metrics(&cells, |metric| metric.in_cells || metric.is_of_rest())
        .map(|metric| explained(metric, &cells))
        .collect();
    blocks.push(Block::Details(
        "The columns".to_owned(),
        vec![Block::List("Each is over the runs that did not fail:", columns)],
    ));
    blocks
}

pub(super) fn notes(one: &Series) -> impl Iterator<Item = Block> {
    let lists = [("Failures:", format::details(&one.summary)), ("Warnings:", format::warnings(&one.summary))];
    lists.into_iter().filter(|(_, lines)| !lines.is_empty()).map(|(title, lines)| Block::List(title, lines))
}

fn metrics(cells: &[&Cell], wanted: fn(&Metric) -> bool) -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(move |metric| wanted(metric) && cells.iter().any(|cell| (metric.exists)(cell)))
}

/// The metrics that a page shows first, beside the speed: cost, memory, loss and latency.
const WANTED: [&str; 11] = [
    "cores_per_gbit",
    "subject_cpu_us_per_request",
    "bytes_per_connection_5s",
    "released_share",
    "latency_p50_us",
    "latency_p99_us",
    "lost_share",
    "retransmits",
    "device_drops",
    "rss_bytes",
    "peak_rss_bytes",
];

fn need(metric: &Metric) -> Need {
    if WANTED.contains(&metric.name) { Need::Wanted } else { Need::Extra }
}

fn explained(metric: &Metric, cells: &[&Cell]) -> String {
    let over = match metric.taken {
        Taken::Median(_) => "; the median of the runs",
        Taken::Quantile(_) if cells.iter().any(|cell| speed_of(cell).name == metric.name) => "; the median of the runs",
        Taken::Maximum(_) => "; the largest of the runs",
        Taken::Quantile(_) => "; of all runs together",
        Taken::Relative(_) => "",
    };
    let better = metric.more_is_better.map(|more| if more { "; more is better" } else { "; less is better" });
    format!("{}: {}{over}{}", format::head(metric, cells), metric.about, better.unwrap_or_default())
}

/// The rows of a summary. A property that is equal for all of them has no column; see [`axis::Shared`].
fn table(one: &Series) -> Table {
    let (rows, cells) = (&one.summary.cells, axis::cells(&one.summary.cells));
    let mut table = Table::new(format!("Figures of {}", one.label));
    if one.is_forward() {
        let numbers = cells.iter().map(|cell| Some(cell.forwarder()?.row()?.to_string()));
        table.push(Column::new("#", true), numbers);
    }
    axis::push_differing(&mut table, &cells, &[]);
    for metric in metrics(&cells, |metric| metric.in_cells) {
        let head = Column::new(format::head(metric, &cells), true);
        if metric.name == one.speed().name {
            table.push(head, rows.iter().map(format::figure_or_failures));
            table.push(Column::new("95 % interval", true), rows.iter().map(format::interval));
            table.push(
                Column::new("runs", true).if_room(Need::Extra),
                rows.iter().map(|row| (row.runs - row.failures.values().sum::<usize>()).to_string()),
            );
        } else {
            table.push(head.if_room(need(metric)), rows.iter().map(|row| format::figure(row, metric)));
        }
    }
    let slower = |row: &CellSummary| {
        let runs = row.speeds.len();
        row.warnings.iter().find_map(|warning| warning.slower_runs(runs)).map(|slower| format!("{slower} of {runs}"))
    };
    if rows.iter().any(|row| slower(row).is_some()) {
        table.push(Column::new("slower by the end", false).if_room(Need::Wanted), rows.iter().map(slower));
    }
    table
}

/// What the subjects did without a load, of the rows of which it is known.
fn at_rest(one: &Series) -> Vec<Block> {
    let has_any =
        |row: &CellSummary| METRICS.iter().any(|metric| metric.is_of_rest() && row.figure(metric.name).is_some());
    let rows: Vec<_> = one.summary.cells.iter().filter(|row| has_any(row)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let cells = axis::cells(rows.iter().copied());
    let mut table = Table::new(format!("At rest, of {}", one.label));
    axis::push_differing(&mut table, &cells, &[]);
    for metric in metrics(&cells, Metric::is_of_rest) {
        table.push(Column::new(format::head(metric, &cells), true), rows.iter().map(|row| format::figure(row, metric)));
    }
    vec![Block::Text("At rest, before the load and after it:".to_owned()), Block::Table(table)]
}

pub(super) fn samples(one: &Series) -> Table {
    let (samples, cells) = (&one.samples, axis::cells(&one.summary.cells));
    let mut table = Table::new(format!("Samples of {}", one.label));
    let mut push = |column: Column, value: &dyn Fn(&Sample) -> Option<String>| {
        table.push(column, samples.iter().map(value));
    };
    push(Column::new("cell", false), &|sample| Some(sample.cell.to_string()));
    push(Column::new("round", true), &|sample| sample.measured.round.map(|round| round.to_string()));
    push(Column::new("status", false), &|sample| Some(sample.measured.status.to_string()));
    for metric in metrics(&cells, |metric| metric.in_samples) {
        let need = if metric.name == one.speed().name { Need::Always } else { need(metric) };
        push(Column::new(format::head(metric, &cells), true).if_room(need), &|sample| {
            Some(metric.write(metric.of_run(sample).filter(|_| (metric.exists)(&sample.cell))?))
        });
    }
    push(Column::new("detail", false), &|sample| sample.measured.detail.as_deref().map(format::shortened));
    table
}

pub(super) fn records(all: &[Series]) -> Table {
    let rows: Vec<(&Series, &CellSummary)> =
        all.iter().flat_map(|one| one.summary.cells.iter().map(move |row| (one, row))).collect();
    let mut table = Table::new("");
    let mut push = |title: String, is_number, value: &dyn Fn(&Series, &CellSummary) -> Option<String>| {
        let values = rows.iter().map(|(one, row)| value(one, row).unwrap_or_default());
        table.push(Column::new(title, is_number), values);
    };
    push("series".to_owned(), false, &|one, _| Some(one.label.clone()));
    push("environment".to_owned(), false, &|one, _| Some(one.environment.id()));
    for axis in PROPERTIES {
        push(axis.name.to_owned(), axis.is_number, &|_, row| Some(axis.machine_value(&row.cell)));
    }
    push("runs".to_owned(), true, &|_, row| Some(row.runs.to_string()));
    push("runs_ok".to_owned(), true, &|_, row| Some(row.speeds.len().to_string()));
    push("outliers".to_owned(), true, &|_, row| Some(row.outliers.len().to_string()));
    push("interval_or_range".to_owned(), false, &|_, row| Some(row.estimate?.name().to_owned()));
    for metric in &METRICS {
        let is_median = matches!(metric.taken, Taken::Median(_));
        if !(metric.is_speed() && is_median) {
            push(metric.name.to_owned(), true, &|_, row| Some(row.figure(metric.name)?.to_string()));
        }
        if metric.is_speed() {
            let estimate = |row: &CellSummary| row.estimate.filter(|_| speed_of(&row.cell).name == metric.name);
            let median = |row: &CellSummary| match estimate(row) {
                Some(estimate) => Some(estimate.median),
                // A cell with a rate has requests a second, but its speed is the p99.
                None => row.figure(metric.name).filter(|_| is_median),
            };
            push(format!("median_{}", metric.name), true, &|_, row| Some(median(row)?.to_string()));
            push(format!("low_{}", metric.name), true, &|_, row| Some(estimate(row)?.low.to_string()));
            push(format!("high_{}", metric.name), true, &|_, row| Some(estimate(row)?.high.to_string()));
        }
    }
    push("failures".to_owned(), false, &|_, row| Some(format::failures(row)));
    push("detail".to_owned(), false, &|_, row| row.detail.clone());
    push("warnings".to_owned(), false, &|_, row| {
        Some(row.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    });
    table
}

/// The figures of each cell that has any. If several series have the same cell, the name begins with the series.
pub(super) fn benchmarks(all: &[Series]) -> Vec<Benchmark> {
    let rows = || all.iter().flat_map(|one| one.summary.cells.iter().map(move |row| (one, row)));
    let named = |one: &Series, row: &CellSummary| {
        let name = format::full_name(&row.cell);
        let count = rows().filter(|(_, other)| format::full_name(&other.cell) == name).count();
        if count > 1 { format!("{}: {name}", one.label) } else { name }
    };
    let with_figures = rows().filter_map(|(one, row)| {
        let estimate = row.estimate?;
        let measure = |metric: &'static Metric| {
            let is_speed = speed_of(&row.cell).name == metric.name;
            let value = if is_speed { estimate.median } else { row.figure(metric.name)? };
            Some(Measure {
                name: metric.name,
                value,
                interval: (is_speed && row.speeds.len() > 1).then_some([estimate.low, estimate.high]),
            })
        };
        // Without the metrics relative to other cells: they follow from these figures.
        let of_itself = METRICS.iter().filter(|metric| metric.in_cells && !matches!(metric.taken, Taken::Relative(_)));
        Some(Benchmark { name: named(one, row), measures: of_itself.filter_map(measure).collect() })
    });
    with_figures.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use platform::Switches;

    use super::*;
    use crate::measure::fixture;
    use crate::sample::{IdleFacts, Unloaded};

    #[test]
    fn what_subjects_did_at_rest_is_a_table_of_the_rows_that_have_it() {
        let mut runs = ["lwip", "smoltcp"].map(|stack| fixture::run(&format!("-n {stack} -m idle --parallel 2"), 0.0));
        let tables = |runs: &[Sample]| {
            let blocks = Series::split("runs", runs, &[]).iter().flat_map(blocks).collect::<Vec<_>>();
            let tables = blocks.into_iter().filter_map(|block| match block {
                Block::Table(table) => Some(table),
                _ => None,
            });
            tables.collect::<Vec<_>>()
        };
        assert_eq!(tables(&runs).len(), 1);
        let mut idle = IdleFacts::default();
        let switches = Some(Switches { waits: 8, preemptions: 2 });
        idle.unloaded.before = Some(Unloaded::of(Duration::from_secs(2), Some(Duration::from_millis(10)), switches));
        runs[1].measured.idle = Some(idle);
        let rest = &tables(&runs)[1];
        assert_eq!(rest.columns.first().unwrap().title, "CPU at rest %");
        assert_eq!(rest.rows, [["0.50", "4.0", "5.0", "–", "–", "–"]]);
    }
}
