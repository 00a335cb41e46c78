//! IP, TCP and UDP headers. All code that parses them is here, and the code that writes them where no library does. The
//! functions are pure, work on slices, and read nothing beyond the slice. `etherparse` takes two to four times as many
//! instructions, and the wire types of smoltcp do not follow extension headers. [`Transport`] does (RFC 8200, 4):
//!
//! | extension header | |
//! |---|---|
//! | hop-by-hop options, destination options | skipped; the options are not read |
//! | routing | skipped if no segments are left; else the packet is not at its destination yet |
//! | fragment | skipped if the packet is complete (an atomic fragment, RFC 6946); else there is no transport header |
//! | any other | is the protocol of the packet |

pub mod checksum;
mod headers;
mod icmp;
#[cfg(test)]
pub(crate) mod reference;
mod tcp;
mod text;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use self::checksum::{fold, sum};
pub(crate) use self::headers::write_ipv4_checksum;
pub use self::headers::{MAX_HEADERS_LEN, TcpFields, TcpHeaders, write_ip, write_ip_len};
pub use self::icmp::{icmp_error, packet_too_big};
pub use self::tcp::{TcpLayout, TcpOption, TcpOptions, TcpSegment, flags, offset};
pub use self::text::PacketText;

/// Protocol number of ICMP over IPv4.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMP over IPv6.
pub const ICMPV6: u8 = 58;

/// Length of an IPv4 header without options, in bytes.
pub const IPV4_HEADER_LEN: usize = 20;
/// Length of an IPv6 header without extension headers, in bytes.
pub const IPV6_HEADER_LEN: usize = 40;
/// Length of a TCP header without options, in bytes.
pub const TCP_HEADER_LEN: usize = 20;
/// Length of a UDP header, in bytes.
pub const UDP_HEADER_LEN: usize = 8;

/// Offset of the checksum in a TCP header (RFC 9293, 3.1).
pub(crate) const TCP_CHECKSUM_AT: usize = offset::CHECKSUM;
/// Offset of the checksum in a UDP header (RFC 768).
pub(crate) const UDP_CHECKSUM_AT: usize = 6;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// "More fragments" and the offset, in the field that also holds "don't fragment" (RFC 791, 3.1).
const IPV4_FRAGMENT_MASK: u16 = 0x3fff;
const IPV4_OFFSET_MASK: u16 = 0x1fff;

/// The position and protocol of a packet's transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Whether the packet is IPv6.
    pub ipv6: bool,
    /// The protocol's number.
    pub protocol: u8,
    /// Offset of the transport header in the packet, in bytes. The packet may end before it.
    pub at: usize,
}

impl Transport {
    /// `None` for a fragment, for a routing header with segments left, and for truncated headers.
    #[inline]
    pub fn parse(headers: &[u8]) -> Option<Self> {
        match headers.first()? >> 4 {
            4 => {
                let [first, _, _, _, _, _, high, low, _, protocol] = *headers.first_chunk::<10>()?;
                let fragment = u16::from_be_bytes([high, low]) & IPV4_FRAGMENT_MASK;
                let at = usize::from(first & 0x0f) * 4;
                (fragment == 0 && at >= IPV4_HEADER_LEN).then_some(Self { ipv6: false, protocol, at })
            }
            6 => match *headers.get(6)? {
                first @ (HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) => {
                    Self::behind(headers, first, IPV6_HEADER_LEN)
                }
                protocol => Some(Self { ipv6: true, protocol, at: IPV6_HEADER_LEN }),
            },
            _ => None,
        }
    }

