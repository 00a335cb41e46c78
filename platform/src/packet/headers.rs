//! Writes IP and TCP headers.

use std::net::{IpAddr, SocketAddr};

use super::{
    IPV4_HEADER_LEN, IPV6_HEADER_LEN, TCP, TCP_CHECKSUM_AT, TCP_HEADER_LEN, TcpLayout, fold, sum,
    write_partial_checksum,
};
use crate::Checksum;

/// The most bytes that [`TcpHeaders::write`] writes: an IPv6 header, a TCP header, and the longest options.
pub const MAX_HEADERS_LEN: usize = IPV6_HEADER_LEN + TCP_HEADER_LEN + MAX_OPTIONS_LEN;

const MAX_OPTIONS_LEN: usize = 40;

const HOP_LIMIT: u8 = 64;

/// The IP and TCP headers of one connection in one direction.
#[derive(Clone, Debug)]
pub struct TcpHeaders {
    /// The bytes that all packets share.
    template: [u8; MAX_HEADERS_LEN],
    tcp_at: usize,
}

/// The fields that differ between packets of a connection (RFC 9293, 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFields {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Sequence number of the next expected byte.
    pub acknowledgement: u32,
    /// The control bits; see [`flags`](super::flags).
    pub flags: u8,
    /// The window field, not shifted.
    pub window: u16,
}

impl TcpHeaders {
    /// Headers of packets from `source` to `destination`. `None` if their IP versions differ.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let mut template = [0; MAX_HEADERS_LEN];
        let tcp_at = write_ip(&mut template, source.ip(), destination.ip(), TCP, 0)?;
        template[tcp_at..tcp_at + 2].copy_from_slice(&source.port().to_be_bytes());
        template[tcp_at + 2..tcp_at + 4].copy_from_slice(&destination.port().to_be_bytes());
        Some(Self { template, tcp_at })
    }

    /// Length of the IP and TCP header without options, in bytes.
    pub fn len_without_options(&self) -> usize {
        self.tcp_at + TCP_HEADER_LEN
    }

    /// Writes the headers of a packet with this payload, and returns their length. The packet must have at most 65,535
    /// bytes. The length of the options must be a multiple of 4, and at most 40 bytes of them are written.
    #[inline]
    pub fn write(
        &self,
        fields: TcpFields,
        options: &[u8],
        payload: &[u8],
        checksum: Checksum,
        headers: &mut [u8; MAX_HEADERS_LEN],
    ) -> usize {
        let options = &options[..options.len().min(MAX_OPTIONS_LEN) / 4 * 4];
        let payload_at = self.len_without_options() + options.len();
        let len = payload_at + payload.len();
        headers[..self.len_without_options()].copy_from_slice(&self.template[..self.len_without_options()]);
        headers[self.len_without_options()..payload_at].copy_from_slice(options);
        let layout = TcpLayout { ipv6: self.tcp_at == IPV6_HEADER_LEN, tcp_at: self.tcp_at, payload_at };
        write_ip_len(headers, layout.ipv6, len);
        if !layout.ipv6 {
            write_ipv4_checksum(headers, IPV4_HEADER_LEN);
        }
        write_tcp(&mut headers[self.tcp_at..payload_at], fields);
        write_partial_checksum(&mut headers[..payload_at], &layout, len);
        if checksum == Checksum::Filled {
            let whole = u64::from(sum(&headers[self.tcp_at..payload_at])) + u64::from(sum(payload));
            let at = self.tcp_at + TCP_CHECKSUM_AT;
            headers[at..at + 2].copy_from_slice(&(!fold(whole)).to_be_bytes());
        }
        payload_at
    }
}

/// Writes an IP header to the start of `out` and returns its length, with a hop limit of 64 and "don't fragment".
/// `None` if the IP versions of the addresses differ or `out` is too short.
pub fn write_ip(
    out: &mut [u8],
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload_len: usize,
) -> Option<usize> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = out.first_chunk_mut::<IPV4_HEADER_LEN>()?;
            // RFC 791, 3.1. 0x40: don't fragment.
            header[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, protocol]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            write_ip_len(header, false, IPV4_HEADER_LEN + payload_len);
            write_ipv4_checksum(header, IPV4_HEADER_LEN);
            Some(IPV4_HEADER_LEN)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = out.first_chunk_mut::<IPV6_HEADER_LEN>()?;
            // RFC 8200, 3.
            header[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, HOP_LIMIT]);
            header[8..24].copy_from_slice(&source.octets());
            header[24..].copy_from_slice(&destination.octets());
            write_ip_len(header, true, IPV6_HEADER_LEN + payload_len);
            Some(IPV6_HEADER_LEN)
        }
        _ => None,
    }
}

