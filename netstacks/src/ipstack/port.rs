//! The bridge's side towards the link: a batch on the way in, one packet at most that waits on the
//! way out.

use std::io::{self, IoSlice};
use std::mem;
use std::task::{Context, Poll, ready};

use platform::{Link, PacketBuffer, PacketMeta};

use crate::offload::Offload;

/// A link with what it has delivered and what it would not take yet.
#[derive(Debug)]
pub(super) struct Port<L> {
    /// Gone once the stack has ended.
    link: Option<L>,
    pub(super) offload: Offload,
    buffers: Vec<PacketBuffer>,
    filled: usize,
    next: usize,
    /// The link had nothing more when it was last asked.
    drained: bool,
    /// Packets have been sent since the link was last flushed.
    unflushed: bool,
    /// A packet that the link would not take; empty for none.
    stalled: Vec<u8>,
    stalled_meta: PacketMeta,
}

impl<L: Link> Port<L> {
    pub(super) fn new(link: L) -> Self {
        let capabilities = link.capabilities();
        let buffer = || PacketBuffer::new(capabilities.max_packet_len);
        Self {
            link: Some(link),
            offload: Offload::of(&capabilities),
            buffers: (0..capabilities.batch.max(1)).map(|_| buffer()).collect(),
            filled: 0,
            next: 0,
            drained: false,
            unflushed: false,
            stalled: Vec::new(),
            stalled_meta: PacketMeta::default(),
        }
    }

    /// Lets the link go; what would be sent from now on is lost.
    pub(super) fn close(&mut self) {
        self.link = None;
        self.stalled.clear();
        self.next = self.filled;
    }

    /// The number of the next packet of the batch, which is then taken.
    pub(super) fn take(&mut self) -> Option<usize> {
        (self.next < self.filled).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn packet(&self, index: usize) -> &[u8] {
        self.buffers.get(index).map_or(&[], PacketBuffer::packet)
    }

    /// Receives the next batch, or waits for it.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(link) = &mut self.link else { return Poll::Pending };
        loop {
            // ipstack asks between any two packets that it sends. Once the link is empty, it is the
            // link's to say when that has changed, which costs no call into the kernel.
            if self.drained {
                if mem::take(&mut self.unflushed) {
                    link.flush()?;
                }
                ready!(link.poll_readable(cx))?;
                self.drained = false;
            }
            match link.try_recv(&mut self.buffers) {
                Ok(count) => {
                    self.filled = count;
                    self.next = 0;
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drained = true;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Sends a packet, or keeps it until the link takes it. Only while nothing is stalled.
    pub(super) fn send(&mut self, meta: PacketMeta, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        self.unflushed = true;
        match link.try_send(meta, &[IoSlice::new(header), IoSlice::new(payload)]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.stalled.extend_from_slice(header);
                self.stalled.extend_from_slice(payload);
                self.stalled_meta = meta;
                Ok(())
            }
            result => result,
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Waits until nothing is stalled.
    pub(super) fn poll_unstalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(link) = &mut self.link else { return Poll::Ready(Ok(())) };
        while !self.stalled.is_empty() {
            match link.try_send(self.stalled_meta, &[IoSlice::new(&self.stalled)]) {
                Ok(()) => {
                    self.stalled.clear();
                    self.unflushed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    link.flush()?;
                    ready!(link.poll_writable(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}
