//! One link for several threads, each with its own peer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use platform::packet::TcpSegment;
use platform::{Capabilities, Link, PacketBuffer, PacketMeta};

/// One of several ends of a link. It receives the packets to its own TCP port. Packets to other ports are dropped.
///
/// ```
/// use std::future::poll_fn;
///
/// use netstacks::peer::{Peer, SharedLink};
/// use netstacks::{Netstack, Smoltcp, StackConfig};
/// use platform::MemoryLink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, other_end) = MemoryLink::pair(1500, MemoryLink::DEFAULT_DEPTH);
/// let stack = Smoltcp::start(link, &StackConfig::default())?;
/// tokio::spawn(stack.driver);
/// let ports = [4000, 4001];
/// for (end, port) in SharedLink::split(other_end, ports).into_iter().zip(ports) {
///     let mut peer = Peer::new(end, ([10, 0, 0, 1], port).into(), "10.0.0.2:80".parse()?)?;
///     poll_fn(|cx| peer.poll_connect(cx)).await?;
/// }
/// # Ok(())
/// # }
/// ```
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
    ends: Vec<End>,
    /// Empty buffers for later packets.
    spare: Vec<PacketBuffer>,
}

/// The port of an end, and its packets that were received from the link.
#[derive(Debug)]
struct End {
    port: u16,
    waiting: VecDeque<PacketBuffer>,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: Link> SharedLink<L> {
    /// Splits a link into ends, one for each of these client ports.
    pub fn split(link: L, ports: impl IntoIterator<Item = u16>) -> Vec<Self> {
        let capabilities = link.capabilities();
        let batch = (0..capabilities.batch).map(|_| PacketBuffer::new(capabilities.max_packet_len)).collect();
        let ends: Vec<_> = ports.into_iter().map(|port| End { port, waiting: VecDeque::new() }).collect();
        let count = ends.len();
        let wakers = Arc::new(Wakers(Mutex::new(vec![None; count])));
        let link = Arc::new(Mutex::new(Shared { link, batch, ends, spare: Vec::new() }));
        let end = |index| Self { link: Arc::clone(&link), wakers: Arc::clone(&wakers), capabilities, index };
        (0..count).map(end).collect()
    }

    /// Polls the link for all ends.
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

impl<L: Link> Shared<L> {
    /// Receives a batch from the link, and gives each packet to its end.
    fn take(&mut self, wakers: &Wakers) -> io::Result<()> {
        let count = self.link.try_recv(&mut self.batch)?;
        let capacity = self.link.capabilities().max_packet_len;
        for packet in &mut self.batch[..count] {
            let port = TcpSegment::parse(packet.packet()).map(|segment| segment.destination_port());
            if let Some(index) = self.ends.iter().position(|end| Some(end.port) == port) {
                let room = self.spare.pop().unwrap_or_else(|| PacketBuffer::new(capacity));
                self.ends[index].waiting.push_back(mem::replace(packet, room));
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
        while shared.ends[self.index].waiting.is_empty() {
            shared.take(&self.wakers)?;
        }
        let Shared { ends, spare, .. } = &mut *shared;
        let waiting = &mut ends[self.index].waiting;
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
        if !lock(&self.link).ends[self.index].waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let readable = self.poll(cx, L::poll_readable);
        // Another end may have received a packet for this one meanwhile.
        if lock(&self.link).ends[self.index].waiting.is_empty() { readable } else { Poll::Ready(Ok(())) }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, L::poll_writable)
    }
}
