//! The charts of a report.

pub(super) use super::marks::{legend, mark, mark_of, mark_of_program, named_mark};
use super::{marks, published, requests};
use crate::cell::properties::Property;
use crate::cell::{Cell, Subject};
use crate::measure::CellSummary;
use crate::measure::metric::speed_of;
use crate::report::axis;
use crate::report::format;
use crate::report::model::{
    self, Bar, Chart, Group, Guide, Mark, Panel, Plane, Plot, Reference, Scale, Shape, Size, Strokes,
};
use crate::report::series::{Kind, Series};

pub(super) const THROUGHPUT: &str = "throughput, Gbps";

/// Groups share a scale if the longest bars of none are shorter than those of another by more than this factor.
const MAGNITUDE: f64 = 5.0;

pub(super) fn bars(all: &[Series]) -> Chart {
    // Stacks of all figures are told apart by the same words, and so are forwarders.
    let axes = [false, true].map(|is_forward| {
        let rows = all.iter().filter(|one| one.is_forward() == is_forward).flat_map(Series::main_rows);
        axis::differing(&axis::cells(rows.filter(|row| !is_kernel(&row.cell))))
    });
    let mut panels = Vec::new();
    for figure in format::unique(all.iter().map(|one| one.speed().name)) {
        let alike = all.iter().filter(|one| one.speed().name == figure);
        let (forwards, stacks): (Vec<_>, Vec<_>) = alike.partition(|one| one.is_forward());
        let mut groups = groups_of(&stacks, &axes[0]);
        for group in groups_of(&forwards, &axes[1]) {
            let title = match group.title {
                title if stacks.is_empty() => title,
                title if title.is_empty() => "forwarders".to_owned(),
                title => format!("forwarders: {title}"),
            };
            groups.push(Group { title, ..group });
        }
        let scale = match stacks.first().map(|one| one.kind()) {
            Some(Kind::Requests) => "requests a second",
            Some(Kind::Rated) => "p99 of the latencies, µs: less is better",
            Some(Kind::Connections) => "connections in a megabyte",
            _ => THROUGHPUT,
        };
        panels.extend(of_magnitudes(scale, groups));
    }
    let key = "Bar and number: median. Line: its 95 % interval, or the range of runs that are fewer than six or have two modes. Dot: a \
         run. Ring: an outlier, which counts like any other.";
    let has_reference = panels.iter().flat_map(|panel| &panel.groups).any(|group| !group.references.is_empty());
    let about = if has_reference { " Dashed: the kernel alone, for comparison." } else { "" };
    of_panels(panels, "The main figure of each cell", &format!("{key}{about}"))
}

pub(super) fn of_panels(panels: Vec<Panel>, label: &str, caption: &str) -> Chart {
    let plot = Plot::Bars(panels);
    Chart { label: label.to_owned(), captions: vec![caption.to_owned()], legend: Vec::new(), plot }
}

fn of_magnitudes(axis: &'static str, groups: Vec<Group>) -> Vec<Panel> {
    let longest = |group: &Group| group.bars.iter().filter_map(|bar| Some(bar.median.as_ref()?.0)).fold(0.0, f64::max);
    let mut panels: Vec<Panel> = Vec::new();
    for group in groups {
        let own = longest(&group);
        let is_near = |other: &Group| {
            let (least, most) = (own.min(longest(other)), own.max(longest(other)));
            least == 0.0 || most <= least * MAGNITUDE
        };
        match panels.iter_mut().find(|panel| panel.groups.iter().all(is_near)) {
            Some(panel) => panel.groups.push(group),
            None => panels.push(Panel { axis, groups: vec![group] }),
        }
    }
    panels
}

