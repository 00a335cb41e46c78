use std::sync::Arc;

use netstacks::StackKind;

use super::super::fixture::{answering, cell, failed, in_round, run, sample};
use super::super::simulation::{Experiment, Machine};
use super::*;
use crate::cell::ROWS;
use crate::sample::Environment;

/// If the verdicts were wrong in five of a hundred tables, they were so in ten or more once in thirty times.
const FEW: usize = 9;

#[test]
fn unchanged_cells_have_no_verdict() {
    for (noise, floor) in [(0.02, 0.0), (0.10, 0.02)] {
        let found = Experiment { noise: Some(noise), floor, ..Experiment::default() }
            .tables(100, &[Verdict::Slower, Verdict::Faster]);
        assert!(found <= FEW, "noise {noise}, floor {floor}: {found} of 100 tables");
    }
}

/// The noise is so small that any change is significant. The interval of one cell is wrong in five of a hundred cases.
#[test]
fn a_change_of_just_the_floor_is_not_beyond_it() {
    for factor in [0.98, 1.02] {
        let experiment = Experiment { noise: Some(0.002), factors: &[factor], ..Experiment::default() };
        let found = experiment.tables(50, &[Verdict::Slower, Verdict::Faster]);
        assert!(found <= FEW / 2, "{factor}: {found} of 50 tables");
    }
}

#[test]
fn failures_by_chance_are_not_broken_cells() {
    for compare in [Comparison::of, Comparison::within_rounds] {
        let experiment = Experiment { failing: 0.1, compare, ..Experiment::default() };
        for verdict in [Verdict::Broken, Verdict::Recovered] {
            let found = experiment.tables(100, &[verdict]);
            assert!(found <= FEW, "{verdict:?} in {found} of 100 tables");
        }
    }
    let few = Experiment { failing: 0.1, rounds: 2, ..Experiment::default() }.tables(100, &[Verdict::Broken]);
    assert_eq!(few, 0);
}

/// In one of 24 cells. The simulation says how often with other noise.
#[test]
fn a_change_of_five_percent_is_found() {
    for (factor, verdict) in [(0.95, Verdict::Slower), (1.05, Verdict::Faster)] {
        let found =
            Experiment { noise: Some(0.01), factors: &[factor], ..Experiment::default() }.tables(50, &[verdict]);
        assert!(found >= 42, "{verdict:?}: {found} of 50 tables");
    }
}

/// In one mode of a stack, with both runtimes, with and without offload.
#[test]
fn a_change_of_ten_percent_in_a_mode_of_a_stack_is_always_found() {
    let experiment = Experiment { factors: &[0.9; 4], ..Experiment::default() };
    assert_eq!(experiment.tables(50, &[Verdict::Slower]), 50);
}

#[test]
fn the_floor_decides_whether_a_small_change_counts() {
    let small = Experiment { noise: Some(0.001), factors: &[0.99], ..Experiment::default() };
    assert_eq!(small.tables(20, &[Verdict::Slower, Verdict::Faster]), 0);
    let found = Experiment { floor: 0.005, ..small }.tables(20, &[Verdict::Slower]);
    assert!(found >= 17, "{found} of 20 tables");
}

/// With the noise of real pairs. What it says could be found is found.
#[test]
fn what_is_detectable_is_found() {
    let unchanged = Experiment { noise: None, rounds: 40, ..Experiment::default() };
    let found = unchanged.tables(50, &[Verdict::Slower, Verdict::Faster]);
    assert!(found <= FEW / 2, "{found} of 50 tables");
    let factor = 1.0 - unchanged.detectable(20);
    let changed = Experiment { factors: &[factor], ..unchanged };
    let found = changed.tables(50, &[Verdict::Slower]);
    assert!((40..=50).contains(&found), "{factor}: {found} of 50 tables");
}

const SMOLTCP: &str = "-n smoltcp -m reader";

