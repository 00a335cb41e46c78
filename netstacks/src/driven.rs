//! Async streams on top of a state machine.
//!
//! smoltcp and lwIP do nothing by themselves: a caller has to pass them packets and the time. Here the task
//! that reads or writes a stream does that itself, inline, under a lock that it holds for a short time: a batch
//! of packets in, then its own bytes in or out, then packets out. A task that has to wait leaves its own waker
//! with the link, so the next packet wakes this task alone. A byte crosses no channel and no other task.
//!
//! One background task, the driver, does the rest. While the streams' tasks drive, it only checks now and then.
//! When none of them has driven for a while, it watches the link and the timers itself, wakes the tasks that
//! have something to do, and leaves the stack to them again. So a task that left its waker and lost interest
//! delays the others by one check, not for ever.

mod datagrams;
mod engine;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;
use tokio::time::{Instant, Sleep};

use crate::datagrams::Receivers;
use crate::{Driver, Listener, Sink, Source, Stream};

pub(crate) use self::datagrams::DrivenDatagrams;
pub(crate) use self::engine::{Accepted, Engine, FlowId, Intake};

/// How often the driver checks whether the tasks still drive by themselves.
const LOOK: Duration = Duration::from_millis(10);

/// How often the driver checks the timers, at least, while connections exist and it watches: a task that
/// drives once in between sets new timers without telling it.
const TICK: Duration = Duration::from_millis(200);

/// The same, while none exist.
const IDLE: Duration = Duration::from_mins(1);

/// The most bytes that one turn takes from a writer. They are sent at the end of the turn, so they are still
/// in the processor's cache, and so are the buffers that they were copied through.
const TURN_BYTES: usize = 256 << 10;

/// How many full batches a caller takes for others before it lets other tasks run.
const INLINE_BATCHES: usize = 4;

/// How many batches the driver takes before it lets other tasks run.
const DRIVER_BATCHES: usize = 8;

/// The shortest sleep of the driver, and of tokio's timer.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

struct State<E> {
    engine: E,
    parked: Vec<Parked>,
    acceptor: Option<Waker>,
    /// The tasks that wait for a datagram.
    receivers: Receivers,
    driver: Option<Waker>,
    /// The driver has left its waker with the link and sleeps.
    driver_watches: bool,
    /// The number of turns that tasks have made inline, and how many of them the driver has seen.
    inline_turns: u64,
    seen_turns: u64,
    failure: Option<(io::ErrorKind, String)>,
}

