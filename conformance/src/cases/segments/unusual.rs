//! The MSS, unknown and malformed options, wrong header lengths, and segments that repeat what has arrived.

use crate::prelude::*;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("mss-announced", "SHOULD RFC 9293, 3.7.1: the MSS to send", "RFC 9293, 3.7.1", mss_announced)
        .about("The MSS of the stack's SYN+ACK")
        .expects("The MTU without an IPv4 and a TCP header: 1460 of 1500."),
    Case::new("mss-announced-ipv6", "MUST RFC 8200, 8.3", "RFC 8200, 8.3", mss_announced)
        .about("The same over IPv6")
        .expects("The MTU without an IPv6 and a TCP header: 1440 of 1500.")
        .ipv6(),
    Case::new("mss-small", "MUST-16", "RFC 9293, 3.7.1", |lab| segments_of(lab, Some(300), 300))
        .about("The client takes segments of 300 bytes")
        .expects("No segment has more."),
    Case::new("mss-missing", "MUST-15", "RFC 9293, 3.7.1", mss_missing)
        .about("The SYN has no MSS option")
        .expects("No segment has more than 536 bytes."),
    Case::new("mss-missing-ipv6", "MUST-15", "RFC 9293, 3.7.1", mss_missing)
        .about("The same over IPv6")
        .expects("No segment has more than 1220 bytes.")
        .ipv6(),
    Case::new("mss-large", "MUST-16", "RFC 9293, 3.7.1; RFC 1122, 4.2.2.6", |lab| {
        segments_of(lab, Some(lab.mtu.saturating_add(7500)), usize::from(lab.mtu) - 40)
    })
    .about("The client takes segments of 7,500 bytes more than the MTU")
    .expects("No packet is longer than the MTU."),
    Case::new("mss-zero", "ours", "RFC 9293, 3.7.1", |lab| {
        let mut client = lab.client();
        client.syn_with(&Offer { mss: Some(0), ..Offer::default() })?;
        if client.syn_ack(SOON).is_ok() {
            client.ack()?;
            if let Some(served) = lab.accept_within(SOON)? {
                let sending = served.send(pattern(38, 500), Then::Keep);
                let _may_fail = client.receive(500, SOON);
                drop(sending);
            }
        }
        lab.still_serves()
    })
    .about("The SYN has an MSS of 0")
    .expects("The stack does not crash or hang: other connections work."),
    Case::new("options-unknown", "MUST-6", "RFC 9293, 3.1", |lab| {
        // An experimental option and one of RFC 7413 around an MSS of 300.
        let extra = vec![253, 6, 1, 2, 3, 4, MSS, 4, 1, 44, 34, 2];
        let (mut client, mut served) = lab.connect_with(&Offer { mss: None, extra, ..Offer::default() })?;
        served.write(&pattern(42, 2000))?;
        let bytes = client.receive_with(2000, SOON, |_, segment| Ok(segment.payload.len() > 300))?;
        same(&bytes, &pattern(42, 2000))?;
        client.send(Out { options: &[254, 8, 0, 1, 2, 3, 4, 5, 1, 1, 1, 0], ..client.part(b"data", 0..4) })?;
        served.reads(b"data")?;
        exchange(&mut client, &mut served)
    })
    .about("Unknown options in the SYN and in a data segment")
    .expects("They are skipped by their length fields, and the known ones are used."),
    Case::new("options-malformed", "MUST-7", "RFC 9293, 3.1", |lab| {
        let malformed: [[u8; 4]; 6] =
            [[2, 0, 5, 0xb4], [2, 1, 5, 0xb4], [2, 40, 5, 0xb4], [1, 1, 1, 2], [253, 0, 0, 0], [3, 2, 3, 1]];
        for options in malformed {
            let client = lab.client();
            client.put(Out { flags: SYN, ack: 0, options: &options, ..client.out() })?;
        }
        // A stack may reset the connection (RFC 9293, 3.1, MUST-7), but no other.
        let (victim, _held) = lab.connect()?;
        let (mut client, mut served) = lab.connect()?;
        malformed.into_iter().try_for_each(|options| victim.put(Out { options: &options, ..victim.out() }))?;
        exchange(&mut client, &mut served)?;
        lab.still_serves()
    })
    .about("Options with a length of 0, 1, and beyond the header")
    .expects("The stack does not crash or hang: other connections work."),
    Case::new("header-length-wrong", "ours", "RFC 9293, 3.1", |lab| {
        let (mut client, mut served) = lab.connect()?;
        for words in [0, 1, 4, 15] {
            let packet = client.packet(client.part(b"data", 0..4));
            client.send_packet(&packets::with_tcp_bytes(packet, 12, &[words << 4]))?;
        }
        check!(served.is_quiet(ms(50)), Data, "one of them was delivered")?;
        exchange(&mut client, &mut served)
    })
    .about("TCP headers whose length is too small, or more than the packet has")
    .expects("They are dropped, and other segments are delivered."),
    Case::new("keep-alive", "MUST RFC 9293, 3.5.2: group 3", "RFC 9293, 3.8.4", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        for payload in [&b""[..], b"\0"] {
            client.forget()?;
            client.put(Out { seq: client.next.wrapping_sub(1), payload, ..client.out() })?;
            client.acked(SOON)?;
        }
        check!(served.is_quiet(ms(50)), Data, "the server read something")?;
        exchange(&mut client, &mut served)
    })
    .about("Keep-alive probes, without data and with one old byte")
    .expects("Each is answered with an ACK, and the server reads nothing."),
    Case::new("old-segment", "MUST RFC 9293, 3.5.2: group 3", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect_and_exchange()?;
        client.forget()?;
        client.put(Out { flags: ACK | PSH, seq: client.next.wrapping_sub(4), payload: b"ping", ..client.out() })?;
        client.acked(SOON)?;
        check!(served.is_quiet(ms(50)), Data, "the server read it again")?;
        exchange(&mut client, &mut served)
    })
    .about("A segment comes again, as if its ACK was lost")
    .expects("It is answered with an ACK of what is expected, and the server reads nothing of it."),
    Case::new("no-ack-flag", "MUST RFC 9293, 3.10.7.4: no ACK bit", "RFC 9293, 3.10.7.4", |lab| {
        let (mut client, mut served) = lab.connect()?;
        client.put(Out { flags: PSH, ..client.part(b"no ACK", 0..6) })?;
        check!(served.is_quiet(ms(100)), Data, "it was delivered")?;
        exchange(&mut client, &mut served)
    })
    .about("A data segment without the ACK flag")
    .expects("It is dropped."),
    Case::new("urgent", "MUST RFC 9293, 3.8.5: urgent data are in the stream", "RFC 9293, 3.8.5", |lab| {
        let (mut client, mut served) = lab.connect()?;
        client.send(Out { flags: ACK | PSH | URG, ..client.part(b"urgent", 0..6) })?;
        client.data(b" and not")?;
        served.reads(b"urgent and not")
    })
    .about("A segment with urgent data")
    .expects("The bytes are part of the stream."),
];

