//! Floods of SYNs, scans, and SYNs that make no sense.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};

use super::{flood, named, stranger};
use crate::lab::{deliver, exchange};
use crate::{Case, Client, Offer, Out, SOON, Setup, Step, Then, check, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("syn-flood", syn_flood, "RFC 4987, 3")
        .about("3,000 SYNs from addresses that never answer; a client connects after each 300")
        .expects("Each of the client's SYNs is answered within a second, and its connections carry bytes."),
    Case::new("syn-flood-at-once", syn_flood_at_once, "RFC 4987, 3")
        .about(
            "5,000 SYNs at once from addresses that never answer, with the default window; one connection is open \
             before",
        )
        .expects("The open connection goes on, and a new one opens."),
    Case::new("syn-flood-newest", syn_flood_newest, "RFC 4987, 3.4")
        .about("5,000 half-open connections; the newest 64 of their clients answer the SYN+ACK")
        .expects("Old ones give way: the newest are accepted, and carry bytes."),
    Case::new("syn-flood-with-data", syn_flood_with_data, "RFC 4987, 3; RFC 9293, 3.10.7.2")
        .about("2,000 SYNs with 1,000 bytes of data each, from addresses that never answer")
        .expects("A new connection opens and carries bytes."),
    Case::new("half-open-scan", half_open_scan, "RFC 9293, 3.10.7.4")
        .about("100 clients answer the SYN+ACK with RST; the backlog is 16")
        .expects("Each RST frees its place: every SYN is answered, and the next connection is accepted."),
    Case::new("accept-queue-overflows", accept_queue_overflows, "the promise of StackConfig::backlog")
        .about("Three clients complete their handshakes at once; the backlog is one")
        .expects("No RST. Those that do not fit are accepted later, when the client repeats its last packet."),
    Case::new("flags-nonsense", flags_nonsense, "RFC 9293, 3.10.7.2 and 3.10.7.4")
        .about("SYN+FIN, SYN+RST, all flags, no flags and FIN without ACK, to an open connection and to none")
        .expects("The open connection goes on, and new ones open."),
    Case::new("land", land, "RFC 1122, 3.2.1.3; CERT CA-1997-28")
        .about("SYNs from the server's own address and port")
        .expects("At most a few packets come for them, and new connections open."),
    Case::new("strange-sources", strange_sources, "RFC 1122, 3.2.1.3 and 4.2.3.10")
        .about("SYNs from multicast and broadcast addresses, and from 0.0.0.0")
        .expects("Silence. New connections open.")
        .over_ipv6(
            "strange-sources-ipv6",
            "SYNs from multicast addresses and from ::",
            "RFC 4291, 2.5.2 and 2.7; RFC 9293, 3.9.2.3",
        ),
    Case::new("port-zero", port_zero, "RFC 6335, 6")
        .about("SYNs from port 0 and to port 0")
        .expects("The stack does not crash or hang: new connections open."),
    Case::new("mss-tiny", mss_tiny, "RFC 9293, 3.7.1; CVE-2019-11479")
        .about("The SYN has an MSS of 1; the server writes 4,000 bytes")
        .expects(
            "At most 500 packets, 8 bytes each: a client cannot make a packet of every byte. Other connections work.",
        ),
    Case::new("scale-nonsense", scale_nonsense, "RFC 7323, 2.3")
        .about("The SYN has a shift count of 255")
        .expects("It counts as 14: the connection carries bytes both ways."),
];

/// Returns the SYN of a stranger.
fn syn(client: &Client) -> Vec<u8> {
    client.packet(Out { flags: SYN, ack: 0, options: &[2, 4, 5, 0xb4], ..client.out() })
}

fn syn_flood(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    for round in 0..10 {
        flood(&lab, (0..300).map(|index| syn(&stranger(&lab, round * 300 + index))))?;
        named(lab.still_serves(), || format!("after {} SYNs", (round + 1) * 300))?;
    }
    lab.finish()
}

fn syn_flood_at_once(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.window = netstacks::StackConfig::default().window)?;
    let (mut client, mut served) = lab.connect()?;
    flood(&lab, (0..5000).map(|index| syn(&stranger(&lab, index))))?;
    named(exchange(&mut client, &mut served), || "on the open connection".to_owned())?;
    lab.finish_serving()
}

fn syn_flood_newest(setup: &Setup) -> Step {
    const NEWEST: u16 = 64;
    let mut lab = setup.start()?;
    flood(&lab, (0..5000).map(|index| syn(&stranger(&lab, index))))?;
    // The newest have the usual address, so that each SYN+ACK has a port of its own.
    let mut newest: Vec<_> = (0..NEWEST).map(|_| lab.client()).collect();
    for client in &mut newest {
        client.syn(&Offer::default())?;
    }
    for client in &mut newest {
        client.syn_ack(SOON)?;
        client.ack()?;
    }
    let mut accepted = 0;
    while accepted < NEWEST {
        let mut served = named(lab.accept(), || format!("{accepted} of {NEWEST} were accepted"))?;
        // A stack may yield connections at their SYN.
        let port = served.addresses()[1].port();
        if let Some(client) = newest.iter_mut().find(|client| client.port() == port) {
            exchange(client, &mut served)?;
            accepted += 1;
        }
    }
    lab.finish()
}

