//! Runs over the time at which they were made, and the rate within each run.

use std::error::Error;
use std::io;
use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::{FAINT, GRID, Ink, Mark, Picture, Width, text_style, tick};
use crate::measure::{CellSummary, Summary};
use crate::sample::Sample;

/// What says when a sample was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Clock {
    /// Minutes from the beginning of the first run: each sample has its time.
    Minutes,
    /// The round of the matrix: each sample has its number.
    Round,
    /// The place in the file.
    Place,
}

impl Clock {
    /// The best that all samples have.
    pub(in crate::report) fn of(samples: &[Sample]) -> Self {
        if samples.iter().all(|sample| sample.facts.started_unix_ms.is_some()) {
            Self::Minutes
        } else if samples.iter().all(|sample| sample.facts.round.is_some()) {
            Self::Round
        } else {
            Self::Place
        }
    }

    /// When each of the samples was made.
    fn times(self, samples: &[Sample]) -> Vec<f64> {
        let first = samples.iter().filter_map(|sample| sample.facts.started_unix_ms).min().unwrap_or(0);
        let time = |(place, sample): (usize, &Sample)| match self {
            Self::Minutes => (sample.facts.started_unix_ms.unwrap_or(first) - first) as f64 / 60_000.0,
            Self::Round => f64::from(sample.facts.round.unwrap_or_default()),
            Self::Place => place as f64 + 1.0,
        };
        samples.iter().enumerate().map(time).collect()
    }

    /// Whether it has whole numbers only.
    const fn counts(self) -> bool {
        matches!(self, Self::Round | Self::Place)
    }

    /// The name of its axis.
    pub(in crate::report) const fn name(self) -> &'static str {
        match self {
            Self::Minutes => "minutes from the first run",
            Self::Round => "round",
            Self::Place => "place in the file",
        }
    }
}

/// The frame of a picture: its size in pixels, its axes and their names.
struct Frame<'a> {
    size: (u32, u32),
    x: Range<f64>,
    y: Range<f64>,
    names: (&'a str, &'a str),
    /// Whether only whole numbers are on the horizontal axis.
    counts: bool,
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

impl Frame<'_> {
    fn draw(self, content: impl FnOnce(&mut Chart<'_, '_>) -> Result<(), Box<dyn Error>>) -> io::Result<Picture> {
        let Self { size: (width, height), x, y, names, counts } = self;
        Picture::draw(width, height, |area| {
            let mut chart = ChartBuilder::on(area)
                .margin_top(8)
                .margin_right(12)
                .x_label_area_size(if names.0.is_empty() { 22 } else { 42 })
                .y_label_area_size(if names.1.is_empty() { 34 } else { 56 })
                .build_cartesian_2d(x, y)?;
            let labels = if width < 300 { 4 } else { 7 };
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID.light)
                .axis_style(GRID.light)
                .x_labels(labels)
                .y_labels(if height < 200 { 4 } else { 6 })
                .x_label_style(text_style(&FAINT, HPos::Center, VPos::Top))
                .y_label_style(text_style(&FAINT, HPos::Right, VPos::Center))
                .axis_desc_style(text_style(&FAINT, HPos::Center, VPos::Bottom))
                .x_label_formatter(&|value| if counts && value.fract() != 0.0 { String::new() } else { tick(*value) })
                .y_label_formatter(&|value| tick(*value))
                .x_desc(names.0)
                .y_desc(names.1)
                .draw()?;
            content(&mut chart)
        })
    }
}

/// A range around the values that has a width.
fn around(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    if low > high {
        return 0.0..1.0;
    }
    let margin = ((high - low) * 0.04).max(high.abs() * 0.01).max(0.01);
    low - margin..high + margin
}

