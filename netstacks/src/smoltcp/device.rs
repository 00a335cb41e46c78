//! A link as smoltcp's device.

use std::io::{self, IoSlice};
use std::mem;
use std::num::NonZeroU16;

use platform::{Link, PacketBuffer, PacketMeta};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::numbers::Numbers;
use crate::Workarounds;
use crate::driven::{Intake, segment};
use crate::mss_rewrite::{self, lower_mss, raise_mss};
use crate::offload::Offload;

/// Lends received packets to smoltcp out of a batch, and sends what it makes from one buffer.
pub(super) struct Device<L> {
    /// The first buffer is for packets of the engine; the others are the batch.
    buffers: Vec<PacketBuffer>,
    /// Whether the engine verifies checksums.
    verifies: bool,
    /// The packets that smoltcp has not seen yet.
    unseen: std::ops::Range<usize>,
    pub(super) sender: Sender<L>,
}

pub(super) struct Sender<L> {
    pub(super) link: L,
    offload: Offload,
    pub(super) udp_segmentation: bool,
    /// Payload of each datagram in the UDP super-packet that smoltcp makes now.
    pub(super) udp_segment: Option<NonZeroU16>,
    packet: Box<[u8]>,
    /// A finished packet that the link had no room for, still at the head of `packet`: its length.
    held_back: Option<(usize, PacketMeta)>,
    failure: Option<io::Error>,
    /// The numbers of the connection that smoltcp works on.
    numbers: Option<Numbers>,
}

impl<L: Link> Device<L> {
    pub(super) fn new(mut link: L, workarounds: Workarounds) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len;
        let sender = Sender {
            offload: mss_rewrite::offload(&capabilities, workarounds),
            udp_segmentation: Offload::of(&capabilities).enable_udp(&mut link),
            udp_segment: None,
            packet: vec![0; room].into_boxed_slice(),
            held_back: None,
            failure: None,
            numbers: None,
            link,
        };
        let buffers = (0..=capabilities.batch.max(1)).map(|_| PacketBuffer::new(room)).collect();
        Self { buffers, verifies: !capabilities.checksum.rx, unseen: 1..1, sender }
    }

    /// Takes a batch from the link once the last one is used up.
    pub(super) fn fill(&mut self) -> io::Result<Intake> {
        self.unseen = 1..1;
        let batch = &mut self.buffers[1..];
        let count = match self.sender.link.try_recv(batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            count => count?,
        };
        self.unseen.end += count;
        let len = batch[..count].iter().map(|buffer| buffer.packet().len()).sum();
        Ok(Intake { len, is_drained: count < batch.len(), has_passed_on: self.sender.link.has_passed_on() })
    }

    /// The checksums that the link leaves to the stack.
    pub(super) fn checksums(&self) -> Checksum {
        let link = self.sender.link.capabilities().checksum;
        match (link.rx, link.tx) {
            (false, false) => Checksum::Both,
            (false, true) => Checksum::Rx,
            (true, false) => Checksum::Tx,
            (true, true) => Checksum::None,
        }
    }

    /// Puts a packet where smoltcp finds it next: in the place of the last that it has seen.
    pub(super) fn put(&mut self, packet: &[u8]) {
        self.unseen.start = self.unseen.start.saturating_sub(1);
        self.replace(packet);
    }

    /// Puts a packet in the place of the one that smoltcp would be given next.
    pub(super) fn replace(&mut self, packet: &[u8]) {
        let Some(buffer) = self.buffers.get_mut(self.unseen.start) else { return };
        buffer.storage_mut()[..packet.len()].copy_from_slice(packet);
        // It is no longer than the storage.
        let _fits = buffer.filled(packet.len(), PacketMeta::default());
    }

    /// Lets smoltcp work on a connection with these numbers.
    pub(super) fn numbered<T>(&mut self, numbers: &mut Numbers, work: impl FnOnce(&mut Self) -> T) -> T {
        self.sender.numbers = Some(*numbers);
        let result = work(self);
        if let Some(noted) = self.sender.numbers.take() {
            *numbers = noted;
        }
        result
    }

    /// The packet that smoltcp will be given next.
    pub(super) fn next_packet(&self) -> Option<&[u8]> {
        Some(self.buffers.get(self.unseen.clone())?.first()?.packet())
    }

    /// Whether the checksums of that packet, a segment, are right. smoltcp does not verify them.
    pub(super) fn is_next_intact(&self) -> bool {
        let Some(buffer) = self.buffers.get(self.unseen.start) else { return false };
        let verifies = self.verifies && buffer.meta().checksum == platform::Checksum::Filled;
        segment::is_intact(buffer.packet(), verifies)
    }

    /// Raises the MSS in that packet, a SYN.
    pub(super) fn raise_next_mss(&mut self) {
        if let Some(buffer) = self.buffers.get_mut(self.unseen.start) {
            raise_mss(&self.sender.offload, buffer.packet_mut());
        }
    }

    /// Payload of each segment of that packet, if it is a super-packet.
    pub(super) fn next_gso_size(&self) -> Option<NonZeroU16> {
        self.buffers.get(self.unseen.clone())?.first()?.meta().gso_size
    }

    /// The same, to be changed in place.
    pub(super) fn next_packet_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.buffers.get_mut(self.unseen.clone())?.first_mut()?.packet_mut())
    }

    /// Drops that packet.
    pub(super) fn skip_packet(&mut self) {
        self.unseen.next();
    }
}

