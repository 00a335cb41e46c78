//! What all stacks have alike of UDP: which packets are datagrams, which may be sent, and where they wait.
//!
//! A stack is shown no datagram that it would have to refuse: lwIP does not look at the length field, ipstack
//! not at the checksum's absence, and each would answer a closed port in a way of its own.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Waker};

use crate::Datagram;

/// Datagrams that wait for [`crate::Datagrams::recv`] at most. What comes beyond them is dropped, as by any
/// host.
pub const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Bytes of payload that wait for [`crate::Datagrams::recv`] at most.
pub const MAX_WAITING_BYTES: usize = 4 << 20;

/// The largest payload of a datagram over IPv4, in bytes: what the total length leaves beside the headers.
pub(crate) const MAX_PAYLOAD_V4: usize = 65_535 - IPV4_HEADER_LEN - UDP_HEADER_LEN;

const UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

/// Datagrams that wait to be received.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Somebody may still receive. A closed one takes nothing.
    open: bool,
    waiting: VecDeque<Datagram>,
    /// Their payloads, one behind the other: no allocation for each.
    payloads: VecDeque<u8>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { open: true, waiting: VecDeque::new(), payloads: VecDeque::new() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nobody receives any more.
    pub(crate) fn close(&mut self) {
        *self = Self { open: false, ..Self::new() };
    }

    /// Takes a datagram in, or drops it.
    pub(crate) fn push(&mut self, local: SocketAddr, peer: SocketAddr, payload: &[u8]) {
        let full = self.waiting.len() >= MAX_WAITING_DATAGRAMS;
        if !self.open || full || self.payloads.len() + payload.len() > MAX_WAITING_BYTES {
            return;
        }
        self.payloads.extend(payload);
        self.waiting.push_back(Datagram { len: payload.len(), local, peer });
    }

    /// The oldest, its payload in `buffer`; what does not fit is cut off.
    pub(crate) fn pop(&mut self, buffer: &mut [u8]) -> Option<Datagram> {
        let datagram = self.waiting.pop_front()?;
        let len = datagram.len.min(buffer.len());
        let (front, back) = self.payloads.as_slices();
        let of_front = len.min(front.len());
        buffer[..of_front].copy_from_slice(&front[..of_front]);
        buffer[of_front..len].copy_from_slice(&back[..len - of_front]);
        self.payloads.drain(..datagram.len);
        Some(Datagram { len, ..datagram })
    }
}

/// Tasks that wait for a datagram at once. One more, and all look again: some have lost interest.
const MAX_RECEIVERS: usize = 64;

/// The tasks that wait for a datagram.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<Waker>);

impl Receivers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }

    pub(crate) fn park(&mut self, cx: &Context<'_>) {
        if self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            return;
        }
        if self.0.len() >= MAX_RECEIVERS {
            self.wake();
        }
        self.0.push(cx.waker().clone());
    }
}

/// A packet of UDP's that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A whole datagram between two hosts.
    Whole { local: SocketAddr, peer: SocketAddr },
    /// A fragment of one over IPv4: of which, and the port that it is for, where it is the first.
    Fragment { of: (Ipv4Addr, Ipv4Addr, u16), port: Option<u16> },
    /// One that nobody is to see.
    Refused,
}

