//! Facts about connections that the device sees and ipstack does not report.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::datagrams::Exchange;
use crate::FlowKey;

/// The state that all parts of one stack share.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) runtime: Handle,
    pub(super) user_timeout: Duration,
    flows: Mutex<HashMap<FlowKey, Arc<Flow>>>,
    exchange: Mutex<Exchange>,
    /// The error that ended the stack.
    failure: OnceLock<(io::ErrorKind, String)>,
    ended: Notify,
}

impl Hub {
    /// Must be called within a runtime.
    pub(super) fn new(user_timeout: Duration, exchange: Exchange) -> Self {
        Self {
            runtime: Handle::current(),
            user_timeout,
            flows: Mutex::default(),
            exchange: Mutex::new(exchange),
            failure: OnceLock::new(),
            ended: Notify::new(),
        }
    }

    /// Ends the stack, unless it has already ended, and wakes all waiting tasks.
    pub(super) fn fail(&self, error: &io::Error) {
        let _earlier = self.failure.set((error.kind(), error.to_string()));
        self.ended.notify_one();
        for flow in self.flows().values() {
            flow.see(|seen| seen.failed = true);
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

    fn flows(&self) -> MutexGuard<'_, HashMap<FlowKey, Arc<Flow>>> {
        lock(&self.flows)
    }

    /// Adds a connection. `first` is the sequence number of the peer's first byte.
    pub(super) fn open(&self, key: FlowKey, first: u32) {
        let mut flows = self.flows();
        // A retransmitted SYN opens no connection.
        if flows.get(&key).is_none_or(|flow| flow.first != first) {
            flows.insert(key, Flow::new(key, first));
        }
    }

    pub(super) fn flow(&self, key: FlowKey) -> Option<Arc<Flow>> {
        self.flows().get(&key).cloned()
    }

    /// The connection of a new stream of ipstack. The device has already seen its SYN.
    pub(super) fn take(&self, key: FlowKey) -> Arc<Flow> {
        self.flow(key).unwrap_or_else(|| Flow::new(key, 0))
    }

    pub(super) fn forget(&self, flow: &Arc<Flow>) {
        let mut flows = self.flows();
        if flows.get(&flow.key).is_some_and(|current| Arc::ptr_eq(current, flow)) {
            flows.remove(&flow.key);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    /// Sequence number of the peer's first byte.
    first: u32,
    seen: Mutex<Seen>,
}

/// The last of these packets that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    #[default]
    Nothing,
    SynAck,
    Fin,
}

/// The packets that have crossed the device, and the tasks that wait for them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) left: Left,
    /// Sequence number of the peer's FIN.
    pub(super) end: Option<u32>,
    /// The peer's FIN, held back until ours was sent.
    pub(super) held: Option<Vec<u8>>,
    /// Whether the closer was woken for an ACK.
    acked: bool,
    failed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The task that waits for our SYN-ACK or our FIN.
    closer: Option<Waker>,
}

impl Flow {
    fn new(key: FlowKey, first: u32) -> Arc<Self> {
        Arc::new(Self { key, first, seen: Mutex::default() })
    }

    /// Changes the state, and wakes all waiting tasks.
    pub(super) fn see<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let mut seen = lock(&self.seen);
        let result = change(&mut seen);
        let wakers = [seen.reader.take(), seen.writer.take(), seen.closer.take()];
        drop(seen);
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }

    /// Notes that ipstack has read an ACK, and wakes the closer: its `shutdown` may succeed now.
    pub(super) fn pass_ack(&self) {
        let mut seen = lock(&self.seen);
        let closer = seen.closer.take();
        seen.acked = closer.is_some();
        drop(seen);
        if let Some(closer) = closer {
            closer.wake();
        }
    }

    /// Ready if the peer's FIN comes right after the first `read` bytes, or with an error if the stack has ended.
    pub(super) fn poll_end(&self, cx: &Context<'_>, read: u32) -> Poll<io::Result<()>> {
        let mut seen = lock(&self.seen);
        if seen.end == Some(self.first.wrapping_add(read)) {
            return Poll::Ready(Ok(()));
        }
        if seen.failed {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        }
        seen.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when `what` was sent, or the stack has ended.
    pub(super) fn poll_left(&self, cx: &Context<'_>, what: Left) -> Poll<()> {
        let mut seen = lock(&self.seen);
        if seen.failed || seen.left >= what {
            return Poll::Ready(());
        }
        if mem::take(&mut seen.acked) {
            // ipstack's task may handle the ACK only after this task has run, so poll once more.
            cx.waker().wake_by_ref();
        }
        seen.closer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the stack has ended. ipstack does not report this to its streams.
    pub(super) fn poll_failed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut seen = lock(&self.seen);
        if seen.failed {
            return Poll::Ready(());
        }
        seen.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Locks, even if the mutex is poisoned: no code panics in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
