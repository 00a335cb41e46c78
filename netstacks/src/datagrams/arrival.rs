//! Packets that may be datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, UDP_HEADER_LEN, is_end};
use crate::is_host;

const UDP: u8 = 17;

/// A packet of UDP's that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A whole datagram between two hosts.
    Whole { local: SocketAddr, peer: SocketAddr },
    /// A fragment of one over IPv4: of which, and the port that it is for, where it is the first.
    Fragment { of: (Ipv4Addr, Ipv4Addr, u16), port: Option<u16> },
    /// One that nobody is to see.
    Refused,
}

impl Arrival {
    /// Reads a packet; `None` where it is not UDP. IPv6's extension headers are not looked behind.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let protocol = match packet.first()? >> 4 {
            4 => *packet.get(9)?,
            6 => *packet.get(6)?,
            _ => return None,
        };
        if protocol != UDP {
            return None;
        }
        let parsed = if packet[0] >> 4 == 4 { Self::parse_v4(packet) } else { Self::parse_v6(packet) };
        Some(parsed.unwrap_or(Self::Refused))
    }

    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let header_len = usize::from(packet[0] & 0x0f) * 4;
        if header_len < IPV4_HEADER_LEN {
            return None;
        }
        let transport = packet.get(header_len..usize::from(be16(packet, 2)?))?;
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let (peer, local) = (address(12)?, address(16)?);
        let fragment = be16(packet, 6)? & 0x3fff;
        if fragment == 0 {
            return Self::whole(local.into(), peer.into(), transport);
        }
        let offset = fragment & 0x1fff;
        let (port, answerable) = match offset {
            0 => (Some(be16(transport, 2)?), be16(transport, 0)? != 0 && be16(transport, 2)? != 0),
            _ => (None, true),
        };
        let hosts = is_host(local.into()) && is_host(peer.into());
        (hosts && answerable).then_some(Self::Fragment { of: (local, peer, be16(packet, 4)?), port })
    }

    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let transport = packet.get(IPV6_HEADER_LEN..IPV6_HEADER_LEN + usize::from(be16(packet, 4)?))?;
        let address = |at: usize| Some(IpAddr::from(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
        let arrival = Self::whole(address(24)?, address(8)?, transport)?;
        // RFC 8200, 8.1: over IPv6 there is no datagram without a checksum.
        (be16(transport, 6)? != 0).then_some(arrival)
    }

    /// RFC 768: the length is that of the header and the payload; a port of 0 is nobody's to be answered.
    fn whole(local: IpAddr, peer: IpAddr, transport: &[u8]) -> Option<Self> {
        let ends = (SocketAddr::new(local, be16(transport, 2)?), SocketAddr::new(peer, be16(transport, 0)?));
        let len = usize::from(be16(transport, 4)?);
        let fits = len >= UDP_HEADER_LEN && len == transport.len() && is_end(ends.0) && is_end(ends.1);
        fits.then_some(Self::Whole { local: ends.0, peer: ends.1 })
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::super::tests::ends;
    use super::*;

    /// A datagram to the port 53, with a checksum that is not looked at.
    fn packet(ipv6: bool, payload: usize) -> Vec<u8> {
        let len = (UDP_HEADER_LEN + payload) as u16;
        let mut packet =
            if ipv6 { vec![0x60, 0, 0, 0, 0, 0, UDP, 64] } else { vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, UDP, 0, 0] };
        let (local, peer) = ends(ipv6);
        for address in [peer.ip(), local.ip()] {
            match address {
                IpAddr::V4(address) => packet.extend(address.octets()),
                IpAddr::V6(address) => packet.extend(address.octets()),
            }
        }
        let (at, total) = if ipv6 { (4, len) } else { (2, len + 20) };
        packet[at..at + 2].copy_from_slice(&total.to_be_bytes());
        for field in [peer.port(), local.port(), len, 0xbeef] {
            packet.extend(field.to_be_bytes());
        }
        packet.resize(packet.len() + payload, 1);
        packet
    }

    #[test]
    fn a_datagram_is_read_and_every_truncation_is_refused() {
        for ipv6 in [false, true] {
            let (local, peer) = ends(ipv6);
            let packet = packet(ipv6, 20);
            assert_eq!(Arrival::parse(&packet), Some(Arrival::Whole { local, peer }));
            for len in 0..packet.len() {
                assert!(matches!(Arrival::parse(&packet[..len]), None | Some(Arrival::Refused)), "{len} bytes");
            }
        }
    }

    #[test]
    fn lengths_and_ends_that_cannot_be_are_refused() {
        for ipv6 in [false, true] {
            let udp_at = if ipv6 { 40 } else { 20 };
            for (at, value) in [(4, 29), (4, 27), (4, 7), (4, 0), (4, 0xffff), (0, 0), (2, 0)] {
                let mut packet = packet(ipv6, 20);
                packet[udp_at + at..udp_at + at + 2].copy_from_slice(&u16::to_be_bytes(value));
                assert_eq!(Arrival::parse(&packet), Some(Arrival::Refused), "{value} at {at}");
            }
            let mut multicast = packet(ipv6, 20);
            multicast[if ipv6 { 24 } else { 16 }] = if ipv6 { 0xff } else { 224 };
            assert_eq!(Arrival::parse(&multicast), Some(Arrival::Refused));
            let mut unsummed = packet(ipv6, 20);
            unsummed[udp_at + 6..udp_at + 8].fill(0);
            assert_eq!(Arrival::parse(&unsummed) == Some(Arrival::Refused), ipv6);
            let mut tcp = packet(ipv6, 20);
            tcp[if ipv6 { 6 } else { 9 }] = 6;
            assert_eq!(Arrival::parse(&tcp), None);
        }
    }

    #[test]
    fn only_the_first_fragment_has_a_port() {
        let of = ([9, 8, 7, 6].into(), [10, 0, 0, 1].into(), 7);
        for (field, port) in [(0x2000_u16, Some(53)), (0x2001, None), (0x0001, None)] {
            let mut packet = packet(false, 20);
            packet[6..8].copy_from_slice(&field.to_be_bytes());
            assert_eq!(Arrival::parse(&packet), Some(Arrival::Fragment { of, port }));
        }
    }
}
