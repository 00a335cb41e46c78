//! Flow control.

pub(super) mod receiver;
pub(super) mod sender;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("scale-offered", "SHOULD RFC 7323, 2.3: an option for an option", "RFC 7323, 2.2", |lab| {
        let (mut client, mut served) = lab.connect_with(&Offer { scale: Some(7), ..Offer::default() })?;
        check!(client.has_agreed(WINDOW_SCALE), "the SYN+ACK has no window scale")?;
        // For a single byte, not every stack raises its window.
        client.data(&[b'x'; 1400])?;
        served.read(1400)?;
        let ack = client.acked(SOON)?;
        let window = u32::from(ack.window) << client.scale;
        check!(window > 65_535 && window as usize <= 2 * WINDOW, "the window is {window}")
    })
    .about("The client offers a window scale")
    .expects("The SYN+ACK has the option too, and later windows are more than 64 KiB."),
    Case::new("scale-not-offered", "MUST RFC 7323, 2.3: no scale without an option", "RFC 7323, 2.2", |lab| {
        let (mut client, served) = lab.connect_with(&Offer { window: 20_000, ..Offer::default() })?;
        check!(!client.has_agreed(WINDOW_SCALE), "the SYN+ACK has a window scale")?;
        fills(&mut client, served, 20_000)
    })
    .about("The client offers no window scale")
    .expects("The SYN+ACK has none, and the stack takes the client's windows as they are."),
    Case::new("scale-applied", "MUST RFC 7323, 2.3: windows are shifted", "RFC 7323, 2.3", |lab| {
        scaled(lab, 100, 7, 12_800)
    })
    .about("The client's window is 100, and its shift count is 7")
    .expects("The stack sends 12,800 bytes and no more."),
    Case::new("scale-too-large", "MUST RFC 7323, 2.3: at most 14", "RFC 7323, 2.3", |lab| scaled(lab, 1, 15, 16_384))
        .about("The client offers a shift count of 15; its window is 1")
        .expects("The stack uses 14: it sends 16,384 bytes and no more."),
    Case::new("window-closes", "ours", "RFC 9293, 3.8.6", |lab| {
        let (_, mut served, bytes) = full_but(lab, 0)?;
        check!(bytes.len() <= 32 << 10, "{} bytes went into a window of 16 KiB", bytes.len())?;
        served.reads(&bytes)
    })
    .about("The server does not read, and the client fills the window")
    .expects(
        "The window closes and never moves to the left. All that fits is acknowledged, and the server reads it \
             later.",
    )
    .with(SMALL_WINDOW),
    Case::new(
        "window-edge-stays",
        "MUST RFC 7323, 2.4: announced windows hold",
        "RFC 7323, 2.4; RFC 9293, 3.8.6",
        |lab| {
            // Odd, so that a scaled window is rounded. Shorter segments would need more memory than Linux has.
            const LEN: usize = 1401;
            const LAST: usize = 501;
            let (mut client, mut served) = lab.connect_with(&Offer { scale: Some(7), ..Offer::default() })?;
            applies!(client.scale > 0, "the stack does not scale windows")?;
            let bytes = pattern(11, 4 * WINDOW);
            // Every window takes the first segments.
            let (begin, mut sent, mut edge) = (client.next, 0, 4 * LEN);
            while sent < edge {
                let left = edge - sent;
                let len = if left > 2 * LAST { (left - LAST).min(4 * LEN) } else { left };
                let batch = &bytes[sent..bytes.len().min(sent + len)];
                check!(!batch.is_empty(), "the window is open after {sent} bytes that nobody reads")?;
                batch.chunks(LEN).try_for_each(|payload| client.send(client.part(payload, 0..payload.len())))?;
                sent += batch.len();
                let (next, scale, mut back) = (client.next, client.scale, None);
                client.expect("ACK of everything", |ack| {
                    let right = (ack.ack.wrapping_sub(begin) + (u32::from(ack.window) << scale)) as usize;
                    back = back.or((right + (1 << scale) <= edge).then_some([edge, right]));
                    edge = edge.max(right);
                    ack.ack == next
                })?;
                if let Some([from, to]) = back {
                    return fail!("the right edge moved from {from} back to {to}");
                }
            }
            client.rst()?;
            served.reads_reset()
        },
    )
    .about(
        "The client fills a scaled window with segments of 1,401 bytes, and nobody reads; then it resets the \
             connection",
    )
    .expects(
        "All bytes up to the furthest edge that was ever announced are acknowledged, although windows are \
             rounded. The edge moves to the left by the rounding at most. A RST at it ends the connection.",
    ),
    Case::new(
        "window-reopens",
        "SHOULD RFC 9293, 3.8.6.2.2: window updates",
        "RFC 9293, 3.8.6; RFC 1122, 4.2.3.3",
        |lab| {
            let (mut client, mut served, bytes) = full(lab)?;
            served.reads(&bytes)?;
            client.expect("window update", |segment| segment.window > 0)?;
            client.write(b"more")?;
            served.reads(b"more")
        },
    )
    .about("The server reads again after the window has closed")
    .expects("The stack sends an update of its own accord.")
    .with(SMALL_WINDOW),
    Case::new("probe-answered", "MUST RFC 9293, 3.8.6.1: ACK at window zero", "RFC 9293, 3.8.6.1", |lab| {
        let (mut client, mut served, bytes) = full(lab)?;
        client.put(client.part(b"?", 0..1))?;
        let ack = client.expect("ACK", |segment| segment.has(ACK))?;
        // The stack may take the byte.
        let taken = ack.ack.wrapping_sub(client.next);
        check!(taken <= 1, "the ACK is {taken} bytes ahead")?;
        check!(ack.window == 0, "the window is {} while nobody reads", ack.window)?;
        served.reads(&bytes)
    })
    .about("The client probes the closed window with one byte")
    .expects("An ACK with the window and the number that is expected.")
    .with(SMALL_WINDOW),
    Case::new("window-probed", "MUST-36", "RFC 9293, 3.8.6.1", |lab| {
        let (mut client, sending, bytes) = closed(lab)?;
        let probe = client.expect_probe()?;
        check!(probe.payload.len() <= 1, "{} bytes were sent to a closed window", probe.payload.len())?;
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client closes its window while the server has more to send")
    .expects("The stack probes the window within 4 seconds."),
    Case::new("update-lost", "MUST-36", "RFC 9293, 3.8.6.1", |lab| {
        let (mut client, sending, bytes) = closed(lab)?;
        // No ACK is sent here, as if the update was lost. The next one carries the open window.
        client.window = 10_000;
        client.expect_probe()?;
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client's window update is lost")
    .expects("The stack's probe is answered with the open window, and all data arrives."),
    Case::new("window-shrinks", "SHLD-15", "RFC 9293, 3.8.6", |lab| {
        let (mut client, served) = lab.connect()?;
        let sending = served.send(pattern(6, 300_000), Then::Shutdown);
        // After so much the congestion window is no limit.
        let mut bytes = client.receive(100_000, LATE)?;
        // Wait until a full window is in flight.
        thread::sleep(ms(50));
        let flight = client.flight(Duration::ZERO)?;
        let sent = client.expected.wrapping_add(client.reach(&flight) as u32);
        client.window = 5000;
        // Only the first segment has arrived. A sender may ignore the window of an ACK without news: it may be an old
        // one.
        flight.into_iter().take(1).try_for_each(|segment| client.take(segment, &mut bytes))?;
        client
            .expect_none(ms(300), "new data beyond the smaller window", |segment| distance(sent, segment.end()) > 0)?;
        client.window = 60_000;
        client.ack()?;
        bytes.extend(client.receive_to_end()?);
        same(&bytes, &pattern(6, 300_000))?;
        sending.finish()
    })
    .about("The client moves the right edge of its window to the left")
    .expects(
        "The stack sends nothing new beyond the new edge, and all data arrives after the window has opened again.",
    ),
    Case::new("window-reduced", "MUST RFC 9293, 3.8.6: within the window", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, served) = lab.connect()?;
        // This lets the congestion window grow.
        let served = deliver(&mut client, served, &pattern(8, 40_000), LATE)?;
        client.window = 3000;
        client.ack()?;
        thread::sleep(ms(50));
        fills(&mut client, served, 3000)
    })
    .about("An ACK with the same numbers has a smaller window, while nothing is in flight")
    .expects("The stack sends no more than the smaller window."),
    Case::new("stale-window", "MUST RFC 9293, 3.10.7.4: old windows", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, served) = lab.connect()?;
        let old = Out { window: 0, ..client.out() };
        client.write(b"newer than the old segment")?;
        let sending = served.send(pattern(7, 100_000), Then::Keep);
        let mut bytes = client.receive(10_000, LATE)?;
        client.put(old)?;
        bytes.extend(client.receive(100_000 - bytes.len(), SOON)?);
        same(&bytes, &pattern(7, 100_000))?;
        sending.finish()
    })
    .about("An old segment with a closed window comes late")
    .expects("The stack keeps the newer window and goes on sending."),
    Case::new("beyond-the-window", "MUST RFC 9293, 3.5.2: group 3", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served, bytes) = full(lab)?;
        client.put(Out { seq: client.next.wrapping_add(200_000), ..client.part(b"too far", 0..7) })?;
        client.expect_state()?;
        served.reads(&bytes)?;
        check!(served.is_quiet(ms(50)), Data, "data from beyond the window was delivered")
    })
    .about("The client sends data that begins beyond the window")
    .expects("The data is dropped and answered with an ACK of what is expected.")
    .with(SMALL_WINDOW),
    Case::new("silly-window-sender", "MUST-38", "RFC 9293, 3.8.6.2.1", |lab| {
        let (mut client, sending, bytes) = closed(lab)?;
        client.forget()?;
        let mut small = 0;
        for _ in 0..20 {
            client.window += 10;
            client.ack()?;
            // A window probe does not count.
            small += client.flight(ms(5))?.iter().filter(|segment| segment.payload.len() > 1).count();
        }
        check!(small <= 4, Speed, "{small} segments came for a window that opened 20 times by 10 bytes")?;
        opened(&mut client, bytes, 20_000)?;
        sending.finish()
    })
    .about("The client opens its window by 10 bytes at a time")
    .expects("The stack waits for more room, and does not send a segment for each 10 bytes."),
    Case::new("silly-window-receiver", "MUST-39", "RFC 9293, 3.8.6.2.2", |lab| {
        let (mut client, mut served, bytes) = full(lab)?;
        bytes[..200].iter().try_for_each(|byte| served.reads(&[*byte]))?;
        // An old sequence number makes the stack answer with its window.
        client.put(Out { seq: client.next.wrapping_sub(1), ..client.out() })?;
        thread::sleep(ms(50));
        while let Some(segment) = client.next_segment(Duration::ZERO)? {
            let window = u32::from(segment.window) << client.scale;
            check!(!(1..1000).contains(&window), Speed, "the stack opened its window by {window} bytes")?;
        }
        Ok(())
    })
    .about("The server reads one byte at a time from a full buffer")
    .expects("The stack does not open its window by less than a segment.")
    .with(SMALL_WINDOW),
    Case::new("ack-in-time", "MUST-40", "RFC 9293, 3.8.6.3", |lab| {
        let (mut client, _served) = lab.connect()?;
        client.data(b"small")?;
        client.acked(ms(600)).map(drop)
    })
    .about("One small segment arrives, and nothing else")
    .expects("It is acknowledged within half a second."),
];

