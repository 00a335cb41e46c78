//! Horizontal bars in groups: medians with their intervals, and a dot for each run. Each panel has an axis of its own.

use std::error::Error;
use std::io;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{Area, FAINT, GRID, Picture, TEXT, Width, fitted, signs, text_style, tick, width_of, wrapped};
use crate::report::model::{Bar, Group, Panel, Reference};

impl Bar {
    fn note_px(&self) -> f64 {
        width_of(&self.note) + f64::from(BEFORE_NOTE) + 6.0
    }

    fn median(&self) -> f64 {
        self.median.as_ref().map_or(0.0, |(median, _)| *median)
    }

    fn end(&self) -> f64 {
        let high = self.median.as_ref().map_or(0.0, |(_, interval)| interval.end);
        self.runs.iter().map(|(value, _)| *value).fold(high, f64::max)
    }
}

impl Panel {
    fn end(&self) -> f64 {
        let bars = self.groups.iter().flat_map(|group| &group.bars);
        let longest = bars.map(Bar::end).fold(0.0, f64::max);
        let references = self.groups.iter().flat_map(|group| &group.references).map(|reference| reference.value);
        let end = references.filter(|value| *value <= longest * FARTHEST).fold(longest, f64::max);
        if end > 0.0 { end } else { 1.0 }
    }
}

struct Layout {
    width: i32,
    /// From the picture's left edge to the bars.
    left: u32,
    /// From the end of the longest bar to the picture's right edge.
    right: u32,
    /// The height of a bar, of its upper part with the median's label, and of the space between two bars.
    bar: i32,
    label: i32,
    space: i32,
    /// The height of a label above its bar; 0 if labels are to the left.
    above: i32,
}

const BEFORE_NOTE: i32 = 6;
const LINE: i32 = 16;
const BEFORE_TITLE: i32 = 16;
const AXIS: u32 = 44;
/// Room for the mark beside a label.
const MARK: i32 = 20;
/// Room for half of the last number of an axis.
const RIGHT: f64 = 26.0;
/// How many times as long as the longest bar the scale may be for a reference. Another is beyond it.
const FARTHEST: f64 = 2.0;

impl Layout {
    fn of(panel: &Panel, all: &[Panel], width: Width) -> Self {
        let bars = |panels: &[Panel]| -> Vec<f64> {
            let bars = panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.bars);
            bars.map(|bar| width_of(&bar.label)).collect()
        };
        // The bars of all panels begin at one place.
        let longest = bars(all).into_iter().fold(0.0, f64::max);
        let (left, above) = match width {
            Width::Wide => (longest.clamp(60.0, 300.0) as u32 + MARK.cast_unsigned() + 8, 0),
            Width::Narrow => (4, 19),
        };
        let bars = || panel.groups.iter().flat_map(|group| &group.bars);
        let has_runs = bars().any(|bar| !bar.runs.is_empty());
        let (bar, label) = if has_runs { (26, 13) } else { (16, 16) };
        let end = panel.end();
        let room = f64::from(width.px() - left);
        // The longest scale on which each bar has room for its note.
        let scale = bars().filter(|bar| bar.median() > 0.0).map(|bar| (room - bar.note_px()) / (bar.median() / end));
        let scale = scale.fold(room, f64::min).max(room / 2.0);
        let right = (room - scale).max(RIGHT).ceil() as u32;
        Self { width: width.px().cast_signed(), left, right, bar, label, space: 6, above }
    }

    fn title(&self, group: &Group) -> Vec<String> {
        if group.title.is_empty() { Vec::new() } else { wrapped(&group.title, f64::from(self.width) - 24.0) }
    }

    /// The height of the lines above the bars of a group.
    fn head(&self, group: &Group) -> i32 {
        let lines = self.title(group).len() + group.references.len();
        if lines == 0 { self.space } else { BEFORE_TITLE + LINE * signed(lines) }
    }

    fn row(&self) -> i32 {
        self.above + self.bar + self.space
    }

    fn height(&self, panel: &Panel) -> i32 {
        panel.groups.iter().map(|group| self.head(group) + self.row() * signed(group.bars.len())).sum()
    }
}

/// A small number of things, to reckon with places in a picture.
pub(super) const fn signed(count: usize) -> i32 {
    (count as u32).cast_signed()
}

pub(super) fn bars(panels: &[Panel], width: Width) -> io::Result<Picture> {
    let layouts: Vec<_> = panels.iter().map(|panel| (panel, Layout::of(panel, panels, width))).collect();
    let height = layouts.iter().map(|(panel, layout)| layout.height(panel).cast_unsigned() + AXIS).sum();
    Picture::draw(width.px(), height, |area| {
        let mut top = 0;
        for (panel, layout) in &layouts {
            draw(area, panel, layout, top)?;
            top += layout.height(panel) + AXIS.cast_signed();
        }
        Ok(())
    })
}

