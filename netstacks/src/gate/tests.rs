mod handshake;

use std::task::Waker;

use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use std::net::{IpAddr, SocketAddr};

use platform::MemoryLink;

use super::*;
use crate::fixture::with_extension_headers;

const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [192, 0, 2, 7]);
const V6: ([u8; 16], [u8; 16]) =
    ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

/// A link with a gate, and the peer's end of it.
struct Bench {
    gated: Gated<MemoryLink>,
    gate: Gate,
    peer: MemoryLink,
    buffers: Vec<PacketBuffer>,
}

impl Bench {
    fn new(backlog: usize) -> Self {
        let (link, peer) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
        let (gated, gate) = gate(link, backlog);
        Self { gated, gate, peer, buffers: (0..4).map(|_| PacketBuffer::new(1500)).collect() }
    }

    fn send(&mut self, packet: &[u8]) {
        self.peer.try_send(PacketMeta::default(), &[IoSlice::new(packet)]).unwrap();
    }

    /// The packets that the stack gets.
    fn delivered(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        // A batch has four packets at most.
        for _ in 0..4 {
            if let Ok(count) = self.gated.try_recv(&mut self.buffers) {
                packets.extend(self.buffers[..count].iter().map(|buffer| buffer.packet().to_vec()));
            }
        }
        packets
    }

    /// The reply that the peer gets.
    fn answered(&mut self) -> Vec<u8> {
        assert_eq!(self.delivered(), [[0; 0]; 0]);
        self.peer.try_recv(&mut self.buffers[..1]).unwrap();
        self.buffers[0].packet().to_vec()
    }

    fn request(&mut self) -> Option<Request> {
        self.gate.requests.try_recv().ok()
    }
}

fn syn(ipv6: bool, source_port: u16) -> Vec<u8> {
    let ip = if ipv6 { PacketBuilder::ipv6(V6.0, V6.1, 64) } else { PacketBuilder::ipv4(V4.0, V4.1, 64) };
    let mut packet = Vec::new();
    ip.tcp(source_port, 80, 1000, 5000).syn().write_to_vec(&mut packet, &[]).unwrap();
    packet
}

fn data() -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(V4.0, V4.1, 64).tcp(4000, 80, 1001, 5000).ack(7).write_to_vec(&mut packet, b"data").unwrap();
    packet
}

fn key(ipv6: bool, source_port: u16) -> FlowKey {
    let (source, destination): (IpAddr, IpAddr) =
        if ipv6 { (V6.0.into(), V6.1.into()) } else { (V4.0.into(), V4.1.into()) };
    FlowKey { local: SocketAddr::new(destination, 80), peer: SocketAddr::new(source, source_port) }
}

/// Compares the checksums with those of etherparse, which does not share the incremental update.
fn assert_sums_are_right(packet: &[u8]) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    match (sliced.net.unwrap(), sliced.transport.unwrap()) {
        (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
            assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        }
        (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(source, destination, icmp.payload()).unwrap());
        }
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            assert_eq!(
                tcp.checksum(),
                tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap()
            );
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            assert_eq!(
                tcp.checksum(),
                tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap()
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_syn_waits_and_is_delivered_when_it_is_admitted() {
    for ipv6 in [false, true] {
        let mut bench = Bench::new(8);
        bench.send(&syn(ipv6, 4000));
        bench.send(&syn(ipv6, 4000));
        bench.send(&data());
        assert_eq!(bench.delivered(), [data()], "a segment that opens no connection passes");
        let request = bench.request().unwrap();
        assert_eq!(request.key(), key(ipv6, 4000));
        assert!(bench.request().is_none(), "a retransmitted SYN makes no second request");
        let admission = request.admit();
        assert_eq!(bench.delivered(), [syn(ipv6, 4000)]);
        bench.send(&syn(ipv6, 4000));
        assert_eq!(bench.delivered(), [syn(ipv6, 4000)], "a SYN that is retransmitted now reaches the stack");
        drop(admission);
        bench.send(&syn(ipv6, 4000));
        assert!(bench.delivered().is_empty());
        assert!(bench.request().is_some(), "after the admission it is a new request");
    }
}

#[test]
fn a_dropped_request_can_be_made_again() {
    let mut bench = Bench::new(8);
    bench.send(&syn(false, 4000));
    assert!(bench.delivered().is_empty());
    drop(bench.request().unwrap());
    bench.send(&syn(false, 4000));
    assert!(bench.delivered().is_empty());
    assert!(bench.request().is_some());
}

#[test]
fn requests_beyond_the_backlog_are_dropped_and_may_be_made_again() {
    let mut bench = Bench::new(2);
    for port in [1, 2, 3] {
        bench.send(&syn(false, port));
    }
    assert!(bench.delivered().is_empty());
    let waiting: Vec<_> = std::iter::from_fn(|| bench.request()).collect();
    assert_eq!(waiting.iter().map(|request| request.key().peer.port()).collect::<Vec<_>>(), [1, 2]);
    bench.send(&syn(false, 3));
    assert!(bench.delivered().is_empty());
    assert_eq!(bench.request().unwrap().key().peer.port(), 3);
}

#[test]
fn a_refused_connection_is_reset() {
    for ipv6 in [false, true] {
        let mut bench = Bench::new(8);
        bench.send(&syn(ipv6, 4000));
        assert!(bench.delivered().is_empty());
        bench.request().unwrap().refuse();
        let answer = bench.answered();
        assert_sums_are_right(&answer);
        let sliced = SlicedPacket::from_ip(&answer).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("{sliced:?}") };
        assert!(tcp.rst() && tcp.ack() && !tcp.syn());
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 4000));
        assert_eq!((tcp.sequence_number(), tcp.acknowledgment_number()), (0, 1001));
    }
}