impl<L: Link> Sender<L> {
    /// Payload of the largest segment or super-packet over an IP version, in bytes.
    pub(super) fn segment_len(&self, ipv6: bool) -> usize {
        usize::from(self.offload.largest_payload(ipv6))
    }

    /// Whether a packet is held back because the link was full.
    pub(super) fn is_blocked(&self) -> bool {
        self.held_back.is_some()
    }

    /// Whether a packet would be sent now: none is held back, and the link has not failed.
    pub(super) fn is_ready(&self) -> bool {
        self.held_back.is_none() && self.failure.is_none()
    }

    /// Whether what smoltcp sends is only read.
    fn rehearses(&self) -> bool {
        self.numbers.is_some_and(|numbers| numbers.is_rehearsal)
    }

    /// Tries again to send what is held back, and reports what went wrong while smoltcp sent.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if let Some((len, meta)) = self.held_back.take() {
            self.send(len, meta);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Renumbers a packet of the connection that smoltcp works on. Returns whether it is a SYN.
    fn number(&mut self, packet: &mut [u8]) -> bool {
        self.numbers.as_mut().is_some_and(|numbers| numbers.outgoing(packet))
    }

    fn send(&mut self, len: usize, meta: PacketMeta) {
        match self.link.try_send(meta, &[IoSlice::new(&self.packet[..len])]) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.held_back = Some((len, meta)),
            Err(error) => self.failure = Some(error),
        }
    }
}

impl<L: Link> phy::Device for Device<L> {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a, L>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_, L>)> {
        let packet = self.buffers[self.unseen.next()?].packet();
        Some((RxToken(packet), TxToken(&mut self.sender)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_, L>> {
        (self.sender.is_ready() || self.sender.rehearses()).then_some(TxToken(&mut self.sender))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // smoltcp 0.14 has a hook for segmentation offload, but drops packets above its MTU over IPv6 (`dispatch_ip`),
        // and retransmits one segment of a lost super-packet (`socket/tcp.rs`, `dispatch`). A larger MSS has neither
        // fault.
        capabilities.max_transmission_unit = self.sender.offload.largest_packet();
        // The engine has verified the checksums.
        capabilities.checksum.tcp = if self.checksums().tx() { Checksum::Tx } else { Checksum::None };
        capabilities
    }
}

/// A received packet, lent to smoltcp.
pub(super) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// The right to send one packet.
pub(super) struct TxToken<'a, L>(&'a mut Sender<L>);

impl<L: Link> phy::TxToken for TxToken<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Self(sender) = self;
        // smoltcp asks for a reply's token even while a packet is held back. That reply is lost, and asked for again.
        if sender.held_back.is_some() || sender.rehearses() {
            let mut unsent = vec![0; len];
            let result = f(&mut unsent);
            sender.number(&mut unsent);
            return result;
        }
        let mut packet = mem::take(&mut sender.packet);
        let result = f(&mut packet[..len]);
        if sender.number(&mut packet[..len]) {
            lower_mss(&sender.offload, &mut packet[..len]);
        }
        let meta = sender.offload.prepare(&mut packet[..len], len, sender.udp_segment);
        sender.packet = packet;
        sender.send(len, meta);
        result
    }
}
