//! The link: one end of a pipe of IP packets.

use std::io::{self, IoSlice};
use std::num::NonZeroU16;
use std::task::{Context, Poll};

/// What a link can do. Data, never assumed from the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest IP packet, in bytes, that crosses the link in one piece: the MTU of the device.
    pub mtu: usize,
    /// Largest packet, in bytes: the MTU, or the 64 KiB of a super-packet.
    pub max_packet_len: usize,
    /// Which side need not touch TCP and UDP checksums.
    pub checksum: ChecksumOffload,
    /// Which TCP super-packets the link takes and delivers whole.
    pub segmentation: SegmentationOffload,
    /// How many packets one [`Link::try_recv`] should deliver at most.
    pub batch: usize,
}

impl Capabilities {
    /// A link within one host and without offload: nobody has to verify checksums of packets in memory.
    pub fn plain(mtu: usize) -> Self {
        Self {
            mtu,
            max_packet_len: mtu,
            checksum: ChecksumOffload { rx: true, tx: false },
            segmentation: SegmentationOffload::default(),
            batch: Self::batch_of(mtu),
        }
    }

    /// The same link with every offload, and super-packets of up to [`Self::MAX_SUPER_PACKET`] bytes.
    pub fn offloading(mtu: usize) -> Self {
        Self {
            mtu,
            max_packet_len: Self::MAX_SUPER_PACKET,
            checksum: ChecksumOffload { rx: true, tx: true },
            segmentation: SegmentationOffload { tcpv4: true, tcpv6: true },
            batch: Self::batch_of(Self::MAX_SUPER_PACKET),
        }
    }

    /// Bytes in a batch: they stay in a processor's cache. With a megabyte, a byte cost half as much again.
    const BATCH_BYTES: usize = 256 << 10;

    /// 4 to 32 packets: each is a system call, and more of them delay the ACK.
    fn batch_of(packet_len: usize) -> usize {
        (Self::BATCH_BYTES / packet_len.max(1)).clamp(4, 32)
    }

    /// The maximum of IPv4's total length (RFC 791, 3.1), and `GSO_LEGACY_MAX_SIZE` less one.
    pub const MAX_SUPER_PACKET: usize = 65_535;
}

/// Which transport checksums a stack need not compute or verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// Packets that arrive need not be verified: they come from this host's memory, or the link has verified them.
    pub rx: bool,
    /// Packets that are sent may be [`Checksum::Partial`].
    pub tx: bool,
}

/// Which TCP super-packets cross the link whole. UDP's do after [`Link::enable_udp_segmentation`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentationOffload {
    /// TCP over IPv4 (`VIRTIO_NET_HDR_GSO_TCPV4`).
    pub tcpv4: bool,
    /// TCP over IPv6 (`VIRTIO_NET_HDR_GSO_TCPV6`).
    pub tcpv6: bool,
}

impl SegmentationOffload {
    /// Whether any super-packets do.
    pub fn any(self) -> bool {
        self.tcpv4 || self.tcpv6
    }
}

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The field holds the checksum of the whole segment.
    #[default]
    Filled,
    /// The field holds the sum of the pseudo-header alone (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial,
}

/// The data beside a packet, as in Linux's `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// `Some(n)`: a super-packet, to be cut into segments, or datagrams, of `n` bytes of payload each.
    pub gso_size: Option<NonZeroU16>,
}

/// Room for one received packet.
#[derive(Debug)]
pub struct PacketBuffer {
    storage: Box<[u8]>,
    len: usize,
    meta: PacketMeta,
}

impl PacketBuffer {
    /// A buffer for packets of at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { storage: vec![0; capacity].into_boxed_slice(), len: 0, meta: PacketMeta::default() }
    }

    /// The packet that the buffer holds.
    pub fn packet(&self) -> &[u8] {
        &self.storage[..self.len]
    }

    /// The same, to be changed in place.
    pub fn packet_mut(&mut self) -> &mut [u8] {
        &mut self.storage[..self.len]
    }

    /// The data beside the packet.
    pub fn meta(&self) -> PacketMeta {
        self.meta
    }

    /// All of the storage, for a link to fill before [`PacketBuffer::filled`].
    pub fn storage_mut(&mut self) -> &mut [u8] {
        &mut self.storage
    }

    /// Declares the first `len` bytes of the storage a packet. Fails for a length beyond the storage.
    pub fn filled(&mut self, len: usize, meta: PacketMeta) -> io::Result<()> {
        if len > self.storage.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "packet longer than its buffer"));
        }
        self.len = len;
        self.meta = meta;
        Ok(())
    }
}

