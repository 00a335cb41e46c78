//! Fragments of datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::datagrams::{arrives, client, fragments};
use super::super::hostile::{flood, named};
use crate::link::ip;
use crate::{Case, Lab, SOON, Setup, Step, Stop, applies, check, packets, pattern, same};

pub(in super::super) const CASES: &[Case] = &[
    Case::new("fragments-in-any-order", any_order, "RFC 791, 3.2; RFC 1122, 3.3.2")
        .about("Datagrams in three fragments, in each of the six orders")
        .expects("Each is put together and received.")
        .over_ipv6("fragments-in-any-order-ipv6", "The same over IPv6", "RFC 8200, 4.5 and 5"),
    Case::new("fragments-duplicated", duplicated, "RFC 791, 3.2")
        .about("A datagram in three fragments, of which the first two come twice")
        .expects("It is received once."),
    Case::new("fragments-overlap", overlap, "RFC 791, 3.2; RFC 1858, 4")
        .about("A fragment with other bytes overlaps those of a datagram")
        .expects("The datagram is received as its checksum says, or dropped. The next one is received."),
    Case::new("fragments-overlap-ipv6", overlap, "RFC 5722, 4; RFC 8200, 4.5")
        .about("The same over IPv6")
        .expects("The whole datagram is dropped, silently. The next one is received.")
        .ipv6(),
    Case::new("fragments-of-two-senders", two_senders, "RFC 791, 3.2")
        .about("Fragments of two senders with the same identification, in turns")
        .expects("Both datagrams are received.")
        .over_ipv6("fragments-of-two-senders-ipv6", "The same over IPv6", "RFC 8200, 4.5"),
    Case::new("fragments-left-over", left_over, "RFC 4963, 3; RFC 791, 3.2")
        .about("The first fragment of a datagram, and then another datagram with the same identification")
        .expects("The second is received or dropped, and never mixed with the first. The next one is received."),
    Case::new("fragments-tiny", tiny, "RFC 791, 3.2; CVE-2018-5391")
        .about("A datagram of 1,000 bytes in fragments of 8 bytes; then 8,000 such fragments of one that never ends")
        .expects(
            "The first is received. After the flood a datagram in one packet is received, and a connection opens.",
        ),
    Case::new("fragments-sent-numbers", sent_numbers, "RFC 6864, 4.2; RFC 791, 3.2")
        .about("The server sends three datagrams of 4,000 bytes over IPv4")
        .expects("The fragments of each have an identification of their own."),
];

/// Length of the payload of each fragment but the last.
const LEN: usize = 480;

/// A datagram that needs three fragments, and no more than the 1,500 bytes that a host has to put together (RFC 8200, 5).
fn payload(seed: u64) -> Vec<u8> {
    pattern(seed, 1400)
}

/// Returns the three fragments of a datagram. `number` is the last byte of their identification.
fn cut(from: SocketAddr, to: SocketAddr, payload: &[u8], number: u8) -> Vec<Vec<u8>> {
    let packet = packets::datagram(from, to, payload);
    let (fragments, at) = if from.is_ipv6() {
        (packets::fragments_v6(&packet, LEN), 47)
    } else {
        (packets::fragments_v4(&packet, LEN), 5)
    };
    fragments.into_iter().map(|fragment| packets::with_ip_bytes(fragment, at, &[number])).collect()
}

fn send(lab: &Lab, fragments: &[Vec<u8>]) -> Step {
    fragments.iter().try_for_each(|fragment| lab.send_packet(fragment))
}

/// The server must receive these bytes next.
fn received(lab: &Lab, payload: &[u8]) -> Step {
    match lab.received(SOON)? {
        Some((bytes, _)) => same(&bytes, payload),
        None => Err(Stop::fail("it was not received")),
    }
}

/// Starts the stack. Ends the case if it does not put fragments together, which other cases check.
fn reassembling(setup: &Setup) -> Step<Lab> {
    let lab = setup.start()?;
    let payload = payload(174);
    send(&lab, &cut(client(setup), lab.server(), &payload, 9))?;
    match received(&lab, &payload) {
        Err(Stop::Fail(_)) => Err(Stop::NotApplicable("the stack does not put fragments together".to_owned())),
        result => result.map(|()| lab),
    }
}

fn any_order(setup: &Setup) -> Step {
    let lab = setup.start()?;
    for (number, order) in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate() {
        let payload = payload(150 + number as u64);
        let fragments = cut(client(setup), lab.server(), &payload, number as u8);
        send(&lab, &order.map(|index| fragments[index].clone()))?;
        named(received(&lab, &payload), || format!("in the order {order:?}"))?;
    }
    lab.finish()
}

