//! What the bridge, the driver, the listener and the streams of one stack share.
//!
//! A flow's lock may be held while the hub's is taken, never the other way round.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ipstack::IpStackTcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::datagrams::Exchange;
use super::events::{Inner, Limits, Owner, Stage};
use super::flow::{Flow, State};
use crate::FlowKey;

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) limits: Limits,
    /// Told once the bridge has ended all of ipstack's tasks after a failure.
    pub(super) emptied: Notify,
    backlog: usize,
    runtime: Handle,
    /// Whether there are requests, so that the bridge need not take the lock to see that not.
    requested: AtomicBool,
    inside: Mutex<Inside>,
    /// Its lock may be held while the other one is taken, never the other way round.
    exchange: Mutex<Exchange>,
}

#[derive(Debug)]
struct Inside {
    /// What ended the stack.
    failure: Option<(io::ErrorKind, String)>,
    /// Connections for which ipstack has not returned a stream yet, in the order of their SYNs.
    syn_queue: VecDeque<Arc<Flow>>,
    /// Connections whose handshake is done.
    accept_queue: VecDeque<Arc<Flow>>,
    /// Connections that were not accepted yet, those two included.
    waiting: usize,
    listening: bool,
    /// Connections that the bridge has to look at.
    requests: Vec<Arc<Flow>>,
    /// There are empty datagrams for ipstack.
    stream_requested: bool,
    bridge: Option<Waker>,
    driver: Option<Waker>,
    acceptor: Option<Waker>,
}

