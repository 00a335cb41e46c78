//! The same addresses and ports again, at once.

use super::super::handshake::time_wait;
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new(
        "same-port-after-rst",
        "MUST RFC 9293, 3.5.3: RST ends at once",
        "RFC 9293, 3.10.7.4 and 3.10.7.2",
        |lab| again_and_again(lab, 60, |client, _| client.rst()),
    )
    .about(
        "A client resets its connection and sends the SYN of the next, 60 times without a pause; the application \
             still holds the old streams",
    )
    .expects("Each SYN opens a new connection. The old streams end, and the new ones carry bytes."),
    Case::new(
        "same-port-after-rst-queued",
        "MUST RFC 9293, 3.5.3: RST ends at once",
        "RFC 9293, 3.10.7.4 and 3.10.7.2",
        |lab| {
            let mut client = lab.client();
            client.open()?;
            for round in 1..10 {
                client.rst()?;
                named(client.again(), || format!("connection {round}"))?;
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
            client.receives(b"pong", SOON)
        },
    )
    .about("The same before the application has accepted the first connection")
    .expects(
        "The last connection is accepted and carries bytes. Those before it are not accepted, or their streams \
             fail.",
    ),
    Case::new(
        "same-port-after-fin",
        "MUST RFC 9293, 3.6: the end of a connection",
        "RFC 9293, 3.6 and 3.10.7.2",
        |lab| {
            again_and_again(lab, 20, |client, served| {
                client.fin()?;
                served.reads_to_end(b"")?;
                served.shutdown()?;
                client.receive_to_end().map(drop)
            })
        },
    )
    .about(
        "The client closes first, then the server; the client connects again at once, 20 times. The application \
             still holds the old streams",
    )
    .expects("Each SYN opens a new connection. The old streams read as ended."),
    Case::new(
        "same-port-after-timeout",
        "MUST RFC 9293, 3.10.8: user timeout",
        "RFC 9293, 3.8.3 and 3.10.7.2; the promise of StackConfig::user_timeout",
        |lab| {
            let (mut client, served) = lab.connect()?;
            let result = served.send(pattern(80, 8 * WINDOW), Then::Keep).result()?;
            check!(result.is_err(), Hang, "all was written to a peer that does not answer")?;
            client.forget()?;
            client.again()?;
            lab.serves(client)
        },
    )
    .about("The client vanishes while the server writes; after the timeout of 1 second it connects from the same port")
    .expects("The write fails with \"timed out\", and the SYN opens a new connection.")
    .with(|config| config.user_timeout = SOON),
    Case::new(
        "restarted-client",
        "MUST RFC 9293, 3.5.2: group 3",
        "RFC 5961, 4.2; RFC 9293, 3.5.1 and 3.10.7.4",
        |lab| restarted_idle(lab, 0x1000_0000),
    )
    .about("A client that has restarted sends a SYN for its old connection, which is idle")
    .expects("A challenge ACK. The RST that answers it ends the old connection, and the next SYN opens a new one."),
    Case::new("restarted-client-lower", "MUST RFC 9293, 3.5.2: group 3", "RFC 9293, 3.5.2; RFC 5961, 4.2", |lab| {
        restarted_idle(lab, 0xf000_0000)
    })
    .about("The same with a number below the window")
    .expects(
        "A challenge ACK: the number of the SYN does not matter. The RST that answers it ends the old connection.",
    ),
    Case::new(
        "restarted-client-in-flight",
        "MUST RFC 9293, 3.5.2: group 3",
        "RFC 5961, 4.2; RFC 9293, 3.5.1 and 3.10.7.4",
        |lab| {
            let (mut client, mut served) = lab.connect_and_exchange()?;
            served.write(b"is anyone there?")?;
            // Until the data has come again.
            for _ in 0..2 {
                client.expect_within(secs(3), "data", |segment| !segment.payload.is_empty())?;
            }
            restart(lab, &mut client, 0x1000_0000, &mut served)
        },
    )
    .about("The same while the server's data is not acknowledged, and is sent again")
    .expects("An ACK without data. The RST that answers it ends the old connection, and the next SYN opens a new one."),
    Case::new("time-wait-old-syn", "MUST-13", "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13; RFC 6191, 2", |lab| {
        stays_in_time_wait(lab, false, |client| syn(client, client.isn.wrapping_sub(0x0100_0000)))
    })
    .about("A SYN with a lower number to a port in TIME-WAIT")
    .expects(
        "No new connection: an old duplicate must not end TIME-WAIT. The FIN that comes again is still \
             acknowledged.",
    ),
    Case::new("time-wait-damaged-syn", "MUST-3", "RFC 9293, 3.1", |lab| {
        lab.needs_checksums()?;
        stays_in_time_wait(lab, false, |client| {
            let mut packet = syn(client, client.next.wrapping_add(0x0100_0000));
            packet[36] ^= 0x10;
            packet
        })
    })
    .about("A SYN with a higher number and a wrong checksum to a port in TIME-WAIT")
    .expects("It is dropped. The FIN that comes again is still acknowledged.")
    .plain(),
    Case::new(
        "time-wait-rst",
        "MUST RFC 9293, 3.10.7.4: RST in TIME-WAIT",
        "RFC 9293, 3.10.7.4; RFC 1337, 3 and 4",
        |lab| stays_in_time_wait(lab, true, |client| client.packet(Out { flags: RST, ack: 0, ..client.out() })),
    )
    .about("A RST to a port in TIME-WAIT")
    .expects(
        "It ends TIME-WAIT, or is ignored: the FIN that comes again gets a RST or an acknowledgement, and new \
             connections open.",
    ),
];

