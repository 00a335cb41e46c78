//! Facts about connections that the device sees and ipstack does not report.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use platform::packet::flags::{FIN, RST, SYN};
use platform::packet::{TcpFields, TcpLayout, TcpSegment};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::MAX_WINDOW;
use super::check::{Numbers, Stage, Verdict, write_acknowledgement};
use super::exchange::Exchange;
use crate::driven::most_half_open;
use crate::{FlowKey, FlowMap, StackConfig, Workaround, Workarounds, lock};

/// The state that all parts of one stack share. `S` is the stream that the application gets.
#[derive(Debug)]
pub(super) struct Hub<S> {
    pub(super) runtime: Handle,
    pub(super) user_timeout: Duration,
    pub(super) workarounds: Workarounds,
    /// Most bytes of a connection that wait for the application.
    most_unread: u32,
    /// Most connections, in any state.
    pub(super) most: usize,
    /// Most connections in their handshake.
    pub(super) most_half_open: usize,
    flows: Mutex<FlowMap<Arc<Flow<S>>>>,
    exchange: Mutex<Exchange>,
    /// The accept queue. `None` once the stack has ended.
    offer: Mutex<Option<mpsc::Sender<S>>>,
    reopened: Mutex<Reopened<S>>,
    /// The error that ended the stack.
    failure: OnceLock<(io::ErrorKind, String)>,
    ended: Notify,
}

/// Connections with peers that must get a window update, and the device that sends it.
#[derive(Debug)]
struct Reopened<S> {
    flows: Vec<Arc<Flow<S>>>,
    device: Option<Waker>,
}

impl<S> Hub<S> {
    /// Must be called within a runtime.
    pub(super) fn new(config: &StackConfig, exchange: Exchange, offer: mpsc::Sender<S>) -> Self {
        Self {
            runtime: Handle::current(),
            user_timeout: config.user_timeout,
            workarounds: config.workarounds,
            most: config.connections,
            most_half_open: most_half_open(config),
            most_unread: config.window.clamp(MAX_WINDOW, StackConfig::MAX_WINDOW) as u32,
            flows: Mutex::default(),
            exchange: Mutex::new(exchange),
            offer: Mutex::new(Some(offer)),
            reopened: Mutex::new(Reopened { flows: Vec::new(), device: None }),
            failure: OnceLock::new(),
            ended: Notify::new(),
        }
    }

    /// Ends the stack, unless it has already ended, and wakes all waiting tasks.
    pub(super) fn fail(&self, error: &io::Error) {
        let _earlier = self.failure.set((error.kind(), error.to_string()));
        self.ended.notify_one();
        drop(lock(&self.offer).take());
        let flows: Vec<_> = self.flows().values().cloned().collect();
        for flow in flows {
            flow.end(io::ErrorKind::NotConnected);
        }
        self.exchange().wake();
    }

    pub(super) async fn failed(&self) {
        while self.failure.get().is_none() {
            self.ended.notified().await;
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// The error that ended the stack.
    pub(super) fn failure(&self) -> io::Error {
        match self.failure.get() {
            Some((kind, message)) => io::Error::new(*kind, message.clone()),
            None => io::Error::other("ipstack has ended"),
        }
    }

    pub(super) fn exchange(&self) -> MutexGuard<'_, Exchange> {
        lock(&self.exchange)
    }

    fn flows(&self) -> MutexGuard<'_, FlowMap<Arc<Flow<S>>>> {
        lock(&self.flows)
    }

    /// Adds a connection with this initial number of the peer.
    pub(super) fn open(&self, key: FlowKey, irs: u32) -> Arc<Flow<S>> {
        let flow = Flow::new(key, irs, self.most_unread, self.workarounds);
        let before = self.flows().insert(key, Arc::clone(&flow));
        if let Some(before) = before {
            before.is_forgotten.store(true, Ordering::Relaxed);
        }
        flow
    }

    pub(super) fn flow(&self, key: FlowKey) -> Option<Arc<Flow<S>>> {
        self.flows().get(&key).cloned()
    }

    /// The number of connections.
    pub(super) fn len(&self) -> usize {
        self.flows().len()
    }

    /// The connection of a new stream of ipstack. The device has already seen its SYN.
    pub(super) fn take(&self, key: FlowKey) -> Arc<Flow<S>> {
        let Some(flow) = self.flow(key) else {
            // It was forgotten meanwhile.
            let flow = Flow::new(key, 0, 0, self.workarounds);
            flow.end(io::ErrorKind::ConnectionReset);
            return flow;
        };
        lock(&flow.seen).taken = true;
        flow
    }

    /// Whether the accept queue has room.
    pub(super) fn has_room(&self) -> bool {
        lock(&self.offer).as_ref().is_some_and(|offer| offer.capacity() > 0)
    }

