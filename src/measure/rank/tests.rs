#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;

/// Hollander and Wolfe, Nonparametric Statistical Methods, 1973, table 4.1, and R's documentation of
/// `wilcox.test`: permeability of the human chorioamnion at term, and between 12 and 26 weeks.
const AT_TERM: [f64; 10] = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
const EARLIER: [f64; 5] = [1.15, 0.88, 0.90, 0.74, 1.21];

/// R's data set `airquality`: ozone in May and in August, the second example of `wilcox.test`.
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

/// R answers W = 35 and 0.1272 for the one side, SAS 0.2544 for both.
#[test]
fn exact_test_of_the_textbook() {
    close(p_value(&AT_TERM, &EARLIER), 0.2544, 5e-5);
    close(p_value(&EARLIER, &AT_TERM), 0.2544, 5e-5);
}

/// R answers W = 127.5 and 0.0001208.
#[test]
fn approximate_test_where_values_are_equal() {
    close(p_value(&MAY, &AUGUST), 0.000_120_8, 5e-8);
    close(p_value(&AUGUST, &MAY), 0.000_120_8, 5e-8);
}

/// The example of scipy's documentation of `mannwhitneyu`.
#[test]
fn exact_test_whichever_row_is_the_longer() {
    let (male, female) = ([19.0, 22.0, 16.0, 29.0, 24.0], [20.0, 11.0, 17.0, 12.0]);
    close(p_value(&male, &female), 1.0 / 9.0, 1e-12);
    close(p_value(&female, &male), 1.0 / 9.0, 1e-12);
}

/// Mann and Whitney's own table of 1947 has 0.014 for U = 0 and 0.100 for U = 3 of four and four, and
/// 0.004 for U = 0 of five and five.
#[test]
fn distribution_of_u_is_that_of_the_table() {
    let four = ExactU::new(4, 4);
    close(four.at_most(0), 0.014, 5e-4);
    close(four.at_most(3), 0.100, 5e-4);
    close(four.at_most(16), 1.0, 1e-12);
    close(ExactU::new(5, 5).at_most(0), 0.004, 5e-4);
    assert_eq!(ExactU::new(3, 5).share.len(), 16);
}

#[test]
fn exact_and_approximate_test_agree_where_one_follows_the_other() {
    let normal =
        |u: f64, n: f64| Normal::standard().cdf((u + 0.5 - n * n / 2.0) / (n * n * (2.0 * n + 1.0) / 12.0).sqrt());
    close(ExactU::new(MANY - 1, MANY - 1).at_most(920), normal(920.0, 49.0), 1e-3);
}

#[test]
fn no_values_and_equal_values_are_no_difference() {
    close(p_value(&[], &[1.0]), 1.0, 0.0);
    close(p_value(&[2.0; 10], &[2.0; 10]), 1.0, 0.0);
}

#[test]
fn smallest_p_value_is_that_of_rows_apart() {
    for (left, right) in [(1, 1), (3, 3), (5, 5), (4, 9), (10, 10)] {
        let low: Vec<f64> = (0..left).map(f64::from).collect();
        let high: Vec<f64> = (0..right).map(|value| f64::from(value) + 100.0).collect();
        close(smallest_p_value(low.len(), high.len()), p_value(&low, &high), 1e-12);
    }
    close(smallest_p_value(10, 10), 2.0 / 184_756.0, 1e-12);
}

/// Fisher's lady who tastes tea (1935), with 17 of 70 for three right cups of four; and his twins of
/// convicts, R's first example of `fisher.test`, with 0.0004652.
#[test]
fn exact_test_of_shares_is_that_of_the_textbook() {
    close(p_value_of_share([3, 1], [1, 3]), 17.0 / 70.0, 1e-12);
    close(p_value_of_share([4, 0], [0, 4]), 1.0 / 70.0, 1e-12);
    close(p_value_of_share([10, 3], [2, 15]), 0.000_465_2, 5e-8);
    close(p_value_of_share([15, 2], [3, 10]), 0.000_465_2, 5e-8);
    // One more failure of ten, four more, and none on either side.
    close(p_value_of_share([1, 9], [0, 10]), 0.5, 1e-12);
    close(p_value_of_share([4, 6], [0, 10]), 210.0 / 4845.0, 1e-12);
    close(p_value_of_share([0, 10], [1, 9]), 1.0, 1e-12);
    close(p_value_of_share([0, 10], [0, 10]), 1.0, 0.0);
    close(p_value_of_share([0, 0], [3, 4]), 1.0, 0.0);
}

/// Hollander and Wolfe estimate the shift as 0.305, and have it between -0.15 and 0.76 with 96 %.
#[test]
fn ratio_is_the_shift_of_the_logarithms() {
    let shift = ratio(&EARLIER.map(f64::exp), &AT_TERM.map(f64::exp)).unwrap();
    close(shift.median.ln(), 0.305, 1e-9);
    close(shift.low.ln(), -0.15, 1e-9);
    close(shift.high.ln(), 0.76, 1e-9);
    assert_eq!(ratio(&[], &[1.0]), None);
    assert_eq!(ratio(&[1.0], &[]), None);
}

#[test]
fn ratio_of_many_values() {
    let old: Vec<f64> = (0..3500).map(|index| 100.0 + f64::from(index) / 1000.0).collect();
    let new: Vec<f64> = old.iter().map(|value| value * 0.95).collect();
    let Estimate { median, low, high } = ratio(&old, &new).unwrap();
    close(median, 0.95, 1e-3);
    assert!(low > 0.949 && low < median && median < high && high < 0.951, "{low} {high}");
}

#[test]
fn interval_excludes_one_where_the_test_is_significant() {
    let old: Vec<f64> = (0..10).map(|index| 100.0 + f64::from(index)).collect();
    for shift in 0..15 {
        let new: Vec<f64> = old.iter().map(|value| value + f64::from(shift) + 0.5).collect();
        let interval = ratio(&old, &new).unwrap();
        assert_eq!(p_value(&old, &new) <= SIGNIFICANCE, interval.low > 1.0, "{shift}");
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

/// The fifteen tests of Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995: a
/// correction of the kind that holds the number of false ones rejects three.
#[test]
fn correction_of_fifteen_tests() {
    let p_values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590,
        1.000,
    ];
    let adjusted = holm(&p_values);
    assert_eq!(adjusted.iter().filter(|p| **p <= SIGNIFICANCE).count(), 3);
    close(adjusted[2], 13.0 * 0.0019, 1e-12);
    close(adjusted[3], 12.0 * 0.0095, 1e-12);
    close(adjusted[14], 1.0, 0.0);
}
