//! Unusual ports, addresses and checksums of datagrams.

use std::net::Ipv4Addr;

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("udp-sum-of-zero", "MUST RFC 768: a sum of zero", "RFC 768", sum_of_zero)
        .about("Datagrams whose checksum is computed as zero, both ways")
        .expects("It is sent as all ones. Zero would mean that there is none.")
        .plain(),
    Case::new("udp-sum-of-zero-ipv6", "MUST RFC 8200, 8.1: a sum of zero", "RFC 8200, 8.1", sum_of_zero)
        .about("The same over IPv6")
        .expects("It is sent as all ones.")
        .plain()
        .ipv6(),
    Case::new("udp-port-zero", "ours", "RFC 768; RFC 6335, 6", |lab| {
        let (peer, server) = (lab.peer(), lab.server());
        let [no_peer, no_server] = [peer, server].map(|address| SocketAddr::new(address.ip(), 0));
        let ends = [(no_peer, server), (peer, no_server), (no_peer, no_server)];
        lab.flood(ends.map(|(from, to)| packets::datagram(from, to, b"to or from nobody")))?;
        lab.drain(ms(50))?;
        let _may_fail = lab.send_datagram(server, no_peer, b"to nobody");
        check!(lab.datagram(ms(50))?.is_none(), "a datagram was sent to port 0")?;
        lab.arrives(b"a good one")?;
        lab.answers(b"an answer")
    })
    .about("Datagrams from port 0 and to port 0; the server sends to port 0")
    .expects("Nothing is sent to port 0. Later datagrams are received and answered."),
    Case::new("udp-closed-port", "MUST RFC 1122, 3.2.2: quotes", "RFC 1122, 4.1.3.1", closed_port)
        .about("A datagram to a port that no program has open")
        .expects("ICMP \"port unreachable\" about this datagram, or silence. A connection opens."),
    Case::new("udp-closed-port-ipv6", "MUST RFC 4443, 2.4 (c)", "RFC 4443, 3.1", closed_port)
        .about("The same over IPv6")
        .expects("ICMPv6 \"port unreachable\" about this datagram, or silence. A connection opens.")
        .ipv6(),
    Case::new("udp-unreachable", "ours", "RFC 1122, 4.1.3.3", |lab| {
        lab.arrives(b"question")?;
        lab.answers(b"answer")?;
        let about = packets::datagram(lab.server(), lab.peer(), b"answer");
        for code in [3, 1] {
            lab.send_packet(&packets::error(3, code, 0, &about))?;
            lab.arrives(b"another question")?;
            lab.answers(b"another answer")?;
        }
        let other = SocketAddr::new(lab.peer().ip(), 40_000);
        lab.arrives_at(other, lab.server(), b"question")?;
        lab.answers_to(lab.server(), other, b"answer")
    })
    .about("ICMP \"port unreachable\" and \"host unreachable\" about datagrams of the server")
    .expects("The server goes on: its next datagram is sent, and others are received."),
    Case::new("udp-from-itself", "ours", "RFC 1122, 3.2.1.3; CERT CA-1996-01", |lab| {
        let itself = packets::datagram(lab.server(), lab.server(), b"an echo of an echo");
        (0..10).try_for_each(|_| lab.send_packet(&itself))?;
        let count = lab.drain(ms(50))?;
        check!(count <= 10, Data, "{count} datagrams were received for ten")?;
        check!(lab.datagram(Duration::ZERO)?.is_none(), "a datagram came")?;
        lab.arrives(b"a good one")?;
        lab.answers(b"an answer")
    })
    .about("Ten datagrams from the server's own address and port")
    .expects("At most ten are received, and nothing comes for them. Later datagrams are received and answered."),
    Case::new(
        "udp-strange-sources",
        "MUST RFC 1122, 3.2.1.3: invalid sources",
        "RFC 1122, 3.2.1.3 and 4.1.3.6",
        |lab| {
            let unspecified = (!lab.ipv6).then_some(Ipv4Addr::UNSPECIFIED.into());
            for source in packets::groups(lab.ipv6).into_iter().chain(unspecified) {
                lab.send_packet(&packets::datagram(SocketAddr::new(source, 4000), lab.server(), b"from all"))?;
                check!(lab.received(ms(50))?.is_none(), Data, "a datagram from {source} was received")?;
            }
            lab.arrives(b"a good one")
        },
    )
    .about("Datagrams from multicast and broadcast addresses, and from 0.0.0.0")
    .expects("They are dropped. Later datagrams are received.")
    .over_ipv6("udp-strange-sources-ipv6", "ours", "Datagrams from multicast addresses", "RFC 4291, 2.7"),
];

fn sum_of_zero(lab: &mut Lab) -> Step {
    let (peer, server) = (lab.peer(), lab.server());
    // The payload completes the sum of all other words to all ones.
    let payload = |from, to| {
        let packet = packets::datagram(from, to, &[0; 2]);
        packet[packet.len() - 4..packet.len() - 2].to_vec()
    };
    lab.arrives(&payload(peer, server))?;
    if let Err(error) = lab.send_datagram(server, peer, &payload(server, peer)) {
        return fail!("the datagram was refused: {error}");
    }
    let checksum = lab.datagram(SOON)?.map(|datagram| datagram.checksum);
    check!(checksum == Some(0xffff), "a datagram with the checksum {checksum:x?} came")
}

fn closed_port(lab: &mut Lab) -> Step {
    lab.drop_datagrams();
    let packet = lab.to_server(&[7; 400]);
    lab.send_packet(&packet)?;
    if let Some(error) = lab.message(ms(200))? {
        let (kind, least) = if lab.ipv6 { ([1, 4], packet.len()) } else { ([3, 3], 28) };
        check!(error.kind == kind, "a message of type and code {:?} came", error.kind)?;
        error.is_about(&packet, least)?;
    }
    lab.still_serves()
}
