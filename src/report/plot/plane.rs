//! Dots and lines on two linear axes.

use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{FAINT, GRID, Picture, Width, text_style, tick};
use crate::report::model::{Axis, Shape, Size, Strokes};

/// The size of one of many small pictures, in pixels.
const SMALL: (u32, u32) = (260, 130);

/// Draws the strokes, and a line at the height of `baseline`.
pub(super) fn plane(
    size: Size,
    x: &Axis,
    y: &Axis,
    strokes: &[Strokes],
    baseline: Option<f64>,
    width: Width,
) -> io::Result<Picture> {
    let (width, height) = match (size, width) {
        (Size::Small, _) => SMALL,
        (Size::Full, Width::Wide) => (width.px(), 280),
        (Size::Full, Width::Narrow) => (width.px(), 240),
    };
    let is_small = size == Size::Small;
    Picture::draw(width, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(12)
            .x_label_area_size(if x.name.is_empty() { 22 } else { 42 })
            .y_label_area_size(if y.name.is_empty() { 34 } else { 56 })
            .build_cartesian_2d(x.range.clone(), y.range.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.light)
            .axis_style(GRID.light)
            .x_labels(if is_small { 4 } else { 7 })
            .y_labels(if is_small { 4 } else { 6 })
            .x_label_style(text_style(&FAINT, HPos::Center, VPos::Top))
            .y_label_style(text_style(&FAINT, HPos::Right, VPos::Center))
            .axis_desc_style(text_style(&FAINT, HPos::Center, VPos::Bottom))
            .x_label_formatter(&|value| if x.counts && value.fract() != 0.0 { String::new() } else { tick(*value) })
            .y_label_formatter(&|value| tick(*value))
            .x_desc(x.name)
            .y_desc(y.name)
            .draw()?;
        if let Some(height) = baseline {
            chart.draw_series(LineSeries::new([(x.range.start, height), (x.range.end, height)], FAINT.light))?;
        }
        for Strokes { mark, shape, points } in strokes {
            let (ink, points) = (mark.ink().light, points.iter().copied());
            match shape {
                Shape::Line => {
                    chart.draw_series(LineSeries::new(points, ink.mix(0.6)))?;
                }
                Shape::Dots => {
                    let radius = if is_small { 3 } else { 2 };
                    chart.draw_series(points.map(|point| Circle::new(point, radius, ink.mix(0.8).filled())))?;
                }
            }
        }
        Ok(())
    })
}
