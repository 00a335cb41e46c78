//! IP headers: hop limits, traffic classes, options, extension headers and addresses.

pub(super) mod fragments;

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::segments::wrapped::{PADDING, behind, wrapped};
use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("hop-limit-sent", "ours", "RFC 1122, 3.2.1.7", |lab| {
        let mut client = lab.client();
        let syn_ack = client.open_with(&Offer::default())?;
        let mut served = lab.accept()?;
        served.write(b"data")?;
        let data = client.expect_data()?;
        client.ack_to(data.end())?;
        served.shutdown()?;
        let fin = client.expect("FIN", |segment| segment.payload.is_empty())?;
        let mut stranger = lab.client();
        stranger.ack_to(1)?;
        let rst = stranger.expect_answer("RST", |_| true)?;
        lab.arrives(b"question")?;
        let sent = lab.send_datagram(lab.server(), lab.peer(), b"answer");
        let datagram = lab.datagram(SOON)?;
        let limits = [syn_ack, data, fin, rst].map(|segment| segment.hop_limit);
        check!(limits.iter().all(|limit| *limit >= 32), "the hop limits are {limits:?}")?;
        let limit = datagram.map(|datagram| datagram.hop_limit);
        check!(sent.is_ok() && limit.is_some_and(|limit| limit >= 32), "a datagram has the hop limit {limit:?}")
    })
    .about("The time to live of SYN+ACK, data, FIN, RST and a datagram")
    .expects("At least 32: more than any path has.")
    .over_ipv6("hop-limit-sent-ipv6", "ours", "The same over IPv6", "RFC 8200, 3 and 8.2"),
    Case::new("hop-limit-received", "MUST RFC 1122, 3.2.1.7", "RFC 1122, 3.2.1.7", |lab| {
        let limit = 1 + lab.routers;
        let at = if lab.ipv6 { 7 } else { 8 };
        wrapped(lab, move |packet| packets::with_ip_bytes(packet.to_vec(), at, &[limit]))?;
        lab.send_packet(&packets::with_ip_bytes(lab.to_server(b"far"), at, &[limit]))?;
        check!(lab.received(SOON)?.is_some(), Data, "the datagram was not received")
    })
    .about("Segments and a datagram that arrive with a time to live of 1")
    .expects("They are at their destination, and are taken.")
    .over_ipv6("hop-limit-received-ipv6", "SHOULD RFC 8200, 3: hop limit", "The same over IPv6", "RFC 8200, 3"),
    Case::new("traffic-class", "MUST RFC 2474, 3", "RFC 2474, 3; RFC 3168, 5", |lab| {
        let (at, bytes): (_, &[u8]) = if lab.ipv6 { (0, &[0x6f, 0xff, 0xff, 0xff]) } else { (1, &[0xff]) };
        wrapped(lab, move |packet| packets::with_ip_bytes(packet.to_vec(), at, bytes))
    })
    .about("Segments with every bit of the type of service")
    .expects("The connection opens and carries bytes.")
    .over_ipv6(
        "traffic-class-ipv6",
        "MUST RFC 2474, 3",
        "Segments with every bit of the traffic class and of the flow label",
        "RFC 2474, 3; RFC 8200, 6 and 7; RFC 6437, 2",
    ),
    Case::new("ipv6-routing-header", "MUST RFC 8200, 4.4: with segments left", "RFC 5095, 3; RFC 8200, 4.4", |lab| {
        let wrap = |packet: &[u8], kind| packets::with_extension(packet, 43, &routing(kind, 1));
        refused(lab, &[0, 200], wrap, |_| Some(([4, 0], 42)))
    })
    .about("Segments behind routing headers of type 0 and of an unknown type, with another host to visit")
    .expects("They are dropped, and not forwarded. An error, if one comes, points to the type.")
    .ipv6(),
    Case::new(
        "ipv6-routing-header-done",
        "MUST RFC 8200, 4.4: without segments left",
        "RFC 5095, 3; RFC 8200, 4.4",
        |lab| behind(lab, 43, routing(0, 0)),
    )
    .about("Every segment is behind a routing header of type 0 with no host left to visit")
    .expects("The header is ignored; the connection opens and carries bytes.")
    .ipv6(),
    Case::new("ipv6-option-skipped", "MUST RFC 8200, 4.2: 00", "RFC 8200, 4.2", |lab| behind(lab, 60, option(0)))
        .about("Every segment has an unknown destination option with the action bits 00")
        .expects("The option is skipped; the connection opens and carries bytes.")
        .ipv6(),
    Case::new("ipv6-option-refused", "MUST RFC 8200, 4.2: 01, 10, 11", "RFC 8200, 4.2", |lab| {
        let wrap = |packet: &[u8], action| packets::with_extension(packet, 60, &option(action));
        refused(lab, &[1, 2, 3], wrap, |action| (action > 1).then_some(([4, 2], 42)))
    })
    .about("Segments with unknown destination options with the action bits 01, 10 and 11")
    .expects("They are dropped: silently for 01. An error for the others, if one comes, points to the option.")
    .ipv6(),
    Case::new("ipv6-no-next-header", "MUST RFC 8200, 4.7", "RFC 8200, 4.7", |lab| {
        const NONE: u8 = 59;
        const BEHIND: &str = "behind destination options";
        let wrap = |packet: &[u8], form| {
            if form == BEHIND {
                packets::with_ip_bytes(packets::with_extension(packet, 60, &PADDING), 40, &[NONE])
            } else {
                packets::with_ip_bytes(packet.to_vec(), 6, &[NONE])
            }
        };
        refused(lab, &["behind the IPv6 header", BEHIND], wrap, |_| None)
    })
    .about("Segments behind \"no next header\"")
    .expects("Nothing follows such a header: they are ignored, silently.")
    .ipv6(),
    Case::new("loopback-addresses", "MUST RFC 1122, 3.2.1.3: invalid sources", "RFC 1122, 3.2.1.3 (g)", |lab| {
        let host = if lab.ipv6 { Ipv6Addr::LOCALHOST.into() } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let (peer, server) = (lab.peer(), lab.server());
        for (from, to) in [(SocketAddr::new(host, 4000), server), (peer, SocketAddr::new(host, server.port()))] {
            let client = lab.client_from(from, to);
            named(ignored(lab, client), || format!("from {from} to {to}"))?;
            lab.send_packet(&packets::datagram(from, to, b"from nowhere"))?;
            check!(lab.received(ms(50))?.is_none(), Data, "a datagram from {from} to {to} was received")?;
        }
        lab.arrives(b"from a host")?;
        lab.answers(b"an answer")?;
        lab.still_serves()
    })
    .about("SYNs and datagrams from 127.0.0.1, and to 127.0.0.1")
    .expects("Silence. Nothing is accepted or received; new connections open.")
    .over_ipv6("loopback-addresses-ipv6", "MUST-63", "The same with ::1", "RFC 9293, 3.9.2.3; RFC 4291, 2.5.3"),
    Case::new("syn-to-a-group", "MUST-57", "RFC 9293, 3.9.2.3; RFC 1122, 4.2.3.10", |lab| {
        for group in packets::groups(lab.ipv6) {
            let client = lab.client_to(SocketAddr::new(group, lab.server().port()));
            named(ignored(lab, client), || format!("to {group}"))?;
        }
        lab.still_serves()
    })
    .about("SYNs to multicast and broadcast addresses")
    .expects("Silence, and no connection.")
    .over_ipv6("syn-to-a-group-ipv6", "MUST-57", "SYNs to multicast addresses", "RFC 9293, 3.9.2.3"),
];