/// One end of a pipe of IP packets.
///
/// No call blocks: one that cannot go on returns [`io::ErrorKind::WouldBlock`], and `poll_readable` or `poll_writable`
/// says when to try again. Every other error means that the link is gone.
///
/// Readiness is a promise about the time after a `WouldBlock`. Once `try_recv` has returned it, or has filled fewer
/// buffers than it was given, `poll_readable` is ready if a packet waits, even if it came before the call; else it
/// wakes the task when one arrives. Before that it may never be ready (Windows announces a packet once). A poll may be
/// ready without a packet. The same holds for `try_send` and `poll_writable`. Only the last waker is remembered.
pub trait Link: Send + Sync + 'static {
    /// What this link can do. Constant for its lifetime.
    fn capabilities(&self) -> Capabilities;

    /// Asks the link to deliver and to take UDP super-packets (`VIRTIO_NET_HDR_GSO_UDP_L4`), before the first packet.
    /// Returns whether it does so from now on. A link that is not asked never delivers one.
    fn enable_udp_segmentation(&mut self) -> bool {
        false
    }

    /// Fills at most one buffer of [`Capabilities::max_packet_len`] bytes for each waiting packet. Returns how many,
    /// from the first on: at least one. If it leaves buffers empty, the link expects no more packets now.
    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize>;

    /// Whether it has passed packets to readers of other links since it was last asked: these wait for `try_recv`.
    fn has_passed_on(&mut self) -> bool {
        false
    }

    /// Sends one packet; its bytes are the slices one after the other. On an error, no part of it is sent.
    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()>;

    /// Sends what a batching link still holds, or wakes the other end. Call it at the end of each turn.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Ready if `try_recv` is worth a call. To be polled after `try_recv` returned `WouldBlock`.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready if `try_send` is worth a call. To be polled after `try_send` returned `WouldBlock`.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

pub(crate) fn packet_len(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

#[cfg(any(target_os = "linux", target_os = "macos", all(test, unix)))]
pub(crate) fn with_header<R>(header: &[u8], slices: &[IoSlice<'_>], send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
    // The stacks have a header and a payload, of which lwIP's may lie in a few pieces.
    let mut all = [IoSlice::new(&[]); 18];
    all[0] = IoSlice::new(header);
    match all.get_mut(1..=slices.len()) {
        Some(rest) => {
            rest.copy_from_slice(slices);
            send(&all[..=slices.len()])
        }
        None => send(&[&all[..1], slices].concat()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;

    use super::*;
    use crate::{Counted, Faulty, Impairments, MemoryLink, Traced};

    /// A link that announces packets once, as on Windows: to ask for readiness before all were received is a fault.
    struct Once {
        link: MemoryLink,
        drained: bool,
        broken: Arc<AtomicBool>,
    }

    impl Link for Once {
        fn capabilities(&self) -> Capabilities {
            self.link.capabilities()
        }

        fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
            let received = self.link.try_recv(buffers);
            self.drained = received.as_ref().map_or(true, |count| *count < buffers.len());
            received
        }

        fn has_passed_on(&mut self) -> bool {
            true
        }

        fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
            self.link.try_send(meta, slices)
        }

        fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.broken.fetch_or(!self.drained, Ordering::Relaxed);
            self.link.poll_readable(cx)
        }

        fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.link.poll_writable(cx)
        }
    }

    /// Sends packets through a link around a link, and receives as its contract says. Returns how many have come.
    fn receive_all<L: Link>(wrap: impl FnOnce(Once) -> L, what: &str) -> usize {
        let (link, mut other_end) = MemoryLink::pair(100, 300);
        let broken = Arc::new(AtomicBool::new(false));
        let mut link = wrap(Once { link, drained: true, broken: Arc::clone(&broken) });
        let mut got = 0;
        for len in 1..=8 {
            let mut buffers: Vec<_> = (0..len).map(|_| PacketBuffer::new(100)).collect();
            (0..20).for_each(|_| other_end.try_send(PacketMeta::default(), &[IoSlice::new(&[0; 50])]).unwrap());
            loop {
                let count = link.try_recv(&mut buffers).unwrap_or(0);
                got += count;
                let mut cx = Context::from_waker(Waker::noop());
                if count < len && link.poll_readable(&mut cx).is_pending() {
                    break;
                }
            }
        }
        assert!(link.has_passed_on(), "{what} tells it");
        assert!(!broken.load(Ordering::Relaxed), "{what} asked for readiness although packets were left");
        got
    }

    #[test]
    fn every_link_around_a_link_empties_it_before_it_waits() {
        assert_eq!(receive_all(|link| link, "the link itself"), 160);
        assert_eq!(receive_all(Counted::new, "Counted"), 160);
        assert_eq!(receive_all(|link| Traced::new(link, io::sink()), "Traced"), 160);
        let faulty = |impairments| move |link| Faulty::new(link, impairments, 1);
        let none = Impairments::default();
        assert!(receive_all(faulty(Impairments { loss_ppm: 500_000, ..none }), "Faulty that loses") < 160);
        assert!(receive_all(faulty(Impairments { duplicate_ppm: 500_000, ..none }), "Faulty that repeats") > 160);
        assert_eq!(receive_all(faulty(Impairments { reorder_ppm: 333_333, ..none }), "Faulty that reorders"), 160);
    }
}
