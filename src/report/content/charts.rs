//! The charts of a report.

use forwarders::Offload;
use netstacks::StackKind;

use super::published;
use crate::measure::CellSummary;
use crate::measure::metric::speed;
use crate::report::axis::{self, Axis};
use crate::report::format;
use crate::report::model::{self, Bar, Block, Chart, Group, Guide, Mark, Plot, Scale, Shape, Strokes};
use crate::report::series::{Kind, Series};
use crate::sample::{Sample, gbps};
use crate::scenario::{Cell, Forwarder};

pub(super) const THROUGHPUT: &str = "throughput, Gbps";

/// The main rows of series that are compared by the same figure, as bars.
pub(super) fn bars(all: &[&Series]) -> Chart {
    let (forwards, stacks): (Vec<_>, Vec<_>) = all.iter().copied().partition(|one| one.is_forward());
    let mut groups = groups_of(&stacks);
    for group in groups_of(&forwards) {
        let title = match group.title {
            title if stacks.is_empty() => title,
            title if title.is_empty() => "forwarders".to_owned(),
            title => format!("forwarders: {title}"),
        };
        groups.push(Group { title, bars: group.bars });
    }
    let key =
        "Bar and number: median. Line: its 95 % interval. Dot: a run. Ring: an outlier, which counts like any other.";
    let (scale, label, more) = match all.first().map(|one| one.kind()) {
        Some(Kind::Requests) => ("requests a second", "Requests of each cell", ""),
        Some(Kind::Rated) => ("p99 of the latencies, µs", "Latency of each cell", " Less is better."),
        Some(Kind::Connections) => ("connections in a megabyte", "Connections of each cell", ""),
        _ => (THROUGHPUT, "Throughput of each cell", ""),
    };
    of_groups(scale, groups, label, &format!("{key}{more}"))
}

/// Groups of bars as a chart, on a scale with this name.
pub(super) fn of_groups(scale: &'static str, groups: Vec<Group>, label: &str, caption: &str) -> Chart {
    let plot = Plot::Bars(scale, groups);
    Chart { label: label.to_owned(), captions: vec![caption.to_owned()], legend: Vec::new(), plot }
}

/// The bars of series of one kind: a group for each piece of work.
fn groups_of(series: &[&Series]) -> Vec<Group> {
    let cells = axis::cells(series.iter().flat_map(|one| one.main_rows()));
    let axes = axis::differing(&cells);
    let groups = works(&cells).into_iter().map(|work| {
        let mut rows: Vec<(&CellSummary, &Series)> = Vec::new();
        for one in series {
            rows.extend(one.main_rows().into_iter().filter(|row| row.cell.same_work(work)).map(|row| (row, *one)));
        }
        rows.sort_by(|(left, _), (right, _)| left.cell.cmp(&right.cell));
        let bars = rows.into_iter().map(|(row, one)| {
            let mut label = vec![name(&row.cell)];
            let is_runtime = |axis: &&&Axis| axis.name == "runtime";
            label.extend(axes.iter().find(is_runtime).and(row.cell.runtime).map(|runtime| runtime.to_string()));
            label.extend(row.cell.variant());
            label.extend((series.len() > 1).then(|| one.label.clone()));
            bar(label.join(", "), row)
        });
        let bars = bars.collect();
        Group { title: axis::phrase(work, axes.iter().copied().filter(|axis| (axis.is_work)(work))), bars }
    });
    groups.collect()
}

/// One cell of each piece of work, in the order of the works.
pub(super) fn works<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let mut works = cells.to_vec();
    // Without the properties in which cells with the same work differ.
    let work = |cell: &Cell| cell.with_subject_of(cells[0]);
    works.sort_by_cached_key(|cell| (cell.layer(), work(cell)));
    works.dedup_by(|one, other| one.same_work(other));
    works
}

/// The name of a cell among rivals.
pub(super) fn name(cell: &Cell) -> String {
    match (cell.forwarder(), cell.stack()) {
        (Some(forwarder), _) => {
            let name = published::name(forwarder);
            forwarder.row().map_or_else(|| name.clone(), |row| format!("{row} {name}"))
        }
        (None, Some(stack)) => stack.to_string(),
        (None, None) => cell.layer().to_string(),
    }
}

