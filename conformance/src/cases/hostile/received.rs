//! Data beyond the window, in tiny pieces, or in contradiction with itself.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, URG};

use super::super::segments::{part, repair};
use super::named;
use crate::lab::exchange;
use crate::{Case, Client, LATE, Lab, Out, SOON, Served, Setup, Step, check, packets, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("edge-out-of-order", edge_out_of_order, "RFC 9293, 3.10.7.4")
        .about("A segment ends beyond the window; then all before it but the first byte, and last the first byte")
        .expects("The segment is cut at the edge, or dropped. The server reads all bytes once and in order."),
    Case::new("edge-out-of-order-fin", edge_out_of_order_fin, "RFC 9293, 3.10.7.4")
        .about("The same with a FIN in the segment")
        .expects(
            "The server reads all bytes once and in order. The FIN is beyond the window: it is dropped, or taken \
             after all bytes.",
        ),
    Case::new("edge-in-order", edge_in_order, "RFC 9293, 3.10.7.4")
        .about("60,000 bytes in order into a window of 16 KiB, while nobody reads")
        .expects(
            "At most 32 KiB are acknowledged before the server reads. The server reads all bytes once and in order.",
        ),
    Case::new("edge-super-packet", edge_super_packet, "RFC 9293, 3.10.7.4; virtio 1.2, 5.1.6")
        .about("A super-packet of 40,000 bytes into a window of 16 KiB")
        .expects("It is cut at the edge, or dropped. The server reads all bytes once and in order.")
        .offloading(),
    Case::new("tiny-segments", tiny_segments, "RFC 9293, 3.10.7.4; CVE-2018-5390")
        .about(
            "8,000 segments with one byte each, every second byte of the window; another client makes requests \
             between them",
        )
        .expects(
            "Each request of the other client is answered within a second. When all bytes have come again, the server \
             reads them once and in order.",
        ),
    Case::new("overlap-contradicts", overlap_contradicts, "RFC 9293, 3.10.7.4")
        .about("Overlapping segments, out of order, with different bytes for the same numbers")
        .expects("The server reads every number once, each with one of its bytes, and the connection goes on."),
    Case::new("urgent-nonsense", urgent_nonsense, "RFC 9293, 3.8.5; RFC 6093, 6")
        .about("Urgent pointers of 0, beyond the segment, and without data")
        .expects("The bytes are part of the stream, and the connection goes on."),
    Case::new("timestamps-unasked", timestamps_unasked, "RFC 7323, 3.2")
        .about("Segments with timestamps that go back, on a connection that did not agree on them")
        .expects("The timestamps are ignored, and the data is delivered."),
    Case::new("ack-answers", ack_answers, "RFC 9293, 3.10.7.4; RFC 5961, 7")
        .about("200 duplicate ACKs and 200 ACKs from outside the window, on a connection at rest")
        .expects(
            "No answer to an ACK within the window, and at most one to each from outside: two sides cannot answer \
             each other for ever.",
        ),
];

/// Sends a segment with these flags that begins 535 bytes before the edge of a window of 65,535 bytes and ends beyond
/// it, then all before it but the first byte, and then the first byte. Checks that the server reads all bytes.
fn out_of_order(setup: &Setup, flags: u8) -> Step {
    const AT: usize = 65_000;
    let (lab, mut client, mut served) = setup.connect()?;
    let bytes = pattern(90, AT + 1220);
    client.put(Out { flags, ..part(&client, &bytes, AT, bytes.len()) })?;
    for from in (1..AT).step_by(1220) {
        client.put(part(&client, &bytes, from, (from + 1220).min(AT)))?;
    }
    client.put(part(&client, &bytes, 0, 1))?;
    complete(&mut client, &mut served, &bytes)?;
    lab.finish_serving()
}

fn edge_out_of_order(setup: &Setup) -> Step {
    out_of_order(setup, ACK | PSH)
}

fn edge_out_of_order_fin(setup: &Setup) -> Step {
    out_of_order(setup, ACK | PSH | FIN)
}

/// Returns a connection with a receive buffer of 16 KiB.
fn small(setup: &Setup) -> Step<(Lab, Client, Served)> {
    let mut lab = setup.start_with(|config| config.window = 16 << 10)?;
    let (client, served) = lab.connect()?;
    Ok((lab, client, served))
}

/// Returns how many bytes from the next one on are acknowledged, and how many more the window takes.
fn progress(client: &mut Client) -> Step<(usize, usize)> {
    // A segment that was sent before makes the stack answer with its state.
    client.put(Out { seq: client.next.wrapping_sub(1), ..client.out() })?;
    let (mut done, mut room) = (0, 0);
    let next = client.next;
    while let Some(segment) = client.next_segment(Duration::from_millis(100))? {
        let acknowledged = segment.ack.wrapping_sub(next) as usize;
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
        check(done <= bytes.len(), || "more is acknowledged than was sent".to_owned())?;
        read.extend(served.read(done.saturating_sub(read.len()))?);
        if done == bytes.len() {
            client.next = client.next.wrapping_add(bytes.len() as u32);
            same(&read, bytes)?;
            return exchange(client, served);
        }
        for from in (done..bytes.len().min(done + room.clamp(1, 8000))).step_by(1000) {
            client.put(part(client, bytes, from, (from + 1000).min(bytes.len())))?;
        }
    }
    check(false, || format!("{} of {} bytes were read", read.len(), bytes.len()))
}

