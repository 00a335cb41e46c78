//! Two files of samples: which cells got faster, and which slower.

use std::collections::{BTreeMap, BTreeSet};

use super::loopback::{self, Figure};
use super::rank::{self, SIGNIFICANCE};
use super::{Estimate, conditions, statistics};
use crate::sample::{Cell, Sample, Status};

/// More runs than any number of cells can need: each more halves the smallest p-value, at least.
const MOST_RUNS: usize = 64;

/// What became of a cell. [`Slower`](Self::Slower) and [`Broken`](Self::Broken) are for the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It is: significantly, and by more than the floor.
    Slower,
    /// A larger share of its runs fails than before. Unlike a figure, a run that fails has something
    /// wrong with it, so there is no test.
    Broken,
    /// It is: significantly, and by more than the floor.
    Faster,
    /// All its runs failed before, and not now.
    Mended,
    /// What there is of a change may be chance, or is below the floor.
    Inconclusive,
    /// The same, and no change, however large, could have come out of so few runs.
    TooFewRuns,
    /// All its runs fail, as before.
    Failing,
    /// There are no new runs.
    OnlyOld,
    /// There are no old runs.
    OnlyNew,
}

/// The runs of a cell in one of the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Throughput of the runs that did not fail, in 10⁹ bits a second.
    pub gbps: Vec<f64>,
    /// Its median; `None` where there are none.
    pub median: Option<f64>,
    /// How the runs that failed ended, and how many did.
    pub failures: BTreeMap<Status, usize>,
    /// Why the first of them failed.
    pub detail: Option<String>,
}

/// By how much a cell changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// New by old: 0.95 is 5 % slower. It is the median of the ratios of every new run to every old one
    /// (the estimate of Hodges and Lehmann), and so not always that of the medians; its interval, at 95 %
    /// for this cell alone, belongs to the rank test.
    pub ratio: Estimate,
    /// The p-value of the two-sided rank test of Mann and Whitney, by Holm's correction for all cells that
    /// have a change.
    pub p_value: f64,
    /// The smallest p-value that this could be with so many runs in so many cells, each of them entirely
    /// faster or slower.
    pub smallest_p_value: f64,
}

/// A cell of either file.
#[derive(Clone, Debug, PartialEq)]
pub struct CellChange {
    /// What was run.
    pub cell: Cell,
    /// Its runs in the old file, where it is there.
    pub old: Option<Side>,
    /// Its runs in the new file, where it is there.
    pub new: Option<Side>,
    /// Where both have runs that did not fail.
    pub change: Option<Change>,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of the cells of two files.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Changes up to this fraction are neither faster nor slower.
    pub floor: f64,
    /// Whether the figures are by the speed of loopback.
    pub relative: bool,
    /// The cells of both files, in their order.
    pub cells: Vec<CellChange>,
}

/// Why two files cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// They are of different things.
    #[error("the files have no cell in common: {0}; measure both with the same options")]
    NoCommonCell(String),
    /// There is nothing to relate the figures to.
    #[error(
        "--relative: the files have no runs over loopback in common, or none in rounds; measure both with matrix --baseline"
    )]
    NoLoopback,
}

impl Comparison {
    /// Compares the samples of two files. A change up to the fraction `floor` is none.
    ///
    /// # Errors
    ///
    /// [`CompareError::NoCommonCell`].
    pub fn of(old: &[Sample], new: &[Sample], floor: f64) -> Result<Self, CompareError> {
        let [old, new] = [old, new].map(|samples| sides(samples.iter().map(|sample| (sample, sample.gbps()))));
        Self::between(&old, &new, floor)
    }

    /// Compares figures by how fast loopback was in their rounds, so that a machine that was slower as a
    /// whole makes no cell slower. Cells of loopback, and runs of rounds without any, are left out.
    ///
    /// # Errors
    ///
    /// See [`CompareError`].
    pub fn relative(old: &[Sample], new: &[Sample], floor: f64) -> Result<Self, CompareError> {
        let [old, new] = loopback::relative(old, new);
        if old.is_empty() || new.is_empty() {
            return Err(CompareError::NoLoopback);
        }
        let [old, new] = [old, new].map(sides);
        Ok(Self { relative: true, ..Self::between(&old, &new, floor)? })
    }

