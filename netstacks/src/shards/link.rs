//! Packets that come over the link of another shard than theirs.
//!
//! ```text
//! queue 0 ──► link of shard 0 ──► shard 0
//!                    │ ▲
//!                    ▼ │   inboxes
//! queue 1 ──► link of shard 1 ──► shard 1
//! ```

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use platform::{Capabilities, Link, PacketBuffer, PacketMeta};

use super::Spread;
use super::route::{Outgoing, Router};

/// Packets that may wait in an inbox, and empty buffers beside it: up to 8 MiB for each shard.
const INBOX: usize = 128;

/// Batches that one call takes from the link. It has a bound because the caller may hold the stack's lock.
const MAX_BATCHES: usize = 8;

/// The links of shards, each around a link of a device. A packet that comes over the link of another shard is passed on
/// to its own, which `spread` chooses; [`sharded`](super::sharded) has to get the same.
///
/// The packets of a flow stay in order if they come over one link. While the bounded inbox of a shard is full, the
/// other takes no more packets from its link. A shard always takes from its inbox, so two cannot wait for each other.
pub fn steer<L: Link>(spread: &Spread, links: Vec<L>) -> (Vec<Steered<L>>, PassedOn) {
    let shards = links.len();
    let shared = Arc::new(Shared {
        router: Router::new(spread.clone(), shards),
        inboxes: (0..shards).map(|_| Inbox::default()).collect(),
    });
    let place = |(shard, link): (usize, L)| {
        let outgoing = Outgoing::new(link.capabilities().max_packet_len);
        let place = Place {
            shard,
            shared: Arc::clone(&shared),
            outgoing,
            has_more: false,
            inbox_has_odd: true,
            has_passed_on: false,
        };
        Steered { link, place: (shards > 1).then_some(place) }
    };
    let links = links.into_iter().enumerate().map(place).collect();
    (links, PassedOn(shared))
}

/// A link of a shard; see [`steer`].
#[derive(Debug)]
pub struct Steered<L> {
    link: L,
    /// `None` if there is one shard: all packets are its own.
    place: Option<Place>,
}

/// Counts the packets that shards have passed on to each other; see [`steer`].
#[derive(Clone, Debug)]
pub struct PassedOn(Arc<Shared>);

impl PassedOn {
    /// How many there are so far, of all shards together.
    pub fn count(&self) -> u64 {
        self.0.inboxes.iter().map(|inbox| inbox.lock().passed_on).sum()
    }
}

#[derive(Debug)]
struct Place {
    shard: usize,
    shared: Arc<Shared>,
    /// Packets of other shards. They are left here only while an inbox is full.
    outgoing: Outgoing,
    /// Whether the link may have packets that it does not announce any more.
    has_more: bool,
    /// Whether the odd buffer of the next batch is for the inbox.
    inbox_has_odd: bool,
    /// Whether it has had packets of other shards; see [`Link::has_passed_on`].
    has_passed_on: bool,
}

#[derive(Debug)]
struct Shared {
    router: Router,
    inboxes: Box<[Inbox]>,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    /// Whether there are any. If not, the shard need not take the lock.
    has_packets: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<PacketBuffer>,
    /// Empty buffers, in exchange for those of later packets.
    spare: Vec<PacketBuffer>,
    reader: Option<Waker>,
    /// The tasks of other shards that wait for room, with their numbers.
    writers: Vec<(usize, Waker)>,
    passed_on: u64,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        crate::lock(&self.waiting)
    }

    /// Takes packets, at most one for each buffer. Returns how many.
    fn take(&self, buffers: &mut [PacketBuffer]) -> usize {
        if !self.has_packets.load(Ordering::Relaxed) {
            return 0;
        }
        let mut waiting = self.lock();
        let writers = if waiting.packets.len() < INBOX { Vec::new() } else { mem::take(&mut waiting.writers) };
        let count = waiting.packets.len().min(buffers.len());
        for buffer in &mut buffers[..count] {
            let Some(packet) = waiting.packets.pop_front() else { break };
            let empty = mem::replace(buffer, packet);
            if waiting.spare.len() < INBOX {
                waiting.spare.push(empty);
            }
        }
        self.has_packets.store(!waiting.packets.is_empty(), Ordering::Relaxed);
        drop(waiting);
        for (_, writer) in writers {
            writer.wake();
        }
        count
    }

    /// Takes the next packets for `shard`, whose inbox this is, while there is room. Returns whether it took any.
    fn put(&self, shard: usize, outgoing: &mut Outgoing, from: usize) -> bool {
        let mut waiting = self.lock();
        let before = waiting.packets.len();
        while waiting.packets.len() < INBOX
            && outgoing.packets.front().is_some_and(|(of, _)| *of == shard)
            && let Some((_, packet)) = outgoing.packets.pop_front()
        {
            waiting.packets.push_back(packet);
            // Fragments that waited left their empty buffers to the shards whose links they came over.
            if outgoing.spare.len() < INBOX {
                outgoing.spare.extend(waiting.spare.pop());
            }
        }
        let count = waiting.packets.len() - before;
        // Fragments that waited for the first of their packet may be the shard's own.
        waiting.passed_on += if shard == from { 0 } else { count as u64 };
        self.has_packets.store(!waiting.packets.is_empty(), Ordering::Relaxed);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
        count > 0
    }
}

