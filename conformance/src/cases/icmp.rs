//! ICMP errors about connections and datagrams, true or forged.

pub(super) mod replies;

use std::time::Duration;

use super::hostile::{flood, named};
use super::segments::from_the_stack;
use crate::lab::exchange;
use crate::wire::Segment;
use crate::{Case, Client, LATE, Lab, Offer, SOON, Served, Setup, Step, Then, applies, check, packets, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("icmp-hard-wrong-number", hard_wrong_number, "RFC 5927, 4.1 and 5.2")
        .about("ICMP \"protocol unreachable\" and \"port unreachable\" about segments that are not in flight")
        .expects("They are forged, and ignored: the connection stays open.")
        .over_ipv6("icmp-hard-wrong-number-ipv6", "The same over IPv6, and \"unrecognized next header\"", "RFC 5927, 4.1 and 5.2; RFC 9293, 3.9.2.2"),
    Case::new("icmp-handshake-wrong-number", handshake_wrong_number, "RFC 5927, 4.1 and 5.2")
        .about("The same during the handshake, about a SYN+ACK with another number")
        .expects("They are ignored, and the connection opens."),
    Case::new("icmp-soft-errors", soft_errors, "RFC 9293, 3.9.2.2, MUST-56; RFC 5461, 2.2")
        .about(
            "ICMP \"network unreachable\", \"source route failed\", \"time exceeded\" and \"parameter problem\" about \
             a segment in flight",
        )
        .expects("Soft errors: the connection stays open.")
        .over_ipv6("icmp-soft-errors-ipv6", "ICMPv6 \"no route\", \"address unreachable\", \"time exceeded\" and \"parameter problem\" about a segment in flight", "RFC 9293, 3.9.2.2, MUST-56"),
    Case::new("icmp-source-quench", source_quench, "RFC 6633, 4; RFC 9293, 3.9.2.2, MUST-55")
        .about("ICMP \"source quench\" for every segment of 100 KB")
        .expects("It is ignored: the data arrives as fast as without it."),
    Case::new("icmp-too-big-wrong-number", too_big_wrong_number, "RFC 5927, 4.1 and 7.2")
        .about("ICMP \"fragmentation needed\" with an MTU of 600 about segments that are not in flight")
        .expects("It is forged, and ignored: the packets stay large.")
        .over_ipv6("icmp-too-big-wrong-number-ipv6", "The same over IPv6, with an MTU of 1280", "RFC 5927, 4.1 and 7.2"),
    Case::new("icmp-too-big-below-minimum", too_big_below_minimum, "RFC 8201, 4")
        .about("ICMPv6 \"packet too big\" with MTUs of 0, 68, 600 and 1279")
        .expects(
            "They are dropped: no packet becomes shorter than 1280 bytes by them, and none has a fragment header.",
        )
        .ipv6(),
    Case::new("icmp-too-big-larger", too_big_larger, "RFC 1191, 3; RFC 8201, 4")
        .about("ICMP \"fragmentation needed\" with MTUs of 1501, 9000 and 65,535")
        .expects("No packet becomes longer than the MTU of the link, and all data arrives.")
        .over_ipv6("icmp-too-big-larger-ipv6", "The same over IPv6", "RFC 8201, 4"),
    Case::new("icmp-wrong-checksum", wrong_checksum, "RFC 792")
        .about("ICMP \"fragmentation needed\" with an MTU of 600 and a wrong checksum")
        .expects("It is dropped: the packets stay large."),
    Case::new("icmp-nonsense", nonsense, "RFC 1122, 3.2.2")
        .about("ICMP messages of every type, cut after 0 to 60 bytes, with right and wrong checksums")
        .expects("The stack does not crash or hang: the connection goes on, and new ones open.")
        .over_ipv6("icmp-nonsense-ipv6", "The same over IPv6", "RFC 4443, 2.4"),
];

/// Types and codes of errors that may end a connection (RFC 9293, 3.9.2.2).
fn hard(ipv6: bool) -> &'static [[u8; 2]] {
    if ipv6 { &[[1, 1], [1, 4], [4, 1]] } else { &[[3, 2], [3, 3], [3, 9], [3, 13]] }
}

/// Returns segments of the stack that are not in flight.
fn not_in_flight(lab: &Lab, client: &Client) -> Vec<Vec<u8>> {
    let with_number = |ahead: u32| {
        let number = client.expected.wrapping_add(ahead).to_be_bytes();
        packets::with_tcp_bytes(from_the_stack(lab, client), 4, &number)
    };
    [1 << 20, 1 << 30, 1 << 31, 0xfff0_0000].map(with_number).into()
}

/// Sends ICMP errors with these types and codes about each packet.
fn tell(lab: &Lab, kinds: &[[u8; 2]], mtu: u32, about: &[Vec<u8>]) -> Step {
    for [kind, code] in kinds {
        about.iter().try_for_each(|about| lab.send_packet(&packets::error(*kind, *code, mtu, about)))?;
    }
    Ok(())
}

