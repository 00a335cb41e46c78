//! The client's window when it is closed for long, or smaller than a segment.

use std::time::{Duration, Instant};

use super::{closed, closed_with, opened};
use crate::{Case, LATE, Offer, Setup, Step, Then, applies, check, distance, patient, pattern, same};

/// How soon a window is probed.
const PROBE: Duration = Duration::from_secs(4);

pub(in super::super) const CASES: &[Case] = &[
    Case::new("probes-answered", probes_answered, "RFC 9293, 3.8.6.1, MUST-37")
        .about("The client's window is closed for 3 seconds, and each probe is answered; the timeout is 1.2 seconds")
        .expects("The connection stays open, and all data arrives when the window opens."),
    Case::new("probe-backoff", probe_backoff, "RFC 9293, 3.8.6.1, SHLD-30")
        .about("The client answers each probe of its closed window")
        .expects("The second probe waits longer than the first."),
    Case::new("probe-taken", probe_taken, "RFC 9293, 3.8.6.1")
        .about("The client takes the bytes of two probes, and its window stays closed")
        .expects("The next byte is the next one to be sent: all data arrives once and in order."),
    Case::new("tiny-window", tiny_window, "RFC 9293, 3.8.6.2.1")
        .about("The client's window is never more than 100 bytes")
        .expects("No segment is beyond the window, and 2,000 bytes arrive within 5 seconds."),
    Case::new("odd-window", odd_window, "RFC 9293, 3.8.6.2.1")
        .about("The client's window has room for 3.7 segments")
        .expects(
            "The last 700 bytes of the window are used too, at the latest after the override timeout of a second.",
        ),
];

fn probes_answered(setup: &Setup) -> Step {
    let lab = setup.start_with(|config| config.user_timeout = Duration::from_millis(1200))?;
    let (lab, mut client, sending, bytes) = closed_with(lab, 3000, 20_000, Then::Shutdown)?;
    let until = Instant::now() + Duration::from_secs(3);
    while client.segment_until(until)?.is_some() {
        client.ack()?;
    }
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}

fn probe_backoff(setup: &Setup) -> Step {
    let (lab, mut client, sending, _) = closed(setup)?;
    let mut at = vec![Instant::now()];
    for _ in 0..2 {
        at.push(client.expect_within(PROBE, "probe", |_| true)?.at);
        client.ack()?;
    }
    let (first, second) = (at[1] - at[0], at[2] - at[1]);
    check(second.as_secs_f64() > 1.3 * first.as_secs_f64(), || {
        format!("the first probe came after {first:.2?}, and the second after {second:.2?}")
    })?;
    drop(sending);
    lab.finish()
}

fn probe_taken(setup: &Setup) -> Step {
    let (lab, mut client, sending, mut bytes) = closed(setup)?;
    for _ in 0..2 {
        let probe = client.expect_within(PROBE, "probe", |_| true)?;
        applies(!probe.payload.is_empty(), || "the stack's probes have no data".to_owned())?;
        client.take(probe, &mut bytes)?;
    }
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}

fn tiny_window(setup: &Setup) -> Step {
    const LEN: usize = 2000;
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.window = 100;
    client.open(&Offer::default())?;
    let sending = lab.accept()?.send(pattern(125, LEN), Then::Keep);
    let (mut bytes, until) = (Vec::new(), Instant::now() + patient(LATE));
    while bytes.len() < LEN {
        let Some(segment) = client.segment_until(until)? else {
            return check(false, || format!("{} of {LEN} bytes came within {LATE:?}", bytes.len()));
        };
        let right = distance(client.expected, segment.end());
        check(right <= 100, || format!("data came {right} bytes ahead of a window of 100"))?;
        client.take(segment, &mut bytes)?;
    }
    same(&bytes, &pattern(125, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

fn odd_window(setup: &Setup) -> Step {
    let begin = Instant::now();
    let (lab, mut client, sending, bytes) = closed_with(setup.start()?, 3700, 20_000, Then::Shutdown)?;
    let after = begin.elapsed();
    check(after < patient(Duration::from_secs(2)), || format!("the window was full after {after:.2?}"))?;
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}