/// A row as a bar.
pub(super) fn bar(label: String, row: &CellSummary) -> Bar {
    let mut note = format::figure_or_failures(row);
    if row.estimate.is_some() && !row.failures.is_empty() {
        note = format!("{note} ({})", format::failures(row));
    }
    Bar {
        label,
        mark: mark(&row.cell),
        median: row.estimate.map(|estimate| (estimate.median, estimate.low..estimate.high)),
        runs: row.speeds.iter().enumerate().map(|(index, gbps)| (*gbps, row.outliers.contains(&index))).collect(),
        note,
    }
}

pub(super) fn mark(cell: &Cell) -> Mark {
    match (cell.forwarder(), cell.stack()) {
        (Some(Forwarder::Rust(config)), _) => match config.offload {
            Offload::Off => Mark::Circle,
            Offload::On => Mark::Triangle,
            Offload::Whole => Mark::Square,
        },
        (None, Some(stack)) => mark_of(stack),
        (Some(Forwarder::Go { .. }), _) | (None, None) => Mark::Diamond,
    }
}

/// The mark of a stack.
pub(super) const fn mark_of(stack: StackKind) -> Mark {
    match stack {
        StackKind::Lwip => Mark::Circle,
        StackKind::Ipstack => Mark::Triangle,
        StackKind::Smoltcp => Mark::Square,
        StackKind::TcpIp => Mark::Cross,
        StackKind::NetstackSmoltcp => Mark::Ring,
        StackKind::LwipPublished => Mark::Frame,
        StackKind::Gvisor => Mark::Nabla,
        StackKind::External => Mark::Bar,
        StackKind::Kernel => Mark::Diamond,
    }
}

/// Processors for a Gbit against throughput: a mark for each main row that has both figures; `None` if none has.
pub(super) fn cost(one: &Series) -> Option<Chart> {
    let rows = one.main_rows();
    let [client, subject] = format::sides(&axis::cells(rows.iter().copied()));
    // Logarithmic scales hold only these values.
    let has_place = |value: &f64| *value > 0.0 && value.is_finite();
    let points = rows.iter().filter_map(|row| {
        let gbps = row.estimate.map(|estimate| estimate.median).filter(has_place)?;
        Some((gbps, row.figure("cores_per_gbit").filter(has_place)?, mark(&row.cell)))
    });
    let points: Vec<_> = points.collect();
    let busy = points.iter().map(|(gbps, cost, _)| gbps * cost);
    let (least, most) = (busy.clone().fold(f64::INFINITY, f64::min) / 2.0, busy.fold(0.0, f64::max) * 2.0);
    let cores = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].into_iter().filter(|cores| (least..most).contains(cores));
    let guides = cores
        .map(|cores| Guide { product: cores, name: format!("{cores} core{}", if cores > 1.0 { "s" } else { "" }) });
    (!points.is_empty()).then(|| Chart {
        label: "Processors for a Gbit against throughput, a mark for each cell".to_owned(),
        captions: vec![format!(
            "Processor seconds of {client} and {subject} together for a Gbit. Right and low is good. Both scales are \
             logarithmic; on a dashed line the number of busy processors is the same."
        )],
        legend: legend(&rows),
        plot: Plot::Marks { names: [THROUGHPUT, "cores for a Gbit"], guides: guides.collect(), points },
    })
}

/// The meaning of the marks of some rows.
pub(super) fn legend(rows: &[&CellSummary]) -> Vec<(Mark, &'static str)> {
    let kind = |cell: &Cell| match cell.forwarder() {
        Some(forwarder) => published::kind(forwarder),
        None => cell.stack().map_or("kernel", StackKind::name),
    };
    let marks = Mark::ALL.into_iter().filter_map(|of| {
        let cell = &rows.iter().find(|row| mark(&row.cell) == of)?.cell;
        Some((of, kind(cell)))
    });
    marks.collect()
}

/// The times of a series' runs, and the name of their axis.
struct Clock {
    name: &'static str,
    times: Vec<f64>,
    scale: Scale,
}

