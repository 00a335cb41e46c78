//! The figures of a run. Each is one entry of [`METRICS`]. Tables, files, charts and the report of a single run are
//! made from this list.

mod figure;

pub use self::figure::{Metric, Taken, Written};
use self::figure::{maximum, median, quantile, relative};
use platform::Switches;

use crate::cell::{Cell, Layer, Mode, Protocol};
use crate::program::Program;
use crate::sample::{ProgramFacts, Sample, SwitchFacts, gbps};

use Written::{Digits, Kibibytes, Millions, Percent};

/// The figure by which runs of a cell are compared: [`Sample::gbps`], answered requests a second, or connections in a
/// megabyte. More is better. For requests at a rate, or with pauses between them, it is the 99th percentile of their
/// latency, in microseconds; less is better. `None` if it is unknown, or if the run failed.
pub fn speed(sample: &Sample) -> Option<f64> {
    speed_of(&sample.cell).of_run(sample)
}

/// The metric that is the [`speed`] of a cell.
pub fn speed_of(cell: &Cell) -> &'static Metric {
    match (cell.workload(), cell.workload().requests()) {
        (_, Some(requests)) if requests.is_paced() => &P99,
        (_, Some(_)) => &REQUESTS,
        (workload, None) if workload.is_held() => &CONNECTIONS,
        (_, None) => &GBPS,
    }
}

/// The speed of bulk bytes.
pub const GBPS: Metric = median("gbps", "", "Gbps", |sample| sample.is_ok().then(|| sample.gbps()))
    .about("delivered payload by time, in 10⁹ bits a second")
    .of(has_bytes)
    .written(Digits(2))
    .better(Some(true));

/// The speed of requests.
const REQUESTS: Metric =
    median("requests_per_second", "requests", "/s", |sample| sample.requests_per_second().filter(|_| sample.is_ok()))
        .about("requests that were answered in the timed window, a second")
        .of(Cell::has_requests)
        .better(Some(true));

/// The speed of requests at a rate or with pauses, which decide the number of responses a second.
const P99: Metric = quantile("latency_p99_us", "p99", 0.99).about("the same for 99 %");

/// The speed of idle connections: the number of them that fits into a megabyte.
const CONNECTIONS: Metric =
    median("connections_per_mb", "connections", "/MB", |sample| sample.connections_per_mb().filter(|_| sample.is_ok()))
        .about("connections or flows that were held open in a megabyte, 10⁶ bytes, of the subject's memory")
        .of(Cell::is_idle)
        .better(Some(true));