fn hard_wrong_number(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    tell(&lab, hard(setup.ipv6), 0, &not_in_flight(&lab, &client))?;
    check(served.is_quiet(Duration::from_millis(50)), || "the stream has ended".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn handshake_wrong_number(setup: &Setup) -> Step {
    let lab = setup.start()?;
    let (client, _) = lab.half_open()?;
    tell(&lab, hard(setup.ipv6), 0, &not_in_flight(&lab, &client))?;
    std::thread::sleep(Duration::from_millis(20));
    client.ack()?;
    lab.finish_opened(client)
}

fn soft_errors(setup: &Setup) -> Step {
    let kinds: &[[u8; 2]] = if setup.ipv6 {
        &[[1, 0], [1, 3], [3, 0], [3, 1], [4, 0], [4, 2]]
    } else {
        &[[3, 0], [3, 1], [3, 5], [11, 0], [11, 1], [12, 0]]
    };
    let (lab, mut client, mut served) = setup.connect()?;
    for kind in kinds {
        served.write(b"in flight")?;
        let data = client.expect("data", |segment| !segment.payload.is_empty())?;
        tell(&lab, &[*kind], 0, &[from_the_stack(&lab, &client)])?;
        client.expected = data.end();
        client.ack()?;
        named(exchange(&mut client, &mut served), || format!("after type and code {kind:?}"))?;
    }
    lab.finish()
}

fn source_quench(setup: &Setup) -> Step {
    const LEN: usize = 100_000;
    let (lab, mut client, served) = setup.connect()?;
    let sending = served.send(pattern(130, LEN), Then::Keep);
    let about = from_the_stack(&lab, &client);
    let (quench, wire) = (packets::error(4, 0, 0, &about), lab.messenger());
    let mut result = Ok(());
    let bytes = client.receive_with(LEN, SOON, |segment| {
        // A copy of the header of this segment.
        let number = segment.seq.to_be_bytes();
        let quench = packets::error(4, 0, 0, &packets::with_tcp_bytes(about.clone(), 4, &number));
        result = wire.borrow_mut().send(&quench);
        false
    })?;
    result?;
    lab.send_packet(&quench)?;
    same(&bytes, &pattern(130, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

/// Returns the packets of 30,000 bytes from the server.
fn packets_of(client: &mut Client, served: Served) -> Step<Vec<Segment>> {
    const LEN: usize = 30_000;
    let sending = served.send(pattern(131, LEN), Then::Keep);
    let mut packets = Vec::new();
    let received = client.receive_with(LEN, LATE, |segment| {
        packets.push(segment.clone());
        false
    });
    // A busy machine does not take so many in time.
    check(packets.len() <= 1000, || format!("{} packets came for 30,000 bytes", packets.len()))?;
    same(&received?, &pattern(131, LEN))?;
    drop(sending.finish()?);
    Ok(packets)
}

fn longest(packets: &[Segment]) -> usize {
    packets.iter().map(|packet| packet.packet_len).max().unwrap_or_default()
}

/// Sends packets that must not make those of the stack shorter.
fn stays_large(setup: &Setup, tell: impl Fn(&Lab, &Client) -> Step) -> Step {
    applies(setup.mtu > 1280, || "no packet is longer than 1280 bytes".to_owned())?;
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    tell(&lab, &client)?;
    std::thread::sleep(Duration::from_millis(20));
    let longest = longest(&packets_of(&mut client, served)?);
    check(longest > 1280, || format!("the longest packet has {longest} bytes"))?;
    lab.finish()
}

fn too_big_wrong_number(setup: &Setup) -> Step {
    let (kind, mtu) = if setup.ipv6 { ([2, 0], 1280) } else { ([3, 4], 600) };
    stays_large(setup, |lab, client| tell(lab, &[kind], mtu, &not_in_flight(lab, client)))
}

fn wrong_checksum(setup: &Setup) -> Step {
    stays_large(setup, |lab, client| {
        let mut error = packets::error(3, 4, 600, &from_the_stack(lab, client));
        error[22] ^= 0x10;
        lab.send_packet(&error)
    })
}

fn too_big_below_minimum(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    for mtu in [0, 68, 600, 1279] {
        tell(&lab, &[[2, 0]], mtu, &[from_the_stack(&lab, &client)])?;
    }
    std::thread::sleep(Duration::from_millis(20));
    let packets = packets_of(&mut client, served)?;
    check(packets.len() <= 40, || format!("{} packets came for 30,000 bytes", packets.len()))?;
    let is_plain = |packet: &Segment| packet.packet_len == 60 + packet.options.len() + packet.payload.len();
    check(packets.iter().all(is_plain), || "a packet has an extension header".to_owned())?;
    lab.finish()
}

fn too_big_larger(setup: &Setup) -> Step {
    let kind = if setup.ipv6 { [2, 0] } else { [3, 4] };
    let mut lab = setup.start()?;
    let larger = setup.mtu.saturating_add(7500);
    let (mut client, mut served) = lab.connect_with(&Offer { mss: Some(larger), ..Offer::default() })?;
    exchange(&mut client, &mut served)?;
    for mtu in [setup.mtu.saturating_add(1), larger, u16::MAX].map(u32::from) {
        tell(&lab, &[kind], mtu, &[from_the_stack(&lab, &client)])?;
    }
    std::thread::sleep(Duration::from_millis(20));
    let longest = longest(&packets_of(&mut client, served)?);
    check(longest <= setup.mtu.into(), || format!("a packet has {longest} bytes"))?;
    lab.finish()
}

fn nonsense(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    let (from, to) = (client.local.ip(), client.server.ip());
    let quote = [vec![0; 4], not_in_flight(&lab, &client).swap_remove(0)].concat();
    for kind in 0..=u8::MAX {
        let messages = [0, 3, 4, 8, 24, 31, 32, 60].into_iter().flat_map(|len| {
            let right = packets::message(from, to, [kind, 0], &quote[..len]);
            let other = packets::message(from, to, [kind, 4], &quote[..len]);
            let mut wrong = right.clone();
            wrong.iter_mut().rev().take(1).for_each(|last| *last ^= 1);
            [right, other, wrong]
        });
        flood(&lab, messages)?;
        if kind % 32 == 31 {
            named(exchange(&mut client, &mut served), || format!("after type {kind}"))?;
        }
    }
    lab.finish_serving()
}
