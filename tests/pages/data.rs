//! Makes the files of `tests/data`: plausible samples of two machines that do not exist.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netstacks::StackKind;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rust_tun_perf::cell::{Cell, Layer, Mode, Offload, Runtime, Subject, Verify};
use rust_tun_perf::plan::scenario::Scenario;
use rust_tun_perf::sample::{
    CpuTime, DeviceFacts, Environment, Head, Interval, Measurements, Packets, Program, Sample, Status, line,
};

use super::forwarders;
use crate::fixture;

const STACKS: [StackKind; 3] = [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp];
const MODES: [Mode; 2] = [Mode::Reader, Mode::Writer];
const RUNTIME: &str = "--runtime=current-thread";
/// The start of the first run.
pub(crate) const STARTED_UNIX_MS: u64 = 1_790_000_000_000;

/// Rewrites the files. Their samples are in the snapshots, which then change too.
#[test]
#[ignore = "makes the files that the other tests read"]
fn write_the_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (name, text) in
        [("laptop.jsonl", laptop()), ("server.jsonl", server()), ("forward.jsonl", forwarders::file(&machine()))]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// Returns a file of all layers with a current-thread runtime, failures, an outlier, and intervals.
fn laptop() -> String {
    let mut cells = vec![format!("--layer=device {RUNTIME} --offload=on")];
    for mode in MODES {
        cells.push(format!("--layer=loopback --mode={mode} {RUNTIME}"));
        for layer in ["stack", "path"] {
            cells.extend(
                STACKS.map(|stack| format!("--layer={layer} --netstack={stack} --mode={mode} {RUNTIME} --offload=on")),
            );
        }
    }
    samples(machine(), &cells, 7, 1.0, |sample| {
        match (sample.cell.subject(), sample.cell.mode, sample.measured.round) {
            (Subject::Path(StackKind::Lwip), Some(Mode::Reader), Some(4)) => slow(sample),
            (Subject::Path(StackKind::Ipstack), Some(Mode::Reader), Some(2 | 5)) => {
                fail(sample, Status::Stalled, "nothing arrived for the last 59.0 of 60 seconds, after 12 bytes");
            }
            (Subject::Path(StackKind::Ipstack), Some(Mode::Writer), _) => {
                fail(sample, Status::Panicked, "<b>the stack's task</b> panicked: \"index | out of bounds\"");
            }
            (Subject::Path(_), ..) => sample.measured.intervals = intervals(&sample.measured),
            _ => {}
        }
    })
}

/// Returns the environment of the laptop.
fn machine() -> Environment {
    Environment {
        machine: platform::Environment {
            kernel: Some("6.12.48".to_owned()),
            cpu: Some("Example i7-1360P".to_owned()),
            cpus: Some(16),
            governor: Some("powersave".to_owned()),
            ..fixture::machine()
        },
        program: program(),
    }
}

/// Returns a file of two stacks on both runtimes, with and without offload.
fn server() -> String {
    let mut cells = Vec::new();
    for offload in ["off", "on"] {
        for stack in [StackKind::Lwip, StackKind::Smoltcp] {
            for mode in MODES {
                for runtime in [RUNTIME, "--runtime=multi-thread"] {
                    cells.push(format!("--netstack={stack} --mode={mode} {runtime} --offload={offload}"));
                }
            }
        }
    }
    let environment = Environment {
        machine: platform::Environment {
            architecture: "aarch64".to_owned(),
            kernel: Some("6.1.0-38-cloud".to_owned()),
            cpu: None,
            cpus: Some(4),
            virtual_machine: Some(true),
            ..fixture::machine()
        },
        program: program(),
    };
    samples(environment, &cells, 3, 0.7, |sample| sample.measured.started_unix_ms = None)
}

fn program() -> Program {
    let text = |text: &str| Some(text.to_owned());
    Program {
        version: text("0.1.0"),
        commit: text("0123456789ab"),
        build: text("release"),
        tokio: text("1.54.0"),
        lwip: text("2.2.1"),
        ipstack: text("1.0.1"),
        smoltcp: text("0.14.0"),
        tcp_ip: None,
        netstack_smoltcp: None,
        lwip_published: None,
        go_forwarder: None,
    }
}

fn samples(environment: Environment, cells: &[String], rounds: u32, speed: f64, change: fn(&mut Sample)) -> String {
    let arguments = ["matrix", "--netstack", "all", "--time", "1"].map(ToOwned::to_owned).to_vec();
    let plan = cells.iter().map(|words| words_of(&format!("{words} --time=1"))).collect();
    let head = Head::new(environment.clone(), arguments, 7, plan);
    let mut text = head.line() + "\n";
    let environment = Arc::new(environment);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 1..=rounds {
        for (index, words) in cells.iter().enumerate() {
            let cell = fixture::cell(words);
            let place = (round as usize - 1) * cells.len() + index;
            let gbps = typical(&cell) * speed * random.random_range(0.96..1.04);
            let measured = Measurements {
                round: Some(round),
                started_unix_ms: Some(STARTED_UNIX_MS + place as u64 * 1_900),
                ..measured(&cell, gbps)
            };
            let mut sample = Sample { cell, measured, environment: Arc::clone(&environment) };
            change(&mut sample);
            text += &(line(&sample) + "\n");
        }
    }
    text
}

