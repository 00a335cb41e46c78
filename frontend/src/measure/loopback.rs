//! Divides figures by the speed of the machine in their round.
//!
//! On a shared machine all figures drift together, often by more than the change of interest. A round of
//! `matrix --baseline` has runs over the kernel's loopback, which uses no stack. Their rate, divided by their usual
//! rate, is the speed of the machine in this round. The division assumes that a slow machine slows down every cell
//! alike. It adds the noise of loopback, and it hides changes of everything that loopback shares with the other
//! layers: this program's client and server, and tokio.

use std::collections::{BTreeMap, BTreeSet};

use super::statistics::median;
use crate::sample::Sample;
use crate::scenario::{Cell, Subject};

/// A sample and its figure, if it is known.
pub(super) type Figure<'a> = (&'a Sample, Option<f64>);

/// The samples of stacks in two files, with their figures divided by the machine's speed. Loopback itself and rounds
/// without loopback are left out. A list is empty if the files have no loopback cell in common.
pub(super) fn relative<'a>(old: &'a [Sample], new: &'a [Sample]) -> [Vec<Figure<'a>>; 2] {
    let common: BTreeSet<&Cell> = loopback(old).map(|sample| &sample.cell).collect();
    // Each loopback cell is compared with its own median of both files, so it does not matter which of them a round has.
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

/// Good runs over loopback.
fn loopback(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(|sample| sample.is_ok() && is_loopback(sample))
}

fn is_loopback(sample: &Sample) -> bool {
    sample.cell.subject == Subject::Loopback && sample.cell.workload.is_stream()
}

fn by_speed<'a>(samples: &'a [Sample], usual: &BTreeMap<&Cell, f64>) -> Vec<Figure<'a>> {
    let mut speeds: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for sample in loopback(samples) {
        if let (Some(round), Some(usual)) = (round(sample), usual.get(&sample.cell)) {
            speeds.entry(round).or_default().push(sample.gbps() / usual);
        }
    }
    let speed = |sample| median(speeds.get(&round(sample)?)?).filter(|speed| *speed > 0.0);
    // Loopback says little about forwarders: they work in the devices and between them.
    let is_stream = |sample: &&Sample| sample.cell.forwarder().is_none() && sample.cell.workload.is_stream();
    let figures = samples.iter().filter(is_stream).filter(|sample| !is_loopback(sample));
    figures.filter_map(|sample| Some((sample, Some(sample.gbps() / speed(sample)?)))).collect()
}

/// A round of a matrix. Each environment in a file has rounds of its own.
fn round(sample: &Sample) -> Option<(String, u32)> {
    Some((sample.environment.id(), sample.measured.round?))
}