fn edge_in_order(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = small(setup)?;
    let bytes = pattern(91, 60_000);
    for from in (0..bytes.len()).step_by(1200) {
        client.put(part(&client, &bytes, from, (from + 1200).min(bytes.len())))?;
    }
    let (done, _) = progress(&mut client)?;
    check(done <= 32 << 10, || format!("{done} bytes are acknowledged of a window of 16 KiB"))?;
    complete(&mut client, &mut served, &bytes)?;
    lab.finish_serving()
}

fn edge_super_packet(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = small(setup)?;
    let bytes = pattern(92, 40_000);
    // A PSH ends a super-packet.
    let segment = |from: usize| client.packet(Out { flags: ACK, ..part(&client, &bytes, from, from + 1000) });
    let segments: Vec<_> = (0..40_000).step_by(1000).map(segment).collect();
    lab.wire().send_joined(&segments)?;
    complete(&mut client, &mut served, &bytes)?;
    lab.finish_serving()
}

fn tiny_segments(setup: &Setup) -> Step {
    const COUNT: usize = 8000;
    let mut lab = setup.start()?;
    let (mut other, mut other_served) = lab.connect()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(93, 2 * COUNT);
    for index in 0..COUNT {
        let at = 2 * index + 1;
        client.put(part(&client, &bytes, at, at + 1))?;
        if index % 200 == 199 {
            client.forget()?;
            named(exchange(&mut other, &mut other_served), || format!("after {} segments", index + 1))?;
        }
    }
    client.forget()?;
    client.data(&bytes)?;
    let next = client.next;
    if client.acked(SOON).is_err() {
        // A stack that keeps few segments gets the last ones again.
        client.next = next.wrapping_sub(bytes.len() as u32);
        return repair(&mut client, &mut served, &bytes);
    }
    same(&served.read(bytes.len())?, &bytes)?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn overlap_contradicts(setup: &Setup) -> Step {
    const LEN: usize = 3000;
    let (lab, mut client, mut served) = setup.connect()?;
    let versions = [[b'a'; LEN], [b'b'; LEN], [b'c'; LEN]];
    for (version, from, to) in [(0, 1000, 2000), (1, 500, 1500), (2, 1500, 2500), (1, 1100, 2450), (2, 2400, 3000)] {
        client.put(part(&client, &versions[version], from, to))?;
    }
    client.put(part(&client, &versions[0], 0, 900))?;
    // Whatever is missing comes again.
    client.data(&versions[0])?;
    client.acked(LATE)?;
    let read = served.read(LEN)?;
    check(read.iter().all(|byte| b"abc".contains(byte)), || "a byte was read that was never sent".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn urgent_nonsense(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for (pointer, data) in [(0, "zero"), (3, ""), (1000, "beyond"), (65_535, "far"), (0, ""), (65_535, "")] {
        let out = Out { flags: ACK | PSH | URG, payload: data.as_bytes(), ..client.out() };
        client.send_packet(&packets::with_tcp_bytes(client.packet(out), 18, &u16::to_be_bytes(pointer)))?;
        client.next = client.next.wrapping_add(data.len() as u32);
        let read = served.read(data.len());
        same(&named(read, || format!("with the pointer {pointer}"))?, data.as_bytes())?;
    }
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn timestamps_unasked(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for time in [u32::MAX, 5, 0, 1 << 31] {
        let [a, b, c, d] = time.to_be_bytes();
        let options = [1, 1, 8, 10, a, b, c, d, 0xff, 0xff, 0xff, 0xff];
        client.put(Out { flags: ACK | PSH, options: &options, payload: b"data", ..client.out() })?;
        client.next = client.next.wrapping_add(4);
        same(&named(served.read(4), || format!("with the timestamp {time}"))?, b"data")?;
    }
    exchange(&mut client, &mut served)?;
    lab.finish()
}

/// Sends copies of a segment. Returns how many answers come, of which none may be a RST.
pub(super) fn answers(client: &mut Client, copies: usize, out: Out<'_>) -> Step<usize> {
    client.forget()?;
    for _ in 0..copies {
        client.put(out)?;
    }
    let mut count = 0;
    while let Some(segment) = client.next_segment(Duration::from_millis(100))? {
        check(!segment.has(RST), || "a RST came".to_owned())?;
        count += 1;
    }
    Ok(count)
}

fn ack_answers(setup: &Setup) -> Step {
    const COUNT: usize = 200;
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    // The stack may send a window update of its own.
    std::thread::sleep(Duration::from_millis(50));
    let within = client.out();
    let outside = Out { seq: within.seq.wrapping_sub(200_000), ..within };
    let within = answers(&mut client, COUNT, within)?;
    check(within <= 2, || format!("{within} answers came to {COUNT} duplicate ACKs"))?;
    let outside = answers(&mut client, COUNT, outside)?;
    check(outside <= COUNT, || format!("{outside} answers came to {COUNT} ACKs from outside the window"))?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}
