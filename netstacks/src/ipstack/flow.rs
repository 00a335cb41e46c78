//! The connections of ipstack: what their packets show and ipstack does not report.

use std::io;
use std::iter;
use std::mem;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use platform::packet::flags::{ACK, FIN, RST, SYN};
use platform::packet::{TcpFields, TcpSegment};
use tokio::runtime::Handle;
use tokio::sync::{SetOnce, mpsc};

use super::MAX_WINDOW;
use super::device::PIECE;
use super::stream::IpstackStream;
use super::udp::Streams;
use crate::config::again;
use crate::recovery::is_before;
use crate::{FlowKey, FlowMap, StackConfig, lock};

/// A window that was reduced opens by no less than this many bytes.
const LEAST_STEP: u32 = 16 << 10;

/// Most segments beyond a gap. ipstack walks all of them for each packet.
const MAX_HELD: usize = 128;

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) runtime: Handle,
    /// The window is the most bytes of a connection that wait for the application. ipstack has no limit.
    pub(super) config: StackConfig,
    flows: Mutex<FlowMap<Arc<Flow>>>,
    pub(super) streams: Mutex<Streams>,
    /// Datagrams in ipstack's queue to the device.
    pub(super) leaving: AtomicUsize,
    /// The accept queue. `None` once the stack has ended.
    offer: Mutex<Option<mpsc::Sender<IpstackStream>>>,
    /// Connections with peers that must get a window update, for the device.
    pub(super) reopened: mpsc::UnboundedSender<Arc<Flow>>,
    /// The error that ended the stack.
    pub(super) failed: SetOnce<io::Error>,
}

impl Hub {
    /// Must be called within a runtime.
    pub(super) fn new(
        config: &StackConfig,
        offer: mpsc::Sender<IpstackStream>,
        reopened: mpsc::UnboundedSender<Arc<Flow>>,
    ) -> Self {
        Self {
            runtime: Handle::current(),
            config: StackConfig { window: config.window.clamp(MAX_WINDOW, StackConfig::MAX_WINDOW), ..config.clone() },
            flows: Mutex::default(),
            streams: Mutex::default(),
            leaving: AtomicUsize::new(0),
            offer: Mutex::new(Some(offer)),
            reopened,
            failed: SetOnce::new(),
        }
    }

    /// Ends the stack, unless it has already ended, and wakes all waiting tasks.
    pub(super) fn fail(&self, error: &io::Error) {
        let _earlier = self.failed.set(again(error));
        drop(lock(&self.offer).take());
        let flows: Vec<_> = lock(&self.flows).values().cloned().collect();
        for flow in flows {
            flow.end(io::ErrorKind::NotConnected);
        }
    }

    pub(super) fn failure(&self) -> io::Error {
        self.failed.get().map_or_else(|| io::Error::other("ipstack has ended"), again)
    }

    /// Adds a connection, in place of an earlier one that has ended.
    pub(super) fn open(&self, key: FlowKey) -> Arc<Flow> {
        let flow = Arc::new(Flow { key, seen: Mutex::default() });
        lock(&self.flows).insert(key, Arc::clone(&flow));
        flow
    }

    pub(super) fn flow(&self, key: &FlowKey) -> Option<Arc<Flow>> {
        lock(&self.flows).get(key).cloned()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.flows).len()
    }

    pub(super) fn forget(&self, flow: &Arc<Flow>) {
        let mut flows = lock(&self.flows);
        if flows.get(&flow.key).is_some_and(|current| Arc::ptr_eq(current, flow)) {
            flows.remove(&flow.key);
        }
    }

    /// Whether the accept queue has room, or nobody listens.
    pub(super) fn has_room(&self) -> bool {
        lock(&self.offer).as_ref().is_some_and(|offer| offer.is_closed() || offer.capacity() > 0)
    }

    /// Puts a connection into the accept queue. If that is full or the listener is gone, the stream is closed.
    pub(super) fn offer(&self, stream: IpstackStream) {
        if let Some(offer) = &*lock(&self.offer) {
            let _dropped = offer.try_send(stream);
        }
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    seen: Mutex<Seen>,
}