fn syn_flood_with_data(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let data = pattern(70, 1000);
    let syn = |index| {
        let client = stranger(&lab, index);
        client.packet(Out { flags: SYN, ack: 0, options: &[2, 4, 5, 0xb4], payload: &data, ..client.out() })
    };
    flood(&lab, (0..2000).map(syn))?;
    lab.finish_serving()
}

fn half_open_scan(setup: &Setup) -> Step {
    let lab = setup.start_with(|config| config.backlog = 16)?;
    for index in 0..100 {
        let (client, _) = named(lab.half_open(), || format!("after {index} scans"))?;
        client.put(Out { flags: RST, ack: 0, ..client.out() })?;
    }
    lab.finish_serving()
}

fn accept_queue_overflows(setup: &Setup) -> Step {
    let mut lab = setup.start_with(|config| config.backlog = 1)?;
    let mut clients = [lab.client(), lab.client(), lab.client()];
    for client in &mut clients {
        client.syn(&Offer::default())?;
    }
    let mut waiting = Vec::new();
    for mut client in clients {
        // The stack may answer a SYN only when it has room.
        let is_half_open = client.syn_ack(Duration::from_millis(200)).is_ok();
        if is_half_open {
            client.ack()?;
        }
        waiting.push((client, is_half_open));
    }
    while !waiting.is_empty() {
        let mut served = named(lab.accept(), || format!("{} clients wait", waiting.len()))?;
        let port = served.addresses()[1].port();
        let Some(index) = waiting.iter().position(|(client, _)| client.port() == port) else { continue };
        let (mut client, _) = waiting.remove(index);
        named(exchange(&mut client, &mut served), || format!("{} clients wait", waiting.len()))?;
        for (client, is_half_open) in &mut waiting {
            if *is_half_open {
                client.expect_none(Duration::from_millis(10), "a RST", |segment| segment.has(RST))?;
                client.ack()?;
            } else if client.open(&Offer::default()).is_ok() {
                *is_half_open = true;
            }
        }
    }
    lab.finish()
}

fn flags_nonsense(setup: &Setup) -> Step {
    const ALL: u8 = 0xff;
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    for flags in [SYN | FIN, SYN | FIN | ACK, 0, FIN, FIN | PSH | URG, SYN | RST | FIN] {
        let closed = lab.client();
        closed.put(Out { flags, ..closed.out() })?;
        // A SYN+RST within the window may end the connection: it is a RST.
        if flags & RST == 0 {
            client.put(Out { flags, ..client.out() })?;
            named(exchange(&mut client, &mut served), || format!("after the flags {flags:#04x}"))?;
        }
    }
    let closed = lab.client();
    closed.put(Out { flags: ALL, ..closed.out() })?;
    lab.finish_serving()
}

fn land(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let mut itself = lab.client_from(lab.server(), lab.server());
    for _ in 0..10 {
        lab.send_packet(&syn(&itself))?;
    }
    let until = Instant::now() + Duration::from_millis(200);
    let mut count = 0;
    while itself.segment_until(until)?.is_some() {
        count += 1;
    }
    check(count <= 30, || format!("{count} packets came for ten SYNs"))?;
    lab.finish_serving()
}

fn strange_sources(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let sources: &[IpAddr] = if setup.ipv6 {
        &[IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]
    } else {
        &[
            IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
            IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3)),
            IpAddr::V4(Ipv4Addr::BROADCAST),
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        ]
    };
    for (source, port) in sources.iter().zip(2000..) {
        let mut client = lab.client_from(SocketAddr::new(*source, port), lab.server());
        client.syn(&Offer::default())?;
        let during = Duration::from_millis(50);
        named(client.expect_none(during, "an answer", |_| true), || format!("to {source}"))?;
    }
    lab.finish_serving()
}

fn port_zero(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let with_port = |address: SocketAddr, port| SocketAddr::new(address.ip(), port);
    let (peer, server) = (lab.client().local, lab.server());
    let ends = [(with_port(peer, 0), server), (peer, with_port(server, 0)), (with_port(peer, 0), with_port(server, 0))];
    for (from, to) in ends {
        lab.send_packet(&syn(&lab.client_from(from, to)))?;
    }
    lab.finish_serving()
}

fn mss_tiny(setup: &Setup) -> Step {
    const LEN: usize = 4000;
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.open(&Offer { mss: Some(1), ..Offer::default() })?;
    // The stack may refuse such a connection.
    if let Some(served) = lab.accept_within(SOON)? {
        let sending = served.send(pattern(71, LEN), Then::Keep);
        let mut packets = 0;
        let _may_fail = client.receive_with(LEN, SOON, |_| {
            packets += 1;
            false
        });
        check(packets <= 500, || format!("{packets} packets came for {LEN} bytes"))?;
        drop(sending);
    }
    lab.finish_serving()
}

fn scale_nonsense(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect_with(&Offer { scale: Some(255), ..Offer::default() })?;
    client.write(&pattern(72, 20_000))?;
    same(&served.read(20_000)?, &pattern(72, 20_000))?;
    deliver(&mut client, served, &pattern(73, 50_000), SOON, |_| false)?;
    lab.finish()
}
