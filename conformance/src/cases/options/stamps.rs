//! Timestamps.

use super::super::segments::unusual::deliver_up_to;
use crate::prelude::*;

/// The first timestamp of the client.
const BEGIN: u32 = 1000;

pub(in super::super) const CASES: &[Case] = &[
    Case::new(
        "timestamps-not-offered",
        "MUST RFC 7323, 3.2: no timestamps without an option",
        "RFC 7323, 3.2",
        |lab| {
            let (mut client, served) = lab.connect_and_exchange()?;
            let mut count = usize::from(client.has_agreed(TIMESTAMPS));
            deliver_with(&mut client, served, &pattern(170, 20_000), LATE, |_, segment| {
                count += usize::from(segment.option(TIMESTAMPS).is_some());
                Ok(false)
            })?;
            check!(count == 0, "{count} segments have a timestamp")
        },
    )
    .about("The SYN has no timestamp")
    .expects("The SYN+ACK and all later segments have none."),
    Case::new("timestamps-in-every-segment", "MUST RFC 7323, 3.2: in every segment", "RFC 7323, 3.2", |lab| {
        let (mut client, mut served) = connect(lab, BEGIN)?;
        for round in 1..=5 {
            client.stamp(BEGIN + round);
            client.data(b"ping")?;
            let ack = client.acked(SOON)?;
            check!(ack.stamps().is_some(), "an ACK has no timestamp")?;
            served.reads(b"ping")?;
        }
        let sending = served.send(pattern(171, 20_000), Then::Shutdown);
        let (mut last, mut missing, mut back) = (None, 0, 0);
        let bytes = client.receive_until(None, LATE, |_, segment| {
            match segment.stamps() {
                None => missing += 1,
                Some([own, _]) => back += usize::from(last.replace(own).is_some_and(|last| distance(last, own) < 0)),
            }
            Ok(false)
        })?;
        same(&bytes, &pattern(171, 20_000))?;
        check!(missing == 0, "{missing} segments have no timestamp")?;
        check!(back == 0, "{back} timestamps are before the last one")?;
        sending.finish()
    })
    .about("A connection with timestamps carries data both ways and ends")
    .expects("Every segment has a timestamp, and none is before the last one."),
    Case::new("timestamps-echoed", "SHOULD RFC 7323, 4.3 (A)", "RFC 7323, 4.3", |lab| {
        let (mut client, mut served) = connect(lab, BEGIN)?;
        let begin = client.next;
        for stamp in [BEGIN + 100, BEGIN + 101] {
            client.stamp(stamp);
            client.data(b"data")?;
        }
        let mut from = begin;
        while from != client.next {
            let ack = client.expect("ACK", |segment| segment.has(ACK) && distance(from, segment.ack) > 0)?;
            let expected = if from == begin { BEGIN + 100 } else { BEGIN + 101 };
            let echo = ack.stamps().map(|[_, echo]| echo);
            check!(echo == Some(expected), "the ACK echoes {echo:?} in place of {expected}")?;
            from = ack.ack;
        }
        served.reads(b"datadata")
    })
    .about("Two segments with different timestamps arrive together")
    .expects("An ACK has the timestamp of the first segment that it acknowledges."),
    Case::new("timestamps-echoed-at-a-hole", "MUST RFC 7323, 4.3 (C)", "RFC 7323, 4.3", |lab| {
        let (mut client, mut served) = connect(lab, BEGIN)?;
        let bytes = pattern(172, 3000);
        for (stamp, from, expected, acked) in [
            (BEGIN + 10, 0, BEGIN + 10, 1000),
            (BEGIN + 20, 2000, BEGIN + 10, 1000),
            (BEGIN + 30, 1000, BEGIN + 30, 3000),
        ] {
            client.stamp(stamp);
            client.put(client.part(&bytes, from..from + 1000))?;
            let number = client.next.wrapping_add(acked);
            let ack = client.expect("ACK", |segment| segment.has(ACK) && segment.ack == number)?;
            let echo = ack.stamps().map(|[_, echo]| echo);
            check!(echo == Some(expected), "the ACK of segment {stamp} echoes {echo:?} in place of {expected}")?;
        }
        served.reads(&bytes)
    })
    .about("A segment arrives out of order, and later the one before it")
    .expects(
        "The first ACK has the timestamp of the last segment in order, the second one of the segment that fills \
             the hole.",
    ),
    Case::new("paws", "MAY RFC 7323, 5.3", "RFC 7323, 5.3, R1", |lab| {
        let (mut client, mut served) = exchanged(lab, BEGIN + 10_000)?;
        client.forget()?;
        client.stamp(BEGIN);
        client.put(client.part(b"old!", 0..4))?;
        client.expect_state()?;
        check!(served.is_quiet(ms(20)), Data, "the old segment was delivered")?;
        client.stamp(BEGIN + 10_001);
        exchange(&mut client, &mut served)
    })
    .about("A data segment within the window has a timestamp from before the last one")
    .expects("It is dropped and answered with an ACK. The right one is delivered."),
    Case::new("paws-rst", "MUST RFC 7323, 5.2: no PAWS for RST", "RFC 7323, 5.2 and 5.3", |lab| {
        let (mut client, mut served) = exchanged(lab, BEGIN + 10_000)?;
        client.stamp(BEGIN);
        client.rst()?;
        served.reads_reset()
    })
    .about("A RST with the right number has an old timestamp")
    .expects("A RST is never dropped for its timestamp: reads fail with \"connection reset\"."),
    Case::new("timestamp-missing", "MUST RFC 7323, 3.2: no abort", "RFC 7323, 3.2", |lab| {
        let (mut client, mut served) = exchanged(lab, BEGIN)?;
        let stamps = client.stamps.take();
        client.put(client.part(b"data", 0..4))?;
        client.no_rst(ms(50))?;
        client.stamps = stamps;
        client.data(b"data")?;
        served.reads(b"data")?;
        exchange(&mut client, &mut served)
    })
    .about("A segment has no timestamp although the connection has them, and comes again with one")
    .expects("It is dropped or taken, but the connection is not aborted. The server reads the data once."),
    Case::new("timestamps-wrap", "MUST RFC 7323, 5.2: unsigned arithmetic", "RFC 7323, 5.3", |lab| {
        let begin = u32::MAX - 2;
        let (mut client, mut served) = connect(lab, begin)?;
        for round in 0..6 {
            client.stamp(begin.wrapping_add(round));
            exchange(&mut client, &mut served)?;
        }
        Ok(())
    })
    .about("The client's timestamps pass 2³²")
    .expects("All segments are delivered."),
    Case::new("tsecr-nonsense", "ours", "RFC 7323, 3.2 and 4.1", |lab| {
        const LEN: usize = 50_000;
        const ECHOES: [u32; 6] = [0, 1, u32::MAX, 1 << 31, 0x7fff_ffff, BEGIN];
        let (mut client, served) = exchanged(lab, BEGIN)?;
        let sending = served.send(pattern(173, LEN), Then::Keep);
        let (begin, mut bytes, mut lost) = (client.expected, Vec::new(), None);
        while bytes.len() < LEN {
            let segment = client.expect_within(secs(4), "more data", |segment| !segment.payload.is_empty())?;
            let is_last = segment.end().wrapping_sub(begin) as usize == LEN;
            if is_last && lost.is_none() {
                lost = Some(segment.at);
                continue;
            }
            if let Some([_, echo]) = &mut client.stamps {
                *echo = ECHOES[bytes.len() / 1000 % ECHOES.len()];
            }
            client.take(segment, &mut bytes)?;
        }
        same(&bytes, &pattern(173, LEN))?;
        let pause = lost.map(|lost| lost.elapsed());
        check!(pause.is_some_and(|pause| pause < patient(secs(4))), Speed, "the last segment came after {pause:.2?}")?;
        sending.finish()
    })
    .about("The client's ACKs echo timestamps that the stack never sent; the last segment is lost")
    .expects("The timeout does not grow without bound: the segment comes again within 4 seconds."),
    Case::new("mss-less-timestamps", "MUST-16", "RFC 6691, 2; RFC 9293, 3.7.1", |lab| {
        let (mut client, served) = connect(lab, BEGIN)?;
        deliver_up_to(&mut client, served, &pattern(174, 20_000), 988)
    })
    .about("The client takes segments of 1,000 bytes, and the connection has timestamps")
    .expects("Options count: no segment has more than 988 bytes."),
];

/// Connects with timestamps and an MSS of 1,000, or ends the case if the stack does not agree.
fn connect(lab: &mut Lab, begin: u32) -> Step<(Client, Served)> {
    let (client, served) = lab.connect_with(&Offer { mss: Some(1000), stamp: Some(begin), ..Offer::default() })?;
    applies!(client.has_agreed(TIMESTAMPS), "the stack has no timestamps")?;
    Ok((client, served))
}

/// The same after bytes both ways, the last of which have this timestamp.
fn exchanged(lab: &mut Lab, stamp: u32) -> Step<(Client, Served)> {
    let (mut client, mut served) = connect(lab, BEGIN)?;
    client.stamp(stamp);
    exchange(&mut client, &mut served)?;
    Ok((client, served))
}
