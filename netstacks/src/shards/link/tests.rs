use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use platform::packet::{MAX_HEADERS_LEN, TCP, TcpFields, TcpHeaders, UDP, packet_too_big, write_ip};
use platform::{Checksum, MemoryLink};

use super::*;
use crate::FlowKey;

const SERVER: &str = "10.0.0.2:53";
const SERVER_V6: &str = "[fd00::2]:53";

/// Links of shards, and the other ends of the links that they are around.
struct Bench {
    spread: Spread,
    links: Vec<Steered<MemoryLink>>,
    passed_on: PassedOn,
    ends: Vec<MemoryLink>,
}

impl Bench {
    fn new(shards: usize) -> Self {
        let pairs = (0..shards).map(|_| MemoryLink::pair(1500, 4 * INBOX));
        let (links, ends): (Vec<_>, _) = pairs.unzip();
        let spread = Spread::default();
        let (links, passed_on) = steer(&spread, links);
        Self { spread, links, passed_on, ends }
    }

    /// The shard of a flow from a port.
    fn shard(&self, server: &str, port: u16) -> usize {
        let (local, peer) = ends(server, port);
        self.spread.shard(FlowKey { local, peer }, self.links.len())
    }

    /// A port whose flow has this shard.
    fn port(&self, server: &str, shard: usize) -> u16 {
        (4000..5000).find(|port| self.shard(server, *port) == shard).unwrap()
    }

    /// Sends a packet over the link of a shard.
    fn send(&mut self, link: usize, packet: &[u8]) {
        self.ends[link].try_send(PacketMeta::default(), &[IoSlice::new(packet)]).unwrap();
    }

    /// What a shard receives, until it would have to wait.
    fn receive(&mut self, shard: usize) -> Vec<Vec<u8>> {
        let mut buffers: Vec<_> = (0..32).map(|_| PacketBuffer::new(1500)).collect();
        let mut packets = Vec::new();
        loop {
            match self.links[shard].try_recv(&mut buffers) {
                Ok(count) => packets.extend(buffers[..count].iter().map(|buffer| buffer.packet().to_vec())),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    if self.is_readable(shard, Waker::noop()) {
                        continue;
                    }
                    return packets;
                }
            }
        }
    }

    fn is_readable(&mut self, shard: usize, waker: &Waker) -> bool {
        self.links[shard].poll_readable(&mut Context::from_waker(waker)).is_ready()
    }
}

/// The server, and the client with this port.
fn ends(server: &str, port: u16) -> (SocketAddr, SocketAddr) {
    let server: SocketAddr = server.parse().unwrap();
    let client: IpAddr = if server.is_ipv6() { "fd00::1" } else { "10.0.0.1" }.parse().unwrap();
    (server, SocketAddr::new(client, port))
}

/// A datagram from a port to the server.
fn datagram(server: &str, port: u16, payload: &[u8]) -> Vec<u8> {
    let (to, from) = ends(server, port);
    crate::datagrams::packet(from, to, payload).unwrap()
}

/// A batch of a shard, in buffers that hold nothing yet.
fn batch(bench: &mut Bench, shard: usize, len: usize) -> Vec<Vec<u8>> {
    let mut buffers: Vec<_> = (0..len).map(|_| PacketBuffer::new(1500)).collect();
    let count = bench.links[shard].try_recv(&mut buffers).unwrap_or(0);
    buffers[..count].iter().map(|buffer| buffer.packet().to_vec()).collect()
}

/// A datagram of 40 bytes in fragments of 16.
fn fragments(server: &str, port: u16, number: u8) -> Vec<Vec<u8>> {
    let packet = datagram(server, port, &[number; 40]);
    let (to, from) = ends(server, port);
    let at = packet.len() - 48;
    let cut = |(index, bytes): (usize, &[u8])| {
        let (offset, more) = (16 * index as u16, index < 2);
        let mut fragment = vec![0; at];
        if to.is_ipv6() {
            write_ip(&mut fragment, from.ip(), to.ip(), 44, 8 + bytes.len()).unwrap();
            fragment.extend([UDP, 0, 0, offset as u8 | u8::from(more), 0, 0, 0, number]);
        } else {
            write_ip(&mut fragment, from.ip(), to.ip(), UDP, bytes.len()).unwrap();
            fragment[4..8].copy_from_slice(&[0, number, if more { 0x20 } else { 0 }, offset as u8 / 8]);
        }
        fragment.extend(bytes);
        fragment
    };
    packet[at..].chunks(16).enumerate().map(cut).collect()
}

