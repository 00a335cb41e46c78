//! Packets that may be datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use platform::packet::{Ipv4Fragment, Transport, UDP, UdpHeader, addresses, ip_len};

use super::is_end;
use crate::is_host;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A whole datagram between two hosts.
    Whole {
        local: SocketAddr,
        peer: SocketAddr,
    },
    /// A fragment over IPv4. `of` is the same for all of a datagram; `port` is the destination of the first.
    Fragment {
        of: (Ipv4Addr, Ipv4Addr, u16),
        port: Option<u16>,
    },
    Refused,
}

impl Arrival {
    /// Reads a packet; `None` if it is not UDP. A fragment over IPv6 is not known to be UDP.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        if let Some(Transport { ipv6, protocol, at }) = Transport::parse(packet) {
            return (protocol == UDP).then(|| Self::whole(packet, ipv6, at).unwrap_or(Self::Refused));
        }
        if let Some(fragment) = Ipv4Fragment::parse(packet) {
            return (fragment.protocol == UDP).then(|| Self::fragment(packet, &fragment).unwrap_or(Self::Refused));
        }
        None
    }

    fn whole(packet: &[u8], ipv6: bool, udp_at: usize) -> Option<Self> {
        let udp = packet.get(udp_at..ip_len(packet)?)?;
        let header = UdpHeader::parse(udp)?;
        let (source, destination) = addresses(packet)?;
        let local = SocketAddr::new(destination, header.destination_port);
        let peer = SocketAddr::new(source, header.source_port);
        // RFC 8200, 8.1: over IPv6 every datagram has a checksum.
        let summed = !ipv6 || header.checksum != 0;
        let fits = usize::from(header.len) == udp.len() && summed && is_end(local) && is_end(peer);
        fits.then_some(Self::Whole { local, peer })
    }

    fn fragment(packet: &[u8], fragment: &Ipv4Fragment) -> Option<Self> {
        let transport = packet.get(fragment.header_len..ip_len(packet)?)?;
        let (IpAddr::V4(peer), IpAddr::V4(local)) = addresses(packet)? else { return None };
        let port = if fragment.is_first {
            let [a, b, c, d] = *transport.first_chunk::<4>()?;
            // A port of 0 cannot be answered.
            if [a, b] == [0; 2] || [c, d] == [0; 2] {
                return None;
            }
            Some(u16::from_be_bytes([c, d]))
        } else {
            None
        };
        let hosts = is_host(local.into()) && is_host(peer.into());
        hosts.then_some(Self::Fragment { of: (local, peer, fragment.identification), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::ends;

    /// A datagram to the port 53, with a checksum that is not looked at.
    fn packet(ipv6: bool, payload: usize) -> Vec<u8> {
        let (local, peer) = ends(ipv6);
        let mut packet = crate::datagrams::packet(peer, local, &vec![1; payload]).unwrap();
        if !ipv6 {
            packet[4..6].copy_from_slice(&[0, 7]);
        }
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
