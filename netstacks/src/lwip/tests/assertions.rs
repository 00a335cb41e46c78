//! Packets that could make an assertion of lwIP fail; see `lwip-sys/ASSERTIONS.md`.

use platform::packet::checksum::sum;

use super::reorder::Random;
use super::*;

impl Bench {
    fn put_packet(&mut self, packet: &[u8]) {
        self.wire.try_send(PacketMeta::default(), &[IoSlice::new(packet)]).unwrap();
    }
}

#[test]
fn a_window_of_nothing_in_the_handshake_may_open_to_less_than_a_segment() {
    for opened in [1, 2, 95, 1000, 60_000] {
        let mut bench = Bench::new();
        let syn = Segment { ports: (1000, 80), seq: 99, flags: SYN, options: MSS_1460.into(), ..Default::default() };
        bench.put(&syn);
        let reply = bench.turn().pop().unwrap();
        let mut next = Segment { seq: 100, ack: reply.seq.wrapping_add(1), flags: ACK, options: Vec::new(), ..syn };
        bench.put(&next);
        bench.turn();
        let accepted = bench.engine.table_mut().accept().unwrap();
        assert_eq!(bench.engine.send(accepted.flow, &bytes(0, 1460)).unwrap(), 1460);
        assert_eq!(bench.turn(), []);
        // The window opens while the segment waits, and more bytes are written.
        next.window = opened;
        bench.put(&next);
        bench.engine.ingress(bench.now).unwrap();
        assert_eq!(bench.engine.send(accepted.flow, &bytes(1460, 100)).unwrap(), 100, "{opened}");
        let mut sent = 0;
        for _ in 0..200 {
            for segment in bench.turn() {
                sent = sent.max(segment.seq.wrapping_add(segment.len as u32).wrapping_sub(reply.seq.wrapping_add(1)));
            }
            next.ack = reply.seq.wrapping_add(1).wrapping_add(sent);
            bench.put(&next);
            bench.now += Duration::from_millis(50);
        }
        assert!(sent > 10, "{opened}: {sent}");
    }
}

/// A fragment of an ICMP message: `last` says that no more follow.
fn fragment(message: &[u8], at: usize, len: usize, last: bool) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[2..4].copy_from_slice(&(20 + len as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&((at as u16 / 8) | if last { 0 } else { 0x2000 }).to_be_bytes());
    let checksum = !sum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend_from_slice(&message[at..at + len]);
    packet
}

#[test]
fn fragments_behind_the_last_one_do_not_lengthen_a_datagram() {
    for len in [65_528, 24_000] {
        let mut bench = Bench::over(MemoryLink::pair(9000, 64), 256 << 10);
        let mut echo = bytes(0, len);
        echo[..8].copy_from_slice(&[8, 0, 0, 0, 0, 1, 0, 1]);
        let checksum = !sum(&echo);
        echo[2..4].copy_from_slice(&checksum.to_be_bytes());
        // The last fragment is in the middle, and the first one completes the datagram.
        bench.put_packet(&fragment(&echo, 8192, 8, true));
        for at in (0..len).step_by(8192).rev() {
            let at = if at == 8192 { 8200 } else { at };
            bench.put_packet(&fragment(&echo, at, (at / 8192 * 8192 + 8192).min(len) - at, false));
        }
        bench.engine.ingress(bench.now).unwrap();
        bench.engine.egress(bench.now).unwrap();
        let lens: Vec<_> = bench.take_packets().iter().map(|(_, packet)| packet.len()).collect();
        assert!(lens.is_empty(), "{len}: {lens:?}");
    }
}

