//! ICMP errors about connections and datagrams, true or forged.

pub(super) mod replies;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("icmp-hard-wrong-number", "ours", "RFC 5927, 4.1 and 5.2", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        forged(lab, &client)?;
        check!(served.is_quiet(ms(50)), Hang, "the stream has ended")?;
        exchange(&mut client, &mut served)
    })
    .about("ICMP \"protocol unreachable\" and \"port unreachable\" about segments that are not in flight")
    .expects("They are forged, and ignored: the connection stays open.")
    .over_ipv6(
        "icmp-hard-wrong-number-ipv6",
        "ours",
        "The same over IPv6, and \"unrecognized next header\"",
        "RFC 5927, 4.1 and 5.2; RFC 9293, 3.9.2.2",
    ),
    Case::new("icmp-handshake-wrong-number", "ours", "RFC 5927, 4.1 and 5.2", |lab| {
        let (client, _) = lab.half_open()?;
        forged(lab, &client)?;
        thread::sleep(ms(20));
        client.ack()?;
        lab.serves(client)
    })
    .about("The same during the handshake, about a SYN+ACK with another number")
    .expects("They are ignored, and the connection opens."),
    Case::new("icmp-soft-errors", "MUST-56", "RFC 9293, 3.9.2.2; RFC 5461, 2.2", |lab| {
        let kinds: &[[u8; 2]] = if lab.ipv6 {
            &[[1, 0], [1, 3], [3, 0], [3, 1], [4, 0], [4, 2]]
        } else {
            &[[3, 0], [3, 1], [3, 5], [11, 0], [11, 1], [12, 0]]
        };
        let (mut client, mut served) = lab.connect()?;
        for kind in kinds {
            served.write(b"in flight")?;
            let data = client.expect_data()?;
            lab.send_packet(&packets::error(kind[0], kind[1], 0, &client.stack_packet()))?;
            client.ack_to(data.end())?;
            named(exchange(&mut client, &mut served), || format!("after type and code {kind:?}"))?;
        }
        Ok(())
    })
    .about(
        "ICMP \"network unreachable\", \"source route failed\", \"time exceeded\" and \"parameter problem\" about \
             a segment in flight",
    )
    .expects("Soft errors: the connection stays open.")
    .over_ipv6(
        "icmp-soft-errors-ipv6",
        "MUST-56",
        "ICMPv6 \"no route\", \"address unreachable\", \"time exceeded\" and \"parameter problem\" about \
         a segment in flight",
        "RFC 9293, 3.9.2.2",
    ),
    Case::new("icmp-source-quench", "MUST-55", "RFC 6633, 4; RFC 9293, 3.9.2.2", |lab| {
        let (mut client, served) = lab.connect()?;
        let about = client.stack_packet();
        deliver_with(&mut client, served, &pattern(130, 100_000), SOON, |client, segment| {
            // A copy of the header of this segment.
            let about = packets::with_tcp_bytes(about.clone(), 4, &segment.seq.to_be_bytes());
            client.send_packet(&packets::error(4, 0, 0, &about))?;
            Ok(false)
        })?;
        lab.send_packet(&packets::error(4, 0, 0, &about))
    })
    .about("ICMP \"source quench\" for every segment of 100 KB")
    .expects("It is ignored: the data arrives as fast as without it."),
    Case::new("icmp-too-big-wrong-number", "ours", "RFC 5927, 4.1 and 7.2", |lab| {
        let mtu = if lab.ipv6 { 1280 } else { 600 };
        stays_large(lab, |lab, client| lab.flood(not_in_flight(client).map(|about| packets::too_big(mtu, &about))))
    })
    .about("ICMP \"fragmentation needed\" with an MTU of 600 about segments that are not in flight")
    .expects("It is forged, and ignored: the packets stay large.")
    .over_ipv6(
        "icmp-too-big-wrong-number-ipv6",
        "SHOULD RFC 8201, 4: validation",
        "The same over IPv6, with an MTU of 1280",
        "RFC 8201, 4; RFC 5927, 4.1 and 7.2",
    ),
    Case::new("icmp-too-big-below-minimum", "MUST RFC 8201, 4: below the minimum", "RFC 8201, 4", |lab| {
        let (mut client, served) = lab.connect_and_exchange()?;
        lab.flood([0, 68, 600, 1279].map(|mtu| packets::too_big(mtu, &client.stack_packet())))?;
        thread::sleep(ms(20));
        let packets = packets_of(&mut client, served)?;
        check!(packets.len() <= 40, Speed, "{} packets came for 30,000 bytes", packets.len())?;
        let is_plain = |packet: &Segment| packet.packet_len == 60 + packet.options.len() + packet.payload.len();
        check!(packets.iter().all(is_plain), "a packet has an extension header")
    })
    .about("ICMPv6 \"packet too big\" with MTUs of 0, 68, 600 and 1279")
    .expects("They are dropped: no packet becomes shorter than 1280 bytes by them, and none has a fragment header.")
    .ipv6(),
    Case::new("icmp-too-big-larger", "MUST RFC 1191, 3: no increase", "RFC 1191, 3; RFC 8201, 4", |lab| {
        let larger = lab.mtu.saturating_add(7500);
        let (mut client, mut served) = lab.connect_with(&Offer { mss: Some(larger), ..Offer::default() })?;
        exchange(&mut client, &mut served)?;
        let mtus = [lab.mtu.saturating_add(1), larger, u16::MAX];
        lab.flood(mtus.map(|mtu| packets::too_big(mtu.into(), &client.stack_packet())))?;
        thread::sleep(ms(20));
        let longest = longest(&packets_of(&mut client, served)?);
        check!(longest <= lab.mtu.into(), "a packet has {longest} bytes")
    })
    .about("ICMP \"fragmentation needed\" with MTUs of 1501, 9000 and 65,535")
    .expects("No packet becomes longer than the MTU of the link, and all data arrives.")
    .over_ipv6("icmp-too-big-larger-ipv6", "MUST RFC 8201, 4: no increase", "The same over IPv6", "RFC 8201, 4"),
    Case::new("icmp-wrong-checksum", "ours", "RFC 792", |lab| {
        stays_large(lab, |lab, client| {
            let mut error = packets::too_big(600, &client.stack_packet());
            error[22] ^= 0x10;
            lab.send_packet(&error)
        })
    })
    .about("ICMP \"fragmentation needed\" with an MTU of 600 and a wrong checksum")
    .expects("It is dropped: the packets stay large."),
    Case::new("icmp-nonsense", "ours", "RFC 1122, 3.2.2", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        let (from, to) = (client.local.ip(), client.server.ip());
        let quote = [&[0; 4], &not_in_flight(&client)[0][..]].concat();
        for kind in 0..=u8::MAX {
            let messages = [0, 3, 4, 8, 24, 31, 32, 60].into_iter().flat_map(|len| {
                let right = packets::message(from, to, [kind, 0], &quote[..len]);
                let other = packets::message(from, to, [kind, 4], &quote[..len]);
                let wrong = packets::damaged(right.clone());
                [right, other, wrong]
            });
            lab.flood(messages)?;
            if kind % 32 == 31 {
                named(exchange(&mut client, &mut served), || format!("after type {kind}"))?;
            }
        }
        lab.still_serves()
    })
    .about("ICMP messages of every type, cut after 0 to 60 bytes, with right and wrong checksums")
    .expects("The stack does not crash or hang: the connection goes on, and new ones open.")
    .over_ipv6("icmp-nonsense-ipv6", "ours", "The same over IPv6", "RFC 4443, 2.4"),
];

