//! Acknowledgements that lie. The server's data must still arrive.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, PSH};

use super::super::segments::from_the_stack;
use crate::lab::exchange;
use crate::{
    Case, Client, LATE, Lab, Offer, Out, SOON, Setup, Step, Stop, Then, check, distance, packets, patient, pattern,
    same,
};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("ack-beyond-sent", ack_beyond_sent, "RFC 9293, 3.10.7.4; RFC 5961, 5.2")
        .about("ACKs of bytes that were never sent, while a segment is lost")
        .expects("They acknowledge nothing: the missing segment comes again, and all data arrives."),
    Case::new("ack-damaged", ack_damaged, "RFC 9293, 3.1")
        .about("ACKs of everything with wrong checksums, while a segment is lost")
        .expects("They acknowledge nothing: the missing segment comes again, and all data arrives.")
        .plain(),
    Case::new("ack-outside-window", ack_outside_window, "RFC 9293, 3.10.7.4")
        .about("ACKs of everything whose own numbers are outside the window, while a segment is lost")
        .expects("They acknowledge nothing: the missing segment comes again, and all data arrives."),
    Case::new("ack-too-old", ack_too_old, "RFC 5961, 5.2")
        .about("A data segment that acknowledges a number far before everything in flight")
        .expects("It is dropped and answered with an ACK."),
    Case::new("sack-of-the-future", sack_of_the_future, "RFC 2018, 4; RFC 9293, 3.10.7.4")
        .about("SACK blocks of bytes that were never sent, before the acknowledged ones, and upside down")
        .expects("They change nothing: the missing segment comes again, and all data arrives."),
    Case::new("sack-reneged", sack_reneged, "RFC 2018, 8")
        .about("The client reports by SACK all segments after the first, and then forgets them")
        .expects("Only the acknowledgement number frees bytes: all of them come again."),
    Case::new("damaged-copies", damaged_copies, "RFC 9293, 3.1; RFC 5681, 3.2")
        .about("Each ACK is followed by three copies with a flipped bit; every 20th segment is lost")
        .expects("No number of a damaged packet is used: all data arrives. No pause is as long as three seconds.")
        .plain(),
    Case::new("window-flaps", window_flaps, "RFC 9293, 3.8.6")
        .about("The client's ACKs open and close its window in turns")
        .expects("All data arrives, and the stack does not hang or crash."),
    Case::new("icmp-tiny-mtu", icmp_tiny_mtu, "RFC 1191, 3 and 7.1; RFC 5927, 7")
        .about("ICMP \"fragmentation needed\" with MTUs of 0, 1 and 40")
        .expects("No packet for every few bytes: 30,000 bytes arrive in at most 600 packets."),
];

/// Receives `LEN` bytes of the server. Once, all segments in flight are lost but the last. Then this sends 20 packets that
/// `forge` makes, and takes the rest as an honest client. `forge` gets the end of the sent bytes.
fn forged(setup: &Setup, needs_sums: bool, forge: impl Fn(&Client, u32) -> Vec<u8>) -> Step {
    const LEN: usize = 40_000;
    let mut lab = setup.start()?;
    if needs_sums {
        lab.needs_checksums()?;
    }
    // With SACK.
    let (mut client, served) = lab.connect_with(&Offer { extra: vec![1, 1, 4, 2], ..Offer::default() })?;
    let sending = served.send(pattern(100, LEN), Then::Keep);
    let mut bytes = client.receive(10_000, LATE)?;
    let mut flight = Vec::new();
    while let Some(segment) = client.next_segment(Duration::from_millis(20))? {
        flight.push(segment);
    }
    // A probe may have come after it.
    let Some(last) = flight.into_iter().max_by_key(|segment| distance(client.expected, segment.end())) else {
        return Err(Stop::fail("nothing was in flight"));
    };
    for _ in 0..20 {
        client.send_packet(&forge(&client, last.end()))?;
    }
    // Honest duplicates.
    let [block, end] = [last.seq, last.end()].map(u32::to_be_bytes);
    let sack = [&[1, 1, 5, 10][..], &block, &end].concat();
    client.take(last, &mut bytes)?;
    for _ in 0..5 {
        client.put(Out { options: &sack, ..client.out() })?;
    }
    bytes.extend(client.receive(LEN - bytes.len(), LATE)?);
    same(&bytes, &pattern(100, LEN))?;
    if let Some(mut served) = sending.finish()? {
        exchange(&mut client, &mut served)?;
    }
    lab.finish()
}

fn ack_beyond_sent(setup: &Setup) -> Step {
    forged(setup, false, |client, sent| client.packet(Out { ack: sent.wrapping_add(30_000), ..client.out() }))
}

fn ack_damaged(setup: &Setup) -> Step {
    forged(setup, true, |client, sent| {
        let mut packet = client.packet(Out { ack: sent, ..client.out() });
        packet[36] ^= 0x10;
        packet
    })
}

fn ack_outside_window(setup: &Setup) -> Step {
    forged(setup, false, |client, sent| {
        client.packet(Out { seq: client.next.wrapping_add(0x0100_0000), ack: sent, ..client.out() })
    })
}

