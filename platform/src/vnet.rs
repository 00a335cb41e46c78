//! Linux's `struct virtio_net_hdr` and the super-packets behind it: pure functions over slices.
//!
//! A TUN with `IFF_VNET_HDR` puts ten bytes in front of every packet
//! (`include/uapi/linux/virtio_net.h`), in the byte order of the machine:
//!
//! | offset | field | here |
//! |---|---|---|
//! | 0 | `flags` | `NEEDS_CSUM`: the checksum field holds the sum of the pseudo-header alone |
//! | 1 | `gso_type` | none, or TCP over IPv4 or over IPv6 |
//! | 2 | `hdr_len` | IP and TCP or UDP header, in bytes |
//! | 4 | `gso_size` | payload of each segment, in bytes |
//! | 6 | `csum_start` | where the sum begins: the TCP or UDP header |
//! | 8 | `csum_offset` | where the sum goes, from there on: 16, or UDP's 6 |
//!
//! What comes from the device is not believed: [`read`] looks at nothing beyond the packet, and
//! refuses what contradicts it. Where the kernel is lenient for the sake of old guests, so is it:
//! `hdr_len` is a hint, `DATA_VALID` beside an undone checksum is no contradiction, and a
//! super-packet of one segment is a packet (`include/linux/virtio_net.h`, `virtio_net_hdr_to_skb`).
//!
//! [`split()`] and [`SuperPacket`] do in software what the offloads leave to a device: they cut a
//! super-packet into segments, and join segments into one.

pub mod checksum;
mod coalesce;
mod headers;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod reference;
mod split;
#[cfg(test)]
mod tests;

use std::num::NonZeroU16;

use self::checksum::{fold, sum};
pub use self::coalesce::SuperPacket;
pub use self::headers::{MAX_HEADERS_LEN, TcpFields, TcpHeaders};
pub use self::split::{NoRoom, Segments, split};
use crate::{Checksum, PacketMeta};

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag beside the type: the first segment alone has CWR.
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Of TCP's checksum in its header (RFC 9293, 3.1).
const TCP_CHECKSUM_AT: usize = 16;
const TCP_HEADER_LEN: usize = 20;
/// Of TCP's flags in its header, and the flags that a super-packet and its segments differ in.
const TCP_FLAGS_AT: usize = 13;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// Of UDP's checksum in its header (RFC 768).
const UDP_CHECKSUM_AT: usize = 6;
const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

/// Why a packet, or what came with it, cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its headers, or than what they say.
    #[error("the packet is shorter than its headers say")]
    Truncated,
    /// Longer than its IP header says.
    #[error("the packet is longer than its IP header says")]
    Oversized,
    /// Neither IPv4 nor IPv6.
    #[error("the packet is of no IP version")]
    Version,
    /// The checksum's place is not within the packet.
    #[error("the checksum would lie beyond the packet")]
    ChecksumBeyondPacket,
    /// The checksum's place is not that of the packet's TCP or UDP.
    #[error("the checksum would lie where TCP or UDP has none")]
    ChecksumElsewhere,
    /// The checksum of something that is neither TCP nor UDP is to be done.
    #[error("the checksum to be done is neither TCP's nor UDP's")]
    ChecksumUnknown,
    /// A super-packet of segments of no bytes.
    #[error("the super-packet has segments of no bytes")]
    NoSegmentSize,
    /// A super-packet that is not TCP over the IP version that its type says, or whose type is
    /// unknown.
    #[error("the super-packet is not of the type that it says")]
    SegmentationType,
    /// A super-packet whose checksum is said to be done: that of which segment?
    #[error("the super-packet has a checksum of its own")]
    SegmentationWithoutChecksum,
}

/// Where the parts of a TCP packet lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLayout {
    /// Whether it is IPv6.
    pub ipv6: bool,
    /// The TCP header.
    pub tcp_at: usize,
    /// What follows it.
    pub payload_at: usize,
}

impl TcpLayout {
    /// Reads the headers, which have to be whole, of a TCP packet. `None` for anything else: another
    /// protocol, a fragment, IPv6 with extension headers.
    #[inline]
    pub fn parse(headers: &[u8]) -> Option<Self> {
        let Transport { ipv6, protocol: TCP, at: tcp_at } = Transport::parse(headers)? else { return None };
        let tcp_len = usize::from(*headers.get(tcp_at + 12)? >> 4) * 4;
        let payload_at = tcp_at + tcp_len;
        (tcp_len >= TCP_HEADER_LEN && payload_at <= headers.len()).then_some(Self { ipv6, tcp_at, payload_at })
    }
}

/// Where a packet's transport header lies, and of what protocol it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Whether the packet is IPv6.
    pub ipv6: bool,
    /// The protocol's number; of IPv6, an extension header is the protocol.
    pub protocol: u8,
    /// Where its header begins, in bytes from the packet's start. The packet may end before.
    pub at: usize,
}

