//! Charts of requests: their latency. And charts of speeds by the number of connections.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::ops::Range;

use super::charts;
use crate::cell::Cell;
use crate::cell::properties::{PROPERTIES, Property};
use crate::measure::{self, CellSummary};
use crate::report::axis;
use crate::report::model::{Axis, Block, Chart, Mark, Plane, Plot, Scale, Shape, Size, Strokes};
use crate::report::series::{Kind, Series};
use crate::sample::Latency;

const POINTS_A_DECADE: u32 = 10;

/// The number of such factors: the curves end at 99.99 %.
const DECADES: u32 = 4;

/// The factor by which a logarithmic scale goes beyond its values. It is enough to have a tick on the scale.
const FACTOR: f64 = 2.0;

pub(super) fn latencies(one: &Series) -> Vec<Block> {
    let note = "Latency in µs by percentile, of the requests of all runs together: at 99, one request in a hundred took \
        longer. Low is good, and so is a curve that stays flat to the right. Both scales are logarithmic. A curve ends \
        where fewer than ten requests took longer.";
    if !matches!(one.kind(), Kind::Requests | Kind::Rated) {
        return Vec::new();
    }
    with_note(charts(&one.main_rows(), |cell| cell, "Latency by percentile", |rows| curves(one, rows)), note)
}

pub(super) fn by_connections(one: &Series) -> Vec<Block> {
    if !has_speeds(one) {
        return Vec::new();
    }
    let unit = one.unit();
    let note = format!(
        "Median {unit} by the number of connections, on a logarithmic scale. High is good, and so is a line that does \
         not fall to the right."
    );
    let label = format!("{unit} by connections");
    let plot = |rows: &[&CellSummary]| {
        let strokes = lines(rows, |cell| cell.parallel.get())?;
        let range = factors_around(&strokes, |(connections, _)| connections)?;
        Some(charts::small(Axis { name: "", range, scale: Scale::Logarithmic }, strokes))
    };
    with_note(charts(&one.main_rows(), |cell| Cell { parallel: NonZeroU16::MIN, ..cell }, &label, plot), &note)
}

pub(super) fn has_speeds(one: &Series) -> bool {
    matches!(one.kind(), Kind::Streams | Kind::Datagrams | Kind::Requests)
}

fn curves(one: &Series, rows: &[&CellSummary]) -> Option<Plot> {
    let curves = rows.iter().flat_map(|row| {
        let runs = one.samples.iter().filter(|sample| sample.is_ok() && sample.cell == row.cell);
        line(charts::mark(&row.cell), curve(&measure::latency(runs)), POINTS_A_DECADE as usize)
    });
    let strokes: Vec<_> = curves.collect();
    let y = Axis { name: "µs", range: factors_around(&strokes, |(_, latency)| latency)?, scale: Scale::Logarithmic };
    // A little more than the last percentile, which gives its label room.
    let end = 1.0 - 10_f64.powf(-0.2 - f64::from(DECADES));
    let x = Axis { name: "", range: 0.0..end, scale: Scale::Percentiles };
    Some(Plot::Plane(Plane { size: Size::Small, x, y, strokes, guides: Vec::new() }))
}

pub(super) fn lines(rows: &[&CellSummary], number: fn(&Cell) -> u16) -> Option<Vec<Strokes>> {
    let numbers: BTreeSet<_> = rows.iter().filter(|row| row.estimate.is_some()).map(|row| number(&row.cell)).collect();
    let lines = charts::legend(rows).into_iter().flat_map(|subject| {
        let rows = rows.iter().filter(|row| charts::named_mark(row) == subject);
        let points = rows.filter_map(|row| Some((f64::from(number(&row.cell)), row.estimate?.median)));
        line(subject.0, points.collect(), 1)
    });
    (numbers.len() > 1).then(|| lines.collect())
}

pub(super) fn with_note(charts: Vec<Chart>, note: &str) -> Vec<Block> {
    if charts.is_empty() { Vec::new() } else { vec![Block::Gallery(charts), Block::Text(note.to_owned())] }
}

