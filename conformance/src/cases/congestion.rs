//! Congestion control, the retransmission timer, and ECN.

pub(super) mod ecn;
pub(super) mod timer;

use crate::prelude::*;

/// A pause after which a flight is over. It is shorter than any retransmission timeout of the stacks.
const QUIET: Duration = ms(60);

/// The MSS of the client.
const MSS: usize = 1460;

pub(super) const CASES: &[Case] = &[
    Case::new("initial-window", "MUST RFC 5681, 3.1: initial window", "RFC 5681, 3.1; RFC 6928, 2", |lab| {
        initial(lab, MSS)
    })
    .about("The server writes 100 KB at once to a new client with a window of 8 MB")
    .expects("At most ten segments, 14,600 bytes, come before the first ACK."),
    Case::new("initial-window-small-mss", "MUST RFC 5681, 3.1: initial window", "RFC 5681, 3.1; RFC 6928, 2", |lab| {
        initial(lab, 500)
    })
    .about("The same with an MSS of 500")
    .expects("At most ten segments, 5,000 bytes, come before the first ACK."),
    Case::new("slow-start", "SHOULD RFC 5681, 3.1: growth by bytes", "RFC 5681, 3.1", |lab| {
        let (mut client, _sending) = begin(lab, MSS, 400_000)?;
        let first = client.flight(QUIET)?;
        let before = client.reach(&first);
        (0..20).try_for_each(|_| client.ack_to(client.expected.wrapping_add(MSS as u32 / 20)))?;
        let acknowledged = MSS / 20 * 20;
        let second = client.flight(QUIET)?;
        let new = (client.reach(&second) + acknowledged).saturating_sub(before);
        check!(new <= 4 * MSS, "20 ACKs for {acknowledged} bytes brought {new} new bytes")
    })
    .about("The client acknowledges its first segment in 20 parts")
    .expects("The congestion window grows by the bytes, not by the ACKs: at most four new segments come."),
    Case::new("one-segment-after-timeout", "MUST RFC 5681, 3.1: loss window", "RFC 5681, 3.1", |lab| {
        let (mut client, _sending, _) = timed_out(lab)?;
        client.expect_none(ms(150), "a second segment", |segment| !segment.payload.is_empty())
    })
    .about("A whole flight is lost, and nothing is acknowledged")
    .expects("The congestion window is one segment after the timeout: no other comes with the first one."),
    Case::new("slow-start-after-timeout", "MUST RFC 5681, 3.1: slow start", "RFC 5681, 3.1", |lab| {
        let (mut client, _sending, again) = timed_out(lab)?;
        client.forget()?;
        client.ack_to(again.end())?;
        let next = client.flight(QUIET)?;
        check!((1..=2).contains(&next.len()), "{} segments came after the ACK", next.len())
    })
    .about("The same; then the client acknowledges the one segment")
    .expects("Two segments come, and no more."),
    Case::new("halving", "MUST RFC 5681, 3.2: less after a loss", "RFC 5681, 3.2; RFC 9438, 4.6", |lab| {
        let (mut client, _sending) = begin(lab, MSS, 1_000_000)?;
        let mut flights = grown(&mut client, 2)?;
        let (lost, before) = (flights[0].seq, client.reach(&flights));
        // Each segment after the lost one makes a duplicate ACK.
        flights[1..].iter().try_for_each(|_| client.ack())?;
        let again = client.expect("the lost segment", |segment| segment.seq == lost && !segment.payload.is_empty())?;
        flights.push(again);
        flights.extend(client.flight(QUIET)?);
        client.ack_to(client.expected.wrapping_add(client.reach(&flights) as u32))?;
        let next = client.flight(QUIET)?;
        let after = client.reach(&next);
        let is_less = (1..=before * 3 / 4).contains(&after);
        check!(is_less, Hang, "{after} bytes came at once after a loss, and {before} before it")
    })
    .about("One segment of a flight is lost, and duplicate ACKs report it")
    .expects("The next flight is smaller, at most three quarters as long: half of it is usual, and 70 % with CUBIC."),
    Case::new("limited-transmit", "SHOULD RFC 5681, 3.2: limited transmit", "RFC 5681, 3.2; RFC 3042, 2", |lab| {
        let (mut client, _sending) = begin(lab, MSS, 1_000_000)?;
        let mut flight = grown(&mut client, 1)?;
        let sent = client.reach(&flight);
        applies!(sent <= 60_000, "no congestion window limits the flight")?;
        for _ in 0..2 {
            // Linux waits for more to send if it has sent something in the last millisecond.
            thread::sleep(ms(5));
            client.ack()?;
            let sent = client.expected.wrapping_add(client.reach(&flight) as u32);
            flight.push(client.expect_within(ms(150), "new segment", |segment| distance(sent, segment.end()) > 0)?);
        }
        Ok(())
    })
    .about("Two duplicate ACKs, one after the other")
    .expects("Each brings a new segment."),
    Case::new("idle-restart", "SHOULD RFC 5681, 4.1", "RFC 5681, 4.1", |lab| {
        let (mut client, sending) = begin(lab, MSS, 200_000)?;
        client.receives(&pattern(140, 200_000), LATE)?;
        let served = sending.served()?;
        thread::sleep(ms(1300));
        let _sending = served.send(pattern(141, 100_000), Then::Keep);
        let first = client.flight(QUIET)?;
        let reach = client.reach(&first);
        check!((1..=10 * MSS).contains(&reach), Hang, "{reach} bytes came at once after the pause")
    })
    .about("After 200 KB, the server is idle for 1.3 seconds and then writes 100 KB")
    .expects("At most ten segments, 14,600 bytes, come before the first ACK."),
    Case::new("acks-with-data", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 2", |lab| {
        no_duplicates(lab, |client| client.data(&[b'x'; 100]))
    })
    .about("Five data segments with the same acknowledgement")
    .expects("They are no duplicate ACKs: nothing is sent again."),
    Case::new("window-updates", "SHOULD RFC 5681, 3.2: fast retransmit", "RFC 5681, 2", |lab| {
        no_duplicates(lab, |client| {
            client.window += 1000;
            client.ack()
        })
    })
    .about("Five ACKs with the same number, each with a larger window")
    .expects("They are no duplicate ACKs: nothing is sent again."),
    Case::new("ack-every-second", "SHLD-19", "RFC 5681, 4.2; RFC 9293, 3.8.6.3", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        let bytes = pattern(143, 2 * MSS);
        let mut whole = Duration::ZERO;
        for _ in 0..40 {
            let begin = Instant::now();
            client.send(client.part(&bytes, 0..MSS))?;
            client.send(client.part(&bytes[MSS..], 0..MSS))?;
            client.acked(SOON)?;
            whole += begin.elapsed();
            served.reads(&bytes)?;
        }
        check!(whole < patient(SOON), Speed, "the ACKs took {whole:.2?}")
    })
    .about("Two full segments arrive, 40 times")
    .expects("The second one is acknowledged at once. All take less than a second."),
];

