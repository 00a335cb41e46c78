//! Linux's `struct virtio_net_hdr` and the super-packets behind it: pure functions over slices.
//!
//! A TUN with `IFF_VNET_HDR` puts ten bytes in front of every packet
//! (`include/uapi/linux/virtio_net.h`), in the byte order of the machine:
//!
//! | offset | field | here |
//! |---|---|---|
//! | 0 | `flags` | `NEEDS_CSUM`: the checksum field holds the sum of the pseudo-header alone |
//! | 1 | `gso_type` | none, or TCP over IPv4 or over IPv6 |
//! | 2 | `hdr_len` | IP and TCP header, in bytes |
//! | 4 | `gso_size` | payload of each segment, in bytes |
//! | 6 | `csum_start` | where the sum begins: the TCP header |
//! | 8 | `csum_offset` | where the sum goes, from there on: 16 |
//!
//! What comes from the device is not believed: [`read`] looks at nothing beyond the packet, and
//! refuses what contradicts it.

use std::num::NonZeroU16;

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
/// Of TCP's checksum in its header (RFC 9293, 3.1).
const TCP_CHECKSUM_AT: usize = 16;
const TCP_HEADER_LEN: usize = 20;
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
        let (ipv6, tcp_at) = match headers.first()? >> 4 {
            4 => {
                let fragment = u16::from_be_bytes([*headers.get(6)?, *headers.get(7)?]) & 0x3fff;
                let len = usize::from(headers[0] & 0x0f) * 4;
                if *headers.get(9)? != TCP || fragment != 0 || len < IPV4_HEADER_LEN {
                    return None;
                }
                (false, len)
            }
            6 if *headers.get(6)? == TCP => (true, IPV6_HEADER_LEN),
            _ => return None,
        };
        let tcp_len = usize::from(*headers.get(tcp_at + 12)? >> 4) * 4;
        let payload_at = tcp_at + tcp_len;
        (tcp_len >= TCP_HEADER_LEN && payload_at <= headers.len()).then_some(Self { ipv6, tcp_at, payload_at })
    }
}

/// The sum (RFC 1071) of the pseudo-header of a TCP packet of `len` bytes in all (RFC 9293, 3.1; RFC
/// 8200, 8.1), not complemented: what the checksum field holds while the checksum is
/// [`Checksum::Partial`].
#[inline]
pub fn pseudo_header_sum(headers: &[u8], layout: &TcpLayout, len: usize) -> u16 {
    let addresses = headers.get(if layout.ipv6 { 8..40 } else { 12..20 }).unwrap_or_default();
    let words = addresses.chunks_exact(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    let tcp_len = len.saturating_sub(layout.tcp_at) as u64;
    fold(words.sum::<u64>() + u64::from(TCP) + (tcp_len >> 16) + (tcp_len & 0xffff))
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

/// What a header that came from a device says of its packet.
///
/// # Errors
///
/// See [`Malformed`]. `hdr_len` is not looked at: it is advice for who allocates (`virtio_net.h`).
pub fn read(header: &[u8; HEADER_LEN], packet: &[u8]) -> Result<PacketMeta, Malformed> {
    let field = |at| u16::from_ne_bytes([header[at], header[at + 1]]);
    check_length(packet)?;
    let mut meta = PacketMeta::default();
    if header[0] & NEEDS_CSUM != 0 {
        if usize::from(field(6)) + usize::from(field(8)) + 2 > packet.len() {
            return Err(Malformed::ChecksumBeyondPacket);
        }
        meta.checksum = Checksum::Partial;
    }
    let gso_type = header[1] & !GSO_ECN;
    if gso_type != GSO_NONE {
        let gso_size = NonZeroU16::new(field(4)).ok_or(Malformed::NoSegmentSize)?;
        let layout = TcpLayout::parse(packet).ok_or(Malformed::SegmentationType)?;
        if gso_type != if layout.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 } {
            return Err(Malformed::SegmentationType);
        }
        if meta.checksum == Checksum::Complete {
            return Err(Malformed::SegmentationWithoutChecksum);
        }
        meta.gso_size = Some(gso_size);
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
/// [`Malformed::SegmentationType`] where the meta leaves work to the device that is for TCP alone,
/// and the packet is not TCP.
#[inline]
pub fn write(meta: PacketMeta, headers: &[u8]) -> Result<[u8; HEADER_LEN], Malformed> {
    let mut header = [0; HEADER_LEN];
    if meta == PacketMeta::default() {
        return Ok(header);
    }
    let layout = TcpLayout::parse(headers).ok_or(Malformed::SegmentationType)?;
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

/// The end-around carry of RFC 1071, 2.
#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