/// The same runs of both sides, with those of a reference that shows that the machine did not change.
fn on_a_steady_machine(old: &[Sample], new: &[Sample]) -> Comparison {
    let with = |samples: &[Sample]| [samples, &vec![run("--layer loopback -m reader", 10.0); 10]].concat();
    let mut comparison = Comparison::of(&with(old), &with(new), 0.02).unwrap();
    comparison.cells.retain(|cell| !cell.cell.subject().is_reference());
    comparison
}

/// The verdict on a cell with these runs before and after; `None` is one that failed.
fn verdict(old: &[Option<f64>], new: &[Option<f64>]) -> Verdict {
    let cell = cell(SMOLTCP);
    let samples = |runs: &[Option<f64>]| -> Vec<Sample> {
        let one = |run: &Option<f64>| match run {
            Some(gbps) => sample(&cell, *gbps),
            None => failed(&cell, Status::Stalled),
        };
        runs.iter().map(one).collect()
    };
    on_a_steady_machine(&samples(old), &samples(new)).cells[0].verdict
}

/// Two files were made at two times. What the machine did meanwhile is seen by the references alone.
#[test]
fn two_files_have_a_verdict_only_beyond_what_their_references_changed() {
    let [path, loopback, kernel] = [SMOLTCP, "--layer loopback -m reader", "-n kernel -m reader"].map(cell);
    let runs = |cell: &Cell, usual: f64| -> Vec<Sample> {
        (0..10).map(|run| sample(cell, usual * (1.0 + f64::from(run) / 1000.0))).collect()
    };
    let compared = |references: &[(&Cell, f64)], speed: f64| {
        let with = |speed, of: &dyn Fn(f64) -> f64| {
            let references = references.iter().flat_map(|(cell, factor)| runs(cell, 10.0 * of(*factor)));
            references.chain(runs(&path, speed)).collect::<Vec<_>>()
        };
        let comparison = Comparison::of(&with(1.0, &|_| 1.0), &with(speed, &|factor| factor), 0.02).unwrap();
        let verdict = comparison.cells.iter().find(|row| row.cell == path).unwrap().verdict;
        (verdict, comparison.worse(), comparison.answers().is_ok())
    };
    assert_eq!(compared(&[], 0.5), (Verdict::NoReference, 0, false));
    assert_eq!(compared(&[(&loopback, 1.0)], 0.5), (Verdict::Slower, 1, true));
    assert_eq!(compared(&[(&loopback, 1.0)], 2.0), (Verdict::Faster, 0, true));
    // The machine is slower, and so is all that it runs.
    assert_eq!(compared(&[(&loopback, 0.5)], 0.5), (Verdict::Inconclusive, 0, true));
    assert_eq!(compared(&[(&loopback, 1.0), (&kernel, 0.5)], 0.5), (Verdict::Inconclusive, 0, true));
    assert_eq!(compared(&[(&loopback, 2.0)], 2.0), (Verdict::Inconclusive, 0, true));
    assert_eq!(compared(&[(&loopback, 0.9)], 0.5), (Verdict::Slower, 1, true));
    // A faster machine does not make a slower program.
    assert_eq!(compared(&[(&loopback, 2.0)], 1.0), (Verdict::Inconclusive, 0, true));
}

/// Their requests a second are the rate on both sides.
#[test]
fn cells_with_a_rate_are_slower_if_their_latency_is_higher() {
    let cells = ["lwip", "smoltcp", "ipstack"].map(|stack| cell(&format!("-n {stack} -m rr --rate 1000")));
    let runs = |usual_us: [f64; 3], seed| -> Vec<Sample> {
        let mut machine = Machine::new(seed, 0.02);
        let rounds = (1..=10).flat_map(|round| cells.iter().zip(usual_us).map(move |of| (round, of)));
        rounds.map(|(round, (cell, usual))| in_round(answering(cell, machine.rate(usual)), round)).collect()
    };
    let (old, new) = (runs([100.0, 100.0, 100.0], 1), runs([150.0, 60.0, 100.0], 2));
    for comparison in [on_a_steady_machine(&old, &new), Comparison::within_rounds(&old, &new, 0.02).unwrap()] {
        let of = |stack: StackKind| comparison.cells.iter().find(|row| row.cell.stack() == Some(stack)).unwrap();
        assert_eq!(of(StackKind::Lwip).verdict, Verdict::Slower, "{comparison:?}");
        assert_eq!(of(StackKind::Smoltcp).verdict, Verdict::Faster, "{comparison:?}");
        assert_eq!(of(StackKind::Ipstack).verdict, Verdict::Inconclusive, "{comparison:?}");
        assert_eq!(comparison.worse(), 1);
        // The change is of the latency itself.
        assert!(of(StackKind::Lwip).change.unwrap().ratio.low > 1.3);
    }
}

