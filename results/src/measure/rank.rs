//! Two groups of runs: how much they differ, and whether that is more than chance.

use statrs::distribution::{ContinuousCDF, Normal};
use statrs::stats_tests::{Alternative, fishers_exact};

use super::{Estimate, statistics};

/// The probability of a false verdict anywhere in a table in which nothing changed.
pub const SIGNIFICANCE: f64 = 0.05;

/// From this many runs on a side, the normal distribution replaces the exact one, as in R.
pub(super) const MANY: usize = 50;

/// Of more runs on a side an even selection is tested, because the test looks at every pair.
const MOST_RUNS: usize = 1000;

/// A change above this, as a logarithm, is one from 0.
const LARGEST_CHANGE: f64 = 350.0;

/// A rank test of the change from the old runs to the new ones, and the interval that belongs to it. The test counts how
/// many changes are above "no change", and the interval holds what is not excluded at 95 %, so they agree before the
/// p-value is corrected. Equal values count against a verdict.
pub(super) struct RankTest {
    /// Logarithms of new/old, in ascending order.
    changes: Vec<f64>,
    pub(super) count: Count,
}

pub(super) enum Count {
    /// The probability of at most this many, by index.
    Exact(Vec<f64>),
    Normal {
        mean: f64,
        deviation: f64,
    },
}

impl RankTest {
    /// Compares every new run with every old one: the test of Mann and Whitney (Annals of Mathematical Statistics
    /// 18, 1947), on logarithms. `None` without runs on both sides.
    pub(super) fn between(old: &[f64], new: &[f64]) -> Option<Self> {
        let [old, new] = [old, new].map(|runs| selection(runs).map(|run| logarithm(*run)).collect::<Vec<_>>());
        let changes = new.iter().flat_map(|new| old.iter().map(move |old| new - old)).collect();
        Self::of(changes, Count::between(old.len(), new.len()))
    }

    /// Wilcoxon's signed-rank test (Biometrics Bulletin 1, 1945) of the runs of each round, on logarithms: its changes are the
    /// means of all pairs of rounds (Walsh averages). `None` without rounds.
    pub(super) fn within(rounds: &[(f64, f64)]) -> Option<Self> {
        let rounds: Vec<_> = selection(rounds).map(|(old, new)| logarithm(*new) - logarithm(*old)).collect();
        let pairs = rounds.iter().enumerate().flat_map(|(index, one)| rounds[index..].iter().map(move |two| one + two));
        Self::of(pairs.map(|sum| sum / 2.0).collect(), Count::within(rounds.len()))
    }

    fn of(mut changes: Vec<f64>, count: Count) -> Option<Self> {
        changes.sort_by(f64::total_cmp);
        (!changes.is_empty()).then_some(Self { changes, count })
    }

    /// New by old: the median of the changes, with its 95 % interval (Hodges and Lehmann, Annals of Mathematical Statistics
    /// 34, 1963); with too few runs for any significance, their range.
    pub(super) fn ratio(&self) -> Estimate {
        let significant = |count: &usize| self.count.at_most(*count) <= SIGNIFICANCE / 2.0;
        let outside = (0..self.changes.len()).take_while(significant).count().saturating_sub(1);
        let median = statistics::median(&self.changes).unwrap_or_default();
        let ratio = |change: f64| if change < LARGEST_CHANGE { change.exp() } else { f64::INFINITY };
        let [low, high] = [outside, self.changes.len() - 1 - outside].map(|index| ratio(self.changes[index]));
        Estimate { median: ratio(median), low, high, is_range: !significant(&0) }
    }

    pub(super) fn p_value(&self) -> f64 {
        let not_slower = self.changes.iter().filter(|change| **change >= 0.0).count();
        let not_faster = self.changes.iter().filter(|change| **change <= 0.0).count();
        (2.0 * self.count.at_most(not_slower.min(not_faster))).min(1.0)
    }

    /// The same of a change to less alone.
    pub(super) fn p_value_of_decrease(&self) -> f64 {
        self.count.at_most(self.changes.iter().filter(|change| **change >= 0.0).count())
    }
}

impl Count {
    /// Of Mann and Whitney's U. The exact method of statrs (0.19.1) returns the wrong tail if the first group is not the longer.
    pub(super) fn between(left: usize, right: usize) -> Self {
        if left.max(right) >= MANY {
            let pairs = (left * right) as f64;
            let deviation = (pairs * (left + right + 1) as f64 / 12.0).sqrt();
            return Self::Normal { mean: pairs / 2.0, deviation };
        }
        // `orders[n][u]`: the number of orders of the left values so far and n right ones in which a left value is
        // above a right one u times. The largest value is a left one, above all n, or a right one, above none.
        let mut orders = vec![vec![1.0]; right + 1];
        for taken in 1..=left {
            for others in 1..=right {
                let mut sum = vec![0.0; taken * others + 1];
                for (u, count) in orders[others].iter().enumerate() {
                    sum[u + others] += count;
                }
                for (u, count) in orders[others - 1].iter().enumerate() {
                    sum[u] += count;
                }
                orders[others] = sum;
            }
        }
        Self::exact(&orders.pop().unwrap_or_default())
    }

