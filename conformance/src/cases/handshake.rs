//! How connections begin.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};

use crate::lab::exchange;
use crate::link::stack_addresses;
use crate::{Case, Offer, Out, SOON, Setup, Step, Then, check, same};

pub(super) const CASES: &[Case] = &[
    Case::new("handshake", handshake, "RFC 9293, 3.5")
        .about("A connection opens and carries bytes both ways")
        .expects(
            "SYN+ACK that acknowledges the SYN; the connection is accepted with both addresses, and carries bytes.",
        )
        .over_ipv6("handshake-ipv6", "The same over IPv6", "RFC 8200, 8; RFC 9293, 3.5"),
    Case::new("any-address", any_address, "RFC 9293, 3.10.1")
        .about("Connections to several addresses and ports")
        .expects("A listener for all addresses and ports accepts each, with the address that the client connected to."),
    Case::new("lost-syn-ack", lost_syn_ack, "RFC 9293, 3.5; 3.10.7.4")
        .about("The SYN+ACK is lost, and the client sends its SYN again")
        .expects("The same SYN+ACK again, at once or when its timer expires, and one connection."),
    Case::new("syn-ack-again", syn_ack_again, "RFC 6298, 2 and 5")
        .about("The client does not answer the SYN+ACK")
        .expects("The stack sends its SYN+ACK again, about one second later and at most 3."),
    Case::new("lost-ack", lost_ack, "RFC 9293, 3.10.7.4")
        .about("The ACK of the handshake is lost; the first data comes in its place")
        .expects("The connection opens, and the data is delivered."),
    Case::new("all-with-the-ack", all_with_the_ack, "RFC 9293, 3.10.7.4")
        .about("The ACK of the handshake has data and a FIN")
        .expects("The connection is accepted; the server reads the data and the end, and can still answer."),
    Case::new("simultaneous-syns", simultaneous_syns, "RFC 9293, 3.10.7.4")
        .about("A SYN twice at once, and one from another port between them")
        .expects("Two connections, one for each port, and no RST."),
    Case::new("syn-with-new-number", syn_with_new_number, "RFC 9293, 3.10.7.4; RFC 5961, 4")
        .about("A client that has restarted sends a SYN with a new number before the handshake ends")
        .expects(
            "The stack forgets the old SYN, or asks by an ACK, which the client answers with RST. Then the new one \
             connects.",
        ),
    Case::new("syn-in-time-wait", syn_in_time_wait, "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13")
        .about("A SYN with a higher number to a port in TIME-WAIT; the application has dropped the old stream")
        .expects("A new connection, at the latest when the client repeats its SYN."),
    Case::new("syn-in-time-wait-held", syn_in_time_wait_held, "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13")
        .about("The same while the application still holds the old stream")
        .expects(
            "A new connection, at the latest when the client repeats its SYN. The old stream still reads as ended.",
        ),
    Case::new("syn-with-data", syn_with_data, "RFC 9293, 3.4 and 3.10.7.2")
        .about("The SYN carries data, and the client sends again what is not acknowledged")
        .expects("The server reads the data once, after the handshake."),
    Case::new("syn-with-ecn", syn_with_ecn, "RFC 3168, 6.1.1").about("The SYN asks for ECN").expects(
        "The connection opens. The SYN+ACK does not have CWR: it agrees with ECE alone, or declines with neither \
             flag.",
    ),
    Case::new("backlog-full", backlog_full, "RFC 9293, 3.10.7.2; the promise of StackConfig::backlog")
        .about("More SYNs than the backlog of one takes")
        .expects(
            "The second SYN is dropped, without a RST. When the first connection is accepted, a repeated SYN opens \
             the second.",
        ),
    Case::new("ack-without-connection", ack_without_connection, "RFC 9293, 3.10.7.1 and 3.10.7.2")
        .about("An ACK to a port without a connection")
        .expects("A RST with the number that the ACK has acknowledged."),
    Case::new("syn-ack-without-connection", syn_ack_without_connection, "RFC 9293, 3.10.7.1 and 3.10.7.2")
        .about("A SYN+ACK to a port without a connection")
        .expects("A RST with the number that the SYN+ACK has acknowledged: the stack has sent no SYN."),
    Case::new("rst-without-connection", rst_without_connection, "RFC 9293, 3.10.7.1")
        .about("A RST to a port without a connection")
        .expects("Silence."),
    Case::new("wrong-ack", wrong_ack, "RFC 9293, 3.10.7.4; 3.5.2")
        .about("The last segment of the handshake acknowledges what was never sent")
        .expects(
            "A RST with the number that was acknowledged; no connection is accepted. The right ACK still opens it.",
        ),
    Case::new("rst-in-handshake", rst_in_handshake, "RFC 9293, 3.10.7.4")
        .about("The client answers the SYN+ACK with RST")
        .expects("No connection is accepted, and the next SYN from the same port opens one."),
    Case::new("listener-dropped", listener_dropped, "RFC 9293, 3.10.4")
        .about("The application drops its listener; connections wait to be accepted")
        .expects("Each is closed or reset. None stays open."),
    Case::new("listener-dropped-half-open", listener_dropped_half_open, "RFC 9293, 3.10.4")
        .about("The application drops its listener with half-open connections")
        .expects(
            "The ACK of the handshake is answered with RST or with silence. No connection is held that nobody can \
             accept.",
        ),
];