#[test]
fn failures_are_judged_by_their_share() {
    let good: Vec<_> = (0..10).map(|run| Some(10.0 + f64::from(run) / 10.0)).collect();
    let flaky = |failures| [vec![None; failures], good[failures..].to_vec()].concat();
    // Three of ten may be chance, but four are not.
    for (failures, expected) in
        [(0, Verdict::Inconclusive), (1, Verdict::Inconclusive), (3, Verdict::Inconclusive), (4, Verdict::Broken)]
    {
        assert_eq!(verdict(&good, &flaky(failures)), expected, "{failures}");
        let expected = if expected == Verdict::Broken { Verdict::Recovered } else { expected };
        assert_eq!(verdict(&flaky(failures), &good), expected, "{failures}, the other way round");
    }
    assert_eq!(verdict(&flaky(4), &flaky(4)), Verdict::Inconclusive);
    assert_eq!(verdict(&flaky(4), &flaky(7)), Verdict::Inconclusive);
    assert_eq!(verdict(&flaky(1), &[None; 5]), Verdict::Broken);
    assert_eq!(verdict(&[None; 5], &good), Verdict::Recovered);
    assert_eq!(verdict(&[None; 5], &[None; 2]), Verdict::Failing);
}

#[test]
fn one_or_two_failed_runs_are_too_few_to_call_a_cell_broken() {
    let good = [10.0, 10.1, 10.2, 10.3, 10.4].map(Some);
    for runs in [1, 2] {
        assert_eq!(verdict(&good[..runs], &vec![None; runs]), Verdict::TooFewRuns, "{runs}");
        assert_eq!(verdict(&vec![None; runs], &good[..runs]), Verdict::TooFewRuns, "{runs}");
    }
    assert_eq!(verdict(&good, &[None]), Verdict::TooFewRuns);
    assert_eq!(verdict(&good, &[None; 2]), Verdict::Broken);
    for runs in [3, 4, 5] {
        assert_eq!(verdict(&good[..runs], &vec![None; runs]), Verdict::Broken, "{runs}");
    }
}

/// The samples of two files in which the runs of the first cells fail in the new one.
fn breaking(cells: usize, runs: usize, broken: usize) -> [Vec<Sample>; 2] {
    let cells: Vec<_> = (1..=cells).map(|streams| cell(&format!("{SMOLTCP} --parallel {streams}"))).collect();
    let rate = |run| 10.0 + f64::from(run) / 10.0;
    let runs = || 0..u32::try_from(runs).unwrap();
    let good = |cell| runs().map(move |run| sample(cell, rate(run)));
    let new = cells.iter().enumerate().flat_map(|(index, cell)| {
        let fails = index < broken;
        runs().map(move |run| if fails { failed(cell, Status::Reset) } else { sample(cell, rate(run)) })
    });
    [cells.iter().flat_map(good).collect(), new.collect()]
}

#[test]
fn every_cell_of_which_all_runs_fail_is_broken_however_many_there_are() {
    for runs in [3, 5, 10] {
        for broken in [1, 2, 12, 23, 24] {
            let [old, new] = breaking(24, runs, broken);
            let comparison = on_a_steady_machine(&old, &new);
            assert_eq!(comparison.count(Verdict::Broken), broken, "{runs} runs");
            let comparison = on_a_steady_machine(&new, &old);
            assert_eq!(comparison.count(Verdict::Recovered), broken, "{runs} runs");
        }
    }
}

