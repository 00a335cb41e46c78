//! Lost packets.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, PSH};

use crate::lab::{deliver, exchange};
use crate::wire::Segment;
use crate::{Case, Client, LATE, Offer, Out, SOON, Setup, Step, Then, applies, check, patient, pattern, same};

/// Timeout of a probe. It is shorter than any retransmission timeout of the stacks: these are 200 ms or more.
const PROBE: Duration = Duration::from_millis(150);

pub(super) const CASES: &[Case] = &[
    Case::new("one-lost", one_lost, "RFC 5681, 3.2")
        .about("One segment of many is lost; the client's window is constant")
        .expects("Duplicate ACKs bring it again, and all data arrives. No pause is as long as one second."),
    Case::new("one-lost-growing-window", one_lost_growing_window, "RFC 5681, 2 and 3.2; RFC 6298, 5")
        .about("One segment is lost; the client's window grows with every ACK")
        .expects(
            "None of the ACKs is a duplicate as the RFC defines it, so the loss may last until the timeout. No pause \
             is as long as three seconds.",
        ),
    Case::new("two-lost", two_lost, "RFC 6582, 3.2")
        .about("Two segments in a row are lost")
        .expects("Both come again, and all data arrives. No pause is as long as two seconds."),
    Case::new("four-lost-of-a-window", four_lost_of_a_window, "RFC 6582, 3.2; RFC 6675, 5")
        .about("Four segments of one window, apart from each other, are lost")
        .expects("Each partial acknowledgment makes the stack send the next lost segment again, without a timeout."),
    Case::new("tail-lost", tail_lost, "RFC 6298, 5")
        .about("The last segment is lost, so there are no duplicate ACKs")
        .expects("The retransmission timer brings it within 4 seconds."),
    Case::new("retransmission-lost", retransmission_lost, "RFC 6298, 5")
        .about("A segment is lost, and then its retransmission")
        .expects("The timer brings it once more, within 5 seconds."),
    Case::new("many-lost", many_lost, "RFC 5681, 3; RFC 6582, 3.2")
        .about("Every tenth segment of 200 KB is lost once")
        .expects("All data arrives. No pause is as long as three seconds."),
    Case::new("super-packet-lost", super_packet_lost, "RFC 6298, 5; RFC 5681, 3.2")
        .about("A whole super-packet is lost")
        .expects("All of its segments come again, and all data arrives.")
        .offloading(),
    Case::new("acks-lost", acks_lost, "RFC 9293, 3.4")
        .about("Three of four ACKs are lost")
        .expects("An ACK covers all before it: nothing is sent again."),
    Case::new("flight-ack-lost", flight_ack_lost, "RFC 8985, 7")
        .about("The only ACK of the last segments is lost")
        .expects(
            "A segment comes again as a probe, within 150 ms. The RFC is optional: a stack that waits for its timeout \
             is right, too.",
        ),
    Case::new("fast-retransmit", fast_retransmit, "RFC 5681, 3.2")
        .about("Three duplicate ACKs")
        .expects("The missing segment comes at once, without its timer."),
    Case::new("two-duplicate-acks", two_duplicate_acks, "RFC 5681, 3.2")
        .about("Two duplicate ACKs, as reordering makes them")
        .expects("Nothing is sent again."),
    Case::new("backoff", backoff, "RFC 6298, 5.5")
        .about("The client acknowledges nothing any more")
        .expects("Each retransmission waits about twice as long as the one before."),
    Case::new("patient-timer", patient_timer, "RFC 6298, 2.4; RFC 9293, 3.8.6.3")
        .about("An ACK takes 150 ms, after others that came at once")
        .expects("A receiver may delay an ACK: nothing is sent again before it."),
    Case::new("duplicate-acks-sent", duplicate_acks_sent, "RFC 5681, 4.2")
        .about("A segment to the stack is lost, and three come after it")
        .expects("A duplicate ACK for each, at once. The missing one is acknowledged with all after it."),
    Case::new("lost-towards-the-stack", lost_towards_the_stack, "RFC 9293, 3.4")
        .about("Segments to the stack are lost, one, two in a row, and the last")
        .expects("The server reads all bytes once and in order when they have come again."),
    Case::new("recovery-time", recovery_time, "RFC 5681, 3.2; RFC 6298, 2.4")
        .about("One segment in the middle of 400 KB is lost")
        .expects("The missing bytes arrive within a second of the loss."),
];

/// Sends `len` bytes from the server over a link that loses the segments for which `lost` is true. Returns the longest
/// time without new bytes in order.
fn transfer(setup: &Setup, len: usize, growth: u16, mut lost: impl FnMut(&Segment) -> bool) -> Step<Duration> {
    let (lab, mut client, served) = setup.connect()?;
    client.growth = growth;
    if growth > 0 {
        client.window = 20_000;
    }
    let sending = served.send(pattern(20, len), Then::Keep);
    let (mut bytes, mut previous, mut longest) = (Vec::new(), Instant::now(), Duration::ZERO);
    while bytes.len() < len {
        let segment = client.expect_within(LATE, "more data", |segment| !segment.payload.is_empty())?;
        if lost(&segment) {
            continue;
        }
        let (before, at) = (bytes.len(), segment.at);
        client.take(segment, &mut bytes)?;
        if bytes.len() > before {
            longest = longest.max(at.saturating_duration_since(previous));
            previous = at;
        }
    }
    same(&bytes, &pattern(20, len))?;
    drop(sending.finish()?);
    lab.finish()?;
    Ok(longest)
}