/// Writes these fields and the data offset into a whole TCP header with its options.
#[inline]
fn write_tcp(tcp: &mut [u8], fields: TcpFields) {
    let len = tcp.len();
    let Some(header) = tcp.first_chunk_mut::<TCP_HEADER_LEN>() else { return };
    header[4..8].copy_from_slice(&fields.sequence.to_be_bytes());
    header[8..12].copy_from_slice(&fields.acknowledgement.to_be_bytes());
    header[12] = (len as u8 / 4) << 4;
    header[13] = fields.flags;
    header[14..16].copy_from_slice(&fields.window.to_be_bytes());
}

/// Writes the length of the whole packet into its IP header.
#[inline]
pub fn write_ip_len(headers: &mut [u8], ipv6: bool, len: usize) {
    if ipv6 {
        headers[4..6].copy_from_slice(&((len - IPV6_HEADER_LEN) as u16).to_be_bytes());
    } else {
        headers[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    }
}

#[inline]
pub(crate) fn write_ipv4_checksum(headers: &mut [u8], header_len: usize) {
    headers[10..12].fill(0);
    let checksum = !sum(&headers[..header_len]);
    headers[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::reference;
    use crate::vnet::complete_checksum;

    const FIELDS: TcpFields =
        TcpFields { sequence: 0x0102_0304, acknowledgement: 0x0506_0708, flags: 0x18, window: 99 };

    fn headers(ipv6: bool) -> TcpHeaders {
        let [source, destination] = if ipv6 { ["[fd00::1]:7", "[fd00::2]:80"] } else { ["10.0.0.1:7", "10.0.0.2:80"] };
        TcpHeaders::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap()
    }

    fn packet(ipv6: bool, options: &[u8], payload: &[u8], checksum: Checksum) -> Vec<u8> {
        let mut buffer = [0xaa; MAX_HEADERS_LEN];
        let len = headers(ipv6).write(FIELDS, options, payload, checksum, &mut buffer);
        [&buffer[..len], payload].concat()
    }

    #[test]
    fn the_checksum_is_the_one_that_a_receiver_computes() {
        for ipv6 in [false, true] {
            for len in [0, 1, 2, 3, 1459, 1460, 65_475] {
                let payload = reference::bytes(5, len);
                let mut partial = packet(ipv6, &[], &payload, Checksum::Partial);
                // It also fails if the length in the IP header is wrong.
                complete_checksum(&mut partial).unwrap();
                assert!(packet(ipv6, &[], &payload, Checksum::Filled) == partial, "{len} bytes, IPv6: {ipv6}");
            }
        }
    }

    #[test]
    fn every_field_lies_where_it_is_read() {
        for (ipv6, options) in [(false, &[][..]), (true, &[]), (false, &[2, 4, 5, 180]), (true, &[1, 1, 1, 0])] {
            let packet = packet(ipv6, options, b"payload", Checksum::Filled);
            let layout = TcpLayout::parse(&packet).unwrap();
            assert_eq!((layout.ipv6, layout.tcp_at), (ipv6, if ipv6 { 40 } else { 20 }));
            let tcp = &packet[layout.tcp_at..layout.payload_at];
            assert_eq!(tcp[..16], [0, 7, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, (20 + options.len() as u8) << 2, 0x18, 0, 99]);
            assert_eq!((&tcp[20..], &packet[layout.payload_at..]), (options, &b"payload"[..]));
            if !ipv6 {
                assert_eq!(sum(&packet[..20]), 0xffff, "the checksum of the IP header");
            }
        }
    }

    #[test]
    fn two_ip_versions_make_no_connection() {
        assert!(TcpHeaders::new("10.0.0.1:7".parse().unwrap(), "[fd00::2]:80".parse().unwrap()).is_none());
    }
}