/// All figures, in the order of the columns of tables.
pub static METRICS: [Metric; 56] = [
    GBPS,
    REQUESTS,
    CONNECTIONS,
    median("cores_per_gbit", "", "cores/Gbit", |sample| {
        let cpu = &sample.measured.cpu;
        let of_clients = if sample.cell.has_client() { cpu.client_seconds? } else { 0.0 };
        per_gbit(sample, of_clients + cpu.subject_seconds?)
    })
    .about("processor seconds of both sides for each Gbit of payload: the processors that 1 Gbps needs")
    .of(has_bytes)
    .written(Digits(4)),
    median("subject_cores_per_gbit", "{subject}", "cores/Gbit", |sample| {
        per_gbit(sample, sample.measured.cpu.subject_seconds?)
    })
    .about("the subject's part of them")
    .of(|cell| cell.has_client() && has_bytes(cell))
    .written(Digits(4))
    .only_cells(),
    median("bytes_per_connection", "memory each", "KiB", |sample| sample.measured.idle?.bytes_per_connection())
        .about(
            "memory that each connection or flow takes once a byte has crossed it each way, with its task of the server \
                and a little of the client",
        )
        .of(Cell::is_idle)
        .written(Kibibytes),
    median("released_share", "released", "", |sample| sample.measured.idle?.released_share())
        .about("share of that memory that is given back in --release, a second by default, after all were closed")
        .of(Cell::is_idle)
        .written(Percent)
        .better(Some(true)),
    median("wakeups_per_second", "wake-ups", "/s", |sample| per_second(sample, sample.measured.idle?.wakeups?))
        .about("how often a thread of the process wakes up while nothing happens, those of the client too")
        .of(Cell::is_idle)
        .text("idle", "{} of threads"),
    median("idle_cpu_percent", "CPU idle", "%", |sample| {
        let elapsed = sample.measured.elapsed.as_secs_f64();
        Some(sample.measured.cpu.subject_seconds? / elapsed * 100.0).filter(|_| elapsed > 0.0)
    })
    .about("load of the subject on the processors while nothing happens, in percent of one")
    .of(Cell::is_idle)
    .written(Digits(2))
    .text("idle", "{} of a processor"),
    quantile("latency_p50_us", "p50", 0.5).about("the time in which half of the requests were answered"),
    P99,
    quantile("latency_p999_us", "p99.9", 0.999).about("the same for 99.9 %"),
    quantile("latency_max_us", "max", 1.0).about("the same for all of them").only_samples(),
    median("failed_requests", "failed requests", "", failed_requests)
        .about("requests that were not answered, and connections that broke")
        .of(Cell::has_requests)
        .only_samples()
        .text("requests", "{} failed"),
    median("blackholes_open", "black holes", "", |sample| {
        count(Some(sample.measured.requests.as_ref()?.blackholes?.open))
    })
    .about("connects to a silent address that were open at the end of the timed window")
    .of(|cell| cell.blackholes > 0)
    .better(None)
    .only_samples()
    .text("requests", "{} black holes open"),
    median("background_gbps", "beside", "Gbps", |sample| {
        Some(gbps(sample.measured.background_bytes?, sample.measured.elapsed))
    })
    .about("payload of the stream beside the requests, both ways, in 10⁹ bits a second")
    .of(|cell| cell.background.is_some())
    .written(Digits(2))
    .better(Some(true))
    .text("requests", "{} beside them"),
    median("datagrams_per_second", "arrived", "/s", |sample| {
        let len = sample.cell.workload().datagram_bytes()?;
        per_second(sample, sample.measured.bytes / u64::from(len.get()))
    })
    .about("datagrams that arrived in the timed window, a second")
    .of(Cell::has_datagrams)
    .better(Some(true))
    .text("datagrams", "{} arrived"),
    median("found_per_second", "found", "/s", |sample| count(sample.measured.datagrams?.found_per_second))
        .about("the highest rate of datagrams that lost next to nothing, as the search found it")
        .of(Cell::has_datagrams)
        .better(Some(true))
        .only_samples()
        .text("datagrams", "{} found as the highest rate"),
    median("lost_share", "lost", "%", |sample| Some(sample.measured.datagrams?.lost_share()? * 100.0))
        .about("datagrams that were sent and did not arrive, or requests and flows without a response in time")
        .of(|cell| cell.protocol == Protocol::Udp)
        .written(Digits(3))
        .text("datagrams", "{} lost"),
    median("reordered_datagrams", "reordered", "", |sample| count(Some(sample.measured.datagrams?.reordered)))
        .about("datagrams that arrived after one that was sent later")
        .of(Cell::has_datagrams)
        .text("datagrams", "{} reordered"),
    median("duplicated_datagrams", "duplicated", "", |sample| count(Some(sample.measured.datagrams?.duplicated)))
        .about("datagrams that arrived again")
        .of(|cell| cell.protocol == Protocol::Udp)
        .text("datagrams", "{} duplicated"),
    median("elapsed_seconds", "seconds", "", |sample| Some(sample.measured.elapsed.as_secs_f64()))
        .about("length of the timed window")
        .written(Digits(3))
        .better(None)
        .only_samples(),
    median("bytes", "bytes", "", |sample| Some(sample.measured.bytes as f64))
        .about("payload that arrived in the timed window")
        .better(Some(true))
        .only_samples(),
    median("bytes_back", "bytes back", "", |sample| count(sample.measured.bytes_back))
        .about("the part of these bytes that the clients read")
        .of(|cell| cell.mode == Some(Mode::Both))
        .better(Some(true))
        .only_samples(),
    median("client_cpu_seconds", "{client} CPU", "s", |sample| sample.measured.cpu.client_seconds)
        .about("CPU time of the clients; with a forwarder or a proxy of clients and servers")
        .of(Cell::has_client)
        .written(Digits(3))
        .only_samples()
        .text("cost", "{client} {}"),
    median("subject_cpu_seconds", "{subject} CPU", "s", |sample| sample.measured.cpu.subject_seconds)
        .about("CPU time of the subject and of the kernel on its behalf")
        .written(Digits(3))
        .only_samples()
        .text("cost", "{subject} {} of CPU time"),
    median("client_wakeups_per_second", "{client} wake-ups", "/s", |sample| {
        per_second(sample, sample.measured.switches.client?.waits)
    })
    .about("how often a thread of the clients was woken up; it had waited, a voluntary context switch")
    .of(Cell::has_client)
    .only_samples()
    .text("switches", "{client} {}"),
    median("client_preemptions_per_second", "{client} preemptions", "/s", |sample| {
        per_second(sample, sample.measured.switches.client?.preemptions)
    })
    .about("how often the system took the processor from such a thread, an involuntary context switch")
    .of(Cell::has_client)
    .only_samples()
    .text("switches", "forced {}"),
    median("subject_wakeups_per_second", "{subject} wake-ups", "/s", |sample| {
        per_second(sample, sample.measured.switches.subject?.waits)
    })
    .about("how often a thread of the subject was woken up")
    .only_samples()
    .text("switches", "{subject} {}"),
    median("subject_preemptions_per_second", "{subject} preemptions", "/s", |sample| {
        per_second(sample, sample.measured.switches.subject?.preemptions)
    })
    .about("how often the system took the processor from such a thread")
    .only_samples()
    .text("switches", "forced {}"),
    median("cpu_percent", "CPU avg", "%", |sample| Some(sample.measured.cpu_percent()?.average))
        .about("load of the subject on the processors, in percent of one, over the timed window")
        .of(|cell| cell.subject().is_carrier())
        .written(Digits(1))
        .text("busy", "{} of a processor on average"),
    maximum("max_cpu_percent", "CPU max", "%", |sample| Some(sample.measured.cpu_percent()?.maximum))
        .about("the same in the busiest interval")
        .of(|cell| cell.subject().is_carrier())
        .written(Digits(1))
        .text("busy", "{} at most"),
    median("client_cpu_us_per_request", "{client}", "µs/req.", |sample| {
        per_request(sample, sample.measured.cpu.client_seconds? * 1e6)
    })
    .about("the clients' CPU time for a request, in microseconds")
    .of(Cell::has_requests)
    .written(Digits(1))
    .only_cells(),
    median("subject_cpu_us_per_request", "{subject}", "µs/req.", |sample| {
        per_request(sample, sample.measured.cpu.subject_seconds? * 1e6)
    })
    .about("the subject's CPU time for a request, in microseconds")
    .of(Cell::has_requests)
    .written(Digits(1))
    .only_cells(),
    median("switches_per_request", "", "switches/req.", |sample| {
        let SwitchFacts { client, subject } = sample.measured.switches;
        per_request(sample, Switches::all(client? + subject?) as f64)
    })
    .about("context switches of both sides for a request: a thread waited, or the system took its processor")
    .of(Cell::has_requests)
    .written(Digits(2)),
    median("rss_bytes", "mem. avg", "MB", |sample| Some(sample.measured.memory_bytes()?.average))
        .about("resident memory of the subject, in 10⁶ bytes, at the ends of the intervals")
        .of(|cell| cell.subject().is_carrier())
        .written(Millions)
        .text("memory", "{} on average"),
    maximum("max_rss_bytes", "mem. max", "MB", |sample| Some(sample.measured.memory_bytes()?.maximum))
        .about("the largest of these")
        .of(|cell| cell.subject().is_carrier())
        .written(Millions)
        .text("memory", "{} at most"),
    maximum("peak_rss_bytes", "peak", "MB", |sample| count(sample.measured.peak_rss_bytes))
        .about("peak resident memory of the subject's process, in 10⁶ bytes")
        .written(Millions)
        .text("memory", "peak {}"),
    median("start_ms", "start", "ms", |sample| Some(program(sample)?.start_seconds * 1e3))
        .about("from the start of the program to the first answer through it, in milliseconds")
        .of(|cell| cell.program.is_some())
        .text("program", "ready after {}"),
    median("rest_bytes", "at rest", "MB", |sample| count(program(sample)?.at_rest.pss_bytes))
        .about("memory of the program's processes without a load; pages that they share count once")
        .of(|cell| cell.program.is_some())
        .written(Millions)
        .text("program", "{} at rest"),
    median("files", "files", "", |sample| count(program(sample)?.under_load.open_files))
        .about("open files of the program at the end of the timed window")
        .of(|cell| cell.program.is_some())
        .text("program", "{} files under load"),
    median("program_threads", "threads", "", |sample| count(Some(program(sample)?.under_load.threads).filter(|n| *n > 0)))
        .about("threads of the program at the end of the timed window")
        .of(|cell| cell.program.is_some())
        .text("program", "{} threads"),
    median("far_cpu_seconds", "far CPU", "s", |sample| program(sample)?.far_seconds)
        .about("CPU time of the SOCKS5 server, or of the far end of a tunnel, in the timed window")
        .of(|cell| cell.program.is_some())
        .written(Digits(3))
        .text("program", "{} of CPU time at the far end"),
    median("packets_in", "packets in", "", |sample| Some(sample.measured.packets.rx as f64))
        .about("packets from the device to the stack, or those that the forwarder read")
        .of(Cell::has_device)
        .better(None)
        .only_samples()
        .text("packets", "{} in"),
    median("packets_out", "packets out", "", |sample| Some(sample.measured.packets.tx as f64))
        .about("packets from the stack to the device, or those that the forwarder wrote")
        .of(Cell::has_device)
        .better(None)
        .only_samples()
        .text("packets", "{} out"),
    median("packet_bytes", "", "bytes/packet", Sample::bytes_per_packet)
        .about(
            "mean size of the packets in the direction of the payload, or in both directions, with IP headers; \
                super-packets are larger than the MTU",
        )
        .of(|cell| cell.has_device() && has_bytes(cell))
        .better(Some(true))
        .text("packets", "{} in the direction of the payload"),
    median("retransmits", "retrans.", "", |sample| count(sample.measured.retransmits))
        .about("segments that the kernel retransmitted")
        .of(|cell| !matches!(cell.layer, Layer::Device | Layer::Stack) && cell.workload().is_stream())
        .text("packets", "{} retransmitted by the kernel"),
    median("reordered", "reordered", "", |sample| count(sample.measured.reordered))
        .about("packets that the forwarder wrote after a later one of their flow")
        .of(|cell| cell.forwarder().is_some())
        .text("packets", "{} reordered"),
    median("passed_on_share", "passed on", "", passed_on_share)
        .about("share of the packets from the device that a shard passed on to another, whose flow they were of")
        .of(|cell| cell.shards.get() > 1)
        .written(Percent)
        .text("packets", "{} passed on between shards"),
    median("device_drops", "drops", "", |sample| count(sample.measured.device_drops))
        .about("packets that the device dropped")
        .of(|cell| !matches!(cell.layer, Layer::Loopback | Layer::Stack))
        .text("packets", "{} dropped"),
    median("too_big", "too big", "", |sample| count(Some(sample.measured.link?.too_big)))
        .about("packets that were too long for the path; a super-packet counts once")
        .of(|cell| cell.impairments.path_mtu.is_some())
        .text("packets", "{} too long for the path"),
    median("recovery_ms", "recovery", "ms", |sample| Some(sample.measured.recovery_seconds? * 1e3))
        .about("from the end of the outage until something arrived again, in milliseconds")
        .of(|cell| cell.impairments.outage.is_some())
        .text("outage", "recovered after {}"),
    maximum("stolen_share", "stolen", "", |sample| sample.measured.stolen_share)
        .about("share of the processors' time that the host of this virtual machine took")
        .written(Percent)
        .only_samples(),
    maximum("stopped_seconds", "stopped", "s", |sample| sample.measured.stopped_seconds)
        .about("time in which the process was stopped or not scheduled")
        .written(Digits(3))
        .only_samples(),
    relative("of_fastest", "of fastest", |cell, other| cell.same_work(other) && !is_reference(other))
        .about(
            "median, divided by the median of the fastest cell with the same work, of programs the fastest with the same role, \
                without kernel and socks5; of latencies the other way round, so 100 % is always the fastest",
        )
        .of(|cell| !is_reference(cell))
        .better(Some(true)),
    relative("of_other_mode", "of other mode", is_other_mode)
        .about("median throughput, divided by the median of the same cell with reader and writer exchanged")
        .of(has_other_mode)
        .better(None),
];

