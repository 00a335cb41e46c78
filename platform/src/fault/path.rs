//! One direction of a link with impairments.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::counts::{Fate, FaultCounter, Faults};
use crate::{Impairments, PacketMeta};

/// The most bytes that wait in one direction: 20 Gbit/s for a tenth of a second.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// One more than the largest value that [`Dice::throw`] returns.
const SIDES: u64 = 1 << 32;

/// How many later packets overtake a packet: as many as TCP takes for a sign of loss (RFC 5681, 3.2).
const OVERTAKEN_BY: usize = 3;

/// The longest time that a packet waits in the queue of the rate limit.
const QUEUE: Duration = Duration::from_millis(100);

pub(super) type Packet = (PacketMeta, Vec<u8>);

#[derive(Debug)]
pub(super) struct Path {
    lose: Dice,
    duplicate: Dice,
    corrupt: Dice,
    reorder: Dice,
    jitter: Dice,
    pub(super) link: Impairments,
    once: Option<(u64, Fate)>,
    /// The number of packets that had a fate.
    number: u64,
    /// Packets that are held back, each with the number of packets that still have to overtake it.
    held: VecDeque<(usize, Packet)>,
    /// Packets that wait until they are due, in the order of their due times.
    waiting: VecDeque<(Instant, Packet)>,
    waiting_bytes: usize,
    /// When the last packet leaves the rate limiter.
    free_at: Option<Instant>,
}

impl Path {
    pub(super) fn new(link: Impairments, faults: Faults, seed: u64) -> Self {
        let dice = |share, index: u64| Dice::new(share, seed.wrapping_add(index));
        Self {
            lose: dice(link.loss_ppm, 0),
            duplicate: dice(link.duplicate_ppm, 1),
            reorder: dice(link.reorder_ppm, 2),
            // Far from the other seeds, so that no two dice share one.
            corrupt: dice(link.corrupt_ppm, 1 << 32),
            jitter: dice(0, 2 << 32),
            link,
            once: faults.once,
            number: 0,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free_at: None,
        }
    }

    pub(super) fn takes_time(&self) -> bool {
        self.link.takes_time()
    }

    /// Decides the fate of a packet: the first that applies.
    pub(super) fn fate(&mut self) -> Fate {
        // All dice are thrown for every packet, so that no impairment changes the choices of another one.
        let fates = [
            (Fate::Lose, self.lose.hit()),
            (Fate::Duplicate, self.duplicate.hit()),
            (Fate::Reorder, self.reorder.hit()),
            (Fate::Corrupt, self.corrupt.hit()),
        ];
        let number = self.number;
        self.number += 1;
        if let Some((_, fate)) = self.once.filter(|(once, _)| *once == number) {
            return fate;
        }
        fates.into_iter().find(|(_, is_hit)| *is_hit).map_or(Fate::Pass, |(fate, _)| fate)
    }

    /// Flips a bit behind the IPv4 header, which a router would verify, or in the last byte of a shorter packet.
    pub(super) fn corrupt(&mut self, packet: &mut [u8]) {
        const IP_HEADER: usize = 20;
        let Some(last) = packet.len().checked_sub(1) else { return };
        let bit = self.corrupt.throw();
        let at = IP_HEADER.min(last) + (bit / 8) as usize % (packet.len() - IP_HEADER.min(last));
        packet[at] ^= 1 << (bit % 8);
    }

    pub(super) fn hold(&mut self, packet: Packet) {
        self.held.push_back((OVERTAKEN_BY, packet));
    }

    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn has_packets(&self) -> bool {
        self.holds() || !self.waiting.is_empty()
    }

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
        if let Some(rate) = self.link.rate_limit {
            let begins = self.free_at.map_or(now, |free| free.max(now));
            if begins - now > QUEUE {
                return counter.count(|counts| &mut counts.overflowed);
            }
            let nanoseconds = packet.1.len() as u128 * 8 * 1_000_000_000 / u128::from(rate.get());
            leaves = begins + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            self.free_at = Some(leaves);
        }
        if self.waiting_bytes + packet.1.len() > MAX_QUEUED_BYTES {
            return counter.count(|counts| &mut counts.overflowed);
        }
        let jitter = self.link.jitter * 2;
        let more = jitter.mul_f64(self.jitter.throw() as f64 / SIDES as f64);
        let arrives = leaves + (self.link.delay + more).saturating_sub(self.link.jitter);
        // Packets stay in order.
        let due = self.waiting.back().map_or(arrives, |(last, _)| arrives.max(*last));
        self.waiting_bytes += packet.1.len();
        self.waiting.push_back((due, packet));
    }

    pub(super) fn due_at(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }

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

#[derive(Debug)]
struct Dice {
    /// In parts per million.
    share: u32,
    state: u64,
}

impl Dice {
    fn new(share: u32, seed: u64) -> Self {
        // Neighbouring seeds need states that are far apart, and a state of zero would stay zero.
        Self { share, state: seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    fn hit(&mut self) -> bool {
        self.share > 0 && self.throw() * 1_000_000 < u64::from(self.share) * SIDES
    }

    /// A random number below 2^32: the upper half of xorshift (Marsaglia, Xorshift RNGs, 2003), the better half.
    fn throw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 32
    }
}
