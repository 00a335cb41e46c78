use std::sync::Arc;
use std::time::Duration;

use super::super::fixture::{answering, cell, failed, in_round, program, run, sample};
use super::*;
use crate::cell::{Mode, ROWS};
use crate::sample::{Interval, Packets};

const SMOLTCP: &str = "-n smoltcp -m reader";

fn samples(figures: &[f64]) -> Vec<Sample> {
    figures.iter().map(|gbps| run(SMOLTCP, *gbps)).collect()
}

/// The only row of a table, and its warnings as text.
fn row(samples: &[Sample]) -> (CellSummary, Vec<String>) {
    let mut summary = Summary::of(samples);
    assert_eq!(summary.cells.len(), 1);
    let row = summary.cells.remove(0);
    let warnings = row.warnings.iter().map(ToString::to_string).collect();
    (row, warnings)
}

#[test]
fn a_quiet_cell_has_an_interval_and_no_warning() {
    let (row, warnings) = row(&samples(&[10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.0, 10.01, 9.97]));
    let Estimate { median, low, high, .. } = row.estimate.unwrap();
    assert_eq!(median, 10.0);
    assert!(9.9 < low && low < median && median < high && high < 10.1, "{low} {high}");
    assert!(row.outliers.is_empty() && warnings.is_empty(), "{warnings:?}");
}

#[test]
fn an_outlier_is_marked_and_kept() {
    let (row, warnings) = row(&samples(&[10.0, 10.1, 9.9, 5.0, 10.0, 10.1, 9.9, 10.0]));
    assert_eq!(row.outliers, [3]);
    assert_eq!(row.speeds.len(), 8);
    assert_eq!(warnings, ["one run lies far from the others; check what else the machine did"]);
}

#[test]
fn few_and_noisy_runs_give_warnings() {
    let (row, warnings) = row(&samples(&[10.0, 12.0, 8.0]));
    assert_eq!(row.estimate.unwrap().median, 10.0);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("3 runs say little"), "{warnings:?}");
    assert!(warnings[1].starts_with("the range is the median ±20 %"), "{warnings:?}");
}

#[test]
fn failed_runs_alone_have_no_figure_and_no_warning_of_figures() {
    let cell = cell(SMOLTCP);
    let (row, warnings) = row(&[failed(&cell, Status::Stalled), failed(&cell, Status::Reset)]);
    assert_eq!(row.estimate, None);
    assert_eq!(row.failures, BTreeMap::from([(Status::Stalled, 1), (Status::Reset, 1)]));
    assert_eq!(row.detail.as_deref(), Some("it did not go on"));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_same_advice_is_given_once_with_the_median_and_the_number_of_runs() {
    let mut samples = samples(&[10.0, 10.01, 9.99, 10.0, 10.01, 9.99]);
    for (sample, count) in samples.iter_mut().zip([7, 5, 90]) {
        sample.measured.retransmits = Some(count);
    }
    let (_, warnings) = row(&samples);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("in 3 of 6 runs: the kernel retransmitted 7 segments"), "{warnings:?}");
}

#[test]
fn offload_without_super_packets_gives_a_warning() {
    let mut samples = samples(&[10.0, 10.01, 9.99, 10.0, 10.01, 9.99]);
    for sample in &mut samples {
        sample.cell = cell(&format!("{SMOLTCP} --offload on"));
        sample.measured.packets = Packets { rx: 10, rx_bytes: 400, tx: 1000, tx_bytes: 1_500_000 };
    }
    let (_, warnings) = row(&samples);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("in 6 of 6 runs: offload is on, but packets of 1500 bytes"), "{warnings:?}");
    for sample in &mut samples {
        sample.measured.packets.tx_bytes = 2_000_000;
    }
    assert_eq!(row(&samples).1, [] as [&str; 0]);
}

#[test]
fn a_warning_about_the_machine_is_given_once_for_all_cells() {
    let mut samples = samples(&[10.0, 10.01, 9.99, 10.0, 10.01, 9.99]);
    samples.extend([10.0; 6].map(|gbps| run("-n lwip -m reader", gbps)));
    for (index, sample) in samples.iter_mut().enumerate() {
        let environment = Arc::make_mut(&mut sample.environment);
        environment.machine.virtual_machine = Some(true);
        environment.machine.governor = Some(if index < 3 { "powersave" } else { "performance" }.to_owned());
    }
    let summary = Summary::of(&samples);
    assert!(summary.cells.iter().all(|row| row.warnings.is_empty()));
    let governor = Warning::Governor("powersave".to_owned());
    assert_eq!(summary.warnings, [Warning::InRuns(Box::new(governor), 3, 12), Warning::VirtualMachine]);
}

