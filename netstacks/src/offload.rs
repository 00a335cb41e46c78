//! What a stack leaves to a link that offloads.

use std::num::NonZeroU16;

use platform::vnet::{self, TcpLayout};
use platform::{Capabilities, Checksum, PacketMeta};

/// What a stack has to know of its link to leave work to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    mtu: usize,
    checksum: bool,
}

impl Offload {
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        Self { mtu: capabilities.mtu, checksum: capabilities.checksum.tx }
    }

    /// Makes a TCP packet of `len` bytes in all, whose headers these are, one that the link finishes:
    /// with the sum of its pseudo-header alone, and, where it is larger than the MTU, to be cut into
    /// segments that fill it. On a link that offloads nothing, and for a packet that is not TCP,
    /// nothing happens.
    ///
    /// That needs no memory of the connection, because a stack makes a segment larger than the MTU
    /// only towards peers that take segments of the MTU.
    #[inline]
    pub(crate) fn prepare(self, headers: &mut [u8], len: usize) -> PacketMeta {
        if !self.checksum {
            return PacketMeta::default();
        }
        let Some(layout) = TcpLayout::parse(headers) else { return PacketMeta::default() };
        vnet::leave_checksum(headers, &layout, len);
        let segment = self.mtu.saturating_sub(layout.payload_at).min(usize::from(u16::MAX)) as u16;
        PacketMeta {
            checksum: Checksum::Partial,
            gso_size: NonZeroU16::new(segment).filter(|_| len > self.mtu),
        }
    }
}