    /// Lets the device send a window update.
    pub(super) fn reopen(&self, flow: &Arc<Flow<S>>) {
        let mut reopened = lock(&self.reopened);
        if !flow.is_reduced.swap(false, Ordering::Relaxed) {
            return;
        }
        reopened.flows.push(Arc::clone(flow));
        let device = reopened.device.take();
        drop(reopened);
        if let Some(device) = device {
            device.wake();
        }
    }

    /// A connection with a peer that must get a window update. Without one, the device is woken for the next.
    pub(super) fn poll_reopened(&self, cx: &Context<'_>) -> Option<Arc<Flow<S>>> {
        let mut reopened = lock(&self.reopened);
        let flow = reopened.flows.pop();
        if flow.is_none() && !reopened.device.as_ref().is_some_and(|device| device.will_wake(cx.waker())) {
            reopened.device = Some(cx.waker().clone());
        }
        flow
    }

    /// Whether the listener exists.
    pub(super) fn is_listening(&self) -> bool {
        lock(&self.offer).as_ref().is_some_and(|offer| !offer.is_closed())
    }

    /// Puts a connection into the accept queue. If that is full or the listener is gone, the stream is dropped, which
    /// closes it.
    pub(super) fn offer(&self, stream: S) {
        let offer = lock(&self.offer).clone();
        if let Some(offer) = offer {
            let _dropped = offer.try_send(stream);
        }
    }

