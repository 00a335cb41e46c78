//! Horizontal bars in groups: medians with their intervals, and a dot for each run.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, CHARACTER_PX, FAINT, GRID, Picture, TEXT, Width, fitted, text_style, tick, width_of};
use crate::report::model::{Bar, Group};

impl Bar {
    /// The width of its note, with the space before it.
    fn note_px(&self) -> f64 {
        width_of(&self.note) + f64::from(BEFORE_NOTE) + 6.0
    }

    /// The largest value that is drawn for it.
    fn end(&self) -> f64 {
        let high = self.median.as_ref().map_or(0.0, |(_, interval)| interval.end);
        self.runs.iter().map(|(value, _)| *value).fold(high, f64::max)
    }
}

/// Where things are, in pixels.
struct Layout {
    width: i32,
    /// From the picture's left edge to the bars.
    left: u32,
    /// From the end of the longest bar to the picture's right edge.
    right: u32,
    /// The height of a bar with its label.
    row: i32,
    /// The height of a label above its bar; 0 if labels are to the left.
    above: i32,
}

const BAR: i32 = 14;
const BEFORE_NOTE: i32 = 8;
const TITLE: i32 = 28;
const AXIS: u32 = 44;

impl Layout {
    fn of(groups: &[Group], width: Width) -> Self {
        let bars = || groups.iter().flat_map(|group| &group.bars);
        let longest = bars().map(|bar| width_of(&bar.label)).fold(0.0, f64::max);
        let (left, row, above) = match width {
            Width::Wide => (longest.clamp(60.0, 300.0) as u32 + 14, 22, 0),
            Width::Narrow => (4, 40, 19),
        };
        let end = end(groups);
        let room = f64::from(width.px() - left);
        // The longest scale on which each bar has room for its note.
        let scale = bars().filter(|bar| bar.end() > 0.0).map(|bar| (room - bar.note_px()) / (bar.end() / end));
        let scale = scale.fold(room, f64::min).max(room / 2.0);
        let right = (room - scale).max(14.0).ceil() as u32;
        Self { width: width.px().cast_signed(), left, right, row, above }
    }

    fn height(&self, groups: &[Group]) -> i32 {
        groups.iter().map(|group| group.bars.iter().fold(title_height(group), |height, _| height + self.row)).sum()
    }
}

fn title_height(group: &Group) -> i32 {
    if group.title.is_empty() { 6 } else { TITLE }
}

/// The end of the scale.
fn end(groups: &[Group]) -> f64 {
    let end = groups.iter().flat_map(|group| &group.bars).map(Bar::end).fold(0.0, f64::max);
    if end > 0.0 { end } else { 1.0 }
}

/// Draws the bars of all groups over one axis.
pub(super) fn bars(name: &str, groups: &[Group], width: Width) -> io::Result<Picture> {
    let layout = Layout::of(groups, width);
    let rows = layout.height(groups);
    Picture::draw(width.px(), rows.cast_unsigned() + AXIS, |area| draw(area, name, groups, &layout, rows))
}

fn draw(area: &Area<'_>, name: &str, groups: &[Group], layout: &Layout, rows: i32) -> Result<(), Box<dyn Error>> {
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
        .x_desc(name)
        .draw()?;
    let x = |value: f64| chart.backend_coord(&(value, 0.0)).0;
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

/// A bar in the row with its upper edge at `top`.
fn one(area: &Area<'_>, bar: &Bar, layout: &Layout, top: i32, x: &dyn Fn(f64) -> i32) -> Result<(), Box<dyn Error>> {
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
    let Some((median, interval)) = &bar.median else {
        let room = f64::from(layout.width) - f64::from(left) - 8.0;
        area.draw(&Text::new(fitted(&format!("× {}", bar.note), room), (left + 6, middle), beside))?;
        return Ok(());
    };
    let ink = bar.mark.ink();
    let median = x(*median);
    area.draw(&Rectangle::new([(left, upper), (median, lower)], ink.light.mix(0.3).filled()))?;
    area.draw(&PathElement::new(vec![(median, upper), (median, lower)], ink.light.stroke_width(2)))?;
    runs(area, bar, middle, x)?;
    let (low, high) = (x(interval.start), x(interval.end));
    let whisker = [(low, -4), (low, 4), (low, 0), (high, 0), (high, -4), (high, 4)];
    let whisker: Vec<_> = whisker.into_iter().map(|(x, y)| (x, middle + y)).collect();
    area.draw(&PathElement::new(whisker, TEXT.light))?;
    let end = x(bar.end()) + BEFORE_NOTE;
    let room = f64::from(layout.width - end).max(CHARACTER_PX);
    area.draw(&Text::new(fitted(&bar.note, room), (end, middle), beside))?;
    Ok(())
}

/// A dot for each run, a ring for an outlier. They are at several heights, so they overlap less.
fn runs(area: &Area<'_>, bar: &Bar, middle: i32, x: &dyn Fn(f64) -> i32) -> Result<(), Box<dyn Error>> {
    let heights = [0, 2, 4, -4, -2].into_iter().cycle();
    let ink = bar.mark.ink().light;
    for ((value, is_outlier), height) in bar.runs.iter().zip(heights) {
        let place = (x(*value), middle + height);
        if *is_outlier {
            area.draw(&Circle::new(place, 4, ink.stroke_width(2)))?;
        } else {
            area.draw(&Circle::new(place, 2, ink.filled()))?;
        }
    }
    Ok(())
}
