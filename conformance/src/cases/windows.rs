//! Flow control.

pub(super) mod receiver;
pub(super) mod sender;

use std::io::ErrorKind;
use std::time::Duration;

use platform::packet::flags::{ACK, PSH};

use crate::client::WINDOW_SCALE;
use crate::lab::{WINDOW, deliver};
use crate::server::Sending;
use crate::wire::Segment;
use crate::{
    Case, Client, LATE, Lab, Offer, Out, SOON, Served, Setup, Step, Stop, Then, applies, check, distance, pattern, same,
};

pub(super) const CASES: &[Case] = &[
    Case::new("scale-offered", scale_offered, "RFC 7323, 2.2")
        .about("The client offers a window scale")
        .expects("The SYN+ACK has the option too, and later windows are more than 64 KiB."),
    Case::new("scale-not-offered", scale_not_offered, "RFC 7323, 2.2")
        .about("The client offers no window scale")
        .expects("The SYN+ACK has none, and the stack takes the client's windows as they are."),
    Case::new("scale-applied", scale_applied, "RFC 7323, 2.3")
        .about("The client's window is 100, and its shift count is 7")
        .expects("The stack sends 12,800 bytes and no more."),
    Case::new("scale-too-large", scale_too_large, "RFC 7323, 2.3")
        .about("The client offers a shift count of 15; its window is 1")
        .expects("The stack uses 14: it sends 16,384 bytes and no more."),
    Case::new("window-closes", window_closes, "RFC 9293, 3.8.6")
        .about("The server does not read, and the client fills the window")
        .expects(
            "The window closes and never moves to the left. All that fits is acknowledged, and the server reads it \
             later.",
        ),
    Case::new("window-edge-stays", window_edge_stays, "RFC 9293, 3.8.6, SHLD-14; RFC 7323, 2.4")
        .about(
            "The client fills a scaled window with segments of 1,401 bytes, and nobody reads; then it resets the \
             connection",
        )
        .expects(
            "All bytes up to the furthest edge that was ever announced are acknowledged, although windows are \
             rounded. The edge moves to the left by the rounding at most. A RST at it ends the connection.",
        ),
    Case::new("window-reopens", window_reopens, "RFC 9293, 3.8.6; RFC 1122, 4.2.3.3")
        .about("The server reads again after the window has closed")
        .expects("The stack sends an update of its own accord."),
    Case::new("probe-answered", probe_answered, "RFC 9293, 3.8.6.1")
        .about("The client probes the closed window with one byte")
        .expects("An ACK with the window and the number that is expected."),
    Case::new("window-probed", window_probed, "RFC 9293, 3.8.6.1")
        .about("The client closes its window while the server has more to send")
        .expects("The stack probes the window within 4 seconds."),
    Case::new("update-lost", update_lost, "RFC 9293, 3.8.6.1")
        .about("The client's window update is lost")
        .expects("The stack's probe is answered with the open window, and all data arrives."),
    Case::new("window-shrinks", window_shrinks, "RFC 9293, 3.8.6")
        .about("The client moves the right edge of its window to the left")
        .expects(
            "The stack sends nothing new beyond the new edge, and all data arrives after the window has opened again.",
        ),
    Case::new("window-reduced", window_reduced, "RFC 9293, 3.10.7.4")
        .about("An ACK with the same numbers has a smaller window, while nothing is in flight")
        .expects("The stack sends no more than the smaller window."),
    Case::new("stale-window", stale_window, "RFC 9293, 3.10.7.4")
        .about("An old segment with a closed window comes late")
        .expects("The stack keeps the newer window and goes on sending."),
    Case::new("beyond-the-window", beyond_the_window, "RFC 9293, 3.10.7.4")
        .about("The client sends data that begins beyond the window")
        .expects("The data is dropped and answered with an ACK of what is expected."),
    Case::new("silly-window-sender", silly_window_sender, "RFC 9293, 3.8.6.2.1")
        .about("The client opens its window by 10 bytes at a time")
        .expects("The stack waits for more room, and does not send a segment for each 10 bytes."),
    Case::new("silly-window-receiver", silly_window_receiver, "RFC 9293, 3.8.6.2.2")
        .about("The server reads one byte at a time from a full buffer")
        .expects("The stack does not open its window by less than a segment."),
    Case::new("ack-in-time", ack_in_time, "RFC 9293, 3.8.6.3")
        .about("One small segment arrives, and nothing else")
        .expects("It is acknowledged within half a second."),
];