    /// Reads IPv6's extension headers from offset `at` on, where the header of `protocol` is; see [`Transport::parse`].
    #[cold]
    pub fn behind(headers: &[u8], mut protocol: u8, mut at: usize) -> Option<Self> {
        // Each extension header has at least 8 bytes, so the packet's length limits the loop.
        loop {
            let header = headers.get(at..).and_then(<[u8]>::first_chunk::<8>);
            let len = match (protocol, header) {
                (HOP_BY_HOP | DESTINATION_OPTIONS, Some([_, len, ..])) | (ROUTING, Some([_, len, _, 0, ..])) => {
                    8 + usize::from(*len) * 8
                }
                // Neither an offset nor "more fragments".
                (FRAGMENT, Some([_, _, 0, low, ..])) if low & 0xf9 == 0 => 8,
                (HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS, _) => return None,
                _ => return Some(Self { ipv6: true, protocol, at }),
            };
            protocol = header?[0];
            at += len;
        }
    }

    /// Offsets of the TCP or UDP header and of its checksum field. `None` for other and for short packets.
    pub(crate) fn checksum_place(packet: &[u8]) -> Option<(usize, usize)> {
        let Self { protocol, at, .. } = Self::parse(packet)?;
        let (header_len, offset) = match protocol {
            TCP => (TCP_HEADER_LEN, TCP_CHECKSUM_AT),
            UDP => (UDP_HEADER_LEN, UDP_CHECKSUM_AT),
            _ => return None,
        };
        (at + header_len <= packet.len()).then_some((at, offset))
    }
}

/// The IPv4 header of a fragment (RFC 791, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Fragment {
    /// The protocol's number.
    pub protocol: u8,
    /// The number that all fragments of one packet share.
    pub identification: u16,
    /// Whether this is the first fragment, with the transport header.
    pub is_first: bool,
    /// Length of the IP header, in bytes.
    pub header_len: usize,
}

impl Ipv4Fragment {
    /// Reads the IPv4 header. `None` for a packet that is not a fragment over IPv4.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let field = be16(packet, 6)?;
        if packet[0] >> 4 != 4 || field & IPV4_FRAGMENT_MASK == 0 {
            return None;
        }
        Some(Self {
            protocol: *packet.get(9)?,
            identification: be16(packet, 4)?,
            is_first: field & IPV4_OFFSET_MASK == 0,
            header_len: usize::from(packet[0] & 0x0f) * 4,
        })
    }
}

/// The fragment header of an IPv6 packet (RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Fragment {
    /// The number of the protocol that follows the header.
    pub protocol: u8,
    /// The number that all fragments of one packet share.
    pub identification: u32,
    /// Whether this is the first fragment, with the transport header.
    pub is_first: bool,
    /// Offset of the fragment's payload in the packet, in bytes.
    pub payload_at: usize,
}

impl Ipv6Fragment {
    /// Reads the extension headers up to the fragment header. `None` for a packet without one.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let mut at = IPV6_HEADER_LEN;
        let mut protocol = *packet.get(6).filter(|_| packet[0] >> 4 == 6)?;
        // Each header has at least 8 bytes, so the packet's length limits the loop.
        loop {
            let [next, len, offset @ .., a, b, c, d] = *packet.get(at..)?.first_chunk::<8>()?;
            match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => at += 8 + usize::from(len) * 8,
                FRAGMENT => {
                    return Some(Self {
                        protocol: next,
                        identification: u32::from_be_bytes([a, b, c, d]),
                        is_first: u16::from_be_bytes(offset) >> 3 == 0,
                        payload_at: at + 8,
                    });
                }
                _ => return None,
            }
            protocol = next;
        }
    }
}

/// The fields of a UDP header (RFC 768).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Length of header and payload, in bytes.
    pub len: u16,
    /// The checksum. 0 means that there is none.
    pub checksum: u16,
}

impl UdpHeader {
    /// Reads the header at the start of `udp`. `None` if `udp` is shorter than a header.
    #[inline]
    pub fn parse(udp: &[u8]) -> Option<Self> {
        let (fields, _) = udp.first_chunk::<UDP_HEADER_LEN>()?.as_chunks::<2>();
        let field = |index: usize| u16::from_be_bytes(fields[index]);
        Some(Self { source_port: field(0), destination_port: field(1), len: field(2), checksum: field(3) })
    }
}

