//! Reads TCP headers in place.

use std::net::SocketAddr;

use super::{TCP, TCP_HEADER_LEN, Transport, addresses};

/// TCP's control bits (RFC 9293, 3.1; RFC 3168, 6.1).
#[allow(missing_docs, reason = "the names are those of the RFCs")]
pub mod flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const CWR: u8 = 0x80;
}

/// Offsets of fields in a TCP header, in bytes (RFC 9293, 3.1).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod offset {
    pub const SEQUENCE: usize = 4;
    pub const ACKNOWLEDGEMENT: usize = 8;
    pub const FLAGS: usize = 13;
    pub const WINDOW: usize = 14;
    pub const CHECKSUM: usize = 16;
}

const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
/// The kind of the maximum segment size option (RFC 9293, 3.2).
pub(super) const MSS: u8 = 2;
/// The kind of the window scale option (RFC 7323, 2.2), and the largest shift count (2.3).
pub(super) const WINDOW_SCALE: u8 = 3;
const MAX_WINDOW_SCALE: u8 = 14;

/// Offsets of the parts of a TCP packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLayout {
    /// Whether the packet is IPv6.
    pub ipv6: bool,
    /// Offset of the TCP header.
    pub tcp_at: usize,
    /// Offset of the payload.
    pub payload_at: usize,
}

impl TcpLayout {
    /// The headers must be complete; the payload may be missing. `None` for any other packet.
    #[inline]
    pub fn parse(headers: &[u8]) -> Option<Self> {
        TcpSegment::parse(headers).map(|segment| segment.layout)
    }

    /// Offset of the value of the maximum segment size option in the packet. `None` if it has no such option.
    pub fn mss_at(&self, packet: &[u8]) -> Option<usize> {
        let at = self.tcp_at + TCP_HEADER_LEN;
        let option = TcpOptions::of(packet.get(at..self.payload_at)?).find(TcpOption::is_mss)?;
        Some(at + option.at)
    }
}

/// A TCP packet, read in place.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    packet: &'a [u8],
    header: &'a [u8; TCP_HEADER_LEN],
    /// The offsets of its parts.
    pub layout: TcpLayout,
}

impl<'a> TcpSegment<'a> {
    /// The payload is everything after the headers: the length in the IP header is not read.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let Transport { ipv6, protocol: TCP, at: tcp_at } = Transport::parse(packet)? else { return None };
        let header = packet.get(tcp_at..)?.first_chunk::<TCP_HEADER_LEN>()?;
        let payload_at = tcp_at + usize::from(header[12] >> 4) * 4;
        if payload_at < tcp_at + TCP_HEADER_LEN || payload_at > packet.len() {
            return None;
        }
        Some(Self { packet, header, layout: TcpLayout { ipv6, tcp_at, payload_at } })
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    /// The sender's port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.be16(0)
    }

    /// The receiver's port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.be16(2)
    }

    /// Address and port of the sender and of the receiver.
    #[inline]
    pub fn endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (source, destination) = addresses(self.packet)?;
        Some((SocketAddr::new(source, self.source_port()), SocketAddr::new(destination, self.destination_port())))
    }

    /// The sequence number of the first byte.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.be32(4)
    }

    /// The sequence number of the byte that the sender expects next.
    #[inline]
    pub fn acknowledgement(&self) -> u32 {
        self.be32(8)
    }

    /// The control bits; see [`flags`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.header[offset::FLAGS]
    }

    /// The window field, not shifted.
    #[inline]
    pub fn window(&self) -> u16 {
        self.be16(14)
    }

    /// The options.
    #[inline]
    pub fn options(&self) -> TcpOptions<'a> {
        let at = self.layout.tcp_at + TCP_HEADER_LEN;
        TcpOptions::of(self.packet.get(at..self.layout.payload_at).unwrap_or_default())
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.packet.get(self.layout.payload_at..).unwrap_or_default()
    }
}

/// An iterator over the options of a TCP header, without padding. It ends at the first truncated option.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// An option with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// Its kind.
    pub kind: u8,
    /// Offset of its value from the start of the options, in bytes.
    pub at: usize,
    /// Its value.
    pub value: &'a [u8],
}

impl TcpOption<'_> {
    fn is_mss(&self) -> bool {
        self.kind == MSS && self.value.len() == 2
    }

    /// The shift count of the window (RFC 7323, 2.2), if this is the option. A larger one than 14 counts as 14 (2.3).
    pub fn window_scale(&self) -> Option<u8> {
        let [scale] = *self.value else { return None };
        (self.kind == WINDOW_SCALE).then(|| scale.min(MAX_WINDOW_SCALE))
    }

    /// The maximum segment size (RFC 9293, 3.7.1), if this is the option.
    pub fn mss(&self) -> Option<u16> {
        let value = *self.value.first_chunk()?;
        self.is_mss().then(|| u16::from_be_bytes(value))
    }
}

impl<'a> TcpOptions<'a> {
    /// The options in these bytes.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The bytes of the header that hold the options.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        while *self.bytes.get(self.at)? == NO_OPERATION {
            self.at += 1;
        }
        let kind = *self.bytes.get(self.at)?;
        if kind == END_OF_OPTIONS {
            return None;
        }
        // The length includes the bytes of the kind and of the length. Less than that counts as that.
        let len = usize::from(*self.bytes.get(self.at + 1)?).max(2);
        let value = self.bytes.get(self.at + 2..self.at + len)?;
        let at = self.at + 2;
        self.at += len;
        Some(TcpOption { kind, at, value })
    }
}
