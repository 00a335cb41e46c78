//! Linux's `struct virtio_net_hdr` and the super-packets behind it: pure functions over slices. A TUN with
//! `IFF_VNET_HDR` puts ten bytes in front of every packet (`include/uapi/linux/virtio_net.h`), in the byte order of the
//! machine:
//!
//! | offset | field | here |
//! |---|---|---|
//! | 0 | `flags` | `NEEDS_CSUM`: the checksum is partial. `DATA_VALID`: the kernel has verified it. Neither: nobody has |
//! | 1 | `gso_type` | none, TCP over IPv4, TCP over IPv6, or UDP |
//! | 2 | `hdr_len` | IP and TCP or UDP header, in bytes |
//! | 4 | `gso_size` | payload of each segment or datagram, in bytes |
//! | 6 | `csum_start` | where the sum begins: the TCP or UDP header |
//! | 8 | `csum_offset` | where the sum goes, from there on: 16, or UDP's 6 |
//!
//! The device is not trusted: [`read`] reads nothing beyond the packet, and refuses a header that contradicts it. It is
//! lenient where the kernel is, for old guests: `hdr_len` is a hint, `DATA_VALID` beside a partial checksum is no
//! contradiction, and a super-packet of one segment is a packet (`include/linux/virtio_net.h`,
//! `virtio_net_hdr_to_skb`).
//!
//! [`split()`] and [`SuperPacket`] do in software the work of a device that offloads: they cut a super-packet into
//! segments, and join segments into one.

mod coalesce;
#[cfg(test)]
mod malformed;
mod split;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU16;

