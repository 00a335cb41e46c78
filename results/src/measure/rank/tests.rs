use super::*;

/// Hollander and Wolfe, Nonparametric Statistical Methods, 1973, table 4.1, and R's documentation of
/// `wilcox.test`: permeability of the human chorioamnion at term, and between 12 and 26 weeks.
const AT_TERM: [f64; 10] = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
const EARLIER: [f64; 5] = [1.15, 0.88, 0.90, 0.74, 1.21];

/// R's data set `airquality`: ozone in May and in August, with equal values.
const MAY: [f64; 26] = [
    41.0, 36.0, 12.0, 18.0, 28.0, 23.0, 19.0, 8.0, 7.0, 16.0, 11.0, 14.0, 18.0, 14.0, 34.0, 6.0, 30.0, 11.0, 1.0, 11.0,
    4.0, 32.0, 23.0, 45.0, 115.0, 37.0,
];
const AUGUST: [f64; 26] = [
    39.0, 9.0, 16.0, 78.0, 35.0, 66.0, 122.0, 89.0, 110.0, 44.0, 28.0, 65.0, 22.0, 59.0, 23.0, 31.0, 44.0, 21.0, 9.0,
    45.0, 168.0, 73.0, 76.0, 118.0, 84.0, 85.0,
];

fn close(left: f64, right: f64, error: f64) {
    assert!((left - right).abs() <= error, "{left} is not {right}");
}

fn p_value(old: &[f64], new: &[f64]) -> f64 {
    RankTest::between(old, new).unwrap().p_value()
}

fn ratio(old: &[f64], new: &[f64]) -> Estimate {
    RankTest::between(old, new).unwrap().ratio()
}

/// R returns W = 35 and 0.1272 for one side, SAS 0.2544 for both.
#[test]
fn exact_test_of_the_textbook() {
    close(p_value(&AT_TERM, &EARLIER), 0.2544, 5e-5);
    close(p_value(&EARLIER, &AT_TERM), 0.2544, 5e-5);
}

#[test]
fn equal_values_count_against_a_change() {
    // Whole numbers, so half a unit more decides all equal ones for May.
    let p = p_value(&MAY.map(|ozone| ozone + 0.5), &AUGUST);
    close(p_value(&MAY, &AUGUST), p, 1e-12);
    close(p_value(&AUGUST, &MAY), p, 1e-12);
    close(p_value(&[2.0; 10], &[2.0; 10]), 1.0, 0.0);
}

/// Mann and Whitney's table of 1947 has 0.014 for U = 0 and 0.100 for U = 3 of four and four, and 0.004 for U = 0 of
/// five and five.
#[test]
fn distribution_of_u_matches_the_table() {
    let four = Count::between(4, 4);
    close(four.at_most(0), 0.014, 5e-4);
    close(four.at_most(3), 0.100, 5e-4);
    close(four.at_most(16), 1.0, 1e-12);
    close(Count::between(5, 5).at_most(0), 0.004, 5e-4);
    close(Count::between(3, 5).at_most(14), 55.0 / 56.0, 1e-12);
}

#[test]
fn exact_and_approximate_distributions_meet() {
    for many in [920, 1100] {
        let n = (MANY - 1) as f64;
        let normal = Count::Normal { mean: n * n / 2.0, deviation: (n * n * (2.0 * n + 1.0) / 12.0).sqrt() };
        close(Count::between(MANY - 1, MANY - 1).at_most(many), normal.at_most(many), 2e-3);
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        let normal = Count::Normal { mean: n * (n + 1.0) / 4.0, deviation };
        close(Count::within(MANY - 1).at_most(many / 2), normal.at_most(many / 2), 2e-3);
    }
    let many: Vec<f64> = (0..60).map(f64::from).collect();
    close(p_value(&many, &many), 1.0, 0.02);
}

#[test]
fn smallest_p_value_is_that_of_groups_that_do_not_overlap() {
    for (left, right) in [(1, 1), (3, 3), (5, 5), (4, 9), (10, 10)] {
        let low: Vec<f64> = (0..left).map(|value| f64::from(value) + 1.0).collect();
        let high: Vec<f64> = (0..right).map(|value| f64::from(value) + 100.0).collect();
        let test = RankTest::between(&low, &high).unwrap();
        close(test.count.smallest_p_value(), test.p_value(), 1e-12);
    }
    close(Count::between(10, 10).smallest_p_value(), 2.0 / 184_756.0, 1e-12);
    close(Count::within(10).smallest_p_value(), 2.0 / 1024.0, 1e-12);
}