impl Transport {
    /// Reads the IP header. `None` for a fragment over IPv4.
    #[inline]
    pub fn parse(headers: &[u8]) -> Option<Self> {
        match headers.first()? >> 4 {
            4 => {
                let fragment = u16::from_be_bytes([*headers.get(6)?, *headers.get(7)?]) & 0x3fff;
                let at = usize::from(headers[0] & 0x0f) * 4;
                let protocol = *headers.get(9)?;
                (fragment == 0 && at >= IPV4_HEADER_LEN).then_some(Self { ipv6: false, protocol, at })
            }
            6 => Some(Self { ipv6: true, protocol: *headers.get(6)?, at: IPV6_HEADER_LEN }),
            _ => None,
        }
    }
}

/// The sequence number in a TCP header.
fn sequence(tcp: &[u8]) -> u32 {
    u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
}

/// Where a packet's TCP or UDP checksum covers from, and where its field lies from there on.
fn checksum_place(packet: &[u8]) -> Option<(usize, usize)> {
    let Transport { protocol, at, .. } = Transport::parse(packet)?;
    let (header_len, offset) = match protocol {
        TCP => (TCP_HEADER_LEN, TCP_CHECKSUM_AT),
        UDP => (UDP_HEADER_LEN, UDP_CHECKSUM_AT),
        _ => return None,
    };
    (at + header_len <= packet.len()).then_some((at, offset))
}

/// The sum (RFC 1071) of the pseudo-header of a TCP packet of `len` bytes in all (RFC 9293, 3.1; RFC
/// 8200, 8.1), not complemented: what the checksum field holds while the checksum is
/// [`Checksum::Partial`].
#[inline]
pub fn pseudo_header_sum(headers: &[u8], layout: &TcpLayout, len: usize) -> u16 {
    pseudo_header_sum_of(TCP, headers, layout.tcp_at, len)
}

