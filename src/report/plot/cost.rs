//! CPU time against throughput: a mark for each cell.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, FAINT, GRID, Mark, Picture, Width, text_style, tick};
use crate::measure::CellSummary;

/// A cell.
#[derive(Clone, Copy)]
struct Point {
    gbps: f64,
    /// CPU seconds of both sides for a gigabyte.
    cost: f64,
    mark: Mark,
}

/// Draws the cells that have both figures; `None` where none has.
pub(in crate::report) fn cost(rows: &[&CellSummary], width: Width) -> io::Result<Option<Picture>> {
    let points = rows.iter().filter_map(|row| {
        let cost = row.client_cpu_per_gb.unwrap_or(0.0) + row.subject_cpu_per_gb?;
        Some(Point { gbps: row.estimate?.median, cost, mark: Mark::of(&row.cell) })
    });
    // Scales by equal factors have no place for others.
    let has_place = |value: f64| value > 0.0 && value.is_finite();
    let points: Vec<_> = points.filter(|point| has_place(point.gbps) && has_place(point.cost)).collect();
    if points.is_empty() {
        return Ok(None);
    }
    let height = if width == Width::Wide { 420 } else { 360 };
    Picture::draw(width.px(), height, |area| draw(area, &points)).map(Some)
}

/// A gigabyte takes so many seconds at 1 Gbps.
const SECONDS_AT_ONE_GBPS: f64 = 8.0;

/// How many processors are busy at a throughput and a cost.
fn cores(gbps: f64, cost: f64) -> f64 {
    cost * gbps / SECONDS_AT_ONE_GBPS
}

/// From somewhat below the least to somewhat above the largest, by equal factors.
fn around(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let margin = (high / low).powf(0.08).max(1.5);
    (low / margin, high * margin)
}

fn draw(area: &Area<'_>, points: &[Point]) -> Result<(), Box<dyn Error>> {
    let (left, right) = around(points.iter().map(|point| point.gbps));
    let (bottom, top) = around(points.iter().map(|point| point.cost));
    // Both scales are logarithmic: equal factors are equal distances, and a number of busy processors is
    // a straight line.
    let mut chart = ChartBuilder::on(area)
        .margin_top(12)
        .margin_right(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (left..right).log_scale().with_key_points(ticks(left, right)).with_light_points([]),
            (bottom..top).log_scale().with_key_points(ticks(bottom, top)).with_light_points([]),
        )?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.light)
        .axis_style(GRID.light)
        .x_label_style(text_style(&FAINT, HPos::Center, VPos::Top))
        .y_label_style(text_style(&FAINT, HPos::Right, VPos::Center))
        .axis_desc_style(text_style(&FAINT, HPos::Center, VPos::Bottom))
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .x_desc("throughput, Gbps")
        .y_desc("CPU seconds for a GB")
        .draw()?;
    let busy = || points.iter().map(|point| cores(point.gbps, point.cost));
    let (least, most) = (busy().fold(f64::INFINITY, f64::min) / 2.0, busy().fold(0.0, f64::max) * 2.0);
    for cores in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].into_iter().filter(|cores| (least..most).contains(cores)) {
        let cost = |gbps: f64| SECONDS_AT_ONE_GBPS * cores / gbps;
        let (from, to) = (left.max(SECONDS_AT_ONE_GBPS * cores / top), right.min(SECONDS_AT_ONE_GBPS * cores / bottom));
        if from < to {
            let line = [(from, cost(from)), (to, cost(to))];
            chart.draw_series(DashedLineSeries::new(line, 3, 4, FAINT.light.into()))?;
            let (x, y) = chart.backend_coord(&line[0]);
            let name = if cores > 1.0 { format!("{cores} cores") } else { format!("{cores} core") };
            area.draw(&Text::new(name, (x + 12, y + 2), text_style(&FAINT, HPos::Left, VPos::Top)))?;
        }
    }
    for point in points {
        let place = chart.backend_coord(&(point.gbps, point.cost));
        shape(area, place, point.mark)?;
    }
    Ok(())
}

fn shape(area: &Area<'_>, (x, y): (i32, i32), mark: Mark) -> Result<(), Box<dyn Error>> {
    let style = mark.ink().light.filled();
    match mark {
        Mark::Circle => area.draw(&Circle::new((x, y), 5, style))?,
        Mark::Triangle => {
            area.draw(&Polygon::new(vec![(x, y - 6), (x + 6, y + 5), (x - 6, y + 5)], style))?;
        }
        Mark::Square => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 5, y + 5)], style))?,
        Mark::Diamond => area.draw(&Polygon::new(vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], style))?,
    }
    Ok(())
}

/// Powers of ten, and twice and five times them, within a range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let ticks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(decade)));
    ticks.filter(|tick| (low..=high).contains(tick)).collect()
}
