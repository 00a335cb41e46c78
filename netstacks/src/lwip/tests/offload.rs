//! Over a link that offloads: super-packets in both directions.

use super::*;

/// Super-packets that one ingress takes.
const BATCH: usize = 4;

/// MSS 1460 or 1440, and a shift count of 7.
const WIDE_V4: [u8; 8] = [2, 4, 5, 180, 3, 3, 7, 1];
const WIDE_V6: [u8; 8] = [2, 4, 5, 160, 3, 3, 7, 1];

/// The part of the stream that the peer has received.
#[derive(Default)]
struct Inbox {
    start: u32,
    bytes: Vec<u8>,
    fin: bool,
}

impl Inbox {
    /// Takes packets in order, and checks each.
    fn take(&mut self, packets: &[(PacketMeta, Vec<u8>)]) {
        for (meta, packet) in packets {
            let segment = Segment::parse(packet);
            let position = segment.seq.wrapping_sub(self.start) as usize;
            let payload = &packet[packet.len() - segment.len..];
            assert_eq!(payload, bytes(position, segment.len), "at {position}");
            assert_eq!(meta.gso_size.is_some(), packet.len() > 1500);
            if segment.len == 0 && segment.flags & FIN == 0 || position > self.bytes.len() {
                continue;
            }
            assert!(!self.fin || position < self.bytes.len() || segment.len == 0, "data behind the FIN");
            let new = self.bytes.len() - position;
            self.bytes.extend_from_slice(payload.get(new..).unwrap_or_default());
            self.fin |= segment.flags & FIN != 0;
        }
    }

    /// Acknowledges all of it.
    fn ack(&self, next: &mut Segment) {
        next.ack = self.start.wrapping_add(self.bytes.len() as u32 + u32::from(self.fin));
    }
}

fn wide(bench: &mut Bench) -> (Accepted, Segment, Inbox) {
    let (accepted, next) = bench.open(&WIDE_V4);
    let inbox = Inbox { start: next.ack, ..Inbox::default() };
    (accepted, next, inbox)
}

impl Bench {
    fn offloading() -> Self {
        Self::over(MemoryLink::offloading_pair(1500, 256), 4 << 20)
    }

    fn turn_packets(&mut self) -> Vec<(PacketMeta, Vec<u8>)> {
        self.engine.ingress(self.now).unwrap();
        self.engine.egress(self.now).unwrap();
        self.take_packets()
    }
}

#[test]
fn a_super_packet_leaves_whole_and_the_syn_ack_has_the_real_mss() {
    for (v6, options, mss) in [(false, WIDE_V4, 1460u16), (true, WIDE_V6, 1440)] {
        let mut bench = Bench::offloading();
        let (accepted, next) = bench.open_with(v6, 1000, &options);
        assert_eq!(bench.syn_ack.options[..4], [&[2, 4], &mss.to_be_bytes()[..]].concat());
        let headers = if v6 { 60 } else { 40 };
        let whole = (65_535 - headers) / usize::from(mss) * usize::from(mss);
        let sent = bench.engine.send(accepted.flow, &bytes(0, 2 * whole + 2000)).unwrap();
        assert_eq!(sent, 2 * whole, "the rest would be a small packet");
        let packets = bench.turn_packets();
        assert_eq!(packets.iter().map(|(_, packet)| packet.len()).collect::<Vec<_>>(), [headers + whole; 2]);
        for (meta, packet) in &packets {
            assert_eq!(*meta, PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(mss) });
            let mut seeded = packet.clone();
            seed_checksum(&mut seeded);
            assert_eq!(seeded, *packet);
        }
        let mut inbox = Inbox { start: next.ack, ..Inbox::default() };
        inbox.take(&packets);
        assert_eq!(inbox.bytes.len(), sent);
    }
}

