//! Dots, marks and lines on two axes.

use std::io;
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{EDGE, FAINT, GRID, Picture, Width, signs, steps, text_style, tick, width_of};
use crate::report::model::{Axis, Scale, Shape, Strokes};

/// The size of one of many small pictures, in pixels.
const SMALL: (u32, u32) = (260, 130);

/// An axis as plotters knows it.
struct Coordinate<'a> {
    axis: &'a Axis,
    /// The axis on which equal distances are equal differences.
    linear: RangedCoordf64,
}

impl Scale {
    /// Where a value is on the linear axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear | Self::Counts => value,
            Self::Logarithmic => value.log10(),
            Self::Percentiles => -(1.0 - value).log10(),
        }
    }

    /// The text at a tick.
    fn label(self, value: f64) -> String {
        match self {
            Self::Counts if value.fract() != 0.0 => String::new(),
            Self::Linear | Self::Counts | Self::Logarithmic => tick(value),
            Self::Percentiles => tick(value * 100.0),
        }
    }
}

impl<'a> Coordinate<'a> {
    fn of(axis: &'a Axis) -> Self {
        let [start, end] = [axis.range.start, axis.range.end].map(|value| axis.scale.place(value));
        Self { axis, linear: RangedCoordf64::from(start..end) }
    }
}

impl Ranged for Coordinate<'_> {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.linear.map(&self.axis.scale.place(*value), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let Range { start, end } = self.axis.range;
        match self.axis.scale {
            Scale::Linear | Scale::Counts => self.linear.key_points(hint),
            Scale::Percentiles => {
                let nines = 0..=self.axis.scale.place(end) as i32;
                nines.map(|nines| 1.0 - 10_f64.powi(-nines)).collect()
            }
            Scale::Logarithmic => steps(start, end, hint.max_num_points()),
        }
    }

    fn range(&self) -> Range<f64> {
        self.axis.range.clone()
    }
}

/// Draws the strokes, and a line at the height of `baseline`.
pub(super) fn plane(
    is_small: bool,
    x: &Axis,
    y: &Axis,
    strokes: &[Strokes],
    baseline: Option<f64>,
    width: Width,
) -> io::Result<Picture> {
    let (width, height) = match (is_small, width) {
        (true, _) => SMALL,
        (false, Width::Wide) => (width.px(), 280),
        (false, Width::Narrow) => (width.px(), 240),
    };
    let (x_ticks, y_ticks) = if is_small { (4, 4) } else { (7, 6) };
    let labels = Coordinate::of(y).key_points(y_ticks).into_iter().map(|value| width_of(&y.scale.label(value)));
    let widest = labels.fold(0.0, f64::max) as u32;
    Picture::draw(width, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(12)
            .margin_left(EDGE)
            .x_label_area_size(if x.name.is_empty() { 22 } else { 42 })
            .y_label_area_size(if y.name.is_empty() { 34.max(widest + 16) } else { 56.max(widest + 34) })
            .build_cartesian_2d(Coordinate::of(x), Coordinate::of(y))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.light)
            .axis_style(GRID.light)
            .x_labels(x_ticks)
            .y_labels(y_ticks)
            .x_label_style(text_style(&FAINT, HPos::Center, VPos::Top))
            .y_label_style(text_style(&FAINT, HPos::Right, VPos::Center))
            .axis_desc_style(text_style(&FAINT, HPos::Center, VPos::Bottom))
            .x_label_formatter(&|value| x.scale.label(*value))
            .y_label_formatter(&|value| y.scale.label(*value))
            .x_desc(x.name)
            .y_desc(y.name)
            .draw()?;
        if let Some(height) = baseline {
            chart.draw_series(LineSeries::new([(x.range.start, height), (x.range.end, height)], FAINT.light))?;
        }
        for Strokes { mark, shape, points } in strokes {
            let (ink, mut points) = (mark.ink().light, points.iter().copied());
            match shape {
                Shape::Line => {
                    chart.draw_series(LineSeries::new(points, ink.mix(0.6)))?;
                }
                Shape::Dots => {
                    let radius = if is_small { 3 } else { 2 };
                    chart.draw_series(points.map(|point| Circle::new(point, radius, ink.mix(0.8).filled())))?;
                }
                Shape::Marks => points.try_for_each(|point| signs::shape(area, chart.backend_coord(&point), *mark))?,
            }
        }
        Ok(())
    })
}