/// Opens a connection whose window limits no flight, and begins to write.
fn begin(lab: &mut Lab, mss: usize, len: usize) -> Step<(Client, Sending)> {
    let (client, served) = lab.connect_with(&Offer { mss: Some(mss as u16), scale: Some(7), ..Offer::default() })?;
    Ok((client, served.send(pattern(140, len), Then::Keep)))
}

/// Checks the flight before the first ACK, and then that all data arrives.
fn initial(lab: &mut Lab, mss: usize) -> Step {
    const LEN: usize = 100_000;
    let (mut client, sending) = begin(lab, mss, LEN)?;
    let (mut bytes, first) = (Vec::new(), client.flight(QUIET)?);
    let reach = client.reach(&first);
    check!((1..=10 * mss).contains(&reach), Hang, "{reach} bytes came before the first ACK")?;
    first.into_iter().try_for_each(|segment| client.take(segment, &mut bytes))?;
    bytes.extend(client.receive(LEN - bytes.len(), LATE)?);
    same(&bytes, &pattern(140, LEN))?;
    sending.finish()
}

/// Loses a whole flight, and waits for the timeout. Returns the first segment that comes again.
fn timed_out(lab: &mut Lab) -> Step<(Client, Sending, Segment)> {
    let (mut client, sending) = begin(lab, MSS, 400_000)?;
    client.receive(20_000, LATE)?;
    client.flight(QUIET)?;
    let missing = client.expected;
    let again = client.expect_within(LATE, "retransmission", |segment| segment.seq == missing)?;
    Ok((client, sending, again))
}

/// Acknowledges this many flights, so that the congestion window grows. Returns the next flight, which is not acknowledged.
fn grown(client: &mut Client, flights: usize) -> Step<Vec<Segment>> {
    for _ in 0..flights {
        client.flight(QUIET)?.into_iter().try_for_each(|segment| client.take(segment, &mut Vec::new()))?;
    }
    let flight = client.flight(QUIET)?;
    check!(!flight.is_empty(), "nothing came after the first ACKs")?;
    Ok(flight)
}

/// Checks that nothing comes again while `acknowledge` sends ACKs with the number of a whole flight.
fn no_duplicates(lab: &mut Lab, mut acknowledge: impl FnMut(&mut Client) -> Step) -> Step {
    let (mut client, served) = lab.connect()?;
    client.window = 20_000;
    client.ack()?;
    let _sending = served.send(pattern(142, 200_000), Then::Keep);
    client.receive(50_000, LATE)?;
    client.flight(QUIET)?;
    (0..5).try_for_each(|_| acknowledge(&mut client))?;
    let missing = client.expected;
    client.expect_none(ms(80), "the first segment", |segment| segment.seq == missing && !segment.payload.is_empty())
}
