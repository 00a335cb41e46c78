//! The stack's window when little of it is left, or nothing.

use std::io::ErrorKind;
use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH};

use super::super::segments::{part, repair};
use super::{full, full_but};
use crate::lab::{deliver, exchange};
use crate::{Case, LATE, Out, SOON, Setup, Step, check, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("edge-while-ack-delayed", edge_while_ack_delayed, "RFC 9293, 3.10.7.4")
        .about("The window has room for 1,000 bytes, the server reads 500, and one segment of 1,001 bytes comes")
        .expects(
            "The stack does not crash, whatever edge it takes. The server reads all bytes once and in order, at the \
             latest when they have come again.",
        ),
    Case::new("spans-the-window", spans_the_window, "RFC 9293, 3.10.7.4")
        .about("A segment begins before the window and ends beyond it")
        .expects(
            "It is cut to the window, or dropped. The server reads all bytes once and in order, at the latest when \
             they have come again.",
        ),
    Case::new("hole-before-full-window", hole_before_full_window, "RFC 9293, 3.10.7.4, SHLD-31")
        .about("The first segment of a full window is lost, and comes last")
        .expects("The segments after it are kept: when it comes, one ACK covers the whole window."),
    Case::new("fin-into-full-window", fin_into_full_window, "RFC 9293, 3.10.7.4")
        .about("The client sends its FIN while the window is closed, and again when it is open")
        .expects(
            "Each is answered with an ACK, the last one with an ACK of the FIN. The server reads all data, and then \
             the end.",
        ),
    Case::new("fin-at-the-edge", fin_at_the_edge, "RFC 9293, 3.10.7.4")
        .about("The last data fills the window, and its FIN is the first number beyond")
        .expects(
            "An ACK. When the window is open, the client sends again what was not acknowledged. The server reads all \
             data, and then the end.",
        ),
    Case::new("rst-at-window-zero", rst_at_window_zero, "RFC 9293, 3.4, MUST-66")
        .about("The client resets while the stack's window is closed")
        .expects("Reads fail with \"connection reset\"."),
    Case::new("acks-at-window-zero", acks_at_window_zero, "RFC 9293, 3.10.7.4")
        .about("The server sends 100 KB while the stack's window is closed")
        .expects("The client's ACKs are accepted: all data arrives."),
];

fn edge_while_ack_delayed(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full_but(setup, 1000)?;
    same(&served.read(500)?, &bytes[..500])?;
    std::thread::sleep(Duration::from_millis(20));
    let more = pattern(120, 1001);
    client.put(part(&client, &more, 0, more.len()))?;
    // A delayed ACK is sent meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    same(&served.read(bytes.len() - 500)?, &bytes[500..])?;
    repair(&mut client, &mut served, &more)?;
    lab.finish_serving()
}

fn spans_the_window(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full_but(setup, 500)?;
    let more = pattern(121, 700);
    let segment = [&bytes[bytes.len() - 300..], &more].concat();
    client.put(Out { flags: ACK | PSH, seq: client.next.wrapping_sub(300), payload: &segment, ..client.out() })?;
    client.expect("ACK", |segment| segment.has(ACK))?;
    same(&served.read(bytes.len())?, &bytes)?;
    repair(&mut client, &mut served, &more)?;
    lab.finish_serving()
}

fn hole_before_full_window(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    client.data(b"x")?;
    let window = usize::from(client.acked(SOON)?.window);
    same(&served.read(1)?, b"x")?;
    let bytes = pattern(122, window);
    for from in (1000..window).step_by(1000) {
        client.put(part(&client, &bytes, from, (from + 1000).min(window)))?;
    }
    client.put(part(&client, &bytes, 0, 1000))?;
    client.next = client.next.wrapping_add(window as u32);
    client.acked(SOON)?;
    same(&served.read(window)?, &bytes)?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn fin_into_full_window(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full(setup)?;
    client.forget()?;
    client.fin()?;
    let ack = client.expect("ACK", |segment| segment.has(ACK))?;
    let missing = client.next.wrapping_sub(ack.ack);
    check(missing <= 1, || format!("the ACK is {missing} before the FIN's end"))?;
    same(&served.read(bytes.len())?, &bytes)?;
    client.put(Out { flags: FIN | ACK, seq: client.next.wrapping_sub(1), ..client.out() })?;
    client.acked(SOON)?;
    same(&served.read_to_end()?, b"")?;
    lab.finish()
}

fn fin_at_the_edge(setup: &Setup) -> Step {
    let (lab, mut client, mut served, bytes) = full_but(setup, 500)?;
    client.forget()?;
    let last = pattern(123, 500);
    let segment = Out { flags: ACK | PSH | FIN, payload: &last, ..client.out() };
    client.put(segment)?;
    let ack = client.expect("ACK", |segment| segment.has(ACK))?;
    let done = (ack.ack.wrapping_sub(client.next) as usize).min(500);
    same(&served.read(bytes.len())?, &bytes)?;
    client.put(Out { seq: client.next.wrapping_add(done as u32), payload: &last[done..], ..segment })?;
    client.next = client.next.wrapping_add(501);
    client.acked(SOON)?;
    same(&served.read_to_end()?, &last)?;
    lab.finish()
}

fn rst_at_window_zero(setup: &Setup) -> Step {
    let (lab, client, mut served, _) = full(setup)?;
    client.rst()?;
    let kind = served.read_error()?;
    check(kind == ErrorKind::ConnectionReset, || format!("the error is \"{kind}\""))?;
    lab.finish()
}

fn acks_at_window_zero(setup: &Setup) -> Step {
    let (lab, mut client, served, bytes) = full(setup)?;
    if let Some(mut served) = deliver(&mut client, served, &pattern(124, 100_000), LATE, |_| false)? {
        same(&served.read(bytes.len())?, &bytes)?;
    }
    lab.finish()
}