#[test]
fn an_icmp_message_quotes_the_headers_of_the_packet() {
    for (reason, v4, v6) in [
        (Unreachable::Network, 0, 0),
        (Unreachable::Host, 1, 3),
        (Unreachable::Port, 3, 4),
        (Unreachable::Prohibited, 13, 1),
    ] {
        for ipv6 in [false, true] {
            let mut bench = Bench::new(8);
            bench.send(&syn(ipv6, 4000));
            assert!(bench.delivered().is_empty());
            bench.request().unwrap().unreachable(reason);
            let of_syn = bench.answered();
            bench.gate.answers().unreachable(key(ipv6, 4000), reason);
            let of_datagram = bench.answered();
            for (answer, protocol) in [(of_syn, 6), (of_datagram, 17)] {
                assert_sums_are_right(&answer);
                let icmp = if ipv6 { 40 } else { 20 };
                assert_eq!(answer[icmp..icmp + 2], if ipv6 { [1, v6] } else { [3, v4] });
                let quoted = &answer[icmp + 8..];
                assert_eq!(quoted[if ipv6 { 6 } else { 9 }], protocol);
                assert_eq!(addresses(quoted), Some((key(ipv6, 0).peer.ip(), key(ipv6, 0).local.ip())));
                assert_eq!(quoted[icmp..icmp + 4], [4000_u16.to_be_bytes(), 80_u16.to_be_bytes()].concat());
                if protocol == 6 {
                    assert_eq!(quoted[icmp + 4..icmp + 8], 1000_u32.to_be_bytes());
                }
            }
        }
    }
}

#[test]
fn a_datagram_that_is_too_long_gets_the_mtu() {
    for ipv6 in [false, true] {
        let mut bench = Bench::new(8);
        bench.gate.answers().too_big(key(ipv6, 4000), 1400);
        let answer = bench.answered();
        assert_sums_are_right(&answer);
        let icmp = if ipv6 { 40 } else { 20 };
        assert_eq!(answer[icmp..icmp + 2], if ipv6 { [2, 0] } else { [3, 4] });
        assert_eq!(answer[icmp + 4..icmp + 8], 1400_u32.to_be_bytes());
        assert_eq!(answer[icmp + 8..][icmp..icmp + 4], [4000_u16.to_be_bytes(), 80_u16.to_be_bytes()].concat());
    }
}

#[test]
fn the_last_long_datagram_of_a_client_says_whether_it_may_be_fragmented() {
    let mut bench = Bench::new(8);
    let peer = key(false, 4000).peer;
    let mut fragment = Vec::new();
    PacketBuilder::ipv4(V4.0, V4.1, 64).udp(4000, 80).write_to_vec(&mut fragment, &[0; 1000]).unwrap();
    // 0x40 is "don't fragment", and 0x20 "more fragments" (RFC 791, 3.1).
    for (flags, len, expected) in [
        (0x40, 1028, false),
        (0, 500, false),
        (0, 1028, true),
        (0x40, 500, true),
        (0x40, 1028, false),
        (0x20, 1028, true),
        (0x40, 1028, false),
    ] {
        fragment[6] = flags;
        bench.send(&fragment[..len]);
        assert_eq!(bench.delivered().len(), 1);
        assert_eq!(bench.gate.answers().may_fragment(peer), expected, "flags {flags:#x}, {len} bytes");
    }
}

