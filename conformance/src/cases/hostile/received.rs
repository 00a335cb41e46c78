//! Data beyond the window, in tiny pieces, or in contradiction with itself.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("edge-out-of-order", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.10.7.4", |lab| {
        out_of_order(lab, ACK | PSH)
    })
    .about("A segment ends beyond the window; then all before it but the first byte, and last the first byte")
    .expects("The segment is cut at the edge, or dropped. The server reads all bytes once and in order."),
    Case::new("edge-out-of-order-fin", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.10.7.4", |lab| {
        out_of_order(lab, ACK | PSH | FIN)
    })
    .about("The same with a FIN in the segment")
    .expects(
        "The server reads all bytes once and in order. The FIN is beyond the window: it is dropped, or taken \
             after all bytes.",
    ),
    Case::new("edge-in-order", "ours", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(91, 60_000);
        client.put_parts(&bytes, 0..60_000, 1200)?;
        let (done, _) = progress(&mut client)?;
        check!(done <= 32 << 10, "{done} bytes are acknowledged of a window of 16 KiB")?;
        complete(&mut client, &mut served, &bytes)?;
        lab.still_serves()
    })
    .about("60,000 bytes in order into a window of 16 KiB, while nobody reads")
    .expects("At most 32 KiB are acknowledged before the server reads. The server reads all bytes once and in order.")
    .with(SMALL_WINDOW),
    Case::new("edge-super-packet", "ours", "RFC 9293, 3.10.7.4; virtio 1.2, 5.1.6", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(92, 40_000);
        client.put_joined(&bytes)?;
        complete(&mut client, &mut served, &bytes)?;
        lab.still_serves()
    })
    .about("A super-packet of 40,000 bytes into a window of 16 KiB")
    .expects("It is cut at the edge, or dropped. The server reads all bytes once and in order.")
    .with(SMALL_WINDOW)
    .offloading(),
    Case::new("tiny-segments", "ours", "RFC 9293, 3.10.7.4; CVE-2018-5390", |lab| {
        const COUNT: usize = 8000;
        let (mut other, mut other_served) = lab.connect()?;
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(93, 2 * COUNT);
        for index in 0..COUNT {
            let at = 2 * index + 1;
            client.put(client.part(&bytes, at..at + 1))?;
            if index % 200 == 199 {
                client.forget()?;
                named(exchange(&mut other, &mut other_served), || format!("after {} segments", index + 1))?;
            }
        }
        client.forget()?;
        client.data(&bytes)?;
        if client.acked(SOON).is_err() {
            // A stack that keeps few segments gets the last ones again.
            client.next = client.next.wrapping_sub(bytes.len() as u32);
            return repair(&mut client, &mut served, &bytes);
        }
        served.reads(&bytes)?;
        exchange(&mut client, &mut served)
    })
    .about(
        "8,000 segments with one byte each, every second byte of the window; another client makes requests \
             between them",
    )
    .expects(
        "Each request of the other client is answered within a second. When all bytes have come again, the server \
             reads them once and in order.",
    ),
    Case::new("overlap-contradicts", "ours", "RFC 9293, 3.10.7.4", |lab| {
        const LEN: usize = 3000;
        let (mut client, mut served) = lab.connect()?;
        let [a, b, c] = [[b'a'; LEN], [b'b'; LEN], [b'c'; LEN]];
        let parts =
            [(&a, 1000..2000), (&b, 500..1500), (&c, 1500..2500), (&b, 1100..2450), (&c, 2400..3000), (&a, 0..900)];
        parts.into_iter().try_for_each(|(bytes, part)| client.put(client.part(bytes, part)))?;
        // Whatever is missing comes again.
        client.data(&a)?;
        client.acked(LATE)?;
        let read = served.read(LEN)?;
        check!(read.iter().all(|byte| b"abc".contains(byte)), Data, "a byte was read that was never sent")?;
        exchange(&mut client, &mut served)
    })
    .about("Overlapping segments, out of order, with different bytes for the same numbers")
    .expects("The server reads every number once, each with one of its bytes, and the connection goes on."),
    Case::new("urgent-nonsense", "SHOULD RFC 9293, 3.8.5: wrong pointers", "RFC 9293, 3.8.5; RFC 6093, 6", |lab| {
        let (mut client, mut served) = lab.connect()?;
        for (pointer, data) in [(0_u16, "zero"), (3, ""), (1000, "beyond"), (65_535, "far"), (0, ""), (65_535, "")] {
            let out = Out { flags: ACK | PSH | URG, ..client.part(data.as_bytes(), 0..data.len()) };
            client.send_packet(&packets::with_tcp_bytes(client.packet(out), 18, &pointer.to_be_bytes()))?;
            client.sent(data.len());
            named(served.reads(data.as_bytes()), || format!("with the pointer {pointer}"))?;
        }
        exchange(&mut client, &mut served)
    })
    .about("Urgent pointers of 0, beyond the segment, and without data")
    .expects("The bytes are part of the stream, and the connection goes on."),
    Case::new("timestamps-unasked", "MUST RFC 7323, 3.2: ignored without an option", "RFC 7323, 3.2", |lab| {
        let (mut client, mut served) = lab.connect()?;
        for time in [u32::MAX, 5, 0, 1 << 31] {
            client.stamps = Some([time, u32::MAX]);
            client.data(b"data")?;
            named(served.reads(b"data"), || format!("with the timestamp {time}"))?;
        }
        client.stamps = None;
        exchange(&mut client, &mut served)
    })
    .about("Segments with timestamps that go back, on a connection that did not agree on them")
    .expects("The timestamps are ignored, and the data is delivered."),
    Case::new("ack-answers", "ours", "RFC 9293, 3.10.7.4; RFC 5961, 7", |lab| {
        const COUNT: usize = 200;
        let (mut client, mut served) = lab.connect_and_exchange()?;
        // The stack may send a window update of its own.
        thread::sleep(ms(50));
        let within = client.out();
        let outside = Out { seq: within.seq.wrapping_sub(200_000), ..within };
        let within = answers(&mut client, COUNT, within)?;
        check!(within <= 2, "{within} answers came to {COUNT} duplicate ACKs")?;
        let outside = answers(&mut client, COUNT, outside)?;
        check!(outside <= COUNT, "{outside} answers came to {COUNT} ACKs from outside the window")?;
        exchange(&mut client, &mut served)
    })
    .about("200 duplicate ACKs and 200 ACKs from outside the window, on a connection at rest")
    .expects(
        "No answer to an ACK within the window, and at most one to each from outside: two sides cannot answer \
             each other for ever.",
    ),
];

