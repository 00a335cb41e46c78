//! The peer's end of a link. It sends any packet, and sorts the stack's packets by connection.
//!
//! It checks every packet of the stack: lengths, checksums, and whether the link allows it. It splits a super-packet
//! into its segments, as a device would.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use platform::packet::checksum::sum;
use platform::packet::flags::{ACK, FIN, PSH, RST, SYN, URG};
use platform::packet::{TCP, TcpSegment, Transport, UDP, addresses, ip_len};
use platform::vnet::{self, SuperPacket};
use platform::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};

use crate::client::{SACK, TIMESTAMPS};
use crate::{AnyLink, Step, Stop, applies};

/// How long a packet may wait for room on the link.
const ROOM: Duration = Duration::from_secs(2);

/// A TCP segment from the stack.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// The window field, not shifted.
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// When it arrived.
    pub(crate) at: Instant,
    /// Length of the IP packet, and whether routers may not fragment it.
    pub(crate) packet_len: usize,
    pub(crate) dont_fragment: bool,
    /// The ECN field of the IP header (RFC 3168, 5).
    pub(crate) ecn: u8,
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

    /// The sequence number after it.
    pub(crate) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len())
    }

    /// Returns the value of an option.
    pub(crate) fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut left = &self.options[..];
        loop {
            left = match *left {
                [] | [0, ..] => return None,
                [1, ..] => &left[1..],
                [found, len, ..] if usize::from(len) >= 2 && usize::from(len) <= left.len() => {
                    if found == kind {
                        return left.get(2..len.into());
                    }
                    &left[len.into()..]
                }
                _ => return None,
            };
        }
    }

    /// Returns its timestamp and its echo of ours (RFC 7323, 3).
    pub(crate) fn stamps(&self) -> Option<[u32; 2]> {
        let (own, echo) = self.option(TIMESTAMPS)?.split_first_chunk()?;
        Some([u32::from_be_bytes(*own), u32::from_be_bytes(echo.try_into().ok()?)])
    }

    /// Returns the blocks of its SACK option (RFC 2018, 3).
    pub(crate) fn blocks(&self) -> Vec<[u32; 2]> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        self.option(SACK)
            .unwrap_or_default()
            .chunks_exact(8)
            .map(|block| [number(&block[..4]), number(&block[4..])])
            .collect()
    }
}

/// The names of the flags, and the length of the payload.
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

