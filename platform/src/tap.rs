//! A link around a link that sees each packet and changes none.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use crate::{Capabilities, Link, PacketBuffer, PacketMeta};

/// Sees the packets that have crossed a [`Tapped`] link.
pub trait Tap: Send + Sync + 'static {
    /// Packets that the link has received.
    fn received(&self, packets: &[PacketBuffer]);

    /// A packet that the link has sent, in slices.
    fn sent(&self, slices: &[IoSlice<'_>]);
}

/// A [`Link`] that wraps another link and shows its packets to a [`Tap`].
#[derive(Debug)]
pub struct Tapped<L, T> {
    pub(crate) link: L,
    pub(crate) tap: T,
}

impl<L: Link, T: Tap> Link for Tapped<L, T> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        self.link.enable_udp_segmentation()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let count = self.link.try_recv(buffers)?;
        self.tap.received(&buffers[..count]);
        Ok(count)
    }

    fn has_passed_on(&mut self) -> bool {
        self.link.has_passed_on()
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)?;
        self.tap.sent(slices);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_readable(cx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}