/// The words of a line that a run can have.
pub(crate) fn words_of(line: &str) -> Vec<String> {
    let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    Scenario::of_words(words).unwrap().words
}

/// Returns a typical rate of a cell, in Gbps.
fn typical(cell: &Cell) -> f64 {
    let stack = match cell.stack() {
        Some(StackKind::Lwip) => 50.0,
        Some(StackKind::Ipstack) => 9.0,
        Some(StackKind::Smoltcp) => 42.0,
        Some(StackKind::TcpIp) => 10.0,
        Some(StackKind::NetstackSmoltcp) => 12.0,
        Some(StackKind::LwipPublished) => 1.5,
        Some(StackKind::Gvisor | StackKind::External | StackKind::Kernel) => 5.0,
        None => 75.0,
    };
    let layer = if cell.layer == Layer::Stack { 1.7 } else { 1.0 };
    let mode = if cell.mode == Some(Mode::Reader) { 0.8 } else { 1.0 };
    let offload = if cell.offload == Offload::Off { 0.07 } else { 1.0 };
    let runtime = if cell.runtime == Runtime::CurrentThread { 1.0 } else { 0.9 };
    stack * layer * mode * offload * runtime
}

fn measured(cell: &Cell, gbps: f64) -> Measurements {
    let elapsed = Duration::from_nanos(1_000_512_345);
    let bytes = (gbps * elapsed.as_nanos() as f64 / 8.0) as u64;
    let size = if cell.offload == Offload::Off { 1_500 } else { 63_400 };
    let (payload, acknowledgements) = (bytes / size, bytes / size / 4);
    let (rx, tx) =
        if cell.mode == Some(Mode::Writer) { (payload, acknowledgements) } else { (acknowledgements, payload) };
    let (rx_bytes, tx_bytes) =
        if cell.mode == Some(Mode::Writer) { (payload * size, tx * 40) } else { (rx * 40, payload * size) };
    let packets = Packets { rx, tx, rx_bytes, tx_bytes };
    let link = cell.layer != Layer::Loopback;
    let kernel = matches!(cell.layer, Layer::Path | Layer::Loopback);
    Measurements {
        detail: None,
        congestion: kernel.then(|| "cubic".to_owned()),
        warmup_bytes: 64_000_000,
        bytes,
        elapsed,
        verified: Verify::Sample,
        cpu: CpuTime { client_seconds: kernel.then_some(0.62), subject_seconds: Some(0.97) },
        stolen_share: Some(0.0),
        stopped_seconds: Some(0.0),
        peak_rss_bytes: Some(11 << 20),
        retransmits: kernel.then_some(0),
        device_drops: (cell.layer == Layer::Path).then_some(0),
        packets: if link { packets } else { Packets::default() },
        device: (cell.layer == Layer::Path).then(|| DeviceFacts {
            name: "utun8".to_owned(),
            mtu: 1500,
            offload: cell.offload == Offload::On,
            tx_queue_len: Some(4308),
        }),
        effective: cell.stack().map(|stack| fixture::effective(stack.to_string(), 64_280)),
        ..Measurements::failed(Status::Ok, "")
    }
}

/// Returns ten intervals of equal length, with all bytes of the run.
fn intervals(measured: &Measurements) -> Vec<Interval> {
    let part = |index: u64| measured.bytes / 10 + measured.bytes / 200 * (index % 3) - measured.bytes / 200;
    let mut intervals: Vec<_> = (0..9)
        .map(|index| Interval {
            end: measured.elapsed / 10 * (index as u32 + 1),
            bytes: part(index),
            ..Interval::default()
        })
        .collect();
    let before: u64 = intervals.iter().map(|interval| interval.bytes).sum();
    intervals.push(Interval { end: measured.elapsed, bytes: measured.bytes - before, ..Interval::default() });
    intervals
}

/// Halves the rate, as if something else had used the machine.
fn slow(sample: &mut Sample) {
    sample.measured.bytes /= 2;
    sample.measured.intervals = intervals(&sample.measured);
}

pub(crate) fn fail(sample: &mut Sample, status: Status, detail: &str) {
    let measured = &sample.measured;
    sample.measured = Measurements {
        round: measured.round,
        started_unix_ms: measured.started_unix_ms,
        ..Measurements::failed(status, detail)
    };
}