/// A small chart for each work that has a plot. `alike` removes the property in which the rows of a chart may differ.
pub(super) fn charts(
    rows: &[&CellSummary],
    alike: fn(Cell) -> Cell,
    label: &str,
    plot: impl Fn(&[&CellSummary]) -> Option<Plot>,
) -> Vec<Chart> {
    let works = works(rows, alike);
    let cells: Vec<_> = works.iter().map(|(work, _)| work).collect();
    let differing: Vec<_> = axis::differing(&cells).into_iter().map(|axis| axis.name).collect();
    let charts = works.iter().filter_map(|(work, rows)| {
        let axes = PROPERTIES.iter().filter(|axis| axis.name == "mode" || differing.contains(&axis.name));
        let caption = axis::phrase(work, axes.filter(|axis| axis.name != "netstack"));
        Some(Chart {
            label: format!("{label}: {caption}"),
            plot: plot(rows)?,
            captions: vec![caption],
            legend: charts::legend(rows),
        })
    });
    charts.collect()
}

fn works<'a>(rows: &[&'a CellSummary], alike: fn(Cell) -> Cell) -> Vec<(Cell, Vec<&'a CellSummary>)> {
    let has_stacks = rows.iter().any(|row| row.cell.is_contender());
    let mut works: Vec<(Cell, Vec<_>)> = Vec::new();
    for row in rows.iter().filter(|row| row.cell.is_contender() || !has_stacks) {
        let work = alike(row.cell.clone());
        if works.iter().any(|(other, _)| is_rival(other, &work)) {
            continue;
        }
        let mut rivals = rows.to_vec();
        rivals.retain(|row| is_rival(&work, &alike(row.cell.clone())));
        works.push((work, rivals));
    }
    works
}

/// Whether two cells differ only in the subject, or in properties that the kernel lacks.
pub(super) fn is_rival(one: &Cell, other: &Cell) -> bool {
    let is_subject = |name| matches!(name, "layer" | "netstack" | "program" | "forwarder");
    let agrees = |property: &Property| {
        !(property.is_of(one) && property.is_of(other)) || property.machine_value(one) == property.machine_value(other)
    };
    let is_alike = one.subject().name() == other.subject().name() || one.stack().is_none() || other.stack().is_none();
    is_alike && PROPERTIES.iter().all(|property| is_subject(property.name) || agrees(property))
}

/// The quantiles of a cell up to the last one that is known.
fn curve(latency: &Latency) -> Vec<(f64, f64)> {
    let slower = (0..=DECADES * POINTS_A_DECADE).map(|step| 10_f64.powf(-f64::from(step) / f64::from(POINTS_A_DECADE)));
    let points = slower.map(|slower| 1.0 - slower).filter_map(|share| Some((share, latency.quantile_us(share)?)));
    // A logarithmic scale has no 0.
    points.filter(|(_, latency)| *latency > 0.0).collect()
}

/// A line through points, with a mark on every `every`-th point and on the last.
fn line(mark: Mark, points: Vec<(f64, f64)>, every: usize) -> [Strokes; 2] {
    let marked = points.iter().step_by(every).chain(points.last()).copied().collect();
    [Strokes { mark, shape: Shape::Line, points }, Strokes { mark, shape: Shape::Marks, points: marked }]
}

