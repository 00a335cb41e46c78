//! The test plays the peer, segment by segment.

use std::io::IoSlice;
use std::net::SocketAddr;

use platform::packet::checksum::sum;
use platform::packet::flags::{FIN, SYN};
use platform::packet::{TcpSegment, write_ip};
use platform::{MemoryLink, PacketBuffer, PacketMeta};

use super::connection::REST;
use super::*;
use crate::driven::{Accepted, Engine, FlowId};
use crate::fixture::segment;
use crate::recovery::is_before;
use crate::{StackCongestion, Workarounds};

const MSS_1460: [u8; 4] = [2, 4, 5, 180];

/// Flags and length of the payload.
type Seen = (u8, usize);

/// An engine, its peer's end, and the peer's next numbers.
struct Bench {
    engine: SmoltcpEngine<MemoryLink>,
    wire: MemoryLink,
    now: Instant,
    port: u16,
    sequence: u32,
    acknowledgement: u32,
}

impl Bench {
    fn new((link, wire): (MemoryLink, MemoryLink), workarounds: Workarounds, congestion: StackCongestion) -> Self {
        let config = StackConfig { window: 256 << 10, workarounds, congestion, ..StackConfig::default() };
        let engine = SmoltcpEngine::new(link, config);
        Self { engine, wire, now: Instant::now(), port: 1000, sequence: 99, acknowledgement: 0 }
    }

    fn put(&mut self, flags: u8, options: &[u8], payload: &[u8]) {
        let fields =
            TcpFields { sequence: self.sequence, acknowledgement: self.acknowledgement, flags, window: 60_000 };
        let packet = segment(([10, 0, 0, 1], self.port), ([10, 0, 0, 2], 80), fields, options, payload);
        self.wire.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
        self.sequence = self.sequence.wrapping_add(payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0));
    }

    fn turn(&mut self) -> Vec<Seen> {
        self.engine.ingress(self.now).unwrap();
        self.engine.egress(self.now).unwrap();
        let mut buffers: Vec<_> = (0..64).map(|_| PacketBuffer::new(self.wire.capabilities().max_packet_len)).collect();
        let mut seen = Vec::new();
        while let Ok(count) = self.wire.try_recv(&mut buffers) {
            for buffer in &buffers[..count] {
                let segment = TcpSegment::parse(buffer.packet()).unwrap();
                let len = segment.payload().len();
                seen.push((segment.flags(), len));
                self.acknowledgement =
                    segment.sequence().wrapping_add(len as u32 + u32::from(segment.flags() & (SYN | FIN) != 0));
            }
        }
        seen
    }

    fn open(&mut self) -> Accepted {
        self.put(SYN, &MSS_1460, &[]);
        assert_eq!(self.turn(), [(SYN | ACK, 0)]);
        self.put(ACK, &[], &[]);
        self.turn();
        self.engine.table_mut().accept().unwrap()
    }

    /// Lets time pass, and returns what is sent.
    fn pass(&mut self, time: Duration) -> Vec<Seen> {
        self.now += time;
        self.turn()
    }

    fn send(&mut self, accepted: Accepted, len: usize) -> Vec<Seen> {
        self.engine.send(accepted.flow, &vec![0; len]).unwrap();
        self.turn()
    }
}

/// A bench with all workarounds.
fn bench() -> Bench {
    Bench::new(MemoryLink::pair(1500, 256), Workarounds::ALL, StackCongestion::None)
}

#[test]
fn a_half_open_connection_has_no_socket() {
    let mut bench = bench();
    bench.put(SYN, &MSS_1460, &[]);
    assert_eq!(bench.turn(), [(SYN | ACK, 0)]);
    let flow = bench.engine.table.flows()[0];
    assert!(bench.engine.table[flow].open().is_none());
    assert_eq!(bench.pass(Duration::from_millis(1100)), [(SYN | ACK, 0)], "it is repeated");
    bench.put(ACK, &[], b"data");
    bench.turn();
    let accepted = bench.engine.table_mut().accept().unwrap();
    assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 9]).unwrap(), 4);
    assert_eq!(bench.send(accepted, 100), [(ACK | 8, 100)]);
}