impl Clock {
    /// Minutes from the first run, if most runs have a start time; otherwise the places in the file. A run without a
    /// start time is between its neighbours.
    fn of(samples: &[Sample]) -> Self {
        let started = || samples.iter().map(|sample| sample.measured.started_unix_ms);
        let first = started().flatten().min().unwrap_or_default();
        if started().flatten().count() * 2 <= samples.len() {
            let times = (1..=samples.len()).map(|place| place as f64).collect();
            return Self { name: "place in the file", times, scale: Scale::Counts };
        }
        let known: Vec<_> =
            started().map(|started| started.map(|started| (started - first) as f64 / 60_000.0)).collect();
        let times = (0..known.len()).map(|place| {
            let earlier = known[..=place].iter().rev().find_map(|time| *time);
            let later = known[place..].iter().find_map(|time| *time);
            f64::midpoint(earlier.or(later).unwrap_or_default(), later.or(earlier).unwrap_or_default())
        });
        Self { name: "minutes from the first run", times: times.collect(), scale: Scale::Linear }
    }

    fn axis(&self, name: &'static str, times: impl Iterator<Item = f64> + Clone) -> model::Axis {
        model::Axis { name, range: around(times), scale: self.scale }
    }
}

/// A range around the values. It is never empty.
fn around(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    if low > high {
        return 0.0..1.0;
    }
    let margin = ((high - low) * 0.04).max(high.abs() * 0.01).max(0.01);
    low - margin..high + margin
}

/// All runs in one chart: how far each is from its cell's median, over time. Empty if no cell has two runs to compare.
pub(super) fn drift(one: &Series) -> Vec<Block> {
    let (samples, clock) = (&one.samples, Clock::of(&one.samples));
    let mut strokes = Mark::ALL.map(|mark| Strokes { mark, shape: Shape::Dots, points: Vec::new() });
    for (sample, time) in samples.iter().zip(&clock.times).filter(|(sample, _)| sample.is_ok()) {
        let row = one.summary.cells.iter().find(|row| row.cell == sample.cell && row.speeds.len() > 1);
        let median = row.and_then(|row| row.estimate).map(|estimate| estimate.median).filter(|gbps| *gbps > 0.0);
        let of_mark = strokes.iter_mut().find(|strokes| strokes.mark == mark(&sample.cell));
        if let (Some(median), Some(strokes)) = (median, of_mark) {
            strokes.points.extend(speed(sample).map(|speed| (*time, (speed / median - 1.0) * 100.0)));
        }
    }
    let points = || strokes.iter().flat_map(|strokes| &strokes.points);
    if points().next().is_none() {
        return Vec::new();
    }
    let [_, subject] = format::sides(&axis::cells(&one.summary.cells));
    let percents = points().map(|(_, percent)| *percent).chain([-5.0, 5.0]);
    let y = model::Axis { name: "from the median, %", range: around(percents), scale: Scale::Linear };
    let x = clock.axis(clock.name, points().map(|(time, _)| *time));
    let chart = Chart {
        label: "How far each run is from its cell's median, over the time".to_owned(),
        captions: vec![format!(
            "Each dot is a run: how far it is from the median of its cell. Dots that leave the line together come \
             from the machine, not from a {subject}."
        )],
        legend: Vec::new(),
        plot: Plot::Plane { is_small: false, x, y, strokes: strokes.into_iter().collect(), baseline: Some(0.0) },
    };
    let cells = gallery(one, "over the time", |row| Some(over_time(one, &clock, row)));
    let title = format!("Each cell alone: {} by {}", one.unit(), clock.name);
    vec![Block::Chart(chart), Block::Details(title, vec![Block::Gallery(cells)])]
}

/// The rate within each run, if runs have intervals.
pub(super) fn within_runs(one: &Series) -> Vec<Block> {
    if one.kind() != Kind::Streams && !one.is_forward() {
        return Vec::new();
    }
    let charts = gallery(one, "within each run", |row| rates_of(one, row));
    if charts.is_empty() {
        return Vec::new();
    }
    let note = Block::Text("Gbps over the seconds of the timed window, a line for each run.".to_owned());
    vec![Block::Gallery(charts), note]
}

/// A small chart for each cell that has a figure.
fn gallery(one: &Series, of: &str, plot: impl Fn(&CellSummary) -> Option<Plot>) -> Vec<Chart> {
    let rows = one.summary.cells.iter().filter(|row| row.estimate.is_some());
    let charts = rows.filter_map(|row| {
        let label = format!("{} {of}: {}", one.unit(), row.cell);
        Some(Chart { label, captions: vec![row.cell.to_string()], legend: Vec::new(), plot: plot(row)? })
    });
    charts.collect()
}

