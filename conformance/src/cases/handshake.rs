//! How connections begin.

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("handshake", "MUST RFC 9293, 3.5", "RFC 9293, 3.5", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let [local, peer] = served.addresses();
        check!(local == client.server && peer == client.local, Data, "the stream is from {peer} to {local}")?;
        exchange(&mut client, &mut served)
    })
    .about("A connection opens and carries bytes both ways")
    .expects("SYN+ACK that acknowledges the SYN; the connection is accepted with both addresses, and carries bytes.")
    .over_ipv6("handshake-ipv6", "MUST RFC 9293, 3.5", "The same over IPv6", "RFC 8200, 8; RFC 9293, 3.5"),
    Case::new("any-address", "ours", "RFC 9293, 3.10.1", |lab| {
        for address in stack_addresses(lab.ipv6) {
            let mut client = lab.client_to(address);
            client.open()?;
            let mut served = lab.accept()?;
            let [local, _] = served.addresses();
            check!(local == client.server, "a connection to {} has the address {local}", client.server)?;
            exchange(&mut client, &mut served)?;
        }
        Ok(())
    })
    .about("Connections to several addresses and ports")
    .expects("A listener for all addresses and ports accepts each, with the address that the client connected to."),
    Case::new("lost-syn-ack", "MUST RFC 9293, 3.10.7.4: old duplicates", "RFC 9293, 3.5; 3.10.7.4", |lab| {
        let (mut client, first) = lab.half_open()?;
        client.syn()?;
        let second = client.syn_ack(ms(3500))?;
        check!(first.seq == second.seq, "the second SYN+ACK has another sequence number")?;
        client.ack()?;
        lab.serves(client)
    })
    .about("The SYN+ACK is lost, and the client sends its SYN again")
    .expects("The same SYN+ACK again, at once or when its timer expires, and one connection."),
    Case::new("syn-ack-again", "MUST-22", "RFC 9293, 3.8.3; RFC 6298, 2 and 5", |lab| {
        let (mut client, first) = lab.half_open()?;
        let second = client.syn_ack(ms(3500))?;
        let after = second.at - first.at;
        check!(after > ms(200), "it came again after {after:?}")?;
        client.ack()?;
        lab.serves(client)
    })
    .about("The client does not answer the SYN+ACK")
    .expects("The stack sends its SYN+ACK again, about one second later and at most 3."),
    Case::new("lost-ack", "MUST RFC 9293, 3.10.7.4: the ACK of the SYN", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, _) = lab.half_open()?;
        client.data(b"first")?;
        let mut served = lab.accept()?;
        served.reads(b"first")?;
        exchange(&mut client, &mut served)
    })
    .about("The ACK of the handshake is lost; the first data comes in its place")
    .expects("The connection opens, and the data is delivered."),
    Case::new("all-with-the-ack", "MUST RFC 9293, 3.10.7.4: the ACK of the SYN", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, _) = lab.half_open()?;
        client.send(Out { flags: ACK | PSH | FIN, payload: b"request", ..client.out() })?;
        let mut served = lab.accept()?;
        served.reads_to_end(b"request")?;
        client.acked(SOON)?;
        served.send(b"response".to_vec(), Then::Drop).finish()?;
        client.receives_to_end(b"response")
    })
    .about("The ACK of the handshake has data and a FIN")
    .expects("The connection is accepted; the server reads the data and the end, and can still answer."),
    Case::new("simultaneous-syns", "MUST RFC 9293, 3.10.7.4: old duplicates", "RFC 9293, 3.10.7.4", |lab| {
        let (mut one, mut other) = (lab.client(), lab.client());
        for _ in 0..2 {
            one.syn()?;
            other.syn()?;
        }
        one.syn_ack(SOON)?;
        other.syn_ack(SOON)?;
        one.ack()?;
        other.ack()?;
        [&mut one, &mut other].into_iter().try_for_each(|client| client.no_rst(ms(100)))?;
        let (mut first, mut second) = (lab.accept()?, lab.accept()?);
        if first.addresses()[1] != one.local {
            std::mem::swap(&mut first, &mut second);
        }
        exchange(&mut one, &mut first)?;
        exchange(&mut other, &mut second)?;
        check!(lab.accept_within(ms(100))?.is_none(), "there are three connections for two clients")
    })
    .about("A SYN twice at once, and one from another port between them")
    .expects("Two connections, one for each port, and no RST."),
    Case::new(
        "syn-with-new-number",
        "SHOULD RFC 9293, 3.10.7.4: answer in SYN-RECEIVED",
        "RFC 9293, 3.10.7.4; RFC 5961, 4",
        |lab| {
            let (mut client, _) = lab.half_open()?;
            client.begin_at(client.isn.wrapping_add(0x0100_0000));
            persistent_syn(&mut client)?;
            lab.serves(client)
        },
    )
    .about("A client that has restarted sends a SYN with a new number before the handshake ends")
    .expects(
        "The stack forgets the old SYN, or asks by an ACK, which the client answers with RST. Then the new one \
             connects.",
    ),
    Case::new("syn-in-time-wait", "MAY-2", "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13", |lab| {
        let (mut client, served) = time_wait(lab)?;
        drop(served);
        client.begin_at(client.next.wrapping_add(0x0001_0000));
        persistent_syn(&mut client)?;
        lab.serves(client)
    })
    .about("A SYN with a higher number to a port in TIME-WAIT; the application has dropped the old stream")
    .expects("A new connection, at the latest when the client repeats its SYN."),
    Case::new("syn-in-time-wait-held", "MAY-2", "RFC 9293, 3.6.1; RFC 1122, 4.2.2.13", |lab| {
        let (mut client, mut held) = time_wait(lab)?;
        client.begin_at(client.next.wrapping_add(0x0001_0000));
        persistent_syn(&mut client)?;
        let mut served = lab.accept()?;
        exchange(&mut client, &mut served)?;
        held.reads_to_end(b"")
    })
    .about("The same while the application still holds the old stream")
    .expects("A new connection, at the latest when the client repeats its SYN. The old stream still reads as ended."),
    Case::new("syn-with-data", "MUST RFC 9293, 3.5: data with a SYN", "RFC 9293, 3.4 and 3.10.7.2", |lab| {
        let mut client = lab.client();
        client.send_packet(&client.syn_packet(b"early"))?;
        let (after_syn, after_data) = (client.isn.wrapping_add(1), client.isn.wrapping_add(6));
        let is_answer = |segment: &Segment| segment.has(SYN | ACK) && [after_syn, after_data].contains(&segment.ack);
        let answer = client.expect("SYN+ACK", is_answer)?;
        client.opened(&answer);
        client.next = answer.ack;
        client.ack()?;
        if answer.ack == after_syn {
            client.data(b"early")?;
        }
        let mut served = lab.accept()?;
        served.reads(b"early")?;
        exchange(&mut client, &mut served)
    })
    .about("The SYN carries data, and the client sends again what is not acknowledged")
    .expects("The server reads the data once, after the handshake."),
    Case::new("syn-with-ecn", "SHOULD RFC 3168, 6.1.1: no CWR in a SYN+ACK", "RFC 3168, 6.1.1", |lab| {
        const ECE: u8 = 0x40;
        const CWR: u8 = 0x80;
        let mut client = lab.client();
        let syn_ack = client.open_with(&Offer { flags: SYN | ECE | CWR, ..Offer::default() })?;
        check!(syn_ack.flags & CWR == 0, "the SYN+ACK has the flags {:#x}", syn_ack.flags)?;
        lab.serves(client)
    })
    .about("The SYN asks for ECN")
    .expects(
        "The connection opens. The SYN+ACK does not have CWR: it agrees with ECE alone, or declines with neither \
             flag.",
    ),
    Case::new("backlog-full", "ours", "RFC 9293, 3.10.7.2; the promise of StackConfig::backlog", |lab| {
        lab.needs_whole_backlog()?;
        let (mut first, mut second) = (lab.client(), lab.client());
        first.open()?;
        // Nothing shows when a stack has taken up the ACK, and with it the connection.
        first.silence(ms(100))?;
        second.syn()?;
        second.silence(ms(300))?;
        let mut served = lab.accept()?;
        exchange(&mut first, &mut served)?;
        second.open()?;
        let mut served = lab.accept()?;
        exchange(&mut second, &mut served)
    })
    .about("More SYNs than the backlog of one takes")
    .expects(
        "The second SYN is dropped, without a RST. When the first connection is accepted, a repeated SYN opens \
             the second.",
    )
    .with(|config| config.backlog = 1),
    Case::new("ack-without-connection", "MUST RFC 9293, 3.5.2: group 2", "RFC 9293, 3.10.7.1 and 3.10.7.2", |lab| {
        without_connection(lab, ACK)
    })
    .about("An ACK to a port without a connection")
    .expects("A RST with the number that the ACK has acknowledged."),
    Case::new(
        "syn-ack-without-connection",
        "MUST RFC 9293, 3.5.2: group 2",
        "RFC 9293, 3.10.7.1 and 3.10.7.2",
        |lab| without_connection(lab, SYN | ACK),
    )
    .about("A SYN+ACK to a port without a connection")
    .expects("A RST with the number that the SYN+ACK has acknowledged: the stack has sent no SYN."),
    Case::new("rst-without-connection", "MUST RFC 9293, 3.5.3: RST in LISTEN", "RFC 9293, 3.10.7.1", |lab| {
        let mut client = lab.client();
        client.rst()?;
        client.put(Out { flags: RST, ..client.out() })?;
        client.silence(ms(300))?;
        lab.still_serves()
    })
    .about("A RST to a port without a connection")
    .expects("Silence."),
    Case::new("wrong-ack", "MUST RFC 9293, 3.5.2: group 2", "RFC 9293, 3.10.7.4; 3.5.2", |lab| {
        let (mut client, _) = lab.half_open()?;
        let wrong = client.expected.wrapping_add(1000);
        client.put(Out { ack: wrong, ..client.out() })?;
        let rst = client.expect_rst()?;
        check!(rst.seq == wrong, "the RST has another number than was acknowledged")?;
        check!(lab.accept_within(ms(100))?.is_none(), "the connection was accepted")?;
        client.ack()?;
        lab.serves(client)
    })
    .about("The last segment of the handshake acknowledges what was never sent")
    .expects("A RST with the number that was acknowledged; no connection is accepted. The right ACK still opens it."),
    Case::new("rst-in-handshake", "MUST RFC 9293, 3.5.3: RST in SYN-RECEIVED", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, _) = lab.half_open()?;
        client.put(Out { flags: RST, ack: 0, ..client.out() })?;
        check!(lab.accept_within(ms(100))?.is_none(), "a connection was accepted that was reset before")?;
        client.again()?;
        lab.serves(client)
    })
    .about("The client answers the SYN+ACK with RST")
    .expects("No connection is accepted, and the next SYN from the same port opens one."),
    Case::new("listener-dropped", "ours", "RFC 9293, 3.10.4", |lab| {
        let mut clients = [lab.client(), lab.client(), lab.client()];
        for client in &mut clients {
            client.open()?;
            // Nothing shows when a stack has taken the ACK up.
            client.expect_none(ms(50), "a RST or FIN", |segment| segment.has(RST) || segment.has(FIN))?;
        }
        drop(lab.take_listener());
        clients.iter_mut().try_for_each(|client| client.expect_rst_or_fin().map(drop))
    })
    .about("The application drops its listener; connections wait to be accepted")
    .expects("Each is closed or reset. None stays open."),
    Case::new("listener-dropped-half-open", "ours", "RFC 9293, 3.10.4", |lab| {
        let mut clients = [lab.client(), lab.client(), lab.client()];
        for client in &mut clients {
            client.syn()?;
            client.syn_ack(SOON)?;
        }
        drop(lab.take_listener());
        for client in &mut clients {
            client.ack()?;
            client.data(b"is anyone there?")?;
            let (isn, mut is_reset) = (client.isn, false);
            let acked = client.expect_none(ms(400), "an ACK of data that nobody can read", |segment| {
                is_reset |= segment.has(RST) || segment.has(FIN);
                !is_reset && segment.has(ACK) && segment.ack.wrapping_sub(isn) > 1
            });
            acked.map_err(|stop| stop.with(Harm::Data))?;
        }
        Ok(())
    })
    .about("The application drops its listener with half-open connections")
    .expects(
        "The ACK of the handshake is answered with RST or with silence. No connection is held that nobody can \
             accept.",
    ),
];

/// Sends a SYN up to five times, and answers an ACK of an old connection with RST, as RFC 9293, 3.5.1 asks.
fn persistent_syn(client: &mut Client) -> Step {
    let after_isn = client.isn.wrapping_add(1);
    for _ in 0..5 {
        client.syn()?;
        while let Some(segment) = client.next_segment(ms(500))? {
            if segment.has(SYN | ACK) && segment.ack == after_isn {
                client.opened(&segment);
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

/// Closes a connection from the stack's side first, so that the stack is in TIME-WAIT.
pub(super) fn time_wait(lab: &mut Lab) -> Step<(Client, Served)> {
    let (mut client, mut served) = lab.connect()?;
    served.shutdown()?;
    client.receive_to_end()?;
    client.close()?;
    served.reads_to_end(b"")?;
    Ok((client, served))
}

/// Sends a segment with these flags, which must be answered with a RST.
fn without_connection(lab: &mut Lab, flags: u8) -> Step {
    let mut client = lab.client();
    client.expected = 0x0102_0304;
    client.put(Out { flags, ..client.out() })?;
    let rst = client.expect_rst()?;
    check!(rst.seq == client.expected, "the RST has the number {}, and not that of the ACK", rst.seq)?;
    lab.still_serves()
}