/// The length of the whole packet by its IP header, in bytes.
#[inline]
pub fn ip_len(packet: &[u8]) -> Option<usize> {
    match packet {
        [first, _, a, b, ..] if first >> 4 == 4 => Some(usize::from(u16::from_be_bytes([*a, *b]))),
        [first, _, _, _, a, b, ..] if first >> 4 == 6 => {
            Some(IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([*a, *b])))
        }
        _ => None,
    }
}

/// The source and destination address of an IP packet. `None` if the packet ends before them.
#[inline]
pub fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let (source, destination) = packet.get(12..20)?.split_first_chunk::<4>()?;
            Some((Ipv4Addr::from(*source).into(), Ipv4Addr::from(*destination.first_chunk::<4>()?).into()))
        }
        6 => {
            let (source, destination) = packet.get(8..40)?.split_first_chunk::<16>()?;
            Some((Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination.first_chunk::<16>()?).into()))
        }
        _ => None,
    }
}

/// The sum (RFC 1071) of the pseudo-header of a packet of `len` bytes in all (RFC 9293, 3.1; RFC 8200, 8.1), not
/// complemented.
#[inline]
pub(crate) fn pseudo_header_sum(protocol: u8, headers: &[u8], at: usize, len: usize) -> u16 {
    let ipv6 = headers.first().is_some_and(|first| first >> 4 == 6);
    let addresses = headers.get(if ipv6 { 8..40 } else { 12..20 }).unwrap_or_default();
    let words = addresses.chunks_exact(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let transport_len = len.saturating_sub(at) as u64;
    fold(words.sum::<u64>() + u64::from(protocol) + (transport_len >> 16) + (transport_len & 0xffff))
}

/// Writes a partial checksum into the headers of a TCP packet of `len` bytes in all. The link completes the checksum.
#[inline]
pub fn write_partial_checksum(headers: &mut [u8], layout: &TcpLayout, len: usize) {
    let sum = pseudo_header_sum(TCP, headers, layout.tcp_at, len);
    let at = layout.tcp_at + TCP_CHECKSUM_AT;
    if let Some(field) = headers.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// The same for a UDP datagram. Returns `false`, and writes nothing, for any other packet and for a fragment.
pub fn write_partial_udp_checksum(headers: &mut [u8], len: usize) -> bool {
    let Some((udp_at, UDP_CHECKSUM_AT)) = Transport::checksum_place(headers) else { return false };
    let sum = pseudo_header_sum(UDP, headers, udp_at, len);
    headers[udp_at + UDP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Completes a partial TCP or UDP checksum. Returns whether the packet is TCP or UDP.
pub(crate) fn fill_checksum(packet: &mut [u8]) -> bool {
    let Some((start, offset)) = Transport::checksum_place(packet) else { return false };
    fill_checksum_at(packet, start, offset);
    true
}

/// The same for a packet whose TCP or UDP header is at `start`, with the checksum at `offset` in it.
pub(crate) fn fill_checksum_at(packet: &mut [u8], start: usize, offset: usize) {
    let checksum = match !sum(&packet[start..]) {
        // In UDP, zero means "no checksum" (RFC 768). All ones are the same number in one's complement.
        0 if offset == UDP_CHECKSUM_AT => 0xffff,
        checksum => checksum,
    };
    packet[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Whether the filled TCP or UDP checksum of a packet is right. A packet without a checksum is right too: a fragment,
/// another protocol, or UDP over IPv4 with a checksum of zero (RFC 768). Over IPv6, UDP must have one (RFC 8200, 8.1).
pub fn is_checksum_right(packet: &[u8]) -> bool {
    let Some((start, offset)) = Transport::checksum_place(packet) else { return true };
    let is_udp = offset == UDP_CHECKSUM_AT;
    if is_udp && packet[start + offset..start + offset + 2] == [0; 2] {
        return packet[0] >> 4 == 4;
    }
    let pseudo_header = pseudo_header_sum(if is_udp { UDP } else { TCP }, packet, start, packet.len());
    fold(u64::from(pseudo_header) + u64::from(sum(&packet[start..]))) == 0xffff
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
