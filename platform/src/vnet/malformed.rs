//! What a device must not be able to do with a packet that cannot be.

use super::*;
use crate::packet::reference::{self, PLAIN, SHAPES, Shape, meta};
use crate::packet::{TCP, UDP};

const PARTIAL: PacketMeta = PacketMeta { checksum: Checksum::Partial, gso_size: None };

fn header(shape: Shape, gso_type: u8, gso_size: u16, csum_offset: u16) -> [u8; HEADER_LEN] {
    tests::header(NEEDS_CSUM, gso_type, [0, gso_size, shape.tcp_at() as u16, csum_offset])
}

fn gso_type(shape: Shape) -> u8 {
    if shape.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 }
}

/// Everything that reads packets, which must neither panic nor read beyond the packet.
fn try_all(header: &[u8; HEADER_LEN], packet: &[u8]) {
    let _read = read(header, packet);
    let _layout = TcpLayout::parse(packet);
    let _written = write(meta(9), packet);
    let _completed = complete_checksum(&mut packet.to_vec());
    let mut buffer = vec![0; packet.len()];
    for meta in [PacketMeta::default(), PARTIAL, meta(9)] {
        if let Ok(mut segments) = split(meta, packet) {
            while segments.next_into(&mut buffer).unwrap().is_some() {}
        }
    }
    if let Some(mut whole) = SuperPacket::begin(&mut buffer, packet) {
        whole.append(packet);
        let (len, _meta) = whole.finish();
        assert!(len <= buffer.len());
    }
}

#[test]
fn a_packet_of_another_length_than_it_says_is_refused() {
    for shape in SHAPES {
        let whole = shape.packet();
        let mut long = whole.clone();
        long.push(0);
        let header = header(shape, gso_type(shape), 9, 16);
        for len in 0..=long.len() {
            let packet = &long[..len];
            try_all(&header, packet);
            if len == whole.len() {
                continue;
            }
            let expected = if len < whole.len() { Malformed::Truncated } else { Malformed::Oversized };
            assert_eq!(read(&header, packet), Err(expected), "{len} bytes");
            assert_eq!(read(&[0; HEADER_LEN], packet), Err(expected), "{len} bytes");
            assert_eq!(split(meta(9), packet).map(drop), Err(expected), "{len} bytes");
            assert_eq!(complete_checksum(&mut packet.to_vec()), Err(expected), "{len} bytes");
            let mut buffer = vec![0; long.len()];
            assert!(SuperPacket::begin(&mut buffer, packet).is_none(), "{len} bytes");
        }
    }
}

#[test]
fn whole_headers_of_a_packet_cut_short_are_read_and_others_are_not() {
    for shape in SHAPES {
        let packet = shape.packet();
        for len in 0..=packet.len() {
            assert_eq!(TcpLayout::parse(&packet[..len]).is_some(), len >= shape.payload_at(), "{len} bytes");
        }
    }
}

#[test]
fn a_header_that_contradicts_its_packet_is_refused() {
    for shape in SHAPES {
        let packet = shape.packet();
        let own = gso_type(shape);
        let refused =
            |gso_type, gso_size, offset| read(&header(shape, gso_type, gso_size, offset), &packet).unwrap_err();
        assert_eq!(refused(own, 0, 16), Malformed::NoSegmentSize);
        for other in (0..=0xff).filter(|other| *other != 0 && *other & !GSO_ECN != own) {
            assert_eq!(refused(other, 9, 16), Malformed::SegmentationType, "type {other}");
        }
        let room = (packet.len() - shape.tcp_at()) as u16;
        for offset in 0..room - 1 {
            if offset != 16 {
                assert_eq!(refused(own, 9, offset), Malformed::ChecksumElsewhere, "offset {offset}");
            }
        }
        for offset in [room - 1, room, 0x7fff, 0xffff] {
            assert_eq!(refused(own, 9, offset), Malformed::ChecksumBeyondPacket, "offset {offset}");
        }
        // In a tunnel, the checksum is nowhere where a packet without one has it.
        let mut tunnelled = packet.clone();
        tunnelled[if packet[0] >> 4 == 6 { 6 } else { 9 }] = 4;
        assert_eq!(read(&header(shape, GSO_NONE, 0, 16), &tunnelled), Err(Malformed::ChecksumElsewhere));
        let mut done = header(shape, own, 9, 16);
        done[0] = 0;
        assert_eq!(read(&done, &packet), Err(Malformed::SegmentationWithoutChecksum));
    }
}