fn shorter_than(pause: Duration, most: Duration) -> Step {
    check(pause < patient(most), || format!("no new byte came for {pause:.2?}"))
}

/// Loses the segments with these numbers, counted from 1, once each.
fn nth(numbers: &'static [usize]) -> impl FnMut(&Segment) -> bool {
    let (mut count, mut seen) = (0, HashSet::new());
    move |segment| {
        let is_new = seen.insert(segment.seq);
        count += usize::from(is_new);
        is_new && numbers.contains(&count)
    }
}

fn one_lost(setup: &Setup) -> Step {
    shorter_than(transfer(setup, 200_000, 0, nth(&[20]))?, SOON)
}

fn one_lost_growing_window(setup: &Setup) -> Step {
    shorter_than(transfer(setup, 100_000, 200, nth(&[20]))?, Duration::from_secs(3))
}

fn two_lost(setup: &Setup) -> Step {
    shorter_than(transfer(setup, 200_000, 0, nth(&[20, 21]))?, Duration::from_secs(2))
}

fn four_lost_of_a_window(setup: &Setup) -> Step {
    shorter_than(transfer(setup, 200_000, 0, nth(&[40, 45, 50, 55]))?, Duration::from_millis(450))
}

fn tail_lost(setup: &Setup) -> Step {
    const LEN: u32 = 20_000;
    let (mut begin, mut is_gone) = (None, false);
    let pause = transfer(setup, LEN as usize, 0, move |segment| {
        let begin = *begin.get_or_insert(segment.seq);
        let is_last = segment.end().wrapping_sub(begin) == LEN;
        is_last && !std::mem::replace(&mut is_gone, true)
    })?;
    shorter_than(pause, Duration::from_secs(4))
}

fn retransmission_lost(setup: &Setup) -> Step {
    let (mut nth, mut victim, mut lost) = (nth(&[20]), None, 0);
    let pause = transfer(setup, 200_000, 0, move |segment| {
        if nth(segment) {
            victim = Some(segment.seq);
        }
        let loses = victim == Some(segment.seq) && lost < 2;
        lost += usize::from(loses);
        loses
    })?;
    shorter_than(pause, Duration::from_secs(5))
}

fn many_lost(setup: &Setup) -> Step {
    let (mut count, mut seen) = (0, HashSet::new());
    let pause = transfer(setup, 200_000, 0, move |segment| {
        let is_new = seen.insert(segment.seq);
        count += usize::from(is_new);
        is_new && count % 10 == 0
    })?;
    shorter_than(pause, Duration::from_secs(3))
}

fn super_packet_lost(setup: &Setup) -> Step {
    // The victim is the first packet with more than one segment, after 20 segments.
    let (mut previous, mut victim, mut count) = (0, None, 0);
    let mut seen = HashSet::new();
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect_for_super_packets()?;
    deliver(&mut client, served, &pattern(21, 1 << 20), Duration::from_secs(10), |segment| {
        count += 1;
        if victim.is_none() && count > 20 && segment.packet == previous {
            // Its first segment has already been taken. The others are lost, once each.
            victim = Some(segment.packet);
        }
        previous = segment.packet;
        victim == Some(segment.packet) && seen.insert(segment.seq)
    })?;
    check(victim.is_some(), || "the stack sent no super-packet".to_owned())?;
    lab.finish()
}

