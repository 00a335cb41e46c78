//! Writes ICMP errors.

use super::checksum::{fold, sum};
use super::{
    ICMP, ICMPV6, IPV4_HEADER_LEN, IPV6_HEADER_LEN, TCP, Transport, UDP, addresses, pseudo_header_sum, write_ip,
};

const ICMP_HEADER_LEN: usize = 8;

/// The longest error, in bytes (RFC 1812, 4.3.2.3; RFC 4443, 2.4 c).
const LONGEST_V4: usize = 576;
const LONGEST_V6: usize = 1280;

/// The message of a router that a packet is longer than the `mtu` of the next link (RFC 1191, 4; RFC 4443, 3.2). It
/// comes from the packet's destination. `None` for packets other than TCP and UDP, and for fragments (RFC 1812,
/// 4.3.2.7).
pub fn packet_too_big(mtu: u16, packet: &[u8]) -> Option<Vec<u8>> {
    let Transport { ipv6, .. } =
        Transport::parse(packet).filter(|transport| matches!(transport.protocol, TCP | UDP))?;
    let (kind, code, quoted) = if ipv6 {
        (2, 0, LONGEST_V6 - IPV6_HEADER_LEN - ICMP_HEADER_LEN)
    } else {
        (3, 4, LONGEST_V4 - IPV4_HEADER_LEN - ICMP_HEADER_LEN)
    };
    icmp_error(kind, code, mtu.into(), packet, quoted)
}

/// An ICMP error by the packet's receiver. `rest` is the four bytes after the checksum. Quotes up to so many bytes.
pub fn icmp_error(kind: u8, code: u8, rest: u32, about: &[u8], quoted: usize) -> Option<Vec<u8>> {
    let (source, destination) = addresses(about)?;
    let (protocol, at) = if source.is_ipv6() { (ICMPV6, IPV6_HEADER_LEN) } else { (ICMP, IPV4_HEADER_LEN) };
    let quoted = &about[..about.len().min(quoted)];
    let len = at + ICMP_HEADER_LEN + quoted.len();
    let mut error = vec![0; len];
    write_ip(&mut error, destination, source, protocol, len - at)?;
    error[at..at + 2].copy_from_slice(&[kind, code]);
    error[at + 4..at + ICMP_HEADER_LEN].copy_from_slice(&rest.to_be_bytes());
    error[at + ICMP_HEADER_LEN..].copy_from_slice(quoted);
    // Only ICMPv6 sums a pseudo-header (RFC 4443, 2.3).
    let pseudo_header = if source.is_ipv6() { pseudo_header_sum(protocol, &error, at, len) } else { 0 };
    let checksum = !fold(u64::from(pseudo_header) + u64::from(sum(&error[at..])));
    error[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    Some(error)
}

#[cfg(test)]
mod tests {
    use etherparse::icmpv4::DestUnreachableHeader;
    use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, PacketHeaders, TransportHeader};

    use super::*;

    #[test]
    fn an_error_is_as_etherparse_reads_it_and_quotes_the_packet() {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).tcp(1, 2, 3, 4).write(&mut v4, &[5; 1460]).unwrap();
        PacketBuilder::ipv6([1; 16], [2; 16], 9).udp(1, 2).write(&mut v6, &[5; 1452]).unwrap();
        for (packet, mtu, len) in [(&v4, 1300, LONGEST_V4), (&v6, 1280, LONGEST_V6)] {
            let error = packet_too_big(mtu, packet).unwrap();
            assert_eq!(error.len(), len);
            let (to, from) = addresses(packet).unwrap();
            assert_eq!(addresses(&error), Some((from, to)));
            let headers = PacketHeaders::from_ip_slice(&error).unwrap();
            match headers.transport.unwrap() {
                TransportHeader::Icmpv4(icmp) => {
                    let needed = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
                    assert_eq!(icmp.icmp_type, Icmpv4Type::DestinationUnreachable(needed));
                    assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(headers.payload.slice()));
                }
                TransportHeader::Icmpv6(icmp) => {
                    assert_eq!(icmp.icmp_type, Icmpv6Type::PacketTooBig { mtu: mtu.into() });
                    let checksum = icmp.icmp_type.calc_checksum([2; 16], [1; 16], headers.payload.slice());
                    assert_eq!(icmp.checksum, checksum.unwrap());
                }
                other => unreachable!("{other:?}"),
            }
            assert!(packet.starts_with(headers.payload.slice()));
        }
    }

    #[test]
    fn there_is_no_error_about_an_error_a_fragment_or_a_scrap() {
        let mut packet = Vec::new();
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(1, 2).write(&mut packet, &[5; 1460]).unwrap();
        assert_eq!(packet_too_big(1300, &packet[..7]), None);
        assert_eq!(packet_too_big(1300, &packet_too_big(1300, &packet).unwrap()), None);
        packet[6] = 0x20;
        assert_eq!(packet_too_big(1300, &packet), None);
    }
}