impl Arrival {
    /// Reads a packet; `None` where it is not UDP. IPv6's extension headers are not looked behind.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let protocol = match packet.first()? >> 4 {
            4 => *packet.get(9)?,
            6 => *packet.get(6)?,
            _ => return None,
        };
        if protocol != UDP {
            return None;
        }
        let parsed = if packet[0] >> 4 == 4 { Self::parse_v4(packet) } else { Self::parse_v6(packet) };
        Some(parsed.unwrap_or(Self::Refused))
    }

    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let header_len = usize::from(packet[0] & 0x0f) * 4;
        if header_len < IPV4_HEADER_LEN {
            return None;
        }
        let transport = packet.get(header_len..usize::from(be16(packet, 2)?))?;
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let (peer, local) = (address(12)?, address(16)?);
        let fragment = be16(packet, 6)? & 0x3fff;
        if fragment == 0 {
            return Self::whole(local.into(), peer.into(), transport);
        }
        let offset = fragment & 0x1fff;
        let port = if offset == 0 { Some(be16(transport, 2)?) } else { None };
        is_host(local.into()).then_some(Self::Fragment { of: (local, peer, be16(packet, 4)?), port })
    }

    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let transport = packet.get(IPV6_HEADER_LEN..IPV6_HEADER_LEN + usize::from(be16(packet, 4)?))?;
        let address = |at: usize| Some(IpAddr::from(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
        let arrival = Self::whole(address(24)?, address(8)?, transport)?;
        // RFC 8200, 8.1: over IPv6 there is no datagram without a checksum.
        (be16(transport, 6)? != 0).then_some(arrival)
    }

    /// RFC 768: the length is that of the header and the payload; a port of 0 is nobody's to be answered.
    fn whole(local: IpAddr, peer: IpAddr, transport: &[u8]) -> Option<Self> {
        let ends = (SocketAddr::new(local, be16(transport, 2)?), SocketAddr::new(peer, be16(transport, 0)?));
        let len = usize::from(be16(transport, 4)?);
        let fits = len >= UDP_HEADER_LEN && len == transport.len() && is_end(ends.0) && is_end(ends.1);
        fits.then_some(Self::Whole { local: ends.0, peer: ends.1 })
    }
}

/// Whether a datagram may be sent. `max_payload_v4` is the stack's; over IPv6 none fragments, and the MTU
/// decides.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`], with the reason.
pub(crate) fn check(
    local: SocketAddr,
    peer: SocketAddr,
    payload_len: usize,
    max_payload_v4: usize,
    mtu: usize,
) -> io::Result<()> {
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if local.is_ipv4() != peer.is_ipv4() {
        return refuse(format!("send a datagram from {local} to {peer}: these are of two IP versions"));
    }
    if !is_end(local) || !is_end(peer) {
        return refuse(format!("send a datagram from {local} to {peer}: each has to be a host's address and port"));
    }
    let most = if local.is_ipv4() { max_payload_v4 } else { max_payload(mtu, true) };
    if payload_len > most {
        return refuse(format!("send a datagram of {payload_len} bytes from {local}: the stack takes {most} at most"));
    }
    Ok(())
}

/// The largest payload, in bytes, of a datagram in one packet of the MTU.
pub(crate) fn max_payload(mtu: usize, ipv6: bool) -> usize {
    let ip_header_len = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    mtu.min(65_535).saturating_sub(ip_header_len + UDP_HEADER_LEN)
}

/// Whether one host may send from there, and be sent to.
fn is_end(end: SocketAddr) -> bool {
    end.port() != 0 && is_host(end.ip())
}

