//! Options of TCP, and what they change in other fields.

mod stamps;

use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, SYN};

use self::stamps::{
    mss_less_timestamps, paws, paws_rst, timestamp_missing, timestamps_echoed, timestamps_echoed_at_a_hole,
    timestamps_in_every_segment, timestamps_not_offered, timestamps_wrap, tsecr_nonsense,
};
use super::segments::{deliver_up_to, part, repair};
use crate::client::{MSS, SACK_PERMITTED, WINDOW_SCALE};
use crate::lab::{deliver, exchange};
use crate::{
    Case, Client, LATE, Offer, Out, SOON, Served, Setup, Step, Then, applies, check, distance, patient, pattern, same,
};

pub(super) const CASES: &[Case] = &[
    Case::new("timestamps-not-offered", timestamps_not_offered, "RFC 7323, 3.2")
        .about("The SYN has no timestamp")
        .expects("The SYN+ACK and all later segments have none."),
    Case::new("timestamps-in-every-segment", timestamps_in_every_segment, "RFC 7323, 3.2")
        .about("A connection with timestamps carries data both ways and ends")
        .expects("Every segment has a timestamp, and none is before the last one."),
    Case::new("timestamps-echoed", timestamps_echoed, "RFC 7323, 4.3")
        .about("Two segments with different timestamps arrive together")
        .expects("An ACK has the timestamp of the first segment that it acknowledges."),
    Case::new("timestamps-echoed-at-a-hole", timestamps_echoed_at_a_hole, "RFC 7323, 4.3")
        .about("A segment arrives out of order, and later the one before it")
        .expects(
            "The first ACK has the timestamp of the last segment in order, the second one of the segment that fills \
             the hole.",
        ),
    Case::new("paws", paws, "RFC 7323, 5.3, R1")
        .about("A data segment within the window has a timestamp from before the last one")
        .expects("It is dropped and answered with an ACK. The right one is delivered."),
    Case::new("paws-rst", paws_rst, "RFC 7323, 5.2 and 5.3")
        .about("A RST with the right number has an old timestamp")
        .expects("A RST is never dropped for its timestamp: reads fail with \"connection reset\"."),
    Case::new("timestamp-missing", timestamp_missing, "RFC 7323, 3.2")
        .about("A segment has no timestamp although the connection has them, and comes again with one")
        .expects("It is dropped or taken, but the connection is not aborted. The server reads the data once."),
    Case::new("timestamps-wrap", timestamps_wrap, "RFC 7323, 5.3")
        .about("The client's timestamps pass 2³²")
        .expects("All segments are delivered."),
    Case::new("tsecr-nonsense", tsecr_nonsense, "RFC 7323, 3.2 and 4.1")
        .about("The client's ACKs echo timestamps that the stack never sent; the last segment is lost")
        .expects("The timeout does not grow without bound: the segment comes again within 4 seconds."),
    Case::new("mss-less-timestamps", mss_less_timestamps, "RFC 6691, 2; RFC 9293, 3.7.1, MUST-16")
        .about("The client takes segments of 1,000 bytes, and the connection has timestamps")
        .expects("Options count: no segment has more than 988 bytes."),
    Case::new("mss-less-sack", mss_less_sack, "RFC 6691, 2; RFC 9293, 3.7.1, MUST-16")
        .about("The client takes segments of 1,000 bytes, and the stack has a hole to report by SACK while it sends")
        .expects("No packet has more than 1,040 bytes."),
    Case::new("scale-in-data", scale_in_data, "RFC 7323, 2.2")
        .about("A segment without SYN has a window scale option")
        .expects("It is ignored: the client's window is taken as it is."),
    Case::new("options-after-the-end", options_after_the_end, "RFC 9293, 3.1")
        .about("The SYN has an MSS of 300, the end of the options, and then an MSS of 1460")
        .expects("The second one is padding: no segment has more than 300 bytes."),
    Case::new("syn-ack-window", syn_ack_window, "RFC 7323, 2.2")
        .about("The stack scales its windows, and the client fills the window of the SYN+ACK at once")
        .expects(
            "The window of a SYN+ACK is never scaled: it has room for a segment, all that fits is taken, and the next \
             window does not take it back.",
        ),
    Case::new("handshake-ack-scaled", handshake_ack_scaled, "RFC 7323, 2.2 and 2.3")
        .about(
            "The client's SYN has a window of 20,000 and a shift count of 7; the ACK of the handshake has a window of \
             40",
        )
        .expects("The window is 5,120 bytes: the stack sends more than 40 bytes and at most 5,120."),
    Case::new("syn-again-without-options", syn_again_without_options, "RFC 9293, 3.7.1; RFC 7323, 2.2")
        .about("The client's first SYN has options, and the second one has none")
        .expects(
            "One connection. Its windows are scaled if the last SYN+ACK says so, and only then. It carries bytes both \
             ways.",
        ),
    Case::new("syn-ack-again-options", syn_ack_again_options, "RFC 9293, 3.7.1; RFC 7323, 2.2")
        .about("The client's SYN comes twice")
        .expects("Both SYN+ACKs have the same MSS, the same shift count, and the same permission of SACK."),
];

