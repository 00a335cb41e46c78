//! IP options, extension headers and fragments.

use platform::packet::flags::SYN;

use super::part;
use crate::lab::exchange;
use crate::{Lab, Out, SOON, Setup, Step, packets, pattern, same};

/// Exchanges bytes while `wrap` changes each packet of the client.
pub(in crate::cases) fn wrapped(setup: &Setup, wrap: impl Fn(&[u8]) -> Vec<u8>) -> Step {
    let mut lab = setup.start()?;
    exchange_wrapped(&mut lab, wrap)?;
    lab.finish()
}

/// The same on a new connection of a running stack.
pub(in crate::cases) fn exchange_wrapped(lab: &mut Lab, wrap: impl Fn(&[u8]) -> Vec<u8>) -> Step {
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
    client.send_packet(&wrap(&client.packet(client.out())))
}

pub(super) fn ipv4_options(setup: &Setup) -> Step {
    // Three no-operations, and the end of the list.
    wrapped(setup, |packet| packets::with_ip_options(packet, &[1, 1, 1, 0]))
}

pub(super) fn ipv6_hop_by_hop(setup: &Setup) -> Step {
    // A PadN option with four bytes of padding.
    wrapped(setup, |packet| packets::with_extension(packet, 0, &[0, 0, 1, 4, 0, 0, 0, 0]))
}

pub(super) fn ipv6_destination_options(setup: &Setup) -> Step {
    wrapped(setup, |packet| packets::with_extension(packet, 60, &[0, 0, 1, 4, 0, 0, 0, 0]))
}

pub(super) fn ipv6_atomic_fragments(setup: &Setup) -> Step {
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

pub(super) fn ipv4_fragments(setup: &Setup) -> Step {
    fragmented(setup, packets::fragments_v4)
}

pub(super) fn ipv6_fragments(setup: &Setup) -> Step {
    fragmented(setup, packets::fragments_v6)
}
