//! Compares two sets of samples: which cells got slower, faster or broke.

use std::collections::{BTreeMap, BTreeSet};

use statrs::distribution::{ContinuousCDF, Normal};

use super::metric::{speed, speed_of};
use super::rank::{self, Count, RankTest, SIGNIFICANCE};
use super::{Estimate, conditions, statistics};
use crate::cell::Cell;
use crate::plural;
use crate::sample::{FEWEST_RUNS, Sample, Status};

/// The result for a cell. [`Slower`](Self::Slower) and [`Broken`](Self::Broken) are for the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The whole interval of the change is beyond the floor for the worse, and the change is significant.
    Slower,
    /// Significantly more runs fail than before.
    Broken,
    /// The whole interval of the change is beyond the floor for the better, and the change is significant.
    Faster,
    /// Significantly fewer runs fail than before.
    Recovered,
    /// Chance explains the change, or it is not certain that the change is beyond the floor.
    Inconclusive,
    /// With so few good runs no change could be significant.
    TooFewRuns,
    /// The sides were made one after the other, and no reference in both shows what the machine did meanwhile.
    NoReference,
    /// All runs fail, as before.
    Failing,
    /// One of the systems lacks something that the runs need, or the figure of all runs is unknown.
    NotRun,
    /// There are no new runs.
    OnlyOld,
    /// There are no old runs.
    OnlyNew,
}

/// Which runs of a cell are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every new run with every old one.
    AllRuns,
    /// The two runs of each round.
    WithinRounds,
}

impl Method {
    /// The number of runs on each side with which a change of one of this many cells can be significant.
    pub fn runs_needed(self, cells: usize) -> usize {
        let count = |runs| match self {
            Self::AllRuns => Count::between(runs, runs),
            Self::WithinRounds => Count::within(runs),
        };
        let tests = cells.max(1) as f64;
        (FEWEST_RUNS..rank::MANY)
            .find(|runs| count(*runs).smallest_p_value() * tests <= SIGNIFICANCE)
            .unwrap_or(rank::MANY)
    }
}

/// The runs of a cell on one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The speeds of the good runs (`speed`).
    pub speeds: Vec<f64>,
    /// The median of these; `None` without good runs.
    pub median: Option<f64>,
    /// The number of failed runs, by status, without [`Status::Unavailable`].
    pub failures: BTreeMap<Status, usize>,
    /// The reason why the first bad run failed or could not start.
    pub detail: Option<String>,
}

/// The change of a cell's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// New by old: the median of the ratios of the compared runs (Hodges and Lehmann). The interval is for this cell alone.
    pub ratio: Estimate,
    /// The p-value of any change: two-sided, by a rank test, with Holm's correction for all cells that have a change.
    pub p_value: f64,
    /// The smallest p-value that is possible with this many runs in this many cells.
    pub smallest_p_value: f64,
}

/// A cell of either side.
#[derive(Clone, Debug, PartialEq)]
pub struct CellChange {
    /// The cell.
    pub cell: Cell,
    /// Its old runs; `None` if there are none.
    pub old: Option<Side>,
    /// Its new runs; `None` if there are none.
    pub new: Option<Side>,
    /// `None` without good runs to compare.
    pub change: Option<Change>,
    /// The verdict.
    pub verdict: Verdict,
    /// The p-value behind the verdict: of the failures if the cell is broken or recovered, else of the change.
    pub p_value: Option<f64>,
}

/// The changes of all cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// A change must be larger than this fraction to be slower or faster.
    pub floor: f64,
    /// Which runs are compared.
    pub method: Method,
    /// How much the machine may have changed between the sides: the least and the greatest change of the speed, new by old, at
    /// the ends of the references' intervals. `None` without a reference.
    pub machine: Option<[f64; 2]>,
    /// The cells of both sides, in order.
    pub cells: Vec<CellChange>,
}