/// Sends until the window has room for `left` bytes, or up to a limit, while the server does not read. Returns the bytes
/// that were sent.
fn fill(client: &mut Client, limit: usize, left: usize) -> Step<Vec<u8>> {
    let bytes = pattern(9, limit);
    let mut sent = 0;
    let begin = client.next;
    client.data(&bytes[..1])?;
    sent += 1;
    let mut edge = 0;
    loop {
        let ack = client.acked(SOON)?;
        let right = ack.ack.wrapping_sub(begin) + (u32::from(ack.window) << client.scale);
        check(right >= edge, || format!("the right edge moved from {edge} back to {right}"))?;
        edge = right;
        let room = (edge as usize).min(limit).saturating_sub(sent + left);
        if room == 0 {
            return Ok(bytes[..sent].to_vec());
        }
        let len = room.min(4000);
        client.data(&bytes[sent..sent + len])?;
        sent += len;
    }
}

fn scale_offered(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer { scale: Some(7), ..Offer::default() })?;
    check(syn_ack.option(WINDOW_SCALE).is_some(), || "the SYN+ACK has no window scale".to_owned())?;
    let mut served = lab.accept()?;
    // For a single byte, not every stack raises its window.
    client.data(&[b'x'; 1400])?;
    served.read(1400)?;
    let ack = client.acked(SOON)?;
    let window = u32::from(ack.window) << client.scale;
    check(window > 65_535 && window as usize <= 2 * WINDOW, || format!("the window is {window}"))?;
    lab.finish()
}

fn scale_not_offered(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.window = 20_000;
    let syn_ack = client.open(&Offer::default())?;
    check(syn_ack.option(WINDOW_SCALE).is_none(), || "the SYN+ACK has a window scale".to_owned())?;
    let served = lab.accept()?;
    fills(&mut client, served, 20_000)?;
    lab.finish()
}

fn scale_applied(setup: &Setup) -> Step {
    scaled(setup, 100, 7, 12_800)
}

fn scale_too_large(setup: &Setup) -> Step {
    scaled(setup, 1, 15, 16_384)
}

/// Checks that a client with this window and shift count gets as many bytes as expected without an ACK.
fn scaled(setup: &Setup, window: u16, scale: u8, expected: u32) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.window = window;
    let syn_ack = client.open(&Offer { scale: Some(scale), ..Offer::default() })?;
    applies(syn_ack.option(WINDOW_SCALE).is_some(), || "the stack does not scale windows".to_owned())?;
    let served = lab.accept()?;
    fills(&mut client, served, expected)?;
    lab.finish()
}

/// Sends more from the server than the window takes. Checks that no byte comes beyond the window, and that about half
/// of it is used. A sender may leave the rest and wait for more room (RFC 9293, 3.8.6.2.1).
fn fills(client: &mut Client, served: Served, window: u32) -> Step {
    let sending = served.send(pattern(4, 200_000), Then::Keep);
    // Acknowledge at first, so that the congestion window grows. Then stop.
    let mut bytes = Vec::new();
    while bytes.len() < 100_000 {
        let segment = client.expect_within(LATE, "more data", |segment| !segment.payload.is_empty())?;
        client.take(segment, &mut bytes)?;
    }
    let window = window.cast_signed();
    client.sent_to(window / 2 - 1460, window)?;
    drop(sending);
    Ok(())
}

fn window_closes(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.window = 16 << 10)?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = fill(&mut client, 4 * WINDOW, 0)?;
    check(bytes.len() <= 32 << 10, || format!("{} bytes went into a window of 16 KiB", bytes.len()))?;
    same(&served.read(bytes.len())?, &bytes)?;
    lab.finish()
}