#[test]
fn a_link_that_cuts_one_ip_version_gets_super_packets_of_that_alone() {
    let mut capabilities = Capabilities::offloading(1500);
    assert_eq!(Segments::over(&Offload::of(&capabilities), 4 << 20), Segments { v4: 44 * 1460, v6: 45 * 1440 });
    assert_eq!(
        Segments::over(&Offload::of(&capabilities), 64 << 10),
        Segments { v4: 11 * 1460, v6: 11 * 1440 },
        "a quarter"
    );
    assert_eq!(Segments::over(&Offload::of(&capabilities), 4096), Segments { v4: 1460, v6: 1440 });
    capabilities.segmentation.tcpv6 = false;
    assert_eq!(Segments::over(&Offload::of(&capabilities), 4 << 20), Segments { v4: 44 * 1460, v6: 1440 });
    capabilities.checksum.tx = false;
    assert_eq!(Segments::over(&Offload::of(&capabilities), 4 << 20), Segments { v4: 1460, v6: 1440 });
    capabilities = Capabilities::offloading(65_535);
    assert_eq!(Segments::over(&Offload::of(&capabilities), 4 << 20), Segments { v4: 65_495, v6: 65_475 });
}

#[test]
fn lost_super_packets_are_retransmitted_without_duplicates() {
    let mut bench = Bench::offloading();
    let (accepted, mut next, mut inbox) = wide(&mut bench);
    assert_eq!(bench.engine.send(accepted.flow, &bytes(0, 2 * 64_240)).unwrap(), 2 * 64_240);
    let lost = bench.turn_packets();
    bench.pass(Duration::ZERO);
    let mut again = Vec::new();
    for _ in 0..60 {
        bench.now += Duration::from_millis(50);
        again.append(&mut bench.turn_packets());
        if !again.is_empty() {
            break;
        }
    }
    assert_eq!(again[0].0, lost[0].0);
    assert_eq!(again[0].1[20..], lost[0].1[20..], "only the IP header's identification differs");
    inbox.take(&again);
    // The first probe retransmitted the first one. Another probe retransmits the second.
    for _ in 0..60 {
        inbox.ack(&mut next);
        bench.put(&next);
        inbox.take(&bench.turn_packets());
        bench.now += Duration::from_millis(50);
    }
    assert_eq!(inbox.bytes.len(), 2 * 64_240);
}

/// lwIP alone would put both into the segment that waits for retransmission.
#[test]
fn new_bytes_and_a_fin_come_behind_all_that_was_sent() {
    for v6 in [false, true] {
        let mut bench = Bench::offloading();
        let (accepted, mut next) = bench.open_with(v6, 1000, if v6 { &WIDE_V6 } else { &WIDE_V4 });
        let mut inbox = Inbox { start: next.ack, ..Inbox::default() };
        let mut packets = Vec::new();
        for position in [0, 10, 20, 30] {
            bench.engine.send(accepted.flow, &bytes(position, 10)).unwrap();
            packets.append(&mut bench.turn_packets());
        }
        for _ in 0..3 {
            bench.put(&next);
        }
        bench.engine.ingress(bench.now).unwrap();
        bench.engine.send(accepted.flow, &bytes(40, 10)).unwrap();
        bench.engine.finish(accepted.flow);
        bench.engine.egress(bench.now).unwrap();
        let rest = bench.take_packets();
        assert_eq!(Segment::parse(&rest[0].1).len, 10, "the first segment, unchanged");
        inbox.take(&rest[..1]);
        inbox.take(&packets[1..]);
        inbox.take(&rest[1..]);
        inbox.ack(&mut next);
        assert!((inbox.bytes.len(), inbox.fin) == (50, true));
    }
}

/// lwIP alone would put the others before it, and then find its lists empty.
#[test]
fn a_timeout_keeps_the_order_where_a_segment_waits_to_go_again() {
    let mut bench = Bench::over(MemoryLink::offloading_pair(1500, 4), 4 << 20);
    let (accepted, mut next, mut inbox) = wide(&mut bench);
    for position in [0, 10, 20, 30] {
        bench.engine.send(accepted.flow, &bytes(position, 10)).unwrap();
        bench.engine.egress(bench.now).unwrap();
    }
    // The link is full now.
    for _ in 0..3 {
        bench.put(&next);
    }
    for _ in 0..60 {
        bench.now += Duration::from_millis(50);
        bench.engine.ingress(bench.now).unwrap();
        bench.engine.egress(bench.now).unwrap();
    }
    bench.engine.send(accepted.flow, &bytes(40, 10)).unwrap();
    let mut packets = bench.take_packets();
    assert_eq!(packets.len(), 4);
    packets.truncate(1);
    for _ in 0..20 {
        inbox.take(&packets);
        inbox.ack(&mut next);
        bench.put(&next);
        bench.now += Duration::from_millis(50);
        packets = bench.turn_packets();
    }
    assert_eq!(inbox.bytes.len(), 50);
}