/// A run of row 12 with these loads: a processor's seconds in a second, and bytes resident, in each interval.
fn forwarded(parts: &[(f64, u64)]) -> Sample {
    let mut sample = run(ROWS[11], 10.0);
    let interval = |(end_s, (cpu, rss)): (u64, &(f64, u64))| Interval {
        end: Duration::from_secs(end_s),
        bytes: 0,
        cpu_seconds: Some(*cpu),
        rss_bytes: Some(*rss),
    };
    sample.measured.intervals = (1..).zip(parts).map(interval).collect();
    sample.measured.elapsed = Duration::from_secs(parts.len() as u64);
    sample.measured.cpu.subject_seconds = Some(parts.iter().map(|(cpu, _)| cpu).sum());
    sample
}

#[test]
fn loads_are_the_median_of_the_averages_and_the_largest_maximum() {
    let mut samples =
        [forwarded(&[(1.0, 5), (0.5, 7)]), forwarded(&[(0.5, 9), (0.5, 9)]), forwarded(&[(0.25, 1), (0.5, 2)])];
    for (sample, (sent_again, reordered)) in samples.iter_mut().zip([(7, 70), (5, 50), (90, 900)]) {
        (sample.measured.retransmits, sample.measured.reordered) = (Some(sent_again), Some(reordered));
    }
    let (row, warnings) = row(&samples);
    for (metric, expected) in [
        ("cpu_percent", 50.0),
        ("max_cpu_percent", 100.0),
        ("rss_bytes", 6.0),
        ("max_rss_bytes", 9.0),
        ("retransmits", 7.0),
        ("reordered", 70.0),
    ] {
        assert_eq!(row.figure(metric), Some(expected), "{metric}");
    }
    assert!(warnings[0].starts_with("in 3 of 3 runs: the kernel retransmitted 7 segments"), "{warnings:?}");
}

#[test]
fn forwarders_are_rivals_and_stacks_are_not_theirs() {
    let reverse = format!("{} -m reader", ROWS[17]);
    let samples = [run(ROWS[9], 10.0), run(ROWS[17], 20.0), run(&reverse, 40.0), run(SMOLTCP, 80.0)];
    let cells = Summary::of(&samples).cells;
    // Stacks are first, then the rows by their numbers.
    let of_fastest: Vec<_> = cells.iter().map(|row| row.figure("of_fastest")).collect();
    assert_eq!(of_fastest, [Some(1.0), Some(0.5), Some(1.0), Some(1.0)]);
    assert!(cells.iter().all(|row| row.figure("of_other_mode").is_none()));
}

/// Beside a tunnel, a proxy is no rival, and the kernel is none at all.
#[test]
fn programs_are_rivals_of_those_of_their_role() {
    let runs = [
        ("a", Some(Role::Proxy), 2.0),
        ("b", Some(Role::Proxy), 1.0),
        ("gotatun", None, 4.0),
        ("kernel", Some(Role::Route), 9.0),
    ];
    let summary = Summary::of(&runs.map(|(name, role, gbps)| program(name, role, gbps)));
    let of_fastest: Vec<_> = summary.cells.iter().map(|row| row.figure("of_fastest")).collect();
    assert_eq!(of_fastest, [Some(1.0), Some(0.5), Some(1.0), None]);
}

#[test]
fn the_fastest_with_a_rate_has_the_lowest_latency() {
    let [fast, slow] = ["lwip", "smoltcp"].map(|stack| cell(&format!("-n {stack} -m rr --rate 1000")));
    let summary = Summary::of(&[answering(&fast, 50.0), answering(&slow, 200.0)]);
    let of_fastest = summary.cells.iter().map(|row| row.figure("of_fastest").unwrap());
    assert_eq!(of_fastest.map(|share| (share * 100.0).round()).collect::<Vec<_>>(), [100.0, 25.0]);
}

/// Each round is twice as fast as the one before, and each cell has its runs in an order of its own.
#[test]
fn figures_are_compared_within_a_round() {
    let speeds = |factor: f64| (1..=6_u32).map(move |round| (round, factor * f64::from(1 << round)));
    let runs = |stack: &str, factor, is_reversed: bool| {
        let cell = cell(&format!("-n {stack} -m reader"));
        let mut runs: Vec<_> = speeds(factor).map(|(round, speed)| in_round(sample(&cell, speed), round)).collect();
        if is_reversed {
            runs.reverse();
        }
        CellSummary::of(&cell, &runs.iter().collect::<Vec<_>>())
    };
    let (one, other) = (runs("smoltcp", 1.0, false), runs("lwip", 1.05, true));
    assert_eq!(best(&[Some(&one), Some(&other)]), [false, true], "as far apart in each round");
}