fn acks_lost(setup: &Setup) -> Step {
    const LEN: usize = 100_000;
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(22, LEN), Then::Keep);
    let (mut got, mut count) = (Vec::new(), 0);
    let until = Instant::now() + patient(LATE);
    while got.len() < LEN {
        // After a pause the stack waits for an ACK.
        let Some(segment) = client.next_segment(Duration::from_millis(30))? else {
            check(Instant::now() < until, || format!("{} of {LEN} bytes came", got.len()))?;
            client.ack()?;
            continue;
        };
        if segment.payload.is_empty() {
            continue;
        }
        check(segment.seq == client.expected, || "the stack sent something again".to_owned())?;
        client.expected = segment.end();
        got.extend(&segment.payload);
        count += 1;
        if count % 4 == 0 {
            client.ack()?;
        }
    }
    client.ack()?;
    same(&got, &pattern(22, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

fn flight_ack_lost(setup: &Setup) -> Step {
    const LEN: usize = 30_000;
    let mut lab = setup.start()?;
    // With SACK, which RFC 8985, 4 asks for, and with an MSS that divides the length: Nagle's algorithm holds no short segment.
    let offer = Offer { mss: Some(1000), extra: vec![4, 2], ..Offer::default() };
    let (mut client, served) = lab.connect_with(&offer)?;
    let sending = served.send(pattern(26, LEN), Then::Keep);
    let mut bytes = client.receive(LEN - 10_000, LATE)?;
    while bytes.len() < LEN {
        let segment = client.expect("the last segments", |segment| !segment.payload.is_empty())?;
        // One that was sent again has nothing new.
        if segment.seq == client.expected {
            bytes.extend(&segment.payload);
            client.expected = segment.end();
        }
    }
    let probe = client.expect_within(PROBE, "probe", |segment| !segment.payload.is_empty());
    client.ack()?;
    same(&bytes, &pattern(26, LEN))?;
    drop(sending.finish()?);
    lab.finish()?;
    applies(probe.is_ok(), || "it has no probe, and waits for its timeout".to_owned())
}

/// Receives the first part of a long transfer, and then sends `count` duplicate ACKs. Returns whether the segment that
/// they ask for came again in time.
fn after_duplicates(setup: &Setup, count: usize, within: Duration) -> Step<bool> {
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(23, 200_000), Then::Keep);
    client.receive(50_000, LATE)?;
    // Wait for the segments in flight and for probes (RFC 8985, 7), and acknowledge none of them.
    std::thread::sleep(Duration::from_millis(60));
    client.forget()?;
    let missing = client.expected;
    for _ in 0..count {
        client.ack()?;
    }
    let until = Instant::now() + within;
    let mut came = false;
    while let Some(segment) = client.segment_until(until)? {
        came |= segment.seq == missing;
    }
    drop(sending);
    lab.finish()?;
    Ok(came)
}

fn fast_retransmit(setup: &Setup) -> Step {
    let came = after_duplicates(setup, 3, patient(Duration::from_millis(100)))?;
    check(came, || "the missing segment did not come within 100 ms".to_owned())
}

fn two_duplicate_acks(setup: &Setup) -> Step {
    // On a busy machine the timer can expire at the same moment, but not every time.
    for _ in 0..5 {
        if !after_duplicates(setup, 2, Duration::from_millis(100))? {
            return Ok(());
        }
    }
    check(false, || "a segment came again after two duplicate ACKs".to_owned())
}

fn backoff(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    served.write(b"is anyone there?")?;
    let expected = client.expected;
    let mut at = Vec::new();
    // The first may be a probe (RFC 8985, 7).
    for _ in 0..4 {
        let within = Duration::from_secs(8);
        at.push(client.expect_within(within, "retransmission", |segment| segment.seq == expected)?.at);
    }
    let (first, second) = (at[2] - at[1], at[3] - at[2]);
    check(second.as_secs_f64() > 1.4 * first.as_secs_f64(), || {
        format!("retransmissions were {first:.2?} and {second:.2?} apart")
    })?;
    lab.finish()
}

fn patient_timer(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for _ in 0..20 {
        exchange(&mut client, &mut served)?;
    }
    served.write(b"slow")?;
    let first = client.expect("data", |segment| !segment.payload.is_empty())?;
    client.expect_none(Duration::from_millis(150), "the data again", |segment| segment.seq == first.seq)?;
    client.expected = first.end();
    client.ack()?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

/// Sends bytes as segments of 500 bytes, in this order of their numbers.
fn send_segments(client: &Client, bytes: &[u8], order: &[usize]) -> Step {
    let out = client.out();
    for number in order {
        let payload = &bytes[number * 500..(number + 1) * 500];
        client.put(Out { flags: ACK | PSH, seq: out.seq.wrapping_add(*number as u32 * 500), payload, ..out })?;
    }
    Ok(())
}

fn duplicate_acks_sent(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    let bytes = pattern(24, 2000);
    let missing = client.next;
    for number in [1, 2, 3] {
        send_segments(&client, &bytes, &[number])?;
        client.expect_within(Duration::from_millis(200), "duplicate ACK", |segment| {
            segment.has(ACK) && segment.ack == missing
        })?;
    }
    send_segments(&client, &bytes, &[0])?;
    client.next = missing.wrapping_add(2000);
    client.acked(Duration::from_millis(600))?;
    same(&served.read(2000)?, &bytes)?;
    lab.finish()
}

fn lost_towards_the_stack(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    let bytes = pattern(25, 10_000);
    let begin = client.next;
    // Lost: 2, 7, 8 and 19. They are sent again one after the other, as a sender without SACK would.
    let first: Vec<_> = (0..19).filter(|number| ![2, 7, 8].contains(number)).collect();
    send_segments(&client, &bytes, &first)?;
    let mut done = 0;
    for _ in 0..20 {
        while let Some(segment) = client.next_segment(Duration::from_millis(20))? {
            done = segment.ack.wrapping_sub(begin) as usize;
        }
        check(done <= bytes.len() && done.is_multiple_of(500), || format!("{done} bytes are acknowledged"))?;
        if done == bytes.len() {
            break;
        }
        send_segments(&client, &bytes, &[done / 500])?;
    }
    same(&served.read(bytes.len())?, &bytes)?;
    lab.finish()
}

fn recovery_time(setup: &Setup) -> Step {
    shorter_than(transfer(setup, 400_000, 0, nth(&[150]))?, SOON)
}