#[test]
fn an_echo_request_is_answered_and_a_reply_is_not() {
    for payload in [&b""[..], b"a", b"0123456789"] {
        for ipv6 in [false, true] {
            let mut bench = Bench::new(8);
            let mut request = Vec::new();
            if ipv6 {
                PacketBuilder::ipv6(V6.0, V6.1, 64).icmpv6_echo_request(5, 6).write_to_vec(&mut request, payload)
            } else {
                PacketBuilder::ipv4(V4.0, V4.1, 64).icmpv4_echo_request(5, 6).write_to_vec(&mut request, payload)
            }
            .unwrap();
            bench.send(&request);
            let answer = bench.answered();
            assert_sums_are_right(&answer);
            assert_eq!(addresses(&answer), addresses(&request).map(|(from, to)| (to, from)));
            let sliced = SlicedPacket::from_ip(&answer).unwrap();
            match sliced.transport.unwrap() {
                TransportSlice::Icmpv4(icmp) => {
                    assert!(matches!(icmp.icmp_type(), Icmpv4Type::EchoReply(echo) if (echo.id, echo.seq) == (5, 6)));
                    assert_eq!(icmp.payload(), payload);
                }
                TransportSlice::Icmpv6(icmp) => {
                    assert!(matches!(icmp.icmp_type(), Icmpv6Type::EchoReply(echo) if (echo.id, echo.seq) == (5, 6)));
                    assert_eq!(icmp.payload(), payload);
                }
                other => panic!("{other:?}"),
            }
            bench.send(&answer);
            assert_eq!(bench.delivered(), [&answer[..]], "a reply is not answered");
            for len in 1..request.len() - payload.len() {
                let before = request[..len].to_vec();
                let mut truncated = before.clone();
                assert!(!reply::echo(&mut truncated) && truncated == before, "{len} bytes");
            }
        }
    }
}

#[test]
fn a_packet_that_may_hide_a_syn_is_dropped() {
    // An authentication header of 24 bytes (RFC 4302, 2) instead of destination options.
    let mut authenticated = with_extension_headers(&syn(true, 4000), true);
    (authenticated[40], authenticated[49]) = (51, 4);
    let mut fragment = syn(false, 4000);
    fragment[6] = 0x20;
    for packet in [authenticated, fragment] {
        let mut bench = Bench::new(8);
        bench.send(&packet);
        assert_eq!(bench.delivered(), [[0; 0]; 0]);
        assert!(bench.request().is_none());
    }
    let mut bench = Bench::new(8);
    let mut datagram = syn(false, 4000);
    (datagram[6], datagram[9]) = (0x20, 17);
    bench.send(&datagram);
    assert_eq!(bench.delivered(), [datagram], "a fragment of a datagram");
}

#[test]
fn a_batch_is_filled_up_when_packets_of_it_are_kept() {
    let mut bench = Bench::new(8);
    let batch = bench.gated.capabilities().batch;
    // A full batch of SYNs, and a packet behind it. An edge-triggered link would not report that packet again.
    for port in 0..batch as u16 {
        bench.send(&syn(false, 4000 + port));
    }
    bench.send(&data());
    let mut buffers: Vec<_> = (0..batch).map(|_| PacketBuffer::new(1500)).collect();
    assert_eq!(bench.gated.try_recv(&mut buffers).unwrap(), 1);
    assert_eq!(buffers[0].packet(), data());
}

#[test]
fn a_multicast_or_link_local_echo_request_is_not_answered() {
    for destination in [[224, 0, 0, 1], [169, 254, 0, 1]] {
        let mut request = Vec::new();
        let ip = PacketBuilder::ipv4(V4.0, destination, 64);
        ip.icmpv4_echo_request(5, 6).write_to_vec(&mut request, b"").unwrap();
        assert!(!reply::echo(&mut request));
    }
}

#[test]
fn a_decision_wakes_the_reader_of_the_link() {
    let mut bench = Bench::new(8);
    bench.send(&syn(false, 4000));
    assert!(bench.delivered().is_empty());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(bench.gated.poll_readable(&mut cx).is_pending());
    let _admission = bench.request().unwrap().admit();
    assert!(bench.gated.shared.lock().reader.is_none(), "the waker has been used");
    assert!(bench.gated.poll_readable(&mut cx).is_ready());
}
