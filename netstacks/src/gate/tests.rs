use std::pin::pin;
use std::task::Waker;

use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use std::net::{IpAddr, SocketAddr};

use platform::MemoryLink;
use platform::packet::TcpFields;

use super::*;
use crate::fixture::{self, with_extension_headers};

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

/// A segment of the client with a valid checksum.
fn from_client(flags: u8, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    segment(key(false, 4000).peer, key(false, 4000).local, flags, sequence, acknowledgement)
}

fn segment(from: SocketAddr, to: SocketAddr, flags: u8, sequence: u32, acknowledgement: u32) -> Vec<u8> {
    fixture::segment(from, to, TcpFields { sequence, acknowledgement, flags, window: 5000 }, &[], &[])
}

impl Bench {
    /// Sends a segment of the stack.
    fn stack_sends(&mut self, flags: u8, sequence: u32, acknowledgement: u32) {
        let FlowKey { local, peer } = key(false, 4000);
        let packet = segment(local, peer, flags, sequence, acknowledgement);
        self.gated.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    }

    /// Sends segments of the client. Returns how many of them the stack gets.
    fn client_sends(&mut self, packets: &[(u8, u32, u32)]) -> usize {
        for (flags, sequence, acknowledgement) in packets {
            self.send(&from_client(*flags, *sequence, *acknowledgement));
        }
        self.delivered().len()
    }

    /// A connection whose SYN has the number 1000, and whose SYN-ACK the number 7000.
    fn answered_syn(&mut self) -> Admission {
        assert_eq!(self.client_sends(&[(SYN, 1000, 0)]), 0);
        let admission = self.request().unwrap().admit();
        assert_eq!(self.delivered().len(), 1);
        self.stack_sends(SYN | ACK, 7000, 1001);
        admission
    }

    fn opened(&mut self) -> Admission {
        let mut admission = self.answered_syn();
        assert_eq!(self.client_sends(&[(ACK, 1001, 7001)]), 1);
        assert!(now(admission.opened()).unwrap());
        admission
    }
}

/// The result of a future that is ready.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Some stacks would take them for a SYN, and no request would be made.
#[test]
fn a_syn_with_other_flags_is_dropped() {
    for more in [FIN, RST, ACK] {
        let mut bench = Bench::new(8);
        assert_eq!(bench.client_sends(&[(SYN | more, 1000, 0)]), 0);
        assert!(bench.request().is_none() && bench.peer.try_recv(&mut bench.buffers).is_err());
    }
}

#[tokio::test]
async fn a_client_that_begins_anew_in_its_handshake_makes_another_request() {
    let mut bench = Bench::new(8);
    let mut first = bench.answered_syn();
    assert_eq!(bench.client_sends(&[(SYN, 1000, 0)]), 1, "the same SYN again is for the stack");
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert_eq!(now(first.opened()), Some(false));
    let mut second = bench.request().unwrap().admit();
    drop(first);
    assert_eq!(bench.delivered().len(), 1);
    bench.stack_sends(SYN | ACK, 9000, 5001);
    assert_eq!(bench.client_sends(&[(ACK, 5001, 9001)]), 1);
    assert_eq!(now(second.opened()), Some(true));
}

#[tokio::test]
async fn a_reset_before_the_decision_ends_the_request() {
    for (sequence, ends) in [(1000, true), (1001, true), (999, false), (1002, false)] {
        let mut bench = Bench::new(8);
        bench.client_sends(&[(SYN, 1000, 0), (RST, sequence, 0)]);
        let mut request = bench.request().unwrap();
        assert_eq!(now(request.abandoned()).is_some(), ends, "{sequence}");
        let _admission = request.admit();
        assert_eq!(bench.delivered().len(), usize::from(!ends), "a SYN of a client that has given up is not delivered");
    }
}

#[tokio::test]
async fn only_an_exact_reset_ends_a_handshake() {
    for (sequence, ends) in [(1001, true), (1000, false), (1002, false)] {
        let mut bench = Bench::new(8);
        let mut admission = bench.answered_syn();
        assert_eq!(bench.client_sends(&[(RST, sequence, 0)]), 1, "the stack gets it, too");
        assert_eq!(now(admission.opened()), ends.then_some(false), "{sequence}");
    }
}

#[tokio::test]
async fn a_reset_and_a_syn_in_one_batch_make_a_request_and_keep_their_order() {
    let mut bench = Bench::new(8);
    let first = bench.opened();
    assert!(!first.is_reset());
    bench.send(&from_client(RST, 1007, 0));
    bench.send(&from_client(SYN, 5000, 0));
    assert_eq!(bench.delivered(), [from_client(RST, 1007, 0)]);
    assert!(first.is_reset());
    let second = bench.request().unwrap().admit();
    assert_eq!(bench.delivered(), [from_client(SYN, 5000, 0)]);
    drop(first);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1, "the end of the first leaves the second");
    drop(second);
}

#[tokio::test]
async fn a_syn_on_a_live_connection_passes_and_its_challenge_frees_the_addresses() {
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1);
    assert!(bench.request().is_none());
    // The stack's challenge ACK is not for this client, so it resets.
    bench.stack_sends(ACK, 7001, 1001);
    assert_eq!(bench.client_sends(&[(RST, 1001, 0), (SYN, 5000, 0)]), 1);
    assert!(bench.request().is_some());
}

