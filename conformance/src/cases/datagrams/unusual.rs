//! Unusual ports, addresses and checksums of datagrams.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{answered, arrives, client};
use crate::link::peer_ip;
use crate::{Case, SOON, Setup, Step, check, packets};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("udp-sum-of-zero", sum_of_zero, "RFC 768")
        .about("Datagrams whose checksum is computed as zero, both ways")
        .expects("It is sent as all ones. Zero would mean that there is none.")
        .plain(),
    Case::new("udp-sum-of-zero-ipv6", sum_of_zero, "RFC 8200, 8.1")
        .about("The same over IPv6")
        .expects("It is sent as all ones.")
        .plain()
        .ipv6(),
    Case::new("udp-port-zero", port_zero, "RFC 768; RFC 6335, 6")
        .about("Datagrams from port 0 and to port 0; the server sends to port 0")
        .expects("Nothing is sent to port 0. Later datagrams are received and answered."),
    Case::new("udp-closed-port", closed_port, "RFC 1122, 4.1.3.1")
        .about("A datagram to a port that no program has open")
        .expects("ICMP \"port unreachable\" about this datagram, or silence. A connection opens."),
    Case::new("udp-closed-port-ipv6", closed_port, "RFC 4443, 3.1")
        .about("The same over IPv6")
        .expects("ICMPv6 \"port unreachable\" about this datagram, or silence. A connection opens.")
        .ipv6(),
    Case::new("udp-unreachable", unreachable, "RFC 1122, 4.1.3.3")
        .about("ICMP \"port unreachable\" and \"host unreachable\" about datagrams of the server")
        .expects("The server goes on: its next datagram is sent, and others are received."),
    Case::new("udp-from-itself", from_itself, "RFC 1122, 3.2.1.3; CERT CA-1996-01")
        .about("Ten datagrams from the server's own address and port")
        .expects("At most ten are received, and nothing comes for them. Later datagrams are received and answered."),
    Case::new("udp-strange-sources", strange_sources, "RFC 1122, 3.2.1.3 and 4.1.3.6")
        .about("Datagrams from multicast and broadcast addresses, and from 0.0.0.0")
        .expects("They are dropped. Later datagrams are received.")
        .over_ipv6("udp-strange-sources-ipv6", "Datagrams from multicast addresses", "RFC 4291, 2.7"),
];

fn sum_of_zero(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let ends = [client(setup), lab.server()];
    // The payload completes the sum of all other words to all ones.
    let payload = |from, to| {
        let packet = packets::datagram(from, to, &[0; 2]);
        packet[packet.len() - 4..packet.len() - 2].to_vec()
    };
    arrives(&lab, ends[0], ends[1], &payload(ends[0], ends[1]))?;
    let refused = |error| crate::Stop::fail(format!("the datagram was refused: {error}"));
    lab.send_datagram(ends[1], ends[0], &payload(ends[1], ends[0])).map_err(refused)?;
    let checksum = lab.datagram(SOON)?.map(|datagram| datagram.checksum);
    check(checksum == Some(0xffff), || format!("a datagram with the checksum {checksum:x?} came"))?;
    lab.finish()
}

fn port_zero(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let with_port = |address: SocketAddr, port| SocketAddr::new(address.ip(), port);
    for (from, to) in [
        (with_port(client(setup), 0), lab.server()),
        (client(setup), with_port(lab.server(), 0)),
        (with_port(client(setup), 0), with_port(lab.server(), 0)),
    ] {
        lab.send_packet(&packets::datagram(from, to, b"to or from nobody"))?;
    }
    while lab.received(Duration::from_millis(50))?.is_some() {}
    let _may_fail = lab.send_datagram(lab.server(), with_port(client(setup), 0), b"to nobody");
    let sent = lab.datagram(Duration::from_millis(50))?;
    check(sent.is_none(), || "a datagram was sent to port 0".to_owned())?;
    arrives(&lab, client(setup), lab.server(), b"a good one")?;
    answered(&lab, lab.server(), client(setup), b"an answer")?;
    lab.finish()
}

fn closed_port(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    lab.drop_datagrams();
    let packet = packets::datagram(client(setup), lab.server(), &[7; 400]);
    lab.send_packet(&packet)?;
    if let Some(error) = lab.message(Duration::from_millis(200))? {
        let (kind, least) = if setup.ipv6 { ([1, 4], packet.len()) } else { ([3, 3], 28) };
        check(error.kind == kind, || format!("a message of type and code {:?} came", error.kind))?;
        error.is_about(&packet, least)?;
    }
    lab.finish_serving()
}

fn unreachable(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let (server, client) = (lab.server(), client(setup));
    arrives(&lab, client, server, b"question")?;
    answered(&lab, server, client, b"answer")?;
    let about = packets::datagram(server, client, b"answer");
    for code in [3, 1] {
        lab.send_packet(&packets::error(3, code, 0, &about))?;
        arrives(&lab, client, server, b"another question")?;
        answered(&lab, server, client, b"another answer")?;
    }
    let other = SocketAddr::new(peer_ip(false), 40_000);
    arrives(&lab, other, server, b"question")?;
    answered(&lab, server, other, b"answer")?;
    lab.finish()
}

fn from_itself(setup: &Setup) -> Step {
    let lab = setup.start()?;
    for _ in 0..10 {
        lab.send_packet(&packets::datagram(lab.server(), lab.server(), b"an echo of an echo"))?;
    }
    let mut count = 0;
    while lab.received(Duration::from_millis(50))?.is_some() {
        count += 1;
    }
    check(count <= 10, || format!("{count} datagrams were received for ten"))?;
    check(lab.datagram(Duration::ZERO)?.is_none(), || "a datagram came".to_owned())?;
    arrives(&lab, client(setup), lab.server(), b"a good one")?;
    answered(&lab, lab.server(), client(setup), b"an answer")?;
    lab.finish()
}

fn strange_sources(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let unspecified = (!setup.ipv6).then_some(Ipv4Addr::UNSPECIFIED.into());
    let sources = packets::groups(setup.ipv6).into_iter().chain(unspecified);
    for source in sources {
        lab.send_packet(&packets::datagram(SocketAddr::new(source, 4000), lab.server(), b"from all"))?;
        let received = lab.received(Duration::from_millis(50))?;
        check(received.is_none(), || format!("a datagram from {source} was received"))?;
    }
    arrives(&lab, client(setup), lab.server(), b"a good one")?;
    lab.finish()
}
