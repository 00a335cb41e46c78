//! ECN.

use platform::packet::flags::{ACK, PSH, SYN};

use super::{flight, reach};
use crate::wire::Segment;
use crate::{Client, Lab, Offer, Out, SOON, Served, Setup, Step, Then, applies, check, packets, pattern, same};

/// Flags of the TCP header.
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// Values of the ECN field: the packet can be marked, and it is marked.
const CAPABLE: u8 = 2;
const MARKED: u8 = 3;

/// Connects with ECN, or ends the case if the stack does not agree.
fn connect(setup: &Setup) -> Step<(Lab, Client, Served)> {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let offer = Offer { flags: SYN | ECE | CWR, scale: Some(7), ..Offer::default() };
    let syn_ack = client.open(&offer)?;
    let served = lab.accept()?;
    applies(syn_ack.has(ECE), || "the stack does not agree on ECN".to_owned())?;
    Ok((lab, client, served))
}

/// Sends data in a packet with this ECN field, and waits until the server has read it. Returns the ACK.
fn send(client: &mut Client, served: &mut Served, flags: u8, ecn: u8) -> Step<Segment> {
    let packet = client.packet(Out { flags: ACK | PSH | flags, payload: b"data", ..client.out() });
    client.send_packet(&packets::with_ip_bytes(packet, 1, &[ecn]))?;
    client.next = client.next.wrapping_add(4);
    same(&served.read(4)?, b"data")?;
    client.acked(SOON)
}

pub(super) fn ecn_not_asked(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let (mut client, mut served) = lab.connect()?;
    for _ in 0..2 {
        let ack = send(&mut client, &mut served, 0, MARKED)?;
        check(!ack.has(ECE), || "the ACK has ECE".to_owned())?;
    }
    let sending = served.send(pattern(150, 20_000), Then::Keep);
    let mut ecn = 0;
    client.receive_with(20_000, SOON, |segment| {
        ecn |= segment.ecn;
        false
    })?;
    check(ecn == 0, || format!("the ECN field of a packet is {ecn}"))?;
    drop(sending.finish()?);
    lab.finish()
}

pub(super) fn ecn_echo(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = connect(setup)?;
    // The bits of the packets and of the ACKs that they bring.
    let steps =
        [(0, CAPABLE, 0), (0, MARKED, ECE), (0, CAPABLE, ECE), (0, CAPABLE, ECE), (CWR, CAPABLE, 0), (0, CAPABLE, 0)];
    for (index, (flags, ecn, expected)) in steps.into_iter().enumerate() {
        let ack = send(&mut client, &mut served, flags, ecn)?;
        check(ack.flags & ECE == expected, || format!("the ACK of segment {index} has the flags {:#x}", ack.flags))?;
    }
    lab.finish()
}

pub(super) fn ecn_reduces(setup: &Setup) -> Step {
    let (lab, mut client, served) = connect(setup)?;
    let sending = served.send(pattern(151, 400_000), Then::Keep);
    let (mut bytes, first) = (Vec::new(), flight(&mut client)?);
    for segment in first {
        client.take(segment, &mut bytes)?;
    }
    let before = flight(&mut client)?;
    let length = reach(&client, &before);
    client.expected = client.expected.wrapping_add(length as u32);
    client.put(Out { flags: ACK | ECE, ..client.out() })?;
    let after = flight(&mut client)?;
    let next = reach(&client, &after);
    check(after.iter().any(|segment| segment.has(CWR)), || "no segment has CWR".to_owned())?;
    check(next <= length, || format!("{next} bytes came after the ACK with ECE, and {length} before it"))?;
    drop(sending);
    lab.finish()
}