impl Hub {
    /// `mtu`: the link's.
    pub(super) fn new(limits: Limits, backlog: usize, mtu: usize, runtime: Handle) -> Self {
        let inside = Inside {
            failure: None,
            syn_queue: VecDeque::new(),
            accept_queue: VecDeque::new(),
            waiting: 0,
            listening: true,
            requests: Vec::new(),
            stream_requested: false,
            bridge: None,
            driver: None,
            acceptor: None,
        };
        Self {
            limits,
            emptied: Notify::new(),
            backlog,
            runtime,
            requested: AtomicBool::new(false),
            inside: Mutex::new(inside),
            exchange: Mutex::new(Exchange::new(mtu)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // No code that may panic runs under the lock in the middle of a change.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the stack, unless it has ended already, and wakes everyone for it.
    pub(super) fn fail(&self, error: &io::Error) {
        let mut inside = self.lock();
        inside.failure.get_or_insert_with(|| (error.kind(), error.to_string()));
        let wakers = [inside.bridge.take(), inside.driver.take(), inside.acceptor.take()];
        drop(inside);
        wakers.into_iter().flatten().for_each(Waker::wake);
        self.exchange().wake_receivers();
    }

    /// UDP's share.
    pub(super) fn exchange(&self) -> MutexGuard<'_, Exchange> {
        // As above.
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the bridge to request a stream by an empty datagram.
    pub(super) fn request_stream(&self) {
        let mut inside = self.lock();
        inside.stream_requested = true;
        self.requested.store(true, Ordering::Release);
        let bridge = inside.bridge.take();
        drop(inside);
        if let Some(bridge) = bridge {
            bridge.wake();
        }
    }

    /// The error that ended the stack.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.lock().failure()
    }

    /// Ready with the error once the stack has ended.
    pub(super) fn poll_failure(&self, cx: &Context<'_>) -> Poll<io::Error> {
        let mut inside = self.lock();
        if let Some(error) = inside.failure() {
            return Poll::Ready(error);
        }
        inside.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Asks the bridge to look at a connection.
    pub(super) fn request(&self, flow: &Arc<Flow>, state: &mut State) {
        if mem::replace(&mut state.listed, true) {
            return;
        }
        let mut inside = self.lock();
        inside.requests.push(Arc::clone(flow));
        self.requested.store(true, Ordering::Release);
        let bridge = inside.bridge.take();
        drop(inside);
        if let Some(bridge) = bridge {
            bridge.wake();
        }
    }

    /// Moves the requests to the bridge's list. Returns whether a stream was requested.
    pub(super) fn take_requests(&self, work: &mut VecDeque<Arc<Flow>>) -> bool {
        if !self.requested.load(Ordering::Acquire) {
            return false;
        }
        let mut inside = self.lock();
        self.requested.store(false, Ordering::Release);
        work.extend(inside.requests.drain(..));
        mem::take(&mut inside.stream_requested)
    }

    /// Parks the bridge, unless there is something for it to do. `failed`: it knows that the stack
    /// has ended.
    pub(super) fn park_bridge(&self, cx: &Context<'_>, failed: bool) -> bool {
        let mut inside = self.lock();
        if !inside.requests.is_empty() || inside.stream_requested || (inside.failure.is_some() && !failed) {
            return false;
        }
        inside.bridge = Some(cx.waker().clone());
        true
    }

    /// Room for one more connection that waits to be accepted?
    pub(super) fn admit(&self, flow: &Arc<Flow>) -> bool {
        let mut inside = self.lock();
        if inside.failure.is_some() || inside.waiting >= self.backlog {
            return false;
        }
        inside.waiting += 1;
        inside.syn_queue.push_back(Arc::clone(flow));
        true
    }

    /// Whether the listener is still there.
    pub(super) fn is_listening(&self) -> bool {
        self.lock().listening
    }

    /// A connection waits no longer.
    pub(super) fn leave(&self) {
        let mut inside = self.lock();
        inside.waiting = inside.waiting.saturating_sub(1);
    }

    /// A connection ends that ipstack never answered: no stream of it will come out.
    pub(super) fn leave_syn_queue(&self, flow: &Arc<Flow>) {
        self.lock().syn_queue.retain(|waiting| !Arc::ptr_eq(waiting, flow));
    }

    /// A connection has come out of ipstack.
    pub(super) fn deliver(&self, inner: IpStackTcpStream, key: FlowKey) {
        let inner = Inner::new(inner);
        let mut inside = self.lock();
        let index = inside.syn_queue.iter().position(|flow| flow.key == key);
        let flow = index.and_then(|index| inside.syn_queue.remove(index));
        drop(inside);
        // Every SYN that ipstack sees has an entry in the queue. A stream without one cannot occur; it is dropped.
        let Some(flow) = flow else { return self.retire(inner) };
        let mut state = flow.lock();
        match &mut state.owner {
            Owner::Waiting(slot) => {
                *slot = Some(Box::new(inner));
                if state.stage == Stage::Established {
                    self.offer(&flow);
                }
            }
            Owner::Held | Owner::Dropped => self.retire(inner),
        }
    }

    /// A connection's handshake is done and its stream is there.
    pub(super) fn offer(&self, flow: &Arc<Flow>) {
        let mut inside = self.lock();
        inside.accept_queue.push_back(Arc::clone(flow));
        let acceptor = inside.acceptor.take();
        drop(inside);
        if let Some(acceptor) = acceptor {
            acceptor.wake();
        }
    }

    /// The next connection for the listener.
    pub(super) fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Arc<Flow>>> {
        let mut inside = self.lock();
        if let Some(error) = inside.failure() {
            return Poll::Ready(Err(error));
        }
        if let Some(flow) = inside.accept_queue.pop_front() {
            return Poll::Ready(Ok(flow));
        }
        inside.acceptor = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Nobody accepts any more: new SYNs are refused, and these were never accepted.
    pub(super) fn stop_listening(&self) -> VecDeque<Arc<Flow>> {
        let mut inside = self.lock();
        inside.listening = false;
        mem::take(&mut inside.accept_queue)
    }

    /// Lets one of ipstack's streams go once its task has ended. The task owns the receiver of the
    /// channel whose sender is asked here.
    pub(super) fn retire(&self, inner: Inner) {
        self.runtime.spawn(async move {
            inner.stream_sender().closed().await;
            // The task drops its receiver in its last poll, which may still be running elsewhere.
            tokio::task::yield_now().await;
            drop(inner.into_stream());
        });
    }

    /// Runs something on the stack's runtime.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(future);
    }
}

impl Inside {
    fn failure(&self) -> Option<io::Error> {
        self.failure.as_ref().map(|(kind, message)| io::Error::new(*kind, message.clone()))
    }
}
