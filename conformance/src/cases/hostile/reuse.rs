//! The same addresses and ports again, at once.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, RST, SYN};

use super::super::handshake::time_wait;
use super::{again, named};
use crate::lab::{WINDOW, exchange};
use crate::{Case, Client, Offer, Out, SOON, Served, Setup, Step, Then, check, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("same-port-after-rst", same_port_after_rst, "RFC 9293, 3.10.7.4 and 3.10.7.2")
        .about(
            "A client resets its connection and sends the SYN of the next, 60 times without a pause; the application \
             still holds the old streams",
        )
        .expects("Each SYN opens a new connection. The old streams end, and the new ones carry bytes."),
    Case::new("same-port-after-rst-queued", same_port_after_rst_queued, "RFC 9293, 3.10.7.4 and 3.10.7.2")
        .about("The same before the application has accepted the first connection")
        .expects(
            "The last connection is accepted and carries bytes. Those before it are not accepted, or their streams \
             fail.",
        ),
    Case::new("same-port-after-fin", same_port_after_fin, "RFC 9293, 3.6 and 3.10.7.2")
        .about(
            "The client closes first, then the server; the client connects again at once, 20 times. The application \
             still holds the old streams",
        )
        .expects("Each SYN opens a new connection. The old streams read as ended."),
    Case::new(
        "same-port-after-timeout",
        same_port_after_timeout,
        "RFC 9293, 3.8.3 and 3.10.7.2; the promise of StackConfig::user_timeout",
    )
    .about(
        "The client vanishes while the server writes; after the timeout of 1 second it connects from the same \
             port",
    )
    .expects("The write fails with \"timed out\", and the SYN opens a new connection."),
    Case::new("restarted-client", restarted_client, "RFC 5961, 4.2; RFC 9293, 3.5.1 and 3.10.7.4")
        .about("A client that has restarted sends a SYN for its old connection, which is idle")
        .expects("A challenge ACK. The RST that answers it ends the old connection, and the next SYN opens a new one."),
    Case::new("restarted-client-lower", restarted_client_lower, "RFC 5961, 4.2")
        .about("The same with a number below the window")
        .expects(
            "A challenge ACK: the number of the SYN does not matter. The RST that answers it ends the old connection.",
        ),
    Case::new("restarted-client-in-flight", restarted_client_in_flight, "RFC 5961, 4.2; RFC 9293, 3.5.1 and 3.10.7.4")
        .about("The same while the server's data is not acknowledged, and is sent again")
        .expects(
            "An ACK without data. The RST that answers it ends the old connection, and the next SYN opens a new one.",
        ),
    Case::new("time-wait-old-syn", time_wait_old_syn, "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13; RFC 6191, 2")
        .about("A SYN with a lower number to a port in TIME-WAIT")
        .expects(
            "No new connection: an old duplicate must not end TIME-WAIT. The FIN that comes again is still \
             acknowledged.",
        ),
    Case::new("time-wait-damaged-syn", time_wait_damaged_syn, "RFC 9293, 3.1")
        .about("A SYN with a higher number and a wrong checksum to a port in TIME-WAIT")
        .expects("It is dropped. The FIN that comes again is still acknowledged.")
        .plain(),
    Case::new("time-wait-rst", time_wait_rst, "RFC 9293, 3.10.7.4; RFC 1337, 3 and 4")
        .about("A RST to a port in TIME-WAIT")
        .expects(
            "It ends TIME-WAIT, or is ignored: the FIN that comes again gets a RST or an acknowledgement, and new \
             connections open.",
        ),
];

/// Checks that a stream has ended. Other cases check how it ends.
fn is_over(served: &mut Served) -> Step {
    check(!served.is_quiet(SOON), || "the stream of an old connection still waits".to_owned())
}

fn same_port_after_rst(setup: &Setup) -> Step {
    let (mut lab, mut client, mut served) = setup.connect()?;
    let mut held = Vec::new();
    for round in 1..=60 {
        named(exchange(&mut client, &mut served), || format!("connection {round}"))?;
        client.rst()?;
        named(again(&mut client), || format!("connection {round}"))?;
        let next = named(lab.accept(), || format!("connection {round}"))?;
        held.push(std::mem::replace(&mut served, next));
    }
    exchange(&mut client, &mut served)?;
    held.iter_mut().try_for_each(is_over)?;
    lab.finish()
}

fn same_port_after_rst_queued(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.open(&Offer::default())?;
    for round in 1..10 {
        client.rst()?;
        named(again(&mut client), || format!("connection {round}"))?;
    }
    client.data(b"ping")?;
    let mut served = loop {
        let mut served = lab.accept()?;
        if let Ok(bytes) = served.read(4) {
            same(&bytes, b"ping")?;
            break served;
        }
    };
    served.write(b"pong")?;
    same(&client.receive(4, SOON)?, b"pong")?;
    lab.finish()
}

