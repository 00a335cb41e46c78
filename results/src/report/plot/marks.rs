//! Marks on two logarithmic axes.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, EDGE, FAINT, GRID, Picture, Width, signs, steps, text_style, tick};
use crate::report::model::{Guide, Mark};

/// Two values and their mark.
type Point = (f64, f64, Mark);

/// Room for the name of a guide, in pixels.
const GUIDE: (i32, i32) = (64, 18);

/// Draws positive values.
pub(super) fn marks(names: [&str; 2], points: &[Point], guides: &[Guide], width: Width) -> io::Result<Picture> {
    let height = if width == Width::Wide { 420 } else { 360 };
    // Room for each tick, in pixels: a number is wider than it is high.
    let ticks = [width.px() / 48, height / 24].map(|ticks| ticks as usize);
    Picture::draw(width.px(), height, |area| draw(area, names, points, guides, ticks))
}

/// From somewhat below the least to somewhat above the largest, by equal factors.
fn around(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let margin = (high / low).powf(0.08).max(1.5);
    (low / margin, high * margin)
}

fn draw(
    area: &Area<'_>,
    names: [&str; 2],
    points: &[Point],
    guides: &[Guide],
    [across, up]: [usize; 2],
) -> Result<(), Box<dyn Error>> {
    let (left, right) = around(points.iter().map(|(x, ..)| *x));
    let (bottom, top) = around(points.iter().map(|(_, y, _)| *y));
    // On logarithmic axes a constant product is a straight line.
    let mut chart = ChartBuilder::on(area)
        .margin_top(12)
        .margin_right(16)
        .margin_left(EDGE)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (left..right).log_scale().with_key_points(steps(left, right, across)).with_light_points([]),
            (bottom..top).log_scale().with_key_points(steps(bottom, top, up)).with_light_points([]),
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
        .x_desc(names[0])
        .y_desc(names[1])
        .draw()?;
    let mut labels: Vec<(i32, i32)> = Vec::new();
    for Guide { product, name } in guides {
        let (from, to) = (left.max(product / top), right.min(product / bottom));
        if from < to {
            let line = [(from, product / from), (to, product / to)];
            let (x, y) = chart.backend_coord(&line[0]);
            // A line whose name would overlap that of another is left out.
            if labels.iter().any(|(other_x, other_y)| (other_x - x).abs() < GUIDE.0 && (other_y - y).abs() < GUIDE.1) {
                continue;
            }
            labels.push((x, y));
            chart.draw_series(DashedLineSeries::new(line, 3, 4, FAINT.light.into()))?;
            area.draw(&Text::new(name.clone(), (x + 12, y + 2), text_style(&FAINT, HPos::Left, VPos::Top)))?;
        }
    }
    for (x, y, mark) in points {
        signs::shape(area, chart.backend_coord(&(*x, *y)), *mark)?;
    }
    Ok(())
}
