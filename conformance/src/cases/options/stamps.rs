//! Timestamps.

use std::io::ErrorKind;
use std::time::Duration;

use platform::packet::flags::{ACK, PSH, RST};

use super::super::segments::{deliver_up_to, part};
use crate::lab::exchange;
use crate::wire::TIMESTAMPS;
use crate::{
    Client, LATE, Lab, Offer, Out, SOON, Served, Setup, Step, Then, applies, check, distance, patient, pattern, same,
};

/// The first timestamp of the client.
const BEGIN: u32 = 1000;

/// Connects with timestamps and an MSS of 1,000, or ends the case if the stack does not agree.
fn connect(setup: &Setup) -> Step<(Lab, Client, Served)> {
    connect_at(setup, BEGIN)
}

/// The same with another first timestamp.
fn connect_at(setup: &Setup, begin: u32) -> Step<(Lab, Client, Served)> {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.stamps = Some([begin, 0]);
    let syn_ack = client.open(&Offer { mss: Some(1000), ..Offer::default() })?;
    let served = lab.accept()?;
    applies(syn_ack.stamps().is_some(), || "the stack has no timestamps".to_owned())?;
    Ok((lab, client, served))
}

/// Sets the timestamp of the client's next segments.
fn at(client: &mut Client, stamp: u32) {
    if let Some([own, _]) = &mut client.stamps {
        *own = stamp;
    }
}

pub(super) fn timestamps_not_offered(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer::default())?;
    let mut served = lab.accept()?;
    exchange(&mut client, &mut served)?;
    let sending = served.send(pattern(170, 20_000), Then::Keep);
    let mut count = usize::from(syn_ack.option(TIMESTAMPS).is_some());
    client.receive_with(20_000, LATE, |segment| {
        count += usize::from(segment.option(TIMESTAMPS).is_some());
        false
    })?;
    check(count == 0, || format!("{count} segments have a timestamp"))?;
    drop(sending.finish()?);
    lab.finish()
}

pub(super) fn timestamps_in_every_segment(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    let mut last = None;
    for round in 1..=5 {
        at(&mut client, BEGIN + round);
        client.data(b"ping")?;
        let ack = client.acked(SOON)?;
        check(ack.stamps().is_some(), || "an ACK has no timestamp".to_owned())?;
        same(&served.read(4)?, b"ping")?;
    }
    let sending = served.send(pattern(171, 20_000), Then::Shutdown);
    let (mut missing, mut back) = (0, 0);
    let bytes = client.receive_to_end_with(|segment| {
        match segment.stamps() {
            None => missing += 1,
            Some([own, _]) => back += usize::from(last.replace(own).is_some_and(|last| distance(last, own) < 0)),
        }
        false
    })?;
    same(&bytes, &pattern(171, 20_000))?;
    check(missing == 0, || format!("{missing} segments have no timestamp"))?;
    check(back == 0, || format!("{back} timestamps are before the last one"))?;
    drop(sending.finish()?);
    lab.finish()
}

pub(super) fn timestamps_echoed(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    let begin = client.next;
    for stamp in [BEGIN + 100, BEGIN + 101] {
        at(&mut client, stamp);
        client.data(b"data")?;
    }
    let mut from = begin;
    while from != client.next {
        let ack = client.expect("ACK", |segment| segment.has(ACK) && distance(from, segment.ack) > 0)?;
        let expected = if from == begin { BEGIN + 100 } else { BEGIN + 101 };
        let echo = ack.stamps().map(|[_, echo]| echo);
        check(echo == Some(expected), || format!("the ACK echoes {echo:?} in place of {expected}"))?;
        from = ack.ack;
    }
    same(&served.read(8)?, b"datadata")?;
    lab.finish()
}

