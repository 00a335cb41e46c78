//! A run of a forwarder.

use std::io::{self, Write};

use super::{connection, count, intervals, plural, seconds, verified};
use crate::plan::{Direction, Generator};
use crate::report::format;
use crate::sample::{ForwardCell, Load, Sample, gbps};

/// What it is called in the line for a script.
pub(super) fn name(cell: &ForwardCell) -> String {
    format!("forwarder: {};", cell.forwarder)
}

pub(super) fn details(cell: &ForwardCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    if let Some(device) = &facts.device {
        let queue = device.tx_queue_len.map(|len| format!(", queue of {len} packets")).unwrap_or_default();
        let offload = if device.offload { "on" } else { "off" };
        writeln!(err, "devices:   {}, MTU {}, offload {offload}{queue}", device.name, device.mtu)?;
    }
    let row = cell.forwarder.row().map(|row| format!(" (row {row} of the table)"));
    writeln!(err, "way:       {}{}", cell.forwarder, row.unwrap_or_default())?;
    load(cell, sample, err)?;
    let (bytes, time, verified) = (facts.bytes, facts.elapsed.as_secs_f64(), verified(sample));
    writeln!(err, "delivered: {bytes} bytes in {time:.6} s{verified}")?;
    both_ways(sample, err)?;
    cost(sample, err)?;
    packets(cell, sample, err)?;
    intervals(sample, err)
}

/// Who makes the load, and what the kernel says of its connection.
fn load(cell: &ForwardCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let streams = plural(cell.parallel.into(), "stream");
    let streams = match cell.direction {
        Direction::Forward => format!("{streams} forward"),
        Direction::Reverse => format!("{streams} in reverse"),
        Direction::Bidir => format!("{streams} each way"),
    };
    let generator = match cell.generator {
        Generator::Own => "this program",
        Generator::Iperf3 => "iperf3",
    };
    let version = if cell.ipv6 { ", IPv6" } else { "" };
    let congestion = sample.facts.congestion.as_deref().unwrap_or("unknown");
    writeln!(err, "load:      {streams} by {generator}{version}, congestion control {congestion}")?;
    connection(sample, err)
}

/// The rate of each direction, where there were two. In this unit, as the word for it is kept for the one
/// line of standard output.
fn both_ways(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    let Some(back) = facts.bytes_back else { return Ok(()) };
    let [forward, reverse] = [facts.bytes.saturating_sub(back), back].map(|bytes| gbps(bytes, facts.elapsed));
    writeln!(err, "each way:  {forward:.3} Gbit/s forward, {reverse:.3} Gbit/s in reverse")
}

fn cost(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    let [forwarder, generator] = [facts.cpu.forwarder_seconds, facts.cpu.client_seconds].map(seconds);
    writeln!(err, "cost:      forwarder {forwarder}, load {generator} CPU seconds")?;
    let range = |load: Option<Load>, figure: fn(f64) -> String, unit: &str| {
        let text = |load: Load| format!("{} {unit}, at most {}", figure(load.average), figure(load.maximum));
        load.map_or_else(|| "unknown".to_owned(), text)
    };
    let busy = range(sample.cpu_percent(), format::load, "% of a processor");
    writeln!(err, "busy:      {busy}")?;
    let memory = range(sample.memory_bytes(), format::megabytes, "MB");
    let peak = facts.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), |bytes| format::megabytes(bytes as f64));
    writeln!(err, "memory:    {memory}, peak {peak}")
}

/// What the forwarder carried, and what went wrong.
fn packets(cell: &ForwardCell, sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let facts = &sample.facts;
    let way = if cell.direction == Direction::Bidir { "both ways" } else { "the way of the payload" };
    let each = sample.bytes_per_packet().map(|bytes| format!(", {bytes:.0} bytes each")).unwrap_or_default();
    writeln!(
        err,
        "packets:   {} read and {} written {way}{each}; {} reordered, {} retransmitted by the kernel, {} dropped",
        facts.packets.rx,
        facts.packets.tx,
        count(facts.reordered),
        count(facts.retransmits),
        count(facts.device_drops)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::measure::fixture;
    use crate::plan::{Forwarder, ROWS, Verify};
    use crate::report::text;
    use crate::sample::{CpuTime, DeviceFacts, Environment, Facts, Interval, Packets, Program, Status, TcpFacts};

    /// What is printed of a run of two seconds: on standard output, and on standard error.
    fn printed(forwarder: Forwarder, change: fn(&mut ForwardCell, &mut Facts)) -> String {
        let mut cell = fixture::forwarder(forwarder);
        let interval = |(end_ms, bytes, cpu, rss): (u64, u64, f64, u64)| Interval {
            end: Duration::from_millis(end_ms),
            bytes,
            cpu_seconds: Some(cpu),
            rss_bytes: Some(rss),
        };
        let mut facts = Facts {
            detail: None,
            congestion: Some("cubic".to_owned()),
            bytes: 3_000_000_000,
            elapsed: Duration::from_millis(2100),
            verified: Verify::Sample,
            cpu: CpuTime { client_seconds: Some(1.5), stack_seconds: None, forwarder_seconds: Some(1.85) },
            peak_rss_bytes: Some(7_200_000),
            packets: Packets { rx: 50_000, rx_bytes: 3_050_000_000, tx: 49_000, tx_bytes: 3_050_000_000 },
            retransmits: Some(3),
            reordered: Some(12),
            device_drops: Some(0),
            intervals: [
                (1000, 1_500_000_000, 0.87, 6_500_000),
                (2000, 1_400_000_000, 0.9, 7_100_000),
                (2100, 100_000_000, 0.08, 7_000_000),
            ]
            .map(interval)
            .to_vec(),
            device: Some(DeviceFacts {
                name: "tun11, tun22".to_owned(),
                mtu: 1500,
                offload: true,
                tx_queue_len: Some(500),
            }),
            ..Facts::failed(Status::Ok, "")
        };
        change(&mut cell, &mut facts);
        let machine = platform::Environment {
            system: "linux".to_owned(),
            architecture: "x86_64".to_owned(),
            kernel: None,
            cpu: None,
            cpus: None,
            governor: None,
            virtual_machine: None,
        };
        let environment = Arc::new(Environment { machine, program: Program::default() });
        let (mut out, mut err) = (Vec::new(), Vec::new());
        text(&Sample { cell: cell.into(), facts, environment }, &mut out, &mut err).unwrap();
        let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(!err.contains("Gbps"), "the word is kept for the figure: {err}");
        format!("{out}--- stderr\n{err}")
    }

    #[test]
    fn a_run_one_way() {
        insta::assert_snapshot!(printed(ROWS[9], |_, facts| {
            facts.tcp = Some(TcpFacts { rtt_us: Some(321), min_rtt_us: Some(42), ..TcpFacts::default() });
        }));
    }

    #[test]
    fn a_run_both_ways_by_iperf3() {
        insta::assert_snapshot!(printed(ROWS[16], |cell, facts| {
            (cell.direction, cell.generator) = (Direction::Bidir, Generator::Iperf3);
            (cell.parallel, cell.ipv6) = (4, true);
            facts.bytes_back = Some(1_000_000_000);
            (facts.verified, facts.reordered) = (Verify::Off, None);
        }));
    }

    #[test]
    fn a_run_that_failed_before_it_began() {
        insta::assert_snapshot!(printed(ROWS[11], |cell, facts| {
            cell.direction = Direction::Reverse;
            *facts = Facts::failed(Status::DeviceLost, "the forwarder ended");
        }));
    }
}
