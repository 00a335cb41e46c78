#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "a test may panic, and its figures are exact")]

use std::sync::Arc;

use netstacks::StackKind;

use super::super::fixture::{cell, failed, sample};
use super::*;
use crate::sample::Packets;

fn smoltcp() -> Cell {
    cell(StackKind::Smoltcp, Mode::Reader)
}

fn samples(figures: &[f64]) -> Vec<Sample> {
    figures.iter().map(|gbps| sample(&smoltcp(), *gbps)).collect()
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
    let Estimate { median, low, high } = row.estimate.unwrap();
    assert_eq!(median, 10.0);
    assert!(9.9 < low && low < median && median < high && high < 10.1, "{low} {high}");
    assert!(row.outliers.is_empty() && warnings.is_empty(), "{warnings:?}");
}

#[test]
fn an_outlier_is_marked_and_kept() {
    let (row, warnings) = row(&samples(&[10.0, 10.1, 9.9, 5.0, 10.0, 10.1, 9.9, 10.0]));
    assert_eq!(row.outliers, [3]);
    assert_eq!(row.gbps.len(), 8);
    assert_eq!(warnings, ["one run lies far from the others; see what else the machine did"]);
}

#[test]
fn few_and_noisy_runs_are_told() {
    let (row, warnings) = row(&samples(&[10.0, 12.0, 8.0]));
    assert_eq!(row.estimate.unwrap().median, 10.0);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("3 runs say little"), "{warnings:?}");
    assert!(warnings[1].starts_with("the interval is "), "{warnings:?}");
}

#[test]
fn failed_runs_alone_have_no_figure_and_no_warning_of_figures() {
    let cell = smoltcp();
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
        sample.facts.retransmits = Some(count);
    }
    let (_, warnings) = row(&samples);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("in 3 of 6 runs: the kernel sent 7 segments again"), "{warnings:?}");
}

#[test]
fn offload_without_super_packets_is_told() {
    let mut samples = samples(&[10.0, 10.01, 9.99, 10.0, 10.01, 9.99]);
    for sample in &mut samples {
        sample.cell.offload = Some(true);
        sample.facts.packets = Packets { rx: 10, rx_bytes: 400, tx: 1000, tx_bytes: 1_500_000 };
    }
    let (_, warnings) = row(&samples);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("in 6 of 6 runs: offload is on, but packets have 1500 bytes"), "{warnings:?}");
    for sample in &mut samples {
        sample.facts.packets.tx_bytes = 2_000_000;
    }
    assert_eq!(row(&samples).1, [] as [&str; 0]);
}

#[test]
fn what_holds_of_the_machine_is_told_once_for_all_cells() {
    let mut samples = samples(&[10.0, 10.01, 9.99, 10.0, 10.01, 9.99]);
    samples.extend([10.0; 6].map(|gbps| sample(&cell(StackKind::Lwip, Mode::Reader), gbps)));
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
