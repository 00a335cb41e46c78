//! The samples of each cell, as one row of a table.

use std::collections::BTreeMap;

use crate::plan::Mode;
use crate::sample::{Cell, Sample, Status, Warning};

/// A figure and how sure it is.
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
    /// Which of `gbps` are outliers.
    pub outliers: Vec<usize>,
    /// Median CPU seconds of the client for a gigabyte.
    pub client_cpu_per_gb: Option<f64>,
    /// Median CPU seconds of the stack's side for a gigabyte.
    pub stack_cpu_per_gb: Option<f64>,
    /// Largest resident set of any run, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Median of the kernel's retransmissions.
    pub retransmits: Option<f64>,
    /// Median of the device's drops.
    pub device_drops: Option<f64>,
    /// Median bytes of a packet in the direction of the payload.
    pub bytes_per_packet: Option<f64>,
    /// Median by that of the fastest cell with the same work: the cells that differ in stack and
    /// runtime alone.
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
    /// Its rows, in the order of the cells: by layer, then stack, mode, runtime and so on.
    pub cells: Vec<CellSummary>,
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
            let rivals = medians.iter().filter(|(cell, _)| same_work(cell, &row.cell)).map(|(_, median)| *median);
            row.of_fastest = rivals.reduce(f64::max).map(|fastest| median / fastest);
            let other = Cell { mode: row.cell.mode.map(other_mode), ..row.cell.clone() };
            row.of_other_mode =
                medians.iter().find(|(cell, _)| *cell == other && *cell != row.cell).map(|(_, other)| median / other);
        }
        Self { cells }
    }
}

/// Whether two cells differ in stack and runtime alone.
fn same_work(left: &Cell, right: &Cell) -> bool {
    Cell { netstack: right.netstack, runtime: right.runtime, ..left.clone() } == *right
}

fn other_mode(mode: Mode) -> Mode {
    match mode {
        Mode::Reader => Mode::Writer,
        Mode::Writer => Mode::Reader,
    }
}

impl CellSummary {
    fn of(cell: &Cell, samples: &[&Sample]) -> Self {
        let good: Vec<_> = samples.iter().copied().filter(|sample| sample.is_ok()).collect();
        let over =
            |figure: fn(&Sample) -> Option<f64>| median(good.iter().filter_map(|sample| figure(sample)).collect());
        let gbps: Vec<f64> = good.iter().map(|sample| sample.gbps()).collect();
        let mut failures = BTreeMap::new();
        for sample in samples.iter().filter(|sample| !sample.is_ok()) {
            *failures.entry(sample.facts.status).or_default() += 1;
        }
        Self {
            cell: cell.clone(),
            estimate: median(gbps.clone()).map(|median| Estimate {
                median,
                low: gbps.iter().copied().fold(f64::INFINITY, f64::min),
                high: gbps.iter().copied().fold(0.0, f64::max),
            }),
            outliers: Vec::new(),
            client_cpu_per_gb: over(Sample::client_cpu_per_gb),
            stack_cpu_per_gb: over(Sample::stack_cpu_per_gb),
            peak_rss_bytes: good.iter().filter_map(|sample| sample.facts.peak_rss_bytes).max(),
            retransmits: over(|sample| sample.facts.retransmits.map(|count| count as f64)),
            device_drops: over(|sample| sample.facts.device_drops.map(|count| count as f64)),
            bytes_per_packet: over(Sample::bytes_per_packet),
            of_fastest: None,
            of_other_mode: None,
            detail: samples.iter().find_map(|sample| sample.facts.detail.clone()),
            failures,
            warnings: Vec::new(),
            gbps,
        }
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}