fn window_edge_stays(setup: &Setup) -> Step {
    // Odd numbers, so a window in units of the scale is rounded. Shorter segments would need more memory than Linux has for
    // the window.
    const LEN: usize = 1401;
    const LAST: usize = 501;
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect_with(&Offer { scale: Some(7), ..Offer::default() })?;
    applies(client.scale > 0, || "the stack does not scale windows".to_owned())?;
    let bytes = pattern(11, 4 * WINDOW);
    // Every window takes the first segments.
    let (begin, mut sent, mut edge) = (client.next, 0, 4 * LEN);
    while sent < edge {
        let left = edge - sent;
        let len = if left > 2 * LAST { (left - LAST).min(4 * LEN) } else { left };
        let batch = &bytes[sent..bytes.len().min(sent + len)];
        check(!batch.is_empty(), || format!("the window is open after {sent} bytes that nobody reads"))?;
        for payload in batch.chunks(LEN) {
            client.put(Out { flags: ACK | PSH, payload, ..client.out() })?;
            client.next = client.next.wrapping_add(payload.len() as u32);
        }
        sent += batch.len();
        let (next, scale, mut back) = (client.next, client.scale, None);
        client.expect("ACK of everything", |ack| {
            let right = (ack.ack.wrapping_sub(begin) + (u32::from(ack.window) << scale)) as usize;
            back = back.or((right + (1 << scale) <= edge).then_some([edge, right]));
            edge = edge.max(right);
            ack.ack == next
        })?;
        if let Some([from, to]) = back {
            return Err(Stop::fail(format!("the right edge moved from {from} back to {to}")));
        }
    }
    client.rst()?;
    let kind = served.read_error()?;
    check(kind == ErrorKind::ConnectionReset, || format!("the error is \"{kind}\""))?;
    lab.finish()
}

/// A connection with a full receive buffer, and the bytes in it.
fn full(setup: &Setup) -> Step<(Lab, Client, Served, Vec<u8>)> {
    full_but(setup, 0)
}

/// The same with room for `left` bytes.
fn full_but(setup: &Setup, left: usize) -> Step<(Lab, Client, Served, Vec<u8>)> {
    let mut lab = setup.start_with(|config| config.window = 16 << 10)?;
    let (mut client, served) = lab.connect()?;
    let bytes = fill(&mut client, 4 * WINDOW, left)?;
    Ok((lab, client, served, bytes))
}

fn window_reopens(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full(setup)?;
    client.forget()?;
    same(&served.read(bytes.len())?, &bytes)?;
    client.expect("window update", |segment| segment.window > 0)?;
    client.write(b"more")?;
    same(&served.read(4)?, b"more")?;
    lab.finish()
}

fn probe_answered(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full(setup)?;
    client.forget()?;
    client.put(Out { flags: ACK | PSH, payload: b"?", ..client.out() })?;
    let ack = client.expect("ACK", |segment| segment.has(ACK))?;
    // The stack may take the byte.
    let taken = ack.ack.wrapping_sub(client.next);
    check(taken <= 1, || format!("the ACK is {taken} bytes ahead"))?;
    check(ack.window == 0, || format!("the window is {} while nobody reads", ack.window))?;
    same(&served.read(bytes.len())?, &bytes)?;
    lab.finish()
}

/// Returns a connection with a closed window of the client. The server has more to send, and then ends its half.
fn closed(setup: &Setup) -> Step<(Lab, Client, Sending, Vec<u8>)> {
    // Segments of 1,000 bytes fill the window exactly.
    closed_with(setup.start()?, 3000, 20_000, Then::Shutdown)
}

/// Sends `len` bytes from the server to a client with this window, until the window is closed. Segments have up to
/// 1,000 bytes.
pub(super) fn closed_with(mut lab: Lab, window: u16, len: usize, then: Then) -> Step<(Lab, Client, Sending, Vec<u8>)> {
    let mut client = lab.client();
    client.window = window;
    client.open(&Offer { mss: Some(1000), ..Offer::default() })?;
    let sending = lab.accept()?.send(pattern(5, len), then);
    let edge = client.expected.wrapping_add(window.into());
    let mut bytes = Vec::new();
    while distance(client.expected, edge) > 0 {
        let segment =
            client.expect_within(LATE, "data that fills the window", |segment| !segment.payload.is_empty())?;
        // The right edge stays where it is. A FIN may be the first number beyond it.
        client.window = distance(segment.end(), edge).max(0) as u16;
        client.take(segment, &mut bytes)?;
    }
    Ok((lab, client, sending, bytes))
}

/// Opens the window that [`closed_with`] has closed: the rest of the `len` bytes arrives, and the end.
pub(super) fn opened(client: &mut Client, mut bytes: Vec<u8>, len: usize) -> Step {
    client.window = 10_000;
    client.ack()?;
    bytes.extend(client.receive_to_end()?);
    same(&bytes, &pattern(5, len))
}

fn window_probed(setup: &Setup) -> Step {
    let (lab, mut client, sending, bytes) = closed(setup)?;
    let probe = client.expect_within(Duration::from_secs(4), "probe", |_| true)?;
    check(probe.payload.len() <= 1, || format!("{} bytes were sent to a closed window", probe.payload.len()))?;
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}

