//! Every sample of a series, as a table.

use crate::report::table::{Column, Sheet};
use crate::report::{Series, UNKNOWN, format};
use crate::sample::Sample;

/// A sample's column: its head, whether it holds numbers, and what a sample has in it.
type Fact = (&'static str, bool, fn(&Sample) -> Option<String>);

/// Of a stack.
const STACK_FACTS: [Fact; 15] = [
    ("round", true, |sample| sample.facts.round.map(|round| round.to_string())),
    ("cell", false, |sample| Some(sample.cell.to_string())),
    ("status", false, |sample| Some(sample.facts.status.to_string())),
    ("Gbps", true, |sample| sample.is_ok().then(|| format!("{:.3}", sample.gbps()))),
    ("seconds", true, |sample| Some(format!("{:.3}", sample.facts.elapsed.as_secs_f64()))),
    ("bytes", true, |sample| Some(sample.facts.bytes.to_string())),
    ("client CPU s", true, |sample| sample.facts.cpu.client_seconds.map(format::cost)),
    ("stack CPU s", true, |sample| sample.facts.cpu.stack_seconds.map(format::cost)),
    ("peak MiB", true, |sample| sample.facts.peak_rss_bytes.map(format::mebibytes)),
    ("retrans.", true, |sample| sample.facts.retransmits.map(|count| count.to_string())),
    ("drops", true, |sample| sample.facts.device_drops.map(|count| count.to_string())),
    ("packets in", true, |sample| Some(sample.facts.packets.rx.to_string())),
    ("packets out", true, |sample| Some(sample.facts.packets.tx.to_string())),
    ("bytes/packet", true, |sample| sample.bytes_per_packet().map(format::count)),
    ("detail", false, |sample| sample.facts.detail.as_deref().map(format::shortened)),
];

/// Of a forwarder.
const FORWARD_FACTS: [Fact; 20] = [
    STACK_FACTS[0],
    STACK_FACTS[1],
    STACK_FACTS[2],
    STACK_FACTS[3],
    STACK_FACTS[4],
    STACK_FACTS[5],
    ("bytes back", true, |sample| sample.facts.bytes_back.map(|bytes| bytes.to_string())),
    ("load CPU s", true, |sample| sample.facts.cpu.client_seconds.map(format::cost)),
    ("forwarder CPU s", true, |sample| sample.facts.cpu.forwarder_seconds.map(format::cost)),
    ("CPU avg %", true, |sample| sample.cpu_percent().map(|load| format::load(load.average))),
    ("CPU max %", true, |sample| sample.cpu_percent().map(|load| format::load(load.maximum))),
    ("mem. avg MB", true, |sample| sample.memory_bytes().map(|load| format::megabytes(load.average))),
    ("mem. max MB", true, |sample| sample.memory_bytes().map(|load| format::megabytes(load.maximum))),
    STACK_FACTS[9],
    ("reordered", true, |sample| sample.facts.reordered.map(|count| count.to_string())),
    STACK_FACTS[10],
    ("packets read", true, |sample| Some(sample.facts.packets.rx.to_string())),
    ("packets written", true, |sample| Some(sample.facts.packets.tx.to_string())),
    STACK_FACTS[13],
    STACK_FACTS[14],
];

/// A row for each sample of a series.
pub(super) fn sheet(series: &Series) -> Sheet {
    let facts: &[Fact] = if series.is_forward() { &FORWARD_FACTS } else { &STACK_FACTS };
    let value = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    Sheet {
        columns: facts.iter().map(|(title, is_number, _)| Column::new(*title, *is_number)).collect(),
        rows: series
            .samples
            .iter()
            .map(|sample| facts.iter().map(|(_, _, fact)| value(fact(sample))).collect())
            .collect(),
    }
}