#[test]
fn a_slower_cell_is_slower_even_if_fewer_runs_fail() {
    let rates = |usual: f64| (0..10).map(move |run| Some(usual + f64::from(run) / 10.0));
    let flaky: Vec<_> = [None; 8].into_iter().chain(rates(10.0)).collect();
    assert_eq!(verdict(&flaky, &rates(5.0).collect::<Vec<_>>()), Verdict::Slower);
    assert_eq!(verdict(&flaky, &rates(20.0).collect::<Vec<_>>()), Verdict::Recovered);
}

#[test]
fn a_cell_that_a_system_cannot_run_is_not_broken() {
    let cell = cell(SMOLTCP);
    let good = [10.0, 10.1, 9.9, 10.2].map(|rate| sample(&cell, rate));
    let missing = [(); 4].map(|()| failed(&cell, Status::Unavailable));
    for (old, new) in [(&good, &missing), (&missing, &good), (&missing, &missing)] {
        let comparison = Comparison::of(old, new, 0.02).unwrap();
        assert_eq!(comparison.cells[0].verdict, Verdict::NotRun);
        assert_eq!(comparison.worse(), 0);
        assert_eq!(comparison.answers(), Err(CompareError::NotRun));
    }
    // The runs that could start are compared.
    let comparison = on_a_steady_machine(&good, &[&good[..], &missing].concat());
    assert_eq!(comparison.cells[0].verdict, Verdict::Inconclusive);
    let side = comparison.cells[0].new.as_ref().unwrap();
    assert_eq!((side.runs(), side.failed()), (4, 0));
}

#[test]
fn cells_that_all_fail_or_could_not_run_are_no_success() {
    let [first, second] = [SMOLTCP, "-n smoltcp -m writer"].map(cell);
    let failing = vec![failed(&first, Status::Stalled); 10];
    let missing = vec![failed(&second, Status::Unavailable); 10];
    let good: Vec<_> = (0..10).map(|run| sample(&second, 10.0 + f64::from(run))).collect();
    let answers = |old: &[Sample], new: &[Sample]| on_a_steady_machine(old, new).answers();
    assert_eq!(answers(&failing, &failing), Err(CompareError::NoGoodRun));
    let partly = [&failing[..], &missing].concat();
    assert_eq!(answers(&partly, &partly), Err(CompareError::NoGoodRun));
    assert_eq!(answers(&partly, &[&failing[..], &good].concat()), Err(CompareError::NoGoodRun));
    assert_eq!(answers(&missing, &good), Err(CompareError::NotRun));
    // A cell that is compared is an answer, and so is one that recovered.
    let fine = [&failing[..], &good].concat();
    assert_eq!(answers(&fine, &fine), Ok(()));
    let first_good: Vec<_> = (0..10).map(|run| sample(&first, 10.0 + f64::from(run))).collect();
    assert_eq!(answers(&failing, &first_good), Ok(()));
}

#[test]
fn runs_are_paired_by_cell_and_round() {
    let cell = cell(SMOLTCP);
    let runs = |rate: fn(u32) -> f64| -> Vec<Sample> {
        (1..=8).map(|round| in_round(sample(&cell, rate(round)), round)).collect()
    };
    // Each round is twice as fast as the one before.
    let old = runs(|round| f64::from(1 << round));
    let mut new = runs(|round| f64::from(1 << round) * 0.9);
    new.reverse();
    let comparison = Comparison::within_rounds(&old, &new, 0.02).unwrap();
    let ratio = comparison.cells[0].change.unwrap().ratio;
    assert!([ratio.low, ratio.median, ratio.high].iter().all(|ratio| (ratio - 0.9).abs() < 1e-6), "{ratio:?}");
    assert_eq!(comparison.cells[0].verdict, Verdict::Slower);
    assert_eq!(on_a_steady_machine(&old, &new).cells[0].verdict, Verdict::Inconclusive);

    // A round in which a run failed is left out. A verdict needs at least six rounds.
    new[0] = in_round(failed(&cell, Status::Reset), 8);
    new[1] = in_round(failed(&cell, Status::Reset), 7);
    let comparison = Comparison::within_rounds(&old, &new, 0.02).unwrap();
    assert_eq!(comparison.cells[0].verdict, Verdict::Slower);
    assert_eq!(comparison.cells[0].new.as_ref().unwrap().failed(), 2);
    let comparison = Comparison::within_rounds(&old[1..], &new, 0.02).unwrap();
    assert_eq!(comparison.cells[0].verdict, Verdict::TooFewRuns);
    assert_eq!(comparison.runs_needed(), 6);
    let few = CompareError::TooFewRuns { runs: 6, cells: 1, needed: 6 };
    let advice = "6 a side, but a comparison of 1 cell needs 6; measure both with --runs 6";
    assert!(few.to_string().contains(advice), "{few}");
    assert_eq!(comparison.answers(), Err(few));

    // Runs without a common round are not compared.
    let other = runs(f64::from).into_iter().map(|run| in_round(run, 9)).collect::<Vec<_>>();
    let comparison = Comparison::within_rounds(&old, &other, 0.02).unwrap();
    assert_eq!(comparison.cells[0].change, None);
    assert_eq!(comparison.answers(), Err(CompareError::NoGoodRun));
}

