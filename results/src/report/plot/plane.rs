//! Dots, marks and lines on two axes.

use std::error::Error;
use std::io;
use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, FAINT, GRID, Picture, Width, signs, steps, text_style, tick, width_of};
use crate::report::model::{Axis, Guide, Plane, Scale, Shape, Size, Strokes};

const EDGE: u32 = 3;

const GUIDE: (i32, i32) = (64, 18);

struct Coordinate<'a> {
    axis: &'a Axis,
    /// The axis on which equal distances are equal differences.
    linear: RangedCoordf64,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear | Self::Counts => value,
            Self::Logarithmic => value.log10(),
            Self::Percentiles => -(1.0 - value).log10(),
        }
    }

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

impl Size {
    const fn of(self, width: Width) -> (u32, u32) {
        match (self, width) {
            (Self::Small, _) => (260, 130),
            (Self::Tall, Width::Wide) => (width.px(), 420),
            (Self::Tall, Width::Narrow) => (width.px(), 360),
        }
    }

    /// For how many ticks each axis has room: a number is wider than it is high.
    const fn ticks(self, (width, height): (u32, u32)) -> (usize, usize) {
        match self {
            Self::Small => (4, 4),
            Self::Tall => (width as usize / 48, height as usize / 24),
        }
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Coordinate<'b>, Coordinate<'b>>>;

pub(super) fn plane(plane: &Plane, width: Width) -> io::Result<Picture> {
    let Plane { size, x, y, strokes, guides } = plane;
    let (width, height) = size.of(width);
    let (x_ticks, y_ticks) = size.ticks((width, height));
    let labels = Coordinate::of(y).key_points(y_ticks).into_iter().map(|value| width_of(&y.scale.label(value)));
    let widest = labels.fold(0.0, f64::max) as u32;
    Picture::draw(width, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(if *size == Size::Tall { 16 } else { 12 })
            .margin_left(EDGE)
            .x_label_area_size(if x.name.is_empty() { 22 } else { 42 })
            .y_label_area_size(if y.name.is_empty() { 34.max(widest + 16) } else { 56.max(widest + 34) })
            .build_cartesian_2d(Coordinate::of(x), Coordinate::of(y))?;
        let mut mesh = chart.configure_mesh();
        if *size != Size::Tall {
            mesh.disable_x_mesh();
        }
        mesh.light_line_style(TRANSPARENT)
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
        draw_guides(area, &mut chart, guides, [&x.range, &y.range])?;
        for Strokes { mark, shape, points } in strokes {
            let (ink, mut points) = (mark.ink().light, points.iter().copied());
            match shape {
                Shape::Line => {
                    chart.draw_series(LineSeries::new(points, ink.mix(0.6)))?;
                }
                Shape::Marks => points.try_for_each(|point| signs::shape(area, chart.backend_coord(&point), *mark))?,
            }
        }
        Ok(())
    })
}

/// On logarithmic axes a constant product is a straight line. One whose name would overlap that of another is left out.
fn draw_guides(
    area: &Area<'_>,
    chart: &mut Chart<'_, '_>,
    guides: &[Guide],
    [x, y]: [&Range<f64>; 2],
) -> Result<(), Box<dyn Error>> {
    let mut labels: Vec<(i32, i32)> = Vec::new();
    for Guide { product, name } in guides {
        let (from, to) = (x.start.max(product / y.end), x.end.min(product / y.start));
        let line = [(from, product / from), (to, product / to)];
        let (left, top) = chart.backend_coord(&line[0]);
        let overlaps = |(x, y): &(i32, i32)| (x - left).abs() < GUIDE.0 && (y - top).abs() < GUIDE.1;
        if from < to && !labels.iter().any(overlaps) {
            labels.push((left, top));
            chart.draw_series(DashedLineSeries::new(line, 3, 4, FAINT.light.into()))?;
            area.draw(&Text::new(name.clone(), (left + 12, top + 2), text_style(&FAINT, HPos::Left, VPos::Top)))?;
        }
    }
    Ok(())
}
