//! What was carried, counted where it is carried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::order::Order;
use crate::{Carried, Counts};

/// What one loop has counted. It is written by that loop alone, and has cache lines of its own: two, since
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
        let tallies = || (0..workers).map(|_| LoopCounters::default()).collect();
        Self { read: tallies(), written: tallies(), order: Order::default() }
    }

    fn sum(&self) -> Carried {
        let sum = |tallies: &[LoopCounters], field: fn(&LoopCounters) -> &AtomicU64| {
            tallies.iter().map(|tally| field(tally).load(Ordering::Relaxed)).sum()
        };
        // What is written is summed first, so that it is never more than what is read.
        let written_packets = sum(&self.written, |tally| &tally.packets);
        let written_bytes = sum(&self.written, |tally| &tally.bytes);
        Carried {
            read_packets: sum(&self.read, |tally| &tally.packets),
            read_bytes: sum(&self.read, |tally| &tally.bytes),
            written_packets,
            written_bytes,
            lost_packets: sum(&self.read, |tally| &tally.lost) + sum(&self.written, |tally| &tally.lost),
            reordered: Some(sum(&self.written, |tally| &tally.reordered)),
        }
    }
}

/// Counts what a worker reads or writes.
pub(super) struct Counter {
    direction: Arc<DirectionCounters>,
    worker: usize,
}

impl Counter {
    pub(super) fn new(direction: &Arc<DirectionCounters>, worker: usize) -> Self {
        Self { direction: Arc::clone(direction), worker }
    }

    pub(super) fn read(&self, packets: u64, bytes: u64) {
        if let Some(tally) = self.direction.read.get(self.worker) {
            add(&tally.packets, packets);
            add(&tally.bytes, bytes);
        }
    }

    /// A packet was read that nobody can make sense of.
    pub(super) fn unread(&self) {
        if let Some(tally) = self.direction.read.get(self.worker) {
            add(&tally.lost, 1);
        }
    }

    pub(super) fn written(&self, packets: u64, bytes: u64) {
        if let Some(tally) = self.direction.written.get(self.worker) {
            add(&tally.packets, packets);
            add(&tally.bytes, bytes);
        }
    }

    /// So many packets were not taken by the kernel.
    pub(super) fn unwritten(&self, packets: u64) {
        if let Some(tally) = self.direction.written.get(self.worker) {
            add(&tally.lost, packets);
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
        if let Some(tally) = self.direction.written.get(self.worker) {
            add(&tally.reordered, packets);
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

    /// What was carried so far. While packets are under way, counts of different kinds may be of different
    /// moments.
    pub fn read(&self) -> Counts {
        Counts { to_far: self.to_far.sum(), to_near: self.to_near.sum() }
    }
}