fn draw(area: &Area<'_>, panel: &Panel, layout: &Layout, mut top: i32) -> Result<(), Box<dyn Error>> {
    let end = panel.end();
    let height = layout.height(panel).cast_unsigned() + AXIS;
    let part = area.clone().shrink((0, top), (layout.width.cast_unsigned(), height));
    let mut chart = ChartBuilder::on(&part)
        .margin_left(layout.left)
        .margin_right(layout.right)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(0.0..end, 0.0..1.0)?;
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
        .x_desc(panel.axis)
        .draw()?;
    let x = |value: f64| chart.backend_coord(&(value, 0.0)).0;
    for group in &panel.groups {
        for (index, line) in layout.title(group).into_iter().enumerate() {
            let bold = text_style(&TEXT, HPos::Left, VPos::Bottom);
            let bold = TextStyle { font: bold.font.style(FontStyle::Bold), ..bold };
            area.draw(&Text::new(line, (4, top + BEFORE_TITLE - 4 + LINE * (signed(index) + 1)), bold))?;
        }
        let (first, rows) = (top + layout.head(group), layout.row() * signed(group.bars.len()));
        for (index, bar) in group.bars.iter().enumerate() {
            one(area, bar, layout, first + layout.row() * signed(index), &x)?;
        }
        for (index, reference) in group.references.iter().rev().enumerate() {
            let label = first - 2 - LINE * signed(index);
            reference_line(area, reference, layout, (label, first + rows), (end, &x))?;
        }
        top = first + rows;
    }
    Ok(())
}

/// A dashed line at a value, from under its label to the end of the group. If it is beyond the scale, it has only a label.
fn reference_line(
    area: &Area<'_>,
    Reference { label, value }: &Reference,
    layout: &Layout,
    (upper, lower): (i32, i32),
    (end, x): (f64, &dyn Fn(f64) -> i32),
) -> Result<(), Box<dyn Error>> {
    let is_beyond = *value > end;
    let place = x(value.min(end));
    let label = if is_beyond { format!("{label} →") } else { label.clone() };
    // It is on the side of the line that has more room.
    let is_left = f64::from(place) + 4.0 + width_of(&label) > f64::from(layout.width);
    let (anchor, at) =
        if is_left { (HPos::Right, (place - 4).max(width_of(&label) as i32 + 4)) } else { (HPos::Left, place + 4) };
    area.draw(&Text::new(
        fitted(&label, f64::from(layout.width) - 8.0),
        (at, upper),
        text_style(&FAINT, anchor, VPos::Bottom),
    ))?;
    let mut from = upper - LINE + 4;
    while !is_beyond && from < lower {
        area.draw(&PathElement::new(vec![(place, from), (place, (from + 5).min(lower))], FAINT.light))?;
        from += 8;
    }
    Ok(())
}

fn one(area: &Area<'_>, bar: &Bar, layout: &Layout, top: i32, x: &dyn Fn(f64) -> i32) -> Result<(), Box<dyn Error>> {
    let upper = top + layout.above;
    let (middle, lower) = (upper + layout.bar / 2, upper + layout.bar);
    let left = x(0.0);
    if layout.above > 0 {
        let label = fitted(&bar.label, f64::from(layout.width - MARK) - 8.0);
        area.draw(&Text::new(label, (left + MARK, upper - 4), text_style(&TEXT, HPos::Left, VPos::Bottom)))?;
        signs::shape(area, (left + 8, upper - 10), bar.mark)?;
    } else {
        let label = fitted(&bar.label, f64::from(layout.left.cast_signed() - MARK) - 4.0);
        area.draw(&Text::new(label, (left - MARK - 2, middle), text_style(&TEXT, HPos::Right, VPos::Center)))?;
        signs::shape(area, (left - 11, middle), bar.mark)?;
    }
    let Some((median, interval)) = &bar.median else {
        let room = f64::from(layout.width) - f64::from(left) - 8.0;
        let beside = text_style(&TEXT, HPos::Left, VPos::Center);
        area.draw(&Text::new(fitted(&format!("× {}", bar.note), room), (left + 6, middle), beside))?;
        return Ok(());
    };
    let ink = bar.mark.ink().light;
    let median = x(*median);
    area.draw(&Rectangle::new([(left, upper), (median, lower)], ink.mix(0.3).filled()))?;
    area.draw(&PathElement::new(vec![(median, upper), (median, lower)], ink.stroke_width(2)))?;
    if !bar.runs.is_empty() {
        // Below the label.
        let middle = upper + layout.label + (layout.bar - layout.label) / 2;
        runs(area, bar, middle, x)?;
        let (low, high) = (x(interval.start), x(interval.end));
        let whisker = [(low, -4), (low, 4), (low, 0), (high, 0), (high, -4), (high, 4)];
        let whisker: Vec<_> = whisker.into_iter().map(|(x, y)| (x, middle + y)).collect();
        area.draw(&PathElement::new(whisker, TEXT.light))?;
    }
    let room = f64::from(layout.width - median - BEFORE_NOTE);
    let note = text_style(&TEXT, HPos::Left, VPos::Center);
    area.draw(&Text::new(fitted(&bar.note, room), (median + BEFORE_NOTE, upper + layout.label / 2), note))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Mark, Sign};

    #[test]
    fn the_label_of_a_median_is_at_the_median() {
        let bar = Bar {
            label: "lwip".to_owned(),
            mark: Mark::filled(Sign::Circle),
            median: Some((10.0, 8.0..25.0)),
            runs: vec![(8.0, false), (10.0, false), (30.0, true)],
            note: "10.00".to_owned(),
        };
        let reference = Reference { label: "kernel".to_owned(), value: 15.0 };
        let group = Group { title: String::new(), bars: vec![bar], references: vec![reference] };
        let body = bars(&[Panel { axis: "Gbps", groups: vec![group] }], Width::Wide).unwrap().body;
        let dots: Vec<i32> =
            body.split("cx=\"").skip(1).map(|part| part.split('"').next().unwrap().parse().unwrap()).collect();
        let before = body.split("\n10.00").next().unwrap();
        let label: i32 = before.rsplit("<text x=\"").next().unwrap().split('"').next().unwrap().parse().unwrap();
        assert_eq!(label, dots[1] + BEFORE_NOTE);
        assert!(body.contains("\nkernel\n"));
    }
}