    fn between(old: &BTreeMap<Cell, Side>, new: &BTreeMap<Cell, Side>, floor: f64) -> Result<Self, CompareError> {
        let all: BTreeSet<&Cell> = old.keys().chain(new.keys()).collect();
        if !old.keys().any(|cell| new.contains_key(cell)) {
            return Err(CompareError::NoCommonCell(conditions::nearest(old.keys(), new.keys())));
        }
        let mut cells: Vec<_> = all
            .into_iter()
            .map(|cell| CellChange {
                cell: cell.clone(),
                old: old.get(cell).cloned(),
                new: new.get(cell).cloned(),
                change: None,
                verdict: Verdict::Inconclusive,
            })
            .collect();
        change(&mut cells);
        for cell in &mut cells {
            cell.verdict = cell.judge(floor);
        }
        Ok(Self { floor, relative: false, cells })
    }

    /// How many cells became that.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cells.iter().filter(|cell| cell.verdict == verdict).count()
    }

    /// How many cells changed for the worse.
    pub fn worse(&self) -> usize {
        self.count(Verdict::Slower) + self.count(Verdict::Broken)
    }

    /// For how many cells the p-values are corrected.
    pub fn tested(&self) -> usize {
        self.cells.iter().filter(|cell| cell.change.is_some()).count()
    }

    /// How many runs of each cell in each file let the test of a cell be significant whatever the others
    /// are.
    pub fn runs_needed(&self) -> usize {
        let tests = self.tested().max(1) as f64;
        (1..MOST_RUNS).find(|runs| rank::smallest_p_value(*runs, *runs) * tests <= SIGNIFICANCE).unwrap_or(MOST_RUNS)
    }
}

impl Side {
    /// How many runs there are, failed or not.
    pub fn runs(&self) -> usize {
        self.gbps.len() + self.failed()
    }

    fn failed(&self) -> usize {
        self.failures.values().sum()
    }
}

impl CellChange {
    fn judge(&self, floor: f64) -> Verdict {
        let (old, new) = match (&self.old, &self.new) {
            (Some(old), Some(new)) => (old, new),
            (_, None) => return Verdict::OnlyOld,
            (None, _) => return Verdict::OnlyNew,
        };
        // The shares as fractions with the same denominator.
        if new.failed() * old.runs() > old.failed() * new.runs() {
            return Verdict::Broken;
        }
        match &self.change {
            None if new.gbps.is_empty() => Verdict::Failing,
            None => Verdict::Mended,
            Some(change) if change.smallest_p_value > SIGNIFICANCE => Verdict::TooFewRuns,
            Some(change) if change.p_value > SIGNIFICANCE => Verdict::Inconclusive,
            Some(change) if change.ratio.median < 1.0 - floor => Verdict::Slower,
            Some(change) if change.ratio.median > 1.0 + floor => Verdict::Faster,
            Some(_) => Verdict::Inconclusive,
        }
    }
}

/// The runs of each cell, with the figure of those that did not fail.
fn sides<'a>(figures: impl IntoIterator<Item = Figure<'a>>) -> BTreeMap<Cell, Side> {
    let mut sides: BTreeMap<Cell, Side> = BTreeMap::new();
    for (sample, gbps) in figures {
        let side = sides.entry(sample.cell.clone()).or_default();
        if sample.is_ok() {
            side.gbps.push(gbps);
        } else {
            *side.failures.entry(sample.facts.status).or_default() += 1;
            side.detail = side.detail.take().or_else(|| sample.facts.detail.clone());
        }
    }
    for side in sides.values_mut() {
        side.median = statistics::median(&side.gbps);
    }
    sides
}

/// Fills in the changes of the cells that have figures on both sides.
fn change(cells: &mut [CellChange]) {
    let mut tested = Vec::new();
    let (mut p_values, mut smallest) = (Vec::new(), Vec::new());
    for cell in cells {
        let (Some(old), Some(new)) = (&cell.old, &cell.new) else { continue };
        let Some(ratio) = rank::ratio(&old.gbps, &new.gbps) else { continue };
        p_values.push(rank::p_value(&old.gbps, &new.gbps));
        smallest.push(rank::smallest_p_value(old.gbps.len(), new.gbps.len()));
        tested.push((cell, ratio));
    }
    let adjusted = rank::holm(&p_values).into_iter().zip(rank::holm(&smallest));
    for ((cell, ratio), (p_value, smallest_p_value)) in tested.into_iter().zip(adjusted) {
        cell.change = Some(Change { ratio, p_value, smallest_p_value });
    }
}

#[cfg(test)]
mod tests;