#[test]
fn a_window_that_shrinks_again_and_again_does_not_overflow_the_queue() {
    let mut bench = Bench::over(MemoryLink::pair(1500, 1 << 12), 256 << 10);
    let (accepted, mut next) = bench.open(&MSS_1460);
    let begin = next.ack;
    // The congestion window grows.
    let mut sent = bench.engine.send(accepted.flow, &bytes(0, 200_000)).unwrap();
    for _ in 0..200 {
        let len: usize = bench.turn().iter().map(|segment| segment.len).sum();
        next.ack = next.ack.wrapping_add(len as u32);
        bench.put(&next);
    }
    assert_eq!(next.ack.wrapping_sub(begin), sent as u32);
    // The first segment that waits for an acknowledgement is long, and all others have one byte.
    sent += bench.engine.send(accepted.flow, &bytes(sent, 1460)).unwrap();
    bench.turn();
    while let Ok(len) = bench.engine.send(accepted.flow, &bytes(sent, 1)) {
        sent += len;
        assert_eq!(bench.turn().iter().map(|segment| segment.len).collect::<Vec<_>>(), [1], "{sent}");
    }
    // Each time the first segment is cut: the window ends within it, and a timeout has put it back into the queue.
    let (mut head, mut acknowledged) = (1460, 0);
    for step in 0..80 {
        if step % 4 == 0 {
            acknowledged += 1;
            next.ack = next.ack.wrapping_add(1);
        }
        next.window = head - acknowledged - 1;
        for _ in 0..10 {
            next.len = 1;
            bench.put(&next);
            next.seq += 1;
            if bench.pass(Duration::from_secs(1)).iter().any(|segment| segment.len == usize::from(next.window)) {
                head = next.window;
                break;
            }
        }
    }
    assert!(head < 1460 - 66, "{head}");
    (next.window, next.len, next.ack) = (60_000, 0, begin.wrapping_add(sent as u32));
    bench.put(&next);
    bench.turn();
    assert_eq!(bench.engine.send(accepted.flow, &bytes(sent, 100)).unwrap(), 100);
    assert_eq!(bench.turn().iter().map(|segment| segment.len).collect::<Vec<_>>(), [100]);
}

/// Takes the memory of the C library away from lwIP, and what its free lists have, or gives it back.
fn starve(is_starved: bool) {
    // SAFETY: the caller's bench holds the lock of lwIP's only engine, and lwIP does not run.
    unsafe {
        lwip_sys::lwip_sys_starved = u8::from(is_starved);
        if is_starved {
            lwip_sys::lwip_sys_memory_trim();
        }
    }
}

#[test]
fn a_lack_of_memory_ends_connections_and_not_the_stack() {
    for seed in 0..if cfg!(miri) { 1 } else { 200 } {
        let mut random = Random(seed);
        let mut bench = Bench::over(MemoryLink::pair(1500, 256), 16 << 10);
        let (accepted, mut next) = bench.open(&[2, 4, 5, 180, 4, 2, 1, 1]);
        let mut sent = next.ack;
        for round in 0..150 {
            match random.below(12) {
                0 => starve(random.below(2) == 0),
                1 => bench.put(&syn_of(2000 + round)),
                2 => drop(bench.engine.send(accepted.flow, &bytes(0, 1 + random.below(4000)))),
                3 => drop(bench.engine.recv(accepted.flow, &mut [0; 2000])),
                4 => bench.now += Duration::from_millis(50 * random.below(20) as u64),
                5 => next.window = [0, 10, 700, 60_000][random.below(4)],
                6 if random.below(30) == 0 => bench.engine.finish(accepted.flow),
                7 => bench.put(&Segment { ack: next.ack.wrapping_add(random.below(3000) as u32), ..next.clone() }),
                8 => (next.ack, next.len) = (sent, 0),
                9 => next.seq = next.seq.wrapping_add(random.below(800) as u32),
                _ => {
                    let seq = next.seq.wrapping_add(random.below(3000) as u32).wrapping_sub(500);
                    bench.put(&Segment { seq, len: random.below(1460), ..next.clone() });
                }
            }
            for segment in bench.turn() {
                if segment.ports.1 == 1000 && segment.flags & (SYN | RST) == 0 {
                    let end = segment.seq.wrapping_add(segment.len as u32);
                    sent = if end.wrapping_sub(sent).cast_signed() > 0 { end } else { sent };
                }
            }
        }
        starve(false);
        bench.engine.release(accepted.flow);
        bench.put(&syn_of(5000));
        let replies = bench.turn();
        let is_served = replies.iter().any(|reply| (reply.ports.1, reply.flags) == (5000, SYN | ACK));
        assert!(is_served, "seed {seed}: {replies:?}");
    }
}

/// The SYN of another client.
fn syn_of(port: u16) -> Segment {
    Segment { ports: (port, 80), seq: 99, flags: SYN, window: 60_000, options: MSS_1460.into(), ..Default::default() }
}