/// A group of bars for each piece of work, titled by its `axes`. Beside others, the kernel has no bars.
fn groups_of(series: &[&Series], axes: &[&Property]) -> Vec<Group> {
    let mut all = Vec::new();
    for one in series {
        all.extend(one.main_rows().into_iter().map(|row| (row, *one)));
    }
    if all.iter().any(|(row, _)| !is_kernel(&row.cell)) {
        all.retain(|(row, _)| !is_kernel(&row.cell));
    }
    let cells = axis::cells(all.iter().map(|(row, _)| *row));
    let groups = works(&cells).into_iter().map(|work| {
        let mut rows: Vec<_> = all.iter().filter(|(row, _)| row.cell.same_work(work)).collect();
        rows.sort_by(|(left, _), (right, _)| left.cell.place().cmp(&right.cell.place()));
        let of_series = |one: &Series| (series.len() > 1).then(|| one.label.clone());
        let bars = rows.into_iter().map(|(row, one)| {
            let mut label = vec![name(&row.cell)];
            let is_runtime = |axis: &&&Property| axis.name == "runtime";
            label.extend(axes.iter().find(is_runtime).and_then(|runtime| runtime.phrase(&row.cell)));
            label.extend(row.cell.variant());
            label.extend(of_series(one));
            bar(label.join(", "), row)
        });
        let references = series.iter().filter_map(|one| kernel_of(one, work, of_series(one))).collect();
        let title = axis::phrase(work, axes.iter().copied().filter(|axis| axis.is_work_of(work)));
        Group { title, bars: bars.collect(), references }
    });
    groups.collect()
}

fn is_kernel(cell: &Cell) -> bool {
    match cell.subject() {
        Subject::Loopback | Subject::Kernel => true,
        Subject::Program(name) => name.as_str() == marks::KERNEL,
        _ => false,
    }
}

/// The kernel's figure at a piece of work of others, on the same path. Loopback has no device.
fn kernel_of(one: &Series, work: &Cell, of: Option<String>) -> Option<Reference> {
    let is_its = |row: &&CellSummary| {
        let is_reference = is_kernel(&row.cell) && row.cell.subject() != Subject::Loopback && row.cell != *work;
        is_reference && requests::is_rival(&work.with_subject_of(&row.cell), &row.cell)
    };
    let mut rows = one.summary.cells.iter().filter(is_its).filter_map(|row| Some((row, row.estimate?.median)));
    let (row, value) = rows.next()?;
    let place = (row.cell.subject() == Subject::Kernel).then(|| "two devices".to_owned());
    let words: Vec<_> = [marks::KERNEL.to_owned()].into_iter().chain(place).chain(of).collect();
    Some(Reference { label: format!("{}: {}", words.join(", "), speed_of(&row.cell).write_with_unit(value)), value })
}

/// One cell of each piece of work, in the order of the works.
pub(super) fn works<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let mut sorted = cells.to_vec();
    // Without the properties in which cells with the same work differ.
    let work = |cell: &Cell| cell.with_subject_of(cells[0]);
    sorted.sort_by_cached_key(|cell| (cell.layer, cell.subject().name(), work(cell)));
    let mut works: Vec<&Cell> = Vec::new();
    for cell in sorted {
        if !works.iter().any(|work| work.same_work(cell)) {
            works.push(cell);
        }
    }
    works
}

pub(super) fn name(cell: &Cell) -> String {
    match (cell.forwarder(), cell.stack(), cell.program()) {
        (Some(forwarder), ..) => {
            let name = published::name(forwarder);
            forwarder.row().map_or_else(|| name.clone(), |row| format!("{row} {name}"))
        }
        (None, Some(stack), _) => stack.to_string(),
        (None, None, Some(program)) => program.to_string(),
        (None, None, None) => cell.device.clone().unwrap_or_else(|| cell.subject().name().to_owned()),
    }
}

pub(super) fn bar(label: String, row: &CellSummary) -> Bar {
    Bar {
        label,
        mark: mark(&row.cell),
        median: row.estimate.map(|estimate| (estimate.median, estimate.low..estimate.high)),
        runs: row.speeds.iter().enumerate().map(|(index, gbps)| (*gbps, row.outliers.contains(&index))).collect(),
        note: format::figure_or_failures(row),
    }
}