    /// Of Wilcoxon's sum of positive ranks, for this many rounds. Each rank is positive in half of the cases.
    pub(super) fn within(rounds: usize) -> Self {
        if rounds >= MANY {
            let n = rounds as f64;
            let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
            return Self::Normal { mean: n * (n + 1.0) / 4.0, deviation };
        }
        let mut signs = vec![1.0];
        for rank in 1..=rounds {
            let mut sum = vec![0.0; signs.len() + rank];
            for (ranks, count) in signs.iter().enumerate() {
                sum[ranks] += count;
                sum[ranks + rank] += count;
            }
            signs = sum;
        }
        Self::exact(&signs)
    }

    fn exact(cases: &[f64]) -> Self {
        let all: f64 = cases.iter().sum();
        let mut so_far = 0.0;
        let at_most = cases.iter().map(|count| {
            so_far += count;
            so_far / all
        });
        Self::Exact(at_most.collect())
    }

    fn at_most(&self, count: usize) -> f64 {
        match self {
            Self::Exact(at_most) => at_most.get(count).copied().unwrap_or(1.0),
            Self::Normal { mean, deviation } => Normal::standard().cdf((count as f64 + 0.5 - mean) / deviation),
        }
    }

    pub(super) fn smallest_p_value(&self) -> f64 {
        (2.0 * self.at_most(0)).min(1.0)
    }
}

fn selection<T>(values: &[T]) -> impl Iterator<Item = &T> {
    values.iter().step_by(values.len().div_ceil(MOST_RUNS).max(1))
}

fn logarithm(value: f64) -> f64 {
    value.max(f64::MIN_POSITIVE).ln()
}

/// How many runs of a cell failed, and how many did not.
pub(super) type Outcomes = [usize; 2];

/// Fisher's exact test (The Design of Experiments, 1935, 2), one-sided: at least this many failures in the first group.
pub(super) fn p_value_of_failures(group: Outcomes, other: Outcomes) -> f64 {
    let table = [group[0], group[1], other[0], other[1]].map(|count| count as u64);
    // statrs returns an error only for counts that no table can have.
    fishers_exact(&table, Alternative::Greater).unwrap_or(1.0)
}

/// The smallest [`p_value_of_failures`] with the same number of failures in all.
pub(super) fn smallest_p_value_of_failures(group: Outcomes, other: Outcomes) -> f64 {
    let moved = other[0].min(group[1]);
    p_value_of_failures([group[0] + moved, group[1] - moved], [other[0] - moved, other[1] + moved])
}

/// Corrects by Holm's method (Scandinavian Journal of Statistics 6, 1979): if nothing changed, no p-value is below 5 % in
/// 95 % of all cases. The gate must bound the number of false "slower", and not their share (Benjamini and Hochberg).
pub(super) fn holm(p_values: &[f64]) -> Vec<f64> {
    accumulated(multiplied(p_values).into_iter(), 0.0, f64::max)
}

/// Corrects by Hochberg's method (Biometrika 75, 1988), for failures: with five runs a side no p-value is below 1/252, so
/// Holm's method could not find that all of 24 cells broke.
pub(super) fn hochberg(p_values: &[f64]) -> Vec<f64> {
    accumulated(multiplied(p_values).into_iter().rev(), 1.0, f64::min)
}

/// The largest or the smallest value so far, for each value in this order, at its index.
fn accumulated(
    values: impl ExactSizeIterator<Item = (usize, f64)>,
    start: f64,
    of_two: fn(f64, f64) -> f64,
) -> Vec<f64> {
    let mut so_far = start;
    let mut accumulated = vec![start; values.len()];
    for (index, value) in values {
        so_far = of_two(so_far, value);
        accumulated[index] = so_far;
    }
    accumulated
}

/// Each p-value, in ascending order, times the number of those that are not before it; with its index.
fn multiplied(p_values: &[f64]) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|left, right| p_values[*left].total_cmp(&p_values[*right]));
    let tests = order.len();
    let multiplied = order.into_iter().enumerate();
    multiplied.map(|(rank, index)| (index, (p_values[index] * (tests - rank) as f64).min(1.0))).collect()
}

#[cfg(test)]
mod tests;
