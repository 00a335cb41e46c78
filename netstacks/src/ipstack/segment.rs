//! TCP segments as bytes: read, composed, patched. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Ends;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

/// Longest IP and TCP headers that ipstack makes or that are composed here: IPv6, TCP, MSS option.
pub(super) const MAX_HEADER: usize = 40 + 20 + 4;
/// TCP header without options.
pub(super) const TCP_HEADER: usize = 20;

/// Longest headers of an empty datagram.
pub(super) const MAX_DATAGRAM_HEADER: usize = 40 + UDP_HEADER;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const HOP_LIMIT: u8 = 64;
/// Bytes of an MSS option.
const MSS_OPTION: usize = 4;

/// What matters of a TCP segment, and where it lies in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Where the TCP header begins.
    pub(super) tcp_at: usize,
    /// Where the payload begins.
    pub(super) payload_at: usize,
    pub(super) payload_len: usize,
}

impl Segment {
    /// Reads a whole IP packet. `None` for what is malformed, a fragment, or not TCP.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (source, destination, tcp_at, end) = match packet.first()? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let tcp = packet.get(tcp_at..end)?;
        let header_len = usize::from(*tcp.get(12)? >> 4) * 4;
        if header_len < TCP_HEADER || header_len > tcp.len() {
            return None;
        }
        Some(Self {
            source: SocketAddr::new(source, be16(tcp, 0)?),
            destination: SocketAddr::new(destination, be16(tcp, 2)?),
            seq: be32(tcp, 4)?,
            ack: be32(tcp, 8)?,
            flags: *tcp.get(13)?,
            window: be16(tcp, 14)?,
            tcp_at,
            payload_at: tcp_at + header_len,
            payload_len: tcp.len() - header_len,
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

/// Addresses, and where the transport header begins and the packet ends.
type Network = (IpAddr, IpAddr, usize, usize);

fn ipv4(packet: &[u8]) -> Option<Network> {
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let total_len = usize::from(be16(packet, 2)?);
    // More fragments, or an offset: either makes a fragment (RFC 791, 3.1).
    let fragment = be16(packet, 6)? & 0x3fff != 0;
    if header_len < 20 || total_len < header_len || total_len > packet.len() || fragment || packet[9] != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(be32(packet, at)?)));
    Some((address(12)?, address(16)?, header_len, total_len))
}

fn ipv6(packet: &[u8]) -> Option<Network> {
    let end = 40 + usize::from(be16(packet, 4)?);
    if end > packet.len() {
        return None;
    }
    let mut next = packet[6];
    let mut at = 40;
    // Hop-by-hop options, routing, destination options: skipped (RFC 8200, 4).
    while matches!(next, 0 | 43 | 60) {
        next = *packet.get(at)?;
        at += 8 + usize::from(*packet.get(at + 1)?) * 8;
    }
    let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
    (next == PROTOCOL_TCP).then_some((address(8)?, address(24)?, at, end))
}

/// The MSS option of a SYN (RFC 9293, 3.7.1).
pub(super) fn maximum_segment_size(packet: &[u8], segment: &Segment) -> Option<u16> {
    let mut options = packet.get(segment.tcp_at + TCP_HEADER..segment.payload_at)?;
    loop {
        let len = match *options.first()? {
            0 => return None,
            1 => 1,
            2 if options.get(1) == Some(&4) => return be16(options, 2),
            _ => usize::from(*options.get(1)?).max(2),
        };
        options = options.get(len..)?;
    }
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
        TCP_HEADER + self.mss.map_or(0, |_| MSS_OPTION)
    }