fn mss_less_sack(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let offer = Offer { mss: Some(1000), extra: vec![SACK_PERMITTED, 2], ..Offer::default() };
    let mut client = lab.client();
    let syn_ack = client.open(&offer)?;
    let mut served = lab.accept()?;
    applies(syn_ack.option(SACK_PERMITTED).is_some(), || "the stack does not permit SACK".to_owned())?;
    exchange(&mut client, &mut served)?;
    let hole = pattern(160, 1000);
    client.put(part(&client, &hole, 500, 1000))?;
    client.expect("duplicate ACK", |segment| segment.has(ACK))?;
    let mut longest = 0;
    let served = deliver(&mut client, served, &pattern(161, 20_000), LATE, |segment| {
        longest = longest.max(segment.packet_len);
        false
    })?;
    check(longest <= 1040, || format!("a packet had {longest} bytes"))?;
    if let Some(mut served) = served {
        repair(&mut client, &mut served, &hole)?;
    }
    lab.finish()
}

/// Checks that the server sends no more than `window` bytes without an ACK, and at least `least`.
fn sends_up_to(client: &mut Client, served: Served, least: i32, window: i32) -> Step {
    let sending = served.send(pattern(162, 50_000), Then::Keep);
    client.sent_to(least, window)?;
    drop(sending);
    Ok(())
}

fn scale_in_data(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    exchange(&mut client, &mut served)?;
    client.window = 3000;
    client.put(Out { options: &[1, WINDOW_SCALE, 3, 7], ..client.out() })?;
    // No stack may miss the smaller window.
    exchange(&mut client, &mut served)?;
    sends_up_to(&mut client, served, 1, 3000)?;
    lab.finish()
}

fn options_after_the_end(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let extra = vec![MSS, 4, 1, 44, 0, 0, 0, 0, MSS, 4, 5, 0xb4];
    let (mut client, served) = lab.connect_with(&Offer { mss: None, extra, ..Offer::default() })?;
    deliver_up_to(&mut client, served, &pattern(163, 3000), 300)?;
    lab.finish()
}

fn syn_ack_window(setup: &Setup) -> Step {
    // Its shift count is 3.
    let mut lab = setup.start_with(|config| config.window = 300 << 10)?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer { scale: Some(7), ..Offer::default() })?;
    let mut served = lab.accept()?;
    applies(client.scale > 0, || "the stack does not scale its windows".to_owned())?;
    let window = usize::from(syn_ack.window);
    check(window >= 1460, || format!("the window of the SYN+ACK is {window}"))?;
    let bytes = pattern(164, window);
    let edge = client.next.wrapping_add(window as u32);
    client.data(&bytes)?;
    loop {
        let ack = client.expect("ACK of all that fits", |segment| segment.has(ACK))?;
        let right = ack.ack.wrapping_add(u32::from(ack.window) << client.scale);
        // A scaled window is rounded.
        let back = distance(right, edge);
        check(back < 1 << client.scale, || format!("the right edge moved back by {back} bytes"))?;
        if ack.ack == edge {
            break;
        }
    }
    same(&served.read(window)?, &bytes)?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn handshake_ack_scaled(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.window = 20_000;
    client.syn(&Offer { scale: Some(7), ..Offer::default() })?;
    let syn_ack = client.syn_ack(SOON)?;
    applies(syn_ack.option(WINDOW_SCALE).is_some(), || "the stack does not scale windows".to_owned())?;
    client.window = 40;
    client.ack()?;
    let served = lab.accept()?;
    sends_up_to(&mut client, served, 41, 5120)?;
    lab.finish()
}

fn syn_again_without_options(setup: &Setup) -> Step {
    const LEN: usize = 50_000;
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.syn(&Offer { scale: Some(7), extra: vec![SACK_PERMITTED, 2], ..Offer::default() })?;
    client.syn_ack(SOON)?;
    client.put(Out { flags: SYN, seq: client.isn, ack: 0, ..client.out() })?;
    let syn_ack = client.syn_ack(Duration::from_millis(3500))?;
    client.window = if syn_ack.option(WINDOW_SCALE).is_some() { 20_000 >> 7 } else { 20_000 };
    client.ack()?;
    let mut served = lab.accept()?;
    client.write(&pattern(165, LEN))?;
    same(&served.read(LEN)?, &pattern(165, LEN))?;
    let sending = served.send(pattern(166, LEN), Then::Keep);
    let (mut bytes, until) = (Vec::new(), Instant::now() + patient(LATE));
    while bytes.len() < LEN {
        let Some(segment) = client.segment_until(until)? else {
            return check(false, || format!("{} of {LEN} bytes came", bytes.len()));
        };
        let right = distance(client.expected, segment.end());
        check(right <= 20_000, || format!("data came {right} bytes ahead of a window of 20,000"))?;
        client.take(segment, &mut bytes)?;
    }
    same(&bytes, &pattern(166, LEN))?;
    drop(sending.finish()?);
    let second = lab.accept_within(Duration::from_millis(50))?;
    check(second.is_none(), || "there are two connections for one client".to_owned())?;
    lab.finish()
}

fn syn_ack_again_options(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let mut client = lab.client();
    let offer = Offer { scale: Some(7), extra: vec![SACK_PERMITTED, 2], ..Offer::default() };
    client.syn(&offer)?;
    let first = client.syn_ack(SOON)?;
    client.syn(&offer)?;
    let second = client.syn_ack(Duration::from_millis(3500))?;
    for kind in [MSS, WINDOW_SCALE, SACK_PERMITTED] {
        let values = [first.option(kind), second.option(kind)];
        check(values[0] == values[1], || format!("the values of option {kind} are {values:?}"))?;
    }
    client.ack()?;
    lab.finish_opened(client)
}