#[derive(Clone, Copy)]
enum Task {
    Reader,
    Writer,
    /// It waits for our FIN.
    Closer,
}

/// The packets that have crossed the device, and the tasks that wait for them.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Seen {
    /// Whether the handshake is complete.
    pub(super) is_open: bool,
    /// Before that, the SYN-ACK, which is empty until it is sent, and ipstack's stream.
    pub(super) syn_ack: Vec<u8>,
    half_open: Option<IpstackStream>,
    /// The peer's first byte, the next that ipstack was not given, and the next that it has not acknowledged.
    first: u32,
    passed: u32,
    acked: u32,
    /// The bytes beyond a gap that ipstack was given.
    held: Vec<Range<u32>>,
    /// The peer's FIN, and whether ipstack was given it.
    fin: Option<u32>,
    gave_fin: bool,
    /// The first byte of ours that is not acknowledged, and the end of what was sent.
    una: u32,
    next: u32,
    sent_fin: bool,
    /// The last window of ipstack, and of the peer.
    window: u16,
    peer_window: u16,
    /// How many bytes the application has read, which wraps; the end of the window, and whether that is reduced.
    read: u32,
    edge: u32,
    is_reduced: bool,
    /// The error that has ended the connection.
    pub(super) failure: Option<io::ErrorKind>,
    tasks: [Option<Waker>; 3],
}

#[derive(Debug, Default)]
pub(super) struct Admission {
    /// The part of the payload that ipstack reads, if it reads the segment at all.
    pub(super) bytes: Option<Range<usize>>,
    /// The acknowledgement number that it reads.
    pub(super) acknowledgement: Option<u32>,
    /// Whether the peer gets an acknowledgement, because none of the bytes is next.
    pub(super) replies: bool,
    /// The stream of a connection that is open now, if the driver has taken it.
    pub(super) opened: Option<IpstackStream>,
    /// Packets in the peer's name, with their payload, that ipstack reads next.
    pub(super) own: Vec<(TcpFields, &'static [u8])>,
}

impl Flow {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    pub(super) fn is_half_open(&self) -> bool {
        !self.seen().is_open
    }

    fn wake(mut seen: MutexGuard<'_, Seen>) {
        let tasks = mem::take(&mut seen.tasks);
        drop(seen);
        tasks.into_iter().flatten().for_each(Waker::wake);
    }

    /// Decides about a segment of the peer with ACK, and without SYN and RST.
    pub(super) fn admit(&self, segment: &TcpSegment<'_>, hub: &Hub) -> Admission {
        let mut seen = self.seen();
        let had_fin = seen.fin.is_some();
        let admission = seen.admit(segment, hub);
        if seen.fin.is_some() != had_fin {
            Self::wake(seen);
        }
        admission
    }

    /// Notes a packet of ipstack. Returns the window to send, or `None`, and the FIN that ipstack reads next.
    pub(super) fn note(&self, segment: &TcpSegment<'_>, packet: &[u8], hub: &Hub) -> (Option<u16>, Option<TcpFields>) {
        let mut seen = self.seen();
        if !seen.note(segment, packet) {
            return (None, None);
        }
        let (window, fin) = (seen.offer(hub), seen.release());
        if segment.flags() & (FIN | RST) != 0 {
            Self::wake(seen);
        }
        (Some(window), fin)
    }

    /// Notes that the application has read `len` bytes. Returns whether the peer must get a window update.
    pub(super) fn note_read(&self, len: usize, hub: &Hub) -> bool {
        let mut seen = self.seen();
        seen.read = seen.read.wrapping_add(len as u32);
        let reopens = seen.is_reduced && seen.unread() <= hub.config.window as u32 / 2;
        seen.is_reduced &= !reopens;
        reopens
    }

    /// The fields of an acknowledgement to the peer.
    pub(super) fn acknowledgement(&self, hub: &Hub) -> TcpFields {
        let mut seen = self.seen();
        TcpFields { sequence: seen.next, acknowledgement: seen.acked, flags: ACK, window: seen.offer(hub) }
    }

