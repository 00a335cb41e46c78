//! What the contract suite does not see: which segments go out, and when. The peer is written by
//! hand, segment by segment.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::{Checksum, MemoryLink, PacketMeta};

use super::*;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

/// A `MemoryLink` that either takes partial checksums and delivers what has to be verified, or neither.
struct Dressed(MemoryLink, bool);

impl Link for Dressed {
    fn capabilities(&self) -> platform::Capabilities {
        let mut capabilities = self.0.capabilities();
        (capabilities.checksum.rx, capabilities.checksum.tx) = (!self.1, self.1);
        capabilities
    }
    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        self.0.try_recv(buffers)
    }
    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.try_send(meta, slices)
    }
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx)
    }
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }
}

/// A TCP segment over IPv4 from 10.0.0.1, as sent or received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Segment {
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    len: usize,
}

impl Segment {
    fn packet(&self) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let mut packet = vec![0x45, 0];
        packet.extend_from_slice(&((20 + header_len + self.len) as u16).to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let checksum = !ones(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend_from_slice(&self.ports.0.to_be_bytes());
        packet.extend_from_slice(&self.ports.1.to_be_bytes());
        packet.extend_from_slice(&self.seq.to_be_bytes());
        packet.extend_from_slice(&self.ack.to_be_bytes());
        packet.extend_from_slice(&[(header_len as u8 / 4) << 4, self.flags]);
        packet.extend_from_slice(&self.window.to_be_bytes());
        packet.extend_from_slice(&[0; 4]);
        packet.extend_from_slice(&self.options);
        packet.resize(packet.len() + self.len, 7);
        packet::seed_checksum(&mut packet);
        let checksum = !ones(&packet[20..]);
        packet[36..38].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    fn parse(packet: &[u8]) -> Self {
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let double = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let header_len = usize::from(packet[32] >> 4) * 4;
        Self {
            ports: (word(20), word(22)),
            seq: double(24),
            ack: double(28),
            flags: packet[33],
            window: word(34),
            options: packet[40..20 + header_len].to_vec(),
            len: packet.len() - 20 - header_len,
        }
    }
}

fn ones(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| (*b).into())).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// An engine, its peer's end, and a clock.
struct Bench {
    engine: LwipEngine<Dressed>,
    wire: MemoryLink,
    now: Instant,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(partial: bool) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (link, wire) = MemoryLink::pair(1500, 256);
        let config = StackConfig { window: 256 << 10, user_timeout: Duration::from_secs(4), backlog: 4 };
        let engine = LwipEngine::start(Dressed(link, partial), config, 1500, 3).unwrap();
        Self { engine, wire, now: Instant::now(), _turn: turn }
    }

    fn put(&mut self, segment: &Segment) {
        self.wire.try_send(PacketMeta::default(), &[IoSlice::new(&segment.packet())]).unwrap();
    }

    fn take_packets(&mut self) -> Vec<(PacketMeta, Vec<u8>)> {
        let mut buffers: Vec<_> = (0..256).map(|_| PacketBuffer::new(1500)).collect();
        let count = self.wire.try_recv(&mut buffers).unwrap_or(0);
        buffers[..count].iter().map(|buffer| (buffer.meta(), buffer.packet().to_vec())).collect()
    }

    fn take(&mut self) -> Vec<Segment> {
        self.take_packets().iter().map(|(_, packet)| Segment::parse(packet)).collect()
    }

    fn turn(&mut self) -> Vec<Segment> {
        self.engine.ingress(self.now).unwrap();
        self.engine.egress(self.now).unwrap();
        self.take()
    }

    /// Time passes, in steps as the driver makes them.
    fn pass(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.now + time;
        let mut segments = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(50);
            segments.append(&mut self.turn());
        }
        segments
    }

    /// Opens a connection; answers what the peer sends next.
    fn open(&mut self, options: &[u8]) -> (Accepted, Segment) {
        let syn = Segment {
            ports: (1000, 80),
            seq: 99,
            flags: SYN,
            window: 60_000,
            options: options.into(),
            ..Default::default()
        };
        self.put(&syn);
        let syn_ack = self.turn().pop().unwrap();
        assert_eq!((syn_ack.flags, syn_ack.ack), (SYN | ACK, 100));
        let next = Segment { seq: 100, ack: syn_ack.seq.wrapping_add(1), flags: ACK, options: Vec::new(), ..syn };
        self.put(&next);
        self.turn();
        (self.engine.accept().unwrap(), next)
    }
}

