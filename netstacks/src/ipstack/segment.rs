//! TCP segments as bytes: read, composed, patched. Pure.

use std::net::SocketAddr;

use platform::packet::flags::{FIN, SYN};
use platform::packet::{
    TCP, TCP_HEADER_LEN, TcpFields, TcpLayout, TcpSegment, UDP, UDP_HEADER_LEN, checksum, ip_len, write_ip,
    write_partial_checksum, write_tcp,
};

use crate::FlowKey;

/// Longest IP and TCP headers that ipstack makes or that are composed here: IPv6, TCP, MSS option.
pub(super) const MAX_HEADER: usize = 40 + 20 + 4;

/// Longest headers of an empty datagram.
pub(super) const MAX_DATAGRAM_HEADER: usize = 40 + UDP_HEADER_LEN;

/// Bytes of an MSS option.
const MSS_OPTION: usize = 4;

/// The fields of a TCP segment, and its place in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Offset of the TCP header.
    pub(super) tcp_at: usize,
    /// Offset of the payload.
    pub(super) payload_at: usize,
    pub(super) payload_len: usize,
}

impl Segment {
    /// Reads a whole IP packet. `None` if it is malformed, a fragment, or not TCP.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let segment = TcpSegment::parse(packet.get(..ip_len(packet)?)?)?;
        let (source, destination) = segment.endpoints()?;
        Some(Self {
            source,
            destination,
            seq: segment.sequence(),
            ack: segment.acknowledgement(),
            flags: segment.flags(),
            window: segment.window(),
            tcp_at: segment.layout.tcp_at,
            payload_at: segment.layout.payload_at,
            payload_len: segment.payload().len(),
        })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The sequence number behind the segment.
    pub(super) fn end(&self) -> u32 {
        let len = self.payload_len as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq.wrapping_add(len)
    }
}

/// The MSS option of a SYN (RFC 9293, 3.7.1).
pub(super) fn maximum_segment_size(packet: &[u8]) -> Option<u16> {
    TcpSegment::parse(packet)?.options().find_map(|option| option.mss())
}

/// A header to be composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// The MSS option, for a SYN.
    pub(super) mss: Option<u16>,
}

impl Header {
    /// Bytes of the IP and the TCP header.
    pub(super) fn len(&self) -> usize {
        ip_header_len(self.source) + self.tcp_len()
    }

    fn tcp_len(&self) -> usize {
        TCP_HEADER_LEN + self.mss.map_or(0, |_| MSS_OPTION)
    }

