//! The packets that a gate sends.

use std::net::SocketAddr;

use platform::packet::flags::{ACK, RST, SYN};
use platform::packet::{
    ICMP, ICMPV6, MAX_HEADERS_LEN, TcpFields, TcpHeaders, Transport, addresses, checksum, icmp_error, packet_too_big,
};
use platform::{Checksum, vnet};

use crate::{FlowKey, datagrams, is_host, is_link_local};

/// Types of an echo request and its reply (RFC 792; RFC 4443, 4.1 and 4.2). Their code is 0.
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
const ECHO_LEN: usize = 8;

/// Why a packet is not delivered: codes of ICMP (RFC 792; RFC 1812, 5.2.7.1; RFC 4443, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// There is no route to the network.
    Network,
    /// The host does not reply on its link.
    Host,
    /// The port is closed.
    Port,
    /// The traffic is prohibited.
    Prohibited,
}

impl Unreachable {
    fn codes(self) -> (u8, u8) {
        match self {
            Self::Network => (0, 0),
            Self::Host => (1, 3),
            Self::Port => (3, 4),
            Self::Prohibited => (13, 1),
        }
    }
}

/// A RST with the number that its receiver expects (RFC 5961, 3.2).
pub(super) fn reset(from: SocketAddr, to: SocketAddr, sequence: u32) -> Option<Vec<u8>> {
    segment(from, to, TcpFields { sequence, flags: RST, ..TcpFields::default() })
}

/// The RST that refuses a SYN with this sequence number (RFC 9293, 3.10.7.1).
pub(super) fn refusal(key: FlowKey, sequence: u32) -> Option<Vec<u8>> {
    let acknowledgement = sequence.wrapping_add(1);
    segment(key.local, key.peer, TcpFields { acknowledgement, flags: RST | ACK, ..TcpFields::default() })
}

/// The ICMP message (RFC 792; RFC 4443, 3.1) about a SYN that is not delivered, with this number, or a datagram.
pub(super) fn unreachable(key: FlowKey, syn: Option<u32>, reason: Unreachable) -> Option<Vec<u8>> {
    let quoted = quote(key, syn)?;
    let (v4, v6) = reason.codes();
    let (kind, code) = if key.local.is_ipv4() { (3, v4) } else { (1, v6) };
    icmp_error(kind, code, 0, &quoted, quoted.len())
}

/// The ICMP message (RFC 1191, 4; RFC 4443, 3.2) about a datagram that is longer than the MTU. Its payload is not known.
pub(super) fn too_big(FlowKey { local, peer }: FlowKey, mtu: u16) -> Option<Vec<u8>> {
    let payload = vec![0; usize::from(mtu).min(datagrams::MAX_PAYLOAD_V4)];
    packet_too_big(mtu, &datagrams::packet(peer, local, &payload)?)
}

/// The headers of the peer's packet. The peer finds its socket by them, and checks the number (RFC 5927, 4.1).
fn quote(FlowKey { local, peer }: FlowKey, syn: Option<u32>) -> Option<Vec<u8>> {
    let Some(sequence) = syn else {
        let mut packet = datagrams::packet(peer, local, &[])?;
        vnet::complete_checksum(&mut packet).ok()?;
        return Some(packet);
    };
    segment(peer, local, TcpFields { sequence, flags: SYN, ..TcpFields::default() })
}

/// A segment without data; `None` if the IP versions differ.
fn segment(from: SocketAddr, to: SocketAddr, fields: TcpFields) -> Option<Vec<u8>> {
    let mut packet = [0; MAX_HEADERS_LEN];
    let len = TcpHeaders::new(from, to)?.write(fields, &[], &[], Checksum::Filled, &mut packet);
    Some(packet[..len].to_vec())
}

/// Turns an echo request between hosts into its reply, in place. Returns `false` for any other packet.
#[inline]
pub(super) fn echo(packet: &mut [u8]) -> bool {
    let Some(Transport { ipv6, protocol, at }) = Transport::parse(packet) else { return false };
    let (request, reply) = match (ipv6, protocol) {
        (false, ICMP) => (ECHO_REQUEST, ECHO_REPLY),
        (true, ICMPV6) => (ECHO_REQUEST_V6, ECHO_REPLY_V6),
        _ => return false,
    };
    let Some(message) = packet.get(at..).filter(|message| message.len() >= ECHO_LEN) else { return false };
    // No reply to a multicast or broadcast message (RFC 1122, 3.2.2.6).
    let is_far = |address| is_host(address) && !is_link_local(address);
    let unicast = addresses(packet).is_some_and(|(source, destination)| is_far(source) && is_far(destination));
    if message[..2] != [request, 0] || !unicast {
        return false;
    }
    // Swapping the addresses does not change any checksum.
    let checksum = u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
    let checksum = checksum::update(checksum, u16::from_be_bytes([request, 0]), u16::from_be_bytes([reply, 0]));
    packet[at] = reply;
    packet[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    let addresses = if ipv6 { &mut packet[8..40] } else { &mut packet[12..20] };
    let (source, destination) = addresses.split_at_mut(addresses.len() / 2);
    source.swap_with_slice(destination);
    true
}
