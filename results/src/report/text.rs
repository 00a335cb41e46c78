//! A single run: one line for a script, and below it four lines for a person, or all.

use std::io::{self, Write};

use bytesize::ByteSize;
use netstacks::{Effective, Workarounds};

use super::axis;
use super::format::with_sides;
use crate::cell::properties::{PROPERTIES, Property};
use crate::cell::{Layer, Verify};
use crate::measure::metric::METRICS;
use crate::sample::{CaptureFacts, IdleFacts, Interval, Sample, Warning, gbps};
use crate::{grouped_digits, plural};

/// Writes the line to `out` if the run succeeded, and everything else to `err`: four lines, or all of them.
pub fn text(sample: &Sample, is_verbose: bool, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
    if sample.is_ok() {
        let cell = &sample.cell;
        let name = match (cell.forwarder(), cell.mode) {
            (Some(forwarder), _) => format!("forwarder: {forwarder};"),
            (None, Some(mode)) => format!("client io mode: {mode},"),
            (None, None) => "client io mode: none,".to_owned(),
        };
        match (sample.requests_per_second(), &sample.measured.idle) {
            (Some(rate), _) => writeln!(out, "{name} transactions: {rate:.1} /s, {}", latencies(sample))?,
            (None, Some(idle)) => writeln!(out, "{name} {}", memory(sample, idle))?,
            (None, None) => writeln!(out, "{name} throughput: {:.3} Gbps{}", sample.gbps(), lost(sample))?,
        }
    }
    out.flush()?;
    // The figure is written. If nothing reads the details, that is no error.
    let _unread = details(sample, is_verbose, err);
    Ok(())
}

fn latencies(sample: &Sample) -> String {
    let is_main = |name| matches!(name, "latency_p50_us" | "latency_p99_us" | "latency_p999_us");
    let quantiles = METRICS.iter().filter(|metric| is_main(metric.name));
    let values = quantiles.map(|metric| {
        // A number of the line has no commas: scripts read it.
        let write = |value| metric.write_with_unit(value).replace(',', "");
        format!("{}: {}", metric.title, known(metric.of_run(sample), write))
    });
    format!("latency {}", values.collect::<Vec<_>>().join(", "))
}

/// The share of the datagrams that were lost.
fn lost(sample: &Sample) -> String {
    let share = sample.measured.datagrams.and_then(|datagrams| datagrams.lost_share());
    share.map(|share| format!(", lost: {:.3} %", share * 100.0)).unwrap_or_default()
}

fn memory(sample: &Sample, idle: &IdleFacts) -> String {
    let (unit, connections, after) = (sample.cell.workload().unit(), idle.connections, idle.release.as_secs_f64());
    let rest = idle.rest.last().map(|last| last.after).unwrap_or_default();
    let each = known(idle.bytes_per_connection(rest), |bytes| match idle.is_below(rest) {
        Some(true) => format!("under {bytes:.1} bytes"),
        _ => format!("{:.1} KiB", bytes / 1024.0),
    });
    let released = known(idle.released_share(), |share| format!("{:.0} %", share * 100.0));
    format!(
        "{unit}s: {connections}, memory: {each} each at rest for {} s, released: {released} after {after} s",
        rest.as_secs_f64()
    )
}

fn known<T>(value: Option<T>, write: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "unknown".to_owned(), write)
}

/// The lines that are always there.
const MAIN: usize = 4;

fn details(sample: &Sample, is_verbose: bool, err: &mut impl Write) -> io::Result<()> {
    let figures: Vec<_> = figures(sample).collect();
    // What the workload alone has is more important than the cost.
    let (own, usual): (Vec<_>, Vec<_>) =
        figures.into_iter().partition(|(name, _)| matches!(*name, "requests" | "datagrams" | "idle" | "outage"));
    let (cost, others): (Vec<_>, Vec<_>) = usual.into_iter().partition(|(name, _)| *name == "cost");
    let mut lines: Vec<(&str, String)> = vec![("subject", subject(sample)), ("conditions", conditions(sample))];
    lines.extend(each_way(sample).map(|rates| ("each way", rates)));
    lines.extend(own);
    lines.extend(ten_parts(sample).map(|parts| ("ten parts", parts)));
    lines.extend(cost);
    if is_verbose {
        lines.extend(settings(sample).map(|settings| ("settings", settings)));
        lines.extend(connection(sample).map(|connection| ("tcp", connection)));
        lines.push(("delivered", delivered(sample)));
        lines.extend(others);
    } else {
        lines.truncate(MAIN);
    }
    lines.extend(sample.measured.pcap.map(|pcap| ("pcap", captured(pcap))));
    lines.extend(intervals(sample).map(|interval| ("interval", interval)));
    let warnings = sample.warnings().into_iter().filter(|one| is_verbose || *one != Warning::VirtualMachine);
    lines.extend(warnings.map(|warning| ("warning", warning.to_string())));
    for (name, text) in lines {
        // Warnings are not aligned with the other lines.
        let width = if name == "warning" { 0 } else { 11 };
        writeln!(err, "{:<width$} {text}", format!("{name}:"))?;
    }
    Ok(())
}

