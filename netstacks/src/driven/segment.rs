//! Finds the connection of a packet.

use platform::packet::checksum::sum;
use platform::packet::flags::{ACK, RST, SYN};
use platform::packet::{TcpSegment, ip_len, is_checksum_right};

use crate::FlowKey;

/// The fields of a TCP segment that decide its fate (RFC 9293, 3.10.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) key: FlowKey,
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// Length of the payload, in bytes.
    pub(crate) len: usize,
    /// A SYN without ACK (RFC 9293, 3.5).
    pub(crate) opens: bool,
}

/// Parses a packet from the peer; `None` if it is no whole TCP segment. smoltcp finds fewer extension headers.
pub(crate) fn parse(packet: &[u8]) -> Option<Segment> {
    let segment = TcpSegment::parse(packet.get(..ip_len(packet)?)?)?;
    let (peer, local) = segment.endpoints()?;
    let flags = segment.flags();
    Some(Segment {
        key: FlowKey { local, peer },
        flags,
        sequence: segment.sequence(),
        acknowledgement: segment.acknowledgement(),
        len: segment.payload().len(),
        opens: flags & (SYN | ACK | RST) == SYN,
    })
}

/// Whether the checksums of a TCP segment are right: of its IPv4 header, and, with `verify`, of TCP.
pub(crate) fn is_intact(packet: &[u8], verify: bool) -> bool {
    ip_len(packet).and_then(|len| packet.get(..len)).is_some_and(|packet| are_checksums_right(packet, verify))
}

/// Whether the checksum of an IPv4 header is right, and, with `verify`, TCP's or UDP's. Nothing may follow the IP packet.
pub(crate) fn are_checksums_right(packet: &[u8], verify: bool) -> bool {
    let Some(first) = packet.first() else { return false };
    let header_len = if first >> 4 == 4 { usize::from(first & 0x0f) * 4 } else { 0 };
    let is_header_right = packet.get(..header_len).is_some_and(|header| header.is_empty() || sum(header) == 0xffff);
    is_header_right && (!verify || is_checksum_right(packet))
}

#[cfg(test)]
#[cfg(feature = "smoltcp")]
mod tests {
    use std::net::SocketAddr;

    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

    use super::*;

    fn packet(source: IpAddress, destination: IpAddress, control: TcpControl, ack: bool) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: 1000,
            dst_port: 2000,
            control,
            seq_number: TcpSeqNumber(1),
            ack_number: ack.then_some(TcpSeqNumber(2)),
            window_len: 100,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: b"",
        };
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), 64);
        let mut bytes = vec![0; ip.buffer_len()];
        ip.emit(&mut bytes, &ChecksumCapabilities::default());
        let mut segment = TcpPacket::new_unchecked(&mut bytes[ip.header_len()..]);
        tcp.emit(&mut segment, &source, &destination, &ChecksumCapabilities::default());
        bytes
    }

    #[test]
    fn both_ends_of_a_segment_are_read() {
        for (source, destination) in [
            (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(1, 2, 3, 4)),
            (IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)),
        ] {
            let segment = parse(&packet(source, destination, TcpControl::Syn, false)).unwrap();
            assert_eq!(segment.key.peer, SocketAddr::new(source.into(), 1000));
            assert_eq!(segment.key.local, SocketAddr::new(destination.into(), 2000));
            assert!(segment.opens);
            assert!(!parse(&packet(source, destination, TcpControl::Syn, true)).unwrap().opens);
            assert!(!parse(&packet(source, destination, TcpControl::Fin, true)).unwrap().opens);
        }
    }

    #[test]
    fn every_damaged_bit_is_found() {
        let whole = packet(IpAddress::v4(10, 0, 0, 1), IpAddress::v4(1, 2, 3, 4), TcpControl::Syn, false);
        assert!(is_intact(&whole, true));
        for bit in 0..8 * whole.len() {
            let mut packet = whole.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            // Without its version it is no segment.
            assert!(parse(&packet).is_none() || !is_intact(&packet, true), "bit {bit}");
        }
        // An IP packet of no bytes.
        assert!(!is_intact(&[0x45, 0, 0, 0], true));
    }
}