const MSS_1460: [u8; 4] = [2, 4, 5, 180];

#[test]
fn one_engine_runs_at_a_time_and_the_next_starts_on_any_thread() {
    for _ in 0..3 {
        let mut bench = Bench::new(false);
        bench.open(&MSS_1460);
        let (link, _wire) = MemoryLink::pair(1500, 4);
        let second = Lwip::start(link, &StackConfig::default());
        assert!(matches!(second, Err(StartError::AlreadyRunning(StackKind::Lwip))));
        let Bench { engine, mut wire, _turn, .. } = bench;
        std::thread::spawn(move || drop(engine)).join().unwrap();
        let mut buffers = [PacketBuffer::new(1500)];
        wire.try_recv(&mut buffers).unwrap();
        assert_eq!(Segment::parse(buffers[0].packet()).flags & RST, RST, "the peer is told");
    }
}

#[test]
fn a_batch_in_order_is_acknowledged_once_and_disorder_at_once() {
    let mut bench = Bench::new(false);
    let (_, mut next) = bench.open(&MSS_1460);
    next.len = 1000;
    for _ in 0..10 {
        bench.put(&next);
        next.seq += 1000;
    }
    let acks = bench.turn();
    assert_eq!(acks.iter().map(|ack| (ack.ack, ack.len)).collect::<Vec<_>>(), [(next.seq, 0)]);
    let hole = next.seq;
    for _ in 0..3 {
        next.seq += 1000;
        bench.put(&next);
    }
    bench.engine.ingress(bench.now).unwrap();
    assert_eq!(bench.take().iter().map(|ack| ack.ack).collect::<Vec<_>>(), [hole; 3]);
}

#[test]
fn the_mss_comes_from_the_first_syn_alone() {
    let mut bench = Bench::new(false);
    let (accepted, mut next) = bench.open(&[2, 4, 0, 1]);
    next.options = vec![2, 4, 0xff, 0xff];
    bench.put(&next);
    bench.turn();
    assert_eq!(bench.engine.send(accepted.flow, &[1; 480]).unwrap(), 480);
    let lens: Vec<_> = bench.turn().iter().map(|segment| segment.len).collect();
    assert_eq!(lens[0], 48, "an MSS of 1 is taken for 48, and an option in an open connection for none");
}

#[test]
fn an_offloaded_checksum_is_the_pseudo_header_s() {
    for offloaded in [false, true] {
        let mut bench = Bench::new(offloaded);
        let (accepted, _) = bench.open(&MSS_1460);
        bench.engine.send(accepted.flow, &[3; 301]).unwrap();
        bench.engine.egress(bench.now).unwrap();
        let (meta, packet) = bench.take_packets().pop().unwrap();
        assert_eq!(ones(&packet[..20]), 0xffff, "the IP header's is always done");
        let mut seeded = packet.clone();
        assert!(packet::seed_checksum(&mut seeded));
        if offloaded {
            assert_eq!(meta.checksum, Checksum::Partial);
            assert_eq!(seeded, packet);
        } else {
            assert_eq!(meta.checksum, Checksum::Complete);
            seeded[36..38].fill(0);
            let pseudo = ones(&[&packet[12..20], &[0, 6], &((packet.len() - 20) as u16).to_be_bytes()[..]].concat());
            let rest = ones(&seeded[20..]);
            let sum = u32::from(pseudo) + u32::from(rest);
            let sum = (sum & 0xffff) + (sum >> 16);
            assert_eq!(!(sum as u16), u16::from_be_bytes([packet[36], packet[37]]));
        }
    }
}

