//! Acknowledgements that lie. The server's data must still arrive.

use super::super::loss::{nth, shorter_than, transfer};
use crate::client::sack_option;
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("ack-beyond-sent", "MUST RFC 9293, 3.4: an acceptable ACK", "RFC 9293, 3.10.7.4; RFC 5961, 5.2", |lab| {
        forged(lab, |client, sent| client.packet(Out { ack: sent.wrapping_add(30_000), ..client.out() }))
    })
    .about("ACKs of bytes that were never sent, while a segment is lost")
    .expects("They acknowledge nothing: the missing segment comes again, and all data arrives."),
    Case::new("ack-damaged", "MUST-3", "RFC 9293, 3.1", |lab| {
        lab.needs_checksums()?;
        forged(lab, |client, sent| {
            let mut packet = client.packet(Out { ack: sent, ..client.out() });
            packet[36] ^= 0x10;
            packet
        })
    })
    .about("ACKs of everything with wrong checksums, while a segment is lost")
    .expects("They acknowledge nothing: the missing segment comes again, and all data arrives.")
    .plain(),
    Case::new("ack-outside-window", "MUST RFC 9293, 3.10.7.4: unacceptable segments", "RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client, sent| {
            client.packet(Out { seq: client.next.wrapping_add(0x0100_0000), ack: sent, ..client.out() })
        })
    })
    .about("ACKs of everything whose own numbers are outside the window, while a segment is lost")
    .expects("They acknowledge nothing: the missing segment comes again, and all data arrives."),
    Case::new("ack-too-old", "MAY-12", "RFC 9293, 3.10.7.4; RFC 5961, 5.2", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        client.forget()?;
        client.put(Out { ack: client.expected.wrapping_sub(0x1000_0000), ..client.part(b"forged", 0..6) })?;
        client.acked(SOON)?;
        check!(served.is_quiet(ms(20)), Data, "the server read of it")?;
        exchange(&mut client, &mut served)
    })
    .about("A data segment that acknowledges a number far before everything in flight")
    .expects("It is dropped and answered with an ACK."),
    Case::new("sack-of-the-future", "ours", "RFC 2018, 4; RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client, sent| {
            let future = [10_000, 90_000].map(|ahead| sent.wrapping_add(ahead));
            let past = [5000, 1000].map(|before| client.expected.wrapping_sub(before));
            let options = sack_option(&[future, past, [sent, client.expected]].concat());
            client.packet(Out { options: &options, ..client.out() })
        })
    })
    .about("SACK blocks of bytes that were never sent, before the acknowledged ones, and upside down")
    .expects("They change nothing: the missing segment comes again, and all data arrives."),
    Case::new("sack-reneged", "MUST RFC 2018, 8", "RFC 2018, 8", |lab| {
        let (mut client, served) = lab.connect_with(&Offer { sack: true, ..Offer::default() })?;
        let sending = served.send(pattern(101, 12_000), Then::Keep);
        let first = client.expect_data()?;
        let mut sent = first.end();
        for _ in 0..100 {
            let Some(segment) = client.next_segment(ms(20))? else { break };
            sent = if distance(sent, segment.end()) > 0 { segment.end() } else { sent };
            client.put(Out { options: &sack_option(&[first.end(), sent]), ..client.out() })?;
        }
        client.receives(&pattern(101, 12_000), LATE)?;
        sending.finish()
    })
    .about("The client reports by SACK all segments after the first, and then forgets them")
    .expects("Only the acknowledgement number frees bytes: all of them come again."),
    Case::new("damaged-copies", "MUST-3", "RFC 9293, 3.1; RFC 5681, 3.2", |lab| {
        lab.needs_checksums()?;
        let (mut is_lost, mut copies) = (nth(|number| number % 20 == 0), 0);
        let pause = transfer(lab.connect()?, 300_000, |client, segment| {
            // Copies of the last ACK.
            for _ in 0..3 {
                client.send_packet(&damaged(&client.packet(client.out()), copies))?;
                copies += 1;
            }
            Ok(is_lost(segment))
        })?;
        shorter_than(secs(3), pause)
    })
    .about("Each ACK is followed by three copies with a flipped bit; every 20th segment is lost")
    .expects("No number of a damaged packet is used: all data arrives. No pause is as long as three seconds.")
    .plain(),
    Case::new("window-flaps", "MUST-34", "RFC 9293, 3.8.6", |lab| {
        const LEN: usize = 200_000;
        let (mut client, served) = lab.connect()?;
        let sending = served.send(pattern(103, LEN), Then::Keep);
        let (mut bytes, mut count) = (Vec::new(), 0);
        while bytes.len() < LEN {
            let Some(segment) = client.next_segment(ms(100))? else {
                count += 1;
                check!(count < 40, Hang, "{} of {LEN} bytes came", bytes.len())?;
                client.window = 60_000;
                client.ack()?;
                continue;
            };
            client.window = if client.window == 0 { 60_000 } else { 0 };
            client.take(segment, &mut bytes)?;
        }
        same(&bytes, &pattern(103, LEN))?;
        sending.finish()
    })
    .about("The client's ACKs open and close its window in turns")
    .expects("All data arrives, and the stack does not hang or crash."),
    Case::new("icmp-tiny-mtu", "MUST RFC 1191, 3: never below 68", "RFC 1191, 3 and 7.1; RFC 5927, 7", |lab| {
        const LEN: usize = 30_000;
        let (mut client, served) = lab.connect_and_exchange()?;
        let tell = |client: &Client| lab.flood([0, 1, 40].map(|mtu| packets::too_big(mtu, &client.stack_packet())));
        tell(&client)?;
        let sending = served.send(pattern(104, LEN), Then::Keep);
        let mut bytes = client.receive(2000, LATE)?;
        tell(&client)?;
        let mut count = 0;
        let received = client.receive_with(LEN - bytes.len(), LATE, |_, _| {
            count += 1;
            Ok(false)
        });
        // A busy machine does not take so many in time.
        check!(count <= 600, Speed, "{count} packets came for {LEN} bytes")?;
        bytes.extend(received?);
        same(&bytes, &pattern(104, LEN))?;
        sending.finish()
    })
    .about("ICMP \"fragmentation needed\" with MTUs of 0, 1 and 40")
    .expects("No packet for every few bytes: 30,000 bytes arrive in at most 600 packets."),
];

