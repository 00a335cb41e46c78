//! The figures of a run: tables, files, charts and the report of a single run are made from [`METRICS`].

mod figure;

use std::time::Duration;

use platform::Switches;

pub(crate) use self::figure::{Metric, Taken, Written};
use self::figure::{maximum, median, quantile, relative};

use crate::cell::{Cell, Layer, Mode, Protocol};
use crate::program::Program;
use crate::sample::{Measurements, ProgramFacts, Sample, SwitchFacts, gbps};

use Written::{Digits, Kibibytes, Millions, Percent};

/// The figure by which runs of a cell are compared. `None` if it is unknown, or if the run failed.
pub(crate) fn speed(sample: &Sample) -> Option<f64> {
    speed_of(&sample.cell).of_run(sample)
}

/// The metric that is the [`speed`] of a cell.
pub(crate) fn speed_of(cell: &Cell) -> &'static Metric {
    match (cell.workload(), cell.workload().requests()) {
        (_, Some(requests)) if requests.is_paced() => &P99,
        (_, Some(_)) => &REQUESTS,
        (workload, None) if workload.is_held() => &CONNECTIONS,
        (_, None) => &GBPS,
    }
}

/// The speed of bulk bytes.
pub(crate) const GBPS: Metric =
    median("gbps", "", "Gbps", has_bytes, |sample, _| sample.is_ok().then(|| sample.gbps()))
        .about("delivered payload by time, in 10⁹ bits a second")
        .written(Digits(2))
        .better(Some(true));

const REQUESTS: Metric = median("requests_per_second", "requests", "/s", Cell::has_requests, |sample, _| {
    sample.requests_per_second().filter(|_| sample.is_ok())
})
.about("requests that were answered in the timed window, a second")
.better(Some(true));

/// The speed of requests at a rate or with pauses, which decide the number of responses a second.
const P99: Metric = quantile("latency_p99_us", "p99", 0.99).about("the same for 99 %");

/// The speed of idle connections: the number of them that fits into a megabyte.
const CONNECTIONS: Metric = median("connections_per_mb_5s", "connections, 5 s", "/MB", Cell::is_idle, |sample, _| {
    sample.connections_per_mb().filter(|_| sample.is_ok())
})
.about("connections or flows that were held open in a megabyte, 10⁶ bytes, of the subject's memory after 5 seconds of rest")
.better(Some(true));