/// Sends a data segment in each of these forms, which must not be delivered. An ICMP error that comes for it must have the
/// type and code that `error` returns, and point there. Nothing is forwarded: the wire sees every packet.
fn refused<T: Copy + Display>(
    lab: &mut Lab,
    forms: &[T],
    wrap: impl Fn(&[u8], T) -> Vec<u8>,
    error: impl Fn(T) -> Option<([u8; 2], u8)>,
) -> Step {
    let (mut client, mut served) = lab.connect_and_exchange()?;
    for &form in forms {
        lab.send_packet(&wrap(&client.packet(client.part(b"forged", 0..6)), form))?;
        check!(served.is_quiet(ms(100)), Data, "{form}: it was delivered")?;
        if let Some(Message { kind, body, .. }) = lab.message(Duration::ZERO)? {
            let pointer = body.get(3).copied().unwrap_or_default();
            let is_right = error(form) == Some((kind, pointer));
            check!(is_right, "{form}: an error of type and code {kind:?} came, and points to {pointer}")?;
        }
        named(exchange(&mut client, &mut served), || form.to_string())?;
    }
    Ok(())
}

/// A routing header to another host in the peer's network.
fn routing(kind: u8, hosts_left: u8) -> Vec<u8> {
    let host = Ipv6Addr::new(0xfd10, 0, 1, 0, 0, 0, 0, 3).octets();
    [&[0, 2, kind, hosts_left, 0, 0, 0, 0][..], &host].concat()
}

/// Destination options: one for experiments (RFC 4727), with these action bits.
const fn option(action: u8) -> [u8; 8] {
    [0, 0, action << 6 | 0x1e, 4, 1, 2, 3, 4]
}

/// Sends the SYN of a client, which must be dropped silently.
fn ignored(lab: &mut Lab, mut client: Client) -> Step {
    client.syn()?;
    client.silence(ms(50))?;
    check!(lab.accept_within(ms(20))?.is_none(), "a connection was accepted")
}