#[test]
fn a_wrong_checksum_is_not_taken_where_it_is_verified() {
    // With `true` the link leaves both to us: it takes partial checksums and verifies none.
    let mut bench = Bench::new(true);
    let (accepted, mut next) = bench.open(&MSS_1460);
    next.len = 100;
    let mut packet = next.packet();
    *packet.last_mut().unwrap() ^= 1;
    bench.wire.try_send(PacketMeta::default(), &[IoSlice::new(&packet)]).unwrap();
    bench.turn();
    assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 200]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let partial = PacketMeta { checksum: Checksum::Partial, gso_size: None };
    bench.wire.try_send(partial, &[IoSlice::new(&packet)]).unwrap();
    bench.turn();
    assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 200]).unwrap(), 100, "a partial one means nothing");
}

#[test]
fn unread_bytes_are_told_by_a_rst_and_their_lack_by_a_fin() {
    let mut bench = Bench::new(false);
    let (accepted, mut next) = bench.open(&MSS_1460);
    next.len = 100;
    bench.put(&next);
    bench.turn();
    bench.engine.release(accepted.flow);
    assert_eq!(bench.turn().last().unwrap().flags & RST, RST);
    assert!(bench.engine.is_idle());
    let (accepted, _) = bench.open(&MSS_1460);
    bench.engine.release(accepted.flow);
    assert_eq!(bench.turn().last().unwrap().flags, FIN | ACK);
}

#[test]
fn a_syn_reopens_a_connection_in_time_wait() {
    let mut bench = Bench::new(false);
    let (accepted, mut next) = bench.open(&MSS_1460);
    bench.engine.finish(accepted.flow);
    bench.turn();
    next.ack = next.ack.wrapping_add(1);
    next.flags = FIN | ACK;
    bench.put(&next);
    bench.turn();
    bench.engine.release(accepted.flow);
    assert!(!bench.engine.is_idle(), "it waits");
    let syn = Segment { seq: 5000, flags: SYN, ack: 0, ..next };
    bench.put(&syn);
    let answer = bench.turn().pop().unwrap();
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, 5001));
}

#[test]
fn an_idle_peer_is_asked_and_a_silent_one_given_up() {
    let mut bench = Bench::new(false);
    let (accepted, next) = bench.open(&MSS_1460);
    let probes = bench.pass(Duration::from_secs(6));
    assert!(probes.iter().all(|probe| probe.seq.wrapping_add(1) == next.ack && probe.len == 0), "{probes:?}");
    assert!(!probes.is_empty());
    bench.put(&next);
    bench.pass(Duration::from_secs(7));
    assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let last = bench.pass(Duration::from_secs(3)).pop().unwrap();
    assert_eq!(last.flags & RST, RST);
    assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 1]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    bench.engine.release(accepted.flow);
    assert!(bench.engine.is_idle() && bench.engine.core().flows.is_empty());
}

#[test]
fn a_window_of_tiny_segments_is_joined() {
    let mut bench = Bench::new(false);
    let (accepted, mut next) = bench.open(&MSS_1460);
    next.len = 1;
    for _ in 0..1000 {
        bench.put(&next);
        next.seq += 1;
        bench.turn();
    }
    let mut buffer = [0; 2000];
    assert_eq!(bench.engine.recv(accepted.flow, &mut buffer).unwrap(), 1000);
    assert!(buffer[..1000].iter().all(|byte| *byte == 7));
}

#[test]
fn the_backlog_counts_half_open_connections() {
    let mut bench = Bench::new(false);
    for port in 1..=10 {
        let syn = Segment { ports: (1000 + port, 80), seq: 1, flags: SYN, window: 1000, ..Default::default() };
        bench.put(&syn);
    }
    assert_eq!(bench.turn().len(), 4);
    bench.pass(Duration::from_secs(30));
    assert!(bench.engine.is_idle() && bench.engine.core().flows.is_empty(), "lwIP gives a handshake 20 seconds");
}

#[test]
fn the_scale_is_the_smallest_that_fits() {
    assert_eq!(scaled(4096), (4096, 0));
    assert_eq!(scaled(65_535), (65_535, 0));
    assert_eq!(scaled(65_536), (65_536, 1));
    assert_eq!(scaled(4 << 20), (4 << 20, 7));
    assert_eq!(scaled(1 << 30), (65_535 << 14, 14));
}