#[test]
fn a_fin_after_the_peers_waits_for_the_bytes_before() {
    let mut bench = bench();
    let accepted = bench.open();
    bench.put(FIN | ACK, &[], &[]);
    bench.turn();
    bench.engine.send(accepted.flow, &[0; 100]).unwrap();
    bench.engine.finish(accepted.flow);
    assert!(bench.turn().iter().all(|(flags, _)| flags & FIN == 0));
    bench.put(ACK, &[], &[]);
    assert_eq!(bench.turn(), [(FIN | ACK, 0)]);
}

#[test]
fn each_workaround_is_off_when_it_is_off() {
    for (workarounds, is_on) in [(Workarounds::ALL, true), (Workarounds::NONE, false)] {
        let mut bench = Bench::new(MemoryLink::offloading_pair(1500, 256), workarounds, StackCongestion::None);
        bench.put(SYN, &MSS_1460, &[]);
        bench.turn();
        assert_eq!(bench.engine.spare.len(), usize::from(is_on));
        bench.put(ACK, &[], &[]);
        bench.turn();
        let accepted = bench.engine.table_mut().accept().unwrap();
        let seen = bench.send(accepted, 50_000);
        assert_eq!(seen.iter().any(|(_, len)| *len > 1460), is_on, "{seen:?}");
    }
}

#[test]
fn congestion_control_limits_the_first_flight() {
    for (congestion, is_limited) in
        [(StackCongestion::None, false), (StackCongestion::Reno, true), (StackCongestion::Cubic, true)]
    {
        let mut bench = Bench::new(MemoryLink::pair(1500, 256), Workarounds::ALL, congestion);
        let accepted = bench.open();
        let sent: usize = bench.send(accepted, 50_000).iter().map(|(_, len)| len).sum();
        assert_eq!(sent < 20_000, is_limited, "{congestion:?}: {sent} bytes");
    }
}

#[test]
fn a_segment_beyond_the_window_is_not_sent_again() {
    const ROUND_TRIP: Duration = Duration::from_millis(10);
    let mut bench = Bench::new(MemoryLink::offloading_pair(1500, 256), Workarounds::ALL, StackCongestion::None);
    let accepted = bench.open();
    bench.send(accepted, 100);
    bench.now += ROUND_TRIP;
    bench.put(ACK, &[], &[]);
    assert_eq!(bench.turn(), []);
    let first = bench.acknowledgement;
    assert!(!bench.send(accepted, 100_000).is_empty());
    assert_eq!(bench.pass(3 * ROUND_TRIP), []);
    // Less than the window, of 60,000 bytes, is left after the third.
    for (acknowledged, is_sent_again) in [(1460, false), (2 * 1460, false), (45_000, true)] {
        bench.acknowledgement = first.wrapping_add(acknowledged);
        bench.put(ACK, &[], &[]);
        bench.turn();
        assert_eq!(!bench.pass(3 * ROUND_TRIP).is_empty(), is_sent_again, "{acknowledged}");
        assert_eq!(!bench.pass(5 * ROUND_TRIP).is_empty(), is_sent_again, "{acknowledged}");
    }
}

#[test]
fn a_connection_at_rest_gives_the_memory_of_its_rings_back() {
    let mut probe = Socket::new(4096).unwrap();
    probe.rings.fill(1);
    probe.discard_rings();
    let can_discard = *probe.rings == [0; 2 * 4096];

    let mut bench = bench();
    let accepted = bench.open();
    for (time, is_blank) in [(REST / 2, false), (2 * REST, can_discard), (Duration::ZERO, false)] {
        let mut received = [0; 9];
        bench.put(ACK, &[], b"question");
        bench.turn();
        assert_eq!(bench.engine.recv(accepted.flow, &mut received).unwrap(), 8);
        assert_eq!(&received[..8], b"question");
        bench.engine.send(accepted.flow, b"answer").unwrap();
        assert_eq!(bench.turn().last(), Some(&(ACK | 8, 6)));
        bench.put(ACK, &[], &[]);
        bench.turn();
        bench.pass(time);
        let socket = &mut bench.engine.table[accepted.flow].open_mut().unwrap().socket;
        assert_eq!(socket.rings.iter().all(|byte| *byte == 0), is_blank, "after {time:?}");
    }
}

