//! Floods of SYNs, scans, and SYNs that make no sense.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("syn-flood", "ours", "RFC 4987, 3", |lab| {
        for round in 0..10 {
            lab.flood((0..300).map(|index| lab.stranger(round * 300 + index).syn_packet(b"")))?;
            named(lab.still_serves(), || format!("after {} SYNs", (round + 1) * 300))?;
        }
        Ok(())
    })
    .about("3,000 SYNs from addresses that never answer; a client connects after each 300")
    .expects("Each of the client's SYNs is answered within a second, and its connections carry bytes."),
    Case::new("syn-flood-at-once", "ours", "RFC 4987, 3", |lab| {
        let (mut client, mut served) = lab.connect()?;
        lab.flood((0..5000).map(|index| lab.stranger(index).syn_packet(b"")))?;
        named(exchange(&mut client, &mut served), || "on the open connection".to_owned())?;
        lab.still_serves()
    })
    .about(
        "5,000 SYNs at once from addresses that never answer, with the default window; one connection is open \
             before",
    )
    .expects("The open connection goes on, and a new one opens.")
    .with(|config| config.window = StackConfig::default().window),
    Case::new("syn-flood-newest", "ours", "RFC 4987, 3.4", |lab| {
        const NEWEST: u16 = 64;
        lab.flood((0..5000).map(|index| lab.stranger(index).syn_packet(b"")))?;
        // The newest have the usual address, so that each SYN+ACK has a port of its own.
        let mut newest: Vec<_> = (0..NEWEST).map(|_| lab.client()).collect();
        newest.iter_mut().try_for_each(Client::syn)?;
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
        Ok(())
    })
    .about("5,000 half-open connections; the newest 64 of their clients answer the SYN+ACK")
    .expects("Old ones give way: the newest are accepted, and carry bytes."),
    Case::new("syn-flood-with-data", "ours", "RFC 4987, 3; RFC 9293, 3.10.7.2", |lab| {
        let data = pattern(70, 1000);
        lab.flood((0..2000).map(|index| lab.stranger(index).syn_packet(&data)))?;
        lab.still_serves()
    })
    .about("2,000 SYNs with 1,000 bytes of data each, from addresses that never answer")
    .expects("A new connection opens and carries bytes."),
    Case::new("half-open-scan", "ours", "RFC 9293, 3.10.7.4", |lab| {
        for index in 0..100 {
            let (client, _) = named(lab.half_open(), || format!("after {index} scans"))?;
            client.put(Out { flags: RST, ack: 0, ..client.out() })?;
        }
        lab.still_serves()
    })
    .about("100 clients answer the SYN+ACK with RST; the backlog is 16")
    .expects("Each RST frees its place: every SYN is answered, and the next connection is accepted.")
    .with(|config| config.backlog = 16),
    Case::new("accept-queue-overflows", "ours", "the promise of StackConfig::backlog", |lab| {
        let mut clients = [lab.client(), lab.client(), lab.client()];
        clients.iter_mut().try_for_each(Client::syn)?;
        let mut waiting = Vec::new();
        for mut client in clients {
            // The stack may answer a SYN only when it has room.
            let is_half_open = client.syn_ack(ms(200)).is_ok();
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
                    client.no_rst(ms(10))?;
                    client.ack()?;
                } else if client.open().is_ok() {
                    *is_half_open = true;
                }
            }
        }
        Ok(())
    })
    .about("Three clients complete their handshakes at once; the backlog is one")
    .expects("No RST. Those that do not fit are accepted later, when the client repeats its last packet.")
    .with(|config| config.backlog = 1),
    Case::new("flags-nonsense", "SHOULD RFC 5961, 4.2", "RFC 5961, 4.2; RFC 9293, 3.10.7.2 and 3.10.7.4", |lab| {
        const ALL: u8 = 0xff;
        let (mut client, mut served) = lab.connect()?;
        for flags in [SYN | FIN, SYN | FIN | ACK, 0, FIN, FIN | PSH | URG, SYN | RST | FIN, ALL] {
            let closed = lab.client();
            closed.put(Out { flags, ..closed.out() })?;
            // A SYN+RST within the window may end the connection: it is a RST.
            if flags & RST == 0 {
                client.put(Out { flags, ..client.out() })?;
                named(exchange(&mut client, &mut served), || format!("after the flags {flags:#04x}"))?;
            }
        }
        lab.still_serves()
    })
    .about("SYN+FIN, SYN+RST, all flags, no flags and FIN without ACK, to an open connection and to none")
    .expects("The open connection goes on, and new ones open."),
    Case::new("land", "ours", "RFC 1122, 3.2.1.3; CERT CA-1997-28", |lab| {
        let mut itself = lab.client_from(lab.server(), lab.server());
        let syn = itself.syn_packet(b"");
        (0..10).try_for_each(|_| lab.send_packet(&syn))?;
        let until = Instant::now() + ms(200);
        let mut count = 0;
        while itself.segment_until(until)?.is_some() {
            count += 1;
        }
        check!(count <= 30, Speed, "{count} packets came for ten SYNs")?;
        lab.still_serves()
    })
    .about("SYNs from the server's own address and port")
    .expects("At most a few packets come for them, and new connections open."),
    Case::new("strange-sources", "MUST-63", "RFC 9293, 3.9.2.3; RFC 1122, 3.2.1.3 and 4.2.3.10", |lab| {
        let unspecified = platform::unspecified(lab.ipv6);
        for (source, port) in packets::groups(lab.ipv6).into_iter().chain([unspecified]).zip(2000..) {
            let mut client = lab.client_from(SocketAddr::new(source, port), lab.server());
            client.syn()?;
            named(client.silence(ms(50)), || format!("to {source}"))?;
        }
        lab.still_serves()
    })
    .about("SYNs from multicast and broadcast addresses, and from 0.0.0.0")
    .expects("Silence. New connections open.")
    .over_ipv6(
        "strange-sources-ipv6",
        "MUST-63",
        "SYNs from multicast addresses and from ::",
        "RFC 4291, 2.5.2 and 2.7; RFC 9293, 3.9.2.3",
    ),
    Case::new("port-zero", "ours", "RFC 6335, 6", |lab| {
        let (peer, server) = (lab.client().local, lab.server());
        let [no_peer, no_server] = [peer, server].map(|address| SocketAddr::new(address.ip(), 0));
        let ends = [(no_peer, server), (peer, no_server), (no_peer, no_server)];
        lab.flood(ends.map(|(from, to)| lab.client_from(from, to).syn_packet(b"")))?;
        lab.still_serves()
    })
    .about("SYNs from port 0 and to port 0")
    .expects("The stack does not crash or hang: new connections open."),
    Case::new("mss-tiny", "ours", "RFC 9293, 3.7.1; CVE-2019-11479", |lab| {
        const LEN: usize = 4000;
        let mut client = lab.client();
        client.open_with(&Offer { mss: Some(1), ..Offer::default() })?;
        // The stack may refuse such a connection.
        if let Some(served) = lab.accept_within(SOON)? {
            let _sending = served.send(pattern(71, LEN), Then::Keep);
            let mut packets = 0;
            let _may_fail = client.receive_with(LEN, SOON, |_, _| {
                packets += 1;
                Ok(false)
            });
            check!(packets <= 500, Speed, "{packets} packets came for {LEN} bytes")?;
        }
        lab.still_serves()
    })
    .about("The SYN has an MSS of 1; the server writes 4,000 bytes")
    .expects("At most 500 packets, 8 bytes each: a client cannot make a packet of every byte. Other connections work."),
    Case::new("scale-nonsense", "MUST RFC 7323, 2.3: at most 14", "RFC 7323, 2.3", |lab| {
        let (mut client, mut served) = lab.connect_with(&Offer { scale: Some(255), ..Offer::default() })?;
        client.write(&pattern(72, 20_000))?;
        served.reads(&pattern(72, 20_000))?;
        deliver(&mut client, served, &pattern(73, 50_000), SOON).map(drop)
    })
    .about("The SYN has a shift count of 255")
    .expects("It counts as 14: the connection carries bytes both ways."),
];
