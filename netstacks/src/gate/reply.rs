//! The packets that a gate answers with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, IpHeaders, PacketBuilder, PacketBuilderStep};
use platform::vnet::{Transport, checksum};

use crate::{Ends, is_host};

/// Hops that an answer may take.
const HOPS: u8 = 64;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Types of an echo request and its reply (RFC 792; RFC 4443, 4.1 and 4.2). Their code is 0.
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// The shortest echo request, in bytes.
const ECHO_LEN: usize = 8;

/// Why a packet is not delivered: codes of ICMP's destination unreachable (RFC 792; RFC 1812, 5.2.7.1;
/// RFC 4443, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// There is no route to the network.
    Network,
    /// The host does not answer on its link.
    Host,
    /// Nobody has the port.
    Port,
    /// It is not allowed.
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
    /// A SYN with this number, by which the peer knows it again (RFC 5927, 4.1).
    Syn(u32),
    /// A datagram.
    Datagram,
}

/// Source and destination of a packet; `None` for a truncated one.
pub(super) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    if packet.first()? >> 4 == 4 {
        let v4 = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
        return Some((v4(12)?.into(), v4(16)?.into()));
    }
    let v6 = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    Some((v6(8)?.into(), v6(24)?.into()))
}

/// The same where both are hosts' own: nothing else is answered (RFC 1122, 3.2.2).
pub(super) fn one_to_one(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    addresses(packet).filter(|(source, destination)| is_host(*source) && is_host(*destination))
}

/// An IP header from one address to another; `None` where these are of two IP versions.
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
pub(super) fn reset(ends: Ends, sequence: u32) -> Option<Vec<u8>> {
    let tcp = ip(ends.local.ip(), ends.peer.ip())?.tcp(ends.local.port(), ends.peer.port(), 0, 0);
    let mut packet = Vec::new();
    tcp.rst().ack(sequence.wrapping_add(1)).write_to_vec(&mut packet, &[]).ok()?;
    Some(packet)
}

/// The ICMP message that says why a packet from the peer is not delivered.
pub(super) fn unreachable(ends: Ends, undelivered: Undelivered, reason: Unreachable) -> Option<Vec<u8>> {
    let quoted = quote(ends, undelivered)?;
    let header = ip(ends.local.ip(), ends.peer.ip())?;
    let mut packet = Vec::new();
    if ends.local.is_ipv4() {
        let icmp = header.icmpv4(Icmpv4Type::DestinationUnreachable(reason.code_v4()));
        icmp.write_to_vec(&mut packet, &quoted).ok()?;
    } else {
        let icmp = header.icmpv6(Icmpv6Type::DestinationUnreachable(reason.code_v6()));
        icmp.write_to_vec(&mut packet, &quoted).ok()?;
    }
    Some(packet)
}

/// As much of the peer's packet as it needs to find the socket: the headers, without what they carried.
fn quote(ends: Ends, undelivered: Undelivered) -> Option<Vec<u8>> {
    let header = ip(ends.peer.ip(), ends.local.ip())?;
    let mut packet = Vec::new();
    match undelivered {
        Undelivered::Syn(sequence) => {
            header.tcp(ends.peer.port(), ends.local.port(), sequence, 0).syn().write_to_vec(&mut packet, &[]).ok()?;
        }
        Undelivered::Datagram => {
            header.udp(ends.peer.port(), ends.local.port()).write_to_vec(&mut packet, &[]).ok()?;
        }
    }
    Some(packet)
}

/// Makes the reply of an echo request, in place. Whether the packet was one, for one host from one.
#[inline]
pub(super) fn echo(packet: &mut [u8]) -> bool {
    let Some(Transport { ipv6, protocol, at }) = Transport::parse(packet) else { return false };
    let (request, reply) = match (ipv6, protocol) {
        (false, ICMP) => (ECHO_REQUEST, ECHO_REPLY),
        (true, ICMPV6) => (ECHO_REQUEST_V6, ECHO_REPLY_V6),
        _ => return false,
    };
    let Some(message) = packet.get(at..).filter(|message| message.len() >= ECHO_LEN) else { return false };
    if message[..2] != [request, 0] || one_to_one(packet).is_none() {
        return false;
    }
    // RFC 1624, 3. Exchanged addresses leave every sum as it was.
    let checksum = u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
    let change = [!checksum, !u16::from_be_bytes([request, 0]), u16::from_be_bytes([reply, 0])];
    let checksum = !checksum::sum(change.map(u16::to_be_bytes).as_flattened());
    packet[at] = reply;
    packet[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    let addresses = if ipv6 { &mut packet[8..40] } else { &mut packet[12..20] };
    let (source, destination) = addresses.split_at_mut(addresses.len() / 2);
    source.swap_with_slice(destination);
    true
}
