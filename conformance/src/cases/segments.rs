//! Segments that are out of order, damaged, unusual or forged.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};

use crate::client::MSS;
use crate::lab::exchange;
use crate::link::MTU;
use crate::{Case, Client, LATE, Lab, Offer, Out, SOON, Setup, Step, Stop, Then, check, packets, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("reordered", reordered).about(
        "Segments arrive in the reverse order",
        "RFC 9293, 3.10.7.4",
        "The server reads all bytes in order, at the latest when they are sent again.",
    ),
    Case::new("duplicated", duplicated).about(
        "Every segment arrives twice",
        "RFC 9293, 3.10.7.4",
        "The server reads each byte once.",
    ),
    Case::new("overlap", overlap).about(
        "Each segment repeats half of the one before it",
        "RFC 9293, 3.10.7.4",
        "The server reads each byte once.",
    ),
    Case::new("overlap-out-of-order", overlap_out_of_order).about(
        "Overlapping segments arrive out of order",
        "RFC 9293, 3.10.7.4",
        "The server reads each byte once, at the latest when all is sent again.",
    ),
    Case::new("super-packet", super_packet)
        .about(
            "The client's segments arrive joined into a super-packet",
            "RFC 9293, 3.10.7.4; virtio 1.2, 5.1.6",
            "The server reads all bytes.",
        )
        .offloading(),
    Case::new("super-packets-sent", super_packets_sent)
        .about(
            "The server writes 1 MB to a link that cuts super-packets",
            "virtio 1.2, 5.1.6",
            "The stack sends super-packets, and all data arrives.",
        )
        .offloading(),
    Case::new("wrong-tcp-checksum", wrong_tcp_checksum)
        .about(
            "A segment with a wrong checksum",
            "RFC 9293, 3.1",
            "It is dropped without an answer. The right one is delivered.",
        )
        .plain(),
    Case::new("wrong-ip-checksum", wrong_ip_checksum)
        .about(
            "A segment with a wrong checksum of the IPv4 header",
            "RFC 1122, 3.2.1.2",
            "It is dropped without an answer. The right one is delivered.",
        )
        .plain(),
    Case::new("number-wraps", number_wraps).about(
        "The client's sequence numbers pass 2³²",
        "RFC 9293, 3.4",
        "The server reads 30 KB around the end of the numbers.",
    ),
    Case::new("number-wraps-at-the-syn", number_wraps_at_the_syn).about(
        "The SYN has the last sequence number that there is",
        "RFC 9293, 3.4",
        "The SYN+ACK acknowledges 0, and the connection carries bytes.",
    ),
    Case::new("mss-announced", mss_announced).about(
        "The MSS of the stack's SYN+ACK",
        "RFC 9293, 3.7.1",
        "The MTU without an IPv4 and a TCP header: 1460.",
    ),
    Case::new("mss-announced-ipv6", mss_announced)
        .about("The same over IPv6", "RFC 8200, 8.3", "The MTU without an IPv6 and a TCP header: 1440.")
        .ipv6(),
    Case::new("mss-small", mss_small).about(
        "The client takes segments of 300 bytes",
        "RFC 9293, 3.7.1",
        "No segment has more.",
    ),
    Case::new("mss-missing", mss_missing).about(
        "The SYN has no MSS option",
        "RFC 9293, 3.7.1",
        "No segment has more than 536 bytes.",
    ),
    Case::new("mss-missing-ipv6", mss_missing)
        .about("The same over IPv6", "RFC 9293, 3.7.1", "No segment has more than 1220 bytes.")
        .ipv6(),
    Case::new("mss-large", mss_large).about(
        "The client takes segments of 9,000 bytes, and the MTU is 1500",
        "RFC 9293, 3.7.1; RFC 1122, 4.2.2.6",
        "No packet is longer than the MTU.",
    ),
    Case::new("mss-zero", mss_zero).about(
        "The SYN has an MSS of 0",
        "RFC 9293, 3.7.1",
        "The stack does not crash or hang: other connections work.",
    ),
    Case::new("options-unknown", options_unknown).about(
        "Unknown options in the SYN and in a data segment",
        "RFC 9293, 3.1, MUST-6",
        "They are skipped by their length fields, and the known ones are used.",
    ),
    Case::new("options-malformed", options_malformed).about(
        "Options with a length of 0, 1, and beyond the header",
        "RFC 9293, 3.1, MUST-7",
        "The stack does not crash or hang: other connections work.",
    ),
    Case::new("header-length-wrong", header_length_wrong).about(
        "TCP headers whose length is too small, or more than the packet has",
        "RFC 9293, 3.1",
        "They are dropped, and other segments are delivered.",
    ),
    Case::new("keep-alive", keep_alive).about(
        "Keep-alive probes, without data and with one old byte",
        "RFC 9293, 3.8.4",
        "Each is answered with an ACK, and the server reads nothing.",
    ),
    Case::new("old-segment", old_segment).about(
        "A segment comes again, as if its ACK was lost",
        "RFC 9293, 3.10.7.4",
        "It is answered with an ACK of what is expected, and the server reads nothing of it.",
    ),
    Case::new("no-ack-flag", no_ack_flag).about(
        "A data segment without the ACK flag",
        "RFC 9293, 3.10.7.4",
        "It is dropped.",
    ),
    Case::new("urgent", urgent).about(
        "A segment with urgent data",
        "RFC 9293, 3.8.5",
        "The bytes are part of the stream.",
    ),
    Case::new("blind-rst", blind_rst).about(
        "A RST within the window whose number is not the expected one",
        "RFC 5961, 3.2; RFC 9293, 3.10.7.4",
        "A challenge ACK. The connection stays open.",
    ),
    Case::new("rst-outside-window", rst_outside_window).about(
        "A RST outside the window",
        "RFC 9293, 3.10.7.4",
        "It is dropped. The connection stays open.",
    ),
    Case::new("blind-syn", blind_syn).about(
        "A SYN within the window of an open connection",
        "RFC 5961, 4.2; RFC 9293, 3.10.7.4",
        "A challenge ACK. The connection stays open.",
    ),
    Case::new("ack-of-the-future", ack_of_the_future).about(
        "A data segment that acknowledges what was never sent",
        "RFC 9293, 3.10.7.4; RFC 5961, 5.2",
        "It is dropped and answered with an ACK.",
    ),
    Case::new("icmp-unreachable", icmp_unreachable).about(
        "ICMP \"host unreachable\" for a connection",
        "RFC 9293, 3.9.2.2; RFC 5461",
        "A soft error: the connection stays open.",
    ),
    Case::new("icmp-too-big", icmp_too_big).about(
        "ICMP \"fragmentation needed\" with an MTU of 600",
        "RFC 1191, 3 and 6; RFC 9293, 3.7.2",
        "The data comes again in smaller packets, or in packets that routers may fragment.",
    ),
    Case::new("icmp-too-big-ipv6", icmp_too_big)
        .about(
            "ICMPv6 \"packet too big\" with an MTU of 1280",
            "RFC 8201, 4; RFC 9293, 3.7.2",
            "The data comes again in packets of at most 1280 bytes.",
        )
        .ipv6(),
    Case::new("ipv4-options", ipv4_options).about(
        "IPv4 headers with options",
        "RFC 1122, 3.2.1.8",
        "The options are ignored; the connection opens and carries bytes.",
    ),
    Case::new("ipv4-fragments", ipv4_fragments).about(
        "A segment arrives in three IPv4 fragments",
        "RFC 1122, 3.3.2",
        "It is put together and delivered.",
    ),
    Case::new("ipv6-fragments", ipv6_fragments)
        .about("A segment arrives in three IPv6 fragments", "RFC 8200, 4.5", "It is put together and delivered.")
        .ipv6(),
    Case::new("ipv6-atomic-fragments", ipv6_atomic_fragments)
        .about(
            "Every segment has a fragment header, but is not fragmented",
            "RFC 6946, 4",
            "Each is taken as if it had no such header.",
        )
        .ipv6(),
    Case::new("ipv6-hop-by-hop", ipv6_hop_by_hop)
        .about("Every segment is behind hop-by-hop options", "RFC 8200, 4.3", "The connection opens and carries bytes.")
        .ipv6(),
    Case::new("ipv6-destination-options", ipv6_destination_options)
        .about(
            "Every segment is behind destination options",
            "RFC 8200, 4.6",
            "The connection opens and carries bytes.",
        )
        .ipv6(),
];

