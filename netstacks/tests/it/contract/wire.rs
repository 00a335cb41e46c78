//! The peer's end of the link.
//!
//! The peer takes and sends segments of the MTU with filled checksums. If the link offloads, the wire acts as a kernel
//! would. It checks the stack's packets, fills in their checksums and splits them. It joins segments that the peer
//! sends at once, or gives them partial checksums.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use platform::packet::flags::{RST, SYN};
use platform::packet::{Ipv4Fragment, TCP, TcpSegment, Transport, UDP, UdpHeader, ip_len, write_partial_udp_checksum};
use platform::vnet::{self, SuperPacket};
use platform::{Capabilities, Checksum, Link, MemoryLink, PacketBuffer, PacketMeta};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};

/// Packets of the peer that may wait to be sent.
const WAITING: usize = 64;

pub(crate) struct Wire {
    pub(crate) link: MemoryLink,
    capabilities: Capabilities,
    /// The last packet from the link.
    packet: PacketBuffer,
    /// The segments of that packet.
    segments: VecDeque<Vec<u8>>,
    /// Room for one packet on its way out.
    scratch: Vec<u8>,
    /// Packets that the peer has sent and the link has not taken.
    pub(crate) out: VecDeque<Vec<u8>>,
    /// Counts the single segments that were sent: every other one gets a partial checksum.
    singles: usize,
    pub(crate) mute: bool,
    pub(crate) super_packets: SuperPackets,
    /// Segments of one byte from the stack: probes of a closed window look like this.
    pub(crate) single_bytes: usize,
    /// Packets of the stack that were neither TCP nor UDP.
    pub(crate) others: usize,
}

/// How many super-packets have crossed the link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SuperPackets {
    pub(crate) from_the_stack: usize,
    pub(crate) to_the_stack: usize,
}

impl Wire {
    pub(crate) fn new(link: MemoryLink) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len;
        Self {
            link,
            capabilities,
            packet: PacketBuffer::new(room),
            segments: VecDeque::new(),
            scratch: vec![0; room],
            out: VecDeque::new(),
            singles: 0,
            mute: false,
            super_packets: SuperPackets::default(),
            single_bytes: 0,
            others: 0,
        }
    }

    /// Sends the waiting packets while the link takes them.
    pub(crate) fn flush(&mut self) {
        while let Some(first) = self.out.front() {
            let (sent, taken) = match SuperPacket::begin(&mut self.scratch, first) {
                Some(mut whole) if self.capabilities.checksum.tx => {
                    let taken = 1 + self.out.iter().skip(1).take_while(|segment| whole.append(segment)).count();
                    let (len, meta) = whole.finish();
                    if taken == 1 && self.singles.is_multiple_of(2) {
                        (self.link.try_send(PacketMeta::default(), &[IoSlice::new(first)]), 1)
                    } else {
                        (self.link.try_send(meta, &[IoSlice::new(&self.scratch[..len])]), taken)
                    }
                }
                _ => {
                    let meta = self.undo_checksum();
                    let Some(first) = self.out.front() else { return };
                    (self.link.try_send(meta, &[IoSlice::new(first)]), 1)
                }
            };
            if let Err(error) = sent {
                assert_ne!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
                return;
            }
            self.singles += usize::from(taken == 1);
            self.super_packets.to_the_stack += usize::from(taken > 1);
            self.out.drain(..taken);
        }
    }

    /// Makes the checksum of the next packet partial, for every other datagram, if the link allows it.
    fn undo_checksum(&mut self) -> PacketMeta {
        let mut meta = PacketMeta::default();
        if let Some(first) = self.out.front_mut()
            && self.capabilities.checksum.tx
            && !self.singles.is_multiple_of(2)
            && is_summed_datagram(first)
        {
            let len = first.len();
            if write_partial_udp_checksum(first, len) {
                meta.checksum = Checksum::Partial;
            }
        }
        meta
    }

    /// Returns the next segment for the peer.
    fn next_segment(&mut self) -> Option<Vec<u8>> {
        while self.segments.is_empty() {
            self.link.try_recv(std::slice::from_mut(&mut self.packet)).ok()?;
            let (meta, packet) = (self.packet.meta(), self.packet.packet());
            check(&self.capabilities, meta, packet);
            self.single_bytes +=
                usize::from(TcpSegment::parse(packet).is_some_and(|segment| segment.payload().len() == 1));
            self.others += usize::from(!is_tcp_or_udp(packet));
            self.super_packets.from_the_stack += usize::from(meta.gso_size.is_some());
            if self.mute {
                continue;
            }
            let mut segments = vnet::split(meta, packet).unwrap();
            while let Some(len) = segments.next_into(&mut self.scratch).unwrap() {
                self.segments.push_back(self.scratch[..len].to_vec());
            }
        }
        self.segments.pop_front()
    }
}