fn is_host(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn ends(ipv6: bool) -> (SocketAddr, SocketAddr) {
        let [local, peer] = if ipv6 { ["[fd00::9]:53", "[fd00::1]:4000"] } else { ["9.8.7.6:53", "10.0.0.1:4000"] };
        (local.parse().unwrap(), peer.parse().unwrap())
    }

    /// A datagram to the port 53, with a checksum that is not looked at.
    fn packet(ipv6: bool, payload: usize) -> Vec<u8> {
        let len = (UDP_HEADER_LEN + payload) as u16;
        let mut packet =
            if ipv6 { vec![0x60, 0, 0, 0, 0, 0, UDP, 64] } else { vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, UDP, 0, 0] };
        let (local, peer) = ends(ipv6);
        for address in [peer.ip(), local.ip()] {
            match address {
                IpAddr::V4(address) => packet.extend(address.octets()),
                IpAddr::V6(address) => packet.extend(address.octets()),
            }
        }
        let (at, total) = if ipv6 { (4, len) } else { (2, len + 20) };
        packet[at..at + 2].copy_from_slice(&total.to_be_bytes());
        for field in [peer.port(), local.port(), len, 0xbeef] {
            packet.extend(field.to_be_bytes());
        }
        packet.resize(packet.len() + payload, 1);
        packet
    }

    #[test]
    fn a_datagram_is_read_and_every_truncation_is_refused() {
        for ipv6 in [false, true] {
            let (local, peer) = ends(ipv6);
            let packet = packet(ipv6, 20);
            assert_eq!(Arrival::parse(&packet), Some(Arrival::Whole { local, peer }));
            for len in 0..packet.len() {
                assert!(matches!(Arrival::parse(&packet[..len]), None | Some(Arrival::Refused)), "{len} bytes");
            }
        }
    }

    #[test]
    fn lengths_and_ends_that_cannot_be_are_refused() {
        for ipv6 in [false, true] {
            let udp_at = if ipv6 { 40 } else { 20 };
            for (at, value) in [(4, 29), (4, 27), (4, 7), (4, 0), (4, 0xffff), (0, 0), (2, 0)] {
                let mut packet = packet(ipv6, 20);
                packet[udp_at + at..udp_at + at + 2].copy_from_slice(&u16::to_be_bytes(value));
                assert_eq!(Arrival::parse(&packet), Some(Arrival::Refused), "{value} at {at}");
            }
            let mut multicast = packet(ipv6, 20);
            multicast[if ipv6 { 24 } else { 16 }] = if ipv6 { 0xff } else { 224 };
            assert_eq!(Arrival::parse(&multicast), Some(Arrival::Refused));
            let mut unsummed = packet(ipv6, 20);
            unsummed[udp_at + 6..udp_at + 8].fill(0);
            assert_eq!(Arrival::parse(&unsummed) == Some(Arrival::Refused), ipv6);
            let mut tcp = packet(ipv6, 20);
            tcp[if ipv6 { 6 } else { 9 }] = 6;
            assert_eq!(Arrival::parse(&tcp), None);
        }
    }

    #[test]
    fn only_the_first_fragment_has_a_port() {
        let of = ([9, 8, 7, 6].into(), [10, 0, 0, 1].into(), 7);
        for (field, port) in [(0x2000_u16, Some(53)), (0x2001, None), (0x0001, None)] {
            let mut packet = packet(false, 20);
            packet[6..8].copy_from_slice(&field.to_be_bytes());
            assert_eq!(Arrival::parse(&packet), Some(Arrival::Fragment { of, port }));
        }
    }

    #[test]
    fn what_waits_is_bounded_and_comes_out_in_order() {
        let (local, peer) = ends(false);
        let mut inbox = Inbox::new();
        for index in 0..2 * MAX_WAITING_DATAGRAMS {
            inbox.push(local, peer, &index.to_be_bytes()[..index % 9]);
        }
        let mut buffer = [0; 5];
        for index in 0..MAX_WAITING_DATAGRAMS {
            let datagram = inbox.pop(&mut buffer).unwrap();
            assert_eq!(datagram, Datagram { len: (index % 9).min(5), local, peer });
            assert_eq!(buffer[..datagram.len], index.to_be_bytes()[..datagram.len]);
        }
        assert!(inbox.pop(&mut buffer).is_none() && inbox.payloads.is_empty());
        for _ in 0..200 {
            inbox.push(local, peer, &vec![7; 60_000]);
        }
        assert_eq!(inbox.waiting.len(), MAX_WAITING_BYTES / 60_000);
        inbox.close();
        inbox.push(local, peer, b"");
        assert!(inbox.is_empty() && inbox.payloads.capacity() == 0);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_a_reason() {
        let (v4, v6) = (ends(false), ends(true));
        let refused = |local, peer, len| {
            let error = check(local, peer, len, MAX_PAYLOAD_V4, 1500).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        };
        refused(v4.0, v6.1, 1);
        refused(v4.0, "10.0.0.1:0".parse().unwrap(), 1);
        refused("0.0.0.0:9".parse().unwrap(), v4.1, 1);
        refused(v4.0, "255.255.255.255:9".parse().unwrap(), 1);
        refused(v4.0, v4.1, 65_508);
        refused(v6.0, v6.1, 1453);
        check(v4.0, v4.1, 65_507, MAX_PAYLOAD_V4, 1500).unwrap();
        check(v6.0, v6.1, 1452, MAX_PAYLOAD_V4, 1500).unwrap();
    }
}