impl Place {
    fn inbox(&self) -> &Inbox {
        &self.shared.inboxes[self.shard]
    }

    /// Moves the shard's own packets of a batch to the front, and the others to their shards. Returns how many are its own.
    fn sort(&mut self, batch: &mut [PacketBuffer]) -> usize {
        let mut own = 0;
        for index in 0..batch.len() {
            match self.shared.router.route(&mut batch[index], &mut self.outgoing) {
                Some(shard) if shard == self.shard => {
                    batch.swap(own, index);
                    own += 1;
                }
                Some(shard) => {
                    self.outgoing.push(shard, &mut batch[index]);
                    self.has_passed_on = true;
                }
                None => {}
            }
        }
        self.pass_on();
        own
    }

    /// Passes packets on. Returns whether all are gone.
    fn pass_on(&mut self) -> bool {
        while let Some((shard, _)) = self.outgoing.packets.front() {
            let shard = *shard;
            if !self.shared.inboxes[shard].put(shard, &mut self.outgoing, self.shard) {
                return false;
            }
        }
        true
    }

    fn try_recv(&mut self, link: &mut impl Link, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        // Half of the buffers are for the link, or others could starve it with a full inbox.
        let half = if self.inbox_has_odd { buffers.len().div_ceil(2) } else { buffers.len() / 2 };
        self.inbox_has_odd = !self.inbox_has_odd;
        let mut count = self.inbox().take(&mut buffers[..half]);
        for _ in 0..MAX_BATCHES {
            // While an inbox is full, packets wait in the device.
            if !self.pass_on() || count == buffers.len() {
                break;
            }
            let rest = &mut buffers[count..];
            let received = match link.try_recv(rest) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            };
            self.has_more = received == rest.len();
            count += self.sort(&mut rest[..received]);
            if !self.has_more {
                break;
            }
        }
        count += self.inbox().take(&mut buffers[count..]);
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Ready if the inbox has packets, or those on their way have room. `None` if the link is to be asked.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Result<()>>> {
        let mut waiting = self.inbox().lock();
        if !waiting.packets.is_empty() {
            return Some(Poll::Ready(Ok(())));
        }
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(waiting);
        let Some((shard, _)) = self.outgoing.packets.front() else {
            return self.has_more.then_some(Poll::Ready(Ok(())));
        };
        let mut waiting = self.shared.inboxes[*shard].lock();
        if waiting.packets.len() < INBOX {
            return Some(Poll::Ready(Ok(())));
        }
        waiting.writers.retain(|(of, _)| *of != self.shard);
        waiting.writers.push((self.shard, cx.waker().clone()));
        Some(Poll::Pending)
    }
}

impl<L: Link> Link for Steered<L> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities()
    }

    fn enable_udp_segmentation(&mut self) -> bool {
        self.link.enable_udp_segmentation()
    }

    fn try_recv(&mut self, buffers: &mut [PacketBuffer]) -> io::Result<usize> {
        match &mut self.place {
            None => self.link.try_recv(buffers),
            Some(place) => place.try_recv(&mut self.link, buffers),
        }
    }

    fn has_passed_on(&mut self) -> bool {
        // Those that still wait for room need this reader, too.
        let waits = |place: &mut Place| mem::take(&mut place.has_passed_on) || !place.outgoing.packets.is_empty();
        self.place.as_mut().is_some_and(waits)
    }

    fn try_send(&mut self, meta: PacketMeta, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.link.try_send(meta, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.link.flush()
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.place.as_mut().and_then(|place| place.poll_readable(cx)) {
            Some(readable) => readable,
            None => self.link.poll_readable(cx),
        }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_writable(cx)
    }
}

#[cfg(test)]
mod tests;