    /// Takes the stream of ipstack. Returns it if the handshake is complete, and drops it if that has failed.
    pub(super) fn keep(&self, stream: IpstackStream) -> Option<IpstackStream> {
        let mut seen = self.seen();
        if seen.is_open {
            return Some(stream);
        }
        seen.half_open = seen.failure.is_none().then_some(stream);
        None
    }

    /// Ends the connection, and wakes all waiting tasks.
    pub(super) fn end(&self, failure: io::ErrorKind) {
        let mut seen = self.seen();
        seen.failure.get_or_insert(failure);
        let half_open = seen.half_open.take();
        Self::wake(seen);
        drop(half_open);
    }

    /// Wakes the task that waits for our FIN: ipstack has read an ACK, and may send the FIN now.
    pub(super) fn wake_closer(&self) {
        let closer = self.seen().tasks[Task::Closer as usize].take();
        if let Some(closer) = closer {
            closer.wake();
        }
    }

    fn poll<T>(&self, cx: &Context<'_>, task: Task, look: impl FnOnce(&Seen) -> Option<T>) -> Poll<T> {
        let mut seen = self.seen();
        let seen_it = look(&seen);
        if seen_it.is_none() {
            seen.tasks[task as usize] = Some(cx.waker().clone());
        }
        seen_it.map_or(Poll::Pending, Poll::Ready)
    }

    /// Ready if the application has read all bytes before the peer's FIN, or with an error if the connection has ended.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Task::Reader, |seen| match seen.fin {
            Some(fin) if fin == seen.first.wrapping_add(seen.read) => Some(Ok(())),
            _ => seen.failure.map(|failure| Err(failure.into())),
        })
    }

    /// Ready when our FIN was sent, or the connection has ended.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll(cx, Task::Closer, |seen| (seen.sent_fin || seen.failure.is_some()).then_some(()))
    }

    /// Ready when the connection has ended, of which ipstack tells no task that writes.
    pub(super) fn poll_failed(&self, cx: &Context<'_>) -> Poll<io::ErrorKind> {
        self.poll(cx, Task::Writer, |seen| seen.failure)
    }
}

impl Seen {
    fn admit(&mut self, segment: &TcpSegment<'_>, hub: &Hub) -> Admission {
        let acknowledgement = segment.acknowledgement();
        if is_before(self.next, acknowledgement) {
            return Admission::default();
        }
        if is_before(self.una, acknowledgement) {
            self.una = acknowledgement;
        }
        if !self.is_open && (self.syn_ack.is_empty() || self.una != self.next || !hub.has_room()) {
            return Admission::default();
        }
        let opened = self.half_open.take();
        (self.is_open, self.syn_ack, self.peer_window) = (true, Vec::new(), segment.window());
        let before = self.passed;
        let (bytes, joined) = self.place(segment);
        // RFC 5681, 4.2. Without it each loss costs a timeout.
        let replies = self.passed == before && !segment.payload().is_empty();
        // Two bytes that ipstack has already. It drops them, and moves the next bytes that are in order.
        let nudge = (self.own(ACK, self.acked.wrapping_sub(2)), &[0; 2][..]);
        let nudges = iter::repeat_n(nudge, joined.div_ceil(PIECE));
        let own = nudges.chain(self.take_fin(segment).map(|fin| (fin, &[][..]))).collect();
        // ipstack drops a segment with a lower number than the last.
        Admission { bytes, acknowledgement: Some(self.una), replies, opened, own }
    }