/// All figures, in the order of the columns of tables.
pub(crate) static METRICS: [Metric; 67] = [
    GBPS,
    REQUESTS,
    CONNECTIONS,
    median("cores_per_gbit", "", "cores/Gbit", has_bytes, |sample, run| {
        let cpu = &run.cpu;
        let of_clients = if sample.cell.has_client() { cpu.client_seconds? } else { 0.0 };
        per_gbit(run, of_clients + cpu.subject_seconds?)
    })
    .about("processor seconds of both sides for each Gbit of payload: the processors that 1 Gbps needs")
    .written(Digits(4)),
    median("subject_cores_per_gbit", "{subject}", "cores/Gbit", any, |_, run| per_gbit(run, run.cpu.subject_seconds?))
        .of(|cell| cell.has_client() && has_bytes(cell))
        .about("the subject's part of them")
        .written(Digits(4))
        .only_cells(),
    memory_each("bytes_per_connection_1s", "memory each, 1 s", |_, run| memory_after(run, 1)).about("the same after a second"),
    memory_each("bytes_per_connection_5s", "memory each, 5 s", |_, run| memory_after(run, 5)).about(
        "memory that each connection or flow takes after 5 seconds of rest, once a byte has crossed it each way, with the kernel's \
         of the subject's sockets, its task of the server and a little of the client",
    ),
    memory_each("bytes_per_connection_30s", "memory each, 30 s", |_, run| memory_after(run, 30))
        .about("the same after 30 seconds, with --time 30"),
    median("released_share", "released", "", Cell::is_idle, |_, run| run.idle.as_ref()?.released_share())
        .about("share of the memory of the process that is given back in --release, a second by default, after all were closed")
        .written(Percent)
        .better(Some(true)),
    median("wakeups_per_second", "wake-ups", "/s", Cell::is_idle, |_, run| per_second(run, run.idle.as_ref()?.wakeups?))
        .about("how often a thread of the process wakes up while nothing happens, those of the client too")
        .text("idle", "{} of threads"),
    median("idle_cpu_percent", "CPU idle", "%", Cell::is_idle, |_, run| {
        let elapsed = run.elapsed.as_secs_f64();
        Some(run.cpu.subject_seconds? / elapsed * 100.0).filter(|_| elapsed > 0.0)
    })
    .about("load of the subject on the processors while nothing happens, in percent of one")
    .written(Digits(2))
    .text("idle", "{} of a processor"),
    quantile("latency_p50_us", "p50", 0.5).about("the time in which half of the requests were answered"),
    P99,
    quantile("latency_p999_us", "p99.9", 0.999).about("the same for 99.9 %"),
    quantile("latency_max_us", "max", 1.0).about("the same for all of them").only_samples(),
    median("failed_requests", "failed requests", "", Cell::has_requests, |_, run| {
        Some(run.requests.as_ref()?.errors.values().sum::<u64>() as f64)
    })
    .about("requests that were not answered, and connections that broke")
    .only_text("requests", "{} failed"),
    median("blackholes_open", "black holes", "", any, |_, run| count(Some(run.requests.as_ref()?.blackholes?.open)))
        .of(|cell| cell.blackholes > 0)
        .about("connects to a silent address that were open at the end of the timed window")
        .better(None)
        .only_text("requests", "{} black holes open"),
    median("background_gbps", "beside", "Gbps", any, |_, run| Some(gbps(run.background_bytes?, run.elapsed)))
        .of(|cell| cell.background.is_some())
        .about("payload of the stream beside the requests, both ways, in 10⁹ bits a second")
        .written(Digits(2))
        .better(Some(true))
        .text("requests", "{} beside them"),
    median("datagrams_per_second", "arrived", "/s", Cell::has_datagrams, |sample, run| {
        let len = sample.cell.workload().datagram_bytes()?;
        per_second(run, run.bytes / u64::from(len.get()))
    })
    .about("datagrams that arrived in the timed window, a second")
    .better(Some(true))
    .text("datagrams", "{} arrived"),
    median("found_per_second", "found", "/s", Cell::has_datagrams, |_, run| count(run.datagrams?.found_per_second))
        .about("the highest rate of datagrams that lost next to nothing, as the search found it")
        .better(Some(true))
        .only_text("datagrams", "{} found as the highest rate"),
    median("lost_share", "lost", "%", is_udp, |_, run| Some(run.datagrams?.lost_share()? * 100.0))
        .about("datagrams that were sent and did not arrive, or requests and flows without a response in time")
        .written(Digits(3))
        .text("datagrams", "{} lost"),
    median("jitter_us", "jitter", "µs", Cell::has_datagrams, |_, run| Some(run.datagrams?.jitter_ns? as f64 / 1e3))
        .about("how much the time on the way differs from one datagram to the next (RFC 3550, 6.4.1), at a rate")
        .written(Digits(1))
        .text("datagrams", "{} of jitter"),
    median("reordered_datagrams", "reordered", "", Cell::has_datagrams, |_, run| count(Some(run.datagrams?.reordered)))
        .about("datagrams that arrived after one that was sent later")
        .text("datagrams", "{} reordered"),
    median("duplicated_datagrams", "duplicated", "", is_udp, |_, run| count(Some(run.datagrams?.duplicated)))
        .about("datagrams that arrived again")
        .text("datagrams", "{} duplicated"),
    median("elapsed_seconds", "seconds", "", any, |_, run| Some(run.elapsed.as_secs_f64()))
        .about("length of the timed window")
        .written(Digits(3))
        .better(None)
        .only_samples(),
    median("bytes", "bytes", "", any, |_, run| Some(run.bytes as f64))
        .about("payload that arrived in the timed window")
        .better(Some(true))
        .only_samples(),
    median("bytes_back", "bytes back", "", any, |_, run| count(run.bytes_back))
        .of(|cell| cell.mode == Some(Mode::Both))
        .about("the part of these bytes that the clients read")
        .better(Some(true))
        .only_samples(),
    median("client_cpu_seconds", "{client} CPU", "s", Cell::has_client, |_, run| run.cpu.client_seconds)
        .about("CPU time of the clients; with a forwarder or a proxy of clients and servers")
        .written(Digits(3))
        .only_text("cost", "{client} {}"),
    median("subject_cpu_seconds", "{subject} CPU", "s", any, |_, run| run.cpu.subject_seconds)
        .about("CPU time of the subject, with the kernel's work within its calls")
        .written(Digits(3))
        .only_text("cost", "{subject} {} of CPU time"),
    median("client_wakeups_per_second", "{client} wake-ups", "/s", Cell::has_client, |_, run| {
        per_second(run, run.switches.client?.waits)
    })
    .about("how often a thread of the clients was woken up; it had waited, a voluntary context switch")
    .only_text("switches", "{client} {}"),
    median("client_preemptions_per_second", "{client} preemptions", "/s", Cell::has_client, |_, run| {
        per_second(run, run.switches.client?.preemptions)
    })
    .about("how often the system took the processor from such a thread, an involuntary context switch")
    .only_text("switches", "forced {}"),
    median("subject_wakeups_per_second", "{subject} wake-ups", "/s", any, |_, run| {
        per_second(run, run.switches.subject?.waits)
    })
    .about("how often a thread of the subject was woken up")
    .only_text("switches", "{subject} {}"),
    median("subject_preemptions_per_second", "{subject} preemptions", "/s", any, |_, run| {
        per_second(run, run.switches.subject?.preemptions)
    })
    .about("how often the system took the processor from such a thread")
    .only_text("switches", "forced {}"),
    median("subject_wakeups_per_request", "{subject} wake-ups", "/req.", Cell::has_requests, |_, run| {
        per_request(run, run.switches.subject?.waits as f64)
    })
    .about("how often a thread of the subject was woken up for a request")
    .written(Digits(2))
    .text("switches", "{subject} {}"),
    median("cpu_percent", "CPU avg", "%", is_carried, |_, run| Some(run.cpu_percent()?[0]))
        .about("load of the subject on the processors, in percent of one, over the timed window")
        .written(Digits(1))
        .text("busy", "{} of a processor on average"),
    maximum("max_cpu_percent", "CPU max", "%", is_carried, |_, run| Some(run.cpu_percent()?[1]))
        .about("the same in the busiest interval")
        .written(Digits(1))
        .text("busy", "{} at most"),
    median("client_cpu_us_per_request", "{client}", "µs/req.", Cell::has_requests, |_, run| {
        per_request(run, run.cpu.client_seconds? * 1e6)
    })
    .about("the clients' CPU time for a request, in microseconds")
    .written(Digits(1))
    .only_cells(),
    median("subject_cpu_us_per_request", "{subject}", "µs/req.", Cell::has_requests, |_, run| {
        per_request(run, run.cpu.subject_seconds? * 1e6)
    })
    .about("the subject's CPU time for a request, in microseconds")
    .written(Digits(1))
    .only_cells(),
    median("switches_per_request", "", "switches/req.", Cell::has_requests, |_, run| {
        let SwitchFacts { client, subject } = run.switches;
        per_request(run, Switches::all(client? + subject?) as f64)
    })
    .about("context switches of both sides for a request: a thread waited, or the system took its processor")
    .written(Digits(2)),
    median("rss_bytes", "mem. avg", "MB", is_carried, |_, run| Some(run.memory_bytes()?[0]))
        .about("resident memory of the subject, in 10⁶ bytes, at the ends of the intervals")
        .written(Millions)
        .text("memory", "{} on average"),
    maximum("max_rss_bytes", "mem. max", "MB", is_carried, |_, run| Some(run.memory_bytes()?[1]))
        .about("the largest of these")
        .written(Millions)
        .text("memory", "{} at most"),
    maximum("peak_rss_bytes", "peak", "MB", any, |_, run| count(run.peak_rss_bytes))
        .about("peak resident memory of the subject's process, in 10⁶ bytes")
        .written(Millions)
        .text("memory", "peak {}"),
    median("start_ms", "start", "ms", is_program, |_, run| Some(program(run)?.start_seconds * 1e3))
        .about("from the start of the program to the first answer through it, in milliseconds")
        .text("program", "ready after {}"),
    median("rest_bytes", "at rest", "MB", is_program, |_, run| count(program(run)?.at_rest.pss_bytes))
        .about("memory of the program's processes without a load; pages that they share count once")
        .written(Millions)
        .text("program", "{} at rest"),
    median("files", "files", "", is_program, |_, run| count(program(run)?.under_load.open_files))
        .about("open files of the program at the end of the timed window")
        .text("program", "{} files under load"),
    median("program_threads", "threads", "", is_program, |_, run| {
        count(Some(program(run)?.under_load.threads).filter(|n| *n > 0))
    })
    .about("threads of the program at the end of the timed window")
    .text("program", "{} threads"),
    median("far_cpu_seconds", "far CPU", "s", is_program, |_, run| program(run)?.far_seconds)
        .about("CPU time of the far end of a tunnel, or of a proxy's own server, in the timed window")
        .written(Digits(3))
        .text("program", "{} of CPU time at the far end"),
    median("rest_cpu_percent", "CPU at rest", "%", rests, |_, run| run.unloaded()?.before?.cpu_percent())
        .about("load of the subject on the processors before the load, in percent of one")
        .written(Digits(2))
        .only_text("before", "{} of a processor at rest"),
    median("rest_wakeups_per_second", "wake-ups at rest", "/s", rests, |_, run| run.unloaded()?.before?.wakeups())
        .about("how often a thread of the subject was woken up then; in the mode idle those of the clients too")
        .written(Digits(1))
        .only_text("before", "woken {}"),
    median("rest_switches_per_second", "switches at rest", "/s", rests, |_, run| run.unloaded()?.before?.all_switches())
        .about("context switches then")
        .written(Digits(1))
        .only_text("before", "switched {}"),
    median("after_cpu_percent", "CPU after", "%", rests, |_, run| run.unloaded()?.after?.cpu_percent())
        .about("load of the subject on the processors at rest after the load, when all connections were closed")
        .written(Digits(2))
        .only_text("after", "{} of a processor at rest"),
    median("after_wakeups_per_second", "wake-ups after", "/s", rests, |_, run| run.unloaded()?.after?.wakeups())
        .about("how often a thread of the subject was woken up then")
        .written(Digits(1))
        .only_text("after", "woken {}"),
    median("after_switches_per_second", "switches after", "/s", rests, |_, run| run.unloaded()?.after?.all_switches())
        .about("context switches then")
        .written(Digits(1))
        .only_text("after", "switched {}"),
    median("after_files", "files after", "", is_program, |_, run| count(program(run)?.afterwards.open_files))
        .about("open files of the program then: what stays open")
        .only_text("after", "{} files open"),
    median("packets_in", "packets in", "", Cell::has_device, |_, run| Some(run.packets.rx as f64))
        .about("packets from the device to the stack, or those that the forwarder read")
        .better(None)
        .only_text("packets", "{} in"),
    median("packets_out", "packets out", "", Cell::has_device, |_, run| Some(run.packets.tx as f64))
        .about("packets from the stack to the device, or those that the forwarder wrote")
        .better(None)
        .only_text("packets", "{} out"),
    median("packet_bytes", "", "bytes/packet", any, |sample, _| sample.bytes_per_packet())
        .of(|cell| cell.has_device() && has_bytes(cell))
        .about(
            "mean size of the packets in the direction of the payload, or in both directions, with IP headers; \
             super-packets are larger than the MTU",
        )
        .better(Some(true))
        .text("packets", "{} in the direction of the payload"),
    median("retransmits", "retrans.", "", sends_again, |_, run| count(run.retransmits))
        .about("segments that the kernel retransmitted; over QUIC, packets that the sender took for lost")
        .text("packets", "{} retransmitted by {sender}"),
    median("reordered", "reordered", "", any, |_, run| count(run.reordered))
        .of(|cell| cell.forwarder().is_some())
        .about("packets that the forwarder wrote after a later one of their flow")
        .text("packets", "{} reordered"),
    median("passed_on_share", "passed on", "", any, |_, run| {
        Some(run.queue_facts?.passed_on as f64 / run.packets.rx as f64).filter(|_| run.packets.rx > 0)
    })
    .of(|cell| cell.shards.get() > 1)
    .about("share of the packets from the device that a shard passed on to another, whose flow they were of")
    .written(Percent)
    .text("packets", "{} passed on between shards"),
    median("device_drops", "drops", "", has_queue, |_, run| count(run.device_drops))
        .about("packets that the device dropped")
        .text("packets", "{} dropped"),
    median("too_big", "too big", "", any, |_, run| count(Some(run.link?.too_big)))
        .of(|cell| cell.impairments.path_mtu.is_some())
        .about("packets that were too long for the path; a super-packet counts once")
        .text("packets", "{} too long for the path"),
    median("recovery_ms", "recovery", "ms", any, |_, run| Some(run.recovery_seconds? * 1e3))
        .of(|cell| cell.impairments.outage.is_some())
        .about("from the end of the outage until something arrived again, in milliseconds")
        .text("outage", "recovered after {}"),
    maximum("stolen_share", "stolen", "", any, |_, run| run.stolen_share)
        .about("share of the processors' time that the host of this virtual machine took")
        .written(Percent)
        .only_samples(),
    maximum("stopped_seconds", "stopped", "s", any, |_, run| run.stopped_seconds)
        .about("time in which the process was stopped or not scheduled")
        .written(Digits(3))
        .only_samples(),
    relative(
        "of_fastest",
        "of fastest",
        |cell| !is_reference(cell),
        |cell, other| cell.same_work(other) && !is_reference(other),
    )
    .about(
        "median, divided by the median of the fastest cell with the same work, of programs the fastest with the \
             same role, without kernel and socks5; of latencies the other way round, so 100 % is always the fastest",
    )
    .better(Some(true)),
    relative("of_other_mode", "of other mode", has_other_mode, is_other_mode)
        .about("median throughput, divided by the median of the same cell with reader and writer exchanged")
        .better(None),
];

