//! Counts TCP packets that are written after a later packet of their flow.

use std::sync::atomic::Ordering;

use platform::packet::TcpSegment;
use platform::packet::flags::SYN;
use portable_atomic::AtomicU64;

/// The number of flows that are tracked. If two flows share a slot, the newer one takes it over, and the state of the
/// other one is lost.
const SLOTS: usize = 64;

/// The progress of each flow of one direction.
///
/// A slot has the upper half of the flow's hash in its upper half, and in its lower half the sequence number after the
/// last byte that was seen. Workers share the slots, so the count is exact for the order in which packets were noted.
/// If two workers write at the same time, it is unknown which packet the kernel accepts first.
#[derive(Debug)]
pub(super) struct Order([AtomicU64; SLOTS]);

impl Default for Order {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; SLOTS])
    }
}

impl Order {
    /// Notes an IP packet that is being written. Returns whether it is before an earlier noted packet in its flow.
    pub(super) fn is_late(&self, packet: &[u8]) -> bool {
        Segment::of(packet).is_some_and(|segment| self.note(&segment).is_some())
    }

    /// The same for the packets of one super-packet, by the first and the last. Returns how many of them are before an
    /// earlier noted packet.
    pub(super) fn late_of_run(&self, first: &[u8], last: &[u8], packets: u32) -> u32 {
        let Some(mut segment) = Segment::of(first) else { return 0 };
        let Some(last) = Segment::of(last) else { return 0 };
        let len = segment.end.wrapping_sub(segment.start);
        segment.end = last.end;
        self.note(&segment).map_or(0, |behind| behind.div_ceil(len.max(1)).min(packets))
    }

    /// Notes a segment, and moves the end of its flow forward. If the segment begins before the known end of its flow,
    /// returns the distance in bytes.
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

/// Sets a slot to `end`, unless another worker has noted a later end of the same flow.
fn advance(slot: &AtomicU64, mut known: u64, tag: u64, end: u32) {
    while known & !u64::from(u32::MAX) == tag && is_before(known as u32, end) {
        match slot.compare_exchange_weak(known, tag | u64::from(end), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newer) => known = newer,
        }
    }
}

/// Compares sequence numbers modulo 2³² (RFC 9293, 3.4).
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// The parts of a TCP segment that matter here.
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

/// Multiplies and folds eight bytes at a time. It need not resist chosen collisions: they only change a count.
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
