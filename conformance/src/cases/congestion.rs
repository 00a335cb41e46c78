//! Congestion control, the retransmission timer, and ECN.

mod ecn;
mod timer;

use std::time::Duration;

use platform::packet::flags::{ACK, PSH};

use self::ecn::{ecn_echo, ecn_not_asked, ecn_reduces};
use self::timer::{karn, rto_restored, timer_restarts};
use crate::lab::exchange;
use crate::server::Sending;
use crate::wire::Segment;
use crate::{
    Case, Client, LATE, Lab, Offer, Out, SOON, Setup, Step, Then, applies, check, distance, patient, pattern, same,
};

/// A pause after which a flight is over. It is shorter than any retransmission timeout of the stacks.
const QUIET: Duration = Duration::from_millis(60);

/// The MSS of the client.
const MSS: usize = 1460;

pub(super) const CASES: &[Case] = &[
    Case::new("initial-window", initial_window, "RFC 6928, 2")
        .about("The server writes 100 KB at once to a new client with a window of 8 MB")
        .expects("At most ten segments, 14,600 bytes, come before the first ACK."),
    Case::new("initial-window-small-mss", initial_window_small_mss, "RFC 6928, 2")
        .about("The same with an MSS of 500")
        .expects("At most ten segments, 5,000 bytes, come before the first ACK."),
    Case::new("slow-start", slow_start, "RFC 5681, 3.1")
        .about("The client acknowledges its first segment in 20 parts")
        .expects("The congestion window grows by the bytes, not by the ACKs: at most four new segments come."),
    Case::new("one-segment-after-timeout", one_segment_after_timeout, "RFC 5681, 3.1")
        .about("A whole flight is lost, and nothing is acknowledged")
        .expects("The congestion window is one segment after the timeout: no other comes with the first one."),
    Case::new("slow-start-after-timeout", slow_start_after_timeout, "RFC 5681, 3.1")
        .about("The same; then the client acknowledges the one segment")
        .expects("Two segments come, and no more."),
    Case::new("halving", halving, "RFC 5681, 3.2; RFC 9438, 4.6")
        .about("One segment of a flight is lost, and duplicate ACKs report it")
        .expects(
            "The next flight is smaller, at most three quarters as long: half of it is usual, and 70 % with CUBIC.",
        ),
    Case::new("limited-transmit", limited_transmit, "RFC 5681, 3.2; RFC 3042, 2")
        .about("Two duplicate ACKs, one after the other")
        .expects("Each brings a new segment."),
    Case::new("idle-restart", idle_restart, "RFC 5681, 4.1")
        .about("After 200 KB, the server is idle for 1.3 seconds and then writes 100 KB")
        .expects("At most ten segments, 14,600 bytes, come before the first ACK."),
    Case::new("acks-with-data", acks_with_data, "RFC 5681, 2")
        .about("Five data segments with the same acknowledgement")
        .expects("They are no duplicate ACKs: nothing is sent again."),
    Case::new("window-updates", window_updates, "RFC 5681, 2")
        .about("Five ACKs with the same number, each with a larger window")
        .expects("They are no duplicate ACKs: nothing is sent again."),
    Case::new("ack-every-second", ack_every_second, "RFC 5681, 4.2; RFC 9293, 3.8.6.3, SHLD-19")
        .about("Two full segments arrive, 40 times")
        .expects("The second one is acknowledged at once. All take less than a second."),
    Case::new("timer-restarts", timer_restarts, "RFC 6298, 5.3")
        .about("On a path of 100 ms, four segments are acknowledged one after the other, each 150 ms after the last")
        .expects("Each ACK restarts the timer: nothing is sent again."),
    Case::new("karn", karn, "RFC 6298, 3 and 5.5")
        .about(
            "A segment and its retransmission are lost, the second one is acknowledged at once, and then the same \
             again",
        )
        .expects(
            "The ACK is no sample of the round-trip time, so the doubled timeout stays: the second time takes longer.",
        ),
    Case::new("rto-restored", rto_restored, "RFC 6298, 2 and 5")
        .about("The same with ten exchanges before the next loss")
        .expects("New samples bring the timeout back to its first value."),
    Case::new("ecn-not-asked", ecn_not_asked, "RFC 3168, 6.1.1 and 6.1.3")
        .about("A packet with the mark \"congestion experienced\" on a connection without ECN")
        .expects("The data is delivered. No ACK has ECE, and no packet says that it can be marked."),
    Case::new("ecn-echo", ecn_echo, "RFC 3168, 6.1.3")
        .about("The same on a connection with ECN; later the client says that it has slowed down")
        .expects("All ACKs have ECE until the segment with CWR comes, and none after it."),
    Case::new("ecn-reduces", ecn_reduces, "RFC 3168, 6.1.2")
        .about("The client's ACKs have ECE, on a connection with ECN")
        .expects("A segment with CWR comes, and the next flight is no longer than the last."),
];

