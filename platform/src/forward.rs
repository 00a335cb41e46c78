//! Carrying packets from one TUN device to another, both ways: the ways to do it, and what one costs.
//!
//! Each way is a point on three axes: how a device is read and written ([`Io`]), what becomes of
//! super-packets ([`Offload`]), and how a packet comes from the reader to the writer ([`Hop`]).

use std::num::NonZeroU16;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::imp::{Counters, Forwarder, Stopper};

/// How a device is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// A thread for each worker and direction, which sleeps in poll(2) when there is nothing to read.
    Sync,
    /// Tasks of tokio's runtime.
    Async,
    /// The same, through tun-rs's `DeviceFramed`, a stream and a sink of packets.
    Framed,
}

/// What becomes of TCP super-packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// There are none: packets have the size of the MTU at most, and a checksum.
    Off,
    /// Each is cut into packets of the MTU's size when it is read, and these are joined again when they are
    /// written, by tun-rs.
    On,
    /// Each is passed on as it is, with the `virtio_net_hdr` in front of it.
    Whole,
}

/// How a packet comes from the reader of one device to the writer of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hop {
    /// They are one.
    Direct,
    /// By a bounded channel, each packet in memory of its own.
    Channel,
    /// By a bounded channel, in buffers that come back to the reader.
    Pool,
}

/// A way to carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Way {
    /// How a device is read and written.
    pub io: Io,
    /// What becomes of super-packets.
    pub offload: Offload,
    /// How packets come from reader to writer.
    pub hop: Hop,
    /// How many carry packets in each direction, side by side; more than one reorder them.
    pub workers: NonZeroU16,
    /// Threads of the runtime of [`Io::Async`] and [`Io::Framed`]; `None` for one for each processor.
    pub threads: Option<NonZeroU16>,
}

/// The devices that packets are carried between. They are made, and nothing more: addresses, MTU, queue and
/// routes are for somebody else to set up, and so is taking them up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Name of the device in the calling thread's network namespace.
    pub near: String,
    /// Name of the device in the other one.
    pub far: String,
    /// The other namespace, as a file of `/proc/PID/ns` (`namespaces(7)`).
    pub far_namespace: PathBuf,
}

/// What a forwarder has carried from one device to the other so far. A super-packet is one packet, but for those
/// that see only what it is cut into: [`Io::Framed`] and the forwarder in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Packets that were read.
    pub read_packets: u64,
    /// Bytes of these, IP headers included, without `virtio_net_hdr`.
    pub read_bytes: u64,
    /// Packets that were written.
    pub written_packets: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Packets that were read and could not be carried on: the kernel did not take them, or nobody could make
    /// sense of them.
    pub lost_packets: u64,
    /// Of the packets of TCP with payload that were written: those that came after one which lies later in
    /// their flow. Segments that the sender has sent again are among them. `None` where nobody counts.
    pub reordered: Option<u64>,
}

/// The same for both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// From the near device to the far one.
    pub to_far: Carried,
    /// From the far device to the near one.
    pub to_near: Carried,
}

/// The most workers that a direction may have.
const MAX_WORKERS: u16 = 64;

/// The most threads that a runtime may have.
const MAX_THREADS: u16 = 1024;

impl Way {
    /// Whether packets can be carried that way.
    ///
    /// # Errors
    ///
    /// Why not, by the option.
    pub fn check(&self) -> Result<(), Illegal> {
        let Self { io, offload, hop, workers, threads } = *self;
        let framed = io == Io::Framed;
        let (option, reason) = if framed && offload == Offload::Whole {
            ("--offload", "not whole with --io framed, whose stream cuts super-packets by itself")
        } else if framed && hop == Hop::Pool {
            ("--hop", "not pool with --io framed, whose stream makes its own buffers")
        } else if framed && workers.get() > 1 {
            (
                "--workers",
                "only 1 with --io framed, for of several that wait for one device, tun-rs wakes the last alone",
            )
        } else if workers.get() > MAX_WORKERS {
            ("--workers", "must be 1 to 64")
        } else if io == Io::Sync && threads.is_some() {
            ("--thread", "not with --io sync, where each worker has threads of its own")
        } else if threads.is_some_and(|threads| threads.get() > MAX_THREADS) {
            ("--thread", "must be 1 to 1024")
        } else {
            return Ok(());
        };
        Err(Illegal { option, reason })
    }
}

/// Why packets cannot be carried in a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct Illegal {
    /// The option that is wrong.
    pub option: &'static str,
    /// Why.
    pub reason: &'static str,
}

impl Io {
    /// The name by which users choose it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
            Self::Framed => "framed",
        }
    }
}

impl Offload {
    /// The name by which users choose it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Whole => "whole",
        }
    }
}

impl Hop {
    /// The name by which users choose it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Channel => "channel",
            Self::Pool => "pool",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn way(io: Io, offload: Offload, hop: Hop) -> Way {
        Way { io, offload, hop, workers: NonZeroU16::MIN, threads: None }
    }

    /// The reasons why ways cannot be, among all with these workers and threads.
    fn refused(workers: u16, threads: Option<u16>) -> Vec<String> {
        let mut refused = Vec::new();
        for io in [Io::Sync, Io::Async, Io::Framed] {
            for offload in [Offload::Off, Offload::On, Offload::Whole] {
                for hop in [Hop::Direct, Hop::Channel, Hop::Pool] {
                    let way = Way {
                        workers: NonZeroU16::new(workers).unwrap(),
                        threads: threads.and_then(NonZeroU16::new),
                        ..way(io, offload, hop)
                    };
                    if let Err(Illegal { option, .. }) = way.check() {
                        refused.push(format!("{} {} {}: {option}", io.name(), offload.name(), hop.name()));
                    }
                }
            }
        }
        refused
    }

    #[test]
    fn every_way_that_cannot_be_is_refused_by_the_name_of_an_option() {
        let framed = [
            "framed off pool: --hop",
            "framed on pool: --hop",
            "framed whole direct: --offload",
            "framed whole channel: --offload",
            "framed whole pool: --offload",
        ];
        assert_eq!(refused(1, None), framed);
        let threads = refused(1, Some(2));
        assert_eq!(threads.len(), 9 + 5);
        assert!(threads[..9].iter().all(|way| way.starts_with("sync") && way.ends_with("--thread")), "{threads:?}");
        assert_eq!(threads[9..], framed);
        let workers = refused(2, None);
        assert_eq!(workers.len(), 9);
        assert!(workers.iter().all(|way| way.starts_with("framed")), "{workers:?}");
        assert_eq!(refused(64, Some(1024)).len(), 9 + 9);
        assert_eq!((refused(65, None).len(), refused(1, Some(1025)).len()), (27, 27));
    }

    #[test]
    fn counts_may_leave_out_what_nobody_counts() {
        let text = r#"{"read_packets":1,"read_bytes":2,"written_packets":3,"written_bytes":4,"lost_packets":5,"reordered":null}"#;
        let carried: Carried = serde_json::from_str(text).unwrap();
        let expected = Carried {
            read_packets: 1,
            read_bytes: 2,
            written_packets: 3,
            written_bytes: 4,
            lost_packets: 5,
            reordered: None,
        };
        assert_eq!(carried, expected);
    }
}
