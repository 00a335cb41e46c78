//! Samples for tests.

use std::sync::Arc;
use std::time::Duration;

use netstacks::StackKind;

use crate::plan::{Direction, Forwarder, Generator, Layer, Mode, RuntimeKind};
use crate::sample::{Cell, Environment, Facts, ForwardCell, Program, Sample, StackCell, Status};

/// A cell of the whole path.
pub(super) fn cell(netstack: StackKind, mode: Mode) -> StackCell {
    StackCell {
        layer: Layer::Path,
        netstack: Some(netstack),
        mode: Some(mode),
        runtime: RuntimeKind::CurrentThread,
        offload: Some(false),
        mtu: Some(1500),
        parallel: 1,
        ipv6: false,
        window_bytes: Some(4 << 20),
        buffer_bytes: 1_000_000,
    }
}

/// A cell of a forwarder.
pub(crate) fn forwarder(forwarder: Forwarder) -> ForwardCell {
    ForwardCell {
        forwarder,
        direction: Direction::Forward,
        generator: Generator::Own,
        mtu: 1500,
        parallel: 1,
        ipv6: false,
        buffer_bytes: 131_072,
        queue_packets: 500,
    }
}

/// A run of that rate that gives no reason for a warning.
pub(super) fn sample(cell: &(impl Into<Cell> + Clone), gbps: f64) -> Sample {
    let elapsed = Duration::from_secs(2);
    let bytes = (gbps * 1e9 / 8.0 * elapsed.as_secs_f64()) as u64;
    let facts = Facts { status: Status::Ok, detail: None, bytes, elapsed, ..Facts::failed(Status::Ok, "") };
    let machine = platform::Environment {
        system: "linux".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel: Some("6.1.0".to_owned()),
        cpu: Some("Fast".to_owned()),
        cpus: Some(2),
        governor: None,
        virtual_machine: Some(false),
    };
    let environment = Arc::new(Environment { machine, program: Program::default() });
    Sample { cell: cell.clone().into(), facts, environment }
}

/// A run that failed.
pub(super) fn failed(cell: &(impl Into<Cell> + Clone), status: Status) -> Sample {
    Sample { facts: Facts::failed(status, "it did not go on"), ..sample(cell, 0.0) }
}

/// The sample as one of a round.
pub(super) fn in_round(mut sample: Sample, round: u32) -> Sample {
    sample.facts.round = Some(round);
    sample
}
