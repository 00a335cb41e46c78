//! Floods, forged packets, and ports that are used again.

use super::*;
use crate::driven::{Table, most_half_open};

/// A SYN of a client that answers nothing.
fn syn(port: u16, seq: u32) -> Segment {
    Segment { ports: (port, 80), seq, flags: SYN, window: 60_000, options: MSS_1460.into(), ..Default::default() }
}

impl Bench {
    /// Opens a connection, and brings it to TIME-WAIT. Returns the next segment of the peer.
    fn open_to_time_wait(&mut self) -> Segment {
        let (accepted, mut next) = self.open(&MSS_1460);
        self.engine.finish(accepted.flow);
        self.turn();
        next.ack = next.ack.wrapping_add(1);
        self.put(&Segment { flags: FIN | ACK, ..next.clone() });
        self.turn();
        self.engine.release(accepted.flow);
        self.turn();
        assert_eq!(self.stages(), [Stage::TimeWait]);
        Segment { seq: next.seq + 1, ..next }
    }

    fn stages(&self) -> Vec<Stage> {
        let table = &self.engine.core().table;
        table.flows().into_iter().filter_map(|flow| table.stage(flow)).collect()
    }
}

#[test]
fn time_wait_stays_if_the_new_syn_finds_no_room() {
    let mut bench = Bench::new();
    let next = bench.open_to_time_wait();
    for port in 0..4 {
        bench.establish(2000 + port);
    }
    bench.put(&syn(1000, next.seq + 1));
    assert_eq!(bench.turn(), []);
    assert!(bench.stages().contains(&Stage::TimeWait));
}

impl Bench {
    /// Completes a handshake without an `accept`. Returns the ACK.
    fn establish(&mut self, port: u16) -> Segment {
        let syn = syn(port, 99);
        self.put(&syn);
        let reply = self.turn().pop().unwrap();
        let ack = Segment { seq: 100, ack: reply.seq.wrapping_add(1), flags: ACK, options: Vec::new(), ..syn };
        self.put(&ack);
        assert_eq!(self.turn(), []);
        ack
    }
}

#[test]
fn the_oldest_half_open_connection_is_forgotten_without_a_rst() {
    let mut bench = Bench::over(MemoryLink::pair(1500, 1 << 15), 256 << 10);
    let most = most_half_open(&StackConfig { backlog: 1, ..StackConfig::default() });
    let count = most as u16 + 10;
    for port in 0..count {
        bench.put(&syn(1000 + port, 1));
    }
    let replies: Vec<_> = (0..count).flat_map(|_| bench.turn()).collect();
    assert!(replies.len() == usize::from(count) && replies.iter().all(|reply| reply.flags == SYN | ACK));
    assert_eq!(bench.engine.core().table.len(), most);
    let ack = |index: usize| Segment {
        ack: replies[index].seq.wrapping_add(1),
        seq: 2,
        flags: ACK,
        ..syn(1000 + index as u16, 1)
    };
    bench.put(&ack(10));
    assert_eq!(bench.turn(), []);
    assert!(bench.engine.table_mut().accept().is_some(), "the oldest that is left");
    bench.put(&ack(9));
    assert_eq!(bench.turn()[0].flags & RST, RST, "unknown");
}

#[test]
fn an_egress_is_bounded_and_gives_each_connection_its_turn() {
    let mut bench = Bench::over(MemoryLink::pair(1500, 1 << 12), 4 << 20);
    let scaled = [2, 4, 5, 180, 3, 3, 5, 0];
    // The whole window of each connection may be sent, once the congestion window has grown.
    let flows: Vec<_> = (0..3).map(|index| bench.open_with(false, 1000 + index, &scaled)).collect();
    let mut sent = [0; 3];
    let mut acks: Vec<(usize, u32)> = Vec::new();
    for _ in 0..40 {
        for (accepted, _) in &flows {
            while bench.engine.send(accepted.flow, &bytes(0, 64 << 10)).is_ok() {}
        }
        for (index, end) in acks.drain(..) {
            let next: &Segment = &flows[index].1;
            bench.put(&Segment { ack: next.ack.wrapping_add(end), ..next.clone() });
            bench.engine.ingress(bench.now).unwrap();
        }
        let mut counts = [0; 3];
        let mut egress = Vec::new();
        while bench.engine.table().has_due() {
            bench.engine.egress(bench.now).unwrap();
            egress.push(bench.take());
            assert!(egress.last().is_some_and(|packets| packets.len() <= core::EGRESS_PACKETS));
        }
        for segment in egress.concat() {
            let index = usize::from(segment.ports.1 - 1000);
            (sent[index], counts[index]) = (sent[index] + segment.len, counts[index] + 1);
            acks.push((index, sent[index] as u32));
        }
        if counts.iter().sum::<usize>() > 3 * core::EGRESS_PACKETS {
            let first: Vec<_> =
                (0..3).map(|index| egress[0].iter().filter(|one| one.ports.1 == 1000 + index).count()).collect();
            assert!(first.iter().all(|count| *count >= 64), "{first:?}");
            return;
        }
    }
    panic!("{sent:?}");
}

#[test]
fn a_half_open_connection_takes_less_than_a_kibibyte() {
    let in_engine = Table::<flow::Flow>::entry_len() + 2 * size_of::<FlowId>();
    let len = lwip_sys::lwip_sys_pcb_half_open_len() + in_engine;
    assert!(len < 1024, "{len} bytes, {in_engine} of them in Rust");
}
