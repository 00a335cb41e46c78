//! A figure: its names, how it is taken, and how it is written.

use crate::cell::Cell;
use crate::grouped_digits;
use crate::sample::{Measurements, Sample};

/// A figure of a run, and of all runs of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Its name for machines, with its unit at the end.
    pub(crate) name: &'static str,
    /// The head of its column, without the unit. `{client}` and `{subject}` stand for the names of both sides.
    pub(crate) title: &'static str,
    /// Its unit as it is written; empty if the title says it.
    pub(crate) unit: &'static str,
    pub(crate) about: &'static str,
    /// Whether a cell has it. Its value may still be unknown.
    pub(crate) exists: fn(&Cell) -> bool,
    pub(crate) taken: Taken,
    pub(crate) written: Written,
    /// Whether more is better; `None` if neither is.
    pub(crate) more_is_better: Option<bool>,
    pub(crate) in_cells: bool,
    pub(crate) in_samples: bool,
    /// In the report of a single run: the line that has it, and the words around `{}`, its value. `{sender}` stands for the kernel,
    /// or what sends over QUIC.
    pub(crate) in_text: Option<(&'static str, &'static str)>,
}

/// The value of a run; `None` if it is unknown.
type Take = fn(&Sample, &Measurements) -> Option<f64>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// A value of each run. A cell has the median of its runs that did not fail.
    Median(Take),
    /// A value of each run. A cell has the largest of its runs that did not fail.
    Maximum(Take),
    /// The time in which this share of the requests was answered, in microseconds; of a cell, over all its good runs.
    Quantile(f64),
    /// A cell's median speed by the best of its rivals, of which each is the second cell; the reciprocal if less is better.
    Relative(fn(&Cell, &Cell) -> bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Digits(usize),
    Millions,
    /// In units of 1024.
    Kibibytes,
    Percent,
}

use Written::{Digits, Kibibytes, Millions, Percent};

pub(super) const fn median(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    exists: fn(&Cell) -> bool,
    take: Take,
) -> Metric {
    metric(name, title, unit, exists, Taken::Median(take))
}

pub(super) const fn maximum(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    exists: fn(&Cell) -> bool,
    take: Take,
) -> Metric {
    metric(name, title, unit, exists, Taken::Maximum(take))
}

pub(super) const fn quantile(name: &'static str, title: &'static str, share: f64) -> Metric {
    metric(name, title, "µs", Cell::has_requests, Taken::Quantile(share))
}

pub(super) const fn relative(
    name: &'static str,
    title: &'static str,
    exists: fn(&Cell) -> bool,
    is_rival: fn(&Cell, &Cell) -> bool,
) -> Metric {
    metric(name, title, "", exists, Taken::Relative(is_rival)).written(Percent).only_cells()
}

/// The defaults: less is better, it is in both tables, and has no digits after the point.
const fn metric(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    exists: fn(&Cell) -> bool,
    taken: Taken,
) -> Metric {
    Metric {
        name,
        title,
        unit,
        about: "",
        exists,
        taken,
        written: Digits(0),
        more_is_better: Some(false),
        in_cells: true,
        in_samples: true,
        in_text: None,
    }
}

impl Metric {
    setters! {
        about(about: &'static str);
        of(exists: fn(&Cell) -> bool);
        written(written: Written);
        better(more_is_better: Option<bool>);
    }

    pub(super) const fn only_cells(self) -> Self {
        Self { in_samples: false, ..self }
    }

    pub(super) const fn only_samples(self) -> Self {
        Self { in_cells: false, ..self }
    }

    pub(super) const fn text(self, line: &'static str, words: &'static str) -> Self {
        Self { in_text: Some((line, words)), ..self }
    }

    pub(super) const fn only_text(self, line: &'static str, words: &'static str) -> Self {
        self.only_samples().text(line, words)
    }

    /// Whether it is of the time without a load, before or after.
    pub(crate) fn is_of_rest(&self) -> bool {
        self.in_text.is_some_and(|(line, _)| matches!(line, "before" | "after"))
    }

    /// Its value in a run.
    pub(crate) fn of_run(&self, sample: &Sample) -> Option<f64> {
        match self.taken {
            Taken::Median(take) | Taken::Maximum(take) => take(sample, &sample.measured),
            Taken::Quantile(share) => sample.measured.requests.as_ref()?.latency.quantile_us(share),
            Taken::Relative(_) => None,
        }
    }

    pub(crate) fn less_is_better(&self) -> bool {
        self.more_is_better == Some(false)
    }

    /// How many times as good a value is as another: 0.5 is half the throughput, or twice the latency.
    pub(crate) fn times_as_good(&self, value: f64, other: f64) -> f64 {
        if self.less_is_better() { other / value } else { value / other }
    }

    /// A value as a reader sees it, without the unit.
    pub(crate) fn write(&self, value: f64) -> String {
        match self.written {
            Digits(digits) => grouped_digits(value, digits),
            Kibibytes => grouped_digits(value / 1024.0, 1),
            Millions => grouped_digits(value / 1e6, 2),
            Percent => format!("{:.0} %", value * 100.0),
        }
    }

    /// The same with the unit.
    pub(crate) fn write_with_unit(&self, value: f64) -> String {
        format!("{} {}", self.write(value), self.unit).trim_end().to_owned()
    }
}
