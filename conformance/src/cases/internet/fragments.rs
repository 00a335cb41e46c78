//! Fragments of datagrams.

use std::collections::BTreeSet;

use super::super::datagrams::fragments;
use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("fragments-in-any-order", "MUST RFC 1122, 3.3.2: reassembly", "RFC 791, 3.2; RFC 1122, 3.3.2", |lab| {
        for (number, order) in
            [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate()
        {
            let payload = payload(150 + number as u64);
            let fragments = cut(lab, lab.peer(), &payload, number as u8);
            lab.flood(order.map(|index| fragments[index].clone()))?;
            named(lab.receives_next(&payload), || format!("in the order {order:?}"))?;
        }
        Ok(())
    })
    .about("Datagrams in three fragments, in each of the six orders")
    .expects("Each is put together and received.")
    .over_ipv6(
        "fragments-in-any-order-ipv6",
        "MUST RFC 8200, 5: reassembly",
        "The same over IPv6",
        "RFC 8200, 4.5 and 5",
    ),
    Case::new("fragments-duplicated", "MUST RFC 791, 3.2: reassembly", "RFC 791, 3.2", |lab| {
        needs_reassembly(lab)?;
        let payload = payload(160);
        let fragments = cut(lab, lab.peer(), &payload, 1);
        lab.flood([0, 0, 1, 1, 2].map(|index| fragments[index].clone()))?;
        lab.receives_next(&payload)?;
        check!(lab.received(ms(100))?.is_none(), Data, "it was received again")
    })
    .about("A datagram in three fragments, of which the first two come twice")
    .expects("It is received once."),
    Case::new("fragments-overlap", "MUST RFC 791, 3.2: reassembly", "RFC 791, 3.2; RFC 1858, 4", overlap)
        .about("A fragment with other bytes overlaps those of a datagram")
        .expects("The datagram is received as its checksum says, or dropped. The next one is received."),
    Case::new("fragments-overlap-ipv6", "MUST RFC 8200, 4.5: overlaps", "RFC 5722, 4; RFC 8200, 4.5", overlap)
        .about("The same over IPv6")
        .expects("The whole datagram is dropped, silently. The next one is received.")
        .ipv6(),
    Case::new("fragments-of-two-senders", "MUST RFC 791, 3.2: whose fragments", "RFC 791, 3.2", |lab| {
        needs_reassembly(lab)?;
        let mut expected = vec![(lab.peer(), payload(163)), (neighbour(lab), payload(164))];
        let [first, second] = [0, 1].map(|index: usize| cut(lab, expected[index].0, &expected[index].1, 1));
        lab.flood(first.into_iter().zip(second).flat_map(|(first, second)| [first, second]))?;
        while !expected.is_empty() {
            let Some((bytes, [_, peer])) = lab.received(SOON)? else {
                return fail!(Data, "{} of two datagrams were received", 2 - expected.len());
            };
            let Some(at) = expected.iter().position(|(sender, _)| *sender == peer) else {
                return fail!(Data, "a datagram of {peer} was received");
            };
            same(&bytes, &expected.swap_remove(at).1)?;
        }
        Ok(())
    })
    .about("Fragments of two senders with the same identification, in turns")
    .expects("Both datagrams are received.")
    .over_ipv6(
        "fragments-of-two-senders-ipv6",
        "MUST RFC 8200, 4.5: whose fragments",
        "The same over IPv6",
        "RFC 8200, 4.5",
    ),
    Case::new(
        "fragments-left-over",
        "MUST RFC 1122, 4.1.3.4: wrong checksums",
        "RFC 4963, 3; RFC 1122, 4.1.3.4",
        |lab| {
            needs_reassembly(lab)?;
            let (first, second, third) = (payload(165), payload(166), payload(167));
            lab.flood(cut(lab, lab.peer(), &first, 1).into_iter().take(1))?;
            lab.flood(cut(lab, lab.peer(), &second, 1))?;
            if let Some((bytes, _)) = lab.received(ms(200))? {
                same(&bytes, &second)?;
            }
            lab.flood(cut(lab, lab.peer(), &third, 2))?;
            lab.receives_next(&third)
        },
    )
    .about("The first fragment of a datagram, and then another datagram with the same identification")
    .expects("The second is received or dropped, and never mixed with the first. The next one is received."),
    Case::new("fragments-tiny", "ours", "RFC 791, 3.2; CVE-2018-5391", |lab| {
        needs_reassembly(lab)?;
        let payload = pattern(168, 1000);
        lab.flood(packets::fragments(&lab.to_server(&payload), 8))?;
        lab.receives_next(&payload)?;
        let endless = packets::datagram(neighbour(lab), lab.server(), &pattern(169, 64_000));
        let mut endless = packets::fragments(&endless, 8);
        endless.pop();
        lab.flood(endless)?;
        lab.arrives(b"whole")?;
        lab.still_serves()
    })
    .about("A datagram of 1,000 bytes in fragments of 8 bytes; then 8,000 such fragments of one that never ends")
    .expects("The first is received. After the flood a datagram in one packet is received, and a connection opens."),
    Case::new("fragments-sent-numbers", "MUST RFC 6864, 4.3", "RFC 6864, 4.2; RFC 791, 3.2", |lab| {
        let len = usize::from(lab.mtu) + 2500;
        applies!(len <= 65_507, "a datagram is no longer than a packet")?;
        let mut numbers = BTreeSet::new();
        for seed in 170..173 {
            let is_sent = lab.send_datagram(lab.server(), lab.peer(), &pattern(seed, len)).is_ok();
            applies!(is_sent, "the stack sends no fragments")?;
            let of_one: BTreeSet<_> = fragments(lab, len + 8)?.iter().map(|packet| [packet[4], packet[5]]).collect();
            check!(of_one.len() == 1, "the fragments have {} identifications", of_one.len())?;
            numbers.extend(of_one);
        }
        check!(numbers.len() == 3, "three datagrams have {} identifications", numbers.len())
    })
    .about("The server sends three datagrams of 4,000 bytes over IPv4")
    .expects("The fragments of each have an identification of their own."),
];

