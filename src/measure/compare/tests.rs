#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::f64::consts::TAU;

use netstacks::StackKind;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::fixture::{cell, failed, in_round, sample};
use super::*;
use crate::plan::{Layer, Mode, RuntimeKind};

/// Cells of different rates: 24, as in a matrix of three stacks.
fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for stack in [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp] {
        for mode in [Mode::Reader, Mode::Writer] {
            for runtime in [RuntimeKind::CurrentThread, RuntimeKind::MultiThread(None)] {
                for offload in [Some(false), Some(true)] {
                    cells.push(Cell { runtime, offload, ..cell(stack, mode) });
                }
            }
        }
    }
    cells
}

/// A machine whose rates vary by a log-normal noise of that standard deviation, with a run in fifty that
/// something else has slowed down by a tenth to a half.
struct Machine {
    random: ChaCha8Rng,
    noise: f64,
}

impl Machine {
    fn new(seed: u64, noise: f64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), noise }
    }

    /// A rate that is usually that of the cell.
    fn rate(&mut self, usual: f64) -> f64 {
        // Box and Muller.
        let [one, two] = [(); 2].map(|()| self.random.random_range(1e-12..1.0_f64));
        let normal = (-2.0 * one.ln()).sqrt() * (TAU * two).cos();
        let slowed = if self.random.random_bool(0.02) { self.random.random_range(0.5..0.9) } else { 1.0 };
        usual * (self.noise * normal).exp() * slowed
    }

    /// Ten runs of each cell, the first cells faster or slower by their factors.
    fn samples(&mut self, cells: &[Cell], factors: &[f64]) -> Vec<Sample> {
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
fn tables(seeds: u64, noise: f64, factors: &[f64], floor: f64, wanted: &[Verdict]) -> usize {
    let cells = matrix();
    let found = (0..seeds).filter(|seed| {
        let mut machine = Machine::new(*seed, noise);
        let (old, new) = (machine.samples(&cells, &[]), machine.samples(&cells, factors));
        let comparison = Comparison::of(&old, &new, floor).unwrap();
        wanted.iter().any(|verdict| comparison.count(*verdict) > 0)
    });
    found.count()
}

/// Five of a hundred are allowed, and ten and more happen once in thirty times.
#[test]
fn a_comparison_of_the_same_changes_nothing() {
    for (noise, floor) in [(0.02, 0.0), (0.10, 0.02)] {
        let changed = tables(100, noise, &[], floor, &[Verdict::Slower, Verdict::Faster]);
        assert!(changed <= 9, "noise {noise}, floor {floor}: {changed} of 100 tables");
    }
}

/// In a single cell of 24, that is; with a noise of 2 % it is found in five of six tables.
#[test]
fn a_change_of_five_percent_is_found() {
    for (factor, verdict) in [(0.95, Verdict::Slower), (1.05, Verdict::Faster)] {
        let found = tables(50, 0.01, &[factor], 0.02, &[verdict]);
        assert!(found >= 48, "{verdict:?}: {found} of 50 tables");
        let found = tables(50, 0.02, &[factor], 0.02, &[verdict]);
        assert!(found >= 38, "{verdict:?}: {found} of 50 tables");
    }
}

/// A stack changes in several cells: here in one mode, with both runtimes and with and without offload.
#[test]
fn a_change_of_five_percent_in_a_mode_of_a_stack_is_always_found() {
    assert_eq!(tables(50, 0.02, &[0.95; 4], 0.02, &[Verdict::Slower]), 50);
}

#[test]
fn a_change_below_the_floor_is_nobodys_concern() {
    assert_eq!(tables(20, 0.001, &[0.99], 0.02, &[Verdict::Slower, Verdict::Faster]), 0);
    let found = tables(20, 0.001, &[0.99], 0.005, &[Verdict::Slower]);
    assert!(found >= 19, "{found} of 20 tables");
}

/// The verdict on a cell with these runs before and after; `None` is one that failed.
fn verdict(old: &[Option<f64>], new: &[Option<f64>]) -> Verdict {
    let cell = cell(StackKind::Smoltcp, Mode::Reader);
    let samples = |runs: &[Option<f64>]| -> Vec<Sample> {
        let one = |run: &Option<f64>| match run {
            Some(gbps) => sample(&cell, *gbps),
            None => failed(&cell, Status::Stalled),
        };
        runs.iter().map(one).collect()
    };
    Comparison::of(&samples(old), &samples(new), 0.02).unwrap().cells[0].verdict
}

#[test]
fn failures_are_judged_by_their_share() {
    let good = [Some(10.0), Some(10.1), Some(10.2), Some(9.9), Some(9.8)];
    let flaky = [Some(10.05), Some(10.15), None, Some(9.95), Some(9.85)];
    assert_eq!(verdict(&good, &flaky), Verdict::Broken);
    assert_eq!(verdict(&good, &[None]), Verdict::Broken);
    assert_eq!(verdict(&flaky, &[None; 5]), Verdict::Broken);
    assert_eq!(verdict(&flaky, &good), Verdict::Inconclusive);
    assert_eq!(verdict(&flaky, &flaky), Verdict::Inconclusive);
    // One of ten is less than one of five.
    assert_eq!(verdict(&flaky, &[&good[..], &flaky[..]].concat()), Verdict::Inconclusive);
    assert_eq!(verdict(&[None; 5], &good), Verdict::Mended);
    assert_eq!(verdict(&[None; 5], &[None; 2]), Verdict::Failing);
}

#[test]
fn so_few_runs_cannot_be_significant() {
    assert_eq!(verdict(&[Some(1.0); 3], &[Some(9.0); 3]), Verdict::TooFewRuns);
    let [low, high] = [1.0, 9.0].map(|rate| [0.0, 0.1, 0.2, 0.3].map(|more| Some(rate + more)));
    assert_eq!(verdict(&low, &high), Verdict::Faster);
    // A second cell makes the test of both stricter.
    let cells = [cell(StackKind::Smoltcp, Mode::Reader), cell(StackKind::Smoltcp, Mode::Writer)];
    let samples = |rates: [Option<f64>; 4]| -> Vec<Sample> {
        cells.iter().flat_map(|cell| rates.map(|rate| sample(cell, rate.unwrap()))).collect()
    };
    let comparison = Comparison::of(&samples(low), &samples(high), 0.02).unwrap();
    assert_eq!(comparison.count(Verdict::TooFewRuns), 2);
    assert_eq!(comparison.runs_needed(), 5);
}

#[test]
fn cells_of_one_file_are_shown_and_not_judged() {
    let [one, two, three] = [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp]
        .map(|stack| [1.0, 1.1].map(|rate| sample(&cell(stack, Mode::Reader), rate)));
    let comparison = Comparison::of(&[&one[..], &two].concat(), &[&two[..], &three].concat(), 0.02).unwrap();
    let verdicts: Vec<_> = comparison.cells.iter().map(|cell| cell.verdict).collect();
    assert_eq!(verdicts, [Verdict::OnlyOld, Verdict::TooFewRuns, Verdict::OnlyNew]);
    assert_eq!(comparison.tested(), 1);
    assert_eq!(comparison.worse(), 0);
}

#[test]
fn files_without_a_common_cell_are_told_the_nearest() {
    let ours = cell(StackKind::Smoltcp, Mode::Reader);
    let far = Cell { mtu: Some(9000), parallel: 4, ..ours.clone() };
    let near = Cell { window_bytes: Some(1 << 20), ..ours.clone() };
    let error = Comparison::of(&[sample(&ours, 1.0)], &[sample(&far, 1.0), sample(&near, 1.0)], 0.02).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("window_bytes is 4194304 in the old file and 1048576 in the new one"), "{text}");
    assert!(!text.contains("mtu"), "{text}");
}

