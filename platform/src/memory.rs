//! A link in memory.

use std::array;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::link::packet_len;
use crate::{Capabilities, Checksum, Link, PacketBuffer, PacketMeta};

/// One end of a bounded pipe of packets that loses nothing: a full one returns `WouldBlock`. When the other end is gone
/// and its packets are received, it returns [`io::ErrorKind::BrokenPipe`].
#[derive(Debug)]
pub struct MemoryLink {
    capabilities: Capabilities,
    incoming: Arc<Mutex<Queue>>,
    outgoing: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<(PacketMeta, Vec<u8>)>,
    /// Storage of received packets, reused for later packets.
    spare: Vec<Vec<u8>>,
    limit: usize,
    /// A flush wakes the reader; a packet does not.
    moderated: bool,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Packets taken under one lock, and copied after its release: else one end would wait while the other copies.
const AT_ONCE: usize = 32;

impl MemoryLink {
    /// The usual depth, in packets, for [`MemoryLink::pair`].
    pub const DEFAULT_DEPTH: usize = 256;

    /// The two ends of a link without offload. At most `depth` packets wait in each direction.
    pub fn pair(mtu: usize, depth: usize) -> (Self, Self) {
        Self::pair_of(Capabilities::plain(mtu), depth)
    }

    /// The two ends of a link with every offload: super-packets and partial checksums pass through.
    pub fn offloading_pair(mtu: usize, depth: usize) -> (Self, Self) {
        Self::pair_of(Capabilities::offloading(mtu), depth)
    }

    /// The same link with one wake for each batch: [`Link::flush`] or a full pipe wakes the reader.
    #[must_use]
    pub fn moderated(self) -> Self {
        for queue in [&self.incoming, &self.outgoing] {
            lock(queue).moderated = true;
        }
        self
    }

    /// The two ends of a link with these capabilities. At most `depth` packets wait in each direction.
    pub fn pair_of(capabilities: Capabilities, depth: usize) -> (Self, Self) {
        let queue = || Arc::new(Mutex::new(Queue { limit: depth.max(1), ..Queue::default() }));
        let (forth, back) = (queue(), queue());
        (
            Self { capabilities, incoming: Arc::clone(&back), outgoing: Arc::clone(&forth) },
            Self { capabilities, incoming: forth, outgoing: back },
        )
    }

    /// Takes waiting packets, at most [`AT_ONCE`], and returns their number.
    fn take(&self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut taken: [_; AT_ONCE] = array::from_fn(|_| None);
        let mut queue = lock(&self.incoming);
        for (place, _) in taken.iter_mut().zip(&*buffers) {
            *place = queue.packets.pop_front();
        }
        let writer = if taken[0].is_some() { queue.writer.take() } else { None };
        drop(queue);
        if let Some(writer) = writer {
            writer.wake();
        }
        let mut count = 0;
        for ((meta, packet), buffer) in taken.iter().flatten().zip(buffers) {
            buffer.storage_mut()[..packet.len()].copy_from_slice(packet);
            buffer.filled(packet.len(), *meta)?;
            count += 1;
        }
        if count > 0 {
            lock(&self.incoming).spare.extend(taken.into_iter().flatten().map(|(_, packet)| packet));
        }
        Ok(count)
    }

