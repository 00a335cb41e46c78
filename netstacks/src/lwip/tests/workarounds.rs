//! Each workaround is off when it is off.

use super::*;

#[test]
fn every_second_segment_is_acknowledged() {
    for (workarounds, counts) in [(Workarounds::ALL, [1, 0]), (Workarounds::NONE, [4, 1])] {
        let mut bench = Bench::with(MemoryLink::pair(1500, 256), 256 << 10, workarounds);
        let (_, mut next) = bench.open(&MSS_1460);
        next.len = 1000;
        for _ in 0..9 {
            bench.put(&next);
            next.seq += 1000;
        }
        // The last one is acknowledged by the timer.
        assert_eq!([bench.turn().len(), bench.pass(Duration::from_millis(100)).len()], counts);
    }
}

#[test]
fn no_segment_is_larger_than_the_mtu() {
    for (workarounds, is_on) in [(Workarounds::ALL, true), (Workarounds::NONE, false)] {
        let mut bench = Bench::with(MemoryLink::offloading_pair(1500, 256), 4 << 20, workarounds);
        let (accepted, _) = bench.open(&[2, 4, 5, 180, 3, 3, 7, 1]);
        bench.engine.send(accepted.flow, &vec![0; 300_000]).unwrap();
        assert_eq!(bench.turn().iter().any(|segment| segment.len > 1460), is_on);
    }
}
