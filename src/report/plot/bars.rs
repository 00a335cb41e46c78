//! Horizontal bars in groups: medians with their intervals, and a dot for each run.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, CHARACTER_PX, FAINT, GRID, Ink, Mark, Picture, TEXT, Width, fitted, text_style, tick, width_of};
use crate::measure::CellSummary;
use crate::report::format;

/// Bars that are compared with each other.
pub(in crate::report) struct Group<'a> {
    pub(in crate::report) title: String,
    pub(in crate::report) bars: Vec<Bar<'a>>,
}

/// A cell.
pub(in crate::report) struct Bar<'a> {
    pub(in crate::report) label: String,
    pub(in crate::report) row: &'a CellSummary,
}

impl Bar<'_> {
    /// The figure at its end, or how it failed.
    fn note(&self) -> String {
        let failures = format::failures(self.row);
        match self.row.estimate {
            None => failures,
            Some(estimate) if failures.is_empty() => format::gbps(estimate.median),
            Some(estimate) => format!("{} ({failures})", format::gbps(estimate.median)),
        }
    }

    /// The room that this takes, with that before it.
    fn note_px(&self) -> f64 {
        width_of(&self.note()) + f64::from(BEFORE_NOTE) + 6.0
    }

    /// How far to the right anything of it goes.
    fn end(&self) -> f64 {
        let high = self.row.estimate.map_or(0.0, |estimate| estimate.high);
        self.row.gbps.iter().copied().fold(high, f64::max)
    }
}

/// Where things are, in pixels.
struct Layout {
    width: i32,
    /// From the picture's edge to where bars begin.
    left: u32,
    /// Behind the longest bar.
    right: u32,
    /// Of a bar with its label.
    row: i32,
    /// Of the label above its bar; 0 where it is left of it.
    above: i32,
}

const BAR: i32 = 14;
const BEFORE_NOTE: i32 = 8;
const TITLE: i32 = 28;
const AXIS: u32 = 44;