/// All runs in one picture: how far each is from its cell's median, in percent, over the time. What hits
/// all cells at once is the machine's doing. `None` where there are fewer than two runs to compare.
pub(in crate::report) fn drift(samples: &[Sample], summary: &Summary, width: Width) -> io::Result<Option<Picture>> {
    let clock = Clock::of(samples);
    let mut points = Vec::new();
    for (sample, time) in samples.iter().zip(clock.times(samples)).filter(|(sample, _)| sample.is_ok()) {
        let row = summary.cells.iter().find(|row| row.cell == sample.cell && row.gbps.len() > 1);
        if let Some(median) =
            row.and_then(|row| row.estimate).map(|estimate| estimate.median).filter(|gbps| *gbps > 0.0)
        {
            points.push((time, (sample.gbps() / median - 1.0) * 100.0, Mark::of(&sample.cell).ink()));
        }
    }
    if points.is_empty() {
        return Ok(None);
    }
    let y = around(points.iter().map(|(_, percent, _)| *percent).chain([-5.0, 5.0]));
    let height = if width == Width::Wide { 280 } else { 240 };
    let names = (clock.name(), "from the median, %");
    let frame = Frame {
        size: (width.px(), height),
        x: around(points.iter().map(|(time, ..)| *time)),
        y,
        names,
        counts: clock.counts(),
    };
    let picture = frame.draw(|chart| {
        let ends = chart.x_range();
        chart.draw_series(LineSeries::new([(ends.start, 0.0), (ends.end, 0.0)], FAINT.light))?;
        dots(chart, points.into_iter(), 2)
    });
    picture.map(Some)
}

fn dots(
    chart: &mut Chart<'_, '_>,
    points: impl Iterator<Item = (f64, f64, &'static Ink)>,
    size: i32,
) -> Result<(), Box<dyn Error>> {
    chart.draw_series(points.map(|(x, y, ink)| Circle::new((x, y), size, ink.light.mix(0.8).filled())))?;
    Ok(())
}

/// The size of one of many small pictures, in pixels.
const SMALL: (u32, u32) = (260, 130);

/// The runs of a cell over the time, from 0 up.
pub(in crate::report) fn over_time(samples: &[Sample], row: &CellSummary) -> io::Result<Picture> {
    let clock = Clock::of(samples);
    let times = clock.times(samples);
    let x = around(times.iter().copied());
    let points = samples.iter().zip(times).filter(|(sample, _)| sample.is_ok() && sample.cell == row.cell);
    let points: Vec<_> = points.map(|(sample, time)| (time, sample.gbps(), Mark::of(&row.cell).ink())).collect();
    let top = points.iter().map(|(_, gbps, _)| *gbps).fold(0.0, f64::max).max(0.01) * 1.1;
    let frame = Frame { size: SMALL, x, y: 0.0..top, names: ("", ""), counts: clock.counts() };
    frame.draw(|chart| dots(chart, points.into_iter(), 3))
}

/// The rate within each run of a cell, a line for each; `None` where no run says it.
pub(in crate::report) fn within_runs(samples: &[Sample], row: &CellSummary) -> io::Result<Option<Picture>> {
    let runs = samples.iter().filter(|sample| sample.is_ok() && sample.cell == row.cell);
    let lines: Vec<_> = runs.map(rates).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let points = || lines.iter().flatten().copied();
    let end = points().map(|(time, _)| time).fold(0.0, f64::max);
    let top = points().map(|(_, gbps)| gbps).fold(0.0, f64::max).max(0.01) * 1.1;
    let ink = Mark::of(&row.cell).ink();
    let frame = Frame { size: SMALL, x: 0.0..end.max(0.001), y: 0.0..top, names: ("", ""), counts: false };
    let picture = frame.draw(|chart| {
        for line in lines {
            chart.draw_series(LineSeries::new(line, ink.light.mix(0.6)))?;
        }
        Ok(())
    });
    picture.map(Some)
}

/// The rate in each interval of a run, in Gbps, at the middle of it, in seconds.
fn rates(sample: &Sample) -> Vec<(f64, f64)> {
    let mut start = std::time::Duration::ZERO;
    let mut rates = Vec::new();
    for interval in &sample.facts.intervals {
        let length = interval.end.saturating_sub(start);
        if !length.is_zero() {
            rates.push(((start + length / 2).as_secs_f64(), crate::sample::gbps(interval.bytes, length)));
        }
        start = interval.end;
    }
    rates
}
