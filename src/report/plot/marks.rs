//! Marks on two logarithmic axes.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, FAINT, GRID, Picture, Width, steps, text_style, tick};
use crate::report::model::{Guide, Mark};

/// Two values and their mark.
type Point = (f64, f64, Mark);

/// Draws positive values.
pub(super) fn marks(names: [&str; 2], points: &[Point], guides: &[Guide], width: Width) -> io::Result<Picture> {
    let height = if width == Width::Wide { 420 } else { 360 };
    Picture::draw(width.px(), height, |area| draw(area, names, points, guides))
}

/// From somewhat below the least to somewhat above the largest, by equal factors.
fn around(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let margin = (high / low).powf(0.08).max(1.5);
    (low / margin, high * margin)
}

fn draw(area: &Area<'_>, names: [&str; 2], points: &[Point], guides: &[Guide]) -> Result<(), Box<dyn Error>> {
    let (left, right) = around(points.iter().map(|(x, ..)| *x));
    let (bottom, top) = around(points.iter().map(|(_, y, _)| *y));
    // On logarithmic axes a constant product is a straight line.
    let mut chart = ChartBuilder::on(area)
        .margin_top(12)
        .margin_right(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (left..right).log_scale().with_key_points(steps(left, right, &[1.0, 2.0, 5.0])).with_light_points([]),
            (bottom..top).log_scale().with_key_points(steps(bottom, top, &[1.0, 2.0, 5.0])).with_light_points([]),
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
    for Guide { product, name } in guides {
        let (from, to) = (left.max(product / top), right.min(product / bottom));
        if from < to {
            let line = [(from, product / from), (to, product / to)];
            chart.draw_series(DashedLineSeries::new(line, 3, 4, FAINT.light.into()))?;
            let (x, y) = chart.backend_coord(&line[0]);
            area.draw(&Text::new(name.clone(), (x + 12, y + 2), text_style(&FAINT, HPos::Left, VPos::Top)))?;
        }
    }
    for (x, y, mark) in points {
        shape(area, chart.backend_coord(&(*x, *y)), *mark)?;
    }
    Ok(())
}

/// Draws a mark around a point.
pub(super) fn shape(area: &Area<'_>, (x, y): (i32, i32), mark: Mark) -> Result<(), Box<dyn Error>> {
    let style = mark.ink().light.filled();
    match mark {
        Mark::Circle => area.draw(&Circle::new((x, y), 5, style))?,
        Mark::Triangle => {
            area.draw(&Polygon::new(vec![(x, y - 6), (x + 6, y + 5), (x - 6, y + 5)], style))?;
        }
        Mark::Square => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 5, y + 5)], style))?,
        Mark::Cross => {
            area.draw(&Rectangle::new([(x - 6, y - 2), (x + 6, y + 2)], style))?;
            area.draw(&Rectangle::new([(x - 2, y - 6), (x + 2, y + 6)], style))?;
        }
        Mark::Ring => area.draw(&Circle::new((x, y), 5, mark.ink().light.stroke_width(2)))?,
        Mark::Frame => {
            area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], mark.ink().light.stroke_width(2)))?;
        }
        Mark::Nabla => area.draw(&Polygon::new(vec![(x, y + 6), (x + 6, y - 5), (x - 6, y - 5)], style))?,
        Mark::Bar => area.draw(&Rectangle::new([(x - 6, y - 3), (x + 6, y + 3)], style))?,
        Mark::Diamond => area.draw(&Polygon::new(vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], style))?,
    }
    Ok(())
}