/// The tasks that wait for a connection.
#[derive(Default)]
struct Parked {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl<E: Engine> State<E> {
    /// Returns the error that ended the stack, if it has ended.
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, message)) => Err(io::Error::new(*kind, message.clone())),
        }
    }

    /// Remembers a failure of the stack or the link, and wakes all tasks.
    fn fail(&mut self, error: &io::Error) {
        self.failure = Some((error.kind(), error.to_string()));
        let parked = self.parked.iter_mut().flat_map(|parked| [parked.reader.take(), parked.writer.take()]);
        for waker in parked.chain([self.acceptor.take(), self.driver.take()]).flatten() {
            waker.wake();
        }
        self.receivers.wake();
    }

    fn ingress(&mut self, now: Instant) -> io::Result<Intake> {
        let result = self.engine.ingress(now);
        if let Err(error) = &result {
            self.fail(error);
        }
        result
    }

    /// Sends packets, then wakes the tasks of connections that have changed.
    fn egress(&mut self, now: Instant) -> io::Result<()> {
        let result = self.engine.egress(now);
        if let Err(error) = &result {
            self.fail(error);
            return result;
        }
        while let Some(flow) = self.engine.touched() {
            if let Some(parked) = self.parked.get_mut(flow.0) {
                for waker in [parked.reader.take(), parked.writer.take()].into_iter().flatten() {
                    waker.wake();
                }
            }
        }
        if self.engine.can_accept()
            && let Some(acceptor) = self.acceptor.take()
        {
            acceptor.wake();
        }
        if self.engine.has_datagram() {
            self.receivers.wake();
        }
        Ok(())
    }

    /// Makes inline turns around an operation of the caller: packets in, the operation, packets out. If it
    /// returns pending, the link has the caller's waker.
    fn poll_turns<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut operation: impl FnMut(&mut E) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.inline_turns += 1;
        for _ in 0..INLINE_BATCHES {
            let now = Instant::now();
            let intake = self.ingress(now)?;
            let result = operation(&mut self.engine);
            self.egress(now)?;
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            if intake == Intake::Drained && self.poll_link(cx)?.is_pending() {
                self.relieve_driver();
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The link has one place for a waker. If the driver's waker was there, the driver has to check from now
    /// on, because the link no longer wakes it.
    fn relieve_driver(&mut self) {
        if std::mem::take(&mut self.driver_watches) {
            self.wake_driver();
        }
    }

    /// Ready if another turn is worth it; else the link has the waker.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.engine.poll_readable(cx)?.is_ready() || self.engine.poll_unblocked(cx)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Makes the driver's turn. Returns when the next is due, or `None` for at once.
    fn drive_until(&mut self, now: Instant, cx: &mut Context<'_>) -> io::Result<Option<Instant>> {
        if self.seen_turns != self.inline_turns {
            self.seen_turns = self.inline_turns;
            return Ok(Some(now + LOOK));
        }
        let intake = self.ingress(now)?;
        self.egress(now)?;
        if intake == Intake::Full || self.poll_link(cx)?.is_ready() {
            return Ok(None);
        }
        self.driver_watches = true;
        let tick = if self.engine.is_idle() { IDLE } else { TICK };
        let deadline = self.engine.deadline(now).map(|deadline| deadline.max(now + SHORTEST_SLEEP));
        Ok(Some(deadline.map_or(now + tick, |deadline| deadline.min(now + tick))))
    }

    /// Wakes the driver for work that a call has left.
    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Leaves the link to the driver at once: the task whose waker it has will not drive for a while, or never.
    fn leave_to_driver(&mut self) {
        self.seen_turns = self.inline_turns;
        self.wake_driver();
    }

    fn parked(&mut self, flow: FlowId) -> &mut Parked {
        if self.parked.len() <= flow.0 {
            self.parked.resize_with(flow.0 + 1, Parked::default);
        }
        &mut self.parked[flow.0]
    }
}

struct Shared<E>(Arc<Mutex<State<E>>>);

impl<E> Clone for Shared<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Engine> Shared<E> {
    /// Locks the state, unless the stack has failed.
    fn lock(&self) -> io::Result<MutexGuard<'_, State<E>>> {
        let state = self.0.lock().map_err(|_| io::Error::other("the stack panicked"))?;
        state.check()?;
        Ok(state)
    }
}

/// Makes an engine's listener, datagrams and driver.
pub(crate) fn start<E: Engine>(engine: E) -> (DrivenListener<E>, DrivenDatagrams<E>, Driver) {
    let state = State {
        engine,
        parked: Vec::new(),
        acceptor: None,
        receivers: Receivers::default(),
        driver: None,
        driver_watches: false,
        inline_turns: 0,
        seen_turns: 0,
        failure: None,
    };
    let shared = Shared(Arc::new(Mutex::new(state)));
    let listener = DrivenListener { shared: shared.clone() };
    let datagrams = DrivenDatagrams::new(shared.clone());
    (listener, datagrams, Box::pin(drive(shared)))
}

/// Serves timers, and packets that arrive while all other tasks wait.
async fn drive<E: Engine>(shared: Shared<E>) -> io::Result<()> {
    let mut sleep = Box::pin(tokio::time::sleep(TICK));
    poll_fn(|cx| shared.poll_drive(sleep.as_mut(), cx)).await
}

