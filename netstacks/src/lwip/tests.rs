//! Checks what the contract suite cannot see: which segments the stack sends, and when. The test plays the peer,
//! segment by segment.

mod assertions;
mod fault;
mod hostile;
mod offload;
mod reorder;
mod workarounds;

use std::io::IoSlice;
use std::num::NonZeroU16;
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::packet::{TcpFields, TcpLayout, TcpSegment, write_partial_checksum};
use platform::{Checksum, MemoryLink, PacketMeta};

use super::*;
use crate::Workarounds;
use crate::driven::{Accepted, Stage};
use crate::fixture::segment;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FIN: u8 = 0x01;

/// A `MemoryLink`. With the flag, sending a packet fails an assertion of lwIP.
struct Dressed(MemoryLink, bool);

impl Link for Dressed {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        self.0.try_recv(buffers)
    }
    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        if self.1 {
            fault::fail();
        }
        self.0.try_send(meta, slices)
    }
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx)
    }
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }
}

/// A TCP segment from 10.0.0.1 or `fd00::1`, as sent or received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Segment {
    v6: bool,
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    len: usize,
}

/// The byte at a position of a stream, in either direction.
fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

/// `len` bytes of a stream from a position on.
fn bytes(position: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte_at(position.wrapping_add(at))).collect()
}

impl Segment {
    /// The packet. Its payload is the bytes of the stream from the sequence number on.
    fn packet(&self) -> Vec<u8> {
        let hosts = if self.v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [from, to] = hosts.map(|host| host.parse::<IpAddr>().unwrap());
        let fields =
            TcpFields { sequence: self.seq, acknowledgement: self.ack, flags: self.flags, window: self.window };
        let payload = bytes(self.seq as usize, self.len);
        segment((from, self.ports.0), (to, self.ports.1), fields, &self.options, &payload)
    }

    fn parse(packet: &[u8]) -> Self {
        let segment = TcpSegment::parse(packet).unwrap();
        Self {
            v6: segment.layout.ipv6,
            ports: (segment.source_port(), segment.destination_port()),
            seq: segment.sequence(),
            ack: segment.acknowledgement(),
            flags: segment.flags(),
            window: segment.window(),
            options: segment.options().as_bytes().to_vec(),
            len: packet.len() - segment.layout.payload_at,
        }
    }
}

fn seed_checksum(packet: &mut [u8]) {
    let layout = TcpLayout::parse(packet).unwrap();
    let len = packet.len();
    write_partial_checksum(packet, &layout, len);
}

/// An engine, its peer's end, and a clock.
struct Bench {
    engine: LwipEngine<Dressed>,
    wire: MemoryLink,
    buffers: Vec<PacketBuffer>,
    now: Instant,
    /// The reply to the last SYN of `open`.
    syn_ack: Segment,
    _turn: MutexGuard<'static, ()>,
}