impl Metric {
    /// Whether it is the speed of some cells.
    pub fn is_speed(&self) -> bool {
        [GBPS, REQUESTS, P99, CONNECTIONS].iter().any(|speed| speed.name == self.name)
    }
}

/// Whether its load is bulk bytes.
fn has_bytes(cell: &Cell) -> bool {
    cell.workload().is_bulk()
}

/// Whether it is run to compare programs with it.
fn is_reference(cell: &Cell) -> bool {
    cell.program.as_ref().is_some_and(Program::is_baseline)
}

fn has_other_mode(cell: &Cell) -> bool {
    cell.forwarder.is_none() && matches!(cell.mode, Some(Mode::Reader | Mode::Writer))
}

/// Whether the other cell differs in the mode alone. Both directions at once have no opposite.
fn is_other_mode(cell: &Cell, other: &Cell) -> bool {
    has_other_mode(other) && cell.mode != other.mode && *cell == Cell { mode: cell.mode, ..other.clone() }
}

fn per_second(sample: &Sample, count: u64) -> Option<f64> {
    let seconds = sample.measured.elapsed.as_secs_f64();
    (seconds > 0.0).then(|| count as f64 / seconds)
}

/// The share of received packets that were of another shard's flow.
fn passed_on_share(sample: &Sample) -> Option<f64> {
    let (received, queues) = (sample.measured.packets.rx, sample.measured.queue_facts?);
    (received > 0).then(|| queues.passed_on as f64 / received as f64)
}

