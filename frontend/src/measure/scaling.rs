//! A model of how a speed grows with the number of workers.
//!
//! The universal scalability law (N. J. Gunther, Guerrilla Capacity Planning, Springer 2007, chapters 4 to 6): N workers
//! are N / (1 + σ (N - 1) + κ N (N - 1)) times as fast as one. σ is the share of the work that only one of them can do at a
//! time, and κ is the work that each pair has with each other. With κ = 0 it is Amdahl's law.

use std::collections::{BTreeMap, BTreeSet};

use super::{Estimate, statistics};

/// The speeds of a round, by the number of workers.
pub type Round = BTreeMap<u16, f64>;

/// The law of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Law {
    /// The speed of one worker.
    one: f64,
    /// σ.
    serial: f64,
    /// κ.
    pairs: f64,
}

/// The model of a subject: the laws of the rounds in which it ran. Its figures are medians of theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    laws: Vec<Law>,
    has_pairs: bool,
}

/// How many times as fast as one worker so many are: the median of the rounds that have both, its interval, and how many
/// rounds these are.
pub fn times(rounds: &[Round], workers: u16) -> Option<(Estimate, usize)> {
    let times = |round: &Round| Some(round.get(&workers)? / round.get(&1).filter(|speed| **speed > 0.0)?);
    let times: Vec<_> = rounds.iter().filter_map(times).collect();
    Some((statistics::estimate(&times)?, times.len()))
}

impl Scaling {
    /// The model of some rounds. Those that lack a number of workers that another round has are left out: a law of
    /// other numbers is another law. `None` without a round of one worker and of several.
    pub fn of(rounds: &[Round]) -> Option<Self> {
        let counts: BTreeSet<u16> = rounds.iter().flat_map(|round| round.keys().copied()).collect();
        let whole = rounds.iter().filter(|round| round.len() == counts.len() && counts.len() > 1);
        let laws: Vec<_> = whole.filter_map(Law::of).collect();
        (!laws.is_empty()).then_some(Self { laws, has_pairs: counts.len() > 2 })
    }

    /// How many rounds it has.
    pub fn rounds(&self) -> usize {
        self.laws.len()
    }

    /// The speed of so many workers.
    pub fn speed(&self, workers: u16) -> Option<Estimate> {
        self.median(|law| law.speed(workers))
    }

    /// σ.
    pub fn serial(&self) -> Option<Estimate> {
        self.median(|law| law.serial)
    }

    /// κ; `None` if the runs have only two numbers of workers, which cannot tell it from σ.
    pub fn pairs(&self) -> Option<Estimate> {
        self.median(|law| law.pairs).filter(|_| self.has_pairs)
    }

    fn median(&self, figure: impl Fn(&Law) -> f64) -> Option<Estimate> {
        let figures: Vec<_> = self.laws.iter().map(figure).collect();
        statistics::estimate(&figures)
    }
}