/// The summary of runs of a stack with these rates, none with 0.
fn rated(stack: &str, rates: &[f64]) -> CellSummary {
    let cell = cell(&format!("-n {stack} -m reader"));
    let run = |(rate, round): (&f64, u32)| {
        in_round(if *rate > 0.0 { sample(&cell, *rate) } else { failed(&cell, Status::Stalled) }, round)
    };
    let runs: Vec<_> = rates.iter().zip(1..).map(run).collect();
    CellSummary::of(&cell, &runs.iter().collect::<Vec<_>>())
}

#[test]
fn the_best_are_those_within_a_tenth_that_a_test_does_not_tell_apart() {
    let scattered = |factor: f64| [9.0, 10.0, 9.6, 11.0, 10.4, 9.3].map(|rate| rate * factor);
    let lowered = scattered(0.97);
    let mut mixed = scattered(1.0);
    mixed.rotate_left(2);
    let (first, behind, tie, far) = (
        rated("lwip", &scattered(1.0)),
        rated("ipstack", &lowered),
        rated("smoltcp", &mixed),
        rated("tcp_ip", &[12.0, 5.0, 13.0, 5.0, 8.0, 8.0]),
    );
    let rows = |rows: &[&CellSummary]| best(&rows.iter().map(|row| Some(*row)).collect::<Vec<_>>());
    assert_eq!(rows(&[&first, &behind]), [true, false], "3 % less in each round");
    assert_eq!(rows(&[&first, &tie]), [true, true]);
    assert_eq!(rows(&[&first, &behind, &tie, &far]), [true, true, true, false], "a tenth is far enough by itself");
    let few = rated("ipstack", &lowered[..5]);
    assert_eq!(rows(&[&first, &few]), [false, false], "five runs");
    assert_eq!(rows(&[&first]), [false], "one row");
    assert_eq!(best(&[Some(&first), None]), [false, false], "one row, and one that is no rival");
}

/// A program that opens its connections itself is not limited by the SOCKS5 server, nor a tunnel, nor the work of another row.
#[test]
fn a_figure_within_a_tenth_of_its_upstreams_is_at_its_limit_and_not_bold() {
    let own = |upstream, gbps| {
        let mut run = program("mine", Some(Role::Proxy), gbps);
        run.measured.program.as_mut().unwrap().upstream = upstream;
        run
    };
    let of_ours = |name, gbps| program(name, None, gbps);
    let writer = |gbps| {
        let run = of_ours("tun2proxy", gbps);
        Sample { cell: Cell { mode: Some(Mode::Writer), ..run.cell.clone() }, ..run }
    };
    let limited = [of_ours("tun2proxy", 9.1), of_ours("tun2proxy", 20.0), own(Some(Upstream::Socks5), 9.1)];
    let others = [
        of_ours("tun2proxy", 8.9),
        own(Some(Upstream::Direct), 9.1),
        own(None, 9.1),
        of_ours("sing-box-gvisor-direct", 9.1),
        of_ours("gotatun", 9.1),
        of_ours("kernel", 9.1),
        writer(9.1),
    ];
    let limited = limited.into_iter().map(|run| (run, true));
    for (run, is_limited) in limited.chain(others.into_iter().map(|run| (run, false))) {
        let runs = [vec![run.clone(); 6], vec![of_ours("socks5", 10.0); 6], vec![of_ours("lwip", 1.0); 6]].concat();
        let cells = Summary::of(&runs).cells;
        let row = |name: &str| cells.iter().find(|row| row.cell.program().unwrap().as_str() == name);
        let [one, slow] = [run.cell.program().unwrap().as_str(), "lwip"].map(|name| row(name).unwrap());
        assert_eq!(one.is_at_upstream_limit(), is_limited, "{}", run.cell);
        assert_eq!(best(&[Some(one), Some(slow)]), [!is_limited, false], "{}", run.cell);
        assert!(!row("socks5").unwrap().is_at_upstream_limit() && !slow.is_at_upstream_limit());
    }
}

/// What survives is not a median of the subject.
#[test]
fn a_cell_that_failed_is_behind_all_that_never_did() {
    let (never, failing) = (rated("lwip", &[5.0; 6]), rated("smoltcp", &[50.0, 50.0, 0.0, 50.0, 50.0, 50.0, 50.0]));
    assert_eq!(best(&[Some(&never), Some(&failing)]), [true, false]);
    let samples =
        [samples(&[20.0, 20.0]), vec![failed(&cell(SMOLTCP), Status::Stalled), run("-n lwip -m reader", 10.0)]];
    let of_fastest =
        Summary::of(&samples.concat()).cells.iter().map(|row| row.figure("of_fastest")).collect::<Vec<_>>();
    assert_eq!(of_fastest, [Some(1.0), None]);
}