    /// Which bytes of a segment ipstack reads, and how many it has beyond the gap that they fill. `None`: no byte is new, or
    /// it is beyond the window. ipstack would keep bytes without a limit, and wait for ever if some beyond a gap came twice.
    fn place(&mut self, segment: &TcpSegment<'_>) -> (Option<Range<usize>>, usize) {
        let (start, len) = (segment.sequence(), segment.payload().len());
        let end = start.wrapping_add(len as u32);
        if len == 0 {
            return (Some(0..0), 0);
        }
        if !is_before(self.passed, end) || self.fin.is_some() || is_before(self.edge, end) {
            return (None, 0);
        }
        let next = self.held.partition_point(|held| is_before(held.start, start));
        if is_before(self.passed, start) {
            let is_free = self.held[..next].last().is_none_or(|before| !is_before(start, before.end))
                && self.held.get(next).is_none_or(|after| !is_before(after.start, end));
            if is_free && self.held.len() < MAX_HELD {
                self.held.insert(next, start..end);
                return (Some(0..len), 0);
            }
            return (None, 0);
        }
        let skip = self.passed.wrapping_sub(start) as usize;
        self.passed = self.held.first().map_or(end, |held| if is_before(held.start, end) { held.start } else { end });
        let filled = self.passed;
        while self.held.first().is_some_and(|held| held.start == self.passed) {
            self.passed = self.held.remove(0).end;
        }
        (Some(skip..filled.wrapping_sub(start) as usize), self.passed.wrapping_sub(filled) as usize)
    }

    /// Notes the FIN of a segment, if all bytes before it have come. Returns it if ipstack reads it now.
    fn take_fin(&mut self, segment: &TcpSegment<'_>) -> Option<TcpFields> {
        let end = segment.sequence().wrapping_add(segment.payload().len() as u32);
        if segment.flags() & FIN == 0 || end != self.passed {
            return None;
        }
        self.fin = Some(end);
        // It comes again: the peer lacks its acknowledgement.
        if self.gave_fin { Some(self.own(FIN | ACK, end)) } else { self.release() }
    }

    /// The peer's FIN, if ipstack reads it now: it would close its own side at once, and take the FIN before missing bytes.
    fn release(&mut self) -> Option<TcpFields> {
        let fin = self.fin.filter(|fin| self.sent_fin && !self.gave_fin && *fin == self.acked)?;
        self.gave_fin = true;
        Some(self.own(FIN | ACK, fin))
    }

    fn own(&self, flags: u8, sequence: u32) -> TcpFields {
        TcpFields { sequence, acknowledgement: self.una, flags, window: self.peer_window }
    }

    /// Notes a packet of ipstack. Returns `false` for one of an earlier connection, which must not be sent.
    fn note(&mut self, segment: &TcpSegment<'_>, packet: &[u8]) -> bool {
        let (flags, sequence, acknowledgement) = (segment.flags(), segment.sequence(), segment.acknowledgement());
        if flags & SYN != 0 && !self.is_open {
            self.syn_ack = packet.to_vec();
            [self.una, self.next] = [sequence; 2];
            [self.first, self.passed, self.acked, self.edge] = [acknowledgement; 4];
        } else if self.syn_ack.is_empty() && !self.is_open {
            return false;
        }
        let end = sequence.wrapping_add(segment.payload().len() as u32 + u32::from(flags & (SYN | FIN) != 0));
        if is_before(self.next, end) {
            self.next = end;
        }
        self.sent_fin |= flags & FIN != 0;
        if flags & RST != 0 {
            self.failure.get_or_insert(io::ErrorKind::TimedOut);
        }
        if !is_before(acknowledgement, self.acked) {
            (self.acked, self.window) = (acknowledgement, segment.window());
        }
        true
    }

    /// ipstack's window, or what the unread bytes leave of it. Then it opens in large steps (RFC 9293, 3.8.6.2.2).
    fn offer(&mut self, hub: &Hub) -> u16 {
        let room = (hub.config.window as u32).saturating_sub(self.unread()).min(self.window.into());
        self.is_reduced = room < self.window.into();
        let edge = self.acked.wrapping_add(room);
        if !self.is_reduced || is_before(self.edge.wrapping_add(LEAST_STEP), edge) {
            self.edge = edge;
        }
        self.edge.wrapping_sub(self.acked).min(room) as u16
    }

    fn unread(&self) -> u32 {
        let unread = self.acked.wrapping_sub(self.first).wrapping_sub(self.read);
        // The application has read what ipstack has not acknowledged yet.
        if unread > u32::MAX / 2 { 0 } else { unread }
    }
}
