//! A sample as one JSON object on a line.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::time::Duration;

use netstacks::{Effective, StackKind};
use platform::Environment;
use serde::Serialize;

use crate::measure::Figures;
use crate::plan::{Mode, RuntimeKind, Verify};
use crate::run::{DeviceFacts, Sample, Status};

/// The version of the object's shape. It grows when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// Writes the sample, and nothing else.
///
/// # Errors
///
/// The writer's own.
pub fn json(sample: &Sample, figures: &Figures, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Record::new(sample, figures))?;
    writeln!(out)?;
    out.flush()
}

/// The object. `null` is what the system does not say.
#[derive(Serialize)]
struct Record<'a> {
    schema: u32,
    kind: &'static str,
    version: &'static str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    netstack: StackKind,
    mode: Mode,
    runtime: &'static str,
    worker_threads: Option<usize>,
    offload: bool,
    mtu: usize,
    parallel: u16,
    ipv6: bool,
    window_bytes: usize,
    buffer_bytes: usize,
    congestion: Option<&'a str>,
    warmup_bytes: u64,
    bytes: u64,
    elapsed_ns: u64,
    gbps: f64,
    verified: Verify,
    cpu: Cpu,
    peak_rss_bytes: Option<u64>,
    retransmits: Option<u64>,
    device_drops: Option<u64>,
    packets: Packets,
    bytes_per_packet: Option<f64>,
    device: Option<&'a DeviceFacts>,
    effective: Option<&'a Effective>,
    environment: Machine<'a>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Cpu {
    client_seconds: Option<f64>,
    stack_seconds: Option<f64>,
}

/// Packets from the device to the stack, and from the stack to the device.
#[derive(Serialize)]
struct Packets {
    rx: u64,
    tx: u64,
}

#[derive(Serialize)]
struct Machine<'a> {
    id: String,
    #[serde(flatten)]
    environment: &'a Environment,
}

impl<'a> Record<'a> {
    fn new(sample: &'a Sample, figures: &Figures) -> Self {
        let scenario = &sample.scenario;
        Self {
            schema: SCHEMA,
            kind: "throughput",
            version: env!("CARGO_PKG_VERSION"),
            status: sample.status,
            detail: sample.detail.as_deref(),
            netstack: scenario.netstack,
            mode: scenario.mode,
            runtime: scenario.runtime.name(),
            worker_threads: match scenario.runtime {
                RuntimeKind::MultiThread(workers) => workers.map(Into::into),
                RuntimeKind::CurrentThread => None,
            },
            offload: sample.device.as_ref().is_some_and(|device| device.offload),
            mtu: sample.device.as_ref().map_or(scenario.mtu.into(), |device| device.mtu),
            parallel: scenario.parallel.get(),
            ipv6: scenario.network.address.is_ipv6(),
            window_bytes: scenario.window_bytes,
            buffer_bytes: scenario.buffer_bytes.get(),
            congestion: sample.congestion.as_deref(),
            warmup_bytes: scenario.warmup_bytes,
            bytes: sample.bytes,
            elapsed_ns: u64::try_from(sample.elapsed.as_nanos()).unwrap_or(u64::MAX),
            gbps: (figures.gbps * 1e6).round() / 1e6,
            verified: sample.verified(),
            cpu: Cpu { client_seconds: seconds(sample.client_cpu), stack_seconds: seconds(sample.stack_cpu) },
            peak_rss_bytes: sample.peak_rss_bytes,
            retransmits: sample.retransmits,
            device_drops: sample.device_drops,
            packets: Packets { rx: sample.packets.rx_packets, tx: sample.packets.tx_packets },
            bytes_per_packet: figures.bytes_per_packet.map(f64::round),
            device: sample.device.as_ref(),
            effective: sample.effective.as_ref(),
            environment: Machine { id: id(&sample.environment), environment: &sample.environment },
            warnings: figures.warnings.iter().map(ToString::to_string).collect(),
        }
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// A short name for a machine: equal for equal environments of one build.
fn id(environment: &Environment) -> String {
    let mut hasher = DefaultHasher::new();
    format!("{environment:?}").hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