fn handshake(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let [local, peer] = served.addresses();
    check(local == client.server && peer == client.local, || format!("the stream is from {peer} to {local}"))?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn any_address(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    for address in stack_addresses(setup.ipv6) {
        let mut client = lab.client_to(address);
        client.open(&Offer::default())?;
        let mut served = lab.accept()?;
        let [local, _] = served.addresses();
        check(local == client.server, || format!("a connection to {} has the address {local}", client.server))?;
        exchange(&mut client, &mut served)?;
    }
    lab.finish()
}

fn lost_syn_ack(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let (mut client, first) = lab.half_open()?;
    client.syn(&Offer::default())?;
    let second = client.syn_ack(Duration::from_millis(3500))?;
    check(first.seq == second.seq, || "the second SYN+ACK has another sequence number".to_owned())?;
    client.ack()?;
    lab.finish_opened(client)
}

fn syn_ack_again(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let (mut client, first) = lab.half_open()?;
    let second = client.syn_ack(Duration::from_millis(3500))?;
    let after = second.at - first.at;
    check(after > Duration::from_millis(200), || format!("it came again after {after:?}"))?;
    client.ack()?;
    lab.finish_opened(client)
}

fn lost_ack(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, _) = lab.half_open()?;
    client.data(b"first")?;
    let mut served = lab.accept()?;
    same(&served.read(5)?, b"first")?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn all_with_the_ack(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, _) = lab.half_open()?;
    client.put(Out { flags: ACK | PSH | FIN, payload: b"request", ..client.out() })?;
    client.next = client.next.wrapping_add(8);
    let mut served = lab.accept()?;
    same(&served.read_to_end()?, b"request")?;
    client.acked(SOON)?;
    drop(served.send(b"response".to_vec(), Then::Drop).finish()?);
    same(&client.receive_to_end()?, b"response")?;
    lab.finish()
}

fn simultaneous_syns(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut one, mut other) = (lab.client(), lab.client());
    for _ in 0..2 {
        one.syn(&Offer::default())?;
        other.syn(&Offer::default())?;
    }
    one.syn_ack(SOON)?;
    other.syn_ack(SOON)?;
    one.ack()?;
    other.ack()?;
    for client in [&mut one, &mut other] {
        client.expect_none(Duration::from_millis(100), "a RST", |segment| segment.has(RST))?;
    }
    let (mut first, mut second) = (lab.accept()?, lab.accept()?);
    if first.addresses()[1] != one.local {
        std::mem::swap(&mut first, &mut second);
    }
    exchange(&mut one, &mut first)?;
    exchange(&mut other, &mut second)?;
    let third = lab.accept_within(Duration::from_millis(100))?;
    check(third.is_none(), || "there are three connections for two clients".to_owned())?;
    lab.finish()
}

/// Sends a SYN up to five times, and answers an ACK of an old connection with RST, as RFC 9293, 3.5.1 asks.
fn persistent_syn(client: &mut crate::Client) -> Step {
    let after_isn = client.isn.wrapping_add(1);
    for _ in 0..5 {
        client.syn(&Offer::default())?;
        while let Some(segment) = client.next_segment(Duration::from_millis(500))? {
            if segment.has(SYN | ACK) && segment.ack == after_isn {
                (client.stack_isn, client.expected) = (segment.seq, segment.end());
                return client.ack();
            }
            if segment.has(ACK) && !segment.has(RST) {
                client.put(Out { flags: RST, seq: segment.ack, ack: 0, ..client.out() })?;
                break;
            }
        }
    }
    client.expect("SYN+ACK for one of five SYNs", |_| false).map(drop)
}

fn syn_with_new_number(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let (mut client, _) = lab.half_open()?;
    client.begin_at(client.isn.wrapping_add(0x0100_0000));
    persistent_syn(&mut client)?;
    lab.finish_opened(client)
}

/// Closes a connection from the stack's side first, so that the stack is in TIME-WAIT.
pub(super) fn time_wait(lab: &mut crate::Lab) -> Step<(crate::Client, crate::Served)> {
    let (mut client, mut served) = lab.connect()?;
    served.shutdown()?;
    client.receive_to_end()?;
    client.fin()?;
    client.acked(SOON)?;
    same(&served.read_to_end()?, b"")?;
    Ok((client, served))
}

fn syn_in_time_wait(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, served) = time_wait(&mut lab)?;
    drop(served);
    client.begin_at(client.next.wrapping_add(0x0001_0000));
    persistent_syn(&mut client)?;
    lab.finish_opened(client)
}

fn syn_in_time_wait_held(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut held) = time_wait(&mut lab)?;
    client.begin_at(client.next.wrapping_add(0x0001_0000));
    persistent_syn(&mut client)?;
    let mut served = lab.accept()?;
    exchange(&mut client, &mut served)?;
    same(&held.read_to_end()?, b"")?;
    lab.finish()
}