/// Sends a segment with these flags that begins 535 bytes before the edge of a window of 65,535 bytes and ends beyond
/// it, then all before it but the first byte, and then the first byte. Checks that the server reads all bytes.
fn out_of_order(lab: &mut Lab, flags: u8) -> Step {
    const AT: usize = 65_000;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(90, AT + 1220);
    client.put(Out { flags, ..client.part(&bytes, AT..bytes.len()) })?;
    client.put_parts(&bytes, 1..AT, 1220)?;
    client.put(client.part(&bytes, 0..1))?;
    complete(&mut client, &mut served, &bytes)?;
    lab.still_serves()
}

/// Returns how many bytes from the next one on are acknowledged, and how many more the window takes.
fn progress(client: &mut Client) -> Step<(usize, usize)> {
    // A segment that was sent before makes the stack answer with its state.
    client.put(Out { seq: client.next.wrapping_sub(1), ..client.out() })?;
    let (mut done, mut room) = (0, 0);
    while let Some(segment) = client.next_segment(ms(100))? {
        let acknowledged = segment.ack.wrapping_sub(client.next) as usize;
        if acknowledged < 1 << 30 {
            (done, room) = (acknowledged, usize::from(segment.window) << client.scale);
        }
    }
    Ok((done, room))
}

/// Sends the bytes that are not acknowledged again, as the window allows, while the server reads.
fn complete(client: &mut Client, served: &mut Served, bytes: &[u8]) -> Step {
    let mut read = Vec::new();
    for _ in 0..100 {
        let (done, room) = progress(client)?;
        if done == bytes.len() + 1 {
            // A FIN has been taken.
            read.extend(served.read_to_end()?);
            return same(&read, bytes);
        }
        check!(done <= bytes.len(), Data, "more is acknowledged than was sent")?;
        read.extend(served.read(done.saturating_sub(read.len()))?);
        if done == bytes.len() {
            client.sent(bytes.len());
            same(&read, bytes)?;
            return exchange(client, served);
        }
        client.put_parts(bytes, done..bytes.len().min(done + room.clamp(1, 8000)), 1000)?;
    }
    fail!(Hang, "{} of {} bytes were read", read.len(), bytes.len())
}

/// Sends copies of a segment. Returns how many answers come, of which none may be a RST.
pub(super) fn answers(client: &mut Client, copies: usize, out: Out<'_>) -> Step<usize> {
    client.forget()?;
    (0..copies).try_for_each(|_| client.put(out))?;
    let mut count = 0;
    while let Some(segment) = client.next_segment(ms(100))? {
        check!(!segment.has(RST), Data, "a RST came")?;
        count += 1;
    }
    Ok(count)
}
