//! Builds UDP and ICMP packets, and unusual forms of IP packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use platform::packet::checksum::sum;
use platform::packet::{ICMP, ICMPV6, TCP, Transport, UDP, addresses, icmp_error, write_ip};

use crate::wire::transport_sum;

/// Returns an IP packet with this payload. It is empty if the addresses are of different IP versions. No case has this.
pub(crate) fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 40];
    let Some(len) = write_ip(&mut header, from, to, protocol, payload.len()) else { return Vec::new() };
    [&header[..len], payload].concat()
}

/// Returns an ICMP error about a packet of the stack. `rest` is the four bytes after the checksum.
pub(crate) fn error(kind: u8, code: u8, rest: u32, about: &[u8]) -> Vec<u8> {
    let quoted = if addresses(about).is_some_and(|(source, _)| source.is_ipv6()) { 500 } else { 28 };
    icmp_error(kind, code, rest, about, quoted).unwrap_or_default()
}

/// Returns the ICMP error that a packet of the stack is too big for an MTU.
pub(crate) fn too_big(mtu: u32, about: &[u8]) -> Vec<u8> {
    let [kind, code] = if about.first().is_some_and(|first| first >> 4 == 6) { [2, 0] } else { [3, 4] };
    error(kind, code, mtu, about)
}

/// Returns an ICMP message (RFC 792, RFC 4443). `body` is everything after the checksum.
pub(crate) fn message(from: IpAddr, to: IpAddr, kind: [u8; 2], body: &[u8]) -> Vec<u8> {
    let protocol = if from.is_ipv6() { ICMPV6 } else { ICMP };
    let mut packet = packet(from, to, protocol, &[&kind, &[0; 2], body].concat());
    let at = packet.len() - body.len() - 4;
    let checksum = !transport_sum(&packet, at, protocol);
    packet[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Flips the last bit of a packet.
pub(crate) fn damaged(mut packet: Vec<u8>) -> Vec<u8> {
    packet.iter_mut().rev().take(1).for_each(|last| *last ^= 1);
    packet
}

/// Replaces bytes of the TCP header of a packet. The checksum is right afterwards.
pub(crate) fn with_tcp_bytes(mut packet: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    let Some(tcp) = Transport::parse(&packet).map(|transport| transport.at) else { return packet };
    packet[tcp + at..tcp + at + bytes.len()].copy_from_slice(bytes);
    packet[tcp + 16..tcp + 18].fill(0);
    let checksum = !transport_sum(&packet, tcp, TCP);
    packet[tcp + 16..tcp + 18].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Replaces bytes of the IP header of a packet. The checksum of an IPv4 header without options is right afterwards.
pub(crate) fn with_ip_bytes(mut packet: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let checksum = !sum(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}

pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    datagram_with(from, to, payload, 8 + payload.len() as u16, None)
}

/// Returns a datagram with this length field and this checksum. `None` is the right checksum.
pub(crate) fn datagram_with(
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
    len: u16,
    checksum: Option<u16>,
) -> Vec<u8> {
    let mut udp: Vec<u8> = [from.port(), to.port(), len, 0].into_iter().flat_map(u16::to_be_bytes).collect();
    udp.extend(payload);
    let mut packet = packet(from.ip(), to.ip(), UDP, &udp);
    let at = packet.len() - udp.len();
    let checksum = checksum.unwrap_or_else(|| match !transport_sum(&packet, at, UDP) {
        // Zero means that there is no checksum.
        0 => 0xffff,
        checksum => checksum,
    });
    packet[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Returns the fragments of a packet. Each holds up to `len` bytes, a multiple of 8.
pub(crate) fn fragments(packet: &[u8], len: usize) -> Vec<Vec<u8>> {
    if packet[0] >> 4 == 6 { fragments_v6(packet, len) } else { fragments_v4(packet, len) }
}

fn fragments_v4(packet: &[u8], len: usize) -> Vec<Vec<u8>> {
    let (header, payload) = packet.split_at(20);
    let count = payload.len().div_ceil(len);
    let fragment = |(index, payload): (usize, &[u8])| {
        let more = if index + 1 < count { 0x2000 } else { 0 };
        let fields = [(20 + payload.len()) as u16, 0x4711, more | (index * len / 8) as u16];
        with_ip_bytes([header, payload].concat(), 2, fields.map(u16::to_be_bytes).as_flattened())
    };
    payload.chunks(len).enumerate().map(fragment).collect()
}

/// Returns the IPv6 fragments of a packet without extension headers.
fn fragments_v6(packet: &[u8], len: usize) -> Vec<Vec<u8>> {
    let payload = &packet[40..];
    let count = payload.len().div_ceil(len);
    let fragment = |(index, payload): (usize, &[u8])| {
        let more = u16::from(index + 1 < count);
        let mut header = vec![packet[6], 0];
        header.extend(((index * len) as u16 | more).to_be_bytes());
        header.extend(0x0815_4711_u32.to_be_bytes());
        with_extension(&[&packet[..40], payload].concat(), 44, &header)
    };
    payload.chunks(len).enumerate().map(fragment).collect()
}

/// Inserts an extension header before all others of an IPv6 packet. Its first byte is set to the next header.
pub(crate) fn with_extension(packet: &[u8], number: u8, header: &[u8]) -> Vec<u8> {
    let mut extended = packet.to_vec();
    let mut header = header.to_vec();
    header[0] = packet[6];
    extended[6] = number;
    extended.splice(40..40, header);
    let len = (extended.len() - 40) as u16;
    extended[4..6].copy_from_slice(&len.to_be_bytes());
    extended
}

/// Adds options to an IPv4 packet: a multiple of four bytes.
pub(crate) fn with_ip_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    let mut extended = packet.to_vec();
    extended.splice(20..20, options.iter().copied());
    let header_len = 20 + options.len();
    extended[0] = 0x40 | (header_len / 4) as u8;
    let len = extended.len() as u16;
    extended[2..4].copy_from_slice(&len.to_be_bytes());
    extended[10..12].fill(0);
    let checksum = !sum(&extended[..header_len]);
    extended[10..12].copy_from_slice(&checksum.to_be_bytes());
    extended
}

/// Multicast and broadcast addresses, which no host has.
pub(crate) fn groups(ipv6: bool) -> Vec<IpAddr> {
    if ipv6 {
        let groups = [(0xff02, 1), (0xff05, 2), (0xff0e, 0x1234)];
        groups.map(|(scope, group)| Ipv6Addr::new(scope, 0, 0, 0, 0, 0, 0, group).into()).into()
    } else {
        [Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::BROADCAST].map(IpAddr::V4).into()
    }
}
