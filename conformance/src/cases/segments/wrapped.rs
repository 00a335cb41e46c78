//! IP options, extension headers and fragments.

use crate::prelude::*;

/// Options of IPv6: a `PadN` option with four bytes of padding.
pub(in crate::cases) const PADDING: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

pub(in super::super) const CASES: &[Case] = &[
    Case::new("ipv4-options", "MUST RFC 1122, 3.2.1.8", "RFC 1122, 3.2.1.8", |lab| {
        // Three no-operations, and the end of the list.
        wrapped(lab, |packet| packets::with_ip_options(packet, &[1, 1, 1, 0]))
    })
    .about("IPv4 headers with options")
    .expects("The options are ignored; the connection opens and carries bytes."),
    Case::new("ipv4-fragments", "MUST RFC 1122, 3.3.2: reassembly", "RFC 1122, 3.3.2", fragmented)
        .about("A segment arrives in three IPv4 fragments")
        .expects("It is put together and delivered."),
    Case::new("ipv6-fragments", "MUST RFC 8200, 5: reassembly", "RFC 8200, 4.5", fragmented)
        .about("A segment arrives in three IPv6 fragments")
        .expects("It is put together and delivered.")
        .ipv6(),
    Case::new("ipv6-atomic-fragments", "SHOULD RFC 8200, 4.5: whole datagrams", "RFC 8200, 4.5; RFC 6946, 4", |lab| {
        behind(lab, 44, [0, 0, 0, 0, 0, 0, 0, 9])
    })
    .about("Every segment has a fragment header, but is not fragmented")
    .expects("Each is taken as if it had no such header.")
    .ipv6(),
    Case::new("ipv6-hop-by-hop", "MUST RFC 8200, 4.1: all headers are processed", "RFC 8200, 4.3", |lab| {
        behind(lab, 0, PADDING)
    })
    .about("Every segment is behind hop-by-hop options")
    .expects("The connection opens and carries bytes.")
    .ipv6(),
    Case::new("ipv6-destination-options", "MUST RFC 8200, 4.1: all headers are processed", "RFC 8200, 4.6", |lab| {
        behind(lab, 60, PADDING)
    })
    .about("Every segment is behind destination options")
    .expects("The connection opens and carries bytes.")
    .ipv6(),
];

/// Exchanges bytes on a connection whose client changes each of its packets by `wrap`.
pub(in crate::cases) fn wrapped(lab: &mut Lab, wrap: impl Fn(&[u8]) -> Vec<u8> + 'static) -> Step {
    let mut client = lab.client();
    client.wrap = Some(Box::new(wrap));
    client.open()?;
    let mut served = lab.accept()?;
    let request = pattern(40, 1000);
    client.data(&request)?;
    served.reads(&request)?;
    exchange(&mut client, &mut served)
}

/// The same with a header of IPv6 in front of all others.
pub(in crate::cases) fn behind(lab: &mut Lab, number: u8, header: impl AsRef<[u8]> + 'static) -> Step {
    wrapped(lab, move |packet| packets::with_extension(packet, number, header.as_ref()))
}

/// Checks that a segment is delivered if it arrives in fragments.
fn fragmented(lab: &mut Lab) -> Step {
    let (mut client, mut served) = lab.connect()?;
    let bytes = pattern(41, 1000);
    for fragment in &packets::fragments(&client.packet(client.part(&bytes, 0..1000)), 400) {
        client.send_packet(fragment)?;
    }
    client.sent(1000);
    served.reads(&bytes)?;
    exchange(&mut client, &mut served)
}