fn duplicated(setup: &Setup) -> Step {
    let lab = reassembling(setup)?;
    let payload = payload(160);
    let fragments = cut(client(setup), lab.server(), &payload, 1);
    send(&lab, &[0, 0, 1, 1, 2].map(|index| fragments[index].clone()))?;
    received(&lab, &payload)?;
    let again = lab.received(Duration::from_millis(100))?;
    check(again.is_none(), || "it was received again".to_owned())?;
    lab.finish()
}

fn overlap(setup: &Setup) -> Step {
    let lab = reassembling(setup)?;
    let sent = payload(161);
    let fragments = cut(client(setup), lab.server(), &sent, 1);
    // It begins in the middle of the first fragment, and has other bytes.
    let offset = (LEN / 2) as u16;
    let mut forged = fragments[1].clone();
    let (at, header_len) = if setup.ipv6 { (42, 48) } else { (6, 20) };
    forged[header_len..].fill(7);
    let field = if setup.ipv6 { offset + 1 } else { 0x2000 + offset / 8 };
    let forged = packets::with_ip_bytes(forged, at, &field.to_be_bytes());
    send(&lab, &[&fragments[..1], &[forged], &fragments[1..]].concat())?;
    if let Some((bytes, _)) = lab.received(Duration::from_millis(200))? {
        same(&bytes, &sent)?;
        check(!setup.ipv6, || "a datagram with overlapping fragments was received".to_owned())?;
    }
    arrives(&lab, client(setup), lab.server(), b"whole")?;
    let next = payload(162);
    send(&lab, &cut(client(setup), lab.server(), &next, 2))?;
    received(&lab, &next)?;
    lab.finish()
}

fn two_senders(setup: &Setup) -> Step {
    let lab = reassembling(setup)?;
    let senders = [client(setup), SocketAddr::new(ip(setup.ipv6, 1, 3), 50_000)];
    let payloads = [payload(163), payload(164)];
    let [first, second] = [0, 1].map(|index| cut(senders[index], lab.server(), &payloads[index], 1));
    let turns: Vec<_> = first.into_iter().zip(second).flat_map(|(first, second)| [first, second]).collect();
    send(&lab, &turns)?;
    let mut expected: Vec<_> = senders.into_iter().zip(payloads).collect();
    while !expected.is_empty() {
        let Some((bytes, [_, peer])) = lab.received(SOON)? else {
            return Err(Stop::fail(format!("{} of two datagrams were received", 2 - expected.len())));
        };
        let Some(at) = expected.iter().position(|(sender, _)| *sender == peer) else {
            return Err(Stop::fail(format!("a datagram of {peer} was received")));
        };
        same(&bytes, &expected.swap_remove(at).1)?;
    }
    lab.finish()
}

fn left_over(setup: &Setup) -> Step {
    let lab = reassembling(setup)?;
    let (first, second, third) = (payload(165), payload(166), payload(167));
    send(&lab, &cut(client(setup), lab.server(), &first, 1)[..1])?;
    send(&lab, &cut(client(setup), lab.server(), &second, 1))?;
    if let Some((bytes, _)) = lab.received(Duration::from_millis(200))? {
        same(&bytes, &second)?;
    }
    send(&lab, &cut(client(setup), lab.server(), &third, 2))?;
    received(&lab, &third)?;
    lab.finish()
}

fn tiny(setup: &Setup) -> Step {
    let lab = reassembling(setup)?;
    let payload = pattern(168, 1000);
    let packet = packets::datagram(client(setup), lab.server(), &payload);
    flood(&lab, packets::fragments_v4(&packet, 8))?;
    received(&lab, &payload)?;
    let from = SocketAddr::new(ip(setup.ipv6, 1, 3), 50_000);
    let mut endless = packets::fragments_v4(&packets::datagram(from, lab.server(), &pattern(169, 64_000)), 8);
    endless.pop();
    flood(&lab, endless)?;
    arrives(&lab, client(setup), lab.server(), b"whole")?;
    lab.finish_serving()
}

fn sent_numbers(setup: &Setup) -> Step {
    let len = usize::from(setup.mtu) + 2500;
    applies(len <= 65_507, || "a datagram is no longer than a packet".to_owned())?;
    let lab = setup.start()?;
    let mut numbers = Vec::new();
    for seed in 170..173 {
        let is_sent = lab.send_datagram(lab.server(), client(setup), &pattern(seed, len)).is_ok();
        applies(is_sent, || "the stack sends no fragments".to_owned())?;
        let fragments = fragments(&lab, len + 8)?;
        let mut of_one: Vec<_> = fragments.iter().map(|packet| [packet[4], packet[5]]).collect();
        of_one.dedup();
        check(of_one.len() == 1, || format!("the fragments have {} identifications", of_one.len()))?;
        numbers.extend(of_one);
    }
    numbers.sort_unstable();
    numbers.dedup();
    check(numbers.len() == 3, || format!("three datagrams have {} identifications", numbers.len()))?;
    lab.finish()
}
