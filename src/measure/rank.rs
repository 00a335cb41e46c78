//! Two rows of numbers: whether one is really above the other, and by how much.

use statrs::distribution::{ContinuousCDF, Normal};
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};
use statrs::stats_tests::{Alternative, fishers_exact};

use super::Estimate;

/// With what probability a table in which nothing changed may say of any cell that it did.
pub const SIGNIFICANCE: f64 = 0.05;

/// From so many values on one side the normal distribution stands for the exact one, as in R. They differ
/// by less than 0.001.
const MANY: usize = 50;

/// More values than this on one side are thinned before all their pairs are made.
const MOST_FOR_PAIRS: usize = 1000;

/// In how many of the orders of two rows of values U is at most so and so much: U is how often a value of
/// the one is above one of the other (Mann and Whitney, Annals of Mathematical Statistics 18, 1947).
///
/// From statrs comes the normal approximation alone: its exact method (0.19.1) answers the wrong tail where
/// the first row is not the longer, and goes through all the orders one by one.
struct ExactU {
    /// The share of all orders for each U.
    share: Vec<f64>,
}

impl ExactU {
    fn new(left: usize, right: usize) -> Self {
        // By the number of values on the right: in how many orders of them and those of the left so far U
        // is what the index says. The largest value of all is of the left, and above all of the right, or
        // of the right, and above none.
        let mut ways = vec![vec![1.0]; right + 1];
        for taken in 1..=left {
            for others in 1..=right {
                let mut sum = vec![0.0; taken * others + 1];
                for (u, count) in ways[others].iter().enumerate() {
                    sum[u + others] += count;
                }
                for (u, count) in ways[others - 1].iter().enumerate() {
                    sum[u] += count;
                }
                ways[others] = sum;
            }
        }
        let mut share = ways.pop().unwrap_or_default();
        let all: f64 = share.iter().sum();
        for count in &mut share {
            *count /= all;
        }
        Self { share }
    }

    /// The probability of at most so much, where both rows are of the same.
    fn at_most(&self, u: usize) -> f64 {
        self.share.iter().take(u + 1).sum()
    }
}

/// The two-sided p-value of Mann and Whitney's test: how often two rows of the same would differ in their
/// ranks as much as these. Exact, but for equal values or for 50 values and more on a side; then it is
/// that of the normal approximation with its corrections for equal values and for continuity. Without
/// values it is 1.
pub(super) fn p_value(left: &[f64], right: &[f64]) -> f64 {
    let mut all = [left, right].concat();
    all.sort_by(f64::total_cmp);
    let tied = all.windows(2).any(|pair| pair[0] >= pair[1]);
    if tied || left.len().max(right.len()) >= MANY {
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        // An error is that one of them is empty.
        return mannwhitneyu(left, right, method, Alternative::TwoSided).map_or(1.0, |(_, p)| p);
    }
    let above: usize = left.iter().map(|one| right.iter().filter(|other| one > *other).count()).sum();
    let smaller = above.min(left.len() * right.len() - above);
    (2.0 * ExactU::new(left.len(), right.len()).at_most(smaller)).min(1.0)
}

/// The smallest p-value that so many and so many values can have, where all of the one are above all of
/// the other.
pub(super) fn smallest_p_value(left: usize, right: usize) -> f64 {
    // Two of the orders of all, which are left + right over right in number.
    let orders: f64 = (1..=right).map(|taken| (left + taken) as f64 / taken as f64).product();
    (2.0 / orders).min(1.0)
}

/// The one-sided p-value of Fisher's exact test (The Design of Experiments, 1935, 2): how often so many of the
/// first group or more would be those with a property, where both groups are as likely to have it. A group
/// is how many have it and how many have not.
pub(super) fn p_value_of_share(group: [usize; 2], other: [usize; 2]) -> f64 {
    let table = [group[0], group[1], other[0], other[1]].map(|count| count as u64);
    // An error is a table that no counts make.
    fishers_exact(&table, Alternative::Greater).unwrap_or(1.0)
}

/// By what the values of `new` are to be divided to be like those of `old`: the median of the ratios of
/// every new to every old value, with the 95 % interval that belongs to the rank test (Hodges and Lehmann,
/// Annals of Mathematical Statistics 34, 1963, on the logarithms). `None` where one of them is empty.
///
/// It is surer than the ratio of the medians. Where it excludes 1 the test by itself, uncorrected, is
/// significant, as long as no values are equal and there are less than 50 of them: else the interval and
/// the p-value are two approximations, and may disagree near 5 %.
pub(super) fn ratio(old: &[f64], new: &[f64]) -> Option<Estimate> {
    let all = old.len() * new.len();
    let cut = pairs_outside(old.len(), new.len());
    let (old, new) = (logarithms(old), logarithms(new));
    let mut shifts: Vec<f64> = new.iter().flat_map(|new| old.iter().map(move |old| new - old)).collect();
    shifts.sort_by(f64::total_cmp);
    let median = super::statistics::median(&shifts)?.exp();
    let cut = cut * shifts.len() / all;
    Some(Estimate { median, low: shifts[cut].exp(), high: shifts[shifts.len() - 1 - cut].exp() })
}

/// How many of the sorted pairs lie outside a 95 % interval at each end: as many as U can be and still be
/// significant, so that the interval excludes just what the test does. Of very few values it is none, and
/// the interval less than one of 95 %.
fn pairs_outside(left: usize, right: usize) -> usize {
    let tail = SIGNIFICANCE / 2.0;
    if left.max(right) < MANY {
        let exact = ExactU::new(left, right);
        return (0..left * right).take_while(|u| exact.at_most(*u) <= tail).count().saturating_sub(1);
    }
    let (left, right) = (left as f64, right as f64);
    let deviation = (left * right * (left + right + 1.0) / 12.0).sqrt();
    (left * right / 2.0 + Normal::standard().inverse_cdf(tail) * deviation).max(0.0) as usize
}

/// The logarithms of positive values; of very many only some, evenly over their order.
fn logarithms(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let step = sorted.len().div_ceil(MOST_FOR_PAIRS).max(1);
    sorted.into_iter().skip(step / 2).step_by(step).map(|value| value.max(f64::MIN_POSITIVE).ln()).collect()
}

/// The p-values of several tests, adjusted so that with a probability of 95 % none of them is below 5 %
/// by chance, whatever the tests have to do with each other (Holm, Scandinavian Journal of Statistics 6,
/// 1979).
///
/// Of the usual corrections it is the one for a gate. A single false "slower" stops a change, so their
/// number has to be held, and not their share, as Benjamini and Hochberg do: there every cell that is
/// really faster makes it easier for another to be slower by chance. Bonferroni holds it too, and finds less.
pub(super) fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|left, right| p_values[*left].total_cmp(&p_values[*right]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        largest = largest.max(p_values[index] * left).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests;
