use super::*;
use crate::Capabilities;
use crate::packet::reference::{self, PLAIN, SHAPES, Shape, meta};
use crate::packet::{UDP, write_partial_checksum, write_partial_udp_checksum};

pub(super) fn header(flags: u8, gso_type: u8, fields: [u16; 4]) -> [u8; HEADER_LEN] {
    let mut header = [flags, gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, field) in [2, 4, 6, 8].into_iter().zip(fields) {
        header[at..at + 2].copy_from_slice(&field.to_ne_bytes());
    }
    header
}

/// What the kernel writes in front of a super-packet (`virtio_net_hdr_from_skb`).
fn of_kernel(shape: Shape, gso_size: u16) -> [u8; HEADER_LEN] {
    let gso_type = if shape.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
    header(NEEDS_CSUM, gso_type, [shape.payload_at() as u16, gso_size, shape.tcp_at() as u16, 16])
}

fn segments(meta: PacketMeta, packet: &[u8]) -> Vec<Vec<u8>> {
    let mut segments = split(meta, packet).unwrap();
    let mut all = Vec::new();
    let mut buffer = vec![0; packet.len()];
    while let Some(len) = segments.next_into(&mut buffer).unwrap() {
        all.push(buffer[..len].to_vec());
        assert_eq!(segments.next_into(&mut []).is_err(), segments.remaining() > 0);
    }
    all
}

/// Every length of payload, cut and joined again. The slow segments of one length are those of the
/// next, but for the last one or two.
#[test]
fn every_length_is_cut_like_the_reference_and_joins_again() {
    for shape in [PLAIN, Shape { ipv6: true, ..PLAIN }] {
        let (gso_size, largest) = (1448, shape.largest().payload);
        let payload = reference::bytes(reference::PAYLOAD, largest);
        let mut packet = shape.headers();
        let mut known: Vec<Vec<u8>> = Vec::new();
        let (mut buffer, mut joined) = (vec![0; 2_000], vec![0; Capabilities::MAX_SUPER_PACKET]);
        for len in 0..=largest {
            packet.splice(..shape.payload_at(), Shape { payload: len, ..shape }.headers());
            packet.extend(&payload[len.saturating_sub(1)..len]);
            let count = len.div_ceil(gso_size).max(1);
            known.truncate(count.saturating_sub(2));
            for index in known.len()..count {
                known.push(reference::segment(&packet, shape.tcp_at(), gso_size, index));
            }
            let mut segments = split(meta(gso_size), &packet).unwrap();
            assert_eq!(segments.remaining(), count);
            let mut whole: Option<SuperPacket<'_>> = None;
            for (index, expected) in known.iter().enumerate() {
                let written = segments.next_into(&mut buffer).unwrap().unwrap();
                assert!(&buffer[..written] == expected, "segment {index} of {len} bytes");
                match &mut whole {
                    None => whole = SuperPacket::begin(&mut joined, expected),
                    Some(whole) => {
                        let room = packet.len() <= Capabilities::MAX_SUPER_PACKET || index + 1 < count;
                        assert_eq!(whole.append(expected), room, "segment {index} of {len} bytes");
                    }
                }
            }
            assert_eq!(segments.next_into(&mut buffer), Ok(None));
            let (whole_len, meta) = whole.unwrap().finish();
            if packet.len() <= Capabilities::MAX_SUPER_PACKET {
                assert!(joined[..whole_len] == packet, "{len} bytes joined");
                assert_eq!(meta.gso_size.map(NonZeroU16::get), (count > 1).then_some(gso_size as u16));
                assert_eq!(meta.checksum, Checksum::Partial);
            }
        }
    }
}

#[test]
fn every_size_of_segment_is_cut_like_the_reference() {
    for shape in SHAPES {
        for payload in [0, 1, 2, 3, 99, 1448, 1449, 4_344, 20_000] {
            let packet = Shape { payload, ..shape }.packet();
            for gso_size in [1, 2, 3, 7, 536, 1447, 1448, 1449, 10_000, 19_999, 20_000, 20_001, 65_535] {
                let expected: Vec<_> = (0..payload.div_ceil(gso_size).max(1))
                    .map(|index| reference::segment(&packet, shape.tcp_at(), gso_size, index))
                    .collect();
                assert!(segments(meta(gso_size), &packet) == expected, "{payload} bytes by {gso_size}: {shape:?}");
            }
        }
    }
}

