//! How often the verdicts are right, on simulated machines.

use std::f64::consts::TAU;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fixture::{cell, failed, in_round, sample};
use super::{CompareError, Comparison, FEWEST_ROUNDS, Summary, Verdict, best, statistics};
use crate::cell::Cell;
use crate::sample::{Sample, Status};

/// Cells of different rates: 24, as in a matrix of three stacks.
fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for stack in ["lwip", "ipstack", "smoltcp"] {
        for mode in ["reader", "writer"] {
            for runtime in ["current-thread", "multi-thread"] {
                for offload in ["off", "on"] {
                    cells.push(cell(&format!("-n {stack} -m {mode} --runtime {runtime} --offload {offload}")));
                }
            }
        }
    }
    cells
}

/// A machine that is known exactly: its rates have log-normal noise of this standard deviation, and one run in fifty
/// is slowed down by a tenth to a half.
pub(super) struct Machine {
    random: ChaCha8Rng,
    noise: f64,
}

impl Machine {
    pub(super) fn new(seed: u64, noise: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), noise }
    }

    /// A rate that is usually `usual`.
    pub(super) fn rate(&mut self, usual: f64) -> f64 {
        let noise = (self.noise * normal(&mut self.random)).exp();
        let slowed = if self.random.random_bool(0.02) { self.random.random_range(0.5..0.9) } else { 1.0 };
        usual * noise * slowed
    }
}

/// A standard normal value, by the method of Box and Muller.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let [one, two] = [(); 2].map(|()| random.random_range(1e-12..1.0_f64));
    (-2.0 * one.ln()).sqrt() * (TAU * two).cos()
}

type Compare = fn(&[Sample], &[Sample], f64) -> Result<Comparison, CompareError>;

/// Two programs that run 24 cells, and the comparison of them.
pub(super) struct Experiment<'a> {
    /// See [`Machine`]. Without it, the runs of a round scatter as those of a real machine do.
    pub(super) noise: Option<f64>,
    /// The probability that a run fails.
    pub(super) failing: f64,
    pub(super) rounds: u32,
    /// The speed of the first cells with the new program, by their speed with the old one. Other cells are unchanged.
    pub(super) factors: &'a [f64],
    pub(super) compare: Compare,
    pub(super) floor: f64,
}

impl Default for Experiment<'_> {
    fn default() -> Self {
        let compare = Comparison::within_rounds;
        Self { noise: Some(0.02), failing: 0.0, rounds: 10, factors: &[], compare, floor: 0.02 }
    }
}

impl Experiment<'_> {
    /// The number of tables, of this many, in which a cell has one of these verdicts.
    pub(super) fn tables(&self, tables: u64, verdicts: &[Verdict]) -> usize {
        let has = |comparison: &Comparison| verdicts.iter().any(|verdict| comparison.count(*verdict) > 0);
        self.compared(tables).filter(has).count()
    }

    /// What could be found in the first cell: the median of so many tables.
    pub(super) fn detectable(&self, tables: u64) -> f64 {
        let of_first = |comparison: Comparison| comparison.detectable(&comparison.cells[0]).unwrap();
        statistics::median(&self.compared(tables).map(of_first).collect::<Vec<_>>()).unwrap()
    }

    fn compared(&self, tables: u64) -> impl Iterator<Item = Comparison> {
        let (cells, pairs) = (matrix(), if self.noise.is_none() { pairs() } else { Vec::new() });
        (0..tables).map(move |seed| {
            let machine = &mut Machine::new(seed, self.noise.unwrap_or_default());
            let [old, new] = self.samples(&cells, &pairs, machine);
            (self.compare)(&old, &new, self.floor).unwrap()
        })
    }

    /// The runs of both programs, which take turns.
    fn samples(&self, cells: &[Cell], pairs: &[[f64; 2]], machine: &mut Machine) -> [Vec<Sample>; 2] {
        let mut programs = [Vec::new(), Vec::new()];
        for round in 1..=self.rounds {
            for (index, cell) in cells.iter().enumerate() {
                let usual = (index + 1) as f64;
                let factor = self.factors.get(index).unwrap_or(&1.0);
                let pair =
                    pairs.choose(&mut machine.random).copied().unwrap_or_else(|| [(); 2].map(|()| machine.rate(1.0)));
                for (samples, speed) in programs.iter_mut().zip([usual * pair[0], usual * factor * pair[1]]) {
                    let fails = machine.random.random_bool(self.failing);
                    let run = if fails { failed(cell, Status::Stalled) } else { sample(cell, speed) };
                    samples.push(in_round(run, round));
                }
            }
        }
        programs
    }
}

