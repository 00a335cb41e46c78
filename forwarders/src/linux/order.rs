//! Counts the packets of TCP that come after one which lies later in their flow.

use std::sync::atomic::{AtomicU64, Ordering};

use platform::packet::TcpSegment;
use platform::packet::flags::SYN;

/// Flows that are told apart. One that shares a slot with another takes it over, and what was known of that
/// is forgotten.
const SLOTS: usize = 64;

/// How far each flow of one direction has come.
///
/// A slot holds the upper half of the flow's hash, and below it the sequence number after the last byte that
/// was seen. Workers share it, and so it is exact for what was noted: of two packets that are written by two
/// workers at the same time, nobody knows which the kernel took first.
#[derive(Debug)]
pub(super) struct Order([AtomicU64; SLOTS]);

impl Default for Order {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; SLOTS])
    }
}

impl Order {
    /// Takes note of an IP packet that is written now. Whether it lies before one that was noted earlier.
    pub(super) fn is_late(&self, packet: &[u8]) -> bool {
        Segment::of(packet).is_some_and(|segment| self.note(&segment).is_some())
    }

    /// The same of packets that are one super-packet's, by a look at the first and the last. How many lie
    /// before one that was noted earlier.
    pub(super) fn late_of_run(&self, first: &[u8], last: &[u8], packets: u32) -> u32 {
        let Some(mut segment) = Segment::of(first) else { return 0 };
        let Some(last) = Segment::of(last) else { return 0 };
        let len = segment.end.wrapping_sub(segment.start);
        segment.end = last.end;
        self.note(&segment).map_or(0, |behind| behind.div_ceil(len.max(1)).min(packets))
    }

    /// By how much a segment begins behind what is known of its flow, if it does. Else the flow ends where it
    /// does, from now on.
    fn note(&self, segment: &Segment) -> Option<u32> {
        let slot = self.0.get(segment.flow as usize % SLOTS)?;
        let tag = segment.flow & !u64::from(u32::MAX);
        let known = slot.load(Ordering::Relaxed);
        if known & !u64::from(u32::MAX) != tag || segment.begins {
            slot.store(tag | u64::from(segment.end), Ordering::Relaxed);
            return None;
        }
        let late = is_before(segment.start, known as u32);
        if is_before(known as u32, segment.end) {
            advance(slot, known, tag, segment.end);
        }
        late.then(|| (known as u32).wrapping_sub(segment.start))
    }
}

/// Sets a slot to `end`, unless another worker has come further in the same flow.
fn advance(slot: &AtomicU64, mut known: u64, tag: u64, end: u32) {
    while known & !u64::from(u32::MAX) == tag && is_before(known as u32, end) {
        match slot.compare_exchange_weak(known, tag | u64::from(end), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newer) => known = newer,
        }
    }
}

/// RFC 9293, section 3.4: sequence numbers are compared modulo 2³².
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// What of a segment of TCP is of interest.
struct Segment {
    /// A hash of addresses and ports.
    flow: u64,
    start: u32,
    end: u32,
    /// Whether the flow begins with it.
    begins: bool,
}

impl Segment {
    /// `None` for a packet that is not TCP, is a fragment, or has neither payload nor SYN.
    fn of(packet: &[u8]) -> Option<Self> {
        let tcp = TcpSegment::parse(packet)?;
        let begins = tcp.flags() & SYN != 0;
        let payload_len = tcp.payload().len();
        if payload_len == 0 && !begins {
            return None;
        }
        let addresses = packet.get(if tcp.layout.ipv6 { 8..40 } else { 12..20 })?;
        let ports = packet.get(tcp.layout.tcp_at..)?.first_chunk()?;
        let start = tcp.sequence();
        let end = start.wrapping_add(payload_len as u32 + u32::from(begins));
        Some(Self { flow: hash(addresses, *ports), start, end, begins })
    }
}

/// Multiplies and folds, eight bytes a turn. Nobody gains by choosing addresses that collide.
fn hash(addresses: &[u8], ports: [u8; 4]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = u64::from(u32::from_ne_bytes(ports)) | 1 << 32;
    for eight in addresses.as_chunks::<8>().0 {
        hash = (hash ^ u64::from_ne_bytes(*eight)).wrapping_mul(ODD);
        hash ^= hash >> 29;
    }
    hash
}

#[cfg(test)]
mod tests;