/// Takes in all segments until none comes for a moment, and acknowledges nothing. Returns those with a payload.
fn flight(client: &mut Client) -> Step<Vec<Segment>> {
    let mut flight = Vec::new();
    while let Some(segment) = client.next_segment(QUIET)? {
        if !segment.payload.is_empty() {
            flight.push(segment);
        }
    }
    Ok(flight)
}

/// Returns how far the segments reach beyond the acknowledged bytes.
fn reach(client: &Client, flight: &[Segment]) -> usize {
    flight.iter().map(|segment| distance(client.expected, segment.end()).max(0) as usize).max().unwrap_or(0)
}

/// Opens a connection whose window limits no flight, and begins to write.
fn begin(setup: &Setup, mss: usize, len: usize) -> Step<(Lab, Client, Sending)> {
    let mut lab = setup.start()?;
    let (client, served) = lab.connect_with(&Offer { mss: Some(mss as u16), scale: Some(7), ..Offer::default() })?;
    Ok((lab, client, served.send(pattern(140, len), Then::Keep)))
}

/// Checks the flight before the first ACK, and then that all data arrives.
fn initial(setup: &Setup, mss: usize) -> Step {
    const LEN: usize = 100_000;
    let (lab, mut client, sending) = begin(setup, mss, LEN)?;
    let (mut bytes, first) = (Vec::new(), flight(&mut client)?);
    let reach = reach(&client, &first);
    check((1..=10 * mss).contains(&reach), || format!("{reach} bytes came before the first ACK"))?;
    for segment in first {
        client.take(segment, &mut bytes)?;
    }
    bytes.extend(client.receive(LEN - bytes.len(), LATE)?);
    same(&bytes, &pattern(140, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

fn initial_window(setup: &Setup) -> Step {
    initial(setup, MSS)
}

fn initial_window_small_mss(setup: &Setup) -> Step {
    initial(setup, 500)
}

fn slow_start(setup: &Setup) -> Step {
    let (lab, mut client, sending) = begin(setup, MSS, 400_000)?;
    let first = flight(&mut client)?;
    let before = reach(&client, &first);
    for _ in 0..20 {
        client.expected = client.expected.wrapping_add(MSS as u32 / 20);
        client.ack()?;
    }
    let acknowledged = MSS / 20 * 20;
    let second = flight(&mut client)?;
    let new = (reach(&client, &second) + acknowledged).saturating_sub(before);
    check(new <= 4 * MSS, || format!("20 ACKs for {acknowledged} bytes brought {new} new bytes"))?;
    drop(sending);
    lab.finish()
}

/// Loses a whole flight, and waits for the timeout. Returns the first segment that comes again.
fn timed_out(setup: &Setup) -> Step<(Lab, Client, Sending, Segment)> {
    let (lab, mut client, sending) = begin(setup, MSS, 400_000)?;
    client.receive(20_000, LATE)?;
    flight(&mut client)?;
    let missing = client.expected;
    let again = client.expect_within(LATE, "retransmission", |segment| segment.seq == missing)?;
    Ok((lab, client, sending, again))
}

fn one_segment_after_timeout(setup: &Setup) -> Step {
    let (lab, mut client, sending, _) = timed_out(setup)?;
    client.expect_none(Duration::from_millis(150), "a second segment", |segment| !segment.payload.is_empty())?;
    drop(sending);
    lab.finish()
}

fn slow_start_after_timeout(setup: &Setup) -> Step {
    let (lab, mut client, sending, again) = timed_out(setup)?;
    client.expected = again.end();
    client.forget()?;
    client.ack()?;
    let next = flight(&mut client)?;
    check((1..=2).contains(&next.len()), || format!("{} segments came after the ACK", next.len()))?;
    drop(sending);
    lab.finish()
}

/// Acknowledges this many flights, so that the congestion window grows. Returns the next flight, which is not acknowledged.
fn grown(client: &mut Client, flights: usize) -> Step<Vec<Segment>> {
    for _ in 0..flights {
        for segment in flight(client)? {
            client.take(segment, &mut Vec::new())?;
        }
    }
    let flight = flight(client)?;
    check(!flight.is_empty(), || "nothing came after the first ACKs".to_owned())?;
    Ok(flight)
}

fn halving(setup: &Setup) -> Step {
    let (lab, mut client, sending) = begin(setup, MSS, 1_000_000)?;
    let mut flights = grown(&mut client, 2)?;
    let (lost, before) = (flights[0].seq, reach(&client, &flights));
    // Each segment after the lost one makes a duplicate ACK.
    for _ in &flights[1..] {
        client.ack()?;
    }
    let again = client.expect("the lost segment", |segment| segment.seq == lost && !segment.payload.is_empty())?;
    flights.push(again);
    flights.extend(flight(&mut client)?);
    client.expected = client.expected.wrapping_add(reach(&client, &flights) as u32);
    client.ack()?;
    let next = flight(&mut client)?;
    let after = reach(&client, &next);
    check((1..=before * 3 / 4).contains(&after), || {
        format!("{after} bytes came at once after a loss, and {before} before it")
    })?;
    drop(sending);
    lab.finish()
}

fn limited_transmit(setup: &Setup) -> Step {
    let (lab, mut client, sending) = begin(setup, MSS, 1_000_000)?;
    let flight = grown(&mut client, 1)?;
    let mut sent = reach(&client, &flight);
    applies(sent <= 60_000, || "no congestion window limits the flight".to_owned())?;
    for _ in 0..2 {
        // Linux waits for more to send if it has sent something in the last millisecond.
        std::thread::sleep(Duration::from_millis(5));
        client.ack()?;
        let (expected, most) = (client.expected, sent);
        let beyond = |segment: &Segment| distance(expected, segment.end()).max(0) as usize;
        let new = client.expect_within(Duration::from_millis(150), "new segment", |segment| beyond(segment) > most)?;
        sent = beyond(&new);
    }
    drop(sending);
    lab.finish()
}

fn idle_restart(setup: &Setup) -> Step {
    let (lab, mut client, sending) = begin(setup, MSS, 200_000)?;
    same(&client.receive(200_000, LATE)?, &pattern(140, 200_000))?;
    let Some(served) = sending.finish()? else { return Ok(()) };
    std::thread::sleep(Duration::from_millis(1300));
    let sending = served.send(pattern(141, 100_000), Then::Keep);
    let first = flight(&mut client)?;
    let reach = reach(&client, &first);
    check((1..=10 * MSS).contains(&reach), || format!("{reach} bytes came at once after the pause"))?;
    drop(sending);
    lab.finish()
}

/// Checks that nothing comes again while `acknowledge` sends ACKs with the number of a whole flight.
fn no_duplicates(setup: &Setup, mut acknowledge: impl FnMut(&mut Client) -> Step) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    client.window = 20_000;
    client.ack()?;
    let sending = served.send(pattern(142, 200_000), Then::Keep);
    client.receive(50_000, LATE)?;
    flight(&mut client)?;
    for _ in 0..5 {
        acknowledge(&mut client)?;
    }
    let missing = client.expected;
    client.expect_none(Duration::from_millis(80), "the first segment", |segment| {
        segment.seq == missing && !segment.payload.is_empty()
    })?;
    drop(sending);
    lab.finish()
}

fn acks_with_data(setup: &Setup) -> Step {
    no_duplicates(setup, |client| client.data(&[b'x'; 100]))
}

fn window_updates(setup: &Setup) -> Step {
    no_duplicates(setup, |client| {
        client.window += 1000;
        client.ack()
    })
}

fn ack_every_second(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    let bytes = pattern(143, 2 * MSS);
    let mut whole = Duration::ZERO;
    for _ in 0..40 {
        let begin = std::time::Instant::now();
        for payload in bytes.chunks(MSS) {
            client.put(Out { flags: ACK | PSH, payload, ..client.out() })?;
            client.next = client.next.wrapping_add(payload.len() as u32);
        }
        client.acked(SOON)?;
        whole += begin.elapsed();
        same(&served.read(bytes.len())?, &bytes)?;
    }
    check(whole < patient(SOON), || format!("the ACKs took {whole:.2?}"))?;
    lab.finish()
}
