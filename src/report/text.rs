//! One line for a script, and what belongs to it for a person.

mod forward;
mod stack;

use std::io::{self, Write};
use std::time::Duration;

use bytesize::ByteSize;

use super::format;
use crate::plan::Verify;
use crate::sample::{Cell, Interval, Sample, gbps};

/// Writes the line to `out` where the run succeeded, and everything else to `err`.
///
/// # Errors
///
/// That of `out`; what `err` does not take is lost.
pub fn text(sample: &Sample, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
    if sample.is_ok() {
        let name = match &sample.cell {
            Cell::Stack(cell) => stack::name(cell),
            Cell::Forward(cell) => forward::name(cell),
        };
        writeln!(out, "{name} throughput: {:.3} Gbps", sample.gbps())?;
    }
    out.flush()?;
    // Nobody may be reading the rest. The figure is out.
    let _unread = details(sample, err).and_then(|()| warnings(sample, err));
    Ok(())
}

fn warnings(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    sample.warnings().iter().try_for_each(|warning| writeln!(err, "warning: {warning}"))
}

fn details(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    match &sample.cell {
        Cell::Stack(cell) => stack::details(cell, sample, err),
        Cell::Forward(cell) => forward::details(cell, sample, err),
    }
}

/// How much of what was delivered is known to be right.
fn verified(sample: &Sample) -> &'static str {
    match sample.facts.verified {
        _ if !sample.is_ok() => "",
        Verify::Sample => ", the warm-up verified",
        Verify::Full => ", all verified",
        Verify::Off => ", only counted",
    }
}

/// What the kernel says of the client's connection.
fn connection(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let Some(tcp) = &sample.facts.tcp else { return Ok(()) };
    let time = |time_us: Option<u64>| time_us.map_or_else(|| "unknown".to_owned(), microseconds);
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| ByteSize(bytes).to_string());
    writeln!(
        err,
        "tcp:       round trip {}, at least {}; window {} out, {} in, congestion window {}",
        time(tcp.rtt_us),
        time(tcp.min_rtt_us),
        size(tcp.send_window_bytes),
        size(tcp.receive_window_bytes),
        size(tcp.congestion_window_bytes)
    )
}

/// The parts of the timed window, where they were asked for.
fn intervals(sample: &Sample, err: &mut impl Write) -> io::Result<()> {
    let mut begin = Duration::ZERO;
    for part in &sample.facts.intervals {
        let (from, to) = (begin.as_secs_f64(), part.end.as_secs_f64());
        // In this unit, as the word for it is kept for the one line of standard output.
        let gbit_s = gbps(part.bytes, part.end.saturating_sub(begin));
        writeln!(err, "interval:  {from:.2}–{to:.2} s  {gbit_s:.2} Gbit/s{}", load(part))?;
        begin = part.end;
    }
    Ok(())
}

/// What the forwarder took in an interval, as far as that is known.
fn load(part: &Interval) -> String {
    let cpu = part.cpu_seconds.map(|seconds| format!(", {seconds:.3} CPU seconds"));
    let memory = part.rss_bytes.map(|bytes| format!(", {} MB", format::megabytes(bytes as f64)));
    [cpu, memory].into_iter().flatten().collect()
}

/// A time in the unit in which it is read.
fn microseconds(time_us: u64) -> String {
    if time_us < 1000 { format!("{time_us} µs") } else { format!("{:.2} ms", time_us as f64 / 1000.0) }
}

fn binary(bytes: usize) -> String {
    ByteSize(bytes as u64).to_string()
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "unknown".to_owned(), |seconds| format!("{seconds:.3}"))
}

fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::sync::Arc;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::plan::Scenario;
    use crate::sample::{CpuTime, DeviceFacts, Environment, Facts, Interval, Packets, StackCell, Status, TcpFacts};

    fn printed(arguments: &str, change: fn(&mut Facts)) -> String {
        let cli = Cli::try_parse_from(format!("x {arguments}").split_whitespace()).unwrap();
        let scenario = Scenario::try_from(cli.run).unwrap();
        let mut facts = Facts {
            status: Status::Ok,
            bytes: 1_000_000_000,
            elapsed: Duration::from_secs(1),
            verified: Verify::Full,
            cpu: CpuTime { client_seconds: Some(0.25), stack_seconds: Some(0.75), ..CpuTime::default() },
            packets: Packets { rx: 700, rx_bytes: 28_000, tx: 15_900, tx_bytes: 1_000_636_000 },
            retransmits: Some(0),
            device: Some(DeviceFacts { name: "lo".to_owned(), mtu: 65_536, offload: true, tx_queue_len: None }),
            ..Facts::failed(Status::Ok, "")
        };
        change(&mut facts);
        let environment = Arc::new(Environment::detect());
        let mut err = Vec::new();
        details(&Sample { cell: StackCell::of(&scenario, true).into(), facts, environment }, &mut err).unwrap();
        String::from_utf8(err).unwrap()
    }

    #[test]
    fn the_kernel_against_itself() {
        insta::assert_snapshot!(printed("--layer loopback -m reader --parallel 2", |facts| {
            facts.congestion = Some("cubic".to_owned());
            facts.tcp = Some(TcpFacts {
                rtt_us: Some(12_345),
                min_rtt_us: Some(67),
                congestion_window_bytes: Some(4 << 20),
                send_window_bytes: Some(65_536),
                receive_window_bytes: None,
            });
        }));
    }

    #[test]
    fn the_device_alone_and_what_arrived_when() {
        insta::assert_snapshot!(printed("--layer device", |facts| {
            facts.device_drops = Some(0);
            facts.intervals = [(502_000, 100_000_000), (1_000_000, 1_500_000_000), (1_004_000, 0)]
                .map(|(end_us, bytes)| Interval { end: Duration::from_micros(end_us), bytes, ..Interval::default() })
                .to_vec();
        }));
    }

    #[test]
    #[cfg(feature = "smoltcp")]
    fn a_stack_alone() {
        insta::assert_snapshot!(printed("--layer stack -m reader -n smoltcp", |facts| facts.retransmits = None));
    }

    #[test]
    fn the_word_that_scripts_look_for_is_kept_for_the_figure() {
        let text = printed("--layer device", |facts| {
            facts.intervals = vec![Interval { end: Duration::from_secs(1), bytes: 1, ..Interval::default() }];
        });
        assert!(text.contains("Gbit/s") && !text.contains("Gbps"), "{text}");
    }
}