/// Pairs of adjacent runs of one build on a real machine, each divided by the median of its cell and side (docs/data/aa.jsonl).
fn pairs() -> Vec<[f64; 2]> {
    let lines = include_str!("../../../docs/data/aa.jsonl").lines().map(|line| serde_json::from_str(line).unwrap());
    let pairs_of = |line: serde_json::Value| {
        let rates = |side| serde_json::from_value::<Vec<f64>>(line[side].clone()).unwrap_or_default();
        let [old, new] = ["old", "new"].map(rates);
        let is_planted = line["planted_here"] == true;
        let [old_median, new_median] = [&old, &new].map(|rates| statistics::median(rates).unwrap_or_default());
        let pairs = old.into_iter().zip(new).filter(move |_| !is_planted);
        pairs.map(move |(old, new)| [old / old_median, new / new_median]).collect::<Vec<_>>()
    };
    lines.flat_map(pairs_of).collect()
}

/// This many runs of one cell, around 10, on a machine with nothing but normal noise.
fn quiet_runs(random: &mut ChaCha8Rng, runs: usize) -> Vec<f64> {
    (0..runs).map(|_| 10.0 + normal(random)).collect()
}

/// The number of cells, of a thousand with this many runs, in which `is_so` is true.
fn cells(runs: usize, is_so: impl Fn(&[f64]) -> bool) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    (0..1000).filter(|_| is_so(&quiet_runs(&mut random, runs))).count()
}

/// The number of cells, of a thousand, in which this many runs seem to have two modes, where half of the runs are this many
/// times as fast.
fn with_two_modes(runs: usize, factor: f64) -> usize {
    let mut machine = Machine::new(17, 0.1);
    let mut rate = || {
        let usual = if machine.random.random_bool(0.5) { factor } else { 1.0 };
        machine.rate(usual).ln()
    };
    (0..1000).filter(|_| statistics::has_two_modes(&(0..runs).map(|_| rate()).collect::<Vec<_>>())).count()
}

#[test]
fn runs_of_one_mode_have_no_second() {
    for runs in [6, 7, 10, 20, 50] {
        let (alarms, found) = (with_two_modes(runs, 1.0), with_two_modes(runs, 2.0));
        assert!(alarms <= 50 && (runs < 10 || found > 850), "{runs} runs: {alarms} false, {found} found");
    }
}

/// Of eight subjects that are alike, each is as good as the best, and is not told apart from it in 95 % of all tables.
#[test]
fn subjects_that_are_alike_are_all_bold() {
    let (mut machine, mut is_bold) = (Machine::new(3, 0.02), 0);
    for _ in 0..20 {
        let mut samples = Vec::new();
        for round in 1..=10 {
            let speed = (0.2 * normal(&mut machine.random)).exp();
            samples.extend(matrix().iter().take(8).map(|cell| in_round(sample(cell, machine.rate(speed)), round)));
        }
        let cells = Summary::of(&samples).cells;
        is_bold += best(&cells.iter().map(Some).collect::<Vec<_>>()).iter().filter(|is_bold| **is_bold).count();
    }
    assert!(is_bold >= 152, "{is_bold} of 160");
}

