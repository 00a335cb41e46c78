//! The packets that a gate sends.

use std::net::IpAddr;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, IpHeaders, PacketBuilder, PacketBuilderStep};
use platform::packet::{ICMP, ICMPV6, Transport, addresses, checksum};

use crate::{FlowKey, is_host};

/// The hop limit of a reply.
const HOPS: u8 = 64;

/// Types of an echo request and its reply (RFC 792; RFC 4443, 4.1 and 4.2). Their code is 0.
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// The shortest echo request, in bytes.
const ECHO_LEN: usize = 8;

/// Why a packet is not delivered: the codes of ICMP's destination unreachable message (RFC 792; RFC 1812, 5.2.7.1;
/// RFC 4443, 3.1). See [`Answers`](crate::Answers).
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
    fn code_v4(self) -> DestUnreachableHeader {
        match self {
            Self::Network => DestUnreachableHeader::Network,
            Self::Host => DestUnreachableHeader::Host,
            Self::Port => DestUnreachableHeader::Port,
            Self::Prohibited => DestUnreachableHeader::FilterProhibited,
        }
    }

    fn code_v6(self) -> DestUnreachableCode {
        match self {
            Self::Network => DestUnreachableCode::NoRoute,
            Self::Host => DestUnreachableCode::Address,
            Self::Port => DestUnreachableCode::Port,
            Self::Prohibited => DestUnreachableCode::Prohibited,
        }
    }
}

/// A packet that is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undelivered {
    /// A SYN with this sequence number. The peer checks it (RFC 5927, 4.1).
    Syn(u32),
    /// A datagram.
    Datagram,
}

/// An IP header from one address to another; `None` if their IP versions differ.
fn ip(source: IpAddr, destination: IpAddr) -> Option<PacketBuilderStep<IpHeaders>> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(PacketBuilder::ipv4(source.octets(), destination.octets(), HOPS))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Some(PacketBuilder::ipv6(source.octets(), destination.octets(), HOPS))
        }
        _ => None,
    }
}

/// The RST that refuses a SYN with this sequence number (RFC 9293, 3.10.7.1).
pub(super) fn reset(key: FlowKey, sequence: u32) -> Option<Vec<u8>> {
    let tcp = ip(key.local.ip(), key.peer.ip())?.tcp(key.local.port(), key.peer.port(), 0, 0);
    let mut packet = Vec::new();
    tcp.rst().ack(sequence.wrapping_add(1)).write_to_vec(&mut packet, &[]).ok()?;
    Some(packet)
}

/// The ICMP message about a packet from the peer that is not delivered.
pub(super) fn unreachable(key: FlowKey, undelivered: Undelivered, reason: Unreachable) -> Option<Vec<u8>> {
    let quoted = quote(key, undelivered)?;
    let header = ip(key.local.ip(), key.peer.ip())?;
    let mut packet = Vec::new();
    if key.local.is_ipv4() {
        let icmp = header.icmpv4(Icmpv4Type::DestinationUnreachable(reason.code_v4()));
        icmp.write_to_vec(&mut packet, &quoted).ok()?;
    } else {
        let icmp = header.icmpv6(Icmpv6Type::DestinationUnreachable(reason.code_v6()));
        icmp.write_to_vec(&mut packet, &quoted).ok()?;
    }
    Some(packet)
}

/// The headers of the peer's packet. The peer uses them to find its socket.
fn quote(key: FlowKey, undelivered: Undelivered) -> Option<Vec<u8>> {
    let header = ip(key.peer.ip(), key.local.ip())?;
    let mut packet = Vec::new();
    match undelivered {
        Undelivered::Syn(sequence) => {
            header.tcp(key.peer.port(), key.local.port(), sequence, 0).syn().write_to_vec(&mut packet, &[]).ok()?;
        }
        Undelivered::Datagram => {
            header.udp(key.peer.port(), key.local.port()).write_to_vec(&mut packet, &[]).ok()?;
        }
    }
    Some(packet)
}

/// Turns an echo request into its reply, in place. Returns `false` for any other packet, and for an echo request with
/// an address that is not unicast.
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
    let unicast = addresses(packet).is_some_and(|(source, destination)| is_host(source) && is_host(destination));
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