/// Rounds of a machine that has these speeds, one after the other.
fn rounds(speeds: &[f64], seed: u64) -> Vec<Sample> {
    let mut machine = Machine::new(seed, 0.01);
    let loopback = Cell {
        layer: Layer::Loopback,
        netstack: None,
        offload: None,
        mtu: None,
        window_bytes: None,
        ..cell(StackKind::Smoltcp, Mode::Reader)
    };
    let cells = [loopback.clone(), Cell { mode: Some(Mode::Writer), ..loopback }, cell(StackKind::Lwip, Mode::Reader)];
    let mut samples = Vec::new();
    for (speed, round) in speeds.iter().zip(1..) {
        for (cell, usual) in cells.iter().zip([40.0, 30.0, 10.0]) {
            samples.push(in_round(sample(cell, machine.rate(usual * speed)), round));
        }
    }
    samples
}

#[test]
fn a_slower_machine_is_not_a_slower_stack() {
    let (old, new) = (rounds(&[1.0; 10], 1), rounds(&[0.8; 10], 2));
    let absolute = Comparison::of(&old, &new, 0.02).unwrap();
    assert_eq!(absolute.count(Verdict::Slower), 3, "{absolute:?}");
    let relative = Comparison::relative(&old, &new, 0.02).unwrap();
    assert_eq!(relative.count(Verdict::Inconclusive), 1, "{relative:?}");
    assert_eq!(relative.cells.len(), 1);
}

#[test]
fn a_slower_stack_is_one_on_a_restless_machine_too() {
    let speeds = [1.0, 0.7, 0.9, 1.1, 0.8, 1.0, 0.75, 1.2, 0.6, 0.9];
    let (old, mut new) = (rounds(&speeds, 3), rounds(&speeds.map(|speed| speed * 0.95), 4));
    for sample in new.iter_mut().filter(|sample| sample.cell.layer == Layer::Path) {
        sample.facts.bytes = sample.facts.bytes / 100 * 90;
    }
    let absolute = Comparison::of(&old, &new, 0.02).unwrap();
    assert_eq!(absolute.worse(), 0, "{absolute:?}");
    let relative = Comparison::relative(&old, &new, 0.02).unwrap();
    assert_eq!(relative.count(Verdict::Slower), 1, "{relative:?}");
}

#[test]
fn rounds_without_loopback_have_no_speed() {
    let old = rounds(&[1.0; 10], 1);
    let mut new = rounds(&[1.0; 10], 2);
    new.retain(|sample| sample.cell.layer == Layer::Path || sample.facts.round != Some(4));
    let relative = Comparison::relative(&old, &new, 0.02).unwrap();
    assert_eq!(relative.cells[0].new.as_ref().unwrap().gbps.len(), 9);
    new.retain(|sample| sample.cell.layer == Layer::Path);
    assert_eq!(Comparison::relative(&old, &new, 0.02), Err(CompareError::NoLoopback));
    let plain = [sample(&cell(StackKind::Lwip, Mode::Reader), 1.0)];
    assert_eq!(Comparison::relative(&plain, &old, 0.02), Err(CompareError::NoLoopback));
}