/// Hollander and Wolfe, 1973, table 3.1, and R's documentation of `wilcox.test`: depression of nine patients before
/// and after the first therapy. R returns V = 40 and 0.01953 for one side; the book estimates the shift as −0.46,
/// between −0.786 and −0.010.
#[test]
#[allow(clippy::approx_constant, reason = "3.14 is a measured value")]
fn signed_rank_test_of_the_textbook() {
    let before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30];
    let after = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29];
    let rounds: Vec<_> = before.into_iter().map(f64::exp).zip(after.into_iter().map(f64::exp)).collect();
    let test = RankTest::within(&rounds).unwrap();
    close(test.p_value(), 2.0 * 0.01953, 1e-5);
    let ratio = test.ratio();
    close(ratio.median.ln(), -0.46, 1e-9);
    close(ratio.low.ln(), -0.786, 1e-9);
    close(ratio.high.ln(), -0.010, 1e-9);
    assert!(RankTest::within(&[]).is_none());
}

/// Fisher's lady who tastes tea (1935), with 17 of 70 for three right cups of four; and his twins of
/// convicts, R's first example of `fisher.test`, with 0.0004652.
#[test]
fn exact_test_of_shares_is_that_of_the_textbook() {
    close(p_value_of_failures([3, 1], [1, 3]), 17.0 / 70.0, 1e-12);
    close(p_value_of_failures([4, 0], [0, 4]), 1.0 / 70.0, 1e-12);
    close(p_value_of_failures([10, 3], [2, 15]), 0.000_465_2, 5e-8);
    close(p_value_of_failures([15, 2], [3, 10]), 0.000_465_2, 5e-8);
    // One more failure of ten, four more, and none on either side.
    close(p_value_of_failures([1, 9], [0, 10]), 0.5, 1e-12);
    close(p_value_of_failures([4, 6], [0, 10]), 210.0 / 4845.0, 1e-12);
    close(p_value_of_failures([0, 10], [1, 9]), 1.0, 1e-12);
    close(p_value_of_failures([0, 10], [0, 10]), 1.0, 0.0);
    close(p_value_of_failures([0, 0], [3, 4]), 1.0, 0.0);
}

#[test]
fn smallest_p_value_of_failures_has_them_all_in_one_group() {
    close(smallest_p_value_of_failures([1, 9], [3, 7]), p_value_of_failures([4, 6], [0, 10]), 0.0);
    close(smallest_p_value_of_failures([2, 1], [9, 3]), p_value_of_failures([3, 0], [8, 4]), 0.0);
    close(smallest_p_value_of_failures([0, 10], [0, 10]), 1.0, 0.0);
}

/// Hollander and Wolfe estimate the shift as 0.305, between -0.15 and 0.76 with 96 %.
#[test]
fn ratio_is_the_shift_of_the_logarithms() {
    let shift = ratio(&EARLIER.map(f64::exp), &AT_TERM.map(f64::exp));
    close(shift.median.ln(), 0.305, 1e-9);
    close(shift.low.ln(), -0.15, 1e-9);
    close(shift.high.ln(), 0.76, 1e-9);
    assert!(RankTest::between(&[], &[1.0]).is_none());
    assert!(RankTest::between(&[1.0], &[]).is_none());
}

#[test]
fn ratio_of_many_values() {
    let old: Vec<f64> = (0..3500).map(|index| 100.0 + f64::from(index) / 1000.0).collect();
    let new: Vec<f64> = old.iter().map(|value| value * 0.95).collect();
    let Estimate { median, low, high, .. } = ratio(&old, &new);
    close(median, 0.95, 1e-3);
    assert!(low > 0.949 && low < median && median < high && high < 0.951, "{low} {high}");
}

#[test]
fn interval_excludes_no_change_if_and_only_if_the_test_is_significant() {
    let old: Vec<f64> = (0..10).map(|index| 100.0 + f64::from(index)).collect();
    for shift in -25..25 {
        let new: Vec<f64> = old.iter().map(|value| value + f64::from(shift) + 0.4).collect();
        let pairs: Vec<_> = old.iter().rev().copied().zip(new.iter().copied()).collect();
        for test in [RankTest::between(&old, &new).unwrap(), RankTest::within(&pairs).unwrap()] {
            let Estimate { low, high, .. } = test.ratio();
            assert_eq!(test.p_value() <= SIGNIFICANCE, high < 1.0 || low > 1.0, "{shift}");
        }
    }
}

/// The worked example of Wikipedia's article on the Holm-Bonferroni method: the first and the last are
/// rejected.
#[test]
fn correction_of_four_tests() {
    let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
    for (adjusted, expected) in adjusted.into_iter().zip([0.03, 0.06, 0.06, 0.02]) {
        close(adjusted, expected, 1e-12);
    }
    assert!(holm(&[]).is_empty());
}

/// R's `p.adjust` returns the same. Equal p-values stay as they are.
#[test]
fn correction_from_the_largest_p_value_down() {
    let adjusted = hochberg(&[0.01, 0.04, 0.03, 0.005]);
    for (adjusted, expected) in adjusted.into_iter().zip([0.03, 0.04, 0.04, 0.02]) {
        close(adjusted, expected, 1e-12);
    }
    assert_eq!(hochberg(&[0.04; 24]), [0.04; 24]);
    assert!(hochberg(&[]).is_empty());
}
