//! Headers for packets of one's own.

use std::net::{IpAddr, SocketAddr};

use super::{
    IPV4_HEADER_LEN, IPV6_HEADER_LEN, TCP, TCP_CHECKSUM_AT, TCP_HEADER_LEN, TcpLayout, fold, leave_checksum, sum,
};
use crate::Checksum;

/// Most bytes that [`TcpHeaders::write`] writes: an IPv6 header, a TCP header, and its longest options.
pub const MAX_HEADERS_LEN: usize = IPV6_HEADER_LEN + TCP_HEADER_LEN + MAX_OPTIONS_LEN;

const MAX_OPTIONS_LEN: usize = 40;

/// The IP and TCP headers of packets of one connection, one way.
#[derive(Clone, Debug)]
pub struct TcpHeaders {
    /// What all packets have alike.
    template: [u8; MAX_HEADERS_LEN],
    tcp_at: usize,
}

/// What differs from packet to packet (RFC 9293, 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFields {
    /// Number of the first byte.
    pub sequence: u32,
    /// Number of the byte that is expected next.
    pub acknowledgement: u32,
    /// The control bits: FIN, SYN, RST, PSH, ACK, URG, ECE and CWR, from the lowest on.
    pub flags: u8,
    /// The window field, not shifted.
    pub window: u16,
}

impl TcpHeaders {
    /// Of packets from `source` to `destination`; `None` where these are of two IP versions.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let mut template = [0; MAX_HEADERS_LEN];
        let tcp_at = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // Don't fragment, 64 hops (RFC 791, 3.1).
                template[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP]);
                template[12..16].copy_from_slice(&source.octets());
                template[16..20].copy_from_slice(&destination.octets());
                IPV4_HEADER_LEN
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                // 64 hops (RFC 8200, 3).
                template[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, TCP, 64]);
                template[8..24].copy_from_slice(&source.octets());
                template[24..40].copy_from_slice(&destination.octets());
                IPV6_HEADER_LEN
            }
            _ => return None,
        };
        template[tcp_at..tcp_at + 2].copy_from_slice(&source.port().to_be_bytes());
        template[tcp_at + 2..tcp_at + 4].copy_from_slice(&destination.port().to_be_bytes());
        Some(Self { template, tcp_at })
    }

    /// Length, in bytes, of both headers without options.
    pub fn len_without_options(&self) -> usize {
        self.tcp_at + TCP_HEADER_LEN
    }

    /// Writes the headers of a packet with this payload, and answers their length. The packet is at most
    /// 65,535 bytes long. The options' length is a multiple of 4, and of longer ones than 40 bytes only so
    /// many are written.
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
        let ipv6 = self.tcp_at == IPV6_HEADER_LEN;
        if ipv6 {
            headers[4..6].copy_from_slice(&((len - IPV6_HEADER_LEN) as u16).to_be_bytes());
        } else {
            headers[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            let checksum = !sum(&headers[..IPV4_HEADER_LEN]);
            headers[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let tcp = &mut headers[self.tcp_at..payload_at];
        tcp[4..8].copy_from_slice(&fields.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&fields.acknowledgement.to_be_bytes());
        tcp[12] = (tcp.len() as u8 / 4) << 4;
        tcp[13] = fields.flags;
        tcp[14..16].copy_from_slice(&fields.window.to_be_bytes());
        leave_checksum(&mut headers[..payload_at], &TcpLayout { ipv6, tcp_at: self.tcp_at, payload_at }, len);
        if checksum == Checksum::Complete {
            let whole = u64::from(sum(&headers[self.tcp_at..payload_at])) + u64::from(sum(payload));
            let at = self.tcp_at + TCP_CHECKSUM_AT;
            headers[at..at + 2].copy_from_slice(&(!fold(whole)).to_be_bytes());
        }
        payload_at
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::vnet::{complete_checksum, reference};

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
                // It also says whether the length is that of the IP header.
                complete_checksum(&mut partial).unwrap();
                assert!(packet(ipv6, &[], &payload, Checksum::Complete) == partial, "{len} bytes, IPv6: {ipv6}");
            }
        }
    }

    #[test]
    fn every_field_lies_where_it_is_read() {
        for (ipv6, options) in [(false, &[][..]), (true, &[]), (false, &[2, 4, 5, 180]), (true, &[1, 1, 1, 0])] {
            let packet = packet(ipv6, options, b"payload", Checksum::Complete);
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
