//! UDP.

pub(super) mod super_packets;
pub(super) mod unusual;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use platform::packet::Ipv4Fragment;

use super::hostile::named;
use crate::link::{peer_ip, stack_addresses};
use crate::{Case, Lab, SOON, Setup, Step, applies, check, packets, patient, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("udp", echo, "RFC 768")
        .about("Datagrams of no byte up to the MTU, both ways: 1,472 bytes at 1500")
        .expects("Each is received with its addresses, and each answer arrives.")
        .over_ipv6("udp-ipv6", "The same over IPv6: up to 1,452 bytes", "RFC 768; RFC 8200, 8.1"),
    Case::new("udp-any-address", any_address, "RFC 768")
        .about("Datagrams to several addresses and ports")
        .expects("Each is received, and answered from the address that it was sent to."),
    Case::new("udp-no-checksum", no_checksum, "RFC 768; RFC 1122, 4.1.3.4")
        .about("A datagram without a checksum, over IPv4")
        .expects("It is received."),
    Case::new("udp-no-checksum-ipv6", no_checksum_ipv6, "RFC 8200, 8.1")
        .about("The same over IPv6")
        .expects("It is dropped.")
        .ipv6(),
    Case::new("udp-wrong-checksum", wrong_checksum, "RFC 1122, 4.1.3.4")
        .about("A datagram with a wrong checksum")
        .expects("It is dropped.")
        .plain(),
    Case::new("udp-wrong-length", wrong_length, "RFC 768; the promise of netstacks::Datagrams")
        .about("Datagrams whose length field is not the length of their packet")
        .expects("They are dropped, and later ones are received."),
    Case::new("udp-fragments-received", fragments_received, "RFC 1122, 3.3.2 and 4.1.1")
        .about("A datagram of 4,000 bytes in IPv4 fragments")
        .expects("It is put together and received."),
    Case::new("udp-fragments-sent", fragments_sent, "RFC 791, 2.3; RFC 1122, 3.3.3")
        .about("The server sends a datagram of 2,500 bytes more than the MTU over IPv4")
        .expects("Fragments that together are this datagram."),
    Case::new("udp-too-large", too_large, "RFC 768; the promise of Datagrams::try_send")
        .about("The server sends a datagram that no IPv4 packet can hold")
        .expects("It is refused as invalid input, and later datagrams are sent."),
    Case::new("udp-too-large-ipv6", too_large_ipv6, "RFC 8200, 5; the promise of Datagrams::try_send")
        .about("The server sends a datagram longer than the MTU over IPv6")
        .expects("It is sent in fragments, or refused as invalid input.")
        .ipv6(),
    Case::new("udp-flood", flood, "the promise of netstacks::Datagrams")
        .about("3,000 datagrams that nobody reads, and then a connection")
        .expects("Datagrams beyond the bound are dropped; the connection works."),
];

const CLIENT_PORT: u16 = 50_000;

pub(super) fn client(setup: &Setup) -> SocketAddr {
    SocketAddr::new(peer_ip(setup.ipv6), CLIENT_PORT)
}

/// Sends a datagram to the server, which must receive it.
pub(super) fn arrives(lab: &Lab, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
    lab.send_packet(&packets::datagram(from, to, payload))?;
    receives(lab, from, to, payload)
}

/// The server must receive this datagram next.
fn receives(lab: &Lab, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
    let Some((bytes, addresses)) = lab.received(SOON)? else {
        return check(false, || format!("a datagram of {} bytes was not received", payload.len()));
    };
    same(&bytes, payload)?;
    check(addresses == [to, from], || format!("it has the addresses {addresses:?}"))
}