/// Checks that the stack may send this packet over this link.
fn check(capabilities: &Capabilities, meta: PacketMeta, packet: &[u8]) {
    assert_eq!(ip_len(packet), Some(packet.len()), "the header has another length than the packet");
    let Some(segment) = TcpSegment::parse(packet) else { return check_other(capabilities, meta, packet) };
    let layout = segment.layout;
    if !layout.ipv6 {
        assert_eq!(sum(&[&packet[..layout.tcp_at]]), 0xffff, "the checksum of the IPv4 header is wrong");
    }
    let (headers, tcp) = (&packet[..layout.tcp_at], &packet[layout.tcp_at..]);
    let addresses = if layout.ipv6 { &headers[8..40] } else { &headers[12..20] };
    let len = (tcp.len() as u32).to_be_bytes();
    let pseudo_header = [addresses, &len, &[0, 0, 0, 6]];
    match meta.checksum {
        Checksum::Filled => {
            let all = [pseudo_header[0], pseudo_header[1], pseudo_header[2], tcp];
            assert_eq!(sum(&all), 0xffff, "the checksum of {layout:?} is wrong");
        }
        Checksum::Partial => {
            assert!(capabilities.checksum.tx, "nothing fills in a partial checksum on this link");
            let field = u16::from_be_bytes([tcp[16], tcp[17]]);
            assert_eq!(field, sum(&pseudo_header), "the field has to hold the sum of the pseudo-header");
        }
    }
    let Some(gso_size) = meta.gso_size.map(|size| usize::from(size.get())) else {
        assert!(packet.len() <= capabilities.mtu, "{} bytes in one segment", packet.len());
        return;
    };
    let segmentation = capabilities.segmentation;
    assert!(if layout.ipv6 { segmentation.tcpv6 } else { segmentation.tcpv4 }, "the link splits no super-packets");
    assert_eq!(meta.checksum, Checksum::Partial, "a super-packet has no checksum of its own");
    assert!(packet.len() <= capabilities.max_packet_len);
    assert!(packet.len() - layout.payload_at > gso_size, "a super-packet of one segment");
    assert!(layout.payload_at + gso_size <= capabilities.mtu, "segments of {gso_size} bytes");
    assert_eq!(segment.flags() & (SYN | RST), 0, "a super-packet opens or resets nothing");
}

/// The same for a packet that is not TCP. A datagram may have a partial checksum. Nothing else is left to the link.
fn check_other(capabilities: &Capabilities, meta: PacketMeta, packet: &[u8]) {
    assert!(packet.len() <= capabilities.mtu, "{} bytes in one packet", packet.len());
    assert_eq!(meta.gso_size, None, "only TCP may be a super-packet");
    if meta.checksum == Checksum::Partial {
        assert!(capabilities.checksum.tx, "nothing fills in a partial checksum on this link");
        let mut expected = packet.to_vec();
        assert!(write_partial_udp_checksum(&mut expected, packet.len()), "only a datagram may have a partial checksum");
        assert!(expected == packet, "the field has to hold the sum of the pseudo-header");
    }
}

/// Returns whether a packet is TCP or UDP, or a fragment of one.
fn is_tcp_or_udp(packet: &[u8]) -> bool {
    let protocol = Transport::parse(packet).map(|transport| transport.protocol);
    let protocol = protocol.or_else(|| Ipv4Fragment::parse(packet).map(|fragment| fragment.protocol));
    matches!(protocol, Some(TCP | UDP))
}

/// Returns whether a packet is a datagram with a checksum.
fn is_summed_datagram(packet: &[u8]) -> bool {
    Transport::parse(packet)
        .filter(|transport| transport.protocol == UDP)
        .and_then(|transport| UdpHeader::parse(packet.get(transport.at..)?))
        .is_some_and(|header| header.checksum != 0)
}

/// The sum of RFC 1071, word by word. All parts but the last must have an even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _now: smoltcp::time::Instant) -> Option<(Received, Sent<'_>)> {
        let segment = self.next_segment()?;
        Some((Received(segment), Sent(self)))
    }

    fn transmit(&mut self, _now: smoltcp::time::Instant) -> Option<Sent<'_>> {
        (self.out.len() < WAITING).then_some(Sent(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.capabilities.mtu;
        capabilities
    }
}

pub(crate) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

pub(crate) struct Sent<'a>(&'a mut Wire);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        if !self.0.mute {
            self.0.out.push_back(packet);
        }
        result
    }
}