#[test]
fn every_length_has_its_checksum_completed_like_the_reference() {
    for shape in [PLAIN, Shape { ipv6: true, ..PLAIN }] {
        let largest = shape.largest().payload;
        let payload = reference::bytes(reference::PAYLOAD, largest + 1);
        let field = shape.tcp_at() + 16;
        let mut packet = shape.headers();
        let mut words = 0;
        for len in 0..=largest {
            packet.splice(..shape.payload_at(), Shape { payload: len, ..shape }.headers());
            packet.extend(&payload[len.saturating_sub(1)..len]);
            let odd = if len % 2 == 1 { u64::from(payload[len - 1]) << 8 } else { 0 };
            let headers = u64::from(reference::sum(&packet[shape.tcp_at()..shape.payload_at()]));
            let expected = !reference::carry(headers + words + odd);
            complete_checksum(&mut packet).unwrap();
            assert_eq!(u16::from_be_bytes([packet[field], packet[field + 1]]), expected, "{len} bytes");
            if len % 2 == 1 {
                words += u64::from(u16::from_be_bytes([payload[len - 1], payload[len]]));
            }
            if len % 997 == 0 {
                assert_eq!(reference::whole_sum(&packet, shape.tcp_at(), 6), 0xffff);
                let partial = Shape { payload: len, ..shape }.packet();
                assert_eq!(segments(PacketMeta { gso_size: None, ..meta(1) }, &partial), [packet.clone()]);
            }
        }
    }
}

/// A datagram with a partial checksum.
fn datagram(ipv6: bool, payload: &[u8]) -> Vec<u8> {
    datagram_of(Shape { ipv6, ..PLAIN }, payload)
}

fn datagram_of(shape: Shape, payload: &[u8]) -> Vec<u8> {
    let mut packet = shape.headers()[..shape.tcp_at()].to_vec();
    let len = (8 + payload.len()) as u16;
    let protocol_at = match (shape.ipv6, shape.extended) {
        (false, _) => 9,
        (true, false) => 6,
        (true, true) => shape.tcp_at() - 16,
    };
    packet[protocol_at] = UDP;
    let (at, total) = if shape.ipv6 { (4, len + (shape.tcp_at() - 40) as u16) } else { (2, 20 + len) };
    packet[at..at + 2].copy_from_slice(&total.to_be_bytes());
    let partial = reference::sum(&reference::pseudo_header(&packet, len, UDP));
    packet.extend([1, 2, 3, 4]);
    packet.extend(len.to_be_bytes());
    packet.extend(partial.to_be_bytes());
    packet.extend(payload);
    packet
}

#[test]
fn a_datagram_has_its_checksum_completed_and_it_is_never_zero() {
    for ipv6 in [false, true] {
        for len in [0, 1, 2, 99, 1472, 60_000] {
            let mut packet = datagram(ipv6, &reference::bytes(9, len));
            complete_checksum(&mut packet).unwrap();
            assert_eq!(reference::whole_sum(&packet, if ipv6 { 40 } else { 20 }, UDP), 0xffff);
        }
        // A payload that makes the sum all ones, its complement zero.
        let at = if ipv6 { 46 } else { 26 };
        let mut packet = datagram(ipv6, &[0, 0]);
        complete_checksum(&mut packet).unwrap();
        let missing = [packet[at], packet[at + 1]];
        let mut packet = datagram(ipv6, &missing);
        complete_checksum(&mut packet).unwrap();
        assert_eq!(packet[at..at + 2], [0xff, 0xff]);
    }
}

