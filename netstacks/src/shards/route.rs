//! The shard of a packet.
//!
//! | packet | goes by |
//! |---|---|
//! | TCP, UDP | its addresses and ports |
//! | ICMP error | the packet that it quotes |
//! | fragment | the first fragment of its packet, which has the ports; until that comes it waits here |
//! | any other | its addresses |

use std::collections::VecDeque;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use platform::PacketBuffer;
use platform::packet::{ICMP, ICMPV6, Ipv4Fragment, Ipv6Fragment, TCP, Transport, UDP, addresses};

use super::Spread;
use crate::{FlowKey, lock};

/// Fragmented packets whose shard is remembered. Beyond that the oldest is forgotten, and its fragments that wait are lost.
pub(super) const MAX_FRAGMENTED: usize = 64;

/// Fragments that wait for the first of their packet: those of three packets of 64 KiB. Then the oldest are lost.
const MAX_WAITING: usize = 3 * 45;

/// Length of the header of an ICMP error, in bytes. The quoted packet follows it.
const ICMP_HEADER_LEN: usize = 8;

#[derive(Debug)]
pub(super) struct Router {
    spread: Spread,
    shards: usize,
    /// Of all shards together: the fragments of a packet may come over different links.
    fragments: Mutex<Fragments>,
}

#[derive(Debug, Default)]
struct Fragments {
    /// The last one was used last.
    packets: VecDeque<Fragmented>,
    waiting: usize,
}

/// Both hosts, and the number that all fragments of one packet share; see [`fragment`].
type Name = (IpAddr, IpAddr, u32);

#[derive(Debug)]
struct Fragmented {
    name: Name,
    /// `None` until the first fragment comes.
    shard: Option<usize>,
    waiting: Vec<PacketBuffer>,
}

/// Packets on their way to a shard, and empty buffers.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) packets: VecDeque<(usize, PacketBuffer)>,
    pub(super) spare: Vec<PacketBuffer>,
    capacity: usize,
}

impl Outgoing {
    pub(super) fn new(capacity: usize) -> Self {
        Self { packets: VecDeque::new(), spare: Vec::new(), capacity }
    }

    /// Takes a packet out of its buffer, and leaves an empty one.
    fn take(&mut self, buffer: &mut PacketBuffer) -> PacketBuffer {
        let empty = self.spare.pop().unwrap_or_else(|| PacketBuffer::new(self.capacity));
        mem::replace(buffer, empty)
    }

    pub(super) fn push(&mut self, shard: usize, buffer: &mut PacketBuffer) {
        let packet = self.take(buffer);
        self.packets.push_back((shard, packet));
    }
}

impl Router {
    pub(super) fn new(spread: Spread, shards: usize) -> Self {
        Self { spread, shards, fragments: Mutex::default() }
    }

    /// The shard of a packet. `None` if it is a fragment that waits now for the first of its packet.
    pub(super) fn route(&self, buffer: &mut PacketBuffer, outgoing: &mut Outgoing) -> Option<usize> {
        let packet = buffer.packet();
        let Some((from, to)) = addresses(packet) else { return Some(0) };
        let Some(transport) = Transport::parse(packet) else {
            let Some((number, first)) = fragment(packet) else { return Some(self.of((from, to), None)) };
            let shard = first.map(|transport| self.of((from, to), ports(packet, transport)));
            return self.of_fragment((from, to, number), shard, buffer, outgoing);
        };
        if let Some(quoted) = quoted(packet, transport)
            && let Some(ends) = addresses(quoted)
        {
            let transport = Transport::parse(quoted).or_else(|| fragment(quoted)?.1);
            return Some(self.of(ends, transport.and_then(|transport| ports(quoted, transport))));
        }
        Some(self.of((from, to), ports(packet, transport)))
    }

    fn of(&self, (from, to): (IpAddr, IpAddr), ports: Option<[u16; 2]>) -> usize {
        let [source, destination] = ports.unwrap_or_default();
        let key = FlowKey { local: SocketAddr::new(to, destination), peer: SocketAddr::new(from, source) };
        self.spread.shard(key, self.shards)
    }

    /// The shard of a fragment; `first` is that of the first one.
    #[cold]
    fn of_fragment(
        &self,
        name: Name,
        first: Option<usize>,
        buffer: &mut PacketBuffer,
        outgoing: &mut Outgoing,
    ) -> Option<usize> {
        let mut fragments = lock(&self.fragments);
        let mut known = fragments.take(name).unwrap_or(Fragmented { name, shard: None, waiting: Vec::new() });
        known.shard = first.or(known.shard);
        if let Some(shard) = known.shard {
            outgoing.packets.extend(known.waiting.drain(..).map(|packet| (shard, packet)));
        } else {
            known.waiting.push(outgoing.take(buffer));
        }
        let shard = known.shard;
        fragments.put(known);
        shard
    }
}

impl Fragments {
    fn take(&mut self, name: Name) -> Option<Fragmented> {
        let at = self.packets.iter().position(|packet| packet.name == name)?;
        let known = self.packets.remove(at)?;
        self.waiting -= known.waiting.len();
        Some(known)
    }

    fn put(&mut self, packet: Fragmented) {
        self.waiting += packet.waiting.len();
        self.packets.push_back(packet);
        while self.packets.len() > MAX_FRAGMENTED || self.waiting > MAX_WAITING {
            let Some(oldest) = self.packets.pop_front() else { return };
            self.waiting -= oldest.waiting.len();
        }
    }
}

/// The number of a fragment's packet, with the protocol over IPv4, and the transport header of the first fragment.
fn fragment(packet: &[u8]) -> Option<(u32, Option<Transport>)> {
    if let Some(Ipv4Fragment { protocol, identification, is_first, header_len: at }) = Ipv4Fragment::parse(packet) {
        let number = u32::from(protocol) << 16 | u32::from(identification);
        return Some((number, is_first.then_some(Transport { ipv6: false, protocol, at })));
    }
    let Ipv6Fragment { protocol, identification, is_first, payload_at: at } = Ipv6Fragment::parse(packet)?;
    // Destination options may stand behind the fragment header.
    let transport = || Transport::behind(packet, protocol, at).unwrap_or(Transport { ipv6: true, protocol, at });
    Some((identification, is_first.then(transport)))
}

fn quoted(packet: &[u8], Transport { protocol, at, .. }: Transport) -> Option<&[u8]> {
    let is_error = match (protocol, packet.get(at)) {
        // RFC 792: destination unreachable, source quench, redirect, time exceeded, parameter problem.
        (ICMP, Some(kind)) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // RFC 4443, 2.1: errors have types below 128.
        (ICMPV6, Some(kind)) => *kind < 128,
        _ => false,
    };
    packet.get(at + ICMP_HEADER_LEN..).filter(|_| is_error)
}

fn ports(packet: &[u8], Transport { protocol, at, .. }: Transport) -> Option<[u16; 2]> {
    let [a, b, c, d] = *packet.get(at..)?.first_chunk()?;
    matches!(protocol, TCP | UDP).then_some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Router {
        pub(in crate::shards) fn waiting(&self) -> usize {
            let fragments = lock(&self.fragments);
            assert_eq!(fragments.packets.iter().map(|packet| packet.waiting.len()).sum::<usize>(), fragments.waiting);
            fragments.waiting
        }
    }
}
