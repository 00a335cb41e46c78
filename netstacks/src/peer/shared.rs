//! One link for several threads, each with its own peer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use platform::packet::{TcpSegment, Transport, UDP, UdpHeader};
use platform::{Capabilities, Link, PacketBuffer, PacketMeta};

use crate::lock;

/// One of several ends of a link. It receives the packets to its own ports, of TCP and UDP: the remainder of a client's
/// port, divided by the number of ends, is the index of its end. So use [`Peers::sharing`](super::Peers::sharing).
#[derive(Debug)]
pub struct SharedLink<L> {
    link: Arc<Mutex<Shared<L>>>,
    wakers: Arc<Wakers>,
    capabilities: Capabilities,
    index: usize,
}

#[derive(Debug)]
struct Shared<L> {
    link: L,
    batch: Vec<PacketBuffer>,
    /// For each end, its packets that were received from the link.
    ends: Vec<VecDeque<PacketBuffer>>,
    spare: Vec<PacketBuffer>,
}

/// The wakers of all ends. A wake of the link may be for any of them.
#[derive(Debug)]
struct Wakers(Mutex<Vec<Option<Waker>>>);

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let ends = lock(&self.0).len();
        (0..ends).for_each(|index| self.wake_end(index));
    }
}

impl Wakers {
    fn wake_end(&self, index: usize) {
        let waker = lock(&self.0)[index].take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<L: Link> SharedLink<L> {
    /// Splits a link into so many ends, at least one.
    pub fn split_evenly(link: L, count: usize) -> Vec<Self> {
        let (capabilities, count) = (link.capabilities(), count.max(1));
        let batch = (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect();
        let ends = (0..count).map(|_| VecDeque::new()).collect();
        let wakers = Arc::new(Wakers(Mutex::new(vec![None; count])));
        let link = Arc::new(Mutex::new(Shared { link, batch, ends, spare: Vec::new() }));
        let end = |index| Self { link: Arc::clone(&link), wakers: Arc::clone(&wakers), capabilities, index };
        (0..count).map(end).collect()
    }

    fn poll(
        &self,
        cx: &Context<'_>,
        poll: fn(&mut L, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        // Store the waker before the link is polled: it may wake at once.
        lock(&self.wakers.0)[self.index] = Some(cx.waker().clone());
        let waker = Waker::from(Arc::clone(&self.wakers));
        poll(&mut lock(&self.link).link, &mut Context::from_waker(&waker))
    }
}

fn destination_port(packet: &[u8]) -> Option<u16> {
    if let Some(segment) = TcpSegment::parse(packet) {
        return Some(segment.destination_port());
    }
    let Transport { protocol: UDP, at, .. } = Transport::parse(packet)? else { return None };
    Some(UdpHeader::parse(packet.get(at..)?)?.destination_port)
}

impl<L: Link> Shared<L> {
    /// Receives a batch from the link, and gives each packet to its end.
    fn take(&mut self, wakers: &Wakers) -> io::Result<()> {
        let count = self.link.try_recv(&mut self.batch)?;
        let capacity = self.link.capabilities().max_packet_len;
        for packet in &mut self.batch[..count] {
            if let Some(port) = destination_port(packet.packet()) {
                let index = usize::from(port) % self.ends.len();
                let room = self.spare.pop().unwrap_or_else(|| PacketBuffer::new(capacity));
                self.ends[index].push_back(mem::replace(packet, room));
                wakers.wake_end(index);
            }
        }
        Ok(())
    }
}

impl<L: Link> Link for SharedLink<L> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut shared = lock(&self.link);
        while shared.ends[self.index].is_empty() {
            shared.take(&self.wakers)?;
        }
        let Shared { ends, spare, .. } = &mut *shared;
        let waiting = &mut ends[self.index];
        let count = buffers.len().min(waiting.len());
        for (buffer, packet) in buffers.iter_mut().zip(waiting.drain(..count)) {
            spare.push(mem::replace(buffer, packet));
        }
        Ok(count)
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        lock(&self.link).link.try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        lock(&self.link).link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !lock(&self.link).ends[self.index].is_empty() {
            return Poll::Ready(Ok(()));
        }
        let readable = self.poll(cx, L::poll_readable);
        // Another end may have received a packet for this one meanwhile.
        if lock(&self.link).ends[self.index].is_empty() { readable } else { Poll::Ready(Ok(())) }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, L::poll_writable)
    }
}
