//! Lost packets.

use std::collections::HashSet;

use crate::prelude::*;

/// Timeout of a probe. It is shorter than any retransmission timeout of the stacks: these are 200 ms or more.
const PROBE: Duration = ms(150);

pub(super) const CASES: &[Case] = &[
    Case::new("one-lost", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 3.2", |lab| {
        recovers(lab, SOON, 200_000, nth(|number| number == 20))
    })
    .about("One segment of many is lost; the client's window is constant")
    .expects("Duplicate ACKs bring it again, and all data arrives. No pause is as long as one second."),
    Case::new(
        "one-lost-growing-window",
        "MUST RFC 9293, 3.10.8: retransmission timeout",
        "RFC 9293, 3.10.8; RFC 5681, 2 and 3.2; RFC 6298, 5",
        |lab| {
            let (mut client, served) = lab.connect()?;
            (client.window, client.growth) = (20_000, 200);
            let mut is_lost = nth(|number| number == 20);
            shorter_than(secs(3), transfer((client, served), 100_000, |_, segment| Ok(is_lost(segment)))?)
        },
    )
    .about("One segment is lost; the client's window grows with every ACK")
    .expects(
        "None of the ACKs is a duplicate as the RFC defines it, so the loss may last until the timeout. No pause \
             is as long as three seconds.",
    ),
    Case::new("two-lost", "MUST RFC 9293, 3.10.8: retransmission timeout", "RFC 9293, 3.10.8; RFC 6582, 3.2", |lab| {
        recovers(lab, secs(2), 200_000, nth(|number| [20, 21].contains(&number)))
    })
    .about("Two segments in a row are lost")
    .expects("Both come again, and all data arrives. No pause is as long as two seconds."),
    Case::new("four-lost-of-a-window", "SHOULD RFC 5681, 4.3", "RFC 5681, 4.3; RFC 6582, 3.2; RFC 6675, 5", |lab| {
        recovers(lab, ms(450), 200_000, nth(|number| [40, 45, 50, 55].contains(&number)))
    })
    .about("Four segments of one window, apart from each other, are lost")
    .expects("Each partial acknowledgment makes the stack send the next lost segment again, without a timeout."),
    Case::new("tail-lost", "MUST RFC 9293, 3.10.8: retransmission timeout", "RFC 9293, 3.10.8; RFC 6298, 5", |lab| {
        const LEN: u32 = 20_000;
        let mut is_gone = false;
        let pause = transfer(lab.connect()?, LEN as usize, |client, segment| {
            let is_last = segment.end() == client.stack_isn.wrapping_add(1 + LEN);
            Ok(is_last && !std::mem::replace(&mut is_gone, true))
        })?;
        shorter_than(secs(4), pause)
    })
    .about("The last segment is lost, so there are no duplicate ACKs")
    .expects("The retransmission timer brings it within 4 seconds."),
    Case::new(
        "retransmission-lost",
        "MUST RFC 9293, 3.10.8: retransmission timeout",
        "RFC 9293, 3.10.8; RFC 6298, 5",
        |lab| {
            let (mut nth, mut victim, mut lost) = (nth(|number| number == 20), None, 0);
            recovers(lab, secs(5), 200_000, move |segment| {
                if nth(segment) {
                    victim = Some(segment.seq);
                }
                let loses = victim == Some(segment.seq) && lost < 2;
                lost += usize::from(loses);
                loses
            })
        },
    )
    .about("A segment is lost, and then its retransmission")
    .expects("The timer brings it once more, within 5 seconds."),
    Case::new(
        "many-lost",
        "MUST RFC 9293, 3.10.8: retransmission timeout",
        "RFC 9293, 3.10.8; RFC 5681, 3; RFC 6582, 3.2",
        |lab| recovers(lab, secs(3), 200_000, nth(|number| number % 10 == 0)),
    )
    .about("Every tenth segment of 200 KB is lost once")
    .expects("All data arrives. No pause is as long as three seconds."),
    Case::new("super-packet-lost", "ours", "RFC 6298, 5; RFC 5681, 3.2", |lab| {
        // The victim is the first packet with more than one segment, after 20 segments.
        let (mut previous, mut victim, mut count) = (0, None, 0);
        let mut seen = HashSet::new();
        let (mut client, served) = lab.connect_for_super_packets()?;
        deliver_with(&mut client, served, &pattern(21, 1 << 20), secs(10), |_, segment| {
            count += 1;
            if victim.is_none() && count > 20 && segment.packet == previous {
                // Its first segment has already been taken. The others are lost, once each.
                victim = Some(segment.packet);
            }
            previous = segment.packet;
            Ok(victim == Some(segment.packet) && seen.insert(segment.seq))
        })?;
        check!(victim.is_some(), "the stack sent no super-packet")
    })
    .about("A whole super-packet is lost")
    .expects("All of its segments come again, and all data arrives.")
    .offloading(),
    Case::new("acks-lost", "MUST RFC 9293, 3.4: cumulative ACKs", "RFC 9293, 3.4", |lab| {
        const LEN: usize = 100_000;
        let (mut client, served) = lab.connect()?;
        let sending = served.send(pattern(22, LEN), Then::Keep);
        let (mut got, mut count) = (Vec::new(), 0);
        let until = Instant::now() + patient(LATE);
        while got.len() < LEN {
            // After a pause the stack waits for an ACK.
            let Some(segment) = client.next_segment(ms(30))? else {
                check!(Instant::now() < until, Hang, "{} of {LEN} bytes came", got.len())?;
                client.ack()?;
                continue;
            };
            if segment.payload.is_empty() {
                continue;
            }
            check!(segment.seq == client.expected, "the stack sent something again")?;
            client.expected = segment.end();
            got.extend(&segment.payload);
            count += 1;
            if count % 4 == 0 {
                client.ack()?;
            }
        }
        client.ack()?;
        same(&got, &pattern(22, LEN))?;
        sending.finish()
    })
    .about("Three of four ACKs are lost")
    .expects("An ACK covers all before it: nothing is sent again."),
    Case::new("flight-ack-lost", "MAY RFC 8985, 7", "RFC 8985, 7", |lab| {
        const LEN: usize = 30_000;
        // With SACK, which RFC 8985, 4 asks for, and with an MSS that divides the length: Nagle's algorithm holds no
        // short segment.
        let (mut client, served) = lab.connect_with(&Offer { mss: Some(1000), sack: true, ..Offer::default() })?;
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
        sending.finish()?;
        applies!(probe.is_ok(), "it has no probe, and waits for its timeout")
    })
    .about("The only ACK of the last segments is lost")
    .expects(
        "A segment comes again as a probe, within 150 ms. The RFC is optional: a stack that waits for its timeout \
             is right, too.",
    ),
    Case::new("fast-retransmit", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 3.2", |lab| {
        check!(after_duplicates(lab, 3, patient(ms(100)))?, Speed, "the missing segment did not come within 100 ms")
    })
    .about("Three duplicate ACKs")
    .expects("The missing segment comes at once, without its timer."),
    Case::new("two-duplicate-acks", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 3.2", |lab| {
        // On a busy machine the timer can expire at the same moment, but not every time.
        for _ in 0..5 {
            if !after_duplicates(lab, 2, ms(100))? {
                return Ok(());
            }
        }
        fail!("a segment came again after two duplicate ACKs")
    })
    .about("Two duplicate ACKs, as reordering makes them")
    .expects("Nothing is sent again."),
    Case::new("backoff", "MUST RFC 6298, 5.5", "RFC 6298, 5.5", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        served.write(b"is anyone there?")?;
        let expected = client.expected;
        let mut at = Vec::new();
        // The first may be a probe (RFC 8985, 7).
        for _ in 0..4 {
            at.push(client.expect_within(secs(8), "retransmission", |segment| segment.seq == expected)?.at);
        }
        let (first, second) = (at[2] - at[1], at[3] - at[2]);
        check!(second > first.mul_f64(1.4), "retransmissions were {first:.2?} and {second:.2?} apart")
    })
    .about("The client acknowledges nothing any more")
    .expects("Each retransmission waits about twice as long as the one before."),
    Case::new("patient-timer", "SHOULD RFC 6298, 2.4", "RFC 6298, 2.4; RFC 9293, 3.8.6.3", |lab| {
        let (mut client, mut served) = lab.connect()?;
        (0..20).try_for_each(|_| exchange(&mut client, &mut served))?;
        served.write(b"slow")?;
        let first = client.expect_data()?;
        client.expect_none(ms(150), "the data again", |segment| segment.seq == first.seq)?;
        client.expected = first.end();
        client.ack()?;
        exchange(&mut client, &mut served)
    })
    .about("An ACK takes 150 ms, after others that came at once")
    .expects("A receiver may delay an ACK: nothing is sent again before it."),
    Case::new("duplicate-acks-sent", "SHOULD RFC 5681, 4.2: duplicate ACKs", "RFC 5681, 4.2", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        let bytes = pattern(24, 2000);
        let missing = client.next;
        for part in [500..1000, 1000..1500, 1500..2000] {
            client.put(client.part(&bytes, part))?;
            client.expect_within(ms(200), "duplicate ACK", |segment| segment.has(ACK) && segment.ack == missing)?;
        }
        client.put(client.part(&bytes, 0..500))?;
        client.sent(2000);
        client.acked(ms(600))?;
        served.reads(&bytes)
    })
    .about("A segment to the stack is lost, and three come after it")
    .expects("A duplicate ACK for each, at once. The missing one is acknowledged with all after it."),
    Case::new("lost-towards-the-stack", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(25, 10_000);
        for number in (0..19).filter(|number| ![2, 7, 8].contains(number)) {
            client.put(client.part(&bytes, number * 500..(number + 1) * 500))?;
        }
        repair(&mut client, &mut served, &bytes)
    })
    .about("Segments to the stack are lost, one, two in a row, and the last")
    .expects("The server reads all bytes once and in order when they have come again."),
    Case::new("recovery-time", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 3.2; RFC 6298, 2.4", |lab| {
        recovers(lab, SOON, 400_000, nth(|number| number == 150))
    })
    .about("One segment in the middle of 400 KB is lost")
    .expects("The missing bytes arrive within a second of the loss."),
];

