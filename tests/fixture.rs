//! A machine that does not exist, and cells and settings of its runs.

use std::num::NonZeroU16;

use netstacks::{Effective, StackCongestion, Workarounds};
use rust_tun_perf::cell::{Cell, Generator, Impairments, Subject, Workload};

/// A machine with two fast processors.
pub(crate) fn machine() -> platform::Environment {
    platform::Environment {
        system: "linux".to_owned(),
        architecture: "x86_64".to_owned(),
        kernel: Some("6.1.0".to_owned()),
        cpu: Some("Fast".to_owned()),
        cpus: Some(2),
        governor: None,
        virtual_machine: Some(false),
        machine: None,
    }
}

/// A cell on the current-thread runtime, with offload if it has a link.
pub(crate) fn cell(subject: Subject, workload: Workload) -> Cell {
    let link = subject != Subject::Loopback;
    Cell {
        subject,
        workload,
        conditions: Conditions::default(),
        runtime: Some(RuntimeKind::CurrentThread),
        offload: link.then_some(true),
        mtu: link.then_some(1500),
        parallel: 1,
        shards: NonZeroU16::MIN,
        queues: None,
        client_threads: None,
        pin: None,
        bitrate: None,
        background: None,
        ipv6: false,
        window_bytes: link.then_some(4 << 20),
        buffer_bytes: 1_000_000,
        workarounds: Workarounds::ALL,
        stack_congestion: StackCongestion::None,
        queue_packets: None,
        generator: Generator::Own,
    }
}

/// The settings of a stack of this version, whose packets have so many bytes at most.
pub(crate) fn effective(version: String, largest_packet_bytes: usize) -> Effective {
    Effective {
        stack_version: version.into(),
        shards: 1,
        receive_buffer_bytes: 4 << 20,
        send_buffer_bytes: 4 << 20,
        window_scale: Some(7),
        largest_packet_bytes,
        congestion: "none".into(),
        checksum_verified: false,
        checksum_computed: false,
        workarounds: Vec::new(),
    }
}
