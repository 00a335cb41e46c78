//! Figures by how fast the machine was in their round.
//!
//! On a shared machine all figures drift together, by more than any change that is looked for. A round of
//! `matrix --baseline` has runs over the kernel's loopback, which no stack is in. What they are by their
//! usual rate is the speed of the machine in that round; figures divided by it are comparable as far as a
//! slow machine slows down all alike. The division brings in the noise of loopback, and takes out a change
//! of what loopback shares with the other layers: this program's client and server, and tokio.

use std::collections::{BTreeMap, BTreeSet};

use super::statistics::median;
use crate::plan::Layer;
use crate::sample::{Cell, Sample};

/// A sample and its figure.
pub(super) type Figure<'a> = (&'a Sample, f64);

/// The samples of stacks in two files, but for loopback's and those of rounds without any, with their figures by the
/// machine's speed. An empty list is of a file that has none of the loopback cells of the other.
pub(super) fn relative<'a>(old: &'a [Sample], new: &'a [Sample]) -> [Vec<Figure<'a>>; 2] {
    let common: BTreeSet<&Cell> = loopback(old).map(|sample| &sample.cell).collect();
    // Each cell is held against its own rate in both files together, so that it does not matter how fast
    // it is by the others, and which of them a round has.
    let mut rates: BTreeMap<&Cell, Vec<f64>> = BTreeMap::new();
    for sample in loopback(new).filter(|sample| common.contains(&sample.cell)) {
        rates.entry(&sample.cell).or_default().push(sample.gbps());
    }
    for sample in loopback(old) {
        rates.entry(&sample.cell).and_modify(|rates| rates.push(sample.gbps()));
    }
    let usual = rates.into_iter().filter_map(|(cell, rates)| Some((cell, median(&rates)?))).collect();
    [old, new].map(|samples| by_speed(samples, &usual))
}

/// Runs over loopback that did not fail.
fn loopback(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(|sample| sample.is_ok() && is_loopback(sample))
}

fn is_loopback(sample: &Sample) -> bool {
    sample.cell.stack().is_some_and(|cell| cell.layer == Layer::Loopback)
}

fn by_speed<'a>(samples: &'a [Sample], usual: &BTreeMap<&Cell, f64>) -> Vec<Figure<'a>> {
    let mut speeds: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for sample in loopback(samples) {
        if let (Some(round), Some(usual)) = (round(sample), usual.get(&sample.cell)) {
            speeds.entry(round).or_default().push(sample.gbps() / usual);
        }
    }
    let speed = |sample| median(speeds.get(&round(sample)?)?).filter(|speed| *speed > 0.0);
    // A forwarder shares less with loopback: its work is in the devices and between them.
    let figures = samples.iter().filter(|sample| sample.cell.stack().is_some() && !is_loopback(sample));
    figures.filter_map(|sample| Some((sample, sample.gbps() / speed(sample)?))).collect()
}

/// A round of a matrix: that of another environment in the same file is another one.
fn round(sample: &Sample) -> Option<(String, u32)> {
    Some((sample.environment.id(), sample.facts.round?))
}
