//! Segments that are out of order, damaged, unusual or forged.

pub(super) mod forged;
pub(super) mod unusual;
pub(super) mod wrapped;

use crate::prelude::*;

pub(super) const CASES: &[Case] = &[
    Case::new("reordered", "MUST RFC 9293, 2.2: reliable and in order", "RFC 9293, 3.10.7.4", |lab| {
        parts(lab, &pattern(30, 5000), (0..5000).step_by(500).rev().map(|from| from..from + 500))
    })
    .about("Segments arrive in the reverse order")
    .expects("The server reads all bytes in order, at the latest when they are sent again."),
    Case::new("duplicated", "MUST RFC 9293, 3.10.7.4: old and new parts", "RFC 9293, 3.10.7.4", |lab| {
        parts(lab, &pattern(31, 5000), (0..5000).step_by(500).flat_map(|from| [from..from + 500, from..from + 500]))
    })
    .about("Every segment arrives twice")
    .expects("The server reads each byte once."),
    Case::new("overlap", "MUST RFC 9293, 3.10.7.4: old and new parts", "RFC 9293, 3.10.7.4", |lab| {
        parts(lab, &pattern(32, 5000), (0..=4500).step_by(250).map(|from| from..from + 500))
    })
    .about("Each segment repeats half of the one before it")
    .expects("The server reads each byte once."),
    Case::new("overlap-out-of-order", "MUST RFC 9293, 3.10.7.4: old and new parts", "RFC 9293, 3.10.7.4", |lab| {
        parts(lab, &pattern(33, 3000), [1000..1500, 500..1200, 1400..2100, 2000..3000, 700..2050, 0..600])
    })
    .about("Overlapping segments arrive out of order")
    .expects("The server reads each byte once, at the latest when all is sent again."),
    Case::new("super-packet", "ours", "RFC 9293, 3.10.7.4; virtio 1.2, 5.1.6", |lab| {
        let (mut client, mut served) = lab.connect()?;
        let bytes = pattern(34, 40_000);
        client.put_joined(&bytes)?;
        repair(&mut client, &mut served, &bytes)
    })
    .about("The client's segments arrive joined into a super-packet")
    .expects("The server reads all bytes.")
    .offloading(),
    Case::new("super-packets-sent", "ours", "virtio 1.2, 5.1.6", |lab| {
        let (mut client, served) = lab.connect_for_super_packets()?;
        deliver(&mut client, served, &pattern(35, 1 << 20), LATE)?;
        check!(lab.wire().super_packets > 0, "no super-packet came")
    })
    .about("The server writes 1 MB to a link that cuts super-packets")
    .expects("The stack sends super-packets, and all data arrives.")
    .offloading(),
    Case::new("wrong-tcp-checksum", "MUST-3", "RFC 9293, 3.1", |lab| {
        // A byte of the payload.
        damaged(lab, 42)
    })
    .about("A segment with a wrong checksum")
    .expects("It is dropped without an answer. The right one is delivered.")
    .plain(),
    Case::new("wrong-ip-checksum", "MUST RFC 1122, 3.2.1.2", "RFC 1122, 3.2.1.2", |lab| {
        // The time to live, which the TCP checksum does not cover.
        damaged(lab, 8)
    })
    .about("A segment with a wrong checksum of the IPv4 header")
    .expects("It is dropped without an answer. The right one is delivered.")
    .plain(),
    Case::new("number-wraps", "MUST RFC 9293, 3.4: modulo 2^32", "RFC 9293, 3.4", |lab| {
        let mut client = lab.client();
        client.begin_at(u32::MAX - 10_000);
        client.open()?;
        let mut served = lab.accept()?;
        client.write(&pattern(36, 30_000))?;
        served.reads(&pattern(36, 30_000))?;
        exchange(&mut client, &mut served)
    })
    .about("The client's sequence numbers pass 2³²")
    .expects("The server reads 30 KB around the end of the numbers."),
    Case::new("number-wraps-at-the-syn", "MUST RFC 9293, 3.4: modulo 2^32", "RFC 9293, 3.4", |lab| {
        let mut client = lab.client();
        client.begin_at(u32::MAX);
        client.open()?;
        lab.serves(client)
    })
    .about("The SYN has the last sequence number that there is")
    .expects("The SYN+ACK acknowledges 0, and the connection carries bytes."),
];

/// Sends these ranges of the bytes, and then everything that the server has not got yet.
fn parts(lab: &mut Lab, bytes: &[u8], parts: impl IntoIterator<Item = Range<usize>>) -> Step {
    let (mut client, mut served) = lab.connect()?;
    parts.into_iter().try_for_each(|part| client.put(client.part(bytes, part)))?;
    repair(&mut client, &mut served, bytes)
}

/// Sends a segment with a damaged byte at this offset, which must be dropped silently, and then an intact one.
fn damaged(lab: &mut Lab, at: usize) -> Step {
    lab.needs_checksums()?;
    let (mut client, mut served) = lab.connect()?;
    let mut packet = client.packet(client.part(b"damaged", 0..7));
    packet[at] ^= 0x10;
    client.send_packet(&packet)?;
    client.silence(ms(100))?;
    check!(served.is_quiet(ms(20)), Data, "it was delivered")?;
    exchange(&mut client, &mut served)
}
