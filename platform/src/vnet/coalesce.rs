//! Segments joined into super-packets.

use std::num::NonZeroU16;

use super::check_length;
use crate::packet::flags::{CWR, FIN, PSH, RST, SYN, URG};
use crate::packet::{
    IPV4_HEADER_LEN, TcpLayout, TcpSegment, offset, write_ip_len, write_ipv4_checksum, write_partial_checksum,
};
use crate::{Capabilities, Checksum, PacketMeta};

/// A super-packet that grows in a caller's buffer. It takes segments that [`split`](super::split()) would cut from it,
/// and that Linux would join (`net/ipv4/tcp_offload.c`, `tcp_gro_receive`): of one connection, in sequence, with equal
/// headers, all as long as the first but for the last. Their checksums are not verified, and cannot be after joining.
#[derive(Debug)]
pub struct SuperPacket<'a> {
    buffer: &'a mut [u8],
    len: usize,
    layout: TcpLayout,
    /// Payload of the first segment.
    gso_size: usize,
    /// Sequence number of the byte to come.
    next_sequence: u32,
    count: usize,
    /// Whether nothing may follow: a segment was shorter, or pushed, or the last.
    closed: bool,
}

impl<'a> SuperPacket<'a> {
    /// Begins with one TCP segment, which is copied into `buffer`. `None` if it does not fit, or is not TCP.
    pub fn begin(buffer: &'a mut [u8], segment: &[u8]) -> Option<Self> {
        check_length(segment).ok()?;
        let tcp = TcpSegment::parse(segment)?;
        let layout = tcp.layout;
        buffer.get_mut(..segment.len())?.copy_from_slice(segment);
        let gso_size = tcp.payload().len();
        let single =
            tcp.flags() & (SYN | RST | URG) != 0 || gso_size == 0 || !layout.ipv6 && layout.tcp_at != IPV4_HEADER_LEN;
        Some(Self {
            buffer,
            len: segment.len(),
            layout,
            gso_size,
            next_sequence: tcp.sequence().wrapping_add(gso_size as u32),
            count: 1,
            closed: single || tcp.flags() & (FIN | PSH) != 0,
        })
    }

    /// Appends a segment, and returns whether it was taken.
    pub fn append(&mut self, segment: &[u8]) -> bool {
        let Some(payload) = self.fitting(segment) else { return false };
        let end = self.len + payload.len();
        let Some(room) = self.buffer.get_mut(self.len..end) else { return false };
        room.copy_from_slice(payload);
        let flags = segment[self.layout.tcp_at + offset::FLAGS];
        self.buffer[self.layout.tcp_at + offset::FLAGS] |= flags & (FIN | PSH);
        self.closed = payload.len() < self.gso_size || flags & (FIN | PSH) != 0;
        self.len = end;
        self.next_sequence = self.next_sequence.wrapping_add(payload.len() as u32);
        self.count += 1;
        true
    }

    /// The payload of a segment that may be appended.
    fn fitting<'s>(&self, segment: &'s [u8]) -> Option<&'s [u8]> {
        if self.closed || check_length(segment).is_err() {
            return None;
        }
        let next = TcpSegment::parse(segment).filter(|next| next.layout == self.layout)?;
        let first = &self.buffer[..self.layout.payload_at];
        let (headers, payload) = segment.split_at(self.layout.payload_at);
        let fits = !payload.is_empty()
            && payload.len() <= self.gso_size
            && self.len + payload.len() <= Capabilities::MAX_SUPER_PACKET
            && same_network(&first[..self.layout.tcp_at], &headers[..self.layout.tcp_at], self.layout.ipv6, self.count)
            && same_transport(&first[self.layout.tcp_at..], &headers[self.layout.tcp_at..])
            && next.sequence() == self.next_sequence;
        fits.then_some(payload)
    }

    /// Completes the headers. Returns the length of the packet, and its meta.
    pub fn finish(self) -> (usize, PacketMeta) {
        let packet = &mut self.buffer[..self.len];
        write_ip_len(packet, self.layout.ipv6, self.len);
        if !self.layout.ipv6 {
            write_ipv4_checksum(packet, self.layout.tcp_at);
        }
        write_partial_checksum(packet, &self.layout, self.len);
        let gso_size = NonZeroU16::new(self.gso_size as u16).filter(|_| self.count > 1);
        (self.len, PacketMeta { checksum: Checksum::Partial, gso_size })
    }
}

/// Whether two IP headers are equal but for length and checksum. The identification is the `index`th segment's, unless
/// both must not be fragmented: then it means nothing (RFC 6864, 4.1).
fn same_network(first: &[u8], next: &[u8], ipv6: bool, index: usize) -> bool {
    if ipv6 {
        return first[..4] == next[..4] && first[6..] == next[6..];
    }
    let identification = |header: &[u8]| u16::from_be_bytes([header[4], header[5]]);
    let in_order = identification(first).wrapping_add(index as u16) == identification(next);
    let whole = first[6] & 0x40 != 0;
    first[..2] == next[..2] && first[6..10] == next[6..10] && first[12..20] == next[12..20] && (in_order || whole)
}