/// Types and codes of errors that may end a connection (RFC 9293, 3.9.2.2).
fn hard(ipv6: bool) -> &'static [[u8; 2]] {
    if ipv6 { &[[1, 1], [1, 4], [4, 1]] } else { &[[3, 2], [3, 3], [3, 9], [3, 13]] }
}

/// Returns segments of the stack that are not in flight.
fn not_in_flight(client: &Client) -> [Vec<u8>; 4] {
    let with_number = |ahead: u32| {
        let number = client.expected.wrapping_add(ahead).to_be_bytes();
        packets::with_tcp_bytes(client.stack_packet(), 4, &number)
    };
    [1 << 20, 1 << 30, 1 << 31, 0xfff0_0000].map(with_number)
}

/// Sends errors that may end a connection, about segments that are not in flight.
fn forged(lab: &Lab, client: &Client) -> Step {
    let about = not_in_flight(client);
    let errors = |[kind, code]: &[u8; 2]| about.clone().map(|about| packets::error(*kind, *code, 0, &about));
    lab.flood(hard(lab.ipv6).iter().flat_map(errors))
}

/// Returns the packets of 30,000 bytes from the server.
fn packets_of(client: &mut Client, served: Served) -> Step<Vec<Segment>> {
    let mut packets = Vec::new();
    let delivered = deliver_with(client, served, &pattern(131, 30_000), LATE, |_, segment| {
        packets.push(segment.clone());
        Ok(false)
    });
    // A busy machine does not take so many in time.
    check!(packets.len() <= 1000, Speed, "{} packets came for 30,000 bytes", packets.len())?;
    delivered?;
    Ok(packets)
}

fn longest(packets: &[Segment]) -> usize {
    packets.iter().map(|packet| packet.packet_len).max().unwrap_or_default()
}

/// Sends packets that must not make those of the stack shorter.
fn stays_large(lab: &mut Lab, tell: impl Fn(&Lab, &Client) -> Step) -> Step {
    applies!(lab.mtu > 1280, "no packet is longer than 1280 bytes")?;
    let (mut client, served) = lab.connect_and_exchange()?;
    tell(lab, &client)?;
    thread::sleep(ms(20));
    let longest = longest(&packets_of(&mut client, served)?);
    check!(longest > 1280, "the longest packet has {longest} bytes")
}