/// A small plot on a scale from 0 up.
pub(super) fn small(x: model::Axis, strokes: Vec<Strokes>) -> Plot {
    let top = strokes.iter().flat_map(|strokes| &strokes.points).map(|(_, gbps)| *gbps).fold(0.0, f64::max);
    let y = model::Axis { name: "", range: 0.0..top.max(0.01) * 1.1, scale: Scale::Linear };
    Plot::Plane { is_small: true, x, y, strokes, baseline: None }
}

/// The runs of a cell over time.
fn over_time(one: &Series, clock: &Clock, row: &CellSummary) -> Plot {
    let x = clock.axis("", clock.times.iter().copied());
    let runs = one.samples.iter().zip(&clock.times).filter(|(sample, _)| sample.is_ok() && sample.cell == row.cell);
    let points = runs.filter_map(|(sample, time)| Some((*time, speed(sample)?))).collect();
    small(x, vec![Strokes { mark: mark(&row.cell), shape: Shape::Dots, points }])
}

/// The rate within each run of a cell, a line for each; `None` if no run has intervals.
fn rates_of(one: &Series, row: &CellSummary) -> Option<Plot> {
    let runs = one.samples.iter().filter(|sample| sample.is_ok() && sample.cell == row.cell);
    let lines = runs.map(rates).filter(|points| !points.is_empty());
    let strokes: Vec<_> = lines.map(|points| Strokes { mark: mark(&row.cell), shape: Shape::Line, points }).collect();
    let end = strokes.iter().flat_map(|strokes| &strokes.points).map(|(time, _)| *time).reduce(f64::max)?;
    Some(small(model::Axis { name: "", range: 0.0..end.max(0.001), scale: Scale::Linear }, strokes))
}

/// The rate in each interval of a run, in Gbps, at the middle of it, in seconds.
fn rates(sample: &Sample) -> Vec<(f64, f64)> {
    let parts = sample.measured.parts().filter(|(_, length, _)| !length.is_zero());
    parts.map(|(begin, length, part)| ((begin + length / 2).as_secs_f64(), gbps(part.bytes, length))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp, reason = "a test may panic, and its figures are exact")]

    use super::*;
    use crate::measure::fixture::{cell, sample};
    use crate::scenario::Mode;

    /// Runs that began at these minutes; `None` is one that does not say when.
    fn started(minutes: &[Option<u64>]) -> Vec<Sample> {
        let run = |minutes: &Option<u64>| {
            let mut sample = sample(&cell(StackKind::Smoltcp, Mode::Reader), 10.0);
            sample.measured.started_unix_ms = minutes.map(|minutes| 1_790_000_000_000 + minutes * 60_000);
            sample
        };
        minutes.iter().map(run).collect()
    }

    #[test]
    fn a_run_without_a_start_time_is_between_its_neighbours() {
        let clock = Clock::of(&started(&[Some(0), None, Some(4), Some(6), None]));
        assert_eq!((clock.name, clock.times), ("minutes from the first run", vec![0.0, 2.0, 4.0, 6.0, 6.0]));
    }

    #[test]
    fn runs_are_at_their_places_where_few_have_a_start_time() {
        let clock = Clock::of(&started(&[Some(0), None, None, Some(6)]));
        assert_eq!((clock.name, clock.times), ("place in the file", vec![1.0, 2.0, 3.0, 4.0]));
    }

    #[test]
    fn a_cell_with_unknown_cpu_time_is_not_in_the_chart_of_costs() {
        let [mut known, mut unknown] =
            [StackKind::Smoltcp, StackKind::Lwip].map(|stack| sample(&cell(stack, Mode::Reader), 10.0));
        known.measured.cpu.client_seconds = Some(0.5);
        known.measured.cpu.subject_seconds = Some(1.0);
        unknown.measured.cpu.subject_seconds = Some(1.0);
        let series = Series::split("runs", &[known, unknown], &[]);
        let Plot::Marks { points, .. } = cost(&series[0]).unwrap().plot else { unreachable!() };
        // 20 Gbit in two seconds.
        assert!(matches!(points[..], [(_, cost, Mark::Square)] if (cost - 0.075).abs() < 1e-9));
    }
}