/// A UDP datagram from the stack.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) payload: Vec<u8>,
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
    /// Fragments and everything that is neither TCP nor UDP.
    pub(crate) others: Vec<Vec<u8>>,
    /// Why a packet of the stack is invalid; the first one only.
    pub(crate) violation: Option<String>,
    packets: usize,
    /// Super-packets that have arrived.
    pub(crate) super_packets: usize,
    /// Returns whether an address is the stack's. Packets from others are the system's own, and ignored.
    is_stack: fn(IpAddr) -> bool,
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
    pub(crate) fn new(link: AnyLink, is_stack: fn(IpAddr) -> bool) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len.max(capabilities.mtu);
        Self {
            capabilities,
            buffers: (0..capabilities.batch).map(|_| PacketBuffer::new(room)).collect(),
            scratch: vec![0; Capabilities::MAX_SUPER_PACKET],
            link,
            segments: HashMap::new(),
            datagrams: VecDeque::new(),
            others: Vec::new(),
            violation: None,
            packets: 0,
            super_packets: 0,
            is_stack,
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Sends a packet. A case does not apply if one of its packets is longer than the MTU.
    pub(crate) fn send(&mut self, packet: &[u8]) -> Step {
        let (len, mtu) = (packet.len(), self.capabilities.mtu);
        applies(len <= mtu, || format!("the client sends {len} bytes, and the MTU is {mtu}"))?;
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
            None => Err(Stop::fail("the case made segments that cannot be joined")),
        };
        self.scratch = scratch;
        result
    }

    fn send_with(&mut self, meta: PacketMeta, packet: &[u8]) -> Step {
        let deadline = Instant::now() + crate::patient(ROOM);
        loop {
            match self.link.try_send(meta, &[IoSlice::new(packet)]) {
                Ok(()) => {
                    return self.link.flush().map_err(|error| Stop::fail(format!("the link failed: {error}")));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    // Receive too: the stack may not take packets before it can send its own.
                    self.take()?;
                    let waker = self.waker.clone();
                    if self.link.poll_writable(&mut Context::from_waker(&waker)).is_pending() {
                        thread::park_timeout(Duration::from_millis(5));
                    }
                }
                Err(error) => return Err(Stop::fail(format!("the link takes no packet: {error}"))),
            }
        }
    }

    /// Returns the next segment for a connection.
    pub(crate) fn segment(&mut self, key: Key, until: Instant) -> Step<Option<Segment>> {
        self.next(until, |wire| wire.segments.get_mut(&key)?.pop_front())
    }

    /// Returns the next datagram.
    pub(crate) fn datagram(&mut self, until: Instant) -> Step<Option<Arrived>> {
        self.next(until, |wire| wire.datagrams.pop_front())
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
                Poll::Ready(Err(error)) => return Err(Stop::fail(format!("the link failed: {error}"))),
            }
        }
    }

    /// Receives the waiting packets. Returns whether there were any.
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
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Stop::fail("the stack has ended")),
            Err(error) => Err(Stop::fail(format!("the link failed: {error}"))),
        }
    }

    fn sort(&mut self, meta: PacketMeta, packet: &[u8]) {
        if !addresses(packet).is_some_and(|(source, _)| (self.is_stack)(source)) {
            return;
        }
        self.packets += 1;
        if let Some(violation) = violation(&self.capabilities, meta, packet) {
            self.violation.get_or_insert(violation);
        }
        self.super_packets += usize::from(meta.gso_size.is_some());
        let mut scratch = std::mem::take(&mut self.scratch);
        match vnet::split(meta, packet) {
            Ok(mut segments) => {
                while let Ok(Some(len)) = segments.next_into(&mut scratch) {
                    self.store(&scratch[..len]);
                }
            }
            Err(error) => drop(self.violation.get_or_insert(format!("the stack sent a malformed packet: {error}"))),
        }
        self.scratch = scratch;
    }

    fn store(&mut self, packet: &[u8]) {
        let Some((source, _)) = addresses(packet) else { return };
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
                packet: self.packets,
            });
            return;
        }
        let udp = Transport::parse(packet).filter(|transport| transport.protocol == UDP);
        match udp.and_then(|udp| packet.get(udp.at..)).and_then(|udp| udp.split_at_checked(8)) {
            Some((header, payload)) => self.datagrams.push_back(Arrived {
                source,
                source_port: u16::from_be_bytes([header[0], header[1]]),
                payload: payload.to_vec(),
            }),
            None => self.others.push(packet.to_vec()),
        }
    }
}

/// Returns why a packet of the stack is invalid on this link, if it is.
fn violation(capabilities: &Capabilities, meta: PacketMeta, packet: &[u8]) -> Option<String> {
    if ip_len(packet) != Some(packet.len()) {
        return Some(format!("the stack sent a packet of {} bytes whose header has another length", packet.len()));
    }
    if meta.gso_size.is_none() && packet.len() > capabilities.mtu {
        return Some(format!("the stack sent {} bytes over an MTU of {}", packet.len(), capabilities.mtu));
    }
    if packet[0] >> 4 == 4 && sum(&packet[..usize::from(packet[0] & 15) * 4]) != 0xffff {
        return Some("the stack sent an IPv4 header with a wrong checksum".to_owned());
    }
    let transport = Transport::parse(packet)?;
    let segment = packet.get(transport.at..)?;
    let is_unsummed = transport.protocol == UDP && segment.get(6..8) == Some(&[0, 0]);
    if !matches!(transport.protocol, TCP | UDP) || is_unsummed || meta.checksum == Checksum::Partial {
        return None;
    }
    (transport_sum(packet, transport.at, transport.protocol) != 0xffff)
        .then(|| "the stack sent a wrong TCP or UDP checksum".to_owned())
}

/// Returns the sum (RFC 1071) of the pseudo-header and of the transport packet at `at`.
pub(crate) fn transport_sum(packet: &[u8], at: usize, protocol: u8) -> u16 {
    let addresses = if packet[0] >> 4 == 6 { &packet[8..40] } else { &packet[12..20] };
    let mut bytes = addresses.to_vec();
    bytes.extend(((packet.len() - at) as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes.extend(&packet[at..]);
    sum(&bytes)
}