#[test]
fn headers_of_the_kernel_are_read() {
    for shape in SHAPES {
        let packet = shape.packet();
        let place = [0, 0, shape.tcp_at() as u16, 16];
        let partial = PacketMeta { checksum: Checksum::Partial, gso_size: None };
        assert_eq!(read(&of_kernel(shape, 99), &packet), Ok(meta(99)));
        assert_eq!(read(&[0; HEADER_LEN], &packet), Ok(PacketMeta::default()));
        assert_eq!(read(&header(NEEDS_CSUM, GSO_NONE, place), &packet), Ok(partial));
        // Whatever is left in fields that no flag speaks of.
        assert_eq!(read(&header(0, GSO_NONE, [9, 0xffff, 0xffff, 0xffff]), &packet), Ok(PacketMeta::default()));
        // VIRTIO_NET_HDR_F_DATA_VALID: the checksum is complete, and was right.
        assert_eq!(read(&header(2, GSO_NONE, [0; 4]), &packet), Ok(PacketMeta::default()));
        assert_eq!(read(&header(2 | NEEDS_CSUM, GSO_NONE, place), &packet), Ok(partial));
        let mut ecn = of_kernel(shape, 99);
        ecn[1] |= GSO_ECN;
        assert_eq!(read(&ecn, &packet), Ok(meta(99)));
        // As much as one segment holds is none to be cut.
        for gso_size in [100, 101, 1448, 0xffff] {
            assert_eq!(read(&of_kernel(shape, gso_size), &packet), Ok(partial));
        }
    }
    for ipv6 in [false, true] {
        let at = if ipv6 { 40 } else { 20 };
        let meta = read(&header(NEEDS_CSUM, GSO_NONE, [0, 0, at, 6]), &datagram(ipv6, b"query"));
        assert_eq!(meta.map(|meta| meta.checksum), Ok(Checksum::Partial));
    }
}

#[test]
fn written_headers_are_read_back() {
    for shape in SHAPES {
        let packet = shape.packet();
        for meta in [PacketMeta::default(), PacketMeta { gso_size: None, ..meta(1) }, meta(1), meta(99)] {
            let header = write(meta, &packet[..shape.payload_at()]).unwrap();
            assert_eq!(read(&header, &packet), Ok(meta));
            if meta.gso_size.is_some() {
                assert_eq!(header[..2], of_kernel(shape, 99)[..2]);
                assert_eq!(header[2..4], (shape.payload_at() as u16).to_ne_bytes());
            }
        }
        let complete = PacketMeta { checksum: Checksum::Filled, ..meta(9) };
        assert_eq!(write(complete, &packet), Err(Malformed::SegmentationWithoutChecksum));
    }
    let mut icmp = datagram(false, b"query");
    icmp[9] = 1;
    assert_eq!(write(meta(9), &icmp), Err(Malformed::SegmentationType));
}

#[test]
fn a_partial_checksum_equals_the_reference() {
    for shape in SHAPES {
        for payload in [0, 1, 1448, 65_535 - shape.payload_at(), shape.largest().payload] {
            let expected = Shape { payload, ..shape }.packet();
            let mut packet = expected.clone();
            packet[shape.tcp_at() + 16..shape.tcp_at() + 18].copy_from_slice(&[0xde, 0xad]);
            let layout = TcpLayout::parse(&packet[..shape.payload_at()]).unwrap();
            let len = packet.len();
            write_partial_checksum(&mut packet[..shape.payload_at()], &layout, len);
            assert!(packet == expected, "{payload} bytes");
        }
    }
}

/// `virtio_net_hdr_from_skb` for `SKB_GSO_UDP_L4`.
#[test]
fn a_super_packet_of_datagrams_is_cut_into_datagrams() {
    for shape in SHAPES {
        let udp_at = shape.tcp_at();
        for (len, gso_size) in [(2, 1), (100, 33), (3_000, 1_400), (60_000, 1_472)] {
            let payload = reference::bytes(9, len);
            let packet = datagram_of(shape, &payload);
            let fields = [udp_at as u16 + 8, gso_size as u16, udp_at as u16, 6];
            let of_kernel = header(NEEDS_CSUM, GSO_UDP_L4, fields);
            assert_eq!(read(&of_kernel, &packet), Ok(meta(gso_size)));
            assert_eq!(write(meta(gso_size), &packet[..udp_at + 8]), Ok(of_kernel));
            for gso_type in [GSO_TCPV4, GSO_TCPV6, 3, 6] {
                let of_another = header(NEEDS_CSUM, gso_type, fields);
                assert_eq!(read(&of_another, &packet), Err(Malformed::SegmentationType));
            }
            let datagrams = segments(meta(gso_size), &packet);
            let many = header(NEEDS_CSUM, GSO_UDP_L4, [fields[0], (len / 129).max(1) as u16, fields[2], fields[3]]);
            assert_eq!(read(&many, &packet) == Err(Malformed::TooManyDatagrams), len > 129);
            assert_eq!(datagrams.len(), len.div_ceil(gso_size));
            for (index, (datagram, payload)) in datagrams.iter().zip(payload.chunks(gso_size)).enumerate() {
                let mut expected = datagram_of(shape, payload);
                complete_checksum(&mut expected).unwrap();
                if !shape.ipv6 {
                    let identification = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(index as u16);
                    expected[4..6].copy_from_slice(&identification.to_be_bytes());
                    expected[10..12].fill(0);
                    let checksum = !reference::sum(&expected[..20]);
                    expected[10..12].copy_from_slice(&checksum.to_be_bytes());
                }
                assert!(*datagram == expected, "datagram {index} of {gso_size} bytes: {shape:?}");
            }
        }
    }
}

