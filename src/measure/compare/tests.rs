#![allow(clippy::unwrap_used, reason = "a test may panic")]

use netstacks::StackKind;

use super::super::fixture::{cell, failed, forwarder, in_round, sample};
use super::super::simulation::{Machine, tables};
use super::*;
use crate::plan::{Layer, Mode, ROWS};
use crate::sample::{ForwardCell, StackCell};

/// Five of a hundred are allowed, and ten and more happen once in thirty times.
#[test]
fn a_comparison_of_the_same_changes_nothing() {
    for (noise, floor) in [(0.02, 0.0), (0.10, 0.02)] {
        let changed = tables(100, noise, &[], floor, &[Verdict::Slower, Verdict::Faster]);
        assert!(changed <= 9, "noise {noise}, floor {floor}: {changed} of 100 tables");
    }
}

/// In a single cell of 24, that is. How often for other noises, the simulation says.
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
    let good: Vec<_> = (0..10).map(|run| Some(10.0 + f64::from(run) / 10.0)).collect();
    let flaky = |failures| [vec![None; failures], good[failures..].to_vec()].concat();
    // Three of ten may be chance, as the fourth is not.
    for (failures, expected) in
        [(0, Verdict::Inconclusive), (1, Verdict::Inconclusive), (3, Verdict::Inconclusive), (4, Verdict::Broken)]
    {
        assert_eq!(verdict(&good, &flaky(failures)), expected, "{failures}");
        let expected = if expected == Verdict::Broken { Verdict::Mended } else { expected };
        assert_eq!(verdict(&flaky(failures), &good), expected, "{failures}, the other way round");
    }
    assert_eq!(verdict(&flaky(4), &flaky(4)), Verdict::Inconclusive);
    assert_eq!(verdict(&flaky(4), &flaky(7)), Verdict::Inconclusive);
    // All of them, however few, is not chance.
    assert_eq!(verdict(&good, &[None]), Verdict::Broken);
    assert_eq!(verdict(&flaky(1), &[None; 5]), Verdict::Broken);
    assert_eq!(verdict(&[None; 5], &good), Verdict::Mended);
    assert_eq!(verdict(&[None; 5], &[None; 2]), Verdict::Failing);
}

#[test]
fn a_slower_cell_is_slower_whether_it_fails_less_or_not() {
    let rates = |usual: f64| (0..10).map(move |run| Some(usual + f64::from(run) / 10.0));
    let flaky: Vec<_> = [None; 8].into_iter().chain(rates(10.0)).collect();
    assert_eq!(verdict(&flaky, &rates(5.0).collect::<Vec<_>>()), Verdict::Slower);
    assert_eq!(verdict(&flaky, &rates(20.0).collect::<Vec<_>>()), Verdict::Mended);
}

#[test]
fn a_cell_that_a_system_cannot_run_is_not_broken() {
    let cell = cell(StackKind::Smoltcp, Mode::Reader);
    let good = [10.0, 10.1, 9.9, 10.2].map(|rate| sample(&cell, rate));
    let missing = [(); 4].map(|()| failed(&cell, Status::Unavailable));
    for (old, new) in [(&good, &missing), (&missing, &good), (&missing, &missing)] {
        let comparison = Comparison::of(old, new, 0.02).unwrap();
        assert_eq!(comparison.cells[0].verdict, Verdict::NotRun);
        assert_eq!(comparison.worse(), 0);
        assert_eq!(comparison.answers(), Err(CompareError::NotRun));
    }
    // Those that could begin are compared.
    let comparison = Comparison::of(&good, &[&good[..], &missing].concat(), 0.02).unwrap();
    assert_eq!(comparison.cells[0].verdict, Verdict::Inconclusive);
    let side = comparison.cells[0].new.as_ref().unwrap();
    assert_eq!((side.runs(), side.failed(), side.unavailable), (4, 0, 4));
}