pub use self::coalesce::SuperPacket;
pub use self::split::{NoRoom, Segments, split};
use crate::packet::{
    IPV4_HEADER_LEN, IPV6_HEADER_LEN, TCP, TCP_CHECKSUM_AT, TcpLayout, Transport, UDP, UDP_CHECKSUM_AT, UDP_HEADER_LEN,
    fill_checksum, ip_len, is_checksum_right,
};
use crate::{Checksum, PacketMeta};

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`, over both IP versions: several datagrams between the same ports.
const GSO_UDP_L4: u8 = 5;
/// `UDP_MAX_SEGMENTS` of the newest kernels (`include/linux/udp.h`). Each datagram may cost its receiver a system call.
const MAX_DATAGRAMS: usize = 128;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag beside the type: the first segment alone has CWR.
const GSO_ECN: u8 = 0x80;

/// Why a packet, or the header in front of it, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Shorter than its headers, or than the length in them.
    Truncated,
    /// Longer than its IP header says.
    Oversized,
    /// Neither IPv4 nor IPv6.
    Version,
    /// The checksum's place is not within the packet.
    ChecksumBeyondPacket,
    /// The checksum's place is not the place where TCP or UDP has it.
    ChecksumElsewhere,
    /// A partial checksum of a packet that is not TCP or UDP.
    ChecksumUnknown,
    /// A checksum that nobody had verified, and that is wrong.
    Checksum,
    /// A super-packet with segments of 0 bytes.
    NoSegmentSize,
    /// A super-packet of an unknown type, or one whose headers are not of the type.
    SegmentationType,
    /// A UDP super-packet of more datagrams than Linux makes.
    TooManyDatagrams,
    /// A super-packet with a filled checksum: each of its segments needs another.
    SegmentationWithoutChecksum,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a malformed packet: {self:?}")
    }
}

impl std::error::Error for Malformed {}

/// Completes a checksum that is [`Checksum::Partial`], of TCP or UDP. A packet that is refused is left unchanged. The
/// sum of the pseudo-header is taken from the field, as the kernel takes it (`net/core/dev.c`, `skb_checksum_help`).
pub fn complete_checksum(packet: &mut [u8]) -> Result<(), Malformed> {
    check_length(packet)?;
    if fill_checksum(packet) { Ok(()) } else { Err(Malformed::ChecksumUnknown) }
}

/// Reads the header in front of a packet. A super-packet of one segment is a plain packet, as for the kernel. Unlike
/// the kernel, this refuses a partial checksum inside a tunnel: a [`PacketMeta`] names no place.
pub fn read(header: &[u8; HEADER_LEN], packet: &[u8]) -> Result<PacketMeta, Malformed> {
    let field = |at| u16::from_ne_bytes([header[at], header[at + 1]]);
    check_length(packet)?;
    let mut meta = PacketMeta::default();
    if header[0] & NEEDS_CSUM != 0 {
        let place = (usize::from(field(6)), usize::from(field(8)));
        if place.0 + place.1 + 2 > packet.len() {
            return Err(Malformed::ChecksumBeyondPacket);
        }
        if Transport::checksum_place(packet) != Some(place) {
            return Err(Malformed::ChecksumElsewhere);
        }
        meta.checksum = Checksum::Partial;
    }
    if header[1] != GSO_NONE {
        let gso_size = NonZeroU16::new(field(4)).ok_or(Malformed::NoSegmentSize)?;
        let layout = Layout::parse(packet).ok_or(Malformed::SegmentationType)?;
        if header[1] & !GSO_ECN != layout.gso_type() {
            return Err(Malformed::SegmentationType);
        }
        if meta.checksum == Checksum::Filled {
            return Err(Malformed::SegmentationWithoutChecksum);
        }
        let payload_len = packet.len() - layout.payload_at;
        if layout.protocol == UDP && payload_len.div_ceil(gso_size.get().into()) > MAX_DATAGRAMS {
            return Err(Malformed::TooManyDatagrams);
        }
        if payload_len > usize::from(gso_size.get()) {
            meta.gso_size = Some(gso_size);
        }
    }
    Ok(meta)
}

/// The same, and verifies a checksum that nobody has verified (`virtio_net_hdr_from_skb`), but not of fragments.
pub fn read_verified(header: &[u8; HEADER_LEN], packet: &[u8]) -> Result<PacketMeta, Malformed> {
    let meta = read(header, packet)?;
    if header[0] & (NEEDS_CSUM | DATA_VALID) == 0 && !is_checksum_right(packet) {
        return Err(Malformed::Checksum);
    }
    Ok(meta)
}

fn check_length(packet: &[u8]) -> Result<(), Malformed> {
    let header_len = match packet.first().map(|first| first >> 4) {
        None => return Err(Malformed::Truncated),
        Some(4) => IPV4_HEADER_LEN,
        Some(6) => IPV6_HEADER_LEN,
        Some(_) => return Err(Malformed::Version),
    };
    match ip_len(packet) {
        Some(len) if packet.len() >= len.max(header_len) && packet.len() > len => Err(Malformed::Oversized),
        Some(len) if packet.len() == len && len >= header_len => Ok(()),
        _ => Err(Malformed::Truncated),
    }
}

/// The parts of a packet that can be a super-packet, or have a partial checksum: TCP or UDP. Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    protocol: u8,
    ipv6: bool,
    transport_at: usize,
    payload_at: usize,
}

impl Layout {
    #[inline]
    fn parse(headers: &[u8]) -> Option<Self> {
        if let Some(TcpLayout { ipv6, tcp_at, payload_at }) = TcpLayout::parse(headers) {
            return Some(Self { protocol: TCP, ipv6, transport_at: tcp_at, payload_at });
        }
        let Transport { ipv6, protocol: UDP, at } = Transport::parse(headers)? else { return None };
        let payload_at = at + UDP_HEADER_LEN;
        (payload_at <= headers.len()).then_some(Self { protocol: UDP, ipv6, transport_at: at, payload_at })
    }

    fn checksum_offset(&self) -> usize {
        if self.protocol == TCP { TCP_CHECKSUM_AT } else { UDP_CHECKSUM_AT }
    }

    fn gso_type(&self) -> u8 {
        match (self.protocol, self.ipv6) {
            (TCP, false) => GSO_TCPV4,
            (TCP, true) => GSO_TCPV6,
            _ => GSO_UDP_L4,
        }
    }
}

/// Makes the header in front of a packet. Refuses a meta that does not fit its first bytes, with complete headers.
#[inline]
pub fn write(meta: PacketMeta, headers: &[u8]) -> Result<[u8; HEADER_LEN], Malformed> {
    let mut header = [0; HEADER_LEN];
    if meta == PacketMeta::default() {
        return Ok(header);
    }
    let layout = Layout::parse(headers).ok_or(Malformed::SegmentationType)?;
    let mut put = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    put(2, layout.payload_at as u16);
    put(6, layout.transport_at as u16);
    put(8, layout.checksum_offset() as u16);
    put(4, meta.gso_size.map_or(0, NonZeroU16::get));
    match meta.checksum {
        Checksum::Partial => header[0] = NEEDS_CSUM,
        Checksum::Filled if meta.gso_size.is_some() => return Err(Malformed::SegmentationWithoutChecksum),
        Checksum::Filled => {}
    }
    header[1] = if meta.gso_size.is_some() { layout.gso_type() } else { GSO_NONE };
    Ok(header)
}