fn mss_announced(lab: &mut Lab) -> Step {
    let mut client = lab.client();
    let syn_ack = client.open_with(&Offer::default())?;
    let expected = lab.mtu - if lab.ipv6 { 60 } else { 40 };
    let Some([high, low]) = syn_ack.option(MSS) else { return fail!("the SYN+ACK has no MSS") };
    let mss = u16::from_be_bytes([*high, *low]);
    check!(mss == expected, "the MSS is {mss}")?;
    lab.accept().map(drop)
}

/// Sends 50 KB or four segments from the server to a client with this MSS. No payload may be longer than `most`.
fn segments_of(lab: &mut Lab, mss: Option<u16>, most: usize) -> Step {
    let len = 50_000.max(4 * most);
    let (mut client, served) = lab.connect_with(&Offer { mss, ..Offer::default() })?;
    deliver_up_to(&mut client, served, &pattern(37, len), most)
}

/// Sends bytes from the server. No payload may be longer than `most`.
pub(in crate::cases) fn deliver_up_to(client: &mut Client, served: Served, bytes: &[u8], most: usize) -> Step {
    let mut longest = 0;
    deliver_with(client, served, bytes, LATE, |_, segment| {
        longest = longest.max(segment.payload.len());
        Ok(false)
    })?;
    check!(longest <= most, "a segment had {longest} bytes")
}

fn mss_missing(lab: &mut Lab) -> Step {
    let (most, headers) = if lab.ipv6 { (1220, 60) } else { (536, 40) };
    applies!(most + headers < lab.mtu.into(), "the MTU allows no more")?;
    segments_of(lab, None, most)
}
