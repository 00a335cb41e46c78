//! The packets that a gate answers with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::icmpv6::DestUnreachableCode;
use etherparse::{Icmpv4Type, Icmpv6Type, IpHeaders, PacketBuilder, PacketBuilderStep};

use super::Ends;
use crate::is_host;

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
    let Some(echo) = Echo::parse(packet) else { return false };
    if one_to_one(packet).is_none() {
        return false;
    }
    packet[echo.at] = echo.reply;
    // RFC 1624, 3. Exchanged addresses leave every sum as it was.
    let [request, reply] = [echo.request, echo.reply].map(|kind| u16::from(kind) << 8);
    let checksum = u16::from_be_bytes([packet[echo.at + 2], packet[echo.at + 3]]);
    let checksum = !ones_complement_sum([!checksum, !request, reply]);
    packet[echo.at + 2..echo.at + 4].copy_from_slice(&checksum.to_be_bytes());
    let (source, destination) = packet[echo.addresses].split_at_mut(echo.address_len);
    source.swap_with_slice(destination);
    true
}

/// An echo request.
struct Echo {
    /// Where the message lies.
    at: usize,
    request: u8,
    reply: u8,
    addresses: Range<usize>,
    address_len: usize,
}

impl Echo {
    /// Reads a packet; `None` for anything else, a fragment, and what is too short.
    #[inline]
    fn parse(packet: &[u8]) -> Option<Self> {
        let echo = match (packet.first()? >> 4, *packet.get(6)?, *packet.get(9)?) {
            (4, _, ICMP) => {
                let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff;
                let at = usize::from(packet[0] & 0x0f) * 4;
                if fragment != 0 || at < 20 {
                    return None;
                }
                Self { at, request: ECHO_REQUEST, reply: ECHO_REPLY, addresses: 12..20, address_len: 4 }
            }
            (6, ICMPV6, _) => {
                Self { at: 40, request: ECHO_REQUEST_V6, reply: ECHO_REPLY_V6, addresses: 8..40, address_len: 16 }
            }
            _ => return None,
        };
        let message = packet.get(echo.at..)?;
        (message.len() >= ECHO_LEN && message[..2] == [echo.request, 0]).then_some(echo)
    }
}

/// The sum of RFC 1071.
fn ones_complement_sum(words: [u16; 3]) -> u16 {
    let sum: u32 = words.into_iter().map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
