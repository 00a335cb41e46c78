//! The stack's window when little of it is left, or nothing.

use super::{full, full_but};
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("edge-while-ack-delayed", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served, bytes) = full_but(lab, 1000)?;
        served.reads(&bytes[..500])?;
        thread::sleep(ms(20));
        let more = pattern(120, 1001);
        client.put(client.part(&more, 0..1001))?;
        // A delayed ACK is sent meanwhile.
        thread::sleep(ms(100));
        served.reads(&bytes[500..])?;
        repair(&mut client, &mut served, &more)?;
        lab.still_serves()
    })
    .about("The window has room for 1,000 bytes, the server reads 500, and one segment of 1,001 bytes comes")
    .expects(
        "The stack does not crash, whatever edge it takes. The server reads all bytes once and in order, at the \
             latest when they have come again.",
    )
    .with(SMALL_WINDOW),
    Case::new("spans-the-window", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served, bytes) = full_but(lab, 500)?;
        let more = pattern(121, 700);
        let segment = [&bytes[bytes.len() - 300..], &more].concat();
        client.put(Out { seq: client.next.wrapping_sub(300), ..client.part(&segment, 0..1000) })?;
        client.expect("ACK", |segment| segment.has(ACK))?;
        served.reads(&bytes)?;
        repair(&mut client, &mut served, &more)?;
        lab.still_serves()
    })
    .about("A segment begins before the window and ends beyond it")
    .expects(
        "It is cut to the window, or dropped. The server reads all bytes once and in order, at the latest when \
             they have come again.",
    )
    .with(SMALL_WINDOW),
    Case::new("hole-before-full-window", "SHLD-31", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        client.data(b"x")?;
        let window = usize::from(client.acked(SOON)?.window);
        served.reads(b"x")?;
        let bytes = pattern(122, window);
        client.put_parts(&bytes, 1000..window, 1000)?;
        client.put(client.part(&bytes, 0..1000))?;
        client.sent(window);
        client.acked(SOON)?;
        served.reads(&bytes)?;
        exchange(&mut client, &mut served)
    })
    .about("The first segment of a full window is lost, and comes last")
    .expects("The segments after it are kept: when it comes, one ACK covers the whole window."),
    Case::new("fin-into-full-window", "MUST RFC 9293, 3.8.6.1: ACK at window zero", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served, bytes) = full(lab)?;
        client.fin()?;
        let ack = client.expect("ACK", |segment| segment.has(ACK))?;
        let missing = client.next.wrapping_sub(ack.ack);
        check!(missing <= 1, "the ACK is {missing} before the FIN's end")?;
        served.reads(&bytes)?;
        client.fin_again()?;
        client.acked(SOON)?;
        served.reads_to_end(b"")
    })
    .about("The client sends its FIN while the window is closed, and again when it is open")
    .expects(
        "Each is answered with an ACK, the last one with an ACK of the FIN. The server reads all data, and then \
             the end.",
    )
    .with(SMALL_WINDOW),
    Case::new("fin-at-the-edge", "MUST RFC 9293, 3.10.7.4: FIN", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served, bytes) = full_but(lab, 500)?;
        client.forget()?;
        let last = pattern(123, 500);
        client.put(Out { flags: ACK | PSH | FIN, ..client.part(&last, 0..500) })?;
        let ack = client.expect("ACK", |segment| segment.has(ACK))?;
        let done = (ack.ack.wrapping_sub(client.next) as usize).min(500);
        served.reads(&bytes)?;
        client.send(Out { flags: ACK | PSH | FIN, ..client.part(&last, done..500) })?;
        client.acked(SOON)?;
        served.reads_to_end(&last)
    })
    .about("The last data fills the window, and its FIN is the first number beyond")
    .expects(
        "An ACK. When the window is open, the client sends again what was not acknowledged. The server reads all \
             data, and then the end.",
    )
    .with(SMALL_WINDOW),
    Case::new("rst-at-window-zero", "MUST-66", "RFC 9293, 3.4", |lab| {
        let (client, mut served, _) = full(lab)?;
        client.rst()?;
        served.reads_reset()
    })
    .about("The client resets while the stack's window is closed")
    .expects("Reads fail with \"connection reset\".")
    .with(SMALL_WINDOW),
    Case::new("acks-at-window-zero", "MUST RFC 9293, 3.4: ACKs at window zero", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, served, bytes) = full_but(lab, 0)?;
        deliver(&mut client, served, &pattern(124, 100_000), LATE)?.reads(&bytes)
    })
    .about("The server sends 100 KB while the stack's window is closed")
    .expects("The client's ACKs are accepted: all data arrives.")
    .with(SMALL_WINDOW),
];
