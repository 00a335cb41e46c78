use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::reference::{self, Shape};
use super::*;

const SHAPE: Shape = Shape { ipv6: true, extended: false, flags: 0x12, options: 12, payload: 20 };

/// Random choices.
struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    fn byte(&mut self) -> u8 {
        self.0.next().unwrap()
    }

    /// True in about one of `count` calls.
    fn one_in(&mut self, count: u8) -> bool {
        self.byte().is_multiple_of(count)
    }
}

/// A random packet: mostly valid, of either version, with options, extension headers and fragments.
fn packet(seed: u64) -> Vec<u8> {
    let mut choices = Choices(reference::bytes(seed, 1_000).into_iter());
    let protocol = [TCP, TCP, UDP, ICMP, ICMPV6, 89][usize::from(choices.byte() % 6)];
    let mut packet = if choices.one_in(2) { ipv4(&mut choices, protocol) } else { ipv6(&mut choices, protocol) };
    let payload_len = usize::from(choices.byte() % 32);
    let at = packet.len();
    match protocol {
        TCP => {
            let words = choices.byte() % 11;
            packet.extend((0..20 + words * 4).map(|_| choices.byte()));
            packet[at + 12] = (5 + words) << 4;
        }
        UDP => {
            packet.extend((0..8).map(|_| choices.byte()));
            packet[at + 4..at + 6].copy_from_slice(&(8 + payload_len as u16).to_be_bytes());
        }
        _ => packet.extend([if choices.one_in(2) { 8 } else { 128 }, 0, 1, 2, 3, 4, 5, 6]),
    }
    packet.resize(packet.len() + payload_len, 0x77);
    let len = packet.len() as u16;
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&len.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
    }
    if choices.one_in(8) {
        packet.truncate(usize::from(choices.byte()) % packet.len());
    }
    if choices.one_in(8) {
        let at = usize::from(choices.byte()) % packet.len().max(1);
        packet.iter_mut().skip(at).take(1).for_each(|byte| *byte = choices.byte());
    }
    packet
}

fn ipv4(choices: &mut Choices, protocol: u8) -> Vec<u8> {
    let words = if choices.one_in(3) { choices.byte() % 11 } else { 0 };
    let mut header: Vec<u8> = (0..20 + words * 4).map(|_| choices.byte()).collect();
    header[0] = 0x45 + words;
    header[6] = if choices.one_in(4) { choices.byte() & 0xe0 } else { 0x40 };
    header[7] = if choices.one_in(8) { choices.byte() } else { 0 };
    header[9] = protocol;
    header
}

fn ipv6(choices: &mut Choices, protocol: u8) -> Vec<u8> {
    let mut header: Vec<u8> = (0..40).map(|_| choices.byte()).collect();
    header[0] = 0x60;
    // Hop-by-hop options come first. etherparse refuses them elsewhere.
    let mut chain: Vec<u8> = if choices.one_in(3) { vec![HOP_BY_HOP] } else { vec![] };
    for extension in [DESTINATION_OPTIONS, ROUTING, FRAGMENT, DESTINATION_OPTIONS] {
        chain.extend(choices.one_in(4).then_some(extension));
    }
    chain.push(protocol);
    header[6] = chain[0];
    for pair in chain.windows(2) {
        let units = if pair[0] == FRAGMENT { 0 } else { choices.byte() % 3 };
        let at = header.len();
        header.extend((0..8 + units * 8).map(|_| choices.byte()));
        header[at..at + 2].copy_from_slice(&[pair[1], units]);
        if pair[0] == ROUTING && !choices.one_in(8) {
            header[at + 3] = 0;
        }
        if pair[0] == FRAGMENT {
            header[at + 1] = 0;
            let field = if choices.one_in(2) { 0 } else { u16::from(choices.byte()) & !6 };
            header[at + 2..at + 4].copy_from_slice(&field.to_be_bytes());
        }
    }
    header
}