#[test]
fn each_packet_reaches_its_shard_whatever_link_it_came_over() {
    for server in [SERVER, SERVER_V6] {
        let mut bench = Bench::new(3);
        for port in 4000..4060 {
            bench.send(usize::from(port % 3), &datagram(server, port, b"x"));
        }
        // The first looks again: others have passed packets on to it.
        let received = [0, 1, 2, 0, 1, 2].map(|shard| bench.receive(shard));
        for (shard, packets) in received.iter().enumerate() {
            for packet in packets {
                let at = packet.len() - 9;
                let port = u16::from_be_bytes([packet[at], packet[at + 1]]);
                assert_eq!(bench.shard(server, port), shard % 3);
            }
        }
        assert_eq!(received.iter().map(Vec::len).sum::<usize>(), 60);
        let foreign = (4000..4060).filter(|port| bench.shard(server, *port) != usize::from(port % 3)).count();
        assert_eq!(bench.passed_on.count(), foreign as u64);
    }
}

/// An error is about a packet of the stack, so its flow goes the other way.
#[test]
fn an_icmp_error_goes_by_the_packet_that_it_quotes() {
    for server in [SERVER, SERVER_V6] {
        let mut bench = Bench::new(2);
        for shard in [0, 1] {
            let (from, to) = ends(server, bench.port(server, shard));
            let mut segment = [0; MAX_HEADERS_LEN];
            let headers = TcpHeaders::new(from, to).unwrap();
            let len = headers.write(TcpFields::default(), &[], &[], Checksum::Filled, &mut segment);
            let of_segment = packet_too_big(1280, &segment[..len]).unwrap();
            let quoted_at = of_segment.len() - len;
            let of_first_fragment = [&of_segment[..quoted_at], &fragments(server, to.port(), 0)[0]].concat();
            for error in [of_segment, of_first_fragment] {
                bench.send(0, &error);
                assert_eq!([0, 1].map(|shard| bench.receive(shard).len()), [1 - shard, shard], "{server}");
            }
        }
    }
}

/// Both protocols count their packets from the same number.
#[test]
fn fragments_of_two_protocols_are_of_two_packets() {
    let mut bench = Bench::new(2);
    for shard in [0, 1] {
        let of_udp = fragments(SERVER, bench.port(SERVER, shard), 1);
        let mut of_tcp = fragments(SERVER, bench.port(SERVER, 1 - shard), 1);
        for fragment in &mut of_tcp {
            fragment[9] = TCP;
        }
        for packet in [&of_udp[0], &of_tcp[0], &of_udp[1], &of_tcp[1]] {
            bench.send(0, packet);
        }
        let received = [0, 1].map(|shard| bench.receive(shard));
        assert_eq!((&received[shard][..], &received[1 - shard][..]), (&of_udp[..2], &of_tcp[..2]));
    }
}

#[test]
fn destination_options_behind_a_fragment_header_are_skipped() {
    let mut bench = Bench::new(2);
    for shard in [0, 1] {
        let (to, from) = ends(SERVER_V6, bench.port(SERVER_V6, shard));
        let mut packet = vec![0; 40];
        write_ip(&mut packet, from.ip(), to.ip(), 44, 32).unwrap();
        packet.extend([60, 0, 0, 1, 0, 0, 0, shard as u8]);
        packet.extend([UDP, 0, 1, 4, 0, 0, 0, 0]);
        packet.extend(&datagram(SERVER_V6, from.port(), &[0; 8])[40..]);
        bench.send(0, &packet);
        assert_eq!([0, 1].map(|shard| bench.receive(shard).len()), [1 - shard, shard]);
    }
}

#[test]
fn all_fragments_of_a_packet_reach_the_shard_of_its_ports() {
    for server in [SERVER, SERVER_V6] {
        let mut bench = Bench::new(2);
        for (number, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]].into_iter().enumerate() {
            for shard in [0, 1] {
                let pieces = fragments(server, bench.port(server, shard), (2 * number + shard) as u8);
                for (turn, index) in order.into_iter().enumerate() {
                    // They come over both links.
                    bench.send(turn % 2, &pieces[index]);
                    let other = bench.receive(1 - shard);
                    assert_eq!(other, [[0; 0]; 0]);
                }
                let mut received = bench.receive(shard);
                received.sort_by_key(|fragment| order.map(|index| *fragment == pieces[index]));
                let mut sent: Vec<_> = order.map(|index| pieces[index].clone()).into();
                sent.sort_by_key(|fragment| order.map(|index| *fragment == pieces[index]));
                assert_eq!(received, sent, "{server}, {order:?}");
            }
        }
    }
}

/// Else a client could fill the memory.
#[test]
fn fragments_without_a_first_one_are_bounded() {
    let mut bench = Bench::new(2);
    for number in 0..=u8::MAX {
        bench.send(0, &fragments(SERVER, 4000, number)[1]);
        assert!(bench.receive(0).is_empty() && bench.receive(1).is_empty());
    }
    let place = bench.links[0].place.as_ref().unwrap();
    assert_eq!(place.shared.router.waiting(), super::super::route::MAX_FRAGMENTED);
}

