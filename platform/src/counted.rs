//! A link that counts its packets.

use std::io::IoSlice;
use std::iter::Sum;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portable_atomic::AtomicU64;

use crate::link::packet_len;
use crate::{PacketBuffer, Tap, Tapped};

/// A [`Link`](crate::Link) that wraps another link and counts its packets and bytes in each direction.
pub type Counted<L> = Tapped<L, Arc<Traffic>>;

/// The running counts of a [`Counted`] link. The stack receives what comes out of the device.
#[derive(Debug, Default)]
pub struct Traffic {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
}

/// Counts at one moment, or the difference between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets from the device to the stack; a super-packet is one.
    pub rx_packets: u64,
    /// Their bytes, IP headers included.
    pub rx_bytes: u64,
    /// Packets from the stack to the device; a super-packet is one.
    pub tx_packets: u64,
    /// Their bytes, IP headers included.
    pub tx_bytes: u64,
}

impl Traffic {
    /// The counts so far.
    pub fn counts(&self) -> PacketCounts {
        PacketCounts {
            rx_packets: self.rx_packets.load(Ordering::Relaxed),
            rx_bytes: self.rx_bytes.load(Ordering::Relaxed),
            tx_packets: self.tx_packets.load(Ordering::Relaxed),
            tx_bytes: self.tx_bytes.load(Ordering::Relaxed),
        }
    }
}

impl PacketCounts {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            rx_packets: each(self.rx_packets, other.rx_packets),
            rx_bytes: each(self.rx_bytes, other.rx_bytes),
            tx_packets: each(self.tx_packets, other.tx_packets),
            tx_bytes: each(self.tx_bytes, other.tx_bytes),
        }
    }
}

impl Sum for PacketCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, counts| sum.with(counts, u64::add))
    }
}

impl<L> Counted<L> {
    /// Counts all packets of `link` from now on.
    pub fn new(link: L) -> Self {
        Self { link, tap: Arc::default() }
    }

    /// A handle to the counts.
    pub fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.tap)
    }
}

impl Tap for Arc<Traffic> {
    #[inline]
    fn received(&self, packets: &[PacketBuffer]) {
        add(&self.rx_packets, packets.len() as u64);
        add(&self.rx_bytes, packets.iter().map(|buffer| buffer.packet().len() as u64).sum());
    }

    #[inline]
    fn sent(&self, slices: &[IoSlice<'_>]) {
        add(&self.tx_packets, 1);
        add(&self.tx_bytes, packet_len(slices) as u64);
    }
}

/// Adds without an atomic read-modify-write: the link has one owner, so each counter has one writer.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, MemoryLink, PacketMeta};

    #[test]
    fn only_packets_that_crossed_are_counted() {
        let (left, mut right) = MemoryLink::pair(100, 2);
        let mut left = Counted::new(left);
        let traffic = left.traffic();
        left.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 40]), IoSlice::new(&[0; 2])]).unwrap();
        let before = traffic.counts();
        assert_eq!(before, PacketCounts { tx_packets: 1, tx_bytes: 42, ..PacketCounts::default() });
        left.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 10])]).unwrap();
        left.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 10])]).unwrap_err();
        right.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 7])]).unwrap();
        left.try_recv(&mut [PacketBuffer::new(100), PacketBuffer::new(100)]).unwrap();
        assert_eq!(
            traffic.counts().since(before),
            PacketCounts { tx_packets: 1, tx_bytes: 10, rx_packets: 1, rx_bytes: 7 }
        );
    }
}
