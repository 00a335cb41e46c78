//! As much of a packet as is needed to find its connection.

use std::net::SocketAddr;

use smoltcp::wire::{IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket};

/// The two ends of a TCP segment, and whether it opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// A SYN without ACK (RFC 9293, 3.5).
    pub(super) opens: bool,
}

/// Reads a packet from the peer; `None` for what is no whole TCP segment.
pub(super) fn parse(packet: &[u8]) -> Option<Segment> {
    // `of_packet` reads the first byte unasked.
    packet.first()?;
    let (peer, local, segment): (std::net::IpAddr, std::net::IpAddr, &[u8]) = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            if ip.next_header() != IpProtocol::Tcp || ip.more_frags() || ip.frag_offset() != 0 {
                return None;
            }
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
        }
        IpVersion::Ipv6 => {
            let ip = Ipv6Packet::new_checked(packet).ok()?;
            if ip.next_header() != IpProtocol::Tcp {
                return None;
            }
            (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
        }
    };
    let tcp = TcpPacket::new_checked(segment).ok()?;
    Some(Segment {
        local: SocketAddr::new(local, tcp.dst_port()),
        peer: SocketAddr::new(peer, tcp.src_port()),
        opens: tcp.syn() && !tcp.ack() && !tcp.rst(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{IpAddress, IpRepr, TcpControl, TcpRepr, TcpSeqNumber};

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
            assert_eq!(segment.peer, SocketAddr::new(source.into(), 1000));
            assert_eq!(segment.local, SocketAddr::new(destination.into(), 2000));
            assert!(segment.opens);
            assert!(!parse(&packet(source, destination, TcpControl::Syn, true)).unwrap().opens);
            assert!(!parse(&packet(source, destination, TcpControl::Fin, true)).unwrap().opens);
        }
    }

    #[test]
    fn every_truncation_is_refused_without_a_panic() {
        let whole = packet(IpAddress::v4(10, 0, 0, 1), IpAddress::v4(1, 2, 3, 4), TcpControl::Syn, false);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len} bytes");
        }
    }
}
