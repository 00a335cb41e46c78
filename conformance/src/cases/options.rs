//! Options of TCP, and what they change in other fields.

pub(super) mod stamps;

use super::segments::unusual::deliver_up_to;
use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("mss-less-sack", "MUST-16", "RFC 6691, 2; RFC 9293, 3.7.1", |lab| {
        let (mut client, mut served) = lab.connect_with(&Offer { mss: Some(1000), sack: true, ..Offer::default() })?;
        applies!(client.has_agreed(SACK_PERMITTED), "the stack does not permit SACK")?;
        exchange(&mut client, &mut served)?;
        let hole = pattern(160, 1000);
        client.put(client.part(&hole, 500..1000))?;
        client.expect("duplicate ACK", |segment| segment.has(ACK))?;
        let mut longest = 0;
        let mut served = deliver_with(&mut client, served, &pattern(161, 20_000), LATE, |_, segment| {
            longest = longest.max(segment.packet_len);
            Ok(false)
        })?;
        check!(longest <= 1040, "a packet had {longest} bytes")?;
        repair(&mut client, &mut served, &hole)
    })
    .about("The client takes segments of 1,000 bytes, and the stack has a hole to report by SACK while it sends")
    .expects("No packet has more than 1,040 bytes."),
    Case::new("scale-in-data", "MUST RFC 7323, 2.2: ignored without SYN", "RFC 7323, 2.2", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        client.window = 3000;
        client.put(Out { options: &[1, WINDOW_SCALE, 3, 7], ..client.out() })?;
        // No stack may miss the smaller window.
        exchange(&mut client, &mut served)?;
        sends_up_to(&mut client, served, 1, 3000)
    })
    .about("A segment without SYN has a window scale option")
    .expects("It is ignored: the client's window is taken as it is."),
    Case::new("options-after-the-end", "MUST-4", "RFC 9293, 3.1", |lab| {
        let extra = vec![MSS, 4, 1, 44, 0, 0, 0, 0, MSS, 4, 5, 0xb4];
        let (mut client, served) = lab.connect_with(&Offer { mss: None, extra, ..Offer::default() })?;
        deliver_up_to(&mut client, served, &pattern(163, 3000), 300)
    })
    .about("The SYN has an MSS of 300, the end of the options, and then an MSS of 1460")
    .expects("The second one is padding: no segment has more than 300 bytes."),
    Case::new("syn-ack-window", "MUST RFC 7323, 2.2: windows with SYN", "RFC 7323, 2.2", |lab| {
        let mut client = lab.client();
        let syn_ack = client.open_with(&Offer { scale: Some(7), ..Offer::default() })?;
        let mut served = lab.accept()?;
        applies!(client.scale > 0, "the stack does not scale its windows")?;
        let window = usize::from(syn_ack.window);
        check!(window >= 1460, "the window of the SYN+ACK is {window}")?;
        let bytes = pattern(164, window);
        client.data(&bytes)?;
        let edge = client.next;
        loop {
            let ack = client.expect("ACK of all that fits", |segment| segment.has(ACK))?;
            let right = ack.ack.wrapping_add(u32::from(ack.window) << client.scale);
            // A scaled window is rounded.
            let back = distance(right, edge);
            check!(back < 1 << client.scale, "the right edge moved back by {back} bytes")?;
            if ack.ack == edge {
                break;
            }
        }
        served.reads(&bytes)?;
        exchange(&mut client, &mut served)
    })
    .about("The stack scales its windows, and the client fills the window of the SYN+ACK at once")
    .expects(
        "The window of a SYN+ACK is never scaled: it has room for a segment, all that fits is taken, and the next \
             window does not take it back.",
    )
    // Its shift count is 3.
    .with(|config| config.window = 300 << 10),
    Case::new("handshake-ack-scaled", "MUST RFC 7323, 2.3: windows are shifted", "RFC 7323, 2.2 and 2.3", |lab| {
        let mut client = lab.client();
        client.syn_with(&Offer { window: 20_000, scale: Some(7), ..Offer::default() })?;
        client.syn_ack(SOON)?;
        applies!(client.has_agreed(WINDOW_SCALE), "the stack does not scale windows")?;
        client.window = 40;
        client.ack()?;
        let served = lab.accept()?;
        sends_up_to(&mut client, served, 41, 5120)
    })
    .about(
        "The client's SYN has a window of 20,000 and a shift count of 7; the ACK of the handshake has a window of \
             40",
    )
    .expects("The window is 5,120 bytes: the stack sends more than 40 bytes and at most 5,120."),
    Case::new(
        "syn-again-without-options",
        "MUST RFC 9293, 3.10.7.4: old duplicates",
        "RFC 9293, 3.7.1; RFC 7323, 2.2",
        |lab| {
            const LEN: usize = 50_000;
            let mut client = lab.client();
            client.syn_with(&Offer { scale: Some(7), sack: true, ..Offer::default() })?;
            client.syn_ack(SOON)?;
            client.put(Out { flags: SYN, seq: client.isn, ack: 0, ..client.out() })?;
            client.syn_ack(ms(3500))?;
            client.window = if client.has_agreed(WINDOW_SCALE) { 20_000 >> 7 } else { 20_000 };
            client.ack()?;
            let mut served = lab.accept()?;
            client.write(&pattern(165, LEN))?;
            served.reads(&pattern(165, LEN))?;
            let within = |client: &mut Client, segment: &Segment| client.within(20_000, segment).map(|()| false);
            deliver_with(&mut client, served, &pattern(166, LEN), LATE, within)?;
            check!(lab.accept_within(ms(50))?.is_none(), "there are two connections for one client")
        },
    )
    .about("The client's first SYN has options, and the second one has none")
    .expects(
        "One connection. Its windows are scaled if the last SYN+ACK says so, and only then. It carries bytes both \
             ways.",
    ),
    Case::new("syn-ack-again-options", "ours", "RFC 9293, 3.7.1; RFC 7323, 2.2", |lab| {
        let mut client = lab.client();
        let offer = Offer { scale: Some(7), sack: true, ..Offer::default() };
        client.syn_with(&offer)?;
        let first = client.syn_ack(SOON)?;
        client.syn_with(&offer)?;
        let second = client.syn_ack(ms(3500))?;
        for kind in [MSS, WINDOW_SCALE, SACK_PERMITTED] {
            let values = [first.option(kind), second.option(kind)];
            check!(values[0] == values[1], "the values of option {kind} are {values:?}")?;
        }
        client.ack()?;
        lab.serves(client)
    })
    .about("The client's SYN comes twice")
    .expects("Both SYN+ACKs have the same MSS, the same shift count, and the same permission of SACK."),
];

/// Checks that the server sends no more than `window` bytes without an ACK, and at least `least`.
fn sends_up_to(client: &mut Client, served: Served, least: i32, window: i32) -> Step {
    let _sending = served.send(pattern(162, 50_000), Then::Keep);
    client.sent_to(least, window)
}
