//! Segments that somebody else has forged, and ICMP errors.

use std::time::Duration;

use platform::packet::flags::{ACK, FIN, PSH, RST, SYN};

use crate::lab::{deliver, exchange};
use crate::{Client, LATE, Lab, Out, Setup, Step, applies, check, packets, pattern};

/// Sends a forged segment. Checks that a challenge ACK comes if `is_challenged`, and that the connection stays open.
fn forged(setup: &Setup, forge: impl FnOnce(&Client) -> Out<'static>, is_challenged: bool) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
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

pub(super) fn blind_rst(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: RST, seq: client.next.wrapping_add(100), ..client.out() }, true)
}

pub(super) fn rst_outside_window(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: RST, seq: client.next.wrapping_sub(100_000), ..client.out() }, false)
}

pub(super) fn blind_syn(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: SYN, seq: client.next.wrapping_add(100), ack: 0, ..client.out() }, true)
}

pub(super) fn blind_syn_ack(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: SYN | ACK, seq: client.next.wrapping_add(100), ..client.out() }, true)
}

pub(super) fn blind_fin(setup: &Setup) -> Step {
    forged(setup, |client| Out { flags: FIN | ACK, ack: client.expected.wrapping_add(100_000), ..client.out() }, true)
}

pub(super) fn ack_of_the_future(setup: &Setup) -> Step {
    let future = |client: &Client| Out {
        flags: ACK | PSH,
        ack: client.expected.wrapping_add(100_000),
        payload: b"forged",
        ..client.out()
    };
    forged(setup, future, true)
}

pub(super) fn icmp_unreachable(setup: &Setup) -> Step {
    let (lab, mut client, mut served) = setup.connect()?;
    exchange(&mut client, &mut served)?;
    lab.send_packet(&packets::error(3, 1, 0, &from_the_stack(&lab, &client)))?;
    std::thread::sleep(Duration::from_millis(50));
    exchange(&mut client, &mut served)?;
    lab.finish()
}

/// Returns a packet as the stack would send it next, for an ICMP error to quote.
pub(in crate::cases) fn from_the_stack(lab: &Lab, client: &Client) -> Vec<u8> {
    let reversed = lab.client_from(client.server, client.local);
    reversed.packet(Out { seq: client.expected, ack: client.next, payload: &[0; 1400], ..client.out() })
}

pub(super) fn icmp_too_big(setup: &Setup) -> Step {
    let mtu: usize = if setup.ipv6 { 1280 } else { 600 };
    applies(mtu < setup.mtu.into(), || format!("no packet is longer than {mtu} bytes"))?;
    let (lab, mut client, served) = setup.connect()?;
    let mut is_told = false;
    let about = from_the_stack(&lab, &client);
    let wire = lab.messenger();
    deliver(&mut client, served, &pattern(39, 30_000), LATE, |segment| {
        let is_lost = segment.packet_len > mtu && segment.dont_fragment;
        if is_lost && !is_told {
            let [kind, code] = if setup.ipv6 { [2, 0] } else { [3, 4] };
            is_told = wire.borrow_mut().send(&packets::error(kind, code, mtu as u32, &about)).is_ok();
        }
        is_lost
    })?;
    lab.finish()
}
