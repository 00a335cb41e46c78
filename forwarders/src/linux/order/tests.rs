use super::*;
use platform::packet::TCP;

const ACK: u8 = 0x10;

/// A TCP packet from this port over IPv4.
fn segment(port: u16, sequence: u32, flags: u8, payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload_len];
    packet[0] = 0x45;
    packet[9] = TCP;
    packet[12..20].copy_from_slice(&[10, 0, 1, 1, 10, 0, 2, 1]);
    tcp(&mut packet[20..], port, sequence, flags);
    packet
}

/// The same over IPv6.
fn segment_v6(port: u16, sequence: u32, payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0; 60 + payload_len];
    packet[0] = 0x60;
    packet[6] = TCP;
    packet[23] = 1;
    packet[39] = 2;
    tcp(&mut packet[40..], port, sequence, ACK);
    packet
}

fn tcp(segment: &mut [u8], port: u16, sequence: u32, flags: u8) {
    segment[..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&5201_u16.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
}

fn late(packets: &[Vec<u8>]) -> Vec<bool> {
    let order = Order::default();
    packets.iter().map(|packet| order.is_late(packet)).collect()
}

#[test]
fn a_packet_that_lies_before_another_of_its_flow_is_late() {
    let at = |sequence| segment(1, sequence, ACK, 100);
    let anew = [segment(1, 5_000_000, ACK, 100), segment(1, 999, SYN, 0), segment(1, 1000, ACK, 100)];
    let super_packet = [segment(1, 0, ACK, 64_000), segment(1, 63_999, ACK, 10), segment(1, 64_009, ACK, 10)];
    for (what, packets, expected) in [
        ("in order", (0..100).map(|index| at(index * 100)).collect(), &[false; 100][..]),
        ("late once", vec![at(0), at(200), at(100), at(300)], &[false, false, true, false]),
        ("sent again", vec![at(0), at(0)], &[false, true]),
        ("behind a gap", vec![at(0), at(1000), at(1100)], &[false; 3]),
        ("numbers wrap", vec![at(u32::MAX - 99), at(0), at(100), at(0)], &[false, false, false, true]),
        ("numbers wrap in it", vec![at(u32::MAX - 49), at(50), at(u32::MAX - 49)], &[false, false, true]),
        ("a connection that begins anew", anew.to_vec(), &[false; 3]),
        ("a super-packet ends where its payload does", super_packet.to_vec(), &[false, true, false]),
    ] {
        assert_eq!(late(&packets), expected, "{what}");
    }
}

/// The first and the last packet of a run give the same result as all of its packets.
#[test]
fn a_run_counts_as_its_packets_do() {
    for known in [0, 1, 99, 100, 101, 250, 399, 400, 449, 450, 500, u32::MAX - 100] {
        for last_len in [1, 50, 100] {
            let mut run: Vec<_> = (0..4).map(|index| segment(1, index * 100, ACK, 100)).collect();
            run.push(segment(1, 400, ACK, last_len));
            let before = segment(1, known.wrapping_sub(10), ACK, 10);
            let (one, all) = (Order::default(), Order::default());
            assert!(!one.is_late(&before) && !all.is_late(&before));
            let late = run.iter().filter(|packet| one.is_late(packet)).count();
            assert_eq!(all.late_of_run(&run[0], &run[4], 5), late as u32, "{known} {last_len}");
            for sequence in [400, 449, 450, 500] {
                let after = segment(1, sequence, ACK, 10);
                assert_eq!(one.is_late(&after), all.is_late(&after), "{known} {last_len} {sequence}");
            }
        }
    }
}

#[test]
fn flows_know_nothing_of_each_other() {
    let packets = [
        segment(1, 5000, ACK, 100),
        segment(2, 100, ACK, 100),
        segment_v6(1, 200, 100),
        segment(2, 200, ACK, 100),
        segment_v6(1, 100, 100),
        segment(1, 4000, ACK, 100),
    ];
    assert_eq!(late(&packets), [false, false, false, false, true, true]);
}

#[test]
fn what_is_no_payload_of_tcp_does_not_count() {
    let first = segment(1, 5000, ACK, 100);
    let mut udp = segment(1, 0, ACK, 100);
    udp[9] = 17;
    let mut fragment = segment(1, 0, ACK, 100);
    fragment[7] = 1;
    let mut more = segment(1, 0, ACK, 100);
    more[6] = 0x20;
    let mut extended = segment_v6(1, 0, 100);
    extended[6] = 0;
    for other in [udp, fragment, more, extended, segment(1, 0, ACK, 0), vec![], vec![0x45], vec![0x60; 39]] {
        assert_eq!(late(&[first.clone(), other]), [false; 2]);
    }
    for len in 0..first.len() {
        let order = Order::default();
        let _short = order.is_late(&first[..len]);
    }
}

/// A flow that takes over a slot starts from nothing, and so does the other flow when it takes the slot back.
#[test]
fn flows_that_collide_are_not_mixed_up() {
    let order = Order::default();
    for turn in 0..3 {
        for port in 0..1000 {
            let _collided = order.is_late(&segment(port, turn * 100, ACK, 100));
        }
    }
    let late = (0..1000).filter(|port| order.is_late(&segment(*port, 300, ACK, 100))).count();
    assert_eq!(late, 0);
}

#[test]
fn two_workers_lose_nothing() {
    let order = Order::default();
    let late: usize = std::thread::scope(|scope| {
        let write = |first: u32| {
            let order = &order;
            move || (first..20_000).step_by(2).filter(|index| order.is_late(&segment(1, index * 10, ACK, 10))).count()
        };
        let threads = [scope.spawn(write(0)), scope.spawn(write(1))];
        threads.into_iter().map(|thread| thread.join().unwrap_or(usize::MAX)).sum()
    });
    assert!(late < 20_000);
    assert!(order.is_late(&segment(1, 199_980, ACK, 10)), "the slot is not at the end");
    assert!(!order.is_late(&segment(1, 200_000, ACK, 10)));
}
