//! Samples for tests.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};

use crate::cell::{Cell, Conditions, Forwarder, Generator, Mode, Requests, RuntimeKind, Subject, Workload};
use crate::program::Role;
use crate::sample::{
    Environment, Latency, Measurements, ProcessFacts, Program, ProgramFacts, RequestFacts, Sample, Status,
};

/// A cell of the whole path.
pub(crate) fn cell(netstack: StackKind, mode: Mode) -> Cell {
    Cell {
        subject: Subject::Path(netstack),
        workload: Workload::Stream(mode),
        conditions: Conditions::default(),
        runtime: Some(RuntimeKind::CurrentThread),
        offload: Some(false),
        mtu: Some(1500),
        parallel: 1,
        shards: NonZeroU16::MIN,
        queues: None,
        client_threads: None,
        pin: None,
        bitrate: None,
        background: None,
        ipv6: false,
        window_bytes: Some(4 << 20),
        buffer_bytes: 1_000_000,
        repairs: Repairs::ALL,
        stack_congestion: StackCongestion::None,
        queue_packets: None,
        generator: Generator::Own,
    }
}

/// A cell of a forwarder.
pub(crate) fn forwarder(forwarder: Forwarder) -> Cell {
    Cell {
        subject: Subject::Forward(forwarder),
        runtime: None,
        offload: None,
        window_bytes: None,
        buffer_bytes: 131_072,
        queue_packets: Some(500),
        ..cell(StackKind::Smoltcp, Mode::Writer)
    }
}

/// A machine about which little is known, and a program about which nothing is.
pub(crate) fn environment() -> Environment {
    let machine = platform::Environment {
        system: "linux".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel: Some("6.1.0".to_owned()),
        cpu: Some("Fast".to_owned()),
        cpus: Some(2),
        governor: None,
        virtual_machine: Some(false),
        machine: None,
    };
    Environment { machine, program: Program::default() }
}

/// A run of this rate, without warnings.
pub(crate) fn sample(cell: &Cell, gbps: f64) -> Sample {
    let elapsed = Duration::from_secs(2);
    let bytes = (gbps * 1e9 / 8.0 * elapsed.as_secs_f64()) as u64;
    let measured = Measurements { detail: None, bytes, elapsed, ..Measurements::failed(Status::Ok, "") };
    Sample { cell: cell.clone(), measured, environment: Arc::new(environment()) }
}

/// A run of a program as a reader.
pub(crate) fn program(name: &str, role: Option<Role>, gbps: f64) -> Sample {
    let like = cell(StackKind::Lwip, Mode::Reader);
    let subject = Subject::Program(name.parse().unwrap());
    let cell = Cell { subject, runtime: None, offload: None, window_bytes: None, ..like };
    let mut run = sample(&cell, gbps);
    let at_rest = ProcessFacts { pss_bytes: Some(2_500_000), ..ProcessFacts::default() };
    let facts = ProgramFacts { role, start_seconds: 0.012, at_rest, ..ProgramFacts::default() };
    run.measured.program = Some(Box::new(facts));
    run
}

/// A cell with requests that are made at a rate.
pub(crate) fn at_a_rate(netstack: StackKind) -> Cell {
    let requests = Requests { rate: NonZeroU32::new(1000), ..Requests::default() };
    Cell { workload: Workload::Rr(requests), ..cell(netstack, Mode::Reader) }
}

/// A run in which every request took this long.
pub(crate) fn answering(cell: &Cell, latency_us: f64) -> Sample {
    let mut latency = Latency::new();
    (0..1000).for_each(|_| latency.record(Duration::from_secs_f64(latency_us / 1e6)));
    let mut run = sample(cell, 0.0);
    run.measured.requests = Some(RequestFacts { answered: 1000, latency, ..RequestFacts::default() });
    run
}

/// A run that failed.
pub(crate) fn failed(cell: &Cell, status: Status) -> Sample {
    Sample { measured: Measurements::failed(status, "it did not go on"), ..sample(cell, 0.0) }
}

/// The sample, in a round.
pub(crate) fn in_round(mut sample: Sample, round: u32) -> Sample {
    sample.measured.round = Some(round);
    sample
}