#[test]
fn a_super_packet_that_is_not_whole_tcp_or_udp_is_refused() {
    for shape in SHAPES {
        let whole = shape.packet();
        let header = header(shape, gso_type(shape), 9, 16);
        let refused = |at: usize, value: u8| {
            let mut packet = whole.clone();
            packet[at] = value;
            try_all(&header, &packet);
            assert!(read(&header, &packet).is_err(), "{value:#x} at {at}");
            assert!(split(meta(9), &packet).is_err(), "{value:#x} at {at}");
            assert!(SuperPacket::begin(&mut vec![0; 1_000], &packet).is_none(), "{value:#x} at {at}");
        };
        if shape.ipv6 {
            // Every other protocol that has no segments. As an extension header, TCP's own would be cut short or a fragment.
            let protocol_at = if shape.extended { shape.tcp_at() - 16 } else { 6 };
            (0..=255)
                .filter(|protocol| !matches!(*protocol, TCP | UDP))
                .for_each(|protocol| refused(protocol_at, protocol));
        }
        if shape.extended {
            refused(40 + 8 + 3, 1);
        }
        if !shape.ipv6 {
            (0..=255).filter(|protocol| !matches!(*protocol, TCP | UDP)).for_each(|protocol| refused(9, protocol));
            (0..5).for_each(|words| refused(0, 0x40 | words));
            // More fragments, and an offset.
            for (at, value) in [(6, 0x20), (6, 0x01), (7, 0x01)] {
                refused(at, value);
            }
        }
        // The version.
        (0..16).filter(|version| !matches!(version, 4 | 6)).for_each(|version| refused(0, version << 4));
        // A TCP header shorter than it can be.
        (0..5).for_each(|words| refused(shape.tcp_at() + 12, words << 4));
    }
    // TCP and IPv4 options beyond the packet.
    for (shape, at, value) in [
        (Shape { payload: 0, ..PLAIN }, 32, 0xf0),
        (Shape { payload: 39, ..PLAIN }, 32, 0xf0),
        (Shape { payload: 0, ..PLAIN }, 0, 0x4f),
        (Shape { payload: 0, ipv6: true, ..PLAIN }, 52, 0xf0),
    ] {
        let mut packet = shape.packet();
        packet[at] = value;
        try_all(&header(shape, gso_type(shape), 9, 16), &packet);
        assert_eq!(split(meta(9), &packet).map(drop), Err(Malformed::SegmentationType));
    }
}

#[test]
fn any_byte_may_have_any_value() {
    for shape in SHAPES {
        let whole = Shape { payload: 20, ..shape }.packet();
        let header = header(shape, gso_type(shape), 9, 16);
        for at in 0..shape.payload_at() {
            for value in 0..=255 {
                let mut packet = whole.clone();
                packet[at] = value;
                try_all(&header, &packet);
            }
        }
        for at in 0..HEADER_LEN {
            for value in 0..=255 {
                let mut header = header;
                header[at] = value;
                try_all(&header, &whole);
            }
        }
    }
    for byte in 0..=255_u8 {
        for len in 0..100 {
            try_all(&[byte; HEADER_LEN], &vec![byte; len]);
        }
    }
}

#[test]
fn the_longest_packets_there_can_be() {
    for shape in SHAPES {
        let shape = shape.largest();
        let packet = shape.packet();
        assert_eq!(packet.len(), if shape.ipv6 { 65_575 } else { 65_535 });
        let header = header(shape, gso_type(shape), 1448, 16);
        assert_eq!(read(&header, &packet), Ok(meta(1448)));
        try_all(&header, &packet);
        let mut longer = packet.clone();
        longer.extend([0; 41]);
        for len in packet.len() + 1..longer.len() {
            assert_eq!(read(&header, &longer[..len]), Err(Malformed::Oversized));
        }
    }
}

#[test]
fn a_buffer_too_short_takes_nothing() {
    let packet = PLAIN.packet();
    for (meta, first) in [(meta(60), 100), (PARTIAL, 140), (PacketMeta::default(), 140)] {
        let mut segments = split(meta, &packet).unwrap();
        for len in 0..first {
            assert_eq!(segments.next_into(&mut vec![0; len]), Err(NoRoom));
        }
        assert_eq!(segments.next_into(&mut vec![0; first]), Ok(Some(first)));
        assert!(SuperPacket::begin(&mut [0; 139], &packet).is_none());
    }
}

#[test]
fn the_checksum_of_something_else_is_not_completed() {
    let mut icmp = PLAIN.packet();
    icmp[9] = 1;
    let before = icmp.clone();
    assert_eq!(complete_checksum(&mut icmp), Err(Malformed::ChecksumUnknown));
    assert_eq!(icmp, before);
    assert_eq!(split(PARTIAL, &icmp).map(drop), Err(Malformed::ChecksumUnknown));
    assert_eq!(split(PacketMeta::default(), &icmp).unwrap().remaining(), 1);
    // Too short for the header that it says it has.
    let mut short = reference::bytes(1, 20 + 7);
    short[..10].copy_from_slice(&[0x45, 0, 0, 27, 0, 0, 0, 0, 64, UDP]);
    assert_eq!(complete_checksum(&mut short), Err(Malformed::ChecksumUnknown));
}
