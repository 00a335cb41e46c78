//! Echo replies, and the ICMP errors that a stack sends itself.
//!
//! A stack of a proxy has every address, and its packets reach other hosts only through the application. So it may leave
//! out echo replies and errors. If it sends them, they have to be right.

use std::net::{IpAddr, Ipv4Addr};

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("echo", "MUST RFC 1122, 3.2.2.6", "RFC 1122, 3.2.2.6", |lab| {
        needs_echo(lab)?;
        let largest = if lab.ipv6 { 1452 } else { 1472 };
        for len in [0, 1, 2, 999, largest - 1, largest] {
            answered(lab, &pattern(len as u64, len), usize::MAX)?;
        }
        Ok(())
    })
    .about("Echo requests with 0 to 1,472 bytes")
    .expects("Each reply has the number and the bytes of its request, and comes from the address that was asked.")
    .over_ipv6("echo-ipv6", "MUST RFC 4443, 4.2", "The same over IPv6, up to 1,452 bytes", "RFC 4443, 4.2"),
    Case::new("echo-fragments", "MUST RFC 1122, 3.3.2: reassembly", "RFC 1122, 3.2.2.6 and 3.3.2", |lab| {
        needs_echo(lab)?;
        answered(lab, &pattern(140, 1400), 480)
    })
    .about("An echo request with 1,400 bytes in three fragments")
    .expects("It is put together, and the reply has all its bytes.")
    .over_ipv6(
        "echo-fragments-ipv6",
        "MUST RFC 8200, 5: reassembly",
        "The same over IPv6",
        "RFC 4443, 4.2; RFC 8200, 4.5 and 5",
    ),
    Case::new("echo-wrong-checksum", "ours", "RFC 792", |lab| {
        needs_echo(lab)?;
        lab.send_packet(&packets::damaged(request(lab.peer().ip(), lab.server().ip(), b"damaged")))?;
        silence(lab)?;
        answered(lab, b"intact", usize::MAX)
    })
    .about("An echo request with a wrong checksum")
    .expects("Silence.")
    .over_ipv6("echo-wrong-checksum-ipv6", "MUST RFC 4443, 2.1", "The same over IPv6", "RFC 4443, 2.3"),
    Case::new("icmp-error-quotes", "MUST RFC 1122, 3.2.2: quotes", "RFC 1122, 3.2.2 and 3.2.2.1", error_quotes)
        .about("A packet of an unknown protocol")
        .expects("ICMP \"protocol unreachable\", which quotes at least the IP header and 8 bytes of it unchanged."),
    Case::new("icmp-error-quotes-ipv6", "MUST RFC 4443, 2.4 (c)", "RFC 4443, 2.4 and 3.4; RFC 8200, 4", error_quotes)
        .about("The same over IPv6")
        .expects(
            "ICMPv6 \"unrecognized next header\", which points to its place and quotes the packet, as far as 1280 \
             bytes hold it.",
        )
        .ipv6(),
    Case::new("icmp-error-rate-ipv6", "MUST RFC 4443, 2.4 (f)", "RFC 4443, 2.4 (f)", |lab| {
        let packet = unknown(lab.peer().ip(), lab.server().ip(), 100);
        lab.flood(std::iter::repeat_n(packet, 1000))?;
        let mut count = 0;
        while lab.message(QUIET)?.is_some() {
            count += 1;
        }
        if count == 0 {
            return no_errors();
        }
        check!(count <= 200, "{count} errors came for 1000 packets")?;
        lab.still_serves()
    })
    .about("1,000 IPv6 packets of an unknown protocol")
    .expects("The rate of errors is limited: at most 200 come.")
    .ipv6(),
    Case::new("icmp-error-about-error", "MUST RFC 1122, 3.2.2: not about errors", "RFC 1122, 3.2.2", |lab| {
        let (peer, server) = (lab.peer(), lab.server());
        let abouts = [
            packets::datagram(server, peer, b"nobody sent this"),
            unknown(server.ip(), peer.ip(), 100),
            request(server.ip(), peer.ip(), b"nobody asked"),
        ];
        let errors = [3, 4, 5, 11, 12].into_iter().flat_map(|kind| (0..20).map(move |code| (kind, code)));
        let about_each = |(kind, code)| abouts.clone().map(|about| packets::error(kind, code, 0, &about));
        unanswered(lab, errors.flat_map(about_each))
    })
    .about("ICMP errors of every type and of unknown codes, about packets that nobody has sent")
    .expects("No ICMP message comes for them."),
    Case::new("icmp-error-about-error-ipv6", "MUST RFC 4443, 2.4 (e.1)", "RFC 4443, 2.4 (e.1); RFC 8200, 4.2", |lab| {
        // An unknown option that asks for an error (RFC 8200, 4.2).
        const OPTION: [u8; 8] = [0, 0, 0x9e, 4, 0, 0, 0, 0];
        let about = packets::datagram(lab.server(), lab.peer(), b"nobody sent this");
        let errors = [1, 2, 3, 4, 5, 100, 101, 127].into_iter().flat_map(|kind| [(kind, 0), (kind, 9)]);
        let errors = errors.map(|(kind, code)| packets::error(kind, code, 1280, &about));
        unanswered(lab, errors.flat_map(|error| [packets::with_extension(&error, 60, &OPTION), error]))
    })
    .about("ICMPv6 errors of known and unknown types, also behind an option that nobody knows")
    .expects("No ICMP message comes for them.")
    .ipv6(),
    Case::new("icmp-error-about-multicast", "MUST RFC 1122, 3.2.2: not about multicast", "RFC 1122, 3.2.2", |lab| {
        let peer = lab.peer();
        let packets =
            |group| [packets::datagram(peer, SocketAddr::new(group, 9), b"to all"), unknown(peer.ip(), group, 100)];
        unanswered(lab, packets::groups(lab.ipv6).into_iter().flat_map(packets))
    })
    .about("Datagrams and packets of an unknown protocol to multicast and broadcast addresses")
    .expects("No ICMP message comes for them.")
    .over_ipv6(
        "icmp-error-about-multicast-ipv6",
        "MUST RFC 4443, 2.4 (e.3)",
        "The same to multicast addresses over IPv6",
        "RFC 4443, 2.4 (e.3)",
    ),
    Case::new(
        "icmp-error-about-fragment",
        "MUST RFC 1122, 3.2.2: not about later fragments",
        "RFC 1122, 3.2.2",
        |lab| {
            let whole = [lab.to_server(&[7; 1000]), unknown(lab.peer().ip(), lab.server().ip(), 1000)];
            unanswered(lab, whole.iter().flat_map(|packet| packets::fragments(packet, 400).split_off(1)))
        },
    )
    .about("Later fragments of datagrams, and of packets of an unknown protocol")
    .expects("No ICMP message comes for them."),
    Case::new(
        "icmp-strange-sources",
        "MUST RFC 1122, 3.2.2: not to many hosts",
        "RFC 1122, 3.2.1.3 and 3.2.2",
        |lab| {
            let server = lab.server().ip();
            let unspecified = (!lab.ipv6).then_some(Ipv4Addr::UNSPECIFIED.into());
            let packets = |source| [request(source, server, b"to all of you"), unknown(source, server, 100)];
            unanswered(lab, packets::groups(lab.ipv6).into_iter().chain(unspecified).flat_map(packets))
        },
    )
    .about("Echo requests, and packets of an unknown protocol, from multicast, broadcast and unspecified addresses")
    .expects("Silence.")
    .over_ipv6(
        "icmp-strange-sources-ipv6",
        "MUST RFC 4443, 2.4 (e.6)",
        "The same from multicast addresses over IPv6",
        "RFC 4291, 2.7; RFC 4443, 2.4 (e.6)",
    ),
];