/// A range of a logarithmic scale around one value of each point; `None` without points.
fn factors_around(strokes: &[Strokes], value: fn((f64, f64)) -> f64) -> Option<Range<f64>> {
    let values = || strokes.iter().flat_map(|strokes| &strokes.points).map(|point| value(*point));
    Some(values().reduce(f64::min)? / FACTOR..values().reduce(f64::max)? * FACTOR)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::measure::fixture;
    use crate::report::model::Sign;
    use crate::sample::{RequestFacts, Sample};

    /// A run of two seconds that answered a request in each number of microseconds up to `answered`.
    fn answering(mut run: Sample, answered: u64) -> Sample {
        let mut latency = Latency::default();
        (1..=answered).for_each(|microseconds| latency.record(Duration::from_micros(microseconds)));
        run.measured.requests = Some(RequestFacts { answered, latency, ..RequestFacts::default() });
        run
    }

    fn rr(words: &str, answered: u64) -> Sample {
        answering(fixture::run(&format!("-m rr {words}"), 0.0), answered)
    }

    /// The charts of a gallery: their captions and their lines.
    fn lines(blocks: Vec<Block>) -> Vec<(String, Vec<Strokes>)> {
        let gallery = blocks.into_iter().find_map(|block| match block {
            Block::Gallery(charts) => Some(charts),
            _ => None,
        });
        let chart = |chart: Chart| {
            let Plot::Plane(Plane { mut strokes, .. }) = chart.plot else { unreachable!() };
            strokes.retain(|strokes| strokes.shape == Shape::Line);
            (chart.captions[0].clone(), strokes)
        };
        gallery.unwrap_or_default().into_iter().map(chart).collect()
    }

    #[test]
    fn a_curve_has_the_quantiles_and_ends_where_few_requests_are_slower() {
        let runs = [rr("-n smoltcp", 1000), rr("-n smoltcp", 1000), rr("-n kernel", 500)];
        let charts = lines(latencies(&Series::split("runs", &runs, &[])[0]));
        let [(_, strokes)] = &charts[..] else { unreachable!("{} charts", charts.len()) };
        assert_eq!(strokes.iter().map(|line| line.mark.sign).collect::<Vec<_>>(), [Sign::Diamond, Sign::Square]);
        let points = &strokes[1].points;
        let all = measure::latency(&runs[..2]);
        assert!(points.iter().all(|(share, latency)| all.quantile_us(*share) == Some(*latency)));
        let near = |wanted: f64| points.iter().find(|(share, _)| (share - wanted).abs() < 1e-9).unwrap().1;
        assert!((near(0.9) / 900.0 - 1.0).abs() < 0.002 && (near(0.99) / 990.0 - 1.0).abs() < 0.002);
        // Of 2000 requests ten are slower at 99.5 %.
        let last = points.last().unwrap().0;
        assert!((0.99..0.995 + 1e-9).contains(&last), "{last}");
    }

    #[test]
    fn a_line_has_the_medians_by_the_number_of_connections() {
        let runs = [
            rr("-n lwip", 100),
            rr("-n lwip", 300),
            rr("-n lwip --parallel 50", 4000),
            rr("-n kernel", 600),
            rr("--layer loopback", 900),
            rr("-n lwip --mtu 9000", 100),
        ];
        let charts = lines(by_connections(&Series::split("runs", &runs, &[])[0]));
        let [(caption, strokes)] = &charts[..] else { unreachable!("{} charts", charts.len()) };
        assert_eq!(caption, "requests, MTU 1500");
        let points = |sign| &strokes.iter().find(|line| line.mark.sign == sign).unwrap().points;
        assert_eq!(*points(Sign::Circle), [(1.0, 100.0), (50.0, 2000.0)]);
        assert_eq!(*points(Sign::Diamond), [(1.0, 300.0)]);
    }

    /// The marks of programs without a profile of ours are few.
    #[test]
    fn two_programs_with_one_mark_have_a_line_each() {
        let run = |name, parallel, answered| {
            let of = fixture::program(name, None, 0.0);
            let cell = fixture::cell(&format!("-m rr --program kernel --parallel {parallel}"));
            answering(Sample { cell: Cell { program: of.cell.program.clone(), ..cell }, ..of }, answered)
        };
        let (one, other) = ("mine-1.2", "mine-2.1");
        let runs = [run(one, 1, 100), run(one, 100, 400), run(other, 1, 900), run(other, 100, 800)];
        assert_eq!(charts::mark(&runs[0].cell), charts::mark(&runs[2].cell));
        let charts = lines(by_connections(&Series::split("runs", &runs, &[])[0]));
        let [(_, strokes)] = &charts[..] else { unreachable!("{} charts", charts.len()) };
        assert_eq!(strokes.iter().map(|line| line.points.len()).collect::<Vec<_>>(), [2, 2]);
    }
}