#[test]
fn a_datagram_may_have_a_partial_checksum_too() {
    let partial = PacketMeta { checksum: Checksum::Partial, gso_size: None };
    for shape in SHAPES {
        let udp_at = shape.tcp_at();
        for len in [0, 1, 1472] {
            let expected = datagram_of(shape, &reference::bytes(9, len));
            let mut packet = expected.clone();
            packet[udp_at + 6..udp_at + 8].copy_from_slice(&[0xde, 0xad]);
            let whole = packet.len();
            assert!(write_partial_udp_checksum(&mut packet[..udp_at + 8], whole));
            assert_eq!(packet, expected);
            let written = write(partial, &packet[..udp_at + 8]).unwrap();
            assert_eq!(written, header(NEEDS_CSUM, GSO_NONE, [udp_at as u16 + 8, 0, udp_at as u16, 6]));
            assert_eq!(read(&written, &packet), Ok(partial));
        }
    }
    let mut fragment = datagram(false, b"query");
    fragment[6] = 0x20;
    let before = fragment.clone();
    assert!(!write_partial_udp_checksum(&mut fragment, before.len()));
    assert_eq!(fragment, before);
    assert_eq!(write(partial, &fragment), Err(Malformed::SegmentationType));
    assert_eq!(write(partial, &datagram(true, b"")[..47]), Err(Malformed::SegmentationType));
}

/// A packet that came from another machine: with a wrong checksum it is refused, unless the kernel has verified it or is
/// to fill it.
#[test]
fn a_checksum_that_nobody_has_verified_is_verified() {
    for shape in SHAPES {
        let mut packet = shape.headers();
        packet.extend(reference::bytes(reference::PAYLOAD, shape.payload));
        let layout = TcpLayout::parse(&packet).unwrap();
        let len = packet.len();
        write_partial_checksum(&mut packet, &layout, len);
        complete_checksum(&mut packet).unwrap();
        let plain = [0; HEADER_LEN];
        let verified = header(DATA_VALID, GSO_NONE, [0; 4]);
        let partial = header(NEEDS_CSUM, GSO_NONE, [0, 0, shape.tcp_at() as u16, 16]);
        assert_eq!(read_verified(&plain, &packet), Ok(PacketMeta::default()), "{shape:?}");
        for at in [shape.tcp_at() + 4, shape.tcp_at() + 16, len - 1] {
            packet[at] ^= 0x10;
            assert_eq!(read_verified(&plain, &packet), Err(Malformed::Checksum), "{shape:?}");
            assert_eq!(read_verified(&verified, &packet), Ok(PacketMeta::default()), "{shape:?}");
            assert_eq!(read_verified(&partial, &packet).unwrap().checksum, Checksum::Partial, "{shape:?}");
            packet[at] ^= 0x10;
        }
    }
}

#[test]
fn a_datagram_without_a_checksum_is_right_over_ipv4_alone() {
    for ipv6 in [false, true] {
        let mut packet =
            if ipv6 { vec![0x60, 0, 0, 0, 0, 10, UDP, 64] } else { vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, UDP, 0, 0] };
        packet.extend(vec![7; if ipv6 { 32 } else { 8 }]);
        packet.extend([0, 9, 0, 53, 0, 10, 0, 0, 1, 2]);
        let plain = [0; HEADER_LEN];
        assert_eq!(read_verified(&plain, &packet).is_ok(), !ipv6);
        let len = packet.len();
        assert!(write_partial_udp_checksum(&mut packet, len));
        assert!(read_verified(&plain, &packet).is_err(), "a partial one is wrong");
        complete_checksum(&mut packet).unwrap();
        assert_eq!(read_verified(&plain, &packet), Ok(PacketMeta::default()));
    }
}