#[test]
fn a_verdict_needs_enough_runs_for_the_number_of_cells() {
    assert_eq!(verdict(&[Some(1.0); 3], &[Some(9.0); 3]), Verdict::TooFewRuns);
    let [low, high] = [1.0, 9.0].map(|rate| [0.0, 0.1, 0.2, 0.3, 0.4].map(|more| Some(rate + more)));
    assert_eq!(verdict(&low, &high), Verdict::Faster);
    // With one run less, or with many cells, both need more runs.
    let [low, high] = [low, high].map(|runs| [runs[0], runs[1], runs[2], runs[3]]);
    let cells = [SMOLTCP, "-n smoltcp -m writer"].map(cell);
    let samples = |rates: [Option<f64>; 4]| -> Vec<Sample> {
        cells.iter().flat_map(|cell| rates.map(|rate| sample(cell, rate.unwrap()))).collect()
    };
    let comparison = on_a_steady_machine(&samples(low), &samples(high));
    assert_eq!(comparison.count(Verdict::TooFewRuns), 2);
    assert_eq!(comparison.runs_needed(), FEWEST_RUNS);
}

#[test]
fn without_a_common_cell_the_error_names_the_nearest() {
    let row = ROWS[9];
    for (old, new, text) in [
        (
            SMOLTCP,
            ["-n smoltcp -m reader --mtu 9000 --parallel 4", "-n smoltcp -m reader --window 1MiB"],
            "of \"smoltcp download multi-thread MTU 1500\" window_bytes is 4194304 in the old file and 1048576 in the new one",
        ),
        (
            row,
            [&*format!("{row} --mtu 9000"), SMOLTCP],
            "of \"sync, offload on, direct\" mtu is 1500 in the old file and 9000 in the new one",
        ),
    ] {
        let error = Comparison::of(&[run(old, 1.0)], &new.map(|words| run(words, 1.0)), 0.02).unwrap_err().to_string();
        assert!(error.contains(&format!("{text};")), "{error}");
    }
}

/// The second machine's rounds have the numbers of the first one's.
#[test]
fn rounds_of_two_machines_are_told_apart() {
    let cell = cell(SMOLTCP);
    let runs = |cpu: &str, speed: f64| -> Vec<Sample> {
        let run = |round| {
            let mut run = in_round(sample(&cell, speed), round);
            let mut environment = Environment::clone(&run.environment);
            environment.machine.cpu = Some(cpu.to_owned());
            run.environment = Arc::new(environment);
            run
        };
        (1..=6).map(run).collect()
    };
    let [old, new] = [1.0, 0.5].map(|factor| [runs("slow", factor), runs("fast", 8.0 * factor)].concat());
    let change = Comparison::within_rounds(&old, &new, 0.02).unwrap().cells[0].change.unwrap();
    let six = Comparison::within_rounds(&old[..6], &new[..6], 0.02).unwrap().cells[0].change.unwrap();
    assert!(change.p_value < six.p_value && (change.ratio.median - 0.5).abs() < 1e-9, "{change:?}");
}