pub(super) fn timestamps_echoed_at_a_hole(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    let bytes = pattern(172, 3000);
    for (stamp, from, expected, acked) in
        [(BEGIN + 10, 0, BEGIN + 10, 1000), (BEGIN + 20, 2000, BEGIN + 10, 1000), (BEGIN + 30, 1000, BEGIN + 30, 3000)]
    {
        at(&mut client, stamp);
        client.put(part(&client, &bytes, from, from + 1000))?;
        let number = client.next.wrapping_add(acked);
        let ack = client.expect("ACK", |segment| segment.has(ACK) && segment.ack == number)?;
        let echo = ack.stamps().map(|[_, echo]| echo);
        check(echo == Some(expected), || format!("the ACK of segment {stamp} echoes {echo:?} in place of {expected}"))?;
    }
    same(&served.read(3000)?, &bytes)?;
    lab.finish()
}

pub(super) fn paws(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    at(&mut client, BEGIN + 10_000);
    exchange(&mut client, &mut served)?;
    client.forget()?;
    at(&mut client, BEGIN);
    client.put(part(&client, b"old!", 0, 4))?;
    let next = client.next;
    client.expect("ACK of what is expected", |segment| segment.has(ACK) && segment.ack == next)?;
    check(served.is_quiet(Duration::from_millis(20)), || "the old segment was delivered".to_owned())?;
    at(&mut client, BEGIN + 10_001);
    exchange(&mut client, &mut served)?;
    lab.finish()
}

pub(super) fn paws_rst(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    at(&mut client, BEGIN + 10_000);
    exchange(&mut client, &mut served)?;
    at(&mut client, BEGIN);
    client.put(Out { flags: RST | ACK, ..client.out() })?;
    let kind = served.read_error()?;
    check(kind == ErrorKind::ConnectionReset, || format!("the error is \"{kind}\""))?;
    lab.finish()
}

pub(super) fn timestamp_missing(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    exchange(&mut client, &mut served)?;
    let stamps = client.stamps.take();
    client.put(part(&client, b"data", 0, 4))?;
    client.expect_none(Duration::from_millis(50), "a RST", |segment| segment.has(RST))?;
    client.stamps = stamps;
    client.put(Out { flags: ACK | PSH, ..part(&client, b"data", 0, 4) })?;
    client.next = client.next.wrapping_add(4);
    same(&served.read(4)?, b"data")?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

pub(super) fn timestamps_wrap(setup: &Setup) -> Step {
    let begin = u32::MAX - 2;
    let (lab, mut client, mut served) = connect_at(setup, begin)?;
    for round in 0..6 {
        at(&mut client, begin.wrapping_add(round));
        exchange(&mut client, &mut served)?;
    }
    lab.finish()
}

pub(super) fn tsecr_nonsense(setup: &Setup) -> Step {
    const LEN: usize = 50_000;
    let (lab, mut client, mut served) = connect(setup)?;
    exchange(&mut client, &mut served)?;
    let sending = served.send(pattern(173, LEN), Then::Keep);
    let (begin, mut bytes, mut lost) = (client.expected, Vec::new(), None);
    let echoes = [0, 1, u32::MAX, 1 << 31, 0x7fff_ffff, BEGIN];
    while bytes.len() < LEN {
        let limit = Duration::from_secs(4);
        let segment = client.expect_within(limit, "more data", |segment| !segment.payload.is_empty())?;
        let is_last = segment.end().wrapping_sub(begin) as usize == LEN;
        if is_last && lost.is_none() {
            lost = Some(segment.at);
            continue;
        }
        if let Some([_, echo]) = &mut client.stamps {
            *echo = echoes[bytes.len() / 1000 % echoes.len()];
        }
        client.take(segment, &mut bytes)?;
    }
    same(&bytes, &pattern(173, LEN))?;
    let pause = lost.map(|lost| lost.elapsed());
    check(pause.is_some_and(|pause| pause < patient(Duration::from_secs(4))), || {
        format!("the last segment came after {pause:.2?}")
    })?;
    drop(sending.finish()?);
    lab.finish()
}

pub(super) fn mss_less_timestamps(setup: &Setup) -> Step {
    let (lab, mut client, served) = connect(setup)?;
    deliver_up_to(&mut client, served, &pattern(174, 20_000), 988)?;
    lab.finish()
}
