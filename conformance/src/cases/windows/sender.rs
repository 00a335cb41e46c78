//! The client's window when it is closed for long, or smaller than a segment.

use super::{closed, closed_with, opened};
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("probes-answered", "ours", "RFC 9293, 3.8.6.1; the promise of StackConfig::user_timeout", |lab| {
        let (mut client, sending, bytes) = closed(lab)?;
        let until = Instant::now() + secs(3);
        while client.segment_until(until)?.is_some() {
            client.ack()?;
        }
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client's window is closed for 3 seconds, and each probe is answered; the timeout is 1.2 seconds")
    .expects("The connection stays open, and all data arrives when the window opens.")
    .with(|config| config.user_timeout = ms(1200)),
    Case::new("probe-backoff", "SHLD-30", "RFC 9293, 3.8.6.1", |lab| {
        let (mut client, _sending, _) = closed(lab)?;
        let mut at = vec![Instant::now()];
        for _ in 0..2 {
            at.push(client.expect_probe()?.at);
            client.ack()?;
        }
        let (first, second) = (at[1] - at[0], at[2] - at[1]);
        let has_grown = second > first.mul_f64(1.3);
        check!(has_grown, "the first probe came after {first:.2?}, and the second after {second:.2?}")
    })
    .about("The client answers each probe of its closed window")
    .expects("The second probe waits longer than the first."),
    Case::new("probe-taken", "MUST-36", "RFC 9293, 3.8.6.1", |lab| {
        let (mut client, sending, mut bytes) = closed(lab)?;
        for _ in 0..2 {
            let probe = client.expect_probe()?;
            applies!(!probe.payload.is_empty(), "the stack's probes have no data")?;
            client.take(probe, &mut bytes)?;
        }
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client takes the bytes of two probes, and its window stays closed")
    .expects("The next byte is the next one to be sent: all data arrives once and in order."),
    Case::new("tiny-window", "MUST RFC 9293, 3.8.6: within the window", "RFC 9293, 3.8.6.2.1", |lab| {
        let (mut client, served) = lab.connect_with(&Offer { window: 100, ..Offer::default() })?;
        let within = |client: &mut Client, segment: &Segment| client.within(100, segment).map(|()| false);
        deliver_with(&mut client, served, &pattern(125, 2000), LATE, within).map(drop)
    })
    .about("The client's window is never more than 100 bytes")
    .expects("No segment is beyond the window, and 2,000 bytes arrive within 5 seconds."),
    Case::new("odd-window", "SHOULD RFC 9293, 3.8.6.2.1: override timeout", "RFC 9293, 3.8.6.2.1", |lab| {
        let begin = Instant::now();
        let (mut client, sending, bytes) = closed_with(lab, 3700, 20_000, Then::Shutdown)?;
        let after = begin.elapsed();
        check!(after < patient(secs(2)), "the window was full after {after:.2?}")?;
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client's window has room for 3.7 segments")
    .expects("The last 700 bytes of the window are used too, at the latest after the override timeout of a second."),
];