#[test]
fn packets_wait_in_the_device_while_an_inbox_is_full_and_none_is_lost() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut bench = Bench::new(2);
    let [own, foreign] = [0, 1].map(|shard| bench.port(SERVER, shard));
    let sent: Vec<_> = (0..3 * INBOX).map(|number| datagram(SERVER, foreign, &number.to_be_bytes())).collect();
    for packet in &sent {
        bench.send(0, packet);
    }
    bench.send(0, &datagram(SERVER, own, b"own"));
    assert!(!bench.links[0].has_passed_on());
    assert!(bench.receive(0).is_empty(), "the own packet waits behind them");
    assert!(bench.links[0].has_passed_on() && bench.links[0].has_passed_on(), "and while some wait");
    let wakes = Arc::new(Count(AtomicUsize::new(0)));
    let (mut received, mut received_own) = (Vec::new(), 0);
    while received.len() < sent.len() {
        let waits = !bench.links[0].place.as_ref().unwrap().outgoing.packets.is_empty();
        assert!(!bench.is_readable(0, &Arc::clone(&wakes).into()), "it waits for room, or for a packet");
        let before = wakes.0.load(Ordering::Relaxed);
        received.extend(bench.receive(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed) - before, usize::from(waits), "there is room for more");
        received_own += bench.receive(0).len();
    }
    assert_eq!(received_own, 1);
    assert!(bench.links[0].has_passed_on() && !bench.links[0].has_passed_on(), "told once");
    assert!(received == sent, "in their order");
}

/// A buffer that was passed on is exchanged for an empty one, so none is made for each packet.
#[test]
fn the_buffers_of_packets_that_are_passed_on_are_used_again() {
    let mut bench = Bench::new(2);
    let foreign = datagram(SERVER, bench.port(SERVER, 1), b"x");
    for _ in 0..1000 {
        bench.send(0, &foreign);
        assert!(bench.receive(0).is_empty());
        assert_eq!(bench.receive(1).len(), 1);
    }
    let place = bench.links[0].place.as_ref().unwrap();
    let spare = place.outgoing.spare.len() + place.shared.inboxes[1].lock().spare.len();
    assert!(spare <= 2, "{spare} buffers for one packet at a time");
}

/// Else fragments whose first one comes over another link than the others would fill the memory of one shard.
#[test]
fn empty_buffers_are_bounded() {
    let mut bench = Bench::new(2);
    for shard in [0, 1] {
        let port = bench.port(SERVER, shard);
        for number in 0..=u8::MAX {
            let pieces = fragments(SERVER, port, number);
            for (link, index) in [(0, 1), (0, 2), (1, 0)] {
                bench.send(link, &pieces[index]);
                bench.receive(link);
            }
            bench.receive(shard);
        }
    }
    let places = bench.links.iter().map(|link| link.place.as_ref().unwrap());
    let spares = places.map(|place| [place.outgoing.spare.len(), place.inbox().lock().spare.len()]);
    let spares: Vec<_> = spares.flatten().collect();
    assert!(spares.iter().all(|spare| *spare <= INBOX), "{spares:?}");
}

#[test]
fn a_full_inbox_leaves_turns_to_the_link() {
    for len in [1, 2, 32] {
        let mut bench = Bench::new(2);
        let [own, foreign] = [0, 1].map(|shard| datagram(SERVER, bench.port(SERVER, shard), b"x"));
        let passed_on = datagram(SERVER, bench.port(SERVER, 0), b"passed on");
        bench.send(0, &foreign);
        bench.send(0, &own);
        let mut received = Vec::new();
        for _ in 0..4 {
            for _ in 0..INBOX {
                bench.send(1, &passed_on);
            }
            while bench.links[0].place.as_ref().unwrap().inbox().lock().packets.len() < INBOX {
                batch(&mut bench, 1, 32);
            }
            received.extend(batch(&mut bench, 0, len));
        }
        assert!(received.contains(&own), "in batches of {len}");
        assert!(received.contains(&passed_on), "in batches of {len}");
    }
}

#[test]
fn a_shard_that_waits_is_woken_by_a_packet_of_its_own() {
    let mut bench = Bench::new(2);
    let foreign = datagram(SERVER, bench.port(SERVER, 1), b"x");
    assert!(bench.receive(1).is_empty() && !bench.is_readable(1, Waker::noop()));
    bench.send(0, &foreign);
    bench.receive(0);
    assert!(bench.is_readable(1, Waker::noop()));
}

/// Else a task of a stack behind a gate would keep packets from other shards.
#[test]
fn a_gate_tells_that_its_link_has_passed_packets_on() {
    let mut bench = Bench::new(2);
    let foreign = datagram(SERVER, bench.port(SERVER, 1), b"x");
    bench.send(0, &foreign);
    let (mut gated, _gate) = crate::gate(bench.links.remove(0), 1);
    gated.try_recv(&mut [PacketBuffer::new(1500)]).unwrap_err();
    assert!(gated.has_passed_on());
}
