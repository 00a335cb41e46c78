//! The link of a stack that takes and yields packets one at a time.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use platform::packet::{TcpLayout, write_partial_checksum};
use platform::vnet::complete_checksum;
use platform::{Checksum, Link, PacketBuffer, PacketMeta};
use tokio::task::JoinSet;

use crate::Driver;
use crate::mss_rewrite::{lower_mss, raise_mss};
use crate::offload::Offload;
use crate::shards::joined;

/// Longest headers that may be changed on the way out, in bytes: IPv6, and TCP with all its options.
const MAX_HEADERS: usize = 40 + 60;

/// A link for a task that receives and one that sends. It rewrites the MSS (`mss_rewrite.rs`).
pub(crate) struct Port<L> {
    link: Mutex<L>,
    offload: Offload,
    /// Whether the stack verifies checksums.
    verifies: bool,
}

impl<L: Link> Port<L> {
    /// `offload` follows from the link, with or without super-packets.
    pub(crate) fn new(link: L, offload: Offload, verifies: bool) -> Self {
        Self { link: Mutex::new(link), offload, verifies }
    }

    pub(crate) fn buffers(&self) -> Vec<PacketBuffer> {
        let capabilities = self.lock().capabilities();
        (0..capabilities.batch.max(1)).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, L> {
        crate::lock(&self.link)
    }

    /// Waits for packets. Returns how many it received; they are in the first buffers.
    pub(crate) async fn recv(&self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        loop {
            let received = self.lock().try_recv(buffers);
            match received {
                Ok(count) => {
                    buffers[..count].iter_mut().for_each(|buffer| self.arrive(buffer));
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| self.lock().poll_readable(cx)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn arrive(&self, buffer: &mut PacketBuffer) {
        let mut partial = buffer.meta().checksum == Checksum::Partial;
        let packet = buffer.packet_mut();
        if raise_mss(&self.offload, packet)
            && let Some(layout) = TcpLayout::parse(packet)
        {
            write_partial_checksum(packet, &layout, packet.len());
            partial = true;
        }
        if partial && self.verifies {
            // A malformed packet is left as it is, and the stack drops it.
            let _malformed = complete_checksum(packet);
        }
    }

    /// Sends a packet, and waits while the link is full.
    pub(crate) async fn send(&self, packet: &mut [u8]) -> io::Result<()> {
        let len = packet.len();
        let headers = &mut packet[..len.min(MAX_HEADERS)];
        lower_mss(&self.offload, headers);
        let meta = self.offload.prepare(headers, len, None);
        while !self.try_send(meta, packet)? {
            poll_fn(|cx| self.lock().poll_writable(cx)).await?;
        }
        Ok(())
    }

    fn try_send(&self, meta: PacketMeta, packet: &[u8]) -> io::Result<bool> {
        let mut link = self.lock();
        match link.try_send(meta, &[IoSlice::new(packet)]) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => link.flush().map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Flushes the link. Call it before the task waits for more packets of the stack.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.lock().flush()
    }
}

/// Moves packets from a stack to the link. `poll_next` polls for the next one.
pub(crate) async fn leave<L: Link>(
    port: Arc<Port<L>>,
    mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Vec<u8>>>>,
) -> io::Result<()> {
    loop {
        let next = poll_fn(|cx| match poll_next(cx) {
            Poll::Pending => port.flush().map_or_else(|error| Poll::Ready(Some(Err(error))), |()| Poll::Pending),
            next @ Poll::Ready(_) => next,
        });
        let Some(packet) = next.await else { return Ok(()) };
        port.send(&mut packet?).await?;
    }
}

/// Runs each part of a stack as a task. The first that ends ends the others, and the driver with its error or panic.
pub(crate) fn run_together(parts: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + Send>>>) -> Driver {
    let mut tasks = JoinSet::new();
    for part in parts {
        tasks.spawn(async { part.await.and(Err(io::Error::other("the stack has ended"))) });
    }
    Box::pin(joined(tasks))
}

/// Polls a future once. Returns [`io::ErrorKind::WouldBlock`] if it is pending.
pub(crate) fn now<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