/// How a matrix `--until` this ends for many cells of a machine, without looking before the `fewest` rounds: how often the
/// interval then holds the true median, how many rounds were made, and how many cells were settled by [`MOST_ROUNDS`].
fn until(within: f64, noise: f64, fewest: usize, cells: u32) -> (f64, f64, f64) {
    let mut machine = Machine::new(11, noise);
    // The median of the machine without the runs that are slowed down; these are few.
    let usual = 10.0;
    let (mut held, mut rounds, mut settled) = (0, 0, 0);
    for _ in 0..cells {
        let mut values: Vec<_> = (1..fewest).map(|_| machine.rate(usual)).collect();
        let figure = loop {
            values.push(machine.rate(usual));
            let figure = statistics::estimate(&values).unwrap();
            if figure.half_width() <= within || values.len() >= MOST_ROUNDS {
                break figure;
            }
        };
        held += u32::from(figure.low <= usual && usual <= figure.high);
        settled += u32::from(figure.half_width() <= within);
        rounds += values.len() as u32;
    }
    let share = |count| f64::from(count) / f64::from(cells);
    (share(held), share(rounds), share(settled))
}

/// The rounds for which the time suffices.
const MOST_ROUNDS: usize = 40;

/// Ending when the interval is narrow prefers those that are narrow by chance. From ten rounds on it costs next to nothing.
#[test]
fn an_interval_holds_as_often_if_rounds_end_when_it_is_narrow() {
    let (held, rounds, settled) = until(0.1, 0.1, FEWEST_ROUNDS, 150);
    assert!(held >= 0.91, "{held}");
    assert!((10.0..20.0).contains(&rounds) && settled > 0.95, "{rounds} rounds, {settled} settled");
}

/// Prints the figures of `docs/method.md` about a matrix `--until` something.
#[test]
#[ignore = "prints figures for the documents"]
fn figures_of_the_documents_about_endings() {
    for fewest in [3, 6, 10, 15] {
        let (held, rounds, settled) = until(0.1, 0.15, fewest, 300);
        println!(
            "until 0.1, spread 0.15, {fewest} rounds or more: the interval holds the median in {held:.2} of all cells after \
             {rounds:.0} rounds, and {settled:.2} are settled by round {MOST_ROUNDS}"
        );
    }
}

/// Prints the figures in `docs/method.md` and the comments of this module. It takes minutes:
/// `cargo test --release -p rust-tun-perf-results --lib figures_of_the_documents -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures for the documents"]
fn figures_of_the_documents() {
    pairs_of_the_documents();
    intervals();
}

/// Unchanged tables, of which none should fail the gate, and tables in which one cell got slower.
fn pairs_of_the_documents() {
    for noise in [Some(0.02), Some(0.10), Some(0.20), None] {
        for failing in [0.0, 0.1] {
            let unchanged = Experiment { noise, failing, rounds: 40, ..Experiment::default() };
            let worse = unchanged.tables(1000, &[Verdict::Slower, Verdict::Broken]);
            println!("unchanged, spread {noise:?}, {failing} of the runs fail: worse in {worse} of 1000 tables");
        }
        for rounds in [10, 20, 40, 80] {
            let pairs = Experiment { noise, rounds, ..Experiment::default() };
            print!("spread {noise:?}, {rounds} pairs: detectable {:.3}", pairs.detectable(50));
            for factor in [0.95, 0.9, 0.8, 0.7] {
                let found = Experiment { factors: &[factor], ..pairs }.tables(100, &[Verdict::Slower]);
                print!(", {factor} found in {found} of 100");
            }
            println!();
        }
    }
    let edge = Experiment { noise: Some(0.02), factors: &[0.98; 24], ..Experiment::default() };
    println!("all 24 cells at the floor: slower in {} of 1000 tables", edge.tables(1000, &[Verdict::Slower]));
}

/// Medians of quiet runs.
fn intervals() {
    for runs in [6, 7, 10, 20] {
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