impl Layout {
    fn of(groups: &[Group<'_>], width: Width) -> Self {
        let bars = || groups.iter().flat_map(|group| &group.bars);
        let longest = bars().map(|bar| width_of(&bar.label)).fold(0.0, f64::max);
        let (left, row, above) = match width {
            Width::Wide => (longest.clamp(60.0, 300.0) as u32 + 14, 22, 0),
            Width::Narrow => (4, 40, 19),
        };
        let end = end(groups);
        let room = f64::from(width.px() - left);
        // As long as the scale can be where each bar has its note behind it.
        let scale = bars().filter(|bar| bar.end() > 0.0).map(|bar| (room - bar.note_px()) / (bar.end() / end));
        let scale = scale.fold(room, f64::min).max(room / 2.0);
        let right = (room - scale).max(14.0).ceil() as u32;
        Self { width: width.px().cast_signed(), left, right, row, above }
    }

    fn height(&self, groups: &[Group<'_>]) -> i32 {
        groups.iter().map(|group| group.bars.iter().fold(title_height(group), |height, _| height + self.row)).sum()
    }
}

fn title_height(group: &Group<'_>) -> i32 {
    if group.title.is_empty() { 6 } else { TITLE }
}

/// Where the scale ends, in Gbps.
fn end(groups: &[Group<'_>]) -> f64 {
    let end = groups.iter().flat_map(|group| &group.bars).map(Bar::end).fold(0.0, f64::max);
    if end > 0.0 { end } else { 1.0 }
}

/// Draws the bars of all groups over one axis.
pub(in crate::report) fn bars(groups: &[Group<'_>], width: Width) -> io::Result<Picture> {
    let layout = Layout::of(groups, width);
    let rows = layout.height(groups);
    Picture::draw(width.px(), rows.cast_unsigned() + AXIS, |area| draw(area, groups, &layout, rows))
}

fn draw(area: &Area<'_>, groups: &[Group<'_>], layout: &Layout, rows: i32) -> Result<(), Box<dyn Error>> {
    let end = end(groups);
    let mut chart = ChartBuilder::on(area)
        .margin_left(layout.left)
        .margin_right(layout.right)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(0.0..end, f64::from(rows)..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_labels(if layout.above > 0 { 5 } else { 8 })
        .x_max_light_lines(1)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.light)
        .axis_style(GRID.light)
        .label_style(text_style(&FAINT, HPos::Center, VPos::Top))
        .axis_desc_style(text_style(&FAINT, HPos::Center, VPos::Bottom))
        .x_label_formatter(&|value| tick(*value))
        .x_desc("throughput, Gbps")
        .draw()?;
    let x = |gbps: f64| chart.backend_coord(&(gbps, 0.0)).0;
    let mut top = 0;
    for group in groups {
        if !group.title.is_empty() {
            let bold = text_style(&TEXT, HPos::Left, VPos::Bottom);
            let bold = TextStyle { font: bold.font.style(FontStyle::Bold), ..bold };
            let room = f64::from(layout.width) - 8.0;
            area.draw(&Text::new(fitted(&group.title, room), (4, top + TITLE - 6), bold))?;
        }
        top += title_height(group);
        for bar in &group.bars {
            one(area, bar, layout, top, &x)?;
            top += layout.row;
        }
    }
    Ok(())
}

/// A bar in the row whose upper edge is at `top`.
fn one(
    area: &Area<'_>,
    bar: &Bar<'_>,
    layout: &Layout,
    top: i32,
    x: &dyn Fn(f64) -> i32,
) -> Result<(), Box<dyn Error>> {
    let upper = if layout.above > 0 { top + layout.above } else { top + (layout.row - BAR) / 2 };
    let (middle, lower) = (upper + BAR / 2, upper + BAR);
    let left = x(0.0);
    if layout.above > 0 {
        let label = fitted(&bar.label, f64::from(layout.width) - 8.0);
        area.draw(&Text::new(label, (left, upper - 4), text_style(&TEXT, HPos::Left, VPos::Bottom)))?;
    } else {
        let label = fitted(&bar.label, f64::from(layout.left) - 12.0);
        area.draw(&Text::new(label, (left - 8, middle), text_style(&TEXT, HPos::Right, VPos::Center)))?;
    }
    let beside = text_style(&TEXT, HPos::Left, VPos::Center);
    let Some(estimate) = bar.row.estimate else {
        let room = f64::from(layout.width) - f64::from(left) - 8.0;
        area.draw(&Text::new(fitted(&format!("× {}", bar.note()), room), (left + 6, middle), beside))?;
        return Ok(());
    };
    let ink = Mark::of(&bar.row.cell).ink();
    let median = x(estimate.median);
    area.draw(&Rectangle::new([(left, upper), (median, lower)], ink.light.mix(0.3).filled()))?;
    area.draw(&PathElement::new(vec![(median, upper), (median, lower)], ink.light.stroke_width(2)))?;
    runs(area, bar, ink, middle, x)?;
    let (low, high) = (x(estimate.low), x(estimate.high));
    let whisker = [(low, -4), (low, 4), (low, 0), (high, 0), (high, -4), (high, 4)];
    let whisker: Vec<_> = whisker.into_iter().map(|(x, y)| (x, middle + y)).collect();
    area.draw(&PathElement::new(whisker, TEXT.light))?;
    let end = x(bar.end()) + BEFORE_NOTE;
    let room = f64::from(layout.width - end).max(CHARACTER_PX);
    area.draw(&Text::new(fitted(&bar.note(), room), (end, middle), beside))?;
    Ok(())
}

/// A dot for each run, and a ring for an outlier; not all at one height, so that they are seen apart.
fn runs(area: &Area<'_>, bar: &Bar<'_>, ink: &Ink, middle: i32, x: &dyn Fn(f64) -> i32) -> Result<(), Box<dyn Error>> {
    let heights = [0, 2, 4, -4, -2].into_iter().cycle();
    for ((index, gbps), height) in bar.row.gbps.iter().enumerate().zip(heights) {
        let place = (x(*gbps), middle + height);
        if bar.row.outliers.contains(&index) {
            area.draw(&Circle::new(place, 4, ink.light.stroke_width(2)))?;
        } else {
            area.draw(&Circle::new(place, 2, ink.light.filled()))?;
        }
    }
    Ok(())
}
