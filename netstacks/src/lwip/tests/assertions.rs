//! Packets that could make an assertion of lwIP fail; see `lwip-sys/ASSERTIONS.md`.

use super::*;

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
        let accepted = bench.engine.accept().unwrap();
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
