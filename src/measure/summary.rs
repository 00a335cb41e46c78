//! The samples of each cell, as one row of a table.

use std::collections::BTreeMap;

use super::{statistics, warnings};
use crate::plan::Mode;
use crate::sample::{Cell, Load, Sample, StackCell, Status, Warning};

/// A figure and how sure it is: an interval that is to hold the true value in 95 of 100 cases.
///
/// That of a median of 5 to 20 quiet runs does so in 94 to 98, of 3 in 87, and of one run it says nothing. For
/// 5 runs it reaches from about the slowest to about the fastest, for 10 from about the third to the
/// eighth. It knows the noise from run to run, and nothing of what changes from one hour to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
}

/// What the samples of a cell come to. Medians are over the runs that did not fail.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSummary {
    /// What was run.
    pub cell: Cell,
    /// The throughput of each run that did not fail, in 10⁹ bits a second, in the order of the file.
    pub gbps: Vec<f64>,
    /// Their median and its interval; `None` where all runs failed.
    pub estimate: Option<Estimate>,
    /// Which of `gbps` are outliers: more than three interquartile ranges off the quartiles. They are
    /// marked, and part of every figure here. Of less than 7 runs none is.
    pub outliers: Vec<usize>,
    /// Median CPU seconds of the client for a gigabyte.
    pub client_cpu_per_gb: Option<f64>,
    /// Median CPU seconds of what carries the bytes, the stack's side or the forwarder, for a gigabyte.
    pub subject_cpu_per_gb: Option<f64>,
    /// How busy the forwarder kept the processors, in percent of one: the median of the runs' averages, and
    /// the largest of their maxima.
    pub cpu_percent: Option<Load>,
    /// Its resident set in bytes, as it was sampled: the same of both.
    pub memory_bytes: Option<Load>,
    /// Largest resident set of any run, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Median of the kernel's retransmissions.
    pub retransmits: Option<f64>,
    /// Median of the packets that the forwarder wrote after a later one of their flow.
    pub reordered: Option<f64>,
    /// Median of the device's drops.
    pub device_drops: Option<f64>,
    /// Median bytes of a packet in the direction of the payload.
    pub bytes_per_packet: Option<f64>,
    /// Median by that of the fastest cell with the same work: the cells that differ in stack and
    /// runtime alone, or in the forwarder.
    pub of_fastest: Option<f64>,
    /// Median by that of the cell which differs in the mode alone: above 1 where this mode is the
    /// faster.
    pub of_other_mode: Option<f64>,
    /// How the runs that failed ended, and how many did.
    pub failures: BTreeMap<Status, usize>,
    /// Why the first of them failed.
    pub detail: Option<String>,
    /// What the reader should know of this cell.
    pub warnings: Vec<Warning>,
}

/// A table of cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Its rows, in the order of the cells: by layer, then stack, mode, runtime and so on; after them the
    /// forwarders, as the published table has them.
    pub cells: Vec<CellSummary>,
    /// What the reader should know of the machine and its settings, for all cells.
    pub warnings: Vec<Warning>,
}

impl Summary {
    /// The table of some samples.
    pub fn of(samples: &[Sample]) -> Self {
        let mut groups: BTreeMap<&Cell, Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            groups.entry(&sample.cell).or_default().push(sample);
        }
        let mut cells: Vec<_> = groups.into_iter().map(|(cell, samples)| CellSummary::of(cell, &samples)).collect();
        let medians: Vec<_> = cells.iter().filter_map(|row| Some((row.cell.clone(), row.estimate?.median))).collect();
        for row in &mut cells {
            let Some(Estimate { median, .. }) = row.estimate else { continue };
            let rivals = medians.iter().filter(|(cell, _)| cell.same_work(&row.cell)).map(|(_, median)| *median);
            row.of_fastest = rivals.reduce(f64::max).map(|fastest| median / fastest);
            let other = of_other_mode(&row.cell);
            row.of_other_mode =
                medians.iter().find(|(cell, _)| Some(cell) == other.as_ref()).map(|(_, other)| median / other);
        }
        Self { cells, warnings: warnings::of_environment(samples.iter()) }
    }
}

/// The same stack's cell with the other mode; `None` where there are no modes.
fn of_other_mode(cell: &Cell) -> Option<Cell> {
    let cell = cell.stack()?;
    let mode = match cell.mode? {
        Mode::Reader => Mode::Writer,
        Mode::Writer => Mode::Reader,
    };
    Some(StackCell { mode: Some(mode), ..cell.clone() }.into())
}

impl CellSummary {
    fn of(cell: &Cell, samples: &[&Sample]) -> Self {
        let good: Vec<_> = samples.iter().copied().filter(|sample| sample.is_ok()).collect();
        let over = |figure: fn(&Sample) -> Option<f64>| {
            statistics::median(&good.iter().filter_map(|sample| figure(sample)).collect::<Vec<_>>())
        };
        let gbps: Vec<f64> = good.iter().map(|sample| sample.gbps()).collect();
        let mut failures = BTreeMap::new();
        for sample in samples.iter().filter(|sample| !sample.is_ok()) {
            *failures.entry(sample.facts.status).or_default() += 1;
        }
        // A rate is not below 0, whatever its interval.
        let estimate = statistics::estimate(&gbps).map(|figure| Estimate { low: figure.low.max(0.0), ..figure });
        let outliers = statistics::outliers(&gbps);
        Self {
            cell: cell.clone(),
            warnings: warnings::of_cell(samples, estimate, gbps.len(), outliers.len()),
            estimate,
            outliers,
            client_cpu_per_gb: over(Sample::client_cpu_per_gb),
            subject_cpu_per_gb: over(Sample::subject_cpu_per_gb),
            cpu_percent: load(&good, Sample::cpu_percent),
            memory_bytes: load(&good, Sample::memory_bytes),
            peak_rss_bytes: good.iter().filter_map(|sample| sample.facts.peak_rss_bytes).max(),
            retransmits: over(|sample| sample.facts.retransmits.map(|count| count as f64)),
            reordered: over(|sample| sample.facts.reordered.map(|count| count as f64)),
            device_drops: over(|sample| sample.facts.device_drops.map(|count| count as f64)),
            bytes_per_packet: over(Sample::bytes_per_packet),
            of_fastest: None,
            of_other_mode: None,
            detail: samples.iter().find_map(|sample| sample.facts.detail.clone()),
            failures,
            gbps,
        }
    }
}

/// The loads of several runs as one.
fn load(runs: &[&Sample], of: fn(&Sample) -> Option<Load>) -> Option<Load> {
    let loads: Vec<_> = runs.iter().filter_map(|sample| of(sample)).collect();
    let average = statistics::median(&loads.iter().map(|load| load.average).collect::<Vec<_>>())?;
    let maximum = loads.iter().map(|load| load.maximum).reduce(f64::max)?;
    Some(Load { average, maximum })
}

#[cfg(test)]
mod tests;
