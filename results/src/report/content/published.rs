//! Forwarders in the form of the published table.

use forwarders::{ForwardConfig, Handoff, Io, Offload};

use crate::cell::{Cell, Forwarder, ForwarderName, ROWS};
use crate::measure::metric::METRICS;
use crate::plural;
use crate::report::axis;
use crate::report::format::{self, UNKNOWN};
use crate::report::model::{Column, Table};
use crate::report::series::Series;

/// The columns after the throughput, each with its metric: the published ones, and `Reord.`, which is new.
const FIGURES: [(&str, &str); 6] = [
    ("Retr", "retransmits"),
    ("CPU Avg", "cpu_percent"),
    ("CPU Max", "max_cpu_percent"),
    ("Mem Avg", "rss_bytes"),
    ("Mem Max", "max_rss_bytes"),
    ("Reord.", "reordered"),
];

pub(super) const KEY: &str = "Median Gbps, and its 95 % interval where there are several runs; median \
    retransmissions and reordered packets; CPU in percent of one processor and memory in MB, 10⁶ bytes, both of the \
    forwarder: the median of the averages, and the most of any second.";

const YES: &str = "✅";
const NO: &str = "❌";

pub(super) fn table(one: &Series) -> Table {
    let mut table = Table::new(format!("Table of {}", one.label));
    names(&axis::cells(&one.summary.cells), &mut table);
    let rows = &one.summary.cells;
    table.push(Column::new("Gbps", true), rows.iter().map(format::median_or_failures));
    for (title, name) in FIGURES {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        table.push(Column::new(title, true), rows.iter().map(|row| format::figure(row, metric?)));
    }
    table
}

pub(in crate::report) fn list() -> Table {
    let mut table = Table::new("Rows");
    table.push(Column::new("row", true), (1..=ROWS.len()).map(|row| row.to_string()));
    table.push(Column::new("forwarder", false), Forwarder::rows().iter().map(ToString::to_string));
    table
}

/// The columns that name a forwarder and its load: the published ones, and the settings that differ.
pub(super) fn names(cells: &[&Cell], table: &mut Table) {
    let mut push = |title, is_number, value: &dyn Fn(&Cell, Forwarder) -> String| {
        let values = cells.iter().filter_map(|cell| Some(value(cell, cell.forwarder()?)));
        table.push(Column::property(title, is_number), values);
    };
    let row = |forwarder: Forwarder| forwarder.row().map_or_else(|| UNKNOWN.to_owned(), |row| row.to_string());
    push("#", true, &|_, forwarder| row(forwarder));
    push("Mode", false, &|_, forwarder| mode(forwarder));
    push("Offload", false, &|_, forwarder| match forwarder.config.offload {
        Offload::Off => NO.to_owned(),
        Offload::On => YES.to_owned(),
        Offload::Whole => Offload::Whole.name().to_owned(),
    });
    push("Channel", false, &|_, forwarder| if forwarder.config.hop == Handoff::Direct { NO } else { YES }.to_owned());
    for axis in axis::differing(cells).into_iter().filter(|axis| cells.iter().all(|cell| axis.is_work_of(cell))) {
        // The column "Mode" is the forwarder's.
        let title = if axis.name == "mode" { "client" } else { axis.title };
        push(title, axis.is_number, &|cell, _| axis.text(cell));
    }
}

/// The published name of a forwarder, without offload and channel, which have columns of their own.
fn mode(forwarder: Forwarder) -> String {
    let ForwardConfig { hop, workers, threads, .. } = forwarder.config;
    let io = match forwarder.io() {
        Some(Io::Sync) => "Sync",
        Some(Io::Async) => "Async",
        Some(Io::Framed) => "AsyncFramed",
        Some(Io::Uring) => "Uring",
        None => "Golang",
    };
    let concurrent = match workers.get() {
        1 => String::new(),
        2 => " (Concurrent)".to_owned(),
        workers => format!(" ({workers} Concurrent)"),
    };
    let pool = if hop == Handoff::Pool { " + BytesPool" } else { "" };
    let threads = threads.map(|threads| format!(", {}", plural(threads, "thread")));
    format!("{io}{concurrent}{pool}{}", threads.unwrap_or_default())
}

pub(super) fn name(forwarder: Forwarder) -> String {
    let offload = match forwarder.config.offload {
        Offload::Off => "",
        Offload::On => ", offload",
        Offload::Whole => ", whole",
    };
    let channel = if forwarder.config.hop == Handoff::Channel { ", channel" } else { "" };
    format!("{}{offload}{channel}", mode(forwarder))
}

pub(super) const fn kind(forwarder: Forwarder) -> &'static str {
    match (forwarder.program, forwarder.config.offload) {
        (ForwarderName::Go, _) => "Golang",
        (ForwarderName::Rust, Offload::Off) => "Rust",
        (ForwarderName::Rust, Offload::On) => "Rust, offload",
        (ForwarderName::Rust, Offload::Whole) => "Rust, whole",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_listed_by_its_number_and_its_name() {
        let list = list();
        assert_eq!(list.rows.len(), ROWS.len());
        let expected = ["10", "sync, offload on, direct"].map(Into::into);
        assert_eq!(list.rows.get(9).map(|row| &row[..]), Some(&expected[..]));
    }

    #[test]
    fn every_published_figure_is_a_metric() {
        for (title, name) in FIGURES {
            assert!(METRICS.iter().any(|metric| metric.name == name), "{title}");
        }
    }
}
