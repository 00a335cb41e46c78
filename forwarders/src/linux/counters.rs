//! Packets and bytes, counted by the loops that carry them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::order::Order;
use crate::{Carried, Counts};

/// The counters of one loop. Only that loop writes them, and they have cache lines of their own: two, since
/// processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LoopCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    reordered: AtomicU64,
}

/// Not `fetch_add`: where there is one writer, that locks the line for nothing.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// One direction.
#[derive(Debug)]
pub(super) struct DirectionCounters {
    read: Box<[LoopCounters]>,
    written: Box<[LoopCounters]>,
    order: Order,
}

impl DirectionCounters {
    fn new(workers: usize) -> Self {
        let loops = || (0..workers).map(|_| LoopCounters::default()).collect();
        Self { read: loops(), written: loops(), order: Order::default() }
    }

    fn sum(&self) -> Carried {
        let sum = |loops: &[LoopCounters], field: fn(&LoopCounters) -> &AtomicU64| {
            loops.iter().map(|counters| field(counters).load(Ordering::Relaxed)).sum()
        };
        // Written packets are summed first: one that is read and written between the two sums counts as on its way.
        let written_packets = sum(&self.written, |counters| &counters.packets);
        let written_bytes = sum(&self.written, |counters| &counters.bytes);
        Carried {
            read_packets: sum(&self.read, |counters| &counters.packets),
            read_bytes: sum(&self.read, |counters| &counters.bytes),
            written_packets,
            written_bytes,
            lost_packets: sum(&self.read, |counters| &counters.lost) + sum(&self.written, |counters| &counters.lost),
            reordered: Some(sum(&self.written, |counters| &counters.reordered)),
        }
    }
}

/// Counts the packets that a worker reads or writes.
pub(super) struct Counter {
    direction: Arc<DirectionCounters>,
    worker: usize,
}

impl Counter {
    pub(super) fn new(direction: &Arc<DirectionCounters>, worker: usize) -> Self {
        Self { direction: Arc::clone(direction), worker }
    }

    pub(super) fn read(&self, packets: u64, bytes: u64) {
        if let Some(counters) = self.direction.read.get(self.worker) {
            add(&counters.packets, packets);
            add(&counters.bytes, bytes);
        }
    }

    /// A malformed packet was read.
    pub(super) fn unread(&self) {
        if let Some(counters) = self.direction.read.get(self.worker) {
            add(&counters.lost, 1);
        }
    }

    pub(super) fn written(&self, packets: u64, bytes: u64) {
        if let Some(counters) = self.direction.written.get(self.worker) {
            add(&counters.packets, packets);
            add(&counters.bytes, bytes);
        }
    }

    /// So many packets were not taken by the kernel.
    pub(super) fn unwritten(&self, packets: u64) {
        if let Some(counters) = self.direction.written.get(self.worker) {
            add(&counters.lost, packets);
        }
    }

    /// A packet, without `virtio_net_hdr`, is written now.
    pub(super) fn order(&self, packet: &[u8]) {
        if self.direction.order.is_late(packet) {
            self.reordered(1);
        }
    }

    /// Packets of one super-packet are written now, of which these are the first and the last.
    pub(super) fn order_of_run(&self, first: &[u8], last: &[u8], packets: usize) {
        match self.direction.order.late_of_run(first, last, packets as u32) {
            0 => {}
            late => self.reordered(late.into()),
        }
    }

    fn reordered(&self, packets: u64) {
        if let Some(counters) = self.direction.written.get(self.worker) {
            add(&counters.reordered, packets);
        }
    }
}

/// Both directions. It outlives the forwarder.
#[derive(Clone, Debug)]
pub struct Counters {
    pub(super) to_far: Arc<DirectionCounters>,
    pub(super) to_near: Arc<DirectionCounters>,
}

impl Counters {
    pub(super) fn new(workers: u16) -> Self {
        let direction = || Arc::new(DirectionCounters::new(workers.into()));
        Self { to_far: direction(), to_near: direction() }
    }

    /// The traffic so far. While packets are carried, the counts may be of different moments.
    pub fn read(&self) -> Counts {
        Counts { to_far: self.to_far.sum(), to_near: self.to_near.sum() }
    }
}
