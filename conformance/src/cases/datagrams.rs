//! UDP.

pub(super) mod super_packets;
pub(super) mod unusual;

use platform::packet::Ipv4Fragment;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("udp", "MUST RFC 768: length", "RFC 768", |lab| {
        let largest = usize::from(lab.mtu) - if lab.ipv6 { 48 } else { 28 };
        for len in [0, 1, 2, 999, largest - 1, largest] {
            let payload = pattern(len as u64, len);
            lab.arrives(&payload)?;
            lab.answers(&payload)?;
        }
        Ok(())
    })
    .about("Datagrams of no byte up to the MTU, both ways: 1,472 bytes at 1500")
    .expects("Each is received with its addresses, and each answer arrives.")
    .over_ipv6(
        "udp-ipv6",
        "MUST RFC 768: length",
        "The same over IPv6: up to 1,452 bytes",
        "RFC 768; RFC 8200, 8.1",
    ),
    Case::new("udp-any-address", "ours", "RFC 768", |lab| {
        for to in stack_addresses(lab.ipv6) {
            lab.arrives_at(lab.peer(), to, b"question")?;
            lab.answers_to(to, lab.peer(), b"answer")?;
        }
        Ok(())
    })
    .about("Datagrams to several addresses and ports")
    .expects("Each is received, and answered from the address that it was sent to."),
    Case::new("udp-no-checksum", "MUST RFC 768: no checksum", "RFC 768; RFC 1122, 4.1.3.4", |lab| {
        lab.send_packet(&unsummed(lab))?;
        check!(lab.received(SOON)?.is_some(), Data, "it was not received")
    })
    .about("A datagram without a checksum, over IPv4")
    .expects("It is received."),
    Case::new("udp-no-checksum-ipv6", "MUST RFC 8200, 8.1: no checksum", "RFC 8200, 8.1", |lab| {
        dropped(lab, &unsummed(lab))
    })
    .about("The same over IPv6")
    .expects("It is dropped.")
    .ipv6(),
    Case::new("udp-wrong-checksum", "MUST RFC 1122, 4.1.3.4: wrong checksums", "RFC 1122, 4.1.3.4", |lab| {
        lab.needs_checksums()?;
        dropped(lab, &packets::damaged(lab.to_server(b"damaged")))
    })
    .about("A datagram with a wrong checksum")
    .expects("It is dropped.")
    .plain(),
    Case::new("udp-wrong-length", "ours", "RFC 768; the promise of netstacks::Datagrams", |lab| {
        for len in [0, 7, 8, 15, 17, 1000] {
            let packet = packets::datagram_with(lab.peer(), lab.server(), b"garbage!", len, None);
            named(dropped(lab, &packet), || format!("length {len} of 16"))?;
        }
        Ok(())
    })
    .about("Datagrams whose length field is not the length of their packet")
    .expects("They are dropped, and later ones are received."),
    Case::new("udp-fragments-received", "SHOULD RFC 1122, 3.3.2: any size", "RFC 1122, 3.3.2 and 4.1.1", |lab| {
        let payload = pattern(50, 4000);
        lab.flood(packets::fragments(&lab.to_server(&payload), 1200))?;
        lab.receives_next(&payload)
    })
    .about("A datagram of 4,000 bytes in IPv4 fragments")
    .expects("It is put together and received."),
    Case::new("udp-fragments-sent", "MAY RFC 1122, 3.3.3", "RFC 791, 2.3; RFC 1122, 3.3.3", |lab| {
        let len = usize::from(lab.mtu) + 2500;
        applies!(len <= 65_507, "no datagram is longer than the MTU")?;
        let payload = pattern(51, len);
        if let Err(error) = lab.send_datagram(lab.server(), lab.peer(), &payload) {
            return fail!("the datagram was refused: {error}");
        }
        let mut fragments = fragments(lab, len + 8)?;
        // They may arrive in any order.
        fragments.sort_by_key(|packet| u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
        let bytes: Vec<_> = fragments.iter().flat_map(|packet| packet[20..].to_vec()).collect();
        same(bytes.get(8..).unwrap_or_default(), &payload)
    })
    .about("The server sends a datagram of 2,500 bytes more than the MTU over IPv4")
    .expects("Fragments that together are this datagram."),
    Case::new("udp-too-large", "ours", "RFC 768; the promise of Datagrams::try_send", |lab| {
        let result = lab.send_datagram(lab.server(), lab.peer(), &vec![0; 65_508]);
        let kind = result.map_err(|error| error.kind());
        check!(kind == Err(ErrorKind::InvalidInput), "the result is {kind:?}")?;
        lab.answers(b"small")
    })
    .about("The server sends a datagram that no IPv4 packet can hold")
    .expects("It is refused as invalid input, and later datagrams are sent."),
    Case::new("udp-too-large-ipv6", "ours", "RFC 8200, 5; the promise of Datagrams::try_send", |lab| {
        let result = lab.send_datagram(lab.server(), lab.peer(), &vec![0; usize::from(lab.mtu) - 47]);
        let kind = result.map_err(|error| error.kind());
        check!(matches!(kind, Ok(()) | Err(ErrorKind::InvalidInput)), "the result is {kind:?}")?;
        if kind.is_ok() {
            let mut fragments = 0;
            while let Some(packet) = lab.wire().other(Instant::now() + patient(ms(50)))? {
                fragments += usize::from(packet[6] == 44);
            }
            check!(fragments >= 2, "{fragments} fragments came")?;
        }
        lab.answers(b"small")
    })
    .about("The server sends a datagram longer than the MTU over IPv6")
    .expects("It is sent in fragments, or refused as invalid input.")
    .ipv6(),
    Case::new("udp-flood", "ours", "the promise of netstacks::Datagrams", |lab| {
        let packet = lab.to_server(&[7; 1000]);
        (0..3000).try_for_each(|_| lab.send_packet(&packet))?;
        lab.still_serves()?;
        // A task of each shard still brings its datagrams to the queue of all, which drops them.
        thread::sleep(patient(ms(50)));
        let count = lab.drain(ms(50))?;
        check!(count <= netstacks::MAX_WAITING_DATAGRAMS + 1, "{count} datagrams waited")?;
        lab.arrives(b"there is room again")
    })
    .about("3,000 datagrams that nobody reads, and then a connection")
    .expects("Datagrams beyond the bound are dropped; the connection works."),
];

/// A datagram without a checksum.
fn unsummed(lab: &Lab) -> Vec<u8> {
    packets::datagram_with(lab.peer(), lab.server(), b"unsummed", 16, Some(0))
}

/// Sends a packet that must be dropped, and then one that must be received.
fn dropped(lab: &Lab, packet: &[u8]) -> Step {
    lab.send_packet(packet)?;
    check!(lab.received(ms(100))?.is_none(), Data, "it was received")?;
    lab.arrives(b"a good one")
}

/// Returns the next IPv4 fragments of the stack, which have `len` bytes of payload together.
pub(super) fn fragments(lab: &Lab, len: usize) -> Step<Vec<Vec<u8>>> {
    let until = Instant::now() + patient(SOON);
    let (mut fragments, mut got) = (Vec::new(), 0);
    while got < len
        && let Some(packet) = lab.wire().other(until)?
    {
        if Ipv4Fragment::parse(&packet).is_some() {
            got += packet.len() - 20;
            fragments.push(packet);
        }
    }
    Ok(fragments)
}