/// Why samples cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of each says it")]
pub enum CompareError {
    #[error("the files have no cell in common: {0}; measure both with the same options")]
    NoCommonCell(String),
    #[error(
        "too few runs for a verdict: {runs} a side, but a comparison of {} needs {needed}; measure both with --runs \
         {needed}",
        plural(.cells, "cell")
    )]
    TooFewRuns { runs: usize, cells: usize, needed: usize },
    #[error(
        "the files were made one after the other, and no reference in both (loopback, the kernel) shows whether the machine \
         changed meanwhile; measure both builds at once, with matrix --against, or both files with --layer loopback,path"
    )]
    NoReference,
    #[error("no cell could run in both files; the lines above say what is missing")]
    NotRun,
    #[error("no cell has a good run in both files; the table shows the failures")]
    NoGoodRun,
}

impl Comparison {
    /// Compares every new run of a cell with every old one. `floor` is a fraction from 0 to below 1. A cell is slower or faster
    /// only by more than the machine may have changed.
    pub fn of(old: &[Sample], new: &[Sample], floor: f64) -> Result<Self, CompareError> {
        Self::between([old, new].map(sides), floor, Method::AllRuns, |cell| {
            let [old, new] = cell.sides()?;
            RankTest::between(&old.speeds, &new.speeds)
        })
    }

    /// Compares the two runs of each round: the machine's drift cancels out. Other rounds count only for the failures.
    pub fn within_rounds(old: &[Sample], new: &[Sample], floor: f64) -> Result<Self, CompareError> {
        let [old_rounds, new_rounds] = [old, new].map(rounds);
        Self::between([old, new].map(sides), floor, Method::WithinRounds, |cell| {
            let (old, new) = (old_rounds.get(&cell.cell)?, new_rounds.get(&cell.cell)?);
            let pairs = old.iter().filter_map(|(round, speed)| Some((*speed, *new.get(round)?)));
            RankTest::within(&pairs.collect::<Vec<_>>())
        })
    }

    fn between(
        [old, new]: [BTreeMap<Cell, Side>; 2],
        floor: f64,
        method: Method,
        test: impl Fn(&CellChange) -> Option<RankTest>,
    ) -> Result<Self, CompareError> {
        if !old.keys().any(|cell| new.contains_key(cell)) {
            return Err(CompareError::NoCommonCell(conditions::nearest(old.keys(), new.keys())));
        }
        let all: BTreeSet<_> = old.keys().chain(new.keys()).map(Cell::place).collect();
        let cells = all.into_iter().map(|(_, cell)| CellChange {
            cell: cell.clone(),
            old: old.get(cell).cloned(),
            new: new.get(cell).cloned(),
            change: None,
            verdict: Verdict::Inconclusive,
            p_value: None,
        });
        let mut cells: Vec<_> = cells.collect();
        let tests: Vec<_> = cells.iter().map(test).collect();
        let of_tests =
            |p_value: fn(&RankTest) -> f64| corrected(tests.iter().map(|test| test.as_ref().map(p_value)), rank::holm);
        let p_values = of_tests(RankTest::p_value).into_iter().zip(of_tests(|test| test.count.smallest_p_value()));
        let [broken, recovered] = [true, false]
            .map(|more| corrected(cells.iter().map(|cell| cell.p_value_of_failures(more)), rank::hochberg));
        for ((cell, test), p_values) in cells.iter_mut().zip(&tests).zip(p_values) {
            if let (Some(test), (Some(p_value), Some(smallest_p_value))) = (test, p_values) {
                cell.change = Some(Change { ratio: test.ratio(), p_value, smallest_p_value });
            }
        }
        let machine = match method {
            Method::WithinRounds => Some([1.0, 1.0]),
            Method::AllRuns => machine(&cells),
        };
        for (cell, (broken, recovered)) in cells.iter_mut().zip(broken.into_iter().zip(recovered)) {
            (cell.verdict, cell.p_value) = cell.judge(floor, machine, broken, recovered);
        }
        Ok(Self { floor, method, machine, cells })
    }