/// What carried the load, and the load.
fn subject(sample: &Sample) -> String {
    let (cell, effective) = (&sample.cell, sample.measured.effective.as_ref());
    let version = |version: Option<&str>| version.map(|version| format!(" {version}")).unwrap_or_default();
    let mut words = vec![match (cell.forwarder(), cell.program(), cell.stack()) {
        (Some(forwarder), ..) => {
            let row = forwarder.row().map(|row| format!(" (row {row} of the table)")).unwrap_or_default();
            format!("{forwarder}{row}")
        }
        (None, Some(program), _) => {
            let facts = sample.measured.program.as_deref();
            format!("{program}{}", version(facts.and_then(|facts| facts.version.as_deref())))
        }
        (None, None, Some(stack)) => {
            let known = effective.map(|effective| &*effective.stack_version);
            let adapter = match cell.workarounds {
                _ if cell.adapter().is_none() => String::new(),
                Workarounds::ALL => " with our adapter".to_owned(),
                Workarounds::NONE => " as published".to_owned(),
                some => format!(" with the workarounds {some}"),
            };
            format!("{stack}{}{adapter} on {}", version(known), cell.runtime)
        }
        (None, None, None) => cell.subject().name().to_owned(),
    }];
    words.extend(load(sample));
    words.join(", ")
}

/// The load of the clients. The device alone has none.
fn load(sample: &Sample) -> Option<String> {
    const OPTIONS: &str =
        "mode inbound peers generator parallel pin protocol datagram bitrate background think blackholes ipv6";
    let is_of_load = |property: &&Property| OPTIONS.split(' ').any(|option| option == property.option);
    let phrase = axis::phrase(&sample.cell, PROPERTIES.iter().filter(is_of_load));
    (sample.cell.layer != Layer::Device).then_some(phrase)
}

/// The device and the link, and what its impairments cost.
fn conditions(sample: &Sample) -> String {
    let device = sample.measured.device.as_ref().map(|device| {
        let offload = if device.offload { "on" } else { "off" };
        let chosen = PROPERTIES.iter().filter(|property| matches!(property.option, "napi" | "gso"));
        let chosen = chosen.filter_map(|property| property.phrase(&sample.cell)).map(|phrase| format!(", {phrase}"));
        format!("device {}, MTU {}, offload {offload}{}", device.name, device.mtu, chosen.collect::<String>())
    });
    let impairments = axis::phrase(&sample.cell, PROPERTIES.iter().filter(|property| property.is_impairment));
    let impairments = if impairments.is_empty() {
        "no impairments".to_owned()
    } else {
        format!("{impairments} each way{}", cost_of_link(sample))
    };
    device.into_iter().chain([impairments]).collect::<Vec<_>>().join("; ")
}

/// `: 12 of 11,932 packets lost`.
fn cost_of_link(sample: &Sample) -> String {
    let Some(link) = sample.measured.link else { return String::new() };
    let counts = [
        (link.lost, "lost"),
        (link.reordered, "reordered"),
        (link.duplicated, "duplicated"),
        (link.corrupted, "corrupted"),
        (link.overflowed, "lost in a full queue"),
        (link.too_big, "too long for the path"),
    ];
    let all = sample.measured.packets.rx + sample.measured.packets.tx;
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let texts: Vec<_> = counts.map(|(count, how)| format!("{} {how}", grouped_digits(count as f64, 0))).collect();
    let of = format!(" of {} packets", grouped_digits(all as f64, 0));
    if texts.is_empty() { format!(": none{of}") } else { format!(": {}{of}", texts.join(", ")) }
}

/// The least and the greatest rate of ten parts of the window.
fn ten_parts(sample: &Sample) -> Option<String> {
    let parts = sample.measured.tenths.filter(|_| sample.is_ok() && sample.cell.workload().is_bulk())?;
    let [least, most] = [parts.into_iter().min()?, parts.into_iter().max()?];
    let rate = |bytes| grouped_digits(gbps(bytes, sample.measured.elapsed / 10), 1);
    Some(format!("{} to {}; a figure to quote: matrix with the same options and --runs 10", rate(least), rate(most)))
}

