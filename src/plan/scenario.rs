//! A run: its cell, its amounts, and the names of its devices.

use std::iter;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use platform::Network;

use crate::cell::{Cell, Generator, Impairments, Verify};
use crate::program::Profile;

/// How long the mode idle lets the subject release memory by default.
pub const DEFAULT_RELEASE: Duration = Duration::from_secs(1);

const CHECKED_BYTES: u64 = 1_000_000;

/// Most bytes of a path check: a program of 0.2 Gbps carries them in time.
const MOST_CHECKED_BYTES: u64 = 200_000_000;

const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

const CHECK_TIME: Duration = Duration::from_millis(50);

const CHECK_BITRATE: u64 = 10_000_000;

const CHECK_PATH: &str = "--check-path";

const LINK_SEED: &str = "--link-seed=";

/// Everything that describes one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The properties that make it comparable.
    pub cell: Cell,
    /// The words that make it; none if it is made in this process alone.
    pub words: Vec<String>,
    /// The seed of all chance on the link.
    pub link_seed: u64,
    /// The congestion control of the kernel's sockets; `None` for cubic, or else the kernel's own.
    pub congestion: Option<String>,
    /// How much of the payload is checked.
    pub verify: Verify,
    /// How much is delivered in the timed window, by all streams of a direction together.
    pub amount: Amount,
    /// The mode idle reads the memory this long after it has closed its last connection.
    pub release: Duration,
    /// How much is delivered before the timed window, in bytes, by all streams of a direction together.
    pub warmup_bytes: u64,
    /// How often arrived bytes are recorded.
    pub interval: Option<Duration>,
    /// The run has failed after this time.
    pub timeout: Duration,
    /// Whether the run gets a network namespace of its own.
    pub isolated: bool,
    /// Names and addresses of the devices.
    pub devices: Devices,
    /// The forwarder in Go, if it is already built.
    pub go_forwarder: Option<PathBuf>,
    /// The command of a stack that is a process of its own; gVisor has none.
    pub command: Option<String>,
    /// The file for a flame graph. A run that makes one is not scored.
    pub profile: Option<PathBuf>,
    /// The file for the packets of its device.
    pub pcap: Option<PathBuf>,
}

/// How much is delivered in the timed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of bytes.
    Bytes(NonZeroU64),
    /// For a time, and up to ten times as long if that is enough to deliver a number of bytes.
    Time {
        /// The shortest time.
        time: Duration,
        /// The fewest bytes, of all streams of a direction together.
        bytes: u64,
    },
}

impl Amount {
    /// For a time, with no least number of bytes.
    pub const fn time(time: Duration) -> Self {
        Self::Time { time, bytes: 0 }
    }

    /// How many times as long as its time a window lasts at most, to deliver its bytes.
    pub const STRETCH: u32 = 10;

    /// Whether a window is over `elapsed` after its begin, when `arrived` bytes of a direction have arrived. A window
    /// whose bytes would not be there in ten times its time, at the rate so far, is over after its time.
    #[inline]
    pub fn is_over(self, elapsed: Duration, arrived: u64) -> bool {
        match self {
            Self::Bytes(bytes) => arrived >= bytes.get(),
            Self::Time { time, bytes } => {
                let expected = u128::from(arrived) * (time * Self::STRETCH).as_nanos();
                elapsed >= time && (arrived >= bytes || expected < u128::from(bytes) * elapsed.as_nanos())
            }
        }
    }
}

/// Names and addresses of the devices of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// One device, with the stack on its other side. Subjects without a device use the addresses alone.
    Tun(Tun),
    /// One device in each of two networks: those of a forwarder.
    Pair {
        /// The device in the network of the clients.
        near: End,
        /// The device in the network of the servers.
        far: End,
    },
    /// A device of another program, and the address of the servers, in this network.
    Given(End),
}

/// A TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tun {
    /// The interface's name.
    pub name: String,
    /// Whether the device may have another unit if the name, which the user did not give, is taken.
    pub or_next: bool,
    /// Its addresses.
    pub network: Network,
    /// An open device to take over instead of making one.
    pub fd: Option<i32>,
}

/// A device of another program. Its address is its own in the network of a forwarder, or else that of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The interface's name.
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

impl Scenario {
    /// Whether the packets are IPv6.
    pub const fn ipv6(&self) -> bool {
        self.cell.ipv6
    }

    /// The device of another program that the clients are bound to.
    pub(crate) fn given(&self) -> Option<&str> {
        if let Devices::Given(End { name, .. }) = &self.devices { Some(name) } else { None }
    }

    /// The addresses of the servers, of which this is the first: one behind each peer of a tunnel.
    pub(crate) fn servers(&self, first: IpAddr) -> Vec<IpAddr> {
        let of_peer = |number| {
            let Devices::Tun(Tun { network, .. }) = &self.devices else { return first };
            let network = network.after(number);
            if self.cell.inbound { network.address } else { network.peer }
        };
        iter::once(first).chain((1..self.cell.peers.get()).map(of_peer)).collect()
    }

    pub(crate) fn profile_of_user(&self) -> Option<Profile> {
        self.cell.program.as_ref()?.profile().filter(|profile| profile.is_of_file()).cloned()
    }

    /// The cell of its sample before the run: it offloads only if the scenario demands it.
    pub fn planned(&self) -> Cell {
        self.cell.with_offload(false)
    }

    /// The same run with another seed.
    #[must_use]
    pub fn seeded(&self, link_seed: u64) -> Self {
        Self { words: self.words_with(LINK_SEED, &link_seed.to_string()), link_seed, ..self.clone() }
    }

    fn words_with(&self, begin: &str, rest: &str) -> Vec<String> {
        let others = self.words.iter().filter(|word| !word.starts_with(begin)).cloned();
        others.chain([format!("{begin}{rest}")]).collect()
    }

    /// A short run of the same cell that compares every byte: it shows whether the path works at all.
    #[must_use]
    pub fn path_check(&self) -> Self {
        let workload = self.cell.workload();
        let bytes = (CHECKED_BYTES * u64::from(self.cell.parallel.get())).min(MOST_CHECKED_BYTES);
        let (amount, warmup_bytes) = if !workload.is_stream() {
            (Amount::time(CHECK_TIME), 0)
        } else if self.cell.subject().is_carrier() {
            (Amount::time(CHECK_TIME), bytes)
        } else {
            (Amount::Bytes(NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN)), 0)
        };
        Self {
            cell: Cell {
                // The check asks whether the path works, not how well it works over a bad link.
                impairments: Impairments::default(),
                bitrate: self.cell.datagram.and(NonZeroU64::new(CHECK_BITRATE)),
                background: None,
                generator: Generator::Own,
                rest: self.cell.rest.min(Cell::default().rest),
                ..self.cell.clone()
            },
            words: self.words_with(CHECK_PATH, ""),
            amount,
            warmup_bytes,
            interval: None,
            verify: Verify::Full,
            timeout: self.timeout.min(CHECK_TIMEOUT),
            release: if workload.is_held() { self.release.min(CHECK_TIME) } else { self.release },
            profile: None,
            pcap: None,
            ..self.clone()
        }
    }
}