fn sack_of_the_future(setup: &Setup) -> Step {
    forged(setup, false, |client, sent| {
        let blocks = [
            sent.wrapping_add(10_000),
            sent.wrapping_add(90_000),
            client.expected.wrapping_sub(5000),
            client.expected.wrapping_sub(1000),
            sent,
            client.expected,
        ];
        let options = [vec![1, 1, 5, 26], blocks.into_iter().flat_map(u32::to_be_bytes).collect()].concat();
        client.packet(Out { options: &options, ..client.out() })
    })
}

fn ack_too_old(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    client.forget()?;
    let ack = client.expected.wrapping_sub(0x1000_0000);
    client.put(Out { flags: ACK | PSH, ack, payload: b"forged", ..client.out() })?;
    client.acked(SOON)?;
    check(served.is_quiet(Duration::from_millis(20)), || "the server read of it".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn sack_reneged(setup: &Setup) -> Step {
    const LEN: usize = 12_000;
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect_with(&Offer { extra: vec![1, 1, 4, 2], ..Offer::default() })?;
    let sending = served.send(pattern(101, LEN), Then::Keep);
    let first = client.expect("data", |segment| !segment.payload.is_empty())?;
    let mut sent = first.end();
    for _ in 0..100 {
        let Some(segment) = client.next_segment(Duration::from_millis(20))? else { break };
        sent = if distance(sent, segment.end()) > 0 { segment.end() } else { sent };
        let [block, end] = [first.end(), sent].map(u32::to_be_bytes);
        let sack = [&[1, 1, 5, 10][..], &block, &end].concat();
        client.put(Out { options: &sack, ..client.out() })?;
    }
    same(&client.receive(LEN, LATE)?, &pattern(101, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

/// Returns a copy of an IPv4 packet with a flipped bit in its TCP header. The ports stay the same.
fn damaged(packet: &[u8], number: usize) -> Vec<u8> {
    // Bytes of the number, the acknowledgement number and the window.
    const FIELDS: [usize; 8] = [4, 5, 7, 8, 9, 10, 11, 15];
    let mut packet = packet.to_vec();
    packet[20 + FIELDS[number % FIELDS.len()]] ^= 1 << (number / FIELDS.len() % 8);
    packet
}

fn damaged_copies(setup: &Setup) -> Step {
    const LEN: usize = 300_000;
    let mut lab = setup.start()?;
    lab.needs_checksums()?;
    let (mut client, served) = lab.connect()?;
    let sending = served.send(pattern(102, LEN), Then::Keep);
    let (mut bytes, mut seen, mut count, mut copies) = (Vec::new(), HashSet::new(), 0, 0);
    let (mut previous, mut longest) = (Instant::now(), Duration::ZERO);
    while bytes.len() < LEN {
        let segment = client.expect_within(LATE, "more data", |segment| !segment.payload.is_empty())?;
        let is_new = seen.insert(segment.seq);
        count += usize::from(is_new);
        if is_new && count % 20 == 0 {
            continue;
        }
        let (before, at) = (bytes.len(), segment.at);
        client.take(segment, &mut bytes)?;
        if bytes.len() > before {
            longest = longest.max(at.saturating_duration_since(previous));
            previous = at;
        }
        for _ in 0..3 {
            client.send_packet(&damaged(&client.packet(client.out()), copies))?;
            copies += 1;
        }
    }
    same(&bytes, &pattern(102, LEN))?;
    check(longest < patient(Duration::from_secs(3)), || format!("no new byte came for {longest:.2?}"))?;
    drop(sending.finish()?);
    lab.finish()
}

fn window_flaps(setup: &Setup) -> Step {
    const LEN: usize = 200_000;
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(103, LEN), Then::Keep);
    let mut bytes = Vec::new();
    let mut count = 0;
    while bytes.len() < LEN {
        let Some(segment) = client.next_segment(Duration::from_millis(100))? else {
            count += 1;
            check(count < 40, || format!("{} of {LEN} bytes came", bytes.len()))?;
            client.window = 60_000;
            client.ack()?;
            continue;
        };
        client.window = if client.window == 0 { 60_000 } else { 0 };
        client.take(segment, &mut bytes)?;
    }
    same(&bytes, &pattern(103, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

/// Sends ICMP errors about the connection.
fn tell(lab: &Lab, client: &Client, mtus: &[u32]) -> Step {
    let about = from_the_stack(lab, client);
    for mtu in mtus {
        lab.send_packet(&packets::error(3, 4, *mtu, &about))?;
    }
    Ok(())
}

fn icmp_tiny_mtu(setup: &Setup) -> Step {
    const LEN: usize = 30_000;
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    tell(&lab, &client, &[0, 1, 40])?;
    let sending = served.send(pattern(104, LEN), Then::Keep);
    let mut bytes = client.receive(2000, LATE)?;
    tell(&lab, &client, &[0, 1, 40])?;
    let mut count = 0;
    let received = client.receive_with(LEN - bytes.len(), LATE, |_| {
        count += 1;
        false
    });
    // A busy machine does not take so many in time.
    check(count <= 600, || format!("{count} packets came for {LEN} bytes"))?;
    bytes.extend(received?);
    same(&bytes, &pattern(104, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}