/// What a run sets, beside its conditions.
fn settings(sample: &Sample) -> Option<String> {
    let measured = &sample.measured;
    let device = measured.device.as_ref();
    let mut words = Vec::new();
    words
        .extend(device.and_then(|device| device.tx_queue_len).map(|len| format!("queue of {}", plural(len, "packet"))));
    words.extend(device.and_then(|device| device.qdisc.as_ref()).map(|name| format!("qdisc {name}")));
    if let Some(Effective { shards, receive_buffer_bytes, send_buffer_bytes, congestion, workarounds, .. }) =
        &measured.effective
    {
        let [room_in, room_out] = [receive_buffer_bytes, send_buffer_bytes].map(|bytes| ByteSize(*bytes as u64));
        words.extend((*shards > 1).then(|| plural(*shards as u64, "shard")));
        words.push(format!("stack's window {room_in} in, {room_out} out, its congestion control {congestion}"));
        let chosen = sample.cell.workarounds != Workarounds::ALL && !workarounds.is_empty();
        words.extend(chosen.then(|| format!("workarounds that stay: {}", workarounds.join(", "))));
    }
    words.extend(measured.congestion.as_ref().map(|name| format!("client's congestion control {name}")));
    (!words.is_empty()).then(|| words.join(", "))
}

fn connection(sample: &Sample) -> Option<String> {
    let tcp = sample.measured.tcp?;
    let [rtt, least] = [tcp.rtt_us, tcp.min_rtt_us].map(|time| known(time, microseconds));
    let [out, back, congestion] = [tcp.send_window_bytes, tcp.receive_window_bytes, tcp.congestion_window_bytes]
        .map(|bytes| known(bytes, |bytes| ByteSize(bytes).to_string()));
    Some(format!("round trip {rtt}, at least {least}; window {out} out, {back} in, congestion window {congestion}"))
}

/// The payload, and how much of it is known to be right.
fn delivered(sample: &Sample) -> String {
    let measured = &sample.measured;
    let what = match (&measured.requests, &measured.idle) {
        (Some(requests), _) => plural(requests.answered, "response"),
        (None, Some(idle)) => format!("{} held open", plural(idle.connections, sample.cell.workload().unit())),
        (None, None) => plural(measured.bytes, "byte"),
    };
    let verified = match measured.verified {
        _ if !sample.is_ok() => "",
        Verify::Sample => ", the warm-up verified",
        Verify::Full => ", all verified",
        Verify::Off => ", only counted",
    };
    format!("{what} in {:.6} s{verified}", measured.elapsed.as_secs_f64())
}

fn each_way(sample: &Sample) -> Option<String> {
    let measured = &sample.measured;
    let read = measured.bytes_back?;
    let [written, read] = [measured.bytes.saturating_sub(read), read].map(|bytes| gbps(bytes, measured.elapsed));
    Some(format!("{written:.3} Gbps written by the clients, {read:.3} Gbps read"))
}

fn figures(sample: &Sample) -> impl Iterator<Item = (&'static str, String)> {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for metric in METRICS.iter().filter(|metric| (metric.exists)(&sample.cell)) {
        let (Some((line, words)), Some(value)) = (metric.in_text, metric.of_run(sample)) else { continue };
        let words = with_sides(words, &[&sample.cell]).replace("{}", &metric.write_with_unit(value));
        match lines.last_mut().filter(|(last, _)| *last == line) {
            Some((_, figures)) => figures.push(words),
            None => lines.push((line, vec![words])),
        }
    }
    lines.into_iter().map(|(line, figures)| (line, figures.join(", ")))
}

fn captured(CaptureFacts { packets, lost, is_full }: CaptureFacts) -> String {
    let end = if is_full { "; then the file was full" } else { "" };
    format!("{} written, {lost} too fast to be{end}", plural(packets, "packet"))
}

fn intervals(sample: &Sample) -> impl Iterator<Item = String> {
    let has_bytes = sample.cell.workload().is_bulk();
    // After a stall nothing follows.
    let last = sample.measured.intervals.iter().rposition(|part| part.bytes > 0 || sample.is_ok());
    let parts = sample.measured.parts().take(last.map_or(0, |last| last + 1)).filter(move |_| has_bytes);
    parts.map(|(begin, length, part)| {
        let (from, to) = (begin.as_secs_f64(), part.end.as_secs_f64());
        let rate = gbps(part.bytes, length);
        format!("{from:.2}–{to:.2} s  {rate:.2} Gbps{}", load_of(part))
    })
}