/// Length of the payload of each fragment but the last.
const LEN: usize = 480;

/// A datagram that needs three fragments, and no more than the 1,500 bytes that a host has to put together (RFC 8200, 5).
fn payload(seed: u64) -> Vec<u8> {
    pattern(seed, 1400)
}

/// Another host in the peer's network.
fn neighbour(lab: &Lab) -> SocketAddr {
    SocketAddr::new(ip(lab.ipv6, 1, 3), lab.peer().port())
}

/// Returns the three fragments of a datagram to the server. `number` is the last byte of their identification.
fn cut(lab: &Lab, from: SocketAddr, payload: &[u8], number: u8) -> Vec<Vec<u8>> {
    let at = if lab.ipv6 { 47 } else { 5 };
    let fragments = packets::fragments(&packets::datagram(from, lab.server(), payload), LEN);
    fragments.into_iter().map(|fragment| packets::with_ip_bytes(fragment, at, &[number])).collect()
}

/// Ends the case if the stack does not put fragments together, which other cases check.
fn needs_reassembly(lab: &Lab) -> Step {
    let payload = payload(174);
    lab.flood(cut(lab, lab.peer(), &payload, 9))?;
    match lab.receives_next(&payload) {
        Err(Stop::Fail { .. }) => applies!(false, "the stack does not put fragments together"),
        result => result,
    }
}

fn overlap(lab: &mut Lab) -> Step {
    needs_reassembly(lab)?;
    let sent = payload(161);
    let mut fragments = cut(lab, lab.peer(), &sent, 1);
    // It begins in the middle of the first fragment, and has other bytes.
    let offset = (LEN / 2) as u16;
    let mut forged = fragments[1].clone();
    let (at, header_len) = if lab.ipv6 { (42, 48) } else { (6, 20) };
    forged[header_len..].fill(7);
    let field = if lab.ipv6 { offset + 1 } else { 0x2000 + offset / 8 };
    fragments.insert(1, packets::with_ip_bytes(forged, at, &field.to_be_bytes()));
    lab.flood(fragments)?;
    if let Some((bytes, _)) = lab.received(ms(200))? {
        same(&bytes, &sent)?;
        check!(!lab.ipv6, Data, "a datagram with overlapping fragments was received")?;
    }
    lab.arrives(b"whole")?;
    let next = payload(162);
    lab.flood(cut(lab, lab.peer(), &next, 2))?;
    lab.receives_next(&next)
}
