//! Counters of packets and bytes. The loops that carry the packets count them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portable_atomic::AtomicU64;

use super::order::Order;
use crate::{Carried, Counts};

/// The counters of one loop. Only this loop writes them. They have two cache lines to themselves, because processors
/// fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct LoopCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    reordered: AtomicU64,
}

/// Not `fetch_add`: there is one writer, so a locked cache line would only cost time.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// The counters of one direction.
#[derive(Debug)]
pub(super) struct DirectionCounters {
    read: Vec<Arc<LoopCounters>>,
    written: Vec<Arc<LoopCounters>>,
    order: Order,
}

impl DirectionCounters {
    fn new(workers: usize) -> Self {
        let loops = || (0..workers).map(|_| Arc::default()).collect();
        Self { read: loops(), written: loops(), order: Order::default() }
    }

    fn sum(&self) -> Carried {
        let sum = |loops: &[Arc<LoopCounters>], field: fn(&LoopCounters) -> &AtomicU64| {
            loops.iter().map(|counters| field(counters).load(Ordering::Relaxed)).sum()
        };
        // Written packets are summed first: a packet that is read and written between the two sums counts as in flight.
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

/// Counts the packets of a loop.
pub(super) struct Counter {
    own: Arc<LoopCounters>,
    direction: Arc<DirectionCounters>,
}

impl Counter {
    /// The counter of the loop of this worker that reads.
    pub(super) fn of_reader(direction: &Arc<DirectionCounters>, worker: usize) -> Self {
        Self { own: direction.read.get(worker).cloned().unwrap_or_default(), direction: Arc::clone(direction) }
    }

    /// The counter of the loop of this worker that writes.
    pub(super) fn of_writer(direction: &Arc<DirectionCounters>, worker: usize) -> Self {
        Self { own: direction.written.get(worker).cloned().unwrap_or_default(), direction: Arc::clone(direction) }
    }

    /// Packets were read or written.
    pub(super) fn carried(&self, packets: u64, bytes: u64) {
        add(&self.own.packets, packets);
        add(&self.own.bytes, bytes);
    }

    /// Malformed packets were read, or the kernel did not accept packets.
    pub(super) fn lost(&self, packets: u64) {
        add(&self.own.lost, packets);
    }

    /// Checks the order of a packet that is being written. It has no `virtio_net_hdr`.
    pub(super) fn order(&self, packet: &[u8]) {
        if self.direction.order.is_late(packet) {
            add(&self.own.reordered, 1);
        }
    }

    /// Checks the order of the packets of one super-packet that are being written, by the first and the last.
    pub(super) fn order_of_run(&self, first: &[u8], last: &[u8], packets: usize) {
        match self.direction.order.late_of_run(first, last, packets as u32) {
            0 => {}
            late => add(&self.own.reordered, late.into()),
        }
    }
}

/// The counters of both directions. They outlive the forwarder.
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

    /// The traffic so far. While packets are carried, the counts may be from slightly different moments.
    pub fn read(&self) -> Counts {
        Counts { to_far: self.to_far.sum(), to_near: self.to_near.sum() }
    }
}
