//! How often the statistics are right, on a machine of which all is known.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and one of these is to be read")]

use std::f64::consts::TAU;

use netstacks::StackKind;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fixture::{cell, sample};
use super::{Comparison, Verdict, statistics};
use crate::plan::{Mode, RuntimeKind};
use crate::sample::{Sample, StackCell};

/// Cells of different rates: 24, as in a matrix of three stacks.
fn matrix() -> Vec<StackCell> {
    let mut cells = Vec::new();
    for stack in [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp] {
        for mode in [Mode::Reader, Mode::Writer] {
            for runtime in [RuntimeKind::CurrentThread, RuntimeKind::MultiThread(None)] {
                for offload in [Some(false), Some(true)] {
                    cells.push(StackCell { runtime, offload, ..cell(stack, mode) });
                }
            }
        }
    }
    cells
}

/// A machine whose rates vary by a log-normal noise of that standard deviation, with a run in fifty that
/// something else has slowed down by a tenth to a half.
pub(super) struct Machine {
    random: ChaCha8Rng,
    noise: f64,
}

impl Machine {
    pub(super) fn new(seed: u64, noise: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), noise }
    }

    /// A rate that is usually that of the cell.
    pub(super) fn rate(&mut self, usual: f64) -> f64 {
        // Box and Muller.
        let [one, two] = [(); 2].map(|()| self.random.random_range(1e-12..1.0_f64));
        let normal = (-2.0 * one.ln()).sqrt() * (TAU * two).cos();
        let slowed = if self.random.random_bool(0.02) { self.random.random_range(0.5..0.9) } else { 1.0 };
        usual * (self.noise * normal).exp() * slowed
    }

    /// Ten runs of each cell, the first cells faster or slower by their factors.
    fn samples(&mut self, cells: &[StackCell], factors: &[f64]) -> Vec<Sample> {
        let mut samples = Vec::new();
        for _ in 0..10 {
            for (index, cell) in cells.iter().enumerate() {
                let usual = (index + 1) as f64 * factors.get(index).unwrap_or(&1.0);
                samples.push(sample(cell, self.rate(usual)));
            }
        }
        samples
    }
}

/// In how many of so many tables there is such a verdict, where the first cells change by these factors.
pub(super) fn tables(seeds: u64, noise: f64, factors: &[f64], floor: f64, wanted: &[Verdict]) -> usize {
    let cells = matrix();
    let found = (0..seeds).filter(|seed| {
        let mut machine = Machine::new(*seed, noise);
        let (old, new) = (machine.samples(&cells, &[]), machine.samples(&cells, factors));
        let comparison = Comparison::of(&old, &new, floor).unwrap();
        wanted.iter().any(|verdict| comparison.count(*verdict) > 0)
    });
    found.count()
}

/// So many runs of one cell on a machine that nothing disturbs, around 10.
fn quiet_runs(random: &mut ChaCha8Rng, runs: usize) -> Vec<f64> {
    let mut normal = || {
        let [one, two] = [(); 2].map(|()| random.random_range(1e-12..1.0_f64));
        (-2.0 * one.ln()).sqrt() * (TAU * two).cos()
    };
    (0..runs).map(|_| 10.0 + normal()).collect()
}

/// In how many of a thousand cells of so many runs that is so.
fn cells(runs: usize, is_so: impl Fn(&[f64]) -> bool) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    (0..1000).filter(|_| is_so(&quiet_runs(&mut random, runs))).count()
}

/// Prints the figures that `docs/method.md` and the comments of this module have. It takes minutes:
/// `cargo test --release --lib figures_of_the_documents -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures for the documents"]
fn figures_of_the_documents() {
    for (noise, floor) in [(0.02, 0.0), (0.10, 0.02), (0.20, 0.02)] {
        let changed = tables(300, noise, &[], floor, &[Verdict::Slower, Verdict::Faster]);
        println!("unchanged, spread {noise}, floor {floor}: a verdict in {changed} of 300 tables of 24 cells");
    }
    for noise in [0.01, 0.02, 0.03, 0.15, 0.20] {
        for factor in [0.95, 0.9, 0.8, 0.7, 0.6] {
            for changed in [1, 4] {
                let found = tables(100, noise, &vec![factor; changed], 0.02, &[Verdict::Slower]);
                println!("spread {noise}, {changed} of 24 cells at {factor}: found in {found} of 100 tables");
            }
            if noise < 0.1 {
                break;
            }
        }
    }
    for runs in [3, 5, 6, 7, 10, 20] {
        let held = cells(runs, |values| {
            let interval = statistics::estimate(values).unwrap();
            interval.low <= 10.0 && 10.0 <= interval.high
        });
        let bare = cells(runs, |values| {
            let mut medians = statistics::resampled_medians(values, 0.0);
            medians.sort_by(f64::total_cmp);
            medians[medians.len() / 40] <= 10.0 && 10.0 <= medians[medians.len() - 1 - medians.len() / 40]
        });
        println!("the interval of {runs} runs holds the median in {held} of 1000 cells, without a kernel in {bare}");
        let [inner, outer] =
            [1.5, 3.0].map(|fence| cells(runs, |values| !statistics::outside(values, fence).is_empty()));
        println!("of {runs} runs one is outside the inner fences in {inner} of 1000 cells, the outer in {outer}");
    }
}