/// Sends a datagram from the server, which must arrive.
pub(super) fn answered(lab: &Lab, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Step {
    let text = |error| crate::Stop::fail(format!("sending {} bytes failed: {error}", payload.len()));
    lab.send_datagram(from, to, payload).map_err(text)?;
    comes(lab, from, payload)
}

/// This datagram of the server must arrive next.
fn comes(lab: &Lab, from: SocketAddr, payload: &[u8]) -> Step {
    let Some(arrived) = lab.datagram(SOON)? else {
        return check(false, || format!("a datagram of {} bytes did not arrive", payload.len()));
    };
    same(&arrived.payload, payload)?;
    let source = SocketAddr::new(arrived.source, arrived.source_port);
    check(source == from, || format!("it came from {source}"))
}

fn echo(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let largest = usize::from(setup.mtu) - if setup.ipv6 { 48 } else { 28 };
    for len in [0, 1, 2, 999, largest - 1, largest] {
        let payload = pattern(len as u64, len);
        arrives(&lab, client(setup), lab.server(), &payload)?;
        answered(&lab, lab.server(), client(setup), &payload)?;
    }
    lab.finish()
}

fn any_address(setup: &Setup) -> Step {
    let lab = setup.start()?;
    for to in stack_addresses(setup.ipv6) {
        arrives(&lab, client(setup), to, b"question")?;
        answered(&lab, to, client(setup), b"answer")?;
    }
    lab.finish()
}

fn no_checksum(setup: &Setup) -> Step {
    let lab = setup.start()?;
    lab.send_packet(&packets::datagram_with(client(setup), lab.server(), b"unsummed", 16, Some(0)))?;
    let received = lab.received(SOON)?;
    check(received.is_some(), || "it was not received".to_owned())?;
    lab.finish()
}

/// Sends a packet that must be dropped, and then one that must be received.
fn dropped(setup: &Setup, lab: &Lab, packet: &[u8]) -> Step {
    lab.send_packet(packet)?;
    let received = lab.received(Duration::from_millis(100))?;
    check(received.is_none(), || "it was received".to_owned())?;
    arrives(lab, client(setup), lab.server(), b"a good one")
}

fn no_checksum_ipv6(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let packet = packets::datagram_with(client(setup), lab.server(), b"unsummed", 16, Some(0));
    dropped(setup, &lab, &packet)?;
    lab.finish()
}

fn wrong_checksum(setup: &Setup) -> Step {
    let lab = setup.start()?;
    lab.needs_checksums()?;
    let mut packet = packets::datagram(client(setup), lab.server(), b"damaged");
    packet[30] ^= 0x10;
    dropped(setup, &lab, &packet)?;
    lab.finish()
}

fn wrong_length(setup: &Setup) -> Step {
    let lab = setup.start()?;
    for len in [0, 7, 8, 15, 17, 1000] {
        let packet = packets::datagram_with(client(setup), lab.server(), b"garbage!", len, None);
        named(dropped(setup, &lab, &packet), || format!("length {len} of 16"))?;
    }
    lab.finish()
}

fn fragments_received(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let payload = pattern(50, 4000);
    let packet = packets::datagram(client(setup), lab.server(), &payload);
    for fragment in packets::fragments_v4(&packet, 1200) {
        lab.send_packet(&fragment)?;
    }
    match lab.received(SOON)? {
        Some((bytes, _)) => same(&bytes, &payload)?,
        None => check(false, || "it was not received".to_owned())?,
    }
    lab.finish()
}

fn fragments_sent(setup: &Setup) -> Step {
    let len = usize::from(setup.mtu) + 2500;
    applies(len <= 65_507, || "no datagram is longer than the MTU".to_owned())?;
    let lab = setup.start()?;
    let payload = pattern(51, len);
    let refused = |error| crate::Stop::fail(format!("the datagram was refused: {error}"));
    lab.send_datagram(lab.server(), client(setup), &payload).map_err(refused)?;
    let mut fragments = fragments(&lab, len + 8)?;
    // They may arrive in any order.
    fragments.sort_by_key(|packet| u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
    let bytes: Vec<_> = fragments.iter().flat_map(|packet| packet[20..].to_vec()).collect();
    same(bytes.get(8..).unwrap_or_default(), &payload)?;
    lab.finish()
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

fn too_large(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let result = lab.send_datagram(lab.server(), client(setup), &vec![0; 65_508]);
    let kind = result.map_err(|error| error.kind());
    check(kind == Err(ErrorKind::InvalidInput), || format!("the result is {kind:?}"))?;
    answered(&lab, lab.server(), client(setup), b"small")?;
    lab.finish()
}

fn too_large_ipv6(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let result = lab.send_datagram(lab.server(), client(setup), &vec![0; usize::from(setup.mtu) - 47]);
    let kind = result.map_err(|error| error.kind());
    check(matches!(kind, Ok(()) | Err(ErrorKind::InvalidInput)), || format!("the result is {kind:?}"))?;
    if kind.is_ok() {
        let mut fragments = 0;
        while let Some(packet) = lab.wire().other(Instant::now() + patient(Duration::from_millis(50)))? {
            fragments += usize::from(packet[6] == 44);
        }
        check(fragments >= 2, || format!("{fragments} fragments came"))?;
    }
    answered(&lab, lab.server(), client(setup), b"small")?;
    lab.finish()
}

fn flood(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let packet = packets::datagram(client(setup), lab.server(), &[7; 1000]);
    for _ in 0..3000 {
        lab.send_packet(&packet)?;
    }
    lab.still_serves()?;
    // A task of each shard still brings its datagrams to the queue of all, which drops them.
    std::thread::sleep(patient(Duration::from_millis(50)));
    let mut count = 0;
    while lab.received(Duration::from_millis(50))?.is_some() {
        count += 1;
    }
    check(count <= netstacks::MAX_WAITING_DATAGRAMS + 1, || format!("{count} datagrams waited"))?;
    arrives(&lab, client(setup), lab.server(), b"there is room again")?;
    lab.finish()
}
