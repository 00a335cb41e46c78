//! The retransmission timer.

use std::thread;
use std::time::Duration;

use crate::lab::exchange;
use crate::{Client, LATE, Offer, SOON, Served, Setup, Step, check, patient, pattern};

pub(super) fn timer_restarts(setup: &Setup) -> Step {
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.syn(&Offer { mss: Some(1000), ..Offer::default() })?;
    client.syn_ack(SOON)?;
    thread::sleep(ROUND_TRIP);
    client.ack()?;
    let mut served = lab.accept()?;
    for _ in 0..4 {
        served.write(b"data")?;
        client.expected = client.expect("data", |segment| !segment.payload.is_empty())?.end();
        thread::sleep(ROUND_TRIP);
        client.ack()?;
    }
    served.write(&pattern(144, 4000))?;
    let (mut sent, mut ends) = (client.expected, Vec::new());
    while sent != client.expected.wrapping_add(4000) {
        sent = client.expect("the next segment", |segment| segment.seq == sent && !segment.payload.is_empty())?.end();
        ends.push(sent);
    }
    for end in ends {
        // A probe (RFC 8985, 7) would not come before two round trips.
        client.expect_none(Duration::from_millis(150), "a segment", |segment| !segment.payload.is_empty())?;
        client.expected = end;
        client.ack()?;
    }
    exchange(&mut client, &mut served)?;
    lab.finish()
}

/// Loses a segment of the server and its first retransmission, which may be a probe, and acknowledges the second one, each of
/// which must come `within` a time. Returns the time between the two retransmissions.
fn timeout(client: &mut Client, served: &mut Served, within: Duration) -> Step<Duration> {
    served.write(b"data")?;
    let first = client.expect("data", |segment| !segment.payload.is_empty())?;
    let mut at = Vec::new();
    for _ in 0..2 {
        at.push(client.expect_within(within, "retransmission", |segment| segment.seq == first.seq)?.at);
    }
    client.expected = first.end();
    client.ack()?;
    Ok(at[1] - at[0])
}

pub(super) fn karn(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for _ in 0..5 {
        exchange(&mut client, &mut served)?;
    }
    let first = timeout(&mut client, &mut served, LATE)?;
    // The timer stays doubled, and is doubled again.
    let second = timeout(&mut client, &mut served, LATE.max(5 * first))?;
    check(second.as_secs_f64() > 1.5 * first.as_secs_f64(), || {
        format!("the first timeout was {first:.2?}, and the second {second:.2?}")
    })?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

pub(super) fn rto_restored(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for _ in 0..5 {
        exchange(&mut client, &mut served)?;
    }
    let first = timeout(&mut client, &mut served, LATE)?;
    for _ in 0..10 {
        exchange(&mut client, &mut served)?;
    }
    let second = timeout(&mut client, &mut served, LATE)?;
    check(second < patient(first.mul_f64(1.6)), || {
        format!("the first timeout was {first:.2?}, and the second {second:.2?}")
    })?;
    lab.finish()
}