    pub(super) fn forget(&self, flow: &Arc<Flow<S>>) {
        let mut flows = self.flows();
        if flows.get(&flow.key).is_some_and(|current| Arc::ptr_eq(current, flow)) {
            flows.remove(&flow.key);
            flow.is_forgotten.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Flow<S> {
    pub(super) key: FlowKey,
    /// Sequence number of the peer's first byte.
    first: u32,
    /// How many bytes the application has read; it wraps.
    read: AtomicU32,
    /// Whether the window is smaller than ipstack's.
    is_reduced: AtomicBool,
    /// Whether the hub has it no longer.
    is_forgotten: AtomicBool,
    seen: Mutex<Seen<S>>,
}

/// The packets that have crossed the device, and the tasks that wait for them.
#[derive(Debug)]
struct Seen<S> {
    numbers: Numbers,
    /// The peer's FIN, held back until ours was sent.
    held: Option<Vec<u8>>,
    /// Whether the driver has taken the stream of ipstack.
    taken: bool,
    /// The stream until the handshake is complete.
    half_open: Option<S>,
    /// Whether the closer was woken for an ACK.
    acked: bool,
    failure: Option<io::ErrorKind>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The task that waits for our FIN.
    closer: Option<Waker>,
}

impl<S> Flow<S> {
    fn new(key: FlowKey, irs: u32, most_unread: u32, workarounds: Workarounds) -> Arc<Self> {
        let seen = Seen {
            numbers: Numbers::new(irs, most_unread, workarounds),
            held: None,
            taken: false,
            half_open: None,
            acked: false,
            failure: None,
            reader: None,
            writer: None,
            closer: None,
        };
        Arc::new(Self {
            key,
            first: irs.wrapping_add(1),
            read: AtomicU32::new(0),
            is_reduced: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
            seen: Mutex::new(seen),
        })
    }

    /// Whether this is the hub's connection of `key`.
    pub(super) fn is_for(&self, key: &FlowKey) -> bool {
        self.key == *key && !self.is_forgotten.load(Ordering::Relaxed)
    }

    /// Changes the state, and wakes all waiting tasks.
    fn see<T>(&self, change: impl FnOnce(&mut Seen<S>) -> T) -> T {
        let mut seen = lock(&self.seen);
        let result = change(&mut seen);
        let wakers = [seen.reader.take(), seen.writer.take(), seen.closer.take()];
        drop(seen);
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }

    /// Decides about a segment of the peer.
    pub(super) fn check(&self, segment: &TcpSegment<'_>, has_room: impl FnOnce() -> bool) -> Verdict {
        lock(&self.seen).numbers.check(segment, has_room)
    }

    /// Notes a packet of ipstack. Returns the window to send, or `None` if it must not be sent; and the peer's FIN if
    /// ipstack may read it now.
    pub(super) fn note(&self, segment: &TcpSegment<'_>) -> (Option<u16>, Option<Vec<u8>>) {
        let mut seen = lock(&self.seen);
        let is_current = seen.numbers.note(segment);
        let window = is_current.then(|| self.window(&mut seen.numbers));
        let fin = seen.release();
        drop(seen);
        if segment.flags() & (FIN | RST) != 0 {
            self.see(|_| ());
        }
        (window, fin)
    }

    fn window(&self, numbers: &mut Numbers) -> u16 {
        let window = numbers.offer(self.read.load(Ordering::Relaxed));
        self.is_reduced.store(numbers.is_reduced, Ordering::Relaxed);
        window
    }

    /// Takes the peer's FIN. Returns it if ipstack may read it now.
    pub(super) fn hold(&self, fin: Vec<u8>) -> Option<Vec<u8>> {
        self.see(|seen| {
            seen.held = Some(fin);
            seen.release()
        })
    }

    /// The handshake is complete. Returns the stream, if the driver has taken it.
    pub(super) fn establish(&self) -> Option<S> {
        let mut seen = lock(&self.seen);
        seen.numbers.stage = Stage::Established;
        seen.half_open.take()
    }

    /// Takes the stream of ipstack. Returns it if the handshake is complete.
    pub(super) fn keep(&self, stream: S) -> Option<S> {
        let mut seen = lock(&self.seen);
        if seen.numbers.stage >= Stage::Established {
            return Some(stream);
        }
        seen.half_open = Some(stream);
        None
    }

    /// Ends the connection, and wakes all waiting tasks.
    pub(super) fn end(&self, failure: io::ErrorKind) {
        let half_open = self.see(|seen| {
            seen.numbers.stage = Stage::Ended;
            seen.failure.get_or_insert(failure);
            seen.half_open.take()
        });
        drop(half_open);
    }

    pub(super) fn stage(&self) -> Stage {
        lock(&self.seen).numbers.stage
    }

    pub(super) fn is_half_open(&self) -> bool {
        self.stage() <= Stage::HalfOpen
    }

    pub(super) fn is_taken(&self) -> bool {
        lock(&self.seen).taken
    }

    /// The error that has ended the connection.
    pub(super) fn failure(&self) -> Option<io::ErrorKind> {
        lock(&self.seen).failure
    }

    /// The fields of an ACK, or of the SYN-ACK.
    pub(super) fn fields(&self, flags: u8) -> TcpFields {
        let mut seen = lock(&self.seen);
        let window = self.window(&mut seen.numbers);
        let Numbers { iss, next, acked, .. } = seen.numbers;
        let sequence = if flags & SYN == 0 { next } else { iss };
        TcpFields { sequence, acknowledgement: acked, flags, window }
    }

    /// The highest acknowledgement number of the peer. ipstack drops a segment with a lower one.
    pub(super) fn acknowledged(&self) -> u32 {
        lock(&self.seen).numbers.una
    }

    /// Notes that the application has read so many bytes in all. Returns whether the peer must get a window update.
    pub(super) fn note_read(&self, read: u32) -> bool {
        self.read.store(read, Ordering::Relaxed);
        self.is_reduced.load(Ordering::Relaxed) && lock(&self.seen).numbers.may_reopen(read)
    }

    /// Notes that ipstack has read an ACK, and wakes the closer: its `shutdown` may succeed now.
    pub(super) fn pass_ack(&self) {
        let mut seen = lock(&self.seen);
        if !seen.numbers.workarounds.has(Workaround::PollsShutdown) {
            return;
        }
        let closer = seen.closer.take();
        seen.acked = closer.is_some();
        drop(seen);
        if let Some(closer) = closer {
            closer.wake();
        }
    }

    /// Ready if the peer's FIN comes right after the first `read` bytes, or with an error if the connection has ended.
    pub(super) fn poll_end(&self, cx: &Context<'_>, read: u32) -> Poll<io::Result<()>> {
        let mut seen = lock(&self.seen);
        if seen.numbers.fin == Some(self.first.wrapping_add(read)) {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = seen.failure {
            return Poll::Ready(Err(failure.into()));
        }
        seen.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when our FIN was sent, or the connection has ended.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut seen = lock(&self.seen);
        if seen.failure.is_some() || seen.numbers.sent_fin || seen.numbers.stage == Stage::Ended {
            return Poll::Ready(());
        }
        if mem::take(&mut seen.acked) {
            // ipstack's task may handle the ACK only after this task has run, so poll once more.
            cx.waker().wake_by_ref();
        }
        seen.closer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the connection has ended. ipstack does not report this to a task that writes.
    pub(super) fn poll_failed(&self, cx: &Context<'_>) -> Poll<io::ErrorKind> {
        let mut seen = lock(&self.seen);
        if let Some(failure) = seen.failure {
            return Poll::Ready(failure);
        }
        seen.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<S> Seen<S> {
    /// The peer's FIN, if ipstack may read it now.
    fn release(&mut self) -> Option<Vec<u8>> {
        if !self.numbers.may_close() {
            return None;
        }
        let mut fin = self.held.take()?;
        // ipstack ignores an acknowledgement number below the last one.
        let at = TcpLayout::parse(&fin)?.tcp_at;
        write_acknowledgement(&mut fin, at, self.numbers.una);
        Some(fin)
    }
}