/// Receives `LEN` bytes of the server. Once, all segments in flight are lost but the last. Then this sends 20 packets that
/// `forge` makes, and takes the rest as an honest client. `forge` gets the end of the sent bytes.
fn forged(lab: &mut Lab, forge: impl Fn(&Client, u32) -> Vec<u8>) -> Step {
    const LEN: usize = 40_000;
    let (mut client, served) = lab.connect_with(&Offer { sack: true, ..Offer::default() })?;
    let sending = served.send(pattern(100, LEN), Then::Keep);
    let mut bytes = client.receive(10_000, LATE)?;
    // A probe may have come after the last one.
    let flight = client.flight(ms(20))?;
    let Some(last) = flight.into_iter().max_by_key(|segment| distance(client.expected, segment.end())) else {
        return fail!("nothing was in flight");
    };
    (0..20).try_for_each(|_| client.send_packet(&forge(&client, last.end())))?;
    // Honest duplicates.
    let sack = sack_option(&[last.seq, last.end()]);
    client.take(last, &mut bytes)?;
    (0..5).try_for_each(|_| client.put(Out { options: &sack, ..client.out() }))?;
    bytes.extend(client.receive(LEN - bytes.len(), LATE)?);
    same(&bytes, &pattern(100, LEN))?;
    exchange(&mut client, &mut sending.served()?)
}

/// Returns a copy of an IPv4 packet with a flipped bit in its TCP header. The ports stay the same.
fn damaged(packet: &[u8], number: usize) -> Vec<u8> {
    // Bytes of the number, the acknowledgement number and the window.
    const FIELDS: [usize; 8] = [4, 5, 7, 8, 9, 10, 11, 15];
    let mut packet = packet.to_vec();
    packet[20 + FIELDS[number % FIELDS.len()]] ^= 1 << (number / FIELDS.len() % 8);
    packet
}