#[test]
fn a_window_below_a_super_segment_lets_part_of_it_go() {
    let mut bench = Bench::offloading();
    let (accepted, mut next, mut inbox) = wide(&mut bench);
    // 80 << 7 bytes are seven segments.
    next.window = 80;
    next.seq += 1;
    bench.put(&Segment { seq: next.seq - 1, len: 1, ..next.clone() });
    bench.put(&next);
    bench.turn();
    assert_eq!(bench.engine.send(accepted.flow, &bytes(0, 3 * 64_240)).unwrap(), 3 * 64_240);
    bench.engine.finish(accepted.flow);
    let mut windows = [80, 80, 24, 0, 0, 12, 11, 1, 0, 600].into_iter().cycle();
    let (packets, started) = (bench.turn_packets(), bench.now);
    assert_eq!(packets.iter().map(|(_, packet)| packet.len() - 40).collect::<Vec<_>>(), [7 * 1460]);
    inbox.take(&packets);
    while !inbox.fin {
        assert!(bench.now - started < Duration::from_secs(100), "{} bytes in 100 s", inbox.bytes.len());
        inbox.ack(&mut next);
        next.window = windows.next().unwrap();
        // With a byte of payload: only a new segment can shrink the window.
        bench.put(&Segment { len: 1, ..next.clone() });
        next.seq += 1;
        bench.put(&next);
        for _ in 0..5 {
            let packets = bench.turn_packets();
            let room = usize::from(next.window) << 7;
            let end = inbox.bytes.len();
            inbox.take(&packets);
            // A probe of a closed window is one byte, or the FIN.
            assert!(inbox.bytes.len() - end <= room.max(1), "beyond the window");
            if inbox.bytes.len() > end || inbox.fin {
                break;
            }
            bench.now += Duration::from_millis(250);
        }
    }
    assert_eq!(inbox.bytes.len(), 3 * 64_240);
}

#[test]
fn a_super_packet_is_taken_by_reference_and_many_small_ones_within_the_budget() {
    let mut bench = Bench::offloading();
    let (accepted, mut next, _) = wide(&mut bench);
    next.len = 65_495;
    bench.put(&next);
    next.seq += 65_495;
    bench.turn();
    assert_eq!(bench.engine.core().pool.lent, 1);
    let mut buffer = vec![0; 1 << 20];
    assert_eq!(bench.engine.recv(accepted.flow, &mut buffer).unwrap(), 65_495);
    assert_eq!(buffer[..65_495], bytes(100, 65_495));
    assert_eq!(bench.engine.core().pool.lent, 0);
    next.len = 600;
    for _ in 0..1000 {
        bench.put(&next);
        next.seq += 600;
        bench.turn();
    }
    assert_eq!(bench.engine.core().pool.lent, 128, "two windows of buffers");
    assert_eq!(bench.engine.recv(accepted.flow, &mut buffer).unwrap(), 600_000);
    assert_eq!(buffer[..600_000], bytes(100 + 65_495, 600_000));
    assert_eq!(bench.engine.core().pool.lent, 0);
}

#[test]
fn the_window_is_open_again_after_each_turn() {
    let mut bench = Bench::offloading();
    let (accepted, mut next, _) = wide(&mut bench);
    let mut buffer = vec![0; 2 << 20];
    next.len = 65_495;
    for _ in 0..10 {
        for _ in 0..BATCH {
            bench.put(&next);
            next.seq = next.seq.wrapping_add(65_495);
        }
        bench.engine.ingress(bench.now).unwrap();
        assert_eq!(bench.engine.recv(accepted.flow, &mut buffer).unwrap(), BATCH * 65_495);
        bench.engine.egress(bench.now).unwrap();
        let acks = bench.take();
        assert_eq!(acks.iter().map(|ack| ack.ack).collect::<Vec<_>>(), [next.seq], "one ACK for the turn");
        assert!(usize::from(acks[0].window) << 7 >= (4 << 20) - 65_536, "{}", acks[0].window);
    }
}

