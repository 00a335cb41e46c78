//! Segments that are out of order, damaged, unusual or forged.

mod forged;
mod options;
mod wrapped;

use std::time::Duration;

use platform::packet::flags::{ACK, PSH, URG};

pub(super) use self::forged::from_the_stack;
use self::forged::{
    ack_of_the_future, blind_fin, blind_rst, blind_syn, blind_syn_ack, icmp_too_big, icmp_unreachable,
    rst_outside_window,
};
pub(super) use self::options::deliver_up_to;
use self::options::{
    header_length_wrong, mss_announced, mss_large, mss_missing, mss_small, mss_zero, options_malformed, options_unknown,
};
pub(super) use self::wrapped::{exchange_wrapped, wrapped};
use self::wrapped::{
    ipv4_fragments, ipv4_options, ipv6_atomic_fragments, ipv6_destination_options, ipv6_fragments, ipv6_hop_by_hop,
};
use crate::lab::{deliver, exchange};
use crate::{Case, Client, LATE, Offer, Out, SOON, Setup, Step, check, pattern, same};

pub(super) const CASES: &[Case] = &[
    Case::new("reordered", reordered, "RFC 9293, 3.10.7.4")
        .about("Segments arrive in the reverse order")
        .expects("The server reads all bytes in order, at the latest when they are sent again."),
    Case::new("duplicated", duplicated, "RFC 9293, 3.10.7.4")
        .about("Every segment arrives twice")
        .expects("The server reads each byte once."),
    Case::new("overlap", overlap, "RFC 9293, 3.10.7.4")
        .about("Each segment repeats half of the one before it")
        .expects("The server reads each byte once."),
    Case::new("overlap-out-of-order", overlap_out_of_order, "RFC 9293, 3.10.7.4")
        .about("Overlapping segments arrive out of order")
        .expects("The server reads each byte once, at the latest when all is sent again."),
    Case::new("super-packet", super_packet, "RFC 9293, 3.10.7.4; virtio 1.2, 5.1.6")
        .about("The client's segments arrive joined into a super-packet")
        .expects("The server reads all bytes.")
        .offloading(),
    Case::new("super-packets-sent", super_packets_sent, "virtio 1.2, 5.1.6")
        .about("The server writes 1 MB to a link that cuts super-packets")
        .expects("The stack sends super-packets, and all data arrives.")
        .offloading(),
    Case::new("wrong-tcp-checksum", wrong_tcp_checksum, "RFC 9293, 3.1")
        .about("A segment with a wrong checksum")
        .expects("It is dropped without an answer. The right one is delivered.")
        .plain(),
    Case::new("wrong-ip-checksum", wrong_ip_checksum, "RFC 1122, 3.2.1.2")
        .about("A segment with a wrong checksum of the IPv4 header")
        .expects("It is dropped without an answer. The right one is delivered.")
        .plain(),
    Case::new("number-wraps", number_wraps, "RFC 9293, 3.4")
        .about("The client's sequence numbers pass 2³²")
        .expects("The server reads 30 KB around the end of the numbers."),
    Case::new("number-wraps-at-the-syn", number_wraps_at_the_syn, "RFC 9293, 3.4")
        .about("The SYN has the last sequence number that there is")
        .expects("The SYN+ACK acknowledges 0, and the connection carries bytes."),
    Case::new("mss-announced", mss_announced, "RFC 9293, 3.7.1")
        .about("The MSS of the stack's SYN+ACK")
        .expects("The MTU without an IPv4 and a TCP header: 1460 of 1500."),
    Case::new("mss-announced-ipv6", mss_announced, "RFC 8200, 8.3")
        .about("The same over IPv6")
        .expects("The MTU without an IPv6 and a TCP header: 1440 of 1500.")
        .ipv6(),
    Case::new("mss-small", mss_small, "RFC 9293, 3.7.1")
        .about("The client takes segments of 300 bytes")
        .expects("No segment has more."),
    Case::new("mss-missing", mss_missing, "RFC 9293, 3.7.1")
        .about("The SYN has no MSS option")
        .expects("No segment has more than 536 bytes."),
    Case::new("mss-missing-ipv6", mss_missing, "RFC 9293, 3.7.1")
        .about("The same over IPv6")
        .expects("No segment has more than 1220 bytes.")
        .ipv6(),
    Case::new("mss-large", mss_large, "RFC 9293, 3.7.1; RFC 1122, 4.2.2.6")
        .about("The client takes segments of 7,500 bytes more than the MTU")
        .expects("No packet is longer than the MTU."),
    Case::new("mss-zero", mss_zero, "RFC 9293, 3.7.1")
        .about("The SYN has an MSS of 0")
        .expects("The stack does not crash or hang: other connections work."),
    Case::new("options-unknown", options_unknown, "RFC 9293, 3.1, MUST-6")
        .about("Unknown options in the SYN and in a data segment")
        .expects("They are skipped by their length fields, and the known ones are used."),
    Case::new("options-malformed", options_malformed, "RFC 9293, 3.1, MUST-7")
        .about("Options with a length of 0, 1, and beyond the header")
        .expects("The stack does not crash or hang: other connections work."),
    Case::new("header-length-wrong", header_length_wrong, "RFC 9293, 3.1")
        .about("TCP headers whose length is too small, or more than the packet has")
        .expects("They are dropped, and other segments are delivered."),
    Case::new("keep-alive", keep_alive, "RFC 9293, 3.8.4")
        .about("Keep-alive probes, without data and with one old byte")
        .expects("Each is answered with an ACK, and the server reads nothing."),
    Case::new("old-segment", old_segment, "RFC 9293, 3.10.7.4")
        .about("A segment comes again, as if its ACK was lost")
        .expects("It is answered with an ACK of what is expected, and the server reads nothing of it."),
    Case::new("no-ack-flag", no_ack_flag, "RFC 9293, 3.10.7.4")
        .about("A data segment without the ACK flag")
        .expects("It is dropped."),
    Case::new("urgent", urgent, "RFC 9293, 3.8.5")
        .about("A segment with urgent data")
        .expects("The bytes are part of the stream."),
    Case::new("blind-rst", blind_rst, "RFC 5961, 3.2; RFC 9293, 3.10.7.4")
        .about("A RST within the window whose number is not the expected one")
        .expects("A challenge ACK. The connection stays open."),
    Case::new("rst-outside-window", rst_outside_window, "RFC 9293, 3.10.7.4")
        .about("A RST outside the window")
        .expects("It is dropped. The connection stays open."),
    Case::new("blind-syn", blind_syn, "RFC 5961, 4.2; RFC 9293, 3.10.7.4")
        .about("A SYN within the window of an open connection")
        .expects("A challenge ACK. The connection stays open."),
    Case::new("blind-syn-ack", blind_syn_ack, "RFC 5961, 4.2; RFC 9293, 3.10.7.4")
        .about("A SYN+ACK within the window of an open connection")
        .expects("A challenge ACK. The connection stays open."),
    Case::new("blind-fin", blind_fin, "RFC 9293, 3.10.7.4; RFC 5961, 5.2")
        .about("A FIN with the expected number that acknowledges what was never sent")
        .expects("It is dropped and answered with an ACK. The stream does not end."),
    Case::new("ack-of-the-future", ack_of_the_future, "RFC 9293, 3.10.7.4; RFC 5961, 5.2")
        .about("A data segment that acknowledges what was never sent")
        .expects("It is dropped and answered with an ACK."),
    Case::new("icmp-unreachable", icmp_unreachable, "RFC 9293, 3.9.2.2; RFC 5461")
        .about("ICMP \"host unreachable\" for a connection")
        .expects("A soft error: the connection stays open."),
    Case::new("icmp-too-big", icmp_too_big, "RFC 1191, 3 and 6; RFC 9293, 3.7.2")
        .about("ICMP \"fragmentation needed\" with an MTU of 600")
        .expects("The data comes again in smaller packets, or in packets that routers may fragment."),
    Case::new("icmp-too-big-ipv6", icmp_too_big, "RFC 8201, 4; RFC 9293, 3.7.2")
        .about("ICMPv6 \"packet too big\" with an MTU of 1280")
        .expects("The data comes again in packets of at most 1280 bytes.")
        .ipv6(),
    Case::new("ipv4-options", ipv4_options, "RFC 1122, 3.2.1.8")
        .about("IPv4 headers with options")
        .expects("The options are ignored; the connection opens and carries bytes."),
    Case::new("ipv4-fragments", ipv4_fragments, "RFC 1122, 3.3.2")
        .about("A segment arrives in three IPv4 fragments")
        .expects("It is put together and delivered."),
    Case::new("ipv6-fragments", ipv6_fragments, "RFC 8200, 4.5")
        .about("A segment arrives in three IPv6 fragments")
        .expects("It is put together and delivered.")
        .ipv6(),
    Case::new("ipv6-atomic-fragments", ipv6_atomic_fragments, "RFC 6946, 4")
        .about("Every segment has a fragment header, but is not fragmented")
        .expects("Each is taken as if it had no such header.")
        .ipv6(),
    Case::new("ipv6-hop-by-hop", ipv6_hop_by_hop, "RFC 8200, 4.3")
        .about("Every segment is behind hop-by-hop options")
        .expects("The connection opens and carries bytes.")
        .ipv6(),
    Case::new("ipv6-destination-options", ipv6_destination_options, "RFC 8200, 4.6")
        .about("Every segment is behind destination options")
        .expects("The connection opens and carries bytes.")
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
    // The ACKs of the last segments may be delayed.
    for _ in 0..bytes.len() / 500 + 30 {
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

/// Sends these ranges of the bytes, and then everything that the server has not got yet.
fn parts(setup: &Setup, bytes: &[u8], parts: impl IntoIterator<Item = (usize, usize)>) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    for (from, to) in parts {
        client.put(part(&client, bytes, from, to))?;
    }
    repair(&mut client, &mut served, bytes)?;
    lab.finish()
}

fn reordered(setup: &Setup) -> Step {
    parts(setup, &pattern(30, 5000), (0..10).rev().map(|number| (number * 500, number * 500 + 500)))
}

fn duplicated(setup: &Setup) -> Step {
    parts(setup, &pattern(31, 5000), (0..20).map(|number| (number / 2 * 500, number / 2 * 500 + 500)))
}

fn overlap(setup: &Setup) -> Step {
    parts(setup, &pattern(32, 5000), (0..19).map(|number| (number * 250, number * 250 + 500)))
}

fn overlap_out_of_order(setup: &Setup) -> Step {
    let ranges = [(1000, 1500), (500, 1200), (1400, 2100), (2000, 3000), (700, 2050), (0, 600)];
    parts(setup, &pattern(33, 3000), ranges)
}

fn super_packet(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
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
    let (mut client, served) = lab.connect_for_super_packets()?;
    deliver(&mut client, served, &pattern(35, 1 << 20), LATE, |_| false)?;
    let count = lab.wire().super_packets;
    check(count > 0, || "no super-packet came".to_owned())?;
    lab.finish()
}

/// Sends a segment with a damaged byte at this offset, which must be dropped silently, and then an intact one.
fn damaged(setup: &Setup, at: usize) -> Step {
    let mut lab = setup.start()?;
    lab.needs_checksums()?;
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
    let lab = setup.start()?;
    let mut client = lab.client();
    client.begin_at(u32::MAX);
    client.open(&Offer::default())?;
    lab.finish_opened(client)
}

fn keep_alive(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
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
    let (lab, mut client, mut served) = setup.connect()?;
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
    let (lab, mut client, mut served) = setup.connect()?;
    client.put(Out { flags: PSH, ..part(&client, b"no ACK", 0, 6) })?;
    check(served.is_quiet(Duration::from_millis(100)), || "it was delivered".to_owned())?;
    exchange(&mut client, &mut served)?;
    lab.finish()
}

fn urgent(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    client.put(Out { flags: ACK | PSH | URG, ..part(&client, b"urgent", 0, 6) })?;
    client.next = client.next.wrapping_add(6);
    client.data(b" and not")?;
    same(&served.read(14)?, b"urgent and not")?;
    lab.finish()
}