pub(super) fn part<'a>(client: &Client, bytes: &'a [u8], from: usize, to: usize) -> Out<'a> {
    let out = client.out();
    Out { flags: ACK | PSH, seq: out.seq.wrapping_add(from as u32), payload: &bytes[from..to], ..out }
}

/// Retransmits as a sender without SACK, always from the last acknowledged byte, until all is acknowledged. Checks that
/// the server reads all bytes.
pub(super) fn repair(client: &mut Client, served: &mut crate::Served, bytes: &[u8]) -> Step {
    let mut done = 0;
    for _ in 0..=bytes.len() / 500 {
        while let Some(segment) = client.next_segment(Duration::from_millis(20))? {
            done = segment.ack.wrapping_sub(client.next) as usize;
        }
        check(done <= bytes.len(), || "more is acknowledged than was sent".to_owned())?;
        if done == bytes.len() {
            break;
        }
        client.put(part(client, bytes, done, (done + 500).min(bytes.len())))?;
    }
    client.next = client.next.wrapping_add(bytes.len() as u32);
    same(&served.read(bytes.len())?, bytes)?;
    exchange(client, served)
}

fn reordered(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(30, 5000);
    for number in (0..10).rev() {
        client.put(part(&client, &bytes, number * 500, number * 500 + 500))?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn duplicated(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(31, 5000);
    for number in 0..10 {
        for _ in 0..2 {
            client.put(part(&client, &bytes, number * 500, number * 500 + 500))?;
        }
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn overlap(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(32, 5000);
    for number in 0..19 {
        client.put(part(&client, &bytes, number * 250, number * 250 + 500))?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn overlap_out_of_order(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(33, 3000);
    for (from, to) in [(1000, 1500), (500, 1200), (1400, 2100), (2000, 3000), (700, 2050), (0, 600)] {
        client.put(part(&client, &bytes, from, to))?;
    }
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn super_packet(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(34, 40_000);
    let segment = |number: usize| {
        // A PSH ends a super-packet.
        client.packet(Out { flags: ACK, ..part(&client, &bytes, number * 1000, number * 1000 + 1000) })
    };
    let segments: Vec<_> = (0..40).map(segment).collect();
    lab.wire().send_joined(&segments)?;
    repair(&mut client, &mut served, &bytes)?;
    lab.finish()
}

fn super_packets_sent(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect()?;
    let sending = served.send(pattern(35, 1 << 20), Then::Keep);
    same(&client.receive(1 << 20, LATE)?, &pattern(35, 1 << 20))?;
    drop(sending.finish()?);
    let count = lab.wire().super_packets;
    check(count > 10, || format!("{count} super-packets came"))?;
    lab.finish()
}

/// Sends a segment with a damaged byte at this offset, which must be dropped silently, and then an intact one.
fn damaged(setup: &Setup, at: usize) -> Step {
    let mut lab = setup.start()?;
    if lab.wire().capabilities().checksum.rx {
        return Err(Stop::NotApplicable("the link vouches for checksums, so that stacks need not verify them".into()));
    }
    let (mut client, mut served) = lab.connect()?;
    let mut packet = client.packet(part(&client, b"damaged", 0, 7));
    packet[at] ^= 0x10;
    client.send_packet(&packet)?;
    client.expect_none(Duration::from_millis(100), "an answer", |_| true)?;
    check(served.is_quiet(Duration::from_millis(20)), || "it was delivered".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn wrong_tcp_checksum(setup: &Setup) -> Step {
    // A byte of the payload.
    damaged(setup, 42)
}

fn wrong_ip_checksum(setup: &Setup) -> Step {
    // The time to live, which the TCP checksum does not cover.
    damaged(setup, 8)
}

fn number_wraps(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.begin_at(u32::MAX - 10_000);
    client.open(&Offer::default())?;
    let mut served = lab.accept()?;
    client.write(&pattern(36, 30_000))?;
    same(&served.read(30_000)?, &pattern(36, 30_000))?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn number_wraps_at_the_syn(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.begin_at(u32::MAX);
    client.open(&Offer::default())?;
    let mut served = lab.accept()?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn mss_announced(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer::default())?;
    let expected = MTU - if client.server.is_ipv6() { 60 } else { 40 };
    match syn_ack.option(MSS) {
        Some([high, low]) => {
            let mss = u16::from_be_bytes([*high, *low]);
            check(mss == expected, || format!("the MSS is {mss}"))?;
        }
        _ => check(false, || "the SYN+ACK has no MSS".to_owned())?,
    }
    drop(lab.accept()?);
    lab.finish()
}

/// Sends 50 KB from the server to a client with this MSS. No payload may be longer than `most`.
fn segments_of(setup: &Setup, mss: Option<u16>, most: usize) -> Step {
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect_with(&Offer { mss, ..Offer::default() })?;
    let sending = served.send(pattern(37, 50_000), Then::Keep);
    let mut longest = 0;
    let bytes = client.receive_with(50_000, LATE, |segment| {
        longest = longest.max(segment.payload.len());
        false
    })?;
    same(&bytes, &pattern(37, 50_000))?;
    check(longest <= most, || format!("a segment had {longest} bytes"))?;
    drop(sending.finish()?);
    lab.finish()
}

fn mss_small(setup: &Setup) -> Step {
    segments_of(setup, Some(300), 300)
}

fn mss_missing(setup: &Setup) -> Step {
    segments_of(setup, None, if setup.ipv6 { 1220 } else { 536 })
}

fn mss_large(setup: &Setup) -> Step {
    segments_of(setup, Some(9000), usize::from(MTU) - 40)
}

fn mss_zero(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    client.syn(&Offer { mss: Some(0), ..Offer::default() })?;
    if client.syn_ack(SOON).is_ok() {
        client.ack()?;
        if let Some(served) = lab.accept_within(SOON)? {
            let sending = served.send(pattern(38, 500), Then::Keep);
            let _may_fail = client.receive(500, SOON);
            drop(sending);
        }
    }
    lab.still_serves()?;
    lab.finish()
}

fn options_unknown(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    // An experimental option and one of RFC 7413 around an MSS of 300.
    let extra = vec![253, 6, 1, 2, 3, 4, MSS, 4, 1, 44, 34, 2];
    let (mut client, mut served) = lab.connect_with(&Offer { mss: None, extra, ..Offer::default() })?;
    served.write(&pattern(42, 2000))?;
    let bytes = client.receive_with(2000, SOON, |segment| segment.payload.len() > 300)?;
    same(&bytes, &pattern(42, 2000))?;
    let options = [254, 8, 0, 1, 2, 3, 4, 5, 1, 1, 1, 0];
    client.put(Out { options: &options, ..part(&client, b"data", 0, 4) })?;
    client.next = client.next.wrapping_add(4);
    same(&served.read(4)?, b"data")?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn options_malformed(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let malformed: [[u8; 4]; 6] =
        [[2, 0, 5, 0xb4], [2, 1, 5, 0xb4], [2, 40, 5, 0xb4], [1, 1, 1, 2], [253, 0, 0, 0], [3, 2, 3, 1]];
    for options in malformed {
        let client = lab.client();
        client.put(Out { flags: SYN, ack: 0, options: &options, ..client.out() })?;
    }
    let (mut client, mut served) = lab.connect()?;
    for options in malformed {
        client.put(Out { options: &options, ..client.out() })?;
    }
    exchange(&mut client, &mut served)?;
    lab.still_serves()?;
    lab.finish()
}

fn header_length_wrong(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    for words in [0, 1, 4, 15] {
        let packet = client.packet(part(&client, b"data", 0, 4));
        client.send_packet(&packets::with_tcp_bytes(packet, 12, &[words << 4]))?;
    }
    check(served.is_quiet(Duration::from_millis(50)), || "one of them was delivered".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn keep_alive(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    exchange(&mut client, &mut served)?;
    for payload in [&b""[..], b"\0"] {
        client.forget()?;
        client.put(Out { seq: client.next.wrapping_sub(1), payload, ..client.out() })?;
        client.acked(SOON)?;
    }
    check(served.is_quiet(Duration::from_millis(50)), || "the server read something".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn old_segment(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    exchange(&mut client, &mut served)?;
    client.forget()?;
    let out = client.out();
    client.put(Out { flags: ACK | PSH, seq: out.seq.wrapping_sub(4), payload: b"ping", ..out })?;
    client.acked(SOON)?;
    check(served.is_quiet(Duration::from_millis(50)), || "the server read it again".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn no_ack_flag(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    client.put(Out { flags: PSH, ..part(&client, b"no ACK", 0, 6) })?;
    check(served.is_quiet(Duration::from_millis(100)), || "it was delivered".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn urgent(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    client.put(Out { flags: ACK | PSH | URG, ..part(&client, b"urgent", 0, 6) })?;
    client.next = client.next.wrapping_add(6);
    client.data(b" and not")?;
    same(&served.read(14)?, b"urgent and not")?;
    lab.finish()
}

/// Sends a forged segment. Checks that a challenge ACK comes if `is_challenged`, and that the connection stays open.
fn forged(setup: &Setup, forge: impl FnOnce(&Client) -> Out<'static>, is_challenged: bool) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    exchange(&mut client, &mut served)?;
    client.forget()?;
    let out = forge(&client);
    client.put(out)?;
    if is_challenged {
        let (next, expected) = (client.next, client.expected);
        client.expect("challenge ACK", |segment| {
            segment.flags & (ACK | RST | SYN | FIN) == ACK && segment.ack == next && segment.seq == expected
        })?;
    }
    client.expect_none(Duration::from_millis(50), "a RST", |segment| segment.has(RST))?;
    check(served.is_quiet(Duration::from_millis(20)), || "the server read of it".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn blind_rst(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: RST, seq: client.next.wrapping_add(100), ..client.out() }, true)
}

fn rst_outside_window(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: RST, seq: client.next.wrapping_sub(100_000), ..client.out() }, false)
}

fn blind_syn(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: SYN, seq: client.next.wrapping_add(100), ack: 0, ..client.out() }, true)
}

fn ack_of_the_future(setup: &Setup) -> Step {
    let future = |client: &Client| Out {
        flags: ACK | PSH,
        ack: client.expected.wrapping_add(100_000),
        payload: b"forged",
        ..client.out()
    };
    forged(setup, future, true)
}

fn icmp_unreachable(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    exchange(&mut client, &mut served)?;
    lab.send_packet(&packets::error(3, 1, 0, &from_the_stack(&lab, &client)))?;
    std::thread::sleep(Duration::from_millis(50));
    exchange(&mut client, &mut served)?;
    lab.finish()
}

/// Returns a packet as the stack would send it next, for an ICMP error to quote.
pub(super) fn from_the_stack(lab: &Lab, client: &Client) -> Vec<u8> {
    let reversed = lab.client_from(client.server, client.local);
    reversed.packet(Out { seq: client.expected, ack: client.next, payload: &[0; 1400], ..client.out() })
}

fn icmp_too_big(setup: &Setup) -> Step {
    const LEN: usize = 30_000;
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect()?;
    let sending = served.send(pattern(39, LEN), Then::Keep);
    let mtu: usize = if setup.ipv6 { 1280 } else { 600 };
    let mut is_told = false;
    let about = from_the_stack(&lab, &client);
    let wire = lab.messenger();
    let bytes = client.receive_with(LEN, LATE, |segment| {
        let is_lost = segment.packet_len > mtu && segment.dont_fragment;
        if is_lost && !is_told {
            let [kind, code] = if setup.ipv6 { [2, 0] } else { [3, 4] };
            is_told = wire.borrow_mut().send(&packets::error(kind, code, mtu as u32, &about)).is_ok();
        }
        is_lost
    })?;
    same(&bytes, &pattern(39, LEN))?;
    drop(sending.finish()?);
    lab.finish()
}

/// Exchanges bytes while `wrap` changes each packet of the client.
fn wrapped(setup: &Setup, wrap: impl Fn(&[u8]) -> Vec<u8>) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let options = [2, 4, 5, 0xa0];
    let syn = client.packet(Out { flags: SYN, ack: 0, options: &options, ..client.out() });
    client.send_packet(&wrap(&syn))?;
    client.next = client.isn.wrapping_add(1);
    client.syn_ack(SOON)?;
    client.send_packet(&wrap(&client.packet(client.out())))?;
    let mut served = lab.accept()?;
    let request = pattern(40, 1000);
    client.send_packet(&wrap(&client.packet(part(&client, &request, 0, 1000))))?;
    client.next = client.next.wrapping_add(1000);
    same(&served.read(1000)?, &request)?;
    served.write(b"pong")?;
    let data = client.expect("data", |segment| segment.payload == b"pong")?;
    client.expected = data.end();
    client.send_packet(&wrap(&client.packet(client.out())))?;
    lab.finish()
}

fn ipv4_options(setup: &Setup) -> Step {
    wrapped(setup, packets::with_ip_options)
}

fn ipv6_hop_by_hop(setup: &Setup) -> Step {
    // A PadN option with four bytes of padding.
    wrapped(setup, |packet| packets::with_extension(packet, 0, &[0, 0, 1, 4, 0, 0, 0, 0]))
}

fn ipv6_destination_options(setup: &Setup) -> Step {
    wrapped(setup, |packet| packets::with_extension(packet, 60, &[0, 0, 1, 4, 0, 0, 0, 0]))
}

fn ipv6_atomic_fragments(setup: &Setup) -> Step {
    wrapped(setup, |packet| packets::with_extension(packet, 44, &[0, 0, 0, 0, 0, 0, 0, 9]))
}

/// Checks that a segment is delivered if it arrives in the fragments that `cut` makes.
fn fragmented(setup: &Setup, cut: fn(&[u8], usize) -> Vec<Vec<u8>>) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(41, 1000);
    for fragment in &cut(&client.packet(part(&client, &bytes, 0, 1000)), 400) {
        client.send_packet(fragment)?;
    }
    client.next = client.next.wrapping_add(1000);
    same(&served.read(1000)?, &bytes)?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn ipv4_fragments(setup: &Setup) -> Step {
    fragmented(setup, packets::fragments_v4)
}

fn ipv6_fragments(setup: &Setup) -> Step {
    fragmented(setup, packets::fragments_v6)
}