fn update_lost(setup: &Setup) -> Step {
    let (lab, mut client, sending, bytes) = closed(setup)?;
    // No ACK is sent here, as if the update was lost. The next one carries the open window.
    client.window = 10_000;
    client.expect_within(Duration::from_secs(4), "probe", |_| true)?;
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}

fn window_shrinks(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(6, 300_000), Then::Shutdown);
    // After so much the congestion window is no limit.
    let mut bytes = client.receive(100_000, LATE)?;
    // Wait until a full window is in flight.
    std::thread::sleep(Duration::from_millis(50));
    let mut flight = Vec::new();
    while let Some(segment) = client.next_segment(Duration::ZERO)? {
        flight.push(segment);
    }
    let sent = flight
        .iter()
        .map(Segment::end)
        .fold(client.expected, |one, other| if distance(one, other) > 0 { other } else { one });
    client.window = 5000;
    // Only the first segment has arrived. A sender may ignore the window of an ACK without news: it may be an old one.
    for segment in flight.into_iter().take(1) {
        client.take(segment, &mut bytes)?;
    }
    client.expect_none(Duration::from_millis(300), "new data beyond the smaller window", |segment| {
        distance(sent, segment.end()) > 0
    })?;
    client.window = 60_000;
    client.ack()?;
    bytes.extend(client.receive_to_end()?);
    same(&bytes, &pattern(6, 300_000))?;
    drop(sending.finish()?);
    lab.finish()
}

fn window_reduced(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    // This lets the congestion window grow.
    let served = deliver(&mut client, served, &pattern(8, 40_000), LATE, |_| false)?;
    let Some(served) = served else { return Ok(()) };
    client.window = 3000;
    client.ack()?;
    std::thread::sleep(Duration::from_millis(50));
    fills(&mut client, served, 3000)?;
    lab.finish()
}

fn stale_window(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    let old = Out { window: 0, ..client.out() };
    client.write(b"newer than the old segment")?;
    let sending = served.send(pattern(7, 100_000), Then::Keep);
    let mut bytes = client.receive(10_000, LATE)?;
    client.put(old)?;
    bytes.extend(client.receive(100_000 - bytes.len(), SOON)?);
    same(&bytes, &pattern(7, 100_000))?;
    drop(sending.finish()?);
    lab.finish()
}

fn beyond_the_window(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full(setup)?;
    client.forget()?;
    let out = client.out();
    client.put(Out { flags: ACK | PSH, seq: out.seq.wrapping_add(200_000), payload: b"too far", ..out })?;
    let next = client.next;
    client.expect("ACK of what is expected", |segment| segment.has(ACK) && segment.ack == next)?;
    same(&served.read(bytes.len())?, &bytes)?;
    check(served.is_quiet(Duration::from_millis(50)), || "data from beyond the window was delivered".to_owned())?;
    lab.finish()
}

fn silly_window_sender(setup: &Setup) -> Step {
    let (lab, mut client, sending, bytes) = closed(setup)?;
    client.forget()?;
    let mut small = 0;
    for _ in 0..20 {
        client.window += 10;
        client.ack()?;
        while let Some(segment) = client.next_segment(Duration::from_millis(5))? {
            // A window probe does not count.
            small += usize::from(segment.payload.len() > 1);
        }
    }
    check(small <= 4, || format!("{small} segments came for a window that opened 20 times by 10 bytes"))?;
    opened(&mut client, bytes, 20_000)?;
    drop(sending.finish()?);
    lab.finish()
}

fn silly_window_receiver(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full(setup)?;
    client.forget()?;
    for byte in &bytes[..200] {
        same(&served.read(1)?, &[*byte])?;
    }
    // An old sequence number makes the stack answer with its window.
    client.put(Out { seq: client.next.wrapping_sub(1), ..client.out() })?;
    std::thread::sleep(Duration::from_millis(50));
    let mut windows = Vec::new();
    while let Some(segment) = client.next_segment(Duration::ZERO)? {
        windows.push(u32::from(segment.window) << client.scale);
    }
    let silly = windows.iter().find(|window| (1..1000).contains(*window));
    check(silly.is_none(), || format!("the stack opened its window by {} bytes", silly.copied().unwrap_or_default()))?;
    lab.finish()
}

fn ack_in_time(setup: &Setup) -> Step {
    let (lab, mut client, served) = setup.connect()?;
    client.data(b"small")?;
    client.acked(Duration::from_millis(600))?;
    drop(served);
    lab.finish()
}
