//! Packets and addresses that the tests of several modules use.

use std::net::SocketAddr;

use platform::Checksum;
use platform::packet::{MAX_HEADERS_LEN, TCP_HEADER_LEN, TcpFields, TcpHeaders};

pub(crate) fn ends(ipv6: bool) -> (SocketAddr, SocketAddr) {
    let [local, peer] = if ipv6 { ["[fd00::9]:53", "[fd00::1]:4000"] } else { ["9.8.7.6:53", "10.0.0.1:4000"] };
    (local.parse().unwrap(), peer.parse().unwrap())
}

/// A TCP packet with these options.
pub(crate) fn packet(ipv6: bool, flags: u8, options: &[u8], payload: usize) -> Vec<u8> {
    let tcp_at = if ipv6 { 40 } else { 20 };
    let len = tcp_at + TCP_HEADER_LEN + options.len() + payload;
    let mut packet = vec![0; len];
    if ipv6 {
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
        packet[6] = 6;
    } else {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = 6;
    }
    packet[tcp_at + 12] = ((TCP_HEADER_LEN + options.len()) as u8 / 4) << 4;
    packet[tcp_at + 13] = flags;
    packet[tcp_at + TCP_HEADER_LEN..][..options.len()].copy_from_slice(options);
    packet
}

/// Inserts hop-by-hop options into an IPv6 packet, and destination options if `both`.
pub(crate) fn with_extension_headers(packet: &[u8], both: bool) -> Vec<u8> {
    let mut extensions = vec![packet[6], 0, 1, 4, 0, 0, 0, 0];
    if both {
        extensions[0] = 60;
        extensions.extend([packet[6], 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    let mut packet = packet.to_vec();
    packet[6] = 0;
    let len = u16::from_be_bytes([packet[4], packet[5]]) + extensions.len() as u16;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet.splice(40..40, extensions);
    packet
}

/// A TCP packet with the right checksums.
pub(crate) fn segment(
    from: impl Into<SocketAddr>,
    to: impl Into<SocketAddr>,
    fields: TcpFields,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut headers = [0; MAX_HEADERS_LEN];
    let template = TcpHeaders::new(from.into(), to.into()).unwrap();
    let len = template.write(fields, options, payload, Checksum::Filled, &mut headers);
    [&headers[..len], payload].concat()
}
