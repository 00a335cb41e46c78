//! A line for each cell and series, for other programs: all figures unrounded, units in the names.

use std::io::{self, Write};

use csv::WriterBuilder;
use forwarders::ForwardConfig as Way;

use super::{Series, axis, format};
use crate::measure::CellSummary;
use crate::plan::{Forwarder, RuntimeKind};
use crate::sample::{Cell, Status};

/// Every way to fail; each has a column.
const FAILURES: [Status; 8] = [
    Status::Stalled,
    Status::Reset,
    Status::Short,
    Status::Corrupt,
    Status::Timeout,
    Status::Panicked,
    Status::DeviceLost,
    Status::Unavailable,
];

/// A column: its name, and what a cell has in it.
type Field = (&'static str, fn(&CellSummary) -> Option<String>);

/// Of both kinds, and of stacks alone.
const FIELDS: [Field; 27] = [
    ("layer", |row| Some(text(row.cell.stack()?.layer))),
    ("netstack", |row| row.cell.stack()?.netstack.map(text)),
    ("mode", |row| row.cell.stack()?.mode.map(text)),
    ("runtime", |row| Some(text(row.cell.stack()?.runtime))),
    ("worker_threads", |row| match row.cell.stack()?.runtime {
        RuntimeKind::MultiThread(workers) => workers.map(text),
        RuntimeKind::CurrentThread => None,
    }),
    ("offload", |row| match &row.cell {
        Cell::Stack(cell) => cell.offload.map(text),
        Cell::Forward(cell) => Some(text(cell.forwarder.offload().name())),
    }),
    ("mtu_bytes", |row| row.cell.mtu().map(text)),
    ("parallel", |row| Some(text(row.cell.parallel()))),
    ("ipv6", |row| Some(text(row.cell.ipv6()))),
    ("window_bytes", |row| row.cell.stack()?.window_bytes.map(text)),
    ("buffer_bytes", |row| Some(text(row.cell.buffer_bytes()))),
    ("runs", |row| Some(text(format::runs(row)))),
    ("runs_ok", |row| Some(text(row.gbps.len()))),
    ("median_gbps", |row| Some(text(row.estimate?.median))),
    ("low_gbps", |row| Some(text(row.estimate?.low))),
    ("high_gbps", |row| Some(text(row.estimate?.high))),
    ("outliers", |row| Some(text(row.outliers.len()))),
    ("client_cpu_seconds_per_gb", |row| row.client_cpu_per_gb.map(text)),
    ("stack_cpu_seconds_per_gb", |row| row.cell.stack().and(row.subject_cpu_per_gb).map(text)),
    ("peak_rss_bytes", |row| row.peak_rss_bytes.map(text)),
    ("retransmits", |row| row.retransmits.map(text)),
    ("device_drops", |row| row.device_drops.map(text)),
    ("packet_bytes", |row| row.bytes_per_packet.map(text)),
    ("of_fastest", |row| row.of_fastest.map(text)),
    ("of_other_mode", |row| row.of_other_mode.map(text)),
    ("detail", |row| row.detail.as_deref().map(plain)),
    ("warnings", |row| Some(plain(&row.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))),
];

/// What came later, and so stands after all others: of what kind a cell is, and what forwarders alone have.
const FORWARD_FIELDS: [Field; 16] = [
    ("kind", |row| Some(text(if row.cell.forward().is_some() { "forward" } else { "throughput" }))),
    ("forwarder", |row| match row.cell.forward()?.forwarder {
        Forwarder::Rust(_) => Some(text("rust")),
        Forwarder::Go { .. } => Some(text("go")),
    }),
    ("io", |row| Some(text(row.cell.forward()?.forwarder.io()?.name()))),
    ("hop", |row| Some(text(row.cell.forward()?.forwarder.hop().name()))),
    ("workers", |row| Some(text(way(row)?.workers))),
    ("threads", |row| way(row)?.threads.map(text)),
    ("direction", |row| row.cell.forward().map(|cell| text(axis::direction(cell.direction)))),
    ("generator", |row| row.cell.forward().map(|cell| text(axis::generator(cell.generator)))),
    ("queue_packets", |row| row.cell.forward().map(|cell| text(cell.queue_packets))),
    ("row", |row| row.cell.forward()?.forwarder.row().map(text)),
    ("forwarder_cpu_seconds_per_gb", |row| row.cell.forward().and(row.subject_cpu_per_gb).map(text)),
    ("cpu_percent", |row| row.cpu_percent.map(|load| text(load.average))),
    ("max_cpu_percent", |row| row.cpu_percent.map(|load| text(load.maximum))),
    ("rss_bytes", |row| row.memory_bytes.map(|load| text(load.average))),
    ("max_rss_bytes", |row| row.memory_bytes.map(|load| text(load.maximum))),
    ("reordered", |row| row.reordered.map(text)),
];

fn way(row: &CellSummary) -> Option<Way> {
    match row.cell.forward()?.forwarder {
        Forwarder::Rust(way) => Some(way),
        Forwarder::Go { .. } => None,
    }
}

/// Text of a file, on one line, and such that a spreadsheet does not take it for a formula.
fn plain(text: &str) -> String {
    let line = format::one_line(text);
    if line.starts_with(['=', '+', '-', '@']) { format!("'{line}") } else { line }
}

#[allow(clippy::needless_pass_by_value, reason = "values of options are mapped")]
fn text(value: impl ToString) -> String {
    value.to_string()
}

/// Writes the lines, after one with the names.
///
/// # Errors
///
/// The writer's own.
pub(super) fn csv(series: &[Series], out: &mut impl Write) -> io::Result<()> {
    let mut writer = WriterBuilder::new().from_writer(out);
    let names = ["series", "environment"].into_iter().map(ToOwned::to_owned);
    let fields = FIELDS.iter().map(|(name, _)| (*name).to_owned());
    let failures = FAILURES.iter().map(|status| format!("runs_{}", status.to_string().replace('-', "_")));
    let later = FORWARD_FIELDS.iter().map(|(name, _)| (*name).to_owned());
    writer.write_record(names.chain(fields).chain(failures).chain(later))?;
    for series in series {
        let id = series.environment.id();
        for row in &series.summary.cells {
            let mut values = vec![plain(&series.label), id.clone()];
            values.extend(FIELDS.iter().map(|(_, field)| field(row).unwrap_or_default()));
            values.extend(FAILURES.iter().map(|status| row.failures.get(status).unwrap_or(&0).to_string()));
            values.extend(FORWARD_FIELDS.iter().map(|(_, field)| field(row).unwrap_or_default()));
            writer.write_record(values)?;
        }
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_formula_and_one_line() {
        for (text, written) in [
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'=1"),
            ("\r\n =1\n+2", "'=1 +2"),
            ("it did\nnot\u{1b}[31m go on", "it did not [31m go on"),
            ("a = b", "a = b"),
            ("", ""),
        ] {
            assert_eq!(plain(text), written, "{text:?}");
        }
    }
}
