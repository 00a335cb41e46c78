//! Each workaround is off when it is off.

use super::*;

/// Runs a test with all workarounds, and with all but one. It gets whether that is on.
fn with_and_without(workaround: Workaround, test: fn(Bench, bool)) {
    for (workarounds, is_on) in [(Workarounds::ALL, true), (format!("-{}", workaround.name()).parse().unwrap(), false)]
    {
        test(Bench::repaired(MemoryLink::pair(1500, 256), false, 256 << 10, workarounds), is_on);
    }
}

fn send(bench: &mut Bench, accepted: Accepted, len: usize) -> Vec<usize> {
    bench.engine.send(accepted.flow, &vec![0; len]).unwrap();
    bench.turn().iter().map(|segment| segment.len).collect()
}

#[test]
fn every_second_segment_is_acknowledged() {
    with_and_without(Workaround::OneAckABatch, |mut bench, is_on| {
        let (_, mut next) = bench.open(&MSS_1460);
        next.len = 1000;
        for _ in 0..9 {
            bench.put(&next);
            next.seq += 1000;
        }
        assert_eq!(bench.turn().len(), if is_on { 1 } else { 4 });
        // The last one is acknowledged by the timer.
        assert_eq!(bench.pass(Duration::from_millis(100)).len(), usize::from(!is_on));
    });
}

#[test]
fn a_lost_segment_waits_for_the_first_timeout() {
    with_and_without(Workaround::ShortTimeout, |mut bench, is_on| {
        let (accepted, _) = bench.open(&MSS_1460);
        assert_eq!(send(&mut bench, accepted, 100), [100]);
        // The round trip of the handshake has made it shorter: 0.8 and 2.5 s.
        assert_eq!(bench.pass(Duration::from_millis(1500)).is_empty(), !is_on);
    });
}

#[test]
fn an_idle_connection_has_a_timer() {
    with_and_without(Workaround::QuietTimers, |mut bench, is_on| {
        bench.open(&MSS_1460);
        bench.pass(Duration::from_secs(1));
        let next = bench.engine.deadline(bench.now).unwrap() - bench.now;
        assert_eq!(next > Duration::from_millis(50), is_on);
    });
}

#[test]
fn the_segments_in_flight_are_walked() {
    fn saved() -> usize {
        // SAFETY: the bench has the lock of lwIP.
        unsafe { lwip_sys::lwip_sys_walks_saved }
    }
    with_and_without(Workaround::TailPointer, |mut bench, is_on| {
        let (accepted, _) = bench.open(&MSS_1460);
        let before = saved();
        assert_eq!(send(&mut bench, accepted, 1460), [1460]);
        assert_eq!(send(&mut bench, accepted, 1460), [1460]);
        assert_eq!(saved() > before, is_on);
    });
}

#[test]
fn a_syn_does_not_reopen_a_connection_in_time_wait() {
    with_and_without(Workaround::TimeWaitSyn, |mut bench, is_on| {
        let (accepted, mut next) = bench.open(&MSS_1460);
        bench.engine.finish(accepted.flow);
        bench.turn();
        next.ack = next.ack.wrapping_add(1);
        next.flags = FIN | ACK;
        bench.put(&next);
        bench.turn();
        bench.engine.release(accepted.flow);
        bench.put(&Segment { seq: 5000, flags: SYN, ack: 0, ..next });
        let answer = bench.turn().pop();
        assert_eq!(answer.is_some_and(|answer| answer.flags == SYN | ACK), is_on);
    });
}

#[test]
fn a_silent_peer_is_not_probed() {
    with_and_without(Workaround::UserTimeout, |mut bench, is_on| {
        bench.open(&MSS_1460);
        assert_eq!(bench.pass(Duration::from_secs(6)).is_empty(), !is_on);
    });
}

#[test]
fn an_acknowledgement_of_the_future_is_taken() {
    with_and_without(Workaround::ChallengeAck, |mut bench, is_on| {
        let (accepted, next) = bench.open(&MSS_1460);
        bench.put(&Segment { ack: next.ack.wrapping_add(5000), len: 10, ..next });
        bench.turn();
        assert_eq!(bench.engine.recv(accepted.flow, &mut [0; 100]).is_err(), is_on);
    });
}

#[test]
fn a_small_segment_waits_for_the_one_before() {
    with_and_without(Workaround::NoNagle, |mut bench, is_on| {
        let (accepted, _) = bench.open(&MSS_1460);
        assert_eq!(send(&mut bench, accepted, 10), [10]);
        assert_eq!(send(&mut bench, accepted, 10).len(), usize::from(is_on));
    });
}

#[test]
fn no_segment_is_larger_than_the_mtu() {
    for (workarounds, is_on) in [(Workarounds::ALL, true), (Workarounds::NONE, false)] {
        let mut bench = Bench::repaired(MemoryLink::offloading_pair(1500, 256), false, 4 << 20, workarounds);
        let (accepted, _) = bench.open(&[2, 4, 5, 180, 3, 3, 7, 1]);
        let lens = send(&mut bench, accepted, 300_000);
        assert_eq!(lens.iter().any(|len| *len > 1460), is_on, "{lens:?}");
    }
}
