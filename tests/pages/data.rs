//! How the files of `tests/data` were made: plausible samples of two machines that never were.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netstacks::{Effective, StackKind};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rust_tun_perf::plan::{Layer, Mode, RuntimeKind, Verify};
use rust_tun_perf::sample::{
    CpuTime, DeviceFacts, Environment, Facts, Head, Interval, Packets, Program, Sample, StackCell, Status, line,
};

use super::forwarders;

const STACKS: [StackKind; 3] = [StackKind::Lwip, StackKind::Ipstack, StackKind::Smoltcp];
const MODES: [Mode; 2] = [Mode::Reader, Mode::Writer];
/// When the first run was made.
pub(crate) const STARTED_UNIX_MS: u64 = 1_790_000_000_000;

/// Writes the files anew. Their samples are in the snapshots, which then change with them.
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

/// All layers with a current-thread runtime, failures, an outlier and the rate within the runs.
fn laptop() -> String {
    let mut cells = vec![cell(Layer::Device, None, None)];
    for mode in MODES {
        cells.push(cell(Layer::Loopback, None, Some(mode)));
        for layer in [Layer::Stack, Layer::Path] {
            cells.extend(STACKS.map(|stack| cell(layer, Some(stack), Some(mode))));
        }
    }
    samples(machine(), &cells, 7, 1.0, |sample| {
        let StackCell { layer, netstack, mode, .. } = *sample.cell.stack().unwrap();
        let path = layer == Layer::Path;
        match (netstack, mode, sample.facts.round) {
            (Some(StackKind::Lwip), Some(Mode::Reader), Some(4)) if path => slow(sample),
            (Some(StackKind::Ipstack), Some(Mode::Reader), Some(2 | 5)) if path => {
                fail(sample, Status::Stalled, "nothing arrived for the last 59.0 of 60 seconds, after 12 bytes");
            }
            (Some(StackKind::Ipstack), Some(Mode::Writer), _) if path => {
                fail(sample, Status::Panicked, "<b>the stack's task</b> panicked: \"index | out of bounds\"");
            }
            _ if path => sample.facts.intervals = intervals(&sample.facts),
            _ => {}
        }
    })
}

/// The laptop.
fn machine() -> Environment {
    Environment {
        machine: platform::Environment {
            system: "linux".to_owned(),
            architecture: "x86_64".to_owned(),
            kernel: Some("6.12.48".to_owned()),
            cpu: Some("Example i7-1360P".to_owned()),
            cpus: Some(16),
            governor: Some("powersave".to_owned()),
            virtual_machine: Some(false),
        },
        program: program(),
    }
}

/// Two stacks on both runtimes, with and without offload.
fn server() -> String {
    let mut cells = Vec::new();
    for offload in [false, true] {
        for stack in [StackKind::Lwip, StackKind::Smoltcp] {
            for mode in MODES {
                for runtime in [RuntimeKind::CurrentThread, RuntimeKind::MultiThread(None)] {
                    let cell = cell(Layer::Path, Some(stack), Some(mode));
                    cells.push(StackCell { runtime, offload: Some(offload), ..cell });
                }
            }
        }
    }
    let environment = Environment {
        machine: platform::Environment {
            system: "linux".to_owned(),
            architecture: "aarch64".to_owned(),
            kernel: Some("6.1.0-38-cloud".to_owned()),
            cpu: None,
            cpus: Some(4),
            governor: None,
            virtual_machine: Some(true),
        },
        program: program(),
    };
    samples(environment, &cells, 3, 0.7, |sample| sample.facts.started_unix_ms = None)
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
    }
}

fn cell(layer: Layer, netstack: Option<StackKind>, mode: Option<Mode>) -> StackCell {
    let link = layer != Layer::Loopback;
    StackCell {
        layer,
        netstack,
        mode,
        runtime: RuntimeKind::CurrentThread,
        offload: link.then_some(true),
        mtu: link.then_some(1500),
        parallel: 1,
        ipv6: false,
        window_bytes: link.then_some(4 << 20),
        buffer_bytes: 1_000_000,
    }
}

fn samples(environment: Environment, cells: &[StackCell], rounds: u32, speed: f64, change: fn(&mut Sample)) -> String {
    let head = Head {
        id: environment.id(),
        environment: environment.clone(),
        arguments: ["matrix", "--netstack", "all", "--time", "1"].map(ToOwned::to_owned).to_vec(),
        seed: 7,
        plan: cells.iter().map(arguments).collect(),
    };
    let mut text = head.line() + "\n";
    let environment = Arc::new(environment);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 1..=rounds {
        for (index, cell) in cells.iter().enumerate() {
            let place = (round as usize - 1) * cells.len() + index;
            let gbps = typical(cell) * speed * random.random_range(0.96..1.04);
            let facts = Facts {
                round: Some(round),
                started_unix_ms: Some(STARTED_UNIX_MS + place as u64 * 1_900),
                ..facts(cell, gbps)
            };
            let mut sample = Sample { cell: cell.clone().into(), facts, environment: Arc::clone(&environment) };
            change(&mut sample);
            text += &(line(&sample) + "\n");
        }
    }
    text
}

