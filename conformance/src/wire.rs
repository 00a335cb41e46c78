//! The peer's end of a link. It sends any packet, checks every packet of the stack (lengths, checksums, what the link
//! allows), splits super-packets as a device would, and sorts the segments by connection.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use platform::packet::checksum::sum;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};
use platform::packet::{
    ICMP, ICMPV6, TCP, TcpOptions, TcpSegment, Transport, UDP, addresses, ip_len, write_partial_udp_checksum,
};
use platform::vnet::{self, SuperPacket};
use platform::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};

use crate::link::{AnyLink, Origin};
use crate::{Step, Stop};

/// Kinds of TCP options (RFC 2018, 3; RFC 7323, 3.2).
pub(crate) const SACK: u8 = 5;
pub(crate) const TIMESTAMPS: u8 = 8;

/// How long a packet may wait for room on the link.
const ROOM: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// The window field, not shifted.
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) at: Instant,
    /// Length of the IP packet, and whether routers may not fragment it.
    pub(crate) packet_len: usize,
    pub(crate) dont_fragment: bool,
    /// The ECN field of the IP header (RFC 3168, 5).
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    /// The number of the packet on the link. Segments of one super-packet have the same.
    pub(crate) packet: usize,
}

impl Segment {
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The length in sequence space, with SYN and FIN.
    pub(crate) fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    pub(crate) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len())
    }

    pub(crate) fn option(&self, kind: u8) -> Option<&[u8]> {
        TcpOptions::of(&self.options).find(|option| option.kind == kind).map(|option| option.value)
    }

    pub(crate) fn stamps(&self) -> Option<[u32; 2]> {
        let (own, echo) = self.option(TIMESTAMPS)?.split_first_chunk()?;
        Some([u32::from_be_bytes(*own), u32::from_be_bytes(echo.try_into().ok()?)])
    }

    pub(crate) fn blocks(&self) -> Vec<[u32; 2]> {
        let (numbers, _) = self.option(SACK).unwrap_or_default().as_chunks::<4>();
        let (blocks, _) = numbers.as_chunks::<2>();
        blocks.iter().map(|block| block.map(u32::from_be_bytes)).collect()
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(SYN, "SYN"), (FIN, "FIN"), (RST, "RST"), (PSH, "PSH"), (ACK, "ACK"), (URG, "URG")];
        let names: Vec<_> = names.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        write!(f, "{}", if names.is_empty() { "no flags".to_owned() } else { names.join("+") })?;
        match self.payload.len() {
            0 => Ok(()),
            len => write!(f, " with {len} bytes"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) checksum: u16,
    pub(crate) hop_limit: u8,
    pub(crate) payload: Vec<u8>,
}

/// An ICMP message from the stack (RFC 792, RFC 4443).
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) kind: [u8; 2],
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// Checks that an ICMP error is about this packet: its addresses, and its quote of at least `least` bytes.
    pub(crate) fn is_about(&self, packet: &[u8], least: usize) -> Step {
        let (from, to) = (self.source, self.destination);
        check!(addresses(packet) == Some((to, from)), "the error is from {from} to {to}")?;
        // Routers change the hop limit, and with it the checksum of an IPv4 header.
        let changed = if from.is_ipv6() { 7..8 } else { 8..12 };
        let kept = |bytes: &[u8]| [&bytes[..changed.start], &bytes[changed.end..]].concat();
        let quote = self.body.get(4..).unwrap_or_default();
        let len = quote.len();
        let is_quote = len >= least && kept(packet).starts_with(&kept(quote));
        check!(is_quote, "the error quotes {len} bytes, and they are not the first of the packet")
    }
}

/// The ports and addresses of a TCP connection: the peer's port, the stack's address and port.
pub(crate) type Key = (u16, IpAddr, u16);