/// A process has one lwIP, so a test takes this lock before it starts it.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bench {
    fn new() -> Self {
        Self::over(MemoryLink::pair(1500, 256), 256 << 10)
    }

    fn over(pair: (MemoryLink, MemoryLink), window: usize) -> Self {
        Self::with(pair, window, Workarounds::ALL)
    }

    fn with((link, wire): (MemoryLink, MemoryLink), window: usize, workarounds: Workarounds) -> Self {
        let turn = turn();
        let (window, scale) = scaled(window);
        let user_timeout = Duration::from_secs(4);
        let config = StackConfig { window, user_timeout, backlog: 4, workarounds, ..StackConfig::default() };
        let buffers = (0..64).map(|_| PacketBuffer::new(link.capabilities().max_packet_len)).collect();
        let link = Dressed(link, false);
        let segments = Segments::over(
            &Offload::of(&link.capabilities()).cutting_if(workarounds.has(Workaround::LargeSegments)),
            config.window,
        );
        let engine = LwipEngine::start(link, config, segments, scale).unwrap();
        Self { engine, wire, buffers, now: Instant::now(), syn_ack: Segment::default(), _turn: turn }
    }

    fn put(&mut self, segment: &Segment) {
        let packet = segment.packet();
        let meta = if packet.len() > 1500 {
            PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(1400) }
        } else {
            PacketMeta::default()
        };
        self.wire.try_send(meta, &[IoSlice::new(&packet)]).unwrap();
    }

    fn take_packets(&mut self) -> Vec<(PacketMeta, Vec<u8>)> {
        let mut packets = Vec::new();
        while let Ok(count) = self.wire.try_recv(&mut self.buffers) {
            packets.extend(self.buffers[..count].iter().map(|buffer| (buffer.meta(), buffer.packet().to_vec())));
        }
        packets
    }

    fn take(&mut self) -> Vec<Segment> {
        self.take_packets().iter().map(|(_, packet)| Segment::parse(packet)).collect()
    }

    fn turn(&mut self) -> Vec<Segment> {
        self.engine.ingress(self.now).unwrap();
        self.engine.egress(self.now).unwrap();
        self.take()
    }

    /// Lets time pass, in steps of TCP's timer.
    fn pass(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.now + time;
        let mut segments = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(50);
            segments.append(&mut self.turn());
        }
        segments
    }

    /// Opens a connection. Returns it, and the next segment of the peer.
    fn open(&mut self, options: &[u8]) -> (Accepted, Segment) {
        self.open_with(false, 1000, options)
    }

    fn open_with(&mut self, v6: bool, port: u16, options: &[u8]) -> (Accepted, Segment) {
        let syn = Segment {
            v6,
            ports: (port, 80),
            seq: 99,
            flags: SYN,
            window: 60_000,
            options: options.into(),
            ..Default::default()
        };
        self.put(&syn);
        self.syn_ack = self.turn().pop().unwrap();
        assert_eq!((self.syn_ack.flags, self.syn_ack.ack), (SYN | ACK, 100));
        let ack = self.syn_ack.seq.wrapping_add(1);
        let next = Segment { seq: 100, ack, flags: ACK, options: Vec::new(), ..syn };
        self.put(&next);
        self.turn();
        (self.engine.table_mut().accept().unwrap(), next)
    }
}

const MSS_1460: [u8; 4] = [2, 4, 5, 180];