/// The number of a protocol for experiments (RFC 3692), which no stack knows.
const UNKNOWN: u8 = 253;

/// How long to wait for messages that must not come.
const QUIET: Duration = ms(200);

fn request(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let kind = if from.is_ipv6() { 128 } else { 8 };
    packets::message(from, to, [kind, 0], &[&[0x12, 0x34, 0, 7], payload].concat())
}

/// Sends an echo request in fragments of up to `len` bytes, which must be answered.
fn answered(lab: &Lab, payload: &[u8], len: usize) -> Step {
    let (from, to) = (lab.peer().ip(), lab.server().ip());
    let request = request(from, to, payload);
    lab.flood(if len < request.len() { packets::fragments(&request, len) } else { vec![request] })?;
    let Some(reply) = lab.message(SOON)? else { return fail!(Hang, "no reply to {} bytes came", payload.len()) };
    let Message { source, destination, kind, body } = reply;
    check!(source == to && destination == from, "the reply is from {source} to {destination}")?;
    let expected = [if lab.ipv6 { 129 } else { 0 }, 0];
    check!(kind == expected, "a message of type and code {kind:?} came")?;
    same(&body, &[&[0x12, 0x34, 0, 7], payload].concat())
}

/// Ends the case if the stack answers no echo requests.
fn needs_echo(lab: &Lab) -> Step {
    lab.send_packet(&request(lab.peer().ip(), lab.server().ip(), b"is anyone there?"))?;
    applies!(lab.message(SOON)?.is_some(), "the stack answers no echo requests, as a proxy's stack may")
}

/// Checks that no ICMP message comes.
fn silence(lab: &Lab) -> Step {
    match lab.message(QUIET)? {
        Some(Message { kind, .. }) => fail!("a message of type and code {kind:?} came"),
        None => Ok(()),
    }
}

fn unknown(from: IpAddr, to: IpAddr, len: usize) -> Vec<u8> {
    packets::packet(from, to, UNKNOWN, &pattern(141, len))
}

fn no_errors() -> Step {
    applies!(false, "the stack sends no ICMP errors, as a proxy's stack may")
}

fn error_quotes(lab: &mut Lab) -> Step {
    let packet = unknown(lab.peer().ip(), lab.server().ip(), 1400);
    lab.send_packet(&packet)?;
    let Some(error) = lab.message(QUIET)? else { return no_errors() };
    let (kind, least) = if lab.ipv6 { ([4, 1], 1280 - 48) } else { ([3, 2], 28) };
    check!(error.kind == kind, "a message of type and code {:?} came", error.kind)?;
    if lab.ipv6 {
        let pointer = error.body.get(..4).unwrap_or_default();
        check!(pointer == [0, 0, 0, 6], "it points to {pointer:?}")?;
    }
    error.is_about(&packet, least)?;
    lab.still_serves()
}

/// Sends packets that no ICMP message may come for.
fn unanswered(lab: &mut Lab, packets: impl IntoIterator<Item = Vec<u8>>) -> Step {
    lab.flood(packets)?;
    silence(lab)?;
    lab.still_serves()
}