    /// Writes the headers of a packet with so much payload to the front of `out`, with a TCP
    /// checksum of zero, and answers their length. Nothing is written where `out` is too short.
    pub(super) fn write(&self, out: &mut [u8], payload_len: usize) -> usize {
        let len = self.len();
        let tcp_at = ip_header_len(self.source);
        let Some(out) = out.get_mut(..len) else { return 0 };
        out.fill(0);
        write_ip(out, self.source.ip(), self.destination.ip(), PROTOCOL_TCP, self.tcp_len() + payload_len);
        let tcp = &mut out[tcp_at..];
        tcp[0..2].copy_from_slice(&self.source.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = (self.tcp_len() as u8 / 4) << 4;
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        if let Some(mss) = self.mss {
            tcp[20..22].copy_from_slice(&[2, MSS_OPTION as u8]);
            tcp[22..24].copy_from_slice(&mss.to_be_bytes());
        }
        len
    }

    /// Writes a whole packet without payload, checksums and all.
    pub(super) fn write_sealed(&self, out: &mut [u8]) -> usize {
        let len = self.write(out, 0);
        let tcp_at = ip_header_len(self.source);
        if let Some(packet) = out.get_mut(..len)
            && len > tcp_at
        {
            let sum = pseudo_header(self.source.ip(), self.destination.ip(), len - tcp_at) + words(&packet[tcp_at..]);
            let checksum = !fold(sum);
            packet[tcp_at + 16..tcp_at + 18].copy_from_slice(&checksum.to_be_bytes());
        }
        len
    }
}

/// Writes an empty datagram from the peer, and answers its length. ipstack looks at no checksum.
pub(super) fn empty_datagram(key: Ends, out: &mut [u8; MAX_DATAGRAM_HEADER]) -> usize {
    let udp_at = ip_header_len(key.peer);
    let len = udp_at + UDP_HEADER;
    write_ip(out, key.peer.ip(), key.local.ip(), PROTOCOL_UDP, UDP_HEADER);
    for (at, field) in [(0, key.peer.port()), (2, key.local.port()), (4, UDP_HEADER as u16)] {
        out[udp_at + at..udp_at + at + 2].copy_from_slice(&field.to_be_bytes());
    }
    len
}

/// Bytes of the IP header that goes with an address.
pub(super) fn ip_header_len(address: SocketAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// Writes an IP header into zeroed bytes. Both addresses are of one family.
fn write_ip(out: &mut [u8], source: IpAddr, destination: IpAddr, protocol: u8, len: usize) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out[0] = 0x45;
            out[2..4].copy_from_slice(&((20 + len) as u16).to_be_bytes());
            out[6] = 0x40; // don't fragment
            out[8] = HOP_LIMIT;
            out[9] = protocol;
            out[12..16].copy_from_slice(&source.octets());
            out[16..20].copy_from_slice(&destination.octets());
            let checksum = !fold(words(&out[..20]));
            out[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            out[0] = 0x60;
            out[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            out[6] = protocol;
            out[7] = HOP_LIMIT;
            out[8..24].copy_from_slice(&source.octets());
            out[24..40].copy_from_slice(&destination.octets());
        }
        // A flow's addresses come from one packet, hence are of one family.
        _ => {}
    }
}

/// Puts another sequence number, acknowledgement and window into a TCP header, and mends its checksum by what has
/// changed (RFC 1624, equation 3), so that the payload need not be summed again.
pub(super) fn patch(tcp: &mut [u8], seq: u32, ack: u32, window: u16) {
    let Some(tcp) = tcp.first_chunk_mut::<TCP_HEADER>() else { return };
    let old = words(&tcp[4..12]) + words(&tcp[14..16]);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    let new = words(&tcp[4..12]) + words(&tcp[14..16]);
    let checksum = u16::from_be_bytes([tcp[16], tcp[17]]);
    let sum = u32::from(!checksum) + u32::from(!fold(old)) + new;
    tcp[16..18].copy_from_slice(&(!fold(sum)).to_be_bytes());
}

fn pseudo_header(source: IpAddr, destination: IpAddr, len: usize) -> u32 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => words(&address.octets()),
        IpAddr::V6(address) => words(&address.octets()),
    };
    address(source) + address(destination) + u32::from(PROTOCOL_TCP) + len as u32
}

/// The sum of the 16-bit words, as many as 64 KiB hold without overflow.
fn words(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    sum + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

/// The one's complement sum of what `words` left.
fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Whether `a` comes after `b` in sequence space (RFC 9293, 3.4).
pub(super) fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

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
        bytes.extend_from_slice(&[0, PROTOCOL_TCP]);
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
    fn what_is_composed_is_read_back() {
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
    fn a_sealed_packet_has_its_checksums_and_its_mss() {
        for v6 in [false, true] {
            let mut bytes = [0; MAX_HEADER];
            let len = Header { flags: SYN | ACK, ..header(v6, Some(1440)) }.write_sealed(&mut bytes);
            assert_eq!(reference(&bytes[..len]), 0);
            let segment = Segment::parse(&bytes[..len]).unwrap();
            assert_eq!(maximum_segment_size(&bytes[..len], &segment), Some(1440));
            if !v6 {
                assert_eq!(fold(words(&bytes[..20])), 0xffff);
            }
        }
    }

    #[test]
    fn a_patched_checksum_is_that_of_the_slow_sum() {
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
    fn what_is_malformed_or_not_tcp_is_refused_at_every_length() {
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
        let segment = Segment::parse(&bytes[..len]).unwrap();
        for options in [[1, 1, 1, 1], [2, 4, 0, 9], [3, 0, 0, 0], [5, 200, 0, 0], [2, 3, 1, 1], [1, 1, 1, 2]] {
            bytes[40..44].copy_from_slice(&options);
            let expected = (options[..2] == [2, 4]).then_some(9);
            assert_eq!(maximum_segment_size(&bytes[..len], &segment), expected);
        }
    }
}