    /// Only a super-packet may be larger than the MTU. A meta other than the default needs the matching offload.
    fn check(&self, meta: PacketMeta, len: usize) -> io::Result<()> {
        let Capabilities { mtu, max_packet_len, checksum, segmentation, .. } = self.capabilities;
        let refuse = |reason| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if len > max_packet_len || (len > mtu && meta.gso_size.is_none()) {
            return refuse("packet larger than the link's MTU");
        }
        if meta.checksum == Checksum::Partial && !checksum.tx {
            return refuse("partial checksum on a link that completes none");
        }
        if meta.gso_size.is_some() && (meta.checksum == Checksum::Filled || !segmentation.any()) {
            return refuse("super-packet on a link that cuts none, or with its checksum done");
        }
        Ok(())
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        for queue in [&self.incoming, &self.outgoing] {
            let mut queue = lock(queue);
            queue.closed = true;
            for waker in [queue.reader.take(), queue.writer.take()].into_iter().flatten() {
                waker.wake();
            }
        }
    }
}

impl Link for MemoryLink {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// A link of super-packets takes UDP's as well.
    fn enable_udp_segmentation(&mut self) -> bool {
        self.capabilities.segmentation.any()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        let mut count = 0;
        for buffers in buffers.chunks_mut(AT_ONCE) {
            let taken = self.take(buffers)?;
            count += taken;
            if taken < buffers.len() {
                break;
            }
        }
        if count > 0 {
            return Ok(count);
        }
        let queue = lock(&self.incoming);
        // A packet may have arrived since. The next call takes it.
        Err(if queue.closed && queue.packets.is_empty() {
            io::ErrorKind::BrokenPipe
        } else {
            io::ErrorKind::WouldBlock
        }
        .into())
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(meta, packet_len(slices))?;
        let mut queue = lock(&self.outgoing);
        if queue.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if queue.packets.len() >= queue.limit {
            // The reader has to make room.
            wake_reader(queue);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut packet = queue.spare.pop().unwrap_or_default();
        drop(queue);
        packet.clear();
        for slice in slices {
            packet.extend_from_slice(slice);
        }
        // Only this end sends to the queue, so there is still room.
        let mut queue = lock(&self.outgoing);
        queue.packets.push_back((meta, packet));
        if !queue.moderated {
            wake_reader(queue);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let queue = lock(&self.outgoing);
        // Without packets, two ends that flush after each wake would wake each other for ever.
        if !queue.packets.is_empty() {
            wake_reader(queue);
        }
        Ok(())
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = lock(&self.incoming);
        if queue.closed || !queue.packets.is_empty() {
            return Poll::Ready(Ok(()));
        }
        queue.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = lock(&self.outgoing);
        if queue.closed || queue.packets.len() < queue.limit {
            return Poll::Ready(Ok(()));
        }
        queue.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn wake_reader(mut queue: MutexGuard<'_, Queue>) {
    let reader = queue.reader.take();
    drop(queue);
    if let Some(reader) = reader {
        reader.wake();
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Code under the lock does not panic in the middle of a change, so a poisoned queue is still consistent.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::num::NonZeroU16;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn buffers(count: usize) -> Vec<PacketBuffer> {
        (0..count).map(|_| PacketBuffer::new(1500)).collect()
    }

    fn send(link: &mut MemoryLink, bytes: &[u8]) -> io::Result<()> {
        link.try_send(PacketMeta::default(), &[IoSlice::new(bytes)])
    }

    #[test]
    fn packets_arrive_in_order_with_their_meta() {
        let (mut left, mut right) = MemoryLink::offloading_pair(1500, 8);
        let meta = PacketMeta { checksum: Checksum::Partial, gso_size: NonZeroU16::new(1460) };
        left.try_send(meta, &[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap();
        send(&mut left, b"second").unwrap();
        let mut buffers = buffers(4);
        assert_eq!(right.try_recv(&mut buffers).unwrap(), 2);
        assert_eq!((buffers[0].packet(), buffers[0].meta()), (&b"abc"[..], meta));
        assert_eq!((buffers[1].packet(), buffers[1].meta()), (&b"second"[..], PacketMeta::default()));
    }

    #[test]
    fn a_link_refuses_work_that_it_does_not_offload() {
        let partial = PacketMeta { checksum: Checksum::Partial, gso_size: None };
        let whole = PacketMeta { gso_size: NonZeroU16::new(1460), ..partial };
        let refused = |link: &mut MemoryLink, meta, len: usize| {
            let sent = link.try_send(meta, &[IoSlice::new(&vec![0; len])]);
            sent.map_err(|error| assert_eq!(error.kind(), io::ErrorKind::InvalidInput)).is_err()
        };
        let (mut plain, _other) = MemoryLink::pair(1500, 8);
        assert!(refused(&mut plain, partial, 40));
        assert!(refused(&mut plain, whole, 1500));
        assert!(refused(&mut plain, PacketMeta::default(), 1501));
        let (mut offloading, _other) = MemoryLink::offloading_pair(1500, 8);
        assert!(refused(&mut offloading, partial, 1501), "neither a packet of the MTU nor a super-packet");
        assert!(refused(&mut offloading, PacketMeta { checksum: Checksum::Filled, ..whole }, 65_535));
        assert!(refused(&mut offloading, whole, 65_536));
        assert!(!refused(&mut offloading, partial, 1500));
        assert!(!refused(&mut offloading, whole, 65_535));
    }

    #[test]
    fn a_full_pipe_would_block_and_an_oversized_packet_is_refused() {
        let (mut left, mut right) = MemoryLink::pair(4, 1);
        assert_eq!(send(&mut left, b"12345").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        send(&mut left, b"1234").unwrap();
        assert_eq!(send(&mut left, b"5").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        right.try_recv(&mut buffers(1)).unwrap();
        send(&mut left, b"5").unwrap();
    }

    #[test]
    fn the_other_end_drains_before_it_sees_the_close() {
        let (mut left, mut right) = MemoryLink::pair(1500, 8);
        send(&mut left, b"last").unwrap();
        drop(left);
        let mut buffers = buffers(1);
        assert_eq!(right.try_recv(&mut buffers).unwrap(), 1);
        assert_eq!(right.try_recv(&mut buffers).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(send(&mut right, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_moderated_link_wakes_its_reader_by_a_flush_or_when_it_is_full() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (left, mut right) = MemoryLink::pair(1500, 2);
        let mut left = left.moderated();
        let wakes = Arc::new(Count(AtomicUsize::new(0)));
        let handle = Waker::from(Arc::clone(&wakes));
        let park = |right: &mut MemoryLink| {
            assert!(right.poll_readable(&mut Context::from_waker(&handle)).is_pending());
        };
        park(&mut right);
        left.flush().unwrap();
        send(&mut left, b"x").unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        left.flush().unwrap();
        left.flush().unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        right.try_recv(&mut buffers(1)).unwrap();
        park(&mut right);
        send(&mut left, b"y").unwrap();
        send(&mut left, b"z").unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        send(&mut left, b"no room").unwrap_err();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_parked_reader_is_woken_by_a_packet_and_a_parked_writer_by_room() {
        let (mut left, mut right) = MemoryLink::pair(1500, 1);
        let reader = tokio::spawn(async move {
            poll_fn(|cx| right.poll_readable(cx)).await.unwrap();
            right
        });
        tokio::task::yield_now().await;
        send(&mut left, b"x").unwrap();
        let mut right = reader.await.unwrap();
        let writer = tokio::spawn(async move {
            poll_fn(|cx| left.poll_writable(cx)).await.unwrap();
            send(&mut left, b"y")
        });
        tokio::task::yield_now().await;
        right.try_recv(&mut buffers(1)).unwrap();
        writer.await.unwrap().unwrap();
    }
}
