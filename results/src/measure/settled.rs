//! When the rounds of a matrix may end: each cell's figure is known well enough.

use std::collections::HashSet;

use super::summary::{CellSummary, Summary};
use crate::cell::Cell;
use crate::sample::Sample;

/// With fewer good runs no cell is settled: its interval may be narrow by chance. See `docs/method.md`.
pub const FEWEST_ROUNDS: usize = 10;

/// The cells whose interval is within this share of the median, or that failed in as many runs as a settled cell needs.
/// Cells with one workload under the same impairments are compared within rounds, so they are settled together.
pub fn settled(samples: &[Sample], within: f64) -> HashSet<Cell> {
    let rows = Summary::of(samples).cells;
    let is_beside = |one: &Cell, other: &Cell| {
        one.workload() == other.workload() && one.impairments == other.impairments && one.parallel == other.parallel
    };
    let is_settled = |row: &CellSummary| {
        let has_failed = row.runs - row.speeds.len() >= FEWEST_ROUNDS;
        let is_narrow = row.estimate.is_some_and(|estimate| estimate.half_width() <= within);
        has_failed || row.speeds.len() >= FEWEST_ROUNDS && is_narrow
    };
    let open: Vec<_> = rows.iter().filter(|row| !is_settled(row)).map(|row| &row.cell).collect();
    let is_open = |cell: &Cell| open.iter().any(|other| is_beside(cell, other));
    rows.iter().map(|row| &row.cell).filter(|cell| !is_open(cell)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::fixture::{cell, failed, sample};
    use crate::sample::Status;

    /// As many runs as a cell needs at least, alternately above and below 10 by this share.
    fn runs(cell: &Cell, share: f64) -> Vec<Sample> {
        (0..FEWEST_ROUNDS)
            .map(|run| sample(cell, 10.0 * if run % 2 == 0 { 1.0 + share } else { 1.0 - share }))
            .collect()
    }

    #[test]
    fn a_cell_is_settled_with_those_that_it_is_compared_with() {
        let [reader, writer, other, kernel] =
            ["-n lwip -m reader", "-n lwip -m writer", "-n smoltcp -m writer", "--layer loopback -m writer"].map(cell);
        let samples = [runs(&reader, 0.04), runs(&writer, 0.04), runs(&other, 0.2), runs(&kernel, 0.01)].concat();
        assert_eq!(settled(&samples, 0.05), HashSet::from([reader.clone()]));
        assert_eq!(settled(&samples, 0.03), HashSet::new());
        assert_eq!(settled(&samples, 0.3), HashSet::from([reader, writer, other, kernel]));
    }

    #[test]
    fn few_runs_settle_nothing_and_failures_alone_are_enough() {
        let [cell, stream] = ["-n lwip -m idle --parallel 2", "-n lwip -m both"].map(cell);
        let mut samples = runs(&stream, 0.0);
        samples.pop();
        assert_eq!(settled(&samples, 1.0), HashSet::new());
        let mut failures = vec![failed(&cell, Status::Stalled); FEWEST_ROUNDS];
        assert_eq!(settled(&failures, 0.1), HashSet::from([cell]));
        failures.pop();
        assert_eq!(settled(&failures, 0.1), HashSet::new());
    }
}
