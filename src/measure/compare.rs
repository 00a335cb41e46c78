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
    /// All its runs fail, and not all did before; or so many more than before that chance does not explain
    /// it, by Fisher's test.
    Broken,
    /// It is: significantly, and by more than the floor.
    Faster,
    /// [`Broken`](Self::Broken) the other way round.
    Mended,
    /// What there is of a change may be chance, or is below the floor.
    Inconclusive,
    /// The same, and no change, however large, could have come out of so few runs.
    TooFewRuns,
    /// All its runs fail, as before.
    Failing,
    /// One of the systems lacks what its runs need, so there are none to compare.
    NotRun,
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
    /// How the runs that failed ended, and how many did. [`Status::Unavailable`] is not among them.
    pub failures: BTreeMap<Status, usize>,
    /// How many runs could not begin, because the system lacks what they need.
    pub unavailable: usize,
    /// Why the first of those that failed or could not begin did.
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
    /// Whatever had changed, no cell could have been slower or faster.
    #[error(
        "too few runs to find anything: {runs} a side, and to compare so many cells at once ({cells}) takes \
         {needed}; measure both with --runs {needed}"
    )]
    TooFewRuns {
        /// Of the cell that has most of them, the runs on the side that has fewer.
        runs: usize,
        /// How many cells both files have a figure of.
        cells: usize,
        /// How many runs of each cell in each file it takes.
        needed: usize,
    },
    /// There are no runs to compare.
    #[error("no cell was run in both files: a system lacks what they need; see above what")]
    NotRun,
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

    /// Whether it could have found anything: a comparison that could not is no proof that nothing changed.
    ///
    /// # Errors
    ///
    /// [`CompareError::TooFewRuns`] and [`CompareError::NotRun`].
    pub fn answers(&self) -> Result<(), CompareError> {
        let common = || self.cells.iter().filter(|cell| cell.old.is_some() && cell.new.is_some());
        if common().all(|cell| cell.verdict == Verdict::NotRun) {
            return Err(CompareError::NotRun);
        }
        if self.tested() == 0 || self.tested() > self.count(Verdict::TooFewRuns) {
            return Ok(());
        }
        let sides = common().filter_map(|cell| Some(cell.old.as_ref()?.gbps.len().min(cell.new.as_ref()?.gbps.len())));
        let runs = sides.max().unwrap_or_default();
        Err(CompareError::TooFewRuns { runs, cells: self.tested(), needed: self.runs_needed() })
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
    /// How many runs there are, failed or not, without those that could not begin.
    pub fn runs(&self) -> usize {
        self.gbps.len() + self.failed()
    }

    /// How many runs failed.
    pub fn failed(&self) -> usize {
        self.failures.values().sum()
    }

    /// Whether its runs fail more than those of `other`: all of them and not all of the other's, or more
    /// than chance explains.
    fn fails_more_than(&self, other: &Self) -> bool {
        self.gbps.is_empty() && !other.gbps.is_empty()
            || rank::p_value_of_share([self.failed(), self.gbps.len()], [other.failed(), other.gbps.len()])
                <= SIGNIFICANCE
    }
}

impl CellChange {
    fn judge(&self, floor: f64) -> Verdict {
        let (old, new) = match (&self.old, &self.new) {
            (Some(old), Some(new)) => (old, new),
            (_, None) => return Verdict::OnlyOld,
            (None, _) => return Verdict::OnlyNew,
        };
        if old.runs() == 0 || new.runs() == 0 {
            return Verdict::NotRun;
        }
        if new.fails_more_than(old) {
            return Verdict::Broken;
        }
        let speed = self.change.as_ref().map_or(Verdict::Failing, |change| change.judge(floor));
        // A cell that is slower is so for all that fewer of its runs fail.
        if speed != Verdict::Slower && old.fails_more_than(new) { Verdict::Mended } else { speed }
    }
}

impl Change {
    fn judge(&self, floor: f64) -> Verdict {
        match self.ratio.median {
            _ if self.smallest_p_value > SIGNIFICANCE => Verdict::TooFewRuns,
            _ if self.p_value > SIGNIFICANCE => Verdict::Inconclusive,
            ratio if ratio < 1.0 - floor => Verdict::Slower,
            ratio if ratio > 1.0 + floor => Verdict::Faster,
            _ => Verdict::Inconclusive,
        }
    }
}

/// The runs of each cell, with the figure of those that did not fail.
fn sides<'a>(figures: impl IntoIterator<Item = Figure<'a>>) -> BTreeMap<Cell, Side> {
    let mut sides: BTreeMap<Cell, Side> = BTreeMap::new();
    for (sample, gbps) in figures {
        let side = sides.entry(sample.cell.clone()).or_default();
        match sample.facts.status {
            Status::Ok => side.gbps.push(gbps),
            Status::Unavailable => side.unavailable += 1,
            status => *side.failures.entry(status).or_default() += 1,
        }
        if !sample.is_ok() {
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
