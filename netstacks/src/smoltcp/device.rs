//! A link as smoltcp's device.

use std::io::{self, IoSlice};
use std::num::NonZeroU16;

use platform::{Link, PacketBuffer, PacketMeta};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::driven::Intake;
use crate::mss_rewrite::{lower_mss, raise_mss};
use crate::offload::Offload;

/// Lends received packets to smoltcp out of a batch, and sends what it makes from one buffer.
pub(super) struct Device<L> {
    batch: Vec<PacketBuffer>,
    /// The packets of the batch that smoltcp has not seen yet.
    unseen: std::ops::Range<usize>,
    pub(super) sender: Sender<L>,
}

/// The sending half.
pub(super) struct Sender<L> {
    pub(super) link: L,
    offload: Offload,
    /// Whether the link takes UDP super-packets.
    pub(super) udp_segmentation: bool,
    /// Payload of each datagram in the UDP super-packet that smoltcp makes now.
    pub(super) udp_segment: Option<NonZeroU16>,
    /// Where smoltcp makes its packets.
    packet: Box<[u8]>,
    /// A finished packet that the link had no room for, still at the head of `packet`: its length.
    held_back: Option<(usize, PacketMeta)>,
    failure: Option<io::Error>,
}

impl<L: Link> Device<L> {
    pub(super) fn new(mut link: L) -> Self {
        let capabilities = link.capabilities();
        let room = capabilities.max_packet_len;
        let offload = Offload::of(&capabilities);
        let sender = Sender {
            offload,
            udp_segmentation: offload.enable_udp(&mut link),
            udp_segment: None,
            packet: vec![0; room].into_boxed_slice(),
            held_back: None,
            failure: None,
            link,
        };
        let batch = (0..capabilities.batch.max(1)).map(|_| PacketBuffer::new(room)).collect();
        Self { batch, unseen: 0..0, sender }
    }

    /// Takes a batch from the link once the last one is used up.
    pub(super) fn fill(&mut self) -> io::Result<Intake> {
        self.unseen = 0..0;
        let mut len = 0;
        match self.sender.link.try_recv(&mut self.batch) {
            Ok(count) => {
                self.unseen = 0..count;
                for buffer in &mut self.batch[..count] {
                    len += buffer.packet().len();
                    raise_mss(&self.sender.offload, buffer.packet_mut());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(Intake { len, is_drained: self.unseen.len() < self.batch.len() })
    }

    /// Puts a packet where smoltcp finds it next: in the place of the last that it has seen.
    pub(super) fn put(&mut self, packet: &[u8]) {
        let place = self.unseen.start.saturating_sub(1);
        self.unseen = place..self.unseen.end.max(place + 1);
        let buffer = &mut self.batch[place];
        buffer.storage_mut()[..packet.len()].copy_from_slice(packet);
        // It is no longer than the storage.
        let _fits = buffer.filled(packet.len(), PacketMeta::default());
    }

    /// The packet that smoltcp will be given next.
    pub(super) fn next_packet(&self) -> Option<&[u8]> {
        Some(self.batch.get(self.unseen.clone())?.first()?.packet())
    }

    /// Payload of each segment of that packet, if it is a super-packet.
    pub(super) fn next_gso_size(&self) -> Option<NonZeroU16> {
        self.batch.get(self.unseen.clone())?.first()?.meta().gso_size
    }

    /// The same, to be changed in place.
    pub(super) fn next_packet_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.batch.get_mut(self.unseen.clone())?.first_mut()?.packet_mut())
    }

    /// Drops that packet.
    pub(super) fn skip_packet(&mut self) {
        self.unseen.next();
    }
}

impl<L: Link> Sender<L> {
    /// Payload of the largest segment over an IP version, in bytes: a super-packet's, where the link
    /// cuts these.
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

    /// Tries again to send what is held back, and reports what went wrong while smoltcp sent.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if let Some((len, meta)) = self.held_back.take() {
            self.send(len, meta);
        }
        self.failure.take().map_or(Ok(()), Err)
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
        let packet = self.batch[self.unseen.next()?].packet();
        Some((RxToken(packet), TxToken::new(&mut self.sender)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_, L>> {
        self.sender.is_ready().then(|| TxToken::new(&mut self.sender))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let link = self.sender.link.capabilities();
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // smoltcp 0.14 has a hook for segmentation offload, but over IPv6 it then drops packets above its MTU
        // (`iface/interface/mod.rs`, `dispatch_ip`), and of a super-packet that was lost it retransmits one segment and
        // waits for a timeout with the rest (`socket/tcp.rs`, `dispatch`). A larger MSS has neither fault.
        capabilities.max_transmission_unit = self.sender.offload.largest_packet();
        capabilities.checksum.tcp = match (link.checksum.rx, link.checksum.tx) {
            (false, false) => Checksum::Both,
            (false, true) => Checksum::Rx,
            (true, false) => Checksum::Tx,
            (true, true) => Checksum::None,
        };
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
pub(super) struct TxToken<'a, L> {
    sender: &'a mut Sender<L>,
}

impl<'a, L> TxToken<'a, L> {
    fn new(sender: &'a mut Sender<L>) -> Self {
        Self { sender }
    }
}

impl<L: Link> phy::TxToken for TxToken<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let sender = self.sender;
        // smoltcp asks for a reply's token along with the packet it may reply to, so one can come
        // while a packet is held back. That reply is lost, as on any network, and asked for again.
        if sender.held_back.is_some() {
            return f(&mut vec![0; len]);
        }
        let packet = &mut sender.packet[..len];
        let result = f(packet);
        lower_mss(&sender.offload, packet);
        let meta = sender.offload.prepare(packet, len, sender.udp_segment);
        sender.send(len, meta);
        result
    }
}
