//! One direction of a link with faults.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::plan::{FaultCounter, Faults, Which, count};
use crate::PacketMeta;

/// The most bytes that wait in one direction: 20 Gbit/s for a tenth of a second.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// One more than the largest value that [`Dice::throw`] returns.
const SIDES: u64 = 1 << 32;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Lose,
    Duplicate,
    Corrupt,
    /// Later packets overtake it.
    Reorder,
}

pub(super) type Packet = (PacketMeta, Vec<u8>);

/// One direction.
#[derive(Debug)]
pub(super) struct Path {
    lose: Dice,
    duplicate: Dice,
    corrupt: Dice,
    reorder: Dice,
    jitter: Dice,
    faults: Faults,
    /// Packets that are held back, each with the number of packets that still have to overtake it.
    held: VecDeque<(usize, Packet)>,
    /// Packets that wait until they are due, in the order of their due times.
    waiting: VecDeque<(Instant, Packet)>,
    waiting_bytes: usize,
    /// When the last packet leaves the rate limiter.
    free_at: Option<Instant>,
}

impl Path {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        let dice = |which, index: u64| Dice::new(which, seed.wrapping_add(index));
        Self {
            lose: dice(faults.lose, 0),
            duplicate: dice(faults.duplicate, 1),
            reorder: dice(faults.reorder, 2),
            // Far from the other seeds, so that no two dice share one.
            corrupt: dice(faults.corrupt, 1 << 32),
            jitter: dice(Which::OneIn(1), 2 << 32),
            faults,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free_at: None,
        }
    }

    /// Whether packets have a delay.
    pub(super) fn takes_time(&self) -> bool {
        self.faults.takes_time()
    }

    /// Whether packets are corrupted.
    pub(super) fn corrupts(&self) -> bool {
        self.faults.corrupt != Which::None
    }

    /// Decides the fate of a packet of that length.
    pub(super) fn fate(&mut self, len: usize) -> Fate {
        // All dice are thrown for every packet, so that no fault changes the choices of another one.
        let fates = [
            (Fate::Lose, self.lose.hit(len)),
            (Fate::Duplicate, self.duplicate.hit(len)),
            (Fate::Reorder, self.reorder.hit(len)),
            (Fate::Corrupt, self.corrupt.hit(len)),
        ];
        fates.into_iter().find(|(_, is_hit)| *is_hit).map_or(Fate::Pass, |(fate, _)| fate)
    }

    /// Flips a bit after the first twenty bytes, or in the last byte of a shorter packet. The IPv4 header stays
    /// unchanged: a router would verify its checksum, and there is no router here.
    pub(super) fn corrupt(&mut self, packet: &mut [u8]) {
        const IP_HEADER: usize = 20;
        let Some(last) = packet.len().checked_sub(1) else { return };
        let bit = self.corrupt.throw();
        let at = IP_HEADER.min(last) + (bit / 8) as usize % (packet.len() - IP_HEADER.min(last));
        packet[at] ^= 1 << (bit % 8);
    }

    /// Holds a packet back so that later ones overtake it.
    pub(super) fn hold(&mut self, packet: Packet) {
        self.held.push_back((self.faults.reorder_by.max(1), packet));
    }

    /// Whether packets are held back.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether any packet is held back or waiting.
    pub(super) fn has_packets(&self) -> bool {
        self.holds() || !self.waiting.is_empty()
    }

    /// Notes that a packet has overtaken the held packets.
    pub(super) fn overtaken(&mut self) {
        for (left, _) in &mut self.held {
            *left = left.saturating_sub(1);
        }
    }

    /// Takes the packet that was held longest, if enough packets have overtaken it.
    pub(super) fn next_overtaken(&mut self) -> Option<Packet> {
        let (left, _) = self.held.front()?;
        if *left > 0 { None } else { self.held.pop_front().map(|(_, packet)| packet) }
    }

    /// Releases all held packets: [`Self::next_overtaken`] returns them.
    pub(super) fn release(&mut self) {
        for (left, _) in &mut self.held {
            *left = 0;
        }
    }

    /// Queues a packet until it is due, or drops it if the queue is full.
    pub(super) fn wait(&mut self, packet: Packet, counter: &FaultCounter) {
        let now = Instant::now();
        let mut leaves = now;
        if let Some(rate) = self.faults.rate {
            let begins = self.free_at.map_or(now, |free| free.max(now));
            if begins - now > Faults::QUEUE {
                return count(&counter.overflowed);
            }
            let nanoseconds = packet.1.len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
            leaves = begins + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            self.free_at = Some(leaves);
        }
        if self.waiting_bytes + packet.1.len() > MAX_QUEUED_BYTES {
            return count(&counter.overflowed);
        }
        let jitter = self.faults.jitter * 2;
        let more = jitter.mul_f64(self.jitter.throw() as f64 / SIDES as f64);
        let arrives = leaves + (self.faults.delay + more).saturating_sub(self.faults.jitter);
        // Packets stay in order.
        let due = self.waiting.back().map_or(arrives, |(last, _)| arrives.max(*last));
        self.waiting_bytes += packet.1.len();
        self.waiting.push_back((due, packet));
    }

    /// The limit of the rate.
    #[cfg(test)]
    pub(super) fn rate(&self) -> Option<u64> {
        self.faults.rate
    }

    /// When the next packet is due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }

    /// Takes the next packet that is due.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Packet> {
        self.due_at().filter(|due| *due <= now)?;
        let (_, packet) = self.waiting.pop_front()?;
        self.waiting_bytes -= packet.1.len();
        Some(packet)
    }

    /// Takes back a packet that the link had no room for. It is still due.
    pub(super) fn put_back(&mut self, packet: Packet) {
        if self.takes_time() {
            self.waiting_bytes += packet.1.len();
            self.waiting.push_front((Instant::now(), packet));
        } else {
            self.held.push_front((0, packet));
        }
    }
}

/// Picks some of the packets.
#[derive(Debug)]
pub(super) struct Dice {
    which: Which,
    state: u64,
    counted: u64,
}

impl Dice {
    pub(super) fn new(which: Which, seed: u64) -> Self {
        // Neighbouring seeds need states that are far apart, and a state of zero would stay zero.
        Self { which, state: seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, counted: 0 }
    }

    pub(super) fn hit(&mut self, len: usize) -> bool {
        match self.which {
            Which::None | Which::OneIn(0) => false,
            Which::OneIn(sides) => self.throw().is_multiple_of(u64::from(sides)),
            Which::PerMillion(share) => self.throw() * 1_000_000 < u64::from(share) * SIDES,
            Which::Nth { index, longer_than } => {
                let counted = len > longer_than;
                self.counted += u64::from(counted);
                counted && self.counted == index.saturating_add(1)
            }
        }
    }

    /// A random number below 2^32: the upper half of xorshift (Marsaglia, Xorshift RNGs, 2003), the better half.
    fn throw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 32
    }
}