/// The same of any transport protocol, whose header begins at `at`.
#[inline]
fn pseudo_header_sum_of(protocol: u8, headers: &[u8], at: usize, len: usize) -> u16 {
    let ipv6 = headers.first().is_some_and(|first| first >> 4 == 6);
    let addresses = headers.get(if ipv6 { 8..40 } else { 12..20 }).unwrap_or_default();
    let words = addresses.chunks_exact(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let transport_len = len.saturating_sub(at) as u64;
    fold(words.sum::<u64>() + u64::from(protocol) + (transport_len >> 16) + (transport_len & 0xffff))
}

/// Leaves the checksum of a TCP packet of `len` bytes in all, whose headers these are, to the link:
/// writes the sum of the pseudo-header into its field.
#[inline]
pub fn leave_checksum(headers: &mut [u8], layout: &TcpLayout, len: usize) {
    let sum = pseudo_header_sum(headers, layout, len);
    let at = layout.tcp_at + TCP_CHECKSUM_AT;
    if let Some(field) = headers.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Leaves the checksum of a UDP datagram to the link, as [`leave_checksum`] does a TCP segment's. `headers`
/// are the first bytes of a packet of `len` bytes in all, with the whole of its IP and UDP headers. Answers
/// whether it is one: a fragment has no checksum of its own, and stays as it is.
pub fn leave_udp_checksum(headers: &mut [u8], len: usize) -> bool {
    let Some((udp_at, UDP_CHECKSUM_AT)) = checksum_place(headers) else { return false };
    let sum = pseudo_header_sum_of(UDP, headers, udp_at, len);
    headers[udp_at + UDP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Completes a checksum that is [`Checksum::Partial`], of TCP or UDP, for a receiver that wants it
/// done.
///
/// The sum of the pseudo-header is taken from the field, as the kernel takes it
/// (`net/core/dev.c`, `skb_checksum_help`): where the sender has left nonsense there, the checksum
/// comes out wrong, and the receiver sees it.
///
/// # Errors
///
/// [`Malformed`], where the packet's length is not what it says, or its checksum is neither TCP's
/// nor UDP's; it is then as it was.
pub fn complete_checksum(packet: &mut [u8]) -> Result<(), Malformed> {
    check_length(packet)?;
    let (start, offset) = checksum_place(packet).ok_or(Malformed::ChecksumUnknown)?;
    let checksum = match !sum(&packet[start..]) {
        // Of UDP, zero says that there is none (RFC 768); all ones are the same number.
        0 if offset == UDP_CHECKSUM_AT => 0xffff,
        checksum => checksum,
    };
    packet[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// What a header that came from a device says of its packet.
///
/// A super-packet that one segment holds is reported as a packet like any other, as the kernel
/// takes it.
///
/// # Errors
///
/// See [`Malformed`]. `hdr_len` is not looked at: it is advice for who allocates (`virtio_net.h`).
/// Beyond what the kernel asks for, the checksum has to lie where TCP or UDP has it, because a
/// [`PacketMeta`] says no other place: that of a packet within a tunnel is refused.
pub fn read(header: &[u8; HEADER_LEN], packet: &[u8]) -> Result<PacketMeta, Malformed> {
    let field = |at| u16::from_ne_bytes([header[at], header[at + 1]]);
    check_length(packet)?;
    let mut meta = PacketMeta::default();
    if header[0] & NEEDS_CSUM != 0 {
        let place = (usize::from(field(6)), usize::from(field(8)));
        if place.0 + place.1 + 2 > packet.len() {
            return Err(Malformed::ChecksumBeyondPacket);
        }
        if checksum_place(packet).is_some_and(|of_packet| of_packet != place) {
            return Err(Malformed::ChecksumElsewhere);
        }
        meta.checksum = Checksum::Partial;
    }
    if header[1] != GSO_NONE {
        let gso_size = NonZeroU16::new(field(4)).ok_or(Malformed::NoSegmentSize)?;
        let layout = TcpLayout::parse(packet).ok_or(Malformed::SegmentationType)?;
        if header[1] & !GSO_ECN != if layout.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 } {
            return Err(Malformed::SegmentationType);
        }
        if meta.checksum == Checksum::Complete {
            return Err(Malformed::SegmentationWithoutChecksum);
        }
        if packet.len() - layout.payload_at > usize::from(gso_size.get()) {
            meta.gso_size = Some(gso_size);
        }
    }
    Ok(meta)
}

/// The packet has to be as long as its IP header says.
fn check_length(packet: &[u8]) -> Result<(), Malformed> {
    let (header_len, len) = match packet {
        [] => return Err(Malformed::Truncated),
        [first, _, a, b, ..] if first >> 4 == 4 => (IPV4_HEADER_LEN, usize::from(u16::from_be_bytes([*a, *b]))),
        [first, _, _, _, a, b, ..] if first >> 4 == 6 => {
            (IPV6_HEADER_LEN, IPV6_HEADER_LEN + usize::from(u16::from_be_bytes([*a, *b])))
        }
        [first, ..] if matches!(first >> 4, 4 | 6) => return Err(Malformed::Truncated),
        _ => return Err(Malformed::Version),
    };
    match packet.len() {
        actual if actual < len.max(header_len) => Err(Malformed::Truncated),
        actual if actual > len => Err(Malformed::Oversized),
        _ => Ok(()),
    }
}

/// The header to go in front of a packet whose first bytes, with the whole of its IP and TCP headers,
/// are `headers`.
///
/// # Errors
///
/// [`Malformed::SegmentationType`] where the meta leaves work to the device that the packet is not for:
/// a checksum is TCP's or UDP's, segments are TCP's.
#[inline]
pub fn write(meta: PacketMeta, headers: &[u8]) -> Result<[u8; HEADER_LEN], Malformed> {
    let mut header = [0; HEADER_LEN];
    if meta == PacketMeta::default() {
        return Ok(header);
    }
    let Some(layout) = TcpLayout::parse(headers) else { return write_udp(meta, headers) };
    let mut put = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    put(2, layout.payload_at as u16);
    put(6, layout.tcp_at as u16);
    put(8, TCP_CHECKSUM_AT as u16);
    put(4, meta.gso_size.map_or(0, NonZeroU16::get));
    match meta.checksum {
        Checksum::Partial => header[0] = NEEDS_CSUM,
        Checksum::Complete if meta.gso_size.is_some() => return Err(Malformed::SegmentationWithoutChecksum),
        Checksum::Complete => {}
    }
    header[1] = match meta.gso_size {
        None => GSO_NONE,
        Some(_) if layout.ipv6 => GSO_TCPV6,
        Some(_) => GSO_TCPV4,
    };
    Ok(header)
}

/// The same in front of a UDP datagram, whose checksum alone can be left to the device.
fn write_udp(meta: PacketMeta, headers: &[u8]) -> Result<[u8; HEADER_LEN], Malformed> {
    let PacketMeta { checksum: Checksum::Partial, gso_size: None } = meta else {
        return Err(Malformed::SegmentationType);
    };
    let Some((udp_at, UDP_CHECKSUM_AT)) = checksum_place(headers) else { return Err(Malformed::SegmentationType) };
    let mut header = [0; HEADER_LEN];
    header[0] = NEEDS_CSUM;
    for (at, value) in [(2, udp_at + UDP_HEADER_LEN), (6, udp_at), (8, UDP_CHECKSUM_AT)] {
        header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
    }
    Ok(header)
}