/// Whether two TCP headers say the same, but for sequence number, checksum, CWR of the first, FIN and PSH of the next.
fn same_transport(first: &[u8], next: &[u8]) -> bool {
    first[..4] == next[..4]
        && first[8..13] == next[8..13]
        && first[offset::FLAGS] & !CWR == next[offset::FLAGS] & !(FIN | PSH)
        && first[14..16] == next[14..16]
        && first[18..] == next[18..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::reference::{Shape, segment};

    const ACK: u8 = 0x10;
    const GSO_SIZE: usize = 100;
    const PLAIN: Shape = Shape { ipv6: false, extended: false, flags: ACK, options: 12, payload: 300 };

    /// The first two segments of a super-packet.
    fn two(shape: Shape) -> [Vec<u8>; 2] {
        let packet = shape.packet();
        [0, 1].map(|index| segment(&packet, shape.tcp_at(), GSO_SIZE, index))
    }

    /// Whether the second is joined to the first.
    fn joins(first: &[u8], second: &[u8]) -> bool {
        let mut buffer = vec![0; 1_000];
        SuperPacket::begin(&mut buffer, first).unwrap().append(second)
    }

    fn with(packet: &[u8], at: usize, change: impl FnOnce(u8) -> u8) -> Vec<u8> {
        let mut packet = packet.to_vec();
        packet[at] = change(packet[at]);
        packet
    }

    #[test]
    fn headers_that_differ_do_not_join() {
        for shape in [PLAIN, Shape { ipv6: true, ..PLAIN }, Shape { ipv6: true, extended: true, ..PLAIN }] {
            let [first, second] = two(shape);
            assert!(joins(&first, &second));
            let free = if shape.ipv6 { vec![] } else { vec![10, 11] };
            let tcp_at = shape.tcp_at();
            for at in (0..shape.payload_at()).filter(|at| !free.contains(at)) {
                // Checksums are not looked at.
                let ignored = (tcp_at + 16..tcp_at + 18).contains(&at);
                for bit in 0..8 {
                    // FIN and PSH may begin at any segment.
                    let allowed = ignored || at == tcp_at + 13 && (1 << bit) & (FIN | PSH) != 0;
                    let other = with(&second, at, |byte| byte ^ 1 << bit);
                    assert_eq!(joins(&first, &other), allowed, "bit {bit} of byte {at}: {shape:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_follows_a_segment_that_closes_or_stands_alone() {
        for flag in [FIN, PSH, SYN, RST, URG] {
            let [first, second] = two(PLAIN);
            let at = PLAIN.tcp_at() + 13;
            assert!(!joins(&with(&first, at, |flags| flags | flag), &second), "{flag:#x} of the first");
            assert!(!joins(&with(&first, at, |flags| flags | flag), &with(&second, at, |flags| flags | flag)));
        }
        let [cwr, second] = two(Shape { flags: ACK | CWR, ..PLAIN });
        assert!(joins(&cwr, &second), "CWR of the first alone");
        let packet = Shape { payload: 250, ..PLAIN }.packet();
        let all: Vec<_> = (0..3).map(|index| segment(&packet, PLAIN.tcp_at(), GSO_SIZE, index)).collect();
        let mut buffer = vec![0; 1_000];
        let mut whole = SuperPacket::begin(&mut buffer, &all[0]).unwrap();
        assert!(!whole.append(&all[0]), "again");
        assert!(!whole.append(&all[2]), "before its turn");
        assert!(whole.append(&all[1]) && whole.append(&all[2]));
        // One in sequence behind the short one.
        let packet = Shape { payload: 350, ..PLAIN }.packet();
        let mut next = segment(&packet, PLAIN.tcp_at(), 50, 5);
        next[4..6].copy_from_slice(&segment(&packet, PLAIN.tcp_at(), 50, 3)[4..6]);
        assert!(!whole.append(&next), "behind a short one");
        assert_eq!(whole.finish().0, PLAIN.payload_at() + 250);
    }

    #[test]
    fn a_longer_segment_or_an_empty_one_does_not_join() {
        let packet = PLAIN.packet();
        let first = segment(&packet, PLAIN.tcp_at(), 50, 0);
        let mut longer = segment(&packet, PLAIN.tcp_at(), 100, 1);
        longer[PLAIN.tcp_at() + 4..][..4].copy_from_slice(&segment(&packet, PLAIN.tcp_at(), 50, 1)[24..28]);
        assert!(!joins(&first, &longer));
        let empty = segment(&Shape { payload: 0, ..PLAIN }.packet(), PLAIN.tcp_at(), 50, 0);
        assert!(!joins(&empty, &empty));
    }

    #[test]
    fn identifications_count_up_or_mean_nothing() {
        let [first, second] = two(PLAIN);
        let same = [&second[..4], &first[4..6], &second[6..]].concat();
        assert!(!joins(&first, &same));
        let whole = |packet: &[u8]| with(packet, 6, |flags| flags | 0x40);
        assert!(joins(&whole(&first), &whole(&same)));
    }

    #[test]
    fn no_more_than_the_buffer_and_an_ip_packet_hold() {
        let [first, second] = two(PLAIN);
        let len = first.len() + GSO_SIZE;
        for room in [len - 1, len] {
            let mut buffer = vec![0; room];
            let mut whole = SuperPacket::begin(&mut buffer, &first).unwrap();
            assert_eq!(whole.append(&second), room == len);
        }
        for ipv6 in [false, true] {
            let shape = Shape { ipv6, payload: 65_535 - Shape { ipv6, ..PLAIN }.payload_at(), ..PLAIN };
            let packet = shape.packet();
            let mut buffer = vec![0; 70_000];
            let all: Vec<_> = (0..shape.payload.div_ceil(7_000))
                .map(|index| segment(&packet, shape.tcp_at(), 7_000, index))
                .collect();
            let mut whole = SuperPacket::begin(&mut buffer, &all[0]).unwrap();
            assert!(all[1..].iter().all(|segment| whole.append(segment)));
            assert_eq!(whole.finish().0, 65_535);
            assert!(buffer[..65_535] == packet);
        }
    }
}