/// Sends `len` bytes over a link that loses segments. Returns the longest time without new bytes in order.
pub(super) fn transfer(
    (mut client, served): (Client, Served),
    len: usize,
    mut is_lost: impl FnMut(&mut Client, &Segment) -> Step<bool>,
) -> Step<Duration> {
    let sending = served.send(pattern(20, len), Then::Keep);
    let (mut bytes, mut previous, mut longest) = (Vec::new(), Instant::now(), Duration::ZERO);
    while bytes.len() < len {
        let segment = client.expect_more()?;
        if is_lost(&mut client, &segment)? {
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
    sending.finish()?;
    Ok(longest)
}

pub(super) fn shorter_than(most: Duration, pause: Duration) -> Step {
    check!(pause < patient(most), Speed, "no new byte came for {pause:.2?}")
}

/// Transfers bytes, and checks that no pause is as long as `most`.
fn recovers(lab: &mut Lab, most: Duration, len: usize, mut is_lost: impl FnMut(&Segment) -> bool) -> Step {
    shorter_than(most, transfer(lab.connect()?, len, |_, segment| Ok(is_lost(segment)))?)
}

/// Loses segments by their numbers, counted from 1, once each.
pub(super) fn nth(is_lost: impl Fn(usize) -> bool) -> impl FnMut(&Segment) -> bool {
    let mut seen = HashSet::new();
    move |segment| seen.insert(segment.seq) && is_lost(seen.len())
}

/// Sends `count` duplicate ACKs in a long transfer. Returns whether their segment came again in time.
fn after_duplicates(lab: &mut Lab, count: usize, within: Duration) -> Step<bool> {
    let (mut client, served) = lab.connect()?;
    let _sending = served.send(pattern(23, 200_000), Then::Keep);
    client.receive(50_000, LATE)?;
    // Wait for the segments in flight and for probes (RFC 8985, 7), and acknowledge none of them.
    thread::sleep(ms(60));
    client.forget()?;
    let missing = client.expected;
    (0..count).try_for_each(|_| client.ack())?;
    let until = Instant::now() + within;
    let mut came = false;
    while let Some(segment) = client.segment_until(until)? {
        came |= segment.seq == missing;
    }
    Ok(came)
}
