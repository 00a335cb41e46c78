use statrs::distribution::{ContinuousCDF, Normal};

use super::*;

#[test]
fn medians() {
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[3.0]), Some(3.0));
    assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
}

/// Efron and Tibshirani, An Introduction to the Bootstrap, 1993: the days that the seven treated mice of
/// table 2.1 lived, and the standard error of their median, which table 2.2 has as 37.83 for infinitely
/// many resamples.
#[test]
fn standard_error_of_a_median_is_that_of_the_textbook() {
    let error = resampled_medians(&[94.0, 197.0, 16.0, 38.0, 99.0, 141.0, 23.0], 0.0).std_dev();
    assert!((error / 37.83 - 1.0).abs() < 0.03, "{error}");
}

#[test]
fn interval_of_a_median_is_what_it_says() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let normal = Normal::standard();
    for (runs, least) in [(6, 0.9), (7, 0.9), (10, 0.9)] {
        let mut held = 0;
        for _ in 0..100 {
            let values: Vec<f64> =
                (0..runs).map(|_| 10.0 + normal.inverse_cdf(random.random_range(1e-9..1.0))).collect();
            let Estimate { median, low, high, .. } = estimate(&values).unwrap();
            assert!(low < median && median < high, "{values:?}");
            held += usize::from(low <= 10.0 && 10.0 <= high);
        }
        let share = f64::from(u32::try_from(held).unwrap()) / 100.0;
        assert!((least..=0.99).contains(&share), "{runs} runs: {share}");
    }
}

#[test]
fn interval_is_the_same_each_time_and_that_of_equal_runs_is_a_point() {
    let values = [9.0, 9.5, 10.0, 10.2, 10.3, 11.0];
    assert_eq!(estimate(&values), estimate(&values));
    let Estimate { low, high, is_range, .. } = estimate(&[2.0; 6]).unwrap();
    assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9 && !is_range, "{low} {high}");
    assert_eq!(estimate(&[]), None);
}

/// On a linear scale the interval of these runs began at 0, which is below every run.
#[test]
fn interval_of_scattered_runs_begins_near_them() {
    let Estimate { low, high, is_range, .. } = estimate(&[0.8, 1.1, 1.6, 2.4, 4.1, 7.5, 11.0]).unwrap();
    assert!(!is_range && low > 0.5 && high < 16.0, "{low} {high}");
}

#[test]
fn few_runs_a_zero_and_two_modes_have_a_range() {
    let two_modes = [1.0, 1.02, 1.03, 2.0, 2.01, 2.05, 2.06];
    for values in [&[2.0][..], &[2.0, 3.0], &[3.0, 2.0, 2.5, 2.2, 2.9], &[0.0, 2.0, 2.1, 2.2, 2.3, 2.4], &two_modes] {
        let Estimate { low, high, is_range, .. } = estimate(values).unwrap();
        let ends = [f64::min, f64::max].map(|of_two| values.iter().copied().reduce(of_two));
        assert_eq!((is_range, [Some(low), Some(high)]), (true, ends), "{values:?}");
    }
    // An outlier is no second mode.
    assert!(!estimate(&[1.0, 2.0, 2.01, 2.05, 2.06, 2.02, 2.03]).unwrap().is_range);
}

/// NIST/SEMATECH e-Handbook of Statistical Methods, 7.1.6: of these ninety values 1441 lies outside the
/// inner fences, and none outside the outer.
#[test]
fn fences_are_those_of_the_handbook() {
    let mut values = [
        30, 171, 184, 201, 212, 250, 265, 270, 272, 289, 305, 306, 322, 322, 336, 346, 351, 370, 390, 404, 409, 411,
        436, 437, 439, 441, 444, 448, 451, 453, 470, 480, 482, 487, 494, 495, 499, 503, 514, 521, 522, 527, 548, 550,
        559, 560, 570, 572, 574, 578, 585, 592, 592, 607, 616, 618, 621, 629, 637, 638, 640, 656, 668, 707, 709, 719,
        737, 739, 752, 758, 766, 792, 792, 794, 802, 818, 830, 832, 843, 858, 860, 869, 918, 925, 953, 991, 1000, 1005,
        1068, 1441,
    ]
    .map(f64::from);
    assert_eq!(outside(&values, 1.5), [89]);
    assert_eq!(outliers(&values), [] as [usize; 0]);
    values[3] = 1700.0;
    assert_eq!(outliers(&values), [3]);
}

#[test]
fn of_few_runs_none_is_an_outlier() {
    assert!(outliers(&[10.0, 10.0, 10.1, 10.1, 10.2, 1.0]).is_empty());
    assert_eq!(outliers(&[10.0, 10.0, 10.1, 10.1, 10.2, 10.2, 1.0]), [6]);
    assert!(outliers(&[]).is_empty());
    assert!(outliers(&[1.0; 10]).is_empty());
}