fn load_of(part: &Interval) -> String {
    let cpu = part.cpu_seconds.map(|seconds| format!(", {seconds:.3} s of CPU time"));
    let memory = part.rss_bytes.map(|bytes| format!(", {:.2} MB", bytes as f64 / 1e6));
    [cpu, memory].into_iter().flatten().collect()
}

/// A time in microseconds, or from a thousand on in milliseconds.
fn microseconds(time_us: u64) -> String {
    if time_us < 1000 { format!("{time_us} µs") } else { format!("{:.2} ms", time_us as f64 / 1000.0) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use platform::FaultCounts;

    use super::*;
    use crate::cell::ROWS;
    use crate::measure::fixture::{effective, run};
    use crate::sample::{CpuTime, DatagramFacts, DeviceFacts, Measurements, Packets, RestFacts, Status, TcpFacts};

    /// The output for a run of a gigabyte in a second: standard output, and standard error.
    fn printed(words: &str, change: impl FnOnce(&mut Measurements)) -> String {
        let mut sample = run(words, 8.0);
        let measured = &mut sample.measured;
        measured.bytes = 1_000_000_000;
        measured.elapsed = Duration::from_secs(1);
        measured.verified = Verify::Full;
        measured.cpu = CpuTime { client_seconds: Some(0.25), subject_seconds: Some(0.75) };
        measured.packets = Packets { rx: 700, rx_bytes: 28_000, tx: 15_900, tx_bytes: 1_000_636_000 };
        measured.retransmits = Some(0);
        measured.device = Some(DeviceFacts {
            name: "tun8".to_owned(),
            mtu: 1500,
            offload: true,
            tx_queue_len: Some(500),
            qdisc: None,
        });
        change(measured);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        text(&sample, true, &mut out, &mut err).unwrap();
        let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
        format!("{out}--- stderr\n{err}")
    }

    #[test]
    fn the_kernel_against_itself() {
        insta::assert_snapshot!(printed("--layer loopback -m reader --parallel 2", |measured| {
            measured.congestion = Some("cubic".to_owned());
            measured.device = None;
            measured.tcp = Some(TcpFacts {
                rtt_us: Some(12_345),
                min_rtt_us: Some(67),
                congestion_window_bytes: Some(4 << 20),
                send_window_bytes: Some(65_536),
                receive_window_bytes: None,
            });
        }));
    }

    #[test]
    fn the_device_alone_with_intervals() {
        insta::assert_snapshot!(printed("--layer device", |measured| {
            measured.device_drops = Some(0);
            measured.intervals = [(502_000, 100_000_000), (1_000_000, 1_500_000_000), (1_004_000, 0)]
                .map(|(end_us, bytes)| Interval { end: Duration::from_micros(end_us), bytes, ..Interval::default() })
                .to_vec();
        }));
    }

    #[test]
    fn a_stack_alone() {
        let words = "--layer stack -n smoltcp -m writer";
        insta::assert_snapshot!(printed(words, |measured| measured.cpu.client_seconds = None));
    }

    #[test]
    fn workarounds_are_named_if_some_are_off() {
        for (workarounds, named) in [
            ("all", "with our adapter"),
            ("none", "as published"),
            ("-partial-ack", "with the workarounds -partial-ack"),
        ] {
            let words = format!("--layer stack -n smoltcp -m writer --workarounds={workarounds}");
            let printed = printed(&words, |measured| {
                let workarounds = vec!["one".into(), "two".into()];
                measured.effective = Some(Effective { workarounds, ..effective() });
            });
            let has_list = printed.contains("workarounds that stay: one, two");
            assert!(printed.contains(named) && has_list == (workarounds != "all"), "{printed}");
        }
    }

    #[test]
    fn there_are_four_lines_and_what_the_impairments_cost() {
        let mut sample = run("-n lwip -m reader --delay 5ms --loss 0.1 --offload off", 8.0);
        let lines = |sample: &Sample, is_verbose| {
            let mut err = Vec::new();
            text(sample, is_verbose, &mut Vec::new(), &mut err).unwrap();
            String::from_utf8(err).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        sample.measured.cpu = CpuTime { client_seconds: Some(0.25), subject_seconds: Some(0.75) };
        sample.measured.tenths = Some([70, 61, 84, 70, 70, 70, 70, 70, 70, 70].map(|gbps: u64| gbps * 25_000_000));
        sample.measured.elapsed = Duration::from_secs(2);
        sample.measured.packets = Packets { rx: 1932, tx: 10_000, ..Packets::default() };
        sample.measured.link = Some(FaultCounts { lost: 12, ..FaultCounts::default() });
        let few = lines(&sample, false);
        assert_eq!(few.len(), MAIN, "{few:?}");
        assert!(few[1].contains("loss 0.1 % each way: 12 lost of 11,932 packets"), "{few:?}");
        assert!(few[2].contains("61.0 to 84.0; a figure to quote"), "{few:?}");
        let all = lines(&sample, true);
        assert!(all.len() > MAIN && few.iter().all(|line| all.contains(line)), "{all:?}");
        // Nothing arrived after the first of three seconds.
        sample.measured.status = Status::Stalled;
        let part = |(end, bytes)| Interval { end: Duration::from_secs(end), bytes, ..Interval::default() };
        sample.measured.intervals = [(1, 9), (2, 0), (3, 0)].map(part).to_vec();
        assert_eq!(lines(&sample, false).iter().filter(|line| line.starts_with("interval")).count(), 1);
    }

    #[test]
    fn the_line_says_how_many_datagrams_were_lost() {
        let printed = printed("--layer loopback -m reader --protocol udp --bitrate 1M", |measured| {
            measured.datagrams = Some(DatagramFacts { sent: 1000, arrived: 998, ..DatagramFacts::default() });
        });
        assert!(printed.lines().next().is_some_and(|line| line.ends_with(" Gbps, lost: 0.200 %")), "{printed}");
    }

    #[test]
    fn the_line_says_after_which_time_memory_was_released() {
        let idle = |grown: u64| {
            let [before, after] = [Some(1 << 20), Some((1 << 20) + grown)];
            let facts = IdleFacts { connections: 11, release: Duration::from_secs(1), ..IdleFacts::default() };
            let facts = IdleFacts { rss_before_bytes: before, rss_open_bytes: after, rss_closed_bytes: after, ..facts };
            let rest = [1, 5].map(|seconds| RestFacts {
                after: Duration::from_secs(seconds),
                rss_bytes: after.map(|bytes| bytes + (5 - seconds) * 4096),
                kernel_bytes: Some(0),
            });
            move |measured: &mut Measurements| measured.idle = Some(IdleFacts { rest: rest.to_vec(), ..facts })
        };
        for (grown, expected) in [
            (1 << 20, "memory: 102.4 KiB each at rest for 5 s, released: 0 % after 1 s"),
            (0, "memory: under 409.6 bytes each at rest for 5 s, released: unknown after 1 s"),
        ] {
            let printed = printed("-n smoltcp -m idle --parallel 11", idle(grown));
            let line = format!("client io mode: idle, connections: 11, {expected}\n");
            assert!(printed.starts_with(&line), "{printed}");
            assert_eq!(printed.contains("warning: the memory did not grow"), grown == 0, "{printed}");
        }
        let udp = printed("-n smoltcp -m idle --protocol udp --parallel 11", idle(1 << 20));
        assert!(udp.starts_with("client io mode: idle, flows: 11, memory: 102.4 KiB each "), "{udp}");
    }

    #[test]
    fn a_proxy() {
        insta::assert_snapshot!(printed("--program smoltcp -m writer", loaded));
    }

    #[test]
    fn a_forwarder_one_way() {
        insta::assert_snapshot!(printed(ROWS[9], loaded));
    }

    #[test]
    fn a_forwarder_both_ways_by_iperf3() {
        let words = format!("{} -m both --generator iperf3 --parallel 4 --ipv6", ROWS[16]);
        insta::assert_snapshot!(printed(&words, |measured| {
            loaded(measured);
            measured.bytes_back = Some(400_000_000);
            (measured.verified, measured.reordered) = (Verify::Off, None);
        }));
    }

    #[test]
    fn a_run_that_failed_before_it_began() {
        let words = format!("{} -m reader", ROWS[11]);
        insta::assert_snapshot!(printed(&words, |measured| {
            *measured = Measurements::failed(Status::DeviceLost, "the forwarder ended");
        }));
    }

    /// The measurements of a run with another process.
    fn loaded(measured: &mut Measurements) {
        measured.congestion = Some("cubic".to_owned());
        measured.peak_rss_bytes = Some(7_200_000);
        (measured.retransmits, measured.reordered, measured.device_drops) = (Some(3), Some(12), Some(0));
        let interval = |(end_ms, bytes, cpu, rss): (u64, u64, f64, u64)| Interval {
            end: Duration::from_millis(end_ms),
            bytes,
            cpu_seconds: Some(cpu),
            rss_bytes: Some(rss),
        };
        let parts = [(600, 500_000_000, 0.47, 6_500_000), (1000, 500_000_000, 0.28, 7_100_000)];
        measured.intervals = parts.map(interval).to_vec();
    }
}
