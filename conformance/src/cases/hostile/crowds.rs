//! Many clients that take nothing, vanish, or send one datagram each.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("closed-windows", "ours", "RFC 9293, 3.8.6.1", |lab| {
        let mut waiting = Vec::new();
        for _ in 0..200 {
            let (_, served) = lab.connect_with(&Offer { window: 0, ..Offer::default() })?;
            waiting.push(served.send(pattern(110, 20_000), Then::Keep));
        }
        let (mut client, mut served) = lab.connect()?;
        for round in 0..50 {
            named(exchange(&mut client, &mut served), || format!("request {round}"))?;
        }
        lab.still_serves()
    })
    .about("200 clients open connections with a window of 0, and the server writes to each; another client works")
    .expects("The other client's requests are answered within a second each."),
    Case::new("vanished-crowd", "MUST-21", "RFC 9293, 3.8.3; the promise of StackConfig::user_timeout", |lab| {
        let bytes = pattern(111, 2 * WINDOW);
        let mut writes = Vec::new();
        for _ in 0..100 {
            let (_, served) = lab.connect()?;
            writes.push(served.send(bytes.clone(), Then::Keep));
        }
        lab.still_serves()?;
        for (index, write) in writes.into_iter().enumerate() {
            named(write.times_out(), || format!("client {index}"))?;
        }
        lab.still_serves()
    })
    .about("100 clients vanish while the server writes to them; the timeout is 1 second")
    .expects("All writes fail with \"timed out\" within five seconds. Another client works meanwhile.")
    .with(|config| (config.window, config.user_timeout) = (16 << 10, SOON)),
    Case::new("udp-senders", "ours", "the promise of netstacks::Datagrams", |lab| {
        for round in 0..50_u16 {
            let sent = |index: u16| packets::datagram(lab.stranger(round * 100 + index).local, lab.server(), b"one");
            lab.flood((0..100).map(sent))?;
            lab.drain(Duration::ZERO)?;
        }
        is_served(lab)?;
        lab.still_serves()
    })
    .about("5,000 addresses send a datagram each; nobody answers them. Then one more sends, and is answered")
    .expects("The last one is received, and gets its answer."),
    Case::new("fragments-incomplete", "ours", "RFC 791, 3.2; RFC 1122, 3.3.2; CVE-2018-5391", |lab| {
        let payload = pattern(112, 4000);
        let first = |index: u16| {
            let packet = packets::datagram(lab.stranger(index).local, lab.server(), &payload);
            packets::fragments(&packet, 1200).swap_remove(0)
        };
        lab.flood((0..1000).map(first))?;
        is_served(lab)?;
        lab.still_serves()
    })
    .about("1,000 first fragments of datagrams whose rest never comes")
    .expects("A whole datagram is received after them, and a connection opens.")
    .over_ipv6("fragments-incomplete-ipv6", "ours", "The same over IPv6", "RFC 8200, 4.5; CVE-2018-5391"),
];

/// Sends a datagram from an address of its own, which the server must receive and answer.
fn is_served(lab: &Lab) -> Step {
    let from = SocketAddr::new(ip(lab.ipv6, 1, 3), 53);
    // A datagram is lost if too many wait.
    lab.drain(ms(20))?;
    lab.send_packet(&packets::datagram(from, lab.server(), b"one more"))?;
    let (bytes, addresses) = loop {
        match lab.received(SOON)? {
            // A slow stack may still have some of the others.
            Some((bytes, _)) if bytes == b"one" => {}
            Some(last) => break last,
            None => return fail!(Data, "the last datagram was not received"),
        }
    };
    same(&bytes, b"one more")?;
    check!(addresses == [lab.server(), from], Data, "it has the addresses {addresses:?}")?;
    lab.answers_to(lab.server(), from, b"an answer")
}