/// Whether the packet has a routing header with segments left. etherparse continues after such a header.
fn is_under_way(ip: &NetSlice<'_>) -> bool {
    let NetSlice::Ipv6(ip) = ip else { return false };
    ip.extensions().clone().into_iter().any(
        |extension| matches!(extension, etherparse::Ipv6ExtensionSlice::Routing(routing) if routing.payload()[1] != 0),
    )
}

/// Whether the packet has an authentication header. etherparse skips such a header.
fn is_authenticated(ip: &NetSlice<'_>) -> bool {
    match ip {
        NetSlice::Ipv4(ip) => ip.extensions().auth.is_some(),
        NetSlice::Ipv6(ip) => {
            let mut extensions = ip.extensions().clone().into_iter();
            extensions.any(|extension| matches!(extension, etherparse::Ipv6ExtensionSlice::Authentication(_)))
        }
        NetSlice::Arp(_) => false,
    }
}

#[test]
fn random_packets_are_read_as_etherparse_reads_them() {
    let mut found = [0; 4];
    for seed in 1..40_000 {
        let packet = packet(seed);
        let transport = Transport::parse(&packet);
        let segment = TcpSegment::parse(&packet);
        assert_eq!(segment.map(|segment| segment.layout), TcpLayout::parse(&packet));
        let Ok(sliced) = SlicedPacket::from_ip(&packet) else { continue };
        let ip = sliced.net.unwrap();
        if ip_len(&packet) != Some(packet.len()) || is_authenticated(&ip) {
            continue;
        }
        let expected_addresses: (IpAddr, IpAddr) = match &ip {
            NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            NetSlice::Arp(_) => panic!("ARP over IP"),
        };
        assert_eq!(addresses(&packet), Some(expected_addresses), "seed {seed}");
        let fragment = matches!(&ip, NetSlice::Ipv4(ip) if ip.is_payload_fragmented());
        assert_eq!(Ipv4Fragment::parse(&packet).is_some(), fragment, "seed {seed}");
        if is_under_way(&ip) {
            assert_eq!(transport, None, "seed {seed}");
            continue;
        }
        let at_of = |bytes: &[u8]| bytes.as_ptr() as usize - packet.as_ptr() as usize;
        let place = |protocol| transport.filter(|it| it.protocol == protocol).map(|it| it.at);
        match sliced.transport {
            None => found[0] += usize::from(transport.is_none()),
            Some(TransportSlice::Tcp(tcp)) => {
                found[1] += 1;
                let segment = segment.unwrap();
                assert_eq!(place(TCP), Some(at_of(tcp.slice())), "seed {seed}");
                assert_eq!(segment.layout.payload_at, at_of(tcp.slice()) + tcp.header_len(), "seed {seed}");
                let expected = (tcp.source_port(), tcp.destination_port(), tcp.sequence_number());
                assert_eq!((segment.source_port(), segment.destination_port(), segment.sequence()), expected);
                assert_eq!(segment.acknowledgement(), tcp.acknowledgment_number());
                assert_eq!((segment.flags(), segment.window()), (tcp.slice()[13], tcp.window_size()));
                assert_eq!(segment.options().as_bytes(), tcp.options());
                assert_eq!(segment.payload(), tcp.payload());
                let mss = tcp.options_iterator().take_while(Result::is_ok).find_map(|option| match option {
                    Ok(etherparse::TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
                    _ => None,
                });
                // etherparse stops at options that it does not know.
                let found = segment.options().find_map(|option| option.mss());
                assert!(mss.is_none() || found == mss, "seed {seed}");
                let at = segment.layout.mss_at(&packet);
                assert_eq!(at.and_then(|at| be16(&packet, at)), found, "seed {seed}");
            }
            Some(TransportSlice::Udp(udp)) => {
                found[2] += 1;
                let at = place(UDP).unwrap();
                assert_eq!(at, at_of(udp.slice()), "seed {seed}");
                let header = UdpHeader::parse(&packet[at..]).unwrap();
                assert_eq!((header.source_port, header.destination_port), (udp.source_port(), udp.destination_port()));
                assert_eq!((header.len, header.checksum), (udp.length(), udp.checksum()));
            }
            Some(TransportSlice::Icmpv4(icmp)) => {
                found[3] += 1;
                assert_eq!(place(ICMP), Some(at_of(icmp.slice())), "seed {seed}");
            }
            Some(TransportSlice::Icmpv6(icmp)) => {
                found[3] += 1;
                assert_eq!(place(ICMPV6), Some(at_of(icmp.slice())), "seed {seed}");
            }
        }
    }
    assert!(found.into_iter().all(|count| count > 2_000), "{found:?}");
}

/// A TCP packet over IPv6 with these extension headers. The next header of the last one is TCP.
fn extended(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut packet = SHAPE.packet();
    packet[6] = first;
    packet.splice(40..40, extensions.iter().copied());
    packet
}

#[test]
fn tcp_is_found_behind_extension_headers() {
    for (first, extensions) in [
        (HOP_BY_HOP, &[TCP, 0, 1, 4, 0, 0, 0, 0][..]),
        (DESTINATION_OPTIONS, &[TCP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (ROUTING, &[TCP, 0, 4, 0, 0, 0, 0, 0]),
        (FRAGMENT, &[TCP, 0, 0, 0, 1, 2, 3, 4]),
        (FRAGMENT, &[TCP, 0xff, 0, 6, 1, 2, 3, 4]),
        (HOP_BY_HOP, &reference::EXTENSIONS),
    ] {
        let packet = extended(first, extensions);
        let tcp_at = 40 + extensions.len();
        assert_eq!(TcpLayout::parse(&packet), Some(TcpLayout { ipv6: true, tcp_at, payload_at: tcp_at + 32 }));
        for len in 0..tcp_at + 32 {
            assert_eq!(TcpLayout::parse(&packet[..len]), None, "{len} bytes");
        }
    }
}

#[test]
fn a_packet_without_a_transport_header_of_its_own_is_not_tcp() {
    for (first, extensions) in [
        (FRAGMENT, [TCP, 0, 0, 1, 1, 2, 3, 4]),
        (FRAGMENT, [TCP, 0, 0, 8, 1, 2, 3, 4]),
        (FRAGMENT, [TCP, 0, 1, 0, 1, 2, 3, 4]),
        (ROUTING, [TCP, 0, 4, 1, 0, 0, 0, 0]),
    ] {
        assert_eq!(Transport::parse(&extended(first, &extensions)), None, "{first}: {extensions:?}");
    }
    // Nothing is read after an authentication header: the packet has to be verified first.
    let authenticated = extended(51, &[TCP, 4, 0, 0, 0, 0, 0, 1]);
    assert_eq!(Transport::parse(&authenticated), Some(Transport { ipv6: true, protocol: 51, at: 40 }));
}

#[test]
fn options_end_at_the_first_that_is_cut_short() {
    for (bytes, expected) in [
        (&[2, 4, 5, 180][..], Some(1460)),
        (&[1, 3, 3, 7, 2, 4, 5, 180], Some(1460)),
        (&[2, 3, 5, 2, 4, 5, 180, 0], Some(1460)),
        (&[2, 4, 5], None),
        (&[3, 200, 2, 4, 5, 180], None),
        (&[0, 2, 4, 5, 180], None),
        (&[1, 1, 1, 2], None),
        (&[9, 0, 2, 4, 5, 180], Some(1460)),
        (&[], None),
    ] {
        let mut packet = Shape { options: 0, payload: 0, ..SHAPE }.packet();
        packet[40 + 12] = (5 + bytes.len().div_ceil(4) as u8) << 4;
        packet.extend(bytes);
        packet.resize(packet.len().next_multiple_of(4), 0);
        let found = TcpSegment::parse(&packet).unwrap().options().find_map(|option| option.mss());
        // The padding of the header completes this option.
        let expected = if bytes == [2, 4, 5] { Some(0x0500) } else { expected };
        assert_eq!(found, expected, "{bytes:?}");
    }
}