/// Processors for a Gbit against throughput: a mark for each main row that has both figures; `None` if none has.
pub(super) fn cost(one: &Series) -> Option<Chart> {
    let rows = one.main_rows();
    let [client, subject] = format::sides(&axis::cells(rows.iter().copied()));
    // Logarithmic scales hold only these values.
    let has_place = |value: &f64| (1e-12..1e12).contains(value);
    let points = rows.iter().filter_map(|row| {
        let gbps = row.estimate.map(|estimate| estimate.median).filter(has_place)?;
        Some(((gbps, row.figure("cores_per_gbit").filter(has_place)?), mark(&row.cell)))
    });
    let points: Vec<_> = points.collect();
    let busy = points.iter().map(|((gbps, cost), _)| gbps * cost);
    let (least, most) = (busy.clone().fold(f64::INFINITY, f64::min) / 2.0, busy.fold(0.0, f64::max) * 2.0);
    let cores = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].into_iter().filter(|cores| (least..most).contains(cores));
    let guides = cores
        .map(|cores| Guide { product: cores, name: format!("{cores} core{}", if cores > 1.0 { "s" } else { "" }) });
    let axis = |name, value: fn(&(f64, f64)) -> f64| model::Axis {
        name,
        range: factors_around(points.iter().map(|(point, _)| value(point))),
        scale: Scale::Logarithmic,
    };
    let stroke =
        |(point, mark): &((f64, f64), Mark)| Strokes { mark: *mark, shape: Shape::Marks, points: vec![*point] };
    (!points.is_empty()).then(|| Chart {
        label: "Processors for a Gbit against throughput, a mark for each cell".to_owned(),
        captions: vec![format!(
            "Processor seconds of {client} and {subject} together for a Gbit. Right and low is good. Both scales are \
             logarithmic; on a dashed line the number of busy processors is the same."
        )],
        legend: legend(&rows),
        plot: Plot::Plane(Plane {
            size: Size::Tall,
            x: axis(THROUGHPUT, |(gbps, _)| *gbps),
            y: axis("cores for a Gbit", |(_, cost)| *cost),
            strokes: points.iter().map(stroke).collect(),
            guides: guides.collect(),
        }),
    })
}

fn factors_around(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let margin = (high / low).powf(0.08).max(1.5);
    low / margin..high * margin
}

pub(super) fn small(x: model::Axis, strokes: Vec<Strokes>) -> Plot {
    let top = strokes.iter().flat_map(|strokes| &strokes.points).map(|(_, gbps)| *gbps).fold(0.0, f64::max);
    let y = model::Axis { name: "", range: 0.0..top.max(0.01) * 1.1, scale: Scale::Linear };
    Plot::Plane(Plane { size: Size::Small, x, y, strokes, guides: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::run;
    use crate::report::model::Sign;

    #[test]
    fn a_cell_with_unknown_cpu_time_is_not_in_the_chart_of_costs() {
        let [mut known, mut unknown] = ["-n smoltcp -m reader", "-n lwip -m reader"].map(|words| run(words, 10.0));
        known.measured.cpu.client_seconds = Some(0.5);
        known.measured.cpu.subject_seconds = Some(1.0);
        unknown.measured.cpu.subject_seconds = Some(1.0);
        let series = Series::split("runs", &[known, unknown], &[]);
        let Plot::Plane(Plane { strokes, .. }) = cost(&series[0]).unwrap().plot else { unreachable!() };
        // 20 Gbit in two seconds.
        let [Strokes { mark: Mark { sign: Sign::Square, .. }, points, .. }] = &strokes[..] else { unreachable!() };
        assert!((points[0].1 - 0.075).abs() < 1e-9);
    }

    #[test]
    fn the_kernel_is_a_line_through_each_group_and_groups_of_another_magnitude_have_another_scale() {
        let runs = [
            run("-n lwip -m reader", 2.0),
            run("-n smoltcp -m reader", 1.0),
            run("-n lwip -m reader --mtu 9000", 30.0),
            run("-n lwip -m reader --mtu 4000", 8.0),
            run("-n kernel -m reader", 9.0),
            run("--layer loopback -m reader", 50.0),
        ];
        let Plot::Bars(panels) = bars(&Series::split("runs", &runs, &[])).plot else { unreachable!() };
        let titles = |panel: &Panel| panel.groups.iter().map(|group| group.title.clone()).collect::<Vec<_>>();
        assert_eq!(panels.iter().map(titles).collect::<Vec<_>>(), [vec!["MTU 1500", "MTU 4000"], vec!["MTU 9000"]]);
        let groups: Vec<_> = panels.iter().flat_map(|panel| &panel.groups).collect();
        assert_eq!(groups.iter().map(|group| group.bars.len()).collect::<Vec<_>>(), [2, 1, 1]);
        // On the same path alone.
        let [Reference { label, value }] = &groups[0].references[..] else { unreachable!("{}", groups[0].title) };
        assert_eq!((label.as_str(), *value), ("kernel, two devices: 9.00 Gbps", 9.0));
        assert!(groups[1..].iter().all(|group| group.references.is_empty()));
    }
}