fn arguments(cell: &StackCell) -> String {
    let mut words = Vec::new();
    if cell.layer != Layer::Path {
        words.push(format!("--layer={}", cell.layer));
    }
    words.extend(cell.mode.map(|mode| format!("--mode={mode}")));
    words.extend(cell.netstack.map(|stack| format!("--netstack={stack}")));
    if cell.runtime == RuntimeKind::CurrentThread {
        words.push("--current-thread".to_owned());
    }
    words.extend(cell.offload.map(|offload| format!("--offload={}", if offload { "on" } else { "off" })));
    words.push("--time=1".to_owned());
    words.join(" ")
}

/// About what a cell comes to, in Gbps.
fn typical(cell: &StackCell) -> f64 {
    let stack = match cell.netstack {
        Some(StackKind::Lwip) => 50.0,
        Some(StackKind::Ipstack) => 9.0,
        Some(StackKind::Smoltcp) => 42.0,
        None => 75.0,
    };
    let layer = if cell.layer == Layer::Stack { 1.7 } else { 1.0 };
    let mode = if cell.mode == Some(Mode::Reader) { 0.8 } else { 1.0 };
    let offload = if cell.offload == Some(false) { 0.07 } else { 1.0 };
    let runtime = if cell.runtime == RuntimeKind::CurrentThread { 1.0 } else { 0.9 };
    stack * layer * mode * offload * runtime
}

fn facts(cell: &StackCell, gbps: f64) -> Facts {
    let elapsed = Duration::from_nanos(1_000_512_345);
    let bytes = (gbps * elapsed.as_nanos() as f64 / 8.0) as u64;
    let size = if cell.offload == Some(false) { 1_500 } else { 63_400 };
    let (payload, acknowledgements) = (bytes / size, bytes / size / 4);
    let (rx, tx) =
        if cell.mode == Some(Mode::Writer) { (payload, acknowledgements) } else { (acknowledgements, payload) };
    let (rx_bytes, tx_bytes) =
        if cell.mode == Some(Mode::Writer) { (payload * size, tx * 40) } else { (rx * 40, payload * size) };
    let packets = Packets { rx, tx, rx_bytes, tx_bytes };
    let link = cell.layer != Layer::Loopback;
    let kernel = matches!(cell.layer, Layer::Path | Layer::Loopback);
    Facts {
        status: Status::Ok,
        detail: None,
        congestion: kernel.then(|| "cubic".to_owned()),
        warmup_bytes: 64_000_000,
        bytes,
        bytes_back: None,
        elapsed,
        verified: Verify::Sample,
        cpu: CpuTime { client_seconds: kernel.then_some(0.62), stack_seconds: Some(0.97), forwarder_seconds: None },
        peak_rss_bytes: Some(11 << 20),
        retransmits: kernel.then_some(0),
        reordered: None,
        device_drops: (cell.layer == Layer::Path).then_some(0),
        packets: if link { packets } else { Packets::default() },
        tcp: None,
        intervals: Vec::new(),
        started_unix_ms: None,
        device: (cell.layer == Layer::Path).then(|| DeviceFacts {
            name: "utun8".to_owned(),
            mtu: 1500,
            offload: cell.offload == Some(true),
            tx_queue_len: Some(4308),
        }),
        effective: cell.netstack.map(effective),
        round: None,
    }
}

fn effective(stack: StackKind) -> Effective {
    Effective {
        stack_version: stack.to_string().into(),
        receive_buffer_bytes: 4 << 20,
        send_buffer_bytes: 4 << 20,
        window_scale: Some(7),
        largest_packet_bytes: 64_280,
        congestion: "none".into(),
        checksum_verified: false,
        checksum_computed: false,
    }
}

/// Ten of about equal length, which together are the whole.
fn intervals(facts: &Facts) -> Vec<Interval> {
    let part = |index: u64| facts.bytes / 10 + facts.bytes / 200 * (index % 3) - facts.bytes / 200;
    let mut intervals: Vec<_> = (0..9)
        .map(|index| Interval {
            end: facts.elapsed / 10 * (index as u32 + 1),
            bytes: part(index),
            ..Interval::default()
        })
        .collect();
    let before: u64 = intervals.iter().map(|interval| interval.bytes).sum();
    intervals.push(Interval { end: facts.elapsed, bytes: facts.bytes - before, ..Interval::default() });
    intervals
}

/// Something else had the machine for a while.
fn slow(sample: &mut Sample) {
    sample.facts.bytes /= 2;
    sample.facts.intervals = intervals(&sample.facts);
}

pub(crate) fn fail(sample: &mut Sample, status: Status, detail: &str) {
    let facts = &sample.facts;
    sample.facts =
        Facts { round: facts.round, started_unix_ms: facts.started_unix_ms, ..Facts::failed(status, detail) };
}