#[test]
fn one_engine_runs_at_a_time_and_the_next_starts_on_any_thread() {
    for _ in 0..3 {
        let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
    let (accepted, mut next) = bench.open(&[2, 4, 0, 1]);
    next.options = vec![2, 4, 0xff, 0xff];
    bench.put(&next);
    bench.turn();
    assert_eq!(bench.engine.send(accepted.flow, &[1; 480]).unwrap(), 480);
    let lens: Vec<_> = bench.turn().iter().map(|segment| segment.len).collect();
    assert_eq!(lens[0], 48, "an MSS of 1 counts as 48, and an MSS option on an open connection is ignored");
}

#[test]
fn a_close_with_unread_bytes_sends_a_rst_after_a_shutdown_too() {
    let mut bench = Bench::new();
    let (accepted, mut next) = bench.open(&MSS_1460);
    bench.engine.finish(accepted.flow);
    assert_eq!(bench.turn().last().unwrap().flags, FIN | ACK);
    next.len = 100;
    bench.put(&next);
    bench.turn();
    bench.engine.release(accepted.flow);
    assert_eq!(bench.turn().last().unwrap().flags & RST, RST);
    assert!(bench.engine.table().is_empty());
}

#[test]
fn a_timer_runs_once_after_many_connections_with_the_same_number() {
    let mut bench = Bench::new();
    for _ in 0..50 {
        let (accepted, mut next) = bench.open(&MSS_1460);
        next.flags = RST;
        bench.put(&next);
        bench.turn();
        bench.engine.release(accepted.flow);
    }
    let (accepted, _) = bench.open(&MSS_1460);
    assert_eq!(bench.engine.send(accepted.flow, &[0; 100]).unwrap(), 100);
    assert_eq!(bench.turn().len(), 1);
    assert_eq!(bench.pass(Duration::from_millis(600)), [], "no retransmission so soon");
}

#[test]
fn an_idle_peer_is_probed_and_a_silent_one_times_out() {
    let mut bench = Bench::new();
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
    assert!(bench.engine.table().is_empty());
}

#[test]
fn the_scale_is_the_smallest_that_fits() {
    assert_eq!(scaled(4096), (4096, 0));
    assert_eq!(scaled(65_535), (65_535, 0));
    assert_eq!(scaled(65_536), (65_536, 1));
    assert_eq!(scaled(4 << 20), (4 << 20, 7));
    assert_eq!(scaled(1 << 30), (65_535 << 14, 14));
}

#[test]
fn a_queue_of_small_segments_is_full_before_lwip_refuses_one() {
    let mut bench = Bench::over(MemoryLink::pair(1500, 1 << 16), 4 << 20);
    // An MSS of 48, and a window of 60,000 shifted by 7.
    let (accepted, mut next) = bench.open(&[2, 4, 0, 48, 3, 3, 7, 0]);
    let (mut queued, mut sent, mut acknowledged) = (0, 0, 0);
    for round in 0..4000 {
        while let Ok(len) = bench.engine.send(accepted.flow, &bytes(queued, 64 << 10)) {
            queued += len;
        }
        let segments = bench.turn();
        assert!(segments.iter().all(|segment| segment.flags & RST == 0), "round {round}");
        // Once the congestion window has grown, nothing is acknowledged until the queue is full.
        let grown = sent > 2 << 20;
        for segment in &segments {
            sent += segment.len;
            if !grown {
                acknowledged = sent;
                next.ack = bench.syn_ack.seq.wrapping_add(1 + sent as u32);
                bench.put(&next);
            }
        }
        if grown && segments.is_empty() {
            let pbufs = 2 * (queued - acknowledged).div_ceil(48);
            assert!((60_000..65_536).contains(&pbufs), "{pbufs} after {round} rounds");
            next.ack = bench.syn_ack.seq.wrapping_add(1 + sent as u32);
            bench.put(&next);
            bench.turn();
            assert_eq!(bench.engine.send(accepted.flow, &bytes(queued, 1000)).unwrap(), 960);
            return;
        }
    }
    panic!("the queue is not full after {queued} bytes");
}

#[test]
fn the_bytes_of_a_source_end_with_a_push() {
    const PSH: u8 = 0x08;
    const PIECE: usize = u16::MAX as usize;
    for given in [&[1000][..], &[PIECE], &[PIECE, 1], &[PIECE, PIECE]] {
        let mut bench = Bench::new();
        let (accepted, mut next) = bench.open(&MSS_1460);
        let (mut calls, mut queued) = (given.iter(), 0);
        let filled = bench.engine.fill(accepted.flow, 200_000, &mut |room| {
            let Some(len) = calls.next() else { return Err(io::ErrorKind::WouldBlock.into()) };
            room[..*len].copy_from_slice(&bytes(queued, *len));
            queued += len;
            Ok(*len)
        });
        assert_eq!(filled.unwrap(), given.iter().sum::<usize>());
        let mut pushes = Vec::new();
        let mut sent = 0;
        while sent < queued {
            let segments = bench.turn();
            assert!(!segments.is_empty(), "{given:?}: only {sent} bytes were sent");
            for segment in segments {
                sent += segment.len;
                pushes.extend((segment.flags & PSH != 0).then_some(sent));
            }
            next.ack = bench.syn_ack.seq.wrapping_add(1 + sent as u32);
            bench.put(&next);
        }
        assert_eq!(pushes, [queued], "{given:?}");
    }
}

/// The older of two duplicates has the smaller window, and may come last.
#[test]
fn a_duplicate_does_not_reduce_the_window() {
    let mut bench = Bench::new();
    let (accepted, mut next) = bench.open(&MSS_1460);
    let send = |bench: &mut Bench| {
        bench.engine.send(accepted.flow, &[0; 1460]).unwrap();
        bench.turn().iter().map(|segment| segment.len).collect::<Vec<_>>()
    };
    assert_eq!([send(&mut bench), send(&mut bench)], [[1460], [1460]]);
    let hole_end = next.ack.wrapping_add(1460);
    next.options = [&[1, 1, 5, 10], &hole_end.to_be_bytes()[..], &hole_end.wrapping_add(1460).to_be_bytes()].concat();
    for window in [61_000, 0] {
        next.window = window;
        bench.put(&next);
    }
    assert!(bench.turn().is_empty());
    assert_eq!(send(&mut bench), [1460]);
}
