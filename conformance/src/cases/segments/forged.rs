//! Segments that somebody else has forged, and ICMP errors.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("blind-rst", "SHOULD RFC 5961, 3.2", "RFC 5961, 3.2; RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client| Out { flags: RST, seq: client.next.wrapping_add(100), ..client.out() }, true)
    })
    .about("A RST within the window whose number is not the expected one")
    .expects("A challenge ACK. The connection stays open."),
    Case::new("rst-outside-window", "MUST RFC 9293, 3.5.3: RST outside the window", "RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client| Out { flags: RST, seq: client.next.wrapping_sub(100_000), ..client.out() }, false)
    })
    .about("A RST outside the window")
    .expects("It is dropped. The connection stays open."),
    Case::new("blind-syn", "SHOULD RFC 5961, 4.2", "RFC 5961, 4.2; RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client| Out { flags: SYN, seq: client.next.wrapping_add(100), ack: 0, ..client.out() }, true)
    })
    .about("A SYN within the window of an open connection")
    .expects("A challenge ACK. The connection stays open."),
    Case::new("blind-syn-ack", "SHOULD RFC 5961, 4.2", "RFC 5961, 4.2; RFC 9293, 3.10.7.4", |lab| {
        forged(lab, |client| Out { flags: SYN | ACK, seq: client.next.wrapping_add(100), ..client.out() }, true)
    })
    .about("A SYN+ACK within the window of an open connection")
    .expects("A challenge ACK. The connection stays open."),
    Case::new("blind-fin", "MUST RFC 9293, 3.10.7.4: ACK of the future", "RFC 9293, 3.10.7.4; RFC 5961, 5.2", |lab| {
        forged(lab, |client| Out { flags: FIN | ACK, ack: client.expected.wrapping_add(100_000), ..client.out() }, true)
    })
    .about("A FIN with the expected number that acknowledges what was never sent")
    .expects("It is dropped and answered with an ACK. The stream does not end."),
    Case::new(
        "ack-of-the-future",
        "MUST RFC 9293, 3.10.7.4: ACK of the future",
        "RFC 9293, 3.10.7.4; RFC 5961, 5.2",
        |lab| {
            let future = |client: &Client| client.expected.wrapping_add(100_000);
            forged(lab, |client| Out { ack: future(client), ..client.part(b"forged", 0..6) }, true)
        },
    )
    .about("A data segment that acknowledges what was never sent")
    .expects("It is dropped and answered with an ACK."),
    Case::new("icmp-unreachable", "MUST-56", "RFC 9293, 3.9.2.2; RFC 5461", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        lab.send_packet(&packets::error(3, 1, 0, &client.stack_packet()))?;
        thread::sleep(ms(50));
        exchange(&mut client, &mut served)
    })
    .about("ICMP \"host unreachable\" for a connection")
    .expects("A soft error: the connection stays open."),
    Case::new("icmp-too-big", "SHOULD RFC 9293, 3.7.2", "RFC 1191, 3 and 6; RFC 9293, 3.7.2", icmp_too_big)
        .about("ICMP \"fragmentation needed\" with an MTU of 600")
        .expects("The data comes again in smaller packets, or in packets that routers may fragment."),
    Case::new(
        "icmp-too-big-ipv6",
        "MUST RFC 8201, 4: less after the message",
        "RFC 8201, 4; RFC 9293, 3.7.2",
        icmp_too_big,
    )
    .about("ICMPv6 \"packet too big\" with an MTU of 1280")
    .expects("The data comes again in packets of at most 1280 bytes.")
    .ipv6(),
];

/// Sends a forged segment. Checks that a challenge ACK comes if `is_challenged`, and that the connection stays open.
fn forged(lab: &mut Lab, forge: impl FnOnce(&Client) -> Out<'static>, is_challenged: bool) -> Step {
    let (mut client, mut served) = lab.connect_and_exchange()?;
    client.forget()?;
    client.put(forge(&client))?;
    if is_challenged {
        let challenge = client.expect_challenge(client.next)?;
        check!(challenge.seq == client.expected, "the challenge ACK has another number than the client expects")?;
    }
    client.no_rst(ms(50))?;
    check!(served.is_quiet(ms(20)), Data, "the server read of it")?;
    exchange(&mut client, &mut served)
}

fn icmp_too_big(lab: &mut Lab) -> Step {
    let mtu: usize = if lab.ipv6 { 1280 } else { 600 };
    applies!(mtu < lab.mtu.into(), "no packet is longer than {mtu} bytes")?;
    let (mut client, served) = lab.connect()?;
    let error = packets::too_big(mtu as u32, &client.stack_packet());
    let mut is_told = false;
    deliver_with(&mut client, served, &pattern(39, 30_000), LATE, |client, segment| {
        let is_lost = segment.packet_len > mtu && segment.dont_fragment;
        if is_lost && !is_told {
            client.send_packet(&error)?;
            is_told = true;
        }
        Ok(is_lost)
    })
    .map(drop)
}