fn failed_requests(sample: &Sample) -> Option<f64> {
    Some(sample.measured.requests.as_ref()?.errors.values().sum::<u64>() as f64)
}

/// A sum for each answered request.
fn per_request(sample: &Sample, sum: f64) -> Option<f64> {
    let answered = sample.measured.requests.as_ref()?.answered;
    (answered > 0).then(|| sum / answered as f64)
}

/// A sum for each Gbit, 10⁹ bits, of payload.
fn per_gbit(sample: &Sample, sum: f64) -> Option<f64> {
    let bytes = sample.measured.bytes;
    (bytes > 0).then(|| sum / (bytes as f64 * 8.0 / 1e9))
}

fn program(sample: &Sample) -> Option<&ProgramFacts> {
    sample.measured.program.as_deref()
}

fn count(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::measure::fixture::run;
    use crate::measure::{Comparison, Summary, Verdict};
    use crate::sample::{IdleFacts, Latency, Packets, RequestFacts};

    #[test]
    fn every_metric_has_a_name_of_its_own_a_head_and_a_meaning() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, title, unit, about, in_text, .. } in &METRICS {
            assert!(!name.is_empty() && !about.is_empty() && !format!("{title}{unit}").is_empty(), "{name}");
            assert!(in_text.is_none_or(|(_, words)| words.contains("{}")), "{name}");
        }
    }

    #[test]
    fn the_speed_of_a_run_is_the_metric_of_its_cell() {
        let mut latency = Latency::new();
        (1..=100).for_each(|milliseconds| latency.record(Duration::from_millis(milliseconds)));
        for (words, name, expected) in [
            ("both", "gbps", 2.0),
            ("rr", "requests_per_second", 50.0),
            ("rr --rate 1000", "latency_p99_us", 99_000.0),
            ("rr --think 1s", "latency_p99_us", 99_000.0),
            ("crr --rate 1000", "latency_p99_us", 99_000.0),
            ("idle --parallel 2", "connections_per_mb", 10_000.0),
        ] {
            let mut run = run(&format!("-n smoltcp -m {words}"), 2.0);
            run.measured.requests =
                Some(RequestFacts { answered: 100, latency: latency.clone(), ..Default::default() });
            run.measured.idle = Some(IdleFacts {
                connections: 11,
                rss_before_bytes: Some(0),
                rss_idle_bytes: Some(1000),
                ..IdleFacts::default()
            });
            let speed = speed_of(&run.cell);
            assert_eq!((speed.name, speed.is_speed()), (name, true));
            assert!(super::speed(&run).is_some_and(|speed| (speed / expected - 1.0).abs() < 0.001), "{name}");
        }
    }

    fn figure(name: &str, run: &Sample) -> Option<f64> {
        METRICS.iter().find(|metric| metric.name == name).and_then(|metric| metric.of_run(run))
    }

    #[test]
    fn a_memory_that_did_not_grow_is_unknown() {
        let idle = |rss_idle_bytes| {
            let mut run = run("-n smoltcp -m idle --parallel 2", 0.0);
            let rss_before_bytes = Some(5_000_000);
            run.measured.idle =
                Some(IdleFacts { connections: 1001, rss_before_bytes, rss_idle_bytes, ..IdleFacts::default() });
            run
        };
        for unknown in [None, Some(4_999_999), Some(5_000_000)].map(idle) {
            assert_eq!(["connections_per_mb", "bytes_per_connection"].map(|name| figure(name, &unknown)), [None; 2]);
            assert_eq!(speed(&unknown), None);
            let row = &Summary::of(&[unknown.clone(), idle(Some(7_000_000))]).cells[0];
            assert_eq!((row.runs, row.speeds.as_slice()), (2, &[500.0][..]));
            let compared = Comparison::of(&[unknown], &[idle(Some(7_000_000))], 0.0).map(|table| table.cells);
            assert_eq!(compared.map(|cells| cells[0].verdict), Ok(Verdict::NotRun));
        }
    }

    #[test]
    fn bytes_in_a_packet_are_of_the_directions_of_the_payload() {
        for (mode, bytes) in [("reader", 50.0), ("writer", 1000.0), ("both", 810.0)] {
            let mut run = run(&format!("-n smoltcp -m {mode}"), 1.0);
            run.measured.packets = Packets { rx: 8, rx_bytes: 8000, tx: 2, tx_bytes: 100 };
            assert_eq!(figure("packet_bytes", &run), Some(bytes), "{mode}");
        }
    }

    #[test]
    fn values_are_written_with_their_units() {
        let text =
            |name, value| METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.write_with_unit(value));
        assert_eq!(text("gbps", 44.613).as_deref(), Some("44.61 Gbps"));
        assert_eq!(text("peak_rss_bytes", 7_200_000.0).as_deref(), Some("7.20 MB"));
        assert_eq!(text("of_fastest", 0.505).as_deref(), Some("50 %"));
        assert_eq!(text("retransmits", 3.0).as_deref(), Some("3"));
    }
}