    /// How many cells have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cells.iter().filter(|cell| cell.verdict == verdict).count()
    }

    /// How many cells changed for the worse.
    pub fn worse(&self) -> usize {
        self.count(Verdict::Slower) + self.count(Verdict::Broken)
    }

    /// Checks that a verdict was possible for some cell. Otherwise the comparison is no proof that nothing changed.
    pub fn answers(&self) -> Result<(), CompareError> {
        let answers = [Verdict::Slower, Verdict::Broken, Verdict::Faster, Verdict::Recovered, Verdict::Inconclusive];
        if answers.into_iter().any(|verdict| self.count(verdict) > 0) {
            return Ok(());
        }
        if self.count(Verdict::NoReference) > 0 {
            return Err(CompareError::NoReference);
        }
        let common = self.cells.iter().filter_map(CellChange::sides);
        match (self.tested(), self.count(Verdict::NotRun) == common.clone().count()) {
            (0, true) => Err(CompareError::NotRun),
            (0, false) => Err(CompareError::NoGoodRun),
            (cells, _) => {
                let runs = common.map(|[old, new]| old.speeds.len().min(new.speeds.len())).max().unwrap_or_default();
                Err(CompareError::TooFewRuns { runs, cells, needed: self.runs_needed() })
            }
        }
    }

    /// The number of cells for which the p-values are corrected.
    pub fn tested(&self) -> usize {
        self.cells.iter().filter(|cell| cell.change.is_some()).count()
    }

    /// The share of its speed that a cell has to lose so that nine such tables of ten call it slower: the change is
    /// significant after the correction for all cells, and its interval is beyond the floor and the machine. The interval of
    /// what was measured has the noise, which is taken for normal. `None` with too few runs or without a reference.
    pub fn detectable(&self, cell: &CellChange) -> Option<f64> {
        let Change { ratio, smallest_p_value, .. } = cell.change?;
        if smallest_p_value > SIGNIFICANCE || !is_known([ratio.low, ratio.high]) {
            return None;
        }
        let quantile = |share: f64| Normal::standard().inverse_cdf(share);
        let of_interval = quantile(0.975);
        let error = (ratio.high / ratio.low).ln() / (2.0 * of_interval);
        let significant = quantile(1.0 - SIGNIFICANCE / (2.0 * self.tested() as f64)) * error;
        let beyond = of_interval * error - ((1.0 - self.floor) * self.machine?[0].min(1.0)).ln();
        Some(1.0 - (-(significant.max(beyond) + quantile(0.9) * error)).exp())
    }

    /// See [`Method::runs_needed`].
    pub fn runs_needed(&self) -> usize {
        self.method.runs_needed(self.tested())
    }
}

impl Side {
    /// How many runs there are, good or failed.
    pub fn runs(&self) -> usize {
        self.speeds.len() + self.failed()
    }

    /// How many runs failed.
    pub fn failed(&self) -> usize {
        self.failures.values().sum()
    }
}

impl CellChange {
    /// The ends of the interval of its speed, new by old.
    fn speeds(&self) -> Option<[f64; 2]> {
        let Estimate { low, high, .. } = self.change?.ratio;
        Some(if speed_of(&self.cell).less_is_better() { [high.recip(), low.recip()] } else { [low, high] })
    }

    fn sides(&self) -> Option<[&Side; 2]> {
        Some([self.old.as_ref()?, self.new.as_ref()?])
    }

    /// Tests whether its runs fail more often than before, or else less often. `None` if so few failures could never be
    /// significant (Tarone, Biometrics 46, 1990), so a flaky cell does not hide behind 23 without failures.
    fn p_value_of_failures(&self, more: bool) -> Option<f64> {
        let [old, new] = self.sides()?.map(|side| [side.failed(), side.speeds.len()]);
        let (group, other) = if more { (new, old) } else { (old, new) };
        let can_be_significant = rank::smallest_p_value_of_failures(group, other) <= SIGNIFICANCE;
        can_be_significant.then(|| rank::p_value_of_failures(group, other))
    }