/// Moves a few megabytes in each direction.
fn traffic(bench: &mut Bench, accepted: &Accepted, next: &mut Segment, payload: usize) {
    let (mut buffer, out) = (vec![0; 1 << 20], bytes(0, 128 << 10));
    for _ in 0..40 {
        next.len = payload;
        for _ in 0..BATCH {
            bench.put(next);
            next.seq = next.seq.wrapping_add(payload as u32);
        }
        next.len = 0;
        bench.engine.ingress(bench.now).unwrap();
        while bench.engine.recv(accepted.flow, &mut buffer).is_ok() {}
        bench.engine.send(accepted.flow, &out).ok();
        bench.engine.egress(bench.now).unwrap();
        for segment in bench.take() {
            next.ack = segment.seq.wrapping_add(segment.len as u32);
        }
    }
}

#[test]
fn a_steady_flow_allocates_nothing() {
    for (offloading, payload) in [(true, 65_495), (true, 1000), (false, 1460), (false, 100)] {
        let mut bench =
            if offloading { Bench::offloading() } else { Bench::over(MemoryLink::pair(1500, 256), 4 << 20) };
        let (accepted, mut next) = bench.open(&WIDE_V4);
        traffic(&mut bench, &accepted, &mut next, payload);
        let before = lwip_sys::allocations();
        assert!(before > 0);
        traffic(&mut bench, &accepted, &mut next, payload);
        assert_eq!(lwip_sys::allocations(), before, "{payload} bytes a packet, offload {offloading}");
    }
}

/// A peer with a closed window, and bytes that wait for it.
fn closed(len: usize) -> (Bench, Segment) {
    let mut bench = Bench::offloading();
    let (accepted, mut next, _) = wide(&mut bench);
    next.window = 0;
    bench.put(&Segment { len: 1, ..next.clone() });
    next.seq += 1;
    bench.put(&next);
    bench.turn();
    bench.engine.send(accepted.flow, &bytes(0, len)).unwrap();
    assert!(bench.turn().iter().all(|segment| segment.len == 0), "the window is closed");
    (bench, next)
}

/// The low 16 bits of this window are 0.
#[test]
fn a_window_of_64_kib_opens_as_the_probe_is_due() {
    for steps in 0..60 {
        let (mut bench, mut next) = closed(1000);
        for _ in 0..steps {
            bench.now += Duration::from_millis(50);
            bench.turn_packets();
        }
        next.window = 512;
        bench.put(&next);
        bench.now += Duration::from_millis(50);
        let sent: usize = bench.turn().iter().map(|segment| segment.len).sum();
        assert!(sent >= 1000, "{sent} bytes after {steps} steps");
    }
}

#[test]
fn an_acknowledged_probe_ends_the_probing() {
    for len in [1, 2, 1000] {
        let (mut bench, mut next) = closed(len);
        let probe = |bench: &mut Bench| {
            bench.now += Duration::from_millis(50);
            bench.turn().iter().any(|segment| segment.len > 0)
        };
        assert!((0..60).any(|_| probe(&mut bench)), "no probe in three seconds");
        let end = next.ack.wrapping_add(len as u32);
        next.window = 600;
        next.ack = next.ack.wrapping_add(1);
        bench.put(&Segment { len: 1, ..next.clone() });
        next.seq += 1;
        let rest: usize = bench.turn().iter().map(|segment| segment.len).sum();
        // lwIP sends the byte of the probe again, with the bytes after it.
        assert!(rest == len || (len == 1 && rest == 0), "{rest} of {len} bytes");
        next.ack = end;
        bench.put(&next);
        bench.pass(Duration::from_secs(3));
    }
}