/// Checks that a stream has ended. Other cases check how it ends.
fn is_over(served: &mut Served) -> Step {
    check!(!served.is_quiet(SOON), Hang, "the stream of an old connection still waits")
}

/// Connects from the same port this often, each time after `end`. The old streams, still held, must end.
fn again_and_again(lab: &mut Lab, rounds: usize, end: impl Fn(&mut Client, &mut Served) -> Step) -> Step {
    let (mut client, mut served) = lab.connect()?;
    let mut held = Vec::new();
    for round in 1..=rounds {
        let mut connect = || {
            exchange(&mut client, &mut served)?;
            end(&mut client, &mut served)?;
            client.again()?;
            lab.accept()
        };
        let next = named(connect(), || format!("connection {round}"))?;
        held.push(std::mem::replace(&mut served, next));
    }
    exchange(&mut client, &mut served)?;
    held.iter_mut().try_for_each(is_over)
}

/// Sends a SYN on a connection that the client does not know any more, with a number that is `ahead`. Answers the ACK for
/// it with a RST, sends the SYN again, and checks that it opens a new connection. `old` is the stream of the first one.
fn restart(lab: &mut Lab, client: &mut Client, ahead: u32, old: &mut Served) -> Step {
    let expected = client.next;
    client.forget()?;
    client.begin_at(expected.wrapping_add(ahead));
    client.syn()?;
    let ack = client.expect_challenge(expected)?;
    client.put(Out { flags: RST, seq: ack.ack, ack: 0, ..client.out() })?;
    // A kernel repeats its SYN after one second.
    thread::sleep(ms(100));
    client.forget()?;
    client.open()?;
    let mut served = lab.accept()?;
    exchange(client, &mut served)?;
    is_over(old)
}

fn restarted_idle(lab: &mut Lab, ahead: u32) -> Step {
    let (mut client, mut served) = lab.connect_and_exchange()?;
    restart(lab, &mut client, ahead, &mut served)
}

/// Sends a packet to a port in TIME-WAIT. Checks that it is no new connection, and that TIME-WAIT goes on, unless it `may_end`.
fn stays_in_time_wait(lab: &mut Lab, may_end: bool, packet: impl FnOnce(&Client) -> Vec<u8>) -> Step {
    let (mut client, served) = time_wait(lab)?;
    drop(served);
    client.forget()?;
    client.send_packet(&packet(&client))?;
    client.expect_none(ms(100), "SYN+ACK", |segment| segment.has(SYN))?;
    client.fin_again()?;
    let next = client.next;
    client.expect("ACK of the FIN", |segment| {
        if segment.has(RST) { may_end } else { segment.has(ACK) && segment.ack == next }
    })?;
    lab.still_serves()
}

/// Returns a SYN with this number.
fn syn(client: &Client, seq: u32) -> Vec<u8> {
    packets::with_tcp_bytes(client.syn_packet(b""), 4, &seq.to_be_bytes())
}
