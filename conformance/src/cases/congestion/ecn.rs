//! ECN.

use super::QUIET;
use crate::prelude::*;

/// Flags of the TCP header.
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// Values of the ECN field: the packet can be marked, and it is marked.
const CAPABLE: u8 = 2;
const MARKED: u8 = 3;

pub(in super::super) const CASES: &[Case] = &[
    Case::new("ecn-not-asked", "MUST RFC 3168, 6.1.1: no ECN without a setup", "RFC 3168, 6.1.1 and 6.1.3", |lab| {
        let (mut client, mut served) = lab.connect()?;
        for _ in 0..2 {
            let ack = send(&mut client, &mut served, 0, MARKED)?;
            check!(!ack.has(ECE), "the ACK has ECE")?;
        }
        let mut ecn = 0;
        deliver_with(&mut client, served, &pattern(150, 20_000), SOON, |_, segment| {
            ecn |= segment.ecn;
            Ok(false)
        })?;
        check!(ecn == 0, "the ECN field of a packet is {ecn}")
    })
    .about("A packet with the mark \"congestion experienced\" on a connection without ECN")
    .expects("The data is delivered. No ACK has ECE, and no packet says that it can be marked."),
    Case::new("ecn-echo", "MUST RFC 3168, 6.1.3", "RFC 3168, 6.1.3", |lab| {
        let (mut client, mut served) = connect(lab)?;
        // The bits of the packets and of the ACKs that they bring.
        let steps = [
            (0, CAPABLE, 0),
            (0, MARKED, ECE),
            (0, CAPABLE, ECE),
            (0, CAPABLE, ECE),
            (CWR, CAPABLE, 0),
            (0, CAPABLE, 0),
        ];
        for (index, (flags, ecn, expected)) in steps.into_iter().enumerate() {
            let ack = send(&mut client, &mut served, flags, ecn)?;
            check!(ack.flags & ECE == expected, "the ACK of segment {index} has the flags {:#x}", ack.flags)?;
        }
        Ok(())
    })
    .about("The same on a connection with ECN; later the client says that it has slowed down")
    .expects("All ACKs have ECE until the segment with CWR comes, and none after it."),
    Case::new("ecn-reduces", "MUST RFC 3168, 6.1.2: CWR", "RFC 3168, 6.1.2", |lab| {
        let (mut client, served) = connect(lab)?;
        let _sending = served.send(pattern(151, 400_000), Then::Keep);
        client.flight(QUIET)?.into_iter().try_for_each(|segment| client.take(segment, &mut Vec::new()))?;
        let before = client.flight(QUIET)?;
        let length = client.reach(&before);
        client.expected = client.expected.wrapping_add(length as u32);
        client.put(Out { flags: ACK | ECE, ..client.out() })?;
        let after = client.flight(QUIET)?;
        let next = client.reach(&after);
        check!(after.iter().any(|segment| segment.has(CWR)), "no segment has CWR")?;
        check!(next <= length, "{next} bytes came after the ACK with ECE, and {length} before it")
    })
    .about("The client's ACKs have ECE, on a connection with ECN")
    .expects("A segment with CWR comes, and the next flight is no longer than the last."),
];

/// Connects with ECN, or ends the case if the stack does not agree.
fn connect(lab: &mut Lab) -> Step<(Client, Served)> {
    let mut client = lab.client();
    let syn_ack = client.open_with(&Offer { flags: SYN | ECE | CWR, scale: Some(7), ..Offer::default() })?;
    applies!(syn_ack.has(ECE), "the stack does not agree on ECN")?;
    Ok((client, lab.accept()?))
}

/// Sends data in a packet with this ECN field, and waits until the server has read it. Returns the ACK.
fn send(client: &mut Client, served: &mut Served, flags: u8, ecn: u8) -> Step<Segment> {
    let packet = client.packet(Out { flags: ACK | PSH | flags, ..client.part(b"data", 0..4) });
    client.send_packet(&packets::with_ip_bytes(packet, 1, &[ecn]))?;
    client.sent(4);
    served.reads(b"data")?;
    client.acked(SOON)
}