    fn judge(
        &self,
        floor: f64,
        machine: Option<[f64; 2]>,
        broken: Option<f64>,
        recovered: Option<f64>,
    ) -> (Verdict, Option<f64>) {
        let is_significant = |p_value: Option<f64>| p_value.is_some_and(|p_value| p_value <= SIGNIFICANCE);
        let [old, new] = match (&self.old, &self.new) {
            (Some(old), Some(new)) => [old, new],
            (_, None) => return (Verdict::OnlyOld, None),
            (None, _) => return (Verdict::OnlyNew, None),
        };
        if old.runs() == 0 || new.runs() == 0 {
            return (Verdict::NotRun, None);
        }
        if is_significant(broken) {
            return (Verdict::Broken, broken);
        }
        let speed = match (&self.change, self.speeds()) {
            (Some(change), Some(speeds)) => change.judge(floor, machine, speeds),
            _ if old.speeds.is_empty() && new.speeds.is_empty() => Verdict::Failing,
            _ => Verdict::TooFewRuns,
        };
        // Fewer failures do not excuse a slower cell.
        if speed != Verdict::Slower && is_significant(recovered) {
            return (Verdict::Recovered, recovered);
        }
        (speed, self.change.map(|change| change.p_value))
    }
}

impl Change {
    /// A verdict needs both: a significant test, and an interval that is beyond the floor.
    fn judge(&self, floor: f64, machine: Option<[f64; 2]>, [low, high]: [f64; 2]) -> Verdict {
        if self.smallest_p_value > SIGNIFICANCE {
            return Verdict::TooFewRuns;
        }
        match machine {
            None => Verdict::NoReference,
            Some(_) if self.p_value > SIGNIFICANCE => Verdict::Inconclusive,
            Some([least, _]) if high < (1.0 - floor) * least.min(1.0) => Verdict::Slower,
            Some([_, most]) if low > (1.0 + floor) * most.max(1.0) => Verdict::Faster,
            Some(_) => Verdict::Inconclusive,
        }
    }
}

/// Whether a change is of two rates that are not 0.
fn is_known(ends: [f64; 2]) -> bool {
    ends.iter().all(|end| end.is_normal())
}

/// The ends of the references' intervals that are furthest apart.
fn machine(cells: &[CellChange]) -> Option<[f64; 2]> {
    let references = cells.iter().filter(|cell| cell.cell.subject().is_reference());
    let speeds = references.filter_map(CellChange::speeds).filter(|ends| is_known(*ends));
    speeds.reduce(|one, other| [one[0].min(other[0]), one[1].max(other[1])])
}

fn sides(samples: &[Sample]) -> BTreeMap<Cell, Side> {
    let mut sides: BTreeMap<Cell, Side> = BTreeMap::new();
    for sample in samples {
        let side = sides.entry(sample.cell.clone()).or_default();
        match sample.measured.status {
            Status::Ok => side.speeds.extend(speed(sample)),
            Status::Unavailable => (),
            status => *side.failures.entry(status).or_default() += 1,
        }
        if !sample.is_ok() {
            side.detail = side.detail.take().or_else(|| sample.measured.detail.clone());
        }
    }
    for side in sides.values_mut() {
        side.median = statistics::median(&side.speeds);
    }
    sides
}

fn rounds(samples: &[Sample]) -> BTreeMap<&Cell, BTreeMap<(String, u32), f64>> {
    let mut rounds: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.is_ok()) {
        if let (Some(round), Some(speed)) = (sample.measured.round, speed(sample)) {
            // The other build may be older, and know no hash of the machine.
            let machine = platform::Environment { machine: None, ..sample.environment.machine.clone() };
            rounds.entry(&sample.cell).or_default().insert((format!("{machine:?}"), round), speed);
        }
    }
    rounds
}

fn corrected(p_values: impl Iterator<Item = Option<f64>>, by: fn(&[f64]) -> Vec<f64>) -> Vec<Option<f64>> {
    let p_values: Vec<_> = p_values.collect();
    let mut corrected = by(&p_values.iter().copied().flatten().collect::<Vec<_>>()).into_iter();
    p_values.into_iter().map(|p_value| p_value.and_then(|_| corrected.next())).collect()
}

#[cfg(test)]
mod tests;