    /// Writes the headers of a packet with so much payload to the front of `out`, with a TCP
    /// checksum of zero, and returns their length. Nothing is written if `out` is too short.
    pub(super) fn write(&self, out: &mut [u8], payload_len: usize) -> usize {
        let len = self.len();
        let Some(out) = out.get_mut(..len) else { return 0 };
        out.fill(0);
        let payload_len = self.tcp_len() + payload_len;
        // The addresses of a flow come from one packet, so they are of one IP version.
        let Some(tcp_at) = write_ip(out, self.source.ip(), self.destination.ip(), TCP, payload_len) else { return 0 };
        let tcp = &mut out[tcp_at..];
        tcp[0..2].copy_from_slice(&self.source.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        let Self { seq, ack, flags, window, .. } = *self;
        write_tcp(tcp, TcpFields { sequence: seq, acknowledgement: ack, flags, window });
        if let Some(mss) = self.mss {
            tcp[20..22].copy_from_slice(&[2, MSS_OPTION as u8]);
            tcp[22..24].copy_from_slice(&mss.to_be_bytes());
        }
        len
    }

    /// Writes a whole packet without payload, with its checksums.
    pub(super) fn write_sealed(&self, out: &mut [u8]) -> usize {
        let len = self.write(out, 0);
        if let Some(packet) = out.get_mut(..len)
            && let Some(layout) = TcpLayout::parse(packet)
        {
            write_partial_checksum(packet, &layout, len);
            let checksum = !checksum::sum(&packet[layout.tcp_at..]);
            packet[layout.tcp_at + 16..layout.tcp_at + 18].copy_from_slice(&checksum.to_be_bytes());
        }
        len
    }
}

/// Writes an empty datagram from the peer, and returns its length. ipstack verifies no checksum.
pub(super) fn empty_datagram(key: FlowKey, out: &mut [u8; MAX_DATAGRAM_HEADER]) -> usize {
    let Some(udp_at) = write_ip(out, key.peer.ip(), key.local.ip(), UDP, UDP_HEADER_LEN) else { return 0 };
    for (at, field) in [(0, key.peer.port()), (2, key.local.port()), (4, UDP_HEADER_LEN as u16)] {
        out[udp_at + at..udp_at + at + 2].copy_from_slice(&field.to_be_bytes());
    }
    udp_at + UDP_HEADER_LEN
}

/// Bytes of the IP header that goes with an address.
pub(super) fn ip_header_len(address: SocketAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// Puts another sequence number, acknowledgement and window into a TCP header, and updates its checksum, so
/// that the payload need not be summed again.
pub(super) fn patch(tcp: &mut [u8], seq: u32, ack: u32, window: u16) {
    let Some(tcp) = tcp.first_chunk_mut::<TCP_HEADER_LEN>() else { return };
    let old = checksum::sum(&tcp[4..16]);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    let checksum = u16::from_be_bytes([tcp[16], tcp[17]]);
    let checksum = checksum::update(checksum, old, checksum::sum(&tcp[4..16]));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// Whether `a` comes after `b` in sequence space (RFC 9293, 3.4).
pub(super) fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use platform::packet::flags::ACK;

    use super::*;
    use crate::with_extension_headers;

    fn header(v6: bool, mss: Option<u16>) -> Header {
        let (source, destination) =
            if v6 { ("[fd00::1]:80", "[fd00::2]:4000") } else { ("10.0.0.1:80", "10.0.0.2:4000") };
        Header {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            seq: 0xfedc_ba98,
            ack: 0x0123_4567,
            flags: ACK,
            window: 0xbeef,
            mss,
        }
    }

    /// RFC 1071's sum, byte by byte, over the pseudo-header and the segment.
    fn reference(packet: &[u8]) -> u16 {
        let v6 = packet[0] >> 4 == 6;
        let (at, addresses) = if v6 { (40, &packet[8..40]) } else { (20, &packet[12..20]) };
        let len = (packet.len() - at) as u32;
        let mut bytes = addresses.to_vec();
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(&[0, TCP]);
        bytes.extend_from_slice(&packet[at..]);
        let mut sum = 0_u64;
        for (index, byte) in bytes.iter().enumerate() {
            sum += u64::from(*byte) << if index % 2 == 0 { 8 } else { 0 };
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn packet(v6: bool, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 64];
        let len = header(v6, None).write(&mut packet, payload.len());
        packet.truncate(len);
        packet.extend_from_slice(payload);
        let sum = reference(&packet);
        packet[len - 4..len - 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn composed_headers_are_read_back() {
        for v6 in [false, true] {
            let bytes = packet(v6, b"hello");
            let segment = Segment::parse(&bytes).unwrap();
            let header = header(v6, None);
            assert_eq!((segment.source, segment.destination), (header.source, header.destination));
            assert_eq!((segment.seq, segment.ack, segment.window), (header.seq, header.ack, header.window));
            assert_eq!(&bytes[segment.payload_at..][..segment.payload_len], b"hello");
            assert_eq!(reference(&bytes), 0);
        }
    }

    #[test]
    fn a_segment_is_found_behind_extension_headers() {
        let bytes = packet(true, b"hello");
        let extended = with_extension_headers(&bytes, true);
        let [plain, found] = [&bytes, &extended].map(|packet| Segment::parse(packet).unwrap());
        assert_eq!(&extended[found.payload_at..], b"hello");
        assert_eq!(Segment { tcp_at: plain.tcp_at, payload_at: plain.payload_at, ..found }, plain);
    }

    #[test]
    fn a_sealed_packet_has_its_checksums_and_its_mss() {
        for v6 in [false, true] {
            let mut bytes = [0; MAX_HEADER];
            let len = Header { flags: SYN | ACK, ..header(v6, Some(1440)) }.write_sealed(&mut bytes);
            assert_eq!(reference(&bytes[..len]), 0);
            assert_eq!(maximum_segment_size(&bytes[..len]), Some(1440));
            if !v6 {
                assert_eq!(checksum::sum(&bytes[..20]), 0xffff);
            }
        }
    }

    #[test]
    fn a_patched_checksum_equals_the_slow_sum() {
        for v6 in [false, true] {
            for (ack, window) in [(0, 0), (1, 65535), (0xffff_ffff, 0xffff), (0x0123_4567, 0xbeef), (0x8000_0000, 1)] {
                let mut bytes = packet(v6, &[7; 33]);
                let at = Segment::parse(&bytes).unwrap().tcp_at;
                patch(&mut bytes[at..], !ack, ack, window);
                let segment = Segment::parse(&bytes).unwrap();
                assert_eq!((segment.seq, segment.ack, segment.window), (!ack, ack, window));
                assert_eq!(reference(&bytes), 0, "ack {ack:x} window {window:x}");
            }
        }
    }

    #[test]
    fn malformed_and_other_packets_are_refused_at_every_length() {
        for v6 in [false, true] {
            let bytes = packet(v6, b"payload");
            for len in 0..bytes.len() {
                assert_eq!(Segment::parse(&bytes[..len]), None);
            }
            let mut fragment = packet(v6, b"payload");
            let (at, value) = if v6 { (6, 44) } else { (6, 0x20) };
            fragment[at] = value;
            assert_eq!(Segment::parse(&fragment), None);
        }
        for byte in 0..=255_u8 {
            for len in 0..80 {
                let _ = Segment::parse(&vec![byte; len]);
            }
        }
    }

    #[test]
    fn options_that_run_out_of_the_header_are_no_mss() {
        let mut bytes = [0; MAX_HEADER];
        let len = Header { flags: SYN, ..header(false, Some(1440)) }.write_sealed(&mut bytes);
        for options in [[1, 1, 1, 1], [2, 4, 0, 9], [3, 0, 0, 0], [5, 200, 0, 0], [2, 3, 1, 1], [1, 1, 1, 2]] {
            bytes[40..44].copy_from_slice(&options);
            let expected = (options[..2] == [2, 4]).then_some(9);
            assert_eq!(maximum_segment_size(&bytes[..len]), expected);
        }
    }
}