#[tokio::test]
async fn fins_of_both_sides_or_a_reset_of_the_stack_free_the_addresses() {
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    bench.client_sends(&[(FIN | ACK, 1001, 7001)]);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 1, "half-closed");
    bench.stack_sends(FIN | ACK, 7001, 1002);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert!(bench.request().is_some());
    let mut bench = Bench::new(8);
    let _admission = bench.opened();
    bench.stack_sends(RST, 7001, 0);
    assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
    assert!(bench.request().is_some());
}

/// A stack without a call for a RST closes instead.
#[tokio::test]
async fn a_client_that_ends_after_a_rst_has_not_sent_it() {
    let mut bench = Bench::new(8);
    let admission = bench.opened();
    for (flags, is_reset) in [(RST, true), (ACK, true), (FIN | ACK, false)] {
        assert_eq!(bench.client_sends(&[(flags, 9999, 7051)]), 1, "the stack decides");
        assert_eq!(admission.is_reset(), is_reset);
    }
}

#[tokio::test]
async fn after_a_reset_by_the_proxy_the_fin_of_the_stack_is_a_rst_for_both() {
    let rst = |packet: &[u8]| {
        let segment = TcpSegment::parse(packet).unwrap();
        assert!(is_checksum_right(packet) && segment.flags() == RST);
        (segment.destination_port(), segment.sequence())
    };
    for was_closed in [false, true] {
        let mut bench = Bench::new(8);
        let admission = bench.opened();
        if was_closed {
            bench.stack_sends(FIN | ACK, 7051, 1001);
        }
        while bench.peer.try_recv(&mut bench.buffers).is_ok() {}
        admission.reset();
        assert_eq!(bench.client_sends(&[(ACK, 1051, 7051)]), 1);
        bench.stack_sends(FIN | ACK, 7051, 1051);
        let to_stack = bench.delivered();
        assert_eq!(
            to_stack.iter().map(|packet| rst(packet)).collect::<Vec<_>>(),
            [(80, 1051)][usize::from(was_closed)..]
        );
        bench.peer.try_recv(&mut bench.buffers[..1]).unwrap();
        assert_eq!(rst(bench.buffers[0].packet()), (4000, 7051 + u32::from(was_closed)));
        assert_eq!(bench.client_sends(&[(SYN, 5000, 0)]), 0);
        assert!(bench.request().is_some(), "the addresses are free");
    }
}

#[tokio::test]
async fn a_syn_with_another_number_takes_the_place_of_the_one_that_waits() {
    let mut bench = Bench::new(8);
    assert_eq!(bench.client_sends(&[(SYN, 1000, 0), (SYN, 5000, 0)]), 0);
    let request = bench.request().unwrap();
    assert!(bench.request().is_none());
    let _admission = request.admit();
    assert_eq!(bench.delivered(), [from_client(SYN, 5000, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_silent_for_too_long_has_given_up() {
    let mut bench = Bench::new(8);
    let start = Instant::now();
    bench.client_sends(&[(SYN, 1000, 0)]);
    let mut request = bench.request().unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(3), request.abandoned()).await.is_err());
    bench.client_sends(&[(SYN, 1000, 0)]);
    request.abandoned().await;
    // The next one was due six seconds later.
    assert_eq!(start.elapsed().as_secs(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_syn_without_an_answer_of_the_stack_fails_after_a_second() {
    let mut bench = Bench::new(8);
    let start = Instant::now();
    bench.client_sends(&[(SYN, 1000, 0)]);
    let mut admission = bench.request().unwrap().admit();
    assert_eq!(bench.delivered().len(), 1);
    assert!(!admission.opened().await);
    assert_eq!(start.elapsed().as_secs(), ANSWER.as_secs());
    drop(admission);
    // With an answer, the client has more time.
    let mut admission = bench.answered_syn();
    let start = Instant::now();
    assert!(!admission.opened().await);
    assert_eq!(start.elapsed().as_secs(), HANDSHAKE.as_secs());
}

#[tokio::test]
async fn a_segment_with_a_wrong_checksum_changes_nothing_where_the_link_does_not_verify() {
    let (link, mut peer) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
    let (mut gated, _gate) = gate(link, 8);
    gated.verify = true;
    let mut buffers = [PacketBuffer::new(1500)];
    for (wrong, passes) in [(0, true), (1, false)] {
        let mut reset = from_client(RST, 1000, 0);
        reset[36] ^= wrong;
        peer.try_send(PacketMeta::default(), &[IoSlice::new(&reset)]).unwrap();
        assert_eq!(gated.try_recv(&mut buffers).is_ok(), passes);
    }
}

#[test]
fn the_connections_in_the_handshake_are_counted_right() {
    let mut bench = Bench::new(8);
    for end in 0..4 {
        let mut admission = Some(bench.answered_syn());
        assert_eq!(bench.gated.shared.lock().opening, 1);
        match end {
            0 => drop(bench.client_sends(&[(RST, 1001, 0)])),
            1 => drop(bench.client_sends(&[(ACK, 1001, 7001)])),
            2 => bench.stack_sends(RST, 7001, 0),
            _ => admission = None,
        }
        assert_eq!(bench.gated.shared.lock().opening, 0, "end {end}");
        drop(admission);
    }
}
