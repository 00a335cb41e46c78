//! The MSS, unknown and malformed options, and wrong header lengths.

use std::time::Duration;

use platform::packet::flags::SYN;

use super::part;
use crate::client::MSS;
use crate::lab::{deliver, exchange};
use crate::{Client, LATE, Offer, Out, SOON, Served, Setup, Step, Then, applies, check, packets, pattern, same};

pub(super) fn mss_announced(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let mut client = lab.client();
    let syn_ack = client.open(&Offer::default())?;
    let expected = setup.mtu - if client.server.is_ipv6() { 60 } else { 40 };
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

/// Sends 50 KB or four segments from the server to a client with this MSS. No payload may be longer than `most`.
fn segments_of(setup: &Setup, mss: Option<u16>, most: usize) -> Step {
    let len = 50_000.max(4 * most);
    let mut lab = setup.start()?;
    let (mut client, served) = lab.connect_with(&Offer { mss, ..Offer::default() })?;
    deliver_up_to(&mut client, served, &pattern(37, len), most)?;
    lab.finish()
}

/// Sends bytes from the server. No payload may be longer than `most`.
pub(in crate::cases) fn deliver_up_to(client: &mut Client, served: Served, bytes: &[u8], most: usize) -> Step {
    let mut longest = 0;
    deliver(client, served, bytes, LATE, |segment| {
        longest = longest.max(segment.payload.len());
        false
    })?;
    check(longest <= most, || format!("a segment had {longest} bytes"))
}

pub(super) fn mss_small(setup: &Setup) -> Step {
    segments_of(setup, Some(300), 300)
}

pub(super) fn mss_missing(setup: &Setup) -> Step {
    let (most, headers) = if setup.ipv6 { (1220, 60) } else { (536, 40) };
    applies(most + headers < setup.mtu.into(), || "the MTU allows no more".to_owned())?;
    segments_of(setup, None, most)
}

pub(super) fn mss_large(setup: &Setup) -> Step {
    segments_of(setup, Some(setup.mtu.saturating_add(7500)), usize::from(setup.mtu) - 40)
}

pub(super) fn mss_zero(setup: &Setup) -> Step {
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
    lab.finish_serving()
}

pub(super) fn options_unknown(setup: &Setup) -> Step {
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

pub(super) fn options_malformed(setup: &Setup) -> Step {
    let mut lab = setup.start()?;
    let malformed: [[u8; 4]; 6] =
        [[2, 0, 5, 0xb4], [2, 1, 5, 0xb4], [2, 40, 5, 0xb4], [1, 1, 1, 2], [253, 0, 0, 0], [3, 2, 3, 1]];
    for options in malformed {
        let client = lab.client();
        client.put(Out { flags: SYN, ack: 0, options: &options, ..client.out() })?;
    }
    // A stack may reset the connection (RFC 9293, 3.1, MUST-7), but no other.
    let (victim, _held) = lab.connect()?;
    let (mut client, mut served) = lab.connect()?;
    for options in malformed {
        victim.put(Out { options: &options, ..victim.out() })?;
    }
    exchange(&mut client, &mut served)?;
    lab.finish_serving()
}

pub(super) fn header_length_wrong(setup: &Setup) -> Step {
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