#[test]
fn a_comparison_that_could_find_nothing_is_no_answer() {
    let cells = [Mode::Reader, Mode::Writer].map(|mode| cell(StackKind::Smoltcp, mode));
    let samples = |runs: [usize; 2]| -> Vec<Sample> {
        let runs = cells.iter().zip(runs);
        runs.flat_map(|(cell, runs)| (0..runs).map(|run| sample(cell, 10.0 + run as f64 / 10.0))).collect()
    };
    let answers = |runs| Comparison::of(&samples(runs), &samples(runs), 0.02).unwrap().answers();
    assert_eq!(answers([2, 2]), Err(CompareError::TooFewRuns { runs: 2, cells: 2, needed: 5 }));
    let text = answers([1, 2]).unwrap_err().to_string();
    assert!(text.starts_with("too few runs to find anything: 2 a side") && text.ends_with("with --runs 5"), "{text}");
    assert_eq!(answers([5, 5]), Ok(()));
    // One cell that could is an answer, and so is one of which all runs fail.
    assert_eq!(answers([2, 5]), Ok(()));
    let failing = [failed(&cells[0], Status::Stalled)];
    assert_eq!(Comparison::of(&failing, &failing, 0.02).unwrap().answers(), Ok(()));
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
    let far = StackCell { mtu: Some(9000), parallel: 4, ..ours.clone() };
    let near = StackCell { window_bytes: Some(1 << 20), ..ours.clone() };
    let error = Comparison::of(&[sample(&ours, 1.0)], &[sample(&far, 1.0), sample(&near, 1.0)], 0.02).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("window_bytes is 4194304 in the old file and 1048576 in the new one"), "{text}");
    assert!(!text.contains("mtu"), "{text}");
}

fn is_path(sample: &Sample) -> bool {
    sample.cell.stack().is_some_and(|cell| cell.layer == Layer::Path)
}

#[test]
fn the_nearest_forwarder_is_told_too() {
    let (ours, theirs) = (forwarder(ROWS[9]), ForwardCell { mtu: 9000, ..forwarder(ROWS[9]) });
    let new = [sample(&theirs, 1.0), sample(&cell(StackKind::Smoltcp, Mode::Reader), 1.0)];
    let text = Comparison::of(&[sample(&ours, 1.0)], &new, 0.02).unwrap_err().to_string();
    let nearest = "of \"sync, offload on, direct\" mtu is 1500 in the old file and 9000 in the new one";
    assert!(text.contains(nearest), "{text}");
}

#[test]
fn forwarders_are_not_by_the_speed_of_loopback() {
    let with_forwarders = |seed| {
        let forwarded = (1..=10).map(|round| in_round(sample(&forwarder(ROWS[9]), 10.0), round));
        rounds(&[1.0; 10], seed).into_iter().chain(forwarded).collect::<Vec<_>>()
    };
    let (old, new) = (with_forwarders(1), with_forwarders(2));
    assert_eq!(Comparison::of(&old, &new, 0.02).unwrap().cells.len(), 4);
    let relative = Comparison::relative(&old, &new, 0.02).unwrap();
    assert!(relative.cells.iter().all(|cell| cell.cell.stack().is_some()), "{relative:?}");
    assert_eq!(relative.cells.len(), 1);
}

/// Rounds of a machine that has these speeds, one after the other.
fn rounds(speeds: &[f64], seed: u64) -> Vec<Sample> {
    let mut machine = Machine::new(seed, 0.01);
    let loopback = StackCell {
        layer: Layer::Loopback,
        netstack: None,
        offload: None,
        mtu: None,
        window_bytes: None,
        ..cell(StackKind::Smoltcp, Mode::Reader)
    };
    let cells =
        [loopback.clone(), StackCell { mode: Some(Mode::Writer), ..loopback }, cell(StackKind::Lwip, Mode::Reader)];
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
    for sample in new.iter_mut().filter(|sample| is_path(sample)) {
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
    new.retain(|sample| is_path(sample) || sample.facts.round != Some(4));
    let relative = Comparison::relative(&old, &new, 0.02).unwrap();
    assert_eq!(relative.cells[0].new.as_ref().unwrap().gbps.len(), 9);
    new.retain(is_path);
    assert_eq!(Comparison::relative(&old, &new, 0.02), Err(CompareError::NoLoopback));
    let plain = [sample(&cell(StackKind::Lwip, Mode::Reader), 1.0)];
    assert_eq!(Comparison::relative(&plain, &old, 0.02), Err(CompareError::NoLoopback));
}
