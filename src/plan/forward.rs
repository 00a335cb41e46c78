//! The forwarders: what there is to choose, and the rows of the table that compares them.

mod arguments;
mod check;

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use forwarders::{ForwardConfig as Way, Handoff as Hop, Io, Offload};
use serde::{Deserialize, Serialize};

use super::Verify;

/// The program that carries packets from one TUN device to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "forwarder", rename_all = "lowercase")]
pub enum Forwarder {
    /// This program's own, on tun-rs.
    Rust(Way),
    /// The one in Go, on wireguard-go's `tun` package.
    Go {
        /// What becomes of super-packets: it knows no [`Offload::Whole`].
        offload: Offload,
        /// How packets come from reader to writer.
        hop: Hop,
    },
}

impl Forwarder {
    /// What becomes of super-packets.
    pub const fn offload(self) -> Offload {
        match self {
            Self::Rust(way) => way.offload,
            Self::Go { offload, .. } => offload,
        }
    }

    /// How packets come from reader to writer.
    pub const fn hop(self) -> Hop {
        match self {
            Self::Rust(way) => way.hop,
            Self::Go { hop, .. } => hop,
        }
    }

    /// Whether it counts packets as they cross the devices, super-packets whole. tun-rs's stream and
    /// wireguard-go's package show only what super-packets are cut into and joined from.
    pub fn counts_whole(self) -> bool {
        matches!(self.io(), Some(Io::Sync | Io::Async))
    }

    /// How devices are read and written; `None` for the one in Go, whose runtime decides.
    pub const fn io(self) -> Option<Io> {
        match self {
            Self::Rust(way) => Some(way.io),
            Self::Go { .. } => None,
        }
    }
}

/// By the names that users choose it by: `sync, offload on, direct`.
impl fmt::Display for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = vec![self.io().map_or("go", Io::name).to_owned()];
        words.push(format!("offload {}", self.offload().name()));
        words.push(self.hop().name().to_owned());
        if let Self::Rust(way) = self {
            words.extend((way.workers.get() > 1).then(|| format!("{} workers", way.workers)));
            let plural = |count: u16| if count == 1 { "" } else { "s" };
            words.extend(way.threads.map(|threads| format!("{threads} thread{}", plural(threads.get()))));
        }
        f.pad(&words.join(", "))
    }
}

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the near network to the far one.
    Forward,
    /// From the far network to the near one.
    Reverse,
    /// Both at once, by as many streams each.
    Bidir,
}

/// Who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generator {
    /// This program.
    Own,
    /// iperf3.
    Iperf3,
}

/// The rows of the published table in its order, of which the first is number 1; after them the one
/// that passes super-packets on whole.
pub const ROWS: [Forwarder; 18] = {
    use Hop::{Channel, Direct, Pool};
    use Io::{Async, Framed, Sync};
    use Offload::{Off, On, Whole};
    [
        rust(Async, Off, Direct, 1),
        rust(Async, Off, Channel, 1),
        rust(Framed, Off, Channel, 1),
        rust(Async, On, Direct, 1),
        rust(Async, On, Channel, 1),
        rust(Async, On, Pool, 1),
        rust(Framed, On, Channel, 1),
        rust(Sync, Off, Direct, 1),
        rust(Sync, Off, Channel, 1),
        rust(Sync, On, Direct, 1),
        rust(Sync, On, Channel, 1),
        rust(Sync, On, Direct, 2),
        Forwarder::Go { offload: Off, hop: Direct },
        Forwarder::Go { offload: Off, hop: Channel },
        Forwarder::Go { offload: On, hop: Direct },
        Forwarder::Go { offload: On, hop: Channel },
        Forwarder::Go { offload: On, hop: Pool },
        rust(Sync, Whole, Direct, 1),
    ]
};

const fn rust(io: Io, offload: Offload, hop: Hop, workers: u16) -> Forwarder {
    let workers = match NonZeroU16::new(workers) {
        Some(workers) => workers,
        None => NonZeroU16::MIN,
    };
    Forwarder::Rust(Way { io, offload, hop, workers, threads: None })
}

impl Forwarder {
    /// Its number in the published table, from 1; `None` for what is not in it.
    pub fn row(self) -> Option<usize> {
        ROWS.iter().position(|row| *row == self).map(|index| index + 1)
    }
}

/// Everything that says how one run of a forwarder is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardScenario {
    /// What carries the packets.
    pub forwarder: Forwarder,
    /// Which way the payload goes.
    pub direction: Direction,
    /// Who makes the load.
    pub generator: Generator,
    /// For how long the load is timed.
    pub time: Duration,
    /// How much is delivered before that, in bytes, by all streams of a direction together; not by iperf3.
    pub warmup_bytes: u64,
    /// Streams at once, in each direction that has any.
    pub parallel: NonZeroU16,
    /// Size of one read or write of the load's, in bytes.
    pub buffer_bytes: NonZeroUsize,
    /// The streams' congestion control; `None` for cubic or else the kernel's own.
    pub congestion: Option<String>,
    /// How much of the payload is checked; by iperf3 nothing.
    pub verify: Verify,
    /// MTU of both devices, in bytes: 576 to 65,535.
    pub mtu: u16,
    /// How many packets may wait in each device before the kernel drops.
    pub queue_packets: u32,
    /// After how long the run has failed.
    pub timeout: Duration,
    /// The device in the network from which clients connect.
    pub near: End,
    /// The device in the network of the servers.
    pub far: End,
    /// Where a flame graph of the forwarder goes, which then is not scored.
    pub profile: Option<PathBuf>,
}

/// One of the two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
}

impl End {
    /// Length of the prefix of its network, in bits.
    pub const fn prefix_len(&self) -> u8 {
        if self.address.is_ipv6() { 64 } else { 24 }
    }
}

impl ForwardScenario {
    /// Whether packets are IPv6's.
    pub const fn ipv6(&self) -> bool {
        self.near.address.is_ipv6()
    }
}