impl Metric {
    /// Whether it is the speed of some cells.
    pub(crate) fn is_speed(&self) -> bool {
        [GBPS, REQUESTS, P99, CONNECTIONS].iter().any(|speed| speed.name == self.name)
    }
}

const fn memory_each(
    name: &'static str,
    title: &'static str,
    take: fn(&Sample, &Measurements) -> Option<f64>,
) -> Metric {
    median(name, title, "KiB", Cell::is_idle, take).written(Kibibytes)
}

fn memory_after(run: &Measurements, seconds: u64) -> Option<f64> {
    run.idle.as_ref()?.bytes_per_connection(Duration::from_secs(seconds))
}

fn any(_: &Cell) -> bool {
    true
}

fn is_carried(cell: &Cell) -> bool {
    cell.subject().is_carrier()
}

fn is_udp(cell: &Cell) -> bool {
    cell.protocol == Protocol::Udp
}

fn sends_again(cell: &Cell) -> bool {
    !matches!(cell.layer, Layer::Device | Layer::Stack) && cell.workload().is_stream()
}

fn has_queue(cell: &Cell) -> bool {
    !matches!(cell.layer, Layer::Loopback | Layer::Stack)
}

fn is_program(cell: &Cell) -> bool {
    cell.program.is_some()
}

fn rests(cell: &Cell) -> bool {
    is_program(cell) || cell.is_idle()
}

fn has_bytes(cell: &Cell) -> bool {
    cell.workload().is_bulk()
}

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

fn per_second(run: &Measurements, count: u64) -> Option<f64> {
    let seconds = run.elapsed.as_secs_f64();
    (seconds > 0.0).then(|| count as f64 / seconds)
}

fn per_request(run: &Measurements, sum: f64) -> Option<f64> {
    let answered = run.requests.as_ref()?.answered;
    (answered > 0).then(|| sum / answered as f64)
}

fn per_gbit(run: &Measurements, sum: f64) -> Option<f64> {
    let bytes = run.bytes;
    (bytes > 0).then(|| sum / (bytes as f64 * 8.0 / 1e9))
}

fn program(run: &Measurements) -> Option<&ProgramFacts> {
    run.program.as_deref()
}

fn count(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

#[cfg(test)]
mod tests;