fn syn_with_data(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let options = [2, 4, 5, 0xb4];
    client.put(Out { flags: SYN, ack: 0, options: &options, payload: b"early", ..client.out() })?;
    let (after_syn, after_data) = (client.isn.wrapping_add(1), client.isn.wrapping_add(6));
    let answer =
        client.expect("SYN+ACK", |segment| segment.has(SYN | ACK) && [after_syn, after_data].contains(&segment.ack))?;
    (client.stack_isn, client.expected) = (answer.seq, answer.end());
    client.next = answer.ack;
    client.ack()?;
    if answer.ack == after_syn {
        client.data(b"early")?;
    }
    let mut served = lab.accept()?;
    same(&served.read(5)?, b"early")?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn syn_with_ecn(setup: &Setup) -> Step {
    const ECE: u8 = 0x40;
    const CWR: u8 = 0x80;
    let lab = setup.start()?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer { flags: SYN | ECE | CWR, ..Offer::default() })?;
    check(syn_ack.flags & CWR == 0, || format!("the SYN+ACK has the flags {:#x}", syn_ack.flags))?;
    lab.finish_opened(client)
}

fn backlog_full(setup: &Setup) -> Step {
    setup.needs_whole_backlog()?;
    let mut lab = setup.start_with(|config| config.backlog = 1)?;
    let (mut first, mut second) = (lab.client(), lab.client());
    first.open(&Offer::default())?;
    // Nothing shows when a stack has taken up the ACK, and with it the connection.
    first.expect_none(Duration::from_millis(100), "an answer", |_| true)?;
    second.syn(&Offer::default())?;
    second.expect_none(Duration::from_millis(300), "an answer", |_| true)?;
    let mut served = lab.accept()?;
    exchange(&mut first, &mut served)?;
    second.open(&Offer::default())?;
    let mut served = lab.accept()?;
    exchange(&mut second, &mut served)?;
    lab.finish()
}

fn ack_without_connection(setup: &Setup) -> Step {
    without_connection(setup, ACK)
}

fn syn_ack_without_connection(setup: &Setup) -> Step {
    without_connection(setup, SYN | ACK)
}

/// Sends a segment with these flags, which must be answered with a RST.
fn without_connection(setup: &Setup, flags: u8) -> Step {
    let lab = setup.start()?;
    let mut client = lab.client();
    client.expected = 0x0102_0304;
    client.put(Out { flags, ..client.out() })?;
    let rst = client.expect("RST", |segment| segment.has(RST))?;
    check(rst.seq == client.expected, || format!("the RST has the number {}, and not that of the ACK", rst.seq))?;
    lab.finish_serving()
}

fn rst_without_connection(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let mut client = lab.client();
    client.rst()?;
    client.put(Out { flags: RST, ..client.out() })?;
    client.expect_none(Duration::from_millis(300), "an answer", |_| true)?;
    lab.finish_serving()
}

fn wrong_ack(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, _) = lab.half_open()?;
    let wrong = client.expected.wrapping_add(1000);
    client.put(Out { ack: wrong, ..client.out() })?;
    let rst = client.expect("RST", |segment| segment.has(RST))?;
    check(rst.seq == wrong, || "the RST has another number than was acknowledged".to_owned())?;
    let early = lab.accept_within(Duration::from_millis(100))?;
    check(early.is_none(), || "the connection was accepted".to_owned())?;
    client.ack()?;
    lab.finish_opened(client)
}

fn rst_in_handshake(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, _) = lab.half_open()?;
    client.put(Out { flags: RST, ack: 0, ..client.out() })?;
    let early = lab.accept_within(Duration::from_millis(100))?;
    check(early.is_none(), || "a connection was accepted that was reset before".to_owned())?;
    client.begin_at(client.isn.wrapping_add(0x0001_0000));
    client.open(&Offer::default())?;
    lab.finish_opened(client)
}

fn listener_dropped(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut clients = [lab.client(), lab.client(), lab.client()];
    for client in &mut clients {
        client.open(&Offer::default())?;
        // Nothing shows when a stack has taken the ACK up.
        client
            .expect_none(Duration::from_millis(50), "a RST or FIN", |segment| segment.has(RST) || segment.has(FIN))?;
    }
    drop(lab.take_listener());
    for client in &mut clients {
        client.expect("RST or FIN", |segment| segment.has(RST) || segment.has(FIN))?;
    }
    lab.finish()
}

fn listener_dropped_half_open(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut clients = [lab.client(), lab.client(), lab.client()];
    for client in &mut clients {
        client.syn(&Offer::default())?;
        client.syn_ack(SOON)?;
    }
    drop(lab.take_listener());
    for client in &mut clients {
        client.ack()?;
        client.data(b"is anyone there?")?;
        let (isn, within) = (client.isn, Duration::from_millis(400));
        let mut is_reset = false;
        client.expect_none(within, "an ACK of data that nobody can read", |segment| {
            is_reset |= segment.has(RST) || segment.has(FIN);
            !is_reset && segment.has(ACK) && segment.ack.wrapping_sub(isn) > 1
        })?;
    }
    lab.finish()
}
