//! What the device sees of a connection, and ipstack does not tell.

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

/// What all parts of one stack share.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) runtime: Handle,
    pub(super) user_timeout: Duration,
    flows: Mutex<HashMap<FlowKey, Arc<Flow>>>,
    exchange: Mutex<Exchange>,
    /// What ended the stack.
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

    /// Ends the stack, unless it has ended already, and wakes all that wait for it.
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

    /// A connection that begins with the peer's sequence number `first`.
    pub(super) fn open(&self, key: FlowKey, first: u32) {
        let mut flows = self.flows();
        // A SYN that is sent again opens nothing.
        if flows.get(&key).is_none_or(|flow| flow.first != first) {
            flows.insert(key, Flow::new(key, first));
        }
    }

    pub(super) fn flow(&self, key: FlowKey) -> Option<Arc<Flow>> {
        self.flows().get(&key).cloned()
    }

    /// The connection of a stream that has come out of ipstack. Its SYN has crossed the device before.
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

/// The last of these that has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    #[default]
    Nothing,
    SynAck,
    Fin,
}

/// What has crossed the device, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) left: Left,
    /// Sequence number of the peer's FIN.
    pub(super) end: Option<u32>,
    /// The peer's FIN, until ours has left.
    pub(super) held: Option<Vec<u8>>,
    /// The closer was woken for an ACK.
    acked: bool,
    failed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// It waits for our SYN-ACK or our FIN.
    closer: Option<Waker>,
}

impl Flow {
    fn new(key: FlowKey, first: u32) -> Arc<Self> {
        Arc::new(Self { key, first, seen: Mutex::default() })
    }

    /// Changes what was seen, and wakes all that wait.
    pub(super) fn see<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let mut seen = lock(&self.seen);
        let result = change(&mut seen);
        let wakers = [seen.reader.take(), seen.writer.take(), seen.closer.take()];
        drop(seen);
        wakers.into_iter().flatten().for_each(Waker::wake);
        result
    }

    /// ipstack was given an ACK. A task that shuts down may be done.
    pub(super) fn pass_ack(&self) {
        let mut seen = lock(&self.seen);
        let closer = seen.closer.take();
        seen.acked = closer.is_some();
        drop(seen);
        if let Some(closer) = closer {
            closer.wake();
        }
    }

    /// Ready when the peer's FIN comes next behind so many bytes, or with an error when the stack has ended.
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

    /// Ready when this has left, or the stack has ended.
    pub(super) fn poll_left(&self, cx: &Context<'_>, what: Left) -> Poll<()> {
        let mut seen = lock(&self.seen);
        if seen.failed || seen.left >= what {
            return Poll::Ready(());
        }
        if mem::take(&mut seen.acked) {
            // ipstack's task may look at the ACK only after this one has run.
            cx.waker().wake_by_ref();
        }
        seen.closer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready when the stack has ended, which ipstack tells none of its streams.
    pub(super) fn poll_failed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut seen = lock(&self.seen);
        if seen.failed {
            return Poll::Ready(());
        }
        seen.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// No code that may panic runs under a lock in the middle of a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
