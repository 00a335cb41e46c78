//! A machine that does not exist, and cells and settings of its runs.

use netstacks::Effective;
use rust_tun_perf::cell::Cell;

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

/// The checked cell of a line of words.
pub(crate) fn cell(words: &str) -> Cell {
    Cell::parse(words).unwrap().checked().unwrap()
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