fn same_port_after_fin(setup: &Setup) -> Step {
    let (mut lab, mut client, mut served) = setup.connect()?;
    let mut held = Vec::new();
    for round in 1..=20 {
        exchange(&mut client, &mut served)?;
        client.fin()?;
        same(&served.read_to_end()?, b"")?;
        served.shutdown()?;
        named(client.receive_to_end(), || format!("connection {round}"))?;
        named(again(&mut client), || format!("connection {round}"))?;
        let next = named(lab.accept(), || format!("connection {round}"))?;
        held.push(std::mem::replace(&mut served, next));
    }
    exchange(&mut client, &mut served)?;
    held.iter_mut().try_for_each(is_over)?;
    lab.finish()
}

fn same_port_after_timeout(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.user_timeout = SOON)?;
    let (mut client, served) = lab.connect()?;
    let result = served.send(pattern(80, 8 * WINDOW), Then::Keep).result()?;
    check(result.is_err(), || "all was written to a peer that does not answer".to_owned())?;
    client.forget()?;
    again(&mut client)?;
    lab.finish_opened(client)
}

/// Sends a SYN with this number on a connection that the client does not know any more. Answers the ACK for it with a
/// RST, sends the SYN again, and checks that it opens a new connection. `old` is the stream of the first one.
fn restart(lab: &mut crate::Lab, client: &mut Client, isn: u32, old: &mut Served) -> Step {
    let expected = client.next;
    client.forget()?;
    client.begin_at(isn);
    client.syn(&Offer::default())?;
    let ack = client.expect("challenge ACK", |segment| {
        segment.flags & (ACK | RST | SYN | FIN) == ACK && segment.payload.is_empty() && segment.ack == expected
    })?;
    client.put(Out { flags: RST, seq: ack.ack, ack: 0, ..client.out() })?;
    // A kernel repeats its SYN after one second.
    std::thread::sleep(Duration::from_millis(100));
    client.forget()?;
    client.open(&Offer::default())?;
    let mut served = lab.accept()?;
    exchange(client, &mut served)?;
    is_over(old)
}

fn restarted_client(setup: &Setup) -> Step {
    restarted_idle(setup, 0x1000_0000)
}

fn restarted_client_lower(setup: &Setup) -> Step {
    restarted_idle(setup, 0x1000_0000u32.wrapping_neg())
}

/// The client's new number is `ahead` of its old one.
fn restarted_idle(setup: &Setup, ahead: u32) -> Step {
    let (mut lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    let isn = client.next.wrapping_add(ahead);
    restart(&mut lab, &mut client, isn, &mut served)?;
    lab.finish()
}

fn restarted_client_in_flight(setup: &Setup) -> Step {
    let (mut lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    served.write(b"is anyone there?")?;
    // Until the data has come again.
    for _ in 0..2 {
        client.expect_within(Duration::from_secs(3), "data", |segment| !segment.payload.is_empty())?;
    }
    let isn = client.next.wrapping_add(0x1000_0000);
    restart(&mut lab, &mut client, isn, &mut served)?;
    lab.finish()
}

/// Sends a packet to a port in TIME-WAIT. Checks that it is no new connection, and that TIME-WAIT goes on, unless it `may_end`.
fn stays_in_time_wait(setup: &Setup, packet: impl FnOnce(&Client) -> Vec<u8>, is_damaged: bool, may_end: bool) -> Step {
    let mut lab = setup.start()?;
    if is_damaged {
        lab.needs_checksums()?;
    }
    let (mut client, served) = time_wait(&mut lab)?;
    drop(served);
    client.forget()?;
    client.send_packet(&packet(&client))?;
    client.expect_none(Duration::from_millis(100), "SYN+ACK", |segment| segment.has(SYN))?;
    client.put(Out { flags: FIN | ACK, seq: client.next.wrapping_sub(1), ..client.out() })?;
    let next = client.next;
    client.expect("ACK of the FIN", |segment| {
        if segment.has(RST) { may_end } else { segment.has(ACK) && segment.ack == next }
    })?;
    lab.finish_serving()
}

/// Returns a SYN with this number.
fn syn(client: &Client, seq: u32) -> Vec<u8> {
    client.packet(Out { flags: SYN, seq, ack: 0, options: &[2, 4, 5, 0xb4], ..client.out() })
}

fn time_wait_old_syn(setup: &Setup) -> Step {
    stays_in_time_wait(setup, |client| syn(client, client.isn.wrapping_sub(0x0100_0000)), false, false)
}

fn time_wait_damaged_syn(setup: &Setup) -> Step {
    let damaged = |client: &Client| {
        let mut packet = syn(client, client.next.wrapping_add(0x0100_0000));
        packet[36] ^= 0x10;
        packet
    };
    stays_in_time_wait(setup, damaged, true, false)
}

fn time_wait_rst(setup: &Setup) -> Step {
    stays_in_time_wait(setup, |client| client.packet(Out { flags: RST, ack: 0, ..client.out() }), false, true)
}
