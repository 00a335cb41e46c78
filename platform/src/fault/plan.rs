//! The faults of a link, and their counts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use portable_atomic::AtomicU64;
use serde::{Deserialize, Serialize};

/// The faults of a [`Faulty`](super::Faulty) link. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The seed of all random choices.
    pub seed: u64,
    /// The faults of received packets.
    pub rx: Faults,
    /// The faults of sent packets.
    pub tx: Faults,
    /// Packets for which `try_send` returns `WouldBlock` once although the link has room. It is writable at once.
    pub block: Which,
    /// Packets for which `try_send` returns an error and sends nothing. By the contract of [`Link`](crate::Link), a stack takes this
    /// as the end of the link. A device with a temporary failure, such as `ENOBUFS` of a TUN device, reports the packet
    /// as sent and loses it; [`Faults::lose`] does the same.
    pub fail: Which,
    /// The system's number of that error.
    pub fail_with: i32,
}

/// The faults of one direction. The default has none. A packet gets at most one of the faults loss, duplication,
/// reordering and corruption: the first of these that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that are lost.
    pub lose: Which,
    /// Packets that arrive twice in a row.
    pub duplicate: Which,
    /// Packets that later ones overtake.
    pub reorder: Which,
    /// How many packets overtake a reordered packet, if so many follow. 0 counts as 1.
    pub reorder_by: usize,
    /// Packets with one flipped bit. Only for a link without offload: no receiver verifies the checksum of a
    /// super-packet.
    pub corrupt: Which,
    /// The delay of every packet.
    pub delay: Duration,
    /// The largest deviation from the delay, in both directions, evenly distributed. Packets stay in order.
    pub jitter: Duration,
    /// The rate limit, in bits a second. Packets wait in a queue; one that would wait longer than [`Faults::QUEUE`] is
    /// dropped.
    pub rate: Option<u64>,
    /// The limit on the length of packets.
    pub path_mtu: Option<PathMtu>,
}

/// A path that carries only packets of up to a length, as if a router with a smaller MTU were on it. A longer packet is
/// dropped, if it is IPv6, or IPv4 with "don't fragment". A super-packet is as long as one of its segments. A packet that
/// may be fragmented passes: a router would split it, and its receiver would put it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// The longest packet, in bytes.
    pub len: u16,
    /// Whether senders are told by ICMP (RFC 1191, RFC 8201), at most once each millisecond. If not, the path is a black
    /// hole for long packets.
    pub tells: bool,
}

impl Faults {
    /// The longest time that a packet waits in the queue of the rate limit.
    pub const QUEUE: Duration = Duration::from_millis(100);

    /// Whether packets have a delay.
    pub(super) fn takes_time(&self) -> bool {
        !self.delay.is_zero() || !self.jitter.is_zero() || self.rate.is_some()
    }
}

/// A choice of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// A random choice of one packet in `n`. 0 means [`Which::None`].
    OneIn(u32),
    /// A random choice of `n` packets in a million.
    PerMillion(u32),
    /// One packet, by its index among the packets that are longer than `longer_than` bytes. With the MTU as
    /// `longer_than`, it is a super-packet.
    Nth {
        /// The packet's index, from 0.
        index: u64,
        /// Packets of this length, in bytes, and shorter ones are not counted.
        longer_than: usize,
    },
}

/// The counters of a [`Faulty`](super::Faulty) link. Any thread can read them.
#[derive(Debug, Default)]
pub struct FaultCounter {
    pub(super) lost: AtomicU64,
    pub(super) duplicated: AtomicU64,
    pub(super) reordered: AtomicU64,
    pub(super) blocked: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) corrupted: AtomicU64,
    pub(super) overflowed: AtomicU64,
    pub(super) too_big: AtomicU64,
}

/// What the link did to packets, both ways together. A super-packet counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(rename = "LinkFacts"))]
pub struct FaultCounts {
    /// Packets that were lost by chance, or in the outage.
    pub lost: u64,
    /// Packets that were held back so that later ones overtook them.
    pub reordered: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets of which a bit was changed.
    pub corrupted: u64,
    /// Packets that were lost because too many waited.
    pub overflowed: u64,
    /// Packets that were dropped because they were too long for the path.
    #[serde(default)]
    pub too_big: u64,
    /// Packets for which [`FaultPlan::block`] denied room.
    #[serde(skip)]
    pub blocked: u64,
    /// Packets for which [`FaultPlan::fail`] returned an error.
    #[serde(skip)]
    pub failed: u64,
}

impl FaultCounts {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            lost: self.lost.saturating_sub(earlier.lost),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            duplicated: self.duplicated.saturating_sub(earlier.duplicated),
            corrupted: self.corrupted.saturating_sub(earlier.corrupted),
            overflowed: self.overflowed.saturating_sub(earlier.overflowed),
            too_big: self.too_big.saturating_sub(earlier.too_big),
            blocked: self.blocked.saturating_sub(earlier.blocked),
            failed: self.failed.saturating_sub(earlier.failed),
        }
    }
}

impl FaultCounter {
    /// The counts so far.
    pub fn counts(&self) -> FaultCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultCounts {
            lost: read(&self.lost),
            duplicated: read(&self.duplicated),
            reordered: read(&self.reordered),
            blocked: read(&self.blocked),
            failed: read(&self.failed),
            corrupted: read(&self.corrupted),
            overflowed: read(&self.overflowed),
            too_big: read(&self.too_big),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