/// Sends until the window has room for `left` bytes, or up to a limit. Returns the bytes that were sent.
fn fill(client: &mut Client, limit: usize, left: usize) -> Step<Vec<u8>> {
    let bytes = pattern(9, limit);
    let (begin, mut sent, mut edge) = (client.next, 1, 0);
    client.data(&bytes[..1])?;
    loop {
        let ack = client.acked(SOON)?;
        let right = ack.ack.wrapping_sub(begin) + (u32::from(ack.window) << client.scale);
        check!(right >= edge, "the right edge moved from {edge} back to {right}")?;
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

/// Checks that a client with this window and shift count gets as many bytes as expected without an ACK.
fn scaled(lab: &mut Lab, window: u16, scale: u8, expected: i32) -> Step {
    let (mut client, served) = lab.connect_with(&Offer { window, scale: Some(scale), ..Offer::default() })?;
    applies!(client.has_agreed(WINDOW_SCALE), "the stack does not scale windows")?;
    fills(&mut client, served, expected)
}

/// Sends more from the server than the window takes. Checks that no byte comes beyond the window, and that about half
/// of it is used. A sender may leave the rest and wait for more room (RFC 9293, 3.8.6.2.1).
fn fills(client: &mut Client, served: Served, window: i32) -> Step {
    let _sending = served.send(pattern(4, 200_000), Then::Keep);
    // Acknowledge at first, so that the congestion window grows. Then stop.
    client.receive(100_000, LATE)?;
    client.sent_to(window / 2 - 1460, window)
}

/// A connection with a full receive buffer, and the bytes in it.
fn full(lab: &mut Lab) -> Step<(Client, Served, Vec<u8>)> {
    let (mut client, served, bytes) = full_but(lab, 0)?;
    client.forget()?;
    Ok((client, served, bytes))
}

/// The same with room for `left` bytes.
fn full_but(lab: &mut Lab, left: usize) -> Step<(Client, Served, Vec<u8>)> {
    let (mut client, served) = lab.connect()?;
    let bytes = fill(&mut client, 4 * WINDOW, left)?;
    Ok((client, served, bytes))
}

/// Returns a connection with a closed window of the client. The server has more to send, and then ends its half.
fn closed(lab: &mut Lab) -> Step<(Client, Sending, Vec<u8>)> {
    // Segments of 1,000 bytes fill the window exactly.
    closed_with(lab, 3000, 20_000, Then::Shutdown)
}

/// Sends from the server to a client with this window, until it is closed. Segments have up to 1,000 bytes.
pub(super) fn closed_with(lab: &mut Lab, window: u16, len: usize, then: Then) -> Step<(Client, Sending, Vec<u8>)> {
    let (mut client, served) = lab.connect_with(&Offer { window, mss: Some(1000), ..Offer::default() })?;
    let sending = served.send(pattern(5, len), then);
    let edge = client.expected.wrapping_add(window.into());
    let mut bytes = Vec::new();
    while distance(client.expected, edge) > 0 {
        let segment =
            client.expect_within(LATE, "data that fills the window", |segment| !segment.payload.is_empty())?;
        // The right edge stays where it is. A FIN may be the first number beyond it.
        client.window = distance(segment.end(), edge).max(0) as u16;
        client.take(segment, &mut bytes)?;
    }
    Ok((client, sending, bytes))
}

/// Opens the window that [`closed_with`] has closed: the rest of the `len` bytes arrives, and the end.
pub(super) fn opened(client: &mut Client, mut bytes: Vec<u8>, len: usize) -> Step {
    client.window = 10_000;
    client.ack()?;
    bytes.extend(client.receive_to_end()?);
    same(&bytes, &pattern(5, len))
}
