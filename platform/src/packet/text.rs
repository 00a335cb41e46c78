//! Packets as text.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::flags::{ACK, CWR, FIN, PSH, RST, SYN, URG};
use super::tcp::{MSS, WINDOW_SCALE};
use super::{
    FRAGMENT, ICMP, ICMPV6, IPV4_OFFSET_MASK, IPV6_HEADER_LEN, Ipv4Fragment, TCP, TcpOption, TcpSegment, Transport,
    UDP, UDP_CHECKSUM_AT, UDP_HEADER_LEN, UdpHeader, addresses, be16, is_checksum_right, pseudo_header_sum,
};

/// The echo of "congestion experienced" (RFC 3168, 6.1).
const ECE: u8 = 0x40;
/// Kinds of options: selective acknowledgements permitted, and given (RFC 2018), and timestamps (RFC 7323, 3.2).
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// Describes packets in the way of tcpdump. Sequence numbers count from the first one of each side of a connection.
#[derive(Clone, Debug, Default)]
pub struct PacketText {
    /// The first sequence number from one endpoint to another.
    first: HashMap<[SocketAddr; 2], u32>,
}

impl PacketText {
    /// Describes a packet. `None` if it has no IP addresses.
    pub fn line(&mut self, packet: &[u8]) -> Option<String> {
        let (source, destination) = addresses(packet)?;
        let ip = if source.is_ipv6() { "IP6" } else { "IP" };
        let between = format!("{ip} {source} > {destination}");
        let Some(Transport { protocol, at, .. }) = Transport::parse(packet) else {
            return Some(format!("{between}: {}, length {}", unparsed(packet), packet.len()));
        };
        let inner = packet.get(at..).unwrap_or_default();
        let bad = if has_bad_checksum(packet) { ", bad checksum" } else { "" };
        let ports = |from: u16, to: u16| format!("{ip} {source}.{from} > {destination}.{to}");
        Some(match (protocol, TcpSegment::parse(packet), UdpHeader::parse(inner)) {
            (TCP, Some(segment), _) => {
                let text = self.tcp(&segment, source, destination);
                format!("{}: {text}{bad}", ports(segment.source_port(), segment.destination_port()))
            }
            (UDP, _, Some(header)) => {
                let ports = ports(header.source_port, header.destination_port);
                format!("{ports}: UDP, length {}{bad}", inner.len() - UDP_HEADER_LEN)
            }
            (ICMP | ICMPV6, ..) => format!("{between}: {}, length {}", icmp(protocol, inner), inner.len()),
            _ => format!("{between}: protocol {protocol}, length {}", inner.len()),
        })
    }

    fn tcp(&mut self, segment: &TcpSegment<'_>, source: IpAddr, destination: IpAddr) -> String {
        let [from, to] = [(source, segment.source_port()), (destination, segment.destination_port())].map(Into::into);
        let first = *self.first.entry([from, to]).or_insert(segment.sequence());
        let theirs = self.first.get(&[to, from]).copied();
        let of_theirs = |number: u32| theirs.map_or(i64::from(number), |first| distance(first, number));
        let names = [(FIN, 'F'), (SYN, 'S'), (RST, 'R'), (PSH, 'P'), (ACK, '.'), (URG, 'U'), (ECE, 'E'), (CWR, 'W')];
        let names = names.iter().filter(|(flag, _)| segment.flags() & flag != 0).map(|(_, name)| name);
        let names: String = names.collect();
        let (seq, len) = (distance(first, segment.sequence()), segment.payload().len());
        let mut text = format!("Flags [{}], seq {seq}", if names.is_empty() { "none" } else { &names });
        // Writing to a string never fails.
        if len > 0 {
            let _written = write!(text, ":{}", seq.saturating_add_unsigned(len as u64));
        }
        if segment.flags() & ACK != 0 {
            let _written = write!(text, ", ack {}", of_theirs(segment.acknowledgement()));
        }
        let _written = write!(text, ", win {}", segment.window());
        let options: Vec<_> = segment.options().map(|option| tcp_option(option, of_theirs)).collect();
        if !options.is_empty() {
            let _written = write!(text, ", options [{}]", options.join(","));
        }
        let _written = write!(text, ", length {len}");
        text
    }
}

/// How far the sequence number `to` is ahead of `from`.
fn distance(from: u32, to: u32) -> i64 {
    to.wrapping_sub(from).cast_signed().into()
}

/// Describes an option. `of_theirs` makes a number of the other side relative.
fn tcp_option(TcpOption { kind, value, .. }: TcpOption<'_>, of_theirs: impl Fn(u32) -> i64) -> String {
    let (words, _) = value.as_chunks::<4>();
    let word = |word: &[u8; 4]| u32::from_be_bytes(*word);
    match (kind, value, words) {
        (MSS, [high, low], _) => format!("mss {}", u16::from_be_bytes([*high, *low])),
        (WINDOW_SCALE, [shift], _) => format!("wscale {shift}"),
        (SACK_PERMITTED, [], _) => "sackOK".to_owned(),
        (SACK, ..) => {
            let (blocks, _) = words.as_chunks::<2>();
            let block = |[from, to]: &[_; 2]| format!("{{{}:{}}}", of_theirs(word(from)), of_theirs(word(to)));
            format!("sack {} {}", blocks.len(), blocks.iter().map(block).collect::<String>())
        }
        (TIMESTAMPS, _, [value, echo]) => format!("TS val {} ecr {}", word(value), word(echo)),
        _ => format!("unknown-{kind} of {} bytes", value.len()),
    }
}

fn icmp(protocol: u8, message: &[u8]) -> String {
    let [kind, code, _, _, rest @ ..] = message else { return "ICMP, cut off".to_owned() };
    match (protocol, kind, code, rest.first_chunk()) {
        (ICMP, 3, 4, Some(mtu)) | (ICMPV6, 2, 0, Some(mtu)) => {
            format!("ICMP too big, mtu {}", u32::from_be_bytes(*mtu))
        }
        _ => format!("ICMP type {kind}, code {code}"),
    }
}

/// Describes a fragment (RFC 791, 3.1; RFC 8200, 4.5), or a packet with headers that are cut off or wrong.
fn unparsed(packet: &[u8]) -> String {
    let v6 = packet.get(IPV6_HEADER_LEN..).and_then(<[u8]>::first_chunk::<8>);
    let (id, offset, more) = match (Ipv4Fragment::parse(packet), v6) {
        (Some(fragment), _) => {
            let field = be16(packet, 6).unwrap_or_default();
            (fragment.identification.into(), (field & IPV4_OFFSET_MASK) * 8, field & 0x2000 != 0)
        }
        (None, Some([_, _, high, low, id @ ..])) if packet[0] >> 4 == 6 && packet[6] == FRAGMENT => {
            (u32::from_be_bytes(*id), u16::from_be_bytes([*high, low & !7]), low & 1 != 0)
        }
        _ => return "headers that cannot be read".to_owned(),
    };
    format!("fragment {id:#x} at {offset}{}", if more { ", more follow" } else { "" })
}

/// Whether the checksum of a TCP or UDP packet is neither right nor partial.
fn has_bad_checksum(packet: &[u8]) -> bool {
    let Some((at, offset)) = Transport::checksum_place(packet) else { return false };
    let protocol = if offset == UDP_CHECKSUM_AT { UDP } else { TCP };
    let partial = pseudo_header_sum(protocol, packet, at, packet.len());
    be16(packet, at + offset) != Some(partial) && !is_checksum_right(packet)
}