impl<E: Engine> Shared<E> {
    /// Ready only with an error.
    fn poll_drive(&self, mut sleep: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock()?;
        if state.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
            state.driver = Some(cx.waker().clone());
        }
        for _ in 0..DRIVER_BATCHES {
            let now = Instant::now();
            let Some(sleep_until) = state.drive_until(now, cx)? else { continue };
            sleep.as_mut().reset(sleep_until);
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The source of an engine's connections.
pub struct DrivenListener<E> {
    shared: Shared<E>,
}

impl<E: Engine> Listener for DrivenListener<E> {
    type Stream = Flow<E>;

    async fn accept(&mut self) -> io::Result<Flow<E>> {
        let accepted = poll_fn(|cx| {
            let mut state = self.shared.lock()?;
            if let Some(accepted) = state.engine.accept() {
                return Poll::Ready(io::Result::Ok(accepted));
            }
            state.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await?;
        Ok(Flow { shared: self.shared.clone(), accepted })
    }
}

/// A connection of an engine.
pub struct Flow<E: Engine> {
    shared: Shared<E>,
    accepted: Accepted,
}

impl<E: Engine> Flow<E> {
    /// Makes a turn for this connection. If there is nothing to do, stores the task's waker in the place that
    /// `waiter` names.
    fn poll_turn(
        &self,
        cx: &mut Context<'_>,
        operation: impl FnMut(&mut E) -> io::Result<usize>,
        waiter: impl FnOnce(&mut Parked) -> &mut Option<Waker>,
    ) -> Poll<io::Result<usize>> {
        // Without a budget, a task with a fast peer would never let the others run.
        let budget = ready!(coop::poll_proceed(cx));
        let mut state = self.shared.lock()?;
        let polled = state.poll_turns(cx, operation);
        if polled.is_ready() {
            budget.made_progress();
            return polled;
        }
        match waiter(state.parked(self.accepted.flow)) {
            Some(waker) => waker.clone_from(cx.waker()),
            waiter => *waiter = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// A task that waits for something else may not come back for the next packet.
    fn leave(&self, polled: Poll<io::Result<usize>>, refused: bool) -> Poll<io::Result<usize>> {
        if polled.is_pending() && refused {
            self.shared.lock()?.leave_to_driver();
        }
        polled
    }
}

impl<E: Engine> AsyncRead for Flow<E> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let flow = self.accepted.flow;
        let unfilled = buffer.initialize_unfilled();
        if unfilled.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let len = ready!(self.poll_turn(cx, |engine| engine.recv(flow, unfilled), |parked| &mut parked.reader))?;
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<E: Engine> AsyncWrite for Flow<E> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let flow = self.accepted.flow;
        let bytes = &bytes[..bytes.len().min(TURN_BYTES)];
        self.poll_turn(cx, |engine| engine.send(flow, bytes), |parked| &mut parked.writer)
    }

    /// The stack has all written bytes already.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock()?;
        state.engine.finish(self.accepted.flow);
        Poll::Ready(state.egress(Instant::now()))
    }
}

impl<E: Engine> Stream for Flow<E> {
    fn local_addr(&self) -> SocketAddr {
        self.accepted.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.accepted.peer
    }

    fn poll_read_with(&mut self, cx: &mut Context<'_>, sink: &mut Sink<'_>) -> Poll<io::Result<usize>> {
        let flow = self.accepted.flow;
        let mut refused = false;
        let mut sink = |slices: &[IoSlice<'_>]| {
            let taken = sink(slices);
            refused = !matches!(taken, Ok(1..));
            taken
        };
        let polled = self.poll_turn(cx, |engine| engine.lend(flow, &mut sink), |parked| &mut parked.reader);
        self.leave(polled, refused)
    }

    fn poll_write_with(&mut self, cx: &mut Context<'_>, source: &mut Source<'_>) -> Poll<io::Result<usize>> {
        let flow = self.accepted.flow;
        let mut refused = false;
        let mut source = |room: &mut [u8]| {
            let filled = source(room);
            refused = filled.is_err();
            filled
        };
        let polled =
            self.poll_turn(cx, |engine| engine.fill(flow, TURN_BYTES, &mut source), |parked| &mut parked.writer);
        self.leave(polled, refused)
    }

    fn has_failed(&self) -> bool {
        self.shared.lock().map_or(true, |state| state.engine.has_failed(self.accepted.flow))
    }

    fn reset(self) {
        // A stack that has failed has no connections to end. The drop that follows sends the RST.
        if let Ok(mut state) = self.shared.lock() {
            state.engine.reset(self.accepted.flow);
        }
    }
}

impl<E: Engine> Drop for Flow<E> {
    fn drop(&mut self) {
        // A stack that has failed has no connections to close.
        let Ok(mut state) = self.shared.lock() else { return };
        *state.parked(self.accepted.flow) = Parked::default();
        state.engine.release(self.accepted.flow);
        // The next call reports a failure.
        drop(state.egress(Instant::now()));
        state.leave_to_driver();
    }
}