impl Law {
    /// Gunther's fit: N / (speed of N / speed of one) - 1 is linear in σ and κ, so these have the least squares. Neither is below 0:
    /// workers that share nothing are more than N times as fast only by chance.
    fn of(round: &Round) -> Option<Self> {
        let one = *round.get(&1).filter(|speed| **speed > 0.0)?;
        // Sums of products: of N - 1, of N (N - 1), and of both with the value.
        let (mut uu, mut uv, mut vv, mut uy, mut vy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (workers, speed) in round.iter().filter(|(workers, _)| **workers > 1) {
            let workers = f64::from(*workers);
            let (u, v, y) = (workers - 1.0, workers * (workers - 1.0), workers * one / speed - 1.0);
            (uu, uv, vv, uy, vy) = (uu + u * u, uv + u * v, vv + v * v, uy + u * y, vy + v * y);
        }
        let determinant = uu * vv - uv * uv;
        let (serial, pairs) = ((uy * vv - vy * uv) / determinant, (vy * uu - uy * uv) / determinant);
        let (serial, pairs) = if round.len() <= 2 || pairs < 0.0 {
            ((uy / uu).max(0.0), 0.0)
        } else if serial < 0.0 {
            (0.0, (vy / vv).max(0.0))
        } else {
            (serial, pairs)
        };
        (serial.is_finite() && pairs.is_finite()).then_some(Self { one, serial, pairs })
    }

    fn speed(&self, workers: u16) -> f64 {
        let workers = f64::from(workers);
        self.one * workers / (1.0 + self.serial * (workers - 1.0) + self.pairs * workers * (workers - 1.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn law(points: &[(u16, f64)]) -> Law {
        Law::of(&points.iter().copied().collect()).unwrap()
    }

    fn is_near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= 1e-9 * expected.abs().max(1.0)
    }

    /// A third of the work is serial: never more than three times as fast.
    #[test]
    fn two_numbers_of_workers_give_amdahls_law() {
        let law = law(&[(1, 10.0), (2, 15.0)]);
        assert!(is_near(law.serial, 1.0 / 3.0) && is_near(law.pairs, 0.0), "{law:?}");
        assert!(is_near(law.speed(4), 20.0) && is_near(law.speed(8), 24.0), "{law:?}");
        assert!((29.0..30.0).contains(&law.speed(1000)), "{law:?}");
    }

    /// The ray tracer of Gunther's book, as the R package usl has it. It has σ = 0.05002 and κ = 4.709e-6 from this fit.
    #[test]
    fn a_published_benchmark_has_its_published_factors() {
        let counts = [1, 4, 8, 12, 16, 20, 24, 28, 32, 48, 64];
        let speeds = [20.0, 78.0, 130.0, 170.0, 190.0, 200.0, 210.0, 230.0, 260.0, 280.0, 310.0];
        let law = law(&counts.into_iter().zip(speeds).collect::<Vec<_>>());
        assert!((law.serial - 0.05002).abs() < 1e-5 && (law.pairs - 4.708e-6).abs() < 2e-9, "{law:?}");
    }

    #[test]
    fn the_factors_of_exact_speeds_are_found() {
        let exact = Law { one: 3.0, serial: 0.1, pairs: 0.01 };
        let found = law(&[1, 2, 4, 8].map(|workers| (workers, exact.speed(workers))));
        assert!(is_near(found.serial, 0.1) && is_near(found.pairs, 0.01), "{found:?}");
    }

    #[test]
    fn no_factor_is_below_0() {
        let linear = law(&[(1, 10.0), (2, 21.0)]);
        assert!(linear.serial == 0.0 && is_near(linear.speed(8), 80.0), "{linear:?}");
        // The best fit would have a negative κ, then a negative σ.
        let flattening = law(&[(1, 10.0), (2, 15.0), (4, 22.0)]);
        assert!(flattening.pairs == 0.0 && flattening.serial > 0.25, "{flattening:?}");
        let falling = law(&[(1, 10.0), (2, 20.0), (4, 25.0)]);
        assert!(falling.serial == 0.0 && falling.pairs > 0.04, "{falling:?}");
    }

    #[test]
    fn a_ratio_is_of_the_rounds_that_have_both() {
        let rounds = [&[(1, 10.0), (2, 15.0)][..], &[(1, 0.0), (2, 15.0)], &[(2, 70.0)], &[(1, 3.0)]];
        let rounds = rounds.map(|round| round.iter().copied().collect());
        assert!(times(&rounds, 2).is_some_and(|(times, rounds)| is_near(times.median, 1.5) && rounds == 1));
        assert_eq!(times(&rounds, 4), None);
    }

    #[test]
    fn a_model_has_the_medians_of_its_whole_rounds() {
        let round = |points: &[(u16, f64)]| points.iter().copied().collect::<Round>();
        let rounds: Vec<_> = [1.4, 1.6, 1.5].map(|times| round(&[(1, 10.0), (2, 10.0 * times)])).into();
        let model = Scaling::of(&rounds).unwrap();
        assert!(is_near(model.serial().unwrap().median, 1.0 / 3.0) && model.pairs().is_none(), "{model:?}");
        let four = model.speed(4).unwrap();
        assert!(is_near(four.median, 20.0) && four.low < 20.0 && four.high > 20.0, "{four:?}");
        // Without the run of one shard, or of the other, a round says nothing.
        let more = [&rounds[..], &[round(&[(1, 10.0)]), round(&[(2, 70.0)]), Round::new()]].concat();
        assert_eq!(Scaling::of(&more), Some(model));
        // Of rounds with others, only those with all of them count.
        let (two, four) = (round(&[(1, 10.0), (2, 15.0)]), round(&[(1, 10.0), (4, 20.0)]));
        assert_eq!(Scaling::of(&[two.clone(), four.clone()]), None);
        let all = round(&[(1, 10.0), (2, 15.0), (4, 20.0)]);
        assert_eq!(Scaling::of(&[two, four, all]).map(|model| model.rounds()), Some(1));
        assert_eq!(Scaling::of(&[round(&[(1, 10.0)])]), None);
        assert_eq!(Scaling::of(&[round(&[(2, 10.0), (4, 20.0)])]), None);
        assert_eq!(Scaling::of(&[round(&[(1, 0.0), (2, 20.0)])]), None);
        assert_eq!(Scaling::of(&[round(&[(1, 10.0), (2, 0.0)])]), None);
    }
}