pub(crate) struct Wire {
    link: AnyLink,
    capabilities: Capabilities,
    buffers: Vec<PacketBuffer>,
    scratch: Vec<u8>,
    segments: HashMap<Key, VecDeque<Segment>>,
    datagrams: VecDeque<Arrived>,
    messages: VecDeque<Message>,
    /// Fragments, and packets of other protocols.
    others: VecDeque<Vec<u8>>,
    pub(crate) violation: Option<String>,
    packets: usize,
    pub(crate) super_packets: usize,
    /// Whether packets of other hosts have been sent, so that the stack may answer to any address.
    pub(crate) has_strangers: bool,
    /// Whether a packet is lost if the link has no room for it. Otherwise it waits.
    pub(crate) is_lossy: bool,
    waker: Waker,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Wire {
    /// Must be used on the calling thread only: the waker unparks that thread.
    pub(crate) fn new(link: AnyLink) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len.max(capabilities.mtu);
        Self {
            capabilities,
            buffers: (0..capabilities.batch).map(|_| PacketBuffer::new(room)).collect(),
            scratch: vec![0; Capabilities::MAX_SUPER_PACKET],
            link,
            segments: HashMap::new(),
            datagrams: VecDeque::new(),
            messages: VecDeque::new(),
            others: VecDeque::new(),
            violation: None,
            packets: 0,
            super_packets: 0,
            has_strangers: false,
            is_lossy: false,
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(crate) fn send(&mut self, packet: &[u8]) -> Step {
        let (len, mtu) = (packet.len(), self.capabilities.mtu);
        applies!(len <= mtu, "the client sends {len} bytes, and the MTU is {mtu}")?;
        self.send_with(PacketMeta::default(), packet)
    }

    /// Joins segments into a super-packet with a partial checksum, and sends it.
    pub(crate) fn send_joined(&mut self, segments: &[Vec<u8>]) -> Step {
        let mut scratch = std::mem::take(&mut self.scratch);
        let joined = segments.split_first().and_then(|(first, rest)| {
            let mut whole = SuperPacket::begin(&mut scratch, first)?;
            rest.iter().all(|segment| whole.append(segment)).then(|| whole.finish())
        });
        let result = match joined {
            Some((len, meta)) => self.send_with(meta, &scratch[..len]),
            None => fail!("the case made segments that cannot be joined"),
        };
        self.scratch = scratch;
        result
    }

    /// Sends a datagram with a partial checksum, as a super-packet if `segment_len` is less than its payload.
    pub(crate) fn send_unsummed(&mut self, mut datagram: Vec<u8>, segment_len: usize) -> Step {
        let len = datagram.len();
        write_partial_udp_checksum(&mut datagram, len);
        let headers_len = if datagram[0] >> 4 == 6 { 48 } else { 28 };
        let gso_size = NonZeroU16::new(segment_len as u16).filter(|_| len - headers_len > segment_len);
        if gso_size.is_some() && !self.link.segments_udp() {
            return Err(Stop::NotApplicable("the stack takes no UDP super-packets: the link cuts them".to_owned()));
        }
        self.send_with(PacketMeta { checksum: Checksum::Partial, gso_size }, &datagram)
    }

    fn send_with(&mut self, meta: PacketMeta, packet: &[u8]) -> Step {
        let deadline = Instant::now() + crate::patient(ROOM);
        loop {
            match self.link.try_send(meta, &[IoSlice::new(packet)]) {
                Ok(()) => {
                    return self.link.flush().map_err(|error| Stop::hang(format!("the link failed: {error}")));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_lossy => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    // Receive too: the stack may not take packets before it can send its own.
                    self.take()?;
                    let waker = self.waker.clone();
                    if self.link.poll_writable(&mut Context::from_waker(&waker)).is_pending() {
                        thread::park_timeout(Duration::from_millis(5));
                    }
                }
                Err(error) => return fail!(Hang, "the link takes no packet: {error}"),
            }
        }
    }

    pub(crate) fn segment(&mut self, key: Key, until: Instant) -> Step<Option<Segment>> {
        self.next(until, |wire| wire.segments.get_mut(&key)?.pop_front())
    }

    pub(crate) fn datagram(&mut self, until: Instant) -> Step<Option<Arrived>> {
        self.next(until, |wire| wire.datagrams.pop_front())
    }

    pub(crate) fn message(&mut self, until: Instant) -> Step<Option<Message>> {
        self.next(until, |wire| wire.messages.pop_front())
    }

    pub(crate) fn other(&mut self, until: Instant) -> Step<Option<Vec<u8>>> {
        self.next(until, |wire| wire.others.pop_front())
    }

    fn next<T>(&mut self, until: Instant, mut pop: impl FnMut(&mut Self) -> Option<T>) -> Step<Option<T>> {
        loop {
            if let Some(found) = pop(self) {
                return Ok(Some(found));
            }
            if self.take()? {
                continue;
            }
            let now = Instant::now();
            if now >= until {
                return Ok(None);
            }
            let waker = self.waker.clone();
            match self.link.poll_readable(&mut Context::from_waker(&waker)) {
                Poll::Pending => thread::park_timeout(until - now),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return fail!(Hang, "the link failed: {error}"),
            }
        }
    }

    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.poll_readable(cx).map(drop)
    }

    pub(crate) fn take(&mut self) -> Step<bool> {
        let mut buffers = std::mem::take(&mut self.buffers);
        let result = self.link.try_recv(&mut buffers);
        for buffer in &mut buffers[..*result.as_ref().unwrap_or(&0)] {
            self.sort(buffer.meta(), buffer.packet());
        }
        self.buffers = buffers;
        match result {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => fail!(Hang, "the stack has ended"),
            Err(error) => fail!(Hang, "the link failed: {error}"),
        }
    }

    fn sort(&mut self, meta: PacketMeta, packet: &[u8]) {
        match addresses(packet).map(|(source, _)| Origin::of(source)) {
            Some(Origin::Stack) => {}
            Some(Origin::Forged) if !self.has_strangers => {
                self.violation.get_or_insert_with(|| "the stack sent a packet from an address of others".to_owned());
            }
            Some(Origin::Forged | Origin::System) | None => return,
        }
        self.packets += 1;
        if let Some(violation) = violation(meta, packet) {
            self.violation.get_or_insert(violation);
        }
        self.super_packets += usize::from(meta.gso_size.is_some());
        let mut scratch = std::mem::take(&mut self.scratch);
        match vnet::split(meta, packet) {
            Ok(mut segments) => {
                while let Ok(Some(len)) = segments.next_into(&mut scratch) {
                    let mtu = self.capabilities.mtu;
                    if len > mtu {
                        self.violation
                            .get_or_insert_with(|| format!("the stack sent {len} bytes over an MTU of {mtu}"));
                    }
                    self.store(&scratch[..len]);
                }
            }
            Err(error) => drop(self.violation.get_or_insert(format!("the stack sent a malformed packet: {error}"))),
        }
        self.scratch = scratch;
    }

    fn store(&mut self, packet: &[u8]) {
        let Some((source, destination)) = addresses(packet) else { return };
        let hop_limit = packet[if source.is_ipv6() { 7 } else { 8 }];
        if let Some(segment) = TcpSegment::parse(packet) {
            let key = (segment.destination_port(), source, segment.source_port());
            self.segments.entry(key).or_default().push_back(Segment {
                seq: segment.sequence(),
                ack: segment.acknowledgement(),
                flags: segment.flags(),
                window: segment.window(),
                options: segment.options().as_bytes().to_vec(),
                payload: segment.payload().to_vec(),
                at: Instant::now(),
                packet_len: packet.len(),
                dont_fragment: packet[0] >> 4 == 6 || packet[6] & 0x40 != 0,
                ecn: 3 & if packet[0] >> 4 == 6 { packet[1] >> 4 } else { packet[1] },
                hop_limit,
                packet: self.packets,
            });
            return;
        }
        let transport = Transport::parse(packet);
        match transport.map(|transport| (transport.protocol, packet.get(transport.at..).unwrap_or_default())) {
            Some((UDP, [a, b, _, _, _, _, c, d, payload @ ..])) => self.datagrams.push_back(Arrived {
                source,
                source_port: u16::from_be_bytes([*a, *b]),
                checksum: u16::from_be_bytes([*c, *d]),
                hop_limit,
                payload: payload.to_vec(),
            }),
            Some((ICMP | ICMPV6, [kind, code, _, _, body @ ..])) => {
                let kind = [*kind, *code];
                self.messages.push_back(Message { source, destination, kind, body: body.to_vec() });
            }
            _ => self.others.push_back(packet.to_vec()),
        }
    }
}

fn violation(meta: PacketMeta, packet: &[u8]) -> Option<String> {
    if ip_len(packet) != Some(packet.len()) {
        return Some(format!("the stack sent a packet of {} bytes whose header has another length", packet.len()));
    }
    if packet[0] >> 4 == 4 && sum(&packet[..usize::from(packet[0] & 15) * 4]) != 0xffff {
        return Some("the stack sent an IPv4 header with a wrong checksum".to_owned());
    }
    let Transport { at, protocol, .. } = Transport::parse(packet)?;
    let checksum_at = match protocol {
        TCP => at + 16,
        UDP => at + 6,
        ICMP | ICMPV6 => at + 2,
        _ => return None,
    };
    let field = u16::from_be_bytes([*packet.get(checksum_at)?, *packet.get(checksum_at + 1)?]);
    // In sums, 0 and 0xffff are the same number (RFC 1071, 2).
    if meta.checksum == Checksum::Partial {
        // The link adds the rest to the sum of the pseudo-header (virtio 1.2, 5.1.6.2).
        let seed = sum(&pseudo_header(packet, at, protocol));
        return (seed % 0xffff != field % 0xffff)
            .then(|| "the stack sent a partial checksum that is not the sum of the pseudo-header".to_owned());
    }
    if protocol == UDP && field == 0 {
        // RFC 8200, 8.1; RFC 1122, 4.1.3.4: nobody has turned checksums off.
        return Some("the stack sent a datagram without a checksum".to_owned());
    }
    (!transport_sum(packet, at, protocol).is_multiple_of(0xffff))
        .then(|| "the stack sent a wrong TCP, UDP or ICMP checksum".to_owned())
}

/// Returns the sum (RFC 1071) of the pseudo-header and of the transport packet at `at`.
pub(crate) fn transport_sum(packet: &[u8], at: usize, protocol: u8) -> u16 {
    sum(&[&pseudo_header(packet, at, protocol), &packet[at..]].concat())
}

/// Returns the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1). ICMP over IPv4 has none.
fn pseudo_header(packet: &[u8], at: usize, protocol: u8) -> Vec<u8> {
    if protocol == ICMP {
        return Vec::new();
    }
    let addresses = if packet[0] >> 4 == 6 { &packet[8..40] } else { &packet[12..20] };
    let len = ((packet.len() - at) as u32).to_be_bytes();
    [addresses, &len, &[0, 0, 0, protocol]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::datagram;

    #[test]
    fn a_partial_checksum_is_the_sum_of_the_pseudo_header() {
        for [from, to] in [["10.2.0.2:53", "10.1.0.2:4000"], ["[fd10:0:2::2]:53", "[fd10:0:1::2]:4000"]] {
            let is_refused = |checksum, packet: &[u8]| {
                let meta = PacketMeta { checksum, gso_size: None };
                violation(meta, packet).is_some()
            };
            let mut packet = datagram(from.parse().unwrap(), to.parse().unwrap(), b"data");
            assert!(!is_refused(Checksum::Filled, &packet) && is_refused(Checksum::Partial, &packet));
            let len = packet.len();
            write_partial_udp_checksum(&mut packet, len);
            assert!(is_refused(Checksum::Filled, &packet) && !is_refused(Checksum::Partial, &packet));
        }
    }
}