/// Bytes arrive behind a hole, something happens, the connection rests, and the hole is filled.
fn rest_with_a_hole(bench: &mut Bench, flow: FlowId, meanwhile: impl FnOnce(&mut Bench)) {
    let mut received = [0; 12];
    bench.put(ACK, &[], b"read");
    bench.turn();
    assert_eq!(bench.engine.recv(flow, &mut received).unwrap(), 4);
    bench.sequence += 5;
    bench.put(ACK, &[], b"behind");
    bench.turn();
    meanwhile(bench);
    bench.pass(2 * REST);
    bench.sequence -= 11;
    bench.put(ACK, &[], b"first");
    bench.turn();
    assert_eq!(bench.engine.recv(flow, &mut received).unwrap(), 11);
    assert_eq!(&received[..11], b"firstbehind");
}

#[test]
fn bytes_behind_a_hole_outlast_a_rest() {
    let mut bench = bench();
    let accepted = bench.open();
    rest_with_a_hole(&mut bench, accepted.flow, |_| {});
}

/// The second is half of all numbers beyond the hole, and a little less beyond the bytes behind it.
#[test]
fn a_forged_number_beyond_the_window_changes_no_rest() {
    for beyond in [1 << 20, (1 << 31) - 8] {
        let mut bench = bench();
        let accepted = bench.open();
        let forge = |bench: &mut Bench| {
            let sequence = bench.sequence;
            bench.sequence = sequence.wrapping_add(beyond);
            bench.put(ACK, &[], b"forged");
            bench.turn();
            bench.sequence = sequence;
        };
        // Behind a hole, the bytes stay.
        rest_with_a_hole(&mut bench, accepted.flow, forge);
        // Without a hole, the memory is given back.
        bench.sequence += 6;
        forge(&mut bench);
        let now = bench.now + 2 * REST;
        let connection = bench.engine.table[accepted.flow].open_mut().unwrap();
        assert!(connection.rests_until(now, now).is_some(), "{beyond}");
    }
}

/// It costs a system call for each, and received packets must not wait for many of these.
#[test]
fn an_egress_gives_the_memory_of_few_connections_back() {
    let mut bench = bench();
    for port in 1..=EGRESS_PACKETS as u16 + 1 {
        (bench.port, bench.sequence, bench.acknowledgement) = (port, 99, 0);
        let accepted = bench.open();
        bench.put(ACK, &[], b"x");
        bench.turn();
        bench.engine.recv(accepted.flow, &mut [0; 9]).unwrap();
        bench.turn();
    }
    bench.pass(2 * REST);
    assert!(bench.engine.table().has_due());
    bench.turn();
    assert!(!bench.engine.table().has_due());
}

/// smoltcp would join them, and answer with a RST.
#[test]
fn fragments_do_not_reset_their_connection() {
    let mut bench = bench();
    bench.open();
    let fields = TcpFields { sequence: bench.sequence, acknowledgement: bench.acknowledgement, flags: ACK, window: 9 };
    let [from, to] = [([10, 0, 0, 1], bench.port), ([10, 0, 0, 2], 80)].map(SocketAddr::from);
    let transport = segment(from, to, fields, &[], &[0; 108]).split_off(20);
    // More fragments follow; the last begins at byte 64, in units of 8.
    for (part, [high, low]) in [(&transport[..64], [0x20, 0]), (&transport[64..], [0, 8])] {
        let mut packet = vec![0; 20];
        write_ip(&mut packet, from.ip(), to.ip(), TCP, part.len());
        (packet[6], packet[7]) = (high, low);
        packet[10..12].fill(0);
        let checksum = !sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(part);
        bench.wire.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    }
    assert_eq!(bench.turn(), []);
}

/// The clock of the numbers stands still, and the connection before has sent bytes.
#[test]
fn a_reopened_connection_has_numbers_beyond_the_old_ones() {
    let mut bench = bench();
    let accepted = bench.open();
    bench.send(accepted, 10_000);
    bench.put(ACK, &[], &[]);
    bench.engine.finish(accepted.flow);
    assert_eq!(bench.turn(), [(ACK | FIN, 0)]);
    let old_end = bench.acknowledgement;
    bench.put(ACK | FIN, &[], &[]);
    bench.turn();
    bench.sequence = bench.sequence.wrapping_add(100_000);
    bench.put(SYN, &MSS_1460, &[]);
    assert_eq!(bench.turn(), [(SYN | ACK, 0)]);
    assert!(is_before(old_end, bench.acknowledgement), "{old_end} {}", bench.acknowledgement);
}
